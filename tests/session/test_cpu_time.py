"""CPU time from end to end: known programs under ``collect``, judged by gprofng, getrusage and the programs themselves.

Every number of an experiment is compared with what the same run says of itself, never with wall time: this machine may
be busy with something else.
"""

from __future__ import annotations

import bisect
import json
import math
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from living import living, newest_ns
from sampling_error import DEVIATIONS, n_draws, of_share
from unread import PREEMPTED, n_unread

from collector.experiment.reader import Experiment, open_experiment

pytestmark = [pytest.mark.kernel_times, pytest.mark.usefixtures("perf_allowed")]

INTERVAL_S = {"on": 10.007e-3, "hi": 0.997e-3}
SYSTEM, TRAP, WAIT = 1, 2, 8
END_S = 0.005  # at most, of a program's end, behind its own look at getrusage
ROUNDED_S = 0.0005  # gprofng prints milliseconds
# At most, of what gprofng prints of the CPU time of one thread: user and system time are each told to less than an
# interval.
PRINTED_S = {name: 2 * interval_s + ROUNDED_S for name, interval_s in INTERVAL_S.items()}
MOST_CLOCKS = 3  # CPUs that a thread goes to and fro between
NOBODY = 65534
ENDURING_STATUS = 7
COLLECT = str(Path(sys.executable).parent / "collect")

VARIANTS = {
    "-O2": ("-O2", "-fomit-frame-pointer"),
    "-O0": ("-O0",),
    "static": ("-O2", "-static"),
    "stripped": ("-O2", "-s"),
    "not PIE": ("-O2", "-no-pie"),
    "32-bit": ("-O2", "-m32"),
}
# At -p on a run must be long: each thread's first 10 to 20 ms are sampled late, by one timer per CPU, and few samples
# tell little.
SECONDS = {"on": 7.1, "hi": 1.3}
BOTH = pytest.mark.parametrize("interval", ["on", "hi"])
N_TURNS = 7  # of each thread of ``split`` through its functions
EACH = pytest.mark.parametrize(("variant", "interval"), [
    ("-O2", "on"), *((variant, "hi") for variant in VARIANTS)])

# A function without a symbol is called by where the hole between symbols begins.
HOLE = re.compile(r"<static>@0x[0-9a-f]+ \(<(\S+)>\)( --  no functions found)?")


@pytest.fixture(scope="session")
def root() -> None:
    """For tests of what only root sees or may do."""
    if os.geteuid() != 0:
        pytest.skip("needs root")


@dataclass
class Run:
    """A finished recording: the experiment, what the program said of itself, what collect said."""

    path: Path
    truth: dict[str, Any]
    said: str

    @property
    def cpu_s(self) -> float:
        """By getrusage."""
        return float(self.truth["user_s"] + self.truth["system_s"])

    @cached_property
    def experiment(self) -> Experiment:
        """By our own reader."""
        return open_experiment(self.path)

    def ticks_by_state(self) -> Any:
        """Ticks (3,) of user, system and trap CPU."""
        packets = self.experiment.packets()
        return np.bincount(packets["MSTATE"], packets["NTICK"], 10)[:3]

    @cached_property
    def cpu_draws(self) -> float:
        """As how many samples of equal weight those of running threads count."""
        packets = self.experiment.packets()
        return n_draws(packets["NTICK"][packets["MSTATE"] <= TRAP])

    def rooted(self) -> float:
        """The share of CPU ticks whose stacks reach the root."""
        packets, stacks = self.experiment.packets(), self.experiment.stacks
        packets = packets[packets["MSTATE"] <= TRAP]
        row = stacks.index(packets["FRINFO"])
        assert (row >= 0).all()
        whole = ~(stacks.truncated | stacks.failed)[row]
        return float(packets["NTICK"][whole].sum() / packets["NTICK"].sum())

    def check_rooted(self) -> None:
        """All stacks of a running thread reach the root, but those that the log counts as unread."""
        packets, stacks = self.experiment.packets(), self.experiment.stacks
        row = stacks.index(packets["FRINFO"])
        assert (row >= 0).all()
        assert self.rooted() > 0.9
        self.check_unread((packets["MSTATE"] <= TRAP) & (stacks.truncated | stacks.failed)[row])

    def frames_found(self) -> tuple[Any, Any]:
        """Whether the experiment knows the code (n,) of packets' leaves, and whether their stacks are cut (n,)."""
        stacks = self.experiment.stacks
        row = stacks.index(self.experiment.packets()["FRINFO"])
        start, size = np.array([(one.vaddr, one.size) for one in self.experiment.mappings], np.uint64).T
        above = stacks.pcs[stacks.offsets[row]][:, None] - start  # unsigned: what lies below is far above
        return (above < size).any(axis=1), stacks.truncated[row]

    def check_unread(self, unread: Any) -> None:
        """The stacks of ``unread`` packets, which could not be read, are those that the log counts.

        Of a wait that its ring had no room for, no stack may have been seen at the same place. Amid its exec a thread
        has the pc of the program before, which no code of this one has. The page of a stack that grows is brought in at
        its first use: until then there is nothing to copy.
        """
        stacks, packets = self.experiment.stacks, self.experiment.packets()[unread]
        assert (np.diff(stacks.offsets)[stacks.index(packets["FRINFO"])] == 1).all()
        # One may have several packets: a wait is told bit by bit, and followed by one for a CPU.
        assert len(np.unique(packets["FRINFO"])) <= n_unread(self.experiment)


