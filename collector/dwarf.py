"""Tables of lines from debug information: the keeper of pyelftools.

What lies at an address is told faster elsewhere (``report.symbols``); here is what only the tables themselves know: all
lines that have code, all files that are named, where functions are declared. One unit (a compiled file) is read at a
time, when it is asked for. The tables of split debug information (``.dwo``) stand in the program itself, so they can be
read here where nobody kept the ``.dwo`` files.
"""

from __future__ import annotations

import errno
import io
import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

from collector.elf import LoadObject, Read
from collector.errors import ElfError

T = TypeVar("T")
_MAX_PIECE = 1 << 26  # bytes that are read at once


class Row(NamedTuple):
    """From ``vaddr`` on, up to the next row, code belongs to ``line`` of ``path``; line 0: to none that is known."""

    vaddr: int
    path: str
    line: int


class Unit:
    """A compiled file: its rows in the order of addresses, and where its functions are declared."""

    def __init__(self, name: str, dwarf: Any, unit: Any) -> None:
        """``name``: that of the load object, for what is wrong with it."""
        self._name = name
        self._dwarf = dwarf
        self._unit = unit

    @cached_property
    def path(self) -> str:
        """The compiled file."""
        return _guarded(self._name, lambda: _path_of(self._dwarf, self._unit))

    @cached_property
    def rows(self) -> list[Row]:
        """All rows; several may begin at one address, the last of them has the code."""
        return _guarded(self._name, lambda: sorted(_rows(self._dwarf, self._unit), key=lambda row: row.vaddr))

    @cached_property
    def declared(self) -> dict[int, int]:
        """Lines in which functions without a namespace are declared, by the address of their code."""
        return _guarded(self._name, lambda: dict(_declared(self._unit)))

    def at(self, vaddr: int) -> Row | None:
        """The row that has the code at an address; None if there is none."""
        index = bisect_right(self.rows, vaddr, key=lambda row: row.vaddr) - 1
        return self.rows[index] if index >= 0 and self.rows[index].line else None


class LineTables:
    """The units of one load object. ElfError where they are damaged."""

    def __init__(self, found: LoadObject) -> None:
        self._found = found

    def unit_at(self, vaddr: int) -> Unit | None:
        """The unit whose code is at an address; None if there is none."""
        index = bisect_right(self._extents, vaddr, key=lambda extent: extent[0]) - 1
        if index < 0 or vaddr >= self._extents[index][1]:
            return None
        return self._units[self._extents[index][2]]

    @property
    def units(self) -> list[Unit]:
        """All of them."""
        return self._units

    def __bool__(self) -> bool:
        return self._dwarf is not None

    @cached_property
    def _dwarf(self) -> Any:
        return _guarded(self._found.name, lambda: _dwarf_of(self._found))

    @cached_property
    def _units(self) -> list[Unit]:
        return [Unit(self._found.name, self._dwarf, unit) for unit in self._headers]

    @cached_property
    def _headers(self) -> list[Any]:
        if self._dwarf is None:
            return []
        return _guarded(self._found.name, lambda: list(self._dwarf.iter_CUs()))

    @cached_property
    def _extents(self) -> list[tuple[int, int, int]]:
        """(begin, end, number of the unit), in the order of addresses."""
        return _guarded(self._found.name, lambda: sorted(
            (begin, end, number) for number, unit in enumerate(self._headers)
            for begin, end in _ranges(self._dwarf, unit) if begin < end))


def source_files(found: LoadObject) -> list[bytes]:
    """The absolute paths that the line tables of an object name, headers included; sorted, without dots.

    Whoever wants those of a separate debug file asks with that file. ElfError if the tables are damaged.
    """
    return _guarded(found.name, lambda: sorted({path for path in _paths_named(found) if path.startswith(b"/")}))


def _guarded(name: str, read: Callable[[], T]) -> T:
    try:
        return read()
    except ElfError:
        raise
    # pyelftools promises ELFError but damaged files also raise construct's errors, KeyError, AssertionError, ...
    except Exception as err:
        detail = str(err).splitlines()[0] if str(err) else type(err).__name__
        raise ElfError(f"{name}: damaged line tables: {detail}") from err


def _dwarf_of(found: LoadObject) -> Any:
    from elftools.elf.elffile import ELFFile

    found.refuse_zstd(".debug_")
    file = ELFFile(io.BufferedReader(_Stream(found._read, found.size), 4096))
    return file.get_dwarf_info(follow_links=False) if file.has_dwarf_info(strict=True) else None


