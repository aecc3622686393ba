"""Whoever dies, stops or falls behind: an experiment is left that opens, the program is as it was, and what is missing
is told.
"""

from __future__ import annotations

import json
import mmap
import os
import re
import resource
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
import pytest
import unread

from collector.engines.ptrace import channel, opening
from collector.experiment import names
from collector.experiment.reader import Experiment, open_experiment
from collector.experiment.records import STATES
from collector.linux import abi

Run = Callable[..., Any]
COLLECT = str(Path(sys.executable).with_name("collect"))
ENGINES = ["perf", "signal"]
WAYS = ["launch", "attach"]
STATUS = 7  # of ``enduring``
SEED = 20_260_213
SHT_SYMTAB = 2
CPU_STATES = [STATES.index(state) for state in ("user", "system", "trap")]
COPY_WORDS = 2048  # of a stack, at most
MANY = 60  # ticks of one sample: longer than a thread runs between two looks, however late

pytestmark = pytest.mark.usefixtures("perf_allowed", "attach_allowed")


@pytest.fixture(scope="module")
def killruns() -> Any:
    """``scripts/killruns`` as a module."""
    path = Path(__file__).resolve().parents[2] / "scripts" / "killruns"
    spec = spec_from_loader("killruns", SourceFileLoader("killruns", str(path)))
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["killruns"] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Enduring(subprocess.Popen[str]):
    """The program; ``start_ns``: when its main began."""

    start_ns = 0


@contextmanager
def enduring(program: Path, *prefix: object, **options: Any) -> Iterator[Enduring]:
    """The program, alone or behind ``prefix``, as soon as it is at work; it ends with its standard input."""
    command = [*map(str, prefix), str(program)]
    with Enduring(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options) as process:
        assert process.stdout is not None
        said = json.loads(process.stdout.readline())
        assert said["pid"]
        process.start_ns = said["start_ns"]
        try:
            yield process
        finally:
            process.kill()


def ended_well(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Lets it end: what it says of itself. None of its system calls was broken off."""
    out, _ = process.communicate(timeout=30)
    said: dict[str, Any] = json.loads(out)
    assert (process.returncode, said["broken"]) == (STATUS, 0)
    return said


def child_of(pid: int, is_collector: bool) -> int:
    """The program that collect runs, or its tracer."""
    own = Path(f"/proc/{pid}/cmdline").read_bytes()
    for child in psutil.Process(pid).children():
        if (Path(f"/proc/{child.pid}/cmdline").read_bytes() == own) == is_collector:
            return child.pid
    raise AssertionError(f"{pid} has no such child")


def told_by(tracer: int) -> tuple[int, int]:
    """What is in the memory that a tracer shares with its collector, by the words that control it: how many words of
    stacks are not drained yet, and how many bytes of rows of samples there have been."""
    mappings = [line.split()[0].split("-") for line in Path(f"/proc/{tracer}/maps").read_text().splitlines()
                if line.endswith("/dev/zero (deleted)")]
    start = max(mappings, key=lambda ends: int(ends[1], 16) - int(ends[0], 16))[0]
    with open(f"/proc/{tracer}/mem", "rb", buffering=0) as memory:
        memory.seek(int(start, 16))
        words = memoryview(memory.read(mmap.PAGESIZE)).cast("Q")
    heads = channel._place(words[channel._ROUND])
    return (words[heads + len(channel.RINGS)] - words[channel._STACK_TAIL],
            words[heads + list(channel.RINGS).index("sample")])


def cpu_s(pid: int) -> float:
    """CPU time of a process's main thread, by the kernel's account."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) * 1e-9


def untouched(pid: int) -> bool:
    """Nobody traces the process, and none of its threads is stopped."""
    status = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/status")]
    return all(re.search(r"State:\s[^tT]", text) and "TracerPid:\t0\n" in text for text in status)


def recorded_s(experiment: Experiment, tid: int) -> dict[str, float]:
    """Seconds in each state of one thread."""
    packets = experiment.packets()
    mine = packets[packets["THRID"] == tid]
    ticks = np.bincount(mine["MSTATE"], mine["NTICK"], len(STATES)) * experiment.log.interval_us * 1e-6
    return dict(zip(STATES, ticks.tolist(), strict=True))


def recorded_cpu_s(experiment: Experiment, tid: int) -> float:
    """Seconds in the three states of running."""
    states = recorded_s(experiment, tid)
    return states["user"] + states["system"] + states["trap"]


def warned(experiment: Experiment) -> list[str]:
    """The warnings in the log."""
    return [message.text for message in experiment.log.messages if message.kind == "cwarn"]


# --- the collector is killed ----------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_killed_collector_leaves_an_experiment_and_the_program(
        engine: str, way: str, killruns: Any, workload: Run, need: Run, tmp_path: Path) -> None:
    need("gprofng", "binutils")
    program = workload("enduring")
    # Killed at an instant of its start, of its work, and of its end: by then it has begun for sure.
    plans = [plan for plan in killruns.plans(5, SEED, (engine,), (way,)) if plan.number in (0, 1, 4)]
    outcomes = [killruns.run(plan, program, tmp_path) for plan in plans]
    faults = [f"{outcome.plan}: {fault}" for outcome in outcomes for fault in outcome.faults]
    assert not faults, f"seed {SEED}:\n" + "\n".join(faults)
    assert outcomes[-1].missing_s is not None


