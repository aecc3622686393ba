"""Load objects: real files against readelf, damaged ones against nothing but ElfError, hostile paths against time."""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
import sys
import time
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collector.dwarf import source_files
from collector.elf import (
    EM_386,
    EM_X86_64,
    ET_DYN,
    LoadObject,
    Symbols,
    object_of_bytes,
    object_of_fd,
    open_object,
    packed_symbols,
)
from collector.errors import ElfError

LIBC = "/usr/lib/x86_64-linux-gnu/libc.so.6"
PROGRAM = """
int global_function(int a) { return a + 1; }
static int local_function(int a) { return a + 2; }
int main(int n, char **v) { return global_function(n) + local_function(n); }
"""
Need = Callable[[str, str], str]


@pytest.fixture
def build(need: Need, tmp_path: Path) -> Callable[..., Path]:
    def make(name: str, *flags: str) -> Path:
        if "-m32" in flags:
            need("/usr/lib32/libc.so.6", "gcc-multilib")
        source, program = tmp_path / "program.c", tmp_path / name
        source.write_text(PROGRAM)
        subprocess.run([need("gcc", "gcc"), "-w", "-o", program, source, *flags], check=True, timeout=60)
        return program

    return make


def readelf(need: Need, path: Path | str, *options: str) -> str:
    return subprocess.run([need("readelf", "binutils"), "-W", *options, path], capture_output=True, text=True,
                          timeout=60, check=True).stdout


FLAGS = {"pie": ("-pie",), "no pie": ("-no-pie",), "static": ("-static",), "static pie": ("-static-pie",),
         "library": ("-shared", "-fPIC"), "i386": ("-m32",)}


@pytest.mark.parametrize("kind", FLAGS)
def test_headers_are_readelfs(kind: str, build: Callable[..., Path], need: Need) -> None:
    path = build("program", *FLAGS[kind], "-Wl,--build-id")
    with open_object(str(path)) as found:
        header, notes = readelf(need, path, "-h"), readelf(need, path, "-n")
        assert found.is_64 == ("ELF64" in header)
        assert found.machine == (EM_386 if kind == "i386" else EM_X86_64)
        assert (found.type == ET_DYN) == ("DYN (" in header)
        assert f"{found.entry:#x}" == re.findall(r"Entry point address:\s+(\S+)", header)[0]
        assert found.build_id is not None
        assert found.build_id.hex() == re.findall(r"Build ID: ([0-9a-f]+)", notes)[0]
        assert found.is_static == kind.startswith("static")
        assert (found.interpreter is None) == (kind.startswith("static") or kind == "library")
        loads = [tuple(int(part, 16) for part in match) for match in
                 re.findall(r"LOAD\s+0x(\S+) 0x(\S+) 0x\S+ 0x(\S+) 0x(\S+)", readelf(need, path, "-l"))]
        assert [(s.file_offset, s.vaddr, s.file_size, s.memory_size) for s in found.loads] == loads


@pytest.mark.parametrize("kind", FLAGS)
def test_sections_and_symbols_are_readelfs(kind: str, build: Callable[..., Path], need: Need) -> None:
    path = build("program", *FLAGS[kind])
    with open_object(str(path)) as found:
        pattern = r"\[ *\d+\] (\S+)\s+\S+\s+([0-9a-f]+) ([0-9a-f]+) ([0-9a-f]+)"
        expected = {name: tuple(int(x, 16) for x in rest)
                    for name, *rest in re.findall(pattern, readelf(need, path, "-S"))}
        assert expected.items() <= {s.name: (s.vaddr, s.file_offset, s.size) for s in found.sections.values()}.items()
        symbols = found.symbols()
        ours = sorted((int(symbols.value[i]), int(symbols.size[i]), symbols.name(i).decode())
                      for i in range(len(symbols)))
        pattern = r"\d+: ([0-9a-f]+)\s+(\d+|0x[0-9a-f]+) (?:FUNC|IFUNC)\s+\S+\s+\S+\s+(?:\[.*\]\s+)?(\d+) (\S+)"
        lines = re.findall(pattern, readelf(need, path, "-s").split("'.symtab'")[1])
        assert ours == sorted((int(value, 16), int(size, 0), name) for value, size, _, name in lines)
        assert {"main", "global_function", "local_function"} <= {name for *_, name in ours}
        assert symbols.value.tolist() == sorted(symbols.value.tolist())


