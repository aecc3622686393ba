"""Where the time of every thread goes. Pure, and for all threads of a batch at once.

A thread is in one microstate at a time. Its life is cut into periods by edges:

    BORN ---wait--- IN ---running--- OUT_PREEMPTED ---wait--- IN ---running--- OUT_BLOCKED ---blocked--- IN ... ENDED

Leaving a period adds its length to one account; nothing else adds time. So the accounts of a thread always add up to
the time from BORN to its last edge, and the running account is exact, however few clock samples fell into it.

Ticks are the clock's answer to *where*, the accounts are the answer to *how much*. A sample at time t earns

    ticks = floor((phase + cpu(t)) / interval) - floor((phase + cpu(t of the thread's last sample)) / interval)

with cpu(t) the exact running time up to t. Normally that is 1; it is more after lost samples and may be 0 when the
clocks of two CPUs, which run separately for a thread, fire close together. A first sample within the first interval
sets the phase so that it earns a tick: if time told were always rounded down, none would ever be told where threads
begin, and short ones would seem to do nothing but end (of those that end, as many are told as are due: ``rounding``).
Whatever the clock does, sum(ticks) * interval never differs by more than an interval from the exact time up to the last
sample.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from collector.arrays import packed
from collector.events import Array, Edge
from collector.timing.timeline import is_out, rising, running_sums


class Periods(NamedTuple):
    """Closed periods, p of them, by thread and then time; ``kind`` is the Edge that began each."""

    slot: Array  # i8 (p,)
    start_ns: Array  # i8 (p,)
    end_ns: Array  # i8 (p,)
    kind: Array  # i1 (p,)
    began: Array  # i8 (p,) index of the edge that began it, -1 if that came in an earlier batch

    def off_cpu(self) -> Periods:
        """Those in which the thread did not run."""
        rows = self.kind != Edge.IN
        return Periods(self.slot[rows], self.start_ns[rows], self.end_ns[rows], self.kind[rows], self.began[rows])


class Edges(NamedTuple):
    """The edges of a batch by slot and time, and the threads' clocks as they were before it."""

    slot: Array  # i8 (m,)
    time_ns: Array  # i8 (m,)
    cut: Array  # i1 (m,)
    cpu_ns: Array  # i8 (m,) running time of the thread up to the edge
    last: Array  # bool (m,) the thread's last one in the batch
    kind_before: Array
    since_before: Array
    cpu_before: Array

    def last_before(self, slot: Array, time_ns: Array) -> Array:
        """Index of the last edge of each slot at or before each time; -1 where there is none."""
        keys, wanted = self._keys(slot, time_ns)
        at = np.searchsorted(keys, wanted, side="right") - 1
        return np.where((at >= 0) & (self.slot[at] == slot), at, -1)

    def next_at(self, slot: Array, time_ns: Array) -> Array:
        """Index of the first edge of each slot at or after each time; -1 where there is none."""
        keys, wanted = self._keys(slot, time_ns)
        at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        return np.where((self.slot[at] == slot) & (keys[at] >= wanted), at, -1)

    def _keys(self, slot: Array, time_ns: Array) -> tuple[Array, Array]:
        """(slot, time) as one number each, of the edges and of what is looked for."""
        keys, wanted = packed((self.slot, self.time_ns), (slot, time_ns))
        return keys, wanted


