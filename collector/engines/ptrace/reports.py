"""What ptrace reports of threads, and what becomes of each stop. Standard library only."""

from __future__ import annotations

import time
from contextlib import suppress

from collector.clock import NS_PER_S
from collector.engines.ptrace.completions import Completion
from collector.engines.ptrace.lives import Lives
from collector.engines.ptrace.looks import Looks
from collector.engines.ptrace.mend import STOP_SIGNALS, at_signal, go_on
from collector.engines.ptrace.own_time import OwnTime
from collector.engines.ptrace.samples import Samples, let_run
from collector.engines.ptrace.settlement import Settlement
from collector.engines.ptrace.targets import Asked, Tracee
from collector.engines.ptrace.writer import LEAVE, Writer
from collector.events import Edge, Reason
from collector.linux import abi, ptrace, tasks

# How long before it a stop comes that wakes us: chosen, as what a wake-up takes on a virtual machine at least.
_LATE_NS = 15_000
_LEAVE_NS, _LOOK_S = NS_PER_S, 0.001  # a call that does not come back in that is amid what no signal ends


class Reports:
    """Takes what wait(2) tells."""

    def __init__(self, writer: Writer, settlement: Settlement, looks: Looks, samples: Samples, lives: Lives,
                 inspector: ptrace.Inspector, own: OwnTime) -> None:
        self._writer = writer
        self._settlement = settlement
        self._looks = looks
        self._samples = samples
        self._lives = lives
        self._inspector = inspector
        self._own = own
        self._clear_ns = 0  # when there was nothing to report
        self._reported_ns = 0  # when that happened which is reported now, about

    def take(self) -> bool:
        """Handles all that has happened; False when there is no thread left."""
        # They stopped at some time since there was nothing to report; if that woke us, just before.
        woken_ns = self._own.awake_ns - self._own.delayed_ns - _LATE_NS
        self._reported_ns = (max(self._clear_ns, woken_ns) + time.monotonic_ns()) // 2
        try:
            while report := ptrace.next_report():
                self.hear(report)
        except ChildProcessError:
            self._samples.judge()
            return False
        self._samples.judge()
        self._clear_ns = time.monotonic_ns()
        return True

    def hear(self, report: ptrace.Report) -> None:
        """One report."""
        thread = self._lives.threads.get(report.tid)
        if thread is None:
            self._take_unknown(report)
        elif report.gone:
            self._samples.judge()
            self._lives.end(thread)
            ptrace.bury(report.tid)
        else:
            with suppress(OSError):
                self._stopped(thread, report)

    def start_strays(self, now_ns: int) -> None:
        """New threads whose maker does not tell of them begin all the same."""
        for thread, report in self._lives.strays(now_ns):
            self._stopped(thread, report)

    def end_calls(self) -> None:
        """Before we leave: calls that are made again for the rest come back with what they have done so far. Who has
        been let go in one would have the rest's result, and its registers."""
        until_ns = time.monotonic_ns() + _LEAVE_NS
        told: dict[Tracee, Completion] = {}  # once: a second time would stop it behind its call, to mend that
        while time.monotonic_ns() < until_ns:
            amid = [(thread, thread.completion) for thread in self._lives.threads.values() if thread.completion]
            for thread, completion in amid:
                if completion.entered and told.get(thread) is not completion:
                    told[thread] = completion
                    with suppress(OSError):
                        ptrace.interrupt(thread.tid)
            if not amid or not self.take():
                return
            time.sleep(_LOOK_S)

    def _take_unknown(self, report: ptrace.Report) -> None:
        self._samples.judge()
        if report.gone:
            ptrace.bury(report.tid)
        process = self._lives.processes.get(report.tid)
        if report.event == abi.EVENT_EXEC and process is not None:  # its leader had exited before
            leader = Tracee(report.tid, process, tasks.Files(report.tid, report.tid), time.monotonic_ns())
            self._stopped(leader, report)
            return
        self._lives.came_early(report)

    def _stopped(self, thread: Tracee, report: ptrace.Report) -> None:
        began_ns, asked = time.monotonic_ns(), thread.asked
        thread.n_stops += 1
        if asked and report.event == abi.EVENT_STOP and report.signal not in STOP_SIGNALS:
            self._looks.answered(thread)
            self._samples.interrupted(thread, asked, began_ns)
            return
        self._samples.judge()
        amid_signal = asked is not None and report.event == 0 and report.signal != abi.SYSCALL_SIGNAL
        if asked and amid_signal:
            # It was about to be given this signal already: our stop comes before a signal that does (get_signal in
            # kernel/signal.c), and after one that does not. Only if we asked amid that, as the signal of a timer was
            # taken out of the queue (dequeue_signal lets go of the lock), this stop is all: so we ask again.
            thread.asked = asked._replace(amid_signal=True)
            ptrace.interrupt(thread.tid)
        else:  # any other stop is the one that it was asked for: the kernel makes no second one (ptrace_stop)
            self._looks.answered(thread)
        if not asked:
            thread.kept_ns += max(began_ns - self._reported_ns, 0)
        if self._go_through(thread, report, asked, began_ns) and not amid_signal:  # else: when it has stopped as asked
            kept = self._lives.threads.get(report.tid, thread)  # another one, if that was its exec
            kept.kept_ns += time.monotonic_ns() - began_ns

    def _go_through(self, thread: Tracee, report: ptrace.Report, asked: Asked | None, began_ns: int) -> bool:
        """A stop that we did not ask for; False if the thread stays in it."""
        if report.event == 0 and report.signal == abi.SYSCALL_SIGNAL:
            self._at_call(thread, asked, began_ns)
        elif report.event == 0:
            self._give_signal(thread, report.signal, began_ns)
        elif report.event == abi.EVENT_STOP and report.signal in STOP_SIGNALS:
            self._stop_begins(thread, began_ns)
            ptrace.listen(thread.tid)
            return False
        else:
            try:
                if not thread.process.held or report.event == abi.EVENT_EXEC:
                    self._handle(thread, report, began_ns)
            finally:
                let_run(thread)
                if report.event == abi.EVENT_EXIT:
                    thread.let_go_ns = time.monotonic_ns()
        return True

    def _at_call(self, thread: Tracee, asked: Asked | None, now_ns: int) -> None:
        """A thread enters or leaves a call that it makes again for the rest."""
        if thread.completion and not go_on(self._inspector, thread.tid, thread.completion):
            is_cut, thread.completion = thread.completion.is_cut, None
            if asked and is_cut:  # this call, too: the next stop will mend it
                self._looks.ask(thread, thread.files.read("schedstat", 64), now_ns, False)
        let_run(thread)

    def _give_signal(self, thread: Tracee, number: int, now_ns: int) -> None:
        look = None
        try:
            thread.completion = at_signal(self._inspector, thread.tid, number, thread.completion)
            look = self._samples.signalled(thread, number, now_ns)
        finally:
            let_run(thread, number)
        if look:
            self._samples.struck(thread, look, now_ns, None)

    def _handle(self, thread: Tracee, report: ptrace.Report, now_ns: int) -> None:
        match report.event:
            case abi.EVENT_STOP:
                if thread.in_stop:
                    thread.in_stop, thread.seen_ns = False, now_ns
                else:  # a SIGCONT, which wakes all who are traced, and nobody who is not, where none has stopped
                    self._samples.mend(thread)
                if thread.raw == b"":  # it is new, and was not free to sleep
                    thread.kept_ns = now_ns - thread.settled_ns
                    self._settlement.settle_now(thread)
            case abi.EVENT_CLONE | abi.EVENT_FORK | abi.EVENT_VFORK:
                thread.spare_ns = thread.spared_until_ns = 0
                early = self._lives.born(thread, self._inspector.message(thread.tid), report.event, now_ns)
                if early is not None:
                    self._stopped(*early)
            case abi.EVENT_EXEC:
                self._lives.executed(thread, self._inspector.message(thread.tid), now_ns)
            case abi.EVENT_EXIT:
                self._settlement.settle_now(thread)
                if self._outlives(thread):
                    self._lives.end(thread)

    def _outlives(self, thread: Tracee) -> bool:
        """Whether a process goes on without its leader, whose own end is reported behind those of all others: that is
        soon where these are ending, too, and it may have the memory to give back that they had in common."""
        others = thread.process.threads.values()
        return thread.tid == thread.process.pid and any(not other.let_go_ns for other in others if other is not thread)

    def _stop_begins(self, thread: Tracee, now_ns: int) -> None:
        """A job-control stop: the thread is off its CPU from now on."""
        if thread.process.held or thread.in_stop:
            return
        thread.in_stop = True
        self._settlement.settle_now(thread)
        if thread.running:
            look = self._samples.look_at(thread)
            self._writer.stopped(thread, LEAVE, thread.settled_ns - 1, Reason.STOPPED, look)
            self._writer.switch(thread, Edge.OUT_BLOCKED, thread.settled_ns)
            thread.running, thread.place = False, None
