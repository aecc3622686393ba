"""Time that threads had a CPU of this machine and the machine had none: a hypervisor's doing. Pure.

Records of switches show such a thread as running, for the scheduler did not take its CPU away; but the kernel, which
hears of it from the hypervisor, does not account it to the thread. So what records tell by the time of a look is
compared with the kernel's account, and what the account lacks is told as an edge of its own, in the longest run before
the look: the thread waited for a CPU.

    records   IN ------------------------------------------------------ look
    told      IN ----------------------------- OUT_PREEMPTED ------- IN

The account of a thread that runs is brought up to date by the scheduler's tick: what is missing for less than that is
no loss.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from collector.events import Array, Cuts, Edge
from collector.timing.counting import Account
from collector.timing.microstate import ThreadClocks

_LONGEST_TICK_NS, _TICK_NS = 10_000_000, 4_000_000  # the usual one is 4 ms long
_LEAST_NS = 1_000_000  # worth an edge
_AT_ONCE = 64


class Stolen:
    """What is known of each thread's account, by slot."""

    def __init__(self) -> None:
        self.total_ns = 0
        self._base_ns: dict[int, int] = {}
        self._looks: dict[int, Account] = {}  # that no batch has reached yet

    def begin(self, slot: int, run_ns: int) -> None:
        """The account of a thread when its clock began, or less."""
        self._base_ns[slot] = run_ns

    def forget(self, slot: int) -> None:
        """The thread is gone."""
        self._base_ns.pop(slot, None)
        self._looks.pop(slot, None)

    def interrupted(self) -> None:
        """For a while, runs are not recorded: what was looked at is no measure of them."""
        self._looks.clear()

    def worth_a_look(self, slots: Iterable[int]) -> list[int]:
        """Some of the slots, which have run for a while."""
        return [slot for slot in slots if slot in self._base_ns and slot not in self._looks][:_AT_ONCE]

    def look(self, slot: int, account: Account) -> None:
        """The kernel's account of a thread, read after the last batch."""
        self._looks[slot] = account

    def cuts(self, slot: Array, edge: Array, time_ns: Array, until_ns: int, clocks: ThreadClocks) -> Cuts:
        """The edges that a batch up to ``until_ns`` lacks, of which the records (m,) in time order are given and
        ``clocks`` have taken none yet."""
        cuts = Cuts()
        for number in [number for number, look in self._looks.items() if look.time_ns <= until_ns]:
            look = self._looks.pop(number)
            rows = np.flatnonzero((slot == number) & (time_ns <= look.time_ns))
            found = self._missing(number, look, edge[rows], time_ns[rows], clocks)
            if found is not None:
                start_ns, end_ns = found
                cuts.add(number, start_ns, Edge.OUT_PREEMPTED)
                cuts.add(number, end_ns, Edge.IN)
                self.total_ns += end_ns - start_ns
        return cuts

    def _missing(self, slot: int, look: Account, edge: Array, time_ns: Array,
                 clocks: ThreadClocks) -> tuple[int, int] | None:
        """From when to when the thread did not run, though its records, those before the look, say so."""
        base_ns, arriving, ran = self._base_ns.get(slot), edge == Edge.IN, clocks.kind[slot] == Edge.IN
        runs = int(ran) + 2 * int(np.count_nonzero(arriving)) - len(edge)
        if base_ns is None or runs not in (0, 1):  # a record is missing
            return None
        start_ns = np.concatenate([clocks.since_ns[slot:slot + 1][:int(ran)], time_ns[arriving]])
        end_ns = np.concatenate([time_ns[~arriving], np.array([look.time_ns][:runs], dtype=np.int64)])
        if not len(start_ns):
            return None
        length_ns = end_ns - start_ns
        excess_ns = int(clocks.cpu_ns[slot] + length_ns.sum()) - (look.run_ns - base_ns)
        longest = int(length_ns.argmax())
        missing_ns = min(excess_ns - _TICK_NS * runs, int(length_ns[longest]) - 2)
        if excess_ns < (_LONGEST_TICK_NS if runs else _LEAST_NS) or missing_ns <= 0:
            return None
        until_ns = int(end_ns[longest]) - 1
        return until_ns - missing_ns, until_ns
