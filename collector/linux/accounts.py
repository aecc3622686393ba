"""The kernel's own accounts of threads: /proc/PID/task/TID/schedstat. Standard library only: this runs before the
target does.

An account is brought up to date at the thread's switches and at the ticks of its CPU.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress

Account = tuple[int, int, int]  # since the thread's birth: ns on CPU, ns waiting for one, and how often it got one
TimedAccount = tuple[int, int, int, int]  # as of when; and the account


def parse(text: bytes) -> Account:
    """An account as schedstat has it. Raises ValueError where the kernel keeps none."""
    run_ns, delay_ns, turns = text.split()
    return int(run_ns), int(delay_ns), int(turns)


def account_of(pid: int, tid: int) -> TimedAccount:
    """A thread's account. Raises OSError, or ValueError where the kernel keeps none."""
    with open(f"/proc/{pid}/task/{tid}/schedstat", "rb", buffering=0) as file:
        account = parse(file.read(64))
    return time.monotonic_ns(), *account


def accounts_below(pid: int) -> dict[int, TimedAccount]:
    """The accounts of all threads of a process and its descendants, by tid."""
    found: dict[int, TimedAccount] = {}
    pids = [pid]
    for process in pids:
        with suppress(OSError, ValueError):
            for tid in os.listdir(f"/proc/{process}/task"):
                found[int(tid)] = account_of(process, int(tid))
                with open(f"/proc/{process}/task/{tid}/children", "rb", buffering=0) as file:
                    pids += map(int, file.read().split())
    return found
