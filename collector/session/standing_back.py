"""Our own start stands back: libraries take a fifth of a second of CPU time, which a program of some seconds feels.

From the moment the program runs, a module is imported only when that takes nothing from it::

    before each module:  a CPU is free, or the program sleeps -> import it
                         all CPUs are wanted, by it as well ---> wait, look again, until something is due

Due is everything as soon as the program has ended; becomes another one or has a child, which must be looked at while
they live; has threads that come and go, which get clocks of other periods; has many, among which each of our looks
waits for its turns, and costs what it puts off; a ring fills; the tracer calls; or ``PATIENCE_NS`` are over, less at
high rates. Who asks for certain moments (-t, -y, -l) wants them in time: nothing is put off then.

Where the kernel's rings hold all that matters, there is patience for ``LONG_PATIENCE_NS``: an heir is appointed then,
who saves what they hold if we are killed. Whoever maps more code meanwhile may remove its file, too: that ends it.

No priority is lowered: who may not raise one could not put it back (RLIMIT_NICE), and those of threads do not count
among sessions. Among a crowd it is raised, before each module: nobody else of us could do so while the thread that
imports waits for its turn with the interpreter's lock. Standard library only.
"""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import TYPE_CHECKING

from collector.clock import NS_PER_MS, NS_PER_S
from collector.engines.perf import opening as perf_opening
from collector.linux.crowd import Crowd
from collector.linux.perf import Ring, Rings

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

    from collector.engines.ptrace import opening
    from collector.session.heir import Heir

PATIENCE_NS = 500 * NS_PER_MS  # the first drain is to come within a second: who kills us takes no more with him
# At high rates. Rings hold a second of samples, and our start takes a third of that; from three quarters on, copies of
# stacks are small.
_FREQUENT_NS, _LITTLE_PATIENCE_NS = 5 * NS_PER_MS, 200 * NS_PER_MS
LONG_PATIENCE_NS = 3500 * NS_PER_MS  # a program of three seconds has ended by then
_LOOK_EVERY_MS, _SELDOM_MS = 40, 100
_LOOKS, _MOMENT_S = 3, 0.001
_FULL = 3 / 4  # of a ring's room
_MOST_LOOKS = 16
_CALM_BYTES_PER_S = 500_000  # of records of switches: some ten thousand
_OF_ALL = "waking", "handover"  # others fill these, too; they can rest
_LIVES = "task", "map"  # threads and processes, programs, and code


