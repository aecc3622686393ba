"""One state for each key. A batch of values costs one pass, whatever the number of keys in it.

A key is a tuple of columns' elements. A column is an array of n elements, or ``Coded``: n numbers into a table of
names, which is how names and stacks come (a table is looked up for what a batch has of different keys, not for each
value). Columns may be

    (n,) integers of 1 to 8 bytes        a key of an int
    (n,) fixed-length bytes or str       a key of bytes or str
    (n, depth) integers                  a stack: a key of a tuple of int, which ends before the first 0
    Coded                                a key of what the table has: any hashable value

Keys are equal when their values are, whatever columns they came in.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from collector.aggregate.fold import Fold, as_int64
from collector.arrays import Array, numbered
from collector.errors import AggregationError

Key: TypeAlias = tuple[Hashable, ...]

# glibc gives freed memory back to the kernel at once, and the next batch faults it in again page by page: 12 of the
# 19 ns that a value took. Freeing one large block teaches it to keep more (mallopt(3): dynamic mmap threshold).
np.empty(4 << 20, dtype=np.uint8)


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
        return [self.values[code] if code >= 0 else self.missing for code in self.codes.tolist()]


Column: TypeAlias = Array | Coded


class Keyed:
    """An aggregating function by key. ``add`` is for one thread; parts of several threads are merged afterwards."""

    def __init__(self, fold: Fold) -> None:
        self.fold = fold
        self._rows: dict[Key, int] = {}
        self._states = fold.empty_states(16)

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Key]:
        return iter(self._rows)

    def __contains__(self, key: Key) -> bool:
        return key in self._rows

    def __getitem__(self, key: Key) -> Any:
        return self.fold.result(self.state(key))

    def state(self, key: Key) -> Array:
        """The state (n_words,) uint64 of ``key``. KeyError."""
        state: Array = self._states[self._rows[key]]
        return state

    def states(self) -> Iterator[tuple[Key, Array]]:
        """(key, state) in the order in which the keys first came."""
        return ((key, self._states[row]) for key, row in self._rows.items())

    def add(self, keys: Sequence[Column], values: Any) -> None:
        """Fold each of ``values`` (n,) into the state of its key; ``keys`` are columns of n each. AggregationError."""
        numbers = as_int64(values)
        for column in keys:
            if len(column) != len(numbers):
                raise AggregationError(f"{len(numbers)} values have keys, but a column has {len(column)}")
        if len(numbers) and not keys:
            rows = self._rows_of(lambda: [()])
            self.fold.add(self._states[rows[0]], numbers)
        elif len(numbers):
            number, first = distinct_rows(keys)
            elements = [_elements(column[first]) for column in keys]
            rows = self._rows_of(lambda: zip(*elements, strict=True))
            self.fold.add_grouped(self._states, rows[number], numbers)

    def merge(self, other: Keyed) -> None:
        """Fold all of ``other`` into this one; it stays as it is. AggregationError for another function.

        Another thread may be adding to it: then a part of its latest batch is in.
        """
        if (self.fold.name, self.fold.n_words) != (other.fold.name, other.fold.n_words):
            raise AggregationError(f"{other.fold.name} cannot be merged into {self.fold.name}")
        items, states = list(other._rows.items()), other._states
        there = [(key, row) for key, row in items if row < len(states)]
        if there:
            self.fold_in([key for key, _ in there], states[[row for _, row in there]])

    def fold_in(self, keys: Sequence[Key], states: Array) -> None:
        """Fold ``states`` (k, n_words) uint64 of this function in, each into that of its key; a key may come twice.

        AggregationError for states of other arguments.
        """
        if len(keys):
            rows = self._rows_of(lambda: keys)
            self.fold.merge_grouped(self._states, rows, states)

    def clear(self) -> None:
        """Forget the values and keep the keys, as DTrace's ``clear()``."""
        self._states = self.fold.empty_states(len(self._states))

    def delete(self, keys: Sequence[Key]) -> None:
        """Forget these keys. KeyError."""
        gone = {key: self._rows[key] for key in keys}
        kept = [key for key in self._rows if key not in gone]
        states = self._states[[self._rows[key] for key in kept]]
        self._rows = {key: row for row, key in enumerate(kept)}
        self._states = self.fold.empty_states(max(16, len(kept)))
        self._states[:len(kept)] = states

    def _rows_of(self, keys: Callable[[], Iterable[Key]]) -> Array:
        """The rows (k,) of the keys that ``keys()`` gives, new ones made.

        Most are known: asked for one by one as ``zip`` makes them, which takes the same tuple for all of them then.
        """
        rows = list(map(self._rows.get, keys()))
        if None in rows:
            rows = [self._rows.setdefault(key, len(self._rows)) for key in keys()]
        if len(self._rows) > len(self._states):
            more = self.fold.empty_states(max(len(self._states), len(self._rows) - len(self._states)))
            self._states = np.concatenate([self._states, more])
        return np.array(rows, dtype=np.int64)


class PerCpu:
    """One instance for each CPU (or thread, or whoever adds), merged when asked: adding never waits for anybody."""

    def __init__(self, fold: Fold) -> None:
        self.fold = fold
        self._parts: dict[int, Keyed] = {}

    def on(self, cpu: int) -> Keyed:
        """The instance that only ``cpu`` adds to."""
        if cpu not in self._parts:
            self._parts[cpu] = Keyed(self.fold)
        return self._parts[cpu]

    def merged(self) -> Keyed:
        """All of them as one, as of now."""
        whole = Keyed(self.fold)
        for part in list(self._parts.values()):
            whole.merge(part)
        return whole


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


def _elements(column: Column) -> list[Any]:
    """The elements of a column as keys have them."""
    if isinstance(column, Coded) or column.ndim == 1:
        return column.tolist()
    return [tuple(stack[:stack.index(0)] if 0 in stack else stack) for stack in column.tolist()]
