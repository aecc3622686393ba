"""Ground truth for the signal engine: whose time it is, in which state, and on which stack.

How much is known from the kernel's accounts: a program's CPU time is right to 1.5 %, the waits of a thread to an
interval and a look, which come once per interval. Which function had it is known from samples, which fall as the
scheduler lets them: each is told where the program was just then, and what they come to is as far off as chance makes
it (``sampling_error``).
"""

from __future__ import annotations

import bisect
import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sampling_error import n_draws, of_share

from collector.engines.ptrace.targets import PATIENCE
from collector.experiment.reader import Experiment, open_experiment
from collector.experiment.records import STATES

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


LEAVES = "leaf_one", "leaf_three", "leaf_seven"


def on_cpu(experiment: Experiment) -> Any:
    """The packets of threads that ran."""
    packets = experiment.packets()
    return packets[packets["MSTATE"] <= LAST_CPU_STATE]


def late_s_of(run: Any) -> float:
    """How much time samples of running threads stand for, all together, beyond their own intervals: whatever ran at
    their ends has it."""
    return run.interval_s * float(np.maximum(on_cpu(run.experiment)["NTICK"] - 1.0, 0).sum())


def latest_s(experiment: Experiment, interval_s: float) -> float:
    """The longest time that a sample of a running thread stands for beyond its own interval, since the tracer had no
    CPU sooner: whatever ran at its end has all of it."""
    return interval_s * max(int(on_cpu(experiment)["NTICK"].max()) - 1, 0)


def met_in(packets: Any, truth: dict[str, Any], leaf: str) -> Any:
    """Which packets are of threads that say that they were in a leaf just then."""
    met = np.zeros(len(packets), dtype=bool)
    for thread in truth["threads"]:
        for begin_ns, end_ns in thread[leaf]["turns_ns"]:
            inside = (packets["TSTAMP"] >= begin_ns) & (packets["TSTAMP"] <= end_ns)
            met |= inside & (packets["THRID"] == thread["tid"])
    return met


def check_turns(functions: dict[str, tuple[float, ...]], truth: dict[str, Any], experiment: Experiment,
                interval_s: float, rounded_s: float = 0.0005) -> None:
    """Whether each sample of ``turns`` is told in the leaf that the program says its thread was in, and whether the
    leaves have their shares as far as so many samples can tell: alone, and with the calls by which they ask their
    clocks. Only ticks for time behind the last sample of a thread belong to no moment. A listing is off by
    ``rounded_s``."""
    packets = on_cpu(experiment)
    in_leaf = {leaf: int(packets["NTICK"][met_in(packets, truth, leaf)].sum()) for leaf in LEAVES}
    n_ticks, n_in_leaves = int(packets["NTICK"].sum()), sum(in_leaf.values())
    assert n_in_leaves > n_ticks / 2
    cpu_s = sum(thread[leaf]["cpu_s"] for thread in truth["threads"] for leaf in LEAVES)
    alone_s = sum(functions[leaf][0] for leaf in LEAVES)
    assert alone_s > functions["<Total>"][0] / 2
    for leaf, n in in_leaf.items():
        least_s, most_s = n * interval_s - rounded_s, (n + n_ticks - n_in_leaves) * interval_s + rounded_s
        assert least_s <= functions[leaf][1] <= most_s, leaf
        share = sum(thread[leaf]["cpu_s"] for thread in truth["threads"]) / cpu_s
        slack = of_share(share, n_draws(packets["NTICK"]) * alone_s / functions["<Total>"][0])
        assert functions[leaf][0] / alone_s == pytest.approx(share, abs=slack), leaf
        assert n / n_in_leaves == pytest.approx(share, abs=slack), leaf


def by_address(listing: Any, program: Path) -> dict[str, tuple[float, ...]]:
    """A listing of a stripped program's instructions, by the functions of its unstripped twin."""
    names = subprocess.run(["nm", program], capture_output=True, text=True, check=True).stdout
    symbols = sorted((int(at, 16), name) for at, name in re.findall(r"^(\w+) [tT] (\w+)$", names, re.MULTILINE))
    spent: dict[str, tuple[float, ...]] = {}
    for row, values in listing.rows:
        place = re.fullmatch(r"<static>@0x(\w+) \(<turns.*>\) --  no functions found \+ 0x(\w+)", row)
        if place:
            name = symbols[bisect.bisect_right(symbols, (int(place[1], 16) + int(place[2], 16), "~")) - 1][1]
            spent[name] = tuple(a + b for a, b in zip(spent.get(name, (0.0, 0.0)), values, strict=True))
    return spent


