"""The writing door under stress: full disks, limits, deletion, symbolic links, and what it costs."""

from __future__ import annotations

import gc
import os
import resource
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collector.errors import ExperimentError
from collector.experiment.blocks import DiskFull
from collector.experiment.dyntext import Text
from collector.experiment.reader import open_experiment
from collector.experiment.recorder import Header, Recorder, Usage
from collector.experiment.records import CLOCK

START_NS = 7_001_000_000_013
NS = 1_000_000_000
INTERVAL_S = 0.010007

Record = Callable[..., Recorder]
Gprofng = Callable[..., Any]


def fill(recorder: Recorder, rounds: int = 1, seed: int = 7) -> int:
    """Record until it stops, at most ``rounds``; the number of packets offered."""
    rng = np.random.default_rng(seed)
    offered = 0
    for number in range(rounds):
        pcs = rng.integers(1, 1 << 40, (20, 30)).astype(np.uint64)
        uids = recorder.frames.intern(pcs, np.full(20, 30))
        recorder.clock(np.full(20, 4711), np.zeros(20, int), np.full(20, START_NS + number), uids,
                       np.zeros(20, int), np.ones(20, int))
        offered += 20
        recorder.segment_mapped(START_NS, number << 20, 4096, 0, b"/lib/%d" % number)
        recorder.sample(Usage((number,) * 10), START_NS + number + 1, "a label")
        recorder.sync()
        if recorder.stopped:
            break
    return offered


def assert_ended_on_a_full_disk(recorder: Recorder, offered: int, gprofng: Gprofng, advice: str) -> None:
    assert isinstance(recorder.stopped, DiskFull)
    assert str(recorder.stopped).endswith(f"; {advice}")
    assert len(open_experiment(recorder.path).packets()) + recorder.n_dropped == offered
    recorder.warning("one more line")
    recorder.close(START_NS + 7 * NS)
    experiment = open_experiment(recorder.path)
    assert experiment.log.complete
    assert [(m.id, m.errno) for m in experiment.log.messages if m.kind == "cerror"] == [(32, recorder.stopped.errno)]
    assert experiment.log.messages[-1].text == "one more line"
    assert experiment.end_ns == START_NS + 7 * NS  # the last sample fitted, too
    assert len(experiment.packets()) + recorder.n_dropped == offered
    assert len(experiment.packets()) > 0
    assert (experiment.stacks.index(experiment.packets()["FRINFO"]) >= 0).all()
    assert experiment.problems == []
    text = gprofng("-header", experiment=recorder.path).text
    assert "was not closed" not in text
    assert "disk" in text or "limit" in text
    total = gprofng("-metrics", "e.user:name", "-functions", experiment=recorder.path).functions["<Total>"][0]
    assert total == pytest.approx(len(experiment.packets()) * INTERVAL_S, abs=0.001)


@pytest.fixture
def small_disk(mount_tmpfs: Callable[[str], Path]) -> Path:
    """A tmpfs of 2 MB."""
    return mount_tmpfs("2m")


def test_a_full_disk_ends_the_recording_and_what_was_written_opens(
        small_disk: Path, header: Header, gprofng: Gprofng) -> None:
    path = small_disk / "full.er"
    path.mkdir()
    recorder = Recorder.create(path, header)
    offered = fill(recorder, 100_000)
    assert recorder.stopped
    assert shutil.disk_usage(small_disk).free < 64 * 1024
    offered += fill(recorder, 2)
    assert_ended_on_a_full_disk(recorder, offered, gprofng, "free some space, or record elsewhere with -d DIR")


def test_no_experiment_is_begun_on_a_full_disk(small_disk: Path, header: Header) -> None:
    path = small_disk / "full.er"
    path.mkdir()
    founder = small_disk / "founder.er"
    founder.mkdir()
    with pytest.raises(OSError, match="No space"), open(small_disk / "filler", "wb") as filler:
        while True:
            filler.write(b"x" * 4096)
            filler.flush()
    for wanted in (path, founder / "_f1.er"):
        with pytest.raises(DiskFull):
            Recorder.create(wanted, header)
    assert [*path.rglob("*"), *founder.rglob("*")] == [founder / "new"]  # where descendants are made


