"""The tables of all load objects as one: which rule holds at a pc. Grows with what is hit.

Every object gets a stretch of one long line of addresses, so that an object and an address in it are a single number::

    pc_line = pc_object + origin[object]

    0 ............. 2**48 ......................................................... 2**64
    no object: code   | object 0        | object 1   | object 2          | ...
    without a file    | its loads       |            |                   |

On the line lie rows: row i holds from ``start[i]`` to ``start[i + 1]`` and names a rule by number. Rules are few (some
hundreds for a large program), so a row is two numbers and the rules' columns stay in the cache. At first an object is
one row UNDECODED. A pc that falls into such a row has its FDE decoded, and the rows of the function take their place in
the line. What lies between two FDEs is known as a hole as soon as it is hit, by the FDEs' own ranges: frame pointers
are tried there, and no rule of a neighbour is ever used. Special rules have the same number in all architectures.

Of code that is made at run time somebody tells the rows as they are hit, and what of them is to be forgotten. Where
nothing is known of such code the rule is STOP.

A rule set compiles the rules of one architecture into columns. The fast view tracks fp, ip and sp alone, which is all
that nearly every frame needs; the full view tracks every register. What a view cannot do in two equations is marked
odd.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from collector.arrays import distinct, indices
from collector.elf import LoadObject, Symbols
from collector.errors import ElfError, NoDescriptors
from collector.unwind.cfi import CfiSection, Index, State, search_table
from collector.unwind.i386 import I386
from collector.unwind.rules import Architecture, Cfa, CfaKind, How, Kind, LeafHint, Rule
from collector.unwind.x86_64 import X86_64, go_rule

if TYPE_CHECKING:
    from collector.pclntab import FunctionTable

T = TypeVar("T", bound=np.generic)
U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]

ARCHITECTURES = {X86_64.machine: X86_64, I386.machine: I386}

# Rules with a number of their own.
UNDECODED, HOLE, ROOT, STOP = 0, 1, 2, 3

# Marks of a rule in a view.
ODD_FALLBACK, ODD_GENERAL, ODD_FULL, ODD_SP = 1, 2, 4, 8

FIRST_ORIGIN = 1 << 48
_MAX_SPAN = 1 << 40
# Room around the loads: mappings are whole pages, of 64 KiB at most.
_MARGIN = 1 << 16
_IMPOSSIBLE = 1 << 63
_MASK = (1 << 64) - 1
# A program's entry code has no caller; this many bytes of it at most, where no call frame information says so.
_ENTRY_BYTES = 128
# Holes are looked at in windows of this size.
_WINDOW = 1 << 16
_PATTERN_MAX = 32  # bytes of code that is recognised
_ROOM = 256
_LONGEST_FUNCTION = 1 << 20
# A function that makes no frame: its return address is the word at sp, if a call led there.
_FRAMELESS = LeafHint(b"", b"", 0, -1)


@dataclass(eq=False)
class Counters:
    """What happened in the tables, and in unwinding by them, so far. Damage and gaps are counted, never hidden."""

    fdes_decoded: int = 0
    fdes_damaged: int = 0
    holes: int = 0
    objects_without_cfi: int = 0
    objects_damaged: int = 0
    rules: int = 0
    expressions_evaluated: int = 0
    expressions_unsupported: int = 0
    fallback_frames: int = 0
    fallback_failures: int = 0
    frame_chain_searches: int = 0
    stacks_unproven: int = 0


class View:
    """The rules as columns over the tracked registers; arrays with room, filled up to the number of rules.

    ``columns``: DWARF numbers, the last three fp, ip, sp. Per rule (R,): ``odd`` and ``cfa_column``, the register that
    the CFA is found by. Per tracked register and rule (T, R): ``offset`` from the CFA; in the row of sp, which becomes
    the CFA, that of the CFA from its register. Per tracked register but sp (T-1, R): ``saved`` (else the same).
    ``sp_offset`` (R,) is that of the caller's sp, of rules that are odd because it was saved, and for nothing else
    (ODD_SP).
    """

    def __init__(self, arch: Architecture, columns: tuple[int, ...]) -> None:
        self.arch, self.columns = arch, columns
        self.column_of = {register: i for i, register in enumerate(columns)}
        self.is_full = len(columns) == arch.n_registers
        self.odd = np.zeros(_ROOM, np.uint8)
        self.cfa_column = np.zeros(_ROOM, np.int64)
        self.sp_offset = np.zeros(_ROOM, np.uint64)
        self.saved = np.zeros((len(columns) - 1, _ROOM), bool)
        self.offset = np.zeros((len(columns), _ROOM), np.uint64)

    def _grow(self) -> None:
        self.odd, self.cfa_column = _doubled(self.odd), _doubled(self.cfa_column)
        self.sp_offset = _doubled(self.sp_offset)
        self.saved, self.offset = _doubled(self.saved), _doubled(self.offset)

    def put(self, number: int, rule: Rule | None) -> None:
        """Compile one rule; None for the special ones."""
        if number >= len(self.odd):
            self._grow()
        if rule is None:
            self._put_special(number)
            return
        cfa = rule.cfa
        known = cfa.kind == CfaKind.EXPRESSION or cfa.register in self.column_of
        self.cfa_column[number] = self.column_of.get(cfa.register, -1) if cfa.kind != CfaKind.EXPRESSION else -1
        self.offset[-1, number] = cfa.offset & _MASK
        plain = cfa.kind == CfaKind.REGISTER and not rule.is_signal
        sp = sp_of(rule, self.arch)
        odd = 0 if plain and (sp is None or sp.kind == Kind.SAVED) else ODD_GENERAL
        if not known or cfa.kind == CfaKind.EXPRESSION:
            odd |= ODD_FULL
        for row, register in enumerate(self.columns[:-1]):
            odd |= self._put_register(number, row, how_of(rule, register, self.arch))
        if sp is not None and _needs_full(sp, self.column_of):
            odd |= ODD_FULL
        if not odd and sp is not None:
            odd, self.sp_offset[number] = ODD_SP, sp.offset & _MASK
        self.odd[number] = odd & ~ODD_FULL if self.is_full else odd

    def _put_special(self, number: int) -> None:
        """Nothing leads on but, in a hole, the link that a frame pointer may point to."""
        self.cfa_column[number] = self.column_of[self.arch.fp if number == HOLE else self.arch.sp]
        self.saved[:, number] = True
        self.offset[:-1, number] = _IMPOSSIBLE
        if number == HOLE:
            link = 2 * self.arch.word_size
            self.odd[number], self.offset[-1, number] = ODD_FALLBACK, link
            self.offset[self.column_of[self.arch.fp], number] = -link & _MASK
            self.offset[self.column_of[self.arch.ip], number] = -self.arch.word_size & _MASK

    def _put_register(self, number: int, row: int, how: How) -> int:
        """Compile one register; the marks that its rule needs. An undefined one is read from where nothing is."""
        self.saved[row, number] = how.kind != Kind.SAME
        self.offset[row, number] = how.offset & _MASK if how.kind == Kind.SAVED else _IMPOSSIBLE
        if how.kind in (Kind.SAME, Kind.SAVED, Kind.UNDEFINED):
            return 0
        return ODD_GENERAL | ODD_FULL if _needs_full(how, self.column_of) else ODD_GENERAL


def _doubled(old: npt.NDArray[T]) -> npt.NDArray[T]:
    """The same array with twice the room in its last axis."""
    return np.concatenate((old, np.zeros_like(old)), axis=-1)


def _inserted(old: npt.NDArray[T], at: I64, values: npt.NDArray[T]) -> npt.NDArray[T]:
    """The same array with ``values`` (k,) before its elements ``at`` (k,), ascending."""
    if not len(at):
        return old
    firsts = [0, *(indices(at[1:] != at[:-1]) + 1).tolist(), len(at)]
    places = [0, *at[firsts[:-1]].tolist()]
    parts = [old[:places[1]]]
    for k, place in enumerate(places[1:], 1):
        parts += values[firsts[k - 1]:firsts[k]], old[place:places[k + 1] if k + 1 < len(places) else None]
    return np.concatenate(parts)


def _needs_full(how: How, column_of: dict[int, int]) -> bool:
    if how.kind in (Kind.EXPRESSION, Kind.VALUE_EXPRESSION):
        return True
    return how.kind in (Kind.SAVED_AT, Kind.REGISTER_VALUE) and how.register not in column_of


def sp_of(rule: Rule, arch: Architecture) -> How | None:
    """How the caller's stack pointer is found where it is not the CFA (``longjmp``, signal frames), else None."""
    for number, how in rule.registers:
        if number == arch.sp and how.kind not in (Kind.SAME, Kind.UNDEFINED):
            return how
    return None


