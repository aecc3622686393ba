"""What threads that are gone used behind their last record, by the clock of their process."""

from __future__ import annotations

import numpy as np
import pytest

from collector.events import Edge
from collector.timing.ledger import TICK_NS, Ledger, ReadAccounts
from collector.timing.remainders import Remainders
from collector.timing.timeline import Timeline, edges_of

PID, MAIN, FIRST, SECOND = 101, 0, 1, 2  # a process, and slots of its threads
US = 1_000


def slots(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int64)


@pytest.fixture
def timeline() -> Timeline:
    """Main runs from 0 to 100 us, the first thread from 100 to 400 us; the second one from 400 us on."""
    timeline = Timeline()
    timeline.grow(3)
    rows = [(MAIN, 0, Edge.BORN), (MAIN, 0, Edge.IN), (MAIN, 100, Edge.OUT_BLOCKED), (FIRST, 100, Edge.BORN),
            (FIRST, 100, Edge.IN), (FIRST, 400, Edge.ENDED), (SECOND, 300, Edge.BORN), (SECOND, 400, Edge.IN)]
    slot, time_us, edge = np.array(rows, dtype=np.int64).T
    timeline.advance(timeline.in_order(edges_of(slot, time_us * US, edge)))
    return timeline


@pytest.fixture
def ledger() -> Ledger:
    ledger = Ledger(n_cpus=1)
    begin(ledger, slots(MAIN, FIRST, SECOND), 0, 0)
    return ledger


def begin(ledger: Ledger, slot: np.ndarray, run_us: int, late_us: int) -> None:
    zero = np.zeros_like(slot)
    ledger.begin(ReadAccounts(slot, zero, zero + run_us * US, zero), late_us * US)


def test_what_the_clock_has_beyond_all_threads_is_told_once(timeline: Timeline, ledger: Ledger) -> None:
    """Main 100 us, the first thread 300, of which it was told; the second has run for 600 at 1000 us."""
    remainders = Remainders(timeline, ledger)
    remainders.begin(PID)
    assert remainders.take(PID, 1053 * US, 1000 * US, slots(MAIN, FIRST, SECOND), 0) == 53 * US
    remainders.gone(PID, slots(FIRST), 0)
    assert remainders.take(PID, 1053 * US, 1000 * US, slots(MAIN, SECOND), 0) == 0
    assert remainders.take(PID, 1260 * US, 1200 * US, slots(MAIN, SECOND), 0) == 7 * US


def test_what_other_witnesses_told_is_not_told_again(timeline: Timeline, ledger: Ledger) -> None:
    remainders = Remainders(timeline, ledger)
    remainders.begin(PID)
    assert remainders.take(PID, 1053 * US, 1000 * US, slots(MAIN, FIRST, SECOND), 50 * US) == 3 * US
    remainders.gone(PID, slots(FIRST), 50 * US)
    assert remainders.take(PID, 1060 * US, 1000 * US, slots(MAIN, SECOND), 0) == 7 * US


def test_what_a_clock_has_for_threads_is_without_those_that_are_gone(timeline: Timeline, ledger: Ledger) -> None:
    remainders = Remainders(timeline, ledger)
    assert remainders.left_ns(PID, 1053 * US, slots(MAIN, SECOND)) is None
    remainders.begin(PID)
    remainders.gone(PID, slots(FIRST), 50 * US)
    assert remainders.left_ns(PID, 1053 * US, slots(MAIN, SECOND)) == 703 * US
    remainders.found(PID)
    assert remainders.left_ns(PID, 1053 * US, slots(MAIN, SECOND)) is None


def test_what_a_clock_has_for_threads_at_most(timeline: Timeline, ledger: Ledger) -> None:
    """The account was 700 us when the clock began, or up to 40 more; and of each thread a tick may be missing."""
    begin(ledger, slots(MAIN), 700, -40)
    remainders = Remainders(timeline, ledger)
    remainders.begin(PID, MAIN)
    assert remainders.left_ns(PID, 1753 * US, slots(MAIN, SECOND)) == (1753 - 740) * US
    assert remainders.most_left_ns(PID, 1753 * US, slots(MAIN, SECOND)) == (1753 - 700) * US + 2 * TICK_NS
    remainders.gone(PID, slots(MAIN, FIRST), 0)
    begin(ledger, slots(MAIN), 0, 0)  # another thread has the slot
    assert remainders.most_left_ns(PID, 1753 * US, slots(SECOND)) == (1753 - 700 - 400) * US + TICK_NS
    assert remainders.most_left_ns(PID + 1, 1753 * US, slots(SECOND)) is None


def test_clocks_that_lack_what_sleeping_threads_are_still_owed_give_nothing_away(ledger: Ledger) -> None:
    """0.8 ms less than was told of each of three threads that sleep: that is too little for an edge of its own."""
    timeline = Timeline()
    timeline.grow(3)
    rows = [(slot, at, edge) for slot in (MAIN, FIRST, SECOND) for at, edge in (
        (0, Edge.BORN), (0, Edge.IN), (100, Edge.OUT_BLOCKED))]
    slot, time_ms, edge = np.array(rows, dtype=np.int64).T
    timeline.advance(timeline.in_order(edges_of(slot, time_ms * 1000 * US, edge)))
    remainders = Remainders(timeline, ledger)
    remainders.begin(PID)
    assert remainders.take(PID, 297_600 * US, 500_000 * US, slots(MAIN, FIRST, SECOND), 0) == 0
    assert remainders.take(PID, 300_000 * US, 900_000 * US, slots(MAIN, FIRST, SECOND), 0) == 0


