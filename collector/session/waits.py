"""Time off CPU: in which state and with which stack, when it is over and while it lasts."""

from __future__ import annotations

from itertools import chain

import numpy as np

from collector.arrays import among, indices
from collector.events import Array, Batch, Edge, Faults
from collector.session.experiments import Experiments
from collector.session.stacks import Stacks
from collector.session.timekeeping import Timekeeping
from collector.timing.states import NO_FAULTS, NO_SPANS, Departures, PageFaults, Spans, States
from collector.timing.timeline import Periods


class Waits:
    """Spans of waiting of all threads."""

    def __init__(self, time: Timekeeping, experiments: Experiments, stacks: Stacks) -> None:
        self.states = States()
        self._time = time
        self._timeline = time.timeline
        self._model = time.model
        self._experiments = experiments
        self._stacks = stacks

    def over(self, periods: Periods, departures: Departures, batch: Batch) -> Spans:
        """What the periods off CPU that a batch closed were spent with."""
        faults = self._faults(batch.faults)
        self.states.grow(self._time.n_slots)
        spans = self.states.spans(periods, self._timeline.edges, departures, faults, self._time.woken,
                                  self._time.delays)
        for old, new in self._time.went_on:
            self.states.goes_on(old, new)
        return spans

    def so_far(self, now_ns: int, *, with_newborn: bool, may_wait: bool, by_accounts: bool) -> Spans:
        """What threads that are off CPU have spent so far, up to ``now_ns``, also those that have yet to run or without
        them; it is not told again when they go on. ``may_wait``: of those of which nothing tells what they wait for,
        and whom there was no room to ask, it is told when they have been asked, or go on. ``by_accounts``: of those
        that have run, as far as their accounts tell."""
        self.states.grow(self._time.n_slots)
        slots = np.array([slot for process in self._model.processes.values()
                          if process.image.number in self._experiments.recorders
                          for slot in process.threads.values()], dtype=np.int64)
        is_born = self._timeline.clocks.kind[slots] == Edge.BORN
        upto_ns = np.full(len(slots), now_ns)
        if by_accounts:
            upto_ns = np.where(is_born, upto_ns, np.minimum(upto_ns, self._time.ledger.at_ns(slots)))
        mine = self._timeline.off_cpu(slots, upto_ns)
        if not with_newborn:
            mine &= ~is_born
        slots, upto_ns = slots[mine], upto_ns[mine]
        if not len(slots):
            return NO_SPANS
        blocked = slots[self._timeline.clocks.kind[slots] == Edge.OUT_BLOCKED]
        if len(blocked):
            untold, n = self.states.untold(blocked), self._stacks.n_to_ask
            for departures in chain(self._stacks.asked(untold, now_ns), self._stacks.deeper(blocked, now_ns)):
                self.states.tell(departures)
            self.states.asked(untold[:n])
            unasked = untold[n:]
            if may_wait and len(unasked):
                told = ~among(slots, self.states.unknown(unasked))
                slots, upto_ns = slots[told], upto_ns[told]
        spans, woken = self.states.so_far(self._timeline.tell(slots, upto_ns))
        rows = indices(woken)
        self._timeline.waits(spans.slot[rows], spans.end_ns[rows])
        return spans

    def forget(self, slots: Array) -> None:
        """The threads at slots are over, and the slots are free."""
        self.states.grow(self._time.n_slots)
        self.states.forget(slots)

    def _faults(self, faults: Faults | None) -> PageFaults:
        if faults is None:
            return NO_FAULTS
        slot = self._model.slots(faults.tid, faults.pid, faults.time_ns)
        return PageFaults(slot, faults.time_ns, faults.address, faults.ip, faults.in_kernel)
