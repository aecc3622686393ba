"""Samples with stacks, which vary in size: where they lie in the rings, and all of them decoded at once.

Stacks are not copied: what comes out points into the rings.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from collector.engines.perf.kernel_calls import KernelCalls
from collector.engines.perf.kernel_code import KernelCode
from collector.engines.perf.opening import N_REGS
from collector.errors import CollectorError
from collector.events import Array, Births, ClockSamples
from collector.linux import abi

# Where the registers are in a sample, in the DWARF order of x86-64: words behind that of their ABI.
_REGISTERS_AT = 1 + np.array([0, 3, 2, 1, 4, 5, 6, 7, 9, 10, 11, 12, 13, 14, 15, 16, 8])
_NEWTASK_AT = np.arange((4 + abi.NEWTASK.size + 7) >> 3)
_LOW32 = np.uint64(0xFFFF_FFFF)


class Located(NamedTuple):
    """Samples in the rings: each one's time, position in words, header, and its ring's base in words and mask."""

    time_ns: Array  # i8 (n,), as are all but the header
    position: Array
    header: Array  # u8 (n,)
    base: Array
    mask: Array


class Samples:
    """Decodes samples in ``words``, the memory of all rings; ``with_calls``: system calls of departures, too;
    ``with_kernel``: the kernel's part of stacks."""

    def __init__(self, words: Array, *, with_calls: bool, with_kernel: bool = False) -> None:
        self._words = words
        self._with_kernel = with_kernel
        self._kernel = KernelCode()
        self._calls = KernelCalls() if with_calls else None

    def prepare(self) -> None:
        """Reads the kernel's addresses (30 ms), while the program runs and not when it has ended."""
        _ = self._kernel.known

    def rows(self, found: Located) -> Array:
        """Page faults as records of one size, out of a ring where others lie between them."""
        found = Located(*(column[found.header >> np.uint64(48) == abi.FAULT.size] for column in found))
        words = self._words[found.base[:, None] + (
            (found.position[:, None] + np.arange(abi.FAULT.size >> 3)) & found.mask[:, None])]
        rows: Array = words.view(abi.FAULT.dtype).reshape(-1)
        return rows

    def whose(self, found: Located) -> tuple[Array, Array]:
        """The tids (n,) of samples, and their CPUs."""
        return ((self._word(found, found.position + 1) >> np.uint64(32)).astype(np.int64),
                (self._word(found, found.position + 3) & _LOW32).astype(np.int64))

    def births(self, parts: list[Located]) -> Births | None:
        """Makers' samples with the tracepoint's own data (a size of 4 bytes, then so many) before the registers."""
        if not parts:
            return None
        found = in_order(parts)
        at = found.position + 5 + self._word(found, found.position + 4).astype(np.int64)
        n_raw = ((self._word(found, at) & _LOW32).astype(np.int64) + 4) >> 3
        words = self._words[found.base[:, None] + ((at[:, None] + _NEWTASK_AT) & found.mask[:, None])]
        made = words.view(np.uint8)[:, 4:4 + abi.NEWTASK.size].copy().view(abi.NEWTASK.dtype)[:, 0]
        return Births(self._decoded(found, 0, n_raw), made["child"].astype(np.int64), made["flags"].astype(np.int64))

    def samples(self, clock: list[Located], leave: list[Located]) -> tuple[ClockSamples | None, ClockSamples | None]:
        """The clock samples from all CPUs' rings and the departures, decoded together."""
        if not clock and not leave:
            return None, None
        n_clock = sum([len(part.time_ns) for part in clock])
        found = in_order(clock + leave, n_clock)
        samples = self._decoded(found, n_clock)
        if self._with_kernel:
            samples.kernel = self._kernel_frames(found, n_clock)
        return (samples[:n_clock] if clock else None), (samples[n_clock:] if leave else None)

    def _decoded(self, found: Located, n_clock: int, n_raw: Array | int = 0) -> ClockSamples:
        """Samples, of which the first ``n_clock`` are clocks'."""
        # The words of a sample: header | pid tid | time | cpu | nr | nr chain words | raw data | abi | 17 registers |
        # stack size | stack ... | real size. Without registers the abi is 0, and stack size 0 ends the record.
        position = found.position
        ids, cpu = self._word(found, position + 1), self._word(found, position + 3)
        n_chain = self._word(found, position + 4).astype(np.int64)
        at = position + 5 + n_chain + n_raw
        abi_word, size_at, copied = self._stack_sizes(found, at)
        registers = self._words[found.base[:, None] + ((at[:, None] + _REGISTERS_AT) & found.mask[:, None])]
        registers[abi_word == abi.REGS_ABI_NONE] = 0
        n_copied = copied.astype(np.int64) >> 3
        # What a torn record says of its size is no number to read memory by.
        n_copied[(n_copied < 0) | (n_copied > _record_words(found))] = 0
        n_real = self._word(found, size_at + 1 + n_copied).astype(np.int64) >> 3
        n_real = np.minimum(np.maximum(n_real, 0), n_copied)
        return ClockSamples(
            time_ns=found.time_ns, pid=(ids & _LOW32).astype(np.int64),
            tid=(ids >> np.uint64(32)).astype(np.int64), cpu=(cpu & _LOW32).astype(np.int32),
            mode=np.concatenate([self._modes(found, n_clock, n_chain), self._reasons(found, n_clock, n_chain)]),
            abi=(abi_word * np.uint64(32)).astype(np.int8), regs=registers, words=self._words,
            base=found.base, mask=found.mask, first=(size_at + 1) & found.mask, low=registers[:, 7], n_words=n_real)

    def are_torn(self, found: Located) -> Array:
        """Which samples (n,) of departures hold more than they have room for, or what none holds, by their own words.

        The kernel (seen on Linux 6.18) hands the same data to all software events of an occurrence, and does not count
        again in the size of the next one's record what was prepared for the one before. So where another collector's
        event comes first that wants fewer registers, our record is too short for what is written into it, and the
        record behind it lies over its end, where the size of the stack was.
        """
        at = found.position + 5 + self._word(found, found.position + 4).astype(np.int64)
        abi_word, size_at, copied = self._stack_sizes(found, at)
        n_copied = copied.astype(np.int64) >> 3
        n_words = size_at + 1 + np.where(n_copied > 0, n_copied + 1, 0) - found.position
        has_more = (n_copied > 0) & (self._word(found, size_at + 1 + n_copied) > copied)  # than could be copied
        torn: Array = (n_words > _record_words(found)) | (abi_word > abi.REGS_ABI_64) | has_more
        return torn

    def _stack_sizes(self, found: Located, at: Array) -> tuple[Array, Array, Array]:
        """Of samples whose ABI stands at positions (n,): that (n,), where the size in bytes of what was copied of the
        stack stands (n,), and that size (n,)."""
        abi_word = self._word(found, at)
        size_at = np.where(abi_word != abi.REGS_ABI_NONE, at + 1 + N_REGS, at + 1)
        return abi_word, size_at, self._word(found, size_at)

    def _word(self, found: Located, at: Array) -> Array:
        """The word (n,) at a position (n,) in the ring of each record."""
        word: Array = self._words[found.base + (at & found.mask)]
        return word

    def _modes(self, found: Located, n: int, n_chain: Array) -> Array:
        """Mode (n,) of the first n samples, by their chains, whose first word is a context mark."""
        if not n:
            return np.zeros(0, dtype=np.int8)
        cpu_mode = found.header[:n] >> np.uint64(32) & np.uint64(abi.MISC_CPUMODE_MASK)
        outermost = self._word(found, found.position + 4 + n_chain)[:n]
        return self._kernel.modes(cpu_mode == abi.MISC_CPUMODE_KERNEL, np.where(n_chain[:n] > 1, outermost, 0))

    def _reasons(self, found: Located, first: int, n_chain: Array) -> Array:
        """Reason (n - first,) of the samples from ``first`` on, by their chains."""
        if first == len(n_chain):
            return np.zeros(0, dtype=np.int8)
        return self._kernel.reasons(*self._chains(found, n_chain, first), n_chain[first:])

    def _kernel_frames(self, found: Located, n_clock: int) -> Array:
        """The kernel's frames (n, depth), leaf first, 0 behind them, of samples of which the first ``n_clock`` are
        clocks'.

        A chain is a context mark and addresses: where the clock fell, and return addresses, which stand for the calls
        before them. A departure begins with a return address, too. What was interrupted, or faulted, stands behind the
        entry of that; it may be the first instruction of a function, and before it lies another one.
        """
        n_chain = self._word(found, found.position + 4).astype(np.int64)
        column = np.arange(1, max(int(n_chain.max(initial=0)), 2))
        at = (found.position[:, None] + 5 + column) & found.mask[:, None]
        frames: Array = self._words[found.base[:, None] + at]
        inside = (column < n_chain[:, None]) & (frames < abi.CONTEXT_MAX) & (frames != 0)
        is_return = np.ones(frames.shape, dtype=bool)
        is_return[:, 1:] = ~self._kernel.are_entries(frames[:, :-1])
        is_return[:n_clock, 0] = False
        frames -= is_return.astype(np.uint64)
        frames[~np.logical_and.accumulate(inside, axis=1)] = 0
        return frames

    def calls_of(self, leave: list[Located]) -> Array | None:
        """The system calls (n,) of departures, by their chains; None where nobody asked for them."""
        if self._calls is None or not leave:
            return None
        found = in_order(leave)
        n_chain = self._word(found, found.position + 4).astype(np.int64)
        return self._calls.calls(*self._chains(found, n_chain), n_chain)

    def _chains(self, found: Located, n_chain: Array, first: int = 0) -> tuple[Array, Array]:
        """The words of the chains of the samples from ``first`` on, one behind the other, and where each begins."""
        sample = np.arange(first, len(n_chain)).repeat(n_chain[first:])  # of each word
        begins = n_chain[first:].cumsum() - n_chain[first:]
        at = (found.position[first:] + 5 - begins).repeat(n_chain[first:]) + np.arange(len(sample))
        return self._words[found.base[sample] + (at & found.mask[sample])], begins


def _record_words(found: Located) -> Array:
    """How many words (n,) records have, by their headers."""
    return (found.header >> np.uint64(51)).astype(np.int64)


def walk(view: memoryview, base: int, mask: int, position: int, end: int) -> list[int]:
    """The positions (in words, not taken modulo the ring) of the records between ``position`` and ``end``."""
    found = []
    while position < end:
        found.append(position)
        n_words = view[base + (position & mask)] >> 51  # the header's top 16 bits are the size in bytes
        if not n_words:
            raise CollectorError("a ring of the kernel's holds a record without a size")
        position += n_words
    return found


def in_order(parts: list[Located], n_first: int = 0) -> Located:
    """The samples of all rings as one, in time order: the first ``n_first`` before the others."""
    time_ns, *others = map(np.concatenate, zip(*parts, strict=True))
    order = np.lexsort((time_ns, np.arange(len(time_ns)) >= n_first))
    return Located(time_ns[order], *[column[order] for column in others])
