"""From experiments to neutral tables: packets and stacks in, weighted stacks of instructions and functions out.

    packets (THRID, TSTAMP, FRINFO, MSTATE, NTICK)      one million; everything here is numpy over whole columns
        -> distinct (stack, epoch)                      thousands, in order of first appearance
        -> distinct (pc, epoch)                         thousands; the only Python loop: function and offset of each
        -> Weighted over instructions, over functions   see ``profile``

An *epoch* is a time in which the address space does not contradict itself: it ends when a segment is unmapped or
when a segment takes the place of another. Most experiments have one. A pc of a segment that is mapped only later
belongs to it nevertheless: the map is written by polling, samples are exact.

Order matters only because the names of holes do (see ``functions``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from collector.elf import LoadObject, open_object
from collector.errors import ElfError
from collector.report.functions import Function, FunctionTable, SymbolTable, symbol_table
from collector.report.metrics import METRICS_BY_NUMSTATES, N_STATE_COLUMNS, STATE_OTHER, Metric
from collector.report.profile import I8, Weighted, merge_equal
from collector.report.symbols import demangle

if TYPE_CHECKING:
    from collector.experiment.reader import DynamicFunction, Experiment

U8 = npt.NDArray[np.uint64]

MODES_TEXT = 5
_PC_LEAF_CHECK = 0xFFFF_FFFF_FFFF_FFFF
_END_OF_TIME = np.iinfo(np.int64).max

TOTAL_FUNCTION, UNKNOWN_FUNCTION, TRUNCATED_FUNCTION, FAILED_FUNCTION = range(4)
_SPECIAL = (
    Function(b"<Total>", b"", b"<Total>", object_number=1, has_offsets=False),
    Function(b"<Unknown>", b"<Unknown>", b"<Unknown>"),
    Function(b"<Truncated-stack>", b"<Truncated-stack>", b"<Total>", object_number=1, has_offsets=False),
    Function(b"<Stack-unwind-failed>", b"<Stack-unwind-failed>", b"<Total>", object_number=1, has_offsets=False),
)
_FIRST_OBJECT_NUMBER = 2


@dataclass(frozen=True)
class Mapped:
    """One piece of an address space: a load object's segment or a function without a file."""

    start_ns: int
    end_ns: int
    vaddr: int
    size: int
    file_offset: int
    path: bytes
    function: int = -1


@dataclass
class LoadedObject:
    """A load object of the experiments; its file is opened when a pc falls into it."""

    path: bytes
    number: int
    mapped_size: int
    file: Path | None
    _table: FunctionTable | None = field(default=None, repr=False)

    @property
    def table(self) -> FunctionTable:
        """Its functions; those of a file that cannot be read are one hole."""
        if self._table is None:
            self._table = FunctionTable(self._symbols(), self.path, self.number, demangle)
        return self._table

    def _symbols(self) -> SymbolTable:
        if self.file is not None:
            try:
                with open_object(str(self.file)) as elf:
                    return symbol_table(elf, self.mapped_size, _debug_object(elf, self.path))
            except ElfError:
                pass
        return SymbolTable.empty(self.mapped_size)


