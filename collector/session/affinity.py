"""The calling thread leaves its CPU now and then.

Where all CPUs are busy, we would wake up where we slept, and one thread would pay for all our work. Elsewhere there may
be many that wait for their turn, and we behind them: if so, we come back, and do not leave soon again. Where there are
so many that all have to wait, none pays more than the others.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress

from collector.clock import NS_PER_MS
from collector.linux import libc

_MOST_RUNNABLE = 2  # for each CPU
_QUEUED_NS = 5 * NS_PER_MS  # longer than two threads have to wait for each other
_STAYING = 100  # times what it took to leave a CPU, until we do so again


class Affinity:
    """The CPUs that the calling thread may run on, which stay the same."""

    def __init__(self, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._now_ns = now_ns
        self._cpus = os.sched_getaffinity(0)
        self._stays_ns = 0  # on whatever CPU it is woken, until then

    def leave_cpu(self, n_runnable: int) -> bool:
        """Goes to another CPU if that is fair beside ``n_runnable`` threads of the machine; whether it tried."""
        start_ns, n_cpus = self._now_ns(), len(self._cpus)
        if n_cpus < 2 or start_ns < self._stays_ns or not n_cpus < n_runnable <= _MOST_RUNNABLE * n_cpus:
            return False
        self._migrate(libc.current_cpu(), start_ns)
        end_ns = self._now_ns()
        self._stays_ns = end_ns + _STAYING * (end_ns - start_ns)
        return True

    def _migrate(self, here: int, start_ns: int) -> None:
        with suppress(OSError):
            os.sched_setaffinity(0, self._cpus - {here})
            if self._now_ns() - start_ns > _QUEUED_NS:
                os.sched_setaffinity(0, {here})
        with suppress(OSError):
            os.sched_setaffinity(0, self._cpus)
