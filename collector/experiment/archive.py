"""Copies of load objects and sources in the founder's archives, so that an experiment can be read anywhere and later.

A copy has the original's base name and a code of its directory. It appears whole or not at all (a temporary name, then
rename) and is made once: whatever is there stays, unless forced. What cannot be copied, because it vanished, changed
since it was mapped, or may not be read, is reported and is no reason to stop; a full disk is.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from collector.clock import NS_PER_S
from collector.errors import ElfError, ExperimentError
from collector.experiment.identity import Identity, difference, identity_of, identity_of_fd
from collector.experiment.map import MODES_TEXT, Segment
from collector.experiment.names import OPEN_DIRECTORY, archive_name, shown

if TYPE_CHECKING:
    from collector.experiment.reader import Experiment

CHOICES = ("off", "on", "all", "ldobjects", "usedldobjects", "src", "usedsrc")
_USED = {"usedldobjects", "usedsrc"}
KNOWN_CHOICES = tuple(choice for choice in CHOICES if choice not in _USED)
_SOURCES = {"all", "src", "usedsrc"}

# Names of mappings that no file stands behind; of the devices' folder this one holds files.
_NO_FILES = (b"/memfd:", b"/dev/", b"/SYSV", b"/anon_hugepage", b"/[", b"/i915", b"/drm")
_FILES_IN_MEMORY = b"/dev/shm/"
_CHUNK = 1 << 30
_STEP = 1 << 20
# Ways of copying inside the kernel are refused between some file systems; then the next one is tried.
_TRY_OTHERWISE = {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM}
_NOTHING: Mapping[bytes, str] = MappingProxyType({})
_NO_IDENTITIES: Mapping[bytes, Set[Identity]] = MappingProxyType({})
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@dataclass(frozen=True)
class Copy:
    """One file that was copied, or would be."""

    source: bytes
    target: Path
    size: int


@dataclass
class Report:
    """What archiving did: ``copied`` (in a dry run: would copy), ``kept`` as it was there, ``problems`` in lines."""

    copied: list[Copy] = field(default_factory=list)
    kept: list[bytes] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


class _Changed(Exception):
    """The file is not the one that was mapped, or changed while it was copied."""


def archive(experiment: Experiment, choice: str = "on", force: bool = False, dry_run: bool = False,
            root: str = "", opened: Mapping[bytes, str] = _NOTHING) -> Report:
    """Copy what ``choice`` (one of CHOICES) names, of this experiment and all in it. Raises ExperimentError.

    ``root`` is put before every path (a container's root), but those load objects that ``opened`` has by name are read
    from where it says.
    """
    if choice not in CHOICES:
        raise ExperimentError(f"cannot archive {choice!r}; choose one of {', '.join(CHOICES)}")
    if choice == "off":
        return Report()
    objects = _load_objects(experiment, used_only=choice in _USED)
    mapped_unix_ns = {name: known.mapped_unix_ns for name, known in objects.items()}
    identities = {name: known.identities for name, known in objects.items()}
    return _archived(experiment.archives, mapped_unix_ns, choice, force, dry_run, root, opened, identities)


def archive_known(archives: Path, mapped_unix_ns: Mapping[bytes, int], choice: str, root: str = "",
                  opened: Mapping[bytes, str] = _NOTHING,
                  identities: Mapping[bytes, Set[Identity]] = _NO_IDENTITIES) -> Report:
    """The same for load objects that the caller knows, by name with the time when each was mapped last; of some also
    which files they are.

    Nothing is read of any experiment, so ``choice`` is not one that asks what was used. Raises ExperimentError.
    """
    if choice not in KNOWN_CHOICES:
        raise ExperimentError(f"cannot archive {choice!r} without reading; choose one of {', '.join(KNOWN_CHOICES)}")
    if choice == "off":
        return Report()
    objects = {name: time_ns for name, time_ns in mapped_unix_ns.items() if _is_file(name)}
    return _archived(archives, objects, choice, root=root, opened=opened, identities=identities)


def add_made(archives: Path, name: bytes, content: bytes) -> None:
    """Puts what stands for a load object without a file, such as the kernel, where its copy would be; whatever is there
    stays. Raises ExperimentError."""
    directory_fd = _open_directory(archives)
    copy = archive_name(name)
    try:
        if os.path.lexists(archives / os.fsdecode(copy)):
            return
        temporary = b"%d.made" % os.getpid()
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with open(os.open(temporary, flags, 0o600, dir_fd=directory_fd), "wb") as file:
                file.write(content)
            os.rename(temporary, copy, src_dir_fd=directory_fd, dst_dir_fd=directory_fd)
        except OSError as error:
            with suppress(OSError):
                os.unlink(temporary, dir_fd=directory_fd)
            raise ExperimentError(f"{shown(os.fsdecode(name))}: the names of its functions are not archived: "
                                  f"{error.strerror}") from error
    finally:
        os.close(directory_fd)


def _archived(directory: Path, objects: Mapping[bytes, int], choice: str, force: bool = False,
              dry_run: bool = False, root: str = "", opened: Mapping[bytes, str] = _NOTHING,
              identities: Mapping[bytes, Set[Identity]] = _NO_IDENTITIES) -> Report:
    report = Report()
    archiver = _Archiver(directory, report, force, dry_run, root, opened, identities)
    try:
        for name, mapped_unix_ns in sorted(objects.items()):
            archiver.add(name, mapped_unix_ns)
        if choice in _SOURCES:
            for source, mapped_unix_ns in sorted(archiver.sources(objects).items()):
                archiver.add(source, mapped_unix_ns)  # readers warn of sources that are newer, but not of copies
    finally:
        archiver.close()
    return report


@dataclass
class _Known:
    """When a load object was mapped last, and which files that were; several may have had one name."""

    mapped_unix_ns: int = 0
    identities: set[Identity] = field(default_factory=set)


def _load_objects(experiment: Experiment, used_only: bool) -> dict[bytes, _Known]:
    """What is known of each load object, by name, in this experiment and all in it."""
    found: dict[bytes, _Known] = {}
    for each in experiment.family:
        texts = [segment for segment in each.segments if segment.modes == MODES_TEXT and _is_file(segment.name)]
        unix_ns = each.log.start_unix * NS_PER_S - each.log.start_ns
        for segment in _used(each, texts) if used_only else texts:
            known = found.setdefault(segment.name, _Known())
            known.mapped_unix_ns = max(known.mapped_unix_ns, segment.start_ns + unix_ns)
            known.identities.add(segment.identity)
    return found


def _is_file(name: bytes) -> bool:
    return name.startswith(_FILES_IN_MEMORY) or (name.startswith(b"/") and not name.startswith(_NO_FILES))


def _used(experiment: Experiment, segments: Iterable[Segment]) -> Iterator[Segment]:
    pcs = np.unique(experiment.stacks.pcs)
    for segment in segments:
        if not segment.size:
            continue
        first = pcs.searchsorted(np.uint64(segment.vaddr))
        behind = pcs.searchsorted(np.uint64(segment.vaddr + segment.size - 1), side="right")  # it may end at 2**64
        if first < behind:
            yield segment


class _Archiver:
    def __init__(self, directory: Path, report: Report, force: bool, dry_run: bool, root: str,
                 opened: Mapping[bytes, str], identities: Mapping[bytes, Set[Identity]]) -> None:
        self._directory = directory
        self._report = report
        self._force = force
        self._dry_run = dry_run
        self._root = root
        self._opened = opened
        self._identities = identities
        self._fd = -1 if dry_run else _open_directory(self._directory)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def add(self, name: bytes, recorded_unix_ns: int) -> None:
        """Copy one file, which is to be as it was at a time, unless a copy is there; trouble is reported. Raises
        ExperimentError on a full disk.

        What is known not to be the file that was recorded is never copied; a copy of such a file is replaced.
        """
        copy = archive_name(name)
        target = self._directory / os.fsdecode(copy)
        identities = self._identities.get(name, set())
        if not self._force and os.path.lexists(target) and not _difference(os.fspath(target), identities, True):
            self._report.kept.append(name)
            return
        limit_ns = None if self._force else recorded_unix_ns + NS_PER_S
        if identities and all(identity.is_known for identity in identities):
            limit_ns = None  # the time says nothing that these do not say better, whatever clocks did meanwhile
        try:
            if why := _difference(self._path(name), identities):
                raise _Changed(f"it is not the file that was recorded ({why})")
            source, size = _open_source(self._path(name), limit_ns)
            try:
                if not self._dry_run:
                    _copy_whole(source, size, self._fd, copy)
            finally:
                os.close(source)
            self._report.copied.append(Copy(name, target, size))
        except _Changed as change:
            self._report.problems.append(f"{shown(os.fsdecode(name))}: not archived: {change}")
        except OSError as error:
            if error.errno in _FULL:
                raise ExperimentError(f"cannot archive into {shown(self._directory)}: {error.strerror}; "
                                      "free some space and archive again") from error
            self._report.problems.append(f"{shown(os.fsdecode(name))}: not archived: {error.strerror}")

    def sources(self, objects: Mapping[bytes, int]) -> dict[bytes, int]:
        """The source files that the line tables of the objects name and that exist, and when the last one of these was
        mapped: what is newer it was not made of."""
        from collector import dwarf, elf

        found: dict[bytes, int] = {}
        for name, mapped_unix_ns in objects.items():
            try:
                with elf.open_object(self._path(name)) as program:
                    debug = program.debug_object(self._root, self._root + os.fsdecode(name))
                    for path in dwarf.source_files(debug or program):
                        found[path] = max(mapped_unix_ns, found.get(path, 0))
                    if debug is not None:
                        debug.close()
            except ElfError as error:
                if _is_elf(self._path(name)):
                    self._report.problems.append(f"{shown(os.fsdecode(name))}: no sources archived: {error}")
        return {path: mapped_unix_ns for path, mapped_unix_ns in found.items() if os.path.isfile(self._path(path))}

    def _path(self, name: bytes) -> str:
        return self._opened.get(name) or self._root + os.fsdecode(name)


def _difference(path: str, identities: Set[Identity], is_copy: bool = False) -> str:
    """What shows that a file is none of those that were recorded; empty if nothing does, or it cannot be read."""
    if not identities or not all(identity.is_known for identity in identities):
        return ""
    from collector.elf import object_of_fd

    try:
        fd, _ = _open_source(path, None)
    except (OSError, _Changed):
        return ""
    found = identity_of_fd(fd)
    with suppress(ElfError), object_of_fd(fd, path) as file:
        found = identity_of(file)
    whys = [difference(identity, found, is_copy) for identity in sorted(identities)]
    return "" if "" in whys else whys[0]


def _is_elf(path: str) -> bool:
    with suppress(OSError, _Changed):
        fd, _ = _open_source(path, None)
        try:
            return os.read(fd, 4) == b"\x7fELF"
        finally:
            os.close(fd)
    return False


def _open_directory(directory: Path) -> int:
    try:
        with suppress(FileExistsError):
            os.mkdir(directory, 0o700)
        return os.open(directory, OPEN_DIRECTORY)
    except OSError as error:
        raise ExperimentError(f"cannot archive into {shown(directory)}: {error.strerror}") from error


def _open_source(path: str, changed_after_ns: int | None) -> tuple[int, int]:
    """A descriptor and the size of a regular file that has not changed since. Does not wait on FIFOs."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except ValueError as error:  # there is a NUL in it
        raise _Changed("it is no name of a file") from error
    status = os.fstat(fd)
    problem = ""
    if not stat.S_ISREG(status.st_mode):
        problem = "it is not a regular file"
    elif changed_after_ns is not None and status.st_mtime_ns > changed_after_ns:
        problem = "it has changed since it was recorded"
    if problem:
        os.close(fd)
        raise _Changed(problem)
    return fd, status.st_size


def _copy_whole(source: int, size: int, directory_fd: int, name: bytes) -> None:
    """Copy under a temporary name, then rename over whatever has the name."""
    before = os.fstat(source)
    temporary = b"%d.new" % os.getpid()
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with suppress(FileNotFoundError):
        os.unlink(temporary, dir_fd=directory_fd)
    target = os.open(temporary, flags, 0o600, dir_fd=directory_fd)
    try:
        try:
            copied = _copy(source, target, size)
        finally:
            os.close(target)
        after = os.fstat(source)
        if copied != size or (after.st_mtime_ns, after.st_size) != (before.st_mtime_ns, before.st_size):
            raise _Changed("it changed while it was copied")
        os.rename(temporary, name, src_dir_fd=directory_fd, dst_dir_fd=directory_fd)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=directory_fd)
        raise


def _copy(source: int, target: int, size: int) -> int:
    """Bytes copied: inside the kernel, the first way that the file systems allow."""
    for way in (os.copy_file_range, _by_sendfile):
        done = 0
        try:
            while done < size and (step := way(source, target, min(size - done, _CHUNK))):
                done += step
            if done == size:
                return done
        except OSError as error:
            if error.errno not in _TRY_OTHERWISE:
                raise
        os.lseek(source, 0, os.SEEK_SET)
        os.lseek(target, 0, os.SEEK_SET)
    done = 0
    while data := os.read(source, _STEP):
        view = memoryview(data)
        while view:
            view = view[os.write(target, view):]
        done += len(data)
    return done


def _by_sendfile(source: int, target: int, count: int) -> int:
    return os.sendfile(target, source, None, count)
