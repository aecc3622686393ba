"""Who there is on the machine while the kernel is profiled, and in whose experiment a sample is told.

    a program's process, followed   an experiment of its own, _NAME_PID_N.1.er, from the first sample on
    ... not followed                the kernel's, as a thread of it
    a thread of the kernel          the kernel's
    a CPU that is idle              the kernel's, as a thread of it for each CPU, since all of them have the id 0

Processes are found in /proc when events have been started, and then told by records of their births, programs and ends.
What a process that was found has mapped is read when it is first met, since most never run.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import count
from pathlib import Path
from typing import NamedTuple

import numpy as np

from collector.arrays import distinct
from collector.events import Array, Change, ClockSamples, Edge, Executed, Exited, Forked, Mapped, Renamed
from collector.experiment import names
from collector.linux import proc
from collector.processes.model import Model
from collector.processes.process import Epoch, Image
from collector.session.attach import lineage_named
from collector.session.experiments import Experiments, Recorded
from collector.session.headers import KERNEL_PID
from collector.session.mappings import Mappings
from collector.session.world import World

# Of threads that have no number of their own: above all that the kernel gives (PID_MAX_LIMIT, 2**22).
IDLE_TID = 1 << 22  # and from there on, by CPU
ELSEWHERE_TID, GONE_TID = 1 << 23, (1 << 23) + 1
_NAMES = {ELSEWHERE_TID: b"[outside of this PID namespace]", GONE_TID: b"[threads that are gone]"}
_NO_PID = 0xFFFF_FFFF  # of a thread, and in the end a process, that is being taken away
_PF_KTHREAD = 0x200000
KERNEL_IMAGE = 0


class Met(NamedTuple):
    """For each of n samples: the number of the image whose experiment it is told in, the thread's id there, and its
    epoch."""

    image: Array  # i8 (n,)
    tid: Array  # i8 (n,)
    epoch: Array  # i8 (n,) index into ``epochs``
    epochs: list[Epoch]


class Machine:
    """All processes of this machine; ``experiments`` get those of the programs that are followed."""

    def __init__(self, directory: Path, experiments: Experiments, world: World, start_ns: int) -> None:
        self._directory = directory
        self._experiments = experiments
        self._world = world
        self._start_ns = start_ns
        self._free: list[int] = []
        self._slots = count()
        self.model = Model(lambda _: self._free.pop() if self._free else next(self._slots))
        self._mappings = Mappings(self.model, experiments, world)
        self.kernel = self.model.new_process(KERNEL_PID, start_ns).image
        self._of_kernel = {KERNEL_PID}  # threads of it
        self._unread: set[int] = set()  # processes whose mappings nobody has told
        self._found: set[int] = set()  # threads that may have been born a moment before
        self._found_ns = 0  # and until when they were looked for
        self._new: set[str] = set()  # lineages that are not on disk yet
        self._told: dict[Recorded, set[int]] = defaultdict(set)  # threads that have been named

    def find(self) -> None:
        """All processes as they are, once events have been started."""
        for pid in proc.kin():
            self._find(pid, self._start_ns)
        self._found_ns = self._world.now_ns()

    def _find(self, pid: int, time_ns: int) -> None:
        try:
            threads, flags, comm = proc.threads(pid), proc.kernel_flags(pid), proc.comm(pid, pid)
        except (OSError, ValueError, IndexError):  # gone meanwhile
            return
        process = self.model.new_process(pid, time_ns)
        process.image.comm = comm
        (self._of_kernel if flags & _PF_KTHREAD else self._unread).add(pid)
        for tid in threads:
            self.model.new_thread(process, tid, time_ns, Edge.IN, found=True)
        self._found.update(threads)

    # -- what changes

    def apply(self, changes: Iterable[Change]) -> None:
        """Takes births, ends and what lies between them, in time order."""
        for change in changes:
            match change:
                case Forked():
                    self._forked(change)
                case Exited():
                    self._exited(change)
                case Executed():
                    self._executed(change)
                case Mapped():
                    if change.pid not in self._unread:
                        self._mappings.mapped(change)
                case Renamed():
                    self._renamed(change)

    def ask_for_mappings(self) -> None:
        """Records of mappings were lost: /proc is asked for those of whom is met next."""
        self._unread.update(pid for pid in self.model.processes if pid not in self._of_kernel)

    def _forked(self, change: Forked) -> None:
        if change.time_ns < self._found_ns and change.tid in self._found:
            return
        thread = self.model.forked(change)
        if change.pid == change.parent_pid:
            return
        parent, image = self.model.processes.get(change.parent_pid), thread.process.image
        if parent is not None:
            image.comm, image.path = parent.image.comm, parent.image.path
        for inherited in (self._of_kernel, self._unread):
            if change.parent_pid in inherited:
                inherited.add(change.pid)

    def _exited(self, change: Exited) -> None:
        thread = self.model.exited(change)
        if thread is None:
            return
        self._found.discard(change.tid)
        self._told[self._experiments.by_image[KERNEL_IMAGE]].discard(change.tid)
        if not thread.process.threads:
            self._of_kernel.discard(change.pid)
            self._unread.discard(change.pid)
            self._end(thread.process.image, change.time_ns)

    def _executed(self, change: Executed) -> None:
        _, old = self.model.executed(change)
        self._of_kernel.discard(change.pid)
        self._unread.discard(change.pid)
        self._end(old, change.time_ns)

    def _renamed(self, change: Renamed) -> None:
        slot = self.model.slot_of(change.tid, change.time_ns)
        if slot is not None:
            thread = self.model.threads[slot]
            thread.name = change.comm
            if change.tid == change.pid:
                thread.process.image.comm = change.comm

    def _end(self, image: Image, time_ns: int) -> None:
        recorded = self._experiments.by_image.get(image.number)
        if recorded is not None and image is not self.kernel:
            self._experiments.end(recorded, time_ns)

    # -- whose samples are

    def meet(self, samples: ClockSamples, idle: Array) -> Met:
        """Where samples are told, of which some (n,) found their CPU idle."""
        pid, tid = samples.pid.copy(), samples.tid.copy()
        tid[idle] = IDLE_TID + samples.cpu[idle]
        tid[(pid == KERNEL_PID) & ~idle] = ELSEWHERE_TID
        tid[tid == _NO_PID] = GONE_TID
        for number in distinct(pid).tolist():
            if not self._is_known(number, int(samples.time_ns[0])):
                gone = pid == number
                pid[gone], tid[gone] = KERNEL_PID, GONE_TID
        index, epochs = self.model.epochs(pid, samples.time_ns)
        of_epoch = np.zeros(len(epochs), dtype=np.int64)
        for i in distinct(index).tolist():
            of_epoch[i] = self._told_in(epochs[i].image)
        met = Met(of_epoch[index], tid, index, epochs)
        self._name_threads(met, samples)
        return met

    def _is_known(self, pid: int, time_ns: int) -> bool:
        """Whether there is, or was in this batch, such a process, whose mappings are known from here on."""
        if pid not in self.model.processes and pid != _NO_PID:
            self._find(pid, time_ns)  # its birth was not told
        process = self.model.processes.get(pid)
        if process is not None and pid in self._unread and self._experiments.follow.descendants:
            self._unread.discard(pid)
            self._mappings.read_of(process)
        return process is not None

    def _told_in(self, image: Image) -> int:
        """The number of the image in whose experiment this one is told; its own, which is begun here if need be."""
        if image.pid in self._of_kernel or not self._experiments.follow.descendants:
            return KERNEL_IMAGE
        recorded = self._experiments.by_image.get(image.number)
        if recorded is None:
            recorded = self._begin(image)
        return image.number if recorded.recorder is not None else KERNEL_IMAGE

    def _begin(self, image: Image) -> Recorded:
        kin = proc.kin_of(image.pid)
        recorded = self._experiments.attached(image, self._lineage(image), self._world.arguments(image.pid),
                                              kin.parent if kin is not None else 0)
        process = self.model.processes[image.pid]
        if process.image is image:
            self._mappings.tell_all(recorded, process, image.start_ns)
        if image.end_ns is not None:
            self._experiments.end(recorded, image.end_ns)
        return recorded

    def _lineage(self, image: Image) -> str:
        """A name that none has; a process that runs the same program once more, or gets the same id, is another one."""
        for number in count(1):
            name = lineage_named(image.comm, image.pid, number)
            if name not in self._new and not os.path.lexists(self._directory / (name + names.SUFFIX)):
                break
        self._new.add(name)
        return name

    def _name_threads(self, met: Met, samples: ClockSamples) -> None:
        """Threads are told when they are met first, in this order."""
        key = met.image << 32 | met.tid
        _, first = np.unique(key, return_index=True)
        for row in np.sort(first).tolist():
            recorded, tid = self._experiments.by_image[int(met.image[row])], int(met.tid[row])
            if tid not in self._told[recorded]:
                self._told[recorded].add(tid)
                recorded.thread_started(tid, int(samples.time_ns[row]), self._name(met.epochs[met.epoch[row]], tid))

    def idle_threads(self, cpu: Array, time_ns: Array) -> Array:
        """The ids (n,) of those that CPUs (n,) are idle in, with names."""
        told = self._told[self._experiments.by_image[KERNEL_IMAGE]]
        for number, first_ns in zip(cpu.tolist(), time_ns.tolist(), strict=True):
            if IDLE_TID + number not in told:
                told.add(IDLE_TID + number)
                self._experiments.by_image[KERNEL_IMAGE].thread_started(IDLE_TID + number, first_ns,
                                                                        b"swapper/%d" % number)
        return IDLE_TID + cpu.astype(np.int64)

    def _name(self, epoch: Epoch, tid: int) -> bytes:
        if tid in _NAMES or tid >= IDLE_TID:
            return _NAMES.get(tid) or b"swapper/%d" % (tid - IDLE_TID)
        slot = self.model.slot_of(tid, epoch.time_ns)
        own = self.model.threads[slot].name if slot is not None and slot in self.model.threads else b""
        return own or self._world.comm(epoch.image.pid, tid) or epoch.image.comm

    # -- what is over

    def close(self, ended: Sequence[Recorded], until_ns: int) -> None:
        """Nothing more will be said of experiments that have ended, nor of anybody who was over at a time."""
        for recorded in ended:
            self._told.pop(recorded, None)
        self.model.take_cuts()  # there are no clocks of threads here
        over = [slot for slot, thread in self.model.threads.items() if not thread.alive]
        self.model.forget(over)
        self._free += over
        self.model.forget_before(until_ns)

    def synced(self) -> None:
        """All experiments that have begun are on disk."""
        self._new.clear()
