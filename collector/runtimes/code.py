"""Code without a file, as maps tell of it: which function was where, and when. Pure.

A map grows while its process runs. What is new may lie where something else was before: then the newest that was there
by the time of a sample is meant. Who writes a map says where code is now, seldom since when; so an entry counts from
the moment up to which the map had been read before it was in it. Where nothing was told before, it stands for earlier
times as well: some agents write their maps at the very end.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple, overload

import numpy as np
import numpy.typing as npt

NAME_MAX = 4096  # bytes of a name that are kept
ADDRESS_END = 1 << 64
_LONGER = 4  # times as long as what comes behind it is a run at least
SIZE_MAX = (1 << 31) - (1 << 20)  # readers of map.xml overflow at 2 GiB


@dataclass(frozen=True)
class EachLine(Sequence[tuple[int, int]]):
    """(offset in the code, line) of ``n`` lines from ``first`` on, each ``step`` bytes long.

    A function may have a hundred thousand: they are hashed and compared by three numbers, and made when they are used.
    """

    first: int
    n: int
    step: int

    def __len__(self) -> int:
        return max(self.n, 0)

    @overload
    def __getitem__(self, at: int) -> tuple[int, int]: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[tuple[int, int]]: ...

    def __getitem__(self, at: int | slice) -> tuple[int, int] | Sequence[tuple[int, int]]:
        if isinstance(at, slice):
            return [self[i] for i in range(len(self))[at]]
        i = range(len(self))[at]
        return i * self.step, self.first + i

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[np.int64]:
        """All of them (n, 2)."""
        each = np.arange(len(self))
        return np.stack([each * self.step, self.first + each], axis=1).astype(dtype or np.int64)


class Code(NamedTuple):
    """A function's machine code at [start, start + size) from ``since_ns`` on.

    ``lines``: (offset in the code, line of ``source``), sorted; ``text``: its bytes, empty where they are not known.
    """

    start: int
    size: int
    name: bytes
    since_ns: int
    text: bytes = b""
    source: bytes = b""
    lines: Sequence[tuple[int, int]] = ()

    @property
    def end(self) -> int:
        """Its first address behind."""
        return self.start + self.size


def is_sound(start: int, size: int, name: bytes) -> bool:
    """Whether code can be there, and has a name."""
    return bool(name) and 0 < size <= SIZE_MAX and start + size <= ADDRESS_END


class _Run:
    """Some code in order."""

    def __init__(self, told: Sequence[tuple[int, int, Code]]) -> None:
        """``told``: start, order in which it was told, code."""
        self.told = sorted(told)
        self._starts = [start for start, _, _ in self.told]
        self._ends = list(accumulate((code.end for _, _, code in self.told), max))  # the largest of all up to here

    def covering(self, pc: int) -> Iterator[tuple[int, Code]]:
        """What lies at an address, with the order in which it was told."""
        for i in range(bisect_right(self._starts, pc) - 1, -1, -1):
            if self._ends[i] <= pc:
                break
            if self.told[i][2].end > pc:
                yield self.told[i][1:]


class CodeTable:
    """All code that maps of a process have told of, in the order told."""

    def __init__(self) -> None:
        self.is_behind = False  # maps tell of more already
        # Each is longer than those behind it: what is told line by line is put in order some times, not with each line.
        self._runs: list[_Run] = []
        self._n_told = 0

    def __len__(self) -> int:
        return self._n_told

    def add(self, told: Iterable[Code]) -> None:
        """Further code. What is told again of the same code replaces nothing."""
        more = [(code.start, self._n_told + i, code) for i, code in enumerate(told)]
        if not more:
            return
        self._n_told += len(more)
        while self._runs and len(self._runs[-1].told) < _LONGER * len(more):
            more = self._runs.pop().told + more
        self._runs.append(_Run(more))

    def has(self, code: Code) -> bool:
        """Whether this was told last of where code begins and ends, under this name."""
        ends = self.at(code.start, code.since_ns), self.at(code.end - 1, code.since_ns)
        return all(known is not None and known[:3] == code[:3] for known in ends)

    def at(self, pc: int, time_ns: int) -> Code | None:
        """The code at an address at a time; None where none was ever told."""
        covering = [told for run in self._runs for told in run.covering(pc)]
        if not covering:
            return None
        before = [told for told in covering if told[1].since_ns <= time_ns]
        return max(before, key=_order)[1] if before else min(covering, key=_order)[1]


def _order(told: tuple[int, Code]) -> int:
    return told[0]