def test_an_experiment_that_was_only_begun_opens(tmp_path: Path, gprofng: Run, er_print: Run) -> None:
    path = names.create_directory(str(tmp_path / "begun.er")).path
    assert "<Total>" in gprofng("-functions", experiment=path).text
    for command in ("-functions", "-header", "-threads", "-overview", "-calltree", "-lines", "-samples", "-cpus"):
        result = er_print(command, path)
        assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize("way", WAYS)
def test_a_killed_tracer_is_told(way: str, workload: Run, tmp_path: Path, gprofng: Run) -> None:
    path, program = tmp_path / "x.er", workload("enduring")
    command = [COLLECT, "--engine", "signal", "-p", "hi", "-o", str(path)]
    with enduring(program, *(command if way == "launch" else ()), stderr=subprocess.PIPE) as process:
        if way == "launch":
            collector, target = process, child_of(process.pid, False)
        else:
            target = process.pid
            collector = subprocess.Popen([*command, "-P", str(target)], stderr=subprocess.PIPE, text=True)
        while not (path / "profile").exists() or recorded_cpu_s(open_experiment(path), target) < 0.2:
            assert collector.poll() is None
            time.sleep(0.05)
        tracer = child_of(collector.pid, True)
        os.kill(tracer, signal.SIGKILL)
        spent_s = cpu_s(target)
        assert collector.stderr is not None
        said, told_ns = collector.stderr.readline(), time.monotonic_ns()  # until it notices it reads accounts itself
        assert untouched(target)
        while cpu_s(target) <= spent_s:  # it runs on
            assert process.poll() is None
        if way == "attach":
            assert collector.wait(10) == 1  # it has not recorded all that was asked for
            collector.stderr.close()
        ended_well(process)
    assert "the tracer was killed by signal 9" in said
    experiment = open_experiment(path)
    assert experiment.log.complete
    assert any("the tracer was killed" in text for text in warned(experiment))
    assert experiment.end_ns <= told_ns
    # Since its last account the worker was seen by nobody: it may have run, or waited for a CPU.
    life_s, states = (experiment.end_ns - experiment.log.start_ns) * 1e-9, recorded_s(experiment, target)
    assert recorded_cpu_s(experiment, target) >= 0.2
    assert sum(states.values()) <= life_s + len(states) * experiment.log.interval_us * 1e-6
    assert "work" in gprofng("-functions", experiment=path).functions


