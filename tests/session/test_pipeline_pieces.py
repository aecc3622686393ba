"""The pieces of the pipeline by themselves: batches made by hand, no kernel, experiments that are read again."""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import pytest

from collector.events import (
    Accounts,
    Array,
    Batch,
    Births,
    Change,
    Clocks,
    ClockSamples,
    Context,
    Edge,
    Ends,
    Executed,
    Exited,
    Exits,
    Forked,
    Mapped,
    Mode,
    Reason,
    RecordsLost,
    Sites,
    Switches,
    Wakings,
)
from collector.experiment.identity import UNKNOWN, Identity
from collector.experiment.log import Header
from collector.experiment.reader import open_experiment
from collector.experiment.recorder import Recorder
from collector.experiment.records import NOT_SAMPLED
from collector.linux.abi import CLONE_VFORK, CLONE_VM
from collector.linux.accounts import Account
from collector.linux.proc import ProcessLife, ProcessUsage
from collector.processes.process import Epoch, Image
from collector.processes.space import AddressSpace, Mapping
from collector.session import attach, blocked_stacks, deep
from collector.session.attach import Found
from collector.session.experiments import Experiments, Recorded
from collector.session.follow import Follow
from collector.session.pipeline import Pipeline
from collector.session.placing import FAILED_MARK, frames_of
from collector.session.stacks import _Seen
from collector.session.tally import GONE, Tally
from collector.session.tap import ON_CPU, Stretches
from collector.session.timekeeping import Timekeeping
from collector.session.unseen import Unseen
from collector.session.world import Place, Sleeper
from collector.timing.states import Microstate
from collector.unwind.batch import Stop
from collector.unwind.table import Tables

MS = 1_000_000
INTERVAL_NS = 10 * MS
START_NS = 7_000 * MS
PID = 4711


class Alone:
    """A world in which nobody answers: no names, no files, and each stack is the leaf alone."""

    def now_ns(self) -> int:
        return START_NS

    def arguments(self, pid: int) -> bytes:
        return b"program %d" % pid

    def comm(self, pid: int, tid: int) -> bytes:
        return b""

    def usage(self, pid: int) -> ProcessUsage | None:
        return None

    def life(self, pid: int) -> ProcessLife | None:
        return None

    def switches(self, pid: int) -> tuple[int, int]:
        return 0, 0

    def blocked(self, threads: Sequence[Sleeper], now_ns: int, stack_words: int) -> list[ClockSamples]:
        return []

    def mappings(self, pid: int, time_ns: int) -> list[Mapped]:
        return []

    def place(self, mapped: Mapped) -> Place:
        return Place(mapped.path, -1, 0, 64)

    def identity(self, number: int) -> Identity:
        return UNKNOWN

    def functions(self, number: int) -> list[tuple[int, int, bytes]]:
        return []

    def function_at(self, number: int, vaddr: int) -> bytes:
        return b""

    def frames(self, samples: ClockSamples, index: Array, epochs: Any) -> tuple[Array, Array, Array]:
        n = len(samples.tid)
        return samples.regs[:, 16:], np.ones(n, dtype=np.int64), np.full(n, Stop.ROOT, dtype=np.int8)


class Read(Alone):
    """A world that shows where blocked threads are: at a leaf, with one caller; ``is_deep``: that is so far up that
    only the longest copies of stacks have it."""

    def __init__(self, leaf: int, is_deep: bool = False, reason: Reason = Reason.SLEEP) -> None:
        self.leaf = leaf
        self._reason = reason
        self.n_read = 0
        self.asked: list[Sleeper] = []  # last
        self._is_deep = is_deep
        self._stop = Stop.ROOT

    def blocked(self, threads: Sequence[Sleeper], now_ns: int, stack_words: int) -> list[ClockSamples]:
        self.n_read += len(threads)
        self._stop = Stop.TRUNCATED if self._is_deep and stack_words < deep.STACK_WORDS else Stop.ROOT
        self.asked = [*threads]
        found = samples([((now_ns - START_NS) / MS, one.tid, self.leaf) for one in threads], self._reason)
        return [found] if found is not None else []

    def frames(self, samples: ClockSamples, index: Array, epochs: Any) -> tuple[Array, Array, Array]:
        n = len(samples.tid)
        pcs = np.column_stack([samples.regs[:, 16], np.full(n, 0x400001, dtype=np.uint64)])
        return pcs, np.full(n, 2), np.full(n, self._stop, dtype=np.int8)


class Recording:
    """A pipeline for process PID, and what becomes of it."""

    def __init__(self, path: Path, aggregations: Sequence[str] = (), world: Alone | None = None,
                 follow: str = "on") -> None:
        self.path = path
        self.taken: list[Stretches] = []
        path.mkdir()
        self.experiments = Experiments(path, Follow(follow), lambda recorded: header(recorded))
        self.tally = Tally()
        self.pipeline = Pipeline(INTERVAL_NS, self.experiments, world or Alone(), self.tally, tap=self.taken.append,
                                 aggregations=aggregations)
        image = self.pipeline.model.new_process(PID, START_NS).image
        self.founder = self.experiments.founder(image, Recorder.create(path, header(None)))

    def finish(self, at_ms: int) -> None:
        """Ends it."""
        self.pipeline.finish(START_NS + at_ms * MS, "it goes on")
        self.founder.recorder.close(START_NS + at_ms * MS)

    def lengths(self, tid: int) -> Counter[int]:
        """How long a thread was in each state, in ns, as a tap is told."""
        found = Counter[int]()
        for part in self.taken:
            mine = part.tid == tid
            for state, ns in zip(part.state[mine].tolist(), (part.end_ns - part.start_ns)[mine].tolist(), strict=True):
                found[state] += ns
        return found

    def ticks(self, lineage: str = "") -> dict[tuple[int, int], int]:
        """Ticks by tid and state."""
        found = Counter[tuple[int, int]]()
        for packet in open_experiment(self.path / lineage if lineage else self.path).packets():
            found[int(packet["THRID"]), int(packet["MSTATE"])] += int(packet["NTICK"])
        return dict(found)


@pytest.fixture
def recording(tmp_path: Path) -> Recording:
    """One that has just begun."""
    return Recording(tmp_path / "test.1.er")


def header(recorded: Recorded | None) -> Header:
    pid, start_ns = (recorded.image.pid, recorded.start_ns) if recorded else (PID, START_NS)
    return Header(hostname="host", os="Linux", arch="x86_64", page_size=4096, n_pages=1, cpus=[1], pid=pid, ppid=1,
                  pgrp=1, sid=1, cwd=b"/", arguments=recorded.arguments if recorded else b"program", wsize=64,
                  interval_ns=INTERVAL_NS, sample_period_s=1, start_ns=start_ns, start_unix=0, collector="collect")


def batch(until_ms: float, *changes: Change, switches: Sequence[tuple[float, int, int]] = (),
          clock: Sequence[tuple[float, int, int]] = (), leaving: Sequence[tuple[float, int, int]] = (),
          accounts: Accounts | None = None) -> Batch:
    """``switches``: ms, tid and edge; ``clock`` and ``leaving``: ms, tid and leaf. All of process PID, or of one's own
    where the tid is above 5000."""
    made = Batch(START_NS + round(until_ms * MS), changes, accounts=accounts)
    if switches:
        made.switches = Switches(*who(switches), np.array([edge for _, _, edge in switches], dtype=np.int8),
                                 np.zeros(len(switches), dtype=np.int32))
    made.clock, made.leaving = samples(clock, Mode.USER), samples(leaving, Reason.LOCK)
    return made


def who(rows: Sequence[tuple[float, int, int]]) -> tuple[Array, Array, Array]:
    tid = np.array([tid for _, tid, _ in rows], dtype=np.int64)
    return (np.array([START_NS + round(ms * MS) for ms, _, _ in rows], dtype=np.int64),
            np.where(tid > 5000, tid, PID), tid)


def samples(rows: Sequence[tuple[float, int, int]], mode: int) -> ClockSamples | None:
    if not rows:
        return None
    n = len(rows)
    regs, none = np.zeros((n, 17), dtype=np.uint64), np.zeros(n, dtype=np.int64)
    regs[:, 16] = [leaf for _, _, leaf in rows]
    return ClockSamples(*who(rows), cpu=np.zeros(n, dtype=np.int32), mode=np.full(n, mode, dtype=np.int8),
                        abi=np.full(n, 64, dtype=np.int8), regs=regs, words=np.zeros(1, dtype=np.uint64), base=none,
                        mask=none, first=none, low=none.astype(np.uint64), n_words=none)


def account(*rows: tuple[float, int, float, float]) -> Accounts:
    """As of when (ms), tid, ms on CPU, ms of waiting."""
    columns = np.array([(START_NS + at * MS, tid if tid > 5000 else PID, tid, run * MS, delay * MS, 1)
                        for at, tid, run, delay in rows])
    return Accounts(*columns.astype(np.int64).reshape(-1, 6).T, read_ns=START_NS + int(max(
        (at for at, *_ in rows), default=1) * MS))


EXEC = Executed(START_NS, PID, PID, b"program")


# --- stacks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("leaf", "frames"), [(0x400100, [0x400100, int(FAILED_MARK)]), (0x7F00_0000, [0x7F00_0000])],
                         ids=["leaving for good", "being replaced"])
def test_a_thread_without_a_stack(leaf: int, frames: list[int]) -> None:
    """Its memory is given back. If an exec replaces it, its pc is the old program's, of which the space has nothing."""
    space = AddressSpace([Mapping(0x400000, 0x402000, 0, b"program", -1, 0)])
    found = samples([(1, PID, leaf)], Reason.LOCK)
    assert found is not None
    found.regs[:, 6] = 0x7FFF_0000  # a frame pointer, by which the code finds its caller
    epochs = [Epoch(START_NS, Image(1, PID, START_NS), space)]
    pcs, length, stop, *_ = frames_of(found, np.zeros(1, dtype=np.int64), epochs, Tables())
    assert pcs[0, :length[0]].tolist() == frames
    assert stop.tolist() == [GONE]


def test_stacks_are_those_of_their_threads_however_long_the_machine_has_run() -> None:
    """A wait that is paid for later begins at 0, before everything; the other ones now, in a year."""
    slot, now_ns = np.arange(1_009), 366 * 86_400 * 10**9
    seen = _Seen(slot, np.full(len(slot), now_ns - 5 * MS), np.zeros_like(slot), slot.astype(np.uint64) + np.uint64(1))
    before, behind = seen.near(np.append(7, slot), np.append(0, np.full(len(slot), now_ns)), 0)
    assert before.tolist() == [0, *slot + 1]
    assert behind.tolist() == [8, *[0] * len(slot)]


# --- timekeeping ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("first", "ran_ms"), [
    ([], 196), ([(1, 3.1), (8, 7)], 200),  # at 1 ms it ran: that account is old
    ([(1, 3.1), (6, 5.2), (700, 83)], 196),  # it ran, and behind the batch
    ([(8, 2.5)], 202)])  # most of its 4 ms until then were stolen: it would have used nothing, and less, before
def test_what_the_founder_used_before_is_told_by_an_account_of_soon_after(
        first: list[tuple[float, float]], ran_ms: int, recording: Recording) -> None:
    """It used 1 ms until 300 ms before its exec, and 2 more until then; its 100 turns of 2 ms have records that are
    0.04 ms late. What it ran in all, 203 ms, does not tell these from what it used before."""
    time = recording.pipeline.time
    time.founder_before = Account(START_NS - 300 * MS, MS, 0, 1)
    time.founder_first = [Account(START_NS + round(at * MS), round(run * MS), 0, 2) for at, run in first]
    edges = [edge for turn in range(100) for edge in ((5 * turn + 0.04, PID, Edge.IN),
                                                      (5 * turn + 2, PID, Edge.OUT_PREEMPTED))]
    recording.pipeline.feed(batch(510, EXEC, switches=edges[1:], accounts=account((505, PID, 203, 297))))
    ran_ns = time.cpu_ns(time.model.processes[PID].threads.values(), START_NS + 510 * MS)
    assert ran_ns / MS == pytest.approx(ran_ms, abs=0.1)


def test_an_account_waits_for_the_batch_that_has_come_so_far() -> None:
    """The thread has run for 100 ms by its records; at 105 ms its account says 60, as the next batch can tell."""
    time = Timekeeping(n_cpus=1, interval_ns=INTERVAL_NS)
    slot = time.model.forked(Forked(START_NS, PID, PID, PID, PID)).slot
    time.born(slot, START_NS)
    for made, steal_ms, ran_ms in (
            (batch(100, switches=[(0, PID, Edge.IN)], accounts=account((105, PID, 60, 0))), 0, 100),
            (batch(104), 0, 104), (batch(110, switches=[(108, PID, Edge.OUT_BLOCKED)]), 41, 67)):
        time.advance(made)
        assert time.ledger.steal_ns == steal_ms * MS
        assert time.cpu_ns([slot], made.until_ns) == ran_ms * MS


def found_runnable() -> tuple[Timekeeping, int]:
    """A thread that was found runnable, and its slot."""
    time = Timekeeping(n_cpus=1, interval_ns=INTERVAL_NS)
    process = time.model.new_process(PID, START_NS)
    slot = time.model.new_thread(process, PID, START_NS, Edge.IN, found=True).slot
    time.found(slot, Found(PID, Edge.IN, Reason.UNKNOWN, None, Account(START_NS, 0, 0, 1)), START_NS)
    return time, slot


