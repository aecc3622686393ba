"""What holds unless something else is asked for: default columns and order, descendants, the view."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from collector.cli.commands.session import Session, lines
from collector.errors import UsageError

if TYPE_CHECKING:
    from collector.report.documents import Document

VIEW_MODES = ("user", "expert", "machine")


def dmetrics(session: Session, spec: str) -> None:
    """Default columns: before those that are known."""
    from collector.report.metrics import checked_default

    checked_default("-dmetrics", spec)
    session.default_metrics.insert(0, spec)
    session.forget_view()


def dsort(session: Session, spec: str) -> None:
    """The default order: before what is known."""
    from collector.report.metrics import checked_default

    checked_default("-dsort", spec)
    session.default_sorts.insert(0, spec)
    session.forget_view()


def viewmode(session: Session, mode: str) -> Document:
    """How frames of interpreters and the like are shown. All three are the same where there are none."""
    if mode.lower() not in VIEW_MODES:
        raise UsageError(f"-viewmode {mode}: give {', '.join(VIEW_MODES)}")
    session.view_mode = mode.lower()
    return current_viewmode(session)


def current_viewmode(session: Session) -> Document:
    """How frames of interpreters are shown."""
    return lines("viewmode", [f"Viewmode set to {session.view_mode}"])


def en_desc(session: Session, text: str) -> None:
    """Which descendants count: all, none, or those whose lineage or program a regular expression matches as a whole."""
    switch = text.lower()
    if switch not in ("on", "off") and not text.startswith("="):
        raise UsageError(f"-en_desc {text}: give on, off, or = and a regular expression of lineages or programs")
    try:
        pattern = re.compile({"on": ".*", "off": "(?!)"}.get(switch, text[1:]), re.DOTALL)
    except re.error as err:
        raise UsageError(f"-en_desc {text}: {err}") from err
    if switch == "on" and all(session.counts):
        return
    session.selection.choose_experiments([
        not one.lineage or any(pattern.fullmatch(name) for name in (one.lineage, _program(one.log.arguments)))
        for one in session.experiments])


def _program(arguments: bytes) -> str:
    words = arguments.split()
    return os.fsdecode(os.path.basename(words[0])) if words else ""


def ignored(session: Session) -> None:
    """Warnings that are not given here."""


def accepted(session: Session, text: str) -> None:
    """Of the graphical analyzer, or of the way in which gprofng finds its parts: nothing to do here."""
