"""The collector is killed while it stands back: its heir writes what the program did until then, and ends.

The program goes on until it is told to end: however late a test comes to that, it finds what it looks for.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from children import children_of
from neighbours import one_for_each_cpu

from collector.clock import NS_PER_S
from collector.experiment.reader import open_experiment
from collector.linux import tasks
from collector.session.heir import KILLED
from collector.session.standing_back import PATIENCE_NS

Run = Callable[..., Any]
COLLECT = str(Path(sys.executable).with_name("collect"))
N_CPUS = len(os.sched_getaffinity(0))
STATUS = 7
N_SLEEPS = 20  # of half a second
LAW_NS = NS_PER_S  # of which who kills us may take the last one

pytestmark = pytest.mark.usefixtures("waits_recorded")

# Keeps as many threads busy as there are CPUs, until its input ends.
PROGRAM = r"""
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
static int is_over;
static void *spin(void *x) {
    while (!__atomic_load_n(&is_over, __ATOMIC_SEQ_CST)) {}
    return x;
}
__attribute__((noinline)) static void spin_until_told(void) {
    struct pollfd input = {0, POLLIN, 0};
    while (poll(&input, 1, 0) == 0) for (volatile int i = 0; i < 1000003; i++) {}
    is_over = 1;
}
int main(int argc, char **argv) {
    int n = atoi(argv[1]);
    pthread_t threads[n];
    for (int i = 1; i < n; i++) pthread_create(threads + i, NULL, spin, NULL);
    spin_until_told();
    for (int i = 1; i < n; i++) pthread_join(threads[i], NULL);
    puts("done");
    return 7;
}
"""


@pytest.fixture(scope="module")
def program(need: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program above."""
    directory = tmp_path_factory.mktemp("busy")
    (directory / "busy.c").write_text(PROGRAM)
    subprocess.run([need("gcc", "gcc"), "-O1", "-pthread", "-o", directory / "busy", directory / "busy.c"], check=True)
    return directory / "busy"


# In a session of its own, which has next to nothing where anybody else wants a CPU.
IDLES = """
import os
from contextlib import suppress
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
with suppress(OSError), open("/proc/self/autogroup", "w") as file: file.write("19")
print(1, flush=True)
while True: pass
"""


@pytest.fixture(autouse=True)
def no_cpu_is_free() -> Iterator[None]:
    """As many that are ready to run as there are CPUs, also while the program has yet to make its threads."""
    with one_for_each_cpu(IDLES, start_new_session=True):
        yield


class Recorded:
    """A collector, its program and its heir, by their numbers; without an heir, once something has been drained."""

    def __init__(self, program: Path, path: Path, *options: str, **more: Any) -> None:
        self.path = path
        command = [COLLECT, "-A", "off", "-o", str(path), *options, str(program), str(N_CPUS)]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self.collector = subprocess.Popen(command, text=True, start_new_session=True, **(pipes | more))
        self.heir = self.program = 0
        while self.collector.poll() is None and not (self.program and (self.heir or self.is_drained())):
            for child in self.children():
                with suppress(OSError):  # it is gone
                    if os.readlink(f"/proc/{child}/exe") == str(program.resolve()):
                        self.program = child
                    elif os.getsid(child) == child and is_copy(child, self.collector.pid):
                        self.heir = child
            time.sleep(0.01)

    def children(self) -> list[int]:
        """Of the collector; none when it is over."""
        with suppress(OSError):
            return children_of(self.collector.pid)
        return []

    def is_drained(self) -> bool:
        """Whether anything has been written."""
        return (self.path / "profile").exists()

    def said(self) -> str:
        """Tells the program to end: what it printed, until nobody has its standard output any more."""
        assert self.collector.stdin is not None and self.collector.stdout is not None
        self.collector.stdin.close()
        with self.collector.stdout:
            return self.collector.stdout.read()


def is_copy(pid: int, other: int) -> bool:
    """Whether a process was forked from another one, and has not begun another program. The watchdog has; and who is
    about to end has no command line any more."""
    command, others = (Path(f"/proc/{each}/cmdline").read_bytes() for each in (pid, other))
    return command == others != b""


def n_sleeps(pid: int) -> int:
    """How often the first thread of a process has left its CPU by itself."""
    return tasks.switches(Path(f"/proc/{pid}/status").read_bytes())[0]


