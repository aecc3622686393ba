"""Numbers for things that come and go, by which arrays have them. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

import numpy as np

from collector.events import Array

_KEPT_MIN = 1 << 12
_Thing = TypeVar("_Thing", bound=Hashable)


class Numbers(Generic[_Thing]):
    """A number for each thing, from 0 on. Those that nobody has any more are given to others."""

    def __init__(self, *first: _Thing) -> None:
        """``first``: those that always have their numbers, in order."""
        self.things: list[_Thing] = list(first)  # by number
        self._n_first = len(first)
        self._of = {thing: number for number, thing in enumerate(first)}
        self._free: list[int] = []
        self._most = _KEPT_MIN

    def __iter__(self) -> Iterator[_Thing]:
        return iter(self._of)

    @property
    def are_many(self) -> bool:
        """Whether there are twice as many as were kept last."""
        return len(self._of) > self._most

    def of(self, thing: _Thing) -> int:
        """The number of a thing."""
        number = self._of.get(thing)
        if number is None:
            number = self._of[thing] = self._free.pop() if self._free else len(self.things)
            self.things[number:number + 1] = [thing]
        return number

    def keep(self, numbers: Array) -> None:
        """Nobody has any others than these (n,)."""
        is_kept = np.zeros(len(self.things), dtype=bool)
        is_kept[:self._n_first] = is_kept[numbers] = True
        self._of = {thing: number for thing, number in self._of.items() if is_kept[number]}
        self._free = np.flatnonzero(~is_kept).tolist()
        self._most = max(2 * len(self._of), _KEPT_MIN)
