"""The line of all objects: every place of a real library has the rule of its own function, or is a hole."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.elf import object_of_bytes, open_object
from collector.unwind.batch import Maps, Stacks, Stop, unwind
from collector.unwind.cfi import CfiSection, search_table
from collector.unwind.i386 import I386
from collector.unwind.rules import Architecture, Cfa, CfaKind, Rule
from collector.unwind.table import HOLE, ROOT, UNDECODED, Call, Tables, sp_of
from collector.unwind.trampoline import add_trampolines, image
from collector.unwind.x86_64 import R8, RDI, RDX, RIP, RSP, X86_64

LIBC = "/usr/lib/x86_64-linux-gnu/libc.so.6"


def section_of(path: str, arch: Architecture) -> CfiSection:
    found = open_object(path)
    hdr = found.eh_frame_hdr()
    assert hdr is not None
    extent = found.extent_at(search_table(hdr, arch.word_size)[0])
    assert extent is not None
    return CfiSection(extent, arch)


@pytest.mark.parametrize(("path", "arch"), [(LIBC, X86_64), ("/usr/lib32/libc.so.6", I386)], ids=["x86-64", "i386"])
def test_every_function_and_every_hole(path: str, arch: Architecture, need: Callable[[str, str], str]) -> None:
    """All edges of all functions, in an order that has nothing to do with theirs, and in pieces."""
    need("/usr/lib32/libc.so.6", "gcc-multilib")
    section, tables = section_of(path, arch), Tables()
    functions = sorted(section.walk())
    ends = {end for _, end, _ in functions}
    begins = {begin for begin, *_ in functions}
    with open_object(path) as load_object:
        tables.add_object(object_of_bytes(b"\x7fELF" + load_object.read_at(4, 4092), "nothing to unwind"))
        number = tables.add_object(load_object)
        text = next(s for s in load_object.loads if s.is_executable)
        places = {pc for begin, end, _ in functions for pc in (begin - 1, begin, end - 1, end)}
        pcs = np.array(sorted(pc for pc in places if text.vaddr <= pc < text.vaddr + text.memory_size), np.uint64)
        np.random.default_rng(23).shuffle(pcs)
        for some in np.array_split(pcs, 17):
            tables.rules_at(some + tables.origin[number])
        rows_so_far = len(tables.start)
        numbers = tables.rules_at(pcs + tables.origin[number]).tolist()
    assert len(tables.start) == rows_so_far
    rule_set = tables.rule_sets[arch.machine]
    starts = np.array([begin for begin, *_ in functions], np.uint64)
    for pc, got in zip(pcs.tolist(), numbers, strict=True):
        begin, end, offset = functions[int(starts.searchsorted(np.uint64(pc), "right")) - 1]
        if begin <= pc < end:
            rule = [rule for start, rule in section.rows_of(section.fde_at(offset)) if start <= pc][-1]
            assert got == rule_set.number_of(rule)
        elif got != HOLE:
            # Only a signal trampoline is known by its bytes.
            assert (known := rule_set.rules[got]) is not None
            assert known.is_signal
    assert len(ends - begins) > 1000
    assert numbers.count(HOLE) > 1000
    assert (np.diff(tables.start.astype(object)) > 0).all()
    assert tables.counters.fdes_damaged == 0


_ROWS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9)), max_size=9)


@given(st.lists(st.tuples(_ROWS, st.lists(st.integers(0, 60), max_size=4),
                          st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9)), max_size=3)), max_size=7))
@settings(max_examples=300, deadline=None)
def test_rows_come_to_their_places(edits: list[tuple[list[tuple[int, int]], list[int], list[tuple[int, int]]]]) -> None:
    """What is new counts, then what was there, then an end; and what is cleared is gone, wherever it lies."""
    tables = Tables()
    number = tables.add_object_of_rule(object_of_bytes(image(1000), "[made]"), Rule(Cfa(CfaKind.REGISTER, 7, 8), ()))
    known, origin = tables._objects[number], int(tables.origin[number])
    line = dict(zip(tables.start.tolist(), tables.rule.tolist(), strict=True))
    for rows, ends, cleared in edits:
        if cleared:
            stretches = [(begin, begin + size) for begin, size in cleared]
            assert tables._cleared(known, stretches) == [begin + origin for begin, _ in stretches]
            gone = {begin + k + origin for begin, size in cleared for k in range(size)}
            line = {start: rule for start, rule in line.items() if start not in gone}
        tables._merge([start + origin for start, _ in rows], [rule for _, rule in rows], [end + origin for end in ends])
        line = {end + origin: UNDECODED for end in ends} | line | {start + origin: rule for start, rule in rows}
        assert sorted(line.items()) == list(zip(tables.start.tolist(), tables.rule.tolist(), strict=True))


def test_a_thread_in_sigreturn_is_behind_its_trampoline() -> None:
    """Whose last instruction is the system call, with which its rules end."""
    tables, (code, _) = Tables(), X86_64.trampolines[0]
    with open_object(LIBC) as load_object:
        number = tables.add_object(load_object)
        text = next(s for s in load_object.loads if s.is_executable)
        end = text.vaddr + load_object.read_at(text.vaddr, text.file_size).index(code) + len(code)
        inside, behind = tables.rules_at(np.array([end - 1, end], np.uint64) + tables.origin[number]).tolist()
    assert inside == behind
    known = tables.rule_sets[X86_64.machine].rules[behind]
    assert known is not None
    assert known.is_signal


def test_an_object_too_large_leaves_others_their_rules() -> None:
    """Memory of two TiB that begins with trampolines."""
    tables = Tables()
    with open_object(LIBC) as load_object:
        number = tables.add_object(load_object)
        add_trampolines(tables, 1 << 41)
        text = next(s for s in load_object.loads if s.is_executable)
        pcs = np.arange(text.vaddr, text.vaddr + text.memory_size, 5001, dtype=np.uint64)
        assert len(set(tables.rules_at(pcs + tables.origin[number]).tolist())) > 5


FUNCTION_AT = 0x200


def linked_at(vaddr: int) -> bytes:
    """A page of code, with a search table and the call frame information of one function."""
    table_at, frames_at = 64 + 2 * 56, 64 + 2 * 56 + 32
    cie = b"\0\0\0\0\1zR\0\1\x78\x10\1\x1b\x0c\x07\x08\x90\1\0\0"
    cie = struct.pack("<I", len(cie)) + cie
    fde_at = frames_at + len(cie)
    fde = struct.pack("<IIiII", 16, len(cie) + 4, FUNCTION_AT - fde_at - 8, 0x100, 0)
    table = struct.pack("<BBBBiIii", 1, 0x1B, 3, 0x3B, frames_at - table_at - 4, 1, FUNCTION_AT - table_at,
                        fde_at - table_at)
    header = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\2\1\1", 3, 62, 1, 0, 64, 0, 0, 64, 56, 2, 64, 0, 0)
    segments = struct.pack("<IIQQQQQQ", 1, 5, 0, vaddr, vaddr, 0x1000, 0x1000, 4096) + struct.pack(
        "<IIQQQQQQ", 0x6474E550, 4, table_at, vaddr + table_at, 0, len(table), len(table), 4)
    return ((header + segments + table).ljust(frames_at, b"\0") + cie + fde).ljust(0x1000, b"\0")


def test_an_object_made_by_hand_has_its_rule() -> None:
    tables = Tables()
    number = tables.add_object(object_of_bytes(linked_at(0x400000), "low"))
    at = tables.origin[number] + np.array([0x400000 + FUNCTION_AT + n for n in (-1, 0, 0xFF, 0x100)], np.uint64)
    assert [rule == HOLE for rule in tables.rules_at(at).tolist()] == [True, False, False, True]
    assert tables.counters.fdes_decoded == 1


@pytest.mark.parametrize("vaddr", [0xFFFF_FFFF_8000_0000, (1 << 63) - 0x1000, (1 << 64) - 0x2000])
def test_an_object_in_the_upper_half_of_addresses_is_damaged(vaddr: int) -> None:
    """Linked where kernels are; its code is unwound by frame pointers."""
    tables, load_object = Tables(), object_of_bytes(linked_at(vaddr), "high")
    number = tables.add_object(load_object)
    assert tables.counters.objects_damaged == 1
    run, one, zero = np.array([0x7F00_0000_0000], np.uint64), np.ones(1, np.int64), np.zeros(1, np.int64)
    regs = np.zeros((1, 17), np.uint64)
    regs[0, [RIP, RSP]] = run[0] + np.uint64(FUNCTION_AT + 16), 0x10000
    stacks = Stacks(zero, regs, np.zeros(8, np.uint64), zero, 7 * one, zero, np.array([0x10000], np.uint64), 8 * one)
    bias = run - np.array([vaddr], np.uint64)
    frames = unwind(stacks, Maps(zero, run, run + np.uint64(0x1000), bias, number * one), tables)
    assert frames.length.tolist() == [1]
    assert tables.counters.fdes_decoded == 0


def rules_from_the_entry(path: Path, n_bytes: int) -> Any:
    """The numbers (n_bytes,) of the rules of a program's first instructions."""
    with open_object(str(path)) as load_object:
        tables = Tables()
        number = tables.add_object(load_object)
        entry = np.arange(load_object.entry, load_object.entry + n_bytes, dtype=np.uint64)
        return tables.rules_at(entry + tables.origin[number])


