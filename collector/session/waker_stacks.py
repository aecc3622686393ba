"""In which stacks threads were that woke others, for aggregations.

    run   |---- a ------ wake-up -------- b ----|    a: the last clock sample before the wake-up, else b, the
                                                    first one behind it

A stack was sampled in the run in which its thread did the wake-up: between two times that it was off its CPU. A run
without a sample, as most short ones, tells none (<not sampled>); nor does a departure, which is not where the wake-up
was. Who was woken may be of another process, so a stack is named by the experiment that it is in, too.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from collector.aggregate.spans import ON_CPU, Spans
from collector.arrays import Columns, changes, indices, packed
from collector.events import Array
from collector.experiment.aggregations import stack_name
from collector.session.numbers import Numbers
from collector.session.placing import Placed

UNKNOWN, NONE, NOT_SAMPLED = range(3)
_FAR_NS = 1 << 62


class WakerStacks:
    """Numbers of stacks."""

    def __init__(self, directory_of: Callable[[int], str | None]) -> None:
        """``directory_of`` an image: its experiment's, None where it is not recorded."""
        self.numbers = Numbers(b"<Unknown>", b"<none>", b"<not sampled>")
        self._directory_of = directory_of
        self._seen = Columns(until_ns=("i8", 0))  # by slot: what was told of it
        # Of this batch, and of each slot the last one before; by slot and time.
        self._slot = self._time_ns = self._image = self._uid = np.zeros(0, dtype=np.int64)

    def sampled(self, placed: Placed, time_ns: Array) -> None:
        """The clock samples (n,) of a batch."""
        last = np.append(self._slot[1:] != self._slot[:-1], True)[:len(self._slot)]
        columns = [np.concatenate([kept[last], more.astype(np.int64)]) for kept, more in (
            (self._slot, placed.slot), (self._time_ns, time_ns), (self._image, placed.image), (self._uid, placed.uid))]
        order = np.lexsort((columns[1], columns[0]))
        self._slot, self._time_ns, self._image, self._uid = (column[order] for column in columns)

    def of(self, spans: Spans, slot: Array, time_ns: Array) -> Array:
        """The numbers (w,) of the stacks from which threads ``slot`` did wake-ups of a batch, UNKNOWN for slots below
        0. ``spans`` are all that the batch tells."""
        found = np.full(len(slot), UNKNOWN)
        ours = indices(slot >= 0)
        slots = np.append(slot[ours], spans.slot)
        self._seen.grow(int(slots.max(initial=-1)) + 1)
        begin_ns, end_ns = self._runs(spans, slot[ours], time_ns[ours])
        inside = (begin_ns <= time_ns[ours]) & (time_ns[ours] <= end_ns)
        ours, begin_ns, end_ns = ours[inside], begin_ns[inside], end_ns[inside]
        found[ours] = self._nearest(slot[ours], time_ns[ours], begin_ns, end_ns)
        np.maximum.at(self._seen.until_ns, spans.slot, spans.end_ns)
        return found

    def forget(self, slots: Array) -> None:
        """The threads at slots are over, and the slots are free."""
        kept = ~np.isin(self._slot, slots)
        self._slot, self._time_ns, self._image, self._uid = (
            column[kept] for column in (self._slot, self._time_ns, self._image, self._uid))
        self._seen.grow(int(slots.max(initial=-1)) + 1)
        self._seen.reset(slots)

    def _runs(self, spans: Spans, slot: Array, time_ns: Array) -> tuple[Array, Array]:
        """Since when and until when (w,) threads run that do something at some times. What is not told yet goes on; so
        does a last run: a thread that ends wakes others behind the record of its end."""
        begin_ns, end_ns = self._seen.until_ns[slot], np.full(len(slot), _FAR_NS)
        if not len(spans) or not len(slot):
            return begin_ns, end_ns
        told = spans[np.lexsort((spans.start_ns, spans.slot))]
        keys, wanted = packed((told.slot, told.start_ns), (slot, time_ns))
        at = np.maximum(keys.searchsorted(wanted, side="right") - 1, 0)
        met = (told.slot[at] == slot) & (keys[at] <= wanted)
        runs = np.isin(told.state[at], ON_CPU)
        begin_ns = np.where(met, np.where(runs, told.start_ns[at], told.end_ns[at]), begin_ns)
        is_last = np.append(told.slot[1:] != told.slot[:-1], True)[at]
        return begin_ns, np.where(met & runs & ~is_last, told.end_ns[at], end_ns)

    def _nearest(self, slot: Array, time_ns: Array, begin_ns: Array, end_ns: Array) -> Array:
        if not len(self._slot) or not len(slot):
            return np.full(len(slot), NOT_SAMPLED)
        keys, wanted = packed((self._slot, self._time_ns), (slot, time_ns))
        behind = keys.searchsorted(wanted, side="right")
        before, behind = np.maximum(behind - 1, 0), np.minimum(behind, len(keys) - 1)
        is_before = (self._slot[before] == slot) & (keys[before] <= wanted) & (self._time_ns[before] >= begin_ns)
        is_behind = (self._slot[behind] == slot) & (keys[behind] > wanted) & (self._time_ns[behind] <= end_ns)
        met = indices(is_before | is_behind)
        found = np.full(len(slot), NOT_SAMPLED)
        found[met] = self._numbered(np.where(is_before, before, behind)[met])
        return found

    def _numbered(self, rows: Array) -> Array:
        """The numbers (m,) of the stacks of samples."""
        order = np.lexsort((self._uid[rows], self._image[rows]))
        first = changes(self._image[rows[order]], self._uid[rows[order]]) if len(rows) else np.zeros(0, dtype=bool)
        codes = np.array([self._number(int(self._image[row]), int(self._uid[row])) for row in rows[order[first]]],
                         dtype=np.int64)
        numbers = np.empty(len(rows), dtype=np.int64)
        numbers[order] = codes[first.cumsum() - 1]
        return numbers

    def _number(self, image: int, uid: int) -> int:
        directory = self._directory_of(image)
        if not uid or directory is None:
            return UNKNOWN
        return self.numbers.of(stack_name(directory, uid))
