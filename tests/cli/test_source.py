"""``er_print -source`` and ``-disasm``: layout against gprofng, sums against the table of functions, in four languages.

Programs are compiled here; experiments have stacks with odd counts at every place of some functions.
"""

from __future__ import annotations

import base64
import json
import os
import random
import re
import subprocess
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import go
import numpy as np
import pytest

from collector.cli import er_html
from collector.cli import er_print as command
from collector.elf import open_object
from collector.errors import ExperimentError, UsageError
from collector.experiment.recorder import Header, Recorder

START_NS = 5_003_000_000_017
INTERVAL_US = 10_007
BASE = 0x55AA_0000_0000
HEADER = Header(
    hostname="somewhere", os="Linux 6.1.0", arch="x86_64", page_size=4096, n_pages=262_147, cpus=[2500], pid=4711,
    ppid=4001, pgrp=4711, sid=4001, cwd=b"/tmp", arguments=b"/usr/bin/prog", wsize=64,
    interval_ns=INTERVAL_US * 1000, sample_period_s=1, start_ns=START_NS, start_unix=2_100_000_003,
    collector="collect 0.1", notes=[])

TWICE_H = """\
static inline __attribute__((always_inline)) int twice(int n)
{
    int m = n * 7;
    return m / (n | 1);
}
"""
PLAIN_C = """\
__attribute__((noinline)) int first(int n)
{
\tint sum = 0;
    for (int i = 0; i < n; i++)
        sum += i / (n | 1);
    return sum;
}

int main(int n, char **v)
{
    (void)v;
    return first(n) + 3;
}
"""
FIRST_C = """\
#include "twice.h"
int second(int);
__attribute__((noinline)) int first(int n)
{
    int sum = 0;
    for (int i = 0; i < n; i++)
        sum += twice(i) + i / (n | 1);
    return sum;
}

int main(int n, char **v)
{
    (void)v;
    int m = first(n);
    return m + second(m);
}
"""
SECOND_C = """\
#include "twice.h"
static __attribute__((noinline)) int work(int n)
{
    return n ? twice(n) * 3 : 1;
}
int second(int n) { return work(n) - 1; }
"""
SORT_CC = """\
#include <algorithm>
#include <vector>
namespace shapes {
template <class T> struct Box {
    std::vector<T> v;
    __attribute__((noinline)) void fill(int n)
    {
        v.clear();
        for (int i = 0; i < n; i++)
            v.push_back((i * 7919) % 10007);
    }
    __attribute__((noinline)) T order() { std::sort(v.begin(), v.end()); return v[v.size() / 2]; }
};
}
int main(int n, char **)
{
    shapes::Box<int> box;
    box.fill(n * 20000);
    return box.order();
}
"""
HASH_RS = """\
use std::collections::HashMap;
mod inner {
    #[inline(always)]
    pub fn cube(x: f64) -> f64 { x * x * x / (x + 1.0) }
}
struct Shape<T> { v: T }
trait Area { fn area(&self, n: u64) -> f64; }
impl Area for Shape<f64> {
    #[inline(never)]
    fn area(&self, n: u64) -> f64 { (0..n).map(|i| inner::cube(i as f64 + self.v)).sum() }
}
#[inline(never)]
fn hash(n: u64) -> u64 {
    let mut m: HashMap<u64, u64> = HashMap::new();
    for i in 0..n { *m.entry(i % 1000).or_insert(0) += i; }
    m.values().sum()
}
fn main() { println!("{} {}", Shape { v: 2.0 }.area(1000), hash(1000)); }
"""
WORK_GO = """\
package main

import "sort"

func cube(x float64) float64 { return x * x * x / (x + 1) }

//go:noinline
func work(n int) float64 {
	sum := 0.0
	for i := 0; i < n; i++ {
		sum += cube(float64(i))
	}
	return sum
}

//go:noinline
func order(n int) int {
	v := make([]int, n)
	for i := range v {
		v[i] = (i * 7919) % 10007
	}
	sort.Ints(v)
	return v[n/2]
}

func main() {
	println(work(1000), order(1000))
}
"""


@dataclass(frozen=True)
class Language:
    """A program: its sources, how it is compiled, parts of the symbols that are sampled (the last one calls)."""

    sources: dict[str, str]
    compiler: tuple[str, ...]
    symbols: tuple[str, ...]
    files: tuple[str, ...]


