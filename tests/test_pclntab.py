"""Go's own table of functions: names and frames of programs that have nothing else."""

from __future__ import annotations

import random
import re
import struct
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from collector.elf import LoadObject, object_of_bytes, open_object
from collector.errors import ElfError
from collector.pclntab import FunctionTable, Kind
from collector.unwind.table import HOLE, ROOT, STOP, Tables
from collector.unwind.x86_64 import RBP, RIP, RSP, X86_64, go_rule

GoProgram = Callable[..., Path]
WITH_FRAMES = "-compressdwarf=false"
TEXT = 0x40_1000
# Name, size, rows (offset, depth), and flags: 1 of a function that has no caller, 2 of one that writes to sp.
FUNCTIONS: list[tuple[bytes, int, list[tuple[int, int]], int]] = [
    (b"_rt0_amd64_linux", 32, [(0, 0)], 0),
    (b"main.small", 48, [(0, 0)], 0),
    (b"main.large", 3000, [(0, 0), (17, 8), (21, 70_008), (2990, 8), (2991, 0)], 0),
    (b"runtime.goexit", 16, [(0, 0)], 1),
    (b"runtime.sigreturn__sigaction", 16, [(0, 0)], 0),
    (b"main.main", 64, [(0, 0), (8, 24), (60, 0)], 0),
    (b"time.now", 96, [(0, 0), (4, 16), (90, 0)], 2),
    (b"runtime.asmcgocall", 32, [(0, 0)], 2),
]


def pc_values(rows: list[tuple[int, int]], size: int) -> bytes:
    """A table of values by pc."""
    def varint(value: int) -> bytes:
        data = b""
        while value > 0x7F:
            data, value = data + bytes([value & 0x7F | 0x80]), value >> 7
        return data + bytes([value])

    data, before = b"", -1
    for (at, value), end in zip(rows, [*(at for at, _ in rows[1:]), size], strict=True):
        delta, before = value - before, value
        data += varint(delta << 1 if delta >= 0 else (-delta << 1) - 1) + varint(end - at)
    return data + b"\0"


def table_of(magic: int) -> bytes:
    """The table of FUNCTIONS as linkers of a version write it."""
    is_relative = magic in (0xFFFF_FFF0, 0xFFFF_FFF1)
    entry_bytes = 4 if is_relative else 8
    names, pctab, places = b"\0", b"\0", []
    for name, size, rows, _ in FUNCTIONS:
        places.append((len(names), len(pctab)))
        names += name + b"\0"
        pctab += pc_values(rows, size)
    begins = [TEXT + sum(size for _, size, _, _ in FUNCTIONS[:i]) for i in range(len(FUNCTIONS) + 1)]
    entries = [begin - TEXT if is_relative else begin for begin in begins]
    n_words = {0xFFFF_FFFB: 1, 0xFFFF_FFFA: 7}.get(magic, 8)
    header_bytes = 8 + 8 * n_words
    functab_bytes = (2 * len(FUNCTIONS) + 1) * entry_bytes
    at_names = header_bytes if n_words > 1 else 0
    at_pctab = header_bytes + len(names) if n_words > 1 else 0
    at_functab = header_bytes + len(names) + len(pctab) if n_words > 1 else header_bytes
    # Up to 1.15 all is behind the functab, and offsets are those in the whole table.
    moved = 0 if n_words > 1 else header_bytes + functab_bytes
    form, functab, described = "<I" if entry_bytes == 4 else "<Q", b"", b""
    base = functab_bytes if n_words > 1 else moved + len(names) + len(pctab)
    for entry, (name_at, pcsp_at), (_, _, _, flag) in zip(entries, places, FUNCTIONS, strict=False):
        functab += struct.pack(form, entry) + struct.pack(form, base + len(described))
        described += struct.pack(form, entry) + struct.pack("<iiIIIIII", name_at + moved, 0, 0,
                                                            pcsp_at + moved + (len(names) if moved else 0), 0, 0, 0, 0)
        described += struct.pack("<i", 0) if magic == 0xFFFF_FFF1 else b""
        described += bytes([0, flag if magic != 0xFFFF_FFFB else 0, 0, 0])
    functab += struct.pack(form, entries[-1])
    offsets = {1: [], 7: [0, at_names, at_pctab, at_pctab, at_pctab, at_functab],
               8: [0, TEXT, at_names, at_pctab, at_pctab, at_pctab, at_functab]}[n_words]
    header = struct.pack("<IHBB", magic, 0, 1, 8) + struct.pack(f"<{n_words}Q", len(FUNCTIONS), *offsets)
    return header + (names + pctab + functab + described if n_words > 1 else functab + names + pctab + described)


@pytest.mark.parametrize("magic", [0xFFFF_FFFB, 0xFFFF_FFFA, 0xFFFF_FFF0, 0xFFFF_FFF1],
                         ids=["1.2", "1.16", "1.18", "1.20"])
def test_a_table_of_each_form(magic: int) -> None:
    data = table_of(magic)
    table = FunctionTable(lambda at, size: data[at:at + size], len(data), 0)
    begin = TEXT
    offsets, strings = table.names()
    for i, (name, size, rows, _) in enumerate(FUNCTIONS):
        assert (int(table.entries[i]), table.name(i)) == (begin, name)
        assert strings[int(offsets[i]):].startswith(name + b"\0")
        assert table.frame_rows(i) == [(begin + at, depth) for at, depth in rows]
        begin += size
    assert (len(table), table.end) == (len(FUNCTIONS), begin)
    kinds = [table.kind(i) for i in range(len(table))]
    clock = Kind.PLAIN if magic == 0xFFFF_FFFB else Kind.LEAVES_STACK  # which has no flags
    assert kinds == [Kind.TOP, Kind.PLAIN, Kind.PLAIN, Kind.TOP, Kind.SIGNAL_RETURN, Kind.PLAIN, clock, Kind.TOP]


