"""Two witnesses, one ledger: when threads ran by the records, how long by the kernel's accounts. Pure.

*Records* (switches, births, ends) say when. They are stamped microseconds late, and some may be lost. *Accounts*
(schedstat) say how much. They are exact while a thread is off its CPU, and up to a scheduler tick old while it runs.
**The account is the integral, the records are its shape**: what leaves this room has the shape of the records and the
integral of the accounts.

    records     IN ------ OUT        IN ------------------ OUT       account: 30 ms + 60 ms
    told        IN ------ OUT        IN ------ OUT     IN- OUT       the 20 ms between: steal time

For the stretch from a thread's account before to this one, the account says of the time on CPU

    a little more than the records      switch-in lag: each run began earlier, by an equal share, at most LAG_NS, and
                                        not before the wake-up; where the account is a stale tick's, by the lag of the
                                        stretches before, as far as the account allows
                                        Beginnings that are exact stay: there, the account takes a thread to have come
                                        when the kernel's scheduler last looked at the clock, which may be at its
                                        wake-up; each such run ends later instead, but not behind the next wake-up
    more than that                      gaps before runs of unknown beginning are filled. Where no record was lost, that
                                        last look was long before the switch, as where an idle CPU wakes late: runs
                                        begin earlier, the longest waits first, but not before their wake-ups. Else, and
                                        for what is left, a record of running is missing: the longest gaps are filled
    up to all the time since its end,   nothing: it is what the thread used behind its end, which others tell
    of a thread that was over by then
    less, beyond a stale tick           first runs of unknown end are cut; what is left is steal time of a hypervisor,
                                        which is waiting for a CPU: in silences of the thread's clock (``silences``),
                                        then anywhere between its strikes
    something, where nothing is recorded  one stretch of running, waiting, sleeping, of the account's lengths
    nothing (it is gone, and its last   the records, with the lag of the stretches before; where there are none, the
    account was not told)               same as in the stretch before, but no more than its process's clock leaves

Sums are compared from a thread's beginning, so that no error adds up: what cannot be told in one stretch is told in the
next.

Three laws hold without any account, and whatever was lost. No thread runs before its birth. A CPU runs one thread at a
time: an arrival there ends the run of whoever was there. In any stretch, running time is at most the CPUs times its
length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from collector.arrays import Columns, among, changes, indices, lasts, packed, summed
from collector.events import Array, Edge, Source
from collector.timing.shares import shared_out
from collector.timing.silences import NO_STRIKES, Runs, Stolen, Strikes, at_ends, stolen
from collector.timing.timeline import (
    LONG_AGO_NS,
    NO_MOMENTS,
    Edges,
    Moments,
    Timeline,
    Wakeups,
    edges_of,
    is_out,
    joined,
)

# The longest lag of switch-in records, on average: they are stamped when the thread's events have been set up. On a
# virtual machine each timer set is an exit to the hypervisor: 9 us, and 35 where that is busy.
LAG_NS = 60_000
# A thread that leaves its CPU and comes back is away for this long, and this long on its way from a wake-up to its CPU:
# no run begins earlier, whatever the account says, so every recorded absence has a length.
LEAST_AWAY_NS = 1_000
# A running thread's account is brought up to date by the scheduler's tick: 4 ms where CONFIG_HZ is 250, 10 where 100.
TICK_NS, LONGEST_TICK_NS = 4_000_000, 10_000_000
LEAST_NS = 1_000_000  # that is worth an edge of its own: less waits for the next stretch
_ACCOUNT = 5  # among the edges, here alone: where an account was read
_FAR_NS = 1 << 62
_MANY_RUNS = 10  # of which an average lag says something
_ENOUGH_TICKS = 5  # until it shows in its account whether a thread runs


class ReadAccounts(NamedTuple):
    """Accounts (a,) of the kernel, by slot, one for each."""

    slot: Array  # i8 (a,)
    time_ns: Array  # i8 (a,) when it was read
    run_ns: Array  # i8 (a,) on CPU since the thread's birth
    delay_ns: Array  # i8 (a,) waiting for a CPU since then


class Seen(NamedTuple):
    """A stretch of time, and how well it was seen."""

    since_ns: int
    until_ns: int
    is_blind: bool = False  # no records of switches were made
    is_lossy: bool = False  # some records were lost
    rested_ns: int = _FAR_NS  # from then on no records of switches were made, though there are some of before

    @property
    def told_ns(self) -> int:
        """Up to when all has been told; the first stretch has no beginning."""
        return self.since_ns if self.since_ns < self.until_ns else LONG_AGO_NS


class Budget(NamedTuple):
    """What threads of a process have run altogether since their beginnings, by the CPU clock of that process; or one
    thread in several images, by its account."""

    slot: Array  # i8 (n,) those that end in the stretch, and others that were not over before
    ran_ns: int  # at most, up to the end of each that ends in the stretch


class Ledger:
    """What accounts and edges have said so far of each slot."""

    def __init__(self, n_cpus: int) -> None:
        self.n_cpus = n_cpus
        self.n_repaired = 0  # records that were missing, by what came next or by the account
        self.n_estimated = 0  # threads of whose last stretch nothing is known
        self.steal_ns = 0
        # base_ns: the account when the clock stood at zero; at_ns, run_ns, delay_ns: as last read
        # late_ns: the account was read so long after that, of a thread of which it is not known yet whether it ran then
        # read_ns: when the account was read, of one that was off its CPU when it was found; 0: records have come so far
        # less_ns, more_ns: by how much the base may be wrong, until an account of it off a CPU tells
        # lag_ns: of each of its runs, on average, between the last two accounts of it off a CPU
        # gained_ns, n_runs: by how much how many runs have begun earlier since then
        # owed_ns: by the last account, and in none of the edges so far
        # running, waiting: their shares of the stretch between the last two accounts.
        self._of = Columns(has_base=("b1", 0), base_ns=("i8", 0), late_ns=("i8", 0), read_ns=("i8", 0),
                           less_ns=("i8", 0), more_ns=("i8", 0), at_ns=("i8", 0), run_ns=("i8", 0),
                           delay_ns=("i8", 0), lag_ns=("i8", 0), gained_ns=("i8", 0), n_runs=("i8", 0),
                           owed_ns=("i8", 0), running=("f8", 0), waiting=("f8", 0))

    def grow(self, n: int) -> None:
        """Makes room for the slots below ``n``."""
        self._of.grow(n)

    def begin(self, read: ReadAccounts, late_ns: Array | int = 0) -> None:
        """Threads whose clocks begin when their accounts are these: zero for one that is born.

        ``late_ns`` (a,): the account was read so long after the clock begins, of a thread that was found runnable; if
        negative, so long before: how much it ran until then its first account off a CPU will tell.
        """
        self._of.grow(int(read.slot.max(initial=-1)) + 1)
        self._note(read)
        self._of.has_base[read.slot], self._of.base_ns[read.slot] = True, read.run_ns
        self._of.late_ns[read.slot] = np.maximum(late_ns, 0)
        self._of.less_ns[read.slot], self._of.more_ns[read.slot] = 0, np.maximum(-np.asarray(late_ns), 0)

    def goes_on(self, old: int, new: int, ran_ns: int) -> None:
        """The thread at one slot goes on at another one, with a new clock; by the old one it ran so long."""
        self._of.grow(max(old, new) + 1)
        for name in ("has_base", "late_ns", "less_ns", "more_ns", "at_ns", "run_ns", "delay_ns"):
            column = getattr(self._of, name)
            column[new] = column[old]
        self._of.base_ns[new] = self._of.base_ns[old] + ran_ns

    def found_off_cpu(self, slot: Array, read_ns: Array) -> None:
        """The accounts of threads (n,) that have just begun were read at these times, behind the beginnings of their
        clocks: what they ran until then records tell."""
        self._of.read_ns[slot] = read_ns

    def forget(self, slots: Array) -> None:
        """The threads at slots are over, and the slots are free."""
        self._of.reset(slots)

    def owed_ns(self, slots: Array) -> Array:
        """What threads (n,) ran by their last accounts and by none of the edges so far; 0 where that is not known."""
        owed_ns: Array = np.maximum(self._of.owed_ns[slots], 0)
        return owed_ns

    def ran_ns(self, slots: Array, run_ns: Array) -> Array:
        """How long threads (n,) have run by accounts since their clocks began; 0 where that is not known."""
        ran_ns: Array = np.where(self._of.has_base[slots], run_ns - self._of.base_ns[slots], 0)
        return ran_ns

    def most_ran_ns(self, slot: int, run_ns: int) -> int | None:
        """How long a thread can have run at most since its clock began, by an account that may be a tick old; None
        where that is not known."""
        bases_ns = self.bases_ns(slot)
        return run_ns - bases_ns[0] + TICK_NS if bases_ns is not None else None

    def account_ns(self, slots: Array, ran_ns: Array) -> Array:
        """The accounts (n,) of threads that have run so long since their clocks began."""
        account_ns: Array = self._of.base_ns[slots] + ran_ns
        return account_ns

    def at_ns(self, slots: Array) -> Array:
        """When the last accounts of threads (n,) were read, or their clocks began; far in the future where neither is
        known."""
        at_ns: Array = np.where(self._of.has_base[slots], self._of.at_ns[slots], _FAR_NS)
        return at_ns

    def accounts_off_cpu_ns(self, slots: Array, since_ns: Array) -> Array:
        """The last accounts (n,) of threads that are off their CPUs since then (n,); -1 where they are older."""
        of = self._of
        found: Array = np.where(of.has_base[slots] & (of.at_ns[slots] >= since_ns), of.run_ns[slots], -1)
        return found

    def bases_ns(self, slot: int) -> tuple[int, int] | None:
        """A thread's account when its clock began, at least and at most; None where that is not known."""
        of = self._of
        base_ns = int(of.base_ns[slot])
        return (base_ns - int(of.less_ns[slot]), base_ns + int(of.more_ns[slot])) if of.has_base[slot] else None

    def reconciled(self, edges: Edges, read: ReadAccounts, timeline: Timeline, seen: Seen,
                   woken: Wakeups = NO_MOMENTS, came: Moments = NO_MOMENTS, budgets: Sequence[Budget] = (),
                   struck: Callable[[], Strikes] = lambda: NO_STRIKES, behind: ReadAccounts | None = None) -> Edges:
        """The edges of a stretch as the accounts say, for ``timeline`` to take.

        ``woken``: those wake-ups in it that are known; ``came``: when threads got CPUs, where records tell the very
        moments; ``budgets``: of processes that are over, and of threads that go on in other images; of a stretch that
        ``is_blind``, of processes whose threads end in it; ``struck``: the strikes of clocks in it, asked for where
        CPUs were stolen; ``behind``: accounts that were read behind it, of threads that end in it for us alone.

        ``edges`` in any order. ``read``: accounts as of times in that stretch, of all threads that have edges in it or
        ran when it began (of all there are, where the stretch ``is_blind``).
        """
        self._of.grow(len(timeline.clocks.kind))
        edges, read = self._decided(timeline.in_order(edges), read, timeline, behind)
        self._begin_before_accounts(edges, timeline, seen.until_ns)
        edges = self._told_apart(edges, timeline, seen.rested_ns)
        edges = self._balanced(edges, read, timeline, seen, woken, came, struck)
        edges = self._expected(edges, read, timeline, woken, came)
        if seen.is_blind:
            edges = self._estimated(edges, timeline, seen, budgets)
        else:
            edges = self._within_budgets(edges, read, timeline, seen, budgets, struck)
        self._note(read)
        return self._within_cpus(edges, timeline, seen)

    def _note(self, read: ReadAccounts) -> None:
        of, slot = self._of, read.slot
        of.at_ns[slot], of.run_ns[slot], of.delay_ns[slot] = read.time_ns, read.run_ns, read.delay_ns

    # -- what records tell by themselves

    def _told_apart(self, edges: Edges, timeline: Timeline, rested_ns: int) -> Edges:
        """With edges for the records that are missing: each run has an end and each end a run before it.

        A run ends at the next arrival of anybody on its CPU, if not before; when records rested, if that came before
        the thread's end. A run of which only the end is known begins there: the account will make it longer.
        """
        kind, start_ns, first = timeline.behind(edges)
        row = indices(kind == Edge.IN)
        open_at, open_slot, open_since_ns, open_cpu = self._open_runs(edges, timeline)
        next_ns = self._next_arrival(edges, np.concatenate([timeline.cpus_behind(edges, row, first), open_cpu]),
                                     np.concatenate([start_ns[row], open_since_ns]))
        bound_ns, open_ns = next_ns[:len(row)], next_ns[len(row):]
        unended = (edges.edge[row] == Edge.ENDED) & (start_ns[row] < rested_ns)
        bound_ns[unended] = np.minimum(bound_ns[unended], rested_ns)
        cut, over = bound_ns < edges.time_ns[row], open_ns < _FAR_NS  # since somebody else arrived
        lost = cut | (edges.edge[row] == Edge.IN)
        row, bound_ns, cut = row[lost], np.minimum(bound_ns, edges.time_ns[row])[lost], cut[lost]
        unbegun = np.concatenate([row[cut & is_out(edges.edge[row])],
                                  indices(is_out(edges.edge) & _is_off(kind))])
        at = np.concatenate([row, open_at[over], unbegun])
        if not len(at):
            return edges
        self.n_repaired += len(at)
        slot = np.concatenate([edges.slot[row], open_slot[over], edges.slot[unbegun]])
        time_ns = np.concatenate([bound_ns, open_ns[over], edges.time_ns[unbegun]])
        edge = np.repeat([Edge.OUT_BLOCKED, Edge.IN], [len(at) - len(unbegun), len(unbegun)])
        return edges.insert(at, edges_of(slot, time_ns, edge, source=Source.ADJUSTED))

    def _open_runs(self, edges: Edges, timeline: Timeline) -> tuple[Array, Array, Array, Array]:
        """Runs that have no end yet: where that would stand among the edges, slot, beginning, and CPU. Whether those
        run that were found runnable and have no edge is not known."""
        clocks = timeline.clocks
        last = indices(lasts(edges.slot) & (edges.edge == Edge.IN))
        runs_on = (clocks.kind == Edge.IN) & ~clocks.found
        runs_on[edges.slot] = False
        others = indices(runs_on)
        slot = np.concatenate([edges.slot[last], others])
        return (edges.slot.searchsorted(slot, side="right"), slot,
                np.concatenate([edges.time_ns[last], clocks.since_ns[others]]),
                np.concatenate([edges.cpu[last], clocks.cpu[others]]))

    def _next_arrival(self, edges: Edges, cpu: Array, time_ns: Array) -> Array:
        """When the next thread arrived on each CPU (r,) behind each time; far in the future where none did."""
        row = indices((edges.edge == Edge.IN) & (edges.cpu >= 0))
        if not len(row) or not len(cpu):
            return np.full(len(cpu), _FAR_NS)
        on, times_ns = edges.cpu[row].astype(np.int64), edges.time_ns[row]
        keys, wanted = packed((on, times_ns), (cpu.astype(np.int64), time_ns))
        order = keys.argsort()
        at = order[np.minimum(keys.searchsorted(wanted, side="right", sorter=order), len(order) - 1)]
        found: Array = np.where((keys[at] > wanted) & (on[at] == cpu), times_ns[at], _FAR_NS)
        return found

    # -- threads that were found runnable

    def _decided(self, edges: Edges, read: ReadAccounts, timeline: Timeline,
                 behind: ReadAccounts | None) -> tuple[Edges, ReadAccounts]:
        """The edges, with what threads did that were found runnable and have none so far: they all ran, or all waited.

        Accounts of which cannot be told which are left out; so are those read before the first edge, which will tell.
        An end that is ours, and not the thread's own, tells nothing: an account from ``behind`` it does.
        """
        clocks = timeline.clocks
        if not clocks.found.any():
            return edges, read
        begins = indices(changes(edges.slot))
        begins = begins[clocks.found[edges.slot[begins]] & (clocks.kind[edges.slot[begins]] != Edge.UNKNOWN)]
        waited = self._have_waited(edges.take(begins), read, behind, timeline)
        self._begins_running(edges.slot[begins], (edges.edge[begins] != Edge.IN) & ~waited,
                             edges.time_ns[begins] - clocks.since_ns[edges.slot[begins]])
        first = np.minimum(edges.slot.searchsorted(read.slot), max(len(edges.slot) - 1, 0))
        has_edge = edges.slot[first] == read.slot if len(edges.slot) else np.zeros(len(read.slot), dtype=bool)
        open_ = clocks.found[read.slot] & (clocks.kind[read.slot] == Edge.IN)
        length_ns = read.time_ns - clocks.since_ns[read.slot]
        told = open_ & ~has_edge & (length_ns >= _ENOUGH_TICKS * LONGEST_TICK_NS)
        slot = read.slot[told]
        ran = self._have_run(slot, read.run_ns[told], length_ns[told], timeline)
        self._begins_running(slot, ran, np.full(len(slot), _FAR_NS))
        if len(edges.slot):
            has_edge[has_edge] = edges.time_ns[first[has_edge]] <= read.time_ns[has_edge]
        kept = ~open_ | told | has_edge
        slot, ran = np.append(slot, edges.slot[begins[waited]]), np.append(ran, ~waited[waited])
        did = edges_of(slot, clocks.since_ns[slot], np.where(ran, Edge.IN, Edge.OUT_PREEMPTED), source=Source.SYNTHETIC)
        edges = edges.insert(edges.slot.searchsorted(slot), did)
        return edges, ReadAccounts(*(column[kept] for column in read))

    def _have_waited(self, first: Edges, read: ReadAccounts, behind: ReadAccounts | None, timeline: Timeline) -> Array:
        """Which of the threads (n,) that were found runnable, and end with their ``first`` edges (n,), have waited for
        a CPU until then: by an account from ``behind``, they had run for less than half of that even later; or by one
        that was ``read`` before, for less than half of the time from the one that they were found with."""
        clocks, slot = timeline.clocks, first.slot
        waited, ends = np.zeros(len(slot), dtype=bool), (first.edge == Edge.ENDED) & (clocks.kind[slot] == Edge.IN)
        for told, is_behind in ((behind, True), (read, False)):
            if told is None or not len(told.slot) or not ends.any():
                continue
            at = np.minimum(told.slot.searchsorted(slot), len(told.slot) - 1)
            until_ns = first.time_ns if is_behind else told.time_ns[at] - self._of.late_ns[slot]
            length_ns = until_ns - clocks.since_ns[slot]
            is_long = is_behind | (length_ns >= _ENOUGH_TICKS * LONGEST_TICK_NS)
            waited |= ends & (told.slot[at] == slot) & is_long & ~self._have_run(slot, told.run_ns[at], length_ns,
                                                                                timeline)
        return waited

    def _have_run(self, slot: Array, run_ns: Array, length_ns: Array, timeline: Timeline) -> Array:
        """Which of the threads (n,) that did one of the two for so long have run, by what their accounts say: for half
        of it at least."""
        ran: Array = 2 * (run_ns - self._of.base_ns[slot] - timeline.clocks.cpu_ns[slot]) >= length_ns
        return ran

    def _begins_running(self, slot: Array, running: Array, first_ns: Array) -> None:
        """It is known what threads (n,) did that were found, and for how long they went on with it.

        Was the account read during that, the base of those that ran is less by what they ran until then, and more by
        what their accounts were behind. Was it read later, those that ran had left their CPUs meanwhile, and those that
        waited may have had one. (Of those that were found once more the base is known.)
        """
        of = self._of
        late = of.late_ns[slot] > 0
        slot, running, first_ns = slot[late], running[late], first_ns[late]
        late_ns = of.late_ns[slot]
        since_ns = np.maximum(late_ns - first_ns, 0)  # behind the first edge
        of.base_ns[slot] -= np.where(running, late_ns, 0)
        of.less_ns[slot] = np.where(running, 0, since_ns)
        of.more_ns[slot] = np.where(running, np.where(since_ns > 0, since_ns, LONGEST_TICK_NS), 0)
        of.late_ns[slot] = 0

    def _begin_before_accounts(self, edges: Edges, timeline: Timeline, until_ns: int) -> None:
        """Takes from the bases of threads that were found off their CPUs what they ran before their accounts were read.
        One that ran in that moment has an account as old as a tick."""
        of = self._of
        if not of.read_ns.any():
            return
        kind, start_ns, _ = timeline.behind(edges)
        row = indices((kind == Edge.IN) & (of.read_ns[edges.slot] > start_ns))
        _, open_slot, open_ns, _ = self._open_runs(edges, timeline)
        last = (of.read_ns[open_slot] > open_ns) & (of.read_ns[open_slot] <= until_ns)
        slot = np.concatenate([edges.slot[row], open_slot[last]])
        start_ns = np.concatenate([start_ns[row], open_ns[last]])
        end_ns = np.concatenate([edges.time_ns[row], np.full(int(last.sum()), _FAR_NS)])
        ran_ns = np.minimum(end_ns, of.read_ns[slot]) - start_ns
        of.base_ns[:] -= summed(slot, ran_ns, len(of.base_ns))
        of.more_ns[slot[end_ns > of.read_ns[slot]]] = LONGEST_TICK_NS
        of.read_ns[of.read_ns <= until_ns] = 0

    # -- edges that agree with the accounts

    def _expected(self, edges: Edges, read: ReadAccounts, timeline: Timeline, woken: Wakeups,
                  came: Moments) -> Edges:
        """With the runs of threads that end, of which there is no account any more, as early as theirs were before, and
        by what they were owed then."""
        of = self._of
        ended = edges.slot[edges.edge == Edge.ENDED]
        ended = ended[~among(ended, read.slot)]
        if not len(ended):
            return edges
        row = indices((edges.edge == Edge.IN) & (edges.source == Source.RECORDED) & among(edges.slot, ended))
        kind, start_ns, _ = timeline.behind(edges)
        row = row[_is_off(kind[row])]
        row = row[~came.has(edges.slot[row], edges.time_ns[row])]
        slot = edges.slot[row]
        n_runs = np.bincount(slot, minlength=len(of.owed_ns))
        early_ns = of.lag_ns[slot] + np.maximum(of.owed_ns, 0)[slot] // n_runs[slot]
        edges.time_ns[row] -= np.minimum(early_ns, _room_ns(slot, start_ns[row], edges.time_ns[row], woken))
        return edges

    def _balanced(self, edges: Edges, read: ReadAccounts, timeline: Timeline, seen: Seen, woken: Wakeups,
                  came: Moments, struck: Callable[[], Strikes]) -> Edges:
        """The edges with as much time on CPU as the accounts say."""
        of, slot = self._of, read.slot
        if not len(slot):
            return edges
        stretch = _Stretch(edges, read, timeline)
        ran_ns = stretch.ran_ns()
        self._settle(slot, read.run_ns - ran_ns, stretch.is_open)
        known = of.has_base[slot]
        owed_ns = np.where(known, read.run_ns - of.base_ns[slot] - ran_ns, 0)
        stale_ns = np.where(stretch.is_open, np.minimum(stretch.open_ns + of.lag_ns[slot], TICK_NS), 0)
        is_whole = not (seen.is_blind or seen.is_lossy)
        if is_whole:
            owed_ns -= stretch.over_ns
            stale_ns += stretch.over_ns
        gained_ns, n_runs = stretch.begin_earlier(owed_ns, np.where(known, stale_ns, 0), of.lag_ns[slot], woken, came)
        owed_ns -= gained_ns
        owed_ns -= stretch.end_later(owed_ns, woken, came)
        self._note_lags(slot, gained_ns, n_runs, stretch.is_open)
        wait_ns = np.where(stretch.is_unrecorded, np.maximum(read.delay_ns - of.delay_ns[slot], 0), 0)
        worth_ns = 0 if seen.is_blind else LEAST_NS
        owed_ns -= stretch.fill(owed_ns, worth_ns, of.at_ns[slot], wait_ns, woken if is_whole else None)
        of.owed_ns[slot] = np.where(stretch.is_open, 0, owed_ns)
        least_ns = np.where(stretch.is_open, LONGEST_TICK_NS - TICK_NS, LEAST_NS)
        self._note_shares(read)
        if seen.is_blind:
            stale_ns = least_ns = np.zeros_like(owed_ns)
        excess_ns = np.maximum(-owed_ns - stale_ns, 0)
        if not is_whole:  # the end of a run may be missing
            excess_ns -= stretch.stop(np.where(excess_ns >= least_ns, excess_ns, 0), wait_ns, with_all=seen.is_blind)
        if excess_ns.any():
            excess_ns -= stretch.end_earlier(excess_ns)
            self.steal_ns += stretch.steal(np.where(excess_ns >= least_ns, excess_ns, 0), seen, struck)
        return stretch.edges()

    def _settle(self, slot: Array, base_ns: Array, is_open: Array) -> None:
        """The bases of threads (a,) are these by their accounts and edges. Those that were not known for sure are now;
        but not those of who runs, whose account is old."""
        of = self._of
        settles = (~of.has_base[slot] | (of.less_ns[slot] > 0) | (of.more_ns[slot] > 0)) & ~is_open
        if not settles.any():
            return
        slot, base_ns = slot[settles], base_ns[settles]
        near_ns = base_ns.clip(of.base_ns[slot] - of.less_ns[slot], of.base_ns[slot] + of.more_ns[slot])
        of.base_ns[slot] = np.where(of.has_base[slot], near_ns, base_ns)
        of.less_ns[slot], of.more_ns[slot], of.has_base[slot] = 0, 0, True

    def _note_lags(self, slot: Array, gained_ns: Array, n_runs: Array, is_open: Array) -> None:
        """How much earlier runs of threads (a,) began than was recorded: on average of those that an account covers
        which is exact, since the thread is off its CPU."""
        of = self._of
        of.gained_ns[slot] += gained_ns
        of.n_runs[slot] += n_runs
        tells = slot[~is_open & (of.n_runs[slot] >= _MANY_RUNS)]
        of.lag_ns[tells] = of.gained_ns[tells] // of.n_runs[tells]
        of.gained_ns[tells] = of.n_runs[tells] = 0

    def _note_shares(self, read: ReadAccounts) -> None:
        """Which part of the time since its account before each thread has run, and waited."""
        of, slot = self._of, read.slot
        length_ns = np.maximum(read.time_ns - of.at_ns[slot], 1)
        of.running[slot] = ((read.run_ns - of.run_ns[slot]) / length_ns).clip(0, 1)
        of.waiting[slot] = ((read.delay_ns - of.delay_ns[slot]) / length_ns).clip(0, 1 - of.running[slot])

    def _estimated(self, edges: Edges, timeline: Timeline, seen: Seen, budgets: Sequence[Budget]) -> Edges:
        """With what threads did that ended without any record: the same as in the stretch before, but in all no more
        than their budgets leave."""
        kind, start_ns, first = timeline.behind(edges)
        row = indices((edges.edge == Edge.ENDED) & first & (_is_off(kind) | (kind == Edge.IN)))
        slot, end_ns = edges.slot[row], edges.time_ns[row]
        from_ns = self._of.at_ns[slot].clip(start_ns[row], end_ns)  # before that, its account has told all
        length_ns = end_ns - from_ns
        run_ns = (self._of.running[slot] * length_ns).astype(np.int64)
        for budget in budgets:
            its = among(slot, budget.slot)
            left_ns = max(budget.ran_ns - self._ran_ns(edges, timeline, budget.slot, seen.until_ns), 0)
            run_ns[its] = run_ns[its] * min(left_ns / max(int(run_ns[its].sum()), 1), 1)
        wait_ns = (self._of.waiting[slot] * length_ns).astype(np.int64)
        self.n_estimated += len(row)
        comes = _is_off(kind[row])
        at = np.concatenate([row[comes], *[row] * 3])
        times_ns = np.concatenate([from_ns[comes], from_ns + run_ns, *[from_ns + run_ns + wait_ns] * 2])
        edge = np.concatenate([np.full(int(comes.sum()), Edge.IN),
                               np.repeat([Edge.OUT_PREEMPTED, Edge.IN, Edge.OUT_BLOCKED], len(row))])
        return edges.insert(at, edges_of(edges.slot[at], times_ns, edge, source=Source.SYNTHETIC))

    def _within_budgets(self, edges: Edges, read: ReadAccounts, timeline: Timeline, seen: Seen,
                        budgets: Sequence[Budget], struck: Callable[[], Strikes]) -> Edges:
        """With steal time of threads that end, and have no account any more, as far as there is more time on CPU than
        their budgets have."""
        for budget in budgets:
            excess_ns = self._ran_ns(edges, timeline, budget.slot, seen.until_ns) - budget.ran_ns
            if excess_ns < LEAST_NS:
                continue
            kind, start_ns, first = timeline.behind(edges)
            row = indices((kind == Edge.IN) & among(edges.slot, budget.slot) & ~among(edges.slot, read.slot))
            excess, group, unended = np.array([excess_ns]), np.zeros_like(row), _is_unended(edges, row)
            taken_ns = shared_out(excess, group, np.where(unended, edges.time_ns[row] - start_ns[row], 0))
            edges.time_ns[row] -= taken_ns
            row, group = row[~unended], group[~unended]
            runs = Runs(edges.slot[row], start_ns[row], edges.time_ns[row], group)
            found = stolen(runs, excess - taken_ns.sum(), struck(), seen.told_ns)
            self.steal_ns += int((found.end_ns - found.start_ns).sum())
            at = row[found.run].repeat(2)
            edges = edges.insert(at, edges_of(edges.slot[at], *_as_edges(found), timeline.cpus_behind(edges, at, first),
                                              Source.ADJUSTED))
        return edges

    def _ran_ns(self, edges: Edges, timeline: Timeline, slots: Array, until_ns: int) -> int:
        """How long threads at slots (n,) have run altogether up to the end of a stretch, by its edges."""
        kind, start_ns, _ = timeline.behind(edges)
        over_ns = np.where((kind == Edge.IN) & among(edges.slot, slots), edges.time_ns - start_ns, 0).sum()
        _, slot, open_ns, _ = self._open_runs(edges, timeline)
        lasting_ns = np.where(among(slot, slots), until_ns - open_ns, 0).sum()
        return int(timeline.clocks.cpu_ns[slots].sum() + over_ns + lasting_ns)

    def _within_cpus(self, edges: Edges, timeline: Timeline, seen: Seen) -> Edges:
        """With no more time on CPU in all than the CPUs had: runs of which not both ends are recorded are cut."""
        may_run = timeline.clocks.kind == Edge.IN
        may_run[edges.slot] = True
        if may_run.sum() <= self.n_cpus and edges.time_ns.max(initial=0) <= seen.until_ns:
            return edges  # each has a CPU for itself
        kind, start_ns, _ = timeline.behind(edges)
        open_at, open_slot, open_ns, cpu = self._open_runs(edges, timeline)
        row = indices(kind == Edge.IN)
        length_ns = np.maximum(np.concatenate([edges.time_ns[row] - np.maximum(start_ns[row], seen.since_ns),
                                               seen.until_ns - np.maximum(open_ns, seen.since_ns)]), 0)
        excess_ns = int(length_ns.sum()) - self.n_cpus * (seen.until_ns - seen.since_ns)
        if excess_ns <= 0:
            return edges
        unsure = np.concatenate([edges.source[row] != Source.RECORDED, cpu < 0])
        group = np.zeros(len(length_ns), dtype=np.int64)
        given_ns = shared_out(np.array([excess_ns]), group, np.where(unsure, length_ns, 0))
        edges.time_ns[row] -= given_ns[:len(row)]
        cut = indices(given_ns[len(row):])
        return edges.insert(open_at[cut], edges_of(open_slot[cut], seen.until_ns - given_ns[len(row) + cut],
                                                   np.full(len(cut), Edge.OUT_BLOCKED), source=Source.ADJUSTED))


