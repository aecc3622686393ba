"""The wavefront itself: whole answers on small stacks made by hand, and that no stack whatever leads it astray."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.elf import open_object
from collector.unwind.batch import Maps, Proof, Stacks, Stop, unwind
from collector.unwind.cfi import CfiSection, search_table
from collector.unwind.rules import Cfa, CfaKind
from collector.unwind.table import Tables
from collector.unwind.x86_64 import RBP, RIP, RSP, X86_64

LIBC = "/usr/lib/x86_64-linux-gnu/libc.so.6"
BIAS = 0x7F00_0000_0000
CODE_WITHOUT_FILE = 0x5000_0000
NEVER = 0x6000_0000
STACK = 0x7FFC_0000_0000


def libc_tables() -> tuple[Tables, Maps]:
    """libc in spaces 3 and 5 at different places; code without a file, and code that only uncopied words lead to."""
    tables = Tables()
    load_object = open_object(LIBC)
    number = tables.add_object(load_object)
    text = next(s for s in load_object.loads if s.is_executable)
    rows = []
    for space in (3, 5):
        bias = BIAS + space * 0x10_0000_0000
        rows += [(space, CODE_WITHOUT_FILE, CODE_WITHOUT_FILE + 0x1000, 0, -1), (space, NEVER, NEVER + 0x1000, 0, -1),
                 (space, bias + text.vaddr, bias + text.vaddr + text.memory_size, bias, number)]
    return tables, Maps(*(np.array([row[i] for row in rows], kind)
                          for i, kind in enumerate(("i8", "u8", "u8", "u8", "i8"))))


def one(words: list[int], pc: int, fp: int = 0, sp: int = STACK, low: int = STACK, space: int = 3) -> Stacks:
    """One sample whose stack is ``words`` from ``low`` on, in a ring that has room for twice as many."""
    size = 1 << (2 * max(len(words), 1)).bit_length()
    ring = np.full(size, NEVER + 8, np.uint64)
    first = size - len(words) // 2 - 1
    ring[(first + np.arange(len(words))) % size] = words
    regs = np.zeros((1, 17), np.uint64)
    regs[0, [RIP, RSP, RBP]] = pc, sp, fp
    return Stacks(np.array([space]), regs, ring, np.array([0]), np.array([size - 1]), np.array([first]),
                  np.array([low], np.uint64), np.array([len(words)]))


JIT = CODE_WITHOUT_FILE
OTHER = BIAS + 5 * 0x10_0000_0000 + 0x30000
CASES: dict[str, tuple[Stacks, list[int], Stop]] = {
    "a chain of two": (
        one([0, STACK + 24, JIT + 50, STACK + 40, JIT + 70, 0, JIT + 90], JIT + 1, STACK + 8),
        [JIT + 1, JIT + 49, JIT + 69, JIT + 89], Stop.ROOT),
    "no frame pointer": (one([1, 2, 3], JIT + 1, 0), [JIT + 1], Stop.ROOT),
    "a frame pointer below the stack": (one([1, 2, 3], JIT + 1, STACK - 8), [JIT + 1], Stop.NO_RULE),
    "a frame pointer that is not aligned": (one([0, JIT, JIT, JIT], JIT + 1, STACK + 4), [JIT + 1], Stop.NO_RULE),
    "a frame pointer behind the copy": (one([1, 2], JIT + 1, STACK + 64), [JIT + 1], Stop.TRUNCATED),
    "a link to itself": (one([0, STACK + 8, JIT + 50], JIT + 1, STACK + 8), [JIT + 1, JIT + 49], Stop.NO_RULE),
    "a return into nowhere": (one([0, 0, 0x1234], JIT + 1, STACK + 8), [JIT + 1], Stop.NO_RULE),
    "a return address of zero": (one([0, STACK + 64, 0], JIT + 1, STACK + 8), [JIT + 1], Stop.NO_RULE),
    "a pc in no mapping": (one([0, 0, 0], 0x1234), [0x1234], Stop.NO_MAP),
    "a pc of zero": (one([0, 0, 0], 0), [0], Stop.NO_MAP),
    "a pc in the kernel": (one([0, 0, 0], 0xFFFF_FFFF_8100_0000), [0xFFFF_FFFF_8100_0000], Stop.NO_MAP),
    "a pc of another space": (one([0, 0, 0], OTHER), [OTHER], Stop.NO_MAP),
    "a space without mappings": (one([0, 0, 0], JIT, space=4), [JIT], Stop.NO_MAP),
    "no words at all": (one([], JIT, STACK), [JIT], Stop.TRUNCATED),
}


@pytest.mark.parametrize("name", CASES)
def test_small_stacks(name: str) -> None:
    tables, maps = libc_tables()
    stacks, pcs, stop = CASES[name]
    frames = unwind(stacks, maps, tables)
    assert (frames.pcs.tolist(), frames.length.tolist(), Stop(int(frames.stop[0]))) == ([pcs], [len(pcs)], stop)
    tables.close()


def plain_pc(tables: Tables, maps: Maps) -> int:
    """A pc of libc at which the frame address is sp + 8 and the return address lies at sp."""
    load_object = open_object(LIBC)
    symbols = load_object.symbols()
    index = next(i for i in range(len(symbols)) if symbols.name(i) == b"getppid")
    load_object.close()
    return int(maps.bias[2]) + int(symbols.value[index])


def framed_pc(tables: Tables, maps: Maps) -> int:
    """A pc of libc at which the frame address is rbp + 16."""
    load_object = open_object(LIBC)
    hdr = load_object.eh_frame_hdr()
    assert hdr is not None
    vaddr, index = search_table(hdr, 8)
    extent = load_object.extent_at(vaddr)
    assert extent is not None
    assert index is not None
    section = CfiSection(extent, X86_64)
    pc_object = next(pc for offset in index.offset.tolist()
                     for pc, rule in section.rows_of(section.fde_at(offset - vaddr))
                     if rule.cfa == Cfa(CfaKind.REGISTER, RBP, 16))
    load_object.close()
    return int(maps.bias[2]) + pc_object


def test_stops_by_call_frame_information() -> None:
    tables, maps = libc_tables()
    pc = plain_pc(tables, maps)
    cases = {Stop.ROOT: one([0], pc), Stop.NO_MAP: one([0x1235], pc), Stop.OUTSIDE: one([5], pc, sp=STACK - 16),
             Stop.TRUNCATED: one([5], pc, sp=STACK + 8),
             # The frame pointer leads below the stack pointer, to words that would be a frame.
             Stop.LOOP: one([STACK + 8, pc + 1, 5, 5], framed := framed_pc(tables, maps), fp=STACK, sp=STACK + 24)}
    for stop, stacks in cases.items():
        frames = unwind(stacks, maps, tables)
        assert frames.pcs.tolist() == [[framed if stop == Stop.LOOP else pc]]
        assert Stop(int(frames.stop[0])) == stop
    unaligned = unwind(one([pc + 1, pc + 1], pc, sp=STACK + 4), maps, tables)
    assert (unaligned.length[0], Stop(int(unaligned.stop[0]))) == (1, Stop.OUTSIDE)
    nobody = one([5], pc)
    nobody.known = np.array([1 << RIP], np.uint64)
    frames = unwind(nobody, maps, tables)
    assert (Stop(int(frames.stop[0])), Proof(int(frames.proof[0]))) == (Stop.NO_REGISTER, Proof.CERTAIN)
    tables.close()


def test_depth_is_limited() -> None:
    tables, maps = libc_tables()
    pc = plain_pc(tables, maps)
    stacks = one([pc + 1] * 99 + [0], pc)
    for depth in (1, 2, 37, 99):
        frames = unwind(stacks, maps, tables, max_depth=depth)
        assert frames.pcs.tolist() == [[pc] * depth]
        assert frames.stop.tolist() == [Stop.DEPTH]
    frames = unwind(stacks, maps, tables)
    assert (frames.length.tolist(), frames.stop.tolist()) == ([100], [Stop.ROOT])
    tables.close()


def test_no_samples_and_no_mappings() -> None:
    tables, maps = libc_tables()
    stacks = one([0], 5)
    none = Stacks(*(getattr(stacks, name)[:0] for name in ("space", "regs")), stacks.words,
                  *(getattr(stacks, name)[:0] for name in ("base", "mask", "first", "low", "n_words")))
    frames = unwind(none, maps, tables)
    assert (frames.pcs.shape, len(frames.length)) == ((0, 0), 0)
    no_maps = Maps(*(getattr(maps, name)[:0] for name in ("space", "start", "end", "bias", "object")))
    assert unwind(stacks, no_maps, Tables()).stop.tolist() == [Stop.NO_MAP]
    tables.close()


@pytest.mark.parametrize("change", [{"base": -1}, {"base": 8}, {"mask": 2}, {"mask": -1}, {"n_words": 9},
                                    {"n_words": -1}, {"mask": 15}], ids=str)
def test_stacks_that_lead_out_of_the_words(change: dict[str, int]) -> None:
    stacks = one([0, 0, 0], 5)
    assert len(stacks.words) == 8
    for name, value in change.items():
        setattr(stacks, name, np.array([value]))
    with pytest.raises(ValueError, match="leads out"):
        unwind(stacks, Maps(*(np.zeros(0, kind) for kind in ("i8", "u8", "u8", "u8", "i8"))), Tables())


WORLD = libc_tables()


@given(seed=st.integers(0, 1 << 32), n=st.integers(1, 40), with_known=st.booleans())
@settings(max_examples=120, deadline=None)
def test_random_stacks(seed: int, n: int, with_known: bool) -> None:
    """Stacks full of return addresses, frame pointers and rubbish: every one ends, and only copied words are seen.

    Words that were not copied would lead into ``NEVER``, which nothing else does.
    """
    tables, maps = WORLD
    rng = np.random.default_rng(seed)
    size = 64
    low = STACK + rng.integers(0, 1 << 20, n).astype(np.uint64) * np.uint64(8)
    n_words = rng.integers(0, size + 1, n)
    first = rng.integers(0, size, n)
    space = rng.choice(np.array([3, 5, 9]), n)
    text = maps.start[2] + rng.integers(0, int(maps.end[2] - maps.start[2]), (n, size)).astype(np.uint64)
    text += np.where(space == 5, 0x20_0000_0000, 0).astype(np.uint64)[:, None]
    links = low[:, None] + rng.integers(0, 70, (n, size)).astype(np.uint64) * np.uint64(8)
    jit = np.uint64(JIT) + rng.integers(0, 0x1000, (n, size)).astype(np.uint64)
    rubbish = rng.integers(0, 1 << 63, (n, size)).astype(np.uint64)
    words = np.choose(rng.integers(0, 4, (n, size)), (text, links, jit, rubbish))
    not_copied = ((np.arange(size) - first[:, None]) % size) >= n_words[:, None]
    words[not_copied] = NEVER + 8
    regs = words[:, :17].copy()
    regs[not_copied[:, :17]] = 1
    regs[:, RSP] = low + rng.choice(np.array([0, 0, 0, 8, 16, 4], np.uint64), n)
    regs[:, RIP] = np.where(rng.random(n) < 0.8, text[:, 0], jit[:, 0])
    stacks = Stacks(space, regs, words.reshape(-1), np.arange(n) * size, np.full(n, size - 1), first, low, n_words)
    if with_known:
        stacks.known = np.where(rng.random(n) < 0.5, 1 << RIP | 1 << RSP, (1 << 17) - 1).astype(np.uint64)
    frames = unwind(stacks, maps, tables, max_depth=100)
    assert frames.pcs.shape == (n, frames.length.max())
    assert (frames.length >= 1).all()
    assert (frames.pcs[:, 0] == regs[:, RIP]).all()
    assert not ((frames.pcs >= NEVER) & (frames.pcs < NEVER + 0x1000)).any()
    assert ((frames.pcs != 0) == (np.arange(frames.length.max()) < frames.length[:, None])).all()
    callers = frames.pcs[:, 1:]
    for sample in range(n):
        ours = maps.space == space[sample]
        for pc in callers[sample][:frames.length[sample] - 1]:
            assert ((maps.start <= pc) & (pc < maps.end) & ours).any()
    alone = [unwind(Stacks(*(column[i:i + 1] for column in (space, regs)), stacks.words,
                           *(column[i:i + 1] for column in (stacks.base, stacks.mask, first, low, n_words)),
                           known=None if stacks.known is None else stacks.known[i:i + 1]), maps, tables, 100)
             for i in range(min(n, 5))]
    for i, single in enumerate(alone):
        assert single.pcs[0].tolist() == frames.pcs[i][:frames.length[i]].tolist()
        assert single.stop[0] == frames.stop[i]


def test_speed(world: Any, gdb_stops: Callable[..., Any], need: Callable[[str, str], str]) -> None:
    """Generous limits, several times what is measured: they catch a loop over samples, not a slow day."""
    script = "def f(n): return f(n - 1) + 1 if n else sum(range(50))\nwhile True: f(9)"
    stops = gdb_stops([need("/usr/bin/python3", "python3"), "-c", script], 11, ["stepi 997"])
    world.stops = (stops * 50)[:500]
    stacks, maps = world.stacks(), world.maps()
    stacks.space[:] = 0
    frames = unwind(stacks, maps, world.tables)
    assert frames.length.min() > 5
    best = min(timed(lambda: unwind(stacks, maps, world.tables)) for _ in range(5))
    assert best / int(frames.length.sum()) < 2e-6
    assert world.tables.counters.fdes_decoded < 300


def timed(action: Callable[[], object]) -> float:
    start = time.thread_time()
    action()
    return time.thread_time() - start


def test_deep_recursion_costs_by_the_level() -> None:
    tables, maps = libc_tables()
    pc = plain_pc(tables, maps)
    stacks = one([pc + 1] * 999 + [0], pc)
    frames = unwind(stacks, maps, tables)
    assert frames.length.tolist() == [1000]
    assert min(timed(lambda: unwind(stacks, maps, tables)) for _ in range(3)) < 0.3
    tables.close()
