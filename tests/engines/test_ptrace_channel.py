"""What a tracer lays into the memory that it shares with us, read while it writes and after it was killed."""

from __future__ import annotations

import os
import random
import signal
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from collector.engines.ptrace.channel import RINGS, Channel, unframed
from collector.engines.ptrace.targets import Traced, Tracee
from collector.engines.ptrace.writer import Writer
from collector.events import Edge
from collector.linux import abi, tasks

KILLS, SEED = 60, 20_260_214
N_WORDS = 8  # of a row


@contextmanager
def writer(channel: Channel) -> Iterator[int]:
    """A process that publishes rounds, one row of the round's number in each ring, as fast as it can."""
    pid = os.fork()
    if pid == 0:
        try:
            n = 0
            while True:
                n += 1
                rows = {name: bytearray(array("Q", [n] * N_WORDS).tobytes()) for name in RINGS}
                while not channel.publish(rows, n, n):
                    time.sleep(0)
        finally:
            os._exit(1)
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def taken(channel: Channel, n_before: int) -> int:
    """The number of the last round; all rounds since ``n_before`` are whole in all rings, and nothing else is there."""
    heads, stack_head, n_rounds = channel.snapshot()
    assert stack_head == n_rounds
    expected = array("Q", [n for n in range(n_before + 1, n_rounds + 1) for _ in range(N_WORDS)]).tobytes()
    assert all(channel.take(name, heads[name]) == expected for name in RINGS)
    return n_rounds


def test_a_reader_sees_whole_rounds() -> None:
    channel, n_rounds = Channel(1 << 10), 0
    with writer(channel):
        while n_rounds < 5000:
            n_rounds = taken(channel, n_rounds)


def test_a_writer_that_is_killed_leaves_whole_rounds() -> None:
    chance = random.Random(SEED)
    for _ in range(KILLS):
        channel = Channel(1 << 10)
        with writer(channel) as pid:
            while not channel.snapshot()[2]:
                time.sleep(0)
            time.sleep(chance.uniform(0, 0.005))
            os.kill(pid, signal.SIGKILL)
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            assert taken(channel, 0) > 0


def test_more_changes_than_the_ring_has_room_for_come_whole_and_in_order() -> None:
    channel = Channel(1024)
    writer = Writer(channel, 64)
    n_changes = 4 * RINGS["change"] // 10_000
    for n in range(n_changes):
        writer.change("Mapped", n, "x" * 10_000)
    found = []
    for _ in range(20):
        writer.publish(1, 1)
        heads, _, _ = channel.snapshot()
        found += unframed(channel.take("change", heads["change"]))
        if not writer.behind:
            break
    assert not writer.behind
    assert [change[1] for change in found] == list(range(n_changes))


def test_the_rows_of_a_thread_come_between_its_birth_and_its_end() -> None:
    """However many there are, and whatever else is told meanwhile: who came behind would be told as a thread more."""
    channel = Channel(1024)
    writer = Writer(channel, 64)
    process = Traced(100)
    n_switches, n_lives = 3 * RINGS["switch"] // abi.TRACED_SWITCH.dtype.itemsize, 3
    for tid in range(101, 101 + n_lives):
        thread = Tracee(tid, process, tasks.Files(100, tid), 0)
        writer.change("Forked", 1, 100, tid, 100, 100)
        for n in range(n_switches // n_lives):
            writer.switch(thread, Edge.IN, n)
            writer.change("Mapped", n, "x" * 100)
        writer.change("Exited", n_switches, 100, tid)
    living: set[int] = set()
    n_found = 0
    for _ in range(100):
        writer.publish(1, 1)
        heads, _, _ = channel.snapshot()
        changes = unframed(channel.take("change", heads["change"]))
        rows = np.frombuffer(channel.take("switch", heads["switch"]), dtype=abi.TRACED_SWITCH.dtype)
        living |= {change[3] for change in changes if change[0] == "Forked"}
        assert set(np.unique(rows["tid"]).tolist()) <= living
        living -= {change[3] for change in changes if change[0] == "Exited"}
        n_found += len(rows)
        if not writer.behind:
            break
    assert not writer.behind
    assert (n_found, living) == (n_switches // n_lives * n_lives, set())
