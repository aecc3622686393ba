"""Looks at real threads, in rounds as the tracer makes them."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
from traced import Traced, running

from collector.engines.ptrace import looks, settlement
from collector.engines.ptrace.targets import AWAKE_NS

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