@pytest.mark.kernel_times
@pytest.mark.parametrize(("build", "interval", "seconds"), [
    ("-O2", "on", 3.1), ("-O0", "hi", 1.3), ("static", "hi", 1.3), ("stripped", "hi", 1.3), ("32-bit", "hi", 1.3)])
def test_the_split_is_that_of_the_program(build: str, interval: str, seconds: float, workload: Run,
                                          recorded_by_signals: Run, gprofng: Run) -> None:
    run = recorded_by_signals(workload("turns", *BUILDS[build]), seconds, interval=interval)
    assert re.fullmatch(SUMMARY + "\n", run.said), run.said
    functions = gprofng("-functions", experiment=run.path).functions
    total = functions["<Total>"]
    assert total[0] == pytest.approx(used_s(run.truth), rel=0.015)
    rounded_s = 0.0005
    if build == "stripped":
        listing = gprofng("-pcs", experiment=run.path)
        functions = by_address(listing, workload("turns", "-O2")) | {"<Total>": total}
        rounded_s *= len(listing.rows)
    check_turns(functions, run.truth, run.experiment, run.interval_s, rounded_s)
    for thread in run.truth["threads"]:
        states, slack_s = run.states_s(thread["tid"]), tolerance(thread["cpu_s"], run.interval_s)
        cpu_s = states["user"] + states["system"] + states["trap"]
        before_s = run.observed[thread["tid"]].cpu_before[1] if thread["tid"] == run.truth["pid"] else 0.0
        assert thread["cpu_s"] - before_s - slack_s <= cpu_s <= thread["cpu_s"] + slack_s


@pytest.mark.kernel_times
@pytest.mark.parametrize("percent", [17, 61])
def test_user_and_system_time_are_told_apart(percent: int, workload: Run, recorded_by_signals: Run,
                                             gprofng: Run) -> None:
    run = recorded_by_signals(workload("usersys"), 1.3, percent, interval="hi")
    cpu_s, in_user_s, in_system_s = used_s(run.truth), run.truth["in_user"], run.truth["in_system"]
    share = in_system_s / (in_user_s + in_system_s)
    slack = of_share(share, n_draws(on_cpu(run.experiment)["NTICK"])) + 1 - (in_user_s + in_system_s) / cpu_s
    # Where samples fall behind the kernel's sum of system time, which is by chance of its tick, they are told as that.
    more = max(run.truth["system_s"] / cpu_s - share, 0.0)
    _, system, trap = cpu_shares(run)
    assert share - slack <= system <= share + more + slack
    assert trap == 0
    functions = gprofng("-metrics", "e.user:e.system:name", "-functions", experiment=run.path).functions
    assert in_user_s - (more + slack) * cpu_s <= functions["in_user"][0] <= in_user_s + slack * cpu_s
    assert functions["read"][1] == pytest.approx(in_system_s, abs=slack * cpu_s)


def test_calls_that_are_short_and_frequent_have_their_own_time(workload: Run, recorded_by_signals: Run,
                                                               gprofng: Run) -> None:
    """How much, to a hundredth, is a figure of ``scripts/truth``; who stops threads late finds them in calls all the
    time, or never."""
    run = recorded_by_signals(workload("calls"), 1.1, interval="hi")
    functions = gprofng("-functions", experiment=run.path).functions
    assert run.truth["calls"] / run.truth["pairs"] > 100_000
    total_s, pairs_s, in_call_s = (functions[name][1] for name in ("<Total>", "pairs", "in_call"))
    late_s = late_s_of(run)
    assert 0 < in_call_s < 0.3 * pairs_s + late_s
    assert 0 < cpu_shares(run)[1] * total_s < 0.3 * total_s + late_s
    assert 0.35 * total_s - late_s < pairs_s < 0.7 * total_s + late_s


@pytest.mark.kernel_times
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="with one CPU the tracer has to take that")
def test_who_computes_keeps_its_cpu(workload: Run, recorded_by_signals: Run) -> None:
    cpu = max(os.sched_getaffinity(0))
    run = recorded_by_signals("taskset", "-c", cpu, workload("busy"), 1, 9001, observed=False)
    assert re.fullmatch(SUMMARY + "\n", run.said), run.said
    # Each look at it is one stop at most, one of each interval, also of those in which others had its CPU. (How often
    # they took that, as the tracer must not, is a figure of scripts/truth.)
    assert run.truth["n_voluntary"] < 1.1 * run.truth["wall_s"] / run.interval_s + 10


