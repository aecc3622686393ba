"""The load objects of a recording: each file opened once, however many processes map it.

A file is known by device, inode and path as the kernel gave them with the mapping. It is opened as soon as the mapping
is seen, since programs delete their files (a build's temporary programs, upgraded libraries): by its path, and where
that leads to another file by now, through the process that still maps it.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, replace

from collector import elf
from collector.errors import ElfError
from collector.events import Mapped
from collector.linux import proc, tasks
from collector.unwind.table import Tables

VDSO = b"[vdso]"
NO_OBJECT = -1
_TOO_LONG = b"//toolong"  # all that the kernel's records say of files with paths of 4,088 bytes and more


@dataclass(frozen=True)
class Known:
    """A load object and its number in the unwinder's tables (NO_OBJECT: not readable as ELF, or no file)."""

    number: int
    object: elf.LoadObject | None


class Objects:
    """Finds the load object of a mapping; ``tables`` gets every object that is met."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.unreadable: dict[bytes, str] = {}  # path: why
        self.symbols: dict[int, elf.Symbols] = {}  # of those that have been asked for
        self.by_number: dict[int, elf.LoadObject] = {}
        self._known: dict[tuple[int, int, bytes], Known] = {}

    def place(self, mapped: Mapped) -> tuple[Known, int]:
        """The object behind a mapping and its bias: pc_object = pc_runtime - bias."""
        known = self._find(mapped)
        if known.object is None:
            return known, 0
        vaddr = known.object.vaddr_of(mapped.file_offset)
        if vaddr is None:
            return Known(NO_OBJECT, None), 0
        return known, mapped.start - vaddr

    def _find(self, mapped: Mapped) -> Known:
        if mapped.path != VDSO and not is_file(mapped.path):
            return Known(NO_OBJECT, None)
        # A 32-bit process has a vDSO of its own kind, of another size.
        key = (mapped.device, mapped.inode or mapped.size, mapped.path)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._open(mapped)
        return known

    def _open(self, mapped: Mapped) -> Known:
        try:
            opened = _vdso(mapped) if mapped.path == VDSO else _file(mapped)
            number = self.tables.add_object(opened)
            self.by_number[number] = opened
            return Known(number, opened)
        except (ElfError, OSError) as err:
            self.unreadable[mapped.path] = str(err)
            return Known(NO_OBJECT, None)


def named(mapped: Mapped) -> Mapped:
    """With its file, where the path is too long for the kernel's record: /proc has it as long as the process lives."""
    if mapped.path == _TOO_LONG:
        with suppress(OSError):
            for found in tasks.executables(mapped.pid, mapped.pid):
                if found.start <= mapped.start < found.end:
                    return replace(mapped, path=found.path, device=found.device, inode=found.inode)
    return mapped


def is_file(path: bytes) -> bool:
    """Whether a mapping's path names a file (``//anon`` and ``[stack]`` do not)."""
    return path.startswith(b"/") and not path.startswith(b"//")


def _vdso(mapped: Mapped) -> elf.LoadObject:
    """The vDSO's image: the same in every process of a kind, so ours serves when the process is gone."""
    for pid in (mapped.pid, os.getpid()):
        try:
            for start, end in proc.vdso_ranges(pid):
                if end - start == mapped.size:
                    return elf.object_of_bytes(proc.read_memory(pid, start, end - start), "[vdso]")
        except OSError:
            continue
    raise ElfError("[vdso]: the process is gone")


def _file(mapped: Mapped) -> elf.LoadObject:
    path = os.fsdecode(mapped.path.removesuffix(b" (deleted)"))
    in_process = f"/proc/{mapped.pid}/map_files/{mapped.start:x}-{mapped.start + mapped.size:x}"
    for candidate in (path, f"/proc/{mapped.pid}/root{path}", in_process):
        try:
            if not mapped.inode or os.stat(candidate).st_ino == mapped.inode:
                return elf.open_object(candidate)
        except OSError:
            continue
    return elf.open_object(path)
