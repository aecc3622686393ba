"""What threads of an interpreter were seen to carry out, and what a sample of another moment says to it. Pure.

A sample of a running thread has the thread's own words of that moment: for every activation those that lead into code
objects (its *anchors*). A look, at another moment, has whole chains. Of a sample and the looks around it:

    an activation's innermost function   one that an anchor leads to: verified
    its callers in the same activation   those of the look next in time in which all activations agree with the
                                         anchors; verified where they have been there before and after, at the same
                                         place with the same code, else torn: the thread has gone on meanwhile
    no look agrees                       the outer activations of the one that agrees longest, the anchors of the
                                         others; what lies between is unknown

Torn callers are those of the look next in time with the same function at the same depth: summed up over many samples
they have the right shares, though a single one may be another's.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from collector.runtimes.cpython import Activation, Chain, PyFrame

Anchors = tuple[frozenset[int], ...]  # outermost activation first; code objects
_KEPT_NS = 3_000_000_000


class Told(NamedTuple):
    """An activation's frames, innermost first; ``marks``: of each, one of the following."""

    frames: Activation
    marks: tuple[int, ...]


VERIFIED, TORN, UNKNOWN = range(3)
NOBODY = PyFrame(0, 0, 0)  # what stands for functions that are not known


class Looks:
    """The looks at one thread, in order of time."""

    def __init__(self, has_inlined_calls: bool = True) -> None:
        """``has_inlined_calls``: an activation may be more than one function."""
        self._inlined = has_inlined_calls
        self._times: list[int] = []
        self._chains: list[Chain] = []
        self._matching: dict[Anchors, list[int]] = {}  # numbers of looks that agree with anchors as a whole

    def add(self, time_ns: int, chain: Chain) -> None:
        """One more, later than all before."""
        if len(self._times) > 64 and self._times[32] < time_ns - _KEPT_NS:
            del self._times[:32], self._chains[:32]
            self._matching.clear()
        same = bool(self._chains) and self._chains[-1] == chain
        self._times.append(time_ns)
        self._chains.append(self._chains[-1] if same else chain)
        self._matching.clear()

    def told(self, anchors: Anchors, time_ns: int) -> list[Told]:
        """Each activation of a sample, outermost first."""
        matching = self._matching.get(anchors)
        if matching is None:
            matching = self._matching[anchors] = [i for i, chain in enumerate(self._chains)
                                                  if len(chain) == len(anchors) and _agrees(chain, anchors)]
        depth = len(anchors)
        while not matching and depth > 1:
            depth -= 1
            matching = [i for i, chain in enumerate(self._chains)
                        if len(chain) >= depth and _agrees(chain, anchors[:depth])]
        if not matching:
            return [self._anchored(each) for each in anchors]
        chain = self._chains[self._nearest(matching, time_ns)]
        lasting = self._lasting(chain, time_ns)
        found, n = [], 0
        for activation, each in zip(chain[:depth], anchors, strict=False):
            n += len(activation)
            marks = [VERIFIED if n - i <= lasting else TORN for i in range(len(activation))]
            if each:
                marks[0] = VERIFIED
            found.append(Told(activation, tuple(marks)))
        return found + [self._anchored(each) for each in anchors[depth:]]

    def _anchored(self, codes: frozenset[int]) -> Told:
        """What anchors alone tell: the innermost function, if they lead to one."""
        if len(codes) != 1:
            return Told((NOBODY,), (UNKNOWN,))
        (code,) = codes
        own = PyFrame(0, code, 0)
        return Told((own, NOBODY), (VERIFIED, UNKNOWN)) if self._inlined else Told((own,), (VERIFIED,))

    def _nearest(self, which: Sequence[int], time_ns: int) -> int:
        at = bisect_left(which, time_ns, key=self._times.__getitem__)
        return min(which[max(at - 1, 0):at + 1], key=lambda i: abs(self._times[i] - time_ns))

    def _lasting(self, chain: Chain, time_ns: int) -> int:
        """How many of the outermost frames have been there in the looks before and after a time."""
        after = bisect_left(self._times, time_ns)
        if not 0 < after < len(self._times):
            return 0
        return min(_in_common(chain, self._chains[after - 1]), _in_common(chain, self._chains[after]))


def _agrees(chain: Chain, anchors: Anchors) -> bool:
    return all(not each or activation[0].code in each for activation, each in zip(chain, anchors, strict=False))


def _in_common(one: Chain, other: Chain) -> int:
    if one is other:
        return sum(map(len, one))
    n = 0
    for a, b in zip(_outermost_first(one), _outermost_first(other), strict=False):
        if a[:2] != b[:2]:
            break
        n += 1
    return n


def _outermost_first(chain: Chain) -> list[PyFrame]:
    return [frame for activation in chain for frame in reversed(activation)]
