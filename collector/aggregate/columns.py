"""What keys are made of: columns of n elements each, one for each value.

A column is an array of n elements, or ``Coded``: n numbers into a table of names, which is how names and stacks come (a
table is looked up for what a batch has of different keys, not for each value). Columns may be

    (n,) integers of 1 to 8 bytes        a key of an int
    (n,) fixed-length bytes or str       a key of bytes or str
    (n, depth) integers                  a stack: a key of a tuple of int, which ends before the first 0
    Coded                                a key of what the table has: any hashable value

Keys are equal when their values are, whatever columns they came in.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, TypeAlias

import numpy as np

from collector.arrays import Array, numbered
from collector.errors import AggregationError


@dataclass(frozen=True)
class Coded:
    """A column of names: ``codes`` (n,) integers into ``values``; a code below 0 means ``missing``."""

    codes: Array
    values: Sequence[Hashable]
    missing: Hashable = ""

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, rows: Array) -> Coded:
        return Coded(self.codes[rows], self.values, self.missing)

    def tolist(self) -> list[Hashable]:
        """The names (n,) themselves."""
        codes = self.codes.tolist()
        if codes and min(codes) >= 0:
            return list(map(self.values.__getitem__, codes))
        return [self.values[code] if code >= 0 else self.missing for code in codes]


Column: TypeAlias = Array | Coded


def distinct_rows(columns: Sequence[Column]) -> tuple[Array, Array]:
    """For each row (n,) of ``columns`` the number of its key, and for each number (m,) a row that has that key.

    Different keys have different numbers. Equal ones may have two where a table has a name twice. AggregationError.
    """
    number, n_keys = np.zeros(len(columns[0]), dtype=np.int64), 1
    for part in (part for column in columns for part in _integer_parts(column)):
        codes, n_codes = _compact(part)
        if n_codes > 1:
            number, n_keys = _compact(number * n_codes + codes) if n_keys > 1 else (codes, n_codes)
    rows = np.empty(n_keys, dtype=np.int64)
    rows[number] = np.arange(len(number))
    return number, rows


def _integer_parts(column: Column) -> Iterator[Array]:
    """The column as one or more columns (n,) of integers that are equal where its elements are."""
    if isinstance(column, Coded):
        yield column.codes
    elif column.dtype.kind in "iub":
        yield from column.reshape(len(column), -1).T
    elif column.dtype.kind in "SU":
        width = -(-column.dtype.itemsize // 8) * 8
        words = np.zeros((len(column), width), dtype=np.uint8)
        words[:, :column.dtype.itemsize] = np.ascontiguousarray(column).view(np.uint8).reshape(len(column), -1)
        yield from words.view(np.uint64).T
    else:
        raise AggregationError(f"a column of {column.dtype} is no key: integers, fixed-length strings and Coded are")


def _compact(values: Array) -> tuple[Array, int]:
    """Numbers 0 to m - 1 (n,) int64 that are equal where ``values`` (n,) are, and m.

    A table where the values lie close together, which PIDs and codes do; else a sort, at twenty times its price.
    """
    least, greatest = int(values.min()), int(values.max())
    span = greatest - least + 1
    if span > 16 * len(values):
        different, number = numbered(values)
        return number, len(different)
    if span == 1:
        return np.zeros(len(values), dtype=np.int64), 1
    wide = values if values.dtype.itemsize == 8 else values.astype(np.int64)
    place = (wide - wide.dtype.type(least)).astype(np.int64, copy=False)
    present = np.zeros(span, dtype=bool)
    present[place] = True
    numbers = np.cumsum(present) - 1
    return numbers[place], int(numbers[-1]) + 1


def elements_of(column: Column) -> list[Any]:
    """The elements of a column as keys have them."""
    if isinstance(column, Coded) or column.ndim == 1:
        return column.tolist()
    return [tuple(stack[:stack.index(0)] if 0 in stack else stack) for stack in column.tolist()]


class Places:
    """A table's places for keys, so that those which come again are not looked for one by one, at the price of thirty
    values each.

    Each column has a number for each of its elements: integers that lie close together, as PIDs and CPUs do, and codes
    of a table that cannot change are their own numbers; other names have them in the order in which they first came. A
    key's place is made of its elements' numbers. Names that come when there are many have none.
    """

    def __init__(self) -> None:
        self._tables: list[object] = []  # what each column's numbers mean, see _meaning; the first batch decides
        self._ranges: list[range] = []  # of each column's numbers
        self._numbers: dict[int, dict[Hashable, int]] = {}  # of names, by column

    def of(self, keys: Sequence[Column]) -> tuple[Array | None, int]:
        """The place (n,) of each key, and how many places there are. None for columns that have none, and where they
        would be too many: 16 times the values of a batch.

        Where there are more of them than before, all are other ones.
        """
        tables = [_meaning(column) for column in keys]
        self._tables = self._tables or tables
        if list(map(id, tables)) != list(map(id, self._tables)):
            return None, 0
        columns = [self._numbered(at, column) for at, column in enumerate(keys)]
        numbers = [column for column in columns if column is not None]
        if len(numbers) < len(keys) or not self._has_room(numbers):
            return None, 0
        places = np.subtract(numbers[0], self._ranges[0].start, dtype=np.int64)
        for column, of in zip(numbers[1:], self._ranges[1:], strict=True):
            places = places * len(of) + np.subtract(column, of.start, dtype=np.int64)
        return places, math.prod(map(len, self._ranges))

    def _numbered(self, at: int, column: Column) -> Array | None:
        if not isinstance(column, Coded) or self._tables[at] is not _NAMES:
            numbers = column.codes if isinstance(column, Coded) else column
            # Not u8: not all of them fit.
            return numbers if numbers.ndim == 1 and numbers.dtype.kind in "iu" and numbers.dtype != np.uint64 else None
        least, greatest = int(column.codes.min()), int(column.codes.max())
        if greatest - least >= _PLACES_A_VALUE * len(column):
            return None
        place = np.subtract(column.codes, least, dtype=np.int64)
        present = np.zeros(greatest - least + 1, dtype=bool)
        present[place] = True
        different = np.flatnonzero(present)
        known = self._numbers.setdefault(at, {})
        names = Coded(different + least, column.values, column.missing).tolist()
        numbers = np.zeros(len(present), dtype=np.int64)
        numbers[different] = np.fromiter(map(known.get, names, repeat(-1)), np.int64, len(names))
        if numbers.min() < 0:
            n_new = np.count_nonzero(numbers < 0)
            if len(known) + n_new > min(_PLACES_A_VALUE * len(column), _MAX_NAMES):
                return None  # there would be no room for their keys: they are not learnt
            numbers[different] = [known.setdefault(name, len(known)) for name in names]
        found: Array = numbers[place]
        return found

    def _has_room(self, numbers: Sequence[Array]) -> bool:
        """Whether all numbers are in the ranges, which grow if they may."""
        bounds = [(int(column.min()), int(column.max())) for column in numbers]
        before = self._ranges or [range(low, high + 1) for low, high in bounds]
        ranges = [_wider(of, low, high) for of, (low, high) in zip(before, bounds, strict=True)]
        if ranges != self._ranges:
            if math.prod(of.stop - of.start for of in ranges) > min(_PLACES_A_VALUE * len(numbers[0]), _MAX_PLACES):
                return False
            self._ranges = ranges
        return True


_INTEGERS, _NAMES = "integers", "names"
_PLACES_A_VALUE = 16
_MAX_PLACES = 1 << 20
_MAX_NAMES = 1 << 16  # of a column


def _meaning(column: Column) -> object:
    """What the numbers of a column mean: themselves, the names of a table that stays as it is, or names."""
    if not isinstance(column, Coded):
        return _INTEGERS
    return column.values if isinstance(column.values, range | tuple) else _NAMES


def _wider(of: range, low: int, high: int) -> range:
    """With room for ``low`` and ``high``, and for as much again on the side where it grows."""
    start, stop = min(of.start, low), max(of.stop, high + 1)
    return range(start - (of.start - start), stop + (stop - of.stop))
