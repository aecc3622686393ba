"""A screen's lines, and a snapshot as text."""

from __future__ import annotations

from collections.abc import Iterator

from collector.cli.top import lines
from collector.cli.top.keys import HELP, Keys
from collector.cli.top.lines import Line
from collector.cli.top.settings import Settings
from collector.cli.top.shot import Shot

_HINTS = "q quit  h help  f functions  t threads  s states  c all  / search  space pause"


def screen(shot: Shot, keys: Keys, width: int, height: int) -> list[Line]:
    """``height`` lines at most."""
    settings = keys.settings
    above = lines.head(shot, settings, width)
    below = _last_line(keys)
    room = max(height - len(above) - 2, 0)
    if settings.shows_help:
        body: list[Line] = [[(text, lines.PLAIN)] for text in HELP.splitlines()]
        return [*above, [("keys".ljust(width), lines.HEADING)], *body[:room], below]
    rows = lines.table(shot, settings)
    settings.first = max(min(settings.first, len(rows.order) - 1), 0)
    title = lines.heading(rows, settings, width)
    shown = [lines.row_line(rows, row, width) for row in rows.order[settings.first:settings.first + room]]
    shown += [[] for _ in range(room - len(shown))]
    return [*above, [(f"{title}  ({rows.title})".ljust(width), lines.HEADING)], *shown, below][:height]


def waiting(text: str) -> list[Line]:
    """Before there is anything to be seen."""
    return [[("er_top ", lines.TITLE), (text, lines.PLAIN)]]


def _last_line(keys: Keys) -> Line:
    if keys.prompt is not None:
        text = keys.prompt.text.encode("utf-8", "surrogateescape")
        return [(keys.prompt.question, lines.TITLE), (lines.shown(text), lines.PLAIN), ("_", lines.FAINT)]
    if keys.settings.message:
        return [(lines.shown(keys.settings.message.encode("utf-8", "surrogateescape")), lines.TITLE)]
    return [(_HINTS, lines.FAINT)]


def snapshot(shot: Shot, settings: Settings, views: tuple[str, ...], limit: int = 0) -> Iterator[str]:
    """The lines of a snapshot, without an end to the right; ``limit`` rows of each table, 0: all."""
    yield from ("".join(text for text, _ in line).rstrip() for line in lines.head(shot, settings, 80))
    for view in views:
        settings.view = view
        rows = lines.table(shot, settings)
        yield ""
        yield f"{lines.heading(rows, settings)}  ({rows.title})"
        for row in rows.order[:limit + 1 if limit else None]:
            yield "".join(text for text, _ in lines.row_line(rows, row)).rstrip()
    yield ""
