"""Every document in every form: the one place that knows which export is called what."""

from __future__ import annotations

from collections.abc import Iterator

from collector.errors import UsageError
from collector.report.documents import Document

MODES = ("text", "csv", "html", "json")


def checked_mode(mode: str) -> str:
    """``mode``: text, csv, html, json, or one character that separates values. Raises UsageError."""
    if mode.lower() in MODES:
        return mode.lower()
    if len(mode) == 1 and mode.isprintable():
        return mode
    raise UsageError(f"-printmode {mode}: give {', '.join(MODES)}, or the one character that shall separate values")


def rendered(document: Document, mode: str, is_first: bool = True) -> Iterator[str]:
    """The lines of a document; ``is_first``: nothing stands before it in its file."""
    match mode:
        case "text":
            from collector.export.text import text_lines

            return text_lines(document)
        case "json":
            from collector.export.structured import json_lines

            return json_lines(document)
        case "html":
            from collector.export.page import html_lines

            return html_lines(document, is_first)
        case "csv":
            from collector.export.delimited import csv_lines

            return csv_lines(document, is_first)
    from collector.export.delimited import delimited_lines

    return delimited_lines(document, mode)
