"""Programs that a stop might disturb, under the signal engine: they do, wait and end as they would without."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import prefork
import pytest
from sampling_error import n_draws, of_share

from collector.experiment.reader import open_experiment

COLLECT = [str(Path(sys.executable).parent / "collect"), "--engine", "signal"]
SUMMARY = r"collect: \S+: [\d.]+ s, [\d.]+ s CPU, \d+ threads?, (\d+ descendants?, )?\d+ samples?, nothing lost\n"
LAST_CPU_STATE = 2
# Functions of the 32-bit C library that are written by hand tell a wrong frame (strchrnul takes each push for a pop) or
# none; its start calls them, too.
BARE = r"\d+ of \d+ stacks? do(es)? not reach the root \(\d+ (outside|no rule)\)"
N_TIMES = 31
N_MEGABYTES = 61

Run = Callable[..., Any]


def summary_of(flags: tuple[str, ...]) -> str:
    """The closing line of a program that was compiled like this, as a pattern."""
    return SUMMARY.replace("nothing lost", f"(nothing lost|{BARE})") if "-m32" in flags else SUMMARY


def cpu_s(experiment: Any) -> float:
    """CPU time in an experiment, without its descendants'."""
    packets = experiment.packets()
    return float(packets["NTICK"][packets["MSTATE"] <= LAST_CPU_STATE].sum()) * experiment.log.interval_us * 1e-6


# --- what is waited for ------------------------------------------------------------------------------


@pytest.mark.parametrize(("flags", "interval", "parts"), [((), "on", 1), ((), "hi", 101), (("-O2", "-m32"), "hi", 101)])
def test_no_waiting_call_fails(flags: tuple[str, ...], interval: str, parts: int, workload: Run,
                               recorded_by_signals: Run) -> None:
    run = recorded_by_signals(workload("eintr", *flags), 1.1, parts, interval=interval)
    assert set(run.truth["eintr"].values()) == {0}
    assert min(run.truth["calls"].values()) > 10
    assert run.states_s()["stop"] == 0
    assert re.fullmatch(summary_of(flags), run.said), run.said


@pytest.mark.parametrize("flags", [(), ("-O2", "-m32")], ids=["64-bit", "32-bit"])
def test_no_blocking_transfer_comes_back_with_a_part(flags: tuple[str, ...], workload: Run,
                                                     recorded_by_signals: Run) -> None:
    """Each takes many looks, which find its thread running or asleep."""
    run = recorded_by_signals(workload("streams", *flags), N_MEGABYTES, interval="hi", observed=False)
    whole = {"done": N_MEGABYTES << 20, "wrong": 0}
    assert [run.truth[name] for name in ("write", "send", "recv")] == [whole] * 3
    assert re.fullmatch(summary_of(flags), run.said), run.said


@pytest.mark.kernel_times
def test_what_is_stopped_by_itself_goes_on(workload: Run, recorded_by_signals: Run) -> None:
    run = recorded_by_signals(workload("troubles"), "stops", 7)
    assert run.truth["stops"] == 7
    known_s = run.truth["stopped_s"]
    states = run.states_s(run.truth["pid"])
    # The child sees each stop late, and its SIGCONT takes effect when there is a CPU. The tracer may hear of a stop
    # when it is nearly over, which is a wait for a CPU then; the last one may seem to last until it sleeps.
    assert known_s - 2 * run.interval_s <= states["stop"] + states["wait"]
    assert known_s / 2 <= states["stop"] <= run.truth["off_cpu_s"] + run.truth["asleep_s"] + run.interval_s


# --- signals -----------------------------------------------------------------------------------------


@pytest.mark.kernel_times
def test_handlers_of_its_own_run_as_often(workload: Run, recorded_by_signals: Run) -> None:
    run = recorded_by_signals(workload("troubles"), "handlers", 401)
    assert run.truth["traps"] == 2 * 401
    # Once in 3 ms of CPU time at most: the kernel looks at such timers at its own ticks, and these may come late.
    assert 0 < run.truth["profs"] <= run.truth["cpu_s"] / 0.003


@pytest.mark.parametrize(("command", "expected"), [
    ("trap 'echo caught; exit 5' INT", (5, "caught\n")), ("true", (130, "")), ("trap '' INT; i=199", (6, "done\n"))])
