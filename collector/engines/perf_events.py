"""The perf engine: the kernel's rings in, batches out.

A ring holds records of varying size back to back, the oldest at ``tail``, the newest before ``head``; both only grow
and are taken modulo the ring's size. Sizes vary with the depth of the kernel's call chain, so the clock ring is walked
header by header (one step of about 0.1 us per record, the only loop over samples); everything behind that is done for
all samples at once by indexing the words of all rings. Stacks are not copied: the batch points into the rings, which
are given back in ``release``.

Order: the rings of different CPUs are merged by time. A record is stamped a little before it is visible to us, so what
is younger than ``until_ns``, which the session keeps some ms in the past, stays in the ring for the next batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from collector.engines.perf_open import N_REGS, Opened
from collector.events import (
    Array,
    Batch,
    Change,
    ClockSamples,
    Executed,
    Exited,
    Forked,
    Mapped,
    Mode,
    RecordsLost,
    Renamed,
    Switches,
    Throttled,
)
from collector.linux import abi, proc
from collector.linux.perf import Ring

# perf's register order to the DWARF order of x86-64.
_TO_DWARF = np.array([0, 3, 2, 1, 4, 5, 6, 7, 9, 10, 11, 12, 13, 14, 15, 16, 8])
_SWITCH_WORDS = abi.SWITCH.size // 8
_LOW32 = np.uint64(0xFFFF_FFFF)


class PerfEngine:
    """The engine on top of opened events."""

    name = "perf"

    def __init__(self, opened: Opened, reason: str) -> None:
        self.reason = reason
        self.opened = opened
        self._rings = opened.rings
        self._words: Array = np.frombuffer(self._rings.memory, dtype=np.uint64)
        self._view = self._rings.memory.cast("Q")
        self._entries = KernelEntries()
        self._tails: list[tuple[Ring, int]] = []

    def poll_fds(self) -> list[int]:
        """The descriptors of the rings."""
        return [ring.fd for ring in self._rings.rings]

    def drain(self, until_ns: int) -> Batch:
        """The records stamped up to ``until_ns``; see the module's text."""
        changes: list[Change] = []
        clocks: list[ClockSamples] = []
        switches: list[Switches] = []
        for ring in self._rings.rings:
            tail, head = self._rings.tail(ring), self._rings.head(ring)
            if head == tail:
                continue
            if ring.name == "clock":
                end = self._drain_clock(ring, tail, head, until_ns, changes, clocks)
            else:
                end = self._drain_switches(ring, tail, head, until_ns, changes, switches)
            self._tails.append((ring, end))
        changes.sort(key=lambda change: change.time_ns)
        return Batch(until_ns, tuple(changes), _merged_clock(clocks), _merged_switches(switches))

    def release(self) -> None:
        """Lets the kernel write again where the last batch was."""
        for ring, tail in self._tails:
            self._rings.give_back(ring, tail)
        self._tails = []

    def stop(self) -> None:
        """No more records."""
        self._rings.disable()

    def close(self) -> None:
        """Closes the events."""
        self._rings.close()

    def _drain_clock(self, ring: Ring, tail: int, head: int, until_ns: int, changes: list[Change],
                     clocks: list[ClockSamples]) -> int:
        base, mask = ring.data_offset >> 3, (ring.data_bytes >> 3) - 1
        position = np.array(walk(self._view, base, mask, tail >> 3, head >> 3), dtype=np.int64)
        header = self._words[base + (position & mask)]
        kind = header & _LOW32
        is_sample = kind == abi.RECORD_SAMPLE
        time_at = np.where(is_sample, position + 2, position + (header >> 51).astype(np.int64) - 2)
        time = self._words[base + (time_at & mask)].astype(np.int64)
        late = np.flatnonzero(time > until_ns)
        n = int(late[0]) if len(late) else len(position)
        for i in np.flatnonzero(~is_sample[:n]):
            self._decode_change(ring, int(position[i]), int(header[i]), int(time[i]), changes)
        chosen = np.flatnonzero(is_sample[:n])
        if len(chosen):
            clocks.append(self._decode_samples(base, mask, position[chosen], header[chosen]))
        return int(position[n]) << 3 if n < len(position) else head

    def _decode_samples(self, base: int, mask: int, position: Array, header: Array) -> ClockSamples:
        # The words of a sample: header | pid tid | time | cpu | nr | nr chain words | abi | 17 registers |
        # stack size | stack ... | real size. Without registers the abi is 0, and stack size 0 ends the record.
        def word(at: Array) -> Array:
            found: Array = self._words[base + (at & mask)]
            return found

        n = len(position)
        ids = word(position + 1)
        n_chain = word(position + 4).astype(np.int64)
        at = position + 5 + n_chain
        abi_word = word(at)
        has_regs = abi_word != abi.REGS_ABI_NONE
        registers = word(at[:, None] + 1 + np.arange(N_REGS)[None, :])[:, _TO_DWARF]
        registers[~has_regs] = 0
        size_at = np.where(has_regs, at + 1 + N_REGS, at + 1)
        n_copied = word(size_at).astype(np.int64) >> 3
        n_real = np.where(n_copied > 0, word(size_at + 1 + n_copied).astype(np.int64) >> 3, 0)
        in_kernel = ((header >> np.uint64(32)) & np.uint64(abi.MISC_CPUMODE_MASK)) == abi.MISC_CPUMODE_KERNEL
        return ClockSamples(
            time_ns=word(position + 2).astype(np.int64), pid=(ids & _LOW32).astype(np.int64),
            tid=(ids >> np.uint64(32)).astype(np.int64), cpu=(word(position + 3) & _LOW32).astype(np.int32),
            mode=self._entries.modes(in_kernel, np.where(n_chain > 1, word(position + 4 + n_chain), 0)),
            abi=(abi_word * np.uint64(32)).astype(np.int8), regs=registers, words=self._words,
            base=np.full(n, base, dtype=np.int64), mask=np.full(n, mask, dtype=np.int64), first=(size_at + 1) & mask,
            low=registers[:, 7], n_words=n_real)

    def _drain_switches(self, ring: Ring, tail: int, head: int, until_ns: int, changes: list[Change],
                        switches: list[Switches]) -> int:
        """Runs of 32-byte switch records, and now and then a record of another kind between them."""
        base, mask = ring.data_offset >> 3, (ring.data_bytes >> 3) - 1
        at, end = tail >> 3, head >> 3
        while at < end:
            position = np.arange(at, end - _SWITCH_WORDS + 1, _SWITCH_WORDS)
            header = self._words[base + (position & mask)]
            other = np.flatnonzero((header & _LOW32) != abi.RECORD_SWITCH)
            n = int(other[0]) if len(other) else len(position)
            time = self._words[base + ((position[:n] + 2) & mask)].astype(np.int64)
            late = np.flatnonzero(time > until_ns)
            n = int(late[0]) if len(late) else n
            if n:
                switches.append(self._decode_switches(base, mask, position[:n], header[:n], time[:n]))
                at += n * _SWITCH_WORDS
            if len(late) or at >= end:
                break
            word = int(header[n])
            self._decode_change(ring, at, word, until_ns, changes)
            at += word >> 51
        return at << 3

    def _decode_switches(self, base: int, mask: int, position: Array, header: Array, time: Array) -> Switches:
        ids = self._words[base + ((position + 1) & mask)]
        misc = header >> np.uint64(32)
        out = (misc & np.uint64(abi.MISC_SWITCH_OUT)) != 0
        preempted = (misc & np.uint64(abi.MISC_SWITCH_OUT_PREEMPT)) != 0
        return Switches(time, (ids & _LOW32).astype(np.int64), (ids >> np.uint64(32)).astype(np.int64),
                        (out.astype(np.int8) + (out & preempted).astype(np.int8)).astype(np.int8))

    def _decode_change(self, ring: Ring, position: int, header: int, time_ns: int, changes: list[Change]) -> None:
        base, mask = ring.data_offset >> 3, (ring.data_bytes >> 3) - 1
        n_words = header >> 51
        record = self._words[base + ((position + np.arange(n_words)) & mask)].tobytes()
        decode = _DECODERS.get(header & 0xFFFF_FFFF)
        if decode is not None:
            body = record[abi.HEADER_SIZE:-abi.TRAILER.size]
            change = decode(time_ns, header >> 32 & 0xFFFF, body, ring)
            if change is not None:
                changes.append(change)


