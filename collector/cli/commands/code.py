"""Tables of code: source lines and instructions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from collector.cli.commands.commentary import with_commentary, with_threshold
from collector.cli.commands.session import Session

if TYPE_CHECKING:
    from collector.report.annotated import Target
    from collector.report.documents import Document
    from collector.report.profile import Weighted


def lines(session: Session) -> Document:
    """Every source line, and the total."""
    from collector.report.lines import line_stacks

    return _flat(session, "Lines", *line_stacks(session.data, session.inlines))


def pcs(session: Session) -> Document:
    """Every instruction, and the total."""
    from collector.report.lines import instruction_stacks

    return _flat(session, "PCs", *instruction_stacks(session.data))


def source(session: Session, name: str, number: str = "") -> Document:
    """A source file, or that of a function, with the metrics of its lines."""
    from collector.report.annotated import Wanted, source_document

    return source_document(session.data, _target(session, name, number), session.view,
                           Wanted(session.commentary["scc"].threshold, session.inlines), _began(session))


def disasm(session: Session, name: str, number: str = "") -> Document:
    """The instructions of a function or a file with their metrics."""
    from collector.report.annotated import Wanted, disassembly

    form = session.commentary["dcc"]
    return disassembly(session.data, _target(session, name, number), session.view,
                       Wanted(form.threshold, session.inlines, form.with_source, form.with_bytes), _began(session))


def _target(session: Session, name: str, number: str) -> Target:
    from collector.report.annotated import choice_of, targets

    return choice_of(targets(session.data, name), int(number) if number else None, name)


def _began(session: Session) -> int:
    """When the first of the experiments had begun, in Unix seconds."""
    return min(experiment.log.start_unix + 1 for experiment in session.experiments)


def scc(session: Session, spec: str) -> None:
    """What source listings show."""
    session.commentary["scc"] = with_commentary(session.commentary["scc"], "scc", spec)


def dcc(session: Session, spec: str) -> None:
    """What listings of instructions show."""
    session.commentary["dcc"] = with_commentary(session.commentary["dcc"], "dcc", spec)


def cc(session: Session, spec: str) -> None:
    """What both show."""
    scc(session, spec)
    dcc(session, spec)


def sthresh(session: Session, percent: str) -> None:
    """What makes a source line hot."""
    session.commentary["scc"] = with_threshold(session.commentary["scc"], "sthresh", percent)


def dthresh(session: Session, percent: str) -> None:
    """What makes an instruction hot."""
    session.commentary["dcc"] = with_threshold(session.commentary["dcc"], "dthresh", percent)


def symbols(session: Session, file: str) -> Document:
    """What names, lines and source are read from, in a tar file."""
    from collector.experiment.bundle import pack
    from collector.report.documents import Lines
    from collector.report.sources import files_needed

    needed = files_needed(session.data)
    size = pack(file, needed)
    return Lines("symbols", [f"{file}: {len(needed)} files, {size} bytes; -addpath {file} reads them elsewhere"])


def _flat(session: Session, what: str, stacks: Weighted, names: list[bytes]) -> Document:
    from collector.report.tables import Labels, object_rows, table

    labels, view = Labels.of_names(names, 0), session.view
    return table(what.lower(), (f"{what} sorted by metric: {view.sort_title}",), object_rows(stacks, view, labels),
                 view, labels, session.object_warnings(), session.limit)
