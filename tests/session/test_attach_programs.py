"""Attaching to programs at work, with either engine: the profile is right, and nothing stays behind."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any, NamedTuple

import numpy as np
import prefork
import psutil
import pytest
import sampling_error
from sockets import is_listening

from collector.experiment.reader import Experiment, open_experiment
from collector.linux.accounts import process_clock_ns
from collector.timing.states import Microstate

COLLECT = str(Path(sys.executable).with_name("collect"))
Run = Callable[..., Any]
# Says how many threads there have been, after each score of them; and at its end of each between which times it has
# lived, at most, and between which it has rested.
CHURN = """
import json, os, random, signal, threading, time
def rest(longest_s):
    began_ns = time.monotonic_ns()
    time.sleep(random.random() * longest_s)
    rested[threading.get_native_id()] = [began_ns, time.monotonic_ns()]
def look():
    for tid in [tid for tid in living if not os.path.exists(f"/proc/self/task/{tid}")]:
        lives[tid][1] = time.monotonic_ns()
        living.remove(tid)
lives, rested, living, over = {}, {}, set(), []
signal.signal(signal.SIGTERM, lambda *_: over.append(1))
while not over:
    began_ns = time.monotonic_ns()
    threads = [threading.Thread(target=rest, args=[0.02 if n < 10 else 0.1]) for n in range(20)]
    for thread in threads: thread.start()
    for thread in threads:
        lives[thread.native_id] = [began_ns, 0]
        living.add(thread.native_id)
    for thread in threads[:10]: thread.join()
    look()
    print(len(lives), flush=True)
while living: look()
print(json.dumps({tid: lives[tid] + rested[tid] for tid in lives}), flush=True)
"""
PYTHON = "print(1, flush=True)\nwhile 1: sorted(range(1000), key=str)"


Bounds = tuple[float, float]
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


def n_awake(pid: int) -> int:
    """How many threads can run now, or have been stopped by a tracer while they could."""
    texts = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return sum(text.rpartition(")")[2].split()[0] in "Rt" for text in texts)


def marks(pid: int) -> list[str]:
    """What a collector could have left behind in any of the threads: tracers, stops, signals."""
    texts = [path.read_text() for path in sorted(Path(f"/proc/{pid}/task").glob("*/status"))]
    assert not any(re.search(r"^State:\s+[tT]", text, re.MULTILINE) for text in texts)
    return ["".join(MARKS.findall(text)) for text in texts]


class Watch(Thread):
    """Looks at something again and again, to tell later how it was at a time."""

    def __init__(self, look: Callable[[], float], every_s: float) -> None:
        super().__init__()
        self._look, self._every_s, self._over = look, every_s, Event()
        self._looks: list[tuple[int, int, float]] = []  # the times before and after, and what was seen

    def run(self) -> None:
        with suppress(PermissionError):  # or it would look seldom beside many threads
            os.setpriority(os.PRIO_PROCESS, 0, -20)
        while not self._over.wait(self._every_s):
            self._note()

    def _note(self) -> None:
        began_ns, seen = time.monotonic_ns(), self._look()
        self._looks.append((began_ns, time.monotonic_ns(), seen))

    def __enter__(self) -> Watch:
        self._note()
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()
        time.sleep(KERNEL_TICK_S)
        self._note()

    def grown(self, start_ns: int, end_ns: int) -> Bounds:
        """At least and at most by how much that which never falls grew between two times. What is seen is not older
        than the kernel's last tick."""
        (least_first, most_first), (least_last, most_last) = map(self._at, (start_ns, end_ns))
        return least_last - most_first, most_last - least_first

    def _at(self, time_ns: int) -> Bounds:
        tick_ns = KERNEL_TICK_S * 1e9
        return (max(seen for _, after_ns, seen in self._looks if after_ns <= time_ns),
                min(seen for before_ns, _, seen in self._looks if before_ns >= time_ns + tick_ns))

    def mean(self, start_ns: int, end_ns: int) -> tuple[float, float]:
        """The mean between two times; and its error, by what chance makes of so many looks."""
        before_ns, after_ns, seen = map(np.array, zip(*self._looks, strict=True))
        times_ns = (before_ns + after_ns) / 2
        inside = seen[(times_ns > start_ns) & (times_ns < end_ns)]
        mean = np.interp(np.linspace(start_ns, end_ns, 1001), times_ns, seen).mean()
        return float(mean), sampling_error.DEVIATIONS * float(inside.std()) / math.sqrt(len(inside))


