"""Line tables of CPython's code objects, as (offset in the bytecode, line), sorted. Pure.

Three encodings: up to 3.9 ``co_lnotab``, pairs of bytes (further bytecode, further lines, the latter signed); in 3.10
``co_linetable``, pairs (length, signed further lines, -128: no line); since 3.11 entries of a head, 1 and four bits of
kind and three of length, and what the kind needs, variable-length numbers of six bits each.
"""

from __future__ import annotations

from collections.abc import Iterator

Lines = tuple[tuple[int, int], ...]
_NO_LINE, _LONG, _NO_COLUMNS = 15, 14, 13
_LINE_END = 1 << 31  # a C int


def lines_of(version: tuple[int, int], table: bytes, first_line: int, code_size: int) -> Lines:
    """What a table of that version tells of a bytecode of so many bytes; as far as it is sound."""
    if version >= (3, 11):
        return _merged(_locations(table, first_line), code_size)
    return _merged(_linetable(table, first_line) if version == (3, 10) else _lnotab(table, first_line), code_size)


def _merged(found: Iterator[tuple[int, int]], code_size: int) -> Lines:
    lines: list[tuple[int, int]] = []
    for offset, line in found:
        if offset >= code_size or not 0 <= line < _LINE_END:
            break
        if not line or (lines and lines[-1][1] == line):
            continue
        if lines and lines[-1][0] == offset:
            lines.pop()
        lines.append((offset, line))
    return tuple(lines)


def _lnotab(table: bytes, line: int) -> Iterator[tuple[int, int]]:
    offset = 0
    yield offset, line
    for at in range(0, len(table) - 1, 2):
        offset += table[at]
        line += table[at + 1] - 256 * (table[at + 1] > 127)
        yield offset, line


def _linetable(table: bytes, line: int) -> Iterator[tuple[int, int]]:
    offset = 0
    for at in range(0, len(table) - 1, 2):
        if table[at + 1] != 128:
            line += table[at + 1] - 256 * (table[at + 1] > 127)
            yield offset, line
        offset += table[at]


def _locations(table: bytes, line: int) -> Iterator[tuple[int, int]]:
    at = offset = 0
    while at < len(table):
        head = table[at]
        kind = head >> 3 & 15
        at += 1
        delta = 0
        if kind in (_LONG, _NO_COLUMNS):
            number, at = _number(table, at)
            delta = -(number >> 1) if number & 1 else number >> 1
            for _ in range(3 if kind == _LONG else 0):
                _, at = _number(table, at)
        elif kind != _NO_LINE:
            delta = kind - 10 if 10 <= kind <= 12 else 0
            at += 2 if kind >= 10 else 1
        line += delta
        if kind != _NO_LINE:
            yield offset, line
        offset += 2 * ((head & 7) + 1)


def _number(table: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(table):
        byte = table[at]
        value |= (byte & 63) << shift
        shift += 6
        at += 1
        if not byte & 64 or shift > 60:
            break
    return value, at
