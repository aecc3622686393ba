"""Ticks of time spent waiting: every state of every thread has its due at any time, and its stacks what is theirs."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from collector.timing.ticks import Accounts

INTERVAL = 10_007
INTERVAL_NS = 10_007_000


def told(accounts: Accounts, batch: list[tuple[int, int, int]]) -> Counter[tuple[int, int]]:
    """The ticks that a batch earns, by group and stack; ``batch``: group, stack and length."""
    columns = np.array(batch, dtype=np.int64)
    group, uid, length_ns = columns[:, 0], columns[:, 1].astype(np.uint64), columns[:, 2]
    earned, more_group, more_uid, more = accounts.add(group, uid, length_ns)
    found = Counter[tuple[int, int]]()
    for groups, uids, ticks in ((group, uid, earned), (more_group, more_uid, more)):
        for key in zip(groups.tolist(), uids.tolist(), ticks.tolist(), strict=True):
            found[key[:2]] += key[2]
    return found


@pytest.mark.parametrize("n_places", [1, 7, 41, 1009])
@pytest.mark.parametrize("long_share", [0.0, 0.03, 0.3])
def test_a_group_has_its_due_after_every_batch(n_places: int, long_share: float) -> None:
    """Its threads wait a moment at many places, most of which are not kept, and now and then for long at one."""
    rng = np.random.default_rng(n_places)
    accounts, time_ns, n_told = Accounts(INTERVAL), np.zeros(2, dtype=np.int64), np.zeros(2, dtype=np.int64)
    for _ in range(300):
        batch = [(int(rng.integers(2)), int(rng.integers(1, n_places + 1)), int(rng.integers(INTERVAL // 2)))
                 if rng.random() >= long_share else (1, 0, int(rng.integers(4 * INTERVAL)))
                 for _ in range(int(rng.integers(1, 60)))]
        for group, _, length_ns in batch:
            time_ns[group] += length_ns
        for (group, _), n in told(accounts, batch).items():
            assert n >= 0
            n_told[group] += n
        assert n_told.tolist() == (time_ns // INTERVAL).tolist()


@pytest.mark.parametrize("hours", [1, 3, 9_999])
def test_waits_of_hours_have_all_of_their_ticks(hours: int) -> None:
    """Three at one place, of which the last two are as long as each other, beside one that is soon over."""
    whole = hours * 360_000
    group, uid = np.array([8, 8, 8, 9]), np.array([1, 1, 1, 2], dtype=np.uint64)
    earned, *_ = Accounts(INTERVAL_NS).add(group, uid, np.array([1, whole, whole, 1]) * INTERVAL_NS)
    assert earned.tolist() == [1, whole, whole, 1]


def test_one_stack_that_is_owed_much_makes_up_for_one_that_was_told_much() -> None:
    accounts = Accounts(INTERVAL)
    accounts.group, accounts.uid = np.array([8, 8]), np.array([1, 2], dtype=np.uint64)
    accounts.owed_ns, accounts.used = np.array([-35_000, 38_000]), np.array([0, 1])
    assert told(accounts, [(8, 3, 4)]) == Counter()
    assert accounts.owed_ns.tolist() == [-35_000, 38_000, 4]
    assert told(accounts, [(8, 3, 7_003)]) == Counter({(8, 2): 1})


def test_stacks_have_what_is_theirs_whoever_waits_when_a_tick_falls_due() -> None:
    accounts, ticks = Accounts(INTERVAL), Counter[int]()
    for _ in range(1000):
        for (_, uid), n in told(accounts, [(8, 1, 100), (8, 2, 300), (8, 3, 700)]).items():
            ticks[uid] += n
    for uid, each_ns in ((1, 100), (2, 300), (3, 700)):
        assert abs(ticks[uid] * INTERVAL - 1000 * each_ns) <= INTERVAL


@pytest.mark.parametrize("per_batch", [1, 7, 41, 409])
def test_places_of_short_waits_that_never_come_again_have_their_share(per_batch: int) -> None:
    """Two functions, each of whose waits is at a place of its own, those of the one half as long."""
    rng = np.random.default_rng(per_batch)
    is_short = rng.random(4001) < 0.5
    length_ns = np.where(is_short, 2_011, 4_021) + rng.integers(-500, 500, len(is_short))
    ticks = of_new_places(is_short, length_ns, per_batch)
    # As of clock samples: each tick falls where one or the other is, and the first that are kept may all be the longer.
    n_ticks = ticks.sum()
    assert ticks[1] / n_ticks == pytest.approx(length_ns[is_short].sum() / length_ns.sum(), abs=2 / n_ticks**0.5)


@pytest.mark.parametrize("per_batch", [1, 7, 41, 409])
@pytest.mark.parametrize("around", [3_001, 8_009, 20_011])
def test_time_at_new_places_stays_with_the_function_that_it_was_spent_in(around: int, per_batch: int) -> None:
    """A thread waits in one function, always elsewhere, and then in another."""
    rng = np.random.default_rng(around)
    is_second = np.arange(1201) >= 701
    length_ns = rng.integers(around // 2, around * 3 // 2, len(is_second))
    ticks = of_new_places(is_second, length_ns, per_batch)
    for function in (0, 1):
        assert ticks[function] * INTERVAL == pytest.approx(length_ns[is_second == function].sum(), abs=3 * INTERVAL)


def of_new_places(function: np.ndarray[Any, Any], length_ns: np.ndarray[Any, Any], per_batch: int) -> Any:
    """The ticks (2,) of two functions, of waits (n,) in either, each of which is at a place of its own."""
    accounts, ticks = Accounts(INTERVAL), np.zeros(2, dtype=np.int64)
    uid = 2 * np.arange(1, len(function) + 1) + function
    waits = [(8, *wait) for wait in zip(uid.tolist(), length_ns.tolist(), strict=True)]
    for begin in range(0, len(waits), per_batch):
        for (_, place), n in told(accounts, waits[begin:begin + per_batch]).items():
            ticks[place % 2] += n
    assert ticks.sum() == length_ns.sum() // INTERVAL
    return ticks
