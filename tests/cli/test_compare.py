"""Experiments side by side: every figure is gprofng's, and beside each difference stands its interval.

Two builds of a program with the functions at other addresses, one of which only the second has, and experiments with
drawn stacks of both.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import interpreted
import numpy as np
import pytest

from collector.cli import er_print
from collector.errors import UsageError
from collector.experiment.dyntext import Text
from collector.experiment.recorder import Header, Recorder
from collector.report.significance import RUN_TO_RUN

START_NS = 7_001_000_000_013
BASE = 0x5555_5555_4000
INTERVAL_US = 10_007
HEADER = Header(
    hostname="h", os="Linux 6.1.0", arch="x86_64", page_size=4096, n_pages=1, cpus=[1], pid=71, ppid=70, pgrp=71,
    sid=70, cwd=b"/", arguments=b"prog", wsize=64, interval_ns=INTERVAL_US * 1000, sample_period_s=1, start_ns=START_NS,
    start_unix=2_100_000_003, collector="collect")
FIRST = "int alpha(int n) { return n * 3; }\nint beta(int n) { return n - 3; }\nint main(void) { return 0; }\n"
AGAIN = "int extra(int n) { return n ^ 7; }\nint more(int n) { return n - 3; }\n" + FIRST
INTERVAL = re.compile(r"[+-]\d+\.\d{3} \.\. [+-]\d+\.\d{3} [ ~] {2}")


@pytest.fixture(scope="module")
def compiled() -> dict[tuple[str, ...], bytes]:
    """Programs by their source's name, its text, and the flags."""
    return {}


