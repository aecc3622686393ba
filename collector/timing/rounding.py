"""How many first samples are told a tick. Pure.

A first sample within the first interval earns a tick (``sampling``), for a thread that may have used less. On average
that is right, if threads are met as often as they use an interval; but here and there many of them are met in a row,
and ticks cannot be taken back. So as many are told as are due to those whose ticks are counted together (``settling``):

    due = (what earlier threads are short of + time of all that are there - their other ticks) / interval

(whole intervals of a single thread, which are told of itself, left out), and if more are met, as many of them as are
due, evenly chosen, whatever they were met at. For the others it takes a whole interval to earn a tick. The threads of
an image count together: it may be ahead by less than an interval. So do all images that are over, which may not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from collector.arrays import changes, indices
from collector.events import Array
from collector.timing.sampling import Sampling


@dataclass(frozen=True, slots=True)
class Groups:
    """Threads (t,), by slot, and their images (i,), numbered from 0 on."""

    threads: Array  # in ascending order
    image: Array  # (t,)
    pool_ns: Array  # (i,) what each is short of on CPU beside what these threads are
    over: Array  # (i,)
    over_ns: int = 0  # what those are short of that were over before


def untold(sampling: Sampling, slot: Array, time_ns: Array, groups: Groups) -> Array:
    """Those (u,) of the threads, in any order, whose first sample is to earn nothing by itself.

    The samples of a batch are slots and times (n,) in time order; the timeline has taken its edges.
    """
    threads, image = groups.threads, groups.image
    if not len(slot) or not len(threads):
        return threads[:0]
    interval_ns, of, clocks = sampling.interval_ns, sampling.of, sampling.timeline.clocks
    of.grow(int(max(slot.max(), threads.max())) + 1)
    order = slot.argsort(kind="stable")
    sorted_slot = slot[order]
    first = indices(changes(sorted_slot))
    cpu_ns = sampling.timeline.ran_ns(sorted_slot, time_ns[order])
    sampled = sorted_slot[first]
    first_ns, last_ns = cpu_ns[first], cpu_ns[np.append(first[1:], len(cpu_ns)) - 1]
    at = np.minimum(sampled.searchsorted(threads), len(sampled) - 1)
    met = sampled[at] == threads
    new = met & (of.phase_ns[threads] < 0)
    phase_ns = np.maximum(of.phase_ns[threads], 0)
    ticks = np.maximum(np.where(met, (phase_ns + last_ns[at]) // interval_ns, 0), of.ticks[threads])
    early_ns = interval_ns - np.maximum(first_ns[at], 1)
    extra = new & (early_ns > 0) & ((early_ns + last_ns[at]) // interval_ns > ticks)
    used_ns = np.maximum(clocks.cpu_ns[threads], np.where(met, last_ns[at], 0))  # since then it may wait for a CPU
    own_ns = used_ns - ticks * interval_ns
    extra &= own_ns < interval_ns  # its first tick is one of its own
    own_ns = np.where(own_ns > 0, own_ns % interval_ns, own_ns)
    owed_ns = groups.pool_ns + np.bincount(image, own_ns, len(groups.pool_ns)).astype(np.int64)
    rows = indices(extra)
    rows = rows[np.argsort(image[rows], kind="stable")]
    its = image[rows]
    earns = _evenly(its, -(-owed_ns // interval_ns))
    # Whole intervals of an image are told of itself, too.
    ahead = indices(earns & groups.over[its])
    ahead = ahead[_rank(its[ahead], len(owed_ns)) >= np.maximum(owed_ns // interval_ns, 0)[its[ahead]]]
    rest_ns = np.where(owed_ns > 0, owed_ns % interval_ns, owed_ns)[groups.over]
    due = (groups.over_ns + int(rest_ns.sum())) // interval_ns
    earns[ahead] = _evenly(np.zeros_like(ahead), np.array([due]))
    found: Array = threads[rows[~earns]]
    return found


def _rank(group: Array, n: int) -> Array:
    """Place (r,) of each of some among those of its group, of ``n`` that they are sorted by."""
    size = np.bincount(group, minlength=n)
    rank: Array = np.arange(len(group)) - (size.cumsum() - size)[group]
    return rank


def _evenly(group: Array, due: Array) -> Array:
    """Which (r,) of some that are sorted by group are chosen: as many as are due (g,) to each."""
    n_met = np.bincount(group, minlength=len(due))
    rank = _rank(group, len(due))
    told, whole = np.clip(due, 0, n_met)[group], n_met[group]
    chosen: Array = (rank + 1) * told // whole > rank * told // whole
    return chosen
