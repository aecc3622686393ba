"""Which stacks get the ticks of time spent waiting. Pure, for all threads of a batch at once.

A thread and a state are a *group*. Ticks are due by group: one for every interval of its time, so that a group is never
off by an interval. Within the group every stack has an account of its own,

    owed = its time - interval * its ticks

and the ticks that are due go to the stacks that are owed most. So ten places where a thread sleeps less than an
interval each get what is theirs, whoever sleeps when a tick falls due; a stack is off by about an interval at most.

A group keeps a few accounts, and has more stacks where a thread is preempted at ever new places. None of these will
come again to be paid the rest, and if the largest were paid, shorter waits would never be. So there a tick goes to the
stack at which another interval is full, in the order of time, as a clock would have it::

    owed      |--a--|-b-|----c----|-d-|--e--|----f----|
    full                |             |
    ticks               c             e

What is owed to those of any stretch of time is then less than an interval in all. The accounts that were used last are
kept; what is left of those before them goes to the next one in time.
"""

from __future__ import annotations

import numpy as np

from collector.arrays import among, changes, indices, summed
from collector.events import Array

N_STATES = 10
_KEPT = 32  # accounts per group
_INT64_MAX = np.iinfo(np.int64).max


class Accounts:
    """What is owed, by group (any small number) and stack, and when time was last added, as the number of that stretch:
    four arrays of one length, in any order."""

    def __init__(self, interval_ns: int) -> None:
        self.interval_ns = interval_ns
        self.group: Array = np.zeros(0, dtype=np.int64)
        self.uid: Array = np.zeros(0, dtype=np.uint64)
        self.owed_ns: Array = np.zeros(0, dtype=np.int64)
        self.used: Array = np.zeros(0, dtype=np.int64)
        self._n_used = 0  # stretches so far

    def add(self, group: Array, uid: Array, length_ns: Array) -> tuple[Array, Array, Array, Array]:
        """Adds stretches of time (s,) in time order.

        Returns the ticks that each earns (s,), and for ticks of stacks that are not among them (e,): group, uid, ticks.
        """
        n = len(group)
        if not n:
            return length_ns, group, uid, length_ns
        touched = among(self.group, group)
        groups = np.concatenate([self.group[touched], group])
        uids = np.concatenate([self.uid[touched], uid])
        lengths = np.concatenate([self.owed_ns[touched], length_ns])
        used = np.concatenate([self.used[touched], np.arange(self._n_used, self._n_used + n)])
        self._n_used += n
        order = np.lexsort((uids, groups))
        groups, uids, lengths = groups[order], uids[order], lengths[order]
        is_first = changes(groups, uids)  # of an account's, with what it had before its stretches
        begins = indices(is_first)
        groups, uids = groups[begins], uids[begins]
        owed, used = np.add.reduceat(lengths, begins), np.maximum.reduceat(used[order], begins)
        first = changes(groups)
        many = _of_many(first)
        ticks = self._due(first, many, owed, used)
        self._keep(~touched, first, many, groups, uids, owed - ticks * self.interval_ns, used)
        if not ticks.any():
            return np.zeros(n, dtype=np.int64), group[:0], uid[:0], ticks[:0]
        lengths[order < len(order) - n] = 0  # what it had before earns nothing now
        earned = np.empty(len(order), dtype=np.int64)
        earned[order], paid = _spread(lengths, is_first, ticks)
        rest = indices((ticks > 0) & ~paid)
        return earned[-n:], groups[rest], uids[rest], ticks[rest]

    def close(self, groups: Array) -> tuple[Array, Array, Array]:
        """Ends ``groups`` (g,); returns (group, uid, owed_ns) of their accounts, by group and stack."""
        mine = among(self.group, groups)
        order = indices(mine)[np.lexsort((self.uid[mine], self.group[mine]))]
        closed = self.group[order], self.uid[order], self.owed_ns[order]
        self.group, self.uid, self.owed_ns, self.used = (
            column[~mine] for column in (self.group, self.uid, self.owed_ns, self.used))
        return closed

    def _due(self, first: Array, many: Array, owed_ns: Array, used: Array) -> Array:
        """Ticks (k,) for accounts sorted by group, each of which begins with a ``first`` (k,) one: as many as the
        group's sum is worth. What is worth a tick by itself has it; of the others the largest where all are kept, else,
        at ``many``, whoever fills an interval."""
        begins, number = indices(first), first.cumsum() - 1
        ticks: Array = np.maximum(owed_ns // self.interval_ns, 0)
        due = np.maximum(np.add.reduceat(owed_ns, begins) // self.interval_ns, 0)
        missing = due - np.add.reduceat(ticks, begins)
        if not missing.any():
            return ticks
        left = owed_ns - ticks * self.interval_ns
        gets = _rank(number, -left, begins) < missing[number]
        if len(many):
            gets[many] = (missing[number] > 0)[many] & self._fills(number[many], left[many], used[many])
        ticks[gets] += 1
        while (missing < 0).any():  # others were told too much; a stack that is owed several may pay several
            rank = _rank(number, np.where(ticks > 0, left, _INT64_MAX), begins)
            payers = (ticks > 0) & (rank < -missing[number])
            ticks[payers] -= 1
            left[payers] += self.interval_ns
            missing += np.bincount(number[payers], minlength=len(missing))
        return ticks

    def _fills(self, number: Array, left_ns: Array, used: Array) -> Array:
        """Which of the accounts (m,), each with less than an interval, fill one in the order of time. What was told
        too much comes first, and is made up for by those that follow."""
        order = np.lexsort((used, left_ns >= 0, number))
        first = changes(number[order])
        total_ns = np.cumsum(left_ns[order])
        before_ns = (total_ns - left_ns[order])[first][first.cumsum() - 1]  # of other groups
        full = np.maximum((total_ns - before_ns) // self.interval_ns, 0)
        found = np.empty(len(order), dtype=bool)
        found[order] = np.diff(full, prepend=0) > 0  # a group's first account does not fill one
        return found

    def _keep(self, others: Array, first: Array, many: Array, group: Array, uid: Array, owed_ns: Array,
              used: Array) -> None:
        """Takes new accounts in place of all but ``others``: where a group has ``many``, those that were used last."""
        if len(many):
            number = first.cumsum() - 1
            rank = _rank(number, -used, indices(first))
            kept = rank < _KEPT
            folded = summed(number[~kept], owed_ns[~kept], int(number[-1]) + 1)
            owed_ns = owed_ns + np.where(rank == _KEPT - 1, folded[number], 0)
            group, uid, owed_ns, used = group[kept], uid[kept], owed_ns[kept], used[kept]
        self.group = np.concatenate([self.group[others], group])
        self.uid = np.concatenate([self.uid[others], uid])
        self.owed_ns = np.concatenate([self.owed_ns[others], owed_ns])
        self.used = np.concatenate([self.used[others], used])


def _of_many(first: Array) -> Array:
    """Rows of the accounts (k,) of groups, each of which begins with a ``first`` one, that have more than are kept."""
    number = first.cumsum()
    return indices((np.bincount(number) > _KEPT)[number])


def _rank(number: Array, value: Array, begins: Array) -> Array:
    """Place (n,) of each value among those of its group, smallest first; groups are numbered in order."""
    order = np.lexsort((value, number))
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order)) - begins[number]
    return rank


def _spread(length_ns: Array, first: Array, ticks: Array) -> tuple[Array, Array]:
    """The ticks (k,) of accounts over their stretches (s,), along their lengths; each account begins with a ``first``
    one. Also which accounts (k,) have any length."""
    begins, number = indices(first), first.cumsum() - 1
    whole = np.add.reduceat(length_ns, begins)
    until = length_ns.cumsum() - (whole.cumsum() - whole)[number]
    fits = int(ticks.max()) * int(whole.max()) <= _INT64_MAX  # ticks of some hours, times their length, do not
    shared = ticks[number].astype(np.int64 if fits else object, copy=False) * until // np.maximum(whole, 1)[number]
    earned = shared.astype(np.int64, copy=False)
    earned[1:] -= np.where(first[1:], 0, earned[:-1])
    return earned, whole > 0