@pytest.fixture
def build(tmp_path: Path, need: Callable[[str, str], str],
          compiled: dict[tuple[str, ...], bytes]) -> Callable[..., Path]:
    """``build("one/prog", source, *flags)``; one that says where its source lies is not taken from another place."""
    def program(name: str, source: str, *flags: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.with_suffix(".c").write_text(source)
        key = (path.name, source, *flags)
        if key in compiled:
            path.write_bytes(compiled[key])
            path.chmod(0o755)
            return path
        subprocess.run([need("gcc", "gcc"), "-O0", *flags, "-o", path, path.with_suffix(".c")], check=True)
        if "-g" not in flags:
            compiled[key] = path.read_bytes()
        return path

    return program


def record(path: Path, program: Path, seed: int, n: int = 97, at_once: int = 1, named_by: Path | None = None,
           **functions: int) -> Path:
    """An experiment of drawn stacks; or with so many ticks of each function, of ``at_once`` threads at one time.

    ``named_by``: the same program with symbols.
    """
    symbols = {words[2]: int(words[0], 16) for line in subprocess.run(
        ["nm", named_by or program], capture_output=True, text=True, check=True).stdout.splitlines()
        if len(words := line.split()) == 3 and words[1] == "T" and not words[2].startswith("_")}
    chance = random.Random(seed)
    drawn = [[BASE + symbols[chance.choice(sorted(symbols))] + chance.randrange(9) for _ in range(1 + i % 3)]
             for i in range(n)]
    stacks = [[BASE + symbols[name] + 2, BASE + symbols["main"] + 3, 0] for name, count in functions.items()
              for _ in range(count)] or [[*stack, 0, 0][:3] for stack in drawn]
    depths = [2 if functions else 1 + i % 3 for i in range(len(stacks))]
    path.mkdir()
    recorder = Recorder.create(path, replace(HEADER, arguments=os.fsencode(program)))
    recorder.segment_mapped(START_NS, BASE + 0x1000, 0x1000, 0x1000, os.fsencode(program), 5)
    uids = recorder.frames.intern(np.array(stacks, np.uint64), np.array(depths))
    rows = np.arange(len(stacks))
    recorder.clock(71 + rows % 2, rows % 2, START_NS + 10**8 + rows // at_once * 10_007_000, uids.astype(np.int64),
                   rows * 0 if functions else rows % 10, rows * 0 + 1 if functions else 1 + rows % 3)
    recorder.close(START_NS + 30 * 10**9)
    return path


@pytest.fixture
def pair(tmp_path: Path, build: Callable[..., Path]) -> list[str]:
    """Experiments of two builds."""
    return [str(record(tmp_path / f"{name}.er", build(f"{name}/prog", source), seed))
            for seed, (name, source) in enumerate({"first": FIRST, "again": AGAIN}.items())]


def ours(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What er_print prints."""
    capsys.readouterr()
    assert er_print.run([*arguments]) == 0
    return capsys.readouterr().out


def theirs(*arguments: str) -> str:
    """What the reference reader prints."""
    return subprocess.run(["gprofng", "display", "text", *arguments], capture_output=True, text=True, check=True).stdout


def without_intervals(text: str) -> str:
    """A table, block by block, without the columns that the reference reader has not."""
    blocks = []
    for block in text.split("\n\n"):
        places = [(found[0].start(), found[-1].end()) for line in block.splitlines()
                  if (found := list(INTERVAL.finditer(line)))]
        begin, end = places[0] if places else (0, 0)
        assert all(place == (begin, end) for place in places)
        blocks.append("\n".join((line[:begin] + line[end:]).rstrip() for line in block.splitlines()))
    return "\n\n".join(blocks)


def rows(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, dict[str, Any]]:
    """The rows of a table by name."""
    lines = ours(capsys, "-printmode", "json", *arguments).splitlines()
    return {row["name"]: row for row in json.loads(lines[-1])["rows"]}


@pytest.mark.parametrize("form", ["on", "delta", "ratio", "off"])
@pytest.mark.parametrize("commands", [
    ("-functions",), ("-callers-callees",), ("-csingle", "beta"), ("-pcs",),
    ("-metrics", "e.%user:i.total:e.sleep:size:address:name", "-functions", "-sort", "i.total", "-functions"),
    ("-sort", "name", "-limit", "3", "-functions"), ("-filters", "THRID==1", "-functions")], ids="".join)
def test_figures_are_those_of_gprofng(form: str, commands: tuple[str, ...], pair: list[str],
                                      need: Callable[[str, str], str], capsys: pytest.CaptureFixture[str]) -> None:
    need("gprofng", "binutils")
    settings = r"(Print limit|Current metrics).*\n"  # told otherwise by the other reader: a metric for each group
    found = re.sub(settings, "", without_intervals(ours(capsys, "-compare", form, *commands, *pair)))
    expected = re.sub(settings, "", theirs("-compare", form, *commands, *pair))
    for one, other in zip_longest(found.splitlines(), expected.splitlines(), fillvalue=""):
        assert one == other.rstrip(), expected
    assert found.count("first.er") == (0 if form == "off" else found.count("again.er")) or form == "off"


def test_groups_are_compared_by_what_is_in_them(pair: list[str], tmp_path: Path, build: Callable[..., Path],
                                                need: Callable[[str, str], str],
                                                capsys: pytest.CaptureFixture[str]) -> None:
    need("gprofng", "binutils")
    more = record(tmp_path / "more.er", tmp_path / "first" / "prog", 5)
    group = tmp_path / "both.erg"
    group.write_text(f"#analyzer experiment group\n{pair[0]}\n{more}\n")
    words = ["-compare", "delta", "-functions", str(group), pair[0]]
    assert without_intervals(ours(capsys, *words)) == theirs(*words)


def test_programs_of_different_names_are_compared(tmp_path: Path, build: Callable[..., Path],
                                                  need: Callable[[str, str], str],
                                                  capsys: pytest.CaptureFixture[str]) -> None:
    need("gprofng", "binutils")
    paths = [str(record(tmp_path / f"{name}.er", build(name, source), 3))
             for name, source in {"one": FIRST, "two": AGAIN}.items()]
    words = ["-compare", "on", "-functions", *paths]
    assert without_intervals(ours(capsys, *words)) == theirs(*words)


def test_the_tree_is_compared_too(pair: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    functions = rows(capsys, "-compare", "on", "-functions", *pair)
    tree = json.loads(ours(capsys, "-printmode", "json", "-compare", "on", "-calltree", *pair))["rows"]
    for number in (1, 2):
        below = sum(row[f"a.totalcpu@{number}"] for row in tree if row["depth"] == 1)
        assert below == pytest.approx(functions["<Total>"][f"e.totalcpu@{number}"])


@pytest.mark.parametrize("mode", ["user", "expert", "machine"])
def test_functions_of_an_interpreter_are_compared_as_they_are_seen(mode: str, tmp_path: Path,
                                                                   need: Callable[[str, str], str],
                                                                   capsys: pytest.CaptureFixture[str]) -> None:
    paths = [str(interpreted.recorded(tmp_path / f"{more}.er", need("gcc", "gcc"), more)) for more in (0, 31)]
    words = ["-viewmode", mode, "-metrics", "e.user:i.user:name"]
    found = rows(capsys, *words, "-compare", "on", "-functions", *paths)
    for number, path in enumerate(paths, 1):
        alone = rows(capsys, *words, "-functions", path)
        assert {name: (row[f"e.user@{number}"], row[f"i.user@{number}"]) for name, row in found.items()} == {
            name: (row["e.user"], row["i.user"]) for name, row in alone.items()}
    assert ("slow" in found and found["slow"]["e.user@1"] > 0) == (mode == "user")


def test_a_slower_function_is_marked_and_others_are_not(tmp_path: Path, build: Callable[..., Path],
                                                        capsys: pytest.CaptureFixture[str]) -> None:
    program = build("prog", FIRST)
    before, after = (str(record(tmp_path / f"{name}.er", program, 0, alpha=n, beta=2000, main=m))
                     for name, n, m in (("before", 2000, 5), ("after", 2500, 8)))
    found = rows(capsys, "-compare", "delta", "-metrics", "e.user", "-functions", before, after)
    assert {name for name, row in found.items() if row["e.user@2.difference.significant"]} == {"alpha", "<Total>"}
    alpha = found["alpha"]
    error = np.sqrt(2000 + 2500 + 2 + RUN_TO_RUN ** 2 * (2000 ** 2 + 2500 ** 2))
    assert [alpha[f"e.user@2.difference.{end}"] / (INTERVAL_US / 1e6) for end in ("low", "high")] == pytest.approx(
        [500 - 1.96 * error, 500 + 1.96 * error], rel=1e-4)
    text = ours(capsys, "-compare", "delta", "-metrics", "e.user", "-functions", before, after)
    assert re.search(r"^20.014 +\+5.003 +\+\d.\d{3} .. \+\d.\d{3} {5}alpha$", text, re.MULTILINE)
    assert re.search(r"^20.014 +\+0. +-\d.\d{3} .. \+\d.\d{3} ~ {3}beta$", text, re.MULTILINE)
    line = next(line for line in ours(capsys, "-printmode", "csv", "-compare", "on", "-metrics", "e.user", "-functions",
                                      before, after).splitlines() if line.endswith("alpha"))
    assert line.split(",")[:2] == ["20.014", "25.0175"]
    assert line.split(",")[-2] == "True"


def test_lines_of_several_builds_are_one(tmp_path: Path, build: Callable[..., Path],
                                         capsys: pytest.CaptureFixture[str]) -> None:
    paths = [str(record(tmp_path / f"{name}.er", build(f"{name}/prog", source, "-g"), 3, alpha=n))
             for name, source, n in (("first", FIRST, 4), ("again", FIRST + "int extra(void) { return 3; }\n", 7))]
    found = rows(capsys, "-compare", "on", "-lines", *paths)
    line = found['alpha, line 1 in "prog.c"']
    assert (line["e.totalcpu@1"], line["e.totalcpu@2"]) == (0.040028, 0.070049)


def test_latency_is_compared(pair: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    found = rows(capsys, "-compare", "on", "-metrics", "i.latency", "-functions", *pair)["<Total>"]
    assert found["i.latency@2.difference.low"] < found["i.latency@2"] - found["i.latency@1"]


def test_intervals_of_latency_are_made_of_pieces_of_latency(tmp_path: Path, build: Callable[..., Path],
                                                            capsys: pytest.CaptureFixture[str]) -> None:
    """Two threads ran all the time: each tick is half a tick of latency, and so are the pieces that were sampled."""
    program = build("prog", FIRST)
    paths = [str(record(tmp_path / f"{name}.er", program, 0, at_once=2, alpha=n, beta=400, main=6))
             for name, n in (("before", 400), ("after", 500))]
    alpha = rows(capsys, "-compare", "on", "-metrics", "e.latency", "-functions", *paths)["alpha"]
    error = np.sqrt((400 + 500) / 4 + 2 + RUN_TO_RUN ** 2 * (200 ** 2 + 250 ** 2))
    assert [alpha[f"e.latency@2.difference.{end}"] / (INTERVAL_US / 1e6) for end in ("low", "high")] == pytest.approx(
        [50 - 1.96 * error, 50 + 1.96 * error], rel=1e-3)


def test_functions_of_one_name_are_told_apart_by_their_order_in_the_object(
        tmp_path: Path, need: Callable[[str, str], str], capsys: pytest.CaptureFixture[str]) -> None:
    """Static functions of two files. In the other build they lie elsewhere, and the second one is met first."""
    paths = []
    for name, ticks, more in (("one", (4, 7), ""), ("two", (5, 9), "int extra(int n) { return n ^ 7; }\n")):
        (tmp_path / name).mkdir()
        sources = [tmp_path / name / f"{number}.c" for number in (1, 2)]
        for number, source in enumerate(sources, 1):
            source.write_text(more * (number == 1) + "static int __attribute__((used)) twin(int n) { return n * 3; }\n"
                              + "int main(void) { return 0; }\n" * (number == 1))
        program = tmp_path / name / "prog"
        subprocess.run([need("gcc", "gcc"), "-O0", "-o", program, *sources], check=True)
        paths.append(str(record_twins(tmp_path / f"{name}.er", program, ticks, is_turned=name == "two")))
    lines = ours(capsys, "-printmode", "json", "-compare", "on", "-metrics", "e.user", "-functions", *paths)
    found = [row for row in json.loads(lines.splitlines()[-1])["rows"] if row["name"] == "twin"]
    tick = INTERVAL_US / 1e6
    assert sorted((row["e.user@1"] / tick, row["e.user@2"] / tick) for row in found) == [
        pytest.approx((4, 5)), pytest.approx((7, 9))]


def record_twins(path: Path, program: Path, ticks: tuple[int, int], is_turned: bool) -> Path:
    """An experiment with so many ticks of each of the two functions called ``twin``, the lower one first."""
    names = subprocess.run(["nm", program], capture_output=True, text=True, check=True).stdout.splitlines()
    places = sorted(int(line.split()[0], 16) for line in names if line.endswith(" t twin"))
    pcs = [BASE + place + 2 for place, count in zip(places, ticks, strict=True) for _ in range(count)]
    path.mkdir()
    recorder = Recorder.create(path, replace(HEADER, arguments=os.fsencode(program)))
    recorder.segment_mapped(START_NS, BASE + 0x1000, 0x1000, 0x1000, os.fsencode(program), 5)
    uids = recorder.frames.intern(np.array(pcs[::-1] if is_turned else pcs, np.uint64)[:, None], np.ones(len(pcs), int))
    rows = np.arange(len(pcs))
    recorder.clock(71 + rows * 0, rows * 0, START_NS + 10**8 + rows * 10_007_000, uids.astype(np.int64), rows * 0,
                   rows * 0 + 1)
    recorder.close(START_NS + 30 * 10**9)
    return path


def test_functions_without_a_file_are_the_same_wherever_they_lie(tmp_path: Path,
                                                                  capsys: pytest.CaptureFixture[str]) -> None:
    """A runtime's lie at other addresses in each run: their source file and its line tell two of one name apart."""
    paths = []
    for name, base, ticks in (("one", 0x10000, (4, 7, 3)), ("two", 0x9000, (5, 9, 2))):
        paths.append(str(tmp_path / f"{name}.er"))
        Path(paths[-1]).mkdir()
        recorder = Recorder.create(Path(paths[-1]), HEADER)
        texts = [Text(b"c" * 0x100, source, ((0, line),)) for source, line in ((b"/a.py", 3), (b"/a.py", 71))]
        for place, text in enumerate([*texts, Text()] if name == "one" else [texts[1], texts[0], Text()]):
            recorder.code_mapped(START_NS, base + 0x1000 * place, 0x100, b"run" if place < 2 else b"stub", text)
        order = ticks if name == "one" else (ticks[1], ticks[0], ticks[2])
        pcs = [base + 0x1000 * place + 4 for place, count in enumerate(order) for _ in range(count)]
        uids = recorder.frames.intern(np.array(pcs, np.uint64)[:, None], np.ones(len(pcs), int))
        rows = np.arange(len(pcs))
        recorder.clock(71 + rows * 0, rows * 0, START_NS + 10**8 + rows * 10_007_000, uids.astype(np.int64), rows * 0,
                       rows * 0 + 1)
        recorder.close(START_NS + 30 * 10**9)
    lines = ours(capsys, "-printmode", "json", "-compare", "on", "-metrics", "e.user", "-functions", *paths)
    tick = INTERVAL_US / 1e6
    found = sorted((row["name"], round(row["e.user@1"] / tick), round(row["e.user@2"] / tick))
                   for row in json.loads(lines.splitlines()[-1])["rows"])
    assert found == [("<Total>", 14, 16), ("run", 4, 5), ("run", 7, 9), ("stub", 3, 2)]


def test_one_experiment_is_compared_with_nothing(pair: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    plain = ours(capsys, "-functions", pair[0])
    assert ours(capsys, "-compare", "on", "-functions", pair[0]) == plain
    assert ours(capsys, "-compare", "delta", "-compare", "off", "-functions", pair[0]) == plain


def test_an_experiment_may_be_compared_with_itself(pair: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    found = rows(capsys, "-compare", "ratio", "-functions", pair[0], pair[0])
    assert not any(row["e.totalcpu@2.difference.significant"] for row in found.values())
    assert all(row["e.totalcpu@1"] == row["e.totalcpu@2"] for row in found.values())


def test_each_run_is_weighed_once_not_once_for_every_run(
        tmp_path: Path, build: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    first = record(tmp_path / "0.er", build("first/prog", FIRST), 3)
    paths = [str(shutil.copytree(first, tmp_path / f"{number}.er")) for number in range(1, 9)]

    def n_sums(n_runs: int) -> int:
        """How often something is added up by place."""
        count = 0

        def see(_frame: object, event: str, called: object) -> None:
            nonlocal count
            count += event == "c_call" and getattr(called, "__qualname__", "") == "ufunc.at"

        before = sys.getprofile()
        sys.setprofile(see)
        try:
            ours(capsys, "-compare", "on", "-functions", *paths[:n_runs])
        finally:
            sys.setprofile(before)
        return count

    few, many = n_sums(4), n_sums(8)
    assert 0 < many <= 2 * few


def test_another_word_is_refused(pair: list[str]) -> None:
    with pytest.raises(UsageError, match="give on, off, delta or ratio"):
        er_print.run(["-compare", "some", "-functions", *pair])


def test_sizes_are_those_of_each_build(tmp_path: Path, build: Callable[..., Path],
                                       capsys: pytest.CaptureFixture[str]) -> None:
    """A function that has grown has its size in each column."""
    longer = FIRST.replace("return n - 3;", "return n - 3 + n * n * n;")
    paths = [str(record(tmp_path / f"{name}.er", build(f"{name}/prog", source), 3, beta=5))
             for name, source in (("first", FIRST), ("again", longer))]
    beta = rows(capsys, "-compare", "on", "-metrics", "e.user:size:name", "-functions", *paths)["beta"]
    assert 0 < beta["size@1"] < beta["size@2"]


def test_intervals_are_those_of_functions_that_depend_on_the_order_of_packets(
        tmp_path: Path, build: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    """Without symbols the reader's functions are holes, which are what was asked of them before."""
    named = build("named/prog", AGAIN)
    bare = build("bare/prog", AGAIN, "-s")
    pair = [str(record(tmp_path / f"{seed}.er", bare, seed, named_by=named)) for seed in (3, 4)]
    alone = rows(capsys, "-functions", *pair)
    found = rows(capsys, "-compare", "on", "-functions", *pair)
    assert found.keys() == alone.keys()
    text = ours(capsys, "-compare", "on", "-functions", *pair)
    assert len(INTERVAL.findall(text)) == 2 * len(found)
    assert without_intervals(text).count("<static>") == theirs("-compare", "on", "-functions", *pair).count("<static>")
