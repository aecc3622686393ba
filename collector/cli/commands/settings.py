"""What holds for the commands that follow: metrics, order, names, forms, where it is printed."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from collector.cli.commands.session import Session, is_number, is_on, lines
from collector.errors import UsageError

if TYPE_CHECKING:
    from collector.report.documents import Document


def metrics(session: Session, spec: str) -> Document:
    """Choose the columns."""
    from collector.report.metrics import parse_view

    if spec == "default":
        session.set_default_view()
    else:
        session.set_view(parse_view(spec, session.every_metric))
    return current_metrics(session)


def sort(session: Session, spec: str) -> Document:
    """Choose the order."""
    session.set_sort(spec)
    return current_sort(session)


def current_metrics(session: Session) -> Document:
    """Which columns there are."""
    return lines("metrics", _current(session))


def current_sort(session: Session) -> Document:
    """Which order there is."""
    return lines("sort", _current(session)[1:])


def metric_list(session: Session) -> Document:
    """What can be chosen, and what is."""
    from collector.report.metrics import all_columns

    columns = all_columns(session.every_metric)
    width = max(len(column.title) for column in columns)
    return lines("metric_list", [*_current(session), "Available metrics:",
                                 *(f"{column.title.rjust(width)}: {column.command}" for column in columns), ""])


def cmetric_list(session: Session) -> Document:
    """What is chosen for callers and callees."""
    view = session.derived("a")
    return lines("cmetric_list", [f"Current caller-callee metrics: {view.command}",
                                  f"Current caller-callee sort Metric: {view.sort_title}"])


def indx_metric_list(session: Session) -> Document:
    """What is chosen for index objects."""
    view = session.derived("e")
    return lines("indx_metric_list", [f"Current index-object metrics: {view.command}",
                                      f"Current index-object sort Metric: {view.sort_title}"])


def version(_session: Session) -> Document:
    """Which er_print this is."""
    from collector import __version__

    return lines("version", [f"er_print {__version__}"])


def _current(session: Session) -> list[str]:
    view = session.view
    return [f"Current metrics: {view.command}", f"Current Sort Metric: {view.sort_title} ( {view.sort_command} )"]


def limit(session: Session, text: str) -> None:
    """How many rows are printed."""
    if not is_number(text):
        raise UsageError(f"-limit {text}: give the number of lines to print at most; 0 for all")
    session.limit = int(text)


def current_limit(session: Session) -> Document:
    """How many rows are printed."""
    return lines("limit", [f"Print limit set to {session.limit}"])


def inlines(session: Session, text: str) -> None:
    """Inlined functions as frames."""
    session.inlines = is_on("inlines", text)


def name(session: Session, text: str) -> None:
    """How functions are called."""
    from collector.report.naming import Naming

    session.naming = Naming.of(text)


def setpath(session: Session, text: str) -> Document:
    """Where files are looked for."""
    session.look_in(session.places.with_path(text))
    return current_path(session)


def addpath(session: Session, text: str) -> Document:
    """Where else: folders, or a file of symbols."""
    if os.path.isfile(text):
        session.look_in(replace(session.places, archives=(*session.places.archives, session.unpacked(text))))
        return lines("addpath", [f"Symbols are read from {text}"])
    session.look_in(session.places.with_more(text))
    return current_path(session)


def current_path(session: Session) -> Document:
    """Where files are looked for."""
    return lines("setpath", ["search path:", *(f"\t{folder}" for folder in session.places.search_path)])


def pathmap(session: Session, old: str, new: str) -> Document:
    """What takes the place of the beginning of a path."""
    session.look_in(session.places.with_map(old, new))
    return current_maps(session)


def current_maps(session: Session) -> Document:
    """What takes the place of the beginning of paths."""
    return lines("pathmap", ["Path mappings: from -> to", *(f"\t`{a}' -> `{b}'" for a, b in session.places.maps)])


def debug_files(session: Session, text: str) -> None:
    """Whether separate debug files are read."""
    session.look_in(replace(session.places, debug_files=is_on("debug_files", text)))


def printmode(session: Session, text: str) -> None:
    """In which form documents are printed."""
    from collector.export.render import checked_mode

    session.mode = checked_mode(text)


def current_printmode(session: Session) -> Document:
    """In which form documents are printed."""
    return lines("printmode", [f"printmode is set to `{session.mode}'"])


def outfile(session: Session, file: str, how: Literal["w", "a"] = "w") -> None:
    """Print into a file."""
    session.print_into(sys.stderr if file == "--" else sys.stdout)
    if file in ("-", "--"):
        return
    try:
        out = Path(file).open(how, encoding="utf-8", errors="backslashreplace")  # noqa: SIM115 - closed at the end
        session.print_into(out)
    except (OSError, ValueError) as err:
        raise UsageError(f"-outfile {file}: {getattr(err, 'strerror', None) or err}") from err


def appendfile(session: Session, file: str) -> None:
    """Print behind what is in a file."""
    outfile(session, file, "a")
