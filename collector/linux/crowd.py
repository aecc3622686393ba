"""Coming in time where many wait for a CPU. Standard library only: this runs before the target does."""

from __future__ import annotations

import os
from contextlib import suppress

_CROWD = 4  # runnable threads for each CPU
_HIGHEST = -20
_GROUP = "/proc/self/autogroup"
_GIVEN = os.getpriority(os.PRIO_PROCESS, 0)  # with which we were started; whom we fork may have got more


class Crowd:
    """Whether many threads wait for each CPU of the machine. Among equals the calling thread would come late then: it
    takes the highest priority if it may, and gives that back when they are fewer. It keeps a low priority that it was
    started with, and any that it is given from outside."""

    def __init__(self) -> None:
        self.n_runnable = 0  # threads that have a CPU or wait for one, with the one that asks
        self.is_there = False
        self._most = _CROWD * os.sysconf("SC_NPROCESSORS_ONLN")  # whatever PYTHON_CPU_COUNT says

    def look(self, tid: int = 0) -> None:
        """Counts again; and changes the priority of the calling thread, or of another, where that says so."""
        self.n_runnable = n_runnable()
        self.is_there = self.n_runnable > self._most
        if not self.is_there:
            self.leave(tid)
        elif _priority(tid) == _GIVEN <= 0:
            _take(_HIGHEST, tid)

    def leave(self, tid: int = 0) -> None:
        """There is no hurry any more."""
        if _priority(tid) == _HIGHEST:
            _take(_GIVEN, tid)


def n_runnable() -> int:
    """Threads of the machine that have a CPU or wait for one, with the calling one; 0 where that is not told (some
    containers' /proc has processes alone). Takes some microseconds."""
    with suppress(OSError, ValueError, IndexError), open("/proc/loadavg", "rb", buffering=0) as file:
        return int(file.read(64).split()[3].partition(b"/")[0])
    return 0


def lead_session() -> None:
    """Makes the calling process a session of its own, with the highest priority if it may have that and was not started
    with a low one.

    The kernel shares CPUs among sessions first (autogroup), by a priority that each has as a whole; what its threads
    have counts among themselves alone. A session of one process is equal to all hundred threads of another one, but
    also to a single thread that has none.
    """
    low = max(_GIVEN, _group_nice())
    os.setsid()
    # The kernel may have no such groups, or not let us, or not so soon after somebody else: it takes long.
    with suppress(OSError), open(_GROUP, "wb", buffering=0) as file:
        file.write(b"%d" % (low if low > 0 else _HIGHEST))


def _group_nice() -> int:
    with suppress(OSError, ValueError, IndexError), open(_GROUP, "rb", buffering=0) as file:
        return int(file.read(64).split()[-1])  # "/autogroup-5 nice 0"; nothing for those that have no session
    return 0


def keep_step() -> None:
    """Gives the calling thread the priority of its process's main thread."""
    if (wanted := _priority(os.getpid())) != _priority():
        _take(wanted)


def _priority(tid: int = 0) -> int:
    return os.getpriority(os.PRIO_PROCESS, tid)


def _take(nice: int, tid: int = 0) -> None:
    with suppress(OSError):  # it may not
        os.setpriority(os.PRIO_PROCESS, tid, nice)
