"""What processes that we make have open. Standard library only: this is imported before the target runs."""

from __future__ import annotations

import os
import signal
from collections.abc import Collection, Set
from contextlib import suppress

_SHELL = "/bin/sh"


def close_all_but(kept: Collection[int]) -> None:
    """Nobody must wait for the end of a file because we have it open. Standard streams stay."""
    for fd in _open():
        if fd not in kept:
            with suppress(OSError):
                os.close(fd)


def _open() -> list[int]:
    """Our descriptors, but for the standard streams."""
    numbers = os.listdir("/proc/self/fd")  # with that of the list itself, which is gone now
    return [int(number) for number in numbers if int(number) > 2 and os.path.lexists(f"/proc/self/fd/{number}")]


def redirect_to_null(streams: Collection[int]) -> None:
    """These standard streams lead nowhere."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in streams:
        os.dup2(null, fd)


def leave_behind(kept: Set[int]) -> None:
    """Leaves it to a process of its own to close these descriptors for good, where that takes the kernel long: it has
    them open until we have ended, and whoever waits for us need not wait for that. Raises OSError where there is no
    room for one more process: they are closed by us, then.

    It is a shell that reads to the end of a pipe of ours: it has nothing else open, and no file of ours mapped. No
    signal of a terminal or of a process group is for it.
    """
    waits, _ = os.pipe()  # its other end is open as long as we live
    try:
        for fd in kept:
            os.set_inheritable(fd, True)
        others = [(os.POSIX_SPAWN_CLOSE, fd) for fd in _open() if fd not in kept and os.get_inheritable(fd)]
        streams = ((os.POSIX_SPAWN_DUP2, waits, 0), (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_RDWR, 0),
                   (os.POSIX_SPAWN_DUP2, 1, 2))
        os.posix_spawn(_SHELL, ["collect", "-c", "cd /; read _"], {}, setsigmask=signal.valid_signals(),
                       file_actions=[*others, *streams])
    finally:
        for fd in kept:
            os.set_inheritable(fd, False)
        os.close(waits)
