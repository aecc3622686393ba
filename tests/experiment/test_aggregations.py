"""The file of aggregations: what is written is read; every damage has a name, and nothing else happens."""

from __future__ import annotations

import json
import random
import re
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collector.cli import er_print
from collector.errors import FormatError
from collector.experiment.aggregations import Stored, pack, stack_name, unpack
from collector.experiment.reader import open_experiment
from collector.experiment.recorder import Recorder
from collector.experiment.records import AGGREGATIONS, KEY_NAME, KEY_NUMBER, KEY_STACK
from collector.report import aggregations
from collector.report.build import DataSet, members

SEED, N_MUTATIONS, N_PRINTED = 20_261_123, 1000, 200
START_NS = 7_001_000_000_013

BY_NAME = Stored("a[execname, tid] = count()", (KEY_NAME, KEY_NUMBER), np.array([[0, 4711], [1, -1], [0, 4711]]),
                 np.array([[3], [5], [7]], np.uint64), 2, (b"cat", b"d\xffg"))
BY_STACK = Stored("b[ustack] = avg(sleep)", (KEY_STACK,), np.array([[48], [0]]), np.array([[2, 9], [1, 4]], np.uint64),
                  2, n_dropped=13)
NO_KEY = Stored("c = sum(lock)", (), np.zeros((1, 0), np.int64), np.array([[11]], np.uint64), 1)
NOTHING = Stored("d[tid] = max(1)", (KEY_NUMBER,), np.zeros((0, 1), np.int64), np.zeros((0, 1), np.uint64), 0)
ALL = (BY_NAME, BY_STACK, NO_KEY, NOTHING)


def same(one: Stored, other: Stored) -> bool:
    return (np.array_equal(one.keys, other.keys) and one.keys.shape == other.keys.shape
            and np.array_equal(one.states, other.states) and one.states.shape == other.states.shape
            and (one.expression, one.kinds, one.n_recorded, one.names, one.n_dropped)
            == (other.expression, other.kinds, other.n_recorded, other.names, other.n_dropped))


def test_what_is_written_is_read() -> None:
    found = unpack(pack(ALL))
    assert len(found) == len(ALL)
    assert all(map(same, found, ALL))
    assert unpack(pack([])) == []


def test_a_file_cut_anywhere_is_told() -> None:
    content = pack(ALL)
    for length in range(len(content)):
        with pytest.raises(FormatError):
            unpack(content[:length])
    with pytest.raises(FormatError, match="bytes were written"):
        unpack(content + b"\0")


def mutated(content: bytes, chance: random.Random) -> bytes:
    """With some bytes changed, taken out or put in."""
    changed = bytearray(content)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(changed))
        match chance.randrange(3):
            case 0:
                changed[at] ^= 1 << chance.randrange(8)
            case 1:
                del changed[at:at + chance.randint(1, 40)]
            case _:
                changed[at:at] = chance.randbytes(chance.randint(1, 40))
    return bytes(changed)


def test_mutations_are_told() -> None:
    chance, content = random.Random(SEED), pack(ALL)
    for _ in range(N_MUTATIONS):
        changed = mutated(content, chance)
        if changed != content:
            with pytest.raises(FormatError, match=r"cut short|not a file|version|were written|damaged"):
                unpack(changed)


def test_states_of_no_words_are_told() -> None:
    """Any number of them would take no room in the file."""
    with pytest.raises(FormatError, match="contradicts itself"):
        unpack(pack([replace(NO_KEY, states=np.zeros((1, 0), np.uint64))]))


@pytest.mark.parametrize("index", [-1, 2])
def test_names_that_are_not_there_are_told(index: int) -> None:
    one = Stored("n[comm] = count()", (KEY_NAME,), np.array([[1], [index]]), np.ones((2, 1), np.uint64), 2,
                 (b"first", b"second"))
    with pytest.raises(FormatError, match="has names that are not there"):
        unpack(pack([one]))
    assert unpack(pack([replace(one, keys=np.array([[1], [0]]))]))[0].names == (b"first", b"second")


