"""Latency: CPU time divided by the number of threads of the process that ran at that moment. Pure.

So time in a serial phase counts in full, and of two threads that run side by side each gets half. Over all rows the
latencies of a process add up to the time during which at least one of its threads ran, as in ``perf report --latency``.

A packet of n ticks at time t says that its thread ran for n intervals before t. A thread runs one thing at a time, so
packets of a thread that would overlap are laid end to end, going back from their times.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from collector.clock import NS_PER_US
from collector.experiment.reader import Experiment
from collector.report.metrics import TOTAL_CPU

I8 = npt.NDArray[np.int64]
F8 = npt.NDArray[np.float64]


def latency_us(experiment: Experiment) -> I8:
    """Microseconds of latency of each clock packet (n); zero in those of waits. Their sum is exact to 1 us."""
    packets = experiment.packets()
    found = np.zeros(len(packets), np.float64)
    on_cpu = np.flatnonzero(np.isin(packets["MSTATE"], TOTAL_CPU.states))
    lengths_ns = packets["NTICK"][on_cpu].astype(np.int64) * experiment.log.interval_us * NS_PER_US
    begins, ends = spans(packets["THRID"][on_cpu], packets["TSTAMP"][on_cpu].astype(np.int64), lengths_ns)
    begin_ns = experiment.log.start_ns
    found[on_cpu] = shares(np.maximum(begins, begin_ns), np.maximum(ends, begin_ns))
    return np.diff(np.floor(np.cumsum(found) / NS_PER_US), prepend=0).astype(np.int64)


def spans(threads: npt.NDArray[Any], times_ns: I8, lengths_ns: I8) -> tuple[I8, I8]:
    """From when to when each piece of running lasted (n) that ended by a time; no two of a thread at once."""
    begins = np.zeros(len(threads), np.int64)
    order = np.lexsort((times_ns, threads))
    bounds = np.flatnonzero(np.diff(threads[order], prepend=threads[order][:1], append=threads[order][-1:]))
    for low, high in pairwise([0, *bounds.tolist(), len(order)]):
        mine = order[low:high][::-1]
        later = np.cumsum(lengths_ns[mine])  # of this piece and all that follow it
        begins[mine] = np.minimum.accumulate(times_ns[mine] + later - lengths_ns[mine]) - later
    return begins, begins + lengths_ns


def shares(begins: I8, ends: I8) -> F8:
    """How long each span (n) is where it is alone, with k others at once a (k + 1)th of that."""
    edges = np.concatenate([begins, ends])
    order = np.argsort(edges, kind="stable")
    running = np.cumsum(np.where(order < len(begins), 1, -1))
    alone = np.diff(edges[order], append=edges[order][-1:]) / np.maximum(running, 1) * (running > 0)
    so_far = np.zeros(len(edges))
    so_far[order] = np.cumsum(alone) - alone
    return np.asarray(so_far[len(begins):] - so_far[:len(begins)], np.float64)
