"""Accounts of threads, compared with what the kernel tells the thread itself."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from collector.linux import accounts


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process that waits for its input to end."""
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()
        process.wait(10)


def test_accounts_are_the_kernels_and_their_files_are_few(child: subprocess.Popen[bytes]) -> None:
    opened = accounts.OpenAccounts(max_open=3)
    n_before = len(os.listdir("/proc/self/fd"))
    me = (os.getpid(), threading.get_native_id())
    first = opened.read(*me)
    exact = tuple(map(int, Path("/proc/thread-self/schedstat").read_text().split()))
    again = opened.read(*me)
    assert first is not None
    assert again is not None
    assert all(a <= b <= c for a, b, c in zip(first[1:], exact, again[1:], strict=True))
    tids = [(child.pid, child.pid), (os.getppid(), os.getppid()), (1, 1), me]
    assert all(opened.read(*tid) is not None for tid in tids)
    assert len(os.listdir("/proc/self/fd")) <= n_before + 3
    assert opened.read(2**22 + 1, 2**22 + 1) is None
    opened.forget(*me)
    opened.forget(*me)
    opened.close()
    assert len(os.listdir("/proc/self/fd")) == n_before
