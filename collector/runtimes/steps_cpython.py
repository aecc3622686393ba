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
the other no more than lie before it; or the one before has them, and the other no more than lie behind it.
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
        far as there, though they would have to."""
        expected = self._expected.get((code, offset), 0)
        if expected < _ENOUGH:
            return False
        expected *= self._succeeding(code)
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
        begin = max(starts[i - 1] if i else 0, offset - _LONGEST)
        before = next((at for at in range(offset - UNIT, begin - 1, -UNIT) if (code, at) in self._looks), begin)
        looks_before, looks_at = self._looks[code, before], self._looks[code, offset]
        parts = [self._words(code, places) for places in (
            range(before, offset, UNIT), (offset,), range(offset + UNIT, end + UNIT, UNIT))]
        (_, most_before), own, (_, most_behind) = parts
        astray = _ASTRAY * (1 + sum(least for least, _ in parts))
        return (_misfit(looks_before, *own, astray) + _misfit(looks_at, 0, most_behind, astray)
                <= _misfit(looks_at, *own, astray) + _misfit(looks_before, 0, most_before, astray))

    def _words(self, code: int, places: Iterable[int]) -> tuple[float, float]:
        """The looks, at least and at most, that words at places in a code object stand for."""
        mine = [(code, place) for place in places]
        least = sum(self._expected.get(place, 0) for place in mine) * self._succeeding(code)
        return least, least if self._left.isdisjoint(mine) else inf

    def _succeeding(self, code: int) -> float:
        """What part of the looks come that would have to, at most: where some at a code object fail, they do so at all
        places in it."""
        expected = self._all_expected.get(code, 0)
        return min(self._all_looks[code] / expected, 1) if expected else 1


def _misfit(n: int, least: float, most: float, astray: float) -> float:
    """How unlikely it is that ``n`` looks come where between ``least`` and ``most`` are expected (Poisson: half the
    deviance); as many as ``astray`` for other reasons."""
    expected = max(min(max(n, least), most), astray)
    return expected - n + (n * log(n / expected) if n else 0)