def record(path: Path, interval: str, *command: object, user: int | None = None, **options: Any) -> Run:
    """Runs a workload under collect; the program's JSON is its truth."""
    become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"] if user else []
    result = subprocess.run([*become, COLLECT, "-p", interval, "-o", str(path), *map(str, command)],
                            capture_output=True, text=True, timeout=100, check=False, **options)
    assert result.returncode == 0, result.stderr
    return Run(path, json.loads(result.stdout) if result.stdout.startswith("{") else {}, result.stderr)


def record_once_drained(path: Path, interval: str, *command: object) -> Run:
    """The same of a program that begins its work behind a line of input, which comes when the first drain is over.

    Until then a ring holds what a thread does in less than a second of CPU time, and from there on copies of stacks are
    small: how much of the work that is depends on what else the machine has to do.
    """
    with living(path, "-p", interval, *command) as run:
        while not newest_ns(path):
            assert run.process.poll() is None
            time.sleep(0.02)
        run.tell()
        said, told = run.end()
    return Run(path, json.loads(said) if said.startswith("{") else {}, told)


@pytest.fixture(scope="module")
def splits() -> dict[tuple[str, str], tuple[Run, float]]:
    """What ``split`` has recorded, and for how long a hypervisor let others have our CPUs meanwhile."""
    return {}


@pytest.fixture
def split(splits: dict[tuple[str, str], tuple[Run, float]], workload: Callable[..., Path], is_repeated: bool,
          stolen: Callable[[], float], was_stolen: Callable[[float], None],
          tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Run]:
    """``split("-O0", "hi")``: the three threads that divide their time as 1:3:7, recorded once."""
    def run(variant: str, interval: str) -> Run:
        key = (variant, interval)
        if key not in splits or is_repeated:
            path, program = tmp_path_factory.mktemp("split") / "split.er", workload("split", *VARIANTS[variant])
            before_s = stolen()
            splits[key] = record(path, interval, program, SECONDS[interval]), stolen() - before_s
        else:
            was_stolen(splits[key][1])
        return splits[key][0]

    return run


def stray_s(n_stretches: int, interval: str, n_handed: float = 0) -> float:
    """How far the time of a function may be from the truth that a thread is in for so many stretches of its CPU time.

    The clock strikes evenly in that time, on each CPU for itself. So in each stretch on each CPU a function has less
    than a tick too much or too little, by chance: the variance is at most a quarter. Allowed are five deviations.
    Where one thread of a program follows another one on a CPU, the kernel hands the clock on to it as it is: it strikes
    evenly in the time of both together. So each of ``n_handed`` switches away from a thread in the function ends a
    stretch.
    """
    n_clocks = min(len(os.sched_getaffinity(0)), MOST_CLOCKS)
    return DEVIATIONS * math.sqrt((n_stretches * n_clocks + n_handed) / 4) * INTERVAL_S[interval]


def split_slack_s(run: Run, interval: str, spent_s: float, n_threads: int) -> float:
    """The same for a function of ``split`` in which ``n_threads`` spent that much CPU time, its end included.

    With a switch in each interval samples are as if they were drawn; farther from the truth than that they are not.
    """
    share = min(spent_s / run.cpu_s, 1)
    n_switches = run.truth["n_voluntary"] + run.truth["n_involuntary"]
    by_clocks_s = stray_s(n_threads * N_TURNS, interval, share * n_switches)
    by_chance_s = of_share(share, run.cpu_draws) * run.cpu_s
    return END_S + max(min(by_clocks_s, by_chance_s), 0.02 * run.cpu_s)


