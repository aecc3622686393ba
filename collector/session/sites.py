"""Sleeping places by their registers, for switch-outs of which only the registers were recorded.

A thread that leaves its CPU very often has only some of its departures recorded with a stack. The others are known by
process, ip, sp and bp: they have a stack that was seen with the same four. No two threads that live at a time have one
sp; and who comes on the stack of a thread that is over, down to the same frame, has most often come the same way. Most
often there is just one. Where a place was reached in several ways (one function sleeps for two callers), each has as
many of the others as makes its part of the time spent there what it was where stacks were seen last. Where there is
none, what a thread waits for is taken from others that left their CPU at the same instruction: most often it is that of
one system call.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from collector.arrays import changes, gathered, indices, lasts
from collector.events import Array
from collector.unwind.frame_pointer import NEAR

_ODD = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F), np.uint64(0x165667B19E3779F9),
        np.uint64(0xD6E8FEB86659FD93))
_MANY_SITES = 1 << 14  # that come in, a megabyte, before those that were not used meanwhile are forgotten
_WAYS = 4  # that are known of a site, those in which most time was spent
_FADES = 0.5  # what is known of a site, with each stack that is seen there in a later batch
_GOLDEN = (5**0.5 - 1) / 2  # its multiples, without their whole parts, fill the space between 0 and 1 evenly


class _Rows(NamedTuple):
    """Columns (s,) of stacks that were seen at sites, sorted by key and stack."""

    key: Array  # u8
    uid: Array  # u8, the stack
    reason: Array  # i1, the one last seen with it
    image: Array  # i8
    ip: Array  # u8, the instruction
    spent_ns: Array  # f8, the time lately spent there
    used: Array  # whether it was seen, or asked for, since the unused ones were last forgotten

    def at(self, rows: Array) -> _Rows:
        """Those of a mask, or at some indices."""
        return _Rows(*(column[rows] for column in self))

    def and_then(self, more: _Rows) -> _Rows:
        """These, and behind them ``more``."""
        return _Rows(*map(np.concatenate, zip(self, more, strict=True)))


_NONE = _Rows(*(np.zeros(0, dtype=kind)
                for kind in (np.uint64, np.uint64, np.int8, np.int64, np.uint64, np.float64, np.bool_)))


class SiteTable:
    """Stacks by the keys of their sites; several where a site has several."""

    def __init__(self) -> None:
        self._rows = _NONE
        self._most = _MANY_SITES  # rows, before the unused ones are forgotten
        self._n_found = 0

    def __len__(self) -> int:
        return len(self._rows.key)

    def learn(self, key: Array, uid: Array, reason: Array, image: Array, ip: Array, spent_ns: Array) -> None:
        """Stacks (n,) seen at sites, in time order, and the time spent there each time; 0 where it is unknown: of those
        that are all unknown each counts the same."""
        if not len(key):
            return
        sites, n_seen = _counted(key)
        begin, end = (self._rows.key.searchsorted(sites, side) for side in ("left", "right"))
        before = gathered(np.arange(len(self)), begin, end - begin)
        known = self._rows.at(before)
        known = known._replace(spent_ns=known.spent_ns * _FADES**np.repeat(n_seen, end - begin))
        seen = _Rows(key, uid, reason, image, ip, np.maximum(spent_ns, 1.0), np.ones(len(key), dtype=bool))
        self._replace(before, _most_used(_merged(known.and_then(seen))))
        if len(self) > self._most:
            self._forget_unused()

    def _replace(self, before: Array, rows: _Rows) -> None:
        """The rows at indices ``before`` (k,) give way to others of the same sites, and of new ones. Column by column:
        where there are many sites, what is made of all of them on the way would be several times the table."""
        is_kept = np.ones(len(self), dtype=bool)
        is_kept[before] = False
        at = self._rows.key[is_kept].searchsorted(rows.key)
        self._rows = _Rows(*(np.insert(old[is_kept], at, new) for old, new in zip(self._rows, rows, strict=True)))

    def _forget_unused(self) -> None:
        """Sites that nobody was seen at while many others came in. Most are of threads that are over."""
        begins = indices(changes(self._rows.key))
        are_used = np.logical_or.reduceat(self._rows.used, begins)
        self._rows = self._rows.at(np.repeat(are_used, np.diff(begins, append=len(self))))
        self._rows.used[:] = False
        self._most = len(self) + _MANY_SITES

    def forget(self, images: Iterable[int]) -> None:
        """Images are over, and nobody will ask for their sites."""
        gone = np.sort(np.fromiter(images, dtype=np.int64))
        if len(gone) and len(self):
            at = np.minimum(gone.searchsorted(self._rows.image), len(gone) - 1)
            self._rows = self._rows.at(gone[at] != self._rows.image)

    def find(self, key: Array) -> tuple[Array, Array]:
        """A stack (0: unknown) for each key and its reason; of several each in its turn."""
        rows = self._rows
        begin, end = (rows.key.searchsorted(key, side) for side in ("left", "right"))
        hit = begin < end
        if not hit.any():
            return np.zeros(len(key), dtype=np.uint64), np.zeros(len(key), dtype=np.int8)
        at = np.where(hit, begin, 0)
        several = indices(end - begin > 1)
        if len(several):
            turn = self._n_found + np.arange(len(several))
            self._n_found += len(several)
            at[several] = self._in_turn(begin[several], end[several], turn * _GOLDEN % 1)
        rows.used[at[hit]] = True
        return np.where(hit, rows.uid[at], np.uint64(0)), np.where(hit, rows.reason[at], np.int8(0))

    def _in_turn(self, begin: Array, end: Array, part: Array) -> Array:
        """Rows (k,) between ``begin`` and ``end`` at which so large a part of the time spent there is full."""
        until_ns = self._rows.spent_ns.cumsum()
        before_ns = until_ns[begin] - self._rows.spent_ns[begin]
        asked_ns = before_ns + part * (until_ns[end - 1] - before_ns)
        at: Array = np.clip(until_ns.searchsorted(asked_ns, "right"), begin, end - 1)
        return at

    def reasons(self, image: Array, ip: Array) -> Array:
        """What some thread was seen to wait for (i1, n) at each instruction of an image; 0 where none was seen."""
        if not len(self):
            return np.zeros(len(ip), dtype=np.int8)
        known, wanted = (_instructions(*each) for each in ((self._rows.image, self._rows.ip), (image, ip)))
        order = known.argsort()
        at = order[np.minimum(known.searchsorted(wanted, sorter=order), len(order) - 1)]
        found: Array = np.where(known[at] == wanted, self._rows.reason[at], np.int8(0))
        return found


def _counted(key: Array) -> tuple[Array, Array]:
    """The different keys (m,) in ascending order, and how often (m,) each is there."""
    in_order = np.sort(key)
    begins = indices(changes(in_order))
    return in_order[begins], np.diff(begins, append=len(in_order))


def _merged(rows: _Rows) -> _Rows:
    """Each stack of each site once, with all the time spent there; what else is told of it is what was told last."""
    rows = rows.at(np.lexsort((rows.uid, rows.key)))
    spent_ns = np.add.reduceat(rows.spent_ns, indices(changes(rows.key, rows.uid)))
    return rows.at(lasts(rows.key, rows.uid))._replace(spent_ns=spent_ns)


def _most_used(rows: _Rows) -> _Rows:
    """The few of each site's stacks that are kept."""
    if not (rows.key[_WAYS:] == rows.key[:-_WAYS]).any():
        return rows
    order = np.lexsort((-rows.spent_ns, rows.key))
    begins = indices(changes(rows.key))
    is_kept = np.empty(len(order), dtype=bool)
    is_kept[order] = np.arange(len(order)) - np.repeat(begins, np.diff(begins, append=len(order))) < _WAYS
    return rows.at(is_kept)


def _instructions(image: Array, ip: Array) -> Array:
    """One number (n,) for image and instruction."""
    number: Array = (image.astype(np.uint64) * _ODD[0]) ^ (ip * _ODD[1])
    return number


def keys(image: Array, ip: Array, sp: Array, bp: Array) -> Array:
    """One number (n,) for image and registers; threads of one image that live at a time are told apart by ``sp``. In
    code without frame pointers ``bp`` holds anything: it counts where it leads into the stack."""
    bp = np.where(bp - sp < NEAR, bp, np.uint64(0))
    key: Array = (image.astype(np.uint64) * _ODD[0]) ^ (ip * _ODD[1]) ^ (sp * _ODD[2]) ^ (bp * _ODD[3])
    key ^= key >> np.uint64(29)
    return key
