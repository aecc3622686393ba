"""What follows an experiment sees all of it, each thing once, whole, however often it looks."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from collector.errors import ExperimentError
from collector.experiment.follow import Following
from collector.experiment.growing import GrowingPackets, GrowingText
from collector.experiment.reader import open_experiment
from collector.experiment.recorder import Recorder
from collector.experiment.records import BLOCK_SIZE, CLOCK, HEAD, KIND_EMPTY, KIND_FRAME
from collector.experiment.xml import element, parse

Record = Callable[..., Recorder]
MS = 1_000_000


def clock(recorder: Recorder, time_ns: int, pcs: list[list[int]], tid: int = 17) -> None:
    """A packet for each stack."""
    n, depth = len(pcs), max(map(len, pcs))
    stacks = np.array([stack + [0] * (depth - len(stack)) for stack in pcs], np.uint64)
    uids = recorder.frames.intern(stacks, np.array([len(stack) for stack in pcs]))
    recorder.clock(np.full(n, tid), np.zeros(n, np.int64), time_ns + np.arange(n), uids, np.zeros(n, np.int64),
                   np.full(n, 3))


def looked(following: Following) -> dict[str, list[int]]:
    """The times of all new packets, by experiment."""
    following.refresh()
    return {one.experiment.name: [t for packets in one.look() for t in packets["TSTAMP"].tolist()]
            for one in following.all}


def test_looks_between_batches_see_what_came_and_in_the_end_everything(record: Record, tmp_path: Path) -> None:
    """300 packets at a time cross blocks; 47 shared stacks, and a descendant that comes in the middle."""
    founder = record()
    following = Following(tmp_path / "test.1.er")
    start_ns = founder.header.start_ns
    seen: dict[str, list[int]] = {}
    child = None
    for batch in range(7):
        time_ns = start_ns + batch * MS
        if batch == 3:
            child = record("test.1.er/_f1.er", pid=4712)
        founder.segment_mapped(time_ns, 0x400000 + batch * 0x10000, 0x1000, 0, b"/bin/%d" % batch)
        stacks = [[0x400000 + batch * 0x10000 + i % 47, 0x401000 + i % 3, 0x402000, 0x403000] for i in range(300)]
        for recorder in (founder, child):
            if recorder is not None:
                clock(recorder, time_ns, stacks)
                recorder.sync()
        for name, times in looked(following).items():
            assert len(times) == 300
            seen.setdefault(name, []).extend(times)
        assert not any(looked(following).values())
    founder.close(start_ns + 9 * MS)
    assert child is not None
    assert not following.is_over
    child.close(start_ns + 9 * MS)
    assert not any(looked(following).values())
    assert following.is_over
    for one in following.all:
        read = open_experiment(one.experiment.path)
        assert seen[one.experiment.name] == read.packets()["TSTAMP"].tolist()
        assert one.experiment.segments == read.segments
        for i, uid in enumerate(read.stacks.uids.tolist()):
            assert one.stack(uid) == (read.stacks.stack(i).tolist(), 0, True)
        assert one.stack(1) is None


def test_an_experiment_that_begins_anew_is_read_anew(record: Record, tmp_path: Path) -> None:
    first = record()
    clock(first, first.header.start_ns, [[1, 2, 3]])
    first.sync()
    following = Following(tmp_path / "test.1.er")
    assert looked(following) == {"test.1.er": [first.header.start_ns]}
    (tmp_path / "log.xml").write_bytes((tmp_path / "test.1.er" / "log.xml").read_bytes())
    os.replace(tmp_path / "log.xml", tmp_path / "test.1.er" / "log.xml")
    assert looked(following) == {"test.1.er": [first.header.start_ns]}
    assert following.n_begins == 2


def test_an_experiment_that_is_taken_away_is_an_error(record: Record, tmp_path: Path) -> None:
    record()
    following = Following(tmp_path / "test.1.er")
    (tmp_path / "test.1.er" / "log.xml").unlink()
    with pytest.raises(ExperimentError, match="not there any more"):
        following.refresh()


def test_a_descendant_that_has_nothing_to_tell_yet_is_seen_when_it_has(record: Record, tmp_path: Path) -> None:
    """Its first stack changes nothing in the founder's folder, which has been as it is for long."""
    founder, child = record(), record("test.1.er/_f1.er", pid=4712)
    clock(child, founder.header.start_ns, [[1, 2, 3]])
    child.sync()
    frames, later = child.path / "data.frameinfo", tmp_path / "later"
    frames.rename(later)
    frames.touch()
    os.utime(founder.path, (1_700_000_000,) * 2)
    following = Following(founder.path)
    assert looked(following) == looked(following) == {"test.1.er": []}
    later.rename(frames)
    assert os.stat(founder.path).st_mtime == 1_700_000_000
    while len(found := looked(following)) == 1:
        time.sleep(0.05)
    assert found == {"test.1.er": [], "_f1.er": [founder.header.start_ns]}
    assert not any(looked(following).values())


def packet_times(file: GrowingPackets) -> list[int]:
    return [t for data, found in file.more() for run in found if run.kind == CLOCK.kind
            for t in data[run.offset:run.offset + run.count * run.size].view(CLOCK.dtype)["TSTAMP"].tolist()]


