"""What is said about experiments: headers, statistics, lists."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from collector.cli.commands.session import ALL, Session
from collector.cli.commands.session import lines as as_lines
from collector.errors import UsageError

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
    counted = [one for one, counts in zip(session.experiments, session.counts, strict=True) if counts]
    lines = list(sum_of_statistics(counted)) if len(chosen) > 1 else []
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


def open_exp(session: Session, path: str) -> Document:
    """Another experiment or group instead of those that are open."""
    return _reopened(session, "open_exp", [path], f"Experiment {path} has been opened, and no other")


def add_exp(session: Session, path: str) -> Document:
    """One more experiment or group."""
    return _reopened(session, "add_exp", [*session.arguments, path], f"Experiment {path} has been added")


def drop_exp(session: Session, path: str) -> Document:
    """One less."""
    left = [one for one in session.arguments if os.path.normpath(one) != os.path.normpath(path)]
    if len(left) == len(session.arguments):
        raise UsageError(f"-drop_exp {path}: is not open; these are: {', '.join(session.arguments)}")
    if not left:
        raise UsageError(f"-drop_exp {path}: is the only one; -open_exp opens another instead")
    return _reopened(session, "drop_exp", left, f"Experiment {path} has been dropped")


def _reopened(session: Session, command: str, arguments: list[str], done: str) -> Document:
    ended = session.open_experiments(arguments)
    return as_lines(command, [done, *(["Selections by number have ended; the filter holds on"] * ended)])


def experiment_list(session: Session) -> Document:
    """Founders and descendants, numbered."""
    import numpy as np

    from collector.report.documents import Column, Listing, Unit

    every = session.experiments
    counts = session.counts
    columns = (Column("id", "ID", Unit.COUNT, np.arange(1, len(every) + 1)),
               Column.of_names("selected", "Sel", [b"yes" if one else b"no" for one in counts]),
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


def object_list(session: Session) -> Document:
    """Load objects, and whether their functions are shown."""
    from collector.report.documents import Column, Listing

    known = _objects(session)
    states = [b"hide" if name in session.hidden_objects else b"API-only" if name in session.api_objects else b"show"
              for _, name, _ in known]
    return Listing("object_list", (), (
        Column.of_names("state", "Sel", states),
        Column.of_names("object", "Load Object", [name for _, name, _ in known]),
        Column.of_names("index", "Index", [str(number).encode() for number, _, _ in known]),
        Column.of_names("path", "Path", [path for _, _, path in known])))


def object_show(session: Session, spec: str) -> Document:
    """Functions of these load objects are shown."""
    return _set(session, "show", spec)


def object_hide(session: Session, spec: str) -> Document:
    """Each of these load objects is one function, called like it."""
    return _set(session, "hide", spec)


def object_api(session: Session, spec: str) -> Document:
    """Of these load objects only the functions by which they are entered are shown; what these call is theirs."""
    return _set(session, "api", spec)


def _set(session: Session, how: str, spec: str) -> Document:
    for name in _named(session, f"object_{how}", spec):
        session.set_object(name, how)
    return object_list(session)


def object_select(session: Session, spec: str) -> Document:
    """Functions of these load objects are shown, and of no other."""
    shown = _named(session, "object_select", spec)
    session.hidden_objects, session.api_objects = {name for _, name, _ in _objects(session)} - shown, set()
    return object_list(session)


def objects_default(session: Session) -> Document:
    """Functions of all load objects are shown."""
    session.hidden_objects, session.api_objects = set(), set()
    return object_list(session)


def _objects(session: Session) -> list[tuple[int, bytes, bytes]]:
    """Number, name and path of each load object."""
    assert session.data.instructions is not None
    return [(0, b"<Unknown>", b"<Unknown>"),
            *((one.number, one.name, one.path) for one in session.data.objects.values())]


def _named(session: Session, command: str, spec: str) -> set[bytes]:
    """Load objects by name, with or without the angle brackets, or by path; ``all``. Raises UsageError."""
    known = _objects(session)
    if spec == ALL:
        return {name for _, name, _ in known}
    found = set()
    for wanted in (os.fsencode(one) for one in spec.split(",") if one):
        names = {name for _, name, path in known if wanted in (name, name[1:-1], path)}
        if not names:
            from collector.suggestions import meant

            like = meant(os.fsdecode(wanted), (os.fsdecode(name.strip(b"<>")) for _, name, _ in known))
            raise UsageError(f"-{command} {spec}: no load object is called so; -object_list has their names{like}")
        found |= names
    return found
