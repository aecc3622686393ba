"""The tracer of the signal engine: looks at threads once per interval, and stops those for a moment that run.

It is a process of its own, forked from the collector: threads that have stopped never wait for what the collector is
busy with, and when it ends, in whatever way, the kernel lets all of them run on untraced. Standard library only.

The look. schedstat has, for every thread, the time on CPU, the time of waiting for a CPU, and how often it got one. A
thread of which that has not changed has not run: it is where it was. What happened since the look before,

    settled                                                                    now
       |-- asleep, as at the last look --|-- waiting --|-- running --|-- asleep --|

is told as edges, in this order: running and waiting are exact in their lengths, if not in their places. Of the rest,
the thread spent one part where the last look had found it asleep and the other where this one does, if they did: half
of the time between the looks is counted for each. A thread that is running now is interrupted (ptrace) and tells its
registers and stack; a sleeping one is never touched: /proc says where it sleeps, and its stack is read from outside.

The rooms of the tracer, each of which knows those before it alone:

    own_time     when we came to our CPU             looks      who is looked at, and asked to stop
    walk         the CPU that we stand on            samples    what is seen of who has stopped
    mappings     what processes have mapped          lives      births, execs and ends
    departures   where who sleeps does so            reports    what becomes of each stop
    settlement   what accounts say, as edges         tracer     the loop, and the clock

No system call of the target fails because of us; see ``mend``.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress

from collector.clock import NS_PER_MS, NS_PER_S
from collector.engines.ptrace.channel import END, HOLD, STOP, Channel
from collector.engines.ptrace.departures import Departures
from collector.engines.ptrace.lives import Lives
from collector.engines.ptrace.looks import Looks
from collector.engines.ptrace.mappings import Mappings
from collector.engines.ptrace.own_time import OwnTime
from collector.engines.ptrace.reports import Reports
from collector.engines.ptrace.samples import Samples
from collector.engines.ptrace.settlement import Settlement
from collector.engines.ptrace.targets import Traced, Tracee
from collector.engines.ptrace.walk import Walk
from collector.engines.ptrace.writer import Writer
from collector.events import Edge
from collector.linux import ptrace, tasks
from collector.linux.crowd import Crowd
from collector.linux.thread_list import threads_of

_RETRY_S = 0.01  # until a full channel is tried again: an interval of the default clock
_WATCHED = {signal.SIGCHLD, signal.SIGUSR1}
_PUBLISH_NS = 50 * NS_PER_MS  # is soon enough for a reader who comes twice a second
_COUNT_NS = 100 * NS_PER_MS  # how often it is asked how many threads wait for CPUs: a crowd comes and goes in seconds
_WAY_NS = 50_000  # that we take to another CPU (25,000 to 60,000 on a virtual machine, if that is idle)
_STRAY, _STRAY_SHARE = 40503, 4  # 65536 times the golden section, which spreads evenly; of the interval


class Tracer:
    """Follows seized threads and fills the channel."""

    def __init__(self, channel: Channel, interval_ns: int, stack_bytes: int, follow: bool,
                 wake: Callable[[], None]) -> None:
        self._channel = channel
        self._wake = wake
        self._interval_ns = interval_ns
        self._options = ptrace.THREADS | (ptrace.PROCESSES if follow else 0)
        self._held = False  # until the collector says that it is there
        self._counted_ns = self._published_ns = 0
        self._collector = tasks.Files(os.getppid(), os.getppid())
        self._crowd = Crowd()  # if there is one, who is woken waits for a CPU for long
        self._own = own = OwnTime()
        self._writer = writer = Writer(channel, stack_bytes)
        self._walk = walk = Walk(interval_ns, self._cpu_of, tells_turns=own.tells_turns)
        self._mappings = mappings = Mappings(writer, interval_ns)
        self._departures = Departures(writer, mappings)
        self._settlement = settled = Settlement(writer, self._departures, self._crowd, interval_ns)
        self._looks = looks = Looks(writer, walk, mappings, self._departures, settled, self._crowd, own, interval_ns)
        inspector = ptrace.Inspector()
        samples = Samples(writer, walk, mappings, settled, inspector, own, interval_ns)
        self._lives = Lives(writer, walk, mappings, settled, looks, samples, inspector, follow=follow)
        self.reports = Reports(writer, settled, looks, samples, self._lives, inspector, own)

    # -- attaching

    def hold(self, pid: int) -> None:
        """Seizes a child that has yet to exec: recording begins with that."""
        ptrace.seize(pid, self._options)
        process = self._lives.processes[pid] = Traced(pid, held=True)
        self._lives.enter(process, pid, time.monotonic_ns())

    def attach(self, pid: int) -> None:
        """Seizes all threads of a running process, of which the first may have ended. Raises OSError."""
        self._held = True
        process = self._lives.processes[pid] = Traced(pid)
        is_whole = False
        while not is_whole:  # until nobody was there whose new threads are not ours by that
            is_whole = True
            for tid in sorted(threads_of(pid) - process.threads.keys(), key=lambda tid: (tid != pid, tid)):
                if self._seize(pid, tid):
                    self._lives.enter(process, tid, time.monotonic_ns())
                    is_whole = False
            self._take_reports()
        if not process.threads:
            raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))

    def _seize(self, pid: int, tid: int) -> bool:
        """Whether a thread is ours by this; else it has ended, or was ours by its maker. Raises PermissionError."""
        try:
            ptrace.seize(tid, self._options)
        except ProcessLookupError:
            return False
        except PermissionError:
            if tasks.tracer_of(tid) == os.getpid() or tasks.has_ended(pid, tid):
                return False
            raise
        return True

    def _begin(self) -> None:
        """Begins with all threads as they are: they are told first, and nothing from before."""
        self._writer.forget()
        self._crowd.look()
        if self._crowd.is_there:
            for thread in self._lives.threads.values():  # before that time, so that any sleep since then shows
                thread.n_sleeps = thread.read_sleeps()
        now_ns = time.monotonic_ns()
        for thread in self._lives.threads.values():
            thread.begin(now_ns + 2)
            self._lives.open_accounts(thread)
            if self._crowd.is_there:
                with suppress(OSError):  # it is gone: its end will be reported
                    thread.waited_before = thread.is_awake()
        for process in self._lives.processes.values():
            self._mappings.read_image(process, process.pid)
        threads = {process.pid: list(process.threads) for process in self._lives.processes.values()}
        self._writer.change("Threads", now_ns, threads)
        for thread in self._lives.threads.values():
            if thread.in_stop:
                self._departures.begin_stopped(thread)
        self.publish()

    # -- the loop

    def run(self, begun: Callable[[], None], stopped: Callable[[], None]) -> None:
        """Until there is nobody left, or the collector wants no more. ``begun`` is called at the end of a hold,
        ``stopped`` when all has been told."""
        settled = quiet = False  # quiet: there is nothing to report
        grid_ns = time.monotonic_ns() + self._interval_ns
        next_ns = grid_ns + self._stray_ns(grid_ns)
        while self._channel.command != END and (quiet or self._take_reports()):
            now_ns = time.monotonic_ns()
            if self._held and self._channel.command != HOLD:
                self._held = False
                self._begin()
                begun()
            if self._channel.command == STOP and not settled:
                self._settle_all()
                self._walk.end()
                settled = True
                stopped()
            if settled and self._writer.behind:
                self.publish()
            visit_ns = self._walk.due_ns(next_ns)
            due_ns = next_ns if visit_ns is None else visit_ns
            if now_ns < due_ns:
                if not self._looks.asked:  # they stop here as soon as we sleep
                    self._walk.go_on()
                quiet = signal.sigtimedwait(_WATCHED, max(due_ns - time.monotonic_ns(), 0) / NS_PER_S) is None
                self._own.arrived(with_turn=quiet and self._walk.is_shared)
                continue
            quiet = False
            self._own.due_ns, self._departures.n_read = due_ns, 0
            if visit_ns is not None:
                self._visit()
                continue
            if not settled and not self._held:
                quiet = self._round(now_ns, grid_ns + self._interval_ns - next_ns)
            grid_ns += ((time.monotonic_ns() - grid_ns) // self._interval_ns + 1) * self._interval_ns
            next_ns = grid_ns + self._stray_ns(grid_ns)
        while self._writer.behind and self._channel.command != END:
            if self._channel.command == STOP and not settled:  # there is nobody left to look at
                settled = True
                stopped()
            signal.sigtimedwait(_WATCHED, _RETRY_S)
            self.publish()
        self.reports.end_calls()

    def _take_reports(self) -> bool:
        """Handles all that has happened; False when there is no thread left."""
        if self.reports.take():
            return True
        self.publish()
        return False

    def _cpu_of(self, tid: int) -> int:
        """The CPU that a thread runs on, or would; -1 if it is gone."""
        thread = self._lives.threads.get(tid)
        try:
            return tasks.parse_stat(thread.files.read("stat")).cpu if thread else -1
        except OSError:
            return -1

    def _stray_ns(self, grid_ns: int) -> int:
        """How much later than an even clock ours strikes: or it would keep step with the scheduler's, and always find
        the same threads waiting."""
        return grid_ns // self._interval_ns * _STRAY % (1 << 16) * (self._interval_ns // _STRAY_SHARE) >> 16

    def _settle_all(self) -> None:
        """A last look at everybody, so that what is told is complete up to now."""
        accounts_of: dict[Tracee, tuple[bytes, int]] = {}  # all of them first: what follows takes its time
        for thread in self._lives.threads.values():
            with suppress(OSError):
                accounts_of[thread] = thread.files.read("schedstat", 64), time.monotonic_ns()
        for thread in self._lives.threads.values():
            if not thread.process.held:
                with suppress(OSError, ValueError, KeyError):
                    self._settlement.settle_last(thread, *accounts_of[thread])
                if thread.running:
                    self._writer.switch(thread, Edge.OUT_PREEMPTED, thread.settled_ns)
                    thread.running = False
        end_ns = max((now_ns for _, now_ns in accounts_of.values()), default=time.monotonic_ns())
        self._writer.publish(time.monotonic_ns(), end_ns)

    def _round(self, now_ns: int, left_ns: int) -> bool:
        """Whether all has been taken that there was to report: of what comes behind that a signal tells."""
        quiet = False
        self._walk.begin()
        self._settlement.is_hungry = bool(self._lives.new)
        is_counted = now_ns - self._counted_ns >= _COUNT_NS
        if is_counted:
            self._counted_ns = now_ns
            self._crowd.look()
        self._looks.begin()
        self._lives.new.clear()
        if not self._writer.behind:
            self._looks.look_at_active(now_ns, self.reports.take)
            if is_counted:
                self._walk.counted(self._crowd.n_runnable - 1 - self._is_collector_ready())
            quiet = self._take_reports()  # of those on other CPUs
            self._looks.look_at_idle()
            self.reports.start_strays(now_ns)
        if self._writer.behind or now_ns - self._published_ns >= _PUBLISH_NS:
            self.publish()
        self._walk.plan(self._own.due_ns, left_ns, self._settlement.is_hungry)
        return quiet

    def _is_collector_ready(self) -> bool:
        """Whether the collector runs, or waits for a CPU."""
        with suppress(OSError):
            return tasks.parse_stat(self._collector.read("stat")).state == b"R"
        return False

    def _visit(self) -> None:
        visit = self._walk.visit()
        self._looks.begin()
        if visit.late:
            self._own.due_ns = visit.left_ns + _WAY_NS  # nobody can have us sooner
            self._own.arrived()
        until_ns = self._looks.until_ns()
        first = self._lives.threads.get(visit.tid)
        for thread in [*visit.threads, *self._lives.new, *([first] if first else [])]:
            if self._writer.behind or time.monotonic_ns() > until_ns:
                self._looks.decide()
                return
            if not thread.gone:
                with suppress(OSError):
                    self._looks.glance(thread, time.monotonic_ns())
        self._looks.decide()
        self._looks.look_at_idle()

    def publish(self) -> None:
        """Hands over what has been told."""
        now_ns = self._published_ns = time.monotonic_ns()
        if self._writer.publish(now_ns, self._looks.horizon_ns(now_ns)):
            self._wake()