def test_places_left_open_in_blocks_are_looked_at_again(tmp_path: Path) -> None:
    """As a recorder with a block for each thread leaves them: packets come behind those of a later block."""
    path = tmp_path / "profile"
    packets = np.zeros(4, CLOCK.dtype)
    packets["tsize"], packets["kind"], packets["TSTAMP"] = CLOCK.size, CLOCK.kind, [11, 12, 13, 14]
    one, two, three, four = (packet.tobytes() for packet in packets)
    file = GrowingPackets(path)
    assert packet_times(file) == []
    path.write_bytes(one.ljust(BLOCK_SIZE, b"\0") + two.ljust(BLOCK_SIZE, b"\0"))
    assert packet_times(file) == [11, 12]
    path.write_bytes((one + three).ljust(BLOCK_SIZE, b"\0") + (two + four).ljust(2 * BLOCK_SIZE, b"\0"))
    assert sorted(packet_times(file)) == [13, 14]
    assert packet_times(file) == []


def head(size: int, kind: int) -> bytes:
    return np.array([(size, kind)], HEAD.dtype).tobytes()


def test_what_comes_to_lie_over_empty_packets_is_seen(tmp_path: Path) -> None:
    """As gprofng's collector writes: 64 KiB for each of two threads; an EMPTY packet has what is not used yet."""
    path, size, times = tmp_path / "profile", 4 * BLOCK_SIZE, iter(range(10_000))
    written: list[list[bytes]] = [[], []]
    file, n_seen = GrowingPackets(path), 0
    for n_new, thread in [(1, 0), (1, 1), (99, 0), (0, 0), (500, 1), (423, 0), (523, 1), (500, 0), (1, 0)]:
        new = np.zeros(n_new, CLOCK.dtype)
        new["tsize"], new["kind"], new["TSTAMP"] = CLOCK.size, CLOCK.kind, [next(times) for _ in range(n_new)]
        written[thread].append(new.tobytes())
        blocks = [b"".join(each) for each in written]
        path.write_bytes(b"".join(
            block + (head(size - len(block), KIND_EMPTY).ljust(size - len(block), b"\0") if len(block) < size else b"")
            for block in blocks if block))
        assert sorted(packet_times(file)) == new["TSTAMP"].tolist()
        n_seen += n_new
    assert (n_seen, packet_times(file)) == (2048, [])


def test_a_large_packet_that_is_being_written_is_seen_when_it_is_there(tmp_path: Path) -> None:
    """Ours is EMPTY until it is whole; others lie behind it by then."""
    path, size = tmp_path / "data.frameinfo", 20_000
    small, behind = (head(24, KIND_FRAME).ljust(24, byte) for byte in (b"a", b"b"))
    file = GrowingPackets(path)
    places = []
    for kind in (KIND_EMPTY, KIND_EMPTY, KIND_FRAME):
        path.write_bytes(small + head(size, kind).ljust(size, b"x") + behind)
        places.append([(run.size, data[run.offset + 4]) for data, found in file.more() for run in found
                       if run.kind == KIND_FRAME])
    assert places == [[(24, ord("a")), (24, ord("b"))], [], [(size, ord("x"))]]


def test_a_packet_that_is_not_whole_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "profile"
    packets = np.zeros(3, CLOCK.dtype)
    packets["tsize"], packets["kind"], packets["TSTAMP"] = CLOCK.size, CLOCK.kind, [21, 22, 23]
    data, file, seen = packets.tobytes(), GrowingPackets(path), []
    for end in range(len(data) + 1):
        path.write_bytes(data[:end])
        seen += packet_times(file)
        assert len(seen) == end // CLOCK.size
    assert seen == [21, 22, 23]
    assert HEAD.size == 4


@pytest.mark.parametrize("step", [1, 7, 64])
def test_a_text_that_grows_gives_every_element_once(tmp_path: Path, step: int) -> None:
    path = tmp_path / "log.xml"
    text = (b'<experiment version="12.4">\n<collector>c</collector>\n</experiment>\n'
            + element("event", {"kind": "exit", "name": b"a<\n>b"}) + element("event", {"kind": "cerror"}, b"<&>\x1b"))
    file, seen = GrowingText(path), b""
    for end in [*range(0, len(text), step), len(text)]:
        path.write_bytes(text[:end].ljust(512, b"\0") + b"\n")
        seen += file.more()
    assert parse(seen) == parse(text)
    assert file.more() == b""


def test_lines_whose_tags_are_not_yet_there_are_waited_for(tmp_path: Path) -> None:
    """The writer puts a ``<`` in its place, one after the other, when the rest of the text stands there."""
    path = tmp_path / "log.xml"
    text = element("event", {"kind": "a"}, b"x") + element("event", {"kind": "b"})
    bare, places = text.replace(b"<", b" "), [i for i, byte in enumerate(text) if byte == ord("<")]
    file, seen = GrowingText(path), []
    for n in range(len(places) + 1):
        shown = bytearray(bare)
        for place in places[:n]:
            shown[place] = ord("<")
        path.write_bytes(bytes(shown).ljust(256, b"\0"))
        seen.append([node.get("kind") for node in parse(file.more())])
    assert seen == [[], [], [b"a"], [b"b"]]
