"""Time off CPU: in which state and with which stack, when it is over and while it lasts."""

from __future__ import annotations

import numpy as np

from collector.events import Array, Batch, Edge, Faults, Wakings
from collector.session.experiments import Experiments
from collector.session.stacks import Stacks
from collector.session.timekeeping import Timekeeping
from collector.timing.microstate import Periods
from collector.timing.timeline import is_out
from collector.timing.waiting import Departures, PageFaults, Spans, Waiting


class Waits:
    """Spans of waiting of all threads, and the ticks that they earn."""

    def __init__(self, interval_ns: int, time: Timekeeping, experiments: Experiments, stacks: Stacks) -> None:
        self._time = time
        self._clocks = time.clocks
        self._model = time.model
        self._experiments = experiments
        self._stacks = stacks
        self._waiting = Waiting(interval_ns)
        self.woken_ns: Array = np.zeros(0, dtype=np.int64)  # as records tell, in periods of the last batch

    @property
    def n_guessed(self) -> int:
        """Page faults of which nothing tells whether text or data was missing."""
        return self._waiting.n_guessed

    def over(self, periods: Periods, departures: Departures, batch: Batch) -> Spans | None:
        """What the periods off CPU that a batch closed were spent with."""
        if not len(periods.slot) and not len(self._clocks.edges.slot) and batch.wakings is None:
            return None
        faults = self._faults(batch.faults)
        self.woken_ns = woken_ns = self._woken_ns(periods, batch.wakings)
        run_delays = self._time.run_delays(periods, woken_ns == 0)
        return self._waiting.close(periods, self._clocks.edges, departures, faults, woken_ns, run_delays)

    def so_far(self, now_ns: int) -> Spans:
        """What threads that are off CPU have spent so far, up to ``now_ns``; it is not told again when they go on."""
        slots = np.array([slot for process in self._model.processes.values()
                          if process.image.number in self._experiments.recorders
                          for slot in process.threads.values()], dtype=np.int64)
        kind, since = self._clocks.kind[slots], self._clocks.since_ns[slots]
        off = (is_out(kind) | (kind == Edge.BORN)) & (since < now_ns)
        slots = slots[off]
        blocked = slots[kind[off] == Edge.OUT_BLOCKED]
        for departures in self._stacks.asked(self._waiting.untold(blocked), now_ns):
            self._waiting.tell(departures)
        for departures in self._stacks.deeper(blocked, now_ns):
            self._waiting.tell(departures)
        spans, ready = self._waiting.still_waiting(slots, kind[off], since[off], now_ns)
        self._clocks.since_ns[slots] = now_ns
        self._clocks.kind[slots[ready]] = Edge.OUT_PREEMPTED  # the rest is wait CPU, whatever it was before
        return spans

    def ticks(self, spans: Spans) -> tuple[Spans, Array]:
        """Spans that earn ticks, and how many (t,); those of length 0 are paid for time in earlier batches."""
        self._waiting.grow(self._clocks.n_slots)
        return self._waiting.ticks(spans)

    def owed(self, slot: int) -> tuple[Array, Array]:
        """What a thread that has ended is still owed by state (10,), and for which stack most of it (10,)."""
        return self._waiting.take_account(slot)

    def _faults(self, faults: Faults | None) -> PageFaults:
        if faults is None:
            none = np.zeros(0, dtype=np.int64)
            return PageFaults(none, none, none.astype(np.uint64), none.astype(np.uint64), none.astype(bool))
        slot = self._model.slots(faults.tid, faults.pid, faults.time_ns)
        self._waiting.grow(self._clocks.n_slots)
        return PageFaults(slot, faults.time_ns, faults.address, faults.ip, faults.in_kernel)

    def _woken_ns(self, periods: Periods, wakings: Wakings | None) -> Array:
        """When the thread was woken in each period, 0 where unknown."""
        self._waiting.grow(self._clocks.n_slots)
        if wakings is None:
            none = np.zeros(0, dtype=np.int64)
            return self._waiting.woken_ns(periods, none, none)
        ours = self._model.known(wakings.tid)
        tid, time_ns = wakings.tid[ours], wakings.time_ns[ours]
        return self._waiting.woken_ns(periods, self._model.slots(tid, tid, time_ns), time_ns)
