"""Traced data and whole aggregations as ``dtrace`` prints them.

Symbols come from a function that is handed in: ``lookup(pid, address)`` says in which object the address lies and in
which function, KERNEL stands for the kernel's PID. An address in no object is printed as a number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from collector.aggregate.dtrace import (
    Action,
    AggDesc,
    Memory,
    RecDesc,
    Stack,
    Text,
    UserAddress,
    UserStack,
    Value,
    Words,
    fold_of,
)
from collector.aggregate.fold import Buckets, Fold
from collector.aggregate.histogram import Histogram
from collector.aggregate.scales import LLQuantize, LQuantize, Quantize
from collector.arrays import Array
from collector.errors import TracedDataError

KERNEL = -1
STACK_INDENT = 14
TRACE_WIDTH, KEY_WIDTH = 33, 50
_MARGIN = " " * 5
_INTEGER_WIDTHS = {1: 3, 2: 5, 4: 8, 8: 16}
# isprint(3C), isspace(3C), bell and backspace.
_PRINTABLE = frozenset(b"\a\b\t\n\v\f\r") | frozenset(range(0x20, 0x7F))


class Symbol(NamedTuple):
    """Where an address lies: the object's base name; the function's name and first address, if there is one."""

    object: str
    name: str | None = None
    start: int = 0


Lookup: TypeAlias = Callable[[int, int], Symbol | None]
Spelled: TypeAlias = Callable[[bytes], str]


def unknown(pid: int, address: int) -> None:
    """A lookup that knows nothing."""


def printed(record: RecDesc, value: Value, lookup: Lookup = unknown, width: int = TRACE_WIDTH) -> str:
    """One value as ``trace()`` prints it; strings take ``width`` columns. TracedDataError."""
    match record.action, value:
        case _, Stack(pcs):
            return "\n" + "".join(_frame(_place(lookup, KERNEL, pc)) for pc in pcs)
        case _, UserStack():
            return _user_stack(value, lookup)
        case Action.UMOD, UserAddress(pid, address):
            symbol = lookup(pid, address)
            return f"  {symbol.object if symbol else hex(address):<50}"
        case Action.USYM, UserAddress(pid, address):
            symbol = lookup(pid, address)
            begin = symbol.start if symbol and symbol.name is not None else address
            return f"  {_place(lookup, pid, begin):<50}"
        case _, UserAddress(pid, address):
            return f"  {_place(lookup, pid, address):<50}"
        case Action.SYM, int(address):
            return f"  {_place(lookup, KERNEL, address, offset=False):<50}"
        case Action.MOD, int(address):
            symbol = lookup(KERNEL, address)
            return f"  {symbol.object if symbol else hex(address):<50}"
        case _, Memory():
            return hex_dump(value.displayed)
        case _, Text(data):
            return _text(data.ljust(record.size, b"\0"), width)
        case _, Words(words):
            return _aggregated(fold_of(record), np.array(words, dtype=np.uint64))
        case _, int(number):
            return f" {_as_c_prints(number, record.size):>{_INTEGER_WIDTHS[record.size]}}"
    raise TracedDataError(f"{value!r} cannot be printed as action {record.action:#x}")


def printed_aggregation(
    description: AggDesc, entries: Iterable[tuple[Sequence[Value], Words]], lookup: Lookup = unknown
) -> str:
    """The aggregation as ``printa()`` prints it: an empty line, then by ascending value each key with its value."""
    return printed_entries(description.keys, fold_of(description.value), entries, lookup)


def printed_entries(
    keys: Sequence[RecDesc], function: Fold, entries: Iterable[tuple[Sequence[Value], Words]],
    lookup: Lookup = unknown, spelled: Spelled | None = None
) -> str:
    """The same of any aggregating function.

    ``spelled`` are strings and the names of frames as they are to be shown, where all of them are known to be names:
    ``dtrace`` dumps those that are not printable ASCII, and hands newlines on to the terminal.
    """
    rows = [(rank(function, words.words), key, words) for key, words in entries]
    rows.sort(key=lambda row: (row[0], [*map(_key_order, keys, row[1])]))
    lines = ["\n"]
    for _, key, words in rows:
        lines += [_printed_key(record, part, lookup, spelled) for record, part in zip(keys, key, strict=True)]
        lines += [_aggregated(function, np.array(words.words, dtype=np.uint64)), "\n"]
    return "".join(lines)


def _printed_key(record: RecDesc, part: Value, lookup: Lookup, spelled: Spelled | None) -> str:
    if spelled is not None and isinstance(part, Text):
        return f"  {spelled(part.string):<{KEY_WIDTH}}"
    if spelled is not None and isinstance(part, UserStack):  # where a name that begins with @ is no remark
        return "\n" + "".join(_frame(spelled(name)) for name in part.strings)
    return printed(record, part, lookup, KEY_WIDTH)


def rank(function: Fold, state: Sequence[int]) -> tuple[Any, ...]:
    """By what an aggregation is sorted: its result; of a quantization the sum over all buckets, then that at zero.

    ``state`` are its words (n_words,). TracedDataError for a scale that DTrace has not.
    """
    result = function.result(np.array(state, dtype=np.uint64))
    if not isinstance(function, Buckets):
        return (result,)
    weights = _weights(function)
    counts = result.tolist()
    total = sum(weight * count for weight, count in zip(weights, counts, strict=True))
    return total, sum(count for weight, count in zip(weights, counts, strict=True) if weight == 0)


def hex_dump(data: bytes) -> str:
    """Bytes in rows of 16 with a ruler above, as numbers and as characters; nothing for none."""
    if not data:
        return ""
    ruler = "".join(f"  {digit}" for digit in "0123456789abcdef")
    lines = [f"\n{_MARGIN}      {ruler}  0123456789abcdef\n"]
    for start in range(0, len(data), 16):
        row = data[start:start + 16]
        numbers = "".join(f" {byte:02x}" for byte in row)
        text = "".join(chr(byte) if 0x20 <= byte <= 0x7E else "." for byte in row)
        lines.append(f"{_MARGIN}{start:5x}:{numbers:<48}  {text}\n")
    return "".join(lines)


def _place(lookup: Lookup, pid: int, address: int, offset: bool = True) -> str:
    symbol = lookup(pid, address)
    if symbol is None:
        return hex(address)
    if symbol.name is None:
        return f"{symbol.object}`{address:#x}"
    if offset and address > symbol.start:
        return f"{symbol.object}`{symbol.name}+{address - symbol.start:#x}"
    return f"{symbol.object}`{symbol.name}"


def _frame(text: str) -> str:
    return f"{'':{STACK_INDENT}}{text}\n"


def _user_stack(stack: UserStack, lookup: Lookup) -> str:
    """A frame's string stands for an address that no object has; one that begins with @ is a remark on any frame."""
    lines = ["\n"]
    for number, pc in enumerate(stack.pcs):
        said = stack.strings[number].decode("utf-8", "replace") if number < len(stack.strings) else ""
        helped = said and not said.startswith("@") and lookup(stack.pid, pc) is None
        lines.append(_frame(said if helped else _place(lookup, stack.pid, pc)))
        if said.startswith("@"):
            lines.append(_frame(f"  [ {said[1:]} ]"))
    return "".join(lines)


