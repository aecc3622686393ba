"""Staging: a directory in the founder's where those of descendants are made, until all their files are there.

Readers ignore it by its name. Its place on the disk is chosen anew for each founder: file systems put a file near its
directory and a directory near the one above it, where much may have been deleted of late. ext4 without a journal then
looks at every deleted inode for each file that is made, which makes it thirty times as slow (0.3 ms).
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from fcntl import ioctl

from collector.experiment.names import OPEN_DIRECTORY

NAME = "new"
# linux/fs.h, for ext2 and its successors: "what is in this directory has nothing to do with each other".
_GET_FLAGS, _SET_FLAGS, _FLAGS_BYTES = 0x8008_6601, 0x4008_6602, 8
_TOP_DIRECTORY = 0x0002_0000


def enter(founder_fd: int) -> int:
    """A descriptor of the staging directory in a founder's; it is made if there is none. Raises OSError."""
    with suppress(FileNotFoundError):
        return os.open(NAME, OPEN_DIRECTORY, dir_fd=founder_fd)
    before = _flags(founder_fd)
    _set_flags(founder_fd, before | _TOP_DIRECTORY)
    try:
        temporary = f"{NAME}{time.monotonic_ns()}"  # ext4 derives the place from the name
        os.mkdir(temporary, 0o700, dir_fd=founder_fd)
    finally:
        _set_flags(founder_fd, before)
    os.rename(temporary, NAME, src_dir_fd=founder_fd, dst_dir_fd=founder_fd)
    return os.open(NAME, OPEN_DIRECTORY, dir_fd=founder_fd)


def remove(founder_fd: int) -> None:
    """Removes the staging directory, if there is one and nobody is in it."""
    with suppress(OSError):
        os.rmdir(NAME, dir_fd=founder_fd)


def _flags(directory_fd: int) -> int:
    """A directory's inode flags; 0 on file systems without any."""
    try:
        return int.from_bytes(ioctl(directory_fd, _GET_FLAGS, bytes(_FLAGS_BYTES)), sys.byteorder)
    except OSError:
        return 0


def _set_flags(directory_fd: int, flags: int) -> None:
    with suppress(OSError):  # not that file system, or not our directory: then it is made where it would be
        ioctl(directory_fd, _SET_FLAGS, flags.to_bytes(_FLAGS_BYTES, sys.byteorder))
