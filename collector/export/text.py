"""Tables as plain text, laid out as the Performance Analyzer's er_print does::

    Excl. Total   Incl. Total    Name          heading: up to three lines, the last one says the units
    CPU           CPU
     sec.      %   sec.      %
    0.420 100.00  0.420 100.00   <Total>       cell: seconds, percentage; a zero is "0.", so that others stand out

A column is as wide as its widest value or word; of blocks, each one's columns are at least as wide as those before it.
Names come from anywhere and are made printable here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from collector.report.documents import Annotated, Column, Document, Lines, Listing, Table, Tree, Unit
from collector.report.tables import unpack_address

_GAP = 2
_PERCENT_WIDTH = 6
_HEADING_LINES = 3
_MARKS = {"self": "*"}
_ROWS_AT_ONCE = 4096
_ALL = slice(None)


def printable(name: bytes) -> str:
    """A name as one line that a terminal shows as it is: control bytes and what is not UTF-8 become escapes."""
    text = name.decode("utf-8", "backslashreplace")
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def seconds(value_us: int) -> str:
    """Microseconds as seconds with three digits."""
    return f"{value_us / 1e6:.3f}" if value_us else "0.   "


def text_lines(document: Document) -> Iterator[str]:
    """The document, line by line."""
    match document:
        case Lines():
            yield from document.lines
        case Listing():
            yield from _listing(document)
        case Tree():
            yield from _tree(document)
        case _ if document.block_titles:
            yield from _sections(document)
        case Annotated():
            from collector.export.annotated import annotated_lines

            yield from annotated_lines(document)
        case _ if document.blocks is not None:
            yield from _blocks(document)
        case _:
            yield from _table(document)


def _table(table: Table) -> Iterator[str]:
    layout = Layout(table.columns)
    layout.fit()
    above = _above(table)
    yield from (*above, *[""] * bool(above), *layout.heading())
    marks = [_MARKS.get(role, " ") for role in table.roles]
    yield from layout.rows(slice(table.n_shown), marks)
    yield ""


def _blocks(table: Table) -> Iterator[str]:
    assert table.blocks is not None
    layout = Layout(table.columns)
    yield from (*_above(table), "")
    marks = [_MARKS.get(role, " ") for role in table.roles]
    for begin, end in pairwise(table.blocks[:table.limit + 1 if table.limit else None].tolist()):
        layout.fit(slice(begin, end))
        yield from layout.heading()
        yield from layout.rows(slice(begin, end), marks)
        yield ""


def _sections(table: Table) -> Iterator[str]:
    """One heading, and a title for each block; of a fragment of the stack only the last function has values."""
    assert table.blocks is not None
    layout = Layout(table.columns)
    layout.fit()
    yield from (*_above(table), "", *layout.heading())
    for title, (begin, end) in zip(table.block_titles, pairwise(table.blocks.tolist()), strict=True):
        missing = "No " if begin == end else ""
        yield f"{'=' * max(layout.name_at - 1, 2)} {missing}{title}"
        for at, line in enumerate(layout.rows(slice(begin, end)), begin):
            name = line[layout.name_at:]
            yield " " * layout.name_at + name if table.roles[at] == "fragment" else line
        yield ""


def _tree(tree: Tree) -> Iterator[str]:
    layout = Layout(tree.columns)
    layout.fit(slice(1))
    yield from (*_above(tree), "", *layout.heading())
    yield from layout.rows(slice(tree.n_shown), tree_marks(tree.depths.tolist(), tree.n_shown))


def _above(table: Table) -> list[str]:
    warnings = [f"*** Warning: {note}" for note in table.notes]
    return [*warnings, *([""] if warnings else []), *table.titles]


def _listing(table: Listing) -> Iterator[str]:
    """Numbers to the right; a rule under the headings."""
    yield from _above(table)
    n_shown = table.n_shown
    columns = [[column.title, *cells(column, slice(n_shown))] for column in table.columns]
    widths = [max(map(len, texts)) for texts in columns]
    for texts, width in zip(columns, widths, strict=True):
        texts.insert(1, "=" * width)
    last = len(columns) - 1
    for row in zip(*columns, strict=True):
        yield " ".join(text.rjust(width) if column.unit is not Unit.NAME else text if i == last else text.ljust(width)
                       for i, (text, width, column) in enumerate(zip(row, widths, table.columns, strict=True))) + " "


class Layout:
    """The text of a table's rows and heading. ``fit`` rows first; widths only grow."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = columns
        self._value_widths = [0] * len(columns)
        self._headings: dict[tuple[int, int], tuple[int, list[str]]] = {}
        self._names: list[dict[int, str]] = [{} for _ in columns]

    def fit(self, rows: slice = _ALL) -> None:
        """Make room for some rows."""
        for i, column in enumerate(self._columns):
            values = column.values[rows]
            if not len(values):
                widest = 0
            elif column.unit is Unit.NAME:
                widest = max(map(len, self._shown(i, rows))) if i + 1 < len(self._columns) else 0
            elif column.against is not None or column.interval is not None:
                widest = max(map(len, cells(column, rows))) + len(_times(column))
            elif column.as_value:
                # The longest text is that of the largest value, of the least, or of zero, which is written "0.   ".
                text = _TEXT_OF[column.unit]
                widest = max(len(text(int(value))) for value in (values.max(), values.min(), 0)
                             if value or (values == 0).any())
            else:
                widest = 0
            self._value_widths[i] = max(self._value_widths[i], widest)

    def heading(self) -> list[str]:
        """Three lines, without trailing blanks; one more above them where groups are compared."""
        has_groups = any(column.group for column in self._columns)
        lines = [""] * (has_groups + _HEADING_LINES)
        for i, column in enumerate(self._columns):
            width, words = self._heading_of(i)
            before = " " if i and column.unit is Unit.NAME else ""
            for number, text in enumerate([column.group] * has_groups + words):
                lines[number] += before + text.ljust(width + _GAP - len(before))
        return [line.rstrip() for line in lines]

    def rows(self, rows: slice = _ALL, marks: Sequence[str] = ()) -> Iterator[str]:
        """Lines without trailing blanks; ``marks`` (all rows) stand before the names, else a blank."""
        begin, end, _ = rows.indices(len(self._columns[0]))
        for at in range(begin, end, _ROWS_AT_ONCE):
            part = slice(at, min(end, at + _ROWS_AT_ONCE))
            cells = [self._column(i, part, marks) for i in range(len(self._columns))]
            yield from map(str.rstrip, map("".join, zip(*cells, strict=True)))

    def _column(self, index: int, rows: slice, marks: Sequence[str]) -> list[str]:
        """The cells of a column, as wide as the column, gap included."""
        column, is_last = self._columns[index], index + 1 == len(self._columns)
        if column.unit is Unit.NAME:
            names = self._shown(index, rows)
            width = 0 if is_last else self._value_width(index) + 1
            if marks:
                return [mark + name.ljust(width) for mark, name in zip(marks[rows], names, strict=True)]
            return [" " + name.ljust(width) for name in names]
        width = 0 if is_last else self._heading_of(index)[0] + _GAP
        parts = []
        if column.as_value:
            value_width = self._value_width(index)
            times = _times(column)
            parts.append([times + text.rjust(value_width - len(times)) for text in cells(column, rows)])
        if column.percents is not None:
            shares = column.percents[rows].tolist()
            known = {share: f"{share:6.2f}" if share else "  0.  " for share in set(shares)}
            parts.append([known[share] for share in shares])
        if len(parts) == 1:
            return [text.ljust(width) for text in parts[0]]
        return [f"{value} {share}".ljust(width) for value, share in zip(*parts, strict=True)]

    def _shown(self, index: int, rows: slice) -> list[str]:
        """The names of some rows, made printable once each."""
        column, known = self._columns[index], self._names[index]
        numbers = column.values[rows].tolist()
        known.update((number, printable(column.labels[number])) for number in set(numbers) - known.keys())
        return [known[number] for number in numbers]

    @property
    def name_at(self) -> int:
        """Where names begin, if they come last; else 0."""
        *before, last = self._columns
        if last.unit is not Unit.NAME:
            return 0
        return sum((self._value_width(i) + 1 if column.unit is Unit.NAME else self._heading_of(i)[0] + _GAP)
                   for i, column in enumerate(before)) + 1

    def _value_width(self, index: int) -> int:
        column = self._columns[index]
        least = len(unit_name(column)) if column.as_value else 0
        return max(self._value_widths[index], least)

    def _heading_of(self, index: int) -> tuple[int, list[str]]:
        """The column's width without the gap, and the three lines of its heading."""
        key = (index, self._value_width(index))
        if key not in self._headings:
            self._headings[key] = _heading(self._columns[index], key[1])
        return self._headings[key]


