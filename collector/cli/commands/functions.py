"""Tables of functions: flat, callers and callees, the tree of calls."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from collector.cli.commands.comparison import seen
from collector.cli.commands.session import Session
from collector.cli.commands.session import lines as as_lines
from collector.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence, Set

    from collector.report.build import DataSet
    from collector.report.documents import Document
    from collector.report.functions import Function
    from collector.report.profile import Weighted
    from collector.report.tables import Labels


def functions(session: Session) -> Document:
    """Every function, and the total."""
    from collector.report.tables import object_rows, table

    found = seen(session, function_stacks, of_functions=True)
    view = found.of(session.view)
    return found.finished(table("functions", (f"Functions sorted by metric: {view.sort_title}",),
                                object_rows(found.stacks, view, found.labels), view, found.labels,
                                session.object_warnings(), session.limit), session.view)


def callers_callees(session: Session) -> Document:
    """A block for each function."""
    from collector.report.tables import call_table, object_rows

    found, view = seen(session, function_stacks, of_functions=True), session.derived("a")
    rows = object_rows(found.stacks, found.of(session.view), found.labels)
    titles = (f"Functions sorted by metric: {session.view.sort_title}",
              f"Callers and callees sorted by metric: {view.sort_title}")
    return found.finished(call_table(titles, found.stacks, found.of(view), found.labels,
                                     rows.ids[:session.limit or None].tolist(), session.object_warnings()), view)


def calltree(session: Session) -> Document:
    """The stacks from the root."""
    from collector.report.tables import tree_table

    found, view = seen(session, function_stacks, of_functions=True), session.derived("a")
    return found.finished(tree_table((f"Functions Call Tree. Metric: {view.sort_title}",), found.stacks, found.of(view),
                                     found.labels, session.object_warnings(), session.limit), view)


def csingle(session: Session, name: str, number: str = "") -> Document:
    """Callers and callees of one function, with which a fragment of the stack begins."""
    session.fragment = [(name, number)]
    return _fragment(session)


def cappend(session: Session, name: str, number: str = "") -> Document:
    """One more function behind the fragment: called by its last."""
    return _changed(session, [*session.fragment, (name, number)])


def cprepend(session: Session, name: str, number: str = "") -> Document:
    """One more function before the fragment: the caller of its first."""
    return _changed(session, [(name, number), *session.fragment])


def crmfirst(session: Session) -> Document:
    """The fragment without its first function."""
    return _changed(session, session.fragment[1:])


def crmlast(session: Session) -> Document:
    """The fragment without its last function."""
    return _changed(session, session.fragment[:-1])


def _changed(session: Session, fragment: list[tuple[str, str]]) -> Document:
    if not session.fragment or not fragment:
        raise UsageError("there is no stack fragment (any more); begin one with -csingle FUNCTION")
    before, session.fragment = session.fragment, fragment
    try:
        return _fragment(session)
    except UsageError:
        session.fragment = before
        raise


def _fragment(session: Session) -> Document:
    from collector.report.tables import fragment_table

    found, view = seen(session, function_stacks, of_functions=True), session.derived("a")
    wanted = [_number_of(session, name, number, found.labels) for name, number in session.fragment]
    return found.finished(fragment_table((f"Callers and callees sorted by metric: {view.sort_title}",), found.stacks,
                                         found.of(view), found.labels, wanted, session.object_warnings()), view)


def fsummary(session: Session) -> Document:
    """Every metric of each function."""
    from collector.report.tables import object_rows

    stacks, labels = function_stacks(session, session.data)
    order = object_rows(stacks, session.view, labels).ids[:session.limit or None].tolist()
    heading = [f"Functions sorted by metric: {session.view.sort_title}", ""]
    return as_lines("fsummary", heading + summaries(session, stacks, labels, order))


def osummary(session: Session) -> Document:
    """Load objects: the functions of each as one."""
    from collector.report.build import TOTAL_FUNCTION
    from collector.report.tables import object_rows, table

    view, total = session.view, session.data.functions[TOTAL_FUNCTION]
    names = {one.object_name for one in session.data.functions} - {total.object_name}
    stacks, labels = function_stacks(session, session.data, names)
    return table("osummary", (f"Load objects sorted by metric: {view.sort_title}",), object_rows(stacks, view, labels),
                 view, labels, session.object_warnings(), session.limit)


def fsingle(session: Session, name: str, number: str = "") -> Document:
    """Every metric of one function."""
    stacks, labels = function_stacks(session, session.data)
    wanted = _number_of(session, name, number, labels)
    return as_lines("fsingle", summaries(session, stacks, labels, [wanted])[:-1])


def summaries(session: Session, stacks: Weighted, labels: Labels, wanted: list[int],
              owners: Sequence[Function] = ()) -> list[str]:
    """Blocks of all metrics of what is ``wanted``; ``owners``: the functions of what the stacks are made of."""
    from collector.export.summary import summary
    from collector.report.metrics import NAME, Column, View, all_columns
    from collector.report.tables import object_rows

    columns = [Column(NAME), *(column for column in all_columns(session.metrics) if column.flavor)]
    view = View(tuple(columns), columns[-1])
    rows = object_rows(stacks, view, labels)
    place = {number: at for at, number in enumerate(rows.ids.tolist())}
    functions = owners or session.data.functions
    paths = {loaded.number: loaded.path for loaded in session.data.objects.values()}
    found: list[str] = []
    for number in wanted:
        figures = [(column, int(value), float(share)) for column, value, share in
                   zip(columns, rows.values[place[number]], rows.percents[place[number]], strict=True) if column.flavor]
        found += summary(labels.names[number], figures, int(labels.sizes[number]), int(labels.addresses[number]),
                         functions[number] if number < len(functions) else None, paths)
    return found


def _number_of(session: Session, name: str, number: str, labels: Labels) -> int:
    """The function of that name; where several have it, the one of that number among all, as listings count them.

    Raises UsageError.
    """
    from collector.report.compat import short_name

    wanted = name.encode("utf-8", "surrogateescape")
    found = [i for i, one in enumerate(labels.names) if one == wanted] or \
        [i for i, one in enumerate(labels.names) if short_name(one) == wanted]
    if not found:
        from collector.suggestions import meant

        known = (one.decode("utf-8", "replace") for one in labels.names)
        raise UsageError(f"there is no function {name!r} in the data; -functions lists them{meant(name, known)}")
    if len(found) == 1 and not number:
        return found[0]
    return _numbered(session, name, number, labels, found)


def _numbered(session: Session, name: str, number: str, labels: Labels, found: list[int]) -> int:
    """Which of the ``found``. Some have no place in a load object: load objects that are hidden, what is inlined, what
    several experiments have side by side."""
    from collector.cli.commands.code import target
    from collector.report.tables import pack_address

    functions = session.data.functions
    if session.is_compared or not all(one < len(functions) and functions[one].has_offsets for one in found):
        return found[0]
    function = target(session, name, number).function
    if function is None:
        return found[0]
    place = pack_address(function.object_number, function.offset)
    for one in found:
        if int(labels.addresses[one]) == place:
            return one
    raise UsageError(f"{name} {number}: that function was not met")


def function_stacks(session: Session, data: DataSet,
                    also_hidden: Set[bytes] = frozenset()) -> tuple[Weighted, Labels]:
    """The stacks as functions, inlined ones among them if asked for, and what the functions are called.

    ``also_hidden``: load objects besides those that the session hides.
    """
    from collector.report.tables import Labels

    if session.inlines:
        from collector.report.lines import inline_stacks

        stacks, found = inline_stacks(data)
    else:
        stacks, found = data.stacks, data.functions
    if hidden := session.hidden_objects | also_hidden:
        stacks, found = _without_hidden(hidden, stacks, found)
    if session.api_objects:
        import numpy as np

        from collector.report.entries import entries_only

        stacks = entries_only(stacks, np.array([one.object_name in session.api_objects for one in found], bool))
    labels = Labels.of_functions(found)
    return stacks, replace(labels, names=session.naming.names(found))


def _without_hidden(names: Set[bytes], stacks: Weighted, found: Sequence[Function]) -> tuple[
        Weighted, list[Function]]:
    """Functions of load objects that are hidden are one function each, called like the object."""
    import numpy as np

    from collector.report.functions import Function
    from collector.report.profile import hidden

    functions, made = list(found), dict[bytes, int]()
    is_hidden = np.array([one.object_name in names for one in found], bool)
    group = np.arange(len(found))
    for number in np.flatnonzero(is_hidden).tolist():
        one = found[number]
        if one.object_name not in made:
            made[one.object_name] = len(functions)
            functions.append(Function(one.object_name, b"", one.object_name, 0, 0, one.object_number,
                                      has_offsets=False))
        group[number] = made[one.object_name]
    return hidden(replace(stacks, n_objects=len(functions)), group, is_hidden), functions
