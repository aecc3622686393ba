"""Names that threads have given themselves, or others: the last one is in the log, and readers of others pass it by."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from collector.experiment.reader import open_experiment

Run = Callable[..., Any]
SPAWNS = "import os; os.waitpid(os.posix_spawn('/bin/sleep', ['sleep', '0.05'], {}), 0)"

pytestmark = pytest.mark.usefixtures("perf_allowed")


def test_threads_have_their_last_names(collect: Run, gprofng: Run, workload: Run, tmp_path: Path) -> None:
    path = tmp_path / "x.er"
    told = json.loads(collect("-o", path, workload("wakes"), "7").stdout)
    log = open_experiment(path).log
    assert log.threads == {told["waker"]: b"waker", told["wakee"]: b"wakee"}
    assert list(log.threads) == [told["waker"], told["wakee"]]
    gprofng("-threads", experiment=path)  # which has nothing to say against it


def test_a_program_that_was_spawned_has_its_own_name(collect: Run, tmp_path: Path) -> None:
    path = tmp_path / "x.er"
    collect("-o", path, sys.executable, "-c", SPAWNS)
    child, = open_experiment(path).children
    assert list(child.log.threads.values()) == [b"sleep"]


def test_with_follow_off_a_thread_is_named_after_the_program_it_has_become(collect: Run, tmp_path: Path) -> None:
    path = tmp_path / "x.er"
    collect("-F", "off", "-o", path, "sh", "-c", "exec sleep 0.05")
    assert list(open_experiment(path).log.threads.values()) == [b"sleep"]
