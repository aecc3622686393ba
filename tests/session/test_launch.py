"""The command line of collect: what the target gets, what it gives back, and every error, by the commands that a user
would type. Who is interrupted, or looks at what the target inherits, executes them; the others need no start of their
own.
"""

from __future__ import annotations

import errno
import json
import os
import pty
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import prefork
import pytest

from collector import __version__
from collector.clock import NS_PER_S
from collector.errors import ProgramNotFound
from collector.experiment.names import NewDirectory, create_directory
from collector.experiment.reader import open_experiment
from collector.linux.accounts import account_of
from collector.session.launch import HeldChild, descends, inherited
from collector.session.options import Options
from collector.session.schedule import EARLY_NS
from collector.session.session import enter_into_group, forgetting_replaced

COLLECT = str(Path(sys.executable).parent / "collect")
SH = "/bin/sh"
NOBODY, SOMEBODY = 65534, 64513

perf = pytest.mark.usefixtures("perf_allowed")
SUMMARY = r"collect: \S+: [\d.]+ s, [\d.]+ s CPU, \d+ threads?, (\d+ descendants?, )?\d+ samples?, nothing lost\n"


def run(*arguments: object, cwd: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """collect, in a directory."""
    defaults: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 60}
    return prefork.run([COLLECT, *map(str, arguments)], cwd=cwd, **(defaults | options))


def left_in(directory: Path) -> list[str]:
    """What lies in a directory."""
    return sorted(os.listdir(directory))


def script(directory: Path, text: str, mode: int = 0o755) -> Path:
    """A file with a text and a mode."""
    path = directory / "script"
    path.write_text(text)
    path.chmod(mode)
    return path


@perf
def test_nothing_of_numpy_is_imported_that_is_of_no_use(tmp_path: Path) -> None:
    """A twentieth of what the start costs: some functions of numpy's import its masked arrays."""
    code = "import sys; from collector.cli.main import collect; collect(); sys.exit('numpy.ma' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code, SH, "-c", "true; /bin/true"], cwd=tmp_path, check=False)
    assert done.returncode == 0


# --- errors: one line, the right status, nothing left behind --------------------------------------

USAGE_ERRORS = {
    "unknown option": (["-Z", "true"], "-Z"),
    "unknown long option": (["--frobnicate", "true"], "--frobnicate"),
    "option without its value": (["-p"], "-p"),
    "interval too short": (["-p", "0.499", "true"], "from 0.5 to 1000 milliseconds"),
    "interval too short in microseconds": (["-p", "499u", "true"], "from 0.5 to 1000 milliseconds"),
    "interval too long": (["-p", "1000.001m", "true"], "from 0.5 to 1000 milliseconds"),
    "interval of no time": (["-p", "0", "true"], "from 0.5 to 1000 milliseconds"),
    "interval below nothing": (["-p", "-5", "true"], "from 0.5 to 1000 milliseconds"),
    "interval in words": (["-p", "often", "true"], "from 0.5 to 1000 milliseconds"),
    "interval of nothing": (["-p", "", "true"], "from 0.5 to 1000 milliseconds"),
    "interval in another unit": (["-p", "5s", "true"], "from 0.5 to 1000 milliseconds"),
    "interval in other digits": (["-p", "\u0665", "true"], "from 0.5 to 1000 milliseconds"),
    "interval and more": (["-p", "5\n", "true"], "from 0.5 to 1000 milliseconds"),
    "interval of many digits": (["-p", 400 * "9", "true"], "from 0.5 to 1000 milliseconds"),
    "interval of many digits in microseconds": (["-p", 400 * "9" + "u", "true"], "from 0.5 to 1000 milliseconds"),
    "window of many digits": (["-t", 400 * "9", "true"], "give at most"),
    "sample period of many digits": (["-S", 5000 * "9", "true"], "whole seconds from 1"),
    "size of many digits": (["-L", 5000 * "9", "true"], "give a size"),
    "signal of many digits": (["-l", 5000 * "9", "true"], "no such signal"),
    "sample period of nothing": (["-S", "0", "true"], "-S 0"),
    "sample period in words": (["-S", "often", "true"], "-S often"),
    "prints of too many digits": (["--aggregate", "a = count()", "--print", "9" * 5000, "true"], "whole seconds"),
    "one signal for two things": (["-l", "USR1", "-y", "10,r", "true"], "two signals"),
    "a signal of the C library": (["-l", "32", "true"], "-l 32"),
    "unknown archive choice": (["-A", "some", "true"], "usedldobjects"),
    "unknown archive choice, small": (["-a", "some", "true"], "usedldobjects"),
    "unknown follow choice": (["-F", "perhaps", "true"], "on"),
    "unknown engine": (["--engine", "steam", "true"], "auto"),
    "eleven comments": ([*(["-C", "text"] * 11), "true"], "at most 10"),
    "no program": (["-p", "on"], "no program"),
    "no program behind the end of options": (["--"], "no program"),
}


@pytest.mark.parametrize("case", USAGE_ERRORS)
def test_a_wrong_command_line_is_refused(tmp_path: Path, case: str) -> None:
    arguments, said = USAGE_ERRORS[case]
    result = run(*arguments, cwd=tmp_path)
    assert result.returncode == 2
    assert re.fullmatch(r"collect: [^\n]+\n", result.stderr), result.stderr
    assert said in result.stderr
    assert left_in(tmp_path) == []


def one_line(result: subprocess.CompletedProcess[str], status: int, said: str) -> None:
    """An error of collect as it must be."""
    assert re.fullmatch(r"collect: [^\n]+\n", result.stderr), result.stderr
    assert said in result.stderr
    assert (result.returncode, result.stdout) == (status, "")


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize("what", [("touch", "ran"), ("-P", "1"), ("-k", "kernel"), ("--check",)], ids=" ".join)
@pytest.mark.parametrize(("apart", "before"), [
    (("--pid", "--fork", "--kill-child"), "true"), (("--mount",), "mount -t tmpfs none /proc")],
    ids=["of others", "none"])
def test_a_proc_that_is_not_ours(tmp_path: Path, what: tuple[str, ...], apart: tuple[str, ...], before: str) -> None:
    """Accounts of strangers would be read."""
    command = ["unshare", *apart, SH, "-c", f'{before} && exec "$@"', "sh", COLLECT, *what]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=30)
    one_line(result, 1, "/proc is not there, or of another PID namespace: mount it anew (unshare --mount-proc")
    assert left_in(tmp_path) == []


