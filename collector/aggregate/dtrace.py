"""Traced data and aggregations as bytes, as DTrace lays them out: the only byte layouts of this room.

Data carry no types. A record description says of each record what it is (``action``), where it is (``offset``,
``alignment``) and how long (``size``); ``arg`` has what is peculiar to the action.

    action                     size                  data
    DIFEXPR and all others     1, 2, 4, 8            an unsigned integer
    DIFEXPR and all others     any other             a string: ends at the first NUL, or has none and fills the record
    STACK                      depth * 4 or * 8      PCs, leaf first; after a PC of 0 there is nothing. arg: depth
    USTACK, JSTACK             8 * (depth + 1) + s   PID, PCs as above, s bytes of strings. arg: s << 32 | depth
    TRACEMEM                   any                   bytes; arg says which of the four records it is, see Tracemem
    USYM, UMOD, UADDR          16                    PID, address
    SYM, MOD                   8                     an address in the kernel
    an aggregating action      see fold.py           64-bit words

An aggregation's records are: its variable's number (8 bytes; no key), the keys, and last the value. Everything is
little-endian. The sizes and numbers are those of illumos' sys/dtrace.h; the values of ``Tracemem`` and the order of
stddev's words (high half first) are those of Oracle's documentation and DTrace for Linux.

Whatever is short, long or contradicts itself raises TracedDataError; no wrong value is ever returned.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from collector.aggregate import fold
from collector.aggregate.bounds import ScaleError
from collector.aggregate.fold import Buckets, Fold
from collector.aggregate.keyed import Keyed
from collector.aggregate.scales import LLQuantize, LQuantize, Quantize
from collector.errors import TracedDataError
from collector.layout import Field, Record


class Action(IntEnum):
    """``dtrd_action``: DTRACEACT_* and DTRACEAGG_*. The upper byte is the class, 7 for aggregating actions."""

    NONE = 0
    DIFEXPR = 1
    EXIT = 2
    PRINTF = 3
    PRINTA = 4
    LIBACT = 5
    TRACEMEM = 6
    USTACK = 0x101
    JSTACK = 0x102
    USYM = 0x103
    UMOD = 0x104
    UADDR = 0x105
    STACK = 0x401
    SYM = 0x402
    MOD = 0x403
    COUNT = 0x701
    MIN = 0x702
    MAX = 0x703
    AVG = 0x704
    SUM = 0x705
    STDDEV = 0x706
    QUANTIZE = 0x707
    LQUANTIZE = 0x708
    LLQUANTIZE = 0x709


AGGREGATING = 0x0700
ACTION_CLASS = 0xFF00


class Tracemem(IntEnum):
    """``dtrd_arg`` of a TRACEMEM record: bytes alone, bytes whose displayed size is the next record, or that size."""

    STATIC = 1
    DYNAMIC = 2
    SIZE = 3
    SSIZE = 4


RECDESC = Record(-1, "dtrace_recdesc",
                 Field("action", "<u2", "kind of action"),
                 Field("size", "<u4", "size of record", offset=4),
                 Field("offset", "<u4", "offset in the data"),
                 Field("alignment", "<u2", "required alignment"),
                 Field("format", "<u2", "format, if any"),
                 Field("arg", "<u8", "action argument"),
                 Field("uarg", "<u8", "user argument"))

AGGDESC = Record(-1, "dtrace_aggdesc",
                 Field("name", "<u8", "pointer to the name: means nothing elsewhere"),
                 Field("varid", "<i8", "aggregation variable"),
                 Field("flags", "<i4", "flags"),
                 Field("id", "<u4", "aggregation ID"),
                 Field("epid", "<u4", "enabled probe ID"),
                 Field("size", "<u4", "size of the data in bytes"),
                 Field("nrecs", "<i4", "number of records"),
                 Field("pad", "<u4"))

_WORD = np.dtype("<u8")
_UNSIGNED: dict[int, np.dtype[Any]] = {1: np.dtype("<u1"), 2: np.dtype("<u2"), 4: np.dtype("<u4"), 8: _WORD}
_UINT32_MAX = (1 << 32) - 1


class RecDesc(NamedTuple):
    """``dtrace_recdesc_t``."""

    action: int
    size: int
    offset: int = 0
    alignment: int = 1
    format: int = 0
    arg: int = 0
    uarg: int = 0

    @property
    def end(self) -> int:
        """The offset behind the record."""
        return self.offset + self.size


@dataclass(frozen=True)
class AggDesc:
    """``dtrace_aggdesc_t`` with its records: the variable's number, the keys, the value."""

    name: str
    varid: int
    records: tuple[RecDesc, ...]
    flags: int = 0
    id: int = 0
    epid: int = 0

    @property
    def keys(self) -> tuple[RecDesc, ...]:
        return self.records[1:-1]

    @property
    def value(self) -> RecDesc:
        return self.records[-1]

    @property
    def size(self) -> int:
        """Bytes of one key with its value."""
        return max(record.end for record in self.records)


