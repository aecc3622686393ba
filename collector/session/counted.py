"""Whether switches are followed, one record each, or counted by the kernel's accounts: the choice."""

from __future__ import annotations

import time

from collector.clock import NS_PER_MS, NS_PER_S
from collector.engines.perf.engine import PerfEngine
from collector.events import Edge
from collector.linux.accounts import Account
from collector.session.attach import find
from collector.session.pipeline import Pipeline
from collector.session.timekeeping import by_tid

# Switch records (two per switch) of all CPUs, per second, from which they are counted; and the least that tells a rate.
_MOST_PER_S, _LEAST = 200_000, 20_000
_FEW_TURNS_PER_S = _MOST_PER_S // 8
LOOK_PERIOD_NS = 100 * NS_PER_MS
_LOOK_NS = 30_000  # at one thread, with all that follows; looks take a fiftieth of our time at most


class SwitchMode:
    """Decides with every drain of the perf engine; ``counting`` says how it is now."""

    def __init__(self, engine: PerfEngine, pipeline: Pipeline, start_ns: int) -> None:
        self.counting = False
        self._engine = engine
        self._pipeline = pipeline
        self.accounts_ns = 0  # up to when records have told everything, if switches are counted
        self._began_ns = self._looked_ns = 0
        self._until_ns = start_ns  # the end of the last drain
        pipeline.time.founder_before, pipeline.time.founder_first = engine.before, engine.first
        if engine.accounts:
            self._begin(engine.accounts)

    @property
    def due_ns(self) -> int:
        """When the next look is due, if switches are counted."""
        n_threads = sum(len(process.threads) for process in self._pipeline.model.processes.values())
        return self._looked_ns + max(LOOK_PERIOD_NS, 50 * _LOOK_NS * n_threads)

    def look(self) -> None:
        """Between batches, before somebody goes of whom there is an account now and none later."""
        if self.counting:
            self._pipeline.look(self._engine.read_accounts(self._pipeline.time.asks()))

    def choose(self, n_records: int, until_ns: int) -> None:
        """So many records of switches, all up to a time, have been fed: go on like this, or the other way?"""
        length_ns = max(until_ns - self._until_ns, NS_PER_MS)
        self._until_ns = until_ns
        if self.counting:
            self._looked_ns = time.monotonic_ns()
            if self._pipeline.time.turns.per_s < _FEW_TURNS_PER_S:
                self._follow()
        elif n_records >= _LEAST and n_records * NS_PER_S > _MOST_PER_S * length_ns:
            self._count()

    def end(self) -> None:
        """No more looks."""
        if self.counting:
            self.counting = False
            self._pipeline.stop_counting(time.monotonic_ns() - self._began_ns)

    def _count(self) -> None:
        self._engine.rest_switches()
        self._begin(by_tid(self._engine.read_accounts(self._pipeline.time.living())))

    def _begin(self, accounts: dict[int, Account]) -> None:
        """From the time of ``accounts`` on."""
        self._pipeline.count(accounts)
        self.accounts_ns = max((account.time_ns for account in accounts.values()), default=0)
        self.counting = True
        self._began_ns = self._looked_ns = time.monotonic_ns()

    def _follow(self) -> None:
        """Records again; what threads are doing as they begin is told by their first ones."""
        self._engine.wake_switches()
        self.end()
        looks = [find(pid, tid) for pid, tid in self._pipeline.time.living()]
        self._pipeline.record_again([found.tid for found in looks if found is not None and found.cut == Edge.IN])
