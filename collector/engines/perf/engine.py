"""The perf engine: the kernel's rings in, batches out.

A ring holds records back to back, the oldest at ``tail``, the newest before ``head``; both only grow and are taken
modulo the ring's size. There are two kinds of rings. Those whose records have one size are read as arrays, run by run.
Those whose samples vary with the depth of the kernel's call chain are walked header by header (a step of about 0.1 us
per record, the only loop over samples); everything behind that is done for all samples at once by indexing the words of
all rings. Stacks are not copied: the batch points into the rings, which are given back in ``release``.

Order: the rings of different CPUs are merged by time. A record is stamped a little before it is visible to us, so what
is younger than ``until_ns``, which the session keeps some ms in the past, stays in the ring for the next batch; and
with it a departure whose switch is (``cuts``).
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable
from contextlib import suppress
from itertools import chain
from operator import attrgetter
from typing import Any

import numpy as np

from collector.arrays import distinct, indices
from collector.clock import NEVER_NS, NS_PER_MS
from collector.engines.base import Threads
from collector.engines.perf.cuts import DEPARTURES, Cuts
from collector.engines.perf.decoding import (
    FIXED,
    LIFE_WORDS,
    NO_PID,
    are_lives,
    change_of,
    is_loss,
    lives,
    of_kinds,
)
from collector.engines.perf.exits import ExitAccounts
from collector.engines.perf.guard import RELIEVED, SWITCH_RINGS, Relief
from collector.engines.perf.handovers import Handovers
from collector.engines.perf.opening import Opened
from collector.engines.perf.resting import PRESSED, Resting
from collector.engines.perf.samples import Located, Samples, walk
from collector.engines.perf.unheard import Unheard
from collector.events import Accounts, Array, Batch, Change, Clocks, Exited, Forked, RecordsLost
from collector.linux import abi, proc
from collector.linux.accounts import Account, OpenAccounts, process_clock_ns
from collector.linux.beside import Beside
from collector.linux.perf import Ring

_LOW32 = np.uint64(0xFFFF_FFFF)
_CLOCKS = "clock", "brief"
_CHAINS = *_CLOCKS, "leave"  # of which samples have the kernel's call chains
_SPARE = ("touch", "waking", "handover")  # what a lost record would have told is told by others, or counted as untold
_PATIENT = "leave", *RELIEVED  # what others tell as well, if less well, and what has a spare
_TID_BITS = 32
_TID_MASK = (1 << _TID_BITS) - 1
_TIME_NS = attrgetter("time_ns")
_FILLED = 0.45  # of a ring
# Of the rings that tell of lives, in one batch: some hundreds of processes, of which each takes us a millisecond.
_BITES = {"task": 1 << 15, "birth": 1 << 18}
_LEAST_BYTES = {name: 2 * n_bytes for name, n_bytes in _BITES.items()}  # from which a bite is taken of them


class PerfEngine:
    """The engine on top of opened events."""

    name = "perf"

    def __init__(self, opened: Opened, reason: str) -> None:
        self.reason = reason
        self._exits = ExitAccounts(opened.exits) if opened.exits is not None else None
        self.opened = opened
        self._rings = opened.rings
        self._bytes: Array = np.frombuffer(self._rings.memory, dtype=np.uint8)
        self._words: Array = self._bytes.view(np.uint64)
        self._view = self._rings.memory.cast("Q")
        self._samples = Samples(self._words, with_calls="syscall" in opened.asked,
                                with_kernel="kernel" in opened.asked)
        self._rests = Resting(self._rings, opened.most_per_s)
        self._tails: list[tuple[Ring, int]] = []
        self._stopped = self._is_last = False  # no more records; the last batch
        self._closing: Beside | None = None
        self._relief: Relief | None = None
        self._relieved: set[Ring] = set()  # while a batch is worked on
        self._came_ns = 0  # to drain, for the last time
        self.ahead_ns = proc.clock_offset_ns()  # our clock, of that which the kernel stamps its records with
        self.pressed_ns = NEVER_NS  # when a drain is due, for a ring that is filling up or what is told by nobody
        self.room_ns = 0  # see Engine
        self._spare = tuple(name for name in _SPARE if name != "waking" or not opened.asks_for_wakings)
        # Those of switches first, by which departures are cut.
        self._drained = sorted([*self._rings.rings, *(spare for _, spare in self._rings.spares)],
                               key=lambda ring: ring.name != "switch")
        self._polled = {ring.fd: ring for ring in self._rings.rings if not ring.later}  # by the descriptor that tells
        self._switches = [ring for ring in self._rings.rings if ring.name == "switch"]
        self._bitten = [ring for ring in self._drained if ring.name in _BITES]
        self._early: list[Change] = []  # of a later batch
        self.unheard = Unheard()
        self._n_lost = 0  # clock samples, as far as records tell
        self._open_accounts = OpenAccounts()
        self.accounts: dict[int, Account] = {}  # of all threads, when the records of switches came to rest
        self.before = opened.before  # the account of a program that we start, before its first instruction
        self.first: list[Account] = []  # and some soon after that
        for guard in opened.guards:
            guard.end()
            self.accounts = guard.accounts
            self.first += guard.first
            for ring in guard.rested:
                self._rests.found(ring, time.monotonic_ns() - self.ahead_ns)
        self._cuts = Cuts(tells_switches=not self.accounts)
        if any(ring.name in _CHAINS and self._rings.head(ring) for ring in self._rings.rings):
            self._samples.prepare()

    def poll_fds(self) -> list[int]:
        """The descriptors of the rings, but not of those that may have no memory yet, and have room for seconds."""
        return list(self._polled)

    def instead_of(self, fd: int) -> int | None:
        """See Engine. The threads whose events these were have ended; others may still write into the same ring."""
        ring = self._polled.pop(fd)
        other = self._rings.writer_that_lives(ring)
        if other is not None:
            self._polled[other] = ring
        return other

    def idle_fds(self, due_ns: int) -> Collection[int]:
        """See Engine. Clock samples fill half a ring again and again between two drains. Where no thread has a shorter
        period than the interval, or had one that it may have kept, they come no faster than from a busy CPU."""
        if not self.opened.are_alike:
            return ()
        clocks = {ring: fd for fd, ring in self._polled.items() if ring.name == "clock"}
        return {clocks[ring] for ring, tail, head in self._rings.ends(clocks)
                if not self._will_be_full(ring, head - tail, due_ns)}

    def wants_drain(self, ready: Collection[int], due_ns: int) -> bool:
        """The kernel wakes us whenever half a ring's bytes have been written, drained meanwhile or not. Clocks write at
        a steady pace: one more drain in its time is early enough for their rings, if they will not be full by then. A
        ring of which others tell what is lost, or that has a spare, and that is hardly filled, has time until it will
        be nearly by half."""
        wants = False
        for ring, tail, head in self._rings.ends(self._polled[fd] for fd in ready if fd in self._polled):
            n_bytes = head - tail
            is_low = n_bytes <= ring.data_bytes // 4
            if ring.name in _CLOCKS:
                wants |= not is_low and self._will_be_full(ring, n_bytes, due_ns)
            elif is_low and (ring.name in self._spare or ring.name in _PATIENT):
                self._note_pace(ring, n_bytes)
            else:
                wants = True
        return wants

    def _note_pace(self, ring: Ring, n_bytes: int) -> None:
        full_ns = (time.monotonic_ns() - self._came_ns) * ring.data_bytes // max(n_bytes, 1)
        self.pressed_ns = min(self.pressed_ns, self._came_ns + int(_FILLED * full_ns))

    def _will_be_full(self, ring: Ring, n_bytes: int, due_ns: int) -> bool:
        """Whether a clock's ring may be full or nearly so at a time: at its pace since the last drain or, since threads
        that slept may run from now on, at that of a busy CPU."""
        now_ns = time.monotonic_ns()
        busy = self.opened.clock_bytes_per_ns if ring.name == "clock" else 0
        bytes_per_ns = max(n_bytes / (now_ns - self._came_ns), busy)
        return n_bytes + bytes_per_ns * (due_ns - now_ns) > PRESSED * ring.data_bytes

    def drain(self, until_ns: int) -> Batch:
        """The records stamped up to ``until_ns``, or the oldest of a backlog; see the module's text."""
        self._end_relief()  # where the last batch failed
        came_ns = time.monotonic_ns()
        elapsed_ns = max(came_ns - self._came_ns, NS_PER_MS)
        self.room_ns, self._came_ns = self._room_ns(elapsed_ns) if self._came_ns else 0, came_ns
        parts: dict[str, list[Any]] = defaultdict(list)
        self._rings.unpack()
        if self._closing is None:
            self._relieved = self._emptied()
        asked_ns, until_ns = until_ns, self._bite_ns(until_ns)
        self._is_last = self._stopped and until_ns == asked_ns
        changes = [*self._early, *self.unheard.ended(came_ns - self.ahead_ns)]
        self.pressed_ns = self.unheard.due_ns(came_ns)
        # Not those whose spare has it all; nor what is being closed, and was drained before.
        drained = [ring for ring in self._drained
                   if ring not in self._relieved and (self._closing is None or ring.name not in FIXED)]
        for ring, tail, head in self._rings.ends(drained):
            told: list[Change] = []
            if head != tail:
                drain = self._drain_fixed if ring.name in FIXED else self._drain_stacks
                # Changes need no room in their ring: lives fill that of mappings, too, and it has no spare.
                upto_ns = asked_ns if ring.name == "map" else until_ns
                self._tails.append((ring, drain(ring, tail, head, upto_ns, told, parts[ring.name])))
                changes += told
                if ring.name == "switch" and parts["switch"]:
                    self._cuts.switched(parts["switch"][-1])
            if ring.fd < 0 or self._stopped:
                continue  # a spare has no events of its own; and in the end nobody has any
            if ring.name == "clock":
                self._rests.brief_or_whole(ring, head - tail, until_ns)
            elif ring.name in self.opened.most_per_s:
                n_lost = sum(change.n_records for change in told if type(change) is RecordsLost) if told else 0
                n_left = head - self._tails[-1][1] if head != tail else 0
                self._rests.rest_or_wake(ring, tail, head, n_left, n_lost, until_ns, elapsed_ns)
        losses = [change for change in changes if type(change) is RecordsLost]
        self._n_lost += sum(loss.n_records for loss in losses if loss.source == "clock")
        kinds = set(map(type, changes))
        if self._is_last and self._closing is None:
            changes += self._untold_losses(min(until_ns, came_ns - self.ahead_ns))
            self._close_what_was_copied()
        elif Forked in kinds:
            self._relief = Relief(self._rings, self._relieved)
        if not self._stopped:
            self.opened.vary_periods(Exited in kinds)
        self._tell_moments(parts)
        changes.sort(key=_TIME_NS)
        n = bisect_right(changes, until_ns, key=_TIME_NS)
        changes, self._early = changes[:n], changes[n:]
        clock, leaving = self._samples.samples(parts["clock"] + parts["brief"], parts["leave"])
        parts["task"] = [self._samples.rows(part) for part in parts["task"]]
        if Exited in kinds:
            self._open_accounts.forget_all(change[1:] for change in changes if type(change) is Exited)
        # Who ends is told before its record is written, so that those of the batch's ends are there.
        exits = self._exits.read(time.monotonic_ns()) if self._exits is not None else None
        return Batch(until_ns, tuple(changes), clock, of_kinds(parts, "switch"), leaving, of_kinds(parts, "site"),
                     of_kinds(parts, "task", "touch"), self._samples.births(parts["birth"]), of_kinds(parts, "waking"),
                     of_kinds(parts, "dying", "dead"), maps_untold=self._rests.maps_untold(changes),
                     calls=self._samples.calls_of(parts["leave"]), has_more=until_ns < asked_ns, exits=exits)

    def _room_ns(self, elapsed_ns: int) -> int:
        """How long it will take until a ring is full, if they go on to fill as in the time since the last drain."""
        parts = [(head - tail) / ring.data_bytes for ring, tail, head in self._rings.ends(self._rings.rings)]
        part = max(parts, default=0.0)
        return int(elapsed_ns * (1 - part) / part) if part else elapsed_ns

    def _bite_ns(self, until_ns: int) -> int:
        """Up to when there are no more lives in the rings than a batch should have: until that is done with, each takes
        several times the memory that it takes in a ring."""
        for ring, tail, head in self._rings.ends(self._bitten):
            if head - tail > _LEAST_BYTES[ring.name]:
                behind = self._rings.record_behind(ring, tail, tail + _BITES[ring.name])
                until_ns = min(until_ns, self._stamp_ns(ring, behind) - 1)  # a fork comes with how it was made
        return until_ns

    def _stamp_ns(self, ring: Ring, position: int) -> int:
        """When the record at a position was written."""
        base, mask, at = ring.data_offset >> 3, (ring.data_bytes >> 3) - 1, position >> 3
        header = self._view[base + (at & mask)]
        is_sample = header & 0xFFFF_FFFF == abi.RECORD_SAMPLE
        return self._view[base + ((at + 2 if is_sample else at + (header >> 51) - 2) & mask)]

    def _tell_moments(self, parts: dict[str, list[Any]]) -> None:
        """Lets records of switches, and of departures, have the times of those switches, as far as these are told."""
        if not parts["handover"] or not parts["switch"]:
            return
        handovers = Handovers(parts["handover"], parts["switch"], parts["waking"])
        for rows in parts["site"]:
            rows["time"] = handovers.of_departures(rows["time"], rows["tid"], rows["cpu"])
        parts["leave"] = [part._replace(time_ns=handovers.of_departures(part.time_ns, *self._samples.whose(part)))
                          for part in parts["leave"]]
        for rows in parts["switch"]:
            told_ns = handovers.of_switches(rows)
            rows["res"] = told_ns != rows["time"].astype(np.int64)  # the kernel leaves it 0
            rows["time"] = told_ns

    def read_accounts(self, threads: Threads) -> Accounts:
        """The accounts of threads as of now; one that is named twice is read once."""
        threads = list(threads)
        rows = [(pid, tid, *account) for pid, tid in self._open_accounts.there(threads)
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
        for ring, tail, head in self._rings.ends(self._switches) if self._closing is None else ():
            if head != tail:
                self._drain_fixed(ring, tail, head, NEVER_NS, [], parts)
        if not parts:
            return []
        threads = distinct(np.concatenate([part["pid"].astype(np.int64) << _TID_BITS | part["tid"] for part in parts]))
        found = zip((threads >> _TID_BITS).tolist(), (threads & _TID_MASK).tolist(), strict=True)
        return [(pid, tid) for pid, tid in found if 0 < pid < NO_PID]

    def _untold_losses(self, time_ns: int) -> list[Change]:
        """The clock samples that did not fit at the end: the kernel writes of losses only with what comes behind them.
        """
        n_lost = sum(self._rings.n_lost(ring) for ring in self._rings.rings if ring.name in _CLOCKS)
        return [RecordsLost(time_ns, n_lost - self._n_lost, "clock")] if n_lost > self._n_lost else []

    def _emptied(self) -> set[Ring]:
        """Empties the rings of births and deaths into their spares, those that these have room for."""
        return {ring for ring, spare in self._rings.spares if ring.name in RELIEVED and self._rings.move(ring, spare)}

    def release(self) -> None:
        """Lets the kernel write again where the last batch was."""
        self._end_relief()
        for ring, tail in self._tails:
            self._rings.give_back(ring, tail)
        self._tails = []
        self._rings.may_pack(_LEAST_BYTES)  # what an heir would not see; there is none any more

    def _end_relief(self) -> None:
        if self._relief is not None:
            self._relief.end()
            self._relief = None

    def failure(self) -> str:
        """Nothing: the kernel does not fail."""
        return ""

    def rest_switches(self) -> None:
        """No more records of switches, nor of ends, which a count of CPUs' switches tells: it costs, too."""
        self._cuts.tells_switches = False
        for ring in self._of_switches():
            self._rings.rest(ring)

    def wake_switches(self) -> None:
        """Records of switches and ends again."""
        self._cuts.tells_switches = True
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
        self.opened.stop()
        self._stopped = True
        return now_ns

    def close(self) -> None:
        """Closes the events. What the kernel takes its time for may go on for a while, in a thread."""
        self._open_accounts.close()
        self.opened.deafen()
        before = self._closing

        def close() -> None:
            if before is not None:
                before.wait()
            self._rings.close()

        self._closing = Beside(close)

    def _close_what_was_copied(self) -> None:
        """Closes what the last batch does not point into, while it is worked on."""
        def close() -> None:
            for ring in self._rings.rings:
                if ring.name in FIXED or ring in self._relieved:
                    self._rings.close_ring(ring)

        self._closing = Beside(close)

    # -- rings of samples with stacks

    def _drain_stacks(self, ring: Ring, tail: int, head: int, until_ns: int, changes: list[Change],
                      parts: list[Any]) -> int:
        base, mask = ring.data_offset >> 3, (ring.data_bytes >> 3) - 1
        position = np.array(walk(self._view, base, mask, tail >> 3, head >> 3), dtype=np.int64)
        header = self._words[base + (position & mask)]
        is_sample = (header & _LOW32) == abi.RECORD_SAMPLE
        time_at = np.where(is_sample, position + 2, position + (header >> 51).astype(np.int64) - 2)
        time = self._words[base + (time_at & mask)].astype(np.int64)
        late = indices(time > until_ns)
        n = int(late[0]) if len(late) else len(position)
        if ring.name in DEPARTURES:
            self._cuts.begin(ring, time)
            n = n if self._is_last else self._cuts.n_whole(ring, time[:n], until_ns)
        others = indices(~is_sample)
        if len(others):
            now, rest = others[others < n], others[others >= n]
            self._decode_changes(ring, position[now], header[now], time[now], changes)
            if self._is_last:  # of the rest, which nobody will ask for, it counts what was lost
                for at, head_word in zip(position[rest].tolist(), header[rest].tolist(), strict=True):
                    self._decode_change(ring, at, head_word, until_ns, changes, losses_only=True)
        chosen = indices(is_sample[:n])
        if len(chosen):
            where = np.array([[base], [mask]]).repeat(len(chosen), axis=1)
            found = Located(time[chosen], position[chosen], header[chosen], *where)
            found = self._without_torn(found, changes) if ring.name == "leave" else found
            parts += [found] if len(found.position) else []
        return int(position[n]) << 3 if n < len(position) else head

    def _without_torn(self, found: Located, changes: list[Change]) -> Located:
        """What can be used of samples; the others count as lost."""
        torn = self._samples.are_torn(found)
        if torn.any():
            changes.append(RecordsLost(int(found.time_ns[torn].max()), int(np.count_nonzero(torn)), "leave"))
            found = Located(*(column[~torn] for column in found))
        return found

    # -- rings of records of one size

    def _drain_fixed(self, ring: Ring, tail: int, head: int, until_ns: int, changes: list[Change],
                     parts: list[Any]) -> int:
        """Runs of equal records, and now and then a record of another kind between them."""
        record = FIXED[ring.name]
        data = self._bytes_between(ring, tail, head)
        at, n_bytes = 0, head - tail
        while at < n_bytes:
            rows = data[at:at + (n_bytes - at) // record.size * record.size].view(record.dtype)
            odd = indices((rows["type"] != record.kind) | (rows["size"] != record.size))
            n = int(odd[0]) if len(odd) else len(rows)
            late = indices(rows["time"][:n] > until_ns)
            n_kept = int(late[0]) if len(late) else n
            if ring.name in DEPARTURES:
                if not at:
                    self._cuts.begin(ring, rows["time"])
                if not self._is_last and (n_kept < n or at + n * record.size >= n_bytes):
                    n_kept = self._cuts.n_whole(ring, rows["time"][:n_kept], until_ns)
            if n_kept:
                parts.append(rows[:n_kept])
            if n_kept < n and not self._is_last:
                return tail + at + n_kept * record.size
            at += n * record.size
            if at >= n_bytes:
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

    def _decode_changes(self, ring: Ring, position: Array, header: Array, time: Array, changes: list[Change]) -> None:
        """Records (n,) of other kinds than samples, among which lives are many."""
        is_life = are_lives(header)
        if ring.name != "map":  # where the kernel tells lives, too; they are in the ring of tasks
            at = ring.data_offset // 8 + ((position[is_life, None] + LIFE_WORDS) & (ring.data_bytes // 8 - 1))
            changes += lives(header[is_life], self._words[at], time[is_life])
        columns = (column[~is_life].tolist() for column in (position, header, time))
        for at_word, header_word, time_ns in zip(*columns, strict=True):
            self._decode_change(ring, at_word, header_word, time_ns, changes)

    def _decode_change(self, ring: Ring, position: int, header: int, time_ns: int, changes: list[Change], *,
                       losses_only: bool = False) -> None:
        base, mask = ring.data_offset >> 3, (ring.data_bytes >> 3) - 1
        if (is_loss(header) and ring.name in self._spare) or (losses_only and not is_loss(header)):
            return  # as if the event had rested
        start, n_words = position & mask, header >> 51
        if start + n_words <= mask + 1:
            record = self._view[base + start:base + start + n_words].tobytes()
        else:
            record = self._words[base + ((position + np.arange(n_words)) & mask)].tobytes()
        change = change_of(ring, header, record, time_ns)
        if change is not None:
            changes.append(change)
