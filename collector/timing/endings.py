"""What a process used after its events had ended. Pure.

The kernel ends a process's events before it gives back the memory, which takes a compiler a millisecond:

    EXIT record, dying | memory, files, signals given back | dead (the parent is told) | the last switch

``dying`` and ``dead`` are seen on the CPU, not in the thread, and tell how often that CPU has switched so far. If it
has not switched in between, the thread ran all the time, and that time is its own. If it has, and the switch records of
other threads of ours explain every one of these switches, it ran all the time but theirs. Else nobody knows how long
it ran. Most often one stranger came and left within microseconds, a thread of the kernel's: an end that was short for
all that counts as a whole, and as guessed. Any other one is taken to be like those of the same program of which that is
known, and counts as estimated; where there are none it is untold, and nothing is added.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import numpy as np

from collector.arrays import indices
from collector.events import Array, Edge, Ends, Switches

# From one thread straight to the next takes less than this; more, and somebody else may have been in between.
_NEXT_NS = 3_000
# A stranger that is no thread of the kernel's, but has work to do, stays longer than this.
_SHORT_NS = 1_000_000
# Of exits whose death was never seen (the parent does not want to know, or the record was lost) those are kept that are
# not older than this, which no process takes to give its memory back; and so many at most.
_LONGEST_NS, _MOST_OPEN = 60_000_000_000, 4096
_MOST_PROGRAMS = 1024  # of which it is known what ends take: those told last


class _Exit(NamedTuple):
    """The EXIT record of a process's last thread; ``slot`` -1: given back. So much behind it a clock has told."""

    slot: int
    time_ns: int
    program: bytes
    pid: int
    told_ns: int = 0


