"""Looks at real threads, in rounds as the tracer makes them."""

from __future__ import annotations

import os
import signal
import time
from types import SimpleNamespace

import pytest
from traced import Traced, running

from collector.engines.ptrace import looks, settlement
from collector.engines.ptrace.targets import AWAKE_NS
from collector.events import Edge
from collector.linux import tasks

# Waits for a line.
WAITS = "import sys\nprint(flush=True)\nsys.stdin.readline()"
N_ROUNDS, PAUSE_NS = 40, 10_000_000

pytestmark = pytest.mark.usefixtures("attach_allowed")


def look(traced: Traced, now_ns: int) -> None:
    """A round."""
    looks = traced.tracer._looks
    looks.begin()
    looks.look_at_active(now_ns, traced.tracer.reports.take)
    traced.tracer.reports.take()
    looks.look_at_idle()


def test_who_sleeps_is_checked_on_and_keeps_no_files_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or its account, which may have waited in its sleep, would have to be believed. How often it is checked on depends
    on how long it has slept: the clock of the rounds is ours."""
    with running(WAITS) as traced:
        while traced.leader.is_awake():
            time.sleep(0.001)
        now_ns = [time.monotonic_ns()]
        for module in (looks, settlement):
            monkeypatch.setattr(module, "time", SimpleNamespace(monotonic_ns=lambda: now_ns[0]))
        for _ in range(N_ROUNDS):
            look(traced, now_ns[0])
            now_ns[0] += PAUSE_NS
        monkeypatch.undo()
        thread = traced.leader
        is_running, unproven_ns, files = thread.running, thread.looked_ns - thread.asleep_ns, list(thread.files._fds)
        traced.hear_all()
    assert not is_running
    assert unproven_ns < 2 * AWAKE_NS
    assert files == ["schedstat"]


def test_who_has_stopped_and_gone_on_before_recording_begins_sleeps() -> None:
    """What was told of it before is told no more."""
    with running(WAITS) as traced:
        for number, stopped in ((signal.SIGSTOP, True), (signal.SIGCONT, False)):
            os.kill(traced.pid, number)
            while traced.leader.in_stop != stopped:
                time.sleep(0.001)
                traced.tracer.reports.take()
        while tasks.state(traced.leader.files.read_once("status", 4096)) != b"S" or traced.leader.is_awake():
            time.sleep(0.001)  # it stops once more, for the signal itself
            traced.tracer.reports.take()
        traced.tracer._begin()
        look(traced, time.monotonic_ns())
        _, switches = traced.told()
        traced.hear_all()
    assert switches["edge"].tolist() == [Edge.OUT_BLOCKED]
