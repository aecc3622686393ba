"""Damage is found at the door: what the reader gives is sound, and what it left out is counted."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from collector.cli import er_print
from collector.errors import ExperimentError
from collector.experiment import log, names
from collector.experiment.damage import Damage, settled
from collector.experiment.reader import Experiment, open_experiment
from collector.experiment.recorder import Recorder, Usage
from collector.experiment.records import BLOCK_NATIVE, FRAME, FRAME_BLOCKS_OFFSET, LINKED, OVERVIEW, UID
from collector.experiment.stacks import read_stacks

START_NS = 7_001_000_000_013
NS = 1_000_000_000
N_PACKETS = 12
N_SAMPLES = 4  # three, and the one that the end closes


@pytest.fixture
def small(record: Callable[..., Recorder]) -> Path:
    """A small complete experiment: 12 packets, 2 stacks, 2 segments, 4 samples."""
    recorder = record("small.er")
    recorder.thread_started(4711, START_NS, b"main")
    recorder.segment_mapped(START_NS, 0x1000, 0x1000, 0, b"/bin/one")
    recorder.segment_mapped(START_NS, 0x8000, 0x1000, 0, b"/bin/two")
    uids = recorder.frames.intern(np.array([(0x1001, 0x1002), (0x8001, 0x1002)], np.uint64), np.array([2, 2]))
    rows = np.arange(N_PACKETS)
    recorder.clock(np.full(N_PACKETS, 4711), rows % 2, START_NS + rows, uids[rows % 2], rows % 10,
                   np.ones(N_PACKETS, np.int64))
    for number in range(1, 4):
        recorder.sample(Usage((number,) * 10), START_NS + number * NS, "periodic")
    recorder.close(START_NS + 4 * NS)
    return recorder.path


def edit(file: Path, old: bytes, new: bytes) -> None:
    """Replaces everything in a file that matches."""
    changed, count = re.subn(old, lambda _: new, file.read_bytes())
    assert count
    file.write_bytes(changed)


def opened(path: Path) -> Experiment:
    """The experiment, all of it read."""
    experiment = open_experiment(path)
    experiment.read_all()
    return experiment


def test_a_read_amid_which_something_was_written_damages_nothing(record: Callable[..., Recorder]) -> None:
    """It has each line's beginnings of elements as they were at one moment or another, the later the further behind."""
    recorder = record("live.er")
    recorder.sync()
    empty = (recorder.path / names.LOG_FILE).read_bytes()
    recorder.warning("one that goes on for a while")
    recorder.sample(Usage((1,) * 10), START_NS + NS, "periodic")
    recorder.sync()
    whole = np.frombuffer((recorder.path / names.LOG_FILE).read_bytes(), np.uint8)
    line = np.arange(empty.rindex(b">") + 2, len(whole))
    blank = whole.copy()
    blank[line[whole[line] == ord("<")]] = ord(" ")
    n_torn = 0
    for at in line[whole[line] > 0]:
        torn = np.append(blank[:at], whole[at:])
        damage, without = Damage(), Damage()
        log.read(torn.tobytes(), damage=without)
        assert not log.read(settled(torn, whole).tobytes(), damage=damage).complete
        assert not list(damage.lines())
        n_torn += bool(list(without.lines()))
    assert n_torn
    assert np.array_equal(settled(whole, whole), whole)


def test_an_undamaged_experiment_has_no_problems(small: Path) -> None:
    assert opened(small).problems == []


@pytest.mark.parametrize("name", ["TSTAMP", "CPUID", "THRID", "FRINFO", "MSTATE", "NTICK"])
def test_a_field_that_is_not_described_is_zero_and_told(small: Path, name: str) -> None:
    edit(small / "log.xml", b'<field name="%s"[^>]*>' % name.encode(), b"")
    experiment = opened(small)
    packets = experiment.packets()
    assert len(packets) == N_PACKETS
    assert not packets[name].any()
    assert [problem for problem in experiment.problems if name in problem] == [
        f"{small}/profile: {N_PACKETS} clock packets without {name}, which the log does not describe"]


def test_without_any_description_there_are_no_packets(small: Path) -> None:
    edit(small / "log.xml", b"profpckt", b"profpact")
    packets = opened(small).packets()
    assert len(packets) == 0
    assert "CPUID" in packets.dtype.names


