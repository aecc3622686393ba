"""Filters against a slow reference that knows one packet at a time, and against gprofng's reader."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.errors import ExpressionError, UsageError
from collector.experiment.reader import open_experiment
from collector.experiment.recorder import Header, Recorder, Usage
from collector.report.build import DataSet, load
from collector.report.compat import LEVELS
from collector.report.metrics import default_view
from collector.report.profile import total
from collector.report.query.evaluate import FUNCTION_BASE, Stacks, selected
from collector.report.query.language import (
    Binary,
    Choice,
    Has,
    Many,
    Member,
    Name,
    Named,
    Node,
    Number,
    Unary,
    parse,
)
from collector.report.query.selection import Selection
from collector.report.tables import Labels, object_rows

START_NS = 3_000_000_000_017
BASE = 0x55AA_0000_0000
N = 601
NAMES = ["main", "work", "leaf", "fib", "other"]
WORD = (1 << 64) - 1


class Made:
    """Facts made up: 97 packets, 11 stacks."""

    n = 97

    def __init__(self) -> None:
        chance = np.random.default_rng(7)
        self.columns = {"THRID": chance.integers(1, 4, self.n), "MSTATE": chance.integers(0, 10, self.n),
                        "CPUID": chance.integers(0, 3, self.n), "TSTAMP": chance.integers(0, 1 << 40, self.n)}
        self.rows = [chance.integers(0, 5, chance.integers(0, 6)).tolist() for _ in range(11)]
        offsets = np.cumsum([0, *map(len, self.rows)])
        self.stacks = Stacks(offsets, np.array([f for row in self.rows for f in row], np.int64),
                             chance.integers(0, 11, self.n))

    def number(self, name: str) -> Any:
        return self.columns.get(name)

    def is_known(self, name: str) -> bool:
        return name == "HSIZE"

    def functions(self, named: Named) -> Any:
        return np.array([i for i, name in enumerate(NAMES) if named.pattern.fullmatch(name)], np.int64)


MADE = Made()


# --- the reference: one packet at a time, in plain numbers ------------------------------------------


def slowly(node: Node, packet: int) -> Any:
    """A number, or a list of numbers (a set of functions is a frozenset)."""
    match node:
        case Number(value):
            return value
        case Name("STACK"):
            return [f + FUNCTION_BASE for f in MADE.rows[MADE.stacks.rows[packet]]]
        case Name("LEAF"):
            row = MADE.rows[MADE.stacks.rows[packet]]
            return row[0] + FUNCTION_BASE if row else 0
        case Name(name):
            return int(MADE.columns[name][packet]) if name in MADE.columns else 0
        case Named():
            return frozenset(int(f) + FUNCTION_BASE for f in MADE.functions(node))
        case Has(name):
            return int(name in ("STACK", "LEAF") or name in MADE.columns)
        case Many(items):
            return [slowly(item, packet) for item in items]
        case Unary(sign, operand):
            value = plain(slowly(operand, packet))
            return {"!": int(value == 0), "~": ~value & WORD, "-": -value & WORD}[sign]
        case Choice(condition, then, otherwise):
            return plain(slowly(then if plain(slowly(condition, packet)) else otherwise, packet))
        case Member(how, left, right):
            return int(is_member(how, slowly(left, packet), slowly(right, packet)))
        case Binary(sign, left, right):
            return calculated(sign, plain(slowly(left, packet)), plain(slowly(right, packet)))
    raise AssertionError(node)


def plain(value: Any) -> int:
    return value if isinstance(value, int) else 1


def calculated(sign: str, a: int, b: int) -> int:
    table: dict[str, Callable[[], int]] = {
        "||": lambda: bool(a or b), "&&": lambda: bool(a and b), "|": lambda: a | b, "^": lambda: a ^ b,
        "&": lambda: a & b, "==": lambda: a == b, "!=": lambda: a != b, "<": lambda: a < b, "<=": lambda: a <= b,
        ">": lambda: a > b, ">=": lambda: a >= b, "<<": lambda: a << b % 64, ">>": lambda: a >> b % 64,
        "+": lambda: a + b, "-": lambda: a - b, "*": lambda: a * b, "/": lambda: a // b if b else 0,
        "%": lambda: a % b if b else 0}
    return int(table[sign]()) & WORD


def is_member(how: str, left: Any, right: Any) -> bool:
    lefts: Sequence[Any] = left if isinstance(left, list) else sorted(left) if isinstance(left, frozenset) else [left]
    if how == "ORDERED":
        wanted = left if isinstance(left, list) else [left]
        rights = right if isinstance(right, list) else [right]
        return any(all(meets(one, rights[at + i]) for i, one in enumerate(wanted))
                   for at in range(len(rights) - len(wanted) + 1))
    flat = [one for each in (right if isinstance(right, list) else [right])
            for one in (each if isinstance(each, frozenset) else [each])]
    found = [any(meets(one, other) for other in flat) for one in lefts]
    return all(found) if how == "IN" else any(found)


def meets(one: Any, other: int) -> bool:
    return other in one if isinstance(one, frozenset) else bool(one == other)


numbers = st.one_of(st.integers(0, 12), st.sampled_from([1 << 63, WORD, 1000])).map(str)
properties = st.sampled_from(["THRID", "MSTATE", "CPUID", "TSTAMP", "HSIZE", "LEAF", "thrid"])
functions = st.sampled_from([f'FNAME("{text}")' for text in ("main", "work|leaf", ".*", "nothing", "f.b", "m")])


def grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    signs = st.sampled_from([sign for level in LEVELS for sign in level])
    return st.one_of(
        st.tuples(inner, signs, inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        st.tuples(st.sampled_from("!~-"), inner).map(lambda t: f"{t[0]}({t[1]})"),
        st.tuples(inner, inner, inner).map(lambda t: f"({t[0]} ? {t[1]} : {t[2]})"),
        st.tuples(inner, st.sampled_from(["IN", "SOME IN", "ORDERED IN"]), st.lists(inner, min_size=1, max_size=3)).map(
            lambda t: f"({t[0]} {t[1]} ({', '.join(t[2])}))"),
        st.tuples(st.one_of(functions, st.lists(functions, min_size=2, max_size=3).map(lambda f: f"({', '.join(f)})")),
                  st.sampled_from(["IN", "SOME IN", "ORDERED IN"])).map(lambda t: f"({t[0]} {t[1]} STACK)"),
        st.tuples(st.sampled_from(["LEAF", "STACK"]), st.sampled_from(["IN", "SOME IN"]), functions).map(
            lambda t: f"({t[0]} {t[1]} {t[2]})"),
        st.sampled_from(["THRID", "NONE", "STACK"]).map(lambda name: f"HASPROP({name})"))


@given(st.recursive(st.one_of(numbers, properties), grown, max_leaves=12))
def test_columns_are_what_a_slow_reference_says_of_each_packet(text: str) -> None:
    node = parse(text)
    expected = [plain(slowly(node, packet)) != 0 for packet in range(MADE.n)]
    assert selected(node, MADE).tolist() == expected


@given(st.text("()!=<>&|+-*/%?:,\"'0129ainNST_xX \t\n", max_size=30))
def test_nonsense_is_an_error_of_one_line_and_a_caret(text: str) -> None:
    try:
        node = parse(text)
    except ExpressionError as err:
        assert 0 <= err.position <= len(text)
        return
    try:
        selected(node, MADE)
    except UsageError as err:
        assert "\n" not in str(err)


@pytest.mark.parametrize(("text", "words"), [
    ("THRID==", "missing before 'the end'"), ("1<2==1", "comparisons do not follow"), ("(1", "')' is missing"),
    ("BOGUS", "no packet has a property BOGUS"), ("THRID=2", "'='"), ('FNAME("(")', "no regular expression"),
    ("FNAME(1)", "double quotes"), ("1 2", "'2' was not expected"), ("08", "octal"), ("9" * 30, "64 bits"),
    ("(" * 500, "too many"), ("1?" * 500, "too many"), ("STACK IN THRID", "functions alone"),
    ("THRID IN STACK", "must be functions"), ("HASPROP()", "name of a property"),
])
def test_errors(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=re.escape(words)):
        selected(parse(text), MADE)


@pytest.mark.parametrize("text", ["!" * 5000 + "1", "1" + "+1" * 5000, "1" + "||1" * 5000])
def test_long_expressions_are_no_deep_ones(text: str) -> None:
    try:
        selected(parse(text), MADE)
    except UsageError as err:
        assert "too" in str(err)


def test_the_whole_text_of_a_script_s_line_is_the_expression(experiment: Path, tmp_path: Path,
                                                             capsys: pytest.CaptureFixture[str]) -> None:
    from collector.cli import er_print

    script = tmp_path / "script"
    for line in ("filters THRID == 2 && MSTATE == 7", "filters 'THRID == 2 && MSTATE == 7'"):
        script.write_text(f"{line}\nfunctions\n")
        assert er_print.run(["-script", str(script), str(experiment)]) == 0
        assert capsys.readouterr().out.startswith('current filter setting: "THRID == 2 && MSTATE == 7"\nFunctions')


def test_what_is_selected_is_listed_and_counted(experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from collector.cli import er_print

    assert er_print.run(["-thread_select", "1-2", "-metrics", "e.total", "-functions", "-filters", "THRID != 3",
                         "-functions", "-thread_select", "3", "-functions", "-thread_select", "all", "-functions",
                         str(experiment)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("Exp Sel Total \n=== === ===== \n  1 1-2     3 \n")
    totals = re.findall(r"(?m)^ *([\d.]+) +<Total>$", text)
    assert len(totals) == 4
    assert totals[0] == totals[1]
    assert totals[3] == "17.602"
    assert abs(float(totals[0]) + float(totals[2]) - 17.602) < 0.002  # each is rounded
    for wrong in ("x", "1:2:3", "9:1", "", "1-", "99999999999999999999", "3-1", "1,3-2", "0" * 21 + "x", "1" * 5000):
        with pytest.raises(UsageError, match="thread_select"):
            er_print.run(["-thread_select", wrong, str(experiment)])


# --- experiments ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def experiment(need: Callable[[str, str], str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """601 packets of three threads, all states, 40 stacks, three samples."""
    directory = tmp_path_factory.mktemp("filters")
    source, program = directory / "prog.c", directory / "prog"
    source.write_text("".join(f"int {name}(int n) {{ return n + 1; }}\n" for name in NAMES[1:])
                      + "int main(void) { return 0; }\n")
    subprocess.run([need("gcc", "gcc"), "-O0", "-o", program, source], check=True)
    table = subprocess.run([need("nm", "binutils"), program], capture_output=True, text=True, check=True).stdout
    place = {name: int(at, 16) for at, _, name in (line.rsplit(None, 2) for line in table.splitlines()
                                                   if len(line.split()) == 3)}
    path = directory / "a.1.er"
    path.mkdir()
    recorder = Recorder.create(path, Header(
        hostname="h", os="Linux 6.1", arch="x86_64", page_size=4096, n_pages=1000, cpus=[2500, 2500], pid=4711,
        ppid=1, pgrp=1, sid=1, cwd=b"/", arguments=b"prog", wsize=64, interval_ns=10_007_000, sample_period_s=1,
        start_ns=START_NS, start_unix=2_000_000_000, collector="collect 0.1", notes=[]))
    recorder.segment_mapped(START_NS, BASE, 0x5000, 0, bytes(program), 5)
    chance = np.random.default_rng(3)
    depth = 5
    stacks = np.array([[BASE + place[NAMES[i]] + 1 for i in chance.integers(0, 5, depth)] for _ in range(40)],
                      np.uint64)
    uids = recorder.frames.intern(stacks, chance.integers(1, depth + 1, 40))
    times = START_NS + np.sort(chance.integers(0, 3_500_000_000, N))
    times[1::7] = times[0::7][:len(times[1::7])]
    tids = 4711 + chance.integers(0, 3, N)
    of_packet = uids[chance.integers(0, 40, N)].astype(np.int64)
    recorder.clock(tids, chance.integers(0, 2, N).astype(np.int32), times, of_packet,
                   chance.integers(0, 10, N).astype(np.int32), chance.integers(1, 6, N).astype(np.int32))
    for i in range(1, 4):
        recorder.sample(Usage((i,) * 10, *range(12)), START_NS + i * 1_000_000_000, f"periodic {i}")
    recorder.close(START_NS + 4_000_000_000)
    return path


@pytest.fixture(scope="module")
def whole(experiment: Path) -> DataSet:
    """The same, read."""
    return load([open_experiment(experiment)])


PARTITIONS = {
    "threads": [f"THRID == {i}" for i in (1, 2, 3)],
    "states": [f"MSTATE % 4 == {i}" for i in range(4)],
    "time": ["TSTAMP < 1000000000", "TSTAMP >= 1000000000 && TSTAMP < 2000000000", "TSTAMP >= 2000000000"],
    "stacks": ['FNAME("leaf") SOME IN STACK', '!(FNAME("leaf") SOME IN STACK)'],
    "leaves": [f'LEAF IN FNAME("{name}")' for name in NAMES],
    "samples": [f"SAMPLE == {i}" for i in (1, 2, 3, 4)],
}


@pytest.mark.parametrize("partition", PARTITIONS)
def test_the_sums_over_a_partition_equal_the_whole(partition: str, whole: DataSet) -> None:
    view, sums, inclusive = default_view(whole.metrics), 0, dict.fromkeys(range(len(whole.functions)), 0)
    selection = Selection(whole)
    for expression in PARTITIONS[partition]:
        selection.set_filter(expression)
        stacks = selection.data.stacks
        sums = sums + total(stacks)
        rows = object_rows(stacks, view, Labels.of_functions(whole.functions))
        for function, value in zip(rows.ids.tolist(), rows.values[:, 1].tolist(), strict=True):
            inclusive[function] += value
        assert len(stacks)
    assert np.asarray(sums).tolist() == total(whole.stacks).tolist()
    rows = object_rows(whole.stacks, view, Labels.of_functions(whole.functions))
    assert dict(zip(rows.ids.tolist(), rows.values[:, 1].tolist(), strict=True)) == {
        function: value for function, value in inclusive.items() if function in rows.ids}


# What gprofng's reader does with these is what everybody is used to.
ASKED = [
    "THRID==2", "TSTAMP<1000000000", "TSTAMP<=1000000000 && MSTATE IN (0,1)",
    "(TSTAMP<=1000000000) && (MSTATE IN (0,1))",
    "MSTATE IN (6,7,8)", "MSTATE SOME IN (6,7)", 'LEAF IN FNAME("work")', 'FNAME("work") IN STACK',
    'FNAME("work|fib") SOME IN STACK', 'FNAME("work|fib") IN STACK', 'FNAME("wor") SOME IN STACK',
    "EVT_TIME>20014000", "NTICK>1", "SAMPLE_MAP==1", "SAMPLE_MAP==2", "PID==4711", "EXPID==1", "EXPID_CMP==1",
    "EXPGRID==1", "CPUID", "!CPUID", "~CPUID&1", "CPUID?MSTATE==0:MSTATE==6", "MSTATE==0||MSTATE==6&&CPUID==1",
    "1", "0",
    "(THRID%2)==1", "-THRID+3>0", "1<<THRID==4", "THRID ^ 1 == 3", "THRID | 1 == 3", "THRID & 1 == 1", "LWPID==2",
    "TSTAMP_LO<1000000000", "TSTAMP_HI<1000000000", "NTICK_USEC==10007", "DURATION>0", "thrid==2", "MSTATE IN 6",
    "THRID/0", "THRID%0", "10-3-2==5", "2*3+1==7 && 1+2*3==7", "8>>1==4", "1?0:1?0:1", "TRUE", "LEAF", "STACK",
    "! MSTATE==0", "TSTAMP/1000000000 IN (1,2)", "(1, 2, 3) IN (1,2,3,4)", "(1,5) SOME IN (1,2)", "(1,5) IN (1,2)",
    "(1,2) ORDERED IN (1,3,2)", "(1,3) ORDERED IN (1,3,2)", "07==7", "THRID==2, 1", "FREQ_MHZ>1000",
    "1 << 1 + 1 == 4", "THRID - 1 * 2 == 2", "3 & 1 << 1", "MSTATE == 010", "THRID IN 2,3", "5 % 3 * 2 == 4",
    "1 + 1 << 2 == 8", "(1 | 3 & 4) == 1", "(2 | 1 ^ 3) == 2", "(1 ^ 1 & 0) == 1", "0 && 0 | 1", "1 || 1 & 0",
    "1 ? 0 : 1 || 1", "0 IN 1 ? 0 : 1", "0, 0 IN 1", "1 << 2 - 1 == 3", "16 >> 1 * 2 == 16", "~0 & 1", "- 1 == 0 - 1",
]


@pytest.mark.parametrize("expression", ASKED)
def test_expressions_mean_what_they_mean_to_gprofng(expression: str, experiment: Path, whole: DataSet,
                                                    gprofng: Callable[..., Any]) -> None:
    text = gprofng("-metrics", "e.total", "-filters", expression, "-functions", experiment=experiment).text
    told = re.search(r"(?m)^ *([\d.]+) +<Total>$", text)
    assert told is not None, text
    selection = Selection(whole)
    selection.set_filter(expression)
    ours_us = int(total(selection.data.stacks)[:10].sum())
    assert f"{ours_us / 1e6:.3f}" == f"{float(told[1]):.3f}"
