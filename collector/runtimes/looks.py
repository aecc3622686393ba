"""What threads of an interpreter were seen to carry out, and what a sample of another moment says to it. Pure.

A sample of a running thread has the thread's own words of that moment: for every activation those that lead into code
objects, and since 3.11 those that are addresses of frames (its *anchors*). A look, at another moment, has whole chains.
Of a sample and the looks around it:

    an activation's innermost function   one that an anchor leads to: verified, or torn where it is not proven that
                                         this code was there by then
    its callers in the same activation   those of the look next in time in which all activations have a function at
                                         the anchors' place, with the anchors' code; verified where they have been
                                         there before and after, else torn: the thread has gone on meanwhile
    no look agrees                       the outer activations of the one that agrees longest, the outermost functions
                                         of the next one that have been there before and after, the anchors of the
                                         others; what lies between is torn, the last way by which any thread was seen
                                         to come there (``Ways``), or unknown
    ... and it was the last one          the same, but its outermost functions are torn: those that all looks at the
                                         thread have had, or the outer half where all looks are alike
    ... or the first one                 the same, where the thread had called the activation from the function that
                                         that look has there, and its outermost frame lay where that look has it

Torn callers are those of the look next in time with the same function at the same depth: summed up over many samples
they have the right shares, though a single one may be another's.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from collector.runtimes.cpython import Activation, Chain, PyFrame
from collector.runtimes.marks import TORN, UNKNOWN, VERIFIED
from collector.runtimes.ways_cpython import Ways


class Anchor(NamedTuple):
    """Code objects and frames that an activation's words lead to; whether that code was there for certain by then."""

    codes: frozenset[int]
    frames: frozenset[int]
    is_proven: bool = True


Anchors = tuple[Anchor, ...]  # outermost activation first
Shape = tuple[tuple[tuple[int, ...], ...], ...]  # a chain, of each frame its address and code
Array = npt.NDArray[np.int64]
_KEPT_NS, _KEPT, _KEPT_MAX = 3_000_000_000, 32, 96  # looks: so long, so many at least; at most, if they are older
_NEAR_NS = 100_000_000
_BEFORE_ALL = -1  # looks


class Told(NamedTuple):
    """An activation's frames, innermost first; ``marks``: of each, one of those in ``marks``."""

    frames: Activation
    marks: tuple[int, ...]


class _Best:
    """Which of the first ``n_asked`` shapes agree with the most activations of some anchors, and with how many."""

    def __init__(self) -> None:
        self.depth, self.n_asked = -1, 0
        self.shapes: list[int] = []

    def add(self, shape: int, depth: int) -> None:
        """The next one."""
        self.n_asked += 1
        if depth > self.depth:
            self.depth, self.shapes = depth, []
        if depth == self.depth:
            self.shapes.append(shape)


NOBODY = PyFrame(0, 0, 0)  # what stands for functions that are not known