def test_a_file_of_symbols_alone_is_what_readelf_reads(tmp_path: Path, need: Need) -> None:
    start, size = np.array([0x1000, 0x1031, 0x1F00], np.uint64), np.array([0x31, 7, 0x123], np.uint64)
    names = [b"entry", b"inner.isra.0", b"last" * 100]
    content = packed_symbols(start, size, names, 0x1000, 0x3000, EM_X86_64)
    path = tmp_path / "symbols"
    path.write_bytes(content)
    pattern = r"\d+: ([0-9a-f]+)\s+(\d+|0x[0-9a-f]+) FUNC\s+GLOBAL DEFAULT\s+1 (\S+)"
    found = [(int(value, 16), int(n, 0), name.encode()) for value, n, name in
             re.findall(pattern, readelf(need, path, "-s"))]
    assert found == list(zip(start.tolist(), size.tolist(), names, strict=True))
    assert re.search(r"LOAD\s+0x0*1000 0x0*1000 0x0*1000 0x0+ 0x0*3000 R E", readelf(need, path, "-l"))
    assert re.search(r"\.text\s+NOBITS\s+0*1000 0*1000 0*3000 00  AX", readelf(need, path, "-S"))
    with open_object(str(path)) as ours:
        assert ours.build_id is not None
        assert f"Build ID: {ours.build_id.hex()}" in readelf(need, path, "-n")
        symbols = ours.symbols()
        assert [symbols.name(i) for i in range(len(symbols))] == names
        assert ours.read_at(0x1000, 16) == b""  # there are no bytes of it
    other = object_of_bytes(packed_symbols(start + 1, size, names, 0x1000, 0x3000, EM_X86_64), "other")
    assert other.build_id != ours.build_id


def test_dynamic_symbols_of_a_stripped_library(build: Callable[..., Path], need: Need) -> None:
    path = build("library", "-shared", "-fPIC")
    subprocess.run([need("strip", "binutils"), path], check=True, timeout=60)
    with open_object(str(path)) as found:
        symbols = found.symbols()
        names = [symbols.name(i) for i in range(len(symbols))]
        assert b"global_function" in names
        assert b"local_function" not in names
        start = int(symbols.value[names.index(b"global_function")])
        assert symbols.at(start) == symbols.at(start + 3) == names.index(b"global_function")
        assert symbols.at(0) is None


def test_addresses_and_file_offsets() -> None:
    with open_object(LIBC) as found:
        text = next(s for s in found.loads if s.is_executable)
        page = text.file_offset & -4096
        assert found.vaddr_of(text.file_offset) == text.vaddr
        assert found.vaddr_of(page) == text.vaddr - (text.file_offset - page)
        assert found.vaddr_of(text.file_offset + text.file_size - 1) == text.vaddr + text.file_size - 1
        assert found.vaddr_of(found.loads[0].file_offset) is None
        assert found.vaddr_of(1 << 40) is None
        assert found.offset_of(text.vaddr + 5) == text.file_offset + 5
        assert found.offset_of(1 << 40) is None
        with open(LIBC, "rb") as file:
            file.seek(text.file_offset + 100)
            assert found.read_at(text.vaddr + 100, 64) == file.read(64)
        assert len(found.read_at(text.vaddr + text.file_size - 3, 64)) == 3
        assert found.read_at(1 << 40, 64) == b""


def test_the_vdso_is_an_object_in_memory() -> None:
    line = next(x for x in Path("/proc/self/maps").read_text().splitlines() if x.endswith("[vdso]"))
    start, end = (int(x, 16) for x in line.split()[0].split("-"))
    with open("/proc/self/mem", "rb") as memory:
        memory.seek(start)
        found = object_of_bytes(memory.read(end - start), "[vdso]")
    symbols = found.symbols()
    assert b"__vdso_clock_gettime" in [symbols.name(i) for i in range(len(symbols))]
    assert found.vaddr_of(0) == 0
    hdr = found.eh_frame_hdr()
    assert hdr is not None
    assert hdr.read(0, 1) == b"\1"


