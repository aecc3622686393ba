"""Which methods compiled code carries out at a place: its own, and those that were inlined there. Pure.

An nmethod has an array of PcDesc (place in the code, place in the scopes' data), sorted, for every place at which a
frame may be looked at by the VM itself: behind calls and at safepoints. A scope is three compressed numbers: where its
caller's scope is (0: it has none), the method by its number (from 1 on) in the nmethod's metadata, and the index of the
bytecode plus one. A caller's scope lies before those of what is inlined into it. The outermost method is the nmethod's
own; who leads to another one is not believed.

A return address has a PcDesc of its own, unless the VM does not look into what was called (a copy, a barrier, a sine).
Such a one, and a leaf's pc, has those around it. It is on its way to the next one, whose methods it carries out, unless
it goes round in a loop in which there is none: then nothing says whose loop it is, and only the methods that both of
them have in common are told. Such a loop is known by a jump back from behind the pc.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from functools import cached_property
from typing import NamedTuple

import numpy as np

from collector.runtimes.compressed_hotspot import number_at
from collector.runtimes.layout_hotspot import NONE, Layout

_TABLE_MAX = 1 << 22
_PC_DESC = 16
_DEPTH_MAX = 128
_JUMP = re.compile(rb"(?s:\x0f[\x80-\x8f](?=..\xff\xff)....|\xe9(?=..\xff\xff)....|[\x70-\x7f\xeb][\x80-\xff])")


class Scope(NamedTuple):
    """A method (Method*) and the index of its bytecode; -1: before its first one."""

    method: int
    bci: int


class Scopes:
    """Those of one nmethod."""

    def __init__(self, method: int, code: int, excluded: int, text: bytes, pcs: bytes, data: bytes,
                 metadata: bytes) -> None:
        """``text``: the code, which begins at ``code``; ``pcs``, ``data``, ``metadata``: the tables."""
        self._method, self._code, self._text, self._excluded = method, code, text, excluded
        self._pcs, self._data, self._metadata_words = pcs, data, metadata
        self._known: dict[int, tuple[Scope, ...]] = {}

    @cached_property
    def _table(self) -> tuple[list[int], list[int]]:
        """Places in the code and in the data; none where they are not sorted."""
        n = len(self._pcs) // _PC_DESC
        offsets, decode = np.frombuffer(self._pcs[:n * _PC_DESC], "<i4").reshape(n, 4).T[:2]
        return (offsets.tolist(), decode.tolist()) if (offsets[1:] >= offsets[:-1]).all() else ([], [])

    @cached_property
    def _metadata(self) -> list[int]:
        words: list[int] = np.frombuffer(self._metadata_words[:len(self._metadata_words) // 8 * 8], "<u8").tolist()
        return words

    def at(self, pc: int, is_leaf: bool) -> tuple[Scope, ...]:
        """The methods at a pc as it was looked up, innermost first: the place itself of a leaf, else the one before the
        return address. At least the nmethod's own one."""
        offset, offsets = pc - self._code + (not is_leaf), self._table[0]
        at = bisect_left(offsets, offset)
        if at >= len(offsets):
            return (Scope(self._method, 0),)
        next_ones = self._of_record(at)
        is_between = is_leaf or offsets[at] != offset
        if is_between and at and len(next_ones) > 1 and _jumps_back(self._text, offset, offsets[at]):
            return _in_common(self._of_record(at - 1), next_ones)
        return next_ones

    def _of_record(self, number: int) -> tuple[Scope, ...]:
        """The methods at a PcDesc."""
        decode = self._table[1][number]
        found = self._known.get(decode)
        if found is None:
            found = self._known[decode] = self._scopes(decode)
        return found

    def _scopes(self, place: int) -> tuple[Scope, ...]:
        found: list[Scope] = []
        while 0 < place < len(self._data) and len(found) < _DEPTH_MAX:
            caller, at = number_at(self._data, place, self._excluded)
            number, at = number_at(self._data, at, self._excluded)
            bci, at = number_at(self._data, at, self._excluded)
            if at < 0 or caller >= place or not 0 < number <= len(self._metadata):
                break
            found.append(Scope(self._metadata[number - 1], bci - 1 if bci <= 0x1_0000 else 0))
            place = caller
        is_whole = bool(found) and place == 0 and found[-1].method == self._method
        return tuple(found) if is_whole else (Scope(self._method, 0),)


def _jumps_back(text: bytes, offset: int, end: int) -> bool:
    """Whether an instruction in [offset, end) jumps to ``offset`` or before it. Bytes that look like a jump are taken
    for one: that only makes what is told less."""
    part = text[offset:end]
    for match in _JUMP.finditer(part):
        size = len(match[0])
        distance = int.from_bytes(match[0][-(4 if size > 2 else 1):], "little", signed=True)
        if -(match.start() + size) - offset <= distance <= -(match.start() + size):
            return True
    return False


def _in_common(one: tuple[Scope, ...], other: tuple[Scope, ...]) -> tuple[Scope, ...]:
    """The outermost methods that are the same, with the places in them of ``other``."""
    n = 0
    for mine, its in zip(reversed(one), reversed(other), strict=False):
        if mine.method != its.method:
            break
        n += 1
        if mine.bci != its.bci:
            break
    return other[len(other) - max(n, 1):]


def ranges_of(layout: Layout, start: int, code: tuple[int, int], head: bytes) -> list[tuple[int, int]]:
    """Where an nmethod at ``start`` with this head has its code, PcDescs, scopes' data and metadata, each as (address,
    size)."""
    return [(begin, max(min(end - begin, _TABLE_MAX), 0)) for begin, end in (code, *_tables(layout, start, head))]


def _tables(layout: Layout, start: int, head: bytes) -> list[tuple[int, int]]:
    """The latter three, as (begin, end)."""
    at, block = layout.at, layout.size["block"]

    def field(name: str, size: int = 4) -> int:
        place = block + at[name]
        return int.from_bytes(head[place:place + size], "little")

    if at["immutable_data"] != NONE:
        immutable = field("immutable_data", 8)
        pcs, data = immutable + field("scopes_pcs"), immutable + field("scopes_data")
        tables = [(pcs, data), (data, immutable + field("immutable_size"))]
    elif at["scopes_data_begin"] != NONE and at["scopes_pcs_end"] != NONE:
        pcs = start + field("scopes_pcs")
        tables = [(pcs, start + field("scopes_pcs_end")), (field("scopes_data_begin", 8), pcs)]
    else:
        return [(0, 0)] * 3
    if at["mutable_data"] != NONE and at["relocation_size"] != NONE:
        mutable = field("mutable_data", 8)
        return [*tables, (mutable + field("relocation_size"), mutable + field("mutable_size"))]
    if at["metadata"] == NONE:
        return [*tables, (0, 0)]
    if at["immutable_data"] != NONE and at["data_offset"] != NONE:  # 23 and 24: in its data, which it ends with
        begin = start + field("data_offset") + field("metadata", 2)
        return [*tables, (begin, max(start + field("blob_size"), begin))]
    begin = start + field("metadata")
    return [*tables, (begin, max(tables[1][0], begin))]