@pytest.mark.parametrize(("accounts", "kind"), [
    (None, Edge.IN),  # of another process that was found: nobody has looked
    (account((65, PID, 1, 0)), Edge.OUT_PREEMPTED), (account((65, PID, 61, 0)), Edge.IN)])
def test_what_was_found_runnable_is_decided_by_accounts_alone(accounts: Accounts | None, kind: int) -> None:
    time, slot = found_runnable()
    time.advance(batch(0))
    assert time.asks() == [(PID, PID)]
    time.advance(batch(60, accounts=accounts))
    assert time.timeline.clocks.kind[slot] == Edge.IN
    time.advance(batch(70))
    assert time.timeline.clocks.kind[slot] == kind
    assert time.asks() == ([(PID, PID)] if kind == Edge.IN else [])


def test_who_has_no_account_any_more_did_nothing_that_is_known() -> None:
    """It is asked for at 65 ms, and gone; once a batch has come so far without a record of it, that is forgotten."""
    time, slot = found_runnable()
    gone = account()
    gone.read_ns = START_NS + 65 * MS
    for until_ms, accounts, kind in ((60, gone, Edge.IN), (64, None, Edge.IN), (66, None, Edge.UNKNOWN)):
        time.advance(batch(until_ms, accounts=accounts))
        assert time.timeline.clocks.kind[slot] == kind


def test_what_records_tell_behind_a_thread_s_account_is_not_counted_again() -> None:
    """Two threads get a CPU twice each; of the first one the account is of before that, of the other behind it."""
    time = Timekeeping(n_cpus=2, interval_ns=INTERVAL_NS)
    slots = [time.model.forked(Forked(START_NS, PID, tid, PID, PID)).slot for tid in (PID, PID + 1)]
    for slot in slots:
        time.born(slot, START_NS)
    time.count({PID: Account(START_NS + 10 * MS, 0, 0, 1), PID + 1: Account(START_NS + 60 * MS, 0, 0, 3)})
    time.advance(batch(60, switches=[(at_ms + tid - PID, tid, edge) for tid in (PID, PID + 1)
                                     for at_ms, edge in ((20, Edge.IN), (25, Edge.OUT_BLOCKED), (40, Edge.IN),
                                                         (45, Edge.OUT_BLOCKED))]))
    later = account((100, PID, 10, 0), (100, PID + 1, 10, 0))
    later.turns[:] = 3 + 5, 3 + 5
    time.advance(batch(110, accounts=later))
    assert dict(zip(*(column.tolist() for column in time.turns.more), strict=True)) == dict.fromkeys(slots, 5)


def test_who_executes_twice_before_anything_is_known_of_its_account() -> None:
    time = Timekeeping(n_cpus=1, interval_ns=INTERVAL_NS)
    time.model.new_process(PID, START_NS)
    old: int | None = None
    for at_ms in (1, 5):
        slot = time.model.executed(Executed(START_NS + at_ms * MS, PID, PID, b"program"))[0].threads[PID]
        time.executed(old, slot)
        old = slot
    time.advance(batch(20, accounts=account((20, PID, 19, 0))))
    assert time.cpu_ns([slot], START_NS + 20 * MS) == 15 * MS


def test_slots_are_used_again() -> None:
    time = Timekeeping(n_cpus=1, interval_ns=INTERVAL_NS)
    for turn in range(3):
        at_ns = START_NS + turn * 10 * MS
        slot = time.model.forked(Forked(at_ns, PID, PID + turn, PID, PID)).slot
        time.born(slot, at_ns)
        assert slot == 0
        time.model.exited(Exited(at_ns + 5 * MS, PID, PID + turn))
        time.advance(batch(10 * turn + 9, switches=[(10 * turn + 2, PID + turn, Edge.IN)]))
        assert time.ending.tolist() == [slot]
        assert time.cpu_ns([slot], at_ns) == 3 * MS
        time.model.forget_before(START_NS + (10 * turn + 9) * MS)
        time.give_back(time.ending)
    assert not time.model.threads


def test_threads_that_are_gone_have_what_the_clock_of_their_process_tells() -> None:
    """Two threads of 3 ms each end, and their process's clock has 100 us more; what it tells early waits."""
    time = Timekeeping(n_cpus=1, interval_ns=INTERVAL_NS)
    for tid in (PID, PID + 1, PID + 2):
        time.born(time.model.forked(Forked(START_NS, PID, tid, PID, PID)).slot, START_NS)
    for tid in (PID + 1, PID + 2):
        time.model.exited(Exited(START_NS + 15 * MS, PID, tid))
    accounts = account((21, PID, 1, 0))
    accounts.clocks = Clocks(*(np.array([value]) for value in (START_NS + 21 * MS, PID, 7 * MS + 100_000)))
    edges = [(0, PID, Edge.IN), (1, PID, Edge.OUT_BLOCKED), (2, PID + 1, Edge.IN), (5, PID + 1, Edge.OUT_BLOCKED),
             (12, PID + 2, Edge.IN)]
    first, second = batch(20, switches=edges, accounts=accounts), batch(30)
    time.advance(first)
    assert time.tails(first) == {}
    time.advance(second)
    assert time.tails(second) == {-1: 100_000}
    assert time.tails(second) == {}


def test_the_clock_of_a_process_that_is_over_is_told_with_its_last_thread() -> None:
    """It was read behind the batch in which the thread ends, as a zombie's: nothing is to come after that."""
    time = Timekeeping(n_cpus=1, interval_ns=INTERVAL_NS)
    slot = time.model.forked(Forked(START_NS, PID, PID, PID, PID)).slot
    time.born(slot, START_NS)
    time.model.exited(Exited(START_NS + 15 * MS, PID, PID))
    time.take_clocks(Clocks(*(np.array([value]) for value in (START_NS + 24 * MS, PID, 7 * MS))))
    last = batch(20, switches=[(0, PID, Edge.IN), (5, PID, Edge.OUT_BLOCKED)])
    time.advance(last)
    assert time.tails(last) == {slot: 2 * MS}
    assert time.tails(last) == {}


@pytest.mark.parametrize(("clock", "expected_ms"), [
    ((41, 16 + 5 + 3), 16 + 5),  # behind both ends
    ((38, 16 + 5 + 3), 16 + 5 + 2 * (39 - 38)),  # before the last one: two CPUs can have run meanwhile
    (None, 16 + 0.4 * 9 + 0.4 * 19),
])
def test_who_ends_uncounted_has_no_more_than_the_clock_of_its_process_leaves(
        clock: tuple[int, int] | None, expected_ms: float) -> None:
    """Two threads that ran for 8 of 20 ms each end behind their last accounts, one in each of two batches; main has
    3 ms. What is known of later goes with the first batch."""
    time = Timekeeping(n_cpus=2, interval_ns=INTERVAL_NS)
    tids = PID, PID + 1, PID + 2
    slots = [time.model.forked(Forked(START_NS, PID, tid, PID, PID)).slot for tid in tids]
    for slot in slots:
        time.born(slot, START_NS)
    time.advance(batch(10))
    time.count({tid: Account(START_NS + 10 * MS, 0, 0, 0) for tid in tids})
    time.advance(batch(20, accounts=account((20, PID, 0, 0), (20, PID + 1, 8, 0), (20, PID + 2, 8, 0))))
    later = account((40.5, PID, 3, 0))
    if clock is not None:
        later.clocks = Clocks(*(np.array([value]) for value in (START_NS + clock[0] * MS, PID, clock[1] * MS)))
    time.model.exited(Exited(START_NS + 29 * MS, PID, PID + 1))
    time.advance(first := batch(30, accounts=later))
    assert time.tails(first) == {}
    time.model.exited(Exited(START_NS + 39 * MS, PID, PID + 2))
    time.advance(batch(40))
    assert time.cpu_ns(slots, START_NS + 40 * MS) == pytest.approx(expected_ms * MS, abs=2)


def test_whoever_calls_exec_goes_on_with_an_account_of_its_own(recording: Recording) -> None:
    """The leader has run for 100 ms and another thread for 10, which then takes the leader's id for a new image."""
    feed = recording.pipeline.feed
    feed(batch(100, EXEC, Forked(START_NS + 99 * MS, PID, PID + 1, PID, PID),
               switches=[(100, PID, Edge.OUT_BLOCKED), (100, PID + 1, Edge.IN)]))
    feed(batch(110, Exited(START_NS + 109 * MS, PID, PID), Executed(START_NS + 110 * MS, PID, PID, b"other"),
               accounts=account((105, PID, 100, 0))))
    feed(batch(200, accounts=account((200, PID, 100, 0))))
    recording.finish(200)
    assert recording.pipeline.time.ledger.steal_ns == 0
    assert recording.pipeline.total_cpu_ns == 200 * MS


def test_waits_before_an_exec_are_told_once(recording: Recording) -> None:
    """The first account behind it has those of before, too. No wake-up is told."""
    child, feed = 5003, recording.pipeline.feed
    feed(batch(100, EXEC, Forked(START_NS + MS, child, child, PID, PID),
               Executed(START_NS + 30 * MS, child, child, b"other"), accounts=account((90, child, 19, 20)),
               switches=[(21, child, Edge.IN), (40, child, Edge.OUT_BLOCKED)]))
    feed(batch(200, switches=[(140, child, Edge.IN), (150, child, Edge.OUT_BLOCKED)],
               accounts=account((190, child, 29, 20))))
    recording.finish(200)
    assert recording.lengths(child) == {ON_CPU: 29 * MS, Microstate.WAIT_CPU: 20 * MS, Microstate.SLEEP: 150 * MS}


def test_switches_are_counted_from_the_accounts_of_batches(recording: Recording) -> None:
    feed = recording.pipeline.feed
    feed(batch(50, EXEC, switches=[(10, PID, Edge.OUT_BLOCKED)]))
    recording.pipeline.count({PID: Account(START_NS + 60 * MS, 10 * MS, 0, 1)})
    assert recording.pipeline.time.asks() == [(PID, PID)]
    feed(batch(60))  # the last records of before
    feed(batch(160, accounts=account((160, PID, 40, 20))))
    feed(batch(260, accounts=account((260, PID, 140, 20))))
    recording.pipeline.stop_counting(200 * MS)
    recording.finish(260)
    assert recording.lengths(PID) == {ON_CPU: 140 * MS, Microstate.WAIT_CPU: 20 * MS, Microstate.SLEEP: 100 * MS}
    assert recording.tally.counted_ns == 200 * MS


@pytest.mark.parametrize("pauses", [False, True])
def test_a_wake_up_amid_counted_switches_does_not_end_a_sleep(pauses: bool, recording: Recording) -> None:
    """It slept several times, and ran in between, which the account tells as a sum."""
    feed = recording.pipeline.feed
    feed(batch(50, EXEC, switches=[(10, PID, Edge.OUT_BLOCKED)]))
    recording.pipeline.count({PID: Account(START_NS + 60 * MS, 10 * MS, 0, 1)})
    feed(batch(60))
    for at_ms, run_ms in ((160, 30), (260, 50)):
        made = batch(at_ms, accounts=account((at_ms, PID, run_ms, 0)))
        made.wakings = Wakings(np.full(2, PID), START_NS + at_ms * MS - np.array([50, 30]) * MS)
        feed(made)
        if pauses:
            recording.pipeline.mute(START_NS + at_ms * MS, muted=False)
    recording.pipeline.stop_counting(200 * MS)
    recording.finish(260)
    assert recording.lengths(PID) == {ON_CPU: 50 * MS, Microstate.SLEEP: 210 * MS}


def test_a_sleep_through_a_pause_is_told_up_to_it_and_from_its_end_on(recording: Recording) -> None:
    """While switches are counted, which no edge of a thread tells of that sleeps."""
    feed = recording.pipeline.feed
    feed(batch(50, EXEC, switches=[(10, PID, Edge.OUT_BLOCKED)], leaving=[(10, PID, 0x400300)]))
    recording.pipeline.count({PID: Account(START_NS + 60 * MS, 10 * MS, 0, 1)})
    feed(batch(60))
    for at_ms, muted in ((160, True), (260, False), (360, None)):
        feed(batch(at_ms, accounts=account((at_ms, PID, 10, 0))))
        if muted is not None:
            recording.pipeline.mute(START_NS + at_ms * MS, muted=muted)
    recording.pipeline.stop_counting(300 * MS)
    recording.finish(360)
    assert recording.ticks()[PID, Microstate.USER_LOCK] == 15 + 10


def test_who_slept_and_is_found_running_where_records_begin_again_has_slept_before(recording: Recording) -> None:
    """It was woken after its last account; by the next one it has run for 50 ms."""
    feed = recording.pipeline.feed
    feed(batch(50, EXEC, switches=[(10, PID, Edge.OUT_BLOCKED)]))
    recording.pipeline.count({PID: Account(START_NS + 60 * MS, 10 * MS, 0, 1)})
    feed(batch(60))
    feed(batch(1060, accounts=account((1060, PID, 10, 0))))
    recording.pipeline.stop_counting(1000 * MS)
    recording.pipeline.record_again([PID])
    feed(batch(1200, switches=[(1110, PID, Edge.OUT_BLOCKED)], accounts=account((1190, PID, 60, 0))))
    recording.finish(1200)
    assert recording.lengths(PID) == {ON_CPU: 60 * MS, Microstate.SLEEP: 1140 * MS}
    assert recording.pipeline.time.ledger.steal_ns == 0


