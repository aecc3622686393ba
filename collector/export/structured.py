"""Documents as JSON, one a line, numbers as numbers.

    {"document": "functions", "titles": [...], "notes": [...],
     "columns": [{"key": "e.totalcpu", "title": "Exclusive Total CPU Time", "unit": "s", "sorted": true}, ...],
     "rows": [{"e.totalcpu": 0.437, "e%totalcpu": 100.0, "name": "<Total>"}, ...]}

Where groups of experiments are compared, columns have a ``group`` and keys with its number, ``e.totalcpu@2``; the 95 %
interval of the difference to the first group is ``e.totalcpu@2.low`` to ``.high``, and whether it is ``.significant``.

Rows of a tree have a ``depth``, rows of blocks a ``block``, and a ``role`` where they have one. What has no columns has
``lines`` instead.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from collector.export.text import cells
from collector.report.documents import Annotated, Column, Document, Lines, Table, Tree, Unit

_UNITS = {Unit.TIME: "s", Unit.INTERVAL: "s", Unit.BYTES: "bytes", Unit.COUNT: "", Unit.RATIO: "", Unit.ADDRESS: "",
          Unit.NAME: ""}


def json_lines(document: Document) -> Iterator[str]:
    """The document as one line."""
    if isinstance(document, Lines):
        yield json.dumps({"document": document.name, "lines": list(map(_text, document.lines))})
        return
    fields = [field for column in document.columns for field in _fields(column, slice(document.n_shown))]
    rows = zip(*(values for _, values in (*_structure(document), *fields)), strict=True)
    keys = [field["key"] for field, _ in (*_structure(document), *fields)]
    yield json.dumps({"document": document.name, "titles": list(map(_text, document.titles)),
                      "notes": list(map(_text, document.notes)),
                      "columns": [field for field, _ in fields],
                      "rows": [dict(zip(keys, row, strict=True)) for row in rows]})


def _text(text: str) -> str:
    """Bytes that are no UTF-8 as escapes, for JSON has none."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def numbers(column: Column, rows: slice) -> list[Any]:
    """The values as numbers in their unit, seconds for times; names and addresses as text."""
    if column.unit in (Unit.NAME, Unit.ADDRESS):
        return cells(column, rows)
    scale = {Unit.TIME: 1e6, Unit.INTERVAL: 1e6, Unit.RATIO: 1e3}.get(column.unit)
    values: list[Any] = (column.values[rows] if scale is None else column.values[rows] / scale).tolist()
    return values


def interval_parts(column: Column, rows: slice) -> Iterator[tuple[str, list[Any]]]:
    """The ends of intervals in seconds, and whether the differences are significant."""
    assert column.interval is not None
    yield "low", numbers(column, rows)
    yield "high", (column.interval.high[rows] / 1e6).tolist()
    yield "significant", column.interval.is_significant[rows].tolist()


def _fields(column: Column, rows: slice) -> Iterator[tuple[dict[str, Any], list[Any]]]:
    about: dict[str, Any] = {"title": column.title, "sorted": column.is_sorted}
    if column.group:
        about["group"] = column.group
    if column.interval is not None:
        for end, found in interval_parts(column, rows):
            unit = _UNITS[column.unit] if found and isinstance(found[0], float) else ""
            yield {"key": f"{column.key}.{end}", **about, "unit": unit}, found
    elif column.as_value:
        yield {"key": column.key, **about, "unit": _UNITS[column.unit]}, numbers(column, rows)
    if column.percents is not None:
        yield {"key": column.share_key, **about, "unit": "%"}, column.percents[rows].round(6).tolist()


def _structure(table: Table) -> Iterator[tuple[dict[str, Any], list[Any]]]:
    """How rows belong together: what ``Table`` and ``Tree`` have besides columns."""
    n_shown = table.n_shown
    if isinstance(table, Annotated):
        yield {"key": "kind"}, list(table.kinds[:n_shown])
        yield {"key": "line"}, table.numbers[:n_shown].tolist()
    if isinstance(table, Tree):
        yield {"key": "depth"}, table.depths[:n_shown].tolist()
    if table.blocks is not None:
        yield {"key": "block"}, np.searchsorted(table.blocks, np.arange(n_shown), side="right").tolist()
    if table.roles:
        yield {"key": "role"}, list(table.roles[:n_shown])
