"""When drains, flushes and overview samples are due: times in, times out."""

from __future__ import annotations

import pytest

from collector.session.schedule import (
    BUSY_DRAIN_PERIOD_NS,
    DRAIN_PERIOD_NS,
    EARLY_NS,
    FEW_THREADS,
    FLUSH_PERIOD_NS,
    NEVER_NS,
    POLLING_PERIOD_NS,
    DrainSchedule,
    FlushSchedule,
    SampleSchedule,
)

START_NS = 7_000_000_000
S, MS = 1_000_000_000, 1_000_000
TICK_NS = 10_007_000


def test_the_first_drain_is_due_at_once() -> None:
    schedule = DrainSchedule(START_NS, at_once=True)
    assert schedule.due_ns(busy=False, polling=False, accounts_ns=START_NS + 1) == 0
    schedule.drained(START_NS + 2, START_NS + 3, START_NS + 2)
    assert schedule.due_ns(busy=False, polling=False) < START_NS + 3 + DRAIN_PERIOD_NS  # the second one takes longer
    schedule.drained(START_NS + 2, START_NS + 3, START_NS + 2)
    assert schedule.due_ns(busy=False, polling=False) == START_NS + 3 + DRAIN_PERIOD_NS
    schedule.drained(START_NS + 50, START_NS + 900, START_NS + 50, 800)  # of which others had so much
    assert schedule.due_ns(busy=False, polling=False) == START_NS + 100 + DRAIN_PERIOD_NS
    assert schedule.due_ns(busy=False, polling=True) == START_NS + 900 + POLLING_PERIOD_NS


def test_the_first_drain_may_wait_but_not_until_a_second_is_lost() -> None:
    schedule = DrainSchedule(START_NS, at_once=True)
    assert START_NS + 850 * MS < schedule.due_ns(busy=False, polling=False, may_wait=True) < START_NS + 900 * MS
    assert schedule.due_ns(busy=False, polling=False) == 0
    schedule.drained(START_NS + 2, START_NS + 3, START_NS + 2)
    assert (schedule.due_ns(busy=True, polling=False, may_wait=True)
            == schedule.due_ns(busy=True, polling=False) == START_NS + 3 + BUSY_DRAIN_PERIOD_NS)


@pytest.mark.parametrize(("busy", "polling", "accounts_ns", "expected_ns"), [
    (False, False, None, DRAIN_PERIOD_NS),
    (True, False, None, BUSY_DRAIN_PERIOD_NS),
    (False, True, None, POLLING_PERIOD_NS),
    (True, True, None, POLLING_PERIOD_NS),
    (True, True, START_NS + 11, 11),
])
def test_the_period_is_as_short_as_it_has_to_be(busy: bool, polling: bool, accounts_ns: int | None,
                                                expected_ns: int) -> None:
    schedule = DrainSchedule(START_NS, at_once=False)
    assert schedule.due_ns(busy=busy, polling=polling, accounts_ns=accounts_ns) == START_NS + expected_ns


def test_who_kills_us_takes_less_than_a_second_with_him() -> None:
    assert max(DRAIN_PERIOD_NS, BUSY_DRAIN_PERIOD_NS, FLUSH_PERIOD_NS) < S


@pytest.mark.parametrize(("behind_ms", "work_ms"), [(12, 2), (49, 15), (49, 36), (210, 200), (400, 90)])
def test_who_is_behind_is_back_before_a_second_is_to_be_lost(behind_ms: int, work_ms: int) -> None:
    schedule = DrainSchedule(START_NS, at_once=True)
    schedule.drained(START_NS, START_NS + work_ms * MS, START_NS)  # what a first one takes tells little
    drained_ns, told_ns = START_NS + 5 * S, START_NS + 5 * S - behind_ms * MS
    schedule.drained(drained_ns - work_ms * MS, drained_ns, told_ns)
    for busy in (False, True):
        due_ns = schedule.due_ns(busy=busy, polling=False)
        assert due_ns + work_ms * MS + TICK_NS < told_ns + S
        assert due_ns >= drained_ns + min(behind_ms, 400) * MS
    schedule.drained(drained_ns - work_ms * MS, drained_ns, told_ns, 1 * MS)  # of which others had so much
    assert schedule.due_ns(busy=False, polling=False) + (work_ms - 1) * MS + TICK_NS < told_ns + S


@pytest.mark.parametrize(("behind_ms", "rests_ms"), [(600, 600), (900, 900), (930, 930), (7000, 930)])
def test_who_is_far_behind_does_not_drain_all_the_time(behind_ms: int, rests_ms: int) -> None:
    schedule = DrainSchedule(START_NS, at_once=True)
    schedule.drained(START_NS - 30 * MS, START_NS, START_NS - behind_ms * MS)
    assert schedule.due_ns(busy=False, polling=False) == START_NS + rests_ms * MS


def test_few_threads_are_flushed_with_every_drain_and_many_once_a_period() -> None:
    schedule = FlushSchedule(START_NS)
    times_ns = range(START_NS, START_NS + 3 * FLUSH_PERIOD_NS, FLUSH_PERIOD_NS // 3)
    assert all(schedule.take(FEW_THREADS, time_ns) for time_ns in times_ns)
    schedule = FlushSchedule(START_NS)
    taken = [schedule.take(FEW_THREADS + 1, time_ns) for time_ns in times_ns]
    assert taken == [False, False, False, True, False, False, True, False, False]


def test_samples_share_a_drain_that_comes_a_little_before_them() -> None:
    schedule = SampleSchedule(START_NS, S)
    assert schedule.due_ns == START_NS + S
    assert not schedule.take(START_NS + S - EARLY_NS - 1)
    assert schedule.take(START_NS + S - EARLY_NS)
    assert schedule.due_ns == START_NS + 2 * S


def test_samples_that_were_missed_are_not_made_up_for() -> None:
    schedule = SampleSchedule(START_NS, S)
    assert schedule.take(START_NS + 5 * S + 7)
    assert schedule.due_ns == START_NS + 6 * S
    assert not schedule.take(START_NS + 5 * S + 8)


def test_without_a_period_there_are_no_samples() -> None:
    schedule = SampleSchedule(START_NS, 0)
    assert schedule.due_ns > NEVER_NS
    assert not schedule.take(NEVER_NS // 2)
