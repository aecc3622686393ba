"""Machine code that V8 has compiled: whose it is, and which functions each place of it carries out. Pure, over a
``read`` handed in.

Code begins at a multiple of 64, and right before it lies the head of the object that holds it. So the head is found
from any pc in it, by going back; it leads to the Code object, which says where the code begins and how long it is, and
leads back. Both must agree, now and whenever the code is met again: of code that was given up the Code object stays in
memory as it was, often for long, while other code comes to lie where it lay.

    baseline (Sparkplug)            -> BytecodeArray, by which the function is known that has it
    optimised (Maglev, TurboFan)    -> SharedFunctionInfo, those of the functions that were inlined, and a table of
                                       positions: (offset in the code, place in the source and which inlined call)

The table has an entry wherever instructions of another place begin; node has it so for all code, not for calls alone.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from collector.arrays import distinct
from collector.runtimes.heap_v8 import Heap, half4, small, word
from collector.runtimes.holes import Read, cut, parts_of
from collector.runtimes.layout_v8 import NONE, Layout

_ALIGNMENT = 64
_NEAR, _FAR = 1 << 15, 1 << 20  # how far back a beginning is looked for
_PIECE = _NEAR  # what is read as a whole, if it is there
_AT_ONCE = 128  # pieces
_MAPS_MAX = 4096  # that are asked for what they are of
_CODE_MAX = 1 << 24
_TABLE_MAX, _INLINED_MAX = 1 << 20, 1 << 12
_CODES_MAX = 1 << 16
_WORD = 8
_INLINING_SIZE = 16
_HOLDER_SIZE = 2 * _WORD  # of what lies before code: its map, and what leads to its Code object
_EXTERNAL = 1
_NUMBER_BYTES = 9  # of a table of positions, at most: of 63 bits
_WEAK = 2  # tag of a reference that does not keep what it leads to

KINDS = (b"Sparkplug", b"Maglev", b"TurboFan")


class Scope(NamedTuple):
    """A function that a place carries out, and where in the source of its script (-1: not known)."""

    shared: int
    position: int


class Code:
    """Machine code at [start, end), how its Code object begins, and what lies right before it. ``level``: 0 baseline, 1
    and 2 optimised, below 0: other code."""

    def __init__(self, object_: int, start: int, end: int, level: int, head: bytes, holder: bytes,
                 since_ns: int) -> None:
        self.object, self.start, self.end, self.level = object_, start, end, level
        self.head = head
        self.holder = holder
        self.since_ns = since_ns
        self.shared = 0  # of optimised code
        self.bytecode = 0  # of baseline code
        self.inlined: tuple[int, ...] = ()
        self.table = b""
        self.inlinings = b""

    @property
    def kind(self) -> bytes:
        """What made it."""
        return KINDS[self.level] if 0 <= self.level < len(KINDS) else b"V8"

    @cached_property
    def _positions(self) -> tuple[list[int], list[int]]:
        return positions_of(self.table)

    def scopes_at(self, pc: int) -> tuple[Scope, ...]:
        """The functions at a pc, as looked up, innermost first; of optimised code."""
        offsets, positions = self._positions
        at = bisect_right(offsets, pc - self.start) - 1
        return self._scopes(positions[at]) if at >= 0 else (Scope(self.shared, -1),)

    def _scopes(self, position: int) -> tuple[Scope, ...]:
        found = []
        inlining = position >> 31 & 0xFFFF
        while inlining:
            at = (inlining - 1) * _INLINING_SIZE
            entry = self.inlinings[at:at + _INLINING_SIZE]
            number = int.from_bytes(entry[8:12], "little", signed=True)
            if len(entry) < _INLINING_SIZE or not -1 <= number < len(self.inlined):
                break
            found.append(Scope(self.inlined[number] if number >= 0 else self.shared, place_of(position)))
            position = word(entry, 0)
            inlining, before = position >> 31 & 0xFFFF, inlining
            if inlining >= before:  # calls that were inlined come after those that they are in
                return (Scope(self.shared, -1),)
        if inlining:
            return (Scope(self.shared, -1),)
        return (*found, Scope(self.shared, place_of(position)))


class Codes:
    """All machine code of one process that was met."""

    def __init__(self, layout: Layout, heap: Heap, read: Read) -> None:
        self._layout = layout
        self._heap = heap
        self._read = read
        self._known: dict[int, Code] = {}  # by start
        self._starts: list[int] = []
        self._optimised = np.zeros((2, 0), np.uint64)  # beginnings and ends of optimised code, ascending
        self._maps: set[int] = set()  # of objects that hold code
        self.head_size = layout.at["instructions_head" if layout.has_code_apart else "code_head"]

    def at(self, pc: int) -> Code | None:
        """The code at a pc, of what is known."""
        i = bisect_right(self._starts, pc) - 1
        code = self._known[self._starts[i]] if i >= 0 else None
        return code if code is not None and pc < code.end else None

    def are_optimised(self, pcs: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        """Which pcs (k,) lie in optimised code that is known."""
        starts, ends = self._optimised
        if not len(starts):
            return np.zeros(len(pcs), np.bool_)
        at = starts.searchsorted(pcs, side="right") - 1
        return (at >= 0) & (pcs < ends[at])

    def learn(self, pcs: Iterable[tuple[int, int]], now_ns: int) -> None:
        """Looks again at what pcs lie in, and looks for what is not known. With each pc: where memory begins."""
        asked = dict(pcs)
        self._check({code.start for code in map(self.at, asked) if code is not None})
        for reach in (_NEAR, _FAR):
            missing = {pc: low for pc, low in asked.items() if self.at(pc) is None}
            if missing:
                self._find(missing, reach, now_ns)

    def _check(self, starts: set[int]) -> None:
        known = [self._known[start] for start in starts]
        # In this order: of a process that ends meanwhile there are no heads.
        holders = self._heap.heads([code.start - self.head_size + 1 for code in known], _HOLDER_SIZE)
        heads = self._heap.heads([code.object for code in known], self._size)
        if not any(heads):
            return  # its process is gone, or nothing was asked
        gone = [code.start for code, head, holder in zip(known, heads, holders, strict=True)
                if (head, holder) != (code.head, code.holder)]
        for start in gone:
            del self._known[start]
        if gone:
            self._arrange()

    def _arrange(self) -> None:
        """What is known has changed."""
        self._starts = sorted(self._known)
        optimised = [(start, code.end) for start in self._starts if (code := self._known[start]).level > 0]
        self._optimised = np.array(optimised, np.uint64).reshape(-1, 2).T.copy()

    @property
    def _size(self) -> int:
        at = self._layout.at
        return max(at[name] for name in ("code_size", "code_flags", "code_data", "code_positions", "code_start")) + 8

    def _find(self, asked: dict[int, int], reach: int, now_ns: int) -> None:
        pcs = sorted(asked)
        begins = [max(asked[pc] & -_ALIGNMENT, (pc & -_ALIGNMENT) - reach) for pc in pcs]
        holders = self._holders(_pieces(begins, [(pc & -_ALIGNMENT) + _ALIGNMENT for pc in pcs]))
        before = {pc: holders[bisect_right(holders, begin):bisect_right(holders, pc - self.head_size + 1)]
                  for pc, begin in zip(pcs, begins, strict=True)}
        found: dict[int, Code] = {}
        while before := {pc: its for pc, its in before.items() if its}:
            nearest = {pc: its.pop() for pc, its in before.items()}
            codes = self._codes(sorted(set(nearest.values())), now_ns)
            for pc, holder in nearest.items():
                code = codes.get(holder)
                if code is not None:
                    before[pc].clear()
                    found.update([(code.start, code)] if code.start <= pc < code.end else [])
        if found:
            if len(self._known) > _CODES_MAX:
                self._known.clear()
            for code in found.values():
                self._forget_below(code)
            self._known.update(found)
            self._arrange()

    def _forget_below(self, code: Code) -> None:
        """What was met where code is now, that is there no more, and would hide it."""
        first = max(bisect_right(self._starts, code.start) - 1, 0)
        for start in self._starts[first:bisect_left(self._starts, code.end)]:
            if start in self._known and self._known[start].end > code.start:
                del self._known[start]

    def _holders(self, pieces: Sequence[tuple[int, int]]) -> list[int]:
        """The objects in pieces of memory [begin, end) that look as if they held code, in ascending order. Where a
        piece is not there as a whole, those pages count that are."""
        found: list[int] = []
        for at in range(0, len(pieces), _AT_ONCE):
            for parts in parts_of(self._read, pieces[at:at + _AT_ONCE]):
                for begin, content in parts:
                    found += self._holders_in(begin, content)
        return sorted(found)

    def _holders_in(self, begin: int, piece: bytes) -> list[int]:
        first = (-self.head_size - begin) % _ALIGNMENT
        words = np.frombuffer(piece[:len(piece) // 8 * 8], "<u8")[first // 8::_ALIGNMENT // 8]
        if not self._maps:
            self._note_maps(distinct(words[(words & np.uint64(3)) == 1])[:_MAPS_MAX].tolist())
        is_one = np.zeros(len(words), np.bool_)
        for map_ in self._maps:
            is_one |= words == np.uint64(map_)
        return (begin + first + np.flatnonzero(is_one) * _ALIGNMENT + 1).tolist()

    def _note_maps(self, maps: Sequence[int]) -> None:
        wanted = self._layout.at["type_instructions" if self._layout.has_code_apart else "type_code"]
        kinds = self._heap.types([one.to_bytes(8, "little") for one in maps])
        self._maps.update(one for one, kind in zip(maps, kinds, strict=True) if kind == wanted)

    def _codes(self, holders: Sequence[int], now_ns: int) -> dict[int, Code]:
        """The code that objects hold, by those where it makes sense."""
        befores = self._heap.heads(holders, _HOLDER_SIZE)
        objects = [word(before, _WORD) for before in befores] if self._layout.has_code_apart else holders
        heads = self._heap.heads(objects, self._size)
        found = {}
        kinds = self._heap.types(heads)
        for holder, before, object_, head, kind in zip(holders, befores, objects, heads, kinds, strict=True):
            start = self._start_of(holder, head) if kind == self._layout.at["type_code"] else 0
            if start:
                end = start + half4(head, self._layout.at["code_size"])
                found[holder] = Code(object_, start, end, self._level_of(head), head, before, now_ns)
        self._fill(list(found.values()))
        return found

    def _start_of(self, holder: int, head: bytes) -> int:
        """Where the code begins that an object holds, by the head of its Code object; 0 where it makes no sense."""
        at = self._layout.at
        start, size = holder - 1 + self.head_size, half4(head, at["code_size"])
        if len(head) < self._size or not 0 < size <= _CODE_MAX:
            return 0
        if self._layout.has_code_apart and (word(head, at["code_start"]) != start
                                            or word(head, at["code_instructions"]) != holder):
            return 0
        return start

    def _level_of(self, head: bytes) -> int:
        at = self._layout.at
        return (half4(head, at["code_flags"]) & at["kind_mask"]) - at["kind_baseline"]

    # -- whose it is

    def _fill(self, codes: Sequence[Code]) -> None:
        """What tells the functions of code: all in a few reads."""
        at = self._layout.at
        baseline = [code for code in codes if code.level == 0]
        arrays = self.bytecodes_of([word(code.head, at["code_data"]) for code in baseline])
        for code, bytecode in zip(baseline, arrays, strict=True):
            code.bytecode = bytecode
        optimised = [code for code in codes if code.level > 0]
        n_words = max(at["deopt_positions"], at["deopt_shared"], at["deopt_wrapped"]) + 1
        data = self._words([word(code.head, at["code_data"]) for code in optimised], [n_words] * len(optimised))
        self._fill_optimised([(code, words) for code, words in zip(optimised, data, strict=True) if words])

    def _fill_optimised(self, codes: Sequence[tuple[Code, list[int]]]) -> None:
        """The same of optimised code, with its data for deoptimisation."""
        at = self._layout.at
        is_wrapped = at["deopt_wrapped"] != NONE
        shared = [words[at["deopt_wrapped" if is_wrapped else "deopt_shared"]] for _, words in codes]
        tables = self.bytes_of([word(code.head, at["code_positions"]) for code, _ in codes])
        for (code, _), one, table in zip(codes, self._unwrapped(shared) if is_wrapped else shared, tables, strict=True):
            code.shared, code.table = one, table
        counts = [(code, words, small(words[at["deopt_count"]])) for code, words in codes]
        inlining = [one for one in counts if 0 < one[2] <= _INLINED_MAX]
        literals = self._words([words[at["deopt_literals"]] for _, words, _ in inlining], [n for _, _, n in inlining])
        places = self.bytes_of([words[at["deopt_positions"]] for _, words, _ in inlining])
        for (code, _, _), inlined, inlinings in zip(inlining, literals, places, strict=True):
            code.inlined, code.inlinings = tuple(one & ~_WEAK for one in inlined), inlinings

    def bytecodes_of(self, data: Sequence[int]) -> list[int]:
        """The BytecodeArrays that functions' code leads to; 0: none."""
        at = self._layout.at
        found = [0] * len(data)
        asked = dict(enumerate(data))
        for _ in range(3):
            further = {}
            heads = self._heap.heads(list(asked.values()), self._size)
            for (i, one), head, kind in zip(asked.items(), heads, self._heap.types(heads), strict=True):
                if kind == at["type_bytecode"]:
                    found[i] = one
                elif kind == at["type_code"]:
                    further[i] = word(head, at["code_data"])
                elif kind == at["type_interpreter_data"] != NONE:
                    further[i] = word(head, at["interpreter_bytecode"])
            asked = further
        return found

    def _unwrapped(self, wrappers: Sequence[int]) -> list[int]:
        heads = self._heap.heads(wrappers, 2 * _WORD)
        return [word(head, _WORD) if kind == self._layout.at["type_wrapper"] else 0
                for head, kind in zip(heads, self._heap.types(heads), strict=True)]

    def _words(self, arrays: Sequence[int], counts: Sequence[int]) -> list[list[int]]:
        """The first words of arrays, so many of each; empty where it is none, or has fewer."""
        at = self._layout.at
        kinds = {at[name] for name in ("type_fixed", "type_trusted_fixed", "type_protected_fixed", "type_weak_fixed",
                                       "type_trusted_weak_fixed")} - {NONE}
        heads = self._heap.heads(arrays, [at["array_data"] + n * _WORD for n in counts])
        return [[word(head, at["array_data"] + i * _WORD) for i in range(n)]
                if kind in kinds and small(word(head, at["array_length"])) >= n else []
                for head, kind, n in zip(heads, self._heap.types(heads), counts, strict=True)]

    def bytes_of(self, arrays: Sequence[int]) -> list[bytes]:
        """The bytes of arrays; empty where it is none."""
        at = self._layout.at
        heads = self._heap.heads(arrays, at["array_data"])
        kinds = {at["type_bytes"], at["type_trusted_bytes"]} - {NONE}
        sizes = [n if kind in kinds and 0 < (n := small(word(head, at["array_length"]))) <= _TABLE_MAX else 0
                 for head, kind in zip(heads, self._heap.types(heads), strict=True)]
        there = [i for i, n in enumerate(sizes) if n]
        found = [b""] * len(arrays)
        for i, content in zip(there, self._read([arrays[i] - 1 + at["array_data"] for i in there],
                                                [sizes[i] for i in there]), strict=True):
            found[i] = content
        return found


