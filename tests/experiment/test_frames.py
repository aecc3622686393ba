"""Stacks: interned once, tails shared, read back as they went in."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.experiment import frames
from collector.experiment.frames import DEPTH_MAX, StackTable
from collector.experiment.packets import Damage, runs
from collector.experiment.records import (
    FRAME,
    KIND_FRAME,
    KIND_UID,
    LINKED,
    PACKET_SIZE_MAX,
    PC_TRUNCATED,
    PC_UNWIND_FAILED,
    UID,
)
from collector.experiment.stacks import Stacks, read_stacks

Stack = tuple[int, ...]


class File:
    """The packets that a table appended, joined."""

    def __init__(self, wsize: int = 64) -> None:
        self.data = b""
        self.table = StackTable(self.append, wsize)
        self.wsize = wsize

    def append(self, packets: list[bytes]) -> None:
        self.data += b"".join(packets)

    def intern(self, stacks: Iterable[Stack]) -> list[int]:
        return self.table.intern(*batch(list(stacks))).tolist()

    def read(self, data: bytes | None = None) -> Stacks:
        return read_stacks(np.frombuffer(self.data if data is None else data, np.uint8), self.wsize)

    def kinds(self) -> list[int]:
        return [run.kind for run in runs(np.frombuffer(self.data, np.uint8)) for _ in range(run.count)]


def batch(stacks: list[Stack]) -> tuple[np.ndarray, np.ndarray]:
    length = np.array([len(stack) for stack in stacks], np.int64)
    pcs = np.zeros((len(stacks), max(length, default=0)), np.uint64)
    for row, stack in enumerate(stacks):
        pcs[row, :len(stack)] = stack
    return pcs, length


def resolved(stacks: Stacks, uid: int) -> Stack:
    (index,) = stacks.index(np.array([uid]))
    assert index >= 0
    return tuple(stacks.stack(index).tolist())


def all_resolved(stacks: Stacks) -> dict[int, Stack]:
    index = stacks.index(stacks.uids)
    assert (index >= 0).all()
    return {uid: tuple(stacks.stack(place).tolist()) for uid, place in zip(stacks.uids.tolist(), index, strict=True)}


# A few pcs, so that stacks meet and share; pc 0 (a call through a null pointer) included.
PC = st.sampled_from([0, 1, 0x1000, 0x1001, 0x7FFF_FFFF_F000, 0xFFFF_FFFF_FF60_0000])
BATCHES = st.lists(st.lists(st.lists(PC, min_size=1, max_size=9).map(tuple), max_size=7), max_size=5)


@settings(max_examples=300)
@given(BATCHES)
def test_any_stacks_are_interned_once_and_read_back(batches: list[list[Stack]]) -> None:
    file = File()
    uid_of: dict[Stack, int] = {}
    for stacks in batches:
        for stack, uid in zip(stacks, file.intern(stacks), strict=True):
            assert uid_of.setdefault(stack, uid) == uid
    read = file.read()
    assert len(read) == len(set(uid_of.values())) == len(uid_of) == len(file.table)
    for stack, uid in uid_of.items():
        assert resolved(read, uid) == stack
    assert all(uid % 16 == 0 and uid > 0 for uid in uid_of.values())


@settings(max_examples=100)
@given(BATCHES)
def test_equal_hashes_of_different_stacks_do_no_harm(batches: list[list[Stack]]) -> None:
    terms = frames._terms
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frames, "_terms", lambda pcs: terms(pcs) & np.uint64(1))
        file = File()
        uid_of: dict[Stack, int] = {}
        for stacks in batches:
            for stack, uid in zip(stacks, file.intern(stacks), strict=True):
                assert uid_of.setdefault(stack, uid) == uid
        assert {stack: resolved(file.read(), uid) for stack, uid in uid_of.items()} == {s: s for s in uid_of}


@pytest.mark.parametrize("wsize", [64, 32])
def test_shared_tails_are_written_once(wsize: int) -> None:
    file = File(wsize)
    tail = tuple(range(0x1000, 0x1000 + 20))
    sizes = []
    for leaf in (0x10, 0x11, 0x12, 0x13):
        before = len(file.data)
        file.intern([(leaf, *tail)])
        sizes.append(len(file.data) - before)
    pc = wsize // 8
    full, linked = FRAME.size + 21 * pc, FRAME.size + pc + 8
    assert sizes == [full, UID.size + 20 * pc + linked, linked, linked]
    assert file.kinds() == [KIND_FRAME, KIND_UID, KIND_FRAME, KIND_FRAME, KIND_FRAME]
    assert [tuple(file.read().stack(i).tolist()) for i in range(4)] == [(leaf, *tail) for leaf in range(0x10, 0x14)]


def test_a_whole_stack_serves_as_a_tail() -> None:
    file = File()
    file.intern([(1, 2, 3, 4)])
    before = len(file.data)
    file.intern([(9, 1, 2, 3, 4)])
    assert len(file.data) - before == FRAME.size + 8 + 8
    assert KIND_UID not in file.kinds()


def test_tails_share_tails() -> None:
    file = File()
    root = tuple(range(100, 130))
    stacks = [(leaf, branch, branch + 1, *root) for branch in (10, 20, 30) for leaf in (1, 2, 3)]
    uids = file.intern(stacks)
    read = file.read()
    assert [resolved(read, uid) for uid in uids] == stacks
    assert len(file.data) < FRAME.size + 33 * 8 + UID.size + 30 * 8 + 9 * (FRAME.size + 8 * 8)


def test_short_tails_are_not_worth_a_link() -> None:
    file = File()
    file.intern([(1, 8, 9), (2, 8, 9), (3, 8, 9)])
    assert file.kinds() == [KIND_FRAME] * 3
    assert len(file.data) == 3 * (FRAME.size + 24)


def test_a_deepening_recursion_costs_its_new_frames_only() -> None:
    file = File()
    stacks = [(0x10, *(0x20,) * depth, 0x30, 0x40, 0x50) for depth in range(1, 150)]
    for stack in stacks:
        file.intern([stack])
    assert len(file.data) / len(stacks) < 4 * FRAME.size
    read = file.read()
    assert [tuple(read.stack(i).tolist()) for i in range(len(stacks))] == stacks


def test_tails_are_forgotten_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then tails are shared anew."""
    monkeypatch.setattr(frames, "_TAILS_MAX", 100)
    rng = np.random.default_rng(5)
    stacks = [(leaf, *rng.integers(1 << 40, 1 << 47, 40).tolist()) for leaf in range(7)]
    stacks = [(leaf, *stack[1:]) for stack in stacks for leaf in range(5)]
    file = File()
    uids = [file.intern([stack])[0] for stack in stacks + stacks]
    assert uids[:len(stacks)] == uids[len(stacks):]
    read = file.read()
    assert [resolved(read, uid) for uid in uids[:len(stacks)]] == stacks
    assert 7 < file.kinds().count(KIND_UID) < 14
    assert len(file.table._tails) < 200


