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

A thread that is born, and woken by us, runs on a CPU where we are not: whoever is short would be met late in life, or
not at all. So it has a first visit of its own at any time within an interval, wherever it is then, and is spared until
then. Those times are spread evenly.

A thread that is given a signal stops for us first, and we keep its CPU busy meanwhile: it runs on elsewhere. Wherever
we went to wait for the clock, such a thread would have left. It is sought when the clock has struck.

A thread that makes no calls may be stopped from afar, and had better be: on its own CPU it would wait for all that we
do about a sample, and the kernel may well wake us there, whichever CPUs are idle. So where there is a CPU that none of
our threads wants, we stand aside. Who of several that share a CPU has it the scheduler's counts say. Where they wait
for others, too, or nobody tells, we go there.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from collector.clock import NS_PER_MS, evenly_spread
from collector.engines.ptrace.targets import Tracee
from collector.linux import libc

_LATELY = 16  # rounds
_COUNTS = 5  # of others, in half a second: who stands aside cannot see who waits, and stops them in vain
_MIN_STAY_NS = 2 * NS_PER_MS // 5  # or we would do nothing else


@dataclass(slots=True)
class Visit:
    """A CPU to go to, when to look, and at whom."""

    cpu: int
    due_ns: int
    threads: list[Tracee]
    late: bool = False  # we have come there but now
    left_ns: int = 0  # if so, when we left for it
    tid: int = 0  # who is visited alone; its CPU is known when we go
    is_search: bool = False  # to go there earlier would be in vain