@pytest.mark.parametrize("how", ["build-id", "link"])
def test_separate_debug_files(how: str, build: Callable[..., Path], need: Need, tmp_path: Path) -> None:
    flags = ("-g", "-Wl,--build-id" if how == "build-id" else "-Wl,--build-id=none", "-fno-asynchronous-unwind-tables")
    path, objcopy = build("program", *flags), need("objcopy", "binutils")
    debug = tmp_path / "program.debug"
    subprocess.run([objcopy, "--only-keep-debug", path, debug], check=True, timeout=60)
    subprocess.run([objcopy, "--strip-all", f"--add-gnu-debuglink={debug}", path], check=True, timeout=60)
    with open_object(str(path)) as found:
        assert found.debug_frame() is None
        if how == "build-id":
            assert found.build_id is not None
            text = found.build_id.hex()
            place = tmp_path / "usr/lib/debug/.build-id" / text[:2] / f"{text[2:]}.debug"
            place.parent.mkdir(parents=True)
            shutil.move(debug, place)
        other = found.debug_object(str(tmp_path) if how == "build-id" else "")
        assert other is not None
        extent = other.debug_frame()
        assert extent is not None
        assert len(extent.read(0, extent.size)) == extent.size > 50
        other.close()
    if how == "link":
        debug.write_bytes(debug.read_bytes() + b"changed")
        with open_object(str(path)) as found:
            assert found.debug_object() is None


def test_a_stripped_file_is_not_its_own_debug_file(build: Callable[..., Path], need: Need, tmp_path: Path) -> None:
    """Where the debug file has the program's name, in a folder of its own."""
    path, objcopy, debug = build("program", "-Wl,--build-id"), need("objcopy", "binutils"), tmp_path / ".debug/program"
    debug.parent.mkdir()
    subprocess.run([objcopy, "--only-keep-debug", path, debug], check=True, timeout=60)
    subprocess.run([objcopy, "--strip-all", f"--add-gnu-debuglink={debug}", path], check=True, timeout=60)
    with open_object(str(path)) as found:
        other = found.debug_object()
    assert other is not None
    assert (other.name, other.is_stripped) == (str(debug), False)
    other.close()


def test_a_debug_file_too_large_for_its_checksum(build: Callable[..., Path], need: Need, tmp_path: Path) -> None:
    path, objcopy, debug = build("program", "-Wl,--build-id=none"), need("objcopy", "binutils"), tmp_path / "debug"
    subprocess.run([objcopy, "--only-keep-debug", path, debug], check=True, timeout=60)
    subprocess.run([objcopy, "--strip-all", f"--add-gnu-debuglink={debug}", path], check=True, timeout=60)
    os.truncate(debug, (4 << 30) + 1)  # which takes no room on the disk
    before = bytes_read()
    with open_object(str(path)) as found:
        assert found.debug_object() is None
    assert bytes_read() - before < 1 << 20


def bytes_read() -> int:
    """By this process, whatever files they come from."""
    return int(Path("/proc/self/io").read_text().split()[1])


def test_compressed_sections(build: Callable[..., Path], need: Need) -> None:
    flags = ("-g", "-fno-asynchronous-unwind-tables")
    with open_object(str(build("plain", *flags))) as plain, open_object(str(build("small", *flags, "-gz"))) as small:
        one, other = plain.section_bytes(".debug_info"), small.section_bytes(".debug_info")
        assert small.sections[".debug_info"].size < len(other)
        assert len(one) == len(other)


def test_zstd_is_not_taken_for_damage(build: Callable[..., Path]) -> None:
    path = build("program", "-g", "-gz", "-fno-asynchronous-unwind-tables")
    with open_object(str(path)) as found, path.open("r+b") as file:
        packed = [section for section in found.sections.values() if section.flags & 0x800]
        assert packed
        for section in packed:
            file.seek(section.file_offset)
            file.write((2).to_bytes(4, "little"))
        file.flush()
        for read in (lambda: found.section_bytes(packed[0].name), lambda: source_files(found)):
            with pytest.raises(ElfError, match=r"program: \.debug_\w+ is compressed with zstd, which is not unpacked"):
                read()


# --- damage ---------------------------------------------------------------------------------------


def use_everything(found: LoadObject) -> None:
    """Whatever can be asked of an object; only ElfError may come out."""
    questions: list[Callable[[], object]] = [
        lambda: found.build_id, lambda: found.interpreter, lambda: found.is_static, lambda: found.sections,
        found.symbols, found.eh_frame, found.debug_frame, found.debug_object, lambda: found.vaddr_of(0x1000),
        lambda: found.offset_of(0x1000), lambda: found.read_at(found.entry, 64),
        lambda: [found.section_bytes(name) for name in found.sections],
        lambda: (extent := found.eh_frame_hdr()) and extent.read(0, extent.size),
        lambda: (symbols := found.symbols()) and [symbols.name(i) for i in range(len(symbols))]]
    for question in questions:
        try:
            question()
        except ElfError as err:
            assert "\n" not in str(err)


