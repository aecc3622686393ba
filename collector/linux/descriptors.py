"""Open files of a process that was forked from ours. Standard library only: this runs before the target does."""

from __future__ import annotations

import os
import signal
from collections.abc import Collection
from contextlib import suppress


def close_all_but(kept: Collection[int]) -> None:
    """Nobody must wait for the end of a file because we have it open. Standard streams stay."""
    for fd in sorted(int(name) for name in os.listdir("/proc/self/fd")):
        if fd > 2 and fd not in kept:
            with suppress(OSError):
                os.close(fd)


def redirect_to_null(streams: Collection[int]) -> None:
    """These standard streams lead nowhere."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in streams:
        os.dup2(null, fd)


def leave_behind(kept: Collection[int]) -> None:
    """Leaves it to a process of its own to close these descriptors for good, where that takes the kernel long: it has
    them open until we have ended, and whoever waits for us need not wait for that. Raises OSError where there is no
    room for one more process: they are closed by us, then.

    It does nothing, and no signal of a terminal or of its process group is for it.
    """
    waits, ends = os.pipe()  # its end of file is our end
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        if os.fork() == 0:
            _wait(waits, kept)
    except OSError:
        os.close(ends)
        raise
    finally:
        os.close(waits)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _wait(waits: int, kept: Collection[int]) -> None:
    """The other process's side; never returns."""
    try:
        close_all_but({waits, *kept})
        redirect_to_null((0, 1, 2))
        os.read(waits, 1)
    finally:
        os._exit(0)