def test_entry_code_without_a_rule_is_the_root(compile_c: Callable[..., Path]) -> None:
    source = ('__asm__(".globl _start\\n_start: nop\\ncall inner\\nhlt\\n.skip 300\\n"); int inner(void) { return 1; }')
    rules = rules_from_the_entry(compile_c("start", source, "-nostdlib", "-static"), 300)
    assert (rules[:128] == ROOT).all()
    assert (rules[128:] == HOLE).all()


def test_what_entry_code_calls_has_a_caller(compile_c: Callable[..., Path]) -> None:
    """As in a program of assembly, where a function comes next."""
    source = '__asm__(".globl _start; _start: call 1f; 1: call work; hlt; nop; work: jmp work; .skip 300");'
    rules = rules_from_the_entry(compile_c("start", source, "-nostdlib", "-static"), 128)
    assert (rules[:12] == ROOT).all()
    assert (rules[12:] == HOLE).all()


@pytest.mark.parametrize("flags", [("-pg",), ("-pg", "-no-pie"), ("-pg", "-static")], ids="".join)
def test_what_init_calls_has_a_caller(flags: tuple[str, ...], compile_c: Callable[..., Path]) -> None:
    """Nothing tells so but its code, which is the same in all programs."""
    with open_object(str(compile_c("profiled", "int main(void) { return 0; }", *flags))) as load_object:
        symbols = load_object.symbols()
        init = next(int(symbols.value[i]) for i in range(len(symbols)) if symbols.name(i) == b"_init")
        code = load_object.read_at(init, 32)
        calls = init + code.index(b"\xff\xd0")
        tables = Tables()
        number = tables.add_object(load_object)
        places = np.array([init, calls, calls + 1, calls + 6], np.uint64)  # at last its return
        first, *within, last = tables.rules_at(places + tables.origin[number]).tolist()
        assert first == last == HOLE
        rules = tables.rule_sets[X86_64.machine].rules
        assert {rules[one].cfa for one in within} == {Cfa(CfaKind.REGISTER, RSP, 16)}