# --- the program is killed ------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
def test_a_killed_program_is_recorded_to_its_end(engine: str, workload: Run, tmp_path: Path, gprofng: Run) -> None:
    path = tmp_path / "x.er"
    command = [COLLECT, "--engine", engine, "-o", path]
    with enduring(workload("enduring"), *command, stderr=subprocess.PIPE) as process:
        target = child_of(process.pid, False)
        time.sleep(0.8)
        alive_ns = time.monotonic_ns()
        os.kill(target, signal.SIGKILL)
        process.communicate(timeout=30)
        over_ns = time.monotonic_ns()
        assert process.returncode == 128 + signal.SIGKILL
    experiment = open_experiment(path)
    assert experiment.log.complete
    assert alive_ns < experiment.end_ns < over_ns
    # Its own CPU time can no longer be asked for: the worker was always running or waiting for a CPU. Where others want
    # the CPUs the experiment may have begun long before its main did.
    states = recorded_s(experiment, target)
    alive_s = (alive_ns - max(process.start_ns, experiment.log.start_ns)) * 1e-9
    over_s = (experiment.end_ns - experiment.log.start_ns) * 1e-9
    slack_s = 0.01 * over_s + len(states) * experiment.log.interval_us * 1e-6
    assert alive_s - slack_s < sum(states.values()) < over_s + slack_s
    assert len(experiment.threads) == 3
    assert "work" in gprofng("-functions", experiment=path).functions


# --- too much of everything -----------------------------------------------------------------------


def test_what_others_trace_floods_no_ring(workload: Run, tmp_path: Path) -> None:
    """The deaths of all processes come by SIGCHLD, by which a tracer is told of every stop: of so many that all their
    records would fill the ring of deaths five times.

    Tracer and tracee have a CPU of their own: on the target's they would preempt it more often than its ring of stacks
    has room for, as others may that run here.
    """
    cpus = sorted(os.sched_getaffinity(0))
    command = [COLLECT, "--engine", "perf", "-o", tmp_path / "x.er", "taskset", "-c", cpus[0]]
    with enduring(workload("enduring"), *command, stderr=subprocess.PIPE) as process:
        while not (tmp_path / "x.er" / "_x1.er" / "profile").exists():  # of what taskset becomes
            time.sleep(0.02)
        tracer = ["taskset", "-c", str(cpus[-1]), workload("traced"), "20011"]
        traced = subprocess.run(tracer, capture_output=True, check=True)
        out, said = process.communicate()
    assert json.loads(traced.stdout)["stops"] == 20_011
    assert (process.returncode, json.loads(out)["broken"]) == (STATUS, 0)
    assert re.search(rf"samples?, (nothing lost|{unread.PREEMPTED}(; {unread.PREEMPTED})?)\n", said), said


@pytest.mark.kernel_times
@pytest.mark.usefixtures("root")
def test_a_storm_of_mappings_is_told_by_proc(workload: Run, tmp_path: Path, gprofng: Run) -> None:
    """No record is made of most of them; what stays mapped is known all the same, and who comes to be meanwhile."""
    path = tmp_path / "x.er"
    command = [COLLECT, "--engine", "perf", "-o", str(path), workload("mapstorm"), "200003", "0.7"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    truth = json.loads(result.stdout)
    assert "2 descendants" in result.stderr
    assert not re.search(r"no map|clock records|task records|switch", result.stderr), result.stderr
    experiment = open_experiment(path)
    assert any("what was mapped is read from /proc" in message.text for message in experiment.log.messages)
    assert recorded_cpu_s(experiment, truth["pid"]) == pytest.approx(truth["user_s"] + truth["system_s"], rel=0.02)
    code_s = [seconds[0] for name, seconds in gprofng("-functions", experiment=path).rows if "anonymous" in name]
    assert sum(code_s) == pytest.approx(2 * truth["ran_s"], rel=0.05)


def most_of(pids: list[int]) -> tuple[int, int]:
    """Open files of processes, the most, and their peak of memory (MiB) altogether."""
    n_files, mib = 0, 0
    for pid in pids:
        n_files = max(n_files, len(os.listdir(f"/proc/{pid}/fd")))
        peak = re.search(r"VmHWM:\s*(\d+) kB", Path(f"/proc/{pid}/status").read_text())
        mib += int(peak[1]) >> 10 if peak else 0
    return n_files, mib


@pytest.mark.parametrize("engine", ENGINES)
def test_two_thousand_threads_where_few_files_may_be_open(engine: str, workload: Run, tmp_path: Path) -> None:
    n_threads, n_files, run_s = 1999, 512, 1.3
    path = tmp_path / "x.er"
    command = [COLLECT, "--engine", engine, "-A", "off", "-o", path, workload("sleepers"), n_threads, run_s]
    with subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (n_files, n_files))) as process:
        most_files, most_mib = 0, 0
        while process.poll() is None:
            with suppress(OSError, AssertionError):
                ours = [process.pid] if engine == "perf" else [process.pid, child_of(process.pid, True)]
                files, mib = most_of(ours)
                most_files, most_mib = max(most_files, files), max(most_mib, mib)
            time.sleep(0.05)
        out, err = process.communicate()
    assert process.returncode == 0, err
    assert 0 < most_files <= n_files
    assert 0 < most_mib < 128
    truth, experiment = json.loads(out), open_experiment(path)
    packets = experiment.packets()
    assert f"{n_threads + 1} threads" in err
    assert len(experiment.log.threads) == len(np.unique(packets["THRID"])) == n_threads + 1
    waiting = np.isin(packets["MSTATE"], [STATES.index("lock"), STATES.index("sleep"), STATES.index("wait")])
    waited_s = packets["NTICK"][waiting & (packets["THRID"] != truth["pid"])].sum() * experiment.log.interval_us * 1e-6
    assert 0.99 * truth["asleep_s"] <= waited_s <= 1.01 * truth["lived_s"]


