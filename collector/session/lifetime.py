"""How long a recording lasts: until the processes that it was begun for have ended."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence


class Lifetime:
    """Of a child of ours, or of running processes until the last of which has ended."""

    def __init__(self, pid: int, pidfds: Sequence[int] = ()) -> None:
        """``pidfds``: of running processes, which are ours now; none: process ``pid`` is our child. Raises OSError."""
        self.status: int | None = None  # the child's wait status, 0 for running processes; None while they live
        self._pid = pid
        self._is_child = not pidfds
        self._alive = set(pidfds or (os.pidfd_open(pid),))

    @property
    def fds(self) -> Collection[int]:
        """Of those that live. Each becomes readable when its process has ended."""
        return self._alive

    def ended(self, fd: int) -> None:
        """The process of a descriptor has ended; a child is waited for."""
        self._alive.remove(fd)
        os.close(fd)
        if not self._alive:
            self.status = os.waitpid(self._pid, 0)[1] if self._is_child else 0

    def close(self) -> None:
        """Gives back what is left."""
        while self._alive:
            os.close(self._alive.pop())
