"""From periods to spans: what threads wait for while they are off CPU. Pure, for all threads of a batch at once.

A period off CPU lies between a switch-out and the next switch-in. Its states:

    switched out by preemption, or born and not yet run   wait CPU, all of it
    blocked                                               what it was blocked for, then wait CPU from the wake-up on

                 out            woken        in
    running -----|--- blocked ---|-- wait ---|----- running

*What for* is the Reason that came with the switch-out, and for page faults the record of the fault, made when it began
or when it was completed, which says whose fault it was and whether the page held the code itself. *When woken* is
recorded where the user may see it. Where it is not, the kernel still keeps the sum of all waits of a thread (the
account's run_delay), and whatever of it is explained neither by preemption nor by known wake-ups was spent behind the
others; see ``_shares_ns``. Steal time is no part of that sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from collector.arrays import Columns, changes, indices, packed, summed
from collector.events import Array, Edge, Reason, Source
from collector.timing.ticks import N_STATES, Accounts
from collector.timing.timeline import Edges, Periods, Wakeups, is_out


class Microstate(IntEnum):
    """The ten, with their numbers in the MSTATE field."""

    USER = 0
    SYSTEM = 1
    TRAP = 2
    TEXT_FAULT = 3
    DATA_FAULT = 4
    KERNEL_FAULT = 5
    USER_LOCK = 6
    SLEEP = 7
    WAIT_CPU = 8
    STOPPED = 9


# Plain numbers, which arrays are compared with in a sixth of the time.
_WAIT_CPU, _UNKNOWN, _USER_FAULT = int(Microstate.WAIT_CPU), int(Reason.UNKNOWN), int(Reason.USER_FAULT)
_IN_KERNEL, _HOST_FAULT = int(Reason.KERNEL_FAULT), int(Reason.HOST_FAULT)
_SLEEP, _LOCK = int(Reason.SLEEP), int(Reason.LOCK)
_TEXT_FAULT, _DATA_FAULT, _KERNEL_FAULT = (
    np.int8(state) for state in (Microstate.TEXT_FAULT, Microstate.DATA_FAULT, Microstate.KERNEL_FAULT))
_STATES = [Microstate.SLEEP, Microstate.SLEEP, Microstate.USER_LOCK, Microstate.DATA_FAULT, Microstate.KERNEL_FAULT,
           Microstate.STOPPED, Microstate.DATA_FAULT]
assert [int(r) for r in Reason] == list(range(len(_STATES)))
# A departure that was not told, but a page fault in the run before it: two reasons more, by what was missing.
_TOLD_TEXT, _TOLD_DATA = len(_STATES), len(_STATES) + 1
_STATE_OF_REASON = np.array([*_STATES, Microstate.TEXT_FAULT, Microstate.DATA_FAULT], dtype=np.int64)
_REASON_OF_FAULT = np.zeros(len(Microstate), dtype=np.int8)
_REASON_OF_FAULT[[_TEXT_FAULT, _DATA_FAULT, _KERNEL_FAULT]] = _TOLD_TEXT, _TOLD_DATA, _IN_KERNEL
_ADJUSTED, _SYNTHETIC = np.int8(Source.ADJUSTED), np.int8(Source.SYNTHETIC)
_PAGE_BITS = np.uint64(12)
_MANY_WAITS = 100  # of which an average says something
_SOME_WAITS = 10  # of which is seen whether they are alike
_LIKE = 0.75  # of the longest one's length
# A thread is woken so long before its departure is stamped, at most: another CPU may be sought work for meanwhile.
LEAVING_NS = 20_000


class Spans(NamedTuple):
    """Stretches of time (s,) of threads in one state each, with the stack that they were spent with."""

    slot: Array  # i8 (s,)
    state: Array  # i8 (s,)
    begun_ns: Array  # i8 (s,) the thread has been in this state since then; what came before the length was told before
    length_ns: Array  # i8 (s,)
    end_ns: Array  # i8 (s,)
    uid: Array  # u8 (s,) 0 where it is unknown
    cpu: Array  # i4 (s,)
    source: Array  # i1 (s,) Source

    def take(self, rows: Array | slice) -> Spans:
        """Those at some indices, or of a mask."""
        return Spans(*[column[rows] for column in self])

    def and_more(self, more: Spans) -> Spans:
        """These, and others behind them."""
        return Spans(*map(np.concatenate, zip(self, more, strict=True)))


_NONE = np.zeros(0, dtype=np.int64)
NO_SPANS = Spans(_NONE, _NONE, _NONE, _NONE, _NONE, _NONE.view(np.uint64), _NONE.astype(np.int32),
                 _NONE.astype(np.int8))


@dataclass(slots=True, eq=False, repr=False)
class Departures:
    """What is known of switch-outs, one row each; ``uid`` 0 where the stack is unknown."""

    slot: Array  # i8 (k,)
    time_ns: Array  # i8 (k,)
    uid: Array  # u8 (k,)
    reason: Array  # i1 (k,)
    ip: Array  # u8 (k,)
    cpu: Array  # i4 (k,)


@dataclass(slots=True, eq=False, repr=False)
class PageFaults:
    """Page faults in time order: each stamped before the period that it was waited for, or after, or both."""

    slot: Array  # i8 (f,)
    time_ns: Array  # i8 (f,)
    address: Array  # u8 (f,)
    ip: Array  # u8 (f,)
    in_kernel: Array  # bool (f,)


NO_FAULTS = PageFaults(_NONE, _NONE, _NONE.view(np.uint64), _NONE.view(np.uint64), _NONE.astype(bool))


class Delays(NamedTuple):
    """How much longer threads have waited for CPUs in all than at their accounts before; one row for a thread."""

    slot: Array  # i8 (d,)
    grown_ns: Array  # i8 (d,)


class States:
    """What is known by slot: of each thread's last departure, wake-up and fault, and of its waits for a CPU."""

    def __init__(self) -> None:
        self.n_guessed = 0  # page faults of which nothing tells whether text or data was missing
        self.n_from_host = 0  # waits for pages that a hypervisor had taken, of which nobody tells it either
        self.n_estimated = 0  # threads of whose waits neither wake-ups nor an account tell, though those of others do
        self._waiting = 0.0  # which part of their time off CPU others waited for one, where wake-ups tell of some
        # told: the Reason of the last departure that was told; habit: and of the last one to sleep or for a lock;
        # unexplained_ns: run_delay that no wait stands for yet; slept_ns: how long sleeps were at the last account, 0
        # where they were not alike; longest_ns: the longest wait behind one; over_ns: the end of the last period off
        # CPU; has_account: one was read; is_estimated: none was when it was needed.
        self._of = Columns(uid=("u8", 0), reason=("i1", 0), told=("i1", 0), habit=("i1", 0), ip=("u8", 0),
                           cpu=("i4", 0), woken_ns=("i8", 0), over_ns=("i8", 0), fault_ip=("u8", 0),
                           fault_state=("i1", 0), fault_ns=("i8", 0), unexplained_ns=("i8", 0), slept_ns=("i8", 0),
                           longest_ns=("i8", 0), has_account=("b1", 0), is_estimated=("b1", 0),
                           is_asked=("b1", 0))

    def grow(self, n: int) -> None:
        """Makes room for the slots below ``n``."""
        self._of.grow(n)

    def goes_on(self, old: int, new: int) -> None:
        """The thread at one slot goes on at another: its next account has the waits of both."""
        self._of.unexplained_ns[new] += self._of.unexplained_ns[old]

    def forget(self, slots: Array) -> None:
        """The threads at slots are over, and the slots are free."""
        self._of.reset(slots)

    def spans(self, periods: Periods, edges: Edges, departures: Departures, faults: PageFaults, woken: Wakeups,
              delays: Delays) -> Spans:
        """The states of the periods off CPU that a batch's ``edges`` closed, with what was seen in that batch."""
        faults = _by_slot(faults) if len(faults.slot) else faults
        uid, reason, ip, cpu = self._departed(edges, departures, faults)
        woken_ns = self._woken_ns(periods, woken)
        began, is_older, of = periods.began, periods.began < 0, self._of

        def of_period(per_edge: Array, per_slot: Array) -> Array:
            if not len(per_edge):
                return per_slot[periods.slot]
            return np.where(is_older, per_slot[periods.slot], per_edge[began])

        state = self._states(periods, of_period(reason, of.reason), of_period(ip, of.ip), faults)
        stacks, cpus = of_period(uid, of.uid), of_period(cpu, of.cpu)
        self._remember(edges, uid, reason, ip, cpu)
        wait_ns, is_share = self._waits_ns(periods, woken_ns, delays, edges)
        return _split(periods, state, stacks, cpus, wait_ns, is_share)

    def so_far(self, periods: Periods) -> tuple[Spans, Array]:
        """The same for periods that go on (``Timeline.tell``). Also which of them (p,) only wait for a CPU now."""
        of, slot, blocked = self._of, periods.slot, periods.kind == Edge.OUT_BLOCKED
        reason, ip = of.reason[slot], of.ip[slot]
        state = np.where(blocked, _STATE_OF_REASON[reason], _WAIT_CPU)
        told = blocked & _of_fault(reason, of.fault_state[slot], of.fault_ip[slot] == ip)
        state = np.where(told, of.fault_state[slot], state)
        # Who was woken just before its departure may have gone on, and sleep since: that is decided where the period is
        # over.
        woken = blocked & (of.woken_ns[slot] > periods.start_ns)
        woken_ns = _within(periods, np.where(woken, of.woken_ns[slot], 0), of.over_ns[slot])
        woken &= woken_ns > 0
        wait_ns = np.where(woken, periods.end_ns - woken_ns, 0)
        of.unexplained_ns[slot] -= np.where(blocked, wait_ns, periods.end_ns - periods.start_ns)
        return _split(periods, state, of.uid[slot], of.cpu[slot], wait_ns, np.zeros(len(slot), dtype=bool)), woken

    def untold(self, slot: Array) -> Array:
        """Those (m,) of the slots (n,) of blocked threads whose departures were not told at all; first those of which
        no habit tells either what they wait for, last those that have been asked in vain."""
        self.grow(int(slot.max(initial=-1)) + 1)
        untold = slot[(self._of.ip[slot] == 0) & (self._of.uid[slot] == 0)]
        found: Array = untold[np.lexsort((self._of.reason[untold] != _UNKNOWN, self._of.is_asked[untold]))]
        return found

    def asked(self, slot: Array) -> None:
        """Threads at slots (n,) have been asked where they wait."""
        self._of.is_asked[slot] = True

    def unknown(self, slot: Array) -> Array:
        """Those (m,) of the slots (n,) of blocked threads of which nothing tells what they wait for, and that have not
        been asked."""
        found: Array = slot[(self._of.reason[slot] == _UNKNOWN) & ~self._of.is_asked[slot]]
        return found

    def tell(self, departures: Departures) -> None:
        """Departures of threads that are still off CPU, told afterwards."""
        for name in ("uid", "reason", "ip", "cpu"):
            getattr(self._of, name)[departures.slot] = getattr(departures, name)
        self._of.told[departures.slot] = departures.reason
        usual = _is_habit(departures.reason)
        self._of.habit[departures.slot[usual]] = departures.reason[usual]

    def _woken_ns(self, periods: Periods, woken: Wakeups) -> Array:
        """When the thread was woken in each period (p,), 0 where unknown. The last wake-ups are remembered, for periods
        that are still to end; but not those that have ended one."""
        slot, of = periods.slot, self._of
        over_ns = of.over_ns[slot]
        follows = indices(slot[1:] == slot[:-1]) + 1
        over_ns[follows] = periods.end_ns[follows - 1]
        found = _within(periods, of.woken_ns[slot], over_ns)
        if len(woken.slot) and len(slot):
            at = np.minimum(_first_at(woken.slot, woken.time_ns, slot, periods.start_ns), len(woken.slot) - 1)
            inside = _within(periods, np.where(woken.slot[at] == slot, woken.time_ns[at], 0), over_ns)
            before = _within(periods, woken.last_ns(slot, periods.start_ns), over_ns)
            found = np.where(inside > 0, inside, np.where(before > 0, before, found))
        of.woken_ns[woken.slot], of.over_ns[slot] = woken.time_ns, periods.end_ns
        found[periods.kind != Edge.OUT_BLOCKED] = 0
        return found

    def _departed(self, edges: Edges, departures: Departures,
                  faults: PageFaults) -> tuple[Array, Array, Array, Array]:
        """Stack, reason, ip and CPU of every edge that is a switch-out (zero for the others)."""
        n = len(edges.slot)
        uid, reason = np.zeros(n, dtype=np.uint64), np.zeros(n, dtype=np.int8)
        ip, cpu = np.zeros(n, dtype=np.uint64), np.zeros(n, dtype=np.int32)
        if n and len(departures.slot):
            # A departure is stamped just before its switch record: it belongs to the thread's next edge.
            at = edges.next_at(departures.slot, departures.time_ns)
            hit = at >= 0
            begins = hit & (edges.edge[at] == Edge.IN)  # of a run of which only the end is known, at the same time
            at = np.where(begins, np.minimum(at + 1, n - 1), at)
            hit &= is_out(edges.edge[at]) & (edges.slot[at] == departures.slot)
            at = at[hit]
            uid[at], reason[at] = departures.uid[hit], departures.reason[hit]
            ip[at], cpu[at] = departures.ip[hit], departures.cpu[hit]
        # A thread that leaves its CPU too often to be asked every time is taken to wait for what it usually waits for.
        # It is not stopped by habit, nor waits for pages where none was missing.
        blocked = indices(edges.edge == Edge.OUT_BLOCKED)
        if not len(blocked):
            return uid, reason, ip, cpu
        untold = blocked[ip[blocked] == 0]
        slot, why, is_told = edges.slot[blocked], reason[blocked], ip[blocked] != 0
        last = self._last_told(self._of.told, slot, why, is_told, is_told & (why != _UNKNOWN))
        usual = self._last_told(self._of.habit, slot, why, is_told, is_told & _is_habit(why))
        self._tell_before(slot, why, is_told & _is_habit(why))
        if len(untold):
            is_fault = (last == _USER_FAULT) | (last == _IN_KERNEL)
            fault = self._faults_before(edges, untold, faults)
            reason[untold] = np.where(is_fault & (fault > 0), _REASON_OF_FAULT[fault], usual)
        return uid, reason, ip, cpu

    @staticmethod
    def _last_told(known: Array, slot: Array, reason: Array, is_told: Array, counts: Array) -> Array:
        """For those of departures to sleep (d,), in order, that were not told (u,): the reason of the thread's last one
        before that ``counts`` (d,); of a thread of which none had been told so far, that of its next one, if it may be
        a habit. ``known`` (n,): the last one's by slot, which is kept so."""
        told, untold = indices(counts), indices(~is_told)
        its = slot[untold]
        found: Array = known[its]
        if len(told):
            n_before = told.searchsorted(untold)
            before, behind = told[np.maximum(n_before - 1, 0)], told[np.minimum(n_before, len(told) - 1)]
            is_first = (found == _UNKNOWN) & (behind > untold) & (slot[behind] == its)
            found = np.where(is_first & _is_habit(reason[behind]), reason[behind], found)
            found = np.where((before < untold) & (slot[before] == its), reason[before], found)
            known[slot[told]] = reason[told]
        return found

    def _tell_before(self, slot: Array, reason: Array, is_habit: Array) -> None:
        """Departures (d,) to sleep, in order, tell those before this batch as they tell those in it: who left untold,
        and of whom none had been told so far, waited for what its first one from here on ``is_habit`` (d,) to."""
        rows, of = indices(is_habit), self._of
        rows = rows[changes(slot[rows])]
        its = slot[rows]
        rows = rows[(of.reason[its] == _UNKNOWN) & (of.ip[its] == 0) & (of.uid[its] == 0)]
        of.reason[slot[rows]] = reason[rows]

    def _faults_before(self, edges: Edges, out: Array, faults: PageFaults) -> Array:
        """The state (o,) that the thread's last page fault tells, in the run that each of the switch-outs (o,), rows of
        ``edges``, ends; 0 if there was none."""
        slot, before = edges.slot[out], np.maximum(out - 1, 0)
        is_its = (edges.slot[before] == slot) & (before < out)
        begun_ns = np.where(is_its, edges.time_ns[before], self._of.over_ns[slot])
        last_ns, state = self._of.fault_ns[slot], self._of.fault_state[slot]
        if len(faults.slot):
            at = np.maximum(_next_of(faults, slot, edges.time_ns[out]) - 1, 0)
            is_its = (faults.slot[at] == slot) & (faults.time_ns[at] <= edges.time_ns[out])
            last_ns = np.where(is_its, faults.time_ns[at], last_ns)
            state = np.where(is_its, _fault_states(faults)[at], state)
        found: Array = np.where(last_ns >= begun_ns, state, 0)
        return found

    def _remember(self, edges: Edges, uid: Array, reason: Array, ip: Array, cpu: Array) -> None:
        of, slot = self._of, edges.slot  # the last one of each stays
        of.uid[slot], of.reason[slot], of.ip[slot], of.cpu[slot], of.is_asked[slot] = uid, reason, ip, cpu, False

    def _states(self, periods: Periods, reason: Array, ip: Array, faults: PageFaults) -> Array:
        """State (p,) of the part of each period before the wake-up; ``faults`` by slot."""
        blocked = periods.kind == Edge.OUT_BLOCKED
        state = np.where(blocked, _STATE_OF_REASON[reason], _WAIT_CPU)
        untold = blocked & (reason == _USER_FAULT)
        # A fault of the very instruction that the thread was blocked at: the last one before, else the next one after.
        fault_state = _fault_states(faults)
        for kind, same in self._last_faults(faults, fault_state, periods, ip):
            told = blocked & _of_fault(reason, kind, same) & (untold | (reason == _UNKNOWN))
            state[told] = kind[told]
            untold &= ~told
            blocked &= ~told
        of = self._of
        of.fault_ip[faults.slot], of.fault_state[faults.slot] = faults.ip, fault_state
        of.fault_ns[faults.slot] = faults.time_ns
        self.n_guessed += int(np.count_nonzero(untold))
        self.n_from_host += int(np.count_nonzero(blocked & (reason == _HOST_FAULT)))
        return state

    def _last_faults(self, faults: PageFaults, fault_state: Array, periods: Periods,
                     ip: Array) -> list[tuple[Array, Array]]:
        """For each period (p,): the state that a fault tells, and whether it is the same instruction's; three tries."""
        tries = [(self._of.fault_state[periods.slot], self._of.fault_ip[periods.slot] == ip)]
        if len(faults.slot):
            for at in (_next_of(faults, periods.slot, periods.start_ns) - 1,
                       _next_of(faults, periods.slot, periods.end_ns)):
                inside = np.clip(at, 0, len(faults.slot) - 1)
                same = (inside == at) & (faults.slot[inside] == periods.slot) & (faults.ip[inside] == ip)
                tries.append((fault_state[inside], same))
        return tries[1:2] + tries[:1] + tries[2:]

    def _waits_ns(self, periods: Periods, woken_ns: Array, delays: Delays, edges: Edges) -> tuple[Array, Array]:
        """How long the end of each period (p,) was a wait for a CPU, where the thread had been blocked before; and
        whether that is a share of what was waited in all, since no wake-up tells."""
        unexplained_ns, n_slots = self._of.unexplained_ns, len(self._of.unexplained_ns)
        unexplained_ns[delays.slot] += delays.grown_ns
        length_ns = periods.end_ns - periods.start_ns
        blocked = periods.kind == Edge.OUT_BLOCKED
        wait_ns = np.where(woken_ns > 0, periods.end_ns - woken_ns, 0)
        is_steal = ~blocked & (periods.source == Source.ADJUSTED)  # which the scheduler knows nothing of
        unexplained_ns -= summed(periods.slot, np.where(blocked, wait_ns, np.where(is_steal, 0, length_ns)), n_slots)
        known = np.zeros(n_slots, dtype=bool)
        known[delays.slot] = True
        untold, of, shared_ns = indices(blocked & (woken_ns == 0)), self._of, np.zeros_like(length_ns)
        has_account = known[periods.slot[untold]]
        told, silent = untold[has_account], untold[~has_account]
        if len(told):
            slots = periods.slot[told]
            most_ns = np.maximum(length_ns[told] - 1, 0)  # who was blocked slept, however short
            shared_ns[told], of.slept_ns[slots], of.longest_ns[slots] = _shares_ns(
                slots, most_ns, np.maximum(unexplained_ns, 0))
        if len(silent):
            silent = silent[~_to_the_end(periods.take(silent), edges)]
            self._go_on(silent, periods, shared_ns)
        explained = indices(blocked & ((woken_ns > 0) | known[periods.slot]))
        if len(explained) >= _MANY_WAITS and (woken_ns > 0).any():
            self._waiting = float((wait_ns + shared_ns)[explained].sum() / max(int(length_ns[explained].sum()), 1))
        of.has_account[delays.slot] = True
        self._estimate(silent[~of.has_account[periods.slot[silent]]], periods, shared_ns)
        if len(untold):
            unexplained_ns -= summed(periods.slot, shared_ns, n_slots)
        return wait_ns + shared_ns, shared_ns > 0

    def _go_on(self, rows: Array, periods: Periods, shared_ns: Array) -> None:
        """What threads waited for a CPU in periods at some rows (r,) of which no account tells: as they did up to their
        last one, if they had any; a sleep longer than all of those that were alike is another one, of which nothing is
        known. Who has no account now has ended, or will have one that tells what was too much. It is put into
        ``shared_ns`` (p,)."""
        slots = periods.slot[rows]
        slept_ns, longest_ns = self._of.slept_ns[slots], self._of.longest_ns[slots]
        above_ns = np.maximum((periods.end_ns - periods.start_ns)[rows] - 1 - slept_ns, 0)
        shared_ns[rows] = np.where((slept_ns > 0) & (above_ns > longest_ns), 0, np.minimum(above_ns, longest_ns))

    def _estimate(self, rows: Array, periods: Periods, shared_ns: Array) -> None:
        """What threads waited for a CPU in periods at some rows (r,) of which no witness tells: as much of their time
        off CPU as others, where wake-ups come too often for a record of each. It is put into ``shared_ns`` (p,)."""
        if not self._waiting or not len(rows):
            return
        shared_ns[rows] = (self._waiting * (periods.end_ns - periods.start_ns)[rows]).astype(np.int64)
        before = np.count_nonzero(self._of.is_estimated)
        self._of.is_estimated[periods.slot[rows]] = True
        self.n_estimated += int(np.count_nonzero(self._of.is_estimated) - before)


