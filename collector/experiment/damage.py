"""What may be wrong with an experiment's files, and what stands in their place: found out at the door, told as lines.

A file is anybody's: a directory, a pipe or a device may have its name, it may claim more bytes than a disk has, and
every number in it may be any. What is read here is either sound or left out, and counted; behind the door nobody asks
again.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

# What numbers in an experiment may be. Times: nanoseconds; two of them can be added in 64 bits.
TIME_MAX_NS = (1 << 62) - 1
ADDRESS_END = 1 << 64
INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1
# Recorders allocate some megabytes ahead. A longer hole was never written: what lies behind it belongs to nobody.
_HOLE_MAX = 1 << 26


@dataclass(eq=False)
class Damage:
    """What reading a file found wrong. ``n_invalid``: places in a chain of packets where no packet can be."""

    n_invalid: int = 0
    others: Counter[str] = field(default_factory=Counter)

    def note(self, what: str, count: int = 1) -> None:
        """``count`` times ``what``, such as "packets with impossible times were skipped"."""
        if count:
            self.others[what] += count

    def lines(self) -> list[str]:
        """What was found, with counts."""
        invalid = [f"{self.n_invalid} damaged places were skipped"] if self.n_invalid else []
        return invalid + [f"{count} {what}" for what, count in self.others.items()]


def read_file(path: Path, damage: Damage) -> Bytes:
    """The bytes of a regular file, up to a hole that no recorder leaves. Does not wait on pipes. Raises OSError."""
    with _opened(path) as file:
        return np.fromfile(file, np.uint8, _written_size(file.fileno(), damage))


def read_settled(path: Path, damage: Damage) -> Bytes:
    """As ``read_file``, of a file that somebody may be writing."""
    return settled(read_file(path, damage), read_file(path, Damage()))


def settled(content: Bytes, again: Bytes) -> Bytes:
    """What a file had when its read began, by another read behind that. A read is no instant: of what is written
    meanwhile it has some bytes, and not others. Those are different in the other one; all from the first of them on is
    left out."""
    n = min(len(content), len(again))
    changed = np.flatnonzero(content[:n] != again[:n])
    return content[:changed[0]] if len(changed) else content


def read_pieces(path: Path, damage: Damage, n_bytes: int) -> Iterator[Bytes]:
    """As ``read_file``, in pieces of ``n_bytes``; the last one is shorter."""
    with _opened(path) as file:
        left = _written_size(file.fileno(), damage)
        while left > 0:
            piece = np.fromfile(file, np.uint8, min(left, n_bytes))
            left = left - len(piece) if len(piece) else 0  # cut meanwhile
            yield piece


@contextmanager
def _opened(path: Path) -> Iterator[FileIO]:
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with open(fd, "rb", buffering=0) as file:
        mode = os.fstat(fd).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        yield file


def _written_size(fd: int, damage: Damage) -> int:
    """Where the first long hole begins, else the file's size. It is read from its beginning then."""
    size = _end_of_data(fd, os.fstat(fd).st_size, damage)
    os.lseek(fd, 0, os.SEEK_SET)
    return size


def _end_of_data(fd: int, size: int, damage: Damage) -> int:
    end = 0
    while size - end > _HOLE_MAX:
        try:
            begin = os.lseek(fd, end, os.SEEK_DATA)
        except OSError as error:
            return end if error.errno == errno.ENXIO else size  # nothing but a hole; or the file system knows no holes
        if begin - end > _HOLE_MAX:
            damage.note("long hole in the file; what lies behind it was skipped")
            return end
        end = os.lseek(fd, begin, os.SEEK_HOLE)
    return size