def positions_of(table: bytes) -> tuple[list[int], list[int]]:
    """A table of source positions: offsets in the code, ascending, and positions; as far as it is sound. Each entry is
    two signed numbers, of seven bits a byte, that are added to those of the entry before; an offset of a place that is
    no statement is counted from -1 downwards."""
    numbers = _numbers(table)
    pairs = numbers[:len(numbers) // 2 * 2].reshape(-1, 2)
    more, further = pairs.T
    offsets = np.cumsum(np.where(more >= 0, more, ~more)) - 1
    return offsets.tolist(), np.cumsum(further).tolist()


def _numbers(table: bytes) -> npt.NDArray[np.int64]:
    """The signed numbers in a table, as far as it is sound."""
    content = np.frombuffer(table, np.uint8)
    ends = np.flatnonzero(content < 0x80)
    begins = np.append(0, ends[:-1] + 1) if len(ends) else ends
    long = np.flatnonzero(ends - begins >= _NUMBER_BYTES)
    ends, begins = (ends[:long[0]], begins[:long[0]]) if len(long) else (ends, begins)
    if not len(ends):
        return np.zeros(0, np.int64)
    content = content[:ends[-1] + 1]
    shift = np.arange(len(content)) - np.repeat(begins, ends - begins + 1)
    values = np.add.reduceat((content & 0x7F).astype(np.int64) << 7 * shift, begins)
    return values >> 1 ^ -(values & 1)


def place_of(position: int) -> int:
    """Where in a script's source a position is; -1: not in that."""
    return -1 if position & _EXTERNAL else (position >> 1 & (1 << 30) - 1) - 1


def _pieces(begins: Sequence[int], ends: Sequence[int]) -> list[tuple[int, int]]:
    """What lies in stretches of memory, in pieces [begin, end) of at most _PIECE bytes, each part once."""
    found: dict[int, tuple[int, int]] = {}
    for stretch in zip(begins, ends, strict=True):
        for begin, end in cut(*stretch, _PIECE):
            known = found.get(begin // _PIECE, (begin, end))
            found[begin // _PIECE] = min(begin, known[0]), max(end, known[1])
    return sorted(found.values())
