"""Documents as HTML: a table each, its titles as the caption. What comes first in a file brings the style along."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from collector.export.text import cells, unit_name
from collector.report.documents import Column, Document, Lines, Table, Tree, Unit

_HEAD = ("<!DOCTYPE html>", '<meta charset="utf-8">', "<title>er_print</title>", "<style>",
         "body { font-family: sans-serif }",
         "table { border-collapse: collapse; margin-bottom: 2em }",
         "caption { text-align: left; font-weight: bold; padding: 0.5em 0 }",
         "th { text-align: left; background: #f4f4e8 }",
         "th, td { padding: 0.1em 0.6em; border-bottom: 1px solid #ddd }",
         "td.n { text-align: right; font-variant-numeric: tabular-nums }",
         ".sorted { background: #fdf6c4 }",
         "tr.self, tr.hot { font-weight: bold }",
         "td.t { white-space: pre }",
         "</style>")
_INDENT_EM = 1.2


def html_lines(document: Document, is_first: bool = True) -> Iterator[str]:
    """The document, with everything from outside escaped."""
    if is_first:
        yield from _HEAD
    if isinstance(document, Lines):
        yield f'<pre class="{escape(document.name)}">'
        yield from (escape(line) for line in document.lines)
        yield "</pre>"
        return
    yield from (f'<p class="warning">{escape(note)}</p>' for note in document.notes)
    yield f'<table class="{escape(document.name)}">'
    if document.titles:
        yield f"<caption>{'<br>'.join(map(escape, filter(None, document.titles)))}</caption>"
    yield f"<tr>{''.join(head for column in document.columns for head in _heads(column))}</tr>"
    yield from _rows(document)
    yield "</table>"


def _rows(table: Table) -> Iterator[str]:
    n_shown = table.n_shown
    columns = [texts for column in table.columns for texts in _cells(column, table, n_shown)]
    roles = [f' class="{escape(role)}"' if role else "" for role in table.roles[:n_shown]] or [""] * n_shown
    ends = set() if table.blocks is None else set(table.blocks[1:-1].tolist())
    for at, (role, *row) in enumerate(zip(roles, *columns, strict=True)):
        if at in ends:
            yield f'<tr><td colspan="{len(row)}">&nbsp;</td></tr>'
        yield f"<tr{role}>{''.join(row)}</tr>"


def _heads(column: Column) -> Iterator[str]:
    css = ' class="sorted"' if column.is_sorted else ""
    title = "<br>".join(escape(part) for part in (column.group, *column.detail) if part) or escape(column.title)
    if column.as_value:
        yield f"<th{css}>{title}{f'<br>({unit_name(column)})' if unit_name(column) else ''}</th>"
    if column.percents is not None:
        yield f"<th{css}>{title}<br>(%)</th>"


def _cells(column: Column, table: Table, n_shown: int) -> Iterator[list[str]]:
    rows = slice(n_shown)
    texts = [escape(text) for text in cells(column, rows)]
    if column.unit is Unit.NAME:
        if isinstance(table, Tree):
            yield [f'<td class="t" style="padding-left:{_INDENT_EM * depth:.1f}em">{text}</td>'
                   for depth, text in zip(table.depths[rows].tolist(), texts, strict=True)]
        else:
            yield [f'<td class="t">{text}</td>' for text in texts]
        return
    css = "n sorted" if column.is_sorted else "n"
    if column.as_value:
        yield [f'<td class="{css}">{text.rstrip()}</td>' for text in texts]
    if column.percents is not None:
        yield [f'<td class="{css}">{share:.2f}</td>' for share in column.percents[rows].tolist()]
