"""Experiments on the kernel of the whole machine (-k kernel): all CPUs, each program in its own, idle told apart."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import prefork
import pytest

from collector.engines.perf.machine import ALLOWED_LEVEL
from collector.experiment.names import create_directory
from collector.experiment.reader import Experiment, open_experiment
from collector.experiment.records import STATES
from collector.linux import perf
from collector.session.machine import ELSEWHERE_TID, GONE_TID, IDLE_TID

Run = Callable[..., Any]
COLLECT = str(Path(sys.executable).with_name("collect"))
KERNEL = np.uint64(1 << 63)
USER, SYSTEM, TRAP, SLEEP = (STATES.index(name) for name in ("user", "system", "trap", "sleep"))
# Works, becomes the same program once more, works again: without a system call for most of the time.
TWICE = """
import os, sys
total = 0
for i in range(1_500_001):
    total += i
if len(sys.argv) == 1:
    os.execv(sys.executable, [sys.executable, "-c", os.environ["TWICE"], "again"])
"""


def leaves(experiment: Experiment) -> list[tuple[int, int, list[int]]]:
    """Thread, state and stack of each packet, the leaf first."""
    stacks, packets = experiment.stacks, experiment.packets()
    return [(int(tid), int(state), [int(pc) for pc in stacks.stack(int(index))]) for tid, state, index in zip(
        packets["THRID"], packets["MSTATE"], stacks.index(packets["FRINFO"]), strict=True)]


def seconds_of(experiment: Experiment) -> float:
    """All that its packets stand for."""
    return int(experiment.packets()["NTICK"].sum()) * experiment.log.interval_us * 1e-6


@pytest.fixture(scope="module")
def copied(collect: Run, million_bytes: list[str], kernel_shown: None,
           tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The whole machine while a program of many short system calls runs, which is followed, and what collect said.

    The program has a name that no other on the machine has: a ``dd`` of anybody's is followed, too."""
    folder = tmp_path_factory.mktemp("kernel")
    path, program = folder / "ktest.1.er", folder / f"dd{os.getpid()}"
    copy, *how = million_bytes
    program.symlink_to(shutil.which(copy) or copy)
    done = collect("-k", "kernel", "-p", "hi", "-F", f"=^{program.name}$", "-o", path, "env", "LC_ALL=C", program,
                   *how)
    assert done.returncode == 0, done.stderr
    return path, done.stderr


def test_an_experiment_is_overwritten_when_its_program_runs(collect: Run, kernel_shown: None, tmp_path: Path) -> None:
    older, program = create_directory(str(tmp_path / "x.er")).path, tmp_path / "script"
    (older / "mark").touch()
    for interpreter, status in (("/no/such", 127), ("/bin/sh", 0)):
        program.write_text(f"#!{interpreter}\n")
        program.chmod(0o755)
        assert collect("-k", "kernel", "-O", older, program).returncode == status
        assert sorted(os.listdir(tmp_path)) == ["script", "x.er"]
        assert (older / "mark").exists() == (status == 127)


