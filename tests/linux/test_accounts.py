"""Accounts of threads, compared with what the kernel tells the thread itself."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
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


FEW_LEFT = """
import os, resource, threading
from collector.linux.accounts import OpenAccounts
gate = threading.Event()
threads = [threading.Thread(target=gate.wait, daemon=True) for _ in range(100)]
for thread in threads: thread.start()
resource.setrlimit(resource.RLIMIT_NOFILE, (500, 500))
taken = [os.open(os.devnull, os.O_RDONLY) for _ in range(440)]  # as events of many threads are
opened = OpenAccounts()
read = [opened.read(os.getpid(), thread.native_id) is not None for _ in range(2) for thread in threads]
n_left = len([os.open(os.devnull, os.O_RDONLY) for _ in range(24)])
print(sum(read), n_left)
"""


def test_accounts_are_read_though_events_have_taken_most_descriptors() -> None:
    """And others still get some."""
    said = subprocess.run([sys.executable, "-c", FEW_LEFT], check=True, capture_output=True, text=True).stdout
    assert said.split() == ["200", "24"]


def test_threads_that_end_meanwhile_leave_the_others_their_accounts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred at a time, of four hundred: when they have been listed, and before their accounts are read."""
    script = ("import os, threading\n"
              "gates = [threading.Event() for _ in range(4)]\n"
              "for gate in gates:\n"
              "    threads = [threading.Thread(target=gate.wait, daemon=True) for _ in range(100)]\n"
              "    for thread in threads: thread.start()\n"
              "    print(*(thread.native_id for thread in threads), flush=True)\n"
              "for gate in gates[:3]: input(); gate.set()\n"
              "input(); os._exit(0)\n")
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        command, exists = process.stdin, os.path.exists
        *groups, lasting = [set(map(int, process.stdout.readline().split())) for _ in range(4)]
        left = {process.pid}.union(lasting, *groups)
        assert set(accounts.accounts_below(process.pid)) == left
        for group in groups:
            def listed_before(last: str, ending: set[int] = group) -> bool:
                is_whole = exists(last)  # the list, see thread_list
                command.write("\n")
                command.flush()
                while not ending.isdisjoint(map(int, os.listdir(f"/proc/{process.pid}/task"))):
                    time.sleep(0.001)
                return is_whole

            left -= group
            with monkeypatch.context() as patched:
                patched.setattr(os.path, "exists", listed_before)
                assert set(accounts.accounts_below(process.pid)) == left
        process.communicate("\n")