@pytest.mark.parametrize("flags", [(), ("-buildmode=pie",)], ids=["exe", "pie"])
def test_names_of_a_stripped_program_are_those_of_its_symbols(flags: tuple[str, ...], go_program: GoProgram) -> None:
    with open_object(str(go_program("split", WITH_FRAMES, *flags))) as whole, \
            open_object(str(go_program("split", "-s -w", *flags))) as bare:
        assert bare.is_stripped
        symbols, found = whole.symbols(), bare.symbols()
        at: dict[int, set[bytes]] = defaultdict(set)
        for i in range(len(symbols)):
            # They say which calling convention a function has, and of what generic ones are made.
            at[int(symbols.value[i])].add(re.sub(rb"\[.*\]", b"[...]", symbols.name(i).removesuffix(b".abi0")))
        names = [found.name(i) for i in range(len(found))]
        assert len(found) > 1000
        assert {b"main.main", b"main.one", b"main.work", b"runtime.goexit"} <= set(names)
        assert [name for i, name in enumerate(names) if name not in at[int(found.value[i])]] == []


def test_a_function_that_leaves_its_stack_and_comes_back_is_no_root(go_program: GoProgram) -> None:
    """What reads the clock does: its samples are cut short, and not whole stacks of one frame."""
    with open_object(str(go_program("split", "-s -w"))) as bare:
        functions = bare.go_functions
        assert functions is not None
        at = {functions.name(i): int(functions.entries[i]) for i in range(len(functions))}
        tables = Tables()
        number = tables.add_object(bare)
        for name, rule in ((b"runtime.nanotime1", STOP), (b"runtime.asmcgocall", ROOT), (b"runtime.mcall", ROOT)):
            assert tables.rules_at(np.array([at[name] + 8], np.uint64) + tables.origin[number]).tolist() == [rule]


def test_frames_are_those_that_call_frame_information_tells(go_program: GoProgram) -> None:
    """All rows of all functions, of the same program with and without."""
    with open_object(str(go_program("split", WITH_FRAMES))) as whole, \
            open_object(str(go_program("split", "-s -w"))) as bare:
        functions = bare.go_functions
        assert functions is not None
        assert whole.go_functions is not None
        assert (functions.entries == whole.go_functions.entries).all()
        tables = Tables()
        numbers = tables.add_object(whole), tables.add_object(bare)
        rules = tables.rule_sets[X86_64.machine].rules
        n_rows = 0
        for i in range(len(functions)):
            rows = functions.frame_rows(i)
            pcs = np.array([at for at, _ in rows], np.uint64)
            if functions.kind(i) != Kind.PLAIN or not len(pcs):
                continue
            told, own = (tables.rules_at(pcs + tables.origin[number]) for number in numbers)
            for (at, depth), one, other in zip(rows, told.tolist(), own.tolist(), strict=True):
                if one != HOLE:  # of code that came from nowhere
                    assert other not in (HOLE, ROOT)
                    assert rules[one].cfa == rules[other].cfa == go_rule(depth).cfa, (functions.name(i), hex(at))
                    n_rows += 1
        assert n_rows > 5000


def test_a_table_of_a_version_to_come_is_none(go_program: GoProgram) -> None:
    data = bytearray(go_program("split", "-s -w").read_bytes())
    data[object_of_bytes(bytes(data), "known").sections[".gopclntab"].file_offset] = 0xE7
    unknown = object_of_bytes(bytes(data), "unknown")
    assert unknown.go_functions is None
    assert len(unknown.symbols()) == 0


def test_a_rule_of_a_frame() -> None:
    assert go_rule(0).registers == ((RIP, go_rule(24).registers[1][1]),)
    assert [register for register, _ in go_rule(24).registers] == [RBP, RIP]
    assert (go_rule(24).cfa.register, go_rule(24).cfa.offset) == (RSP, 32)


def looked_at(data: bytes) -> None:
    """Everything that is asked of a program's table."""
    bare, tables = object_of_bytes(data, "damaged"), Tables()
    with suppress(ElfError):
        symbols = bare.symbols()
        for i in range(0, len(symbols), 97):
            symbols.name(i)
    number = tables.add_object(bare)
    pcs = np.arange(*text_of(bare), 4801, dtype=np.uint64)
    tables.rules_at(pcs + tables.origin[number])


def text_of(bare: LoadObject) -> tuple[int, int]:
    text = bare.sections[".text"]
    return text.vaddr, text.vaddr + text.size


@pytest.mark.parametrize("part", ["header", "functab", "anywhere"])
def test_damage_to_the_table_is_an_error_of_the_file_and_nothing_else(part: str, go_program: GoProgram) -> None:
    data = go_program("split", "-s -w").read_bytes()
    section = object_of_bytes(data, "whole").sections[".gopclntab"]
    chance, at = random.Random(part), section.file_offset
    if part == "functab":
        at += struct.unpack_from("<Q", data, section.file_offset + 64)[0]
    size = {"header": 72, "functab": 1 << 14, "anywhere": section.size}[part]
    for _ in range(200):
        damaged = bytearray(data)
        for _ in range(chance.choice([1, 7, 211])):
            damaged[at + chance.randrange(size)] = chance.choice([0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)])
        looked_at(bytes(damaged))