class _Stretch:
    """The edges of threads, with the places of their accounts among them, and what is done up to these to fit them."""

    def __init__(self, edges: Edges, read: ReadAccounts, timeline: Timeline) -> None:
        n = len(read.slot)
        edges = joined(edges, edges_of(read.slot, read.time_ns, np.full(n, _ACCOUNT)))
        edges = edges.take(np.lexsort((edges.time_ns, edges.slot)))
        account = indices(edges.edge == _ACCOUNT)
        number = np.minimum(read.slot.searchsorted(edges.slot), n - 1)
        before = (read.slot[number] == edges.slot) & (np.arange(len(edges.slot)) <= account[number])
        self._kind, self._start_ns, self._first = timeline.behind(edges)
        self._kind[~before] = Edge.UNKNOWN  # behind the accounts, or without any: left as they are
        self._edges, self._account = edges, account
        self._n, self._number = n, number  # of accounts; of the one that each edge belongs to
        self._timeline = timeline
        self._ran_before_ns = timeline.clocks.cpu_ns[read.slot]
        self.is_unrecorded = self._first[account]
        self.is_open = self._kind[account] == Edge.IN
        self.open_ns = read.time_ns - self._start_ns[account]
        self.over_ns = np.where(self._kind[account] == Edge.ENDED, self.open_ns, 0)  # since its end
        self._put_in: list[Edges] = []
        self._put_at: list[Array] = []  # before which rows

    def ran_ns(self) -> Array:
        """How long threads have run up to their accounts (a,) by the edges."""
        running_ns = np.where(self._kind == Edge.IN, self._edges.time_ns - self._start_ns, 0)
        ran: Array = self._ran_before_ns + summed(self._number, running_ns, self._n)
        return ran

    def begin_earlier(self, owed_ns: Array, stale_ns: Array, lag_ns: Array, woken: Wakeups,
                      came: Moments) -> tuple[Array, Array]:
        """Lets runs begin earlier by equal shares of what threads (a,) are owed, which may be more by ``stale_ns``:
        then as near to ``lag_ns`` as that allows. Returns what they have got, and how many runs each has."""
        edges = self._edges
        row = indices((edges.edge == Edge.IN) & (edges.source == Source.RECORDED) & _is_off(self._kind))
        each = np.maximum(np.bincount(self._number[row], minlength=self._n), 1)
        row = row[~came.has(edges.slot[row], edges.time_ns[row])]
        number = self._number[row]
        n_runs = np.bincount(number, minlength=self._n)
        share_ns = lag_ns.clip(owed_ns // each, (owed_ns + stale_ns) // each).clip(0, LAG_NS)
        room_ns = _room_ns(edges.slot[row], self._start_ns[row], edges.time_ns[row], woken)
        gained_ns = np.minimum(share_ns[number], room_ns)
        edges.time_ns[row] -= gained_ns
        self._start_ns[row + 1] -= gained_ns  # an account stands behind every edge, if nothing else
        return summed(number, gained_ns, self._n), n_runs

    def end_later(self, owed_ns: Array, woken: Wakeups, came: Moments) -> Array:
        """Lets runs of exact beginning end later by equal shares of what threads (a,) are owed; returns what they have
        got."""
        if not len(came.slot):  # of no run
            return np.zeros(self._n, dtype=np.int64)
        edges = self._edges
        row = indices(is_out(edges.edge) & (edges.source == Source.RECORDED) & (self._kind == Edge.IN))
        row = row[came.has(edges.slot[row], self._start_ns[row])]
        number, slot, end_ns = self._number[row], edges.slot[row], edges.time_ns[row]
        each = np.maximum(np.bincount(number, minlength=self._n), 1)
        share_ns = (owed_ns // each).clip(0, LAG_NS)
        next_ns = edges.time_ns[row + 1]  # an account stands behind every edge, if nothing else
        woken_ns = woken.last_ns(slot, next_ns)
        room_ns = np.maximum(np.where(woken_ns > end_ns, woken_ns, next_ns) - end_ns - LEAST_AWAY_NS, 0)
        gained_ns = np.minimum(share_ns[number], room_ns)
        edges.time_ns[row] += gained_ns
        self._start_ns[row + 1] += gained_ns
        return summed(number, gained_ns, self._n)

    def fill(self, owed_ns: Array, least_ns: int, since_ns: Array, wait_ns: Array, woken: Wakeups | None) -> Array:
        """Lets threads (a,) run for so long before runs of unknown beginning; and, if what is left is more than
        ``least_ns``, in gaps between their runs, but not before ``since_ns``: where all runs were recorded, and
        ``woken`` says when, first behind the wake-ups before these. Returns what they have got.

        Those of which nothing was recorded have also waited for a CPU for ``wait_ns`` behind that.
        """
        edges, is_off = self._edges, _is_off(self._kind)
        unbegun = is_off & (edges.edge == Edge.IN) & (edges.source != Source.RECORDED)
        if not unbegun.any() and not (owed_ns > least_ns).any():
            return np.zeros(self._n, dtype=np.int64)
        row = indices(is_off)
        number, unbegun = self._number[row], unbegun[row]
        start_ns = np.maximum(self._start_ns[row], since_ns[number])
        room_ns = np.maximum(edges.time_ns[row] - start_ns, 0)
        away_ns = np.where((edges.edge[row] == Edge.IN) & ~unbegun, LEAST_AWAY_NS, 0)
        room_ns = np.maximum(room_ns - away_ns, 0)
        ran_ns = shared_out(np.maximum(owed_ns, 0), number, np.where(unbegun, room_ns, 0))
        rooms = [np.where(unbegun, 0, room_ns)]
        if woken is not None:
            late_ns = _room_ns(edges.slot[row], start_ns, edges.time_ns[row], woken)
            rooms.insert(0, np.where(edges.edge[row] == Edge.IN, np.minimum(rooms[0], late_ns), 0))
        for each_ns in rooms:
            left_ns = owed_ns - summed(number, ran_ns, self._n)
            ran_ns += shared_out(np.where(left_ns > least_ns, left_ns, 0), number, np.maximum(each_ns - ran_ns, 0))
        begins = (edges.edge[row] == Edge.IN) & (ran_ns > 0)
        edges.time_ns[row[begins]] -= ran_ns[begins]
        edges.source[row[begins]] = Source.ADJUSTED
        alone = (edges.edge[row] != Edge.IN) & (ran_ns > 0)
        waits_ns = np.minimum(np.where(edges.edge[row] == _ACCOUNT, wait_ns[number], 0), room_ns - ran_ns)
        self._put(row[alone], start_ns[alone], Edge.IN, Source.SYNTHETIC)
        self._stops(row[alone], (start_ns + ran_ns)[alone], waits_ns[alone])
        return summed(number, ran_ns, self._n)

    def stop(self, excess_ns: Array, wait_ns: Array, *, with_all: bool) -> Array:
        """Lets threads (a,) that were running, and of which nothing is recorded since, stop so long before their
        accounts; first they have waited for a CPU. ``with_all``: those that ran until then, too, since nobody tells
        whether they go on. Returns for how long they run less."""
        excess_ns = np.minimum(np.where(self.is_open, excess_ns, 0), self.open_ns)
        stops = indices(self.is_open if with_all else excess_ns > 0)
        row, less_ns = self._account[stops], excess_ns[stops]
        self._stops(row, self._edges.time_ns[row] - less_ns, np.minimum(wait_ns[stops], less_ns))
        self._kind[row] = Edge.OUT_BLOCKED  # nothing more is to be taken here
        return excess_ns

    def end_earlier(self, excess_ns: Array) -> Array:
        """Lets runs of unknown ends end earlier, by what threads (a,) run too much; returns what that has taken."""
        edges = self._edges
        row = indices(self._kind == Edge.IN)
        row = row[_is_unended(edges, row)]
        if not len(row):
            return np.zeros(self._n, dtype=np.int64)
        length_ns, number = edges.time_ns[row] - self._start_ns[row], self._number[row]
        taken_ns = shared_out(excess_ns, number, length_ns)
        edges.time_ns[row] -= taken_ns
        return summed(number, taken_ns, self._n)

    def steal(self, excess_ns: Array, seen: Seen, struck: Callable[[], Strikes]) -> int:
        """Lets CPUs of threads (a,) that run be stolen, for so long; returns for how long in all."""
        if not (excess_ns > 0).any():
            return 0
        edges = self._edges
        row = indices(self._kind == Edge.IN)
        row = row[~_is_unended(edges, row) & (excess_ns[self._number[row]] > 0)]
        runs = Runs(edges.slot[row], self._start_ns[row], edges.time_ns[row], self._number[row])
        # Without records, runs have absences of all kinds in them: these are no steal time.
        found = stolen(runs, excess_ns, struck(), seen.told_ns) if not seen.is_blind else at_ends(runs, excess_ns)
        at = row[found.run].repeat(2)
        self._put(at, *_as_edges(found), Source.ADJUSTED, self._timeline.cpus_behind(edges, at, self._first))
        return int((found.end_ns - found.start_ns).sum())

    def edges(self) -> Edges:
        """All of them, as they are now."""
        if self._put_at:
            self._edges = self._edges.insert(np.concatenate(self._put_at), joined(*self._put_in))
        return self._edges.take(self._edges.edge != _ACCOUNT)

    def _stops(self, row: Array, time_ns: Array, wait_ns: Array) -> None:
        """Before some edges: the thread stops running at a time, has waited for a CPU for so long, and is blocked."""
        waits = wait_ns > 0
        self._put(row[waits], time_ns[waits], Edge.OUT_PREEMPTED, Source.SYNTHETIC)
        self._put(row[waits], (time_ns + wait_ns)[waits], Edge.IN, Source.SYNTHETIC)
        self._put(row, time_ns + wait_ns, Edge.OUT_BLOCKED, Source.SYNTHETIC)

    def _put(self, row: Array, time_ns: Array, edge: Array | int, source: int, cpu: Array | None = None) -> None:
        if not len(row):
            return
        self._put_at.append(row)
        self._put_in.append(edges_of(self._edges.slot[row], time_ns, np.full(len(row), edge), cpu, source))


def _is_unended(edges: Edges, row: Array) -> Array:
    """Of which (n,) of the runs up to the edges at ``row`` the end is not known."""
    unended: Array = is_out(edges.edge[row]) & (edges.source[row] != Source.RECORDED)
    return unended


def _as_edges(found: Stolen) -> tuple[Array, Array]:
    """Times and kinds of the edges (2 k,) at which threads lose stolen CPUs (k,) and have them back."""
    times_ns = np.array((found.start_ns, found.end_ns)).ravel(order="F")
    return times_ns, np.array([Edge.OUT_PREEMPTED, Edge.IN] * len(found.run), dtype=np.int8)


def _room_ns(slot: Array, start_ns: Array, time_ns: Array, woken: Wakeups) -> Array:
    """How much earlier (n,) than recorded threads that have been off their CPUs since some time can have got them."""
    room_ns: Array = np.maximum(time_ns - np.maximum(start_ns, woken.last_ns(slot, time_ns)) - LEAST_AWAY_NS, 0)
    return room_ns


def _is_off(kind: Array) -> Array:
    """Which (n,) edges are those that a thread does not run behind."""
    off: Array = is_out(kind) | (kind == Edge.BORN)
    return off
