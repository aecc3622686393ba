"""A collector that works on what it has read with what nobody else wants of the CPUs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import prefork
import psutil
import pytest

from collector.linux import watchdog

COLLECT = str(Path(sys.executable).with_name("collect"))
WATCHDOG = Path(watchdog.__file__).name


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: others may not have a policy back")
@pytest.mark.parametrize("engine", ["perf", "signal"])
def test_among_programs_that_want_all_cpus_it_stands_back(
        engine: str, workload: Callable[..., Path], tmp_path: Path) -> None:
    """Unless there are so many that it comes first. Whom it asked to see to it ends before it does."""
    path, deadline_s = tmp_path / "x.er", time.monotonic() + 180  # others may be many for a while
    program = [workload("busy"), os.cpu_count() or 1, 10**9]
    with prefork.Popen([COLLECT, "--engine", engine, "-o", str(path), *map(str, program)],
                       stderr=subprocess.PIPE, text=True) as process:
        while os.sched_getscheduler(process.pid) != os.SCHED_IDLE:
            assert time.monotonic() < deadline_s
        children = psutil.Process(process.pid).children()
        (seeing_to_it,) = (child for child in children if WATCHDOG in " ".join(child.cmdline()))
        process.terminate()  # which is for the program
        said = process.communicate()[1]
    assert re.search(r" s CPU, ", said)
    assert not seeing_to_it.is_running()
