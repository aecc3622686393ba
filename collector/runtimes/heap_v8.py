"""V8's heap from outside: objects by their types, and strings of all shapes. Pure, over a ``read`` handed in.

A word is a small integer (lowest bit 0, the value in the upper half) or an object's address plus one. Every object
begins with its map, which says what it is; a map is believed if its own map is one of maps. What is asked for at once
is read at once, level by level: a string may be two others (cons), a part of another (sliced), stand for another (thin)
or have its characters elsewhere (external).

How long an object is its own words say. So it is read as long as it may be, which for one at the end of the heap's
memory is too much: of that one comes what there is.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from collector.runtimes.holes import Read, first_of
from collector.runtimes.layout_v8 import Layout

_USER_BEGIN, _USER_END = 1 << 16, 1 << 47
_HEAD = 32  # bytes of a string that are read at first; it may be shorter
_MAPS_MAX = 1 << 14
_DEPTH_MAX = 12
_PARTS_MAX = 256
_SEQUENTIAL, _CONS, _EXTERNAL, _SLICED, _THIN = 0, 1, 2, 3, 5  # by the lowest bits of a string's type
_ONE_BYTE, _UNCACHED = 8, 16
_CONTENT, _SECOND = 16, 24  # the first and the second word behind a string's head

_Found = TypeVar("_Found")


class _String(NamedTuple):
    """A string as it is kept: what it consists of, or where its characters are."""

    length: int
    shape: int
    width: int  # bytes of a character
    first: int
    second: int


class _Noted:
    """A read that notes what it gave."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._given: dict[tuple[int, int], bytes] = {}  # by address and size
        self._has_changed = False

    def __call__(self, addresses: Sequence[int], sizes: Sequence[int]) -> list[bytes]:
        contents = self._read(addresses, sizes)
        for stretch, content in zip(zip(addresses, sizes, strict=True), contents, strict=True):
            self._has_changed |= self._given.setdefault(stretch, content) != content
        return contents

    def is_same(self) -> bool:
        """Whether all of it is so still."""
        if self._has_changed or not self._given:
            return not self._has_changed
        addresses, sizes = zip(*self._given, strict=True)
        return self._read(addresses, sizes) == list(self._given.values())


class Heap:
    """The objects of one process."""

    def __init__(self, layout: Layout, read: Read) -> None:
        self._at = layout.at
        self._read = read
        self._types: dict[int, int] = {}  # by map

    def twice(self, find: Callable[[], _Found]) -> tuple[_Found, _Found]:
        """What is found, and what is found in the same way later: where no byte of what was read has changed, the
        same, and it is not looked for again."""
        noted = _Noted(self._read)
        read, self._read = self._read, noted
        try:
            found = find()
        finally:
            self._read = read
        return found, found if noted.is_same() else find()

    def look(self) -> None:
        """Maps may be others since."""
        self._types.clear()

    def heads(self, objects: Sequence[int], size: int | Sequence[int]) -> list[bytes]:
        """The first bytes of objects, as many of all or so many of each; fewer where memory ends, empty where there is
        none."""
        sizes = [size] * len(objects) if isinstance(size, int) else size
        asked = [pair for pair in dict.fromkeys(zip(objects, sizes, strict=True)) if is_object(pair[0])]
        found = dict(zip(asked, self.pieces([one - 1 for one, _ in asked], [n for _, n in asked]), strict=True))
        return [found.get(pair, b"") for pair in zip(objects, sizes, strict=True)]

    def pieces(self, addresses: Sequence[int], sizes: Sequence[int]) -> list[bytes]:
        """So many bytes at addresses; if these are not all there, those up to where memory ends."""
        return first_of(self._read, [(at, at + size) for at, size in zip(addresses, sizes, strict=True)])

    def types(self, heads: Iterable[bytes]) -> list[int]:
        """What objects are, by their heads; -1: none that is known."""
        maps = [word(head, 0) for head in heads]
        new = {one for one in maps if one not in self._types and is_object(one)}
        if new:
            self._learn(sorted(new))
        return [self._types.get(one, -1) for one in maps]

    def type_of(self, objects: Sequence[int]) -> list[int]:
        """The same by their addresses."""
        return self.types(self.heads(objects, 8))

    def _learn(self, maps: Sequence[int]) -> None:
        if len(self._types) > _MAPS_MAX:
            self._types.clear()
        at = self._at["map_type"]
        found = self.heads(maps, at + 2)
        again = self.heads(maps, at + 2)
        above = sorted({word(head, 0) for head in found if head})
        is_meta = {one for one, head in zip(above, self.heads(above, at + 2), strict=True)
                   if half(head, at) == self._at["type_map"]}
        self._types.update((one, half(head, at)) for one, head, same in zip(maps, found, again, strict=True)
                           if head == same and word(head, 0) in is_meta)

    # -- strings

    def texts(self, strings: Iterable[int], most: int) -> dict[int, str]:
        """The text of those that are strings, and not longer than ``most``."""
        asked = [one for one in dict.fromkeys(strings) if is_object(one)]
        known = self._shapes(asked, most)
        places = {one: shape for one, shape in known.items() if shape.shape in (_SEQUENTIAL, _EXTERNAL)}
        sizes = [shape.length * shape.width for shape in places.values()]
        # What is sound has no more: parts are as long as what consists of them, and a part's whole is not too long.
        n_sound = bisect_right(list(accumulate(sizes)), 2 * most * len(asked))
        contents = self._read([shape.first for shape in places.values()][:n_sound], sizes[:n_sound])
        pieces = {one: _units(content, shape.width)
                  for (one, shape), content in zip(places.items(), contents, strict=False)
                  if len(content) == shape.length * shape.width}
        found = {one: _assembled(one, known, pieces) for one in asked if one in known}
        return {one: _joined(text) for one, text in found.items()
                if text is not None and len(text) == known[one].length}

    def units(self, string: int, most: int) -> npt.NDArray[np.unsignedinteger]:
        """The characters (n,) of one that is not longer than ``most``, in units of one byte (Latin-1) or two (UTF-16);
        (0,) where it is none."""
        shape = self._shapes([string], most).get(string)
        if shape is None or shape.shape not in (_SEQUENTIAL, _EXTERNAL):
            return np.frombuffer(self.texts([string], most).get(string, "").encode("utf-16-le", "surrogatepass"), "<u2")
        (content,) = self._read([shape.first], [shape.length * shape.width])
        return np.frombuffer(content if len(content) == shape.length * shape.width else b"", f"<u{shape.width}")

    def _shapes(self, strings: Sequence[int], most: int) -> dict[int, _String]:
        """Strings that are not longer than ``most``, and all that they consist of."""
        known: dict[int, _String] = {}
        sliced: set[int] = set()  # of what others are parts
        wholes: dict[int, _String] = {}  # those of them that are longer
        new = list(strings)
        for _ in range(_DEPTH_MAX):
            heads = self.heads(new, _HEAD)
            for one, head, kind in zip(new, heads, self.types(heads), strict=True):
                shape = self._shape(one, head, kind)
                if shape is not None and shape.length <= most:
                    known[one] = shape
                elif shape is not None and one in sliced:
                    wholes[one] = shape
            found = [known[one] for one in new if one in known]
            sliced.update(shape.first for shape in found if shape.shape == _SLICED)
            parts = {part for shape in found for part in _parts(shape)}
            # One that is too long is asked for once more where another one turns out to be a part of it.
            new = [part for part in parts if part not in known and part not in wholes and is_object(part)]
            new = sorted(new)[:_PARTS_MAX * len(strings)]
            if not new:
                break
        return {one: _cut(shape, wholes.get(shape.first)) for one, shape in known.items()}

    def _shape(self, address: int, head: bytes, kind: int) -> _String | None:
        if not 0 <= kind < self._at["type_no_string"] or len(head) < _CONTENT:
            return None
        length, shape, width = half4(head, self._at["string_length"]), kind & 7, 1 if kind & _ONE_BYTE else 2
        first, second = word(head, _CONTENT), word(head, _SECOND)
        if shape == _SEQUENTIAL:
            return _String(length, shape, width, address - 1 + self._at["string_chars"], 0)
        if shape == _EXTERNAL:
            return None if kind & _UNCACHED else _String(length, shape, width, second, 0)
        return _String(length, shape, width, first, second) if shape in (_CONS, _SLICED, _THIN) else None