class DataSet:
    """Some experiments as one: all their stacks with weights in microseconds per state, and what the pcs are.

    Nothing is read before it is asked for.
    """

    def __init__(self, experiments: Sequence[Experiment]) -> None:
        self.experiments = list(experiments)
        self.objects: dict[bytes, LoadedObject] = {}
        self._code = _Code()
        self._parts = [_Part(self._code, self._load_object, experiment) for experiment in self.experiments]

    @cached_property
    def metrics(self) -> tuple[Metric, ...]:
        """The metrics that the experiments have data for."""
        codes = {experiment.log.numstates for experiment in self.experiments}
        for code in (10, 2, 1, 3):
            if code in codes:
                return METRICS_BY_NUMSTATES[code]
        return ()

    @property
    def functions(self) -> list[Function]:
        """All functions that occur, by id; the first ones are the special ones."""
        return self._looked_up.functions

    @property
    def places(self) -> list[tuple[int, int]]:
        """For each instruction its function's id and its offset in it."""
        return self._looked_up.places

    @property
    def _looked_up(self) -> _Code:
        assert len(self.instructions) >= 0
        return self._code

    @property
    def n_missing_stacks(self) -> int:
        """Packets whose stack is not in the experiment; they count for the total alone."""
        return sum(part.n_missing_stacks for part in self._parts)

    @cached_property
    def instructions(self) -> Weighted:
        """All stacks, as instructions."""
        parts = [part.stacks() for part in self._parts]
        depths = np.concatenate([np.diff(offsets) for offsets, _, _ in parts] or [np.zeros(0, np.int64)])
        objects = np.concatenate([objects for _, objects, _ in parts] or [np.zeros(0, np.int64)])
        weights = np.concatenate([w for _, _, w in parts] or [np.zeros((0, N_STATE_COLUMNS), np.int64)])
        offsets = np.concatenate([[0], np.cumsum(depths)]).astype(np.int64)
        stacks = Weighted(offsets, objects.astype(np.int64), weights, len(self._code.places))
        return _without_weightless(stacks, self.metrics)

    @cached_property
    def stacks(self) -> Weighted:
        """All stacks, as functions (ids into ``functions``)."""
        return self.regrouped(np.array([function for function, _ in self.places], np.int64), len(self.functions))

    def regrouped(self, group: I8, n_groups: int) -> Weighted:
        """All stacks with each instruction replaced by ``group[instruction]``."""
        at = self.instructions
        return merge_equal(Weighted(at.offsets, group[at.objects], at.weights, n_groups))

    def weights_by(self, keys: Callable[[Experiment, npt.NDArray[Any]], I8], n_keys: int) -> I8:
        """The packets' weights (n_keys, states) by a key per packet."""
        sums = np.zeros((n_keys, N_STATE_COLUMNS), np.int64)
        for part in self._parts:
            sums += _weights(keys(part.experiment, part.packets), part.packets, part.experiment, n_keys)
        return sums

    def _load_object(self, path: bytes, text_size: int, experiment: Experiment) -> LoadedObject | None:
        """The load object mapped as ``path``; it comes into being with its first text (``text_size`` above 0)."""
        if path not in self.objects and text_size:
            number = _FIRST_OBJECT_NUMBER + len(self.objects)
            self.objects[path] = LoadedObject(path, number, text_size, experiment.find_file(path))
        return self.objects.get(path)


def load(experiments: Sequence[Experiment]) -> DataSet:
    """All experiments given, with their descendants, as one data set; founders first, each followed by its own."""
    return DataSet([one for experiment in experiments for one in (experiment, *descendants(experiment))])


def descendants(experiment: Experiment) -> list[Experiment]:
    """The descendants that count as one with their founder: not MPI ranks, and none that never had a stack."""
    return [child for child in experiment.children
            if child.lineage.startswith("_") and not _is_empty(child.path / "data.frameinfo")]


def _is_empty(path: Path) -> bool:
    try:
        return path.stat().st_size == 0
    except OSError:
        return False


class _Code:
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