class StandBack:
    """Asked for modules as a finder of ``sys.meta_path``, it finds none, but takes its time."""

    def __init__(self, pid: int, opened: perf_opening.Opened | opening.Opened | None, start_ns: int,
                 heir: Heir | None = None) -> None:
        self._pid = pid
        self._start_ns = start_ns
        self._program = _program(pid)
        self._tids: set[str] = set()
        self._crowd = Crowd()
        self._n_cpus = len(os.sched_getaffinity(0))
        self._many = max(_MOST_LOOKS, self._n_cpus)  # threads
        is_frequent = opened is not None and opened.interval_ns < _FREQUENT_NS
        self._due_ns = start_ns + (_LITTLE_PATIENCE_NS if is_frequent else PATIENCE_NS)
        self._heir = None if is_frequent else heir
        self._lives: list[tuple[Ring, int]] = []  # once there is an heir: their heads at that time
        self._rooms: list[Ring] = []
        self._rings: Rings | None = None
        # Without a clock there is nothing that could fill, and little to import. Of a program that is not ours to look
        # at (set-user-ID), all that is to be had is its CPU time while it lives.
        self._is_due = opened is None or not self._program
        self._pidfd = os.pidfd_open(pid)
        fds = [self._pidfd]
        if isinstance(opened, perf_opening.Opened):
            self._rings = opened.rings  # what one holds is moved to its spare, if it has one
            spare_of = {ring.fd: spare for ring, spare in self._rings.spares}
            self._rooms = [spare_of.get(ring.fd, ring) for ring in self._rings.rings if ring.name not in _OF_ALL]
        elif opened is not None:
            fds.append(opened.pipe)
        self._poller = select.poll()
        for fd in fds:
            self._poller.register(fd, select.POLLIN)

    def close(self) -> None:
        """No more of it."""
        os.close(self._pidfd)

    def find_spec(self, _name: str, _path: Sequence[str] | None,
                  _target: ModuleType | None = None) -> ModuleSpec | None:
        """Returns when it is time to import something."""
        self._crowd.look()
        while not self._is_due and self._wants_more_cpus():
            self._is_due = self._something_is_due()
            self._crowd.look()
        return None

    def _wants_more_cpus(self) -> bool:
        """Whether the program wants the CPUs, and there are fewer of them than threads that do, with ours; not only for
        a moment, as where a thread of the kernel's comes by."""
        for _ in range(_LOOKS):
            if self._crowd.n_runnable <= self._n_cpus or not _wants_cpu(self._pid):
                return False
            time.sleep(_MOMENT_S)
            self._crowd.look()
        return True

    def _something_is_due(self) -> bool:
        if self._poller.poll(_SELDOM_MS if self._lives else _LOOK_EVERY_MS) or self._is_full():
            return True
        threads = _threads(self._pid)
        if len(threads) > self._many or self._comes_or_goes(threads):
            return True
        return time.monotonic_ns() >= self._due_ns and not self._is_patient_again()

    def _is_patient_again(self) -> bool:
        """Whether there is an heir from now on; if it is us, there is no time to lose."""
        heir, self._heir = self._heir, None
        if heir is None or not self._is_calm() or not heir.appoint() or heir.is_us:
            return False
        self._poller.register(heir.fd, 0)  # errors are told all the same
        if self._rings is not None:
            self._lives = [(ring, self._rings.head(ring)) for ring in self._rings.rings if ring.name in _LIVES]
        self._due_ns = self._start_ns + LONG_PATIENCE_NS
        return True

    def _is_calm(self) -> bool:
        """Whether there is little to work on later. Of those that switch often, accounts are to be read now and then:
        they tell what records leave open."""
        if self._rings is None:
            return False
        n_bytes = sum(self._rings.head(ring) for ring in self._rings.rings if ring.name == "switch")
        return n_bytes * NS_PER_S <= _CALM_BYTES_PER_S * (time.monotonic_ns() - self._start_ns)

    def _comes_or_goes(self, threads: Sequence[str]) -> bool:
        """Whether anybody does. Once there is an heir, no record may tell of threads, processes, code either."""
        if self._rings is not None and self._lives:
            return any(self._rings.head(ring) != head for ring, head in self._lives)
        before, self._tids = self._tids, set(threads)
        return not before <= self._tids or _program(self._pid) != self._program or _has_children(self._pid, threads)

    def _is_full(self) -> bool:
        rings = self._rings
        return rings is not None and any(
            rings.head(room) - rings.tail(room) >= _FULL * room.data_bytes for room in self._rooms)


@contextmanager
def standing_back(pid: int, opened: perf_opening.Opened | opening.Opened | None, start_ns: int,
                  heir: Heir) -> Iterator[None]:
    """What is imported meanwhile is imported when the CPUs allow it. Raises OSError."""
    finder = StandBack(pid, opened, start_ns, heir)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        finder.close()


def _program(pid: int) -> str:
    with suppress(OSError):
        return os.readlink(f"/proc/{pid}/exe")
    return ""


def _wants_cpu(pid: int) -> bool:
    """Whether a thread of a process runs or could run; not more than some are looked at."""
    for tid in _threads(pid)[:_MOST_LOOKS]:
        with suppress(OSError), open(f"/proc/{pid}/task/{tid}/stat", "rb", buffering=0) as file:
            if file.read(256).rpartition(b") ")[2][:1] == b"R":
                return True
    return False


def _threads(pid: int) -> list[str]:
    with suppress(OSError):
        return os.listdir(f"/proc/{pid}/task")
    return []


def _has_children(pid: int, threads: Sequence[str]) -> bool:
    """Whether threads of a process have children now; where the kernel does not tell, they may have."""
    try:
        for tid in threads:
            with suppress(ProcessLookupError), open(f"/proc/{pid}/task/{tid}/children", "rb", buffering=0) as file:
                if file.read(1):
                    return True
    except OSError:
        return True
    return False
