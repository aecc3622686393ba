"""The collector's own start while its target wants all CPUs: when it waits, and what ends that."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from neighbours import one_for_each_cpu

from collector.clock import INTERVAL_ON_NS, NS_PER_S
from collector.engines.perf import opening as perf_opening
from collector.session.standing_back import PATIENCE_NS, StandBack

Run = Callable[..., Any]
COLLECT = str(Path(sys.executable).with_name("collect"))
N_CPUS = len(os.sched_getaffinity(0))
WAITS_S, HOPELESS_S = 0.2, 30
PATIENCE_S = PATIENCE_NS / NS_PER_S

pytestmark = [pytest.mark.kernel_times, pytest.mark.usefixtures("perf_allowed")]

# Keeps as many threads busy as it is told, until so long after it was made. Says on stderr when all are, and when the
# first one is about to be not any more.
PROGRAM = r"""
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
static int n_busy, is_over;
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_BOOTTIME, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}
static double made(void) {
    unsigned long long ticks = 0;
    FILE *file = fopen("/proc/self/stat", "r");
    if (fscanf(file, "%*d %*s %*c" " %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu",
               &ticks) != 1) exit(1);
    fclose(file);
    return (double)ticks / sysconf(_SC_CLK_TCK);
}
static void *spin(void *x) {
    __atomic_fetch_add(&n_busy, 1, __ATOMIC_SEQ_CST);
    while (!__atomic_load_n(&is_over, __ATOMIC_SEQ_CST)) {}
    return x;
}
int main(int argc, char **argv) {
    int n = atoi(argv[2]);
    pthread_t threads[n];
    double until = made() + atof(argv[1]);
    for (int i = 1; i < n; i++) pthread_create(threads + i, NULL, spin, NULL);
    while (__atomic_load_n(&n_busy, __ATOMIC_SEQ_CST) < n - 1) {}
    if (write(2, "all are busy\n", 13) != 13) return 1;
    while (now() < until) {}
    if (write(2, "it is over\n", 11) != 11) return 1;
    is_over = 1;
    for (int i = 1; i < n; i++) pthread_join(threads[i], NULL);
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
def test_a_program_that_wants_all_cpus_has_them(engine: str, program: Path, tmp_path: Path) -> None:
    """Until patience is over, no module's import begins while all its threads are busy. Python tells of each at its
    end, indented by how many others wait for it: they may end, whose imports had begun."""
    command = [COLLECT, "--engine", engine, "-A", "off", "-o", tmp_path / "x.er", program, PATIENCE_S, N_CPUS]
    result = subprocess.run([*map(str, command)], env=os.environ | {"PYTHONPROFILEIMPORTTIME": "1"},
                            stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert result.returncode == 7, result.stderr
    before, busy, after = re.split(r"all are busy\n|it is over\n", result.stderr)
    depths = [len(name) - len(name.lstrip()) for name in re.findall(r"^import time:.*\|( +\S+)$", busy, re.MULTILINE)]
    assert all(then < first for first, then in pairwise(depths)), busy
    assert re.search(r"\| +numpy$", before + after, re.MULTILINE)


@pytest.fixture
def no_cpu_is_free() -> Iterator[None]:
    """As many that run all the time as there are CPUs."""
    with one_for_each_cpu("print(1, flush=True)\nwhile True: pass"):
        yield


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
    """Patience would last for an hour here."""
    opened = perf_opening.open_events([target.pid], INTERVAL_ON_NS, on_exec=False, follow=True)
    finder = StandBack(target.pid, opened, time.monotonic_ns() + 3600 * NS_PER_S)
    timer = threading.Timer(WAITS_S, DUE[what], [target])
    in_vain = threading.Timer(HOPELESS_S, target.kill)
    began = time.monotonic()
    timer.start()
    in_vain.start()
    assert finder.find_spec("something", None) is None
    assert WAITS_S <= time.monotonic() - began < HOPELESS_S
    timer.join()
    in_vain.cancel()
    in_vain.join()
    finder.close()
    opened.close()


def test_nobody_stands_back_among_many_threads(program: Path) -> None:
    """More than are looked at. Patience would last for an hour here."""
    busy = [program, str(2 * HOPELESS_S), str(max(16, N_CPUS) + 1)]
    with subprocess.Popen(busy, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "all are busy\n"
        opened = perf_opening.open_events([process.pid], INTERVAL_ON_NS, on_exec=False, follow=True)
        finder = StandBack(process.pid, opened, time.monotonic_ns() + 3600 * NS_PER_S)
        in_vain = threading.Timer(HOPELESS_S, process.kill)
        in_vain.start()
        finder.find_spec("something", None)
        assert process.poll() is None
        in_vain.cancel()
        in_vain.join()
        finder.close()
        opened.close()
        process.kill()


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