def test_deep_stacks_that_are_cut_take_little_more_memory_than_they_have_bytes() -> None:
    rng = np.random.default_rng(1)
    pcs = rng.integers(0x401234, 0x401236, (300, 600)).astype(np.uint64)  # of a recursion by two calls
    pcs[:, -1] = PC_TRUNCATED
    file = File()
    tracemalloc.start()
    try:
        file.table.intern(pcs, np.full(300, 600))
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < 5 * len(file.data)


def test_the_deepest_stack_fits_one_packet_and_deeper_ones_are_refused() -> None:
    file = File()
    (uid,) = file.intern([tuple(range(1, DEPTH_MAX + 1))])
    assert len(file.data) <= PACKET_SIZE_MAX
    assert resolved(file.read(), uid) == tuple(range(1, DEPTH_MAX + 1))
    with pytest.raises(ValueError, match="8001 frames"):
        file.intern([tuple(range(1, DEPTH_MAX + 2))])


@pytest.mark.parametrize("wsize", [64, 32])
def test_markers_become_flags(wsize: int) -> None:
    mask = (1 << wsize) - 1
    file = File(wsize)
    uids = file.intern([(1, 2, 3), (1, 2, 3, PC_TRUNCATED & mask), (1, 2, PC_UNWIND_FAILED & mask), ()])
    read = file.read()
    rows = read.index(np.array(uids))
    assert [tuple(read.stack(row).tolist()) for row in rows] == [(1, 2, 3), (1, 2, 3), (1, 2), ()]
    assert read.truncated[rows].tolist() == [False, True, False, False]
    assert read.failed[rows].tolist() == [False, False, True, True]


