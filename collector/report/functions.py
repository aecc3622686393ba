"""Which function holds a file offset: the functions of one load object, by the rules of gprofng's reader (``compat``).

* Only STT_FUNC symbols count, of ``.symtab``, else of ``.dynsym``; they are placed by file offset. What gprofng does
  not do: ``.gnu_debugdata`` and separate debug files fill the holes that ``.dynsym`` leaves.
* A symbol without a size, and one that runs into the next, ends where the next begins. Symbols at one offset are
  aliases: they all get the largest size, and the one with the shortest (demangled) name, the first of the alphabet
  among equals, is shown.
* ``.plt`` is one function ``@plt``.
* An offset between two functions makes a new function that fills the hole: ``<static>@0xSTART (<object>)``.
* What lies at or behind an offset equal to the *size* of the only executable segment "cannot be mapped":
  ``<static>@0xSIZE (<object>) --  no functions found``, inserted where the search ended, out of order. Later searches
  may stumble over it, so answers depend on what was asked before; we ask in gprofng's order.

``FunctionTable.find`` is called once per distinct offset (thousands), not per sample; ``resolve`` has the exception.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from collector.errors import ElfError
from collector.experiment.dyntext import Text
from collector.report.compat import (
    LAST_FUNCTIONS,
    LAST_INSTRUCTIONS,
    PLT,
    TEXT_FLAGS,
    Hole,
    fitted,
    hole,
    may_be_mangled,
    name_of_aliases,
    unknown_name,
)

if TYPE_CHECKING:
    from collector.elf import LoadObject, Symbols

I8 = npt.NDArray[np.int64]

_ADDRESS_MAX = 1 << 62
_TEXT_MAX = 1 << 47  # as much as a process can address, whatever a damaged file claims


@dataclass(eq=False)
class Function:
    """Something that code belongs to. ``name`` is what is shown, ``linkage`` the symbol; bytes as in the file."""

    name: bytes
    linkage: bytes
    object_name: bytes
    offset: int = 0
    size: int = 0
    object_number: int = 0
    is_plt: bool = False
    has_offsets: bool = True
    text: Text | None = None  # of one without a file: what the experiment has of it


@dataclass(frozen=True)
class SymbolTable:
    """Function symbols of one file, sorted by ``offset`` (file offset). ``names(i)`` is the name of the i-th."""

    offset: I8
    size: I8
    name: Callable[[int], bytes]
    plt: tuple[int, int] | None = None
    text_size: int = 0

    @classmethod
    def empty(cls, text_size: int) -> SymbolTable:
        """What is known of an object whose file cannot be read."""
        return cls(np.zeros(0, np.int64), np.zeros(0, np.int64), lambda _: b"", None, text_size)


def symbol_table(elf: LoadObject, mapped_size: int, debug: LoadObject | None = None,
                 more: LoadObject | None = None) -> SymbolTable:
    """The symbols of an ELF file, or of its separate debug file ``debug``; places are those of the mapped file.

    ``more``: a debug file whose symbols, as those of ``.gnu_debugdata``, only fill what the others leave open.
    """
    symbols = debug.symbols() if debug is not None else elf.symbols()
    if debug is None and elf.is_stripped:
        for read in (elf.mini_debug_symbols, *([more.symbols] if more is not None else [])):
            with suppress(ElfError):
                symbols = _filled(symbols, read())
    offset = _offsets_of(elf, symbols)
    keep = np.flatnonzero((offset >= 0) & ~symbols.is_indirect)
    keep = keep[np.argsort(offset[keep], kind="stable")]
    plt = elf.sections.get(".plt")
    texts = [load for load in elf.loads if load.flags == TEXT_FLAGS]
    text_size = min(texts[0].memory_size, _TEXT_MAX) if len(texts) == 1 else 0
    return SymbolTable(offset[keep], symbols.size[keep].astype(np.int64), lambda i: symbols.name(int(keep[i])),
                       (plt.file_offset, plt.size) if plt is not None else None, text_size or mapped_size)


class FunctionTable:
    """The functions of one load object; grows by the holes that are asked for."""

    def __init__(self, table: SymbolTable, name: bytes, object_number: int,
                 demangle: Callable[[bytes], bytes]) -> None:
        self._table = table
        self.name = name
        self._number = object_number
        self._demangle = demangle
        offset, size, symbol = _settled(table)
        self._symbol: list[int] = symbol.tolist()  # index of the symbol; -1: @plt; -2: made by find
        self._offsets: list[int] = offset.tolist()
        self._ends: list[int] = (offset + size).tolist()
        self._made: dict[int, Function] = {}  # by offset: what symbols at it have become
        self._holes: dict[int, Function] = {}  # by place in the lists
        self._cache: dict[int, Function] = {}
        self._recent: dict[int, tuple[int, Function]] = {}
        self.is_order_dependent = False

    def renewed(self) -> FunctionTable:
        """The table as if nothing had been asked; symbols remain the same functions."""
        fresh = FunctionTable(self._table, self.name, self._number, self._demangle)
        fresh._made = self._made
        return fresh

    def find(self, file_offset: int) -> Function:
        """The function at ``file_offset``; there always is one."""
        place = (file_offset >> LAST_FUNCTIONS.shift) % LAST_FUNCTIONS.n
        cached = self._cache.get(place)
        if cached is not None and cached.offset <= file_offset < cached.offset + cached.size:
            return cached
        index, insert_at = self._search(file_offset)
        if index < 0:
            index = self._fill(file_offset, insert_at)
        function = self._function(index)
        self._cache[place] = function
        return function

    def find_again(self, file_offset: int) -> Function:
        """As ``find``, but what was found for this offset is the answer while the reader would remember it."""
        place = (file_offset >> LAST_INSTRUCTIONS.shift) % LAST_INSTRUCTIONS.n
        recent = self._recent.get(place)
        if recent is not None and recent[0] == file_offset:
            return recent[1]
        function = self.find(file_offset)
        self._recent[place] = (file_offset, function)
        return function

    def entangled(self, offsets: I8) -> I8:
        """Those of ``offsets`` (all that will be asked for) whose look-ups may bear on an answer behind the text.

        Besides the offsets behind the text: those in holes, because filling them moves what comes behind, and those
        that drive the others out of the reader's two tables of last answers. Before the first look-up.
        """
        starts, ends = np.array(self._offsets, np.int64), np.array(self._ends, np.int64)
        behind = offsets >= self._table.text_size
        below = np.searchsorted(starts, offsets, side="right") - 1
        in_hole = (below < 0) | (offsets >= ends[below]) if len(starts) else np.ones(len(offsets), bool)
        answers = (offsets >> LAST_FUNCTIONS.shift) % LAST_FUNCTIONS.n
        shares_answer = np.isin(answers, answers[behind])
        recent = (offsets >> LAST_INSTRUCTIONS.shift) % LAST_INSTRUCTIONS.n
        shares_recent = np.isin(recent, recent[behind | shares_answer])
        return offsets[behind | in_hole | shares_answer | shares_recent]

    def _search(self, file_offset: int) -> tuple[int, int]:
        left, right = 0, len(self._offsets) - 1
        while left <= right:
            middle = (left + right) // 2
            if file_offset < self._offsets[middle]:
                right = middle - 1
            elif file_offset >= self._ends[middle]:
                left = middle + 1
            else:
                return middle, left
        return -1, left

    def _fill(self, file_offset: int, at: int) -> int:
        """Make a function for a hole; its index."""
        text = self._table.text_size
        last = len(self._offsets) - 1
        if file_offset >= text and last >= 0:
            if self._offsets[last] == text:
                self._ends[last] = max(self._ends[last], file_offset)
                self._function(last).size = self._ends[last] - text
                return last
            self.is_order_dependent = True
        self._insert(at, hole(file_offset, at, self._offsets, self._ends, text, self.name))
        return at

    def _insert(self, at: int, found: Hole) -> None:
        self._offsets.insert(at, found.low)
        self._ends.insert(at, found.high)
        self._symbol.insert(at, -2 - len(self._holes))
        self._holes[-2 - len(self._holes)] = Function(found.name, found.name, self.name, found.low,
                                                      found.high - found.low, self._number)

    def _function(self, index: int) -> Function:
        symbol = self._symbol[index]
        if symbol <= -2:
            return self._holes[symbol]
        offset = self._offsets[index]
        function = self._made.get(offset)
        if function is None:
            linkage, shown = self._choose(index)
            function = Function(shown, linkage, self.name, offset, self._ends[index] - offset, self._number,
                                is_plt=linkage == PLT)
            self._made[offset] = function
        return function

    def _choose(self, index: int) -> tuple[bytes, bytes]:
        """Among the symbols at one offset: (linkage name, name shown)."""
        first = last = index
        while first > 0 and self._offsets[first - 1] == self._offsets[index] and self._symbol[first - 1] >= -1:
            first -= 1
        while last + 1 < len(self._offsets) and self._offsets[last + 1] == self._offsets[index] \
                and self._symbol[last + 1] >= -1:
            last += 1
        return name_of_aliases((self._linkage(self._symbol[i]) for i in range(first, last + 1)), self._shown)

    def _linkage(self, symbol: int) -> bytes:
        return PLT if symbol == -1 else self._table.name(symbol)

    def _shown(self, linkage: bytes) -> bytes:
        return self._demangle(linkage) if may_be_mangled(linkage) else linkage


class AddressTable:
    """Stands in for the functions of a load object whose file is not the one that was recorded.

    Every place is a function of its own, ``<Unknown>@0xOFFSET (<object>)``: its offset in the file that was recorded.
    """

    is_order_dependent = False

    def __init__(self, name: bytes, object_number: int) -> None:
        self.name = name
        self._number = object_number
        self._made: dict[int, Function] = {}

    def find(self, file_offset: int) -> Function:
        """The place at ``file_offset``."""
        if file_offset not in self._made:
            name = unknown_name(file_offset, self.name)
            self._made[file_offset] = Function(name, name, self.name, file_offset, 0, self._number, has_offsets=False)
        return self._made[file_offset]

    find_again = find

    def renewed(self) -> AddressTable:
        """Itself: answers do not depend on each other."""
        return self

    def entangled(self, offsets: I8) -> I8:
        """None of ``offsets``."""
        return offsets[:0]


def _filled(symbols: Symbols, others: Symbols) -> Symbols:
    """With those of ``others`` that begin in none of ``symbols``."""
    if not len(others):
        return symbols
    ends = np.maximum.accumulate(symbols.value + np.maximum(symbols.size, 1)) if len(symbols) else symbols.value
    below = np.searchsorted(symbols.value, others.value, side="right")
    is_open = (below == 0) | (np.append(np.uint64(0), ends)[below] <= others.value)
    return symbols.with_those_of(others.only(is_open))


def _offsets_of(elf: LoadObject, symbols: Symbols) -> I8:
    """File offsets of symbols by the PT_LOAD headers of the mapped file; -1 outside them."""
    value = symbols.value.astype(np.int64)
    offset = np.full(len(value), -1, np.int64)
    for load in elf.loads:
        if load.vaddr + load.memory_size > _ADDRESS_MAX or load.file_offset > _ADDRESS_MAX:
            continue  # damaged
        inside = (value >= load.vaddr) & (value < load.vaddr + load.memory_size)
        offset[inside] = value[inside] - load.vaddr + load.file_offset
    return offset


def _settled(table: SymbolTable) -> tuple[I8, I8, I8]:
    """Offsets, sizes and symbol indices of all functions after sizes have been made to fit, sorted by offset."""
    size = fitted(table.offset, table.size)
    keep = np.flatnonzero(size > 0)
    offset, size, symbol = table.offset[keep], size[keep], keep.astype(np.int64)
    if table.plt is not None:
        at = int(np.searchsorted(offset, table.plt[0], side="left"))
        offset = np.insert(offset, at, table.plt[0])
        size = np.insert(size, at, table.plt[1])
        symbol = np.insert(symbol, at, -1)
    return offset, fitted(offset, size), symbol