def _text(data: bytes, width: int) -> str:
    """A string if all of it could be one, else its bytes. An empty one has no printable byte: bytes."""
    string = data.rstrip(b"\0")
    if string and _PRINTABLE.issuperset(string):
        return f"  {string.decode('ascii'):<{width}}"
    return hex_dump(data)


def _as_c_prints(number: int, size: int) -> int:
    """8 and 4 bytes are printed as signed integers, 2 and 1 as unsigned ones."""
    if size < 4:
        return number % (1 << 8 * size)
    half = 1 << 8 * size - 1
    return (number + half) % (2 * half) - half


def _aggregated(function: Fold, state: Array) -> str:
    result = function.result(state)
    return str(Histogram(function.scale, result)) if isinstance(function, Buckets) else f" {result:>16}"


def _weights(function: Buckets) -> list[int]:
    """What a count in each bucket is worth when quantizations are compared."""
    match function.scale:
        case Quantize() as scale:
            return [scale.lower(bucket) for bucket in range(scale.n_buckets)]
        case LQuantize(base=base, step=step, levels=levels, limit=limit):
            return [base - 1, *(base + level * step for level in range(levels)), limit + 1]
        case LLQuantize() as scale:
            edges: list[int] = scale.edges.tolist()
            return [edges[0] - 1, *edges]
    raise TracedDataError(f"DTrace has no {function.name}")


def _key_order(record: RecDesc, part: Value) -> tuple[Any, ...]:
    """Keys of one record are compared by their values: integers as they are printed."""
    return (_as_c_prints(part, record.size),) if isinstance(part, int) else tuple(part)
