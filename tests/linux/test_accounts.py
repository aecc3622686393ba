"""Accounts of threads, compared with what the kernel tells the thread itself."""

from __future__ import annotations

import os
import subprocess
import sys
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


def test_threads_that_end_meanwhile_leave_the_others_their_accounts() -> None:
    script = ("import threading, time\n"
              "for i in range(300): threading.Thread(target=time.sleep, args=(0.2 + i / 1000,)).start()\n"
              "last = threading.Thread(target=time.sleep, args=(61,)); last.start()\n"
              "print(last.native_id, flush=True); input()\n"
              "import os; os._exit(0)\n")
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          text=True) as process:
        assert process.stdout is not None
        last, seen = int(process.stdout.readline()), []
        while process.poll() is None:
            seen.append(accounts.accounts_below(process.pid))
            if len(seen[-1]) == 2:
                break
        process.communicate("\n")
    assert len({len(found) for found in seen}) > 2  # they were ending
    assert all(last in found for found in seen)