@pytest.mark.parametrize(("field", "value", "count"), [
    ("NTICK", -1, 1), ("TSTAMP", -1, 1), ("TSTAMP", (1 << 63) - 1, 1), ("NTICK", (1 << 31) - 1, 0)])
def test_packets_with_impossible_times_are_left_out(small: Path, field: str, value: int, count: int) -> None:
    content = bytearray((small / "profile").read_bytes())
    offset, size = {"NTICK": (52, 4), "TSTAMP": (32, 8)}[field]
    content[64 + offset:64 + offset + size] = value.to_bytes(size, "little", signed=True)
    (small / "profile").write_bytes(content)
    experiment = opened(small)
    assert len(experiment.packets()) == N_PACKETS - count
    assert experiment.problems == [f"{small}/profile: 1 packets with impossible times were skipped"] * count


def test_a_time_longer_than_nine_years_is_impossible(small: Path) -> None:
    edit(small / "log.xml", rb'ptimer="\d+"', b'ptimer="2147483647"')
    content = bytearray((small / "profile").read_bytes())
    content[52:56] = (1 << 30).to_bytes(4, "little")
    (small / "profile").write_bytes(content)
    assert len(opened(small).packets()) == N_PACKETS - 1


@pytest.mark.parametrize(("garbage", "told"), [
    (b"\xff" * 504, "1 records with impossible numbers were skipped"),
    (b"\xff" * 100, "100 bytes behind the last whole record were skipped"),
    (b"\x01" + bytes(7) + b"\x01" + bytes(495), "1 records with impossible numbers were skipped"),  # time runs back
], ids=["ones", "a piece", "back in time"])
def test_garbage_behind_the_overview_is_left_out(small: Path, garbage: bytes, told: str) -> None:
    with open(small / "overview", "ab") as file:
        file.write(garbage)
    experiment = opened(small)
    assert len(experiment.samples) == N_SAMPLES
    assert experiment.problems == [f"{small}/overview: {told}"]


@pytest.mark.parametrize("name", ["real_s", "sleep_s", "signals", "tstamp_ns"])
def test_records_with_impossible_numbers_are_left_out(small: Path, name: str) -> None:
    records = np.fromfile(small / "overview", OVERVIEW[64].dtype)
    records[name][2] = (1 << 64) - 1
    records.tofile(small / "overview")
    experiment = opened(small)
    assert len(experiment.samples) == N_SAMPLES - 1
    assert len(experiment.problems) == 1


@pytest.mark.parametrize(("old", "new"), [
    (rb'vaddr="0x0000000000008000"', b'vaddr="0x18000000000008000"'), (rb'vaddr="0x0000000000008000"', b""),
    (rb'vaddr="0x0000000000008000"', b'vaddr="0xFFFFFFFFFFFFFFFF"'), (rb'vaddr="0x0000000000008000"', b'vaddr="-1"'),
    (rb'name="/bin/two"', b""), (rb'name="/bin/two"', b'nam="/bin/two"'),
    (rb'(?<=8000" )size="4096"', b'size="999999999999999999"'), (rb'(?<=8000" )size="4096"', b'size="-4096"'),
    (rb'(?<=8000" size="4096" pagesz="4096" )foffset="[^"]*"', b'foffset="0xffffffffffffffffff"')])
def test_a_mapping_without_a_possible_place_is_left_out(small: Path, old: bytes, new: bytes) -> None:
    edit(small / "map.xml", old, new)
    experiment = opened(small)
    assert [segment.name for segment in experiment.segments] == [b"/bin/one"]
    assert experiment.problems == [f"{small}/map.xml: 1 mappings without a possible place were skipped"]


@pytest.mark.parametrize("text", [b"99999999999.0", b"-1.000000000", b"0x" + b"f" * 5000, b"9" * 5000,
                                  b"1." + b"9" * 30])
def test_a_time_that_cannot_be_is_the_start(small: Path, text: bytes) -> None:
    edit(small / "log.xml", rb'(?<=kind="exit" tstamp=")[^"]*', text)
    experiment = opened(small)
    assert experiment.log.complete
    assert experiment.problems in ([], [
        f"{small}/log.xml: 1 events without a possible time were taken as of the start"])
    assert all(START_NS <= event.time_ns < START_NS + (1 << 62) for event in experiment.log.events)


