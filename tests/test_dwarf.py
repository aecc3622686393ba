"""Tables of lines against ``readelf --debug-dump=decodedline``; programs of several units, split and damaged ones."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from collector.dwarf import LineTables, Unit, source_files
from collector.elf import open_object
from collector.errors import ElfError

HEADER = "static inline int twice(int n)\n{\n    return n * 2;\n}\n"
FIRST = '#include "twice.h"\nint second(int);\nint first(int n)\n{\n    int m = twice(n);\n'
FIRST += '    return second(m) + 1;\n}\n'
SECOND = '#include "twice.h"\nint second(int n)\n{\n    return twice(n) - 3;\n}\n'
SECOND += 'int main(void)\n{\n    return second(1);\n}\n'


@pytest.fixture
def build(tmp_path: Path, need: Callable[[str, str], str]) -> Callable[..., Path]:
    """A program of two units that share a header."""
    need("gcc", "gcc")
    need("/usr/include/stdio.h", "libc6-dev")

    def compiled(*flags: str) -> Path:
        for name, text in (("twice.h", HEADER), ("first.c", FIRST), ("second.c", SECOND)):
            (tmp_path / name).write_text(text)
        subprocess.run(["gcc", *flags, "-o", "program", "first.c", "second.c"], cwd=tmp_path, check=True)
        return tmp_path / "program"

    return compiled


def unit_of(program: Path, function: str) -> tuple[Unit, int]:
    with open_object(str(program)) as elf:
        symbols = elf.symbols()
        vaddr = next(int(symbols.value[i]) for i in range(len(symbols)) if symbols.name(i) == function.encode())
        unit = LineTables(elf).unit_at(vaddr)
        assert unit is not None
        assert unit.rows  # read while the file is open
        return unit, vaddr


KINDS = (("-gdwarf-4",), ("-gdwarf-5",), ("-g", "-O2"), ("-g", "-gsplit-dwarf"), ("-g", "-gz"), ("-g", "-no-pie"))


@pytest.mark.parametrize("flags", KINDS, ids=" ".join)
def test_rows_are_those_of_readelf(build: Callable[..., Path], flags: tuple[str, ...],
                                   need: Callable[[str, str], str]) -> None:
    program = build(*flags)
    dump = subprocess.run([need("readelf", "binutils"), "--debug-dump=decodedline", program], capture_output=True,
                          text=True, check=True).stdout
    expected = {(Path(name).name, int(line), int(vaddr, 16)) for name, line, vaddr in
                re.findall(r"(?m)^(\S+\.[ch])\s+(\d+)\s+(0x[0-9a-f]+)", dump)}
    found = {(Path(row.path).name, row.line, row.vaddr) for function in ("first", "second")
             for row in unit_of(program, function)[0].rows if row.line}
    assert found == expected
    assert len(found) > 8


def test_code_belongs_to_the_last_row_at_its_address(build: Callable[..., Path]) -> None:
    program = build("-g", "-O0")
    unit, vaddr = unit_of(program, "first")
    assert unit.declared[vaddr] == 3
    first = unit.at(vaddr)
    assert first is not None
    assert (first.path, first.line) == (str(program.parent / "first.c"), 4)
    assert unit.at(0) is None
    assert {Path(path.decode()).name for path in source_files(open_object(str(program)))} == {
        "first.c", "second.c", "twice.h"}


def test_an_object_without_debug_information_has_no_units(build: Callable[..., Path]) -> None:
    with open_object(str(build())) as elf:
        tables = LineTables(elf)
        assert not tables
        assert tables.unit_at(0x1139) is None
        assert source_files(elf) == []


@pytest.mark.parametrize(("version", "attribute"), [(5, "0x1b"), (4, "0x1b"), (5, "0x3"), (4, "0x3")])
def test_what_dwz_has_put_into_another_file_is_not_known(version: int, attribute: str, tmp_path: Path,
                                                         need: Callable[[str, str], str]) -> None:
    """The folder (0x1b) or the name of a unit, by a form that tells a place there, as many bytes long."""
    flags = ["-O0", f"-gdwarf-{version}", "-gno-as-locview-support"]
    (tmp_path / "compiled.c").write_text("int work(int n)\n{\n    return n * 3;\n}\nint main() { return 1; }\n")
    subprocess.run([need("gcc", "gcc"), *flags, "-S", "-o", "h.s", "compiled.c"], cwd=tmp_path, check=True)
    code = (tmp_path / "h.s").read_text()
    begin = code.index("\t.uleb128 0x11\n\t.byte\t0x1\n")  # the abbreviation of DW_TAG_compile_unit
    changed, n = re.subn(rf"(\t\.uleb128 {attribute}\n\t\.uleb128 )0x(1f|e)\n", r"\g<1>0x1f21\n", code[begin:], count=1)
    (tmp_path / "h.s").write_text(code[:begin] + changed)
    subprocess.run(["gcc", "-o", "h", "h.s"], cwd=tmp_path, check=True)
    unit, vaddr = unit_of(tmp_path / "h", "work")
    full = str(tmp_path / "compiled.c")
    known = version == 5 or attribute == "0x3"  # DWARF 5 has the folder in the table of lines, too
    assert n == 1
    assert unit.path == ("" if attribute == "0x3" else full if known else "compiled.c")
    assert unit.declared[vaddr] == 1
    assert {row.path for row in unit.rows} == {full if known else "compiled.c"}
    with open_object(str(tmp_path / "h")) as elf:
        assert source_files(elf) == ([full.encode()] if known else [])


def test_damaged_tables_are_an_error_with_the_files_name(build: Callable[..., Path]) -> None:
    program = build("-g")
    with open_object(str(program)) as elf:
        section, symbols = elf.sections[".debug_info"], elf.symbols()
        vaddrs = [int(value) for value in symbols.value]
    content = bytearray(program.read_bytes())
    for seed in range(40):
        damaged = bytearray(content)
        for step in range(8):
            damaged[section.file_offset + (seed * 31 + step * 17) % section.size] ^= 0xFF
        program.write_bytes(damaged)
        with open_object(str(program)) as elf:
            try:
                units = [LineTables(elf).unit_at(vaddr) for vaddr in vaddrs]
                assert all(isinstance(unit.rows, list) for unit in units if unit is not None)
            except ElfError as error:
                assert str(error).startswith(f"{program}: damaged line tables: ")
