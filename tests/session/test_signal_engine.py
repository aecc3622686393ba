"""Ground truth for the signal engine: whose time it is, in which state, and on which stack.

Bounds are wider than perf's: an interval and a look, which come once per interval, where a time is short. A program's
CPU time is right to 1.5 % (measured: 0.4 % at most), its split by functions and states to 3 % (measured: 1.7 %, and
3 % beside others), since some hundred or thousand samples tell no better.
"""

from __future__ import annotations

import bisect
import errno
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collector.experiment.reader import Experiment, open_experiment

INTERVAL_S = 10.007e-3
NOBODY = 65534
SUMMARY = r"collect: \S+: [\d.]+ s, [\d.]+ s CPU, \d+ threads?, (\d+ descendants?, )?\d+ samples?, nothing lost"
LAST_CPU_STATE = 2
RARE = ("trap", "textpfault", "datapfault", "kernelpfault", "lock", "sleep", "stop")

BUILDS = {
    "-O2": ("-O2", "-fomit-frame-pointer"),
    "-O0": ("-O0",),
    "static": ("-O2", "-static"),
    "stripped": ("-O2", "-s"),
    "32-bit": ("-O2", "-m32"),
}

Run = Callable[..., Any]


def tolerance(known_s: float, interval_s: float) -> float:
    """1.5 %, or an interval and a look."""
    return max(0.015 * known_s, 2 * interval_s)


def used_s(truth: dict[str, Any]) -> float:
    """CPU time of a program by getrusage."""
    return float(truth["user_s"] + truth["system_s"])


def cpu_shares(run: Any) -> Any:
    """Shares (3,) of user, system and trap in the CPU time."""
    packets = run.packets()
    ticks = np.bincount(packets["MSTATE"], packets["NTICK"], 10)[:LAST_CPU_STATE + 1]
    return ticks / ticks.sum()


# --- CPU time --------------------------------------------------------------------------------------


def leaf_shares(truth: dict[str, Any]) -> dict[str, float]:
    """The leaves' shares of the time of split's threads, as these measured them."""
    total = sum(thread["cpu_s"] for thread in truth["threads"])
    return {leaf: sum(thread[leaf] for thread in truth["threads"]) / total
            for leaf in ("leaf_one", "leaf_three", "leaf_seven")}


def latest_s(experiment: Experiment, interval_s: float) -> float:
    """The longest time that a sample of a running thread stands for beyond its own interval, since the tracer had no
    CPU sooner: whatever ran at its end has all of it."""
    packets = experiment.packets()
    return interval_s * max(int(packets["NTICK"][packets["MSTATE"] <= LAST_CPU_STATE].max()) - 1, 0)


def is_split(functions: dict[str, tuple[float, ...]], truth: dict[str, Any], total: float, late_s: float) -> None:
    """Whether the leaves have their shares: alone, of what they have together, and with the calls by which they ask
    their clocks. A thread is stopped some us behind the look that is due, which its next call may come before: what
    these calls have alone is as the machine's interrupts are late.
    """
    slack, shares = 0.015 + late_s / total, leaf_shares(truth)
    alone_s = sum(functions[leaf][0] for leaf in shares)
    for leaf, share in shares.items():
        assert functions[leaf][0] / alone_s == pytest.approx(share / sum(shares.values()), abs=slack), leaf
        assert functions[leaf][1] / total == pytest.approx(share, abs=slack), leaf


def by_address(listing: Any, program: Path) -> dict[str, tuple[float, ...]]:
    """A listing of a stripped program's instructions, by the functions of its unstripped twin."""
    names = subprocess.run(["nm", program], capture_output=True, text=True, check=True).stdout
    symbols = sorted((int(at, 16), name) for at, name in re.findall(r"^(\w+) [tT] (\w+)$", names, re.MULTILINE))
    spent: dict[str, tuple[float, ...]] = {}
    for row, values in listing.rows:
        place = re.fullmatch(r"<static>@0x(\w+) \(<split.*>\) --  no functions found \+ 0x(\w+)", row)
        if place:
            name = symbols[bisect.bisect_right(symbols, (int(place[1], 16) + int(place[2], 16), "~")) - 1][1]
            spent[name] = tuple(a + b for a, b in zip(spent.get(name, (0.0, 0.0)), values, strict=True))
    return spent