def forged(chance: random.Random) -> bytes:
    """Mutated, with a checksum and a length that are right: as if somebody had written it."""
    body = mutated(pack(ALL)[AGGREGATIONS.size:], chance)
    head = bytearray(pack([]))
    head[12:16] = zlib.crc32(body).to_bytes(4, "little")
    head[16:24] = len(body).to_bytes(8, "little")
    return bytes(head) + body


def test_forged_files_are_told_or_read() -> None:
    chance, n_told = random.Random(SEED), 0
    for _ in range(N_MUTATIONS):
        try:
            found = unpack(forged(chance))
        except FormatError:
            n_told += 1
            continue
        for one in found:
            assert len(one.keys) == len(one.states) >= one.n_recorded
    assert N_MUTATIONS // 4 < n_told < N_MUTATIONS


@pytest.fixture
def aggregated(record: Callable[..., Recorder]) -> Path:
    """An experiment with aggregations."""
    recorder = record("some.er", aggregations=[one.expression for one in ALL])
    recorder.thread_started(4711, START_NS, b"main")
    recorder.frames.intern(np.array([(0x1001, 0x1002)], np.uint64), np.array([2]))
    recorder.aggregations(pack([NO_KEY]))
    recorder.aggregations(pack(ALL))
    recorder.close(START_NS + 1)
    return recorder.path


def printed(path: Path, capsys: pytest.CaptureFixture[str], *command: str) -> tuple[str, str]:
    er_print.run(["-aggregations", *command, str(path)])
    done = capsys.readouterr()
    return done.out, done.err


def test_the_last_one_stays_and_the_expressions_stand_in_the_log(
    aggregated: Path, capsys: pytest.CaptureFixture[str]) -> None:
    experiment = open_experiment(aggregated)
    assert all(map(same, experiment.aggregations, ALL))
    assert experiment.problems == []
    assert [event.attributes["expression"] for event in experiment.log.events if event.kind == "aggregation"] == [
        one.expression for one in ALL]
    assert sorted(path.name for path in aggregated.iterdir() if "aggregations" in path.name) == ["aggregations"]
    out, err = printed(aggregated, capsys, "a")
    assert err == ""
    assert out.splitlines()[0] == BY_NAME.expression
    recorded, synthetic = out.split("synthetic: ")
    assert [line.split() for line in recorded.splitlines() if "cat" in line] == [["cat", "4711", "3"]]
    assert [line.split() for line in synthetic.splitlines() if "cat" in line] == [["cat", "4711", "7"]]


def test_that_of_a_draft_comes_with_it(record: Callable[..., Recorder]) -> None:
    founder = record("some.er")
    drafted = Recorder.draft(founder.path / "_f1.er", founder.header)
    drafted.aggregations(pack([NO_KEY]))
    drafted.close(START_NS + 1)
    assert all(map(same, open_experiment(founder.path / "_f1.er").aggregations, [NO_KEY]))


