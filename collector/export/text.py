"""Tables as plain text, laid out as the Performance Analyzer's er_print does::

    Excl. Total   Incl. Total    Name          heading: up to three lines, the last one says the units
    CPU           CPU
     sec.      %   sec.      %
    0.420 100.00  0.420 100.00   <Total>       cell: seconds, percentage; a zero is "0.", so that others stand out

A column is as wide as its widest value or word. Names come from anywhere and are made printable here.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import TextIO

from collector.report.metrics import Column, View
from collector.report.tables import unpack_address

_GAP = 2
_PERCENT_WIDTH = 6
_HEADING_LINES = 3


def make_tolerant(stream: TextIO) -> None:
    """Let a stream whose encoding lacks a character write an escape instead of failing."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")


def printable(name: bytes) -> str:
    """A name as one line that a terminal shows as it is: control bytes and what is not UTF-8 become escapes."""
    text = name.decode("utf-8", "backslashreplace")
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def seconds(value_us: int) -> str:
    """Microseconds as seconds with three digits."""
    return f"{value_us / 1e6:.3f}" if value_us else "0.   "


class Layout:
    """The text of a table's rows and heading. ``fit`` all values first; widths only grow."""

    def __init__(self, view: View) -> None:
        self._columns = view.columns
        self._value_widths = [0] * len(view.columns)
        self._texts = [_TEXT_OF[column.metric.kind] for column in view.columns]
        self._headings: dict[tuple[int, int], tuple[int, list[str]]] = {}

    def fit(self, values: Sequence[Sequence[int]], names: Sequence[str] = ()) -> None:
        """Make room for rows; ``values`` (n rows, one number per column)."""
        for i, (column, text) in enumerate(zip(self._columns, self._texts, strict=True)):
            if column.metric.kind == "name":
                widest = max(map(len, names), default=0) if i + 1 < len(self._columns) else 0
            elif column.as_value:
                # The longest text is that of the largest value, or of zero, which is written "0.   ".
                widest = max((len(text(row[i])) for row in values), default=0)
            else:
                widest = 0
            self._value_widths[i] = max(self._value_widths[i], widest)

    def heading(self) -> list[str]:
        """Three lines, without trailing blanks."""
        lines = ["", "", ""]
        for i, column in enumerate(self._columns):
            width, words = self._heading_of(i)
            before = " " if i and column.metric.kind == "name" else ""
            for number in range(_HEADING_LINES):
                lines[number] += before + words[number].ljust(width + _GAP - len(before))
        return [line.rstrip() for line in lines]

    def row(self, values: Sequence[int], percents: Sequence[float], name: str, mark: str = " ") -> str:
        """One line without trailing blanks; ``mark`` stands before the name."""
        parts: list[str] = []
        last = len(self._columns) - 1
        for i, column in enumerate(self._columns):
            if column.metric.kind == "name":
                parts.append(mark + (name if i == last else name.ljust(self._value_width(i)) + " "))
                continue
            cell = []
            if column.as_value:
                cell.append(self._texts[i](values[i]).rjust(self._value_width(i)))
            if column.as_percent:
                cell.append(f"{percents[i]:6.2f}" if percents[i] else "  0.  ")
            text = " ".join(cell)
            parts.append(text if i == last else text.ljust(self._heading_of(i)[0] + _GAP))
        return "".join(parts).rstrip()

    def _value_width(self, index: int) -> int:
        column = self._columns[index]
        least = len("sec.") if column.as_value and column.metric.kind == "time" else 0
        return max(self._value_widths[index], least)

    def _heading_of(self, index: int) -> tuple[int, list[str]]:
        """The column's width without the gap, and the three lines of its heading."""
        key = (index, self._value_width(index))
        if key not in self._headings:
            self._headings[key] = _heading(self._columns[index], key[1])
        return self._headings[key]


def _heading(column: Column, value_width: int) -> tuple[int, list[str]]:
    unit = _unit(column, value_width)
    width = value_width * column.as_value + _PERCENT_WIDTH * column.as_percent
    width += column.as_value and column.as_percent
    words = column.words
    width = max([width, len(unit), *map(len, words)])
    lines = [unit.strip()] if unit and not column.as_percent else []
    n_lines = _HEADING_LINES - column.as_percent
    while len(_wrapped(words + lines, width)) > n_lines:
        width += 1
    found = _wrapped(words, width)
    if len(found) < _HEADING_LINES:
        found += [""] * (_HEADING_LINES - 1 - len(found)) + [unit]
    else:
        found[-1] = f"{found[-1]} {unit.strip()}".rstrip()
    return width, found


def tree_mark(is_last: Sequence[bool]) -> str:
    """What stands before a name in a call tree; ``is_last`` per level, from the top, whether no sibling follows."""
    above = "".join("  " if last else "  |" for last in is_last[:-1])
    return f" {above}{'  ' if is_last else ''}+-"


def table(view: View, values: Sequence[Sequence[int]], percents: Sequence[Sequence[float]],
          names: Sequence[str]) -> list[str]:
    """Heading and rows of a plain table."""
    layout = Layout(view)
    layout.fit(values, names)
    return layout.heading() + [layout.row(*row) for row in zip(values, percents, names, strict=True)]


def _unit(column: Column, value_width: int) -> str:
    if column.metric.kind != "time":
        return ""
    seconds_part = "sec.".rjust(value_width) if column.as_value else ""
    return seconds_part + ("%".rjust(_PERCENT_WIDTH + column.as_value) if column.as_percent else "")


def _wrapped(words: Sequence[str], width: int) -> list[str]:
    lines: list[str] = []
    for word in words:
        if lines and len(lines[-1]) + 1 + len(word) <= width:
            lines[-1] += " " + word
        else:
            lines.append(word)
    return lines


def _address(packed: int) -> str:
    """An address within all objects: the number of the load object and the offset in it."""
    number, offset = unpack_address(packed)
    return f"{number}:0x{offset:08x}"


_TEXT_OF: dict[str, Callable[[int], str]] = {"time": seconds, "size": str, "address": _address,
            "name": str}
