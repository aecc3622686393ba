"""Sleeping places by their registers, for switch-outs of which only the registers were recorded.

A thread that leaves its CPU very often has only some of its departures recorded with a stack. The others are known by
thread, ip, sp and bp: they have a stack that was seen with the same four. Most often there is just one. Where a place
was reached in several ways (one function sleeps for two callers), each has as many of the others as makes its part of
the time spent there what it was where stacks were seen last. Where there is none, what a thread waits for is taken from
others that left their CPU at the same instruction: most often it is that of one system call.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from collector.arrays import changes, indices
from collector.events import Array

_ODD = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F), np.uint64(0x165667B19E3779F9),
        np.uint64(0xD6E8FEB86659FD93))
_MAX_SITES = 1 << 18
_WAYS = 4  # that are known of a site, those in which most time was spent
_FADES = 0.5  # what is known of a site, with each stack that is seen there in a later batch
_GOLDEN = (5**0.5 - 1) / 2  # its multiples, without their whole parts, fill the space between 0 and 1 evenly


class SiteTable:
    """Keys of sites (u8, sorted), several times where there are several stacks, with the reason last seen with each,
    the image and the instruction that they are at, and the time lately spent there."""

    def __init__(self) -> None:
        self._key: Array = np.zeros(0, dtype=np.uint64)
        self._uid: Array = np.zeros(0, dtype=np.uint64)
        self._reason: Array = np.zeros(0, dtype=np.int8)
        self._image: Array = np.zeros(0, dtype=np.int64)
        self._ip: Array = np.zeros(0, dtype=np.uint64)
        self._spent_ns: Array = np.zeros(0, dtype=np.float64)
        self._n_found = 0

    def __len__(self) -> int:
        return len(self._key)

    def learn(self, key: Array, uid: Array, reason: Array, image: Array, ip: Array, spent_ns: Array) -> None:
        """Stacks (n,) seen at sites, in time order, and the time spent there each time; 0 where it is unknown: of those
        that are all unknown each counts the same."""
        if not len(key):
            return
        keys, uids = np.concatenate([self._key, key]), np.concatenate([self._uid, uid])
        order = np.lexsort((uids, keys))
        first = changes(keys[order], uids[order])
        latest = order[np.concatenate((first[1:], [True]))]
        spent_ns = np.concatenate([self._faded_ns(key), np.maximum(spent_ns, 1)])
        spent_ns = np.add.reduceat(spent_ns[order], indices(first))
        self._key, self._uid, self._spent_ns = keys[latest], uids[latest], spent_ns
        self._reason = np.concatenate([self._reason, reason])[latest]
        self._image = np.concatenate([self._image, image])[latest]
        self._ip = np.concatenate([self._ip, ip])[latest]
        if (self._key[_WAYS:] == self._key[:-_WAYS]).any():
            self._keep(self._most_used())
        if len(self._key) > _MAX_SITES:  # programs do not have so many: forget all and learn anew
            self._keep(slice(0))

    def _faded_ns(self, again: Array) -> Array:
        """The time spent at each site with each stack (s,), where those with keys ``again`` (m,) are seen once more,
        some several times."""
        again = np.sort(again)
        n_seen = again.searchsorted(self._key, "right") - again.searchsorted(self._key)
        faded_ns: Array = self._spent_ns * _FADES**n_seen
        return faded_ns

    def _most_used(self) -> Array:
        """Which stacks (s,) are among the few of their sites that are kept."""
        order = np.lexsort((-self._spent_ns, self._key))
        begins = indices(changes(self._key))
        kept = np.empty(len(order), dtype=bool)
        kept[order] = np.arange(len(order)) - np.repeat(begins, np.diff(begins, append=len(order))) < _WAYS
        return kept

    def forget(self, images: Iterable[int]) -> None:
        """Images are over, and nobody will ask for their sites."""
        gone = np.sort(np.fromiter(images, dtype=np.int64))
        if len(gone) and len(self._key):
            at = np.minimum(gone.searchsorted(self._image), len(gone) - 1)
            self._keep(gone[at] != self._image)

    def _keep(self, rows: Array | slice) -> None:
        self._key, self._uid, self._reason, self._image, self._ip, self._spent_ns = (
            column[rows] for column in (self._key, self._uid, self._reason, self._image, self._ip, self._spent_ns))

    def find(self, key: Array) -> tuple[Array, Array]:
        """A stack (0: unknown) for each key and its reason; of several each in its turn."""
        begin, end = (self._key.searchsorted(key, side) for side in ("left", "right"))
        hit = begin < end
        if not hit.any():
            return np.zeros(len(key), dtype=np.uint64), np.zeros(len(key), dtype=np.int8)
        at = np.where(hit, begin, 0)
        several = indices(end - begin > 1)
        if len(several):
            turn = self._n_found + np.arange(len(several))
            self._n_found += len(several)
            at[several] = self._in_turn(begin[several], end[several], turn * _GOLDEN % 1)
        return np.where(hit, self._uid[at], np.uint64(0)), np.where(hit, self._reason[at], np.int8(0))

    def _in_turn(self, begin: Array, end: Array, part: Array) -> Array:
        """Rows (k,) between ``begin`` and ``end`` at which so large a part of the time spent there is full."""
        until_ns = self._spent_ns.cumsum()
        before_ns = until_ns[begin] - self._spent_ns[begin]
        asked_ns = before_ns + part * (until_ns[end - 1] - before_ns)
        at: Array = np.clip(until_ns.searchsorted(asked_ns, "right"), begin, end - 1)
        return at

    def reasons(self, image: Array, ip: Array) -> Array:
        """What some thread was seen to wait for (i1, n) at each instruction of an image; 0 where none was seen."""
        if not len(self._key):
            return np.zeros(len(ip), dtype=np.int8)
        known, wanted = (_instructions(*each) for each in ((self._image, self._ip), (image, ip)))
        order = known.argsort()
        at = order[np.minimum(known.searchsorted(wanted, sorter=order), len(order) - 1)]
        found: Array = np.where(known[at] == wanted, self._reason[at], np.int8(0))
        return found


def _instructions(image: Array, ip: Array) -> Array:
    """One number (n,) for image and instruction."""
    number: Array = (image.astype(np.uint64) * _ODD[0]) ^ (ip * _ODD[1])
    return number


def keys(slot: Array, image: Array, ip: Array, sp: Array, bp: Array) -> Array:
    """One number (n,) for thread, image and registers."""
    thread = (slot.astype(np.uint64) << np.uint64(24)) ^ image.astype(np.uint64)
    key: Array = (thread * _ODD[0]) ^ (ip * _ODD[1]) ^ (sp * _ODD[2]) ^ (bp * _ODD[3])
    key ^= key >> np.uint64(29)
    return key