def _heading(column: Column, value_width: int) -> tuple[int, list[str]]:
    unit = _unit(column, value_width)
    has_share = column.percents is not None
    width = value_width * column.as_value + _PERCENT_WIDTH * has_share
    width += column.as_value and has_share
    words = list(column.words)
    width = max([width, len(unit), len(column.group), *map(len, words)])
    lines = [unit.strip()] if unit and not has_share else []
    n_lines = _HEADING_LINES - has_share
    while len(_wrapped(words + lines, width)) > n_lines:
        width += 1
    found = _wrapped(words, width)
    if len(found) < _HEADING_LINES:
        found += [""] * (_HEADING_LINES - 1 - len(found)) + [unit]
    else:
        found[-1] = f"{found[-1]} {unit.strip()}".rstrip()
    return width, found


def tree_marks(depths: Sequence[int], n_wanted: int) -> list[str]:
    """What stands before the names of a tree's first nodes: a line down from each ancestor that has siblings below."""
    has_next = [False] * len(depths)
    below = [False] * (max(depths, default=0) + 2)  # whether a node of that depth and parent comes later
    for at in range(len(depths) - 1, -1, -1):
        depth = depths[at]
        has_next[at], below[depth], below[depth + 1] = below[depth], True, False
    above, marks = [""] * (len(below) + 1), []
    for depth, more in zip(depths[:n_wanted], has_next[:n_wanted], strict=True):
        marks.append(f" {above[depth]}  +-" if depth else " +-")
        above[depth + 1] = above[depth] + ("  |" if more else "  ") if depth else ""
    return marks


