"""Disks that are full or become so, limits, experiments that somebody takes away: one line, and the program goes on."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import prefork
import pytest

from collector.experiment.reader import Experiment, open_experiment

Run = Callable[..., Any]
COLLECT = str(Path(sys.executable).with_name("collect"))
ENGINES = ["perf", "signal"]
STATUS = 7  # of ``enduring``
KIB = 1024

pytestmark = pytest.mark.usefixtures("perf_allowed")


def fill(disk: Path, left_kib: int = 0) -> None:
    """Leaves so little room on a disk."""
    with open(disk / "filler", "ab", buffering=0) as filler:
        try:
            while True:
                filler.write(bytes(4 * KIB))
        except OSError:
            filler.truncate(filler.tell() - left_kib * KIB)


def until(happened: Callable[[], bool]) -> None:
    """Waits for something that takes the longer, the busier the machine is."""
    while not happened():
        time.sleep(0.02)


def begun(path: Path) -> bool:
    """Whether there are packets in an experiment, which come with the first drain."""
    return (path / "profile").exists()


def logged(path: Path) -> bool:
    """Whether an experiment's log says that something went wrong."""
    return b'kind="cerror"' in (path / "log.xml").read_bytes()


def record(program: Path, engine: str, path: Path, steps: Callable[[], object], **more: Any) -> str:
    """Records ``enduring`` while ``steps`` are done; what collect said. The program ends well, whatever happens."""
    command = [COLLECT, "-p", "0.5", "--engine", engine, "-o", str(path), str(program)]
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with prefork.Popen(command, text=True, **pipes, **more) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        until(lambda: begun(path))
        steps()
        out, said = process.communicate(timeout=30)
    assert process.returncode == STATUS
    assert json.loads(out)["broken"] == 0
    return said


def one_line(said: str, why: str) -> None:
    """An error of collect as it must be; an ordinary user has been told before what the kernel does not show."""
    said = re.sub(r"\Acollect: engine [^\n]+\n", "", said)
    assert re.fullmatch(r"collect: [^\n]+\n", said), said
    assert why in said


def cut_short(path: Path, gprofng: Run, why: str) -> Experiment:
    """An experiment that ended before its time: it opens everywhere, has what came before, and says why it ended."""
    experiment = open_experiment(path)
    assert experiment.log.complete
    assert experiment.problems == []
    packets = experiment.packets()
    assert len(packets) > 100
    assert (experiment.stacks.index(packets["FRINFO"]) >= 0).all()
    functions = gprofng("-functions", experiment=path).functions
    assert functions["work"][0] > 0.8 * functions["<Total>"][0] > 0
    assert why in gprofng("-header", experiment=path).text
    return experiment


@pytest.mark.parametrize("engine", ENGINES)
def test_a_disk_that_becomes_full(engine: str, small_disk: Run, workload: Run, gprofng: Run) -> None:
    disk = small_disk(2048)
    fill(disk, 160)
    path = disk / "x.er"
    said = record(workload("enduring"), engine, path, lambda: until(lambda: logged(path)))
    one_line(said, "the disk is full; free some space")
    assert re.search(r", \d+ samples?, \d+ packets? (was|were) dropped", said)
    cut_short(path, gprofng, "the disk is full")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("left_kib", [0, 4, 12, 24])
def test_a_disk_that_is_full_from_the_start(engine: str, left_kib: int, small_disk: Run, tmp_path: Path,
                                            gprofng: Run) -> None:
    disk = small_disk(2048)
    fill(disk, left_kib)
    command = [COLLECT, "--engine", engine, "-A", "off", "-o", disk / "x.er", "/bin/sh", "-c", "echo ran; exit 7"]
    result = prefork.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False)
    if (disk / "x.er").exists():
        gprofng("-functions", experiment=disk / "x.er")
        assert left_kib == 24
    else:
        one_line(result.stderr, "the disk is full")
    assert (result.returncode, result.stdout) == ((7, "ran\n") if left_kib else (1, ""))
    assert set(os.listdir(disk)) <= {"filler", "x.er"}


