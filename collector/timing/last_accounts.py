"""The accounts of threads as they end, until the batch comes that has their ends. Pure.

An account comes with how long its thread has lived, so that it belongs to a moment just before the thread's end: what
the records say behind that stays as they say. Of threads that were found the beginning is not known: theirs belong to
their ends, but not that of a process's first thread, which gives the memory back in between.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from collector.arrays import Columns, changes, indices, lasts
from collector.events import Accounts, Array, Exits

# By how much the record of a birth may be stamped behind the moment from which the kernel counts how long it lives: its
# maker may have lost the CPU in between.
_LATE_NS = 100_000_000


class _Told(NamedTuple):
    """Columns (x,) of accounts that have come: those of ``Exits``, each with when it was read."""

    pid: Array
    tid: Array
    elapsed_ns: Array
    run_ns: Array
    delay_ns: Array
    turns: Array
    read_ns: Array

    def at(self, rows: Array) -> _Told:
        """Those of a mask, or at some indices."""
        return _Told(*(column[rows] for column in self))


class LastAccounts:
    """Of all threads that anybody has told of; when those at slots were born, it is told."""

    def __init__(self) -> None:
        self._born = Columns(time_ns=("i8", 0))
        self._told = _Told(*[np.zeros(0, dtype=np.int64)] * 7)

    def grow(self, n: int) -> None:
        """Makes room for the slots below ``n``."""
        self._born.grow(n)

    def born(self, slot: Array, time_ns: Array) -> None:
        """Threads (n,) were born; 0: nobody saw it."""
        self._born.time_ns[slot] = time_ns

    def goes_on(self, old: int, new: int) -> None:
        """The thread at one slot goes on at another one."""
        self._born.time_ns[new] = self._born.time_ns[old]

    def forget(self, slots: Array) -> None:
        """The threads at slots are over, and the slots are free."""
        self._born.reset(slots)

    def take(self, exits: Exits) -> None:
        """Accounts that have come."""
        more = (exits.pid, exits.tid, exits.elapsed_ns, exits.run_ns, exits.delay_ns, exits.turns,
                np.full(len(exits.tid), exits.read_ns))
        self._told = _Told(*map(np.concatenate, zip(self._told, more, strict=True)))

    def of_ending(self, slot: Array, pid: Array, tid: Array, end_ns: Array) -> Accounts | None:
        """Those of threads (n,) that end; None where there are none. Of an id that has ended twice nothing is told.

        An id may have been given to another thread, which has ended as well, before the first one's end comes to us: of
        several accounts it is the one that leads nearest to the end.
        """
        told = self._told
        if not len(told.tid) or not len(slot):
            return None
        order = tid.argsort(kind="stable")
        slot, pid, tid, end_ns = slot[order], pid[order], tid[order], end_ns[order]
        once = changes(tid) & lasts(tid)
        at = np.minimum(tid.searchsorted(told.tid), len(tid) - 1)
        ends, begin_ns = tid[at] == told.tid, self._born.time_ns[slot[at]]
        time_ns = np.where(begin_ns > 0, begin_ns + told.elapsed_ns, end_ns[at])
        theirs = ends & once[at] & ((told.pid == pid[at]) | (told.pid < 0)) & (time_ns <= end_ns[at] + _LATE_NS)
        row = indices(theirs & ((begin_ns > 0) | (tid[at] != pid[at])))
        row = row[np.lexsort((abs(time_ns - end_ns[at])[row], at[row]))]
        row = row[changes(at[row])]
        chosen = np.full(len(tid), -1)
        chosen[at[row]] = row
        self._told = told.at(~ends | (once[at] & (np.arange(len(at)) > chosen[at])))
        if not len(row):
            return None
        found, at = told.at(row), at[row]
        time_ns = np.minimum(time_ns[row], end_ns[at] - 1)
        return Accounts(time_ns, pid[at], found.tid, found.run_ns, found.delay_ns, found.turns,
                        int(found.read_ns.max()))

    def keep(self, until_ns: int, known: Callable[[Array], Array]) -> None:
        """All births and ends up to a time are known, and accounts of strangers are left out: of tids (x,) it is
        ``known`` which are ours."""
        if len(self._told.tid):
            self._told = self._told.at((self._told.read_ns > until_ns) | known(self._told.tid))

    @property
    def has_any(self) -> bool:
        """Whether there are accounts of which nobody has asked."""
        return len(self._told.tid) > 0
