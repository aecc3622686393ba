"""Which events rest: those whose records come more often than they are worth, or than we come to take them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress

from collector.clock import NS_PER_MS, NS_PER_S
from collector.engines.perf.guard import give_way, stand_ins
from collector.events import Change, RecordsLost
from collector.linux import abi
from collector.linux.perf import Ring, Rings

_BURST_BYTES = {"waking": 1 << 17, "handover": 1 << 19}  # in a ring that is large for the sake of a late drain
_REST_NS = 100 * NS_PER_MS
# Threads that switch even more often are looked at more seldom, and no record stands in for those not taken: they say
# the same thing over and over, and each costs the target 0.2 us.
_TOO_MANY_PER_S, _LONGEST_REST = 15_000, 16
_LOOK_S = 0.002
_MAPS_REST_NS = 5 * NS_PER_S  # which costs little: /proc tells the same
_RECORD_BYTES = {"leave": 25_000, "touch": abi.FAULT.size, "waking": abi.WAKING.size, "map": 112,
                 "handover": abi.HANDOVER.size}  # about
# Of a clock's ring: the part that the next drain may find in it. Who finds more comes late, and lets the clock give way
# to the one with small copies.
PRESSED, _GIVES_WAY = 0.85, 0.9
# The part of the other's ring at which it may come back, but not so soon: each time up to an interval of every thread
# is not sampled.
_COMES_BACK, _BRIEF_NS = 0.3, 2 * NS_PER_S


class Resting:
    """Of ``rings``; ``most_per_s``: how many records of a ring are worth their cost, by its name."""

    def __init__(self, rings: Rings, most_per_s: Mapping[str, int]) -> None:
        self._rings = rings
        self._most_per_s = most_per_s
        self._heads = dict.fromkeys(rings.rings, 0)  # of the rings that may rest, at the last drain
        self._excess: dict[Ring, int] = {}  # how many times too many records a ring at rest had brought
        self._resting: dict[Ring, int] = {}  # and until when they rest
        self._maps_rested = False  # at the last drain
        self._stand_ins = stand_ins(rings)

    def found(self, ring: Ring, now_ns: int) -> None:
        """One that the guard has put to rest while we started. Times are of the clock that records are stamped with."""
        if ring.name == "clock":
            self._resting[ring] = now_ns + _BRIEF_NS
        else:
            self.let_rest(ring, 1, now_ns)

    def rest_or_wake(self, ring: Ring, tail: int, head: int, left_bytes: int, n_lost: int, until_ns: int,
                     elapsed_ns: int) -> None:
        """Lets the events of a ring rest that brings more than is worth its cost, and wakes them later, if there is
        room again: of what was between ``tail`` and ``head``, so much is left for the next batch."""
        n_records = (head - self._heads[ring]) // _RECORD_BYTES[ring.name] + n_lost
        self._heads[ring] = head
        wake_ns = self._resting.get(ring)
        n_per_s = n_records * NS_PER_S // elapsed_ns
        if wake_ns is None and n_per_s > self._most_per_s[ring.name] and head - tail > min(
                ring.data_bytes // 2, _BURST_BYTES.get(ring.name, ring.data_bytes)):
            # (A short burst is welcome.)
            self._rings.rest(ring)
            self.let_rest(ring, n_per_s // _TOO_MANY_PER_S, until_ns)
        elif wake_ns is not None and until_ns >= wake_ns and left_bytes < ring.data_bytes // 2:
            other = self._stand_ins.get(ring)
            if other is not None:
                self._rings.rest(other)
            self._rings.wake(ring)
            if not self._still_too_many(ring, until_ns):
                del self._resting[ring]
        else:
            # Threads that were born meanwhile may still write into the one at rest (see ``Rings.rest``). Where ``site``
            # and ``leave`` are both awake in a thread, the kernel makes the records of the one as long as those of the
            # other, of 24 KiB, and a ring of sites is soon full of them.
            at_rest = ring if wake_ns is not None else self._stand_ins.get(ring)
            if at_rest is not None and self._rings.head(at_rest) != self._rings.tail(at_rest):
                self._rings.rest(at_rest)

    def let_rest(self, ring: Ring, excess: int, until_ns: int) -> None:
        self._excess[ring] = excess
        self._resting[ring] = until_ns + (_MAPS_REST_NS if ring.name == "map" else
                                          _REST_NS * min(1 + excess, _LONGEST_REST))
        other = self._stand_ins.get(ring)
        if other is not None and not excess:
            with suppress(OSError):  # no room for its ring
                self._rings.wake(other)

    def brief_or_whole(self, ring: Ring, n_bytes: int, until_ns: int) -> None:
        """Lets a clock give way while we do not come often enough to empty its ring, which had ``n_bytes``."""
        brief = self._stand_ins.get(ring)
        if brief is None:
            return
        wake_ns = self._resting.get(ring)
        if wake_ns is None and n_bytes > _GIVES_WAY * ring.data_bytes:
            if give_way(self._rings, ring):
                self._resting[ring] = until_ns + _BRIEF_NS
        elif wake_ns is not None and until_ns >= wake_ns and (
                self._rings.head(brief) - self._rings.tail(brief) < _COMES_BACK * brief.data_bytes):
            self._rings.rest(brief)
            self._rings.wake(ring)
            del self._resting[ring]

    def maps_untold(self, changes: list[Change]) -> bool:
        """Whether mappings were made since the last drain that no record tells."""
        resting = any(ring.name == "map" for ring in self._resting)
        untold, self._maps_rested = resting or self._maps_rested, resting
        return untold or any(type(change) is RecordsLost and change.source == "map" for change in changes)

    def _still_too_many(self, ring: Ring, until_ns: int) -> bool:
        """A short look at a ring that brought by far too many records: if it still does, it goes on resting."""
        if not self._excess.get(ring):
            return False
        head = self._rings.head(ring)
        time.sleep(_LOOK_S)
        self._heads[ring] = self._rings.head(ring)
        n_per_s = int((self._heads[ring] - head) / _RECORD_BYTES[ring.name] / _LOOK_S)
        if n_per_s <= self._most_per_s[ring.name]:
            return False
        self._rings.rest(ring)
        self.let_rest(ring, n_per_s // _TOO_MANY_PER_S, until_ns)
        return True
