"""Which instruction of CPython a word of a stack belongs to: the one that it leads to, or the one before. Pure.

Since 3.11 an evaluation keeps in registers, and what it calls saves on the stack, where it is in the bytecode. Whether
that is the instruction that is carried out, or already the next one, is the compiler's choice, another one for each
instruction and build::

    CALL    cache  cache  cache  STORE_FAST  LOAD_CONST  ...
    ^ the instruction itself     ^ or behind its caches

Or it is neither, where an earlier instruction has left its word, and looks never meet that.
The line differs only where a line begins. There looks tell, which have the instruction itself: the one to which words
belong is met by as many looks as come in the time that these words stand for. That is known of clock samples: an
interval each. Where a thread leaves its CPU it may stay for any time. So of all that is counted here::

    looks at an instruction    >= those that its clock samples stand for
                               == the same, where no thread ever leaves its CPU

Of two adjacent instructions, the one before a place and the one there, either the one there has the words there, and
the other no more than lie before it; or the one before has them, seldom with those before it, and the other no more
than lie behind it. Where that does not decide, since a thread has left its CPU everywhere, it is taken to have done so
because others want it: alike at all places.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from math import inf, log

from collector.runtimes.callers_cpython import UNIT

_LONGEST = 11 * UNIT  # an instruction with its caches
_KEPT_MAX = 1 << 16
# Looks. Where so many are expected, and two more for each that comes, hardly more than one time in a thousand it is by
# chance that no more come (Poisson).
_ENOUGH, _FOR_EACH = 7, 2
_FAR_FEWER = 4
_ASTRAY = 1 / 20  # of words: what lead elsewhere
# Log-likelihoods: a difference that decides nothing, and what speaks against words at an instruction and behind it.
_UNDECIDED, _BOTH = 1, 3

At = tuple[int, int]  # the number of a code object, and an offset in its bytecode


class Steps:
    """How often looks have met evaluations at places, and how often they would have by the words that led to these."""

    def __init__(self) -> None:
        self._looks: Counter[At] = Counter()
        self._expected: dict[At, float] = {}  # looks
        self._left: set[At] = set()  # places at which a thread has left its CPU
        self._all_looks: Counter[int] = Counter()  # by code object
        self._all_expected: dict[int, float] = {}

    def met(self, places: Sequence[At]) -> None:
        """Where the innermost functions of activations were in a look."""
        self._looks.update(places)
        self._all_looks.update(code for code, _ in places)
        self._bound()

    def led(self, code: int, offset: int, n_looks: float, has_left: bool = False) -> None:
        """Words led to a place. So many looks come in the time that those of clock samples stand for; ``has_left``:
        some are of threads that leave their CPU."""
        self._expected[code, offset] = self._expected.get((code, offset), 0) + n_looks
        self._all_expected[code] = self._all_expected.get(code, 0) + n_looks
        if has_left:
            self._left.add((code, offset))
        self._bound()

    def _bound(self) -> None:
        if len(self._looks) + len(self._expected) > _KEPT_MAX:
            for counted in (self._looks, self._expected, self._left, self._all_looks, self._all_expected):
                counted.clear()

    def forget(self, codes: Iterable[int]) -> None:
        """Nobody asks any more for code objects of these numbers."""
        gone = self._all_looks.keys() | self._all_expected.keys()
        gone &= set(codes)
        for code in gone:
            self._all_looks.pop(code, None)
            self._all_expected.pop(code, None)
        for counted in (self._looks, self._expected) if gone else ():
            for place in [place for place in counted if place[0] in gone]:
                del counted[place]
        self._left = {place for place in self._left if place[0] not in gone} if gone else self._left

    def is_old(self, code: int, offset: int) -> bool:
        """Whether words at an offset in a code object are left from an earlier instruction: looks meet hardly any as
        far as there, though they would have to. At the beginning of the code words of the call are left: one look has
        to have met that."""
        if not offset and not self._looks[code, 0]:
            return True
        expected = self._expected.get((code, offset), 0)
        if expected < _ENOUGH:
            return False
        expected *= min(self._coming(code), 1)
        near = range(max(offset - _LONGEST, 0), offset + UNIT, UNIT)
        n = sum(self._looks[code, place] for place in near)
        return expected >= _ENOUGH + _FOR_EACH * n and expected > _FAR_FEWER * n

    def is_behind(self, code: int, offset: int, starts: Sequence[int]) -> bool:
        """Whether words at an offset in a code object belong to the instruction before it, or to one on the same line.
        ``starts``: the offsets at which lines begin, in order."""
        if not offset:
            return False
        i = bisect_left(starts, offset)
        if i == len(starts) or starts[i] != offset:
            return True
        end = min(starts[i + 1] if i + 1 < len(starts) else offset + _LONGEST, offset + _LONGEST)
        before = self._before(code, offset, max(starts[i - 1] if i else 0, offset - _LONGEST))
        parts = before, (offset,), range(offset + UNIT, end + UNIT, UNIT)
        n_before, n_at = sum(self._looks[code, place] for place in before), self._looks[code, offset]
        difference = 0.0
        for is_bounded in (False, True):
            stretches = [self._words(code, part, is_bounded) for part in parts]
            (_, most_before), (least, most), (_, most_behind) = stretches
            astray = _ASTRAY * (1 + sum(least for least, _ in stretches))
            of_before = min(_misfit(n_before, least, most, astray),
                            _misfit(n_before, least, most + most_before, astray) + _BOTH)
            difference = (of_before + _misfit(n_at, 0, most_behind, astray)
                          - _misfit(n_at, least, most, astray) - _misfit(n_before, 0, most_before, astray))
            if abs(difference) > _UNDECIDED:
                break
        return difference <= 0

    def _before(self, code: int, offset: int, begin: int) -> range:
        """The places from the instruction before an offset in a code object on, but not before ``begin``: the last one
        that looks have met, with those before it that have no words in between. Such are parts of one, as PRECALL and
        CALL are."""
        first, few = offset, _ASTRAY * self._expected.get((code, offset), 0)
        for place in range(offset - UNIT, begin - 1, -UNIT):
            if first < offset and self._expected.get((code, place + UNIT), 0) > few:
                break
            if (code, place) in self._looks:
                first = place
        return range(first if first < offset else begin, offset, UNIT)

    def _words(self, code: int, places: Iterable[int], is_bounded: bool) -> tuple[float, float]:
        """The looks, at least and at most, that words at places in a code object stand for. ``is_bounded``: threads
        leave their CPU alike at all places, because others want it."""
        mine = [(code, place) for place in places]
        scale = self._coming(code)
        least = sum(self._expected.get(place, 0) for place in mine) * (scale if is_bounded else min(scale, 1))
        return least, least if is_bounded or self._left.isdisjoint(mine) else inf

    def _coming(self, code: int) -> float:
        """How many looks come for each that would have to. Where some at a code object fail, they do so at all places
        in it."""
        expected = self._all_expected.get(code, 0)
        return self._all_looks[code] / expected if expected else 1


def _misfit(n: int, least: float, most: float, astray: float) -> float:
    """How unlikely it is that ``n`` looks come where between ``least`` and ``most`` are expected (Poisson: half the
    deviance); as many as ``astray`` for other reasons."""
    expected = max(min(max(n, least), most), astray)
    return expected - n + (n * log(n / expected) if n else 0)
