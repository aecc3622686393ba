"""Packets: what becomes of ticks in the experiments."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import numpy as np

from collector.arrays import distinct
from collector.events import Array, ClockSamples, Mode
from collector.processes.model import Model
from collector.session.experiments import Experiments, Recorded
from collector.session.placing import Placed
from collector.session.stacks import Stacks
from collector.session.tally import Tally
from collector.timing.states import Microstate, Spans
from collector.timing.ticks import N_STATES

_STATE_OF_MODE = np.zeros(3, dtype=np.int32)
_STATE_OF_MODE[[Mode.USER, Mode.SYSTEM_CALL, Mode.TRAP]] = Microstate.USER, Microstate.SYSTEM, Microstate.TRAP


class Output:
    """Writes packets, unless it is ``muted``: recording pauses, time goes by and nothing is written."""

    def __init__(self, model: Model, experiments: Experiments, stacks: Stacks, tally: Tally) -> None:
        self.muted = False
        self._unsampled: dict[Recorded, list[tuple[int, ...]]] = defaultdict(list)
        self._of = model.of
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
            told = (placed.image == number) & (placed.uid != 0)
            rows = np.flatnonzero(told & (ticks > 0))
            if recorded is not None and recorded.recorder is not None and len(rows):
                recorded.recorder.clock(clock.tid[rows], clock.cpu[rows], clock.time_ns[rows], placed.uid[rows],
                                        state[rows], ticks[rows])
                self._count(recorded, state[rows], ticks[rows])
            rows = np.flatnonzero(told)
            if recorded is not None and len(rows):
                recorded.note_recent(clock.time_ns[rows], clock.cpu[rows], placed.uid[rows], state[rows])
                end = rows[-1]
                recorded.last = (int(clock.tid[end]), int(clock.cpu[end]), int(placed.uid[end]), int(state[end]))
        self._stacks.sampled(placed, clock.time_ns, clock.cpu, state)

    def spans(self, spans: Spans, ticks_of: Callable[[Spans], tuple[Spans, Array]]) -> None:
        """Time spent waiting; ``ticks_of`` are the spans that earn ticks, and those (t,)."""
        if not len(spans.slot) or self.muted:
            return
        due, ticks = ticks_of(spans)
        image, image_due, tid = self._of.image[spans.slot], self._of.image[due.slot], self._of.tid[due.slot]
        for number in distinct(image).tolist():
            recorded = self._experiments.by_image.get(number)
            if recorded is None or recorded.recorder is None:
                continue
            mine = image == number
            recorded.waited_ns += np.bincount(spans.state[mine], spans.length_ns[mine], N_STATES).astype(np.int64)
            rows = np.flatnonzero(image_due == number)
            if len(rows):
                earned = due.take(rows)
                uid = self._stacks.known_or_last(recorded, recorded.recorder, earned)
                recorded.recorder.clock(tid[rows], earned.cpu, earned.end_ns, uid, earned.state.astype(np.int32),
                                        ticks[rows], exact_ns=earned.length_ns)
                self._count(recorded, earned.state, ticks[rows])

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
        recorded.state_ticks += np.bincount(state, ticks, N_STATES).astype(np.int64)
        self._tally.n_packets += len(ticks)
