"""Demangling and debug information against binutils: c++filt and addr2line."""

from __future__ import annotations

import gc
import lzma
import os
import resource
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from collector.elf import open_object
from collector.errors import NoDescriptors
from collector.experiment.places import Places
from collector.experiment.reader import ObjectFile
from collector.report.compat import short_name
from collector.report.functions import FunctionTable, SymbolTable, symbol_table
from collector.report.resolve import LoadedObject
from collector.report.symbols import Frame, Lines, demangle

SOURCE = """
#include <algorithm>
#include <map>
#include <string>
#include <vector>
template<class T> struct Box { T t; template<class U> T put(U u) const { return t + static_cast<T>(u); } };
namespace outer { namespace { int hidden(int x) { return x * 2; } } int shown(int x) { return hidden(x); } }
struct Op { bool operator()(int a, int b) const { return a > b; } operator bool() const; long operator>>(int) const; };
Op::operator bool() const { return true; }
long Op::operator>>(int n) const { return n; }
int main(int n, char **v) {
  std::map<std::string, std::vector<std::pair<int, Op *>>> m;
  m[v[0]].push_back({n, nullptr});
  auto f = [&](auto q) { return Box<double>{1.5}.put(q) + outer::shown(n); };
  std::vector<int> s{3, n, 2};
  std::sort(s.begin(), s.end(), [](int a, int b) { return a < b; });
  std::sort(s.begin(), s.end(), Op());
  return static_cast<int>(f(2L)) + static_cast<int>(m.size()) + static_cast<int>(Op() >> n);
}
"""


@pytest.fixture(scope="module")
def cplusplus(tmp_path_factory: pytest.TempPathFactory, need: Callable[[str, str], str]) -> Path:
    """A C++ program with templates, lambdas, operators and anonymous namespaces."""
    directory = tmp_path_factory.mktemp("cplusplus")
    (directory / "prog.cc").write_text(SOURCE)
    subprocess.run([need("g++", "g++"), "-O0", "-std=c++17", "-o", directory / "prog", directory / "prog.cc"],
                   check=True)
    return directory / "prog"


def test_cplusplus_names_are_those_of_cxxfilt(cplusplus: Path, need: Callable[[str, str], str]) -> None:
    listed = subprocess.run([need("nm", "binutils"), cplusplus], capture_output=True, check=True).stdout
    names = [word for line in listed.splitlines() if (word := line.split()[-1]).startswith(b"_Z") and b"@" not in word]
    assert len(names) > 150
    filtered = subprocess.run([need("c++filt", "binutils"), "-i"], input=b"\n".join(names), capture_output=True,
                              check=True).stdout.splitlines()
    assert [demangle(name) for name in names] == filtered


@pytest.mark.parametrize("name", [
    b"_ZN4core3fmt5write17h0123456789abcdefE",
    b"_ZN71_$LT$Test$u20$$u2b$$u20$$u27$static$u20$as$u20$foo..Bar$LT$Test$GT$$GT$3bar17h930b740aa94f1d3aE",
    b"_ZN13test_coroutine4main28_$u7b$$u7b$closure$u7d$$u7d$17h0123456789abcdefE",
    b"_ZN3foo3barE",
    b"_ZNSt6vectorIiSaIiEE9push_backEOi.cold",
    b"_ZN3foo17h0123456789abcdeE",
])
def test_rust_and_odd_names_are_those_of_cxxfilt(name: bytes, need: Callable[[str, str], str]) -> None:
    filtered = subprocess.run([need("c++filt", "binutils"), "-i"], input=name, capture_output=True, check=True).stdout
    assert demangle(name) == filtered.rstrip(b"\n")


@pytest.mark.parametrize("name", [b"main", b"_start", b"_Z", b"_ZN", b"_Zsomething", b"_R", b"_RNv", b"", b"_Z\xff\xfe",
                                  b"_ZN99999999999999999999999999aE", b"_ZN" + b"1" * 5000 + b"a17h0123456789abcdefE",
                                  b"_Z" + b"N" * 5000])
def test_what_is_no_mangled_name_stays_as_it_is(name: bytes) -> None:
    assert demangle(name) == name


@pytest.mark.parametrize(("escape", "shown"), [
    (b"$u7e$", b"~"), (b"$u10ffff$", "\U0010ffff".encode()), (b"$u110000$", b"$u110000$"), (b"$uffffff$", b"$uffffff$"),
    (b"$ud800$", b"$ud800$")])
def test_escapes_in_rust_names_that_are_no_character(escape: bytes, shown: bytes) -> None:
    assert demangle(b"_ZN%d%s3foo17h0123456789abcdefE" % (len(escape), escape)) == shown + b"::foo"