@pytest.mark.all_cpus
def test_of_those_who_share_a_cpu_one_is_stopped(workload: Run, recorded_by_signals: Run) -> None:
    """The one that ran as the clock struck: to stop the other would be no sample, and cost as much. Where none of them
    is known to have run, both are stopped: after one look in four, by chance, of which a few hundred looks are sure."""
    cpu = max(os.sched_getaffinity(0))
    run = recorded_by_signals("taskset", "-c", cpu, workload("busy"), 2, 6007, observed=False)
    assert re.fullmatch(SUMMARY + "\n", run.said), run.said
    n_looks = run.truth["wall_s"] / run.interval_s
    assert 0.7 * n_looks < run.truth["n_voluntary"] < 1.5 * n_looks


# --- programs that are signalled all the time --------------------------------------------------------

ENGINES = {"perf": "recorded", "signal": "recorded_by_signals"}


def has_samples(run: Any) -> None:
    """Whether the clock goes on: one that signals put off has a sample in ``PATIENCE`` intervals at best."""
    assert len(on_cpu(run.experiment)) > 2 * used_s(run.truth) / run.interval_s / PATIENCE


def check_phases(run: Any, functions: dict[str, tuple[float, ...]]) -> None:
    """Whether the phases of ``alarms`` have their times, from samples of little more than an interval each."""
    assert functions["<Total>"][0] == pytest.approx(used_s(run.truth), rel=0.015)
    # Each begins and ends once, amid what a sample stands for, which is rounded to ticks.
    slack_s = latest_s(run.experiment, run.interval_s) + 2 * run.interval_s
    for phase, known_s in run.truth["phases"].items():
        assert functions.get(phase, (0.0, 0.0))[1] == pytest.approx(known_s, abs=slack_s), phase
    has_samples(run)
    assert re.fullmatch(SUMMARY + "\n", run.said), run.said


@pytest.mark.kernel_times
@pytest.mark.parametrize(("engine", "period_us"), [("perf", 1000), *(("signal", us) for us in (500, 1000))])
def test_a_timer_s_signals_do_not_put_the_clock_off(engine: str, period_us: int, request: pytest.FixtureRequest,
                                                    workload: Run, gprofng: Run) -> None:
    run = request.getfixturevalue(ENGINES[engine])(workload("alarms"), period_us, 0, 2)
    functions = gprofng("-functions", experiment=run.path).functions
    check_phases(run, functions)
    # It does nothing but count. How often stops meet deliveries all the same, is a figure of scripts/truth; a clock
    # that keeps step with them finds it always.
    assert functions.get("on_alarm", (0, 0))[1] < functions["<Total>"][0] / 2


@pytest.mark.kernel_times
def test_a_handler_has_its_time(workload: Run, recorded_by_signals: Run, gprofng: Run) -> None:
    run = recorded_by_signals(workload("alarms"), 4000, 50, 2)
    functions = gprofng("-functions", experiment=run.path).functions
    check_phases(run, functions)
    total, share = functions["<Total>"][0], run.truth["handled_s"] / used_s(run.truth)
    assert share > 0.4
    slack = of_share(share, n_draws(on_cpu(run.experiment)["NTICK"]))
    assert functions["on_alarm"][1] / total == pytest.approx(share, abs=slack)


@pytest.mark.kernel_times
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
def test_an_interpreter_with_a_timer(recorded_by_signals: Run) -> None:
    run = recorded_by_signals(sys.executable, "-c", PYTHON_ALARMS)
    has_samples(run)
    assert run.truth["alarms"] > 2 * used_s(run.truth) / run.interval_s  # more often than the clock strikes


# --- as an ordinary user, where perf is refused -----------------------------------------------------


@pytest.mark.kernel_times
def test_an_ordinary_user_without_perf_needs_no_option(refused: Run, public_directory: Path, gprofng: Run) -> None:
    result = refused(errno.EPERM, "turns", 3.1)
    assert result.returncode == 0
    engine, summary = result.stderr.splitlines()
    assert engine.startswith("collect: engine signal")
    assert re.fullmatch(SUMMARY, summary)
    path = public_directory / "test.1.er"
    functions = gprofng("-functions", experiment=path).functions
    truth = json.loads(result.stdout)
    assert functions["<Total>"][0] == pytest.approx(used_s(truth), rel=0.015)
    check_turns(functions, truth, open_experiment(path), INTERVAL_S)
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
    off_cpu_s, outside_s = thread["wall_s"] - thread["cpu_s"], run.outside_s(thread)
    states = run.states_s(thread["tid"])
    # Off CPU it waits for what it waits for, and then for a CPU, or for a tracer that has stopped it and has none.
    # Before, between and behind its turns it waits for its partner, too.
    slack_s = tolerance(off_cpu_s, run.interval_s)
    assert states[state] >= max(off_cpu_s - states["wait"] - slack_s, off_cpu_s / 2), states
    assert states[state] <= off_cpu_s + outside_s + slack_s, states
    others = {name: states[name] for name in RARE if name != state}
    assert max(others.values()) <= outside_s + 2 * run.interval_s * 1.001, others
    shown = gprofng("-metrics", f"i.{state}:name", "-functions", experiment=run.path).functions
    # What is met at a look has all the time since the look before.
    packets = run.packets(thread["tid"])
    late_s = run.interval_s * int(packets["NTICK"][packets["MSTATE"] == STATES.index(state)].max())
    least_s = states[state] - outside_s - late_s - 2 * run.interval_s
    assert max(least_s, run.interval_s) <= shown[f"wait_in_{scenario}"][0] <= states[state] + 0.001


