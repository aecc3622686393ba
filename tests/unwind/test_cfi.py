"""Call frame information: literal bytes, damage at every byte, and every row of real objects against readelf."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.elf import Extent, LoadObject, open_object
from collector.errors import ElfError
from collector.unwind.cfi import CfiSection, Row, cfa_of_expression, decode_pointer, search_table
from collector.unwind.i386 import I386
from collector.unwind.rules import Architecture, Cfa, CfaKind, How, Kind, Rule
from collector.unwind.x86_64 import X86_64

VADDR = 0x1000


def entry(body: bytes) -> bytes:
    body += b"\0" * (-len(body) % 4)
    return len(body).to_bytes(4, "little") + body


def cie(augmentation: bytes = b"zR\0", data: bytes = b"\x01\x1b") -> bytes:
    """Version 1, code alignment 1, data alignment -8, return address in register 16, sdata4 pc-relative."""
    instructions = b"\x0c\x07\x08\x90\x01"
    return entry(b"\0\0\0\0\x01" + augmentation + b"\x01\x78\x10" + data + instructions)


def fde(at: int, begin: int, size: int, instructions: bytes) -> bytes:
    """An FDE at offset ``at`` whose CIE is at offset 0."""
    return entry((at + 4).to_bytes(4, "little") + (begin - (VADDR + at + 8)).to_bytes(4, "little", signed=True)
                 + size.to_bytes(4, "little") + b"\0" + instructions)


def section(data: bytes, arch: Architecture = X86_64, is_debug: bool = False) -> CfiSection:
    return CfiSection(Extent(VADDR, len(data), lambda offset, size: data[offset:offset + size]), arch, is_debug)


def rows(instructions: bytes, head: bytes | None = None, size: int = 0x100) -> list[Row]:
    head = cie() if head is None else head
    found = section(head + fde(len(head), 0x4000, size, instructions))
    return found.rows_of(found.fde_at(len(head)))


RA = (16, How(Kind.SAVED, -8))


def row(cfa: Cfa, *registers: tuple[int, How]) -> Rule:
    return Rule(cfa, tuple(sorted((*registers, RA))))


def reg(register: int, offset: int) -> Cfa:
    return Cfa(CfaKind.REGISTER, register, offset)


CASES = {
    "nothing": (b"", [(0x4000, row(reg(7, 8)))]),
    "push and frame pointer": (
        b"\x41\x0e\x10\x86\x02\x43\x0d\x06\x5a\x0c\x07\x08",
        [(0x4000, row(reg(7, 8))), (0x4001, row(reg(7, 16), (6, How(Kind.SAVED, -16)))),
         (0x4004, row(reg(6, 16), (6, How(Kind.SAVED, -16)))), (0x401E, row(reg(7, 8), (6, How(Kind.SAVED, -16))))]),
    "advances of one, two and four bytes": (
        b"\x02\x50\x0e\x10\x03\x50\x00\x0e\x18\x04\x10\x00\x00\x00\x0e\x20",
        [(0x4000, row(reg(7, 8))), (0x4050, row(reg(7, 16))), (0x40A0, row(reg(7, 24))), (0x40B0, row(reg(7, 32)))]),
    "an advance of eight bytes": (
        b"\x1d\x10\0\0\0\0\0\0\0\x0e\x10", [(0x4000, row(reg(7, 8))), (0x4010, row(reg(7, 16)))]),
    "remember and restore": (
        b"\x41\x0e\x10\x0a\x41\x0e\x08\x83\x02\x41\x0b",
        [(0x4000, row(reg(7, 8))), (0x4001, row(reg(7, 16))), (0x4002, row(reg(7, 8), (3, How(Kind.SAVED, -16)))),
         (0x4003, row(reg(7, 16)))]),
    "restore one": (
        b"\x83\x02\x8c\x03\x41\xc3\x06\x0c",
        [(0x4000, row(reg(7, 8), (3, How(Kind.SAVED, -16)), (12, How(Kind.SAVED, -24)))), (0x4001, row(reg(7, 8)))]),
    "extended offsets": (
        b"\x05\x03\x02\x11\x0c\x7d\x2f\x0d\x04",
        [(0x4000, row(reg(7, 8), (3, How(Kind.SAVED, -16)), (12, How(Kind.SAVED, 24)), (13, How(Kind.SAVED, 32))))]),
    "values": (
        b"\x14\x03\x02\x15\x0c\x7e",
        [(0x4000, row(reg(7, 8), (3, How(Kind.VALUE, -16)), (12, How(Kind.VALUE, 16))))]),
    "signed frame addresses": (
        b"\x12\x06\x7e\x41\x13\x7d", [(0x4000, row(reg(6, 16))), (0x4001, row(reg(6, 24)))]),
    "same, undefined, in a register": (
        b"\x08\x03\x07\x06\x09\x0c\x0d",
        [(0x4000, row(reg(7, 8), (3, How(Kind.SAME)), (6, How(Kind.UNDEFINED)),
                      (12, How(Kind.REGISTER_VALUE, 0, 13))))]),
    "return address undefined": (
        b"\x07\x10", [(0x4000, Rule(reg(7, 8), ((16, How(Kind.UNDEFINED)),)))]),
    "arguments' size is nothing to us": (b"\x2e\x10", [(0x4000, row(reg(7, 8)))]),
    "vector registers are nothing to us": (b"\x91\x03", [(0x4000, row(reg(7, 8)))]),
    "realigned frame": (
        b"\x0f\x03\x76\x78\x06\x10\x06\x02\x76\x00\x16\x03\x02\x77\x08",
        [(0x4000, row(Cfa(CfaKind.DEREF, 6, -8), (6, How(Kind.SAVED_AT, 0, 6)), (3, How(Kind.REGISTER_VALUE, 8, 7))))]),
    "any expression": (
        b"\x0f\x03\x77\x08\x19\x10\x03\x01\x30\x16\x0c\x01\x31",
        [(0x4000, row(Cfa(CfaKind.EXPRESSION, expression=b"\x77\x08\x19"), (3, How(Kind.EXPRESSION, expression=b"0")),
                      (12, How(Kind.VALUE_EXPRESSION, expression=b"1"))))]),
    "equal rows are one": (b"\x41\x0e\x08\x41\x0e\x10", [(0x4000, row(reg(7, 8))), (0x4002, row(reg(7, 16)))]),
    "rows behind the end are dropped": (b"\x04\0\x01\0\0\x0e\x10", [(0x4000, row(reg(7, 8)))]),
}


@pytest.mark.parametrize("name", CASES)
def test_instructions(name: str) -> None:
    instructions, expected = CASES[name]
    assert rows(instructions) == expected


@pytest.mark.parametrize("name", CASES)
def test_cut_at_every_byte(name: str) -> None:
    """A section that ends too early is an ElfError or has no such FDE; nothing else is ever raised."""
    head = cie()
    data = head + fde(len(head), 0x4000, 0x100, CASES[name][0])
    for end in range(len(data)):
        cut = section(data[:end])
        assert list(cut.walk()) == []
        with pytest.raises(ElfError):
            cut.rows_of(cut.fde_at(len(head)))


def test_trailing_garbage_is_not_read() -> None:
    head = cie()
    data = head + fde(len(head), 0x4000, 0x100, b"\x41\x0e\x10")
    whole, more = section(data), section(data + b"\xff\x12garbage")
    assert more.rows_of(more.fde_at(len(head))) == whole.rows_of(whole.fde_at(len(head)))
    assert list(more.walk()) == list(whole.walk()) == [(0x4000, 0x4100, len(head))]


@given(st.binary(max_size=120), st.booleans())
@settings(max_examples=400, deadline=None)
def test_any_bytes_are_rows_or_an_error(data: bytes, is_debug: bool) -> None:
    for content in (data, cie() + data, cie() + fde(len(cie()), 0x4000, 0x100, data)):
        any_section = section(content, is_debug=is_debug)
        for begin, end, offset in any_section.walk():
            try:
                found = any_section.rows_of(any_section.fde_at(offset))
            except ElfError:
                continue
            starts = [pc for pc, _ in found]
            assert starts == sorted(set(starts))
            assert all(begin <= pc < end for pc in starts)


INSTRUCTIONS = st.sampled_from([
    b"\x41", b"\x44", b"\x40", b"\x02\x20", b"\x02\x00", b"\x03\x00\x01", b"\x04\x10\x00\x00\x00", b"\x0e\x10",
    b"\x0e\x18", b"\x0e\xd0\x01", b"\x0d\x06", b"\x0c\x07\x08", b"\x83\x02", b"\x86\x02", b"\x86\x03", b"\x91\x04",
    b"\xc3", b"\xc6", b"\x06\x10", b"\x0a", b"\x0b", b"\x0a\x0e\x20\x41\x0b", b"\x0a\x83\x04\x44\x0b\x41", b"\x00",
    b"\x00\x00", b"\x07\x03", b"\x08\x06", b"\x09\x0c\x0d", b"\x11\x0c\x7d", b"\x13\x7e", b"\x14\x03\x02",
    b"\x2e\x10", b"\x2f\x0d\x04", b"\x0f\x02\x77\x10", b"\x3f"])
# Advances behind the function, and then a block, which is worked out and not looked up.
SLOWLY = b"\x04\x00\x00\x01\x00\x10\x03\x01\x30"


@given(st.lists(st.lists(INSTRUCTIONS, max_size=12).map(b"".join), max_size=6))
@settings(max_examples=300, deadline=None)
def test_what_is_looked_up_is_what_is_worked_out(functions: list[bytes]) -> None:
    """Functions of one section, one after another, and each in a section of its own without anything to look up."""
    head = data = cie()
    offsets = []
    for instructions in functions:
        offsets.append(len(data))
        data += fde(len(data), 0x4000, 0x100, instructions)
    all_of_them = section(data)
    for offset, instructions in zip(offsets, functions, strict=True):
        alone = section(head + fde(len(head), 0x4000, 0x100, instructions + SLOWLY))
        try:
            expected = alone.rows_of(alone.fde_at(len(head)))
        except ElfError:
            with pytest.raises(ElfError):
                all_of_them.rows_of(all_of_them.fde_at(offset))
        else:
            assert all_of_them.rows_of(all_of_them.fde_at(offset)) == expected


def test_states_are_looked_up_across_functions() -> None:
    """The same state is one object in all functions, so that it has one number in the tables."""
    head = cie()
    data = head + fde(len(head), 0x4000, 0x100, b"\x41\x0e\x10\x86\x02")
    second = len(data)
    data += fde(second, 0x5000, 0x100, b"\x42\x0e\x10\x44\x86\x02")
    both = section(data)
    one, other = (both.states_of(both.fde_at(offset)) for offset in (len(head), second))
    assert [pc for pc, _ in one + other] == [0x4000, 0x4001, 0x5000, 0x5002, 0x5006]
    assert one[0][1] is other[0][1] and one[1][1] is other[2][1]


def test_a_number_without_end_is_damage() -> None:
    with pytest.raises(ElfError, match="end early"):
        rows(b"\x0e" + b"\x80" * 400 + b"\x01")


def test_damage_costs_little() -> None:
    """Numbers without an end, registers that no machine has, more states than functions have; a section of padding.
    The time that each would take is the square of its size, or hours."""
    with pytest.raises(ElfError):
        rows(b"\x80" * (1 << 18))
    assert rows(b"".join(b"\x05%c%c\x01" % (0x80 + n % 128, 1 + n // 128) for n in range(1 << 11))) == rows(b"")
    with pytest.raises(ElfError, match="too many states"):
        rows(b"".join(b"\x13%c%c\x00" % (0x80 + n % 128, 0x80 + n // 128) for n in range(1 << 11)))
    nothing = CfiSection(Extent(0, 1 << 33, lambda offset, size: bytes(size)), X86_64, is_debug=True)
    assert not list(nothing.walk())


def test_restore_without_remember_is_damage() -> None:
    with pytest.raises(ElfError, match="end early"):
        rows(b"\x0b")


def test_unknown_instruction_is_damage() -> None:
    with pytest.raises(ElfError, match="unknown instruction 0x3f"):
        rows(b"\x3f")


def test_signal_frames_and_personality() -> None:
    head = cie(augmentation=b"zPLRS\0", data=b"\x07\x1b\x01\x02\x03\x04\x1b\x1b")
    assert rows(b"", head)[0][1].is_signal
    assert not rows(b"")[0][1].is_signal


def test_return_address_in_another_register() -> None:
    head = entry(b"\0\0\0\0\x01zR\0\x01\x78\x0c\x01\x1b\x0c\x07\x08\x8c\x01")
    assert rows(b"", head) == [(0x4000, Rule(reg(7, 8), (RA,)))]


def test_debug_frame_of_version_4_and_64_bit() -> None:
    wide = b"\xff\xff\xff\xff"
    body = b"\xff" * 8 + b"\x04\0\x08\0\x01\x78\x10\x0c\x07\x08\x90\x01"
    head = wide + len(body).to_bytes(8, "little") + body
    part = (0).to_bytes(8, "little") + (0x4000).to_bytes(8, "little") + (0x20).to_bytes(8, "little") + b"\x41\x0e\x10"
    data = head + wide + len(part).to_bytes(8, "little") + part
    found = section(data, is_debug=True)
    assert list(found.walk()) == [(0x4000, 0x4020, len(head))]
    assert found.rows_of(found.fde_at(len(head))) == [(0x4000, row(reg(7, 8))), (0x4001, row(reg(7, 16)))]


PLT = bytes.fromhex("770880003f1a3b2a332422")
EXPRESSIONS = {
    PLT: Cfa(CfaKind.PLT, 7, 8, threshold=11),
    PLT.replace(b"\x3b", b"\x3a"): Cfa(CfaKind.PLT, 7, 8, threshold=10),
    PLT[:-1]: Cfa(CfaKind.EXPRESSION, expression=PLT[:-1]),
    b"\x77\x28": Cfa(CfaKind.REGISTER, 7, 40),
    b"\x76\x78\x06": Cfa(CfaKind.DEREF, 6, -8),
    b"\x77\x28\x06\x23\x08": Cfa(CfaKind.DEREF, 7, 40, addend=8),
    b"\x77\x28\x06\x23": Cfa(CfaKind.EXPRESSION, expression=b"\x77\x28\x06\x23"),
    b"\x77\x28\x06\x23\x08\x06": Cfa(CfaKind.EXPRESSION, expression=b"\x77\x28\x06\x23\x08\x06"),
    b"\x77\x28\x06\x23\x80": Cfa(CfaKind.EXPRESSION, expression=b"\x77\x28\x06\x23\x80"),
    b"\x77\x80": Cfa(CfaKind.EXPRESSION, expression=b"\x77\x80"),
    b"": Cfa(CfaKind.EXPRESSION),
}


@pytest.mark.parametrize("code", EXPRESSIONS, ids=bytes.hex)
def test_frame_address_expressions(code: bytes) -> None:
    assert cfa_of_expression(code, X86_64) == EXPRESSIONS[code]


def test_plt_expression_of_i386() -> None:
    code = bytes.fromhex("740478003f1a3b2a322422")
    assert cfa_of_expression(code, I386) == Cfa(CfaKind.PLT, 4, 4, threshold=11)


POINTERS = {
    (0x00, b"\x01\x02\x03\x04\x05\x06\x07\x08"): 0x0807060504030201,
    (0x01, b"\xe5\x8e\x26"): 624485,
    (0x09, b"\x7e"): (1 << 64) - 2,
    (0x02, b"\xfe\xff"): 0xFFFE,
    (0x0A, b"\xfe\xff"): (1 << 64) - 2,
    (0x03, b"\xfe\xff\xff\xff"): 0xFFFFFFFE,
    (0x0B, b"\xfe\xff\xff\xff"): (1 << 64) - 2,
    (0x04, b"\xfe" + b"\xff" * 7): (1 << 64) - 2,
    (0x1B, b"\x10\0\0\0"): 0x5010,
    (0x1B, b"\xf0\xff\xff\xff"): 0x4FF0,
}


@pytest.mark.parametrize(("encoding", "data"), POINTERS)
def test_pointer_encodings(encoding: int, data: bytes) -> None:
    assert decode_pointer(data + b"more", 0, encoding, 0x5000, 8) == (POINTERS[encoding, data], len(data))
    for end in range(len(data)):
        with pytest.raises(IndexError):
            decode_pointer(data[:end], 0, encoding, 0x5000, 8)


@pytest.mark.parametrize("encoding", [0x05, 0x2B, 0x3B, 0x4B, 0x9B])
def test_pointer_encodings_that_frames_do_not_have(encoding: int) -> None:
    with pytest.raises(ElfError):
        decode_pointer(b"\0" * 16, 0, encoding, 0, 8)


def test_aligned_pointer() -> None:
    assert decode_pointer(b"\xff" * 4 + (77).to_bytes(8, "little"), 1, 0x50, 0x4004, 8) == (77, 12)


# --- the judge: readelf ---------------------------------------------------------------------------

_FDE = re.compile(r"([0-9a-f]{8,16}) [0-9a-f]+ [0-9a-f]+ FDE cie=([0-9a-f]+) pc=([0-9a-f]+)\.\.([0-9a-f]+)")
_HEAD = re.compile(r"\s+LOC\s+CFA\s+(.*)")
_LINE = re.compile(r"([0-9a-f]{8,16}) ([a-z]\w*[+-]\d+|exp)\s+(.*)")
_SECTION = re.compile(r"Contents of the (\S+) section\b")
_VALUE = re.compile(r"r\d+ \(\w+\)|\S+")
_CIE = re.compile(r"([0-9a-f]{8,16}) [0-9a-f]+ [0-9a-f]+ CIE ")
PrintedRow = tuple[int, str, dict[str, str]]


def readelf_tables(text: str) -> Iterator[tuple[str, int, int, list[PrintedRow]]]:
    """(section, begin, end, [(pc, cfa, {register: rule})]) of every FDE that ``--debug-dump=frames-interp`` prints.

    An FDE without instructions has no rows of its own; its CIE's row holds from its begin.
    """
    where, columns, found = "", list[str](), list[tuple[str, int, int, list[PrintedRow], list[PrintedRow]]]()
    rows_of, cies = list[PrintedRow](), dict[int, list[PrintedRow]]()
    for line in text.splitlines():
        if match := _SECTION.match(line):
            where = match[1]
        elif match := _FDE.match(line):
            rows_of = []
            found.append((where, int(match[3], 16), int(match[4], 16), rows_of, cies[int(match[2], 16)]))
        elif match := _CIE.match(line):
            rows_of = cies[int(match[1], 16)] = []
        elif match := _HEAD.match(line):
            columns = match[1].split()
        elif match := _LINE.match(line):
            rows_of.append((int(match[1], 16), match[2], dict(zip(columns, _VALUE.findall(match[3]), strict=True))))
    for where, begin, end, own, shared in found:
        yield where, begin, end, own or [(begin, *row[1:]) for row in shared]


UNDEFINED = How(Kind.UNDEFINED)


@cache
def printed(how: How, register: str) -> set[str]:
    """How readelf may print a rule, which may name a register; two of ours each have two spellings in the file."""
    return {Kind.SAME: {"s"}, Kind.SAVED: {f"c{how.offset:+d}"}, Kind.VALUE: {f"v{how.offset:+d}"},
            Kind.SAVED_AT: {"exp"}, Kind.EXPRESSION: {"exp"}, Kind.UNDEFINED: {"u"},
            Kind.REGISTER_VALUE: {"vexp", f"r{how.register} ({register})"},
            Kind.VALUE_EXPRESSION: {"vexp"}}[how.kind]


def compare(path: Path, section_name: str, found: CfiSection, offsets: dict[int, list[int]], text: str) -> int:
    """Every row that readelf prints for a section against ours; the number of rows compared."""
    arch, compared = found.arch, 0
    names = arch.register_names
    known = {"ra", *names}
    for where, begin, end, expected in readelf_tables(text):
        if where != section_name or begin == end:
            continue
        fde_ = found.fde_at(offsets[begin].pop(0))
        assert (fde_.begin, fde_.end) == (begin, end)
        ours = found.rows_of(fde_)
        starts = np.array([pc for pc, _ in ours], np.uint64)
        assert set(starts.tolist()) <= {pc for pc, *_ in expected}
        # Of rows at one address the last one holds.
        for pc, cfa, registers in {pc: (pc, cfa, registers) for pc, cfa, registers in expected}.values():
            if pc >= end:
                continue
            rule = ours[int(starts.searchsorted(np.uint64(pc), "right")) - 1][1]
            at = rule.cfa
            assert cfa in {"exp", f"{names[at.register]}{at.offset:+d}"}, (path, hex(pc), at)
            assert (cfa == "exp") <= (at.kind != CfaKind.REGISTER), (path, hex(pc), at)
            mine = {"ra" if r == arch.ip else names[r]: how for r, how in rule.registers}
            for name, text_rule in registers.items():
                if name in known:
                    how = mine.pop(name, UNDEFINED)
                    assert text_rule in printed(how, names[how.register]), (path, hex(pc), name, how)
            assert not mine, (path, hex(pc), mine)
            compared += 1
    return compared


def readelf(need: Callable[[str, str], str], path: Path) -> str:
    return subprocess.run([need("readelf", "binutils"), "--debug-dump=frames-interp", "-W", path], check=False,
                          capture_output=True, text=True, timeout=60).stdout


def offsets_of(found: CfiSection) -> dict[int, list[int]]:
    offsets: dict[int, list[int]] = {}
    for begin, _, offset in found.walk():
        offsets.setdefault(begin, []).append(offset)
    return offsets


def eh_frame_of(load_object: LoadObject, arch: Architecture) -> CfiSection:
    hdr = load_object.eh_frame_hdr()
    if hdr is None:  # static programs of some linkers have none
        extent = load_object.eh_frame()
        assert extent is not None
        return CfiSection(extent, arch)
    vaddr, index = search_table(hdr, arch.word_size)
    extent = load_object.extent_at(vaddr)
    assert extent is not None
    found = CfiSection(extent, arch)
    if index is not None:
        assert index.begin.tolist() == found.index().begin.tolist()
        assert (index.offset - vaddr).tolist() == found.index().offset.tolist()
    return found


LIBRARIES = ["/usr/lib/x86_64-linux-gnu/libc.so.6", "/usr/lib/x86_64-linux-gnu/libm.so.6",
             "/usr/lib/x86_64-linux-gnu/libstdc++.so.6", "/usr/bin/python3"]


@pytest.mark.parametrize("path", LIBRARIES)
def test_every_row_is_readelfs(path: str, need: Callable[[str, str], str]) -> None:
    need("/usr/lib/x86_64-linux-gnu/libstdc++.so.6", "libstdc++6")
    need("/usr/bin/python3", "python3")
    with open_object(path) as load_object:
        found = eh_frame_of(load_object, X86_64)
        assert compare(Path(path), ".eh_frame", found, offsets_of(found), readelf(need, Path(path))) > 5000


def test_every_row_of_i386(need: Callable[[str, str], str]) -> None:
    path = need("/usr/lib32/libc.so.6", "gcc-multilib")
    with open_object(path) as load_object:
        found = eh_frame_of(load_object, I386)
        assert compare(Path(path), ".eh_frame", found, offsets_of(found), readelf(need, Path(path))) > 5000


PROGRAM = """
#include <string.h>
int add(int a, int *b) { int c[a]; memset(c, a, sizeof c); return c[0] + *b; }
int twice(int a) { return a > 3 ? add(a - 1, &a) + twice(a - 1) : a; }
int main(int n, char **v) { return twice(n); }
"""
DEBUG_FRAME = ("-g", "-O2", "-fno-asynchronous-unwind-tables", "-fno-unwind-tables")


@pytest.mark.parametrize("flags", [DEBUG_FRAME, (*DEBUG_FRAME, "-gz"), (*DEBUG_FRAME, "-gdwarf64"),
                                   (*DEBUG_FRAME, "-static"), (*DEBUG_FRAME, "-m32")], ids=lambda f: f[-1])
def test_every_row_of_debug_frame(flags: tuple[str, ...], compile_c: Callable[..., Path],
                                  need: Callable[[str, str], str]) -> None:
    path = compile_c("program", PROGRAM, *flags)
    arch = I386 if "-m32" in flags else X86_64
    with open_object(str(path)) as load_object:
        extent = load_object.debug_frame()
        assert extent is not None
        found = CfiSection(extent, arch, is_debug=True)
        text = readelf(need, path)
        assert compare(path, ".debug_frame", found, offsets_of(found), text) >= 10
        whole = eh_frame_of(load_object, arch)
        assert compare(path, ".eh_frame", whole, offsets_of(whole), text) > 3
