"""When the tracer came to its CPU, and since when: by its own account. Standard library only."""

from __future__ import annotations

import os
import time

from collector.linux import accounts


class OwnTime:
    """Of the calling thread."""

    def __init__(self) -> None:
        self._account = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        self.due_ns = 0  # when the clock struck for what is being done
        self.awake_ns = 0  # when we last had slept
        self.came_ns = 0  # when we got our CPU then
        self.used_ns = 0  # how long we had run until then
        self._delay_ns = 0  # how long we have waited for CPUs
        self.delayed_ns = 0  # that of it since we came before

    def arrived(self) -> None:
        """We have got a CPU: since when tells the kernel's account of ourselves, which it last brought up to date as it
        took the one before from us."""
        raw = os.pread(self._account, 64, 0)
        used_ns, self.awake_ns = time.thread_time_ns(), time.monotonic_ns()
        self.used_ns, delay_ns, _ = accounts.parse(raw)
        self._delay_ns, self.delayed_ns = delay_ns, delay_ns - self._delay_ns
        self.came_ns = self.awake_ns - (used_ns - self.used_ns)
