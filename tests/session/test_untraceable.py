"""Programs that behave otherwise when they are traced, under the signal engine: they are let go in time."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from collector.experiment.reader import open_experiment

COLLECT = [str(Path(sys.executable).parent / "collect"), "--engine", "signal"]
NOBODY = 65534

Run = Callable[..., Any]
Ran = subprocess.CompletedProcess[str]


@pytest.fixture
def with_and_without(public_directory: Path, as_nobody: list[str]) -> Callable[..., tuple[Ran, Ran]]:
    """``with_and_without("./program", "an argument")``: by an ordinary user, alone and under collect."""
    def run(*command: object, **environment: str) -> tuple[Ran, Ran]:
        ran = [subprocess.run([*as_nobody, *before, *map(str, command)], cwd=public_directory, capture_output=True,
                              text=True, timeout=60, check=False, env=os.environ | {"MARK": "a mark"} | environment)
               for before in ([], [*COLLECT, "-o", "x.er"])]
        return ran[0], ran[1]

    return run


def is_not_recorded(run: Ran, name: str, why: str) -> bool:
    """Whether collect says that of the process, once."""
    said = run.stderr.splitlines()[-1]
    return said.startswith("collect: ") and said.count(f" ({name}) is not recorded: ") == 1 and why in said


# --- privileges -------------------------------------------------------------------------------------


@pytest.fixture
def privileged(root: None, public_directory: Path, workload: Run) -> Callable[..., Path]:
    """``privileged(0o4755)``: a program of root's with such a mode."""
    def make(mode: int, *flags: str) -> Path:
        program = Path(shutil.copy(workload("privileged", *flags), public_directory / "privileged"))
        program.chmod(mode)
        return program

    return make


def facts(run: Ran) -> dict[str, Any]:
    """What the program said of itself, that does not change from one run to the next."""
    return {name: value for name, value in json.loads(run.stdout).items()
            if name in ("uid", "euid", "gid", "egid", "secure", "mark", "arguments")}


@pytest.mark.parametrize("flags", [(), ("-O2", "-static"), ("-O2", "-no-pie")], ids=["PIE", "static", "not PIE"])
@pytest.mark.parametrize(("mode", "kind", "who"), [(0o4755, "setuid", "euid"), (0o2755, "setgid", "egid")])
def test_a_program_keeps_the_privileges_of_its_file(
        mode: int, kind: str, who: str, flags: tuple[str, ...], privileged: Run, with_and_without: Run) -> None:
    privileged(mode, *flags)
    alone, run = with_and_without("./privileged", "one", "two and three")
    assert facts(run) == facts(alone)
    assert (facts(run)[who], facts(run)["secure"], facts(run)["mark"]) == (0, 1, "a mark")
    assert is_not_recorded(run, "privileged", f"it would lose its privileges ({kind})")


def test_a_program_that_a_thread_executes_keeps_them_too(
        privileged: Run, workload: Run, with_and_without: Run, public_directory: Path) -> None:
    program = privileged(0o4755)
    maker = shutil.copy(workload("privileged"), public_directory / "maker")
    alone, run = with_and_without(maker, "-x", program, "one")
    assert facts(run) == facts(alone)
    assert facts(run)["euid"] == 0
    assert is_not_recorded(run, "privileged", "privileges")


def test_who_started_it_is_recorded(privileged: Run, with_and_without: Run, public_directory: Path) -> None:
    privileged(0o4755)
    script = "./privileged one; i=0; while [ $i -lt 100000 ]; do i=$((i + 1)); done"
    alone, run = with_and_without("/bin/sh", "-c", script)
    assert facts(run) == facts(alone)
    assert is_not_recorded(run, "privileged", "privileges")
    founder = open_experiment(public_directory / "x.er")
    assert founder.packets()["NTICK"].sum() > 2
    logs = [(child.path / "log.xml").read_text(encoding="utf-8", errors="replace") for child in founder.children]
    assert sum("is not recorded: it would lose its privileges" in log for log in logs) == 1


def test_what_a_script_s_interpreter_has_lost_is_said(
        privileged: Run, with_and_without: Run, public_directory: Path) -> None:
    program = privileged(0o4755)
    script = public_directory / "script"
    script.write_text(f"#!{program}\n")
    script.chmod(0o755)
    alone, run = with_and_without("./script")
    assert (facts(alone)["euid"], facts(run)["euid"]) == (0, NOBODY)
    assert "(script) has lost its privileges (setuid), since it is traced" in run.stderr


