"""perf-PID.map: a line for each function, ``START SIZE NAME``, numbers in hexadecimal, names with any blanks in them.

Written by V8 (``--perf-basic-prof``), CPython (``-X perf``), .NET, LuaJIT, agents of the Java VM and others; HotSpot's
numbers begin with 0x. The file grows at its end; its last line may not be whole yet.
"""

from __future__ import annotations

import re

from collector.runtimes.code import NAME_MAX, Code, is_sound

LINE_MAX = 1 << 16  # bytes; a longer line tells nothing
# Whoever may write to /tmp may have written it: no part of a line is looked at twice.
_NUMBER = rb"(?:0[xX])?+([0-9a-fA-F]{1,16}+)[ \t]++"
_LINE = re.compile(rb"[ \t]*+" + _NUMBER + _NUMBER + rb"(\S[^\n]*+)")
_NONE = 0, 0, b""


def whole_lines(data: bytes) -> int:
    """Bytes up to the end of the last line that is whole."""
    return data.rfind(b"\n") + 1


def parse(data: bytes, since_ns: int) -> tuple[list[Code], int]:
    """The code that whole lines tell of, in their order, from ``since_ns`` on; and how many lines tell of none."""
    found, n_bad = [], 0
    for line in data.split(b"\n"):
        match = _LINE.match(line) if len(line) <= LINE_MAX else None
        start, size, name = (int(match[1], 16), int(match[2], 16), match[3].rstrip()[:NAME_MAX]) if match else _NONE
        if is_sound(start, size, name):
            found.append(Code(start, size, name, since_ns))
        elif line and not line.isspace():
            n_bad += 1
    return found, n_bad
