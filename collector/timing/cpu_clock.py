"""Ticks of CPUs: of a clock that strikes on each CPU after every interval, whatever runs there. Pure.

    CPU 0   |----1----|----1----|------------3------------|--
    CPU 1     |----1----|--  lost  ...  --|----1----|
    CPU 2   |----1----|  idle, and the clock kept silent  |----1----|
          begin                                              end

The time between two samples of a CPU is the later one's, in whole intervals; what is left over is carried on. Where the
clock struck late, as behind a stretch with interrupts off, that is who kept it. But some clocks do not strike while
their CPU is idle: such a gap is idle time, as far as the kernel's account of the CPU tells of more of that than samples
do. So the ticks of all CPUs are the CPUs times the seconds.

Time for which samples were lost is nobody's: it is counted in ``untold_ns``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from collector.arrays import changes, indices
from collector.events import Array, RecordsLost

_LATE = 1.5  # intervals: below, nothing is missing
_MOST_BEHIND = 5  # intervals from a CPU's last sample to the end
_TOLD_LATER_NS = 1_000_000  # the kernel writes of a loss just behind the sample that found room again


class CpuTicks(NamedTuple):
    """Of n samples, or CPUs: ticks of what was met, and of an idle CPU before that, where no sample tells of it."""

    met: Array  # i8 (n,)
    idle: Array  # i8 (n,)


class CpuClock:
    """The clocks of ``cpus``; ``untold_ns``: the time of CPUs that no tick stands for."""

    def __init__(self, interval_ns: int, cpus: Iterable[int], start_ns: int, idle_ns: Mapping[int, int]) -> None:
        self.untold_ns = 0
        self._interval_ns = interval_ns
        self._cpus = list(cpus)
        self.begin(start_ns, idle_ns)

    def begin(self, time_ns: int, idle_ns: Mapping[int, int]) -> None:
        """From here on, whatever was before; ``idle_ns``: for how long each CPU has been idle, by the kernel."""
        self._since_ns = dict.fromkeys(self._cpus, time_ns)
        self._owed_ns = dict.fromkeys(self._cpus, self._interval_ns // 2)  # so that ticks are rounded, not cut
        self._owed_idle_ns = dict.fromkeys(self._cpus, self._interval_ns // 2)
        self._account_ns = dict(idle_ns)
        self._unseen_ns = dict.fromkeys(self._cpus, 0)  # idle by the account, and not by samples

    def account(self, idle_ns: Mapping[int, int]) -> None:
        """The kernel's accounts as of the end of the samples that come next."""
        for cpu, now_ns in idle_ns.items():
            self._unseen_ns[cpu] = self._unseen_ns.get(cpu, 0) + now_ns - self._account_ns.get(cpu, now_ns)
            self._account_ns[cpu] = now_ns

    def ticks(self, cpu: Array, time_ns: Array, idle: Array, losses: Sequence[RecordsLost] = ()) -> CpuTicks:
        """The ticks of samples (n,) in time order, and after those of the calls before, of which some (n,) met an idle
        CPU; ``losses``: of samples, at the times at which the kernel told of them."""
        order = cpu.argsort(kind="stable")
        found = CpuTicks(np.zeros(len(cpu), dtype=np.int64), np.zeros(len(cpu), dtype=np.int64))
        for rows in np.split(order, indices(changes(cpu[order]))[1:]) if len(order) else ():
            number = int(cpu[rows[0]])
            edges = np.concatenate([[self._since_ns.get(number, int(time_ns[rows[0]]))], time_ns[rows]])
            its_losses_ns = [loss.time_ns for loss in losses if loss.cpu in (number, -1)]
            elapsed_ns = self._without_losses(edges, its_losses_ns)
            self._unseen_ns[number] = self._unseen_ns.get(number, 0) - int(elapsed_ns[idle[rows]].sum())
            idle_ns = self._unseen(number, np.where(idle[rows], 0, elapsed_ns))
            found.met[rows] = self._whole(self._owed_ns, number, elapsed_ns - idle_ns)
            found.idle[rows] = self._whole(self._owed_idle_ns, number, idle_ns)
            self._since_ns[number] = int(edges[-1])
        return found

    def end(self, time_ns: int) -> dict[int, tuple[int, int]]:
        """By CPU the ticks from its last sample up to a time: those of whoever that sample met, and those of an idle
        CPU. Of a CPU that was taken away meanwhile no more is told than of a late clock."""
        found = {}
        for cpu, since_ns in self._since_ns.items():
            elapsed_ns = np.array([max(time_ns - since_ns, 0)])
            idle_ns = self._unseen(cpu, elapsed_ns)
            most_ns = np.minimum(elapsed_ns - idle_ns, _MOST_BEHIND * self._interval_ns)
            self.untold_ns += int((elapsed_ns - idle_ns - most_ns)[0])
            found[cpu] = (int(self._whole(self._owed_ns, cpu, most_ns)[0]),
                          int(self._whole(self._owed_idle_ns, cpu, idle_ns)[0]))
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

    def _unseen(self, cpu: int, elapsed_ns: Array) -> Array:
        """How much (n,) of the time before samples was idle, and without a sample: what is longer than an interval, as
        far as the account tells of so much."""
        gap_ns = np.where(elapsed_ns > _LATE * self._interval_ns, elapsed_ns - self._interval_ns, 0)
        total_ns = int(gap_ns.sum())
        part = min(max(self._unseen_ns[cpu], 0) / total_ns, 1.0) if total_ns else 0.0
        idle_ns: Array = (gap_ns * part).astype(np.int64)
        self._unseen_ns[cpu] -= int(idle_ns.sum())
        return idle_ns

    def _whole(self, owed: dict[int, int], cpu: int, elapsed_ns: Array) -> Array:
        """Times (n,) in whole intervals; the rest is owed."""
        told_ns = owed.get(cpu, 0) + elapsed_ns.cumsum()
        owed[cpu] = int(told_ns[-1] % self._interval_ns)
        ticks: Array = np.diff(told_ns // self._interval_ns, prepend=0)
        return ticks