def cpu_watch(pid: int) -> Watch:
    """Of the CPU time that a process has had, all its threads."""
    return Watch(lambda: process_clock_ns(pid) * 1e-9, 0.005)


def awake_watch(pid: int) -> Watch:
    """Of how many threads of a process are awake."""
    return Watch(lambda: n_awake(pid), 0.05)


class Attached(NamedTuple):
    """An experiment; how long the program's threads had a CPU meanwhile; clock samples, as ``collect`` tells."""

    path: Path
    cpu_s: Bounds
    n_samples: int


@pytest.fixture
def attached(tmp_path: Path, stolen: Callable[[], float]) -> Run:
    """``attached(engine, pid, seconds)`` records and returns an Attached; ``attached(engine, pid, cpu_s=1)`` until the
    program has had a CPU for so long, and ``n_met`` samples are in the experiment."""

    def record(engine: str, pid: int, seconds: float | None = None, interval: str = "on", cpu_s: float = 0,
               n_met: int = 0) -> Attached:
        path, unmarked, stolen_before_s = tmp_path / f"{engine}.er", marks(pid), stolen()
        command = [COLLECT, "--engine", engine, "-P", pid, "-p", interval, "-o", path]
        command += [] if seconds is None else ["-t", f"{seconds}s"]
        with (cpu_watch(pid) as watch,
              prefork.Popen([*map(str, command)], stderr=subprocess.PIPE, text=True) as process):
            if seconds is None:
                while not (path / "profile").exists():
                    time.sleep(0.02)
                until_ns = process_clock_ns(pid) + cpu_s * 1e9
                while process_clock_ns(pid) < until_ns:
                    time.sleep(0.02)
                while np.count_nonzero(open_experiment(path).packets()["MSTATE"] <= Microstate.TRAP) < n_met:
                    time.sleep(0.2)
                process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=60)
        assert process.returncode == 0, said
        assert marks(pid) == unmarked
        log, n_samples = open_experiment(path).log, re.search(r"(\d+) samples?", said)
        assert n_samples is not None, said
        least_s, most_s = watch.grown(log.start_ns, log.end_ns)
        stolen_s = stolen() - stolen_before_s
        return Attached(path, (least_s - stolen_s, most_s + stolen_s), int(n_samples[1]))

    return record


ERROR = {"perf": 0.01, "signal": 0.03}  # of sums over threads


def check_cpu(recorded_s: float, cpu_s: Bounds, engine: str, ahead_s: float = 0) -> None:
    """What is recorded of all threads together is the kernel's account, in ticks of user and of system time; more by at
    most ``ahead_s``."""
    error, rounded_s = ERROR[engine], 2 * INTERVAL_S
    assert cpu_s[0] * (1 - error) - rounded_s <= recorded_s <= cpu_s[1] * (1 + error) + rounded_s + ahead_s


# Until who is met tells functions of different times apart. Of threads that run for a moment, looks meet a third, and
# fewer the later they come: so it is counted.
CPU_S_MET, N_MET = {"perf": 0.9, "signal": 1.8}, 60


@pytest.mark.kernel_times
@pytest.mark.parametrize("engine", ENGINES)
def test_five_hundred_threads_that_work_now_and_then(engine: str, workload: Run, attached: Run, gprofng: Run) -> None:
    """How near their functions are to 1 : 3 : 7 is what ``scripts/truth`` tells; here, that they are as near as chance
    lets them be, and farther from what would be seen if all threads were met at one point: from thirds."""
    with running(workload("crowd"), 500, 1, 1511) as pid:
        path, cpu_s, n_samples = attached(engine, pid, cpu_s=CPU_S_MET[engine], n_met=N_MET)
    experiment = open_experiment(path)
    assert len(experiment.threads) == 500
    functions = gprofng("-functions", experiment=path).functions
    total_s = functions["<Total>"][0]
    check_cpu(total_s, cpu_s, engine)
    # The time of those whom none met is shared out among the samples in turn.
    ticks = experiment.packets()["NTICK"][experiment.packets()["MSTATE"] <= Microstate.TRAP]
    n_draws = min(n_samples, sampling_error.n_draws(ticks))
    for stage, part in (("stage_one", 1 / 11), ("stage_three", 3 / 11), ("stage_seven", 7 / 11)):
        by_chance = sampling_error.of_share(part, n_draws)
        assert functions[stage][1] / total_s == pytest.approx(part, abs=by_chance)
    assert sampling_error.of_share(1 / 11, n_draws) < 1 / 3 - 1 / 11
    assert functions["run"][1] >= 0.97 * total_s


