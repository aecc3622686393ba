"""The rows of the reports: a data set seen through a view, sorted, as numbers.

Every table is ``Rows``: what each row is about (an id), one number per column of the view (microseconds, bytes, packed
addresses), and the percentages. Text is the business of ``export``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from collector.report import profile
from collector.report.build import TOTAL_FUNCTION
from collector.report.functions import Function
from collector.report.metrics import EXCLUSIVE, N_STATE_COLUMNS, View
from collector.report.profile import I8, ROOT

F8 = npt.NDArray[np.float64]

_OFFSET_BITS = 40
_US_PER_S = 1e6


@dataclass(frozen=True)
class Rows:
    """``ids`` (n), ``values`` (n, c) and ``percents`` (n, c), in the order in which they are shown."""

    ids: I8
    values: I8
    percents: F8

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Calls:
    """One function with its callers and callees; attributed values."""

    callers: Rows
    center: Rows
    callees: Rows


@dataclass(frozen=True)
class TreeRow:
    """A line of the call tree. ``is_last``: for each level from the top, whether no sibling follows; empty: <Total>."""

    object: int
    values: I8
    percents: F8
    is_last: tuple[bool, ...]


@dataclass(frozen=True)
class Labels:
    """What the rows of a table may be about: names, for sorting, and numbers that static columns show (n)."""

    names: Sequence[bytes]
    sizes: I8
    addresses: I8
    total: int = TOTAL_FUNCTION
    order: Sequence[int] | None = None

    @classmethod
    def of_functions(cls, functions: Sequence[Function]) -> Labels:
        """Names, sizes and addresses of functions."""
        return cls([f.name for f in functions], np.array([f.size for f in functions], np.int64),
                   np.array([pack_address(f.object_number, f.offset) for f in functions], np.int64))

    @classmethod
    def of_names(cls, names: Sequence[bytes], total: int, order: Sequence[int] | None = None) -> Labels:
        """Only names, and perhaps another order than that of the names."""
        nothing = np.zeros(len(names), np.int64)
        return cls(names, nothing, nothing, total, order)

    @cached_property
    def ranks(self) -> I8:
        """For each id its place among the names; equal names, equal places."""
        if self.order is not None:
            return np.array(self.order, np.int64)
        order = {name: i for i, name in enumerate(sorted(set(self.names)))}
        return np.array([order[name] for name in self.names], np.int64)


def pack_address(object_number: int, offset: int) -> int:
    """An address within all load objects as one number."""
    return object_number << _OFFSET_BITS | offset & (1 << _OFFSET_BITS) - 1


def unpack_address(packed: int) -> tuple[int, int]:
    """(number of the load object, offset in it)."""
    return packed >> _OFFSET_BITS, packed & (1 << _OFFSET_BITS) - 1


def object_rows(stacks: profile.Weighted, view: View, labels: Labels) -> Rows:
    """Every object that occurs, and the total: functions, lines or instructions."""
    matrix = _matrix(view)
    own, with_callees = profile.exclusive(stacks) @ matrix, profile.inclusive(stacks) @ matrix
    own[labels.total] = with_callees[labels.total] = total = profile.total(stacks) @ matrix
    ids = np.union1d(profile.present(stacks), [labels.total])
    is_own = np.array([column.flavor == EXCLUSIVE for column in view.columns])
    values = np.where(is_own, own[ids], with_callees[ids])
    return sorted_rows(ids, values, total, view, labels)


def key_rows(weights: I8, view: View, labels: Labels) -> Rows:
    """Threads, samples and the like: ``weights`` (n, states) for all ids but the total, which is the last one.

    Only ids with any weight are shown.
    """
    values = weights @ _matrix(view)
    used = np.flatnonzero(weights.any(axis=1))
    total = values.sum(axis=0)
    ids = np.append(used, labels.total)
    return sorted_rows(ids, np.vstack([values[used], total]), total, view, labels)


def calls(stacks: profile.Weighted, view: View, labels: Labels, order: Sequence[int]) -> Iterator[Calls]:
    """Callers and callees of the functions in ``order``."""
    matrix = _matrix(view)
    callers, callees = profile.pairs(stacks)
    tops = profile.tops(stacks)
    own = profile.exclusive(stacks) @ matrix
    own[TOTAL_FUNCTION] = profile.total(stacks) @ matrix
    above = _Grouped(callers.callee, np.where(callers.caller == ROOT, TOTAL_FUNCTION, callers.caller),
                     callers.weights @ matrix)
    below = _Grouped(np.append(callees.caller, np.full(len(tops.callee), TOTAL_FUNCTION)),
                     np.append(callees.callee, tops.callee), np.vstack([callees.weights, tops.weights]) @ matrix)
    for function in order:
        center = own[[function]]
        caller_ids, caller_values = above.of(function)
        callee_ids, callee_values = below.of(function)
        given, taken = caller_values.sum(axis=0), callee_values.sum(axis=0)
        taken = taken if function == TOTAL_FUNCTION else taken + center[0]
        yield Calls(sorted_rows(caller_ids, caller_values, given, view, labels),
                    sorted_rows(np.array([function]), center, given, view, labels),
                    sorted_rows(callee_ids, callee_values, taken, view, labels))


def call_tree(stacks: profile.Weighted, view: View, labels: Labels) -> Iterator[TreeRow]:
    """The call tree, depth first, siblings sorted."""
    tree, matrix = profile.tree(stacks), _matrix(view)
    total = profile.total(stacks) @ matrix
    values = _with_statics(tree.weights @ matrix, tree.object, view, labels)
    percents = _percents(values, total)
    order = np.lexsort((*_sort_keys(tree.object, values, view, labels), tree.parent))
    begins = np.searchsorted(tree.parent[order], np.arange(-1, len(order)), side="left")
    ends = np.searchsorted(tree.parent[order], np.arange(-1, len(order)), side="right")
    top = _with_statics(total[None, :], np.array([TOTAL_FUNCTION]), view, labels)
    yield TreeRow(TOTAL_FUNCTION, top[0], _percents(top, total)[0], ())
    # An explicit stack: recursive programs make deep trees.
    waiting: list[tuple[int, tuple[bool, ...]]] = []

    def push(parent: int, above: tuple[bool, ...]) -> None:
        children = order[begins[parent + 1]:ends[parent + 1]].tolist()
        waiting.extend((child, (*above, i == 0)) for i, child in enumerate(reversed(children)))

    push(ROOT, ())
    while waiting:
        node, is_last = waiting.pop()
        yield TreeRow(int(tree.object[node]), values[node], percents[node], is_last)
        push(node, is_last)


def sorted_rows(ids: I8, values: I8, total: I8, view: View, labels: Labels) -> Rows:
    """Rows by the view's sort column, then by name; the total comes first, or last when reversed."""
    values = _with_statics(values, ids, view, labels)
    order = np.lexsort((*_sort_keys(ids, values, view, labels), ids != labels.total))
    if view.is_reversed:
        order = order[::-1]
    return Rows(ids[order], values[order], _percents(values[order], total))


