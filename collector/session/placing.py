"""Samples with registers and a stack in, interned stacks out: unwinding for all processes at once.

Which experiment a sample belongs to, and in which address space it is to be unwound, is told by its process and time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Mapping as MappingOf
from dataclasses import dataclass
from operator import attrgetter
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

import numpy as np

from collector.arrays import distinct, indices
from collector.events import Array, ClockSamples
from collector.experiment.frames import hashed
from collector.experiment.recorder import Recorder
from collector.processes.model import Model
from collector.processes.process import Epoch
from collector.processes.space import AddressSpace
from collector.session.tally import GONE
from collector.unwind import batch as unwinding
from collector.unwind.batch import MAX_DEPTH, Maps, Stacks, Stop
from collector.unwind.table import Tables

# What stands at the root of a stack that does not reach it.
TRUNCATED_MARK = np.uint64(2**64 - 2)
FAILED_MARK = np.uint64(2**64 - 3)

# Columns of i386's registers in the x86-64 order of the samples: eax ecx edx ebx esp ebp esi edi eip.
_I386_COLUMNS = np.array([0, 2, 1, 3, 7, 6, 4, 5, 16])
_LOW32 = np.uint64(0xFFFF_FFFF)
_FRAME_AND_MARK = 2
_ROOT, _TRUNCATED, _DEPTH = int(Stop.ROOT), int(Stop.TRUNCATED), int(Stop.DEPTH)
# Of so many stacks at a time the deepest may tell how wide an array is; those that are no deeper than this, all.
_AT_ONCE, _SHALLOW = 256, 128
_DEEP_AT_ONCE = 1024
_NO_CACHES: MappingOf[int, Cache] = MappingProxyType({})
_ALL_KNOWN = np.uint64((1 << 17) - 1)
_NO_MAPPINGS: Array = np.zeros((0, 4), dtype=np.uint64)
_COLUMNS = [name for name in ClockSamples.__slots__ if name not in ("words", "known", "kernel", "is_of_clock")]
_columns_of = attrgetter(*_COLUMNS)


@dataclass(slots=True, eq=False, repr=False)
class Unwound:
    """For each of n samples: its thread's slot, its image's number, its space and its frames, marked at the end."""

    slot: Array  # i8 (n,)
    image: Array  # i8 (n,)
    epoch: Array  # i8 (n,) index into ``epochs``
    epochs: list[Epoch]
    pcs: Array  # u8 (n, depth) leaf first
    length: Array  # i8 (n,)
    stop: Array  # i1 (n,) Stop; GONE where there was no stack to unwind
    kernel: Array | None = None  # u8 (n, depth) the kernel's frames on top of them, leaf first, 0 behind the last

    def __getitem__(self, rows: slice) -> Unwound:
        return Unwound(self.slot[rows], self.image[rows], self.epoch[rows], self.epochs, self.pcs[rows],
                       self.length[rows], self.stop[rows], None if self.kernel is None else self.kernel[rows])

    def part(self, rows: Array) -> Unwound:
        """Some of them (k,), no wider than these."""
        length = self.length[rows]
        pcs = self.pcs[rows, :max(int(length.max(initial=1)), 1)]
        return Unwound(self.slot[rows], self.image[rows], self.epoch[rows], self.epochs, pcs, length, self.stop[rows],
                       None if self.kernel is None else self.kernel[rows])


@dataclass(slots=True, eq=False, repr=False)
class Placed:
    """For each of n samples: its thread's slot, its image's number and its stack in that image's experiment."""

    slot: Array  # i8 (n,)
    image: Array  # i8 (n,)
    uid: Array  # u8 (n,) 0 where the image is not recorded
    whole: Array  # bool (n,) the stack reaches the root
    cut: Array  # bool (n,) it goes on above what was copied of it

    def __getitem__(self, rows: slice) -> Placed:
        return Placed(self.slot[rows], self.image[rows], self.uid[rows], self.whole[rows], self.cut[rows])


class Frames(NamedTuple):
    """The stacks of n samples: marked short of the root."""

    pcs: Array  # u8 (n, depth) leaf first
    length: Array  # i8 (n,)
    stop: Array  # i1 (n,)
    sps: Array  # u8 (n, depth) the stack pointer in each frame, of 64 bits
    fps: Array  # u8 (n, depth) and the frame pointer


class Cache(NamedTuple):
    """Where a space has code that is made at run time, of which somebody tells the rules: its place in the space, and
    its object's number."""

    low: int
    high: int
    object: int


