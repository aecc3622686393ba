"""Threads that switch too often to be followed: the kernel's own sums instead of a record of every switch. Pure.

At a hundred thousand switches a second their records cost a target more than everything else together, and say the same
thing over and over. Then no more of them are made, and the kernel's account of each thread is looked at now and then:
how long it has run in its life, and how long it has waited for a CPU. Between two looks these make, for want of any
order, the edges of

    look |--- running ---|--- wait CPU ---|--- blocked ---| look

What an account says too late, since the kernel brings it up to date at the thread's next switch or tick, goes into the
following stretch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from collector.events import Cuts, Edge

RanNs = Callable[[int, int], int | None]

_TELLING_NS = 50_000_000  # from which length on a stretch tells how often threads get a CPU


class Account(NamedTuple):
    """A thread's account as of ``time_ns``: in ns how long it has run and waited, and how often it got a CPU."""

    time_ns: int
    run_ns: int = 0
    delay_ns: int = 0
    turns: int = 0


@dataclass(slots=True)
class _Seen:
    """What has been told of a thread, and of the stretch before: shares of running and waiting, turns per ns."""

    told: Account
    running: float = 0.0
    waiting: float = 0.0
    turning: float = 0.0
    is_looked_at: bool = False


class Counting:
    """The accounts of all threads, by tid, while they are counted."""

    def __init__(self) -> None:
        self.active = False
        self.turns_per_s = inf  # of all threads, between the last two looks that are far enough apart
        self.turns: Counter[int] = Counter()  # by slot, until somebody takes them
        self.n_estimated = 0  # threads that ended with a last stretch of which only the one before is known
        self._began_ns = 0
        self._seen: dict[int, _Seen] = {}
        self._cuts = Cuts()

    def begin(self, accounts: dict[int, Account]) -> None:
        """From here on threads (by tid) are counted; what they were doing is told by the records before."""
        self.active, self.turns_per_s = True, inf
        self._began_ns = min((account.time_ns for account in accounts.values()), default=0)
        self._seen = {tid: _Seen(account) for tid, account in accounts.items()}

    def end(self) -> None:
        """Records tell everything again."""
        self.active = False

    def look(self, accounts: dict[int, tuple[int, int, Account]], ran_ns: RanNs) -> None:
        """One look at all threads, by tid: slot, time of birth or exec, account.

        ``ran_ns(slot, time_ns)`` is how long a thread has run by all cuts that were taken, on the scale of its account,
        if that is known: what records missed before the first look, since they are late, its stretch makes up for.
        """
        n_turns, length_ns = 0, 0
        for tid, (slot, start_ns, now) in accounts.items():
            # Of those born since, the account began with them; of others it would tell once more what records told.
            seen = self._seen.setdefault(tid, _Seen(Account(start_ns) if start_ns >= self._began_ns else now))
            if not seen.is_looked_at:
                seen.told = _as_told(seen.told, slot, ran_ns)
                seen.is_looked_at = True
            before = seen.told
            n_turns += now.turns - before.turns
            self.turns[slot] += now.turns - before.turns
            length_ns = max(length_ns, now.time_ns - before.time_ns)
            delay_ns = now.delay_ns - before.delay_ns
            seen.told = self._stretch(slot, before, now.time_ns, now.run_ns - before.run_ns, delay_ns, now.turns)
            whole_ns = max(now.time_ns - before.time_ns, 1)
            seen.running = (seen.told.run_ns - before.run_ns) / whole_ns
            seen.waiting = (seen.told.delay_ns - before.delay_ns) / whole_ns
            seen.turning = (now.turns - before.turns) / whole_ns
        if length_ns >= _TELLING_NS:
            self.turns_per_s = n_turns * 1e9 / length_ns

    def ended(self, tid: int, slot: int, life_ns: tuple[int, int], ran_ns: RanNs) -> bool:
        """A thread ended, whose life began and ended at ``life_ns``: since the last look it did as before. Whether its
        account told all of it."""
        seen = self._seen.pop(tid, None)
        if seen is None:
            return False
        start_ns, time_ns = life_ns
        if seen.told.time_ns >= time_ns:  # it was looked at when it was dead already
            self._cuts.time_ns = [min(at, time_ns) if of == slot else at
                                  for of, at in zip(self._cuts.slot, self._cuts.time_ns, strict=True)]
            return True
        before, missed_ns = seen.told, 0
        if not seen.is_looked_at:
            whole_ns = max(before.time_ns - start_ns, 1)
            seen.running, seen.waiting = before.run_ns / whole_ns, before.delay_ns / whole_ns
            seen.turning = before.turns / whole_ns
            missed_ns = before.run_ns - _as_told(before, slot, ran_ns).run_ns
        length_ns = time_ns - before.time_ns
        run_ns = int(seen.running * length_ns) + missed_ns
        self._stretch(slot, before, time_ns, run_ns, int(seen.waiting * length_ns), 0)
        self.turns[slot] += round(seen.turning * length_ns)
        self.n_estimated += 1
        return False

    def executed(self, slot: int, time_ns: int) -> None:
        """A thread goes on with another image at a new slot: until the next look nothing is known of it."""
        if time_ns >= self._began_ns:
            self._cuts.add(slot, time_ns, Edge.OUT_BLOCKED)

    def take_cuts(self) -> Cuts:
        """The edges since the last call."""
        cuts, self._cuts = self._cuts, Cuts()
        return cuts

    def _stretch(self, slot: int, before: Account, time_ns: int, run_ns: int, delay_ns: int, turns: int) -> Account:
        """The edges of a stretch; returns the account as far as they tell it."""
        length_ns = max(time_ns - before.time_ns, 0)
        run_ns = min(max(run_ns, 0), length_ns)
        delay_ns = min(max(delay_ns, 0), length_ns - run_ns)
        at = before.time_ns
        self._cuts.add(slot, at, Edge.IN)
        if delay_ns:
            self._cuts.add(slot, at + run_ns, Edge.OUT_PREEMPTED)
            self._cuts.add(slot, at + run_ns + delay_ns, Edge.IN)
        if run_ns + delay_ns < length_ns:
            self._cuts.add(slot, at + run_ns + delay_ns, Edge.OUT_BLOCKED)
        return Account(max(time_ns, at), before.run_ns + run_ns, before.delay_ns + delay_ns, turns)


def _as_told(account: Account, slot: int, ran_ns: RanNs) -> Account:
    """An account, with the time on CPU that was told up to then, if that is known."""
    ours_ns = ran_ns(slot, account.time_ns)
    return account if ours_ns is None else account._replace(run_ns=ours_ns)