@pytest.mark.parametrize(("name", "short"), [
    (b"main", b"main"),
    (b"f(int)", b"f"),
    (b"std::vector<int, std::allocator<int> >::push_back(int&&)", b"std::vector<int, std::allocator<int> >::push_back"),
    (b"void g<void (*)(int)>(char)", b"void g<void (*)(int)>"),
    (b"ns::h(int) const", b"ns::h"),
])
def test_short_names(name: bytes, short: bytes) -> None:
    assert short_name(name) == short


INLINING = """
static inline __attribute__((always_inline)) int innermost(volatile int *p) { return *p * 3; }
static inline __attribute__((always_inline)) int inner(volatile int *p) { return innermost(p) + 1; }
__attribute__((noinline)) int outer(volatile int *p) { return inner(p) + 2; }
int main(int n, char **v) { (void)v; return outer(&n); }
"""


@pytest.mark.parametrize("flags", [("-pie", "-fPIE", "-gdwarf-5"), ("-no-pie", "-gdwarf-4")])
def test_inlined_frames_are_those_of_addr2line(tmp_path: Path, flags: tuple[str, ...],
                                               need: Callable[[str, str], str]) -> None:
    source, program = tmp_path / "inl.c", tmp_path / "inl"
    source.write_text(INLINING)
    subprocess.run([need("gcc", "gcc"), "-O2", *flags, "-o", program, source], check=True)
    with open_object(str(program)) as elf:
        symbols = elf.symbols()
        base = min(load.vaddr for load in elf.loads)
        at = next(i for i in range(len(symbols)) if symbols.name(i) == b"outer")
        start, size = int(symbols.value[at]), int(symbols.size[at])
    with open_object(str(program)) as elf:
        lines = Lines.of(elf)
    depths = set()
    for vaddr in range(start, start + size):
        told = subprocess.run([need("addr2line", "binutils"), "-i", "-f", "-e", program, hex(vaddr)],
                              capture_output=True, text=True, check=True).stdout.split("\n")
        expected = [(name, place.split(":")[0], int(place.split(":")[1].split()[0]))
                    for name, place in zip(told[::2], told[1::2], strict=False)]
        found = [(frame.function.decode(), frame.path, frame.line) for frame in lines.at(vaddr, base)]
        assert found == expected
        depths.add(len(found))
    assert 3 in depths


def test_a_file_without_debug_information_has_no_lines() -> None:
    with open_object("/bin/true") as elf:
        assert Lines.of(elf).at(elf.entry, 0) == []


def test_every_symbol_of_libc_is_found_at_its_place(need: Callable[[str, str], str]) -> None:
    libc = need("/lib/*-linux-gnu/libc.so.6", "libc6")
    listed = subprocess.run([need("readelf", "binutils"), "--dyn-syms", "-W", libc], capture_output=True, text=True,
                            check=True).stdout
    words = [line.split() for line in listed.splitlines()]
    at: dict[int, set[str]] = {}
    for row in words:
        if len(row) > 7 and row[3] == "FUNC" and row[6].isdigit() and row[2] != "0":
            at.setdefault(int(row[1], 16), set()).add(row[7].split("@")[0])
    assert len(at) > 2000
    with open_object(libc) as elf:
        table = FunctionTable(symbol_table(elf, 0), b"<libc.so.6>", 2, demangle)
        found = {vaddr: table.find(elf.offset_of(vaddr) or 0).name.decode() for vaddr in at}
    assert not table.is_order_dependent
    assert {vaddr for vaddr, name in found.items() if name not in at[vaddr]} == set()
    assert {vaddr for vaddr, name in found.items() if len(name) > min(map(len, at[vaddr]))} == set()


def test_an_object_that_cannot_be_read_is_one_hole() -> None:
    table = FunctionTable(SymbolTable.empty(0x2000), b"<gone>", 2, demangle)
    assert table.find(0x1234).name == b"<static>@0x0 (<gone>) --  no functions found"
    other = FunctionTable(SymbolTable.empty(0x2000), b"<gone>", 2, demangle)
    names = {other.find(offset).name for offset in (0x3000, 0x2345, 0x3001, 0x5000)}
    assert names == {b"<static>@0x2000 (<gone>) --  no functions found"}


CODE = "#include <stdlib.h>\nstatic int hidden(int n) { return n * 3; }\nint main(int n, char **v)\n{\n"
CODE += "    return hidden(n) + atoi(v[0]);\n}\n"