def shares(truth: dict[str, Any]) -> dict[str, float]:
    """The leaves' shares of the time of all threads, as the program measured them."""
    total = sum(thread["cpu_s"] for thread in truth["threads"])
    return {leaf: sum(thread[leaf] for thread in truth["threads"]) / total
            for leaf in ("leaf_one", "leaf_three", "leaf_seven")}


# --- one to three to seven ------------------------------------------------------------------------


@EACH
def test_the_split_is_that_of_the_program(
        split: Any, gprofng: Any, workload: Any, variant: str, interval: str) -> None:
    run = split(variant, interval)
    functions = gprofng("-functions", experiment=run.path).functions
    total = functions["<Total>"][1]
    if variant == "stripped":  # its addresses have names in the same program as it was before
        functions = by_address(gprofng("-pcs", experiment=run.path), workload("split", "-O2"))
    for leaf, share in shares(run.truth).items():
        slack = split_slack_s(run, interval, share * total, len(run.truth["threads"])) / total
        assert functions[leaf][1] / total == pytest.approx(share, abs=slack), leaf


def by_address(listing: Any, program: Path) -> dict[str, tuple[float, ...]]:
    """A listing of a stripped program's instructions, by the functions of its unstripped twin."""
    names = subprocess.run(["nm", program], capture_output=True, text=True, check=True).stdout
    symbols = sorted((int(at, 16), name) for at, name in re.findall(r"^(\w+) [tT] (\w+)$", names, re.MULTILINE))
    spent: dict[str, tuple[float, ...]] = {}
    for row, values in listing.rows:
        place = re.fullmatch(r"<static>@0x(\w+) \(<split.*>\) --  no functions found \+ 0x(\w+)", row)
        if place:
            pc = int(place[1], 16) + int(place[2], 16)
            name = symbols[bisect.bisect_right(symbols, (pc, "~")) - 1][1]
            spent[name] = tuple(a + b for a, b in zip(spent.get(name, (0.0, 0.0)), values, strict=True))
    return spent


@EACH
def test_totals_are_those_of_getrusage(split: Any, gprofng: Any, variant: str, interval: str) -> None:
    run = split(variant, interval)
    total = gprofng("-functions", experiment=run.path).functions["<Total>"][0]
    assert total == pytest.approx(run.cpu_s, rel=0.01)
    ticks = run.ticks_by_state()
    assert ticks.sum() * INTERVAL_S[interval] == pytest.approx(run.cpu_s, rel=0.01)


@EACH
def test_every_thread_has_its_own_time(split: Any, variant: str, interval: str) -> None:
    run = split(variant, interval)
    packets = run.experiment.packets()
    packets = packets[packets["MSTATE"] <= TRAP]
    assert list(run.experiment.threads) == [thread["tid"] for thread in run.truth["threads"]]
    for thread in run.truth["threads"]:
        ticks = packets["NTICK"][packets["THRID"] == thread["tid"]].sum()
        # One interval of rounding; before main and after its last look a thread uses a few milliseconds.
        assert ticks * INTERVAL_S[interval] == pytest.approx(thread["cpu_s"], abs=INTERVAL_S[interval] + 0.01)


@EACH
def test_the_call_tree_has_every_function_on_the_path(
        split: Any, gprofng: Any, variant: str, interval: str) -> None:
    run = split(variant, interval)
    tree = gprofng("-calltree", experiment=run.path).tree
    total = tree[("<Total>",)][0]
    attributed = {tuple(map(without_places, path[1:])): seconds[0] for path, seconds in tree.items()}
    for number in ("one", "three", "seven"):
        for above, threads in PATHS[variant]:
            path, mine = (*above, "run", f"stage_{number}", f"leaf_{number}"), run.truth["threads"][threads]
            worked_s = sum(thread[f"leaf_{number}"] for thread in mine)
            if variant == "stripped":
                path = tuple(name if name in KEPT else "?split" for name in path)
                worked_s = sum(thread["cpu_s"] for thread in mine)
            slack_s = split_slack_s(run, interval, worked_s, len(mine))
            assert attributed[path] == pytest.approx(worked_s, abs=slack_s), path
    elsewhere = sum(seconds for path, seconds in attributed.items()
                    if len(path) == 1 and path not in {above[:1] for above, _ in PATHS[variant]}
                    and path not in {("?split",)})
    assert elsewhere <= 0.01 * total