@pytest.mark.parametrize("engine", ENGINES)
def test_an_interpreter(engine: str, attached: Run, gprofng: Run) -> None:
    with running("/usr/bin/python3", "-c", PYTHON) as pid:
        path, cpu_s, _ = attached(engine, pid, 1.1)
    functions = gprofng("-functions", experiment=path).functions
    check_cpu(functions["<Total>"][0], cpu_s, engine)
    assert functions["_start"][1] == pytest.approx(functions["<Total>"][0], rel=0.02)
    assert b"python3" in open_experiment(path).log.arguments


def its_helpers_sleep(pid: int) -> bool:
    """Whether the threads of a process besides its first one have set themselves up and wait for work."""
    others = [path for path in Path(f"/proc/{pid}/task").iterdir() if path.name != str(pid)]
    return all(") S " in (path / "stat").read_text() for path in others)


@contextmanager
def serving(need: Run, directory: Path) -> Iterator[int]:
    """The pid of a server under its own benchmark; both are killed in the end."""
    socket = directory / "redis.sock"
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": directory}
    served = [need("redis-server", "redis-server"), "--port", "0", "--unixsocket", socket, "--save", ""]
    load = [need("redis-benchmark", "redis-tools"), "-s", socket, "-l", "-q", "-c", "20", "-t", "get"]
    with subprocess.Popen(served, **quiet) as server:
        try:
            while not is_listening(socket):
                time.sleep(0.02)
            with subprocess.Popen(load, **quiet) as client:
                try:
                    used_s = process_clock_ns(server.pid) * 1e-9
                    while process_clock_ns(server.pid) * 1e-9 < used_s + 0.2 or not its_helpers_sleep(server.pid):
                        time.sleep(0.02)
                    yield server.pid
                    assert client.poll() is None
                finally:
                    client.kill()
        finally:
            server.kill()


@pytest.mark.kernel_times
@pytest.mark.parametrize("engine", ENGINES)
def test_a_server_under_load(engine: str, attached: Run, need: Run, gprofng: Run, tmp_path: Path) -> None:
    """It sleeps and is woken tens of thousands of times a second, in one call and out of many.

    How much each call takes is not compared between engines. To have its events switched at each sleep and wake-up
    costs a thread time: with perf on a virtual machine, the server has half of its CPU time in ``epoll_wait``, and with
    signals an eighth. So that each call is met, samples are counted.
    """
    with serving(need, tmp_path) as pid:
        path, cpu_s, _ = attached(engine, pid, interval="hi", cpu_s=0.5, n_met=200)
    functions = gprofng("-functions", experiment=path).functions
    total_s = functions["<Total>"][0]
    check_cpu(total_s, cpu_s, engine)
    assert functions["_start"][1] >= 0.97 * total_s
    assert min(functions[name][1] for name in ("read", "write", "epoll_wait")) > 0
    assert sum(functions[name][1] for name in ("read", "write", "epoll_wait")) < total_s


def check_that_one_cpu_serves(path: Path, n_threads: int, gprofng: Run) -> float:
    """Threads that never sleep had one CPU together, or waited for it; returns how long they had it."""
    log = open_experiment(path).log
    life_s = (log.end_ns - log.start_ns) * 1e-9
    states = gprofng("-metrics", "e.totalcpu:e.wait:e.sleep:name", "-functions", experiment=path)
    cpu_s, wait_s, sleep_s = states.functions["<Total>"]
    assert cpu_s <= life_s + 2 * INTERVAL_S
    assert cpu_s + wait_s == pytest.approx(n_threads * life_s, rel=0.02)
    assert sleep_s <= 0.01 * n_threads * life_s
    return float(cpu_s)


@pytest.mark.kernel_times
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("seconds", [0.2, 1.1])
def test_more_threads_than_a_cpu_can_serve(engine: str, seconds: float, workload: Run, attached: Run,
                                           gprofng: Run) -> None:
    """Most of them wait when they are attached to, many until the end."""
    n_threads = 101
    with running("taskset", "-c", min(os.sched_getaffinity(0)), workload("crowd"), n_threads, 1, 0) as pid:
        path, cpu_s, _ = attached(engine, pid, seconds)
    check_cpu(check_that_one_cpu_serves(path, n_threads, gprofng), cpu_s, engine)


