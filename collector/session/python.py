"""Functions of CPython in stacks: at each evaluation on the native stack those that it carried out.

What the kernel copied of a stack has the words of its moment; memory is read at looks, several a second, and once more
before samples are worked on. ``runtimes`` tells what both together say.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import compress, islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from collector.arrays import distinct
from collector.clock import NEVER_NS, NS_PER_MS, NS_PER_S
from collector.errors import ElfError
from collector.events import Array, ClockSamples
from collector.experiment.map import MADE_UP_FIRST
from collector.linux import proc
from collector.processes.process import Epoch
from collector.runtimes import marks
from collector.runtimes.made_up import MadeUp
from collector.runtimes.marks import TORN, UNKNOWN, VERIFIED
from collector.session.merging import Managed, with_managed
from collector.session.objects import Objects
from collector.session.placing import Frames
from collector.session.schedule import DRAIN_PERIOD_NS

# What only programs of Python need is imported when CPython is met: the target waits for every module here.
if TYPE_CHECKING:
    from collector.runtimes.cpython import Interpreter, PyFrame
    from collector.runtimes.looks import Anchor, Anchors, Looks, Told
    from collector.runtimes.places_cpython import CodePlaces

# Between looks: so long that some samples come; the shortest time while code comes and goes.
LOOK_MIN_NS, LOOK_MAX_NS = 50 * NS_PER_MS, 400 * NS_PER_MS
_SAMPLES_BETWEEN = 5
# While one look in so many, or more, tells what those before did not (Looks.add), they are as close as they may be;
# where fewer do, the farther apart. They are not at even distances, so that they meet all of what a program does in
# turns; at most there is one between two drains, each of which has its own.
_CALM, _SURPRISE_WEIGHT = 1 / 20, 1 / 8
_CALM_MAX_NS, _GOLDEN = DRAIN_PERIOD_NS * 2 // 3, 0.618034
_GONE_KEPT_NS = 5 * NS_PER_S
GIL = b"<global interpreter lock>"
NOT_KNOWN = b"<Python functions, not known>"
_THREADS_AT_ONCE = 32
_WORDS_MAX = 128  # of an activation's part of the stack: its own frame, and what its callee saved
_BEHIND = 1024  # bytes above the outermost frame's stack pointer
_SEARCHES, _SEARCHED_AT_ONCE = 8, 64  # for code that no look has met, in a batch
_FRAMES_MAX = 1 << 16
_FAR = 1 << 24  # bytes: larger is no copy of a stack
_N_REGISTERS = 16
_PLACES = _WORDS_MAX + 1 + 2 * _N_REGISTERS
_RELIABLE = 0.85
# Words at all places are looked at until those of so many evaluations were, and in one of so many batches.
_SCANNED, _SCANNED_EVERY = 500, 8
_RDI, _RIP = 5, 16
_WORD = np.uint64(8)


class _Process:
    """A process that has CPython in it."""

    def __init__(self, interpreter: Interpreter, places: CodePlaces, text: tuple[int, int], evaluation: Array) -> None:
        """``text``: where the interpreter's own code is; ``evaluation``: stretches (k, 2) of the function that carries
        out frames."""
        self.interpreter = interpreter
        self.text = text
        self.evaluation = evaluation
        self.runtime = interpreter.symbols[b"_PyRuntime"]
        self.looks: dict[int, Looks] = {}  # by tid
        self.states: dict[int, int] = {}
        self.lately: list[int] = []  # tids that had samples in the last batch, and of threads that came since then
        self.hit: list[int] = []  # addresses of code objects that the last samples led to
        self.due_ns = 0  # when the next look is
        self._period_ns = LOOK_MIN_NS  # between looks, while no code comes and goes
        self._last_ns = 0  # the time of the last sample
        self._n_changes = -1  # of code, at the last look
        self._part = 0.0
        self._surprise = 1.0  # what part of looks at threads tells what those before could not
        self.places = places
        self.starts: dict[int, int] = {}  # where functions begin among made-up addresses, by number of their code
        self.addresses: dict[PyFrame, int] = {}  # made-up ones
        self.ahead: dict[int, tuple[int, int]] = {}  # see _Runs.own, by number of the code
        self.runs: dict[Told, _Run] = {}  # of activations that were told before
        # Where the C function keeps its place in the code is the compiler's choice, and what was there before stays in
        # other words of its frame: which ones are right is learnt.
        self._n_right: Array = np.zeros(_PLACES, np.int64)
        self._n_wrong: Array = np.zeros(_PLACES, np.int64)
        self._used: Array = np.zeros(_PLACES, np.bool_)  # places at which words have led to code, or were frames
        self._n_scanned = self._n_batches = 0
        self._met: set[int] = set()  # addresses of frames
        self._frames: Array = np.zeros(0, np.uint64)  # the same, sorted
        self._n_searched = -1  # changes of code, as of the last search
        self._before: dict[tuple[int, int], int] = {}  # instructions, by code object and the place behind them

    def sampled(self, tids: Array, times: Array) -> None:
        """Samples (n,) of threads."""
        self.lately = list(dict.fromkeys(tids[::-1].tolist()))
        last_ns = int(times.max())
        needed_ns = _SAMPLES_BETWEEN * (last_ns - self._last_ns) // len(times)
        needed_ns = min(max(needed_ns, LOOK_MIN_NS), 2 * self._period_ns, LOOK_MAX_NS)
        self._period_ns = needed_ns if self._last_ns else LOOK_MIN_NS
        self._last_ns = last_ns

    def look(self, codes: Iterable[int] = ()) -> None:
        """What the threads are carrying out that were met lately; code objects at addresses ``codes`` are looked after,
        too."""
        if self.interpreter.has_new_threads:
            self.states = self.interpreter.threads(self.states)
        if any(tid not in self.states for tid in self.lately[:_THREADS_AT_ONCE]):
            self.states = self.interpreter.threads()
        # Of new ones no batch tells before its end; their samples will want to know what they were carrying out.
        new = [tid for tid in self.states if tid not in self.looks][:_THREADS_AT_ONCE // 2]
        there = [tid for tid in dict.fromkeys([*new, *self.lately]) if tid in self.states][:_THREADS_AT_ONCE]
        self.lately += new
        before_ns = time.monotonic_ns()
        chains = self.interpreter.chains([self.states[tid] for tid in there], codes)
        now_ns = (before_ns + time.monotonic_ns()) // 2
        surprises = []
        for tid, chain in zip(there, chains, strict=True):
            if chain:
                surprises.append(self.looks_of(tid).add(now_ns, chain))
                self._met.update(frame.address for activation in chain for frame in activation)
            elif chain is None:
                self.states.pop(tid, None)
        is_changed, self._n_changes = self._n_changes != self.interpreter.n_changes, self.interpreter.n_changes
        is_changed |= self.interpreter.has_new_threads
        if surprises:
            self._surprise += _SURPRISE_WEIGHT * (sum(surprises) / len(surprises) - self._surprise)
        self.due_ns = time.monotonic_ns() + (LOOK_MIN_NS if is_changed else max(self._period_ns, self._calm_ns()))

    def _calm_ns(self) -> int:
        """How long until the next look, as far as looks tell nothing new."""
        self._part = (self._part + _GOLDEN) % 1
        return int(min(LOOK_MIN_NS * _CALM / self._surprise, _CALM_MAX_NS) * (0.75 + self._part / 2))

    def forget(self, codes: Sequence[int]) -> None:
        """Nobody asks any more for code objects of these numbers."""
        for code in codes:
            self.starts.pop(code, None)
            self.ahead.pop(code, None)
        if len(self._before) > _FRAMES_MAX:
            self._before.clear()
        if codes or max(len(self.addresses), len(self.runs)) > _FRAMES_MAX:
            self.addresses.clear()
            self.runs.clear()

    def looks_of(self, tid: int) -> Looks:
        """Those at one thread."""
        found = self.looks.get(tid)
        if found is None:
            from collector.runtimes.looks import Looks
            found = self.looks[tid] = Looks(self.interpreter.layout.has_inlined_calls)
        return found

    def moments(self, tids: Array, times: Array) -> Array:
        """For samples (n,) of threads at times: numbers, alike where the looks around are; see Looks.moments."""
        found = np.zeros(len(tids), np.int64)
        for tid in distinct(tids).tolist():
            mine = tids == tid
            found[mine] = self.looks_of(tid).moments(times[mine])
        return found

    def used(self) -> Array | None:
        """The places (_PLACES,) at which words are to be looked at in the next batch; None: at all."""
        self._n_batches += 1
        return self._used.copy() if self._n_scanned >= _SCANNED and self._n_batches % _SCANNED_EVERY else None

    def may_have_called(self, codes: Sequence[int], words: Sequence[int]) -> Array:
        """Whether code objects of some numbers may have called at words (n,); each counts once for what is learnt of
        that. See ``Callers``."""
        interpreter, callers = self.interpreter, self.interpreter.callers
        assert callers is not None
        asked = list(zip(codes, words, strict=True))
        new = [one not in self._before for one in asked]
        self._before.update((one, interpreter.instruction_before(*one)) for one in compress(asked, new))
        before = np.array([self._before[one] for one in asked], np.int64)
        callers.add_places(before[new])
        return callers.may_call(before)

    def searches(self) -> None:
        """Code is looked for: what led to none is asked again where code has come or gone since."""
        if self._n_searched != self.interpreter.n_changes:
            self.interpreter.forget_vain()

    def searched(self) -> None:
        """What led to none now does so until further code has come or gone."""
        self._n_searched = self.interpreter.n_changes

    def telling(self, place: _Place) -> _Place:
        """The same evaluations without most of the words that tell nothing: those that are not frames, and neither
        lead nor have led to code."""
        self._note_frames()
        return place.of_words(np.flatnonzero(self.places.may_lead(place.words, self._frames)))

    def scanned(self, n: int, places: Array) -> None:
        """Of the words of ``n`` evaluations those at ``places`` lead to something."""
        self._used |= np.bincount(places, minlength=_PLACES) > 0
        self._n_scanned += n

    def learn(self, places: Array, is_right: Array) -> None:
        """Words at places (h,) led to code that was carried out just then, or to other code."""
        self._n_right += np.bincount(places[is_right], minlength=_PLACES)
        self._n_wrong += np.bincount(places[~is_right], minlength=_PLACES)

    def reliability(self, places: Array) -> Array:
        """How often words at places (h,) lead to what is carried out, of those that lead to code at all."""
        right, wrong = self._n_right[places], self._n_wrong[places]
        found: Array = (right + 0.5) / (right + wrong + 1.0)
        return found

    @property
    def has_frames(self) -> bool:
        """Whether looks have met frames whose addresses are in stacks."""
        return bool(self._met) and self.interpreter.layout.has_inlined_calls

    def are_frames(self, words: Array) -> Array:
        """Which words (n,) are addresses of frames that were met in a look."""
        self._note_frames()
        if not len(self._frames):
            return np.zeros(len(words), np.bool_)
        found: Array = (words >= self._frames[0]) & (words <= self._frames[-1])
        some = np.flatnonzero(found)
        found[some] = self._frames[self._frames.searchsorted(words[some])] == words[some]
        return found

    def _note_frames(self) -> None:
        if len(self._frames) != len(self._met):
            if len(self._met) > _FRAMES_MAX:
                self._met.clear()
            self._frames = np.array(sorted(self._met), np.uint64)


class _Run(NamedTuple):
    """The functions of an activation."""

    addresses: list[int]  # innermost first
    # The code of the innermost one, and how far made-up addresses are ahead of places in it; zeros where words do not
    # lead to places.
    own: tuple[int, int]
    n_verified: int  # frames by mark
    n_torn: int
    n_unknown: int


class _Place(NamedTuple):
    """Where evaluations are in the stacks of n samples: rows and depths (k,), leaf first, and of each the words (w,) of
    its part of the stack, by ``part`` (w,) in k; ``place`` (w,): words below the frame's end, more than
    _WORDS_MAX: a register; ``is_whole`` (k,): all of its words were looked at."""

    row: Array
    depth: Array
    words: Array
    part: Array
    place: Array
    is_whole: Array

    def of_words(self, which: Array) -> _Place:
        """The same evaluations with some of the words (indices, or a mask)."""
        return self._replace(words=self.words[which], part=self.part[which], place=self.place[which])

    def different(self) -> _Place:
        """Of evaluations that have the same words, and so lead to the same code, those of one."""
        alike = np.zeros(len(self.row), np.uint64)
        np.add.at(alike, self.part, _mixed(self.words ^ _mixed(self.place.astype(np.uint64))))
        some = distinct(self.part)
        _, first = np.unique(alike[some], return_index=True)
        is_first = np.zeros(len(self.row), np.bool_)
        is_first[some[first]] = True
        return self.of_words(is_first[self.part])

    def with_all_of(self, others: _Place) -> _Place:
        """The same evaluations, of those that ``others`` have as a whole with the words there."""
        own = self.of_words(~others.is_whole[self.part])
        words, part, place = (np.concatenate([getattr(one, name) for one in (own, others)])
                              for name in ("words", "part", "place"))
        return _Place(self.row, self.depth, words, part, place, self.is_whole | others.is_whole)


class _Found:
    """What the words of evaluations (k,) lead to: code objects, those that are believed most first, and frames."""

    def __init__(self, place: _Place, codes: Array, proven: Array, hit: Array, there: Array) -> None:
        """``codes`` (w,) of all words, and which are ``proven``; ``hit`` and ``there``: which lead to code, and to
        frames, by evaluation."""
        from collector.runtimes.looks import Anchor
        self._codes, self._code_words, self._proven = codes[hit], place.words[hit], proven[hit]
        self._frame_words = place.words[there]
        k = np.arange(len(place.row) + 1)
        self._hits = place.part[hit].searchsorted(k)
        self._frames = place.part[there].searchsorted(k)
        some = np.flatnonzero(np.diff(self._hits))
        self.code, self.word = np.zeros((2, len(place.row)), np.uint64)  # (k,): the best, and to which place in it
        self.code[some], self.word[some] = self._codes[self._hits[some]], self._code_words[self._hits[some]]
        # (k,): the same where they lead to the same code and frames.
        self.signature: Array = np.zeros(len(place.row), np.uint64)
        part = np.concatenate([place.part[hit], place.part[there]])
        # Numbers are even.
        told = _mixed(np.concatenate([self._codes ^ self._proven.astype(np.uint64), ~self._frame_words]))
        _, once = np.unique(_mixed(told + part.astype(np.uint64)), return_index=True)
        np.add.at(self.signature, part[once], told[once])
        self._anchors: dict[int, Anchor] = {}  # by signature
        self._new = Anchor

    def anchors(self, first: int, n: int) -> Anchors:
        """Those of the evaluations of a sample, from the outermost one in."""
        signatures = self.signature[first:first + n].tolist()
        for i, signature in enumerate(signatures):
            if signature not in self._anchors:
                self._anchors[signature] = self._anchor(first + i)
        return tuple([self._anchors[signature] for signature in reversed(signatures)])

    def _anchor(self, i: int) -> Anchor:
        hits, frames = slice(self._hits[i], self._hits[i + 1]), slice(self._frames[i], self._frames[i + 1])
        return self._new(frozenset(self._codes[hits].tolist()), frozenset(self._frame_words[frames].tolist()),
                         bool(self._proven[hits].all()))


class _Runs:
    """The functions of evaluations, once for all samples that have the same."""

    def __init__(self, process: _Process, made_up: MadeUp) -> None:
        self.addresses: list[list[int]] = []  # of each run, innermost first
        self.own: list[tuple[int, int]] = []  # and see _Run
        self.counts = [0, 0, 0]  # frames by mark
        self._process = process
        self._made_up = made_up
        self._not_known = made_up.start_of(NOT_KNOWN) + 1
        # By thread, answer, and whether it waits: the run, and how many frames that and those behind it have, by mark.
        self._known: dict[tuple[int, int, bool], tuple[int, tuple[int, int, int]]] = {}

    def add(self, tid: int, looks: Looks, answer: int, is_waiting: bool, n: int) -> int:
        """The number of the run of the innermost of some evaluations that ``n`` samples of a thread have, of which its
        looks tell this answer; those of its callers are behind it."""
        key = tid, answer, is_waiting
        if key not in self._known:
            self._known[key] = len(self.addresses), self._new(looks.answers[answer], is_waiting)
        first, (n_verified, n_torn, n_unknown) = self._known[key]
        counts = self.counts
        counts[VERIFIED] += n * n_verified
        counts[TORN] += n * n_torn
        counts[UNKNOWN] += n * n_unknown
        return first

    def _new(self, told: list[Told], is_waiting: bool) -> tuple[int, int, int]:
        """The runs of activations, the innermost first; returns their frames by mark: verified, torn, unknown."""
        known = self._process.runs
        first = len(self.addresses)
        n_verified = n_torn = n_unknown = 0
        for each in reversed(told):
            run = known.get(each) or self._run(each)
            self.addresses.append(run.addresses)
            self.own.append(run.own)
            n_verified, n_torn, n_unknown = n_verified + run.n_verified, n_torn + run.n_torn, n_unknown + run.n_unknown
        if is_waiting:
            self.addresses[first] = [self._made_up.start_of(GIL) + 1, *self.addresses[first]]
        return n_verified, n_torn, n_unknown

    def _run(self, told: Told) -> _Run:
        """The frames of an activation."""
        known, counts = self._process.addresses, [0, 0, 0]
        found = [known.get(frame, 0) or self._address(frame) for frame in told.frames]
        for address, mark in zip(found, told.marks, strict=True):
            counts[UNKNOWN if address == self._not_known else TORN if mark == TORN else VERIFIED] += 1
        run = _Run(found, self._ahead(told.frames[0].code), counts[VERIFIED], counts[TORN], counts[UNKNOWN])
        self._process.runs[told] = run
        return run

    def _address(self, frame: PyFrame) -> int:
        interpreter = self._process.interpreter
        if frame.code not in interpreter.codes:
            return self._not_known
        found = self._process.addresses[frame] = self._start(frame.code) + interpreter.offset(frame) + 1
        return found

    def _ahead(self, code: int) -> tuple[int, int]:
        """An entry of ``own``."""
        known = self._process.ahead.get(code)
        if known is None:
            interpreter = self._process.interpreter
            leads = code in interpreter.codes and interpreter.layout.has_inlined_calls
            known = (code, self._start(code) + 1 - interpreter.codes[code].bytecode) if leads else (0, 0)
            if leads:
                self._process.ahead[code] = known
        return known

    def _start(self, code: int) -> int:
        starts = self._process.starts
        start = starts.get(code)
        if start is None:
            interpreter = self._process.interpreter
            known = interpreter.codes[code]
            name = known.name
            if name == b"<module>":
                name += b" (%s)" % known.file.rsplit(b"/", 1)[-1]
            start = starts[code] = self._made_up.start_of(name, known.file, known.size, interpreter.lines(code))
        return start


class _Inserted(Managed):
    """Of the first function of some frames the place in it is known better than that of its chain."""

    def __init__(self, row: Array, depth: Array, run: Array, runs: Sequence[Sequence[int]], exact: Array,
                 second: Array) -> None:
        """``exact`` (k,): what stands, unless 0, in the place of the first address of each run; where ``second`` (k,),
        of the one after it."""
        super().__init__(row, depth, run, runs)
        self._exact, self._second = exact, second

    def flat(self) -> tuple[Array, Array, Array]:
        """See Managed."""
        whose, address, back = super().flat()
        is_exact = (self.count[whose] - back == self._second[whose]) & (self._exact[whose] != 0)
        return whose, np.where(is_exact, self._exact[whose], address), back


class PythonFrames:
    """Puts functions of CPython into stacks, where that is ``wanted``."""

    def __init__(self, objects: Objects, wanted: bool, expected_ns: int = 0) -> None:
        """``expected_ns``: until when a first interpreter is expected to begin."""
        self._wanted = wanted
        self._expected_ns = expected_ns if wanted else 0
        self._begin_ns = 0  # when that is to be looked at again
        self.made_up = MadeUp(MADE_UP_FIRST)
        self.counts = [0, 0, 0]  # frames by mark
        self.unread: dict[int, str] = {}  # by image: why its CPython is not to be read
        self._objects = objects
        self._processes: dict[int, _Process | None] = {}  # by image
        self._n_mappings: dict[int, int] = {}
        self._evaluations: dict[int, Array] = {}  # by image, of those that are not to be read

    @property
    def due_ns(self) -> int:
        """When the next look is due."""
        return min([self._begin_ns if self._expects(self._begin_ns) else NEVER_NS,
                    *(process.due_ns for process in self._processes.values() if process and process.lately)])

    def look(self) -> bool:
        """At threads that had samples lately, where that is due. Whether samples are to be taken, too: only they tell
        of a first interpreter that has begun, and a young one may live shortly."""
        now_ns = time.monotonic_ns()
        self._begin_ns = now_ns + LOOK_MIN_NS
        for process in self._processes.values():
            if process is not None and process.lately and process.due_ns <= now_ns:
                process.look()
        return self._expects(now_ns)

    def _expects(self, time_ns: int) -> bool:
        """Whether a first interpreter is expected to begin at a time."""
        return time_ns < self._expected_ns and not any(self._processes.values())

    def remark(self) -> str:
        """How sure the functions in stacks are; empty if there are none."""
        return marks.remark(self.counts, "Python")

    def forget(self, images: Sequence[int]) -> None:
        """These images are over."""
        for number in images:
            self._processes.pop(number, None)
            self._n_mappings.pop(number, None)
            self._evaluations.pop(number, None)

    def merged(self, samples: ClockSamples, index: Array, epochs: Sequence[Epoch], frames: Frames) -> Frames:
        """The stacks of samples with the functions of CPython in them, without the pointers in their frames."""
        found = []
        for number, epoch in enumerate(epochs):
            process = self._process(epoch)
            if process is None:
                self._count_unread(epoch, frames.pcs[index == number])
                continue
            rows = np.flatnonzero((index == number) & (samples.abi == 64))
            if not len(rows):
                continue
            process.sampled(samples.tid[rows], samples.time_ns[rows])
            process.look(process.hit)
            inserted = self._of_process(process, samples, rows, frames)
            if inserted is not None:
                found.append(inserted)
        return with_managed(found, frames, is_last=True) if found else frames

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
        from collector.runtimes import cpython
        from collector.runtimes.places_cpython import CodePlaces
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
            if isinstance(found, cpython.Interpreter):
                return _Process(found, CodePlaces(found), (mapping.start, mapping.end), evaluation)
            self._evaluations[epoch.image.number] = evaluation
            if found:
                self.unread[epoch.image.number] = found
        return None

    # -- samples

    def _of_process(self, process: _Process, samples: ClockSamples, rows: Array, frames: Frames) -> _Inserted | None:
        inside = np.arange(frames.pcs.shape[1]) < frames.length[rows, None]
        is_eval = inside & _within(frames.pcs[rows], process.evaluation)
        which, depth = np.nonzero(is_eval)
        if not len(which):
            return None
        place, codes, proven = self._placed(process, samples, rows[which], depth, frames)
        begin = np.append(0, np.flatnonzero(np.diff(place.row)) + 1)
        mine = place.row[begin]
        tids, times = samples.tid[mine], samples.time_ns[mine]
        moment = process.moments(tids, times)
        truth = self._certain(process, tids, times, begin, len(place.row))
        found = self._found(process, place, codes, proven, truth)
        process.forget(process.interpreter.forget_before(time.monotonic_ns() - _GONE_KEPT_NS))
        waits = self._waits_for_gil(process, samples, mine)
        # Whatever is alike in all that tells functions has the same ones: once for all such samples.
        size = np.diff(np.append(begin, len(place.row)))
        number = np.arange(len(place.row)) - np.repeat(begin, size)
        anchored = np.add.reduceat(_mixed(found.signature + number.astype(np.uint64)), begin)
        alike = anchored + _mixed(moment.astype(np.uint64) * np.uint64(2) + waits
                                  + (tids.astype(np.uint64) << np.uint64(40)))
        _, first, kind, n_alike = np.unique(alike, return_index=True, return_inverse=True, return_counts=True)
        runs, first_runs = _Runs(process, self.made_up), []
        asked: dict[tuple[int, int], tuple[Looks, int]] = {}  # by thread and signature of the anchors
        columns = (anchored, begin, size, tids, times, waits)
        for signature, at, n, tid, time_ns, is_waiting, n_samples in zip(
                *(column[first].tolist() for column in columns), n_alike.tolist(), strict=True):
            if (tid, signature) not in asked:
                looks = process.looks_of(tid)
                asked[tid, signature] = looks, looks.asked(found.anchors(at, n))
            looks, number_asked = asked[tid, signature]
            first_runs.append(runs.add(tid, looks, looks.answer(number_asked, time_ns), is_waiting, n_samples))
        for mark, n in enumerate(runs.counts):
            self.counts[mark] += n
        which_run = np.repeat(np.array(first_runs)[kind], size) + number
        code, ahead = np.array(runs.own, np.uint64)[which_run].T
        exact = np.where((code == found.code) & (code != 0), found.word + ahead, np.uint64(0))
        return _Inserted(place.row, depth, which_run, runs.addresses, exact, (number == 0) & np.repeat(waits, size))

    def _placed(self, process: _Process, samples: ClockSamples, row: Array, depth: Array,
                frames: Frames) -> tuple[_Place, Array, Array]:
        """The words of evaluations (k,), and what CodePlaces.at says of them."""
        times = samples.time_ns[row].astype(np.int64)
        place = _words(samples, row, depth, frames, process.used())
        told = process.telling(place)
        codes, proven = self._looked_after(process, told.words, times[told.part])
        is_lost = _lacks(told, codes != 0)
        is_vague = is_lost | _lacks(told, process.are_frames(told.words)) if process.has_frames else is_lost
        if not is_lost.any() and (place.is_whole.all() or not is_vague.any()):
            return told, codes, proven
        if not place.is_whole.all():
            place = place.with_all_of(_words(samples, row, depth, frames, None, is_vague))
        if is_lost.any():
            lost = place.of_words(is_lost[place.part]).different()
            self._search(process, lost, times, np.bincount(told.place[codes != 0], minlength=_PLACES))
        told = process.telling(place)
        return told, *self._looked_after(process, told.words, times[told.part])

    @staticmethod
    def _search(process: _Process, lost: _Place, times: Array, n_hits: Array) -> None:
        """Looks for code that evaluations at times (k,) lead to of which no look has met any. ``n_hits`` (_PLACES,):
        how many words at each place led to code in others."""
        interpreter = process.interpreter
        process.searches()
        for _ in range(_SEARCHES):
            codes, _ = process.places.at(lost.words, times[lost.part])
            words = lost_words(interpreter, lost.part, lost.words, lost.place, codes, n_hits)
            if not words:
                break
            if interpreter.layout.has_inlined_calls:
                interpreter.search(words)
            else:
                interpreter.learn(words)
        process.searched()

    def _found(self, process: _Process, place: _Place, codes: Array, proven: Array, truth: Array) -> _Found:
        """What the words of each evaluation lead to."""
        hit = np.flatnonzero(codes)
        if process.interpreter.shims:
            hit = hit[~np.isin(codes[hit], list(process.interpreter.shims))]
        codes = self._doubted(process, place, codes, proven, hit)
        frames = np.zeros(0, np.int64)
        if process.interpreter.layout.has_inlined_calls:
            frames = np.flatnonzero(process.are_frames(place.words))
            frames = frames[np.argsort(place.part[frames], kind="stable")]
        if place.is_whole.any():
            some = np.concatenate([hit, frames])
            process.scanned(int(np.count_nonzero(place.is_whole)), place.place[some[place.is_whole[place.part[some]]]])
        hit = hit[self._reliable(process, place.place[hit], place.part[hit], codes[hit], truth,
                                 process.places.are_starts(place.words[hit]))]
        return _Found(place, codes, proven, hit, frames)

    @staticmethod
    def _doubted(process: _Process, place: _Place, codes: Array, proven: Array, hit: Array) -> Array:
        """The codes (w,), but NOT_PROVEN where one was seen only later and the word, one of ``hit``, does not lead
        behind a call in it, though another evaluation was called from there: it was other code then."""
        from collector.runtimes.places_cpython import NOT_PROVEN
        if process.interpreter.callers is None:
            return codes
        is_outer = np.append(False, place.row[1:] == place.row[:-1])
        asked = hit[is_outer[place.part[hit]] & (codes[hit] > NOT_PROVEN)]
        _, first, kind = np.unique(_mixed(place.words[asked]) + codes[asked], return_index=True, return_inverse=True)
        some = asked[first]
        may = process.may_have_called(codes[some].tolist(), place.words[some].tolist())
        codes = codes.copy()
        codes[asked[~may[kind] & ~proven[asked]]] = NOT_PROVEN
        return codes

    @staticmethod
    def _looked_after(process: _Process, words: Array, times: Array) -> tuple[Array, Array]:
        """What CodePlaces.at says of words, when the code that is there by now has been looked after."""
        interpreter = process.interpreter
        last_ns = int(times.max(initial=0))
        while True:
            codes, proven = process.places.at(words, times)
            there = (interpreter.codes.keys() & distinct(codes[codes != 0]).tolist()) - interpreter.gone.keys()
            process.hit = [interpreter.codes[number].address for number in there]
            doubtful = [interpreter.codes[number].address for number in there
                        if not interpreter.is_proven(number, last_ns)]
            n_changes = interpreter.n_changes
            interpreter.look_after(doubtful)
            if interpreter.n_changes == n_changes:
                return codes, proven

    @staticmethod
    def _reliable(process: _Process, places: Array, part: Array, codes: Array, truth: Array, is_start: Array) -> Array:
        """Of words (h,) that lead to code those that are to be believed (indices), the best first: of each evaluation
        those that lead where the one at the place does that has been right most often; all where no place is reliable.

        ``truth`` (k,): the code that evaluations certainly carried out, 0: unknown. ``is_start`` (h,): the word leads
        to the beginning of the code, and so says little of the place in it.
        """
        from collector.runtimes.places_cpython import NOT_PROVEN
        is_known = (truth[part] != 0) & (codes != NOT_PROVEN)
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
    def _certain(process: _Process, tids: Array, times: Array, begin: Array, n: int) -> Array:
        """The code that each of ``n`` evaluations carried out for certain; 0: unknown. Of samples (k,) their threads,
        times, and the first evaluation of each."""
        truth = np.zeros(n, np.uint64)
        size = np.diff(np.append(begin, n))
        for tid in distinct(tids).tolist():
            which, chains = process.looks_of(tid).certain(times)
            which[tids != tid] = -1
            for number in distinct(which[which >= 0]).tolist():
                chain = chains[number]
                starts = begin[(which == number) & (size == len(chain))]
                truth[starts[:, None] + np.arange(len(chain))] = [activation[0].code for activation in reversed(chain)]
        return truth

    @staticmethod
    def _waits_for_gil(process: _Process, samples: ClockSamples, rows: Array) -> Array:
        """Which samples are of threads at a lock that lies in the interpreter's own state."""
        start, size = process.runtime
        there: Array = samples.regs[rows, _RDI] - np.uint64(start) < np.uint64(size)
        # The functions that wait are those of another library; its own have such pointers for many reasons.
        low, high = process.text
        there &= samples.regs[rows, _RIP] - np.uint64(low) >= np.uint64(high - low)
        if samples.known is not None:
            there &= samples.known[rows] >> np.uint64(_RDI) & np.uint64(1) != 0
        return there


