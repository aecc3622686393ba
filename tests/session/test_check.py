"""``collect --check``: the table for every kind of kernel and user, and that recordings keep what it promises here."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sampling_error import n_draws, of_share
from unread import n_unread

from collector.clock import INTERVAL_HIGH_NS, NS_PER_S
from collector.experiment.reader import Experiment, open_experiment
from collector.experiment.records import STATES
from collector.session import check
from collector.session.check import NO, PART, YES, Probe, table
from collector.timing.states import Microstate

Run = Callable[..., Any]

NOBODY = 65534
COLLECT = str(Path(sys.executable).with_name("collect"))
ORDINARY = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
CPU, SYSTEM, WAITING, LOCKS, WAKEUPS = ("CPU time", "system and trap time", "waiting", "locks, page faults, stops",
                                        "wake-ups")
DESCENDANTS, RINGS, ATTACHING = "descendants", "rings", "attaching (-P)"

ROOT = Probe(user="root", uid=0, release="6.1.0-23-amd64", n_cpus=4, paranoid=3, kptr_restrict=0, ptrace_scope=None,
             capabilities=frozenset(check._NAMES), filtered=False, perf=0, kernel=True, symbols=True, tracepoints=True,
             ring_s=2.5, seize=0)
USER = replace(ROOT, user="anna", uid=1000, paranoid=2, capabilities=frozenset(), kernel=False, symbols=False,
               tracepoints=False, ring_s=0.6)


def rows_of(lines: list[str]) -> dict[str, str]:
    """How much is had of each thing."""
    found = (re.match(r"(yes|part|no)\s+(\S.*?)  ", line) for line in lines)
    return {row[2]: row[1] for row in found if row}


def commands_of(lines: list[str]) -> list[str]:
    """The commands that would give more, the best one first."""
    found = (re.match(r"  \(\d\) (.*)", line) for line in lines)
    return [command[1] for command in found if command]


# --- the table --------------------------------------------------------------------------------------


def test_the_table_of_an_ordinary_user() -> None:
    lines = table(USER)
    assert lines[0].endswith(" on Linux 6.1.0-23-amd64, 4 CPUs, as anna")
    assert lines[1:] == [
        "perf_event_paranoid 2, kptr_restrict 0; capabilities: none",
        "engine perf: the kernel takes the samples, nothing is ever stopped",
        "",
        "yes   CPU time                   exact for every thread, with stacks in user mode",
        "no    system and trap time       counts as user time  (1)",
        "part  waiting                    how long, exactly; where, with stacks, by a look about once a second  (1)",
        "part  locks, page faults, stops  told from sleep by a look about once a second  (1)",
        "part  wake-ups                   how long threads waited for a CPU is told by the kernel's sum  (2)",
        "part  descendants                all are recorded; fork, spawn and clone are not told apart  (2)",
        "yes   rings                      hold 0.6 s of samples at -p on",
        "part  attaching (-P)             to processes of this user  (2)",
        "",
        "for more:",
        "  (1) sudo sysctl kernel.perf_event_paranoid=1",
        "  (2) sudo collect ...",
        "what sysctl sets holds until the next boot; a line in /etc/sysctl.d/ makes it last"]


def test_root_lacks_nothing() -> None:
    lines = table(ROOT)
    assert set(rows_of(lines).values()) == {YES}
    assert commands_of(lines) == []


LEVEL, ADDRESSES, BE_ROOT = check.LOWER_LEVEL, check.SHOW_ADDRESSES, check.BE_ROOT
CONTAINER, PRIVILEGED = check.ALLOW_IN_CONTAINER, check.ALLOW_ALL_IN_CONTAINER
LIMITED = {CPU: YES, SYSTEM: NO, WAITING: PART, LOCKS: PART, WAKEUPS: PART, DESCENDANTS: PART, ATTACHING: PART}
WITH_KERNEL = LIMITED | {SYSTEM: YES, WAITING: YES, LOCKS: YES}
BY_SIGNALS = {CPU: PART, SYSTEM: PART, WAITING: YES, LOCKS: YES, WAKEUPS: PART, DESCENDANTS: YES, ATTACHING: PART}
REFUSED = replace(USER, perf=errno.EACCES, paranoid=3)


@pytest.mark.parametrize(("found", "engine", "had", "commands"), [
    # each level, for an ordinary user; at 1 and below he sees the kernel's addresses, too, if kptr_restrict is 0
    (replace(USER, paranoid=-1, kernel=True, symbols=True, ring_s=2.5), "perf", WITH_KERNEL, [BE_ROOT]),
    (replace(USER, paranoid=0, kernel=True, symbols=True), "perf", WITH_KERNEL, [BE_ROOT]),
    (replace(USER, paranoid=1, kernel=True, symbols=True), "perf", WITH_KERNEL, [BE_ROOT]),
    (replace(USER, paranoid=1, kernel=True, kptr_restrict=1), "perf", WITH_KERNEL | {SYSTEM: PART, LOCKS: NO},
     [ADDRESSES, BE_ROOT]),
    (USER, "perf", LIMITED, [LEVEL, BE_ROOT]),
    (REFUSED, "signal", BY_SIGNALS, [LEVEL, BE_ROOT]),
    (replace(REFUSED, paranoid=4), "signal", BY_SIGNALS, [LEVEL, BE_ROOT]),
    # with capabilities
    (replace(USER, kernel=True, capabilities=frozenset({check.PERFMON})), "perf",
     WITH_KERNEL | {SYSTEM: PART, LOCKS: NO}, [LEVEL, BE_ROOT]),
    (replace(USER, kernel=True, symbols=True, capabilities=frozenset({check.PERFMON, check.SYSLOG, check.SYS_PTRACE})),
     "perf", WITH_KERNEL | {ATTACHING: YES}, [BE_ROOT]),
    # little memory to lock
    (replace(USER, ring_s=0.1), "perf", LIMITED | {RINGS: PART}, [LEVEL, check.LOCK_MORE, BE_ROOT]),
    # refused by others than the level: containers, a kernel without
    (replace(USER, perf=errno.EPERM, filtered=True), "signal", BY_SIGNALS, [CONTAINER, BE_ROOT]),
    (replace(USER, perf=errno.EACCES, filtered=True), "signal", BY_SIGNALS, [CONTAINER, BE_ROOT]),
    (replace(ROOT, perf=errno.EPERM, filtered=True, capabilities=frozenset()), "signal", BY_SIGNALS, [CONTAINER]),
    (replace(ROOT, tracepoints=False, capabilities=frozenset({check.PERFMON, check.SYSLOG, check.SYS_PTRACE})), "perf",
     dict.fromkeys(LIMITED, YES) | {WAKEUPS: PART, DESCENDANTS: PART}, [PRIVILEGED]),
    (replace(USER, perf=errno.ENOSYS, paranoid=None), "signal", BY_SIGNALS, [BE_ROOT]),
    # tracing restricted (yama)
    (replace(USER, ptrace_scope=1), "perf", LIMITED, [LEVEL, check.LET_TRACE, BE_ROOT]),
    (replace(USER, ptrace_scope=2), "perf", LIMITED | {LOCKS: NO}, [LEVEL, check.LET_TRACE, BE_ROOT]),
    (replace(REFUSED, ptrace_scope=1), "signal", BY_SIGNALS | {ATTACHING: NO}, [LEVEL, check.LET_TRACE]),
    (replace(REFUSED, ptrace_scope=2, seize=errno.EPERM), "", {"CPU time, waiting": NO, "tracing": NO},
     [LEVEL, check.LET_TRACE]),
    (replace(ROOT, ptrace_scope=3), "perf", dict.fromkeys(LIMITED, YES) | {ATTACHING: PART}, [check.LET_TRACE]),
    # nothing works
    (replace(USER, perf=errno.EPERM, seize=errno.EPERM, filtered=True), "", {"CPU time, waiting": NO, "tracing": NO},
     [CONTAINER]),
])
def test_what_is_had_what_is_lost_and_what_gives_more(found: Probe, engine: str, had: dict[str, str],
                                                      commands: list[str]) -> None:
    lines = table(found)
    assert found.engine == engine
    assert rows_of(lines) == ({RINGS: YES} if engine == "perf" else {}) | had
    assert commands_of(lines) == commands
    assert max(map(len, lines)) <= 120


@pytest.mark.parametrize(("found", "words"), [
    (REFUSED, "perf_event_paranoid is 3"),
    (replace(USER, perf=errno.EPERM, filtered=True), "seccomp"),
    (replace(USER, perf=errno.ENOSYS), "this kernel has none"),
    (replace(USER, perf=errno.EPERM), "security module"),
])
def test_why_perf_events_are_refused(found: Probe, words: str) -> None:
    assert words in table(found)[2]


def test_every_lack_has_a_command_but_what_no_command_gives() -> None:
    for found in (USER, REFUSED, replace(USER, perf=errno.EPERM, filtered=True)):
        for line in table(found):
            if line.startswith(("part", "no ")):
                assert re.search(r"\(\d\)$", line), line


# --- on this machine ------------------------------------------------------------------------------------


@pytest.fixture
def open_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder that every user may write to."""
    directory = Path("/tmp") / f"collect-check-{os.getpid()}"
    directory.mkdir(mode=0o777)
    directory.chmod(0o777)
    yield directory
    shutil.rmtree(directory)


