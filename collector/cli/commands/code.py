"""Tables of code: source lines and instructions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from collector.cli.commands.commentary import with_commentary, with_threshold
from collector.cli.commands.comparison import seen
from collector.cli.commands.session import Session

if TYPE_CHECKING:
    from collector.report.annotated import Target
    from collector.report.build import DataSet
    from collector.report.documents import Document
    from collector.report.profile import Weighted
    from collector.report.tables import Labels


def lines(session: Session) -> Document:
    """Every source line, and the total."""
    from collector.report.lines import line_stacks

    return _flat(session, "Lines", lambda data: line_stacks(data, session.inlines, session.is_compared))


def pcs(session: Session) -> Document:
    """Every instruction, and the total."""
    from collector.report.lines import instruction_names, instruction_stacks

    def named(data: DataSet) -> tuple[Weighted, list[bytes]]:
        stacks, names = instruction_stacks(data)
        return stacks, [names[0], *instruction_names(data)]

    return _flat(session, "PCs", named)


def lsummary(session: Session) -> Document:
    """Every metric of each source line."""
    from collector.report.lines import first_instructions, line_stacks

    stacks, names = line_stacks(session.data, session.inlines)
    first = first_instructions(session.data, session.inlines)
    return _summary(session, "lsummary", stacks, names, [first.get(line) for line in range(len(names))])


def psummary(session: Session) -> Document:
    """Every metric of each instruction."""
    from collector.report.lines import instruction_names, instruction_stacks

    stacks, names = instruction_stacks(session.data)
    names = [names[0], *instruction_names(session.data)]
    return _summary(session, "psummary", stacks, names, [None, *range(len(names) - 1)])


def _summary(session: Session, command: str, stacks: Weighted, names: list[bytes],
             places: list[int | None]) -> Document:
    """``places``: the instruction at which each begins."""
    import numpy as np

    from collector.cli.commands.functions import summaries
    from collector.cli.commands.session import lines as as_lines
    from collector.report.build import TOTAL_FUNCTION
    from collector.report.tables import Labels, object_rows, pack_address

    data, view, owners, addresses = session.data, session.view, [], []
    for place in places:
        number, offset = (TOTAL_FUNCTION, 0) if place is None else data.places[place]
        owners.append(data.functions[number])
        addresses.append(pack_address(owners[-1].object_number, owners[-1].offset + offset))
    labels = Labels(names, np.zeros(len(names), np.int64), np.array(addresses, np.int64))
    order = object_rows(stacks, view, Labels.of_names(names, 0)).ids[:session.limit or None].tolist()
    heading = [f"Objects sorted by metric: {view.sort_title}", ""]
    return as_lines(command, heading + summaries(session, stacks, labels, order, owners))


def source(session: Session, name: str, number: str = "") -> Document:
    """A source file, or that of a function, with the metrics of its lines."""
    from collector.report.annotated import Wanted, source_document

    return source_document(session.data, target(session, name, number), session.view,
                           Wanted(session.commentary["scc"].threshold, session.inlines), _began(session))


def disasm(session: Session, name: str, number: str = "") -> Document:
    """The instructions of a function or a file with their metrics."""
    from collector.report.annotated import Wanted, disassembly

    form = session.commentary["dcc"]
    return disassembly(session.data, target(session, name, number), session.view,
                       Wanted(form.threshold, session.inlines, form.with_source, form.with_bytes), _began(session))


def target(session: Session, name: str, number: str) -> Target:
    """What goes by that name; where several do, the one of that number. Raises UsageError."""
    from collector.report.annotated import choice_of, targets

    found = targets(session.data, name, bool(number))
    if not found:
        from collector.errors import UsageError
        from collector.suggestions import meant

        known = (one.name.decode("utf-8", "replace") for one in session.data.functions)
        raise UsageError(f"No function or file with given name `{name}' found{meant(name, known) or '.'}")
    chosen, said = choice_of(session.data, found, int(number) if number else None, name)
    session.tell(said)
    return chosen


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

    packed = pack(file, files_needed(session.data))
    told = f"{file}: {packed.n_files} files, {packed.size} bytes; -addpath {file} reads them elsewhere"
    return Lines("symbols", [told, *packed.left_out])


def _flat(session: Session, what: str, stacks_of: Callable[[DataSet], tuple[Weighted, list[bytes]]]) -> Document:
    from collector.report.tables import Labels, object_rows, table

    def labelled(_session: Session, data: DataSet) -> tuple[Weighted, Labels]:
        stacks, names = stacks_of(data)
        return stacks, Labels.of_names(names, 0)

    found = seen(session, labelled)
    view = found.of(session.view)
    return found.finished(table(what.lower(), (f"{what} sorted by metric: {view.sort_title}",),
                                object_rows(found.stacks, view, found.labels), view, found.labels,
                                session.object_warnings(), session.limit), session.view)
