"""Births and ends, in whatever order and however late the kernel's reports of them are taken."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from traced import Traced, of, running

from collector.events import Edge
from collector.linux import abi, accounts, programs, ptrace, tasks

LATE_S = 0.3
MEMORY_BYTES = 64 << 20

# A thread that waits for a line, made behind a line, and a program that ends with another.
PROGRAM = """
import sys, threading
print(flush=True)
sys.stdin.readline()
thread = threading.Thread(target=sys.stdin.readline)
thread.start()
thread.join()
sys.stdin.readline()
"""

# Two threads that wait until a signal ends them, and memory that it takes a while to give back.
ENDS = """
import sys, threading
memory = b"x" * int(sys.argv[1])
thread = threading.Thread(target=threading.Event().wait)
thread.start()
print(flush=True)
thread.join()
"""

# A thread, not the leader, that runs for a while behind a line, and executes another program.
EXECUTES = """
import os, sys, threading, time
def execute():
    sys.stdin.readline()
    while time.thread_time() < float(sys.argv[1]): pass
    os.execv(sys.argv[2], sys.argv[2:])
thread = threading.Thread(target=execute)
thread.start()
print(flush=True)
thread.join()
"""

# A program that starts another behind a line, which is forgotten as soon as it is over: nobody need wait for it.
STARTS = """
import os, signal, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
print(flush=True)
sys.stdin.readline()
os.posix_spawn(sys.argv[1], sys.argv[1:], {})
sys.stdin.readline()
"""

# A program that makes another process behind a line, which ends with its input.
FORKS = """
import os, sys
print(flush=True)
sys.stdin.readline()
os.fork()
sys.stdin.readline()
"""

pytestmark = pytest.mark.usefixtures("attach_allowed")


@pytest.fixture
def traced() -> Iterator[Traced]:
    """The program, waiting to make its thread."""
    with running(PROGRAM) as traced:
        yield traced


def running_ns(switches: Any, tid: int, from_ns: int, to_ns: int) -> int:
    """For how long a thread is told to run that runs at a time, from then on to the other."""
    mine = np.sort(switches[(switches["tid"] == tid) & (switches["time"] >= from_ns)], order="time")
    lengths_ns = np.diff(np.array([from_ns, *mine["time"], to_ns], dtype=np.int64))
    return int(lengths_ns[np.array([Edge.IN, *mine["edge"]]) == Edge.IN].sum())


def open_files() -> Iterator[str]:
    """The names of our own."""
    for fd in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # what listed them
            yield os.readlink(f"/proc/self/fd/{fd}")


def cpu_ns(pid: int) -> int:
    """The CPU time of a process's leader."""
    return accounts.parse(Path(f"/proc/{pid}/task/{pid}/schedstat").read_bytes())[0]


def await_end(pid: int, tid: int) -> None:
    """Until a thread has ended, which the tracer has yet to take note of."""
    while tasks.parse_stat(Path(f"/proc/{pid}/task/{tid}/stat").read_bytes()).state != b"Z":
        time.sleep(0.001)


def test_a_thread_whose_maker_tells_of_it_late_is_one_thread(traced: Traced) -> None:
    """As beside others that keep the maker from its CPU: its child, which has it, has stopped long before."""
    traced.go_on()
    found: dict[int, ptrace.Report] = {}
    for report in traced.reports():
        if Path(f"/proc/{traced.pid}/task/{report.tid}").exists():  # else a child of an earlier test
            found[report.tid] = report
        if len(found) == 2:
            break
    (tid,) = found.keys() - {traced.pid}
    assert found[traced.pid].event == abi.EVENT_CLONE
    traced.tracer.reports.hear(found[tid])
    traced.tracer.reports.start_strays(time.monotonic_ns() + round(LATE_S * 1e9))
    traced.tracer.reports.hear(found[traced.pid])
    traced.hear_all()
    changes, switches = traced.told()
    assert len(of(changes, "Forked", tid)) == len(of(changes, "Exited", tid)) == 1
    times = switches["time"][switches["tid"] == tid]
    assert (np.diff(times.astype(np.int64)) > 0).all()  # and nobody tells of it twice


