"""What threads wait for while they are off CPU. Pure, for all threads of a batch at once.

A period off CPU lies between a switch-out and the next switch-in. Its states:

    switched out by preemption, or born and not yet run   wait CPU, all of it
    blocked                                               what it was blocked for, then wait CPU from the wake-up on

                 out            woken        in
    running -----|--- blocked ---|-- wait ---|----- running

*What for* is the Reason that came with the switch-out, and for page faults the record of the fault's completion, which
says whose fault it was and whether the page held the code itself. *When woken* is not recorded; but the kernel keeps
the sum of all waits of a thread (run_delay), and whatever of it is not explained by preemption was spent behind
wake-ups.

Ticks: every thread and state has an account. A period adds its length; when the account passes multiples of the
interval, so many ticks are due, at the end of that period and with its stack. So the sum of ticks differs from the true
time by less than one interval, always.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from collector.events import Array, Reason
from collector.target.microstate import Cut, Edges, Periods

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
class FaultEnds:
    """Completed page faults that had to wait, by slot."""

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


class Waiting:
    """Accounts of all threads' waiting, by slot."""

    def __init__(self, interval_ns: int) -> None:
        self.interval_ns = interval_ns
        self.n_guessed = 0  # page faults of which nothing tells whether text or data was missing
        self.account_ns = np.zeros((64, N_STATES), dtype=np.int64)
        # Of the switch-out that a thread is behind, as far as it is off CPU now.
        self._uid = np.zeros(64, dtype=np.uint64)
        self._reason = np.zeros(64, dtype=np.int8)
        self._ip = np.zeros(64, dtype=np.uint64)
        self._cpu = np.zeros(64, dtype=np.int32)
        # run_delay that no switch record has explained yet.
        self._unexplained_ns = np.zeros(64, dtype=np.int64)

    def grow(self, n: int) -> None:
        """Makes room for ``n`` slots."""
        if n <= len(self._uid):
            return
        more = max(n, 2 * len(self._uid)) - len(self._uid)
        for name in ("account_ns", "_uid", "_reason", "_ip", "_cpu", "_unexplained_ns"):
            old = getattr(self, name)
            setattr(self, name, np.concatenate([old, np.zeros((more, *old.shape[1:]), dtype=old.dtype)]))

    def close(self, periods: Periods, edges: Edges, departures: Departures, faults: FaultEnds,
              run_delay_ns: tuple[Array, Array]) -> Spans:
        """The states of the periods that a batch closed.

        ``edges`` are the batch's; ``run_delay_ns`` is (slots, how much each one's run_delay has grown).
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
        return self._split(periods, spans, stacks, cpus, run_delay_ns)

    def still_waiting(self, slot: Array, kind: Array, since_ns: Array, now_ns: int) -> Spans:
        """What threads that are off CPU have waited so far: (n,) slots, the Cut each is behind, and since when."""
        blocked = kind == Cut.OUT_BLOCKED
        state = np.where(blocked, _STATE_OF_REASON[self._reason[slot]], Microstate.WAIT_CPU)
        return Spans(slot, state, np.maximum(now_ns - since_ns, 0), np.full(len(slot), now_ns), self._uid[slot],
                     self._cpu[slot])

    def ticks(self, spans: Spans) -> Array:
        """Ticks (s,) that each span earns, in the order given."""
        code = spans.slot * N_STATES + spans.state
        order = np.argsort(code, kind="stable")
        code, length = code[order], spans.length_ns[order]
        earned = np.zeros(len(code), dtype=np.int64)
        if len(code):
            accounts = self.account_ns.reshape(-1)
            first = np.ones(len(code), dtype=bool)
            first[1:] = code[1:] != code[:-1]
            last = np.ones(len(code), dtype=bool)
            last[:-1] = first[1:]
            begins = np.flatnonzero(first)
            total = np.cumsum(length)
            total += (accounts[code[begins]] - (total[begins] - length[begins]))[np.cumsum(first) - 1]
            earned[order] = total // self.interval_ns - (total - length) // self.interval_ns
            accounts[code[last]] = total[last] % self.interval_ns
        return earned

    def _departed(self, edges: Edges, departures: Departures) -> tuple[Array, Array, Array, Array]:
        """Stack, reason, ip and CPU of every edge that is a switch-out (zero for the others)."""
        n = len(edges.slot)
        uid, reason = np.zeros(n, dtype=np.uint64), np.zeros(n, dtype=np.int8)
        ip, cpu = np.zeros(n, dtype=np.uint64), np.zeros(n, dtype=np.int32)
        if n and len(departures.slot):
            # A departure is stamped just before its switch record: it belongs to the thread's next edge.
            at = edges.next_at(departures.slot, departures.time_ns)
            hit = (at >= 0) & np.isin(edges.cut[at], (Cut.OUT_BLOCKED, Cut.OUT_PREEMPTED))
            at = at[hit]
            uid[at], reason[at] = departures.uid[hit], departures.reason[hit]
            ip[at], cpu[at] = departures.ip[hit], departures.cpu[hit]
        return uid, reason, ip, cpu

    def _remember(self, edges: Edges, uid: Array, reason: Array, ip: Array, cpu: Array) -> None:
        last = np.flatnonzero(edges.last)
        slot = edges.slot[last]
        self._uid[slot], self._reason[slot] = uid[last], reason[last]
        self._ip[slot], self._cpu[slot] = ip[last], cpu[last]

    def _states(self, periods: Periods, reason: Array, ip: Array, faults: FaultEnds) -> Array:
        """State (p,) of the part of each period before the wake-up."""
        state = np.where(periods.kind == Cut.OUT_BLOCKED, _STATE_OF_REASON[reason], Microstate.WAIT_CPU)
        at_fault = (periods.kind == Cut.OUT_BLOCKED) & (reason == Reason.USER_FAULT)
        unknown = (periods.kind == Cut.OUT_BLOCKED) & (reason == Reason.UNKNOWN)
        if len(faults.slot):
            # The thread's next completed fault, if it is of the very instruction that it was blocked at.
            order = np.lexsort((faults.time_ns, faults.slot))
            at = order[_next_of(faults.slot[order], faults.time_ns[order], periods.slot, periods.end_ns)]
            same = (faults.slot[at] == periods.slot) & (faults.time_ns[at] >= periods.end_ns) & (faults.ip[at] == ip)
            text = (faults.address[at] >> _PAGE_BITS) == (ip >> _PAGE_BITS)
            kind = np.where(faults.in_kernel[at], Microstate.KERNEL_FAULT,
                            np.where(text, Microstate.TEXT_FAULT, Microstate.DATA_FAULT))
            told = same & (unknown | (at_fault & ~faults.in_kernel[at]))
            state[told] = kind[told]
            at_fault &= ~told
        self.n_guessed += int(np.count_nonzero(at_fault))
        return state

    def _split(self, periods: Periods, state: Array, uid: Array, cpu: Array,
               run_delay_ns: tuple[Array, Array]) -> Spans:
        """Cuts the wait behind the wake-up off the blocked periods."""
        length = periods.end_ns - periods.start_ns
        blocked = periods.kind == Cut.OUT_BLOCKED
        n_slots = len(self._uid)
        slots, grown = run_delay_ns
        self._unexplained_ns[slots] += grown
        known = np.zeros(n_slots, dtype=bool)
        known[slots] = True
        explained = np.bincount(periods.slot[~blocked], length[~blocked], n_slots).astype(np.int64)
        self._unexplained_ns[known] -= explained[known]
        n_blocked = np.bincount(periods.slot[blocked], minlength=n_slots)
        share = np.maximum(self._unexplained_ns, 0) // np.maximum(n_blocked, 1) * known
        wait = np.where(blocked, np.minimum(share[periods.slot], length), 0)
        self._unexplained_ns -= np.bincount(periods.slot, wait, n_slots).astype(np.int64)
        late = wait > 0
        return Spans(np.concatenate([periods.slot, periods.slot[late]]),
                     np.concatenate([state, np.full(int(late.sum()), Microstate.WAIT_CPU)]),
                     np.concatenate([length - wait, wait[late]]),
                     np.concatenate([periods.end_ns, periods.end_ns[late]]),
                     np.concatenate([uid, uid[late]]), np.concatenate([cpu, cpu[late]]))


def _next_of(slots: Array, times: Array, slot: Array, time_ns: Array) -> Array:
    """Index of the first of (slots, times), sorted, at or after each (slot, time); the last index where none is."""
    origin = min(int(times.min()), int(time_ns.min())) if len(time_ns) else 0
    span = max(int(times.max()), int(time_ns.max())) - origin + 1 if len(time_ns) else 1
    shift = span.bit_length()
    at = np.searchsorted((slots << shift) + (times - origin), (slot << shift) + (time_ns - origin))
    clipped: Array = np.minimum(at, len(slots) - 1)
    return clipped
