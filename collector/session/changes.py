"""What becomes of changes: processes, threads and mappings in the model, and what the experiments say of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import TypeAlias

from collector.events import Change, Executed, Exited, Forked, LetGo, Mapped, RecordsLost, Renamed, Throttled
from collector.experiment.recorder import Recorder
from collector.processes.model import Thread
from collector.session.attach import Found
from collector.session.experiments import Experiments
from collector.session.mappings import Mappings
from collector.session.tally import Tally
from collector.session.timekeeping import Timekeeping
from collector.session.unlisted import Unlisted
from collector.session.unseen import UnseenOnes
from collector.session.world import World

_EVENTS_TAKEN = ("the kernel took the events of this process at its exec: of its times only its CPU time is known, by "
                 "/proc, and nothing of what it started")
Apply: TypeAlias = Callable[[Change], None]


class Changes:
    """Applies changes in time order."""

    def __init__(self, time: Timekeeping, experiments: Experiments, world: World, tally: Tally,
                 events_end: bool, records_all: bool) -> None:
        """``events_end``: changes come from the kernel's events, which may end before their process does; unless they
        ``records_all``, an end comes with all that was used."""
        self._time = time
        self._model = time.model
        self._experiments = experiments
        self._world = world
        self._tally = tally
        self.unseen = UnseenOnes(experiments, world)
        self.unlisted = Unlisted(self._model, experiments, world)
        self._events_end = events_end
        self._records_all = records_all
        self._found: set[int] = set()  # tids of those found that may have been born a moment before
        self._found_ns = 0  # and until when they were looked for
        self._maps_untold = False
        self._mappings = Mappings(self._model, experiments, world)

    def apply(self, changes: Iterable[Change], maps_untold: bool = False) -> None:
        """Takes what has changed. ``maps_untold``: not all that was mapped is among it."""
        self._maps_untold, before = maps_untold, self._maps_untold
        changes = list(changes)
        executed_ns = {change.pid: change.time_ns for change in changes if type(change) is Executed}
        may_lose_events = self._events_end and not maps_untold and not before
        for change in self._model.come_and_go(changes, self._born, self._found_ns):
            match change:
                case Forked():
                    self._forked(change)
                case Exited():
                    self._exited(change, may_lose_events)
                case Executed():
                    self._executed(change, is_last=change.time_ns >= executed_ns[change.pid])
                case Mapped():
                    self._mappings.mapped(change)
                case Renamed():
                    self._renamed(change)
                case LetGo():
                    self._let_go(change)
                case RecordsLost():
                    self._tally.lost(change.source, change.n_records)
                    if change.source == "switch":
                        self._time.lost()
                case Throttled():
                    self._tally.n_throttled += 1

    def read_mappings(self, since_ns: int) -> None:
        """Mappings that no change told since a time, as they are now."""
        self._mappings.read(since_ns)

    def take_over(self, pid: int, lineage: str, found: Sequence[Found], mappings: Sequence[Mapped],
                  time_ns: int) -> None:
        """Begins with a process as it was found. The founder has its experiment already; others get theirs under
        ``lineage``."""
        gone, found = [thread for thread in found if thread.gone_ns], [one for one in found if not one.gone_ns]
        self._found.update(thread.tid for thread in found)
        self._found_ns = self._world.now_ns()
        self.unlisted.found(pid, time_ns, self._found_ns, gone)
        process = self._model.processes.get(pid) or self._model.new_process(pid, time_ns)
        self.apply(mappings)
        recorded = self._experiments.by_image.get(process.image.number)
        if recorded is None:
            recorded = self._experiments.attached(process.image, lineage, self._world.arguments(pid), 0)
            self._mappings.tell_all(recorded, process, time_ns)
        self._time.remainders.found(pid)
        if all(thread.tid != pid for thread in found):  # the first one has ended before the others
            process.image.comm = process.image.comm or self._world.comm(pid, pid)
        for thread in found:
            new = self._model.new_thread(process, thread.tid, time_ns, thread.cut, found=True)
            new.name = self._world.comm(pid, thread.tid)
            if thread.tid == pid and not process.image.comm:  # a link's own name, where the path is that of its target
                process.image.comm = new.name
            self._time.found(new.slot, thread, time_ns)
            recorded.thread_started(thread.tid, time_ns, new.name)

    def _born(self, threads: list[Thread]) -> None:
        """Further threads of a process that is known."""
        image = threads[0].image
        self._time.all_born(threads)
        recorded = self._experiments.by_image.get(image.number)
        if recorded is not None:
            for name, its in groupby(threads, lambda thread: thread.name or image.comm):
                recorded.threads_started([(thread.tid, thread.start_ns) for thread in its], name)

    def _forked(self, change: Forked) -> None:
        is_process = change.pid != change.parent_pid
        if change.time_ns < self._found_ns and change.tid in self._found:
            if not is_process and (since := self._model.born_since(change)) is not None:
                self._time.born(since.slot, change.time_ns)
            return
        if is_process and not self._experiments.follow.descendants:
            return
        parent = self._model.processes.get(change.parent_pid)
        maker = self._experiments.by_image.get(parent.image.number) if parent else None
        thread = self._model.forked(change)
        self._time.born(thread.slot, change.time_ns)
        process = thread.process
        recorded = self._experiments.by_image.get(process.image.number)
        if is_process and recorded is None:
            process.image.comm, process.image.path = (parent.image.comm, parent.image.path) if parent else (b"", b"")
            recorded = self._experiments.forked(maker, process.image)
            self._mappings.tell_all(recorded, process, change.time_ns)
        if recorded is not None:
            recorded.thread_started(change.tid, change.time_ns, thread.name or process.image.comm)

    def _exited(self, change: Exited, may_lose_events: bool) -> None:
        thread = self._model.exited(change)
        if thread is None:
            return
        is_over = not thread.process.threads
        recorded = self._experiments.by_image.get(thread.image.number) if is_over else None
        if recorded is not None and may_lose_events and not thread.process.space.mappings and thread.image.comm:
            self._time.exited(thread, change.time_ns, is_last=False)
            self._time.unseen(thread.process.pid)
            recorded.tell(Recorder.warning, _EVENTS_TAKEN, change.time_ns)
            self.unseen.add(thread.image, change.time_ns)
            return
        is_last = recorded is not None and recorded.followed and self._records_all
        self._time.exited(thread, change.time_ns, is_last=is_last)
        if recorded is not None:
            self._experiments.end(recorded, change.time_ns)

    def _renamed(self, change: Renamed) -> None:
        slot = self._model.slot_of(change.tid, change.time_ns)
        thread = self._model.threads.get(slot) if slot is not None else None
        if thread is None or change.comm == (thread.name or thread.image.comm):
            return
        thread.name = change.comm
        recorded = self._experiments.by_image.get(thread.image.number)
        if recorded is not None:
            recorded.tell(Recorder.thread_named, change.tid, change.time_ns, change.comm)

    def _executed(self, change: Executed, *, is_last: bool) -> None:
        """``is_last``: the program has not been followed by another one yet, as far as changes tell, whose command line
        /proc would have."""
        old_slot = self._model.caller(change)
        process, old = self._model.executed(change)
        slot = process.threads[change.pid]
        self._time.executed(old_slot, slot)
        before = self._experiments.by_image.get(old.number)
        founder = before if before is not None and before.parent is None and before.n_threads == 0 else None
        if founder is not None:  # by this exec it becomes itself
            self._time.founder_begins(slot, change.time_ns)
        if before is not None and not self._experiments.follow.descendants:
            for mapping in process.epochs[-2].space.mappings if len(process.epochs) > 1 else ():
                before.tell(Recorder.unmapped, change.time_ns, mapping.start, mapping.end - mapping.start)
            self._experiments.go_on(before, process.image)
            if before.n_threads:
                before.tell(Recorder.thread_named, change.pid, change.time_ns, change.comm)
            else:
                before.thread_started(change.pid, change.time_ns, change.comm)
            return
        if founder is not None:
            recorded = founder
            self._experiments.go_on(founder, process.image)
        else:
            recorded = self._experiments.executed(before, process.image, change.time_ns)
            recorded.arguments = self._world.arguments(change.pid) if is_last else b""
        recorded.thread_started(change.pid, change.time_ns, change.comm)

    def _let_go(self, change: LetGo) -> None:
        line = self._tally.let_go(change)
        process = self._model.processes.get(change.pid)
        recorded = self._experiments.by_image.get(process.image.number) if process is not None else None
        if recorded is not None:
            recorded.tell(Recorder.comment, line)
