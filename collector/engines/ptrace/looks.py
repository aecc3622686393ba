"""Who is looked at, in which order, and what is done with whom a look finds running. Standard library only.

A thread whose account has not changed has not run: it is where it was. Of one that sleeps /proc says where; one that
runs, or waits for a CPU, is asked to stop. Where several share a CPU, one has it, or had it when our clock struck
there: the scheduler took it from its CPU as it gave that to us, which both have in their accounts. The others would
stop for no sample: what they have done is told without that, if they have not slept. Threads that have slept for long
are looked at in a loop that does little else.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from collector.engines.ptrace.departures import Departures
from collector.engines.ptrace.mappings import Mappings
from collector.engines.ptrace.own_time import OwnTime
from collector.engines.ptrace.settlement import Settlement
from collector.engines.ptrace.targets import AWAKE_NS, PATIENCE, Asked, Tracee
from collector.engines.ptrace.walk import Walk
from collector.engines.ptrace.writer import Writer
from collector.events import Edge
from collector.linux import accounts, ptrace, tasks
from collector.linux.crowd import Crowd

# Checks of whether who sleeps still does, in a round: of 1.4 us each, one part in 200 of the default interval.
_CHECKS_AT_ONCE = 32
# Where nobody waits for long, it is checked again when that part of the sleep proven until then has passed since.
_PROOF_SHARE = 4
# After so many looks without news a thread is looked at more rarely: one that rests for less than 16 intervals is not.
_CALM_LOOKS = 16
# One part in so many of the interval is for looks at either kind, so that these take at most a sixth of a CPU. It is
# more for idle ones where samples are missing: of 670 that were due to 500 rare threads 14 were made before that.
_ACTIVE_SHARE, _IDLE_SHARE, _HUNGRY_SHARE = 8, 30, 12
# Idle ones are looked at by so many, of 1.2 us each, between two looks at the clock, which is then next to nothing.
_IDLE_AT_ONCE = 16
# In which a thread of another CPU stops: twice the 35 us that an interrupt takes there on a virtual machine.
_STOP_NS = 70_000
_CLOSED = ("is recorded without its stacks and the places where it waits, which this user may not read: run collect as "
           "root; in a container it takes the capability CAP_SYS_PTRACE")


class Looks:
    """All threads, by when each was looked at."""

    def __init__(self, writer: Writer, walk: Walk, mappings: Mappings, departures: Departures, settlement: Settlement,
                 crowd: Crowd, own: OwnTime, interval_ns: int) -> None:
        self._writer = writer
        self._walk = walk
        self._mappings = mappings
        self._departures = departures
        self._settlement = settlement
        self._crowd = crowd
        self._own = own
        self._interval_ns = interval_ns
        # Who was looked at longest ago comes first: threads that have run of late, and those that sleep for long.
        self._active: deque[Tracee] = deque()
        self._idle: deque[Tracee] = deque()
        self._checks_left = 0  # of threads that sleep, whether they still do
        self.asked: set[Tracee] = set()  # to stop, and have not yet
        # Who waits for a CPU that others share, with its account, of when that is, and whether we are on that CPU; and
        # whether one of ours was met that had it.
        self._waiting: list[tuple[Tracee, bytes, int, bool]] = []
        self._has_met = False

    def enter(self, thread: Tracee) -> None:
        """A thread to look at from now on, until it is gone."""
        self._active.append(thread)

    def begin(self) -> None:
        """A round or a visit begins."""
        self._checks_left = _CHECKS_AT_ONCE

    def until_ns(self) -> int:
        """How long looks at threads that have run of late may take now."""
        return time.monotonic_ns() + self._interval_ns // _ACTIVE_SHARE

    def horizon_ns(self, now_ns: int) -> int:
        """When the thread was looked at that was looked at longest ago. Who is to stop will be told of when it has: of
        that one the look before counts."""
        return min([now_ns, *(threads[0].looked_ns for threads in (self._active, self._idle) if threads),
                    *(thread.asked.time_ns - thread.asked.unseen_ns for thread in self.asked if thread.asked)])

    def answered(self, thread: Tracee) -> None:
        """A thread has stopped that was asked to, or is gone."""
        thread.asked = None
        self.asked.discard(thread)

    def look_at_active(self, now_ns: int, hear: Callable[[], object]) -> None:
        """Looks at threads in turn, each at most once, as long as there is time: the others come next time. Who stops
        at once, since we stand aside, goes on at once: ``hear`` takes what there is to report."""
        until_ns = now_ns + self._interval_ns // _ACTIVE_SHARE
        for _ in range(len(self._active)):
            thread = self._active.popleft()
            if not thread.gone:
                self._look(thread)
                self._sort_in(thread)
                if thread.asked and self._walk.is_aside:
                    ptrace.await_stop(thread.tid, _STOP_NS)
                    hear()
            if time.monotonic_ns() > until_ns:
                break
        self.decide()

    def decide(self) -> None:
        """At the end of a round or a visit: who waits for a CPU is asked to stop if nobody was met who had one."""
        waiting, self._waiting = self._waiting, []
        has_met, self._has_met = self._has_met, False
        for thread, raw, raw_ns, is_here in waiting:
            if thread.gone:  # who heard of that, while we stood aside, has told it
                continue
            if has_met:
                self._settlement.settle_awake(thread, raw, raw_ns)
            else:
                self.ask(thread, raw, raw_ns, is_here)

    def look_at_idle(self) -> None:
        """The same for threads that have slept for long. Nearly all still do: to see that must cost next to nothing,
        or we meet none of those few of many that run for a moment."""
        threads = self._idle
        if not threads:
            return
        now_ns = time.monotonic_ns()
        share = _HUNGRY_SHARE if self._settlement.is_hungry else _IDLE_SHARE
        n_left, until_ns = len(threads), now_ns + self._interval_ns // share
        awake: list[Tracee] = []
        while n_left and now_ns < until_ns and not self._writer.behind:
            n_next = min(n_left, _IDLE_AT_ONCE)
            for _ in range(n_next):
                thread = threads.popleft()
                if thread.sleeps_on():
                    self._still_off(thread, now_ns)
                    thread.looked_ns = now_ns
                    threads.append(thread)
                elif not thread.gone:
                    awake.append(thread)
            n_left -= n_next
            now_ns = time.monotonic_ns()
        for thread in awake:
            self._look(thread)
            self._sort_in(thread)

    def _sort_in(self, thread: Tracee) -> None:
        (self._idle if thread.calm >= _CALM_LOOKS else self._active).append(thread)

    def _look(self, thread: Tracee) -> None:
        if thread.gone or thread.process.held:
            return
        now_ns = time.monotonic_ns()
        with suppress(OSError):  # it is gone: its end will be reported
            self.glance(thread, now_ns)
            thread.looked_ns = now_ns

    def glance(self, thread: Tracee, now_ns: int) -> None:
        """A look at a thread. Raises OSError when it is gone."""
        if thread.asked or thread.in_stop:
            return
        raw = thread.files.read("schedstat", 64)
        if raw != thread.raw:
            self._look_closer(thread, raw, now_ns)
        elif not thread.running:
            self._still_off(thread, now_ns)
            thread.calm += 1
            if thread.calm == _CALM_LOOKS:
                thread.files.close_some()
        elif not thread.was_stopped:  # else it waits for a CPU since then
            self._look_closer(thread, raw, now_ns)

    def _still_off(self, thread: Tracee, now_ns: int) -> None:
        """A thread sleeps on, or has been woken and has had no CPU yet: its accounts tell that when it has."""
        is_crowd = self._crowd.is_there
        if not is_crowd:
            thread.seen_ns = now_ns
        unproven_ns = now_ns - (thread.seen_ns if is_crowd else thread.asleep_ns)
        if thread.awake_ns or unproven_ns < AWAKE_NS or not self._checks_left:
            return
        if not is_crowd and unproven_ns < (thread.asleep_ns - thread.settled_ns) // _PROOF_SHARE:
            return
        self._checks_left -= 1
        with suppress(OSError):  # it is gone: its end will be reported
            is_awake = thread.is_awake()
            if thread.calm >= _CALM_LOOKS and not is_crowd:  # not again for long
                thread.files.close_some()
            if not is_awake:
                thread.seen_ns = thread.asleep_ns = now_ns
                return
            if not is_crowd:  # its account will tell how long it waits
                return
            thread.awake_ns = max((thread.seen_ns + now_ns) // 2, thread.told_ns + 3)
            self._writer.switch(thread, Edge.IN, thread.awake_ns - 2)
            self._departures.leave(thread, Edge.OUT_PREEMPTED, thread.awake_ns, thread.place, False)

    def _look_closer(self, thread: Tracee, raw: bytes, raw_ns: int) -> None:
        """A thread that has run since the last look, or was running then: its accounts as they were just after
        ``raw_ns``."""
        now_ns = time.monotonic_ns()
        if raw == thread.raw and thread.waited_before:
            thread.waited_at_least_ns = max(raw_ns - thread.settled_ns, 0)
        stat = tasks.parse_stat(thread.files.read("stat"))
        place = thread.where() if stat.state != b"R" else None
        thread.cpu, thread.system_ticks = stat.cpu, stat.system_ticks
        if place is None:
            self._look_at_ready(thread, raw, raw_ns, now_ns)
            return
        if stat.state not in (b"S", b"D"):  # it has stopped and waits for us, or runs on just now
            if thread.n_signals:
                self._walk.seek(thread.tid, now_ns, later=True)
            return
        if place == tasks.UNREAD and not thread.process.is_closed:
            self._tell_closed(thread, now_ns)
        if raw != thread.raw:
            thread.calm = 0
            self._walk.note(thread, stat.cpu)
            if thread.files.read("schedstat", 64) != raw:  # it ran on meanwhile: nothing is known for sure
                return
            self._settlement.settle(thread, raw, now_ns, place)
        else:
            thread.calm += 1
            self._departures.leave(thread, Edge.OUT_BLOCKED, thread.settled_ns, place, True)
            thread.running, thread.place = False, place
            thread.seen_ns = thread.asleep_ns = now_ns

    def _tell_closed(self, thread: Tracee, now_ns: int) -> None:
        """A process does not let us look where its threads sleep: it is told so once."""
        thread.process.is_closed = True
        self._writer.change("LetGo", now_ns, thread.process.pid, thread.files.read_once("comm")[:-1], _CLOSED)

    def _look_at_ready(self, thread: Tracee, raw: bytes, raw_ns: int, now_ns: int) -> None:
        """A thread that runs or waits for a CPU: it is asked to stop, if that is to be done from here, and now."""
        thread.calm = 0
        self._walk.found_ready(thread.cpu)
        if thread.n_calling:
            self._walk.note(thread, thread.cpu)
        if now_ns < thread.first_ns:
            return
        is_here = self._walk.is_here(thread.cpu)
        waits, thread.looked_raw = raw == thread.looked_raw, raw
        if is_here and waits:  # it has not run since the last look
            return
        is_first, thread.first_ns = thread.first_ns > 0, 0
        unsampled_ns = accounts.parse(raw)[0] - thread.sampled_ns
        if is_here or is_first or not thread.n_calling or unsampled_ns > PATIENCE * self._interval_ns:
            unseen_ns = raw_ns - thread.looked_ns
            if not thread.running and raw != thread.raw and unseen_ns > AWAKE_NS and self._crowd.is_there:
                self._settlement.settle_awake(thread, raw, raw_ns)  # or it would be told to sleep until it stops
            is_served = thread.sampled_ns > 0 and not is_first and unsampled_ns <= PATIENCE * self._interval_ns
            is_told = self._own.turn_ns > 0 if is_here else self._walk.is_aside and self._walk.is_shared
            if is_told and is_served and self._waits(thread, raw, is_here):
                self._waiting.append((thread, raw, raw_ns, is_here))
            else:
                self.ask(thread, raw, raw_ns, is_here)
        elif thread.n_signals and unsampled_ns > self._interval_ns // 2:
            self._walk.seek(thread.tid, now_ns)

    def _waits(self, thread: Tracee, raw: bytes, is_here: bool) -> bool:
        """Whether a thread waits for its CPU, or has since before we came there (``is_here``), and has not slept since
        this was asked last."""
        if thread.n_signals or not thread.running:
            return False
        try:
            turn = tasks.parse_turn(thread.files.read_once("sched", tasks.TURN_BYTES))
        except (OSError, ValueError):
            return False
        if turn.moment_ns == self._own.turn_ns if is_here else turn.n_over < accounts.parse(raw)[2]:
            self._has_met = True
            return False
        before, thread.n_left = thread.n_left, turn.n_left - thread.n_stops
        return thread.n_left == before

    def ask(self, thread: Tracee, raw: bytes, now_ns: int, is_here: bool) -> None:
        """Lets a thread stop that runs or waits for a CPU: our own (``is_here``), or one that we are not on."""
        if now_ns < thread.spared_until_ns:
            return
        self._mappings.measure(thread, now_ns)  # while it may still run
        with suppress(ProcessLookupError):
            ptrace.interrupt(thread.tid)
            cpu_ns, delay_ns, _ = accounts.parse(raw)
            own = self._own
            thread.asked = Asked(now_ns, cpu_ns, delay_ns, is_here, own.due_ns, own.came_ns, own.used_ns,
                                 now_ns - thread.looked_ns)
            self.asked.add(thread)
