"""Documents as values with something between them: CSV, and what the Performance Analyzer's er_print does for one
character.

CSV has one line of headings with units and then the rows, numbers in full; between two tables stands an empty line.
The other form has four lines of headings, and every value is in quotes. Trees and what has no columns are text there.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from collector.export.structured import interval_parts, numbers
from collector.export.text import cells, text_lines
from collector.report.documents import Annotated, Column, Document, Lines, Listing, Table, Tree, Unit

_UNITS = {Unit.TIME: "s", Unit.BYTES: "bytes"}


def csv_lines(document: Document, is_first: bool = True) -> Iterator[str]:
    """The document as CSV."""
    if not is_first:
        yield ""
    if isinstance(document, Lines):
        yield from (_csv([line]) for line in document.lines)
        return
    every = [*_structure(document),
             *(pair for column in document.columns for pair in _pairs(column, slice(document.n_shown)))]
    yield _csv(head for head, _ in every)
    yield from map(_csv, zip(*(values for _, values in every), strict=True))


def delimited_lines(document: Document, mark: str) -> Iterator[str]:
    """As er_print prints with ``printmode CHAR``."""
    if isinstance(document, (Lines, Tree, Listing)):
        yield from text_lines(document)
        return
    yield from (f"*** Warning: {note}" for note in document.notes)
    bounds = [0, document.n_shown] if document.blocks is None else \
        document.blocks[document.blocks <= document.n_shown].tolist()
    for begin, end in pairwise(bounds):
        yield from (_quoted(line, mark) for line in zip(*(head for column in document.columns
                                                           for head in _heads(column)), strict=True))
        every = [texts for column in document.columns for texts in _texts(column, slice(begin, end))]
        yield from (_quoted(row, mark) for row in zip(*every, strict=True))


def _csv(values: Iterable[Any]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(values)
    return line.getvalue()


def _structure(table: Table) -> Iterator[tuple[str, list[Any]]]:
    n_shown = table.n_shown
    if isinstance(table, Annotated):
        yield "Kind", list(table.kinds[:n_shown])
        yield "Line", table.numbers[:n_shown].tolist()
    if isinstance(table, Tree):
        yield "Depth", table.depths[:n_shown].tolist()
    if table.blocks is not None:
        yield "Block", np.searchsorted(table.blocks, np.arange(n_shown), side="right").tolist()
    if table.roles:
        yield "Role", list(table.roles[:n_shown])


def _pairs(column: Column, rows: slice) -> Iterator[tuple[str, list[Any]]]:
    title = f"{column.group}: {column.title}" if column.group else column.title
    if column.interval is not None:
        for end, found in interval_parts(column, rows):
            yield f"{title}, {end}{'' if end == 'significant' else ' (s)'}", found
    elif column.as_value:
        unit = _UNITS.get(column.unit)
        yield title + (f" ({unit})" if unit else ""), numbers(column, rows)
    if column.percents is not None:
        yield f"{title} (%)", column.percents[rows].round(6).tolist()


def _heads(column: Column) -> Iterator[tuple[str, str, str, str]]:
    """The four lines above each value."""
    sort = "V  " if column.is_sorted else "   "
    unit = "(sec.)" if column.unit in (Unit.TIME, Unit.INTERVAL) else ""
    if column.as_value:
        yield column.group, *column.detail, sort + unit
    if column.percents is not None:
        yield column.group, *column.detail, sort + "%%"


def _texts(column: Column, rows: slice) -> Iterator[list[str]]:
    if column.as_value:  # as it is, where text shows what it is to another group
        yield [text.rstrip() for text in cells(replace(column, against=None), rows)]
    if column.percents is not None:
        yield [f"{share:.2f}" if share else "0." for share in column.percents[rows].tolist()]


def _quoted(values: Iterable[str], mark: str) -> str:
    return mark.join('"' + value.replace('"', '""') + '"' for value in values)
