"""Arrivals put right by the kernel's sums: threads whose records are late by what the test says."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from collector.events import Edge
from collector.timing.arrivals import MANY, Arrivals
from collector.timing.counting import Account
from collector.timing.microstate import ThreadClocks

PERIOD_NS, RUN_NS = 101_000, 71_000  # a thread gets its CPU once a period, and keeps it so long


@dataclass
class Life:
    """One thread at slot 0 that begins at 0; its arrivals are recorded ``late_ns`` after they were."""

    late_ns: int
    clocks: ThreadClocks = field(default_factory=lambda: ThreadClocks(10_007_000))
    arrivals: Arrivals = field(default_factory=Arrivals)
    n_before: int = 0

    def __post_init__(self) -> None:
        self.clocks.new_slot()
        self.clocks.advance(np.zeros(1, np.int64), np.zeros(1, np.int64), np.array([Edge.OUT_BLOCKED], np.int8))

    def batch(self, n: int, lag_ns: int = 0, look: bool = True) -> float:
        """``n`` more arrivals, and a look ``lag_ns`` behind them. By what part our sum is too small."""
        began = (self.n_before + np.arange(n)) * PERIOD_NS + 11_000
        time_ns = np.stack([began + self.late_ns, began + RUN_NS], axis=1).reshape(-1)
        edge = np.tile(np.array([Edge.IN, Edge.OUT_BLOCKED], np.int8), n)
        self.n_before += n
        until_ns = self.n_before * PERIOD_NS
        slot = np.zeros(2 * n, np.int64)
        self.clocks.advance(slot, self.arrivals.corrected(slot, edge, time_ns, until_ns, self.clocks), edge)
        for number in self.arrivals.worth_a_look() if look else ():
            self.arrivals.look(number, account(until_ns + lag_ns))
        return 1 - float(self.clocks.cpu_ns[0]) / (self.n_before * RUN_NS)


def account(time_ns: int) -> Account:
    """The kernel's, which begins with what the thread had used before we came."""
    whole, rest = divmod(time_ns, PERIOD_NS)
    return Account(time_ns, 5_000_003 + whole * RUN_NS + min(max(rest - 11_000, 0), RUN_NS))


@pytest.mark.parametrize("late_ns", [0, 700, 3_000, 9_000])
@pytest.mark.parametrize("lag_ns", [0, 7_007, 10_000_000])
def test_sums_are_the_kernels(late_ns: int, lag_ns: int) -> None:
    life = Life(late_ns)
    life.arrivals.begin(0, account(0))
    wrong = [life.batch(n, lag_ns) for n in (5_000, 5_003, 307, 1_009, 11, 5_000)]
    assert wrong[0] == pytest.approx(late_ns / RUN_NS)
    assert wrong[1:] == pytest.approx([0] * 5, abs=0.001)


def test_a_look_that_the_next_batch_does_not_reach_waits_for_another() -> None:
    life = Life(3_000)
    life.arrivals.begin(0, account(0))
    assert life.batch(1_000, lag_ns=150 * PERIOD_NS) == pytest.approx(3_000 / RUN_NS)
    assert life.batch(100) == pytest.approx(3_000 / RUN_NS)
    assert life.batch(1_000) == pytest.approx(0, abs=0.001)


def test_without_a_beginning_sums_are_compared_from_the_first_look_on() -> None:
    life = Life(3_000)
    life.batch(1_000)
    for _ in range(3):
        last = life.batch(3_000)
    assert last == pytest.approx(3_000 * 1_000 / (life.n_before * RUN_NS), rel=0.01)


def test_who_is_not_looked_at_any_more_was_late_as_before() -> None:
    life = Life(3_000)
    life.arrivals.begin(0, account(0))
    life.batch(1_000)
    life.batch(1_000, look=False)
    assert life.batch(5_000, look=False) == pytest.approx(0, abs=0.001)


def test_who_was_never_looked_at_and_who_arrives_seldom_stays_as_recorded() -> None:
    life = Life(3_000)
    life.arrivals.begin(0, account(0))
    assert [life.batch(1_000, look=False) for _ in range(3)] == pytest.approx([3_000 / RUN_NS] * 3)
    life = Life(3_000)
    life.arrivals.begin(0, account(0))
    assert [life.batch(MANY - 1) for _ in range(3)] == pytest.approx([3_000 / RUN_NS] * 3)


def test_more_than_a_switch_can_take_has_other_reasons() -> None:
    life = Life(60_000)
    life.arrivals.begin(0, account(0))
    life.batch(1_000)
    assert life.batch(1_000) == pytest.approx((60_000 + 40_000) / 2 / RUN_NS, rel=0.01)


def test_a_missing_record_is_left_to_the_next_look() -> None:
    life = Life(3_000)
    life.arrivals.begin(0, account(0))
    life.batch(1_000)
    slot, edge = np.zeros(3, np.int64), np.array([Edge.IN, Edge.IN, Edge.IN], np.int8)
    time_ns = life.n_before * PERIOD_NS - np.array([5, 4, 3])
    better = life.arrivals.corrected(slot, edge, time_ns, life.n_before * PERIOD_NS, life.clocks)
    assert better.tolist() == time_ns.tolist()


def test_a_sum_that_is_not_up_to_date_is_not_believed() -> None:
    life = Life(3_000)
    life.arrivals.begin(0, account(0))
    life.batch(1_000)
    arrived_ns = life.n_before * PERIOD_NS + 11_000  # and it runs since then, looked at by a tick's length later
    life.arrivals.look(0, Account(arrived_ns + 4_000_000, 5_000_003 + life.n_before * RUN_NS))
    slot, edge, time_ns = np.zeros(1, np.int64), np.array([Edge.IN], np.int8), np.array([arrived_ns])
    assert life.arrivals.corrected(slot, edge, time_ns, arrived_ns + 5_000_000, life.clocks).tolist() == [arrived_ns]


def test_threads_that_arrive_often_are_worth_a_look_until_they_are_gone() -> None:
    slot = np.repeat(np.array([4, 9, 6]), [2 * MANY, 2 * MANY - 2, 2 * MANY])
    edge = np.tile(np.array([Edge.IN, Edge.OUT_PREEMPTED], np.int8), len(slot) // 2)
    clocks, arrivals = ThreadClocks(10_007_000), Arrivals()
    arrivals.corrected(slot, edge, np.arange(len(slot)), len(slot), clocks)
    assert arrivals.worth_a_look() == [4, 6]
    arrivals.look(4, Account(10**9))
    assert arrivals.worth_a_look() == [6]
    arrivals.forget(4)
    none = slot[:0]
    assert arrivals.corrected(none, none.astype(np.int8), none, 2 * 10**9, clocks).tolist() == []
    assert arrivals.worth_a_look() == []
