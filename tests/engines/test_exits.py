"""The accounts that the kernel tells of threads as they end, compared with what they said of themselves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import numpy as np
import pytest

from collector.engines.perf.exits import ExitAccounts
from collector.linux.taskstats import ExitMessages

TICK_NS = 10_000_000
SCRIPT = """
import json, os, threading, time
told = {}
def work(n):
    while time.thread_time_ns() < n * 1_000_000: pass
    time.sleep(0.003)
    ran.append(time.thread_time_ns())
ran = []
for n in 7, 31, 53:
    began = time.monotonic_ns()
    thread = threading.Thread(target=work, args=(n,))
    thread.start()
    thread.join()
    while os.path.exists(f"/proc/self/task/{thread.native_id}"): pass  # it may wait for a CPU to end
    told[thread.native_id] = ran.pop(), time.monotonic_ns() - began
print(json.dumps(told))
"""


@pytest.fixture
def messages(last_accounts_told: None) -> Iterator[ExitMessages]:
    """From here on."""
    found = ExitMessages()
    yield found
    found.close()


@pytest.fixture
def exits(messages: ExitMessages) -> ExitAccounts:
    """Accounts from here on."""
    return ExitAccounts(messages)


def test_threads_tell_what_they_ran_as_they_end(exits: ExitAccounts) -> None:
    process = subprocess.Popen([sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE)
    said = json.loads(process.communicate()[0])
    now_ns = time.monotonic_ns()
    found = exits.read(now_ns)
    assert found is not None
    assert found.read_ns == now_ns
    assert len(said) == 3
    mine = found.pid == process.pid
    rows = dict(zip(found.tid[mine].tolist(), np.flatnonzero(mine).tolist(), strict=True))
    assert rows.keys() == {process.pid, *map(int, said)}
    for tid, (run_ns, elapsed_ns) in said.items():
        row = rows[int(tid)]
        assert -TICK_NS <= found.run_ns[row] - run_ns <= TICK_NS
        assert 3_000_000 <= found.elapsed_ns[row] <= elapsed_ns + TICK_NS
        assert found.turns[row] >= 2
        assert found.delay_ns[row] >= 0


def test_more_than_come_at_a_time_are_all_told(exits: ExitAccounts) -> None:
    n = 307
    script = f"import os\nfor _ in range({n}):\n if not os.fork(): os._exit(0)\n else: os.wait()"
    process = subprocess.Popen([sys.executable, "-c", script])
    assert process.wait(60) == 0
    found = exits.read(time.monotonic_ns())
    assert found is not None
    assert len(found.tid) >= n + 1
    assert process.pid in found.tid
    again = exits.read(time.monotonic_ns())
    assert again is None or not (again.pid == process.pid).any()


def test_nothing_is_left_open(messages: ExitMessages) -> None:
    n_before = len(os.listdir("/proc/self/fd"))
    messages.close()
    messages.close()
    assert len(os.listdir("/proc/self/fd")) == n_before - 1
