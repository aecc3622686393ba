"""The threads and processes that the tracer follows: births, execs and ends. Standard library only."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import TypeAlias

from collector.clock import NS_PER_MS, NS_PER_S
from collector.engines.ptrace.looks import Looks
from collector.engines.ptrace.mappings import Mappings
from collector.engines.ptrace.samples import Samples
from collector.engines.ptrace.settlement import Settlement
from collector.engines.ptrace.targets import Traced, Tracee
from collector.engines.ptrace.untraceable import Untraceable
from collector.engines.ptrace.walk import Walk
from collector.engines.ptrace.writer import BIRTH, Writer
from collector.events import Edge
from collector.linux import abi, accounts, ptrace, tasks

# A maker tells of a birth as soon as it gets a CPU again, which its child may have taken from it: some turns later.
_STRAY_NS = 50 * NS_PER_MS
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
Early: TypeAlias = "tuple[Tracee, ptrace.Report]"


class Lives:
    """Who there is."""

    def __init__(self, writer: Writer, walk: Walk, mappings: Mappings, settlement: Settlement, looks: Looks,
                 samples: Samples, inspector: ptrace.Inspector, *, follow: bool) -> None:
        self._writer = writer
        self._walk = walk
        self._mappings = mappings
        self._settlement = settlement
        self._looks = looks
        self._samples = samples
        self._inspector = inspector
        self._follow = follow
        self._untraceable = Untraceable(inspector)
        self.processes: dict[int, Traced] = {}
        self.threads: dict[int, Tracee] = {}
        self.new: list[Tracee] = []  # born since the last round
        self._early: dict[int, tuple[int, ptrace.Report]] = {}  # new threads that stopped before we heard of them

    def came_early(self, report: ptrace.Report) -> None:
        """A thread has stopped, or is gone, that we have not heard of, or not any more."""
        if report.gone:
            self._early.pop(report.tid, None)
        else:
            self._early[report.tid] = (time.monotonic_ns(), report)

    def enter(self, process: Traced, tid: int, now_ns: int, *, is_new: bool = False) -> Tracee:
        """A thread that is ours from now on."""
        # Settled a moment later: what is told of its first departure then comes behind its birth.
        thread = Tracee(tid, process, tasks.Files(process.pid, tid), now_ns + 2, looked_ns=now_ns)
        if not is_new:
            self.open_accounts(thread)
        process.threads[tid] = self.threads[tid] = thread
        self._looks.enter(thread)
        return thread

    def open_accounts(self, thread: Tracee) -> None:
        """What a thread did until now is not for us to tell."""
        with suppress(OSError, ValueError):
            thread.raw = thread.files.read("schedstat", 64)
            thread.cpu_ns, thread.delay_ns, thread.turns = accounts.parse(thread.raw)
            thread.sampled_ns = thread.cpu_ns
            thread.system_ns = tasks.parse_stat(thread.files.read("stat")).system_ticks * NS_PER_S // _TICKS_PER_S

    def born(self, maker: Tracee, tid: int, event: int, now_ns: int) -> Early | None:
        """A thread has made another, or a process; returns the stop of that one if it came before."""
        if tid in self.threads:  # taken for a stray: its maker came late to tell
            return None
        parent = maker.process
        is_thread = event == abi.EVENT_CLONE and os.path.exists(f"/proc/{parent.pid}/task/{tid}")
        if not is_thread and tasks.tracer_of(tid) != os.getpid():
            return None  # the status of a maker that was killed meanwhile: its child is a stray; or that is over
        if not is_thread and not self._follow:
            if self._early.pop(tid, None) is None:
                self._await_stop(tid)
            ptrace.detach(tid)
            return None
        if not is_thread:  # all that may fail comes first: then the child is a stray
            look = self._samples.look_at(maker)
            flags = self._clone_flags(maker.tid, event, look.registers)
            self._mappings.check(maker, look.registers.dwarf[16], now_ns, now_ns - 1)
        early = self._early.pop(tid, None)
        process = parent if is_thread else self.processes.setdefault(tid, parent.copied(tid))
        self._writer.change("Forked", now_ns, process.pid, tid, parent.pid, maker.tid)
        if not is_thread:
            self._writer.stopped(maker, BIRTH, now_ns, 0, look, child=tid, flags=flags)
        thread = self.enter(process, tid, now_ns, is_new=True)
        self.new.append(thread)
        thread.first_ns = self._walk.meet(tid, now_ns)
        self._writer.switch(thread, Edge.IN, now_ns)
        return (thread, early[1]) if early is not None else None

    def _clone_flags(self, tid: int, event: int, registers: ptrace.Registers) -> int:
        """The flags of clone(2) that a maker made a process with, as the kernel understands them. Where its memory may
        not be read, those that such an event goes with."""
        bits, call = registers.bits, registers.call
        argument = registers.dwarf[abi.FIRST_ARGUMENT[bits]]
        if call == abi.CLONE3_CALL:
            try:
                return self._inspector.word(tid, argument)
            except OSError:
                return abi.CLONE_VM | abi.CLONE_VFORK if event == abi.EVENT_VFORK else 0
        if call == abi.CLONE_CALL[bits]:
            return argument & ~abi.EXIT_SIGNAL_MASK
        return abi.FORK_CALLS[bits].get(call, 0)

    def _await_stop(self, tid: int) -> None:
        with suppress(ChildProcessError):
            os.waitpid(tid, abi.WAIT_ALL)

    def strays(self, now_ns: int) -> Iterator[Early]:
        """New threads, and their stops, whose maker has not told of them: it died before it could."""
        for tid in [tid for tid, (since_ns, _) in self._early.items() if now_ns - since_ns > _STRAY_NS]:
            _, report = self._early.pop(tid)
            try:
                pid, parent_pid = tasks.group_of(tid)
            except OSError:
                continue
            process = self.processes.get(pid)
            if process is None and not self._follow:
                ptrace.detach(tid)
                continue
            process = process or self.processes.setdefault(pid, Traced(pid, bits=tasks.word_bits(pid)))
            self._writer.change("Forked", now_ns, pid, tid, parent_pid if pid == tid else pid, parent_pid)
            thread = self.enter(process, tid, now_ns)
            self._writer.switch(thread, Edge.IN, now_ns)
            yield thread, report

    def executed(self, thread: Tracee, old_tid: int, now_ns: int) -> None:
        """A new image. The leader's name is ``thread``'s even if another thread, ``old_tid``, called exec."""
        process = thread.process
        caller = process.threads.get(old_tid, thread)
        if caller is not thread:  # it is the leader by now, and found in /proc by that name alone
            caller.files.close()
            caller.files, caller.kept_ns = thread.files, caller.kept_ns + thread.kept_ns
        if not process.held:
            self._settlement.settle_now(caller, now_ns)
        for other in list(process.threads.values()):
            self._forget(other)
        self.processes[process.pid] = process
        self._mappings.begin_image(process, thread.tid, now_ns)
        again = self.enter(process, process.pid, now_ns, is_new=not process.held)
        if not process.held:
            if not caller.running:
                self._writer.switch(again, Edge.IN, now_ns)
            again.first_ns = thread.first_ns
            again.raw = caller.raw  # it is not new
            again.cpu_ns, again.delay_ns, again.turns = caller.cpu_ns, caller.delay_ns, caller.turns
            again.owed_ns, again.sampled_ns, again.system_ns = caller.owed_ns, caller.sampled_ns, caller.system_ns
        process.held = False
        self._judge(again, now_ns)

    def _judge(self, thread: Tracee, now_ns: int) -> None:
        """Whether what has just begun can be traced at all."""
        name = thread.files.read_once("comm")[:-1]  # who is let go may be over at once, and has no name then
        why, is_gone = self._untraceable.begun(thread.tid)
        if not why:
            return
        self._writer.change("LetGo", now_ns, thread.tid, name, why)
        if is_gone:
            self._writer.change("Exited", now_ns + 3, thread.tid, thread.tid)
            self._forget(thread)

    def end(self, thread: Tracee) -> None:
        """A thread is gone; it can still be asked how long it ran."""
        if not thread.gone and not thread.process.held:
            end_ns = self._settlement.settle_end(thread)
            self._writer.change("Exited", end_ns, thread.process.pid, thread.tid)
        self._forget(thread)

    def _forget(self, thread: Tracee) -> None:
        thread.gone = True
        self._looks.answered(thread)
        thread.files.close()
        self.threads.pop(thread.tid, None)
        thread.process.threads.pop(thread.tid, None)
        if not thread.process.threads and self.processes.get(thread.process.pid) is thread.process:
            del self.processes[thread.process.pid]
