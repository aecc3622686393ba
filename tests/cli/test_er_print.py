"""``er_print`` against ``gprofng display text``, whole texts, on the same experiments.

The experiments are written by our recorder; what is mapped in them are real load objects: programs compiled here
and the machine's libc, with pcs inside their functions, in the holes between these, behind the end of the text (where
libc has memcpy), in the PLT, and nowhere. At the end, real recordings.
"""

from __future__ import annotations

import io
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collector.cli import er_print as command
from collector.errors import CollectorError
from collector.experiment.recorder import Header, Recorder, Usage

START_NS = 5_003_000_000_017
INTERVAL_US = 10_007
TRUNCATED, FAILED = 0xFFFF_FFFF_FFFF_FFFE, 0xFFFF_FFFF_FFFF_FFFD
LIBC_BASE = 0x7F3A_1000_0000
PROGRAM_BASE = 0x55AA_0000_0000
HEADER = Header(
    hostname="somewhere", os="Linux 6.1.0", arch="x86_64", page_size=4096, n_pages=262_147, cpus=[2500, 2501, 2503],
    pid=4711, ppid=4001, pgrp=4711, sid=4001, cwd=b"/tmp/some where", arguments=b"/usr/bin/prog -a 'b c'", wsize=64,
    interval_ns=INTERVAL_US * 1000, sample_period_s=1, start_ns=START_NS, start_unix=2_100_000_003,
    collector="collect 0.1", notes=["one", "another <one>"])

C_SOURCE = """
static int leaf(int n) { return n * 3; }
int middle(int n) { return leaf(n) + 1; }
int recurse(int n) { return n ? recurse(n - 1) + middle(n) : 0; }
int aa(int) __attribute__((alias("recurse"))); int recurse_too(int) __attribute__((alias("recurse")));
int same(int) __attribute__((alias("recurse"))); int __wrap_same(int) __attribute__((alias("recurse")));
int main(int n, char **v) { (void)v; return recurse(n) + aa(n) + same(n); }
"""
CC_SOURCE = """
#include <algorithm>
#include <map>
#include <string>
#include <vector>
template<class T> struct Box { T t; template<class U> T put(U u) const { return t + static_cast<T>(u); } };
namespace outer { namespace { int hidden(int x) { return x * 2; } } int shown(int x) { return hidden(x); } }
int main(int n, char **v) {
  std::map<std::string, std::vector<int>> m;
  m[v[0]].push_back(n);
  auto f = [&](auto q) { return Box<double>{1.5}.put(q) + outer::shown(n); };
  std::sort(m[v[0]].begin(), m[v[0]].end(), [](int a, int b) { return a < b; });
  return static_cast<int>(f(2L)) + static_cast<int>(m.size());
}
"""


# --- load objects ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mapped:
    """A file as if mapped at ``base``: its segments (vaddr, size, offset, modes), function addresses, text."""

    path: bytes
    base: int
    segments: tuple[tuple[int, int, int, int], ...]
    functions: dict[str, tuple[int, int]]
    text: tuple[int, int]

    def pc(self, function: str, offset: int = 0) -> int:
        """A run-time address inside a function."""
        return self.functions[function][0] + offset


def map_file(path: Path | str, base: int) -> Mapped:
    """By readelf: where its segments and functions lie."""
    def told(*options: str) -> str:
        return subprocess.run(["readelf", "-W", *options, path], capture_output=True, encoding="latin-1",
                              check=True).stdout

    loads = [(int(vaddr, 16), int(size, 16), int(offset, 16), flags) for offset, vaddr, size, flags in re.findall(
        r"LOAD +(0x\w+) (0x\w+) 0x\w+ (0x\w+) 0x\w+ ([R ][W ][E ])", told("-l"))]
    base = base if loads[0][0] == 0 else 0
    segments = tuple((base + (vaddr & ~4095), -(-(vaddr % 4096 + size) // 4096) * 4096, offset & ~4095,
                      ("R" in flags) + 2 * ("W" in flags) + 4 * ("E" in flags)) for vaddr, size, offset, flags in loads)
    rows = [line.split() for line in told("-s").splitlines()]
    functions = {row[7].split("@")[0]: (base + int(row[1], 16), int(row[2], 0)) for row in rows
                 if len(row) > 7 and row[3] == "FUNC" and row[6] != "UND"}
    text = next((base + vaddr, size) for vaddr, size, _, flags in loads if "E" in flags)
    return Mapped(os.fsencode(path), base, segments, functions, text)


@pytest.fixture(scope="session")
def libc(need: Callable[[str, str], str]) -> Mapped:
    """The machine's libc."""
    return map_file(os.path.realpath(need("/lib/*-linux-gnu/libc.so.6", "libc6")), LIBC_BASE)


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory, need: Callable[[str, str], str]) -> Callable[..., Mapped]:
    """``build("c", "-O0")``: a program, compiled once; ``strip`` as last flag strips it."""
    directory = tmp_path_factory.mktemp("programs")
    sources = {"c": (need("gcc", "gcc"), C_SOURCE), "cc": (need("g++", "g++"), CC_SOURCE)}

    def program(language: str, *flags: str) -> Mapped:
        path = directory / "".join(("prog", language, *flags))
        if not path.exists():
            compiler, text = sources[language]
            source = directory / f"prog.{language}"
            source.write_text(text)
            subprocess.run([compiler, *(flag for flag in flags if flag != "strip"), "-o", path, source], check=True)
            if "strip" in flags:
                subprocess.run(["strip", path], check=True)
        return map_file(path, PROGRAM_BASE)

    return program


