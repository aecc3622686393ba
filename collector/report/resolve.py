"""One experiment's packets as distinct stacks of instructions with weights.

    packets (TSTAMP, FRINFO, MSTATE, NTICK)       one million; read in pieces, of which a few narrow columns are kept
        -> distinct (stack, epoch)                thousands, in order of first appearance
        -> distinct (pc, epoch)                   thousands; the only Python loop: function and offset of each

An *epoch* is a time in which the address space does not contradict itself (see ``address_space``).

Looking every pc up once is enough unless an object's answers depend on what was asked before (``functions``: holes at
the end of an object, where libc has its memcpy). Then the same stack may mean different functions at different
times, and only looking up every frame of every packet in order gives gprofng's answers; so that is what we do, for
those frames in such objects that matter, up to ``EXACT_LOOK_UPS_MAX`` of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from collector.elf import LoadObject, open_object
from collector.elf import Segment as ProgramHeader
from collector.errors import ElfError
from collector.experiment.identity import UNKNOWN as NOT_IDENTIFIED
from collector.experiment.places import Places
from collector.experiment.reader import DynamicFunction, Experiment, ObjectFile, Segment
from collector.report.address_space import ADDRESS_END, AddressSpace, Key, Mapped
from collector.report.compat import DYNAMIC_FUNCTIONS, FAILED, TOTAL, TRUNCATED, UNKNOWN, static_name
from collector.report.functions import AddressTable, Function, FunctionTable, SymbolTable, symbol_table
from collector.report.kinds import CLOCK, Columns
from collector.report.metrics import N_STATE_COLUMNS, STATE_OTHER
from collector.report.profile import I4, I8, picked

if TYPE_CHECKING:
    from collector.dwarf import LineTables, Unit
    from collector.report.symbols import Frame

U8 = npt.NDArray[np.uint64]
Bool = npt.NDArray[np.bool_]
Packets = npt.NDArray[Any]
Numbers = npt.NDArray[Any]  # int64, or int32 of all packets

EXACT_LOOK_UPS_MAX = 5_000_000
_CODES_MAX = 1 << 22
_AT_ONCE = 1 << 18  # elements: what is made of them meanwhile stays in the CPU's caches
MODES_TEXT = 5
DEBUG_SUFFIX = "_debug"  # of a copy of a debug file, behind the name of the copy that it belongs to
TOTAL_FUNCTION, UNKNOWN_FUNCTION, TRUNCATED_FUNCTION, FAILED_FUNCTION = range(4)
_SPECIAL = (
    Function(TOTAL, b"", TOTAL, object_number=1, has_offsets=False),
    Function(UNKNOWN, UNKNOWN, UNKNOWN),
    Function(TRUNCATED, TRUNCATED, TOTAL, object_number=1, has_offsets=False),
    Function(FAILED, FAILED, TOTAL, object_number=1, has_offsets=False),
)
_PC_LEAF_CHECK = 0xFFFF_FFFF_FFFF_FFFF
_NO_FRAME = -1


@dataclass
class LoadedObject:
    """A load object of the experiments; its file is looked for and opened when a pc falls into it."""

    path: bytes
    number: int
    mapped_size: int
    look_for_file: Callable[[], ObjectFile]
    places: Places = field(default_factory=Places)
    _table: FunctionTable | AddressTable | None = field(default=None, repr=False)
    _symbols: SymbolTable | None = field(default=None, repr=False)

    @property
    def name(self) -> bytes:
        """As it is shown: the base name in angle brackets."""
        return b"<" + self.path.rsplit(b"/", 1)[-1] + b">"

    @cached_property
    def found(self) -> ObjectFile:
        """Its file, and what is wrong with it."""
        return self.look_for_file()

    @property
    def file(self) -> Path | None:
        """Its file, if it is the one that was recorded."""
        return self.found.path

    @property
    def problem(self) -> str:
        """What is wrong or doubtful with its file; empty for one that nothing was asked of."""
        return self.found.problem if self._table is not None else ""

    @property
    def table(self) -> FunctionTable | AddressTable:
        """Its functions; those of a file that cannot be read are one hole, those of another file mere addresses."""
        if self._table is None and self.file is None and self.found.problem:
            self._table = AddressTable(self.name, self.number)
        elif self._table is None:
            self._table = FunctionTable(self.symbols, self.name, self.number, _demangled)
        return self._table

    @property
    def symbols(self) -> SymbolTable:
        """Its function symbols; none if the file cannot be read."""
        if self._symbols is None:
            self._symbols = self._read_symbols()
        return self._symbols

    def is_order_dependent(self) -> bool:
        """Whether the functions found so far depend on the order of the questions."""
        return self._table is not None and self._table.is_order_dependent

    def forget(self) -> None:
        """Begin anew, as if nothing had been asked."""
        self._table = self.table.renewed()

    def _read_symbols(self) -> SymbolTable:
        if self.file is not None:
            with suppress(ElfError), open_object(str(self.file)) as elf:
                debug = debug_object_beside(elf, self.path)
                more = self.debug_object(elf) if debug is None and elf.is_stripped else None
                return symbol_table(elf, self.mapped_size, debug, more)
        return SymbolTable.empty(self.mapped_size)

    def debug_object(self, elf: LoadObject) -> LoadObject | None:
        """Its separate debug file: the copy beside its own copy, or wherever debug files are kept."""
        if not self.places.debug_files:
            return None
        with suppress(ElfError):
            copy = open_object(f"{self.file}{DEBUG_SUFFIX}")
            if copy.build_id == elf.build_id:
                return copy
        return elf.debug_object("", os.fsdecode(self.path), self.places.folders)

    @cached_property
    def frames_at(self) -> Callable[[int], list[Frame]]:
        """From file offsets to functions and lines, innermost first; nothing where there is no debug information."""
        from collector.report.symbols import Lines

        elf = self._elf
        if elf is None:
            return lambda _: []
        lines = Lines.of(self._debug or elf)
        base = min((load.vaddr for load in elf.loads), default=0)

        def look_up(file_offset: int) -> list[Frame]:  # not by self: garbage in circles keeps descriptors
            vaddr = elf.vaddr_of(file_offset)
            return [] if vaddr is None else lines.at(vaddr, base)

        return look_up

    # -- what source and instructions need

    @property
    def machine(self) -> int:
        """The machine's ELF number; 0 without a file."""
        return self._elf.machine if self._elf is not None else 0

    def vaddr_of(self, file_offset: int) -> int | None:
        """The object's address of an executable byte of the file."""
        return self._elf.vaddr_of(file_offset) if self._elf is not None else None

    @property
    def texts(self) -> list[ProgramHeader]:
        """The executable segments of its file; none without one."""
        return [load for load in self._elf.loads if load.is_executable] if self._elf is not None else []

    def offset_of(self, vaddr: int) -> int | None:
        """The place in the file of an address."""
        return self._elf.offset_of(vaddr) if self._elf is not None else None

    def code(self, vaddr: int, size: int) -> bytes:
        """Bytes of the file by address; fewer where they end."""
        with suppress(ElfError):
            return self._elf.read_at(vaddr, size) if self._elf is not None else b""
        return b""

    def unit_at(self, file_offset: int) -> Unit | None:
        """The compiled file whose code is there, by the tables of lines."""
        vaddr = self.vaddr_of(file_offset)
        with suppress(ElfError):
            return self._tables.unit_at(vaddr) if vaddr is not None and self._tables is not None else None
        return None

    @property
    def debug_path(self) -> str:
        """Where its separate debug file is; empty if there is none."""
        return self._debug.name if self._debug is not None else ""

    @property
    def unit_paths(self) -> list[str]:
        """The files that were compiled."""
        with suppress(ElfError):
            return [unit.path for unit in self._tables.units] if self._tables is not None else []
        return []

    def units_named(self, path: str) -> list[Unit]:
        """Units by the file that was compiled."""
        with suppress(ElfError):
            return [unit for unit in self._tables.units if unit.path == path] if self._tables is not None else []
        return []

    def functions_like(self, part: bytes) -> list[Function]:
        """Functions with ``part`` in a symbol."""
        symbols = self.symbols
        found = {id(f): f for i in range(len(symbols.offset)) if part in symbols.name(i)
                 for f in (self.table.find(int(symbols.offset[i])),)}
        return list(found.values())

    @cached_property
    def _elf(self) -> LoadObject | None:
        with suppress(ElfError):
            return open_object(str(self.file)) if self.file is not None else None
        return None

    @cached_property
    def _debug(self) -> LoadObject | None:
        with suppress(ElfError):
            return self.debug_object(self._elf) if self._elf is not None else None
        return None

    @cached_property
    def _tables(self) -> LineTables | None:
        from collector.dwarf import LineTables

        found = self._debug or self._elf
        return LineTables(found) if found is not None else None


