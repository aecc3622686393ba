"""Growing files: packets whole at every instant, text cut only between tags, space allocated before it is used."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from collector.errors import ExperimentError
from collector.experiment import blocks, xml
from collector.experiment.blocks import DiskFull, PacketFile, TextFile, create_file
from collector.experiment.packets import Damage, runs
from collector.experiment.records import BLOCK_SIZE, CLOCK, HEAD, KIND_CLOSED
from collector.layout import Field, Record

ODD = Record(20, "odd", Field("tsize", "<u2"), Field("kind", "<u2"), Field("value", "<i8"), Field("more", "<i8"))


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield fd
    os.close(fd)


def odd_packets(first: int, count: int) -> np.ndarray:
    packets = np.zeros(count, ODD.dtype)
    packets["tsize"], packets["kind"] = ODD.size, ODD.kind
    packets["value"] = np.arange(first, first + count)
    packets["more"] = 0xABCD
    return packets


def packet(size: int, kind: int = 20, fill: bytes = b"\xee") -> bytes:
    return np.array([(size, kind)], HEAD.dtype).tobytes() + fill * (size - 4)


def content(path: Path) -> np.ndarray:
    return np.fromfile(path, np.uint8)


def sizes(path: Path, kind: int = 20) -> list[int]:
    damage = Damage()
    found = [size for run in runs(content(path), damage) if run.kind == kind for size in [run.size] * run.count]
    assert damage.n_invalid == 0
    return found


def test_packets_of_a_size_that_does_not_fill_a_block(directory: int, tmp_path: Path) -> None:
    create_file(directory, "p")
    file = PacketFile(directory, "p")
    done = 0
    for count in (1, 1, 700, 2503, 3, 5001):
        file.append_array(odd_packets(done, count))
        done += count
    data = content(tmp_path / "p")
    values = np.concatenate([data[r.offset:r.offset + r.count * r.size].view(ODD.dtype)["value"]
                             for r in runs(data) if r.kind == ODD.kind])
    assert values.tolist() == list(range(done))
    assert len(data) % BLOCK_SIZE == 0
    assert all(run.offset // BLOCK_SIZE == (run.offset + run.count * run.size - 1) // BLOCK_SIZE for run in runs(data))
    assert sum(run.kind == KIND_CLOSED for run in runs(data)) == file.used // BLOCK_SIZE
    file.close()
    assert (tmp_path / "p").stat().st_size == file.used


def test_clock_packets_fill_blocks_exactly(directory: int, tmp_path: Path) -> None:
    create_file(directory, "p")
    file = PacketFile(directory, "p")
    packets = np.zeros(1025, CLOCK.dtype)
    packets["tsize"], packets["kind"] = CLOCK.size, CLOCK.kind
    file.append_array(packets)
    file.close()
    assert [(r.size, r.kind, r.count) for r in runs(content(tmp_path / "p"))] == [(64, 8, 1025)]


@pytest.mark.parametrize("wanted", [
    [8, 16, 24], [16_384], [16_380, 4], [16_376, 16], [65_532], [65_528, 8], [8, 16_384, 8],
    [24, 40_000, 24, 65_532, 4], [4] * 5000, [12] * 3000, [1000] * 100])
def test_packets_of_any_size(directory: int, tmp_path: Path, wanted: list[int]) -> None:
    for split in (len(wanted), 1, 7):
        create_file(directory, f"p{split}")
        file = PacketFile(directory, f"p{split}")
        for first in range(0, len(wanted), split):
            file.append_packets([packet(size) for size in wanted[first:first + split]])
        assert sizes(tmp_path / f"p{split}") == wanted
        file.close()
        assert sizes(tmp_path / f"p{split}") == wanted


def test_a_commit_cut_after_any_store_shows_whole_packets_only(directory: int, tmp_path: Path) -> None:
    """The stores of one commit, in order: everything behind the first head, byte by byte, then that head."""
    create_file(directory, "p")
    file = PacketFile(directory, "p")
    file.append_array(odd_packets(0, 3))
    before = content(tmp_path / "p")
    start = file.used
    file.append_array(odd_packets(3, 4))
    after = content(tmp_path / "p")
    for stored in range(4, file.used - start):
        cut = before.copy()
        cut[start + 4:start + stored] = after[start + 4:start + stored]
        assert [run.count for run in runs(cut) if run.kind == ODD.kind] == [3]
    assert [run.count for run in runs(after)] == [7]


def test_text_cut_after_any_store_is_cut_between_tags(directory: int, tmp_path: Path) -> None:
    create_file(directory, "t")
    file = TextFile(directory, "t")
    file.append(xml.element("event", {"kind": "a"}, b"text"))
    before = content(tmp_path / "t")
    start = file.used
    added = xml.element("event", {"kind": "b", "name": b"<\n>"}, b"more") + xml.element("event", {"kind": "c"})
    file.append(added)
    after = content(tmp_path / "t")
    stages = [before.copy()]
    stages[0][start:start + len(added)] = np.frombuffer(added.replace(b"<", b" "), np.uint8)
    for place in np.flatnonzero(after[start:file.used] == ord("<")):
        stages.append(stages[-1].copy())
        stages[-1][start + place] = ord("<")
    assert stages[-1].tobytes() == after.tobytes()
    kinds = [[e.get("kind") for e in xml.parse(stage.tobytes())] for stage in stages]
    assert kinds == [[b"a"], [b"a", b"b"], [b"a", b"b"], [b"a", b"b", b"c"]]


def test_text_is_padded_with_nuls_and_ends_in_a_newline(directory: int, tmp_path: Path) -> None:
    create_file(directory, "t")
    file = TextFile(directory, "t")
    lines = b""
    for number in range(2003):
        line = xml.element("event", {"kind": "x", "id": number})
        lines += line
        file.append(line)
    raw = (tmp_path / "t").read_bytes()
    assert raw == lines + b"\0" * (len(raw) - len(lines) - 1) + b"\n"
    assert len(raw) % BLOCK_SIZE == 0
    file.close()
    assert (tmp_path / "t").read_bytes() == lines


def test_windows_are_let_go_and_taken_again(directory: int, tmp_path: Path) -> None:
    create_file(directory, "p")
    file = PacketFile(directory, "p")
    descriptors = len(os.listdir("/proc/self/fd"))
    for count in range(1, 50):
        file.append_array(odd_packets(0, count))
        assert file.mapped
        assert len(os.listdir("/proc/self/fd")) == descriptors + 1
        file.release()
        assert not file.mapped
        assert len(os.listdir("/proc/self/fd")) == descriptors
    assert len(sizes(tmp_path / "p")) == 49 * 50 // 2


def test_space_is_allocated_ahead_and_grows(directory: int, tmp_path: Path) -> None:
    create_file(directory, "p")
    file = PacketFile(directory, "p")
    seen = set()
    for _ in range(300):
        file.append_array(odd_packets(0, 1000))
        status = os.stat(tmp_path / "p")
        assert status.st_blocks * 512 >= status.st_size
        seen.add(file.allocated - file.used >= 0 and status.st_size)
    assert len(seen) < 15


def test_files_are_private_and_made_once(directory: int, tmp_path: Path) -> None:
    create_file(directory, "f", b"content", 5000)
    assert (tmp_path / "f").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "f").read_bytes() == b"content" + b"\0" * 4993
    assert os.listdir(tmp_path) == ["f"]


def test_symbolic_links_are_not_followed(directory: int, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(b"precious")
    (tmp_path / "f.new").symlink_to(outside)
    with pytest.raises(ExperimentError, match="cannot write f: File exists"):
        create_file(directory, "f", b"x")
    (tmp_path / "g").symlink_to(outside)
    create_file(directory, "g", b"mine")  # replaces the link, does not follow it
    assert (tmp_path / "g").read_bytes() == b"mine"
    assert not (tmp_path / "g").is_symlink()
    (tmp_path / "h").symlink_to(outside)
    with pytest.raises(ExperimentError, match="cannot write h"):
        PacketFile(directory, "h").append_packets([packet(8)])
    assert outside.read_bytes() == b"precious"


def test_a_file_that_was_replaced_or_deleted_or_cut_is_an_error(directory: int, tmp_path: Path) -> None:
    def written() -> PacketFile:
        create_file(directory, "p")
        file = PacketFile(directory, "p")
        file.append_packets([packet(8)])
        file.release()
        return file

    file = written()
    (tmp_path / "q").write_bytes(b"\0" * 100_000)
    os.rename(tmp_path / "q", tmp_path / "p")
    with pytest.raises(ExperimentError, match="replaced"):
        file.append_packets([packet(8)])
    file = written()
    os.unlink(tmp_path / "p")
    with pytest.raises(ExperimentError, match="deleted"):
        file.append_packets([packet(8)])
    file = written()
    os.truncate(tmp_path / "p", 0)
    with pytest.raises(ExperimentError, match="cut it short"):
        file.append_packets([packet(8)])


@pytest.fixture
def file_size_limit() -> Iterator[int]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    limit = 5 * BLOCK_SIZE
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    yield limit
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_limit_is_an_error_and_what_was_written_stays(
        directory: int, tmp_path: Path, file_size_limit: int) -> None:
    create_file(directory, "p")
    file = PacketFile(directory, "p")
    with pytest.raises(DiskFull, match="file size limit is reached; raise it"):
        for count in range(1000):
            file.append_array(odd_packets(count * 100, 100))
    assert count * 100 * ODD.size <= file_size_limit < (count + 2) * 100 * ODD.size + BLOCK_SIZE
    assert len(sizes(tmp_path / "p")) >= count * 100
    file.close()
    assert len(sizes(tmp_path / "p")) >= count * 100


def test_text_keeps_a_reserve_for_its_last_lines(directory: int, tmp_path: Path, file_size_limit: int) -> None:
    create_file(directory, "t")
    file = TextFile(directory, "t")
    line = xml.element("event", {"kind": "x"}, b"y" * 100)
    with pytest.raises(DiskFull):
        while True:
            file.append(line)
    left = file_size_limit - file.used
    assert blocks.TEXT_RESERVE <= left < blocks.TEXT_RESERVE + len(line)
    for _ in range(left // len(line)):
        file.append(line, 0)
    with pytest.raises(DiskFull):
        file.append(line, 0)
    file.close()
    assert len(xml.parse((tmp_path / "t").read_bytes())) == file.used // len(line)


KILLED = """
import os, sys
import numpy as np
from collector.experiment.blocks import PacketFile, create_file
fd = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECTORY)
create_file(fd, "p")
file = PacketFile(fd, "p")
big = np.arange(5000, dtype="<u8").tobytes()
number = 0
while True:
    packets = []
    for size in (16, 40, 24, 12_000, 40_000, 16):
        head = (size | 20 << 16 | number << 32).to_bytes(8, "little")
        packets.append(head + big[:size - 8])
        number += 1
    file.append_packets(packets)
    if number == len(packets):
        print("ready", flush=True)
"""


def test_a_writer_killed_at_any_instant_leaves_whole_packets_in_order(tmp_path: Path) -> None:
    expected = (16, 40, 24, 12_000, 40_000, 16)
    for attempt in range(9):
        directory = tmp_path / str(attempt)
        directory.mkdir()
        with subprocess.Popen([sys.executable, "-c", KILLED, directory], stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            time.sleep(0.001 * 3 ** (attempt % 4) + 0.0007 * attempt)
            writer.kill()
        data = content(directory / "p")
        damage = Damage()
        found = [(run.size, int(data[offset + 4:offset + 8].view("<u4")[0]))
                 for run in runs(data, damage) if run.kind == 20
                 for offset in range(run.offset, run.offset + run.count * run.size, run.size)]
        assert damage.n_invalid == 0
        assert found == [(expected[number % 6], number) for number in range(len(found))]
        assert found
