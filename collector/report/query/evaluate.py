"""What an expression is for each of n packets, computed on whole columns. Numbers are 64 bits without a sign.

``Facts`` tells what is known of the packets. Its call stacks are distinct rows; what is asked of stacks is found out
for the rows, not for the packets.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from collector.errors import UsageError
from collector.report.compat import divided, shifted
from collector.report.query.language import Binary, Choice, Has, Many, Member, Name, Named, Node, Number, Unary
from collector.suggestions import meant

U8 = npt.NDArray[np.uint64]
I8 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

# Functions are numbers, too: true, and no thread or state.
FUNCTION_BASE = 1 << 48


@dataclass(frozen=True)
class Stacks:
    """Distinct stacks of function numbers, leaf first (CSR), and the row of each packet."""

    offsets: I8
    functions: I8
    rows: I8

    @cached_property
    def owners(self) -> I8:
        """The row of each frame."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))

    def per_packet(self, is_so: Bool) -> Bool:
        """What holds of each row, for the packets; packets without a stack: not."""
        return np.append(is_so, False)[self.rows]


class Facts(Protocol):
    """What is known of n packets."""

    @property
    def n(self) -> int:
        """How many packets there are."""

    def number(self, name: str) -> npt.NDArray[Any] | None:
        """A property of each (n); None: they have none of that name."""

    def is_known(self, name: str) -> bool:
        """Whether any packet of any experiment may have a property of that name."""

    @property
    def stacks(self) -> Stacks:
        """Their call stacks."""

    def functions(self, named: Named) -> I8:
        """The numbers of the functions that are called so."""


@dataclass(frozen=True)
class _Functions:
    """Some functions, whichever; numbers (m)."""

    numbers: I8


Value: TypeAlias = "U8 | _Functions | Stacks | list[Value]"
_STACKS = frozenset({"STACK", "USTACK", "MSTACK", "XSTACK"})
_RECORDED = ("MSTATE", "NTICK", "THRID", "LWPID", "CPUID", "TSTAMP")  # by every clock
_LEAVES = frozenset({"LEAF", "ULEAF", "MLEAF", "XLEAF"})


def selected(node: Node, facts: Facts) -> Bool:
    """Which of the packets (n,) the expression is true for. Raises UsageError."""
    with np.errstate(over="ignore"):
        return np.broadcast_to(_truth(_value(node, facts)), (facts.n,))


def value_of(node: Node, facts: Facts) -> U8:
    """What the expression is for each of the packets (n,); lists are 1. Raises UsageError."""
    with np.errstate(over="ignore"):
        return np.broadcast_to(_number(_value(node, facts)), (facts.n,))


def _value(node: Node, facts: Facts) -> Value:
    match node:
        case Number(value):
            return np.array(value, np.uint64)
        case Name(name):
            return _named(name, facts)
        case Named():
            return _Functions(facts.functions(node))
        case Has(name):
            return np.array(name in _STACKS | _LEAVES or facts.number(name) is not None, np.uint64)
        case Unary() | Binary():
            return _calculated(node, facts)
        case Choice(condition, then, otherwise):
            return np.where(_truth(_value(condition, facts)), _number(_value(then, facts)),
                            _number(_value(otherwise, facts)))
        case Many(items):
            return [_value(item, facts) for item in items]
        case Member(how, left, right):
            return np.asarray(_MEMBER[how](_value(left, facts), _value(right, facts))).astype(np.uint64)


def _calculated(node: Unary | Binary, facts: Facts) -> U8:
    """Chains of signs may be long: they are followed to their beginning and carried out from there."""
    chain: list[Unary | Binary] = []
    inner: Node = node
    while isinstance(inner, (Unary, Binary)):
        chain.append(inner)
        inner = inner.operand if isinstance(inner, Unary) else inner.left
    value = _number(_value(inner, facts))
    for one in reversed(chain):
        if isinstance(one, Unary):
            value = np.asarray(_UNARY[one.sign](value))
        else:
            value = np.asarray(_BINARY[one.sign](value, _number(_value(one.right, facts))))
    return value


def _named(name: str, facts: Facts) -> Value:
    if name in _STACKS:
        return facts.stacks
    if name in _LEAVES:
        return _leaves(facts.stacks)
    found = facts.number(name)
    if found is not None:
        return found.astype(np.uint64)
    if facts.is_known(name):
        return np.array(0, np.uint64)
    from collector.report.query.facts import DERIVED

    like = meant(name, (*DERIVED, *sorted(_STACKS), *sorted(_LEAVES), *_RECORDED))
    raise UsageError(f"-filters: no packet has a property {name}; -describe lists those that there are{like}")


def _leaves(stacks: Stacks) -> U8:
    some = np.diff(stacks.offsets) > 0
    leaf = np.zeros(len(some) + 1, np.uint64)
    leaf[:-1][some] = stacks.functions[stacks.offsets[:-1][some]] + FUNCTION_BASE
    return leaf[stacks.rows]


def _truth(value: Value) -> Bool:
    return np.asarray(_number(value) != 0)