@pytest.fixture(scope="session")
def users(need: Run) -> None:
    """For tests that become another user: root, and a Python that others may run."""
    need("setpriv", "util-linux")
    if os.geteuid() != 0:
        pytest.skip("needs root")
    result = subprocess.run([*ORDINARY, sys.executable, "-c", "import numpy"], capture_output=True, check=False)
    if result.returncode != 0:
        pytest.skip("this Python is private to root")


def capable(*names: str) -> tuple[str, ...]:
    """An ordinary user with capabilities."""
    chosen = ",".join(f"+{name}" for name in names)
    return (*ORDINARY, f"--inh-caps={chosen}", f"--ambient-caps={chosen}") if names else ORDINARY


BECOME = {
    "root": (),
    "ordinary": ORDINARY,
    "perfmon": capable("perfmon", "ipc_lock", "syslog", "sys_ptrace"),
    "filtered": ("noperf", str(errno.EPERM), *ORDINARY),
    "filtered root": ("noperf", str(errno.ENOSYS)),
}


N_LOCKED, LOCKED_MS = 7, 31


@pytest.mark.kernel_times
@pytest.mark.parametrize("who", BECOME)
def test_recordings_keep_what_the_table_promises(who: str, users: None, workload: Run, open_directory: Path) -> None:
    become = [str(workload("noperf")) if word == "noperf" else word for word in BECOME[who]]
    checked = subprocess.run([*become, COLLECT, "--check"], capture_output=True, text=True, check=False, cwd="/")
    assert (checked.returncode, checked.stderr) == (0, "")
    had = rows_of(checked.stdout.splitlines())
    programs = [shutil.copy(workload(name), open_directory / name) for name in ("usersys", "states", "forks")]
    commands = "; ".join(f"{program} {arguments}" for program, arguments in zip(
        programs, ("0.6 50", f"mutex {N_LOCKED} {LOCKED_MS}", "2"), strict=True))
    result = subprocess.run([*become, COLLECT, "-p", "hi", "-o", open_directory / "all.er", "/bin/sh", "-c", commands],
                            capture_output=True, text=True, check=False, cwd=open_directory, timeout=60)
    assert result.returncode == 0, result.stderr
    told = [line for line in result.stderr.splitlines() if line.startswith("collect: engine ")]
    if had[CPU] == PART:
        assert len(told) == 1
        assert told[0].startswith("collect: engine signal, right within a few per cent, since ")
    else:
        assert [line for line in told if "user mode only" in line and LEVEL in line] == told
        assert len(told) == (had[SYSTEM] == NO)
    usersys, mutex = (json.loads(line) for line in result.stdout.splitlines()[:2])
    founder = open_experiment(open_directory / "all.er")
    everyone = founder.children
    children = {child.log.pid: child for child in everyone if child.log.arguments != b"(fork)"}

    slack = 0.02 if had[CPU] == YES else 0.06
    states = states_s(children[usersys["pid"]])
    # It had at least what it measured, and at most what its whole process had, but for its end.
    cpu_s, used_s = usersys["in_user"] + usersys["in_system"], usersys["user_s"] + usersys["system_s"]
    assert (1 - slack) * cpu_s - 0.005 <= states[:3].sum() <= (1 + slack) * used_s + 0.005
    if had[SYSTEM] == NO:
        assert states[1] == states[2] == 0
    else:
        # Perf's clock strikes evenly; a tracer looks when it has a CPU. Interrupts that come meanwhile are traps.
        packets = children[usersys["pid"]].packets()
        n = n_draws(packets["NTICK"][packets["MSTATE"] <= Microstate.TRAP])
        share = usersys["in_system"] / cpu_s
        error_s = 0.1 * usersys["in_system"] if had[CPU] == YES else cpu_s * of_share(share, n)
        assert usersys["in_system"] - error_s - states[2] <= states[1]
        assert states[1] <= usersys["in_system"] + error_s + used_s - cpu_s

    child = children[mutex["pid"]]
    states = states_s(child)
    locked_s = mutex["threads"][0]["wall_s"] - mutex["threads"][0]["cpu_s"]
    # Where locks are not promised they count as sleep, but for threads that were looked at while they waited. Who has
    # the lock may wait for a CPU then, as it may before it asks for it.
    asked = (Microstate.USER_LOCK,) if had[LOCKS] == YES else (Microstate.USER_LOCK, Microstate.SLEEP)
    waited_s = sum(states[state] for state in asked)
    assert waited_s + states[Microstate.WAIT_CPU] >= 0.95 * locked_s
    assert waited_s >= 0.5 * N_LOCKED * LOCKED_MS / 1000
    if had[WAITING] == YES:  # otherwise waits are shown where the thread ran last
        packets, stacks = child.packets(), child.stacks
        waiting = packets[np.isin(packets["MSTATE"], (Microstate.USER_LOCK, Microstate.SLEEP))]
        whole = ~(stacks.truncated | stacks.failed)[stacks.index(waiting["FRINFO"])]
        # But for those that the log counts as unread, for all processes.
        assert len(np.unique(waiting["FRINFO"][~whole])) <= n_unread(founder)
        assert whole.any()

    letters = {letter for child in everyone for letter in re.findall(r"_([fxcC])\d", child.lineage)}
    assert letters == ({"f", "x", "c", "C"} if had[DESCENDANTS] == YES else {"f", "x"})


