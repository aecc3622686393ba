"""Files that grow in blocks through a mapped window, and that a reader may open at any instant.

Space is allocated on disk before it is mapped, so a full disk is an error here and never SIGBUS; what is
allocated but not written reads as zeros, which readers skip::

    0            used          window        allocated
    |  written   |    zeros    :    zeros       |            used <= allocated, multiples of BLOCK_SIZE
                 ^ next write goes here

Killed between any two stores, the file is still valid. Three ways of making a write appear at once:

* packets in a block: all bytes behind the head of the first, then that head (four bytes, aligned);
* a packet larger than a block: first the head of an EMPTY packet of the same size, then the body, then the
  kind;
* text: everything with blanks for ``<`` (readers skip such text), then each ``<`` from first to last, so that
  the text is at every instant the text cut between two tags.

Python's mmap holds a descriptor of its own; no other is kept. ``release`` drops the window of an idle file.

A file may begin as a draft: then it grows in memory until ``make`` and ``go_on`` bring it to disk, whole and with one
write. What is over before that never needs a window, space in advance, or cutting.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from collector.arrays import indices
from collector.errors import ExperimentError
from collector.experiment.records import BLOCK_SIZE, HEAD, KIND_CLOSED, KIND_EMPTY

# The most that is allocated ahead at once; a file doubles until then.
AHEAD_MAX = 1 << 20
# What a text file keeps allocated for its last lines, and of that for the very last ones.
TEXT_RESERVE = 4096
TEXT_RESERVE_END = 512
# A window starts and ends where the kernel lets mappings start: 4 KiB on x86-64, up to 64 KiB on aarch64.
_WINDOW_UNIT = max(BLOCK_SIZE, mmap.ALLOCATIONGRANULARITY)

_FREE = "free some space, or record elsewhere with -d DIR"
_FULL = {errno.ENOSPC: ("the disk is full", _FREE), errno.EDQUOT: ("the disk quota is used up", _FREE),
         errno.EFBIG: ("the file size limit is reached", "raise it (ulimit -f)")}
_NEW = ".new"  # behind the name of a file that is not whole yet
_OPEN = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC

Bytes = npt.NDArray[np.uint8]


class DiskFull(ExperimentError):
    """No space for more of the experiment; what was written so far stays valid. ``errno`` says which limit it
    was.
    """

    def __init__(self, name: str, error: OSError) -> None:
        self.errno = error.errno or errno.ENOSPC
        why, advice = _FULL[self.errno]
        super().__init__(f"cannot write {name}: {why}; {advice}")


def failure(name: str, error: OSError) -> ExperimentError:
    """The experiment's error for an OSError met while writing ``name``."""
    if error.errno in _FULL:
        return DiskFull(name, error)
    if error.errno == errno.ENOENT:
        return ExperimentError(f"cannot write {name}: the experiment was deleted or moved meanwhile")
    return ExperimentError(f"cannot write {name}: {error.strerror}")


def create_file(directory_fd: int, name: str, content: bytes | bytearray = b"", allocate: int = 0) -> None:
    """Make ``name`` with ``content`` and at least ``allocate`` bytes of disk space, to appear whole.

    Raises DiskFull, or ExperimentError; then there is no such file.
    """
    temporary = name + _NEW
    write_file(directory_fd, temporary, content, allocate)
    try:
        os.rename(temporary, name, src_dir_fd=directory_fd, dst_dir_fd=directory_fd)
    except OSError as error:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=directory_fd)
        raise failure(name, error) from error


def write_file(directory_fd: int, name: str, content: bytes | bytearray = b"", allocate: int = 0) -> None:
    """As ``create_file``, for a directory that nobody looks into yet: the file does not appear whole."""
    try:
        fd = os.open(name, _OPEN | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=directory_fd)
    except OSError as error:
        raise failure(name.removesuffix(_NEW), error) from error
    try:
        try:
            if allocate:
                os.posix_fallocate(fd, 0, allocate)
            if content and os.pwrite(fd, content, 0) != len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(fd)
    except OSError as error:
        with suppress(OSError):
            os.unlink(name, dir_fd=directory_fd)
        raise failure(name.removesuffix(_NEW), error) from error


