"""When what a recording does again and again is due. Times are CLOCK_MONOTONIC, handed in: nothing here asks for one.

Draining costs a fixed part each time, so it is done seldom: when a ring is filling up, else a little more than once a
second, or twice while processes come and go, whose arguments and files are to be had while they live. Whoever kills us
takes with him what came since the time up to which the last drain told all. That must stay below a second, until the
next drain is done. A drain tells the less the longer it takes, and an engine may be behind::

    told up to here   drained           due    drained
    |<- behind ------>|<-- period ----->|<-work->|
    |<---------------- less than a second ------>|
"""

from __future__ import annotations

from collector.clock import NEVER_NS, NS_PER_MS, NS_PER_S

DRAIN_PERIOD_NS, BUSY_DRAIN_PERIOD_NS, POLLING_PERIOD_NS = 930 * NS_PER_MS, 500 * NS_PER_MS, 100 * NS_PER_MS
# Threads that sleep get a packet each time their ticks so far are written: with each drain where they are few, else
# about once a second.
FEW_THREADS = 200
FLUSH_PERIOD_NS = 900 * NS_PER_MS
EARLY_NS = 150 * NS_PER_MS  # by which an overview sample may come before its time, to share a drain
_MARGIN_NS = 15 * NS_PER_MS  # the last tick is not whole, and timers come late
_FIRST_WORK_NS = 100 * NS_PER_MS  # of a drain, where all is met for the first time; much of it may come with the second
_MANY_ENDS_PER_S = 300
_NAPS, _SHORTEST_NAP_NS, _LONGEST_NAP_NS = 8, 5 * NS_PER_MS, 30 * NS_PER_MS


class DrainSchedule:
    """When the rings are drained though none of them is filling up."""

    def __init__(self, start_ns: int, *, at_once: bool) -> None:
        """``at_once``: the first drain is due already, for what came while we were starting."""
        self._idle_ns = self._told_ns = start_ns
        self._stood_back_ns = self._work_ns = 0
        self._is_first = at_once

    def due_ns(self, *, busy: bool, polling: bool, accounts_ns: int | None = None, may_wait: bool = False) -> int:
        """When the next drain is due. ``busy``: processes came and went in the last batch; ``polling``: there is
        something that no record tells, and that is to be read while it lives; ``accounts_ns``: when accounts are to be
        read, while they tell of switches instead of records; ``may_wait``: the first one is better done later."""
        if self._is_first:
            return self._told_ns + NS_PER_S - _MARGIN_NS - _FIRST_WORK_NS if may_wait else 0
        if accounts_ns is not None:
            return accounts_ns
        if polling:
            return self._idle_ns + POLLING_PERIOD_NS
        period_ns = BUSY_DRAIN_PERIOD_NS if busy else DRAIN_PERIOD_NS
        return min(self._idle_ns - self._stood_back_ns + period_ns, self._lawful_ns())

    def _lawful_ns(self) -> int:
        """When a drain that takes as long as those before is done before a second is to be lost. Who is far behind
        anyway, by much work or by an engine that waits for a thread, rests for as long as that."""
        behind_ns = self._idle_ns - self._told_ns
        return max(self._told_ns + NS_PER_S - _MARGIN_NS - self._work_ns,
                   self._idle_ns + min(behind_ns, DRAIN_PERIOD_NS))

    def drained(self, began_ns: int, now_ns: int, told_ns: int, stood_back_ns: int = 0) -> None:
        """A drain and what goes with it is done: all is told up to ``told_ns``. Periods begin now: who is late does not
        drain the sooner again. But what we let others have of that time is not to be lost, too, if we are killed."""
        expected_ns = _FIRST_WORK_NS if self._is_first else self._work_ns // 2
        self._stood_back_ns, self._work_ns = stood_back_ns, max(now_ns - began_ns - stood_back_ns, expected_ns)
        self._idle_ns, self._told_ns, self._is_first = now_ns, told_ns, False


def nap_ns(n_ends: int, elapsed_ns: int) -> int:
    """How long the rings can go without a look when so many threads have ended between two drains; 0: they are to be
    polled.

    Each end of a thread wakes whoever polls its events, whatever is in their rings. Where many end, a look now and then
    is cheaper; it comes soon, compared with the time that it took the rings to want the last drain.
    """
    if n_ends * NS_PER_S <= _MANY_ENDS_PER_S * elapsed_ns:
        return 0
    return min(max(elapsed_ns // _NAPS, _SHORTEST_NAP_NS), _LONGEST_NAP_NS)


class FlushSchedule:
    """When the ticks so far of threads that sleep are written."""

    def __init__(self, start_ns: int) -> None:
        self._flushed_ns = start_ns

    def take(self, n_threads: int, now_ns: int) -> bool:
        """Whether they are due with this drain."""
        if n_threads > FEW_THREADS and now_ns - self._flushed_ns < FLUSH_PERIOD_NS:
            return False
        self._flushed_ns = now_ns
        return True


class SampleSchedule:
    """When overview samples are due: at multiples of a period, or a little before, to share a drain."""

    def __init__(self, start_ns: int, period_ns: int) -> None:
        """``period_ns`` 0: never."""
        self._period_ns = period_ns or NEVER_NS
        self.due_ns = start_ns + self._period_ns

    def take(self, now_ns: int) -> bool:
        """Whether one is due; those that were missed are not made up for."""
        behind_ns = now_ns + EARLY_NS - self.due_ns
        if behind_ns < 0:
            return False
        self.due_ns += (behind_ns // self._period_ns + 1) * self._period_ns
        return True