def test_a_file_size_limit_ends_the_recording_likewise(record: Record, gprofng: Gprofng) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    recorder = record()
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, hard))
    try:
        offered = fill(recorder, 100_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert_ended_on_a_full_disk(recorder, offered, gprofng, "raise it (ulimit -f)")


def test_the_size_limit_stops_the_recording(record: Record, gprofng: Gprofng) -> None:
    recorder = record(size_limit_mb=1)
    offered = fill(recorder, 100_000)
    assert "its size limit of 1 MB" in str(recorder.stopped)
    offered += fill(recorder, 3)
    recorder.close(START_NS + NS)
    experiment = open_experiment(recorder.path)
    assert [(m.id, m.text) for m in experiment.log.messages if m.kind == "cerror"] == [(14, "1 MB")]
    assert len(experiment.packets()) + recorder.n_dropped == offered
    size = sum(file.stat().st_size for file in recorder.path.iterdir())
    assert 1_000_000 < size < 1_150_000
    assert "1 MB" in gprofng("-header", experiment=recorder.path).text


def offer(recorder: Recorder, n_packets: int) -> int:
    """Offers so many, with one stack, at once; all that there were."""
    uids = recorder.frames.intern(np.full((1, 3), 0x1000, dtype=np.uint64), np.full(1, 3))
    recorder.clock(np.full(n_packets, 4711), np.zeros(n_packets, int), np.full(n_packets, START_NS + 1),
                   np.repeat(uids, n_packets), np.zeros(n_packets, int), np.ones(n_packets, int))
    return n_packets


def say_threads(recorder: Recorder) -> None:
    recorder.threads_started([(tid, START_NS) for tid in range(9000)], b"a thread's name")


def say_names(recorder: Recorder) -> None:
    for tid in range(9000):
        recorder.thread_named(tid, START_NS, b"a thread's name")


def say_stacks(recorder: Recorder) -> None:
    pcs = np.random.default_rng(7).integers(1, 1 << 40, (200, 1100)).astype(np.uint64)
    recorder.frames.intern(pcs, np.full(200, 1100))


@pytest.mark.parametrize(("many", "part"), [
    (lambda recorder: offer(recorder, 40_000), 0.98), (say_threads, 0.98), (say_stacks, 0.95),
    (say_names, 0.35)])  # the room for a name is that of the longest
def test_the_size_limit_holds_where_much_is_told_at_once(many: Callable[[Recorder], int | None], part: float,
                                                         record: Record) -> None:
    recorder = record(size_limit_mb=1)
    recorder.segment_mapped(START_NS, 0x1000, 4096, 0, b"/lib/one")
    offered = offer(recorder, 1001)
    offered += many(recorder) or 0
    recorder.sync()
    assert recorder.stopped
    offered += offer(recorder, 1003)
    recorder.close(START_NS + NS)
    experiment = open_experiment(recorder.path)
    assert [m.id for m in experiment.log.messages if m.kind == "cerror"] == [14]
    assert len(experiment.packets()) + recorder.n_dropped == offered
    assert len(experiment.packets()) >= 1001
    assert (experiment.stacks.index(experiment.packets()["FRINFO"]) >= 0).all()
    assert part * (1 << 20) < sum(file.stat().st_size for file in recorder.path.iterdir()) < (1 << 20) + 4096


@pytest.mark.parametrize("n_packets", [100, 40_000])
def test_what_passes_the_size_limit_as_a_whole_is_the_last_that_is_written(n_packets: int, record: Record) -> None:
    """Code that a runtime has made: no packet comes behind it, and each that was offered is counted once."""
    recorder = record(size_limit_mb=1)
    offered = offer(recorder, 1001)
    recorder.code_mapped(START_NS, 0x1000, 64, b"made", Text(bytes(2 << 20)))
    offered += offer(recorder, n_packets)
    recorder.close(START_NS + NS)
    experiment = open_experiment(recorder.path)
    assert [m.id for m in experiment.log.messages if m.kind == "cerror"] == [14]
    assert (len(experiment.packets()), recorder.n_dropped) == (1001, n_packets)
    assert [function.name for function in experiment.functions] == [b"made"]


def test_a_draft_that_reaches_the_size_limit_keeps_what_it_held(record: Record, header: Header) -> None:
    founder = record("a.er")
    for number, is_synced in enumerate((True, False)):
        draft = Recorder.draft(founder.path / f"_f{number}.er", replace(header, size_limit_mb=1))
        draft.code_mapped(START_NS, 0x1000, 64, b"made", Text(bytes(10_000)))
        offered = offer(draft, 40_000)
        if is_synced:
            draft.sync()
        draft.close(START_NS + NS)
        experiment = open_experiment(draft.path)
        assert [m.id for m in experiment.log.messages if m.kind == "cerror"] == [14]
        assert len(experiment.packets()) > 10_000
        assert len(experiment.packets()) + draft.n_dropped == offered
        assert (draft.path / "dyntext").stat().st_size > 10_000


def test_who_reaches_the_size_limit_with_the_last_lines_says_so(record: Record) -> None:
    """For what is told at the end there is no room."""
    recorder = record(size_limit_mb=1)
    offer(recorder, 1)
    offer(recorder, recorder._room() // CLOCK.size - 1)
    assert not recorder.stopped
    recorder.close(START_NS + NS)
    log = open_experiment(recorder.path).log
    assert [m.id for m in log.messages if m.kind == "cerror"] == [14]
    assert log.complete


def test_a_thread_that_is_renamed_all_the_time_has_the_room_of_one_name(record: Record) -> None:
    recorder = record(size_limit_mb=1)
    recorder.thread_started(4711, START_NS, b"program")
    for number in range(20_000):
        recorder.thread_named(4711, START_NS + number, b"%d" % number)
    recorder.close(START_NS + NS)
    assert not recorder.stopped
    log = (recorder.path / "log.xml").read_bytes()
    assert (log.count(b"thread_name"), log.count(b'"19999"')) == (1, 1)


def test_an_experiment_deleted_underneath_is_an_error_and_no_crash(record: Record) -> None:
    recorder = record()
    fill(recorder, 3)
    shutil.rmtree(recorder.path)
    recorder.sync()
    assert "was deleted while it was recorded" in str(recorder.stopped)
    fill(recorder, 300)
    assert recorder.n_dropped == 20
    recorder.close(START_NS + NS)
    assert not recorder.path.exists()


def test_files_deleted_underneath_are_an_error_and_no_crash(record: Record) -> None:
    for name in ("profile", "data.frameinfo", "overview", "log.xml", "map.xml"):
        recorder = record(f"{name}.er")
        fill(recorder, 3)
        recorder.sync()
        recorder.sync()  # idle files are let go
        (recorder.path / name).unlink()
        fill(recorder, 3, seed=8)
        assert f"cannot write {name}: " in str(recorder.stopped)
        recorder.close(START_NS + NS)


def test_a_directory_moved_away_is_recorded_into(record: Record) -> None:
    recorder = record("here.er")
    fill(recorder, 3)
    moved = recorder.path.with_name("there.er")
    recorder.path.rename(moved)
    offered = fill(recorder, 300)
    recorder.close(START_NS + NS)
    assert recorder.stopped is None
    assert len(open_experiment(moved).packets()) == offered + 60


def test_symbolic_links_lead_nowhere(tmp_path: Path, header: Header) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "link.er").symlink_to(outside)
    with pytest.raises(ExperimentError, match=r"link\.er"):
        Recorder.create(tmp_path / "link.er", header)
    with pytest.raises(ExperimentError, match=r"_f1\.er"):
        Recorder.create(tmp_path / "link.er" / "_f1.er", header)
    victim = outside / "victim"
    for name in ("log.xml", "map.xml", "overview", "data.frameinfo", "profile"):
        victim.write_text("precious")
        path = tmp_path / f"{name}.er"
        path.mkdir()
        (path / name).symlink_to(victim)
        with pytest.raises(ExperimentError, match="is not empty"):
            Recorder.create(path, header)
        assert os.listdir(path) == [name]
        (path / name).unlink()
        recorder = Recorder.create(path, header)
        (path / name).unlink(missing_ok=True)
        (path / name).symlink_to(victim)
        if name == "profile":
            (path / "profile.new").symlink_to(victim)
        fill(recorder, 1)
        assert f"cannot write {name}: " in str(recorder.stopped)
        recorder.close(START_NS)
        assert victim.read_text() == "precious"
    assert os.listdir(outside) == ["victim"]


def test_everything_is_private(record: Record) -> None:
    founder = record("a.er", notes=["n"])
    child = record("a.er/_f1.er")
    fill(founder)
    fill(child)
    assert stat.S_IMODE(child.path.stat().st_mode) == 0o700
    files = [path for path in founder.path.rglob("*") if path.is_file()]
    assert len(files) == 12 - 1
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}