@pytest.mark.parametrize("name", ["./missing", "no-such-program-anywhere", "/no/such/directory/program", "", "a\nb"])
def test_a_program_that_is_not_there(tmp_path: Path, name: str) -> None:
    one_line(run(name, cwd=tmp_path), 127, "not found")
    assert left_in(tmp_path) == []


@pytest.mark.parametrize("name", ["./here", "here"])
def test_the_path_alone_finds_programs_without_a_slash(tmp_path: Path, name: str) -> None:
    script(tmp_path, "#!/bin/sh\nexit 3\n").rename(tmp_path / "here")
    result = run("-p", "off", name, cwd=tmp_path, env=os.environ | {"PATH": "/usr/bin:/bin"})
    assert result.returncode == (3 if "/" in name else 127)


def test_a_program_that_may_not_be_executed(tmp_path: Path) -> None:
    path = script(tmp_path, "#!/bin/sh\n", mode=0o644)
    one_line(run("./script", cwd=tmp_path), 126, "script")
    one_line(run("/etc", cwd=tmp_path), 126, "/etc")
    path.unlink()
    assert left_in(tmp_path) == []


@perf
def test_a_file_that_is_no_program(tmp_path: Path) -> None:
    path = script(tmp_path, "\x7fELF but not really")
    one_line(run(path, cwd=tmp_path), 126, "not a program for this machine")
    assert left_in(tmp_path) == ["script"]


@perf
def test_a_script_whose_interpreter_is_missing(tmp_path: Path) -> None:
    path = script(tmp_path, "#!/no/such/interpreter\n")
    one_line(run(path, cwd=tmp_path), 127, "interpreter")
    assert left_in(tmp_path) == ["script"]


@pytest.mark.parametrize(("option", "name", "ending"), [
    ("-o", "test.1", ".er"), ("-O", "", ".er"), ("-o", ".er", ".er"), ("-g", "group", ".erg"), ("-g", ".erg", ".erg")])
def test_names_without_their_ending(tmp_path: Path, option: str, name: str, ending: str) -> None:
    one_line(run(option, name, "touch", "ran", cwd=tmp_path), 1, ending)
    assert left_in(tmp_path) == []


def test_an_experiment_that_is_there_already(tmp_path: Path) -> None:
    (tmp_path / "x.er").mkdir()
    (tmp_path / "x.er" / "precious").write_text("data")
    result = run("-o", "x.er", "touch", "ran", cwd=tmp_path)
    one_line(result, 1, "x.er")
    assert left_in(tmp_path) == ["x.er"]
    assert left_in(tmp_path / "x.er") == ["precious"]


def test_overwriting_takes_experiments_only(tmp_path: Path) -> None:
    (tmp_path / "x.er").mkdir()
    (tmp_path / "x.er" / "precious").write_text("data")
    one_line(run("-O", "x.er", "touch", "ran", cwd=tmp_path), 1, "x.er")
    assert left_in(tmp_path) == ["x.er"]
    assert (tmp_path / "x.er" / "precious").read_text() == "data"


@pytest.mark.parametrize("directory", ["missing", "/proc/1/fdinfo", "file"])
def test_a_directory_that_cannot_be_written(tmp_path: Path, directory: str) -> None:
    (tmp_path / "file").write_text("")
    one_line(run("-d", directory, "touch", "ran", cwd=tmp_path), 1, directory)
    assert left_in(tmp_path) == ["file"]


@pytest.mark.usefixtures("root")
def test_a_directory_of_somebody_else(tmp_path: Path) -> None:
    command = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", COLLECT, "-d", "/usr",
               "touch", "/usr/ran"]
    result = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False)
    one_line(result, 1, "/usr")
    assert not list(Path("/usr").glob("*.er"))


@pytest.mark.usefixtures("root")
def test_an_experiment_of_somebody_else_is_not_overwritten(as_nobody: list[str], public_directory: Path) -> None:
    create_directory(str(public_directory / "x.er")).path.chmod(0o755)
    result = subprocess.run([*as_nobody, COLLECT, "-O", "x.er", "touch", "ran"], cwd=public_directory,
                            capture_output=True, text=True, check=False)
    one_line(result, 1, "cannot remove x.er: Permission denied")
    assert left_in(public_directory) == ["x.er"]


@pytest.mark.parametrize("code", [errno.EACCES, errno.EPERM, errno.ENOSYS])
def test_perf_events_that_are_refused(workload: Callable[..., Path], tmp_path: Path, code: int) -> None:
    command = [workload("noperf"), str(code), COLLECT, "--engine", "perf", "-o", "x.er", "touch", "ran"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=30)
    one_line(result, 1, "seccomp")
    assert "--cap-add=PERFMON" in result.stderr  # what lets it have them
    assert left_in(tmp_path) == []


@pytest.mark.usefixtures("root")
def test_tracing_that_is_refused_names_the_setting_that_refuses_it(
        workload: Callable[..., Path], tmp_path: Path) -> None:
    there = "/proc/sys/kernel"
    setting = f"mount -t tmpfs none {there} && mkdir {there}/yama && echo 1 > {there}/yama/ptrace_scope"
    command = ["unshare", "-m", SH, "-c", f'{setting} && exec "$@"', "sh", workload("noperf"), f"{errno.EPERM}+ptrace",
               COLLECT, "-o", "x.er", "--engine", "signal", "touch", "ran"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=30)
    one_line(result, 1, "kernel.yama.ptrace_scope is 1 (sudo sysctl kernel.yama.ptrace_scope=0")
    assert left_in(tmp_path) == []


def test_without_clock_profiling_perf_events_are_not_needed(workload: Callable[..., Path], tmp_path: Path) -> None:
    command = [workload("noperf"), str(errno.EPERM), COLLECT, "-p", "off", "-o", "x.er", SH, "-c", "exit 7"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=30)
    assert result.returncode == 7
    experiment = open_experiment(tmp_path / "x.er")
    assert experiment.log.complete
    assert len(experiment.packets()) == 0


# --- a full disk ----------------------------------------------------------------------------------