def test_no_stacks() -> None:
    file = File()
    assert file.intern([]) == []
    assert file.intern([(), ()]) == [16, 16]
    empty = file.read(b"")
    assert len(empty) == 0
    assert empty.index(np.array([16, 0])).tolist() == [-1, -1]


def many() -> File:
    file = File()
    rng = np.random.default_rng(11)
    for _ in range(5):
        file.intern([tuple(rng.integers(1, 5, rng.integers(1, 12)).tolist()) for _ in range(11)])
    return file


def test_a_file_cut_at_any_byte_gives_the_stacks_that_are_whole() -> None:
    file = many()
    whole = all_resolved(file.read())
    for cut in range(len(file.data)):  # tails stand before the stacks that link to them
        assert all_resolved(file.read(file.data[:cut])).items() <= whole.items()
    assert len(file.read(file.data[:-1])) == len(whole) - 1


@pytest.mark.parametrize("garbage", [
    b"\xff" * 64, b"\x03\x00\x0b\x00" * 9, b"\x10\x00\x0b\x00" + b"\xff" * 60, b"\x01"], ids=range(4))
def test_trailing_garbage_harms_nothing_before_it(garbage: bytes) -> None:
    file = many()
    read, whole = file.read(file.data + garbage), file.read()
    assert {uid: resolved(read, uid) for uid in whole.uids.tolist()} == all_resolved(whole)


@settings(max_examples=200)
@given(st.data())
def test_damaged_bytes_never_raise(data: st.DataObject) -> None:
    file = many()
    damaged = bytearray(file.data)
    for _ in range(data.draw(st.integers(1, 8))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    read = file.read(bytes(damaged))
    assert len(read.offsets) == len(read.uids) + 1
    assert read.offsets[-1] == len(read.pcs)


def test_links_in_a_circle_end_a_stack() -> None:
    def uid_packet(uid: int, pc: int, link: int) -> bytes:
        words = np.array([uid, pc, link], "<u8").tobytes()
        return np.array([32, KIND_UID], "<u2").tobytes() + np.array([LINKED], "<u4").tobytes() + words

    file = File()
    (uid,) = file.intern([(1, 2, 3, 4)])
    frame = np.array([FRAME.size + 16, KIND_FRAME], "<u2").tobytes() + np.array([16], "<u4").tobytes()
    frame += np.array([800], "<u8").tobytes() + np.array([32, LINKED | 1], "<u4").tobytes()
    frame += np.array([800, 7, 48], "<u8").tobytes()
    read = file.read(file.data + frame + uid_packet(48, 8, 64) + uid_packet(64, 9, 48) + uid_packet(80, 9, 80))
    assert resolved(read, uid) == (1, 2, 3, 4)
    assert resolved(read, 800)[0] == 7


def test_a_size_that_no_packet_has_is_counted_and_skipped() -> None:
    file = many()
    block = (file.data + b"\x03\x00\x0b\x00").ljust(16_384, b"\0")
    damage = Damage()
    read_stacks(np.frombuffer(block + file.data, np.uint8), 64, damage)
    assert damage.n_invalid == 1


@pytest.mark.parametrize("wsize", [64, 32])
def test_packets_may_lie_at_any_multiple_of_four(wsize: int) -> None:
    file, whole = many(), many().read()
    file.wsize = wsize
    before = np.array([12, 99, 0, 0, 0, 0], "<u2").tobytes()
    moved, unmoved = file.read(before + file.data), file.read()
    for uid in whole.uids.tolist():
        assert resolved(moved, uid) == resolved(unmoved, uid)


def test_interning_known_stacks_takes_about_a_microsecond() -> None:
    rng = np.random.default_rng(3)
    known = rng.integers(1 << 40, 1 << 47, (401, 30)).astype(np.uint64)
    length = np.full(500, 30, np.int64)
    batches = [known[rng.integers(0, 401, 500)] for _ in range(41)]
    file = File()
    expected = [file.table.intern(pcs, length).tolist() for pcs in batches]
    size = len(file.data)
    durations_ns = []
    for pcs, uids in zip(batches, expected, strict=True):
        start_ns = time.thread_time_ns()
        again = file.table.intern(pcs, length)
        durations_ns.append(time.thread_time_ns() - start_ns)
        assert again.tolist() == uids
    assert len(file.data) == size
    assert min(durations_ns) / 500 < 2_000
