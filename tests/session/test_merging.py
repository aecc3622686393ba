"""Functions of runtimes in stacks of machine code; and deep stacks among others."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from collector.events import Array, ClockSamples
from collector.experiment.frames import DEPTH_MAX, StackTable
from collector.experiment.stacks import read_stacks
from collector.processes.process import Epoch, Image
from collector.processes.space import AddressSpace, Mapping
from collector.session.merging import Managed, with_managed
from collector.session.placing import Frames, in_parts, on_top, placed_frames_of
from collector.unwind.batch import MAX_DEPTH, Stop
from collector.unwind.table import Tables


def test_what_is_too_deep_for_a_packet_with_its_functions_is_cut() -> None:
    """Each frame of one stack carries out three functions that were inlined; of the other, one does."""
    n_frames, deepest_kernel = np.array([2016, 31]), 128
    pcs = np.tile(np.arange(1, n_frames[0] + 1, dtype=np.uint64), (2, 1))
    places = Managed(np.repeat([0, 1], [n_frames[0], 1]), np.append(np.arange(n_frames[0]), 7),
                     np.zeros(n_frames[0] + 1, np.int64), [(7001, 7002, 7003)])
    found = with_managed([places], Frames(pcs, n_frames, np.full(2, Stop.ROOT, np.int8), pcs, pcs))
    assert found.stop.tolist() == [Stop.DEPTH, Stop.ROOT]
    packets: list[bytes] = []
    table = StackTable(packets.extend)
    kernel = np.full((2, deepest_kernel), 0xFFFF_FFFF_8100_0000, np.uint64)
    uids = table.intern(*on_top(kernel, found.pcs, found.length))
    stacks = read_stacks(np.frombuffer(b"".join(packets), np.uint8), 64)
    rows = stacks.index(uids)
    assert stacks.truncated[rows].tolist() == [True, False]
    deep, other = (stacks.stack(row).tolist()[deepest_kernel:] for row in rows.tolist())
    assert other == [*range(1, 8), 7001, 7002, 7003, *range(8, n_frames[1] + 1)]
    assert DEPTH_MAX // 2 < len(deep) < DEPTH_MAX - deepest_kernel
    assert deep[:9] == [7001, 7002, 7003, 1, 7001, 7002, 7003, 2, 7001]


def test_functions_stand_before_their_frames_whoever_tells_of_them() -> None:
    """Two tell of the same frame, and of others; one stack has no functions."""
    n_frames, stop = np.array([3, 1, 2]), np.array([Stop.ROOT, Stop.DEPTH, Stop.ROOT], np.int8)
    pcs = np.array([[1, 2, 3], [4, 0, 0], [5, 6, 0]], np.uint64)
    one = Managed(np.array([0, 2, 2]), np.array([1, 0, 1]), np.array([0, 1, 0]), [(71, 72), (73,)])
    other = Managed(np.array([2, 0]), np.array([1, 2]), np.array([0, 1]), [(81, 82, 83), ()])
    found = with_managed([one, other], Frames(pcs, n_frames, stop, pcs, pcs))
    assert [row[:n] for row, n in zip(found.pcs.tolist(), found.length.tolist(), strict=True)] == [
        [1, 71, 72, 2, 3], [4], [73, 5, 71, 72, 81, 82, 83, 6]]
    assert found.stop is stop


CODE, STACK = 0x40_0000, 0x7FFC_0000_0000
PID = 7


@pytest.fixture
def parts() -> Callable[[list[int]], tuple[Callable[[], Frames], Callable[[], Frames]]]:
    """Stacks of so many frames: how to have them as one array, and in parts."""
    tables, epochs = Tables(), [Epoch(0, Image(1, PID, 0), AddressSpace([Mapping(CODE, CODE + 4096, 0, b"", -1, 0)]))]

    def stacks_of(samples: ClockSamples, index: Array, max_depth: int) -> Frames:
        return placed_frames_of(samples, index, epochs, tables, max_depth=max_depth)

    def found(n_frames: list[int]) -> tuple[Callable[[], Frames], Callable[[], Frames]]:
        samples, index = chains(n_frames), np.zeros(len(n_frames), np.int64)
        return (lambda: stacks_of(samples, index, MAX_DEPTH),
                lambda: in_parts(samples, index, stacks_of, lambda _samples, _index, frames: frames))

    return found


def chains(n_frames: list[int]) -> ClockSamples:
    """Samples of code without a file, whose frames have nothing but their links."""
    n, ring = len(n_frames), 1 << (2 * max(n_frames)).bit_length()
    words = np.zeros((n, ring), np.uint64)
    for row, n_callers in enumerate(count - 1 for count in n_frames):
        links = 2 * np.arange(n_callers)
        words[row, links] = STACK + 8 * (links + 2)
        words[row, links + 1] = CODE + 16 + 16 * (links + row % 100) % 4000
        words[row, max(2 * n_callers - 2, 0)] = 0
    regs = np.zeros((n, 17), np.uint64)
    regs[:, [16, 7]] = CODE + 8, STACK
    regs[np.array(n_frames) > 1, 6] = STACK
    zero = np.zeros(n, np.int64)
    return ClockSamples(zero, zero + PID, zero + PID, zero, zero, zero + 64, regs, words.ravel(), np.arange(n) * ring,
                        zero + ring - 1, zero, regs[:, 7].copy(), 2 * np.array(n_frames))


@pytest.mark.parametrize("n_frames", [
    [1, 2, 127, 128, 129, 130, 700] * 45, [150] * 300, [3000, *[2] * 300]], ids=["all kinds", "deep", "too deep"])
def test_stacks_in_parts_are_the_same(n_frames: list[int], parts: Callable[..., Any]) -> None:
    whole, apart = (found() for found in parts(n_frames))
    assert whole.length.tolist() == [n if n <= MAX_DEPTH else MAX_DEPTH + 1 for n in n_frames]
    for one, other in zip(whole[:3], apart[:3], strict=True):
        assert np.array_equal(one, other)


def test_one_deep_stack_takes_no_memory_for_each_of_the_others(parts: Callable[..., Any]) -> None:
    n_others = 500
    _, apart = parts([*[5] * n_others, 1000])
    tracemalloc.start()
    try:
        pcs = apart().pcs
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2 * pcs.nbytes
