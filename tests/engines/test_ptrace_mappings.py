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


def test_others_that_have_our_cpu_do_not_make_reading_rest(spinner: int) -> None:
    """Reading rests for as long as it took us, not for as long as it lasted: a program's first library would be in no
    map by the time that the program sleeps in it."""
    channel = Channel(1 << 16)
    mappings = Mappings(Writer(channel, 1024), INTERVAL_NS)
    process = Traced(spinner, young_until_ns=1 << 62)
    thread = Tracee(spinner, process, tasks.Files(spinner, spinner), 0)
    was_kept_waiting = False
    while not was_kept_waiting:
        before_ns, used_ns, now_ns = process.mapped_ns, time.thread_time_ns(), time.monotonic_ns()
        mappings.check(thread, 0, now_ns, now_ns)  # a pc of no mapping
        used_ns = time.thread_time_ns() - used_ns
        if process.mapped_ns > before_ns:
            was_kept_waiting = process.mapped_ns - now_ns > used_ns + KEPT_WAITING_NS
            assert 0 < process.mapping_ns <= used_ns
