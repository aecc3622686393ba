"""Ticks of clock samples. Pure, for all threads of a batch at once.

Ticks are the clock's answer to *where*, the timeline is the answer to *how much*. A sample at time t earns

    ticks = floor((phase + ran(t)) / interval) - floor((phase + ran(t of the thread's last sample)) / interval)

with ran(t) the exact running time up to t. Normally that is 1; it is more after lost samples and may be 0 when the
clocks of two CPUs, which run separately for a thread, fire close together. A thread may turn out not to have run where
it was taken to: then its samples earn nothing until it has run for what was told too much. A first sample within the
first interval sets the phase so that it earns a tick: if time told were always rounded down, none would ever be told
where threads begin, and short ones would seem to do nothing but end (of those that end, as many are told as are due:
``rounding``). Whatever the clock does, sum(ticks) * interval never differs by more than an interval from the exact time
up to the last sample, or the most that was told before.
"""

from __future__ import annotations

import numpy as np

from collector.arrays import Columns, changes
from collector.events import Array
from collector.timing.timeline import Timeline, rising


class Sampling:
    """By slot: the ticks of the clock samples so far, and the phase of the first one (-1: there was none yet)."""

    def __init__(self, interval_ns: int, timeline: Timeline) -> None:
        self.interval_ns = interval_ns
        self.timeline = timeline
        self.of = Columns(ticks=("i8", 0), phase_ns=("i8", -1))

    def ticks_of(self, slot: Array, time_ns: Array, untold: Array | None = None) -> Array:
        """Ticks (n,) that clock samples earn, given in time order; see the module's text.

        ``untold`` (u,): slots that begin with a first sample which earns nothing by itself.
        """
        of = self.of
        of.grow(int(slot.max(initial=-1)) + 1)
        order = slot.argsort(kind="stable")
        in_order = slot[order]
        ran_ns = self.timeline.ran_ns(in_order, time_ns[order])
        first = changes(in_order)
        begins = first & (of.phase_ns[in_order] < 0)
        of.phase_ns[in_order[begins]] = np.maximum(self.interval_ns - np.maximum(ran_ns[begins], 1), 0)
        if untold is not None:
            of.phase_ns[untold] = 0
        before = of.ticks[in_order]
        total = rising(in_order, np.maximum((of.phase_ns[in_order] + ran_ns) // self.interval_ns, before))
        of.ticks[in_order] = total  # the last one of each stays
        before[1:] = np.where(first[1:], before[1:], total[:-1])
        ticks = np.empty(len(slot), dtype=np.int64)
        ticks[order] = total - before
        return ticks

    def skip(self, slot: Array, time_ns: int) -> None:
        """No tick is to stand for the whole intervals that threads (n,) have run up to a time, up to which all is known
        and no sample comes any more."""
        of = self.of
        of.grow(int(slot.max(initial=-1)) + 1)
        ran_ns = self.timeline.ran_ns(slot, np.full(len(slot), time_ns))
        whole = (np.maximum(of.phase_ns[slot], 0) + ran_ns) // self.interval_ns
        of.ticks[slot] = np.maximum(of.ticks[slot], whole)

    def residue_ns(self, slot: Array) -> Array:
        """Running time (n,) of threads that no tick stands for; below 0 where ticks stand for more."""
        self.of.grow(int(slot.max(initial=-1)) + 1)
        left: Array = self.timeline.clocks.cpu_ns[slot] - self.of.ticks[slot] * self.interval_ns
        return left

    def forget(self, slots: Array) -> None:
        """The threads at slots are over, and the slots are free."""
        self.of.grow(int(slots.max(initial=-1)) + 1)
        self.of.reset(slots)
