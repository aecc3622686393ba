"""The table of functions that every Go program carries (``pclntab``): where each begins, its name, and its frames.

The Go runtime walks stacks by it, so no linker option leaves it out: programs without symbols and without call frame
information, as many that are given to others, have it, too. All its offsets are the file's own claims.

    header       magic, sizes, since 1.16 where the other parts are
    names        each ends with 0
    pctab        tables of values by pc; of each function one tells how far sp is below the frame's end
    functab      (entry, offset of its description), by entry; a last entry is the end of all

    CFA = sp + value + 8, the return address is the word below it

Its form depends on the version that linked the program: 1.2, 1.16, 1.18 and 1.20 changed it. Pure; of 64 bits.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from collector.errors import ElfError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_WORD = 8
_HEADER_WORDS = 8
_MAX_FUNCTIONS, _MAX_ADDRESS = 1 << 24, 1 << 47
_MAX_NAME, _MAX_PCSP = 1 << 12, 1 << 16
_MAX_ROWS = 1 << 14
# Functions that have no caller on their stack, by name: versions before 1.17 do not mark them, later ones some of them.
_TOPS = {b"runtime.goexit", b"runtime.mstart", b"runtime.mcall", b"runtime.rt0_go", b"runtime.morestack",
         b"runtime.systemstack", b"runtime.asmcgocall", b"runtime.cgocallback", b"runtime.gogo", b"gogo",
         b"runtime.clone"}
_ENTRY, _SIGNAL_RETURN = b"_rt0_", b"runtime.sigreturn"
_TOP_FRAME, _WRITES_SP = 1, 2  # bits of a function's flag


class _Form(NamedTuple):
    """Where a version has what. Of the description of a function: behind its entry address."""

    entry_bytes: int  # of a function's entry address
    # Of the header, which tell where names, pctab and functab are; 0: it has none. The word behind that of the names
    # tells where they end.
    words: tuple[int, int, int]
    flag: int  # 0: there is none


_FORMS = {
    0xFFFF_FFFB: _Form(8, (0, 0, 0), 0),  # 1.2
    0xFFFF_FFFA: _Form(8, (2, 5, 6), 33),  # 1.16
    0xFFFF_FFF0: _Form(4, (3, 6, 7), 33),  # 1.18
    0xFFFF_FFF1: _Form(4, (3, 6, 7), 37),  # 1.20
}
_NAME, _PCSP = 0, 12  # behind the entry address


class Kind(IntEnum):
    """What a function is to whoever walks a stack."""

    PLAIN = 0
    TOP = 1  # its caller is on another stack, if it has one
    SIGNAL_RETURN = 2  # the code that a signal handler returns to
    LEAVES_STACK = 3  # it goes to another stack and comes back (time.now): where its caller is, the table does not say


class FunctionTable:
    """One table; ``read``: bytes of it, from an offset on, all or ElfError; ``text_vaddr``: what the entries of 1.18
    and later are relative to, where the header does not say it. Raises ElfError if it is none, or damaged."""

    def __init__(self, read: Callable[[int, int], bytes], size: int, text_vaddr: int) -> None:
        self._read, self._size = read, size
        header = read(0, min(_WORD * (_HEADER_WORDS + 1), size)).ljust(_WORD * (_HEADER_WORDS + 1), b"\0")
        magic, _, quantum, word_size = struct.unpack_from("<IHBB", header)
        form = _FORMS.get(magic)
        if form is None or word_size != _WORD or not quantum:
            raise ElfError("the table of Go's functions is of no known version")
        words = struct.unpack_from(f"<{_HEADER_WORDS}Q", header, _WORD)
        self._form, self._quantum = form, quantum
        self._names, self._pctab, self._functab = (words[at] if at else 0 for at in form.words)
        self._rows_at = self._functab if self._functab else 2 * _WORD
        self._names_end = words[form.words[0] + 1] if form.words[0] else size
        self._n = words[0]
        self._text = (words[2] or text_vaddr) if form.entry_bytes == 4 else 0
        if not 0 < self._n < _MAX_FUNCTIONS or max(self._names, self._pctab, self._functab) > size or (
                self._text > _MAX_ADDRESS):
            raise ElfError("the table of Go's functions is damaged")

    @cached_property
    def _entries(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64], int]:
        """Where functions begin and are described (n,), and where the last one ends."""
        import numpy as np

        dtype = np.dtype("<u4" if self._form.entry_bytes < _WORD else "<u8")
        data = self._part(self._rows_at, (2 * self._n + 1) * dtype.itemsize)
        table = np.frombuffer(data, dtype).astype(np.uint64)
        entries = table[::2] + np.uint64(self._text)
        if (entries[1:] < entries[:-1]).any():
            raise ElfError("the table of Go's functions is not in order; the file is damaged")
        return entries[:-1], table[1::2].astype(np.int64) + self._functab, int(entries[-1])

    def __len__(self) -> int:
        return int(self._n)

    @property
    def entries(self) -> npt.NDArray[np.uint64]:
        """The address (n,) at which each function begins, ascending."""
        return self._entries[0]

    @property
    def end(self) -> int:
        """Where the last function ends."""
        return self._entries[2]

    def name(self, index: int) -> bytes:
        """The name of a function."""
        at = self._names + self._i32(self._description(index) + _NAME)
        text = self._part(at, min(_MAX_NAME, max(self._size - at, 0)))
        return text[:max(text.find(b"\0"), 0)]

    def names(self) -> tuple[npt.NDArray[np.int64], bytes]:
        """Where the name of each function (n,) begins among all names, and these, each with a 0 behind it."""
        import numpy as np

        data = self._part(0, self._size)
        at = self._entries[1] + self._form.entry_bytes + _NAME
        if len(at) and not 0 <= int(at.min()) <= int(at.max()) <= len(data) - 4:
            raise ElfError("the table of Go's functions leads outside itself; the file is damaged")
        known = np.frombuffer(data, np.uint8)[at[:, None] + np.arange(4)].reshape(-1).view("<i4").astype(np.int64)
        strings = data[self._names:max(self._names_end, self._names)]
        return np.clip(known, 0, len(strings)), strings

    def kind(self, index: int) -> Kind:
        """What a function is to whoever walks a stack."""
        name = self.name(index)
        if name.startswith(_SIGNAL_RETURN):
            return Kind.SIGNAL_RETURN
        flag = self._part(self._description(index) + self._form.flag, 1)[0] if self._form.flag else 0
        if flag & _TOP_FRAME or name in _TOPS or name.startswith(_ENTRY):
            return Kind.TOP
        return Kind.LEAVES_STACK if flag & _WRITES_SP else Kind.PLAIN

    def frame_rows(self, index: int) -> list[tuple[int, int]]:
        """(address from where on, how far sp is below the frame's end but for the return address) of a function; none
        where that is not known."""
        offset = self._i32(self._description(index) + _PCSP)
        if not offset:
            return []
        at = self._pctab + offset
        data = self._part(at, min(_MAX_PCSP, max(self._size - at, 0)))
        pc, value, place = int(self.entries[index]), -1, 0
        rows: list[tuple[int, int]] = []
        while len(rows) < _MAX_ROWS:
            delta, place = _varint(data, place)
            if not delta and rows:
                break
            value += -(delta >> 1) - 1 if delta & 1 else delta >> 1
            n_units, place = _varint(data, place)
            rows.append((pc, value))
            pc += n_units * self._quantum
        return rows

    def _description(self, index: int) -> int:
        return int(self._entries[1][index]) + self._form.entry_bytes

    def _i32(self, at: int) -> int:
        return int.from_bytes(self._part(at, 4), "little", signed=True)

    def _part(self, at: int, size: int) -> bytes:
        if not 0 <= at <= at + size <= self._size:
            raise ElfError("the table of Go's functions leads outside itself; the file is damaged")
        return self._read(at, size)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """An unsigned number of seven bits a byte, the lowest first; and what comes behind it."""
    value = shift = 0
    while at < len(data) and shift < 35:
        byte = data[at]
        value, shift, at = value | (byte & 0x7F) << shift, shift + 7, at + 1
        if byte < 0x80:
            return value, at
    raise ElfError("a table of Go's frames is cut; the file is damaged")
