"""The grammar of aggregations: from text to a tree. Standard library only: it is read before the target starts.

    expression = name [ "[" key { "," key } "]" ] "=" function "(" [ what { "," number } ] ")" [ "/" either "/" ]
    what       = value [ "/" number ]
    either     = both { "||" both }
    both       = term { "&&" term }
    term       = "!" term | "(" either ")" | operand ( "==" | "!=" | "<" | "<=" | ">" | ">=" ) operand
    operand    = name of a key [ "()" ] | name of a value | number | string
    key        = name [ "()" ] | ( "ustack" | "wakerstack" ) "(" number ")"

    keys       pid tid cpu state execname comm syscall ustack usym umod ufunc waker wakertid
               wakerstack
    values     1          every span counts one
               oncpu      ns on a CPU: states 0 to 2 and 10
               offcpu     ns off the CPU: states 3 to 9, waiting for a CPU included
               fault      ns of a page fault: states 3 to 5
               lock, sleep, waitcpu, stopped    ns in state 6, 7, 8, 9
               runlength  ns that a thread ran without leaving its CPU, at the span that ends the run
               switches   1 at that span
    functions  count() sum(v) min(v) max(v) avg(v) stddev(v) variance(v) quantize(v)
               lquantize(v, lower, upper [, step]) llquantize(v, factor, low, high, steps)

A span that is not of the value's states gives no value: ``quantize(sleep)`` has no zeros for the others. In a condition
it is 0 there. A number may have a unit: ``10ms``, ``5us``, ``2s``; and so a value has another one, and is cut to an
integer: ``lquantize(sleep / 1ms, 0, 100, 10)``. A state is compared by name or number. A name may
begin with @ and a ; may end it all, as in DTrace; () may follow a key, as in SystemTap.

``parse`` finds all mistakes that need no columns: ExpressionError. ``language`` compiles the tree.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn, TypeAlias

from collector.aggregate.bounds import INT64_MAX, ScaleError, check_llquantize, lquantize_levels
from collector.errors import ExpressionError
from collector.suggestions import meant

# The ten microstates by number, named as the metrics are. A recording may not tell which of the first three it was.
STATES = ("user", "system", "trap", "textpfault", "datapfault", "kernelpfault", "lock", "sleep", "wait", "stop",
          "oncpu")
NUMBERS = ("pid", "tid", "cpu", "wakertid")
STRINGS = ("execname", "comm", "syscall", "usym", "umod", "ufunc", "waker")
STACKS = ("ustack", "usym", "umod", "ufunc")  # made of a call stack
WHOLE_STACKS = ("ustack", "wakerstack")  # which are keys, and in no condition
KEYS = (*NUMBERS[:3], "state", *STRINGS, "wakertid", *WHOLE_STACKS)
VALUES = ("1", "oncpu", "offcpu", "fault", "lock", "sleep", "waitcpu", "stopped", "runlength", "switches")
_MIRRORED = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


class Function(NamedTuple):
    """Names of the arguments behind the value, how many may be left out, and what raises ScaleError for bad ones."""

    arguments: tuple[str, ...] = ()
    optional: int = 0
    check: Callable[..., Any] = lambda: None


FUNCTIONS: dict[str, Function] = {
    name: Function() for name in ("count", "sum", "min", "max", "avg", "stddev", "variance", "quantize")
} | {
    "lquantize": Function(("lower", "upper", "step"), 1, lquantize_levels),
    "llquantize": Function(("factor", "low", "high", "steps"), 0, check_llquantize),
}

# What other tools and people call them, by what they are.
_ELSEWHERE = {
    "function": {"hist": "quantize", "hist_log": "quantize", "lhist": "lquantize", "hist_linear": "lquantize",
                 "mean": "avg", "average": "avg", "stats": "avg"},
    "key": {"stack": "ustack", "kstack": "ustack", "func": "ufunc", "function": "ufunc", "probefunc": "ufunc",
            "probemod": "umod", "module": "umod", "thread": "tid", "process": "pid", "command": "comm"},
    "value": {"wait": "waitcpu", "runqueue": "waitcpu", "stop": "stopped", "blocked": "offcpu"},
    "state": {"waitcpu": "wait", "runqueue": "wait", "stopped": "stop"},
}
_SIGNS = {"and": "&&", "or": "||", "not": "!", "&": "&&", "|": "||", "=": "==", "~": "=="}

# --- the tree -------------------------------------------------------------------------------------


class Name(NamedTuple):
    """A name and where it stands."""

    text: str
    position: int


class Key(NamedTuple):
    """A key and where it stands; ``depth`` of a stack is how many frames at its leaf are wanted, None for all."""

    name: str
    depth: int | None
    position: int


class Operand(NamedTuple):
    """One side of a comparison: its type (number, string, state); a literal, or the name of a key or value."""

    type: str
    token: Token
    literal: Any = None
    name: str | None = None


class Comparison(NamedTuple):
    """``left sign right``; the left side is a name."""

    left: Operand
    sign: str
    right: Operand


class Negated(NamedTuple):
    """``! term``"""

    term: Condition


class Joined(NamedTuple):
    """Terms with one sign, && or ||, between them."""

    sign: str
    terms: tuple[Condition, ...]


Condition: TypeAlias = Comparison | Negated | Joined


class Parsed(NamedTuple):
    """An expression."""

    name: str
    keys: tuple[Key, ...]
    function: str
    value: Name
    arguments: tuple[int, ...]
    condition: Condition | None
    expression: str
    divisor: int = 1  # of the value


def parse(expression: str) -> Parsed:
    """The tree of ``expression``. ExpressionError."""
    return _Parser(expression).parsed()


def named_in(condition: Condition | None) -> list[Name]:
    """The names of keys and values that a condition compares, in the order in which they stand."""
    match condition:
        case Comparison(left, _, right):
            return [Name(side.name, side.token.position) for side in (left, right) if side.name is not None]
        case Negated(term):
            return named_in(term)
        case Joined(_, terms):
            return [name for term in terms for name in named_in(term)]
    return []


# --- tokens ---------------------------------------------------------------------------------------

_TOKEN = re.compile(r"""\s*(?:
    (?P<name>@?[A-Za-z_][A-Za-z0-9_]*|@)
  | (?P<number>-?(?:0[xX][0-9A-Fa-f]+|[0-9]+(?:\.[0-9]+)?)(?P<unit>[A-Za-z_][A-Za-z0-9_]*)?)
  | (?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
  | (?P<sign>==|!=|<=|>=|&&|\|\||[\[\](),=<>!/;])
  | (?P<other>[^\s"'])
)""", re.VERBOSE | re.DOTALL)
_UNITS = {None: 1, "ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9}
_ESCAPES = {"n": "\n", "t": "\t"}
_MAX_DEPTH, _MAX_DIGITS = 100, 1000  # Python makes no number of more than 4300 digits


class Token(NamedTuple):
    kind: str
    text: str
    position: int
    value: Any = None


def _tokens(expression: str) -> list[Token]:
    """The tokens, and one of kind "end" behind them."""
    found, position = [], 0
    end = len(expression.rstrip())
    while position < end:
        match = _TOKEN.match(expression, position)
        if match is None:
            start = position + len(expression[position:]) - len(expression[position:].lstrip())
            raise ExpressionError("a string without its closing quote", expression, start)
        kind = str(match.lastgroup) if match["number"] is None else "number"
        start = match.start(kind)
        found.append(Token(kind, match[kind], start, _literal(expression, kind, match, start)))
        position = match.end()
    return [*found, Token("end", "the end", end)]


def _literal(expression: str, kind: str, match: re.Match[str], start: int) -> Any:
    if kind == "string":
        return re.sub(r"\\(.)", lambda escape: _ESCAPES.get(escape[1], escape[1]), match[kind][1:-1], flags=re.DOTALL)
    if kind != "number":
        return match[kind]
    unit = match["unit"]
    if unit not in _UNITS:
        raise ExpressionError(f"unknown unit {unit}: ns, us, ms, s, m", expression, match.start("unit"))
    if len(match[kind]) > _MAX_DIGITS:
        raise ExpressionError(f"a number of more than {_MAX_DIGITS} digits", expression, start)
    number = _whole(match[kind].removesuffix(unit or ""), _UNITS[unit])
    if number is None:
        raise ExpressionError("not a whole number" + (" of nanoseconds" if unit else ""), expression, start)
    if abs(number) > INT64_MAX:
        raise ExpressionError("a number of more than 64 bits", expression, start)
    return number


def _whole(text: str, unit: int) -> int | None:
    """So many units, exactly; None where that is a fraction."""
    if "x" in text.lower():
        return int(text, 16) * unit
    digits, _, decimals = text.partition(".")
    number, rest = divmod(int(digits + decimals) * unit, 10 ** len(decimals))
    return None if rest else number


# --- the parser -----------------------------------------------------------------------------------


class _Parser:
    """Recursive descent: a method for each rule of the grammar above."""

    def __init__(self, expression: str) -> None:
        self.expression = expression
        self._left = _tokens(expression)[::-1]
        self._depth = 0

    def parsed(self) -> Parsed:
        name = self._next("name", "the aggregation's name").text
        keys = self._keys() if self._skip("[") else []
        if self._left[-1].text == "<":
            self._fail("it is NAME[KEYS] = FUNCTION(VALUE) here, not <<<", self._left[-1])
        self._next("=", "=")
        function, value, divisor, arguments = self._call()
        condition = self._condition() if self._skip("/") else None
        if self._skip(";") and self._left[-1].kind != "end":
            self._fail("one expression at a time: give --aggregate again for another one", self._left[-1])
        self._next("end", "the end or / CONDITION /")
        return Parsed(name, tuple(keys), function, value, arguments, condition, self.expression,
                      divisor)

    def _keys(self) -> list[Key]:
        found = []
        while True:
            token = self._next("name", "a key", KEYS)
            if token.text not in KEYS:
                self._unknown("key", token, KEYS)
            depth = self._stack_depth(token) if self._skip("(") else None
            found.append(Key(token.text, depth, token.position))
            if self._next((",", "]"), ", or ]").text == "]":
                return found

    def _stack_depth(self, key: Token) -> int | None:
        if self._skip(")"):
            return None
        if key.text not in WHOLE_STACKS:
            self._fail(f"only ustack and wakerstack have a depth, {key.text} has none", key)
        token = self._next("number", "how many frames")
        if token.value <= 0:
            self._fail("a stack has 1 frame or more", token)
        self._next(")", ")")
        return int(token.value)

    def _call(self) -> tuple[str, Name, int, tuple[int, ...]]:
        token = self._next("name", "a function", tuple(FUNCTIONS))
        if token.text not in FUNCTIONS:
            self._unknown("function", token, tuple(FUNCTIONS))
        function = FUNCTIONS[token.text]
        self._next("(", "(")
        if token.text == "count" and self._skip(")"):
            return token.text, Name("1", token.position), 1, ()
        value, divisor = self._value(), self._divisor() if self._skip("/") else 1
        arguments: list[Token] = []
        while self._skip(","):
            arguments.append(self._next("number", self._argument_wanted(token, function, len(arguments))))
        least = len(function.arguments) - function.optional
        if len(arguments) < least:
            self._fail(f"{token.text} also needs {', '.join(function.arguments[len(arguments):least])}", self._left[-1])
        self._next(")", ")")
        try:
            numbers = tuple(argument.value for argument in arguments)
            function.check(*numbers)
        except ScaleError as err:
            self._fail(str(err), arguments[min(err.argument, len(arguments) - 1)])
        return token.text, value, divisor, numbers

    def _argument_wanted(self, token: Token, function: Function, number: int) -> str:
        if number == len(function.arguments):
            self._fail(f"{token.text} has no more arguments", self._left[-1])
        return f"the {function.arguments[number]} of {token.text}, a number"

    def _value(self) -> Name:
        token = self._next(("name", "number"), "a value", VALUES)
        if token.text not in VALUES:
            self._unknown("value", token, VALUES)
        return Name(token.text, token.position)

    def _divisor(self) -> int:
        token = self._next("number", "a number, such as 1ms,")
        if token.value <= 0:
            self._fail("a value is divided by 1 or more", token)
        return int(token.value)

    def _condition(self) -> Condition:
        condition = self._either()
        self._next("/", "&&, || or the closing /")
        return condition

    def _either(self) -> Condition:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            self._fail(f"more than {_MAX_DEPTH} parentheses inside one another", self._left[-1])
        conditions = [self._both()]
        while self._skip("||"):
            conditions.append(self._both())
        self._depth -= 1
        return conditions[0] if len(conditions) == 1 else Joined("||", tuple(conditions))

    def _both(self) -> Condition:
        conditions = [self._term()]
        while self._skip("&&"):
            conditions.append(self._term())
        return conditions[0] if len(conditions) == 1 else Joined("&&", tuple(conditions))

    def _term(self) -> Condition:
        negated = False
        while self._skip("!"):
            negated = not negated
        if self._left[-1].text == "not":
            self._fail("not is ! here", self._left[-1])
        if self._skip("("):
            condition: Condition = self._either()
            self._next(")", "&&, || or )")
        else:
            condition = self._comparison()
        return Negated(condition) if negated else condition

    def _comparison(self) -> Comparison:
        left = self._operand()
        sign = self._next(tuple(_MIRRORED), "a comparison, such as ==,").text
        right = self._operand(left)
        if left.name is None:
            left, right, sign = right, left, _MIRRORED[sign]
        if left.name is None:
            self._fail("one side of a comparison must be a name", right.token)
        if left.type == "state" and right.type == "string":
            right = self._state_number(right)
        if right.name is not None and "state" in (left.type, right.type) and left.name != right.name:
            self._fail("a state is compared with a number or a name in quotes", right.token)
        kinds = {"number" if side.type == "state" else side.type for side in (left, right)}
        if len(kinds) > 1:
            later = max(left, right, key=lambda side: side.token.position)
            self._fail("a number and a string cannot be compared", later.token)
        if right.name is not None and left.type == "string":
            self._fail("a name that is a string is compared with a string", right.token)
        return Comparison(left, sign, right)

    def _state_number(self, operand: Operand) -> Operand:
        if operand.literal not in STATES:
            self._unknown("state", operand.token, STATES)
        return operand._replace(type="number", literal=STATES.index(operand.literal))

    def _operand(self, left: Operand | None = None) -> Operand:
        """``left``: what it is compared with, if there is something."""
        token = self._next(("name", "number", "string"), "a name, a number or a string")
        name = token.text
        if token.kind != "name":
            return Operand(token.kind, token, token.value)
        if name in VALUES:
            return Operand("number", token, name=name)
        if name in WHOLE_STACKS:
            self._fail("a stack cannot be compared: usym, umod and ufunc can", token)
        if name not in KEYS:
            if left is not None and left.type in ("string", "state"):
                self._fail(f"a string stands in quotes, as in {left.name or left.token.text} == \"{name}\"", token)
            self._unknown("name", token, (*KEYS[:-len(WHOLE_STACKS)], *VALUES[1:]))
        if self._skip("("):
            self._next(")", ")")
        kind = "string" if name in STRINGS else "state" if name == "state" else "number"
        return Operand(kind, token, name=name)

    def _skip(self, sign: str) -> bool:
        """Whether the next token is this sign, which is taken then."""
        if self._left[-1].text != sign or self._left[-1].kind != "sign":
            return False
        self._left.pop()
        return True

    def _next(self, kinds: str | tuple[str, ...], wanted: str, choice: tuple[str, ...] = ()) -> Token:
        """The next token, which must be of these kinds or be one of these signs."""
        token = self._left[-1]
        if (token.text if token.kind == "sign" else token.kind) not in ((kinds,) if isinstance(kinds, str) else kinds):
            self._unexpected(token, wanted, choice)
        if token.kind != "end":
            self._left.pop()
        return token

    def _unexpected(self, token: Token, wanted: str, choice: tuple[str, ...]) -> NoReturn:
        here = _SIGNS.get(token.text.lower(), "no sign")
        if here in wanted:
            self._fail(f"{token.text} is {here} here", token)
        if token.text in _UNITS and self.expression[:token.position].rstrip()[-1:].isdigit():
            self._fail("a unit stands at its number, without a blank between them", token)
        if token.kind == "other":
            self._fail(f"unexpected character {token.text!r}", token)
        self._fail(f"{token.text} where {wanted} is expected{': ' if choice else ''}{_listed(choice)}", token)

    def _unknown(self, what: str, token: Token, names: tuple[str, ...]) -> NoReturn:
        text = token.value if token.kind == "string" else token.text
        name = text.lstrip("@")
        here = _ELSEWHERE.get(what, {}).get(name) or (name if name in names else None)
        self._fail(f"unknown {what} {text}" + (f": it is {here} here" if here else meant(name, names)
                                               or f": {_listed(names)}"), token)

    def _fail(self, reason: str, token: Token) -> NoReturn:
        raise ExpressionError(reason, self.expression, token.position)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names)
