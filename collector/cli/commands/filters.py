"""What is wanted of the experiments: filters, and the threads, LWPs, CPUs and samples that are selected."""

from __future__ import annotations

from typing import TYPE_CHECKING

from collector.cli.commands.session import Session, lines
from collector.errors import shown

if TYPE_CHECKING:
    from collector.report.documents import Document


def filters(session: Session, expression: str) -> Document:
    """Only packets for which an expression is true."""
    session.selection.set_filter(expression)
    return current(session)


def current(session: Session) -> Document:
    """Which packets count."""
    return lines("filters", [f'current filter setting: "{session.selection.filter}"'])


def describe(session: Session) -> Document:
    """The names that expressions may use."""
    from collector.cli.commands.index import OBJECTS
    from collector.report.query.facts import DERIVED, STACK_NAMES

    fields = {shown(field.name): shown(field.uname or "") for experiment in session.experiments
              for described in experiment.log.described.values() for one in described.values() for field in one}
    names = {**{name: about for name, about in sorted(fields.items()) if name != "FRINFO"}, **DERIVED, **STACK_NAMES}
    width = max(map(len, (*names, *OBJECTS))) + 2
    return lines("describe", [
        "Properties of packets", *(f"   {name.ljust(width)}{about}" for name, about in names.items()), "",
        "Functions", f'   {"FNAME(TEXT)".ljust(width)}functions whose whole names match a regular expression',
        f'   {"HASPROP(NAME)".ljust(width)}whether packets have a property', "",
        "Lists", f'   {"A IN B".ljust(width)}all of A are in B',
        f'   {"A SOME IN B".ljust(width)}one of A is in B',
        f'   {"A ORDERED IN B".ljust(width)}all of A are in B, one right after the other', "",
        "Index objects", *(f"   {name.ljust(width)}{one.expression}" for name, one in OBJECTS.items())])


def thread_select(session: Session, spec: str) -> Document:
    """Only some threads."""
    return _select(session, "thread", spec)


def lwp_select(session: Session, spec: str) -> Document:
    """Only some LWPs."""
    return _select(session, "lwp", spec)


def cpu_select(session: Session, spec: str) -> Document:
    """Only some CPUs."""
    return _select(session, "cpu", spec)


def sample_select(session: Session, spec: str) -> Document:
    """Only some samples."""
    return _select(session, "sample", spec)


def thread_list(session: Session) -> Document:
    """How many threads there are, and which are selected."""
    return _list(session, "thread")


def lwp_list(session: Session) -> Document:
    """How many LWPs there are, and which are selected."""
    return _list(session, "lwp")


def cpu_list(session: Session) -> Document:
    """How many CPUs there are, and which are selected."""
    return _list(session, "cpu")


def sample_list(session: Session) -> Document:
    """How many samples there are, and which are selected."""
    return _list(session, "sample")


def _select(session: Session, kind: str, spec: str) -> Document:
    session.selection.select(kind, spec)
    return _list(session, kind)


def _list(session: Session, kind: str) -> Document:
    import numpy as np

    from collector.report.documents import Column, Listing, Unit
    from collector.report.query.selection import PROPERTIES

    selection, every = session.selection, session.experiments
    known = [facts.number(PROPERTIES[kind]) for facts in selection.facts]
    there = [[sample.id for sample in experiment.samples] if kind == "sample" else
             [] if values is None else np.unique(values).tolist()
             for experiment, values in zip(every, known, strict=True)]
    totals = [len(numbers) for numbers in there]
    chosen = [selection.chosen(kind, number, numbers).encode() for number, numbers in enumerate(there, 1)]
    return Listing(f"{kind}_list", (), (
        Column("experiment", "Exp", Unit.COUNT, np.arange(1, len(every) + 1)),
        Column.of_names("selected", "Sel", chosen),
        Column("total", "Total", Unit.COUNT, np.array(totals, np.int64))))