def _lacks(place: _Place, is_telling: Array) -> Array:
    """Which evaluations (k,) have none of the words (w,) that tell something."""
    lacking = np.ones(len(place.row), np.bool_)
    lacking[place.part[is_telling]] = False
    return lacking


def _within(pcs: Array, stretches: Array) -> Array:
    """Which pcs, of any shape, lie in one of stretches (k, 2)."""
    found = np.zeros(pcs.shape, np.bool_)
    for begin, end in stretches:
        found |= pcs - begin < end - begin
    return found


def lost_words(interpreter: Interpreter, part: Array, words: Array, place: Array, codes: Array,
               n_hits: Array) -> list[int]:
    """Of words (w,) of some parts of stacks, at places in these, those that may lead to code that is not known, in
    parts where none leads to ``codes`` (w,) that are known (0: to none). First those at the places with most hits, and
    not too many."""
    is_known = np.zeros(int(part.max(initial=-1)) + 1, np.bool_)
    is_known[part[codes != 0]] = True
    asked = ~is_known[part] & (words > 0xFFFF) & (words < np.uint64(1 << 47))
    if interpreter.layout.has_inlined_calls:
        asked &= words & np.uint64(1) == 0
    some = np.flatnonzero(asked)
    order = some[np.argsort(-n_hits[place[some]], kind="stable")]
    found = (word for word in dict.fromkeys(words[order].tolist()) if not interpreter.is_no_code(word))
    return list(islice(found, _SEARCHED_AT_ONCE if interpreter.layout.has_inlined_calls else None))


