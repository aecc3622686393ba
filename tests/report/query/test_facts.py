"""What is known of packets: of descendants, at the very point of a sample, of memory; and every sign of expressions."""

from __future__ import annotations

import operator
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from collector.experiment.reader import open_experiment
from collector.experiment.recorder import Header, Recorder, Usage
from collector.experiment.records import HEAP_FREE, HEAP_MALLOC, HEAP_MMAP, HEAP_MUNMAP, HEAP_REALLOC
from collector.report.build import DataSet, load
from collector.report.heaptrace import NEVER, followed
from collector.report.query.evaluate import selected, value_of
from collector.report.query.facts import PacketFacts
from collector.report.query.language import parse

START_NS = 5_000_000_000_011
LATER_NS = 700_000_001
SAMPLE_NS = 1_000_000_000
SIGNS: dict[str, Callable[[int, int], int]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq, "!=": operator.ne,
    "+": operator.add, "*": operator.mul, "&": operator.and_, "|": operator.or_, "^": operator.xor,
    "<<": operator.lshift, ">>": operator.rshift, "&&": lambda a, b: bool(a and b), "||": lambda a, b: bool(a or b)}


def record(path: Path, pid: int, start_ns: int, times_ns: list[int], n_samples: int) -> None:
    """An experiment with a packet at each time after its start, on as many threads."""
    path.mkdir()
    recorder = Recorder.create(path, Header(
        hostname="h", os="Linux 6.1", arch="x86_64", page_size=4096, n_pages=1000, cpus=[2500], pid=pid, ppid=1,
        pgrp=1, sid=1, cwd=b"/", arguments=b"prog", wsize=64, interval_ns=10_007_000, sample_period_s=1,
        start_ns=start_ns, start_unix=2_000_000_000, collector="collect", notes=[]))
    n = len(times_ns)
    uids = recorder.frames.intern(np.full((1, 1), 0x1000, np.uint64), np.ones(1, np.int64)).astype(np.int64)
    recorder.clock(pid + np.arange(n), np.zeros(n, np.int32), start_ns + np.array(times_ns), np.repeat(uids, n),
                   np.zeros(n, np.int32), np.ones(n, np.int32))
    for i in range(1, n_samples + 1):
        recorder.sample(Usage((i,) * 10, *range(12)), start_ns + i * SAMPLE_NS, f"periodic {i}")
    recorder.close(start_ns + 4 * SAMPLE_NS)


@pytest.fixture
def family(tmp_path: Path) -> DataSet:
    """A founder with packets about the point of its first sample, and a child that began later."""
    record(tmp_path / "a.er", 71, START_NS, [SAMPLE_NS - 1, SAMPLE_NS, SAMPLE_NS + 1], 2)
    record(tmp_path / "a.er" / "_f1.er", 89, START_NS + LATER_NS, [13], 0)
    return load([open_experiment(tmp_path / "a.er")])


def test_times_of_descendants_count_from_the_founder_s_start(family: DataSet) -> None:
    times = [value_of(parse("TSTAMP"), PacketFacts(family, number)).tolist() for number in (1, 2)]
    assert times == [[SAMPLE_NS - 1, SAMPLE_NS, SAMPLE_NS + 1], [LATER_NS + 13]]


def test_a_packet_at_the_very_point_of_a_sample_belongs_to_the_one_that_ends_there(family: DataSet) -> None:
    numbers = value_of(parse("SAMPLE"), PacketFacts(family, 1)).tolist()
    assert numbers[0] == numbers[1] == numbers[2] - 1


@pytest.mark.parametrize("sign", SIGNS)
def test_every_sign(sign: str, family: DataSet) -> None:
    facts = PacketFacts(family, 1)
    for a, b in ((1, 2), (2, 2), (3, 2), (0, 5), (5, 0)):
        assert value_of(parse(f"{a} {sign} {b}"), facts).tolist() == [int(SIGNS[sign](a, b))] * 3, (a, b)
        assert selected(parse(f"{a} {sign} {b}"), facts).tolist() == [bool(SIGNS[sign](a, b))] * 3


def test_when_memory_was_released() -> None:
    steps = [(HEAP_MALLOC, 0x10, 8, 0), (HEAP_MALLOC, 0x20, 8, 0), (HEAP_FREE, 0x10, 0, 0),
             (HEAP_REALLOC, 0x30, 16, 0x20), (HEAP_MMAP, 0x1000, 0x2000, 0), (HEAP_MUNMAP, 0x1000, 0x1000, 0),
             (HEAP_MMAP, 0x9000, 0x1000, 0), (HEAP_MUNMAP, 0x9000, 0x1000, 0)]
    packets = np.array([(100 + i, *step) for i, step in enumerate(steps)], np.dtype(
        [("TSTAMP", "<i8"), ("HTYPE", "<i4"), ("HVADDR", "<u8"), ("HSIZE", "<u8"), ("HOVADDR", "<u8")]))
    assert followed(packets).released_ns.tolist() == [102, 103, 0, NEVER, NEVER, 0, 107, 0]
