"""Perf maps and jitdumps: parsed, cut at every byte, grown piece by piece; code that is replaced is told by time."""

from __future__ import annotations

import gc
import os
import struct
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest

from collector.linux.code_files import CodeFile
from collector.runtimes import perf_map
from collector.runtimes.code import NAME_MAX, Code, CodeTable
from collector.runtimes.jitdump import Jitdump
from collector.runtimes.maps import CodeMaps

HEAD = struct.Struct("<IIIIIIQQ")
RECORD = struct.Struct("<IIQ")


def head(flags: int = 0, size: int = HEAD.size) -> bytes:
    return HEAD.pack(0x4A695444, 1, size, 62, 0, 1234, 0, flags).ljust(size, b"\0")


def record(kind: int, time_ns: int, body: bytes) -> bytes:
    return RECORD.pack(kind, RECORD.size + len(body), time_ns) + body


def load(time_ns: int, address: int, name: bytes, code: bytes, index: int) -> bytes:
    fields = struct.pack("<IIQQQQ", 1234, 1234, address, address, len(code), index)
    return record(0, time_ns, fields + name + b"\0" + code)


def lines(address: int, told: list[tuple[int, int, bytes]]) -> bytes:
    body = struct.pack("<QQ", address, len(told))
    return record(2, 0, body + b"".join(struct.pack("<Qii", at, line, 0) + name + b"\0" for at, line, name in told))


def move(time_ns: int, old: int, new: int, size: int, index: int) -> bytes:
    return record(1, time_ns, struct.pack("<IIQQQQQ", 1234, 1234, new, old, new, size, index))


DUMP = head() + b"".join([
    lines(0x1000, [(0x1000, 7, b"a.js"), (0x1004, 8, b"\xff"), (0x1006, 1, b"other.js")]),
    load(50, 0x1000, b"first", b"\x90" * 11, 1),
    record(4, 0, b"unwinding"),
    load(60, 0x1008, b"second <&\n>", b"\xc3" * 5, 2),
    move(70, 0x1000, 0x2000, 11, 1),
    record(3, 80, b""),
])
FIRST = Code(0x1000, 11, b"first", 50, b"\x90" * 11, b"a.js", ((0, 7), (4, 8)))
FOUND = [FIRST, Code(0x1008, 5, b"second <&\n>", 60, b"\xc3" * 5), FIRST._replace(start=0x2000, since_ns=70)]


def test_a_jitdump_written_by_hand() -> None:
    dump = Jitdump()
    assert dump.feed(DUMP, 1) == FOUND
    assert (dump.is_broken, dump.n_skipped) == (False, 0)


def test_a_jitdump_cut_at_every_byte_goes_on_there() -> None:
    for cut in range(len(DUMP)):
        dump = Jitdump()
        before = dump.feed(DUMP[:cut], 1)
        assert before == FOUND[:len(before)]
        assert before + dump.feed(DUMP[cut:], 1) == FOUND


def test_a_jitdump_damaged_at_every_byte_gives_no_exception() -> None:
    for at in range(len(DUMP)):
        for value in (0, 0xFF, 0x7F):
            Jitdump().feed(DUMP[:at] + bytes([value]) + DUMP[at + 1:], 1)


def test_lines_that_are_told_behind_the_header_of_an_elf_file_are_moved_back() -> None:
    """As V8 and Dart tell them; others have lines at the beginning of code, or did in earlier code."""
    told = [(0x1000 + at, line, b"a.js") for line, at in enumerate((0, 0x20, 0x80, 0xe0), 1)]
    ahead = [(at + 0x40, line, name) for at, line, name in told]
    code = load(50, 0x1000, b"f", bytes(0x100), 1)
    first, = Jitdump().feed(head() + lines(0x1000, told) + code, 1)
    assert Jitdump().feed(head() + lines(0x1000, ahead) + code, 1) == [first]
    assert first.lines == ((0, 1), (0x20, 2), (0x80, 3), (0xe0, 4))
    late = lines(0x1000, told[2:])
    assert Jitdump().feed(head() + lines(0x1000, told) + code + late + code, 1)[1].lines == ((0x80, 3), (0xe0, 4))