def walk(view: memoryview, base: int, mask: int, position: int, end: int) -> list[int]:
    """The positions (in words, not taken modulo the ring) of the records between ``position`` and ``end``."""
    found = []
    while position < end:
        found.append(position)
        position += view[base + (position & mask)] >> 51  # the header's top 16 bits are the size in bytes
    return found


class KernelEntries:
    """By which door the kernel was entered, told by the outermost frame of its call chain.

    A system call or a page fault is system time, any other exception or interrupt is trap time, as on Solaris.
    """

    _PATTERN = rb"(?:entry|asm|ret_from|error|paranoid)_\w+"
    _TRAP = (b"asm_exc_", b"asm_sysvec_", b"asm_common_interrupt", b"asm_spurious")

    def __init__(self) -> None:
        symbols = proc.kernel_symbols(self._PATTERN)
        self._start: Array = np.array([address for address, _ in symbols], dtype=np.uint64)
        self._trap: Array = np.array([name.startswith(self._TRAP) and name != b"asm_exc_page_fault"
                                      for _, name in symbols], dtype=bool)

    def modes(self, in_kernel: Array, outermost: Array) -> Array:
        """Mode of each sample; a kernel sample whose door cannot be told counts as a system call."""
        mode = np.where(in_kernel, np.int8(Mode.SYSTEM_CALL), np.int8(Mode.USER))
        if len(self._start):
            # Call chains hold return addresses: minus one lies in the calling symbol.
            symbol = np.searchsorted(self._start, outermost - np.uint64(1), side="right") - 1
            mode[in_kernel & (symbol >= 0) & (outermost != 0) & self._trap[symbol]] = Mode.TRAP
        return mode


