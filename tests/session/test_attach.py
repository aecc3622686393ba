"""Attaching to running processes with the perf engine: what is found, what is left behind, what is refused."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from collector.errors import TargetGone
from collector.experiment.reader import open_experiment
from collector.linux import abi, perf, proc
from collector.session.attach import Targets

Run = Callable[..., Any]
USER = 0

pytestmark = pytest.mark.usefixtures("perf_allowed")

# A chain of functions per thread: some work, some sleep, one waits for a lock all the time.
PROGRAM = r"""
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
__attribute__((noipa)) static long spin(long n) {
    volatile long x = 0;
    for (long i = 0; i < n; i++) x += i;
    return x;
}
__attribute__((noipa)) static void work(void) { for (;;) spin(1000003); }
__attribute__((noipa)) static void doze(void) { for (;;) sleep(1000); }
__attribute__((noipa)) static void want(void) { pthread_mutex_lock(&lock); }
static void *worker(void *x) { work(); return x; }
static void *dozer(void *x) { doze(); return x; }
static void *wanter(void *x) { want(); return x; }
int main(int argc, char **argv) {
    pthread_t t;
    int n = atoi(argv[1]);
    pthread_mutex_lock(&lock);
    pthread_create(&t, NULL, worker, NULL);
    pthread_create(&t, NULL, wanter, NULL);
    for (int i = 0; i < n; i++) pthread_create(&t, NULL, dozer, NULL);
    puts("ready");
    fflush(stdout);
    doze();
}
"""


@pytest.fixture(scope="module")
def program(need: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program above, -O2 without frame pointers."""
    directory = tmp_path_factory.mktemp("attach")
    source, built = directory / "threads.c", directory / "threads"
    source.write_text(PROGRAM)
    subprocess.run([need("gcc", "gcc"), "-O2", "-fno-optimize-sibling-calls", "-o", built, source, "-lpthread"],
                   check=True)
    return built