@pytest.fixture(scope="module")
def small_program(tmp_path_factory: pytest.TempPathFactory, need: Need) -> bytes:
    gcc = need("gcc", "gcc")
    folder = tmp_path_factory.mktemp("elf")
    (folder / "a.c").write_text("int add(int a) { return a + 1; }\n")
    subprocess.run([gcc, "-g", "-gz", "-shared", "-nostdlib", "-Wl,--build-id", "-o", folder / "a", folder / "a.c"],
                   check=True, timeout=60)
    return (folder / "a").read_bytes()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_anywhere(small_program: bytes, data: st.DataObject) -> None:
    """Bytes of the headers and tables changed, or the end cut off: an answer or ElfError."""
    content = bytearray(small_program)
    for _ in range(data.draw(st.integers(1, 4))):
        in_header = data.draw(st.booleans())
        at = data.draw(st.integers(0, 600 if in_header else len(content) - 1))
        content[at] = data.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF, content[at] ^ 1]))
    content = content[:data.draw(st.sampled_from([len(content), data.draw(st.integers(0, len(content)))]))]
    try:
        found = object_of_bytes(bytes(content), "damaged")
    except ElfError as err:
        assert "\n" not in str(err)
        return
    use_everything(found)


def test_cut_at_every_sixteenth_byte(small_program: bytes) -> None:
    for end in range(0, len(small_program), 16):
        try:
            found = object_of_bytes(small_program[:end], "cut")
        except ElfError:
            continue
        use_everything(found)


def test_headers_cut_at_every_byte(small_program: bytes) -> None:
    for end in range(64 + 56):
        with pytest.raises(ElfError):
            object_of_bytes(small_program[:end], "cut")


@pytest.mark.parametrize(("at", "value"), [(0x38, 0xFFFE), (0x3C, 0xFEFF), (0x36, 8), (0x3A, 8)],
                         ids=["program headers", "sections", "size of a program header", "size of a section header"])
def test_absurd_tables_are_refused_at_once(at: int, value: int, small_program: bytes) -> None:
    """Also in a file that is long enough for the whole of it."""
    content = bytearray(small_program + bytes(5_000_000))
    content[at:at + 2] = value.to_bytes(2, "little")
    start = time.thread_time()
    with pytest.raises(ElfError):
        assert object_of_bytes(bytes(content), "absurd").sections
    assert time.thread_time() - start < 0.5


def test_names_without_an_end_are_none() -> None:
    """Each section would have all the rest as its name."""
    n_sections, names = 1000, b"x" * (1 << 18)
    header = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\2\1\1", 3, 62, 1, 0, 0, 64, 0, 64, 56, 0, 64, n_sections, 1)
    section = struct.pack("<IIQQQQIIQQ", 0, 3, 0, 0, 64 + 64 * n_sections, len(names), 0, 0, 1, 0)
    found = object_of_bytes(header + section * n_sections + names, "names")
    assert list(found.sections) == [""]


@pytest.mark.parametrize(("section", "size"), [(".dynstr", 1 << 27), (".debug_frame", 1 << 38)])
def test_a_file_that_claims_much_and_has_nothing(section: str, size: int, need: Need, build: Callable[..., Path],
                                                 tmp_path: Path) -> None:
    """Its end is a hole, of zeros, which takes no room on the disk."""
    (tmp_path / "empty").write_bytes(b"1234")
    path = build("program", "-Wl,-z,lazy")
    subprocess.run([need("objcopy", "binutils"), f"--add-section=.debug_frame={tmp_path / 'empty'}", path], check=True,
                   timeout=60)
    with open_object(str(path)) as found:
        number = list(found.sections).index(section)
    content = bytearray(path.read_bytes())
    headers_at = int.from_bytes(content[40:48], "little")
    struct.pack_into("<QQ", content, headers_at + 64 * number + 24, 1 << 20, size)
    path.write_bytes(content)
    os.truncate(path, (1 << 20) + size)
    tracemalloc.start()
    try:
        with open_object(str(path)) as found:
            assert not found.exported((b"main",))
            if section == ".debug_frame":
                with pytest.raises(ElfError, match="at once"):
                    found.debug_frame()
        assert tracemalloc.get_traced_memory()[1] < 1.5 * (1 << 27)
    finally:
        tracemalloc.stop()


