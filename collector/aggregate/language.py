"""The language of aggregations: ``NAME[KEYS] = FUNC(VALUE, ARGS) / CONDITION /``.

    expression = name [ "[" key { "," key } "]" ] "=" function "(" [ value { "," number } ] ")" [ "/" either "/" ]
    either     = both { "||" both }
    both       = term { "&&" term }
    term       = "!" term | "(" either ")" | operand ( "==" | "!=" | "<" | "<=" | ">" | ">=" ) operand
    operand    = name of a key or value | number | string
    key        = name | "ustack" "(" number ")"

    keys       pid tid cpu state execname comm syscall ustack usym umod ufunc waker
    values     1          every span counts one
               oncpu      ns on a CPU: states 0 to 2
               offcpu     ns off the CPU: states 3 to 9, waiting for a CPU included
               fault      ns of a page fault: states 3 to 5
               lock, sleep, waitcpu, stopped    ns in state 6, 7, 8, 9
               runlength  ns that a thread ran without leaving its CPU, at the span that ends the run
               switches   1 at that span
    functions  count() sum(v) min(v) max(v) avg(v) stddev(v) variance(v) quantize(v)
               lquantize(v, lower, upper [, step]) llquantize(v, factor, low, high, steps)

A span that is not of the value's states gives no value: ``quantize(sleep)`` has no zeros for the others. In a condition
it is 0 there. A number may have a unit: ``10ms``, ``5us``, ``2s``. A state is compared by name or number. A name may
begin with @, as in DTrace.

What comes out is a ``Query``: it says which columns it needs, and turns columns into columns. Strings are compared once
for each name of a table, never for each span. What cannot be understood raises ExpressionError.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn, TypeAlias

import numpy as np

from collector.aggregate import fold
from collector.aggregate.dtrace import UserStack
from collector.aggregate.fold import Fold
from collector.aggregate.keyed import Coded, Column
from collector.aggregate.scales import INT64_MAX, ScaleError
from collector.aggregate.spans import NO_RUN, ON_CPU, STATES
from collector.arrays import Array
from collector.errors import ExpressionError

Columns: TypeAlias = Mapping[str, Column]
Test: TypeAlias = Callable[[Columns], Array]

NUMBERS = ("pid", "tid", "cpu")
STRINGS = ("execname", "comm", "syscall", "usym", "umod", "ufunc", "waker")
KEYS = (*NUMBERS, "state", *STRINGS, "ustack")

# The states in which a span has this value, which is then its length.
_LASTS = {"oncpu": ON_CPU, "offcpu": (3, 4, 5, 6, 7, 8, 9), "fault": (3, 4, 5), "lock": (6,), "sleep": (7,),
          "waitcpu": (8,), "stopped": (9,)}
_OF_RUNS = ("runlength", "switches")
VALUES = ("1", *_LASTS, *_OF_RUNS)
_LENGTH_NEEDS = frozenset({"start_ns", "end_ns", "state"})
_RUN_NEEDS = frozenset({"run_ns"})


class Query(NamedTuple):
    """A compiled expression. ``select`` turns columns into the result's key columns and values.

    ``needs`` are the columns that it wants: those of ``Spans``, of names, and ``run_ns`` (see ``Runs``).
    """

    name: str
    keys: tuple[str, ...]
    fold: Fold
    value: str
    needs: frozenset[str]
    expression: str
    select: Callable[[Columns], tuple[list[Column], Array]]


class _Function(NamedTuple):
    """Names of the arguments behind the value, how many may be left out, and what makes the fold of them."""

    arguments: tuple[str, ...]
    optional: int
    make: Callable[..., Fold]


FUNCTIONS: dict[str, _Function] = {
    each.name: _Function((), 0, lambda each=each: each)
    for each in (fold.COUNT, fold.SUM, fold.MIN, fold.MAX, fold.AVG, fold.STDDEV, fold.VARIANCE, fold.QUANTIZE)
} | {
    "lquantize": _Function(("lower", "upper", "step"), 1, fold.lquantize),
    "llquantize": _Function(("factor", "low", "high", "steps"), 0, fold.llquantize),
}


def compile_expression(expression: str) -> Query:
    """The query that ``expression`` is. ExpressionError."""
    return _Parser(expression).query()


# --- tokens ---------------------------------------------------------------------------------------

_TOKEN = re.compile(r"""\s*(?:
    (?P<name>@?[A-Za-z_][A-Za-z0-9_]*|@)
  | (?P<number>-?(?:0[xX][0-9A-Fa-f]+|[0-9]+)(?P<unit>[A-Za-z_][A-Za-z0-9_]*)?)
  | (?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
  | (?P<sign>==|!=|<=|>=|&&|\|\||[\[\](),=<>!/])
)""", re.VERBOSE | re.DOTALL)
_UNITS = {None: 1, "ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9}
_ESCAPES = {"n": "\n", "t": "\t"}
_MAX_DEPTH = 100


class _Token(NamedTuple):
    kind: str
    text: str
    position: int
    value: Any = None


def _tokens(expression: str) -> list[_Token]:
    """The tokens, and one of kind "end" behind them."""
    found, position = [], 0
    end = len(expression.rstrip())
    while position < end:
        match = _TOKEN.match(expression, position)
        if match is None:
            start = position + len(expression[position:]) - len(expression[position:].lstrip())
            unclosed = expression[start] in "\"'"
            raise ExpressionError("a string without its closing quote" if unclosed
                                  else f"unexpected character {expression[start]!r}", expression, start)
        kind = str(match.lastgroup) if match["number"] is None else "number"
        start = match.start(kind)
        found.append(_Token(kind, match[kind], start, _literal(expression, kind, match, start)))
        position = match.end()
    return [*found, _Token("end", "the end", end)]


def _literal(expression: str, kind: str, match: re.Match[str], start: int) -> Any:
    if kind == "string":
        return re.sub(r"\\(.)", lambda escape: _ESCAPES.get(escape[1], escape[1]), match[kind][1:-1], flags=re.DOTALL)
    if kind != "number":
        return match[kind]
    unit = match["unit"]
    if unit not in _UNITS:
        raise ExpressionError(f"unknown unit {unit}: ns, us, ms, s, m", expression, match.start("unit"))
    number = int(match[kind].removesuffix(unit or ""), 0 if "x" in match[kind].lower() else 10) * _UNITS[unit]
    if abs(number) > INT64_MAX:
        raise ExpressionError("a number of more than 64 bits", expression, start)
    return number


# --- what conditions are made of ------------------------------------------------------------------


class _Operand(NamedTuple):
    """One side of a comparison: its type (number, string, state), the literal if it is one, the column if not."""

    type: str
    token: _Token
    literal: Any
    column: Callable[[Columns], Column] | None
    needs: frozenset[str]


_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_MIRRORED = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


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


# --- the parser -----------------------------------------------------------------------------------


class _Parser:
    """Recursive descent: a method for each rule of the grammar above."""

    def __init__(self, expression: str) -> None:
        self.expression = expression
        self._left = _tokens(expression)[::-1]
        self._depth = 0

    def query(self) -> Query:
        name = self._next("name", "the aggregation's name").text
        keys = self._keys() if self._skip("[") else []
        self._next("=", "=")
        function, value = self._call()
        condition = self._condition() if self._skip("/") else None
        self._next("end", "the end or / CONDITION /")
        return self._compiled(name, keys, function, value, condition)

    def _compiled(
        self, name: str, keys: list[tuple[str, int | None]], function: Fold, value: str, condition: _Condition | None
    ) -> Query:
        key_columns = [_key_column(key, depth) for key, depth in keys]
        needs = {key for key, _ in keys} | _value_needs(value) | (condition.needs if condition else set())

        def select(columns: Columns) -> tuple[list[Column], Array]:
            present, values = _values(value, columns)
            wanted = present & condition.test(columns) if condition else present
            if wanted.all():
                return [column(columns) for column in key_columns], values
            rows = np.flatnonzero(wanted)
            return [column(columns)[rows] for column in key_columns], values[rows]

        shown = tuple(key if depth is None else f"{key}({depth})" for key, depth in keys)
        return Query(name, shown, function, value, frozenset(needs), self.expression, select)

    def _keys(self) -> list[tuple[str, int | None]]:
        found = []
        while True:
            token = self._next("name", "a key", KEYS)
            if token.text not in KEYS:
                self._fail(f"unknown key {token.text}: {_listed(KEYS)}", token)
            found.append((token.text, self._stack_depth(token) if self._skip("(") else None))
            if self._next((",", "]"), ", or ]").text == "]":
                return found

    def _stack_depth(self, key: _Token) -> int:
        if key.text != "ustack":
            self._fail(f"only ustack has a depth, {key.text} has none", key)
        token = self._next("number", "how many frames")
        if token.value <= 0:
            self._fail("a stack has 1 frame or more", token)
        self._next(")", ")")
        return int(token.value)

    def _call(self) -> tuple[Fold, str]:
        token = self._next("name", "a function", tuple(FUNCTIONS))
        if token.text not in FUNCTIONS:
            self._fail(f"unknown function {token.text}: {_listed(tuple(FUNCTIONS))}", token)
        function = FUNCTIONS[token.text]
        self._next("(", "(")
        if token.text == "count" and self._skip(")"):
            return function.make(), "1"
        value = self._value()
        arguments: list[_Token] = []
        while self._skip(","):
            arguments.append(self._next("number", self._argument_wanted(token, function, len(arguments))))
        least = len(function.arguments) - function.optional
        if len(arguments) < least:
            self._fail(f"{token.text} also needs {', '.join(function.arguments[len(arguments):least])}", self._left[-1])
        self._next(")", ")")
        try:
            return function.make(*(argument.value for argument in arguments)), value
        except ScaleError as err:
            self._fail(str(err), arguments[min(err.argument, len(arguments) - 1)])

    def _argument_wanted(self, token: _Token, function: _Function, number: int) -> str:
        if number == len(function.arguments):
            self._fail(f"{token.text} has no more arguments", self._left[-1])
        return f"the {function.arguments[number]} of {token.text}, a number"

    def _value(self) -> str:
        token = self._next(("name", "number"), "a value", VALUES)
        if token.text not in VALUES:
            self._fail(f"unknown value {token.text}: {_listed(VALUES)}", token)
        return token.text

    def _condition(self) -> _Condition:
        condition = self._either()
        self._next("/", "&&, || or the closing /")
        return condition

    def _either(self) -> _Condition:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            self._fail(f"more than {_MAX_DEPTH} parentheses inside one another", self._left[-1])
        conditions = [self._both()]
        while self._skip("||"):
            conditions.append(self._both())
        self._depth -= 1
        return _joined(np.logical_or, conditions)

    def _both(self) -> _Condition:
        conditions = [self._term()]
        while self._skip("&&"):
            conditions.append(self._term())
        return _joined(np.logical_and, conditions)

    def _term(self) -> _Condition:
        negated = False
        while self._skip("!"):
            negated = not negated
        if self._skip("("):
            condition = self._either()
            self._next(")", "&&, || or )")
        else:
            condition = self._comparison()
        if not negated:
            return condition
        return _Condition(lambda columns: ~condition.test(columns), condition.needs)

    def _comparison(self) -> _Condition:
        left = self._operand()
        sign = self._next(tuple(_COMPARE), "a comparison, such as ==").text
        right = self._operand()
        if left.column is None:
            left, right, sign = right, left, _MIRRORED[sign]
        if left.column is None:
            self._fail("one side of a comparison must be a name", right.token)
        if left.type == "state" and right.type == "string":
            right = self._state_number(right)
        kinds = {"number" if side.type == "state" else side.type for side in (left, right)}
        if len(kinds) > 1:
            later = max(left, right, key=lambda side: side.token.position)
            self._fail("a number and a string cannot be compared", later.token)
        if right.column is not None and left.type == "string":
            self._fail("a name that is a string is compared with a string", right.token)
        return _Condition(_comparing(left, sign, right), left.needs | right.needs)

    def _state_number(self, operand: _Operand) -> _Operand:
        if operand.literal not in STATES:
            self._fail(f"unknown state {operand.literal}: {_listed(STATES)}", operand.token)
        return operand._replace(type="number", literal=STATES.index(operand.literal))

    def _operand(self) -> _Operand:
        token = self._next(("name", "number", "string"), "a name, a number or a string")
        name = token.text
        if token.kind != "name":
            return _Operand(token.kind, token, token.value, None, frozenset())
        if name in VALUES:
            return _Operand("number", token, None, lambda columns: _values(name, columns)[1], _value_needs(name))
        if name == "ustack":
            self._fail("a stack cannot be compared: usym, umod and ufunc can", token)
        if name not in KEYS:
            self._fail(f"unknown name {name}: {_listed((*KEYS[:-1], *VALUES[1:]))}", token)
        kind = "string" if name in STRINGS else "state" if name == "state" else "number"
        return _Operand(kind, token, None, _column(name), frozenset({name}))

    def _skip(self, sign: str) -> bool:
        """Whether the next token is this sign, which is taken then."""
        if self._left[-1].text != sign or self._left[-1].kind != "sign":
            return False
        self._left.pop()
        return True

    def _next(self, kinds: str | tuple[str, ...], wanted: str, choice: tuple[str, ...] = ()) -> _Token:
        """The next token, which must be of these kinds or be one of these signs."""
        token = self._left[-1]
        if (token.text if token.kind == "sign" else token.kind) not in ((kinds,) if isinstance(kinds, str) else kinds):
            self._fail(f"{token.text} where {wanted} is expected{': ' if choice else ''}{_listed(choice)}", token)
        if token.kind != "end":
            self._left.pop()
        return token

    def _fail(self, reason: str, token: _Token) -> NoReturn:
        raise ExpressionError(reason, self.expression, token.position)


def _comparing(left: _Operand, sign: str, right: _Operand) -> Test:
    column, other, literal = left.column, right.column, right.literal
    assert column is not None
    if left.type == "string":
        return lambda columns: _compare_strings(column(columns), sign, literal)
    if other is not None:
        return lambda columns: np.asarray(_COMPARE[sign](column(columns), other(columns)))
    return lambda columns: np.asarray(_COMPARE[sign](column(columns), literal))


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names)
