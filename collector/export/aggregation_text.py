"""Aggregations as text, as DTrace or as SystemTap prints them."""

from __future__ import annotations

from collections.abc import Iterable

from collector.aggregate.keyed import Keyed
from collector.aggregate.language import Query
from collector.aggregate.systemtap import printed_statistics
from collector.report.aggregations import Merged, printed

_SYNTHETIC = "synthetic: these sum up right, but were not seen one by one, from beginning to end"


def listing(found: Iterable[Merged], style: str = "dtrace", top: int | None = None) -> list[str]:
    """The lines of each aggregation, its expression first; with the ``top`` keys that have the largest values, or with
    all. What is synthetic stands apart."""
    lines: list[str] = []
    for one in (each.largest(top) for each in found):
        text, told = STYLES[style], [one.expression]
        if one.n_dropped:
            told.append(f"not whole: {one.n_dropped} values are missing, of keys for which there was no room")
        if not len(one.recorded) and not len(one.synthetic):
            lines += [*told, "no values", ""]
        if len(one.recorded):
            lines += [*told, *text(one.query, one.recorded).split("\n")]
        if len(one.synthetic):
            lines += [*told, _SYNTHETIC, *text(one.query, one.synthetic).split("\n")]
    return lines


def _as_systemtap(query: Query, keyed: Keyed) -> str:
    return "\n" + printed_statistics(query.name.lstrip("@"), keyed.fold, keyed.states())


STYLES = {"dtrace": printed, "stap": _as_systemtap}
