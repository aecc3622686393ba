"""Where the edges of periods come from: of a batch, beside those of the threads' clocks; and each thread's last one."""

from __future__ import annotations

import numpy as np

from collector.events import Array, Source
from collector.timing.microstate import Edges, Periods

NO_CPU = -1


class EdgeSources:
    """Source and CPU of edges."""

    def __init__(self) -> None:
        none = np.zeros(0, dtype=np.int64)
        self._slot: Array = none  # of the batch's edges, in their order
        self._source: Array = none.astype(np.int8)
        self._cpu: Array = none.astype(np.int32)
        self._last_source: Array = np.full(64, Source.RECORDED, dtype=np.int8)  # by slot
        self._last_cpu: Array = np.full(64, NO_CPU, dtype=np.int32)
        self._source_before, self._cpu_before = self._last_source, self._last_cpu

    def note(self, edges: Edges, source: Array, cpu: Array, n_slots: int) -> None:
        """The edges of a batch by slot and time, with the source and CPU (m,) of each."""
        self._grow(n_slots)
        self._slot, self._source, self._cpu = edges.slot, source, cpu
        self._source_before, self._cpu_before = self._last_source.copy(), self._last_cpu.copy()
        last, known = edges.last.astype(bool), cpu != NO_CPU
        self._last_source[edges.slot[last]] = source[last]
        self._last_cpu[edges.slot[known]] = cpu[known]

    def of(self, periods: Periods) -> tuple[Array, Array]:
        """The worse source of the two ends of periods (p,) that the batch's edges have closed, and the CPU."""
        carried = periods.began < 0
        closed = np.where(carried, np.searchsorted(self._slot, periods.slot), periods.began + 1)
        began = np.where(carried, closed, periods.began)  # any edge will do for the carried ones
        source = np.where(carried, self._source_before[periods.slot], self._source[began])
        cpu = np.where(carried, self._cpu_before[periods.slot], self._cpu[began])
        cpu = np.where(self._cpu[closed] != NO_CPU, self._cpu[closed], cpu)
        return np.maximum(source, self._source[closed]), cpu

    def now(self, slot: Array) -> Array:
        """The source of the last edge of each slot (n,)."""
        self._grow(int(slot.max(initial=-1)) + 1)
        found: Array = self._last_source[slot]
        return found

    def _grow(self, n: int) -> None:
        more = max(n, 2 * len(self._last_cpu)) - len(self._last_cpu)
        if n > len(self._last_cpu):
            self._last_source = np.concatenate([self._last_source, np.full(more, Source.RECORDED, dtype=np.int8)])
            self._last_cpu = np.concatenate([self._last_cpu, np.full(more, NO_CPU, dtype=np.int32)])