def test_an_old_clock_takes_nothing_back_and_nothing_away(timeline: Timeline, ledger: Ledger) -> None:
    """The thread that runs was brought up to date 400 us before."""
    remainders = Remainders(timeline, ledger)
    remainders.begin(PID)
    assert remainders.take(PID, 653 * US, 1000 * US, slots(MAIN, FIRST, SECOND), 0) == 0
    remainders.gone(PID, slots(FIRST), 0)
    assert remainders.has_lost(PID)
    assert remainders.take(PID, 1153 * US, 1100 * US, slots(MAIN, SECOND), 0) == 53 * US
    assert not remainders.has_lost(PID)


def test_what_was_stolen_from_those_that_are_gone_hides_nothing_that_others_used(ledger: Ledger) -> None:
    """Of the first thread's 300 ms a hypervisor had 60; the second one runs all the time, and the clock may be 12 ms
    behind: the age of its account, and what is left for its next one. Then another thread has used 7 ms behind its
    end, of which these hide two."""
    timeline = Timeline()
    timeline.grow(3)
    rows = [(FIRST, 0, Edge.BORN), (FIRST, 0, Edge.IN), (FIRST, 300, Edge.ENDED), (SECOND, 0, Edge.BORN),
            (SECOND, 300, Edge.IN)]
    slot, time_ms, edge = np.array(rows, dtype=np.int64).T
    timeline.advance(timeline.in_order(edges_of(slot, time_ms * 1000 * US, edge)))
    remainders = Remainders(timeline, ledger)
    remainders.begin(PID)
    assert remainders.take(PID, 340_000 * US, 400_000 * US, slots(FIRST, SECOND), 0) == 0
    remainders.gone(PID, slots(FIRST), 0)
    assert remainders.left_ns(PID, 340_000 * US, slots(SECOND)) == 88_000 * US  # and not 40 ms
    assert remainders.take(PID, 447_000 * US, 500_000 * US, slots(SECOND), 0) == 0
    assert remainders.take(PID, 557_000 * US, 600_000 * US, slots(SECOND), 0) == 5_000 * US


def test_a_process_that_was_found_begins_with_its_first_look(timeline: Timeline, ledger: Ledger) -> None:
    remainders = Remainders(timeline, ledger)
    remainders.found(PID)
    assert remainders.take(PID, 77_000 * US, 1000 * US, slots(MAIN, SECOND), 0) == 0
    remainders.gone(PID, slots(FIRST), 0)
    assert remainders.take(PID, 77_511 * US, 1200 * US, slots(MAIN, SECOND), 0) == 11 * US


@pytest.mark.parametrize(("late_us", "remainder_us"), [(0, 53), (-40, 13), (40, 53)])
def test_a_clock_that_begins_with_an_account_begins_as_late_as_may_be(
        timeline: Timeline, ledger: Ledger, late_us: int, remainder_us: int) -> None:
    """The account was 700 us, or up to 40 more; it is not taken for that of who has the slot later."""
    begin(ledger, slots(MAIN), 700, late_us)
    remainders = Remainders(timeline, ledger)
    remainders.begin(PID, MAIN)
    assert remainders.take(PID, 1753 * US, 1000 * US, slots(MAIN, FIRST, SECOND), 0) == remainder_us * US
    remainders.gone(PID, slots(MAIN, FIRST), 0)
    begin(ledger, slots(MAIN), 0, 0)
    assert remainders.take(PID, 1753 * US + 107 * US, 1000 * US, slots(SECOND), 0) == 107 * US


def test_a_clock_keeps_its_beginning_when_the_thread_that_told_it_is_gone(timeline: Timeline, ledger: Ledger) -> None:
    begin(ledger, slots(MAIN), 700, 0)
    remainders = Remainders(timeline, ledger)
    remainders.begin(PID, MAIN)
    remainders.gone(PID, slots(MAIN, FIRST, SECOND), 0)
    ledger.forget(slots(MAIN))
    assert remainders.take(PID, 700 * US + 400 * US + 53 * US, 1000 * US, slots(), 0) == 53 * US


def test_nothing_is_told_of_strangers_nor_where_the_beginning_is_not_known(timeline: Timeline, ledger: Ledger) -> None:
    remainders = Remainders(timeline, ledger)
    assert remainders.take(PID, 1053 * US, 1000 * US, slots(MAIN), 0) == 0
    remainders.begin(PID, MAIN)
    ledger.forget(slots(MAIN))
    assert remainders.take(PID, 1053 * US, 1000 * US, slots(MAIN, FIRST, SECOND), 0) == 0
    remainders.forget(PID)
    remainders.gone(PID, slots(MAIN), 0)
    assert not remainders.has_lost(PID)


def test_a_thread_that_was_not_heard_of_is_told_by_its_records(timeline: Timeline, ledger: Ledger) -> None:
    """Its birth was lost, and with it where its account began; the clock has all of its time."""
    remainders = Remainders(timeline, ledger)
    remainders.begin(PID)
    ledger.forget(slots(SECOND))
    assert remainders.take(PID, 1053 * US, 1000 * US, slots(MAIN, FIRST, SECOND), 0) == 53 * US
