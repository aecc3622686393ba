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

No system call of the target fails because of us; see ``mend``.
"""

from __future__ import annotations

import os
import signal
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from collector.clock import NS_PER_MS, NS_PER_S
from collector.engines.ptrace.channel import END, HOLD, STOP, Channel
from collector.engines.ptrace.departures import Departures
from collector.engines.ptrace.mappings import Mappings
from collector.engines.ptrace.mend import Verdict, go_on, mend
from collector.engines.ptrace.settlement import Settlement
from collector.engines.ptrace.targets import AWAKE_NS, PATIENCE, Asked, Traced, Tracee
from collector.engines.ptrace.untraceable import Untraceable
from collector.engines.ptrace.walk import Walk
from collector.engines.ptrace.writer import BIRTH, CLOCK, LEAVE, Look, Writer
from collector.events import Edge, Mode, Reason
from collector.linux import abi, accounts, ptrace, tasks
from collector.linux.crowd import Crowd

_RETRY_S = 0.01
_WATCHED = {signal.SIGCHLD, signal.SIGUSR1}
_PUBLISH_NS = 50 * NS_PER_MS  # is soon enough for a reader who comes twice a second
_COUNT_NS = 100 * NS_PER_MS
_CHECKS_AT_ONCE = 32
_CALM_LOOKS = 16  # after so many looks without news a thread is looked at more rarely
# One part in so many of the interval is for looks at either kind; for idle ones it is more where samples are missing.
_ACTIVE_SHARE, _IDLE_SHARE, _HUNGRY_SHARE = 8, 30, 12
_IDLE_AT_ONCE = 16
_SAME_NS = 500  # by which two accounts of one stretch of time may differ
_EARLY_NS, _LATE_NS = 25_000, 15_000  # by which we may know too late that we are awake, or that a thread has stopped
_SUSPECT_NS = 1_000, 4_000  # the same, where that is no excuse
_AT_ONCE_NS = 25_000  # in which our clock stops a thread that runs
_WAY_NS = 50_000  # that we take to another CPU (25,000 to 50,000 on a virtual machine)
_CALLING = 64  # samples without a call, until a thread is taken for one that makes none
_STRAY, _STRAY_SHARE = 40503, 4  # 65536 times the golden section; of the interval
_LAST_PATIENCE = 20  # intervals without a sample, until anything is better than none
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_STOP_SIGNALS = {signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
_TRAPS = {signal.SIGILL, signal.SIGTRAP, signal.SIGFPE, signal.SIGSEGV, signal.SIGBUS}
_SOME_TRAPS = 32


class Tracer:
    """Follows seized threads and fills the channel."""

    def __init__(self, channel: Channel, interval_ns: int, stack_bytes: int, follow: bool,
                 wake: Callable[[], None]) -> None:
        self._channel = channel
        self._writer = Writer(channel, stack_bytes)
        self._wake = wake
        self._interval_ns = interval_ns
        self._options = ptrace.THREADS | (ptrace.PROCESSES if follow else 0)
        self._follow = follow
        self._inspector = ptrace.Inspector()
        self._untraceable = Untraceable(self._inspector)
        self._processes: dict[int, Traced] = {}
        self._threads: dict[int, Tracee] = {}
        # Who was looked at longest ago comes first: threads that have run of late, and those that sleep for long.
        self._active: deque[Tracee] = deque()
        self._idle: deque[Tracee] = deque()
        self._early: dict[int, tuple[int, ptrace.Report]] = {}  # new threads that stopped before we heard of them
        self._held = False  # until the collector says that it is there
        self._walk = Walk(interval_ns, self._cpu_of)
        self._new: list[Tracee] = []  # born since the last round
        self._due_ns = 0  # when the clock struck for what is being done
        self._own_account = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        self._counted_ns = self._published_ns = 0
        self._crowd = Crowd()  # if there is one, who is woken waits for a CPU for long
        self._mappings = Mappings(self._writer, interval_ns)
        self._departures = Departures(self._writer, self._mappings)
        self._settlement = Settlement(self._writer, self._departures, self._crowd, interval_ns)
        self._checks_left = 0  # of threads that sleep, whether they still do
        self._awake_ns = 0  # when we last had slept
        self._came_ns = 0  # when we got our CPU then
        self._used_ns = 0  # how long we had run until then
        self._delay_ns = self._delayed_ns = 0  # how long we have waited for CPUs; and of that since we came before
        self._clear_ns = 0  # when there was nothing to report
        self._reported_ns = 0  # when that happened which is reported now, about
        self._asked: set[Tracee] = set()
        # Of threads that have stopped and run on: when they did either, and what was seen.
        self._looks: list[tuple[Tracee, Look, Asked, int, int]] = []

    # -- attaching

    def hold(self, pid: int) -> None:
        """Seizes a child that has yet to exec: recording begins with that."""
        ptrace.seize(pid, self._options)
        process = self._processes[pid] = Traced(pid, held=True)
        self._enter(process, pid, time.monotonic_ns())

    def attach(self, pid: int) -> None:
        """Seizes all threads of a running process. Raises OSError."""
        self._held = True
        process = self._processes[pid] = Traced(pid)
        ptrace.seize(pid, self._options)
        self._enter(process, pid, time.monotonic_ns())
        while new := [tid for tid in map(int, os.listdir(f"/proc/{pid}/task")) if tid not in process.threads]:
            for tid in new:
                try:
                    ptrace.seize(tid, self._options)
                except ProcessLookupError:
                    continue
                except PermissionError:
                    if tasks.tracer_of(tid) == os.getpid() or not os.path.exists(f"/proc/{pid}/task/{tid}"):
                        continue  # new, and ours already by its maker; or gone
                    raise
                self._enter(process, tid, time.monotonic_ns())
            self._take_reports()

    def _begin(self) -> None:
        """Begins with all threads as they are: they are told first, and nothing from before."""
        self._writer.forget()
        self._crowd.look()
        if self._crowd.is_there:
            for thread in self._threads.values():  # before that time, so that any sleep since then shows
                thread.n_sleeps = thread.read_sleeps()
        now_ns = time.monotonic_ns()
        for thread in self._threads.values():
            thread.settled_ns = now_ns + 2
            self._open_accounts(thread)
            if self._crowd.is_there:
                with suppress(OSError):  # it is gone: its end will be reported
                    thread.waited_before = thread.is_awake()
        for process in self._processes.values():
            self._mappings.read_image(process, process.pid)
        threads = {process.pid: list(process.threads) for process in self._processes.values()}
        self._writer.change("Threads", now_ns, threads)
        self._publish()

    # -- the loop

    def run(self, begun: Callable[[], None], stopped: Callable[[], None]) -> None:
        """Until there is nobody left, or the collector wants no more. ``begun`` is called at the end of a hold,
        ``stopped`` when all has been told."""
        settled = False
        grid_ns = time.monotonic_ns() + self._interval_ns
        next_ns = grid_ns + self._stray_ns(grid_ns)
        while self._channel.command != END and self._take_reports():
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
            visit_ns = self._walk.due_ns(next_ns)
            due_ns = next_ns if visit_ns is None else visit_ns
            if now_ns < due_ns:
                if not self._asked:  # they stop here as soon as we sleep
                    self._walk.go_on()
                signal.sigtimedwait(_WATCHED, max(due_ns - time.monotonic_ns(), 0) / NS_PER_S)
                self._arrived()
                continue
            self._due_ns, self._departures.n_read = due_ns, 0
            if visit_ns is not None:
                self._visit()
                continue
            if not settled and not self._held:
                self._round(now_ns, grid_ns + self._interval_ns - next_ns)
            grid_ns += ((time.monotonic_ns() - grid_ns) // self._interval_ns + 1) * self._interval_ns
            next_ns = grid_ns + self._stray_ns(grid_ns)
        while self._writer.behind and self._channel.command != END:
            signal.sigtimedwait(_WATCHED, _RETRY_S)
            self._publish()

    def _arrived(self) -> None:
        """We have got a CPU: since when tells the kernel's account of ourselves, which it last brought up to date as it
        took the one before from us."""
        raw = os.pread(self._own_account, 64, 0)
        used_ns, self._awake_ns = time.thread_time_ns(), time.monotonic_ns()
        self._used_ns, delay_ns, _ = accounts.parse(raw)
        self._delay_ns, self._delayed_ns = delay_ns, delay_ns - self._delay_ns
        self._came_ns = self._awake_ns - (used_ns - self._used_ns)

    def _cpu_of(self, tid: int) -> int:
        """The CPU that a thread runs on, or would; -1 if it is gone."""
        thread = self._threads.get(tid)
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
        for thread in self._threads.values():
            with suppress(OSError):
                accounts_of[thread] = thread.files.read("schedstat", 64), time.monotonic_ns()
        for thread in self._threads.values():
            if not thread.process.held:
                with suppress(OSError, ValueError, KeyError):
                    self._settlement.settle_last(thread, *accounts_of[thread])
                if thread.running:
                    self._writer.switch(thread, Edge.OUT_PREEMPTED, thread.settled_ns)
                    thread.running = False
        end_ns = max((now_ns for _, now_ns in accounts_of.values()), default=time.monotonic_ns())
        self._writer.publish(time.monotonic_ns(), end_ns)

    def _round(self, now_ns: int, left_ns: int) -> None:
        self._walk.begin()
        self._settlement.is_hungry = bool(self._new)
        if now_ns - self._counted_ns >= _COUNT_NS:
            self._counted_ns = now_ns
            self._crowd.look()
        self._checks_left = _CHECKS_AT_ONCE
        self._new.clear()
        if not self._writer.behind:
            self._look_at_active(now_ns + self._interval_ns // _ACTIVE_SHARE)
            self._take_reports()  # of those on other CPUs
            self._look_at_idle()
            self._start_strays(now_ns)
        if self._writer.behind or now_ns - self._published_ns >= _PUBLISH_NS:
            self._publish()
        self._walk.plan(self._due_ns, left_ns, self._settlement.is_hungry)

    def _visit(self) -> None:
        visit = self._walk.visit()
        self._checks_left = _CHECKS_AT_ONCE
        if visit.late:
            self._due_ns = visit.left_ns + _WAY_NS  # nobody can have us sooner
            self._arrived()
        until_ns = time.monotonic_ns() + self._interval_ns // _ACTIVE_SHARE
        first = self._threads.get(visit.tid)
        for thread in [*visit.threads, *self._new, *([first] if first else [])]:
            if self._writer.behind or time.monotonic_ns() > until_ns:
                return
            if not thread.gone:
                with suppress(OSError):
                    self._glance(thread, time.monotonic_ns())
        self._look_at_idle()

    def _look_at_active(self, until_ns: int) -> None:
        """Looks at threads in turn, each at most once, as long as there is time: the others come next time."""
        for _ in range(len(self._active)):
            thread = self._active.popleft()
            if not thread.gone:
                self._look(thread)
                self._sort_in(thread)
            if time.monotonic_ns() > until_ns:
                return

    def _look_at_idle(self) -> None:
        """The same for threads that have slept for long. Nearly all still do: to see that must cost next to nothing,
        or we meet none of those few of many that run for a moment."""
        threads, now_ns = self._idle, time.monotonic_ns()
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

    def _publish(self) -> None:
        now_ns = self._published_ns = time.monotonic_ns()
        horizon_ns = min([now_ns, *(threads[0].looked_ns for threads in (self._active, self._idle) if threads)])
        if self._writer.publish(now_ns, horizon_ns):
            self._wake()

    # -- looks

    def _look(self, thread: Tracee) -> None:
        if thread.gone or thread.process.held:
            return
        now_ns = time.monotonic_ns()
        with suppress(OSError):  # it is gone: its end will be reported
            self._glance(thread, now_ns)
            thread.looked_ns = now_ns

    def _glance(self, thread: Tracee, now_ns: int) -> None:
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
        if not self._crowd.is_there:
            thread.seen_ns = now_ns
        if thread.awake_ns or now_ns - thread.seen_ns < AWAKE_NS or not self._checks_left:
            return
        self._checks_left -= 1
        with suppress(OSError):  # it is gone: its end will be reported
            if not thread.is_awake():
                thread.seen_ns = now_ns
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
        place = tasks.parse_place(thread.files.read("syscall")) if stat.state != b"R" else None
        thread.cpu = stat.cpu
        if place is None:
            thread.calm = 0
            if thread.n_calling:
                self._walk.note(thread, stat.cpu)
            if now_ns < thread.first_ns:
                return
            is_here = self._walk.is_here(stat.cpu)
            waits, thread.looked_raw = raw == thread.looked_raw, raw
            if is_here and waits:  # it has not run since the last look
                return
            is_first, thread.first_ns = thread.first_ns > 0, 0
            unsampled_ns = accounts.parse(raw)[0] - thread.sampled_ns
            if is_here or is_first or not thread.n_calling or unsampled_ns > PATIENCE * self._interval_ns:
                unseen_ns = raw_ns - thread.looked_ns
                if not thread.running and raw != thread.raw and unseen_ns > AWAKE_NS and self._crowd.is_there:
                    self._settlement.settle_awake(thread, raw, raw_ns)  # or it would be told to sleep until it stops
                self._ask(thread, raw, raw_ns, is_here)
            elif thread.n_signals and unsampled_ns > self._interval_ns // 2:
                self._walk.seek(thread.tid, now_ns)
            return
        if stat.state not in (b"S", b"D"):  # it has stopped and waits for us, or runs on just now
            if thread.n_signals:
                self._walk.seek(thread.tid, now_ns, later=True)
            return
        if raw != thread.raw:
            thread.calm = 0
            self._walk.note(thread, stat.cpu)
            if thread.files.read("schedstat", 64) != raw:  # it ran on meanwhile: nothing is known for sure
                return
            self._settlement.settle(thread, raw, now_ns, place)
        else:
            thread.calm += 1
            self._departures.leave(thread, Edge.OUT_BLOCKED, thread.settled_ns, place, True)
            thread.running, thread.place, thread.seen_ns = False, place, now_ns

    def _ask(self, thread: Tracee, raw: bytes, now_ns: int, is_here: bool) -> None:
        """Lets a thread stop that runs or waits for a CPU: our own, or one that we are not on."""
        if now_ns < thread.spared_until_ns:
            return
        self._mappings.measure(thread, now_ns)  # while it may still run
        with suppress(ProcessLookupError):
            ptrace.interrupt(thread.tid)
            cpu_ns, delay_ns, _ = accounts.parse(raw)
            thread.asked = Asked(now_ns, cpu_ns, delay_ns, is_here, self._due_ns, self._came_ns, self._used_ns,
                                 now_ns - thread.looked_ns)
            self._asked.add(thread)

    # -- samples

    def _interrupted(self, thread: Tracee, asked: Asked, now_ns: int) -> None:
        """A thread stopped because we asked for it. It goes on as soon as what is to be seen there has been copied;
        what that means is found out afterwards."""
        thread.asked = None
        self._asked.discard(thread)
        try:
            look = self._look_at_stopped(thread, is_interrupted=True)
            self._mappings.check(thread, look.registers.dwarf[16], now_ns, thread.settled_ns + 1)
        finally:
            self._cont(thread)
        if thread.in_stop:
            thread.in_stop, thread.seen_ns = False, now_ns
        self._looks.append((thread, look, asked, now_ns, time.monotonic_ns()))

    def _look_at_stopped(self, thread: Tracee, *, is_interrupted: bool = False) -> Look:
        registers = self._inspector.registers(thread.tid)
        if is_interrupted and registers.call >= 0:
            self._mend(thread, registers)
        return Look(registers, thread.files.read("schedstat", 64),
                    self._writer.stack_of(thread.process.pid, registers.dwarf[7]))

    def _judge_looks(self) -> None:
        """Those at threads that run on by now."""
        looks, self._looks = self._looks, []
        for thread, look, asked, stopped_ns, went_on_ns in looks:
            self._struck(thread, look, stopped_ns, asked)
            thread.kept_ns += went_on_ns - stopped_ns

    def _signalled(self, thread: Tracee, number: int, now_ns: int) -> Look | None:
        """A thread stopped to be given a signal: when, is for others to say, and so it is no sample. One that traps
        on and on has no time for any other."""
        thread.n_signals += 1
        if number not in _TRAPS:
            return None
        thread.n_traps += 1
        if thread.n_traps % _SOME_TRAPS:
            return None
        look = self._look_at_stopped(thread)
        self._mappings.check(thread, look.registers.dwarf[16], now_ns, thread.settled_ns + 1)
        return look

    def _struck(self, thread: Tracee, look: Look, now_ns: int, asked: Asked | None) -> None:
        """A sample of a thread that had stopped, if it is one of the clock's, or if it has had none for long."""
        if self._writer.behind:
            self._writer.lose("clock")
            return
        registers, raw, _ = look
        if asked:  # since then it ran, waited for a CPU, or had stopped
            cpu_ns, delay_ns, _ = accounts.parse(raw)
            awake_ns = now_ns - asked.time_ns - (cpu_ns - asked.cpu_ns)
            thread.kept_ns += max(awake_ns - (delay_ns - asked.delay_ns), 0)
            thread.waited_at_least_ns += max(awake_ns, 0)
        self._settlement.settle(thread, raw, now_ns)
        if registers.call in abi.MAKING_CALLS[registers.bits] and registers.result == 0:
            return  # it is new: on its first instructions glibc's tables still show its maker's frame
        unsampled_ns = thread.cpu_ns - thread.sampled_ns
        is_sample = unsampled_ns > (_LAST_PATIENCE if asked else 1) * self._interval_ns or (asked is not None and (
            self._ran_when_asked(thread, registers, asked) or self._is_wanted(thread, registers)))
        if asked and not is_sample and thread.n_signals:
            self._walk.seek(thread.tid, now_ns, later=True)
        if thread.process.bits != registers.bits:
            thread.process.bits = registers.bits
        if is_sample:
            thread.n_calling = _CALLING if registers.call >= 0 else max(thread.n_calling - 1, 0)
            self._writer.stopped(thread, CLOCK, now_ns, self._mode(thread, registers), look, thread.cpu)
        elif thread.waited_from_ns:  # at least that is where it waited
            self._writer.stopped(thread, LEAVE, thread.waited_from_ns - 1, Reason.UNKNOWN, look)

    def _ran_when_asked(self, thread: Tracee, registers: ptrace.Registers, asked: Asked) -> bool:
        """Whether a thread that has stopped ran when the clock struck: on our own CPU it has waited since we got it, on
        another one it has not. One that waited before stopped where the scheduler had stopped it, and one that was
        woken since then where it slept: both are at ends of system calls above all, and no samples of the clock's."""
        waited_ns = thread.delay_ns - asked.delay_ns
        if asked.amid_signal:
            return False
        if not asked.is_here:
            return not waited_ns and not self._may_have_come_late(thread, registers)
        place = tasks.Place(registers.call, registers.dwarf[7], registers.dwarf[16])
        is_suspect = place in thread.known or place.call in abi.CPU_TIME_CALLS[registers.bits]
        if is_suspect and asked.came_ns > asked.due_ns + _AT_ONCE_NS:
            return False  # a busy CPU may be ours late, at a call that makes the scheduler look
        # Whom we took the CPU from has waited to the nanosecond as long as we ran. An idle CPU takes its time to wake
        # us, and whom the same moment wakes was not running.
        if abs(waited_ns - (self._used_ns - asked.used_ns)) <= _SAME_NS:
            return True
        early_ns, late_ns = _SUSPECT_NS if is_suspect else (_EARLY_NS, _LATE_NS)
        waits_ns = self._came_ns - waited_ns - (thread.cpu_ns - asked.cpu_ns)  # if others ran in between
        return asked.came_ns - early_ns <= waits_ns <= asked.came_ns + late_ns

    def _may_have_come_late(self, thread: Tracee, registers: ptrace.Registers) -> bool:
        """Whether a thread of another CPU may have made a call as the clock had struck already, and stopped there. Such
        threads are visited from then on, until long none of their samples has been in a call."""
        if registers.call < 0 or thread.n_calling:
            return False
        thread.n_calling = _CALLING
        self._walk.seek(thread.tid, time.monotonic_ns(), later=True)
        return True

    def _is_wanted(self, thread: Tracee, registers: ptrace.Registers) -> bool:
        """Whether a thread that has had no sample yet is taken where the scheduler stopped it, in its own code: beside
        other programs the clock meets few short threads, and those few, or their maker, would stand for all."""
        process = thread.process
        return (not thread.sampled_ns and registers.call < 0
                and process.cpu_ns - process.sampled_ns > PATIENCE * self._interval_ns)

    def _mode(self, thread: Tracee, registers: ptrace.Registers) -> int:
        """Mode of a sample. The registers show system calls alone; how much time page faults and traps took
        shows in the kernel's own sum: where samples fall behind that, they are counted for it."""
        system_ns = thread.system_ns
        with suppress(OSError):  # it may have gone on, and be gone
            system_ns = tasks.parse_stat(thread.files.read("stat")).system_ticks * NS_PER_S // _TICKS_PER_S
        weight_ns = thread.cpu_ns - thread.sampled_ns
        thread.sampled_ns, thread.process.sampled_ns = thread.cpu_ns, thread.process.cpu_ns
        most_ns = PATIENCE * self._interval_ns
        thread.process.owed_ns = min(max(thread.process.owed_ns - self._interval_ns, -most_ns), 2 * most_ns)
        untold_ns = system_ns - thread.system_ns - weight_ns
        mode = Mode.SYSTEM_CALL if registers.call >= 0 else Mode.USER
        if mode == Mode.USER and untold_ns > max(2 * NS_PER_S // _TICKS_PER_S, thread.cpu_ns // 20):
            mode = Mode.TRAP if thread.n_traps else Mode.SYSTEM_CALL
        if mode != Mode.USER:
            thread.system_ns += weight_ns
        thread.n_traps = thread.n_signals = 0
        return mode

    def _mend(self, thread: Tracee, registers: ptrace.Registers) -> None:
        """Undoes what our interruption did to the system call that the thread is in."""
        if thread.completion:  # on its way to make a call again
            return
        verdict, thread.completion = mend(self._inspector, thread.tid, registers)
        if verdict is Verdict.SPARE:
            thread.spare_ns = min(max(2 * thread.spare_ns, 4 * self._interval_ns), NS_PER_S)
            thread.spared_until_ns = time.monotonic_ns() + thread.spare_ns

    # -- what ptrace reports

    def _take_reports(self) -> bool:
        """Handles all that has happened; False when there is no thread left."""
        # They stopped at some time since there was nothing to report; if that woke us, just before.
        woken_ns = self._awake_ns - self._delayed_ns - _LATE_NS
        self._reported_ns = (max(self._clear_ns, woken_ns) + time.monotonic_ns()) // 2
        try:
            while report := ptrace.next_report():
                thread = self._threads.get(report.tid)
                if thread is None:
                    self._take_unknown(report)
                elif report.gone:
                    self._judge_looks()
                    self._end(thread)
                    ptrace.bury(report.tid)
                else:
                    with suppress(OSError):
                        self._stopped(thread, report)
        except ChildProcessError:
            self._judge_looks()
            self._publish()
            return False
        self._judge_looks()
        self._clear_ns = time.monotonic_ns()
        return True

    def _take_unknown(self, report: ptrace.Report) -> None:
        self._judge_looks()
        if report.gone:
            ptrace.bury(report.tid)
        process = self._processes.get(report.tid)
        if report.event == abi.EVENT_EXEC and process is not None:  # its leader had exited before
            leader = Tracee(report.tid, process, tasks.Files(report.tid, report.tid), time.monotonic_ns())
            self._stopped(leader, report)
            return
        if report.gone:
            self._early.pop(report.tid, None)
        else:
            self._early[report.tid] = (time.monotonic_ns(), report)

    def _stopped(self, thread: Tracee, report: ptrace.Report) -> None:
        began_ns, asked = time.monotonic_ns(), thread.asked
        thread.n_stops += 1
        if asked and report.event == abi.EVENT_STOP and report.signal not in _STOP_SIGNALS:
            self._interrupted(thread, asked, began_ns)
            return
        self._judge_looks()
        if asked and report.event == 0 and report.signal != abi.SYSCALL_SIGNAL:
            # It was about to be given this signal already: our stop comes before a signal that does (get_signal in
            # kernel/signal.c), and after one that does not.
            thread.asked = replace(asked, amid_signal=True)
        else:  # any other stop is the one that it was asked for: the kernel makes no second one (ptrace_stop)
            thread.asked = None
            self._asked.discard(thread)
        if not asked:
            thread.kept_ns += max(began_ns - self._reported_ns, 0)
        if report.event == 0 and report.signal == abi.SYSCALL_SIGNAL:
            if thread.completion and not go_on(self._inspector, thread.tid, thread.completion):
                is_short, thread.completion = thread.completion.done < thread.completion.size, None
                if is_short:  # this call, too, was cut: the next stop will mend it
                    self._ask(thread, thread.files.read("schedstat", 64), began_ns, False)
            self._cont(thread)
        elif report.event == 0:
            look = None
            try:
                look = self._signalled(thread, report.signal, began_ns)
            finally:
                ptrace.cont(thread.tid, report.signal)
            if look:
                self._struck(thread, look, began_ns, None)
            if asked:  # the time since then is told when it has stopped for that
                return
        elif report.event == abi.EVENT_STOP and report.signal in _STOP_SIGNALS:
            self._stop_begins(thread, began_ns)
            ptrace.listen(thread.tid)
            return
        else:
            try:
                if not thread.process.held or report.event == abi.EVENT_EXEC:
                    self._handle(thread, report, began_ns)
            finally:
                self._cont(thread)
                if report.event == abi.EVENT_EXIT:
                    thread.let_go_ns = time.monotonic_ns()
        thread.kept_ns += time.monotonic_ns() - began_ns

    def _cont(self, thread: Tracee) -> None:
        if thread.completion:
            ptrace.cont_to_call(thread.tid)
        else:
            ptrace.cont(thread.tid)

    def _handle(self, thread: Tracee, report: ptrace.Report, now_ns: int) -> None:
        match report.event:
            case abi.EVENT_STOP:
                if thread.in_stop:
                    thread.in_stop, thread.seen_ns = False, now_ns
                if thread.raw == b"":  # it is new, and was not free to sleep
                    thread.kept_ns = now_ns - thread.settled_ns
                    self._settlement.settle_now(thread)
            case abi.EVENT_CLONE | abi.EVENT_FORK | abi.EVENT_VFORK:
                thread.spare_ns = thread.spared_until_ns = 0
                self._born(thread, self._inspector.message(thread.tid), report.event, now_ns)
            case abi.EVENT_EXEC:
                self._executed(thread, self._inspector.message(thread.tid), now_ns)
            case abi.EVENT_EXIT:
                self._settlement.settle_now(thread)
                if thread.tid == thread.process.pid and len(thread.process.threads) > 1:
                    self._end(thread)

    def _stop_begins(self, thread: Tracee, now_ns: int) -> None:
        """A job-control stop: the thread is off its CPU from now on."""
        if thread.process.held or thread.in_stop:
            return
        thread.in_stop = True
        self._settlement.settle_now(thread)
        if thread.running:
            look = self._look_at_stopped(thread)
            self._writer.stopped(thread, LEAVE, thread.settled_ns - 1, Reason.STOPPED, look)
            self._writer.switch(thread, Edge.OUT_BLOCKED, thread.settled_ns)
            thread.running, thread.place = False, None

    # -- births, execs and ends

    def _enter(self, process: Traced, tid: int, now_ns: int, *, is_new: bool = False) -> Tracee:
        # Settled a moment later: what is told of its first departure then comes behind its birth.
        thread = Tracee(tid, process, tasks.Files(process.pid, tid), now_ns + 2, looked_ns=now_ns)
        if not is_new:
            self._open_accounts(thread)
        process.threads[tid] = self._threads[tid] = thread
        self._active.append(thread)
        return thread

    def _open_accounts(self, thread: Tracee) -> None:
        """What a thread did until now is not for us to tell."""
        with suppress(OSError, ValueError):
            thread.raw = thread.files.read("schedstat", 64)
            thread.cpu_ns, thread.delay_ns, thread.turns = accounts.parse(thread.raw)
            thread.sampled_ns = thread.cpu_ns
            thread.system_ns = tasks.parse_stat(thread.files.read("stat")).system_ticks * NS_PER_S // _TICKS_PER_S

    def _born(self, maker: Tracee, tid: int, event: int, now_ns: int) -> None:
        parent = maker.process
        is_thread = event == abi.EVENT_CLONE and os.path.exists(f"/proc/{parent.pid}/task/{tid}")
        early = self._early.pop(tid, None)
        if not is_thread and not self._follow:
            if early is None:
                self._await_stop(tid)
            ptrace.detach(tid)
            return
        if not is_thread:
            look = self._look_at_stopped(maker)
            self._mappings.check(maker, look.registers.dwarf[16], now_ns, now_ns - 1)
        process = parent if is_thread else self._processes.setdefault(tid, Traced(
            tid, bits=parent.bits, mapped=set(parent.mapped), starts=parent.starts, ends=parent.ends,
            size=parent.size, size_now=parent.size, library=parent.library, mapped_ns=parent.mapped_ns,
            young_until_ns=parent.young_until_ns))
        self._writer.change("Forked", now_ns, process.pid, tid, parent.pid, maker.tid)
        if not is_thread:
            self._writer.stopped(maker, BIRTH, now_ns, 0, look, child=tid,
                                 flags=self._clone_flags(maker.tid, look.registers))
        thread = self._enter(process, tid, now_ns, is_new=True)
        self._new.append(thread)
        thread.first_ns = self._walk.meet(tid, now_ns)
        self._writer.switch(thread, Edge.IN, now_ns)
        if early is not None:
            self._stopped(thread, early[1])

    def _clone_flags(self, tid: int, registers: ptrace.Registers) -> int:
        """The flags of clone(2) that a maker made a process with, as the kernel understands them."""
        bits, call = registers.bits, registers.call
        argument = registers.dwarf[abi.FIRST_ARGUMENT[bits]]
        if call == abi.CLONE3_CALL:
            return self._inspector.word(tid, argument)
        if call == abi.CLONE_CALL[bits]:
            return argument & ~abi.EXIT_SIGNAL_MASK
        return abi.FORK_CALLS[bits].get(call, 0)

    def _await_stop(self, tid: int) -> None:
        with suppress(ChildProcessError):
            os.waitpid(tid, abi.WAIT_ALL)

    def _start_strays(self, now_ns: int) -> None:
        """New threads whose maker died before it could tell of them."""
        for tid in [tid for tid, (since_ns, _) in self._early.items() if now_ns - since_ns > 50 * NS_PER_MS]:
            _, report = self._early.pop(tid)
            try:
                pid, parent_pid = tasks.group_of(tid)
            except OSError:
                continue
            process = self._processes.get(pid)
            if process is None and not self._follow:
                ptrace.detach(tid)
                continue
            process = process or self._processes.setdefault(pid, Traced(pid, bits=tasks.word_bits(pid)))
            self._writer.change("Forked", now_ns, pid, tid, parent_pid if pid == tid else pid, parent_pid)
            thread = self._enter(process, tid, now_ns)
            self._writer.switch(thread, Edge.IN, now_ns)
            self._stopped(thread, report)

    def _executed(self, thread: Tracee, old_tid: int, now_ns: int) -> None:
        """A new image. The leader's name is ``thread``'s even if another thread, ``old_tid``, called exec."""
        process = thread.process
        caller = process.threads.get(old_tid, thread)
        if not process.held:
            self._settlement.settle_now(thread)
        for other in list(process.threads.values()):
            self._forget(other)
        self._processes[process.pid] = process
        self._mappings.begin_image(process, thread.tid, now_ns)
        again = self._enter(process, process.pid, now_ns, is_new=not process.held)
        if not process.held:
            if not thread.running:
                self._writer.switch(again, Edge.IN, now_ns)
            again.first_ns = thread.first_ns
            again.cpu_ns, again.delay_ns, again.turns = caller.cpu_ns, caller.delay_ns, caller.turns
            again.owed_ns, again.sampled_ns, again.system_ns = caller.owed_ns, caller.sampled_ns, caller.system_ns
        process.held = False
        self._judge(again, now_ns)

    def _judge(self, thread: Tracee, now_ns: int) -> None:
        """Whether what has just begun can be traced at all."""
        why, is_gone = self._untraceable.begun(thread.tid)
        if not why:
            return
        self._writer.change("LetGo", now_ns, thread.tid, thread.files.read_once("comm")[:-1], why)
        if is_gone:
            self._writer.change("Exited", now_ns + 3, thread.tid, thread.tid)
            self._forget(thread)

    def _end(self, thread: Tracee) -> None:
        """A thread is gone; it can still be asked how long it ran."""
        if not thread.gone and not thread.process.held:
            end_ns = self._settlement.settle_end(thread)
            self._writer.change("Exited", end_ns, thread.process.pid, thread.tid)
        self._forget(thread)

    def _forget(self, thread: Tracee) -> None:
        thread.gone = True
        self._asked.discard(thread)
        thread.files.close()
        self._threads.pop(thread.tid, None)
        thread.process.threads.pop(thread.tid, None)
        if not thread.process.threads and self._processes.get(thread.process.pid) is thread.process:
            del self._processes[thread.process.pid]