def test_ctrl_c_is_the_program_s(tmp_path: Path, command: str, expected: tuple[int, str]) -> None:
    loop = "i=${i:-0}; echo ready; while [ $i -lt 209 ]; do i=$((i + 1)); sleep 0.03; done; echo done; exit 6"
    with subprocess.Popen([*COLLECT, "-o", "x.er", "/bin/sh", "-c", f"{command}; {loop}"], cwd=tmp_path, text=True,
                          start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as job:
        assert job.stdout is not None
        assert job.stdout.readline() == "ready\n"
        os.killpg(job.pid, signal.SIGINT)
        out, err = job.communicate(timeout=30)
    assert (job.returncode, out) == expected
    assert re.fullmatch(SUMMARY, err), err
    assert open_experiment(tmp_path / "x.er").log.complete


# --- many threads and processes ----------------------------------------------------------------------


@pytest.fixture
def others(request: pytest.FixtureRequest) -> Iterator[None]:
    """So many other programs that are always busy, each in a session of its own as if somebody else had begun it."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True)
             for _ in range(request.param)]
    yield
    for loop in loops:
        loop.kill()
        loop.wait()


@pytest.mark.kernel_times
@pytest.mark.parametrize("others", [0, 2 * len(os.sched_getaffinity(0))], indirect=True, ids=["alone", "beside others"])
def test_five_hundred_threads_at_once(others: None, workload: Run, recorded_by_signals: Run, gprofng: Run) -> None:
    run = recorded_by_signals(workload("pool"), 503, 5, 503, observed=False)
    assert re.fullmatch(SUMMARY, run.said), run.said
    assert len(run.experiment.threads) == 504
    functions = gprofng("-functions", experiment=run.path).functions
    total = functions["<Total>"][0]
    used_s = run.truth["user_s"] + run.truth["system_s"]
    assert total == pytest.approx(used_s, rel=0.015)
    # Many threads end before any sample has met them: they have their time, and its place is that of the others.
    packets = run.packets()
    share, draws = run.truth["burst"] / used_s, n_draws(packets["NTICK"][packets["MSTATE"] <= LAST_CPU_STATE])
    assert functions["burst"][1] / total >= share - of_share(share, draws)


@pytest.mark.kernel_times
def test_five_hundred_sleeping_threads(workload: Run, recorded_by_signals: Run, gprofng: Run) -> None:
    run = recorded_by_signals(workload("sleepers"), 503, 0.7, observed=False)
    assert re.fullmatch(SUMMARY, run.said), run.said
    locked = gprofng("-metrics", "i.lock:name", "-functions", experiment=run.path).functions["thread_main"][0]
    # Who is woken waits for a CPU before it says so; before it says that it sleeps, and behind, there is the same lock.
    asleep_s, waited_s = run.truth["asleep_s"], run.states_s()["wait"]
    assert max(0.985 * asleep_s - waited_s, asleep_s / 2) <= locked <= 1.015 * run.truth["lived_s"]
    assert run.unrooted_share() <= 0.01


# Alone: it keeps the collector, which goes before all others, at work for seconds.
@pytest.mark.kernel_times
@pytest.mark.all_cpus
@pytest.mark.parametrize("engine", ["recorded", "recorded_by_signals"])
def test_tens_of_thousands_of_mappings(engine: str, request: pytest.FixtureRequest, workload: Run) -> None:
    run = request.getfixturevalue(engine)(workload("manymaps"), 29_989, 0.7, observed=False)
    # It makes them in a tenth of a second: who comes later than that finds no record of some.
    said = re.sub(r"\d+ map records? lost: mappings that are read from /proc instead", "nothing lost", run.said)
    assert re.fullmatch(SUMMARY, said), run.said
    # At its end the kernel has to take them all down, which its own account of itself does not have.
    assert cpu_s(run.experiment) >= 0.97 * (run.truth["user_s"] + run.truth["system_s"])


@pytest.mark.kernel_times
def test_hundreds_of_short_processes(workload: Run, tmp_path: Path) -> None:
    command = [*COLLECT, "-o", "x.er", workload("swarm"), "211", "7", "3000"]
    result = prefork.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    assert re.fullmatch(SUMMARY, result.stderr), result.stderr
    founder = open_experiment(tmp_path / "x.er")
    assert [child.lineage for child in founder.children] == [f"_f{number}" for number in range(1, 212)]
    truth = json.loads(result.stdout)
    used_s = truth["children_user_s"] + truth["children_system_s"]
    assert sum(map(cpu_s, founder.children)) == pytest.approx(used_s, rel=0.03)


@pytest.mark.kernel_times
def test_forks_beside_working_threads(workload: Run, recorded_by_signals: Run) -> None:
    run = recorded_by_signals(workload("troubles"), "forks", N_TIMES, observed=False)
    assert (run.truth["forks"], run.truth["well"]) == (N_TIMES, N_TIMES)
    assert [child.lineage for child in run.experiment.children] == [f"_f{n}" for n in range(1, N_TIMES + 1)]
    # The process's own account has what was before its exec, too. Its three threads share one rounding.
    used_s = run.truth["user_s"] + run.truth["system_s"]
    assert used_s - run.truth["before_s"] - run.interval_s < cpu_s(run.experiment) < used_s + run.interval_s


# --- ends --------------------------------------------------------------------------------------------

ENDS = [("exit", 0), ("exit", 7), ("thread_exit", 9), ("leader", 13), ("signal", signal.SIGTERM),
        ("signal", signal.SIGKILL), ("signal", signal.SIGSEGV), ("signal", signal.SIGABRT)]


def allow_cores() -> None:
    """In the child before exec."""
    resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


@pytest.mark.parametrize(("kind", "number"), ENDS)
def test_it_ends_as_without_collect(kind: str, number: int, workload: Run, tmp_path: Path) -> None:
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    ends = []
    for before in ([], [*COLLECT, "-o", str(tmp_path / "x.er")]):
        directory = tmp_path / f"with-{len(before)}"
        directory.mkdir()
        command = [*before, str(workload("troubles")), kind, str(number)]
        result = prefork.run(command, cwd=directory, capture_output=True, text=True, timeout=30, check=False,
                             preexec_fn=allow_cores if hard == resource.RLIM_INFINITY else None)
        status = 128 - result.returncode if result.returncode < 0 else result.returncode
        cores = sorted(re.sub(r"\d+", "N", path.name) for path in directory.iterdir())
        ends.append((status, result.stdout, cores))
    assert re.fullmatch(SUMMARY, result.stderr), result.stderr
    assert ends[0] == ends[1]
    assert ends[0][0] == (128 + number if kind == "signal" else number)
    assert open_experiment(tmp_path / "x.er").log.complete