def check_awake(path: Path, watch: Watch, gprofng: Run) -> None:
    """How long threads had a CPU or waited for one, of whom it was seen how many did."""
    log = open_experiment(path).log
    n_awake, error = watch.mean(log.start_ns, log.end_ns)
    length_s = (log.end_ns - log.start_ns) * 1e-9
    cpu_s, wait_s = gprofng("-metrics", "e.totalcpu:e.wait:name", "-functions", experiment=path).functions["<Total>"]
    assert (cpu_s + wait_s) / length_s == pytest.approx(n_awake, abs=0.03 * n_awake + error)
    assert wait_s > 9 * cpu_s


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
def test_a_recording_goes_on_until_the_tracer_has_looked_at_everybody(workload: Run, tmp_path: Path,
                                                                      gprofng: Run) -> None:
    """It may have to wait for a CPU when it is to stop."""
    n_threads, path = 31, tmp_path / "x.er"
    with running("taskset", "-c", min(os.sched_getaffinity(0)), workload("crowd"), n_threads, 1, 0) as pid:
        command = [COLLECT, "--engine", "signal", "-P", pid, "-p", "on", "-A", "off", "-o", path]
        with cpu_watch(pid) as watch, prefork.Popen([*map(str, command)], stdout=subprocess.DEVNULL,
                                                    stderr=subprocess.DEVNULL) as process:
            while not (path / "profile").exists():
                time.sleep(0.02)
            time.sleep(0.3)
            tracer, = psutil.Process(process.pid).children()
            tracer.suspend()
            process.send_signal(signal.SIGINT)
            time.sleep(0.7)
            resumed_ns = time.monotonic_ns()
            tracer.resume()
            process.wait(30)
    log = open_experiment(path).log
    assert process.returncode == 0
    assert log.end_ns >= resumed_ns
    cpu_s = watch.grown(log.start_ns, log.end_ns)
    check_cpu(check_that_one_cpu_serves(path, n_threads, gprofng), cpu_s, "signal")


@pytest.mark.kernel_times
@pytest.mark.parametrize("engine", ENGINES)
def test_threads_that_are_awake_and_get_no_cpu_do_not_sleep(engine: str, workload: Run, attached: Run,
                                                            gprofng: Run) -> None:
    with running("taskset", "-c", min(os.sched_getaffinity(0)), workload("crowd"), 307, 1, 101) as pid:
        time.sleep(0.5)
        with awake_watch(pid) as watch:
            path = attached(engine, pid, 1.3).path
    check_awake(path, watch, gprofng)


MISSING = "1 switch record is missing"  # at the very end, where the tracer comes late


@pytest.mark.kernel_times
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
        said = re.fullmatch(r"collect: .*/x\.er: .* samples?, (nothing lost|[^,;]*);?([^,;]*)\n", result.stderr)
        assert said is not None, result.stderr
        # Once in each image, a stack may be met while the kernel or the loader has yet to make it.
        unrooted = re.fullmatch(r"(\d+) of \d+ stacks? do(es)? not reach the root \([^()]*\)", said[1])
        assert unrooted or said[1] in ("nothing lost", MISSING), result.stderr
        assert said[2].strip() in ("", MISSING), result.stderr
        assert unrooted is None or int(unrooted[1]) <= 1 + len(open_experiment(path).children)


@pytest.mark.kernel_times
@pytest.mark.all_cpus  # how long threads slept that nobody looked at is estimated, by how they behaved before
@pytest.mark.usefixtures("may_hurry")
@pytest.mark.parametrize("seen_s", [0.0, 0.5])
def test_threads_that_nobody_looks_at_for_long(seen_s: float, workload: Run, tmp_path: Path, gprofng: Run) -> None:
    """They have slept more than once when the tracer gets a CPU again, and wait when they are looked at."""
    path = tmp_path / "x.er"
    with running("taskset", "-c", min(os.sched_getaffinity(0)), workload("crowd"), 307, 1, 101) as pid:
        time.sleep(0.5)
        with (cpu_watch(pid) as cpu, awake_watch(pid) as awake,
              hurrying(path, "--engine", "signal", "-P", pid,) as (process, collector)):
            time.sleep(seen_s)
            tracer, = collector.children()
            tracer.suspend()
            time.sleep(1.4)
            tracer.resume()
            time.sleep(0.5)
            process.send_signal(signal.SIGINT)
    experiment, functions = open_experiment(path), gprofng("-functions", experiment=path).functions
    assert process.returncode == 0
    # Where the end of a run is missing, which is told, its length is not known.
    told = "\n".join(message.text for message in experiment.log.messages)
    n_missing = sum(map(int, re.findall(r"(\d+) switch records? (?:is|are) missing", told)))
    packets = experiment.packets()
    longest_s = int(packets["NTICK"][packets["MSTATE"] <= Microstate.TRAP].max()) * INTERVAL_S
    cpu_s = cpu.grown(experiment.log.start_ns, experiment.log.end_ns)
    check_cpu(functions["<Total>"][0], cpu_s, "signal", n_missing * longest_s)
    check_awake(path, awake, gprofng)


