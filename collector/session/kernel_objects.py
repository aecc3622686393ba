"""Names for the kernel's part of stacks: its functions as those of load objects, in the experiments that met them.

    /proc/kallsyms -> "kernel", "[module]": load objects    segments in map.xml; files of symbols in the archives
                   -> programs of BPF, trampolines          functions without a file

There is no file to copy, and the kernel may be another one when the experiment is read: so a file is made, of symbols
alone, as soon as a function of an object is met. It holds all functions of the object, by their distance from its first
page, and so is the same after each boot of the same kernel, wherever that lies in memory then.

The symbols are read beside the recording, in a thread, when the first stack with a kernel part has come. What is met
before, or is not known, as a module that was loaded meanwhile, waits; and is asked again of symbols that are read anew.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from collector import elf
from collector.arrays import distinct
from collector.clock import NS_PER_S
from collector.errors import ExperimentError
from collector.events import Array
from collector.experiment.archive import add_made
from collector.experiment.identity import Identity
from collector.experiment.recorder import Recorder
from collector.linux import proc
from collector.linux.background import come_forward
from collector.linux.beside import Beside
from collector.linux.kernel_symbols import KernelObject, KernelSymbols, read_kernel_symbols
from collector.session.experiments import Experiments, Recorded
from collector.session.placing import Unwound

_MOST = 127  # frames of the kernel, where nobody has set another number
_TEXT_AT = 4096  # in the files that are made: an address of 0 would be none
_AGAIN_NS = 10 * NS_PER_S  # and twice as long each time


class KernelObjects:
    """Tells experiments of the kernel's functions in their stacks; ``archives`` is where files are made."""

    def __init__(self, archives: Path, experiments: Experiments) -> None:
        self._archives = archives
        self._experiments = experiments
        self._symbols = _Known(KernelSymbols([], []))
        self._reading: Beside | None = None
        self._again_ns = 0  # when they may be read anew
        self._pause_ns = _AGAIN_NS
        self._waiting: dict[Recorded, Array] = {}  # addresses (k,) that have no name yet, sorted
        self._told: dict[Recorded, set[int]] = {}  # where objects and functions begin
        self._identities: dict[bytes, Identity] = {}
        self._problems: list[str] = []
        self._n_unknown = 0  # addresses that have no name in the end
        self._n_without = 0  # stacks of 32-bit programs, whose experiments have no room for such addresses
        self._n_cut = 0  # stacks whose kernel part is longer than the kernel tells
        self._most = proc.parameter("kernel/perf_event_max_stack") or _MOST

    def met(self, frames: Unwound) -> None:
        """Stacks of samples, whose images have their experiments by now."""
        if frames.kernel is None or not frames.kernel.any():
            return
        if frames.kernel.shape[1] >= self._most:
            self._n_cut += int(np.count_nonzero(frames.kernel[:, self._most - 1]))
        for number in distinct(frames.image).tolist():
            recorded = self._experiments.by_image.get(number)
            if recorded is None or recorded.recorder is None:
                continue
            mine = frames.kernel[frames.image == number]
            if recorded.recorder.header.wsize != 64:
                self._n_without += int(np.count_nonzero(mine[:, 0]))
                continue
            found = distinct(mine[mine != 0])
            if len(found):
                before = self._waiting.get(recorded)
                self._waiting[recorded] = found if before is None else np.union1d(before, found)
        self._name()

    def _name(self) -> None:
        """Tells of what is known by now, and has more read where that is not all."""
        if not self._again_ns:
            self._read()
        if self._reading is not None:
            if not self._reading.is_done():
                return
            self._reading = None
        for recorded, addresses in list(self._waiting.items()):
            left = self._tell(recorded, addresses)
            if len(left):
                self._waiting[recorded] = left
            else:
                del self._waiting[recorded]
        if self._waiting and time.monotonic_ns() > self._again_ns:
            self._read()

    def _read(self) -> None:
        def read() -> None:
            self._symbols = _Known(read_kernel_symbols())

        self._again_ns = time.monotonic_ns() + self._pause_ns
        self._pause_ns *= 2
        come_forward()
        self._reading = Beside(read)

    def _tell(self, recorded: Recorded, addresses: Array) -> Array:
        """Tells an experiment where addresses lie; those that nobody knows are returned."""
        told = self._told.setdefault(recorded, set())
        where, unknown = self._symbols.find(addresses)
        for number in distinct(where[where >= 0]).tolist():
            one = self._symbols.objects[number]
            start = one[0] if not isinstance(one, KernelObject) else one.start
            if start in told:
                continue
            told.add(start)
            if isinstance(one, KernelObject):
                recorded.tell(Recorder.segment_mapped, recorded.start_ns, one.start, one.end - one.start, _TEXT_AT,
                              one.name, identity=self._made(one))
            else:
                recorded.tell(Recorder.code_mapped, recorded.start_ns, *one)
        return addresses[unknown]

    def _made(self, one: KernelObject) -> Identity:
        """Makes the file of an object, once; which one it is."""
        if one.name not in self._identities:
            start, size = (np.array([function[i] for function in one.functions], dtype=np.uint64) for i in (0, 1))
            content = elf.packed_symbols(start - np.uint64(one.start - _TEXT_AT), size,
                                         [name for _, _, name in one.functions], _TEXT_AT, one.end - one.start,
                                         elf.EM_X86_64)
            build_id = elf.object_of_bytes(content, repr(one.name)).build_id
            self._identities[one.name] = Identity(build_id or b"")
            try:
                add_made(self._archives, one.name, content)
            except ExperimentError as err:
                self._problems.append(str(err))
        return self._identities[one.name]

    def warnings(self) -> list[str]:
        """What is not as it should be."""
        told = ((self._n_unknown, "addresses of the kernel have no name"),
                (self._n_cut, "stacks have a gap: their kernel part is longer than kernel.perf_event_max_stack"),
                (self._n_without, "stacks of 32-bit programs are told without their kernel part"))
        return self._problems + [f"{n} {what}" for n, what in told if n]

    def close(self, ended: Iterable[Recorded]) -> None:
        """These experiments are over: what has no name now stays without."""
        mine = [recorded for recorded in ended if recorded in self._waiting]
        while mine and self._reading is not None:
            self._reading.wait()
            self._name()
        for recorded in mine:
            self._n_unknown += len(self._waiting.pop(recorded, ()))
        for recorded in ended:
            self._told.pop(recorded, None)


class _Known:
    """Symbols by address: objects, and functions that belong to none."""

    def __init__(self, symbols: KernelSymbols) -> None:
        self.objects: list[KernelObject | tuple[int, int, bytes]] = [*symbols.objects, *symbols.made]
        ranges = [(one.start, one.end) if isinstance(one, KernelObject) else (one[0], one[0] + one[1])
                  for one in self.objects]
        order = sorted(range(len(ranges)), key=ranges.__getitem__)
        self._number = np.array(order, dtype=np.int64)
        self._start = np.array([ranges[i][0] for i in order], dtype=np.uint64)
        self._end = np.array([ranges[i][1] for i in order], dtype=np.uint64)

    def find(self, addresses: Array) -> tuple[Array, Array]:
        """In which of the ``objects`` each address (n,) lies, -1: none; and which (n,) lie in none."""
        if not len(self._start):
            return np.full(len(addresses), -1), np.ones(len(addresses), dtype=bool)
        at = self._start.searchsorted(addresses, side="right") - 1
        inside = (at >= 0) & (addresses < self._end[at])
        return np.where(inside, self._number[at], -1), ~inside
