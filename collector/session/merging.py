"""Functions of runtimes that are put into stacks: before the frame of machine code that carries them out.

A frame may carry out several: those that were inlined, innermost first.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from collector.arrays import indices
from collector.events import Array
from collector.experiment.frames import DEPTH_MAX
from collector.session.placing import TRUNCATED_MARK, Frames
from collector.unwind.batch import Stop

# What a packet has room for, but for the kernel's part: its stacks have 16 KiB, with KASAN 32, two words a frame.
_DEPTH_MAX = DEPTH_MAX - 2048
_MIXERS = np.array([[pow(0x9E3779B97F4A7C15, 2 * i + 1, 1 << 64)] for i in range(8)], np.uint64)


class Managed:
    """Frames (k,) that carry out functions: indices of samples, depths, and which of some chains each has."""

    def __init__(self, row: Array, depth: Array, kind: Array, chains: Sequence[Sequence[int]]) -> None:
        """``chains``: the functions' addresses, innermost first."""
        self.row, self.depth, self._kind = row, depth, kind
        self._size = np.array([len(chain) for chain in chains], np.int64)
        self._addresses = np.array([address for chain in chains for address in chain], np.uint64)
        self.count: Array = self._size[kind]

    def flat(self) -> tuple[Array, Array, Array]:
        """All functions of all frames: whose each is, its address, and how far before the frame it comes to stand."""
        whose = np.repeat(np.arange(len(self.row)), self.count)
        place = np.arange(len(whose)) - np.repeat(self.count.cumsum() - self.count, self.count)
        begin = self._size.cumsum() - self._size
        return whose, self._addresses[begin[self._kind[whose]] + place], self.count[whose] - place


def alike(keys: Array) -> tuple[Array, Array]:
    """Of keys (m, k), m up to 8, one of each (distinct,), as indices, and which of them each is (k,)."""
    mixed = (keys * _MIXERS[:len(keys)]).sum(axis=0, dtype=np.uint64)
    _, first, kind = np.unique(mixed, return_index=True, return_inverse=True)
    if (keys[:, first[kind]] != keys).any():  # two that are not alike have been mixed to the same
        _, first, kind = np.unique(keys, axis=1, return_index=True, return_inverse=True)
    return first, kind.ravel()


def with_managed(places: Sequence[Managed], frames: Frames) -> Frames:
    """Stacks with addresses put before some of their frames, without the pointers in these. Of several that tell of one
    frame the last stands next to it."""
    n, width = frames.pcs.shape
    n_before, theirs = np.zeros((n, width), np.int64), []
    for some in reversed(places):
        theirs.append((some, n_before[some.row, some.depth]))
        n_before[some.row, some.depth] += some.count
    at = n_before.cumsum(axis=1)
    length = frames.length + at[:, -1]
    depths = int(length.max(initial=1))
    # Where each frame comes to stand, in the rows of all stacks one behind the other.
    at += np.arange(width)
    at += np.arange(0, n * depths, depths)[:, None]
    wide = np.zeros(n * depths, np.uint64)
    there = np.arange(width) < frames.length[:, None]
    wide[at[there]] = frames.pcs[there]
    for some, n_between in theirs:
        whose, addresses, back = some.flat()
        wide[(at[some.row, some.depth] - n_between)[whose] - back] = addresses
    return _bounded(Frames(wide.reshape(n, depths), length, frames.stop, *np.zeros((2, n, 0), np.uint64)))


def _bounded(frames: Frames) -> Frames:
    """Without what is next to the root of stacks that no packet has room for: frames of machine code are limited, but
    each may have carried out many functions."""
    rows = indices(frames.length > _DEPTH_MAX)
    if not len(rows):
        return frames
    pcs, length, stop = frames.pcs[:, :_DEPTH_MAX].copy(), np.minimum(frames.length, _DEPTH_MAX), frames.stop.copy()
    pcs[rows, _DEPTH_MAX - 1], stop[rows] = TRUNCATED_MARK, Stop.DEPTH
    return frames._replace(pcs=pcs, length=length, stop=stop)


def within(pcs: Array, stretches: Array) -> Array:
    """Which pcs, of any shape, lie in one of stretches (k, 2)."""
    found = np.zeros(pcs.shape, np.bool_)
    for begin, end in stretches:
        found |= pcs - begin < end - begin
    return found
