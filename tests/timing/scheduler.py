"""A scheduler of known truth: threads that work, wait and sleep on a few CPUs, and what a kernel would tell of them.

``Plan`` says what threads want to do and which faults the kernel's witnesses have; hypothesis draws plans. ``happen``
plays one: the truth is a list of stretches for each thread. ``Witness`` tells of it as the perf engine does: records,
stamped late, some lost; what threads are blocked for, and their wake-ups, some untold; accounts, old while a thread
runs; no records while switches are not recorded.

Times are ns from 0 on. A thread's slot is its number.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random

import numpy as np
from hypothesis import strategies as st

from collector.events import Edge, Reason
from collector.timing.ledger import ReadAccounts
from collector.timing.silences import Strikes
from collector.timing.states import Departures
from collector.timing.timeline import Edges, Wakeups, edges_of, moments_of

MS = 1_000_000
SLICE_NS, LEAST_RUN_NS = 3 * MS, 5_000
FAR_NS = 1 << 62
STRIKE_NS = 997_000  # once in which a thread's clock strikes
BUGS = "accounts half too large", "accounts stand still", "threads exchanged", "births come late"
STATE_BUGS = "wake-ups come late", "reasons exchanged", "delays stand still"
RUN, WAIT, BLOCKED = "run", "wait", "blocked"


@dataclass(frozen=True)
class Work:
    """A thread: born at a time, it runs and sleeps in turn, for so long each; at the end it ends, or sleeps on."""

    born_ns: int
    steps: tuple[tuple[int, int], ...]  # (run, sleep)
    ends: bool


@dataclass(frozen=True)
class Plan:
    """Threads on CPUs for a while, and the witnesses' faults."""

    works: tuple[Work, ...]
    n_cpus: int = 2
    length_ns: int = 1000 * MS
    batch_ns: int = 101 * MS
    lag_ns: int = 0  # the most by which a switch-in record is late
    tick_ns: int = 4 * MS
    lost: float = 0.0  # part of the switch records, in bursts
    unwoken: float = 0.0  # part of the wake-ups that nobody tells of
    stolen: float = 0.0  # part of the runs of over 6 ms in which a hypervisor takes the CPU for a third of it
    blind_ns: tuple[int, int] = (0, 0)  # no records of switches in between
    last_accounts: bool = False  # of threads that end their accounts are told
    seed: int = 0
    bug: str = ""  # one of BUGS or STATE_BUGS: witnesses that lie, which checks must find out


@dataclass(frozen=True)
class Stretch:
    """What a thread did from one time to another; a run is on a CPU, and ends because the thread blocks or not.
    ``step`` is that of the sleep that it is or that it ends with."""

    start_ns: int
    end_ns: int
    what: str
    cpu: int = -1
    blocks: bool = False
    step: int = 0

    @property
    def reason(self) -> Reason:
        """What the thread is blocked for: a lock, every other time."""
        return Reason.LOCK if self.step % 2 else Reason.SLEEP


@dataclass
class _Thread:
    work: Work
    step: int = 0
    left_ns: int = 0  # of the run
    since_ns: int = 0  # ready or asleep since then
    told: list[Stretch] = field(default_factory=list)
    end_ns: int | None = None