# --- what records hold: a closed set ---------------------------------------------------------------


class Stack(NamedTuple):
    """``stack()``: PCs of the kernel, leaf first."""

    pcs: tuple[int, ...]


class UserStack(NamedTuple):
    """``ustack()``, ``jstack()``: PCs of a process, leaf first; ``strings`` has the frames' names that were stored."""

    pid: int
    pcs: tuple[int, ...]
    strings: tuple[bytes, ...] = ()


class Memory(NamedTuple):
    """``tracemem()``: the bytes, and how many of them to display (a negative size means all)."""

    data: bytes
    shown: int | None = None

    @property
    def displayed(self) -> bytes:
        """The bytes to display."""
        return self.data if self.shown is None or self.shown < 0 else self.data[:self.shown]


class UserAddress(NamedTuple):
    """``usym()``, ``umod()``, ``uaddr()``."""

    pid: int
    address: int


class Text(NamedTuple):
    """A string record as it is, what lies behind its NUL included."""

    data: bytes

    @property
    def string(self) -> bytes:
        """Up to the first NUL, or all of it."""
        return self.data.partition(b"\0")[0]


class Words(NamedTuple):
    """An aggregation's state."""

    words: tuple[int, ...]


Value: TypeAlias = int | Text | Stack | UserStack | Memory | UserAddress | Words


# --- record descriptions --------------------------------------------------------------------------


def integer(size: int) -> RecDesc:
    """An integer of 1, 2, 4 or 8 bytes. TracedDataError."""
    if size not in _UNSIGNED:
        raise TracedDataError(f"an integer has 1, 2, 4 or 8 bytes, not {size}")
    return RecDesc(Action.DIFEXPR, size, alignment=size)


def string(size: int) -> RecDesc:
    """A string of at most ``size`` bytes. DTrace tells integers by their size alone, so 1, 2, 4 and 8 are no sizes."""
    if size in _UNSIGNED or size <= 0:
        raise TracedDataError(f"a string of {size} bytes would be read as an integer: any other size will do")
    return RecDesc(Action.DIFEXPR, size)


def stack(depth: int, width: int = 8) -> RecDesc:
    """``stack(depth)`` of a kernel with addresses of ``width`` bytes, 4 or 8."""
    return RecDesc(Action.STACK, depth * width, alignment=width, arg=depth)


def ustack(depth: int, string_size: int = 0, action: Action = Action.USTACK) -> RecDesc:
    """``ustack(depth)``, or ``jstack(depth, string_size)``."""
    return RecDesc(action, _round_up(8 * (depth + 1) + string_size, 8), alignment=8, arg=string_size << 32 | depth)


def tracemem(size: int, kind: Tracemem = Tracemem.STATIC) -> RecDesc:
    """``tracemem(address, size)``, or one of the two records of ``tracemem(address, size, shown)``."""
    alignment = size if kind in (Tracemem.SIZE, Tracemem.SSIZE) else 1
    return RecDesc(Action.TRACEMEM, size, alignment=alignment, arg=kind)


