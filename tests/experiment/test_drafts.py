"""Experiments that come to disk late: the same bytes as if they had been there all along, or nothing at all."""

from __future__ import annotations

import gc
import os
import subprocess
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collector.experiment.blocks import DiskFull
from collector.experiment.reader import Experiment, open_experiment
from collector.experiment.recorder import Header, Recorder, Usage

START_NS = 7_001_000_000_013
NS = 1_000_000_000

Record = Callable[..., Recorder]


def say_much(recorder: Recorder, rounds: int, seed: int = 7) -> None:
    """Packets, stacks of all sizes, mappings, threads, samples, remarks."""
    rng = np.random.default_rng(seed)
    for number in range(rounds):
        time_ns = START_NS + number + 1
        lengths = rng.integers(1, 4001 if number == 1 else 41, 23)
        pcs = rng.integers(1, 1 << 40, (23, lengths.max())).astype(np.uint64)
        pcs[np.arange(lengths.max()) >= lengths[:, None]] = 0
        uids = recorder.frames.intern(pcs, lengths)
        recorder.thread_started(4711 + number, time_ns, b"<thread> %d" % number)
        recorder.clock(np.full(23, 4711), np.zeros(23, int), np.full(23, time_ns), uids, np.zeros(23, int),
                       np.ones(23, int))
        recorder.segment_mapped(time_ns, number << 20, 4096, 0, b"/lib/%d" % number)
        recorder.sample(Usage((number,) * 10), time_ns, "a label")
        recorder.comment("a remark", time_ns)


def told(experiment: Experiment) -> list[Any]:
    """Everything that a reader gets out of an experiment."""
    packets, stacks = experiment.packets(), experiment.stacks
    assert (stacks.index(packets["FRINFO"]) >= 0).all()
    assert experiment.problems == []
    return [asdict(experiment.log), packets.tolist(), stacks.uids.tolist(), stacks.pcs.tolist(), experiment.segments,
            experiment.functions, experiment.samples, experiment.threads]


def contents(path: Path) -> dict[str, bytes]:
    """The files as they are, without the space that is allocated ahead."""
    return {file.name: file.read_bytes().rstrip(b"\n").rstrip(b"\0").rstrip(b"\n") for file in path.iterdir()}


@pytest.mark.parametrize("rounds", [0, 1, 61])
@pytest.mark.parametrize("when", ["at its end", "in the middle"])
def test_a_draft_becomes_what_it_would_have_been(record: Record, header: Header, rounds: int, when: str) -> None:
    founder = record("a.er")
    there = Recorder.create(founder.path / "_f1.er", header)
    draft = Recorder.draft(founder.path / "_f2.er", header)
    for recorder in (there, draft):
        say_much(recorder, rounds)
        if when == "in the middle":
            recorder.sync()
            say_much(recorder, rounds, seed=11)
        recorder.close(START_NS + NS)
    assert told(open_experiment(there.path)) == told(open_experiment(draft.path))
    files = contents(there.path)
    if not rounds and when == "at its end":  # a draft without stacks saves the file for them
        assert files.pop("data.frameinfo") == b"\x08"
    assert files == contents(draft.path)
    assert (draft.stopped, draft.n_dropped) == (None, 0)


def test_a_draft_has_neither_files_nor_descriptors_before_it_is_made(record: Record, header: Header) -> None:
    founder = record("a.er")
    gc.collect()
    before = sorted(os.listdir("/proc/self/fd"))
    draft = Recorder.draft(founder.path / "_f1.er", header)
    say_much(draft, 3)
    assert sorted(os.listdir("/proc/self/fd")) == before
    assert "_f1.er" not in os.listdir(founder.path)
    draft.sync()
    assert open_experiment(founder.path).children[0].log.pid == header.pid
    assert not open_experiment(draft.path).log.complete
    draft.close(START_NS + NS)
    gc.collect()
    assert sorted(os.listdir("/proc/self/fd")) == before
    assert open_experiment(draft.path).log.complete


def test_a_draft_that_ends_takes_no_more_room_than_it_needs(record: Record, header: Header) -> None:
    founder = record("a.er")
    draft = Recorder.draft(founder.path / "_f1.er", header)
    draft.close(START_NS + NS)
    files = {file.name: file.stat() for file in draft.path.iterdir()}
    assert sorted(files) == ["log.xml", "map.xml", "overview"]
    assert all(status.st_blocks * 512 <= max(4096, -(-status.st_size // 4096) * 4096) for status in files.values())


def test_a_draft_that_cannot_be_made_counts_what_it_held(
        mount_tmpfs: Callable[[str], Path], header: Header) -> None:
    disk = mount_tmpfs("1m")
    founder = Recorder.create(disk_directory(disk), header)
    with pytest.raises(OSError, match="No space"), open(disk / "filler", "wb", buffering=0) as filler:
        while True:
            filler.write(b"x" * 4096)
    for end in ("sync", "close"):
        draft = Recorder.draft(founder.path / "_f1.er", replace(header, pid=5))
        say_much(draft, 7)
        if end == "sync":
            draft.sync()
        draft.close(START_NS + NS)
        assert isinstance(draft.stopped, DiskFull)
        assert draft.n_dropped == 7 * 23
        say_much(draft, 1)
        assert draft.n_dropped == 8 * 23
        assert not [name for name in os.listdir(founder.path) if "_f1" in name]
    os.unlink(disk / "filler")
    founder.close(START_NS + NS)
    assert open_experiment(founder.path).children == []


def disk_directory(disk: Path) -> Path:
    """An empty founder's directory."""
    path = disk / "a.er"
    path.mkdir()
    return path


def test_a_draft_whose_name_is_taken_leaves_what_is_there(record: Record, header: Header) -> None:
    founder = record("a.er")
    other = record("a.er/_f1.er")
    before = contents(other.path)
    draft = Recorder.draft(founder.path / "_f1.er", header)
    say_much(draft, 1)
    draft.close(START_NS + NS)
    assert "_f1.er is not empty" in str(draft.stopped)
    assert draft.n_dropped == 23
    assert contents(other.path) == before
    assert os.listdir(founder.path / "new") == []


def test_the_staging_directory_of_descendants_goes_with_the_founder(record: Record, header: Header) -> None:
    founder = record("a.er")
    inode_flags = subprocess.run(["lsattr", "-d", founder.path], capture_output=True, check=False).stdout
    drafts = [Recorder.draft(founder.path / f"_f{n}.er", header) for n in (1, 2)]
    drafts[0].sync()
    drafts[1].close(START_NS + NS)
    assert os.listdir(founder.path / "new") == []
    assert subprocess.run(["lsattr", "-d", founder.path], capture_output=True, check=False).stdout == inode_flags
    drafts[0].close(START_NS + NS)
    founder.close(START_NS + NS)
    assert sorted(path.name for path in founder.path.iterdir() if path.is_dir()) == ["_f1.er", "_f2.er"]
