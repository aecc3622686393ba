"""HotSpot read from outside: a real process that waits, its memory as it is and damaged at random; its code."""

from __future__ import annotations

import os
import random
import re
from bisect import bisect_right
from collections.abc import Sequence

import capstone
import numpy as np
import pytest
from capstone import x86

from collector.runtimes.code_hotspot import rows_of_compiled
from collector.runtimes.compressed_hotspot import lines_of, number_at
from collector.runtimes.hotspot import Blob, Machine
from collector.runtimes.layout_hotspot import _FIELDS, _SOME, NONE, Layout
from collector.runtimes.methods_hotspot import Methods, _text
from collector.runtimes.scopes_hotspot import Scope, Scopes, ranges_of
from collector.unwind.rules import CfaKind, Rule
from collector.unwind.table import STOP
from collector.unwind.x86_64 import RSP
from tests.runtimes.conftest import PROGRAM, JavaTarget
from tests.runtimes.test_cpython import Damaged

DRAWS = range(*map(int, os.environ.get("HOTSPOT_DRAWS", "0:60").split(":")))
SEP = 0x100


@pytest.fixture(scope="module")
def machine(java: JavaTarget) -> Machine:
    found = java.machine(java.read)
    assert isinstance(found, Machine), found
    found.discover()
    return found


def everything(machine: Machine) -> tuple[list[Blob], dict[str, bytes]]:
    """All compiled code, and all methods that it carries out, with their files."""
    machine.discover()
    blobs = [blob for blob in machine.blobs if blob.is_compiled]
    machine.methods.learn(blob.method for blob in blobs)
    for blob in blobs:
        machine.methods.learn(scope.method for scope in machine.scopes(blob).at(blob.code + 40, is_leaf=True))
    return blobs, {method.name.decode(): method.source for method in machine.methods.known.values()}