def debug_object_beside(elf: LoadObject, path: bytes) -> LoadObject | None:
    """The file that ``.gnu_debuglink`` names, in the directory from which the object was mapped, if it was made with
    it; else None. A link that has the object's own name leads elsewhere: to a folder of such files.
    """
    link = elf.debug_link
    if link is None or link.name == os.path.basename(path):
        return None
    with suppress(ElfError):
        found = open_object(os.fsdecode(os.path.join(os.path.dirname(path), link.name)))
        if elf.is_of(found, link.checksum):
            return found
        found.close()
    return None


# The load object of a mapping in an experiment; None while it has had no text.
LoadObjectOf = Callable[[Segment | DynamicFunction, Experiment], LoadedObject | None]


class Code:
    """Functions and instructions of a data set, numbered as they are met."""

    def __init__(self) -> None:
        self.functions = list(_SPECIAL)
        self.places: list[tuple[int, int]] = []
        self._function_ids = {id(function): number for number, function in enumerate(self.functions)}
        self._instruction_ids: dict[tuple[int, int], int] = {}
        self.truncated = self.instruction(TRUNCATED_FUNCTION, 0)
        self.failed = self.instruction(FAILED_FUNCTION, 0)

    def function(self, function: Function) -> int:
        """The number of a function."""
        number = self._function_ids.get(id(function))
        if number is None:
            number = self._function_ids[id(function)] = len(self.functions)
            self.functions.append(function)
        return number

    def instruction(self, function: int, offset: int) -> int:
        """The number of an instruction."""
        number = self._instruction_ids.setdefault((function, offset), len(self.places))
        if number == len(self.places):
            self.places.append((function, offset))
        return number

    def at(self, function: Function, file_offset: int) -> int:
        """The number of the instruction at a file offset, given the function that it belongs to."""
        return self.instruction(self.function(function), file_offset - function.offset)


