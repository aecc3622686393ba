"""How a binary record is declared: once, with names, types and meaning; everything else is derived.

A ``Record`` gives the numpy dtype with which batches are written and read (``dtype``) and the description that the
experiment's log carries (``describe``), so no second format string exists. numpy is imported on first use of
``dtype``: declaring a record costs nothing before the target starts.
"""

from __future__ import annotations

import struct
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np

_LOG_TYPES = {"<i4": "INT32", "<u4": "UINT32", "<i8": "INT64", "<u8": "UINT64"}
_PACKED_TYPES = {"<u2": "H", "<i4": "i", "<u4": "I", "<i8": "q", "<u8": "Q"}
_SIZES = {"1": 1, "2": 2, "4": 4, "8": 8}


class Field(NamedTuple):
    """One field: its name, numpy type string (``"<i8"``), meaning, and byte offset (-1: right behind the last one)."""

    name: str
    type: str
    meaning: str = ""
    offset: int = -1

    @property
    def size(self) -> int:
        """Bytes that the field takes."""
        return _SIZES[self.type[2:]]


class Described(NamedTuple):
    """A field as the log describes it: name, user-visible name, byte offset, INT32/UINT32/INT64/UINT64."""

    name: str
    uname: str
    offset: int
    type: str


class Record:
    """A fixed-size record. ``Record(8, "clock", Field(...), ..., size=56)``; ``kind`` is -1 where there is none."""

    def __init__(self, kind: int, name: str, *fields: Field, size: int = 0) -> None:
        self.kind = kind
        self.name = name
        self.fields = fields
        self.offsets: list[int] = []
        end = 0
        for field in fields:
            offset = field.offset if field.offset >= 0 else end
            self.offsets.append(offset)
            end = offset + field.size
        self.size = max(size, end)

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """The packed numpy dtype with these very offsets; ``itemsize`` is the record's size."""
        import numpy

        return numpy.dtype({"names": [f.name for f in self.fields], "formats": [f.type for f in self.fields],
                            "offsets": self.offsets, "itemsize": self.size})

    @cached_property
    def packer(self) -> struct.Struct:
        """The same layout for single records, without numpy."""
        text, end = "<", 0
        for field, offset in zip(self.fields, self.offsets, strict=True):
            text += f"{offset - end}x{_PACKED_TYPES[field.type]}"
            end = offset + field.size
        return struct.Struct(f"{text}{self.size - end}x")

    def describe(self) -> list[Described]:
        """The fields that have a meaning, as the log describes them; fields without one are private to the writer."""
        return [Described(f.name, f.meaning, offset, _LOG_TYPES[f.type])
                for f, offset in zip(self.fields, self.offsets, strict=True) if f.meaning]
