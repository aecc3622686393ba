"""Interning of call stacks: each unique stack is written once, and shared tails are written once.

A row of pcs, leaf first, is hashed as a polynomial whose powers count from the root, so that equal tails of
different stacks have equal hashes::

    hash(row[j:]) = sum over j' >= j of mix(pc[j']) * B**(length - 1 - j')  +  (length - j) * L  mod 2**64

which for a whole batch is one product, one cumulative sum and one product with B**-(length - 1). A hash only
finds a candidate; stacks are compared before they are called the same. Tails: the first stack with a tail
holds it in full; the second makes a UID packet of it; from then on stacks, and further tails, link to that
packet. When too many tails are known all are forgotten: what is met anew is written once more.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from collector.arrays import indices
from collector.experiment.records import (
    BLOCK_NATIVE,
    FRAME,
    FRAME_BLOCKS_OFFSET,
    LINKED,
    PC_TRUNCATED,
    PC_UNWIND_FAILED,
    UID,
)

DEPTH_MAX = 8000
UID_STEP = 16
# A link takes as much as one pc, a UID packet as much as two more: below three frames nothing is won.
TAIL_MIN = 3
# Tails that are known; about 150 bytes each.
_TAILS_MAX = 1 << 18
# Of a stack that is cut, which hardly any other is at the same frame.
_CUT_TAILS_MAX = 64

U8 = npt.NDArray[np.uint64]
I8 = npt.NDArray[np.int64]

_MIX = np.uint64(0x9E37_79B9_7F4A_7C15)
_BASE = 0xD134_2543_DE82_EF95
_INVERSE_BASE = pow(_BASE, -1, 1 << 64)
_PER_LENGTH = np.uint64(0xAF25_1AF3_B0F0_25B5)
_OWNER_STEP = 1 << 13  # a tail's place is owner * _OWNER_STEP + position, position < DEPTH_MAX


class Hashed(NamedTuple):
    """Stacks, none of which is empty, and their hashes."""

    pcs: U8  # (n, depth) leaf first, zero behind length
    length: I8  # (n,)
    terms: U8  # (n, depth) see _terms
    hashes: U8  # (n,)

    def at(self, rows: I8) -> Hashed:
        """Some of them."""
        length = self.length[rows]
        depth = int(length.max())
        return Hashed(self.pcs[rows, :depth], length, self.terms[rows, :depth], self.hashes[rows])


def hashed(pcs: U8, length: I8) -> Hashed:
    """The stacks (n, depth) of a batch as ``StackTable.intern`` takes them, with their hashes."""
    pcs, length = _prepared(pcs, length)
    terms = _terms(pcs)
    return Hashed(pcs, length, terms, _finish(terms.sum(axis=1, dtype=np.uint64), length, length, pcs.shape[1]))


class StackTable:
    """The unique stacks of one experiment. ``append`` takes packets for data.frameinfo."""

    def __init__(self, append: Callable[[list[bytes]], None], wsize: int = 64) -> None:
        self._append = append
        self._pc_type = {64: "<u8", 32: "<u4"}[wsize]
        self._last_uid = 0
        self._ones: dict[int, U8] = {}  # uids of stacks of one frame
        self._known: dict[int, int] = {}  # hash -> index
        self._collided: dict[bytes, int] = {}  # contents -> index, for stacks whose hash another one has
        self._tails: dict[int, int] = {}  # hash of a tail -> where it was first seen
        self._tail_uids: dict[int, int] = {}  # hash of a tail -> uid of its packet
        self._count = 0
        # Thousands of short processes have a stack or two each.
        self._uids: U8 = np.zeros(4, np.uint64)
        self._starts: I8 = np.zeros(5, np.int64)  # stack i is _flat[_starts[i]:_starts[i + 1]]
        self._flat: U8 = np.zeros(32, np.uint64)

    def __len__(self) -> int:
        """The number of unique stacks."""
        return self._count

    def intern_one(self, pc: int) -> U8:
        """The frame uid (1,) of a stack of one frame, one of a few that are asked for again and again."""
        found = self._ones.get(pc)
        if found is None:
            found = self._ones[pc] = self.intern(np.full((1, 1), pc, np.uint64), np.ones(1, np.int64))
        return found

    def intern(self, pcs: U8, length: I8) -> U8:
        """The frame uid of each stack. pcs (n, depth) leaf first, zero behind length (n,), at most DEPTH_MAX.

        Stacks not seen before are written. A stack of no frames counts as one that could not be unwound.
        """
        return self.intern_hashed(hashed(pcs, length))

    def intern_hashed(self, stacks: Hashed) -> U8:
        """The same of stacks with their hashes, which may be those of some of a batch for several tables."""
        hashes = stacks.hashes.tolist()
        index = list(map(self._known.get, hashes))
        if None in index:
            first = {stack_hash: row for row, stack_hash in reversed(list(enumerate(hashes))) if index[row] is None}
            new = sorted(first)
            self._learn(stacks.at(np.array([first[stack_hash] for stack_hash in new])), new)
            index = [self._known[stack_hash] for stack_hash in hashes]
        rows = np.array(index, np.int64)
        for row in indices(self._differs(rows, stacks.pcs, stacks.length)):
            rows[row] = self._collision(stacks.pcs[row, :stacks.length[row]])
        return self._uids[rows]

    def _differs(self, rows: I8, pcs: U8, length: I8) -> npt.NDArray[np.bool_]:
        """Which stacks are not what their hash found."""
        starts = self._starts[rows]
        columns = np.arange(pcs.shape[1])
        self._reserve(pcs.shape[1], 0)
        same = self._flat[starts[:, None] + columns] == pcs
        same |= columns >= length[:, None]
        different: npt.NDArray[np.bool_] = ~same.all(axis=1) | (self._starts[rows + 1] - starts != length)
        return different

    def _collision(self, stack: U8) -> int:
        key = stack.tobytes()
        index = self._collided.get(key)
        if index is None:
            index = self._collided[key] = self._store(stack)
            self._append([self._frame_packet(int(self._uids[index]), stack, 0)])
        return index

    def _learn(self, stacks: Hashed, hashes: list[int]) -> None:
        """Write stacks whose hashes are new; all distinct."""
        pcs, length = stacks.pcs, stacks.length
        sums = np.cumsum(stacks.terms[:, ::-1], axis=1, dtype=np.uint64)[:, ::-1]
        remaining = length[:, None] - np.arange(pcs.shape[1])
        tails = _finish(sums, length[:, None], remaining, pcs.shape[1])
        packets: list[bytes] = []
        for row, (n, stack_hash) in enumerate(zip(length.tolist(), hashes, strict=True)):
            self._known[stack_hash] = self._write(pcs[row, :n], tails[row, :n].tolist(), packets)
        self._append(packets)

    def _write(self, stack: U8, tails: list[int], packets: list[bytes]) -> int:
        """Write a new stack, linked to the longest tail that was seen before."""
        end = len(stack) - TAIL_MIN + 1
        position = next((j for j in range(1, end) if tails[j] in self._tails), len(stack))
        link = self._link(stack, tails, position, packets) if position < len(stack) else 0
        own = position if link else len(stack)
        index = self._store(stack)
        self._note_tails(index, tails[:min(own, max(end, 1), _CUT_TAILS_MAX if stack[-1] == PC_TRUNCATED else own)])
        packets.append(self._frame_packet(int(self._uids[index]), stack[:own], link))
        return index

    def _note_tails(self, index: int, tails: list[int]) -> None:
        """A new stack has these first."""
        if len(self._tails) > _TAILS_MAX:
            self._tails.clear()
            self._tail_uids.clear()
        for j, tail in enumerate(tails):
            self._tails.setdefault(tail, index * _OWNER_STEP + j)

    def _link(self, stack: U8, tails: list[int], position: int, packets: list[bytes]) -> int:
        """The uid of the tail at ``position``, which some stack has had before; 0 if that was another with
        its hash.
        """
        owner, start = divmod(self._tails[tails[position]], _OWNER_STEP)
        seen = self._flat[self._starts[owner] + start:self._starts[owner + 1]]
        if seen.tobytes() != stack[position:].tobytes():
            return 0
        if start == 0:
            return int(self._uids[owner])
        uid = self._tail_uids.get(tails[position])
        if uid is None:
            uid = self._tail_uids[tails[position]] = self._next_uid()
            end = len(stack)
            further = next((j for j in range(position + 1, end) if tails[j] in self._tail_uids), end)
            link = self._tail_uids[tails[further]] if further < end else 0
            packets.append(self._uid_packet(uid, stack[position:further], link))
        return uid

    def _store(self, stack: U8) -> int:
        index = self._count
        start = self._starts[index]
        self._reserve(len(stack), 1)
        self._flat[start:start + len(stack)] = stack
        self._starts[index + 1] = start + len(stack)
        self._uids[index] = self._next_uid()
        self._count += 1
        return index

    def _reserve(self, n_pcs: int, n_stacks: int) -> None:
        needed = int(self._starts[self._count]) + n_pcs
        if needed > len(self._flat):
            self._flat = _grown(self._flat, needed)
        if self._count + n_stacks > len(self._uids):
            self._uids = _grown(self._uids, self._count + n_stacks)
            self._starts = _grown(self._starts, len(self._uids) + 1)

    def _next_uid(self) -> int:
        self._last_uid += UID_STEP
        return self._last_uid

    def _frame_packet(self, uid: int, own: U8, link: int) -> bytes:
        body = self._body(own, link)
        kind = BLOCK_NATIVE | (LINKED if link else 0)
        block = FRAME.size - FRAME_BLOCKS_OFFSET + len(body)
        return FRAME.packer.pack(FRAME.size + len(body), FRAME.kind, FRAME_BLOCKS_OFFSET, uid, block, kind, uid) + body

    def _uid_packet(self, uid: int, own: U8, link: int) -> bytes:
        body = self._body(own, link)
        return UID.packer.pack(UID.size + len(body), UID.kind, LINKED if link else 0, uid) + body

    def _body(self, own: U8, link: int) -> bytes:
        pcs = own.astype(self._pc_type, copy=False).tobytes()
        return pcs + np.uint64(link).tobytes() if link else pcs


def _prepared(pcs: U8, length: I8) -> tuple[U8, I8]:
    """The batch without unused columns, and with something in empty stacks."""
    depth = int(length.max(initial=1))
    if depth > DEPTH_MAX:
        raise ValueError(f"a stack of {depth} frames; at most {DEPTH_MAX} fit into a packet")
    if not length.all():
        empty = length == 0
        pcs = pcs.copy() if pcs.shape[1] else np.zeros((len(pcs), 1), np.uint64)
        pcs[empty, 0] = PC_UNWIND_FAILED
        length = np.where(empty, 1, length)
    return pcs[:, :depth], length


def _terms(pcs: U8) -> U8:
    """mix(pc) * B**j for each pc, j counted from the leaf."""
    mixed = pcs * _MIX
    mixed ^= mixed >> np.uint64(32)
    mixed *= _powers(_BASE, pcs.shape[1])
    return mixed


def _finish(sums: U8, length: I8, remaining: I8, depth: int) -> U8:
    """Sums of terms, made to count from the root of a stack of ``length``, at most ``depth``."""
    inverse = _powers(_INVERSE_BASE, depth)
    shifted: U8 = sums * inverse[length - 1] + remaining.astype(np.uint64) * _PER_LENGTH
    return shifted


def _powers(base: int, count: int) -> U8:
    return _powers_of(base, 1 << max(count - 1, 255).bit_length())[:count]


@lru_cache(maxsize=16)
def _powers_of(base: int, count: int) -> U8:
    factors = np.full(count, base, np.uint64)
    factors[0] = 1
    powers: U8 = np.multiply.accumulate(factors)
    return powers


def _grown(array: npt.NDArray[Any], needed: int) -> npt.NDArray[Any]:
    larger = np.zeros(max(needed, 2 * len(array)), array.dtype)
    larger[:len(array)] = array
    return larger
