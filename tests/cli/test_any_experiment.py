"""Experiments of every kind, recorded by others or made: each figure of each command is that of the reference reader.

What differs is known, and taken out before the comparison: it names stacks by addresses of its own memory, leaves the
order of equals to chance, and knows no lines of libraries whose debug information is newer than its own.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from contextlib import redirect_stdout
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from collector.cli import er_print
from collector.experiment.recorder import Header, Recorder
from collector.experiment.records import CLOCK
from collector.layout import Field, Record

START_NS = 7_001_000_000_013
BASE = 0x5555_5555_4000
FUNCTIONS = ("leaky", "fine", "held", "input_and_output")
HEADER = Header(
    hostname="somewhere", os="Linux 6.1.0", arch="x86_64", page_size=4096, n_pages=262_147, cpus=[2500, 2501, 2503],
    pid=4711, ppid=4001, pgrp=4711, sid=4001, cwd=b"/tmp", arguments=b"/usr/bin/prog -a", wsize=64,
    interval_ns=10_007_000, sample_period_s=1, start_ns=START_NS, start_unix=2_100_000_003, collector="collect 0.1")
CALLS = ("functions", "callers-callees", "calltree")
TABLES = ("threads", "cpus", "samples", "processes", "overview", "statistics", "experiment_list")
LISTS = ("leaks", "allocs", "heap", "heapstat", "ioactivity", "iodetail", "iocallstack", "iostat")
RECORDED = {"locks": ("-s", "all"), "heap": ("-H", "on"), "io": ("-i", "on"),
            "all": ("-s", "all,n", "-H", "on", "-i", "on")}


@pytest.fixture(scope="module")
def program(workload: Callable[..., Path]) -> Path:
    """A program that does a little of everything."""
    return workload("kinds", "-O0", "-gdwarf-4")


@pytest.fixture(scope="module")
def recorded(program: Path, need: Callable[[str, str], str],
             tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """``recorded("heap")``: what the reference collector records of it."""
    need("gprofng", "binutils")
    directory = tmp_path_factory.mktemp("recorded")

    def record(name: str) -> Path:
        path = directory / f"{name}.1.er"
        if not path.exists():
            subprocess.run(["gprofng", "collect", "app", *RECORDED[name], "-F", "on", "-o", path.name, program],
                           cwd=directory, check=True, capture_output=True)
        return path

    return record


def traces(path: Path) -> Any:
    """What adds other kinds of data to an experiment."""
    spec = spec_from_file_location("workloads_kinds", Path(__file__).resolve().parents[1] / "workloads" / "kinds.py")
    assert spec is not None
    assert spec.loader is not None
    module: ModuleType = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Traces(path)


def with_stacks(path: Path, program: Path) -> np.ndarray:
    """A new experiment of clock profiling; four stacks that other packets may refer to."""
    symbols = {words[2]: int(words[0], 16) for line in subprocess.run(
        ["nm", program], capture_output=True, text=True, check=True).stdout.splitlines()
        if len(words := line.split()) == 3}
    path.mkdir()
    recorder = Recorder.create(path, HEADER)
    recorder.thread_started(4711, START_NS, b"main")
    recorder.segment_mapped(START_NS, BASE + 0x1000, 0x1000, 0x1000, os.fsencode(program), 5)
    pcs = [(BASE + symbols[name] + 5, BASE + symbols["main"] + 0x40, BASE + symbols["main"] + 0x10)
           for name in FUNCTIONS]
    uids = recorder.frames.intern(np.array(pcs, np.uint64), np.full(4, 3))
    rows = np.arange(41)
    recorder.clock(np.full(41, 4711), rows % 2, START_NS + 10**8 + rows * 10_007_000, uids[rows % 4], rows % 10,
                   1 + rows % 5)
    recorder.close(START_NS + 3 * 10**9)
    return uids.astype(np.int64)


def made(path: Path, program: Path) -> Path:
    """An experiment with packets of every kind that contradict each other as much as they may."""
    uids = with_stacks(path, program)
    n = 533
    rows = np.arange(n)
    add, who = traces(path), {"LWPID": 4711 + rows % 3, "THRID": 4711 + rows % 3, "CPUID": rows % 3,
                              "FRINFO": uids[rows % 4]}
    kind = np.array([0, 0, 1, 2, 3, 4, 0])[rows % 7]
    add.heap(**who, TSTAMP=START_NS + 10**7 + rows * 10**6, HTYPE=kind, HSIZE=np.where(kind == 1, 0, 1001 + rows * 997),
             HVADDR=0x1000 * (1 + rows % 5) + np.where(kind > 2, 0x10_0000, 0),
             HOVADDR=np.where(kind == 2, 0x1000 * (1 + rows % 3), 0))
    asked = START_NS + 10**7 + rows * 10**6
    add.locks(**who, TSTAMP=asked + rows * 1_234_567, SRQST=asked, SOBJ=0x7000 + rows % 5 * 64)
    kind = np.array([2, 0, 1, 0, 3, 4, 5, 6, 7, 8, 9])[rows % 11]
    names = [b"/tmp/file%d" % (row % 5) if kind[row] in (2, 7) and row % 3 else b"" for row in range(n)]
    add.io(names, **who, TSTAMP=asked + rows * 34_567, IORQST=np.where(rows % 13 == 5, 0, asked), IOTYPE=kind,
           IOFD=rows * 7 % 9, IOFSTYPE=24, IONBYTE=np.where(np.isin(kind, (0, 1)), rows * rows * 977, 0),
           IOOFD=np.where((kind == 2) & (rows % 3 == 0), 3 + rows % 6, 0))
    counters = {0: ("clocks", "cpu_clk_unhalted", 9_999_991), 3: ("misses", "DTLB_MISS", 100_003)}
    add.counters(counters, **who, TSTAMP=asked, HWCTAG=rows % 2 * 3, HWCINT=1000 + rows)
    return path


def ours(path: Path, *commands: str) -> str:
    """What er_print says."""
    with redirect_stdout(io.StringIO()) as out:
        assert er_print.run([*(f"-{command}" for command in commands), str(path)]) == 0
    return re.sub(r" *(Ex|In)clusive Latency: [ei]\.%latency\n", "", out.getvalue())  # the other one lacks it


def theirs(path: Path, *commands: str) -> str:
    """What the reference reader says."""
    done = subprocess.run(["gprofng", "display", "text", *(f"-{command}" for command in commands), path],
                          capture_output=True, text=True, check=True)
    return done.stdout


def figures(path: Path, say: Callable[..., str]) -> list[str]:
    """The rows of tables of functions, sorted; names of functions that only debug information has are left out."""
    rows = (re.fullmatch(r"([ \d.]+?)[ +|*-]*(\S.*)", line) for line in say(path, *CALLS).splitlines())
    ours_alone = re.compile(r"<static>@.*|__libc_start_call_main|start_thread|_dl_.*|allocate_.*|_IO_.*|__fopen_.*|"
                            r"__GI_.*|__vfprintf_.*|__overflow|buffered_.*|fopen.*|Xprintf.*|_+\w+|init_tls|calloc")
    return sorted(" ".join((row[1].strip(), ours_alone.sub("*", row[2]))) for row in rows if row)


def blocks(text: str) -> list[str]:
    """What does not depend on the order of equals, on addresses and on debug information, sorted."""
    text = re.sub(r", line \d+ in \".*\"$", "", text, flags=re.MULTILINE)
    program = "leaky|fine|held|work|input_and_output|main"
    text = re.sub(rf"^  (?!(?:{program}) )\S.* \+ 0x[0-9A-F]+$", "  *", text, flags=re.MULTILINE)
    text = re.sub(r"^(Stack|Leak|Allocation) [#0-9a-fx]+", r"\1", text, flags=re.MULTILINE)
    return sorted(text.strip("\n").split("\n\n"))


@pytest.mark.parametrize("name", RECORDED)
def test_figures_of_recorded_experiments(name: str, recorded: Callable[[str], Path]) -> None:
    path = recorded(name)
    assert figures(path, ours) == figures(path, theirs)
    assert ours(path, *TABLES, "metric_list") == theirs(path, *TABLES, "metric_list")
    for command in LISTS:
        if command in ("ioactivity", "iodetail"):
            assert sorted(ours(path, command).splitlines()) == sorted(theirs(path, command).splitlines())
        else:
            assert blocks(ours(path, command)) == blocks(theirs(path, command)), command


def test_figures_of_every_kind_at_once(program: Path, need: Callable[[str, str], str], tmp_path: Path) -> None:
    need("gprofng", "binutils")
    path = made(tmp_path / "made.1.er", program)
    every = [*CALLS, *TABLES, "metric_list", "header"]
    assert ours(path, *every) == theirs(path, *every)
    for command in LISTS:
        if command in ("ioactivity", "iodetail"):
            assert sorted(ours(path, command).splitlines()) == sorted(theirs(path, command).splitlines())
        else:
            assert blocks(ours(path, command)) == blocks(theirs(path, command)), command


def test_packets_that_the_collector_marked_are_left_out_and_counted(
        program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "marked.1.er"
    uids = with_stacks(path, program)
    counts = np.array([1001, 1002 | 1 << 63, 1003], np.uint64).view(np.int64)
    traces(path).counters({0: ("clocks", "c", 1001)}, TSTAMP=START_NS + 5, FRINFO=uids[0], HWCTAG=0, HWCINT=counts)
    assert er_print.run(["-metrics", "e.clocks:name", "-functions", str(path)]) == 0
    out, err = capsys.readouterr()
    assert re.search(r"^2004 +leaky$", out, re.MULTILINE)
    assert "1 counter packets that the collector marked as doubtful were skipped" in err


def test_names_of_fields_and_counters_are_one_line_that_a_terminal_shows(
        program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "hostile.1.er"
    uids = with_stacks(path, program)
    counters = {0: ("clo\x1b[31mcks\n", "c\a", 1001)}
    traces(path).counters(counters, TSTAMP=START_NS + 5, FRINFO=uids[0], HWCTAG=0, HWCINT=1001)
    text = (path / "log.xml").read_text()
    (path / "log.xml").write_text(text.replace('name="EXACT_NS" uname="', 'name="EX%1b%" uname="%1b%[2J%0a%'))
    plain = ours(path, "describe", "metric_list", "overview", "header", *CALLS)
    assert all(line.isprintable() for line in plain.splitlines())
    assert {r"EX\x1b", r"\x1b[2J\nExact", r"clo\x1b[31mcks\n"} <= set(plain.split())
    capsys.readouterr()
    assert er_print.run(["-printmode", "json", "-addpath", os.fsdecode(b"/caf\xe9"), str(path)]) == 0
    assert "\t/caf\\xe9" in json.loads(capsys.readouterr().out)["lines"]


def test_durations_of_every_size(program: Path, need: Callable[[str, str], str], tmp_path: Path) -> None:
    need("gprofng", "binutils")
    path = tmp_path / "long.1.er"
    uids = with_stacks(path, program)
    took = np.array([0, *(times * 10**power for power in range(1, 15) for times in (1, 3))])
    traces(path).locks(LWPID=4711, THRID=4711, FRINFO=uids[0], SRQST=START_NS, TSTAMP=START_NS + took)
    assert ours(path, "Duration") == theirs(path, "Duration")


def test_packets_with_a_counter_for_each_state(program: Path, need: Callable[[str, str], str], tmp_path: Path) -> None:
    need("gprofng", "binutils")
    path = tmp_path / "counted.1.er"
    uids = with_stacks(path, program)
    names = ("UCPU", "SCPU", "TRAP", "TFLT", "DFLT", "KFLT", "ULCK", "TSLP", "WCPU", "TSTP")
    counted = Record(1, "counted", *(field for field in CLOCK.fields if field.offset < 48),
                     *(Field(name, "<i4", name, 48 + 4 * state) for state, name in enumerate(names)))
    fields = "".join(f'<field name="{one.name}" uname="{one.uname}" offset="{one.offset}" type="{one.type}"/>\n'
                     for one in counted.describe())
    text = (path / "log.xml").read_text()
    (path / "log.xml").write_text(re.sub("<profpckt .*?</profpckt>", f'<profpckt kind="1">\n{fields}</profpckt>', text,
                                         flags=re.DOTALL))
    packets = np.zeros(4, counted.dtype)
    packets["tsize"], packets["kind"], packets["LWPID"], packets["THRID"] = counted.size, 1, 4711, 4711
    packets["TSTAMP"], packets["FRINFO"] = START_NS + 10**8 * np.arange(4), uids
    for state, name in enumerate(names):
        packets[name] = [2**state, 0, 3 * (state == 6), 5 * (state > 7)]
    (path / "profile").write_bytes(packets.tobytes())
    assert ours(path, *CALLS, *TABLES) == theirs(path, *CALLS, *TABLES)


@pytest.mark.parametrize("name", ["all"])
@pytest.mark.parametrize("how", ["without archives", "moved", "cut", "half written"])
def test_what_is_there_is_read(name: str, how: str, recorded: Callable[[str], Path], tmp_path: Path) -> None:
    """Copied away, cut in the middle of a packet, never ended: what there is has the same figures on both sides."""
    path = tmp_path / "elsewhere.1.er"
    shutil.copytree(recorded(name), path, symlinks=True)
    if how == "without archives":
        shutil.rmtree(path / "archives")
    elif how == "cut":
        for file in ("heaptrace", "synctrace", "iotrace"):
            content = (path / file).read_bytes()
            (path / file).write_bytes(content[:len(content.rstrip(b"\0")) * 2 // 3 + 5])
    elif how == "half written":
        text = (path / "log.xml").read_bytes()
        (path / "log.xml").write_bytes(text[:text.rindex(b'<event kind="sample"')])
    tables = [table for table in TABLES if table not in ("samples", "overview", "statistics")]
    assert figures(path, ours) == figures(path, theirs)
    assert ours(path, *tables) == theirs(path, *tables)
    for command in ("leaks", "heapstat", "iostat"):
        assert blocks(ours(path, command)) == blocks(theirs(path, command)), command
