"""What an address means, at which time. Pure.

An *epoch* is a time in which the address space does not contradict itself: it ends when a segment is unmapped or when
one takes the place of another. Most experiments have one. A pc of a segment that is mapped only later belongs to it
nevertheless: the map is written by polling, samples are exact.

Programs that make code may have as many epochs as functions, so epochs are gone through in the order of time, and what
is mapped changes from one to the next::

    forwards     what has been mapped by then, by where it begins: the closest below a pc, of those that are not over
    backwards    what is not over yet, painted over what is over later: what stands in where nothing is mapped
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from collector.experiment.identity import Identity
from collector.report.profile import I8, distinct_places

U8 = npt.NDArray[np.uint64]

# What a load object is known by: two builds of one name are two objects.
Key = tuple[bytes, Identity]
ADDRESS_END = 1 << 64
END_OF_TIME = np.iinfo(np.int64).max


class Mapped(NamedTuple):
    """One piece of an address space: a load object's segment or a function without a file."""

    start_ns: int
    end_ns: int
    vaddr: int
    size: int
    file_offset: int
    key: Key
    function: int = -1


class AddressSpace:
    """All that was ever mapped (n,). ``bounds``: the times at which epochs begin, but for the first one."""

    def __init__(self, mapped: Sequence[Mapped]) -> None:
        self._mapped = mapped
        self.bounds = epoch_bounds(mapped)

    def locate(self, pcs: U8, epochs: I8) -> I8:
        """Which of ``mapped`` each pc (k,) lies in, in its epoch; -1: in none.

        What is mapped and begins closest below wins; what is mapped later stands in where nothing is mapped yet.
        """
        each, places = distinct_places(pcs)
        times = np.concatenate(([-END_OF_TIME], self.bounds))
        asked, which = distinct_places(places * len(times) + epochs)
        pcs, times = each[asked // len(times)], times[asked % len(times)]
        found = self._now(pcs, times)
        missing = np.flatnonzero(found < 0)
        if len(missing):
            found[missing] = self._later(pcs[missing], times[missing])
        return found[which]

    def last_epochs(self, pcs: U8) -> I8:
        """The last epoch in which each pc (k,) lies in something; of one that never does, any."""
        places, cells = self._cells(pcs)
        end = np.full(int(places.max(initial=-1)) + 1, -END_OF_TIME)
        for index in self._by_end:
            begin, behind = cells[index]
            end[begin:behind] = self._mapped[index].end_ns
        return np.searchsorted(self.bounds, end[places]).astype(np.int64)

    @cached_property
    def _begins(self) -> U8:
        """Where something begins, each address once."""
        return distinct_places(np.array([m.vaddr for m in self._mapped], np.uint64))[0]

    @cached_property
    def _by_end(self) -> list[int]:
        """What is over first comes first."""
        return sorted(range(len(self._mapped)), key=lambda index: self._mapped[index].end_ns)

    def _now(self, pcs: U8, times: I8) -> I8:
        """As ``locate``, of what is mapped at times (k,)."""
        found = np.full(len(pcs), -1, np.int64)
        begun = _Begun(self._mapped, self._begins)
        n_below = np.searchsorted(self._begins, pcs, side="right")
        order = np.argsort(times, kind="stable")
        for at, pc, time_ns, n in zip(*(each.tolist() for each in (order, pcs[order], times[order], n_below[order])),
                                      strict=True):
            index = begun.closest(n, time_ns)
            if index >= 0 and pc - self._mapped[index].vaddr < self._mapped[index].size:
                found[at] = index
        return found

    def _later(self, pcs: U8, times: I8) -> I8:
        """As ``locate``, of what is mapped at times (k,) or later: what is over first."""
        found = np.full(len(pcs), -1, np.int64)
        places, cells = self._cells(pcs)
        painted = np.full(int(places.max(initial=-1)) + 1, -1, np.int64)
        to_come = self._by_end.copy()
        for at in np.argsort(times, kind="stable")[::-1].tolist():
            while to_come and self._mapped[to_come[-1]].end_ns > times[at]:
                index = to_come.pop()
                begin, behind = cells[index]
                painted[begin:behind] = index
            found[at] = painted[places[at]]
        return found

    def _cells(self, pcs: U8) -> tuple[I8, list[tuple[int, int]]]:
        """The place of each pc (k,) among the different ones, and which of these each of ``mapped`` has: (begin, end).
        """
        each, places = distinct_places(pcs)
        ends = np.array([max(min(m.vaddr + m.size, ADDRESS_END) - 1, 0) for m in self._mapped], np.uint64)
        begin = np.searchsorted(each, np.array([m.vaddr for m in self._mapped], np.uint64))
        behind = np.where([m.size > 0 for m in self._mapped], np.searchsorted(each, ends, side="right"), begin)
        return places, list(zip(begin.tolist(), behind.tolist(), strict=True))


class _Begun:
    """What has been mapped up to a time, which only goes on. At each of ``begins`` the latest is the last; bits stand
    for the ones of ``begins`` where something may be that is not over."""

    def __init__(self, mapped: Sequence[Mapped], begins: U8) -> None:
        self._mapped = mapped
        places = np.searchsorted(begins, np.array([m.vaddr for m in mapped], np.uint64)).tolist()
        order = sorted(range(len(mapped)), key=lambda index: mapped[index].start_ns)
        self._to_come = [(index, places[index]) for index in reversed(order)]
        self._at: list[list[int]] = [[] for _ in begins]
        self._bits = 0

    def closest(self, n: int, time_ns: int) -> int:
        """What is mapped at a time and begins at the last possible of the first n of ``begins``; -1: nothing."""
        self._go_on(time_ns)
        below = self._bits & (1 << n) - 1
        while below:
            place = below.bit_length() - 1
            here = self._at[place]
            while here and self._mapped[here[-1]].end_ns <= time_ns:
                here.pop()
            if here:
                return here[-1]
            self._bits ^= 1 << place
            below ^= 1 << place
        return -1

    def _go_on(self, time_ns: int) -> None:
        while self._to_come and self._mapped[self._to_come[-1][0]].start_ns <= time_ns:
            index, place = self._to_come.pop()
            self._at[place].append(index)
            self._bits |= 1 << place


def epoch_bounds(mapped: Sequence[Mapped]) -> I8:
    """Times at which an address may change its meaning: something ends, or begins over something else."""
    bounds = {m.end_ns for m in mapped if m.end_ns < END_OF_TIME}
    end, latest = 0, 0
    for m in sorted(mapped, key=lambda m: m.vaddr):
        if m.vaddr < end:
            bounds |= {m.start_ns, latest}
        if m.vaddr + m.size > end:
            end, latest = m.vaddr + m.size, m.start_ns
    return np.array(sorted(bounds), np.int64)