def append_file(directory_fd: int, name: str, content: bytes | bytearray) -> None:
    """Append to a file without blocks, made if need be. Raises DiskFull, ExperimentError; then it is as it was."""
    try:
        fd = os.open(name, _OPEN | os.O_CREAT, 0o600, dir_fd=directory_fd)
        try:
            size = os.fstat(fd).st_size
            try:
                os.posix_fallocate(fd, size, len(content))
                os.pwrite(fd, content, size)
            except OSError:
                os.ftruncate(fd, size)
                raise
        finally:
            os.close(fd)
    except OSError as error:
        raise failure(name, error) from error


class GrowingFile:
    """The mapped end of a file in an experiment. ``used`` counts the bytes that hold data.

    ``draft`` is what the file holds before it is on disk; then nothing is on disk, and no directory is needed.
    """

    def __init__(self, directory_fd: int, name: str, used: int = 0, allocated: int = 0,
                 draft: bytes | None = None) -> None:
        self.name = name
        self.used = used if draft is None else len(draft)
        self.allocated = allocated
        self._draft = None if draft is None else bytearray(draft)
        self._directory_fd = directory_fd
        self._identity: tuple[int, int] | None = None
        self._window: mmap.mmap | None = None
        self._window_start = 0

    @property
    def mapped(self) -> bool:
        """Whether a window (and with it a descriptor) is held."""
        return self._window is not None

    def make(self, directory_fd: int, write: Callable[[int, str, bytearray, int], None], allocate: int = 0) -> None:
        """Write a draft by ``write`` (create_file or write_file), with at least ``allocate`` bytes of space.

        It is a draft still until ``go_on``. Raises what ``write`` raises.
        """
        if self._draft is not None:
            write(directory_fd, self.name, self._draft, allocate)
            self.allocated = max(self.used, allocate)

    def go_on(self, directory_fd: int) -> None:
        """What ``make`` wrote stays there, and grows there from here on."""
        self._directory_fd = directory_fd
        self._draft = None

    def release(self) -> None:
        """Let go of the window; the next write maps it again."""
        if self._window is not None:
            self._window.close()
            self._window = None

    def close(self) -> None:
        """Cut the file to what is used. Idempotent."""
        self.release()
        if self._draft is not None or self.allocated == self.used:
            return
        try:
            fd = self._open()
            try:
                os.ftruncate(fd, self.used)
            finally:
                os.close(fd)
        except OSError as error:
            raise failure(self.name, error) from error
        self.allocated = self.used

    def _reach(self, end: int) -> mmap.mmap:
        """The window, made to cover everything from ``used`` to ``end`` (file offsets)."""
        if self._window is not None and end <= self.allocated:
            return self._window
        self.release()
        try:
            fd = self._open()
            try:
                if end > self.allocated:
                    self._allocate(fd, end)
                start = self.used // _WINDOW_UNIT * _WINDOW_UNIT
                self._window = mmap.mmap(fd, self.allocated - start, offset=start)
                self._window_start = start
            finally:
                os.close(fd)
        except OSError as error:
            raise failure(self.name, error) from error
        except ValueError as error:  # the file is shorter than what was allocated
            raise ExperimentError(f"cannot write {self.name}: somebody else has cut it short") from error
        return self._window

    def _open(self) -> int:
        fd = os.open(self.name, _OPEN, dir_fd=self._directory_fd)
        status = os.fstat(fd)
        identity = (status.st_dev, status.st_ino)
        if self._identity not in (None, identity):
            os.close(fd)
            raise ExperimentError(f"cannot write {self.name}: somebody else has replaced it")
        self._identity = identity
        return fd

    def _allocate(self, fd: int, end: int) -> None:
        """Allocate up to ``end`` and some more; if the disk has no room for more, just up to ``end``."""
        needed = -(-end // _WINDOW_UNIT) * _WINDOW_UNIT
        ahead = min(AHEAD_MAX, needed)
        for target in (needed + ahead, needed) if self.allocated >= BLOCK_SIZE else (needed,):
            try:
                os.posix_fallocate(fd, self.allocated, target - self.allocated)
            except OSError as error:
                os.ftruncate(fd, self.allocated)  # a failed allocation may have got half way
                if error.errno not in _FULL or target == needed:
                    raise
            else:
                self.allocated = target
                return


def _head(size: int, kind: int) -> bytes:
    return np.array([(size, kind)], HEAD.dtype).tobytes()


class PacketFile(GrowingFile):
    """A file of packets. A reader sees each batch's packets whole or not at all."""

    def append_array(self, packets: npt.NDArray[Any]) -> None:
        """Append fixed-size packets: a structured array whose first field is ``tsize``, contiguous."""
        size = packets.dtype.itemsize
        raw, done = np.frombuffer(packets, np.uint8), 0
        while done < len(raw):
            room = BLOCK_SIZE - self.used % BLOCK_SIZE
            if room < size:
                self._close_block(room)
                continue
            self._commit(raw[done:done + room // size * size])
            done += room // size * size

    def append_packets(self, packets: Iterable[bytes]) -> None:
        """Append packets of any size up to PACKET_SIZE_MAX, multiples of four."""
        chunk = bytearray()
        for packet in packets:
            room = BLOCK_SIZE - (self.used + len(chunk)) % BLOCK_SIZE
            if len(packet) > room:
                self._commit(np.frombuffer(bytes(chunk), np.uint8))
                chunk.clear()
                if room < BLOCK_SIZE:
                    self._close_block(room)
            if len(packet) > BLOCK_SIZE:
                self._commit_large(packet)
            else:
                chunk += packet
                if (self.used + len(chunk)) % BLOCK_SIZE == 0:
                    self._commit(np.frombuffer(bytes(chunk), np.uint8))
                    chunk.clear()
        self._commit(np.frombuffer(bytes(chunk), np.uint8))

    def n_fitting(self, packets: Sequence[bytes], room: int) -> int:
        """How many of them take at most ``room`` bytes, with what blocks are closed with."""
        used = self.used
        for number, packet in enumerate(packets):
            rest = BLOCK_SIZE - used % BLOCK_SIZE
            used += len(packet) + (rest if len(packet) > rest and rest < BLOCK_SIZE else 0)
            if used - self.used > room:
                return number
        return len(packets)

    def _commit(self, chunk: Bytes) -> None:
        """Write whole packets that lie in one block; they appear together."""
        size = len(chunk)
        if self._draft is not None:
            self._draft += chunk.tobytes()
        elif size:
            window = self._reach(self.used + size)
            place = np.frombuffer(window, np.uint8, size, self.used - self._window_start)
            place[4:] = chunk[4:]
            place[:4].view(np.uint32)[0] = chunk[:4].view(np.uint32)[0]
        self.used += size

    def _commit_large(self, packet: bytes) -> None:
        if self._draft is not None:
            self._commit(np.frombuffer(packet, np.uint8))
            return
        window = self._reach(self.used + len(packet))
        start = self.used - self._window_start
        head = np.frombuffer(window, np.uint32, 1, start)
        head[0] = np.frombuffer(_head(len(packet), KIND_EMPTY), np.uint32)[0]
        window[start + 4:start + len(packet)] = packet[4:]
        head[0] = np.frombuffer(packet[:4], np.uint32)[0]
        self.used += len(packet)

    def _close_block(self, rest: int) -> None:
        if self._draft is not None:
            self._commit(np.frombuffer(_head(rest, KIND_CLOSED).ljust(rest, b"\0"), np.uint8))
            return
        window = self._reach(self.used + rest)
        head = np.frombuffer(window, np.uint32, 1, self.used - self._window_start)
        head[0] = np.frombuffer(_head(rest, KIND_CLOSED), np.uint32)[0]
        self.used += rest


class TextFile(GrowingFile):
    """An XML file of several roots, padded with NULs; its last byte is a newline."""

    def append(self, text: bytes, reserve: int = TEXT_RESERVE) -> None:
        """Append whole lines. Raises DiskFull if fewer than ``reserve`` bytes would be left for later lines."""
        if self._draft is not None:
            self._draft += text
            self.used += len(text)
            return
        window = self._reach(self.used + len(text) + reserve)
        window[-1] = ord("\n")
        start = self.used - self._window_start
        window[start:start + len(text)] = text.replace(b"<", b" ")
        place = np.frombuffer(window, np.uint8, len(text), start)
        place[indices(np.frombuffer(text, np.uint8) == ord("<"))] = ord("<")
        self.used += len(text)
