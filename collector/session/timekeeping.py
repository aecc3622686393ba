"""When every thread ran: from records, accounts and the model's edges to periods. The door to the rooms of ``timing``.

    switches, sharpened by departures   -> arrivals   put earlier, by the kernel's accounts
    the model's births and ends         -> stolen     cuts in what a hypervisor had taken
    accounts where switches are counted -> counting   stretches instead of records
                                        -> clocks     one line of edges for each thread; the periods that they close

Accounts come with a batch and lie behind its end: what is to be compared with records waits there for the next batch
that reaches it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from collector.arrays import distinct
from collector.events import Accounts, Array, Batch, Cuts, Edge, Source, Switches
from collector.processes.model import Model, Thread
from collector.session.attach import Found
from collector.session.sources import NO_CPU, EdgeSources
from collector.timing.arrivals import Arrivals
from collector.timing.counting import Account, Counting
from collector.timing.endings import Endings
from collector.timing.microstate import Periods, ThreadClocks
from collector.timing.runnable import Runnable
from collector.timing.stolen import Stolen
from collector.timing.switching import sharpened


class Timekeeping:
    """The clocks of all threads of a model, by slot, and what keeps them right."""

    def __init__(self, interval_ns: int) -> None:
        self.clocks = ThreadClocks(interval_ns)
        self.model = Model(self.clocks.new_slot)
        self.endings = Endings()
        self.counting = Counting()  # of switches that come too often to be followed
        self.founder_ran_ns: int | None = None  # by the kernel's account, before it became itself
        self.ending: Array = np.zeros(0, dtype=np.int64)  # the slots that end in this batch
        self.sources: EdgeSources | None = None  # kept for those who ask for it
        self._accounts: dict[int, Account] = {}  # as the last batch told them, by tid
        self._accounts_read_ns = 0
        self._fed_ns = 0  # the end of the last batch
        self._counted_ns = 0  # up to when records have told everything, if switches are counted
        self._arrivals = Arrivals()
        self._stolen = Stolen()
        self._runnable = Runnable()
        self._delay_seen: dict[int, int] = {}  # by slot
        self._ran_before_ns: dict[int, int] = {}  # by slot: on CPU before we came, where it is known

    @property
    def stolen_ns(self) -> int:
        """For how long a hypervisor had the CPUs of running threads."""
        return self._stolen.total_ns

    # -- lives

    def born(self, slot: int, time_ns: int) -> None:
        """A thread begins, and its account with it."""
        self._delay_seen[slot] = self._ran_before_ns[slot] = 0
        self._arrivals.begin(slot, Account(time_ns))
        self._stolen.begin(slot, 0)

    def found(self, slot: int, found: Found, time_ns: int) -> None:
        """A thread that was there before us."""
        account = found.account
        if account is None:
            return
        self._delay_seen[slot] = account.delay_ns
        self._ran_before_ns[slot] = account.run_ns
        self._arrivals.begin(slot, account)
        self._stolen.begin(slot, account.run_ns - max(account.time_ns - time_ns, 0))
        if found.cut == Edge.IN:
            self._runnable.begin(slot, account, time_ns)

    def executed(self, old: int | None, slot: int, time_ns: int) -> None:
        """A thread goes on in another image, at another slot; ``old``: the one before, if that was known."""
        if self.counting.active:
            self.counting.executed(slot, time_ns)
        if old is not None and old in self._delay_seen:
            self._delay_seen[slot] = self._delay_seen[old]

    def founder_begins(self, slot: int) -> None:
        """The founder has become itself: what was before is none of its time."""
        if self.founder_ran_ns is not None:
            self._ran_before_ns[slot] = self.founder_ran_ns
            self._stolen.begin(slot, self.founder_ran_ns)

    def exited(self, thread: Thread, time_ns: int, *, is_last: bool) -> None:
        """A thread's events have ended; ``is_last``: its process is over, and recorded."""
        life_ns = thread.start_ns, time_ns
        told = self.counting.active and self.counting.ended(thread.tid, thread.slot, life_ns, self.ran_ns)
        if is_last and not told:
            self.endings.exited(thread.tid, thread.slot, time_ns)

    def forget(self, slot: int) -> None:
        """The thread is gone, and settled."""
        self._delay_seen.pop(slot, None)
        self._ran_before_ns.pop(slot, None)
        self._arrivals.forget(slot)
        self._stolen.forget(slot)

    def end_all(self, time_ns: int) -> None:
        """All that live end now."""
        for thread in self.model.threads:
            if thread.alive:
                self.model.cuts.add(thread.slot, time_ns, Edge.ENDED)
                thread.alive = False

    # -- records

    def advance(self, batch: Batch) -> Periods:
        """Takes the batch's edges; returns the periods that they close."""
        slot, sharp_ns, time_ns, edge = self._recorded(batch)
        exact_ns = self._corrected(slot, sharp_ns, edge, batch)
        cuts = self.model.take_cuts()  # after slots(), which may have met threads not heard of before
        told, source = self._told(slot, edge, time_ns, batch.until_ns)
        n_recorded = len(slot) + len(cuts.slot)
        cut_ns = np.array(cuts.time_ns + told.time_ns, dtype=np.int64)
        slot = np.concatenate([slot, np.array(cuts.slot + told.slot, dtype=np.int64)])
        time_ns, exact_ns = np.concatenate([time_ns, cut_ns]), np.concatenate([exact_ns, cut_ns])
        edge = np.concatenate([edge, np.array(cuts.edge + told.edge, dtype=np.int8)])
        self.ending = distinct(slot[edge == Edge.ENDED])
        # BORN before anything else of its thread, ENDED after everything else, whatever their stamps say.
        rank = np.where(edge == Edge.BORN, 0, np.where(edge == Edge.ENDED, 2, 1))
        order = np.lexsort((time_ns, rank))
        self._fed_ns = batch.until_ns
        periods = self.clocks.advance(slot[order], exact_ns[order], edge[order], order >= n_recorded)
        if self.sources is not None:
            moved = exact_ns[:len(sharp_ns)] != sharp_ns
            sources = np.concatenate([np.where(moved, Source.ADJUSTED, Source.RECORDED),
                                      np.full(len(cuts.slot), Source.RECORDED), np.full(len(told.slot), source)])
            cpus = np.full(len(slot), NO_CPU, dtype=np.int32)
            if batch.switches is not None and batch.switches.cpu is not None:
                cpus[:len(sharp_ns)] = batch.switches.cpu
            order = order[np.argsort(slot[order], kind="stable")]
            self.sources.note(self.clocks.edges, sources[order].astype(np.int8), cpus[order], self.clocks.n_slots)
        return periods

    def _recorded(self, batch: Batch) -> tuple[Array, Array, Array, Array]:
        """Slot, time as far as records tell it, time and edge (m,) of the batch's switches."""
        switches = batch.switches
        if switches is None:
            none = np.zeros(0, dtype=np.int64)
            return none, none, none, none.astype(np.int8)
        slot = self.model.slots(switches.tid, switches.pid, switches.time_ns)
        return slot, _sharpened(switches, batch), switches.time_ns, switches.edge

    def _corrected(self, slot: Array, sharp_ns: Array, edge: Array, batch: Batch) -> Array:
        """The times (m,) of switches, by accounts."""
        if batch.switches is None:
            return sharp_ns
        if self.counting.active:  # and these are the last records before: looks tell what came after them, too
            self._arrivals.interrupted()
            return sharp_ns
        return self._arrivals.corrected(slot, edge, sharp_ns, batch.until_ns, self.clocks)

    def _told(self, slot: Array, edge: Array, time_ns: Array, until_ns: int) -> tuple[Cuts, int]:
        """The edges that accounts tell beside records (m,), and their source."""
        counted = self.counting.take_cuts()
        if self.counting.active or counted.slot:
            self._stolen.interrupted()
            return counted, Source.SYNTHETIC
        return self._stolen.cuts(slot, edge, time_ns, until_ns, self.clocks), Source.ADJUSTED

    def tails(self, batch: Batch) -> dict[int, int]:
        """By slot: what was used of a CPU behind the end of those whose death the batch tells."""
        return self.endings.tails(batch.ends, batch.switches)

    # -- accounts

    def asks(self) -> list[tuple[int, int]]:
        """The threads, each one's process and own id, whose accounts the next batch must have whether they run or not:
        where switches are counted, all of them."""
        if self.counting.active:
            return self.living()
        threads = [self.model.threads[slot] for slot in self._runnable.open_slots()]
        return [(thread.process.pid, thread.tid) for thread in threads]

    def living(self) -> list[tuple[int, int]]:
        """All threads, each one's process and own id."""
        return [(thread.process.pid, thread.tid) for thread in self.model.living()]

    def take(self, accounts: Accounts | None) -> None:
        """What a batch that has not been taken yet brings of accounts."""
        if accounts is not None:
            self._accounts, self._accounts_read_ns = by_tid(accounts), accounts.read_ns
            self.look(accounts)

    def look(self, accounts: Accounts) -> None:
        """Accounts of the threads known so far; of no interest where switches are recorded."""
        if self.counting.active and self._fed_ns >= self._counted_ns:
            read = by_tid(accounts)
            threads = [thread for thread in self.model.living() if thread.tid in read]
            self.counting.look({thread.tid: (thread.slot, thread.start_ns, read[thread.tid]) for thread in threads},
                               self.ran_ns)

    def count(self, accounts: dict[int, Account]) -> None:
        """From the time of ``accounts`` (by tid) on, switches are counted. Batches that end there bring the records of
        the time before."""
        self.counting.begin(accounts)
        self.endings.interrupted()
        self._counted_ns = max((account.time_ns for account in accounts.values()), default=0)

    def record_again(self, running: Sequence[int]) -> None:
        """Records tell of switches again, and until each thread's first one, whether it is one of the ``running`` (by
        tid)."""
        for thread in self.model.living():
            self.clocks.found[thread.slot] = True
            if thread.tid in running:
                self.clocks.kind[thread.slot] = Edge.IN

    def run_delays(self, periods: Periods, untold: Array) -> tuple[Array, Array]:
        """How much run_delay has grown for the threads that were blocked in periods with an untold wake-up."""
        slots, grown = [], []
        for slot in distinct(periods.slot[untold & (periods.kind == Edge.OUT_BLOCKED)]).tolist():
            account = self._account(slot)
            if account is not None:
                slots.append(slot)
                # What the founder waited before its exec is none of its image's.
                grown.append(account.delay_ns - self._delay_seen.get(slot, account.delay_ns))
                self._delay_seen[slot] = account.delay_ns
        return np.array(slots, dtype=np.int64), np.array(grown, dtype=np.int64)

    def compare(self, sampled: Iterable[int], batch: Batch) -> None:
        """Notes the accounts of threads that get a CPU so often that the lateness of the records matters, and of some
        that have run for a while, of which clocks have ``sampled`` these: a hypervisor may have taken it from them."""
        running = self._stolen.worth_a_look(sampled)
        arriving = self._arrivals.worth_a_look()
        for slot in {*arriving, *running}:
            account = self._account(slot)
            if account is not None and slot in running:
                self._stolen.look(slot, account)
            if account is not None and slot in arriving:
                self._arrivals.look(slot, account)
        if batch.accounts is not None:
            self.decide_runnable(batch.until_ns)

    def ran(self, slots: Iterable[int]) -> None:
        """Clocks have sampled these."""
        self._runnable.ran(slots)

    def decide_runnable(self, until_ns: int, last: bool = False) -> None:
        """Of threads that were found runnable and have no record yet: whether they run or wait."""
        if self.counting.active:
            self._runnable.forget()
        for slot in self._runnable.undecided(self.clocks, until_ns, last):
            account = self._account(slot)
            if account is not None:
                self._runnable.decide(slot, account, until_ns, self.clocks, last)
            else:
                self._runnable.gone(slot, self._accounts_read_ns, self.clocks, last)

    def ran_ns(self, slot: int, time_ns: int) -> int | None:
        """How long a thread has run up to now by all that was told, on the scale of the kernel's account of it; None
        where it is not known how long it had run when it came to be recorded."""
        before_ns = self._ran_before_ns.get(slot)
        if before_ns is None:
            return None
        running_ns = time_ns - int(self.clocks.since_ns[slot]) if self.clocks.kind[slot] == Edge.IN else 0
        return before_ns + int(self.clocks.cpu_ns[slot]) + max(running_ns, 0)

    def cpu_ns(self, slots: Iterable[int], time_ns: int) -> int:
        """Exact running time of threads altogether, up to now."""
        at = np.array(list(slots), dtype=np.int64)
        running = np.where(self.clocks.kind[at] == Edge.IN, time_ns - self.clocks.since_ns[at], 0)
        return int(self.clocks.cpu_ns[at].sum() + np.maximum(running, 0).sum())

    def _account(self, slot: int) -> Account | None:
        """The kernel's account of a thread as the batch has it; None where that could not be had."""
        thread = self.model.threads[slot]
        return self._accounts.get(thread.tid) if thread.alive else None


def by_tid(accounts: Accounts) -> dict[int, Account]:
    """The last account of each thread."""
    columns = (accounts.time_ns, accounts.run_ns, accounts.delay_ns, accounts.turns)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return dict(zip(accounts.tid.tolist(), map(Account._make, rows), strict=True))


def _sharpened(switches: Switches, batch: Batch) -> Array:
    """The switches' times (m,), by the batch's departures."""
    departed = [part for part in (batch.leaving, batch.sites) if part is not None]
    none = np.zeros(0, dtype=np.int64)
    return sharpened(switches, np.concatenate([none, *(part.tid for part in departed)]),
                     np.concatenate([none, *(part.time_ns for part in departed)]))
