"""Our own place among those who want a CPU. Standard library only."""

from __future__ import annotations

import os
from contextlib import suppress

_FIRST = -20
_niceness = os.getpriority(os.PRIO_PROCESS, 0)  # as we were started


def go_first() -> None:
    """Puts the calling thread, and those that it will make, before all others, as far as this user may.

    Where hundreds of threads want a CPU, an equal share of it is too little to keep up with what they do, and rings
    overflow. What is done first is little: some hundredths of a CPU at most.
    """
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, _FIRST)


def go_back() -> None:
    """The place that we had when we were started, for work that has time."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, _niceness)
