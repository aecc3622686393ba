"""What other tools get: every stack once, every thread by number, sums for each of both, and packets in blocks.

    packets  ->  groups    (stack, thread) -> weights in all columns      thousands; what profiles are made of
             ->  blocks    time, thread, CPU, state, stack, worth         all of them, some at a time: timelines

Stacks are runs of instructions, leaf first, interned over all experiments; none is empty: packets without a stack have
the one frame ``[no stack]``, and what does not reach the root has ``[truncated]`` or ``[unwind failed]`` there. Figures
are those of ``build.DataSet``, so that they are the same everywhere. Of each packet some narrow columns are kept, as
there; everything else goes with the number of stacks.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from collector.clock import NS_PER_S, NS_PER_US
from collector.experiment.identity import Identity
from collector.experiment.log import COMMENT_TEXT
from collector.report.address_space import ADDRESS_END
from collector.report.build import DataSet, Experiment, Packets
from collector.report.documents import Unit
from collector.report.functions import Function
from collector.report.kinds import CLOCK
from collector.report.lines import levels_by_instruction, spread
from collector.report.metrics import STATE_KERNEL_CPU, STATE_LINUX_CPU, STATE_OTHER, Metric
from collector.report.profile import I4, I8
from collector.report.resolve import FAILED_FUNCTION, MODES_TEXT, TRUNCATED_FUNCTION, LoadedObject, Part

Bool = npt.NDArray[np.bool_]
U8 = npt.NDArray[np.uint64]
Numbers = npt.NDArray[Any]

NO_STACK, TRUNCATED, UNWIND_FAILED = b"[no stack]", b"[truncated]", b"[unwind failed]"
FIRST_WAITING_STATE = 3  # below it a thread is on a CPU
LAST_MICROSTATE = 9
_AT_ONCE = 1 << 16
# Columns that belong to sums alone: what collectors without microstates write, and what no collector should.
_UNNAMED = {STATE_LINUX_CPU: ("cpu", "CPU Time"), STATE_KERNEL_CPU: ("kcpu", "Kernel CPU Time"),
            STATE_OTHER: ("other", "Time in unknown states")}
_TOLD = {"cerror", "cwarn"}
_REQUESTS = {"synctrace": "SRQST", "iotrace": "IORQST"}


@dataclass(frozen=True)
class Process:
    """A process as recorded in one experiment. Times are absolute nanoseconds of the recording's clock."""

    experiment: Experiment
    pid: int
    name: bytes
    lineage: str
    start_ns: int
    start_unix_ns: int


@dataclass(frozen=True)
class Thread:
    """A thread; ``process`` is its place among the processes, ``number`` what reports call it."""

    process: int
    tid: int
    number: int
    name: bytes


@dataclass(frozen=True)
class Quantity:
    """Something that packets count for, as the sum of ``columns``; ``unit`` is ``us``, ``bytes`` or ``count``."""

    name: str
    title: str
    unit: str
    columns: tuple[int, ...]


@dataclass(frozen=True)
class Groups:
    """For each stack and thread that occur together (n), the sum of all columns (n, columns)."""

    stack: I8
    thread: I8
    weights: I8

    def of(self, quantity: Quantity) -> I8:
        """What each counts for (n)."""
        return np.asarray(self.weights[:, list(quantity.columns)].sum(axis=1), np.int64)

    def chosen(self, which: I8) -> Groups:
        """Some of them."""
        return Groups(self.stack[which], self.thread[which], self.weights[which])


@dataclass(frozen=True)
class Block:
    """Some packets of one kind and process, in file order; all arrays (n).

    ``time_ns`` absolute, at the end of what is told; ``duration_ns`` what was recorded to have lasted, else what the
    ticks stand for. ``state`` and ``time_us`` of clock profiling; of other kinds ``values`` (n, k) from column
    ``first`` on, and ``state`` is -1.
    """

    process: int
    kind: str
    time_ns: I8
    duration_ns: I8
    thread: I4
    cpu: I8
    stack: I4
    state: npt.NDArray[np.int8]
    time_us: I8
    first: int
    values: I8

    def __len__(self) -> int:
        return len(self.time_ns)

    def chosen(self, which: Bool | slice) -> Block:
        """Some of the packets."""
        some: dict[str, Any] = {name: value[which] for name, value in vars(self).items()
                                if isinstance(value, np.ndarray)}
        return replace(self, **some)