class Resolved(NamedTuple):
    """Distinct stacks: ``offsets`` (n + 1), ``instructions`` leaf first, ``weights`` (n, states)."""

    offsets: I8
    instructions: I4
    weights: I8


class Found(NamedTuple):
    """The distinct stacks of all packets: ``of_packet`` (packets) says which is whose; ``rows``, see ``_Frames``."""

    of_packet: I4
    rows: I8
    offsets: I8
    instructions: I4


class Work(NamedTuple):
    """For each distinct stack what is looked up, leaf first: (position, how, file offset); and how often in all."""

    todo: list[list[tuple[int, Callable[[int], Function], int]]]
    n_look_ups: int


class _Frames(NamedTuple):
    """The distinct (stack, epoch) pairs, in order of first appearance, and their frames.

    ``of_packet`` (packets): the pair of each packet. ``rows`` (n): its stack. ``offsets`` (n + 1). ``codes``: for each
    frame its (pc, epoch) pair, numbered in order of first appearance. Of these: ``pcs``, ``epochs``, and ``mapped``:
    where in the address space, -1: nowhere.
    """

    of_packet: I4
    rows: I8
    offsets: I8
    codes: I4
    pcs: U8
    epochs: I8
    mapped: I8


class _Read(NamedTuple):
    """Of all packets (n,) the stack and the epoch as one number: ``(stack + 1) * epochs + epoch``, stack -1: none. Of
    those of clock profiling ``states`` and ``ticks``. ``counts``: packets of each kind.
    """

    codes: Numbers
    states: Numbers
    ticks: Numbers
    counts: dict[str, int]


