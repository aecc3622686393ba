"""Attaching to programs at work, with either engine: the profile is right, and nothing stays behind."""

from __future__ import annotations

import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from threading import Event, Thread
from typing import Any, NamedTuple

import numpy as np
import prefork
import psutil
import pytest

from collector.experiment.reader import open_experiment

COLLECT = str(Path(sys.executable).with_name("collect"))
Run = Callable[..., Any]
CHURN = """
import random, threading, time
def rest(): time.sleep(random.random() * 0.02)
print(1, flush=True)
while True:
    threads = [threading.Thread(target=rest) for _ in range(20)]
    for thread in threads: thread.start()
    for thread in threads[:10]: thread.join()
"""
PYTHON = "print(1, flush=True)\nwhile 1: sorted(range(1000), key=str)"


ENGINES = ["perf", "signal"]
INTERVAL_S = 10.007e-3
KERNEL_TICK_S = 0.01  # at most, by CONFIG_HZ
MARKS = re.compile(r"^(?:TracerPid|S\w+Pnd|SigBlk|SigIgn|SigCgt|NoNewPrivs|Seccomp):.*\n", re.MULTILINE)

pytestmark = pytest.mark.usefixtures("perf_allowed", "attach_allowed")


@contextmanager
def running(*command: object) -> Iterator[int]:
    """The pid of a process that has said its first line; killed in the end."""
    with subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            process.stdout.readline()
            yield process.pid
        finally:
            process.kill()