def how_of(rule: Rule, register: int, arch: Architecture) -> How:
    """How the caller's ``register`` is found, also where the rule does not mention it."""
    for number, how in rule.registers:
        if number == register:
            return how
    return How(Kind.SAME if register in arch.callee_saved else Kind.UNDEFINED)


class _Numbers(dict[State, int]):
    """Numbers of states' rules in a set, as far as they have been asked for."""

    def __init__(self, rules: RuleSet) -> None:
        self._rules = rules

    def __missing__(self, state: State) -> int:
        number = self[state] = self._rules.number_of(state.rule)
        return number


class RuleSet:
    """All rules met of one architecture, each once, and their two views."""

    def __init__(self, arch: Architecture, counters: Counters) -> None:
        self.arch, self._counters = arch, counters
        self.fast = View(arch, arch.fast_columns)
        self.full = View(arch, arch.all_columns)
        self._numbers: dict[Rule, int] = {}
        self.numbers = _Numbers(self)  # of states' rules; states are looked up much faster
        self.rules: list[Rule | None] = []
        for _ in (UNDECODED, HOLE, ROOT, STOP):
            self._append(None)

    def number_of(self, rule: Rule) -> int:
        """The rule's number. ROOT if it leaves the return address undefined, HOLE if it makes no sense."""
        number = self._numbers.get(rule)
        if number is None:
            number = self._numbers[rule] = self._classify(rule)
        return number

    def _classify(self, rule: Rule) -> int:
        how = how_of(rule, self.arch.ip, self.arch)
        if how.kind == Kind.UNDEFINED:
            return ROOT
        registers = [how.register for _, how in rule.registers] + [rule.cfa.register]
        if how.kind == Kind.SAME or max(registers) >= self.arch.n_registers or self._is_below_stack(rule.cfa, how):
            return HOLE
        return self._append(rule)

    def _is_below_stack(self, cfa: Cfa, how: How) -> bool:
        """Whether the return address would lie below the stack pointer, as where glibc's strchrnul for i386 tells each
        push as a pop."""
        return (cfa.kind == CfaKind.REGISTER and cfa.register == self.arch.sp and how.kind == Kind.SAVED
                and cfa.offset + how.offset < 0)

    def _append(self, rule: Rule | None) -> int:
        number = len(self.rules)
        self.rules.append(rule)
        self.fast.put(number, rule)
        self.full.put(number, rule)
        self._counters.rules += rule is not None
        return number


