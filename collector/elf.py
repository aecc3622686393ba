"""ELF load objects: what a recorder and a reader need of them, read on demand.

A load object is opened while the target runs, so opening must cost the same for 30 KB and for 30 MB: the ELF header and
the program headers are read at once (about 20 us), the section headers when a section is asked for by name, symbols
and call frame information only when they are wanted, and never more of them than that.

Bytes come through ``pread`` and not through a mapping: whoever owns a shared library may truncate it at any instant,
and a mapping would answer with SIGBUS where ``pread`` answers with a short read, which is an ``ElfError`` here. The
sizes in a file are its own claims; none is believed beyond the end of the file.

Addresses have three spaces: ``file_offset``; ``vaddr``, the address that the link editor gave (``pc_object``
elsewhere); and the run-time address, which this module does not know.
"""

from __future__ import annotations

import errno
import operator
import os
import re
import stat
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import compress
from typing import TYPE_CHECKING, Literal, NamedTuple

from collector.errors import ElfError, NoDescriptors, reason

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from collector.pclntab import FunctionTable

EM_386, EM_X86_64, EM_AARCH64 = 3, 62, 183
ET_EXEC, ET_DYN = 2, 3
PF_X, PF_W, PF_R = 1, 2, 4
PT_LOAD, PT_DYNAMIC, PT_INTERP, PT_NOTE, PT_GNU_EH_FRAME = 1, 2, 3, 4, 0x6474E550
SHT_NOBITS = 8

# The largest page of a machine: a mapping of a segment begins at a page.
_PAGE = {EM_AARCH64: 65536}
# The kernel runs nothing with more than 64 KiB of program headers (fs/binfmt_elf.c, load_elf_phdrs).
_MAX_PROGRAM_HEADERS = 65536 // 32
_MAX_SECTIONS = 16384
_MAX_NOTES = 1 << 16
_MAX_UNPACKED, _MAX_UNPACKING = 1 << 28, 1 << 28
# Bytes of a section, unpacked. A file may be of any size and have none of it on the disk; what is read is in memory.
_MAX_READ = 1 << 30
_MAX_SUMMED = 4 << 30  # bytes of a debug file that has nothing but a checksum to be known by
_MAX_NAME_BYTES = 256  # of a section
_MAX_PLACES = 16  # of a name among strings, whose ends may be those of others
_SHF_COMPRESSED = 0x800
_ELFCOMPRESS_ZSTD = 2
_STT_FUNC, _STT_GNU_IFUNC = 2, 10
_GO_FUNCTIONS = ".gopclntab", ".data.rel.ro.gopclntab"
_GO_TEXT_AT = 22 * 8  # in runtime.moduledata (runtime/symtab.go): the field text
_GO_HEADER_BYTES = 8
_GO_HEADER = b"[\xf0\xf1\xfa\xfb]\xff\xff\xff\x00\x00\x01\x08"  # a pattern
# The headers behind the 16 bytes of identification, by word size, without their byte order. Fields of a program header
# stand in another order in 32-bit files: type, flags, offset, vaddr, file size, memory size.
_IDENTIFICATION_BYTES = 16
_ELF_HEADER = {8: "HHIQQQIHHHHHH", 4: "HHIIIIIHHHHHH"}
_PROGRAM_HEADER = {8: "IIQQQQQQ", 4: "IIIIIIII"}
_PROGRAM_HEADER_FIELDS = {8: (0, 1, 2, 3, 5, 6), 4: (0, 6, 1, 2, 4, 5)}
_SECTION_HEADER = {8: "IIQQQQIIQQ", 4: "IIIIIIIIII"}
_MAX_ENTRY_BYTES = 4096
_ByteOrder = Literal["little", "big"]
_KINDS: dict[bytes, tuple[int, _ByteOrder]] = {  # class and data: word size in bytes, byte order
    b"\1\1": (4, "little"), b"\1\2": (4, "big"), b"\2\1": (8, "little"), b"\2\2": (8, "big")}
_SEE_SECTION_0 = 0xFFFF  # where a count or an index does not fit into two bytes; a count of sections is 0 then
_SYMBOL_64 = [("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8"), ("size", "<u8")]
_SYMBOL_32 = [("name", "<u4"), ("value", "<u4"), ("size", "<u4"), ("info", "u1"), ("other", "u1"),
              ("section", "<u2")]

Read = Callable[[int, int], bytes]


class Segment(NamedTuple):
    """One program header; ``type`` is PT_LOAD and the like."""

    type: int
    flags: int
    file_offset: int
    vaddr: int
    file_size: int
    memory_size: int

    @property
    def is_executable(self) -> bool:
        """Whether the segment is mapped with the right to execute."""
        return bool(self.flags & PF_X)


