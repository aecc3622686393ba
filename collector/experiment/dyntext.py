"""dyntext: the code of functions without a file, the lines that it was made of, and where those are.

Records, each with its kind and its size (the whole record) in front; a head says whose the ones behind it are, by the
address and the time at which map.xml maps the function::

    1 head    kind, 24, time (ns since the start), vaddr
    2 code    8 + bytes, filled up to 16
    4 source  8 + path, NUL, filled up to 16
    3 lines   8 + (offset in the code, line) each

The file has no blocks and no padding: whole groups are appended.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from collector.experiment.records import DYNTEXT_CODE, DYNTEXT_HEAD, DYNTEXT_LINES, DYNTEXT_SOURCE, TEXT_HEAD

NAME = "dyntext"
_UNIT = 16
_LINE = "<u4"


class Text(NamedTuple):
    """What is known of a function: its code, its source file, and (offset, line), sorted."""

    code: bytes = b""
    source: bytes = b""
    lines: Sequence[tuple[int, int]] = ()


def packed(time_ns: int, vaddr: int, text: Text) -> bytes:
    """The records of a function mapped at ``vaddr``, ``time_ns`` after the start."""
    parts = [np.array([(DYNTEXT_HEAD, TEXT_HEAD.size, time_ns, vaddr)], TEXT_HEAD.dtype).tobytes()]
    if text.code:
        parts.append(_record(DYNTEXT_CODE, text.code))
    if text.source and text.lines:
        parts.append(_record(DYNTEXT_SOURCE, text.source.split(b"\0")[0] + b"\0"))
        parts.append(_record(DYNTEXT_LINES, np.array(text.lines, _LINE).tobytes(), unit=1))
    return b"".join(parts)


def _record(kind: int, body: bytes, unit: int = _UNIT) -> bytes:
    size = -(-(8 + len(body)) // unit) * unit
    return (np.array([kind, size], _LINE).tobytes() + body).ljust(size, b"\0")


def read(data: bytes) -> dict[tuple[int, int], Text]:
    """By (vaddr, time after the start) what is told of functions; what is cut or damaged ends it."""
    found: dict[tuple[int, int], Text] = {}
    at, key = 0, None
    while at + 8 <= len(data):
        kind, size = np.frombuffer(data, _LINE, 2, at).tolist()
        if size < 8 or at + size > len(data):
            break
        body = data[at + 8:at + size]
        if kind == DYNTEXT_HEAD and size >= TEXT_HEAD.size:
            head = np.frombuffer(data, TEXT_HEAD.dtype, 1, at)
            key = int(head["vaddr"][0]), int(head["time"][0])
            found[key] = Text()
        elif key is not None:
            found[key] = _with(found[key], kind, body)
        at += size
    return found


def _with(text: Text, kind: int, body: bytes) -> Text:
    if kind == DYNTEXT_CODE:
        return text._replace(code=body)
    if kind == DYNTEXT_SOURCE:
        return text._replace(source=body.split(b"\0")[0])
    if kind == DYNTEXT_LINES:
        pairs = np.frombuffer(body, _LINE, len(body) // 8 * 2).reshape(-1, 2)
        return text._replace(lines=tuple(sorted((offset, line) for offset, line in pairs.tolist())))
    return text
