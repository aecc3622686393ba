"""Where the tracer is to go next: first visits of new threads, between those of rounds."""

from __future__ import annotations

import numpy as np

from collector.engines.signal_walk import Walk

INTERVAL_NS = 10_007_000


def test_first_visits_are_spread_evenly_over_an_interval() -> None:
    walk = Walk(INTERVAL_NS, lambda tid: -1)
    due = []
    for tid in range(1, 400):
        due.append(walk.meet(tid, 0))
        assert walk.visit().tid == tid
    counts, _ = np.histogram(due, bins=10, range=(0, INTERVAL_NS))
    assert counts.min() >= 38
    assert counts.max() <= 42


def test_visits_come_by_time_and_before_a_round_if_that_is_later() -> None:
    walk = Walk(INTERVAL_NS, lambda tid: -1)
    due = {walk.meet(tid, 5): tid for tid in (1, 2, 3)}
    first, second, third = sorted(due)
    assert walk.due_ns(first) is None
    assert walk.due_ns(first + 1) == first
    assert [walk.visit().tid for _ in due] == [due[first], due[second], due[third]]
    assert walk.due_ns(INTERVAL_NS) is None


def test_there_are_never_more_than_there_is_time_for() -> None:
    walk = Walk(INTERVAL_NS, lambda tid: -1)
    due = [walk.meet(tid, 0) for tid in range(1, 100)]
    n_planned = sum(when > 0 for when in due)
    assert 20 <= n_planned <= 30
    assert due[n_planned:] == [0] * (99 - n_planned)
    walk.visit()
    assert walk.meet(1000, 0) > 0
    walk.end()
    assert walk.due_ns(2 * INTERVAL_NS) is None
