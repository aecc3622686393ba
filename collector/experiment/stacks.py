"""Reading call stacks from data.frameinfo, with shared tails resolved.

Every native block and every UID packet is a node: some pcs of its own and perhaps a link to the node that continues it
toward the root. A frame's stack is the chain of nodes from its block on::

    frame 48 -> node 48 [pc0 pc1] -> node 32 [pc2 pc3]        pcs leaf first: pc0 pc1 pc2 pc3

All frames walk their chains at once; the loop is over the length of the longest chain. What is in the nodes is numbered
once, pc by pc. A link to nowhere ends a stack,
and so does one that leads in a circle. Sharing lets a few bytes stand for any number of frames: stacks that are deeper
than any recorder writes are cut, and so are all when together they are too many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from collector.arrays import gathered, numbered_few
from collector.experiment.packets import Bytes, Damage, Run, packet_offsets
from collector.experiment.records import (
    BLOCK_NATIVE,
    FRAME_BLOCKS_OFFSET,
    INFO,
    KIND_EMPTY,
    KIND_FRAME,
    KIND_UID,
    LINKED,
    PC_TRUNCATED,
    PC_UNWIND_FAILED,
    UID,
)

U8 = npt.NDArray[np.uint64]
I8 = npt.NDArray[np.int64]
I4 = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]

_KIND_MASK = LINKED - 1
_LINK_SIZE = 8
# Recorders write at most 8,000 frames.
DEPTH_MAX = 1 << 14
_FRAMES_MAX = 1 << 26
_TABLE_MAX = 1 << 20  # uids below it are looked up in a table


@dataclass(frozen=True)
class Stacks:
    """The unique stacks of an experiment.

    The frames of stack i are ``numbers[offsets[i]:offsets[i + 1]]``, leaf first, numbers of ``distinct`` pcs; it
    belongs to the packets whose FRINFO is ``uids[i]``. Markers are not among the frames: a stack that does not reach
    the root is ``truncated`` or, if the unwinder gave up, ``failed``.
    """

    uids: U8  # (n,) sorted
    offsets: I8  # (n + 1,)
    distinct: U8  # sorted; some may be of no stack
    numbers: I4
    truncated: Flags  # (n,)
    failed: Flags  # (n,)

    def __len__(self) -> int:
        """The number of stacks."""
        return len(self.uids)

    def index(self, frame_uid: npt.NDArray[np.integer[npt.NBitBase]]) -> I8:
        """For each FRINFO the number of its stack, -1 where there is none. (n,) -> (n,)"""
        wanted = frame_uid.astype(np.uint64, copy=False)
        if not len(self.uids):
            return np.full(len(wanted), -1, np.int64)
        if self.uids[-1] < _TABLE_MAX:
            return self._place_of[np.minimum(wanted, np.uint64(len(self._place_of) - 1)).view(np.int64)]
        place = self.uids.searchsorted(wanted).clip(max=len(self.uids) - 1)
        return np.where(self.uids[place] == wanted, place, -1)

    @cached_property
    def _place_of(self) -> I8:
        """By uid, and for any that is larger."""
        place_of = np.full(int(self.uids[-1]) + 2, -1, np.int64)
        place_of[self.uids.view(np.int64)] = np.arange(len(self.uids))
        return place_of

    @property
    def pcs(self) -> U8:
        """The pc of every frame."""
        return self.distinct[self.numbers]

    def stack(self, index: int) -> U8:
        """The pcs of one stack."""
        return self.distinct[self.numbers[self.offsets[index]:self.offsets[index + 1]]]


@dataclass
class _Nodes:
    uid: U8
    start: I8  # byte offset of the first pc
    count: I8  # pcs
    link: U8  # 0: none


def read_stacks(data: Bytes, wsize: int, damage: Damage | None = None) -> Stacks:
    """All stacks of a data.frameinfo. data (n,) bytes; wsize 64 or 32 says how wide a pc is."""
    words = data[:len(data) // 4 * 4].view("<u4")
    frames, uids = _packet_offsets(data, damage)
    pc_size = wsize // 8
    frame_uid, blocks = _native_blocks(words, frames)
    nodes = _joined(_block_nodes(words, blocks, pc_size), _tail_nodes(words, uids, pc_size))
    frame_uid, first = np.unique(frame_uid, return_index=True)
    distinct, in_nodes = numbered_few(_own_pcs(words, nodes, pc_size))
    del data, words  # what follows needs the room
    offsets, numbers, cut = _resolved(in_nodes, nodes, first)
    if damage is not None:
        damage.note("stacks of impossible depth were cut", int(cut.sum()))
    return _without_markers(frame_uid, offsets, distinct, numbers, cut, pc_size)


def read_nodes(data: Bytes, found: Sequence[Run], wsize: int) -> tuple[U8, list[tuple[int, U8, int]]]:
    """Of some packets of a data.frameinfo: the uids of frames (f,), whose nodes come first; and all nodes: uid, pcs,
    link (0: none).
    """
    words = data[:len(data) // 4 * 4].view("<u4")
    every = [np.arange(run.count, dtype=np.int64) * run.size + run.offset for run in found]
    frames, uids = _by_kind(words, np.concatenate([np.zeros(0, np.int64), *every]))
    pc_size = wsize // 8
    frame_uid, blocks = _native_blocks(words, frames)
    nodes = _joined(_block_nodes(words, blocks, pc_size), _tail_nodes(words, uids, pc_size))
    ends = nodes.count.cumsum()
    pcs = np.split(_own_pcs(words, nodes, pc_size), ends[:-1]) if len(ends) else []
    return frame_uid, list(zip(nodes.uid.tolist(), pcs, nodes.link.tolist(), strict=True))


def marker_of(pc: int, wsize: int) -> int:
    """PC_TRUNCATED or PC_UNWIND_FAILED where the last pc of a stack says so; else 0."""
    mask = (1 << wsize) - 1
    return next((marker for marker in (PC_TRUNCATED, PC_UNWIND_FAILED) if pc == marker & mask), 0)


def _joined(own: _Nodes, tails: _Nodes) -> _Nodes:
    return _Nodes(*(np.concatenate([a, b]) for a, b in zip(vars(own).values(), vars(tails).values(), strict=True)))


def _packet_offsets(data: Bytes, damage: Damage | None) -> tuple[I8, I8]:
    offset = np.fromiter(packet_offsets(data, damage), np.int64)
    return _by_kind(data[:len(data) // 4 * 4].view("<u4"), offset)


def _by_kind(words: npt.NDArray[np.uint32], offset: I8) -> tuple[I8, I8]:
    """Of the packets at byte offsets those that are stacks, and those that are tails."""
    heads = words[offset >> 2]
    kinds = np.where(heads & 0xFFFF >= UID.size, heads >> 16, KIND_EMPTY)
    return offset[kinds == KIND_FRAME], offset[kinds == KIND_UID]


def _u8(words: npt.NDArray[np.uint32], offset: I8) -> U8:
    """The 64-bit numbers at byte offsets that are multiples of four."""
    place = offset >> 2
    high = words[place + 1].astype(np.uint64) << np.uint64(32)
    numbers: U8 = words[place].astype(np.uint64) | high
    return numbers


def _native_blocks(words: npt.NDArray[np.uint32], frames: I8) -> tuple[U8, I8]:
    """The frames that have a native stack: their uids, and the byte offsets of its block."""
    ends = frames + (words[frames >> 2] & 0xFFFF)
    blocks = frames + np.maximum(words[(frames >> 2) + 1], FRAME_BLOCKS_OFFSET).astype(np.int64)
    live = np.ones(len(frames), np.bool_)
    found = np.zeros(len(frames), np.bool_)
    while live.any():
        live &= (blocks % 4 == 0) & (blocks + INFO.size <= ends)
        place = np.where(live, blocks >> 2, 0)
        size = words[place].astype(np.int64)
        live &= (size >= 8) & (blocks + size <= ends)
        native = live & (words[np.where(live, place + 1, 0)] & _KIND_MASK == BLOCK_NATIVE) & (size >= INFO.size)
        found |= native
        live &= ~native
        blocks = np.where(live, blocks + size, blocks)
    return _u8(words, frames[found] + 8), blocks[found]


def _block_nodes(words: npt.NDArray[np.uint32], blocks: I8, pc_size: int) -> _Nodes:
    size = words[blocks >> 2].astype(np.int64)
    linked = words[(blocks >> 2) + 1] & LINKED != 0
    linked &= size >= INFO.size + _LINK_SIZE
    uid = _u8(words, blocks + 8)
    count = (size - INFO.size - linked * _LINK_SIZE) // pc_size
    link = np.where(linked, _u8(words, np.where(linked, blocks + size - _LINK_SIZE, 0)), np.uint64(0))
    elsewhere = (count == 0) & ~linked  # the block only names a stack
    return _Nodes(np.where(elsewhere, np.uint64(0), uid), blocks + INFO.size, count,
                  np.where(elsewhere, uid, link))


def _tail_nodes(words: npt.NDArray[np.uint32], offsets: I8, pc_size: int) -> _Nodes:
    size = (words[offsets >> 2] & 0xFFFF).astype(np.int64)
    linked = words[(offsets >> 2) + 1] & LINKED != 0
    linked &= size >= UID.size + _LINK_SIZE
    count = (size - UID.size - linked * _LINK_SIZE) // pc_size
    link = np.where(linked, _u8(words, np.where(linked, offsets + size - _LINK_SIZE, 0)), np.uint64(0))
    return _Nodes(_u8(words, offsets + 8), offsets + UID.size, count, link)


def _next_nodes(nodes: _Nodes) -> I8:
    """For each node the number of the node it links to, -1 for none; links that lead in a circle are cut."""
    order = nodes.uid.argsort(kind="stable")
    sorted_uids = nodes.uid[order]
    place = sorted_uids.searchsorted(nodes.link).clip(max=max(len(order) - 1, 0))
    known = (nodes.link != 0) & (sorted_uids[place] == nodes.link)
    following = np.where(known, order[place], -1)
    jump = following
    for _ in range(len(order).bit_length()):  # after k rounds: 2**k steps on
        jump = np.where(jump >= 0, jump[jump], -1)
    return np.where(jump >= 0, -1, following)


def _own_pcs(words: npt.NDArray[np.uint32], nodes: _Nodes, pc_size: int) -> U8:
    """The pcs of all nodes, one node behind the other."""
    if pc_size == 4:
        return gathered(words, nodes.start >> 2, nodes.count).astype(np.uint64)
    if not (nodes.start & 7).any():
        return gathered(words[:len(words) // 2 * 2].view("<u8"), nodes.start >> 3, nodes.count)
    low = gathered(words, nodes.start >> 2, 2 * nodes.count)
    return low.view("<u8")


def _resolved(in_nodes: I4, nodes: _Nodes, first: I8) -> tuple[I8, I4, Flags]:
    """offsets (n + 1,) and frames of the chains that begin at the nodes ``first`` (n,), and which of them were cut.

    in_nodes: what is in the nodes, one behind the other.
    """
    if not len(first):
        return np.zeros(1, np.int64), in_nodes[:0], np.zeros(0, np.bool_)
    steps, length, cut = _steps(first, _next_nodes(nodes), nodes.count)
    cut |= length > DEPTH_MAX
    length = np.minimum(length, DEPTH_MAX)
    too_many = length.cumsum() > _FRAMES_MAX
    cut |= too_many & (length > 0)
    length[too_many] = 0
    owner, visited = _visits(steps, len(first))
    count = nodes.count[visited]
    ahead = count.cumsum() - count
    chain_begins = owner.searchsorted(np.arange(len(first)))
    count = np.minimum(count, np.maximum(length[owner] - (ahead - ahead[chain_begins][owner]), 0))
    begins = nodes.count.cumsum() - nodes.count
    return np.concatenate([[0], length.cumsum()]), gathered(in_nodes, begins[visited], count), cut


def _visits(steps: list[tuple[I8, I8]], n: int) -> tuple[I8, I8]:
    """The chains and the nodes of all steps, chain by chain."""
    n_steps = np.zeros(n, np.int64)
    for rows, _ in steps:
        n_steps[rows] += 1
    begins = n_steps.cumsum() - n_steps
    visited = np.zeros(int(n_steps.sum()), np.int64)
    for step, (rows, node) in enumerate(steps):
        visited[begins[rows] + step] = node
    return np.repeat(np.arange(n), n_steps), visited


def _steps(first: I8, following: I8, count: I8) -> tuple[list[tuple[I8, I8]], I8, Flags]:
    """(rows, nodes) for each step along the chains, until all have ended; the chains' lengths, and which were cut."""
    rows, node = np.arange(len(first)), first
    length, cut = np.zeros(len(first), np.int64), np.zeros(len(first), np.bool_)
    steps, n_visited = [], 0
    while len(rows):
        steps.append((rows, node))
        length[rows] += count[node]
        n_visited += len(rows)
        node = following[node]
        rows, node = rows[node >= 0], node[node >= 0]
        ends = length[rows] >= DEPTH_MAX if n_visited < _FRAMES_MAX else np.ones(len(rows), np.bool_)
        cut[rows[ends]] = True
        rows, node = rows[~ends], node[~ends]
    return steps, length, cut


def _without_markers(uids: U8, offsets: I8, distinct: U8, numbers: I4, cut: Flags, pc_size: int) -> Stacks:
    mask = np.uint64((1 << 8 * pc_size) - 1)
    last, some = offsets[1:] - 1, offsets[1:] > offsets[:-1]
    last_pc = np.zeros(len(uids), np.uint64)
    last_pc[some] = distinct[numbers[last[some]]]
    truncated = some & (last_pc == np.uint64(PC_TRUNCATED) & mask)
    failed = some & (last_pc == np.uint64(PC_UNWIND_FAILED) & mask)
    marked = truncated | failed
    if marked.any():
        numbers = np.delete(numbers, last[marked])
        offsets = np.append(0, np.cumsum(np.diff(offsets) - marked))
    return Stacks(uids, offsets, distinct, numbers, truncated | cut, failed)
