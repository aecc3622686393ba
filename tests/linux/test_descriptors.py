"""Descriptors that a process leaves behind to be closed."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

# Leaves the writing end of one pipe behind, but not that of another, closes both, says so, and waits to be ended.
LEAVES = """
import os, sys
from collector.linux.descriptors import leave_behind
kept, other = map(int, sys.argv[1:])
leave_behind({kept})
os.close(kept)
os.close(other)
print("left", flush=True)
sys.stdin.readline()
"""
SOON_S, LATER_S = 0.2, 20.0


@pytest.fixture
def pipes() -> Iterator[list[tuple[int, int]]]:
    """Two, of which the tests close the writing ends."""
    made = [os.pipe() for _ in range(2)]
    yield made
    for read, _ in made:
        os.close(read)


def _is_over(fd: int, within_s: float) -> bool:
    return bool(select.select([fd], [], [], within_s)[0]) and os.read(fd, 1) == b""


@contextmanager
def leaving(kept: int, other: int) -> Iterator[subprocess.Popen[str]]:
    """A process that has left one of ours behind and closed both, which we have not open any more; and its end."""
    with subprocess.Popen([sys.executable, "-c", LEAVES, str(kept), str(other)], text=True, pass_fds=[kept, other],
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        os.close(kept)
        os.close(other)
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "left\n"
        yield process
        process.stdin.close()
        assert process.wait(LATER_S) == 0
        assert process.stdout.read() == ""  # whoever was left behind does not have it open


def test_what_is_left_behind_is_open_until_its_process_has_ended(pipes: list[tuple[int, int]]) -> None:
    (kept, kept_write), (other, other_write) = pipes
    with leaving(kept_write, other_write):
        assert _is_over(other, LATER_S)
        assert not _is_over(kept, SOON_S)  # though the process itself has closed it
    assert _is_over(kept, LATER_S)


def test_only_our_end_ends_who_was_left_behind(pipes: list[tuple[int, int]]) -> None:
    (kept, kept_write), (_, other_write) = pipes
    with leaving(kept_write, other_write) as process:
        (left,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):  # for the job
            os.kill(int(left), number)
        assert not _is_over(kept, SOON_S)
    assert _is_over(kept, LATER_S)
