"""What binutils' reader makes of our experiments: exact values, no warnings, names of real functions."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collector.experiment.reader import open_experiment
from collector.experiment.recorder import Header, Recorder, Usage
from collector.experiment.records import COUNTERS, PC_TRUNCATED, STATES

START_NS = 7_001_000_000_013
NS = 1_000_000_000
INTERVAL_S = 0.010007
STATE_METRICS = ":".join(f"e.{state}" for state in STATES)
TICKS = (1, 2, 3, 5, 7, 11, 13, 17, 19, 23)

Gprofng = Callable[..., Any]
Record = Callable[..., Recorder]


def stacks(*rows: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    length = np.array([len(row) for row in rows])
    pcs = np.zeros((len(rows), length.max()), np.uint64)
    for number, row in enumerate(rows):
        pcs[number, :len(row)] = row
    return pcs, length


def clock(recorder: Recorder, tid: int, uids: np.ndarray, states: list[int], ticks: list[int], **extra: Any) -> None:
    n = len(ticks)
    recorder.clock(np.full(n, tid), np.arange(n) % 3, START_NS + NS // 10 + np.arange(n) * 10_007_000,
                   np.resize(uids, n), np.array(states), np.array(ticks), **extra)


def map_program(recorder: Recorder, program: Any) -> None:
    recorder.segment_mapped(START_NS, program.vaddr, program.size, program.file_offset, program.path)


def assert_clean(gprofng: Gprofng, path: Path) -> str:
    """The header without any error, warning or note; returns it."""
    text = gprofng("-header", experiment=path).text
    assert "No errors\nNo warnings\n" in text
    assert "***" not in text
    assert "not closed" not in text
    return str(text)


def shown(ticks: float) -> float:
    return round(ticks * INTERVAL_S, 3)


def test_all_ten_states_have_their_exact_values(record: Record, program: Any, gprofng: Gprofng) -> None:
    recorder = record()
    recorder.thread_started(4711, START_NS, b"main")
    map_program(recorder, program)
    pcs = [tuple(program.pc(f, 4) for f in chain) for chain in (
        ("inner", "middle", "outer", "main"), ("middle", "outer", "main"), ("outer", "main"))]
    uids = recorder.frames.intern(*stacks(*pcs))
    for number, factor in enumerate((1, 10, 100)):
        clock(recorder, 4711 + number, uids[number:number + 1], list(range(10)), [t * factor for t in TICKS])
    recorder.close(START_NS + 30 * NS)

    assert_clean(gprofng, recorder.path)
    functions = gprofng("-metrics", STATE_METRICS + ":name", "-functions", experiment=recorder.path).functions
    expected = {"inner": 1, "middle": 10, "outer": 100, "main": 0, "<Total>": 111}
    assert set(functions) == set(expected)
    for name, factor in expected.items():
        assert functions[name] == pytest.approx([shown(t * factor) for t in TICKS], abs=0.00101), name
    tree = gprofng("-metrics", "e.total:name", "-calltree", experiment=recorder.path).tree
    assert {path: round(values[0] / INTERVAL_S / sum(TICKS)) for path, values in tree.items()} == {
        ("<Total>",): 111, ("<Total>", "main"): 111, ("<Total>", "main", "outer"): 111,
        ("<Total>", "main", "outer", "middle"): 11, ("<Total>", "main", "outer", "middle", "inner"): 1}


def test_the_header_says_what_was_recorded(record: Record, header: Header, gprofng: Gprofng) -> None:
    recorder = record(notes=["first note", "second"], size_limit_mb=17)
    recorder.close(START_NS + 5 * NS + 7)
    text = assert_clean(gprofng, recorder.path)
    for line in ("first note", "second", "Initial execution directory `/tmp/some where'",
                 "Target command (64-bit): '/usr/bin/prog -a 'b c''",
                 "Process pid 4711, ppid 4001, pgrp 4711, sid 4001",
                 "Collector version: `collect 0.1'; experiment version 12.4 (64-bit)",
                 "Host `somewhere', OS `Linux 6.1.0', page size 4096, architecture `x86_64'",
                 "  3 CPUs, with clocks ranging from 2500 to 2503 MHz.; max of 2503 MHz. assumed",
                 "  Memory: 262147 pages @  4096 = 1024 MB.", "  Clock-profiling, interval = 10007 microsecs.",
                 "  Periodic sampling, 1 secs.", "  Experiment size limit, 17", "Experiment Ended: 5.000000007",
                 "Data Collection Duration: 5.000000007"):
        assert line in text.splitlines(), text


def test_messages_events_and_pauses_are_shown(record: Record, gprofng: Gprofng) -> None:
    recorder = record(follow=True)
    recorder.descendant_starting(START_NS + 1, "fork", "_f1", True)
    recorder.descendant_started(START_NS + 2, "fork", "_f1", True, "pid=5")
    recorder.descendant_starting(START_NS + 3, "system", "_c1", False, "ls")
    recorder.pause(START_NS + NS, "user")
    recorder.resume(START_NS + 3 * NS, "user")
    recorder.comment("100% of <it>")
    recorder.warning("lost\n3")
    recorder.error("broken")
    recorder.close(START_NS + 5 * NS)
    text = gprofng("-header", experiment=recorder.path).text
    for part in ('Starting fork 0.000000001, exp _f1.er', 'Started  fork 0.000000002, exp _f1.er, "pid=5"',
                 'Starting system 0.000000003, no experiment, "ls"', "Pause (user): 1.000000000", "Resume: 3.000000000",
                 "Data Collection Duration: 3.000000000", "100% of <it>", "*** Collect: lost\n3", "broken",
                 "Follow descendant processes from: fork|exec|combo"):
        assert part in text, part


def test_samples_and_statistics(record: Record, gprofng: Gprofng) -> None:
    for wsize in (64, 32):
        recorder = record(f"w{wsize}.1.er", wsize=wsize)
        for number in range(1, 8):
            counters = {name: number * (k + 1) for k, name in enumerate(COUNTERS)}
            recorder.sample(Usage(tuple(number * (k + 1) * NS // 10 for k in range(10)), **counters),
                            START_NS + number * NS, f"label {number}")
        recorder.close(START_NS + 7 * NS)
        assert_clean(gprofng, recorder.path)
        text = gprofng("-statistics", experiment=recorder.path).text
        shown = {name.strip(): float(value) for name, value in re.findall(r"^ +(\S.*?): +([\d.]+)", text, re.MULTILINE)}
        names = ("User CPU", "System CPU", "Trap CPU", "Text Page Fault", "Data Page Fault", "Kernel Page Fault",
                 "User Lock", "Sleep", "Wait CPU", "Stopped")
        assert [shown[name] for name in names] == pytest.approx([0.7 * (k + 1) for k in range(len(names))])
        labels = ("Minor Page Faults", "Major Page Faults", "Process swaps", "Input blocks", "Output blocks",
                  "Messages sent", "Messages received", "Signals handled", "Voluntary context switches",
                  "Involuntary context switches", "System calls", "Characters of I/O")
        assert [shown[label] for label in labels] == [7 * (k + 1) for k in range(len(labels))]
        assert shown["Duration (sec.)"] == 7.0
        assert shown["Average number of Threads"] == 5.5
        samples = gprofng("-sample_list", experiment=recorder.path).text
        assert re.search(r"1 all +7 ", samples)
        detail = gprofng("-sample_detail", "1", experiment=recorder.path).text
        assert [f"label {n}" in detail for n in range(1, 8)] == [True] * 7


def test_samples_of_one_moment_last_as_long_as_both(record: Record, gprofng: Gprofng) -> None:
    recorder = record()
    for time_ns in (START_NS + NS + NS // 50, START_NS + NS):
        recorder.sample(Usage((NS // 10,) * 10), time_ns, "at once")
    recorder.close(START_NS + NS)
    assert_clean(gprofng, recorder.path)
    text = gprofng("-statistics", experiment=recorder.path).text
    assert re.search(r"Duration \(sec\.\): +1\.020\n", text), text


def test_threads_are_numbered_in_order_of_creation(record: Record, program: Any, gprofng: Gprofng) -> None:
    recorder = record()
    map_program(recorder, program)
    uids = recorder.frames.intern(*stacks((program.pc("main", 4),)))
    for tid in (4711, 4800, 4750):
        recorder.thread_started(tid, START_NS, b"<t>&\xff")
    for tid, ticks in ((4750, 3), (4800, 2), (4711, 1)):
        clock(recorder, tid, uids, [0], [ticks])
    recorder.close(START_NS + NS)
    assert_clean(gprofng, recorder.path)
    text = gprofng("-metrics", "e.user:name", "-indxobj", "Threads", experiment=recorder.path)
    assert [(name, round(values[0] / INTERVAL_S)) for name, values in sorted(text.rows)][1:] == [
        ("Process 1, Thread 1", 1), ("Process 1, Thread 2", 2), ("Process 1, Thread 3", 3)]


def test_own_fields_serve_as_filters(record: Record, program: Any, gprofng: Gprofng) -> None:
    recorder = record()
    map_program(recorder, program)
    uids = recorder.frames.intern(*stacks((program.pc("inner", 4),), (program.pc("outer", 4),)))
    clock(recorder, 4711, uids, [7] * 4, [1, 10, 100, 1000], syscall=np.array([-1, 202, 3, 202]),
          exact_ns=np.array([5, 6, 7, 8]))
    recorder.close(START_NS + NS)
    for condition, ticks in (("SYSCALL==202", 1010), ("SYSCALL==3", 100), ("EXACT_NS>6", 1100), ("EXACT_NS<6", 1)):
        rows = gprofng("-metrics", "e.sleep:name", "-functions", "-filters", condition, "-functions",
                       experiment=recorder.path).functions
        assert rows["<Total>"][0] == pytest.approx(ticks * INTERVAL_S, abs=0.001), condition


def test_truncated_and_empty_stacks(record: Record, program: Any, gprofng: Gprofng) -> None:
    recorder = record()
    map_program(recorder, program)
    rows = stacks((program.pc("inner", 4), program.pc("outer", 4), PC_TRUNCATED), (program.pc("main", 4),), ())
    clock(recorder, 4711, recorder.frames.intern(*rows), [0] * 3, [1, 10, 100])
    recorder.close(START_NS + NS)
    assert_clean(gprofng, recorder.path)
    tree = gprofng("-metrics", "e.user:name", "-calltree", experiment=recorder.path).tree
    assert {path[1:]: round(values[0] / INTERVAL_S) for path, values in tree.items()} == {
        (): 111, ("<Truncated-stack>",): 1, ("<Truncated-stack>", "outer"): 1,
        ("<Truncated-stack>", "outer", "inner"): 1, ("main",): 10, ("<Stack-unwind-failed>",): 100}


def test_shared_tails_are_followed(record: Record, program: Any, gprofng: Gprofng) -> None:
    recorder = record()
    map_program(recorder, program)
    root = [program.pc("outer", 4)] * 5 + [program.pc("main", 4)]
    rows = [(program.pc("inner", offset), *root[6 - depth:]) for depth in (6, 5, 4) for offset in (1, 3, 5, 7)]
    for row in rows:  # one by one, so that each finds the tails of those before
        clock(recorder, 4711, recorder.frames.intern(*stacks(row)), [0], [1])
    recorder.close(START_NS + NS)
    assert_clean(gprofng, recorder.path)
    tree = gprofng("-metrics", "e.user:name", "-calltree", experiment=recorder.path).tree
    found = {path[2:]: round(values[0] / INTERVAL_S) for path, values in tree.items() if path[-1] == "inner"}
    assert found == {("outer",) * depth + ("inner",): 4 for depth in (5, 4, 3)}


def test_a_32_bit_experiment(record: Record, gprofng: Gprofng) -> None:
    recorder = record(wsize=32, arch="i686")
    recorder.function_mapped(START_NS, 0x8049000, 0x1000, b"[code]", [
        (0x8049010 + 16 * n, 16, b"f%d" % n) for n in range(4)])
    pcs = [0x8049014 + 16 * n for n in range(4)]
    rows = [(pcs[n % 2], pcs[1], pcs[2], pcs[3], *extra) for n in range(3) for extra in ((), (0xFFFF_FFFE,))]
    for row in rows:
        clock(recorder, 4711, recorder.frames.intern(*stacks(row)), [0], [1])
    recorder.close(START_NS + NS)
    assert "(32-bit)" in assert_clean(gprofng, recorder.path)
    functions = gprofng("-metrics", "e.user:i.user:name", "-functions", experiment=recorder.path).functions
    assert {name: tuple(round(v / INTERVAL_S) for v in values) for name, values in functions.items()} == {
        "<Total>": (6, 6), "f0": (4, 4), "f1": (2, 6), "f2": (0, 6), "f3": (0, 6), "<Truncated-stack>": (0, 3)}


def test_dynamic_functions(record: Record, gprofng: Gprofng) -> None:
    recorder = record()
    recorder.function_mapped(START_NS, 0x7FFF_0000_0000, 0x2000, b"[vdso]", [
        (0x7FFF_0000_0800, 64, b"__vdso_time"), (0x7FFF_0000_0840, 32, b"__vdso_getcpu")])
    recorder.function_mapped(START_NS, 0xFFFF_FFFF_FF60_0000, 4096, b"[vsyscall]")
    rows = stacks((0x7FFF_0000_0810,), (0x7FFF_0000_0850,), (0xFFFF_FFFF_FF60_0010,))
    clock(recorder, 4711, recorder.frames.intern(*rows), [0] * 3, [1, 2, 4])
    recorder.close(START_NS + NS)
    assert_clean(gprofng, recorder.path)
    functions = gprofng("-metrics", "e.user:name", "-functions", experiment=recorder.path).functions
    assert {name: round(values[0] / INTERVAL_S) for name, values in functions.items()} == {
        "<Total>": 7, "__vdso_time": 1, "__vdso_getcpu": 2, "[vsyscall]": 4}


def test_what_was_mapped_at_one_time_is_numbered_as_it_was_recorded(record: Record, program: Any,
                                                                    gprofng: Gprofng) -> None:
    recorder = record()
    recorder.function_mapped(START_NS, 0x7FFF_0000_0000, 0x2000, b"[vdso]")
    map_program(recorder, program)
    clock(recorder, 4711, recorder.frames.intern(*stacks((program.pc("inner", 4),))), [0], [1])
    recorder.close(START_NS + NS)
    listed = gprofng("-object_list", experiment=recorder.path).text
    found = open_experiment(recorder.path).mappings
    assert [b"vdso" in one.name for one in found] == [True] + [False] * (len(found) - 1)
    assert listed.index("DYNAMIC_FUNCTIONS") < listed.index(os.fsdecode(os.path.basename(program.path)))


HOSTILE = [b"new\nline", b"<tag>", b"a&b;", b"quo\"te's", b"100%25%", b"\x01\x7f", b"\xff\xfe", b"\xc3\xa4 blank"]


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_paths_lead_to_their_file(record: Record, program: Any, gprofng: Gprofng, tmp_path: Path,
                                          name: bytes) -> None:
    path = os.fsencode(tmp_path) + b"/" + name
    shutil.copy(program.path, path)
    recorder = record(arguments=path + b" x", cwd=path, notes=[])
    recorder.thread_started(4711, START_NS, name)
    recorder.segment_mapped(START_NS, program.vaddr, program.size, program.file_offset, path + b" (deleted)")
    clock(recorder, 4711, recorder.frames.intern(*stacks((program.pc("inner", 4),))), [0], [5])
    recorder.close(START_NS + NS)
    functions = gprofng("-metrics", "e.user:name", "-functions", experiment=recorder.path).functions
    assert set(functions) == {"<Total>", "inner"}
    assert "No errors\nNo warnings\n" in gprofng("-header", experiment=recorder.path).text


def test_descendants_are_loaded_with_or_without_data(record: Record, program: Any, gprofng: Gprofng) -> None:
    founder = record("a.1.er", follow=True)
    for number, (lineage, ticks) in enumerate((("_f1", 0), ("_f2", 3), ("_f2_x1", 5), ("_f10", 7))):
        child = record(f"a.1.er/{lineage}.er", pid=5000 + number, start_ns=START_NS + 1, arguments=b"/bin/%d" % number)
        map_program(child, program)
        if ticks:
            clock(child, 5000 + number, child.frames.intern(*stacks((program.pc("inner", 4),))), [0], [ticks])
        child.close(START_NS + 2)
    founder.close(START_NS + NS)
    assert sorted(os.listdir(founder.path)) == sorted(
        ["_f1.er", "_f10.er", "_f2.er", "_f2_x1.er", "data.frameinfo", "log.xml", "map.xml", "overview"])
    listed = gprofng("-experiment_list", experiment=founder.path).text
    assert re.findall(r"(\d+) \S+/(\S+\.er)", listed)[-4:] == [
        ("5000", "_f1.er"), ("5001", "_f2.er"), ("5002", "_f2_x1.er"), ("5003", "_f10.er")]
    functions = gprofng("-metrics", "e.user:name", "-functions", experiment=founder.path).functions
    assert round(functions["inner"][0] / INTERVAL_S) == 15


def test_a_later_mapping_replaces_an_earlier_one(record: Record, program: Any, gprofng: Gprofng) -> None:
    recorder = record()
    map_program(recorder, program)
    uid = recorder.frames.intern(*stacks((program.pc("inner", 4),)))
    clock(recorder, 4711, uid, [0], [3])
    recorder.segment_mapped(START_NS + NS // 2, program.vaddr, program.size, 0, os.fsencode(sys.executable))
    recorder.clock(*(np.array([v]) for v in (4711, 0, START_NS + NS * 3 // 4, int(uid[0]), 0, 4)))
    recorder.close(START_NS + NS)
    assert_clean(gprofng, recorder.path)
    functions = gprofng("-metrics", "e.user:name", "-functions", experiment=recorder.path).functions
    assert round(functions["inner"][0] / INTERVAL_S) == 3
    assert round(functions["<Total>"][0] / INTERVAL_S) == 7


def test_segments_beyond_two_gigabytes(record: Record, program: Any, gprofng: Gprofng) -> None:
    recorder = record()
    sparse = recorder.path.parent / "sparse"
    shutil.copy(program.path, sparse)
    recorder.segment_mapped(START_NS, program.vaddr, 5 << 30, program.file_offset, os.fsencode(sparse))
    clock(recorder, 4711, recorder.frames.intern(*stacks((program.pc("inner", 4),))), [0], [5])
    recorder.close(START_NS + NS)
    assert_clean(gprofng, recorder.path)
    assert set(gprofng("-functions", experiment=recorder.path).functions) == {"<Total>", "inner"}


WRITER = """
import sys, time
from dataclasses import replace
from pathlib import Path
import numpy as np
from collector.experiment.reader import open_experiment
from collector.experiment.recorder import Header, Recorder, Usage
header = Header(**eval(sys.argv[2]))
path = Path(sys.argv[1])
path.mkdir()
recorder = Recorder.create(path, header)
recorder.thread_started(4711, header.start_ns, b"main")
vaddr, size, offset, name = eval(sys.argv[3])
recorder.segment_mapped(header.start_ns, vaddr, size, offset, name)
recorder.sync()
print("ready", flush=True)
rng = np.random.default_rng(1)
number = 0
while True:
    pcs = vaddr + rng.integers(0, 3000, (100, 12)).astype(np.uint64)
    pcs[:, 3:] = pcs[0, 3:]
    uids = recorder.frames.intern(pcs, rng.integers(5, 13, 100))
    time_ns = header.start_ns + number * 10**6
    recorder.clock(np.full(100, 4711 + number % 7), np.zeros(100, int), np.full(100, time_ns), uids,
                   rng.integers(0, 10, 100), np.ones(100, int))
    number += 1
    if number % 5 == 0:
        recorder.sample(Usage((number * 10**6,) * 10), time_ns, "periodic <&>")
        recorder.warning("a warning with <text> & more")
        recorder.segment_mapped(time_ns, (number % 97 << 32) + 4096, 4096, 0, b"/bin/true")
        recorder.sync()
    if number > 5000: # whoever reads it all comes to an end, however slow it is
        time.sleep(0.001)