@pytest.mark.kernel_times
@pytest.mark.all_cpus
@pytest.mark.parametrize(("build", "interval", "seconds"), [
    ("-O2", "on", 5.3), ("-O0", "hi", 1.3), ("static", "hi", 1.3), ("stripped", "hi", 1.3), ("32-bit", "hi", 1.3)])
def test_the_split_is_that_of_the_program(build: str, interval: str, seconds: float, workload: Run,
                                          recorded_by_signals: Run, gprofng: Run) -> None:
    run = recorded_by_signals(workload("split", *BUILDS[build]), seconds, interval=interval)
    assert re.fullmatch(SUMMARY + "\n", run.said), run.said
    functions = gprofng("-functions", experiment=run.path).functions
    total = functions["<Total>"][0]
    assert total == pytest.approx(used_s(run.truth), rel=0.015)
    if build == "stripped":
        functions = by_address(gprofng("-pcs", experiment=run.path), workload("split", "-O2"))
    is_split(functions, run.truth, total, latest_s(run.experiment, run.interval_s))
    for thread in run.truth["threads"]:
        states = run.states_s(thread["tid"])
        cpu_s = states["user"] + states["system"] + states["trap"]
        assert cpu_s == pytest.approx(thread["cpu_s"], abs=tolerance(thread["cpu_s"], run.interval_s))


@pytest.mark.kernel_times
@pytest.mark.all_cpus
@pytest.mark.parametrize("percent", [17, 61])
def test_user_and_system_time_are_told_apart(percent: int, workload: Run, recorded_by_signals: Run,
                                             gprofng: Run) -> None:
    run = recorded_by_signals(workload("usersys"), 1.3, percent, interval="hi")
    truth = run.truth["in_user"] / (run.truth["in_user"] + run.truth["in_system"])
    assert list(cpu_shares(run)) == pytest.approx([truth, 1 - truth, 0], abs=0.03)
    functions = gprofng("-metrics", "e.user:e.system:name", "-functions", experiment=run.path).functions
    for name, column, known_s in (("in_user", 0, run.truth["in_user"]), ("read", 1, run.truth["in_system"])):
        assert functions[name][column] == pytest.approx(known_s, abs=0.03 * used_s(run.truth)), name


def test_calls_that_are_short_and_frequent_have_their_own_time(workload: Run, recorded_by_signals: Run,
                                                               gprofng: Run) -> None:
    """How much, to a hundredth, is a figure of ``scripts/truth``; who stops threads late finds them in calls all the
    time, or never."""
    run = recorded_by_signals(workload("calls"), 1.1, interval="hi")
    functions = gprofng("-functions", experiment=run.path).functions
    assert run.truth["calls"] / run.truth["pairs"] > 100_000
    assert 0 < functions["in_call"][1] < 0.3 * functions["pairs"][1]
    assert 0 < cpu_shares(run)[1] < 0.3
    assert 0.35 < functions["pairs"][1] / functions["<Total>"][1] < 0.7


@pytest.mark.kernel_times
@pytest.mark.all_cpus
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="with one CPU the tracer has to take that")
def test_who_computes_keeps_its_cpu(workload: Run, recorded_by_signals: Run) -> None:
    cpu = max(os.sched_getaffinity(0))
    run = recorded_by_signals("taskset", "-c", cpu, workload("busy"), 1, 9001, observed=False)
    assert re.fullmatch(SUMMARY + "\n", run.said), run.said
    # Each look at it is one stop at most, one of each interval, also of those in which others had its CPU. (How often
    # they took that, as the tracer must not, is a figure of scripts/truth.)
    assert run.truth["n_voluntary"] < 1.1 * run.truth["wall_s"] / run.interval_s + 10


# --- programs that are signalled all the time --------------------------------------------------------

ENGINES = {"perf": "recorded", "signal": "recorded_by_signals"}