class Section(NamedTuple):
    """One section header, and the way to its bytes."""

    name: str
    type: int
    flags: int
    vaddr: int
    file_offset: int
    size: int
    link: int
    entry_size: int


class _Header(NamedTuple):
    """The ELF header."""

    type: int
    machine: int
    version: int
    entry: int
    program_headers_at: int
    section_headers_at: int
    flags: int
    size: int
    program_header_bytes: int
    n_program_headers: int
    section_header_bytes: int
    n_section_headers: int
    names_index: int


class DebugLink(NamedTuple):
    """The base name of a separate debug file, and the checksum of all its bytes."""

    name: bytes
    checksum: int


class Extent(NamedTuple):
    """A run of ``size`` bytes at ``vaddr`` that can be read piecewise: ``read(offset, n)``, offset from its begin."""

    vaddr: int
    size: int
    read: Read


@dataclass(frozen=True, eq=False, repr=False)
class Symbols:
    """Function symbols sorted by value. Parallel arrays: value u8, size u8, name_offset i8 into ``strings``.

    ``is_indirect`` marks STT_GNU_IFUNC: the code at ``value`` is the resolver's, not the named function's.
    """

    value: npt.NDArray[np.uint64]
    size: npt.NDArray[np.uint64]
    name_offset: npt.NDArray[np.int64]
    strings: bytes
    is_indirect: npt.NDArray[np.bool_]

    @classmethod
    def none(cls) -> Symbols:
        """Of a file that has none."""
        import numpy as np

        nowhere = np.zeros(0, np.uint64)
        return cls(nowhere, nowhere, np.zeros(0, np.int64), b"", np.zeros(0, np.bool_))

    def __len__(self) -> int:
        return len(self.value)

    def only(self, which: npt.NDArray[np.bool_]) -> Symbols:
        """Some of them (n)."""
        return Symbols(self.value[which], self.size[which], self.name_offset[which], self.strings,
                       self.is_indirect[which])

    def with_those_of(self, other: Symbols) -> Symbols:
        """Both, sorted."""
        import numpy as np

        both = (np.concatenate([mine, theirs]) for mine, theirs in (
            (self.value, other.value), (self.size, other.size),
            (self.name_offset, other.name_offset + len(self.strings)), (self.is_indirect, other.is_indirect)))
        value, size, name_offset, is_indirect = both
        order = np.lexsort((size, value))
        return Symbols(value[order], size[order], name_offset[order], self.strings + other.strings, is_indirect[order])

    def name(self, index: int) -> bytes:
        """The name of one symbol as it stands in the file; empty where the file's offset leads nowhere."""
        start = int(self.name_offset[index])
        end = self.strings.find(b"\0", start)
        return self.strings[start:end] if end >= 0 else b""

    def extent_of(self, prefix: bytes) -> tuple[int, int]:
        """From where to where symbols lie whose names begin with ``prefix``; (0, 0): there are none."""
        import numpy as np

        offsets = [found.start() + 1 for found in re.finditer(re.escape(b"\0" + prefix), self.strings)]
        mine = np.flatnonzero(np.isin(self.name_offset, offsets))
        if not len(mine):
            return 0, 0
        return int(self.value[mine[0]]), int((self.value[mine] + self.size[mine]).max())

    def at(self, vaddr: int) -> int | None:
        """Index of the last symbol that starts at or below ``vaddr`` and, if it has a size, covers it."""
        index = self._behind(vaddr, "right") - 1
        if index < 0:
            return None
        size = int(self.size[index])
        return index if not size or vaddr - int(self.value[index]) < size else None

    def between(self, low: int, high: int) -> range:
        """Indices of those that start at ``low`` or above, and below ``high``."""
        return range(self._behind(low, "left"), self._behind(high, "left"))

    def _behind(self, vaddr: int, side: Literal["left", "right"]) -> int:
        """How many start below ``vaddr``, or at it. (For a plain int numpy would make all of them doubles.)"""
        return int(self.value.searchsorted(self.value.dtype.type(vaddr), side))


