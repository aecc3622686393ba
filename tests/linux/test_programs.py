"""What programs are found to be that a tracer stands in the way of."""

from __future__ import annotations

import os
import subprocess
from contextlib import ExitStack

import pytest

from collector.linux import programs


def test_a_program_is_read_once_for_all_processes_that_execute_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """They stand still meanwhile; those of a large program for long."""
    reads: list[int] = []
    pread = os.pread

    def counted(fd: int, n_bytes: int, offset: int) -> bytes:
        reads.append(n_bytes)
        return pread(fd, n_bytes, offset)

    with ExitStack() as ends:
        pids = []
        for _ in range(2):
            process = ends.enter_context(subprocess.Popen(["/bin/sleep", "600"]))
            ends.callback(process.kill)
            pids.append(process.pid)
        assert not programs.checks_leaks(pids[0])
        with monkeypatch.context() as patched:
            patched.setattr(os, "pread", counted)
            assert not programs.checks_leaks(pids[1])
    assert not reads
