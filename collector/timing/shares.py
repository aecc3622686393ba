"""How amounts are shared out among rooms, group by group. Pure."""

from __future__ import annotations

import numpy as np

from collector.arrays import changes
from collector.events import Array


def shared_out(amount: Array, group: Array, room: Array) -> Array:
    """What each of some rooms (n,) takes of its group's amount (g,): the largest first."""
    if not (amount > 0).any():
        return np.zeros(len(room), dtype=np.int64)
    order = np.lexsort((-room, group))
    room, group = room[order], group[order]
    before = room.cumsum() - room
    before -= _of_groups(changes(group), before)
    taken = np.empty(len(room), dtype=np.int64)
    taken[order] = (amount[group] - before).clip(0, room)
    return taken


def spread_out(amount: Array, group: Array, room: Array, piece: int) -> Array:
    """What each of some rooms (n,), by group, takes of its group's amount (g,): evenly some of them, a piece each, or
    as much of one as there is room for."""
    if not (amount > 0).any():
        return np.zeros(len(room), dtype=np.int64)
    part = np.minimum(amount / np.maximum(np.bincount(group, room, len(amount)), 1), 1)
    first, upto = changes(group), room.cumsum()
    n_due = ((upto - _of_groups(first, upto - room)) * part[group] // piece).astype(np.int64)
    n_due[1:] -= np.where(first[1:], 0, n_due[:-1])
    return np.minimum(n_due * piece, room)


def _of_groups(first: Array, values: Array) -> Array:
    """For each row the value (n,) of the row that is the ``first`` (n,) of its group."""
    found: Array = values[first][first.cumsum() - 1]
    return found
