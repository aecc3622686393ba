"""When exactly a thread got and left its CPU. Pure.

The kernel changes its account from one thread to the next at one moment, at the beginning of a switch. The records of
that switch are stamped later, one after another:

    moment of the switch | departure of A (its registers, its stack) | A out | ... | B in

So A's end is better told by its departure, if one was recorded, and B's beginning by A's end on the same CPU, if it
follows closely. The microseconds between count where threads switch a hundred thousand times a second.
"""

from __future__ import annotations

import numpy as np

from collector.arrays import indices
from collector.events import Array, Edge, Switches
from collector.timing.timeline import LONG_AGO_NS, moments_of

# A departure with its stack is mostly written in less than this; but a copy may take 50 us, and a virtual machine may
# stand still meanwhile.
_NEAR_NS = 20_000
# From one thread straight to the next takes less than this; more, and somebody else may have been in between.
_NEXT_NS = 3_000


def sharpened(switches: Switches, departed_tid: Array, departed_ns: Array, *, is_lossy: bool = False) -> Array:
    """Better times (m,) of switch records; departures (d,) in any order. Where the records are lossy, a departure long
    before a switch-out may be that of another one, of which no record tells."""
    times = switches.time_ns.copy()
    out = indices(switches.edge != Edge.IN)
    if len(out) and len(departed_tid):
        before = moments_of(departed_tid, departed_ns).last_ns(switches.tid[out], times[out])
        # It is this one's if the thread has not been away since: it lies behind the thread's record before.
        is_its = before > _record_before(switches)[out]
        if is_lossy:
            is_its &= times[out] - before < _NEAR_NS
        times[out[is_its]] = before[is_its]
    if switches.cpu is not None and len(times) > 1:
        order = np.lexsort((switches.time_ns, switches.cpu))
        first, then = order[:-1], order[1:]
        follows = (switches.cpu[first] == switches.cpu[then]) & (switches.edge[first] != Edge.IN)
        follows &= (switches.edge[then] == Edge.IN)
        follows &= switches.time_ns[then] - switches.time_ns[first] < _NEXT_NS
        times[then[follows]] = times[first[follows]]
    return times


def _record_before(switches: Switches) -> Array:
    """Time (m,) of the same thread's record before each; far in the past where there is none."""
    order = np.lexsort((switches.time_ns, switches.tid))
    before = np.full(len(order), LONG_AGO_NS)
    same = switches.tid[order[1:]] == switches.tid[order[:-1]]
    before[order[1:][same]] = switches.time_ns[order[:-1][same]]
    return before
