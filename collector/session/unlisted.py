"""Threads that lived as the recording of a running process began, and had ended before they were looked at.

No record tells their birth. But there are records of theirs: whoever is met for the first time before the threads were
looked at, and was not born since the begin, has lived since then. What it did before its first record is told by that:
it ran up to a departure; up to an arrival it was blocked, or waited for a CPU if no wake-up is told.

Who was born while events were opened has them on some CPUs only, or none. If it was in the list at least, it is told to
have been blocked until it was looked for in vain.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from collector.arrays import indices
from collector.events import Batch, Edge, RecordsLost, Switches, Wakings
from collector.processes.model import Model, Thread
from collector.session.experiments import Experiments
from collector.session.world import World

_BIRTHS = "task"  # the source of records that tell births


class Unlisted:
    """Makes such threads known to the model, and to their experiments."""

    def __init__(self, model: Model, experiments: Experiments, world: World) -> None:
        self._model = model
        self._experiments = experiments
        self._world = world
        self._since_ns: dict[int, int] = {}  # since when processes are recorded, by pid
        self._found_ns = 0
        self._gone_ns: dict[tuple[int, int], int] = {}  # when those that were listed were looked for in vain: pid, tid
        self._untold: list[tuple[Thread, int]] = []  # whose ends have not come yet, and when their last records were

    def found(self, pid: int, since_ns: int, found_ns: int, gone_ns: Mapping[int, int]) -> None:
        """The threads of a process were looked at before ``found_ns``; it is recorded since ``since_ns``. ``gone_ns``:
        of those that were listed, and not there any more when they were looked for, when that was, by tid."""
        self._since_ns[pid], self._found_ns = since_ns, found_ns
        self._gone_ns.update(((pid, tid), time_ns) for tid, time_ns in gone_ns.items())

    def take(self, batch: Batch) -> None:
        """Those of a batch, whose changes have been applied."""
        switches = batch.switches
        if switches is not None and len(switches.time_ns) and switches.time_ns[0] < self._found_ns and not any(
                type(change) is RecordsLost and change.source == _BIRTHS for change in batch.changes):
            strange = indices((switches.time_ns < self._found_ns) & ~self._model.known(switches.tid))
            for row in strange[np.unique(switches.tid[strange], return_index=True)[1]].tolist():
                self._add(switches, row, batch.wakings)
        if (self._untold or self._gone_ns) and not batch.has_more and batch.until_ns >= self._found_ns:
            self._end_untold()
            self._add_gone()

    def _add(self, switches: Switches, row: int, wakings: Wakings | None) -> None:
        """A thread, by its first record."""
        pid, tid = int(switches.pid[row]), int(switches.tid[row])
        process, since_ns = self._model.processes.get(pid), self._since_ns.get(pid)
        if process is None or since_ns is None:
            return
        self._gone_ns.pop((pid, tid), None)
        cut = Edge.IN
        if switches.edge[row] == Edge.IN:
            is_woken = _is_woken(wakings, tid, since_ns, int(switches.time_ns[row]))
            cut = Edge.OUT_BLOCKED if is_woken else Edge.OUT_PREEMPTED
        thread = self._model.unlisted(process, tid, since_ns, cut)
        if thread.alive:
            self._untold.append((thread, int(switches.time_ns[switches.tid == tid][-1])))
        self._begin(thread)

    def _begin(self, thread: Thread) -> None:
        recorded = self._experiments.by_image.get(thread.image.number)
        if recorded is not None:
            recorded.thread_started(thread.tid, thread.start_ns, thread.image.comm)

    def _end_untold(self) -> None:
        """What was recorded before threads were looked at has come: of who is gone there is no end to come. It had
        events on some CPUs only, and ended on another one."""
        for thread, last_ns in self._untold:
            if thread.alive and not self._world.comm(thread.process.pid, thread.tid):
                self._model.end_untold(thread, last_ns)
        self._untold.clear()

    def _add_gone(self) -> None:
        """Those that were listed, and of which there is no record."""
        for (pid, tid), gone_ns in self._gone_ns.items():
            process = self._model.processes.get(pid)
            if process is not None and not self._model.known(np.array([tid]))[0]:
                thread = self._model.unlisted(process, tid, self._since_ns[pid], Edge.OUT_BLOCKED)
                if thread.alive:
                    self._model.end_untold(thread, gone_ns)
                self._begin(thread)
        self._gone_ns.clear()


def _is_woken(wakings: Wakings | None, tid: int, since_ns: int, until_ns: int) -> bool:
    """Whether a thread was woken between two times; so it is taken to be where wake-ups are not told."""
    if wakings is None:
        return True
    return bool(((wakings.tid == tid) & (wakings.time_ns > since_ns) & (wakings.time_ns <= until_ns)).any())