@perf
def test_a_disk_that_is_full_from_the_start(small_disk: Callable[[int], Path], tmp_path: Path) -> None:
    disk = small_disk(16)
    with pytest.raises(OSError, match="No space"), open(disk / "filler", "wb", buffering=0) as filler:
        while True:
            filler.write(b"x" * 4096)
    result = run("-o", disk / "x.er", SH, "-c", "echo ran; exit 7", cwd=tmp_path)
    assert re.fullmatch(r"collect: [^\n]*disk is full[^\n]*\n", result.stderr), result.stderr
    assert (result.returncode, result.stdout) in ((1, ""), (7, "ran\n"))
    assert left_in(disk) == ["filler"]


FULL = [8, 12, 16, 20, 24, 32, 48, 64, 80, 100, 140]


@perf
@pytest.mark.parametrize("kib", FULL)
def test_a_disk_that_becomes_full(
        small_disk: Callable[[int], Path], tmp_path: Path, gprofng: Any, workload: Callable[..., Path],
        kib: int) -> None:
    disk = small_disk(kib)
    result = run("-p", "hi", "-o", disk / "x.er", SH, "-c", f"{workload('start')}; exit 7", cwd=tmp_path)
    assert result.returncode == 7
    assert result.stdout.startswith('{"start_ns"')  # the target is unharmed
    assert re.fullmatch(r"(collect: [^\n]*\n)+", result.stderr)
    if left_in(disk):
        gprofng("-functions", experiment=disk / "x.er")
        experiment = open_experiment(disk / "x.er")
        assert experiment.problems == []
        assert experiment.log.complete
    else:
        assert "nothing more is recorded" in result.stderr


@perf
@pytest.mark.parametrize("kib", [90])
def test_what_came_before_the_disk_was_full_is_kept(
        small_disk: Callable[[int], Path], tmp_path: Path, gprofng: Any, workload: Callable[..., Path],
        kib: int) -> None:
    disk = small_disk(kib)
    result = run("-p", "hi", "-A", "off", "-o", disk / "x.er", workload("split"), 2.3, cwd=tmp_path)
    assert result.returncode == 0
    assert result.stdout.startswith('{"threads"')
    assert "disk is full" in result.stderr
    experiment = open_experiment(disk / "x.er")
    assert experiment.problems == []
    assert experiment.log.complete
    packets = experiment.packets()
    assert len(packets) > 300  # of running and of waiting, of which there is more where others have the CPUs
    cpu_s = packets["NTICK"][packets["MSTATE"] <= 2].sum() * 997e-6
    assert gprofng("-functions", experiment=disk / "x.er").functions["<Total>"][0] == pytest.approx(cpu_s, abs=0.001)
    assert "disk is full" in gprofng("-header", experiment=disk / "x.er").text


# --- the target's ending --------------------------------------------------------------------------


@perf
@pytest.mark.parametrize(("command", "status"), [
    ("exit 0", 0), ("exit 7", 7), ("exit 255", 255), ("exit 127", 127), ("kill -TERM $$", 143), ("kill -KILL $$", 137),
    ("kill -INT $$", 130), ("kill -PIPE $$", 141), ("ulimit -c 0; kill -SEGV $$", 139)])
def test_the_exit_status_is_the_targets(tmp_path: Path, command: str, status: int) -> None:
    result = run("-o", "x.er", SH, "-c", command, cwd=tmp_path)
    assert (result.returncode, result.stdout) == (status, "")
    assert open_experiment(tmp_path / "x.er").log.complete


class Running:
    """collect as a shell's job, in a process group of its own, and that in our session: where nobody of its session
    could let it go on, a terminal's signals would not stop it."""

    def __init__(self, directory: Path, *arguments: object, **options: Any) -> None:
        self.process = subprocess.Popen([COLLECT, *map(str, arguments)], cwd=directory, process_group=0,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)
        assert self.process.stdout is not None
        self.first_line = self.process.stdout.readline()

    def end(self) -> tuple[int, str, str]:
        """Exit status and the rest of what was said."""
        out, err = self.process.communicate(timeout=30)
        return self.process.returncode, out, err


def state_of(pid: int) -> str:
    """The letter of the kernel for what the first thread of a process does."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


WAITING = "while :; do sleep 0.03; done"


@perf
@pytest.mark.parametrize(("command", "expected"), [
    (f"trap 'echo caught; exit 5' INT; echo ready; {WAITING}", (5, "caught\n")),
    (f"echo ready; {WAITING}", (130, "")),
    ("trap '' INT; echo ready; sleep 0.5; echo done; exit 6", (6, "done\n"))])
@pytest.mark.parametrize("after_s", [0, 0.4])
def test_ctrl_c_reaches_the_target_and_the_experiment_is_closed(
        tmp_path: Path, command: str, expected: tuple[int, str], after_s: float) -> None:
    job = Running(tmp_path, "-o", "x.er", SH, "-c", command)
    assert job.first_line == "ready\n"
    time.sleep(after_s)  # with 0, collect itself is still starting up
    os.killpg(job.process.pid, signal.SIGINT)
    status, out, err = job.end()
    assert (status, out) == expected
    assert re.fullmatch(SUMMARY, err), err
    experiment = open_experiment(tmp_path / "x.er")
    assert experiment.log.complete
    assert any(experiment.archives.iterdir())


@perf
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_other_signals_are_handed_on(tmp_path: Path, number: signal.Signals) -> None:
    job = Running(tmp_path, "-o", "x.er", SH, "-c", f"echo ready; {WAITING}")
    os.kill(job.process.pid, number)
    assert job.end()[0] == 128 + number
    assert open_experiment(tmp_path / "x.er").log.complete


KILLS = """
import os, signal, time
told = []
signal.signal(signal.SIGTERM, lambda *_: told.append(1))
print("ready", flush=True)
for _ in range(31):  # two that come at once are one to the kernel
    os.kill(0, signal.SIGTERM)
    time.sleep(0.02)
print(len(told))
"""


@perf
def test_what_a_program_sends_to_its_group_is_not_handed_on_to_it(tmp_path: Path) -> None:
    """Who ends his workers so, and ignores it meanwhile, does not any more when it comes once more."""
    job = Running(tmp_path, "-o", "x.er", sys.executable, "-c", KILLS)
    assert job.end()[:2] == (0, "31\n")
    assert open_experiment(tmp_path / "x.er").log.complete


def test_who_descends_from_a_process() -> None:
    with subprocess.Popen([SH, "-c", "sleep 60 & echo $!; wait"], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        grandchild = int(child.stdout.readline())
        assert descends(grandchild, child.pid)
        assert descends(child.pid, child.pid)
        assert not descends(os.getpid(), child.pid)
        os.kill(grandchild, signal.SIGKILL)
    assert not descends(child.pid, os.getpid())  # it is gone


HUNG_UP = """
import os, signal, time
told = []
signal.signal(signal.SIGHUP, lambda *_: told.append(1))
print("ready", os.getppid(), flush=True)
while not told:
    time.sleep(0.01)
