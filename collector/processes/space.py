"""Address spaces over time. Pure.

A space is what unwinding needs to know of a process: which executable memory lies where. It only grows by mappings;
as soon as one replaces another (a library unloaded and a new one in its place) a *new* space with a number of its own
begins, so that samples from before and after are looked up each in what was there at their time. Numbers are never
used again.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

import numpy as np

from collector.events import Array


class Mapping(NamedTuple):
    """Executable memory [start, end). ``object`` is the load object's number (-1: no file), pc_object = pc - bias."""

    start: int
    end: int
    file_offset: int
    path: bytes
    object: int
    bias: int


_numbers = count()


@dataclass(slots=True, eq=False)
class AddressSpace:
    """Mappings sorted by address, none overlapping another."""

    mappings: list[Mapping] = field(default_factory=list)
    number: int = field(default_factory=lambda: next(_numbers))
    _table: Array = field(default_factory=lambda: np.zeros((0, 4), dtype=np.uint64))

    def copy(self) -> AddressSpace:
        """The same mappings under a number of their own: what a forked child begins with."""
        return AddressSpace(list(self.mappings))

    @property
    def version(self) -> tuple[int, int]:
        """Which state of a process's memory this is: another one whenever a mapping has come or was replaced. How many
        mappings there are does not tell that: one that grows is replaced."""
        return self.number, len(self.mappings)

    def table(self) -> Array:
        """The mappings as u8 (m, 4): start, end, bias, and the object's number, the latter two modulo 2**64."""
        if len(self._table) != len(self.mappings):
            self._table = np.array([(m.start, m.end, m.bias % 2**64, m.object % 2**64) for m in self.mappings],
                                   dtype=np.uint64)
        return self._table

    def map(self, new: Mapping) -> tuple[AddressSpace, list[Mapping]]:
        """The space with ``new`` in it (this one, or a new one where something was replaced), and what was replaced.

        What is left of a partly replaced mapping stays.
        """
        first = bisect_right(self.mappings, new.start, key=lambda old: old.end)
        behind = bisect_left(self.mappings, new.end, key=lambda old: old.start)
        gone = self.mappings[first:behind]
        if len(gone) == 1 and gone[0][:4] == new[:4] and new.object in (gone[0].object, -1):
            return self, []  # told once more, perhaps where the file could not be read
        if not gone:
            self.mappings.insert(first, new)
            return self, []
        kept = self.mappings[:first] + self.mappings[behind:]
        for old in gone:
            kept.extend(_rest(old, new))
        return AddressSpace(sorted([*kept, new])), gone


def _rest(old: Mapping, new: Mapping) -> list[Mapping]:
    """The parts of ``old`` below and above ``new``."""
    parts = []
    if old.start < new.start:
        parts.append(Mapping(old.start, new.start, old.file_offset, old.path, old.object, old.bias))
    if new.end < old.end:
        offset = old.file_offset + (new.end - old.start if old.path else 0)
        parts.append(Mapping(new.end, old.end, offset, old.path, old.object, old.bias))
    return parts
