"""The clocks of all threads, and the only writer of them. Pure, and for all threads of a batch at once.

A thread's life is cut into periods by edges:

    BORN ---wait--- IN ---running--- OUT_PREEMPTED ---wait--- IN ---running--- OUT_BLOCKED ---blocked--- IN ... ENDED

Leaving a period adds its length to one account; nothing else adds time. So a thread's periods add up to the time from
BORN to its last edge, and its running time is exact, however few clock samples fell into it.

A period that lasts can be told in parts (``tell``). It then has the time up to which it was told before (``start_ns``)
beside its true beginning (``begun_ns``).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from collector.arrays import Columns, changes, indices, lasts, packed
from collector.events import Array, Edge, Source

LONG_AGO_NS = -(1 << 62)


class Edges(NamedTuple):
    """Edges (m,), by slot, and within each slot in the order of their happening."""

    slot: Array  # i8 (m,)
    time_ns: Array  # i8 (m,) never falling within a slot
    edge: Array  # i1 (m,) Edge
    cpu: Array  # i4 (m,) -1 where unknown
    source: Array  # i1 (m,) Source

    def take(self, rows: Array) -> Edges:
        """Those at some indices, or of a mask."""
        return Edges(*[column[rows] for column in self])

    def next_at(self, slot: Array, time_ns: Array) -> Array:
        """Index of the first edge of each slot at or after each time (n,); -1 where there is none."""
        if not len(self.slot):
            return np.full(len(slot), -1)
        keys, wanted = packed((self.slot, self.time_ns), (slot, time_ns))
        at = np.minimum(keys.searchsorted(wanted), len(keys) - 1)
        return np.where((self.slot[at] == slot) & (keys[at] >= wanted), at, -1)

    def insert(self, at: Array, more: Edges) -> Edges:
        """With others (k,) before those at indices ``at``.

        Those for one index are put in by slot, since one slot's end where another's begin, and then in the order given.
        Without any, these are the same arrays.
        """
        if not len(at):
            return self
        both, place = joined(more, self), np.concatenate([at, np.arange(len(self.slot))])
        return both.take(np.lexsort((both.slot, place)))


def edges_of(slot: Array, time_ns: Array, edge: Array, cpu: Array | None = None,
             source: int = Source.RECORDED) -> Edges:
    """Edges of one source, as they are given."""
    cpu = np.full(len(slot), -1, np.int32) if cpu is None else cpu
    return Edges(slot, time_ns, edge.astype(np.int8), cpu, np.full(len(slot), source, np.int8))


def joined(*parts: Edges) -> Edges:
    """All of them, still to be put in order."""
    return Edges(*map(np.concatenate, zip(*parts, strict=True)))


class Moments(NamedTuple):
    """When something happened to threads (w,), by slot and then time."""

    slot: Array  # i8 (w,)
    time_ns: Array  # i8 (w,)

    def last_ns(self, slot: Array, time_ns: Array) -> Array:
        """The last one (n,) of each slot up to each time; in the far past where there is none."""
        if not len(self.slot) or not len(slot):
            return np.full(len(slot), LONG_AGO_NS)
        keys, wanted = packed((self.slot, self.time_ns), (slot, time_ns))
        at = np.maximum(keys.searchsorted(wanted, side="right") - 1, 0)
        return np.where((self.slot[at] == slot) & (keys[at] <= wanted), self.time_ns[at], LONG_AGO_NS)

    def has(self, slot: Array, time_ns: Array) -> Array:
        """Whether (n,) one was at each time."""
        if not len(self.slot):
            return np.zeros(len(slot), dtype=bool)
        found: Array = self.last_ns(slot, time_ns) == time_ns
        return found


Wakeups = Moments  # of blocked threads


def moments_of(slot: Array, time_ns: Array) -> Moments:
    """Those of threads (w,), given in any order."""
    order = np.lexsort((time_ns, slot))
    return Moments(slot[order], time_ns[order])


NO_MOMENTS = Moments(*(np.zeros(0, dtype=np.int64),) * 2)


class Periods(NamedTuple):
    """Periods (p,), by slot and then time; ``kind`` is the Edge that began each."""

    slot: Array  # i8 (p,)
    begun_ns: Array  # i8 (p,)
    start_ns: Array  # i8 (p,) what came before has been told already
    end_ns: Array  # i8 (p,)
    kind: Array  # i1 (p,)
    source: Array  # i1 (p,) Source
    cpu: Array  # i4 (p,) of the edge that began it; -1 where unknown
    began: Array  # i8 (p,) index of the edge that began it, -1 if that came in an earlier batch

    def take(self, rows: Array) -> Periods:
        """Those at some indices, or of a mask."""
        return Periods(*[column[rows] for column in self])

    def off_cpu(self) -> Periods:
        """Those in which the thread did not run."""
        return self.take(self.kind != Edge.IN)


class Timeline:
    """Clocks of all threads, by slot: what each is behind (``kind``), since when, and how long it has run by then.

    ``found``: it was there before us. What it was found doing holds until its first edge, which knows better.
    """

    def __init__(self) -> None:
        self.clocks = Columns(kind=("i1", Edge.UNKNOWN), begun_ns=("i8", 0), since_ns=("i8", 0), cpu_ns=("i8", 0),
                              source=("i1", Source.RECORDED), cpu=("i4", -1), found=("b1", 0))
        self.edges = edges_of(*(np.zeros(0, np.int64),) * 3)  # of the last batch
        self.total_ran_ns = 0  # of all threads, in the runs that are over
        self._ran_ns = self.edges.slot  # (m,) running time of its thread up to each of them
        self._before = (self._ran_ns,) * 3  # each slot's kind, since_ns, and cpu_ns before that

    def grow(self, n: int) -> None:
        """Makes room for the slots below ``n``."""
        self.clocks.grow(n)

    def found(self, slot: int) -> None:
        """The thread at a slot was there before us."""
        self.clocks.found[slot] = True

    def find_again(self, slot: Array, running: Array) -> None:
        """Threads (n,) of which it is not known what they did last, but whether they are running now."""
        self.clocks.found[slot] = True
        self.clocks.kind[slot[running]] = Edge.IN

    def lose(self, slot: Array) -> None:
        """Nothing is known any more of what threads (n,) have done since their last edge."""
        self.clocks.kind[slot], self.clocks.found[slot] = Edge.UNKNOWN, False

    def behind(self, edges: Edges) -> tuple[Array, Array, Array]:
        """Of edges in order that are still to come: the Edge (m,) that each follows, since when, and whether it is the
        first of its slot."""
        first = changes(edges.slot)
        kind, since_ns = edges.edge.copy(), edges.time_ns.copy()
        kind[1:], since_ns[1:] = edges.edge[:-1], edges.time_ns[:-1]
        begins = edges.slot[first]
        kind[first], since_ns[first] = self.clocks.kind[begins], self.clocks.since_ns[begins]
        # The first edge of a found thread tells whether it ran before: who leaves a CPU did, who gets one had waited.
        found = first & self.clocks.found[edges.slot]
        if found.any():
            kind[found & (kind == Edge.IN) & (edges.edge == Edge.IN)] = Edge.OUT_PREEMPTED
            kind[found & (kind == Edge.OUT_BLOCKED) & is_out(edges.edge)] = Edge.IN
        return kind, since_ns, first

    def cpus_behind(self, edges: Edges, row: Array, first: Array) -> Array:
        """On which CPU (k,) threads were that ran up to the edges at ``row``; ``first`` (m,): see ``behind``."""
        cpu: Array = np.where(first[row], self.clocks.cpu[edges.slot[row]], edges.cpu[row - 1])
        return cpu

    def in_order(self, edges: Edges) -> Edges:
        """Edges, given in any order, as ``Edges`` are to be.

        BORN comes before anything else of its thread and ENDED behind it, whatever their stamps say. A stamp earlier
        than the one before it in its thread counts as equal to that. There is nothing behind an end.
        """
        rank = np.where(edges.edge == Edge.BORN, 0, np.where(edges.edge == Edge.ENDED, 2, 1))
        edges = edges.take(np.lexsort((edges.time_ns, rank, edges.slot)))
        over = self.clocks.kind[edges.slot] == Edge.ENDED
        over[1:] |= (edges.edge[:-1] == Edge.ENDED) & (edges.slot[1:] == edges.slot[:-1])
        slot, time_ns, *others = edges.take(~over) if over.any() else edges
        return Edges(slot, rising(slot, np.maximum(time_ns, self.clocks.since_ns[slot])), *others)

    def advance(self, edges: Edges) -> Periods:
        """Takes a batch's edges; returns the periods that they close. Afterwards ``ran_ns`` answers for any time since
        the batch before."""
        clocks = self.clocks
        kind, start_ns, first = self.behind(edges)
        begun_ns, source, cpu = start_ns.copy(), edges.source.copy(), edges.cpu.copy()
        source[1:], cpu[1:] = edges.source[:-1], edges.cpu[:-1]
        begins = edges.slot[first]
        begun_ns[first], source[first], cpu[first] = clocks.begun_ns[begins], clocks.source[begins], clocks.cpu[begins]
        running_ns = np.where(kind == Edge.IN, edges.time_ns - start_ns, 0)
        self.total_ran_ns += int(running_ns.sum())
        self._before = clocks.kind.copy(), clocks.since_ns.copy(), clocks.cpu_ns.copy()
        self._before[0][begins] = kind[first]
        self.edges, self._ran_ns = edges, running_sums(running_ns, first, clocks.cpu_ns[edges.slot])
        last = lasts(edges.slot)
        slot = edges.slot[last]
        clocks.kind[slot], clocks.source[slot], clocks.cpu[slot] = edges.edge[last], edges.source[last], edges.cpu[last]
        clocks.begun_ns[slot] = clocks.since_ns[slot] = edges.time_ns[last]
        clocks.cpu_ns[slot] = self._ran_ns[last]
        clocks.found[edges.slot[kind != Edge.UNKNOWN]] = False
        began = np.where(first, -1, np.arange(len(first)) - 1)
        periods = Periods(edges.slot, begun_ns, start_ns, edges.time_ns, kind, np.maximum(source, edges.source), cpu,
                          began)
        return periods.take(kind != Edge.UNKNOWN)

    def off_cpu(self, slot: Array, now_ns: Array | int) -> Array:
        """Which (n,) of the threads at slots are off CPU, with time before ``now_ns``, or (n,), that was not told."""
        kind = self.clocks.kind[slot]
        found: Array = (is_out(kind) | (kind == Edge.BORN)) & (self.clocks.since_ns[slot] < now_ns)
        return found

    def tell(self, slot: Array, now_ns: Array | int) -> Periods:
        """Periods off CPU of threads at slots (n,) as far as they have come by ``now_ns``, or (n,); they go on."""
        clocks, mine = self.clocks, self.off_cpu(slot, now_ns)
        slot, now_ns = slot[mine], np.broadcast_to(now_ns, len(slot))[mine]
        start_ns = clocks.since_ns[slot]
        clocks.since_ns[slot] = now_ns
        return Periods(slot, clocks.begun_ns[slot], start_ns, now_ns, clocks.kind[slot], clocks.source[slot],
                       clocks.cpu[slot], np.full(len(slot), -1))

    def waits(self, slot: Array, time_ns: Array) -> None:
        """Threads at slots (n,) that were blocked, and told up to now, wait for a CPU: they were woken at a time."""
        self.clocks.kind[slot], self.clocks.begun_ns[slot] = Edge.OUT_PREEMPTED, time_ns

    def ran_ns(self, slot: Array, time_ns: Array) -> Array:
        """Exact running time (n,) of each thread up to each time, not before the last batch's start."""
        edges = self.edges
        if not len(edges.slot):
            kind, since_ns, cpu_ns = self.clocks.kind[slot], self.clocks.since_ns[slot], self.clocks.cpu_ns[slot]
        else:
            keys, wanted = packed((edges.slot, edges.time_ns), (slot, time_ns))
            at = keys.searchsorted(wanted, side="right") - 1
            hit = (at >= 0) & (edges.slot[at] == slot)
            kind, since_ns, cpu_ns = [np.where(hit, now[at], before[slot]) for now, before in zip(
                (edges.edge, edges.time_ns, self._ran_ns), self._before, strict=True)]
        ran: Array = cpu_ns + np.where(kind == Edge.IN, np.maximum(time_ns - since_ns, 0), 0)
        return ran

    def forget(self, slots: Array) -> None:
        """The threads at slots are over, and the slots are free."""
        self.clocks.reset(slots)


def is_out(edge: Array) -> Array:
    """Which (n,) edges are those of threads that leave their CPU."""
    out: Array = (edge == Edge.OUT_BLOCKED) | (edge == Edge.OUT_PREEMPTED)
    return out


def rising(slot: Array, time_ns: Array) -> Array:
    """``time_ns`` (n,), where each slot's (all its rows together, slots ascending) never falls."""
    if not ((time_ns[1:] < time_ns[:-1]) & (slot[1:] == slot[:-1])).any():
        return time_ns
    keys = packed((slot, time_ns))[0]
    highest = np.maximum.accumulate(keys)
    found: Array = time_ns[np.maximum.accumulate(np.where(keys == highest, np.arange(len(keys)), 0))]
    return found


def running_sums(values: Array, first: Array, start: Array) -> Array:
    """Sums of ``values`` (n,) up to each element within its group; groups begin where ``first``, at ``start``."""
    if not len(values):
        return values
    total = values.cumsum()
    begins = indices(first)
    offset = total[begins] - values[begins] - start[begins]
    sums: Array = total - offset[first.cumsum() - 1]
    return sums