LIBC = "?libc.so.6"
KEPT = {LIBC, "__libc_start_main"}  # what a stripped program's tree still has names for
MAIN, OTHERS = slice(0, 1), slice(1, 3)  # of the threads of ``split``
_DYNAMIC = ((("_start", "__libc_start_main", LIBC, "main"), MAIN), ((LIBC, LIBC, "thread_main"), OTHERS))
# From the root to what all threads share, and which threads come that way. Debian's libc has the names of exported
# functions only: __libc_start_call_main, start_thread and clone3 are not among them.
PATHS: dict[str, tuple[tuple[tuple[str, ...], slice], ...]] = dict.fromkeys(VARIANTS, _DYNAMIC) | {
    "static": ((("_start", "__libc_start_main", "__libc_start_call_main", "main"), MAIN),
               (("clone3", "start_thread", "thread_main"), OTHERS))}


def without_places(name: str) -> str:
    """A hole's name says where it begins, which differs between builds: ``?`` and the object instead."""
    hole = HOLE.fullmatch(name)
    return "?" + re.sub("^split.*", "split", hole[1]) if hole else name


@EACH
def test_nothing_is_wrong_with_the_experiment(split: Any, gprofng: Any, variant: str, interval: str) -> None:
    run = split(variant, interval)
    header = gprofng("-header", experiment=run.path).text
    # Who others take the CPU from all the time has not a stack for each wait, which is told.
    warnings = [message.text for message in run.experiment.log.messages if message.kind == "cwarn"]
    assert all(re.fullmatch(PREEMPTED, text) for text in warnings), warnings
    assert "\nNo errors\n" + ("*** " if warnings else "No warnings\nInitial execution directory") in header
    assert "was not closed" not in header
    assert f"Clock-profiling, interval = {round(INTERVAL_S[interval] * 1e6)} microsecs." in header
    if variant != "32-bit":
        assert f"Target command (64-bit): '{os.fsdecode(run.experiment.log.arguments)}'" in header
    functions = gprofng("-functions", experiment=run.path).functions
    assert not {"<Stack-unwind-failed>", "<no Java callstack recorded>"} & functions.keys()
    has_code, is_cut = run.frames_found()
    assert (~has_code).any() == ("<Unknown>" in functions)
    run.check_unread(is_cut | ~has_code)
    said = re.fullmatch(rf"collect: {re.escape(str(run.path))}: [\d.]+ s, [\d.]+ s CPU, 3 threads, \d+ samples?, "
                        r"(.*)\n", run.said)
    assert said, run.said
    assert all(text in said[1] for text in warnings) if warnings else said[1] == "nothing lost"


# --- user, system and trap ------------------------------------------------------------------------


N_USERSYS_TURNS = 47


@pytest.mark.parametrize("percent", [17, 97])
def test_user_and_system_time_are_told_apart(workload: Any, tmp_path: Path, gprofng: Any, percent: int) -> None:
    run = record(tmp_path / "us.er", "hi", workload("usersys"), 1.3, percent)
    user, system, trap = run.ticks_by_state() / run.ticks_by_state().sum()
    truth = run.truth["in_user"] / (run.truth["in_user"] + run.truth["in_system"])
    # Interrupts come while it is in either, as many as the machine has: they are traps, in the function that they hit.
    assert truth - trap - 0.03 <= user <= truth + 0.03
    if os.geteuid() == 0:
        assert 1 - truth - trap - 0.03 <= system <= 1 - truth + 0.03
    listing = gprofng("-metrics", "e.user:e.system:e.trap:name", "-functions", experiment=run.path)
    by_function, slack_s = listing.functions, 0.01 * run.cpu_s + stray_s(N_USERSYS_TURNS, "hi")
    with_callees = gprofng("-functions", experiment=run.path).functions
    for name in ("in_user", "in_system"):
        assert with_callees[name][1] == pytest.approx(run.truth[name], abs=slack_s)
    assert by_function["in_user"][1] <= 0.02 * run.cpu_s
    # The rest are looks at the clock, and the way into the kernel and back.
    for name, state, caller in (("in_user", 0, "in_user"), ("read", 1, "in_system")):
        spent_s = by_function[name][state] + by_function[name][TRAP]
        assert 0.92 * run.truth[caller] - slack_s <= spent_s <= run.truth[caller] + slack_s