def test_a_maker_that_is_killed_before_it_is_asked_for_its_child_names_no_other() -> None:
    """It stands at its exit by then, and what belongs to that event is its status: 9, as the number of a process."""
    with running(FORKS) as traced:
        traced.go_on()
        for report in traced.reports():
            if report.tid == traced.pid and report.event == abi.EVENT_FORK:
                break
            traced.tracer.reports.hear(report)
        child = ptrace.Inspector().message(traced.pid)
        os.kill(traced.pid, signal.SIGKILL)
        while asked(traced.pid) != signal.SIGKILL:
            time.sleep(0.001)
        while tasks.parse_stat(tasks.Files(child, child).read_once("stat")).state != b"t":  # to be heard
            time.sleep(0.001)
        traced.tracer.reports.hear(report)
        traced.tracer.reports.take()
        traced.tracer.reports.start_strays(time.monotonic_ns() + round(LATE_S * 1e9))
        traced.hear_all()
        changes, _ = traced.told()
    born = [change[3] for change in changes if change[0] == "Forked"]
    assert born == [child]
    assert len(of(changes, "Exited", child)) == 1


def asked(tid: int) -> int:
    """What belongs to the last event of a thread; -1 while it is on its way from one stop to the next."""
    with suppress(ProcessLookupError):
        return ptrace.Inspector().message(tid)
    return -1


def test_an_end_that_is_reported_late_is_told_as_early_as_it_was(traced: Traced) -> None:
    traced.go_on()
    traced.hear_until(abi.EVENT_CLONE)
    ((_, _, _, tid, *_),) = (change for change in traced.told()[0] if change[0] == "Forked")
    traced.go_on()
    assert traced.hear_until(abi.EVENT_EXIT).tid == tid
    await_end(traced.pid, tid)  # for which it may have to wait for a CPU
    ended_ns = time.monotonic_ns()
    time.sleep(LATE_S)
    traced.hear_all()
    changes, switches = traced.told()
    ((_, end_ns, _, _),) = of(changes, "Exited", tid)
    assert end_ns < ended_ns + LATE_S * 1e9 / 2
    mine = switches[switches["tid"] == tid]
    assert mine["time"].max() <= end_ns
    assert mine["edge"][np.argmax(mine["time"])] != Edge.OUT_BLOCKED


def test_a_leader_ends_behind_the_others_and_with_what_it_did_at_the_end() -> None:
    """A signal ends all threads at once; where the others are gone first, it is the leader that gives back the memory.
    """
    with running(ENDS, MEMORY_BYTES) as traced:
        os.kill(traced.pid, signal.SIGTERM)
        ends: dict[int, ptrace.Report] = {}
        for report in traced.reports():
            if report.event == abi.EVENT_EXIT:
                ends[report.tid] = report
            else:
                traced.tracer.reports.hear(report)
            if len(ends) == 2:
                break
        leader = ends.pop(traced.pid)
        (other,) = ends.values()
        traced.tracer.reports.hear(other)
        await_end(traced.pid, other.tid)
        before_ns, let_go_ns = cpu_ns(traced.pid), time.monotonic_ns()
        traced.tracer.reports.hear(leader)
        await_end(traced.pid, traced.pid)
        ran_ns = cpu_ns(traced.pid) - before_ns
        early, switches = traced.told()
        traced.hear_all()
        changes, more = traced.told()
    assert not of(early, "Exited", traced.pid)
    ((_, end_ns, *_),) = of(changes, "Exited", traced.pid)
    assert len(of(changes, "Exited", other.tid)) == 1
    told_ns = running_ns(np.concatenate([switches, more]), traced.pid, let_go_ns, end_ns)
    assert told_ns > 0.9 * ran_ns > 1e6


def test_what_a_thread_ran_before_an_exec_is_none_of_the_next_image_s() -> None:
    """The leader has ended for that, and the one that called exec goes on by its name."""
    with running(EXECUTES, LATE_S, shutil.which("sleep"), 2 * LATE_S) as traced:
        (caller,) = {int(tid) for tid in os.listdir(f"/proc/{traced.pid}/task")} - {traced.pid}
        begun_ns = time.monotonic_ns()
        traced.go_on()
        traced.hear_until(abi.EVENT_EXEC)
        traced.hear_all()
        changes, switches = traced.told()
    ((_, exec_ns, *_),) = of(changes, "Executed", traced.pid)
    ((_, end_ns, *_),) = (change for change in of(changes, "Exited", traced.pid) if change[1] > exec_ns)
    assert running_ns(switches, traced.pid, exec_ns, end_ns) < LATE_S * 1e9 / 2
    assert running_ns(switches[switches["time"] < exec_ns], caller, begun_ns, exec_ns) > LATE_S * 1e9 * 0.9
    assert not [name for name in open_files() if name.startswith(f"/proc/{traced.pid}/")]