def test_a_section_that_unpacks_to_too_much(need: Need, build: Callable[..., Path], tmp_path: Path) -> None:
    size = 3 << 30
    packer = zlib.compressobj(1)
    piece = bytes(1 << 20)
    packed = b"".join(packer.compress(piece) for _ in range(1 << 4)) + packer.flush()
    (tmp_path / "packed").write_bytes(b"ZLIB" + size.to_bytes(8, "big") + packed + bytes(3 << 20))
    path = build("program")
    subprocess.run([need("objcopy", "binutils"), f"--add-section=.zdebug_frame={tmp_path / 'packed'}", path],
                   check=True, timeout=60)
    with open_object(str(path)) as found, pytest.raises(ElfError, match="claims"):
        found.debug_frame()


# --- hostile paths --------------------------------------------------------------------------------


def test_what_is_not_a_regular_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    (tmp_path / "text").write_text("#!/bin/sh\n")
    (tmp_path / "empty").touch()
    for path in (tmp_path / "fifo", tmp_path / "folder", tmp_path / "text", tmp_path / "empty", tmp_path / "none",
                 Path("/dev/zero"), Path("/dev/tty")):
        with pytest.raises(ElfError, match=re.escape(str(path))):
            open_object(str(path))
    with pytest.raises(ElfError):
        open_object("a\0b")


def test_a_file_that_becomes_shorter(tmp_path: Path) -> None:
    path = tmp_path / "library.so"
    shutil.copy(LIBC, path)
    with open_object(str(path)) as found:
        extent = found.eh_frame_hdr()
        assert extent is not None
        os.truncate(path, 4096)
        with pytest.raises(ElfError, match="became shorter"):
            extent.read(0, extent.size)


def test_descriptors_are_given_back(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("not ELF")
    before = len(os.listdir("/proc/self/fd"))
    for path in (LIBC, str(tmp_path / "text"), str(tmp_path)):
        fd = os.open(path, os.O_RDONLY)
        try:
            found = object_of_fd(fd, path)
        except ElfError:
            continue
        assert not os.get_inheritable(fd)
        extent = found.eh_frame_hdr()
        found.close()
        found.close()
        assert extent is not None
        with pytest.raises(ElfError):
            extent.read(0, 4)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_descriptor_that_tells_nothing_is_no_object() -> None:
    """As of a file on another machine that is gone."""
    fd = os.open(LIBC, os.O_RDONLY)
    os.close(fd)
    with pytest.raises(ElfError, match="libc: cannot be read: Bad file descriptor"):
        object_of_fd(fd, "libc")


def test_import_is_cheap() -> None:
    """numpy and pyelftools come when they are needed."""
    code = "import sys, collector.elf; assert not {'numpy', 'elftools'} & set(sys.modules), sorted(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_opening_does_not_scale_with_the_file(tmp_path: Path, build: Callable[..., Path]) -> None:
    small = build("program")
    big = tmp_path / "big"
    with open(small, "rb") as source, open(big, "wb") as out:
        out.write(source.read())
        out.truncate(1 << 33)

    def opened(path: Path) -> float:
        start = time.thread_time()
        with open_object(str(path)) as found:
            assert found.eh_frame_hdr() is not None
        return time.thread_time() - start

    assert min(opened(big) for _ in range(5)) < 2 * min(opened(small) for _ in range(5)) + 0.002


def test_symbols_are_found_by_addresses_that_no_double_tells_apart() -> None:
    high = 1 << 63
    value = np.array([high + 1, high + 100, high + 200], np.uint64)
    symbols = Symbols(value, np.array([40, 0, 8], np.uint64), np.arange(3), b"a\0b\0c\0", np.zeros(3, bool))
    assert [symbols.at(high + at) for at in (0, 1, 40, 41, 100, 199, 207, 208)] == [None, 0, 0, None, 1, 1, 2, None]
    assert symbols.between(high + 1, high + 200) == range(2)
    assert symbols.between(high + 2, high + 201) == range(1, 3)
