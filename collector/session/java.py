"""Methods of Java in stacks: in the place of each frame that HotSpot's interpreter or compiled code has on the native
stack, those that it carries out.

``runtimes.hotspot`` has the theory. Before samples are unwound what is known of a machine's code is checked; while they
are, it tells the rules of its code; and then every frame in it gets the addresses of its methods, in one go for the
stacks of all samples: a frame's methods depend on its pc (compiled) or its Method* and bytecode pointer (interpreted),
and there are few of these.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from functools import partial

import numpy as np

from collector.clock import NS_PER_MS
from collector.elf import object_of_bytes
from collector.errors import ElfError
from collector.events import Array, ClockSamples
from collector.linux import proc
from collector.processes.process import Epoch
from collector.runtimes import hotspot
from collector.runtimes.code import SIZE_MAX, Code
from collector.runtimes.hotspot import LEVELS, Blob, Machine
from collector.runtimes.looks import TORN, UNKNOWN, VERIFIED
from collector.runtimes.made_up import MadeUp
from collector.runtimes.scopes_hotspot import Scope
from collector.session.objects import Objects
from collector.session.placing import Cache, Frames
from collector.session.schedule import NEVER_NS
from collector.unwind.batch import Stop
from collector.unwind.memory import Memory
from collector.unwind.trampoline import image

NOT_KNOWN = b"<Java method, not known>"
LOOK_MIN_NS, LOOK_MAX_NS = 100 * NS_PER_MS, 1600 * NS_PER_MS
_METHOD, _BYTECODE = np.uint64(24), np.uint64(64)  # below fp, of an interpreted frame
_R13, _RBP = 13, 6
_ROOT = int(Stop.ROOT)
_PLACES_MAX = 1 << 16


class _Process:
    """A process that has HotSpot in it."""

    def __init__(self, machine: Machine, number: int) -> None:
        """``number``: of the code cache among the load objects."""
        self.machine = machine
        self.number = number
        self.lately = False  # whether it had samples since the last look
        self.period_ns = LOOK_MIN_NS
        self.due_ns = 0
        self.places: dict[tuple[int, ...], tuple[tuple[int, ...], int]] = {}  # addresses of methods, and a mark


class JavaFrames:
    """Puts methods of Java into stacks, where that is ``wanted``."""

    def __init__(self, objects: Objects, made_up: MadeUp, wanted: bool) -> None:
        self.counts = [0, 0, 0]  # frames by mark
        self.unread: dict[int, str] = {}  # by image: why its HotSpot is not to be read
        self._wanted = wanted
        self._made_up = made_up
        self._objects = objects
        self._processes: dict[int, _Process] = {}  # by image
        self._n_mappings: dict[int, int] = {}
        self._there: dict[int, tuple[int, dict[bytes, tuple[int, int]]]] = {}  # by image: pid and symbols, not begun

    @property
    def due_ns(self) -> int:
        """When the next look is due."""
        return min((process.due_ns for process in self._processes.values() if process.lately), default=NEVER_NS)

    def look(self) -> None:
        """For code that has been compiled lately, of machines that had samples: when they have ended nobody can ask."""
        for process in self._processes.values():
            now_ns = time.monotonic_ns()
            if not process.lately or now_ns < process.due_ns:
                continue
            found = process.machine.discover()
            process.machine.methods.learn(blob.method for blob in found)
            self._note_scopes(process, found)
            process.period_ns = LOOK_MIN_NS if found else min(process.period_ns * 2, LOOK_MAX_NS)
            process.due_ns = time.monotonic_ns() + process.period_ns
            process.lately = False

    def remark(self) -> str:
        """How sure the methods in stacks are; empty if there are none."""
        _, torn, unknown = self.counts
        if not any(self.counts):
            return ""
        doubts = [f"{n} {what}" for n, what in ((torn, "torn"), (unknown, "unknown")) if n]
        return f"{sum(self.counts)} Java frames" + (f" ({', '.join(doubts)})" if doubts else "")

    def forget(self, images: Sequence[int]) -> None:
        """These images are over."""
        for number in images:
            for known in (self._processes, self._n_mappings, self._there):
                known.pop(number, None)

    def code_at(self, image: int, pc: int) -> Code | None:
        """The machine code at a pc, named by what it was compiled from."""
        process = self._processes.get(image)
        blob = process.machine.blob_at(pc) if process is not None else None
        if process is None or blob is None or blob.code_end - blob.code > SIZE_MAX:
            return None
        return Code(blob.code, blob.code_end - blob.code, _code_name(process.machine, blob), blob.since_ns)

    # -- before samples are unwound

    def caches(self, epochs: Sequence[Epoch]) -> dict[int, Cache]:
        """The code caches in the spaces of epochs, by number of the space; what is known of them has been checked."""
        found = {}
        checked = set()
        for epoch in epochs if self._wanted else ():
            process = self._process(epoch)
            if process is None:
                continue
            if epoch.image.number not in checked:
                checked.add(epoch.image.number)
                for begin, end in process.machine.look(time.monotonic_ns()):
                    self._objects.tables.forget(process.number, begin, end)
            found[epoch.space.number] = Cache(process.machine.low, process.machine.high, process.number)
        return found

    def _process(self, epoch: Epoch) -> _Process | None:
        number, mappings = epoch.image.number, epoch.space.mappings
        known = self._processes.get(number)
        if known is not None:
            return known
        if self._n_mappings.get(number) != len(mappings):
            self._n_mappings[number] = len(mappings)
            self._find(epoch)
        if number in self._there:
            self._begin(number)
        return self._processes.get(number)

    def _find(self, epoch: Epoch) -> None:
        for mapping in epoch.space.mappings:
            known = self._objects.by_number.get(mapping.object)
            if known is None or mapping.path.rsplit(b"/", 1)[-1] != b"libjvm.so":
                continue
            try:
                symbols = known.exported(hotspot.SYMBOLS)
            except ElfError:
                continue
            there = {name: (value + mapping.bias, size) for name, (value, size) in symbols.items()}
            self._there[epoch.image.number] = epoch.image.pid, there

    def _begin(self, number: int) -> None:
        """Begins with a machine as soon as it has begun itself."""
        pid, symbols = self._there[number]
        found = hotspot.recognise(symbols, partial(proc.read_pieces, pid), time.monotonic_ns())
        if isinstance(found, Machine):
            tables = self._objects.tables
            made = object_of_bytes(image(found.high - found.low), "[code cache]")
            self._processes[number] = _Process(found, tables.add_told(made, found))
        elif found:
            self.unread[number] = found
        if found:
            del self._there[number]

    # -- when they have been

    def merged(self, samples: ClockSamples, index: Array, epochs: Sequence[Epoch], frames: Frames) -> Frames:
        """The stacks of samples with the methods of Java in them."""
        places: list[tuple[Array, Array, list[tuple[int, ...]]]] = []
        for number, epoch in enumerate(epochs):
            process = self._processes.get(epoch.image.number)
            rows = np.flatnonzero((index == number) & (samples.abi == 64)) if process is not None else index[:0]
            if process is None or not len(rows):
                continue
            process.lately = True
            process.due_ns = process.due_ns or time.monotonic_ns()
            found = self._of_process(process, samples, rows, frames)
            if found is not None:
                places.append(found)
        return _with(places, frames) if places else frames

    def _of_process(self, process: _Process, samples: ClockSamples, rows: Array,
                    frames: Frames) -> tuple[Array, Array, list[tuple[int, ...]]] | None:
        """Frames (k,) that carry out methods as indices of samples and depths, and of each the methods' addresses,
        innermost first."""
        machine, pcs = process.machine, frames.pcs[rows]
        inside = np.arange(pcs.shape[1]) < frames.length[rows, None]
        inside &= pcs - np.uint64(machine.low) < np.uint64(machine.high - machine.low)
        which, depth = np.nonzero(inside)
        if not len(which):
            return None
        pc, row = pcs[which, depth], rows[which]
        distinct_pcs, at = np.unique(pc, return_inverse=True)
        blobs = machine.blobs_at(distinct_pcs)
        is_interpreted = np.array([blob is not None and blob.is_interpreter for blob in blobs], np.bool_)[at]
        is_compiled = np.array([blob is not None and blob.is_compiled for blob in blobs], np.bool_)[at]
        leaf = depth == 0
        method, bytecode = _interpreted(samples, row, depth, frames, is_interpreted)
        # What tells the methods of a frame, once for all that are alike; blobs are others when they have changed.
        compilation = np.array([blob.compile_id + 1 if blob is not None else 0 for blob in blobs], np.uint64)[at]
        since = np.array([blob.since_ns if blob is not None else 0 for blob in blobs], np.int64)[at]
        keys = np.stack([np.where(is_interpreted, method, pc), np.where(is_interpreted, bytecode, compilation),
                         is_interpreted * np.uint64(2) + (leaf & ~is_interpreted)], axis=1)
        some = np.flatnonzero(is_interpreted | is_compiled)
        if not len(some):
            return None
        distinct_keys, kind = np.unique(keys[some], axis=0, return_inverse=True)
        found = self._places(process, distinct_keys, dict(zip(distinct_pcs.tolist(), blobs, strict=True)))
        changed = np.array([blob is not None and blob.start in machine.changed for blob in blobs], np.bool_)[at][some]
        sure = (since[some] <= samples.time_ns[row[some]]) | (frames.stop[row[some]] == _ROOT)
        kind = kind.ravel()
        marks = np.array([mark for _, mark in found])[kind]
        marks = np.where((marks == VERIFIED) & ((is_compiled[some] & ~sure) | changed), TORN, marks)
        weights = np.array([len(addresses) for addresses, _ in found])[kind]
        for mark in (VERIFIED, TORN, UNKNOWN):
            self.counts[mark] += int(weights[marks == mark].sum())
        return row[some], depth[some], [found[i][0] for i in kind.tolist()]

    def _places(self, process: _Process, keys: Array, blobs: dict[int, Blob | None]) -> list[
            tuple[tuple[int, ...], int]]:
        """Of what tells the methods of frames (k, 3) their addresses, innermost first, and the mark."""
        known = process.places
        if len(known) > _PLACES_MAX:
            known.clear()
        wanted = [tuple(key) for key in keys.tolist()]
        new = [key for key in wanted if key not in known]
        compiled = [(blob, key[0], bool(key[2] & 1)) for key in new if not key[2] & 2 and (blob := blobs[key[0]])]
        scopes = dict(zip(((pc, leaf) for _, pc, leaf in compiled), process.machine.scopes_at(compiled), strict=True))
        process.machine.methods.learn(key[0] for key in new if key[2] & 2)
        temporary: dict[tuple[int, ...], tuple[tuple[int, ...], int]] = {}
        for key in new:
            if key[2] & 2:
                place = self._of_interpreted(process.machine, key[0], key[1])
            else:
                place = self._of_compiled(process.machine, scopes[key[0], bool(key[2] & 1)])
            # What could not be read now may be another time.
            (temporary if place[1] == UNKNOWN else known)[key] = place
        return [known.get(key) or temporary[key] for key in wanted]

    def _of_interpreted(self, machine: Machine, address: int, bytecode: int) -> tuple[tuple[int, ...], int]:
        method = machine.method(address)
        if method is None:
            return (self._made_up.start_of(NOT_KNOWN) + 1,), UNKNOWN
        is_there = 0 <= bytecode - method.bytecode < max(method.size, 1)
        return (self._address(machine, address, bytecode - method.bytecode if is_there else 0),), (
            VERIFIED if is_there or not method.size else TORN)

    def _of_compiled(self, machine: Machine, scopes: Iterable[Scope]) -> tuple[tuple[int, ...], int]:
        found = tuple(self._address(machine, method, bci) for method, bci in scopes)
        is_known = all(machine.method(method) is not None for method, _ in scopes)
        return found, VERIFIED if is_known else UNKNOWN

    def _address(self, machine: Machine, address: int, bci: int) -> int:
        """The made-up address of a place in a method."""
        method = machine.method(address)
        if method is None:
            return self._made_up.start_of(NOT_KNOWN) + 1
        start = self._made_up.start_of(method.name, method.source, max(method.size, 2), method.lines)
        return start + (bci if 0 <= bci < method.size else 0) + 1

    @staticmethod
    def _note_scopes(process: _Process, blobs: Iterable[Blob]) -> None:
        for blob in blobs:
            if blob.is_compiled:
                process.machine.scopes(blob)


def _interpreted(samples: ClockSamples, row: Array, depth: Array, frames: Frames,
                 is_interpreted: Array) -> tuple[Array, Array]:
    """Method* and bytecode pointer of frames (k,), where they are interpreted; 0 elsewhere, and where their words were
    not copied."""
    method, bytecode = np.zeros((2, len(row)), np.uint64)
    some = np.flatnonzero(is_interpreted)
    if len(some):
        columns = (getattr(samples, name)[row[some]].view(np.uint64) for name in (
            "low", "n_words", "first", "mask", "base"))
        memory = Memory(samples.words, np.stack(list(columns)))
        fp = frames.fps[row[some], depth[some]]
        words, ok = memory.read(np.stack((fp - _METHOD, fp - _BYTECODE)))
        method[some], bytecode[some] = np.where(ok, words, np.uint64(0))
        leaf = some[depth[some] == 0]
        bytecode[leaf] = samples.regs[row[leaf], _R13]
    return method, bytecode


def _with(places: list[tuple[Array, Array, list[tuple[int, ...]]]], frames: Frames) -> Frames:
    """Stacks with addresses put before some of their frames."""
    n, width = frames.pcs.shape
    n_before = np.zeros((n, width), np.int64)
    for row, depth, addresses in places:
        n_before[row, depth] = [len(each) for each in addresses]
    # Where each frame comes to stand.
    inside = np.arange(width) < frames.length[:, None]
    at = np.cumsum(n_before, axis=1) + np.arange(width)
    length = frames.length + n_before.sum(axis=1)
    depth_max = int(length.max(initial=1))
    pcs, sps, fps = np.zeros((3, n, depth_max), np.uint64)
    rows, columns = np.nonzero(inside)
    for wide, narrow in ((pcs, frames.pcs), (sps, frames.sps), (fps, frames.fps)):
        wide[rows, at[rows, columns]] = narrow[rows, columns]
    for row, depth, addresses in places:
        count = np.array([len(each) for each in addresses])
        flat = np.array([address for each in addresses for address in each], np.uint64)
        whose = np.repeat(np.arange(len(row)), count)
        back = np.repeat(count, count) - (np.arange(len(flat)) - np.repeat(np.cumsum(count) - count, count))
        to = at[row, depth][whose] - back
        pcs[row[whose], to] = flat
        sps[row[whose], to], fps[row[whose], to] = (narrow[row, depth][whose] for narrow in (frames.sps, frames.fps))
    return Frames(pcs, length, frames.stop, sps, fps)


def _code_name(machine: Machine, blob: Blob) -> bytes:
    if not blob.is_compiled:
        return b"[HotSpot] " + blob.name
    machine.methods.learn([blob.method])
    method = machine.method(blob.method)
    return b"[%s] %s" % (LEVELS.get(blob.level, b"native"), method.name if method is not None else NOT_KNOWN)
