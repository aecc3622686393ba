"""What is seen of threads that have stopped, and whether that is a sample of the clock's. Standard library only."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

from collector.clock import NS_PER_S
from collector.engines.ptrace.mappings import Mappings
from collector.engines.ptrace.mend import Verdict, mend
from collector.engines.ptrace.own_time import OwnTime
from collector.engines.ptrace.settlement import Settlement
from collector.engines.ptrace.targets import PATIENCE, Asked, Tracee
from collector.engines.ptrace.walk import Walk
from collector.engines.ptrace.writer import CLOCK, LEAVE, Look, Writer
from collector.events import Mode, Reason
from collector.linux import abi, accounts, ptrace, tasks

# By which two accounts of one stretch of time may differ: chosen. Both are of one clock, read twice within a switch.
_SAME_NS = 500
# By which we may know too late that we are awake, or that a thread has stopped: chosen. The kernel's clock wakes us 15
# to 55 us late on a busy virtual machine (the tenth and the ninetieth of a hundred times).
_EARLY_NS, _LATE_NS = 25_000, 15_000
# The same where that is no excuse, at a place where the thread is known to sleep: chosen with redis, of whose samples
# 34 to 40 % were in epoll_wait before, which has 22 % of its time.
_SUSPECT_NS = 1_000, 4_000
# In which our clock stops a thread that runs: the median of how late it wakes us on a busy virtual machine.
_AT_ONCE_NS = 25_000
# For which a thread waits whose CPU others use, too: chosen, less than a turn, and more than what threads of the kernel
# take.
_SHARES_NS = 200_000
# Samples without a call, until a thread is taken for one that makes none: of 64, one that is in calls for 6 % of its
# time has none once in fifty times.
_CALLING = 64
_LAST_PATIENCE = 4 * PATIENCE  # intervals without a sample, until anything is better than none
_SOME_TRAPS = 32  # of which one is a sample, of a thread that traps on and on: chosen, to copy few stacks
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_TRAPS = {signal.SIGILL, signal.SIGTRAP, signal.SIGFPE, signal.SIGSEGV, signal.SIGBUS}


def let_run(thread: Tracee, number: int = 0) -> None:
    """A thread that has stopped goes on, with a signal if it was to be given one, and to its next stop at a call if one
    of its calls is being mended."""
    (ptrace.cont_to_call if thread.completion else ptrace.cont)(thread.tid, number)


class Samples:
    """Made of threads that have stopped."""

    def __init__(self, writer: Writer, walk: Walk, mappings: Mappings, settlement: Settlement,
                 inspector: ptrace.Inspector, own: OwnTime, interval_ns: int) -> None:
        self._writer = writer
        self._walk = walk
        self._mappings = mappings
        self._settlement = settlement
        self._inspector = inspector
        self._own = own
        self._interval_ns = interval_ns
        # Of threads that have stopped and run on: when they did either, and what was seen.
        self._looks: list[tuple[Tracee, Look, Asked, int, int]] = []

    def interrupted(self, thread: Tracee, asked: Asked, now_ns: int) -> None:
        """A thread stopped because we asked for it. It goes on as soon as what is to be seen there has been copied;
        what that means is found out afterwards."""
        try:
            look = self.look_at(thread, is_interrupted=True)
            pc = look.registers.dwarf[16]
            has_mapped = thread.process.may_have_mapped(pc)
            if has_mapped:  # what is new may be gone soon
                self._mappings.check(thread, pc, now_ns, thread.settled_ns + 1)
        finally:
            let_run(thread)
        went_on_ns = time.monotonic_ns()
        if not has_mapped:
            with suppress(OSError):  # it has gone on, and may be gone
                self._mappings.check(thread, pc, now_ns, thread.settled_ns + 1)
        if thread.in_stop:
            thread.in_stop, thread.seen_ns = False, now_ns
        self._looks.append((thread, look, asked, now_ns, went_on_ns))

    def mend(self, thread: Tracee) -> None:
        """Of a thread that has been woken to stop, though nobody wants to look at it: its system call."""
        registers = self._inspector.registers(thread.tid)
        if registers.call >= 0:
            self._mend(thread, registers)

    def look_at(self, thread: Tracee, *, is_interrupted: bool = False) -> Look:
        """What is to be seen of a thread while it stands still."""
        registers = self._inspector.registers(thread.tid)
        if is_interrupted and registers.call >= 0:
            self._mend(thread, registers)
        return Look(registers, thread.files.read("schedstat", 64),
                    self._writer.stack_of(thread.tid, registers.dwarf[7]))

    def judge(self) -> None:
        """Those at threads that run on by now."""
        looks, self._looks = self._looks, []
        for thread, look, asked, stopped_ns, went_on_ns in looks:
            self.struck(thread, look, stopped_ns, asked)
            thread.kept_ns += went_on_ns - stopped_ns

    def signalled(self, thread: Tracee, number: int, now_ns: int) -> Look | None:
        """A thread stopped to be given a signal: when, is for others to say, and so it is no sample. One that traps
        on and on has no time for any other."""
        thread.n_signals += 1
        if number not in _TRAPS:
            return None
        thread.n_traps += 1
        if thread.n_traps % _SOME_TRAPS:
            return None
        look = self.look_at(thread)
        self._mappings.check(thread, look.registers.dwarf[16], now_ns, thread.settled_ns + 1)
        return look

    def struck(self, thread: Tracee, look: Look, now_ns: int, asked: Asked | None) -> None:
        """A sample of a thread that had stopped, if it is one of the clock's, or if it has had none for long."""
        registers, raw, _ = look
        if asked:  # since then it ran, waited for a CPU, or had stopped
            cpu_ns, delay_ns, _ = accounts.parse(raw)
            awake_ns = now_ns - asked.time_ns - (cpu_ns - asked.cpu_ns)
            thread.kept_ns += max(awake_ns - (delay_ns - asked.delay_ns), 0)
            thread.waited_at_least_ns += max(awake_ns, 0)
        self._settlement.settle(thread, raw, now_ns)
        if self._writer.behind:
            self._writer.lose("clock")
            return
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
            mode = self._mode(thread, registers, is_asked=asked is not None)
            self._writer.stopped(thread, CLOCK, now_ns, mode, look, thread.cpu)
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
            if waited_ns > _SHARES_NS and not self._walk.is_shared:
                self._walk.was_kept_waiting()
            return not waited_ns and not self._may_have_come_late(thread, registers)
        call, known = registers.call, thread.known
        is_suspect = call in abi.CPU_TIME_CALLS[registers.bits] or (
            bool(known) and tasks.Place(call, registers.dwarf[7], registers.dwarf[16]) in known)
        if is_suspect and asked.came_ns > asked.due_ns + _AT_ONCE_NS:
            return False  # a busy CPU may be ours late, at a call that makes the scheduler look
        # Whom we took the CPU from has waited to the nanosecond as long as we ran. An idle CPU takes its time to wake
        # us, and whom the same moment wakes was not running.
        if abs(waited_ns - (self._own.used_ns - asked.used_ns)) <= _SAME_NS:
            return True
        early_ns, late_ns = _SUSPECT_NS if is_suspect else (_EARLY_NS, _LATE_NS)
        waits_ns = self._own.came_ns - waited_ns - (thread.cpu_ns - asked.cpu_ns)  # if others ran in between
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

    def _mode(self, thread: Tracee, registers: ptrace.Registers, *, is_asked: bool) -> int:
        """Mode of a sample. The registers show system calls alone; how much time page faults and traps took
        shows in the kernel's own sum: where samples fall behind that, they are counted for it."""
        if not is_asked:  # else it has been looked at just before
            with suppress(OSError):  # it may have gone on, and be gone
                thread.system_ticks = tasks.parse_stat(thread.files.read("stat")).system_ticks
        system_ns = thread.system_ticks * NS_PER_S // _TICKS_PER_S
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
