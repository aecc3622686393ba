"""The language of aggregations, compiled to work on columns: ``syntax`` has the grammar.

What comes out is a ``Query``: it says which columns it needs, and turns columns into columns. Strings are compared once
for each name of a table, never for each span.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from collector.aggregate import fold
from collector.aggregate.columns import Coded, Column
from collector.aggregate.dtrace import UserStack
from collector.aggregate.fold import Fold
from collector.aggregate.spans import NO_RUN, ON_CPU
from collector.aggregate.syntax import (
    STATES,
    VALUES,
    Comparison,
    Condition,
    Joined,
    Negated,
    Operand,
    Parsed,
    parse,
)
from collector.arrays import Array

Columns: TypeAlias = Mapping[str, Column]
Test: TypeAlias = Callable[[Columns], Array]

# The states in which a span has this value, which is then its length.
_LASTS = {"oncpu": ON_CPU, "offcpu": (3, 4, 5, 6, 7, 8, 9), "fault": (3, 4, 5), "lock": (6,), "sleep": (7,),
          "waitcpu": (8,), "stopped": (9,)}
_OF_RUNS = ("runlength", "switches")
_LENGTH_NEEDS = frozenset({"start_ns", "end_ns", "state"})
_RUN_NEEDS = frozenset({"run_ns"})
assert ("1", *_LASTS, *_OF_RUNS) == VALUES  # each one has its columns

_FOLDS: dict[str, Callable[..., Fold]] = {
    each.name: lambda each=each: each
    for each in (fold.COUNT, fold.SUM, fold.MIN, fold.MAX, fold.AVG, fold.STDDEV, fold.VARIANCE, fold.QUANTIZE)
} | {"lquantize": fold.lquantize, "llquantize": fold.llquantize}


class Query(NamedTuple):
    """A compiled expression. ``select`` turns columns into the result's key columns and values.

    ``needs`` are the columns that it wants: those of ``Spans``, of names, and ``run_ns`` (see ``Runs``). Values
    have been divided by ``divisor``.
    """

    name: str
    keys: tuple[str, ...]
    fold: Fold
    value: str
    needs: frozenset[str]
    expression: str
    select: Callable[[Columns], tuple[list[Column], Array]]
    divisor: int = 1


def compile_expression(expression: str) -> Query:
    """The query that ``expression`` is. ExpressionError."""
    return compiled(parse(expression))


def compiled(parsed: Parsed) -> Query:
    """The query of a tree."""
    key_columns = [_key_column(key.name, key.depth) for key in parsed.keys]
    value, condition = parsed.value.text, _condition(parsed.condition) if parsed.condition else None
    needs = {key.name for key in parsed.keys} | _value_needs(value) | (condition.needs if condition else set())

    def select(columns: Columns) -> tuple[list[Column], Array]:
        present, values = _values(value, columns)
        if parsed.divisor > 1:
            values = values // parsed.divisor
        wanted = present & condition.test(columns) if condition else present
        if wanted.all():
            return [column(columns) for column in key_columns], values
        rows = np.flatnonzero(wanted)
        return [column(columns)[rows] for column in key_columns], values[rows]

    shown = tuple(key.name if key.depth is None else f"{key.name}({key.depth})" for key in parsed.keys)
    return Query(parsed.name, shown, _FOLDS[parsed.function](*parsed.arguments), value, frozenset(needs),
                 parsed.expression, select, parsed.divisor)


# --- conditions -----------------------------------------------------------------------------------

_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


def _column(name: str) -> Callable[[Columns], Column]:
    return lambda columns: columns[name]


def _values(name: str, columns: Columns) -> tuple[Array, Array]:
    """Which (n,) spans have the value ``name``, and the values (n,); 0 where there is none."""
    if name in _OF_RUNS:
        run_ns = columns["run_ns"]
        assert not isinstance(run_ns, Coded)
        present = run_ns != NO_RUN
        return present, np.where(present, run_ns, 0) if name == "runlength" else present.astype(np.int64)
    start, end, state = columns["start_ns"], columns["end_ns"], columns["state"]
    assert not (isinstance(start, Coded) or isinstance(end, Coded) or isinstance(state, Coded))
    if name == "1":
        return np.ones(len(state), dtype=bool), np.ones(len(state), dtype=np.int64)
    wanted = np.zeros(len(STATES), dtype=bool)
    wanted[list(_LASTS[name])] = True
    present = wanted[state]
    return present, np.where(present, end - start, 0)


def _value_needs(name: str) -> frozenset[str]:
    return _RUN_NEEDS if name in _OF_RUNS else _LENGTH_NEEDS


def _compare_strings(column: Column, sign: str, text: str) -> Array:
    """(n,) bool; names of a table are compared once each. Bytes are text in UTF-8."""
    if isinstance(column, Coded):
        codes = np.maximum(column.codes, -1)
        holds = np.zeros(len(column.values) + 1, dtype=bool)  # the last one is code -1
        holds[codes] = True
        for code in np.flatnonzero(holds).tolist():
            name = column.values[code] if code < len(column.values) else column.missing
            holds[code] = _COMPARE[sign](_as_text(name), text)
        return holds[codes]
    literal = text.encode("utf-8", "surrogateescape") if column.dtype.kind == "S" else text
    found: Array = _COMPARE[sign](column, literal)
    return found


def _as_text(name: Hashable) -> str:
    return name.decode("utf-8", "surrogateescape") if isinstance(name, bytes) else str(name)


class _Condition(NamedTuple):
    test: Test
    needs: frozenset[str]


def _joined(join: np.ufunc, conditions: list[_Condition]) -> _Condition:
    tests = [condition.test for condition in conditions]
    if len(tests) == 1:
        return conditions[0]
    return _Condition(lambda columns: join.reduce([test(columns) for test in tests]),
                      frozenset().union(*(condition.needs for condition in conditions)))


def _condition(condition: Condition) -> _Condition:
    match condition:
        case Joined(sign, terms):
            return _joined(np.logical_or if sign == "||" else np.logical_and, [_condition(term) for term in terms])
        case Negated(term):
            inner = _condition(term)
            return _Condition(lambda columns: ~inner.test(columns), inner.needs)
    return _Condition(_comparing(condition), _needs_of(condition.left) | _needs_of(condition.right))


def _needs_of(operand: Operand) -> frozenset[str]:
    if operand.name is None:
        return frozenset()
    return _value_needs(operand.name) if operand.name in VALUES else frozenset({operand.name})


def _named(name: str) -> Callable[[Columns], Column]:
    """What a name in a condition stands for."""
    return (lambda columns: _values(name, columns)[1]) if name in VALUES else _column(name)


def _comparing(comparison: Comparison) -> Test:
    left, sign, right = comparison
    assert left.name is not None
    column, literal = _named(left.name), right.literal
    if left.type == "string":
        return lambda columns: _compare_strings(column(columns), sign, literal)
    if right.name is not None:
        other = _named(right.name)
        return lambda columns: np.asarray(_COMPARE[sign](column(columns), other(columns)))
    return lambda columns: np.asarray(_COMPARE[sign](column(columns), literal))


# --- keys -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _LeafFrames(Sequence[Hashable]):
    """A table of stacks (UserStack, or PCs leaf first) cut to their ``depth`` frames at the leaf."""

    stacks: Sequence[Any]
    depth: int

    def __len__(self) -> int:
        return len(self.stacks)

    def __getitem__(self, number: Any) -> Any:
        stack = self.stacks[number]
        return stack._replace(pcs=stack.pcs[:self.depth]) if isinstance(stack, UserStack) else stack[:self.depth]


def _key_column(name: str, depth: int | None) -> Callable[[Columns], Column]:
    def state(columns: Columns) -> Column:
        codes = columns["state"]
        return codes if isinstance(codes, Coded) else Coded(codes, STATES)

    def stack(columns: Columns) -> Column:
        whole = columns["ustack"]
        if depth is None:
            return whole
        if isinstance(whole, Coded):
            return Coded(whole.codes, _LeafFrames(whole.values, depth), whole.missing)
        return whole[:, :depth]

    return {"state": state, "ustack": stack}.get(name, _column(name))
