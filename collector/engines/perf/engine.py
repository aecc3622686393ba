"""The perf engine: the kernel's rings in, batches out.

A ring holds records back to back, the oldest at ``tail``, the newest before ``head``; both only grow and are taken
modulo the ring's size. There are two kinds of rings. Those whose records have one size are read as arrays, run by run.
Those whose samples vary with the depth of the kernel's call chain are walked header by header (a step of about 0.1 us
per record, the only loop over samples); everything behind that is done for all samples at once by indexing the words of
all rings. Stacks are not copied: the batch points into the rings, which are given back in ``release``.

Order: the rings of different CPUs are merged by time. A record is stamped a little before it is visible to us, so what
is younger than ``until_ns``, which the session keeps some ms in the past, stays in the ring for the next batch.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from itertools import chain
from threading import Thread
from typing import Any, NamedTuple, TypeVar

import numpy as np

from collector.arrays import distinct
from collector.clock import NS_PER_MS, NS_PER_S
from collector.engines.base import Threads
from collector.engines.perf.guard import RELIEVED, SWITCH_RINGS, Relief, give_way, stand_in
from collector.engines.perf.kernel_calls import KernelCalls
from collector.engines.perf.kernel_code import KernelCode
from collector.engines.perf.opening import N_REGS, Opened
from collector.errors import CollectorError
from collector.events import (
    Accounts,
    Array,
    Batch,
    Births,
    Change,
    Clocks,
    ClockSamples,
    Context,
    Ends,
    Executed,
    Exited,
    Faults,
    Forked,
    Mapped,
    RecordsLost,
    Renamed,
    Sites,
    Switches,
    Throttled,
    Wakings,
)
from collector.linux import abi
from collector.linux.accounts import Account, OpenAccounts, process_clock_ns
from collector.linux.perf import Ring

# Where the registers are in a sample, in the DWARF order of x86-64: words behind that of their ABI.
_REGISTERS_AT = 1 + np.array([0, 3, 2, 1, 4, 5, 6, 7, 9, 10, 11, 12, 13, 14, 15, 16, 8])
_LOW32 = np.uint64(0xFFFF_FFFF)
_FIXED = {"switch": abi.SWITCH, "site": abi.SITE, "touch": abi.FAULT, "waking": abi.WAKING,
          "dying": abi.END, "dead": abi.END}
_CLOCKS = "clock", "brief"
_SOURCES = {"brief": "clock"}  # of losses, as they are told
_REST_NS = 100 * NS_PER_MS
_SPARE = ("touch", "waking")  # what a lost record would have told is told by others, or counted as untold
# Threads that switch even more often are looked at more seldom, and no record stands in for those not taken: they say
# the same thing over and over, and each costs the target 0.2 us.
_TOO_MANY_PER_S, _LONGEST_REST = 15_000, 16
_LOOK_S = 0.002
_TID_BITS = 32
_TID_MASK = (1 << _TID_BITS) - 1
_MAPS_REST_NS = 5 * NS_PER_S  # which costs little: /proc tells the same
_NO_PID = 0xFFFF_FFFF  # of a thread that is gone
_FAR_NS = 1 << 62
_RECORD_BYTES = {"leave": 25_000, "touch": abi.FAULT.size, "waking": abi.WAKING.size, "map": 112}  # about
_PRESSED = 0.85  # of a ring
# The parts of its ring at which a clock gives way to the one with small copies, and of the other's at which it may come
# back, but not so soon: each time up to an interval of every thread is not sampled.
_GIVES_WAY, _COMES_BACK, _BRIEF_NS = 0.75, 0.3, 2 * NS_PER_S

Part = TypeVar("Part", Switches, Sites, Faults, Wakings, Ends)


class _Located(NamedTuple):
    """Samples in the rings: each one's time, position in words, header, and its ring's base in words and mask."""

    time_ns: Array  # i8 (n,), as are all but the header
    position: Array
    header: Array  # u8 (n,)
    base: Array
    mask: Array


class PerfEngine:
    """The engine on top of opened events."""

    name = "perf"

    def __init__(self, opened: Opened, reason: str) -> None:
        self.reason = reason
        self.opened = opened
        self._rings = opened.rings
        self._bytes: Array = np.frombuffer(self._rings.memory, dtype=np.uint8)
        self._words: Array = self._bytes.view(np.uint64)
        self._view = self._rings.memory.cast("Q")
        self._kernel = KernelCode()
        self._calls = KernelCalls() if "syscall" in opened.asked else None
        self._tails: list[tuple[Ring, int]] = []
        self._stopped = False
        self._closing: Thread | None = None
        self._relief: Relief | None = None
        self._relieved: list[Ring] = []  # while a batch is worked on
        self._came_ns = 0  # to drain, for the last time
        self._heads: dict[Ring, int] = {}  # of the rings that may rest, at the last drain
        self._excess: dict[Ring, int] = {}  # how many times too many records a ring at rest had brought
        self._resting: dict[Ring, int] = {}  # and until when they rest
        self._spare = tuple(name for name in _SPARE if name != "waking" or not opened.asks_for_wakings)
        self._maps_rested = False  # at the last drain
        self._n_lost = 0  # clock samples, as far as records tell
        self._open_accounts = OpenAccounts()
        self.accounts: dict[int, Account] = {}  # of all threads, when the records of switches came to rest
        self.before: Account | None = None  # of a program that we start, before its first instruction
        for guard in opened.guards:
            guard.end()
            self.accounts, self.before = guard.accounts, guard.before
            for ring in guard.rested:
                if ring.name == "clock":
                    self._resting[ring] = time.monotonic_ns() + _BRIEF_NS
                else:
                    self._let_rest(ring, 1, time.monotonic_ns())

    def poll_fds(self) -> list[int]:
        """The descriptors of the rings, but not of those that may have no memory yet, and have room for seconds."""
        return [ring.fd for ring in self._rings.rings if not ring.later]

    def wants_drain(self, ready: Collection[int], due_ns: int) -> bool:
        """The kernel wakes us whenever half a ring's bytes have been written, drained meanwhile or not. Clocks write at
        a steady pace: one more drain in its time is early enough for their rings, if they will not be full by then."""
        return any(ring.name not in _CLOCKS or self._will_be_full(ring, due_ns)
                   for ring in self._rings.rings if ring.fd in ready)

    def _will_be_full(self, ring: Ring, due_ns: int) -> bool:
        """Whether a ring, at its pace since the last drain, will be full or nearly so at a time. One that is not filled
        by a quarter has time until the kernel wakes us again."""
        n_bytes, since_ns = self._rings.head(ring) - self._rings.tail(ring), self._came_ns
        elapsed_ns = time.monotonic_ns() - since_ns
        return (n_bytes > ring.data_bytes // 4
                and n_bytes * (due_ns - since_ns) > ring.data_bytes * _PRESSED * elapsed_ns)

    def drain(self, until_ns: int) -> Batch:
        """The records stamped up to ``until_ns``; see the module's text."""
        self._end_relief()  # where the last batch failed
        came_ns = time.monotonic_ns()
        elapsed_ns, self._came_ns = max(came_ns - self._came_ns, NS_PER_MS), came_ns
        changes: list[Change] = []
        parts: dict[str, list[Any]] = defaultdict(list)
        if self._closing is None:
            self._relieved = self._emptied()
        for ring in [*self._rings.rings, *(spare for _, spare in self._rings.spares)]:
            if ring in self._relieved or (self._closing is not None and ring.name in _FIXED):
                continue  # its spare has it all; or it is being closed, and drained before
            tail, head, n_before = self._rings.tail(ring), self._rings.head(ring), len(changes)
            if head != tail:
                drain = self._drain_fixed if ring.name in _FIXED else self._drain_stacks
                self._tails.append((ring, drain(ring, tail, head, until_ns, changes, parts[ring.name])))
            if ring.fd < 0:
                continue  # a spare has no events of its own
            if ring.name == "clock" and not self._stopped:
                self._brief_or_whole(ring, head - tail, until_ns)
            elif ring.name in self.opened.most_per_s and not self._stopped:
                n_lost = sum(change.n_records for change in changes[n_before:] if isinstance(change, RecordsLost))
                self._rest_or_wake(ring, tail, head, n_lost, until_ns, elapsed_ns)
        self._n_lost += sum(change.n_records for change in changes
                            if isinstance(change, RecordsLost) and change.source == "clock")
        if self._stopped and self._closing is None:
            changes += self._untold_losses(min(until_ns, came_ns))
            self._close_what_was_copied()
        elif any(isinstance(change, Forked) for change in changes):
            self._relief = Relief(self._rings, self._relieved)
        if not self._stopped:
            self.opened.vary_periods(any(isinstance(change, Exited) for change in changes))
        changes.sort(key=lambda change: change.time_ns)
        clock, leaving = self._samples(parts["clock"] + parts["brief"], parts["leave"])
        parts["task"] = [self._rows(part) for part in parts["task"]]
        for change in changes:
            if isinstance(change, Exited):
                self._open_accounts.forget(change.pid, change.tid)
        return Batch(until_ns, tuple(changes), clock, _of_kinds(parts, "switch"), leaving, _of_kinds(parts, "site"),
                     _of_kinds(parts, "task", "touch"), self._births(parts["birth"]), _of_kinds(parts, "waking"),
                     _of_kinds(parts, "dying", "dead"), maps_untold=self._maps_untold(changes),
                     calls=self._calls_of(parts["leave"]))

    def read_accounts(self, threads: Threads) -> Accounts:
        """The accounts of threads as of now; one that is named twice is read once."""
        threads = dict.fromkeys(threads)
        rows = [(pid, tid, *account) for pid, tid in threads
                if (account := self._open_accounts.read(pid, tid)) is not None]
        pid, tid, time_ns, run_ns, delay_ns, turns = np.array(rows, dtype=np.int64).reshape(len(rows), 6).T
        clocks = self.read_clocks({process: None for process, thread in threads if thread != process})
        return Accounts(time_ns, pid, tid, run_ns, delay_ns, turns, time.monotonic_ns(), clocks)

    def read_clocks(self, pids: Iterable[int]) -> Clocks:
        """The clocks of processes that are there, zombies among them."""
        rows = []
        for pid in pids:
            with suppress(OSError):
                run_ns = process_clock_ns(pid)
                rows.append((time.monotonic_ns(), pid, run_ns))
        return Clocks(*np.array(rows, dtype=np.int64).reshape(len(rows), 3).T)

    def look(self, asked: Threads) -> Accounts:
        """See Engine."""
        return self.read_accounts(chain(self._switched(), asked))

    def _switched(self) -> Threads:
        """The threads of which there are records of switches that have not been drained."""
        parts: list[Any] = []
        for ring in self._rings.rings:
            tail, head = self._rings.tail(ring), self._rings.head(ring)
            if ring.name == "switch" and head != tail and self._closing is None:
                self._drain_fixed(ring, tail, head, _FAR_NS, [], parts)
        if not parts:
            return []
        threads = distinct(np.concatenate([part["pid"].astype(np.int64) << _TID_BITS | part["tid"] for part in parts]))
        found = zip((threads >> _TID_BITS).tolist(), (threads & _TID_MASK).tolist(), strict=True)
        return [(pid, tid) for pid, tid in found if 0 < pid < _NO_PID]

    def _untold_losses(self, time_ns: int) -> list[Change]:
        """The clock samples that did not fit at the end: the kernel writes of losses only with what comes behind them.
        """
        n_lost = sum(self._rings.n_lost(ring) for ring in self._rings.rings if ring.name in _CLOCKS)
        return [RecordsLost(time_ns, n_lost - self._n_lost, "clock")] if n_lost > self._n_lost else []

    def _emptied(self) -> list[Ring]:
        """Empties the rings of births and deaths into their spares, those that these have room for."""
        emptied = []
        for ring, spare in self._rings.spares:
            if ring.name in RELIEVED:
                self._rings.compact(spare)
                if self._rings.move(ring, spare):
                    emptied.append(ring)
        return emptied

    def release(self) -> None:
        """Lets the kernel write again where the last batch was."""
        self._end_relief()
        for ring, tail in self._tails:
            self._rings.give_back(ring, tail)
            if ring.fd < 0 and ring.name not in RELIEVED:
                self._rings.free_if_empty(ring)
        self._tails = []

    def _end_relief(self) -> None:
        if self._relief is not None:
            self._relief.end()
            self._relief = None

    def failure(self) -> str:
        """Nothing: the kernel does not fail."""
        return ""

    def rest_switches(self) -> None:
        """No more records of switches, nor of ends, which a count of CPUs' switches tells: it costs, too."""
        for ring in self._of_switches():
            self._rings.rest(ring)

    def wake_switches(self) -> None:
        """Records of switches and ends again."""
        for ring in self._of_switches():
            self._rings.wake(ring)

    def _of_switches(self) -> list[Ring]:
        return [ring for ring in self._rings.rings if ring.name in SWITCH_RINGS]

    def start(self) -> None:
        """Starts events that no exec will start."""
        self._rings.enable()

    def stop(self) -> int:
        """No more records from this time on; the next drain is the last one."""
        now_ns = time.monotonic_ns()
        self.opened.vary_periods(False)
        self._rings.disable()
        self._stopped = True
        return now_ns

    def close(self) -> None:
        """Closes the events. What the kernel takes its time for may go on for a while, in a thread."""
        self._open_accounts.close()
        before = self._closing

        def close() -> None:
            if before is not None:
                before.join()
            self._rings.close()

        self._closing = Thread(target=close)
        self._closing.start()

    def _close_what_was_copied(self) -> None:
        """Closes what the last batch does not point into, while it is worked on."""
        def close() -> None:
            for ring in self._rings.rings:
                if ring.name in _FIXED or ring in self._relieved:
                    self._rings.close_ring(ring)

        self._closing = Thread(target=close)
        self._closing.start()

    def _rest_or_wake(self, ring: Ring, tail: int, head: int, n_lost: int, until_ns: int, elapsed_ns: int) -> None:
        """Lets the events of a ring rest that brings more than is worth its cost, and wakes them later."""
        n_records = (head - self._heads.get(ring, 0)) // _RECORD_BYTES[ring.name] + n_lost
        self._heads[ring] = head
        wake_ns = self._resting.get(ring)
        n_per_s = n_records * NS_PER_S // elapsed_ns
        if wake_ns is None and n_per_s > self.opened.most_per_s[ring.name] and head - tail > ring.data_bytes // 2:
            # (A short burst is welcome.)
            self._rings.rest(ring)
            self._let_rest(ring, n_per_s // _TOO_MANY_PER_S, until_ns)
        elif wake_ns is not None and until_ns >= wake_ns:
            other = stand_in(self._rings, ring)
            if other is not None:
                self._rings.rest(other)
            self._rings.wake(ring)
            if not self._still_too_many(ring, until_ns):
                del self._resting[ring]

    def _let_rest(self, ring: Ring, excess: int, until_ns: int) -> None:
        self._excess[ring] = excess
        self._resting[ring] = until_ns + (_MAPS_REST_NS if ring.name == "map" else
                                          _REST_NS * min(1 + excess, _LONGEST_REST))
        other = stand_in(self._rings, ring)
        if other is not None and not excess:
            with suppress(OSError):  # no room for its ring
                self._rings.wake(other)

    def _brief_or_whole(self, ring: Ring, n_bytes: int, until_ns: int) -> None:
        """Lets a clock give way while we do not come often enough to empty its ring, which had ``n_bytes``."""
        brief = stand_in(self._rings, ring)
        if brief is None:
            return
        wake_ns = self._resting.get(ring)
        if wake_ns is None and n_bytes > _GIVES_WAY * ring.data_bytes:
            if give_way(self._rings, ring):
                self._resting[ring] = until_ns + _BRIEF_NS
        elif wake_ns is not None and until_ns >= wake_ns and (
                self._rings.head(brief) - self._rings.tail(brief) < _COMES_BACK * brief.data_bytes):
            self._rings.rest(brief)
            self._rings.wake(ring)
            del self._resting[ring]

    def _maps_untold(self, changes: list[Change]) -> bool:
        """Whether mappings were made since the last drain that no record tells."""
        resting = any(ring.name == "map" for ring in self._resting)
        untold, self._maps_rested = resting or self._maps_rested, resting
        return untold or any(isinstance(change, RecordsLost) and change.source == "map" for change in changes)

    def _still_too_many(self, ring: Ring, until_ns: int) -> bool:
        """A short look at a ring that brought by far too many records: if it still does, it goes on resting."""
        if not self._excess.get(ring):
            return False
        head = self._rings.head(ring)
        time.sleep(_LOOK_S)
        self._heads[ring] = self._rings.head(ring)
        n_per_s = int((self._heads[ring] - head) / _RECORD_BYTES[ring.name] / _LOOK_S)
        if n_per_s <= self.opened.most_per_s[ring.name]:
            return False
        self._rings.rest(ring)
        self._let_rest(ring, n_per_s // _TOO_MANY_PER_S, until_ns)
        return True

    # -- rings of samples with stacks

    def _drain_stacks(self, ring: Ring, tail: int, head: int, until_ns: int, changes: list[Change],
                      parts: list[Any]) -> int:
        base, mask = ring.data_offset >> 3, (ring.data_bytes >> 3) - 1
        position = np.array(walk(self._view, base, mask, tail >> 3, head >> 3), dtype=np.int64)
        header = self._words[base + (position & mask)]
        is_sample = (header & _LOW32) == abi.RECORD_SAMPLE
        time_at = np.where(is_sample, position + 2, position + (header >> 51).astype(np.int64) - 2)
        time = self._words[base + (time_at & mask)].astype(np.int64)
        late = np.flatnonzero(time > until_ns)
        n = int(late[0]) if len(late) else len(position)
        for i in np.flatnonzero(~is_sample[:n]):
            self._decode_change(ring, int(position[i]), int(header[i]), int(time[i]), changes)
        if self._stopped:  # of the rest, which nobody will ask for, it counts what was lost
            for i in n + np.flatnonzero(~is_sample[n:]):
                self._decode_change(ring, int(position[i]), int(header[i]), until_ns, changes, losses_only=True)
        chosen = np.flatnonzero(is_sample[:n])
        if len(chosen):
            where = np.full((2, len(chosen)), [[base], [mask]], dtype=np.int64)
            parts.append(_Located(time[chosen], position[chosen], header[chosen], *where))
        return int(position[n]) << 3 if n < len(position) else head

    def _rows(self, found: _Located) -> Array:
        """Page faults as records of one size, out of a ring where others lie between them."""
        found = _Located(*(column[found.header >> np.uint64(48) == abi.FAULT.size] for column in found))
        words = self._words[found.base[:, None] + (
            (found.position[:, None] + np.arange(abi.FAULT.size >> 3)) & found.mask[:, None])]
        rows: Array = words.view(abi.FAULT.dtype).reshape(-1)
        return rows

    def _births(self, parts: list[_Located]) -> Births | None:
        """Makers' samples with the tracepoint's own data (a size of 4 bytes, then so many) before the registers."""
        if not parts:
            return None
        found = _in_order(parts)
        at = found.position + 5 + self._word(found, found.position + 4).astype(np.int64)
        n_raw = ((self._word(found, at) & _LOW32).astype(np.int64) + 4) >> 3
        raw = [self._words[base + ((start + np.arange(n)) & mask)].tobytes() for start, n, base, mask in zip(
            at.tolist(), n_raw.tolist(), found.base.tolist(), found.mask.tolist(), strict=True)]
        made = np.array([abi.NEWTASK_FORMAT.unpack_from(data, 4) for data in raw], dtype=np.int64)
        return Births(self._decoded(found, 0, n_raw), made[:, 0], made[:, 1])

    def _samples(self, clock: list[_Located], leave: list[_Located]) -> tuple[ClockSamples | None, ClockSamples | None]:
        """The clock samples from all CPUs' rings and the departures, decoded together."""
        if not clock and not leave:
            return None, None
        n_clock = sum(len(part.time_ns) for part in clock)
        samples = self._decoded(_in_order(clock, leave), n_clock)
        return (samples[:n_clock] if clock else None), (samples[n_clock:] if leave else None)

    def _decoded(self, found: _Located, n_clock: int, n_raw: Array | int = 0) -> ClockSamples:
        """Samples, of which the first ``n_clock`` are clocks'."""
        # The words of a sample: header | pid tid | time | cpu | nr | nr chain words | raw data | abi | 17 registers |
        # stack size | stack ... | real size. Without registers the abi is 0, and stack size 0 ends the record.
        position = found.position
        ids, cpu = self._word(found, position + 1), self._word(found, position + 3)
        n_chain = self._word(found, position + 4).astype(np.int64)
        at = position + 5 + n_chain + n_raw
        abi_word = self._word(found, at)
        has_regs = abi_word != abi.REGS_ABI_NONE
        registers = self._words[found.base[:, None] + ((at[:, None] + _REGISTERS_AT) & found.mask[:, None])]
        registers[~has_regs] = 0
        size_at = np.where(has_regs, at + 1 + N_REGS, at + 1)
        n_copied = self._word(found, size_at).astype(np.int64) >> 3
        n_real = np.where(n_copied > 0, self._word(found, size_at + 1 + n_copied).astype(np.int64) >> 3, 0)
        return ClockSamples(
            time_ns=found.time_ns, pid=(ids & _LOW32).astype(np.int64),
            tid=(ids >> np.uint64(32)).astype(np.int64), cpu=(cpu & _LOW32).astype(np.int32),
            mode=np.concatenate([self._modes(found, n_clock, n_chain), self._reasons(found, n_clock, n_chain)]),
            abi=(abi_word * np.uint64(32)).astype(np.int8), regs=registers, words=self._words,
            base=found.base, mask=found.mask, first=(size_at + 1) & found.mask, low=registers[:, 7], n_words=n_real)

    def _word(self, found: _Located, at: Array) -> Array:
        """The word (n,) at a position (n,) in the ring of each record."""
        word: Array = self._words[found.base + (at & found.mask)]
        return word

    def _modes(self, found: _Located, n: int, n_chain: Array) -> Array:
        """Mode (n,) of the first n samples, by their chains, whose first word is a context mark."""
        if not n:
            return np.zeros(0, dtype=np.int8)
        cpu_mode = found.header[:n] >> np.uint64(32) & np.uint64(abi.MISC_CPUMODE_MASK)
        outermost = self._word(found, found.position + 4 + n_chain)[:n]
        return self._kernel.modes(cpu_mode == abi.MISC_CPUMODE_KERNEL, np.where(n_chain[:n] > 1, outermost, 0))

    def _reasons(self, found: _Located, first: int, n_chain: Array) -> Array:
        """Reason (n - first,) of the samples from ``first`` on, by their chains."""
        n_chain = n_chain[first:]
        if not len(n_chain):
            return np.zeros(0, dtype=np.int8)
        return self._kernel.reasons(*self._chains(_Located(*(column[first:] for column in found)), n_chain), n_chain)

    def _calls_of(self, leave: list[_Located]) -> Array | None:
        """The system calls (n,) of departures, by their chains; None where nobody asked for them."""
        if self._calls is None or not leave:
            return None
        found = _in_order(leave)
        n_chain = self._word(found, found.position + 4).astype(np.int64)
        return self._calls.calls(*self._chains(found, n_chain), n_chain)

    def _chains(self, found: _Located, n_chain: Array) -> tuple[Array, Array]:
        """The words of the samples' call chains, one behind the other, and where each begins."""
        begins = np.cumsum(n_chain) - n_chain
        at = np.repeat(found.position + 5 - begins, n_chain) + np.arange(int(n_chain.sum()))
        return self._words[np.repeat(found.base, n_chain) + (at & np.repeat(found.mask, n_chain))], begins

    # -- rings of records of one size

    def _drain_fixed(self, ring: Ring, tail: int, head: int, until_ns: int, changes: list[Change],
                     parts: list[Any]) -> int:
        """Runs of equal records, and now and then a record of another kind between them."""
        record = _FIXED[ring.name]
        data = self._bytes_between(ring, tail, head)
        at = 0
        while at < len(data):
            rows = data[at:at + (len(data) - at) // record.size * record.size].view(record.dtype)
            odd = np.flatnonzero((rows["type"] != record.kind) | (rows["size"] != record.size))
            n = int(odd[0]) if len(odd) else len(rows)
            late = np.flatnonzero(rows["time"][:n] > until_ns)
            n_kept = int(late[0]) if len(late) else n
            if n_kept:
                parts.append(rows[:n_kept])
            if len(late) and not self._stopped:
                return tail + at + n_kept * record.size
            at += n * record.size
            if at >= len(data):
                break
            header = int(data[at:at + 8].view(np.uint64)[0])
            self._decode_change(ring, (tail + at) >> 3, header, until_ns, changes, losses_only=len(late) > 0)
            at += header >> 48
        return tail + at

    def _bytes_between(self, ring: Ring, tail: int, head: int) -> Array:
        """A copy of a part of the ring."""
        start, end = tail % ring.data_bytes, (head - 1) % ring.data_bytes + 1
        data = self._bytes[ring.data_offset:ring.data_offset + ring.data_bytes]
        return data[start:end].copy() if start < end else np.concatenate([data[start:], data[:end]])

    # -- single records

    def _decode_change(self, ring: Ring, position: int, header: int, time_ns: int, changes: list[Change], *,
                       losses_only: bool = False) -> None:
        base, mask = ring.data_offset >> 3, (ring.data_bytes >> 3) - 1
        decode = _DECODE_CHANGE.get(header & 0xFFFF_FFFF)
        is_loss = decode in (_lost, _lost_samples)
        if ring.name == "map" and decode in (_fork, _exit):
            return  # the kernel tells these to whoever asks for mappings; they are in the ring of tasks
        if (is_loss and ring.name in self._spare) or (losses_only and not is_loss):
            return  # as if the event had rested
        if decode is not None:
            record = self._words[base + ((position + np.arange(header >> 51)) & mask)].tobytes()
            body = record[abi.HEADER_SIZE:-abi.TRAILER.size]
            changes.append(decode(time_ns, header >> 32 & 0xFFFF, body, ring))


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


def _in_order(*kinds: list[_Located]) -> _Located:
    """The samples of all rings as one: one kind after the other, each in time order."""
    parts = [part for kind in kinds for part in kind]
    rank = np.repeat(np.arange(len(kinds)), [sum(len(part.time_ns) for part in kind) for kind in kinds])
    order = np.lexsort((np.concatenate([part.time_ns for part in parts]), rank))
    return _Located(*(np.concatenate(columns)[order] for columns in zip(*parts, strict=True)))


def _of_kinds(rows: dict[str, list[Array]], *names: str) -> Any:
    """The records of these names from all CPUs' rings as one, in time order; None if there are none."""
    return _merged([_DECODE_FIXED[name](_by_time(np.concatenate(rows[name]))) for name in names if rows[name]])


def _by_time(rows: Array) -> Array:
    found: Array = rows[np.argsort(rows["time"], kind="stable")]
    return found


def _merged(parts: list[Part]) -> Part | None:
    """Parts of different kinds as one, in time order."""
    if len(parts) < 2:
        return parts[0] if parts else None
    columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in type(parts[0]).__slots__}
    order = np.argsort(columns["time_ns"], kind="stable")
    return type(parts[0])(**{name: column[order] for name, column in columns.items()})


def _who(rows: Array) -> tuple[Array, Array, Array]:
    return rows["time"].astype(np.int64), rows["pid"].astype(np.int64), rows["tid"].astype(np.int64)


def _switches(rows: Array) -> Switches:
    out = (rows["misc"] & abi.MISC_SWITCH_OUT) != 0
    preempted = out & ((rows["misc"] & abi.MISC_SWITCH_OUT_PREEMPT) != 0)
    return Switches(*_who(rows), edge=out.astype(np.int8) + preempted.astype(np.int8),
                    cpu=rows["cpu"].astype(np.int32))


def _sites(rows: Array) -> Sites:
    return Sites(*_who(rows), ip=rows["ip"].copy(), sp=rows["sp"].copy(), bp=rows["bp"].copy())


def _faults(rows: Array) -> Faults:
    in_kernel = (rows["misc"] & abi.MISC_CPUMODE_MASK) == abi.MISC_CPUMODE_KERNEL
    return Faults(*_who(rows), address=rows["address"].copy(), ip=rows["ip"].copy(), in_kernel=in_kernel)


def _touches(rows: Array) -> Faults:
    """Those from user mode: the kernel's own are told from others by its call chain."""
    return _faults(rows[(rows["misc"] & abi.MISC_CPUMODE_MASK) != abi.MISC_CPUMODE_KERNEL])


def _dying(rows: Array) -> Ends:
    return Ends(rows["time"].astype(np.int64), rows["tid"].astype(np.int64), rows["cpu"].astype(np.int32),
                rows["n_switches"].astype(np.int64), np.zeros(len(rows), dtype=bool))


def _dead(rows: Array) -> Ends:
    ends = _dying(rows)
    ends.dead[:] = True
    return ends


def _wakings(rows: Array) -> Wakings:
    flags = rows["common_flags"]
    context = np.where(flags & abi.TRACE_FLAG_SOFTIRQ, np.int8(Context.SOFTIRQ), np.int8(Context.THREAD))
    context[flags & (abi.TRACE_FLAG_HARDIRQ | abi.TRACE_FLAG_NMI) != 0] = Context.INTERRUPT
    waker = np.where(rows["tid"] == _NO_PID, 0, rows["tid"]).astype(np.int64)
    return Wakings(rows["woken"].astype(np.int64), rows["time"].astype(np.int64), waker, context)


_DECODE_FIXED: dict[str, Callable[[Array], Any]] = {
    "switch": _switches, "site": _sites, "task": _faults, "touch": _touches, "waking": _wakings,
    "dying": _dying, "dead": _dead}


def _lost(time_ns: int, _misc: int, body: bytes, ring: Ring) -> Change:
    return RecordsLost(time_ns, abi.LOST_FORMAT.unpack_from(body)[1], _SOURCES.get(ring.name, ring.name))


def _lost_samples(time_ns: int, _misc: int, body: bytes, ring: Ring) -> Change:
    return RecordsLost(time_ns, abi.LOST_SAMPLES_FORMAT.unpack_from(body)[0], _SOURCES.get(ring.name, ring.name))


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


_DECODE_CHANGE: dict[int, Callable[[int, int, bytes, Ring], Change]] = {
    abi.RECORD_LOST: _lost, abi.RECORD_LOST_SAMPLES: _lost_samples, abi.RECORD_COMM: _comm, abi.RECORD_FORK: _fork,
    abi.RECORD_EXIT: _exit, abi.RECORD_MMAP2: _mmap2, abi.RECORD_THROTTLE: _throttle,
}
