"""When CPUs went from one thread to the next: exact times for records that are stamped later.

A switch takes place at one moment; sched_switch, a tracepoint, is stamped there. What is recorded of the two threads
comes behind it, one after another, each stamped when it is written: on a virtual machine the record of the thread that
comes is 9 to 35 us late, since its timers are set first.

    sched_switch | departure of A | A out | ... setting up B's events ... | B in
    t              t + 1 us         t + 3                                   t + 35       all are told as of t

What the tracepoint does not tell is, of threads that come, as late as of others at that time, but not told as of a time
before the wake-up: there may be no events in the idle thread of some CPUs at all (Linux 6.18.44, of a virtual machine's
second CPU: perf samples nothing in it, BPF programs at the same tracepoints run). Where too few were told to
say how late, as where the tracepoint rests, it keeps its own stamp.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from collector.arrays import packed
from collector.events import Array
from collector.linux import abi

_TID_BITS = 22  # PID_MAX_LIMIT
_LONG_AGO = -(1 << 62)
_MANY = 31  # of which a lag is the usual one
_LEAST_NS = 1_000  # from a wake-up to the CPU


class Handovers:
    """Of a batch: records of the tracepoint, all records of switches, and those of wake-ups, each from all CPUs' rings.
    """

    def __init__(self, told: Sequence[Array], switches: Sequence[Array], wakings: Sequence[Array] = ()) -> None:
        rows, records = np.concatenate(told), np.concatenate(switches)
        time_ns = rows["time"].astype(np.int64)
        self._leaves = _Times(_who(rows["cpu"], rows["leaves"]), time_ns)
        self._comes = _Times(_who(rows["cpu"], rows["comes"]), time_ns)
        self._records = _Times(records["tid"].astype(np.int64), records["time"].astype(np.int64))
        woken = np.concatenate([np.zeros(0, abi.WAKING.dtype), *wakings])
        self._wakings = _Times(woken["woken"].astype(np.int64), woken["time"].astype(np.int64))
        self._lag_ns = self._usual_lag_ns(records[(records["misc"] & abi.MISC_SWITCH_OUT) == 0])

    def of_switches(self, rows: Array) -> Array:
        """Better times (n,) of records of switches."""
        is_out = (rows["misc"] & abi.MISC_SWITCH_OUT) != 0
        return np.where(is_out, self.of_departures(rows["time"], rows["tid"], rows["cpu"]), self._came_ns(rows))

    def of_departures(self, time_ns: Array, tid: Array, cpu: Array) -> Array:
        """Better times (n,) of what was recorded of threads that left a CPU."""
        return self._moment_ns(self._leaves, time_ns, tid, cpu)

    def _came_ns(self, rows: Array) -> Array:
        """When threads (n,) came that have these records: as told, else by the usual lag."""
        time_ns, tid = rows["time"].astype(np.int64), rows["tid"].astype(np.int64)
        moment_ns = self._moment_ns(self._comes, rows["time"], rows["tid"], rows["cpu"])
        before_ns = np.maximum(self._records.last_ns(tid, time_ns - 1), self._wakings.last_ns(tid, time_ns))
        usual_ns = np.minimum(np.maximum(time_ns - self._lag_ns, before_ns + _LEAST_NS), time_ns)
        return np.where(moment_ns == time_ns, usual_ns, moment_ns)

    def _usual_lag_ns(self, comes: Array) -> int:
        """By how much records of threads that come are late; 0 where that is not known."""
        moment_ns = self._moment_ns(self._comes, comes["time"], comes["tid"], comes["cpu"])
        lag_ns = comes["time"].astype(np.int64) - moment_ns
        lag_ns = lag_ns[lag_ns > 0]
        return int(np.median(lag_ns)) if len(lag_ns) >= _MANY else 0

    def _moment_ns(self, handovers: _Times, time_ns: Array, tid: Array, cpu: Array) -> Array:
        """The last of the ``handovers`` before each record (n,), if it is the record's own: the thread has none since
        the one before."""
        time_ns, tid = time_ns.astype(np.int64), tid.astype(np.int64)
        found = handovers.last_ns(_who(cpu, tid), time_ns)
        moment_ns: Array = np.where(found > self._records.last_ns(tid, time_ns - 1), found, time_ns)
        return moment_ns


class _Times:
    """Times by number."""

    def __init__(self, number: Array, time_ns: Array) -> None:
        order = np.lexsort((time_ns, number))
        self._number, self._time_ns = number[order], time_ns[order]

    def last_ns(self, number: Array, time_ns: Array) -> Array:
        """The last one (n,) of each number up to each time; in the far past where there is none."""
        if not len(self._number) or not len(number):
            return np.full(len(number), _LONG_AGO)
        keys, wanted = packed((self._number, self._time_ns), (number, time_ns))
        at = np.maximum(keys.searchsorted(wanted, side="right") - 1, 0)
        return np.where((self._number[at] == number) & (keys[at] <= wanted), self._time_ns[at], _LONG_AGO)


def _who(cpu: Array, tid: Array) -> Array:
    number: Array = (cpu.astype(np.int64) << _TID_BITS) + tid
    return number