def states_s(experiment: Experiment) -> Any:
    """Seconds in each state."""
    packets = experiment.packets()
    return np.bincount(packets["MSTATE"], packets["NTICK"], len(STATES)) * INTERVAL_HIGH_NS / NS_PER_S


def test_where_nothing_can_be_recorded_the_status_says_so(workload: Run) -> None:
    result = subprocess.run([workload("noperf"), f"{errno.EPERM}+ptrace", COLLECT, "--check"], capture_output=True,
                            text=True, check=False)
    assert (result.returncode, len(result.stderr.splitlines())) == (1, 1)
    assert rows_of(result.stdout.splitlines()) == {"CPU time, waiting": NO, "tracing": NO}


def test_tracing_is_tried_as_the_signal_engine_does_it(tmp_path: Path, need: Callable[[str, str], str]) -> None:
    """By a sibling, which Yama's ptrace_scope 1 lets do so only if the child says so. Under strace nobody else can."""
    command = [need("strace", "strace"), "-f", "-X", "raw", "-o", tmp_path / "calls", "-e", "trace=prctl,ptrace"]
    subprocess.run([*command, COLLECT, "--check"], capture_output=True, check=True, timeout=60)
    text = (tmp_path / "calls").read_text()
    calls = re.findall(r"^(\d+) +\w+\((?:0x59616d61|0x4206), (\d+)", text, re.MULTILINE)  # PR_SET_PTRACER, PTRACE_SEIZE
    (child, collect), (tracer, traced) = calls
    assert traced == child
    assert tracer not in (child, collect)


def test_what_is_tried_is_undone() -> None:
    before, children = set(os.listdir("/proc/self/fd")), Path("/proc/thread-self/children").read_text()
    found = check.probe()
    assert set(os.listdir("/proc/self/fd")) == before
    assert Path("/proc/thread-self/children").read_text() == children  # ended and waited for; others' may be there
    status = Path("/proc/self/status").read_text()
    assert "TracerPid:\t0\n" in status
    assert found.paranoid == int(Path("/proc/sys/kernel/perf_event_paranoid").read_text())
    assert found.release == os.uname().release
    assert (check.SYS_ADMIN in found.capabilities) == bool(int(status.split("CapEff:")[1].split()[0], 16) >> 21 & 1)
