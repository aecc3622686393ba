"""Stacks of threads that run, for aggregations: those of the clock samples in a run share its time.

    run      |------------- 30 ms -------------|
    samples        a         a          b           a: 20 ms, b: 10 ms

A run is one stretch on a CPU. Its samples count alike: within a run a thread's clock has one period. So a run becomes
one span for each stack that was sampled in it, as long as that stack's share of the samples. A run without a sample is
one span whose stack is NOT_SAMPLED: shorter than the clock's interval, most runs have none, and no other run's stack is
taken for theirs.

A run is told when it is over, its samples as they come. They wait for it as counts of each stack.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from collector.aggregate.spans import ON_CPU, Spans
from collector.arrays import changes, indices, packed
from collector.events import Array
from collector.experiment.records import NOT_SAMPLED


class _Samples(NamedTuple):
    """Samples (n,), or several of one stack as one."""

    slot: Array  # i8 (n,)
    time_ns: Array  # i8 (n,) of the last one
    uid: Array  # u8 (n,)
    times: Array  # i8 (n,)

    def take(self, rows: Array) -> _Samples:
        """Those at some indices, or of a mask."""
        return _Samples(*(column[rows] for column in self))


_NONE = _Samples(*(np.zeros(0, dtype=kind) for kind in (np.int64, np.int64, np.uint64, np.int64)))


class RunningStacks:
    """Shares the time of runs among the stacks that were sampled in them."""

    def __init__(self) -> None:
        self._waiting = _NONE

    def sampled(self, slot: Array, time_ns: Array, uid: Array) -> None:
        """Clock samples (n,); their runs are told by this batch or a later one."""
        more = _Samples(slot, time_ns, uid, np.ones(len(slot), dtype=np.int64))
        self._waiting = _Samples(*(np.concatenate(pair) for pair in zip(self._waiting, more, strict=True)))

    def shared(self, spans: Spans) -> Spans:
        """The spans, by slot and in time order, with those on a CPU in parts that have stacks."""
        runs = indices(np.isin(spans.state, ON_CPU))
        number, samples = self._met(spans.slot[runs], spans.end_ns[runs])
        stack = spans.stack.copy()
        stack[runs] = NOT_SAMPLED
        row, start_ns, end_ns = _parts(spans, runs[number], samples.times)
        whole = np.ones(len(spans), dtype=bool)
        whole[row] = False
        parts = replace(spans[row], start_ns=start_ns, end_ns=end_ns, stack=samples.uid.astype(np.int64))
        found = replace(spans, stack=stack)[whole].followed_by(parts[end_ns > start_ns])
        return found[np.lexsort((found.start_ns, found.slot))]

    def forget(self, slots: Array) -> None:
        """The threads at slots are over, and the slots are free."""
        self._waiting = self._waiting.take(~np.isin(self._waiting.slot, slots))

    def _met(self, slot: Array, end_ns: Array) -> tuple[Array, _Samples]:
        """Of runs (r,) by slot and time: for each stack in each run, the run's number, and the samples.

        A sample belongs to its thread's first run that does not end before it. Those of runs that go on wait.
        """
        waiting = self._waiting
        if not len(waiting.slot) or not len(slot):
            return np.zeros(0, dtype=np.int64), _NONE
        keys, wanted = packed((slot, end_ns), (waiting.slot, waiting.time_ns))
        number = np.minimum(keys.searchsorted(wanted), len(slot) - 1)
        met = (slot[number] == waiting.slot) & (keys[number] >= wanted)
        self._waiting = _counted(waiting.slot[~met], waiting.take(~met))[1]
        return _counted(number[met], waiting.take(met))


def _counted(group: Array, samples: _Samples) -> tuple[Array, _Samples]:
    """Samples of one group and stack as one: their groups (m,), and they."""
    if not len(group):
        return group, samples
    order = np.lexsort((samples.time_ns, samples.uid, group))
    group, samples = group[order], samples.take(order)
    first = indices(changes(group, samples.uid))
    last = np.append(first[1:], len(group)) - 1
    return group[last], samples.take(last)._replace(times=np.add.reduceat(samples.times, first))


def _parts(spans: Spans, row: Array, count: Array) -> tuple[Array, Array, Array]:
    """The row (m,) in ``spans`` of each part, and from when to when it lasts: of its run, as many parts of the time as
    it counts."""
    if not len(row):
        return row, row, row
    first = changes(row)
    begins, number = indices(first), first.cumsum() - 1
    total = np.add.reduceat(count, begins)[number]
    until = count.cumsum()
    until -= (until[begins] - count[begins])[number]
    start_ns, length_ns = spans.start_ns[row], spans.end_ns[row] - spans.start_ns[row]

    def share_ns(upto: Array) -> Array:
        """length * upto / total, which may have more than 64 bits on the way."""
        share: Array = length_ns // total * upto + length_ns % total * upto // total
        return share

    return row, start_ns + share_ns(until - count), start_ns + share_ns(until)