def test_what_there_was_no_room_for_is_told(aggregated: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = "not whole: 13 values are missing, of keys for which there was no room"
    for style in ("dtrace", "stap"):
        out, _ = printed(aggregated, capsys, "b", "--style", style)
        assert out.splitlines()[:2] == [BY_STACK.expression, told]
        assert told not in printed(aggregated, capsys, "a", "--style", style)[0]
    er_print.run(["-json_aggregations", "b", str(aggregated)])
    (found,) = json.loads(capsys.readouterr().out)["aggregations"]
    assert found["dropped"] == BY_STACK.n_dropped


def test_that_there_are_no_values_is_told(aggregated: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(aggregated, capsys, "d")[0].splitlines() == [NOTHING.expression, "no values", ""]


@pytest.mark.parametrize(("name", "shown"), [
    (b"a\n  fake  5", r"a\n  fake  5"), (b"\r\x07bell", r"\r\x07bell"), (b"<b>\x1b[31m", r"<b>\x1b[31m"),
    ("gr\xf6\xdfe".encode(), "gr\xf6\xdfe"), (b"\xff\xfe", r"\xff\xfe"), (b"", "<Unknown>")])
def test_a_name_is_one_line_of_a_terminal(aggregated: Path, capsys: pytest.CaptureFixture[str], name: bytes,
                                          shown: str) -> None:
    stored = Stored("n[comm] =\n sum(lock)", (KEY_NAME,), np.array([[0]]), np.array([[11]], np.uint64), 1, (name,))
    (aggregated / "aggregations").write_bytes(pack([stored]))
    assert printed(aggregated, capsys)[0] == f"n[comm] = sum(lock)\n\n  {shown:<50} {11:>16}\n\n"


def test_forged_files_are_printed_or_told(aggregated: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chance, n_clean = random.Random(SEED), 0
    for _ in range(N_PRINTED):
        (aggregated / "aggregations").write_bytes(forged(chance))
        try:
            _, err = printed(aggregated, capsys)
        except er_print.UsageError:  # nothing is left
            err = capsys.readouterr().err
            assert err
        assert all(line.startswith("er_print: warning: ") and line.isprintable() for line in err.splitlines())
        n_clean += not err
    assert 0 < n_clean < N_PRINTED


def test_the_largest_keys_as_systemtap_prints_them(aggregated: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An option stands anywhere behind its command."""
    there = str(aggregated)
    for command in (("--style", "stap", "--top", "1", "a", there), ("a", "--top=1", "--style=stap", there),
                    ("a", there, "--top", "1", "--style", "stap"),
                    ("a", "-limit", "0", "--top=1", there, "--style=stap"),
                    ("--top", "7", "a", "--style=stap", there, "--top", "1")):
        er_print.run(["-aggregations", *command])
        out, err = capsys.readouterr()
        assert err == ""
        assert out == (f'{BY_NAME.expression}\n\na["d\\xffg",-1] @count=5\n\n'
                       f"{BY_NAME.expression}\n"
                       "synthetic: these sum up right, but were not seen one by one, from beginning to end\n\n"
                       'a["cat",4711] @count=7\n\n')


def test_the_largest_keys_are_printed_in_ascending_order(aggregated: Path, capsys: pytest.CaptureFixture[str]) -> None:
    many = Stored("m[tid] = sum(lock)", (KEY_NUMBER,), np.arange(30).reshape(30, 1),
                  (np.arange(30, dtype=np.uint64) * 7 % 30).reshape(30, 1), 30)
    (aggregated / "aggregations").write_bytes(pack([many]))
    out, _ = printed(aggregated, capsys, "--top", "3")
    assert [int(line.split()[1]) for line in out.splitlines()[1:] if line] == [27, 28, 29]
    er_print.run(["-json_aggregations", "m", "--top", "2", str(aggregated)])
    (found,) = json.loads(capsys.readouterr().out)["aggregations"]
    assert [entry["value"] for entry in found["recorded"]] == [29, 28]
    script = aggregated.parent / "script"
    script.write_text("aggregations m --top 3\n")
    er_print.run(["-script", str(script), str(aggregated)])
    assert capsys.readouterr().out == out


@pytest.mark.parametrize(("name", "shown"), [(b"@odd.so`f+0x1", "@odd.so`f+0x1"), (b"", "<Unknown>")])
def test_a_name_of_a_frame_is_one_whatever_it_begins_with(
        aggregated: Path, capsys: pytest.CaptureFixture[str], name: bytes, shown: str) -> None:
    """In stacks of DTrace's own, one that begins with @ is a remark on a frame."""
    stored = Stored("w[wakerstack] = count()", (KEY_NAME,), np.array([[0]]), np.array([[11]], np.uint64), 1, (name,))
    (aggregated / "aggregations").write_bytes(pack([stored]))
    out, _ = printed(aggregated, capsys)
    assert [line.strip() for line in out.splitlines() if line] == ["w[wakerstack] = count()", shown, "11"]


def test_a_variance_of_more_than_64_bits_is_printed(aggregated: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """That of 0 and 5 s in nanoseconds."""
    spread = [2, 5_000_000_000, *divmod(5_000_000_000 ** 2, 1 << 64)]
    stored = Stored("v[tid] = variance(offcpu)", (KEY_NUMBER,), np.array([[7], [8]]),
                    np.array([spread, [2, 8, 0, 34]], np.uint64), 2)
    (aggregated / "aggregations").write_bytes(pack([stored]))
    out, _ = printed(aggregated, capsys)
    assert [line.split() for line in out.splitlines()[2:-1]] == [["8", "2"], ["7", str(5_000_000_000 ** 2 // 2)]]


@pytest.mark.parametrize(("words", "told"), [
    (["--style", "perf"], "--style perf: give dtrace or stap"),
    (["--style"], "--style needs an argument: dtrace|stap"),
    (["--top", "0"], "--top 0: give the number of keys"),
    (["--top", "some"], "--top some: give the number of keys"),
])
def test_bad_options_are_told(aggregated: Path, words: list[str], told: str) -> None:
    with pytest.raises(er_print.UsageError, match=re.escape(told)):
        er_print.run([str(aggregated), "-aggregations", *words])


@pytest.mark.parametrize(("stored", "told"), [
    (replace(BY_NAME, expression="a[tid, tid] = count()"), "keys of other kinds"),
    (replace(BY_NAME, expression="a[execname, tid] = avg(1)"), "states of 1 words, not 2"),
    (replace(BY_NAME, expression="a[execname, tid] = "), "a function is expected"),
    (replace(BY_NAME, expression=f"a[execname, tid] = sum(sleep / {'9' * 5000})"), "more than 1000 digits"),
    (Stored("q = lquantize(1, 0, 3)", (), np.zeros((1, 0), np.int64), np.full((1, 6), 77, np.uint64), 1),
     "other arguments"),
])
def test_what_contradicts_its_expression_is_told_and_the_rest_printed(
    aggregated: Path, stored: Stored, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    (aggregated / "aggregations").write_bytes(pack([stored, NO_KEY]))
    out, err = printed(aggregated, capsys)
    assert told in err
    assert out.split() == ["c", "=", "sum(lock)", "11"]


def test_a_damaged_file_is_one_warning(aggregated: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = aggregated / "aggregations"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(er_print.UsageError, match="nothing was aggregated"):
        printed(aggregated, capsys)
    err = capsys.readouterr().err
    assert err.startswith(f"er_print: warning: {file}: ")
    assert err.endswith("; it was skipped\n")
    assert err.count("\n") == 1


class Counted(DataSet):
    """One that counts how often it looks for stacks: each time it places them among all mappings."""

    n_looks = 0

    def frames(self, *asked: Any) -> list[tuple[int, ...]]:
        self.n_looks += 1
        return super().frames(*asked)


def test_stacks_of_wakers_are_looked_for_once_in_each_experiment(record: Callable[..., Recorder]) -> None:
    """Of those named in the founder's keys some are its own, some its descendant's, some nobody's, some none."""
    founder = record("some.er")
    child = Recorder.draft(founder.path / "_f1.er", founder.header)
    names, expected = [b"<idle>", stack_name("_f2.er", 7)], [(b"<idle>",), (b"<Unknown>",)]
    for recorder, first in ((founder, 0x1001), (child, 0x2001)):
        pcs = np.arange(first, first + 40, dtype=np.uint64).reshape(20, 2)
        names += [stack_name(recorder.path.name, uid)
                  for uid in recorder.frames.intern(pcs, np.full(20, 2)).tolist()]
        expected += [tuple(b"0x%x" % pc for pc in row) for row in pcs.tolist()]
        recorder.thread_started(4711, START_NS, b"main")
    keys = np.arange(len(names)).repeat(2).reshape(-1, 1)
    founder.aggregations(pack([Stored("w[wakerstack] = count()", (KEY_NAME,), keys,
                                      np.ones((len(keys), 1), np.uint64), len(keys), tuple(names))]))
    child.close(START_NS + 1)
    founder.close(START_NS + 1)
    experiment = open_experiment(founder.path)
    data = Counted(members(experiment))
    (found,) = aggregations.merged(data)
    assert experiment.problems == []
    assert data.n_looks == 2
    assert sorted((key.strings, state.tolist()) for (key,), state in found.recorded.states()) == \
        sorted((frames, [2]) for frames in expected)
