"""All time of all threads as exact stretches, for whoever wants more than ticks: aggregations, traces, judges.

A tap is given to the pipeline and called with every batch. A thread's stretches follow each other without a gap from
its birth, or from when it was found, to its end, in the order of time, whether recording pauses or not:

    on a CPU     told when the thread has left it
    off CPU      told when that is over, and before as far as it has come whenever the pipeline flushes waiting
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from collector.events import Array, Edge
from collector.session.timekeeping import Timekeeping
from collector.timing.states import Spans
from collector.timing.timeline import Periods

ON_CPU = -1  # clock samples tell which of the three states it was, and where


@dataclass(slots=True, eq=False, repr=False)
class Stretches:
    """n stretches of threads, each in one state."""

    slot: Array  # i8 (n,) of the thread: another one after an exec; used again when the thread is over
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
        self._model = time.model

    def fed(self, periods: Periods, spans: Spans, muted: bool) -> None:
        """The periods that the last batch has closed, and what those off CPU were spent with."""
        runs = periods.take(periods.kind == Edge.IN)
        n = len(runs.slot)
        columns = [np.concatenate(pair) for pair in zip(
            (runs.slot, runs.start_ns, runs.end_ns, np.full(n, ON_CPU), np.zeros(n, dtype=np.uint64), runs.cpu,
             runs.source), _columns(spans), strict=True)]
        order = np.lexsort((columns[1], columns[0]))
        self._tell(*(column[order] for column in columns), muted=muted)

    def flushed(self, spans: Spans, muted: bool) -> None:
        """What threads off CPU have spent."""
        self._tell(*_columns(spans), muted=muted)

    def _tell(self, slot: Array, start_ns: Array, end_ns: Array, state: Array, uid: Array, cpu: Array, source: Array,
              *, muted: bool) -> None:
        """Those that have a length."""
        rows = np.flatnonzero(end_ns > start_ns)
        if not len(rows):
            return
        slot, of = slot[rows], self._model.of
        self._take(Stretches(slot, of.tid[slot], of.pid[slot], of.image[slot], start_ns[rows], end_ns[rows],
                             state[rows].astype(np.int64), uid[rows], cpu[rows].astype(np.int32),
                             source[rows].astype(np.int8), muted))


def _columns(spans: Spans) -> tuple[Array, ...]:
    """Slot, start, end, state, uid, CPU and source."""
    return (spans.slot, spans.end_ns - spans.length_ns, spans.end_ns, spans.state, spans.uid, spans.cpu, spans.source)