ByImage: TypeAlias = Sequence[tuple[list[Epoch], Array]]


def by_image(epochs: Sequence[Epoch]) -> ByImage:
    """The epochs of each image among some, in their order, and their numbers (k,) there.

    Whenever a process maps something executable an epoch begins, and a process that starts has dozens in a batch; what
    its runtime knows is of the process.
    """
    found: dict[int, list[int]] = {}
    for number, epoch in enumerate(epochs):
        found.setdefault(epoch.image.number, []).append(number)
    return [([epochs[number] for number in numbers], np.array(numbers)) for numbers in found.values()]


FramesOf = Callable[[ClockSamples, Array, list[Epoch]], tuple[Array, Array, Array]]


def unwound(samples: ClockSamples, model: Model, frames_of: FramesOf) -> Unwound:
    """Unwinds samples of any processes; ``frames_of`` is what a World has under that name."""
    slot = model.slots(samples.tid, samples.pid, samples.time_ns)
    index, epochs = model.epochs(samples.pid, samples.time_ns)
    image = np.array([epoch.image.number for epoch in epochs], dtype=np.int64)[index]
    return Unwound(slot, image, index, epochs, *frames_of(samples, index, epochs), samples.kernel)


def frames_of(samples: ClockSamples, index: Array, epochs: list[Epoch], tables: Tables) -> Frames:
    """The stacks of samples of any word sizes, in epochs ``index`` (n,), marked short of the root, without the pointers
    in their frames where there are many.
    """
    return in_parts(samples, index, lambda some, its, depth: placed_frames_of(some, its, epochs, tables,
                                                                              max_depth=depth),
                    lambda _samples, _index, found: found)


def in_parts(samples: ClockSamples, index: Array, stacks_of: Callable[[ClockSamples, Array, int], Frames],
             finished: Callable[[ClockSamples, Array, Frames], Frames]) -> Frames:
    """The stacks of samples in epochs ``index`` (n,), without the pointers in their frames: those of many at once apart
    from deep ones, since one of these would make the arrays of all as wide as itself. ``stacks_of`` unwinds samples up
    to a depth, ``finished`` puts in what else belongs there."""
    n = len(index)
    if n <= _AT_ONCE:
        return finished(samples, index, stacks_of(samples, index, MAX_DEPTH))
    found = stacks_of(samples, index, _SHALLOW)
    is_deep = found.stop == _DEPTH
    if not is_deep.any():
        return finished(samples, index, found)
    deep, rows = indices(is_deep), indices(~is_deep)
    parts = [(rows, finished(samples[rows], index[rows], Frames(*(column[rows] for column in found))))]
    for begin in range(0, len(deep), _DEEP_AT_ONCE):
        rows = deep[begin:begin + _DEEP_AT_ONCE]
        some = samples[rows], index[rows]
        parts.append((rows, finished(*some, stacks_of(*some, MAX_DEPTH))))
    pcs = np.zeros((n, max(part.pcs.shape[1] for _, part in parts)), np.uint64)
    length, stop = np.zeros(n, np.int64), np.zeros(n, np.int8)
    for rows, part in parts:
        pcs[rows, :part.pcs.shape[1]], length[rows], stop[rows] = part.pcs, part.length, part.stop
    return Frames(pcs, length, stop, *np.zeros((2, n, 0), np.uint64))


def placed_frames_of(samples: ClockSamples, index: Array, epochs: list[Epoch], tables: Tables,
                     caches: MappingOf[int, Cache] = _NO_CACHES, max_depth: int = MAX_DEPTH) -> Frames:
    """The same with the stack and frame pointers in their frames, as one array; ``caches`` by number of the space.

    A thread that is being replaced by an exec, or is leaving for good, runs in the kernel without the memory that its
    stack was in. In the first case its pc is still that of the program before, which the space does not have: this one
    frame, which nobody names, is all there is, and no mark of something lost.
    """
    all_bits = distinct(samples.abi).tolist()
    if len(all_bits) == 1:
        pcs, length, stop, sps, fps = _unwound(samples, all_bits[0], index, epochs, tables, caches, max_depth)
    else:
        pcs, length, stop, sps, fps = _mixed(samples, all_bits, index, epochs, tables, caches, max_depth)
    gone = (samples.n_words == 0) & (stop != _ROOT)
    if gone.any():
        replaced = gone & (stop == Stop.NO_MAP) & (length == _FRAME_AND_MARK)
        pcs[replaced, 1:], length[replaced] = 0, 1
        stop[gone] = GONE
    return Frames(pcs, length, stop, sps, fps)