def _to_the_end(periods: Periods, edges: Edges) -> Array:
    """Which periods (p,) off CPU ended with their thread, or with the recording: it has not waited to run again."""
    at = edges.next_at(periods.slot, periods.end_ns)
    found: Array = at >= 0
    found[found] = (edges.edge[at[found]] == Edge.ENDED) & (edges.time_ns[at[found]] == periods.end_ns[found])
    return found


def _shares_ns(slot: Array, most_ns: Array, due_ns: Array) -> tuple[Array, Array, Array]:
    """How long each of the waits (u,) was behind sleeps whose ends are unknown, where ``due_ns`` (n,) was waited by
    each slot's thread in all, and ``most_ns`` (u,) at most each time. Also what tells of further ones (u,): how long
    the thread sleeps each time, 0 if that is not alike, and how long it waits at most.

    Waits are taken to be alike. But where the sleeps of a thread are alike, as those of a timer, whatever made one
    longer was a wait: one of 5 ms among naps of 50 us is no hundred waits of as long as the naps are. They are alike
    where most of them are nearly as long as the longest can have been (_LIKE of it). Of lengths that are spread evenly
    a quarter is.
    """
    order = np.lexsort((most_ns, slot))
    slot, most_ns = slot[order], most_ns[order]
    level_ns = _level_ns(slot, most_ns, due_ns)
    slept_ns = _level_ns(slot, most_ns, np.maximum(summed(slot, most_ns, len(due_ns)) - due_ns, 0))
    n_waits = np.bincount(slot, minlength=len(due_ns))
    n_like = np.bincount(slot[most_ns >= _LIKE * slept_ns], minlength=len(due_ns))
    alike = ((2 * n_like > n_waits) & (n_waits >= _SOME_WAITS))[slot]
    shares_ns = np.where(alike, np.maximum(most_ns - slept_ns, 0), np.minimum(level_ns, most_ns))
    longest_ns = np.zeros_like(due_ns)
    np.maximum.at(longest_ns, slot, shares_ns)
    found = np.empty((3, len(slot)), dtype=np.int64)
    found[:, order] = shares_ns, np.where(alike, slept_ns, 0), np.where(alike, longest_ns[slot], level_ns)
    return found[0], found[1], found[2]