# --- experiments ----------------------------------------------------------------------------------


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[..., Recorder]]:
    """``begin("a.1.er", *mapped)``: a recorder with these files mapped; ended with the test if not before."""
    recorders: list[Recorder] = []

    def create(name: str, *files: Mapped, **changes: Any) -> Recorder:
        path = tmp_path / name
        if path.parent == tmp_path:
            path.mkdir()
        recorder = Recorder.create(path, replace(HEADER, **changes))
        recorders.append(recorder)
        for file in files:
            for vaddr, size, offset, modes in file.segments:
                recorder.segment_mapped(START_NS, vaddr, size, offset, file.path, modes)
        return recorder

    yield create
    for recorder in recorders:
        recorder.close(START_NS + 5_000_000_000)


def add(recorder: Recorder, stacks: Sequence[Sequence[int]], packets: Sequence[tuple[int, ...]]) -> None:
    """``packets``: (number of the stack, tid, cpu, ms since the start, state, ticks)."""
    depth = max(map(len, stacks))
    table = np.array([[*stack, *[0] * (depth - len(stack))] for stack in stacks], np.uint64)
    uids = recorder.frames.intern(table, np.array([len(stack) for stack in stacks], np.int64))
    rows = np.array(packets, np.int64)
    recorder.clock(rows[:, 1], rows[:, 2].astype(np.int32), recorder.header.start_ns + rows[:, 3] * 1_000_000,
                   uids[rows[:, 0]].astype(np.int64), rows[:, 4].astype(np.int32), rows[:, 5].astype(np.int32))
    recorder.sync()


def sampled(recorder: Recorder, n: int = 3) -> None:
    """Samples of a second each, in which every state and counter grows by another amount."""
    for i in range(1, n + 1):
        recorder.sample(Usage(tuple(i * (state + 1) * 101_000_000 for state in range(10)), *(i * k for k in range(12))),
                        recorder.header.start_ns + i * 1_000_000_000, f"periodic {i}")