def test_a_load_has_the_environment_that_it_was_given(kernel_shown: None, tmp_path: Path) -> None:
    given = {name: value for name, value in os.environ.items() if name.startswith("PYTHON")}
    done = subprocess.run([COLLECT, "-k", "kernel", "-F", "off", "-A", "off", "/usr/bin/env"], env=given, cwd=tmp_path,
                          capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines() == [f"{name}={value}" for name, value in given.items()]


def test_all_time_of_all_cpus_is_told(copied: tuple[Path, str]) -> None:
    path, said = copied
    founder = open_experiment(path)
    duration_s, n_cpus = (founder.end_ns - founder.log.start_ns) / 1e9, len(perf.online_cpus())
    match = re.search(r"([\d.]+) s of CPUs are not told", said)
    told_s = sum(map(seconds_of, (founder, *founder.children))) + (float(match[1]) if match else 0.0)
    # Of each CPU the last time is rounded, and what is read beside its end.
    assert told_s == pytest.approx(n_cpus * duration_s, rel=0.01, abs=0.01 * n_cpus)
    cpus = np.unique(np.concatenate([one.packets()["CPUID"] for one in (founder, *founder.children)]))
    assert cpus.tolist() == perf.online_cpus()


def test_idle_cpus_are_threads_of_their_own_and_use_no_cpu_time(copied: tuple[Path, str]) -> None:
    founder = open_experiment(copied[0])
    for tid, state, _ in leaves(founder):
        if state == SLEEP:
            assert IDLE_TID <= tid < ELSEWHERE_TID
        elif tid >= IDLE_TID and tid not in (ELSEWHERE_TID, GONE_TID):
            assert state == TRAP  # an interrupt of an idle CPU
    for program in founder.children:
        assert not any(state == SLEEP or (tid >= IDLE_TID and tid != GONE_TID) for tid, state, _ in leaves(program))


def test_a_program_has_its_own_experiment_with_the_kernel_above_it(copied: tuple[Path, str], gprofng: Run,
                                                                    er_print: Run) -> None:
    (program,) = copied[0].glob("_dd*_PID_*.1.er")
    in_kernel = 0
    for _, state, pcs in leaves(open_experiment(program)):
        of_kernel = [pc >= KERNEL for pc in pcs[:-1]]  # the last one may be a mark
        assert of_kernel == sorted(of_kernel, reverse=True)
        in_kernel += any(of_kernel)
        assert not (state == USER and any(of_kernel))
    assert in_kernel > 20
    commands = "-metrics", "e.totalcpu:i.totalcpu:e.sleep:name", "-functions"
    printed = er_print(*commands, copied[0])
    assert (printed.returncode, printed.stderr) == (0, "")
    # The two add up the same ticks, and round them alike.
    theirs = gprofng(*commands, experiment=copied[0]).text
    total = next(line for line in theirs.splitlines() if "<Total>" in line)
    assert total in printed.stdout.splitlines()
    tree = gprofng("-metrics", "i.totalcpu:name", "-calltree", experiment=copied[0]).tree
    for call, inside in (("read", "vfs_read"), ("write", "vfs_write")):
        assert any(path[-1] == inside and call in path for path in tree)


def test_programs_that_are_not_followed_have_their_kernel_part_alone(collect: Run, million_bytes: list[str],
                                                                     kernel_shown: None, er_print: Run,
                                                                     tmp_path: Path) -> None:
    done = collect("-k", "kernel", "-p", "hi", "-F", "off", *million_bytes, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    experiment = open_experiment(tmp_path / "ktest.1.er")
    assert experiment.children == []
    for _, state, pcs in leaves(experiment):
        assert state != USER or len(pcs) == 1
    functions = er_print("-functions", tmp_path / "ktest.1.er").stdout
    assert "[user mode]" in functions
    assert "vfs_read" in functions


def test_a_program_that_runs_itself_again_has_another_experiment(collect: Run, kernel_shown: None, tmp_path: Path,
                                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    """Both of the same name and process, which no other program on the machine has."""
    monkeypatch.setenv("TWICE", TWICE)
    path, program = tmp_path / "k.er", tmp_path / f"twice{os.getpid()}"
    program.symlink_to(os.path.realpath(sys.executable))
    done = collect("-k", "kernel", "-A", "off", "-p", "hi", "-F", f"=^{program.name}$", "-o", path, program,
                   "-c", TWICE)
    assert done.returncode == 0, done.stderr
    again = list(path.glob("_*_PID_*.2.er"))
    assert again
    for second in again:
        first = second.with_name(second.name.replace(".2.er", ".1.er"))
        for experiment in map(open_experiment, (first, second)):
            assert sum(state == USER for _, state, _ in leaves(experiment)) > 20


def test_a_signal_or_the_time_ends_it_whole(kernel_shown: None, collect: Run, tmp_path: Path) -> None:
    done = collect("-k", "kernel", "-A", "off", "-t", "0.3", "-o", tmp_path / "time.er")
    assert done.returncode == 0, done.stderr
    for number in (signal.SIGINT, signal.SIGTERM):
        path = tmp_path / f"{number}.er"
        with prefork.Popen([COLLECT, "-k", "kernel", "-F", "off", "-o", str(path)],
                           stderr=subprocess.PIPE) as recording:
            while not (path / "profile").exists():
                assert recording.poll() is None
                time.sleep(0.02)
            recording.send_signal(number)
            assert recording.stderr is not None
            said = recording.stderr.read().decode()
        assert (recording.returncode, said.count("\n")) == (0, 1), said
    for path in tmp_path.iterdir():
        assert open_experiment(path).log.complete


@pytest.mark.parametrize(("options", "why"), [
    (("-P", "1"), "-k kernel records the whole machine: leave out -P"),
    (("-p", "off"), "-k kernel needs clock profiling"),
    (("--engine", "signal"), "the signal engine does not see the kernel"),
    (("--aggregate", "runqlat"), "leave out --aggregate"),
])
def test_what_cannot_be_is_one_line(collect: Run, options: tuple[str, ...], why: str, tmp_path: Path) -> None:
    done = collect("-k", "kernel", "-o", tmp_path / "x.er", *options)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert why in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_load_that_is_not_there_leaves_nothing(collect: Run, kernel_shown: None, tmp_path: Path) -> None:
    done = collect("-k", "kernel", "-o", tmp_path / "x.er", tmp_path / "missing")
    assert (done.returncode, done.stderr.count("\n")) == (127, 1)
    broken = tmp_path / "broken"
    broken.write_text("#!/nowhere/at/all\n")
    broken.chmod(0o700)
    done = collect("-k", "kernel", "-o", tmp_path / "x.er", broken)
    assert (done.returncode, done.stderr.count("\n")) == (127, 1)
    assert list(tmp_path.iterdir()) == [broken]


def test_who_may_not_see_the_machine_is_told_what_would_show_it(as_nobody: list[str], public_directory: Path) -> None:
    level = int(Path("/proc/sys/kernel/perf_event_paranoid").read_text())
    done = subprocess.run([*as_nobody, COLLECT, "-k", "kernel", "-t", "1"], cwd=public_directory, capture_output=True,
                          text=True, check=False)
    if level <= ALLOWED_LEVEL:
        assert done.returncode in (0, 1)  # by kptr_restrict
        return
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "run as root" in done.stderr
    assert list(public_directory.iterdir()) == []
