"""Looks at real threads, in rounds as the tracer makes them."""

from __future__ import annotations

import time

import pytest
from traced import Traced, running

from collector.engines.ptrace.targets import AWAKE_NS

# Waits for a line.
WAITS = "import sys\nprint(flush=True)\nsys.stdin.readline()"
N_ROUNDS, PAUSE_S = 40, 0.01

pytestmark = pytest.mark.usefixtures("attach_allowed")


def look(traced: Traced) -> None:
    """A round."""
    looks = traced.tracer._looks
    looks.begin()
    looks.look_at_active(time.monotonic_ns(), traced.tracer.reports.take)
    traced.tracer.reports.take()
    looks.look_at_idle()


def test_who_sleeps_is_checked_on_and_keeps_no_files_open() -> None:
    """Or its account, which may have waited in its sleep, would have to be believed."""
    with running(WAITS) as traced:
        for _ in range(N_ROUNDS):
            look(traced)
            time.sleep(PAUSE_S)
        thread = traced.leader
        is_running, unproven_ns, files = thread.running, thread.looked_ns - thread.asleep_ns, list(thread.files._fds)
        traced.hear_all()
    assert not is_running
    assert unproven_ns < 2 * AWAKE_NS
    assert files == ["schedstat"]
