"""What ended threads are owed: every sum within an interval, and nothing made or lost over many threads."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.events import Array
from collector.timing.settling import has_choice, in_turn, settle
from collector.timing.states import Microstate
from collector.timing.ticks import N_STATES

INTERVAL = 10_007
OWED = st.lists(st.integers(0, 3 * INTERVAL) | st.sampled_from([0, INTERVAL]), min_size=N_STATES, max_size=N_STATES)


@given(st.lists(OWED, min_size=1, max_size=30))
def test_what_ticks_have_told_too_early_is_not_told_again(threads: list[list[int]]) -> None:
    pool, paid, total = np.zeros(N_STATES, np.int64), np.zeros(N_STATES, np.int64), np.zeros(N_STATES, np.int64)
    for number, thread in enumerate(threads):
        owed, before = np.array(thread, np.int64), pool.copy()
        owed[Microstate.USER] = -(thread[Microstate.USER] % INTERVAL)
        if number % 2:
            owed[Microstate.SYSTEM] = owed[Microstate.TRAP] = 0
        ticks = settle(owed.copy(), pool, INTERVAL)
        assert (ticks >= 0).all()
        assert not ticks[owed <= 0].any()
        off = ticks * INTERVAL - owed
        assert max(abs(off[3:]).max(), abs(off[:3].sum()), abs(off.sum())) < INTERVAL
        assert pool[3:].tolist() == (before - off)[3:].tolist()
        assert pool[:3].sum() == (before - off)[:3].sum()
        paid += ticks
        total += owed
    assert (paid * INTERVAL + pool).sum() == total.sum()


@given(st.lists(OWED, min_size=1, max_size=30))
def test_what_ended_threads_are_owed_is_paid_or_pooled(threads: list[list[int]]) -> None:
    pool, paid = np.zeros(N_STATES, np.int64), np.zeros(N_STATES, np.int64)
    for thread in threads:
        owed, before = np.array(thread, np.int64), pool.copy()
        ticks = settle(owed.copy(), pool, INTERVAL)
        assert (ticks >= 0).all()
        assert not ticks[owed == 0].any()  # never a state that the thread was not in
        off = ticks * INTERVAL - owed
        assert max(abs(off).max(), abs(off[:3].sum()), abs(off.sum())) < INTERVAL
        assert pool.tolist() == (before - off).tolist()  # nothing is made, nothing is lost
        paid += ticks
    assert (paid * INTERVAL + pool).tolist() == np.sum(threads, axis=0).tolist()
    assert abs(pool[:3].sum()) < 2 * INTERVAL
    assert abs(pool[3:].sum()) < 2 * INTERVAL


@pytest.mark.parametrize(("on_cpu", "off_cpu", "pooled", "expected"), [
    (4_000, 0, [0, 0], True), (4_000, 9_000, [0, 0], True), (0, 0, [0, 0], True),
    (4_000, 0, [3_000, 0], True), (4_000, 0, [6_007, 0], False), (4_000, 0, [-4_000, 0], False),
    (INTERVAL + 4_000, 0, [6_007, 0], False), (INTERVAL + 4_000, 0, [6_006, 0], True),
    (4_000, 4_000, [0, 7_000], False), (4_000, 4_000, [0, -4_001], False), (4_000, 4_000, [-3_999, 6_006], True)])
def test_a_thread_may_be_rounded_either_way_where_its_image_may(on_cpu: int, off_cpu: int, pooled: list[int],
                                                                expected: bool) -> None:
    owed, pool = np.zeros(N_STATES, np.int64), np.zeros(N_STATES, np.int64)
    owed[[Microstate.SYSTEM, Microstate.SLEEP]] = on_cpu, off_cpu
    pool[[Microstate.USER, Microstate.WAIT_CPU]] = pooled
    assert has_choice(owed, pool, INTERVAL) == expected
    for shared_ns in (-INTERVAL, INTERVAL) if expected and on_cpu and not off_cpu else ():
        both = pool + 0
        both[Microstate.USER] += shared_ns
        left = pool + owed - settle(owed, both, INTERVAL) * INTERVAL
        assert abs(left.sum()) < INTERVAL


@pytest.mark.parametrize("each_ns", [3_001, 9_973, 10_007, 14_503, 1])
def test_many_short_threads_get_their_due_together(each_ns: int) -> None:
    pool, paid = np.zeros(N_STATES, np.int64), 0
    for _ in range(307):
        owed = np.zeros(N_STATES, np.int64)
        owed[Microstate.USER] = each_ns
        paid += int(settle(owed, pool, INTERVAL).sum())
        assert 2 * abs(pool[Microstate.USER]) <= INTERVAL
    assert 2 * abs(307 * each_ns - paid * INTERVAL) <= INTERVAL


def test_time_on_cpu_in_two_states_is_rounded_once() -> None:
    owed, pool = np.zeros(N_STATES, np.int64), np.zeros(N_STATES, np.int64)
    owed[Microstate.USER], owed[Microstate.SYSTEM] = INTERVAL * 4 // 10, INTERVAL * 7 // 10
    ticks = settle(owed, pool, INTERVAL)
    assert ticks.tolist() == [0, 1] + [0] * 8


@pytest.mark.parametrize("n_ahead", [0, 1, 20, 30, 35, 40, 46, 56, 101])
@pytest.mark.parametrize("life_ns", [2_570_000, 9_990_000, 10_000_000, 10_700_000, 11_500_000, 13_570_000])
def test_those_told_too_much_and_the_others_level_each_other(n_ahead: int, life_ns: int) -> None:
    """As long as any of them have something left; lives of one length are all rounded alike."""
    interval_ns, n = 10_000_000, 101
    used_ns = [4_000_000 - 10_000 * (i % 7) for i in range(n)]
    left_ns = np.array([ns - interval_ns * (i < n_ahead) for i, ns in enumerate(used_ns)])
    pool_ns, told = np.zeros(N_STATES, dtype=np.int64), 0
    order = []
    for i in in_turn(left_ns, pool_ns, interval_ns):
        owed_ns = np.zeros(N_STATES, dtype=np.int64)
        owed_ns[Microstate.USER], owed_ns[Microstate.WAIT_CPU] = left_ns[i], (life_ns - used_ns[i]) % interval_ns
        told += int(settle(owed_ns, pool_ns, interval_ns)[Microstate.USER])
        order.append(i)
    assert sorted(order) == list(range(n))
    assert told == pytest.approx(max(left_ns.sum() / interval_ns, 0), abs=1.5)


@pytest.mark.parametrize("n_ahead", [0, 7, 13, 18])
@pytest.mark.parametrize("life", [23.99, 24, 24.0017, 24.2, 24.5, 24.8])
@pytest.mark.parametrize("seed", range(7))
def test_threads_of_one_life_have_no_more_together_than_there_was(n_ahead: int, life: float, seed: int) -> None:
    """Each had a part of an interval on a CPU; some, where a sample met them, have been told a whole one."""
    n, chance = 101, np.random.default_rng(seed)
    used_ns = np.minimum(chance.exponential(0.24 * INTERVAL, n), 0.95 * INTERVAL).astype(np.int64)
    told = np.zeros(N_STATES, np.int64)
    told[Microstate.USER] = n_ahead
    owed_ns = np.zeros((n, N_STATES), np.int64)
    owed_ns[:, Microstate.USER] = used_ns
    owed_ns[chance.permutation(n)[:n_ahead], Microstate.USER] -= INTERVAL
    owed_ns[:, Microstate.WAIT_CPU] = int(life * INTERVAL) - used_ns
    pool_ns = np.zeros(N_STATES, np.int64)
    for i in in_turn(owed_ns[:, Microstate.USER], pool_ns, INTERVAL):
        told += settle(owed_ns[i], pool_ns, INTERVAL)
    assert told[Microstate.USER] == pytest.approx(used_ns.sum() / INTERVAL, abs=0.51)
    assert told.sum() == pytest.approx(n * life, abs=1)


def settled(owed_ns: Array, pool_ns: Array, *, together: bool) -> tuple[list[tuple[int, list[int]]], list[int], int]:
    """Who gets which ticks, in this order; what is left in the pool; and how many were asked for one by one."""
    pool_ns, told, n = pool_ns.copy(), [], 0
    for i in in_turn(owed_ns[:, Microstate.USER], pool_ns, INTERVAL, owed_ns if together else None):
        ticks, n = settle(owed_ns[i].copy(), pool_ns, INTERVAL), n + 1
        if ticks.any():
            told.append((i, ticks.tolist()))
    return told, pool_ns.tolist(), n


@given(st.lists(OWED, min_size=1, max_size=30), OWED, st.sampled_from([1, 7, 60, 1009]), st.sets(st.integers(0, 29)))
def test_short_threads_are_settled_together_as_one_by_one(threads: list[list[int]], pool: list[int], divisor: int,
                                                          told_too_much: set[int]) -> None:
    owed_ns = np.array(threads, dtype=np.int64) // divisor
    ahead = [i for i in told_too_much if i < len(threads)]
    owed_ns[ahead, Microstate.USER] -= INTERVAL - 1
    pool_ns = np.array(pool, dtype=np.int64) // 2 - INTERVAL
    assert settled(owed_ns, pool_ns, together=True)[:2] == settled(owed_ns, pool_ns, together=False)[:2]


def test_of_many_short_threads_few_are_settled_one_by_one() -> None:
    owed_ns = np.zeros((1009, N_STATES), dtype=np.int64)
    owed_ns[:, Microstate.USER] = INTERVAL // 50
    told, _, n = settled(owed_ns, np.zeros(N_STATES, dtype=np.int64), together=True)
    assert len(told) == n == 20
