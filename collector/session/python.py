"""Functions of CPython in stacks: at each evaluation on the native stack those that it carried out.

What the kernel copied of a stack has the words of its moment; memory is read at looks, several a second, and once more
before samples are worked on. ``runtimes`` tells what both together say.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from collector.clock import NS_PER_MS
from collector.errors import ElfError
from collector.events import Array, ClockSamples
from collector.experiment.map import MADE_UP_FIRST
from collector.linux import proc
from collector.processes.process import Epoch
from collector.runtimes import cpython, marks
from collector.runtimes.cpython import Interpreter, PyFrame
from collector.runtimes.looks import NOBODY, Anchor, Anchors, Looks, Told
from collector.runtimes.made_up import MadeUp
from collector.runtimes.marks import TORN, UNKNOWN, VERIFIED
from collector.session.objects import Objects
from collector.session.schedule import NEVER_NS

LOOK_PERIOD_NS = 50 * NS_PER_MS
GIL = b"<global interpreter lock>"
NOT_KNOWN = b"<Python functions, not known>"
_THREADS_AT_ONCE = 32
_WORDS_MAX = 128  # of an activation's part of the stack: its own frame, and what its callee saved
_BEHIND = 1024  # bytes above the outermost frame's stack pointer
_SEARCHES = 64
_FRAMES_MAX = 1 << 16
_FAR = 1 << 24  # bytes: larger is no copy of a stack
_N_REGISTERS = 16
_PLACES = _WORDS_MAX + 1 + 2 * _N_REGISTERS
_RELIABLE = 0.85
_RDI, _RIP = 5, 16
_WORD = np.uint64(8)


class _Process:
    """A process that has CPython in it."""

    def __init__(self, interpreter: Interpreter, text: tuple[int, int], evaluation: Array) -> None:
        """``text``: where the interpreter's own code is; ``evaluation``: stretches (k, 2) of the function that carries
        out frames."""
        self.interpreter = interpreter
        self.text = text
        self.evaluation = evaluation
        self.runtime = interpreter.symbols[b"_PyRuntime"]
        self.looks: dict[int, Looks] = {}  # by tid
        self.states: dict[int, int] = {}
        self.lately: list[int] = []  # tids that had samples
        self._starts: Array = np.zeros(0, np.uint64)
        self._ends: Array = np.zeros(0, np.uint64)
        self._codes: Array = np.zeros(0, np.uint64)
        self._n_codes = -1
        # Where the C function keeps its place in the code is the compiler's choice, and what was there before stays in
        # other words of its frame: which ones are right is learnt.
        self._n_right: Array = np.zeros(_PLACES, np.int64)
        self._n_wrong: Array = np.zeros(_PLACES, np.int64)
        self._met: set[int] = set()  # addresses of frames
        self._frames: Array = np.zeros(0, np.uint64)  # the same, sorted

    def look(self) -> None:
        """What the threads are carrying out that were met lately."""
        tids = self.lately[:_THREADS_AT_ONCE]
        if any(tid not in self.states for tid in tids):
            self.states = self.interpreter.threads(tids)
        there = [tid for tid in tids if tid in self.states]
        before_ns = time.monotonic_ns()
        chains = self.interpreter.chains([self.states[tid] for tid in there])
        now_ns = (before_ns + time.monotonic_ns()) // 2
        for tid, chain in zip(there, chains, strict=True):
            if chain:
                self.looks_of(tid).add(now_ns, chain)
                self._met.update(frame.address for activation in chain for frame in activation)
            elif chain is None:
                self.states.pop(tid, None)

    def looks_of(self, tid: int) -> Looks:
        """Those at one thread."""
        found = self.looks.get(tid)
        if found is None:
            found = self.looks[tid] = Looks(self.interpreter.layout.has_inlined_calls)
        return found

    def learn(self, places: Array, is_right: Array) -> None:
        """Words at places (h,) led to code that was carried out just then, or to other code."""
        np.add.at(self._n_right, places, is_right)
        np.add.at(self._n_wrong, places, ~is_right)

    def reliability(self, places: Array) -> Array:
        """How often words at places (h,) lead to what is carried out, of those that lead to code at all."""
        right, wrong = self._n_right[places], self._n_wrong[places]
        found: Array = (right + 0.5) / (right + wrong + 1.0)
        return found

    def are_starts(self, words: Array) -> Array:
        """Which words (n,) lead to the first instruction of code."""
        return np.isin(words, self._starts)

    def are_frames(self, words: Array) -> Array:
        """Which words (n,) are addresses of frames that were met in a look."""
        if len(self._frames) != len(self._met):
            if len(self._met) > _FRAMES_MAX:
                self._met.clear()
            self._frames = np.array(sorted(self._met), np.uint64)
        if not len(self._frames):
            return np.zeros(len(words), np.bool_)
        found: Array = (words >= self._frames[0]) & (words <= self._frames[-1])
        some = np.flatnonzero(found)
        found[some] = self._frames[self._frames.searchsorted(words[some])] == words[some]
        return found

    def codes_of(self, words: Array) -> Array:
        """The code objects (n,) that words lead to; 0: to none."""
        codes = self.interpreter.codes
        if self._n_codes != len(codes):
            inlined = self.interpreter.layout.has_inlined_calls
            known = sorted((code.bytecode if inlined else code.address, code.size if inlined else 1, code.address)
                           for code in codes.values())
            self._starts, size, self._codes = np.array(known, np.uint64).reshape(-1, 3).T.copy()
            self._ends, self._n_codes = self._starts + size, len(codes)
        if not len(self._starts):
            return np.zeros(len(words), np.uint64)
        found = np.zeros(len(words), np.uint64)
        some = np.flatnonzero((words >= self._starts[0]) & (words < self._ends[-1]))
        near = words[some]
        at = self._starts.searchsorted(near, "right") - 1
        found[some] = np.where(near < self._ends[at], self._codes[at], np.uint64(0))
        return found


class _Place(NamedTuple):
    """Where evaluations are in the stacks of n samples: rows and depths (k,), leaf first, and of each the words (w,) of
    its part of the stack, by ``part`` (w,) in k; ``place`` (w,): words below the frame's end, more than
    _WORDS_MAX: a register."""

    row: Array
    depth: Array
    words: Array
    part: Array
    place: Array


class PythonFrames:
    """Puts functions of CPython into stacks, where that is ``wanted``."""

    def __init__(self, objects: Objects, wanted: bool) -> None:
        self._wanted = wanted
        self.made_up = MadeUp(MADE_UP_FIRST)
        self.counts = [0, 0, 0]  # frames by mark
        self.unread: dict[int, str] = {}  # by image: why its CPython is not to be read
        self._objects = objects
        self._processes: dict[int, _Process | None] = {}  # by image
        self._n_mappings: dict[int, int] = {}
        self._evaluations: dict[int, Array] = {}  # by image, of those that are not to be read
        self._looked_ns = 0
        self._starts: dict[tuple[int, int], int] = {}

    @property
    def due_ns(self) -> int:
        """When the next look is due."""
        if not any(process is not None and process.lately for process in self._processes.values()):
            return NEVER_NS
        return self._looked_ns + LOOK_PERIOD_NS

    def look(self) -> None:
        """At all threads that had samples lately."""
        for process in self._processes.values():
            if process is not None and process.lately:
                process.look()
        self._looked_ns = time.monotonic_ns()

    def remark(self) -> str:
        """How sure the functions in stacks are; empty if there are none."""
        return marks.remark(self.counts, "Python")

    def forget(self, images: Sequence[int]) -> None:
        """These images are over."""
        for number in images:
            self._processes.pop(number, None)
            self._n_mappings.pop(number, None)
            self._evaluations.pop(number, None)

    def merged(self, samples: ClockSamples, index: Array, epochs: list[Epoch], pcs: Array, length: Array,
               sps: Array) -> tuple[Array, Array]:
        """The stacks (n, depth) of samples and their lengths (n,) with the functions of CPython in them."""
        found: dict[int, list[int]] = {}
        is_first = True
        for number, epoch in enumerate(epochs):
            process = self._process(epoch)
            if process is None:
                self._count_unread(epoch, pcs[index == number])
                continue
            rows = np.flatnonzero((index == number) & (samples.abi == 64))
            if not len(rows):
                continue
            process.lately = list(dict.fromkeys(samples.tid[rows[::-1]].tolist()))
            if is_first:
                self.look()
                is_first = False
            found.update(self._of_process(process, samples, rows, pcs, length, sps))
        return _with(found, pcs, length)

    def _count_unread(self, epoch: Epoch, pcs: Array) -> None:
        evaluation = self._evaluations.get(epoch.image.number)
        if evaluation is not None:
            self.counts[UNKNOWN] += int(np.count_nonzero(_within(pcs, evaluation)))

    # -- processes

    def _process(self, epoch: Epoch) -> _Process | None:
        number, mappings = epoch.image.number, epoch.space.mappings
        known = self._processes.get(number)
        if self._wanted and known is None and self._n_mappings.get(number) != len(mappings):
            self._n_mappings[number] = len(mappings)
            known = self._processes[number] = self._recognised(epoch)
        return known

    def _recognised(self, epoch: Epoch) -> _Process | None:
        pid = epoch.image.pid
        for i, mapping in enumerate(epoch.space.mappings):
            known = self._objects.by_number.get(mapping.object)
            if known is None or not (i == 0 or b"python" in mapping.path.rsplit(b"/", 1)[-1]):
                continue
            try:
                symbols = known.exported(cpython.SYMBOLS)
            except ElfError:
                continue
            if b"_PyRuntime" not in symbols or b"_PyEval_EvalFrameDefault" not in symbols:
                continue
            there = {name: (value + mapping.bias, size) for name, (value, size) in symbols.items()}
            value, size = symbols[b"_PyEval_EvalFrameDefault"]
            parts = self._objects.tables.parts_of(mapping.object, value) or [(value, value + size)]
            evaluation = np.array(parts, np.uint64) + np.uint64(mapping.bias)
            found = cpython.recognise(there, mapping.path, partial(proc.read_pieces, pid))
            if isinstance(found, Interpreter):
                return _Process(found, (mapping.start, mapping.end), evaluation)
            self._evaluations[epoch.image.number] = evaluation
            if found:
                self.unread[epoch.image.number] = found
        return None

    # -- samples

    def _of_process(self, process: _Process, samples: ClockSamples, rows: Array, pcs: Array, length: Array,
                    sps: Array) -> dict[int, list[int]]:
        inside = np.arange(pcs.shape[1]) < length[rows, None]
        is_eval = inside & _within(pcs[rows], process.evaluation)
        which, depth = np.nonzero(is_eval)
        if not len(which):
            return {}
        place = _words(samples, rows[which], depth, length, sps)
        anchors = self._anchors(process, place, self._certain(process, samples, place))
        waits = self._waits_for_gil(process, samples, rows)
        found: dict[int, list[int]] = {}
        ends = np.append(np.flatnonzero(np.diff(place.row)) + 1, len(place.row)).tolist()
        begin = 0
        for end in ends:
            row = int(place.row[begin])
            outermost_first = tuple(anchors[i][0] for i in range(end - 1, begin - 1, -1))
            told = self._told(process, int(samples.tid[row]), outermost_first, int(samples.time_ns[row]))
            runs = [self._pcs(process, each, at)
                    for each, (_, at) in zip(reversed(told), anchors[begin:end], strict=True)]
            if row in waits:
                runs[0] = [self.made_up.start_of(GIL) + 1, *runs[0]]
            found[row] = _spliced(pcs[row, :length[row]].tolist(), depth[begin:end].tolist(), runs)
            begin = end
        return found

    def _anchors(self, process: _Process, place: _Place, truth: Array) -> list[tuple[Anchor, dict[int, int]]]:
        """Of each evaluation what its words lead to, and in each code object to which place."""
        codes = process.codes_of(place.words)
        lost = np.setdiff1d(np.arange(len(place.row)), place.part[codes != 0])
        if len(lost):
            words = place.words[np.isin(place.part, lost)]
            words = np.unique(words[(words > 0xFFFF) & (words < np.uint64(1 << 47))])
            if process.interpreter.layout.has_inlined_calls:
                process.interpreter.search(words[words & np.uint64(1) == 0].tolist()[:_SEARCHES])
            else:
                process.interpreter.learn(words.tolist())
            codes = process.codes_of(place.words)
        hit = np.flatnonzero(codes)
        hit = hit[self._reliable(process, place.place[hit], place.part[hit], codes[hit], truth,
                                 process.are_starts(place.words[hit]))]
        at: list[dict[int, int]] = [{} for _ in place.row]
        columns = place.part[hit].tolist(), codes[hit].tolist(), place.words[hit].tolist()
        for part, code, word in zip(*columns, strict=True):
            at[part].setdefault(code, word)
        frames: list[set[int]] = [set() for _ in place.row]
        if process.interpreter.layout.has_inlined_calls:
            there = np.flatnonzero(process.are_frames(place.words))
            for part, word in zip(place.part[there].tolist(), place.words[there].tolist(), strict=True):
                frames[part].add(word)
        return [(Anchor(frozenset(codes), frozenset(addresses)), codes)
                for codes, addresses in zip(at, frames, strict=True)]

    @staticmethod
    def _reliable(process: _Process, places: Array, part: Array, codes: Array, truth: Array, is_start: Array) -> Array:
        """Of words (h,) that lead to code those that are to be believed (indices), the best first: of each evaluation
        those that lead where the one at the place does that has been right most often; all where no place is reliable.

        ``truth`` (k,): the code that evaluations certainly carried out, 0: unknown. ``is_start`` (h,): the word leads
        to the beginning of the code, and so says little of the place in it.
        """
        is_known = truth[part] != 0
        process.learn(places[is_known], codes[is_known] == truth[part[is_known]])
        reliability = process.reliability(places)
        order = np.lexsort((-reliability, part))
        is_best = np.append(True, part[order[1:]] != part[order[:-1]]) if len(order) else np.zeros(0, np.bool_)
        best = order[is_best & (reliability[order] >= _RELIABLE)]
        believed = np.zeros(len(truth), np.uint64)
        believed[part[best]] = codes[best]
        order = np.lexsort((-reliability, is_start, part))
        kept: Array = order[(believed[part[order]] == 0) | (believed[part[order]] == codes[order])]
        return kept

    @staticmethod
    def _certain(process: _Process, samples: ClockSamples, place: _Place) -> Array:
        """The code that each evaluation (k,) carried out for certain; 0: unknown."""
        truth = np.zeros(len(place.row), np.uint64)
        begin = 0
        for end in [*(np.flatnonzero(np.diff(place.row)) + 1).tolist(), len(place.row)]:
            row = int(place.row[begin])
            chain = process.looks_of(int(samples.tid[row])).certain(int(samples.time_ns[row]))
            if chain is not None and len(chain) == end - begin:
                truth[begin:end] = [activation[0].code for activation in reversed(chain)]
            begin = end
        return truth

    @staticmethod
    def _told(process: _Process, tid: int, anchors: Anchors, time_ns: int) -> list[Told]:
        return process.looks_of(tid).told(anchors, time_ns)

    def _pcs(self, process: _Process, told: Told, anchors: dict[int, int]) -> list[int]:
        """Addresses for the frames of an activation, innermost first."""
        found = []
        for i, (frame, mark) in enumerate(zip(told.frames, told.marks, strict=True)):
            self.counts[mark] += 1
            if frame is NOBODY:
                found.append(self.made_up.start_of(NOT_KNOWN) + 1)
                continue
            if i == 0 and frame.code in anchors and process.interpreter.layout.has_inlined_calls:
                frame = PyFrame(frame.address, frame.code, anchors[frame.code])
            found.append(self._start(process, frame.code) + process.interpreter.offset(frame) + 1)
        return found

    def _start(self, process: _Process, code: int) -> int:
        key = id(process), code
        start = self._starts.get(key)
        if start is None:
            known = process.interpreter.codes[code]
            name = known.name
            if name == b"<module>":
                name += b" (%s)" % known.file.rsplit(b"/", 1)[-1]
            start = self._starts[key] = self.made_up.start_of(name, known.file, known.size, known.lines)
        return start

    @staticmethod
    def _waits_for_gil(process: _Process, samples: ClockSamples, rows: Array) -> set[int]:
        """Rows of threads at a lock that lies in the interpreter's own state."""
        start, size = process.runtime
        there = samples.regs[rows, _RDI] - np.uint64(start) < np.uint64(size)
        # The functions that wait are those of another library; its own have such pointers for many reasons.
        low, high = process.text
        there &= samples.regs[rows, _RIP] - np.uint64(low) >= np.uint64(high - low)
        if samples.known is not None:
            there &= samples.known[rows] >> np.uint64(_RDI) & np.uint64(1) != 0
        return set(rows[there].tolist())


