"""When a hypervisor had the CPU of a thread that ran by its records: in silences of its clock. Pure.

A clock strikes once an interval while its thread runs. While the CPU is somebody else's it cannot, and strikes as soon
as the thread has it back. So what is missing of a run is missing at the end of such a gap::

    run        |-------------------------------------------------------|
    strikes       x    x    x    x               x   x    x    x    x
                                 |--interval|----|
                                              silent

What is taken for less than an interval at a time may leave no silence, and what interrupts take leaves none: where that
was is not known. It is taken here and there, evenly, so that no part of a run has more of it than others. Nor are short
silences told from clocks that strike a little late, or of which some have longer intervals.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from collector.arrays import changes, indices, packed, summed
from collector.events import Array
from collector.timing.shares import shared_out, spread_out
from collector.timing.timeline import LONG_AGO_NS, NO_MOMENTS, Moments, moments_of

_PIECE_NS = 1_000_000  # of what is taken here and there
_SILENT = 3 / 2  # intervals from one strike to the next


class Strikes(NamedTuple):
    """When clocks of threads struck, which they do once in an interval of running."""

    moments: Moments
    interval_ns: int


NO_STRIKES = Strikes(NO_MOMENTS, 1 << 62)


class Runs(NamedTuple):
    """Runs (n,) of threads, by slot and then time, each one of a group."""

    slot: Array  # i8 (n,)
    start_ns: Array  # i8 (n,)
    end_ns: Array  # i8 (n,)
    group: Array  # i8 (n,)


class Stolen(NamedTuple):
    """Parts (k,) of runs, by run and then time."""

    run: Array  # i8 (k,) index of the run
    start_ns: Array  # i8 (k,)
    end_ns: Array  # i8 (k,)


def stolen(runs: Runs, amount_ns: Array, strikes: Strikes, since_ns: int = LONG_AGO_NS) -> Stolen:
    """When the CPUs of groups (g,) were stolen for so long, as far as they run: in silences, the longest first, then
    anywhere; what was before ``since_ns`` has been told, and is taken from last."""
    run, end_ns, length_ns = _gaps(runs, _with_beginning(strikes.moments, runs, since_ns))
    group, room_ns = runs.group[run], np.maximum(length_ns - 2, 0)
    is_new = end_ns > since_ns
    silent_ns = np.where(is_new & (length_ns > _SILENT * strikes.interval_ns), length_ns - strikes.interval_ns, 0)
    taken_ns = shared_out(amount_ns, group, np.minimum(silent_ns, room_ns))
    for share_out, where in ((_spread_out, is_new), (shared_out, is_new), (shared_out, ~is_new)):
        left_ns = amount_ns - summed(group, taken_ns, len(amount_ns))
        if not left_ns.any():
            break
        taken_ns += share_out(left_ns, group, np.where(where, room_ns - taken_ns, 0))
    row = indices(taken_ns)
    return Stolen(run[row], end_ns[row] - 1 - taken_ns[row], end_ns[row] - 1)


def at_ends(runs: Runs, amount_ns: Array) -> Stolen:
    """For so long, before the ends of runs, the longest first."""
    taken_ns = shared_out(amount_ns, runs.group, np.maximum(runs.end_ns - runs.start_ns - 2, 0))
    row = indices(taken_ns)
    return Stolen(row, runs.end_ns[row] - 1 - taken_ns[row], runs.end_ns[row] - 1)


def _spread_out(amount_ns: Array, group: Array, room_ns: Array) -> Array:
    return spread_out(amount_ns, group, room_ns, _PIECE_NS)


def _with_beginning(strikes: Moments, runs: Runs, since_ns: int) -> Moments:
    """As if the clocks of all that ran at a time had struck then."""
    slot = runs.slot[(runs.start_ns < since_ns) & (since_ns < runs.end_ns)]
    return moments_of(np.concatenate((strikes.slot, slot)),
                      np.concatenate((strikes.time_ns, np.full(len(slot), since_ns)))) if len(slot) else strikes


def _gaps(runs: Runs, strikes: Moments) -> tuple[Array, Array, Array]:
    """Runs taken apart at the strikes in them: index of the run, end, and length of each part. A run without strikes is
    one."""
    keys, starts, ends = packed(strikes, (runs.slot, runs.start_ns), (runs.slot, runs.end_ns))
    n_begun = starts.searchsorted(keys)
    within = indices(n_begun > ends.searchsorted(keys, "right"))
    run = np.concatenate((n_begun[within] - 1, np.arange(len(runs.slot))))
    order = run.argsort(kind="stable")
    run, to_ns = run[order], np.concatenate((strikes.time_ns[within], runs.end_ns))[order]
    from_ns = to_ns.copy()
    from_ns[1:] = to_ns[:-1]
    from_ns[changes(run)] = runs.start_ns
    return run, to_ns, to_ns - from_ns
