"""Programs that the kernel does not let us watch: who they were, and how long they ran, is told all the same."""

from __future__ import annotations

import json
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
import pytest
from living import newest_ns

from collector.experiment.reader import Experiment, open_experiment

COLLECT = str(Path(sys.executable).parent / "collect")
pytestmark = pytest.mark.usefixtures("root", "perf_allowed")
BUSY_S = 0.61
CPU_STATES = 3
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@pytest.fixture
def helper(public_directory: Path, workload: Callable[..., Path]) -> Path:
    """A program with the rights of root, whoever executes it."""
    if os.statvfs(public_directory).f_flag & os.ST_NOSUID:
        pytest.fail(f"{public_directory} is mounted nosuid")
    path = public_directory / "helper"
    shutil.copy(workload("recurse"), path)
    path.chmod(0o4755)
    return path


def ran_s(experiment: Experiment) -> float:
    """Seconds of CPU time in one experiment."""
    packets = experiment.packets()
    return float(packets["NTICK"][packets["MSTATE"] < CPU_STATES].sum() * experiment.log.interval_us * 1e-6)


def warnings(experiment: Experiment) -> list[str]:
    """Of its log."""
    return [message.text for message in experiment.log.messages if message.kind == "cwarn"]


def collected(directory: Path, *command: object) -> tuple[str, str]:
    """What collect said, and what the program did."""
    path = directory / "x.er"
    result = subprocess.run([*map(str, command[:command.index("collect")]), COLLECT, "-o", str(path),
                             *map(str, command[command.index("collect") + 1:])],
                            cwd=directory, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    return result.stderr, result.stdout


def is_told(said: str, program: str, lineage: str) -> bool:
    """Whether the summary says who could not be recorded, from when on, and how long it ran, which was known behind all
    that it had to do."""
    where = f", {lineage}" if lineage else ""
    who = rf"a process could not be recorded, nor what it started: process \d+ \({re.escape(program)}{where}\) "
    how = r"used (\d+\.\d\d) s of CPU by /proc \(from \d+\.\d{3} s on\): .*set-user-ID.*; to see more, "
    found = re.search(who + how, said)
    return found is not None and BUSY_S - 3 * TICK_S < float(found[1]) < BUSY_S + 3 * TICK_S


@pytest.mark.kernel_times
def test_an_ordinary_user_is_told_that_a_setuid_program_is_not_recorded(
        public_directory: Path, as_nobody: list[str], helper: Path, er_print: Any) -> None:
    said, printed = collected(public_directory, *as_nobody, "collect", helper, 3, BUSY_S)
    truth = json.loads(printed)
    assert is_told(said, f"{helper} 3 {BUSY_S}", "")
    assert "nothing lost" not in said
    experiment = open_experiment(public_directory / "x.er")
    assert len(warnings(experiment)) == 2
    assert all(text in er_print("-header", public_directory / "x.er").stdout for text in warnings(experiment))
    # The founder is read when it has ended, before it is gone: to a tick of the kernel and of the clock for each state.
    used_s = truth["user_s"] + truth["system_s"]
    assert ran_s(experiment) == pytest.approx(used_s, abs=2 * TICK_S + 2 * 0.010007)
    assert (experiment.end_ns - experiment.log.start_ns) * 1e-9 >= BUSY_S


@pytest.mark.kernel_times
@pytest.mark.parametrize("user", ["nobody", "root"])
def test_a_setuid_program_below_a_shell_is_told(user: str, public_directory: Path, as_nobody: list[str],
                                                helper: Path) -> None:
    """Also where root records: the kernel asks who executes the program."""
    program, path = f"{helper} 3 {BUSY_S} stay", public_directory / "x.er"
    command = [COLLECT, "-o", str(path)]
    command = [*as_nobody, *command] if user == "nobody" else [*command, *as_nobody]
    with subprocess.Popen([*command, "sh", "-c", f"{program}; exit 0"], cwd=public_directory, text=True,
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        assert process.stdout.readline()
        # What is written of the shell, which waits for it, is from behind a look at whoever is not recorded.
        done_ns, shell = time.monotonic_ns(), path if user == "nobody" else path / "_x1.er"
        while newest_ns(shell) < done_ns:
            assert process.poll() is None
            time.sleep(0.02)
        process.stdin.close()
        said = process.stderr.read()
    assert process.returncode == 0, said
    (child,) = [child for child in all_below(open_experiment(path)) if warnings(child)]
    lineage = "_f1_x1" if user == "nobody" else "_x1_f1_x1"
    assert is_told(said, program, lineage), said
    assert child.path.name == f"{lineage}.er"
    assert BUSY_S - 3 * TICK_S <= ran_s(child) <= BUSY_S + 3 * TICK_S
    assert np.isin(child.packets()["THRID"], [child.log.pid]).all()


def test_who_waits_for_descendants_waits_for_those_that_are_not_recorded(
        public_directory: Path, as_nobody: list[str], helper: Path) -> None:
    script = f"exec 3<&0; {helper} 3 {BUSY_S} stay <&3 & :"
    command = [*as_nobody, COLLECT, "--wait-descendants", "-o", str(public_directory / "x.er"), "sh", "-c", script]
    with subprocess.Popen(command, cwd=public_directory, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        assert process.stdout.readline()  # its shell has ended long since
        n_turns = turns(process.pid)
        while turns(process.pid) < n_turns + 3:  # and it has been looked at
            assert process.poll() is None
            time.sleep(0.02)
        process.stdin.close()
        said = process.stderr.read()
    assert process.returncode == 0, said
    assert is_told(said, f"{helper} 3 {BUSY_S} stay", "_f1_x1"), said


def turns(pid: int) -> int:
    """How often a process has had a CPU."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[2])


def all_below(experiment: Experiment) -> list[Experiment]:
    """The descendants of an experiment."""
    return [below for child in experiment.children for below in (child, *all_below(child))]


def test_programs_that_are_gone_at_once_are_told(public_directory: Path, as_nobody: list[str], helper: Path) -> None:
    helper.chmod(0o711)  # one that may not be read
    script = "; ".join(f"{helper} 3 0.001" for _ in range(5))
    said, _ = collected(public_directory, *as_nobody, "collect", "sh", "-c", f"{script}; exit 0")
    assert re.search(r"5 processes could not be recorded, nor what they started: (process \d+ .*?, ){3}and 2 more: ",
                     said)


def test_programs_that_are_recorded_are_not_told(public_directory: Path, as_nobody: list[str], helper: Path) -> None:
    helper.chmod(0o755)
    script = "; ".join(f"{helper} 3 0.001" for _ in range(23))
    said, _ = collected(public_directory, *as_nobody, "collect", "sh", "-c", f"{script}; exit 0")
    assert "could not be recorded" not in said


def test_a_signal_that_may_not_be_handed_on_ends_the_recording(
        public_directory: Path, as_nobody: list[str], need: Callable[[str, str], str]) -> None:
    """To a program that has become root's altogether, as sudo does; it goes on."""
    source, program, path = (public_directory / name for name in ("rooted.c", "rooted", "x.er"))
    source.write_text("""
        #include <stdio.h>
        #include <unistd.h>
        int main(void) {
            if (setresuid(0, 0, 0)) return 1;
            puts("ready");
            fflush(stdout);
            while (getchar() != EOF) continue;
            return 5;
        }""")
    subprocess.run([need("gcc", "gcc"), "-o", program, source], check=True)
    program.chmod(0o4755)
    with subprocess.Popen([*as_nobody, COLLECT, "-o", str(path), str(program)], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        while not open_experiment(path).log.complete:
            assert process.poll() is None
            time.sleep(0.01)
        assert process.poll() is None
        _, said = process.communicate("")
    assert process.returncode == 5
    assert "Traceback" not in said
