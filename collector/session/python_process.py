"""What is known of a process with CPython: looks at its threads, its code, and which words of frames lead to that."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from itertools import compress
from typing import NamedTuple

import numpy as np

from collector.arrays import distinct, indices
from collector.clock import NS_PER_MS
from collector.events import Array
from collector.runtimes.callers_cpython import UNIT
from collector.runtimes.cpython import Chain, Interpreter, PyFrame
from collector.runtimes.looks import Looks, Told
from collector.runtimes.places_cpython import CodePlaces
from collector.runtimes.steps_cpython import Steps
from collector.runtimes.ways_cpython import Ways
from collector.session.python import LOOK_MIN_NS
from collector.session.python_evaluations import PLACES, Place, mixed
from collector.session.schedule import DRAIN_PERIOD_NS

# Between looks: so long that some samples come.
_SAMPLES_BETWEEN, _LOOK_MAX_NS = 5, 400 * NS_PER_MS
# While one look in so many, or more, tells what those before did not (Looks.add), they are as close as they may be;
# where fewer do, the farther apart. They are not at even distances, so that they meet all of what a program does in
# turns; at most there is one between two drains, each of which has its own.
_CALM, _SURPRISE_WEIGHT = 1 / 20, 1 / 8
_CALM_MAX_NS, _GOLDEN = DRAIN_PERIOD_NS * 2 // 3, 0.618034
# The first ones are closer, whatever they tell: a program that has run for long shows at once what else takes seconds.
_EAGER_NS, _EAGER = 10 * NS_PER_MS, 32
_THREADS_AT_ONCE = 32
_FRAMES_MAX = 1 << 16
# Words at all places are looked at until those of so many evaluations were, and in one of so many batches.
_SCANNED, _SCANNED_EVERY = 500, 8
_DOUBT = 1.2  # so many words at each place are taken to be right, and so many wrong, before there is any


class Run(NamedTuple):
    """The functions of an activation."""

    addresses: list[int]  # innermost first
    # The code of the innermost one, and how far made-up addresses are ahead of places in it; zeros where words do not
    # lead to places.
    own: tuple[int, int]
    n_verified: int  # frames by mark
    n_torn: int
    n_unknown: int


class Process:
    """A process that has CPython in it."""

    def __init__(self, interpreter: Interpreter, places: CodePlaces, text: tuple[int, int], evaluation: Array,
                 interval_ns: int = 0) -> None:
        """``text``: where the interpreter's own code is; ``evaluation``: stretches (k, 2) of the function that carries
        out frames; ``interval_ns`` of the clock."""
        self.interpreter = interpreter
        self._interval_ns = interval_ns
        self.text = text
        self.evaluation = evaluation
        self.runtime = interpreter.symbols[b"_PyRuntime"]
        self.looks: dict[int, Looks] = {}  # by tid
        self._ways = Ways()
        self.states: dict[int, int] = {}
        self.lately: list[int] = []  # tids that had samples in the last batch, and of threads that came since then
        self.hit: list[int] = []  # addresses of code objects that the last samples led to
        self.due_ns = 0  # when the next look is
        self._period_ns = LOOK_MIN_NS  # between looks, while no code comes and goes
        self._last_ns = 0  # the time of the last sample
        self._n_changes = -1  # of code, at the last look
        self._n_eager = _EAGER  # looks yet to come
        self._part = 0.0
        self._surprise = 1.0  # what part of looks at threads tells what those before could not
        self.places = places
        self.starts: dict[int, int] = {}  # where functions begin among made-up addresses, by number of their code
        self.addresses: dict[PyFrame, int] = {}  # made-up ones
        self.ahead: dict[int, tuple[int, int]] = {}  # see Run.own, by number of the code
        self.runs: dict[Told, Run] = {}  # of activations that were told before
        self.steps = Steps()
        self._line_starts: dict[int, list[int]] = {}  # by number of the code
        # Where the C function keeps its place in the code is the compiler's choice, and what was there before stays in
        # other words of its frame: which ones are right is learnt.
        self._n_right: Array = np.zeros(PLACES)
        self._n_wrong: Array = np.zeros(PLACES)
        self._used: Array = np.zeros(PLACES, np.bool_)  # places at which words have led to code, or were frames
        self._n_scanned = self._n_batches = 0
        self._met: set[int] = set()  # addresses of frames
        self._frames: Array = np.zeros(0, np.uint64)  # the same, sorted
        self._n_searched = -1  # changes of code, as of the last search
        self._before: dict[tuple[int, int], int] = {}  # instructions, by code object and the place behind them
        self._called: set[tuple[int, int]] = set()  # such places that a look has found an evaluation at, amid a call

    @property
    def is_eager(self) -> bool:
        """Whether first looks are yet to come, which are close to each other."""
        return self._n_eager > 0

    def sampled(self, tids: Array, times: Array) -> None:
        """Samples (n,) of threads."""
        self.lately = list(dict.fromkeys(tids[::-1].tolist()))
        for tid in self.looks.keys() - self.states.keys() - set(self.lately):  # it is over
            del self.looks[tid]
        last_ns = int(times.max())
        needed_ns = _SAMPLES_BETWEEN * (last_ns - self._last_ns) // len(times)
        needed_ns = min(max(needed_ns, LOOK_MIN_NS), 2 * self._period_ns, _LOOK_MAX_NS)
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
                if surprises[-1] and self.interpreter.layout.has_inlined_calls:
                    self._ways.add(chain)
                self._met.update(frame.address for activation in chain for frame in activation)
                self._note_places(chain)
            elif chain is None:
                self.states.pop(tid, None)
            elif tid in self.looks:
                self.looks[tid].add_nothing()
        is_changed, self._n_changes = self._n_changes != self.interpreter.n_changes, self.interpreter.n_changes
        is_changed |= self.interpreter.has_new_threads
        if surprises:
            self._surprise += _SURPRISE_WEIGHT * (sum(surprises) / len(surprises) - self._surprise)
        self._n_eager -= 1
        self.due_ns = time.monotonic_ns() + (
            _EAGER_NS if self.is_eager else LOOK_MIN_NS if is_changed else max(self._period_ns, self._calm_ns()))

    def missed(self, part: float) -> None:
        """What part of a batch's clock samples had functions whose callers no look has told: as likely the next one
        tells something new."""
        if part > self._surprise:
            self._surprise = part
            self.due_ns = min(self.due_ns, time.monotonic_ns() + max(self._period_ns, self._calm_ns()))

    def line_starts(self, code: int) -> list[int]:
        """At which offsets lines begin in the code object of a number, in order."""
        found = self._line_starts.get(code)
        if found is None:
            found = self._line_starts[code] = [offset for offset, _ in self.interpreter.lines(code)]
        return found

    def _note_places(self, chain: Chain) -> None:
        """Where evaluations are, and of all but the innermost one the place that they have called from."""
        interpreter = self.interpreter
        if interpreter.layout.has_inlined_calls:
            inner = [activation[0] for activation in chain if activation[0].code in interpreter.codes]
            self.steps.met([(frame.code, interpreter.offset(frame)) for frame in inner])
        if interpreter.callers is None:
            return
        if len(self._called) > _FRAMES_MAX:
            self._called.clear()
        self._called.update((activation[0].code, activation[0].offset + UNIT) for activation in chain[:-1])

    def _calm_ns(self) -> int:
        """How long until the next look, as far as looks tell nothing new."""
        self._part = (self._part + _GOLDEN) % 1
        return int(min(LOOK_MIN_NS * _CALM / self._surprise, _CALM_MAX_NS) * (0.75 + self._part / 2))

    def forget(self, codes: Sequence[int]) -> None:
        """Nobody asks any more for code objects of these numbers."""
        self._ways.forget(codes)
        if codes:
            self.steps.forget(codes)
        for code in codes:
            self.starts.pop(code, None)
            self.ahead.pop(code, None)
            self._line_starts.pop(code, None)
        if len(self._before) > _FRAMES_MAX:
            self._before.clear()
        if codes or max(len(self.addresses), len(self.runs)) > _FRAMES_MAX:
            self.addresses.clear()
            self.runs.clear()

    def looks_of(self, tid: int) -> Looks:
        """Those at one thread."""
        found = self.looks.get(tid)
        if found is None:
            found = self.looks[tid] = Looks(self.interpreter.layout.has_inlined_calls, self._ways)
        return found

    def moments(self, tids: Array, times: Array) -> Array:
        """For samples (n,) of threads at times: numbers, alike where the looks around are; see Looks.moments."""
        found = np.zeros(len(tids), np.int64)
        for tid in distinct(tids).tolist():
            mine = tids == tid
            found[mine] = self.looks_of(tid).moments(times[mine])
        return found

    def looks_within(self, tids: Array, times: Array) -> Array:
        """How many looks (n,) come in the time that clock samples of threads, in order of time, stand for."""
        found = np.zeros(len(tids))
        for tid in distinct(tids).tolist():
            mine = indices(tids == tid)
            gaps = self.looks_of(tid).gaps(times[mine])
            own_ns = np.diff(times[mine], prepend=times[mine[0]] - self._interval_ns)
            found[mine] = np.minimum(own_ns, self._interval_ns) / np.where(gaps, gaps, np.inf)
        return found

    def used(self) -> Array | None:
        """The places (PLACES,) at which words are to be looked at in the next batch; None: at all."""
        self._n_batches += 1
        return self._used.copy() if self._n_scanned >= _SCANNED and self._n_batches % _SCANNED_EVERY else None

    def may_have_called(self, codes: Sequence[int], words: Sequence[int]) -> Array:
        """Whether code objects of some numbers may have called at words (n,), as one was seen to or others do; each
        counts once for what is learnt of that. See ``Callers``."""
        interpreter, callers = self.interpreter, self.interpreter.callers
        assert callers is not None
        asked = list(zip(codes, words, strict=True))
        new = [one not in self._before for one in asked]
        self._before.update((one, interpreter.instruction_before(*one)) for one in compress(asked, new))
        before = np.array([self._before[one] for one in asked], np.int64)
        callers.add_places(before[new])
        return callers.may_call(before) | np.array([one in self._called for one in asked], np.bool_)

    def searches(self) -> None:
        """Code is looked for: what led to none is asked again where code has come or gone since, and after a while."""
        self.interpreter.forget_old()
        if self._n_searched != self.interpreter.n_changes:
            self.interpreter.forget_vain()

    def searched(self) -> None:
        """What led to none now does so until further code has come or gone."""
        self._n_searched = self.interpreter.n_changes

    def telling(self, place: Place) -> Place:
        """The same evaluations without most of the words that tell nothing: those that are not frames, and neither
        lead nor have led to code."""
        self._note_frames()
        return place.of_words(indices(self.places.may_lead(place.words, self._frames)))

    def scanned(self, n: int, places: Array) -> None:
        """Of the words of ``n`` evaluations those at ``places`` lead to something."""
        self._used |= np.bincount(places, minlength=PLACES) > 0
        self._n_scanned += n

    def learn(self, places: Array, codes: Array, truth: Array, moments: Array) -> None:
        """Words at places (h,) led to code when ``truth`` (h,) was carried out. All at one place amid the same code of
        one moment count as one."""
        _, which, n_alike = np.unique(mixed(truth ^ mixed(moments)) + places.astype(np.uint64), return_inverse=True,
                                      return_counts=True)
        weights, is_right = 1 / n_alike[which], codes == truth
        self._n_right += np.bincount(places[is_right], weights[is_right], PLACES)
        self._n_wrong += np.bincount(places[~is_right], weights[~is_right], PLACES)

    def reliability(self, places: Array) -> Array:
        """How often words at places (h,) lead to what is carried out, of those that lead to code at all."""
        right, wrong = self._n_right[places], self._n_wrong[places]
        found: Array = (right + _DOUBT) / (right + wrong + 2 * _DOUBT)
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
        some = indices(found)
        found[some] = self._frames[self._frames.searchsorted(words[some])] == words[some]
        return found

    def _note_frames(self) -> None:
        if len(self._frames) != len(self._met):
            if len(self._met) > _FRAMES_MAX:
                self._met.clear()
            self._frames = np.array(sorted(self._met), np.uint64)
