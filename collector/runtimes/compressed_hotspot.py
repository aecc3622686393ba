"""Compressed numbers of HotSpot (UNSIGNED5), and its tables of lines, which are made of them. Pure.

A number is one to five bytes of six bits each, the lowest first; a byte of 192 or more says that another one follows,
and adds all of its value. Since JDK 20 one is added to every byte, so that none is zero.
"""

from __future__ import annotations

Lines = tuple[tuple[int, int], ...]
_MORE = 192
_LONG = 0xFF
_N_MAX = 1 << 16


def number_at(data: bytes, at: int, excluded: int) -> tuple[int, int]:
    """The number at a place and the place behind it; (0, -1) where there is none."""
    total = 0
    for i in range(5):
        if not 0 <= at < len(data) or data[at] < excluded:
            return 0, -1
        byte = data[at]
        total += (byte - excluded) << (6 * i)
        at += 1
        if byte < _MORE:
            break
    return total & 0xFFFF_FFFF, at


def lines_of(data: bytes, excluded: int, code_size: int) -> Lines:
    """A table of lines as (index of the bytecode, line), sorted; as far as it is sound. An entry is one byte, five bits
    of further bytecode and three of further lines, or 255 and two signed numbers; zero ends it."""
    found: dict[int, int] = {}
    at = bci = line = 0
    while at < len(data) and data[at] and len(found) < _N_MAX:
        byte, at = data[at], at + 1
        if byte == _LONG:
            more, at = number_at(data, at, excluded)
            further, at = number_at(data, at, excluded)
            if at < 0:
                break
            bci, line = bci + _signed(more), line + _signed(further)
        else:
            bci, line = bci + (byte >> 3), line + (byte & 7)
        if not (0 <= bci < code_size and 0 < line < 1 << 16):
            break
        found.setdefault(bci, line)
    return tuple(sorted(found.items()))


def _signed(number: int) -> int:
    return number >> 1 ^ -(number & 1)