def _level_ns(slot: Array, length_ns: Array, due_ns: Array) -> Array:
    """How much at most of each period (u,), by slot and length, is due, where ``due_ns`` (n,) is due to each slot in
    all: alike for all of a slot's, but what is more than a period is long falls to the longer ones."""
    first = slot.searchsorted(slot)
    n_left = slot.searchsorted(slot, side="right") - np.arange(len(slot))
    before_ns = length_ns.cumsum() - length_ns
    level_ns = (due_ns[slot] - before_ns + before_ns[first]) // n_left  # if all shorter ones are filled
    # The first that it does not fill, else the longest.
    longest = first + np.bincount(slot[level_ns >= length_ns], minlength=len(due_ns))[slot]
    found: Array = level_ns[np.minimum(longest, np.arange(len(slot)) + n_left - 1)]
    return found


def _within(periods: Periods, woken_ns: Array, over_ns: Array) -> Array:
    """Wake-ups (p,) as they end each period, 0 where one does not: a nanosecond of it is blocked, and one a wait.
    ``over_ns`` (p,): the end of the period off CPU before.

    A thread can be woken when the scheduler has taken it from its CPU and its departure is still to be stamped.
    """
    since_ns = periods.start_ns - np.where(periods.begun_ns == periods.start_ns, LEAVING_NS, 0)
    is_its = (woken_ns > over_ns) & (woken_ns >= since_ns) & (woken_ns <= periods.end_ns)
    inside = np.maximum(np.minimum(woken_ns, periods.end_ns - 1), np.minimum(periods.start_ns + 1, periods.end_ns))
    return np.where(is_its, inside, 0)