@pytest.mark.kernel_times
def test_five_spinners_on_one_cpu_wait_four_fifths(workload: Run, recorded_by_signals: Run, gprofng: Run) -> None:
    run = recorded_by_signals(workload("states"), "spin", 5, 307)
    assert re.fullmatch(SUMMARY + "\n", run.said), run.said
    known_s = 0.0
    for thread in run.truth["threads"]:
        # In its turns it waits whenever it does not run; before and behind them, no longer than it lives.
        states, waited_s = run.states_s(thread["tid"]), thread["wall_s"] - thread["cpu_s"]
        slack_s = tolerance(waited_s, run.interval_s)
        assert waited_s - slack_s <= states["wait"] <= waited_s + run.outside_s(thread) + slack_s, states
        known_s += waited_s
    assert known_s / sum(thread["wall_s"] for thread in run.truth["threads"]) > 0.7
    shown = gprofng("-metrics", "i.wait:name", "-functions", experiment=run.path).functions
    assert shown["wait_in_spin"][0] > 0.9 * known_s


@pytest.mark.kernel_times
def test_stopped_time_is_from_sigstop_to_sigcont(workload: Run, recorded_by_signals: Run, gprofng: Run) -> None:
    run = recorded_by_signals(workload("states"), "stop", 7, 61)
    (thread,) = run.truth["threads"]
    states, known_s = run.states_s(thread["tid"]), run.truth["stopped_s"]
    slack_s, outside_s = tolerance(known_s, run.interval_s), run.outside_s(thread)
    # It is stopped when it has a CPU, and until it has one again, as far as it has heard of either.
    assert max(known_s - states["wait"] - slack_s, known_s / 2) <= states["stop"], states
    assert states["stop"] <= thread["wall_s"] - thread["cpu_s"] + outside_s + run.interval_s, states
    assert states["sleep"] <= outside_s + 2 * run.interval_s * 1.001  # until the other process has ended
    shown = gprofng("-metrics", "i.stop:name", "-functions", experiment=run.path).functions
    # The first stop may meet it on its way there.
    assert states["stop"] - known_s / 7 - slack_s <= shown["wait_in_stop"][0] <= states["stop"] + 0.001


# Its first thread ends before the other one, which goes on for good.
LEADERLESS = """
import ctypes, threading
def work():
    while True: pass
threading.Thread(target=work).start()
print(flush=True)
ctypes.CDLL(None).syscall(60, 0)
"""


def test_a_process_whose_first_thread_has_ended_can_be_attached(attach_allowed: None, collect: Run, gprofng: Run,
                                                                tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", LEADERLESS]) as process:
        while ") Z " not in Path(f"/proc/{process.pid}/stat").read_text():
            time.sleep(0.001)
        result = collect("--engine", "signal", "-P", process.pid, "-t", "1", "-o", tmp_path / "leaderless.er")
        process.kill()
    assert re.fullmatch(SUMMARY + "\n", result.stderr), result.stderr
    shown = gprofng("-metrics", "i.totalcpu:name", "-functions", experiment=tmp_path / "leaderless.er").functions
    assert shown["<Total>"][0] > 10 * INTERVAL_S
    assert not [name for name in shown if name.startswith(("<Stack-unwind-failed", "<Truncated"))]


def test_who_is_stopped_as_recording_begins_is_told_as_stopped(attach_allowed: None, collect: Run, gprofng: Run,
                                                               tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "1000"]) as process:
        while not Path(f"/proc/{process.pid}/syscall").read_text().startswith("230 "):  # clock_nanosleep
            time.sleep(0.001)
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        result = collect("--engine", "signal", "-P", process.pid, "-t", "1", "-o", tmp_path / "stopped.er")
        process.kill()
    assert re.fullmatch(SUMMARY + "\n", result.stderr), result.stderr
    shown = gprofng("-metrics", "i.stop:i.totalcpu:name", "-functions", experiment=tmp_path / "stopped.er").functions
    life_ns = (log := open_experiment(tmp_path / "stopped.er").log).end_ns - log.start_ns
    assert shown["<Total>"] == (pytest.approx(life_ns / 1e9, abs=INTERVAL_S), 0)
    assert shown["clock_nanosleep"] == shown["<Total>"]


