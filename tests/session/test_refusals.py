"""What cannot be attached: one line that says what to do, status 1, and nothing left behind, with every engine."""

from __future__ import annotations

import fcntl
import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import prefork
import pytest

from collector.session import attach

COLLECT = str(Path(sys.executable).with_name("collect"))
ENGINES = ["auto", "perf", "signal"]
NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
PF_KTHREAD = 0x200000
PID_MAX = 1 << 22  # of Linux on 64 bits; no process ever has this number

# An ordinary user's line about perf, where the kernel refuses that, comes before the one about the target.
pytestmark = pytest.mark.usefixtures("perf_allowed")


@contextmanager
def somebody_elses() -> Iterator[tuple[list[str], int]]:
    """(how to run collect, a process that it may not look at)"""
    if os.geteuid() != 0:
        yield [], 1
        return
    with subprocess.Popen(["sleep", "60"]) as process:
        yield NOBODY, process.pid
        process.kill()


@contextmanager
def hidden() -> Iterator[tuple[list[str], int]]:
    """One that this user's /proc does not have."""
    with somebody_elses() as (nobody, pid):
        mount = ["unshare", "-m", "sh", "-c", 'mount -t proc -o hidepid=2 proc /proc && exec "$@"', "sh"]
        yield [*mount, *nobody] if nobody else [], pid


@contextmanager
def kernel_thread() -> Iterator[tuple[list[str], int]]:
    """The first one; a container may show none."""
    for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdigit()):
        if int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[6]) & PF_KTHREAD:
            yield [], pid
            return
    if os.environ.get("CI"):
        pytest.fail("under CI nothing is skipped: no thread of the kernel is seen here", pytrace=False)
    pytest.skip("no thread of the kernel is seen here")