def _split(periods: Periods, state: Array, uid: Array, cpu: Array, wait_ns: Array, is_share: Array) -> Spans:
    """One span for each period, and one more for the wait (p,) at the end of those that have one.

    A wait that ``is_share`` (p,) was not recorded, nor was the end of what came before it.
    """
    woken_ns, late = periods.end_ns - wait_ns, indices(wait_ns > 0)
    source = np.where(is_share, np.maximum(periods.source, _ADJUSTED), periods.source)
    spans = Spans(periods.slot, state, periods.begun_ns, woken_ns - periods.start_ns, woken_ns, uid, cpu, source)
    if not len(late):
        return spans
    return spans.and_more(
        Spans(periods.slot[late], np.full(len(late), _WAIT_CPU), woken_ns[late], wait_ns[late], periods.end_ns[late],
              uid[late], cpu[late], np.where(is_share, _SYNTHETIC, periods.source)[late]))


def _by_slot(faults: PageFaults) -> PageFaults:
    order = np.lexsort((faults.time_ns, faults.slot))
    return PageFaults(*(getattr(faults, name)[order] for name in PageFaults.__slots__))


def _fault_states(faults: PageFaults) -> Array:
    """The state (f,) that waiting for each page is."""
    text = (faults.address >> _PAGE_BITS) == (faults.ip >> _PAGE_BITS)
    return np.where(faults.in_kernel, _KERNEL_FAULT,
                    np.where(text, _TEXT_FAULT, _DATA_FAULT))


