"""Addresses for functions that have no machine code of their own: beyond all that a processor can address. Pure.

A function of an interpreter gets a stretch as long as its bytecode; the address of an instruction in it is one more
than its place, since readers take one off. Functions that are the same (name, file, lines) share one, in all processes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from collector.runtimes.code import Code

_UNIT = 64


class MadeUp:
    """All such functions of a recording."""

    def __init__(self, first: int) -> None:
        """``first``: where such addresses begin."""
        self._starts: list[int] = []
        self._codes: list[Code] = []
        self._known: dict[tuple[bytes, bytes, int, Sequence[tuple[int, int]]], int] = {}
        self._next = first

    def start_of(self, name: bytes, source: bytes = b"", size: int = 2, lines: Sequence[tuple[int, int]] = ()) -> int:
        """Where a function begins; it gets its stretch when it is first asked for. ``lines`` are hashable."""
        key = name, source, size, lines
        start = self._known.get(key)
        if start is None:
            start = self._known[key] = self._next
            self._next += (size // _UNIT + 1) * _UNIT
            self._starts.append(start)
            self._codes.append(Code(start, size + 1, name, 0, b"", source, lines))
        return start

    def at(self, pc: int) -> Code | None:
        """The function at such an address."""
        at = bisect_right(self._starts, pc) - 1
        return self._codes[at] if at >= 0 and pc < self._codes[at].end else None