def _number(value: Value) -> U8:
    """Lists and stacks are true."""
    return value if isinstance(value, np.ndarray) else np.array(1, np.uint64)


def _compared(how: Callable[[U8, U8], Bool]) -> Callable[[U8, U8], U8]:
    return lambda left, right: np.asarray(how(left, right)).astype(np.uint64)


_UNARY: dict[str, Callable[[U8], U8]] = {
    "!": lambda value: (value == 0).astype(np.uint64), "~": np.invert, "-": lambda value: np.uint64(0) - value}
_BINARY: dict[str, Callable[[U8, U8], U8]] = {
    "||": _compared(lambda left, right: (left != 0) | (right != 0)),
    "&&": _compared(lambda left, right: (left != 0) & (right != 0)),
    "|": operator.or_, "^": operator.xor, "&": operator.and_,
    **{sign: _compared(how) for sign, how in (("==", operator.eq), ("!=", operator.ne), ("<", operator.lt),
                                             ("<=", operator.le), (">", operator.gt), (">=", operator.ge))},
    "<<": shifted(np.left_shift), ">>": shifted(np.right_shift),
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": divided(operator.floordiv),
    "%": divided(operator.mod)}


# -- lists


def _all_in(left: Value, right: Value) -> Bool:
    match left:
        case Stacks():
            is_in = np.isin(left.functions, _constant_functions(right))
            return left.per_packet(np.bincount(left.owners[~is_in], minlength=len(left.offsets) - 1) == 0)
        case _Functions(numbers):
            found = [_contains(right, np.array(one + FUNCTION_BASE, np.uint64)) for one in numbers.tolist()]
        case list():
            found = [_some_in(one, right) if isinstance(one, _Functions) else _all_in(one, right) for one in left]
        case _:
            return _contains(right, left)
    return np.logical_and.reduce(np.broadcast_arrays(*found)) if found else np.array(False)


def _some_in(left: Value, right: Value) -> Bool:
    match left:
        case Stacks():
            is_in = np.isin(left.functions, _constant_functions(right))
            return left.per_packet(np.bincount(left.owners[is_in], minlength=len(left.offsets) - 1) > 0)
        case _Functions() if isinstance(right, Stacks):
            return _some_in(right, left)
        case _Functions(numbers):
            found = [_contains(right, np.array(one + FUNCTION_BASE, np.uint64)) for one in numbers.tolist()] \
                if not isinstance(right, np.ndarray) else [np.isin(right, (numbers + FUNCTION_BASE).astype(np.uint64))]
        case list():
            found = [_some_in(one, right) for one in left]
        case _:
            return _contains(right, left)
    return np.logical_or.reduce(np.broadcast_arrays(*found)) if found else np.array(False)


def _ordered_in(left: Value, right: Value) -> Bool:
    """All of ``left`` in ``right``, one right after the other: of a stack, from callee to caller."""
    wanted = left if isinstance(left, list) else [left]
    if not isinstance(right, Stacks):
        items = right if isinstance(right, list) else [right]
        places = [[_contains(item, _number(one)) for one, item in zip(wanted, items[at:], strict=False)]
                  for at in range(len(items) - len(wanted) + 1)]
        found = [np.logical_and.reduce(np.broadcast_arrays(*place)) for place in places]
        return np.logical_or.reduce(np.broadcast_arrays(*found)) if found else np.array(False)
    n_frames = len(right.functions)
    begins = np.arange(n_frames)
    ends = right.offsets[1:][right.owners] if n_frames else begins
    is_so = begins + len(wanted) <= ends
    for step, one in enumerate(wanted):
        here = right.functions[np.minimum(begins + step, n_frames - 1)] if n_frames else begins
        is_so &= np.isin(here, _constant_functions(one))
    return right.per_packet(np.bincount(right.owners[is_so], minlength=len(right.offsets) - 1) > 0)


_MEMBER: dict[str, Callable[[Value, Value], Bool]] = {"IN": _all_in, "SOME": _some_in, "ORDERED": _ordered_in}


def _contains(container: Value, value: U8) -> Bool:
    """Whether a list, some functions or a stack has a number in it."""
    match container:
        case Stacks():
            if value.ndim:
                raise UsageError("-filters: what is looked for IN a stack must be functions: FNAME(\"...\")")
            is_it = container.functions == np.int64(int(value) - FUNCTION_BASE)
            return container.per_packet(np.bincount(container.owners[is_it], minlength=len(container.offsets) - 1) > 0)
        case _Functions(numbers):
            return np.asarray(np.isin(value, (numbers + FUNCTION_BASE).astype(np.uint64)))
        case list():
            return np.asarray(np.logical_or.reduce(np.broadcast_arrays(*(_contains(one, value) for one in container))))
        case _:
            return np.asarray(container == value)


def _constant_functions(value: Value) -> I8:
    """Functions, or a list of them."""
    match value:
        case _Functions(numbers):
            return numbers
        case list():
            return np.concatenate([_constant_functions(one) for one in value])
        case np.ndarray() if not value.ndim:
            return np.array([int(value) - FUNCTION_BASE], np.int64)
    raise UsageError("-filters: a stack can be compared with functions alone: FNAME(\"...\")")