@pytest.mark.kernel_times
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
@pytest.mark.parametrize("engine", ENGINES)
def test_threads_that_come_and_go_while_they_are_attached_to(engine: str, tmp_path: Path) -> None:
    """Some are born, and some end, between any two looks: none may stay behind as one that works or sleeps on."""
    said, paths, cpu_s = tmp_path / "said", [tmp_path / f"{n}.er" for n in range(2)], []
    with said.open("w") as file, subprocess.Popen([sys.executable, "-c", CHURN], stdout=file) as program:
        try:
            for path in paths:
                command = [COLLECT, "--engine", engine, "-P", program.pid, "-p", "on", "-A", "off", "-o", path]
                wait_for_threads(said, 100)
                with (cpu_watch(program.pid) as watch,
                      prefork.Popen([*map(str, command)], stderr=subprocess.DEVNULL) as process):
                    while not (path / "profile").exists():
                        time.sleep(0.02)
                    wait_for_threads(said, 400)
                    process.send_signal(signal.SIGINT)
                    process.wait(30)
                assert process.returncode == 0
                log = open_experiment(path).log
                cpu_s.append(watch.grown(log.start_ns, log.end_ns))
            program.terminate()
            program.wait(30)
        finally:
            program.kill()
    lives = {int(tid): times_ns for tid, times_ns in json.loads(said.read_text().splitlines()[-1]).items()}
    for path, used_s in zip(paths, cpu_s, strict=True):
        experiment = open_experiment(path)
        check_churn(experiment, program.pid, lives)
        packets = experiment.packets()
        on_cpu_s = int(packets["NTICK"][packets["MSTATE"] <= Microstate.TRAP].sum()) * INTERVAL_S
        # Each of those that were met may have its first tick early.
        n_met = sum(birth_ns < experiment.log.start_ns < death_ns for birth_ns, death_ns, *_ in lives.values())
        check_cpu(on_cpu_s, used_s, engine, n_met * INTERVAL_S)


def wait_for_threads(said: Path, n_more: int) -> None:
    """Until so many more threads have been born."""
    def n_born() -> int:
        return int(said.read_text().rpartition("\n")[0].rpartition("\n")[2] or "0")

    n_before = n_born()
    while n_born() < n_before + n_more:
        time.sleep(0.02)


def check_churn(experiment: Experiment, pid: int, lives: dict[int, list[int]]) -> None:
    """All threads are there; none works or sleeps for longer than it lived, or is told for less than it rested, each
    state of it rounded. Who has gone from /proc may still have to wait for a CPU, to leave it for good: some do. Of
    those that go while they are met, it may be told a little later; not at the end."""
    log, packets = experiment.log, experiment.packets()
    told = set(packets["THRID"].tolist())
    assert told <= lives.keys() | {pid}
    whole = {tid for tid, (birth_ns, death_ns, *_) in lives.items() if log.start_ns < birth_ns < death_ns < log.end_ns}
    assert len(whole) > 100 and whole <= set(experiment.threads)
    n_late = 0
    for tid, (birth_ns, death_ns, *rested_ns) in lives.items():
        ticks = np.bincount(packets["MSTATE"][packets["THRID"] == tid], packets["NTICK"][packets["THRID"] == tid],
                            Microstate.STOPPED + 1)
        lived_s = (min(death_ns, log.end_ns) - birth_ns) * 1e-9 + np.count_nonzero(ticks) * INTERVAL_S
        rested_s = (min(rested_ns[1], log.end_ns) - max(rested_ns[0], log.start_ns)) * 1e-9
        if birth_ns < log.start_ns < death_ns:
            lived_s = max(lived_s, (log.end_ns - log.start_ns) * 1e-9 / 2)
        assert (ticks.sum() - ticks[Microstate.WAIT_CPU]) * INTERVAL_S <= max(lived_s, 0)
        assert ticks.sum() * INTERVAL_S >= rested_s - N_STATES * INTERVAL_S
        n_late += ticks.sum() * INTERVAL_S > max(lived_s, 0)
    assert n_late < len(told) / 2


N_STATES = 5  # that a thread has which rests: user, system, lock, sleep, wait