time.sleep(0.4)
open("told", "w").write(str(len(told)))
"""


@perf
@pytest.mark.parametrize("before", ["exec", "trap '' CONT;"], ids=["the session's leader", "one of its jobs"])
def test_a_terminal_that_hangs_up_is_told_once(tmp_path: Path, before: str) -> None:
    """The kernel tells the leader, and when that has ended all of the process group in the foreground."""
    leader, terminal = pty.fork()
    if not leader:
        os.chdir(tmp_path)
        os.execv(SH, ["sh", "-c", f'{before} "$@"; true', "sh", COLLECT, "-o", "x.er", sys.executable, "-c", HUNG_UP])
    said = b""
    while not (match := re.search(rb"ready (\d+)\r\n", said)):
        said += os.read(terminal, 4096)
    os.close(terminal)
    assert os.waitpid(leader, 0)[0] == leader
    if int(match[1]) != leader:  # it is ours now, as orphans are
        os.waitpid(int(match[1]), 0)
    assert (tmp_path / "told").read_text() == "1"
    assert open_experiment(tmp_path / "x.er").log.complete


@perf
def test_ctrl_c_that_ends_the_program_leaves_alone_what_is_recorded_behind_it(tmp_path: Path) -> None:
    command = "trap '' INT; sleep 0.7 <&- >&- & trap - INT; echo $!; exec sleep 60 >&-"
    job = Running(tmp_path, "--wait-descendants", "-o", "x.er", SH, "-c", command)
    os.killpg(job.process.pid, signal.SIGINT)
    assert job.end()[0] == 130
    assert os.waitpid(int(job.first_line), os.WNOHANG)[0]  # it is ours now, as orphans are, and has ended


SENDS = """
import os, signal
numbers = {signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF, signal.SIGIO,
           signal.SIGPWR, signal.SIGRTMIN, signal.SIGRTMAX}
for number in numbers:
    signal.signal(number, signal.SIG_IGN)
print("ready", flush=True)
for number in numbers:
    os.kill(0, number)
