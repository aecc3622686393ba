"""What a recording copies into its archives when it is closed, by what it knows."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from collector.experiment.log import Header
from collector.experiment.names import archive_name
from collector.experiment.recorder import Recorder
from collector.session import archiving
from collector.session.objects import Objects
from collector.unwind.table import Tables

NS = 1_000_000_000


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    """A recorder of 1 MB at most, that began now."""
    (tmp_path / "a.1.er").mkdir()
    return Recorder.create(tmp_path / "a.1.er", Header(
        hostname="h", os="Linux 6.1.0", arch="x86_64", page_size=4096, n_pages=1, cpus=[1], pid=71, ppid=70, pgrp=71,
        sid=70, cwd=b"/", arguments=b"p0", wsize=64, interval_ns=10_007_000, sample_period_s=1,
        start_ns=time.monotonic_ns(), start_unix=int(time.time()), collector="collect", size_limit_mb=1))


def reach_the_limit(recorder: Recorder) -> None:
    n, one = 20_000, np.ones(20_000, np.int64)
    uid = recorder.frames.intern(np.full((1, 3), 0x1000, np.uint64), np.full(1, 3))
    recorder.clock(one * 71, one * 0, one * recorder.header.start_ns, np.repeat(uid, n), one * 0, one)
    assert recorder.stopped is not None


def take_away(recorder: Recorder) -> None:
    shutil.rmtree(recorder.path)
    recorder.sync()
    assert recorder.failed


@pytest.mark.parametrize(("happened", "is_archived"), [(reach_the_limit, True), (take_away, False)])
def test_an_experiment_at_its_limit_is_archived_and_one_that_failed_is_not(
        happened: Callable[[Recorder], None], is_archived: bool, recorder: Recorder, tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_bytes(b"what was recorded")
    happened(recorder)
    recorder.close(recorder.header.start_ns + NS)
    mapped_ns = {os.fsencode(program): recorder.header.start_ns}
    assert archiving.archive("on", recorder, mapped_ns, Objects(Tables())) == []
    copy = recorder.path / "archives" / os.fsdecode(archive_name(os.fsencode(program)))
    assert copy.is_file() == is_archived
    assert recorder.path.exists() == is_archived
