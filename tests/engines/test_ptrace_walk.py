"""Where the tracer is to go next: first visits of new threads, between those of rounds; and where it stands."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from collector.engines.ptrace.walk import Walk

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


def test_who_is_sought_is_gone_to_when_it_is_due_and_not_before() -> None:
    asked: list[int] = []

    def cpu_of(tid: int) -> int:
        asked.append(tid)
        return -1

    walk = Walk(INTERVAL_NS, cpu_of)
    walk.seek(7, 1000)
    walk.go_on()
    assert asked == []
    assert walk.due_ns(INTERVAL_NS) == 1000
    visit = walk.visit()
    assert (visit.tid, visit.late, asked) == (7, False, [7])
    assert walk.due_ns(INTERVAL_NS) is None


def test_who_was_not_met_is_sought_again_once_at_any_time_soon() -> None:
    walk = Walk(INTERVAL_NS, lambda tid: -1)
    due = []
    for now_ns in range(0, 200 * INTERVAL_NS, INTERVAL_NS):
        for _ in range(3):
            walk.seek(7, now_ns, later=True)
        due.append((walk.due_ns(now_ns + INTERVAL_NS) or 0) - now_ns)
        walk.visit()
        assert walk.due_ns(now_ns + INTERVAL_NS) is None
    counts, _ = np.histogram(due, bins=10, range=(0, INTERVAL_NS // 2))
    assert counts.min() >= 19
    assert counts.max() <= 21


# --- where threads that make no calls are stopped from -----------------------------------------------

CPUS = sorted(os.sched_getaffinity(0))
several_cpus = pytest.mark.skipif(len(CPUS) < 2, reason="with one CPU there is none to go to")


@pytest.fixture
def stands_on() -> Iterator[Callable[..., set[int]]]:
    """``stands_on(walk, *cpus)``: the CPUs that we may be on when a round has found a thread ready to run on each of
    ``cpus``."""
    before = os.sched_getaffinity(0)

    def after_round(walk: Walk, *cpus: int, n_others: int | None = None) -> set[int]:
        walk.begin()
        for cpu in cpus:
            walk.found_ready(cpu)
        if n_others is not None:
            walk.counted(len(cpus) + n_others)
        walk.plan(0, INTERVAL_NS, False)
        walk.go_on()
        return os.sched_getaffinity(0)

    yield after_round
    os.sched_setaffinity(0, before)


@several_cpus
@pytest.mark.parametrize("cpu", CPUS[:3])
def test_who_has_a_cpu_of_its_own_is_stopped_from_another(cpu: int, stands_on: Callable[..., set[int]]) -> None:
    walk = Walk(INTERVAL_NS, lambda tid: -1)
    assert stands_on(walk, cpu, n_others=0) == set(CPUS) - {cpu}
    assert walk.is_aside
    assert not walk.is_here(cpu)


@several_cpus
def test_who_shares_its_cpu_is_stopped_there(stands_on: Callable[..., set[int]]) -> None:
    cpu, n_cpus = CPUS[-1], os.cpu_count() or 1
    walk = Walk(INTERVAL_NS, lambda tid: -1)
    assert stands_on(walk, cpu) == {cpu}, "nobody has counted yet"
    assert stands_on(walk, cpu, n_others=-2) == {cpu}, "that cannot be counted"
    for _ in range(5):
        assert stands_on(walk, cpu, n_others=n_cpus - 1) == {cpu}
        assert not walk.is_aside
        assert walk.is_here(cpu)
    n_free = [stands_on(walk, cpu, n_others=0) for _ in range(5)]
    assert n_free == [{cpu}] * 4 + [set(CPUS) - {cpu}], "others are believed to be gone when they have been for a while"
    assert stands_on(walk, cpu, cpu, n_others=0) == {cpu}, "two on one CPU"
    assert stands_on(walk, cpu) == set(CPUS) - {cpu}
    walk.was_kept_waiting()
    assert [stands_on(walk, cpu, n_others=0) for _ in range(5)] == [{cpu}] * 4 + [set(CPUS) - {cpu}]


@several_cpus
def test_where_all_cpus_are_needed_the_kernel_chooses(stands_on: Callable[..., set[int]]) -> None:
    walk = Walk(INTERVAL_NS, lambda tid: -1)
    assert stands_on(walk, *range(os.cpu_count() or 1), n_others=0) == set(CPUS)
    assert not walk.is_aside
    assert stands_on(walk, n_others=0) == set(CPUS), "nobody runs"