def replaced(frames: Frames, rows: Array, others: Frames) -> Frames:
    """The stacks with others in the place of those in ``rows`` (k,)."""
    depth = max(frames.pcs.shape[1], others.pcs.shape[1])
    pcs, sps, fps = np.zeros((3, len(frames.length), depth), np.uint64)
    for wide, before, now in ((pcs, frames.pcs, others.pcs), (sps, frames.sps, others.sps),
                              (fps, frames.fps, others.fps)):
        wide[:, :before.shape[1]] = before
        wide[rows] = 0
        wide[rows, :now.shape[1]] = now
    length, stop = frames.length.copy(), frames.stop.copy()
    length[rows], stop[rows] = others.length, others.stop
    return Frames(pcs, length, stop, sps, fps)


def interned(frames: Unwound, recorders: MappingOf[int, Recorder]) -> Placed:
    """Gives every stack its uid in the experiment of its image; ``recorders`` are those that are open, by image."""
    n, is_deep = len(frames.slot), frames.length > _SHALLOW + 1
    if n <= _AT_ONCE or not is_deep.any():
        uid = _uids(frames, recorders)
    else:
        uid = np.zeros(n, dtype=np.uint64)
        for rows in (indices(~is_deep), indices(is_deep)):
            uid[rows] = _uids(frames.part(rows), recorders)
    return Placed(frames.slot, frames.image, uid, frames.stop == _ROOT, frames.stop == _TRUNCATED)


def _uids(frames: Unwound, recorders: MappingOf[int, Recorder]) -> Array:
    uid = np.zeros(len(frames.slot), dtype=np.uint64)
    stacks = hashed(frames.pcs, frames.length)
    for number in distinct(frames.image).tolist():
        recorder = recorders.get(number)
        if recorder is None:
            continue
        mine = indices(frames.image == number)
        if frames.kernel is not None and recorder.header.wsize == 64:
            length = frames.length[mine]
            pcs = frames.pcs[mine, :max(int(length.max()), 1)]
            uid[mine] = recorder.frames.intern(*on_top(frames.kernel[mine], pcs, length))
        else:
            uid[mine] = recorder.frames.intern_hashed(stacks.at(mine) if len(mine) < len(uid) else stacks)
    return uid


def on_top(kernel: Array, pcs: Array, length: Array) -> tuple[Array, Array]:
    """Stacks (n, depth) that begin with the kernel's frames (n, kernel depth), both 0 behind their last; and their
    lengths."""
    n_kernel = np.count_nonzero(kernel, axis=1)
    n_frames = n_kernel + length
    whole = np.zeros((len(pcs), max(int(n_frames.max(initial=1)), kernel.shape[1])), dtype=np.uint64)
    whole[:, :kernel.shape[1]] = kernel
    row, column = np.nonzero(np.arange(pcs.shape[1]) < length[:, None])
    whole[row, column + n_kernel[row]] = pcs[row, column]
    return whole[:, :max(int(n_frames.max(initial=1)), 1)], n_frames


def joined(parts: list[ClockSamples]) -> ClockSamples:
    """All as one, in the order given."""
    if len(parts) == 1:
        return parts[0]
    known = None if all(part.known is None for part in parts) else np.concatenate([_known(part) for part in parts])
    columns = map(np.concatenate, zip(*map(_columns_of, parts), strict=True))
    return ClockSamples(words=parts[0].words, known=known, kernel=_kernel(parts),
                        **dict(zip(_COLUMNS, columns, strict=True)))


def _known(samples: ClockSamples) -> Array:
    """The registers that are known, as bits, where some samples' are not all known."""
    return np.full(len(samples.time_ns), _ALL_KNOWN) if samples.known is None else samples.known


def _kernel(parts: list[ClockSamples]) -> Array | None:
    """The kernel's frames of all parts, as deep as the deepest; None where none has any."""
    depth = max((part.kernel.shape[1] for part in parts if part.kernel is not None), default=0)
    if not depth:
        return None
    frames = np.zeros((sum(len(part.time_ns) for part in parts), depth), dtype=np.uint64)
    end = 0
    for part in parts:
        begin, end = end, end + len(part.time_ns)
        if part.kernel is not None:
            frames[begin:end, :part.kernel.shape[1]] = part.kernel
    return frames


