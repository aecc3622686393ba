"""Coming in time where many wait for a CPU. Standard library only: this runs before the target does."""

from __future__ import annotations

import os
from contextlib import suppress

_CROWD = 4  # runnable threads for each CPU
_HIGHEST = -20
_GIVEN = os.getpriority(os.PRIO_PROCESS, 0)  # with which we were started; whom we fork may have got more


class Crowd:
    """Whether many threads wait for each CPU of the machine. Among equals the calling thread would come late then: it
    takes the highest priority if it may, and gives that back when they are fewer. It keeps a low priority that it was
    started with, and any that it is given from outside."""

    def __init__(self, *, is_session: bool = False) -> None:
        """``is_session``: the calling process is all of its session, whose group gets the same priority."""
        self._session = Session() if is_session else None
        self.n_runnable = 0  # threads that have a CPU or wait for one, with the one that asks
        self.is_there = False
        self._most = _CROWD * (os.cpu_count() or 1)

    def look(self) -> None:
        """Counts again; and changes our priority where that says so."""
        # (Some containers' /proc has processes alone.)
        with suppress(OSError, ValueError, IndexError), open("/proc/loadavg", "rb", buffering=0) as file:
            self.n_runnable = int(file.read(64).split()[3].partition(b"/")[0])
            self.is_there = self.n_runnable > self._most
        if not self.is_there:
            self.leave()
        elif _priority() == _GIVEN <= 0:
            _take(_HIGHEST)
        if self._session:
            self._session.keep_step()

    def leave(self) -> None:
        """There is no hurry any more."""
        if _priority() == _HIGHEST:
            _take(_GIVEN)


class Session:
    """The calling process as all of its session. The kernel shares CPUs among sessions first (autogroup), by a priority
    that each has as a whole, and what its threads have counts among themselves alone: a process that is a session is
    equal to all hundred threads of another one, but also, whatever its own priority, to one thread without a session.
    """

    def __init__(self) -> None:
        self._nice = 0
        self.keep_step()

    def keep_step(self) -> None:
        """Gives the group the priority of the calling thread."""
        nice = _priority()
        if nice == self._nice:
            return
        # The kernel may have no such groups, not let us, or want it tried again: they take long to change.
        with suppress(OSError), open("/proc/self/autogroup", "wb", buffering=0) as file:
            file.write(b"%d" % nice)
            self._nice = nice


def keep_step() -> None:
    """Gives the calling thread the priority of its process's main thread."""
    if (wanted := _priority(os.getpid())) != _priority():
        _take(wanted)


def _priority(tid: int = 0) -> int:
    return os.getpriority(os.PRIO_PROCESS, tid)


def _take(nice: int) -> None:
    with suppress(OSError):  # it may not
        os.setpriority(os.PRIO_PROCESS, 0, nice)
