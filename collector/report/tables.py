"""The tables of the reports: a data set seen through a view, sorted, as documents.

``Rows`` are what each row is about (an id), one number per column of the view (microseconds, bytes, packed addresses),
and the percentages; with ``Labels``, the names of what they are about, they become documents.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from collector.report import profile
from collector.report.build import TOTAL_FUNCTION
from collector.report.documents import Column, Table, Tree, Unit
from collector.report.functions import Function
from collector.report.metrics import ADDRESS, EXCLUSIVE, NAME, SIZE, View
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
    seen = _seen(stacks, view)
    own, with_callees = profile.exclusive(seen), profile.inclusive(seen)
    own[labels.total] = with_callees[labels.total] = total = profile.total(seen)
    ids = profile.distinct(np.append(profile.present(seen), labels.total))
    is_own = np.array([column.flavor == EXCLUSIVE for column in view.columns])
    values = np.where(is_own, own[ids], with_callees[ids])
    return sorted_rows(ids, values, total, view, labels)


def annotation_columns(stacks: profile.Weighted, keys: I8, view: View) -> tuple[Column, ...]:
    """Columns of metrics for rows that stand for objects of the stacks; below 0: for nothing."""
    chosen = view._replace(columns=tuple(c for c in view.columns if c.metric not in (NAME, SIZE, ADDRESS)))
    matrix = _matrix(chosen, stacks.weights.shape[1])
    own, with_callees = profile.exclusive(stacks) @ matrix, profile.inclusive(stacks) @ matrix
    is_own = np.array([column.flavor == EXCLUSIVE for column in chosen.columns], np.bool_)
    values = np.where(is_own, own[keys], with_callees[keys]) * (keys >= 0)[:, None]
    rows = Rows(keys, values, _percents(values, profile.total(stacks) @ matrix))
    return _columns(rows, chosen, Labels.of_names((), 0))


def key_rows(weights: I8, view: View, labels: Labels) -> Rows:
    """Threads, samples and the like: ``weights`` (n, states) for all ids but the total, which is the last one.

    Only ids with any weight are shown.
    """
    values = weights @ _matrix(view, weights.shape[1])
    used = np.flatnonzero(weights.any(axis=1))
    total = values.sum(axis=0)
    ids = np.append(used, labels.total)
    return sorted_rows(ids, np.vstack([values[used], total]), total, view, labels)


def table(name: str, titles: Sequence[str], rows: Rows, view: View, labels: Labels, notes: Sequence[str] = (),
          limit: int = 0) -> Table:
    """Rows as a document."""
    return Table(name, tuple(titles), _columns(rows, view, labels), notes, limit=limit)


def call_table(titles: Sequence[str], stacks: profile.Weighted, view: View, labels: Labels, order: Sequence[int],
               notes: Sequence[str] = ()) -> Table:
    """Callers and callees of the functions in ``order``: a block for each, with attributed values."""
    parts = list(_calls(stacks, view, labels, order))
    ends = np.cumsum([len(rows) for rows, _ in parts]).reshape(-1, 3)[:, 2] if parts else np.zeros(0, np.int64)
    roles = [role for rows, role in parts for _ in range(len(rows))]
    columns = _columns(_joined([rows for rows, _ in parts], view), view, labels)
    return Table("callers-callees", tuple(titles), columns, notes, roles, 0, np.append(0, ends).astype(np.int64))


def _calls(stacks: profile.Weighted, view: View, labels: Labels, order: Sequence[int]) -> Iterator[tuple[Rows, str]]:
    """For each function its callers, itself, and its callees."""
    stacks = _seen(stacks, view)
    callers, callees = profile.pairs(stacks)
    tops = profile.tops(stacks)
    own = profile.exclusive(stacks)
    own[TOTAL_FUNCTION] = profile.total(stacks)
    above = _Grouped(callers.callee, np.where(callers.caller == ROOT, TOTAL_FUNCTION, callers.caller),
                     callers.weights)
    below = _Grouped(np.append(callees.caller, np.full(len(tops.callee), TOTAL_FUNCTION)),
                     np.append(callees.callee, tops.callee), np.vstack([callees.weights, tops.weights]))
    for function in order:
        center = own[[function]]
        caller_ids, caller_values = above.of(function)
        callee_ids, callee_values = below.of(function)
        given, taken = caller_values.sum(axis=0), callee_values.sum(axis=0)
        taken = taken if function == TOTAL_FUNCTION else taken + center[0]
        yield sorted_rows(caller_ids, caller_values, given, view, labels), "caller"
        yield sorted_rows(np.array([function]), center, given, view, labels), "self"
        yield sorted_rows(callee_ids, callee_values, taken, view, labels), "callee"


def fragment_table(titles: Sequence[str], stacks: profile.Weighted, view: View, labels: Labels,
                   fragment: Sequence[int], notes: Sequence[str] = ()) -> Table:
    """Who calls a run of functions, caller first, and whom the last of them calls, with attributed values."""
    stacks = _seen(stacks, view)
    at, is_innermost = profile.places_of(stacks, fragment[::-1])
    rows = stacks.rows[at]
    weights = stacks.weights[rows] * is_innermost[:, np.newaxis]  # of outer turns: nothing, but they are there
    over, is_leaf = at + len(fragment), at == stacks.offsets[:-1][rows]
    objects = np.append(stacks.objects, TOTAL_FUNCTION)
    caller_ids, callers = profile.sums_of(
        np.where(over < stacks.offsets[1:][rows], objects[over], TOTAL_FUNCTION), weights)
    callee_ids, callees = profile.sums_of(objects[at - 1][~is_leaf], weights[~is_leaf])
    own, total = weights[is_leaf].sum(axis=0), weights.sum(axis=0)
    ids = np.array(fragment, np.int64)
    values = np.zeros((len(ids), len(view.columns)), np.int64)
    values[-1] = own
    center = Rows(ids, _with_statics(values, ids, view, labels), _percents(values, total))
    parts = [sorted_rows(caller_ids, callers, total, view, labels), center,
             sorted_rows(callee_ids, callees, total, view, labels)]
    roles = ["caller"] * len(parts[0]) + ["fragment"] * (len(ids) - 1) + ["self"] + ["callee"] * len(parts[2])
    bounds = np.append(0, np.cumsum([len(part) for part in parts])).astype(np.int64)
    return Table("csingle", tuple(titles), _columns(_joined(parts, view), view, labels), notes, roles, 0, bounds,
                 ("Callers", "Stack Fragment", "Callees"))


def _joined(parts: Sequence[Rows], view: View) -> Rows:
    none = Rows(np.zeros(0, np.int64), np.zeros((0, len(view.columns)), np.int64), np.zeros((0, len(view.columns))))
    every = [none, *parts]
    return Rows(*(np.concatenate([getattr(one, name) for one in every]) for name in ("ids", "values", "percents")))


def tree_table(titles: Sequence[str], stacks: profile.Weighted, view: View, labels: Labels,
               notes: Sequence[str] = (), limit: int = 0) -> Tree:
    """The call tree, depth first, siblings sorted, the total at the top."""
    stacks = _seen(stacks, view)
    tree, total = profile.tree(stacks), profile.total(stacks)
    values = _with_statics(tree.weights, tree.object, view, labels)
    siblings = np.lexsort((*_sort_keys(tree.object, values, view, labels), tree.parent))
    order, depths = profile.depth_first(tree, siblings)
    ids = np.append(TOTAL_FUNCTION, tree.object[order])
    top = _with_statics(total[None, :], ids[:1], view, labels)
    values = np.vstack([top, values[order]])
    columns = _columns(Rows(ids, values, _percents(values, total)), view, labels)
    return Tree("calltree", tuple(titles), columns, notes, limit=limit, depths=np.append(0, depths + 1))


def _columns(rows: Rows, view: View, labels: Labels) -> tuple[Column, ...]:
    return tuple(
        Column(column.key("+" if column.metric.unit in (Unit.COUNT, Unit.BYTES) else "."), column.title,
               column.metric.unit, rows.ids if column.metric is NAME else rows.values[:, i], column.words,
               rows.percents[:, i] if column.as_percent else None, column.as_value, column == view.sort,
               labels.names if column.metric is NAME else (), column.detail, column.key("%"))
        for i, column in enumerate(view.columns))


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


def _seen(stacks: profile.Weighted, view: View) -> profile.Weighted:
    """The stacks with the columns of the view as weights."""
    return profile.seen_as(stacks, _matrix(view, stacks.weights.shape[1]))


def _matrix(view: View, n_states: int) -> I8:
    """(states, columns): which states each column adds up."""
    matrix = np.zeros((n_states, len(view.columns)), np.int64)
    for number, column in enumerate(view.columns):
        matrix[list(column.metric.states), number] = 1
    return matrix


def _with_statics(values: I8, ids: I8, view: View, labels: Labels) -> I8:
    for number, column in enumerate(view.columns):
        if column.metric in (SIZE, ADDRESS):
            values = values.copy()
            values[:, number] = (labels.sizes if column.metric is SIZE else labels.addresses)[ids]
    return values


def _sort_keys(ids: I8, values: I8, view: View, labels: Labels) -> list[I8]:
    """Keys for lexsort, the least important first: id, address, the other columns, the name, the sort column."""
    is_ascending = view.sort.metric in (NAME, ADDRESS)
    sign = 1 if is_ascending else -1
    columns = [sign * values[:, i] for i, column in enumerate(view.columns) if column.metric is not NAME]
    names = labels.ranks[ids]
    first = names if view.sort.metric is NAME else sign * values[:, view.columns.index(view.sort)]
    return [ids, labels.addresses[ids], *reversed(columns), names, first]


def _percents(values: I8, total: I8) -> F8:
    """Shares of the total in percent; zero where the total is. In seconds, because that is how others divide."""
    shares = np.divide(values / _US_PER_S, total / _US_PER_S, out=np.zeros(values.shape),
                       where=np.asarray(total != 0))
    return np.asarray(100.0 * shares)
