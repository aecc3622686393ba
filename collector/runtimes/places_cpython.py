"""Which code object of CPython a word led to when a sample was taken. Pure.

Code comes to be where other code was. Of each code object it is known when it was there for certain, first and last,
and of one that is gone since when it certainly was not, and whether its memory was used again by then. So of a word at
a time:

    the code was there before and after   that one, proven
    between the last time that one was    NOT_PROVEN: either of them, or a third one
    there and the first time of the next
    the same, but nothing else has come   that one, not proven: an interpreter that ends frees all that it has
    there, as far as is known             carried out since the last look
    before the first that was ever seen   that one, not proven: nothing speaks against it
    after the last time, not gone         that one, as long as whoever asks has looked after it
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from collector.runtimes.cpython import Interpreter

Array = npt.NDArray[np.uint64]
_GRAIN = np.uint64(6)  # bits: stretches of 64 bytes are told apart
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
NOT_PROVEN = 1  # stands for code that was at a place when its identity is not known; no number of a code object


class CodePlaces:
    """Where the code objects of an interpreter are and were, as words of stacks lead to them."""

    def __init__(self, interpreter: Interpreter) -> None:
        self._interpreter = interpreter
        self._starts, self._ends, self._codes = np.zeros((3, 0), np.uint64)
        self._firsts = np.zeros(0, np.int64)
        self._gone = np.zeros((0, 3), np.uint64)  # starts, ends, numbers; the latest first
        # There first, and last, its memory not used again until, and not there since.
        self._gone_times = np.zeros((0, 4), np.int64)
        self._gone_to = np.zeros(1, np.uint64)  # the largest of the first so many ends, by start
        self._gone_starts = np.zeros(0, np.uint64)
        # The numbers of code objects that lie in one another: some are gone, and would hide what has come.
        self.overlapping: set[int] = set()
        self._n_changes = -1
        self._sieve: Sieve | None = None
        self._sieved = np.zeros(0, np.uint64)  # the frames in it

    def at(self, words: Array, times: npt.NDArray[np.int64]) -> tuple[Array, npt.NDArray[np.bool_]]:
        """The numbers (n,) of the code objects that words lead to at times (n,), 0: to none, NOT_PROVEN: to one that is
        not known; and which of them were there then for certain."""
        self._sort()
        found = np.zeros(len(words), np.uint64)
        since = np.zeros(len(words), np.int64)  # that code has been there for certain
        is_late = np.zeros(len(words), np.bool_)  # it may have gone by then
        if len(self._starts):
            some = np.flatnonzero((words >= self._starts[0]) & (words < self._ends[-1]))
            at = self._starts.searchsorted(words[some], "right") - 1
            inside = words[some] < self._ends[at]
            some, at = some[inside], at[inside]
            found[some], since[some] = self._codes[at], self._firsts[at]
        if len(self._gone):
            open_ = (found == 0) | (times < since)
            some = np.flatnonzero(open_ & (words < self._gone_to[self._gone_starts.searchsorted(words, "right")]))
            if len(some):
                found[some], since[some], is_late[some] = self._before(words[some], times[some], found[some],
                                                                       since[some])
        return found, (found > NOT_PROVEN) & (times >= since) & ~is_late

    def _before(self, words: Array, times: npt.NDArray[np.int64], found: Array,
                since: npt.NDArray[np.int64]) -> tuple[Array, npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """The same with the code that is gone, back in time from what is there now; and which may have gone by then."""
        found, since, is_late = found.copy(), since.copy(), np.zeros(len(found), np.bool_)
        for (start, end, code), (first, last, unused, gone) in zip(self._gone, self._gone_times, strict=True):
            inside = (words >= start) & (words < end)
            found[inside & (found != 0) & (times >= gone) & (times < since)] = NOT_PROVEN
            earlier = inside & (times < gone)
            is_late[earlier] = times[earlier] > last
            is_alone = (found == 0) & (times <= unused)
            found[earlier] = np.where(~is_late | is_alone, code, np.uint64(NOT_PROVEN))[earlier]
            since[earlier] = first
        return found, since, is_late

    def may_lead(self, words: Array, frames: Array) -> npt.NDArray[np.bool_]:
        """Which words (n,) may lead to code, or have done so, or be one of ``frames`` (k,): all that do, and a few
        others."""
        self._sort()
        if self._sieve is None or self._sieved is not frames:
            some = (self._starts, self._gone[:, 0], frames), (self._ends, self._gone[:, 1], frames + np.uint64(1))
            self._sieve, self._sieved = Sieve(*map(np.concatenate, some)), frames
        return self._sieve.may_have(words)

    def are_starts(self, words: Array) -> npt.NDArray[np.bool_]:
        """Which words (n,) lead to the first instruction of code."""
        if not len(self._starts):
            return np.zeros(len(words), np.bool_)
        found: npt.NDArray[np.bool_] = self._starts[np.minimum(self._starts.searchsorted(words),
                                                               len(self._starts) - 1)] == words
        return found

    def _sort(self) -> None:
        interpreter = self._interpreter
        if self._n_changes == interpreter.n_changes:
            return
        self._n_changes, self._sieve = interpreter.n_changes, None
        inlined = interpreter.layout.has_inlined_calls
        places = {number: (code.bytecode if inlined else code.address, code.size if inlined else 1)
                  for number, code in interpreter.codes.items()}
        known = sorted((*places[number], number) for number in interpreter.numbers.values())
        self._starts, size, self._codes = np.array(known, np.uint64).reshape(-1, 3).T.copy()
        self._ends = self._starts + size
        inside = self._starts[1:] < np.maximum.accumulate(self._ends)[:-1]
        around = self._ends[:-1] > self._starts[1:]
        self.overlapping = {*self._codes[1:][inside].tolist(), *self._codes[:-1][around].tolist()}
        self._firsts = np.array([interpreter.first_ns[number] for *_, number in known], np.int64)
        gone = sorted(interpreter.gone.items(), key=lambda one: one[1].since_ns, reverse=True)
        self._gone = np.array([(places[number][0], sum(places[number]), number) for number, _ in gone],
                              np.uint64).reshape(-1, 3)
        self._gone_times = np.array([(interpreter.first_ns[number], *times) for number, times in gone],
                                    np.int64).reshape(-1, 4)
        order = np.argsort(self._gone[:, 0])
        self._gone_starts = self._gone[order, 0]
        self._gone_to = np.maximum.accumulate(np.append(np.uint64(0), self._gone[order, 1]))


class Sieve:
    """Stretches of addresses, so that most of the words outside of all of them are told at a glance: a table of what is
    inside, each address at a place that is made of it, which it shares with others."""

    def __init__(self, starts: Array, ends: Array) -> None:
        first, last = starts >> _GRAIN, ends - np.uint64(1) >> _GRAIN
        n = (last - first + np.uint64(1)).astype(np.int64)
        grains = np.repeat(first - (np.cumsum(n) - n).astype(np.uint64), n) + np.arange(n.sum(), dtype=np.uint64)
        self._shift = np.uint64(64 - min(max(int(n.sum()).bit_length() + 3, 12), 20))
        self._is_there = np.zeros(1 << 64 - int(self._shift), np.bool_)
        self._is_there[(grains * _SPREAD >> self._shift).view(np.int64)] = True

    def may_have(self, words: Array) -> npt.NDArray[np.bool_]:
        """Which words (n,) may be inside of one."""
        found: npt.NDArray[np.bool_] = self._is_there[((words >> _GRAIN) * _SPREAD >> self._shift).view(np.int64)]
        return found
