"""Threads that lived as the recording of a running process began, and had ended before they were looked at.

No record tells their birth. But there are records of theirs: whoever is met for the first time before the threads were
looked at, and was not born since the begin, has lived since then. What it did before its first record is told by that:
it ran up to a departure; up to an arrival it was blocked, or waited for a CPU if no wake-up is told.

Who has a record of its end alone has run all the time. But who was born while events were opened has them on some CPUs
only, or none: if it was in the list at least, it is told to have been blocked until it was looked for in vain.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from collector.arrays import indices
from collector.events import Batch, Change, Edge, Exited, RecordsLost, Switches, Wakings
from collector.processes.model import Model, Thread
from collector.session.attach import Found
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
        self._fed_ns = 0
        self._gone: dict[tuple[int, int], Found] = {}  # those that were listed, and looked for in vain, by pid and tid
        self._untold: list[tuple[Thread, int]] = []  # whose ends have not come yet, and when their last records were

    def found(self, pid: int, since_ns: int, found_ns: int, gone: Iterable[Found]) -> None:
        """The threads of a process were looked at before ``found_ns``; it is recorded since ``since_ns``. ``gone``:
        those that were listed, and not there any more when they were looked for."""
        self._since_ns[pid], self._found_ns = since_ns, found_ns
        self._gone.update(((pid, thread.tid), thread) for thread in gone)

    def take(self, batch: Batch) -> None:
        """Those of a batch, whose changes have been applied."""
        if not self._begun_before(batch):
            return
        lost = {change.source for change in batch.changes if type(change) is RecordsLost}
        if _BIRTHS not in lost:
            if batch.switches is not None:
                self._add_switched(batch.switches, batch.wakings)
            if "switch" not in lost:
                self._add_running(batch.changes)
        if not batch.has_more and batch.until_ns >= self._found_ns:
            self._end_untold(batch.until_ns)
            self._add_gone(batch.until_ns)

    def _begun_before(self, batch: Batch) -> bool:
        """Whether a batch has something of the time before the look, or is the first one behind that."""
        begun = self._fed_ns < self._found_ns or bool(self._untold or self._gone)
        self._fed_ns = batch.until_ns
        return begun

    def _add_switched(self, switches: Switches, wakings: Wakings | None) -> None:
        """Those that have records of switches."""
        strange = indices((switches.time_ns < self._found_ns) & ~self._model.known(switches.tid))
        for row in strange[np.unique(switches.tid[strange], return_index=True)[1]].tolist():
            pid, tid, first_ns = int(switches.pid[row]), int(switches.tid[row]), int(switches.time_ns[row])
            cut = Edge.IN
            if switches.edge[row] == Edge.IN:
                is_woken = _is_woken(wakings, tid, self._since_ns.get(pid, 0), first_ns)
                cut = Edge.OUT_BLOCKED if is_woken else Edge.OUT_PREEMPTED
            thread = self._begin(pid, tid, cut)
            if thread is not None and thread.alive:
                self._untold.append((thread, int(switches.time_ns[switches.tid == tid][-1])))

    def _add_running(self, changes: tuple[Change, ...]) -> None:
        """Those that have a record of their end alone: they ran all the time, since who ends is on a CPU."""
        for change in changes:
            if type(change) is Exited and change.pid in self._since_ns and not self._is_known(change.tid):
                gone = self._gone.get((change.pid, change.tid))
                is_told = gone is None or gone.cut == Edge.IN
                if is_told and self._since_ns[change.pid] < change.time_ns < self._found_ns:
                    self._begin(change.pid, change.tid, Edge.IN)

    def _add_gone(self, now_ns: int) -> None:
        """Those that were listed, and of which there is no record that would tell what they did."""
        for (pid, tid), gone in self._gone.items():
            thread = self._begin(pid, tid, Edge.OUT_BLOCKED) if not self._is_known(tid) else None
            if thread is not None and thread.alive:
                self._end(thread, gone.gone_ns, now_ns)
        self._gone.clear()

    def _end_untold(self, now_ns: int) -> None:
        """What was recorded before threads were looked at has come: of who is gone there is no end to come. It had
        events on some CPUs only, and ended on another one."""
        for thread, last_ns in self._untold:
            if thread.alive and not self._world.comm(thread.process.pid, thread.tid):
                self._end(thread, last_ns, now_ns)
        self._untold.clear()

    def _is_known(self, tid: int) -> bool:
        return bool(self._model.known(np.array([tid]))[0])

    def _begin(self, pid: int, tid: int, cut: int) -> Thread | None:
        """A thread, if it is one of a process that was found, and the image of that time is still known."""
        process, since_ns = self._model.processes.get(pid), self._since_ns.get(pid)
        if process is None or since_ns is None or process.epochs[0].image.start_ns > since_ns:
            return None
        gone = self._gone.get((pid, tid))
        thread = self._model.unlisted(process, tid, since_ns, cut, gone.gone_ns if gone else self._found_ns)
        recorded = self._experiments.by_image.get(thread.image.number)
        if recorded is not None:
            recorded.thread_started(tid, since_ns, thread.image.comm)
        return thread

    def _end(self, thread: Thread, time_ns: int, now_ns: int) -> None:
        """The end of a thread that no record tells; its process's, too, if that has no others."""
        self._model.end_thread(thread, time_ns)
        recorded = self._experiments.by_image.get(thread.image.number)
        if recorded is not None and not thread.process.threads:
            self._experiments.end(recorded, now_ns)


def _is_woken(wakings: Wakings | None, tid: int, since_ns: int, until_ns: int) -> bool:
    """Whether a thread was woken between two times; so it is taken to be where nobody's wake-ups are told."""
    if wakings is None:
        return True
    told = (wakings.time_ns > since_ns) & (wakings.time_ns <= until_ns)
    return not told.any() or bool((wakings.tid[told] == tid).any())
