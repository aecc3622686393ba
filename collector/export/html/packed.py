"""Columns of numbers as one compressed text that a page unpacks.

    zlib( description, one line of JSON   columns, one behind the other )   in base64

A column of n numbers is stored less its smallest, in as few bytes as the largest needs, the lowest bytes of all
numbers first, then the second ones: bytes of one kind beside each other compress best. ``delta``: each number less the
one before it. The description of a column::

    {"at": 0, "n": 1000000, "bytes": 3, "base": -7, "delta": true, "type": "Int32"}

``at`` counts from the first column on. Numbers are exact below 2**53, in doubles where 32 bits do not hold them.
"""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

from collector.errors import FormatError

Numbers = npt.NDArray[Any]

_EXACT_MAX = 1 << 53
_TYPES = (("Uint8", 0, 1 << 8), ("Uint16", 0, 1 << 16), ("Int32", -(1 << 31), 1 << 31),
          ("Float64", -_EXACT_MAX, _EXACT_MAX + 1))
_LEVEL = 6


class Packed:
    """Columns by name, and whatever JSON holds."""

    def __init__(self, **about: Any) -> None:
        self._about = about
        self._described: dict[str, dict[str, Any]] = {}
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, name: str, values: Numbers, delta: bool = False) -> None:
        """One more column (n,) of integers below 2**53."""
        numbers = values.astype(np.int64)
        least, most = int(numbers.min(initial=0)), int(numbers.max(initial=0))
        kind = next((kind for kind, low, end in _TYPES if low <= least and most < end), None)
        if kind is None:
            raise FormatError(f"a number of {name} is too large for a page")
        stored = np.diff(numbers, prepend=0) if delta else numbers
        base = int(stored.min(initial=0))
        stored = stored - base
        n_bytes = max(-(-int(stored.max(initial=0)).bit_length() // 8), 1)
        planes = np.ascontiguousarray(stored.astype("<i8")).view(np.uint8).reshape(-1, 8)[:, :n_bytes]
        content = np.ascontiguousarray(planes.T).tobytes()
        self._described[name] = {"at": self._size, "n": len(numbers), "bytes": n_bytes, "base": base, "delta": delta,
                                 "type": kind}
        self._parts.append(content)
        self._size += len(content)

    def text(self) -> str:
        """All of it."""
        head = json.dumps(self._about | {"columns": self._described}, separators=(",", ":"))
        content = b"".join([head.encode("ascii"), b"\n", *self._parts])
        return base64.b64encode(zlib.compress(content, _LEVEL)).decode("ascii")
