"""What a recording copies into its archives when it is closed, by what it knows."""

from __future__ import annotations

import mmap
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from collector.events import Mapped
from collector.experiment.log import Header
from collector.experiment.names import archive_name
from collector.experiment.recorder import Recorder
from collector.linux import tasks
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


def test_a_file_with_a_time_to_come_is_known_by_its_build_id(recorder: Recorder, tmp_path: Path,
                                                             need: Callable[[str, str], str]) -> None:
    """As images of containers and clocks that go wrong leave them: it has not changed since it was mapped."""
    program, objects = tmp_path / "program", Objects(Tables())
    (tmp_path / "p.c").write_text("int main(void) { return 0; }\n")
    subprocess.run([need("gcc", "gcc"), "-Wl,--build-id", "-o", program, tmp_path / "p.c"], check=True)
    os.utime(program, (time.time() + 86_400,) * 2)
    with program.open("rb") as file, mmap.mmap(file.fileno(), 4096, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC):
        mapped = next(one for one in tasks.executables(os.getpid(), os.getpid()) if one.path == os.fsencode(program))
    start_ns = recorder.header.start_ns
    objects.place(Mapped(start_ns, os.getpid(), os.getpid(), mapped.start, 4096, 0, mapped.device, mapped.inode,
                         mapped.path))
    recorder.close(start_ns + NS)
    assert archiving.archive("on", recorder, {mapped.path: start_ns}, objects) == []
    assert (recorder.path / "archives" / os.fsdecode(archive_name(mapped.path))).read_bytes() == program.read_bytes()