def _parts(string: _String) -> tuple[int, ...]:
    if string.shape == _CONS:
        return string.first, string.second
    return (string.first,) if string.shape in (_SLICED, _THIN) else ()


def _cut(string: _String, whole: _String | None) -> _String:
    """Of a part of a ``whole`` that is not read as a whole, where its own characters are."""
    begin = small(string.second)
    if (string.shape != _SLICED or whole is None or whole.shape not in (_SEQUENTIAL, _EXTERNAL)
            or not 0 <= begin <= whole.length - string.length):
        return string
    return _String(string.length, whole.shape, whole.width, whole.first + begin * whole.width, 0)


def _units(content: bytes, width: int) -> str:
    """Characters as V8 counts them, one for each unit: two of UTF-16 may be one character."""
    if width == 1:
        return content.decode("latin-1")
    return np.frombuffer(content, "<u2").astype("<u4").tobytes().decode("utf-32-le", "surrogatepass")


def _joined(units: str) -> str:
    """Text, of its units."""
    return units if units.isascii() else units.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def _assembled(address: int, known: dict[int, _String], pieces: dict[int, str], depth: int = 0) -> str | None:
    """The units of a string from the pieces that it consists of; None where one is missing."""
    shape = known.get(address)
    if shape is None or depth > _DEPTH_MAX:
        return None
    if not _parts(shape):
        return pieces.get(address)
    found: list[str] = []
    for part in _parts(shape):
        text = _assembled(part, known, pieces, depth + 1)
        if text is None or sum(map(len, found)) + len(text) > known[part].length + shape.length:
            return None
        found.append(text)
    if shape.shape == _SLICED:
        begin = small(shape.second)
        return found[0][begin:begin + shape.length] if begin >= 0 else None
    return "".join(found)


def is_object(one: int) -> bool:
    """Whether a word is an object's address."""
    return one & 3 == 1 and _USER_BEGIN <= one < _USER_END


def are_objects(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
    """The same of many."""
    are: npt.NDArray[np.bool_] = (words & np.uint64(3)) == 1
    are &= words - np.uint64(_USER_BEGIN) < np.uint64(_USER_END - _USER_BEGIN)
    return are


def small(one: int) -> int:
    """The small integer that a word is; -1: none, or below zero."""
    return one >> 32 if one & 0xFFFF_FFFF == 0 and one < 1 << 63 else -1


def word(content: bytes, at: int) -> int:
    """The word at a place; 0 where there is none."""
    return int.from_bytes(content[at:at + 8], "little") if len(content) >= at + 8 else 0


def half(content: bytes, at: int) -> int:
    """The two bytes at a place; -1 where there are none."""
    return int.from_bytes(content[at:at + 2], "little") if len(content) >= at + 2 else -1


def half4(content: bytes, at: int) -> int:
    """The four bytes at a place; 0 where there are none."""
    return int.from_bytes(content[at:at + 4], "little") if len(content) >= at + 4 else 0
