"""What numpy lacks, or has only at a price."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]


def distinct(values: Array) -> Array:
    """The different values of ``values`` (n,), in ascending order: (m,) of the same type.

    ``np.unique`` does the same, but when it is asked for nothing more it imports ``numpy.ma``: a twentieth of what the
    collector's start costs. Here and below, that all values are equal is as common as not.
    """
    if len(values) and (values == values[0]).all():
        return values[:1].copy()
    in_order = np.sort(values)
    return in_order[_changes(in_order)]


def numbered(values: Array) -> tuple[Array, Array]:
    """The different values (m,) of ``values`` in ascending order, and for each of ``values`` (n,) its number there."""
    if len(values) and (values == values[0]).all():
        return values[:1].copy(), np.zeros(len(values), dtype=np.int64)
    order = np.argsort(values)
    in_order = values[order]
    changes = _changes(in_order)
    number = np.empty(len(values), dtype=np.int64)
    number[order] = np.cumsum(changes) - 1
    return in_order[changes], number


def _changes(in_order: Array) -> Array:
    """Which (n,) of sorted values differ from the one before; the first one does."""
    differs = np.ones(len(in_order), dtype=bool)
    np.not_equal(in_order[1:], in_order[:-1], out=differs[1:])
    return differs