class _Part:
    """One experiment of a data set."""

    def __init__(self, code: _Code, load_object: Callable[[bytes, int, Experiment], LoadedObject | None],
                 experiment: Experiment) -> None:
        self.experiment = experiment
        self.n_missing_stacks = 0
        self._code = code
        self._objects: dict[bytes, LoadedObject] = {}
        self._load_object = load_object
        self._mapped = list(self._address_space())

    @property
    def packets(self) -> npt.NDArray[Any]:
        """The clock packets."""
        return self.experiment.packets()

    def stacks(self) -> tuple[I8, I8, I8]:
        """Offsets, instructions and weights of the distinct stacks, in order of first appearance."""
        packets, stacks = self.packets, self.experiment.stacks
        row = stacks.index(packets["FRINFO"])
        self.n_missing_stacks = int((row < 0).sum())
        bounds = _epoch_bounds(self._mapped)
        epoch = np.searchsorted(bounds, packets["TSTAMP"], side="right")
        n_epochs = len(bounds) + 1
        code = (row + 1) * n_epochs + epoch
        first, rank = _first_appearance(code, (len(stacks) + 1) * n_epochs)
        weights = _weights(rank[code], packets, self.experiment, len(first))
        rows, epochs = row[first], epoch[first]
        at, offsets = _frames_of(rows, stacks.offsets)
        objects = self._instructions_of(stacks.pcs[at], np.repeat(epochs, np.diff(offsets)), bounds)
        offsets, objects = self._without_non_frames(offsets, objects)
        marker = np.where(stacks.truncated, self._code.truncated, np.where(stacks.failed, self._code.failed, -1))
        return *_with_roots(offsets, objects, np.append(marker, -1)[rows]), weights

    def _instructions_of(self, pcs: U8, epochs: I8, bounds: I8) -> I8:
        """The instruction of every frame; each distinct (pc, epoch) is looked up once, in order of appearance."""
        distinct, where = np.unique(pcs, return_inverse=True)
        code = where.astype(np.int64) * (len(bounds) + 1) + epochs
        keys, first, inverse = np.unique(code, return_index=True, return_inverse=True)
        found = np.zeros(len(keys), np.int64)
        for epoch in np.unique(epochs[first]).tolist():
            here = np.flatnonzero(epochs[first] == epoch)
            time_ns = int(bounds[epoch - 1]) if epoch else -_END_OF_TIME
            found[here] = _locate(self._mapped, distinct[where[first[here]]], time_ns)
        look_up = self._look_up
        numbers = np.zeros(len(keys), np.int64)
        for key in np.argsort(first, kind="stable").tolist():
            numbers[key] = look_up(int(pcs[first[key]]), int(found[key]))
        return numbers[inverse] if len(keys) else np.zeros(0, np.int64)

    def _look_up(self, pc: int, index: int) -> int:
        code = self._code
        if pc == _PC_LEAF_CHECK:
            return -1
        if index < 0:
            return code.instruction(UNKNOWN_FUNCTION, pc)
        mapped = self._mapped[index]
        inside = pc - mapped.vaddr
        if mapped.function >= 0:
            return code.instruction(mapped.function, inside)
        function = self._objects[mapped.path].table.find(inside + mapped.file_offset)
        return code.instruction(code.function(function), inside + mapped.file_offset - function.offset)

    def _without_non_frames(self, offsets: I8, objects: I8) -> tuple[I8, I8]:
        """Drop what is no frame: markers of other machines, and a leaf in the PLT, which stands for its caller."""
        plt = np.array([self._code.functions[function].is_plt for function, _ in self._code.places], bool)
        drop = objects < 0
        leaves = offsets[:-1][np.diff(offsets) > 0]
        drop[leaves] |= plt[objects[leaves]]
        kept = np.concatenate([[0], np.cumsum(~drop)])
        return kept[offsets].astype(np.int64), objects[~drop]

    def _address_space(self) -> Iterable[Mapped]:
        """Segments of load objects (an object exists from its first executable segment on) and dynamic functions."""
        experiment = self.experiment
        for segment in experiment.segments:
            loaded = self._load_object(segment.name, segment.size if segment.modes == MODES_TEXT else 0, experiment)
            if loaded is not None:
                self._objects[segment.name] = loaded
                yield Mapped(segment.start_ns, segment.end_ns, segment.vaddr, segment.size, segment.file_offset,
                             segment.name)
        for dynamic in experiment.functions:
            for vaddr, size, name in _pieces(dynamic):
                shown = demangle(name) if name.startswith(b"_") else name
                function = self._code.function(Function(shown, name, b"<DYNAMIC_FUNCTIONS>", vaddr, size))
                yield Mapped(dynamic.start_ns, dynamic.end_ns, vaddr, size, 0, b"", function)


def _pieces(dynamic: DynamicFunction) -> Iterable[tuple[int, int, bytes]]:
    """The symbols of a function without a file and the holes between them; without symbols, itself."""
    if not dynamic.symbols:
        yield dynamic.vaddr, dynamic.size, dynamic.name
        return
    end = dynamic.vaddr
    for vaddr, size, name in sorted(dynamic.symbols):
        if end < vaddr:
            yield end, vaddr - end, b"<static>@0x%x (%s)" % (end, dynamic.name)
        yield vaddr, size, name
        end = vaddr + size
    if end < dynamic.vaddr + dynamic.size:
        yield end, dynamic.vaddr + dynamic.size - end, b"<static>@0x%x (%s)" % (end, dynamic.name)


def _with_roots(offsets: I8, objects: I8, roots: I8) -> tuple[I8, I8]:
    """Every stack with one more frame toward the root; -1: none."""
    more = roots >= 0
    at = offsets[1:][more]
    objects = np.insert(objects, at, roots[more])
    return offsets + np.concatenate([[0], np.cumsum(more)]), objects