@contextmanager
def zombie() -> Iterator[tuple[list[str], int]]:
    """A child of ours that has ended."""
    with subprocess.Popen(["true"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        yield [], process.pid


@contextmanager
def ended() -> Iterator[tuple[list[str], int]]:
    """A number that nobody has any more."""
    process = subprocess.Popen(["true"])
    process.wait()
    yield [], process.pid


@contextmanager
def no_number_of_a_process() -> Iterator[tuple[list[str], int]]:
    """One that is too large."""
    yield [], PID_MAX


@contextmanager
def thread() -> Iterator[tuple[list[str], int]]:
    """A thread that is not its process's first one."""
    code = "import threading, time; t = threading.Thread(target=time.sleep, args=(60,), daemon=True); t.start(); " \
           "print(t.native_id, flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          text=True) as process:
        assert process.stdout is not None
        yield [], int(process.stdout.readline())
        process.communicate("\n")


CASES = {
    somebody_elses: "run collect as root",
    hidden: "run collect as root",
    kernel_thread: "give the number of a program's process",
    zombie: "give the number of one that runs",
    ended: "ps -e lists those that there are",
    no_number_of_a_process: "ps -e lists those that there are",
    thread: "give the number of a process, not of a thread",
}


def refused(command: list[str], directory: Path, advice: str) -> None:
    """One line with an advice, status 1, and nothing else."""
    result = prefork.run(command, cwd=directory, capture_output=True, text=True, timeout=30, check=False)
    assert re.fullmatch(r"collect: -P \d+: [^\n]+\n", result.stderr), result.stderr
    assert advice in result.stderr
    assert (result.returncode, result.stdout) == (1, "")
    assert os.listdir(directory) == []


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_what_is_no_target(case: Callable[[], AbstractContextManager[tuple[list[str], int]]], engine: str,
                           tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with case() as (prefix, pid):
        refused([*prefix, COLLECT, "--engine", engine, "-P", str(pid)], tmp_path, CASES[case])


@pytest.mark.parametrize("engine", ENGINES)
def test_collect_does_not_record_itself(engine: str, tmp_path: Path) -> None:
    command = ["/bin/sh", "-c", f"exec {COLLECT} --engine {engine} -P $$"]
    refused(command, tmp_path, "give the number of another process")


@pytest.mark.parametrize("engine", ENGINES)
def test_one_that_cannot_be_attached_keeps_the_others_free(engine: str, tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as process, ended() as (_, gone):
        while not re.search(r"State:\s+S", Path(f"/proc/{process.pid}/status").read_text()):
            pass
        command = [COLLECT, "--engine", engine, "-P", str(process.pid), "-P", str(gone)]
        refused(command, tmp_path, "no such process")
        status = Path(f"/proc/{process.pid}/status").read_text()
        assert "TracerPid:\t0\n" in status
        assert re.search(r"State:\s+S", status)
        process.kill()


@pytest.mark.usefixtures("root")
def test_root_is_not_advised_to_be_root(tmp_path: Path) -> None:
    with subprocess.Popen([*NOBODY, "sleep", "60"]) as process:
        while "Uid:\t65534" not in Path(f"/proc/{process.pid}/status").read_text():
            pass
        less = ["setpriv", "--bounding-set=-sys_ptrace,-perfmon,-sys_admin"]  # (newer kernels let perfmon look, too)
        refused([*less, COLLECT, "-P", str(process.pid)], tmp_path, "lacks the capability CAP_SYS_PTRACE")
        process.kill()


N_CHILDREN = 61


def test_more_processes_than_descriptors(as_nobody: list[str], tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    script = f"for i in $(seq {N_CHILDREN}); do sleep 60 & done; echo ready; wait"
    with subprocess.Popen([*as_nobody, "sh", "-c", script], stdout=subprocess.PIPE,
                          start_new_session=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        # An ordinary user does not get more.
        few = ["sh", "-c", f'ulimit -n {N_CHILDREN - 2}; exec "$@"', "sh", *as_nobody]
        refused([*few, COLLECT, "--tree", "-P", str(process.pid)], tmp_path, "too many open files: raise the limit (ul")
        os.killpg(process.pid, signal.SIGKILL)


def test_descriptors_that_select_cannot_look_at() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1100), hard))
    with subprocess.Popen(["sleep", "60"]) as process:
        pidfd = os.pidfd_open(process.pid)
        target = attach.Target(process.pid, fcntl.fcntl(pidfd, fcntl.F_DUPFD_CLOEXEC, 1031))
        os.close(pidfd)
        assert target.alive()
        process.kill()
        process.wait()
        assert not target.alive()
        os.close(target.pidfd)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("attach_allowed")
@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside another"])
def test_a_process_that_a_debugger_has(beside: bool, tmp_path: Path) -> None:
    # Only one can trace a process. (The kernel's events do not mind.)
    command = [COLLECT, "--engine", "signal", "-v", "-o", "first.er", "-P"]
    with subprocess.Popen(["sleep", "60"]) as process, subprocess.Popen(["sleep", "60"]) as other:
        first = prefork.Popen([*command, str(process.pid)], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
        assert first.stderr is not None
        assert "experiment" in first.stderr.readline()  # it records
        asked = [word for pid in [other.pid] * beside + [process.pid] for word in ("-P", str(pid))]
        second = prefork.run([COLLECT, "--engine", "signal", "-o", "second.er", *asked],
                             cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False)
        process.kill()
        other.kill()
        first.communicate(timeout=30)
        assert first.returncode == 0
    assert re.fullmatch(r"collect: [^\n]*traced already[^\n]*\n", second.stderr), second.stderr
    assert second.returncode == 1
    assert os.listdir(tmp_path) == ["first.er"]


def test_an_ordinary_user_has_perf_where_the_kernel_says_so(as_nobody: list[str], public_directory: Path) -> None:
    """At level 2 the kernel lets everybody see the user mode of their own processes."""
    level = int(Path("/proc/sys/kernel/perf_event_paranoid").read_text())
    command = [*as_nobody, COLLECT, "--engine", "perf", "-o", "x.er", "sh", "-c", "for i in 1 2 3; do /bin/true; done"]
    result = subprocess.run(command, cwd=public_directory, capture_output=True, text=True, timeout=60, check=False)
    if level > 2 and as_nobody:
        assert (result.returncode, result.stderr.count("\n")) == (1, 1)
    else:
        assert result.returncode == 0, result.stderr
        assert re.search(r"^collect: x.er: .* 6 descendants, .* nothing lost$", result.stderr, re.MULTILINE)
