"""Work that stands back: the calling thread has no more of the CPUs than nobody else wants, for as long as it has
patience.

While it works it has the kernel's idle policy (SCHED_IDLE): whoever else wakes up runs at once, on whatever CPU it is,
and it goes on when that one sleeps. Among programs that want all CPUs it would not go on for seconds. So a watchdog, a
process of its own, gives it the policy that it had as soon as its patience ends.

Whoever is begun meanwhile, a thread or a process, would have that policy for good: ``come_forward`` ends it before.

Who may not have it back (CAP_SYS_NICE, or RLIMIT_NICE, lets one) does not give it away: the watchdog tries on itself
first. Nor does who has a policy or a high priority that somebody gave it.
"""

from __future__ import annotations

import os
import signal
import sys
from _thread import get_native_id
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fcntl import ioctl
from termios import FIONREAD

from collector.linux import watchdog
from collector.linux.accounts import account_of
from collector.linux.crowd import n_runnable

_UNIT_NS = watchdog.PATIENCE_MS * 1_000_000
MOST_PATIENCE_NS = 255 * _UNIT_NS  # a byte
_MUCH_DELAY_NS = 1_000_000
_NORMAL = os.sched_param(0)
_standing_back: set[int] = set()  # threads


def come_forward() -> None:
    """What the calling thread still does of its work stands back no more, nor does who is begun by it from now on."""
    if get_native_id() in _standing_back:
        os.sched_setscheduler(0, os.SCHED_OTHER, _NORMAL)
        _standing_back.remove(get_native_id())


class Background:
    """Of one thread, that which calls. Nothing is begun before it is asked for while all CPUs are wanted."""

    def __init__(self) -> None:
        self._watchdog: _Watchdog | None = None
        self._cannot = False
        self._n_cpus = len(os.sched_getaffinity(0))
        self._delay_ns = 0  # that we know of, of our waits for CPUs

    def prepare(self) -> None:
        """There may be work soon: if all CPUs are wanted, the watchdog is started now, to be ready a little later."""
        self._may_stand_back()

    @contextmanager
    def work(self, patience_ns: int) -> Iterator[None]:
        """What is done meanwhile stands back, for as long at most; it just goes on where that cannot be."""
        n_units = min(patience_ns, MOST_PATIENCE_NS) // _UNIT_NS
        if not (n_units and self._may_stand_back() and self._tell(n_units)):
            yield
            return
        try:
            os.sched_setscheduler(0, os.SCHED_IDLE, _NORMAL)
            _standing_back.add(get_native_id())
            yield
        finally:
            come_forward()
            self._tell(0)

    def close(self) -> None:
        """Ends the watchdog: nothing stands back any more."""
        self._cannot = True
        if self._watchdog is not None:
            self._watchdog.close()
            self._watchdog = None

    def _may_stand_back(self) -> bool:
        if self._cannot or os.sched_getscheduler(0) != os.SCHED_OTHER or os.getpriority(os.PRIO_PROCESS, 0) < 0:
            return False
        try:
            if self._watchdog is None and self._all_are_wanted():
                self._watchdog = _Watchdog(get_native_id())
            return self._watchdog is not None and self._watchdog.is_ready()
        except OSError:
            self.close()
            return False

    def _all_are_wanted(self) -> bool:
        """Whether all CPUs are wanted, or were lately: then we had to wait for one."""
        before_ns, self._delay_ns = self._delay_ns, _delay_ns()
        return n_runnable() > self._n_cpus or self._delay_ns - before_ns > _MUCH_DELAY_NS

    def _tell(self, n_units: int) -> bool:
        """Whether the watchdog is there to be told."""
        try:
            if self._watchdog is not None:
                self._watchdog.tell(n_units)
        except OSError:  # somebody has ended or stopped it
            self.close()
        return self._watchdog is not None


def _delay_ns() -> int:
    """How long this thread has waited for CPUs; 0 where the kernel does not tell."""
    with suppress(OSError, ValueError):
        return account_of(os.getpid(), get_native_id()).delay_ns
    return 0


class _Watchdog:
    """The process, seen from here. It takes a while to be ready. Methods raise OSError where it is not there any more.
    """

    def __init__(self, tid: int) -> None:
        self._has_answered = False
        self._answers, its_answers = os.pipe()
        its_words, self._words = os.pipe()
        os.set_blocking(self._answers, False)
        streams = [(os.POSIX_SPAWN_DUP2, its_words, 0), (os.POSIX_SPAWN_DUP2, its_answers, 1),
                   (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0)]
        try:
            self._pid = os.posix_spawn(sys.executable, [sys.executable, "-I", "-S", watchdog.__file__, str(tid)], {},
                                       file_actions=streams, setsigmask=signal.valid_signals())
        except BaseException:
            os.close(self._words)
            os.close(self._answers)
            raise
        finally:
            os.close(its_words)
            os.close(its_answers)

    def is_ready(self) -> bool:
        """Whether there is a way back from the idle policy, and it has heard all that it was told."""
        if not self._has_answered:
            with suppress(BlockingIOError):
                if not os.read(self._answers, 1):
                    raise BrokenPipeError
                self._has_answered = True
        return self._has_answered and not any(ioctl(self._words, FIONREAD, bytes(4)))

    def tell(self, n_units: int) -> None:
        """The patience that begins now; 0: it is over."""
        os.write(self._words, bytes([n_units]))

    def close(self) -> None:
        """Ends it."""
        os.close(self._words)
        os.close(self._answers)
        os.kill(self._pid, signal.SIGKILL)  # it may have been stopped
        os.waitpid(self._pid, 0)