@pytest.mark.parametrize("engine", ENGINES)
def test_descendants_that_find_no_room_are_told(engine: str, small_disk: Run, gprofng: Run) -> None:
    disk = small_disk(2048)
    command = [COLLECT, "--engine", engine, "-A", "off", "-o", disk / "x.er", "/bin/sh", "-c",
               "read go; for i in 1 2 3 4 5; do /bin/true; done; exit 7"]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE}
    with prefork.Popen([*map(str, command)], text=True, **pipes) as process:
        until(lambda: begun(disk / "x.er"))
        fill(disk)
        _, said = process.communicate("go\n", timeout=30)
    assert process.returncode == 7
    short = re.search(r"(\d+) of (\d+) descendants (?:is|are) not recorded to (?:its|their) end "
                      r"\([^)]*the disk is full", said)
    assert short is not None, said
    n_missing, n_made = int(short[1]), int(short[2])
    assert n_made == 10  # each forked, then another program
    assert len(open_experiment(disk / "x.er").children) >= n_made - n_missing
    assert re.search("descendants (is|are) not recorded", gprofng("-header", experiment=disk / "x.er").text)


@pytest.mark.parametrize("engine", ENGINES)
def test_archives_that_find_no_room_are_told(engine: str, small_disk: Run, workload: Run, gprofng: Run) -> None:
    disk = small_disk(2048)
    fill(disk, 600)
    said = record(workload("enduring"), engine, disk / "x.er", lambda: None)
    first, second = said.splitlines()
    assert re.fullmatch(r"collect: cannot archive into .*: No space left on device; free some space .*", first)
    assert f"collect: {disk}/x.er: " in second
    assert open_experiment(disk / "x.er").log.complete
    gprofng("-functions", experiment=disk / "x.er")


@pytest.mark.parametrize("engine", ENGINES)
def test_a_limit_for_the_size_of_files(engine: str, workload: Run, tmp_path: Path, gprofng: Run) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (64 * KIB, 64 * KIB))

    path = tmp_path / "x.er"
    said = record(workload("enduring"), engine, path, lambda: until(lambda: logged(path)), preexec_fn=limit)
    one_line(said, "the file size limit is reached; raise it (ulimit -f)")
    cut_short(path, gprofng, "file size limit")


@pytest.mark.parametrize("engine", ENGINES)
def test_an_experiment_that_is_deleted(engine: str, workload: Run, tmp_path: Path) -> None:
    path = tmp_path / "x.er"
    said = record(workload("enduring"), engine, path, lambda: shutil.rmtree(path))
    one_line(said, "deleted")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("engine", ENGINES)
def test_an_experiment_that_is_moved(engine: str, workload: Run, tmp_path: Path, gprofng: Run) -> None:
    path, moved = tmp_path / "x.er", tmp_path / "moved.er"

    def move() -> None:
        path.rename(moved)
        until(lambda: len(open_experiment(moved).packets()) > 100)  # it goes on there

    said = record(workload("enduring"), engine, path, move)
    assert all(line.startswith("collect: ") for line in said.splitlines())
    assert os.listdir(tmp_path) == ["moved.er"]
    experiment = open_experiment(moved)
    assert experiment.log.complete
    assert "work" in gprofng("-functions", experiment=moved).functions


# -- a program that is attached to: nobody has to wait for its end


def attached(program: Path, engine: str, path: Path, steps: Callable[[], object], *options: str) -> tuple[int, str]:
    """Attaches to ``enduring`` while ``steps`` are done, and waits until collect ends by itself: its status, and what
    it said. The program runs on."""
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout"), subprocess.PIPE)
    with subprocess.Popen([program], text=True, **pipes) as target:
        assert target.stdout is not None
        assert target.stdout.readline()
        command = [COLLECT, "-p", "0.5", "--engine", engine, *options, "-o", str(path), "-P", str(target.pid)]
        with prefork.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            until(lambda: begun(path) or process.poll() is not None)
            steps()
            said = process.communicate(timeout=120)[1]  # a megabyte is 8 s of the program's CPU time
        assert target.poll() is None
        out = target.communicate(timeout=30)[0]
    assert target.returncode == STATUS
    assert json.loads(out)["broken"] == 0
    return process.returncode, said


@pytest.mark.parametrize("engine", ENGINES)
def test_attached_the_disk_becomes_full(engine: str, small_disk: Run, workload: Run, gprofng: Run) -> None:
    disk = small_disk(2048)
    fill(disk, 160)
    status, said = attached(workload("enduring"), engine, disk / "x.er", lambda: None)
    one_line(said, "the disk is full; free some space")
    assert status == 1
    cut_short(disk / "x.er", gprofng, "the disk is full")


@pytest.mark.parametrize("engine", ENGINES)
def test_attached_the_experiment_is_deleted(engine: str, workload: Run, tmp_path: Path) -> None:
    status, said = attached(workload("enduring"), engine, tmp_path / "x.er", lambda: shutil.rmtree(tmp_path / "x.er"))
    one_line(said, "deleted")
    assert status == 1
    assert os.listdir(tmp_path) == []