@pytest.mark.kernel_times
def test_time_in_traps_is_trap_time(workload: Run, recorded_by_signals: Run) -> None:
    run = recorded_by_signals(workload("states"), "trap", 3, 101)
    (thread,) = run.truth["threads"]
    states = run.states_s(thread["tid"])
    cpu_s = states["user"] + states["system"] + states["trap"]
    assert cpu_s == pytest.approx(thread["cpu_s"], abs=tolerance(thread["cpu_s"], run.interval_s))
    # Samples follow the kernel's own sum of its time in the kernel, of which it tells whole ticks: by two of these, or
    # one part in 20 of the CPU time, and what a sample stands for.
    before_s, tick_s = run.observed[thread["tid"]].cpu_before[1], 1 / os.sysconf("SC_CLK_TCK")
    behind_s = tick_s + max(2 * tick_s, cpu_s / 20) + latest_s(run.experiment, run.interval_s)
    assert states["trap"] + states["system"] > run.truth["system_s"] - before_s - behind_s - 2 * run.interval_s
    assert states["trap"] > states["system"]


# --- stacks of waiting threads ----------------------------------------------------------------------


@pytest.mark.parametrize("build", BUILDS)
def test_stacks_of_waiting_threads_reach_the_root(build: str, workload: Run, recorded_by_signals: Run,
                                                  gprofng: Run) -> None:
    """Who sleeps is looked at in the end; of those that spin on one CPU those that the tracer came to while they lived.
    """
    program = workload("states", *BUILDS[build])
    for scenario in ("condvar", "nanosleep", "spin", "stop"):
        run = recorded_by_signals(program, scenario, 31 if scenario == "spin" else 13, 23, observed=False)
        met = run.met() if scenario == "spin" else run.packets()
        unmet_s = float(run.packets()["NTICK"].sum() - met["NTICK"].sum()) * run.interval_s
        assert run.unrooted_share(met) <= 0.01, scenario
        functions = gprofng("-metrics", "i.total:name", "-functions", experiment=run.path).functions
        broken_s = sum(functions.get(mark, (0.0,))[0] for mark in ("<Truncated-stack>", "<Stack-unwind-failed>"))
        n_broken = round((broken_s - unmet_s) / run.interval_s) - run.n_leaf_alone(met)
        assert n_broken * run.interval_s <= 0.01 * functions["<Total>"][0], scenario
        if build != "stripped" and len(met):
            assert functions[f"wait_in_{scenario}"][0] > 0, scenario


@pytest.mark.kernel_times
@pytest.mark.parametrize("build", ["-O2", "-O0", "static"])
def test_ten_sleeping_places_show_their_own_times(build: str, workload: Run, recorded_by_signals: Run,
                                                  gprofng: Run) -> None:
    run = recorded_by_signals(workload("sites", *BUILDS[build]), 7, interval="hi")
    assert run.unrooted_share() <= 0.01
    tree = gprofng("-metrics", "i.total:name", "-calltree", experiment=run.path).tree
    known_s = [run.truth["sites"][f"site_{number}"] for number in range(10)]
    told_s = []
    for number in range(10):
        # Each through a chain of its own: site N calls down N levels.
        (path,) = (path for path in tree if path[-1] == "nap" and f"site_{number}" in path)
        assert path[path.index("main"):] == ("main", "run", f"site_{number}", *("down",) * (number + 1), "nap")
        told_s.append(tree[path][0])
    # Of a time between two looks each of two places is told a half, and one between these none: all together have
    # theirs, and each has it as looks come. That is nearer to the truth than to what nobody could tell apart. (How near
    # it is, is a figure of scripts/truth.) Waits for a CPU may be told where it went on.
    slack_s = tolerance(sum(known_s), run.interval_s) + run.stolen_s
    least_s, most_s = sum(known_s) - run.states_s()["wait"], run.observed[run.truth["pid"]].life_s[1]
    assert least_s - slack_s <= sum(told_s) <= most_s + slack_s
    even_s = sum(known_s) / 10
    assert sum(abs(told - known) for told, known in zip(told_s, known_s, strict=True)) < sum(
        abs(even_s - known) for known in known_s) / 2
