"""Sleeping places by their registers, for switch-outs of which only the registers were recorded.

A thread that leaves its CPU very often has only some of its departures recorded with a stack. The others are known by
thread, ip, sp and bp; the last stack seen with the same four is taken for theirs. Where there is none, what a thread
waits for is taken from others that left their CPU at the same instruction: most often it is that of one system call.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from collector.events import Array

_ODD = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F), np.uint64(0x165667B19E3779F9),
        np.uint64(0xD6E8FEB86659FD93))
_MAX_SITES = 1 << 18


class SiteTable:
    """Keys of sites (u8, sorted) with the stack and reason last seen there, and the image and the instruction that they
    are at."""

    def __init__(self) -> None:
        self._key: Array = np.zeros(0, dtype=np.uint64)
        self._uid: Array = np.zeros(0, dtype=np.uint64)
        self._reason: Array = np.zeros(0, dtype=np.int8)
        self._image: Array = np.zeros(0, dtype=np.int64)
        self._ip: Array = np.zeros(0, dtype=np.uint64)

    def __len__(self) -> int:
        return len(self._key)

    def learn(self, key: Array, uid: Array, reason: Array, image: Array, ip: Array) -> None:
        """Stacks seen at sites, in time order; newer ones replace older ones."""
        keys = np.concatenate([key[::-1], self._key])
        self._key, at = np.unique(keys, return_index=True)
        self._uid = np.concatenate([uid[::-1], self._uid])[at]
        self._reason = np.concatenate([reason[::-1], self._reason])[at]
        self._image = np.concatenate([image[::-1], self._image])[at]
        self._ip = np.concatenate([ip[::-1], self._ip])[at]
        if len(self._key) > _MAX_SITES:  # programs do not have so many: forget all and learn anew
            self._keep(slice(0))

    def forget(self, images: Iterable[int]) -> None:
        """Images are over, and nobody will ask for their sites."""
        gone = np.sort(np.fromiter(images, dtype=np.int64))
        if len(gone) and len(self._key):
            at = np.minimum(np.searchsorted(gone, self._image), len(gone) - 1)
            self._keep(gone[at] != self._image)

    def _keep(self, rows: Array | slice) -> None:
        self._key, self._uid, self._reason, self._image, self._ip = (
            column[rows] for column in (self._key, self._uid, self._reason, self._image, self._ip))

    def find(self, key: Array) -> tuple[Array, Array]:
        """Stack (0: unknown) and reason of each key."""
        if not len(self._key):
            return np.zeros(len(key), dtype=np.uint64), np.zeros(len(key), dtype=np.int8)
        at = np.minimum(np.searchsorted(self._key, key), len(self._key) - 1)
        hit = self._key[at] == key
        return np.where(hit, self._uid[at], np.uint64(0)), np.where(hit, self._reason[at], np.int8(0))

    def reasons(self, image: Array, ip: Array) -> Array:
        """What some thread was seen to wait for (i1, n) at each instruction of an image; 0 where none was seen."""
        if not len(self._key):
            return np.zeros(len(ip), dtype=np.int8)
        known, wanted = (_instructions(*each) for each in ((self._image, self._ip), (image, ip)))
        order = np.argsort(known)
        at = order[np.minimum(np.searchsorted(known, wanted, sorter=order), len(order) - 1)]
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
