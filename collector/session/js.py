"""Functions of JavaScript in stacks: before each frame of V8's code on the native stack those that it carries out.

``runtimes.v8`` has the theory. V8's code lies in memory without a file, and its builtins in the program's own; all keep
the frame pointer, so stacks are unwound without knowing more. Then what stands below the frame pointers is taken from
the stacks that were copied, and each distinct frame of a batch is told once.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from collector.arrays import among, indices
from collector.clock import NEVER_NS
from collector.errors import ElfError
from collector.events import Array, ClockSamples
from collector.linux import proc
from collector.processes.process import Epoch
from collector.processes.space import AddressSpace
from collector.runtimes import marks
from collector.runtimes.abi import V8_MARK
from collector.runtimes.code import Code, EachLine
from collector.runtimes.made_up import MadeUp
from collector.runtimes.marks import TORN, UNKNOWN, VERIFIED
from collector.session.merging import Managed, alike
from collector.session.objects import Objects, is_file, is_made
from collector.session.pace import SHORTEST_NS, Pace
from collector.session.placing import ByImage, Frames
from collector.unwind.memory import Memory

# What only programs of JavaScript need is imported when node is met: the target waits for every module here.
if TYPE_CHECKING:
    from collector.runtimes.code_v8 import Scope
    from collector.runtimes.functions_v8 import JsFunction
    from collector.runtimes.v8 import Machine, Told

NOT_KNOWN = b"<JavaScript function, not known>"
_LIBRARIES = (b"node", b"electron", b"nsolid")  # in names of files that may have V8 in them, beside the program
_TRIES = 50
_MASK = (1 << 64) - 1
_LINE = 2  # made-up addresses of a line: some readers take one off


class _Places(NamedTuple):
    """Where builtins are in their load object, and the interpreter among them; and where frames return that it goes on
    with."""

    builtins: tuple[int, int]
    interpreter: tuple[int, int]
    resumed: list[int]


class _Process:
    """A process that has V8 in it."""

    def __init__(self, machine: Machine, number: int, places: _Places, start_ns: int) -> None:
        """``places`` are those in the load object of this number; ``start_ns``: when the program began."""
        self.machine = machine
        self._number = number
        self._builtins, self._interpreter = places.builtins, places.interpreter
        self._resumed = np.array(sorted(places.resumed), np.uint64)
        self.lately = False  # whether it had samples since the last look
        self.pace = Pace(start_ns)
        self._noted = -1, 0  # version of the space whose mappings are known
        self._start, self._end, self._low, self._bias = np.zeros((4, 0), np.uint64)
        self.starts: dict[tuple[int, JsFunction], int] = {}
        self.codes: dict[tuple[int, int], Code] = {}  # by start and since when

    def note_mappings(self, space: AddressSpace) -> None:
        """Where V8's code may be: in memory without a file, and its builtins, which may be mapped again near to it."""
        if self._noted != space.version:
            self._noted = space.version
            made = [(m.start, m.end, m.start, 0) for m in space.mappings
                    if (m.object < 0 or not is_file(m.path)) and is_made(m.path)]
            low, high = self._builtins
            own = [(max(m.start, m.bias + low), min(m.end, m.bias + high), 0, m.bias) for m in space.mappings
                   if m.object == self._number]
            found = sorted(one for one in made + own if one[0] < one[1])
            columns = np.array([[one & _MASK for one in row] for row in found], np.uint64)
            self._start, self._end, self._low, self._bias = columns.reshape(-1, 4).T.copy()

    def places(self, pcs: Array) -> tuple[Array, Array, Array]:
        """Of pcs where the memory without a file begins that each lies in (0: none), whether it is V8's at all, and
        whether it is the interpreter's."""
        if not len(self._start):
            return np.zeros(pcs.shape, np.uint64), np.zeros(pcs.shape, np.bool_), np.zeros(pcs.shape, np.bool_)
        at = np.maximum(self._start.searchsorted(pcs, side="right") - 1, 0)
        is_its = (pcs >= self._start[at]) & (pcs < self._end[at])
        low, high = self._interpreter
        is_interpreted = is_its & (self._low[at] == 0)
        place = pcs - self._bias[at]  # of a return address one before
        is_its_own = place - np.uint64(low) <= np.uint64(high - low)
        others = np.nonzero(is_interpreted & ~is_its_own)
        is_interpreted[others] = self._is_resumed(place[others] + np.uint64(1))
        return np.where(is_its, self._low[at], np.uint64(0)), is_its, is_interpreted

    def _is_resumed(self, place: Array) -> Array:
        """Whether returns lead to places (n,) with which the interpreter goes on."""
        if not len(self._resumed):
            return np.zeros(len(place), np.bool_)
        at = np.minimum(self._resumed.searchsorted(place), len(self._resumed) - 1)
        found: Array = self._resumed[at] == place
        return found


