"""What was aggregated while recording."""

from __future__ import annotations

from typing import TYPE_CHECKING

from collector.cli.commands.session import ALL, Session, is_number, lines
from collector.errors import UsageError

if TYPE_CHECKING:
    from collector.report.aggregations import Merged
    from collector.report.documents import Document


def aggregations(session: Session, name: str = ALL, style: str = "dtrace", top: str = "") -> Document:
    """As text, in the style of dtrace or SystemTap; as CSV, a row for each key or bucket."""
    from collector.export.aggregation_text import STYLES, listing
    from collector.export.aggregations import table

    if style not in STYLES:
        raise UsageError(f"--style {style}: give {' or '.join(STYLES)}")
    if session.mode == "csv":
        return table(_merged(session, name), _number_of_keys(top))
    return lines("aggregations", listing(_merged(session, name), style, _number_of_keys(top)))


def json_aggregations(session: Session, name: str = ALL, top: str = "") -> Document:
    """As JSON, whatever the print mode."""
    from collector.export.aggregations import document

    return lines("json_aggregations", [document(_merged(session, name), _number_of_keys(top))])


def wakers(session: Session) -> Document:
    """Whose wake-ups ended whose waits."""
    from collector.export import wakers as export
    from collector.report.aggregations import merged
    from collector.report.build import load
    from collector.report.wakers import wakes_of

    data = load(session.founders)
    wakes = wakes_of(merged(data))
    session.aggregated = data.experiments
    if wakes is None:
        raise UsageError(f"who woke whom was not recorded in {', '.join(session.arguments)}; root records it with "
                         "collect --aggregate wakers")
    return lines("wakers", export.lines(wakes, session.limit))


def _merged(session: Session, name: str) -> list[Merged]:
    """The aggregations of that name, of founders and descendants as one. Raises UsageError."""
    from collector.report.aggregations import merged
    from collector.report.build import load

    data = load(session.founders)  # apart from what the tables show, which depends on the order of questions
    every = merged(data)
    session.aggregated = data.experiments
    chosen = [one for one in every if name in (ALL, one.query.name.lstrip("@")) or name == one.query.name]
    if not every:
        raise UsageError(f"nothing was aggregated in {', '.join(session.arguments)}; collect --aggregate does that")
    if not chosen:
        raise UsageError(f"-aggregations {name}: give one of {', '.join(one.query.name for one in every)}")
    return chosen


def _number_of_keys(top: str) -> int | None:
    """What --top gives; None for all."""
    if top and not (is_number(top) and int(top)):
        raise UsageError(f"--top {top}: give the number of keys to print at most, those with the largest values")
    return int(top) if top else None