def test_a_rule_for_the_stack_pointer_itself() -> None:
    """longjmp's frame: the frame address is the buffer, the caller's sp another register."""
    section, tables = section_of(LIBC, X86_64), Tables()
    pc = next(pc for _, _, offset in section.walk() for pc, rule in section.rows_of(section.fde_at(offset))
              if not rule.is_signal and sp_of(rule, X86_64) is not None and rule.cfa.register == RDI)
    with open_object(LIBC) as load_object:
        number = tables.add_object(load_object)
        symbols = load_object.symbols()
        plain = next(int(symbols.value[i]) for i in range(len(symbols)) if symbols.name(i) == b"getppid")
        text = next(s for s in load_object.loads if s.is_executable)
        regs = np.zeros((1, 17), np.uint64)
        regs[0, [RIP, RSP, RDI, R8, RDX]] = pc, 0x10000, 0x10020, 0x10080, plain + 1
        words = np.full(32, plain + 1, np.uint64)
        words[17:] = 0
        one, zero = np.ones(1, np.int64), np.zeros(1, np.int64)
        stacks = Stacks(zero, regs, words, zero, 31 * one, zero, np.array([0x10000], np.uint64), 32 * one)
        maps = Maps(zero, np.array([text.vaddr], np.uint64), np.array([text.vaddr + text.memory_size], np.uint64),
                    np.zeros(1, np.uint64), number * one)
        frames = unwind(stacks, maps, tables)
    # sp' is 0x10080: the word there is one return address more, the next one is zero.
    assert frames.pcs.tolist() == [[pc, plain, plain]]
    assert frames.stop.tolist() == [Stop.ROOT]


def test_where_calls_lead(compile_c: Callable[..., Path]) -> None:
    source = "int f(int a) { return a; } int g(int a) { return f(a) + f(a + 1); } int main(void) { return g(1); }"
    with open_object(str(compile_c("calls", source, "-O0"))) as load_object:
        tables = Tables()
        number = tables.add_object(load_object)
        origin = int(tables.origin[number])
        symbols = load_object.symbols()
        at = {symbols.name(i): int(symbols.value[i]) for i in range(len(symbols))}
        text = load_object.read_at(at[b"g"], 64)
        place = at[b"g"] + text.index(b"\xe8") + 5 + origin
        assert tables.follows_call(np.array([place, place + 1], np.uint64)).tolist() == [True, False]
        assert tables.call_between(place, at[b"f"] + 3 + origin) == Call.CERTAIN
        assert tables.call_between(place, at[b"main"] + 3 + origin) == Call.IMPOSSIBLE
        begin = np.array([at[b"g"] + origin], np.uint64)
        assert not tables.follows_call(begin)
        tables.add_returns(number, [at[b"g"]])
        assert tables.follows_call(begin)