def random_stacks(seed: int, files: Sequence[Mapped], n: int) -> list[list[int]]:
    """Stacks of 1 to 17 frames, mostly in functions, some in holes, some nowhere, some not reaching the root."""
    chance = random.Random(seed)
    pool = []
    for file in files:
        functions = sorted(file.functions.values())
        for start, size in chance.choices(functions, k=n) if functions else ():
            pool.append(start + chance.randrange(max(size, 1)))
        pool += [file.text[0] + chance.randrange(file.text[1]) for _ in range(n // 5 if functions else n)]
    pool += [0x1234, 0xFFFF_8000_0000_0000, 3]
    ends = [[], [], [], [], [TRUNCATED], [FAILED]]
    return [chance.choices(pool, k=chance.randrange(1, 17)) + chance.choice(ends) for _ in range(n)]


def random_packets(seed: int, n_stacks: int, n: int) -> list[tuple[int, ...]]:
    """In time order: three threads, four CPUs, all ten states."""
    chance = random.Random(seed)
    return [(chance.randrange(n_stacks), 4711 + chance.randrange(3), chance.randrange(4), i, chance.randrange(10),
             chance.randrange(1, 8)) for i in range(n)]


# --- comparing ------------------------------------------------------------------------------------


@pytest.fixture
def print_out(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What ``er_print`` prints with these arguments."""
    def run(*arguments: str | Path) -> str:
        capsys.readouterr()
        assert command.run([str(argument) for argument in arguments]) == 0
        captured = capsys.readouterr()
        assert captured.err == ""
        return captured.out

    return run


@pytest.fixture
def equal(gprofng: Callable[..., Any], print_out: Callable[..., str]) -> Callable[..., str]:
    """``equal("-functions", experiment=path)``: both print the same; it. The other one reads no debug files."""
    def compare(*arguments: str, experiment: Path) -> str:
        expected = gprofng(*arguments, experiment=experiment).text
        found = without_latency(print_out("-debug_files", "off", *arguments, experiment))
        for ours, theirs in zip_longest(found.splitlines(), expected.splitlines()):
            assert alike(ours or "", theirs or ""), arguments
        return found

    return compare


def without_latency(text: str) -> str:
    """A list of metrics without the one that the other reader lacks."""
    return re.sub(r"^ *(Ex|In)clusive Latency: [ei]\.%latency\n", "", text, flags=re.MULTILINE)


def alike(ours: str, theirs: str) -> bool:
    """Equal, but for the last digit of a percentage: the other reader divides by a sum of rounded numbers."""
    if ours == theirs:
        return True
    pairs = list(zip_longest(re.split(r"(\s+)", ours), re.split(r"(\s+)", theirs), fillvalue=""))
    return all(
        a == b or (re.fullmatch(r"\d+\.\d\d", a) and re.fullmatch(r"\d+\.\d\d", b) and
                   round(abs(float(a) - float(b)), 3) <= 0.01) for a, b in pairs)


def test_the_comparison_forgives_nothing_else() -> None:
    assert alike("0.070  21.87   main", "0.070  21.88   main")
    for other in ("0.071  21.87   main", "0.070  21.89   main", "0.070  21.87   Main", "0.070 21.87    main", ""):
        assert not alike("0.070  21.87   main", other)


TABLES = [
    ("-indxobj", "Seconds", "-indxobj", "Duration", "-indxobj_define", "Mine", "THRID*16", "-indxobj", "Mine"),
    ("-thread_select", "2", "-cpu_list", "-sample_list", "-functions", "-threads", "-filters", "MSTATE IN (0,7)",
     "-functions", "-cpus"),
    ("-functions",),
    ("-calltree",),
    ("-callers-callees",),
    ("-pcs",),
    ("-metrics", "e.user:i.%total:name", "-functions", "-calltree", "-callers-callees"),
    ("-metrics", "i.%sleep:size:e.lock:address:name", "-functions"),
    ("-metrics", "all", "-functions"),
    ("-metrics", "name:e%wait:i.+stop", "-functions"),
    ("-sort", "name", "-functions", "-callers-callees", "-calltree"),
    ("-sort", "-i.totalcpu", "-functions"),
    ("-metrics", "e.user:i.user:e.sleep", "-sort", "e.sleep", "-callers-callees", "-threads", "-functions"),
    ("-name", "short", "-functions"),
    ("-threads", "-samples", "-cpus", "-processes"),
    ("-metrics", "e.total:i.sleep:i.wait", "-threads", "-samples", "-cpus", "-processes"),
]
PROGRAMS = {"pie": ("c", "-O0", "-pie", "-fPIE"), "static": ("c", "-O1", "-static"), "fixed": ("c", "-O2", "-no-pie"),
            "stripped": ("c", "-O2", "strip"), "cplusplus": ("cc", "-O0"), "lazy": ("cc", "-O1", "-Wl,-z,lazy")}


@pytest.mark.parametrize("program", PROGRAMS)
def test_tables_are_those_of_gprofng(program: str, build: Callable[..., Mapped], libc: Mapped,
                                     begin: Callable[..., Recorder], equal: Callable[..., str]) -> None:
    files = [build(*PROGRAMS[program])] + ([] if program == "static" else [libc])
    recorder = begin("a.1.er", *files)
    stacks = random_stacks(len(program), files, 230)
    add(recorder, stacks, random_packets(len(program), len(stacks), 1201))
    sampled(recorder)
    recorder.close(START_NS + 4_000_000_000)
    for arguments in TABLES:
        printed = equal(*arguments, experiment=recorder.path)
        assert len(printed.splitlines()) > 5


def test_every_state_has_its_metric(build: Callable[..., Mapped], begin: Callable[..., Recorder],
                                    print_out: Callable[..., str], equal: Callable[..., str]) -> None:
    program = build("c", "-O0")
    recorder = begin("a.1.er", program)
    names = ("user", "system", "trap", "textpfault", "datapfault", "kernelpfault", "lock", "sleep", "wait", "stop")
    ticks = (3, 5, 7, 11, 13, 17, 19, 23, 29, 31)
    add(recorder, [[program.pc("leaf", 2), program.pc("middle", 3)]],
        [(0, 4711, 1, 10 * state, state, ticks[state]) for state in range(10)])
    for name, count in zip(names, ticks, strict=True):
        text = equal("-metrics", f"e.{name}:i.{name}:name", "-functions", experiment=recorder.path)
        shown = f"{count * INTERVAL_US / 1e6:.3f}"
        assert re.findall(r"(?m)^ *([\d.]+) +([\d.]+) +(\S+)$", text) == [
            (shown, shown, "<Total>"), (shown, shown, "leaf"), ("0.", shown, "middle")]
    totals = {"total": sum(ticks), "totalcpu": sum(ticks[:3])}
    for name, count in totals.items():
        assert f"{count * INTERVAL_US / 1e6:.3f}" in print_out("-metrics", f"e.{name}", "-functions", recorder.path)


def test_recursion_counts_once(build: Callable[..., Mapped], begin: Callable[..., Recorder],
                               equal: Callable[..., str]) -> None:
    program = build("c", "-O0")
    recorder = begin("a.1.er", program)
    deep = [program.pc("leaf", 1), program.pc("middle", 2), *[program.pc("recurse", 9)] * 37, program.pc("main", 5)]
    add(recorder, [deep, deep[2:], [*deep[7:], TRUNCATED]],
        [(0, 1, 0, 1, 0, 1), (1, 1, 0, 2, 0, 2), (2, 1, 0, 3, 0, 4)])
    text = equal("-functions", experiment=recorder.path)
    assert re.search(r"(?m)^0\.060  85\.71  0\.070 100\.00   aa$", text), text
    equal("-callers-callees", "-calltree", experiment=recorder.path)


@pytest.mark.parametrize("flags", [("-g", "-gdwarf-4"), ()], ids=["lines", "bare"])
def test_lines_belong_to_functions_not_to_names(flags: tuple[str, ...], tmp_path: Path, begin: Callable[..., Recorder],
                                                need: Callable[[str, str], str], equal: Callable[..., str]) -> None:
    """Three functions are called ``work``: of a header that two files include, and of a third file."""
    (tmp_path / "h.h").write_text("static int __attribute__((noinline)) work(int n) {\n  return n * 3;\n}\n")
    for name, text in {"a": "int main(int n, char **v) { (void)v; return work(n); }",
                       "b": "int b(int n) { return work(n); }",
                       "c": "static int __attribute__((noinline)) work(int n) { return n - 7; }\n"
                            "int c(int n) { return work(n); }"}.items():
        (tmp_path / f"{name}.c").write_text(('#include "h.h"\n' if name != "c" else "") + text + "\n")
    program = tmp_path / "prog"
    subprocess.run([need("gcc", "gcc"), "-O0", *flags, "-o", program, *(tmp_path / f"{name}.c" for name in "abc")],
                   check=True)
    mapped = map_file(program, PROGRAM_BASE)
    symbols = subprocess.run(["nm", program], capture_output=True, text=True, check=True).stdout
    places = [PROGRAM_BASE + int(place, 16) for place in re.findall(r"(?m)^(\w+) t work$", symbols)]
    assert len(places) == 3
    recorder = begin("a.1.er", mapped)
    add(recorder, [[place + 5, mapped.pc("main", 9)] for place in places],
        [(number, 4711, 0, number, 0, 1 + 2 * number) for number in range(3)])
    text = equal("-lines", "-functions", experiment=recorder.path)
    times = re.findall(r"(?m)^(\d\.\d+) .*\bwork\b.*$", text)
    assert times == [f"{INTERVAL_US * ticks / 1e6:.3f}" for ticks in (5, 3, 1)] * 2


def test_fragments_of_the_stack_are_those_of_gprofng(build: Callable[..., Mapped], begin: Callable[..., Recorder],
                                                     equal: Callable[..., str]) -> None:
    program = build("c", "-O0")
    recorder = begin("a.1.er", program)
    pcs = [program.pc(name, 3) for name in ("leaf", "middle", "main", "_start")]
    chance = random.Random(11)
    stacks = [chance.choices(pcs, k=chance.randrange(1, 9)) for _ in range(97)]
    add(recorder, stacks, random_packets(3, len(stacks), 503))
    text = equal("-csingle", "middle", "-cprepend", "main", "-cappend", "leaf", "-crmfirst", "-crmlast", "-cappend",
                 "middle", experiment=recorder.path)
    assert text.count("Stack Fragment") == 6


def test_what_is_said_about_experiments(build: Callable[..., Mapped], begin: Callable[..., Recorder],
                                        equal: Callable[..., str]) -> None:
    program = build("c", "-O0")
    recorder = begin("a.1.er", program, follow=True)
    add(recorder, [[program.pc("leaf", 2)]], [(0, 4711, 0, i * 7, i % 10, 1 + i) for i in range(31)])
    recorder.warning("something <odd>", START_NS + 5)
    recorder.error("something bad", START_NS + 6)
    recorder.comment("a remark", START_NS + 7)
    recorder.pause(START_NS + 8_000_000, "api")
    recorder.resume(START_NS + 9_000_000, "api")
    recorder.descendant_starting(START_NS + 10_000_000, "fork", "_f1", True)
    recorder.descendant_started(START_NS + 11_000_000, "fork", "_f1", True, "pid=99")
    sampled(recorder)
    recorder.sync()
    for running in (True, False):
        if not running:
            recorder.close(START_NS + 4_000_000_000)
        equal("-statistics", "1", "-overview", "-metric_list", "-experiment_list", "-sample_detail", "1", "-objects",
              experiment=recorder.path)
        text = equal("-header", experiment=recorder.path)
        assert ("was not closed" in text) == running


def test_founder_and_descendants_are_one(build: Callable[..., Mapped], libc: Mapped, begin: Callable[..., Recorder],
                                         equal: Callable[..., str], print_out: Callable[..., str]) -> None:
    program = build("c", "-O0")
    founder = begin("a.1.er", program, libc)
    children = [begin("a.1.er/_f1.er", program, libc, pid=4801, arguments=b"(fork)", start_ns=START_NS + 10**9),
                begin("a.1.er/_f1_x1.er", libc, pid=4801, arguments=b"/bin/other z", start_ns=START_NS + 2 * 10**9),
                begin("a.1.er/_f10.er", program, pid=4810, arguments=b"prog", start_ns=START_NS + 10**9),
                begin("a.1.er/_f2.er", program, pid=4802, arguments=b"prog", start_ns=START_NS + 10**9)]
    for number, recorder in enumerate((founder, *children)):
        files = [program, libc] if number < 2 else [libc] if number == 2 else [program]
        stacks = random_stacks(number, files, 37)
        add(recorder, stacks, [(s, t + number, *rest) for s, t, *rest in random_packets(number, 37, 201)])
        sampled(recorder)
        recorder.close(START_NS + 5_000_000_000)
    for arguments in (*TABLES, ("-header",), ("-overview",), ("-experiment_list",), ("-statistics", "3"),
                      ("-statistics", "all")):
        equal(*arguments, experiment=founder.path)
    equal("-object_select", "libc.so.6", "-functions", "-calltree", "-object_list", experiment=founder.path)
    alone = equal("-functions", "-processes", experiment=children[1].path)
    assert alone != print_out("-functions", "-processes", founder.path)


def test_a_group_file_stands_for_its_members(tmp_path: Path, build: Callable[..., Mapped],
                                             begin: Callable[..., Recorder], print_out: Callable[..., str]) -> None:
    program = build("c", "-O0")
    recorders = [begin(f"a.{number}.er", program) for number in (1, 2)]
    for number, recorder in enumerate(recorders):
        add(recorder, [[program.pc("leaf", number)]], [(0, 7, 0, 1, 0, 1 + number)])
    group = tmp_path / "both.erg"
    group.write_text(f"#analyzer experiment group\n{recorders[0].path}\n# a remark\na.2.er  more words\n\n")
    text = print_out("-functions", group)
    assert text == print_out("-functions", *(recorder.path for recorder in recorders))
    assert "0.030 100.00  0.030 100.00   leaf" in text


def test_lines_are_those_of_gprofng(build: Callable[..., Mapped], begin: Callable[..., Recorder],
                                    equal: Callable[..., str]) -> None:
    program = build("c", "-O0", "-gdwarf-4")
    recorder = begin("a.1.er", program)
    names = ("leaf", "middle", "recurse", "main", "_start")
    pcs = [program.pc(name, offset) for name in names for offset in (0, 4, 11)]
    stacks = [random.Random(i).choices(pcs, k=5) for i in range(61)]
    add(recorder, stacks, random_packets(3, 61, 307))
    text = equal("-lines", experiment=recorder.path)
    assert 'leaf, line 2 in "prog.c"' in text
    assert "<Function: _start, instructions without line numbers>" in text


def test_inlined_functions_are_frames_of_their_own(tmp_path: Path, need: Callable[[str, str], str],
                                                   begin: Callable[..., Recorder], print_out: Callable[..., str],
                                                   equal: Callable[..., str]) -> None:
    source, path = tmp_path / "inl.c", tmp_path / "inl"
    source.write_text("#define I static inline __attribute__((always_inline)) int\n"
                      "I innermost(volatile int *p) { return *p * 3; }\n"
                      "I inner(volatile int *p) { return innermost(p); }\n"
                      "__attribute__((noinline)) int outer(volatile int *p) { return inner(p) + 2; }\n"
                      "int main(int n, char **v) { (void)v; return outer(&n); }\n")
    subprocess.run([need("gcc", "gcc"), "-O2", "-g", "-o", path, source], check=True)
    program = map_file(path, PROGRAM_BASE)
    start, size = program.functions["outer"]
    told = {offset: subprocess.run(["addr2line", "-i", "-f", "-e", path, hex(start - PROGRAM_BASE + offset)],
                                   capture_output=True, text=True, check=True).stdout.split("\n")[:-1:2]
            for offset in range(size)}
    inside = next(offset for offset, names in told.items() if names == ["innermost", "inner", "outer"])
    recorder = begin("a.1.er", program)
    add(recorder, [[start + inside, program.pc("main", 7)], [program.pc("main", 3)]],
        [(0, 7, 0, 1, 0, 2), (1, 7, 0, 1, 0, 1)])
    plain = equal("-functions", experiment=recorder.path)
    assert "inner" not in plain
    assert print_out("-inlines", "off", "-functions", recorder.path) == plain
    expanded = print_out("-inlines", "on", "-calltree", recorder.path)
    assert re.findall(r"\+-(\S+)", expanded) == ["<Total>", "main", "outer", "inner", "innermost"]
    functions = print_out("-inlines", "on", "-functions", recorder.path)
    rows = re.findall(r"(?m)^ *([\d.]+) +\S+ +(\S+) +\S+ +(\S+)$", functions)
    assert rows == [("0.030", "0.030", "<Total>"), ("0.020", "0.020", "innermost"), ("0.010", "0.030", "main"),
                    ("0.", "0.020", "inner"), ("0.", "0.020", "outer")]


def test_separate_debug_file_beside_the_program(tmp_path: Path, build: Callable[..., Mapped],
                                                need: Callable[[str, str], str], begin: Callable[..., Recorder],
                                                equal: Callable[..., str], print_out: Callable[..., str]) -> None:
    whole = build("c", "-O1", "-g")
    stripped, debug = tmp_path / "prog", tmp_path / "prog.debug"
    objcopy = need("objcopy", "binutils")
    subprocess.run([objcopy, "--only-keep-debug", os.fsdecode(whole.path), debug], check=True)
    subprocess.run([objcopy, "--strip-all", f"--add-gnu-debuglink={debug}", os.fsdecode(whole.path), stripped],
                   check=True)
    recorder = begin("a.1.er", map_file(stripped, PROGRAM_BASE))
    stacks = random_stacks(5, [whole], 83)
    add(recorder, stacks, random_packets(5, 83, 401))
    assert "middle" in equal("-functions", experiment=recorder.path)
    debug.unlink()
    assert "middle" not in print_out("-functions", recorder.path)


def test_an_address_means_what_was_mapped_there_then(build: Callable[..., Mapped], libc: Mapped,
                                                     begin: Callable[..., Recorder], equal: Callable[..., str]) -> None:
    program = build("c", "-O0")
    recorder = begin("a.1.er", program)
    second = 1_000_000_000
    first = libc.segments[1]
    recorder.segment_mapped(START_NS + second, first[0], first[1], first[2], libc.path, 5)
    recorder.unmapped(START_NS + 2 * second, first[0], first[1])
    other = map_file(os.fsdecode(build("cc", "-O0").path), first[0] - 0x1000)
    vaddr, size, offset, _ = next(segment for segment in other.segments if segment[3] == 5)
    recorder.segment_mapped(START_NS + 3 * second, vaddr, size, offset, other.path, 5)
    inside = vaddr + size // 2
    add(recorder, [[inside, program.pc("main", 1)], [libc.pc("read", 4), program.pc("leaf", 1)]],
        [(i % 2, 7, 0, 250 * i, 0, 1 + i) for i in range(17)])
    recorder.close(START_NS + 5 * second)
    text = equal("-functions", "-calltree", experiment=recorder.path)
    assert "<Unknown>" in text


def test_code_without_a_file(build: Callable[..., Mapped], begin: Callable[..., Recorder],
                             equal: Callable[..., str]) -> None:
    program = build("c", "-O0")
    recorder = begin("a.1.er", program)
    vdso = 0x7FFD_0000_1000
    recorder.function_mapped(START_NS, vdso, 0x1000, b"[vdso]", [(vdso + 0x100, 0x80, b"__vdso_time"),
                                                              (vdso + 0x180, 0x13, b"_ZN3jit4codeEv")])
    recorder.function_mapped(START_NS + 5_000_000, 0x7F00_0000_0000, 0x37, b"lonely")
    pcs = [vdso, vdso + 0x100, vdso + 0x17F, vdso + 0x185, vdso + 0x193, vdso + 0xFFF, 0x7F00_0000_0010, vdso + 0x1000]
    add(recorder, [[pc, program.pc("main", 1)] for pc in pcs], [(i, 7, 0, i + 9, 0, 1 + i) for i in range(len(pcs))])
    text = equal("-functions", "-pcs", "-objects", experiment=recorder.path)
    assert "_ZN3jit4codeEv + 0x00000005" in text


def test_without_packets_there_is_a_total(build: Callable[..., Mapped], begin: Callable[..., Recorder],
                                          equal: Callable[..., str]) -> None:
    recorder = begin("a.1.er", build("c", "-O0"))
    equal("-functions", "-header", "-threads", "-samples", "-overview", experiment=recorder.path)
    equal("-calltree", experiment=recorder.path)


# --- names ----------------------------------------------------------------------------------------


def test_hostile_names_are_printed_as_one_line(tmp_path: Path, need: Callable[[str, str], str],
                                               begin: Callable[..., Recorder], print_out: Callable[..., str]) -> None:
    odd = {b"function_1": b"red\x1b[31m\x07x", b"function_2": b"two\nlines_", b"function_3": b"bad\xff\xfe____4",
           b"function_4": "gr\u00fc\u00dfe___".encode()}
    source, path = tmp_path / "odd.c", tmp_path / "odd\n\x1b\udcff.so"
    source.write_text("".join(f"int {name.decode()}(int n) {{ return n; }}\n" for name in odd))
    subprocess.run([need("gcc", "gcc"), "-shared", "-nostdlib", "-fPIC", "-o", path, source], check=True)
    content = path.read_bytes()
    for plain, hostile in odd.items():
        assert len(plain) == len(hostile)
        content = content.replace(plain, hostile)
    path.write_bytes(content)
    mapped = map_file(path, PROGRAM_BASE)
    recorder = begin("odd \x07.1.er", mapped, arguments=b"prog \n\x1b[31m 'a'", cwd=b"/tmp/\xff\n")
    start, size = mapped.text
    add(recorder, [[start + i] for i in range(size)], [(i, 7, 0, i, 0, 1 + i) for i in range(size)])
    recorder.comment("line\nand \x1b[31m", START_NS)
    text = print_out("-functions", "-calltree", "-objects", "-header", "-experiment_list", recorder.path)
    assert "".join(text.splitlines()).isprintable()
    for shown in ("red\\x1b[31m\\x07x", "two\\nlines_", "bad\\xff\\xfe", "gr\u00fc\u00dfe_", "odd\\n\\x1b\\xff.so",
                  "odd \\x07.1.er", "/tmp/\\xff\\n"):
        assert shown in text


def test_a_terminal_that_lacks_a_letter_gets_an_escape(begin: Callable[..., Recorder],
                                                       er_print: Callable[..., Any]) -> None:
    recorder = begin("gr\u00fc\u00df.1.er")
    done = er_print("-experiment_list", recorder.path, env=os.environ | {"PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stderr) == (0, "")
    assert "gr\\xfc\\xdf.1.er" in done.stdout


# --- settings and errors --------------------------------------------------------------------------


@pytest.fixture
def small(build: Callable[..., Mapped], begin: Callable[..., Recorder]) -> Path:
    """An experiment with four functions."""
    program = build("c", "-O0")
    recorder = begin("small.1.er", program)
    add(recorder, [[program.pc("leaf", 2), program.pc("middle", 1), program.pc("main", 1)]], [(0, 7, 0, 1, 0, 3)])
    recorder.close(START_NS + 10**9)
    return recorder.path


def test_an_mpi_job_is_its_ranks(build: Callable[..., Mapped], begin: Callable[..., Recorder],
                                 print_out: Callable[..., str]) -> None:
    program = build("c", "-O0")
    job = begin("job.1.er")
    for number, name in enumerate(("M_r0.er", "M_r1.er", "M_r1.er/_f1.er", "M_r10.er", "M_r2.er"), 1):
        recorder = begin(f"job.1.er/{name}", program, pid=70 + number)
        add(recorder, [[program.pc("leaf", 2), program.pc("main", 1)]], [(0, 7, 0, 1, 0, number)])
    ranks = [job.path / f"M_r{number}.er" for number in (0, 1, 2, 10)]
    for table in ("-functions", "-threads", "-processes", "-experiment_list"):
        assert print_out(table, job.path) == print_out(table, *ranks)
    assert "0.150 100.00  0.150 100.00   leaf" in print_out("-functions", job.path)
    compared = print_out("-compare", "delta", "-metrics", "e.user", "-functions", job.path, ranks[0]).splitlines()
    assert [line.split()[:2] for line in compared if "leaf" in line] == [["0.150", "-0.140"]]


def test_commands_may_be_cut_short_and_have_other_names(small: Path, print_out: Callable[..., str]) -> None:
    whole = print_out("-functions", "-calltree", "-callers-callees", "-experiment_list", small)
    assert print_out("-fu", "-callt", "-calle", "-experiment", small) == whole
    assert print_out(small, "-fun", "-ctree", "-gprof", "-exp_list") == whole


def test_limit(small: Path, print_out: Callable[..., str]) -> None:
    assert print_out("-limit", "2", "-functions", small).splitlines()[5:] == \
        ["0.030 100.00  0.030 100.00   <Total>", "0.030 100.00  0.030 100.00   leaf", ""]
    assert print_out("-limit", "2", "-calltree", small).count("+-") == 2
    assert print_out("-limit", "1", "-callers-callees", small).count("*") == 1
    assert print_out("-limit", "2", "-limit", "0", "-functions", small) == print_out("-functions", small)


def test_metrics_default(small: Path, print_out: Callable[..., str]) -> None:
    lines = print_out("-metrics", "e.user", "-metrics", "default", small).splitlines()
    assert lines[2:] == ["Current metrics: e.%totalcpu:i.%totalcpu:name",
                         "Current Sort Metric: Exclusive Total CPU Time ( e.%totalcpu )"]


def test_output_goes_into_files(small: Path, tmp_path: Path, print_out: Callable[..., str]) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    printed = print_out("-outfile", str(one), "-functions", "-outfile", str(two), "-calltree", "-outfile", "-",
                        "-limit", "1", "-functions", small)
    assert printed == print_out("-limit", "1", "-functions", small)
    print_out("-appendfile", str(one), "-calltree", small)
    assert one.read_text() == print_out("-functions", "-calltree", small)
    assert two.read_text() == print_out("-calltree", small)


def test_scripts(small: Path, tmp_path: Path, print_out: Callable[..., str]) -> None:
    script = tmp_path / "script"
    script.write_text("# a remark\n\nmetrics e.user:name\n  func\n-calltree\n")
    assert print_out("-script", script, small) == print_out("-metrics", "e.user:name", "-functions", "-calltree", small)


def test_without_a_command_they_are_read_from_standard_input(small: Path, er_print: Callable[..., Any],
                                                             print_out: Callable[..., str]) -> None:
    done = er_print(small, input="# a remark\n\nmetrics e.user:name\n  func\nquit\ncalltree\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == print_out("-metrics", "e.user:name", "-functions", small)
    wrong = er_print(small, input="bogus\n")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "no such command" in wrong.stderr


def test_what_is_piped_in_goes_on_where_it_was_left(small: Path, er_print: Callable[..., Any],
                                                   print_out: Callable[..., str]) -> None:
    done = er_print("-", "-limit", "4", "-", small, input="limit 3\nquit\nlimit 1\nfunctions\n",
                    env=os.environ | {"PYTHONIOENCODING": "utf-8:strict"})
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == print_out("-limit", "1", "-functions", small)


def test_on_a_terminal_a_mistake_is_told_and_the_next_line_comes(small: Path, need: Callable[[str, str], str],
                                                                 tmp_path: Path) -> None:
    command_line = f"{Path(sys.executable).parent / 'er_print'} {small}"
    done = subprocess.run([need("script", "bsdutils"), "-qec", command_line, "/dev/null"],
                          input="bogus\nlimit 2\nfunc\nexit\n", capture_output=True, text=True,
                          env=os.environ | {"HOME": str(tmp_path), "TERM": "dumb"})
    assert done.returncode == 0
    assert "bogus: no such command" in done.stdout
    assert "0.030 100.00  0.030 100.00   leaf" in done.stdout
    assert "func" in (tmp_path / ".er_print_history").read_text()


def test_a_summary_has_every_metric(small: Path, print_out: Callable[..., str], equal: Callable[..., str],
                                    gprofng: Callable[..., Any]) -> None:
    told = gprofng("-fsingle", "leaf", experiment=small).text.splitlines()
    assert [line for line in told if "File" not in line and "Aliases" not in line and "Mangled" not in line] == \
        print_out("-fsingle", "leaf", small).splitlines()
    assert print_out("-limit", "2", "-fsummary", small).count("Load Object") == 2


def test_help_and_version_name_every_command(print_out: Callable[..., str]) -> None:
    text = print_out("--help")
    assert print_out("-h") == text
    assert [line.split()[0] for line in text.splitlines() if line.startswith("  -")][:-3] == \
        [f"-{one.name}" for one in command.COMMANDS]
    assert re.fullmatch(r"er_print \d+\.\d+\.\d+\n", print_out("--version"))


@pytest.mark.parametrize(("arguments", "status", "words"), [
    (("-functions",), 2, "no experiment"),
    (("EXPERIMENT",), 2, "nothing to print"),
    (("-bogus", "EXPERIMENT"), 2, "-bogus: no such command"),
    (("--top", "3", "-aggregations", "EXPERIMENT"), 2,
     "--top is an option of -aggregations and -json_aggregations: put it behind one of them"),
    (("-json_aggregations", "EXPERIMENT", "--style=stap"), 2,
     "--style is an option of -aggregations: put it behind that"),
    (("-aggregations", "EXPERIMENT", "-top", "3"), 2, "--top is an option of -aggregations"),
    (("-aggregations", "EXPERIMENT", "--top"), 2, "--top needs an argument: N"),
    (("-s", "EXPERIMENT"), 2, "-s may be"),
    (("-call", "EXPERIMENT"), 2, "callers-callees or calltree"),
    (("-metrics", "e.bogus", "-functions", "EXPERIMENT"), 2, "e.bogus"),
    (("-metrics", "EXPERIMENT"), 2, "no experiment"),
    (("-sort", "i.total", "-functions", "EXPERIMENT"), 2, "i.total"),
    (("-limit", "many", "-functions", "EXPERIMENT"), 2, "-limit many"),
    (("-limit",), 2, "-limit needs an argument"),
    (("-name", "odd", "EXPERIMENT"), 2, "long, short or mangled"),
    (("-inlines", "perhaps", "EXPERIMENT"), 2, "on or off"),
    (("-header", "7", "EXPERIMENT"), 2, "no experiment 7"),
    (("-outfile", "/dev/null/x", "-functions", "EXPERIMENT"), 2, "/dev/null/x"),
    (("-script", "/dev/null/x", "EXPERIMENT"), 2, "/dev/null/x"),
    (("-functions", "/nowhere.er"), 1, "/nowhere.er"),
    (("-functions", "/tmp"), 1, "not an experiment"),
    (("-functions", "EMPTY"), 1, "log.xml"),
    (("-functions", "GARBAGE"), 1, "log.xml"),
    (("-functions", "GROUP"), 1, "group"),
    (("-functions", "/nowhere.erg"), 1, "/nowhere.erg"),
    (("-functions", "HOLLOW"), 1, "no experiments"),
])
def test_errors_say_in_one_line_what_is_wrong(arguments: tuple[str, ...], status: int, words: str, small: Path,
                                              tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    places = {"EXPERIMENT": small, "EMPTY": tmp_path / "empty.er", "GARBAGE": tmp_path / "garbage.er",
              "GROUP": tmp_path / "no.erg", "HOLLOW": tmp_path / "empty.erg"}
    (tmp_path / "empty.erg").write_text("#analyzer experiment group\n")
    places["EMPTY"].mkdir()
    places["GARBAGE"].mkdir()
    (places["GARBAGE"] / "log.xml").write_bytes(os.urandom(4711))
    places["GROUP"].write_text("a.er\n")
    with pytest.raises(CollectorError, match=re.escape(words)) as caught:
        command.run([str(places.get(argument, argument)) for argument in arguments])
    assert caught.value.exit_status == status
    assert "\n" not in str(caught.value)


def test_the_installed_command(small: Path, er_print: Callable[..., Any], print_out: Callable[..., str]) -> None:
    done = er_print("-functions", small)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", print_out("-functions", small))
    failed = er_print("-functions", "/nowhere.er")
    assert (failed.returncode, failed.stdout) == (1, "")
    assert re.fullmatch(r"er_print: .*/nowhere\.er.*\n", failed.stderr)


# --- real recordings ------------------------------------------------------------------------------

REAL = {
    "python": ("python3", "import json, re, zlib\nfor _ in range(9):\n s = json.dumps([{'a': i, 'b': [i] * 9} for i in "
               "range(4000)])\n zlib.compress(s.encode() * 5)\n re.findall(r'(\\d+)1', s)\n len(bytes(9_000_000))"),
    "xz": ("xz", "-T2", "-3", "-k", "-c", "DATA"),
}


# Where the recorder comes late, a periodic overview sample may be of a time after the program's end: the last one, of
# its end, is then before it, and readers skip it.
@pytest.mark.kernel_times
@pytest.mark.usefixtures("perf_allowed")
@pytest.mark.parametrize("program", REAL)
def test_real_recordings_look_as_gprofng_shows_them(program: str, tmp_path: Path, need: Callable[[str, str], str],
                                                    collect: Callable[..., Any], equal: Callable[..., str],
                                                    print_out: Callable[..., str], gprofng: Callable[..., Any]) -> None:
    name, *arguments = REAL[program]
    data = tmp_path / "data"
    data.write_bytes(random.Random(3).randbytes(1_000_003) * 7 if "DATA" in arguments else b"")
    words = ["-c", *arguments] if program == "python" else [str(data) if word == "DATA" else word for word in arguments]
    path = tmp_path / "real.1.er"
    done = collect("-p", "hi", "-o", path, need(name, {"xz": "xz-utils"}.get(name, name)), *words,
                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, capture_output=False)
    assert done.returncode == 0, done.stderr
    for commands in (("-functions", "-calltree"), ("-callers-callees", "-threads", "-samples"),
                     ("-statistics", "1", "-cpus"),
                     ("-metrics", "i.total:e.sleep:e.wait:e.lock", "-functions", "-callers-callees", "-threads")):
        assert len(equal(*commands, experiment=path)) > 500
    instructions = without_lines(print_out("-debug_files", "off", "-pcs", path))
    assert len(instructions) > 9
    assert instructions == without_lines(gprofng("-pcs", experiment=path).text)


def without_lines(text: str) -> list[str]:
    """Instructions without their lines, which the other reader does not find in DWARF 5; of figures the times."""
    return sorted(re.sub(r" +\d+\.\d\d\b|, line \d+ in \"[^\"]*\"$", "", line) for line in text.splitlines()[5:])


def test_memory_goes_with_the_stacks_and_not_with_the_packets(tmp_path: Path) -> None:
    """The file of a million packets is 61 MiB; what is weighed of them is at most 17 bytes of each."""
    sizes = []
    for n_packets in (1009, 1_000_003):
        path = tmp_path / f"{n_packets}.er"
        path.mkdir()
        recorder = Recorder.create(path, HEADER)
        (uid,) = recorder.frames.intern(np.array([[3, 2, 1]], np.uint64), np.array([3]))
        every = np.arange(n_packets)
        recorder.clock(every % 3 + 1, every * 0, START_NS + every, every * 0 + int(uid), every * 0, every * 0 + 1)
        recorder.close(START_NS + 10**9)
        program = ("import sys; from collector.cli.main import er_print; er_print();"
                   "print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))")
        done = subprocess.run([sys.executable, "-c", program, "-functions", path], capture_output=True, text=True,
                              check=True)
        sizes.append(int(done.stdout.split()[-1]))
        assert f"{n_packets * INTERVAL_US / 1e6:.3f}" in done.stdout
    assert sizes[1] - sizes[0] < 40 << 10


@pytest.mark.parametrize(("asked", "n_told"), [(("-thread_select", "5"), 2), (("-filters", "THRID==5"), 0), ((), 0)])
def test_selections_by_number_end_when_other_experiments_are_opened(
        asked: tuple[str, ...], n_told: int, small: Path, tmp_path: Path, print_out: Callable[..., str]) -> None:
    other = shutil.copytree(small, tmp_path / "other.1.er")
    out = print_out(*asked, "-add_exp", other, "-thread_select", "1", "-drop_exp", other, "-functions", small) \
        if n_told else print_out(*asked, "-add_exp", other, "-drop_exp", other, "-functions", small)
    assert out.count("Selections by number have ended") == n_told
    total = re.search(r"([0-9.]+)[ 0-9.]*<Total>", out)
    assert total is not None
    assert (float(total[1]) > 0) == (asked[:1] != ("-filters",))


@pytest.mark.parametrize("asked", [(), ("-filters", "THRID==1"), ("-functions",)])
def test_columns_and_order_hold_when_other_experiments_are_opened(asked: tuple[str, ...], small: Path, tmp_path: Path,
                                                                  print_out: Callable[..., str]) -> None:
    other = shutil.copytree(small, tmp_path / "other.1.er")
    view = "-metrics", "i.user:e.wait:name", "-sort", "name"
    out = print_out(*asked, *view, "-open_exp", other, "-functions", small)
    wanted = print_out(*view, "-functions", other)
    head = "Functions sorted by metric: Name"
    assert out[out.rindex(head):] == wanted[wanted.index(head):]
