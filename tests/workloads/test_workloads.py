"""The judges judged: every workload does what it says, and says what it did, without any collector around."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import psutil
import pytest
from sampling_error import of_share

pytestmark = pytest.mark.kernel_times

Workload = Callable[..., Path]
ROUNDING_S = 1e-5  # of times that are printed, and added


def _lines(program: Path, *arguments: object) -> list[dict[str, Any]]:
    command = [str(program), *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    return [json.loads(line) for line in result.stdout.splitlines()]


def _truth(program: Path, *arguments: object) -> dict[str, Any]:
    (truth,) = _lines(program, *arguments)
    return truth


@pytest.mark.parametrize("flags", [("-O0",), ("-O2",), ("-O2", "-static", "-s")], ids=" ".join)
def test_split_divides_its_time_as_one_to_three_to_seven(workload: Workload, flags: tuple[str, ...],
                                                         stolen: Callable[[], float]) -> None:
    truth = _truth(workload("split", *flags), 0.63)
    assert len({thread["tid"] for thread in truth["threads"]}) == 3
    for thread in truth["threads"]:
        parts = [thread["leaf_one"], thread["leaf_three"], thread["leaf_seven"]]
        assert sum(parts) <= thread["cpu_s"]
        # Each goes on until it has had its part, and ends when it has looked at the clock again.
        assert all(part >= share * 0.63 / 33 - ROUNDING_S for part, share in zip(parts, (1, 3, 7), strict=True))
    used_s = truth["user_s"] + truth["system_s"]
    assert sum(thread["cpu_s"] for thread in truth["threads"]) <= used_s + ROUNDING_S
    assert used_s <= 1.5 * 0.63 + stolen()


def test_usersys_divides_its_time_between_user_and_system(workload: Workload) -> None:
    truth = _truth(workload("usersys"), 0.7, 61)
    assert truth["in_user"] >= 0.61 * 0.7 - ROUNDING_S
    assert truth["in_system"] >= 0.39 * 0.7 - ROUNDING_S
    # Which of the two it is in the kernel asks at its ticks, a hundred a second at least.
    used_s, share = truth["user_s"] + truth["system_s"], truth["in_user"] / (truth["in_user"] + truth["in_system"])
    assert truth["user_s"] / used_s == pytest.approx(share, abs=of_share(share, 100 * used_s))


def _waits_without_using_cpu(workload: Workload, scenario: str) -> None:
    truth = _truth(workload("states"), scenario, 5, 23)
    (thread,) = truth["threads"]
    assert thread["wall_s"] >= 0.115
    assert thread["cpu_s"] < 0.01
    assert truth["turns"] == 5


@pytest.mark.parametrize("scenario", ["mutex", "condvar", "futex", "nanosleep", "poll", "epoll", "pipe"])
def test_states_waits_for_locks_and_sleeps(workload: Workload, scenario: str) -> None:
    _waits_without_using_cpu(workload, scenario)


@pytest.mark.usefixtures("userfaultfd_allowed")
@pytest.mark.parametrize("scenario", ["data", "text", "kernel"])
def test_states_waits_for_pages(workload: Workload, scenario: str) -> None:
    _waits_without_using_cpu(workload, scenario)


def test_states_spins_with_a_fifth_of_one_cpu_each(workload: Workload) -> None:
    began_s = time.monotonic()
    truth = _truth(workload("states"), "spin", 1, 701)
    lasted_s = time.monotonic() - began_s
    assert len({thread["tid"] for thread in truth["threads"]}) == 5
    assert min(thread["wall_s"] for thread in truth["threads"]) >= 0.701
    assert sum(thread["cpu_s"] for thread in truth["threads"]) <= lasted_s


def test_states_is_stopped_for_a_known_time(workload: Workload) -> None:
    truth = _truth(workload("states"), "stop", 3, 41)
    (thread,) = truth["threads"]
    assert 0.123 <= truth["stopped_s"] <= thread["wall_s"]
    assert thread["wall_s"] - thread["cpu_s"] >= 0.123  # from when it has stopped


@pytest.mark.parametrize("scenario", ["ud2", "int3", "trap"])
def test_states_traps_and_goes_on(workload: Workload, scenario: str, stolen: Callable[[], float]) -> None:
    truth = _truth(workload("states"), scenario, 3, 31)
    (thread,) = truth["threads"]
    assert 0.093 <= thread["cpu_s"] < 0.113 + stolen()
    assert truth["traps"] > 1000


def test_sites_sleep_their_own_times(workload: Workload) -> None:
    truth = _truth(workload("sites"), 2)
    expected = {f"site_{n}": 2e-3 * ms for n, ms in enumerate((2, 3, 5, 7, 11, 13, 17, 19, 23, 29))}
    for site, at_least_s in expected.items():
        assert at_least_s <= truth["sites"][site]


def test_forks_has_every_kind_of_descendant(workload: Workload) -> None:
    lines = _lines(workload("forks"), 3)
    assert Counter(line["role"] for line in lines) == {
        "founder": 1, "fork": 23, "third": 1, "spawned": 1, "in_system": 1, "in_popen": 1, "vforked": 1,
        "clone_sigchld": 1, "clone_silent": 1, "daemon_parent": 1, "daemon": 1, "last": 1,
    }  # fmt: skip
    by_role = {line["role"]: line for line in lines if line["role"] != "fork"}
    forks = {line["number"]: line for line in lines if line["role"] == "fork"}
    assert sorted(forks) == list(range(1, 24))
    assert {fork["parent"] for fork in forks.values()} == {by_role["founder"]["pid"]}
    assert by_role["third"]["pid"] == by_role["last"]["pid"] == forks[3]["pid"]
    children = ("spawned", "vforked", "clone_sigchld", "clone_silent", "daemon_parent")
    assert {by_role[role]["parent"] for role in children} == {by_role["third"]["pid"]}
    assert by_role["daemon"]["parent"] != by_role["third"]["pid"]
    assert all(line["work_s"] >= 0.003 for line in lines)


def test_pingpong_switches_twice_a_round(workload: Workload) -> None:
    truth = _truth(workload("pingpong"), 5003)
    # Where one is preempted between its write and its read, the other's byte is there already: no switch.
    assert truth["n_voluntary"] + truth["n_involuntary"] >= 2 * 5003 * 0.98


def test_brief_processes_spend_as_much_on_each_of_three_things(workload: Workload,
                                                               stolen: Callable[[], float]) -> None:
    truth = _truth(workload("brief"), 11)
    for name in ("first", "second", "third"):
        assert 11 * 0.0053 <= truth[name] < 1.2 * 11 * 0.0053 + stolen()
    worked_s = sum(truth[name] for name in ("first", "second", "third"))
    assert worked_s <= truth["children_user_s"] + truth["children_system_s"]


def test_sleepers_sleep(workload: Workload) -> None:
    truth = _truth(workload("sleepers"), 31, 0.1)
    assert truth["asleep_s"] >= 31 * 0.1
    assert truth["user_s"] + truth["system_s"] < 0.05


def test_recurse_is_as_deep_as_asked(workload: Workload) -> None:
    shallow, deep = (_truth(workload("recurse"), depth, 0.01) for depth in (101, 10_007))
    frame_bytes = (deep["stack_bytes"] - shallow["stack_bytes"]) / (10_007 - 101)
    assert frame_bytes >= 16
    assert frame_bytes == int(frame_bytes)


@pytest.mark.parametrize("stack", [(), ("alt",)], ids=["same stack", "own stack"])
def test_sigframe_works_in_the_handler_and_below(workload: Workload, stack: tuple[str, ...]) -> None:
    truth = _truth(workload("sigframe"), 0.11, *stack)
    assert truth["signals"] == 11
    assert truth["handler_work"] == pytest.approx(0.055, abs=0.02)
    assert truth["inner"] == pytest.approx(0.055, abs=0.02)


def test_alarms_divides_its_time_while_it_is_signalled(workload: Workload, stolen: Callable[[], float]) -> None:
    truth = _truth(workload("alarms"), 4000, 50, 0.5)
    # Where others have the CPU for long, a phase has no time between two alarms to see that its own is over.
    spent_s = truth["phases"].values()
    assert all(spent >= asked for spent, asked in zip(spent_s, (0.25, 0.15, 0.075, 0.025), strict=True))
    assert sum(spent_s) + truth["rest_s"] == pytest.approx(truth["user_s"] + truth["system_s"], abs=0.02)
    assert 0.002 * truth["alarms"] <= truth["handled_s"] < 1.1 * 0.002 * truth["alarms"] + stolen()
    assert truth["alarms"] > 50


def test_manymaps_makes_its_mappings_and_works(workload: Workload, stolen: Callable[[], float]) -> None:
    truth = _truth(workload("manymaps"), 1009, 0.05)
    assert 0.05 <= truth["busy_s"] < 0.055 + stolen()


def test_eintr_counts_none_when_undisturbed(workload: Workload) -> None:
    truth = _truth(workload("eintr"), 0.5)
    assert min(truth["calls"].values()) >= 3
    assert set(truth["eintr"].values()) == {0}


def test_busy_does_the_same_work_in_every_thread(workload: Workload) -> None:
    truth = _truth(workload("busy"), 3, 211)
    assert len(truth["threads_cpu_s"]) == 3
    assert 0.8 * truth["cpu_s"] < sum(truth["threads_cpu_s"]) <= truth["cpu_s"] + ROUNDING_S


def test_steady_tells_when_its_threads_could_not_work(workload: Workload) -> None:
    truth = _truth(workload("steady"), 3, 0.07)
    assert len({thread["tid"] for thread in truth["threads"]}) == 3
    for thread in truth["threads"]:
        times_ns = [thread["began_ns"], *chain(*thread["holes"]), thread["ended_ns"]]
        assert times_ns == sorted(times_ns)
        assert all(end_ns - begin_ns > 500_000 for begin_ns, end_ns in thread["holes"])
    with subprocess.Popen([workload("steady"), "1", "600"], stdout=subprocess.PIPE, text=True) as process:
        while psutil.Process(process.pid).cpu_times().user < 0.2:
            time.sleep(0.01)
        process.send_signal(signal.SIGSTOP)
        while psutil.Process(process.pid).status() != psutil.STATUS_STOPPED:
            time.sleep(0.01)
        time.sleep(0.1)
        process.send_signal(signal.SIGCONT)
        process.send_signal(signal.SIGUSR1)
        out, _ = process.communicate(timeout=60)
    (thread,) = json.loads(out)["threads"]
    assert max(end_ns - begin_ns for begin_ns, end_ns in thread["holes"]) >= 0.1e9
    assert thread["n_switches"] >= 1


def test_timed_tells_what_a_program_and_its_children_used(workload: Workload, stolen: Callable[[], float]) -> None:
    burn = 'import os, time\nos.fork()\nwhile time.process_time() < 0.23: pass\nos.wait()'
    result = subprocess.run([workload("timed"), sys.executable, "-c", f"try:\n exec({burn!r})\nexcept OSError: pass"],
                            capture_output=True, text=True, timeout=60, check=True)
    truth = json.loads(result.stdout)
    assert 0.46 <= truth["children_user_s"] + truth["children_system_s"] < 0.9 + stolen()
    assert truth["user_s"] + truth["system_s"] < 0.02
    failed = subprocess.run([workload("timed"), "sh", "-c", "echo said; exit 5"], capture_output=True, text=True)
    assert (failed.returncode, failed.stderr) == (5, "said\n")
    assert json.loads(failed.stdout)["wall_s"] > 0


def test_swarm_makes_as_many_short_lives_as_it_says(workload: Workload, stolen: Callable[[], float]) -> None:
    truth = _truth(workload("swarm"), 101, 7, 1000)
    assert (truth["count"], truth["well"]) == (101, 101)
    assert 0.046 <= truth["founders_work_s"] < 0.051 + stolen()
    # A millisecond each; to begin and to end takes what it takes, but not ten.
    assert 0.101 <= truth["children_user_s"] + truth["children_system_s"] < 1.01 + stolen()
    assert truth["user_s"] + truth["system_s"] >= 0.046 - ROUNDING_S


def test_deep_sleeps_as_long_as_asked(workload: Workload) -> None:
    assert _truth(workload("deep"), 61, 0.3, 7, 11)["slept_s"] >= 2 * (0.3 + 7 * 0.011)


def test_nappers_tell_the_kernels_accounts_of_themselves(workload: Workload) -> None:
    began_s = time.monotonic()
    truth = _truth(workload("nappers"), 31, 0.3)
    assert time.monotonic() - began_s >= 0.3
    assert len({tid for tid, _, _, _ in truth["threads"]}) == 31
    assert all(ran_s > 0 and ran_s + waited_s < lived_s + 1e-3 for _, ran_s, waited_s, lived_s in truth["threads"])
    ran_s = sum(ran_s for _, ran_s, _, _ in truth["threads"])
    assert 0 <= truth["user_s"] + truth["system_s"] - ran_s < 0.03  # of main, and of the threads' ends
    # A nap may be over before its thread has left its CPU.
    assert truth["n_voluntary"] >= 0.98 * truth["naps"] >= 31


def test_ways_divides_its_sleep_between_two_callers(workload: Workload) -> None:
    truth = _truth(workload("ways"), 3, 211)
    assert truth["shorter"] >= 3 * 211 * 100e-6
    assert truth["longer"] >= 3 * 211 * 300e-6
    assert truth["user_s"] + truth["system_s"] < 0.5 * (truth["shorter"] + truth["longer"])
