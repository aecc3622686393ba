"""One state for each key. A batch of values costs one pass, whatever the number of keys in it.

A key is a tuple of columns' elements, see ``columns``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np

from collector.aggregate.columns import Column, Places, distinct_rows, elements_of
from collector.aggregate.fold import Fold, as_int64
from collector.arrays import Array
from collector.errors import AggregationError

Key: TypeAlias = tuple[Hashable, ...]
_UNKNOWN, _NO_ROOM = -2, -1

# glibc gives freed memory back to the kernel at once, and the next batch faults it in again page by page: 12 of the
# 19 ns that a value took. Freeing one large block teaches it to keep more (mallopt(3): dynamic mmap threshold).
np.empty(4 << 20, dtype=np.uint8)


class Keyed:
    """An aggregating function by key. ``add`` is for one thread; parts of several threads are merged afterwards.

    At most ``max_keys`` are made by ``add``, any number without it. The values of others are dropped, and counted in
    ``n_dropped``: of a key that is there no value is.
    """

    def __init__(self, fold: Fold, max_keys: int | None = None) -> None:
        self.fold = fold
        self.n_dropped = 0
        self._max_keys = max_keys
        self._rows: dict[Key, int] = {}
        self._states = fold.empty_states(16)
        self._places = Places()
        self._row_at = np.zeros(0, dtype=np.int64)  # by place, _UNKNOWN for keys that were not looked for yet

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
            rows = self._rows_at(keys)
            if self._max_keys is not None and len(self) >= self._max_keys:
                there = rows != _NO_ROOM
                rows, numbers = rows[there], numbers[there]
                self.n_dropped += len(there) - len(rows)
            self.fold.add_grouped(self._states, rows, numbers)

    def merge(self, other: Keyed) -> None:
        """Fold all of ``other`` into this one; it stays as it is. AggregationError for another function.

        Another thread may be adding to it: then a part of its latest batch is in.
        """
        if (self.fold.name, self.fold.n_words) != (other.fold.name, other.fold.n_words):
            raise AggregationError(f"{other.fold.name} cannot be merged into {self.fold.name}")
        self.n_dropped += other.n_dropped
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
        self._row_at[:] = _UNKNOWN
        self._states = self.fold.empty_states(max(16, len(kept)))
        self._states[:len(kept)] = states

    def _rows_at(self, keys: Sequence[Column]) -> Array:
        """The rows (n,) of the keys that columns have; of those that have places, only new ones are looked for."""
        places, n_places = self._places.of(keys)
        if places is None:
            return self._rows_found(keys)
        if n_places != len(self._row_at):
            self._row_at = np.full(n_places, _UNKNOWN, dtype=np.int64)
        rows = self._row_at[places]
        if rows.min() == _UNKNOWN:
            new = np.flatnonzero(rows == _UNKNOWN)
            rows[new] = self._row_at[places[new]] = self._rows_found([column[new] for column in keys])
        return rows

    def _rows_found(self, keys: Sequence[Column]) -> Array:
        number, first = distinct_rows(keys)
        elements = [elements_of(column[first]) for column in keys]
        return self._rows_of(lambda: zip(*elements, strict=True), self._max_keys)[number]

    def _rows_of(self, keys: Callable[[], Iterable[Key]], max_keys: int | None = None) -> Array:
        """The rows (k,) of the keys that ``keys()`` gives, new ones made; _NO_ROOM for more than ``max_keys``.

        Most are known: asked for one by one as ``zip`` makes them, which takes the same tuple for all of them then.
        """
        rows = list(map(self._rows.get, keys()))
        if None in rows:
            known, room = self._rows, sys.maxsize if max_keys is None else max_keys
            rows = [known.setdefault(key, len(known)) if len(known) < room else known.get(key, _NO_ROOM)
                    for key in keys()]
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
