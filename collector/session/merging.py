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


def with_managed(places: Sequence[Managed], frames: Frames, *, is_last: bool = False) -> Frames:
    """Stacks with addresses put before some of their frames. ``is_last``: nobody asks for the pointers in their frames
    any more, which are left out (n, 0)."""
    n, width = frames.pcs.shape
    n_before = np.zeros((n, width), np.int64)
    for some in places:
        n_before[some.row, some.depth] = some.count
    # Where each frame comes to stand.
    at = np.cumsum(n_before, axis=1) + np.arange(width)
    length = frames.length + n_before.sum(axis=1)
    depths = int(length.max(initial=1))
    narrow = (frames.pcs,) if is_last else (frames.pcs, frames.sps, frames.fps)
    wide = np.zeros((len(narrow), n, depths), np.uint64)
    rows, columns = np.nonzero(np.arange(width) < frames.length[:, None])
    there = at[rows, columns]
    for to, of in zip(wide, narrow, strict=True):
        to[rows, there] = of[rows, columns]
    for some in places:
        whose, addresses, back = some.flat()
        row, depth = some.row[whose], some.depth[whose]
        place = at[row, depth] - back
        wide[0, row, place] = addresses
        for to, of in zip(wide[1:], narrow[1:], strict=True):
            to[row, place] = of[row, depth]
    pcs, sps, fps = wide if not is_last else (wide[0], *np.zeros((2, n, 0), np.uint64))
    return _bounded(Frames(pcs, length, frames.stop, sps, fps))


def _bounded(frames: Frames) -> Frames:
    """Without what is next to the root of stacks that no packet has room for: frames of machine code are limited, but
    each may have carried out many functions."""
    rows = indices(frames.length > _DEPTH_MAX)
    if not len(rows):
        return frames
    pcs, sps, fps = (column[:, :_DEPTH_MAX].copy() for column in (frames.pcs, frames.sps, frames.fps))
    length, stop = np.minimum(frames.length, _DEPTH_MAX), frames.stop.copy()
    pcs[rows, _DEPTH_MAX - 1], stop[rows] = TRUNCATED_MARK, Stop.DEPTH
    return Frames(pcs, length, stop, sps, fps)


def within(pcs: Array, stretches: Array) -> Array:
    """Which pcs, of any shape, lie in one of stretches (k, 2)."""
    found = np.zeros(pcs.shape, np.bool_)
    for begin, end in stretches:
        found |= pcs - begin < end - begin
    return found