class Looks:
    """The looks at one thread, in order of time."""

    def __init__(self, has_inlined_calls: bool = True, ways: Ways | None = None) -> None:
        """``has_inlined_calls``: an activation may be more than one function. ``ways`` of all threads."""
        self._inlined = has_inlined_calls
        self._ways = Ways() if ways is None else ways
        self._times: list[int] = []
        self._chains: list[Chain] = []
        # Which functions the chains have, wherever in them they are: there are few, and what is asked depends on that.
        self._kinds: list[int] = []  # of each look, which of the following it has
        self._still: list[bool] = []  # of each look, whether the thread was at the same instructions in the one before
        self._left: list[bool] = []  # of each look, whether the thread has carried out nothing since the one before
        self._has_left = False  # since the last one
        self._shapes: list[Shape] = []
        self._places: list[list[dict[int, int]]] = []  # of each activation of each shape, where in it frames are
        self._numbers: dict[Shape, int] = {}
        self._looks_of: list[list[int]] = []  # of each shape
        self._times_of: list[list[int]] = []  # and when these were
        self._best: dict[Anchors, _Best] = {}
        self._common: dict[tuple[int, int], int] = {}
        # By the innermost functions of activations, what the last look at these told of callers.
        self._callers: dict[tuple[tuple[int, ...], ...], Chain] = {}
        # Until there is a further look:
        self._asked: dict[Anchors, int] = {}  # numbers
        self._anchors: list[Anchors] = []  # by number
        self._lasting_near: dict[tuple[int, int], int] = {}
        self._agreeing: dict[int, tuple[int, list[int], list[int]]] = {}  # by number of the anchors
        self._numbers_told: dict[tuple[int, int, int], int] = {}
        self.answers: list[list[Told]] = []  # by number
        self._arrays: tuple[Array, Array, Array] | None = None

    def add(self, time_ns: int, chain: Chain) -> bool:
        """One more, later than all before. Whether it is a surprise: the last look at the same innermost functions of
        activations told other callers, or there was none."""
        if len(self._times) > _KEPT_MAX and self._times[-_KEPT] < time_ns - _KEPT_NS:
            self._forget()
        self._times.append(time_ns)
        self._left.append(self._has_left)
        self._has_left = False
        is_surprise = self._note(chain)
        self._asked.clear()
        self._anchors.clear()
        self._lasting_near.clear()
        self._agreeing.clear()
        self._numbers_told.clear()
        self.answers.clear()
        self._arrays = None
        return is_surprise

    def add_nothing(self) -> None:
        """One more, in which the thread carried out nothing: what it had carried out it has left."""
        self._has_left = True

    def _forget(self) -> None:
        """Of old looks but the last ones with functions that no later one has are kept: what is carried out seldom."""
        times, chains, kinds, left = list(self._times), list(self._chains), list(self._kinds), list(self._left)
        last = {kind: look for look, kind in enumerate(kinds)}  # of each kind
        seldom = sorted(look for look in last.values() if look < len(kinds) - _KEPT)[-_KEPT:]
        for kept in (self._times, self._chains, self._kinds, self._still, self._left, self._shapes, self._places,
                     self._numbers, self._looks_of, self._times_of, self._best, self._common, self._callers):
            kept.clear()
        for look in (*seldom, *range(len(kinds) - _KEPT, len(kinds))):
            self._times.append(times[look])
            self._left.append(left[look])
            self._note(chains[look])

    def _note(self, chain: Chain) -> bool:
        shape = tuple([tuple([frame[:2] for frame in activation]) for activation in chain])
        number = self._numbers.setdefault(shape, len(self._shapes))
        if number == len(self._shapes):
            self._shapes.append(shape)
            self._places.append([{address: i for i, (address, _) in enumerate(activation)} for activation in shape])
            self._looks_of.append([])
            self._times_of.append([])
        self._looks_of[number].append(len(self._chains))
        self._times_of[number].append(self._times[len(self._chains)])
        self._still.append(bool(self._chains) and self._chains[-1] == chain)
        self._chains.append(chain)
        self._kinds.append(number)
        inner, callers = tuple([activation[0][:2] for activation in chain]), tuple([one[1:] for one in chain])
        before, self._callers[inner] = self._callers.get(inner), callers
        return before != callers

    def _sorted(self) -> tuple[Array, Array, Array]:
        """Times of looks, the times half way between two of them, and which shapes the looks have."""
        if self._arrays is None:
            looks = np.array(self._times, np.int64)
            self._arrays = looks, looks[1:] + looks[:-1] >> 1, np.array(self._kinds, np.int64)
        return self._arrays

    def moments(self, times_ns: Array) -> Array:
        """Numbers for times (n,): the same for those between the same looks and nearer to the same one of them."""
        looks, between, _ = self._sorted()
        return looks.searchsorted(times_ns) + between.searchsorted(times_ns)

    def gaps(self, times_ns: Array) -> Array:
        """From the look before each of times (n,) to the one after it, in ns; 0: there is none before, or after."""
        looks, *_ = self._sorted()
        after = looks.searchsorted(times_ns)
        found: Array = np.diff(looks, prepend=looks[:1], append=looks[-1:])[after] if len(looks) else after
        return found

    def certain(self, times_ns: Array) -> tuple[Array, Sequence[Chain]]:
        """What was carried out at times (n,), where the looks before and after are the same in all functions, as
        indices of chains; -1: not known."""
        looks, _, kinds = self._sorted()
        if len(looks) < 2:
            return np.full(len(times_ns), -1, np.int64), self._chains
        after = looks.searchsorted(times_ns)
        near = np.clip(after, 1, len(looks) - 1)
        is_certain = (near == after) & (kinds[near] == kinds[near - 1])
        # Who comes back to the same functions has been elsewhere meanwhile, if looks are far apart.
        is_certain &= (looks[near] - looks[near - 1] <= _NEAR_NS) | np.array(self._still)[near]
        is_certain &= ~np.array(self._left)[near]
        _, first = np.unique(kinds, return_index=True)
        return np.where(is_certain, first[kinds[near]], -1), self._chains

    def told(self, anchors: Anchors, time_ns: int) -> list[Told]:
        """Each activation of a sample, outermost first."""
        return self.answers[self.answer(self.asked(anchors), time_ns)]

    def asked(self, anchors: Anchors) -> int:
        """The number of anchors, until there is a further look."""
        number = self._asked.setdefault(anchors, len(self._anchors))
        if number == len(self._anchors):
            self._anchors.append(anchors)
        return number

    def answer(self, asked: int, time_ns: int) -> int:
        """The number of what is told of a sample with anchors of a number, among ``answers``; the same for the same,
        until there is a further look."""
        look, depth = self._nearest(asked, time_ns)
        lasting = self._lasting(look, time_ns) if look >= 0 else 0
        key = asked, look, lasting
        number = self._numbers_told.get(key)
        if number is None:
            number = self._numbers_told[key] = len(self.answers)
            self.answers.append(self._by(self._anchors[asked], look, depth, lasting))
        return number

    def _by(self, anchors: Anchors, look: int, depth: int, lasting: int) -> list[Told]:
        """What is told by a look (-1: none) that agrees with ``depth`` activations."""
        if look < 0:
            return [self._anchored(each) for each in anchors]
        chain = self._chains[look]
        found, n = [], 0
        for i_activation, (activation, each) in enumerate(zip(chain[:depth], anchors, strict=False)):
            n += len(activation)
            own = self._position(self._kinds[look], i_activation, each)
            marks = [VERIFIED if n - i <= lasting or (i == own and each.codes and each.is_proven) else TORN
                     for i in range(own, len(activation))]
            found.append(Told(activation[own:], tuple(marks)))
        if depth == len(anchors):
            return found
        next_one = chain[depth] if len(chain) > depth else ()
        known = next_one[len(next_one) - (lasting - n):] if n < lasting <= n + len(next_one) else ()
        known = _without_replaced(known, anchors[depth])
        is_amid = lasting > _BEFORE_ALL or _is_called_alike(chain, anchors, found)
        habit = self._habit(look, depth, n) if next_one and not known and is_amid else ()
        found.append(self._guessed(anchors[depth], known, None if depth else next_one[-1:], habit))
        return found + [self._guessed(each) for each in anchors[depth + 1:]]

    def _habit(self, look: int, depth: int, n_outside: int) -> Activation:
        """The outermost functions of a look's activation, ``n_outside`` frames in, that all looks at the thread have
        had; if they have had all of it, its outer half, since nothing tells how far it has been left."""
        activation = self._chains[look][depth]
        n = min(self._in_common(look, looks[0]) for looks in self._looks_of) - n_outside
        n = n if n < len(activation) else len(activation) // 2
        return activation[len(activation) - max(n, 0):]

    def _nearest(self, asked: int, time_ns: int) -> tuple[int, int]:
        """The look that agrees longest with anchors of a number, of several the next in time (-1: there is none), and
        with how many activations; with all of them only if it has no more."""
        if not self._times:
            return -1, 0
        found = self._agreeing.get(asked)
        if found is None:
            found = self._agreeing[asked] = self._agree(self._anchors[asked])
        depth, looks, times = found
        after = bisect_left(times, time_ns)
        if after == len(times) or (after and time_ns - times[after - 1] <= times[after] - time_ns):
            after -= 1
        return looks[after], depth

    def _agree(self, anchors: Anchors) -> tuple[int, list[int], list[int]]:
        """The looks that agree longest with anchors, with how many activations, and when they were."""
        best = self._best.setdefault(anchors, _Best())
        for number in range(best.n_asked, len(self._shapes)):
            best.add(number, self._score(anchors, number))
        if len(best.shapes) == 1:
            return best.depth, self._looks_of[best.shapes[0]], self._times_of[best.shapes[0]]
        looks = sorted([look for number in best.shapes for look in self._looks_of[number]])
        return best.depth, looks, [self._times[look] for look in looks]

    def _score(self, anchors: Anchors, number: int) -> int:
        """With how many activations of a shape anchors agree."""
        n, n_there = 0, len(self._shapes[number])
        while n < min(n_there, len(anchors)) and self._position(number, n, anchors[n]) >= 0:
            n += 1
        return n if n == len(anchors) == n_there else min(n, len(anchors) - 1)

    def _position(self, number: int, depth: int, anchor: Anchor) -> int:
        """Which function of an activation of a shape the anchors lead to; -1: to none of them."""
        codes, frames, _ = anchor
        activation, place_of = self._shapes[number][depth], self._places[number][depth]
        # An activation may be a thousand functions, of which the anchors lead to a few frames.
        places = sorted(place_of[address] for address in frames if address in place_of) if self._inlined else (0,)
        for place in places:
            if activation[place][1] in codes if codes else place == 0:
                return place
        return -1

    def _anchored(self, anchor: Anchor) -> Told:
        """What anchors alone tell: the innermost function, if they lead to one."""
        if len(anchor.codes) != 1:
            return Told((NOBODY,), (UNKNOWN,))
        (code,) = anchor.codes
        own = PyFrame(0, code, 0)
        mark = VERIFIED if anchor.is_proven else TORN
        return Told((own, NOBODY), (mark, UNKNOWN)) if self._inlined else Told((own,), (mark,))

    def _guessed(self, anchor: Anchor, known: Activation = (), root: Activation | None = None,
                 habit: Activation = ()) -> Told:
        """What anchors that no look agrees with tell of an activation, with the functions that they were seen amid.
        ``known``: its outermost functions for certain; ``root``: what is taken for its outermost one else, of which
        not knowing it (empty) forbids to guess; ``habit``: its outermost functions at other times."""
        told = self._anchored(anchor)
        if not self._inlined:
            return told
        found = None if root == () else self._ways.to(anchor.codes, known or root or ())
        if found is None:
            mark = VERIFIED if known else TORN
            outer = known or habit
            return Told((*told.frames, *outer), (*told.marks, *[mark] * len(outer)))
        way, n_met = found
        own = told.marks[0] if len(anchor.codes) == 1 else TORN
        n_known = n_met if known else 0
        return Told(way, (own, *[TORN] * (len(way) - 1 - n_known), *[VERIFIED] * n_known)[:len(way)])

    def _lasting(self, look: int, time_ns: int) -> int:
        """How many of a look's outermost frames have been there in the looks before and after a time, called from the
        same instructions in both; _BEFORE_ALL: there is none before."""
        after = bisect_left(self._times, time_ns)
        if not 0 < after < len(self._times):
            return 0 if after else _BEFORE_ALL
        key = look, after
        found = self._lasting_near.get(key)
        if found is None:
            found = 0 if self._left[after] else min(
                self._in_common(look, after - 1), self._in_common(look, after),
                _in_common(self._chains[after - 1], self._chains[after]))
            self._lasting_near[key] = found
        return found

    def _in_common(self, one: int, other: int) -> int:
        """How many of the outermost functions of two looks are the same, wherever in them they are."""
        key = self._kinds[one], self._kinds[other]
        found = self._common.get(key)
        if found is None:
            found = self._common[key] = _in_common(*(self._shapes[kind] for kind in key))
        return found


def _is_called_alike(chain: Chain, anchors: Anchors, agreeing: Sequence[Told]) -> bool:
    """Whether the activation of a sample behind those that agree with a look was called from the function that the look
    has there, and its outermost frame lay where the look has it."""
    depth = len(agreeing)
    return (0 < depth < len(chain) and len(agreeing[-1].frames) == len(chain[depth - 1])
            and chain[depth][-1].address in anchors[depth].frames)


def _without_replaced(known: Activation, anchor: Anchor) -> Activation:
    """Functions that were there before and after a sample, without the innermost one if the sample leads to its frame,
    but not to its code: another function had that frame meanwhile, which the one before has come back to since."""
    if known and anchor.codes and known[0].code not in anchor.codes and known[0].address in anchor.frames:
        return known[1:]
    return known


def _in_common(one: Shape, other: Shape) -> int:
    """How many of the outermost functions are the same. Those of chains, which have instructions, too, are the same as
    long as their callers are at the same ones: who has gone on since has called anew."""
    n = 0
    for a, b in zip(one, other, strict=False):
        for mine, its in zip(reversed(a), reversed(b), strict=False):
            if mine[:2] != its[:2]:
                return n
            n += 1
            if mine != its:
                return n
        if len(a) != len(b):
            break
    return n
