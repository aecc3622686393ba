"""When every thread ran: from records, accounts and the model's edges to periods. The door to the rooms of ``timing``.

    switches, sharpened by departures -+
    the model's births and ends        +-> ledger -> timeline -> periods
    accounts of the batch, and those  -+
    of threads that end in it

Accounts that lie behind a batch's end wait for the batch that reaches them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from collector.arrays import Columns, among, distinct, indices, lasts
from collector.events import Accounts, Array, Batch, Change, Clocks, Edge, RecordsLost, Throttled, Wakings
from collector.linux.accounts import Account
from collector.processes.model import Model, Thread
from collector.session.attach import Found
from collector.session.tally import Tally
from collector.timing.endings import Endings
from collector.timing.last_accounts import LastAccounts
from collector.timing.ledger import LONGEST_TICK_NS, Budget, Ledger, ReadAccounts, Seen
from collector.timing.remainders import Remainders
from collector.timing.silences import NO_STRIKES, Strikes
from collector.timing.states import Delays
from collector.timing.switching import sharpened
from collector.timing.timeline import (
    NO_MOMENTS,
    Edges,
    Periods,
    Timeline,
    Wakeups,
    edges_of,
    is_out,
    joined,
    moments_of,
)
from collector.timing.turns import Turns

_COLUMNS = "time_ns", "pid", "tid", "run_ns", "delay_ns", "turns"  # of Accounts
_NO_ACCOUNTS = ReadAccounts(*[np.zeros(0, dtype=np.int64)] * 4)
_CLOCKS = "clock", "brief"  # sources of records
_LOSSY_BATCHES = 3  # for which a loss that was reported may show


class Timekeeping:
    """The clocks of all threads of a model, by slot, and what keeps them right."""

    def __init__(self, n_cpus: int, interval_ns: int) -> None:
        """``interval_ns``: of the clocks, if these strike whatever their threads do; else 0."""
        self._interval_ns = interval_ns
        self.timeline = Timeline()
        self.ledger = Ledger(n_cpus)
        self.model = Model(self._new_slot)
        self.endings = Endings()
        self.remainders = Remainders(self.timeline, self.ledger)
        self.founder_before: Account | None = None  # the founder's, before it became itself
        self.founder_first: Sequence[Account] = ()  # and soon after that
        self._founder: tuple[int, int] | None = None  # its slot and delay, if it has begun in this batch
        self.counts = False  # switches come too often to be recorded: only accounts tell of them
        self.ending: Array = np.zeros(0, dtype=np.int64)  # the slots that end in this batch
        self.delays = Delays(self.ending, self.ending)  # what the accounts of this batch tell of waits for a CPU
        self.woken = NO_MOMENTS  # of our threads, in this batch, as far as they end sleeps
        self._came = NO_MOMENTS  # when they got CPUs, where the very moment is known
        self.turns = Turns()
        self._asked_also: set[int] = set()  # slots
        self._last_accounts = LastAccounts()
        self._known = Columns(delay_ns=("i8", -1))  # by the account before; -1: there is none
        self._n_slots = 0
        self._free: list[int] = []
        self._begun: list[tuple[int, int, int, int, int]] = []  # slot, time, run, delay, when they were read
        self._found_off_cpu: list[tuple[int, int]] = []  # slots, and when their accounts were read
        self.went_on: list[tuple[int, int]] = []  # slots of threads in their old and their new image, in the last batch
        self._went_on: list[tuple[int, int]] = []  # and in the next one
        self._accounts: list[Accounts] = []  # that no batch has reached yet
        self._clocks: list[tuple[int, int, int]] = []  # the same: when it was read, pid, and what it said
        self.zombies: set[int] = set()  # processes that were over when their last clocks were read
        self.used_ns: dict[int, int] = {}  # by processes that lost their events in the last batch: until then
        self._lost: list[int] = []  # these, while the batch is worked on
        self._over: set[int] = set()  # processes that ended in the last batch, or whose clocks no batch has reached yet
        self._nobodys: set[int] = set()  # slots of the founder before it became itself
        self._fed_ns = 0  # the end of the last batch
        self._counted_ns = 0  # up to when records have told everything, if switches are counted
        self._n_lossy = 0

    # -- lives

    def _new_slot(self, found: bool) -> int:
        if self._free:
            slot = self._free.pop()
        else:
            slot, self._n_slots = self._n_slots, self._n_slots + 1
            self.timeline.grow(self._n_slots)
            self.ledger.grow(self._n_slots)
            self._known.grow(self._n_slots)
            self.turns.grow(self._n_slots)
            self._last_accounts.grow(self._n_slots)
        if found:
            self.timeline.found(slot)
            self.turns.found(slot)
        return slot

    def born(self, slot: int, time_ns: int) -> None:
        """A thread begins, and its account with it."""
        self._begun.append((slot, time_ns, 0, 0, time_ns))
        thread = self.model.threads[slot]
        if thread.tid == thread.process.pid:
            self.remainders.begin(thread.tid)

    def all_born(self, threads: Iterable[Thread]) -> None:
        """Further threads of processes begin."""
        self._begun += [(thread.slot, thread.start_ns, 0, 0, thread.start_ns) for thread in threads]

    def found(self, slot: int, found: Found, time_ns: int) -> None:
        """A thread that was there before us, as of a time just before its account was read."""
        account = found.account
        if account is not None:
            self.turns.begins(slot, account.turns, account.run_ns, account.time_ns)
            read_ns = account.time_ns if found.cut == Edge.IN else time_ns
            self._begun.append((slot, time_ns, account.run_ns, account.delay_ns, read_ns))
            if found.cut != Edge.IN:
                self._found_off_cpu.append((slot, account.time_ns))

    def executed(self, old: int | None, slot: int) -> None:
        """A thread goes on in another image, at another slot; ``old``: the one before, if that is known."""
        if old is not None:
            self._went_on.append((old, slot))

    def founder_begins(self, slot: int, time_ns: int) -> None:
        """The founder has become itself: what was before, to a moment before its exec, is none of its time."""
        if self.founder_before is not None:
            before = self.founder_before
            self._founder = slot, before.delay_ns
            self.remainders.begin(self.model.threads[slot].tid, slot)
            self.turns.begins(slot, before.turns, before.run_ns, before.time_ns)
            self._nobodys.update(old for old, new in self._went_on if new == slot)
            self._went_on = [(old, new) for old, new in self._went_on if new != slot]
            self._begun.append((slot, time_ns, before.run_ns, before.delay_ns, min(before.time_ns, time_ns - 1)))

    def exited(self, thread: Thread, time_ns: int, *, is_last: bool) -> None:
        """A thread's events have ended; ``is_last``: its process is over, and recorded."""
        if is_last and not self.counts:
            self.endings.exited(thread.tid, thread.slot, time_ns, thread.image.path, thread.process.pid)

    def unseen(self, pid: int) -> None:
        """The kernel has taken the events of a process, which goes on."""
        self._lost.append(pid)

    def lost(self) -> None:
        """Records of switches were lost."""
        self._n_lossy = _LOSSY_BATCHES

    def end_all(self, time_ns: int) -> None:
        """All that live end now."""
        for thread in self.model.living():
            self.model.cuts.add(thread.slot, time_ns, Edge.ENDED)
            thread.alive = False

    def tell(self, tally: Tally) -> None:
        """What has been mended, guessed, and could not be told."""
        tally.steal_ns, tally.n_repaired = self.ledger.steal_ns, self.ledger.n_repaired
        tally.n_estimated_ends = self.ledger.n_estimated
        tally.n_untold_ends = self.endings.n_untold + self.endings.n_open
        tally.n_guessed_ends = self.endings.n_guessed
        tally.n_likely_ends = self.endings.n_estimated

    def give_back(self, slots: Array) -> None:
        """The threads at slots are over, and everything that was theirs has been told."""
        self.timeline.forget(slots)
        self.ledger.forget(slots)
        self.endings.forget(slots)
        self.turns.forget(slots)
        self._last_accounts.forget(slots)
        self._known.reset(slots)
        self.model.forget(slots.tolist())
        self._free += slots.tolist()

    # -- batches

    def advance(self, batch: Batch) -> Periods:
        """Takes a batch's edges and accounts; returns the periods that these close."""
        edges = self._edges(batch)
        self.woken = self._wakeups(batch.wakings)
        self._begin()
        self._begin_founder(edges, batch.until_ns)
        if batch.accounts is not None and batch.accounts.clocks is not None:
            self.take_clocks(batch.accounts.clocks)
        self.ending = distinct(edges.slot[edges.edge == Edge.ENDED])
        seen = self._seen(batch)
        looked = self._reached(batch)
        accounts = self._with_last(looked, batch, edges)
        new = {slot for _, slot in self._went_on}  # until its last clock is read, the account of these says nothing
        last = self._last_of_each(accounts) if accounts is not None and len(accounts.tid) else None
        read = self._read(last, new)
        if looked is not None:
            self._lose(edges, read)
        budgets = list(self._budgets(edges, only_over=not seen.is_blind))
        if last is not None and self._went_on and not seen.is_blind:
            budgets += self._across_execs(*last)
        behind = self._waiting() if len(self.ending) and self.timeline.clocks.found.any() else None
        periods = self.timeline.advance(self.ledger.reconciled(edges, read, self.timeline, seen, self.woken, self._came,
                                                               budgets, lambda: self._struck(batch), behind))
        if seen.is_blind:  # a sleep is several that were put together: no wake-up of these ends it
            self.woken = NO_MOMENTS
        self._note_turns(last, new, looked=looked is not None)
        for old, slot in self._went_on:
            self.ledger.goes_on(old, slot, int(self.timeline.clocks.cpu_ns[old]))
            self.turns.goes_on(old, slot)
            self._known.delay_ns[slot] = self._known.delay_ns[old]
        self.went_on, self._went_on = self._went_on, []
        self._fed_ns, self._n_lossy = batch.until_ns, max(self._n_lossy - 1, 0)
        return periods

    def _seen(self, batch: Batch) -> Seen:
        """How well the stretch since the last batch was seen."""
        is_counted = self.counts and self._counted_ns > 0
        seen = Seen(self._fed_ns or batch.until_ns, batch.until_ns, is_lossy=self._n_lossy > 0,
                    is_blind=is_counted and self._fed_ns >= self._counted_ns)
        if not is_counted or seen.is_blind:
            return seen
        # Records rest while the accounts are read from which on switches are counted: of hundreds of threads that takes
        # a while, of which no record tells.
        records_ns = batch.switches.time_ns if batch.switches is not None else np.zeros(0, dtype=np.int64)
        return seen._replace(is_lossy=True, rested_ns=int(records_ns.max(initial=seen.since_ns)))

    def _budgets(self, edges: Edges, *, only_over: bool) -> Iterator[Budget]:
        """What clocks of processes leave for their threads that end, and for those that are gone when a clock is read;
        or ``only`` those of processes that are ``over``.

        A clock tells of all that is before it: of threads that live on, as far as their accounts wait; and where there
        is none behind the last of the ends, no more than the CPUs can have run meanwhile.
        """
        by_process = self._ending_by_process() if self._clocks else {}
        if not by_process:
            return
        ends = edges.edge == Edge.ENDED
        ended_ns = dict(zip(edges.slot[ends].tolist(), edges.time_ns[ends].tolist(), strict=True))
        waiting = self._waiting()
        for pid, ending in by_process.items():
            last_ns = max(ended_ns[slot] for slot in ending)
            clock = self._last_clock(pid, last_ns) if only_over else self._clock_behind(pid, last_ns)
            if clock is None:
                continue
            time_ns, clock_ns = clock
            slots = np.array(self._living_slots(pid) + ending, dtype=np.int64)
            left = self.remainders.most_left_ns if only_over else self.remainders.left_ns
            left_ns = left(pid, clock_ns, slots)
            if left_ns is not None:
                their = among(waiting.slot, slots)
                left_ns -= int(self.ledger.ran_ns(waiting.slot[their], waiting.run_ns[their]).sum())
                left_ns += self.ledger.n_cpus * max(last_ns - time_ns, 0)
                yield Budget(slots[~among(slots, waiting.slot)], left_ns)

    def _across_execs(self, slot: Array, accounts: Accounts) -> Iterator[Budget]:
        """What the accounts of threads that have gone on in other images say of them in all images of this batch."""
        run_ns = dict(zip(slot.tolist(), accounts.run_ns.tolist(), strict=True))
        lives: dict[int, list[int]] = {}  # by the last slot of each, all of its slots
        for old, new in self._went_on:
            lives[new] = [*lives.pop(old, [old]), new]
        for new, slots in lives.items():
            ran_ns = self.ledger.most_ran_ns(slots[0], run_ns[new]) if new in run_ns else None
            if ran_ns is not None:
                yield Budget(np.array(slots, dtype=np.int64), ran_ns)

    def _waiting(self) -> ReadAccounts:
        """The last account of each thread among those that no batch has reached yet."""
        if not self._accounts:
            return _NO_ACCOUNTS
        slot, accounts = self._last_of_each(_joined(self._accounts))
        return ReadAccounts(slot, accounts.time_ns, accounts.run_ns, accounts.delay_ns)

    def _clock_behind(self, pid: int, time_ns: int) -> tuple[int, int] | None:
        """The first clock of a process that was read behind a time, or the last one before: when, and what it said."""
        clocks = sorted((read_ns, clock_ns) for read_ns, its, clock_ns in self._clocks if its == pid)
        return next((clock for clock in clocks if clock[0] >= time_ns), clocks[-1] if clocks else None)

    def _last_clock(self, pid: int, ended_ns: int) -> tuple[int, int] | None:
        """The last clock of a process whose last threads have ended, if it stood still by then."""
        if self._lives(pid):
            return None
        clocks = [(read_ns, clock_ns) for read_ns, its, clock_ns in self._clocks if its == pid]
        last = max(clocks, default=None)
        stood_still = last is not None and (pid in self.zombies or last[0] >= ended_ns + LONGEST_TICK_NS)
        return last if stood_still else None

    def _ending_by_process(self) -> dict[int, list[int]]:
        """The slots that end in this batch, by pid."""
        ending: dict[int, list[int]] = defaultdict(list)
        for slot, pid in zip(self.ending.tolist(), self.model.of.pid[self.ending].tolist(), strict=True):
            if slot not in self._nobodys:
                ending[pid].append(slot)
        return ending

    def _living_slots(self, pid: int) -> list[int]:
        process = self.model.processes.get(pid)
        return list(process.threads.values()) if process is not None else []

    def _edges(self, batch: Batch) -> Edges:
        """The batch's edges, in no order: what records tell, and the model."""
        switches, none = batch.switches, np.zeros(0, dtype=np.int64)
        self._came = NO_MOMENTS
        if switches is None:
            edges = edges_of(none, none, none)
        else:
            departed = [part for part in (batch.leaving, batch.sites) if part is not None]
            exact_ns = sharpened(switches, np.concatenate([none, *(part.tid for part in departed)]),
                                 np.concatenate([none, *(part.time_ns for part in departed)]),
                                 is_lossy=self._n_lossy > 0)
            slot = self.model.slots(switches.tid, switches.pid, switches.time_ns)
            if switches.exact is not None:
                exact_ns = np.where(switches.exact, switches.time_ns, exact_ns)
                came = switches.exact & (switches.edge == Edge.IN)
                self._came = moments_of(slot[came], exact_ns[came])
            edges = edges_of(slot, exact_ns, switches.edge, switches.cpu)
        cuts = self.model.take_cuts()  # after slots(), which may have met threads not heard of before
        if not cuts.slot:
            return edges
        slot, time_ns, edge = (np.array(column, dtype=np.int64) for column in (cuts.slot, cuts.time_ns, cuts.edge))
        return joined(edges, edges_of(slot, time_ns, edge))

    def _wakeups(self, wakings: Wakings | None) -> Wakeups:
        if wakings is None:
            return NO_MOMENTS
        ours = self.model.known(wakings.tid)
        tid, time_ns = wakings.tid[ours], wakings.time_ns[ours]
        return moments_of(self.model.slots(tid, tid, time_ns), time_ns)

    def _struck(self, batch: Batch) -> Strikes:
        """When clocks struck in a batch, if all of that is told."""
        clock = batch.clock
        if clock is None or not self._interval_ns or any(map(_leaves_out_strikes, batch.changes)):
            return NO_STRIKES
        slot = self.model.slots(clock.tid, clock.pid, clock.time_ns)
        return Strikes(moments_of(slot, clock.time_ns), self._interval_ns)

    def _begin(self) -> None:
        if self._begun:
            begun = np.array(self._begun, dtype=np.int64)
            begun = begun[begun[:, 0].argsort(kind="stable")]
            slot, time_ns, run_ns, delay_ns, read_ns = begun[lasts(begun[:, 0])].T
            self._last_accounts.born(slot, np.where((run_ns == 0) & (read_ns == time_ns), time_ns, 0))
            self.ledger.begin(ReadAccounts(slot, time_ns, run_ns, delay_ns), read_ns - time_ns)
            self._known.delay_ns[slot] = delay_ns
            self._begun = []
        if self._found_off_cpu:
            self.ledger.found_off_cpu(*np.array(self._found_off_cpu, dtype=np.int64).T)
            self._found_off_cpu = []

    def _begin_founder(self, edges: Edges, until_ns: int) -> None:
        """How much of the founder's account is not its own. Between the account before it became itself and that moment
        it ran for some milliseconds, or waited, which nobody tells. One that is read soon afterwards, when records say
        that it was off its CPU, tells it as well as they tell what it ran meanwhile: there are few lags by then. Where
        a hypervisor stole time meanwhile that is too little: it is no less than the account before
        (and no more than that and all of the time since then)."""
        founder, self._founder = self._founder, None
        if founder is None or self._n_lossy:
            return
        slot, delay_ns = founder
        rows = indices(edges.slot == slot)
        rows = rows[edges.time_ns[rows].argsort(kind="stable")]
        times_ns, kinds = edges.time_ns[rows], edges.edge[rows]
        ran_ns = np.diff(times_ns)[::2].cumsum()  # up to each time that it left its CPU, if it came and left in turn
        for account in self.founder_first:
            n = int(times_ns.searchsorted(account.time_ns))
            came, left = kinds[:n:2], kinds[1:n:2]
            if n and len(came) == len(left) and (came == Edge.IN).all() and is_out(left).all() and (
                    account.time_ns <= until_ns):
                base_ns = int(account.run_ns - ran_ns[n // 2 - 1])
                bases_ns = self.ledger.bases_ns(slot) or (base_ns, base_ns)
                one = slot, times_ns[0], min(max(base_ns, bases_ns[0]), bases_ns[1]), delay_ns
                self.ledger.begin(ReadAccounts(*np.array(one)[:, None]))
                return

    def _reached(self, batch: Batch) -> Accounts | None:
        """The accounts that the batch reaches; the others wait. None where nobody has looked by then."""
        waiting = [*self._accounts, *([batch.accounts] if batch.accounts is not None else [])]
        if not any(part.read_ns <= batch.until_ns or (part.time_ns <= batch.until_ns).any() for part in waiting):
            self._accounts = waiting
            return None
        accounts = _joined(waiting)
        reached = accounts.time_ns <= batch.until_ns
        self._accounts = [] if reached.all() else [_taken(accounts, ~reached)]
        return _taken(accounts, reached) if self._accounts else accounts

    def _with_last(self, accounts: Accounts | None, batch: Batch, edges: Edges) -> Accounts | None:
        """The accounts with those of the threads that end."""
        if batch.exits is not None:
            self._last_accounts.take(batch.exits)
        for old, new in self._went_on:
            self._last_accounts.goes_on(old, new)
        if not self._last_accounts.has_any:
            return accounts
        ends = indices(edges.edge == Edge.ENDED)
        ends = ends[self._is_over(edges.slot[ends])]
        slot, of = edges.slot[ends], self.model.of
        last = self._last_accounts.of_ending(slot, of.pid[slot], of.tid[slot], edges.time_ns[ends])
        self._last_accounts.keep(batch.until_ns, self.model.known)
        parts = [part for part in (accounts, last) if part is not None]
        return _joined(parts) if parts else None

    def _is_over(self, ending: Array) -> Array:
        """Of which slots (n,) that end the threads do not go on in another image."""
        return ~among(ending, np.array([old for old, _ in self._went_on], dtype=np.int64))

    def _read(self, last: tuple[Array, Accounts] | None, without: Collection[int]) -> ReadAccounts:
        """The last account of each thread, by slot. What they tell of waits is noted."""
        none = np.zeros(0, dtype=np.int64)
        self.delays = Delays(none, none)
        if last is None:
            return _NO_ACCOUNTS
        slot, accounts = last
        known, before = self._known, self._known.delay_ns[slot] >= 0
        self.delays = Delays(slot[before], (accounts.delay_ns - known.delay_ns[slot])[before])
        known.delay_ns[slot] = accounts.delay_ns
        kept = ~among(slot, np.array(list(without), dtype=np.int64))
        return ReadAccounts(slot[kept], accounts.time_ns[kept], accounts.run_ns[kept], accounts.delay_ns[kept])

    def _last_of_each(self, accounts: Accounts) -> tuple[Array, Accounts]:
        """The slots of our threads among some accounts, and the last one of each."""
        ours = indices(self.model.known(accounts.tid))
        time_ns = accounts.time_ns[ours]
        slot = self.model.slots(accounts.tid[ours], accounts.pid[ours], time_ns)
        order = np.lexsort((time_ns, slot))
        order = order[lasts(slot[order])]
        return slot[order], _taken(accounts, ours[order])

    def _lose(self, edges: Edges, read: ReadAccounts) -> None:
        """Of threads that were found runnable, have no edge, and no account any more, nothing is known: they were about
        to end as we came, when their events had ended already."""
        clocks = self.timeline.clocks
        open_ = indices(clocks.found & (clocks.kind == Edge.IN))
        if not len(open_):
            return
        waiting = {tid for part in self._accounts for tid in part.tid.tolist()}
        there = {*edges.slot.tolist(), *read.slot.tolist()}
        self.timeline.lose(np.array([slot for slot in open_.tolist() if slot not in there
                                     and self.model.threads[slot].tid not in waiting], dtype=np.int64))

    def _note_turns(self, last: tuple[Array, Accounts] | None, without: Collection[int], *, looked: bool) -> None:
        """Where switches are counted, and where they are recorded again: of what was between, first accounts tell."""
        self.turns.recorded(self.timeline.edges)
        if not self._counted_ns:
            return
        if last is not None:
            slot, accounts = last
            kept = ~among(slot, np.array(list(without), dtype=np.int64))
            is_blind = looked and self.counts and self._fed_ns > self._counted_ns
            length_ns = int(accounts.time_ns.max(initial=0)) - self._fed_ns if is_blind else 0
            self.turns.counted(slot[kept], _taken(accounts, kept), self.timeline.edges, max(length_ns, 0))
        if not self.counts:
            return
        ended = self.ending[self._is_over(self.ending)]
        self.turns.ended(ended, self.ledger.account_ns(ended, self.timeline.clocks.cpu_ns[ended]))

    @property
    def n_slots(self) -> int:
        """The slots are numbers below this."""
        return self._n_slots

    def tails(self, batch: Batch) -> dict[int, int]:
        """By slot (-1: given back): what was used of a CPU behind the end of those whose death the batch tells, and of
        threads of which the clock of their process does."""
        tails = self.endings.tails(batch.ends, batch.switches)
        self._part_with_unseen()
        self._add_remainders(tails, batch.until_ns)
        return tails

    def _part_with_unseen(self) -> None:
        """What their clocks say from here on is nobody's that is recorded. Where it is not known where a clock began,
        the account of the thread that went on has what is known of it."""
        lost, self._lost, self.used_ns = self._lost, [], {}
        ending = self._ending_by_process() if lost else {}
        for pid in lost:
            slots = np.array(ending.get(pid, []), dtype=np.int64)
            used_ns = self.remainders.used_ns(pid, slots)
            if used_ns is None:
                used_ns = int(self.ledger.account_ns(slots, self.timeline.clocks.cpu_ns[slots]).max(initial=0))
            self.used_ns[pid] = used_ns
            self.remainders.forget(pid)

    def _add_remainders(self, tails: dict[int, int], until_ns: int) -> None:
        """Adds what clocks of processes tell, up to a time, of their threads that end."""
        ending = self._ending_by_process()
        told_ns = {pid: sum(tails[slot] for slot in tails.keys() & slots) for pid, slots in ending.items()}
        for pid, late_ns in self.endings.late_ns.items():
            if not self._lives(pid):  # nobody else by that number
                self.remainders.gone(pid, self.ending[:0], late_ns)
        reached = self._clocks_up_to(until_ns, ending)
        for time_ns, pid, clock_ns in reached:
            living, ends = self._living_slots(pid), ending.get(pid, [])
            # An end of a leader alone is that of the process, or an exec.
            threads = [slot for slot in ends if not living or self.model.threads[slot].tid != pid]
            if threads or self.remainders.has_lost(pid):
                slots = np.array(living + ends, dtype=np.int64)
                is_known = self.remainders.left_ns(pid, clock_ns, slots) is not None
                remainder_ns = self.remainders.take(pid, clock_ns, time_ns, slots, told_ns.get(pid, 0))
                if is_known and not living:
                    self.endings.told(pid, time_ns, remainder_ns, is_all=pid in self.zombies)
                _share(tails, threads or [-1], remainder_ns)
        for pid, ends in ending.items():
            self.remainders.gone(pid, np.array(ends, dtype=np.int64), told_ns[pid])
        self._nobodys.difference_update(self.ending.tolist())
        taken = set(reached)
        self._clocks = [clock for clock in self._clocks if clock not in taken]
        self._forget_processes(ending)

    def _clocks_up_to(self, until_ns: int, ending: Collection[int]) -> list[tuple[int, int, int]]:
        """The clocks that were read up to a time, and those of processes that are over with their ``ending`` threads:
        a zombie's clock stands still, so that it tells the same whenever it is read."""
        return [clock for clock in self._clocks
                if clock[0] <= until_ns or (clock[1] in ending and not self._lives(clock[1]))]

    def _forget_processes(self, ending: Iterable[int]) -> None:
        """Gives back what is kept of processes that were over before this batch, in which their last clocks were; of
        those of ``ending`` threads the next one may have them."""
        waiting = {pid for _, pid, _ in self._clocks}
        for pid in self._over - waiting:
            if not self._lives(pid):
                self.remainders.forget(pid)
                self.zombies.discard(pid)
        self._over = self._over & waiting | {pid for pid in ending if not self._lives(pid)}

    def _lives(self, pid: int) -> bool:
        process = self.model.processes.get(pid)
        return process is not None and len(process.threads) > 0

    # -- accounts

    def take_clocks(self, clocks: Clocks) -> None:
        """CPU clocks of processes that have been read between batches."""
        self._clocks += zip(clocks.time_ns.tolist(), clocks.pid.tolist(), clocks.run_ns.tolist(), strict=True)

    def of_several_threads(self) -> list[int]:
        """The processes that have more than one thread."""
        return [process.pid for process in self.model.processes.values() if len(process.threads) > 1]

    def asks(self) -> list[tuple[int, int]]:
        """The threads, each one's process and own id, whose accounts the next batch must have whether it has records of
        them or not: those that run, as far as we know, and who is asked for; where switches are counted, all."""
        if self.counts:
            return self.living()
        slots = {*indices(self.timeline.clocks.kind == Edge.IN).tolist(), *self._asked_also}
        self._asked_also = set()
        threads = [self.model.threads[slot] for slot in sorted(slots) if slot in self.model.threads]
        return [(thread.process.pid, thread.tid) for thread in threads]

    def ask_also(self, slots: Collection[int]) -> None:
        """The next batch must have the accounts of threads at slots, too."""
        self._asked_also.update(slots)

    def living(self) -> list[tuple[int, int]]:
        """All threads, each one's process and own id."""
        return [(thread.process.pid, thread.tid) for thread in self.model.living()]

    def take(self, accounts: Accounts) -> None:
        """Accounts that were read between batches, of threads that are about to go."""
        self._accounts.append(accounts)

    def count(self, accounts: Mapping[int, Account]) -> None:
        """From the time of ``accounts`` (by tid) on, switches are counted. Batches that end there bring the records of
        before."""
        self.counts, self.turns.per_s = True, np.inf
        self.endings.interrupted()
        self._counted_ns = max((account.time_ns for account in accounts.values()), default=0)
        rows = np.array([(tid, *account) for tid, account in accounts.items()], dtype=np.int64).reshape(-1, 5)
        tid, time_ns, run_ns, delay_ns, turns = rows.T
        self.take(Accounts(time_ns, tid, tid, run_ns, delay_ns, turns, self._counted_ns))

    def record_again(self, running: Iterable[int]) -> None:
        """Records tell of switches again, and until each thread's first one, whether it is one of the ``running`` (by
        tid)."""
        self.counts = False
        tids = set(running)
        living = list(self.model.living())
        self.timeline.find_again(np.array([thread.slot for thread in living], dtype=np.int64),
                                 np.array([thread.tid in tids for thread in living], dtype=bool))

    def cpu_ns(self, slots: Iterable[int], time_ns: int) -> int:
        """Exact running time of threads altogether, up to now."""
        at = np.array(list(slots), dtype=np.int64)
        if not len(at):
            return 0
        clocks = self.timeline.clocks
        running = np.where(clocks.kind[at] == Edge.IN, time_ns - clocks.since_ns[at], 0)
        return int(clocks.cpu_ns[at].sum() + np.maximum(running, 0).sum())


def _leaves_out_strikes(change: Change) -> bool:
    return type(change) is Throttled or (type(change) is RecordsLost and change.source in _CLOCKS)


def by_tid(accounts: Accounts) -> dict[int, Account]:
    """The last account of each thread."""
    columns = (accounts.time_ns, accounts.run_ns, accounts.delay_ns, accounts.turns)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return dict(zip(accounts.tid.tolist(), map(Account._make, rows), strict=True))


def _joined(parts: Sequence[Accounts]) -> Accounts:
    """Accounts (one part at least) one after the other."""
    if len(parts) == 1:
        return parts[0]
    columns: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in parts]) for name in _COLUMNS}
    return Accounts(**columns, read_ns=parts[-1].read_ns, clocks=parts[-1].clocks)


def _taken(accounts: Accounts, rows: Array) -> Accounts:
    """Accounts at some indices, or of a mask."""
    columns: dict[str, Any] = {name: getattr(accounts, name)[rows] for name in _COLUMNS}
    return Accounts(**columns, read_ns=accounts.read_ns, clocks=accounts.clocks)


def _share(tails_ns: dict[int, int], slots: Sequence[int], more_ns: int) -> None:
    """Adds to the tails of some slots equal shares of a time."""
    for number, slot in enumerate(slots):
        share_ns = more_ns * (number + 1) // len(slots) - more_ns * number // len(slots)
        tails_ns[slot] = tails_ns.get(slot, 0) + share_ns
