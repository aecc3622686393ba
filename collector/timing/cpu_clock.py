"""Ticks of CPUs: of a clock that strikes on each CPU after every interval, whatever runs there, and idle CPUs too. Pure.

    CPU 0   |----1----|----1----|------------3------------|--
    CPU 1     |----1----|--  lost  ...  --|----1----|
          begin                                              end

The time between two samples of a CPU is the later one's, in whole intervals; what is left over is carried on. Where the
clock struck late, as behind a stretch with interrupts off, that is who kept it. So the ticks of all CPUs are the CPUs
times the seconds. But time for which samples were lost is nobody's: it is counted in ``untold_ns``.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from collector.arrays import changes
from collector.events import Array

_LATE = 1.5  # intervals: below, nothing is missing
_TOLD_LATER_NS = 1_000_000  # the kernel writes of a loss just behind the sample that found room again
_MOST_BEHIND = 2  # intervals behind a CPU's last sample; if it is more, the CPU was taken away, or samples were


class CpuClock:
    """The clocks of ``cpus``; ``untold_ns``: the time of CPUs that no tick stands for."""

    def __init__(self, interval_ns: int, cpus: Iterable[int], start_ns: int) -> None:
        self.untold_ns = 0
        self._interval_ns = interval_ns
        self._cpus = list(cpus)
        self.begin(start_ns)

    def begin(self, time_ns: int) -> None:
        """From here on, whatever was before."""
        self._since_ns = dict.fromkeys(self._cpus, time_ns)
        self._owed_ns = dict.fromkeys(self._cpus, self._interval_ns // 2)  # so that ticks are rounded, not cut

    def ticks(self, cpu: Array, time_ns: Array, losses_ns: Iterable[int] = ()) -> Array:
        """The ticks (n,) of samples (n,) in time order, and after those of the calls before; ``losses_ns``: when the
        kernel told of samples that were lost."""
        order = np.argsort(cpu, kind="stable")
        found = np.zeros(len(cpu), dtype=np.int64)
        for rows in np.split(order, np.flatnonzero(changes(cpu[order]))[1:]) if len(order) else ():
            number = int(cpu[rows[0]])
            edges = np.concatenate([[self._since_ns.get(number, int(time_ns[rows[0]]))], time_ns[rows]])
            elapsed_ns = self._without_losses(edges, losses_ns)
            told_ns = self._owed_ns.get(number, 0) + np.cumsum(elapsed_ns)
            found[rows] = np.diff(told_ns // self._interval_ns, prepend=0)
            self._since_ns[number], self._owed_ns[number] = int(edges[-1]), int(told_ns[-1] % self._interval_ns)
        return found

    def _without_losses(self, edges: Array, losses_ns: Iterable[int]) -> Array:
        """The times (n,) between edges (n + 1,): an interval where there was more, of which samples were lost."""
        elapsed_ns = np.maximum(np.diff(edges), 0)
        for loss_ns in losses_ns:
            at = min(int(np.searchsorted(edges[1:], loss_ns - _TOLD_LATER_NS)), len(elapsed_ns) - 1)
            if elapsed_ns[at] > _LATE * self._interval_ns and edges[at] < loss_ns:
                self.untold_ns += int(elapsed_ns[at]) - self._interval_ns
                elapsed_ns[at] = self._interval_ns
        return elapsed_ns

    def end(self, time_ns: int) -> dict[int, int]:
        """The ticks of each CPU from its last sample up to a time, of whoever that sample met."""
        found = {}
        for cpu, since_ns in self._since_ns.items():
            elapsed_ns = max(time_ns - since_ns, 0)
            if elapsed_ns > _MOST_BEHIND * self._interval_ns:
                self.untold_ns += elapsed_ns - self._interval_ns
                elapsed_ns = self._interval_ns
            found[cpu] = (self._owed_ns[cpu] + elapsed_ns) // self._interval_ns
        return found
