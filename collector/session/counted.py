"""Whether switches are followed, one record each, or counted: the choice, and the looks at the kernel's accounts."""

from __future__ import annotations

import time
from collections.abc import Iterator

from collector.clock import NS_PER_MS, NS_PER_S
from collector.engines.perf_events import PerfEngine
from collector.events import Batch, Edge
from collector.linux import proc
from collector.processes.model import Thread
from collector.session.attach import find
from collector.session.pipeline import Pipeline
from collector.timing.counting import Account

# Switch records (two per switch) of all CPUs, per second, from which they are counted; and the least that tells a rate.
_MOST_PER_S, _LEAST = 200_000, 20_000
_FEW_TURNS_PER_S = _MOST_PER_S // 8
LOOK_PERIOD_NS = 100 * NS_PER_MS
_LOOK_NS = 30_000  # at one thread, with all that follows; looks take a fiftieth of our time at most


class SwitchMode:
    """Decides with every drain of the perf engine; ``counting`` says how it is now."""

    def __init__(self, engine: PerfEngine, pipeline: Pipeline, accounts: proc.SchedAccounts) -> None:
        self.counting = False
        self._engine = engine
        self._pipeline = pipeline
        self._accounts = accounts
        self.accounts_ns = 0  # up to when records have told everything, if switches are counted
        self._began_ns = self._looked_ns = 0
        self._until_ns = 0
        pipeline.founder_ran_ns = engine.before[1] if engine.before else None
        if engine.accounts:
            self._begin({tid: Account(*account) for tid, account in engine.accounts.items()})

    @property
    def due_ns(self) -> int:
        """When the next look is due, if switches are counted."""
        n_threads = sum(len(process.threads) for process in self._pipeline.model.processes.values())
        return self._looked_ns + max(LOOK_PERIOD_NS, 50 * _LOOK_NS * n_threads)

    def look(self, until_ns: int) -> None:
        """What threads have done since the last look: for the batch up to ``until_ns``, which is fed next. All that
        records tell of the time before the first account has been fed by then."""
        if self.counting and until_ns >= self.accounts_ns:
            self._pipeline.counting.look({
                thread.tid: (thread.slot, thread.start_ns, account) for thread, account in self._all()},
                self._pipeline.ran_ns)
            self._looked_ns = time.monotonic_ns()

    def choose(self, batch: Batch) -> None:
        """``batch`` has been fed: go on like this, or the other way?"""
        n_records = len(batch.switches.tid) if batch.switches is not None else 0
        length_ns = max(batch.until_ns - self._until_ns, NS_PER_MS) if self._until_ns else NS_PER_S
        self._until_ns = batch.until_ns
        if self.counting:
            if self._pipeline.counting.turns_per_s < _FEW_TURNS_PER_S:
                self._follow()
        elif n_records >= _LEAST and n_records * NS_PER_S > _MOST_PER_S * length_ns:
            self._count()

    def end(self) -> None:
        """No more looks."""
        if self.counting:
            self._pipeline.tally.counted_ns += time.monotonic_ns() - self._began_ns
            self.counting = False
            self._pipeline.counting.end()

    def _count(self) -> None:
        self._engine.rest_switches()
        self._begin({thread.tid: account for thread, account in self._all()})

    def _begin(self, accounts: dict[int, Account]) -> None:
        """From the time of ``accounts`` on."""
        self._pipeline.counting.begin(accounts)
        self.accounts_ns = max((account.time_ns for account in accounts.values()), default=0)
        self._pipeline.endings.interrupted()
        self.counting = True
        self._began_ns = self._looked_ns = time.monotonic_ns()

    def _follow(self) -> None:
        """Records again; what threads are doing as they begin is told by their first ones."""
        self._engine.wake_switches()
        self.end()
        clocks = self._pipeline.clocks
        for thread in self._threads():
            found = find(thread.process.pid, thread.tid)
            clocks.found[thread.slot] = True
            if found is not None and found.cut == Edge.IN:
                clocks.kind[thread.slot] = Edge.IN

    def _threads(self) -> list[Thread]:
        model = self._pipeline.model
        return [model.threads[slot] for process in model.processes.values() for slot in process.threads.values()]

    def _all(self) -> Iterator[tuple[Thread, Account]]:
        """Every living thread and its account as of now."""
        for thread in self._threads():
            now_ns = time.monotonic_ns()
            account = self._accounts.read(thread.process.pid, thread.tid)
            if account is not None:
                yield thread, Account(now_ns, *account)
