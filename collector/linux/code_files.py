"""Files in which runtimes say where the code is that they make: found where the process would look, kept open.

A process may live in a container: its root is kept open, so that what it leaves behind is found when it has ended. Its
files lie in /tmp, where anybody may write: a file counts if it is a regular one, of the process's own user, of root's
or of ours, and has been written since the process began.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from contextlib import suppress

from collector.linux import proc

_OPEN = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW
_AT_ONCE = 1 << 20
_COMPARED = 256  # bytes: some lines of a map
_OLDER_NS = 2_000_000_000  # clocks of file systems are coarse, and images begin a little after their process


class CodeFile:
    """One such file, read piece by piece as it grows, and from its beginning once more where it was written anew, as by
    ``jcmd PID Compiler.perfmap``. ``n_anew``: how often that was seen."""

    def __init__(self, fd: int) -> None:
        self.n_anew = 0
        self._fd = fd
        self._at = 0
        self._last = b""  # of what was read, as much as stands before that

    def more(self) -> bytes:
        """What has been written since the last call; not too much at once."""
        with suppress(OSError):
            if os.pread(self._fd, len(self._last), self._at - len(self._last)) != self._last:
                self.n_anew, self._at, self._last = self.n_anew + 1, 0, b""
            if os.fstat(self._fd).st_size > self._at:
                found = os.pread(self._fd, _AT_ONCE, self._at)
                self._at += len(found)
                self._last = (self._last + found[-_COMPARED:])[-_COMPARED:]
                return found
        return b""

    def close(self) -> None:
        """Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class CodePlaces:
    """Where files of one process are; asked while it lives, if it can be."""

    def __init__(self, pid: int, began_unix_ns: int, roots: Sequence[str] = ()) -> None:
        """``roots``: of other processes, where this one cannot be asked any more."""
        self.pids = [pid]
        self._began_ns = began_unix_ns - _OLDER_NS
        self._users = {0, os.geteuid()}
        self._roots = ["", *roots]
        self._root_fd = -1
        with suppress(OSError, ValueError, IndexError):
            self._root_fd = os.open(f"/proc/{pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            self._roots = [f"/proc/self/fd/{self._root_fd}"]
            status = proc.status(pid)
            self._users.add(int(status[b"Uid"].split()[1]))
            self.pids = [int(status[b"NSpid"].split()[-1]), pid]

    def open(self, path: bytes) -> CodeFile | None:
        """The file of a path of the process's; None where there is none that counts."""
        for root in self._roots:
            try:
                fd = os.open(os.fsencode(root) + path, _OPEN)
            except OSError:
                continue
            status = os.fstat(fd)
            if (stat.S_ISREG(status.st_mode) and status.st_uid in self._users and status.st_mtime_ns >= self._began_ns):
                return CodeFile(fd)
            os.close(fd)
        return None

    def close(self) -> None:
        """Idempotent."""
        if self._root_fd >= 0:
            os.close(self._root_fd)
            self._root_fd = -1
