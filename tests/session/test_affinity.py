"""Leaving a CPU where others want it: when that is tried, and that the CPUs that we may have stay the same."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from collector.session.affinity import Affinity

MS = 1_000_000


def clock(*times_ms: int) -> Callable[[], int]:
    """Tells these times, one after the other."""
    times: Iterator[int] = iter(times_ms)
    return lambda: next(times) * MS


@pytest.fixture
def cpus() -> Iterator[set[int]]:
    """Ours, two at least. They are the same afterwards."""
    before = os.sched_getaffinity(0)
    if len(before) < 2:
        pytest.skip("nothing to leave to on one CPU")
    yield before
    assert os.sched_getaffinity(0) == before


def test_it_leaves_where_all_cpus_are_busy_and_nobody_has_to_wait_long(cpus: set[int]) -> None:
    n = len(cpus)
    tried = [Affinity().leave_cpu(n_runnable) for n_runnable in (0, 1, n, n + 1, 2 * n, 2 * n + 1, 500)]
    assert tried == [False, False, False, True, True, False, False]


def test_on_one_cpu_there_is_nowhere_to_go(cpus: set[int]) -> None:
    os.sched_setaffinity(0, {min(cpus)})
    try:
        affinity = Affinity()
        assert not any(affinity.leave_cpu(n_runnable) for n_runnable in range(5))
    finally:
        os.sched_setaffinity(0, cpus)


def test_it_stays_a_hundred_times_as_long_as_leaving_took(cpus: set[int]) -> None:
    # Asked when it begins, when it has left, and when it may be anywhere again.
    affinity = Affinity(clock(1000, 1001, 1002, 1201, 1202, 1203, 1204))
    assert [affinity.leave_cpu(len(cpus) + 1) for _ in range(3)] == [True, False, True]


def test_it_does_not_leave_soon_again_where_it_had_to_wait(cpus: set[int]) -> None:
    affinity = Affinity(clock(1000, 1011, 1012, 2211, 2212, 2213, 2214))
    assert [affinity.leave_cpu(len(cpus) + 1) for _ in range(3)] == [True, False, True]