def test_who_is_let_go_and_is_over_at_once_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As beside others that keep the tracer from its CPU: what it let go has ended before it goes on."""
    program, gone, detach = shutil.copy("/bin/true", tmp_path / "strace"), [], ptrace.detach

    def detach_and_wait(tid: int, number: int = 0) -> None:
        detach(tid, number)
        until_s = time.monotonic() + 30
        while Path(f"/proc/{tid}").exists() and time.monotonic() < until_s:
            time.sleep(0.001)
        gone.append(tid)

    monkeypatch.setattr(ptrace, "detach", detach_and_wait)
    with running(STARTS, program) as traced:
        traced.go_on()
        traced.hear_until(abi.EVENT_EXEC)
        changes, _ = traced.told()
        traced.hear_all()
    (tid,) = gone
    assert not Path(f"/proc/{tid}").exists()
    ((_, _, _, name, why),) = (change for change in changes if change[0] == "LetGo")
    assert (name, why.partition(":")[0]) == (b"strace", "is not recorded")
    assert len(of(changes, "Forked", tid)) == len(of(changes, "Exited", tid)) == 1


def test_what_we_keep_a_program_from_beginning_is_no_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where its file has much to read: from its exec on it is ready to run, and its account tells of no wait."""
    checks_leaks = programs.checks_leaks

    def checks_leaks_late(pid: int) -> bool:
        time.sleep(LATE_S)
        return checks_leaks(pid)

    monkeypatch.setattr(programs, "checks_leaks", checks_leaks_late)
    with running(STARTS, shutil.which("sleep"), "0.1") as traced:
        traced.tracer.reports.take()  # it comes for what follows at once
        traced.go_on()
        changes, switches = traced.take_until("Exited")
        traced.hear_all()
    ((_, exec_ns, tid, *_),) = (change for change in changes if change[0] == "Executed")
    mine = np.sort(switches[(switches["tid"] == tid) & (switches["time"] >= exec_ns)], order="time")
    lengths_ns = np.diff(mine["time"].astype(np.int64))
    assert lengths_ns[mine["edge"][:-1] == Edge.OUT_PREEMPTED].sum() >= LATE_S * 1e9


def test_who_sleeps_behind_an_exec_has_waited_for_no_cpu_when_a_signal_comes() -> None:
    """SIGCONT stops it for us, as new threads do: those were not free to sleep until then."""
    with running(STARTS, shutil.which("sleep"), 4 * LATE_S) as traced:
        traced.tracer.reports.take()  # it comes for what follows at once
        traced.go_on()
        changes, before = traced.take_until("Executed")
        ((_, exec_ns, tid, *_),) = (change for change in changes if change[0] == "Executed")
        time.sleep(LATE_S)
        traced.tracer.reports.take()
        os.kill(tid, signal.SIGCONT)
        asleep_ns = delay_ns = 0  # the last time that it slept, and for how long it had waited for a CPU by then
        while Path(f"/proc/{tid}").exists():
            now_ns = time.monotonic_ns()
            with suppress(OSError):  # it is gone
                if tasks.parse_stat(Path(f"/proc/{tid}/stat").read_bytes()).state == b"S":
                    delay_ns, asleep_ns = accounts.parse(Path(f"/proc/{tid}/schedstat").read_bytes())[1], now_ns
            traced.tracer.reports.take()
            time.sleep(0.001)
        traced.hear_all()
        switches = np.concatenate([before, traced.told()[1]])
    assert asleep_ns > exec_ns + LATE_S * 1e9
    mine = np.sort(switches[(switches["tid"] == tid) & (switches["time"] >= exec_ns)], order="time")
    lengths_ns = np.diff(np.minimum(mine["time"].astype(np.int64), asleep_ns))
    assert lengths_ns[mine["edge"][:-1] == Edge.OUT_PREEMPTED].sum() < LATE_S * 1e9 / 2 + delay_ns
