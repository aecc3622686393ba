"""The load objects of a recording: each file opened once, however many processes map it.

A file is known by device, inode and path as the kernel gave them with the mapping. It is opened as soon as the mapping
is seen, since programs delete their files (a build's temporary programs, upgraded libraries), and stays open: what is
archived in the end is what was mapped. The path is the target's, who may live in a container or below a chroot, and by
now it may lead to another file; so whatever a path leads to has to prove that it is the one:

    by its path below the root of the process, of another target, or ours    device and inode, or the very same code
    through the mapping itself (privileged)                                  no proof needed

A file that is written anew in its place (``cp new prog``) keeps its inode: where size or time of the last change differ
when it is mapped again, and the build id as well if it has one, it is another load object.
"""

from __future__ import annotations

import errno
import os
import time
from collections import defaultdict
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import NamedTuple

from collector import elf
from collector.errors import ElfError, NoDescriptors, reason
from collector.events import Mapped
from collector.experiment.identity import UNKNOWN, Identity, identity_of
from collector.linux import proc, tasks, vdso
from collector.processes.space import Mapping
from collector.unwind.table import Tables
from collector.unwind.trampoline import N_BYTES, add_trampolines, is_trampolines

VDSO = b"[vdso]"
NO_OBJECT = -1
_VDSO_32 = -32  # in place of an inode
_CODE_BYTES = 4096
_DELETED = b" (deleted)"
_TOO_LONG = b"//toolong"  # all that the kernel's records say of files with paths of 4,088 bytes and more


class Known(NamedTuple):
    """A load object and its number in the unwinder's tables (NO_OBJECT: not readable as ELF, or no file)."""

    number: int
    object: elf.LoadObject | None


