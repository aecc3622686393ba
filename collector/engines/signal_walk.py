"""Where the tracer stands: on the CPU whose thread it looks at next. Standard library only.

To stop a thread that runs on another CPU takes an interrupt there, which takes some microseconds to arrive. If the
thread makes a system call in the meantime it stops at the end of that: one that makes a call every other microsecond
would be found in calls half of the time, whatever they cost. A thread of our own CPU, however, stands still since the
moment at which our clock struck, and it is there that it will stop.

So the tracer goes from CPU to CPU, early enough to sleep on each until the clock strikes there:

    home                 next                 next after that      home
    | round -- goes ...  | visit -- goes ...  | visit -- goes ...  | round
    due                  due + I/3            due + 2I/3           due + I

A round looks at all threads, a visit at those of which the round found that they had run on that CPU of late. A thread
that runs neither when we are on its CPU nor at home is stopped from afar if that goes on for long.
"""

from __future__ import annotations

import os
from collections import deque
from dataclasses import dataclass

from collector.clock import NS_PER_MS
from collector.engines.signal_targets import Tracee
from collector.linux import libc

_LATELY = 16  # rounds
_MIN_STAY_NS = 2 * NS_PER_MS // 5  # or we would do nothing else


@dataclass(slots=True)
class Visit:
    """A CPU to go to, when to look, and at whom."""

    cpu: int
    due_ns: int
    threads: list[Tracee]
    late: bool = False  # we have come there but now


class Walk:
    """The CPU that we stand on, and those to go to."""

    def __init__(self, interval_ns: int) -> None:
        self._interval_ns = interval_ns
        self._anywhere = os.sched_getaffinity(0)
        self._forbidden: set[int] = set()
        self._stands_on = -1  # any CPU
        self._home = -1
        self._noted: dict[int, list[Tracee]] | None = None  # by CPU, in a round
        self._last_noted: dict[int, int] = {}  # in which round
        self._n_rounds = 0
        self._visits: deque[Visit] = deque()

    def begin(self) -> None:
        """A round begins."""
        self._noted = {}
        self._n_rounds += 1

    def is_here(self, cpu: int) -> bool:
        """Whether a thread of that CPU is at our own, or where we may not go."""
        return cpu == self._here() or cpu in self._forbidden

    def note(self, thread: Tracee, cpu: int) -> None:
        """The thread ran on that CPU of late."""
        if self._noted is not None:
            self._noted.setdefault(cpu, []).append(thread)

    def plan(self, due_ns: int, left_ns: int, everywhere: bool) -> None:
        """At the end of a round that was due at a time: where to go in the time that was left then until the next. CPUs
        whose threads have run for longest without being looked at come first. ``everywhere``: also where threads ran
        some rounds ago, for those that run now and then, and never for long."""
        here, noted = self._here(), self._noted or {}
        self._noted = None
        self._last_noted |= dict.fromkeys(noted, self._n_rounds)
        if everywhere:
            since = self._n_rounds - _LATELY
            noted |= {cpu: [] for cpu, at in self._last_noted.items() if cpu not in noted and at > since}
        order = sorted((cpu for cpu in noted if cpu != here and cpu not in self._forbidden), reverse=True,
                       key=lambda cpu: sum(thread.cpu_ns - thread.sampled_ns for thread in noted[cpu]))
        del order[max(self._interval_ns // _MIN_STAY_NS - 1, 1):]
        self._home = here if here in noted else order[0] if order else -1
        stay_ns = left_ns // (len(order) + 1)
        self._visits.extend(Visit(cpu, due_ns + (i + 1) * stay_ns, noted[cpu]) for i, cpu in enumerate(order))

    def end(self) -> None:
        """No more visits."""
        self._visits.clear()

    def due_ns(self) -> int | None:
        """When the next visit is to begin; None where a round comes first."""
        return self._visits[0].due_ns if self._visits else None

    def go_on(self) -> None:
        """Goes where we are needed next."""
        self._go(self._visits[0].cpu if self._visits else self._home)

    def visit(self) -> Visit:
        """The visit whose time has come."""
        visit = self._visits[0]
        visit.late = self._go(visit.cpu)
        return self._visits.popleft()

    def _here(self) -> int:
        return self._stands_on if self._stands_on >= 0 else libc.current_cpu()

    def _go(self, cpu: int) -> bool:
        """Whether there was a way to go."""
        if cpu == self._stands_on:
            return False
        try:
            os.sched_setaffinity(0, {cpu} if cpu >= 0 else self._anywhere)
            self._stands_on = cpu
        except OSError:  # that CPU is not for us, or is gone
            self._forbidden.add(cpu)
        return True