def test_times_of_a_cpu_are_those_of_the_reading() -> None:
    assert [code.since_ns for code in Jitdump().feed(head(flags=1, size=48) + DUMP[HEAD.size:], 33)] == [33, 33, 33]


@pytest.mark.parametrize("damage", [b"", b"JUNK" * 20, head()[:20], record(0, 1, b"")])
def test_what_is_no_jitdump_tells_nothing(damage: bytes) -> None:
    assert Jitdump().feed(damage, 1) == []


MAP = (b"7f00 10 LazyCompile:~f /tmp/a b.js:1:2\n0x7F10 0x20 Lint;::run(II)V\nffffffffffffffff 2 beyond\n"
       b"nonsense\n7f40 0 empty\n\n7f50 8   \xff\xfe<&\x01>\n")


def test_a_perf_map_tells_names_with_blanks_and_any_bytes() -> None:
    told, n_bad = perf_map.parse(MAP, 9)
    assert told == [Code(0x7F00, 0x10, b"LazyCompile:~f /tmp/a b.js:1:2", 9), Code(0x7F10, 0x20, b"Lint;::run(II)V", 9),
                    Code(0x7F50, 8, b"\xff\xfe<&\x01>", 9)]
    assert n_bad == 3


@pytest.mark.parametrize("line", [b"1 1" + b" " * 60_000, b"1" + b" " * 60_000 + b"z", b"1 1 " + b"\t \r" * 20_000,
                                  b" " * 60_000, b"1" * 60_000, b"1 1 " + b"x " * 30_000 + b"\v"])
def test_a_line_of_a_perf_map_is_read_in_one_go(line: bytes) -> None:
    """Of hostile ones: each of these would take seconds if places in it were tried in turn, and there are many."""
    is_named = b"x" in line
    told, n_bad = perf_map.parse((line + b"\n") * 400 + b"1000 10 good\n", 1)
    assert [code.name for code in told] == [line[4:4 + NAME_MAX]] * 400 * is_named + [b"good"]
    assert n_bad == 400 * (not is_named and not line.isspace())