def test_an_element_that_never_ends_takes_nothing_with_it(small: Path) -> None:
    complete = opened(small).log
    content = (small / "log.xml").read_bytes()
    at = content.index(b"/>", content.index(b'kind="run"'))
    (small / "log.xml").write_bytes(content[:at] + content[at + 1:])
    damaged = opened(small)
    assert [event.kind for event in damaged.log.events] == [event.kind for event in complete.events]
    assert "broken markup" in damaged.problems[0]


@pytest.mark.parametrize("depth", [300, 5000, 200_000])
def test_elements_in_elements_are_no_recursion(small: Path, depth: int) -> None:
    with open(small / "log.xml", "ab") as file:
        file.write(b"<a>" * depth)
    assert opened(small).log.complete


@pytest.mark.parametrize("name", ["profile", "data.frameinfo", "map.xml", "overview", "log.xml"])
def test_what_is_no_file_is_told_and_waited_for_by_nobody(small: Path, tmp_path: Path, name: str) -> None:
    (small / name).rename(tmp_path / "aside")
    for put in (os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path), lambda path: os.symlink(path, path)):
        put(small / name)
        if name == "log.xml":
            with pytest.raises(ExperimentError, match=r"cannot read log\.xml: "):
                open_experiment(small)
        else:
            problems = opened(small).problems
            assert [problem for problem in problems if name in problem] == problems
            assert len(problems) == 1
        os.rmdir(small / name) if (small / name).is_dir() else os.unlink(small / name)


@pytest.mark.parametrize("name", ["profile", "data.frameinfo", "map.xml", "overview", "log.xml"])
def test_a_file_of_a_terabyte_is_read_up_to_its_hole(small: Path, name: str) -> None:
    whole = opened(small)
    os.truncate(small / name, 1 << 40)
    with open(small / name, "r+b") as file:
        file.seek(-4096, os.SEEK_END)
        file.write(b"behind the hole")
    experiment = opened(small)
    assert len(experiment.packets()) == len(whole.packets())
    assert len(experiment.samples) == len(whole.samples)
    assert experiment.segments == whole.segments
    assert f"{small}/{name}: 1 long hole in the file; what lies behind it was skipped" in experiment.problems


def test_symbols_of_a_function_that_is_gone_are_not_those_of_the_next(record: Callable[..., Recorder]) -> None:
    recorder = record("code.er")
    recorder.function_mapped(START_NS, 0x7FFF_0000_0000, 8192, b"[vdso]", [(0x7FFF_0000_0100, 64, b"__vdso_time")])
    recorder.function_mapped(START_NS, 0xFFFF_FFFF_FF60_0000, 4096, b"[vsyscall]")
    recorder.close(START_NS + NS)
    edit(recorder.path / "map.xml", rb'size="8192"', b'size="x"')
    experiment = opened(recorder.path)
    assert [(function.name, function.symbols) for function in experiment.functions] == [(b"[vsyscall]", ())]
    assert f"{recorder.path}/map.xml: 1 symbols outside of their function were skipped" in experiment.problems


def frame_packet(uid: int, pcs: list[int], link: int) -> bytes:
    """A stack, perhaps linked to its tail."""
    body = np.array([*pcs, link], "<u8").tobytes()
    head = np.zeros(1, FRAME.dtype)
    block_size = FRAME.size - FRAME_BLOCKS_OFFSET + len(body)
    head[0] = (FRAME.size + len(body), FRAME.kind, FRAME_BLOCKS_OFFSET, uid, block_size, BLOCK_NATIVE | LINKED, uid)
    return head.tobytes() + body


def test_a_few_bytes_that_stand_for_endless_stacks_are_cut() -> None:
    """A hundred stacks that share a tail of 80,000 frames."""
    tail = b""
    for number in range(1, 11):
        pcs = np.full(8000, number, "<u8").tobytes() + np.array([number - 1 << 4], "<u8").tobytes()
        head = np.array([(UID.size + len(pcs), UID.kind, LINKED, number << 4)], UID.dtype)
        tail += head.tobytes() + pcs
    frames = b"".join(frame_packet(1000 + n, [n, n + 1], 10 << 4) for n in range(100))
    damage = Damage()
    stacks = read_stacks(np.frombuffer(tail + frames, np.uint8), 64, damage)
    assert len(stacks) == 100
    assert stacks.truncated.all()
    assert set(np.diff(stacks.offsets).tolist()) == {1 << 14}
    assert stacks.stack(7)[:3].tolist() == [7, 8, 10]
    assert damage.lines() == ["100 stacks of impossible depth were cut"]


