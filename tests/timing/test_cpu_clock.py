"""Ticks of CPUs: together they are the CPUs times the seconds, whatever comes late, not at all, or is lost."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from collector.events import RecordsLost
from collector.timing.cpu_clock import CpuClock

INTERVAL = 10_007_000
S = 10**9


def told(clock: CpuClock, samples: list[tuple[int, float, bool]],
         losses: Sequence[tuple[float, int]] = ()) -> tuple[list[int], list[int]]:
    """The ticks of samples: a CPU, a time in intervals, and whether the CPU was idle. Losses: a time, and a CPU."""
    cpu, at, idle = zip(*samples, strict=True)
    found = clock.ticks(np.array(cpu), (np.array(at) * INTERVAL).astype(np.int64), np.array(idle),
                        [RecordsLost(int(at * INTERVAL), 1, "clock", on) for at, on in losses])
    return found.met.tolist(), found.idle.tolist()


def test_each_sample_on_time_is_a_tick_and_a_late_one_is_more() -> None:
    clock = CpuClock(INTERVAL, [0, 3], 0, {})
    assert told(clock, [(0, 1, False), (3, 1.01, False), (0, 2.001, True), (3, 5.2, False)]) == ([1, 1, 1, 4], [0] * 4)
    assert told(clock, [(0, 3, False), (3, 6.0, False)]) == ([1, 1], [0, 0])
    assert clock.end(7 * INTERVAL) == {0: (4, 0), 3: (1, 0)}
    assert clock.untold_ns == 0


def test_a_gap_is_idle_as_far_as_the_account_says_so() -> None:
    clock = CpuClock(INTERVAL, [0, 1], 0, {0: 5 * S, 1: 7 * S})
    clock.account({0: 5 * S + 9 * INTERVAL, 1: 7 * S + 3 * INTERVAL})
    met, idle = told(clock, [(1, 1, False), (0, 11, False), (1, 11, False)])
    assert (met, idle) == ([1, 2, 7], [0, 9, 3])
    clock.account({0: 5 * S + 29 * INTERVAL, 1: 7 * S + 3 * INTERVAL})
    assert clock.end(31 * INTERVAL) == {0: (1, 19), 1: (5, 0)}  # a clock that is 20 late on a busy CPU has gone
    assert clock.untold_ns == 15 * INTERVAL


def test_idle_time_that_samples_tell_of_is_told_once() -> None:
    clock = CpuClock(INTERVAL, [0], 0, {0: 0})
    clock.account({0: 3 * INTERVAL})
    assert told(clock, [(0, 1, True), (0, 2, True), (0, 3, True), (0, 7, False)]) == ([1, 1, 1, 4], [0] * 4)


def test_lost_samples_are_counted_and_are_nobodys() -> None:
    clock = CpuClock(INTERVAL, [0, 1], 0, {})
    met, _ = told(clock, [(0, 1, False), (1, 1, False), (1, 2, False), (1, 3, False), (1, 4, False), (0, 5, False)],
                  [(5.01, -1)])
    assert met == [1, 1, 1, 1, 1, 1]
    assert clock.untold_ns == 3 * INTERVAL


def test_samples_lost_on_one_cpu_are_not_missing_on_another() -> None:
    clock = CpuClock(INTERVAL, [0, 1], 0, {0: 0, 1: 0})
    clock.account({0: 0, 1: 8 * INTERVAL})
    met, idle = told(clock, [(0, 1, False), (1, 1, False), (0, 5, False), (1, 10, False)], [(5.01, 0)])
    assert (met, idle) == ([1, 1, 1, 1], [0, 0, 0, 8])
    assert clock.untold_ns == 3 * INTERVAL


def test_after_a_pause_it_begins_anew() -> None:
    clock = CpuClock(INTERVAL, [0], 0, {0: 0})
    told(clock, [(0, 1, False)])
    clock.begin(100 * INTERVAL, {0: 50 * INTERVAL})
    clock.account({0: 50 * INTERVAL})
    assert told(clock, [(0, 101, False)]) == ([1], [0])


@pytest.mark.parametrize("seed", range(7))
def test_the_sum_is_the_cpus_times_the_seconds(seed: int) -> None:
    rng = np.random.default_rng(seed)
    cpus, end = [0, 1, 5], 1009
    clock = CpuClock(INTERVAL, cpus, 0, dict.fromkeys(cpus, 0))
    total = 0
    for begin in range(0, end, 101):
        at = np.sort(rng.uniform(begin, min(begin + 101, end), 211))
        clock.account({cpu: int(rng.integers(0, end) * INTERVAL) for cpu in cpus})
        samples = list(zip(rng.choice(cpus, 211).tolist(), at.tolist(), rng.integers(0, 2, 211) > 0, strict=True))
        met, idle = told(clock, samples)
        assert min(met) >= 0
        assert min(idle) >= 0
        total += sum(met) + sum(idle)
    total += sum(sum(pair) for pair in clock.end(end * INTERVAL).values())
    assert abs(total + clock.untold_ns / INTERVAL - len(cpus) * end) <= 2 * len(cpus)