@dataclass(frozen=True)
class Stacks:
    """Distinct stacks (n): the frames of i are ``frames[offsets[i]:offsets[i + 1]]``, leaf first."""

    offsets: I8
    frames: I4

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def depths(self) -> I8:
        """Frames of each (n)."""
        return np.diff(self.offsets)

    def lists(self) -> Iterator[list[int]]:
        """One by one."""
        for begin, end in pairwise(self.offsets.tolist()):
            yield self.frames[begin:end].tolist()

    def renamed(self, frame_of: npt.NDArray[np.integer]) -> tuple[Stacks, I8]:
        """With each frame replaced by ``frame_of[frame]``, each once; and which of these every stack is (n)."""
        known: dict[bytes, int] = {}
        owner = _interned(self.offsets, frame_of[self.frames].astype(np.int32), known)
        return _stacks_of(known), owner


@dataclass(frozen=True)
class Trie:
    """Stacks as paths from the root: ``parent`` (nodes), -1 above the first; ``frame`` (nodes); a parent comes before
    its children. ``leaf`` (stacks): the node at which each ends."""

    parent: I8
    frame: I8
    leaf: I8


def trie(stacks: Stacks) -> Trie:
    """What stacks have in common at their roots, once. The loop is over depths."""
    leaf = np.full(len(stacks), -1, np.int64)
    parents, frames = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    live, n_nodes, level, n_frames = np.arange(len(stacks)), 0, 0, int(stacks.frames.max(initial=0)) + 1
    while len(live):
        here = stacks.frames[stacks.offsets[live + 1] - 1 - level].astype(np.int64)
        keys, inverse = np.unique((leaf[live] + 1) * n_frames + here, return_inverse=True)
        parents.append(keys // n_frames - 1)
        frames.append(keys % n_frames)
        leaf[live] = n_nodes + inverse
        n_nodes, level = n_nodes + len(keys), level + 1
        live = live[stacks.depths[live] > level]
    return Trie(np.concatenate(parents), np.concatenate(frames), leaf)


@dataclass(frozen=True)
class Line:
    """A place in a source file; ``line`` 0: unknown."""

    path: str = ""
    line: int = 0


class Samples:
    """What is to be exported of a data set. ``with_lines``: places in source files are looked up, too;
    ``with_inlines``: inlined functions are frames of their own.

    Frames are the instructions, then ``[no stack]``, then one for each function that is inlined at an instruction.
    ``levels``: of each instruction its frames, innermost first; the last is its own. ``inline_depth`` (frames): how
    deep one is inlined, 0: not at all.
    """

    def __init__(self, data: DataSet, with_lines: bool = True, with_inlines: bool = False) -> None:
        self.data = data
        self._with_lines = with_lines
        self._parts: Sequence[Part] = data.parts
        self.processes = [_process(experiment) for experiment in data.experiments]
        places = list(data.places)
        functions = data.functions
        self.functions: list[Function] = [*functions, Function(NO_STACK, b"", b"<Unknown>", has_offsets=False)]
        # Of each frame its function, and its offset in it.
        self.function_of = np.array([number for number, _ in places] + [len(functions)], np.int32)
        self._offset_of = np.array([offset % ADDRESS_END for _, offset in places] + [0], np.uint64)
        self.n_places = len(places) + 1  # frames that are not inlined
        self.levels: list[list[int]] = [[place] for place in range(self.n_places)]
        self.inline_depth = np.zeros(self.n_places, np.int32)
        self._inlined_lines: list[Line] = []
        if with_inlines:
            self._add_inlined()

    def _add_inlined(self) -> None:
        """Frames and functions of what is inlined, each function once; and what debug information calls a hole in the
        symbol table."""
        made: dict[tuple[bytes, bytes, bool], int] = {}
        function_of, depths = self.function_of.tolist(), [0] * self.n_places

        def number_of(function: Function, is_inlined: bool) -> int:
            number = made.setdefault((function.name, function.object_name, is_inlined), len(self.functions))
            if number == len(self.functions):
                self.functions.append(function)
            return number

        for place, inside in enumerate(levels_by_instruction(self.data, True)):
            outermost = inside[-1][0]
            if outermost is not self.functions[function_of[place]]:
                function_of[place] = number_of(outermost, False)
            for depth, (function, line) in enumerate(reversed(inside[:-1]), 1):
                self.levels[place].insert(0, len(function_of))
                function_of.append(number_of(function, True))
                depths.append(depth)
                self._inlined_lines.append(Line() if line is None else Line(line.path, line.line))
        of_place = np.repeat(np.arange(self.n_places), [len(one) - 1 for one in self.levels])
        self._offset_of = np.append(self._offset_of, self._offset_of[of_place])
        self.function_of, self.inline_depth = np.array(function_of, np.int32), np.array(depths, np.int32)

    @cached_property
    def inlined_functions(self) -> set[int]:
        """The functions of frames that are inlined; the same function elsewhere has a number of its own."""
        return set(self.function_of[self.inline_depth > 0].tolist())

    # -- what there is

    @cached_property
    def names(self) -> list[bytes]:
        """What each function is called."""
        names = [function.name for function in self.functions]
        names[TRUNCATED_FUNCTION], names[FAILED_FUNCTION] = TRUNCATED, UNWIND_FAILED
        return names

    @cached_property
    def quantities(self) -> list[Quantity]:
        """What cannot be divided further, in the order of states and metrics: states, then what else is recorded."""
        metrics = self.data.metrics
        named = {metric.states[0]: metric for metric in metrics if len(metric.states) == 1}
        columns = sorted({column for metric in metrics for column in metric.states})
        found = []
        for column in columns:
            if column in named:
                found.append(_quantity(named[column]))
            elif self._totals[column] or len(columns) == 1:
                found.append(Quantity(*_UNNAMED.get(column, (f"state{column}", f"State {column}")), "us", (column,)))
        return found

    @cached_property
    def sums(self) -> list[Quantity]:
        """What adds up several of ``quantities``: all time, CPU time."""
        return [_quantity(metric) for metric in self.data.metrics if len(metric.states) > 1]

    @cached_property
    def threads(self) -> list[Thread]:
        """The threads of all processes, in order."""
        return [Thread(process, tid, number, one.experiment.log.threads.get(tid, b""))
                for process, one in enumerate(self.processes)
                for number, tid in enumerate(one.experiment.threads, 1)]

    def thread_title(self, thread: Thread) -> bytes:
        """``prog (4711), thread 2, worker``."""
        process = self.processes[thread.process]
        title = b"%s (%d), thread %d" % (process.name, process.pid, thread.number)
        return b"%s, %s" % (title, thread.name) if thread.name and thread.name != process.name else title

    @property
    def objects(self) -> list[LoadedObject]:
        """The load objects, the program first; functions have their ``number`` as ``object_number``."""
        return list(self.data.objects.values())

    def build_id(self, loaded: LoadedObject) -> bytes:
        """The build id that was recorded of a load object, or, if none was, of the file that is taken for it without
        a doubt; else empty."""
        key = next((key for key, one in self.data.objects.items() if one is loaded), None)
        if key is None or (key not in self._recorded and loaded.found.problem):
            return b""
        return key[1].build_id or b""

    @cached_property
    def _recorded(self) -> set[tuple[bytes, Identity]]:
        return {(segment.name, segment.identity) for process in self.processes
                for segment in process.experiment.segments}

    @cached_property
    def lines(self) -> list[Line]:
        """For each frame its place in the source of its function, as far as debug information tells and is asked: where
        what is inlined is called."""
        if not self._with_lines:
            return [Line()] * len(self.function_of)
        frames = [levels[-1][1] for levels in levels_by_instruction(self.data, True)]
        return [Line(frame.path, frame.line) if frame is not None else Line() for frame in frames] + [Line()] \
            + self._inlined_lines

    @cached_property
    def addresses(self) -> U8:
        """For each frame its offset in the file of its load object, or its address where there is none."""
        starts = np.array([f.offset % ADDRESS_END if f.has_offsets else 0 for f in self.functions], np.uint64)
        return starts[self.function_of] + self._offset_of

    @property
    def notes(self) -> list[str]:
        """What the recording said of itself that a reader of figures should know: loss, cut ends, damage."""
        return list(dict.fromkeys(note for _, note in self._notes))

    @cached_property
    def notes_by_process(self) -> list[list[str]]:
        """The same for each process."""
        found: list[list[str]] = [[] for _ in self.processes]
        for number, note in self._notes:
            found[number].append(note)
        return found

    @cached_property
    def _notes(self) -> list[tuple[int, str]]:
        """Of each process what its log says, then what was found damaged; each once."""
        said = [(number, f"process {process.pid}: {message.text}") for number, process in enumerate(self.processes)
                for message in process.experiment.log.messages
                if message.kind in _TOLD or message.id == COMMENT_TEXT]
        found = [(number, problem) for number, process in enumerate(self.processes)
                 for problem in [*self._problems_of_job(process.experiment), *process.experiment.problems]]
        return list(dict.fromkeys([*said, *found]))

    def _problems_of_job(self, experiment: Experiment) -> list[str]:
        """What is wrong with the job that an experiment is a rank of, such as with other ranks."""
        return experiment.founder.problems if experiment.is_rank and experiment.founder is not None else []

    @cached_property
    def interval_us(self) -> int:
        """Of the clock; 0: none."""
        return max((process.experiment.log.interval_us for process in self.processes), default=0)

    @cached_property
    def start_ns(self) -> int:
        """The earliest start."""
        return min((process.start_ns for process in self.processes), default=0)

    @property
    def start_unix_ns(self) -> int:
        """The earliest start by the calendar, to the second."""
        return min((process.start_unix_ns for process in self.processes), default=0)

    @cached_property
    def end_ns(self) -> int:
        """The latest time of anything recorded."""
        return max([self.start_ns, *self._last_ns, *(process.experiment.log.end_ns for process in self.processes)])

    # -- stacks

    @property
    def stacks(self) -> Stacks:
        """All stacks as frames."""
        return self._interned[0]

    @cached_property
    def _interned(self) -> tuple[Stacks, list[I4]]:
        """All stacks; and for each experiment which of them its own distinct ones are."""
        known: dict[bytes, int] = {}
        ids = [_interned(*self._with_no_stack(*spread(offsets, instructions, self.levels)), known).astype(np.int32)
               for offsets, instructions, _ in self.data.stacks_of_packets()]
        return _stacks_of(known), ids

    def _with_no_stack(self, offsets: I8, frames: npt.NDArray[np.integer]) -> tuple[I8, I4]:
        """Where there are no frames, the one that says so."""
        empty = np.diff(offsets) == 0
        filled = np.insert(frames, offsets[:-1][empty], self.n_places - 1)
        return offsets + np.append(0, np.cumsum(empty)), filled.astype(np.int32)

    @cached_property
    def function_stacks(self) -> tuple[Stacks, I8]:
        """The stacks as functions, each once; and which of these each of ``stacks`` is."""
        return self.stacks.renamed(self.function_of)

    # -- sums

    @cached_property
    def groups(self) -> Groups:
        """The sums of stacks and threads, ordered by stack; those that count for nothing are left out."""
        n_threads = max(len(self.threads), 1)
        codes = [np.unique(one) for number in range(len(self._parts)) for one in self._codes(number, n_threads)]
        every = np.unique(np.concatenate([np.zeros(0, np.int64), *codes]))
        placed = [np.concatenate([np.zeros(0, np.int32),
                                  *(np.searchsorted(every, one).astype(np.int32)
                                    for one in self._codes(number, n_threads))])
                  for number in range(len(self._parts))]
        weights = self.data.weights_of(placed, len(every))
        keep = weights[:, [column for one in self.quantities for column in one.columns]].any(axis=1)
        return Groups(every[keep] // n_threads, every[keep] % n_threads, weights[keep])

    def _codes(self, number: int, n_threads: int) -> Iterator[I8]:
        """Stack and thread of the packets of an experiment as one number, some packets at a time."""
        stacks, threads = self._parts[number].found.of_packet, self._thread_of_packet[number]
        for begin in range(0, len(stacks), _AT_ONCE):
            some = slice(begin, begin + _AT_ONCE)
            yield self._interned[1][number][stacks[some]].astype(np.int64) * n_threads + threads[some]

    @cached_property
    def _totals(self) -> I8:
        """The sum of each column over everything."""
        return np.asarray(self.data.instructions.weights.sum(axis=0), np.int64)

    @cached_property
    def _first_threads(self) -> list[int]:
        """For each process where its threads begin."""
        lengths = [len(process.experiment.threads) for process in self.processes]
        return [0, *np.cumsum(lengths).tolist()]

    @cached_property
    def _thread_of_packet(self) -> list[Numbers]:
        """For each experiment the thread of each packet, all kinds, in as few bytes as can be."""
        return self._narrow[0]

    @property
    def _last_ns(self) -> list[int]:
        return self._narrow[1]

    @cached_property
    def _narrow(self) -> tuple[list[Numbers], list[int]]:
        threads, last_ns, kind_of_number = [], [], np.min_scalar_type(len(self.threads))
        for number, process in enumerate(self.processes):
            experiment, mine, latest = process.experiment, [np.zeros(0, kind_of_number)], 0
            for kind in experiment.kinds:
                for packets in experiment.packets_in_pieces(kind):
                    mine.append(self._threads_of(number, packets).astype(kind_of_number))
                    latest = max(latest, int(packets["TSTAMP"].max(initial=0)))
            threads.append(np.concatenate(mine))
            last_ns.append(latest)
        return threads, last_ns

    def _threads_of(self, number: int, packets: Packets) -> I8:
        known = np.array(self.processes[number].experiment.threads, np.int64)
        order = np.argsort(known)
        places = order[np.searchsorted(known[order], packets["THRID"].astype(np.int64))] if len(packets) else order[:0]
        return places + self._first_threads[number]

    # -- packets

    def blocks(self) -> Iterator[Block]:
        """All packets that are wanted, some at a time."""
        for number, process in enumerate(self.processes):
            begin = 0
            for kind in process.experiment.kinds:
                first, values = 0, np.zeros((0, 0), np.int64)
                if kind != CLOCK:
                    first, values = self.data.columns.values(process.experiment, kind)
                for pieces, packets in enumerate(_in_bites(process.experiment, kind)):
                    block = self._block(number, kind, packets, begin)
                    if kind != CLOCK:
                        mine = slice(pieces * _AT_ONCE, pieces * _AT_ONCE + len(packets))
                        block = replace(block, first=first, values=values[mine])
                    begin += len(packets)
                    mask = self.data.mask(number)
                    yield block if mask is None else block.chosen(mask[begin - len(packets):begin])

    def _block(self, number: int, kind: str, packets: Packets, begin: int) -> Block:
        some, n = slice(begin, begin + len(packets)), len(packets)
        experiment = self.processes[number].experiment
        times_ns = packets["TSTAMP"].astype(np.int64)
        state, time_us, duration_ns = np.full(n, -1, np.int8), np.zeros(n, np.int64), np.zeros(n, np.int64)
        if kind == CLOCK:
            known = packets["MSTATE"].astype(np.int64)
            state = np.where((known < 0) | (known >= STATE_OTHER), STATE_OTHER, known).astype(np.int8)
            time_us = packets["NTICK"].astype(np.int64) * experiment.log.interval_us
            duration_ns = time_us * NS_PER_US
        elif _REQUESTS.get(kind, "") in (packets.dtype.names or ()):
            duration_ns = times_ns - packets[_REQUESTS[kind]].astype(np.int64)
        return Block(number, kind, times_ns, duration_ns, self._thread_of_packet[number][some].astype(np.int32),
                     packets["CPUID"].astype(np.int64),
                     self._interned[1][number][self._parts[number].found.of_packet[some]],
                     state, time_us, 0, np.zeros((n, 0), np.int64))


def _in_bites(experiment: Experiment, kind: str) -> Iterator[Packets]:
    """The packets of a kind, no more than ``_AT_ONCE`` at a time; of kinds besides clock profiling exactly so many."""
    for packets in experiment.packets_in_pieces(kind):
        for begin in range(0, len(packets), _AT_ONCE):
            yield packets[begin:begin + _AT_ONCE]


def _quantity(metric: Metric) -> Quantity:
    unit = {Unit.TIME: "us", Unit.BYTES: "bytes"}.get(metric.unit, "count")
    return Quantity(metric.command, metric.title, unit, metric.states)


def _process(experiment: Experiment) -> Process:
    log = experiment.log
    program = next((os.path.basename(one.name) for one in experiment.segments if one.modes == MODES_TEXT), b"")
    called = os.path.basename(log.arguments.split(b" ", 1)[0])
    return Process(experiment, log.pid, program or called or b"process", experiment.lineage, log.start_ns,
                   log.start_unix * NS_PER_S)


def _interned(offsets: I8, frames: I4, known: dict[bytes, int]) -> I8:
    """The number of each stack among those ``known``, to which new ones are added."""
    text = np.ascontiguousarray(frames, np.int32).tobytes()
    return np.array([known.setdefault(text[begin:end], len(known))
                     for begin, end in pairwise((offsets * 4).tolist())], np.int64)


def _stacks_of(known: dict[bytes, int]) -> Stacks:
    frames = np.frombuffer(b"".join(known), np.int32)
    return Stacks(np.append(0, np.cumsum([len(text) // 4 for text in known])).astype(np.int64), frames)

