"""perf-PID.map: a line for each function, ``START SIZE NAME``, numbers in hexadecimal, names with any blanks in them.

Written by V8 (``--perf-basic-prof``), CPython (``-X perf``), .NET, LuaJIT, agents of the Java VM and others; HotSpot's
numbers begin with 0x. The file grows at its end; its last line may not be whole yet.
"""

from __future__ import annotations

import re

from collector.runtimes.code import NAME_MAX, Code, is_sound

_NUMBER = rb"[ \t]*(?:0[xX])?([0-9a-fA-F]{1,16})[ \t]+"
_LINE = re.compile(rb"^" + _NUMBER + _NUMBER + rb"([^\n]*[^\s])[ \t\r]*$", re.MULTILINE)


def whole_lines(data: bytes) -> int:
    """Bytes up to the end of the last line that is whole."""
    return data.rfind(b"\n") + 1


def parse(data: bytes, since_ns: int) -> tuple[list[Code], int]:
    """The code that whole lines tell of, in their order, from ``since_ns`` on; and how many lines tell of none."""
    found = []
    for match in _LINE.finditer(data):
        start, size, name = int(match[1], 16), int(match[2], 16), match[3][:NAME_MAX]
        if is_sound(start, size, name):
            found.append(Code(start, size, name, since_ns))
    return found, sum(1 for line in data.split(b"\n") if line.strip()) - len(found)
