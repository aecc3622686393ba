"""CPU time that threads used behind their last record, by the clock of their process. Pure.

The kernel takes a thread's events away some 50 us before its last switch, and its account goes with it. The CPU clock
of its process keeps both: the time of threads that live, and all of those that are gone. What the clock has and nobody
was told belongs to those that are gone:

    clock - where it began = told of threads that live + told of those that are gone + the remainder

A running thread's share of the clock is up to a scheduler tick old, as its account is. So the difference is at most the
remainder, never more; what is missing in one look is told by the next. Where even so old a clock has less than was
told, a hypervisor had the CPUs of some that are gone, whose records do not know that: what the clock has of others is
not to be taken for it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from collector.events import Array
from collector.timing.ledger import LEAST_NS, LONGEST_TICK_NS, TICK_NS, Ledger
from collector.timing.timeline import Timeline


@dataclass(slots=True, eq=False, repr=False)
class _Process:
    """What is known of a process's clock."""

    base_ns: int | None  # the clock when its recording began, at most; None: the first look tells
    slot: int = -1  # of the thread whose account began when the clock did, if that is not zero
    told_ns: int = 0  # of threads that are gone
    has_lost: bool = False  # threads, of whose ends no remainder has told
    less_ns: int = 0  # by which the base may be less, when the thread that told it is gone


class Remainders:
    """Of processes that were announced by ``begin`` or ``found``; others have none."""

    def __init__(self, timeline: Timeline, ledger: Ledger) -> None:
        self._timeline = timeline
        self._ledger = ledger
        self._of: dict[int, _Process] = {}

    def begin(self, pid: int, slot: int = -1) -> None:
        """A process whose clock begins at zero, or with the account of the thread at ``slot``."""
        self._of[pid] = _Process(None if slot >= 0 else 0, slot)

    def found(self, pid: int) -> None:
        """A process that ran before: its first look is the beginning."""
        self._of[pid] = _Process(None)

    def forget(self, pid: int) -> None:
        """Nothing more is to be told of a process."""
        self._of.pop(pid, None)

    def used_ns(self, pid: int, slots: Array) -> int | None:
        """What a process's clock had when its last threads, at ``slots`` (n,), ended; None where it is not known where
        it began."""
        process = self._of.get(pid)
        base_ns = self._base_ns(process, slots) if process is not None else None
        if process is None or base_ns is None:
            return None
        return base_ns + process.told_ns + int(self._timeline.clocks.cpu_ns[slots].sum())

    def gone(self, pid: int, slots: Array, tails_ns: int) -> None:
        """Threads of a process are gone that were at ``slots`` (n,), of which so much was told in all, and so much more
        behind their ends."""
        process = self._of.get(pid)
        if process is not None:
            process.told_ns += int(self._timeline.clocks.cpu_ns[slots].sum()) + tails_ns
            process.has_lost = True
            if process.slot in slots:  # which may be another thread's next
                bases_ns = self._ledger.bases_ns(process.slot)
                process.base_ns, process.slot = self._base_ns(process, slots), -1
                process.less_ns = bases_ns[1] - bases_ns[0] if bases_ns is not None else 0

    def take(self, pid: int, clock_ns: int, time_ns: int, slots: Array, tails_ns: int) -> int:
        """The remainder, in ns, when a process's clock was this at a time; it counts as told from now on.

        ``slots`` (n,): of all its threads that live, or end in this batch, of which ``tails_ns`` were told behind their
        ends. 0 where it is not known where the clock began.
        """
        process = self._of.get(pid)
        if process is None:
            return 0
        told_ns = process.told_ns + tails_ns + int(self._ledger.owed_ns(slots).sum())
        told_ns += int(self._timeline.ran_ns(slots, np.full(len(slots), time_ns)).sum())
        process.base_ns = self._base_ns(process, slots)
        if process.slot not in slots and process.base_ns is None:
            process.base_ns = clock_ns - told_ns
        if process.base_ns is None:
            return 0
        more_ns = clock_ns - process.base_ns - told_ns
        process.told_ns += max(more_ns, min(more_ns + self._behind_ns(slots, time_ns), 0))
        process.has_lost = False
        return max(more_ns, 0)

    def left_ns(self, pid: int, clock_ns: int, slots: Array) -> int | None:
        """What a process's clock has for its threads at ``slots`` (n,), which are all but those that were gone before;
        None where it is not known where the clock began."""
        process = self._of.get(pid)
        base_ns = self._base_ns(process, slots) if process is not None else None
        return clock_ns - base_ns - process.told_ns if process is not None and base_ns is not None else None

    def most_left_ns(self, pid: int, clock_ns: int, slots: Array) -> int | None:
        """The same at most, of a process that is over. Of each thread a tick may be missing: not all kernels bring the
        accounts of those that end up to date."""
        process, left_ns = self._of.get(pid), self.left_ns(pid, clock_ns, slots)
        if process is None or left_ns is None:
            return None
        bases_ns = self._ledger.bases_ns(process.slot) if process.slot in slots else (0, process.less_ns)
        return left_ns + (bases_ns[1] - bases_ns[0] if bases_ns is not None else 0) + len(slots) * TICK_NS

    def _behind_ns(self, slots: Array, time_ns: int) -> int:
        """By how much at most a process's clock may have been behind what was told of its threads that live, when it
        was read: by a tick for each that ran, and by what ledgers leave for the next account of others."""
        before_ns, at_ns = (self._timeline.ran_ns(slots, np.full(len(slots), at)) for at in (
            time_ns - LONGEST_TICK_NS, time_ns))
        n_ran = int(np.count_nonzero(at_ns > before_ns))
        return n_ran * LONGEST_TICK_NS + len(slots) * LEAST_NS

    def _base_ns(self, process: _Process, slots: Array) -> int | None:
        if process.slot not in slots:
            return process.base_ns
        bases_ns = self._ledger.bases_ns(process.slot)
        return bases_ns[1] if bases_ns is not None else None

    def has_lost(self, pid: int) -> bool:
        """Whether threads have gone of whose ends no remainder has told."""
        return pid in self._of and self._of[pid].has_lost
