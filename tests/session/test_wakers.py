"""Who woke whom: as often as the kernel says, and by whom; or one line where it cannot be told."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import prefork
import pytest

from collector.aggregate.spans import Source, Spans
from collector.events import Context, Edge, Wakings
from collector.linux.perf import tracepoint_number
from collector.processes.model import Model
from collector.session.wakers import EARLY_NS, Wakers
from collector.timing.states import LEAVING_NS

Run = Callable[..., Any]
COMMANDS = Path(sys.executable).parent
KINDS = {"futex": "lock", "eventfd": "sleep", "pipe": "sleep", "poll": "sleep", "epoll": "sleep"}
N = 31
pytestmark = pytest.mark.kernel_times  # who wakes whom depends on who else has the CPUs
# Of time that a wake-up ends. How long the wait for a CPU behind it was is another matter: of wake-ups in interrupts of
# an idle CPU the kernel does not always write a record, and then it is told by the account of such waits.
BLOCKED = 'state != "wait" && state != "oncpu"'
ASKED = f"w[waker, wakertid, tid, state] = count() / {BLOCKED} /"
FAULT, LOCK, SLEEP, WAIT, ON_CPU = 4, 6, 7, 8, 10


@pytest.fixture(scope="module")
def wakings_recorded(waits_recorded: None) -> None:
    """For tests that need the tracepoint of wake-ups."""
    if os.geteuid() != 0 or tracepoint_number("sched", "sched_waking") is None:
        pytest.skip("who wakes whom is told to root, where tracefs may be read")


def counts(er_print: Run, path: Path, name: str = "w") -> dict[tuple[Any, ...], int]:
    (one,) = json.loads(er_print("-json_aggregations", name, path).stdout)["aggregations"]
    assert one["synthetic"] == []
    return {tuple(entry["key"]): entry["value"] for entry in one["recorded"]}


@pytest.mark.parametrize("kind", KINDS)
def test_each_wait_is_ended_by_who_ended_it(collect: Run, er_print: Run, workload: Run, tmp_path: Path,
                                            wakings_recorded: None, kind: str) -> None:
    path = tmp_path / "run.er"
    done = collect("-o", path, "--aggregate", ASKED, "--aggregate", "wakers", workload("wakes"), N, kind)
    assert done.returncode == 0, done.stderr
    truth = json.loads(done.stdout)
    waker, wakee = truth["waker"], truth["wakee"]
    of_wakee = {key: n for key, n in counts(er_print, path).items() if key[2] == wakee}
    # As often as the kernel counts. A page of the program's may have been waited for, which an interrupt brought.
    assert sum(of_wakee.values()) == truth[kind] >= N
    (key, n), = [one for one in of_wakee.items() if not one[0][3].endswith("fault")]
    assert key == ("waker", waker, wakee, KINDS[kind])
    done = er_print("-wakers", path)
    assert (done.returncode, done.stderr) == (0, "")
    rows = [line.split(maxsplit=4) for line in done.stdout.splitlines()[4:] if line]
    (mine,) = [row for row in rows if row[4].split()[-2:] == ["wakee", f"({wakee})"] and row[3] == KINDS[kind]]
    assert int(mine[0]) == n
    assert mine[4].split() == ["waker", f"({waker})", "wakee", f"({wakee})"]


@pytest.fixture
def busy_cpu() -> Iterator[int]:
    """A CPU that is never idle. (Linux 6.18 does not always tell perf of wake-ups in an idle CPU's interrupts.)"""
    cpu = min(os.sched_getaffinity(0))
    command = ["taskset", "-c", str(cpu), "nice", "-n", "19", "sh", "-c", "while :; do :; done"]
    with subprocess.Popen(command) as process:
        yield cpu
        process.kill()


def naps_told(perf: str, data: Path) -> list[bool]:
    """Of each time that a thread began to sleep, whether a wake-up was told behind it, as ``perf record`` has it."""
    script = [perf, "script", "-i", data, "-F", "event,trace"]
    told: list[bool] = []
    for line in prefork.run(script, capture_output=True, text=True, check=True).stdout.splitlines():
        if "prev_state=S" in line:
            told.append(False)
        elif "sched_waking" in line and told:
            told[-1] = True
    return told


def test_timers_are_interrupts_and_children_wake_their_parents(
        need: Run, er_print: Run, workload: Run, tmp_path: Path, busy_cpu: int, wakings_recorded: None) -> None:
    """A timer may fire before the thread has left its CPU: then it has not slept. And a kernel may keep from perf what
    happens while some threads have the CPU, such as those of the agent of a virtual machine. So perf itself is asked.
    """
    path, n, name, data = tmp_path / "run.er", 17, f"naps{os.getpid()}", tmp_path / "perf.data"
    perf, program = need("perf", "linux-perf"), shutil.copy(workload("states"), tmp_path / name)
    recording = [perf, "record", "-q", "-a", "-B", "-N", "-o", data, "-e", "sched:sched_waking",
                 "--filter", f'comm == "{name}"', "-e", "sched:sched_switch", "--filter", f'prev_comm == "{name}"']
    done = prefork.run([*recording, COMMANDS / "collect", "-o", path, "--aggregate",
                        f"w[execname, waker, state] = count() / {BLOCKED} /", "taskset", "-c", str(busy_cpu),
                        "sh", "-c", f"{program} nanosleep {n} 23; true"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found, told = counts(er_print, path), naps_told(perf, data)
    assert n // 2 < sum(told) <= len(told) <= min(n, json.loads(done.stdout)["n_voluntary"])
    assert found[name, "<interrupt>", "sleep"] == sum(told)
    assert found.get((name, "<Unknown>", "sleep"), 0) == len(told) - sum(told)
    # The shell waits for its child, which wakes it as it ends.
    assert found["sh", name, "sleep"] == 1


def test_a_stranger_is_marked(er_print: Run, tmp_path: Path, wakings_recorded: None) -> None:
    """We feed a program that is recorded."""
    path, n, own = tmp_path / "run.er", 5, threading.get_native_id()
    name = Path("/proc/thread-self/comm").read_text()[:-1]
    command = [COMMANDS / "collect", "-o", path, "--aggregate", ASKED, "cat"]
    with prefork.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for i in range(n):
            time.sleep(0.1)
            process.stdin.write(b"%d\n" % i)
            process.stdin.flush()
            assert process.stdout.readline() == b"%d\n" % i
        time.sleep(0.1)
    found = {key: value for key, value in counts(er_print, path).items() if key[1] == own}
    assert {key[0] for key in found} == {f"{name} <outside>"}
    assert 1 <= sum(found.values()) <= n + 1


def test_conditions_compare_wakers(collect: Run, er_print: Run, workload: Run, tmp_path: Path,
                                   wakings_recorded: None) -> None:
    path = tmp_path / "run.er"
    done = collect("-o", path, "--aggregate", 'a[comm] = count() / waker == "waker" && wakertid > 0 /',
                   "--aggregate", "b = count() / wakertid == -1 && state == \"sleep\" && comm == \"wakee\" /",
                   workload("wakes"), N, "pipe")
    assert done.returncode == 0, done.stderr
    # Whoever has left his CPU for a page instead is woken before he waits.
    ((key, n),) = counts(er_print, path, "a").items()
    assert key == ("wakee",)
    assert N - (json.loads(done.stdout)["pipe"] - N) <= n <= N
    assert counts(er_print, path, "b") == {}


def test_where_it_is_not_told_is_one_line(collect: Run, tmp_path: Path) -> None:
    """Before anything runs, and nothing stays."""
    done = collect("-o", tmp_path / "x.er", "--engine", "signal", "--aggregate", "wakers", "touch",
                   tmp_path / "started")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == ("collect: --aggregate: who wakes whom is told by the tracepoint sched:sched_waking, which "
                           "root may read: run as root, with the perf engine, and not in a container with thread "
                           "numbers of its own\n")
    assert list(tmp_path.iterdir()) == []


def test_an_ordinary_user_is_told_so(as_nobody: list[str], public_directory: Path, perf_allowed: None) -> None:
    """By whatever engine it would have been recorded: no tracepoint is his."""
    command = [*as_nobody, COMMANDS / "collect", "-o", "x.er", "--aggregate", "offwaketime", "touch", "started"]
    done = subprocess.run(command, cwd=public_directory, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "who wakes whom is told by the tracepoint" in done.stderr.splitlines()[-1]
    assert list(public_directory.iterdir()) == []


def test_without_the_data_one_line_says_what_to_record_with(collect: Run, er_print: Run, tmp_path: Path) -> None:
    path = tmp_path / "run.er"
    assert collect("-o", path, "-p", "off", "true").returncode == 0
    done = er_print("-wakers", path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert "collect --aggregate wakers" in done.stderr


# --- without a kernel


class Threads:
    """A model of threads 101, 102 ... at the slots 1, 2 ..., and wakers of it."""

    def __init__(self, n: int) -> None:
        slots = iter(range(1, n + 1))
        self.model = Model(lambda _found: next(slots))
        process = self.model.new_process(101, 0)
        for i in range(1, n + 1):
            self.model.new_thread(process, 100 + i, 0, Edge.BORN).name = b"thread-%d" % i
        self.strangers = {7: b"kworker/0:1"}
        self.wakers = Wakers(self.model, lambda thread: thread.name, lambda _, tid: self.strangers.get(tid, b""))

    def saw(self, *wakings: tuple[int, int, int, int]) -> None:
        """Of (tid, time, waker, context)."""
        tid, time_ns, waker, context = np.array(wakings, dtype=np.int64).reshape(-1, 4).T
        self.wakers.saw(Wakings(tid, time_ns, waker, context.astype(np.int8)))

    def told(self, *rows: tuple[int, ...]) -> list[tuple[str, int]]:
        """By whom spans of (slot, start, end, state[, source]) were ended."""
        slot, start, end, state, source = np.array([(*row, 0)[:5] for row in rows], dtype=np.int64).T
        none = np.zeros(len(slot), dtype=np.int64)
        codes = self.wakers.of(Spans(start, end, state.astype(np.uint8), slot, none, none, none, none,
                                     source.astype(np.uint8)))
        return [(self.wakers.names[code].decode(), self.wakers.tids[code]) for code in codes.tolist()]


def test_wakers_have_names_and_marks() -> None:
    threads = Threads(3)
    threads.saw((101, 10, 102, Context.THREAD), (102, 20, 7, Context.THREAD), (103, 30, 9, Context.THREAD),
                (101, 40, 102, Context.SOFTIRQ), (102, 50, 103, Context.INTERRUPT), (103, 60, 7, Context.SOFTIRQ),
                (101, 70, 0, Context.SOFTIRQ), (102, 80, 0, Context.THREAD), (999, 90, 101, Context.THREAD))
    assert threads.told((1, 0, 10, SLEEP), (2, 0, 20, LOCK), (3, 0, 30, FAULT), (1, 11, 40, SLEEP), (2, 21, 50, SLEEP),
                        (3, 31, 60, SLEEP), (1, 41, 70, SLEEP), (2, 51, 80, SLEEP)) == [
        ("thread-2", 102), ("kworker/0:1 <outside>", 7), ("<outside>", 9), ("thread-2 <softirq>", 102),
        ("<interrupt>", 0), ("kworker/0:1 <softirq>", 7), ("<softirq>", 0), ("<outside>", 0)]


def test_only_what_a_wake_up_ended_has_a_waker() -> None:
    threads, ms = Threads(3), 1_000_000
    threads.saw((101, 10 * ms, 102, Context.THREAD), (101, 30 * ms, 102, Context.THREAD),
                (103, 30 * ms, 102, Context.THREAD))
    assert [by for by, _ in threads.told(
        (1, 0, 10 * ms, SLEEP), (1, 10 * ms, 11 * ms, WAIT), (1, 11 * ms, 20 * ms, ON_CPU), (1, 20 * ms, 30 * ms, LOCK),
        (2, 0, 10 * ms, SLEEP), (3, 0, 29 * ms, SLEEP), (3, 29 * ms, 40 * ms, ON_CPU))] == [
        "thread-2", "<none>", "<none>", "thread-2", "<Unknown>", "<Unknown>", "<none>"]
    assert threads.told((1, 20 * ms, 30 * ms, SLEEP, Source.SYNTHETIC)) == [("<Unknown>", -1)]
    # A thread that was woken in one batch gets its CPU in the next one, or one without any wake-up.
    threads.saw((102, 40 * ms, 101, Context.THREAD))
    assert threads.told((1, 20 * ms, 30 * ms, SLEEP), (2, 0, 40 * ms, SLEEP)) == [
        ("thread-2", 102), ("thread-1", 101)]
    threads.wakers.saw(None)
    assert threads.told((1, 20 * ms, 30 * ms, SLEEP), (2, 0, 40 * ms, SLEEP)) == [
        ("thread-2", 102), ("thread-1", 101)]


def test_a_thread_may_be_woken_while_it_leaves_its_cpu() -> None:
    threads = Threads(2)
    threads.saw((101, 100_000, 102, Context.THREAD), (102, 100_000, 101, Context.THREAD),
                (101, 150_000, 7, Context.THREAD))
    rows = (1, 100_000 + LEAVING_NS, 140_000, SLEEP), (2, 100_001 + LEAVING_NS, 140_000, SLEEP)
    assert threads.told(*rows) == [("thread-2", 102), ("<Unknown>", -1)]
    threads.saw((101, 200_000, 102, Context.THREAD))
    assert threads.told((1, 150_000, 190_000, SLEEP)) == [("kworker/0:1 <outside>", 7)]
    # The one at its end is the one that ended it.
    assert threads.told((1, 150_001, 200_000, SLEEP)) == [("thread-2", 102)]


def test_a_run_may_begin_before_its_wake_up() -> None:
    """Its beginning was moved; the wait for a CPU behind the sleep is a share of what the account says."""
    threads = Threads(4)
    threads.saw((101, 50_000 + EARLY_NS, 102, Context.THREAD), (102, 50_001 + EARLY_NS, 101, Context.THREAD),
                (103, 51_000, 102, Context.THREAD), (104, 59_000, 102, Context.THREAD))
    assert [by for by, _ in threads.told(
        (1, 0, 40_000, SLEEP), (1, 40_000, 50_000, WAIT), (1, 50_000, 99_000, ON_CPU),
        (2, 0, 40_000, SLEEP), (2, 40_000, 50_000, WAIT), (2, 50_000, 99_000, ON_CPU),
        # Of a short run each side has a half.
        (3, 0, 50_000, SLEEP), (3, 50_000, 60_000, ON_CPU), (3, 60_000, 90_000, SLEEP),
        (4, 0, 50_000, SLEEP), (4, 50_000, 60_000, ON_CPU), (4, 60_000, 90_000, SLEEP))] == [
        "thread-2", "<none>", "<none>", "<Unknown>", "<none>", "<none>", "thread-2", "<none>", "<Unknown>",
        "<Unknown>", "<none>", "thread-2"]


def test_wakers_that_were_take_no_memory() -> None:
    threads, n = Threads(2), 20_000
    threads.saw((102, 1, 101, Context.THREAD))
    for i in range(n):
        threads.strangers[1000 + i] = b"stranger-%d" % i
        threads.saw((101, 10 * i + 10, 1000 + i, Context.THREAD))
        del threads.strangers[1000 + i]
        threads.wakers.forget_but(None)
    assert len(threads.wakers.names) < n // 2
    assert threads.told((2, 0, 1, SLEEP), (1, 10 * n - 5, 10 * n, SLEEP)) == [
        ("thread-1", 101), (f"stranger-{n - 1} <outside>", 1000 + n - 1)]


def test_a_stranger_that_is_gone_keeps_its_name() -> None:
    threads = Threads(1)
    threads.saw((101, 10, 7, Context.THREAD))
    del threads.strangers[7]
    threads.saw((101, 20, 7, Context.THREAD))
    assert threads.told((1, 11, 20, SLEEP)) == [("kworker/0:1 <outside>", 7)]
