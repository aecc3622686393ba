"""What keeps events from flooding the target while the collector still starts. Standard library only.

A ring that nobody drains yet is full after a thousand switches with stacks, or some 300,000 records of switches. From
there on every record is lost, and costs the target as much as before. So events rest whose ring is full; and before
that of switches is, they are counted instead (``target.counting``), from the accounts that are read here. The clock
gives way to the one with small copies, whose ring has room for seconds more. Small rings, all that an ordinary user
gets, are emptied into their spares, and so are, even later, those of births and deaths: a fork bomb makes thousands of
processes while we are busy with the hundreds before.

Among many threads that want a CPU we would take seconds to start: the highest priority is taken here, too.

The same way, threads that come and go get clocks of ever other periods.
"""

from __future__ import annotations

import _thread  # what threading is made of, which is too much to import for this
import os
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from itertools import repeat

from collector.linux.accounts import Account, account_of, accounts_below
from collector.linux.crowd import Crowd, keep_step
from collector.linux.perf import Ring, Rings

SWITCH_RINGS = "switch", "dying"
RELIEVED = "birth", "dying", "dead", "task"
STAND_INS = {"leave": "site", "clock": "brief"}
_PERIOD_S, _CALM_PERIOD_S = 0.01, 0.04
_CALM = 1 / 32  # of a ring's room between two looks, at most
_CROWD_PERIOD_S = 0.05
_FIRST = 8  # accounts: beside others, a program that runs all the time is off its CPU in one of them
_FULL, _MOVED_AT, _LARGE_MOVED_AT, _PRESSED = 15 / 16, 1 / 4, 7 / 8, 3 / 4
_LARGE_BYTES = 1 << 23  # fills slowly enough to be looked at in time
_MANY_BYTES = 1 << 21  # 45,000 records of switches, in less than half a second


class _Watch:
    """Looks at rings again and again in a thread, until ``end``."""

    period_s = _PERIOD_S

    def __init__(self) -> None:
        self._ending, self._ended = _thread.allocate_lock(), _thread.allocate_lock()
        self._ending.acquire()
        self._ended.acquire()
        try:
            _thread.start_new_thread(self._run, ())
        except RuntimeError:  # no room for one more: it goes without
            self._ended.release()

    def stay_behind(self) -> None:
        """In a process forked from ours, which does not have the thread: there is nothing for ``end`` to wait for."""
        self._ended.release()

    def end(self) -> None:
        """No more of it."""
        self._ending.release()
        self._ended.acquire()

    def _run(self) -> None:
        try:
            while not self._ending.acquire(timeout=self.period_s):
                keep_step()
                self._look()
        finally:
            self._ended.release()

    def _look(self) -> None:
        raise NotImplementedError


class Guard(_Watch):
    """Lets events of given names rest as soon as their ring is full; what was done stays in ``rested``, ``accounts``.
    """

    def __init__(self, rings: Rings, names: Collection[str], pid: int) -> None:
        self.rested: list[Ring] = []
        self.accounts: dict[int, Account] = {}  # by tid, if switches are counted from then on
        self.first: list[Account] = []  # of the target, soon after it has begun
        self._rings = rings
        self._pid = pid
        self._awake = [ring for ring in rings.rings if ring.name in names]
        self._clocks = [ring for ring in rings.rings if ring.name == "clock"]
        large = {ring for ring, _ in rings.spares if ring.data_bytes >= _LARGE_BYTES}
        self._give_way_at = {ring: _FULL if ring in large else _PRESSED for ring in self._clocks}
        self._heads = dict.fromkeys(rings.rings, 0)
        self._crowd_due_s = time.monotonic()
        self._crowd = Crowd()
        super().__init__()

    def _look(self) -> None:
        if len(self.first) < _FIRST:
            with suppress(OSError, ValueError):  # it is gone, or the kernel keeps none
                self.first.append(account_of(self._pid, self._pid))
        if time.monotonic() >= self._crowd_due_s:
            self._crowd.look(os.getpid())
            keep_step()  # who has the interpreter's lock and no CPU keeps both from the main thread
            self._crowd_due_s = time.monotonic() + _CROWD_PERIOD_S
        self.period_s = min(max(self.period_s * _CALM / self._filled(), _PERIOD_S), _CALM_PERIOD_S)
        _move(self._rings, self._rings.spares)
        for ring in [ring for ring in self._clocks if _is_full(self._rings, ring, self._give_way_at[ring])]:
            self._clocks.remove(ring)
            if give_way(self._rings, ring):
                self.rested.append(ring)
        for ring in [ring for ring in self._awake if _is_full(self._rings, ring, _FULL)]:
            self._rings.rest(ring)
            self._awake.remove(ring)
            self.rested.append(ring)
        switches = [ring for ring in self._rings.rings if ring.name in SWITCH_RINGS]
        if not self.accounts and any(self._rings.head(ring) > _MANY_BYTES for ring in switches):
            for ring in switches:
                self._rings.rest(ring)
            self.accounts = accounts_below(self._pid)

    def _filled(self) -> float:
        """The part of its room that a ring has taken in since the last look, of the one where that is most; not 0."""
        before, self._heads = self._heads, {ring: self._rings.head(ring) for ring in self._heads}
        return max((head - before[ring] + 1) / ring.data_bytes for ring, head in self._heads.items())


class Relief(_Watch):
    """Empties ``relieved``, rings that a batch does not point into, into their spares while it is worked on."""

    def __init__(self, rings: Rings, relieved: Collection[Ring]) -> None:
        self._rings = rings
        self._pairs = [(ring, spare) for ring, spare in rings.spares if ring in relieved]
        super().__init__()

    def _look(self) -> None:
        _move(self._rings, self._pairs)


class Variety(_Watch):
    """Gives the clocks of threads that are yet to be born one of ``periods_ns`` after the other."""

    period_s = 0.02

    def __init__(self, rings: Rings, periods_ns: Iterator[int]) -> None:
        self._rings = rings
        self._periods_ns = periods_ns
        self._look()
        super().__init__()

    def _look(self) -> None:
        with suppress(OSError):  # as before, then
            self._rings.set_periods("clock", repeat(next(self._periods_ns)))


def stand_ins(rings: Rings) -> dict[Ring, Ring]:
    """The rings that stand in for others at rest, by these: that of switch-outs by registers alone for those with
    stacks, that of clock samples with small copies for those with large ones."""
    by_place = {(ring.name, ring.cpu): ring for ring in rings.rings}
    places = {ring: (STAND_INS.get(ring.name, ""), ring.cpu) for ring in rings.rings}
    return {ring: by_place[place] for ring, place in places.items() if place in by_place}


def give_way(rings: Rings, ring: Ring) -> bool:
    """Lets a ring rest and its stand-in begin; False where there is none, or no room for it."""
    other = stand_ins(rings).get(ring)
    if other is None:
        return False
    try:
        rings.wake(other)
    except OSError:
        return False
    rings.rest(ring)
    return True


def _move(rings: Rings, pairs: Iterable[tuple[Ring, Ring]]) -> None:
    """Empties rings into their spares; large ones late and by parts, since a copy takes a millisecond for each MiB, and
    perhaps nobody needs it."""
    for ring, spare in pairs:
        if ring.data_bytes < _LARGE_BYTES and _is_full(rings, ring, _MOVED_AT):
            rings.move(ring, spare)
        elif _is_full(rings, ring, _LARGE_MOVED_AT):
            rings.move(ring, spare, _MOVED_AT)


def _is_full(rings: Rings, ring: Ring, part: float) -> bool:
    return rings.head(ring) - rings.tail(ring) >= ring.data_bytes * part