class Call(IntEnum):
    """Whether a call has led to a function."""

    IMPOSSIBLE = 0
    POSSIBLE = 1
    CERTAIN = 2


@dataclass(frozen=True, eq=False, repr=False)
class Source:
    """One section and the index over it. ``base`` is taken off the index's offsets."""

    section: CfiSection
    index: Index
    base: int


_FRUITLESS, _PLACES_MAX = 8, 1 << 16
_ZEROED = re.compile(rb"(?<![\x41\x44\x45])\x31\xed")  # xor ebp, ebp
_FAR_CALL = 13  # bytes of mov r10, address; call r10
_JUMPS_MAX, _WRAPPER_MAX = 4096, 48  # bytes of a function: that are looked at; of one that only jumps on
_TAIL_JUMP = re.compile(rb"(?s:\xe9....|\xeb.)")
_TOLD_JUMP = re.compile(rb"\xff[\xe0-\xe7]\Z")  # jmp, to where a register says


class Teller(Protocol):
    """Who knows the rules of code that is made at run time. Addresses are those in its object."""

    def rows(self, pcs: Sequence[int]) -> Iterable[tuple[int, int, Sequence[tuple[int, Rule | int]]]]:
        """Rows for stretches (begin, end) that cover all ``pcs``; for a rule there may be the number of a special one.
        Stretches do not overlap each other, nor any that have been told and not been forgotten."""

    def text(self, at: int, size: int) -> bytes:
        """The code itself; empty where it cannot be had."""


@dataclass(eq=False, repr=False)
class _Object:
    """What the tables keep of one load object. ``sources`` is made at the first hit."""

    load_object: LoadObject
    arch: Architecture | None
    origin: int
    low: int
    high: int
    sources: list[Source] | None = None
    teller: Teller | None = None

    @cached_property
    def go_functions(self) -> FunctionTable | None:
        """None where there are none, or they are damaged."""
        try:
            return self.load_object.go_functions if self.arch is X86_64 and self.teller is None else None
        except ElfError:
            return None

    @cached_property
    def symbols(self) -> Symbols | None:
        """None where they are damaged."""
        try:
            return self.load_object.symbols()
        except ElfError:
            return None