def _words(samples: ClockSamples, row: Array, depth: Array, frames: Frames, used: Array | None = None,
           wanted: Array | None = None) -> _Place:
    """The part of the stack of each evaluation (k,): from the one that it called in the end to its own end; for the
    innermost one the registers, too. Of these the words at ``used`` places (_PLACES,), or all; of evaluations that are
    not ``wanted`` (k,) none."""
    low = samples.low[row]
    sps = frames.sps
    is_last = depth + 1 >= frames.length[row]
    high = np.where(is_last, sps[row, depth] + np.uint64(_BEHIND), sps[row, np.minimum(depth + 1, sps.shape[1] - 1)])
    is_innermost = np.append(True, row[1:] != row[:-1])
    begin = np.where(is_innermost, low, np.append(np.uint64(0), high[:-1]))
    n_words = samples.n_words[row]
    end = np.where(high - low < np.uint64(_FAR), (high - low) // _WORD, np.uint64(0)).astype(np.int64)
    first = np.where(begin - low < np.uint64(_FAR), (begin - low) // _WORD, np.uint64(0)).astype(np.int64)
    last = np.minimum(end, n_words)
    first = np.clip(np.maximum(first, last - _WORDS_MAX), 0, last)
    if wanted is not None:
        first, is_innermost = np.where(wanted, first, last), is_innermost & wanted
    part, k = _all_of(first, last) if used is None else _used_of(first, last, end, np.flatnonzero(used))
    of = row[part]
    words = samples.words[samples.base[of] + ((samples.first[of] + k) & samples.mask[of])]
    inner = np.flatnonzero(is_innermost)
    # Registers are one thing where the evaluation itself was met, another where something that it called was.
    number = _WORDS_MAX + 1 + np.arange(_N_REGISTERS) + _N_REGISTERS * (depth[inner, None] > 0)
    of, register = np.nonzero(np.ones(number.shape, np.bool_) if used is None else used[number])
    is_whole = np.full(len(row), used is None) if wanted is None else wanted & (used is None)
    return _Place(row, depth, np.concatenate([samples.regs[row[inner[of]], register], words]),
                  np.concatenate([inner[of], part]),
                  np.concatenate([number[of, register], np.minimum(end[part] - k, _WORDS_MAX)]), is_whole)


def _all_of(first: Array, last: Array) -> tuple[Array, Array]:
    """Of parts (k,) of stacks all words from ``first`` to ``last``: of which part, and which word."""
    n = last - first
    part = np.repeat(np.arange(len(n)), n)
    return part, np.arange(len(part)) + np.repeat(first - np.cumsum(n) + n, n)


def _used_of(first: Array, last: Array, end: Array, places: Array) -> tuple[Array, Array]:
    """The same of those words alone that are so many below the ``end``s."""
    k = end[:, None] - places[places <= _WORDS_MAX][::-1]
    there = np.nonzero((k >= first[:, None]) & (k < last[:, None]))
    return there[0], k[there]


def _mixed(words: Array) -> Array:
    """Words (n,) of 64 bits, each as another one that sums tell apart."""
    words = (words ^ words >> np.uint64(31)) * np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ words >> np.uint64(29)) * np.uint64(0xC2B2AE3D27D4EB4F)
    mixed: Array = words ^ words >> np.uint64(32)
    return mixed


__all__ = ["TORN", "UNKNOWN", "VERIFIED", "PythonFrames", "lost_words"]