@contextmanager
def running(*command: object) -> Iterator[subprocess.Popen[str]]:
    """A process that has said its first line; killed in the end."""
    process = subprocess.Popen([*map(str, command)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def states(pid: int) -> list[str]:
    """The state letters of all threads."""
    return [Path(f"/proc/{pid}/task/{tid}/stat").read_text().rpartition(")")[2].split()[0]
            for tid in os.listdir(f"/proc/{pid}/task")]


def assert_untouched(pid: int) -> None:
    status = Path(f"/proc/{pid}/status").read_text()
    assert re.search(r"TracerPid:\s+0\n", status)
    assert not {"t", "T"} & set(states(pid))


@pytest.mark.parametrize("n_dozers", [3, 499])
def test_all_threads_are_there_with_their_states_and_stacks(n_dozers: int, program: Path, collect: Run, gprofng: Run,
                                                            tmp_path: Path) -> None:
    path = tmp_path / "attached.er"
    with running(program, n_dozers) as process:
        while sorted(states(process.pid)) != ["R", *["S"] * (n_dozers + 2)]:  # each is where it stays
            time.sleep(0.01)
        result = collect("-P", process.pid, "-t", "1.5", "-p", "hi", "-o", path)
        assert result.returncode == 0, result.stderr
        assert_untouched(process.pid)
    life_s = open_experiment(path).log.end_ns - open_experiment(path).log.start_ns
    life_s /= 1e9
    functions = gprofng("-metrics", "i.sleep:i.lock:i.totalcpu:name", "-functions", experiment=path).functions
    total = functions["<Total>"]
    assert total[0] == pytest.approx((n_dozers + 1) * life_s, rel=0.02, abs=0.05)
    assert total[1] == pytest.approx(life_s, rel=0.02, abs=0.05)
    assert functions["doze"][0] == pytest.approx(total[0], rel=0.01)
    assert functions["want"][1] == pytest.approx(total[1], rel=0.01)
    assert functions["spin"][2] == pytest.approx(total[2], rel=0.02)
    tree = gprofng("-metrics", "e.sleep:name", "-calltree", experiment=path).tree
    assert any("main" in call and "doze" in call for call in tree)
    assert any("dozer" in call and "doze" in call for call in tree)


READS_AND_NAPS = """
import time
print(1, flush=True)
with open("/dev/zero", "rb", buffering=0) as zero:
    while 1:
        zero.read(1009)
        sum(range(20000))
        time.sleep(0.0001)
"""


@pytest.mark.parametrize("engine", ["perf", "signal"])
def test_the_only_overview_sample_has_all_and_nothing_twice(engine: str, collect: Run, tmp_path: Path) -> None:
    path, interval_ns = tmp_path / "attached.er", 997_000
    with running(sys.executable, "-c", READS_AND_NAPS) as process:
        time.sleep(0.3)  # what was before is none of it
        result = collect("--engine", engine, "-P", process.pid, "-t", "0.7", "-S", "off", "-p", "hi", "-o", path)
        assert result.returncode == 0, result.stderr
        used = proc.process_usage(process.pid)
        n_before = proc.process_switches(process.pid)[0]
    experiment = open_experiment(path)
    (sample,) = experiment.samples
    packets = experiment.packets()
    told_ns = int(packets["NTICK"][packets["MSTATE"] <= 2].sum()) * interval_ns
    assert sum(sample.states_ns[:3]) == pytest.approx(told_ns, abs=3 * interval_ns)
    assert used is not None
    assert 0 < sample.counters["system_calls"] < used.system_calls
    assert 0 < sample.counters["characters_io"] < used.io_characters
    assert 0 < sample.counters["voluntary_switches"] < n_before


def test_interpreter_attached_in_the_middle_of_its_work(collect: Run, gprofng: Run, tmp_path: Path) -> None:
    path = tmp_path / "python.er"
    with running("/usr/bin/python3", "-c", "print(1, flush=True)\nwhile 1: sorted(range(1000), key=str)") as process:
        result = collect("-P", process.pid, "-t", "1.2", "-p", "hi", "-o", path)
        assert result.returncode == 0, result.stderr
        assert_untouched(process.pid)
    log = open_experiment(path).log
    functions = gprofng("-metrics", "i.totalcpu:i.wait:name", "-functions", experiment=path).functions
    cpu_s, wait_s = functions["<Total>"]
    assert cpu_s > 0
    assert cpu_s + wait_s == pytest.approx((log.end_ns - log.start_ns) * 1e-9, rel=0.01)  # it never sleeps
    assert functions["_start"][0] == pytest.approx(cpu_s, rel=0.02)
    assert b"python3" in log.arguments


def test_descendants_born_later_are_recorded(tmp_path: Path) -> None:
    """Two for each line of input, and the programs that they become."""
    path, n_lines = tmp_path / "shell.er", 7
    command = [str(Path(sys.executable).with_name("collect")), "-o", str(path)]
    with running("/bin/sh", "-c", "echo; while read go; do /bin/true; sleep 0.05; echo done; done") as process:
        assert process.stdin is not None and process.stdout is not None
        collector = subprocess.Popen([*command, "-P", str(process.pid)], stderr=subprocess.PIPE, text=True)
        while not (path / "profile").exists():
            assert collector.poll() is None
            time.sleep(0.02)
        for _ in range(n_lines):
            process.stdin.write("go\n")
            process.stdin.flush()
            assert process.stdout.readline() == "done\n"
        collector.send_signal(signal.SIGINT)
        _, said = collector.communicate()
    assert collector.returncode == 0, said
    assert {child.name for child in open_experiment(path).children} == {
        f"_f{number}{program}.er" for number in range(1, 2 * n_lines + 1) for program in ("", "_x1")}


def test_several_processes_and_their_trees(collect: Run, gprofng: Run, program: Path, tmp_path: Path) -> None:
    path = tmp_path / "tree.er"
    with running("/bin/sh", "-c", f"{program} 1 & wait") as shell, running(program, 1) as other:
        result = collect("-P", shell.pid, "-P", other.pid, "--tree", "-t", "0.7", "-p", "hi", "-o", path)
        assert result.returncode == 0, result.stderr
        inner = [child.name for child in open_experiment(path).children]
        assert len(inner) == 2
        assert sum(f"_PID_{other.pid}." in name for name in inner) == 1
        for name in inner:
            assert "work" in gprofng("-functions", experiment=path / name).functions
        subprocess.run(["pkill", "-KILL", "-P", str(shell.pid)], check=True)


def test_ctrl_c_ends_the_recording_and_not_the_target(program: Path, tmp_path: Path, gprofng: Run) -> None:
    path = tmp_path / "c.er"
    command = [str(Path(sys.executable).with_name("collect")), "-o", str(path)]
    with running(program, 1) as process:
        collector = subprocess.Popen([*command, "-P", str(process.pid)], stderr=subprocess.PIPE, text=True)
        while not (path / "profile").exists():  # it has begun, and knows what to do then
            assert collector.poll() is None
            time.sleep(0.02)
        time.sleep(0.3)
        collector.send_signal(signal.SIGINT)
        _, said = collector.communicate()
        assert collector.returncode == 0, said
        assert process.poll() is None
        assert_untouched(process.pid)
    assert "not closed" not in gprofng("-header", experiment=path).text


def test_it_ends_with_the_target(tmp_path: Path, gprofng: Run) -> None:
    path = tmp_path / "end.er"
    command = [str(Path(sys.executable).with_name("collect")), "-o", str(path)]
    with running("/bin/sh", "-c", "echo; exec sleep 61") as process:
        collector = subprocess.Popen([*command, "-P", str(process.pid)], stderr=subprocess.PIPE, text=True)
        while not (path / "profile").exists():
            assert collector.poll() is None
            time.sleep(0.02)
        process.kill()
        process.wait()
        _, said = collector.communicate()
    assert collector.returncode == 0, said
    assert "not closed" not in gprofng("-header", experiment=path).text


def test_a_killed_collector_leaves_the_target_alone(program: Path, tmp_path: Path, gprofng: Run) -> None:
    path = tmp_path / "k.er"
    command = [str(Path(sys.executable).with_name("collect")), "-o", str(path)]
    with running(program, 3) as process:
        collector = subprocess.Popen([*command, "-P", str(process.pid)], stderr=subprocess.DEVNULL)
        while not (path / "profile").exists() or (open_experiment(path).packets()["MSTATE"] == USER).sum() < 21:
            assert collector.poll() is None
            time.sleep(0.02)
        collector.kill()
        collector.wait()
        assert process.poll() is None
        assert_untouched(process.pid)
    assert gprofng("-functions", experiment=path).functions["<Total>"][0] > 0.1


@pytest.mark.parametrize(("pid", "words"), [("999999", "no such process"), ("2", "kernel"), ("self", "itself")])
def test_what_cannot_be_attached(pid: str, words: str, tmp_path: Path) -> None:
    command = str(Path(sys.executable).with_name("collect"))
    number = "$$" if pid == "self" else pid
    result = subprocess.run(["/bin/sh", "-c", f"exec {command} -o {tmp_path}/x.er -P {number}"], capture_output=True,
                            text=True, check=False)
    assert (result.returncode, len(result.stderr.splitlines())) == (1, 1), result.stderr
    assert words in result.stderr
    assert not (tmp_path / "x.er").exists()


@pytest.mark.parametrize("arguments", [("-P", "x"), ("-P", "0"), ("--tree",), ("-P", "1", "/bin/true")])
def test_usage(arguments: tuple[str, ...], collect: Run) -> None:
    result = collect(*arguments)
    assert (result.returncode, len(result.stderr.splitlines())) == (2, 1)


@pytest.mark.usefixtures("perf_allowed")
def test_of_who_is_ending_it_is_said_that_it_has_ended() -> None:
    """Its events are refused from its last moments on, its pidfd tells them when its memory has been given back."""
    specs = [perf.EventSpec("task", abi.pack_attr(config=abi.SW_DUMMY, period=0, sample_type=0, watermark=0,
                                                  flags=abi.DISABLED | abi.EXCLUDE_KERNEL), perf.PAGE)]
    nobody = 2**22 + 1
    with subprocess.Popen(["sleep", "60"]) as sleeper:
        try:
            targets = Targets([sleeper.pid], False, print)
            with pytest.raises(TargetGone, match=f"-P {sleeper.pid}: the process ended while it was being attached"):
                targets.open(lambda pids: perf.open_rings([nobody], specs))
        finally:
            sleeper.kill()
    for fd in targets.pidfds():
        os.close(fd)
