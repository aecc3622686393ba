"""The kernel's own accounts of threads: /proc/PID/task/TID/schedstat. Standard library only: this runs before the
target does.

An account is brought up to date at the thread's switches and at the ticks of its CPU. Zombies have theirs until their
parent takes them.
"""

from __future__ import annotations

import os
import resource
import time
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

from collector.linux.thread_list import threads_of

_LONG_NS, _MOST_READS = 50_000, 3  # a read takes 1.5 us
_MANY = 4  # threads that are new to us; and living ones for each of these
_CPUCLOCK_SCHED = 2  # in the number of a process's clock: see clock_getcpuclockid(3)


class Account(NamedTuple):
    """A thread's account since its birth, as it was just behind ``time_ns`` (CLOCK_MONOTONIC): ns on CPU, ns waiting
    for one, and how often it got one.

    The account of a thread that runs is old. One that leaves its CPU behind ``time_ns`` is known to have run then; one
    that left before a later stamp would be taken for a thread whose account is exact.
    """

    time_ns: int
    run_ns: int
    delay_ns: int
    turns: int


def parse(text: bytes) -> tuple[int, int, int]:
    """An account as schedstat has it. Raises ValueError where the kernel keeps none."""
    run_ns, delay_ns, turns = text.split()
    return int(run_ns), int(delay_ns), int(turns)


def account_of(pid: int, tid: int) -> Account:
    """A thread's account, by a single look. Raises OSError, or ValueError where the kernel keeps none."""
    fd = _opened(pid, tid)
    try:
        return _read(fd)
    finally:
        os.close(fd)


def own_account() -> Account:
    """The calling thread's account, which is exact. Raises OSError, or ValueError where the kernel keeps none."""
    time_ns = time.monotonic_ns()
    with open("/proc/thread-self/schedstat", "rb", buffering=0) as file:
        _, delay_ns, turns = parse(file.read(64))
    return Account(time_ns, time.thread_time_ns(), delay_ns, turns)


def accounts_below(pid: int) -> dict[int, Account]:
    """The accounts of all threads of a process and its descendants, by tid."""
    found: dict[int, Account] = {}
    pids = [pid]
    for process in pids:
        tids: set[int] = set()
        with suppress(OSError):
            tids = threads_of(process)
        for tid in tids:
            with suppress(OSError, ValueError):  # it has ended meanwhile
                found[tid] = account_of(process, tid)
                with open(f"/proc/{process}/task/{tid}/children", "rb", buffering=0) as file:
                    pids += map(int, file.read().split())
    return found


def process_clock_ns(pid: int) -> int:
    """What all threads of a process have used of CPUs since it was made, those that are gone among them; a zombie has
    it, too. The share of a thread that runs is up to a tick old. Raises OSError when the process is gone."""
    return time.clock_gettime_ns(~pid << 3 | _CPUCLOCK_SCHED)


class OpenAccounts:
    """Accounts of threads that are looked at again and again.

    Descriptors are kept open, since a read is then a quarter of the cost (about 1.5 us); the oldest go when there are
    too many, which is half of what is left where events of many threads have taken most.
    """

    def __init__(self, max_open: int = 2000) -> None:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        n_left = soft - len(os.listdir("/proc/self/fd"))
        self._max_open = max(min(max_open, n_left // 2), 1)
        self._fds: dict[tuple[int, int], int] = {}

    def there(self, threads: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        """Threads without those that are gone for certain: of a process of which many are asked for that were not
        before, most have come and gone meanwhile, and to list those that live is cheaper than to miss the others.
        One that is named twice is there once."""
        threads = dict.fromkeys(threads)
        new: dict[int, set[int]] = defaultdict(set)
        for thread in threads.keys() - self._fds.keys():
            new[thread[0]].add(thread[1])
        gone = {(pid, tid) for pid, tids in new.items() if len(tids) > _MANY for tid in tids - _living(pid, tids)}
        return [thread for thread in threads if thread not in gone]

    def read(self, pid: int, tid: int) -> Account | None:
        """A thread's account; None when it is gone or the kernel does not count."""
        fd = self._fds.get((pid, tid), -1)
        try:
            if fd < 0:
                fd = _opened(pid, tid)
                self._keep((pid, tid), fd)
            return _read(fd)
        except (OSError, ValueError):
            self.forget(pid, tid)
            return None

    def forget(self, pid: int, tid: int) -> None:
        """The thread is gone."""
        fd = self._fds.pop((pid, tid), -1)
        if fd >= 0:
            os.close(fd)

    def forget_all(self, threads: Iterable[tuple[int, int]]) -> None:
        """Threads are gone."""
        for thread in self._fds.keys() & set(threads):
            self.forget(*thread)

    def close(self) -> None:
        """Closes all descriptors."""
        for fd in self._fds.values():
            os.close(fd)
        self._fds.clear()

    def _keep(self, thread: tuple[int, int], fd: int) -> None:
        if len(self._fds) >= self._max_open:
            oldest = next(iter(self._fds))
            os.close(self._fds.pop(oldest))
        self._fds[thread] = fd


def _living(pid: int, tids: set[int]) -> set[int]:
    """Those of a process's threads that live; all of them where it has too many others, or does not tell."""
    try:
        if os.stat(f"/proc/{pid}/task").st_nlink - 2 > _MANY * len(tids):  # its links are two more than its threads
            return tids
        return threads_of(pid)
    except (FileNotFoundError, ProcessLookupError):
        return set()
    except OSError:  # it is there, and cannot be listed
        return tids


def _opened(pid: int, tid: int) -> int:
    return os.open(f"/proc/{pid}/task/{tid}/schedstat", os.O_RDONLY | os.O_CLOEXEC)


def _read(fd: int) -> Account:
    """Raises OSError, or ValueError where the kernel keeps none."""
    for _ in range(_MOST_READS):
        time_ns = time.monotonic_ns()
        text = os.pread(fd, 64, 0)
        if time.monotonic_ns() - time_ns < _LONG_NS:
            break  # else we may have been off our CPU in between
    return Account(time_ns, *parse(text))
