"""Ground truth, one program per microstate: each state as long as the program says, with the stack of its place."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sampling_error import of_share

from collector.cli import er_print

pytestmark = [pytest.mark.kernel_times, pytest.mark.usefixtures("perf_allowed")]

INTERVAL_S = 10.007e-3
TURNS, TURN_MS = 11, 53
STATE_OF = {
    "mutex": "lock", "condvar": "lock", "futex": "lock",
    "nanosleep": "sleep", "poll": "sleep", "epoll": "sleep", "pipe": "sleep",
    "data": "datapfault", "text": "textpfault", "kernel": "kernelpfault",
}
BY_USERFAULTFD = {"data", "text", "kernel"}
RARE = ("trap", "textpfault", "datapfault", "kernelpfault", "lock", "sleep", "stop")


def tolerance(known_s: float) -> float:
    """One interval or 1 %."""
    return max(INTERVAL_S, 0.01 * known_s)


def displayed(display: Callable[..., Any], path: Path, *states: str) -> dict[str, dict[str, float]]:
    """Inclusive seconds of functions in states, as a reader shows them."""
    shown: dict[str, dict[str, float]] = {}
    for state in states:  # one at a time: a sum of functions' rows has no room for errors of column
        listing = display("-metrics", f"i.{state}:name", "-functions", experiment=path)
        for name, values in listing.functions.items():
            shown.setdefault(name, {})[state] = values[0]
    return shown


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str], gprofng: Any) -> Callable[..., Any]:
    """``er_print`` in the place of gprofng."""

    def display(*commands: str, experiment: Path) -> Any:
        assert er_print.run([*commands, str(experiment)]) == 0
        shown = capsys.readouterr()
        assert shown.err == ""
        return type(gprofng("-metric_list", experiment=experiment))(shown.out)

    return display


LOST = re.compile(r"(nothing lost|\d+ leave records? lost: stacks of threads that left their CPU too often, told by "
                  r"their last known stacks)\n")


def no_loss(run: Any) -> None:
    """``collect`` said that all is well: no state guessed, every stack whole, and no record lost, but for departures of
    who was given too little of a CPU to stay there."""
    assert run.said.count("\n") == 1
    assert LOST.fullmatch(re.split(r" samples?, ", run.said)[-1]), run.said


@pytest.mark.parametrize("scenario", STATE_OF)
def test_waiting_is_as_long_as_it_was(scenario: str, request: pytest.FixtureRequest, workload: Any, recorded: Any,
                                      gprofng: Any, printed: Any) -> None:
    if scenario in BY_USERFAULTFD:
        request.getfixturevalue("userfaultfd_allowed")
    run, state = recorded(workload("states"), scenario, TURNS, TURN_MS), STATE_OF[scenario]
    no_loss(run)
    (thread,) = run.truth["threads"]
    off_cpu_s = thread["wall_s"] - thread["cpu_s"]
    states, delay_s = run.states_s(thread["tid"]), run.observed[thread["tid"]].delay_s
    # Off CPU it waits for what it waits for, and then for a CPU: the kernel says how long in its whole life, from when
    # the thread is in a queue. The wake-up was before that, which a CPU that a hypervisor has taken comes late to.
    low_s, high_s = off_cpu_s - delay_s[1] - run.stolen_s, off_cpu_s + run.outside_s(thread)
    assert low_s - tolerance(off_cpu_s) <= states[state] <= high_s + tolerance(off_cpu_s), f"{states} {delay_s}"
    seen, begun_s = run.observed[thread["tid"]], run.begun_s(thread["tid"])
    told = f"{states} {delay_s} {off_cpu_s} {begun_s} {seen}"
    assert delay_s[0] - INTERVAL_S <= states["wait"] <= delay_s[1] + INTERVAL_S + run.stolen_s, told
    others = {name: states[name] for name in RARE if name != state}
    assert max(others.values()) <= INTERVAL_S * 1.001 + run.outside_s(thread), others
    for display in (gprofng, printed):
        shown = displayed(display, run.path, state)
        there_s = shown[f"wait_in_{scenario}"][state]
        assert states[state] - run.outside_s(thread) - INTERVAL_S <= there_s <= states[state] + INTERVAL_S
        assert shown["<Total>"][state] == pytest.approx(run.states_s()[state], abs=0.0005)


def test_five_spinners_on_one_cpu_wait_for_each_other(workload: Any, recorded: Any, gprofng: Any, printed: Any) -> None:
    run = recorded(workload("states"), "spin", 5, 307)
    no_loss(run)
    assert len(run.truth["threads"]) == 5
    inside_s = 0.0
    for thread in run.truth["threads"]:
        states, seen = run.states_s(thread["tid"]), run.observed[thread["tid"]]
        known_s = thread["wall_s"] - thread["cpu_s"]
        # Each is ready to run from its birth, when it may have to wait, too, to its end; what it has not, it waits.
        assert known_s - tolerance(known_s) - INTERVAL_S <= states["wait"], states
        assert states["wait"] <= seen.life_s[1] - thread["cpu_s"] + tolerance(known_s) + run.stolen_s, states
        # Each state is rounded for itself.
        cpu_s = states["user"] + states["system"] + states["trap"]
        assert thread["cpu_s"] - 3 * INTERVAL_S <= cpu_s <= seen.cpu_s[1] + 3 * INTERVAL_S
        inside_s += known_s
    # They ask their clocks and are interrupted, also by whoever runs this machine beside others.
    all_s = run.states_s()
    assert all_s["user"] > all_s["system"] + all_s["trap"]
    for display in (gprofng, printed):
        shown = displayed(display, run.path, "wait")
        assert shown["<Total>"]["wait"] == pytest.approx(all_s["wait"], abs=0.0005)
        assert inside_s - 5 * INTERVAL_S - 0.01 * inside_s <= shown["run"]["wait"] <= all_s["wait"] + 0.0005
        assert shown["wait_in_spin"]["wait"] > 0.9 * inside_s  # the rest: while run asks its clocks


def test_stopped_time_is_from_sigstop_to_sigcont(workload: Any, recorded: Any, gprofng: Any, printed: Any) -> None:
    run = recorded(workload("states"), "stop", 7, 61)
    no_loss(run)
    (thread,) = run.truth["threads"]
    states, known_s = run.states_s(thread["tid"]), run.truth["stopped_s"]
    # A stop begins when the target runs next and takes the signal, which may wait for a CPU, and so does its end.
    late_s = states["wait"]
    assert known_s - late_s - tolerance(known_s) <= states["stop"] <= known_s + tolerance(known_s), states
    # It waits for the end of who stopped it.
    assert states["sleep"] <= INTERVAL_S * 1.001 + run.outside_s(thread)
    for display in (gprofng, printed):
        shown = displayed(display, run.path, "stop")
        assert shown["main"]["stop"] == pytest.approx(states["stop"], abs=0.0005)
        # It may be stopped for the first time before it is there, if it has had no CPU.
        least_s = states["stop"] - known_s / 7 - late_s - INTERVAL_S
        assert least_s <= shown["wait_in_stop"]["stop"] <= states["stop"] + 0.0005


def test_traps_without_system_calls_are_trap_time(workload: Any, recorded: Any, gprofng: Any, printed: Any) -> None:
    run = recorded(workload("states"), "trap", 3, 307)
    # A sample may come while the kernel prepares the handler's frame: sp is the handler's already, pc is not yet. How
    # many do so is chance.
    unrooted = re.search(r"[,;] (\d+) of (\d+) stacks? do(?:es)? not reach the root \(\1 no map\)\n$", run.said)
    n_unrooted, n_stacks = map(int, unrooted.groups()) if unrooted else (0, 1)
    if unrooted is None:
        no_loss(run)
    assert n_unrooted <= (0.01 + of_share(0.01, n_stacks)) * n_stacks
    (thread,) = run.truth["threads"]
    states = run.states_s(thread["tid"])
    # Each state is rounded for itself; what it had outside of its turns is among what the kernel tells.
    cpu_s = sum(states[name] for name in ("user", "system", "trap"))
    assert thread["cpu_s"] - 3 * INTERVAL_S <= cpu_s <= run.observed[thread["tid"]].cpu_s[1] + 3 * INTERVAL_S
    # The handler and its jump are user code: a few in a hundred instructions' time. System time are its looks at the
    # clock, where the kernel finds that its slice is over, and its beginning and end: how long these take is the
    # machine's matter, but they are one in a hundred traps.
    assert states["trap"] > states["user"] + states["system"], states
    for display in (gprofng, printed):
        shown = displayed(display, run.path, "trap")
        assert shown["<Total>"]["trap"] == pytest.approx(states["trap"], abs=0.0005)
        assert shown["wait_in_trap"]["trap"] == pytest.approx(states["trap"], abs=(2 + n_unrooted) * INTERVAL_S)


@pytest.mark.parametrize("scenario", ["ud2", "int3"])
def test_traps_with_handlers_that_return_are_trap_and_system_time(scenario: str, workload: Any, recorded: Any) -> None:
    run = recorded(workload("states"), scenario, 3, 701)  # of 210 samples of ud2 some 20 are in system calls
    (thread,) = run.truth["threads"]
    states = run.states_s(thread["tid"])
    cpu_s = sum(states[name] for name in ("user", "system", "trap"))
    assert thread["cpu_s"] - 3 * INTERVAL_S <= cpu_s <= run.observed[thread["tid"]].cpu_s[1] + 3 * INTERVAL_S
    assert states["trap"] > states["system"] > 0
    assert states["trap"] >= 0.2 * thread["cpu_s"]  # the exception, the signal's delivery


def test_the_overview_shows_the_ten_states(workload: Any, recorded: Any, gprofng: Any) -> None:
    run = recorded(workload("states"), "condvar", 5, 311)
    statistics = gprofng("-statistics", experiment=run.path).text
    shown = {name: float(value) for name, value in re.findall(r"^ +(\w[\w ]+): +([\d.]+) *\(", statistics, re.M)}
    names = {"User Lock": "lock", "Sleep": "sleep", "Wait CPU": "wait", "Stopped": "stop"}
    states = run.states_s()
    for title, state in names.items():
        assert shown[title] == pytest.approx(states[state], abs=2 * INTERVAL_S), title
    assert sum(shown.values()) == pytest.approx(sum(states.values()), abs=2 * INTERVAL_S)


def test_no_stop_no_signal_no_interrupted_call(workload: Any, recorded: Any) -> None:
    run = recorded(workload("eintr"), 1.1)
    no_loss(run)
    assert set(run.truth["eintr"].values()) == {0}
    assert min(run.truth["calls"].values()) > 0
    assert run.states_s()["stop"] == 0