def _within(pcs: Array, stretches: Array) -> Array:
    """Which pcs, of any shape, lie in one of stretches (k, 2)."""
    found = np.zeros(pcs.shape, np.bool_)
    for begin, end in stretches:
        found |= pcs - begin < end - begin
    return found


def _words(samples: ClockSamples, row: Array, depth: Array, length: Array, sps: Array) -> _Place:
    """The part of the stack of each evaluation (k,): from the one that it called in the end to its own end; for the
    innermost one the registers, too."""
    low = samples.low[row]
    is_last = depth + 1 >= length[row]
    high = np.where(is_last, sps[row, depth] + np.uint64(_BEHIND), sps[row, np.minimum(depth + 1, sps.shape[1] - 1)])
    is_innermost = np.append(True, row[1:] != row[:-1])
    begin = np.where(is_innermost, low, np.append(np.uint64(0), high[:-1]))
    n_words = samples.n_words[row]
    end = np.where(high - low < np.uint64(_FAR), (high - low) // _WORD, np.uint64(0)).astype(np.int64)
    first = np.where(begin - low < np.uint64(_FAR), (begin - low) // _WORD, np.uint64(0)).astype(np.int64)
    last = np.minimum(end, n_words)
    first = np.clip(np.maximum(first, last - _WORDS_MAX), 0, last)
    n = last - first
    part = np.repeat(np.arange(len(row)), n)
    k = np.arange(n.sum()) - np.repeat(np.cumsum(n) - n, n) + first[part]
    of = row[part]
    words = samples.words[samples.base[of] + ((samples.first[of] + k) & samples.mask[of])]
    inner = np.flatnonzero(is_innermost)
    registers = samples.regs[row[inner], :_N_REGISTERS]
    # Registers are one thing where the evaluation itself was met, another where something that it called was.
    number = _WORDS_MAX + 1 + np.arange(_N_REGISTERS) + _N_REGISTERS * (depth[inner, None] > 0)
    return _Place(row, depth, np.concatenate([registers.ravel(), words]),
                  np.concatenate([np.repeat(inner, _N_REGISTERS), part]),
                  np.concatenate([number.ravel(), np.clip(end[part] - k, 0, _WORDS_MAX)]))


def _spliced(stack: list[int], depths: list[int], runs: list[list[int]]) -> list[int]:
    """A stack with a run of frames before each of some depths, leaf first."""
    found: list[int] = []
    begin = 0
    for depth, run in zip(depths, runs, strict=True):
        found += stack[begin:depth]
        found += run
        begin = depth
    return found + stack[begin:]


def _with(stacks: dict[int, list[int]], pcs: Array, length: Array) -> tuple[Array, Array]:
    """The stacks (n, depth) with some of them replaced."""
    if not stacks:
        return pcs, length
    depth = max(pcs.shape[1], max(map(len, stacks.values())))
    wide = np.zeros((len(pcs), depth), np.uint64)
    wide[:, :pcs.shape[1]] = pcs
    length = length.copy()
    for row, stack in stacks.items():
        wide[row, :len(stack)] = stack
        length[row] = len(stack)
    return wide, length


__all__ = ["TORN", "UNKNOWN", "VERIFIED", "PythonFrames"]
