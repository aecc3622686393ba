"""Tables of functions: flat, callers and callees, the tree of calls."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from collector.cli.commands.session import Session

if TYPE_CHECKING:
    from collector.report.documents import Document
    from collector.report.functions import Function
    from collector.report.profile import Weighted
    from collector.report.tables import Labels


def functions(session: Session) -> Document:
    """Every function, and the total."""
    from collector.report.tables import object_rows, table

    stacks, labels = function_stacks(session)
    view = session.view
    return table("functions", (f"Functions sorted by metric: {view.sort_title}",), object_rows(stacks, view, labels),
                 view, labels, session.object_warnings(), session.limit)


def callers_callees(session: Session) -> Document:
    """A block for each function."""
    from collector.report.tables import call_table, object_rows

    stacks, labels = function_stacks(session)
    rows, view = object_rows(stacks, session.view, labels), session.derived("a")
    titles = (f"Functions sorted by metric: {session.view.sort_title}",
              f"Callers and callees sorted by metric: {view.sort_title}")
    return call_table(titles, stacks, view, labels, rows.ids[:session.limit or None].tolist(),
                      session.object_warnings())


def calltree(session: Session) -> Document:
    """The stacks from the root."""
    from collector.report.tables import tree_table

    stacks, labels = function_stacks(session)
    view = session.derived("a")
    return tree_table((f"Functions Call Tree. Metric: {view.sort_title}",), stacks, view, labels,
                      session.object_warnings(), session.limit)


def function_stacks(session: Session) -> tuple[Weighted, Labels]:
    """The stacks as functions, inlined ones among them if asked for, and what the functions are called."""
    from collector.report.tables import Labels

    if session.inlines:
        from collector.report.lines import inline_stacks

        stacks, found = inline_stacks(session.data)
    else:
        stacks, found = session.data.stacks, session.data.functions
    labels = Labels.of_functions(found)
    return stacks, replace(labels, names=[_named(session, function) for function in found])


def _named(session: Session, function: Function) -> bytes:
    from collector.report.functions import short_name

    name = {"long": function.name, "short": short_name(function.name),
            "mangled": function.linkage or function.name}[session.naming]
    return b"%s [%s]" % (name, function.object_name) if session.with_object else name