# --- changes --------------------------------------------------------------------------------------


def test_forks_execs_and_ends_become_experiments(recording: Recording) -> None:
    child = 5003
    recording.pipeline.feed(batch(
        50, EXEC, Mapped(START_NS, PID, PID, 0x1000, 0x1000, 0, 1, 1, b"/bin/program"),
        Forked(START_NS + MS, child, child, PID, PID), Executed(START_NS + 2 * MS, child, child, b"other"),
        Forked(START_NS + 3 * MS, PID, PID + 1, PID, PID), RecordsLost(START_NS + 4 * MS, 3, "clock"),
        Exited(START_NS + 30 * MS, child, child)))
    recording.pipeline.sync()
    assert sorted(path.name for path in recording.path.glob("*.er")) == ["_f1.er", "_f1_x1.er"]
    assert b"/bin/program" in (recording.path / "_f1.er" / "map.xml").read_bytes()
    assert b"program 5003" in (recording.path / "_f1_x1.er" / "log.xml").read_bytes()
    assert recording.tally.losses == {"clock": 3}
    assert recording.pipeline.time.living() == [(PID, PID), (PID, PID + 1)]
    recording.finish(60)


# --- packets --------------------------------------------------------------------------------------


def test_time_becomes_ticks_where_it_was_spent(recording: Recording) -> None:
    """Runs for 25 ms with two samples, waits for a lock for 30, and runs for 15 more, to its end."""
    recording.pipeline.feed(batch(
        100, EXEC, Exited(START_NS + 70 * MS, PID, PID),
        switches=[(25, PID, Edge.OUT_BLOCKED), (55, PID, Edge.IN)],
        clock=[(10, PID, 0x400100), (20, PID, 0x400200), (65, PID, 0x400100)], leaving=[(25, PID, 0x400300)]))
    recording.finish(100)
    assert recording.ticks() == {(PID, Microstate.USER): 4, (PID, Microstate.USER_LOCK): 3}
    assert recording.pipeline.total_cpu_ns == 40 * MS
    experiment = open_experiment(recording.path)
    (lock,) = (packet for packet in experiment.packets() if packet["MSTATE"] == Microstate.USER_LOCK)
    stack = int(experiment.stacks.index(lock["FRINFO"].reshape(1))[0])
    assert experiment.stacks.stack(stack).tolist() == [0x400300]
    assert recording.tally.n_settled_ticks == 1  # the 5 ms before 25, and those behind 65


def test_what_was_before_an_exec_is_told_where_the_experiment_goes_on(tmp_path: Path) -> None:
    """Its samples come with the batch that tells of the exec."""
    recording = Recording(tmp_path / "test.1.er", follow="off")
    recording.pipeline.feed(batch(5, EXEC))
    recording.pipeline.feed(batch(150, Executed(START_NS + 149 * MS, PID, PID, b"other"), switches=[
        (103, PID, Edge.OUT_BLOCKED), (133, PID, Edge.IN)], leaving=[(103, PID, 0x400300)],
        clock=[(at, PID, 0x400100) for at in (*range(10, 103, 10), 140)]))
    recording.finish(150)
    assert recording.ticks() == {(PID, Microstate.USER): 12, (PID, Microstate.USER_LOCK): 3}
    experiment = open_experiment(recording.path)
    stacks = experiment.stacks.index(experiment.packets()["FRINFO"])
    assert {tuple(experiment.stacks.stack(int(one)).tolist()) for one in stacks} == {(0x400100,), (0x400300,)}


def with_spawn(made: Batch, child: int) -> Batch:
    """``made``, in which a process is spawned at 20 ms."""
    births = samples([(20, PID, 0x400100)], 0)
    assert births is not None
    made.births = Births(births, np.array([child]), np.array([CLONE_VM | CLONE_VFORK]))
    return made


def test_what_a_spawned_program_did_before_its_exec_is_told(recording: Recording) -> None:
    child = 5003
    made = batch(100, EXEC, Forked(START_NS + 20 * MS, child, child, PID, PID),
                 Executed(START_NS + 60 * MS, child, child, b"other"), switches=[
                     (20, child, Edge.IN), *[(at, child, edge) for at in (70, 80) for edge in (
                         Edge.OUT_BLOCKED, Edge.IN)], (90, child, Edge.OUT_BLOCKED)],
                 clock=[(at, child, 0x400100) for at in (30, 40, 50, 65)])
    recording.pipeline.feed(with_spawn(made, child))
    (recorded,) = [one for one in recording.experiments.open_ones() if one.image.pid == child]
    assert recorded.n_switches.tolist() == [3, 0]
    recording.pipeline.sync()
    recording.finish(100)
    assert recording.ticks("_c1.er") == {(child, Microstate.USER): 7, (child, Microstate.SLEEP): 1}


def test_who_never_has_a_stack_has_its_time_told_before_its_end(recording: Recording) -> None:
    """It sleeps, and no record says where: with the batch behind the one that told of its first turn."""
    other = PID + 1
    recording.pipeline.feed(batch(50, EXEC, Forked(START_NS + 10 * MS, PID, other, PID, PID),
                                  switches=[(40, other, Edge.IN), (41, other, Edge.OUT_BLOCKED)]))
    assert (other, Microstate.WAIT_CPU) not in recording.ticks()
    recording.pipeline.feed(batch(60))
    assert recording.ticks()[other, Microstate.WAIT_CPU] == 3
    recording.finish(100)
    assert recording.ticks()[other, Microstate.WAIT_CPU] == 3


def test_who_has_no_stack_has_the_time_itself(recording: Recording) -> None:
    """Nobody was met by the clock yet: the only stack that is known is that of another thread's departure."""
    other = PID + 1
    recording.pipeline.feed(batch(
        100, EXEC, Forked(START_NS + 10 * MS, PID, other, PID, PID), Exited(START_NS + 50 * MS, PID, other),
        switches=[(5, PID, Edge.OUT_BLOCKED), (20, other, Edge.IN)], leaving=[(5, PID, 0x400300)]))
    recording.finish(100)
    told = recording.ticks()
    assert told[other, Microstate.USER] == 3
    assert told.get((PID, Microstate.USER), 0) <= 1
    packets, stacks = open_experiment(recording.path).packets(), open_experiment(recording.path).stacks
    (row,) = packets[(packets["THRID"] == other) & (packets["MSTATE"] == Microstate.USER)]
    assert stacks.stack(int(stacks.index(row["FRINFO"].reshape(1))[0])).tolist() == [0x400300]


@pytest.mark.parametrize("meanwhile", ["a batch", "a sample", "a batch that its turn has begun in",
                                       "two batches that its turn has begun in"])
def test_who_waits_for_its_first_run_has_the_stack_of_it(recording: Recording, meanwhile: str) -> None:
    pipeline = recording.pipeline
    pipeline.feed(batch(30, EXEC, Forked(START_NS + 10 * MS, PID, PID + 1, PID, PID), clock=[(20, PID, 0x400100)]))
    if meanwhile == "a sample":
        pipeline.sample(START_NS + 30 * MS, START_NS + 30 * MS, "")
    else:
        pipeline.flush_waiting(START_NS + 30 * MS)
    turn = [(70, PID + 1, Edge.IN)]
    if meanwhile.endswith("that its turn has begun in"):
        pipeline.feed(batch(75, switches=turn))
        pipeline.flush_waiting(START_NS + 75 * MS)
        turn = []
    if meanwhile.startswith("two batches"):
        pipeline.feed(batch(78))
    pipeline.feed(batch(100, switches=turn, clock=[(80, PID + 1, 0x400200)]))
    recording.finish(100)
    experiment = open_experiment(recording.path)
    waiting = [packet for packet in experiment.packets() if packet["MSTATE"] == Microstate.WAIT_CPU]
    assert sum(int(packet["NTICK"]) for packet in waiting) == 6
    stacks = experiment.stacks.index(np.array([packet["FRINFO"] for packet in waiting]))
    assert {tuple(experiment.stacks.stack(int(stack)).tolist()) for stack in stacks} == {(0x400200,)}


def stacks_of(recording: Recording, state: int) -> dict[int, int]:
    """Ticks of a state by the leaf of their stacks."""
    experiment, found = open_experiment(recording.path), Counter[int]()
    for packet in experiment.packets():
        if packet["MSTATE"] == state:
            stack = int(experiment.stacks.index(packet["FRINFO"].reshape(1))[0])
            found[int(experiment.stacks.stack(stack)[0])] += int(packet["NTICK"])
    return dict(found)


def test_a_wait_whose_departure_is_unknown_is_where_the_thread_was_before(recording: Recording) -> None:
    """And not where it waits later, in the same batch."""
    recording.pipeline.feed(batch(
        200, EXEC, clock=[(10, PID, 0x400100), (130, PID, 0x400200)], leaving=[(60, PID, 0x400300)],
        switches=[(20, PID, Edge.OUT_BLOCKED), (40, PID, Edge.IN), (60, PID, Edge.OUT_BLOCKED), (90, PID, Edge.IN),
                  (140, PID, Edge.OUT_BLOCKED), (150, PID, Edge.IN)]))
    recording.finish(200)
    assert stacks_of(recording, Microstate.USER_LOCK) == {0x400100: 2, 0x400300: 3, 0x400200: 1}
    assert recording.tally.n_borrowed_stacks == 2


@pytest.mark.parametrize(("reason", "ticks"), [(Reason.UNKNOWN, {0x400300: 3, 0x400200: 2, 0x400400: 4}),
                                               (Reason.LOCK, {0x400300: 9})], ids=["its own code", "a call"])
def test_who_is_preempted_in_its_own_code_is_where_its_clock_last_found_it(recording: Recording, reason: int,
                                                                          ticks: dict[int, int]) -> None:
    """Whatever stack it once had with the same registers. In a call these tell how it came there."""
    first = batch(100, EXEC, clock=[(10, PID, 0x400100)], leaving=[(20, PID, 0x400300)],
                  switches=[(20, PID, Edge.OUT_PREEMPTED), (50, PID, Edge.IN)])
    assert first.leaving is not None
    first.leaving.mode[:] = reason
    recording.pipeline.feed(first)
    second = batch(200, clock=[(110, PID, 0x400200), (150, PID, 0x400400)],
                   switches=[(120, PID, Edge.OUT_PREEMPTED), (140, PID, Edge.IN),
                             (160, PID, Edge.OUT_PREEMPTED), (200, PID, Edge.IN)])
    place = np.full(2, 0x400300, dtype=np.uint64)
    second.sites = Sites(*who([(120, PID, 0), (160, PID, 0)]), ip=place, sp=0 * place, bp=0 * place)
    recording.pipeline.feed(second)
    recording.finish(200)
    assert stacks_of(recording, Microstate.WAIT_CPU) == ticks


@pytest.mark.parametrize(("found", "stack", "n_unknown"), [(0x400300, (0x400300, 0x400001), 0),
                                                           (0x400400, (0x400300,), 2)],
                         ids=["still there", "gone on"])
def test_who_waits_with_its_leaf_alone_is_read_once_and_known_from_then_on(
        tmp_path: Path, found: int, stack: tuple[int, ...], n_unknown: int) -> None:
    """Unless it has gone on by then. It waits twice at the same place, which is known the second time."""
    world = Read(found)
    recording = Recording(tmp_path / "test.1.er", world=world)
    feed, place = recording.pipeline.feed, np.full(1, 0x400300, dtype=np.uint64)
    for begin_ms, change in ((20, (EXEC,)), (220, ())):
        made = batch(begin_ms + 80, *change, switches=[(begin_ms, PID, Edge.OUT_BLOCKED)])
        made.sites = Sites(*who([(begin_ms, PID, 0)]), ip=place, sp=0 * place, bp=0 * place)
        feed(made)
        recording.pipeline.flush_waiting(START_NS + (begin_ms + 80) * MS)
        feed(batch(begin_ms + 180, switches=[(begin_ms + 100, PID, Edge.IN)]))
    assert recording.tally.n_unknown_sites == n_unknown
    assert world.n_read == (1 if n_unknown == 0 else 2)
    recording.finish(400)
    experiment = open_experiment(recording.path)
    waits = [packet for packet in experiment.packets() if packet["MSTATE"] > Microstate.TRAP]
    assert sum(int(packet["NTICK"]) for packet in waits) == 20
    stacks = experiment.stacks.index(np.array([packet["FRINFO"] for packet in waits]))
    assert {tuple(experiment.stacks.stack(int(row)).tolist()) for row in stacks} == {stack}


@pytest.mark.parametrize("is_deep", [False, True])
def test_all_that_wait_with_their_leaf_alone_are_read_at_once(tmp_path: Path, is_deep: bool) -> None:
    """A hundred, in one look; where that is too short, once more, a few at a time."""
    world, tids = Read(0x400300, is_deep), [PID, *range(PID + 1, PID + 101)]
    recording, place = Recording(tmp_path / "test.1.er", world=world), np.full(101, 0x400300, dtype=np.uint64)
    births = [Forked(START_NS + MS, PID, tid, PID, PID) for tid in tids[1:]]
    made = batch(100, EXEC, *births,
                 switches=[(ms, tid, edge) for ms, edge in ((10, Edge.IN), (20, Edge.OUT_BLOCKED)) for tid in tids])
    made.sites = Sites(*who([(20, tid, 0) for tid in tids]), ip=place, sp=0 * place, bp=0 * place)
    recording.pipeline.feed(made)
    n_left = []
    for ms in (100, 200, 300, 400, 500, 600):
        recording.pipeline.flush_waiting(START_NS + ms * MS)
        n_left.append(recording.tally.n_unknown_sites)
        recording.pipeline.feed(batch(ms + 100))
    assert n_left == ([101, 69, 37, 5, 0, 0] if is_deep else [0] * 6)
    assert world.n_read == (202 if is_deep else 101)
    recording.finish(700)