class Objects:
    """Finds the load object of a mapping; ``tables`` gets every object that is met."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.unreadable: dict[bytes, str] = {}  # path: why
        self.by_number: dict[int, elf.LoadObject] = {}
        self.by_name: dict[bytes, elf.LoadObject] = {}
        self.doubles: set[bytes] = set()  # names that several files had
        self.rewritten: set[bytes] = set()  # those of files that were written anew in their place
        self.identities: defaultdict[bytes, set[Identity]] = defaultdict(set)  # which files names stood for
        self._roots: list[str] = []  # of targets that do not see what we see; as long as we live
        self._known: dict[tuple[int, int, bytes], Known] = {}
        self._states: dict[int, tuple[int, int]] = {}  # of files, by number
        self._of_size: dict[int, Known] = {}  # trampolines
        self._identities: dict[int, Identity] = {}
        self._functions: dict[int, list[tuple[int, int, bytes]]] = {}
        self._function_at: dict[tuple[int, int], bytes] = {}

    def remember_root(self, pid: int) -> None:
        """Keeps the root directory of a process that lives in another one than we: its descendants may be gone when we
        hear of their mappings."""
        with suppress(OSError):
            if not _shares_our_root(pid):
                fd = os.open(f"/proc/{pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
                self._roots.append(f"/proc/self/fd/{fd}")

    @property
    def roots(self) -> list[str]:
        """The root directories of processes that do not have ours, to be put before their paths."""
        return list(self._roots)

    @property
    def root(self) -> str:
        """The root directory of the first process that does not have ours, to be put before its paths; else empty."""
        return self._roots[0] if self._roots else ""

    def sources(self) -> dict[bytes, str]:
        """Where the files can be opened under the names that they were mapped by."""
        return {name: f"/proc/self/fd/{known.fd}" for name, known in self.by_name.items() if known.fd >= 0}

    def place(self, mapped: Mapped) -> tuple[Known, int]:
        """The object behind a mapping and its bias: pc_object = pc_runtime - bias."""
        known = self._find(mapped)
        if known.object is None:
            return known, 0
        if known in self._of_size.values():
            return known, mapped.start
        vaddr = known.object.vaddr_of(mapped.file_offset)
        if vaddr is None:
            return Known(NO_OBJECT, None), 0
        return known, mapped.start - vaddr

    def mapping(self, mapped: Mapped) -> Mapping:
        """A mapping as address spaces have it."""
        mapped = named(mapped)
        known, bias = self.place(mapped)
        return Mapping(mapped.start, mapped.start + mapped.size, mapped.file_offset, mapped.path, known.number, bias)

    def identity(self, number: int) -> Identity:
        """Which file it is that was mapped; read once, and from the open file, whatever has its name by now."""
        if number < 0:
            return UNKNOWN
        if number not in self._identities:
            self._identities[number] = identity_of(self.by_number[number])
        return self._identities[number]

    def functions(self, number: int) -> list[tuple[int, int, bytes]]:
        """The functions that symbols tell of an object: (vaddr, size, name), sorted, one per address."""
        known = self._functions.get(number)
        if known is None:
            symbols = self._symbols(number)
            by_start = {int(symbols.value[i]): (int(symbols.value[i]), int(symbols.size[i]), symbols.name(i))
                        for i in range(len(symbols)) if symbols.size[i]}
            known = self._functions[number] = [by_start[start] for start in sorted(by_start)]
        return known

    def function_at(self, number: int, vaddr: int) -> bytes:
        """The name of the function at an address of an object; empty where there is no symbol."""
        known = self._function_at.get((number, vaddr))
        if known is None:
            symbols = self._symbols(number)
            index = symbols.at(vaddr)
            known = self._function_at[number, vaddr] = b"" if index is None else symbols.name(index)
        return known

    def extent_of(self, number: int, prefix: bytes) -> tuple[int, int]:
        """From where to where functions lie whose names begin with ``prefix``; (0, 0): there are none."""
        return self._symbols(number).extent_of(prefix)

    def starts_of(self, number: int, names: Collection[bytes], low: int, high: int) -> list[int]:
        """Where functions of these names begin, among those from ``low`` to ``high``."""
        symbols = self._symbols(number)
        return [int(symbols.value[i]) for i in symbols.between(low, high) if symbols.name(i) in names]

    def _symbols(self, number: int) -> elf.Symbols:
        known = self.by_number[number]
        try:
            return known.symbols()
        except ElfError as err:
            self.unreadable[os.fsencode(known.name)] = f"without the names of its functions: {err}"
            return elf.Symbols.none()

    def _find(self, mapped: Mapped) -> Known:
        if mapped.path != VDSO and not is_file(mapped.path):
            return self._trampolines(mapped)
        kind = _VDSO_32 if mapped.path == VDSO and vdso.is_32_bit(mapped.start) else mapped.inode
        key = (mapped.device, kind, mapped.path)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._open(mapped)
        elif self._is_rewritten(known):
            self.rewritten.add(mapped.path)
            known = self._open(mapped)
            if known.object is not None:  # else it may have been looked at amid the writing
                self._known[key] = known
        return known

    def _is_rewritten(self, known: Known) -> bool:
        """Whether there is another load object in the file by now; it may have been touched only."""
        if known.object is None or known.object.fd < 0:
            return False
        try:
            if _state(known.object.fd) == self._states[known.number]:
                return False
        except OSError:  # a server has another file in its place, or is gone
            return True
        try:
            again = os.dup(known.object.fd)
        except OSError:  # no descriptors: nobody can tell
            return False
        with suppress(ElfError, OSError), elf.object_of_fd(again, known.object.name) as now:
            if identity_of(now) == self._identities[known.number]:
                self._states[known.number] = _state(now.fd)
                return False
        return True

    def _trampolines(self, mapped: Mapped) -> Known:
        """What stands for memory without a file: nothing, unless all its code is known."""
        with suppress(OSError):
            if is_trampolines(proc.read_memory(mapped.pid, mapped.start, N_BYTES)):
                known = self._of_size.get(mapped.size)
                if known is None:
                    number, made = add_trampolines(self.tables, mapped.size)
                    known = self._of_size[mapped.size] = Known(number, made)
                    self.by_number[number] = made
                return known
        return Known(NO_OBJECT, None)

    def _open(self, mapped: Mapped) -> Known:
        try:
            opened = _vdso(mapped) if mapped.path == VDSO else _file(mapped, self._roots)
            number = self.tables.add_object(opened)
            self.by_number[number] = opened
            if mapped.path != VDSO:
                self._note_file(mapped.path, number, opened)
            return Known(number, opened)
        except (ElfError, NoDescriptors, OSError) as err:
            self.unreadable[mapped.path] = f"not readable as a load object: {err}"
            return Known(NO_OBJECT, None)

    def _note_file(self, path: bytes, number: int, opened: elf.LoadObject) -> None:
        first = self.by_name.setdefault(path, opened)
        if first is not opened and not _are_one_file(first.fd, opened.fd):
            self.doubles.add(path)
        self._states[number] = _state(opened.fd)
        self.identities[path].add(self.identity(number))  # as it is now


def named(mapped: Mapped) -> Mapped:
    """With its file, where the path is too long for the kernel's record: /proc has it as long as the process lives.

    And without the kernel's remark that the file has been deleted, which is no part of its name.
    """
    if mapped.path == _TOO_LONG:
        with suppress(OSError):
            for found in tasks.executables(mapped.pid, mapped.pid):
                if found.start <= mapped.start < found.end:
                    mapped = mapped._replace(path=found.path, device=found.device, inode=found.inode)
                    break
    return mapped._replace(path=mapped.path[:-len(_DELETED)]) if mapped.path.endswith(_DELETED) else mapped


def is_file(path: bytes) -> bool:
    """Whether a mapping's path names a file (``//anon`` and ``[stack]`` do not)."""
    return path.startswith(b"/") and not path.startswith(b"//")