# --- odd stacks -----------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", ["-O2", "-O0", "32-bit"])
def test_a_deep_recursion_is_a_deep_tree(workload: Any, tmp_path: Path, gprofng: Any, variant: str) -> None:
    run = record_once_drained(tmp_path / "deep.er", "hi", workload("recurse", *VARIANTS[variant]), 307, 1.1, "told")
    run.check_rooted()
    stacks, packets = run.experiment.stacks, run.experiment.packets()
    row = stacks.index(packets["FRINFO"][packets["MSTATE"] <= TRAP])
    depths = np.diff(stacks.offsets)[row]
    # _start, __libc_start_main, its helper, main, run, bottom; clock_gettime(2) and its like above bottom
    assert np.median(depths) == 307 + 6
    functions = gprofng("-functions", experiment=run.path).functions
    # Nothing else has more than what the program used outside of it, and than the clock is off at its two ends.
    bottom_s, others_s = functions["bottom"][1], run.cpu_s - run.truth["bottom"] + END_S + stray_s(1, "hi")
    assert bottom_s == pytest.approx(run.truth["bottom"], abs=others_s)
    # Where the stack grew; as gprofng prints it, as the difference of two figures.
    unread_s = n_unread(run.experiment) * INTERVAL_S["hi"] + 2 * ROUNDED_S
    assert bottom_s <= functions["recurse"][1] + unread_s <= functions["run"][1] + 2 * unread_s
    assert functions["run"][1] <= bottom_s + others_s


def test_a_stack_deeper_than_its_copy_is_cut_and_says_so(workload: Any, tmp_path: Path, gprofng: Any) -> None:
    run = record(tmp_path / "deep.er", "hi", workload("recurse"), 10_007, 0.2)
    assert run.truth["stack_bytes"] > 65_536
    functions = gprofng("-functions", experiment=run.path).functions
    assert functions["<Truncated-stack>"][1] >= functions["bottom"][1] > 0
    # What it did on its way down, and before.
    assert run.rooted() * functions["<Total>"][1] <= run.cpu_s - run.truth["bottom"] + END_S + stray_s(1, "hi")
    assert "stacks do not reach the root" in run.said
    assert "stacks do not reach the root" in gprofng("-header", experiment=run.path).text


def test_a_deep_but_copied_stack_reaches_the_root(workload: Any, tmp_path: Path) -> None:
    run = record(tmp_path / "deep.er", "on", workload("recurse"), 1009, 0.4)
    assert 8192 < run.truth["stack_bytes"] < 32_000
    run.check_rooted()


@pytest.mark.parametrize("variant", ["-O2", "-O0", "static"])
def test_a_signal_handler_stands_above_what_it_interrupted(
        workload: Any, tmp_path: Path, gprofng: Any, variant: str) -> None:
    run = record(tmp_path / "signal.er", "hi", workload("sigframe", *VARIANTS[variant]), 0.4)
    run.check_rooted()
    (path, seconds), = paths_to("handler_work", gprofng("-calltree", experiment=run.path))
    assert path[-6:-3] == ("main", "outer", "inner")  # then the frame that the kernel made, then the handler
    assert path[-2] == "on_signal"
    assert path[1] == "_start"
    assert seconds == pytest.approx(run.truth["handler_work"], rel=0.05)
    inner = gprofng("-functions", experiment=run.path).functions["inner"]
    assert inner[1] == pytest.approx(run.truth["handler_work"] + run.truth["inner"], rel=0.05)


def test_a_handler_on_a_stack_of_its_own_is_known_down_to_what_it_interrupted(
        workload: Any, tmp_path: Path, gprofng: Any) -> None:
    """The kernel copies the handler's stack; the other one is not in the copy, and that is said."""
    run = record(tmp_path / "signal.er", "hi", workload("sigframe"), 0.4, "alt")
    (path, seconds), = paths_to("handler_work", gprofng("-calltree", experiment=run.path))
    assert path[:3] == ("<Total>", "<Truncated-stack>", "inner")
    assert path[4:] == ("on_signal", "handler_work")
    assert seconds == pytest.approx(run.truth["handler_work"], rel=0.05)
    assert "stacks do not reach the root" in run.said
    (path, seconds), = [(path, seconds) for path, seconds in paths_to("inner", gprofng(
        "-calltree", experiment=run.path)) if path[1] == "_start"]
    assert seconds == pytest.approx(run.truth["inner"], rel=0.05)


def paths_to(function: str, listing: Any) -> list[tuple[tuple[str, ...], float]]:
    """The paths of a call tree that end at a function and have CPU time, and that time."""
    return [(path, values[0]) for path, values in listing.tree.items() if path[-1] == function and values[0] > 0]


