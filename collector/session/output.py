"""Packets: what becomes of ticks in the experiments."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection
from typing import NamedTuple

import numpy as np

from collector.arrays import distinct, indices, summed
from collector.events import Array, ClockSamples, Edge, Mode
from collector.session.experiments import Experiments, Recorded
from collector.session.placing import Placed
from collector.session.stacks import Stacks, no_stack
from collector.session.tally import Tally
from collector.session.timekeeping import Timekeeping
from collector.timing.states import Microstate, Spans
from collector.timing.ticks import N_STATES

_STATE_OF_MODE = np.zeros(3, dtype=np.int32)
_STATE_OF_MODE[[Mode.USER, Mode.SYSTEM_CALL, Mode.TRAP]] = Microstate.USER, Microstate.SYSTEM, Microstate.TRAP


class _Earned(NamedTuple):
    """Spans (s,) of threads of one image, with their tids and the ticks that they have earned."""

    recorded: Recorded
    spans: Spans
    tid: Array  # i8 (s,)
    ticks: Array  # i8 (s,)

    def take(self, rows: Array) -> _Earned:
        """Those of a mask (s,)."""
        return _Earned(self.recorded, self.spans.take(rows), self.tid[rows], self.ticks[rows])


class Output:
    """Writes packets, unless it is ``muted``: recording pauses, time goes by and nothing is written.

    Who waits for its first turn on a CPU, or has not ended it, has no stack yet to give its time to: that is told when
    it has one, or with the batch behind its turn.
    """

    def __init__(self, time: Timekeeping, experiments: Experiments, stacks: Stacks, tally: Tally) -> None:
        self.muted = False
        self._unsampled: dict[Recorded, list[tuple[int, ...]]] = defaultdict(list)
        self._stackless: list[_Earned] = []
        self._of = time.model.of
        self._clocks = time.timeline.clocks
        self._experiments = experiments
        self._stacks = stacks
        self._tally = tally

    def clock(self, clock: ClockSamples, placed: Placed, ticks: Array) -> None:
        """Clock samples (n,) that have earned ``ticks`` (n,)."""
        if self.muted:
            return
        state = _STATE_OF_MODE[clock.mode]
        self._tally.n_samples += len(ticks)
        for number in distinct(placed.image).tolist():
            recorded = self._experiments.by_image.get(number)
            rows = indices((placed.image == number) & (placed.uid != 0))
            if recorded is None or not len(rows):
                continue
            columns = [column[rows] for column in (clock.tid, clock.cpu, clock.time_ns, placed.uid, state, ticks)]
            tid, cpu, time_ns, uid, its, earned = columns
            recorded.recent.note(tid == clock.pid[rows], time_ns, cpu, uid, its)
            recorded.last = int(tid[-1]), int(cpu[-1]), int(uid[-1]), int(its[-1])
            if recorded.recorder is not None:
                earning = earned > 0
                told = [column[earning] for column in columns]
                recorded.recorder.clock(*told)
                self._count(recorded, *told[-2:])
        self._stacks.sampled(placed, clock.time_ns, clock.cpu, state)

    def spans(self, spans: Spans, ticks_of: Callable[[Spans], tuple[Spans, Array]]) -> None:
        """Time spent waiting; ``ticks_of`` are the spans that earn ticks, and those (t,). Overview samples have that of
        pauses, too, as they have time on CPUs."""
        if not len(spans.slot):
            return
        due, ticks = (spans.take(slice(0)), spans.slot[:0]) if self.muted else ticks_of(spans)
        image, image_due = self._of.image[spans.slot], self._of.image[due.slot]
        for number in distinct(image).tolist():
            recorded = self._experiments.by_image.get(number)
            if recorded is None or recorded.recorder is None:
                continue
            mine = image == number
            recorded.waited_ns += summed(spans.state[mine], spans.length_ns[mine], N_STATES)
            rows = indices(image_due == number)
            if len(rows):
                self._tell(_Earned(recorded, due.take(rows), self._of.tid[due.slot[rows]], ticks[rows]), may_wait=True)

    def late(self) -> None:
        """Once in each batch, before its spans: the time of threads that had no stack yet, but for those that have not
        been off the CPU since."""
        def has_not_left(earned: _Earned) -> Array:
            kind, cpu_ns = (column[earned.spans.slot] for column in (self._clocks.kind, self._clocks.cpu_ns))
            found: Array = (kind == Edge.BORN) | ((kind == Edge.IN) & (cpu_ns == 0))
            return found

        self._tell_stackless(has_not_left)

    def forget(self, slots: Array) -> None:
        """The threads at slots are over: what waits for a stack of theirs is told now."""
        self._tell_stackless(lambda earned: ~np.isin(earned.spans.slot, slots))

    def close(self, ended: Collection[Recorded]) -> None:
        """Nothing more will be said of these images, once this has been."""
        self._tell_stackless(lambda earned: np.full(len(earned.tid), earned.recorded not in ended))

    def _tell_stackless(self, may_wait: Callable[[_Earned], Array]) -> None:
        """What no stack was known for, but for those spans (s,) that may wait longer."""
        stackless, self._stackless = self._stackless, []
        for earned in stackless:
            waits = may_wait(earned)
            if waits.any():
                self._stackless.append(earned.take(waits))
            self._tell(earned.take(~waits))

    def _tell(self, earned: _Earned, *, may_wait: bool = False) -> None:
        """Tells what has a stack; the rest, too, unless that ``may_wait`` for the next batch."""
        recorded, recorder = earned.recorded, earned.recorded.recorder
        if recorder is None or not len(earned.tid):
            return
        spans, uid = earned.spans, self._stacks.known_or_last(earned.spans)
        stackless = uid == 0
        if stackless.any():
            if may_wait:
                self._stackless.append(earned.take(stackless))
                self._tell(earned.take(~stackless))
                return
            uid = np.where(stackless, no_stack(recorder), uid)
        self._tally.n_borrowed_stacks += int(np.count_nonzero(spans.uid == 0))
        recorder.clock(earned.tid, spans.cpu, spans.end_ns, uid, spans.state.astype(np.int32), earned.ticks,
                       exact_ns=spans.length_ns)
        self._count(recorded, spans.state, earned.ticks)

    def settled(self, recorded: Recorded, stack: tuple[int, int, int, int], time_ns: int, ticks: int) -> None:
        """Ticks for time behind a thread's last sample; ``stack``: tid, CPU, uid, state."""
        if recorded.recorder is not None:
            self.unsampled(recorded, stack, time_ns, ticks)
            self._tally.n_settled_ticks += ticks

    def unsampled(self, recorded: Recorded, stack: tuple[int, int, int, int], time_ns: int, ticks: int) -> None:
        """Ticks for time that no sample stood for; told with the next ``flush``."""
        if recorded.recorder is None or not ticks:
            return
        self._unsampled[recorded].append((*stack, time_ns, ticks))

    def flush(self) -> None:
        """Tells what no sample stood for."""
        for recorded, rows in self._unsampled.items():
            if recorded.recorder is not None:
                tid, cpu, uid, state, time_ns, ticks = map(np.array, zip(*rows, strict=True))
                recorded.recorder.clock(tid, cpu, time_ns, uid, state, ticks)
                self._count(recorded, state, ticks)
        self._unsampled.clear()

    def _count(self, recorded: Recorded, state: Array, ticks: Array) -> None:
        recorded.state_ticks += summed(state, ticks, N_STATES)
        self._tally.n_packets += len(ticks)