def test_a_line_that_is_too_long_tells_nothing(tmp_path: Path) -> None:
    """Nor does a part of it that could be one, wherever it is cut."""
    long = b"1000 10 " + b"2000 10 part " * (perf_map.LINE_MAX // 13)
    assert perf_map.parse(long + b"\n3000 10 good\n", 1) == ([Code(0x3000, 0x10, b"good", 1)], 1)
    path = tmp_path / "perf-5.map"
    for n in (0, 5, 13, len(long) - 13):
        maps = CodeMaps([5], open_file(tmp_path), 1)
        path.write_bytes(long + long[:n])
        maps.read(10, [])
        path.write_bytes(long + long[:n] + b"4000 10 part\n3000 10 good\n")
        maps.read(20, [])
        assert maps.n_bad == 1
        assert [maps.at(pc, 20) for pc in (0x1000, 0x2000, 0x4000)] == [None] * 3
        assert maps.at(0x3000, 20) is not None


@pytest.mark.parametrize("damage", [head() + RECORD.pack(0, 1 << 27, 5),
                                    HEAD.pack(0x4A695444, 1, 1 << 27, 62, *[0] * 4), b"JUNK" * 20])
def test_a_jitdump_with_a_record_that_has_no_end_is_read_no_further(damage: bytes) -> None:
    dump = Jitdump()
    assert dump.feed(damage, 1) == []
    assert dump.is_broken
    assert dump.feed(b"\x90" * 4096, 1) == []
    assert dump._rest == b""


def test_a_long_map_is_read_in_parts_and_told_as_if_it_had_been_read_at_once(tmp_path: Path) -> None:
    """What is new in it counts from when all before had been read."""
    path, filler = tmp_path / "perf-5.map", b"%x 10 " + b"f" * 4000 + b"\n"
    path.write_bytes(b"10 10 old\n" + b"".join(filler % (4096 + 16 * i) for i in range(4000)) + b"10 10 new\n")
    maps, n_reads = CodeMaps([5], open_file(tmp_path), 1), 1
    child = CodeMaps([6], open_file(tmp_path), 2, maps)
    assert maps.read(10, [])
    while maps.is_behind:
        assert child.is_behind
        assert not child.read(10 + n_reads, [])
        n_reads += 1
        assert maps.read(10 + n_reads, [])
    assert n_reads > 3
    assert child.read(50, [])
    told = [one.at(0x10, time) for one in (maps, child) for time in (1, 5, 99)]
    assert {code and (code.name, code.since_ns) for code in told} == {(b"new", 1)}
    with path.open("ab") as file:
        file.write(b"10 10 newest\n")
    assert maps.read(60, [])
    assert [code and code.name for code in (maps.at(0x10, 10 + n_reads - 1), maps.at(0x10, 10 + n_reads))] == [
        b"new", b"newest"]


def test_the_newest_code_at_a_time_counts_and_stands_for_earlier_times() -> None:
    table = CodeTable()
    table.add([Code(100, 50, b"old", 5), Code(10, 500, b"around", 1)])
    table.add([Code(120, 10, b"new", 9)])
    names = [[found.name if found else None for found in (table.at(pc, t) for t in (0, 5, 9))]
             for pc in (9, 10, 119, 120, 130)]
    assert names == [[None, None, None], [b"around"] * 3, [b"old", b"around", b"around"],
                     [b"old", b"around", b"new"], [b"old", b"around", b"around"]]


class File:
    """A file that is written while it is read."""

    n_anew = 0

    def __init__(self) -> None:
        self.content, self.at = b"", 0

    def more(self) -> bytes:
        found, self.at = self.content[self.at:self.at + 7], min(self.at + 7, len(self.content))
        return found

    def close(self) -> None:
        """Nothing is open."""


def open_file(folder: Path) -> Callable[[bytes], CodeFile | None]:
    """What opens files of a folder by their names."""
    def opened(path: bytes) -> CodeFile | None:
        there = folder / Path(os.fsdecode(path)).name
        return CodeFile(os.open(there, os.O_RDONLY)) if there.exists() else None

    return opened


@pytest.mark.parametrize("more", [b"", b"3000 10 three\n"])
def test_a_map_that_is_written_anew_is_read_anew(more: bytes, tmp_path: Path) -> None:
    """As shorter or longer than it was, and while it has a line that is not whole."""
    path = tmp_path / "perf-5.map"
    path.write_bytes(b"1000 10 one\n2000 10 two\n4000 10 fo")
    maps = CodeMaps([5], open_file(tmp_path), 1)
    maps.read(10, [])
    path.write_bytes(b"9000 10 nine\n1000 10 other\n2000 10 two\n" + more)
    maps.read(20, [])
    names = [[code.name if code else None for code in (maps.at(pc, time) for time in (5, 15))]
             for pc in (0x1000, 0x2000, 0x9000, 0x3000)]
    assert names == [[b"one", b"other"], [b"two"] * 2, [b"nine"] * 2, [b"three" if more else None] * 2]
    assert maps.n_bad == 0
    assert not maps.read(30, [])
    path.write_bytes(b"1000 10 other\n9000 10 nine\n" + more)
    assert not maps.read(40, [])  # nothing of that is new
    path.write_bytes(b"1008 10 late\n1000 10 other\n")
    assert maps.read(50, [])
    other = maps.at(0x100F, 60)
    assert other is not None
    assert other.name == b"other"


def test_a_map_that_is_written_anew_again_and_again_lets_us_go(tmp_path: Path) -> None:
    path = tmp_path / "perf-5.map"
    path.write_bytes(b"1000 10 one\n")

    class Restless(CodeFile):
        def more(self) -> bytes:
            number[0] += 1
            path.write_bytes(b"%x000 10 one\n" % number[0])
            return super().more()

    number = [1]
    maps = CodeMaps([5], lambda name: Restless(os.open(path, os.O_RDONLY)), 1)
    for n_reads in (4, 6, 8):
        assert maps.read(n_reads, [])
        assert number[0] == n_reads


def test_a_jitdump_that_is_written_anew_is_read_anew(tmp_path: Path) -> None:
    path, name = tmp_path / "jit-5.dump", b"/tmp/jit-5.dump"
    path.write_bytes(head() + load(5, 0x1000, b"old", b"\x90" * 9, 1) + load(6, 0x2000, b"gone", b"\x90", 2))
    maps = CodeMaps([5], open_file(tmp_path), 1)
    assert maps.read(10, [name])
    path.write_bytes(head() + load(15, 0x1000, b"new", b"\xc3" * 9, 1))
    assert maps.read(20, [name])
    assert [code and code.name for code in (maps.at(0x1000, 8), maps.at(0x1000, 18))] == [b"old", b"new"]
    path.write_bytes(b"")
    assert not maps.read(30, [name])
    path.write_bytes(head() + load(25, 0x1000, b"newest", b"\xc3" * 9, 1))
    assert maps.read(40, [name])
    newest = maps.at(0x1000, 35)
    assert newest is not None
    assert newest.name == b"newest"


def test_what_is_over_keeps_no_file_open_and_stays_known_to_who_was_forked(tmp_path: Path) -> None:
    (tmp_path / "perf-5.map").write_bytes(b"1000 10 one\n")
    (tmp_path / "jit-5.dump").write_bytes(head() + load(5, 0x2000, b"two", b"\x90" * 9, 1))
    before = os.listdir("/proc/self/fd")
    maps = CodeMaps([5], open_file(tmp_path), 1)
    assert maps.read(10, [b"/tmp/jit-5.dump"])
    child = CodeMaps([6], open_file(tmp_path), 20, maps)
    for _ in range(2):
        maps.close()
        assert os.listdir("/proc/self/fd") == before
    assert not maps.read(30, [b"/tmp/jit-5.dump"])
    assert [code and code.name for code in (child.at(0x1000, 40), child.at(0x2000, 40))] == [b"one", b"two"]


def test_a_chain_of_forks_keeps_few_of_those_that_are_over() -> None:
    """Each maker of code forks the next one, and ends; whoever lives knows of the last ones before."""
    maps, tables = None, []
    for i in range(2000):
        file = File()
        file.content = b"%x 8 f\n" % (4096 + i)
        before, maps = maps, CodeMaps([i], {b"/tmp/perf-%d.map" % i: file}.get, i, maps)
        assert maps.read(i, [])
        assert maps.at(1, i) is None
        tables.append(weakref.ref(maps._table))
        if before is not None:
            before.close()
    assert maps is not None
    for near in range(9):
        code = maps.at(4096 + 1999 - near, 2000)
        assert code is not None
        assert code.start == 4096 + 1999 - near
    gc.collect()
    assert sum(table() is not None for table in tables) < 100


def test_maps_are_read_as_they_grow_and_inherited() -> None:
    files = {b"/tmp/perf-5.map": File(), b"/tmp/jit-5.dump": File()}
    maps = CodeMaps([5, 99], files.get, 100)
    files[b"/tmp/perf-5.map"].content = b"10 8 one\n20 8 tw"
    assert maps.read(200, [])
    files[b"/tmp/perf-5.map"].content += b"o\n10 8 again\n"
    files[b"/tmp/jit-5.dump"].content = head() + load(350, 0x50, b"dumped", b"\x90\x90", 1)
    assert maps.read(300, [b"/tmp/jit-5.dump"])
    told = [maps.at(pc, t) for pc, t in ((0x10, 150), (0x10, 250), (0x20, 150), (0x51, 400), (0x60, 400))]
    assert [code and (code.name, code.since_ns) for code in told] == [
        (b"one", 100), (b"again", 200), (b"two", 200), (b"dumped", 350), None]
    child = CodeMaps([6], files.get, 220, maps)
    inherited = child.at(0x10, 400)
    assert inherited is not None
    assert inherited.name == b"again"