def _paths_named(found: LoadObject) -> Iterable[bytes]:
    dwarf = _dwarf_of(found)
    if dwarf is None:
        return
    for unit in dwarf.iter_CUs():
        program = dwarf.line_program_for_CU(unit)
        if program is not None:
            yield from _line_table_paths(program.header, unit)


def _line_table_paths(header: Any, unit: Any) -> Iterable[bytes]:
    """One table's files. From DWARF 5 on directory 0 is among the table's own, before it is the unit's."""
    folders, base = list(header["include_directory"]), _folder_of(unit, header)
    if header["version"] < 5:
        folders.insert(0, base)
    for entry in header["file_entry"]:
        folder = folders[entry.dir_index] if entry.dir_index < len(folders) else b""
        yield os.path.normpath(os.path.join(base, folder, entry.name))


def _rows(dwarf: Any, unit: Any) -> Iterator[Row]:
    """The rows of a unit. From DWARF 5 on files are numbered from 0, before that from 1."""
    program = dwarf.line_program_for_CU(unit)
    if program is None:
        return
    paths = [os.fsdecode(path) for path in _line_table_paths(program.header, unit)]
    first = 0 if program.header["version"] >= 5 else 1
    for entry in program.get_entries():
        state = entry.state
        if state is None:
            continue
        number = state.file - first
        path = paths[number] if 0 <= number < len(paths) else ""
        yield Row(state.address, path, 0 if state.end_sequence else state.line)


def _path_of(dwarf: Any, unit: Any) -> str:
    folder, name = _text(unit, "DW_AT_comp_dir"), _text(unit, "DW_AT_name")
    if name and not folder and (program := dwarf.line_program_for_CU(unit)) is not None:
        folder = _folder_of(unit, program.header)
    return os.path.normpath(os.fsdecode(os.path.join(folder, name))) if name else ""


def _folder_of(unit: Any, header: Any) -> bytes:
    """Where a unit was compiled: as it says, else as its table of lines does from DWARF 5 on."""
    own = header["include_directory"][:1] if header["version"] >= 5 else ()
    return _text(unit, "DW_AT_comp_dir") or (own[0] if own else b"")


def _text(unit: Any, key: str) -> bytes:
    """What an attribute of a unit says; nothing where dwz has put it into another file."""
    attribute = unit.get_top_DIE().attributes.get(key)
    return attribute.value if attribute is not None and isinstance(attribute.value, bytes) else b""


def _declared(unit: Any) -> Iterator[tuple[int, int]]:
    for entry in unit.get_top_DIE().iter_children():
        attributes = entry.attributes
        if entry.tag == "DW_TAG_subprogram" and "DW_AT_low_pc" in attributes and "DW_AT_decl_line" in attributes:
            yield attributes["DW_AT_low_pc"].value, attributes["DW_AT_decl_line"].value


def _ranges(dwarf: Any, unit: Any) -> Iterator[tuple[int, int]]:
    """(begin, end) of a unit's code."""
    attributes = unit.get_top_DIE().attributes
    low = attributes["DW_AT_low_pc"].value if "DW_AT_low_pc" in attributes else 0
    if "DW_AT_ranges" in attributes:
        base = low
        for entry in dwarf.range_lists().get_range_list_at_offset(attributes["DW_AT_ranges"].value, unit):
            if not hasattr(entry, "begin_offset"):
                base = entry.base_address
                continue
            shift = 0 if getattr(entry, "is_absolute", False) else base
            yield shift + entry.begin_offset, shift + entry.end_offset
    elif "DW_AT_high_pc" in attributes:
        high = attributes["DW_AT_high_pc"]
        yield low, high.value if high.form == "DW_FORM_addr" else low + high.value


class _Stream(io.RawIOBase):
    """What pyelftools reads from: a position over ``read``; reading at the end gives nothing, as files do."""

    def __init__(self, read: Read, size: int) -> None:
        super().__init__()
        self._bytes_at, self._size, self._position = read, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise OSError(errno.EINVAL, "position before the begin")
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        count = max(0, min(len(buffer), self._size - self._position, _MAX_PIECE))
        buffer[:count] = self._bytes_at(self._position, count) if count else b""
        self._position += count
        return count