def user_address(action: Action) -> RecDesc:
    """``usym()``, ``umod()`` or ``uaddr()``."""
    return RecDesc(action, 16, alignment=8)


def kernel_address(action: Action) -> RecDesc:
    """``sym()`` or ``mod()``."""
    return RecDesc(action, 8, alignment=8)


def aggregating(function: Fold) -> RecDesc:
    """The value's record of an aggregating function. TracedDataError for one that DTrace has not."""
    action = _ACTIONS.get(function.name)
    if action is None:
        raise TracedDataError(f"DTrace has no {function.name}()")
    arg = function.scale.word or 0 if isinstance(function, Buckets) else 0
    return RecDesc(action, 8 * function.n_words, alignment=8, arg=arg)


def laid_out(records: Sequence[RecDesc], start: int = 0) -> tuple[RecDesc, ...]:
    """The records one behind the other from offset ``start``, each aligned as it must be."""
    laid = []
    for record in records:
        laid.append(record._replace(offset=_round_up(start, record.alignment)))
        start = laid[-1].end
    return tuple(laid)


def describe(name: str, varid: int, keys: Sequence[RecDesc], function: Fold) -> AggDesc:
    """The description of ``@name[keys] = function(...)``."""
    return AggDesc(name, varid, laid_out([integer(8), *keys, aggregating(function)]))


# --- values to bytes and back ---------------------------------------------------------------------


def decode(records: Sequence[RecDesc], data: bytes) -> list[Value]:
    """The records' values, one each; a dynamic ``tracemem()`` and its size are one. TracedDataError."""
    return [_decode_one(record, _bytes_of(record, data), size, data) for record, size in _with_sizes(records)]


def encode(records: Sequence[RecDesc], values: Sequence[Value]) -> bytes:
    """Data that ``decode`` gives ``values`` for; gaps of alignment are 0. TracedDataError."""
    in_order = sorted(records, key=lambda record: record.offset)
    for before, record in pairwise(in_order):
        if before.end > record.offset:
            raise TracedDataError(f"{_named(record)} begins inside of {_named(before)}, which ends at {before.end}")
    data = bytearray(max((record.end for record in records), default=0))
    pairs = list(_with_sizes(records))
    if len(pairs) != len(values):
        raise TracedDataError(f"{len(pairs)} records cannot hold {len(values)} values")
    for (record, size), value in zip(pairs, values, strict=True):
        _store(data, record, _encode_one(record, value))
        if size is not None:
            assert isinstance(value, Memory)
            _store(data, size, _integer_bytes(size, len(value.data) if value.shown is None else value.shown))
    return bytes(data)


def pack_aggdesc(description: AggDesc) -> bytes:
    """``dtrace_aggdesc_t``; the pointer to the name is 0."""
    head = np.zeros(1, dtype=AGGDESC.dtype)
    for name in ("varid", "flags", "id", "epid", "size"):
        head[name] = getattr(description, name)
    head["nrecs"] = len(description.records)
    # Field by field into zeros: whole rows would bring into the gaps whatever the memory had.
    rows = np.zeros(len(description.records), dtype=RECDESC.dtype)
    for name in RecDesc._fields:
        rows[name] = [getattr(record, name) for record in description.records]
    return head.tobytes() + rows.tobytes()


