"""Threads that were runnable when we came: whether they had a CPU. Pure.

/proc says of a thread that it can run, not that it does. Its first record tells: who leaves a CPU had one, who gets
one had waited. Where CPUs are few and threads many, that may take seconds. A thread without a record has done the same
thing all the time: it ran if there are samples of it, and else its account tells:

    we come ------------------------ end of a batch ------ account
    it ran:      grown by |--------------------------------------|
    it waited:   grown by                          |-------------| at most

One that has no account any more is gone. If no record up to then tells that, it was about to end as we came, when its
events had ended already: nothing is known of it.
"""

from __future__ import annotations

from collections.abc import Iterable

from collector.events import Edge
from collector.timing.counting import Account
from collector.timing.microstate import ThreadClocks

_ENOUGH_NS = 50_000_000  # the kernel brings the account of a thread that runs up to date with its ticks
_ENOUGH_TIMES = 4


class Runnable:
    """Those that nothing is known of yet, by slot."""

    def __init__(self) -> None:
        self._begun: dict[int, Account] = {}
        self._gone: dict[int, int] = {}  # since when at the latest

    def begin(self, slot: int, account: Account, time_ns: int) -> None:
        """A thread that was found runnable, and has been recorded since a time."""
        self._begun[slot] = account._replace(time_ns=time_ns)

    def undecided(self, clocks: ThreadClocks, until_ns: int, last: bool) -> list[int]:
        """The slots of those that have no record up to a time and are worth a look, at the ``last`` time all."""
        self._begun = {slot: begun for slot, begun in self._begun.items() if clocks.found[slot]}
        self._gone = {slot: gone_ns for slot, gone_ns in self._gone.items() if slot in self._begun}
        for slot in [slot for slot, gone_ns in self._gone.items() if last or gone_ns < until_ns]:
            self._forget_what_it_did(slot, clocks)
        return [slot for slot, begun in self._begun.items()
                if slot not in self._gone and (last or until_ns - begun.time_ns >= _ENOUGH_NS)]

    def open_slots(self) -> list[int]:
        """The slots of those that nothing is known of yet, and that have an account."""
        return [slot for slot in self._begun if slot not in self._gone]

    def gone(self, slot: int, time_ns: int, clocks: ThreadClocks, last: bool) -> None:
        """The thread was not there any more at a time."""
        self._gone[slot] = time_ns
        if last:
            self._forget_what_it_did(slot, clocks)

    def _forget_what_it_did(self, slot: int, clocks: ThreadClocks) -> None:
        del self._begun[slot], self._gone[slot]
        clocks.kind[slot], clocks.found[slot] = Edge.UNKNOWN, False

    def ran(self, slots: Iterable[int]) -> None:
        """Those of which there are samples of the clock."""
        for slot in slots:
            self._begun.pop(slot, None)

    def decide(self, slot: int, account: Account, until_ns: int, clocks: ThreadClocks, last: bool) -> None:
        """Tells a thread's clock what it has done, of which there is no record up to a time, if that can be told."""
        told_ns = until_ns - self._begun[slot].time_ns
        if not last and told_ns < _ENOUGH_TIMES * (account.time_ns - until_ns):
            return
        if account.run_ns - self._begun.pop(slot).run_ns < told_ns / 2:
            clocks.kind[slot] = Edge.OUT_PREEMPTED
        clocks.found[slot] = False

    def forget(self) -> None:
        """From here on other things tell what threads do."""
        self._begun.clear()
