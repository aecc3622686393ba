"""The wavefront: all samples of a batch climb their stacks together, one frame per turn. Pure.

A turn, for n live samples, whatever their processes:

    1  (space, pc) -> mapping          one binary search in all mappings of the batch
    2  pc + shift of the mapping       a place on the line of all load objects (see ``table.py``)
    3  place -> rule                   one binary search; new functions are decoded on the way
    4  cfa = base + offset; the return address and the registers tracked are read from the stack
    5  sp' = cfa, pc' = return address - 1; who has no caller in a mapping leaves the wave with its reason

A return address is looked up minus one, because a call may be the last instruction of its function; a pc that a
signal interrupted is looked up as it is. ``pcs`` has what was looked up.

The wave tracks fp, ip and sp alone. A sample that comes upon a rule that needs another register (frames on rbx, r10 or
r13, whole expressions) leaves it and starts again from its leaf in a second wave that tracks them all. Rules beyond the
two equations of step 4 are worked out one kind at a time for the samples that need them (``_general``), and code
without rules goes by frame pointers (``frame_pointer.py``). No fallback is asked where call frame information has an
answer.

A register that is not known has the value UNKNOWN, which is no address on any machine: whatever is computed from it
cannot be read, so nothing has to be masked, and the reason is found out when the sample leaves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from collector.arrays import distinct, indices, numbered
from collector.unwind import frame_pointer
from collector.unwind.expression import Unreadable, Unsupported, evaluate
from collector.unwind.memory import Memory
from collector.unwind.rules import Architecture, Cfa, CfaKind, How, Kind, Rule
from collector.unwind.table import (
    ARCHITECTURES,
    FIRST_ORIGIN,
    HOLE,
    ODD_FALLBACK,
    ODD_FULL,
    ODD_GENERAL,
    ODD_SP,
    ROOT,
    STOP,
    Call,
    RuleSet,
    Tables,
    View,
    how_of,
    sp_of,
)

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

MAX_DEPTH = 2048

UNKNOWN = 0xBAD0_0BAD_0BAD_0BAD
_UNKNOWN = np.uint64(UNKNOWN)
_ONE = np.uint64(1)
# Pcs of samples that have no caller are this or more: UNKNOWN minus one, and zero minus one.
_LAST = np.uint64(UNKNOWN - 1)
# Addresses of user space have fewer bits; above them the number of the space is put.
_SPACE_SHIFT = 48
_TOP = np.uint64((1 << _SPACE_SHIFT) - 1)
_MAX_SPACES = 1 << 15
_MASK = (1 << 64) - 1

# Rows of the state, from the end: the last three columns of every view.
_FP, _IP, _SP = -3, -2, -1


class Stop(IntEnum):
    """Why a stack ends. ROOT is a whole stack; all others are what kept us from it."""

    ROOT = 0
    """Call frame information leaves the return address undefined (``_start``, ``clone3``, thread entries), the return
    address is zero, the code is a program's entry without call frame information, or, in code without it, the frame
    pointer is zero and no word of the stack follows a call."""
    TRUNCATED = 1
    """The frame lies behind the end of the copy: a larger copy would show more."""
    NO_MAP = 2
    """The return address lies in no executable mapping (the leaf's own pc: then there is one frame)."""
    NO_RULE = 3
    """No call frame information here, and no frame pointer chain either."""
    LOOP = 4
    """The caller's frame would not lie above this one."""
    DEPTH = 5
    """More frames than asked for."""
    OUTSIDE = 6
    """The frame lies below the copy or is not aligned: another stack, or a damaged one."""
    NO_REGISTER = 7
    """The rule needs a register that is not known."""
    UNSUPPORTED = 8
    """The rule is an expression that cannot be worked out; counted in the tables."""


class Proof(IntEnum):
    """What a stack found without its frame pointer is worth."""

    CERTAIN = 0
    """Nothing had to be searched for."""
    PROVEN = 1
    """A frame pointer was searched for, and its chain holds to its end."""
    UNPROVEN = 2
    """A frame pointer was searched for; its chain breaks, or none of its calls is known to have led there. Counted in
    the tables."""


@dataclass(eq=False, repr=False)
class Stacks:
    """n samples of one architecture, of any processes. Word k of a stack is ``words[base + ((first + k) & mask)]``.

    ``regs`` has the registers in DWARF order, the last one ip: 17 columns are x86-64, 9 are i386. ``words`` is u8
    for 64-bit targets, u4 for 32-bit ones. ``low`` is the address of word 0; a stack pointer that is not a multiple of
    the word fails softly (OUTSIDE).
    """

    space: I64
    """(n,) number of the address space."""
    regs: U64
    """(n, registers)."""
    words: npt.NDArray[Any]
    """One array of machine words with all the stacks; a view, never copied."""
    base: I64
    """(n,) index in ``words`` of the ring that the stack lies in."""
    mask: I64
    """(n,) size of the ring in words minus one; the size is a power of two."""
    first: I64
    """(n,) index in the ring of word 0."""
    low: U64
    """(n,) address of word 0."""
    n_words: I64
    """(n,) words that are real."""
    known: U64 | None = None
    """(n,) bit r is set if register r is known; None: all are."""


@dataclass(eq=False, repr=False)
class Maps:
    """Executable mappings of all spaces of a batch, sorted by (space, start). ``pc_object = pc_runtime - bias``."""

    space: I64
    start: U64
    end: U64
    bias: U64
    object: I64
    """Number in the tables; -1: executable memory without a file."""


@dataclass(eq=False, repr=False)
class Frames:
    """The stacks found."""

    pcs: U64
    """(n, depth) leaf first, zeros behind the end. Callers: the return address minus one; the leaf and what a signal
    interrupted: the pc itself."""
    length: I64
    """(n,) frames of each stack; at least one."""
    stop: npt.NDArray[np.int8]
    """(n,) ``Stop``."""
    proof: npt.NDArray[np.int8]
    """(n,) ``Proof``."""
    sps: U64
    """(n, depth) the stack pointer in each frame, after what it called has returned."""
    fps: U64
    """(n, depth) the frame pointer's register in each frame."""


def unwind(stacks: Stacks, maps: Maps, tables: Tables, max_depth: int = MAX_DEPTH) -> Frames:
    """The call stacks of a batch. ValueError if the arrays do not fit each other; bad stacks only stop early."""
    arch = _architecture(stacks)
    memory = _memory(stacks, arch)
    book = _Book(len(stacks.space))
    # The number of a space has to fit above the address.
    spaces, rank = numbered(stacks.space)
    for low in range(0, len(spaces), _MAX_SPACES):
        which = indices((rank >= low) & (rank < low + _MAX_SPACES))
        code = _Code(maps, tables, arch, spaces[low:low + _MAX_SPACES])
        space_key = (rank - low).astype(np.uint64) << np.uint64(_SPACE_SHIFT)
        fast = _Wave(stacks, memory, which, space_key, code, code.rules.fast, book, max_depth)
        fast.run()
        if fast.deferred:
            again = np.sort(np.concatenate(fast.deferred))
            _Wave(stacks, memory, again, space_key, code, code.rules.full, book, max_depth).run()
    # Who has more frames than were asked for is asked for again, or told as that.
    is_unproven = (book.proof == Proof.UNPROVEN) & (book.stop != Stop.DEPTH)
    tables.counters.stacks_unproven += int(np.count_nonzero(is_unproven))
    return book.frames()


def _architecture(stacks: Stacks) -> Architecture:
    for arch in ARCHITECTURES.values():
        if stacks.regs.ndim == 2 and stacks.regs.shape[1] == arch.n_registers:
            return arch
    raise ValueError(f"no architecture has registers of shape {stacks.regs.shape}")


def _memory(stacks: Stacks, arch: Architecture) -> Memory:
    """The stacks to read from. Memory safety rests on this: no index made of these numbers leaves ``words``."""
    region = stacks.low, stacks.n_words, stacks.first, stacks.mask, stacks.base
    if {*map(len, (*region, stacks.regs))} != {len(stacks.space)}:
        raise ValueError("columns of different lengths")
    if stacks.words.dtype.itemsize != arch.word_size or stacks.words.dtype.kind != "u":
        raise ValueError(f"{arch.name} has words of {arch.word_size} bytes, not {stacks.words.dtype}")
    size = stacks.mask + 1
    outside = (stacks.base < 0) | (stacks.mask < 0) | ((size & stacks.mask) != 0)
    outside |= (stacks.base + size > len(stacks.words)) | (stacks.n_words < 0) | (stacks.n_words > size)
    if outside.any():
        raise ValueError("a stack leads out of the words")
    return Memory(stacks.words, np.concatenate(region, dtype=np.uint64, casting="unsafe").reshape(len(region), -1))


class _Book:
    """What is written down while the waves run. Row d of ``pcs`` is depth d, so that a turn writes into one row."""

    def __init__(self, n: int) -> None:
        self.pcs, self.sps, self.fps = np.zeros((3, 32, n), np.uint64)
        self.length = np.zeros(n, np.int64)
        self.stop = np.zeros(n, np.int8)
        self.proof = np.zeros(n, np.int8)

    def record(self, depth: int, index: I64, pc: U64, sp: U64, fp: U64) -> None:
        if depth == len(self.pcs):
            self.pcs = np.concatenate((self.pcs, np.zeros_like(self.pcs)))
            self.sps = np.concatenate((self.sps, np.zeros_like(self.sps)))
            self.fps = np.concatenate((self.fps, np.zeros_like(self.fps)))
        self.pcs[depth][index] = pc
        self.sps[depth][index] = sp
        self.fps[depth][index] = fp

    def frames(self) -> Frames:
        depth = int(self.length.max(initial=0))
        pcs = np.ascontiguousarray(self.pcs[:depth].T)
        # A sample that was started again may have been deeper before.
        pcs[np.arange(depth) >= self.length[:, None]] = 0
        return Frames(pcs, self.length, self.stop, self.proof, self.sps[:depth].T, self.fps[:depth].T)


class _Code:
    """All executable memory of a batch: from (space, pc) to places on the line of the tables.

    Sorted ``key`` (space number above address), ``end`` in the same form, ``shift`` from run-time address to the line.
    Row 0 covers nothing. Code without an object stays below FIRST_ORIGIN, where the line has no rules.
    """

    def __init__(self, maps: Maps, tables: Tables, arch: Architecture, spaces: I64) -> None:
        self.tables, self.arch = tables, arch
        self.rules: RuleSet = tables.rule_sets[arch.machine]
        rank = spaces.searchsorted(maps.space)
        ours = (spaces.take(rank, mode="clip") == maps.space) & (maps.start <= _TOP)
        key = rank[ours].astype(np.uint64) << np.uint64(_SPACE_SHIFT)
        start, end = maps.start[ours], np.minimum(maps.end[ours], _TOP)
        self.key, self.end, self.shift = np.zeros((3, len(key) + 1), np.uint64)
        self.key[1:], self.end[1:] = key + start, key + end
        self.shift[1:] = self._shifts(start, end, maps.bias[ours], maps.object[ours])

    def _shifts(self, start: U64, end: U64, bias: U64, number: I64) -> U64:
        """Zero where a mapping has no object, one of another architecture, or does not fit into its object."""
        tables = self.tables
        if not len(tables.origin):
            return np.zeros(len(start), np.uint64)
        known = np.where((number >= 0) & (number < len(tables.origin)), number, 0)
        shift = tables.origin[known] - bias
        low, high = start + shift, end + shift
        fits = ((number == known) & (tables.machine[known] == self.arch.machine) & (low >= tables.low[known])
                & (high <= tables.high[known]) & (low <= high))
        return np.where(fits, shift, np.uint64(0))

    def find(self, pc: U64, space_key: U64) -> tuple[I64, Bools]:
        """(number of the mapping, whether it holds the pc) for pcs (n,)."""
        key = np.minimum(pc, _TOP)
        key += space_key
        index = self.key.searchsorted(key, "right")
        index -= 1
        return index, key < self.end.take(index)

    def grade(self, word: U64, space_key: U64) -> frame_pointer.Grades:
        """What words (n,) are worth as return addresses in their spaces."""
        found = np.zeros(len(word), np.int8)
        index, inside = self.find(word - _ONE, space_key)
        line = word + self.shift.take(index)
        in_file = inside & (line > FIRST_ORIGIN)
        found[inside & ~in_file] = frame_pointer.CODE
        where = indices(in_file)
        if len(where):
            found[where] = self.tables.follows_call(line[where]) * np.int8(frame_pointer.AFTER_CALL)
            # An interpreter lets return to where it goes on, which need not be behind a call.
            made = where[self.tables.is_told(line[where] - _ONE)]
            found[made] = np.maximum(found[made], np.int8(frame_pointer.CODE))
        return found

    def call_between(self, return_address: int, pc: int, space_key: U64) -> Call:
        """Whether the call before a return address has led to the function around a pc."""
        both = np.array([return_address, pc], np.uint64)
        index, inside = self.find(both - np.array([1, 0], np.uint64), space_key)
        caller, callee = (both + self.shift.take(index)).tolist()
        return self.tables.call_between(caller, callee, (return_address, pc)) if inside.all() else Call.IMPOSSIBLE

    def needs_fp(self, return_address: int, space_key: U64) -> bool:
        """Whether the code that is returned to finds its frame by the frame pointer."""
        pc = np.array([return_address], np.uint64) - _ONE
        index, inside = self.find(pc, space_key)
        if not inside[0]:
            return True
        view = self.rules.fast
        number = self.tables.rules_at(pc + self.shift.take(index))[0]
        return bool(view.cfa_column[number] == view.column_of[self.arch.fp])


class _Judge:
    """What searches for frame pointers ask about the code of one process, which is much the same each time."""

    def __init__(self, code: _Code, space_key: Any) -> None:
        self._code, self._space_key = code, space_key
        self._calls: dict[tuple[int, int], Call] = {}
        self._needs: dict[int, bool] = {}

    def grade(self, words: U64) -> frame_pointer.Grades:
        return self._code.grade(words, self._space_key)

    def call_between(self, return_address: int, pc: int) -> Call:
        found = self._calls.get((return_address, pc))
        if found is None:
            found = self._calls[return_address, pc] = self._code.call_between(return_address, pc, self._space_key)
        return found

    def needs_fp(self, return_address: int) -> bool:
        found = self._needs.get(return_address)
        if found is None:
            found = self._needs[return_address] = self._code.needs_fp(return_address, self._space_key)
        return found


class _Wave:
    """The live samples of one run and their state.

    regs (T, n) u8 in the order of the view's columns; who (n,) index of the sample; space_key (n,); pc (n,) as looked
    up, and line (n,) its place on the line.
    """

    def __init__(self, stacks: Stacks, memory: Memory, which: I64, space_key: U64, code: _Code, view: View,
                 book: _Book, max_depth: int) -> None:
        """``which`` (k,) of the stacks climb; ``space_key`` is that of all."""
        self.code, self.view, self.book, self.max_depth = code, view, book, max_depth
        self.tables = code.tables
        self.who, self.space_key = which, space_key[which]
        self.memory = memory.subset(which)
        columns = np.array(view.columns)[:, None]
        self.regs = stacks.regs[which, columns]
        self.judges: dict[int, _Judge] = {}  # by space
        if stacks.known is not None:
            self.regs[(stacks.known[which] >> columns.astype(np.uint64)) & _ONE == 0] = _UNKNOWN
        self.pc = self.regs[_IP]
        self.deferred: list[I64] = []
        self.depth = 0

    @property
    def exact(self) -> Bools:
        """(n,) whether the pc is that of an interrupted instruction, and not the one before a return address."""
        exact: Bools = self.pc == self.regs[_IP]
        return exact

    def run(self) -> None:
        """Climb until nobody is left."""
        self.book.record(0, self.who, self.pc, self.regs[_SP], self.regs[_FP])
        index, inside = self.code.find(self.pc, self.space_key)
        self.line = self.pc + self.code.shift.take(index)
        if not inside.all():
            self.leave(~inside, Stop.NO_MAP)
            self.keep(indices(inside))
        while len(self.who):
            if self.depth >= self.max_depth:
                self.leave(np.ones(len(self.who), bool), Stop.DEPTH)
                return
            self.book.record(self.depth, self.who, self.pc, self.regs[_SP], self.regs[_FP])
            self.depth += 1
            self.turn()

    def turn(self) -> None:
        """Steps 3 to 5 for all live samples, and 1 and 2 for their callers."""
        view = self.view
        number = self.tables.rules_at(self.line)
        odd = view.odd.take(number)
        if (self.regs[_FP] == _UNKNOWN).any():
            self.search_frame_pointers(number)
        is_plain = not odd.any()
        if not is_plain and not view.is_full and (odd & ODD_FULL).any():
            keep = self.defer((odd & ODD_FULL) != 0)
            if not len(keep):
                return
            number, odd = number[keep], odd[keep]
        n = len(number)
        base = view.cfa_column.take(number)
        base *= n
        base += np.arange(n)
        cfa = self.regs.take(base)
        offset = view.offset.take(number, axis=1)
        cfa += offset[_SP]
        address = offset[:-1] + cfa
        value, ok = self.memory.read(address)
        if not ok.all():
            # What was saved below the stack pointer has been taken back already: the function is about to return.
            kept = np.where((address < self.regs[_SP]) & ((odd & ODD_SP) == 0), self.regs[:-1], _UNKNOWN)
            kept[_IP + 1] = _UNKNOWN
            value = np.where(ok, value, kept)
        new = np.empty_like(self.regs)
        new[:-1] = np.where(view.saved.take(number, axis=1), value, self.regs[:-1])
        new[_SP] = cfa
        step = _Step(number, new, address[_IP + 1], self.is_above(cfa, self.regs[_SP]))
        if not is_plain:
            self.restore_sp(step, indices(odd & ODD_SP))
            if (odd & (ODD_FALLBACK | ODD_GENERAL)).any():
                self.odd_turn(step, odd)
        self.advance(step)

    def advance(self, step: _Step) -> None:
        """To the callers. Where there is none, pc is no address, and in no mapping."""
        pc = step.new[_IP] - _ONE
        if step.exact is not None:
            pc += step.exact & (pc < _LAST)
        index, inside = self.code.find(pc, self.space_key)
        good = step.rises & inside
        all_go_on = good.all()
        if not all_go_on:
            self.explain(step, ~good)
        self.regs, self.pc, self.line = step.new, pc, pc + self.code.shift.take(index)
        if not all_go_on:
            self.keep(indices(good))

    def explain(self, step: _Step, bad: Bools) -> None:
        """Let the samples that have no caller leave, each with its reason. The state is still that of this frame."""
        where = indices(bad)
        number = step.number[where]
        if (number == ROOT).all():
            self.leave(bad, Stop.ROOT)
            return
        base = self.regs.take(self.view.cfa_column[number] * len(bad) + where)
        return_address = step.new[_IP][where]
        lost = return_address == _UNKNOWN
        above = self.memory.subset(where).is_above(step.return_at[where])
        # From what counts least to what counts most.
        reason = np.full(len(where), Stop.NO_MAP, np.int8)
        for has, why in ((~step.rises[where], Stop.LOOP), (return_address == 0, Stop.ROOT), (lost, Stop.OUTSIDE),
                         (lost & above, Stop.TRUNCATED), (lost & (base == _UNKNOWN), Stop.NO_REGISTER),
                         (number == STOP, Stop.NO_RULE), (number == ROOT, Stop.ROOT)):
            reason[has] = why
        if step.reason is not None:
            reason = np.where(step.reason[where] >= 0, step.reason[where], reason)
        reason[step.rises[where] & (return_address - _ONE < _LAST)] = Stop.NO_MAP
        self.leave(bad, reason)

    def leave(self, gone: Bools, reason: int | npt.NDArray[Any]) -> None:
        """The stacks of samples end here. ``reason``: one for all, or one each."""
        who = self.who[gone]
        self.book.stop[who] = reason
        self.book.length[who] = max(self.depth, 1)

    def defer(self, gone: Bools) -> I64:
        """Leave samples to the wave that tracks all registers; the indices of those that stay."""
        self.deferred.append(self.who[gone])
        keep = indices(~gone)
        self.keep(keep)
        return keep

    def keep(self, which: I64) -> None:
        """Go on with some samples only. Every turn costs by the number of those still climbing."""
        self.who = self.who.take(which)
        if not len(which):
            return  # nor does anybody ask for the rest
        self.space_key, self.pc, self.line = self.space_key.take(which), self.pc.take(which), self.line.take(which)
        self.regs = self.regs.take(which, axis=1)
        self.memory = self.memory.subset(which)

    # -- what two equations cannot do

    def restore_sp(self, step: _Step, which: I64) -> None:
        """Those of whom the caller's sp is in the frame as well, as in HotSpot's interpreter."""
        if not len(which):
            return
        at = step.new[_SP].take(which) + self.view.sp_offset.take(step.number.take(which))
        value, ok = (self.memory if len(which) == len(step.number) else self.memory.subset(which)).read(at)
        sp = np.where(ok, value, _UNKNOWN)
        step.new[_SP, which] = sp
        step.rises[which] = self.is_above(sp, self.regs[_SP].take(which))

    def odd_turn(self, step: _Step, odd: npt.NDArray[np.uint8]) -> None:
        """Work out anew the samples whose rule is none of the plain ones, one rule at a time."""
        step.exact = np.zeros(len(odd), bool)
        step.reason = np.full(len(odd), -1, np.int8)
        without = indices(odd & ODD_FALLBACK)
        if len(without):
            self.fall_back(step, without)
        general = indices(odd & ODD_GENERAL)
        for number in distinct(step.number[general]).tolist():
            which = general[step.number[general] == number]
            rule = self.code.rules.rules[number]
            assert rule is not None
            self.general(step, rule, which)

    def fall_back(self, step: _Step, which: I64) -> None:
        """Frames of code without call frame information."""
        if not self.code.arch.caller_hints:
            linked = self.has_link(step, which)
            self.tables.counters.fallback_frames += int(np.count_nonzero(linked))
            which = which[~linked]
        if len(which):
            self.without_rules(step, which)

    def has_link(self, step: _Step, which: I64) -> Bools:
        """Which callers (n,) of code without a file have a link at their frame pointer, from which their own caller has
        been read as a hole's plain rule has it: most frames of code that is made at run time."""
        return_address = step.new[_IP].take(which)
        found: Bools = (return_address != _UNKNOWN) & (self.regs[_FP].take(which) >= self.regs[_SP].take(which))
        found &= self.line.take(which) < FIRST_ORIGIN
        found &= ~self.exact.take(which)
        some = indices(found)
        found[some] = self.code.grade(return_address[some], self.space_key[which[some]]) != frame_pointer.NOT_CODE
        return found

    def without_rules(self, step: _Step, which: I64) -> None:
        """Frames of which the instructions around the pc, a link or the word at the stack pointer may tell."""
        memory, key, leaf = self.memory.subset(which), self.space_key[which], self.exact[which]
        line = self.line.take(which)
        if self.code.arch.caller_hints:
            hints = self.tables.hints(line, leaf)
        else:
            hints = [self.tables.hint(place, True) if is_leaf else None
                     for place, is_leaf in zip(line.tolist(), leaf.tolist(), strict=True)]
        sp, fp = self.regs[_SP][which], self.regs[_FP][which]
        found = frame_pointer.step(memory, sp, fp, leaf, hints, lambda words: self.code.grade(words, key))
        self.look_further(found, which)
        step.new[:, which] = _UNKNOWN
        step.new[_SP, which] = found.cfa
        step.new[_IP, which] = np.where(found.ok, found.return_address, _UNKNOWN)
        step.new[_FP, which] = found.fp
        step.rises[which] = found.cfa > sp
        lost = indices(~found.ok)
        if len(lost):
            is_root = found.is_root[lost]
            for k in indices(~is_root & (fp[lost] == 0)).tolist():
                i = int(which[lost[k]])
                is_root[k] = not frame_pointer.may_go_on(self.memory, i, int(sp[lost[k]]),
                                                         self.judge_of(self.space_key[i]))
            cut = np.where(self.is_beyond(which[lost]), np.int8(Stop.TRUNCATED), np.int8(Stop.NO_RULE))
            step.reason[which[lost]] = np.where(is_root, np.int8(Stop.ROOT), cut)  # type: ignore[index]
            self.tables.counters.fallback_failures += int((~is_root).sum())
        self.tables.counters.fallback_frames += len(which) - len(lost)

    def look_further(self, found: frame_pointer.Step, which: I64) -> None:
        """Callers of code in files that no chain leads to, or one leads past: the words of the stack tell some."""
        size = np.uint64(self.memory.word_size)
        fp, beyond = self.regs[_FP].take(which), self.is_beyond(which)
        chained = found.ok & (found.cfa == fp + size + size)
        asked = (self.line.take(which) >= FIRST_ORIGIN) & ~found.is_root & (chained | ~found.ok)
        for k in indices(asked).tolist():
            i, link = int(which[k]), int(fp[k]) if chained[k] or beyond[k] else None
            if fp[k] == 0 and self.tables.has_zeroed(int(self.line[i])):
                found.is_root[k] = True
                continue
            makes_none = self.tables.makes_no_frame(int(self.line[i]))
            call = self.call_before(i, int(found.return_address[k])) if chained[k] and makes_none else Call.CERTAIN
            if chained[k] and call == Call.CERTAIN:
                continue
            caller = self.called_from(i, link) if makes_none else None
            if caller is None and chained[k] and call == Call.POSSIBLE:
                continue
            if caller is None and not beyond[k]:
                caller = self.searched(i, keeps_fp=makes_none)
            found.ok[k] = caller is not None
            if caller is not None:
                at, found.fp[k] = caller
                found.cfa[k], found.return_address[k] = at + int(size), self.memory.column(i, at, 1)[0]

    def call_before(self, i: int, return_address: int) -> Call:
        """Whether the call before a return address has led to the function of a frame."""
        return Call(self.judge_of(self.space_key[i]).call_between(return_address, int(self.pc[i])))

    def called_from(self, i: int, link: int | None) -> tuple[int, int] | None:
        """Where the return address of a function without a frame lies, if a word is known to be that, and its caller's
        frame pointer. ``link``: a frame pointer that seems to be one."""
        sp, judge = int(self.regs[_SP, i]), self.judge_of(self.space_key[i])
        at = frame_pointer.called_from(self.memory, i, sp, int(self.pc[i]), judge, link)
        if at is None:
            return None
        self.note(i, Proof.PROVEN)
        return at, UNKNOWN if link is None else link

    def searched(self, i: int, *, keeps_fp: bool) -> tuple[int, int] | None:
        """The same by a search, which has to be proven where the register is known; ``keeps_fp``: what lies below the
        return address is not the caller's frame pointer."""
        place, is_known = int(self.line[i]), self.regs[_FP, i] != _UNKNOWN
        if is_known and self.tables.is_fruitless(place):
            return None
        self.tables.counters.frame_chain_searches += 1
        sp, judge = int(self.regs[_SP, i]), self.judge_of(self.space_key[i])
        n_words = frame_pointer.FRAME_WORDS if is_known else frame_pointer.SEARCH_WORDS
        found = frame_pointer.search(self.memory, i, sp, int(self.pc[i]), judge, n_words)
        if found is None or not (found.is_proven or not is_known):
            self.tables.note_fruitless(place)
            return None
        self.note(i, Proof.PROVEN if found.is_proven else Proof.UNPROVEN)
        fp = UNKNOWN if keeps_fp else int(self.memory.column(i, found.fp, 1)[0])
        return found.fp + self.memory.word_size, fp

    def note(self, i: int, proof: Proof) -> None:
        """What a stack is worth by now."""
        self.book.proof[self.who[i]] = max(self.book.proof[self.who[i]], proof)

    def is_beyond(self, which: I64) -> Bools:
        """Whose frame pointer (n,) leads to what has not been copied of the stack."""
        memory, fp = self.memory.subset(which), self.regs[_FP].take(which)
        beyond: Bools = memory.is_above(fp) & (fp != _UNKNOWN) & ((fp & np.uint64(memory.word_size - 1)) == 0)
        beyond &= fp < memory.low + frame_pointer.NEAR
        return beyond

    def general(self, step: _Step, rule: Rule, which: I64) -> None:
        """All equations of ``rules.py`` for the samples ``which``, which have this rule in common."""
        frames = _SameRule(self.code, self.view, self.regs.take(which, axis=1), self.memory.subset(which))
        cfa, asked_at = frames.cfa(rule.cfa)
        how = sp_of(rule, self.code.arch)
        sp = cfa if how is None else frames.register(how, _SP, cfa)[0]
        step.new[_SP, which] = sp
        step.rises[which] = self.is_above(sp, frames.regs[_SP]) | rule.is_signal
        for row, register in enumerate(self.view.columns[:-1]):
            value, at = frames.register(how_of(rule, register, self.code.arch), row, cfa)
            step.new[row, which] = value
            if register == self.code.arch.ip:
                step.return_at[which] = np.where(cfa == _UNKNOWN, asked_at, at)
        step.exact[which] = rule.is_signal  # type: ignore[index]
        step.reason[which[frames.unsupported]] = Stop.UNSUPPORTED  # type: ignore[index]

    def is_above(self, sp: U64, below: U64) -> Bools:
        """Frames lie above one another. Only the leaf's may be empty: vfork takes its return address off the stack."""
        above: Bools = sp >= below if self.depth == 1 else sp > below
        return above

    def search_frame_pointers(self, number: I64) -> None:
        """Frames that are found by a frame pointer that nobody knows: search for it in the stack."""
        needed = (self.view.cfa_column[number] == self.view.column_of[self.code.arch.fp])
        for i in indices(needed & (self.regs[_FP] == _UNKNOWN)).tolist():
            if number[i] == HOLE and self.tables.makes_no_frame(int(self.line[i])):
                continue  # see ``look_further``
            self.tables.counters.frame_chain_searches += 1
            judge = self.judge_of(self.space_key[i])
            sp, pc = int(self.regs[_SP, i]), int(self.pc[i])
            found = frame_pointer.search(self.memory, i, sp, pc, judge)
            is_bare = self.exact[i] and self.view.odd[number[i]] & ODD_FALLBACK
            if found is None or (is_bare and not found.is_proven
                                 and frame_pointer.returns_at_sp(self.memory, i, sp, pc, judge)):
                continue  # code of which nothing is known, at its first instruction as it seems
            self.regs[_FP, i] = found.fp
            self.note(i, Proof.PROVEN if found.is_proven else Proof.UNPROVEN)

    def judge_of(self, space_key: Any) -> _Judge:
        """The one of a space, for all searches of the wave."""
        judge = self.judges.get(int(space_key))
        if judge is None:
            judge = self.judges[int(space_key)] = _Judge(self.code, space_key)
        return judge


@dataclass(eq=False, repr=False)
class _Step:
    """One turn's outcome. ``return_at`` is where the return address was asked for; ``exact`` and ``reason`` (a Stop, -1
    for none) exist only if some sample had an odd rule."""

    number: I64
    new: U64
    return_at: U64
    rises: Bools
    exact: Bools | None = None
    reason: npt.NDArray[np.int8] | None = None


class _SameRule:
    """Frames (k,) that have one rule in common. regs (T, k)."""

    def __init__(self, code: _Code, view: View, regs: U64, memory: Memory) -> None:
        self.code, self.view, self.regs, self.memory = code, view, regs, memory
        self.unsupported = np.zeros(0, np.int64)

    def cfa(self, rule: Cfa) -> tuple[U64, U64]:
        """(the frame addresses, where the stack was read for them). UNKNOWN where that failed."""
        if rule.kind == CfaKind.EXPRESSION:
            return self.evaluate(rule.expression, None)
        base = self.regs[self.view.column_of[rule.register]] + np.uint64(rule.offset & _MASK)
        if rule.kind == CfaKind.DEREF:
            value = self.load(base)
            return np.where(value == _UNKNOWN, value, value + np.uint64(rule.addend & _MASK)), base
        if rule.kind == CfaKind.PLT:
            pushed = (self.regs[_IP] & np.uint64(15)) >= np.uint64(rule.threshold)
            base += pushed * np.uint64(self.code.arch.word_size)
        return base, base

    def register(self, how: How, row: int, cfa: U64) -> tuple[U64, U64]:
        """(one register of the callers, where the stack was read for it)."""
        if how.kind == Kind.SAME:
            return self.regs[row], cfa
        if how.kind == Kind.UNDEFINED:
            return np.full(len(cfa), _UNKNOWN), cfa
        if how.kind in (Kind.EXPRESSION, Kind.VALUE_EXPRESSION):
            value, _ = self.evaluate(how.expression, cfa)
            return (value, cfa) if how.kind == Kind.VALUE_EXPRESSION else (self.load(value), value)
        of_cfa, base = how.kind in (Kind.SAVED, Kind.VALUE), self.view.column_of.get(how.register, -1)
        at = (cfa if of_cfa else self.regs[base]) + np.uint64(how.offset & _MASK)
        if how.kind == Kind.SAVED_AT and base == row != self.view.column_of[self.code.arch.sp]:
            # Saved where it points to itself: what lies outside of the frame is not that, since it is back already.
            # (gcc does not say where that is in the epilogues of functions that align their stacks.)
            return np.where(at >= cfa, self.regs[row], self.load(at)), at
        return (self.load(at), at) if how.kind in (Kind.SAVED, Kind.SAVED_AT) else (at, at)

    def load(self, address: U64) -> U64:
        value, ok = self.memory.read(address)
        return np.where(ok, value, _UNKNOWN)

    def evaluate(self, expression: bytes, cfa: U64 | None) -> tuple[U64, U64]:
        """(values of an expression, addresses that could not be read), sample by sample: these rules are rare."""
        counters = self.code.tables.counters
        k = self.regs.shape[1]
        values, asked = np.full(k, _UNKNOWN), np.zeros(k, np.uint64)
        failed = []
        for i in range(k):
            initial = [] if cfa is None else [int(cfa[i])]
            counters.expressions_evaluated += 1
            try:
                values[i] = evaluate(expression, initial, self._register_of(i), self._word_of(i),
                                     self.memory.word_size)
            except Unreadable as err:
                asked[i] = err.args[0]
            except Unsupported:
                counters.expressions_unsupported += 1
                failed.append(i)
        self.unsupported = np.union1d(self.unsupported, failed).astype(np.int64)
        return values, asked

    def _register_of(self, i: int) -> Callable[[int], int]:
        def register(number: int) -> int:
            column = self.view.column_of.get(number)
            if column is None or self.regs[column, i] == _UNKNOWN:
                raise Unsupported(f"register {number} is not known")
            return int(self.regs[column, i])

        return register

    def _word_of(self, i: int) -> Callable[[int], int]:
        memory = self.memory.subset(np.array([i]))

        def word_at(address: int) -> int:
            value, ok = memory.read(np.array([address], np.uint64))
            if not ok[0]:
                raise Unreadable(address)
            return int(value[0])

        return word_at
