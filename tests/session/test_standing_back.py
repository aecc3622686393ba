"""The collector's own start while its target wants all CPUs: when it waits, and what ends that."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from collector.clock import INTERVAL_ON_NS, NS_PER_S
from collector.engines.perf import opening as perf_opening
from collector.session.standing_back import PATIENCE_NS, StandBack

Run = Callable[..., Any]
N_CPUS = len(os.sched_getaffinity(0))
SECONDS = 0.4
WAITS_S = 0.2
PATIENCE_S = PATIENCE_NS / NS_PER_S

pytestmark = [pytest.mark.kernel_times, pytest.mark.all_cpus, pytest.mark.usefixtures("perf_allowed")]

# Keeps as many threads busy as it is told, and says how much CPU time its parent, the collector, has used meanwhile.
PROGRAM = r"""
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
static double until;
static double seconds(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}
static void *spin(void *x) {
    while (seconds(CLOCK_MONOTONIC) < until) {}
    return x;
}
int main(int argc, char **argv) {
    int n = atoi(argv[2]);
    pthread_t threads[n];
    clockid_t parent;
    clock_getcpuclockid(getppid(), &parent);
    double before = seconds(parent);
    until = seconds(CLOCK_MONOTONIC) + atof(argv[1]);
    for (int i = 1; i < n; i++) pthread_create(threads + i, NULL, spin, NULL);
    spin(NULL);
    for (int i = 1; i < n; i++) pthread_join(threads[i], NULL);
    printf("{\"collector_s\": %f}\n", seconds(parent) - before);
    return 7;
}
"""


@pytest.fixture(scope="module")
def program(need: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program above."""
    directory = tmp_path_factory.mktemp("wanting")
    (directory / "wanting.c").write_text(PROGRAM)
    subprocess.run([need("gcc", "gcc"), "-O1", "-pthread", "-o", directory / "wanting", directory / "wanting.c"],
                   check=True)
    return directory / "wanting"


@pytest.mark.parametrize("engine", ["perf", "signal"])
def test_a_program_that_wants_all_cpus_has_them(engine: str, program: Path, collect: Run, tmp_path: Path) -> None:
    result = collect("--engine", engine, "-A", "off", "-o", tmp_path / "x.er", program, SECONDS, N_CPUS)
    assert result.returncode == 7
    # The libraries alone would take 0.1 s.
    assert json.loads(result.stdout)["collector_s"] < 0.04


@pytest.fixture
def no_cpu_is_free() -> Iterator[None]:
    """As many that run all the time as there are CPUs."""
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(N_CPUS)]
    yield
    for process in running:
        process.kill()
        process.wait()


@pytest.fixture
def target() -> Iterator[subprocess.Popen[str]]:
    """A shell that is busy until it has a command."""
    script = "trap 'read command; eval \"$command\"' USR1; echo ready; while :; do :; done"
    with subprocess.Popen(["sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                          start_new_session=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        os.killpg(process.pid, 9)


def command(target: subprocess.Popen[str], text: str) -> None:
    """Lets the shell do something."""
    assert target.stdin is not None
    target.stdin.write(text + "\n")
    target.stdin.flush()
    target.send_signal(signal.SIGUSR1)


DUE: dict[str, Callable[[subprocess.Popen[str]], object]] = {
    "a child": lambda target: command(target, "sleep 60 &"),
    "another program": lambda target: command(target, "exec sleep 60"),
    "its end": lambda target: target.kill(),
    "a sleep": lambda target: target.send_signal(signal.SIGUSR1),  # it waits for the command
}


@pytest.mark.usefixtures("no_cpu_is_free")
@pytest.mark.parametrize("what", DUE)
def test_nothing_is_waited_for_once_something_is_due(what: str, target: subprocess.Popen[str]) -> None:
    opened = perf_opening.open_events([target.pid], INTERVAL_ON_NS, on_exec=False, follow=True)
    finder = StandBack(target.pid, opened, time.monotonic_ns())
    timer = threading.Timer(WAITS_S, DUE[what], [target])
    began = time.monotonic()
    timer.start()
    assert finder.find_spec("something", None) is None
    assert time.monotonic() - began >= WAITS_S
    timer.join()
    finder.close()
    opened.close()


@pytest.mark.usefixtures("no_cpu_is_free")
@pytest.mark.parametrize("late_s", [PATIENCE_S - WAITS_S, PATIENCE_S])
def test_patience_has_an_end(late_s: float, target: subprocess.Popen[str]) -> None:
    opened = perf_opening.open_events([target.pid], INTERVAL_ON_NS, on_exec=False, follow=True)
    began = time.monotonic()
    finder = StandBack(target.pid, opened, time.monotonic_ns() - int(late_s * NS_PER_S))
    finder.find_spec("something", None)
    assert time.monotonic() - began >= PATIENCE_S - late_s - 0.001
    for name in ("all", "the", "others"):  # without another look
        finder.find_spec(name, None)
    assert finder.find_spec("the last", None) is None
    finder.close()
    opened.close()
