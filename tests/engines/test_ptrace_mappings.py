"""When the tracer reads a process's mappings again."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from collector.engines.ptrace.channel import Channel
from collector.engines.ptrace.mappings import Mappings
from collector.engines.ptrace.targets import Traced, Tracee
from collector.engines.ptrace.writer import Writer
from collector.linux import tasks

INTERVAL_NS = 10_007_000
KEPT_WAITING_NS = 1_000_000


@pytest.fixture
def spinner() -> Iterator[int]:
    """A process that shares one CPU with us."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        yield process.pid
        process.kill()
    os.sched_setaffinity(0, before)


def tracee(pid: int, young_until_ns: int) -> tuple[Mappings, Tracee]:
    """A thread of a process, and who reads what that has mapped."""
    process = Traced(pid, young_until_ns=young_until_ns)
    return Mappings(Writer(Channel(1 << 16), 1024), INTERVAL_NS), Tracee(pid, process, tasks.Files(pid, pid), 0)


def is_read(mappings: Mappings, thread: Tracee, now_ns: int) -> bool:
    """Whether the mappings of a process are read at a time for a pc that none of them has."""
    before_ns = thread.process.mapped_ns
    mappings.check(thread, 0, now_ns, now_ns)
    return thread.process.mapped_ns > before_ns


def test_a_program_is_young_until_it_has_run() -> None:
    """However long others have kept it from doing so. Of an old one mappings are not read again and again."""
    mappings, thread = tracee(os.getpid(), young_until_ns=1)
    process = thread.process

    def is_read_again() -> bool:
        """Whether they are read though they have just been, where reading takes no time."""
        process.mapping_ns = 0
        return is_read(mappings, thread, process.mapped_ns + 1)

    assert all(is_read_again() for _ in range(3))
    child = process.copied(os.getpid())
    process.cpu_ns = 1
    assert not is_read_again()
    assert child.is_young and not process.copied(os.getpid()).is_young


def test_the_size_of_one_that_is_gone_is_what_it_was() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        mappings, thread = tracee(process.pid, young_until_ns=1)
        mappings.measure(thread, 1)
        thread.files.close()
        size = thread.process.size_now
    mappings.measure(thread, 2)
    assert thread.process.size_now == size != b""


def test_others_that_have_our_cpu_do_not_make_reading_rest(spinner: int) -> None:
    """Reading rests for as long as it took us, not for as long as it lasted: a program's first library would be in no
    map by the time that the program sleeps in it."""
    mappings, thread = tracee(spinner, young_until_ns=1)
    process, was_kept_waiting = thread.process, False
    while not was_kept_waiting:
        used_ns, now_ns = time.thread_time_ns(), time.monotonic_ns()
        if is_read(mappings, thread, now_ns):
            used_ns = time.thread_time_ns() - used_ns
            was_kept_waiting = process.mapped_ns - now_ns > used_ns + KEPT_WAITING_NS
            assert 0 < process.mapping_ns <= used_ns