class _Grouped:
    """Rows (id, values) that belong to a key each, found by key."""

    def __init__(self, keys: I8, ids: I8, values: I8) -> None:
        order = np.argsort(keys, kind="stable")
        self._keys, self._ids, self._values = keys[order], ids[order], values[order]

    def of(self, key: int) -> tuple[I8, I8]:
        begin, end = np.searchsorted(self._keys, [key, key + 1])
        return self._ids[begin:end], self._values[begin:end]


def _matrix(view: View) -> I8:
    """(states, columns): which states each column adds up."""
    matrix = np.zeros((N_STATE_COLUMNS, len(view.columns)), np.int64)
    for number, column in enumerate(view.columns):
        matrix[list(column.metric.states), number] = 1
    return matrix


def _with_statics(values: I8, ids: I8, view: View, labels: Labels) -> I8:
    numbers = {"size": labels.sizes, "address": labels.addresses}
    for number, column in enumerate(view.columns):
        if column.metric.kind in numbers:
            values = values.copy()
            values[:, number] = numbers[column.metric.kind][ids]
    return values


def _sort_keys(ids: I8, values: I8, view: View, labels: Labels) -> list[I8]:
    """Keys for lexsort, the least important first: id, address, the other columns, the name, the sort column."""
    is_ascending = view.sort.metric.kind in ("name", "address")
    sign = 1 if is_ascending else -1
    columns = [sign * values[:, i] for i, column in enumerate(view.columns) if column.metric.kind != "name"]
    names = labels.ranks[ids]
    first = names if view.sort.metric.kind == "name" else sign * values[:, view.columns.index(view.sort)]
    return [ids, labels.addresses[ids], *reversed(columns), names, first]


def _percents(values: I8, total: I8) -> F8:
    """Shares of the total in percent; zero where the total is. In seconds, because that is how others divide."""
    shares = np.divide(values / _US_PER_S, total / _US_PER_S, out=np.zeros(values.shape),
                       where=np.asarray(total != 0))
    return np.asarray(100.0 * shares)