def _first_appearance(code: I8, n_codes: int) -> tuple[I8, I8]:
    """For codes below ``n_codes``: index of each distinct code's first occurrence, in that order, and code -> its rank."""
    first = np.full(n_codes, len(code), np.int64)
    first[code[::-1]] = np.arange(len(code) - 1, -1, -1)
    found = np.flatnonzero(first < len(code))
    found = found[np.argsort(first[found])]
    rank = np.full(n_codes, -1, np.int64)
    rank[found] = np.arange(len(found))
    return first[found], rank


def _weights(group: I8, packets: npt.NDArray[Any], experiment: Experiment, n_groups: int) -> I8:
    """Microseconds per group and state (n_groups, states); groups below 0 are left out."""
    state = packets["MSTATE"].astype(np.int64)
    state[(state < 0) | (state >= STATE_OTHER)] = STATE_OTHER
    ticks = np.bincount((group * N_STATE_COLUMNS + state)[group >= 0], packets["NTICK"][group >= 0],
                        n_groups * N_STATE_COLUMNS)
    # Ticks are added as doubles: exact below 2**53.
    table = ticks.astype(np.int64).reshape(n_groups, N_STATE_COLUMNS)
    return np.asarray(table * experiment.log.interval_us, np.int64)


def _frames_of(rows: I8, offsets: I8) -> tuple[I8, I8]:
    """Positions of all frames of the given stacks, one stack after the other, and where each begins; row -1: none."""
    depths = np.where(rows >= 0, np.diff(offsets)[rows] if len(offsets) > 1 else 0, 0)
    begins = np.concatenate([[0], np.cumsum(depths)]).astype(np.int64)
    source = np.repeat(np.where(rows >= 0, offsets[rows], 0) - begins[:-1], depths) + np.arange(begins[-1])
    return source.astype(np.int64), begins


def _epoch_bounds(mapped: Sequence[Mapped]) -> I8:
    """Times at which an address may change its meaning: something ends, or begins over something else."""
    bounds = {m.end_ns for m in mapped if m.end_ns < _END_OF_TIME}
    by_address = sorted(mapped, key=lambda m: m.vaddr)
    end, latest = 0, 0
    for m in by_address:
        if m.vaddr < end:
            bounds |= {m.start_ns, latest}
        if m.vaddr + m.size > end:
            end, latest = m.vaddr + m.size, m.start_ns
    return np.array(sorted(bounds), np.int64)


def _locate(mapped: Sequence[Mapped], pcs: U8, time_ns: int) -> I8:
    """Index into ``mapped`` for each pc at a time; -1 where nothing is.

    What is mapped and begins closest below wins; what is mapped later stands in where nothing is mapped yet.
    """
    now = {m.vaddr: i for i, m in sorted(enumerate(mapped), key=lambda pair: pair[1].start_ns)
           if m.start_ns <= time_ns < m.end_ns}
    found = _containing(mapped, sorted(now.items()), pcs)
    later = sorted((i for i, m in enumerate(mapped) if time_ns < m.end_ns), key=lambda i: mapped[i].end_ns)
    missing = np.flatnonzero(found < 0)
    for i in later:
        if not len(missing):
            break
        inside = pcs[missing] - np.uint64(mapped[i].vaddr) < np.uint64(mapped[i].size)
        found[missing[inside]] = i
        missing = missing[~inside]
    return found


def _containing(mapped: Sequence[Mapped], places: Sequence[tuple[int, int]], pcs: U8) -> I8:
    if not places:
        return np.full(len(pcs), -1, np.int64)
    starts = np.array([vaddr for vaddr, _ in places], np.uint64)
    indices = np.array([index for _, index in places], np.int64)
    sizes = np.array([mapped[index].size for _, index in places], np.uint64)
    at = np.searchsorted(starts, pcs, side="right") - 1
    inside = (at >= 0) & (pcs - starts[at] < sizes[at])
    return np.where(inside, indices[at], -1).astype(np.int64)


def _without_weightless(stacks: Weighted, metrics: Sequence[Metric]) -> Weighted:
    """Without the stacks that no metric counts."""
    states = sorted({state for metric in metrics for state in metric.states})
    keep = np.flatnonzero(stacks.weights[:, states].any(axis=1))
    if len(keep) == len(stacks):
        return stacks
    source, offsets = _frames_of(keep, stacks.offsets)
    return Weighted(offsets, stacks.objects[source], stacks.weights[keep], stacks.n_objects)


def _debug_object(elf: LoadObject, path: bytes) -> LoadObject | None:
    return None
