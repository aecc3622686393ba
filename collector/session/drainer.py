"""Drains an engine into a pipeline.

A drain takes what is stamped up to the moment at which the kernel's accounts were read, so that both tell of the same
time. It takes place ``_SLACK_NS`` later, since records of that time may come to their rings a little late; what is
younger stays in the rings, which are merged by time.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Collection

from collector.clock import NEVER_NS, NS_PER_MS, NS_PER_S
from collector.engines.base import Engine
from collector.engines.perf.engine import PerfEngine
from collector.events import Accounts, Batch, Exited, RecordsLost
from collector.linux.background import Background
from collector.session.counted import SwitchMode
from collector.session.patience import Patience
from collector.session.pipeline import Pipeline
from collector.session.schedule import nap_ns

_SLACK_NS = 10 * NS_PER_MS
HUNG_UP = select.POLLHUP | select.POLLERR | select.POLLNVAL


class Drainer:
    """An engine and the pipeline that it feeds."""

    def __init__(self, engine: Engine, pipeline: Pipeline, start_ns: int,
                 on_disk: Callable[[], None] = lambda: None) -> None:
        """``on_disk`` is called when all that was taken is on disk, before the engine gives it up."""
        self.drained_ns = start_ns  # all that happened before is in the pipeline
        self.changes = False  # whether processes came and went in the last drain
        self.nap_ns = 0  # see schedule
        self._n_switches = self._n_ends = 0  # records of them in it
        self.failure = ""  # why nothing more comes, though the target runs on
        self.background = Background()  # in which batches are worked on, unless it is the last one
        self.stood_back_ns = 0  # in the last drain
        self._patience = Patience()
        self._engine = engine
        self._pipeline = pipeline
        self._on_disk = on_disk
        # The kernel stamps its records with its own clock, which in a time namespace is not ours.
        self._ahead_ns = engine.ahead_ns if isinstance(engine, PerfEngine) else 0
        self._mode = SwitchMode(engine, pipeline, start_ns) if isinstance(engine, PerfEngine) else None
        self._fds = engine.poll_fds()

    @property
    def fds(self) -> Collection[int]:
        """Those that become readable when a drain may be due."""
        return self._fds

    def wakers(self, due_ns: int) -> Collection[int]:
        """Those of ``fds`` that may be a reason to drain before ``due_ns``, when the next drain is due."""
        idle = self._engine.idle_fds(due_ns)
        return [fd for fd in self._fds if fd not in idle] if idle else self._fds

    @property
    def accounts_ns(self) -> int | None:
        """When accounts are to be read, while switches are counted; None while records tell of them."""
        return self._mode.due_ns if self._mode is not None and self._mode.counting else None

    @property
    def pressed_ns(self) -> int:
        """When rings will be filling up, though they do not yet."""
        return self._engine.pressed_ns

    def wants_drain(self, ready: Collection[int], due_ns: int) -> bool:
        """Whether ``ready`` descriptors are a reason to drain before ``due_ns``, when the next drain is due."""
        return self._engine.wants_drain(ready, due_ns)

    def hung_up(self, fd: int) -> None:
        """Nothing comes through a descriptor any more; it may be that the engine has failed."""
        self._fds.remove(fd)
        other = self._engine.instead_of(fd)
        if other is not None:
            self._fds.append(other)
        self._note_failure()

    @property
    def tells_moments(self) -> bool:
        """Whether a drain can end where we want it to: records have times. The signal engine gives what it has, and
        accounts, by which switches are counted, are of when they are read."""
        return self._mode is not None and not self._mode.counting

    def come_to(self, time_ns: int) -> None:
        """Takes what happened up to a moment that is over, if drains ``tell_moments``. Who comes in time takes what
        happens until accounts have been read, too; who comes late has to do with records, and with accounts from behind
        that moment for those of whom there are none."""
        if time.monotonic_ns() - time_ns <= _SLACK_NS:
            self.drain()
        elif self.drained_ns < time_ns:
            self._take(time_ns, self._engine.look(self._pipeline.time.asks()))

    def drain(self) -> None:
        """Takes all that happens until the accounts have been read."""
        self._take_what_was_recorded_before(time.monotonic_ns())
        accounts = self._engine.look(self._pipeline.time.asks())
        until_ns = time.monotonic_ns()
        time.sleep(_SLACK_NS / NS_PER_S)
        self._n_switches, self._n_ends, self.changes, self.stood_back_ns = 0, 0, False, 0
        before_ns = self.drained_ns
        self._take(until_ns, accounts)
        self.nap_ns = nap_ns(self._n_ends, until_ns - before_ns)
        if self._mode is not None:
            self._mode.choose(self._n_switches, self.drained_ns)

    def read_last(self, pid: int) -> None:
        """Takes what there is while those that have just ended are zombies, process ``pid`` among them: the accounts of
        threads whose switches are counted, and of its first one; and the CPU clocks of processes."""
        if self._mode is not None:
            self._take_what_was_recorded_before(time.monotonic_ns())
            self._mode.look()
        if isinstance(self._engine, PerfEngine):
            time_ = self._pipeline.time
            time_.take(self._engine.read_accounts([(pid, pid)]))
            time_.take_clocks(self._engine.read_clocks({pid, *time_.of_several_threads()}))
            time_.zombies.add(pid)

    def finish(self, end_ns: int = 0, *, target_ended: bool) -> None:
        """Stops the engine, takes what there still is, and closes it. ``end_ns``: where the recording ends, if drains
        have come so far: nothing behind it is taken."""
        try:
            if end_ns:
                self._engine.stop()
                self._take(end_ns, settled_ns=end_ns)
            else:
                self._take_all(target_ended)
            self._note_failure()
        finally:
            self._engine.close()
        if self._mode is not None:
            self._mode.end()

    def _take_all(self, target_ended: bool) -> None:
        accounts, now_ns = self._engine.look(self._pipeline.time.asks()), time.monotonic_ns()
        end_ns = max(self._engine.stop(), now_ns)
        self._note_failure()
        if self.failure:
            end_ns = 0
        self._take_what_was_recorded_before(NEVER_NS)
        # To stop hundreds of threads' events takes its time. What they tell of that is incomplete: if we end before the
        # target does, that is left out.
        self._take(NEVER_NS if target_ended else end_ns or NEVER_NS, accounts, end_ns)

    def _take_what_was_recorded_before(self, until_ns: int) -> None:
        """Works on what was recorded before switches were counted, if the time up to which we want to come is later."""
        if self._mode is not None and self._mode.counting and self.drained_ns < self._mode.accounts_ns <= until_ns:
            self._take(self._mode.accounts_ns)

    def _take(self, until_ns: int, accounts: Accounts | None = None, settled_ns: int = 0) -> None:
        """Works on what is stamped up to ``until_ns``, which is all up to ``settled_ns``, in as many batches as the
        engine makes of it. The first one has the accounts, which wait for the one that reaches them."""
        while self._take_batch(until_ns, accounts, settled_ns):
            accounts = None

    def _take_batch(self, until_ns: int, accounts: Accounts | None, settled_ns: int) -> bool:
        """The next batch; whether there are more."""
        batch = self._engine.drain(until_ns - self._ahead_ns)
        has_more = batch.has_more
        if self._ahead_ns:
            batch.shift(self._ahead_ns)
        batch.accounts = accounts
        if not has_more:
            batch.until_ns = settled_ns or batch.until_ns
        self.drained_ns = batch.until_ns
        self.changes |= bool(batch.changes)
        kinds = [*map(type, batch.changes)]
        self._n_ends += kinds.count(Exited)
        self._n_switches += len(batch.switches.tid) if batch.switches is not None else 0
        patience_ns = self._patience.for_next(self._engine.room_ns, lost=RecordsLost in kinds)
        self._work_on(batch, 0 if settled_ns else patience_ns)
        self._on_disk()
        self._engine.release()
        return has_more

    def _work_on(self, batch: Batch, patience_ns: int) -> None:
        began_ns, began_cpu_ns = time.monotonic_ns(), time.thread_time_ns()
        with self.background.work(patience_ns):
            self._pipeline.feed(batch)
            self._pipeline.sync()  # whoever kills us in between takes nothing with him
        cpu_ns = time.thread_time_ns() - began_cpu_ns
        self._patience.worked(cpu_ns)
        self.stood_back_ns += min(time.monotonic_ns() - began_ns - cpu_ns, patience_ns)

    def _note_failure(self) -> None:
        if failure := self._engine.failure():
            self.failure = f"{failure}: nothing is recorded from there on"


class NoDrainer:
    """That of a recording without an engine (``-p off``), which has overview samples alone. See Drainer."""

    fds: Collection[int] = ()
    changes = False
    nap_ns = 0
    failure = ""
    tells_moments = True
    accounts_ns: int | None = None
    pressed_ns = NEVER_NS
    background: Background
    stood_back_ns = 0

    def __init__(self, start_ns: int) -> None:
        self.drained_ns = start_ns

    def wakers(self, due_ns: int) -> Collection[int]:
        return ()

    def wants_drain(self, ready: Collection[int], due_ns: int) -> bool:
        return False

    def hung_up(self, fd: int) -> None:
        pass

    def come_to(self, time_ns: int) -> None:
        self.drained_ns = time_ns

    def drain(self) -> None:
        self.drained_ns = time.monotonic_ns()

    def read_last(self, pid: int) -> None:
        pass

    def finish(self, end_ns: int = 0, *, target_ended: bool) -> None:
        self.drained_ns = end_ns or time.monotonic_ns()
