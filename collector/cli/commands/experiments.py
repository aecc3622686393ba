"""What is said about experiments: headers, statistics, lists."""

from __future__ import annotations

from typing import TYPE_CHECKING

from collector.cli.commands.session import ALL, Session
from collector.cli.commands.session import lines as as_lines

if TYPE_CHECKING:
    from collector.report.documents import Document


def header(session: Session, which: str = ALL) -> Document:
    """Who was recorded, where, when, how."""
    from collector.export.description import header

    lines: list[str] = []
    for number, experiment in enumerate(session.chosen(which)):
        lines += ["-" * 64] * bool(number)
        lines += header(experiment)
    return as_lines("header", lines)


def statistics(session: Session, which: str = ALL) -> Document:
    """The sums over samples."""
    from collector.export.description import experiment_statistics, sum_of_statistics

    chosen = session.chosen(which)
    lines = list(sum_of_statistics(chosen)) if len(chosen) > 1 else []
    for experiment in chosen:
        lines += experiment_statistics(experiment)
    return as_lines("statistics", lines)


def sample_detail(session: Session, which: str = ALL) -> Document:
    """The sums, and every sample."""
    from collector.export.description import sample_detail

    return as_lines("sample_detail", [line for one in session.chosen(which) for line in sample_detail(one)])


def overview(session: Session) -> Document:
    """All metrics, summed up."""
    from collector.export.description import overview
    from collector.report.profile import total

    sums = total(session.data.instructions)
    totals = {metric.command: int(sums[list(metric.states)].sum()) for metric in session.metrics}
    return as_lines("overview", overview(session.experiments, session.data.columns.by_kind, totals, session.view))


def experiment_list(session: Session) -> Document:
    """Founders and descendants, numbered."""
    import os

    import numpy as np

    from collector.report.documents import Column, Listing, Unit

    every = session.experiments
    columns = (Column("id", "ID", Unit.COUNT, np.arange(1, len(every) + 1)),
               Column.of_names("selected", "Sel", [b"yes"] * len(every)),
               Column("pid", "PID", Unit.COUNT, np.array([one.log.pid for one in every], np.int64)),
               Column.of_names("experiment", "Experiment", [os.fsencode(one.path) for one in every]))
    return Listing("experiment_list", (), columns)


def objects(session: Session) -> Document:
    """Load objects, and what is wrong with their files."""
    from collector.export.text import printable

    assert session.data.instructions is not None
    lines = [" <Unknown> (<Unknown>)"]
    for loaded in session.data.objects.values():
        lines.append(f" {printable(loaded.name)} ({printable(loaded.path)})")
        if loaded.problem:
            lines.append(f"       *** Warning: {loaded.problem}")
        elif loaded.file is None and loaded.path.startswith(b"/"):
            lines.append("       *** Warning: the file cannot be found; its functions are unknown")
    return as_lines("objects", [*lines, ""])
