"""Calls of a program that signals reach as well as the tracer: it must see what it sees without us."""

from __future__ import annotations

import os
import select
import signal
import time
from pathlib import Path

import pytest
from traced import running

from collector.linux import abi, accounts

# Tells how much of what it asked for it has read in one call, which a signal comes amid that has a handler.
READS = """
import signal, sys
signal.signal(signal.SIGUSR1, lambda *_: None)
memory = bytearray(int(sys.argv[1]))
with open("/dev/urandom", "rb", buffering=0) as file:
    print(flush=True)
    sys.stdin.readline()
    print(file.readinto(memory), flush=True)
sys.stdin.readline()
"""

N_BYTES = 64 << 20

pytestmark = pytest.mark.usefixtures("attach_allowed")


def test_a_call_that_is_mended_goes_on_behind_a_handler() -> None:
    """Which is called as soon as we let the thread go, before it makes its call again."""
    with running(READS, N_BYTES) as traced:
        account = Path(f"/proc/{traced.pid}/schedstat")
        before_ns, _, _ = accounts.parse(account.read_bytes())
        traced.go_on()
        while accounts.parse(account.read_bytes())[0] < before_ns + 10_000_000:
            time.sleep(0.001)
        traced.ask()
        os.kill(traced.pid, signal.SIGUSR1)
        traced.hear_until(abi.EVENT_STOP)
        completion = traced.leader.completion
        assert completion is not None  # it reads on
        for report in traced.reports():
            traced.tracer.reports.hear(report)
            if report.signal == signal.SIGUSR1:
                break
        while not select.select([traced.output], [], [], 0.001)[0]:
            traced.tracer.reports.take()
        n_read = int(traced.output.readline())
        traced.hear_all()
    assert n_read == completion.done == N_BYTES  # and has read nothing twice