def check_phases(run: Any, functions: dict[str, tuple[float, ...]]) -> None:
    """Whether the phases of ``alarms`` have their shares, from samples of an interval or little more each."""
    total = functions["<Total>"][0]
    assert total == pytest.approx(used_s(run.truth), rel=0.015)
    # Each begins and ends once, amid what a sample stands for: of both together one is missing, or too many, at most.
    slack = 0.015 + latest_s(run.experiment, run.interval_s) / total
    for phase, known_s in run.truth["phases"].items():
        assert functions[phase][1] / total == pytest.approx(known_s / used_s(run.truth), abs=slack), phase
    packets = run.packets()
    n_samples = int((packets["MSTATE"] <= LAST_CPU_STATE).sum())
    assert n_samples > 0.75 * used_s(run.truth) / run.interval_s
    assert re.fullmatch(SUMMARY + "\n", run.said), run.said


def by_chance_s(run: Any, part: float) -> float:
    """What chance makes of a part of the CPU time that comes and goes within an interval: each sample is inside, with
    all that it stands for, or not. Five standard deviations."""
    packets = run.packets()
    squares = float((packets["NTICK"][packets["MSTATE"] <= LAST_CPU_STATE] ** 2).sum())
    return 5 * float(run.interval_s) * math.sqrt(part * (1 - part) * squares)


@pytest.mark.kernel_times
@pytest.mark.all_cpus
@pytest.mark.parametrize(("engine", "period_us"), [("perf", 1000), *(("signal", us) for us in (500, 1000))])
def test_a_timer_s_signals_do_not_put_the_clock_off(engine: str, period_us: int, request: pytest.FixtureRequest,
                                                    workload: Run, gprofng: Run) -> None:
    run = request.getfixturevalue(ENGINES[engine])(workload("alarms"), period_us, 0, 2)
    functions = gprofng("-functions", experiment=run.path).functions
    check_phases(run, functions)
    if period_us >= 1000:  # stops meet deliveries: at 500 us, which are 4,000 of 2 s, the handler is told up to a fifth
        most_s = 0.06 * used_s(run.truth) + by_chance_s(run, 0.06)  # it does nothing but count
        assert functions.get("on_alarm", (0, 0))[1] < most_s


@pytest.mark.kernel_times
@pytest.mark.all_cpus
def test_a_handler_has_its_time(workload: Run, recorded_by_signals: Run, gprofng: Run) -> None:
    run = recorded_by_signals(workload("alarms"), 4000, 50, 2)
    functions = gprofng("-functions", experiment=run.path).functions
    check_phases(run, functions)
    part = run.truth["handled_s"] / used_s(run.truth)
    assert part > 0.45
    assert functions["on_alarm"][1] == pytest.approx(run.truth["handled_s"], abs=by_chance_s(run, part))