os._exit(7)
"""


def test_a_key_waits_for_its_thread_from_the_first_moment_on() -> None:
    """Nobody else may take it, though that thread has not come to run anything of its own yet."""
    code = ("import os, signal, sys\nfrom collector.session import launch\nsys.setswitchinterval(1000)\n"
            "handed_on = launch.HandedOn()\nhanded_on.take_keys()\nos.kill(os.getpid(), signal.SIGINT)\n"
            "print(signal.SIGINT in signal.sigpending(), flush=True)\nos._exit(0)\n")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert (done.stdout, done.stderr) == ("True\n", "")


@perf
@pytest.mark.parametrize("options", [(), ("--engine", "signal")], ids=" ".join)
def test_what_a_program_sends_to_its_group_does_not_end_its_recording(
        tmp_path: Path, options: tuple[str, ...]) -> None:
    job = Running(tmp_path, *options, "-o", "x.er", sys.executable, "-c", SENDS)
    assert job.end()[0] == 7
    assert open_experiment(tmp_path / "x.er").log.complete


@perf
def test_stopping_and_going_on_does_no_harm(tmp_path: Path) -> None:
    job = Running(tmp_path, "-o", "x.er", SH, "-c", "echo $$; read go; echo done; exit 9", stdin=subprocess.PIPE)
    pids, deadline = (job.process.pid, int(job.first_line)), time.monotonic() + 60
    os.killpg(job.process.pid, signal.SIGTSTP)
    while (states := [state_of(pid) for pid in pids]) != ["T", "T"]:
        assert time.monotonic() < deadline, states
        time.sleep(0.01)
    time.sleep(0.1)  # for so long they are stopped
    os.killpg(job.process.pid, signal.SIGCONT)
    assert job.end()[:2] == (9, "done\n")
    assert open_experiment(tmp_path / "x.er").log.complete


# --- what the target finds ------------------------------------------------------------------------


@perf
def test_input_and_output_are_the_targets(tmp_path: Path) -> None:
    data = bytes(range(256)) * 1009
    result = run("-o", "x.er", SH, "-c", "cat; echo to stderr >&2", cwd=tmp_path, input=data, text=False)
    assert result.stdout == data
    assert re.fullmatch(b"to stderr\n" + SUMMARY.encode(), result.stderr), result.stderr


@perf
def test_the_summary_follows_the_targets_own_output(tmp_path: Path) -> None:
    result = run("-o", "x.er", SH, "-c", "echo out; echo err >&2", cwd=tmp_path, capture_output=False,
                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert re.fullmatch("out\nerr\n" + SUMMARY, result.stdout)


def block_and_ignore() -> None:
    """In the child before exec: a blocked and some ignored signals."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
    for number in (signal.SIGINT, signal.SIGUSR1, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


@pytest.mark.parametrize("n_tasks", [1, 2])
def test_a_user_who_may_have_no_more_processes(n_tasks: int, as_nobody: list[str], public_directory: Path) -> None:
    # By a user of its own: the limit is of all processes of a user, and other tests run some as nobody.
    as_somebody = [word.replace(str(NOBODY), str(SOMEBODY)) for word in as_nobody]
    limited = ["prlimit", f"--nproc={n_tasks}", *as_somebody, COLLECT, "-o", "x.er", "true"]
    result = subprocess.run(limited, cwd=public_directory, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 1
    *engine, error = result.stderr.splitlines()
    assert re.match("collect: there is no room .*ulimit -u", error)
    assert all(line.startswith("collect: engine ") for line in engine)
    assert left_in(public_directory) == []


def few_descriptors() -> None:
    """In the child before exec: less than may be had."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (251, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


@pytest.mark.parametrize("options", [(), ("-p", "off")], ids=["on", "off"])
def test_a_program_is_recorded_where_no_limit_can_be_changed(options: tuple[str, ...], workload: Callable[..., Path],
                                                             tmp_path: Path) -> None:
    command = [workload("fixedlimits"), COLLECT, *options, "-o", "x.er", SH, "-c", "exit 7"]
    result = subprocess.run(command, cwd=tmp_path, preexec_fn=few_descriptors, capture_output=True, text=True,
                            check=False, timeout=30)
    assert result.returncode == 7, result.stderr
    assert open_experiment(tmp_path / "x.er").log.complete


WORLD = r"""
grep -E '^(SigBlk|SigIgn|SigCgt|Umask|NoNewPrivs|Seccomp:|Cap|Groups)' /proc/self/status
cut -d' ' -f5,6,7,18,19 /proc/$$/stat | sed "s/^$$ //"
cat /proc/$$/limits /proc/$$/oom_score_adj /proc/$$/timerslack_ns
pwd; env | grep -v '^_=' | sort
ls /proc/$$/fd
for n in 0 1 2; do readlink /proc/$$/fd/$n | sed 's/[[][0-9]*]/[n]/'; done
"""


@perf
@pytest.mark.parametrize("prepare", [None, block_and_ignore, few_descriptors],
                         ids=["plain", "signals blocked and ignored", "few descriptors"])
@pytest.mark.parametrize("options", [(), ("-p", "off"), ("-F", "off"), ("--engine", "signal")], ids=" ".join)
def test_the_target_finds_the_world_as_without_collect(
        tmp_path: Path, prepare: Callable[[], None] | None, options: tuple[str, ...]) -> None:
    environment = os.environ | {"ODD": "a\tb=c", "LC_ALL": "C", "EMPTY": ""}
    common: dict[str, Any] = {
        "cwd": tmp_path, "capture_output": True, "text": True, "env": environment, "preexec_fn": prepare,
        "stdin": subprocess.DEVNULL, "umask": 0o027, "check": False}
    plain = subprocess.run([SH, "-c", WORLD], **common)
    under = subprocess.run([COLLECT, *options, "-o", str(tmp_path / "x.er"), SH, "-c", WORLD], **common)
    assert plain.returncode == under.returncode == 0
    assert under.stdout.splitlines() == plain.stdout.splitlines()


def limit_memory() -> None:
    """In the child before exec: so that libraries are imported before there is a program."""
    resource.setrlimit(resource.RLIMIT_AS, (1 << 36, resource.getrlimit(resource.RLIMIT_AS)[1]))


@perf
@pytest.mark.parametrize(("environment", "prepare"), [
    ({}, None), ({"LC_CTYPE": "C", "OPENBLAS_NUM_THREADS": "3"}, None), ({}, limit_memory)])
def test_what_is_set_for_ourselves_is_not_in_the_programs_environment(
        tmp_path: Path, environment: dict[str, str], prepare: Callable[[], None] | None) -> None:
    """Python has a locale chosen where there is none."""
    environment |= {name: value for name, value in os.environ.items() if name.startswith("PYTHON")}
    done = subprocess.run([COLLECT, "-p", "off", "-o", "x.er", "/usr/bin/env"], env=environment, cwd=tmp_path,
                          capture_output=True, text=True, timeout=60, check=True, preexec_fn=prepare)
    assert done.stdout.splitlines() == [f"{name}={value}" for name, value in environment.items()]


@perf
def test_nohup_stays_in_force(tmp_path: Path, need: Callable[[str, str], str]) -> None:
    command = f"trap '' HUP; exec {COLLECT} -o x.er {SH} -c 'echo ready; sleep 0.4; exit 8'"
    with subprocess.Popen([SH, "-c", command], cwd=tmp_path, start_new_session=True, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True) as job:
        assert job.stdout is not None
        assert job.stdout.readline() == "ready\n"
        os.killpg(job.pid, signal.SIGHUP)
        job.communicate(timeout=30)
    assert job.returncode == 8


def is_ignored(number: int, pid: int) -> bool:
    """Whether a process ignores a signal."""
    return bool(int(Path(f"/proc/{pid}/status").read_text().split("SigIgn:")[1].split()[0], 16) >> (number - 1) & 1)


@perf
@pytest.mark.parametrize("is_kernel", [False, True], ids=["process", "kernel"])
def test_nohup_stays_in_force_where_nothing_is_started(
        tmp_path: Path, is_kernel: bool, request: pytest.FixtureRequest) -> None:
    """SIGINT does not: a shell ignores it in what it runs in the background, where it is asked for."""
    if is_kernel:
        request.getfixturevalue("kernel_shown")
    with subprocess.Popen(["sleep", "60"]) as process:
        what = ["-k", "kernel", "-F", "off"] if is_kernel else ["-P", str(process.pid)]
        with subprocess.Popen([COLLECT, "-v", "-A", "off", "-o", "x.er", *what], cwd=tmp_path, stderr=subprocess.PIPE,
                              preexec_fn=block_and_ignore, text=True) as job:
            assert job.stderr is not None
            while "experiment x.er" not in job.stderr.readline():
                assert job.poll() is None
            assert is_ignored(signal.SIGHUP, job.pid)
            job.send_signal(signal.SIGINT)
            job.communicate(timeout=30)
        process.kill()
    assert job.returncode == 0


@perf
def test_nohup_stays_in_force_for_exports(tmp_path: Path) -> None:
    """Python runs a file of such a name as it starts."""
    (tmp_path / "sitecustomize.py").write_text(
        "import signal\nif b'er_export' in open('/proc/self/cmdline', 'rb').read():\n"
        f"    open({str(tmp_path / 'told')!r}, 'w').write(signal.getsignal(signal.SIGHUP).name)\n")
    path = os.pathsep.join([str(tmp_path), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    command = [COLLECT, "--export", "collapsed", "-A", "off", "-o", "x.er", "true"]
    subprocess.run(command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": path}, preexec_fn=block_and_ignore,
                   capture_output=True, check=True, timeout=60)
    assert (tmp_path / "told").read_text() == "SIG_IGN"


def ignore_ends_of_children() -> None:
    """In the child before exec."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)


@perf
@pytest.mark.parametrize("options", [(), ("--engine", "signal")], ids=" ".join)
def test_a_caller_who_ignores_the_ends_of_children(tmp_path: Path, options: tuple[str, ...]) -> None:
    """The kernel would take ours as they end. The program ignores them like its caller."""
    program = "import signal, sys; sys.exit(7 if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN else 8)"
    command = [COLLECT, *options, "--export", "collapsed", "-o", "x.er", sys.executable, "-c", program]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60,
                          preexec_fn=ignore_ends_of_children)
    assert "No child processes" not in done.stderr
    assert done.returncode == 7
    assert left_in(tmp_path) == ["x.collapsed.txt", "x.er"]
    assert open_experiment(tmp_path / "x.er").log.complete


def test_a_check_for_a_caller_who_ignores_the_ends_of_children(workload: Callable[..., Path]) -> None:
    """That of the check is not traced here."""
    done = subprocess.run([workload("noperf"), f"{errno.EPERM}+ptrace", COLLECT, "--check"], capture_output=True,
                          text=True, check=False, timeout=60, preexec_fn=ignore_ends_of_children)
    assert done.stderr.startswith("collect: this user can record nothing here")
    assert done.stdout


@perf
def test_arguments_arrive_byte_by_byte(tmp_path: Path) -> None:
    odd = ["-p", "", "a b", "--", "-o", "\u00e4", os.fsdecode(b"\xff\xfe"), "new\nline", "<&\">"]
    command = [COLLECT, "-o", "x.er", "--", "/usr/bin/printf", "%s\\0", *odd]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, check=True)
    assert [os.fsdecode(part) for part in result.stdout.split(b"\0")[:-1]] == odd
    assert open_experiment(tmp_path / "x.er").log.complete


