"""When exactly threads got their CPU, by the kernel's own sums. Pure.

The kernel accounts a CPU to a thread from the moment at which it chooses it. The record of that is stamped when the
thread's events have been set up, a microsecond or several later:

              chosen                                          next one chosen
    kernel      |--- events of both are exchanged ---| runs ------|
    records                                         IN           OUT

What lies between is told by the thread that left the CPU, if that is one of ours and follows closely (``switching``).
If the CPU was idle or a stranger's, it is missing, and with thirty thousand arrivals a second that is 7 % of a thread's
time (measured with redis-server: 1.5 to 2.5 us each). But the kernel also tells the sum, for a moment at which we look:

    batches     |--------- 1 ---------|--------- 2 ---------|--------- 3 ---------|
    looks                               ^                     ^                     ^

What the records up to a look lack of that sum, they lack at their arrivals, so these are late by so much on average.
The arrivals of a batch are put earlier by that, and by what those before the look are still short of. Sums are compared
from a thread's beginning: no error adds up.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from collector.events import Array, Edge
from collector.timing.counting import Account
from collector.timing.microstate import ThreadClocks

MANY = 100  # arrivals in a batch from which on they matter
_LONGEST_NS = 20_000  # more than this at each arrival has other reasons
_FRESH_NS = 100_000  # a thread's sum is brought up to date when it leaves its CPU, else by ticks of some ms


@dataclass(slots=True)
class _Known:
    """One thread: the kernel's sum when ours began, and what is known of its arrivals since then."""

    base_ns: int | None = None
    n: int = 0  # in the batches so far
    moved_ns: float = 0.0  # by how much they were put earlier altogether
    late_ns: float = 0.0  # an arrival, on average
    owed_ns: float = 0.0  # what those so far are still short of


class Arrivals:
    """What is known of each thread's arrivals, by slot."""

    def __init__(self) -> None:
        self._known: dict[int, _Known] = {}
        self._looks: dict[int, Account] = {}  # that no batch has reached yet
        self._busy: list[int] = []

    def begin(self, slot: int, account: Account) -> None:
        """The kernel's account of a thread when its clock began."""
        self._known[slot] = _Known(account.run_ns)

    def forget(self, slot: int) -> None:
        """The thread is gone."""
        self._known.pop(slot, None)
        self._looks.pop(slot, None)

    def interrupted(self) -> None:
        """For a while, arrivals are not recorded: what was looked at is no measure of them."""
        self._looks.clear()
        self._busy = []

    def worth_a_look(self) -> list[int]:
        """The slots of the threads with ``MANY`` arrivals in the last batch that nobody has looked at since."""
        return [slot for slot in self._busy if slot not in self._looks]

    def look(self, slot: int, account: Account) -> None:
        """The kernel's account of a thread, read after the last batch."""
        self._looks[slot] = account

    def corrected(self, slot: Array, edge: Array, time_ns: Array, until_ns: int, clocks: ThreadClocks) -> Array:
        """Better times (m,) of the switch records of a batch up to ``until_ns`` that ``clocks`` have not taken yet."""
        better = time_ns.copy()
        order = np.argsort(slot, kind="stable")
        sorted_slot = slot[order]

        def rows_of(number: int) -> Array:
            first, last = np.searchsorted(sorted_slot, (number, number + 1))
            return order[first:last]

        for number in [number for number, look in self._looks.items() if look.time_ns <= until_ns]:
            rows, known = rows_of(number), self._known.setdefault(number, _Known())
            _compare(known, self._looks.pop(number), number, edge[rows], time_ns[rows], clocks)
        n_in = np.bincount(slot[edge == Edge.IN])
        self._busy = np.flatnonzero(n_in >= MANY).tolist()
        for number in np.flatnonzero(n_in).tolist():
            known, n = self._known.setdefault(number, _Known()), int(n_in[number])
            if known.late_ns or known.owed_ns:
                earlier_ns = min(max(known.late_ns + known.owed_ns / n, 0), _LONGEST_NS)
                rows = rows_of(number)
                better[rows[edge[rows] == Edge.IN]] -= round(earlier_ns)
                known.owed_ns -= (earlier_ns - known.late_ns) * n
                known.moved_ns += earlier_ns * n
            known.n += n
        return better


def _compare(known: _Known, look: Account, slot: int, edge: Array, time_ns: Array, clocks: ThreadClocks) -> None:
    """Takes a look that lies in a batch, of which the thread's records are given."""
    before = time_ns <= look.time_ns
    edge, time_ns = edge[before], time_ns[before]
    arriving = edge == Edge.IN
    n_in, ran = int(np.count_nonzero(arriving)), bool(clocks.kind[slot] == Edge.IN)
    runs = ran + 2 * n_in - len(edge)
    since_ns = int(time_ns[-1]) if len(edge) else int(clocks.since_ns[slot])
    if runs not in (0, 1) or (runs and look.time_ns - since_ns > _FRESH_NS):
        return  # a record is missing, or the sum is not up to date: the next look will tell
    ours_ns = int(clocks.cpu_ns[slot] + time_ns[~arriving].sum() - time_ns[arriving].sum())
    ours_ns += (look.time_ns if runs else 0) - (int(clocks.since_ns[slot]) if ran else 0)
    if known.base_ns is None:
        known.base_ns, known.n, known.moved_ns = look.run_ns - ours_ns, -n_in, 0
        return
    short_ns = look.run_ns - known.base_ns - ours_ns
    if known.n + n_in > 0:
        known.late_ns = min(max((short_ns + known.moved_ns) / (known.n + n_in), 0), _LONGEST_NS)
        known.owed_ns = short_ns - known.late_ns * n_in  # those of this batch are still to be moved