def unpack_aggdesc(data: bytes, name: str = "") -> AggDesc:
    """A ``dtrace_aggdesc_t``; its name comes apart. TracedDataError."""
    if len(data) < AGGDESC.size:
        raise TracedDataError(f"an aggregation's description has {AGGDESC.size} bytes at least, not {len(data)}")
    head = np.frombuffer(data, dtype=AGGDESC.dtype, count=1)[0]
    n_records = int(head["nrecs"])
    if n_records < 2 or len(data) != AGGDESC.size + n_records * RECDESC.size:
        raise TracedDataError(f"a description of {n_records} records does not have {len(data)} bytes")
    rows = np.frombuffer(data, dtype=RECDESC.dtype, offset=AGGDESC.size)
    description = AggDesc(name, int(head["varid"]), tuple(RecDesc(*row) for row in rows.tolist()),
                          int(head["flags"]), int(head["id"]), int(head["epid"]))
    if description.size != head["size"]:
        raise TracedDataError(f"records of {description.size} bytes are described as {head['size']}")
    return description


def pack_aggregation(description: AggDesc, aggregation: Keyed) -> bytes:
    """All keys with their values, ``description.size`` bytes each; keys are Values, or bytes for strings and names.

    TracedDataError where a key does not fit its record.
    """
    return b"".join(
        encode(description.records, [description.varid % (1 << 64), *map(_as_value, description.keys, key),
                                     Words(tuple(state.tolist()))])
        for key, state in aggregation.states())


def unpack_aggregation(description: AggDesc, data: bytes) -> Iterator[tuple[tuple[Value, ...], Words]]:
    """(key, value) of each entry. TracedDataError."""
    if not description.size or len(data) % description.size:
        raise TracedDataError(f"{len(data)} bytes are no whole number of entries of {description.size}")
    for start in range(0, len(data), description.size):
        variable, *key, value = decode(description.records, data[start:start + description.size])
        if variable != description.varid % (1 << 64) or not isinstance(value, Words):
            raise TracedDataError(f"the entry at byte {start} is not of aggregation {description.varid}")
        yield tuple(key), value


def fold_of(record: RecDesc) -> Fold:
    """The aggregating function whose value the record holds. TracedDataError."""
    try:
        match record.action:
            case Action.LQUANTIZE:
                return Buckets(LQuantize.from_word(record.arg))
            case Action.LLQUANTIZE:
                return Buckets(LLQuantize.from_word(record.arg))
    except ScaleError as err:
        raise TracedDataError(f"{_named(record)}: {err}") from err
    if record.action not in _FOLDS:
        raise TracedDataError(f"{_named(record)} is no aggregating action")
    return _FOLDS[record.action]


# --- one record -----------------------------------------------------------------------------------

_FOLDS: dict[int, Fold] = {
    Action.COUNT: fold.COUNT, Action.MIN: fold.MIN, Action.MAX: fold.MAX, Action.AVG: fold.AVG, Action.SUM: fold.SUM,
    Action.STDDEV: fold.STDDEV, Action.QUANTIZE: Buckets(Quantize())}
# Actions whose data are neither an integer nor a string.
_SHAPED = frozenset(Action) - {Action.NONE, Action.DIFEXPR, Action.EXIT, Action.PRINTF, Action.PRINTA, Action.LIBACT}
_ACTIONS = {function.name: Action(action) for action, function in _FOLDS.items()} | {
    "lquantize": Action.LQUANTIZE, "llquantize": Action.LLQUANTIZE}


def _with_sizes(records: Sequence[RecDesc]) -> Iterator[tuple[RecDesc, RecDesc | None]]:
    """Each record, with the one that says how much of it is displayed if there is one."""
    left = iter(records)
    for record in left:
        size = None
        if record.action == Action.TRACEMEM and record.arg == Tracemem.DYNAMIC:
            size = next(left, None)
            if size is None or size.action != Action.TRACEMEM or size.arg not in (Tracemem.SIZE, Tracemem.SSIZE):
                raise TracedDataError("a dynamic tracemem record is not followed by the one of its size")
        elif record.action == Action.TRACEMEM and record.arg != Tracemem.STATIC:
            raise TracedDataError(f"a tracemem record cannot begin with argument {record.arg}")
        yield record, size


