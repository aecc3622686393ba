"""Whose wake-ups ended whose waits: the ready aggregation ``wakers``, as rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from collector.aggregate.keyed import Keyed
from collector.aggregate.ready import READY
from collector.report.aggregations import Merged


class Wakes(NamedTuple):
    """The wake-ups of one thread by another one, from one state; ``waker`` may be no thread, with a tid below 1."""

    waker: bytes
    waker_tid: int
    woken: bytes
    woken_tid: int
    state: bytes
    times: int
    blocked_ns: int


class AllWakes(NamedTuple):
    """Those that were seen one by one, the longest time first; and the time of waits that were not."""

    rows: list[Wakes]
    unseen_ns: int


def wakes_of(found: Iterable[Merged]) -> AllWakes | None:
    """None where they were not aggregated."""
    for one in found:
        if one.query.expression == READY["wakers"]:
            rows = sorted(_rows(one.recorded), key=lambda row: (-row.blocked_ns, row))
            return AllWakes(rows, sum(row.blocked_ns for row in _rows(one.synthetic)))
    return None


def _rows(keyed: Keyed) -> list[Wakes]:
    """The average's state is how many there were, and their sum."""
    rows: list[tuple[Any, ...]] = [(*key, *state.tolist()) for key, state in keyed.states()]
    return [Wakes(*row) for row in rows]