C_FILES = {"twice.h": TWICE_H, "first.c": FIRST_C, "second.c": SECOND_C}
LANGUAGES = {
    "C": Language(C_FILES, ("gcc", "-g", "-O2", "first.c", "second.c"), ("first", "work", "main"),
                  ("first.c", "second.c")),
    "C++": Language({"sort.cc": SORT_CC}, ("g++", "-g", "-O2", "sort.cc"), ("4fillEi", "5orderEv", "main"),
                    ("sort.cc",)),
    "Rust": Language({"hash.rs": HASH_RS}, ("rustc", "-g", "-O", "hash.rs"), ("4area", "4hash4hash", "4hash4main"),
                     ("hash.rs",)),
    "plain C": Language({"plain.c": PLAIN_C}, ("gcc", "-g", "-O1", "plain.c"), ("first", "main"), ("plain.c",)),
    "Go": Language({"work.go": WORK_GO}, ("go", "build", "work.go"), ("main.work", "main.order", "main.main"),
                   ("work.go",)),
}


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory, programs: Path,
            need: Callable[[str, str], str]) -> Callable[..., Path]:
    """``program("Go")``: compiled once."""
    made: dict[tuple[str, ...], Path] = {}

    def compiled(name: str, *flags: str) -> Path:
        need("gcc", "gcc")
        if name == "C++":
            need("g++", "g++")
        if name == "Rust":
            need("rustc", "rustc")
        if name == "Go":
            need("go", "golang-go")
        if (name, *flags) not in made:
            folder, language = tmp_path_factory.mktemp("source"), LANGUAGES[name]
            for file, text in language.sources.items():
                (folder / file).write_text(text)
            subprocess.run([*language.compiler[:2], *language.compiler[2:-1], *flags, "-o", "prog",
                            language.compiler[-1]], cwd=folder, check=True, capture_output=True,
                           env=os.environ | go.environment(programs))
            made[name, *flags] = folder / "prog"
        return made[name, *flags]

    return compiled