@pytest.fixture
def stripped(tmp_path: Path, need: Callable[[str, str], str]) -> Callable[[str], tuple[Path, int]]:
    """A program without symbols, which are kept in the way that is asked for; and the address of ``hidden``."""
    need("gcc", "gcc")
    need("/usr/include/stdio.h", "libc6-dev")

    def made(how: str) -> tuple[Path, int]:
        source, program, debug = tmp_path / "h.c", tmp_path / "h", tmp_path / "kept.debug"
        source.write_text(CODE)
        subprocess.run(["gcc", "-g", "-O0", "-Wl,--build-id", "-o", program, source], check=True)
        with open_object(str(program)) as elf:
            symbols = elf.symbols()
            vaddr = next(int(symbols.value[i]) for i in range(len(symbols)) if symbols.name(i) == b"hidden")
            build_id = (elf.build_id or b"").hex()
        subprocess.run(["objcopy", "--only-keep-debug", program, debug], check=True)
        subprocess.run(["strip", program], check=True)
        if how == "mini":
            mini = lzma.compress(debug.read_bytes())
            (tmp_path / "mini.xz").write_bytes(mini)
            subprocess.run(["objcopy", "--add-section", f".gnu_debugdata={tmp_path}/mini.xz", program], check=True)
            debug.unlink()
        else:
            place = {"cache": tmp_path / f"cache/{build_id}/debuginfo", "copy": tmp_path / "h_debug",
                     "folder": tmp_path / f"folder/.build-id/{build_id[:2]}/{build_id[2:]}.debug"}[how]
            place.parent.mkdir(parents=True, exist_ok=True)
            debug.rename(place)
        return program, vaddr

    return made


