"""Functions of runtimes in stacks of machine code."""

from __future__ import annotations

import numpy as np

from collector.experiment.frames import DEPTH_MAX, StackTable
from collector.experiment.stacks import read_stacks
from collector.session.merging import Managed, with_managed
from collector.session.placing import Frames, on_top
from collector.unwind.batch import Stop


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