class Tables:
    """Rules of all load objects of a recording, shared by all its processes."""

    def __init__(self) -> None:
        self.counters = Counters()
        self.rule_sets = {machine: RuleSet(arch, self.counters) for machine, arch in ARCHITECTURES.items()}
        self._objects: list[_Object] = []
        self._told: list[int] = []  # objects whose rules somebody tells
        self._next = FIRST_ORIGIN
        # Objects, as arrays: origin u8, the ends of their stretch of the line u8, machine i8.
        self.origin = np.zeros(0, np.uint64)
        self.low = np.zeros(0, np.uint64)
        self.high = np.zeros(0, np.uint64)
        self.machine = np.zeros(0, np.int64)
        # Rows: start on the line u8 ascending, rule i8.
        self.start = np.zeros(1, np.uint64)
        self.rule = np.full(1, HOLE, np.int64)
        self._call_sites: dict[int, bool] = {}
        self._hints: dict[tuple[int, bool], LeafHint | None] = {}
        self._frameless: dict[int, bool] = {}  # by place
        self._n_fruitless: dict[int, int] = {}  # searches, by place
        self._jumps: dict[tuple[int, int, int], bool] = {}  # by object, function, and where it may jump to

    # -- objects

    def add_object(self, load_object: LoadObject) -> int:
        """Give a load object its stretch of the line; its number. Cheap: no call frame information is read yet.

        The tables read from the object later on: leave it open. An object of another architecture, or without
        anything to load, is taken as well; its code is then unwound by frame pointers.
        """
        arch = ARCHITECTURES.get(load_object.machine)
        if arch is not None and arch.word_size != load_object.word_size:
            arch = None  # x32
        loads = load_object.loads
        low = max(min((s.vaddr for s in loads), default=0) - _MARGIN, 0)
        high = max((s.vaddr + s.memory_size for s in loads), default=0) + _MARGIN
        if high - low > _MAX_SPAN or high > _IMPOSSIBLE or self._next + high - low >= _IMPOSSIBLE:
            self.counters.objects_damaged += 1
            arch, low, high = None, 0, 0
        self._place(load_object, arch, low, high)
        return len(self._objects) - 1

    def add_object_of_rule(self, load_object: LoadObject, rule: Rule) -> int:
        """The same for an object whose code has one rule everywhere, of x86-64."""
        number = self.add_object(load_object)
        if self.low[number] < self.high[number]:  # else the last row is another's
            self.rule[-1] = self.rule_sets[X86_64.machine].number_of(rule)
        return number

    def add_told(self, load_object: LoadObject, teller: Teller) -> int:
        """The same for an object whose rules somebody tells, of x86-64."""
        number = self.add_object(load_object)
        self._objects[number].sources, self._objects[number].teller = [], teller
        self._told.append(number)
        return number

    def forget(self, number: int, stretches: Sequence[tuple[int, int]]) -> None:
        """What was told of stretches [begin, end) of such an object does not hold any more."""
        if stretches:
            begins = self._cleared(self._objects[number], stretches)
            self._merge(begins, [UNDECODED] * len(begins), [])

    def retire(self, number: int) -> None:
        """The code of such an object is gone, and with it whoever told its rules: from now on it has none."""
        known = self._objects[number]
        known.teller = None
        self._told.remove(number)
        if known.low == known.high:
            return
        whole = known.low - known.origin & _MASK, known.high - known.origin & _MASK
        self._merge(self._cleared(known, [whole]), [HOLE], [])
        line = range(known.low, known.high)
        self._call_sites = {place: found for place, found in self._call_sites.items() if place not in line}
        self._hints = {key: found for key, found in self._hints.items() if key[0] not in line}
        self._jumps = {key: found for key, found in self._jumps.items() if key[0] != known.origin}

    def expect(self, number: int, pcs: U64) -> None:
        """Ask for the rules at addresses (n,) of such an object that will be looked up, as far as they are not known:
        to be told of all at once takes much less time than of a few in each turn."""
        known = self._objects[number]
        line = pcs + np.uint64(known.origin)
        unknown = self.rule.take(self.start.searchsorted(line, "right") - 1) == UNDECODED
        if unknown.any():
            self._told_by(known, pcs[unknown].tolist())

    def _cleared(self, known: _Object, stretches: Sequence[tuple[int, int]]) -> list[int]:
        """Takes all rows out that begin in stretches; where these begin on the line."""
        bounds = np.array([(begin + known.origin & _MASK, end + known.origin & _MASK) for begin, end in stretches],
                          np.uint64)
        begins: list[int] = bounds[:, 0].tolist()
        kept, done = [], 0
        for first, last in sorted(self.start.searchsorted(bounds).tolist()):
            kept.append(slice(done, first))
            done = max(done, last)
        kept.append(slice(done, None))
        self.start, self.rule = (np.concatenate([column[part] for part in kept]) for column in (self.start, self.rule))
        return begins

    def close(self) -> None:
        """Close all load objects."""
        for known in self._objects:
            known.load_object.close()

    def _place(self, load_object: LoadObject, arch: Architecture | None, low: int, high: int) -> None:
        start = self._next
        end = self._next = start + high - low
        self._objects.append(_Object(load_object, arch, (start - low) & _MASK, start, end))
        self.origin = np.append(self.origin, np.uint64((start - low) & _MASK))
        self.low = np.append(self.low, np.uint64(start))
        self.high = np.append(self.high, np.uint64(end))
        self.machine = np.append(self.machine, np.int64(arch.machine if arch else -1))
        if end > start:
            self.start = np.append(self.start, np.uint64(start))
            self.rule = np.append(self.rule, np.int64(UNDECODED if arch else HOLE))

    def _object_at(self, pc_line: int) -> _Object | None:
        # An object without addresses shares its start with the next one, which is the last to start there.
        index = int(self.low.searchsorted(np.uint64(pc_line), "right")) - 1
        return self._objects[index] if index >= 0 and pc_line < self._objects[index].high else None

    # -- rules

    def rules_at(self, pc_line: U64) -> I64:
        """The numbers of the rules at places of the line (n,), decoding what is hit for the first time."""
        number = self.rule.take(self.start.searchsorted(pc_line, "right") - 1)
        if not number.all():
            unknown = distinct(pc_line[number == UNDECODED])
            self._decode(unknown[~self._ask(unknown)] if self._told else unknown)
            number = self.rule.take(self.start.searchsorted(pc_line, "right") - 1)
            # Decoding answers for every place asked; whatever damage might leave open is a hole, never a second try.
            number[number == UNDECODED] = HOLE
        return number

    def _ask(self, pcs_line: U64) -> npt.NDArray[np.bool_]:
        """Ask those who tell rules for these places; which of them (n,) are theirs."""
        theirs = np.zeros(len(pcs_line), np.bool_)
        for known in (self._objects[number] for number in self._told):
            mine = (pcs_line >= np.uint64(known.low)) & (pcs_line < np.uint64(known.high))
            if mine.any():
                theirs |= mine
                self._told_by(known, (pcs_line[mine] - np.uint64(known.origin)).tolist())
        return theirs

    def _told_by(self, known: _Object, pcs: list[int]) -> None:
        assert known.teller is not None
        number_of = self.rule_sets[X86_64.machine].number_of
        starts: list[int] = []
        numbers: list[int] = []
        ends = []
        told = list(known.teller.rows(pcs))
        if told:
            self._cleared(known, [(begin, end) for begin, end, _ in told])
        for _, end, rows in told:
            starts += [start + known.origin & _MASK for start, _ in rows]
            numbers += [rule if isinstance(rule, int) else number_of(rule) for _, rule in rows]
            ends.append(end + known.origin & _MASK)
        self._merge(starts, numbers, ends)

    def _decode(self, pcs_line: U64) -> None:
        """Decode what covers these places, all of which are UNDECODED, and merge the rows into the line."""
        starts: list[int] = []
        numbers: list[int] = []
        terminators: list[int] = []
        row = self.start.searchsorted(pcs_line, "right")
        lows = self.start.take(row - 1).tolist()
        highs = np.where(row < len(self.start), self.start.take(row, mode="clip"), np.uint64(self._next)).tolist()
        objects = (self.low.searchsorted(pcs_line, "right") - 1).tolist()
        done = 0
        for pc_line, low, high, index in zip(pcs_line.tolist(), lows, highs, objects, strict=True):
            if pc_line < done:
                continue
            low = max(low, done)
            if index < 0 or pc_line >= self._objects[index].high:
                found, done = [(low, HOLE)], high
            else:
                known = self._objects[index]
                found, done = self._rows_around(known, pc_line, low, min(high, known.high))
            starts += [start for start, _ in found]
            numbers += [number for _, number in found]
            if done < high:
                terminators.append(done)
        self._merge(starts, numbers, terminators)

    def _merge(self, starts: list[int], numbers: list[int], terminators: list[int]) -> None:
        """Of rows with equal starts the newly decoded one counts, then the old one, then a terminator.

        The line is long, and what is new lies in few places of it: its stretches between these are copied as they are.
        """
        if not starts and not terminators:
            return
        start = np.array(terminators + starts, np.uint64)
        rule = np.array([UNDECODED] * len(terminators) + numbers, np.int64)
        order = start.argsort(kind="stable")
        start, rule = start[order], rule[order]
        last = np.append(start[1:] != start[:-1], True)
        start, rule = start[last], rule[last]
        at = self.start.searchsorted(start)
        there = self.start.take(at, mode="clip") == start
        newer = there & (rule != UNDECODED)
        self.rule[at[newer]] = rule[newer]
        start, rule, at = start[~there], rule[~there], at[~there]
        self.start, self.rule = _inserted(self.start, at, start), _inserted(self.rule, at, rule)

    def _rows_around(self, known: _Object, pc_line: int, low: int, high: int) -> tuple[list[tuple[int, int]], int]:
        """Rows for the function or hole around a place, cut to ``[low, high)``, and where they end."""
        assert known.arch is not None
        origin = known.origin - (1 << 64) if known.origin >> 63 else known.origin
        pc, hole_low, hole_high = pc_line - origin, low - origin, high - origin
        for rows, begin, end in self._looked_up(known, known.arch, pc):
            if rows:
                end = min(end, hole_high)
                return [(max(start, hole_low) + origin, number) for start, number in rows if start < end], end + origin
            hole_low, hole_high = max(hole_low, begin), min(hole_high, end)
        self.counters.holes += 1
        rows, end = self._hole(known, pc, hole_low, hole_high)
        return [(start + origin, number) for start, number in rows], end + origin

    def _looked_up(self, known: _Object, arch: Architecture,
                   pc: int) -> Iterator[tuple[list[tuple[int, int]], int, int]]:
        """What each of those says who may know the function at an object's address, the best first; see below."""
        for source in self._sources(known):
            yield self._look_up(source, arch, pc)
        if known.go_functions is not None:
            yield self._look_up_go(known.go_functions, pc)

    def _look_up(self, source: Source, arch: Architecture, pc: int) -> tuple[list[tuple[int, int]], int, int]:
        """(rows, begin, end) of the function at an object's address, or ([], begin, end) of the hole around it."""
        begins = source.index.begin
        at = int(begins.searchsorted(np.uint64(pc), "right")) - 1
        hole_end = int(begins[at + 1]) if at + 1 < len(begins) else _MASK
        if at < 0:
            return [], 0, hole_end
        try:
            fde = source.section.fde_at(int(source.index.offset[at]) - source.base)
            # A thread in the system call that a signal trampoline ends with is behind it.
            end = min(fde.end + fde.cie.is_signal, hole_end)
            if not fde.begin <= pc < end:
                return [], min(max(end, int(begins[at])), pc), hole_end
            rows = source.section.states_of(fde)
        except ElfError:
            self.counters.fdes_damaged += 1
            return [], min(int(begins[at]), pc), hole_end
        self.counters.fdes_decoded += 1
        numbers = self.rule_sets[arch.machine].numbers
        return [(start, numbers[state]) for start, state in rows], fde.begin, end

    def _look_up_go(self, table: FunctionTable, pc: int) -> tuple[list[tuple[int, int]], int, int]:
        """The same by the table of functions that Go programs have."""
        from collector.pclntab import Kind as FunctionKind

        begin, end = pc, _MASK
        try:
            at = int(table.entries.searchsorted(np.uint64(pc), "right")) - 1
            begin = int(table.entries[at]) if at >= 0 else 0
            end = int(table.entries[at + 1]) if at + 1 < len(table) else table.end
            if at < 0 or pc >= end:
                return [], (0 if at < 0 else end), (end if at < 0 else _MASK)
            kind = table.kind(at)
            rows = table.frame_rows(at) if kind == FunctionKind.PLAIN else []
        except ElfError:
            self.counters.fdes_damaged += 1
            return [], begin, end
        self.counters.fdes_decoded += 1
        if kind in (FunctionKind.TOP, FunctionKind.LEAVES_STACK):
            return [(begin, ROOT if kind == FunctionKind.TOP else STOP)], begin, end
        number_of = self.rule_sets[X86_64.machine].number_of
        return [(start, number_of(go_rule(depth))) for start, depth in rows], begin, end

    def parts_of(self, number: int, begin: int) -> list[tuple[int, int]]:
        """The stretches [begin, end) of the function of an object that begins at an address; none where that is not
        known."""
        known = self._objects[number]
        for source in self._sources(known) if known.arch is not None else ():
            at = int(source.index.begin.searchsorted(np.uint64(begin)))
            if at < len(source.index.begin) and int(source.index.begin[at]) == begin:
                with suppress(ElfError):
                    return source.section.parts_of(int(source.index.offset[at]) - source.base)
        return []

    # -- sources

    def _sources(self, known: _Object) -> list[Source]:
        """The sections of an object, best first. ``.debug_frame``, here or in a debug file, only fills holes."""
        if known.sources is None:
            known.sources = []
            for find in (_eh_frame, _debug_frame):
                try:
                    if (source := find(known.load_object, known.arch)) is not None:
                        known.sources.append(source)
                except ElfError:
                    self.counters.objects_damaged += 1
            if not known.sources and (source := self._separate_source(known)) is not None:
                known.sources.append(source)
            self.counters.objects_without_cfi += not known.sources
        return known.sources

    def _separate_source(self, known: _Object) -> Source | None:
        try:
            debug = known.load_object.debug_object()
            return _debug_frame(debug, known.arch) if debug is not None else None
        except (ElfError, NoDescriptors):
            return None

    # -- what no section covers

    def _hole(self, known: _Object, pc: int, low: int, high: int) -> tuple[list[tuple[int, int]], int]:
        """Rows of the part of a hole that lies in the window of ``pc``, and where they end.

        Entry code, known code and signal trampolines have rules of their own there, all else is HOLE.
        """
        low, high = max(low, pc & -_WINDOW), min(high, (pc & -_WINDOW) + _WINDOW)
        special = self._trampolines(known, low, high)
        entry = known.load_object.entry
        if entry and low <= entry < high:
            special.append((entry, min(self._entry_end(known), high), ROOT))
        rows = [(low, HOLE)]
        for begin, end, number in sorted(special):
            begin = max(begin, rows[-1][0])
            rows += [(begin, number), (max(end, begin + 1), HOLE)]
        return [row for row in rows if row[0] < high], high

    def _entry_end(self, known: _Object) -> int:
        """Where a program's entry code ends at the latest; a function behind it that it calls has a caller."""
        entry = known.load_object.entry
        text = self._text(known, entry, _ENTRY_BYTES)
        # To call what comes next is how code of 32 bits learns where it is.
        called = [behind + distance for behind in range(5, len(text) + 1) if text[behind - 5] == 0xE8
                  and (distance := int.from_bytes(text[behind - 4:behind], "little", signed=True)) > 0]
        return entry + min([_ENTRY_BYTES, *called])

    def _trampolines(self, known: _Object, low: int, high: int) -> list[tuple[int, int, int]]:
        """(begin, end, rule) of known code and of trampolines in ``[low, high)``. The latter begin a byte early: a
        handler returns to the first instruction, and return addresses are looked up minus one. And they end a byte
        late: in the system call that they end with a thread is behind it."""
        assert known.arch is not None
        found = []
        for load in known.load_object.loads:  # of what lies before one, or between two, nothing can be read
            begin, end = max(low, load.vaddr), min(high + _PATTERN_MAX, load.vaddr + load.file_size)
            text = self._text(known, begin, end - begin) if load.is_executable and begin < end else b""
            low = max(low, end) if text else low
            for code, rule in known.arch.trampolines:
                at = text.find(code)
                while at >= 0:
                    number = self.rule_sets[known.arch.machine].number_of(rule)
                    found.append((begin + at - 1, begin + at + len(code) + 1, number))
                    at = text.find(code, at + 1)
            for pattern, rule in known.arch.known_code:
                number = self.rule_sets[known.arch.machine].number_of(rule)
                found += [(begin + match.start(1), begin + match.end(1), number) for match in pattern.finditer(text)]
        return found

    def _text(self, known: _Object, vaddr: int, size: int) -> bytes:
        if known.teller is not None:
            return known.teller.text(vaddr, size)
        try:
            return known.load_object.read_at(vaddr, size)
        except ElfError:
            return b""

    def follows_call(self, return_line: U64) -> npt.NDArray[np.bool_]:
        """Whether a call instruction ends at places of the line (n,), or a handler returns there; False where there is
        no file to look into."""
        sites = self._call_sites
        return np.array([sites[place] if place in sites else self._inspect_call(place)
                         for place in return_line.tolist()], bool)

    def add_returns(self, number: int, places: Sequence[int]) -> None:
        """Returns lead to these addresses of an object, though no call stands before them."""
        origin = self._objects[number].origin
        self._call_sites.update(((place + origin) & _MASK, True) for place in places)

    def is_told(self, pc_line: U64) -> npt.NDArray[np.bool_]:
        """Whether somebody tells the rules at places of the line (n,)."""
        found = np.zeros(len(pc_line), np.bool_)
        for known in (self._objects[number] for number in self._told):
            found |= (pc_line >= np.uint64(known.low)) & (pc_line < np.uint64(known.high))
        return found

    def _inspect_call(self, return_line: int) -> bool:
        known = self._object_at(return_line - 1)
        found = False
        if known is not None and known.arch is not None:
            size = known.arch.longest_call
            vaddr = (return_line - known.origin) & _MASK
            # A call may be the first thing in its segment: look at fewer bytes then.
            found = any(known.arch.is_call_before(self._text(known, vaddr - n, n)) for n in (size, 5, 2) if vaddr >= n)
            # The kernel has a handler return to a trampoline.
            found = found or any(self._text(known, vaddr, len(code)) == code for code, _ in known.arch.trampolines)
        self._call_sites[return_line] = found
        return found

    def call_between(self, return_line: int, pc_line: int, runtime: tuple[int, int] | None = None) -> Call:
        """Whether the call that ends at one place of the line has led to the function around another; ``runtime``:
        where both are in their process, which is what code that is made at run time knows of other objects.

        A direct call says where it leads: to the function's entry, or to a jump through the PLT, which may go on to it.
        """
        caller = self._object_at(return_line - 1)
        if caller is None or caller.arch is None:
            return Call.POSSIBLE
        callee = self._object_at(pc_line)
        if caller.teller is not None and callee is not None and callee is not caller and runtime is not None:
            return self._made_call(caller, callee, (return_line, pc_line), runtime)
        vaddr = (return_line - caller.origin) & _MASK
        call = self._text(caller, vaddr - 5, 5) if vaddr >= 5 else b""
        if call[:1] != b"\xe8":
            return Call.POSSIBLE
        target = vaddr + int.from_bytes(call[1:], "little", signed=True) & _MASK  # of what only looks like a call: any
        if caller.arch.plt_jump.match(self._text(caller, target, 16)):
            return Call.POSSIBLE
        if callee is not caller:
            return Call.IMPOSSIBLE
        pc = (pc_line - caller.origin) & _MASK
        start = self._function_start(caller, pc)
        if start is None:
            return Call.POSSIBLE if target <= pc < target + _LONGEST_FUNCTION else Call.IMPOSSIBLE
        if target == start:
            return Call.CERTAIN
        return Call.POSSIBLE if self._goes_on_to(caller, target, start) else Call.IMPOSSIBLE

    def _goes_on_to(self, known: _Object, function: int, start: int, n_further: int = 1) -> bool:
        """Whether a function, before or behind its own frame, jumps to another one; or to a short one that jumps to
        where it is told, as JavaCalls::call does by os::os_exception_wrapper."""
        key = known.origin, function, start
        found = self._jumps.get(key)
        if found is None:
            text = self._text(known, function, self._function_end(known, function) - function)
            targets = {function + match.end() + int.from_bytes(match[0][1:], "little", signed=True) & _MASK
                       for match in _TAIL_JUMP.finditer(text)}
            is_wrapper = len(text) <= _WRAPPER_MAX and bool(_TOLD_JUMP.search(text))
            found = self._jumps[key] = is_wrapper or start in targets or (n_further > 0 and any(
                self._goes_on_to(known, target, start, n_further - 1) for target in targets
                if not function <= target < function + len(text)))
        return found

    def _function_end(self, known: _Object, vaddr: int) -> int:
        """Where the function that begins at an address ends, by its FDE or else its symbol; else the address itself."""
        assert known.arch is not None
        for source in self._sources(known):
            rows, begin, end = self._look_up(source, known.arch, vaddr)
            if rows and begin == vaddr:
                return min(end, vaddr + _JUMPS_MAX)
        index = None if known.symbols is None else known.symbols.at(vaddr)
        if known.symbols is None or index is None or int(known.symbols.value[index]) != vaddr:
            return vaddr
        return vaddr + min(int(known.symbols.size[index]), _JUMPS_MAX)

    def _made_call(self, caller: _Object, callee: _Object, line: tuple[int, int], runtime: tuple[int, int]) -> Call:
        """The same of code made at run time that calls another object's: at its address, or by mov r10 and call r10."""
        vaddr, pc = line[0] - caller.origin & _MASK, line[1] - callee.origin & _MASK
        text = self._text(caller, vaddr - _FAR_CALL, _FAR_CALL) if vaddr >= _FAR_CALL else b""
        if text[:2] == b"\x49\xba" and text[10:] == b"\x41\xff\xd2":
            target = int.from_bytes(text[2:10], "little")
        elif text[8:9] == b"\xe8":
            target = runtime[0] + int.from_bytes(text[9:], "little", signed=True)
        else:
            return Call.POSSIBLE
        start = self._function_start(callee, pc)
        if start is None:
            return Call.POSSIBLE
        return Call.CERTAIN if target - runtime[1] == start - pc else Call.IMPOSSIBLE

    def hints(self, pc_line: U64, is_leaf: npt.NDArray[np.bool_]) -> list[LeafHint | None]:
        """What the instructions around pcs (n,) say; see ``hint``."""
        known = self._hints
        return [known[key] if key in known else self.hint(*key)
                for key in zip(pc_line.tolist(), is_leaf.tolist(), strict=True)]

    def hint(self, pc_line: int, is_leaf: bool) -> LeafHint | None:
        """What the instructions around a pc, or behind a caller's call, say about where its return address is."""
        key = pc_line, is_leaf
        if key not in self._hints:
            known = self._object_at(pc_line)
            self._hints[key] = None if known is None or known.arch is None else self._find_hint(known, *key)
        return self._hints[key]

    def _find_hint(self, known: _Object, pc_line: int, is_leaf: bool) -> LeafHint | None:
        assert known.arch is not None
        vaddr = (pc_line + (not is_leaf) - known.origin) & _MASK
        before = self._text(known, vaddr - 16, 16) if vaddr >= 16 else b""
        after = self._text(known, vaddr, 16)
        for hint in known.arch.leaf_hints if is_leaf else known.arch.caller_hints:
            if re.search(hint.before, before) and re.match(hint.after, after):
                return hint
        if not is_leaf:
            return None
        return _FRAMELESS if self._is_without_frame(known, vaddr) else None

    def makes_no_frame(self, pc_line: int) -> bool:
        """Whether the function around a place is known not to have made a frame on the way there."""
        found = self._frameless.get(pc_line)
        if found is None:
            known = self._object_at(pc_line)
            if known is None or known.arch is None or known.teller is not None:
                return False
            vaddr = (pc_line - known.origin) & _MASK
            found = self._frameless[pc_line] = self._is_without_frame(known, vaddr)
        return found

    def is_fruitless(self, pc_line: int) -> bool:
        """Whether searches for the caller of code at a place have failed so often that there need be no more of them,
        which take up to a millisecond each."""
        return self._n_fruitless.get(pc_line, 0) >= _FRUITLESS

    def note_fruitless(self, pc_line: int) -> None:
        """A search has failed."""
        if len(self._n_fruitless) > _PLACES_MAX:
            self._n_fruitless.clear()
        self._n_fruitless[pc_line] = self._n_fruitless.get(pc_line, 0) + 1

    def has_zeroed(self, pc_line: int) -> bool:
        """Whether the code just before a place has made the frame pointer zero, which marks the outermost frame."""
        known = self._object_at(pc_line)
        if known is None or known.arch is None:
            return False
        vaddr = (pc_line - known.origin) & _MASK
        return bool(_ZEROED.search(self._text(known, vaddr - 16, 16) if vaddr >= 16 else b""))

    def _is_without_frame(self, known: _Object, vaddr: int) -> bool:
        """Whether a function is known not to make a frame when it begins, nor from there to a place: builtins of V8
        look at what they are to call before they do."""
        assert known.arch is not None
        start, prologue = self._function_start(known, vaddr), known.arch.frame_prologue
        if start is None or prologue.match(self._text(known, start, 16)):
            return False
        return not prologue.search(self._text(known, start, min(vaddr - start, _JUMPS_MAX)))

    def _function_start(self, known: _Object, vaddr: int) -> int | None:
        """Where the function begins, by its FDE or else its symbol; symbols are read once, and only if asked here."""
        assert known.arch is not None
        for source in self._sources(known):
            rows, begin, _ = self._look_up(source, known.arch, vaddr)
            if rows:
                return begin
        index = None if known.symbols is None else known.symbols.at(vaddr)
        return None if known.symbols is None or index is None else int(known.symbols.value[index])


def _eh_frame(load_object: LoadObject, arch: Architecture | None) -> Source | None:
    assert arch is not None
    hdr = load_object.eh_frame_hdr()
    if hdr is not None:
        vaddr, index = search_table(hdr, arch.word_size)
        extent = load_object.extent_at(vaddr)
        if extent is not None:
            section = CfiSection(extent, arch)
            return Source(section, index, vaddr) if index is not None else Source(section, section.index(), 0)
    extent = load_object.eh_frame()
    return None if extent is None else _indexed(CfiSection(extent, arch))


def _debug_frame(load_object: LoadObject, arch: Architecture | None) -> Source | None:
    assert arch is not None
    extent = load_object.debug_frame()
    return None if extent is None else _indexed(CfiSection(extent, arch, is_debug=True))


def _indexed(section: CfiSection) -> Source:
    return Source(section, section.index(), 0)