@pytest.mark.parametrize("how", ["mini", "cache", "folder", "copy"])
def test_symbols_are_found_where_they_are_kept(how: str, stripped: Callable[[str], tuple[Path, int]], tmp_path: Path,
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    program, vaddr = stripped(how)
    monkeypatch.setenv("DEBUGINFOD_CACHE_PATH", str(tmp_path / "cache"))
    places = Places(path=(str(tmp_path / "folder"),) if how == "folder" else ())
    loaded = LoadedObject(str(program).encode(), 2, 0x1000, lambda: ObjectFile(program), places)
    assert loaded.table.find(vaddr).name == b"hidden"
    frames = loaded.frames_at(vaddr)
    assert [frame.line for frame in frames] == ([] if how == "mini" else [2])
    without = LoadedObject(loaded.path, 2, 0x1000, loaded.look_for_file, replace(places, debug_files=False))
    assert (without.table.find(vaddr).name == b"hidden") is (how == "mini")
    assert without.frames_at(vaddr) == []


def test_a_damaged_mini_debug_file_is_passed_over(stripped: Callable[[str], tuple[Path, int]]) -> None:
    program, vaddr = stripped("mini")
    with open_object(str(program)) as elf:
        section = elf.sections[".gnu_debugdata"]
    whole = program.read_bytes()
    for at in range(0, section.size, section.size // 20):
        program.write_bytes(whole[:section.file_offset + at] + b"\0\xff\0" + whole[section.file_offset + at + 3:])
        loaded = LoadedObject(str(program).encode(), 2, 0x1000, lambda: ObjectFile(program), Places(debug_files=False))
        assert loaded.table.find(vaddr).name.startswith((b"hidden", b"<static>@"))


def test_a_program_whose_section_headers_are_cut_off_has_functions_without_lines(tmp_path: Path,
                                                                                 need: Callable[[str, str], str]
                                                                                 ) -> None:
    """Linked without a build id, so that sections are asked for it."""
    need("gcc", "gcc")
    (tmp_path / "h.c").write_text(CODE)
    subprocess.run(["gcc", "-g", "-Wl,--build-id=none", "-o", "h", "h.c"], cwd=tmp_path, check=True)
    whole = (tmp_path / "h").read_bytes()
    (tmp_path / "h").write_bytes(whole[:int.from_bytes(whole[40:48], "little")])
    loaded = LoadedObject(bytes(tmp_path / "h"), 2, 0x1000, lambda: ObjectFile(tmp_path / "h"))
    assert loaded.table.find(0x10).name == b"<static>@0x0 (<h>) --  no functions found"
    assert loaded.frames_at(0x10) == [] == loaded.unit_paths
    assert (loaded.unit_at(0x10), loaded.debug_path, loaded.machine) == (None, "", 62)


def test_lines_of_split_debug_information_are_told_without_it(tmp_path: Path, need: Callable[[str, str], str]) -> None:
    need("gcc", "gcc")
    (tmp_path / "h.c").write_text(CODE)
    subprocess.run(["gcc", "-g", "-gsplit-dwarf", "-o", "h", "h.c"], cwd=tmp_path, check=True)
    for split in tmp_path.glob("*.dwo"):
        split.unlink()
    with open_object(str(tmp_path / "h")) as elf:
        symbols, lines = elf.symbols(), Lines.of(elf)
        vaddr = next(int(symbols.value[i]) for i in range(len(symbols)) if symbols.name(i) == b"hidden")
        assert lines.at(vaddr, 0) == [Frame(b"hidden", str(tmp_path / "h.c"), 2)]


def test_rows_of_a_unit_are_gone_through_once_for_a_path_that_none_has(
        tmp_path: Path, need: Callable[[str, str], str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Below a folder whose name is no UTF-8: a function of a header whose code is all inlined from another."""
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    inline = "static inline __attribute__((always_inline)) int"
    (folder / "a.h").write_text(f'#include "b.h"\n{inline} a(int n) {{ return b(n); }}\n')
    (folder / "b.h").write_text(f"{inline} b(int n) {{ return n * 2 + n / 7; }}\n")
    (folder / "p.c").write_text('#include "a.h"\nint main(int n, char **v) { return a(n) - !v; }\n')
    subprocess.run([need("gcc", "gcc"), "-g", "-O2", "-gno-statement-frontiers", "-gno-variable-location-views",
                    "-gno-inline-points", "-o", folder / "p", folder / "p.c"], check=True)
    n_rows, encode = 0, os.fsencode

    def counted(path: str) -> bytes:
        nonlocal n_rows
        n_rows += 1
        return encode(path)

    with open_object(str(folder / "p")) as elf:
        symbols, lines = elf.symbols(), Lines.of(elf)
        at = next(i for i in range(len(symbols)) if symbols.name(i) == b"main")
        addresses = range(int(symbols.value[at]), int(symbols.value[at] + symbols.size[at]))
        paths = [frame.path for vaddr in addresses for frame in lines.at(vaddr, 0)]
        monkeypatch.setattr(os, "fsencode", counted)
        assert [frame.path for vaddr in addresses for frame in lines.at(vaddr, 0)] == paths
    assert n_rows == 0
    assert set(paths) == {f"{folder}/p.c", f"{folder}/b.h", f"{tmp_path}/caf\N{REPLACEMENT CHARACTER}/a.h"}
    assert paths.count(f"{tmp_path}/caf\N{REPLACEMENT CHARACTER}/a.h") > 1


def test_load_objects_need_few_descriptors_and_say_where_there_are_none(stripped: Callable[[str], tuple[Path, int]]
                                                                        ) -> None:
    program, vaddr = stripped("copy")
    many = [LoadedObject(str(program).encode(), 2, 0x1000, lambda: ObjectFile(program)) for _ in range(7)]
    gc.collect()  # what earlier tests have left open
    before = len(os.listdir("/proc/self/fd"))
    assert [one.frames_at(vaddr)[0].line for one in many] == [2] * 7
    assert len(os.listdir("/proc/self/fd")) == before + 2 * 7  # the program's and that of its debug file
    many.clear()
    assert len(os.listdir("/proc/self/fd")) == before
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    last = max(map(int, os.listdir("/proc/self/fd")))
    more = [LoadedObject(str(program).encode(), 2, 0x1000, lambda: ObjectFile(program)) for _ in range(last)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (last + 1, hard))
    try:
        with pytest.raises(NoDescriptors, match=r"too many open files: raise the limit \(ulimit -n\)"):
            _ = [one.frames_at(vaddr) for one in more]
        with pytest.raises(NoDescriptors):
            _ = more[-1].table
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_what_was_made_of_large_files_is_kept_and_never_stale(tmp_path: Path, need: Callable[[str, str], str],
                                                              monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("collector.report.symbols._KEPT_FROM_BYTES", 1)
    monkeypatch.setattr("collector.report.symbols._KEPT_FILES_MAX", 2)
    need("gcc", "gcc")
    found = []
    for round_ in range(4):
        for lines in (0, 0, 1):  # the same twice, then another build under the same name
            (tmp_path / "h.c").write_text("\n" * (lines + 2 * round_) + CODE)
            subprocess.run(["gcc", "-g", "-Wl,--build-id", "-o", "h", "h.c"], cwd=tmp_path, check=True)
            with open_object(str(tmp_path / "h")) as elf:
                symbols = elf.symbols()
                vaddr = next(int(symbols.value[i]) for i in range(len(symbols)) if symbols.name(i) == b"hidden")
                found.append(Lines.of(elf).at(vaddr, 0)[0].line - lines - 2 * round_)
    assert found == [2] * 12
    kept = list((tmp_path / "cache/er_print").iterdir())
    assert len(kept) == 2
    assert kept[0].parent.stat().st_mode & 0o777 == 0o700
    for file in kept:
        file.write_bytes(file.read_bytes()[:100])
    with open_object(str(tmp_path / "h")) as elf:
        assert Lines.of(elf).at(vaddr, 0)[0].line == 2 + 7
