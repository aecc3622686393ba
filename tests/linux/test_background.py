"""Work that stands back, in a process beside real ones that want all CPUs."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

NOBODY = 65534
NORMAL, IDLE = os.SCHED_OTHER, os.SCHED_IDLE
BEGIN = f"""
import ctypes, os, resource, signal, sys, time
from subprocess import Popen
from collector.linux.background import Background, come_forward

def end_of(condition):
    deadline_s = time.monotonic() + 20
    while condition():
        assert time.monotonic() < deadline_s

def policy_in(background, patience_ms):
    with background.work(patience_ms * 1_000_000):
        return os.sched_getscheduler(0)

def stand_back(patience_ms, work=lambda: os.SCHED_IDLE):
    # Again until it does: the watchdog may not have heard yet that the last time is over.
    deadline_s = time.monotonic() + 20
    while time.monotonic() < deadline_s:
        with background.work(patience_ms * 1_000_000):
            if os.sched_getscheduler(0) == os.SCHED_IDLE:
                return work()
    raise AssertionError

if sys.argv[1] == "nobody":
    resource.setrlimit(resource.RLIMIT_NICE, (0, 0))
    if not os.geteuid():
        os.setuid({NOBODY})
background = Background()
background.prepare()
"""
READY = "stand_back(500)\n"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: others may not have a policy back")


@pytest.fixture
def wanted(workload: Callable[..., Path]) -> Iterator[None]:
    """All CPUs are, for as long as a test takes."""
    with subprocess.Popen([workload("busy"), str(2 * (os.cpu_count() or 1)), "100000000"],
                          stdout=subprocess.DEVNULL) as process:
        yield
        process.kill()


@contextmanager
def script(text: str, who: str = "root", nice: int = 0) -> Iterator[subprocess.Popen[str]]:
    command = ["nice", "-n", nice - os.getpriority(os.PRIO_PROCESS, 0), sys.executable, "-c", BEGIN + text, who]
    with subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def said(text: str, who: str = "root", nice: int = 0) -> list[int]:
    with script(text, who, nice) as process:
        words = process.communicate(timeout=60)[0].split()
        assert process.returncode == 0
    return [*map(int, words)]


@needs_root
def test_work_has_the_idle_policy_and_gives_it_back(wanted: None) -> None:
    assert said("print(stand_back(500), os.sched_getscheduler(0))\n"
                "print(policy_in(background, 0))\n") == [IDLE, NORMAL, NORMAL]


@needs_root
def test_when_patience_is_over_work_goes_on_though_it_holds_the_lock_of_the_interpreter(wanted: None) -> None:
    assert said("""
libc = ctypes.PyDLL(None)
stand_back(20, lambda: end_of(lambda: libc.usleep(1000) or os.sched_getscheduler(0) == os.SCHED_IDLE))
stand_back(500)
print(1)
""") == [1]


@needs_root
def test_who_gives_its_policy_away_when_patience_is_over_has_it_back_too(wanted: None) -> None:
    """As one that had to wait for a CPU just before: it would have next to nothing of the CPUs for good."""
    assert said("""
libc = ctypes.PyDLL(None)
def late():
    end_of(lambda: libc.usleep(1000) or os.sched_getscheduler(0) == os.SCHED_IDLE)
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    end_of(lambda: libc.usleep(1000) or os.sched_getscheduler(0) == os.SCHED_IDLE)
stand_back(20, late)
print(1)
""") == [1]


@needs_root
@pytest.mark.parametrize("how", ["SIGKILL", "SIGSTOP"])
def test_without_a_watchdog_nothing_stands_back(how: str, wanted: None) -> None:
    """But once, beside one that is stopped and does not hear of it."""
    assert said(READY + f"""
os.kill(background._watchdog._pid, signal.{how})
policy_in(background, 500)
print(max(policy_in(background, 500) for _ in range(37)))
background.close()
try:
    os.waitpid(-1, 0)
except ChildProcessError:
    print(1)
""") == [NORMAL, 1]


@needs_root
def test_work_that_fails_gives_the_policy_back(wanted: None) -> None:
    assert said("""
try:
    stand_back(500, lambda: 1 / 0)
except ZeroDivisionError:
    print(os.sched_getscheduler(0))
background.close()
print(policy_in(background, 500))
""") == [NORMAL, NORMAL]


def test_who_may_not_have_it_back_does_not_give_it_away(wanted: None) -> None:
    assert said("""
end_of(lambda: background._watchdog is None and not background._cannot and background.prepare() is None)
end_of(lambda: not background._cannot and policy_in(background, 500) == os.SCHED_OTHER)
print(int(background._cannot), policy_in(background, 500))
""", "nobody") == [1, NORMAL]


@needs_root
def test_who_is_begun_by_one_that_comes_forward_does_not_stand_back(wanted: None) -> None:
    assert said("""
def begin():
    come_forward()
    come_forward()
    with Popen([sys.executable, "-c", "import os; print(os.sched_getscheduler(0))"]):
        return os.sched_getscheduler(0)
print(stand_back(500, begin))
""") == [NORMAL, NORMAL]


@needs_root
@pytest.mark.parametrize("given", ["os.setpriority(os.PRIO_PROCESS, 0, -5)",
                                   "os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))"])
def test_who_was_given_something_else_keeps_it(given: str, wanted: None) -> None:
    policy = os.SCHED_BATCH if "BATCH" in given else NORMAL
    assert said(READY + f"{given}\nprint(policy_in(background, 500), os.sched_getscheduler(0))\n") == [policy, policy]


@needs_root
def test_the_watchdog_ends_with_whom_it_watches_over(wanted: None) -> None:
    with script(READY + "print(background._watchdog._pid, flush=True)\ntime.sleep(1000)\n") as process:
        assert process.stdout is not None
        pidfd = os.pidfd_open(int(process.stdout.readline()))
        process.send_signal(signal.SIGKILL)
    assert select.select([pidfd], [], [], 20)[0]
    os.close(pidfd)
