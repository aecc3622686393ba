"""What a thread did between two looks, told as edges from its account (see ``tracer`` for the order of them). Standard
library only.

An account may have waited for a CPU in its sleep: since Linux 6.12 one that goes to sleep may stay in its CPU's queue
for a while, and if it is moved to another meanwhile it is counted as waiting from then on, until it gets a CPU
(enqueue_task in kernel/sched/core.c). It has not waited before it was last proven to sleep.
"""

from __future__ import annotations

import time
from contextlib import suppress

from collector.engines.ptrace.departures import Departures
from collector.engines.ptrace.targets import AWAKE_NS, PATIENCE, Tracee
from collector.engines.ptrace.writer import Writer
from collector.events import Edge
from collector.linux import accounts, tasks
from collector.linux.crowd import Crowd

# Where accounts fall short of a time by more than one part in so many, it is looked into why: that costs a tenth of a
# sample. Each time that we stop a thread some 100 us of it are not known, which add up to one in a hundred.
_DOUBT_SHARE = 500


class Settlement:
    """Tells what threads did up to a time, which is settled then."""

    def __init__(self, writer: Writer, departures: Departures, crowd: Crowd, interval_ns: int) -> None:
        self._writer = writer
        self._departures = departures
        self._crowd = crowd
        self._interval_ns = interval_ns
        self.is_hungry = False  # of late a process has run for long without samples, or there were births

    def settle(self, thread: Tracee, raw: bytes, now_ns: int, there: tasks.Place | None = None) -> None:
        """Tells what happened since the thread was settled last. ``there`` is where it sleeps now, if it does."""
        cpu_ns, delay_ns, turns = accounts.parse(raw)
        room = max(now_ns - thread.settled_ns, 0)
        wanted = cpu_ns - thread.cpu_ns + thread.owed_ns
        run = min(wanted, room)
        thread.waited_from_ns = 0
        if thread.settled_ns < self._writer.behind_ns:  # nobody was looked at meanwhile
            n_lost = run // self._interval_ns - (there is None)
            self._writer.lose("clock", max(n_lost, 0))
        if run <= 2:  # nothing to tell yet
            if there is not None and not thread.running and wanted <= 2:  # it sleeps on, whatever it waited for
                thread.raw, thread.delay_ns, thread.turns = raw, delay_ns, turns
                thread.seen_ns = thread.asleep_ns = now_ns
            return
        wait = min(thread.waited_ns(delay_ns, turns), room - run)
        if not thread.running:
            wait = min(wait, max(now_ns - thread.asleep_ns - run, 0))
        rest = room - run - wait
        is_doubtful = rest - thread.kept_ns > room // _DOUBT_SHARE
        if there is None and thread.running and is_doubtful and not self._has_slept(thread):
            wait, rest = room - run, 0  # for longer than that is known
        ours = min(rest, thread.kept_ns)  # ready to run, and kept from it by us
        wait, rest = wait + ours, rest - ours
        thread.raw, thread.cpu_ns, thread.delay_ns, thread.turns = raw, cpu_ns, delay_ns, turns
        thread.owed_ns, thread.waited_before, thread.waited_at_least_ns = wanted - run, False, 0
        thread.process.cpu_ns += run
        thread.process.owed_ns += run
        self.is_hungry |= thread.process.owed_ns > PATIENCE * self._interval_ns
        awake_ns, thread.awake_ns, thread.kept_ns = thread.awake_ns, 0, 0
        thread.was_stopped = there is None
        slept = 0
        if there is not None:
            slept = rest if thread.running else max(min(
                rest, now_ns - awake_ns - run - wait if awake_ns else (now_ns - thread.seen_ns - run - wait) // 2,
                now_ns - thread.looked_ns - run), 0)  # it had not run by then
        until_ns = now_ns - slept
        # Found running twice, it has slept out of sight for less time than it was kept from a CPU, or for none: then it
        # was preempted, where its clock finds it, and not woken, where it sleeps.
        is_preempted = thread.running and wait >= rest - slept
        if rest > slept and thread.running:
            self._departures.leave(thread, Edge.OUT_BLOCKED, thread.settled_ns, thread.place, False)
            thread.running = False
        # Told to wait since it was woken, but it has slept again, unseen: for as long as it neither ran nor waited.
        # (When it was woken is not known well enough to tell that of short times.)
        slept_on = rest - slept - (awake_ns - thread.settled_ns) if awake_ns else 0
        slept_on = slept_on if slept_on > AWAKE_NS // 2 else 0
        waits_ns = max(until_ns - run - slept_on - wait, thread.told_ns + 3)
        thread.waited_from_ns = waits_ns if waits_ns < until_ns - run else 0
        if thread.waited_from_ns:
            place = None if is_preempted else thread.place
            if not thread.running:
                self._writer.switch(thread, Edge.IN, waits_ns - 2)
            self._departures.leave(thread, Edge.OUT_PREEMPTED, waits_ns, place, False)
            thread.running = False
        if slept_on:
            slept_from_ns = max(until_ns - run - slept_on, thread.told_ns + 3)
            self._writer.switch(thread, Edge.IN, slept_from_ns - 2)
            self._departures.leave(thread, Edge.OUT_BLOCKED, slept_from_ns, thread.place, False)
        if not thread.running:
            self._writer.switch(thread, Edge.IN, until_ns - run)
        thread.running = there is None
        if there is not None:
            self._departures.leave(thread, Edge.OUT_BLOCKED, until_ns, there, True)
            thread.place, thread.seen_ns, thread.asleep_ns = there, now_ns, now_ns
        thread.settled_ns = now_ns

    def _has_slept(self, thread: Tracee) -> bool:
        """Whether a thread has slept since this was asked last, as far as anybody knows."""
        n_sleeps, thread.n_sleeps = thread.n_sleeps, thread.read_sleeps()
        return n_sleeps is None or n_sleeps != thread.n_sleeps

    def settle_now(self, thread: Tracee, stopped_ns: int | None = None) -> None:
        """The same by its account now, which is that of ``stopped_ns`` if it has stood still since then: what is told
        of it comes before what is told of that stop."""
        with suppress(OSError):
            raw = thread.files.read("schedstat", 64)
            if raw != thread.raw:
                self.settle(thread, raw, time.monotonic_ns() if stopped_ns is None else stopped_ns)

    def settle_end(self, thread: Tracee) -> int:
        """The same for one that is gone, and still has its account; returns when it ended. Where many end at once that
        is reported late. A thread that no look has found asleep since it went on from the stop of its exit has run or
        waited for a CPU since then, and its account says for how long."""
        now_ns = time.monotonic_ns()
        with suppress(OSError):
            raw, now_ns = thread.files.read("schedstat", 64), time.monotonic_ns()
            if thread.let_go_ns and thread.running:
                cpu_ns, delay_ns, _ = accounts.parse(raw)
                since_ns = cpu_ns - thread.cpu_ns + thread.owed_ns + delay_ns - thread.delay_ns
                now_ns = min(max(thread.let_go_ns, thread.settled_ns) + since_ns, now_ns)
            if raw != thread.raw:
                self.settle(thread, raw, now_ns)
        return thread.settled_ns if thread.running else now_ns

    def settle_last(self, thread: Tracee, raw: bytes, now_ns: int) -> None:
        """The same for good. One that ran, and is ready to run on, has waited for a CPU since then: the kernel tells
        that only when it gets one. So has one that has stopped for us and that we have not come to yet. Where many wait
        and we could not look, it may have slept before that: then half of its average wait is taken."""
        if raw == thread.raw:
            return
        if tasks.parse_stat(thread.files.read("stat")).state in (b"R", b"t"):
            self.settle_awake(thread, raw, now_ns)
        else:
            self.settle(thread, raw, now_ns)

    def settle_awake(self, thread: Tracee, raw: bytes, now_ns: int) -> None:
        """The same for one that is ready to run: it has waited since it ran, which is told before that."""
        kept_ns = thread.kept_ns
        thread.kept_ns = max(kept_ns, self._last_wait_ns(thread, raw, now_ns))
        self.settle(thread, raw, now_ns)
        if raw != thread.raw:  # there was nothing to tell yet
            thread.kept_ns = kept_ns

    def _last_wait_ns(self, thread: Tracee, raw: bytes, now_ns: int) -> int:
        """How long a thread that has run since it was settled has waited for a CPU now, beyond its account."""
        cpu_ns, delay_ns, turns = accounts.parse(raw)
        asked, n_waits = thread.asked, turns - thread.turns
        waited_ns = thread.waited_ns(delay_ns, turns)
        room_ns = max(now_ns - thread.settled_ns - (cpu_ns - thread.cpu_ns + thread.owed_ns + waited_ns), 0)
        known_ns, unseen_ns = 0, now_ns - thread.looked_ns
        if asked:  # it has not slept since then
            known_ns = max(now_ns - asked.time_ns - (cpu_ns - asked.cpu_ns) - (delay_ns - asked.delay_ns), 0)
            unseen_ns = asked.unseen_ns
        guess_ns = waited_ns // (2 * n_waits) + known_ns // 2 if self._crowd.is_there and n_waits > 0 else None
        if guess_ns is None:
            wait_ns = room_ns if thread.running else known_ns
        else:
            wait_ns = min(max(guess_ns, known_ns), known_ns + unseen_ns)
            wait_ns = max(wait_ns, room_ns - unseen_ns) if thread.running else wait_ns
        return min(wait_ns, room_ns)
