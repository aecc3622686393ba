"""Tables of code: source lines and instructions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from collector.cli.commands.session import Session

if TYPE_CHECKING:
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


def _flat(session: Session, what: str, stacks: Weighted, names: list[bytes]) -> Document:
    from collector.report.tables import Labels, object_rows, table

    labels, view = Labels.of_names(names, 0), session.view
    return table(what.lower(), (f"{what} sorted by metric: {view.sort_title}",), object_rows(stacks, view, labels),
                 view, labels, session.object_warnings(), session.limit)
