"""Which functions of CPython evaluations in stacks carried out: by their words and the looks at their threads."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from collector.arrays import distinct, indices
from collector.clock import NS_PER_S
from collector.events import Array, ClockSamples
from collector.runtimes.callers_cpython import UNIT
from collector.runtimes.cpython import PyFrame
from collector.runtimes.looks import Looks, Told
from collector.runtimes.made_up import MadeUp
from collector.runtimes.marks import TORN, UNKNOWN, VERIFIED
from collector.runtimes.places_cpython import NOT_PROVEN
from collector.session.merging import Managed, within
from collector.session.placing import Frames
from collector.session.python_evaluations import PLACES, Found, Place, lacks, lost_words, mixed, words_of
from collector.session.python_process import Process, Run

GIL = b"<global interpreter lock>"
NOT_KNOWN = b"<Python functions, not known>"
_GONE_KEPT_NS = 5 * NS_PER_S
_SEARCHES = 8  # for code that no look has met, in a batch
_RELIABLE, _FAR_MORE = 0.85, 2
_SELDOM = 0.05  # how often a place is right that says nothing
_RDI, _RIP = 5, 16


def functions_of(process: Process, samples: ClockSamples, rows: Array, frames: Frames, made_up: MadeUp,
                 counts: list[int]) -> Inserted | None:
    """Those of the samples in ``rows`` (k,), all of the process; None: no evaluation is in their stacks. ``counts``:
    how many of each mark there are in all."""
    inside = np.arange(frames.pcs.shape[1]) < frames.length[rows, None]
    is_eval = inside & within(frames.pcs[rows], process.evaluation)
    which, depth = np.nonzero(is_eval)
    if not len(which):
        return None
    place, codes, proven = _placed(process, samples, rows[which], depth, frames)
    begin = np.append(0, indices(np.diff(place.row)) + 1)
    mine = place.row[begin]
    tids, times = samples.tid[mine], samples.time_ns[mine]
    moment = process.moments(tids, times)
    truth = _certain(process, tids, times, begin, len(place.row))
    # Numbers of moments are two for each that is between the same looks.
    between = (moment + 1).astype(np.uint64) // np.uint64(2) + (tids.astype(np.uint64) << np.uint64(40))
    found = _found(process, place, codes, proven, truth, np.repeat(between, np.diff(np.append(begin, len(place.row)))))
    process.forget(process.interpreter.forget_before(time.monotonic_ns() - _GONE_KEPT_NS))
    waits = _waits_for_gil(process, samples, mine)
    # Whatever is alike in all that tells functions has the same ones: once for all such samples.
    size = np.diff(np.append(begin, len(place.row)))
    number = np.arange(len(place.row)) - np.repeat(begin, size)
    anchored = np.add.reduceat(mixed(found.signature + number.astype(np.uint64)), begin)
    alike = anchored + mixed(moment.astype(np.uint64) * np.uint64(2) + waits
                             + (tids.astype(np.uint64) << np.uint64(40)))
    _, first, kind, n_alike = np.unique(alike, return_index=True, return_inverse=True, return_counts=True)
    runs, first_runs = Runs(process, made_up), []
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
        counts[mark] += n
    first_run = np.array(first_runs)[kind]
    which_run = np.repeat(first_run, size) + number
    code, ahead = np.array(runs.own, np.uint64)[which_run].T
    is_of_clock = np.zeros(len(mine), np.bool_) if samples.is_of_clock is None else samples.is_of_clock[mine]
    if is_of_clock.any():
        process.missed(float(np.mean(np.array(runs.lacks)[first_run[is_of_clock]])))
    n_looks = np.zeros(len(mine))
    n_looks[is_of_clock] = process.looks_within(tids[is_of_clock], times[is_of_clock])
    word = _of_instructions(process, found, np.repeat(n_looks, size), np.repeat(~is_of_clock, size))
    exact = np.where((code == found.code) & (code != 0) & (word != 0), word + ahead, np.uint64(0))
    return Inserted(place.row, depth, which_run, runs.addresses, exact, (number == 0) & np.repeat(waits, size))


def _of_instructions(process: Process, found: Found, n_looks: Array, has_left: Array) -> Array:
    """The words (k,) that evaluations are known by, each moved to where its instruction is; 0: it tells none. See
    Steps.led."""
    interpreter, steps = process.interpreter, process.steps
    if not interpreter.layout.has_inlined_calls:
        return found.word
    words = found.word.copy()
    asked = indices(np.isin(found.code, np.array(list(interpreter.codes), np.uint64)))
    if not len(asked):
        return words
    _, first, which = np.unique(mixed(words[asked]) + found.code[asked], return_index=True, return_inverse=True)
    different = words[asked[first]]
    places = [(code, word - interpreter.codes[code].bytecode)
              for code, word in zip(found.code[asked[first]].tolist(), different.tolist(), strict=True)]
    sums = [np.bincount(which, column[asked]).tolist() for column in (n_looks, has_left)]
    for (code, offset), its_looks, n_left in zip(places, *sums, strict=True):
        steps.led(code, offset, its_looks, n_left > 0)
    behind = np.array([UNIT * steps.is_behind(*place, process.line_starts(place[0])) for place in places], np.uint64)
    # Later versions note in frames where they are only where that may be asked for, and looks have that.
    is_old = np.array([interpreter.layout.version < (3, 14) and steps.is_old(*place) for place in places])
    words[asked] = np.where(is_old, np.uint64(0), different - behind)[which]
    return words


def _placed(process: Process, samples: ClockSamples, row: Array, depth: Array,
            frames: Frames) -> tuple[Place, Array, Array]:
    """The words of evaluations (k,), and what CodePlaces.at says of them."""
    times = samples.time_ns[row].astype(np.int64)
    place = words_of(samples, row, depth, frames, process.used())
    told = process.telling(place)
    codes, proven = _looked_after(process, told.words, times[told.part])
    is_lost = lacks(told, (codes != 0) & (process.reliability(told.place) >= _SELDOM))
    is_vague = is_lost | lacks(told, process.are_frames(told.words)) if process.has_frames else is_lost
    if not is_lost.any() and (place.is_whole.all() or not is_vague.any()):
        return told, codes, proven
    if not place.is_whole.all():
        place = place.with_all_of(words_of(samples, row, depth, frames, None, is_vague))
    if is_lost.any():
        lost = place.of_words(is_lost[place.part]).different()
        _search(process, lost, times, np.bincount(told.place[codes != 0], minlength=PLACES))
    told = process.telling(place)
    return told, *_looked_after(process, told.words, times[told.part])


def _search(process: Process, lost: Place, times: Array, n_hits: Array) -> None:
    """Looks for code that evaluations at times (k,) lead to of which no look has met any. ``n_hits`` (PLACES,):
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


