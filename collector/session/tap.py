"""All time of all threads as exact stretches, for whoever wants more than ticks: aggregations, traces, judges.

A tap is given to the pipeline and called with every batch. A thread's stretches follow each other without a gap from
its birth, or from when it was found, to its end, whether recording pauses or not:

    on a CPU     told when the thread has left it
    off CPU      told when that is over, and before as far as it has come whenever the pipeline flushes waiting
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from collector.arrays import numbered
from collector.events import Array, Edge, Source
from collector.session.sources import EdgeSources
from collector.session.timekeeping import Timekeeping
from collector.timing.microstate import Periods
from collector.timing.waiting import Spans

ON_CPU = -1  # clock samples tell which of the three states it was, and where


@dataclass(slots=True)
class Stretches:
    """n stretches of threads, each in one state."""

    slot: Array  # i8 (n,) of the thread: a number that is never used again, and another one after an exec
    tid: Array  # i8 (n,)
    pid: Array  # i8 (n,)
    image: Array  # i8 (n,) number of the program that it ran
    start_ns: Array  # i8 (n,)
    end_ns: Array  # i8 (n,)
    state: Array  # i8 (n,) Microstate, or ON_CPU
    uid: Array  # u8 (n,) of the stack in the image's experiment; 0: not known, or on a CPU
    cpu: Array  # i4 (n,) that it had, or had left; on a CPU -1: not known
    source: Array  # i1 (n,) Source: the worse one of its two ends'
    muted: bool  # recording pauses


Take: TypeAlias = Callable[[Stretches], None]


class Tap:
    """Makes stretches of periods and spans, for ``take``."""

    def __init__(self, time: Timekeeping, take: Take) -> None:
        self._take = take
        self._threads = time.model.threads
        self._sources = time.sources = EdgeSources()

    def fed(self, periods: Periods, spans: Spans | None, woken_ns: Array, muted: bool) -> None:
        """The periods that the last batch has closed, and what those off CPU were spent with; ``woken_ns``: the times
        at which records tell that threads were woken, in any order."""
        source, cpu = self._sources.of(periods)
        rows = np.flatnonzero(periods.kind == Edge.IN)
        self._tell(periods.slot[rows], periods.start_ns[rows], periods.end_ns[rows], np.full(len(rows), ON_CPU),
                   np.zeros(len(rows), dtype=np.uint64), cpu[rows], source[rows], muted)
        if spans is not None:
            n = len(periods.slot) - len(rows)  # one span for each, and further ones for what was behind the wake-ups
            split = np.where(np.isin(spans.start_ns[n:], woken_ns), Source.RECORDED, Source.ADJUSTED)
            whole = source[periods.kind != Edge.IN]
            of = _rows_of(spans, n)
            whole[of] = np.maximum(whole[of], split)
            self._off_cpu(spans, np.concatenate([whole, whole[of]]), muted)

    def flushed(self, spans: Spans, muted: bool) -> None:
        """What threads off CPU have spent so far."""
        self._off_cpu(spans, self._sources.now(spans.slot), muted)

    def _off_cpu(self, spans: Spans, source: Array, muted: bool) -> None:
        self._tell(spans.slot, spans.start_ns, spans.start_ns + spans.length_ns, spans.state, spans.uid, spans.cpu,
                   source, muted)

    def _tell(self, slot: Array, start_ns: Array, end_ns: Array, state: Array, uid: Array, cpu: Array, source: Array,
              muted: bool) -> None:
        """Those that have a length."""
        rows = np.flatnonzero(end_ns > start_ns)
        if not len(rows):
            return
        slots, inverse = numbered(slot[rows])
        threads = [self._threads[number] for number in slots.tolist()]
        tid, pid, image = (np.array(column, dtype=np.int64)[inverse] for column in (
            [thread.tid for thread in threads], [thread.process.pid for thread in threads],
            [thread.image.number for thread in threads]))
        self._take(Stretches(slot[rows], tid, pid, image, start_ns[rows], end_ns[rows], state[rows].astype(np.int64),
                             uid[rows], cpu[rows].astype(np.int32), source[rows].astype(np.int8), muted))


def _rows_of(spans: Spans, n: int) -> Array:
    """For each span from the n-th on, which of the first n it is the rest of."""
    if len(spans.slot) == n:
        return np.zeros(0, dtype=np.int64)
    order = np.lexsort((spans.end_ns[:n], spans.slot[:n]))
    slot, end_ns = spans.slot[order], spans.end_ns[order]
    origin = int(end_ns.min())
    shift = (int(end_ns.max()) - origin + 1).bit_length()
    at = np.searchsorted((slot << shift) + end_ns - origin, (spans.slot[n:] << shift) + spans.end_ns[n:] - origin)
    found: Array = order[at]
    return found