"""


@pytest.fixture
def writer(tmp_path: Path, header: Header, program: Any) -> Callable[[str], tuple[Path, subprocess.Popen[bytes]]]:
    """Start a process that records as fast as it can; returns its experiment and it."""
    def start(name: str) -> tuple[Path, subprocess.Popen[bytes]]:
        where = (program.vaddr, program.size, program.file_offset, program.path)
        process = subprocess.Popen([sys.executable, "-c", WRITER, tmp_path / name, repr(asdict(header)), repr(where)],
                                   stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        return tmp_path / name, process

    return start


def _total(gprofng: Gprofng, path: Path) -> float:
    listing = gprofng("-metrics", "e.total:name", "-functions", experiment=path)
    return float(listing.functions["<Total>"][0])


def test_an_experiment_is_read_while_it_is_written_at_full_speed(
        writer: Callable[[str], tuple[Path, subprocess.Popen[bytes]]], gprofng: Gprofng) -> None:
    path, process = writer("live.1.er")
    totals = []
    try:
        for _ in range(7):
            totals.append(_total(gprofng, path))
            experiment = open_experiment(path)
            packets = experiment.packets()
            assert (experiment.stacks.index(packets["FRINFO"]) >= 0).all()
            assert experiment.problems == []
            assert "was not closed" in gprofng("-header", experiment=path).text
    finally:
        process.kill()
        process.communicate()
    assert totals[0] < totals[-1]
    assert totals == sorted(totals)


def test_an_experiment_whose_writer_was_killed_opens(
        writer: Callable[[str], tuple[Path, subprocess.Popen[bytes]]], gprofng: Gprofng) -> None:
    for attempt in range(11):
        path, process = writer(f"killed.{attempt}.er")
        time.sleep(0.0013 * attempt * attempt)
        process.kill()
        process.communicate()
        experiment = open_experiment(path)
        packets = experiment.packets()
        assert (experiment.stacks.index(packets["FRINFO"]) >= 0).all()
        assert experiment.problems == []
        assert not experiment.log.complete
        text = gprofng("-header", experiment=path).text
        assert "No errors\n" in text
        total = _total(gprofng, path)
        assert total == pytest.approx(len(packets) * INTERVAL_S, abs=0.001), attempt