@perf
def test_a_script_runs_under_its_interpreter(tmp_path: Path) -> None:
    path = script(tmp_path, '#!/bin/sh -e\necho "$0" "$@"\nfalse\necho not reached\n')
    result = run("-o", "x.er", path, "one", "two three", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (1, f"{path} one two three\n")


@perf
@pytest.mark.parametrize("flags", [("-static",), ("-m32",), ("-s",), ("-no-pie",), ("-static", "-m32")], ids=" ".join)
def test_every_kind_of_program_runs(workload: Callable[..., Path], tmp_path: Path, flags: tuple[str, ...]) -> None:
    result = run("-o", "x.er", workload("start", *flags), cwd=tmp_path)
    assert result.returncode == 0
    assert re.fullmatch(r'\{"start_ns": \d+\}\n', result.stdout)
    # A preemption may hit the few hand-written lines of a 32-bit static program's start that describe no frame, or a
    # wrong one: memcpy pushes a register that its call frame information does not know of.
    bare = r"1 of \d+ stacks? does not reach the root \(1 (no rule|no map|outside)\)"
    bare = bare if "-m32" in flags[1:] else "nothing lost"
    assert re.fullmatch(SUMMARY.replace("nothing lost", f"(nothing lost|{bare})"), result.stderr), result.stderr


# --- options --------------------------------------------------------------------------------------


def test_without_arguments_it_prints_its_usage_with_the_intervals(tmp_path: Path) -> None:
    result = run(cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    assert "usage: collect [options] program [arguments]" in result.stdout
    for text in ("10.007", "0.997", "100.003", "0.500 to 1000.000"):
        assert text in result.stdout
    assert run("--help", cwd=tmp_path).stdout == run("-h", cwd=tmp_path).stdout == result.stdout
    assert left_in(tmp_path) == []


@pytest.mark.parametrize("words", [("-h", "cycles,on", "./program"), ("-h", "on"), ("-p", "hi", "-h", "hi", "true")])
def test_hardware_counters_are_refused(tmp_path: Path, words: tuple[str, ...]) -> None:
    one_line(run(*words, cwd=tmp_path), 2, "-h: hardware counters are not recorded; leave it out")
    assert left_in(tmp_path) == []


@pytest.mark.parametrize("option", ["-V", "--version"])
def test_it_knows_its_version(tmp_path: Path, option: str) -> None:
    result = run(option, cwd=tmp_path)
    assert (result.returncode, result.stdout, result.stderr) == (0, f"collect {__version__}\n", "")


@pytest.mark.parametrize("more", [[], ["-g", "g.erg"], ["-o", "name.er"], ["-O", "name.er"]], ids=" ".join)
def test_a_dry_run_does_nothing(tmp_path: Path, more: list[str]) -> None:
    result = run("-n", *more, "touch", "ran", cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    assert "touch" in result.stdout
    assert (more[1] if more else "test.1.er") in result.stdout
    assert left_in(tmp_path) == []


def test_a_dry_run_finds_the_same_errors(tmp_path: Path) -> None:
    (tmp_path / "x.er").mkdir()
    one_line(run("-n", "./missing", cwd=tmp_path), 127, "missing")
    one_line(run("-n", "-o", "x.er", "true", cwd=tmp_path), 1, "x.er")


@perf
def test_experiments_without_a_name_are_numbered(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        assert run("true", cwd=tmp_path).returncode == 0
        assert f"test.{number}.er" in left_in(tmp_path)


@perf
def test_a_directory_and_a_group_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    assert run("-d", "there", "-g", "all.erg", "true", cwd=tmp_path).returncode == 0
    assert run("-d", "there", "-g", "all.erg", "true", cwd=tmp_path).returncode == 0
    names = left_in(tmp_path / "there")
    assert left_in(tmp_path) == ["there"]
    assert names == ["all.1.er", "all.2.er", "all.erg"]
    lines = (tmp_path / "there" / "all.erg").read_text().splitlines()
    assert [Path(line).name for line in lines[-2:]] == ["all.1.er", "all.2.er"]
    assert lines[0] == "#analyzer experiment group"


def test_a_group_that_cannot_be_written_is_told_before_the_program_runs(tmp_path: Path) -> None:
    (tmp_path / "all.erg").mkdir()
    one_line(run("-g", "all.erg", "touch", "ran", cwd=tmp_path), 1, "cannot write all.erg: Is a directory")
    one_line(run("-o", "x.er", "-g", "none/all.erg", "touch", "ran", cwd=tmp_path), 1, "none does not exist")
    assert left_in(tmp_path) == ["all.erg"]


def test_a_group_that_cannot_be_written_any_more_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "all.erg").mkdir()
    said: list[str] = []
    enter_into_group(Options(group="all.erg", directory=str(tmp_path)), tmp_path / "all.1.er", said.append)
    assert said == [f"warning: cannot write {tmp_path}/all.erg: Is a directory; the experiment is not in that group"]


@perf
def test_overwriting_replaces_an_experiment(tmp_path: Path) -> None:
    assert run("-O", "x.er", SH, "-c", "exit 3", cwd=tmp_path).returncode == 3
    before = open_experiment(tmp_path / "x.er").log.pid
    assert run("-O", "x.er", SH, "-c", "exit 4", cwd=tmp_path).returncode == 4
    assert left_in(tmp_path) == ["x.er"]
    after = open_experiment(tmp_path / "x.er")
    assert after.log.pid != before
    assert after.log.complete


def test_what_is_replaced_goes_while_something_is_recorded(tmp_path: Path) -> None:
    """However long that takes: it may have thousands of descendants."""
    recorded, said = threading.Event(), list[str]()

    class Slow(NewDirectory):
        def forget_replaced(self) -> None:
            assert recorded.wait(60)
            super().forget_replaced()

    old = create_directory(str(tmp_path / "x.er")).path
    place = Slow(old, create_directory(str(tmp_path / "draft.er")).path)
    place.take_place()
    assert len(left_in(tmp_path)) == 2
    with forgetting_replaced(place, said.append):
        recorded.set()
    assert (left_in(tmp_path), said, place.replaces) == (["x.er"], [], False)


def test_what_is_replaced_goes_where_there_can_be_no_thread(public_directory: Path) -> None:
    code = ("import resource, sys; from collector.experiment.names import NewDirectory, create_directory\n"
            "from collector.session.session import forgetting_replaced\n"
            "place = NewDirectory(create_directory('x.er').path, create_directory('draft.er').path)\n"
            "place.take_place(); import threading\n"
            "resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))\n"
            "with forgetting_replaced(place, print): print(place.replaces)\n"
            "print(place.replaces)")
    whose: dict[str, Any] = {} if os.geteuid() else {"user": NOBODY, "group": NOBODY}
    done = subprocess.run([sys.executable, "-c", code], cwd=public_directory, capture_output=True, text=True, **whose)
    assert (done.stdout, done.stderr, left_in(public_directory)) == ("True\nFalse\n", "", ["x.er"])


@pytest.fixture
def older(tmp_path: Path) -> Path:
    """An experiment that is to be overwritten."""
    path = create_directory(str(tmp_path / "x.er")).path
    (path / "mark").touch()
    return path


@perf
@pytest.mark.parametrize(("options", "name", "status", "said"), [
    ((), "./script", 127, "its interpreter"), (("--aggregate", "a[waker] = count()"), "true", 2, "--aggregate")])
def test_an_experiment_is_overwritten_when_there_is_something_to_record(
        tmp_path: Path, older: Path, options: tuple[str, ...], name: str, status: int, said: str) -> None:
    script(tmp_path, "#!/no/such/interpreter\n")
    one_line(run("-O", "x.er", *options, "--engine", "signal", name, cwd=tmp_path), status, said)
    assert left_in(tmp_path) == ["script", "x.er"]
    assert (older / "mark").exists()


@perf
def test_an_experiment_is_not_overwritten_by_an_attachment_that_is_refused(tmp_path: Path, older: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        options = ["--engine", "signal", "--aggregate", "a[waker] = count()", "-P", process.pid]
        one_line(run("-O", "x.er", *options, cwd=tmp_path), 2, "--aggregate")
        process.kill()
    assert left_in(tmp_path) == ["x.er"]
    assert (older / "mark").exists()


@perf
def test_an_experiment_is_overwritten_by_an_attachment(tmp_path: Path, older: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        assert run("-O", "x.er", "-t", "0.1", "-P", process.pid, cwd=tmp_path).returncode == 0
        process.kill()
    assert left_in(tmp_path) == ["x.er"]
    assert not (older / "mark").exists()
    assert open_experiment(older).log.complete


@perf
def test_ten_comments_become_notes(tmp_path: Path, gprofng: Any) -> None:
    comments = [f"comment {number} <&> \u00e4" for number in range(10)]
    options = [word for comment in comments for word in ("-C", comment)]
    assert run(*options, "-o", "x.er", "true", cwd=tmp_path).returncode == 0
    assert open_experiment(tmp_path / "x.er").notes == comments
    header = gprofng("-header", experiment=tmp_path / "x.er").text
    assert all(comment in header for comment in comments)


@perf
@pytest.mark.parametrize(("value", "interval_us"), [
    ("on", 10_007), ("hi", 997), ("high", 997), ("lo", 100_003), ("low", 100_003), ("0.5", 500), ("500u", 500),
    ("1000m", 1_000_000), ("7", 7000), ("3.337m", 3337), ("off", 0)])
def test_the_interval_is_the_one_asked_for(
        workload: Callable[..., Path], tmp_path: Path, gprofng: Any, value: str, interval_us: int) -> None:
    done = run("-p", value, "-o", "x.er", workload("recurse"), 3, 0.05, cwd=tmp_path)
    assert done.returncode == 0
    truth = json.loads(done.stdout)
    used_s = truth["user_s"] + truth["system_s"]  # before its exec, too, and without its end
    experiment = open_experiment(tmp_path / "x.er")
    assert experiment.log.interval_us == interval_us
    packets = experiment.packets()
    if 0 < interval_us <= 10_007:
        told_s = packets["NTICK"][packets["MSTATE"] <= 2].sum() * interval_us * 1e-6
        assert 0.05 - interval_us * 1e-6 <= told_s <= used_s + interval_us * 1e-6 + 5e-3
    if interval_us == 0:
        assert len(packets) == 0
    header = gprofng("-header", experiment=tmp_path / "x.er").text
    if interval_us:
        assert f"interval = {interval_us} microsecs." in header


@perf
@pytest.mark.parametrize(("value", "n_periodic"), [("off", 0), ("on", 2), ("2", 1)])
def test_overview_samples_come_at_their_period(tmp_path: Path, value: str, n_periodic: int) -> None:
    """The program ends when they have come; where none is to come, when two periods are over."""
    command, text = [COLLECT, "-S", value, "-o", "x.er", SH, "-c", "read line; exit 0"], tmp_path / "x.er" / "log.xml"
    until_s = time.monotonic() + (0 if n_periodic else 2.3)
    with prefork.Popen(command, cwd=tmp_path, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        while not text.exists() or text.read_bytes().count(b"periodic") < n_periodic or time.monotonic() < until_s:
            assert process.poll() is None
            time.sleep(0.01)
        process.communicate()
    assert process.returncode == 0
    log = open_experiment(tmp_path / "x.er").log
    events = [event for event in log.events if event.kind == "sample"]
    labels = [event.attributes["label"] for event in events]
    assert labels == ["collector_open_experiment", *["periodic"] * n_periodic, "collector_close_experiment"]
    period_ns = NS_PER_S * (2 if value == "2" else 1)
    for number, event in enumerate(events[1:-1], 1):
        assert number * period_ns - EARLY_NS <= event.time_ns - log.start_ns < (number + 1) * period_ns - EARLY_NS


@perf
@pytest.mark.parametrize(("option", "choice"), [
    ("-A", "off"), ("-A", "on"), ("-A", "ldobjects"), ("-A", "usedldobjects"), ("-A", "src"), ("-A", "usedsrc"),
    ("-a", "off"), ("-a", "on")])
def test_archives_are_chosen(workload: Callable[..., Path], tmp_path: Path, option: str, choice: str) -> None:
    # Sources are those of the program alone: of libraries that have debugging information they are a thousand.
    program = workload("recurse", "-O0", *(("-static",) if choice in ("src", "usedsrc") else ()))
    assert run(option, choice, "-p", "hi", "-o", "x.er", program, 3, 0.03, cwd=tmp_path).returncode == 0
    archived = left_in(tmp_path / "x.er" / "archives") if "archives" in left_in(tmp_path / "x.er") else []
    assert bool(archived) == (choice != "off")
    assert any(name.startswith("recurse") and "-O0" in name for name in archived) == (choice != "off")
    assert any("recurse.c" in name for name in archived) == (choice in ("src", "usedsrc"))


@perf
def test_verbose_says_what_is_recorded(tmp_path: Path) -> None:
    result = run("-v", "-o", "x.er", "true", cwd=tmp_path)
    lines = result.stderr.splitlines()
    assert len(lines) >= 2
    assert all(line.startswith("collect: ") for line in lines)
    assert "x.er" in lines[0]
    assert "perf" in lines[0]


@pytest.mark.parametrize("is_made_by_a_thread", [False, True])
def test_a_signal_to_a_child_that_is_held_ends_it_when_it_is_let_go(is_made_by_a_thread: bool) -> None:
    """As it would a program that has just begun: until then events can be opened on it."""
    child = HeldChild("/bin/true", ["true"], inherited())
    assert not is_made_by_a_thread or child.maker_tid
    pid = child.make()
    os.kill(pid, signal.SIGTERM)
    time.sleep(0.1)
    assert os.waitpid(pid, os.WNOHANG) == (0, 0)
    child.release()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGTERM


def is_in_call(pid: int) -> bool:
    """Whether a process sleeps in a system call."""
    return state_of(pid) == "S" and Path(f"/proc/{pid}/syscall").read_text() != "running\n"


def test_what_a_child_used_before_it_executes_itself_is_told_of_that_moment(tmp_path: Path) -> None:
    """It is none of the program's, and what a thread runs between an account and its first record is not known."""
    program = tmp_path / "say"
    program.write_text(f"#!/bin/sh\ncat /proc/$$/schedstat > {tmp_path}/said\n")
    program.chmod(0o755)
    child = HeldChild(str(program), [str(program)], inherited())
    pid = child.make()
    while not is_in_call(pid):  # it waits to be let go
        time.sleep(0.001)
    held = account_of(pid, pid)
    let_go_ns = time.monotonic_ns()
    before = child.release()
    assert os.waitpid(pid, 0) == (pid, 0)
    assert before is not None
    run_ns, delay_ns, turns = map(int, (tmp_path / "said").read_text().split())
    assert let_go_ns <= before.time_ns <= time.monotonic_ns()
    assert held.run_ns < before.run_ns < run_ns
    assert held.delay_ns <= before.delay_ns <= delay_ns
    assert held.turns < before.turns <= turns


HELD = """
import os
from collector.session.launch import HeldChild, inherited
child = HeldChild("/bin/true", ["true"], inherited())
child.make()
child.await_traceable()
child.release()
os.waitpid(child.pid, 0)
"""


def test_who_descends_from_the_maker_may_trace_a_child_while_it_is_held(
        tmp_path: Path, need: Callable[[str, str], str]) -> None:
    """Where Yama's ptrace_scope is 1, the kernel lets it only if the child has said so (PR_SET_PTRACER)."""
    command = [need("strace", "strace"), "-f", "-X", "raw", "-o", tmp_path / "calls", "-e", "trace=prctl,write,execve"]
    subprocess.run([*command, sys.executable, "-c", HELD], check=True, timeout=60)
    calls = re.findall(r"^(\d+) +(\w+)\((?:0x59616d61, (\d+)|[^()]*)\)", (tmp_path / "calls").read_text(), re.MULTILINE)
    maker = calls[0][0]
    assert [call[1:] for call in calls if call[0] != maker] == [
        ("prctl", maker), ("write", ""), ("prctl", "0"), ("write", ""), ("execve", "")]


def test_a_script_that_was_found_by_its_name_lacks_its_interpreter_not_itself(tmp_path: Path) -> None:
    path = script(tmp_path, "#!/no/such/interpreter\n")
    child = HeldChild(str(path), [path.name], inherited())
    child.make()
    with pytest.raises(ProgramNotFound, match="script': its interpreter"):
        child.release()


def test_a_child_that_cannot_execute_itself_says_why_though_it_has_an_account(tmp_path: Path) -> None:
    child = HeldChild(str(tmp_path / "none"), ["none"], inherited())
    pid = child.make()
    with pytest.raises(ProgramNotFound, match="none"):
        child.release()
    with pytest.raises(ChildProcessError):
        os.waitpid(pid, 0)


@perf
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
def test_a_signal_behind_the_programs_end_ends_the_recording_of_those_that_it_left(
        tmp_path: Path, number: signal.Signals) -> None:
    """Its number may be another's by now."""
    command = [COLLECT, "--wait-descendants", "-o", "x.er", SH, "-c", "sleep 60 <&- >&- & echo $! $$"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        left, ended = map(int, process.stdout.readline().split())
        try:
            while Path(f"/proc/{ended}").exists():
                assert process.poll() is None
                time.sleep(0.01)
            process.send_signal(number)
            assert process.wait(60) == 0
        finally:
            os.kill(left, signal.SIGKILL)
    assert open_experiment(tmp_path / "x.er").log.complete
