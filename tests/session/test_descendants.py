"""Descendants: names, lineage events, whose work is where; what is chosen with -F; ends; MPI ranks."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sampling_error import n_draws, of_share

from collector.experiment.reader import Experiment, open_experiment

Run = Callable[..., Any]
MILLISECONDS = 61
INTERVAL_ON_S, INTERVAL_HIGH_S = 10.007e-3, 0.997e-3
N_CPU_STATES = 3
SHOWN_S = 1e-3  # by gprofng, at least
START_AND_END_S = 0.007  # at most, that a process uses without saying so: to start, to make others and to end
RANKS = 4

# What ``forks`` does, as lineage: role whose work is found there (None: a shell, or the moment before an exec).
FAMILY: dict[str, str | None] = {
    "": "founder",
    **{f"_f{n}": "fork" for n in range(1, 24)},
    "_f3_x1": "third",
    "_f3_x1_c1": "spawned",
    "_f3_x1_c2": None,
    "_f3_x1_c2_f1": None,
    "_f3_x1_c2_f1_x1": "in_system",
    "_f3_x1_c3": None,
    "_f3_x1_c3_f1": None,
    "_f3_x1_c3_f1_x1": "in_popen",
    "_f3_x1_f1": None,
    "_f3_x1_f1_x1": "vforked",
    "_f3_x1_C1": "clone_sigchld",
    "_f3_x1_C2": "clone_silent",
    "_f3_x1_f2": "daemon_parent",
    "_f3_x1_f2_f1": "daemon",
    "_f3_x1_x1": "last",
}
# The calls that the logs name, where it is not fork.
CALLS = {"_f3_x1": "execve", "_f3_x1_c1": "posix_spawn", "_f3_x1_c2": "system", "_f3_x1_c2_f1": "vfork",
         "_f3_x1_c2_f1_x1": "execve", "_f3_x1_c3": "popen", "_f3_x1_c3_f1": "vfork", "_f3_x1_c3_f1_x1": "execve",
         "_f3_x1_f1": "vfork", "_f3_x1_f1_x1": "execve", "_f3_x1_C1": "clone", "_f3_x1_C2": "clone",
         "_f3_x1_x1": "execve"}

Family = tuple[Path, list[dict[str, Any]]]

pytestmark = pytest.mark.usefixtures("perf_allowed")


@pytest.fixture(scope="module")
def needs_root() -> None:
    """Telling clone from fork takes a tracepoint, which ordinary users do not see."""
    if os.geteuid() != 0:
        if os.environ.get("CI"):
            pytest.fail("under CI nothing is skipped: root is needed", pytrace=False)
        pytest.skip("only root sees how processes are made")


@pytest.fixture(scope="module")
def families() -> dict[str, tuple[Family, float]]:
    """What ``family`` has recorded, by engine, and for how long a hypervisor let others have our CPUs meanwhile."""
    return {}


@pytest.fixture(params=["perf", "signal"])
def family(request: pytest.FixtureRequest, families: dict[str, tuple[Family, float]], needs_root: None, workload: Run,
           collect: Run, is_repeated: bool, stolen: Callable[[], float], was_stolen: Callable[[float], None],
           tmp_path_factory: pytest.TempPathFactory) -> Family:
    """The recorded family of ``forks``, and what its members said of themselves; recorded once."""
    if request.param not in families or is_repeated:
        path, before_s = tmp_path_factory.mktemp("family") / "family.er", stolen()
        result = collect("--engine", request.param, "-p", "hi", "-o", path, workload("forks"), str(MILLISECONDS))
        assert result.returncode == 0, result.stderr
        said = [json.loads(line) for line in result.stdout.splitlines()]
        families[request.param] = (path, said), stolen() - before_s
    else:
        was_stolen(families[request.param][1])
    return families[request.param][0]


def all_of(path: Path) -> dict[str, Experiment]:
    """The founder and its descendants by lineage."""
    founder = open_experiment(path)
    assert not founder.problems
    return {"": founder, **{child.lineage: child for child in founder.children}}


@pytest.mark.kernel_times
def test_every_descendant_has_its_directory_and_nothing_else_is_there(family: tuple[Path, Any]) -> None:
    path, _ = family
    directories = {entry.name for entry in path.iterdir() if entry.is_dir()}
    assert directories == {"archives"} | {f"{lineage}.er" for lineage in FAMILY if lineage}
    assert not [entry for entry in path.glob("_*.er/*") if entry.is_dir()]


@pytest.mark.kernel_times
def test_the_logs_of_the_parents_tell_the_lineage(family: tuple[Path, Any]) -> None:
    told: dict[str, str] = {}
    for parent, experiment in all_of(family[0]).items():
        for event in experiment.log.events:
            if event.kind in ("desc_started", "exec_start"):
                lineage = event.attributes["lineage"]
                told[lineage] = event.attributes["variant"]
                assert lineage.rpartition("_")[0] == parent
    assert told == {lineage: CALLS.get(lineage, "fork") for lineage in FAMILY if lineage}


@pytest.mark.kernel_times
def test_pids_are_those_of_the_processes(family: tuple[Path, list[dict[str, Any]]]) -> None:
    path, said = family
    experiments = all_of(path)
    pid_of = {(entry["role"], entry["number"]): entry["pid"] for entry in said}
    for lineage, role in FAMILY.items():
        number = int(lineage[2:]) if role == "fork" else 0
        if role is not None:
            assert experiments[lineage].log.pid == pid_of[role, number], lineage


def cpu_ticks(*experiments: Experiment) -> Any:
    """Ticks (n,) of the packets of running threads."""
    packets = np.concatenate([experiment.packets() for experiment in experiments])
    return packets["NTICK"][packets["MSTATE"] < N_CPU_STATES]


@pytest.mark.kernel_times
def test_each_experiment_opens_and_holds_its_own_process_s_work(family: tuple[Path, list[dict[str, Any]]],
                                                                gprofng: Run) -> None:
    path, said = family
    work_s = {(entry["role"], entry["number"]): entry["work_s"] for entry in said}
    experiments = all_of(path)
    for lineage, role in FAMILY.items():
        directory = path / f"{lineage}.er" if lineage else path
        # Opened by itself, the founder brings all its descendants along.
        functions = gprofng("-functions", experiment=directory).functions
        worked = {name for name in functions if name.startswith("work_")}
        if not lineage:
            assert worked == {f"work_{role}" for role in FAMILY.values() if role}
        elif role is None:
            assert worked == set(), lineage
        else:
            assert worked == {f"work_{role}"}, lineage
            spent = functions[f"work_{role}"][0]
            number = int(lineage[2:]) if role == "fork" else 0
            # All at a stretch: only what the samples at its two ends stand for may be its neighbours'. A tracer that
            # has no CPU takes one that stands for more.
            late_s = (int(cpu_ticks(experiments[lineage]).max()) - 1) * INTERVAL_HIGH_S
            assert spent == pytest.approx(work_s[role, number], abs=0.01 + late_s), lineage


@pytest.mark.kernel_times
def test_the_founder_s_total_is_that_of_all_processes(family: tuple[Path, list[dict[str, Any]]], gprofng: Run) -> None:
    path, said = family
    total = gprofng("-functions", experiment=path).functions["<Total>"][0]
    experiments = all_of(path)
    assert total == pytest.approx(cpu_ticks(*experiments.values()).sum() * INTERVAL_HIGH_S, abs=SHOWN_S)
    # A process's CPU clock runs on through an exec: what it says last is of all its images, but for its end. Of shells
    # nobody says anything.
    used_s: dict[int, float] = {}
    for entry in said:
        used_s[entry["pid"]] = max(entry["cpu_s"], used_s.get(entry["pid"], 0.0))
    n_processes = len({experiment.log.pid for experiment in experiments.values()})
    rounding_s = N_CPU_STATES * INTERVAL_HIGH_S
    assert total > sum(entry["work_s"] for entry in said) - rounding_s
    assert total < sum(used_s.values()) + n_processes * START_AND_END_S + rounding_s


@pytest.mark.kernel_times
def test_objects_are_archived_once_and_in_the_founder(family: tuple[Path, Any]) -> None:
    copies = sorted(path.name for path in (family[0] / "archives").iterdir())
    stems = [re.sub(r"_[0-9a-zA-Z_-]{11}\Z", "", name) for name in copies]
    assert sorted(set(stems)) == stems
    assert {"libc.so.6", "dash"} < set(stems)


@pytest.mark.kernel_times
def test_headers_are_clean(family: tuple[Path, Any], gprofng: Run) -> None:
    header = gprofng("-header", experiment=family[0]).text
    assert "was not closed" not in header
    assert "exp _f3.er" in header
    assert "exp _f23.er" in header


def of_shells(lineage: str) -> bool:
    """What shells fork for their commands, which a tracer may meet too late to tell it from a spawn."""
    return re.match(r"_f3_x1_c[23]_", lineage) is not None


def test_without_perf_an_ordinary_user_sees_the_same_family(refused: Run, public_directory: Path) -> None:
    result = refused(errno.EPERM, "forks", 7)
    assert result.returncode == 0, result.stderr
    found = set(all_of(public_directory / "test.1.er"))
    assert {lineage for lineage in found if not of_shells(lineage)} == {
        lineage for lineage in FAMILY if not of_shells(lineage)}
    assert len(set(FAMILY)) - 2 <= len(found) <= len(set(FAMILY))


@pytest.mark.parametrize(("choice", "expected"), [
    ("off", set()),
    ("=^_f2$", {"_f2"}),
    ("=^_f3_x1_c", {lineage for lineage in FAMILY if lineage.startswith("_f3_x1_c")}),
    ("=^(dash|sh)$", {"_f3_x1_c2", "_f3_x1_c2_f1", "_f3_x1_c3", "_f3_x1_c3_f1"}),
    ("=no such program", set()),
])
def test_only_what_is_chosen_is_recorded(needs_root: None, choice: str, expected: set[str], workload: Run, collect: Run,
                                         gprofng: Run, tmp_path: Path) -> None:
    path = tmp_path / "some.er"
    result = collect("-F", choice, "-p", "hi", "-o", path, workload("forks"), "7")
    assert result.returncode == 0, result.stderr
    assert {child.lineage for child in open_experiment(path).children} == expected
    assert "work_founder" in gprofng("-functions", experiment=path).functions


def test_with_follow_off_the_founder_stays_one_experiment_through_an_exec(collect: Run, gprofng: Run,
                                                                          workload: Run, tmp_path: Path) -> None:
    path = tmp_path / "off.er"
    result = collect("-F", "off", "-p", "hi", "-o", path, "/bin/sh", "-c", f"exec {workload('busy')} 1 1009")
    assert result.returncode == 0, result.stderr
    assert not open_experiment(path).children
    assert gprofng("-functions", experiment=path).functions["<Total>"][0] > 0.1


def test_a_founder_that_execs_goes_on_in_x1(collect: Run, gprofng: Run, workload: Run, tmp_path: Path) -> None:
    path = tmp_path / "exec.er"
    result = collect("-p", "hi", "-o", path, "/bin/sh", "-c", f"exec {workload('busy')} 1 1009")
    assert result.returncode == 0, result.stderr
    experiments = all_of(path)
    assert set(experiments) == {"", "_x1"}
    assert experiments["_x1"].log.pid == experiments[""].log.pid
    assert experiments["_x1"].log.complete
    assert experiments[""].log.complete
    assert b"busy" in experiments["_x1"].log.arguments


DEPTH = 120
# A shell that becomes the next one, or starts it and waits for it; the last one works for a moment.
WORK = "i=0; while [ $i -lt 20011 ]; do i=$((i + 1)); done"
CHAINS = {"exec": (f'[ "$1" -gt 1 ] && exec sh "$0" $(($1 - 1)); {WORK}', 119),
          "fork": (f'if [ "$1" -gt 1 ]; then sh "$0" $(($1 - 1)); else {WORK}; fi; exit 7', 238)}


@pytest.mark.parametrize("engine", ["perf", "signal"])
@pytest.mark.parametrize("chain", CHAINS)
def test_a_lineage_too_long_for_a_name_is_recorded_to_its_end(chain: str, engine: str, collect: Run, gprofng: Run,
                                                              er_print: Run, tmp_path: Path) -> None:
    path, script = tmp_path / "deep.er", tmp_path / "script"
    text, n_descendants = CHAINS[chain]
    script.write_text(text)
    result = collect("--engine", engine, "-p", "hi", "-A", "off", "-o", path, "sh", script, DEPTH)
    assert f"{n_descendants} descendants" in result.stderr
    assert "not recorded" not in result.stderr
    children = open_experiment(path).children
    assert len(children) == n_descendants
    assert all(child.log.complete for child in children)
    last = children[-1]
    assert re.search(rf"_z{n_descendants}_[a-p]{{16}}_x1\Z", last.lineage)
    steps = {"exec": "_x1" * DEPTH, "fork": "_f1_x1" * DEPTH}[chain][:len("_f1" * n_descendants)]
    assert f"lineage {steps}" in [message.text for message in last.log.messages]
    for print_list in (gprofng, er_print):
        printed = print_list("-experiment_list", experiment=path) if print_list is gprofng else er_print(
            "-experiment_list", path)
        lines = (printed.text if print_list is gprofng else printed.stdout).splitlines()
        assert lines[-1].split()[-1] == str(last.path)
        assert sum(".er" in line for line in lines) == n_descendants + 1
    assert gprofng("-functions", experiment=last.path).functions["<Total>"][0] > 0.01


def test_descendants_that_outlive_the_founder_are_closed_and_say_so(collect: Run, tmp_path: Path) -> None:
    path = tmp_path / "early.er"
    until_it_sleeps = "until read name </proc/$!/comm && [ $name = sleep ]; do :; done"
    result = collect("-o", path, "/bin/sh", "-c", f"sleep 61 >/dev/null 2>&1 & {until_it_sleeps}")
    assert result.returncode == 0, result.stderr
    experiments = all_of(path)
    child = experiments["_f1_x1"]
    os.kill(child.log.pid, signal.SIGKILL)  # which nobody has waited for
    assert child.log.complete
    assert "still running" in " ".join(message.text for message in child.log.messages)


def test_wait_descendants_waits(collect: Run, gprofng: Run, tmp_path: Path) -> None:
    path = tmp_path / "late.er"
    result = collect("--wait-descendants", "-o", path, "/bin/sh", "-c", "sleep 1.3 >/dev/null 2>&1 & :")
    assert result.returncode == 0, result.stderr
    child = open_experiment(path / "_f1_x1.er")
    sleep, wait = (gprofng("-metrics", f"e.{state}:name", "-functions", experiment=child.path).functions["<Total>"][0]
                   for state in ("sleep", "wait"))
    # Its timer may come late, and it has a CPU when there is one. Where no wake-up tells, the kernel's account does,
    # which takes the rest of a sleep for a wait if it moves who has just gone to sleep. Each is rounded for itself.
    assert sleep + wait >= 1.3 - 2 * INTERVAL_ON_S
    assert sleep <= (child.end_ns - child.log.start_ns) * 1e-9 + INTERVAL_ON_S


def test_a_bad_regular_expression_is_one_clear_line(collect: Run, tmp_path: Path) -> None:
    result = collect("-F", "=(", "-o", tmp_path / "x.er", "/bin/true")
    assert (result.returncode, len(result.stderr.splitlines())) == (2, 1)
    assert not (tmp_path / "x.er").exists()


@pytest.mark.kernel_times
def test_mpi_ranks_record_into_one_founder(need: Run, gprofng: Run, tmp_path: Path) -> None:
    mpirun, mpicc = need("mpirun", "openmpi-bin"), need("mpicc", "libopenmpi-dev")
    program, path = tmp_path / "ranks", tmp_path / "job.1.er"
    source = Path(__file__).parent.parent / "workloads" / "ranks.c"
    subprocess.run([mpicc, "-O2", "-o", program, source], check=True, capture_output=True)
    collect = Path(sys.executable).with_name("collect")
    command = [mpirun, "--allow-run-as-root", "--oversubscribe", "-np", str(RANKS), collect, "-M", "on", "-p", "hi",
               "-o", path, program]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    assert {entry.name for entry in path.glob("*.er")} == {f"M_r{rank}.er" for rank in range(RANKS)}
    for rank in range(RANKS):
        functions = gprofng("-functions", experiment=path / f"M_r{rank}.er").functions
        assert functions["work"][1] == pytest.approx(0.1 * (rank + 1), rel=0.05, abs=0.01)
    assert "not closed" not in gprofng("-header", experiment=path).text


@pytest.mark.parametrize("made", ["fifo", "link", "bytes"])
def test_what_others_put_where_a_founder_would_be_holds_up_no_rank(made: str, tmp_path: Path) -> None:
    """In a folder that all may write to."""
    there = tmp_path / "j.1.er" / "mpi.job"
    there.parent.mkdir()
    {"fifo": os.mkfifo, "link": lambda path: path.symlink_to("/dev/zero"),
     "bytes": lambda path: path.write_bytes(b"\xff")}[made](there)
    command = [Path(sys.executable).with_name("collect"), "-M", "on", "-p", "off", "-o", tmp_path / "j.1.er", "true"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False,
                            env=os.environ | {"OMPI_COMM_WORLD_RANK": "0"})
    assert result.returncode == 0 or "j.1.er" in result.stderr
    assert "Traceback" not in result.stderr


def test_an_older_founder_that_cannot_be_removed_ends_no_rank(as_nobody: list[str], public_directory: Path) -> None:
    """There is something in it that its user may not remove; it lies aside."""
    make = "mkdir -p j.er/_f1.er; touch j.er/log.xml j.er/_f1.er/log.xml; chmod 500 j.er/_f1.er"
    subprocess.run([*as_nobody, "sh", "-c", make], cwd=public_directory, check=True)
    command = [*as_nobody, Path(sys.executable).with_name("collect"), "-M", "on", "-p", "off", "-O", "j.er", "true"]
    said = []
    for rank in range(2):
        environment = os.environ | {"OMPI_COMM_WORLD_RANK": str(rank), "PMIX_NAMESPACE": "job"}
        result = subprocess.run(command, cwd=public_directory, env=environment, capture_output=True, text=True,
                                timeout=60, check=False)
        assert result.returncode == 0, result.stderr
        said.append([line for line in result.stderr.splitlines() if "warning" in line])
        assert open_experiment(public_directory / "j.er" / f"M_r{rank}.er").log.complete
    (aside,) = public_directory.glob(".collect-*")
    (aside / "_f1.er").chmod(0o700)
    assert said == [[f"collect: warning: cannot remove {aside.name}: Permission denied"], []]
    assert (public_directory / "j.er" / "mpi.job").read_text() == "PMIX_NAMESPACE=job"


def test_without_a_launcher_there_is_no_rank(collect: Run, tmp_path: Path) -> None:
    result = collect("-M", "on", "-o", tmp_path / "x.er", "/bin/true")
    assert (result.returncode, len(result.stderr.splitlines())) == (2, 1)
    assert "mpirun" in result.stderr


@pytest.mark.kernel_times
@pytest.mark.parametrize("engine", ["perf", "signal"])
def test_short_processes_have_what_they_used_and_not_more(engine: str, workload: Run, collect: Run, gprofng: Run,
                                                          tmp_path: Path, stolen: Callable[[], float]) -> None:
    """Each uses 1.6 intervals: rounded for itself, each would be told two, and met at one point, all in one place."""
    path = tmp_path / "brief.er"
    result = collect("-o", path, "--engine", engine, "-F", "on", workload("brief"), 131)
    assert result.returncode == 0, result.stderr
    truth = json.loads(result.stdout)
    functions = gprofng("-functions", experiment=path).functions
    total_s = functions["<Total>"][1]
    worked_s = sum(truth[name] for name in ("first", "second", "third"))
    used_s = sum(truth[name] for name in ("children_user_s", "children_system_s", "user_s", "system_s"))
    rounding_s = N_CPU_STATES * INTERVAL_ON_S
    assert worked_s - rounding_s < total_s + stolen()
    assert total_s < 1.01 * used_s + rounding_s + stolen()
    # Some hundred samples. A tracer that has no CPU in time meets more of what comes last; how much more it has then is
    # for scripts/truth to tell, but each has some.
    n = n_draws(cpu_ticks(*all_of(path).values()))
    for name in ("first", "second", "third"):
        share, seen = truth[name] / total_s, functions[name][1] / total_s
        if engine == "perf":
            assert seen == pytest.approx(share, abs=of_share(share, n)), name
        else:
            assert seen > share / 3, name
