"""The ticks that a thread is still owed when it ends: whole ones, so that what was owed has to be rounded. Pure.

Rounded are three sums for every thread: its time on CPU, its time off CPU, and its life, which is both. Each goes to
one of the two whole numbers next to it; the third follows from the other two, so that not every choice of those is
free. Whether up or down is decided by what earlier threads of the same process are short of (their *pool*), so that
many short threads get their due together: first for the time on CPU, and then for the life, as far as that is free.
(Were it the time off CPU instead, threads of nearly whole intervals that were told too much on CPU would have lives
that are too long, which no other could make up for.) Within a sum, the states that are owed most get the ticks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import numpy as np

from collector.events import Array

_N_ON_CPU = 3  # user, system and trap


def in_turn(left_ns: Array, pool_ns: Array, interval_ns: int, owed_ns: Array | None = None) -> Iterator[int]:
    """The numbers of threads in the order in which they are best settled: ``left_ns`` (n,) is what each has on CPU that
    no tick stands for, ``pool_ns`` (10,) the pool that each settlement changes.

    Those that were told more than they had come first, as what the others have left is due to them; but no more of
    them than the pool bears, or the others' lives, whose sums have to be whole, would be told too long. Where it is
    given what they are owed, ``owed_ns`` (n, 10), those that get no tick go to the pool together, and are left out.
    """
    order, n_ahead = left_ns.argsort(kind="stable").tolist(), int(np.count_nonzero(left_ns < 0))
    ahead, behind = deque(order[:n_ahead]), deque(order[n_ahead:])
    while ahead:
        is_deep = 2 * int(pool_ns[:_N_ON_CPU].sum()) <= -interval_ns
        yield (behind if behind and is_deep else ahead).popleft()
    yield from behind if owed_ns is None else _but_short(owed_ns, pool_ns, interval_ns, list(behind))


def _but_short(owed_ns: Array, pool_ns: Array, interval_ns: int, order: list[int]) -> Iterator[int]:
    """Those that ``settle`` may give ticks; what the others before each are owed is in the pool by then."""
    on_cpu, off_cpu = owed_ns[:, :_N_ON_CPU].sum(axis=1), owed_ns[:, _N_ON_CPU:].sum(axis=1)
    is_short = ((on_cpu + off_cpu < interval_ns) & (owed_ns.min(axis=1) >= 0)).tolist()
    sums = list(zip(on_cpu.tolist(), off_cpu.tolist(), strict=True))
    short: list[int] = []
    pooled_on, pooled_off = _sums(pool_ns)
    for i in order:
        on_ns, off_ns = sums[i]
        if (is_short[i] and (not on_ns or 2 * (pooled_on + on_ns) < interval_ns)
                and (not off_ns or 2 * (pooled_on + on_ns + pooled_off + off_ns) < interval_ns)):
            pooled_on, pooled_off = pooled_on + on_ns, pooled_off + off_ns
            short.append(i)
            continue
        pool_ns += owed_ns[short].sum(axis=0) if short else 0
        short.clear()
        yield i
        pooled_on, pooled_off = _sums(pool_ns)
    pool_ns += owed_ns[short].sum(axis=0)


def _sums(by_state_ns: Array) -> tuple[int, int]:
    """Time on CPU, and off it."""
    values = by_state_ns.tolist()
    return sum(values[:_N_ON_CPU]), sum(values[_N_ON_CPU:])


def has_choice(owed_ns: Array, pool_ns: Array, interval_ns: int) -> bool:
    """Whether a thread that is owed so much by state (10,) may be given a tick more or less, on CPU and off it, without
    that what ``pool_ns`` (10,) has in all comes to an interval or more."""
    sums = zip(_sums(owed_ns), _sums(pool_ns), strict=True)
    return all(not left_ns or 0 < left_ns + total_ns % interval_ns < interval_ns for total_ns, left_ns in sums)


def settle(owed_ns: Array, pool_ns: Array, interval_ns: int) -> Array:
    """Ticks (10,) for what a thread that ends is owed by state (10,); ``pool_ns`` (10,) takes what is left, in place.

    No state is off by an interval, nor is the sum of those on CPU, nor the sum of all; no tick is given to a state that
    is owed nothing. A state on CPU that is owed less than nothing, since a first sample has told more than there was
    (by less than an interval), takes that from the others on CPU.
    """
    owed = owed_ns.tolist()
    if min(owed[:_N_ON_CPU]) < 0:
        owed = _levelled(owed)
    pool = [left + more for left, more in zip(pool_ns.tolist(), owed, strict=True)]
    sums = sum(owed[:_N_ON_CPU]), sum(owed[_N_ON_CPU:])
    if min(owed) < 0:
        owed = [max(ns, 0) for ns in owed]
    is_ahead = sums[0] < 0  # then time on CPU has been rounded up
    left = [total % interval_ns for total in sums]
    # What the pools would be if both were rounded down; half an interval is as far as they should go.
    debt = [sum(pool[:_N_ON_CPU]) - sums[0] + left[0], sum(pool[_N_ON_CPU:]) - sums[1] + left[1]]
    up_on = is_ahead or (left[0] > 0 and 2 * debt[0] >= interval_ns)
    up_off = left[1] > 0 and 2 * (sum(debt) - up_on * interval_ns) >= interval_ns
    if up_on and sum(left) <= interval_ns:
        up_off = False
    elif not up_on and sum(left) >= interval_ns:
        up_off = True
    due = [max(sums[0] // interval_ns + up_on, 0), sums[1] // interval_ns + up_off]
    ticks = (_shared(owed[:_N_ON_CPU], pool[:_N_ON_CPU], due[0], interval_ns)
             + _shared(owed[_N_ON_CPU:], pool[_N_ON_CPU:], due[1], interval_ns))
    pool_ns[:] = [ns - n * interval_ns for ns, n in zip(pool, ticks, strict=True)]
    return np.array(ticks, dtype=np.int64)


def _levelled(owed_ns: list[int]) -> list[int]:
    """What is owed, without states on CPU that are owed less than nothing beside some that are owed more."""
    ahead_ns = -sum(min(ns, 0) for ns in owed_ns[:_N_ON_CPU])
    level = [max(ns, 0) for ns in owed_ns[:_N_ON_CPU]]
    for i, ns in enumerate(level):
        level[i] -= min(ns, ahead_ns)
        ahead_ns -= min(ns, ahead_ns)
    level[0] -= ahead_ns
    return level + owed_ns[_N_ON_CPU:]


def _shared(owed_ns: list[int], pool_ns: list[int], n: int, interval_ns: int) -> list[int]:
    """``n`` ticks over the states of a sum."""
    if not n and max(owed_ns) < interval_ns:  # as of most short threads
        return [0] * len(owed_ns)
    ticks = [ns // interval_ns for ns in owed_ns]
    debts = sorted((ticks[i] * interval_ns - pool_ns[i], i) for i, ns in enumerate(owed_ns) if ns % interval_ns)
    for _, i in debts[:n - sum(ticks)]:
        ticks[i] += 1
    return ticks