class Torn(Read):
    """One whose stacks end short, as in code without rules."""

    def blocked(self, threads: Sequence[Sleeper], now_ns: int, stack_words: int) -> list[ClockSamples]:
        found = super().blocked(threads, now_ns, stack_words)
        self._stop = Stop.NO_RULE
        return found


def test_who_is_seen_to_wait_waits_for_that_though_his_stack_is_not_whole(tmp_path: Path) -> None:
    """He left at a place where nobody had been seen."""
    world, place = Torn(0x400300, reason=Reason.LOCK), np.full(1, 0x400300, dtype=np.uint64)
    recording = Recording(tmp_path / "test.1.er", world=world)
    made = batch(100, EXEC, switches=[(20, PID, Edge.OUT_BLOCKED)])
    made.sites = Sites(*who([(20, PID, 0)]), ip=place, sp=0 * place, bp=0 * place)
    recording.pipeline.feed(made)
    for ms in (100, 200, 300):
        recording.pipeline.flush_waiting(START_NS + ms * MS)
        recording.pipeline.feed(batch(ms + 100))
    recording.finish(400)
    assert recording.lengths(PID)[Microstate.USER_LOCK] == 380 * MS


def test_who_was_not_asked_for_want_of_room_is_told_when_it_has_been(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty are asked once, and their next departures are lost, too; of fifteen that are new nothing is known, and
    there is room for ten. All wait for a lock, and nothing else is told of them."""
    for name, n in (("_BUDGET", 25), ("_AT_ONCE", 25), ("_MORE_EACH_TIME", 5)):
        monkeypatch.setattr(blocked_stacks, name, n)
    world = Read(0x400300, reason=Reason.LOCK)
    recording = Recording(tmp_path / "test.1.er", world=world)
    old, new = range(PID + 1, PID + 21), range(PID + 21, PID + 36)
    for begin_ms, born, tids in ((0, old, [*old]), (100, new, [*old, *new])):
        births = [Forked(START_NS + (begin_ms + 1) * MS, PID, tid, PID, PID) for tid in born]
        recording.pipeline.feed(batch(
            begin_ms + 100, *([EXEC] if not begin_ms else []), *births,
            switches=[(begin_ms + ms, tid, edge) for ms, edge in ((10, Edge.IN), (20, Edge.OUT_BLOCKED))
                      for tid in tids]))
        recording.pipeline.flush_waiting(START_NS + (begin_ms + 100) * MS)
    n_read = [world.n_read]
    for ms in (300, 400, 500):
        recording.pipeline.feed(batch(ms))
        recording.pipeline.flush_waiting(START_NS + ms * MS)
        n_read.append(world.n_read)
    assert n_read == [30, 35, 40, 45]  # ten of the new ones, the other five, then for the stacks of the old ones
    recording.finish(600)
    assert {recording.lengths(tid)[Microstate.SLEEP] for tid in (*old, *new)} == {0}
    assert {recording.lengths(tid)[Microstate.USER_LOCK] for tid in new} == {480 * MS}


def test_a_thread_without_samples_has_those_of_its_kind(recording: Recording) -> None:
    """The others that the process has started, not its first thread; while it lived, else before that."""
    short, births = PID + 2, [Forked(START_NS + ms * MS, PID, PID + tid, PID, PID) for ms, tid in ((1, 1), (60, 2))]
    recording.pipeline.feed(batch(
        100, EXEC, *births, Exited(START_NS + 90 * MS, PID, short),
        clock=[(10, PID + 1, 0x400200), (70, PID, 0x400100)],
        switches=[(2, PID + 1, Edge.IN), (30, PID + 1, Edge.OUT_BLOCKED), (62, short, Edge.IN),
                  (88, short, Edge.OUT_BLOCKED)]))
    recording.pipeline.feed(batch(200))
    recording.finish(200)
    experiment = open_experiment(recording.path)
    told = [packet for packet in experiment.packets() if packet["THRID"] == short and packet["MSTATE"] <= 2]
    assert sum(int(packet["NTICK"]) for packet in told) >= 2  # it ran for 26 ms
    rows = experiment.stacks.index(np.array([packet["FRINFO"] for packet in told]))
    assert {int(experiment.stacks.stack(int(row))[0]) for row in rows} == {0x400200}


def test_the_first_wait_whose_departure_is_unknown_is_where_the_thread_is_next(recording: Recording) -> None:
    recording.pipeline.feed(batch(
        200, EXEC, clock=[(50, PID, 0x400100)], leaving=[(60, PID, 0x400300)],
        switches=[(20, PID, Edge.OUT_BLOCKED), (40, PID, Edge.IN), (60, PID, Edge.OUT_BLOCKED), (90, PID, Edge.IN)]))
    recording.finish(200)
    assert stacks_of(recording, Microstate.USER_LOCK) == {0x400100: 2, 0x400300: 3}


def test_a_tick_for_an_unknown_wait_that_comes_late_is_where_the_thread_was_then(recording: Recording) -> None:
    """It waits for 1 ms at a place, for 6 somewhere, and in the next batch for 5 at another place: the tick that is
    due then is for the 6."""
    feed = recording.pipeline.feed
    feed(batch(100, EXEC, clock=[(10, PID, 0x400100)], leaving=[(5, PID, 0x400300)],
               switches=[(5, PID, Edge.OUT_BLOCKED), (6, PID, Edge.IN), (20, PID, Edge.OUT_BLOCKED),
                         (26, PID, Edge.IN)]))
    feed(batch(200, leaving=[(110, PID, 0x400500)], switches=[(110, PID, Edge.OUT_BLOCKED), (115, PID, Edge.IN)]))
    recording.finish(200)
    assert stacks_of(recording, Microstate.USER_LOCK) == {0x400100: 1}


def test_an_overview_sample_has_the_waits_of_pauses_as_it_has_time_on_cpus(recording: Recording) -> None:
    """One thread runs, the other one sleeps, for a second each."""
    pipeline, other = recording.pipeline, PID + 1
    pipeline.feed(batch(100, EXEC, Forked(START_NS, PID, other, PID, PID), switches=[
        (0, other, Edge.IN), (0, other, Edge.OUT_BLOCKED)]))
    pipeline.mute(START_NS + 100 * MS, muted=True)
    pipeline.feed(batch(900))
    pipeline.mute(START_NS + 900 * MS, muted=False)
    pipeline.feed(batch(1000))
    pipeline.flush_waiting(START_NS + 1000 * MS)
    states_ns = pipeline.overview.usage(recording.founder, START_NS + 1000 * MS).states_ns
    assert (states_ns[Microstate.USER], states_ns[Microstate.SLEEP]) == (1000 * MS, 1000 * MS)


def user_ns(path: Path) -> int:
    return sum(sample.states_ns[Microstate.USER] for sample in open_experiment(path).samples)


def test_the_last_overview_sample_has_the_time_of_those_that_go_on_once(recording: Recording) -> None:
    """Two threads wait at the end, a third one has ended; one child runs on, the other one waits, after an exec."""
    child, other = 5001, 5002
    recording.pipeline.feed(batch(
        100, EXEC, *[Forked(START_NS + 10 * MS, PID, tid, PID, PID) for tid in (PID + 1, PID + 2)],
        *[Forked(START_NS + 10 * MS, pid, pid, PID, PID) for pid in (child, other)],
        Exited(START_NS + 70 * MS, PID, PID + 2), switches=[
            (20, PID, Edge.OUT_BLOCKED), (20, PID + 1, Edge.IN), (60, PID + 1, Edge.OUT_BLOCKED),
            (60, PID + 2, Edge.IN), (70, other, Edge.IN), (80, other, Edge.OUT_BLOCKED)]))
    recording.pipeline.feed(batch(160, Executed(START_NS + 120 * MS, other, other, b"other"), switches=[
        (110, other, Edge.IN), (140, other, Edge.OUT_BLOCKED), (150, child, Edge.IN)]))
    recording.finish(200)
    assert {path.name: user_ns(path) / MS for path in (recording.path, *recording.path.glob("*.er"))} == {
        "test.1.er": 20 + 40 + 10, "_f1.er": 50, "_f2.er": 10 + 10, "_f2_x1.er": 20}


def test_a_pause_writes_nothing_and_loses_no_time(recording: Recording) -> None:
    recording.pipeline.output.muted = True
    recording.pipeline.feed(batch(100, EXEC, switches=[(50, PID, Edge.OUT_BLOCKED)], clock=[(20, PID, 0x400100)]))
    recording.pipeline.flush_waiting(START_NS + 100 * MS)
    recording.pipeline.output.muted = False
    recording.pipeline.feed(batch(150))
    recording.finish(150)
    assert recording.ticks() == {(PID, Microstate.SLEEP): 5, (PID, Microstate.USER): 3}
    assert [part.muted for part in recording.taken] == [True, True, False]


def test_what_a_thread_runs_in_a_pause_is_not_told_by_a_sample_behind_it(recording: Recording) -> None:
    """It runs all the time, and its first sample comes late."""
    recording.pipeline.mute(START_NS, muted=True)
    recording.pipeline.feed(batch(95, EXEC))
    recording.pipeline.mute(START_NS + 95 * MS, muted=False)
    recording.pipeline.feed(batch(154, clock=[(137, PID, 0x400100)]))
    recording.finish(154)
    packets = open_experiment(recording.path).packets()
    assert packets["NTICK"][0] == 4
    assert recording.ticks() == {(PID, Microstate.USER): 6}


def test_what_threads_waited_before_a_pause_in_which_they_end_is_told_behind_it(recording: Recording) -> None:
    """Forty sleep for 9 ms until the pause, less than a tick each."""
    tids = range(PID + 1, PID + 41)
    recording.pipeline.feed(batch(
        19, EXEC, *(Forked(START_NS + 9 * MS, PID, tid, PID, PID) for tid in tids),
        switches=[*((9 + edge, tid, edge) for edge in (Edge.IN, Edge.OUT_BLOCKED) for tid in tids),
                  (18, PID, Edge.OUT_BLOCKED)]))
    recording.pipeline.mute(START_NS + 19 * MS, muted=True)
    recording.pipeline.feed(batch(100, *(Exited(START_NS + 90 * MS, PID, tid) for tid in tids)))
    assert not recording.ticks()
    recording.pipeline.mute(START_NS + 100 * MS, muted=False)
    recording.finish(101)
    assert sum(n for (_, state), n in recording.ticks().items() if state == Microstate.SLEEP) == 36


SEEN = "n[tid, state] = count()", "ms[tid, state] = sum(offcpu / 1ms)", "ran[tid] = sum(oncpu / 1ms)"


def aggregated(recording: Recording) -> tuple[dict[str, dict[Any, int]], dict[str, dict[Any, int]]]:
    """What was seen from beginning to end, and what was not: by name, and by TID and state."""
    parts: tuple[dict[str, dict[Any, int]], ...] = {}, {}
    for stored in open_experiment(recording.path).aggregations:
        keys = [(tid, stored.names[state[0]].decode()) if state else tid for tid, *state in stored.keys.tolist()]
        values = dict(enumerate(zip(keys, stored.states[:, 0].tolist(), strict=True)))
        for part, rows in zip(parts, (range(stored.n_recorded), range(stored.n_recorded, len(keys))), strict=True):
            part[stored.expression.partition("[")[0]] = dict(values[row] for row in rows if values[row][1])
    recorded, synthetic = parts
    return recorded, synthetic


def test_what_attaching_and_the_end_cut_is_no_value_that_was_seen(tmp_path: Path) -> None:
    """One thread sleeps all the time; another one twice, of which one sleep had begun before, and lies in a third one
    at the end."""
    recording = Recording(tmp_path / "test.1.er", SEEN)
    found = [Found(tid, Edge.OUT_BLOCKED, Reason.SLEEP, None) for tid in (PID, PID + 1)]
    recording.pipeline.take_over(PID, "", found, [], batch(0))
    recording.pipeline.feed(batch(100, switches=[
        (20, PID + 1, Edge.IN), (30, PID + 1, Edge.OUT_BLOCKED), (70, PID + 1, Edge.IN),
        (75, PID + 1, Edge.OUT_BLOCKED)]))
    recording.pipeline.flush_waiting(START_NS + 100 * MS)
    recording.pipeline.feed(batch(200))
    recording.finish(200)
    recorded, synthetic = aggregated(recording)
    sleeper, other = (PID, "sleep"), (PID + 1, "sleep")
    assert recorded == {"n": {other: 1, (PID + 1, "oncpu"): 2}, "ms": {other: 40}, "ran": {PID + 1: 15}}
    assert synthetic == {"n": {sleeper: 1, other: 2}, "ms": {sleeper: 200, other: 20 + 125}, "ran": {}}


def test_the_run_in_which_a_thread_ends_is_a_value(tmp_path: Path) -> None:
    recording = Recording(tmp_path / "test.1.er", ("ran[tid] = sum(runlength / 1ms)",))
    recording.pipeline.feed(batch(100, EXEC, Exited(START_NS + 70 * MS, PID, PID), switches=[
        (25, PID, Edge.OUT_BLOCKED), (55, PID, Edge.IN)]))
    recording.finish(100)
    assert aggregated(recording) == ({"ran": {PID: 25 + 15}}, {"ran": {}})


OUT, IN = Edge.OUT_BLOCKED, Edge.IN
SLEEPS, RUNS = (PID, "sleep"), (PID, "oncpu")


@pytest.mark.parametrize(("before", "within", "behind", "seen", "cut"), [
    ([], [], [(170, PID, OUT), (180, PID, IN)],
     {"n": {SLEEPS: 1, RUNS: 1}, "ms": {SLEEPS: 10}, "ran": {PID: 20}},
     {"n": {RUNS: 2}, "ms": {}, "ran": {PID: 100 + 10}}),
    ([], [(110, PID, OUT), (120, PID, IN)], [(170, PID, OUT), (180, PID, IN)],
     {"n": {SLEEPS: 1, RUNS: 1}, "ms": {SLEEPS: 10}, "ran": {PID: 20}},
     {"n": {RUNS: 2}, "ms": {}, "ran": {PID: 100 + 10}}),
    ([(30, PID, OUT)], [], [(180, PID, IN)],
     {"n": {RUNS: 2}, "ms": {}, "ran": {PID: 30 + 20}},
     {"n": {SLEEPS: 2}, "ms": {SLEEPS: 70 + 20}, "ran": {}}),
    ([(30, PID, OUT)], [(110, PID, IN), (150, PID, OUT)], [(180, PID, IN)],
     {"n": {RUNS: 2}, "ms": {}, "ran": {PID: 30 + 20}},
     {"n": {SLEEPS: 2}, "ms": {SLEEPS: 70 + 20}, "ran": {}}),
], ids=["a run over it", "a run up to it, and one behind it", "a sleep over it", "a sleep up to it, and one behind it"])
def test_what_a_pause_cuts_is_no_value_that_was_seen(
        tmp_path: Path, before: list[Any], within: list[Any], behind: list[Any], seen: object, cut: object) -> None:
    """Of 60 ms. Of what goes on behind it, the time in it is not counted."""
    recording = Recording(tmp_path / "test.1.er", SEEN)
    recording.pipeline.feed(batch(100, EXEC, switches=before))
    recording.pipeline.mute(START_NS + 100 * MS, muted=True)
    recording.pipeline.feed(batch(160, switches=within))
    recording.pipeline.mute(START_NS + 160 * MS, muted=False)
    recording.pipeline.feed(batch(200, Exited(START_NS + 200 * MS, PID, PID), switches=behind))
    recording.finish(200)
    assert aggregated(recording) == (seen, cut)


def test_a_pause_begins_and_ends_when_it_is_told_to(tmp_path: Path) -> None:
    """Later than the last batch before it: what threads wait for until then is told, and what follows is not."""
    recording = Recording(tmp_path / "test.1.er", SEEN)
    recording.pipeline.feed(batch(100, EXEC, switches=[(30, PID, OUT)]))
    recording.pipeline.mute(START_NS + 115 * MS, muted=True)
    recording.pipeline.feed(batch(160))
    recording.pipeline.mute(START_NS + 175 * MS, muted=False)
    recording.pipeline.feed(batch(200, Exited(START_NS + 200 * MS, PID, PID), switches=[(195, PID, IN)]))
    recording.finish(200)
    recorded, synthetic = aggregated(recording)
    assert recorded == {"n": {RUNS: 2}, "ms": {}, "ran": {PID: 30 + 5}}
    assert synthetic == {"n": {SLEEPS: 2}, "ms": {SLEEPS: 85 + 20}, "ran": {}}
    assert recording.ticks()[PID, Microstate.SLEEP] == (85 + 20) // 10


def test_who_begins_with_a_pause_has_seen_nothing_before_its_end(tmp_path: Path) -> None:
    """Threads have run and slept before the pause is told of, which is before the first batch."""
    recording = Recording(tmp_path / "test.1.er", SEEN)
    recording.pipeline.mute(START_NS + 70 * MS, muted=True)
    recording.pipeline.feed(batch(100, EXEC, switches=[(30, PID, OUT), (50, PID, IN)]))
    recording.pipeline.mute(START_NS + 110 * MS, muted=False)
    recording.pipeline.feed(batch(200, Exited(START_NS + 200 * MS, PID, PID), switches=[
        (150, PID, OUT), (180, PID, IN)]))
    recording.finish(200)
    recorded, synthetic = aggregated(recording)
    assert recorded == {"n": {SLEEPS: 1, RUNS: 1}, "ms": {SLEEPS: 30}, "ran": {PID: 20}}
    assert synthetic == {"n": {RUNS: 1}, "ms": {}, "ran": {PID: 40}}


def test_a_sleep_that_had_begun_before_was_not_seen_however_it_is_told(tmp_path: Path) -> None:
    """A thread is found asleep. Of its sleep there are three parts, and the later ones begin within the recording."""
    recording = Recording(tmp_path / "test.1.er", SEEN)
    recording.pipeline.take_over(PID, "", [Found(PID, Edge.OUT_BLOCKED, Reason.SLEEP, None)], [], batch(0))
    for at_ms in (40, 80):
        recording.pipeline.feed(batch(at_ms))
        recording.pipeline.flush_waiting(START_NS + at_ms * MS)
    recording.pipeline.feed(batch(100, Exited(START_NS + 95 * MS, PID, PID), switches=[(90, PID, IN)]))
    recording.finish(100)
    assert aggregated(recording) == (
        {"n": {RUNS: 1}, "ms": {}, "ran": {PID: 5}}, {"n": {SLEEPS: 1}, "ms": {SLEEPS: 90}, "ran": {}})


def test_samples_in_a_pause_have_no_part_of_the_run_behind_it(tmp_path: Path) -> None:
    """A run over a pause of 60 ms: in its 100 ms before there is one stack, in the 40 ms behind another one."""
    recording = Recording(tmp_path / "test.1.er", ("ran[ustack] = sum(oncpu / 1ms)",))
    before, within, behind = 0x400100, 0x400200, 0x400300
    recording.pipeline.feed(batch(100, EXEC, clock=[(10, PID, before)]))
    recording.pipeline.mute(START_NS + 100 * MS, muted=True)
    recording.pipeline.feed(batch(160, clock=[(at, PID, within) for at in range(110, 160, 10)]))
    recording.pipeline.mute(START_NS + 160 * MS, muted=False)
    recording.pipeline.feed(batch(200, Exited(START_NS + 200 * MS, PID, PID), clock=[(170, PID, behind)]))
    recording.finish(200)
    (stored,) = open_experiment(recording.path).aggregations
    assert (stored.n_recorded, stored.states[:, 0].tolist()) == (0, [100, 40])


def test_the_first_span_of_a_thread_that_is_born_was_seen_whole(tmp_path: Path) -> None:
    """In a process that was found: its first thread's run had begun before, but not the other one's sleep and run."""
    recording = Recording(tmp_path / "test.1.er", SEEN)
    recording.pipeline.take_over(PID, "", [Found(PID, Edge.OUT_BLOCKED, Reason.SLEEP, None)], [], batch(0))
    born, over = PID + 1, START_NS + 90 * MS
    lives = Forked(START_NS + 10 * MS, PID, born, PID, PID), Exited(over, PID, born)
    recording.pipeline.feed(batch(100, *lives, switches=[
        (20, born, Edge.IN), (30, born, Edge.OUT_BLOCKED), (50, born, Edge.IN)]))
    recording.finish(100)
    recorded, synthetic = aggregated(recording)
    assert recorded["ran"] == {born: 10 + 40}
    assert recorded["n"] == {(born, "wait"): 1, (born, "oncpu"): 2, (born, "sleep"): 1}
    assert synthetic == {"n": {(PID, "sleep"): 1}, "ms": {(PID, "sleep"): 100}, "ran": {}}


def test_the_sleep_that_a_thread_ends_in_is_a_value(tmp_path: Path) -> None:
    """It is killed, and is not seen to run again. Parts of the sleep were told before."""
    recording = Recording(tmp_path / "test.1.er", SEEN)
    recording.pipeline.feed(batch(50, EXEC, switches=[(30, PID, Edge.OUT_BLOCKED)]))
    recording.pipeline.flush_waiting(START_NS + 50 * MS)
    recording.pipeline.feed(batch(100, Exited(START_NS + 80 * MS, PID, PID)))
    recording.finish(100)
    assert aggregated(recording) == (
        {"n": {(PID, "oncpu"): 1, (PID, "sleep"): 1}, "ms": {(PID, "sleep"): 50}, "ran": {PID: 30}},
        {"n": {}, "ms": {}, "ran": {}})


def test_a_thread_has_nothing_of_the_one_before_it_at_its_slot(tmp_path: Path) -> None:
    """One ends in a call, and has a sample behind its end; another one, born later, is told in the same columns."""
    one, other, leaf = PID + 1, PID + 2, 0x400100
    recording = Recording(tmp_path / "test.1.er", (
        f"ran[ustack] = sum(oncpu / 1ms) / tid == {other} /", f"off[syscall] = sum(offcpu / 1ms) / tid == {other} /"))
    first = batch(100, EXEC, Forked(START_NS + 10 * MS, PID, one, PID, PID), Exited(START_NS + 70 * MS, PID, one),
                  switches=[(20, one, IN), (50, one, OUT)], leaving=[(50, one, leaf)], clock=[(75, one, leaf)])
    first.calls = np.array([b"futex"])
    recording.pipeline.feed(first)
    recording.pipeline.feed(batch(200, Forked(START_NS + 110 * MS, PID, other, PID, PID),
                                  Exited(START_NS + 180 * MS, PID, other), switches=[(120, other, IN)]))
    slots = {tid: {int(slot) for part in recording.taken for slot in part.slot[part.tid == tid]}
             for tid in (one, other)}
    assert slots[one] == slots[other]
    recording.finish(200)
    ran, off = open_experiment(recording.path).aggregations
    assert (ran.keys.tolist(), ran.states.tolist()) == ([[NOT_SAMPLED]], [[60]])
    assert ([off.names[key] for key, in off.keys.tolist()], off.states.tolist()) == ([b"<Unknown>"], [[10]])


def test_many_short_processes_get_their_ticks_together(recording: Recording) -> None:
    """Seven children of 3 ms each have no sample: two ticks, of the 21 ms."""
    changes: list[Change] = [EXEC]
    switches = []
    for i in range(7):
        changes += [Forked(START_NS + 10 * i * MS, 5001 + i, 5001 + i, PID, PID),
                    Exited(START_NS + (10 * i + 4) * MS, 5001 + i, 5001 + i)]
        switches.append((10 * i + 1, 5001 + i, Edge.IN))
    leaving = [(10 * i + 2, 5001 + i, 0x400100) for i in range(7)]
    recording.pipeline.feed(batch(100, *changes, switches=switches, leaving=leaving))
    recording.finish(100)
    children = [recording.ticks(f"_f{i + 1}.er") for i in range(7)]
    assert sum(n for ticks in children for (_, state), n in ticks.items() if state == Microstate.USER) == 2


@pytest.mark.parametrize("seed", range(16))
def test_no_image_is_told_an_interval_more_or_less_than_it_had(recording: Recording, seed: int) -> None:
    """A founder of up to nine threads that ends among children, some of which the clock has met."""
    random = np.random.default_rng(seed)
    threads = {PID + i: random.uniform(0.1, 19.9) for i in range(1 + seed % 9)}
    children = {5001 + i: random.uniform(0.1, 9.9 if seed % 2 else 2) for i in range(random.integers(1, 31))}
    changes: list[Change] = [EXEC]
    changes += [Forked(START_NS, PID, tid, PID, PID) for tid in threads if tid != PID]
    changes += [Forked(START_NS, tid, tid, PID, PID) for tid in children]
    switches, clock, leaving = [], [], []
    for tid, ran_ms in {**threads, **children}.items():
        changes.append(Exited(START_NS + round((100 + ran_ms) * MS), PID if tid in threads else tid, tid))
        switches += [(1, tid, Edge.OUT_BLOCKED)] * (tid == PID) + [(100, tid, Edge.IN)]
        leaving.append((1, tid, 0x400100))
        clock += [(100 + at, tid, 0x400100) for at in np.arange(random.uniform(0, 10), ran_ms, 10)]
    threads[PID] += 1  # until it slept
    changes.sort(key=lambda change: change.time_ns)
    recording.pipeline.feed(batch(150, *changes, switches=switches, clock=sorted(clock), leaving=leaving))
    recording.finish(150)
    had_ms = [sum(threads.values()), *children.values()]
    told_ms = [10 * sum(n for (_, state), n in recording.ticks(lineage).items() if state <= Microstate.TRAP)
               for lineage in ["", *(f"_f{i + 1}.er" for i in range(len(children)))]]
    assert np.abs(np.subtract(told_ms, had_ms)).max() < 10
    assert abs(sum(told_ms) - sum(had_ms)) < 10


# --- what is over ---------------------------------------------------------------------------------


def reachable(root: object) -> int:
    """How many objects something keeps, code and types left out."""
    seen, left = {id(root)}, [root]
    while left:
        for each in gc.get_referents(left.pop()):
            if id(each) not in seen and not isinstance(each, type | ModuleType | FunctionType | MethodType):
                seen.add(id(each))
                left.append(each)
    return len(seen)


def lives(turn: int, n: int, every_ms: int = 100) -> Batch:
    """``n`` processes that are made, run a program and end, and as many threads of the founder, each a millisecond
    behind the one before. Turns come ``every_ms``."""
    changes: list[Change] = []
    switches = []
    at_ms = every_ms * turn + 100
    for i in range(n):
        tid, from_ns = 5001 + (turn * n + i) % 30_000, START_NS + (at_ms + i) * MS
        changes += [Forked(from_ns, tid, tid, PID, PID), Executed(from_ns + MS, tid, tid, b"other"),
                    Forked(from_ns + MS, PID, tid + 40_000, PID, PID), Exited(from_ns + 9 * MS, PID, tid + 40_000),
                    Exited(from_ns + 9 * MS, tid, tid)]
        switches.append((at_ms + i, tid, Edge.IN))
    changes.sort(key=lambda change: change.time_ns)
    made = batch(at_ms + every_ms - 1, *changes, switches=switches,
                 leaving=[(at, tid, 0x400100) for at, tid, _ in switches])
    tids, ends_ns = np.array([tid for _, tid, _ in switches]), START_NS + (at_ms + np.arange(n) + 10) * MS
    made.ends = Ends(np.repeat(ends_ns, 2), np.repeat(tids, 2), np.zeros(2 * n, dtype=np.int32),
                     np.zeros(2 * n, dtype=np.int64), np.tile([False, True], n))
    return made


@pytest.mark.parametrize("follow", ["on", "=nobody"])
def test_nothing_is_kept_of_processes_that_are_over(recording: Recording, follow: str) -> None:
    """Eight turns keep as much as sixteen."""
    recording.experiments.follow = Follow(follow)
    recording.pipeline._taps._takes.clear()
    recording.pipeline.feed(batch(50, EXEC))
    kept = []
    for turn in range(16):
        recording.pipeline.feed(lives(turn, 40))
        recording.pipeline.sync()
        if turn in (7, 15):
            kept.append(reachable(recording.pipeline))
    recording.finish(1800)
    assert kept[1] - kept[0] < 8 * 40 / 4  # not one object for every fourth of the processes


def told_ends(*rows: tuple[float, int, int, bool]) -> Ends:
    """Ms, tid, how often the CPU had switched, whether it is dead; all on one CPU."""
    at_ms, tid, n_switches, dead = zip(*rows, strict=True)
    return Ends(START_NS + np.array([round(at * MS) for at in at_ms]), np.array(tid), np.zeros(len(rows), np.int32),
                np.array(n_switches), np.array(dead))


def clocks(at_ms: float, run_ms: float) -> Clocks:
    return Clocks(*(np.array([value]) for value in (START_NS + round(at_ms * MS), PID, round(run_ms * MS))))


@pytest.mark.parametrize("told", ["at once", "clock behind", "clock before", "clock amid", "no clock"])
def test_an_end_over_two_batches_is_told_once_whatever_tells_it(recording: Recording, told: str) -> None:
    """It has run for 90 ms, and gives its memory back for 300 more, all in the kernel."""
    pipeline = recording.pipeline
    time = pipeline.time
    time.founder_before = Account(START_NS, 0, 0, 1)
    dying, dead = (89.9, PID, 7, False), (390, PID, 7, True)
    first, second = batch(100, EXEC, Exited(START_NS + 90 * MS, PID, PID)), batch(400)
    first.ends, second.ends = told_ends(dying), told_ends(dead)
    if told == "at once":
        first.until_ns, first.ends = second.until_ns, told_ends(dying, dead)
    elif told == "clock amid":
        time.take_clocks(clocks(95, 95))
    elif told == "clock before":
        time.take_clocks(clocks(395, 390))
        time.zombies.add(PID)
    pipeline.feed(first)
    if told in ("clock behind", "at once"):
        time.take_clocks(clocks(395, 390))
        time.zombies.add(PID)
    if told != "at once":
        pipeline.feed(second)
    recording.finish(400)
    assert pipeline.total_cpu_ns == pytest.approx(390 * MS, abs=2)
    assert recording.ticks() == {(PID, Microstate.USER): 9, (PID, Microstate.SYSTEM): 30}
    assert recording.tally.n_untold_ends == 0


@pytest.mark.parametrize("are_told", [True, False])
def test_ends_that_nobody_has_told_by_the_end_are_counted_where_ends_are_told(
        recording: Recording, are_told: bool) -> None:
    """Three children end whose parents do not want to know: two with the same number. A stranger's end is told."""
    feed = recording.pipeline.feed
    for turn, tid in enumerate((5001, 5002, 5001)):
        at_ns = START_NS + (10 + 20 * turn) * MS
        made = batch(20 + 20 * turn, *[EXEC][turn:], Forked(at_ns, tid, tid, PID, PID), Exited(at_ns + MS, tid, tid))
        made.ends = told_ends((5, 6001, 7, True)) if are_told else None
        feed(made)
    recording.finish(100)
    assert recording.tally.n_untold_ends == (3 if are_told else 0)


class Proc(Alone):
    """A world with counters."""

    counters: ProcessUsage | None = None
    left: tuple[int, int] = 0, 0
    told: ProcessLife | None = None

    def usage(self, pid: int) -> ProcessUsage | None:
        return self.counters

    def switches(self, pid: int) -> tuple[int, int]:
        return self.left

    def life(self, pid: int) -> ProcessLife | None:
        return self.told

    def now_ns(self) -> int:
        return START_NS + 400 * MS


def test_what_was_used_before_events_were_taken_is_told_once(tmp_path: Path) -> None:
    """It runs for 200 ms, executes a program that may not be watched, and uses 30 ms then."""
    world = Proc()
    recording = Recording(tmp_path / "test.1.er", world=world)
    pipeline = recording.pipeline
    pipeline._changes._events_end = True
    pipeline.time.founder_before = Account(START_NS, 0, 0, 1)
    pipeline.feed(batch(50, EXEC, Mapped(START_NS, PID, PID, 0x1000, 0x1000, 0, 1, 1, b"/bin/program")))
    world.told = ProcessLife(5, False, 200 * MS, 0)
    pipeline.feed(batch(250, Executed(START_NS + 200 * MS, PID, PID, b"sudo"),
                        Exited(START_NS + 200 * MS + 20_000, PID, PID)))
    world.told = ProcessLife(5, True, 230 * MS, 0)
    pipeline.feed(batch(400))
    recording.finish(400)
    assert pipeline.total_cpu_ns == pytest.approx(230 * MS, abs=2)
    assert sum(recording.ticks("_x1.er").values()) in (2, 3)
    assert "used 0.03 s of CPU" in pipeline.unseen.warnings(START_NS)[0]


class Unnamed(Proc):
    """One in which an exec is not over at the first look."""

    def __init__(self) -> None:
        self.told_ones = [b"sudo make", b""]

    def arguments(self, pid: int) -> bytes:
        return self.told_ones.pop()


def test_who_is_looked_at_amid_its_exec_has_its_command_line_later(tmp_path: Path) -> None:
    world = Unnamed()
    world.told = ProcessLife(5, False, 0, 0)
    recording = Recording(tmp_path / "test.1.er", world=world)
    recording.pipeline.feed(batch(50, EXEC))
    unseen = recording.pipeline.unseen
    recorded = recording.experiments.by_image[0]
    unseen.add(recorded.image, START_NS)
    for _ in range(2):
        assert list(unseen.ended()) == []
    assert "(sudo make)" in unseen.warnings(START_NS)[0]
    recording.finish(100)


def test_of_many_whose_events_were_taken_the_first_are_kept(tmp_path: Path) -> None:
    recording, n = Recording(tmp_path / "test.1.er", world=Proc()), 31
    unseen = recording.pipeline.unseen
    for pid in range(5001, 5001 + n):
        unseen.add(Image(pid, pid, START_NS), START_NS)
        assert list(unseen.ended()) == []
    (line,) = unseen.warnings(START_NS)
    assert line.startswith(f"{n} processes could not be recorded")
    assert [f"program {pid}" in line for pid in range(5001, 5005)] == [True] * 3 + [False]
    assert f"and {n - 3} more" in line
    gc.collect()
    assert sum(type(each) is Unseen and 5001 <= each.image.pid < 5001 + n for each in gc.get_objects()) == 3


def faults(path: Path) -> list[int]:
    return [sample.counters["minor_faults"] for sample in open_experiment(path).samples]


def test_counters_of_a_process_are_told_once_in_all_of_its_images(tmp_path: Path) -> None:
    world = Proc()
    recording = Recording(tmp_path / "test.1.er", world=world)
    pipeline = recording.pipeline
    pipeline.feed(batch(50, EXEC))
    world.counters = ProcessUsage(1000)
    pipeline.sample(START_NS + 50 * MS, START_NS + 50 * MS, "periodic")
    pipeline.feed(batch(100, Executed(START_NS + 90 * MS, PID, PID, b"other")))
    world.counters = ProcessUsage(1007)
    pipeline.sample(START_NS + 100 * MS, START_NS + 100 * MS, "periodic")
    recording.finish(150)
    assert (sum(faults(recording.path)), sum(faults(recording.path / "_x1.er"))) == (1000, 7)


@pytest.mark.parametrize("execs", [False, True])
def test_counters_that_were_read_before_the_first_batch_are_those_of_the_last_image(tmp_path: Path,
                                                                                   execs: bool) -> None:
    """As of a program that is over before we are ready."""
    world = Proc()
    recording = Recording(tmp_path / "test.1.er", world=world)
    world.counters = ProcessUsage(1000)
    recording.pipeline.overview.read(PID, START_NS + 45 * MS)
    world.counters = None
    changes = [Executed(START_NS + 20 * MS, PID, PID, b"other")] * execs
    recording.pipeline.feed(batch(50, EXEC, *changes, Exited(START_NS + 40 * MS, PID, PID)))
    recording.finish(50)
    assert sum(faults(recording.path / "_x1.er" if execs else recording.path)) == 1000


def test_counters_of_a_process_that_was_found_begin_then(tmp_path: Path) -> None:
    world = Proc()
    recording = Recording(tmp_path / "test.1.er", world=world)
    world.counters = ProcessUsage(5000)
    found = [Found(PID, Edge.OUT_BLOCKED, Reason.SLEEP, None)]
    recording.pipeline.take_over(PID, "", found, [], batch(0))
    world.counters = ProcessUsage(5007)
    recording.pipeline.sample(START_NS + 50 * MS, START_NS, "periodic")
    recording.finish(60)
    assert sum(faults(recording.path)) == 7


def test_switches_that_no_record_tells_are_those_since_then_and_of_each_image(tmp_path: Path) -> None:
    """A process is found; of two threads that have left CPUs, one ends; and it executes another program."""
    world = Proc()
    recording = Recording(tmp_path / "test.1.er", world=world)
    pipeline = recording.pipeline
    pipeline.overview._counts_switches = False
    world.counters, world.left = ProcessUsage(1), (5000, 300)
    pipeline.take_over(PID, "", [Found(PID, Edge.OUT_BLOCKED, Reason.SLEEP, None)], [], batch(0))
    for ms, left in ((50, (5040, 307)), (60, (20, 3))):
        world.left = left
        pipeline.sample(START_NS + ms * MS, START_NS, "periodic")
    pipeline.feed(batch(120, Executed(START_NS + 105 * MS, PID, PID, b"other")))
    world.left = 25, 5
    recording.finish(150)
    assert [[sum(sample.counters[f"{kind}_switches"] for sample in open_experiment(path).samples)
             for kind in ("voluntary", "involuntary")] for path in (recording.path, recording.path / "_x1.er")] == [
                 [40, 7], [5, 2]]


def test_counters_of_who_goes_on_are_read_at_the_end(tmp_path: Path) -> None:
    """As of recordings without periodic samples: of a process that was found, and of its child."""
    world = Proc()
    recording = Recording(tmp_path / "test.1.er", world=world)
    world.counters = ProcessUsage(5000)
    found = [Found(PID, Edge.OUT_BLOCKED, Reason.SLEEP, None)]
    recording.pipeline.take_over(PID, "", found, [], batch(0))
    recording.pipeline.feed(batch(50, Forked(START_NS + 10 * MS, 5001, 5001, PID, PID)))
    world.counters = ProcessUsage(5007)
    recording.finish(60)
    assert (sum(faults(recording.path)), sum(faults(recording.path / "_f1.er"))) == (7, 5007)


def test_a_place_is_not_read_for_who_had_the_slot_before(tmp_path: Path) -> None:
    """One waits with its leaf alone and ends; another one, at its slot, waits there, and no record says so."""
    world, one, other = Read(0x400300), PID + 1, PID + 2
    recording, place = Recording(tmp_path / "test.1.er", world=world), np.full(1, 0x400300, dtype=np.uint64)
    made = batch(100, EXEC, Forked(START_NS + 10 * MS, PID, one, PID, PID),
                 switches=[(20, one, Edge.IN), (30, one, Edge.OUT_BLOCKED)])
    made.sites = Sites(*who([(30, one, 0)]), ip=place, sp=0 * place, bp=0 * place)
    recording.pipeline.feed(made)
    recording.pipeline.feed(batch(150, Exited(START_NS + 140 * MS, PID, one)))
    recording.pipeline.feed(batch(250, Forked(START_NS + 160 * MS, PID, other, PID, PID),
                                  switches=[(170, other, Edge.IN), (180, other, Edge.OUT_BLOCKED)]))
    recording.pipeline.flush_waiting(START_NS + 250 * MS)
    assert (world.n_read, recording.tally.n_unknown_sites) == (1, 1)
    recording.finish(300)


def test_nothing_is_kept_of_images_that_an_experiment_has_gone_on_from(tmp_path: Path) -> None:
    recording = Recording(tmp_path / "test.1.er", follow="off")
    recording.pipeline.feed(batch(5, EXEC))
    for turn in range(50):
        recording.pipeline.feed(batch(10 + turn, Executed(START_NS + (9 + turn) * MS, PID, PID, b"other")))
    experiments = recording.experiments
    assert len(experiments.by_image) <= 2  # the founder's first one among them
    assert (len(experiments.recorders), len(recording.founder.numbers)) == (1, 1)
    recording.finish(100)


def counted(recording: Recording, run_ms: float) -> None:
    """Switches are counted from 60 to 1060 ms; the last account is of 1040 ms. It has not left its CPU."""
    pipeline = recording.pipeline
    pipeline.time.founder_before = Account(START_NS - 1, 0, 0, 1)
    pipeline.feed(batch(50, EXEC))
    pipeline.count({PID: Account(START_NS + 60 * MS, 58 * MS, 0, 1)})
    pipeline.feed(batch(60))
    pipeline.feed(batch(1060, accounts=account((1040, PID, run_ms, 0))))
    pipeline.stop_counting(1000 * MS)
    pipeline.record_again([PID])


def test_who_runs_where_records_begin_again_has_run_since_its_last_account(recording: Recording) -> None:
    """And not since the end of the batch that this came with. It is 2 ms old."""
    counted(recording, 1038)
    recording.pipeline.feed(batch(2000, Exited(START_NS + 2000 * MS, PID, PID)))
    recording.finish(2000)
    assert recording.lengths(PID)[ON_CPU] == pytest.approx((2000 - 2) * MS, abs=MS / 10)


def test_who_waits_where_records_begin_again_has_run_up_to_its_last_account(recording: Recording) -> None:
    """It was taken from its CPU just behind that; its first record is of when it has it back."""
    counted(recording, 1040)
    recording.pipeline.feed(batch(2000, switches=[(1500, PID, Edge.IN)], accounts=account((1990, PID, 1530, 460))))
    recording.finish(2000)
    assert recording.lengths(PID)[ON_CPU] == pytest.approx((1040 + 500) * MS, abs=MS / 10)


def test_who_was_made_by_nobody_that_is_known_is_a_descendant_all_the_same(recording: Recording) -> None:
    """The records of its maker's birth were lost; and of one that executes a program."""
    lost, ms = 6000, START_NS
    recording.pipeline.feed(batch(50, EXEC, Forked(ms + MS, 5001, 5001, PID, PID)))
    recording.pipeline.sync()
    recording.pipeline.feed(batch(100, Forked(ms + 60 * MS, 5002, 5002, lost, lost), Exited(ms + 80 * MS, 5002, 5002),
                                  Executed(ms + 90 * MS, 6001, 6001, b"other")))
    recording.pipeline.sync()
    assert len(recording.experiments.by_image) == 4  # the founder's two, and those of who live
    recording.finish(200)
    found = {path.name: open_experiment(path).log for path in recording.path.glob("*.er")}
    assert {name: log.pid for name, log in found.items()} == {"_f1.er": 5001, "_f2.er": 5002, "_f3.er": 6001}
    assert all(log.complete for log in found.values())


def test_a_spawned_program_that_is_followed_by_its_name_may_begin_a_batch_later(tmp_path: Path) -> None:
    recording = Recording(tmp_path / "test.1.er", follow="=^other$")
    recording.pipeline.feed(with_spawn(batch(50, EXEC, Forked(START_NS + 20 * MS, 5003, 5003, PID, PID)), 5003))
    recording.pipeline.feed(batch(100, Executed(START_NS + 60 * MS, 5003, 5003, b"other")))
    recording.finish(150)
    (path,) = recording.path.glob("*.er")
    experiment = open_experiment(path)
    assert (path.name, list(experiment.threads)) == ("_c1.er", [5003])  # as if it had come with its birth
    assert experiment.log.start_ns == START_NS + 60 * MS


def test_a_spawned_program_that_is_not_followed_has_no_name_of_its_own_a_batch_later_either(tmp_path: Path) -> None:
    """Nor have its descendants another one for that; what it executes once more has."""
    recording = Recording(tmp_path / "test.1.er", follow="=^(child|third)$")
    recording.pipeline.feed(with_spawn(batch(50, EXEC, Forked(START_NS + 20 * MS, 5003, 5003, PID, PID)), 5003))
    recording.pipeline.feed(batch(100, Executed(START_NS + 60 * MS, 5003, 5003, b"other"),
                                  Forked(START_NS + 70 * MS, 6001, 6001, 5003, 5003),
                                  Executed(START_NS + 80 * MS, 6001, 6001, b"child")))
    recording.pipeline.feed(batch(150, Executed(START_NS + 110 * MS, 5003, 5003, b"third")))
    recording.finish(200)
    assert sorted(path.name for path in recording.path.glob("*.er")) == ["_c1_f1_x1.er", "_c1_x1.er"]


@pytest.mark.parametrize("first", [Edge.IN, Edge.OUT_BLOCKED])
def test_who_is_born_while_threads_are_looked_for_has_no_time_before(first: int, tmp_path: Path) -> None:
    """The recording had begun, 30 ms before; of the birth there is a record, perhaps not of its first run's begin."""
    world = Proc()
    recording, other = Recording(tmp_path / "test.1.er", world=world), PID + 1
    found = [Found(PID, Edge.OUT_BLOCKED, Reason.SLEEP, None, Account(START_NS + 33 * MS, 1000 * MS, 0, 1)),
             Found(other, Edge.IN, Reason.UNKNOWN, None, Account(START_NS + 35 * MS, 0, 0, 1))]
    recording.pipeline.take_over(PID, "", found, [], batch(0))
    begins = [(30, other, Edge.IN)] if first == Edge.IN else []
    recording.pipeline.feed(batch(100, Forked(START_NS + 30 * MS, PID, other, PID, PID), switches=[
        *begins, (41, other, Edge.OUT_BLOCKED)], accounts=account((99, other, 11, 0))))
    recording.finish(100)
    lengths = recording.lengths(other)
    assert lengths[ON_CPU] / MS == pytest.approx(11, abs=0.1)
    assert sum(lengths.values()) / MS == pytest.approx(70, abs=0.1)
    assert recording.lengths(PID)[Microstate.SLEEP] == 100 * MS
    assert list(open_experiment(recording.path).threads) == [PID, other]


GONE_ONE, STRANGER = PID + 1, 7777


@pytest.fixture
def attached(tmp_path: Path) -> Recording:
    """To a process whose first thread sleeps on; 400 ms later its threads had been listed."""
    recording = Recording(tmp_path / "test.1.er", world=Proc())
    found = [Found(PID, Edge.OUT_BLOCKED, Reason.SLEEP, None, Account(START_NS + 60 * MS, 1000 * MS, 0, 1))]
    recording.pipeline.take_over(PID, "", found, [], batch(0))
    return recording


def ended(ms: float, tid: int = GONE_ONE) -> Exited:
    return Exited(START_NS + round(ms * MS), PID, tid)


def with_wakings(made: Batch, *wakings: tuple[float, int]) -> Batch:
    """``wakings``: ms and tid."""
    made.wakings = Wakings(np.array([tid for _, tid in wakings]),
                           np.array([START_NS + round(ms * MS) for ms, _ in wakings]))
    return made


def in_ms(recording: Recording, tid: int) -> dict[int, float]:
    """How long a thread was in each state."""
    return {state: ns / MS for state, ns in recording.lengths(tid).items()}


def test_wakers_that_were_take_no_memory_though_no_thread_of_ours_ends(tmp_path: Path) -> None:
    """One is woken by others, all of them different ones."""
    recording, n_batches, n = Recording(tmp_path / "test.1.er", ["@[waker] = count()"]), 23, 499
    feed, aggregating = recording.pipeline.feed, recording.pipeline._taps._aggregating
    feed(batch(100, EXEC, switches=[(50, PID, Edge.OUT_BLOCKED)]))
    for turn in range(n_batches):
        at_ms = 100 + turn * n
        made = batch(at_ms + n, switches=[(at_ms + i + more, PID, edge) for i in range(n)
                                          for more, edge in ((0.5, Edge.IN), (0.9, Edge.OUT_BLOCKED))])
        made.wakings = Wakings(np.full(n, PID), START_NS + (at_ms + np.arange(n)) * MS + MS // 4,
                               10_000 + turn * n + np.arange(n), np.full(n, Context.THREAD, dtype=np.int8))
        feed(made)
    assert aggregating is not None
    assert len(aggregating._wakers.names) < n_batches * n // 2


@pytest.mark.parametrize(("records", "wakings", "states"), [
    ([(30, Edge.IN), (33, Edge.OUT_BLOCKED), (40, Edge.IN)], [(20, GONE_ONE), (40, GONE_ONE)],
     {ON_CPU: 5, Microstate.SLEEP: 27, Microstate.WAIT_CPU: 10}),
    ([(30, Edge.IN), (33, Edge.OUT_BLOCKED), (40, Edge.IN)], [(1, STRANGER), (40, GONE_ONE)],
     {ON_CPU: 5, Microstate.SLEEP: 7, Microstate.WAIT_CPU: 30}),
    ([(30, Edge.IN)], [(90, STRANGER)], {ON_CPU: 12, Microstate.SLEEP: 30}),  # those of before are lost
    ([(3, Edge.OUT_PREEMPTED), (40, Edge.IN)], [], {ON_CPU: 5, Microstate.WAIT_CPU: 37}),
    ([], [], {ON_CPU: 42})])
def test_who_ends_before_threads_are_listed_has_lived_since_the_begin(
        records: list[tuple[float, int]], wakings: list[tuple[float, int]], states: dict[int, int],
        attached: Recording) -> None:
    """It was there as the recording began. Of its birth there is no record, and it is on no list."""
    made = batch(100, ended(42), switches=[(ms, GONE_ONE, edge) for ms, edge in records])
    attached.pipeline.feed(with_wakings(made, *wakings) if wakings else made)
    attached.pipeline.feed(batch(500, switches=[(450, PID + 2, Edge.IN), (460, PID + 2, Edge.OUT_BLOCKED)]))
    attached.finish(500)
    assert in_ms(attached, GONE_ONE) == pytest.approx(states, abs=0.1)
    assert in_ms(attached, PID) == {Microstate.SLEEP: 500}
    # Who is met later has lost the record of its birth: nothing is known of what it did before.
    assert 40 <= sum(in_ms(attached, PID + 2).values()) <= 50
    assert list(open_experiment(attached.path).threads) == [PID, GONE_ONE, PID + 2]


def test_who_may_have_been_born_behind_the_begin_is_told_from_its_first_record(attached: Recording) -> None:
    lost = RecordsLost(START_NS + 20 * MS, 3, "task")
    attached.pipeline.feed(batch(100, lost, ended(42), switches=[
        (30, GONE_ONE, Edge.IN), (33, GONE_ONE, Edge.OUT_BLOCKED), (40, GONE_ONE, Edge.IN)]))
    attached.finish(500)
    assert 9 - 0.1 < sum(in_ms(attached, GONE_ONE).values()) < 12 + 0.1


def test_who_ends_before_threads_are_listed_ends_with_its_last_record_if_none_tells_that(attached: Recording) -> None:
    """It was born while events were opened, of which it has those of some CPUs. Another one's end comes with what a
    first batch had no room for."""
    first = batch(100, switches=[
        (30, GONE_ONE, Edge.IN), (33, GONE_ONE, Edge.OUT_BLOCKED), (50, PID + 2, Edge.OUT_BLOCKED)])
    first.has_more = True
    attached.pipeline.feed(first)
    attached.pipeline.feed(batch(300, ended(120, PID + 2), ended(250, PID), switches=[(110, PID + 2, Edge.IN)]))
    attached.pipeline.feed(batch(450))
    assert not attached.pipeline.model.processes
    assert attached.founder.end_ns is not None
    attached.finish(500)
    assert sum(in_ms(attached, GONE_ONE).values()) == pytest.approx(33, abs=0.1)
    assert in_ms(attached, PID + 2) == pytest.approx({ON_CPU: 60, Microstate.SLEEP: 60}, abs=0.1)


class Named(Proc):
    """One in which all threads live."""

    def comm(self, pid: int, tid: int) -> bytes:
        return b"thread"


def test_who_was_not_listed_and_is_there_lives_on(tmp_path: Path) -> None:
    """It was born behind the list, by who has events on some CPUs only."""
    recording = Recording(tmp_path / "test.1.er", world=Named())
    found = [Found(PID, Edge.OUT_BLOCKED, Reason.SLEEP, None, Account(START_NS + 60 * MS, 1000 * MS, 0, 1))]
    recording.pipeline.take_over(PID, "", found, [], batch(0))
    recording.pipeline.feed(batch(450, switches=[(30, GONE_ONE, Edge.IN), (33, GONE_ONE, Edge.OUT_BLOCKED)]))
    recording.finish(500)
    assert sum(in_ms(recording, GONE_ONE).values()) == 500


def test_who_was_not_listed_ends_at_the_look_at_the_latest(attached: Recording) -> None:
    """And its process executes a program behind that."""
    attached.pipeline.feed(batch(450, Executed(START_NS + 440 * MS, PID, PID, b"other"),
                                 switches=[(30, GONE_ONE, Edge.IN), (33, GONE_ONE, Edge.OUT_BLOCKED)]))
    attached.finish(500)
    assert sum(in_ms(attached, GONE_ONE).values()) == 400


def test_who_ends_before_threads_are_listed_may_do_so_by_an_exec(attached: Recording) -> None:
    """One ends before; the other one calls it, and has its process's number from then on."""
    caller = PID + 2
    attached.pipeline.feed(batch(
        100, ended(41, PID), ended(41), Executed(START_NS + 42 * MS, PID, PID, b"other"),
        switches=[(20, caller, Edge.OUT_BLOCKED), (30, GONE_ONE, Edge.IN), (33, GONE_ONE, Edge.OUT_BLOCKED),
                  (40, caller, Edge.IN)]))
    attached.pipeline.feed(batch(200, ended(150, PID)))
    assert not attached.pipeline.model.processes
    attached.finish(500)
    assert sum(in_ms(attached, caller).values()) == pytest.approx(42, abs=0.1)
    assert list(open_experiment(attached.path).threads) == [PID, GONE_ONE, caller]
    assert list(open_experiment(attached.path / "_x1.er").threads) == [PID]


def test_who_was_listed_and_is_gone_without_a_record_lived_until_it_was_looked_for(tmp_path: Path) -> None:
    """Of two others that were listed there is their end alone: of one all CPUs would tell, of the other one some do."""
    recording, running, in_part = Recording(tmp_path / "test.1.er", world=Proc()), PID + 3, PID + 4
    found = [Found(PID, Edge.OUT_BLOCKED, Reason.SLEEP, None, Account(START_NS + 60 * MS, 1000 * MS, 0, 1)),
             *(Found(tid, cut, Reason.UNKNOWN, None, gone_ns=START_NS + 70 * MS) for tid, cut in (
                 (GONE_ONE, Edge.OUT_BLOCKED), (PID + 2, Edge.OUT_BLOCKED), (running, Edge.IN),
                 (in_part, Edge.OUT_BLOCKED)))]
    recording.pipeline.take_over(PID, "", found, [], batch(0))
    recording.pipeline.feed(batch(450, ended(22, PID + 2), ended(25, running), ended(28, in_part),
                                  switches=[(20, PID + 2, Edge.IN)]))
    recording.finish(500)
    assert (in_ms(recording, running), in_ms(recording, in_part)) == ({ON_CPU: 25}, {Microstate.SLEEP: 28})
    assert in_ms(recording, GONE_ONE) == {Microstate.SLEEP: 70}
    assert recording.ticks()[GONE_ONE, Microstate.SLEEP] == 7
    assert in_ms(recording, PID + 2) == pytest.approx({ON_CPU: 2, Microstate.SLEEP: 20}, abs=0.1)
    assert list(open_experiment(recording.path).threads) == [PID, PID + 2, running, GONE_ONE, in_part]


def test_who_was_found_in_vain_and_was_born_behind_the_begin_is_told_once(tmp_path: Path) -> None:
    """Its records come with a first batch that has no room for all."""
    recording = Recording(tmp_path / "test.1.er", world=Proc())
    recording.pipeline.take_over(PID, "", [Found(PID, Edge.OUT_BLOCKED, Reason.SLEEP, None)], [], batch(0))
    first = batch(100, Forked(START_NS + 20 * MS, PID, GONE_ONE, PID, PID), ended(30),
                  switches=[(21, GONE_ONE, Edge.IN)])
    first.has_more = True
    recording.pipeline.feed(first)
    recording.pipeline.feed(batch(450))
    recording.finish(500)
    assert sum(in_ms(recording, GONE_ONE).values()) == pytest.approx(10, abs=0.1)


def test_threads_that_are_gone_when_they_are_looked_for() -> None:
    """Of one of two that were listed the records are whole."""
    pid, whole, in_part = os.getpid(), (1 << 22) + 1, (1 << 22) + 2
    found = {thread.tid: thread for thread in attach._found(pid, {pid, whole, in_part}, {pid, whole})}
    assert [(found[tid].cut, found[tid].gone_ns > 0) for tid in (whole, in_part)] == [
        (Edge.IN, True), (Edge.OUT_BLOCKED, True)]
    assert found[pid].gone_ns == 0


@pytest.mark.parametrize(("run_ms", "state"), [(0.5, Microstate.WAIT_CPU), (76, ON_CPU)])
def test_who_was_found_runnable_and_ends_without_a_record_did_what_its_last_account_says(
        run_ms: float, state: int, tmp_path: Path) -> None:
    """It was born while events were opened, and has none; 34 ms behind the begin it was looked at."""
    recording = Recording(tmp_path / "test.1.er", world=Proc())
    found = [Found(PID, Edge.OUT_BLOCKED, Reason.SLEEP, None, Account(START_NS + 60 * MS, 1000 * MS, 0, 1)),
             Found(GONE_ONE, Edge.IN, Reason.UNKNOWN, None, Account(START_NS + 34 * MS, MS // 2, 7 * MS, 3))]
    recording.pipeline.take_over(PID, "", found, [], batch(0))
    recording.pipeline.feed(batch(60, accounts=account((34.7, GONE_ONE, 0.5, 7))))
    made = batch(200, ended(110))
    made.exits = Exits(*(np.array([value]) for value in (PID, GONE_ONE, 180 * MS, round(run_ms * MS), 168 * MS, 5)),
                       START_NS + 200 * MS)
    recording.pipeline.feed(made)
    recording.finish(500)
    assert in_ms(recording, GONE_ONE) == {state: 110}


def test_a_process_whose_threads_end_in_one_batch_ends_with_the_last_of_them(attached: Recording) -> None:
    image = attached.pipeline.model.processes[PID].image
    attached.pipeline.feed(batch(100, ended(42), ended(90, PID), switches=[(30, GONE_ONE, Edge.IN)]))
    assert image.end_ns == START_NS + 90 * MS
    attached.finish(500)


def test_a_window_to_whose_end_we_come_late_has_one_thread_at_a_time_on_its_cpu(recording: Recording) -> None:
    """Of three that were found runnable there is no record; accounts were read when the window was over."""
    found = [Found(PID + n, Edge.IN, Reason.UNKNOWN, None, Account(START_NS, 1000 * MS, 0, 1)) for n in range(3)]
    recording.pipeline.take_over(PID, "", found, [], batch(0))
    late = batch(200, accounts=account((290, PID, 1287, 3), (290, PID + 1, 1002, 290), (290, PID + 2, 1000, 290)))
    recording.pipeline.feed(late)
    recording.finish(200)
    ran = [recording.lengths(PID + n)[ON_CPU] / MS for n in range(3)]
    assert ran == pytest.approx([200, 0, 0])
    assert [recording.lengths(PID + n)[Microstate.WAIT_CPU] / MS for n in range(3)] == pytest.approx([0, 200, 200])


class Silent(Read):
    """One in which all have gone on."""

    def blocked(self, threads: Sequence[Sleeper], now_ns: int, stack_words: int) -> list[ClockSamples]:
        super().blocked(threads, now_ns, stack_words)
        return []


@pytest.mark.parametrize(("read_ms", "run_ns"), [(10, -1), (90, 10 * MS)], ids=["before it slept", "as it slept"])
def test_who_is_asked_where_it_waits_is_still_where_its_account_was_read(tmp_path: Path, read_ms: int,
                                                                        run_ns: int) -> None:
    """However often it has been told until then. Whoever is not there has his account read with the next batch."""
    world = Silent(0x400300)
    recording = Recording(tmp_path / "test.1.er", world=world)
    tid = PID + 1
    recording.pipeline.feed(batch(
        100, EXEC, Forked(START_NS + MS, PID, tid, PID, PID),
        accounts=account((read_ms, tid, min(read_ms, 20) - 10, 0)),
        switches=[(10, tid, Edge.IN), (20, tid, Edge.OUT_BLOCKED)]))
    for ms in (100, 200, 300):
        recording.pipeline.flush_waiting(START_NS + ms * MS)
        assert world.asked == [Sleeper(PID, tid, run_ns)]
        assert (PID, tid) in recording.pipeline.time.asks()
        assert (PID, tid) not in recording.pipeline.time.asks()
        recording.pipeline.feed(batch(ms + 100))
    recording.finish(400)


class Partly(Read):
    """One that does not show where some threads are."""

    def __init__(self, hidden: frozenset[int]) -> None:
        super().__init__(0x400300, reason=Reason.LOCK)
        self._hidden = hidden

    def blocked(self, threads: Sequence[Sleeper], now_ns: int, stack_words: int) -> list[ClockSamples]:
        return super().blocked([one for one in threads if one.tid not in self._hidden], now_ns, stack_words)


def test_who_is_asked_in_vain_keeps_nobody_from_being_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three that are not to be seen come first, two others behind them; there is room for two."""
    for name, n in (("_BUDGET", 2), ("_AT_ONCE", 2), ("_MORE_EACH_TIME", 2)):
        monkeypatch.setattr(blocked_stacks, name, n)
    tids = range(PID + 1, PID + 6)
    recording = Recording(tmp_path / "test.1.er", world=Partly(frozenset(tids[:3])))
    births = [Forked(START_NS + MS, PID, tid, PID, PID) for tid in tids]
    recording.pipeline.feed(batch(100, EXEC, *births, switches=[
        (ms, tid, edge) for ms, edge in ((10, Edge.IN), (20, Edge.OUT_BLOCKED)) for tid in tids]))
    told = []
    for ms in (100, 200, 300):
        recording.pipeline.flush_waiting(START_NS + ms * MS)
        lengths = [recording.lengths(tid) for tid in tids]
        told.append([round((its[Microstate.SLEEP] + its[Microstate.USER_LOCK]) / MS) for its in lengths])
        recording.pipeline.feed(batch(ms + 100))
    assert told == [[80, 80, 0, 0, 0], [180, 180, 180, 180, 0], [280] * 5]
    recording.finish(400)
    assert {recording.lengths(tid)[Microstate.USER_LOCK] for tid in tids[3:]} == {380 * MS}


def test_who_runs_where_a_pause_comes_while_switches_are_counted_does_not_sleep(recording: Recording) -> None:
    """His account is 20 ms older than the pause, in which he runs on."""
    pipeline = recording.pipeline
    pipeline.time.founder_before = Account(START_NS - 1, 0, 0, 1)
    pipeline.feed(batch(50, EXEC))
    pipeline.count({PID: Account(START_NS + 60 * MS, 60 * MS, 0, 1)})
    pipeline.feed(batch(60))
    pipeline.feed(batch(1060, accounts=account((1040, PID, 1040, 0))))
    for muted in (True, False):
        pipeline.mute(START_NS + 1060 * MS, muted=muted)
    pipeline.feed(batch(2060, accounts=account((2060, PID, 2060, 0))))
    pipeline.stop_counting(2000 * MS)
    recording.finish(2060)
    assert recording.lengths(PID)[Microstate.SLEEP] <= 1  # ns
    assert recording.lengths(PID)[ON_CPU] == pytest.approx(2060 * MS, abs=MS / 10)


def test_counters_of_who_is_not_followed_are_none_of_the_program_that_he_executes(tmp_path: Path) -> None:
    world = Proc()
    recording = Recording(tmp_path / "test.1.er", world=world, follow="=x1")
    pipeline = recording.pipeline
    pipeline.feed(batch(50, EXEC, Forked(START_NS + 10 * MS, 5001, 5001, PID, PID)))
    world.counters = ProcessUsage(500)
    pipeline.sample(START_NS + 50 * MS, START_NS + 50 * MS, "periodic")
    world.counters = ProcessUsage(560)
    pipeline.feed(batch(120, Executed(START_NS + 105 * MS, 5001, 5001, b"other")))
    pipeline.sample(START_NS + 120 * MS, START_NS + 120 * MS, "periodic")
    pipeline.feed(batch(150, Exited(START_NS + 140 * MS, 5001, 5001)))
    recording.finish(150)
    assert sum(faults(recording.path / "_f1_x1.er")) == 60
    assert pipeline.overview._usages.keys() | pipeline.overview._before.keys() <= {PID}


def test_counters_do_not_go_back_where_a_sample_is_taken_behind_an_exec(tmp_path: Path) -> None:
    """That is known only later; and of images that nobody follows nothing is kept."""
    world = Proc()
    recording = Recording(tmp_path / "test.1.er", world=world)
    pipeline = recording.pipeline
    pipeline.feed(batch(50, EXEC))
    for used, ms in ((500, 60), (520, 110)):
        world.counters = ProcessUsage(used)
        pipeline.sample(START_NS + ms * MS, START_NS + 50 * MS, "periodic")
    pipeline.feed(batch(120, Executed(START_NS + 105 * MS, PID, PID, b"other")))
    world.counters = ProcessUsage(560)
    pipeline.sample(START_NS + 130 * MS, START_NS + 120 * MS, "periodic")
    pipeline.feed(batch(150, Exited(START_NS + 140 * MS, PID, PID)))
    recording.finish(150)
    assert (sum(faults(recording.path)), sum(faults(recording.path / "_x1.er"))) == (520, 40)
    assert not (pipeline.overview._usages or pipeline.overview._before or pipeline.overview._told)