def test_a_descendant_appears_with_all_its_files_or_not_at_all(record: Record, header: Header, tmp_path: Path) -> None:
    founder = record("a.er")
    child = record("a.er/_f1.er")
    assert sorted(os.listdir(child.path)) == ["data.frameinfo", "log.xml", "map.xml", "overview"]
    assert "_f1.er" in os.listdir(founder.path)
    with pytest.raises(ExperimentError):
        Recorder.create(tmp_path / "nowhere.er" / "_f1.er", header)
    with pytest.raises(ExperimentError):  # it exists and is in use
        Recorder.create(child.path, header)
    child.sync()
    assert open_experiment(child.path).log.pid == header.pid


def test_closing_twice_and_recording_afterwards_does_nothing(record: Record) -> None:
    recorder = record()
    offered = fill(recorder, 2)
    recorder.close(START_NS + NS)
    before = {path.name: path.read_bytes() for path in recorder.path.iterdir()}
    recorder.close(START_NS + 2 * NS)
    recorder.sync()
    fill(recorder, 1)
    recorder.sample(Usage(), START_NS + 3 * NS, "late")
    assert {path.name: path.read_bytes() for path in recorder.path.iterdir()} == before
    assert recorder.n_dropped == 20
    assert len(open_experiment(recorder.path).packets()) == offered