class ThreadClocks:
    """Exact clocks of all threads, each at a slot (a small number that is never used again)."""

    def __init__(self, interval_ns: int) -> None:
        self.interval_ns = interval_ns
        self.n_slots = 0
        self.n_impossible = 0  # edges that cannot follow their predecessor: a record between them was lost
        self.kind = np.full(64, Edge.UNKNOWN, dtype=np.int8)
        self.since_ns = np.zeros(64, dtype=np.int64)
        self.cpu_ns = np.zeros(64, dtype=np.int64)
        self.ticks = np.zeros(64, dtype=np.int64)
        self.phase_ns = np.full(64, -1, dtype=np.int64)  # -1: no sample yet
        # There before us: what it was found doing holds until its first record, which knows better.
        self.found = np.zeros(64, dtype=bool)
        self.edges = _no_edges()

    def new_slot(self, found: bool = False) -> int:
        """A slot for a thread seen for the first time; ``found``: it was there before us, and was looked at while it
        may have run: the edge that it begins with is what was seen then."""
        if self.n_slots == len(self.kind):
            for name, fill in (("kind", Edge.UNKNOWN), ("since_ns", 0), ("cpu_ns", 0), ("ticks", 0), ("phase_ns", -1),
                               ("found", False)):
                old = getattr(self, name)
                setattr(self, name, np.concatenate([old, np.full(len(old), fill, dtype=old.dtype)]))
        self.found[self.n_slots] = found
        self.n_slots += 1
        return self.n_slots - 1

    def advance(self, slot: Array, time_ns: Array, cut: Array, counted: Array | None = None) -> Periods:
        """Takes the edges of a batch, (m,) each in the order of their happening; returns the periods that they close.

        A stamp that is earlier than the one before it in its thread counts as equal to that. Edges that are ``counted``
        (m,), not recorded, may follow any other.
        Afterwards ``cpu_at`` answers for any time since the batch before.
        """
        order = np.argsort(slot, kind="stable")
        slot, cut = slot[order], cut[order]
        time_ns = rising(slot, np.maximum(time_ns[order], self.since_ns[slot]))
        recorded = np.ones(len(slot), dtype=bool) if counted is None else ~counted[order]
        first = np.ones(len(slot), dtype=bool)
        first[1:] = slot[1:] != slot[:-1]
        before_kind = np.empty(len(slot), dtype=np.int8)
        before_kind[1:] = cut[:-1]
        before_kind[first] = self.kind[slot[first]]
        # The first record of a found thread tells whether it ran before: who leaves a CPU did, who gets one had waited.
        found = self.found[slot]
        before_kind[found & (before_kind == Edge.IN) & (cut == Edge.IN)] = Edge.OUT_PREEMPTED
        left = is_out(cut)
        before_kind[found & (before_kind == Edge.OUT_BLOCKED) & left] = Edge.IN
        self.found[slot[before_kind != Edge.UNKNOWN]] = False
        start = np.empty(len(slot), dtype=np.int64)
        start[1:] = time_ns[:-1]
        start[first] = self.since_ns[slot[first]]
        known = (before_kind != Edge.UNKNOWN) & (before_kind != Edge.ENDED)
        end = np.maximum(time_ns, start)
        running = np.where(known & (before_kind == Edge.IN), end - start, 0)
        self.n_impossible += int(np.count_nonzero(known & ((before_kind == Edge.IN) == (cut == Edge.IN))
                                                  & (cut != Edge.ENDED) & recorded))
        cpu = running_sums(running, first, self.cpu_ns[slot])
        last = np.ones(len(slot), dtype=bool)
        last[:-1] = first[1:]
        self.edges = Edges(slot, end, cut, cpu, last, self.kind.copy(), self.since_ns.copy(), self.cpu_ns.copy())
        self.kind[slot[last]], self.since_ns[slot[last]], self.cpu_ns[slot[last]] = cut[last], end[last], cpu[last]
        began = np.where(first, -1, np.arange(len(slot)) - 1)
        return Periods(slot[known], start[known], end[known], before_kind[known], began[known])

    def cpu_at(self, slot: Array, time_ns: Array) -> Array:
        """Exact running time (n,) in ns of each thread up to each time, not before the last batch's start."""
        edges = self.edges
        if not len(edges.slot):
            kind, since, cpu = self.kind[slot], self.since_ns[slot], self.cpu_ns[slot]
        else:
            at = edges.last_before(slot, time_ns)
            hit = at >= 0
            kind = np.where(hit, edges.cut[at], edges.kind_before[slot])
            since = np.where(hit, edges.time_ns[at], edges.since_before[slot])
            cpu = np.where(hit, edges.cpu_ns[at], edges.cpu_before[slot])
        return cpu + np.where(kind == Edge.IN, np.maximum(time_ns - since, 0), 0)

    def ticks_of_samples(self, slot: Array, time_ns: Array, untold: Array | None = None) -> Array:
        """Ticks (n,) that clock samples earn, given in time order; see the module's text.

        ``untold`` (u,): slots that begin with a first sample which earns nothing by itself.
        """
        order = np.argsort(slot, kind="stable")
        sorted_slot = slot[order]
        cpu_ns = self.cpu_at(sorted_slot, time_ns[order])
        first = np.ones(len(slot), dtype=bool)
        first[1:] = sorted_slot[1:] != sorted_slot[:-1]
        begins = first & (self.phase_ns[sorted_slot] < 0)
        self.phase_ns[sorted_slot[begins]] = np.maximum(self.interval_ns - np.maximum(cpu_ns[begins], 1), 0)
        if untold is not None:
            self.phase_ns[untold] = 0
        total = (self.phase_ns[sorted_slot] + cpu_ns) // self.interval_ns
        before = np.empty(len(slot), dtype=np.int64)
        before[1:] = total[:-1]
        before[first] = self.ticks[sorted_slot[first]]
        earned = np.maximum(total - before, 0)
        last = np.ones(len(slot), dtype=bool)
        last[:-1] = first[1:]
        self.ticks[sorted_slot[last]] = np.maximum(total[last], self.ticks[sorted_slot[last]])
        ticks = np.empty(len(slot), dtype=np.int64)
        ticks[order] = earned
        return ticks

    def residue_ns(self, slot: int) -> int:
        """Running time of a thread that no tick stands for; below 0 where ticks stand for more."""
        return int(self.cpu_ns[slot] - self.ticks[slot] * self.interval_ns)


def _no_edges() -> Edges:
    none = np.zeros(0, dtype=np.int64)
    return Edges(none, none, none, none, none, none, none, none)
