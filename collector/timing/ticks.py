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

from collector.arrays import changes, distinct, indices
from collector.events import Array

N_STATES = 10
_KEPT = 32  # accounts per group
_FAR_NS = np.iinfo(np.int64).max


class Accounts:
    """What is owed, by group (any number) and stack, and when time was last added, as the number of that stretch: four
    arrays of one length, sorted by group and stack."""

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
        if not len(group):
            return length_ns, group, uid, length_ns
        asked = distinct(group)
        touched = asked[np.minimum(asked.searchsorted(self.group), len(asked) - 1)] == self.group
        n_old = int(np.count_nonzero(touched))
        groups = np.concatenate([self.group[touched], group])
        uids = np.concatenate([self.uid[touched], uid])
        lengths = np.concatenate([self.owed_ns[touched], length_ns])
        used = np.concatenate([self.used[touched], self._n_used + np.arange(len(group))])
        self._n_used += len(group)
        order = np.lexsort((uids, groups))
        first = changes(groups[order], uids[order])
        key = np.empty(len(order), dtype=np.int64)
        key[order] = first.cumsum() - 1
        key_group, key_uid = groups[order][first], uids[order][first]
        key_used = used[order][np.append(first[1:], True)]  # its last one
        owed = np.bincount(key, lengths, len(key_group)).astype(np.int64) if len(key) else lengths
        ticks = self._due(key_group, owed, key_used)
        earned, paid = _spread(key[n_old:], length_ns, ticks)
        self._keep(~touched, key_group, key_uid, owed - ticks * self.interval_ns, key_used)
        rest = indices((ticks > 0) & ~paid)
        return earned, key_group[rest], key_uid[rest], ticks[rest]

    def close(self, groups: Array) -> tuple[Array, Array, Array]:
        """Ends ``groups`` (g,), which are in ascending order; returns (group, uid, owed_ns) of their accounts."""
        if not len(groups):
            return groups, self.uid[:0], self.owed_ns[:0]
        mine = groups[np.minimum(groups.searchsorted(self.group), len(groups) - 1)] == self.group
        closed = self.group[mine], self.uid[mine], self.owed_ns[mine]
        self.group, self.uid, self.owed_ns, self.used = (
            column[~mine] for column in (self.group, self.uid, self.owed_ns, self.used))
        return closed

    def _due(self, group: Array, owed_ns: Array, used: Array) -> Array:
        """Ticks (k,) for accounts sorted by group: as many as the group's sum is worth. What is worth a tick by itself
        has it; of the others the largest where all are kept, else whoever fills an interval."""
        if not len(group):
            return owed_ns
        first = changes(group)
        number, begins = first.cumsum() - 1, indices(first)
        due = np.maximum(np.add.reduceat(owed_ns, begins) // self.interval_ns, 0)
        ticks: Array = np.maximum(owed_ns // self.interval_ns, 0)
        left = owed_ns - ticks * self.interval_ns
        missing = due - np.add.reduceat(ticks, begins)
        gets = _rank(number, -left, first) < missing[number]
        many = indices((np.bincount(number) > _KEPT)[number])
        if len(many):
            gets[many] = (missing[number] > 0)[many] & self._fills(number[many], left[many], used[many])
        ticks[gets] += 1
        while (missing < 0).any():  # others were told too much; a stack that is owed several may pay several
            rank = _rank(number, np.where(ticks > 0, left, _FAR_NS), first)
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

    def _keep(self, others: Array, group: Array, uid: Array, owed_ns: Array, used: Array) -> None:
        """Takes new accounts in place of all but ``others``: of each group those that were used last."""
        if len(group):
            first = changes(group)
            number = first.cumsum() - 1
            rank = _rank(number, -used, first)
            kept = rank < _KEPT
            folded = np.bincount(number[~kept], owed_ns[~kept], int(number[-1]) + 1).astype(np.int64)
            owed_ns = owed_ns + np.where(rank == _KEPT - 1, folded[number], 0)
            group, uid, owed_ns, used = group[kept], uid[kept], owed_ns[kept], used[kept]
        group = np.concatenate([self.group[others], group])
        uid = np.concatenate([self.uid[others], uid])
        order = np.lexsort((uid, group))
        self.group, self.uid = group[order], uid[order]
        self.owed_ns = np.concatenate([self.owed_ns[others], owed_ns])[order]
        self.used = np.concatenate([self.used[others], used])[order]


def _rank(number: Array, value: Array, first: Array) -> Array:
    """Place (n,) of each value among those of its group, smallest first; groups are numbered in order."""
    order = np.lexsort((value, number))
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order)) - indices(first)[number]
    return rank


def _spread(key: Array, length_ns: Array, ticks: Array) -> tuple[Array, Array]:
    """The keys' ticks (k,) over their stretches (s,), along their lengths; and which keys (k,) have any stretch."""
    order = key.argsort(kind="stable")
    sorted_key, length = key[order], length_ns[order]
    earned = np.zeros(len(key), dtype=np.int64)
    paid = np.zeros(len(ticks), dtype=bool)
    if not len(key):
        return earned, paid
    first = changes(sorted_key)
    begins = indices(first)
    total = length.cumsum()
    part = first.cumsum() - 1
    until = total - (total[begins] - length[begins])[part]
    whole = np.maximum(np.append(until[begins[1:] - 1], until[-1])[part], 1)
    upto = ticks[sorted_key] * until // whole
    before = np.where(first, 0, np.concatenate([[0], upto[:-1]]))
    earned[order] = upto - before
    paid[sorted_key] = np.append(until[begins[1:] - 1], until[-1])[part] > 0
    return earned, paid
