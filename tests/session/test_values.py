"""Every kind of value of an aggregation, on programs that spend known times in known states.

What the values of a thread have to do with each other holds whatever the machine does meanwhile; how many waits of a
kind there are, the program knows.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import unread

from collector.experiment.reader import open_experiment

Run = Callable[..., Any]

TIMES = ("oncpu", "offcpu", "waitcpu", "sleep", "lock", "fault", "stopped", "runlength")
TURNS, TURN_MS, LONG_MS = 7, 31, 20
VALUE_OF = {"futex": "lock", "condvar": "lock", "nanosleep": "sleep", "pipe": "sleep", "data": "fault",
            "text": "fault", "kernel": "fault", "stop": "stopped"}
BY_USERFAULTFD = {"data", "text", "kernel"}
pytestmark = pytest.mark.usefixtures("waits_recorded")


@pytest.fixture
def values(collect: Run, er_print: Run, tmp_path: Path) -> Run:
    """``values(program, "7")``: by aggregation and thread, sums of each kind of value and how many there are; and what
    the program said, with ``n_unknown``: waits that are taken for sleep."""

    def run(*command: str | Path) -> tuple[dict[str, dict[int, int]], dict[str, Any]]:
        path = tmp_path / "run.er"
        asked = [f"{value}[tid] = sum({value})" for value in (*TIMES, "switches")]
        asked += [f"n_{value}[tid] = count() / {value} > 0 /" for value in (*TIMES, "switches")]
        asked += [f"long_{value}[tid] = count() / {value} > {LONG_MS}ms /" for value in TIMES]
        asked += ["spans[tid] = count()", "ones[tid] = sum(1)", "off[tid, state] = sum(offcpu)"]
        done = collect("-o", path, *[word for each in asked for word in ("--aggregate", each)], *command)
        assert done.returncode == 0, done.stderr
        found: dict[str, dict[int, int]] = {}
        for one in json.loads(er_print("-json_aggregations", path).stdout)["aggregations"]:
            of_it = found.setdefault(one["name"], {})
            for entry in one["recorded"] + one["synthetic"]:
                tid = entry["key"][0]
                of_it[tid] = of_it.get(tid, 0) + entry["value"]
        return found, json.loads(done.stdout) | {"n_unknown": unread.n_unread(open_experiment(path))}

    return run


def agree(found: dict[str, dict[int, int]], tid: int) -> None:
    """The values of a thread, each of which tells the others."""
    of = {name: by_tid.get(tid, 0) for name, by_tid in found.items()}
    assert of["offcpu"] == of["off"] == sum(of[name] for name in ("waitcpu", "sleep", "lock", "fault", "stopped"))
    assert of["runlength"] == of["oncpu"] > 0
    assert of["switches"] == of["n_switches"] == of["n_runlength"] > 0
    assert of["spans"] == of["ones"] == of["n_oncpu"] + of["n_offcpu"]
    assert of["n_offcpu"] == sum(of[f"n_{name}"] for name in ("waitcpu", "sleep", "lock", "fault", "stopped"))


@pytest.mark.parametrize("scenario", VALUE_OF)
def test_each_wait_is_a_value_of_its_kind(scenario: str, request: pytest.FixtureRequest, values: Run, workload: Run,
                                          stolen: Callable[[], float]) -> None:
    if scenario in BY_USERFAULTFD:
        request.getfixturevalue("userfaultfd_allowed")
    found, said = values(workload("states"), scenario, TURNS, TURN_MS)
    (thread,) = said["threads"]
    tid, kind = thread["tid"], VALUE_OF[scenario]
    agree(found, tid)
    joined_ns = 1e9 * said["joined_s"] if kind == "lock" else 0  # behind its turns
    n_long = TURNS + (joined_ns > LONG_MS * 1e6)
    # The kernel may take the rest of a sleep for a wait (README): as far as its account says so, it is told so.
    n_short = int(thread["delay_s"] * 1e3) // (TURN_MS - LONG_MS)
    assert TURNS - said["n_unknown"] - n_short <= found[f"long_{kind}"][tid] <= n_long, (found, said)
    off_ns = 1e9 * (thread["wall_s"] - thread["cpu_s"])  # and while a hypervisor had its CPU
    at_least_ns = 1e9 * said["stopped_s"] if scenario == "stop" else off_ns - 1e9 * stolen()
    waited_ns, rest_ns = found[kind][tid], found["offcpu"][tid] - found[kind][tid]
    # Off the CPU it may also be preempted, and wait for one at the end of each turn, as long as others have it.
    slop_ns = TURNS * 1_000_000
    most_ns = off_ns + joined_ns + slop_ns
    assert at_least_ns - rest_ns - slop_ns <= waited_ns <= most_ns, (at_least_ns, most_ns, waited_ns, rest_ns)


def test_threads_that_share_a_cpu_wait_for_it(values: Run, workload: Run) -> None:
    found, said = values(workload("states"), "spin", 3, 101)
    for thread in said["threads"]:
        tid = thread["tid"]
        agree(found, tid)
        assert found["waitcpu"][tid] >= 1e9 * (thread["wall_s"] - thread["cpu_s"]) - 20e6
        assert found["oncpu"][tid] >= 1e9 * thread["cpu_s"] - 20e6


def test_every_nap_and_every_run_is_counted(values: Run, workload: Run) -> None:
    """By the kernel's count of how often the thread left its CPU by itself; before and behind its naps it did so a few
    times, too. What a wait was for is told now and then only, as often as it leaves; not that it was one."""
    found, said = values(workload("naps"), "woken", 2011)
    tid = said["tid"]
    agree(found, tid)
    n_blocked = sum(found[name].get(tid, 0) for name in ("n_sleep", "n_lock", "n_fault", "n_stopped") if name in found)
    assert 1900 < said["n_slept"] <= n_blocked < said["n_slept"] + 20
    assert found["switches"][said["tid"]] > said["n_slept"]
