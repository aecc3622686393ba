"""All time of all threads as exact stretches, for whoever wants more than ticks: aggregations, traces, judges.

A tap is given to the pipeline and called with every batch. A thread's stretches follow each other without a gap from
its birth, or from when it was found, to its end, in the order of time, whether recording pauses or not:

    on a CPU     told when the thread has left it
    off CPU      told when that is over, and before as far as it has come whenever the pipeline flushes waiting
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from collector.arrays import indices
from collector.events import Array, Batch, Edge
from collector.session.experiments import Experiments, Recorded
from collector.session.placing import Placed
from collector.session.timekeeping import Timekeeping
from collector.session.world import World
from collector.timing.states import Spans
from collector.timing.timeline import Periods

if TYPE_CHECKING:
    from collector.session.aggregating import Aggregating

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


class Taps:
    """Makes stretches of periods and spans, for ``take`` and for aggregations, if there are any."""

    def __init__(self, time: Timekeeping, take: Take | None) -> None:
        self._takes = [take] if take is not None else []
        self._time = time
        self._model = time.model
        self._aggregating: Aggregating | None = None

    def aggregate(self, expressions: Sequence[str], experiments: Experiments, world: World, records_all: bool) -> None:
        """From the first batch on; see Aggregating."""
        from collector.session.aggregating import Aggregating  # which many recordings do without

        self._aggregating = Aggregating(expressions, self._model, experiments, world, records_all)
        self._takes.append(self._aggregating.take)

    @property
    def listens(self) -> bool:
        """Whether anybody asks for stretches and their stacks."""
        return bool(self._takes)

    @property
    def n_dropped(self) -> int:
        """Values that are in no aggregation."""
        return 0 if self._aggregating is None else self._aggregating.n_dropped

    def saw(self, batch: Batch, clock: Placed | None, leaving: Placed | None) -> None:
        """What is coming: a batch, and the stacks of its clock samples and departures."""
        if self._aggregating is not None:
            self._aggregating.saw(batch, clock, leaving)

    def fed(self, periods: Periods, spans: Spans, muted: bool) -> None:
        """The periods that the last batch has closed, and what those off CPU were spent with."""
        if self._takes:
            self._tell_all(periods, spans, muted)
        if self._aggregating is not None:
            self._aggregating.ended(self._time.ending)

    def flushed(self, spans: Spans, muted: bool) -> None:
        """What threads off CPU have spent."""
        if self._takes:
            self._tell(*_columns(spans), muted=muted)

    def looks(self, now_ns: int, whether: bool) -> None:
        """Recording resumes; or pauses, or ends."""
        if self._aggregating is not None:
            self._aggregating.looks(now_ns, whether)

    def sync(self, now_ns: int) -> None:
        """What was aggregated comes to disk, if that is due."""
        if self._aggregating is not None:
            self._aggregating.sync(now_ns)

    def close(self, ended: Iterable[Recorded]) -> None:
        """Of experiments that are over, it does so at once."""
        if self._aggregating is not None:
            self._aggregating.close(ended)

    def _tell_all(self, periods: Periods, spans: Spans, muted: bool) -> None:
        runs = periods.take(periods.kind == Edge.IN)
        n = len(runs.slot)
        columns = [np.concatenate(pair) for pair in zip(
            (runs.slot, runs.start_ns, runs.end_ns, np.full(n, ON_CPU), np.zeros(n, dtype=np.uint64), runs.cpu,
             runs.source), _columns(spans), strict=True)]
        order = np.lexsort((columns[1], columns[0]))
        self._tell(*(column[order] for column in columns), muted=muted)

    def _tell(self, slot: Array, start_ns: Array, end_ns: Array, state: Array, uid: Array, cpu: Array, source: Array,
              *, muted: bool) -> None:
        """Those that have a length."""
        rows = indices(end_ns > start_ns)
        if not len(rows):
            return
        slot, of = slot[rows], self._model.of
        stretches = Stretches(slot, of.tid[slot], of.pid[slot], of.image[slot], start_ns[rows], end_ns[rows],
                              state[rows].astype(np.int64), uid[rows], cpu[rows].astype(np.int32),
                              source[rows].astype(np.int8), muted)
        for take in self._takes:
            take(stretches)


def _columns(spans: Spans) -> tuple[Array, ...]:
    """Slot, start, end, state, uid, CPU and source."""
    return (spans.slot, spans.end_ns - spans.length_ns, spans.end_ns, spans.state, spans.uid, spans.cpu, spans.source)
