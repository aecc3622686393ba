"""Which instructions of CPython call: where evaluations are that others were called from. Pure.

While what an evaluation of 3.11 has called is carried out, words of the native stack lead to the unit of bytecode
behind the instruction that called. (Later versions have other words there as well, or have stepped over the caches by
then.) The memory of code that is gone, as that of a module that has been imported, is soon other code's, and an old
word leads anywhere in that::

    CALL    cache  cache  POP_TOP  LOAD_FAST  LOAD_CONST  ...
            ^ the place behind a call         ^ an old word of other code

Which numbers instructions have that call is each version's, and specialised ones have numbers of their own. So it is
learnt: they stand before places that words lead to far more often than in code as a whole.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Instructions = npt.NDArray[np.int64]
UNIT = 2  # bytes: an instruction and its argument, or a cache
NO_INSTRUCTION = 256  # it is not known
_MORE_OFTEN = 3
_ENOUGH = 20  # places
_BY_CHANCE = 2  # standard deviations: as many fewer come by chance, or more, in one case of fifty


class Callers:
    """What has been learnt of one interpreter."""

    def __init__(self) -> None:
        self._anywhere, self._before = np.zeros((2, NO_INSTRUCTION + 1), np.int64)

    def add_code(self, bytecode: bytes) -> None:
        """All of a function's code."""
        self._anywhere += np.bincount(np.frombuffer(bytecode, np.uint8)[::UNIT], minlength=NO_INSTRUCTION + 1)

    def add_places(self, before: Instructions) -> None:
        """The instructions (n,) before different places that words lead to."""
        self._before += np.bincount(before, minlength=NO_INSTRUCTION + 1)

    def may_call(self, before: Instructions) -> npt.NDArray[np.bool_]:
        """Whether instructions (n,) before places may have called; True where that cannot be told."""
        n_before, n_anywhere = (int(counts[:NO_INSTRUCTION].sum()) for counts in (self._before, self._anywhere))
        if n_before < _ENOUGH:
            return np.ones(len(before), np.bool_)
        # Without the place that is asked about, which would speak for itself.
        others = np.maximum(self._before - 1, 0)
        most = others + _BY_CHANCE * np.sqrt(others) + _BY_CHANCE
        may: npt.NDArray[np.bool_] = most * n_anywhere > _MORE_OFTEN * (self._anywhere + 1) * n_before
        may[NO_INSTRUCTION] = True
        return may[before]