def _is_habit(reason: Array) -> Array:
    found: Array = (reason == _SLEEP) | (reason == _LOCK)
    return found


def _of_fault(reason: Array, fault_state: Array, same: Array) -> Array:
    """Whether the fault may be what was waited for: the same instruction's, and from user mode where that is known."""
    found: Array = same & (fault_state != 0) & np.where(
        reason == _USER_FAULT, fault_state != _KERNEL_FAULT, reason == _UNKNOWN)
    return found


def _next_of(faults: PageFaults, slot: Array, time_ns: Array) -> Array:
    """Index of the first of the faults, which are sorted by slot and time, at or after each (slot, time)."""
    return _first_at(faults.slot, faults.time_ns, slot, time_ns)


def _first_at(slots: Array, times_ns: Array, slot: Array, time_ns: Array) -> Array:
    """Index of the first of (slots, times), in order, at or after each (slot, time)."""
    keys, wanted = packed((slots, times_ns), (slot, time_ns))
    found: Array = keys.searchsorted(wanted)
    return found


class WaitTicks:
    """The ticks that spans earn; see ``ticks``."""

    def __init__(self, interval_ns: int) -> None:
        self._accounts = Accounts(interval_ns)
        self._cpu = Columns(cpu=("i4", 0))  # of the thread's last span

    def due(self, spans: Spans) -> tuple[Spans, Array]:
        """Spans that earn ticks, and how many (t,); those of length 0 are paid for time in earlier batches, and begin
        before everything."""
        self._cpu.grow(int(spans.slot.max(initial=-1)) + 1)
        self._cpu.cpu[spans.slot] = spans.cpu
        earned, group, uid, more = self._accounts.add(spans.slot * N_STATES + spans.state, spans.uid, spans.length_ns)
        rows = indices(earned)
        due, ticks = spans.take(rows), earned[rows]
        if not len(group):
            return due, ticks
        slot, zero, end_ns = group // N_STATES, np.zeros_like(group), np.full(len(group), spans.end_ns.max())
        extra = Spans(slot, group % N_STATES, zero, zero, end_ns, uid, self._cpu.cpu[slot], zero.astype(np.int8))
        return due.and_more(extra), np.concatenate([ticks, more])

    def owed(self, slots: Array) -> tuple[Array, Array]:
        """What threads that have ended, at ``slots`` (n,) in ascending order, are still owed by state (n, 10), and for
        which stack most of it (n, 10)."""
        group, uid, owed_ns = self._accounts.close((slots[:, None] * N_STATES + np.arange(N_STATES)).reshape(-1))
        place = slots.searchsorted(group // N_STATES) * N_STATES + group % N_STATES
        stacks = np.zeros(len(slots) * N_STATES, dtype=np.uint64)
        order = owed_ns.argsort(kind="stable")
        stacks[place[order]] = uid[order]
        owed = summed(place, owed_ns, len(stacks))
        return owed.reshape(-1, N_STATES), stacks.reshape(-1, N_STATES)