class Part:
    """One experiment of a data set."""

    def __init__(self, code: Code, load_object: LoadObjectOf, experiment: Experiment, columns: Columns) -> None:
        self.experiment = experiment
        self._columns = columns
        self.n_missing_stacks = 0
        self._code = code
        self._objects: dict[Key, LoadedObject] = {}
        self._mapped = list(self._address_space(load_object))
        self._space = AddressSpace(self._mapped)

    def weights(self, group: Numbers, n_groups: int) -> I8:
        """What the packets of all kinds add up to, each in the group given (n_groups, columns); below 0: in none."""
        sums = np.zeros((n_groups, self._columns.n), np.int64)
        begin = 0
        for kind in self.experiment.kinds:
            if kind == CLOCK:
                states, ticks = self._clock
                mine = group[begin:begin + len(states)]
                sums[:, :N_STATE_COLUMNS] += self.experiment.log.interval_us * ticks_by(mine, states, ticks, n_groups)
                if self._columns.latency >= 0:
                    np.add.at(sums[:, self._columns.latency], mine[mine >= 0], self._latency_us[mine >= 0])
            else:
                mine = group[begin:begin + len(self.experiment.packets(kind))]
                sums += self._columns.sums(self.experiment, kind, mine, n_groups)
            begin += len(mine)
        return sums

    @cached_property
    def _latency_us(self) -> I8:
        from collector.report.latency import latency_us

        return latency_us(self.experiment)

    def resolve(self) -> Resolved:
        """Every pc looked up once."""
        frames = self._frames
        self.found = Found(frames.of_packet, frames.rows, frames.offsets, self._instructions)
        return self.weighed()

    def weighed(self, mask: Bool | None = None) -> Resolved:
        """The stacks that have been found with the weights of their packets; with a ``mask``, of those it selects."""
        found, of_packet = self.found, self.found.of_packet
        if mask is None:
            return self._finished(found.rows, found.offsets, found.instructions,
                                  self.weights(of_packet, len(found.rows)))
        weights = self.weights(np.where(mask, of_packet, -1), len(found.rows))
        keep = np.unique(of_packet[mask]).astype(np.int64)
        instructions, offsets = picked(found.instructions, found.offsets, keep)
        return self._finished(found.rows[keep], offsets, instructions, weights[keep])

    def function_stacks(self, function_of: I8) -> tuple[I8, I8, Numbers]:
        """Offsets and functions of the distinct stacks, leaf first, and the stack of each packet (n,)."""
        found = self.found
        done = self._finished(found.rows, found.offsets, found.instructions, np.zeros((len(found.rows), 0), np.int64))
        return done.offsets, function_of[done.instructions], found.of_packet

    def resolve_with(self, kind: str, values: I8, n_values: int, mask: Bool | None = None) -> Resolved:
        """As ``weighed``, with ``values`` (packets of that kind, n_values) as weights."""
        found = self.found
        before = self.experiment.kinds[:self.experiment.kinds.index(kind)]
        begin = sum(self._read.counts[one] for one in before)
        weights = np.zeros((len(found.rows), n_values), np.int64)
        mine = slice(begin, begin + len(values))
        chosen = slice(None) if mask is None else mask[mine]
        np.add.at(weights, found.of_packet[mine][chosen], values[chosen])
        return self._finished(found.rows, found.offsets, found.instructions, weights)

    def frames_of(self, uids: U8) -> list[tuple[int, ...]]:
        """The instructions of stacks (n,), leaf first, each pc as what was mapped there last; none of unknown ones."""
        stacks = self.experiment.stacks
        rows = stacks.index(uids.astype(np.int64))
        numbers, offsets = picked(stacks.numbers, stacks.offsets, rows)
        pcs = stacks.distinct[numbers]
        mapped = self._space.locate(pcs, self._space.last_epochs(pcs))
        instructions = [self._look_up(pc, place) for pc, place in zip(pcs.tolist(), mapped.tolist(), strict=True)]
        found = self._finished(rows, offsets, np.array(instructions, np.int32), np.zeros((len(rows), 0), np.int64))
        return [tuple(found.instructions[begin:end].tolist())
                for begin, end in zip(found.offsets[:-1].tolist(), found.offsets[1:].tolist(), strict=True)]

    def offsets_in(self, key: Key) -> I8:
        """The distinct file offsets of all frames in an object."""
        return np.unique(self._file_offsets[self._codes_in({key})])

    def work_in(self, objects: dict[Key, I8]) -> Work:
        """What must be looked up packet by packet: the frames in ``objects`` whose file offsets are given there."""
        frames = self._frames
        todo: list[list[tuple[int, Callable[[int], Function], int]]] = [[] for _ in frames.rows]
        owner = np.repeat(np.arange(len(frames.rows)), np.diff(frames.offsets))
        wanted = np.zeros(len(frames.pcs), bool)
        for key, offsets in objects.items():
            wanted |= self._codes_in({key}) & np.isin(self._file_offsets, offsets)
        for at in np.flatnonzero(wanted[frames.codes]).tolist():
            pair, code = int(owner[at]), int(frames.codes[at])
            look_up = self._objects[self._mapped[frames.mapped[code]].key].table.find_again
            todo[pair].append((at - int(frames.offsets[pair]), look_up, int(self._file_offsets[code])))
        lengths = np.array([len(one) for one in todo], np.int64)
        return Work(todo, int(lengths[frames.of_packet].sum()) if len(frames.of_packet) else 0)

    def resolve_exactly(self, work: Work) -> Resolved:
        """As ``resolve``, but what is in ``work`` is looked up for every packet, in the packets' order."""
        frames, code = self._frames, self._code
        variants: dict[tuple[int, tuple[Function, ...]], int] = {}
        of_packet = np.zeros(len(frames.of_packet), np.int32)
        nothing: tuple[Function, ...] = ()
        for packet, pair in enumerate(frames.of_packet.tolist()):
            todo = work.todo[pair]
            found = tuple([look_up(file_offset) for _, look_up, file_offset in todo]) if todo else nothing
            of_packet[packet] = variants.setdefault((pair, found), len(variants))
        pairs = np.array([pair for pair, _ in variants], np.int64)
        instructions, offsets = picked(self._instructions, frames.offsets, pairs)
        for number, (pair, found) in enumerate(variants):
            for (at, _, file_offset), function in zip(work.todo[pair], found, strict=True):
                instructions[offsets[number] + at] = code.at(function, file_offset)
        self.found = Found(of_packet, frames.rows[pairs], offsets, instructions)
        return self.weighed()

    def look_up(self, pcs: U8, epochs: I8) -> list[int]:
        """For pcs in epochs (n,) their functions, -1 for what is no frame."""
        places = self._code.places
        found = map(self._look_up, pcs.tolist(), self._space.locate(pcs, epochs).tolist())
        return [places[instruction][0] if instruction != _NO_FRAME else _NO_FRAME for instruction in found]

    @property
    def bounds(self) -> I8:
        """The times at which epochs begin, but for the first one."""
        return self._space.bounds

    @property
    def _clock(self) -> tuple[Numbers, Numbers]:
        """States and ticks of the packets of clock profiling."""
        if "_read" in self.__dict__:
            return self._read.states, self._read.ticks
        packets = self.experiment.packets(CLOCK)
        return known_states(packets["MSTATE"]), packets["NTICK"]

    @cached_property
    def _read(self) -> _Read:
        """What is needed of the packets to weigh stacks. Stacks are read last: a running experiment has theirs by then.
        """
        asked: list[Numbers] = []
        epochs = [np.zeros(0, np.int32)]
        states, ticks = [np.zeros(0, np.int8)], [np.zeros(0, np.int32)]
        counts = dict.fromkeys(self.experiment.kinds, 0)
        for kind in counts:
            for packets in self.experiment.packets_in_pieces(kind):
                counts[kind] += len(packets)
                asked.append(packets["FRINFO"].astype(np.int64))
                if len(self.bounds):
                    epochs.append(np.searchsorted(self.bounds, packets["TSTAMP"], side="right").astype(np.int32))
                if kind == CLOCK:
                    states.append(known_states(packets["MSTATE"]))
                    ticks.append(packets["NTICK"].copy())
        codes = self._codes(asked, np.concatenate(epochs))
        return _Read(codes, np.concatenate(states), np.concatenate(ticks), counts)

    def _codes(self, asked: Sequence[Numbers], epochs: I4) -> Numbers:
        """See ``_Read``, by FRINFO, in pieces. Counts the packets whose stack is not there."""
        stacks, n_epochs, n_lost = self.experiment.stacks, len(self.bounds) + 1, 0
        narrow = np.int32 if (len(stacks) + 1) * n_epochs < 1 << 31 else np.int64
        codes: Numbers = np.zeros(sum(map(len, asked)), narrow)
        end = 0
        for uids in asked:
            row = stacks.index(uids)
            begin, end = end, end + len(uids)
            codes[begin:end] = (row + 1) * n_epochs
            self.n_missing_stacks += int((row < 0).sum())
            n_lost += int((uids[row < 0] != 0).sum())
        self.experiment.note_missing_stacks(n_lost)
        if n_epochs > 1:
            codes += epochs
        return codes

    @cached_property
    def _frames(self) -> _Frames:
        stacks, code = self.experiment.stacks, self._read.codes
        n_epochs = len(self.bounds) + 1
        first, rank = _first_appearance(code, (len(stacks) + 1) * n_epochs)
        rows, row_epochs = np.divmod(code[first].astype(np.int64), n_epochs)
        rows -= 1
        numbers, offsets = picked(stacks.numbers, stacks.offsets, rows)
        if n_epochs > 1:
            numbers = numbers * np.int64(n_epochs) + np.repeat(row_epochs, np.diff(offsets))
        first, codes = _first_appearance(numbers, len(stacks.distinct) * n_epochs)
        each, epochs = np.divmod(numbers[first], n_epochs)
        pcs = stacks.distinct[each]
        return _Frames(rank, rows, offsets, codes, pcs, epochs.astype(np.int64), self._space.locate(pcs, epochs))

    @cached_property
    def _instructions(self) -> I4:
        """The instruction of every frame; each (pc, epoch) is looked up once, in order of first appearance."""
        frames = self._frames
        found = list(map(self._look_up, frames.pcs.tolist(), frames.mapped.tolist()))
        return np.array(found, np.int32)[frames.codes]

    def _look_up(self, pc: int, index: int) -> int:
        if pc == _PC_LEAF_CHECK:
            return _NO_FRAME
        if index < 0:
            return self._code.instruction(UNKNOWN_FUNCTION, pc)
        mapped = self._mapped[index]
        inside = pc - mapped.vaddr
        if mapped.function >= 0:
            return self._code.instruction(mapped.function, inside)
        file_offset = inside + mapped.file_offset
        return self._code.at(self._objects[mapped.key].table.find(file_offset), file_offset)

    def _codes_in(self, objects: Set[Key]) -> Bool:
        is_in = np.array([mapped.key in objects and mapped.function < 0 for mapped in self._mapped] + [False], bool)
        return np.asarray(is_in[self._frames.mapped], bool)

    @cached_property
    def _file_offsets(self) -> I8:
        """The offset of every (pc, epoch) in its file; nonsense where there is none."""
        # Modulo 2**64: the vsyscall page lies at the end of the address space.
        shift = np.array([(m.file_offset - m.vaddr) % ADDRESS_END for m in self._mapped] + [0], np.uint64)
        return (self._frames.pcs + shift[self._frames.mapped]).astype(np.int64)

    def _finished(self, rows: I8, offsets: I8, instructions: I4, weights: I8) -> Resolved:
        """Without what is no frame, and with the marker of an incomplete stack as its root."""
        code, stacks = self._code, self.experiment.stacks
        offsets, instructions = self._without_non_frames(offsets, instructions)
        marker = np.where(stacks.truncated, code.truncated, np.where(stacks.failed, code.failed, _NO_FRAME))
        return Resolved(*_with_roots(offsets, instructions, np.append(marker, _NO_FRAME)[rows]), weights)

    def _without_non_frames(self, offsets: I8, instructions: I4) -> tuple[I8, I4]:
        """Drop markers of other machines, and a leaf in the PLT, which stands for its caller."""
        plt = np.array([self._code.functions[function].is_plt for function, _ in self._code.places], bool)
        drop = instructions < 0
        leaves = offsets[:-1][np.diff(offsets) > 0]
        drop[leaves] |= plt[instructions[leaves]]
        if not drop.any():
            return offsets, instructions
        kept = np.append(0, np.cumsum(~drop))
        return kept[offsets].astype(np.int64), instructions[~drop]

    def _address_space(self, load_object: LoadObjectOf) -> Iterable[Mapped]:
        """Segments of load objects (which exist from their first executable segment on) and dynamic functions."""
        for one in self.experiment.mappings:
            yield from self._of_segment(one, load_object) if isinstance(one, Segment) \
                else self._of_function(one, load_object)

    def _of_segment(self, segment: Segment, load_object: LoadObjectOf) -> Iterable[Mapped]:
        loaded = load_object(segment, self.experiment)
        if loaded is not None:
            key = key_of(segment, self.experiment)
            self._objects[key] = loaded
            yield Mapped(segment.start_ns, segment.end_ns, segment.vaddr, segment.size, segment.file_offset, key)

    def _of_function(self, dynamic: DynamicFunction, load_object: LoadObjectOf) -> Iterable[Mapped]:
        loaded = load_object(dynamic, self.experiment)
        assert loaded is not None
        for vaddr, size, name in _pieces(dynamic):
            text = None if dynamic.symbols else self.experiment.texts.get((vaddr, dynamic.start_ns))
            function = Function(name, name, loaded.name, vaddr, size, loaded.number, text=text)
            yield Mapped(dynamic.start_ns, dynamic.end_ns, vaddr, size, 0, key_of(dynamic, self.experiment),
                         self._code.function(function))


