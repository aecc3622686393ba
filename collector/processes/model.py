"""The processes and threads of a recording, driven by changes. Pure.

Threads have *slots*: small numbers, used again when a thread is over, at which ``timing`` keeps their clocks. The
kernel does use tids again, so a tid leads to *lives*: (from, slot) pairs, of which the batch's times choose one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from collector.arrays import Columns, indices, numbered
from collector.events import Array, Change, Cuts, Edge, Executed, Exited, Forked
from collector.processes.process import Epoch, Image, Process
from collector.processes.space import AddressSpace

_NO_TID = (1 << 63) - 1  # greater than all


@dataclass(slots=True, eq=False)
class Thread:
    """What is known of the thread at a slot."""

    slot: int
    tid: int
    process: Process
    start_ns: int
    image: Image  # the last one that it ran
    name: bytes = b""
    alive: bool = True


class Model:
    """All processes and threads; ``new_slot(found)`` gives a thread its slot."""

    def __init__(self, new_slot: Callable[[bool], int]) -> None:
        self._new_slot = new_slot
        self.processes: dict[int, Process] = {}
        self.threads: dict[int, Thread] = {}  # by slot
        # By slot; image: its number; found_ns: 0 for those that were born.
        self.of = Columns(image=("i8", -1), tid=("i8", 0), pid=("i8", 0), found_ns=("i8", 0))
        self.n_threads = 0  # without counting again those that an exec gave a new slot
        self.n_images = 0
        self.cuts = Cuts()
        self._lives: dict[int, list[tuple[int, int]]] = {}  # tid: [(from_ns, slot), ...]
        self._by_tid: tuple[Array, Array] | None = None  # the same as arrays; None: they have changed since
        self._ended: list[tuple[int, int]] = []  # tids and slots
        self._ended_pids: list[int] = []
        self._strangers_ends: dict[int, int] = {}  # in this batch, by tid

    def new_process(self, pid: int, time_ns: int, space: AddressSpace | None = None,
                    parent: Process | None = None, bits: int = 64) -> Process:
        """A process seen for the first time, with the image that it begins with."""
        image = self._new_image(pid, time_ns, bits)
        process = Process(pid, [Epoch(time_ns, image, space or AddressSpace())], parent=parent)
        self.processes[pid] = process
        return process

    def new_thread(self, process: Process, tid: int, time_ns: int, cut: int, found: bool = False) -> Thread:
        """A thread that begins with ``cut``; ``found``: it was there before us, and was found so."""
        self.n_threads += cut != Edge.IN or not self._lives.get(tid)
        thread = self._enter(process, tid, time_ns, cut, found)
        slot, of = thread.slot, self.of
        of.grow(slot + 1)
        of.image[slot], of.tid[slot], of.pid[slot] = thread.image.number, tid, process.pid
        of.found_ns[slot] = time_ns if found else 0
        return thread

    def _enter(self, process: Process, tid: int, time_ns: int, cut: int, found: bool = False) -> Thread:
        """A thread that begins, at a slot that is yet to be described."""
        slot = self._new_slot(found)
        thread = self.threads[slot] = Thread(slot, tid, process, time_ns, process.epochs[-1].image)
        process.threads[tid] = slot
        self._lives.setdefault(tid, []).append((time_ns, slot))
        self._by_tid = None
        self.cuts.add(slot, time_ns, cut)
        return thread

    def forked(self, change: Forked) -> Thread:
        """A new thread, and a new process around it where the pid says so."""
        process = self.processes.get(change.pid)
        if process is None or (change.pid != change.parent_pid and change.pid == change.tid):
            parent = self.processes.get(change.parent_pid)
            space = parent.space.copy() if parent else None
            before = process
            process = self.new_process(change.pid, change.time_ns, space, parent, parent.image.bits if parent else 64)
            if before is not None:  # the pid's former owner ended in this very batch, with samples still to be told
                process.epochs[:0] = before.epochs
        maker = self.slot_of(change.parent_tid, change.time_ns)
        thread = self.new_thread(process, change.tid, change.time_ns, Edge.BORN)
        if maker in self.threads:
            thread.name = self.threads[maker].name
        return thread

    def born_since(self, change: Forked) -> Thread | None:
        """A thread that was found was born behind the moment as of which it was: it has had no time before. None for
        one that was there."""
        slot = self.slot_of(change.tid, change.time_ns)
        found = self.threads.get(slot) if slot is not None else None
        if found is None or change.time_ns <= found.start_ns:
            return None
        self._end(found, found.start_ns)
        thread = self.new_thread(found.process, change.tid, change.time_ns, Edge.BORN)
        thread.name = found.name
        return thread

    def exited(self, change: Exited) -> Thread | None:
        """The end of a thread, and of its process if it was the last one."""
        slot = self.slot_of(change.tid, change.time_ns)
        if slot is None:
            self._strangers_ends[change.tid] = change.time_ns  # whose records may still come
            return None
        thread = self.threads[slot]
        if not thread.alive:
            return None
        self.end_thread(thread, change.time_ns)
        return thread

    def come_and_go(self, changes: Iterable[Change], born: Callable[[list[Thread]], None],
                    since_ns: int = 0) -> Iterator[Change]:
        """Takes what there is most of: births, not before ``since_ns``, of further threads in known processes, and ends
        of threads that others of their process outlive. All other changes are handed on, in their turn.

        ``born`` is told of those that were born in one process after the other, before the next change is handed on.
        """
        new: list[Thread] = []
        n_told = 0
        for change in self.with_lost_ends(changes, since_ns):
            if type(change) is Exited and self._ended_before_others(change):
                continue
            thread = self._further_thread(change) if type(change) is Forked and change.time_ns >= since_ns else None
            if n_told < len(new) and (thread is None or new[-1].process is not thread.process):
                born(new[n_told:])
                n_told = len(new)
            if thread is None:
                yield change
            else:
                new.append(thread)
        if n_told < len(new):
            born(new[n_told:])
        self._describe(new)

    def with_lost_ends(self, changes: Iterable[Change], since_ns: int = 0) -> Iterator[Change]:
        """Changes, one at a time as each is taken, with ends that were lost: who is born, not before ``since_ns``, has
        the number of nobody who lives; nor does who executes have that of a thread of another process."""
        for change in changes:
            if type(change) is Executed and change.time_ns >= since_ns:
                thread = self._living(change.pid)
                if thread is not None and thread.process.pid != change.pid:
                    yield Exited(change.time_ns, thread.process.pid, change.pid)
            if type(change) is Forked and change.time_ns >= since_ns:
                thread = self._living(change.tid)
                if thread is not None:
                    yield Exited(change.time_ns, thread.process.pid, change.tid)
                if change.tid == change.pid != change.parent_pid and change.pid in self.processes:
                    for tid in list(self.processes[change.pid].threads):
                        yield Exited(change.time_ns, change.pid, tid)
            yield change

    def _living(self, tid: int) -> Thread | None:
        lives = self._lives.get(tid)
        thread = self.threads[lives[-1][1]] if lives is not None else None
        return thread if thread is not None and thread.alive else None

    def _further_thread(self, change: Forked) -> Thread | None:
        """A thread that is born in a process that is known; its slot is yet to be described. None for any other."""
        time_ns, pid, tid, parent_pid, parent_tid = change
        process = self.processes.get(pid)
        if pid != parent_pid or process is None or tid == pid:
            return None
        thread = self._enter(process, tid, time_ns, Edge.BORN)
        maker = process.threads.get(parent_tid)
        if maker is not None:
            thread.name = self.threads[maker].name
        return thread

    def _ended_before_others(self, change: Exited) -> bool:
        """Takes the end of a thread, if others of its process go on."""
        time_ns, _, tid = change
        lives = self._lives.get(tid)
        if lives is None or lives[-1][0] > time_ns:
            return False
        thread = self.threads[lives[-1][1]]
        if not thread.alive or len(thread.process.threads) < 2:
            return False
        self._end(thread, time_ns)
        return True

    def _describe(self, threads: list[Thread]) -> None:
        """The slots of threads that were born are told whose they are."""
        if not threads:
            return
        self.n_threads += len(threads)
        slots = np.array([thread.slot for thread in threads], dtype=np.int64)
        of = self.of
        of.grow(int(slots.max()) + 1)
        of.image[slots] = [thread.image.number for thread in threads]
        of.tid[slots] = [thread.tid for thread in threads]
        of.pid[slots] = [thread.process.pid for thread in threads]
        of.found_ns[slots] = 0

    def caller(self, change: Executed) -> int | None:
        """The slot of the thread that called exec; None if that is not known.

        The kernel ends all others before, the leader too, whose id the caller takes: it is the one that lives.
        """
        process = self.processes.get(change.pid)
        living = list(process.threads.values()) if process is not None else []
        if len(living) > 1:  # ends of others were lost
            return None
        return living[0] if living else self.slot_of(change.pid, change.time_ns)

    def executed(self, change: Executed) -> tuple[Process, Image]:
        """A new image in an empty space; returns the process and the image that ended.

        Whichever thread called exec goes on under the process's id; all others are gone. It gets a new slot, so that
        each slot's time belongs to one image.
        """
        process = self.processes.get(change.pid)
        if process is None:
            process = self.new_process(change.pid, change.time_ns)
        old = process.image
        for slot in list(process.threads.values()):
            self._end(self.threads[slot], change.time_ns)
        old.end_ns = change.time_ns
        image = self._new_image(change.pid, change.time_ns, old.bits)
        image.comm, image.was_executed = change.comm, True
        process.enter(change.time_ns, image, AddressSpace())
        self.new_thread(process, change.pid, change.time_ns, Edge.IN)
        return process, old

    def living(self) -> list[Thread]:
        """All threads that live, process by process."""
        return [self.threads[slot] for process in self.processes.values() for slot in process.threads.values()]

    def forget(self, slots: Iterable[int]) -> None:
        """The threads at slots are over, and nothing more will be said of them."""
        for slot in slots:
            del self.threads[slot]

    def slot_of(self, tid: int, time_ns: int) -> int | None:
        """The slot that had ``tid`` at a time."""
        lives = self._lives.get(tid)
        if not lives:
            return None
        for start, slot in reversed(lives):
            if start <= time_ns:
                return slot
        return lives[0][1]

    def _tids(self) -> tuple[Array, Array]:
        """All tids that lead to lives, ascending, then one that no thread has; and the slot of each, -1 where it has
        had several lives or none."""
        if self._by_tid is None:
            tids = np.array([*self._lives, _NO_TID])
            slots = np.array([*(lives[0][1] if len(lives) == 1 else -1 for lives in self._lives.values()), -1])
            order = tids.argsort()
            self._by_tid = tids[order], slots[order]
        return self._by_tid

    def slots(self, tid: Array, pid: Array, time_ns: Array) -> Array:
        """The slots (n,) of threads at times; a thread not heard of before gets one (its birth was lost)."""
        tids, slot_of = self._tids()
        at = tids.searchsorted(tid)
        slots: Array = np.where(tids[at] == tid, slot_of[at], -1)
        others = indices(slots < 0)
        if len(others):
            slots[others] = self._slots_of_others(tid[others], pid[others], time_ns[others])
        return slots

    def _slots_of_others(self, tid: Array, pid: Array, time_ns: Array) -> Array:
        """The same where tids have had several lives, or none that was heard of."""
        unique, inverse = numbered(tid)
        slots = np.empty(len(tid), dtype=np.int64)
        for i, number in enumerate(unique.tolist()):
            rows = indices(inverse == i)
            lives = self._lives.get(number) or [(0, self._stray(number, int(pid[rows[0]]), int(time_ns[rows[0]])))]
            at = np.searchsorted(np.array([start for start, _ in lives]), time_ns[rows], side="right") - 1
            slots[rows] = np.array([slot for _, slot in lives])[np.maximum(at, 0)]
        return slots

    def known(self, tid: Array) -> Array:
        """Which (n,) tids are or were threads of ours."""
        tids, _ = self._tids()
        found: Array = tids[tids.searchsorted(tid)] == tid
        return found

    def epochs(self, pid: Array, time_ns: Array) -> tuple[Array, list[Epoch]]:
        """For each (n,) pid and time its epoch, as an index into the list returned."""
        unique, inverse = numbered(pid)
        processes = [self.processes.get(number) or self.new_process(number, int(time_ns[inverse == i][0]))
                     for i, number in enumerate(unique.tolist())]
        epochs = [epoch for process in processes for epoch in process.epochs]
        if len(epochs) == len(processes):
            return inverse, epochs
        index, n_before = np.empty(len(pid), dtype=np.int64), 0
        for i, process in enumerate(processes):
            rows = indices(inverse == i) if len(processes) > 1 else slice(None)
            starts = np.array([epoch.time_ns for epoch in process.epochs])
            index[rows] = n_before + np.maximum(starts.searchsorted(time_ns[rows], side="right") - 1, 0)
            n_before += len(starts)
        return index, epochs

    def take_cuts(self) -> Cuts:
        """The edges gathered since the last call."""
        cuts, self.cuts = self.cuts, Cuts()
        return cuts

    def forget_before(self, time_ns: int) -> None:
        """Samples from before ``time_ns`` will not come any more: lives and epochs that ended before it can go."""
        if self._ended:
            self._by_tid = None
        for tid, slot in self._ended:
            lives = self._lives[tid] = [life for life in self._lives[tid] if life[1] != slot]
            if not lives:
                del self._lives[tid]
        for pid in self._ended_pids:
            process = self.processes.get(pid)
            if process is not None and not process.threads:
                self.processes.pop(pid).parent = None  # or each generation would keep all those before it
        self._ended, self._ended_pids = [], []
        self._strangers_ends.clear()
        for process in self.processes.values():
            if len(process.epochs) > 1:
                process.forget_before(time_ns)

    def unlisted(self, process: Process, tid: int, time_ns: int, cut: int, gone_ns: int) -> Thread:
        """A thread that lived at ``time_ns``, not at ``gone_ns``, and is met behind the changes of a batch: it may have
        ended since then, by an exec of its process at the latest."""
        epoch = next((epoch for epoch in reversed(process.epochs) if epoch.time_ns <= time_ns), process.epochs[0])
        thread = self.new_thread(process, tid, time_ns, cut, found=True)
        thread.image = epoch.image
        self.of.image[thread.slot] = thread.image.number
        self._end_stranger(thread)
        if thread.alive and thread.image is not process.image:  # who called that has the process's own number since
            self._end(thread, min(thread.image.end_ns or time_ns, gone_ns))
        return thread

    def _stray(self, tid: int, pid: int, time_ns: int) -> int:
        process = self.processes.get(pid) or self.new_process(pid, time_ns)
        thread = self.new_thread(process, tid, time_ns, Edge.UNKNOWN)
        self._end_stranger(thread)
        return thread.slot

    def _end_stranger(self, thread: Thread) -> None:
        """The end of one that was not known yet as that was told."""
        if thread.tid in self._strangers_ends:
            self.end_thread(thread, self._strangers_ends[thread.tid])

    def end_thread(self, thread: Thread, time_ns: int) -> None:
        """The end of a thread, and of its process if it was the last one."""
        self._end(thread, time_ns)
        self._end_of_last(thread, time_ns)

    def _end(self, thread: Thread, time_ns: int) -> None:
        self.cuts.add(thread.slot, time_ns, Edge.ENDED)
        thread.alive = False
        thread.process.threads.pop(thread.tid, None)
        self._ended.append((thread.tid, thread.slot))

    def _end_of_last(self, thread: Thread, time_ns: int) -> None:
        """A thread has ended: if it was the last one, its process is over, too."""
        process = thread.process
        if not process.threads:
            process.image.end_ns = max(process.image.end_ns or 0, time_ns)  # of others that ended in this batch, too
            self._ended_pids.append(process.pid)

    def _new_image(self, pid: int, time_ns: int, bits: int) -> Image:
        image = Image(self.n_images, pid, time_ns, bits=bits)
        self.n_images += 1
        return image
