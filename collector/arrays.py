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


def packed(*pairs: tuple[Array, Array]) -> list[Array]:
    """Pairs of a small number and a time (n,) as one number (n,) each, which sort as the pairs do.

    Numbers of one call compare with each other, whichever of the ``pairs`` they come from.
    """
    times = [time for _, time in pairs if len(time)]
    origin = min((int(time.min()) for time in times), default=0)
    shift = (max((int(time.max()) for time in times), default=0) - origin + 1).bit_length()
    return [(number << shift) + (time - origin) for number, time in pairs]


def summed(group: Array, values: Array, n: int) -> Array:
    """Sums (n,) of whole ``values`` (m,) by their ``group`` (m,), exact below 2**53."""
    sums: Array = np.bincount(group, values, n).astype(np.int64)
    return sums


class Columns:
    """Arrays of one length, one element for each of some things that are numbered, as attributes.

    >>> clocks = Columns(kind=("i1", -1), since_ns=("i8", 0))
    >>> clocks.grow(3)
    >>> clocks.kind[:3]
    array([-1, -1, -1], dtype=int8)
    """

    def __init__(self, **fields: tuple[str, int]) -> None:
        """Each field's type and what its elements begin as."""
        self._fields = fields
        self._n = 0
        for name, (kind, _) in fields.items():
            setattr(self, name, np.zeros(0, dtype=kind))

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    def grow(self, n: int) -> None:
        """Makes room for the numbers below ``n``."""
        if n <= self._n:
            return
        more = max(n, 2 * self._n, 64) - self._n
        for name, (kind, fill) in self._fields.items():
            setattr(self, name, np.concatenate([getattr(self, name), np.full(more, fill, dtype=kind)]))
        self._n += more

    def copy(self) -> Columns:
        """The same, which later changes leave as it is."""
        other = Columns(**self._fields)
        other._n = self._n
        for name in self._fields:
            setattr(other, name, getattr(self, name).copy())
        return other

    def reset(self, numbers: Array) -> None:
        """Things ``numbers`` begin anew."""
        for name, (_, fill) in self._fields.items():
            getattr(self, name)[numbers] = fill