# --- code that comes and goes ---------------------------------------------------------------------


@pytest.mark.parametrize(("interval", "n_threads"), [("on", 503), ("hi", 211)])
def test_threads_shorter_than_the_interval_have_their_time(
        workload: Any, tmp_path: Path, gprofng: Any, stolen: Callable[[], float], interval: str,
        n_threads: int) -> None:
    run = record(tmp_path / "pool.er", interval, workload("pool"), n_threads, 3)
    functions = gprofng("-functions", experiment=run.path).functions
    # What is pooled at the end is less than an interval in each state. Of a thread that is gone before anybody could
    # ask, nothing tells how long a hypervisor had its CPU.
    slack_s = max(0.02 * run.cpu_s, 2 * INTERVAL_S[interval]) + stolen()
    assert functions["<Total>"][0] == pytest.approx(run.cpu_s, abs=slack_s)
    # The short ones do little else. Where they do is told by few samples, but all of them are their own.
    packets = run.experiment.packets()
    packets = packets[packets["MSTATE"] <= TRAP]
    theirs = packets["NTICK"][packets["THRID"] != run.truth["pid"]]
    their_s, all_s = theirs.sum() * INTERVAL_S[interval], packets["NTICK"].sum() * INTERVAL_S[interval]
    share, n = run.truth["burst"] / (run.cpu_s + END_S - (all_s - their_s)), n_draws(theirs)
    assert functions["burst"][1] / their_s >= share - of_share(min(share, 1 - 1 / n), n)
    assert f"{n_threads + 1} threads" in run.said


def test_libraries_at_the_same_address_are_told_apart_by_time(
        workload: Any, tmp_path: Path, gprofng: Any) -> None:
    source = Path(__file__).parent.parent / "workloads" / "plugin.c"
    libraries = {name: tmp_path / f"lib{name}.so" for name in ("first", "second")}
    for name, library in libraries.items():
        subprocess.run(["gcc", "-O2", "-g", "-shared", "-fPIC", "-pthread", f"-DWORK={name}", source, "-o", library],
                       check=True)
    run = record(tmp_path / "plugins.er", "hi", workload("plugins"), 0.88, N_TURNS, libraries["first"], "first", 1,
                 libraries["second"], "second", 3)
    assert run.truth["addresses"] == 1
    functions = gprofng("-functions", experiment=run.path).functions
    for name in libraries:
        # The map's times are exact; a sample at the moment of the change may fall on either side.
        assert functions[f"leaf_{name}"][1] == pytest.approx(run.truth[name], rel=0.01, abs=stray_s(N_TURNS, "hi"))
    paths = paths_to("leaf_second", gprofng("-calltree", experiment=run.path))
    assert {path[-2] for path, _ in paths} == {"second"}
    # The loader calls _init of each, which no rule tells how to unwind; it is an instant, but may be met.
    assert run.rooted() >= 0.99


def test_code_made_executable_later_is_a_function_without_a_file(
        workload: Any, tmp_path: Path, gprofng: Any) -> None:
    run = record(tmp_path / "jit.er", "hi", workload("jit"), 0.4)
    functions = gprofng("-functions", experiment=run.path).functions
    # What the program's process did before its exec is counted by getrusage alone.
    assert run.truth["jit"] - PRINTED_S["hi"] <= functions["<Total>"][0] <= run.cpu_s + PRINTED_S["hi"] + END_S
    # After each 30 us it asks for the time, by a system call.
    inside_s = functions["[anonymous code]"][1] + functions.get("clock_gettime", (0.0, 0.0))[1]
    assert inside_s == pytest.approx(run.truth["jit"], rel=0.02)
    assert functions["[anonymous code]"][0] > 0.9 * inside_s
    (path, path_s), *others = sorted(paths_to("[anonymous code]", gprofng("-calltree", experiment=run.path)),
                                     key=lambda found: -found[1])
    assert (path[1], path[-3:]) == ("_start", ("main", "run", "[anonymous code]"))
    # Where it has no frame yet, or none any more, nothing tells who called it: an instant, but it may be met.
    assert {path[1] for path, _ in others} <= {"<Stack-unwind-failed>"}
    assert sum(other_s for _, other_s in others) < 0.01 * path_s
    run.check_unread(~run.frames_found()[0])
    assert run.rooted() >= 0.99


