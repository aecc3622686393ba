"""Why a thread is off its CPU, and on which stack. Standard library only.

A sleeping thread is never stopped: /proc says where it sleeps, and its stack is read from outside.
"""

from __future__ import annotations

import time
from contextlib import suppress

from collector.engines.ptrace.mappings import Mappings
from collector.engines.ptrace.targets import Tracee
from collector.engines.ptrace.writer import Writer
from collector.events import Edge, Reason
from collector.linux import abi, tasks

_MOST_READ = 16  # stacks of sleeping threads that a round reads even though their place is known
_FAULT_FUNCTIONS = (b"handle_userfault", b"handle_mm_fault", b"exc_page_fault", b"faultin_page")


class Departures:
    """Tells how threads left their CPU."""

    def __init__(self, writer: Writer, mappings: Mappings) -> None:
        self._writer = writer
        self._mappings = mappings
        self.n_read = 0  # stacks, in this round

    def leave(self, thread: Tracee, edge: int, time_ns: int, place: tasks.Place | None, is_there: bool) -> None:
        """The thread left its CPU at a time, to sleep at a place; it still sleeps there now, if it ``is_there``."""
        is_there &= place is not None and place != tasks.UNREAD
        if place is not None and is_there and (place not in thread.known or self.n_read < _MOST_READ):
            is_there = self._tell_departure(thread, time_ns, place)
        else:
            is_there = False
        if place in thread.known and not is_there:
            self._writer.site(thread, time_ns - 1, place)
        self._writer.switch(thread, edge, time_ns)

    def begin_stopped(self, thread: Tracee) -> None:
        """The thread is in a job-control stop as its recording begins, and off its CPU from then on."""
        place = None
        with suppress(OSError):  # it is gone: its end will be reported
            place = thread.where()
        self.leave(thread, Edge.OUT_BLOCKED, thread.settled_ns, place, True)
        thread.running, thread.place = False, place
        thread.seen_ns = thread.asleep_ns = thread.settled_ns

    def _tell_departure(self, thread: Tracee, time_ns: int, place: tasks.Place) -> bool:
        """The stack of a thread that sleeps, if it slept on until that was read; whether it did."""
        self.n_read += 1
        self._mappings.check(thread, place.pc, time.monotonic_ns(), time_ns - 1)
        reason = thread.known.get(place) or self._reason(thread, place)
        columns = {7: place.sp, 16: place.pc}
        if thread.process.bits == 64:  # a system call keeps its arguments; vfork has its return address in one
            columns |= zip(abi.ARGUMENTS_64, place.arguments, strict=False)
        if not self._writer.asleep(thread, time_ns - 1, reason, columns):
            return False
        thread.known[place] = reason
        if reason == Reason.USER_FAULT:
            self._tell_fault(thread, time_ns - 2, place)  # a fault comes before the departure
        return True

    def _reason(self, thread: Tracee, place: tasks.Place) -> Reason:
        if thread.in_stop:
            return Reason.STOPPED
        if place.call < 0:
            is_dumping = tasks.dumps_core(thread.files.read_once("status", 4096))
            return Reason.SLEEP if is_dumping else Reason.USER_FAULT
        if place.call in abi.LOCK_CALLS[thread.process.bits]:
            return Reason.LOCK
        return Reason.KERNEL_FAULT if self._is_in_fault(thread) else Reason.SLEEP

    def _is_in_fault(self, thread: Tracee) -> bool:
        """Whether a thread that sleeps in a system call waits for a page there: the kernel's stack says so to root, the
        one function that it sleeps in to others."""
        for name in ("stack", "wchan"):
            try:
                text = thread.files.read_once(name, 4096)
            except OSError:
                continue
            if text:
                return any(function in text for function in _FAULT_FUNCTIONS)
        return False

    def _tell_fault(self, thread: Tracee, time_ns: int, place: tasks.Place) -> None:
        """Text or data: the page that is waited for is the pc's own, if that is not there."""
        resident = tasks.is_resident(thread.tid, place.pc)
        if resident is not None:
            self._writer.fault(thread, time_ns, 0 if resident else place.pc, place.pc)