def _mixed(samples: ClockSamples, all_bits: list[int], index: Array, epochs: list[Epoch],
           tables: Tables, caches: MappingOf[int, Cache], max_depth: int) -> Frames:
    """Stacks of samples of several word sizes, unwound one size after the other."""
    n = len(samples.tid)
    of_bits = [(rows, _unwound(samples[rows], bits, index[rows], epochs, tables, caches, max_depth))
               for bits in all_bits for rows in [indices(samples.abi == bits)]]
    pcs, sps, fps = np.zeros((3, n, max(part.pcs.shape[1] for _, part in of_bits)), dtype=np.uint64)
    length, stop = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int8)
    for rows, part in of_bits:
        for wide, narrow in ((pcs, part.pcs), (sps, part.sps), (fps, part.fps)):
            wide[rows, :narrow.shape[1]] = narrow
        length[rows], stop[rows] = part.length, part.stop
    return Frames(pcs, length, stop, sps, fps)


def _unwound(samples: ClockSamples, bits: int, index: Array, epochs: list[Epoch],
             tables: Tables, caches: MappingOf[int, Cache], max_depth: int) -> Frames:
    """Stacks of samples of one word size."""
    if bits == 0:  # no registers of user mode: a thread of the kernel's
        n = len(samples.tid)
        nothing = np.zeros((n, 1), np.uint64)
        return Frames(np.full((n, 1), FAILED_MARK), np.ones(n, dtype=np.int64),
                      np.full(n, Stop.NO_REGISTER, dtype=np.int8), nothing, nothing)
    spaces = [epoch.space for epoch in epochs]
    space = np.array([each.number for each in spaces], dtype=np.int64)[index]
    regs, words, base, mask, first = samples.regs, samples.words, samples.base, samples.mask, samples.first
    low, n_words, known = samples.low, samples.n_words, samples.known
    if bits == 32:  # the same copies as words of four bytes
        regs, words = regs[:, _I386_COLUMNS] & _LOW32, words.view(np.uint32)
        base, mask, first, low, n_words = base * 2, mask * 2 + 1, first * 2, low & _LOW32, n_words * 2
        known = None if known is None else _known_i386(known)
    stacks = Stacks(space, regs, words, base, mask, first, low, n_words, known)
    return marked(unwinding.unwind(stacks, merged_maps(spaces, caches), tables, max_depth))


def _known_i386(known: Array) -> Array:
    """The same bits in i386's own order of registers."""
    bits = (known[:, None] >> _I386_COLUMNS.astype(np.uint64)) & np.uint64(1)
    found: Array = (bits << np.arange(len(_I386_COLUMNS), dtype=np.uint64)).sum(axis=1, dtype=np.uint64)
    return found


def merged_maps(spaces: list[AddressSpace], caches: MappingOf[int, Cache] = _NO_CACHES) -> Maps:
    """The mappings of all spaces, sorted by space and address; ``caches`` by number of the space."""
    by_number = {space.number: space for space in spaces if space.mappings}
    numbers = sorted(by_number)
    tables = [by_number[number].table() for number in numbers]
    start, end, bias, number = np.concatenate([_NO_MAPPINGS, *tables]).T.copy()
    maps = Maps(space=np.array(numbers, dtype=np.int64).repeat([len(table) for table in tables]), start=start,
                end=end, bias=bias, object=number.view(np.int64))
    for space, cache in caches.items():
        low, high = np.array([cache.low, cache.high], np.uint64)
        there = (maps.space == space) & (maps.object < 0) & (start >= low) & (end <= high)
        maps.object[there], maps.bias[there] = cache.object, low
    return maps


def marked(frames: unwinding.Frames) -> Frames:
    """The frames with a mark behind the last one where the stack does not reach the root."""
    pcs, length, stop, sps, fps = frames.pcs, frames.length, frames.stop, frames.sps, frames.fps
    rows = indices(stop != _ROOT)
    if len(rows):
        n, depth = pcs.shape
        wide = np.zeros((3, n, depth + 1), dtype=np.uint64)
        wide[:, :, :depth] = pcs, sps, fps
        pcs, sps, fps = wide
        cut_short = (stop[rows] == _TRUNCATED) | (stop[rows] == _DEPTH)
        pcs[rows, length[rows]] = np.where(cut_short, TRUNCATED_MARK, FAILED_MARK)
        length[rows] += 1
    return Frames(pcs, length, stop, sps, fps)
