"""Protocol buffers: the keeper of the runtime library. Schemas are tables; many like messages are made at once.

A schema is written as ``{"Line": "function_id=1 uint64, line=2 int64", ...}``, with ``*`` behind the type of what is
repeated, and packed where it is ``+``. Its classes live in a pool of their own, so that they get along with other
libraries' classes of the same names.

A message in a file is the sum of its parts: parts of one message may be written one after the other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {name: getattr(_Field, f"TYPE_{name.upper()}")
            for name in ("int32", "int64", "uint32", "uint64", "bool", "string", "bytes", "double", "fixed64")}
_LENGTH_DELIMITED = 2


def messages(package: str, schema: Mapping[str, str], syntax: str = "proto3") -> Any:
    """The classes of the messages in ``schema``, by name."""
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package)
    file.syntax = syntax
    for name, fields in schema.items():
        described = file.message_type.add(name=name)
        for field in fields.split(", "):
            _add_field(described, field, package)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return SimpleNamespace(**{name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
                              for name in schema})


def _add_field(described: Any, text: str, package: str) -> None:
    head, kind = text.split(" ")
    name, number = head.split("=")
    type_name = kind.rstrip("*+")
    field = described.field.add(name=name, number=int(number))
    field.label = _Field.LABEL_REPEATED if kind != type_name else _Field.LABEL_OPTIONAL
    if type_name in _SCALARS:
        field.type = _SCALARS[type_name]
        if kind != type_name and type_name not in ("string", "bytes"):
            field.options.packed = kind.endswith("+")
    else:
        field.type, field.type_name = _Field.TYPE_MESSAGE, f".{package}.{type_name}"


def varint(value: int) -> bytes:
    """A number as it stands in a message."""
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def framed(number: int, *parts: bytes) -> bytes:
    """A message, given as the parts of its serialized self, as field ``number`` of another."""
    return b"".join((varint(number << 3 | _LENGTH_DELIMITED), varint(sum(map(len, parts))), *parts))


def marks(*bits: int) -> list[int]:
    """A mark for each number of up to so many bits: as long as that, and like no other bytes of a message."""
    return [1 << (n - 1) | int.from_bytes(hashlib.blake2b(b"%d" % place).digest(), "little") % (1 << (n - 1))
            for place, n in enumerate(bits)]


class Stamp:
    """Many messages that differ in some numbers alone.

    One is made, with a ``mark`` in place of each number that differs: an integer that is as long as any that may come,
    or a fraction of 64 bits. All the others are its bytes with other numbers there. Integers may have leading zeros,
    which readers allow: a message nested in another must not change its length.
    """

    def __init__(self, message: Any, marks: Sequence[int | float]) -> None:
        serialized = message.SerializeToString()
        self._template = np.frombuffer(serialized, np.uint8)
        self._places = []
        for mark in marks:
            text = varint(mark) if isinstance(mark, int) else np.float64(mark).tobytes()
            assert serialized.count(text) == 1
            self._places.append((serialized.index(text), len(text), isinstance(mark, int)))

    def printed(self, columns: Sequence[npt.NDArray[Any]]) -> bytes:
        """A message for each row of ``columns`` (marks, n), one behind the other."""
        rows = np.tile(self._template, (len(columns[0]), 1))
        for (begin, width, is_integer), column in zip(self._places, columns, strict=True):
            if not is_integer:
                rows[:, begin:begin + width] = column.astype(np.float64).view(np.uint8).reshape(-1, width)
                continue
            values = column.astype(np.uint64)
            for place in range(width):
                more = 0x80 if place < width - 1 else 0
                rows[:, begin + place] = (values >> np.uint64(7 * place)).astype(np.uint8) & 0x7F | more
        return rows.tobytes()
