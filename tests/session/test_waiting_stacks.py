"""Where threads wait: whole stacks to the root in all builds, and the right ones, each with its own time."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collector.experiment.records import STATES
from tests.session.conftest import FIRST_WAITING_STATE

pytestmark = pytest.mark.usefixtures("perf_allowed")

INTERVAL_S = 10.007e-3
BUILDS = {
    "frame pointers": ("-O0", "-fno-omit-frame-pointer"),
    "none": ("-O2", "-fomit-frame-pointer"),
    "static": ("-O2", "-static"),
    "stripped": ("-O2", "-s"),
}
WITH_NAMES = [build for build in BUILDS if build != "stripped"]
SCENARIOS = ["mutex", "nanosleep", "spin"]
MORE = {"none": ["condvar", "pipe", "stop"]}  # which builds do not differ in


@pytest.mark.parametrize("build", BUILDS)
def test_stacks_of_waiting_threads_reach_the_root(build: str, workload: Any, recorded: Any, gprofng: Any) -> None:
    for scenario in SCENARIOS + MORE.get(build, []):
        run = recorded(workload("states", *BUILDS[build]), scenario, 3, 23, observed=False)
        assert run.unrooted_share() <= 0.01, scenario
        functions = gprofng("-metrics", "i.total:name", "-functions", experiment=run.path).functions
        broken_s = sum(functions.get(mark, (0.0,))[0] for mark in ("<Truncated-stack>", "<Stack-unwind-failed>"))
        n_broken = round(broken_s / INTERVAL_S) - run.n_leaf_alone()
        assert n_broken * INTERVAL_S <= 0.01 * functions["<Total>"][0], scenario
        if build in WITH_NAMES:
            assert functions[f"wait_in_{scenario}"][0] > 0, scenario


@pytest.mark.usefixtures("userfaultfd_allowed")
@pytest.mark.parametrize("scenario", ["data", "text", "kernel"])
def test_stacks_of_threads_that_wait_for_pages_reach_the_root(scenario: str, workload: Any, recorded: Any) -> None:
    for flags in BUILDS.values():
        run = recorded(workload("states", *flags), scenario, 3, 23, observed=False)
        assert run.unrooted_share() <= 0.01, flags


@pytest.mark.parametrize("build", WITH_NAMES)
def test_ten_sleeping_places_show_their_own_times(build: str, workload: Any, recorded: Any, gprofng: Any) -> None:
    run = recorded(workload("sites", *BUILDS[build]), 7)
    tree = gprofng("-metrics", "i.total:name", "-calltree", experiment=run.path).tree
    chains = {path[-1]: values[0] for path, values in tree.items() if path[-1].startswith("site_")}
    assert chains.keys() == run.truth["sites"].keys()
    # It waits there for its time, and then for a CPU: each of both is rounded for itself.
    slack_s = 2 * INTERVAL_S + 0.0005 + run.stolen_s
    for site, known_s in run.truth["sites"].items():
        assert chains[site] == pytest.approx(known_s, abs=slack_s), site
    # Each through a chain of its own: site N calls down N levels.
    for number in range(10):
        (path,) = (path for path in tree if path[-1] == "nap" and f"site_{number}" in path)
        assert path[path.index("main"):] == ("main", "run", f"site_{number}", *("down",) * (number + 1), "nap")
        assert tree[path][0] == pytest.approx(run.truth["sites"][f"site_{number}"], abs=slack_s)


@pytest.mark.kernel_times
@pytest.mark.parametrize("fixture", ["recorded", "recorded_by_signals"])
def test_who_is_preempted_waits_where_it_works(fixture: str, request: pytest.FixtureRequest, workload: Any,
                                               gprofng: Any) -> None:
    """Threads that have slept once, and then share a CPU: they wait for it in the function that they are in."""
    n_threads = 3
    run = request.getfixturevalue(fixture)(workload("rested"), n_threads, 307, observed=False)
    functions = gprofng("-metrics", "i.total:i.wait:name", "-functions", experiment=run.path).functions
    rounding_s = n_threads * 3 * INTERVAL_S + run.stolen_s
    assert functions["<Total>"][1] >= run.truth["first"] + run.truth["second"] - run.truth["cpu_s"] - rounding_s
    # Of each thread: the rounding of running and waiting, and where one function ends and the next one begins. Not all
    # that leave their CPUs have stacks of their own: a wait there may be told of the function before.
    slack_s = rounding_s + n_threads * run.truth["longest_wait_s"]
    for name in ("rests", "first", "second"):
        assert functions[name][0] == pytest.approx(run.truth[name], abs=slack_s), name


def test_the_same_times_in_the_reader(workload: Any, recorded: Any, tmp_path: Path) -> None:
    run = recorded(workload("sites"), 11)
    packets = run.packets()
    stacks = run.experiment.stacks
    off_cpu: Counter[int] = Counter()
    asleep: Counter[int] = Counter()  # by leaf
    deepest: dict[int, int] = {}
    for packet in packets[packets["MSTATE"] >= STATES.index("sleep")]:
        stack = stacks.stack(int(stacks.index(packet["FRINFO"].reshape(1))[0]))
        off_cpu[len(stack)] += int(packet["NTICK"])
        if packet["MSTATE"] == STATES.index("sleep"):
            asleep[stack[0]] += int(packet["NTICK"])
            deepest[stack[0]] = max(deepest.get(stack[0], 0), len(stack))
    # All sites sleep at one place, each in a stack that is one deeper than the one before.
    (place, _), = asleep.most_common(1)
    depths = range(deepest[place] - 9, deepest[place] + 1)
    # It sleeps there, and then waits for a CPU: each of both is rounded for itself. Who is preempted waits elsewhere.
    elsewhere_s = sum(n_ticks for depth, n_ticks in off_cpu.items() if depth not in depths) * INTERVAL_S
    slack_s = 2 * INTERVAL_S + run.stolen_s
    for depth, (site, known_s) in zip(depths, run.truth["sites"].items(), strict=True):
        assert known_s - elsewhere_s - slack_s <= off_cpu[depth] * INTERVAL_S <= known_s + slack_s, site


@pytest.mark.kernel_times
@pytest.mark.parametrize("engine", ["perf", "signal"])
def test_stacks_deeper_than_what_is_copied_of_them_are_whole(engine: str, workload: Any, recorded: Any,
                                                             recorded_by_signals: Any) -> None:
    """Two threads below 201 frames of a KiB each: once for long, which shows the rest of the stack, and then often. The
    signal engine finds those asleep that it looks at meanwhile, which it does when it has a CPU."""
    n_seen = 2 * 17 if engine == "perf" else 2
    run = (recorded if engine == "perf" else recorded_by_signals)(workload("deep"), 201, 1.3, 17, 29)
    waiting = run.packets()[run.packets()["MSTATE"] >= FIRST_WAITING_STATE]
    is_asleep = waiting["MSTATE"] == STATES.index("sleep")
    asleep = waiting[is_asleep]
    assert len(asleep) > n_seen
    # Off their CPUs as long as they say: asleep, and then waiting for a CPU.
    states, slept_s, slack = run.states_s(), run.truth["slept_s"], 0.03 * run.truth["slept_s"] + run.stolen_s
    assert slept_s - states["wait"] - slack <= states["sleep"] <= slept_s + slack
    every = run.experiment.stacks
    stacks = [every.stack(int(index)) for index in every.index(asleep["FRINFO"])]
    (leaf, n_most), = Counter(int(stack[0]) for stack in stacks).most_common(1)
    assert n_most > n_seen
    # Who is preempted on the way there waits for its CPU where nobody finds it again, or before it was found:
    # how long is up to the machine, and the rest of such a stack is not known. From the first sleep on it is.
    at_leaf = np.array([tuple(every.stack(int(index))[:1]) == (leaf,) for index in every.index(waiting["FRINFO"])])
    found_ns = max(waiting["TSTAMP"][at_leaf & is_asleep & (waiting["THRID"] == thread)].min()
                   for thread in np.unique(waiting["THRID"][at_leaf]))
    is_known = at_leaf & (waiting["TSTAMP"] > found_ns)
    assert run.unrooted_share(waiting[is_known | (waiting["MSTATE"] != STATES.index("wait"))]) <= 0.01
    # A loader may sleep, too, until its file has been read.
    assert min(len(stack) for stack in stacks if stack[0] == leaf) > 201


# Sleeps 30 times. In the frame of its main there is what seems a link to another function than its caller.
DOUBTFUL = """
.globl _start
_start: .cfi_startproc; .cfi_undefined rip; xor %ebp, %ebp; lea main(%rip), %rax; call *%rax; hlt; .cfi_endproc
other: .cfi_startproc; .cfi_undefined rip; call *%rdx; in_other: hlt; .cfi_endproc
main: .cfi_startproc; push %rbp; .cfi_def_cfa_offset 16; .cfi_offset rbp, -16; mov %rsp, %rbp; .cfi_def_cfa_register rbp
sub $64, %rsp; movq $0, 16(%rsp); lea in_other(%rip), %rax; mov %rax, 24(%rsp); mov $30, %ebx
1: call waits; dec %ebx; jne 1b; mov $231, %eax; xor %edi, %edi; syscall; .cfi_endproc
waits: .cfi_startproc; mov $35, %eax; lea time(%rip), %rdi; xor %esi, %esi; syscall; ret; .cfi_endproc
.data
time: .quad 0, 10000000
.section .note.GNU-stack
"""


def test_stacks_that_are_not_proven_are_counted(recorded_by_signals: Any, need: Any, tmp_path: Path) -> None:
    """Of a blocked thread sp and pc are known; which link is the right one, nothing tells."""
    source, program = tmp_path / "doubtful.s", tmp_path / "doubtful"
    source.write_text(DOUBTFUL)
    subprocess.run([need("gcc", "gcc"), "-nostdlib", "-static", "-o", program, source], check=True, timeout=60)
    run = recorded_by_signals(program, observed=False)
    line = r"\d+ stacks? (was|were) found by searching for frame pointers, and (is|are) not proven"
    assert re.search(line, run.said.splitlines()[-1])
    assert any(re.fullmatch(line, message.text) for message in run.experiment.log.messages)