class JsFrames:
    """Puts functions of JavaScript into stacks, where that is ``wanted``."""

    def __init__(self, objects: Objects, made_up: MadeUp, wanted: bool, expected_ns: int = 0) -> None:
        """``expected_ns``: until when a machine is expected to begin."""
        self.counts = [0, 0, 0]  # frames by mark
        self.unread: dict[int, str] = {}  # by image: why its V8 is not to be read
        self._objects = objects
        self._made_up = made_up
        self._wanted = wanted
        self._processes: dict[int, _Process] = {}  # by image
        self._expected_ns = expected_ns if wanted else 0
        self._begin_ns = 0  # when that is to be looked at again
        self._places: dict[int, _Places] = {}  # by load object
        self._tried: dict[int, tuple[tuple[int, int], int]] = {}  # by image: in which version of its space, how often

    @property
    def due_ns(self) -> int:
        """When the next look is due."""
        is_expected = self._begin_ns < self._expected_ns and not self._processes
        return min([self._begin_ns if is_expected else NEVER_NS,
                    *(process.pace.due_ns for process in self._processes.values())])

    def look(self) -> bool:
        """It is due: samples are to be taken now, since functions can be named as long as the process lives."""
        now_ns = time.monotonic_ns()
        self._begin_ns = now_ns + SHORTEST_NS
        for process in self._processes.values():
            if now_ns >= process.pace.due_ns:
                process.pace.looked(now_ns, is_new=process.lately)
                process.lately = False
        return True

    def remark(self) -> str:
        """How sure the functions in stacks are; empty if there are none."""
        return marks.remark(self.counts, "JavaScript")

    def forget(self, images: Sequence[int]) -> None:
        """These images are over."""
        for number in images:
            self._processes.pop(number, None)
            self._tried.pop(number, None)

    def code_at(self, image: int, pc: int) -> Code | None:
        """The machine code at a pc, named by what it was compiled from."""
        process = self._processes.get(image)
        code = process.machine.codes.at(pc) if process is not None else None
        if process is None or code is None:
            return None
        key = code.start, code.since_ns
        found = process.codes.get(key)
        if found is None or (found.name.endswith(NOT_KNOWN)):
            function = process.machine.function_of(code)
            name = function.name if function is not None else NOT_KNOWN if code.level >= 0 else b"code"
            found = process.codes[key] = Code(code.start, code.end - code.start, b"[%s] %s" % (code.kind, name),
                                              code.since_ns)
        return found

    # -- processes

    def meet(self, images: ByImage) -> None:
        """Samples of these are about to be unwound, which needs to know where V8 returns to."""
        for its, _ in images if self._wanted else ():
            self._process(its[-1])

    def _process(self, epoch: Epoch) -> _Process | None:
        number, version = epoch.image.number, epoch.space.version
        known = self._processes.get(number)
        before, n_tries = self._tried.get(number, ((-1, 0), 0))
        if known is None and version != before and n_tries < _TRIES:
            self._tried[number] = version, n_tries + 1
            known = self._recognised(epoch)
            if known is not None:
                self._processes[number] = known
        return known

    def _recognised(self, epoch: Epoch) -> _Process | None:
        for i, mapping in enumerate(epoch.space.mappings):
            known = self._objects.by_number.get(mapping.object)
            name = mapping.path.rsplit(b"/", 1)[-1]
            if known is None or not (i == 0 or any(library in name for library in _LIBRARIES)):
                continue
            try:
                if V8_MARK not in known.exported((V8_MARK,)):
                    continue
                from collector.runtimes import v8
                symbols = known.exported(v8.SYMBOLS)
            except ElfError:
                continue
            there = {name: (value + mapping.bias, size) for name, (value, size) in symbols.items()}
            places = self._places_in(mapping.object)
            found = v8.recognise(there, partial(proc.read_pieces, epoch.image.pid))
            if isinstance(found, v8.Machine):
                builtins = places.builtins
                if not builtins[1]:
                    builtins = self._unnamed(there, epoch.image.pid, mapping.bias)
                if not builtins[1]:
                    self.unread[epoch.image.number] = "some, since V8's builtins have no symbols"
                return _Process(found, mapping.object, places._replace(builtins=builtins), epoch.image.start_ns)
            if found:
                self.unread[epoch.image.number] = found
        return None

    def _places_in(self, number: int) -> _Places:
        """Where the builtins of a load object are. Stacks are whole by that even where the process is gone."""
        from collector.runtimes import v8
        found = self._places.get(number)
        if found is None:
            builtins, interpreter = (self._objects.extent_of(number, name) for name in (v8.BUILTINS, v8.INTERPRETER))
            resumed, continued = (self._objects.starts_of(number, names, *builtins)
                                  for names in (v8.RESUMED, v8.CONTINUED))
            self._objects.tables.add_returns(number, [*resumed, *continued])
            found = self._places[number] = _Places(builtins, interpreter, resumed)
        return found

    @staticmethod
    def _unnamed(symbols: dict[bytes, tuple[int, int]], pid: int, bias: int) -> tuple[int, int]:
        """Where builtins without symbols are in their object."""
        from collector.runtimes import v8
        low, high = v8.builtins(symbols, partial(proc.read_pieces, pid))
        return (low - bias, high - bias) if high else (0, 0)

    # -- samples

    def functions(self, samples: ClockSamples, index: Array, images: ByImage, frames: Frames) -> list[Managed]:
        """The functions of JavaScript in the stacks of samples."""
        places = []
        for its, numbers in images:
            process = self._processes.get(its[-1].image.number)  # as they have been met
            rows = indices(among(index, numbers) & (samples.abi == 64)) if process is not None else index[:0]
            if process is None or not len(rows):
                continue
            process.lately = True
            process.note_mappings(its[-1].space)
            found = self._of_process(process, samples, rows, frames)
            if found is not None:
                places.append(found)
        return places

    def _of_process(self, process: _Process, samples: ClockSamples, rows: Array, frames: Frames) -> Managed | None:
        from collector.runtimes.v8 import Frame
        machine, pcs = process.machine, frames.pcs[rows]
        cells = indices((np.arange(pcs.shape[1]) < frames.length[rows, None]).ravel())
        pc = pcs.ravel()[cells]
        low, is_its, is_interpreted = process.places(pc)
        its = indices(is_its)
        which, depth = np.divmod(cells[its], pcs.shape[1])
        row, pc, low, is_interpreted = rows[which], pc[its], low[its], is_interpreted[its]
        words = _below(machine, samples, row, _own_frame(frames, row, depth))
        is_function = machine.are_functions(words)
        some = indices(is_function | (low > 0))
        if not len(some):
            return None
        row, depth, pc, low, is_interpreted, is_function, words = (
            row[some], depth[some], pc[some], low[some], is_interpreted[some], is_function[some], words[:, some])
        is_leaf = depth == 0
        pc -= ~is_leaf & (low > 0)  # a return address is looked up one before
        machine.canonicalise(words, pc, low, is_leaf, is_function)
        # What is alike is told once.
        first, kind = alike(np.stack([pc, is_leaf + is_interpreted * np.uint64(2) + is_function * np.uint64(4),
                                      *words[1:]]))
        now_ns = time.monotonic_ns()
        distinct = np.stack([pc, low, is_leaf, is_interpreted, *words])[:, first]
        told = machine.frames([Frame(at, where, bool(leaf), bool(own), *rest)
                               for at, where, leaf, own, *rest in distinct.T.tolist()], now_ns)
        process.pace.looked(now_ns, is_new=True)
        return self._managed(process, told, kind, (row, depth), samples.time_ns[row])

    def _managed(self, process: _Process, told: Sequence[Told], kind: Array, at: tuple[Array, Array],
                 time_ns: Array) -> Managed | None:
        some = indices(np.array([bool(one.scopes) for one in told], np.bool_)[kind])
        if not len(some):
            return None
        kind, row, depth, time_ns = kind[some], at[0][some], at[1][some], time_ns[some]
        chains = [tuple(self._address(process, scope) for scope in one.scopes) for one in told]
        managed = Managed(row, depth, kind, chains)
        since = np.array([one.since_ns for one in told], np.int64)[kind]
        is_known = np.array([one.is_known for one in told], np.bool_)[kind]
        mark_of = np.where(is_known, np.where(since <= time_ns, VERIFIED, TORN), UNKNOWN)
        for mark, n in enumerate(np.bincount(mark_of, managed.count, len(self.counts))):
            self.counts[mark] += int(n)
        return managed

    def _address(self, process: _Process, scope: Scope) -> int:
        """The made-up address of a place in a function: one for each of its lines."""
        function = process.machine.function(scope.shared)
        if function is None or not function.name:
            return self._made_up.start_of(NOT_KNOWN) + 1
        key = scope.shared, function
        start = process.starts.get(key)
        n_lines = function.last_line - function.line + 1 if function.line else 0
        if start is None:
            start = process.starts[key] = self._made_up.start_of(
                function.name, function.source, max(n_lines, 1) * _LINE, EachLine(function.line, n_lines, _LINE))
        line = process.machine.line_at(scope) if n_lines else 0
        return start + max(line - function.line, 0) * _LINE + 1


def _own_frame(frames: Frames, row: Array, depth: Array) -> Array:
    """The frame pointers (k,) of frames; 0 of who has made no frame, and stands on the caller's, whose functions it
    would tell."""
    fp = frames.fps[row, depth]
    above = frames.fps[row, np.minimum(depth + 1, frames.fps.shape[1] - 1)]
    has_frame = (above != fp) | (depth + 1 >= frames.length[row])
    return np.where(has_frame, fp, np.uint64(0))


def _below(machine: Machine, samples: ClockSamples, row: Array, fp: Array) -> Array:
    """The words (4, k) below frame pointers that tell a frame's function; 0 where they were not copied."""
    columns = (getattr(samples, name)[row].view(np.uint64) for name in ("low", "n_words", "first", "mask", "base"))
    memory = Memory(samples.words, np.stack(list(columns)))
    at = machine.layout.at
    places = [at[name] for name in ("fp_context", "fp_function", "fp_bytecode", "fp_offset")]
    words, ok = memory.read(np.stack([fp - np.uint64(-place) for place in places]))
    found: Array = np.where(ok & (fp > 0), words, np.uint64(0))
    return found