class Account(NamedTuple):
    """The kernel's account of a process's main thread, at a time."""

    ran_s: float
    waited_s: float
    time_s: float

    @classmethod
    def of(cls, pid: int) -> Account:
        ran_ns, waited_ns, _ = map(int, Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split())
        return cls(ran_ns * 1e-9, waited_ns * 1e-9, time.monotonic())


def run_for(pid: int, for_s: float) -> None:
    """Waits until a process's main thread has run so long."""
    before = Account.of(pid)
    while Account.of(pid).ran_s - before.ran_s < for_s:
        time.sleep(0.02)


def never_kept_waiting(tracer: int) -> None:
    """Before any thread that is not a real-time one, where we may: its account would tell of a wait when that is over,
    and so not yet of one that lasts."""
    with suppress(PermissionError):
        os.sched_setscheduler(tracer, os.SCHED_FIFO, os.sched_param(1))


def accounts(target: int, tracer: int | None) -> tuple[Account, Account]:
    """Those of both; nothing of a tracer that is not there."""
    return Account.of(target), Account.of(tracer) if tracer else Account(0, 0, 0)


def end_input(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    process.stdin = None


@pytest.mark.kernel_times
@pytest.mark.parametrize(("engine", "outlives"), [("perf", True), ("signal", True), ("signal", False)])
def test_a_collector_that_was_suspended_tells_what_it_lost(engine: str, outlives: bool, workload: Run, tmp_path: Path,
                                                           gprofng: Run, stolen: Callable[[], float]) -> None:
    """``outlives``: the program; else that has ended before, and what is told of it has filled the tracer's rings."""
    path = tmp_path / "x.er"
    command = [COLLECT, "--engine", engine, "-p", "0.5m", "-A", "off", "-o", path]
    with enduring(workload("enduring"), *command, stderr=subprocess.PIPE) as process:
        target = child_of(process.pid, False)
        while not (path / "profile").exists():
            time.sleep(0.02)
        tracer = child_of(process.pid, True) if engine == "signal" else None
        if tracer:
            never_kept_waiting(tracer)
        process.send_signal(signal.SIGSTOP)
        before, stolen_before_s = accounts(target, tracer), stolen()
        run_for(target, 2 if outlives else 3.5)
        after, stolen_s = accounts(target, tracer), stolen() - stolen_before_s
        tracer_waited_s = after[1].waited_s
        if not outlives:
            end_input(process)
            while psutil.Process(target).status() != psutil.STATUS_ZOMBIE:
                time.sleep(0.02)
        process.send_signal(signal.SIGCONT)
        out, said = process.communicate(timeout=30)
    truth = json.loads(out)
    assert (process.returncode, truth["broken"]) == (STATUS, 0)
    # It did not wait for the collector: it ran or was ready to, but while its tracer looked at it, or was ready to.
    gone_s = after[0].time_s - before[0].time_s
    alive_s, looked_s = (then.ran_s + then.waited_s - now.ran_s - now.waited_s
                         for now, then in zip(before, after, strict=True))
    assert gone_s - alive_s < looked_s + stolen_s + 0.1 * gone_s
    experiment = open_experiment(path)
    threads_s = sum(recorded_cpu_s(experiment, tid) for tid in experiment.threads)
    assert threads_s == pytest.approx(truth["user_s"] + truth["system_s"], rel=0.01, abs=0.005)
    # The clock struck every 0.5 ms of its CPU time: what is not there is told. (That of the signal engine strikes as
    # often as its tracer can; where it could not go on to the end, the next samples stand for what it ran meanwhile,
    # as they do for what it ran while its tracer waited for a CPU.)
    n_lost = sum(int(n) for text in warned(experiment) for n in re.findall(r"(\d+) clock records? lost", text))
    if engine == "signal":
        packets = experiment.packets()
        stood_for = packets["NTICK"][np.isin(packets["MSTATE"], CPU_STATES)]
        assert n_lost >= np.maximum(stood_for - MANY, 0).sum() - tracer_waited_s / 0.5e-3
    else:
        n_samples = sum(map(int, re.findall(r"(\d+) samples?", said)))
        assert n_samples + n_lost > 0.9 * (threads_s - stolen()) / 0.5e-3
    for text in warned(experiment):
        assert text in said
        assert text in gprofng("-header", experiment=path).text


def test_stacks_that_find_no_room_are_told(workload: Run, tmp_path: Path) -> None:
    # The signal engine copies at most 16 KiB of each. Its environment makes that of the first thread as large.
    path = tmp_path / "x.er"
    command = [COLLECT, "--engine", "signal", "-p", "0.5m", "-A", "off", "-o", path]
    large = os.environ | {"FILLER": "x" * (20 << 10)}
    with enduring(workload("enduring"), *command, env=large, stderr=subprocess.PIPE) as process:
        while not (path / "profile").exists():
            time.sleep(0.02)
        process.send_signal(signal.SIGSTOP)
        tracer = child_of(process.pid, True)
        # Until there is no room for another one, and long behind that.
        while told_by(tracer)[0] + COPY_WORDS <= opening._STACK_WORDS:
            time.sleep(0.02)
        rows = told_by(tracer)[1]
        while told_by(tracer)[1] - rows < 100 * abi.TRACED_SAMPLE.size:
            time.sleep(0.02)
        process.send_signal(signal.SIGCONT)
        out, said = process.communicate(timeout=30)
    assert process.returncode == STATUS
    truth, experiment = json.loads(out), open_experiment(path)
    lost = [int(n) for text in warned(experiment) for n in re.findall(r"(\d+) stack records? lost", text)]
    assert f"{lost[0]} stack record{'s' * (lost[0] > 1)} lost" in said
    stacks, index = experiment.stacks, experiment.stacks.index(experiment.packets()["FRINFO"])
    assert stacks.failed[index].sum() + stacks.truncated[index].sum() > 0
    threads_s = sum(recorded_cpu_s(experiment, tid) for tid in experiment.threads)
    # What was used before the exec, which makes a large environment, is in the truth alone.
    used_s = truth["user_s"] + truth["system_s"]
    assert 0.99 * used_s - truth["before_main_s"] < threads_s < 1.01 * used_s


# --- clocks ---------------------------------------------------------------------------------------


def check_times(path: Path, truth: dict[str, Any], at_least_s: float) -> None:
    """The experiment's times are those of one clock that goes on."""
    experiment = open_experiment(path)
    times = experiment.packets()["TSTAMP"]
    assert experiment.log.complete
    assert experiment.log.start_ns <= times.min()
    assert times.max() <= experiment.end_ns
    assert at_least_s < (experiment.end_ns - experiment.log.start_ns) * 1e-9 < at_least_s + 10
    assert np.ptp(times) * 1e-9 > 0.8 * at_least_s
    threads_s = sum(recorded_cpu_s(experiment, tid) for tid in experiment.threads)
    assert threads_s == pytest.approx(truth["user_s"] + truth["system_s"], rel=0.01, abs=0.02)


@pytest.fixture
def in_time_namespace(need: Run) -> Callable[[int], list[str]]:
    """``in_time_namespace(1000)``: what runs a command with a CLOCK_MONOTONIC that is so many seconds ahead."""
    def command(ahead_s: int) -> list[str]:
        offset = ["--monotonic", str(ahead_s), "--boottime", str(ahead_s)]
        return [need("unshare", "util-linux"), "-T", *offset, "--fork", "--kill-child"]

    refused = subprocess.run([*command(1), "true"], capture_output=True, text=True, check=False).stderr
    if refused and os.environ.get("CI"):
        pytest.fail(f"under CI nothing is skipped: {refused}", pytrace=False)
    if refused:
        pytest.skip(f"time namespaces need root: {refused}")
    return command


@pytest.mark.parametrize("ahead_s", [86_400, -1])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_clock_that_is_not_the_kernels(engine: str, ahead_s: int, in_time_namespace: Run, workload: Run,
                                         tmp_path: Path) -> None:
    ahead_s = ahead_s if ahead_s > 0 else -int(time.monotonic()) // 2
    path = tmp_path / "x.er"
    command = [*in_time_namespace(ahead_s), COLLECT, "--engine", engine, "-p", "hi", "-A", "off", "-o", path]
    with enduring(workload("enduring"), *command) as process:
        time.sleep(0.7)
        truth = ended_well(process)
    assert abs(open_experiment(path).log.start_ns * 1e-9 - time.monotonic() - ahead_s) < 60
    check_times(path, truth, 0.7)


STEPPING = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>
int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    static int n_steps;
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int status = real(clock, now);
    if (clock == CLOCK_REALTIME) now->tv_sec -= 7200 * ++n_steps;
    return status;
}
"""


@pytest.mark.parametrize("engine", ENGINES)
def test_a_wall_clock_that_is_set_back(engine: str, workload: Run, need: Run, tmp_path: Path, gprofng: Run) -> None:
    # By two hours whenever somebody in collect asks for it.
    source, library, path = tmp_path / "step.c", tmp_path / "step.so", tmp_path / "x.er"
    source.write_text(STEPPING)
    subprocess.run([need("gcc", "gcc"), "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    command = [COLLECT, "--engine", engine, "-p", "hi", "-A", "off", "-o", path]
    with enduring(workload("enduring"), *command, env=os.environ | {"LD_PRELOAD": str(library)}) as process:
        time.sleep(0.7)
        truth = ended_well(process)
    assert open_experiment(path).log.start_unix < time.time() - 7000  # it was
    check_times(path, truth, 0.7)
    assert "work" in gprofng("-functions", experiment=path).functions


def test_a_program_with_a_damaged_symbol_table_is_recorded_to_its_end(workload: Run, tmp_path: Path) -> None:
    """How its descendants were made, by which functions, cannot be told then; all else can."""
    program = tmp_path / "damaged"
    content = bytearray(Path(workload("swarm")).read_bytes())
    headers_at, count = struct.unpack_from("<Q", content, 0x28)[0], struct.unpack_from("<H", content, 0x3C)[0]
    (table_at,) = (at for at in range(headers_at, headers_at + 64 * count, 64)
                   if struct.unpack_from("<I", content, at + 4)[0] == SHT_SYMTAB)
    struct.pack_into("<I", content, table_at + 40, 9999)  # the section that holds the names
    program.write_bytes(content)
    program.chmod(0o755)
    command = [COLLECT, "--engine", "perf", "-o", str(tmp_path / "x.er"), str(program), "7", "7", "100"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "damaged: without the names of its functions: " in result.stderr
    assert "7 descendants" in result.stderr
    assert len(open_experiment(tmp_path / "x.er").children) == 7