def _merged_clock(parts: list[ClockSamples]) -> ClockSamples | None:
    if not parts:
        return None
    names = [name for name in ClockSamples.__slots__ if name != "words"]
    columns: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    order = np.argsort(columns["time_ns"], kind="stable")
    return ClockSamples(words=parts[0].words, **{name: column[order] for name, column in columns.items()})


def _merged_switches(parts: list[Switches]) -> Switches | None:
    if not parts:
        return None
    columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in Switches.__slots__}
    order = np.argsort(columns["time_ns"], kind="stable")
    return Switches(**{name: column[order] for name, column in columns.items()})


def _lost(time_ns: int, _misc: int, body: bytes, ring: Ring) -> Change:
    return RecordsLost(time_ns, abi.LOST_FORMAT.unpack_from(body)[1], ring.name)


def _lost_samples(time_ns: int, _misc: int, body: bytes, ring: Ring) -> Change:
    return RecordsLost(time_ns, abi.LOST_SAMPLES_FORMAT.unpack_from(body)[0], ring.name)


def _comm(time_ns: int, misc: int, body: bytes, _ring: Ring) -> Change:
    pid, tid = abi.COMM_FORMAT.unpack_from(body)
    name = body[abi.COMM_FORMAT.size:].partition(b"\0")[0]
    return (Executed if misc & abi.MISC_COMM_EXEC else Renamed)(time_ns, pid, tid, name)


def _fork(time_ns: int, _misc: int, body: bytes, _ring: Ring) -> Change:
    pid, parent_pid, tid, parent_tid, _ = abi.TASK_FORMAT.unpack_from(body)
    return Forked(time_ns, pid, tid, parent_pid, parent_tid)


def _exit(time_ns: int, _misc: int, body: bytes, _ring: Ring) -> Change:
    pid, _, tid, _, _ = abi.TASK_FORMAT.unpack_from(body)
    return Exited(time_ns, pid, tid)


def _mmap2(time_ns: int, _misc: int, body: bytes, _ring: Ring) -> Change:
    pid, tid, start, size, offset, major, minor, inode, _, _, _ = abi.MMAP2_FORMAT.unpack_from(body)
    path = body[abi.MMAP2_FORMAT.size:].partition(b"\0")[0]
    return Mapped(time_ns, pid, tid, start, size, offset, major << 20 | minor, inode, path)


def _throttle(time_ns: int, _misc: int, _body: bytes, ring: Ring) -> Change:
    return Throttled(time_ns, ring.cpu)


_DECODERS: dict[int, Callable[[int, int, bytes, Ring], Change | None]] = {
    abi.RECORD_LOST: _lost, abi.RECORD_LOST_SAMPLES: _lost_samples, abi.RECORD_COMM: _comm, abi.RECORD_FORK: _fork,
    abi.RECORD_EXIT: _exit, abi.RECORD_MMAP2: _mmap2, abi.RECORD_THROTTLE: _throttle,
}