class Walk:
    """The CPU that we stand on, and those to go to."""

    def __init__(self, interval_ns: int, cpu_of: Callable[[int], int], *, tells_turns: bool = False) -> None:
        """``cpu_of`` tells which CPU a thread runs on, -1 where it is gone; ``tells_turns``: it can be seen from afar
        who of those that share a CPU has it."""
        self._interval_ns = interval_ns
        self._cpu_of = cpu_of
        self._tells_turns = tells_turns
        self._anywhere = frozenset(os.sched_getaffinity(0))
        self._n_cpus = os.sysconf("SC_NPROCESSORS_ONLN")
        self._forbidden: set[int] = set()
        self._stands_on = self._anywhere
        self._home = self._anywhere
        self._is_aside = False  # home is where none of our threads is
        self._ready: list[int] = []  # the CPU of each thread that was ready to run, in a round
        self._n_shared = 0  # that waited for one of these in the round before
        # That were ready to run, and are neither our threads nor the collector's.
        self._n_others: deque[int] = deque(maxlen=_COUNTS)
        self._homes: dict[tuple[int, ...], tuple[frozenset[int], bool]] = {}  # found before, and whether it is aside
        self._noted: dict[int, list[Tracee]] | None = None  # by CPU, in a round
        self._last_noted: dict[int, int] = {}  # in which round
        self._n_rounds = 0
        self._visits: deque[Visit] = deque()  # by time
        self._round_ns = 0  # when the next round is due
        self._parts = evenly_spread()
        self._n_first = 0  # visits of single threads to come
        self._sought: set[int] = set()

    def begin(self) -> None:
        """A round begins."""
        self._noted = {}
        self._n_shared = len(self._ready) - len(set(self._ready))
        self._ready.clear()
        self._n_rounds += 1

    def is_here(self, cpu: int) -> bool:
        """Whether a thread of that CPU is at our own, or where we may not go."""
        return cpu == self._here() or cpu in self._forbidden

    @property
    def is_shared(self) -> bool:
        """Whether threads of ours waited for the CPU of another one, in the last round."""
        return self._n_shared > 0

    @property
    def is_aside(self) -> bool:
        """Whether we keep away from the CPUs of our threads."""
        return self._is_aside and self._stands_on == self._home

    def found_ready(self, cpu: int) -> None:
        """A thread of that CPU runs, or waits for it, in this round."""
        self._ready.append(cpu)

    def counted(self, n_runnable: int) -> None:
        """How many threads of the machine are ready to run, ours among them, the collector not; less than 0: nobody
        knows."""
        self._homes.clear()
        self._n_others.append(max(n_runnable - len(self._ready), 0) if n_runnable >= 0 else self._n_cpus)

    def was_kept_waiting(self) -> None:
        """A thread has waited for its CPU, which others use too, while we stood aside."""
        self._homes.clear()
        self._n_others.extend([self._n_cpus] * _COUNTS)

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
        order = self._order(here, noted, everywhere) if noted or everywhere else []
        self._round_ns = due_ns + left_ns
        self._is_aside = False
        if here in noted:
            self._home = frozenset((here,))
        elif order:
            self._home = frozenset(order[:1])
        else:
            self._home, self._is_aside = self._homes.get(tuple(self._ready)) or self._find_home()
        if order:
            stay_ns = left_ns // (len(order) + 1)
            self._insert([Visit(cpu, due_ns + (i + 1) * stay_ns, noted[cpu]) for i, cpu in enumerate(order)])

    def _order(self, here: int, noted: dict[int, list[Tracee]], everywhere: bool) -> list[int]:
        """The CPUs to go to."""
        self._last_noted |= dict.fromkeys(noted, self._n_rounds)
        if everywhere:
            since = self._n_rounds - _LATELY
            noted |= {cpu: [] for cpu, at in self._last_noted.items() if cpu not in noted and at > since}
        order = sorted((cpu for cpu in noted if cpu != here and cpu not in self._forbidden), reverse=True,
                       key=lambda cpu: sum(thread.cpu_ns - thread.sampled_ns for thread in noted[cpu]))
        return order[:max(self._interval_ns // _MIN_STAY_NS - 1, 1)]

    def _find_home(self) -> tuple[frozenset[int], bool]:
        """Where to stop threads from that make no calls: the CPUs that they leave free, and True; or, where others need
        what is left, or they share one and nobody tells who has it, that of all of them, if it is one."""
        ready, n_others = frozenset(self._ready), max(self._n_others, default=self._n_cpus)
        free = self._anywhere - ready - self._forbidden
        is_told = self._tells_turns or len(self._ready) == len(ready)
        is_aside = bool(free) and bool(ready) and is_told and len(ready) + n_others < self._n_cpus
        there = ready - self._forbidden
        home = free if is_aside else there if len(there) == 1 else self._anywhere
        self._homes[tuple(self._ready)] = home, is_aside
        return home, is_aside

    def meet(self, tid: int, now_ns: int) -> int:
        """Plans a first visit; returns when. 0: there are too many already."""
        if self._n_first * _MIN_STAY_NS > self._interval_ns:
            return 0
        self._n_first += 1
        due_ns = now_ns + int(self._interval_ns * next(self._parts))
        self._insert([Visit(-1, due_ns, [], tid=tid)])
        return due_ns

    def seek(self, tid: int, now_ns: int, *, later: bool = False) -> None:
        """Plans to go to wherever a thread is: now, or at any time in the first half of an interval."""
        if tid in self._sought or self._n_first * _MIN_STAY_NS > self._interval_ns:
            return
        self._n_first += 1
        self._sought.add(tid)
        due_ns = now_ns + int(self._interval_ns * next(self._parts) / 2) if later else now_ns
        self._insert([Visit(-1, due_ns, [], tid=tid, is_search=True)])

    def _insert(self, visits: list[Visit]) -> None:
        self._visits = deque(sorted([*self._visits, *visits], key=lambda visit: visit.due_ns))

    def end(self) -> None:
        """No more visits."""
        self._visits.clear()
        self._sought.clear()
        self._n_first = 0

    def due_ns(self, round_ns: int) -> int | None:
        """When the next visit is to begin; None where a round comes first, which is due at a time."""
        return self._visits[0].due_ns if self._visits and self._visits[0].due_ns < round_ns else None

    def go_on(self) -> None:
        """Goes where we are needed next."""
        visit = next((visit for visit in self._visits if not visit.is_search), None)
        if visit is None or visit.due_ns >= self._round_ns:
            self._go(self._home)
        else:
            self._go_to(visit)

    def visit(self) -> Visit:
        """The visit whose time has come."""
        visit = self._visits[0]
        visit.left_ns = time.monotonic_ns()
        visit.late = self._go_to(visit)
        self._n_first -= bool(visit.tid)
        self._sought.discard(visit.tid)
        return self._visits.popleft()

    def _go_to(self, visit: Visit) -> bool:
        if visit.tid and visit.cpu < 0:
            visit.cpu = self._cpu_of(visit.tid)
        return visit.cpu >= 0 and self._go(frozenset((visit.cpu,)))

    def _here(self) -> int:
        return next(iter(self._stands_on)) if len(self._stands_on) == 1 else libc.current_cpu()

    def _go(self, cpus: frozenset[int]) -> bool:
        """To one of some CPUs. Whether there was a way to go."""
        if cpus == self._stands_on:
            return False
        try:
            os.sched_setaffinity(0, cpus)
            self._stands_on = cpus
        except OSError:  # that CPU is not for us, or is gone
            self._forbidden |= cpus
        return True