def _demangled(linkage: bytes) -> bytes:
    """The name that a programmer would write. C programs have no use for what else ``symbols`` does."""
    if not linkage.startswith((b"_Z", b"_R")):
        return linkage
    from collector.report.symbols import demangle

    return demangle(linkage)


def key_of(mapping: Segment | DynamicFunction, experiment: Experiment) -> Key:
    """What the load object of a mapping is known by."""
    if not isinstance(mapping, Segment):
        return DYNAMIC_FUNCTIONS, NOT_IDENTIFIED
    return mapping.name, experiment.identity(mapping)


def known_states(states: Numbers) -> Numbers:
    """States as columns; what is none that is known, as STATE_OTHER."""
    return np.where((states < 0) | (states >= STATE_OTHER), STATE_OTHER, states).astype(np.int8)


def ticks_by(group: Numbers, states: Numbers, ticks: Numbers, n_groups: int) -> I8:
    """Ticks per group and state (n_groups, states) of packets, each in the group given; below 0: in none."""
    sums = np.zeros((n_groups + 1) * N_STATE_COLUMNS, np.int64)
    for begin in range(0, len(group), _AT_ONCE):
        some = slice(begin, begin + _AT_ONCE)
        code = group[some] * np.int64(N_STATE_COLUMNS)
        code[code < 0] = n_groups * N_STATE_COLUMNS
        np.add.at(sums, code + states[some], ticks[some].astype(np.int64))
    return sums.reshape(-1, N_STATE_COLUMNS)[:n_groups]


