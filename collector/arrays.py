"""What numpy lacks, or has only at a price."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]


def indices(mask: Array) -> Array:
    """Where (k,) in a mask (n,) it is so, in ascending order.

    ``np.flatnonzero`` does the same through five functions: of small arrays that takes five times as long.
    """
    found: Array = mask.nonzero()[0]
    return found


def distinct(values: Array) -> Array:
    """The different values of ``values`` (n,), in ascending order: (m,) of the same type.

    ``np.unique`` does the same, but when it is asked for nothing more it imports ``numpy.ma``: a twentieth of what the
    collector's start costs.
    """
    in_order = values.copy()
    in_order.sort()
    return in_order[changes(in_order)]


def numbered(values: Array) -> tuple[Array, Array]:
    """The different values (m,) of ``values`` in ascending order, and for each of ``values`` (n,) its number there."""
    if len(values) and (values == values[0]).all():  # as common as not
        return values[:1].copy(), np.zeros(len(values), dtype=np.int64)
    order = values.argsort()
    in_order = values[order]
    first = changes(in_order)
    number = np.empty(len(values), dtype=np.int64)
    number[order] = first.cumsum() - 1
    return in_order[first], number


_PLACES_BITS = 20
_SPREAD = np.uint64(0x9E37_79B9_7F4A_7C15)
_WORD_BITS = 63  # of an int64, but for its sign
_AT_ONCE = 1 << 18  # elements: what is made of them meanwhile stays in the CPU's caches


def numbered_few(values: Array) -> tuple[Array, Array]:
    """As ``numbered`` for uint64 (n,), the numbers int32: quick and small where few of many values are different.

    A value's place in a table is a hash of it. Values that share a place are sorted as others would be.
    """
    bits = min(max(len(values).bit_length() + 1, 8), _PLACES_BITS)
    table, is_used = np.zeros(1 << bits, np.uint64), np.zeros(1 << bits, np.bool_)
    for part in _parts(len(values)):
        place = _place(values[part], bits)
        table[place] = values[part]
        is_used[place] = True
    missed = [part.start + indices(table[_place(values[part], bits)] != values[part])
              for part in _parts(len(values))]
    others = np.concatenate([np.zeros(0, np.int64), *missed])
    found = np.sort(np.concatenate([table[is_used], distinct(values[others])]))
    number_at, number = np.zeros(1 << bits, np.int32), np.empty(len(values), np.int32)
    number_at[is_used] = found.searchsorted(table[is_used])
    for part in _parts(len(values)):
        number[part] = number_at[_place(values[part], bits)]
    number[others] = found.searchsorted(values[others])
    return found, number


def _place(values: Array, bits: int) -> Array:
    return (values * _SPREAD >> np.uint64(64 - bits)).view(np.int64)


def _parts(n: int) -> Iterator[slice]:
    for begin in range(0, n, _AT_ONCE):
        yield slice(begin, min(begin + _AT_ONCE, n))


def gathered(values: Array, begins: Array, counts: Array) -> Array:
    """Runs of ``values``, one behind the other: ``counts`` (n,) of them from each of ``begins`` (n,)."""
    ends = np.cumsum(counts, dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    result = np.empty(total, values.dtype)
    shift = begins - (ends - counts)
    first = 0
    for end in ends.searchsorted(np.arange(_AT_ONCE, total + _AT_ONCE, _AT_ONCE)).tolist():
        some, at = slice(first, end + 1), int(ends[first - 1]) if first else 0
        source = np.repeat(shift[some], counts[some])
        result[at:at + len(source)] = values[source + np.arange(at, at + len(source))]
        first = min(end + 1, len(ends))
    return result


def among(numbers: Array, some: Array) -> Array:
    """Which (n,) of small ``numbers``, not below 0, are among ``some`` (m,) of the kind, in any order.

    ``np.isin`` does the same for any values; it takes ten times as long, and may import ``numpy.ma`` (see above).
    """
    if not len(numbers) or not len(some):
        return np.zeros(len(numbers), dtype=bool)
    is_one = np.zeros(max(int(numbers.max()), int(some.max())) + 1, dtype=bool)
    is_one[some] = True
    return is_one[numbers]


def changes(*columns: Array) -> Array:
    """Which (n,) rows of columns (n,) each differ from the one before; the first one does."""
    first, *others = columns
    differs = np.empty(len(first), dtype=bool)
    differs[:1] = True
    np.not_equal(first[1:], first[:-1], out=differs[1:])
    for column in others:
        differs[1:] |= column[1:] != column[:-1]
    return differs


def lasts(*columns: Array) -> Array:
    """Which (n,) rows of columns (n,) each differ from the one behind; the last one does."""
    differs = np.empty(len(columns[0]), dtype=bool)
    differs[-1:] = True
    differs[:-1] = changes(*columns)[1:]
    return differs


def packed(*pairs: tuple[Array, Array]) -> list[Array]:
    """Pairs of a small number and a time (n,) as one number (n,) each, which sort as the pairs do.

    Numbers of one call compare with each other, whichever of the ``pairs`` they come from. How far they are from each
    other says nothing: where times are too far apart for 63 bits, as 0 and those of a machine that runs for months,
    they are made of the times' ranks.
    """
    times = np.concatenate([time for _, time in pairs])
    if not len(times):
        return [time for _, time in pairs]
    origin = int(np.minimum.reduce(times))
    shift = (int(np.maximum.reduce(times)) - origin + 1).bit_length()
    if max(int(number.max(initial=0)) for number, _ in pairs).bit_length() + shift > _WORD_BITS:
        different = distinct(times)
        shift = len(different).bit_length()
        return [(number << shift) + different.searchsorted(time) for number, time in pairs]
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
        other, mine = Columns(), vars(self)
        vars(other).update(mine, **{name: mine[name].copy() for name in self._fields})
        return other

    def reset(self, numbers: Array) -> None:
        """Things ``numbers`` begin anew."""
        for name, (_, fill) in self._fields.items():
            getattr(self, name)[numbers] = fill