def _decode_one(record: RecDesc, raw: bytes, size: RecDesc | None, data: bytes) -> Value:
    match record.action:
        case Action.STACK:
            return Stack(_until_null(np.frombuffer(raw, dtype=_UNSIGNED[_pc_width(record)]).tolist()))
        case Action.USTACK | Action.JSTACK:
            return _decode_ustack(record, raw)
        case Action.USYM | Action.UMOD | Action.UADDR:
            return UserAddress(*_words(record, raw, 2))
        case Action.SYM | Action.MOD:
            return _words(record, raw, 1)[0]
        case Action.TRACEMEM:
            return Memory(raw, None if size is None else _shown(size, _bytes_of(size, data)))
    if record.action & ACTION_CLASS == AGGREGATING:
        return Words(_checked_state(record, _words(record, raw, fold_of(record).n_words)))
    return int.from_bytes(raw, "little") if record.size in _UNSIGNED else Text(raw)


def _encode_one(record: RecDesc, value: Value) -> bytes:
    match record.action, value:
        case Action.STACK, Stack(pcs):
            depth, width = record.arg, _pc_width(record)
            return _pcs_bytes(record, pcs, depth, width)
        case Action.USTACK | Action.JSTACK, UserStack(pid, pcs, strings):
            depth, string_size = _ustack_shape(record)
            # The last one needs no NUL where it fills the area.
            area = b"\0".join(strings)
            if any(b"\0" in text for text in strings):
                raise TracedDataError(f"{_named(record)}: a frame's string has a NUL inside")
            if len(area) > string_size:
                raise TracedDataError(f"{_named(record)}: {len(area)} bytes of strings do not fit into {string_size}")
            return _pcs_bytes(record, (pid,), 1, 8) + _pcs_bytes(record, pcs, depth, 8) + area
        case Action.USYM | Action.UMOD | Action.UADDR, UserAddress(pid, address):
            return _pcs_bytes(record, (pid, address), 2, 8)
        case Action.SYM | Action.MOD, int(address):
            return _pcs_bytes(record, (address,), 1, 8)
        case Action.TRACEMEM, Memory(data, _):
            if len(data) < record.size:
                raise TracedDataError(f"{_named(record)} has {record.size} bytes, its value {len(data)}")
            return data
        case action, Words(words) if action & ACTION_CLASS == AGGREGATING:
            if len(words) != fold_of(record).n_words:
                raise TracedDataError(f"{_named(record)} has {fold_of(record).n_words} words, not {len(words)}")
            return np.array(_checked_state(record, words), dtype=_WORD).tobytes()
        case action, int(number) if action not in _SHAPED and record.size in _UNSIGNED:
            return _integer_bytes(record, number)
        case action, Text(data) if action not in _SHAPED and record.size not in _UNSIGNED:
            return data
    raise TracedDataError(f"{_named(record)} cannot hold {value!r}")


def _bytes_of(record: RecDesc, data: bytes) -> bytes:
    if record.size == 0:
        raise TracedDataError(f"{_named(record)} has no bytes")
    if record.alignment > 1 and record.offset % record.alignment:
        raise TracedDataError(f"{_named(record)} is not aligned to {record.alignment} bytes")
    if record.end > len(data):
        raise TracedDataError(f"{_named(record)} is cut short: it ends at byte {record.end}, the data at {len(data)}")
    return data[record.offset:record.end]


def _store(data: bytearray, record: RecDesc, raw: bytes) -> None:
    if len(raw) > record.size:
        raise TracedDataError(f"{_named(record)} has {record.size} bytes, its value {len(raw)}")
    data[record.offset:record.end] = raw.ljust(record.size, b"\0")


def _words(record: RecDesc, raw: bytes, n_words: int) -> tuple[int, ...]:
    if len(raw) != 8 * n_words:
        raise TracedDataError(f"{_named(record)} has {8 * n_words} bytes, not {len(raw)}")
    return tuple(np.frombuffer(raw, dtype=_WORD).tolist())


