"""How often threads got a CPU while switches are counted, not recorded. Pure.

A thread's account tells how often it has got a CPU since its birth. What of that no record has told, and no count
before, is told when the account is read: whatever came between the last record and the first account, and what was
lost. So the sum is exact up to a thread's last account. Behind that it is estimated: as often in each second on CPU as
before, since how long it was on CPU the clock of its process tells. By the clock on the wall a program that others
keep from its CPU would be told to have switched all the same.
"""

from __future__ import annotations

import numpy as np

from collector.arrays import Columns, among, indices
from collector.events import Accounts, Array, Edge, Source
from collector.timing.timeline import Edges

_NS_PER_S = 1_000_000_000


class Turns:
    """Of each slot how much has been told. ``more``: slots, which may come twice, and how often each got a CPU as is to
    be told beside the records of the last batch."""

    def __init__(self) -> None:
        none = np.zeros(0, dtype=np.int64)
        self.more: tuple[Array, Array] = (none, none)
        self.per_s = np.inf  # of all threads between their last two accounts, where they are counted
        # turns, run_ns: by the last account; per_ns: on CPU, between the last two
        # since_ns: when the first account was read of a thread that was found; records of before tell nothing new.
        self._of = Columns(told=("i8", 0), turns=("i8", 0), run_ns=("i8", 0), per_ns=("f8", 0), since_ns=("i8", 0))

    def grow(self, n: int) -> None:
        """Makes room for the slots below ``n``."""
        self._of.grow(n)

    def forget(self, slots: Array) -> None:
        """The threads at slots are over, and the slots are free."""
        self._of.reset(slots)

    def found(self, slot: int) -> None:
        """Of a thread that was there before us nothing is known, so that its first account is where we begin."""
        self._of.told[slot] = -1

    def begins(self, slot: int, turns: int, run_ns: int, time_ns: int) -> None:
        """A thread's account as we begin with it, and when it was read."""
        of = self._of
        of.told[slot] = of.turns[slot] = turns
        of.run_ns[slot], of.since_ns[slot] = run_ns, time_ns

    def goes_on(self, old: int, new: int) -> None:
        """The thread at one slot goes on at another one, with the same account."""
        self._of.told[new] += self._of.told[old]
        for name in ("turns", "run_ns", "per_ns"):
            column = getattr(self._of, name)
            column[new] = column[old]

    def recorded(self, edges: Edges) -> None:
        """What the records of a batch tell; it begins with this."""
        self.more = (self.more[0][:0], self.more[1][:0])
        slot = edges.slot[_arrives(edges) & (edges.time_ns > self._of.since_ns[edges.slot])]
        if len(slot):
            told = np.bincount(slot, minlength=len(self._of.told))
            self._of.told[:] = np.where(self._of.told < 0, -1, self._of.told + told)

    def counted(self, slot: Array, accounts: Accounts, edges: Edges, length_ns: int) -> None:
        """Where switches are counted: accounts (n,), at slots in order, of a batch with such edges; ``length_ns`` since
        those before, 0 where that is not known."""
        of = self._of
        turns = accounts.turns + _arrivals_behind(slot, accounts.time_ns, edges)
        more = np.where(of.told[slot] < 0, 0, np.maximum(turns - of.told[slot], 0))
        ran_ns = accounts.run_ns - of.run_ns[slot]
        of.per_ns[slot] = np.where(ran_ns > 0, (accounts.turns - of.turns[slot]) / np.maximum(ran_ns, 1),
                                   of.per_ns[slot])
        of.told[slot] = np.maximum(turns, of.told[slot])
        of.turns[slot], of.run_ns[slot] = accounts.turns, accounts.run_ns
        self.more = slot, more
        self.per_s = int(more.sum()) * _NS_PER_S / length_ns if length_ns else np.inf

    def ended(self, slot: Array, ran_ns: Array) -> None:
        """Where switches are counted: threads (n,) have ended that were so long on CPU since their births."""
        of = self._of
        more = (of.per_ns[slot] * np.maximum(ran_ns - of.run_ns[slot], 0)).astype(np.int64)
        of.told[slot] += more
        self.more = np.concatenate([self.more[0], slot]), np.concatenate([self.more[1], more])


def _arrives(edges: Edges) -> Array:
    arrives: Array = (edges.edge == Edge.IN) & (edges.source == Source.RECORDED)
    return arrives


def _arrivals_behind(slot: Array, time_ns: Array, edges: Edges) -> Array:
    """How often each thread (n,), at slots in order, got a CPU behind a time (n,), by records."""
    rows = indices(_arrives(edges) & among(edges.slot, slot))
    at = slot.searchsorted(edges.slot[rows])
    return np.bincount(at[edges.time_ns[rows] > time_ns[at]], minlength=len(slot))
