"""Attaching to programs at work, with either engine: the profile is right, and nothing stays behind."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from collector.experiment.reader import open_experiment

Run = Callable[..., Any]
PYTHON = "print(1, flush=True)\nwhile 1: sorted(range(1000), key=str)"


ENGINES = ["perf", "signal"]
MARKS = re.compile(r"^(?:TracerPid|S\w+Pnd|SigBlk|SigIgn|SigCgt|NoNewPrivs|Seccomp):.*\n", re.MULTILINE)

pytestmark = pytest.mark.usefixtures("perf_allowed", "attach_allowed")


@contextmanager
def running(*command: object) -> Iterator[int]:
    """The pid of a process that has said its first line; killed in the end."""
    with subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            process.stdout.readline()
            yield process.pid
        finally:
            process.kill()


def kernel_cpu_s(pid: int) -> float:
    """CPU time of all threads by the kernel's accounts."""
    return sum(int(path.read_text().split()[0]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat")) * 1e-9


def marks(pid: int) -> list[str]:
    """What a collector could have left behind in any of the threads: tracers, stops, signals."""
    texts = [path.read_text() for path in sorted(Path(f"/proc/{pid}/task").glob("*/status"))]
    assert not any(re.search(r"^State:\s+[tT]", text, re.MULTILINE) for text in texts)
    return ["".join(MARKS.findall(text)) for text in texts]


@pytest.fixture
def attached(collect: Run, tmp_path: Path) -> Run:
    """``attached(engine, pid, seconds)``: the experiment's path, and the CPU time that the process used meanwhile."""

    def record(engine: str, pid: int, seconds: float, interval: str = "on") -> tuple[Path, float]:
        path, unmarked = tmp_path / f"{engine}.er", marks(pid)
        began_s, before_s = time.monotonic(), kernel_cpu_s(pid)
        result = collect("--engine", engine, "-P", pid, "-t", f"{seconds}s", "-p", interval, "-o", path)
        rate = (kernel_cpu_s(pid) - before_s) / (time.monotonic() - began_s)
        assert result.returncode == 0, result.stderr
        assert marks(pid) == unmarked
        log = open_experiment(path).log
        return path, rate * (log.end_ns - log.start_ns) * 1e-9

    return record


@pytest.mark.parametrize("engine", ENGINES)
def test_five_hundred_threads_that_work_now_and_then(engine: str, workload: Run, attached: Run, gprofng: Run) -> None:
    with running(workload("crowd"), 500, 1, 1009) as pid:
        path, cpu_s = attached(engine, pid, 8)
    assert len(open_experiment(path).threads) == 500
    functions = gprofng("-functions", experiment=path).functions
    total_s = functions["<Total>"][0]
    assert total_s == pytest.approx(cpu_s, rel=0.05)
    # Some 500 samples tell this to two points: a third of what would be seen if all threads were met at one point.
    for stage, part in (("stage_one", 1), ("stage_three", 3), ("stage_seven", 7)):
        assert functions[stage][1] / total_s == pytest.approx(part / 11, abs=0.07)
    assert functions["run"][1] >= 0.97 * total_s


@pytest.mark.parametrize("engine", ENGINES)
def test_an_interpreter(engine: str, attached: Run, gprofng: Run) -> None:
    with running("/usr/bin/python3", "-c", PYTHON) as pid:
        path, cpu_s = attached(engine, pid, 1.5)
    functions = gprofng("-functions", experiment=path).functions
    assert functions["<Total>"][0] == pytest.approx(cpu_s, rel=0.05)
    assert functions["_start"][1] == pytest.approx(functions["<Total>"][0], rel=0.02)
    assert b"python3" in open_experiment(path).log.arguments


@contextmanager
def serving(need: Run, directory: Path) -> Iterator[int]:
    """The pid of a server under its own benchmark; both are killed in the end."""
    socket = directory / "redis.sock"
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": directory}
    served = [need("redis-server", "redis-server"), "--port", "0", "--unixsocket", socket, "--save", ""]
    load = [need("redis-benchmark", "redis-tools"), "-s", socket, "-l", "-q", "-c", "20", "-t", "get"]
    with subprocess.Popen(served, **quiet) as server:
        try:
            while not socket.exists():
                time.sleep(0.02)
            with subprocess.Popen(load, **quiet) as client:
                try:
                    time.sleep(0.3)
                    yield server.pid
                    assert client.poll() is None
                finally:
                    client.kill()
        finally:
            server.kill()


def test_a_server_is_the_same_to_both_engines(attached: Run, need: Run, gprofng: Run, tmp_path: Path) -> None:
    """It sleeps and is woken tens of thousands of times a second, in one call and out of many."""
    seen = {}
    with serving(need, tmp_path) as pid:
        for engine in ENGINES:
            path, cpu_s = attached(engine, pid, 3, "hi")
            functions = gprofng("-functions", experiment=path).functions
            total_s = functions["<Total>"][0]
            assert total_s == pytest.approx(cpu_s, rel=0.1)
            seen[engine] = [functions[name][1] / total_s for name in ("epoll_wait", "read", "write")]
    assert seen["signal"] == pytest.approx(seen["perf"], abs=0.1)