class LoadObject:
    """One ELF file or memory image. Make it with ``open_object``, ``object_of_fd`` or ``object_of_bytes``.

    Everything raises ElfError, and nothing else, on bytes that are not what they claim to be. ``close()`` gives the
    descriptor back; what was not read before cannot be read afterwards.
    """

    def __init__(self, name: str, size: int, read: Read, close: Callable[[], None] = lambda: None,
                 fd: int = -1) -> None:
        self.name = name
        self.size = size
        self.close = close
        self.fd = fd  # of the file, until it is closed; -1 for memory
        self._read = read
        self._section_order: list[Section] = []
        self._exported: dict[tuple[bytes, ...], dict[bytes, tuple[int, int]]] = {}
        identification = read(0, min(_IDENTIFICATION_BYTES, size))
        if identification[:4] != b"\x7fELF" or identification[4:6] not in _KINDS:
            raise ElfError(f"{name}: not an ELF file")
        self.word_size, self._byte_order = _KINDS[identification[4:6]]
        form = self._form(_ELF_HEADER)
        self._header = _Header(*form.unpack(read(_IDENTIFICATION_BYTES, form.size)))
        self.machine = self._header.machine
        self.type = self._header.type
        self.entry = self._header.entry
        self.segments = self._read_segments()

    # -- addresses

    @property
    def is_64(self) -> bool:
        """Whether a machine word has 64 bits, and not 32."""
        return self.word_size == 8

    @cached_property
    def loads(self) -> tuple[Segment, ...]:
        """The PT_LOAD program headers, in the file's order."""
        return tuple(s for s in self.segments if s.type == PT_LOAD)

    def vaddr_of(self, file_offset: int) -> int | None:
        """The object's address of the byte at ``file_offset`` of an executable mapping; None if there is none.

        A mapping starts at a page, its segment need not: offsets from the begin of the segment's page on belong to it.
        """
        for within_page in (0, _PAGE.get(self.machine, 4096) - 1):
            for load in self.loads:
                low = load.file_offset & ~within_page
                if load.is_executable and low <= file_offset < load.file_offset + load.file_size:
                    return load.vaddr + file_offset - load.file_offset
        return None

    def offset_of(self, vaddr: int) -> int | None:
        """The file offset of an address of the object; None where no segment has bytes in the file."""
        for load in self.loads:
            if load.vaddr <= vaddr < load.vaddr + load.file_size:
                return load.file_offset + vaddr - load.vaddr
        return None

    def read_at(self, vaddr: int, size: int) -> bytes:
        """Up to ``size`` bytes at an address of the object: fewer, or none, where its segment ends."""
        for load in self.loads:
            if load.vaddr <= vaddr < load.vaddr + load.file_size:
                skip = vaddr - load.vaddr
                return self._read(load.file_offset + skip, min(size, load.file_size - skip))
        return b""

    def extent_at(self, vaddr: int) -> Extent | None:
        """The bytes from ``vaddr`` to the end of its segment in the file, without reading them."""
        for load in self.loads:
            if load.vaddr <= vaddr < load.vaddr + load.file_size:
                skip = vaddr - load.vaddr
                return self._extent(vaddr, load.file_offset + skip, load.file_size - skip)
        return None

    # -- call frame information

    def eh_frame_hdr(self) -> Extent | None:
        """``.eh_frame_hdr``, found by its program header as the run-time unwinder does: no section header needed."""
        for segment in self.segments:
            if segment.type == PT_GNU_EH_FRAME and segment.file_size:
                return self._extent(segment.vaddr, segment.file_offset, segment.file_size)
        return self._plain_section(".eh_frame_hdr")

    def eh_frame(self) -> Extent | None:
        """``.eh_frame`` by its section header; for objects without a usable ``.eh_frame_hdr``."""
        return self._plain_section(".eh_frame")

    def debug_frame(self) -> Extent | None:
        """``.debug_frame``, decompressed if need be, of this very file (see ``debug_object`` for the other one)."""
        for name in (".debug_frame", ".zdebug_frame"):
            section = self.sections.get(name)
            if section is not None and section.type != SHT_NOBITS and section.size:
                return _extent_of_bytes(section.vaddr, self.section_bytes(name))
        return None

    def debug_object(self, root: str = "", near: str = "", folders: Iterable[str] = ()) -> LoadObject | None:
        """The separate debug file by build-id or by ``.gnu_debuglink``; None if there is none that fits.

        ``root`` is put before every path (a container's root). ``near``: the path at which the object was mapped, if
        this is a copy. ``folders`` are looked into as well. The file found is proved by build-id or checksum.
        NoDescriptors as ``open_object``.
        """
        for path, checksum in self._debug_paths(root, near or self.name, folders):
            with suppress(ElfError):
                found = open_object(path)
                if found.size and self.is_of(found, checksum) and found.has_debug_information:
                    return found
                found.close()
        return None

    @cached_property
    def debug_link(self) -> DebugLink | None:
        """What ``.gnu_debuglink`` says; None where there is none, or one that leads to another folder."""
        if ".gnu_debuglink" not in self.sections:
            return None
        link = self.section_bytes(".gnu_debuglink")
        name = link.split(b"\0")[0]
        if not name or b"/" in name or len(link) < 5:
            return None
        return DebugLink(name, int.from_bytes(link[-4:], self._byte_order))

    @property
    def has_debug_information(self) -> bool:
        """Whether it has more than a stripped file: a link may have the program's own name, and lead to itself."""
        return any(section.type != SHT_NOBITS and section.size and name.startswith((".symtab", ".debug_", ".zdebug_"))
                   for name, section in self.sections.items())

    def is_of(self, debug: LoadObject, checksum: int | None) -> bool:
        """Whether a debug file was made together with us: equal build-ids, or the link's checksum of all its bytes."""
        if self.build_id is not None and debug.build_id is not None:
            return self.build_id == debug.build_id
        if checksum is None or debug.size > _MAX_SUMMED:
            return False
        total = 0
        for at in range(0, debug.size, 1 << 20):
            total = zlib.crc32(debug._read(at, min(1 << 20, debug.size - at)), total)
        return total == checksum

    # -- sections and symbols

    @cached_property
    def sections(self) -> dict[str, Section]:
        """Section headers by name (the first of a name); costs about 2 us each, once."""
        return self._read_sections()

    def section_bytes(self, name: str) -> bytes:
        """The contents of a section, decompressed; ElfError if there is no such section or it has no bytes."""
        section = self.sections.get(name)
        if section is None or section.type == SHT_NOBITS:
            raise ElfError(f"{self.name}: no section {name}")
        data = self._read(section.file_offset, section.size)
        if section.flags & _SHF_COMPRESSED:
            return self._inflate(data, 24 if self.is_64 else 12, name)
        if name.startswith(".zdebug"):
            return self._inflate(data, 12, name)
        return data

    def refuse_zstd(self, prefix: str) -> None:
        """ElfError if a section whose name begins so is compressed with zstd."""
        for name, section in self.sections.items():
            if name.startswith(prefix) and section.flags & _SHF_COMPRESSED and section.size >= 4 and int.from_bytes(
                    self._read(section.file_offset, 4), self._byte_order) == _ELFCOMPRESS_ZSTD:
                raise self._is_zstd(name)

    def _is_zstd(self, name: str) -> ElfError:
        return ElfError(f"{self.name}: {name} is compressed with zstd, which is not unpacked here; "
                        "objcopy --decompress-debug-sections does it")

    @cached_property
    def build_id(self) -> bytes | None:
        """The NT_GNU_BUILD_ID note, from the program headers, else from ``.note.gnu.build-id``."""
        for segment in self.segments:
            if segment.type == PT_NOTE:
                data = self._read(segment.file_offset, min(segment.file_size, _MAX_NOTES))
                if (found := _build_id_of(data, self._byte_order)) is not None:
                    return found
        if ".note.gnu.build-id" not in self.sections:
            return None
        return _build_id_of(self.section_bytes(".note.gnu.build-id"), self._byte_order)

    @cached_property
    def interpreter(self) -> bytes | None:
        """The path of the dynamic linker that the file asks for."""
        for segment in self.segments:
            if segment.type == PT_INTERP:
                return self._read(segment.file_offset, min(segment.file_size, 4096)).split(b"\0")[0]
        return None

    @property
    def is_static(self) -> bool:
        """A program without a dynamic linker (also a position-independent one); a library is not static."""
        if self.type == ET_EXEC:
            return self.interpreter is None
        return self.type == ET_DYN and self.interpreter is None and self._is_pie()

    def symbols(self) -> Symbols:
        """Function symbols of ``.symtab``, else ``.dynsym`` and Go's functions; empty arrays if there are none. Read
        once."""
        return self._symbols

    def exported(self, names: tuple[bytes, ...]) -> dict[bytes, tuple[int, int]]:
        """Value and size of dynamic symbols of any kind, those of the names that are defined here. Read once."""
        if names not in self._exported:
            self._exported[names] = self._find_exported(frozenset(names))
        return self._exported[names]

    def _find_exported(self, names: frozenset[bytes]) -> dict[bytes, tuple[int, int]]:
        import numpy as np

        section = self.sections.get(".dynsym")
        if section is None or section.type == SHT_NOBITS or section.link >= len(self._section_order):
            return {}
        strings = self._section_order[section.link]
        texts = self._read(strings.file_offset, strings.size)
        places = {at: name for name in names for at in _places_of(name + b"\0", texts)}
        dtype = np.dtype(_SYMBOL_64 if self.is_64 else _SYMBOL_32).newbyteorder(self._byte_order)
        data = self.section_bytes(".dynsym")
        table = np.frombuffer(data, dtype, len(data) // dtype.itemsize)
        found = table[np.isin(table["name"], list(places)) & (table["section"] != 0)]
        return {places[int(row["name"])]: (int(row["value"]), int(row["size"])) for row in found}

    @cached_property
    def go_functions(self) -> FunctionTable | None:
        """The functions of a Go program, however stripped it is; None if it is none."""
        at, end = self._go_table() if self.is_64 else (0, 0)
        if at >= end:
            return None
        from collector.pclntab import FunctionTable

        return FunctionTable(lambda offset, size: self._read(at + offset, size), end - at, self._go_text())

    def _go_table(self) -> tuple[int, int]:
        """Where in the file that table lies, and where it ends at the latest; (0, 0) where there is none of a known
        version. Of position-independent programs with C in them the link editor has made it a part of a larger
        section."""
        section = next((self.sections[name] for name in _GO_FUNCTIONS if name in self.sections), None)
        if section is None and ".go.buildinfo" in self.sections:
            section = self.sections.get(".data.rel.ro")
        if section is None or section.type == SHT_NOBITS:
            return 0, 0
        size = _GO_HEADER_BYTES if section.name in _GO_FUNCTIONS else section.size
        found = re.search(_GO_HEADER, self._read(section.file_offset, min(size, section.size)))
        return (section.file_offset + found.start(), section.file_offset + section.size) if found else (0, 0)

    def _go_text(self) -> int:
        """Where Go's code begins, for tables that do not say so: since 1.26 the runtime's own description of the module
        does. Before it there may be C."""
        module, text = self.sections.get(".go.module"), self.sections.get(".text")
        if module is not None and module.type != SHT_NOBITS and module.size >= _GO_TEXT_AT + 8:
            found = int.from_bytes(self._read(module.file_offset + _GO_TEXT_AT, 8), self._byte_order)
            if any(load.is_executable and load.vaddr <= found < load.vaddr + load.memory_size for load in self.loads):
                return found
        return text.vaddr if text is not None else 0

    @property
    def is_stripped(self) -> bool:
        """Whether only the symbols for the dynamic linker are left, if any."""
        section = self.sections.get(".symtab")
        return section is None or section.type == SHT_NOBITS or not section.size

    def mini_debug_symbols(self) -> Symbols:
        """Function symbols of ``.gnu_debugdata``: those that are not in ``.dynsym``, as an ELF file in xz."""
        if ".gnu_debugdata" not in self.sections:
            return Symbols.none()
        import lzma

        unpacker = lzma.LZMADecompressor(memlimit=_MAX_UNPACKING)
        try:
            data = unpacker.decompress(self.section_bytes(".gnu_debugdata"), _MAX_UNPACKED)
        except (lzma.LZMAError, EOFError) as err:
            raise ElfError(f"{self.name}: damaged .gnu_debugdata: {err}") from err
        if not unpacker.eof:
            raise ElfError(f"{self.name}: .gnu_debugdata ends early, or has too much in it; the file is damaged")
        return object_of_bytes(data, f"{self.name}: .gnu_debugdata").symbols()

    # -- life

    def __enter__(self) -> LoadObject:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"LoadObject({self.name!r})"

    # -- internals

    def _read_segments(self) -> tuple[Segment, ...]:
        header, count = self._header, self._header.n_program_headers
        if count == _SEE_SECTION_0:
            count = self._section_rows(1)[0][7]
        rows = self._table("program headers", _PROGRAM_HEADER, header.program_headers_at, count,
                           header.program_header_bytes, _MAX_PROGRAM_HEADERS)
        fields = _PROGRAM_HEADER_FIELDS[self.word_size]
        return tuple(Segment(*[row[field] for field in fields]) for row in rows)

    def _read_sections(self) -> dict[str, Section]:
        header = self._header
        if not header.section_headers_at:
            return {}
        rows = self._section_rows(header.n_section_headers or self._section_rows(1)[0][5])
        if not rows:
            return {}
        index = rows[0][6] if header.names_index == _SEE_SECTION_0 else header.names_index
        if index >= len(rows):
            raise ElfError(f"{self.name}: no section has the names of the others; the file is damaged")
        names = self._read(rows[index][4], rows[index][5]) if index else b""
        found: dict[str, Section] = {}
        for start, kind, flags, vaddr, file_offset, size, link, _, _, entry_size in rows:
            end = names.find(b"\0", start, start + _MAX_NAME_BYTES)
            name = names[start:max(end, start)].decode("utf-8", "backslashreplace")
            self._section_order.append(Section(name, kind, flags, vaddr, file_offset, size, link, entry_size))
            found.setdefault(name, self._section_order[-1])
        return found

    def _section_rows(self, count: int) -> list[tuple[int, ...]]:
        """The first section headers; number 0 says what does not fit into the ELF header."""
        return self._table("section headers", _SECTION_HEADER, self._header.section_headers_at, count,
                           self._header.section_header_bytes, _MAX_SECTIONS)

    def _table(self, what: str, forms: dict[int, str], at: int, count: int, entry_bytes: int,
               limit: int) -> list[tuple[int, ...]]:
        """The entries of a table of headers, which may be longer than we know them."""
        form = self._form(forms)
        if count > limit:
            raise ElfError(f"{self.name}: {count} {what}; the file is damaged")
        if count and not form.size <= entry_bytes <= _MAX_ENTRY_BYTES:
            raise ElfError(f"{self.name}: {what} of {entry_bytes} bytes; the file is damaged")
        data = self._read(at, count * entry_bytes)
        return [form.unpack_from(data, row * entry_bytes) for row in range(count)]

    def _form(self, forms: dict[int, str]) -> struct.Struct:
        """The one of a header's forms, by word size, that this file has."""
        return struct.Struct(("<" if self._byte_order == "little" else ">") + forms[self.word_size])

    def _extent(self, vaddr: int, file_offset: int, size: int) -> Extent:
        size = max(0, min(size, self.size - file_offset))
        read = self._read

        def read_within(offset: int, count: int) -> bytes:
            return read(file_offset + offset, max(0, min(count, size - offset)))

        return Extent(vaddr, size, read_within)

    def _plain_section(self, name: str) -> Extent | None:
        section = self.sections.get(name)
        if section is None or section.type == SHT_NOBITS or not section.size:
            return None
        return self._extent(section.vaddr, section.file_offset, section.size)

    def _inflate(self, data: bytes, header_size: int, name: str) -> bytes:
        """Undo SHF_COMPRESSED (type, [reserved,] size, align) or the older ``ZLIB`` with a big-endian size."""
        order = self._byte_order
        if name.startswith(".zdebug"):
            size, kind = int.from_bytes(data[4:12], "big"), 1 if data[:4] == b"ZLIB" else 0
        elif header_size == 24:
            size, kind = int.from_bytes(data[8:16], order), int.from_bytes(data[:4], order)
        else:
            size, kind = int.from_bytes(data[4:8], order), int.from_bytes(data[:4], order)
        if kind == _ELFCOMPRESS_ZSTD:
            raise self._is_zstd(name)
        if kind != 1:
            raise ElfError(f"{self.name}: {name} is compressed in a way that is not known here (type {kind})")
        # zlib cannot shrink anything to less than about a thousandth.
        if size > min(1100 * (len(data) + 1), _MAX_READ):
            raise ElfError(f"{self.name}: {name} claims {size} bytes; the file is damaged")
        try:
            plain = zlib.decompressobj().decompress(data[header_size:], size or 1)
        except zlib.error as err:
            raise ElfError(f"{self.name}: damaged {name}: {err}") from err
        if len(plain) != size:
            raise ElfError(f"{self.name}: {name} ends early; the file is damaged")
        return plain

    @cached_property
    def _symbols(self) -> Symbols:
        """No loop over symbols."""
        for name in (".symtab", ".dynsym"):
            section = self.sections.get(name)
            if section is not None and section.type != SHT_NOBITS and section.size:
                found = self._symbols_of(section)
                return found if name == ".symtab" else found.with_those_of(self._go_symbols())
        return self._go_symbols()

    def _go_symbols(self) -> Symbols:
        """Those of Go's own table, each as long as until the next."""
        import numpy as np

        table = self.go_functions
        if table is None:
            return Symbols.none()
        names, strings = table.names()
        ends = np.append(table.entries[1:], np.uint64(table.end))
        return Symbols(table.entries, ends - table.entries, names, strings, np.zeros(len(names), np.bool_))

    def _symbols_of(self, section: Section) -> Symbols:
        import numpy as np

        if section.link >= len(self._section_order):
            raise ElfError(f"{self.name}: {section.name} has no strings; the file is damaged")
        strings = self._section_order[section.link]
        names = self._read(strings.file_offset, strings.size)
        dtype = np.dtype(_SYMBOL_64 if self.is_64 else _SYMBOL_32).newbyteorder(self._byte_order)
        data = self.section_bytes(section.name)
        table = np.frombuffer(data, dtype, len(data) // dtype.itemsize)
        kind = table["info"] & 15
        table = table[((kind == _STT_FUNC) | (kind == _STT_GNU_IFUNC)) & (table["section"] != 0)]
        table = table[np.lexsort((table["size"], table["value"]))]
        return Symbols(table["value"].astype(np.uint64), table["size"].astype(np.uint64),
                       table["name"].astype(np.int64), names, table["info"] & 15 == _STT_GNU_IFUNC)

    def _is_pie(self) -> bool:
        """DF_1_PIE in the dynamic section; without one, an entry point is the only sign."""
        width, order = self.word_size, self._byte_order
        for segment in self.segments:
            if segment.type == PT_DYNAMIC:
                data = self._read(segment.file_offset, min(segment.file_size, _MAX_NOTES))
                for at in range(0, len(data) - 2 * width + 1, 2 * width):
                    if int.from_bytes(data[at:at + width], order) == 0x6FFFFFFB:
                        return bool(int.from_bytes(data[at + width:at + 2 * width], order) & 0x08000000)
                return False
        return self.entry != 0

    def _debug_paths(self, root: str, near: str, folders: Iterable[str]) -> Iterable[tuple[str, int | None]]:
        base = f"{root}/usr/lib/debug"
        if self.build_id is not None and len(self.build_id) > 1:
            text = self.build_id.hex()
            yield from ((f"{folder}/.build-id/{text[:2]}/{text[2:]}.debug", None) for folder in (base, *folders))
            if not root:
                yield f"{debuginfod_cache()}/{text}/debuginfo", None
        if self.debug_link is None:
            return
        name, checksum = os.fsdecode(self.debug_link.name), self.debug_link.checksum
        folder = os.path.dirname(near)
        inside = folder[len(root):] if root and folder.startswith(root) else folder
        for place in (folder, f"{folder}/.debug", f"{base}{inside}", *folders):
            yield f"{place}/{name}", checksum


def debuginfod_cache() -> str:
    """Where clients of debuginfod keep what they fetched, by build id. Nothing is fetched here."""
    home = os.path.expanduser("~")
    return (os.environ.get("DEBUGINFOD_CACHE_PATH")
            or f"{os.environ.get('XDG_CACHE_HOME') or f'{home}/.cache'}/debuginfod_client")


def open_object(path: str) -> LoadObject:
    """The load object in the file at ``path``. ElfError if there is none, NoDescriptors if nobody can tell.

    The path may be anybody's: only regular files are read, and opening a FIFO or a device does not wait.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except (OSError, ValueError) as err:
        if isinstance(err, OSError) and err.errno in (errno.EMFILE, errno.ENFILE):
            raise NoDescriptors(reason(err)) from err
        raise ElfError(f"{path}: cannot be opened: {getattr(err, 'strerror', None) or err}") from err
    return object_of_fd(fd, path)


def object_of_fd(fd: int, name: str) -> LoadObject:
    """The load object in an open file. The descriptor is ours from here on, also when ElfError is raised."""
    file = _File(fd, name)
    try:
        return LoadObject(name, file.size, file.read, file.close, fd)
    except ElfError:
        file.close()
        raise


def object_of_bytes(data: bytes, name: str) -> LoadObject:
    """The load object in memory, such as the vDSO's image."""
    def read(offset: int, size: int) -> bytes:
        if size < 0 or offset < 0 or offset + size > len(data):
            raise ElfError(f"{name}: wants {size} bytes at {offset:#x}, behind its end; it is damaged")
        return data[offset:offset + size]

    return LoadObject(name, len(data), read)


def packed_symbols(start: npt.NDArray[np.uint64], size: npt.NDArray[np.uint64], names: Sequence[bytes], vaddr: int,
                   text_size: int, machine: int) -> bytes:
    """An ELF file of function symbols alone, as that of a separate debug file: the text at ``vaddr``, where it would
    be in the file, too, has a size and no bytes. ``start``, ``size`` (n,) are of addresses. Its build id is a hash of
    all symbols.
    """
    import hashlib

    import numpy as np

    name_bytes = np.array([len(name) + 1 for name in names], np.int64)
    own = np.array([True, *map(operator.ne, names, names[1:])][:len(names)])  # the same name in a row stands there once
    table = np.zeros(len(names) + 1, np.dtype(_SYMBOL_64))
    table["name"][1:] = 1 + np.cumsum(np.where(own, name_bytes, 0)) - name_bytes
    table["info"][1:], table["section"][1:] = 1 << 4 | _STT_FUNC, 1  # global, in the first section
    table["value"][1:], table["size"][1:] = start, size
    symbols, strings = table.tobytes(), b"\0" + b"\0".join(compress(names, own)) + b"\0"
    build_id = hashlib.sha1(symbols + strings, usedforsecurity=False).digest()
    note = struct.pack("<III", 4, len(build_id), 3) + b"GNU\0" + build_id
    section_names = b"\0.text\0.note.gnu.build-id\0.symtab\0.strtab\0.shstrtab\0"
    # Name, type, flags, address, bytes, link, info, alignment, size of an entry. (.symtab's strings are section 4.)
    sections: list[tuple[bytes, int, int, int, bytes, int, int, int, int]] = [
        (b".note.gnu.build-id", 7, 2, 0, note, 0, 0, 4, 0), (b".symtab", 2, 0, 0, symbols, 4, 1, 8, table.itemsize),
        (b".strtab", 3, 0, 0, strings, 0, 0, 1, 0), (b".shstrtab", 3, 0, 0, section_names, 0, 0, 1, 0)]
    section, program = (struct.Struct("<" + form[8]) for form in (_SECTION_HEADER, _PROGRAM_HEADER))
    header_bytes = _IDENTIFICATION_BYTES + struct.calcsize("<" + _ELF_HEADER[8])
    at = header_bytes + 2 * program.size
    programs = (program.pack(PT_LOAD, PF_R | PF_X, vaddr, vaddr, vaddr, 0, text_size, 4096)
                + program.pack(PT_NOTE, PF_R, at, 0, 0, len(note), len(note), 4))
    headers = [bytes(section.size), section.pack(1, SHT_NOBITS, 6, vaddr, vaddr, text_size, 0, 0, 16, 0)]
    body = b""
    for name, kind, flags, address, content, link, info, alignment, entry in sections:
        body += bytes(-(at + len(body)) % 8) if alignment == 8 else b""
        headers.append(section.pack(section_names.index(b"\0" + name + b"\0") + 1, kind, flags, address,
                                    at + len(body), len(content), link, info, alignment, entry))
        body += content
    body += bytes(-(at + len(body)) % 8)
    header = b"\x7fELF\2\1\1".ljust(_IDENTIFICATION_BYTES, b"\0") + struct.pack(
        "<" + _ELF_HEADER[8], ET_DYN, machine, 1, 0, header_bytes, at + len(body), 0, header_bytes, program.size, 2,
        section.size, len(headers), len(headers) - 1)
    return header + programs + body + b"".join(headers)


def _places_of(text: bytes, texts: bytes) -> Iterator[int]:
    at = texts.find(text)
    for _ in range(_MAX_PLACES):
        if at < 0:
            return
        yield at
        at = texts.find(text, at + 1)


def _extent_of_bytes(vaddr: int, data: bytes) -> Extent:
    return Extent(vaddr, len(data), lambda offset, size: data[offset:offset + size])


class _File:
    """An open regular file. It lives as long as anything that can read from it, so no number is ever used twice."""

    def __init__(self, fd: int, name: str) -> None:
        self._fd, self._name = fd, name
        try:
            status = os.fstat(fd)
        except OSError as err:  # as of a network file that is gone
            with suppress(OSError):
                self.close()
            raise ElfError(f"{name}: cannot be read: {err.strerror}") from err
        if not stat.S_ISREG(status.st_mode):
            self.close()
            raise ElfError(f"{name}: not a regular file")
        self.size = status.st_size

    def read(self, offset: int, size: int) -> bytes:
        # Checked against the size first: a damaged header must not make us allocate what no file can fill.
        if size > _MAX_READ:
            raise ElfError(f"{self._name}: wants {size} bytes at once; the file is damaged")
        if size < 0 or offset < 0 or offset + size > self.size:
            raise ElfError(f"{self._name}: wants {size} bytes at {offset:#x}, behind its end; the file is damaged")
        try:
            data = os.pread(self._fd, size, offset)
            while len(data) < size and (more := os.pread(self._fd, size - len(data), offset + len(data))):
                data += more
        except OSError as err:
            raise ElfError(f"{self._name}: cannot be read: {err.strerror}") from err
        if len(data) < size:
            raise ElfError(f"{self._name}: became shorter while it was read")
        return data

    def close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def __del__(self) -> None:
        self.close()


def _build_id_of(notes: bytes, order: _ByteOrder) -> bytes | None:
    """The description of the note (name ``GNU``, type 3) in a run of notes, each padded to four bytes."""
    at = 0
    while at + 12 <= len(notes):
        name_size, size, kind = (int.from_bytes(notes[at + i:at + i + 4], order) for i in (0, 4, 8))
        name_at = at + 12
        body_at = name_at + (name_size + 3) // 4 * 4
        if kind == 3 and notes[name_at:name_at + name_size] == b"GNU\0" and body_at + size <= len(notes):
            return notes[body_at:body_at + size]
        at = body_at + (size + 3) // 4 * 4
    return None