def _found(process: Process, place: Place, codes: Array, proven: Array, truth: Array, moments: Array) -> Found:
    """What the words of each evaluation lead to."""
    hit = indices(codes)
    if process.interpreter.shims:
        hit = hit[~np.isin(codes[hit], list(process.interpreter.shims))]
    codes = _doubted(process, place, codes, proven, hit)
    frames = np.zeros(0, np.int64)
    if process.interpreter.layout.has_inlined_calls:
        frames = indices(process.are_frames(place.words))
        frames = frames[np.argsort(place.part[frames], kind="stable")]
    if place.is_whole.any():
        some = np.concatenate([hit, frames])
        process.scanned(int(np.count_nonzero(place.is_whole)), place.place[some[place.is_whole[place.part[some]]]])
    hit = hit[_reliable(process, place.place[hit], place.part[hit], codes[hit], truth, moments,
                        process.places.are_starts(place.words[hit]))]
    return Found(place, codes, proven, hit, frames)


def _doubted(process: Process, place: Place, codes: Array, proven: Array, hit: Array) -> Array:
    """The codes (w,), but NOT_PROVEN where one was seen only later and the word, one of ``hit``, does not lead
    behind a call in it, though another evaluation was called from there: it was other code then."""
    if process.interpreter.callers is None:
        return codes
    is_outer = np.append(False, place.row[1:] == place.row[:-1])
    asked = hit[is_outer[place.part[hit]] & (codes[hit] > NOT_PROVEN)]
    _, first, kind = np.unique(mixed(place.words[asked]) + codes[asked], return_index=True, return_inverse=True)
    some = asked[first]
    may = process.may_have_called(codes[some].tolist(), place.words[some].tolist())
    codes = codes.copy()
    codes[asked[~may[kind] & ~proven[asked]]] = NOT_PROVEN
    return codes


def _looked_after(process: Process, words: Array, times: Array) -> tuple[Array, Array]:
    """What CodePlaces.at says of words, when the code that is there by now has been looked after."""
    interpreter = process.interpreter
    last_ns = int(times.max(initial=0))
    while True:
        codes, proven = process.places.at(words, times)
        there = (interpreter.codes.keys() & distinct(codes[codes != 0]).tolist()) - interpreter.gone.keys()
        process.hit = [interpreter.codes[number].address for number in there]
        doubtful = [interpreter.codes[number].address for number in there | process.places.overlapping
                    if not interpreter.is_proven(number, last_ns)]
        n_changes = interpreter.n_changes
        interpreter.look_after(doubtful)
        if interpreter.n_changes == n_changes:
            # Their process has ended: what has come there since they were seen nobody knows.
            lost = np.array(sorted(n for n in there if not interpreter.is_proven(n, last_ns)), np.uint64)
            late = indices(np.isin(codes, lost))
            seen = np.array([interpreter.seen_ns(number) for number in lost.tolist()], np.int64)
            proven[late] &= times[late] <= seen[lost.searchsorted(codes[late])]
            return codes, proven