@pytest.mark.kernel_times
@pytest.mark.all_cpus
def test_a_program_with_a_profiler_of_its_own(workload: Run, recorded_by_signals: Run, gprofng: Run, tmp_path: Path,
                                              monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GMON_OUT_PREFIX", str(tmp_path / "gmon"))
    run = recorded_by_signals(workload("alarms", "-O2", "-pg"), 0, 0, 2)
    check_phases(run, gprofng("-functions", experiment=run.path).functions)
    assert list(tmp_path.glob("gmon.*"))


PYTHON_ALARMS = """
import json, resource, signal, time
n_alarms = 0
def on_alarm(*_):
    global n_alarms
    n_alarms += 1
signal.signal(signal.SIGALRM, on_alarm)
signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
while time.process_time() < 1: sum(range(1009))
signal.setitimer(signal.ITIMER_REAL, 0)
used = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps({"alarms": n_alarms, "user_s": used.ru_utime, "system_s": used.ru_stime}))
"""


@pytest.mark.kernel_times
@pytest.mark.all_cpus
def test_an_interpreter_with_a_timer(recorded_by_signals: Run) -> None:
    run = recorded_by_signals(sys.executable, "-c", PYTHON_ALARMS)
    packets = run.packets()
    n_samples = int((packets["MSTATE"] <= LAST_CPU_STATE).sum())
    assert n_samples > 0.75 * used_s(run.truth) / run.interval_s
    assert run.truth["alarms"] > 400


# --- as an ordinary user, where perf is refused -----------------------------------------------------


@pytest.mark.kernel_times
@pytest.mark.all_cpus
def test_an_ordinary_user_without_perf_needs_no_option(refused: Run, public_directory: Path, gprofng: Run) -> None:
    result = refused(errno.EPERM, "split", 5.3)
    assert result.returncode == 0
    engine, summary = result.stderr.splitlines()
    assert engine.startswith("collect: engine signal")
    assert re.fullmatch(SUMMARY, summary)
    path = public_directory / "test.1.er"
    functions = gprofng("-functions", experiment=path).functions
    truth = json.loads(result.stdout)
    total = functions["<Total>"][0]
    assert total == pytest.approx(used_s(truth), rel=0.015)
    is_split(functions, truth, total, latest_s(open_experiment(path), INTERVAL_S))
    why = re.search(r"engine signal \((.+)\)$", gprofng("-header", experiment=path).text, re.MULTILINE)
    assert why is not None
    assert why[1] in engine
    owner = NOBODY if os.geteuid() == 0 else os.geteuid()
    assert {entry.stat().st_uid for entry in [path, *path.rglob("*")]} == {owner}


@pytest.mark.parametrize("code", [errno.EACCES, errno.ENOSYS])
def test_however_perf_is_refused(refused: Run, public_directory: Path, code: int) -> None:
    result = refused(code, "states", "mutex", 3, 31)
    assert result.returncode == 0
    assert result.stderr.startswith("collect: engine signal")
    assert re.fullmatch(SUMMARY, result.stderr.splitlines()[1])


# --- waiting ----------------------------------------------------------------------------------------

TURNS, TURN_MS = 11, 53
STATE_OF = {
    "mutex": "lock", "condvar": "lock", "futex": "lock",
    "nanosleep": "sleep", "poll": "sleep", "epoll": "sleep", "pipe": "sleep",
    "data": "datapfault", "text": "textpfault", "kernel": "kernelpfault",
}
BY_USERFAULTFD = {"data", "text", "kernel"}


@pytest.mark.kernel_times
@pytest.mark.parametrize("scenario", STATE_OF)
def test_waiting_is_as_long_as_it_was(scenario: str, request: pytest.FixtureRequest, workload: Run,
                                      recorded_by_signals: Run, gprofng: Run) -> None:
    if scenario in BY_USERFAULTFD:
        request.getfixturevalue("userfaultfd_allowed")
    run, state = recorded_by_signals(workload("states"), scenario, TURNS, TURN_MS), STATE_OF[scenario]
    assert re.fullmatch(SUMMARY + "\n", run.said), run.said
    (thread,) = run.truth["threads"]
    off_cpu_s = thread["wall_s"] - thread["cpu_s"]
    states, delay_s = run.states_s(thread["tid"]), run.observed[thread["tid"]].delay_s
    # Off CPU it waits for what it waits for, and then for a CPU: the kernel says how long in its whole life.
    slack_s = tolerance(off_cpu_s, run.interval_s)
    assert off_cpu_s - delay_s[1] - slack_s <= states[state] <= off_cpu_s + slack_s, states
    others = {name: states[name] for name in RARE if name != state}
    assert max(others.values()) <= 2 * run.interval_s * 1.001, others
    shown = gprofng("-metrics", f"i.{state}:name", "-functions", experiment=run.path).functions
    caller = f"wait_in_{scenario}"
    assert shown[caller][0] == pytest.approx(states[state], abs=2 * run.interval_s + 0.0005)


@pytest.mark.kernel_times
@pytest.mark.all_cpus
def test_five_spinners_on_one_cpu_wait_four_fifths(workload: Run, recorded_by_signals: Run, gprofng: Run) -> None:
    run = recorded_by_signals(workload("states"), "spin", 5, 307)
    assert re.fullmatch(SUMMARY + "\n", run.said), run.said
    known_s = 0.0
    for thread in run.truth["threads"]:
        states, waited_s = run.states_s(thread["tid"]), thread["wall_s"] - thread["cpu_s"]
        assert states["wait"] == pytest.approx(waited_s, abs=tolerance(waited_s, run.interval_s)), states
        known_s += waited_s
    assert known_s / sum(thread["wall_s"] for thread in run.truth["threads"]) > 0.78
    shown = gprofng("-metrics", "i.wait:name", "-functions", experiment=run.path).functions
    assert shown["wait_in_spin"][0] > 0.9 * known_s


@pytest.mark.kernel_times
def test_stopped_time_is_from_sigstop_to_sigcont(workload: Run, recorded_by_signals: Run, gprofng: Run) -> None:
    run = recorded_by_signals(workload("states"), "stop", 7, 61)
    (thread,) = run.truth["threads"]
    states, known_s = run.states_s(thread["tid"]), run.truth["stopped_s"]
    slack_s = tolerance(known_s, run.interval_s)
    assert known_s - states["wait"] - slack_s <= states["stop"] <= known_s + slack_s, states
    assert states["sleep"] <= 2 * run.interval_s * 1.001
    shown = gprofng("-metrics", "i.stop:name", "-functions", experiment=run.path).functions
    assert shown["wait_in_stop"][0] == pytest.approx(states["stop"], abs=0.0005)


@pytest.mark.kernel_times
@pytest.mark.all_cpus
def test_time_in_traps_is_trap_time(workload: Run, recorded_by_signals: Run) -> None:
    run = recorded_by_signals(workload("states"), "trap", 3, 101)
    (thread,) = run.truth["threads"]
    states = run.states_s(thread["tid"])
    cpu_s = states["user"] + states["system"] + states["trap"]
    assert cpu_s == pytest.approx(thread["cpu_s"], abs=tolerance(thread["cpu_s"], run.interval_s))
    assert states["trap"] > 0.6 * cpu_s  # the kernel's own split is by its tick


# --- stacks of waiting threads ----------------------------------------------------------------------


@pytest.mark.parametrize("build", BUILDS)
def test_stacks_of_waiting_threads_reach_the_root(build: str, workload: Run, recorded_by_signals: Run,
                                                  gprofng: Run) -> None:
    program = workload("states", *BUILDS[build])
    for scenario in ("condvar", "nanosleep", "spin", "stop"):
        run = recorded_by_signals(program, scenario, 3, 23, observed=False)
        assert run.unrooted_share() <= 0.01, scenario
        functions = gprofng("-metrics", "i.total:name", "-functions", experiment=run.path).functions
        broken_s = sum(functions.get(mark, (0.0,))[0] for mark in ("<Truncated-stack>", "<Stack-unwind-failed>"))
        assert broken_s <= 0.01 * functions["<Total>"][0], scenario
        if build != "stripped":
            assert functions[f"wait_in_{scenario}"][0] > 0, scenario


@pytest.mark.kernel_times
@pytest.mark.all_cpus
@pytest.mark.parametrize("build", ["-O2", "-O0", "static"])
def test_ten_sleeping_places_show_their_own_times(build: str, workload: Run, recorded_by_signals: Run,
                                                  gprofng: Run) -> None:
    run = recorded_by_signals(workload("sites", *BUILDS[build]), 7, interval="hi")
    assert run.unrooted_share() <= 0.01
    tree = gprofng("-metrics", "i.total:name", "-calltree", experiment=run.path).tree
    for number in range(10):
        known_s = run.truth["sites"][f"site_{number}"]
        # Each through a chain of its own: site N calls down N levels.
        (path,) = (path for path in tree if path[-1] == "nap" and f"site_{number}" in path)
        assert path[path.index("main"):] == ("main", "run", f"site_{number}", *("down",) * (number + 1), "nap")
        # It sleeps 7 times, and when each sleep began and ended is known to half of a look.
        looks_s = 7 * run.interval_s / 2 + run.stolen_s
        assert tree[path][0] == pytest.approx(known_s, abs=tolerance(known_s, run.interval_s) + looks_s)
