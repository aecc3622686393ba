"""What accounts of real threads are told as, where they fall short of the time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import numpy as np
import pytest

from collector.engines.ptrace.channel import Channel
from collector.engines.ptrace.departures import Departures
from collector.engines.ptrace.mappings import Mappings
from collector.engines.ptrace.settlement import Settlement
from collector.engines.ptrace.targets import Traced, Tracee
from collector.engines.ptrace.writer import Writer
from collector.events import Edge
from collector.linux import abi, accounts, tasks
from collector.linux.crowd import Crowd

INTERVAL_NS = 10_007_000
LATE_S = 0.05


class Spinning:
    """A thread that never sleeps of its own accord, found running, and what is told of it."""

    def __init__(self, pid: int) -> None:
        self._channel = Channel(1 << 16)
        self._writer = Writer(self._channel, 1024)
        departures = Departures(self._writer, Mappings(self._writer, INTERVAL_NS))
        self._settlement = Settlement(self._writer, departures, Crowd(), INTERVAL_NS)
        self.thread = Tracee(pid, Traced(pid), tasks.Files(pid, pid), 0)
        self.stop()  # then its account is exact
        self.thread.raw = self.account()
        self.thread.cpu_ns, self.thread.delay_ns, self.thread.turns = accounts.parse(self.thread.raw)
        self.thread.settled_ns = time.monotonic_ns()
        self.go_on()
        self.thread.n_sleeps = self.thread.read_sleeps()
        while accounts.parse(self.account())[0] == self.thread.cpu_ns:
            time.sleep(0.001)

    def account(self) -> bytes:
        """Its account now."""
        return self.thread.files.read("schedstat", 64)

    def stop(self) -> None:
        """It sleeps, and has left its CPU, until it goes on."""
        os.kill(self.thread.tid, signal.SIGSTOP)
        while self.thread.is_awake():
            time.sleep(0.001)

    def go_on(self) -> None:
        """It is ready to run."""
        os.kill(self.thread.tid, signal.SIGCONT)
        while tasks.state(self.thread.files.read_once("status", 4096)) != b"R":
            time.sleep(0.001)

    def settle(self, raw: bytes) -> dict[int, int]:
        """By an account; for how long it is told to have been off its CPU, by the edge that this began with."""
        now_ns = time.monotonic_ns()
        self._settlement.settle(self.thread, raw, now_ns)
        self._writer.publish(now_ns, now_ns)
        heads, _, _ = self._channel.snapshot()
        rows = np.frombuffer(self._channel.take("switch", heads["switch"]), dtype=abi.TRACED_SWITCH.dtype)
        lengths_ns = np.diff(rows["time"].astype(np.int64), append=now_ns)
        return {edge: int(lengths_ns[rows["edge"] == edge].sum()) for edge in (Edge.OUT_BLOCKED, Edge.OUT_PREEMPTED)}


@pytest.fixture
def spinning() -> Iterator[Spinning]:
    """Of a program that has begun to."""
    with subprocess.Popen([sys.executable, "-c", "print(flush=True)\nwhile True: pass"],
                          stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield Spinning(process.pid)
        finally:
            process.kill()


def test_who_has_not_slept_has_waited_for_what_its_account_lacks(spinning: Spinning) -> None:
    """As from when it has stopped for us to when we hear of that: some 100 us, a hundred times a second."""
    raw = spinning.account()
    time.sleep(LATE_S)
    told_ns = spinning.settle(raw)
    assert told_ns[Edge.OUT_BLOCKED] == 0
    assert told_ns[Edge.OUT_PREEMPTED] >= LATE_S * 0.999e9  # edges have some ns between them


def test_who_has_slept_has_slept_for_what_its_account_lacks(spinning: Spinning) -> None:
    spinning.stop()
    raw = spinning.account()
    time.sleep(LATE_S)
    spinning.go_on()
    assert spinning.settle(raw)[Edge.OUT_BLOCKED] >= LATE_S * 0.999e9
