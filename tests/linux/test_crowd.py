"""Priority where many threads wait for a CPU: taken and given back by a process beside real ones that work."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

NOBODY = 65534
WHO = f"""
import os, resource, sys, time
from collector.linux.crowd import Crowd, lead_session
if sys.argv[1] == "nobody":
    resource.setrlimit(resource.RLIMIT_NICE, (0, 0))
    if not os.geteuid():
        os.setuid({NOBODY})
"""
BESIDE = WHO + """
crowd = Crowd()
for expected in sys.stdin:
    crowd.look()
    while crowd.is_there != int(expected):
        time.sleep(0.01)
        crowd.look()
    if len(sys.argv) > 2 and int(expected):
        os.setpriority(os.PRIO_PROCESS, 0, int(sys.argv[2]))
    print(crowd.is_there, os.getpriority(os.PRIO_PROCESS, 0), flush=True)
"""


def beside(crowd: list[str], nice: int, who: str, *then: int) -> tuple[str, str]:
    """What a process that starts with a nice value sees and has beside a crowd, and when that is gone. Beside it,
    it is given the nice value ``then``."""
    command = ["nice", "-n", nice - os.getpriority(os.PRIO_PROCESS, 0), sys.executable, "-c", BESIDE, who, *then]
    with (subprocess.Popen([*map(str, command)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process,
          subprocess.Popen(crowd, stdout=subprocess.PIPE) as others):
        assert process.stdin is not None and process.stdout is not None and others.stdout is not None
        try:
            others.stdout.readline()
            print(1, file=process.stdin, flush=True)
            among = process.stdout.readline().strip()
            others.kill()
            print(0, file=process.stdin, flush=True)
            return among, process.stdout.readline().strip()
        finally:
            others.kill()
            process.kill()


@pytest.fixture
def crowd(workload: Callable[..., Path]) -> list[str]:
    """Threads that all work on one CPU, five for each CPU of the machine."""
    cpu, n_threads = min(os.sched_getaffinity(0)), 5 * (os.cpu_count() or 1)
    return ["taskset", "-c", str(cpu), str(workload("crowd")), str(n_threads), "1", "0"]


def test_beside_many_it_takes_the_highest_priority_and_gives_it_back(crowd: list[str], may_hurry: None) -> None:
    assert beside(crowd, 0, "root") == ("True -20", "False 0")


def test_who_was_given_a_low_priority_keeps_it(crowd: list[str], may_hurry: None) -> None:
    assert beside(crowd, 7, "root") == ("True 7", "False 7")


def test_a_priority_that_was_changed_from_outside_stays(crowd: list[str], may_hurry: None) -> None:
    assert beside(crowd, 0, "root", 5) == ("True 5", "False 5")


def test_who_may_not_have_another_priority_keeps_his_own(crowd: list[str]) -> None:
    given = os.getpriority(os.PRIO_PROCESS, 0)
    assert beside(crowd, given, "nobody") == (f"True {given}", f"False {given}")


# --- sessions -------------------------------------------------------------------------------------


LEADS = WHO + """
if sys.argv[1].isdigit():
    os.setsid()
    with open("/proc/self/autogroup", "w") as file:
        file.write(sys.argv[1])
    if os.fork():
        os._exit(os.waitstatus_to_exitcode(os.wait()[1]))
lead_session()
with open("/proc/self/autogroup") as file:
    print(os.getsid(0) == os.getpid(), file.read().split()[-1], os.getpriority(os.PRIO_PROCESS, 0))
"""


def leads(nice: int, who: str) -> str:
    """Whether a process that starts with a nice value leads a session then, the session's nice value, and its own.
    ``who``: nobody, root, or root in a session that has a nice value."""
    command = ["nice", "-n", str(nice - os.getpriority(os.PRIO_PROCESS, 0)), sys.executable, "-c", LEADS, who]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.parametrize("nice, who, session", [(0, "root", -20), (7, "root", 7), (0, "11", 11), (0, "nobody", 0)])
def test_a_session_comes_first_unless_it_is_to_come_late(nice: int, who: str, session: int, may_hurry: None,
                                                         autogroups: None) -> None:
    assert leads(nice, who) == f"True {session} {nice}"
