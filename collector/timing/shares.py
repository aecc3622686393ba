"""How amounts are shared out among rooms, group by group. Pure."""

from __future__ import annotations

import numpy as np

from collector.arrays import changes, indices
from collector.events import Array


def shared_out(amount: Array, group: Array, room: Array) -> Array:
    """What each of some rooms (n,) takes of its group's amount (g,): the largest first."""
    if not (amount > 0).any():
        return np.zeros(len(room), dtype=np.int64)
    order = np.lexsort((-room, group))
    room, group = room[order], group[order]
    before = room.cumsum() - room - _of_groups_before(group, room)
    taken = np.empty(len(room), dtype=np.int64)
    taken[order] = np.clip(amount[group] - before, 0, room)
    return taken


def spread_out(amount: Array, group: Array, room: Array, piece: int) -> Array:
    """What each of some rooms (n,), by group, takes of its group's amount (g,): evenly some of them, a piece each, or
    as much of one as there is room for."""
    if not (amount > 0).any():
        return np.zeros(len(room), dtype=np.int64)
    part = np.minimum(amount / np.maximum(np.bincount(group, room, len(amount)), 1), 1)
    n_due = ((room.cumsum() - _of_groups_before(group, room)) * part[group] // piece).astype(np.int64)
    n_due -= np.where(changes(group), 0, np.roll(n_due, 1))
    return np.minimum(n_due * piece, room)


def _of_groups_before(group: Array, values: Array) -> Array:
    """For each row the sum of ``values`` (n,) in the groups before its own; groups ascend."""
    first = indices(changes(group))
    before: Array = (values.cumsum() - values)[first].repeat(np.diff(np.append(first, len(group))))
    return before