def happen(plan: Plan) -> list[_Thread]:
    """Plays a plan, round robin with slices, and returns the threads with all that they did up to its end."""
    threads = [_Thread(work, left_ns=work.steps[0][0], since_ns=work.born_ns) for work in plan.works]
    ready: deque[int] = deque()
    free = list(range(plan.n_cpus))
    wakes = [(work.born_ns, number) for number, work in enumerate(plan.works)]
    leaves: list[tuple[int, int, int, int]] = []  # when, CPU, thread, since when
    heapq.heapify(wakes)
    while True:
        now_ns = min(wakes[0][0] if wakes else plan.length_ns, leaves[0][0] if leaves else plan.length_ns)
        if now_ns >= plan.length_ns:
            break
        if leaves and leaves[0][0] == now_ns:
            _, cpu, number, since_ns = heapq.heappop(leaves)
            _leave(threads[number], cpu, since_ns, now_ns, number, ready, wakes)
            free.append(cpu)
        else:
            number = heapq.heappop(wakes)[1]
            thread = threads[number]
            if thread.since_ns < now_ns:
                thread.told.append(Stretch(thread.since_ns, now_ns, BLOCKED, step=thread.step))
            thread.since_ns = now_ns
            ready.append(number)
        while ready and free:
            number, cpu = ready.popleft(), free.pop(0)
            thread = threads[number]
            if thread.since_ns < now_ns:
                thread.told.append(Stretch(thread.since_ns, now_ns, WAIT))
            slice_ns = SLICE_NS if thread.left_ns - SLICE_NS >= LEAST_RUN_NS else thread.left_ns
            heapq.heappush(leaves, (now_ns + min(thread.left_ns, slice_ns), cpu, number, now_ns))
    for _, cpu, number, since_ns in leaves:
        threads[number].told.append(Stretch(since_ns, plan.length_ns, RUN, cpu))
    for number, thread in enumerate(threads):
        at_end = [number for *_, number, _ in leaves]
        if thread.end_ns is None and number not in at_end and thread.since_ns < plan.length_ns:
            thread.told.append(Stretch(thread.since_ns, plan.length_ns, WAIT if number in ready else BLOCKED,
                                       step=thread.step))
    return threads


def _leave(thread: _Thread, cpu: int, since_ns: int, now_ns: int, number: int, ready: deque[int],
           wakes: list[tuple[int, int]]) -> None:
    thread.left_ns -= now_ns - since_ns
    thread.since_ns = now_ns
    thread.told.append(Stretch(since_ns, now_ns, RUN, cpu, thread.left_ns == 0, thread.step + 1))
    if thread.left_ns:
        ready.append(number)
        return
    sleep_ns = thread.work.steps[thread.step][1]
    thread.step += 1
    if thread.step < len(thread.work.steps):
        thread.left_ns = thread.work.steps[thread.step][0]
        heapq.heappush(wakes, (now_ns + sleep_ns, number))
    elif thread.work.ends:
        thread.end_ns = now_ns


@dataclass(frozen=True)
class Told:
    """What the witnesses tell of a stretch of time."""

    since_ns: int
    until_ns: int
    edges: Edges
    blind: bool


