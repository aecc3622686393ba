"""Descendants in numbers: many short processes cost little, are all told, and their CPU time adds up."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import prefork
import pytest

from collector.experiment.reader import Experiment, open_experiment
from collector.timing.states import Microstate

pytestmark = pytest.mark.usefixtures("perf_allowed")

Workload = Callable[..., Path]
COLLECT = str(Path(sys.executable).parent / "collect")
N_SHORT = 3001
N_UNITS = 43


@dataclass
class Peaks(threading.Thread):
    """The most descriptors and memory that a process has had, looked at every few ms while it lives."""

    pid: int
    descriptors: int = 0
    memory_kib: int = 0
    looks: int = field(default=0)

    def __post_init__(self) -> None:
        super().__init__(daemon=True)

    __hash__ = threading.Thread.__hash__

    def run(self) -> None:
        """Until the process is gone."""
        while True:
            try:
                self.descriptors = max(self.descriptors, len(os.listdir(f"/proc/{self.pid}/fd")))
                status = Path(f"/proc/{self.pid}/status").read_text(encoding="ascii", errors="replace")
            except OSError:
                return
            peak = status.partition("VmHWM:")[2].split()
            if not peak:  # a zombie
                return
            self.memory_kib, self.looks = int(peak[0]), self.looks + 1
            time.sleep(0.005)


def _recorded(path: Path, *command: object) -> tuple[dict[str, Any], str, Peaks]:
    """What the target said of itself, what ``collect`` said, and its peaks."""
    with prefork.Popen([COLLECT, "-o", str(path), *map(str, command)], stdout=subprocess.PIPE,
                       stderr=subprocess.PIPE, text=True) as process:
        peaks = Peaks(process.pid)
        peaks.start()
        said = process.communicate(timeout=120)
        peaks.join()
    assert process.returncode == 0, said
    truth = json.loads(next(line for line in said[0].splitlines() if line.startswith("{")))
    return truth, said[1], peaks


def _cpu_s(experiment: Experiment) -> float:
    packets = experiment.packets()
    on_cpu = packets["NTICK"][packets["MSTATE"] <= Microstate.TRAP]
    return int(on_cpu.sum()) * experiment.log.interval_us * 1e-6


def _children_cpu_s(truth: dict[str, Any]) -> float:
    return float(truth["children_user_s"] + truth["children_system_s"])


@pytest.mark.kernel_times
def test_a_fork_bomb_is_told_whole_with_few_descriptors_and_little_memory(
        workload: Workload, tmp_path: Path) -> None:
    few, _, small = _recorded(tmp_path / "few.er", workload("swarm"), 7, 7, 100)
    truth, said, peaks = _recorded(tmp_path / "bomb.er", workload("swarm"), N_SHORT, 61, 100)
    print(f"{N_SHORT} processes in {truth['wall_s']:.2f} s: {peaks.descriptors} descriptors, "
          f"{peaks.memory_kib >> 10} MiB ({small.descriptors} and {small.memory_kib >> 10} for {few['count']})")
    # Whoever is kept from a CPU for long loses the stacks of some departures, and says so; never lives, or times.
    assert set(re.findall(r"\d+ (\w+) records? lost", said)) <= {"leave"}
    assert "missing" not in said
    assert small.looks > 3
    assert peaks.looks > 30
    # A descendant that lives from one drain to the next has one descriptor, and one more per file for a moment.
    assert peaks.descriptors < small.descriptors + 6 * 61
    assert peaks.memory_kib < small.memory_kib + 36 * 1024
    founder = open_experiment(tmp_path / "bomb.er")
    assert founder.log.complete
    assert _cpu_s(founder) == pytest.approx(truth["user_s"] + truth["system_s"], abs=0.05)
    assert [child.lineage for child in founder.children] == [f"_f{n}" for n in range(1, N_SHORT + 1)]
    assert all(child.log.complete for child in founder.children)
    assert len({child.log.pid for child in founder.children} | {founder.log.pid}) == N_SHORT + 1
    started = [event.attributes["lineage"] for event in founder.log.events if event.kind == "desc_started"]
    assert started == [child.lineage for child in founder.children]
    assert founder.problems == []


def _sources(directory: Path) -> Path:
    """A Makefile over C sources that take a compiler some 20 ms each."""
    for unit in range(N_UNITS):
        functions = [f"int f{unit}_{n}(int a, int b) {{ int s = {n}; for (int k = 0; k < a; k++) s += (k * b) ^ s; "
                     f"return s + {unit}; }}" for n in range(31)]
        (directory / f"unit{unit}.c").write_text("\n".join(["#include <stdio.h>", *functions, ""]))
    objects = " ".join(f"unit{unit}.o" for unit in range(N_UNITS))
    (directory / "Makefile").write_text(f"all: {objects}\n%.o: %.c\n\t@gcc -O1 -c -o $@ $<\n")
    return directory


def test_the_cpu_time_of_a_build_is_that_of_its_processes(
        workload: Workload, need: Callable[[str, str], str], tmp_path: Path, stolen: Callable[[], float]) -> None:
    make, path = need("make", "make"), tmp_path / "build.er"
    (tmp_path / "sources").mkdir()
    command = (workload("timed"), make, "-s", "-j2", "-C", _sources(tmp_path / "sources"))
    truth, said, _ = _recorded(path, *command)
    founder = open_experiment(path)
    recorded_s = sum(_cpu_s(child) for child in founder.children)
    programs = [Path(child.log.arguments.split()[0].decode()).name for child in founder.children]
    print(f"{len(programs)} experiments, {recorded_s:.3f} s of {_children_cpu_s(truth):.3f} s ({said.strip()})")
    assert programs.count("cc1") == sum(name.endswith("as") for name in programs) == N_UNITS
    assert recorded_s == pytest.approx(_children_cpu_s(truth), abs=0.025 * _children_cpu_s(truth) + stolen())
    assert sum(len(child.packets()) > 0 for child in founder.children) > N_UNITS
    lengths = np.array([child.end_ns - child.log.start_ns for child in founder.children])
    assert (lengths > 0).all()
