"""What threads wait for while they are off CPU. Pure, for all threads of a batch at once.

A period off CPU lies between a switch-out and the next switch-in. Its states:

    switched out by preemption, or born and not yet run   wait CPU, all of it
    blocked                                               what it was blocked for, then wait CPU from the wake-up on

                 out            woken        in
    running -----|--- blocked ---|-- wait ---|----- running

*What for* is the Reason that came with the switch-out, and for page faults the record of the fault, made when it began
or when it was completed, which says whose fault it was and whether the page held the code itself. *When woken* is
recorded where the user may see it. Where it is not, the kernel still keeps the sum of all waits of a thread
(run_delay), and whatever of it is explained neither by preemption nor by known wake-ups was spent behind the others.

Ticks are earned as ``ticks`` tells: by thread and state, for the stacks that are owed most. When a thread ends, what it
is still owed is settled (``settling``), so that the sum over its states is not off by an interval, either.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from collector.arrays import packed
from collector.events import Array, Edge, Reason
from collector.timing.microstate import Edges, Periods
from collector.timing.ticks import Accounts
from collector.timing.timeline import is_out

N_STATES = 10


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
_TEXT_FAULT, _DATA_FAULT, _KERNEL_FAULT = (
    np.int8(state) for state in (Microstate.TEXT_FAULT, Microstate.DATA_FAULT, Microstate.KERNEL_FAULT))
_STATE_OF_REASON = np.array([Microstate.SLEEP, Microstate.SLEEP, Microstate.USER_LOCK, Microstate.DATA_FAULT,
                             Microstate.KERNEL_FAULT, Microstate.STOPPED], dtype=np.int64)
assert [int(r) for r in Reason] == list(range(len(_STATE_OF_REASON)))
_PAGE_BITS = np.uint64(12)


@dataclass(slots=True)
class Departures:
    """What is known of switch-outs, one row each; ``uid`` 0 where the stack is unknown."""

    slot: Array  # i8 (k,)
    time_ns: Array  # i8 (k,)
    uid: Array  # u8 (k,)
    reason: Array  # i1 (k,)
    ip: Array  # u8 (k,)
    cpu: Array  # i4 (k,)


@dataclass(slots=True)
class PageFaults:
    """Page faults in time order: each stamped before the period that it was waited for, or after, or both."""

    slot: Array  # i8 (f,)
    time_ns: Array  # i8 (f,)
    address: Array  # u8 (f,)
    ip: Array  # u8 (f,)
    in_kernel: Array  # bool (f,)


@dataclass(slots=True)
class Spans:
    """Stretches of time of threads in one state each, s of them, with the stack they were spent with."""

    slot: Array  # i8 (s,)
    state: Array  # i8 (s,)
    length_ns: Array  # i8 (s,)
    end_ns: Array  # i8 (s,)
    uid: Array  # u8 (s,)
    cpu: Array  # i4 (s,)
    start_ns: Array  # i8 (s,) exactly; ``end_ns`` is the end of the whole period off CPU that it is a part of


class Waiting:
    """Accounts of all threads' waiting, by slot."""

    def __init__(self, interval_ns: int) -> None:
        self.interval_ns = interval_ns
        self.n_guessed = 0  # page faults of which nothing tells whether text or data was missing
        self._accounts = Accounts(interval_ns)
        # Of the switch-out that a thread is behind, as far as it is off CPU now.
        self._uid = np.zeros(64, dtype=np.uint64)
        self._reason = np.zeros(64, dtype=np.int8)
        self._habit = np.zeros(64, dtype=np.int8)  # the Reason of the thread's last departure that was told
        self._ip = np.zeros(64, dtype=np.uint64)
        self._cpu = np.zeros(64, dtype=np.int32)
        self._woken_ns = np.zeros(64, dtype=np.int64)  # the thread's last wake-up
        # The thread's last page fault: at which instruction, and the state that waiting for it is.
        self._fault_ip = np.zeros(64, dtype=np.uint64)
        self._fault_state = np.zeros(64, dtype=np.int8)
        # run_delay that no switch record has explained yet.
        self._unexplained_ns = np.zeros(64, dtype=np.int64)

    def grow(self, n: int) -> None:
        """Makes room for ``n`` slots."""
        if n <= len(self._uid):
            return
        more = max(n, 2 * len(self._uid)) - len(self._uid)
        for name in ("_uid", "_reason", "_habit", "_ip", "_cpu", "_fault_ip", "_fault_state",
                     "_unexplained_ns", "_woken_ns"):
            old = getattr(self, name)
            setattr(self, name, np.concatenate([old, np.zeros((more, *old.shape[1:]), dtype=old.dtype)]))

    def woken_ns(self, periods: Periods, slot: Array, time_ns: Array) -> Array:
        """When the thread was woken in each period (p,), 0 where unknown; wake-ups are (w,) slots and times.

        The last ones are remembered, for periods that are still to end.
        """
        before = self._woken_ns[periods.slot]
        woken: Array = np.where((before >= periods.start_ns) & (before <= periods.end_ns), before, 0)
        if len(slot) and len(woken):
            order = np.lexsort((time_ns, slot))
            slot, time_ns = slot[order], time_ns[order]
            at = np.minimum(_first_at(slot, time_ns, periods.slot, periods.start_ns), len(slot) - 1)
            hit = (slot[at] == periods.slot) & (time_ns[at] >= periods.start_ns) & (time_ns[at] <= periods.end_ns)
            woken = np.where((woken == 0) & hit, time_ns[at], woken)
        self._woken_ns[slot] = time_ns
        woken[periods.kind != Edge.OUT_BLOCKED] = 0
        return woken

    def close(self, periods: Periods, edges: Edges, departures: Departures, faults: PageFaults, woken_ns: Array,
              run_delay_ns: tuple[Array, Array]) -> Spans:
        """The states of the periods that a batch closed.

        ``edges`` are the batch's; ``woken_ns`` as told by the method of that name; ``run_delay_ns`` is (slots, how much
        each one's run_delay has grown), at least of the threads with unknown wake-ups.
        """
        uid, reason, ip, cpu = self._departed(edges, departures)
        began, slot = periods.began, periods.slot
        carried = began < 0

        def of_period(per_edge: Array, per_slot: Array) -> Array:
            if not len(per_edge):
                return per_slot[slot]
            return np.where(carried, per_slot[slot], per_edge[began])

        spans = self._states(periods, of_period(reason, self._reason), of_period(ip, self._ip), faults)
        stacks, cpus = of_period(uid, self._uid), of_period(cpu, self._cpu)
        self._remember(edges, uid, reason, ip, cpu)
        return self._split(periods, spans, stacks, cpus, woken_ns, run_delay_ns)

    def untold(self, slot: Array) -> Array:
        """Those (m,) of the slots (n,) of blocked threads whose departures were not told at all."""
        self.grow(int(slot.max(initial=-1)) + 1)
        found: Array = slot[(self._ip[slot] == 0) & (self._uid[slot] == 0)]
        return found

    def tell(self, departures: Departures) -> None:
        """Departures of threads that are still off CPU, told afterwards."""
        for name in ("uid", "reason", "ip", "cpu"):
            getattr(self, "_" + name)[departures.slot] = getattr(departures, name)
        self._habit[departures.slot] = departures.reason

    def still_waiting(self, slot: Array, kind: Array, since_ns: Array, now_ns: int) -> tuple[Spans, Array]:
        """What threads that are off CPU have waited so far: (n,) slots, the Edge each is behind, and since when.

        Also returns which of them (n,) only wait for a CPU now, with what is behind them.
        """
        blocked = kind == Edge.OUT_BLOCKED
        state = np.where(blocked, _STATE_OF_REASON[self._reason[slot]], _WAIT_CPU)
        told = blocked & _of_fault(self._reason[slot], self._fault_state[slot], self._fault_ip[slot] == self._ip[slot])
        state = np.where(told, self._fault_state[slot], state)
        woken_ns = self._woken_ns[slot]
        ready = ~blocked | ((woken_ns >= since_ns) & (woken_ns <= now_ns))
        length = np.maximum(now_ns - since_ns, 0)
        wait = np.where(ready, np.where(blocked, now_ns - woken_ns, length), 0)
        self._unexplained_ns[slot] -= wait
        late = np.flatnonzero(blocked & (wait > 0))
        length[late] -= wait[late]
        return Spans(np.concatenate([slot, slot[late]]),
                     np.concatenate([state, np.full(len(late), _WAIT_CPU)]),
                     np.concatenate([length, wait[late]]), np.full(len(slot) + len(late), now_ns),
                     np.concatenate([self._uid[slot], self._uid[slot[late]]]),
                     np.concatenate([self._cpu[slot], self._cpu[slot[late]]]),
                     np.concatenate([since_ns, now_ns - wait[late]])), ready

    def ticks(self, spans: Spans) -> tuple[Spans, Array]:
        """Spans that earn ticks, and how many (t,); those of length 0 are paid for time in earlier batches."""
        earned, group, uid, more = self._accounts.add(spans.slot * N_STATES + spans.state, spans.uid, spans.length_ns)
        rows = np.flatnonzero(earned)
        slot = group // N_STATES
        end_ns = np.full(len(group), int(spans.end_ns.max()) if len(spans.end_ns) else 0)
        none = np.zeros(len(group), dtype=np.int64)
        extra = Spans(slot, group % N_STATES, none, end_ns, uid, self._cpu[slot], end_ns)
        due = Spans(*(np.concatenate([getattr(spans, name)[rows], getattr(extra, name)]) for name in Spans.__slots__))
        return due, np.concatenate([earned[rows], more])

    def take_account(self, slot: int) -> tuple[Array, Array]:
        """What a thread that has ended is still owed by state (10,), and for which stack most of it (10,)."""
        group, uid, owed_ns = self._accounts.close(slot * N_STATES, slot * N_STATES + N_STATES - 1)
        state = group % N_STATES
        stacks = np.zeros(N_STATES, dtype=np.uint64)
        order = np.argsort(owed_ns, kind="stable")
        stacks[state[order]] = uid[order]
        return np.bincount(state, owed_ns, N_STATES).astype(np.int64), stacks

    def _departed(self, edges: Edges, departures: Departures) -> tuple[Array, Array, Array, Array]:
        """Stack, reason, ip and CPU of every edge that is a switch-out (zero for the others)."""
        n = len(edges.slot)
        uid, reason = np.zeros(n, dtype=np.uint64), np.zeros(n, dtype=np.int8)
        ip, cpu = np.zeros(n, dtype=np.uint64), np.zeros(n, dtype=np.int32)
        if n and len(departures.slot):
            # A departure is stamped just before its switch record: it belongs to the thread's next edge.
            at = edges.next_at(departures.slot, departures.time_ns)
            hit = (at >= 0) & is_out(edges.cut[at])
            at = at[hit]
            uid[at], reason[at] = departures.uid[hit], departures.reason[hit]
            ip[at], cpu[at] = departures.ip[hit], departures.cpu[hit]
            self._habit[edges.slot[at]] = departures.reason[hit]
        # A thread that leaves its CPU too often to be asked every time is taken to wait for what it usually waits for.
        untold = (ip == 0) & (edges.cut == Edge.OUT_BLOCKED)
        reason[untold] = self._habit[edges.slot[untold]]
        return uid, reason, ip, cpu

    def _remember(self, edges: Edges, uid: Array, reason: Array, ip: Array, cpu: Array) -> None:
        last = np.flatnonzero(edges.last)
        slot = edges.slot[last]
        self._uid[slot], self._reason[slot] = uid[last], reason[last]
        self._ip[slot], self._cpu[slot] = ip[last], cpu[last]

    def _states(self, periods: Periods, reason: Array, ip: Array, faults: PageFaults) -> Array:
        """State (p,) of the part of each period before the wake-up."""
        blocked = periods.kind == Edge.OUT_BLOCKED
        state = np.where(blocked, _STATE_OF_REASON[reason], _WAIT_CPU)
        untold = blocked & (reason == _USER_FAULT)
        # A fault of the very instruction that the thread was blocked at: the last one before, else the next one after.
        order = np.lexsort((faults.time_ns, faults.slot))
        faults_by_slot = PageFaults(*(getattr(faults, name)[order] for name in PageFaults.__slots__))
        fault_state = _fault_states(faults_by_slot)
        for kind, same in self._last_faults(faults_by_slot, fault_state, periods, ip):
            told = blocked & _of_fault(reason, kind, same) & (untold | (reason == _UNKNOWN))
            state[told] = kind[told]
            untold &= ~told
            blocked &= ~told
        self._fault_ip[faults_by_slot.slot], self._fault_state[faults_by_slot.slot] = faults_by_slot.ip, fault_state
        self.n_guessed += int(np.count_nonzero(untold))
        return state

    def _last_faults(self, faults: PageFaults, fault_state: Array, periods: Periods,
                     ip: Array) -> list[tuple[Array, Array]]:
        """For each period (p,): the state that a fault tells, and whether it is the same instruction's; three tries."""
        tries = [(self._fault_state[periods.slot], self._fault_ip[periods.slot] == ip)]
        if len(faults.slot):
            for at in (_next_of(faults, periods.slot, periods.start_ns) - 1,
                       _next_of(faults, periods.slot, periods.end_ns)):
                inside = np.clip(at, 0, len(faults.slot) - 1)
                same = (inside == at) & (faults.slot[inside] == periods.slot) & (faults.ip[inside] == ip)
                tries.append((fault_state[inside], same))
        return tries[1:2] + tries[:1] + tries[2:]

    def _split(self, periods: Periods, state: Array, uid: Array, cpu: Array, woken_ns: Array,
               run_delay_ns: tuple[Array, Array]) -> Spans:
        """Cuts the wait behind the wake-up off the blocked periods."""
        length = periods.end_ns - periods.start_ns
        blocked = periods.kind == Edge.OUT_BLOCKED
        n_slots = len(self._uid)
        slots, grown = run_delay_ns
        self._unexplained_ns[slots] += grown
        wait = np.where(woken_ns > 0, periods.end_ns - woken_ns, 0)
        self._unexplained_ns -= np.bincount(periods.slot, np.where(blocked, wait, length), n_slots).astype(np.int64)
        known = np.zeros(n_slots, dtype=bool)
        known[slots] = True
        untold = blocked & (woken_ns == 0)
        n_untold = np.bincount(periods.slot[untold], minlength=n_slots)
        share = np.maximum(self._unexplained_ns, 0) // np.maximum(n_untold, 1) * known
        shared = np.where(untold, np.minimum(share[periods.slot], length), 0)
        self._unexplained_ns -= np.bincount(periods.slot, shared, n_slots).astype(np.int64)
        wait += shared
        late = wait > 0
        return Spans(np.concatenate([periods.slot, periods.slot[late]]),
                     np.concatenate([state, np.full(int(late.sum()), _WAIT_CPU)]),
                     np.concatenate([length - wait, wait[late]]),
                     np.concatenate([periods.end_ns, periods.end_ns[late]]),
                     np.concatenate([uid, uid[late]]), np.concatenate([cpu, cpu[late]]),
                     np.concatenate([periods.start_ns, periods.end_ns[late] - wait[late]]))


def _fault_states(faults: PageFaults) -> Array:
    """The state (f,) that waiting for each page is."""
    text = (faults.address >> _PAGE_BITS) == (faults.ip >> _PAGE_BITS)
    return np.where(faults.in_kernel, _KERNEL_FAULT,
                    np.where(text, _TEXT_FAULT, _DATA_FAULT))


def _of_fault(reason: Array, fault_state: Array, same: Array) -> Array:
    """Whether the fault may be what was waited for: the same instruction's, and from user mode where that is known."""
    found: Array = same & (fault_state != 0) & np.where(
        reason == _USER_FAULT, fault_state != _KERNEL_FAULT, reason == _UNKNOWN)
    return found


def _next_of(faults: PageFaults, slot: Array, time_ns: Array) -> Array:
    """Index of the first of the faults, which are sorted by slot and time, at or after each (slot, time)."""
    return _first_at(faults.slot, faults.time_ns, slot, time_ns)


def _first_at(slots: Array, times_ns: Array, slot: Array, time_ns: Array) -> Array:
    """Index of the first of (slots, times), sorted and not empty, at or after each (slot, time)."""
    keys, wanted = packed((slots, times_ns), (slot, time_ns))
    found: Array = np.searchsorted(keys, wanted)
    return found