def recorded(path: Path, program: Path, symbols: tuple[str, ...], step: int = 1) -> Path:
    """Stacks of two frames: every so many bytes of a function, called by one in the last of ``symbols``."""
    path.mkdir()
    chance = random.Random(len(symbols) * 1009)
    recorder = Recorder.create(path, HEADER)
    with open_object(str(program)) as elf:
        base = 0 if elf.loads[0].vaddr else BASE
        for load in elf.loads:
            begin = load.vaddr & ~4095
            modes = load.flags & 2 | (load.flags & 1) << 2 | (load.flags & 4) >> 2
            recorder.segment_mapped(START_NS, base + begin, -(-(load.vaddr % 4096 + load.memory_size) // 4096) * 4096,
                                    load.file_offset & ~4095, os.fsencode(program), modes)
        table = elf.symbols()
        ranges = [next((base + int(table.value[i]), int(table.size[i])) for i in range(len(table))
                       if wanted.encode() in table.name(i) and int(table.size[i])) for wanted in symbols]
    stacks = [[begin + at, ranges[-1][0] + chance.randrange(1, ranges[-1][1])]
              for begin, size in ranges[:-1] for at in range(0, size, step)]
    stacks += [[ranges[-1][0] + at] for at in range(0, ranges[-1][1], step)]
    depth = max(map(len, stacks))
    uids = recorder.frames.intern(np.array([[*s, *[0] * (depth - len(s))] for s in stacks], np.uint64),
                                  np.array([len(s) for s in stacks], np.int64))
    n = len(stacks)
    recorder.clock(np.full(n, 4711, np.int64), np.zeros(n, np.int32), START_NS + np.arange(n, dtype=np.int64) * 1000,
                   uids.astype(np.int64), np.zeros(n, np.int32),
                   np.array([chance.randrange(1, 14) for _ in range(n)], np.int32))
    recorder.close(START_NS + 5_000_000_000)
    return path


@pytest.fixture
def documents(capsys: pytest.CaptureFixture[str]) -> Callable[..., list[dict[str, Any]]]:
    """What ``er_print`` prints, as JSON, in ticks."""
    def run(*arguments: str | Path) -> list[dict[str, Any]]:
        capsys.readouterr()
        assert command.run(["-printmode", "json", *map(str, arguments)]) == 0
        captured = capsys.readouterr()
        assert captured.err == ""
        return [json.loads(line) for line in captured.out.splitlines()]

    return run


def ticks(row: dict[str, Any], key: str) -> int:
    return round(row[key] * 1e6 / INTERVAL_US)


def sums(rows: list[dict[str, Any]]) -> tuple[int, int]:
    return sum(ticks(row, "e.totalcpu") for row in rows), sum(ticks(row, "i.totalcpu") for row in rows)


@pytest.mark.parametrize("inlines", ["off", "on"])
@pytest.mark.parametrize("name", LANGUAGES)
def test_lines_and_instructions_add_up_to_the_functions(name: str, inlines: str, program: Callable[..., Path],
                                                        tmp_path: Path, documents: Callable[..., Any]) -> None:
    language = LANGUAGES[name]
    path = recorded(tmp_path / "a.1.er", program(name), language.symbols)
    table, lines = documents("-functions", "-lines", path)
    functions = {row["name"]: row for row in table["rows"]}
    total = ticks(functions.pop("<Total>"), "e.totalcpu")
    assert len(functions) == len(language.symbols)
    for function, row in functions.items():
        expected = ticks(row, "e.totalcpu"), ticks(row, "i.totalcpu")
        own = [line for line in lines["rows"]
               if line["name"].startswith((f"{function}, line ", f"<Function: {function}, "))]
        assert sums(own) == expected
        code = documents("-inlines", inlines, "-disasm", function, path)[0]
        assert sums([line for line in code["rows"] if line["kind"] == "code"]) == expected
    shown = [documents("-inlines", inlines, "-source", file, path)[0] for file in language.files]
    rows = [row for one in shown for row in one["rows"]]
    assert sums(rows)[0] == total
    assert sum(ticks(row, "e.totalcpu") > 0 for row in rows if row["kind"] == "line") >= 5
    for one, file in zip(shown, language.files, strict=True):
        text = language.sources[file].expandtabs(8).splitlines()
        assert [row["name"] for row in one["rows"] if row["kind"] == "line"] == text


def test_inlined_code_belongs_to_the_lines_of_its_header(program: Callable[..., Path], tmp_path: Path,
                                                         documents: Callable[..., Any]) -> None:
    path = recorded(tmp_path / "a.1.er", program("C"), LANGUAGES["C"].symbols)
    header, first, second = documents("-source", "twice.h", "-source", "first.c", "-source", "second.c", path)
    elsewhere = [row for one in (first, second) for row in one["rows"] if "from source file twice.h" in row["name"]]
    assert sums(header["rows"])[0] == sums(elsewhere)[0] > 0
    assert {row["line"] for row in header["rows"] if row["e.totalcpu"]} <= {2, 3, 4}


# -- the code of a function on the page of er_html


def code_of(path: Path) -> dict[str, dict[str, Any]]:
    """By function what the page has of its code: ``source`` and ``disasm``, or None."""
    text, problems = er_html.made([str(path)], n_code=50)
    assert problems == []
    packed = re.findall(r'id="data" nonce="[^"]*">([^<]*)<', text)[0]
    head = zlib.decompress(base64.b64decode(packed)).partition(b"\n")[0]
    return {one["name"]: one for one in json.loads(head)["code"]}


def figures(listing: dict[str, Any]) -> list[tuple[int, int]]:
    """Of each row its exclusive and inclusive time in microseconds; nothing where there is no code."""
    own, whole = (column["values"] for column in listing["columns"] if "values" in column)
    return [(e, i) if has_code else (0, 0) for e, i, has_code in zip(own, whole, listing["has_code"], strict=True)]


def added(rows: list[tuple[int, int]]) -> tuple[int, int]:
    return sum(own for own, _ in rows), sum(whole for _, whole in rows)


def by_line(listing: dict[str, Any]) -> dict[tuple[str, int], tuple[int, int]]:
    """By base name of the file and number of the line what its rows have together; ("", 0): those without a line."""
    own_file = listing["titles"][0].rsplit("/", 1)[-1]
    origins = listing["origins"] or [""] * len(listing["kinds"])
    file, found = own_file, {}
    for kind, number, origin, text, row in zip(listing["kinds"], listing["numbers"], origins,
                                               listing["columns"][-1]["texts"], figures(listing), strict=True):
        if kind == "function":
            below = re.findall(r"inlined from (.*?)(?: \(the file is not found\))?$", text) or [own_file]
            file = below[0].rsplit("/", 1)[-1]
        where = (origin.split(":")[0] if origin else file, number) if number else ("", 0)
        found[where] = added([found.get(where, (0, 0)), row])
    return {where: row for where, row in found.items() if row != (0, 0)}


def lines_printed(rows: list[dict[str, Any]], function: str) -> dict[tuple[str, int], tuple[int, int]]:
    """The same of a function's rows of ``er_print -lines``."""
    found: dict[tuple[str, int], tuple[int, int]] = {}
    for row in rows:
        where = "", 0
        if row["name"].startswith(f"{function}, line "):
            number, file = re.findall(r', line (\d+) in "(.*)"$', row["name"])[0]
            where = file, int(number)
        elif row["name"] != f"<Function: {function}, instructions without line numbers>":
            continue
        value = round(row["e.totalcpu"] * 1e6), round(row["i.totalcpu"] * 1e6)
        found[where] = added([found.get(where, (0, 0)), value])
    return found


@pytest.mark.parametrize("name", LANGUAGES)
def test_the_code_of_a_function_has_all_of_its_time(name: str, program: Callable[..., Path], tmp_path: Path,
                                                    documents: Callable[..., Any]) -> None:
    """Wherever its lines are: each has the figures of ``er_print -lines``, and all together those of the function."""
    path = recorded(tmp_path / "a.1.er", program(name), LANGUAGES[name].symbols)
    functions, lines = documents("-functions", "-lines", path)
    code = code_of(path)
    assert len(code) == len(LANGUAGES[name].symbols)
    for row in functions["rows"][1:]:
        expected = lines_printed(lines["rows"], row["name"])
        for listing in (code[row["name"]]["source"], code[row["name"]]["disasm"]):
            assert by_line(listing) == expected
            assert added(figures(listing)) == (round(row["e.totalcpu"] * 1e6), round(row["i.totalcpu"] * 1e6))


def test_inlined_code_stands_below_its_file(program: Callable[..., Path], tmp_path: Path) -> None:
    """The text of its lines too; instructions tell file, function and line."""
    code = code_of(recorded(tmp_path / "a.1.er", program("C"), LANGUAGES["C"].symbols))["first"]
    rows = list(zip(code["source"]["kinds"], code["source"]["numbers"], code["source"]["columns"][-1]["texts"],
                    strict=True))
    heading = rows.index(("function", 0, "twice, inlined from twice.h"))
    assert rows.index(("function", 0, "<Function: first>")) < heading
    assert [(number, text) for _, number, text in rows[heading + 1:]] == list(enumerate(TWICE_H.splitlines(), 1))
    assert ("line", 7, "        sum += twice(i) + i / (n | 1);") in rows[:heading]
    below = {(origin, number) for kind, origin, number in zip(
        code["disasm"]["kinds"], code["disasm"]["origins"], code["disasm"]["numbers"], strict=True) if kind == "code"}
    assert {("twice.h: twice", 4), ("", 7)} <= below
    shown = {(number, text) for kind, number, text in zip(
        code["disasm"]["kinds"], code["disasm"]["numbers"], code["disasm"]["columns"][-1]["texts"], strict=True)
        if kind == "line"}
    assert (4, "    return m / (n | 1);") in shown


def test_code_inlined_within_a_file_has_a_heading_of_its_own(program: Callable[..., Path], tmp_path: Path) -> None:
    code = code_of(recorded(tmp_path / "a.1.er", program("Go"), LANGUAGES["Go"].symbols))["main.work"]["source"]
    texts = code["columns"][-1]["texts"]
    heading = texts.index("main.cube, inlined from work.go")
    assert code["kinds"][heading] == "function"
    at = texts.index("func cube(x float64) float64 { return x * x * x / (x + 1) }", heading)
    assert figures(code)[at] > (0, 0)


def test_of_a_long_function_what_has_time_is_shown(tmp_path: Path, need: Callable[[str, str], str]) -> None:
    lines = [f"    n = n * {i} + (n >> {i % 7});" for i in range(3, 2003)]
    (tmp_path / "long.c").write_text("\n".join([
        "__attribute__((noinline)) unsigned far(unsigned n)", "{", *lines, "    return n;", "}",
        "int main(int n, char **v) { (void)v; return far(n) & 1; }", ""]))
    subprocess.run([need("gcc", "gcc"), "-g", "-O0", "-o", "long", "long.c"], cwd=tmp_path, check=True)
    path = recorded(tmp_path / "a.1.er", tmp_path / "long", ("far", "main"), step=5003)
    code = code_of(path)["far"]
    for kind in ("source", "disasm"):
        listing = code[kind]
        with_time = [row for row in figures(listing) if row != (0, 0)]
        assert 4 < len(with_time) < 20
        assert len(listing["kinds"]) < 600
        assert listing["kinds"].count("gap") >= len(with_time) - 1
        assert added(with_time)[0] == added(figures(code["source"]))[0] > 0
    gap = code["source"]["columns"][-1]["texts"][code["source"]["kinds"].index("gap")]
    assert re.fullmatch(r"lines \d+ to \d+: no time", gap)


def without_quirks(line: str) -> str:
    """gprofng has no shares here, leaves tabs as they are, and says where things are in another way."""
    line = re.sub(r"^(Source file|Object file|Load Object): .*", r"\1", line)
    line = line.replace("\t", " " * 8)
    return re.sub(r"(\d\.\d{3}|0\.   ) +(\d+\.\d\d|0\.  )", r"\1", line).rstrip()


def test_source_is_laid_out_as_gprofng_does(program: Callable[..., Path], tmp_path: Path,
                                            gprofng: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    path = recorded(tmp_path / "a.1.er", program("plain C", "-gdwarf-4", "-O0"), ("first", "main"))
    expected = gprofng("-source", "first", experiment=path).text.splitlines()
    assert command.run(["-source", "first", str(path)]) == 0
    found = capsys.readouterr().out.splitlines()
    assert [without_quirks(line) for line in found] == [without_quirks(line) for line in expected]
    assert sum(line.startswith("## ") for line in found) > 1


def test_instructions_are_those_of_objdump(program: Callable[..., Path], tmp_path: Path,
                                           documents: Callable[..., Any], need: Callable[[str, str], str]) -> None:
    built = program("C", "-gdwarf-4", "-O0")
    path = recorded(tmp_path / "a.1.er", built, LANGUAGES["C"].symbols)
    listed = subprocess.run([need("objdump", "binutils"), "-d", "--no-show-raw-insn", "--disassemble=first", built],
                            capture_output=True, text=True, check=True).stdout
    expected = [int(vaddr, 16) for vaddr in re.findall(r"(?m)^ +([0-9a-f]+):\t", listed)]
    found = [row["name"] for row in documents("-disasm", "first", path)[0]["rows"] if row["kind"] == "code"]
    assert [int(re.findall(r"\] +([0-9a-f]+):", text)[0], 16) for text in found] == expected
    assert re.fullmatch(r"\[ *4\] +[0-9a-f]+:  pushq  %rbp", found[0])
    assert any("<-- twice twice.h:3" in text for text in found)
    with_bytes = documents("-dcc", "hex:nosrc", "-disasm", "first", path)[0]["rows"]
    assert {row["kind"] for row in with_bytes} == {"function", "code"}
    assert "  55    pushq  %rbp" in with_bytes[1]["name"]


def test_thresholds_mark_what_is_hot(program: Callable[..., Path], tmp_path: Path,
                                     documents: Callable[..., Any]) -> None:
    path = recorded(tmp_path / "a.1.er", program("C"), LANGUAGES["C"].symbols)
    few, many, _, none = documents("-sthresh", "100", "-source", "first.c", "-scc", "all:t=1", "-source", "first.c",
                                   "-metrics", "e.sleep", "-source", "first.c", path)
    hot = [sum(row["role"] == "hot" for row in one["rows"]) for one in (few, many, none)]
    assert 1 <= hot[0] <= 2 < hot[1]
    assert hot[2] == 0


def test_what_is_not_clear_is_asked(program: Callable[..., Path], tmp_path: Path, documents: Callable[..., Any],
                                    capsys: pytest.CaptureFixture[str]) -> None:
    built = program("C")
    path = recorded(tmp_path / "a.1.er", built, LANGUAGES["C"].symbols)
    for arguments, text in ((("-source", "nowhere"), "No function or file with given name `nowhere' found"),
                            (("-disasm", "<Total>"), "is not a real function"),
                            (("-sthresh", "101"), "0 to 100"), (("-dcc", "bogus"), "'bogus' is not known"),
                            (("-scc", "p"), "may be parallel or pipe"), (("-source",), "needs an argument")):
        with pytest.raises(UsageError, match=re.escape(text)):
            command.run([*arguments, str(path)] if len(arguments) > 1 else [str(path), *arguments])
    source = built.parent / "first.c"
    text = source.read_text()
    try:
        os.utime(source, (HEADER.start_unix + 100, HEADER.start_unix + 100))
        assert "is newer than the experiment data" in documents("-source", "first", path)[0]["notes"][0]
        source.rename(tmp_path / "first.c")
        gone = documents("-source", "first", path)[0]
        assert "not readable" in gone["notes"][0]
        assert {row["name"] for row in gone["rows"] if row["kind"] == "line"} == {""}
        there = documents("-pathmap", source.parent, tmp_path, "-source", "first", path)[-1]
        also = documents("-addpath", tmp_path, "-source", "first", path)[-1]
        assert [row["name"] for row in there["rows"] if row["line"]] == text.splitlines()
        assert there["rows"] == also["rows"]
    finally:
        source.write_text(text)


@pytest.mark.parametrize("suffix", ["tar", "tar.xz"])
def test_packed_symbols_are_all_that_is_needed_elsewhere(suffix: str, program: Callable[..., Path], tmp_path: Path,
                                                         documents: Callable[..., Any]) -> None:
    """Program, debug file and source are gone: the same names, lines and source; nothing is left in the temporary."""
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    for name, text in C_FILES.items():
        (here / name).write_text(text)
    subprocess.run(["gcc", "-g", "-O2", "-Wl,--build-id", "-o", "prog", "first.c", "second.c"], cwd=here, check=True)
    built = here / "prog"
    path = recorded(here / "a.1.er", built, LANGUAGES["C"].symbols)
    subprocess.run(["objcopy", "--only-keep-debug", built, here / "prog.debug"], check=True)
    subprocess.run(["objcopy", "--strip-all", f"--add-gnu-debuglink={here}/prog.debug", built], check=True)
    tables = ("-functions", "-lines", "-pcs", "-calltree", "-source", "first", "-disasm", "work", "-source", "twice.h")
    expected = documents(*tables, path)
    told = documents("-symbols", here / f"kept.{suffix}", path)[0]["lines"][0]
    assert re.search(r"kept\.tar(\.xz)?: 5 files, \d+ bytes", told)
    for name in ("a.1.er", f"kept.{suffix}"):
        (here / name).rename(there / name)
    for file in here.iterdir():
        file.unlink()
    here.rmdir()
    assert documents("-functions", there / "a.1.er")[0]["rows"] != expected[0]["rows"]
    found = documents("-addpath", there / f"kept.{suffix}", *tables, there / "a.1.er")[1:]
    assert [one["rows"] for one in found] == [one["rows"] for one in expected]
    subprocess.run(["tar", "-xf", f"kept.{suffix}", "-C", "a.1.er"], cwd=there, check=True)
    assert [one["rows"] for one in documents(*tables, there / "a.1.er")] == [one["rows"] for one in expected]


def test_a_file_without_symbols_is_told(program: Callable[..., Path], tmp_path: Path) -> None:
    path = recorded(tmp_path / "a.1.er", program("C"), LANGUAGES["C"].symbols)
    text = tmp_path / "text.tar"
    text.write_text("nothing")
    subprocess.run(["tar", "-cf", tmp_path / "other.tar", "-C", tmp_path, "text.tar"], check=True)
    for name, what in (("text.tar", "cannot be read"), ("other.tar", "there are no symbols in it")):
        with pytest.raises(ExperimentError, match=what):
            command.run(["-addpath", str(tmp_path / name), "-functions", str(path)])
    with pytest.raises(ExperimentError, match="cannot be written"):
        command.run(["-symbols", str(tmp_path / "nowhere/a.tar"), str(path)])


def test_lines_behind_the_end_of_a_source_are_those_with_code_alone(tmp_path: Path, need: Callable[[str, str], str],
                                                                     documents: Callable[..., Any]) -> None:
    """As of a file that is made, and says that its lines are those of another one."""
    program = tmp_path / "prog"
    program.with_suffix(".c").write_text("int main(void)\n{\n    int n = 0;\n#line 300007\n    return n * 7;\n}\n")
    subprocess.run([need("gcc", "gcc"), "-g", "-O0", "-o", program, program.with_suffix(".c")], check=True)
    path = recorded(tmp_path / "a.1.er", program, ("main",))
    rows = documents("-source", "main", path)[0]["rows"]
    lines = [row for row in rows if row["kind"] == "line"]
    assert [row["line"] for row in lines] == [1, 2, 3, 4, 5, 6, 300007, 300008]
    assert [row["name"] for row in lines[-2:]] == ["", ""]
    assert ticks(lines[-2], "e.totalcpu") > 0
    assert sums(lines) == sums(documents("-functions", path)[0]["rows"][:1])


def test_a_folder_whose_name_is_no_text_has_sources(tmp_path: Path, need: Callable[[str, str], str],
                                                    documents: Callable[..., Any]) -> None:
    """Of inlined functions, too."""
    folder = tmp_path / os.fsdecode(b"caf\xe9\x1b[31m")
    folder.mkdir()
    (folder / "twice.h").write_text("static inline __attribute__((always_inline)) int twice(int n)\n"
                                    "{ return n * 2 + n / 7; }\n")
    (folder / "prog.c").write_text('#include "twice.h"\nint main(int n, char **v)\n{\n    return twice(n) - !v;\n}\n')
    subprocess.run([need("gcc", "gcc"), "-g", "-O0", "-o", folder / "prog", folder / "prog.c"], check=True)
    path = recorded(tmp_path / "a.1.er", folder / "prog", ("main",))
    total = sums(documents("-functions", path)[0]["rows"][:1])
    of_files = [documents("-source", name, path)[0] for name in ("prog.c", "twice.h")]
    assert [one["titles"][0] for one in of_files] == [
        f"Source file: {tmp_path}/caf\\xe9\\x1b[31m/{name}" for name in ("prog.c", "twice.h")]
    assert of_files[0]["titles"][2] == f"Load Object: {tmp_path}/caf\\xe9\\x1b[31m/prog"
    texts = [[row["name"] for row in one["rows"] if row["kind"] == "line"] for one in of_files]
    assert [text[-1] for text in texts] == ["}", "{ return n * 2 + n / 7; }"]
    rows = [row for one in of_files for row in one["rows"] if row["kind"] == "line"]
    assert sum(ticks(row, "e.totalcpu") for row in rows) == total[0] > 0
    (folder / "prog.c").unlink()
    assert documents("-disasm", "main", path)[0]["notes"][0].startswith(
        f"Source file `{tmp_path}/caf\\xe9\\x1b[31m/prog.c' not readable")


def test_places_are_told_as_gprofng_tells_them(program: Callable[..., Path], tmp_path: Path,
                                               gprofng: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    path = recorded(tmp_path / "a.1.er", program("plain C"), ("first", "main"))
    arguments = ("-setpath", "/tmp:$expts", "-addpath", "/x", "-pathmap", "/a", "/b", "-pathmap", "/c/", "/d")
    assert command.run([*arguments, str(path)]) == 0
    assert capsys.readouterr().out == gprofng(*arguments, experiment=path).text.replace("/c/'", "/c'")


@pytest.mark.parametrize("what", ["lsummary", "psummary"])
def test_summaries_have_the_figures_of_gprofng(what: str, program: Callable[..., Path], tmp_path: Path,
                                               gprofng: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    path = recorded(tmp_path / "a.1.er", program("plain C", "-gdwarf-4", "-O0"), ("first", "main"))
    assert command.run([f"-{what}", str(path)]) == 0
    texts = [capsys.readouterr().out, gprofng(f"-{what}", experiment=path).text]
    ours, theirs = ({block.split("\n")[0]: re.findall(r"(\S+ \S.* Time): +(\S+)", block)
                     for block in text.split("\n\n")[1:] if "Time:" in block} for text in texts)
    assert ours == theirs
    assert len(ours) > 8
