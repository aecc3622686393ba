"""Threads whose switches are counted: their edges tell the kernel's accounts, whatever those say and when."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.events import Edge
from collector.timing.counting import Account, Counting
from collector.timing.microstate import Periods, ThreadClocks

MS = 1_000_000
TID, SLOT = 4711, 0
# Between two looks: how long, and what the account grew by meanwhile, which may be too late or too much.
STEPS = st.lists(st.tuples(st.integers(1, 200 * MS), st.integers(0, 250 * MS), st.integers(0, 250 * MS)), max_size=9)


class Watch:
    """One thread, running since time 1000 when it begins to be counted."""

    def __init__(self) -> None:
        self.clocks, self.counting = ThreadClocks(10 * MS), Counting()
        self.clocks.new_slot()
        self.clocks.advance(np.array([SLOT]), np.array([1000]), np.array([Edge.IN], np.int8))
        self.counting.begin({TID: Account(2000, run_ns=77, delay_ns=7, turns=1)})

    def ran_ns(self, slot: int, time_ns: int) -> int | None:
        """It is not known how long the thread had run when it came to be recorded."""
        return None

    def look(self, account: Account) -> Periods:
        self.counting.look({TID: (SLOT, 500, account)}, self.ran_ns)
        return self.take()

    def take(self, *more: tuple[int, Edge]) -> Periods:
        cuts = self.counting.take_cuts()
        slot, time_ns, cut = cuts.slot, cuts.time_ns, cuts.edge
        for at, kind in more:
            slot, time_ns, cut = [*slot, SLOT], [*time_ns, at], [*cut, kind]
        return self.clocks.advance(np.array(slot, np.int64), np.array(time_ns, np.int64), np.array(cut, np.int8),
                                   np.arange(len(slot)) < len(slot) - len(more))


@given(STEPS)
def test_what_the_accounts_say_is_told_as_soon_as_there_is_room(steps: list[tuple[int, int, int]]) -> None:
    watch, at, run_ns, delay_ns = Watch(), 2000, 77, 7
    waited_ns = 0
    for length_ns, ran_ns, more_delay_ns in steps:
        at, run_ns, delay_ns = at + length_ns, run_ns + ran_ns, delay_ns + more_delay_ns
        periods = watch.look(Account(at, run_ns, delay_ns))
        lengths = periods.end_ns - periods.start_ns
        waited_ns += int(lengths[periods.kind == Edge.OUT_PREEMPTED].sum())
        assert (lengths >= 0).all()
        assert watch.clocks.since_ns[SLOT] <= at
    watch.take((at, Edge.ENDED))
    told_ns = int(watch.clocks.cpu_ns[SLOT]) - 1000  # it ran from 1000 to 2000, as records had told
    assert told_ns <= run_ns - 77
    assert waited_ns <= delay_ns - 7
    assert told_ns + waited_ns <= at - 2000
    if all(ran_ns + more_ns <= length_ns for length_ns, ran_ns, more_ns in steps):
        assert (told_ns, waited_ns) == (run_ns - 77, delay_ns - 7)
    assert watch.clocks.n_impossible == 0


def test_how_often_threads_get_a_cpu_is_told_per_second() -> None:
    watch = Watch()
    assert watch.counting.turns_per_s > 1e9  # not known yet
    watch.look(Account(2000 + 100 * MS, 77, 7, turns=30_008))
    assert watch.counting.turns_per_s == pytest.approx(300_070)
    assert watch.counting.turns == {SLOT: 30_007}


def test_an_end_goes_on_as_before_and_is_marked() -> None:
    watch = Watch()
    watch.look(Account(2000 + 100 * MS, 77 + 50 * MS, 7 + 25 * MS))
    assert not watch.counting.ended(TID, SLOT, (500, 2000 + 140 * MS), watch.ran_ns)
    watch.take((2000 + 140 * MS, Edge.ENDED))
    assert watch.clocks.cpu_ns[SLOT] == pytest.approx(1000 + 70 * MS, abs=2)
    assert watch.counting.n_estimated == 1


def told_40ms_of(slot: int, time_ns: int) -> int:
    """What records have told of a thread by the time when its account says 50 ms."""
    return 40 * MS


def test_an_end_before_the_first_look_goes_on_as_the_life_before() -> None:
    watch = Watch()
    watch.counting.begin({TID: Account(100 * MS, 50 * MS, 25 * MS, 1000)})
    assert not watch.counting.ended(TID, SLOT, (0, 140 * MS), told_40ms_of)
    watch.take((140 * MS, Edge.ENDED))
    before_ns = 100 * MS - 1000
    assert watch.clocks.cpu_ns[SLOT] == before_ns + 20 * MS + 10 * MS  # and what records missed
    assert watch.counting.turns == {SLOT: 400}
    assert watch.counting.n_estimated == 1


def test_an_end_that_the_account_tells_is_not_estimated() -> None:
    watch = Watch()
    watch.look(Account(2000 + 100 * MS, 77 + 50 * MS, 7))
    watch.look(Account(2000 + 130 * MS, 77 + 50 * MS, 7))  # and looked at once more
    watch.counting.look({TID: (SLOT, 500, Account(2000 + 170 * MS, 77 + 50 * MS, 7))}, watch.ran_ns)
    assert watch.counting.ended(TID, SLOT, (500, 2000 + 99 * MS), watch.ran_ns)
    assert watch.counting.n_estimated == 0
    assert max(watch.counting.take_cuts().time_ns) == 2000 + 99 * MS


def test_one_born_meanwhile_is_counted_from_its_birth() -> None:
    watch = Watch()
    watch.clocks.new_slot()
    born_ns = 2000 + 10 * MS
    watch.clocks.advance(np.array([1]), np.array([born_ns]), np.array([Edge.BORN], np.int8))
    watch.counting.look({TID + 1: (1, born_ns, Account(born_ns + 20 * MS, 5 * MS, 3 * MS))}, watch.ran_ns)
    watch.take()
    assert watch.clocks.cpu_ns[1] == 5 * MS
    # One that was there before, and of which no account was had, is counted from now on.
    watch.clocks.new_slot()
    watch.counting.look({TID + 2: (2, 1500, Account(born_ns + 20 * MS, 5 * MS, 3 * MS))}, watch.ran_ns)
    watch.take()
    assert watch.clocks.cpu_ns[2] == 0


def test_another_image_waits_for_the_next_look() -> None:
    watch = Watch()
    watch.counting.executed(SLOT, 1500)  # before: its records tell
    assert not watch.counting.take_cuts().slot
    watch.counting.executed(SLOT, 2500)
    assert watch.counting.take_cuts().edge == [Edge.OUT_BLOCKED]


def test_what_records_missed_is_made_up_for() -> None:
    """The account grew by 30 ms before the first look, of which records tell 23."""
    watch = Watch()
    watch.ran_ns = lambda slot, time_ns: 77 - 7 * MS  # type: ignore[method-assign]
    watch.look(Account(2000 + 100 * MS, 77 + 50 * MS, 7))
    assert watch.clocks.cpu_ns[SLOT] == 1000 + 57 * MS
    watch.look(Account(2000 + 200 * MS, 77 + 90 * MS, 7))
    assert watch.clocks.cpu_ns[SLOT] == 1000 + 97 * MS
    watch.look(Account(2000 + 300 * MS, 77 + 120 * MS, 7))
    assert watch.clocks.cpu_ns[SLOT] == 1000 + 127 * MS
