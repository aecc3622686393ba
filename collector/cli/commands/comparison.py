"""Groups of experiments compared: which there are, and tables of stacks that show them side by side."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from collector.cli.commands.session import Session
from collector.errors import UsageError

if TYPE_CHECKING:
    from collector.report.build import DataSet
    from collector.report.comparison import Wide
    from collector.report.documents import Table
    from collector.report.metrics import View
    from collector.report.profile import Weighted
    from collector.report.tables import Labels

FORMS = ("on", "off", "delta", "ratio")


def compare(session: Session, form: str) -> None:
    """Whether groups are shown side by side, and how."""
    if form.lower() not in FORMS:
        raise UsageError(f"-compare {form}: give on, off, delta or ratio")
    session.compare = form.lower()


class Plain(NamedTuple):
    """Stacks of everything as one, with what ``Wide`` has."""

    stacks: Weighted
    labels: Labels

    def of(self, view: View) -> View:
        """The view itself."""
        return view

    def finished(self, table: Table, _view: View) -> Table:
        """The table itself."""
        return table


def seen(session: Session, stacks_of: Callable[[Session, DataSet], tuple[Weighted, Labels]],
         of_functions: bool = False) -> Plain | Wide:
    """All stacks as ``stacks_of`` makes them, in columns for each group if groups are compared.

    ``of_functions``: they consist of the data set's functions, of which those of several builds become one.
    """
    if not session.is_compared:
        return Plain(*stacks_of(session, session.data))
    from collector.experiment.names import shown
    from collector.report.comparison import Asked, Group, wide

    groups = [Group(shown(Path(name).name), founders) for name, founders in session.groups]
    metrics = {column.metric.command: column.metric for column in session.view.columns if column.flavor}
    asked = Asked(groups, list(metrics.values()), session.compare, of_functions)
    whole = session.whole.viewed(session.view_mode)
    return wide(whole, session.selection.masks(), asked, lambda data: stacks_of(session, data))