def ended(pid: int) -> int:
    """The exit status of a process that was left to us."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def messages(path: Path) -> list[str]:
    """The texts in the log."""
    return [message.text for message in open_experiment(path).log.messages]


def last_ns(path: Path) -> int:
    """The time of the last packet."""
    return int(open_experiment(path).packets()["TSTAMP"].max())


@pytest.mark.parametrize("later_s", [0, 0.7])
def test_what_was_recorded_until_the_kill_is_written(later_s: float, program: Path, tmp_path: Path, need: Run) -> None:
    recorded = Recorded(program, tmp_path / "x.er")
    assert recorded.heir
    time.sleep(later_s)
    killed_ns = time.monotonic_ns()
    recorded.collector.kill()
    recorded.collector.wait()
    assert ended(recorded.heir) == 0
    assert recorded.said() == "done\n"
    assert ended(recorded.program) == STATUS
    assert killed_ns - last_ns(recorded.path) <= LAW_NS
    assert later_s or KILLED in messages(recorded.path)
    experiment = open_experiment(recorded.path)
    assert not experiment.problems
    assert experiment.log.ppid == recorded.collector.pid
    assert int(experiment.packets()["NTICK"].sum()) * experiment.log.interval_us >= PATIENCE_NS // 1000
    shown = subprocess.run([need("gprofng", "binutils"), "display", "text", "-functions", recorded.path],
                           capture_output=True, text=True, check=True)
    assert shown.stderr == ""
    assert "spin" in shown.stdout


def test_who_kills_the_program_as_well_leaves_the_heir(program: Path, tmp_path: Path) -> None:
    recorded = Recorded(program, tmp_path / "x.er")
    assert recorded.heir
    killed_ns = time.monotonic_ns()
    os.killpg(recorded.collector.pid, signal.SIGKILL)
    recorded.collector.wait()
    assert ended(recorded.program) == -signal.SIGKILL
    assert ended(recorded.heir) == 0
    assert recorded.said() == ""
    assert KILLED in messages(recorded.path)
    assert killed_ns - last_ns(recorded.path) <= LAW_NS


def test_no_signal_but_one_ends_the_heir_and_the_end_of_the_recording_does(program: Path, tmp_path: Path) -> None:
    recorded = Recorded(program, tmp_path / "x.er")
    heir = os.pidfd_open(recorded.heir)
    for number in (signal.SIGINT, signal.SIGTSTP, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        os.kill(recorded.heir, number)
    time.sleep(0.05)
    assert recorded.heir in recorded.children()
    assert recorded.said() == "done\n"
    assert recorded.collector.wait() == STATUS
    with pytest.raises(ProcessLookupError):
        signal.pidfd_send_signal(heir, 0)
    os.close(heir)
    assert KILLED not in messages(recorded.path)


def test_without_its_heir_the_collector_stands_back_no_longer(program: Path, tmp_path: Path) -> None:
    """It imports at once: who stands back sleeps forty times a second, and imports nothing. Python tells of each."""
    said = tmp_path / "said"
    with said.open("wb") as file:
        recorded = Recorded(program, tmp_path / "x.er", stderr=file,
                            env=os.environ | {"PYTHONPROFILEIMPORTTIME": "1"})
    assert recorded.heir
    heir, told = os.pidfd_open(recorded.heir), said.read_bytes()
    os.kill(recorded.heir, signal.SIGKILL)
    select.select([heir], [], [])  # it stands back until then
    os.close(heir)
    n_before = n_sleeps(recorded.collector.pid)
    while (n_imports := said.read_bytes().count(b"\n") - told.count(b"\n")) == 0:
        assert recorded.collector.poll() is None, "nothing was imported before the end"
        time.sleep(0.001)
    # Where we come late, it has imported more, and sleeps as all do.
    assert n_sleeps(recorded.collector.pid) - n_before < max(N_SLEEPS, n_imports)
    while not recorded.is_drained():
        assert recorded.collector.poll() is None, "nothing was written before the end"
        time.sleep(0.01)
    assert recorded.program in recorded.children()
    assert recorded.said() == "done\n"
    assert recorded.collector.wait() == STATUS


@pytest.mark.parametrize("option", [["-p", "hi"], ["-g", "x.erg"], ["-t", "9"], ["-S", "2"]])
def test_who_cannot_wait_has_no_heir(option: list[str], program: Path, tmp_path: Path,
                                     monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    recorded = Recorded(program, tmp_path / "x.er", *option)
    recorded.said()
    assert recorded.collector.wait() == STATUS
    assert not recorded.heir