def test_no_data_after_close_data_but_words(record: Record) -> None:
    recorder = record()
    fill(recorder, 1)
    recorder.close_data()
    fill(recorder, 1)
    recorder.comment("archived")
    recorder.close(START_NS + NS)
    experiment = open_experiment(recorder.path)
    assert len(experiment.packets()) == recorder.n_dropped == 20
    assert experiment.log.messages[-1].text == "archived"
    assert experiment.log.events[-1].kind == "exit"
    assert recorder.stopped is None


def test_an_unknown_field_is_a_mistake(record: Record) -> None:
    one = np.ones(1, int)
    with pytest.raises(TypeError, match="no such field of a clock packet: color"):
        record().clock(one, one, one, one, one, one, color=one)


def test_times_before_the_start_become_the_start(record: Record) -> None:
    recorder = record()
    recorder.segment_mapped(START_NS - 5 * NS, 4096, 4096, 0, b"/x")
    recorder.comment("early", START_NS - NS)
    recorder.close(START_NS)
    experiment = open_experiment(recorder.path)
    assert [s.start_ns for s in experiment.segments] == [START_NS]
    assert experiment.log.messages[-1].time_ns == START_NS


def test_samples_never_go_back_in_time(record: Record) -> None:
    """One of a moment at which the process had ended, which came to be known later."""
    recorder = record()
    recorder.sample(Usage((NS,) * 10), START_NS + 3 * NS, "periodic")
    recorder.sample(Usage((2 * NS,) * 10), START_NS + 2 * NS, "exit")
    recorder.close(START_NS + 2 * NS)
    experiment = open_experiment(recorder.path)
    assert [(sample.label, sample.end_ns - START_NS) for sample in experiment.samples] == [
        ("periodic", 3 * NS), ("exit", 3 * NS + 1)]
    assert experiment.problems == []


def open_files() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def test_descriptors_are_few_and_fewer_when_idle(record: Record) -> None:
    before = open_files()
    recorder = record()
    assert open_files() - before == 1
    fill(recorder, 3)
    assert open_files() - before == 5
    recorder.sync()
    assert open_files() - before == 1
    recorder.close(START_NS + NS)
    assert open_files() == before


def test_five_hundred_idle_descendants_cost_little(record: Record, header: Header) -> None:
    founder = record("a.er")
    before = open_files()
    start_ns = time.thread_time_ns()
    children = [Recorder.create(founder.path / f"_f{n}.er", replace(header, pid=n)) for n in range(500)]
    per_child_ms = (time.thread_time_ns() - start_ns) / 500 / 1e6
    assert open_files() - before == 500
    for child in children:
        child.close(START_NS + NS)
    assert open_files() == before
    sizes = [sum(file.stat().st_blocks * 512 for file in child.path.iterdir()) for child in children]
    assert max(sizes) <= 4 * 4096
    assert per_child_ms < 3  # 0.3 measured
    assert [child.lineage for child in open_experiment(founder.path).children] == [f"_f{n}" for n in range(500)]


def test_a_failed_start_leaves_no_descriptor(tmp_path: Path, header: Header) -> None:
    before = open_files()
    for wanted in (tmp_path / "no" / "x.er", tmp_path / "x.er"):
        if wanted.parent.exists():
            (wanted / "log.xml.new").mkdir(parents=True)
        with pytest.raises(ExperimentError):
            Recorder.create(wanted, header)
    assert open_files() == before


CREATED = """
import sys
from dataclasses import replace
from pathlib import Path
from collector.experiment.recorder import Header, Recorder
founder, header = Path(sys.argv[1]), Header(**eval(sys.argv[2]))
print("ready", flush=True)
for number in range(1, 100_000):
    Recorder.create(founder / f"_f{number}.er", header).close(header.start_ns)
"""


def test_a_writer_killed_while_it_creates_descendants_leaves_none_half_made(
        record: Record, header: Header, gprofng: Gprofng) -> None:
    for attempt in range(5):
        founder = record(f"a{attempt}.er")
        founder.close(START_NS + NS)
        process = subprocess.Popen([sys.executable, "-c", CREATED, founder.path, repr(asdict(header))],
                                   stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        while not any(founder.path.glob("_f*.er")):
            assert process.poll() is None
        time.sleep(0.002 + 0.003 * attempt)
        process.kill()
        process.communicate()
        experiment = open_experiment(founder.path)
        assert len(experiment.children) > 0
        assert experiment.problems == []
        assert gprofng("-experiment_list", experiment=founder.path).text.count("_f") == len(experiment.children)
