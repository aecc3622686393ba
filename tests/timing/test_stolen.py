"""A CPU that a hypervisor takes from threads: what their accounts lack, in whatever order they ran."""

from __future__ import annotations

import numpy as np
import pytest

from collector.events import Edge
from collector.timing.counting import Account
from collector.timing.microstate import Periods, ThreadClocks
from collector.timing.stolen import Stolen

MS = 1_000_000
BASE_NS = 77 * MS


class Watch:
    """One thread at slot 0, which runs from time 0 on, with 77 ms in its account by then."""

    def __init__(self) -> None:
        self.clocks, self.stolen = ThreadClocks(10 * MS), Stolen()
        self.clocks.new_slot()
        self.clocks.advance(np.array([0]), np.array([0]), np.array([Edge.IN], np.int8))
        self.stolen.begin(0, BASE_NS)

    def batch(self, until_ns: int, *records: tuple[int, int]) -> Periods:
        slot = np.zeros(len(records), np.int64)
        time_ns = np.array([time for time, _ in records], np.int64)
        edge = np.array([edge for _, edge in records], np.int8)
        cuts = self.stolen.cuts(slot, edge, time_ns, until_ns, self.clocks)
        slot = np.concatenate([slot, np.array(cuts.slot, np.int64)])
        time_ns = np.concatenate([time_ns, np.array(cuts.time_ns, np.int64)])
        edge = np.concatenate([edge, np.array(cuts.edge, np.int8)])
        order = np.argsort(time_ns, kind="stable")
        return self.clocks.advance(slot[order], time_ns[order], edge[order], order >= len(records))

    def ran_ns(self, at_ns: int) -> int:
        running = at_ns - int(self.clocks.since_ns[0]) if self.clocks.kind[0] == Edge.IN else 0
        return int(self.clocks.cpu_ns[0]) + running


def test_what_a_running_threads_account_lacks_is_waiting() -> None:
    watch = Watch()
    watch.batch(1000 * MS)
    watch.stolen.look(0, Account(1001 * MS, BASE_NS + 901 * MS))
    watch.batch(1000 * MS)  # which the look is not in
    assert watch.ran_ns(1001 * MS) == 1001 * MS
    periods = watch.batch(2000 * MS)
    assert watch.ran_ns(1001 * MS) == pytest.approx(901 * MS, abs=4 * MS)
    waited = periods.kind == Edge.OUT_PREEMPTED
    assert (periods.end_ns - periods.start_ns)[waited].sum() == watch.stolen.total_ns == 96 * MS
    assert watch.clocks.n_impossible == 0
    watch.stolen.look(0, Account(2001 * MS, BASE_NS + 1901 * MS))  # nothing more
    watch.batch(3000 * MS)
    assert watch.stolen.total_ns == 96 * MS


@pytest.mark.parametrize("behind_ms", [0, 9])
def test_an_account_that_waits_for_its_tick_lacks_nothing(behind_ms: int) -> None:
    watch = Watch()
    for second in range(1, 9):
        watch.stolen.look(0, Account(second * 1000 * MS, BASE_NS + (second * 1000 - behind_ms) * MS))
        watch.batch(second * 1000 * MS)
    assert watch.stolen.total_ns == 0


def test_it_is_taken_from_the_longest_run_before_the_look() -> None:
    watch = Watch()
    records = [(100 * MS, Edge.OUT_BLOCKED), (200 * MS, Edge.IN), (700 * MS, Edge.OUT_PREEMPTED),
               (710 * MS, Edge.IN), (800 * MS, Edge.OUT_BLOCKED)]
    watch.stolen.look(0, Account(900 * MS, BASE_NS + (100 + 500 + 90 - 50) * MS))
    periods = watch.batch(1000 * MS, *records)
    assert watch.ran_ns(1000 * MS) == (100 + 500 + 90 - 50) * MS
    waited = (periods.kind == Edge.OUT_PREEMPTED) & (periods.end_ns - periods.start_ns == 50 * MS)
    assert periods.end_ns[waited].tolist() == [700 * MS - 1]
    assert watch.clocks.n_impossible == 0


def test_more_than_one_run_can_hold_is_made_up_for_later() -> None:
    watch = Watch()
    watch.stolen.look(0, Account(100 * MS, BASE_NS + 20 * MS))
    watch.batch(110 * MS, (30 * MS, Edge.OUT_BLOCKED), (40 * MS, Edge.IN), (90 * MS, Edge.OUT_BLOCKED))
    assert watch.ran_ns(110 * MS) == pytest.approx(30 * MS, abs=10)
    watch.stolen.look(0, Account(400 * MS, BASE_NS + 120 * MS))
    watch.batch(410 * MS, (200 * MS, Edge.IN), (310 * MS, Edge.OUT_BLOCKED))
    assert watch.ran_ns(410 * MS) == pytest.approx(120 * MS, abs=10)


def test_only_threads_whose_accounts_are_known_are_worth_a_look() -> None:
    stolen = Stolen()
    stolen.begin(3, 0)
    stolen.begin(5, 0)
    assert stolen.worth_a_look([2, 3, 4, 5]) == [3, 5]
    stolen.look(3, Account(1, 1))
    assert stolen.worth_a_look([2, 3, 4, 5]) == [5]
    stolen.interrupted()
    stolen.forget(5)
    assert stolen.worth_a_look([2, 3, 4, 5]) == [3]