def test_a_program_that_execs_itself_is_whole(workload: Any, tmp_path: Path, gprofng: Any) -> None:
    run = record(tmp_path / "reexec.er", "hi", workload("reexec"), 0.3)
    functions = gprofng("-functions", experiment=run.path).functions
    worked_s = run.truth["before"] + run.truth["after"]
    assert worked_s - PRINTED_S["hi"] <= functions["<Total>"][0] <= run.cpu_s + PRINTED_S["hi"] + END_S
    assert functions["before"][1] == pytest.approx(run.truth["before"], rel=0.03)
    assert functions["after"][1] == pytest.approx(run.truth["after"], rel=0.03)
    for name in ("before", "after"):
        ((path, _),) = paths_to(name, gprofng("-calltree", experiment=run.path))
        assert (path[1], path[-2]) == ("_start", "main")


# --- programs that nobody here wrote --------------------------------------------------------------

SQL = """
create table t(a integer primary key, b text, c real);
with recursive n(i) as (select 1 union all select i + 1 from n where i < 400000)
  insert into t select i, 'row ' || (i * 7919 % 100003), i * 0.37 from n;
create index tb on t(b);
select count(*), sum(c) from t where b like '%77%';
select b, count(*) k from t group by b order by k desc, b limit 3;
"""
PYTHON = """
import collections, json, re, zlib
text = ' '.join(str(i * 7919 % 100003) for i in range(150000))
for _ in range(2):
    counts = collections.Counter(re.findall(r'\\w+', text))
    assert json.loads(json.dumps(counts)) == counts
    zlib.compress(text.encode())
    sorted(counts, key=lambda word: (len(word), word))
"""


def xz(directory: Path) -> list[object]:
    """Compressing this Python's own library in two threads."""
    libraries = sorted(Path("/usr/lib/x86_64-linux-gnu").glob("*.so.*"))
    with open(directory / "input", "wb") as file:
        for library in libraries:
            if file.tell() < 4_000_000:
                file.write(library.read_bytes()[:3_000_000])
    return ["xz", "-T2", "-3", "--block-size=1MiB", "-k", directory / "input"]


def sqlite3(directory: Path) -> list[object]:
    """A table filled, indexed and asked."""
    (directory / "commands.sql").write_text(SQL)
    return ["sqlite3", "-init", directory / "commands.sql", ":memory:", ".quit"]


def python3(directory: Path) -> list[object]:
    """The distribution's own interpreter, with modules in C."""
    (directory / "script.py").write_text(PYTHON)
    return ["/usr/bin/python3", directory / "script.py"]


@pytest.mark.parametrize("program", [xz, sqlite3, python3], ids=lambda program: program.__name__)
def test_real_programs_have_stacks_that_reach_the_root(
        need: Any, tmp_path: Path, gprofng: Any, program: Callable[[Path], list[object]]) -> None:
    need("xz", "xz-utils")
    need("sqlite3", "sqlite3")
    need("/usr/bin/python3", "python3-minimal")
    shell = record_once_drained(tmp_path / "real.er", "hi", "/bin/sh", "-c",
                                'read go; exec "$@" </dev/null >/dev/null', "sh", *program(tmp_path))
    run = Run(shell.path / "_x1.er", {}, shell.said)
    n_ticks, n_cut = run.ticks_by_state().sum(), n_unread(shell.experiment)
    assert n_ticks > 150
    assert run.rooted() >= 0.98 - n_cut / n_ticks
    functions = gprofng("-functions", experiment=run.path).functions
    assert functions.get("<Unknown>", (0.0,))[0] <= 0.02 * functions["<Total>"][0] + n_cut * INTERVAL_S["hi"]


# --- while it runs --------------------------------------------------------------------------------


def test_gprofng_reads_it_while_it_grows(workload: Any, need: Any, tmp_path: Path) -> None:
    """The program works until three different totals have been seen."""
    reader, path = need("gprofng", "binutils"), tmp_path / "live.er"
    command = [COLLECT, "-p", "hi", "-o", str(path), str(workload("enduring"))]
    totals: list[float] = []
    complaints, deadline = [], time.monotonic() + 60
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True) as target:
        while not (path / "log.xml").exists() or not (path / "profile").exists():
            assert target.poll() is None
            time.sleep(0.01)
        while len({total for total in totals if total}) < 3:
            assert target.poll() is None
            assert time.monotonic() < deadline, totals
            seen = subprocess.run([reader, "display", "text", "-functions", str(path)], capture_output=True,
                                  text=True, check=False, timeout=30)
            complaints += [seen.stderr] if seen.stderr or seen.returncode else []
            total = re.search(r"([\d.]+)\s+100\.00\s.*<Total>", seen.stdout)
            totals.append(float(total[1]) if total else 0.0)
            time.sleep(0.1)
        out, _ = target.communicate(timeout=30)
    assert target.returncode == ENDURING_STATUS
    assert complaints == []
    assert totals == sorted(totals)
    truth = json.loads(out.splitlines()[-1])
    assert totals[-1] <= truth["user_s"] + truth["system_s"] + INTERVAL_S["hi"]


