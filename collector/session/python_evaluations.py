"""Evaluations of CPython in stacks, and what the words of their parts of these lead to."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from collector.arrays import distinct, indices
from collector.events import Array, ClockSamples
from collector.runtimes.looks import Anchor, Anchors
from collector.session.placing import Frames

if TYPE_CHECKING:
    from collector.runtimes.cpython import Interpreter

WORDS_MAX = 128  # of an activation's part of the stack: its own frame, and what its callee saved
N_REGISTERS = 16
PLACES = WORDS_MAX + 1 + 2 * N_REGISTERS
_BEHIND = 1024  # bytes above the outermost frame's stack pointer
_SEARCHED_AT_ONCE = 64
_FAR = 1 << 24  # bytes: larger is no copy of a stack
_WORD = np.uint64(8)


class Place(NamedTuple):
    """Where evaluations are in the stacks of n samples: rows and depths (k,), leaf first, and of each the words (w,) of
    its part of the stack, by ``part`` (w,) in k; ``place`` (w,): words below the frame's end, more than
    WORDS_MAX: a register; ``is_whole`` (k,): all of its words were looked at."""

    row: Array
    depth: Array
    words: Array
    part: Array
    place: Array
    is_whole: Array

    def of_words(self, which: Array) -> Place:
        """The same evaluations with some of the words (indices, or a mask)."""
        return self._replace(words=self.words[which], part=self.part[which], place=self.place[which])

    def different(self) -> Place:
        """Of evaluations that have the same words, and so lead to the same code, those of one."""
        alike = np.zeros(len(self.row), np.uint64)
        np.add.at(alike, self.part, mixed(self.words ^ mixed(self.place.astype(np.uint64))))
        some = distinct(self.part)
        _, first = np.unique(alike[some], return_index=True)
        is_first = np.zeros(len(self.row), np.bool_)
        is_first[some[first]] = True
        return self.of_words(is_first[self.part])

    def with_all_of(self, others: Place) -> Place:
        """The same evaluations, of those that ``others`` have as a whole with the words there."""
        own = self.of_words(~others.is_whole[self.part])
        words, part, place = (np.concatenate([getattr(one, name) for one in (own, others)])
                              for name in ("words", "part", "place"))
        return Place(self.row, self.depth, words, part, place, self.is_whole | others.is_whole)


class Found:
    """What the words of evaluations (k,) lead to: code objects, those that are believed most first, and frames."""

    def __init__(self, place: Place, codes: Array, proven: Array, hit: Array, there: Array) -> None:
        """``codes`` (w,) of all words, and which are ``proven``; ``hit`` and ``there``: which lead to code, and to
        frames, by evaluation."""
        self._codes, self._code_words, self._proven = codes[hit], place.words[hit], proven[hit]
        self._frame_words = place.words[there]
        k = np.arange(len(place.row) + 1)
        self._hits = place.part[hit].searchsorted(k)
        self._frames = place.part[there].searchsorted(k)
        some = indices(np.diff(self._hits))
        self.code, self.word = np.zeros((2, len(place.row)), np.uint64)  # (k,): the best, and to which place in it
        self.code[some], self.word[some] = self._codes[self._hits[some]], self._code_words[self._hits[some]]
        # (k,): the same where they lead to the same code and frames.
        self.signature: Array = np.zeros(len(place.row), np.uint64)
        part = np.concatenate([place.part[hit], place.part[there]])
        # Numbers are even.
        told = mixed(np.concatenate([self._codes ^ self._proven.astype(np.uint64), ~self._frame_words]))
        _, once = np.unique(mixed(told + part.astype(np.uint64)), return_index=True)
        np.add.at(self.signature, part[once], told[once])
        self._anchors: dict[int, Anchor] = {}  # by signature

    def anchors(self, first: int, n: int) -> Anchors:
        """Those of the evaluations of a sample, from the outermost one in."""
        signatures = self.signature[first:first + n].tolist()
        for i, signature in enumerate(signatures):
            if signature not in self._anchors:
                self._anchors[signature] = self._anchor(first + i)
        return tuple([self._anchors[signature] for signature in reversed(signatures)])

    def _anchor(self, i: int) -> Anchor:
        hits, frames = slice(self._hits[i], self._hits[i + 1]), slice(self._frames[i], self._frames[i + 1])
        return Anchor(frozenset(self._codes[hits].tolist()), frozenset(self._frame_words[frames].tolist()),
                      bool(self._proven[hits].all()))


def lacks(place: Place, is_telling: Array) -> Array:
    """Which evaluations (k,) have none of the words (w,) that tell something."""
    lacking = np.ones(len(place.row), np.bool_)
    lacking[place.part[is_telling]] = False
    return lacking


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
    some = indices(asked)
    order = some[np.argsort(-n_hits[place[some]], kind="stable")]
    found = (word for word in dict.fromkeys(words[order].tolist()) if not interpreter.is_no_code(word))
    return list(islice(found, _SEARCHED_AT_ONCE if interpreter.layout.has_inlined_calls else None))


def words_of(samples: ClockSamples, row: Array, depth: Array, frames: Frames, used: Array | None = None,
           wanted: Array | None = None) -> Place:
    """The part of the stack of each evaluation (k,): from the one that it called in the end to its own end; for the
    innermost one the registers, too. Of these the words at ``used`` places (PLACES,), or all; of evaluations that are
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
    first = np.clip(np.maximum(first, last - WORDS_MAX), 0, last)
    if wanted is not None:
        first, is_innermost = np.where(wanted, first, last), is_innermost & wanted
    part, k = _all_of(first, last) if used is None else _used_of(first, last, end, indices(used))
    of = row[part]
    words = samples.words[samples.base[of] + ((samples.first[of] + k) & samples.mask[of])]
    inner = indices(is_innermost)
    # Registers are one thing where the evaluation itself was met, another where something that it called was.
    number = WORDS_MAX + 1 + np.arange(N_REGISTERS) + N_REGISTERS * (depth[inner, None] > 0)
    of, register = np.nonzero(np.ones(number.shape, np.bool_) if used is None else used[number])
    is_whole = np.full(len(row), used is None) if wanted is None else wanted & (used is None)
    return Place(row, depth, np.concatenate([samples.regs[row[inner[of]], register], words]),
                  np.concatenate([inner[of], part]),
                  np.concatenate([number[of, register], np.minimum(end[part] - k, WORDS_MAX)]), is_whole)


def _all_of(first: Array, last: Array) -> tuple[Array, Array]:
    """Of parts (k,) of stacks all words from ``first`` to ``last``: of which part, and which word."""
    n = last - first
    part = np.repeat(np.arange(len(n)), n)
    return part, np.arange(len(part)) + np.repeat(first - n.cumsum() + n, n)


def _used_of(first: Array, last: Array, end: Array, places: Array) -> tuple[Array, Array]:
    """The same of those words alone that are so many below the ``end``s."""
    k = end[:, None] - places[places <= WORDS_MAX][::-1]
    there = np.nonzero((k >= first[:, None]) & (k < last[:, None]))
    return there[0], k[there]


def mixed(words: Array) -> Array:
    """Words (n,) of 64 bits, each as another one that sums tell apart."""
    words = (words ^ words >> np.uint64(31)) * np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ words >> np.uint64(29)) * np.uint64(0xC2B2AE3D27D4EB4F)
    mixed: Array = words ^ words >> np.uint64(32)
    return mixed
