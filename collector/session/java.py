"""Methods of Java in stacks: in the place of each frame that HotSpot's interpreter or compiled code has on the native
stack, those that it carries out.

``runtimes.hotspot`` has the theory. Before samples are unwound what is known of a machine's code is checked; while they
are, it tells the rules of its code; and then every frame in it gets the addresses of its methods, in one go for the
stacks of all samples: a frame's methods depend on its pc (compiled) or its Method* and bytecode pointer (interpreted),
and there are few of these.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from collector.arrays import among, distinct, indices
from collector.clock import NEVER_NS, NS_PER_MS
from collector.elf import object_of_bytes
from collector.errors import ElfError
from collector.events import Array, ClockSamples
from collector.linux import proc
from collector.processes.process import Epoch, Image
from collector.runtimes import marks
from collector.runtimes.code import SIZE_MAX, Code
from collector.runtimes.made_up import MadeUp
from collector.runtimes.marks import TORN, UNKNOWN, VERIFIED
from collector.session.merging import Managed, alike
from collector.session.objects import Objects
from collector.session.pace import COMPILING_NS, Pace
from collector.session.placing import ByImage, Cache, Frames
from collector.unwind.batch import Stop
from collector.unwind.memory import Memory, words_within

# What only programs of Java need is imported when libjvm.so is met: the target waits for every module here.
if TYPE_CHECKING:
    from collector.runtimes.hotspot import Blob, Machine
    from collector.runtimes.scopes_hotspot import Scope

NOT_KNOWN = b"<Java method, not known>"
BEGIN_NS = 40 * NS_PER_MS  # between looks at a machine that has not begun yet
_METHOD, _BYTECODE = np.uint64(24), np.uint64(64)  # below fp, of an interpreted frame
_R13, _RBP, _RIP = 13, 6, 16
_ROOT = int(Stop.ROOT)
_PLACES_MAX = 1 << 16
_TRIES = 200  # looks at a machine that has not begun


class _Process:
    """A process that has HotSpot in it."""

    def __init__(self, machine: Machine, number: int, start_ns: int) -> None:
        """``number``: of the code cache among the load objects; ``start_ns``: when the program began."""
        self.machine = machine
        self.number = number
        self.lately = True  # whether it had samples since the last look that they have asked for
        self.has_new = False  # code, since then
        self.pace = Pace(start_ns, COMPILING_NS)
        self.code_due_ns = 0  # when code that has come is to be looked at
        self.n_forgotten = 0  # methods of which places may be among the following
        self.codes: dict[tuple[int, int], Code] = {}  # by start and since when
        self.places: dict[tuple[int, ...], tuple[tuple[int, ...], int]] = {}  # addresses of methods, and a mark

    @property
    def due_ns(self) -> int:
        """When the next look is due."""
        return min(self.code_due_ns, self._samples_due_ns)

    @property
    def _samples_due_ns(self) -> int:
        """When one is due that samples have asked for."""
        return self.pace.due_ns if self.lately else NEVER_NS

    def look(self) -> bool:
        """At code that has come; whether samples are wanted, too."""
        now_ns = time.monotonic_ns()
        found = self.machine.discover()
        self.machine.methods.learn(blob.method for blob in found)
        self.machine.read_scopes(blob for blob in found if blob.is_compiled)
        self.has_new |= bool(found)
        looked_ns = time.monotonic_ns()
        self.code_due_ns = self.pace.code_due_ns(looked_ns)
        if now_ns < self._samples_due_ns:
            return False
        self.pace.looked(looked_ns, is_new=self.has_new)
        self.lately = self.has_new = False
        return self.pace.is_young(now_ns)


class JavaFrames:
    """Puts methods of Java into stacks, where that is ``wanted``."""

    def __init__(self, objects: Objects, made_up: MadeUp, wanted: bool, expected_ns: int = 0) -> None:
        """``expected_ns``: until when a machine is expected to begin."""
        self.counts = [0, 0, 0]  # frames by mark
        self.unread: dict[int, str] = {}  # by image: why its HotSpot is not to be read
        self._wanted = wanted
        self._made_up = made_up
        self._objects = objects
        self._processes: dict[int, _Process] = {}  # by image
        self._tried: dict[int, tuple[int, int]] = {}  # by image: in which version of its space
        self._there: dict[int, tuple[Image, dict[bytes, tuple[int, int]]]] = {}  # by image: it, symbols; not begun
        self._expected_ns = expected_ns if wanted else 0
        self._begin_ns = 0  # when these are to be looked at again
        self._n_tried: Counter[int] = Counter()

    @property
    def due_ns(self) -> int:
        """When the next look is due."""
        begin_ns = self._begin_ns if self._waits_for_one else NEVER_NS
        return min([begin_ns, *(process.due_ns for process in self._processes.values())])

    @property
    def _waits_for_one(self) -> bool:
        """Whether a machine has not begun yet, or is expected to."""
        return bool(self._there) or (self._begin_ns < self._expected_ns and not self._processes)

    def look(self) -> bool:
        """For machines that have begun, and code that they have compiled: when they have ended nobody can ask. Whether
        samples are wanted, too: interpreted methods can be named as long as their process lives, and a young one may
        live shortly."""
        is_wanted = self._waits_for_one and time.monotonic_ns() >= self._begin_ns
        if is_wanted:
            for number in list(self._there):
                self._begin(number)
            self._begin_ns = time.monotonic_ns() + BEGIN_NS
        for process in self._processes.values():
            if time.monotonic_ns() >= process.due_ns:
                is_wanted |= process.look()
        return is_wanted

    def remark(self) -> str:
        """How sure the methods in stacks are; empty if there are none."""
        return marks.remark(self.counts, "Java")

    def forget(self, images: Sequence[int]) -> None:
        """These images are over."""
        for number in images:
            process = self._processes.pop(number, None)
            if process is not None:
                self._objects.tables.retire(process.number)
            for known in (self._tried, self._there, self._n_tried):
                known.pop(number, None)

    def code_at(self, image: int, pc: int) -> Code | None:
        """The machine code at a pc, named by what it was compiled from."""
        process = self._processes.get(image)
        blob = process.machine.blob_at(pc) if process is not None else None
        if process is None or blob is None or blob.code_end - blob.code > SIZE_MAX:
            return None
        key = blob.start, blob.since_ns
        code = process.codes.get(key)
        if code is None:
            name = _code_name(process.machine, blob)
            code = process.codes[key] = Code(blob.code, blob.code_end - blob.code, name, blob.since_ns)
        return code

    # -- before samples are unwound

    def caches(self, samples: ClockSamples, index: Array, images: ByImage) -> dict[int, Cache]:
        """The code caches in the spaces of images, by number of the space; what is known of them is to be checked.
        Samples (n,), each in the epoch that ``index`` (n,) tells of it, are about to be unwound."""
        found: dict[int, Cache] = {}
        for its, numbers in images if self._wanted else ():
            process = self._process(its[-1])
            if process is not None:
                machine = process.machine
                self._objects.tables.forget(process.number, machine.look(time.monotonic_ns()))
                if machine.is_moving:
                    rows = indices(among(index, numbers) & (samples.abi == 64))
                    self._expect(process, _may_return_to(samples, rows, machine.low, machine.high))
                cache = Cache(machine.low, machine.high, process.number)
                found.update((epoch.space.number, cache) for epoch in its)
        return found

    def _expect(self, process: _Process, pcs: Array) -> None:
        """Asks about all code that stacks are going to lead through at once. Turn by turn it would be asked for as it
        is met, and what has changed would be known when stacks have been unwound through it."""
        tables, machine = self._objects.tables, process.machine
        tables.forget(process.number, machine.no_more(pcs))
        tables.expect(process.number, machine.in_code(pcs) - np.uint64(machine.low))

    def _process(self, epoch: Epoch) -> _Process | None:
        number, version = epoch.image.number, epoch.space.version
        known = self._processes.get(number)
        if known is not None:
            return known
        if self._tried.get(number) != version:
            self._tried[number] = version
            self._find(epoch)
        if number in self._there:
            self._begin(number)
        return self._processes.get(number)

    def _find(self, epoch: Epoch) -> None:
        for mapping in epoch.space.mappings:
            known = self._objects.by_number.get(mapping.object)
            if known is None or mapping.path.rsplit(b"/", 1)[-1] != b"libjvm.so":
                continue
            from collector.runtimes import hotspot

            try:
                symbols = known.exported(hotspot.SYMBOLS)
            except ElfError:
                continue
            there = {name: (value + mapping.bias, size) for name, (value, size) in symbols.items()}
            self._there[epoch.image.number] = epoch.image, there

    def _begin(self, number: int) -> None:
        """Begins with a machine as soon as it has begun itself."""
        from collector.runtimes import hotspot
        from collector.unwind.trampoline import image

        program, symbols = self._there[number]
        found = hotspot.recognise(symbols, partial(proc.read_pieces, program.pid), time.monotonic_ns())
        if not isinstance(found, str):
            tables = self._objects.tables
            made = object_of_bytes(image(found.high - found.low), "[code cache]")
            self._processes[number] = _Process(found, tables.add_told(made, found), program.start_ns)
        elif found:
            self.unread[number] = found
        self._n_tried[number] += 1
        if found or self._n_tried[number] > _TRIES:
            del self._there[number], self._n_tried[number]

    # -- when they have been

    def out_of_date(self, index: Array, images: ByImage, frames: Frames) -> Array:
        """Which of the stacks, ascending, lead through code that has changed since its rules were told; those are told
        anew by the next unwinding, and all others come to the same again."""
        found = [index[:0]]
        for (epoch, *_), numbers in images:
            process = self._processes.get(epoch.image.number)
            if process is None:
                continue
            low, high = np.array([process.machine.low, process.machine.high], np.uint64)
            rows = indices(among(index, numbers))
            which, depth = np.nonzero(frames.pcs[rows] - low < high - low)
            pcs = frames.pcs[rows[which], depth]
            forgotten = sorted(process.machine.no_more(distinct(pcs)))
            self._objects.tables.forget(process.number, forgotten)
            if forgotten:
                begins, ends = np.array(forgotten, np.uint64).T + low
                at = begins.searchsorted(pcs, "right") - 1
                found.append(rows[which[(at >= 0) & (pcs < np.maximum.accumulate(ends)[at])]])
        return distinct(np.concatenate(found))

    def functions(self, samples: ClockSamples, index: Array, images: ByImage, frames: Frames) -> list[Managed]:
        """The methods of Java in the stacks of samples."""
        places = []
        for (epoch, *_), numbers in images:
            process = self._processes.get(epoch.image.number)
            rows = indices(among(index, numbers) & (samples.abi == 64)) if process is not None else index[:0]
            if process is None or not len(rows):
                continue
            process.lately = True
            process.pace.due_ns = process.pace.due_ns or time.monotonic_ns()
            found = self._of_process(process, samples, rows, frames)
            if found is not None:
                places.append(found)
        return places

    def _of_process(self, process: _Process, samples: ClockSamples, rows: Array, frames: Frames) -> Managed | None:
        machine, pcs = process.machine, frames.pcs[rows]
        inside = np.arange(pcs.shape[1]) < frames.length[rows, None]
        inside &= pcs - np.uint64(machine.low) < np.uint64(machine.high - machine.low)
        which, depth = np.nonzero(inside)
        pc, row = pcs[which, depth], rows[which]
        distinct_pcs, at = np.unique(pc, return_inverse=True)
        blobs = machine.blobs_at(distinct_pcs)
        machine.methods.learn(blob.method for blob in blobs if blob is not None and blob.is_compiled)
        is_interpreted = np.array([blob is not None and blob.is_interpreter for blob in blobs], np.bool_)[at]
        some = indices(is_interpreted | np.array([
            blob is not None and blob.is_compiled for blob in blobs], np.bool_)[at])
        if not len(some):
            return None
        at, pc, row, depth, is_interpreted = at[some], pc[some], row[some], depth[some], is_interpreted[some]
        method, bytecode = _interpreted(samples, row, depth, frames, is_interpreted)
        # What tells the methods of a frame, once for all that are alike; blobs are others when they have changed.
        compilation = np.array([blob.compile_id if blob is not None else 0 for blob in blobs], np.uint64)[at]
        keys = np.stack([np.where(is_interpreted, method, pc), np.where(is_interpreted, bytecode, compilation),
                         is_interpreted * np.uint64(2) + ((depth == 0) & ~is_interpreted)])
        first, kind = alike(keys)
        found = self._places(process, keys.T[first], dict(zip(distinct_pcs.tolist(), blobs, strict=True)))
        managed = Managed(row, depth, kind, [addresses for addresses, _ in found])
        since = np.array([blob.since_ns if blob is not None else 0 for blob in blobs], np.int64)[at]
        changed = np.array([blob is not None and blob.start in machine.changed for blob in blobs], np.bool_)[at]
        times = samples.time_ns[row]
        sure = is_interpreted | ((since <= times) & (times <= machine.seen_ns)) | (frames.stop[row] == _ROOT)
        marked = np.array([mark for _, mark in found])[kind]
        marked = np.where((marked == VERIFIED) & (~sure | changed), TORN, marked)
        for mark in (VERIFIED, TORN, UNKNOWN):
            self.counts[mark] += int(managed.count[marked == mark].sum())
        return managed

    def _places(self, process: _Process, keys: Array, blobs: dict[int, Blob | None]) -> list[
            tuple[tuple[int, ...], int]]:
        """Of what tells the methods of frames (k, 3) their addresses, innermost first, and the mark."""
        known = process.places
        wanted = [tuple(key) for key in keys.tolist()]
        # Of compiled code these have been seen with it: as long as it is the same, its methods are.
        process.machine.methods.learn(key[0] for key in wanted if key[2] & 2)
        if len(known) > _PLACES_MAX or process.n_forgotten != process.machine.methods.n_forgotten:
            known.clear()
            process.n_forgotten = process.machine.methods.n_forgotten
        new = [key for key in wanted if key not in known]
        compiled = [(blob, key[0], bool(key[2] & 1)) for key in new if not key[2] & 2 and (blob := blobs[key[0]])]
        scopes = dict(zip(((pc, leaf) for _, pc, leaf in compiled), process.machine.scopes_at(compiled), strict=True))
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


def _may_return_to(samples: ClockSamples, rows: Array, low: int, high: int) -> Array:
    """All pcs (k,) in [low, high) that samples may be found to have, as they are looked up."""
    ring = samples.base[rows], samples.mask[rows], samples.first[rows]
    leaf = samples.regs[rows, _RIP]
    leaf = leaf[(leaf >= np.uint64(low)) & (leaf < np.uint64(high))]
    after = words_within(samples.words, ring, samples.n_words[rows], low + 1, high)
    return distinct(np.concatenate((leaf, after - np.uint64(1))))


def _interpreted(samples: ClockSamples, row: Array, depth: Array, frames: Frames,
                 is_interpreted: Array) -> tuple[Array, Array]:
    """Method* and bytecode pointer of frames (k,), where they are interpreted; 0 elsewhere, and where their words were
    not copied."""
    method, bytecode = np.zeros((2, len(row)), np.uint64)
    some = indices(is_interpreted)
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


def _code_name(machine: Machine, blob: Blob) -> bytes:
    if not blob.is_compiled:
        return b"[HotSpot] " + blob.name
    machine.methods.learn([blob.method])  # of those in stacks it is known by now
    method = machine.method(blob.method)
    return b"[%s] %s" % (blob.maker, method.name if method is not None else NOT_KNOWN)