def test_compiled_code_has_its_methods(machine: Machine) -> None:
    blobs, methods = everything(machine)
    assert methods["Waits.warm(long[])"] == b"Waits.java"
    assert "Waits.\U0001d465(long)" in methods  # beyond the first 65,536 characters
    named = [machine.method(blob.method) for blob in blobs]
    assert all(named), [blob for blob, name in zip(blobs, named, strict=True) if name is None]
    assert {blob.level for blob in blobs} >= {0, 3, 4}
    warm = next(method for method in named if method is not None and method.name.startswith(b"Waits.warm"))
    line = PROGRAM[:PROGRAM.index("static long warm")].count("\n") + 1
    assert set(dict(warm.lines).values()) == {line}
    # All that is known is found again by any address in it, and nothing beside it.
    pcs = np.array([(blob.code + blob.code_end) // 2 for blob in blobs], np.uint64)
    assert machine.blobs_at(pcs) == blobs
    assert machine.blobs_at(pcs - np.uint64(machine.high)) == [None] * len(pcs)
    assert machine.look(1) == []


def test_pcs_in_code_are_told_from_other_words(machine: Machine, java: JavaTarget) -> None:
    witness, _ = everything(machine)
    other = java.machine(java.read)
    assert isinstance(other, Machine)
    inside = [pc for blob in witness for pc in (blob.code, blob.code_end - 1)]
    words = np.array(sorted({*inside, machine.low, machine.high - 1, 0, 2**64 - 1}), np.uint64)
    assert set(inside) <= set(other.in_code(words).tolist()) <= {*inside, machine.low, machine.high - 1}
    assert [blob.start for blob in other.blobs if blob.is_compiled] == [blob.start for blob in witness]


def test_a_machine_moves_as_long_as_more_than_a_few_blobs_are_new(machine: Machine, java: JavaTarget) -> None:
    witness, _ = everything(machine)
    other = java.machine(java.read)
    assert isinstance(other, Machine)
    assert other.is_moving, "nothing is known of it"
    moved, asked = [], witness[:8]
    for n in (3, 2, 0, 3):
        other.rows([blob.code - other.low for blob in witness[:n]])
        witness = witness[n:]
        other.look(1)
        moved.append(other.is_moving)
    assert moved == [True, False, False, True]
    found = other.discover()
    assert {blob.start for blob in found} >= {blob.start for blob in asked}, "also what was asked for"
    assert sorted(found) == sorted(other.blobs)
    assert other.discover() == []


def test_an_inlined_call_is_told_with_its_callers(machine: Machine) -> None:
    blobs, _ = everything(machine)
    chains = set()
    for blob in blobs:
        places = [(blob, pc, False) for pc in range(blob.code, min(blob.code_end, blob.code + 2048))]
        for scopes in set(machine.scopes_at(places)):
            assert scopes[-1].method == blob.method
            methods = [machine.method(scope.method) for scope in scopes]
            chains.add(tuple(method.name.decode() for method in methods if method is not None))
    assert max(map(len, chains)) > 2
    assert ("Waits.inlined(long)", "Waits.warm(long[])") in chains


def test_code_that_is_not_there_stops_a_stack(machine: Machine) -> None:
    free = machine.high - 64 - machine.low
    assert machine.rows([free]) == [(free, free + 1, ((free, STOP),))]
    assert machine.look(1) == [(free, free + 1)]  # it is asked for again


def test_code_that_has_come_in_the_place_of_shorter_code_is_found(machine: Machine, java: JavaTarget) -> None:
    """Also where the shorter one was met, whose end is behind by now; what was told of that one is forgotten."""
    blob = max((blob for blob in machine.blobs if blob.level == 4), key=lambda blob: blob.code_end - blob.code)
    at, block = machine.layout.at, machine.layout.size["block"]
    is_before = [True]

    def read(addresses: Sequence[int], sizes: Sequence[int]) -> list[bytes]:
        pieces = java.read(addresses, sizes)
        for i in range(len(pieces) if is_before[0] else 0):
            if addresses[i] == blob.start - block and sizes[i] > block + at["compile_id"]:
                head = bytearray(pieces[i])
                head[block + at["compile_id"]] ^= 1
                pointer = at["code_begin"] != NONE
                end, size = (at["code_end"], 8) if pointer else (at["data_offset"], 4)
                short = blob.code + 32 - (0 if pointer else blob.start)
                head[block + end:block + end + size] = short.to_bytes(size, "little")
                pieces[i] = bytes(head)
        return pieces

    other = java.machine(read)
    assert isinstance(other, Machine)
    begin, end = blob.code - other.low, blob.code_end - other.low
    assert [stretch[:2] for stretch in other.rows([begin + 3])] == [(begin, begin + 32)]
    is_before[0] = False
    assert other.look(1) == []
    assert [stretch[:2] for stretch in other.rows([end - 1])] == [(begin, end)]
    assert other.blob_at(blob.code_end - 1) == blob._replace(since_ns=1)
    assert other.changed == {blob.start}
    assert other.no_more(np.array([blob.code_end - 1], np.uint64)) == [(begin, begin + 32)]
    assert other.no_more(np.array([blob.code_end - 1], np.uint64)) == []
    assert other.look(2) == []


# --- rules of compiled code -----------------------------------------------------------------------


def depths(text: bytes) -> dict[int, set[int]]:
    """Bytes between sp and the caller's sp at each instruction that is reached from the entry, by carrying out what
    moves sp; the judge is a disassembler. Several, where it cannot know that a call does not return."""
    engine = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    engine.detail = True
    code = {one.address: one for one in engine.disasm(text, 0)}
    found: dict[int, set[int]] = {}
    waiting = [(0, 8)]
    while waiting:
        at, depth = waiting.pop()
        one = code.get(at)
        if one is None or depth in found.setdefault(at, set()):
            continue
        found[at].add(depth)
        after = depth + _moved(one, depth)
        if one.group(x86.X86_GRP_JUMP) and one.operands[0].type == x86.X86_OP_IMM:
            waiting.append((one.operands[0].imm, after))
        if one.mnemonic not in ("jmp", "ret", "hlt"):
            waiting.append((at + one.size, after))
    return found


def _moved(one: capstone.CsInsn, depth: int) -> int:
    if one.mnemonic == "push":
        return 8
    if one.mnemonic == "pop":
        return -8
    if one.mnemonic == "leave":
        return 8 - depth
    to_sp = re.fullmatch(r"rsp, (-?(?:0x)?[0-9a-f]+)", one.op_str)
    if one.mnemonic in ("sub", "add") and to_sp:
        return int(to_sp[1], 0) * (1 if one.mnemonic == "sub" else -1)
    return 0


def test_rules_of_compiled_code_are_what_its_instructions_do(machine: Machine, java: JavaTarget) -> None:
    n_places = 0
    wrong = []
    for blob in machine.blobs:
        if not blob.is_compiled or not blob.level:
            continue
        (text,) = java.read([blob.code], [blob.code_end - blob.code])
        rows = rows_of_compiled(SEP, text, blob.frame_size)
        starts = [start - SEP for start, _ in rows]
        for at, there in depths(text).items():
            rule = rows[bisect_right(starts, at) - 1][1]
            assert isinstance(rule, Rule)
            assert (rule.cfa.kind, rule.cfa.register) == (CfaKind.REGISTER, RSP)
            n_places += 1
            if rule.cfa.offset not in there:
                wrong.append((blob.frame_size, hex(at), there, rule.cfa.offset, text[at:at + 8].hex()))
    assert n_places > 500
    assert not wrong, wrong[:10]


def test_a_method_where_one_of_an_unloaded_class_was_has_its_own_name(java: JavaTarget, machine: Machine) -> None:
    """The same Method and ConstMethod, of another class, or with another name in the same class."""
    everything(machine)
    layout, known = machine.layout, machine.methods.known
    address = next(at for at, method in known.items() if method.name == b"Waits.inlined(long)")
    other = next(at for at, method in known.items() if not method.name.startswith(b"Waits."))
    (const, its), (_, another) = machine.methods._identity[address], machine.methods._identity[other]
    leaf = next(at for at, method in known.items() if method.name == b"Waits.leaf(long)")
    name = machine.methods._identity[leaf][0].name
    at = const.address + layout.at["const_name"]
    changed = [{}, {its.klass + layout.at["klass_name"]: another.symbol.to_bytes(8, "little")},
               {at: name.to_bytes(2, "little")}]

    def read(addresses: Sequence[int], sizes: Sequence[int]) -> list[bytes]:
        found = java.read(addresses, sizes)
        for place, new in changed[0].items():
            for i, (begin, content) in enumerate(zip(addresses, found, strict=True)):
                if begin <= place < begin + len(content):
                    found[i] = content[:place - begin] + new + content[place - begin + len(new):]
        return found

    told = Methods(layout, read)
    names = []
    for _ in range(3):
        told.look()
        told.learn([address])
        names.append(told.known[address].name)
        changed.append(changed.pop(0))
    assert names == [b"Waits.inlined(long)", another.name.replace(b"/", b".") + b".inlined(long)", b"Waits.leaf(long)"]
    assert told.n_forgotten == 2


# --- hostile memory -------------------------------------------------------------------------------


def test_damaged_memory_gives_no_exception_and_no_name_that_is_none(java: JavaTarget, machine: Machine) -> None:
    blobs, methods = everything(machine)
    names = {name.encode() for name in methods}
    addresses = list(machine.methods.known)
    n_named = 0
    for seed in DRAWS:
        read = Damaged(java.read, seed, (0.02, 0.2, 0.7)[seed % 3])
        draw = random.Random(seed)
        how = [read if seed % 7 == 0 else java.read]
        other = java.machine(lambda addresses, sizes, how=how: how[-1](addresses, sizes))  # type: ignore[misc]
        how.append(read)
        if isinstance(other, str):
            continue
        asked = [*draw.sample(addresses, min(len(addresses), 9)), draw.getrandbits(47) & ~7]
        other.methods.learn(asked)
        some = draw.sample(blobs, min(len(blobs), 9))
        pcs = [blob.code + draw.randrange(blob.code_end - blob.code) for blob in some]
        other.rows([pc - other.low for pc in pcs if other.low <= pc < other.high] + [draw.randrange(1 << 20)])
        met = [blob for blob in other.blobs_at(np.array(pcs, np.uint64)) if blob is not None and blob.is_compiled]
        other.scopes_at([(blob, blob.code + draw.randrange(4096), bool(seed & 1)) for blob in met])
        other.look(2)
        other.methods.look()
        other.methods.learn(asked)  # anew: some are not there any more, it seems
        found = {method.name for method in other.methods.known.values()}
        machine.methods.learn(other.methods.known)
        n_named += len(found)
        assert found <= names | {method.name for method in machine.methods.known.values()}, seed
    assert n_named > len(DRAWS) // 10


def test_what_is_not_hotspot_is_told(java: JavaTarget) -> None:
    some = dict(list(java.symbols.items())[:5])
    assert java.machine(lambda addresses, _: [b""] * len(addresses)) == ""
    from collector.runtimes import hotspot
    assert hotspot.recognise(some, java.read, 0) == "libjvm.so does not export its tables"


# --- numbers and scopes written by hand -----------------------------------------------------------


@pytest.mark.parametrize(("excluded", "data", "number", "size"), [
    (0, b"\x00", 0, 1), (0, b"\xbf", 191, 1), (0, b"\xc0\x00", 192, 2), (0, b"\xc1\x02", 321, 2),
    (0, b"\xff\xff\xff\xff\xff", 0xFF + (0xFF << 6) + (0xFF << 12) + (0xFF << 18) + (0xFF << 24) & 0xFFFF_FFFF, 5),
    (1, b"\x01", 0, 1), (1, b"\xbf", 190, 1), (1, b"\xc0\x01", 191, 2),
])
def test_compressed_numbers(excluded: int, data: bytes, number: int, size: int) -> None:
    assert number_at(data + b"\x07", 0, excluded) == (number, size)
    for cut in range(size):
        assert number_at(data[:cut], 0, excluded) == (0, -1)
    assert number_at(bytes(5), 0, 1) == (0, -1)


@pytest.mark.parametrize(("symbol", "text"), [
    (b"run", "run"), (b"my test", "my test"), ("gr\u00f6\u00dfe\u00a0\u200d".encode(), "gr\u00f6\u00dfe\u00a0\u200d"),
    (b"\xed\xa0\xbd\xed\xba\x80run", "\U0001f680run"), (b"\xed\xa0\xbdrun", ""), (b"run\xed\xba\x80", ""),
    (b"\xff", ""), (b"\xc0\x80", ""), (b"a\nb", ""), (b"\x1b[2J", ""), ("\u0085".encode(), "")])
def test_texts_of_symbols(symbol: bytes, text: str) -> None:
    assert _text(symbol).decode() == text


def test_lines_of_a_table() -> None:
    data = bytes([0 << 3 | 7, 4 << 3 | 1, 0xFF, 40, 5, 31 << 3 | 2, 0])
    assert lines_of(data, 0, 100) == ((0, 7), (4, 8), (24, 5), (55, 7))
    assert lines_of(data, 0, 30) == ((0, 7), (4, 8), (24, 5))
    for cut in range(len(data)):
        assert lines_of(data[:cut], 0, 100) == lines_of(data, 0, 100)[:len(lines_of(data[:cut], 0, 100))]


def test_a_leaf_in_a_loop_without_a_record_has_what_both_neighbours_have() -> None:
    """Records at 4 and 20; a jump from 14 back to 10."""
    own, callee = 0x1000, 0x2000
    data = bytes([0, 0, 1, 6, 1, 2, 9])  # own method at bytecode 5, from place 1; the callee at 8, called there
    pcs = np.array([(4, 1, 0, 0), (20, 4, 0, 0)], "<i4").tobytes()
    metadata = np.array([own, callee], "<u8").tobytes()
    text = bytearray(b"\x90" * 32)
    scopes = Scopes(own, SEP, 0, bytes(text), pcs, data, metadata)
    assert scopes.at(SEP + 12, is_leaf=True) == (Scope(callee, 8), Scope(own, 5))
    assert scopes.at(SEP + 19, is_leaf=False) == (Scope(callee, 8), Scope(own, 5))
    # A call that the VM does not look into has no record: what runs between records counts for the next one.
    assert scopes.at(SEP + 18, is_leaf=False) == (Scope(callee, 8), Scope(own, 5))
    assert scopes.at(SEP + 25, is_leaf=False) == (Scope(own, 0),)
    text[14:16] = b"\x75\xfa"
    scopes = Scopes(own, SEP, 0, bytes(text), pcs, data, metadata)
    assert scopes.at(SEP + 12, is_leaf=True) == (Scope(own, 5),)
    assert scopes.at(SEP + 16, is_leaf=True) == (Scope(callee, 8), Scope(own, 5))
    assert scopes.at(SEP + 11, is_leaf=False) == (Scope(own, 5),)
    # Who leads to another method than the nmethod's own is not believed.
    assert Scopes(callee, SEP, 0, b"", pcs, data, metadata).at(SEP + 19, is_leaf=False) == (Scope(callee, 0),)


def in_the_place_of_others(java: JavaTarget, machine: Machine) -> tuple[Machine, Blob, Blob]:
    """A machine that has met a small blob, the blob, and a large one that has come in its place since."""
    machine.discover()
    compiled = [blob for blob in machine.blobs if blob.is_compiled and blob.level]
    large = max(compiled, key=lambda blob: blob.code_end - blob.code)
    small = min(compiled, key=lambda blob: blob.code_end - blob.start)
    at, block = machine.layout.at, machine.layout.size["block"]
    heap = next(one for one in machine._heaps() if one.low <= large.start < one.high)
    number = ((large.code + large.code_end) // 2 - heap.low) >> heap.log2_segment
    segment = heap.low + (number << heap.log2_segment)
    start = segment + block
    head = bytearray(small.head)
    for name in ("code_begin", "code_end") if at["code_begin"] >= 0 else ():
        place = block + at[name]
        moved = int.from_bytes(head[place:place + 8], "little") - small.start + start
        head[place:place + 8] = moved.to_bytes(8, "little")
    n_segments = ((small.code_end - small.start) >> heap.log2_segment) + 1

    def before(addresses: Sequence[int], sizes: Sequence[int]) -> list[bytes]:
        """Memory as it was when the small one was there: its head, and its place in the map of segments."""
        found = java.read(addresses, sizes)
        for i, (address, size) in enumerate(zip(addresses, sizes, strict=True)):
            if (address, size) == (segment, len(head)):
                found[i] = bytes(head)
            elif address == heap.segmap:
                found[i] = found[i][:number] + bytes(range(n_segments)) + found[i][number + n_segments:]
        return found

    how = [before]
    other = java.machine(lambda addresses, sizes: how[-1](addresses, sizes))
    assert isinstance(other, Machine)
    (old,) = other.blobs_at(np.array([start + small.code - small.start], np.uint64))
    assert old is not None
    assert (old.start, old.compile_id) == (start, small.compile_id)
    assert old.code_end < large.code_end - 1
    how.append(java.read)
    return other, old, large


def test_code_that_takes_the_place_of_others_is_found(java: JavaTarget, machine: Machine) -> None:
    """A small blob that has been met lies in a large one that has come since."""
    other, old, large = in_the_place_of_others(java, machine)
    first, last = large.code, large.code_end - 1
    other.look(2)
    for pcs in ([last], [first, old.code, last]):
        assert {blob and blob.start for blob in other.blobs_at(np.array(pcs, np.uint64))} == {large.start}
    assert large.start in other.changed
    assert old.start not in {blob.start for blob in other.blobs}


def test_code_found_between_looks_in_the_place_of_others_has_changed_at_the_next_one(
        java: JavaTarget, machine: Machine) -> None:
    other, _, large = in_the_place_of_others(java, machine)
    other.discover()
    other.look(3)
    assert large.start in other.changed
    other.look(4)
    assert large.start not in other.changed


def test_code_that_is_being_made_is_not_known_yet(machine: Machine, java: JavaTarget) -> None:
    """Its compiler has yet to write the tables of its methods."""
    machine.discover()
    blob = max((one for one in machine.blobs if one.level == 4), key=lambda one: one.code_end - one.code)
    at, block = machine.layout.at["state"], machine.layout.size["block"]
    tables = {begin for begin, _ in ranges_of(machine.layout, blob.start, (blob.code, blob.code_end), blob.head)[1:]}
    is_made = [False]

    def read(addresses: Sequence[int], sizes: Sequence[int]) -> list[bytes]:
        pieces = java.read(addresses, sizes)
        for i, address in enumerate(addresses if not is_made[0] else ()):
            if address == blob.start - block and sizes[i] > block + at:
                pieces[i] = pieces[i][:block + at] + b"\xff" + pieces[i][block + at + 1:]
            elif address in tables:
                pieces[i] = bytes(sizes[i])
        return pieces

    other = java.machine(read)
    assert isinstance(other, Machine)
    assert blob.start not in {one.start for one in other.discover()}
    is_made[0] = True
    (found,) = (one for one in other.discover() if one.start == blob.start)
    places = range(blob.code, blob.code_end)
    assert other.scopes_at([(found, pc, False) for pc in places]) == machine.scopes_at(
        [(blob, pc, False) for pc in places])


def test_metadata_whose_place_is_told_by_two_bytes() -> None:
    """In 23 and 24; the other two bytes say where another compiler's data is."""
    names = "immutable_data", "scopes_pcs", "scopes_data", "immutable_size", "blob_size", "data_offset", "metadata"
    at = dict.fromkeys((*_FIELDS, *_SOME), NONE) | {name: 8 * i for i, name in enumerate(names)}
    words = 0x7F00_0000, 0x40, 0x90, 0x200, 0x900, 0x800, 0x18 | 0x58 << 16
    head = bytes(16) + b"".join(word.to_bytes(8, "little") for word in words)
    assert ranges_of(Layout(at, {}, {"block": 16}, 23), 0x1000, (0x1100, 0x1800), head) == [
        (0x1100, 0x700), (0x7F00_0040, 0x50), (0x7F00_0090, 0x170), (0x1818, 0xE8)]


def test_code_of_a_machine_that_has_ended_is_proven_up_to_the_last_look(machine: Machine, java: JavaTarget) -> None:
    """What came to be in its place behind that nobody knows."""
    there = [True]
    other = java.machine(lambda addresses, sizes: java.read(addresses, sizes) if there[0] else [b""] * len(sizes))
    assert isinstance(other, Machine)
    other.discover()
    pcs = np.array([blob.code for blob in other.blobs], np.uint64)
    proven = []
    for now_ns, is_there in ((1000, True), (2000, True), (3000, False)):
        there[0] = is_there
        other.look(now_ns)
        assert all(other.blobs_at(pcs))
        proven.append(other.seen_ns)
    assert proven == [1000, 2000, 2000]
