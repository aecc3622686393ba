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
    return in_order[changes(in_order)]


def numbered(values: Array) -> tuple[Array, Array]:
    """The different values (m,) of ``values`` in ascending order, and for each of ``values`` (n,) its number there."""
    if len(values) and (values == values[0]).all():
        return values[:1].copy(), np.zeros(len(values), dtype=np.int64)
    order = np.argsort(values)
    in_order = values[order]
    first = changes(in_order)
    number = np.empty(len(values), dtype=np.int64)
    number[order] = np.cumsum(first) - 1
    return in_order[first], number


def changes(*columns: Array) -> Array:
    """Which (n,) rows of columns (n,) each differ from the one before; the first one does."""
    differs = np.ones(len(columns[0]), dtype=bool)
    differs[1:] = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
    return differs