def test_what_a_file_that_may_not_be_read_may_have_lost_is_said(privileged: Run, with_and_without: Run) -> None:
    privileged(0o4711)
    alone, run = with_and_without("./privileged")
    assert (facts(alone)["euid"], facts(run)["euid"]) == (0, NOBODY)
    assert "(privileged) lacks the privileges of its file, if that has any, since it is traced" in run.stderr


def test_an_own_file_gives_nothing_and_is_recorded(
        public_directory: Path, with_and_without: Run, workload: Run) -> None:
    program = Path(shutil.copy(workload("privileged"), public_directory / "own"))
    if os.geteuid() == 0:
        os.chown(program, NOBODY, NOBODY)
    program.chmod(0o4755)
    _, run = with_and_without("./own")
    assert run.stderr.startswith("collect: x.er: ") and "is not recorded" not in run.stderr, run.stderr


# --- programs whose memory may not be read ----------------------------------------------------------

# It closes itself to its user, and starts many others, as such that listen to clients do.
SPAWNS = """
import ctypes, os
ctypes.CDLL(None).prctl(4, 0)
for _ in range(50): os.system("true")
print("done")
"""


def test_a_program_that_is_closed_to_its_user_starts_others(with_and_without: Run, public_directory: Path) -> None:
    alone, run = with_and_without(sys.executable, "-c", SPAWNS)
    assert (run.returncode, run.stdout) == (alone.returncode, alone.stdout) == (0, "done\n")
    founder = open_experiment(public_directory / "x.er")
    assert len([child for child in founder.children if "_x" not in child.name]) == 50


# Closed likewise, it sleeps, and is awake for too short a time now and then to be met by a look; then it sleeps on.
SLEEPS = """
import ctypes, time
ctypes.CDLL(None).prctl(4, 0)
for _ in range(10): time.sleep(0.1)
time.sleep(4)
"""


def test_a_program_that_is_closed_to_its_user_holds_nobody_up(as_nobody: list[str], public_directory: Path) -> None:
    """Recording begins in the middle of its sleep, which waits until all is told up to then."""
    command = [*as_nobody, *COLLECT, "-o", "x.er", "-t", "2-4", sys.executable, "-c", SLEEPS]
    run = subprocess.run(command, cwd=public_directory, capture_output=True, text=True, timeout=60, check=False)
    assert run.stderr.count("the places where it waits, which this user may not read") == 1, run.stderr
    assert open_experiment(public_directory / "x.er").packets()["NTICK"].sum() > 10  # of 200, if others have no CPU


# --- other tracers ----------------------------------------------------------------------------------


@pytest.fixture
def leaks(workload: Run, need: Callable[[str, str], str], public_directory: Path) -> Path:
    """A program with AddressSanitizer."""
    need("/usr/lib/gcc/x86_64-linux-gnu/*/libasan.so", "libgcc-12-dev")
    return Path(shutil.copy(workload("leaks", "-O0", "-fsanitize=address"), public_directory / "leaks"))


@pytest.mark.parametrize("n_bytes", [(), (77,)], ids=["whole", "leaking"])
def test_a_leak_check_finds_what_it_finds_without_us(n_bytes: tuple[int, ...], leaks: Path,
                                                     with_and_without: Run) -> None:
    alone, run = with_and_without(leaks, *n_bytes)
    assert (run.returncode, run.stdout) == (alone.returncode, alone.stdout)
    assert ("77 byte(s) leaked" in run.stderr, "77 byte(s) leaked" in alone.stderr) == (bool(n_bytes),) * 2
    assert is_not_recorded(run, "leaks", "ASAN_OPTIONS=detect_leaks=0")


def test_without_its_leak_check_a_program_is_recorded(leaks: Path, with_and_without: Run) -> None:
    _, run = with_and_without(leaks, 77, ASAN_OPTIONS="detect_leaks=0")
    assert (run.returncode, run.stdout) == (0, "done\n")
    assert run.stderr.startswith("collect: x.er: ") and "is not recorded" not in run.stderr, run.stderr


@pytest.mark.parametrize("command", ["strace -f -e trace=none sh -c 'true; echo end'",
                                     "gdb -nx -batch -ex run --args echo end"])
def test_a_debugger_has_its_own_to_trace(command: str, need: Callable[[str, str], str], with_and_without: Run) -> None:
    name = command.split()[0]
    need(name, name)
    alone, run = with_and_without("/bin/sh", "-c", f"{command}; echo status $?")
    assert "end\n" in alone.stdout
    assert run.stdout.splitlines()[-1] == alone.stdout.splitlines()[-1] == "status 0"
    assert "end\n" in run.stdout
    assert is_not_recorded(run, name, "it traces what it starts itself")
