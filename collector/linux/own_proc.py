"""Whether /proc is of the PID namespace that we are in: else it tells of other processes by the numbers that we know.
Standard library only: this runs before the target does."""

from __future__ import annotations

import os

from collector.errors import CollectorError

_NOT_OURS = ("/proc is not there, or of another PID namespace: mount it anew (unshare --mount-proc, bwrap --proc "
             "/proc, or mount -t proc proc /proc)")


def check() -> None:
    """Raises CollectorError where it is not."""
    try:
        is_ours = os.readlink("/proc/self") == str(os.getpid())
    except OSError:  # also where we have no number in its namespace
        is_ours = False
    if not is_ours:
        raise CollectorError(_NOT_OURS)