def _checked_state(record: RecDesc, words: tuple[int, ...]) -> tuple[int, ...]:
    if record.action in (Action.LQUANTIZE, Action.LLQUANTIZE) and words[0] != record.arg:
        raise TracedDataError(f"{_named(record)} begins with {words[0]:#x}, its description with {record.arg:#x}")
    return words


def _pc_width(record: RecDesc) -> int:
    width, rest = divmod(record.size, record.arg) if record.arg else (0, 0)
    if width not in (4, 8) or rest:
        raise TracedDataError(f"{_named(record)}: {record.size} bytes are not {record.arg} addresses of 4 or 8")
    return width


def _ustack_shape(record: RecDesc) -> tuple[int, int]:
    """Depth and bytes of strings; the record may be rounded up to 8 bytes behind them."""
    depth, string_size = record.arg & _UINT32_MAX, record.arg >> 32
    size = 8 * (depth + 1) + string_size
    if record.size not in (size, _round_up(size, 8)):
        raise TracedDataError(f"{_named(record)}: {depth} frames and {string_size} bytes of strings are not "
                              f"{record.size} bytes")
    return depth, string_size


def _decode_ustack(record: RecDesc, raw: bytes) -> UserStack:
    depth, string_size = _ustack_shape(record)
    pid, *pcs = np.frombuffer(raw, dtype=_WORD, count=depth + 1).tolist()
    area = raw[8 * (depth + 1):][:string_size]
    # A string for each frame; the last one may have no room left for its NUL.
    strings = area.split(b"\0")[:-1] if area.endswith(b"\0") else area.split(b"\0")
    while strings and not strings[-1]:
        strings.pop()
    return UserStack(pid, _until_null(pcs), tuple(strings))


def _until_null(pcs: list[int]) -> tuple[int, ...]:
    return tuple(pcs[:pcs.index(0)] if 0 in pcs else pcs)


def _pcs_bytes(record: RecDesc, words: Sequence[int], room: int, width: int) -> bytes:
    if len(words) > room:
        raise TracedDataError(f"{_named(record)} has room for {room} addresses, not {len(words)}")
    if not all(0 <= word < 1 << 8 * width for word in words):
        raise TracedDataError(f"{_named(record)} has addresses of {width} bytes")
    return np.array([*words, *[0] * (room - len(words))], dtype=_UNSIGNED[width]).tobytes()


def _integer_bytes(record: RecDesc, number: int) -> bytes:
    """A number of either sign that fits into the record."""
    size = record.size
    if size not in _UNSIGNED or not -(1 << 8 * size - 1) <= number < 1 << 8 * size:
        raise TracedDataError(f"{_named(record)} has {size} bytes, {number} does not fit")
    return (number % (1 << 8 * size)).to_bytes(size, "little")


def _shown(record: RecDesc, raw: bytes) -> int:
    if record.size not in _UNSIGNED:
        raise TracedDataError(f"{_named(record)}: a size has 1, 2, 4 or 8 bytes, not {record.size}")
    return int.from_bytes(raw, "little", signed=record.arg == Tracemem.SSIZE)


def _as_value(record: RecDesc, element: object) -> Value:
    """An element of a key as its record's value: names are strings, rows of PCs are stacks."""
    match record.action, element:
        case _, str() | bytes():
            name = element.encode("utf-8", "surrogateescape") if isinstance(element, str) else element
            if b"\0" in name:
                raise TracedDataError(f"{_named(record)}: a string with a NUL inside would end there: {element!r}")
            return Text(name)
        case Action.STACK, tuple() if not isinstance(element, Stack):
            return Stack(element)
        case Action.USTACK, ():
            return UserStack(0, ())
    return element  # type: ignore[return-value]


def _round_up(number: int, unit: int) -> int:
    return -(-number // unit) * unit


def _named(record: RecDesc) -> str:
    try:
        kind = Action(record.action).name.lower()
    except ValueError:
        kind = f"action {record.action:#x}"
    return f"the {kind} record at byte {record.offset}"