def _unit(column: Column, value_width: int) -> str:
    name = unit_name(column)
    if not name and (column.unit not in (Unit.BYTES, Unit.COUNT) or column.percents is None):
        return ""
    value_part = name.rjust(value_width) if column.as_value else ""
    return value_part + ("%".rjust(_PERCENT_WIDTH + column.as_value) if column.percents is not None else "")


def unit_name(column: Column) -> str:
    """What the values of a column are, if it is not plain."""
    if column.against is not None:
        return column.against.form
    return "sec." if column.unit in (Unit.TIME, Unit.INTERVAL) else ""


def _times(column: Column) -> str:
    """What stands before each ratio."""
    return "x " if column.against is not None and column.against.form == "ratio" else ""


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


def cells(column: Column, rows: slice = _ALL) -> list[str]:
    """The cells of some rows as text, without shares, not aligned."""
    if column.unit is Unit.NAME:
        return [printable(column.labels[number]) for number in column.values[rows].tolist()]
    if column.against is not None or column.interval is not None:
        from collector.export.comparison import compared_cells

        return compared_cells(column, rows)
    values, text = column.values[rows].tolist(), _TEXT_OF[column.unit]
    known = {value: text(value) for value in set(values)}
    return [known[value] for value in values]


_TEXT_OF: dict[Unit, Callable[[int], str]] = {
    Unit.TIME: seconds, Unit.BYTES: str, Unit.COUNT: str, Unit.ADDRESS: _address,
    Unit.RATIO: lambda value: f"{value / 1000:.3f}"}