class Endings:
    """Fed with the exits of processes and what was seen of ends; strangers' among them are ignored."""

    def __init__(self) -> None:
        self.n_untold = 0
        self.n_guessed = 0
        self.n_estimated = 0
        self.late_ns: dict[int, int] = {}  # by process, of those that were over before: the last tails
        self._exits: dict[int, _Exit] = {}  # by tid
        self._known: dict[bytes, tuple[int, int]] = {}  # by program: how many ends were told, and their sum in ns
        self._dying: dict[int, tuple[int, int]] = {}  # tid: CPU, and how often that had switched
        self._are_told = False  # whether anybody tells of ends at all

    @property
    def n_open(self) -> int:
        """Of how many it is not told yet, where ends are told."""
        return len(self._exits) * self._are_told

    def exited(self, tid: int, slot: int, time_ns: int, program: bytes = b"", pid: int = -1) -> None:
        """The last thread of a process has no events any more."""
        if self._exits.pop(tid, None) is not None:  # of whoever had this number before
            self._dying.pop(tid, None)
            self.n_untold += self._are_told
        self._exits[tid] = _Exit(slot, time_ns, program, pid)  # in the order of time
        while len(self._exits) > _MOST_OPEN or next(iter(self._exits.values())).time_ns < time_ns - _LONGEST_NS:
            oldest = next(iter(self._exits))
            del self._exits[oldest]
            self._dying.pop(oldest, None)
            self.n_untold += self._are_told

    def forget(self, slots: Array) -> None:
        """The slots are free: what is still told of who was there belongs to none."""
        if self._exits:
            gone = set(slots.tolist())
            self._exits = {tid: one._replace(slot=-1) if one.slot in gone else one for tid, one in self._exits.items()}

    def told(self, pid: int, time_ns: int, used_ns: int, *, is_all: bool) -> None:
        """The clock of a process, at a time, has told so much of what it used behind its exit, if that was before;
        ``is_all``: it stands still."""
        for tid in [tid for tid, one in self._exits.items() if one.pid == pid and one.time_ns <= time_ns]:
            one = self._exits.pop(tid) if is_all else self._exits[tid]
            if is_all:
                self._dying.pop(tid, None)
            else:
                told_ns = min(one.told_ns + used_ns, time_ns - one.time_ns)  # the rest is other threads'
                self._exits[tid] = one._replace(told_ns=told_ns)

    def interrupted(self) -> None:
        """For a while, nothing is seen of ends: of those that have begun, the rest is not known."""
        self.n_untold += self.n_open
        self._exits.clear()
        self._dying.clear()

    def tails(self, ends: Ends | None, switches: Switches | None = None) -> dict[int, int]:
        """By slot (-1: forgotten): the CPU time in ns behind the exits whose deaths these ends tell; ``switches`` are
        the batch's."""
        found: dict[int, int] = defaultdict(int)
        untold: list[tuple[_Exit, int]] = []  # with ns at most
        self.late_ns = {}
        self._are_told |= ends is not None
        columns = (ends.tid, ends.time_ns, ends.cpu, ends.n_switches, ends.dead) if ends is not None else ()
        for tid, time_ns, cpu, n_switches, dead in zip(*(column.tolist() for column in columns), strict=True):
            if tid not in self._exits:
                continue
            if not dead:
                self._dying[tid] = cpu, n_switches
                continue
            one = self._exits.pop(tid)
            before_cpu, n_before = self._dying.pop(tid, (-1, 0))
            away_ns = None
            if before_cpu == cpu:
                away_ns = away(switches, cpu, one.time_ns, time_ns, n_switches - n_before)
                if away_ns is None and n_switches - n_before == 2 and time_ns - one.time_ns < _SHORT_NS:
                    away_ns = 0
                    self.n_guessed += 1
            if away_ns is None:
                untold.append((one, max(time_ns - one.time_ns, 0)))
                continue
            used_ns = max(time_ns - one.time_ns - away_ns, 0)
            if one.program:
                self._learn(one.program, used_ns)
            self._add(found, one, used_ns)
        for one, most_ns in untold:
            n, sum_ns = self._known.get(one.program, (0, 0))
            self.n_estimated, self.n_untold = self.n_estimated + (n > 0), self.n_untold + (n == 0)
            if n:
                self._add(found, one, min(sum_ns // n, most_ns))
        return dict(found)

    def _add(self, tails_ns: dict[int, int], one: _Exit, used_ns: int) -> None:
        more_ns = max(used_ns - one.told_ns, 0)
        tails_ns[one.slot] += more_ns
        if one.slot < 0:
            self.late_ns[one.pid] = self.late_ns.get(one.pid, 0) + more_ns

    def _learn(self, program: bytes, used_ns: int) -> None:
        """One more end that was told; of too many programs the one that was told longest ago is forgotten."""
        n, sum_ns = self._known.pop(program, (0, 0))
        if len(self._known) >= _MOST_PROGRAMS:
            del self._known[next(iter(self._known))]
        self._known[program] = n + 1, sum_ns + used_ns


def away(switches: Switches | None, cpu: int, start_ns: int, end_ns: int, n_switches: int) -> int | None:
    """How long a CPU that switched so often between two times ran others than who had it at both; None: not known.

    Others that followed one another directly were one absence: of k, k + 1 switches.
    """
    if n_switches == 0:
        return 0
    if switches is None or switches.cpu is None:
        return None
    rows = indices((switches.cpu == cpu) & (switches.time_ns > start_ns) & (switches.time_ns < end_ns))
    came, left = rows[::2], rows[1::2]
    if not _alternate(switches, rows):
        return None
    from_ns, to_ns = switches.time_ns[came], switches.time_ns[left]
    n_absences = 1 + int(np.count_nonzero(from_ns[1:] - to_ns[:-1] >= _NEXT_NS))
    if len(came) + n_absences != n_switches:
        return None
    within = (from_ns[1:] - to_ns[:-1])[from_ns[1:] - to_ns[:-1] < _NEXT_NS]
    return int((to_ns - from_ns).sum() + within.sum())


def _alternate(switches: Switches, rows: Array) -> bool:
    """Whether one thread after the other came and left again."""
    came, left = rows[::2], rows[1::2]
    return (len(rows) > 0 and len(came) == len(left) and bool((switches.edge[came] == Edge.IN).all())
            and bool((switches.edge[left] != Edge.IN).all()) and np.array_equal(switches.tid[came], switches.tid[left]))
