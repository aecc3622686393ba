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
                                         others; what lies between is unknown

Torn callers are those of the look next in time with the same function at the same depth: summed up over many samples
they have the right shares, though a single one may be another's.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from collector.runtimes.cpython import Activation, Chain, PyFrame
from collector.runtimes.marks import TORN, UNKNOWN, VERIFIED


class Anchor(NamedTuple):
    """Code objects and frames that an activation's words lead to; whether that code was there for certain by then."""

    codes: frozenset[int]
    frames: frozenset[int]
    is_proven: bool = True


Anchors = tuple[Anchor, ...]  # outermost activation first
_KEPT_NS = 3_000_000_000


class Told(NamedTuple):
    """An activation's frames, innermost first; ``marks``: of each, one of those in ``marks``."""

    frames: Activation
    marks: tuple[int, ...]


NOBODY = PyFrame(0, 0, 0)  # what stands for functions that are not known


class Looks:
    """The looks at one thread, in order of time."""

    def __init__(self, has_inlined_calls: bool = True) -> None:
        """``has_inlined_calls``: an activation may be more than one function."""
        self._inlined = has_inlined_calls
        self._times: list[int] = []
        self._chains: list[Chain] = []
        self._same: dict[Activation, Activation] = {}  # of equal activations of chains there is one
        self._positions: dict[Anchor, dict[int, int]] = {}  # what _position says of activations, by their ids

    def add(self, time_ns: int, chain: Chain) -> None:
        """One more, later than all before."""
        if len(self._times) > 64 and self._times[32] < time_ns - _KEPT_NS:
            del self._times[:32], self._chains[:32]
            self._same = {activation: activation for chain in self._chains for activation in chain}
            self._positions.clear()
        self._times.append(time_ns)
        self._chains.append(tuple([self._same.setdefault(activation, activation) for activation in chain]))

    def moments(self, times_ns: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Numbers for times (n,): the same for those between the same looks and nearer to the same one of them."""
        looks = np.array(self._times, np.int64)
        return looks.searchsorted(times_ns) + (looks[1:] + looks[:-1] >> 1).searchsorted(times_ns)

    def certain(self, time_ns: int) -> Chain | None:
        """What was carried out at a time, if the looks before and after are the same in all functions; else None."""
        after = bisect_left(self._times, time_ns)
        if not 0 < after < len(self._times):
            return None
        before, chain = self._chains[after - 1], self._chains[after]
        if len(before) == len(chain) and _in_common(before, chain) == sum(map(len, chain)) == sum(map(len, before)):
            return chain
        return None

    def told(self, anchors: Anchors, time_ns: int) -> list[Told]:
        """Each activation of a sample, outermost first."""
        depth, chain = self._agreeing(anchors, time_ns)
        if chain is None:
            return [self._anchored(each) for each in anchors]
        lasting = self._lasting(chain, time_ns)
        found, n = [], 0
        for activation, each in zip(chain[:depth], anchors, strict=False):
            n += len(activation)
            own = self._position(activation, each)
            marks = [VERIFIED if n - i <= lasting or (i == own and each.codes and each.is_proven) else TORN
                     for i in range(own, len(activation))]
            found.append(Told(activation[own:], tuple(marks)))
        rest = [self._anchored(each) for each in anchors[depth:]]
        if rest and self._inlined and len(chain) > depth:
            rest[0] = _with_outermost(rest[0], chain[depth], lasting - n)
        return found + rest

    def _agreeing(self, anchors: Anchors, time_ns: int) -> tuple[int, Chain | None]:
        """With how many activations the look agrees that agrees longest, of several the next in time; with all of them
        only if it has no more."""
        positions = [self._positions.setdefault(each, {}) for each in anchors]
        longest, found = -1, None
        for chain in self._nearest_first(time_ns):
            n = 0
            for activation, anchor, known in zip(chain, anchors, positions, strict=False):
                position = known.get(id(activation))
                if position is None:
                    position = known[id(activation)] = self._position(activation, anchor)
                if position < 0:
                    break
                n += 1
            if n == len(anchors) == len(chain):
                return n, chain
            n = min(n, len(anchors) - 1)
            if n > longest:
                longest, found = n, chain
        return longest, found

    def _nearest_first(self, time_ns: int) -> Iterator[Chain]:
        times, chains = self._times, self._chains
        after = bisect_left(times, time_ns)
        before = after - 1
        while before >= 0 or after < len(times):
            if after == len(times) or (before >= 0 and time_ns - times[before] <= times[after] - time_ns):
                yield chains[before]
                before -= 1
            else:
                yield chains[after]
                after += 1

    def _position(self, activation: Activation, anchor: Anchor) -> int:
        """Which function of an activation the anchors lead to; -1: to none of them."""
        codes, frames, _ = anchor
        for i, frame in enumerate(activation if codes else activation[:1]):
            if (not codes or frame.code in codes) and (not self._inlined or frame.address in frames):
                return i
        return -1

    def _anchored(self, anchor: Anchor) -> Told:
        """What anchors alone tell: the innermost function, if they lead to one."""
        if len(anchor.codes) != 1:
            return Told((NOBODY,), (UNKNOWN,))
        (code,) = anchor.codes
        own = PyFrame(0, code, 0)
        mark = VERIFIED if anchor.is_proven else TORN
        return Told((own, NOBODY), (mark, UNKNOWN)) if self._inlined else Told((own,), (mark,))

    def _lasting(self, chain: Chain, time_ns: int) -> int:
        """How many of the outermost frames have been there in the looks before and after a time."""
        after = bisect_left(self._times, time_ns)
        if not 0 < after < len(self._times):
            return 0
        return min(_in_common(chain, self._chains[after - 1]), _in_common(chain, self._chains[after]))


def _with_outermost(told: Told, activation: Activation, n: int) -> Told:
    """What anchors tell of an activation, with the ``n`` outermost functions of it."""
    known = activation[len(activation) - n:] if 0 < n <= len(activation) else ()
    return Told((*told.frames, *known), (*told.marks, *[VERIFIED] * len(known)))


def _in_common(one: Chain, other: Chain) -> int:
    """How many of the outermost functions are the same, wherever in them they are."""
    n = 0
    for a, b in zip(one, other, strict=False):
        same = len(a) if a is b else _same_outermost(a, b)
        n += same
        if same < max(len(a), len(b)):
            break
    return n


def _same_outermost(one: Activation, other: Activation) -> int:
    n = 0
    for a, b in zip(reversed(one), reversed(other), strict=False):
        if a[:2] != b[:2]:
            break
        n += 1
    return n
