"""Which instruction of CPython a word of a stack belongs to: the one that it leads to, or the one before. Pure.

Since 3.11 an evaluation keeps in registers, and what it calls saves on the stack, where it is in the bytecode. Whether
that is the instruction that is carried out, or already the next one, is the compiler's choice, another one for each
instruction and build::

    CALL    cache  cache  cache  STORE_FAST  LOAD_CONST  ...
    ^ the instruction itself     ^ or behind its caches

Or it is neither, where an earlier instruction has left its word, and looks never meet that.
The line differs only where a line begins. There looks tell: they have the instruction itself, and so how much of the
time goes to the one before, whose words are so many.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence

from collector.runtimes.callers_cpython import UNIT

_LONGEST = 11 * UNIT  # an instruction with its caches
_KEPT_MAX = 1 << 16
# Looks. Where so many are expected, and two more for each that comes, hardly more than one time in a thousand it is by
# chance that no more come (Poisson).
_ENOUGH, _FOR_EACH = 7, 2
_FAR_FEWER = 4

At = tuple[int, int]  # the number of a code object, and an offset in its bytecode


class Steps:
    """How often looks have met evaluations at places, and words have led to these."""

    def __init__(self) -> None:
        self._looks: Counter[At] = Counter()
        self._words: Counter[At] = Counter()
        self._all_looks: Counter[int] = Counter()  # by code object
        self._all_words: Counter[int] = Counter()

    def met(self, places: Sequence[At]) -> None:
        """Where the innermost functions of activations were in a look."""
        self._looks.update(places)
        self._all_looks.update(code for code, _ in places)
        self._bound()

    def led(self, code: int, offset: int, n: int) -> None:
        """So many words led to a place."""
        self._words[code, offset] += n
        self._all_words[code] += n
        self._bound()

    def _bound(self) -> None:
        if len(self._looks) + len(self._words) > _KEPT_MAX:
            for counted in (self._looks, self._words, self._all_looks, self._all_words):
                counted.clear()

    def forget(self, codes: Iterable[int]) -> None:
        """Nobody asks any more for code objects of these numbers."""
        gone = self._all_looks.keys() | self._all_words.keys()
        gone &= set(codes)
        for code in gone:
            del self._all_looks[code], self._all_words[code]
        for counted in (self._looks, self._words) if gone else ():
            for place in [place for place in counted if place[0] in gone]:
                del counted[place]

    def is_old(self, code: int, offset: int) -> bool:
        """Whether words at an offset in a code object are left from an earlier instruction: looks meet hardly any as
        far as there, though they would have to."""
        expected = self._all_looks[code] * self._words[code, offset] / max(self._all_words[code], 1)
        if expected < _ENOUGH:
            return False
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
        before = range(max(starts[i - 1] if i else 0, offset - _LONGEST), offset, UNIT)
        behind = range(offset + UNIT, end + UNIT, UNIT)
        looks_at, looks_before = self._looks[code, offset], sum(self._looks[code, place] for place in before)
        n_at, n_before, n_behind = self._words[code, offset], *(
            sum(self._words[code, place] for place in places) for places in (before, behind))
        # Of all these words the one before has its part of the looks. Are most of those here its own?
        n_looks = looks_before + looks_at
        own = looks_before * (n_before + n_at + n_behind) - n_before * n_looks
        return 2 * own >= n_at * n_looks
