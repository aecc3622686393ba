"""What became of memory that was allocated. Pure: packets of heap tracing in, figures per packet out.

A block lives from its allocation to the next release of its address; what was never released has leaked. Per address,
in order of time::

    malloc  malloc  free  free  malloc           the second one has no release of its own: the address was taken
      |       |       |     |      |             already, so it counts as leaked for ever; a free of nothing is nothing
      +---------------+   nothing  leaked

All addresses are matched at once, by sorting. Mapped memory may be released in pieces; there are few such calls, and
they go through a list of what is mapped, one by one.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from collector.experiment.records import HEAP_FREE, HEAP_MALLOC, HEAP_MMAP, HEAP_MUNMAP, HEAP_REALLOC

I8 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]
Packets = npt.NDArray[Any]

NEVER = (1 << 63) - 1


@dataclass(frozen=True)
class Heap:
    """Per packet, as they stand: ``allocated`` and ``leaked`` bytes (n), whether it ``is_allocation`` (n) of memory.

    ``by_time`` (n): the packets in order of time; ``in_use`` (n): bytes in use after each of these.
    ``released_ns`` (n): when the last of what was allocated was released; ``NEVER`` of what has leaked, zero of what is
    no allocation.
    """

    is_allocation: Bool
    allocated: I8
    leaked: I8
    by_time: I8
    in_use: I8
    released_ns: I8


def followed(packets: Packets) -> Heap:
    """What became of the memory of each packet (n)."""
    by_time = np.argsort(packets["TSTAMP"], kind="stable")
    kind, size = packets["HTYPE"][by_time], packets["HSIZE"][by_time].astype(np.int64)
    address = packets["HVADDR"][by_time]
    is_allocation = np.isin(kind, (HEAP_MALLOC, HEAP_REALLOC, HEAP_MMAP)) & (address != 0)
    leaked = np.where(is_allocation, size, 0)
    change = leaked.copy()
    holder, release = _matched(kind, address, packets["HOVADDR"][by_time])
    change[release] -= size[holder]
    leaked[holder] = 0
    times_ns = packets["TSTAMP"][by_time].astype(np.int64)
    released_ns = np.where(is_allocation, NEVER, 0)
    released_ns[holder] = times_ns[release]
    for at, mapping, n_bytes in _unmapped(kind, address, size):
        change[at] -= n_bytes
        leaked[mapping] -= n_bytes
        released_ns[mapping] = NEVER if leaked[mapping] else times_ns[at]
    place = np.argsort(by_time, kind="stable")
    return Heap(is_allocation[place], np.where(is_allocation, size, 0)[place], leaked[place], by_time,
                np.cumsum(change), released_ns[place])


def _matched(kind: npt.NDArray[Any], address: npt.NDArray[Any], old: npt.NDArray[Any]) -> tuple[I8, I8]:
    """The allocations that are released, and what releases each; places in order of time.

    A reallocation is a release of the old address, then an allocation.
    """
    frees = np.flatnonzero((kind == HEAP_FREE) & (address != 0))
    moves = np.flatnonzero((kind == HEAP_REALLOC) & (old != 0))
    takes = np.flatnonzero(np.isin(kind, (HEAP_MALLOC, HEAP_REALLOC)) & (address != 0))
    at = np.concatenate([frees, moves, takes])
    addresses = np.concatenate([address[frees], old[moves], address[takes]])
    takes_it = np.arange(len(at)) >= len(frees) + len(moves)
    order = np.lexsort((takes_it, at, addresses))
    at, addresses, takes_it = at[order], addresses[order], takes_it[order]
    is_new = np.ones(len(at), np.bool_)
    is_new[1:] = addresses[1:] != addresses[:-1]
    holds = takes_it.copy()
    holds[1:] &= is_new[1:] | ~takes_it[:-1]
    # Each release frees the block that was held last, if nothing has released it before: takes lie between them.
    last = np.maximum.accumulate(np.where(holds, np.arange(len(at)), -1)) if len(at) else np.zeros(0, np.int64)
    frees_something = ~takes_it
    frees_something[1:] &= takes_it[:-1] & ~is_new[1:]
    frees_something[:1] = False
    release = np.flatnonzero(frees_something)
    return at[last[release]], at[release]


def _unmapped(kind: npt.NDArray[Any], address: npt.NDArray[Any], size: I8) -> list[tuple[int, int, int]]:
    """Pieces of mapped memory that were released: (by which packet, of which one's mapping, bytes)."""
    found: list[tuple[int, int, int]] = []
    starts: list[int] = []
    mapped: list[tuple[int, int, int]] = []  # start, end, packet; by start, apart from each other
    for at in np.flatnonzero(np.isin(kind, (HEAP_MMAP, HEAP_MUNMAP)) & (address != 0) & (size > 0)).tolist():
        start = int(address[at])
        end = start + int(size[at])
        first = bisect_right(starts, start)
        first -= bool(first and mapped[first - 1][1] > start)
        last = first
        rest: list[tuple[int, int, int]] = []
        while last < len(mapped) and mapped[last][0] < end:
            begin, stop, packet = mapped[last]
            found.append((at, packet, min(stop, end) - max(begin, start)))
            rest += [(begin, start, packet)] * (begin < start) + [(end, stop, packet)] * (stop > end)
            last += 1
        if kind[at] == HEAP_MMAP:
            rest.insert(bool(rest and rest[0][0] < start), (start, end, at))
        mapped[first:last] = rest
        starts[first:last] = [one[0] for one in rest]
    return found
