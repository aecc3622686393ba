"""The live figures are those of the finished report over the same packets, however often was looked meanwhile."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from collector.experiment.recorder import Header, Recorder
from collector.report.live import Figures, Live, whole
from collector.report.metrics import N_STATE_COLUMNS
from collector.report.profile import I8

START_NS, MS, S = 7_001_000_000_013, 1_000_000, 1_000_000_000
INTERVAL_US = 10_007
HEADER = Header(
    hostname="h", os="Linux 6.1.0", arch="x86_64", page_size=4096, n_pages=1, cpus=[1], pid=71, ppid=70, pgrp=71,
    sid=70, cwd=b"/", arguments=b"prog", wsize=64, interval_ns=INTERVAL_US * 1000, sample_period_s=1, start_ns=START_NS,
    start_unix=2_100_000_003, collector="collect")
VDSO = 0x7000_0000
SYMBOLS = [(VDSO + 0x100 * i, 0x100, b"function_%d" % i) for i in range(13)]


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    path = tmp_path / "test.1.er"
    path.mkdir()
    return Recorder.create(path, HEADER)


def clock(recorder: Recorder, time_ns: int, seed: int, n: int = 211, tid: int = 0) -> None:
    """Packets of recursive stacks in all states, of five threads or one."""
    random = np.random.default_rng(seed)
    depth = random.integers(1, 9, n)
    stacks = VDSO + 0x100 * random.integers(0, 13, (n, 8)).astype(np.uint64)
    uids = recorder.frames.intern(np.where(np.arange(8) < depth[:, None], stacks, np.uint64(0)), depth)
    tids = np.full(n, tid) if tid else 71 + random.integers(0, 5, n)
    recorder.clock(tids, np.zeros(n, np.int64), time_ns + np.arange(n), uids,
                   random.integers(0, 10, n), random.integers(0, 4, n))
    recorder.sync()


def named(figures: Figures) -> tuple[Counter[bytes], Counter[bytes], dict[int, list[int]], list[int]]:
    """What each function and thread has, without the order in which they were met."""
    def by_name(values: I8) -> Counter[bytes]:
        return Counter({function.name: values[i].tolist() for i, function in enumerate(figures.functions)
                        if values[i].any()})

    threads = {one.tid: figures.by_thread[i].tolist() for i, one in enumerate(figures.threads)}
    return by_name(figures.own), by_name(figures.inclusive), threads, figures.total.tolist()


def test_sums_of_all_looks_are_those_of_the_whole(recorder: Recorder) -> None:
    recorder.function_mapped(START_NS, VDSO, 0x1000, b"[vdso]", SYMBOLS)
    live = Live(recorder.path)
    lengths = []
    for batch in range(9):
        clock(recorder, START_NS + (batch + 1) * S, seed=batch)
        assert live.look()
        assert not live.look()
        assert named(live.cumulative()) == named(whole(recorder.path))
        lengths.append(live.window(0).length_ns)
    assert lengths == [S + 210] + [S] * 8
    three, last = live.window(3 * S), live.window(0)
    assert three.length_ns == 3 * S
    newest = [live.recent(3)[i].total for i in range(3)]
    assert three.total.tolist() == sum(newest).tolist()
    assert last.total.tolist() == newest[-1].tolist()
    recorder.close(START_NS + 10 * S)
    live.finish()
    assert live.is_over
    assert named(live.cumulative()) == named(whole(recorder.path))


def test_a_map_that_tells_later_of_what_was_seen_is_followed_by_reading_again(recorder: Recorder) -> None:
    """First nothing is known of the place, then a function, which another one takes the place of, in the past."""
    live = Live(recorder.path)
    clock(recorder, START_NS + S, seed=1)
    live.look()
    assert set(named(live.cumulative())[1]) == {b"<Unknown>"}
    recorder.function_mapped(START_NS + S // 2, VDSO, 0x1000, b"[vdso]", SYMBOLS)
    clock(recorder, START_NS + 2 * S, seed=2)
    live.look()
    found = named(live.cumulative())
    assert b"<Unknown>" not in found[1]
    assert found == named(whole(recorder.path))
    recorder.function_mapped(START_NS + S + 100, VDSO, 0x1000, b"later")
    clock(recorder, START_NS + 3 * S, seed=3)
    recorder.close(START_NS + 4 * S)
    live.finish()
    found = named(live.cumulative())
    assert {b"later", b"function_0"} <= set(found[1])
    assert found == named(whole(recorder.path))


def test_threads_have_their_places_when_all_was_read_again(recorder: Recorder) -> None:
    """What intervals say of a thread is said of the same one at the end, though another one was met first."""
    for tid in (72, 75, 77):
        recorder.thread_started(tid, START_NS, b"%d" % tid)
    live = Live(recorder.path)
    for number, tid in enumerate((75, 72, 77)):
        clock(recorder, START_NS + (number + 1) * S, seed=number, tid=tid)
        live.look()
    for time_ns, name in ((START_NS + S // 2, b"[vdso]"), (START_NS + S + 100, b"later")):  # read again, and at the end
        recorder.function_mapped(time_ns, VDSO, 0x1000, name, SYMBOLS if name == b"[vdso]" else ())
        clock(recorder, START_NS + 4 * S, seed=4, tid=72)
        live.look()
    recorder.close(START_NS + 5 * S)
    live.finish()
    at_end, sums = live.cumulative(), np.zeros((3, N_STATE_COLUMNS), np.int64)
    for one in live.recent(16):
        sums[one.threads] += one.by_thread
    assert [thread.tid for thread in at_end.threads] == [75, 72, 77]
    assert sums.tolist() == at_end.by_thread.tolist()
    assert named(at_end) == named(whole(recorder.path))


@pytest.mark.parametrize("n_silent", [4, 100])
def test_what_comes_late_is_of_the_time_in_which_nothing_came(recorder: Recorder, n_silent: int) -> None:
    """A recorder that was silent for seconds, and then tells of them: meanwhile nothing is shown for them."""
    now_ns = START_NS
    live = Live(recorder.path, now=lambda: now_ns)
    clock(recorder, START_NS + S, seed=1)
    now_ns += S
    assert live.look()
    for _ in range(n_silent):
        now_ns += S
        assert not live.look()
    quiet = live.window(0)
    assert quiet.length_ns > 3 * S
    assert not quiet.total.any()
    assert live.quiet_ns == n_silent * S
    assert live.cumulative().length_ns == sum(length_ns for length_ns, _ in live.history) > 4 * S
    clock(recorder, START_NS + (n_silent + 1) * S - MS, seed=2)
    assert live.look()
    last = live.window(0)
    assert last.length_ns == n_silent * S - MS
    assert last.total.any()
    assert live.cumulative().length_ns == sum(length_ns for length_ns, _ in live.history) == (
        (n_silent + 1) * S - MS + 210)
    assert len(live.history) == 2


def test_a_closed_experiment_is_shown_whole(recorder: Recorder) -> None:
    recorder.function_mapped(START_NS, VDSO, 0x1000, b"[vdso]", SYMBOLS)
    clock(recorder, START_NS + S, seed=5)
    recorder.close(START_NS + 2 * S)
    live = Live(recorder.path)
    assert live.is_over
    assert not live.look()
    assert live.window(0) is live.cumulative()
    assert named(live.cumulative()) == named(whole(recorder.path))


def test_a_thread_is_called_by_its_last_name(recorder: Recorder) -> None:
    """Its place and its figures stay; a program that renames its threads all the time makes no large log."""
    recorder.function_mapped(START_NS, VDSO, 0x1000, b"[vdso]", SYMBOLS)
    for tid in range(71, 76):
        recorder.thread_started(tid, START_NS, b"prog")
    clock(recorder, START_NS + S, seed=1)
    live = Live(recorder.path)
    live.look()
    before = live.cumulative()
    for number in range(1001):
        recorder.thread_named(73, START_NS + S + number, b"<%d>" % number)
    recorder.thread_named(99, START_NS + S, b"nobody")
    clock(recorder, START_NS + 2 * S, seed=2)
    live.look()
    after, at_end = live.cumulative(), whole(recorder.path)
    names = {71: b"prog", 72: b"prog", 73: b"<1000>", 74: b"prog", 75: b"prog"}
    assert [one.tid for one in after.threads] == [one.tid for one in before.threads]
    assert {one.tid: one.name for one in after.threads} == {one.tid: one.name for one in at_end.threads} == names
    assert named(after) == named(at_end)
    assert (recorder.path / "log.xml").read_bytes().count(b"thread_name") == 2


def test_a_thread_of_which_the_log_tells_later_gets_its_name(recorder: Recorder) -> None:
    """The log is read before the packets: what the recorder writes between the two looks is in the packets alone."""
    recorder.function_mapped(START_NS, VDSO, 0x1000, b"[vdso]", SYMBOLS)
    live = Live(recorder.path)
    clock(recorder, START_NS + S, seed=1)
    live.look()
    assert {one.name for one in live.cumulative().threads} == {b""}
    for tid in range(71, 75):
        recorder.thread_started(tid, START_NS, b"prog")
    recorder.sync()
    live.look()
    names = dict.fromkeys(range(71, 75), b"prog")
    assert {one.tid: one.name for one in live.cumulative().threads} == {**names, 75: b""}
    recorder.thread_started(75, START_NS, b"last")
    recorder.sync()
    live.look()
    assert {one.tid: one.name for one in live.cumulative().threads}[75] == b"last"


def test_looks_cost_what_is_new(recorder: Recorder) -> None:
    """Whatever has been read is not read again: it may be gone."""
    recorder.function_mapped(START_NS, VDSO, 0x1000, b"[vdso]", SYMBOLS)
    live = Live(recorder.path)
    for batch in range(4):
        clock(recorder, START_NS + (batch + 1) * S, seed=batch, n=1024)
        live.look()
    before = named(live.cumulative())[3]
    with open(recorder.path / "profile", "r+b") as file:
        file.write(bytes(16_384 * 8))  # blocks that are full
    clock(recorder, START_NS + 9 * S, seed=9)
    live.look()
    assert [a - b for a, b in zip(named(live.cumulative())[3], before, strict=True)] == live.recent(1)[0].total.tolist()
    assert sum(before) > 0


def test_a_look_at_which_all_that_is_new_is_damaged_sees_nothing(recorder: Recorder) -> None:
    live = Live(recorder.path)
    uid = recorder.frames.intern(np.array([[VDSO]], np.uint64), np.array([1]))
    one = np.ones(1, np.int64)
    for ticks, is_new in ((-1, False), (3, True)):
        recorder.clock(one * 71, one * 0, one * (START_NS + S), uid, one * 0, one * ticks)
        recorder.sync()
        assert live.look() == is_new
    assert live.cumulative().total.sum() == 3 * INTERVAL_US