def test_stacks_that_are_too_many_together_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """600 stacks, each a frame deeper than the one before; room for a third of their frames."""
    monkeypatch.setattr("collector.experiment.stacks._FRAMES_MAX", 1 << 16)
    frames = b"".join(frame_packet(number << 4, [number], max(number - 1, 0) << 4) for number in range(1, 601))
    damage = Damage()
    stacks = read_stacks(np.frombuffer(frames, np.uint8), 64, damage)
    assert len(stacks) == 600
    assert 1 << 15 < len(stacks.pcs) <= (1 << 16) + 600
    depths = np.diff(stacks.offsets)
    assert stacks.truncated.tolist() == (depths < np.arange(1, 601)).tolist()
    assert all(stacks.stack(n).tolist() == list(range(n + 1, n + 1 - depths[n], -1)) for n in range(600))
    assert damage.lines() == [f"{int(stacks.truncated.sum())} stacks of impossible depth were cut"]


def test_packets_without_their_stacks_are_told(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (small / "data.frameinfo").unlink()
    (small / "data.frameinfo").symlink_to(small / "nowhere")
    assert er_print.run(["-functions", str(small)]) == 0
    told = capsys.readouterr()
    assert "<Total>" in told.out
    assert told.err == (f"er_print: warning: {small}/data.frameinfo: {N_PACKETS} packets whose stack is not there "
                        "count for the total alone\n")


@pytest.mark.parametrize("command", ["-fsummary", "-lsummary", "-psummary", "-functions", "-calltree", "-pcs"])
def test_states_that_nobody_knows_have_no_metrics(small: Path, command: str,
                                                  capsys: pytest.CaptureFixture[str]) -> None:
    edit(small / "log.xml", b'numstates="10"', b'numstates="7"')
    assert er_print.run([command, str(small)]) == 0
    assert "<Total>" in capsys.readouterr().out


@pytest.mark.parametrize(("old", "new"), [(rb' id="[0-9]+" label', b' id="\xff1" label'),
                                          (rb'sample_period="[0-9]+', b'sample_period="\xff')])
def test_numbers_that_are_no_text_are_none(small: Path, old: bytes, new: bytes,
                                           capsys: pytest.CaptureFixture[str]) -> None:
    edit(small / "log.xml", old, new)
    assert er_print.run(["-functions", "-overview", "-header", "-samples", str(small)]) == 0
    assert "<Total>" in capsys.readouterr().out


@pytest.mark.parametrize(("name", "place", "most"), [
    ("pid", rb'(?<=process pid=")[^"]*', (1 << 31) - 1), ("start_unix", rb'(?<= time=")[^"]*', 9_223_372_036)])
def test_numbers_that_no_kernel_has_are_none(small: Path, name: str, place: bytes, most: int) -> None:
    """Exports have room for all that is read: for pids as a C int, for the calendar's nanoseconds in 63 bits."""
    for number, wanted in ((most, most), (most + 1, 0), (-1, 0)):
        edit(small / "log.xml", place, b"%d" % number)
        assert getattr(opened(small).log, name) == wanted


def test_packets_that_are_described_half_in_one_way_and_half_in_another_are_told(small: Path) -> None:
    """A counter for a state, and as for one of any state how many ticks, but not of which."""
    edit(small / "log.xml", b'name="MSTATE"', b'name="UCPU"')
    assert er_print.run(["-functions", str(small)]) == 0
    assert any("clock packets without MSTATE" in problem for problem in opened(small).problems)


def test_a_sample_with_an_impossible_number_has_none(small: Path) -> None:
    """It has its time and figures all the same, also where a filter asks for samples."""
    edit(small / "log.xml", b' id="2" label', b' id="99999999999999999999" label')
    assert len(opened(small).samples) == N_SAMPLES
    assert er_print.run(["-filters", "SAMPLE > 0", "-functions", "-samples", str(small)]) == 0