def _first_appearance(code: npt.NDArray[Any], n_codes: int) -> tuple[I8, I4]:
    """For codes below ``n_codes``: where each distinct one first occurs, in that order; and each one's rank there."""
    if n_codes > _CODES_MAX:  # no table of all that there could be
        distinct, code = np.unique(code, return_inverse=True)
        n_codes = len(distinct)
    first, rank = np.full(n_codes, len(code), np.int64), np.full(n_codes, -1, np.int32)
    for end in range(len(code), 0, -_AT_ONCE):
        some = code[max(end - _AT_ONCE, 0):end]
        first[some[::-1]] = np.arange(end - 1, end - 1 - len(some), -1)
    found = np.flatnonzero(first < len(code))
    found = found[np.argsort(first[found])]
    rank[found] = np.arange(len(found))
    return first[found], rank[code]


def _with_roots(offsets: I8, objects: I4, roots: I8) -> tuple[I8, I4]:
    """Every stack with one more frame toward the root; -1: none."""
    more = roots >= 0
    if not more.any():
        return offsets, objects
    objects = np.insert(objects, offsets[1:][more], roots[more])
    return offsets + np.concatenate([[0], np.cumsum(more)]), objects


def _pieces(dynamic: DynamicFunction) -> Iterable[tuple[int, int, bytes]]:
    """The symbols of a function without a file and the holes between them; without symbols, itself."""
    if not dynamic.symbols:
        yield dynamic.vaddr, dynamic.size, dynamic.name
        return
    end = dynamic.vaddr
    for vaddr, size, name in sorted(dynamic.symbols):
        if end < vaddr:
            yield end, vaddr - end, static_name(end, dynamic.name)
        yield vaddr, size, name
        end = vaddr + size
    if end < dynamic.vaddr + dynamic.size:
        yield end, dynamic.vaddr + dynamic.size - end, static_name(end, dynamic.name)