def is_made(path: bytes) -> bool:
    """Whether memory of that name holds what a program has put there: that of no file, or of a file in memory."""
    return (not is_file(path) and not path.startswith(b"[v")) or path.startswith((b"/memfd:", b"/dev/zero", b"/SYSV"))


def _state(fd: int) -> tuple[int, int]:
    """What shows that a file has been written to: its size and the time of its last change."""
    status = os.fstat(fd)
    return status.st_size, status.st_mtime_ns


def _are_one_file(fd: int, other: int) -> bool:
    """Whether two descriptors lead to the same file; not if one of them cannot be asked any more."""
    try:
        return os.path.sameopenfile(fd, other)
    except OSError:
        return False


def _vdso(mapped: Mapped) -> elf.LoadObject:
    return elf.object_of_bytes(vdso.image(mapped.pid, mapped.start, mapped.size), "[vdso]")


def _shares_our_root(pid: int) -> bool:
    """Whether a path leads a process where it leads us. Raises OSError."""
    same_mounts = os.stat(f"/proc/{pid}/ns/mnt").st_ino == os.stat("/proc/self/ns/mnt").st_ino
    return same_mounts and os.path.samestat(os.stat(f"/proc/{pid}/root"), os.stat("/proc/self/root"))


def _file(mapped: Mapped, roots: Sequence[str]) -> elf.LoadObject:
    """The file behind a mapping. Raises ElfError, NoDescriptors, OSError."""
    path = os.fsdecode(mapped.path)
    opened = []
    try:
        for candidate in (*(root + path for root in (f"/proc/{mapped.pid}/root", "", *roots)),
                          f"/proc/{mapped.pid}/exe"):  # the program, even if it has been deleted
            try:
                opened.append(os.open(candidate, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY))
                if _is_mapped_file(opened[-1], mapped):
                    return elf.object_of_fd(opened.pop(), path)
            except OSError as err:
                if err.errno in (errno.EMFILE, errno.ENFILE):
                    raise NoDescriptors(reason(err)) from err
        with suppress(ElfError):
            return elf.open_object(f"/proc/{mapped.pid}/map_files/{mapped.start:x}-{mapped.start + mapped.size:x}")
        for fd in opened:
            if _has_mapped_code(fd, mapped) or (not roots and _may_be_it(fd, mapped)):
                opened.remove(fd)
                return elf.object_of_fd(fd, path)
    finally:
        for fd in opened:
            os.close(fd)
    raise ElfError("the file that was mapped is not to be found under this name (any more)")


def _is_mapped_file(fd: int, mapped: Mapped) -> bool:
    """Whether an open file has the device and inode that the kernel told with the mapping."""
    status = os.fstat(fd)
    if status.st_ino == mapped.inode and _device(status.st_dev) == mapped.device:
        return True
    # What stat says differs on some file systems (btrfs, overlayfs) from what mappings say: ours say the same.
    return (mapped.device, mapped.inode) == tasks.identity_when_mapped(fd)


def _device(number: int) -> int:
    return os.major(number) << 20 | os.minor(number)


def _has_mapped_code(fd: int, mapped: Mapped) -> bool:
    """Whether what the process has in memory stands in the file, where both can be read."""
    try:
        there = proc.read_memory(mapped.pid, mapped.start, min(mapped.size, _CODE_BYTES))
        here = os.pread(fd, len(there), mapped.file_offset)
    except OSError:
        return False
    # A debugger may have changed a byte here and there.
    return len(here) == len(there) and sum(a != b for a, b in zip(here, there, strict=True)) <= len(here) // 100


def _may_be_it(fd: int, mapped: Mapped) -> bool:
    """Whether the process is gone, and the file has not been touched since it was mapped.

    Then nothing speaks against it but numbers, which the kernel's records have wrong for overlayfs (Linux 6.7 to 6.17).
    """
    mapped_unix_ns = time.time_ns() - time.monotonic_ns() + mapped.time_ns
    return not os.path.exists(f"/proc/{mapped.pid}/exe") and os.fstat(fd).st_ctime_ns < mapped_unix_ns
