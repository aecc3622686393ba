"""The reading door on what the writing door wrote, value for value; and on damage."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

from collector.errors import ExperimentError
from collector.experiment.damage import Damage
from collector.experiment.names import archive_name
from collector.experiment.packets import read, read_pieces, read_traced
from collector.experiment.reader import FOREVER_NS, DynamicFunction, ObjectFile, Sample, Segment, open_experiment
from collector.experiment.recorder import Header, Recorder, Usage
from collector.experiment.records import BLOCK_SIZE, COUNTERS, IO
from collector.layout import Described

START_NS = 7_001_000_000_013
NS = 1_000_000_000
HOSTILE = b"/tmp/<a>&\"'%41%\n\x01\xff\xfe/" + b"x" * 4000


def stacks(*rows: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    length = np.array([len(row) for row in rows])
    pcs = np.zeros((len(rows), length.max()), np.uint64)
    for number, row in enumerate(rows):
        pcs[number, :len(row)] = row
    return pcs, length


def clock(recorder: Recorder, count: int, uid: int = 16, first: int = 0) -> np.ndarray:
    """Append ``count`` packets in which all fields differ; what the reader must give."""
    n = np.arange(first, first + count)
    values = {"tid": 4711 + n % 5, "cpu": n % 3, "time_ns": START_NS + n * 1_000_003, "frame_uid": n * 0 + uid,
              "state": n % 10, "ticks": n % 7 + 1, "syscall": n % 300 - 1, "exact_ns": n * 11}
    recorder.clock(**values)
    expected = {"LWPID": "tid", "THRID": "tid", "CPUID": "cpu", "TSTAMP": "time_ns", "FRINFO": "frame_uid",
                "MSTATE": "state", "NTICK": "ticks", "SYSCALL": "syscall", "EXACT_NS": "exact_ns"}
    return np.rec.fromarrays([values[name] for name in expected.values()], names=list(expected))


def assert_packets(got: np.ndarray, expected: np.ndarray) -> None:
    assert len(got) == len(expected)
    assert set(got.dtype.names or ()) == set(expected.dtype.names or ())
    for name in expected.dtype.names or ():
        assert np.array_equal(got[name], expected[name]), name


@pytest.mark.parametrize("wsize", [64, 32])
def test_everything_comes_back(record: Callable[..., Recorder], header: Header, wsize: int) -> None:
    recorder = record(wsize=wsize, cwd=HOSTILE, arguments=HOSTILE, notes=["one", "zwei <&>"], follow=True,
                      size_limit_mb=100)
    recorder.thread_started(4713, START_NS + 5, HOSTILE)
    recorder.thread_started(4711, START_NS + 6, b"main")
    recorder.segment_mapped(START_NS, 0x400000, 0x3000, 0x1000, HOSTILE)
    recorder.segment_mapped(START_NS + 7, 0x500000, 0x1000, 0, b"/lib/gone (deleted)", 7)
    recorder.segment_mapped(START_NS + 8, 0x600000, 0x1000, 0x2000, b"/lib/data", 3)
    recorder.unmapped(START_NS + 9, 0x500000)
    recorder.function_mapped(START_NS, 0x700000, 0x800, b"[vdso]", [(0x700010, 32, b"one"), (0x700040, 8, HOSTILE)])
    uids = recorder.frames.intern(*stacks((1, 2, 3, 4), (9, 2, 3, 4), (8, 2, 3, 4)))
    expected = clock(recorder, 701, int(uids[1]))
    usage = Usage(tuple(range(3, 13)), **{name: n * 7 + 1 for n, name in enumerate(COUNTERS)})
    recorder.sample(usage, START_NS + NS, "first")
    recorder.comment("a remark", START_NS + 1)
    recorder.warning(HOSTILE, START_NS + 2)
    recorder.error("an error", START_NS + 3, 51, errno=28)
    recorder.close(START_NS + 2 * NS, usage=Usage(tuple(range(103, 113)), minor_faults=3))

    experiment = open_experiment(recorder.path)
    log = experiment.log
    for name in ("hostname", "os", "arch", "page_size", "n_pages", "cpus", "pid", "ppid", "pgrp", "sid", "numstates",
                 "sample_period_s", "start_ns", "start_unix", "collector"):
        assert getattr(log, name) == getattr(header, name), name
    assert (log.wsize, log.cwd, log.arguments, log.interval_us) == (wsize, HOSTILE, HOSTILE, 10_007)
    assert log.settings == {"sample_period": "1", "limit": "100", "linetrace": "fork|exec|combo"}
    assert log.complete
    assert log.end_ns == experiment.end_ns == START_NS + 2 * NS
    text = HOSTILE.decode("utf-8", "surrogateescape")
    assert [(m.kind, m.id, m.text, m.time_ns - START_NS, m.errno) for m in log.messages] == [
        ("comment", 401, text, 0, 0), ("comment", 402, text, 0, 0), ("comment", 400, "a remark", 1, 0),
        ("cwarn", 227, text, 2, 0), ("cerror", 51, "an error", 3, 28)]
    assert [event.kind for event in log.events] == [
        "run", "sample", "jthread_start", "jthread_start", "sample", "sample", "exit"]
    assert log.threads == {4713: HOSTILE, 4711: b"main"}
    assert experiment.threads == [4713, 4711, 4712, 4714, 4715]
    assert_packets(experiment.packets(), expected)
    assert experiment.stacks.uids.tolist() == sorted(uids.tolist())
    assert [tuple(experiment.stacks.stack(i).tolist()) for i in experiment.stacks.index(uids)] == [
        (1, 2, 3, 4), (9, 2, 3, 4), (8, 2, 3, 4)]
    assert experiment.segments == [
        Segment(START_NS, FOREVER_NS, 0x400000, 0x3000, 0x1000, 5, HOSTILE),
        Segment(START_NS + 7, START_NS + 9, 0x500000, 0x1000, 0, 5, b"/lib/gone"),
        Segment(START_NS + 8, FOREVER_NS, 0x600000, 0x1000, 0x2000, 3, b"/lib/data")]
    assert experiment.functions == [DynamicFunction(
        START_NS, FOREVER_NS, 0x700000, 0x800, b"[vdso]", ((0x700010, 32, b"one"), (0x700040, 8, HOSTILE)))]
    counters = {name: n * 7 + 1 for n, name in enumerate(COUNTERS)}
    assert experiment.samples == [
        Sample(1, "collector_open_experiment", "first", START_NS, START_NS + NS, tuple(range(3, 13)), counters),
        Sample(2, "first", "collector_close_experiment", START_NS + NS, START_NS + 2 * NS, (100,) * 10,
               dict.fromkeys(COUNTERS, 0) | {"minor_faults": 2})]
    assert experiment.notes == ["one", "zwei <&>"]
    assert (experiment.name, experiment.lineage, experiment.children) == ("test.1.er", "", [])
    assert experiment.problems == []


def test_descendant_events_come_back(record: Callable[..., Recorder]) -> None:
    recorder = record()
    recorder.descendant_starting(START_NS + 1, "fork", "_f1", True)
    recorder.descendant_started(START_NS + 2, "fork", "_f1", True, "pid=5")
    recorder.descendant_starting(START_NS + 3, "system", "_c1", False, b"rm -rf \xff")
    recorder.exec_start(START_NS + 4, "execve", "_x1", True, "/bin/true a b")
    recorder.pause(START_NS + 5, "user")
    recorder.resume(START_NS + 6, "user")
    recorder.sync()
    log = open_experiment(recorder.path).log
    assert log.complete  # a process that execs has ended properly
    kinds = ("tstamp", "kind")
    assert [(e.kind, e.time_ns - START_NS, {k: v for k, v in e.attributes.items() if k not in kinds})
            for e in log.events[2:]] == [
        ("desc_start", 1, {"variant": "fork", "lineage": "_f1", "follow": "1"}),
        ("desc_started", 2, {"variant": "fork", "lineage": "_f1", "follow": "1", "msg": "pid=5"}),
        ("desc_start", 3, {"variant": "system", "lineage": "_c1", "follow": "0", "msg": "rm -rf \udcff"}),
        ("exec_start", 4, {"variant": "execve", "lineage": "_x1", "follow": "1", "msg": "/bin/true a b"}),
        ("pause", 5, {"name": "user"}), ("resume", 6, {"name": "user"})]
    recorder.exec_error(START_NS + 7, "execve", "_x1", True, "err ENOENT")
    recorder.sync()
    assert not open_experiment(recorder.path).log.complete


def test_a_running_experiment_shows_what_was_synced(record: Callable[..., Recorder]) -> None:
    recorder = record()
    expected = clock(recorder, 1000)
    running = open_experiment(recorder.path)
    assert not running.log.complete
    assert_packets(running.packets(), expected)
    recorder.segment_mapped(START_NS, 0x1000, 0x1000, 0, b"/x")
    assert open_experiment(recorder.path).segments == []
    recorder.sync()
    assert [s.name for s in open_experiment(recorder.path).segments] == [b"/x"]
    more = clock(recorder, 337, first=1000)
    assert_packets(open_experiment(recorder.path).packets(), np.concatenate([expected, more]))


def test_nothing_recorded(record: Callable[..., Recorder]) -> None:
    recorder = record()
    recorder.close(START_NS)
    experiment = open_experiment(recorder.path)
    assert len(experiment.packets()) == len(experiment.stacks) == 0
    assert (experiment.samples, experiment.segments, experiment.functions, experiment.threads) == ([], [], [], [])
    assert experiment.end_ns == START_NS
    assert experiment.log.complete
    assert sorted(os.listdir(recorder.path)) == ["data.frameinfo", "log.xml", "map.xml", "overview"]


def test_large_segments_are_split_and_unmapped_whole(record: Callable[..., Recorder]) -> None:
    recorder = record()
    size = (5 << 30) + 0x3000
    recorder.segment_mapped(START_NS, 1 << 40, size, 0x7000, b"/huge")
    recorder.segment_mapped(START_NS, 1 << 41, 0x1000, 0, b"/small")
    recorder.unmapped(START_NS + 1, 1 << 40)
    recorder.close(START_NS + 2)
    *pieces, small = open_experiment(recorder.path).segments
    assert sum(piece.size for piece in pieces) == size
    assert all(piece.size < 1 << 31 and piece.end_ns == START_NS + 1 for piece in pieces)
    assert [piece.vaddr - piece.file_offset for piece in pieces] == [(1 << 40) - 0x7000] * len(pieces)
    assert small.end_ns == FOREVER_NS


def test_what_a_new_mapping_covers_is_unmapped(record: Callable[..., Recorder]) -> None:
    recorder = record()
    for number, (start, size) in enumerate([(0x1000, 0x4000), (0x6000, 0x1000), (0x4000, 0x2000), (0x1000, 0x1000)]):
        recorder.segment_mapped(START_NS + number, start, size, 0, b"/%d" % number)
    recorder.unmapped(START_NS + 9, 0x5000, 0x3000)
    recorder.close(START_NS + 10)
    found = {s.name: s.end_ns for s in open_experiment(recorder.path).segments}
    assert found == {b"/0": START_NS + 2, b"/1": START_NS + 9, b"/2": START_NS + 9, b"/3": FOREVER_NS}


def test_descendants_sorted_by_number(record: Callable[..., Recorder]) -> None:
    founder = record("a.1.er")
    for lineage in ("_f10", "_f2", "_f2_x1", "_C1"):
        record(f"a.1.er/{lineage}.er", pid=5).close(START_NS + 1)
    (founder.path / "_f11.er").mkdir()
    experiment = open_experiment(founder.path)
    assert [child.lineage for child in experiment.children] == ["_C1", "_f2", "_f2_x1", "_f10"]
    assert len(experiment.problems) == 1
    assert "_f11.er: not an experiment: it has no log.xml" in experiment.problems[0]
    assert {child.archives for child in experiment.children} == {founder.path / "archives"}
    alone = open_experiment(founder.path / "_f2.er")
    assert alone.archives == founder.path.absolute() / "archives"


@pytest.mark.parametrize("kind", ["unreadable", "folder"])
def test_warnings_that_cannot_be_read_are_told(record: Callable[..., Recorder], kind: str) -> None:
    path = record("a.1.er", pid=5).path
    warnings = path / "warnings.xml"
    if kind == "folder":
        warnings.mkdir()
    else:
        warnings.symlink_to("/proc/sys/net/ipv4/route/flush")  # which nobody may read, not even root
    opened = open_experiment(path)
    assert opened.log.pid == 5
    assert opened.problems == [f"{warnings}: {'Is a directory' if kind == 'folder' else 'Permission denied'}"]


@pytest.mark.parametrize(("name", "log"), [
    ("a.1.er", b""), ("a.1.er", b'<system bigendian="1"/><event kind="run" tstamp="1.0"/>'), ("a.1.er/M_r0.er", b"")])
def test_a_descendant_opens_where_its_founder_does_not(record: Callable[..., Recorder], name: str, log: bytes) -> None:
    job = record("a.1.er")
    founder = record(name) if name != "a.1.er" else job
    path = record(f"{name}/_f1.er", pid=5).path
    (founder.path / "log.xml").write_bytes(log)
    opened = open_experiment(path)
    assert (opened.log.pid, opened.archives) == (5, job.path / "archives")
    (said,) = opened.problems
    assert said.startswith(f"{founder.path}")
    assert said.endswith(f"; {path} was opened without it")


def test_files_are_found_in_the_archives_before_their_own_place(
        record: Callable[..., Recorder], tmp_path: Path) -> None:
    recorder = record()
    original = tmp_path / "lib.so"
    original.touch()
    segment = Segment(START_NS, FOREVER_NS, 0x1000, 0x1000, 0, 5, os.fsencode(original))
    experiment = open_experiment(recorder.path)
    assert experiment.object_file(segment) == ObjectFile(original)
    assert experiment.object_file(segment._replace(name=b"/nowhere/at/all")) == ObjectFile(None)
    experiment.archives.mkdir()
    copy = experiment.archives / os.fsdecode(archive_name(segment.name))
    copy.touch()
    assert open_experiment(recorder.path).object_file(segment) == ObjectFile(copy)


@pytest.mark.parametrize(("name", "content", "message"), [
    ("x.er", None, "has no log.xml"), ("x", b"", "whose name ends in .er"), ("x.er", b"", "no run event"),
    ("x.er", b'<experiment version="11.0"></experiment><event kind="run" tstamp="1.0"/>', "too old"),
    ("x.er", b'<process wsize="16"></process><event kind="run" tstamp="1.0"/>', "cannot be read here"),
    ("x.er", b'<system bigendian="1"/><event kind="run" tstamp="1.0"/>', "cannot be read here"),
    ("x.er", b'<system arch="sun4v"/><event kind="run" tstamp="1.0"/>', "cannot be read here"),
    ("x.er", b'<system arch="sparcv9"/><event kind="run" tstamp="1.0"/>', "cannot be read here")])
def test_what_is_not_an_experiment(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    path = tmp_path / name
    path.mkdir()
    if content is not None:
        (path / "log.xml").write_bytes(content)
    with pytest.raises(ExperimentError, match=message) as error:
        open_experiment(path)
    assert str(path) in str(error.value)
    with pytest.raises(ExperimentError, match="not an experiment"):
        open_experiment(tmp_path / "nothing.er")


@pytest.fixture
def small(record: Callable[..., Recorder], tmp_path: Path) -> Path:
    """A small complete experiment."""
    recorder = record("small.er")
    recorder.thread_started(4711, START_NS, b"main")
    recorder.segment_mapped(START_NS, 0x1000, 0x1000, 0, b"/bin/<x>")
    recorder.frames.intern(*stacks((1, 2, 3, 4), (9, 2, 3, 4)))
    clock(recorder, 7)
    recorder.sample(Usage((5,) * 10), START_NS + NS, "one")
    recorder.close(START_NS + 2 * NS)
    return recorder.path


def _contents(path: Path) -> tuple[int, ...]:
    e = open_experiment(path)
    return (len(e.packets()), len(e.stacks), len(e.segments), len(e.samples), len(e.log.events), len(e.threads))


@pytest.mark.parametrize("name", ["log.xml", "map.xml", "overview", "data.frameinfo", "profile"])
def test_each_file_cut_at_every_byte_opens_or_says_why(small: Path, tmp_path: Path, name: str) -> None:
    whole = (small / name).read_bytes()
    complete = _contents(small)
    copy = tmp_path / "copy.er"
    shutil.copytree(small, copy)
    refused = 0
    for cut in reversed(range(len(whole))):
        os.truncate(copy / name, cut)
        try:
            contents = _contents(copy)
        except ExperimentError as error:
            assert "no run event" in str(error)
            refused += 1
            continue
        assert all(cut <= all_ for cut, all_ in zip(contents, complete, strict=True))
    run = whole.find(b'<event kind="run"')
    assert refused == (whole.index(b">", run) + 1 if run >= 0 else 0)
    (copy / name).write_bytes(whole)
    assert _contents(copy) == complete


@pytest.mark.parametrize("name", ["log.xml", "map.xml", "overview", "data.frameinfo", "profile"])
@pytest.mark.parametrize("garbage", [b"\xff" * 100, b"\0" * 3, b"\x05\0\x08\0garbage", b"<<<"], ids=range(4))
def test_trailing_garbage_changes_nothing(small: Path, name: str, garbage: bytes) -> None:
    complete = _contents(small)
    with open(small / name, "ab") as file:
        file.write(garbage)
    assert _contents(small) == complete


def test_a_file_that_is_missing_is_like_an_empty_one(small: Path) -> None:
    for name in ("map.xml", "overview", "data.frameinfo", "profile"):
        (small / name).unlink()
    assert _contents(small) == (0, 0, 0, 0, 6, 1)


def test_damage_is_told(small: Path) -> None:
    whole = (small / "profile").read_bytes()
    (small / "profile").write_bytes(whole[:128] + b"\x03\0\x08\0".ljust(BLOCK_SIZE - 128, b"\xff") + whole)
    experiment = open_experiment(small)
    assert len(experiment.packets()) == 2 + 7
    assert experiment.problems == [f"{small}/profile: 1 damaged places were skipped"]


@pytest.mark.parametrize("seed", range(23))
def test_packets_read_in_pieces_are_those_of_the_whole_file(seed: int) -> None:
    """Of sizes up to the largest, so that some lie in two pieces, with places between them where nothing can be."""
    random = np.random.default_rng(seed)
    described = {8: [Described("TSTAMP", "", 8, "INT64"), Described("LAST", "", 60, "INT32")]}
    content = bytearray()
    while len(content) < 40 * BLOCK_SIZE:
        size = int(random.choice([16, 24, 64, 1000, 16_384, 65_532]))
        head = np.array([size, random.choice([8, 8, 8, 9])], "<u2").tobytes()
        content += head + random.integers(0, 256, size - 4, np.uint8).tobytes()
        if random.random() < 0.1:  # nothing, or what is no packet, up to the next block
            content += random.choice([0, 3]).astype("<u4").tobytes()
            content += bytes(-len(content) % BLOCK_SIZE)
    data = np.frombuffer(bytes(content[:-5 * seed or None]), np.uint8)
    length = int(random.choice([1, 2, 5, 64])) * BLOCK_SIZE
    pieces = [data[begin:begin + length] for begin in range(0, len(data), length)]
    damage, other = Damage(), Damage()
    found = list(read_pieces(pieces, described, damage))
    whole = read(data, described, other)
    assert len(found) == len(pieces)
    assert np.concatenate([piece["TSTAMP"] for piece in found]).tolist() == whole["TSTAMP"].tolist()
    assert damage.lines() == other.lines()


def test_transfers_that_cannot_be_are_skipped() -> None:
    """Up to the largest and the smallest number that there is; -1 says that there is none."""
    packets = np.zeros(6, IO.dtype)
    packets["tsize"], packets["kind"] = IO.size, IO.kind
    packets["IONBYTE"] = [-1, 5, 1 << 48, (1 << 48) + 1, (1 << 63) - 1, -(1 << 63)]
    damage = Damage()
    found = read_traced(packets.view(np.uint8), {IO.kind: IO.describe()}, IO, damage)
    assert found.packets["IONBYTE"].tolist() == [-1, 5, 1 << 48]
    assert damage.lines() == ["3 packets with impossible sizes were skipped"]


def test_packets_and_stacks_that_come_while_a_running_experiment_is_read(record: Callable[..., Recorder]) -> None:
    recorder = record()
    clock(recorder, 7)
    recorder.sync()
    experiment = open_experiment(recorder.path)
    assert sum(map(len, experiment.packets_in_pieces("profile"))) == 7
    clock(recorder, 5, first=7)
    recorder.sync()
    assert len(experiment.packets()) == 7
    assert len(open_experiment(recorder.path).packets()) == 12


def test_a_million_packets_are_read_without_a_loop_over_them(record: Callable[..., Recorder]) -> None:
    """How fast that is ``scripts/bench reader`` tells."""
    recorder = record()
    parts = [clock(recorder, 100_000, first=n * 100_000) for n in range(10)]
    recorder.close(START_NS + 10**15)
    n_lines = 0

    def count(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal n_lines
        n_lines += 1
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        packets = open_experiment(recorder.path).packets()
    finally:
        sys.settrace(before)
    assert_packets(packets, np.concatenate(parts))
    assert n_lines < len(packets) // 10


def test_an_experiment_of_another_collector(tmp_path: Path, need: Callable[[str, str], str]) -> None:
    path = tmp_path / "other.1.er"
    (tmp_path / "in").write_bytes(np.random.default_rng(5).bytes(1 << 21))
    subprocess.run([need("gprofng", "binutils"), "collect", "app", "-p", "hi", "-o", path, need("xz", "xz-utils"),
                    "-k", "-c", "in"], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                   cwd=tmp_path)
    experiment = open_experiment(path)
    shown = subprocess.run(["gprofng", "display", "text", "-metrics", "e.totalcpu:name", "-functions", path],
                           capture_output=True, text=True, check=True).stdout
    total = re.search(r"([\d.]+) +<Total>", shown)
    assert total is not None
    packets = experiment.packets()
    assert len(packets) > 0
    assert float(total[1]) == pytest.approx(int(packets["NTICK"].sum()) * 997e-6, abs=0.001)
    assert (experiment.stacks.index(packets["FRINFO"]) >= 0).all()
    assert b"/usr/bin/xz" in {segment.name for segment in experiment.segments}
    assert b"__vdso_gettimeofday" in {name for f in experiment.functions for _, _, name in f.symbols}