def kernel_s(pid: int) -> float:
    """How long all threads have had a CPU, by the kernel's accounts."""
    return sum(int(path.read_text().split()[0]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat")) * 1e-9


def n_awake(pid: int) -> int:
    """How many threads can run now, or have been stopped by a tracer while they could."""
    texts = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return sum(text.rpartition(")")[2].split()[0] in "Rt" for text in texts)


def marks(pid: int) -> list[str]:
    """What a collector could have left behind in any of the threads: tracers, stops, signals."""
    texts = [path.read_text() for path in sorted(Path(f"/proc/{pid}/task").glob("*/status"))]
    assert not any(re.search(r"^State:\s+[tT]", text, re.MULTILINE) for text in texts)
    return ["".join(MARKS.findall(text)) for text in texts]


class Attached(NamedTuple):
    """An experiment; how long the program's threads had a CPU meanwhile, how exactly that is known (they were looked at
    before and after its beginning and its end), and how long they were awake; clock samples, as ``collect`` tells."""

    path: Path
    cpu_s: float
    cpu_known_to_s: float
    awake_s: float
    n_samples: int


class Watch(Thread):
    """Looks at a process again and again, to tell later what its threads did at a time."""

    def __init__(self, pid: int) -> None:
        super().__init__()
        self._pid, self._over = pid, Event()
        self._used: list[tuple[int, float]] = []
        self._awake: list[tuple[int, int]] = []

    def run(self) -> None:
        with suppress(PermissionError):  # or it would read seldom beside many threads
            os.setpriority(os.PRIO_PROCESS, 0, -20)
        for i in count():
            self._read()
            if i % 10 == 0:
                self._awake.append((time.monotonic_ns(), n_awake(self._pid)))
            if self._over.wait(0.02):
                return

    def _read(self) -> None:
        self._used.append((time.monotonic_ns(), kernel_s(self._pid)))

    def __enter__(self) -> Watch:
        self._read()
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()
        self._read()

    def between(self, start_ns: int, end_ns: int) -> tuple[float, float, float]:
        """Thread seconds between two times: on CPU, to how many that is known, and awake."""
        times_ns, used_s = zip(*self._used, strict=True)
        assert times_ns[0] < start_ns < end_ns < times_ns[-1]
        cpu_s = float(np.diff(np.interp([start_ns, end_ns], times_ns, used_s))[0])
        after = np.searchsorted(times_ns, [start_ns, end_ns])
        # A look takes the accounts one after the other, and that of a thread that runs is of the kernel's last tick.
        known_to_s = float((np.array(used_s)[after] - np.array(used_s)[after - 1]).sum()) + 2 * KERNEL_TICK_S
        n_threads = np.interp(np.linspace(start_ns, end_ns, 101), *zip(*self._awake, strict=True)).mean()
        return cpu_s, known_to_s, float(n_threads) * (end_ns - start_ns) * 1e-9


@pytest.fixture
def attached(collect: Run, tmp_path: Path) -> Run:
    """``attached(engine, pid, seconds)`` records and returns an Attached."""

    def record(engine: str, pid: int, seconds: float, interval: str = "on") -> Attached:
        path, unmarked = tmp_path / f"{engine}.er", marks(pid)
        with Watch(pid) as watch:
            result = collect("--engine", engine, "-P", pid, "-t", f"{seconds}s", "-p", interval, "-o", path)
        assert result.returncode == 0, result.stderr
        assert marks(pid) == unmarked
        log, n_samples = open_experiment(path).log, re.search(r"(\d+) samples?", result.stderr)
        assert n_samples is not None, result.stderr
        return Attached(path, *watch.between(log.start_ns, log.end_ns), int(n_samples[1]))

    return record


N_SIGMAS = 5  # beyond which chance is no excuse: of two million


def sigma(part: float, n_samples: int, n_ticks: int) -> float:
    """What chance makes of a part of all ticks, at most, which samples of independent threads tell: each is inside or
    not, with its ticks. The time of those whom none met is shared out among them in turn."""
    return math.sqrt(part * (1 - part) * math.ceil(n_ticks / n_samples) / n_ticks)


@pytest.mark.kernel_times
@pytest.mark.all_cpus
@pytest.mark.parametrize("engine", ENGINES)
def test_five_hundred_threads_that_work_now_and_then(engine: str, workload: Run, attached: Run, gprofng: Run) -> None:
    """How near their functions are to 1 : 3 : 7 is what ``scripts/truth`` tells; here, that they are as near as chance
    lets them be, and farther from what would be seen if all threads were met at one point: from thirds."""
    # They want two thirds of a CPU together: where they do not get it, all of them are runnable all the time.
    with running(workload("crowd"), 500, 1, 1511) as pid:
        path, cpu_s, known_to_s, _, n_samples = attached(engine, pid, 3.3)
    assert len(open_experiment(path).threads) == 500
    functions = gprofng("-functions", experiment=path).functions
    total_s = functions["<Total>"][0]
    assert total_s == pytest.approx(cpu_s, rel=0.05, abs=known_to_s)
    n_ticks = round(total_s / INTERVAL_S)
    for stage, part in (("stage_one", 1 / 11), ("stage_three", 3 / 11), ("stage_seven", 7 / 11)):
        by_chance = N_SIGMAS * sigma(part, n_samples, n_ticks)
        assert functions[stage][1] / total_s == pytest.approx(part, abs=by_chance)
    assert N_SIGMAS * sigma(1 / 11, n_samples, n_ticks) < 1 / 3 - 1 / 11
    assert functions["run"][1] >= 0.97 * total_s


@pytest.mark.parametrize("engine", ENGINES)
def test_an_interpreter(engine: str, attached: Run, gprofng: Run) -> None:
    with running("/usr/bin/python3", "-c", PYTHON) as pid:
        path, cpu_s, known_to_s, *_ = attached(engine, pid, 1.1)
    functions = gprofng("-functions", experiment=path).functions
    assert functions["<Total>"][0] == pytest.approx(cpu_s, rel=0.05, abs=known_to_s)
    assert functions["_start"][1] == pytest.approx(functions["<Total>"][0], rel=0.02)
    assert b"python3" in open_experiment(path).log.arguments


@contextmanager
def serving(need: Run, directory: Path) -> Iterator[int]:
    """The pid of a server under its own benchmark; both are killed in the end."""
    socket = directory / "redis.sock"
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": directory}
    served = [need("redis-server", "redis-server"), "--port", "0", "--unixsocket", socket, "--save", ""]
    load = [need("redis-benchmark", "redis-tools"), "-s", socket, "-l", "-q", "-c", "20", "-t", "get"]
    with subprocess.Popen(served, **quiet) as server:
        try:
            while not socket.exists():
                time.sleep(0.02)
            with subprocess.Popen(load, **quiet) as client:
                try:
                    time.sleep(0.3)
                    yield server.pid
                    assert client.poll() is None
                finally:
                    client.kill()
        finally:
            server.kill()


@pytest.mark.kernel_times
@pytest.mark.all_cpus
@pytest.mark.parametrize("engine", ENGINES)
def test_a_server_under_load(engine: str, attached: Run, need: Run, gprofng: Run, tmp_path: Path) -> None:
    """It sleeps and is woken tens of thousands of times a second, in one call and out of many.

    How much each call takes is not compared between engines. To have its events switched at each sleep and wake-up
    costs a thread time: with perf on a virtual machine, the server has half of its CPU time in ``epoll_wait``, and with
    signals an eighth.
    """
    with serving(need, tmp_path) as pid:
        path, cpu_s, *_ = attached(engine, pid, 1.3, "hi")
    functions = gprofng("-functions", experiment=path).functions
    total_s = functions["<Total>"][0]
    assert total_s == pytest.approx(cpu_s, rel=0.1)
    assert functions["_start"][1] >= 0.97 * total_s
    assert min(functions[name][1] for name in ("read", "write", "epoll_wait")) > 0.02 * total_s
    assert sum(functions[name][1] for name in ("read", "write", "epoll_wait")) < total_s


def check_that_one_cpu_serves(path: Path, n_threads: int, gprofng: Run) -> float:
    """Threads that never sleep had one CPU together, or waited for it; returns how long they had it."""
    log = open_experiment(path).log
    life_s = (log.end_ns - log.start_ns) * 1e-9
    states = gprofng("-metrics", "e.totalcpu:e.wait:e.sleep:name", "-functions", experiment=path)
    cpu_s, wait_s, sleep_s = states.functions["<Total>"]
    assert cpu_s <= life_s + 0.02
    assert cpu_s + wait_s == pytest.approx(n_threads * life_s, rel=0.05)
    assert sleep_s <= 0.02 * n_threads * life_s
    return float(cpu_s)


@pytest.mark.kernel_times
@pytest.mark.all_cpus
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("seconds", [0.2, 1.1])
def test_more_threads_than_a_cpu_can_serve(engine: str, seconds: float, workload: Run, attached: Run,
                                           gprofng: Run) -> None:
    """Most of them wait when they are attached to, many until the end."""
    n_threads = 101
    with running("taskset", "-c", min(os.sched_getaffinity(0)), workload("crowd"), n_threads, 1, 0) as pid:
        path, kernel_cpu_s, known_to_s, *_ = attached(engine, pid, seconds)
    cpu_s = check_that_one_cpu_serves(path, n_threads, gprofng)
    assert cpu_s == pytest.approx(kernel_cpu_s, rel=0.015, abs=known_to_s + 2 * INTERVAL_S)


@contextmanager
def hurrying(path: Path, *arguments: object) -> Iterator[tuple[subprocess.Popen[bytes], psutil.Process]]:
    """``collect`` with arguments, beside so many threads that it has taken the highest priority."""
    ours = os.getpriority(os.PRIO_PROCESS, 0)
    command = ["nice", "-n", -ours, COLLECT, "-p", "on", "-A", "off", "-o", path, *arguments]
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([*map(str, command)], stdin=subprocess.PIPE, **quiet) as process:
        try:
            collector, until_s = psutil.Process(process.pid), time.monotonic() + 30
            while not ((path / "profile").exists() and collector.nice() == -20) and time.monotonic() < until_s:
                time.sleep(0.02)
            yield process, collector
            process.wait(30)
        finally:
            process.kill()


def nices(*processes: psutil.Process) -> set[int]:
    """The nice values of all threads."""
    return {os.getpriority(os.PRIO_PROCESS, thread.id) for process in processes for thread in process.threads()}


def group_nice(leader: psutil.Process) -> int:
    """The nice value of a session's group."""
    return int(Path(f"/proc/{leader.pid}/autogroup").read_text().split()[-1])


N_MANY = 5 * (os.cpu_count() or 1)  # more than four for each CPU


@pytest.mark.usefixtures("autogroups")
@pytest.mark.parametrize("engine", ENGINES)
def test_who_attaches_beside_many_threads_does_not_wait_behind_them(engine: str, workload: Run, tmp_path: Path,
                                                                    may_hurry: None) -> None:
    path = tmp_path / "x.er"
    with (running("taskset", "-c", min(os.sched_getaffinity(0)), workload("crowd"), N_MANY, 1, 0) as pid,
          hurrying(path, "--engine", engine, "-P", pid) as (process, collector)):
        assert collector.num_threads() == 1
        assert nices(collector, *collector.children()) == {-20}
        assert [group_nice(tracer) for tracer in collector.children()] == ([-20] if engine == "signal" else [])
        assert nices(psutil.Process(pid)) == {os.getpriority(os.PRIO_PROCESS, 0)}
        process.send_signal(signal.SIGINT)
    assert process.returncode == 0


@pytest.mark.parametrize("engine", ENGINES)
def test_a_program_does_not_inherit_the_hurry(engine: str, workload: Run, tmp_path: Path, may_hurry: None) -> None:
    """Nor does what it starts later."""
    script = "read line; sleep 30 & read line; kill $!"
    with (running("taskset", "-c", min(os.sched_getaffinity(0)), workload("crowd"), N_MANY, 1, 0),
          hurrying(tmp_path / "x.er", "--engine", engine, "bash", "-c", script) as (process, collector)):
        assert process.stdin is not None
        shell, = (child for child in collector.children() if child.name() == "bash")
        process.stdin.write(b"go\n")
        process.stdin.flush()
        until_s = time.monotonic() + 30
        while not (later := shell.children()) and time.monotonic() < until_s:
            time.sleep(0.02)
        assert collector.nice() == -20 and len(later) == 1
        assert nices(shell, *later) == {0}
        process.stdin.write(b"go\n")
        process.stdin.close()
    assert process.returncode == 0


@pytest.mark.kernel_times
@pytest.mark.all_cpus
def test_a_recording_goes_on_until_the_tracer_has_looked_at_everybody(workload: Run, tmp_path: Path,
                                                                      gprofng: Run) -> None:
    """It may have to wait for a CPU when it is to stop."""
    n_threads, path = 31, tmp_path / "x.er"
    with running("taskset", "-c", min(os.sched_getaffinity(0)), workload("crowd"), n_threads, 1, 0) as pid:
        command = [COLLECT, "--engine", "signal", "-P", pid, "-p", "on", "-A", "off", "-o", path]
        with prefork.Popen([*map(str, command)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            while not (path / "profile").exists():
                time.sleep(0.02)
            time.sleep(0.3)
            tracer, = psutil.Process(process.pid).children()
            tracer.suspend()
            before_s = kernel_s(pid)
            process.send_signal(signal.SIGINT)
            time.sleep(0.7)
            late_s = kernel_s(pid) - before_s
            tracer.resume()
            process.wait(30)
    assert process.returncode == 0
    assert check_that_one_cpu_serves(path, n_threads, gprofng) >= 0.2 + late_s


@pytest.mark.kernel_times
@pytest.mark.all_cpus
@pytest.mark.parametrize("engine", ENGINES)
def test_threads_that_are_awake_and_get_no_cpu_do_not_sleep(engine: str, workload: Run, attached: Run,
                                                            gprofng: Run) -> None:
    with running("taskset", "-c", min(os.sched_getaffinity(0)), workload("crowd"), 307, 1, 101) as pid:
        time.sleep(0.5)
        path, _, _, awake_s, _ = attached(engine, pid, 1.3)
    states = gprofng("-metrics", "e.totalcpu:e.wait:name", "-functions", experiment=path)
    cpu_s, wait_s = states.functions["<Total>"]
    assert cpu_s + wait_s == pytest.approx(awake_s, rel=0.08)
    assert wait_s >= 30  # seconds of many threads


@pytest.mark.kernel_times  # a switch record at the very end may be missing where the tracer comes late
@pytest.mark.all_cpus
@pytest.mark.parametrize("engine", ENGINES)
def test_a_recording_ends_amid_execs(engine: str, collect: Run, tmp_path: Path) -> None:
    """Of an image that has just begun nothing is known yet."""
    script, path = tmp_path / "again.py", tmp_path / "x.er"
    again = [sys.executable, "-IS", str(script)]
    script.write_text(f"import os\nprint(1, flush=True)\nos.execv({again[0]!r}, {again!r})\n")
    for _ in range(3):
        with running(*again) as pid:
            result = collect("--engine", engine, "-P", pid, "-t", "0.3s", "-p", "on", "-A", "off", "-O", path)
        assert result.returncode == 0
        # A stack may be met while the kernel or the loader has yet to make it.
        unrooted = r"[1-3] of \d+ stacks? do(es)? not reach the root \([^()]*\)"
        assert re.fullmatch(rf"collect: .*/x\.er: .*, (nothing lost|{unrooted})\n", result.stderr), result.stderr


@pytest.mark.kernel_times
@pytest.mark.all_cpus
@pytest.mark.usefixtures("may_hurry")
@pytest.mark.parametrize("seen_s", [0.0, 0.5])
def test_threads_that_nobody_looks_at_for_long(seen_s: float, workload: Run, tmp_path: Path, gprofng: Run) -> None:
    """They have slept more than once when the tracer gets a CPU again, and wait when they are looked at."""
    path = tmp_path / "x.er"
    with running("taskset", "-c", min(os.sched_getaffinity(0)), workload("crowd"), 307, 1, 101) as pid:
        time.sleep(0.5)
        with Watch(pid) as watch, hurrying(path, "--engine", "signal", "-P", pid, "-t", "2.2s") as (process, collector):
            time.sleep(seen_s)
            tracer, = collector.children()
            tracer.suspend()
            time.sleep(1.4)
            tracer.resume()
    log = open_experiment(path).log
    cpu_s, _, awake_s = watch.between(log.start_ns, log.end_ns)
    states = gprofng("-metrics", "e.totalcpu:e.wait:name", "-functions", experiment=path)
    assert process.returncode == 0
    assert states.functions["<Total>"][0] == pytest.approx(cpu_s, rel=0.05)
    assert sum(states.functions["<Total>"]) == pytest.approx(awake_s, rel=0.06)


@pytest.mark.kernel_times
@pytest.mark.all_cpus
@pytest.mark.usefixtures("may_hurry")
def test_threads_that_nobody_looks_at_and_that_never_sleep(workload: Run, tmp_path: Path, gprofng: Run) -> None:
    n_threads, path = 307, tmp_path / "x.er"
    with (running("taskset", "-c", min(os.sched_getaffinity(0)), workload("crowd"), n_threads, 1, 0) as pid,
          hurrying(path, "--engine", "signal", "-P", pid) as (process, collector)):
        tracer, = collector.children()
        tracer.suspend()
        time.sleep(1.1)
        process.send_signal(signal.SIGINT)
        tracer.resume()
    log = open_experiment(path).log
    all_s = n_threads * (log.end_ns - log.start_ns) * 1e-9
    states = gprofng("-metrics", "e.totalcpu:e.wait:e.sleep:name", "-functions", experiment=path)
    cpu_s, wait_s, sleep_s = states.functions["<Total>"]
    assert process.returncode == 0
    assert cpu_s + wait_s == pytest.approx(all_s, rel=0.002)
    assert sleep_s <= 0.0005 * all_s


@pytest.mark.kernel_times
@pytest.mark.all_cpus
@pytest.mark.parametrize("engine", ENGINES)
def test_threads_that_come_and_go_while_they_are_attached_to(engine: str, collect: Run, tmp_path: Path) -> None:
    """Some are born, and some end, between any two looks: none may stay behind as one that works or sleeps on."""
    with running(sys.executable, "-c", CHURN) as pid:
        process, path = psutil.Process(pid), tmp_path / "x.er"
        for _ in range(2):
            time.sleep(0.1)
            began_s, before_s = time.monotonic(), sum(process.cpu_times()[:2])
            result = collect("--engine", engine, "-P", pid, "-t", "0.6s", "-p", "on", "-A", "off", "-O", path)
            rate = (sum(process.cpu_times()[:2]) - before_s) / (time.monotonic() - began_s)
            assert result.returncode == 0, result.stderr
            experiment = open_experiment(path)
            packets = experiment.packets()
            told_s = {tid: int(packets["NTICK"][packets["THRID"] == tid].sum()) * 10.007e-3
                      for tid in set(packets["THRID"].tolist())}
            assert len(experiment.threads) > 100
            assert max(seconds for tid, seconds in told_s.items() if tid != pid) < 0.3
            cpu_s = float(re.search(r"([\d.]+) s CPU", result.stderr)[1])
            assert rate * 0.6 < cpu_s < rate * 2.2
