"""The accounts that the kernel tells of threads as they end, compared with what they said of themselves."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator

import numpy as np
import pytest

from collector.engines.perf import exits as exits_of
from collector.engines.perf.exits import ExitAccounts
from collector.linux import abi
from collector.linux.taskstats import SIZE, ExitMessages

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


def test_messages_of_version_15_have_fields_in_between() -> None:
    """Linux 6.14.0: peaks and lows of delays (7) stand before run_ns, and more of them before the process's id."""
    def message(version: int, *parts: bytes) -> bytes:
        head = struct.pack("<16xB3x2xH2xHI2xH", abi.TASKSTATS_CMD_NEW, abi.TASKSTATS_TYPE_AGGR_PID,
                           abi.TASKSTATS_TYPE_PID, 7002, abi.TASKSTATS_TYPE_STATS)
        return (head + struct.pack("<H6x", version) + b"".join(parts)).ljust(SIZE, b"\0")

    def words(*values: int) -> bytes:
        return struct.pack(f"<{len(values)}Q", *values)

    def who(comm: bytes) -> bytes:
        return comm.ljust(32, b"\0") + bytes(8) + struct.pack("<IIIIII", 0, 0, 7002, 1, 99, 0) + words(1234)

    since_elapsed = words(*range(100, 120))  # ac_utime to cpu_scaled_run_real_total
    old = message(14, bytes(8), words(3, 400, 0, 0, 0, 0, 500, 600), who(b"sh"), since_elapsed,
                  words(0, 0, 0, 0, 99, 0, 0), struct.pack("<I", 7001))
    new = message(15, bytes(8), words(3, 400, 7, 7, 0, 0, 7, 7, 0, 0, 7, 7, 500, 600), who(b"sh"), since_elapsed,
                  words(0, 0, 7, 7, 0, 0, 7, 7, 99, 0, 0, 7, 7), struct.pack("<I", 7001))
    for text in (old, new):
        rows = np.frombuffer(text, dtype=exits_of._MESSAGE)
        assert exits_of._columns(rows).T.tolist() == [[7001, 7002, 1234, 600, 400, 3]]


def test_nothing_is_left_open(messages: ExitMessages) -> None:
    n_before = len(os.listdir("/proc/self/fd"))
    messages.close()
    messages.close()
    assert len(os.listdir("/proc/self/fd")) == n_before - 1
