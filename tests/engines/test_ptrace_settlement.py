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
from collector.events import Edge, Reason
from collector.linux import abi, accounts, tasks
from collector.linux.crowd import Crowd

INTERVAL_NS = 10_007_000
LATE_S = 0.05
ASLEEP_FROM_NS, PROVEN_NS, NOW_NS = 1_000_000_000, 1_960_000_000, 2_000_000_000


class Settled:
    """A thread, and what is told of it."""

    def __init__(self, thread: Tracee) -> None:
        self.thread = thread
        self._channel = Channel(1 << 16)
        self._writer = Writer(self._channel, 1024)
        departures = Departures(self._writer, Mappings(self._writer, INTERVAL_NS))
        self._settlement = Settlement(self._writer, departures, Crowd(), INTERVAL_NS)

    def settle(self, raw: bytes, now_ns: int, there: tasks.Place | None = None) -> dict[int, int]:
        """By an account; for how long it is told to have been off its CPU, by the edge that this began with."""
        self._settlement.settle(self.thread, raw, now_ns, there)
        self._writer.publish(now_ns, now_ns)
        heads, _, _ = self._channel.snapshot()
        rows = np.frombuffer(self._channel.take("switch", heads["switch"]), dtype=abi.TRACED_SWITCH.dtype)
        lengths_ns = np.diff(rows["time"].astype(np.int64), append=now_ns)
        return {edge: int(lengths_ns[rows["edge"] == edge].sum()) for edge in (Edge.OUT_BLOCKED, Edge.OUT_PREEMPTED)}


class Spinning(Settled):
    """A thread that never sleeps of its own accord, found running."""

    def __init__(self, pid: int) -> None:
        super().__init__(Tracee(pid, Traced(pid), tasks.Files(pid, pid), 0))
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
    told_ns = spinning.settle(raw, time.monotonic_ns())
    assert told_ns[Edge.OUT_BLOCKED] == 0
    assert told_ns[Edge.OUT_PREEMPTED] >= LATE_S * 0.999e9  # edges have some ns between them


def test_who_has_slept_has_slept_for_what_its_account_lacks(spinning: Spinning) -> None:
    spinning.stop()
    raw = spinning.account()
    time.sleep(LATE_S)
    spinning.go_on()
    assert spinning.settle(raw, time.monotonic_ns())[Edge.OUT_BLOCKED] >= LATE_S * 0.999e9


@pytest.fixture
def asleep() -> Settled:
    """A thread that fell asleep a second ago and was last seen to sleep a moment ago, by times and accounts of ours."""
    place = tasks.Place(0, 0, 0)
    thread = Tracee(os.getpid(), Traced(os.getpid()), tasks.Files(os.getpid(), os.getpid()), ASLEEP_FROM_NS,
                    raw=b"5000000 0 1\n", cpu_ns=5_000_000, turns=1, running=False, told_ns=ASLEEP_FROM_NS,
                    place=place, known={place: Reason.SLEEP}, asleep_ns=PROVEN_NS, seen_ns=NOW_NS, looked_ns=NOW_NS)
    return Settled(thread)


def test_who_is_seen_to_sleep_has_waited_for_nothing_up_to_then(asleep: Settled) -> None:
    """Its account has waited since it was moved to another CPU, soon after it had gone to sleep."""
    told_ns = asleep.settle(b"10000000 950000000 2\n", NOW_NS)
    assert told_ns[Edge.OUT_PREEMPTED] == pytest.approx(NOW_NS - PROVEN_NS - 5_000_000, abs=10)


def test_what_an_account_has_waited_in_a_sleep_is_not_told_behind_it(asleep: Settled) -> None:
    """It was moved on once more: that ends the wait for its account, and it sleeps on."""
    later_ns, raw = NOW_NS + 1_000_000_000, b"5000000 950000000 1\n"
    assert asleep.settle(raw, NOW_NS, asleep.thread.place) == {Edge.OUT_BLOCKED: 0, Edge.OUT_PREEMPTED: 0}
    assert asleep.thread.raw == raw  # and is no news at the next look
    assert asleep.settle(b"10000000 950000000 2\n", later_ns)[Edge.OUT_PREEMPTED] == 0