def test_what_looks_like_a_call_may_lead_anywhere(compile_c: Callable[..., Path]) -> None:
    """In a library, whose addresses begin at zero: to below it."""
    source = '__asm__("f: .cfi_startproc; .byte 0xe8; .long -0x10000000; ret; .cfi_endproc"); int g(void) { return 1; }'
    with open_object(str(compile_c("anywhere", source, "-O1", "-shared", "-fPIC", "-nostdlib"))) as load_object:
        tables = Tables()
        number = tables.add_object(load_object)
        text = next(load for load in load_object.loads if load.is_executable)
        place = int(tables.origin[number]) + text.vaddr + 5
        assert tables.call_between(place, place + 2) == Call.IMPOSSIBLE


def test_calls_that_lead_on_by_jumps(compile_c: Callable[..., Path]) -> None:
    """A call may have led to where the function jumps to that it calls, directly or through one that is told where."""
    source = """
        #define ALONE __attribute__((noipa))
        ALONE int f(int a) { return a; }
        ALONE int other(int a) { return a * 3; }
        ALONE int direct(int a) { return f(a + 1); }
        ALONE int through(int (*to)(int), int a) { return to(a); }
        ALONE int told(int a) { return through(other, a); }
        ALONE int calls_direct(int a) { return direct(a) + 1; }
        ALONE int calls_told(int a) { return told(a) + 1; }
        int main(void) { return calls_direct(1) + calls_told(2); }"""
    with open_object(str(compile_c("jumps", source, "-O2"))) as load_object:
        tables = Tables()
        number = tables.add_object(load_object)
        origin = int(tables.origin[number])
        symbols = load_object.symbols()
        at = {symbols.name(i): int(symbols.value[i]) for i in range(len(symbols))}

        def leads(caller: bytes, callee: bytes) -> Call:
            text = load_object.read_at(at[caller], 64)
            return tables.call_between(at[caller] + text.index(b"\xe8") + 5 + origin, at[callee] + origin)

        assert leads(b"calls_direct", b"direct") == leads(b"calls_told", b"told") == Call.CERTAIN
        assert leads(b"calls_direct", b"f") == leads(b"calls_told", b"other") == Call.POSSIBLE
        assert leads(b"calls_direct", b"other") == leads(b"calls_direct", b"main") == Call.IMPOSSIBLE


PARTED = """
#include <stdlib.h>
__attribute__((noinline, cold)) void seldom(int *a) { a[3] = rand(); }
__attribute__((noinline)) int plain(int a) { return a * 3; }
__attribute__((noinline)) int parted(int a) {
    int kept[64];
    for (int i = 0; i < 64; i++) kept[i] = rand() + a;
    if (a == 7) { seldom(kept); return kept[3]; }
    return kept[rand() & 63] + plain(a);
}
int main(int n, char **arguments) { return parted(n) + plain(n); }
"""


def test_a_function_has_its_part_elsewhere_too(compile_c: Callable[..., Path]) -> None:
    with open_object(str(compile_c("parted", PARTED, "-O2", "-freorder-blocks-and-partition"))) as load_object:
        symbols = load_object.symbols()
        at = {symbols.name(i): (int(symbols.value[i]), int(symbols.value[i] + symbols.size[i]))
              for i in range(len(symbols))}
        tables = Tables()
        number = tables.add_object(load_object)
        assert tables.parts_of(number, at[b"parted"][0]) == [at[b"parted"], at[b"parted.cold"]]
        assert tables.parts_of(number, at[b"plain"][0]) == [at[b"plain"]]
        assert tables.parts_of(number, at[b"plain"][0] + 1) == []


def test_damaged_tables_are_counted_and_harmless() -> None:
    """libc with its call frame information overwritten: nothing but holes, and the damage is counted."""
    content = bytearray(Path(LIBC).read_bytes())
    with open_object(LIBC) as load_object:
        hdr = load_object.eh_frame_hdr()
        assert hdr is not None
        vaddr, _ = search_table(hdr, 8)
        at = load_object.offset_of(vaddr)
        assert at is not None
        text = next(s for s in load_object.loads if s.is_executable)
    content[at:at + 50_000] = os.urandom(50_000)
    tables = Tables()
    number = tables.add_object(object_of_bytes(bytes(content), "damaged"))
    pcs = np.arange(text.vaddr, text.vaddr + text.memory_size, 501, np.uint64)
    assert (tables.rules_at(pcs + tables.origin[number]) != UNDECODED).all()
    assert tables.counters.fdes_damaged > 100