# --- as an ordinary user --------------------------------------------------------------------------


@pytest.fixture
def open_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory that an ordinary user may enter and write to, programs included; pytest's own are private."""
    directory = Path("/tmp") / f"collect-test-{os.getpid()}"
    directory.mkdir(mode=0o777)
    directory.chmod(0o777)
    yield directory
    shutil.rmtree(directory)


def _may_run_python(user: int) -> bool:
    command = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", sys.executable, "-c", "import numpy"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.usefixtures("root")
@BOTH
def test_an_ordinary_user_records_too(workload: Any, open_directory: Path, gprofng: Any, interval: str,
                                      stolen: Callable[[], float]) -> None:
    paranoid = int(Path("/proc/sys/kernel/perf_event_paranoid").read_text())
    if paranoid > 2 or not _may_run_python(NOBODY):
        pytest.skip(f"an ordinary user may not: perf_event_paranoid {paranoid}, or this Python is private")
    program = open_directory / "split"
    shutil.copy(workload("split"), program)
    run = record(open_directory / "user.er", interval, program, 3.3, user=NOBODY, cwd=open_directory)
    # Its rings are small: of 1,000 stacks a second they hold some 30 ms. The clock struck every interval of CPU time:
    # what is not there is told, and the next sample stands for it.
    lost = re.search(r"(\d+) clock records? lost", run.said)
    n_samples, n_lost = int(re.findall(r"(\d+) samples?", run.said)[0]), int(lost[1]) if lost else 0
    assert n_samples + n_lost > 0.9 * (run.cpu_s - stolen()) / INTERVAL_S[interval]
    functions = gprofng("-functions", experiment=run.path).functions
    total = functions["<Total>"][0]
    assert total == pytest.approx(run.cpu_s, rel=0.01)
    for leaf, share in shares(run.truth).items():
        slack = (of_share(share, run.cpu_draws) if lost else
                 split_slack_s(run, interval, share * total, len(run.truth["threads"])) / total)
        assert functions[leaf][1] / total == pytest.approx(share, abs=slack), leaf
    run.check_rooted()
    assert {file.stat().st_uid for file in run.path.rglob("*")} == {NOBODY}


# Naps on the first CPU, for which it waits behind each, until that has been enough: who is of this policy takes it from
# nobody. Behind its last look at that it ends, for which it may have to wait no longer than that takes.
NAPS = """
import json, os, time
def delay_s(): return int(open("/proc/self/schedstat").read().split()[1]) * 1e-9
first_s = last_s = delay_s()
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
while last_s - first_s < 0.1:
    time.sleep(0.005)
    at_s = time.monotonic()
    last_s = delay_s()
os.write(1, json.dumps({"first_s": first_s, "last_s": last_s, "at_s": at_s}).encode())
os._exit(0)
"""
SPINS = "import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])\nwhile True: pass"


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize("descendants", ["on", "off"])
def test_waits_for_a_cpu_are_known_at_the_end_though_no_wake_up_tells(descendants: str, open_directory: Path) -> None:
    """An ordinary user sees no wake-ups, and the program is over before its account is due."""
    if not _may_run_python(NOBODY):
        pytest.skip("this Python is private")
    with subprocess.Popen([sys.executable, "-c", SPINS]) as spinner:
        try:
            run = record(open_directory / "naps.er", "on", "-F", descendants, sys.executable, "-c", NAPS, user=NOBODY,
                         cwd=open_directory)
        finally:
            spinner.kill()
    packets = run.experiment.packets()
    waited_s = packets["NTICK"][packets["MSTATE"] == WAIT].sum() * INTERVAL_S["on"]
    first_s, last_s = run.truth["first_s"], run.truth["last_s"]  # what it had waited at first may be of before its exec
    ended_s = run.experiment.end_ns * 1e-9 - run.truth["at_s"]  # after that look
    assert last_s - first_s - 2 * INTERVAL_S["on"] <= waited_s <= last_s + ended_s + 2 * INTERVAL_S["on"]