def test_attached_the_limit_is_reached(workload: Run, tmp_path: Path) -> None:
    """By a tracer, which has to let the program go. With perf a program that was launched reaches it elsewhere."""
    status, said = attached(workload("enduring"), "signal", tmp_path / "x.er", lambda: None, "-L", "1")
    one_line(said, "the experiment has reached its size limit of 1 MB; recording has stopped")
    assert status == 0
    assert open_experiment(tmp_path / "x.er").log.complete


# -- limits of memory and descriptors: either nothing is started, or the program is waited for


KINDS = {"v": [30_000, 60_000, 110_000, 140_000, 175_000, 210_000, 400_000, 500_000], "n": [6, 8, 12, 20, 29, 33, 48]}


def limited(kind: str, limit: int, *command: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A command where ``ulimit`` has set a limit, for good."""
    return subprocess.run(["sh", "-c", f'ulimit -{kind} {limit}; exec "$@"', "sh", *map(str, command)], cwd=cwd,
                          capture_output=True, text=True, timeout=30, check=False)


def told(said: str, what: str) -> bool:
    """Whether the last line says that something is scarce; before it may be why the other engine was taken."""
    lines = said.splitlines()
    assert all(line.startswith("collect: ") for line in lines), said
    assert len(lines) <= 2
    return what in lines[-1]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("kind", "limit"), [(kind, limit) for kind, limits in KINDS.items() for limit in limits])
def test_little_memory_and_few_descriptors(kind: str, limit: int, engine: str, as_nobody: list[str],
                                           public_directory: Path) -> None:
    # An ordinary user, since others may lift the limit of descriptors.
    command = [*as_nobody, COLLECT, "--engine", "auto" if engine == "perf" else engine, "-A", "off", "-o", "x.er", "sh",
               "-c", "touch ran; exit 7"]
    result = limited(kind, limit, *command, cwd=public_directory)
    scarce = {"v": "not enough memory: raise the limit (ulimit -v", "n": "too many open files: raise the limit (ulimit"}
    if (public_directory / "ran").exists():
        assert result.returncode == 7
        assert told(result.stderr, scarce[kind]) or open_experiment(public_directory / "x.er").log.complete
    else:
        assert result.returncode == 1
        assert told(result.stderr, scarce[kind]), result.stderr
        assert os.listdir(public_directory) == []


def test_perf_goes_without_what_there_is_no_memory_to_set_aside_for(workload: Run, tmp_path: Path) -> None:
    """As where the kernel overcommits nothing (vm.overcommit_memory=2)."""
    command = [workload("nospare"), COLLECT, "--engine", "perf", "-A", "off", "-o", "x.er", "sh", "-c", "exit 7"]
    result = prefork.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False)
    assert result.returncode == 7, result.stderr
    assert result.stderr.count("\n") == 1, result.stderr
    assert open_experiment(tmp_path / "x.er").log.complete


@pytest.mark.parametrize(("kind", "limit"), [("v", 110_000), ("v", 140_000), ("n", 9), ("n", 28)])
def test_there_is_no_room_for_attaching(kind: str, limit: int, as_nobody: list[str], public_directory: Path) -> None:
    with subprocess.Popen([*as_nobody, "sleep", "60"]) as process:
        while Path(f"/proc/{process.pid}/comm").read_text() != "sleep\n":
            pass
        result = limited(kind, limit, *as_nobody, COLLECT, "-o", "x.er", "-P", process.pid, cwd=public_directory)
        assert told(result.stderr, {"v": "not enough memory", "n": "too many open files"}[kind]), result.stderr
        assert result.returncode == 1
        assert os.listdir(public_directory) == []
        process.kill()


def test_whatever_fails_once_the_program_runs_leaves_its_status(tmp_path: Path) -> None:
    """A library that is not there any more: the program is waited for all the same."""
    hidden = "import sys; sys.modules['numpy'] = None; from collector.cli.main import collect; sys.exit(collect())"
    command = [sys.executable, "-c", hidden, "-o", "x.er", "sh", "-c", "sleep 0.1; exit 7"]
    result = prefork.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False)
    assert result.returncode == 7
    one_line(result.stderr, "nothing more is recorded, sh runs on")
    assert "numpy" in result.stderr
    assert os.listdir(tmp_path) == []
