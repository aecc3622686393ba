"""Writes what the tracer finds to the channel: rows, which wait for the end of the round, and copies of stacks.

Rows are handed over in the order in which they were told, in all rings alike: the row of a thread never comes behind
its end, nor before its birth. Where there are more than there could ever be room for at once (mappings by the ten
thousands; a collector that was suspended), they go in parts. Standard library only.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import NamedTuple

from collector.engines.ptrace.channel import RINGS, Channel, framed
from collector.engines.ptrace.targets import Traced, Tracee
from collector.linux import abi, libc, ptrace, tasks

CLOCK, LEAVE, BIRTH = range(3)  # kinds of samples
_PART = 4  # of a ring, at most, is handed over at once; so it is the reader who is waited for, and not for long
ALL_KNOWN = (1 << 17) - 1  # registers, as bits


class Look(NamedTuple):
    """What a thread was asked while it stood still: its registers, its account, and the bytes of its stack from the
    word of its sp up."""

    registers: ptrace.Registers
    raw: bytes
    stack: bytes


class Writer:
    """Packs rows, copies stacks of up to ``stack_bytes``, and counts what finds no room."""

    def __init__(self, channel: Channel, stack_bytes: int) -> None:
        self._channel = channel
        self._stack_bytes = stack_bytes
        self._scratch = libc.Exchange(stack_bytes)  # a reading meets no page that has yet to be made
        self._stack_head = 0
        self._horizon_ns = 0  # as handed over last
        self._memory = libc.RemoteMemory()
        self._parts: deque[tuple[dict[str, bytearray], int]] = deque()  # full ones, each with the stacks' head then
        self._pending = _no_rows()  # what was told behind them
        self._n_lost: Counter[str] = Counter()  # by source, until it is told
        self.behind_ns = 0  # when rows last waited for room in the channel

    @property
    def behind(self) -> bool:
        """Whether rows wait for room in the channel."""
        return self._channel.is_behind

    def publish(self, now_ns: int, horizon_ns: int) -> bool:
        """Hands over what there is, if there is room; whether the collector had better come for it."""
        for source in list(self._n_lost):
            self.change("RecordsLost", now_ns, self._n_lost.pop(source), source)
        # Said last: who sees that nothing waits sees all there was.
        self._channel.is_behind = not (self._publish_parts()
                                       and self._channel.publish(self._pending, self._stack_head, horizon_ns))
        if self.behind:
            self.behind_ns = now_ns
        else:
            self._horizon_ns = horizon_ns
        return self.behind or self._channel.is_half_full()

    def _publish_parts(self) -> bool:
        """Hands over the full parts, whose horizon has not come yet. Whether there was room for them."""
        while self._parts:
            rows, stack_head = self._parts[0]
            if not self._channel.publish(rows, stack_head, self._horizon_ns):
                return False
            self._parts.popleft()
        return True

    def _tell(self, name: str, row: bytes) -> None:
        rows = self._pending[name]
        rows += row
        if len(rows) > RINGS[name] // _PART:
            self._parts.append((self._pending, self._stack_head))
            self._pending = _no_rows()

    def forget(self) -> None:
        """Nothing of what waits is told."""
        self._parts.clear()
        self._pending = _no_rows()

    def lose(self, source: str, n: int = 1) -> None:
        """So many records of ``source`` were not made, for want of room."""
        self._n_lost[source] += n

    def change(self, kind: str, *values: object) -> None:
        """An event of that name."""
        self._tell("change", framed((kind, *values)))

    def mapping(self, process: Traced, tid: int, time_ns: int, m: tasks.Executable) -> None:
        """Executable memory that is new."""
        self.change("Mapped", time_ns, process.pid, tid, m.start, m.end - m.start, m.file_offset, m.device, m.inode,
                    m.path)

    def switch(self, thread: Tracee, edge: int, time_ns: int) -> None:
        """The thread got its CPU, or left it."""
        thread.told_ns = time_ns
        self._tell("switch", abi.TRACED_SWITCH.packer.pack(time_ns, thread.process.pid, thread.tid, edge, 0))

    def site(self, thread: Tracee, time_ns: int, place: tasks.Place) -> None:
        """The thread left its CPU at a place whose stack is known."""
        self._tell("site", abi.TRACED_SITE.packer.pack(time_ns, thread.process.pid, thread.tid, place.pc, place.sp))

    def fault(self, thread: Tracee, time_ns: int, address: int, pc: int) -> None:
        """The thread waits for the page of an address."""
        self._tell("fault", abi.TRACED_FAULT.packer.pack(time_ns, thread.process.pid, thread.tid, address, pc, 0))

    def stack_of(self, tid: int, sp: int) -> bytes:
        """What a thread's stack holds now, from the word of an sp up; nothing where that cannot be read. (By the number
        of a process whose first thread has ended nothing can.)"""
        try:
            n_bytes = self._memory.read(tid, sp & ~7, self._stack_bytes, self._scratch.address)
        except OSError:
            return b""
        return bytes(self._scratch.view[:n_bytes & ~7])

    def stopped(self, thread: Tracee, kind: int, time_ns: int, mode: int, look: Look, cpu: int = 0, child: int = 0,
                flags: int = 0) -> None:
        """A sample of a thread that stands still, or did."""
        registers = look.registers
        self._sample(thread, kind, time_ns, mode, registers.bits, registers.dwarf, ALL_KNOWN, look.stack, cpu, child,
                     flags)

    def asleep(self, thread: Tracee, time_ns: int, reason: int, columns: dict[int, int]) -> bool:
        """The departure of a thread that sleeps, of which some registers are known, by their columns; whether it has
        slept on until its stack was read. (If it has not, nothing is told.)"""
        stack = self.stack_of(thread.tid, columns[7])
        if thread.files.read("schedstat", 64) != thread.raw:
            return False
        self._sample(thread, LEAVE, time_ns, reason, thread.process.bits,
                     tuple(columns.get(column, 0) for column in range(17)), sum(1 << column for column in columns),
                     stack)
        return True

    def _sample(self, thread: Tracee, kind: int, time_ns: int, mode: int, bits: int, registers: tuple[int, ...],
                known: int, stack: bytes, cpu: int = 0, child: int = 0, flags: int = 0) -> None:
        first, n_words = self._put_stack(stack)
        self._tell("sample", abi.TRACED_SAMPLE.packer.pack(
            time_ns, thread.process.pid, thread.tid, kind, mode, cpu, bits, known, registers[7] & ~7, first, n_words,
            self._stack_head, child, flags, *registers))

    def _put_stack(self, stack: bytes) -> tuple[int, int]:
        """(index of the first word, words) of a stack in the channel; no words where there is no room."""
        n_all, head, n_words = self._channel.n_words, self._stack_head, len(stack) >> 3
        if head % n_all + n_words > n_all:
            head += n_all - head % n_all
        if head + n_words - self._channel.stack_tail > n_all:
            self.lose("stack")
            return 0, 0
        first = head % n_all
        self._channel.stacks[first << 3:(first + n_words) << 3] = stack
        self._stack_head = head + n_words
        return first, n_words


def _no_rows() -> dict[str, bytearray]:
    return {name: bytearray() for name in RINGS}
