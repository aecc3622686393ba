"""When the tracer came to its CPU, and since when: by its own account. Standard library only."""

from __future__ import annotations

import os
import time
from contextlib import suppress

from collector.linux import accounts, tasks


class OwnTime:
    """Of the calling thread."""

    def __init__(self) -> None:
        self._account = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        self._turns = -1  # where the kernel shows them
        with suppress(OSError):
            self._turns = os.open("/proc/thread-self/sched", os.O_RDONLY | os.O_CLOEXEC)
        self.turn_ns = 0  # when we got our CPU by its own clock, if that was asked for; 0: not known
        self.due_ns = 0  # when the clock struck for what is being done
        self.awake_ns = 0  # when we last had slept
        self.came_ns = 0  # when we got our CPU then
        self.used_ns = 0  # how long we had run until then
        self._delay_ns = 0  # how long we have waited for CPUs
        self.delayed_ns = 0  # that of it since we came before

    def arrived(self, *, with_turn: bool = False) -> None:
        """We have got a CPU: since when tells the kernel's account of ourselves, which it last brought up to date as it
        took the one before from us. ``with_turn``: by the CPU's clock, too, if it has not struck meanwhile."""
        self.turn_ns = self._turn_ns() if with_turn and self.tells_turns else 0  # first: to ask for times moves it
        raw = os.pread(self._account, 64, 0)
        used_ns, self.awake_ns = time.thread_time_ns(), time.monotonic_ns()
        self.used_ns, delay_ns, _ = accounts.parse(raw)
        self._delay_ns, self.delayed_ns = delay_ns, delay_ns - self._delay_ns
        self.came_ns = self.awake_ns - (used_ns - self.used_ns)

    @property
    def tells_turns(self) -> bool:
        """Whether the kernel shows who has a CPU."""
        return self._turns >= 0

    def _turn_ns(self) -> int:
        with suppress(OSError, ValueError):
            return tasks.parse_turn(os.pread(self._turns, tasks.TURN_BYTES, 0)).moment_ns
        return 0