class Witness:
    """Tells of what happened, with the plan's faults."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._random = Random(plan.seed)
        self.threads = happen(plan)
        self.stolen: list[list[tuple[int, int]]] = [self._steal(thread) for thread in self.threads]
        self.n_lost = 0
        self._edges = sorted((edge for number in range(len(self.threads)) for edge in self._records(number)),
                             key=lambda edge: edge[0])

    def sums_ns(self, number: int, until_ns: int) -> dict[str, int]:
        """How long a thread truly ran, waited and was blocked, up to a time. What was stolen from it, it waited."""
        sums = dict.fromkeys((RUN, WAIT, BLOCKED), 0)
        for stretch in self.threads[number].told:
            sums[stretch.what] += max(min(stretch.end_ns, until_ns) - stretch.start_ns, 0)
        stolen_ns = sum(max(min(end, until_ns) - start, 0) for start, end in self.stolen[number])
        sums[RUN] -= stolen_ns
        sums[WAIT] += stolen_ns
        return sums

    def blocked_ns(self, number: int, reason: Reason) -> int:
        """How long a thread was blocked for a reason."""
        return sum(stretch.end_ns - stretch.start_ns for stretch in self.threads[number].told
                   if stretch.what == BLOCKED and stretch.reason == reason)

    def departures(self, batch: Told) -> Departures:
        """What threads are blocked for that left their CPU in a batch: each reason has an instruction of its own."""
        rows = [(number, stretch.end_ns, stretch.reason, stretch.cpu) for number, stretch in self._within(batch)
                if stretch.what == RUN and stretch.blocks]
        slot, time_ns, reason, cpu = np.array(rows, np.int64).reshape(-1, 4).T
        if self.plan.bug == "reasons exchanged":
            reason = Reason.SLEEP + Reason.LOCK - reason
        return Departures(slot, time_ns, (100 + reason).astype(np.uint64), reason.astype(np.int8),
                          (200 + reason).astype(np.uint64), cpu.astype(np.int32))

    def wakeups(self, batch: Told) -> Wakeups:
        """The ends of sleeps in a batch, as far as they are told."""
        late_ns = 20 * MS if self.plan.bug == "wake-ups come late" else 0
        rows = [(number, stretch.end_ns + late_ns) for number, stretch in self._within(batch)
                if stretch.what == BLOCKED and stretch.end_ns < self.plan.length_ns
                and Random(f"{self.plan.seed} {number} {stretch.end_ns}").random() >= self.plan.unwoken]
        slot, time_ns = np.array(rows, np.int64).reshape(-1, 2).T
        return moments_of(slot, time_ns)

    def strikes(self, batch: Told) -> Strikes:
        """When threads' clocks strike in a batch: once in STRIKE_NS that they have a CPU by the records, or as soon as
        they have it back from whom it was stolen by."""
        rows = [(number, at_ns) for number, thread in enumerate(self.threads) for stretch in thread.told
                if stretch.what == RUN for at_ns in self._struck(number, stretch)
                if batch.since_ns < at_ns <= batch.until_ns]
        slot, time_ns = np.array(rows, np.int64).reshape(-1, 2).T
        return Strikes(moments_of(slot, time_ns), STRIKE_NS)

    def _struck(self, number: int, run: Stretch) -> list[int]:
        due = range(run.start_ns + STRIKE_NS, run.end_ns, STRIKE_NS)
        return sorted({next((end for start, end in self.stolen[number] if start <= at_ns < end), at_ns)
                       for at_ns in due})

    def _within(self, batch: Told) -> list[tuple[int, Stretch]]:
        """What ends in a batch, if that has records."""
        return [(number, stretch) for number, thread in enumerate(self.threads) for stretch in thread.told
                if batch.since_ns < stretch.end_ns <= batch.until_ns and not batch.blind]

    def batches(self) -> list[Told]:
        """What is told by records, batch by batch."""
        bounds = sorted({*range(0, self.plan.length_ns, self.plan.batch_ns), self.plan.length_ns,
                         *(at for at in self.plan.blind_ns if at)})
        return [self._batch(since, until) for since, until in pairwise(bounds)]

    def account(self, number: int, at_ns: int) -> tuple[int, int]:
        """What the kernel's account of a thread says at a time: run and delay."""
        thread = self.threads[number]
        fresh_ns, delay_ns = at_ns, 0
        for stretch in thread.told:
            if stretch.what == RUN and stretch.start_ns < at_ns < stretch.end_ns:
                fresh_ns = max(at_ns // self.plan.tick_ns * self.plan.tick_ns, stretch.start_ns)
            if stretch.what == WAIT and stretch.end_ns <= at_ns:
                delay_ns += stretch.end_ns - stretch.start_ns
        if self.plan.bug == "delays stand still":
            delay_ns = 0
        run_ns = self.sums_ns(number, fresh_ns)[RUN]
        if self.plan.bug == "accounts half too large":
            run_ns += run_ns // 2
        return 0 if self.plan.bug == "accounts stand still" else run_ns, delay_ns

    def read(self, batch: Told, running: Collection[int]) -> ReadAccounts:
        """Accounts at the end of a batch: of the threads in its records, and of those that were ``running`` before;
        of all, where there are no records. And those of threads that end in it, at their ends, if these are told."""
        at_ns = batch.until_ns
        asked = range(len(self.threads)) if batch.blind else {*batch.edges.slot.tolist(), *running}
        rows = [(number, at_ns, *self.account(number, at_ns)) for number in sorted(asked)
                if self.threads[number].work.born_ns < at_ns and (self.threads[number].end_ns or FAR_NS) > at_ns]
        ended = {number: thread.end_ns - 1 for number, thread in enumerate(self.threads)
                 if self.plan.last_accounts and thread.end_ns and batch.since_ns < thread.end_ns <= at_ns}
        rows = sorted(rows + [(number, end_ns, *self.account(number, end_ns)) for number, end_ns in ended.items()])
        return ReadAccounts(*np.array(rows, np.int64).reshape(-1, 4).T.copy())

    def _batch(self, since_ns: int, until_ns: int) -> Told:
        mine = [edge for edge in self._edges if since_ns < edge[0] <= until_ns or (not since_ns and not edge[0])]
        time_ns, slot, edge, cpu = np.array(mine, dtype=np.int64).reshape(-1, 4).T
        edges = edges_of(slot, time_ns, edge, cpu.astype(np.int32))
        return Told(since_ns, until_ns, edges, self.plan.blind_ns[0] <= since_ns and until_ns <= self.plan.blind_ns[1])

    def _steal(self, thread: _Thread) -> list[tuple[int, int]]:
        runs = [s for s in thread.told if s.what == RUN and s.end_ns - s.start_ns > 2 * MS]
        return [(s.start_ns + (s.end_ns - s.start_ns) // 3, s.start_ns + 2 * (s.end_ns - s.start_ns) // 3) for s in runs
                if self._random.random() < self.plan.stolen]

    def _records(self, number: int) -> list[tuple[int, int, int, int]]:
        """(time, slot, edge, CPU) of all records of a thread that were not lost."""
        thread, lost = self.threads[number], False
        slot = len(self.threads) - 1 - number if self.plan.bug == "threads exchanged" else number
        late_ns = 50 * MS if self.plan.bug == "births come late" else 0
        records = [(thread.work.born_ns + late_ns, number, Edge.BORN, -1)]
        for stretch in thread.told:
            if stretch.what != RUN:
                continue
            late_ns = self._random.randint(0, min(self.plan.lag_ns, (stretch.end_ns - stretch.start_ns) // 2))
            out = Edge.OUT_BLOCKED if stretch.blocks else Edge.OUT_PREEMPTED
            for at_ns, edge in ((stretch.start_ns + late_ns, Edge.IN), (stretch.end_ns, out)):
                if at_ns >= self.plan.length_ns or self.plan.blind_ns[0] < at_ns <= self.plan.blind_ns[1]:
                    continue
                lost = self._random.random() < (0.5 if lost else self.plan.lost)
                self.n_lost += lost
                if not lost:
                    records.append((at_ns, slot, edge, stretch.cpu))
        if thread.end_ns is not None:
            records.append((thread.end_ns, number, Edge.ENDED, -1))
        return records


# --- drawing plans --------------------------------------------------------------------------------

_short, _long = st.integers(5_000, MS), st.integers(MS, 60 * MS)


def works(most: int = 7) -> st.SearchStrategy[tuple[Work, ...]]:
    """Some threads with some steps each."""
    steps = st.lists(st.tuples(st.one_of(_short, _long), st.one_of(_short, _long)), min_size=1, max_size=12)
    work = st.builds(Work, st.integers(0, 500 * MS), steps.map(tuple), st.booleans())
    return st.lists(work, min_size=1, max_size=most).map(tuple)


def plans(**faults: st.SearchStrategy[object] | object) -> st.SearchStrategy[Plan]:
    """Plans with these faults, each a value or a strategy."""
    drawn = {name: value if isinstance(value, st.SearchStrategy) else st.just(value) for name, value in faults.items()}
    return st.builds(Plan, works(), seed=st.integers(0, 1 << 30), **drawn)
