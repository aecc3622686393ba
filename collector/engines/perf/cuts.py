"""Where a batch ends among departures: never between one and its switch.

The kernel writes a departure first, with registers and stack, and the record of its switch up to 50 us behind it. A
time that batches are cut at may lie between. Then the departure is left to the next batch: they come together, or
nobody would know which switch it belongs to. There, like everything else, it is younger than the batch before.
"""

from __future__ import annotations

from collector.events import Array
from collector.linux.perf import Ring

DEPARTURES = "leave", "site"  # the rings of which are cut


class Cuts:
    """By CPU: a CPU is left by one thread at a time, so one departure at most is left to the next batch."""

    def __init__(self, *, tells_switches: bool) -> None:
        self.tells_switches = tells_switches  # otherwise no departure has to wait for one
        self._switched_ns: dict[int, int] = {}  # by CPU: when its last switch was, of those that were drained
        self._left: dict[Ring, int] = {}  # whose first departure was left to this batch, and the end of that before

    def switched(self, switches: Array) -> None:
        """Records (n,) of one CPU's switches, in time order, are of this batch; to be told before its departures are
        cut."""
        self._switched_ns[int(switches["cpu"][-1])] = int(switches["time"][-1])

    def begin(self, ring: Ring, time_ns: Array) -> None:
        """Gives the first departure of a ring, which have times (n,), the batch's first time, if it was left to it."""
        left_ns = self._left.pop(ring, 0)
        if left_ns and len(time_ns):
            time_ns[0] = max(int(time_ns[0]), left_ns + 1)

    def n_whole(self, ring: Ring, time_ns: Array, until_ns: int) -> int:
        """How many of a ring's departures with times (n,) up to ``until_ns``, the end of a batch that is not the last
        one, are of that batch."""
        n = len(time_ns)
        if not n or not self.tells_switches:
            return n
        if time_ns[-1] <= self._switched_ns.get(ring.cpu, 0):
            return n
        self._left[ring] = until_ns
        return n - 1
