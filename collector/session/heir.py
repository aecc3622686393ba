"""An heir goes on where the collector is killed before anything is on disk.

While the program wants all CPUs, the collector puts off its own start (``standing_back``). What is to be recorded lies
in the kernel's rings meanwhile, which go with the last process that has them mapped. Whoever kills the collector is to
take no more than the last second with him: so before a second is over, a copy of the collector is forked. It maps the
same rings, and sleeps::

    collector   stands back . . . imports, drains, writes -- farewell --> records
                     |                                            |
    heir             sleeps . . . . . . . . . . . . . . . . . . . ends
                                 |
                                 end of file, no farewell: the collector is dead
                                 |
                                 imports, drains, writes, closes the experiment, ends

The heir wakes up where it was forked, and from there does what the collector would have done, but for one thing: it
closes the recording at once. It is not the program's parent, and is told of its end by the rings alone. No signal of a
terminal or for the collector's process group reaches it (a session of its own, all signals blocked), and it holds none
of the standard streams. Where all processes of a cgroup are killed, it dies with the collector. Standard library only.
"""

from __future__ import annotations

import _thread  # what threading is made of, which is too much to import for this
import os
import signal
from contextlib import suppress
from typing import NamedTuple

from collector.engines.perf import opening as perf_opening

_LONGEST_S = 60  # for what takes less than one
KILLED = "collect was killed before its first drain: nothing is recorded from there on"


class Ids(NamedTuple):
    """Of a process: its own, its group's, its session's."""

    pid: int
    group: int
    session: int

    @classmethod
    def ours(cls) -> Ids:
        """Of the calling process."""
        return cls(os.getpid(), os.getpgrp(), os.getsid(0))


class Heir:
    """The heir, seen from both sides: ``is_us`` is set in the heir, from the collector's death on."""

    def __init__(self, opened: perf_opening.Opened | None = None, pid: int = 0) -> None:
        """``opened``: the events whose rings it is to inherit, of process ``pid``; without them there is none."""
        self.is_us = False
        self.fd = -1  # there is an error on it when the heir ends before the collector dismisses it
        self.of = Ids.ours()
        self.pidfds: tuple[int, ...] = ()  # the heir's, of the program, which is not its child
        self._opened = opened
        self._program = pid
        self._pid = 0
        self._gone = _thread.allocate_lock()

    def appoint(self) -> bool:
        """Makes the heir; False where that cannot be. In the heir it returns, too, but only when the collector is dead.
        """
        if self._opened is None or self.fd >= 0 or self.is_us:
            return False
        try:
            self.pidfds = (os.pidfd_open(self._program),)
            waits, self.fd = os.pipe()
        except OSError:
            self._close_pidfds()
            return False
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            self._pid = os.fork()
        except OSError:
            os.close(self.fd)
            self.fd = -1
            return False
        finally:
            if self._pid or self.fd < 0:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
                os.close(waits)
                self._close_pidfds()
        if not self._pid:
            self._wait(self._opened, waits)
        return True

    def _wait(self, opened: perf_opening.Opened, waits: int) -> None:
        """The heir's side: returns when the collector is dead, and never if it says farewell."""
        try:
            os.close(self.fd)
            self.fd = -1
            # Until all rings are mapped here, what they hold goes with the collector. Who is a session is an heir.
            opened.inherit()
            os.setsid()
            nothing = os.open(os.devnull, os.O_RDWR)
            for stream in (0, 1, 2):
                os.dup2(nothing, stream)
            if os.read(waits, 1):
                os._exit(0)
        except BaseException:
            os._exit(1)
        # Nobody waits for it: it must not stay, and who looks for it may end it.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGALRM})
        signal.alarm(_LONGEST_S)
        self.is_us = True

    def _close_pidfds(self) -> None:
        for pidfd in self.pidfds:
            os.close(pidfd)
        self.pidfds = ()

    def dismiss(self) -> None:
        """What has been recorded is on disk: the heir ends, if there is one."""
        if self.fd < 0:
            return
        with suppress(OSError):  # it has ended
            os.write(self.fd, b"d")
        os.close(self.fd)
        self.fd = -1
        self._gone.acquire()
        try:
            # Where many want a CPU its end takes a while, for which there is no time now.
            _thread.start_new_thread(self._see_off, ())
        except RuntimeError:  # no room for a thread
            self._see_off()

    def see_off(self) -> None:
        """Dismisses it, and returns when it has ended."""
        self.dismiss()
        with self._gone:
            pass

    def _see_off(self) -> None:
        # Our signals are for the thread that handles them.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        with suppress(ChildProcessError):
            os.waitpid(self._pid, 0)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self._gone.release()
