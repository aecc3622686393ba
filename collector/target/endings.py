"""What a process used after its events had ended. Pure.

The kernel ends a process's events before it gives back the memory, which takes a compiler a millisecond:

    EXIT record, dying | memory, files, signals given back | dead (the parent is told) | the last switch

``dying`` and ``dead`` are seen on the CPU, not in the thread, and tell how often that CPU has switched so far. If it
has not switched in between, the thread ran all the time, and that time is its own. If it has, nobody knows how long it
ran: such an end is counted as untold, and nothing is added.
"""

from __future__ import annotations

from collector.events import Ends

# Of exits whose death was never seen: the parent does not want to know, or the record was lost.
_MOST_OPEN = 10_000


class Endings:
    """Fed with the exits of processes and what was seen of ends; strangers' among them are ignored."""

    def __init__(self) -> None:
        self.n_untold = 0
        self._exits: dict[int, tuple[int, int]] = {}  # tid: slot, time of the EXIT record
        self._dying: dict[int, tuple[int, int]] = {}  # tid: CPU, and how often that had switched

    def exited(self, tid: int, slot: int, time_ns: int) -> None:
        """The last thread of a process has no events any more."""
        if len(self._exits) >= _MOST_OPEN:
            self._exits.clear()
            self._dying.clear()
        self._exits[tid] = slot, time_ns

    def tails(self, ends: Ends | None) -> dict[int, int]:
        """By slot: the CPU time in ns behind the exits whose deaths these ends tell."""
        found = {}
        columns = (ends.tid, ends.time_ns, ends.cpu, ends.n_switches, ends.dead) if ends is not None else ()
        for tid, time_ns, cpu, n_switches, dead in zip(*(column.tolist() for column in columns), strict=True):
            if tid not in self._exits:
                continue
            if not dead:
                self._dying[tid] = cpu, n_switches
                continue
            slot, exit_ns = self._exits.pop(tid)
            if self._dying.pop(tid, None) == (cpu, n_switches):
                found[slot] = max(time_ns - exit_ns, 0)
            else:
                self.n_untold += 1
        return found