def _reliable(process: Process, places: Array, part: Array, codes: Array, truth: Array, moments: Array,
              is_start: Array) -> Array:
    """Of words (h,) that lead to code those that are to be believed (indices), the best first: of each evaluation
    those that lead where the one at the place does that has been right most often, if that is nearly always, or far
    more often than at the places that lead elsewhere; else all but those at places that are hardly ever right. How
    often that is, is known no better than what was carried out: a program that does the same things in turns may have
    come back between two looks that are alike.

    ``truth`` (k,): the code that evaluations certainly carried out, 0: unknown; ``moments`` (k,): alike between the
    same looks. ``is_start`` (h,): the word leads to the beginning of the code, and so says little of the place in it.
    """
    is_known = (truth[part] != 0) & (codes != NOT_PROVEN)
    some = part[is_known]
    process.learn(places[is_known], codes[is_known], truth[some], moments[some])
    reliability = process.reliability(places)
    believed = _believed(part, codes, reliability, len(truth))
    says = reliability >= _SELDOM
    order = np.lexsort((-reliability, is_start, part))
    kept: Array = order[((believed[part] == 0) & says | (believed[part] == codes))[order]]
    return kept


def _believed(part: Array, codes: Array, reliability: Array, n: int) -> Array:
    """The code (n,) that the best place of each evaluation leads to, if that is so much better than the places that
    lead elsewhere that it is believed alone; else 0."""
    order = np.lexsort((-reliability, part))
    is_best = np.append(True, part[order[1:]] != part[order[:-1]]) if len(order) else np.zeros(0, np.bool_)
    best = order[is_best]
    believed, elsewhere = np.zeros(n, np.uint64), np.zeros(n)
    believed[part[best]] = codes[best]
    np.maximum.at(elsewhere, part, np.where(codes == believed[part], 0, reliability))
    is_reliable = reliability[best] >= np.minimum(_RELIABLE, _FAR_MORE * elsewhere[part[best]])
    believed[part[best[~(is_reliable & (reliability[best] >= _SELDOM))]]] = 0
    return believed


def _certain(process: Process, tids: Array, times: Array, begin: Array, n: int) -> Array:
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


def _waits_for_gil(process: Process, samples: ClockSamples, rows: Array) -> Array:
    """Which samples are of threads at a lock that lies in the interpreter's own state."""
    start, size = process.runtime
    there: Array = samples.regs[rows, _RDI] - np.uint64(start) < np.uint64(size)
    # The functions that wait are those of another library; its own have such pointers for many reasons.
    low, high = process.text
    there &= samples.regs[rows, _RIP] - np.uint64(low) >= np.uint64(high - low)
    if samples.known is not None:
        there &= samples.known[rows] >> np.uint64(_RDI) & np.uint64(1) != 0
    return there


class Runs:
    """The functions of evaluations, once for all samples that have the same."""

    def __init__(self, process: Process, made_up: MadeUp) -> None:
        self.addresses: list[list[int]] = []  # of each run, innermost first
        self.own: list[tuple[int, int]] = []  # and see Run
        self.lacks: list[bool] = []  # and whether it, or one behind it, has a function without callers
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
        runs = [known.get(each) or self._run(each) for each in reversed(told)]
        self.addresses += [run.addresses for run in runs]
        self.own += [run.own for run in runs]
        self.lacks += [any(run.own[0] and run.n_unknown for run in runs)] * len(runs)
        if is_waiting:
            self.addresses[first] = [self._made_up.start_of(GIL) + 1, *self.addresses[first]]
        return (sum(run.n_verified for run in runs), sum(run.n_torn for run in runs),
                sum(run.n_unknown for run in runs))

    def _run(self, told: Told) -> Run:
        """The frames of an activation."""
        known, counts = self._process.addresses, [0, 0, 0]
        found = [known.get(frame, 0) or self._address(frame) for frame in told.frames]
        for address, mark in zip(found, told.marks, strict=True):
            counts[UNKNOWN if address == self._not_known else TORN if mark == TORN else VERIFIED] += 1
        run = Run(found, self._ahead(told.frames[0].code), counts[VERIFIED], counts[TORN], counts[UNKNOWN])
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


class Inserted(Managed):
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
