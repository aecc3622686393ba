"""Short waits for a CPU that have no stack of their own. Pure.

A thread that shares its CPU is preempted some hundred times a second, at ever new places, and most of these waits are
much shorter than a tick. All their stacks would have to be unwound for ticks that a few of them get: a group has a few
accounts, and what does not fit is told with the largest (``timing.ticks``). So of a thread that has many short waits
in a batch, those are met that a clock of the thread's waiting time meets, in steps of half a tick::

    short waits   |--|-|---|--|-|----|---|-|--|
    steps         |        |         |        |
    stacks of            x          x         x     who ends a step lends its stack to those before it in the step

A wait of a step or more has its own stack, as all do whose thread was blocked, and those that are not deep and cost
little. So each place gets of the time what part of it was spent there, as with samples of time on a CPU.
"""

from __future__ import annotations

import numpy as np

from collector.arrays import changes, indices, lasts
from collector.events import Array, ClockSamples, Edge
from collector.timing.timeline import Edges, Periods

_PREEMPTED = int(Edge.OUT_PREEMPTED)
_MANY = 32  # short waits of a thread in a batch
_DEEP_WORDS = 1 << 10  # of a stack that were copied; of C programs most are smaller


def lenders(slot: Array, leaving: ClockSamples, at: Array, edges: Edges, periods: Periods, step_ns: int) -> Array:
    """Whose stack each of the departures (n,) of threads at slots has, given in time order: an index, most often its
    own. ``at`` (n,) are the indices of theirs among the ``edges`` of the batch, -1 where it has none; ``periods`` are
    those of the batch; steps are ``step_ns`` long."""
    lender, deep = np.arange(len(slot)), indices(leaving.n_words >= _DEEP_WORDS)
    if len(deep) < _MANY:
        return lender
    some, waited_ns = _short(at[deep], len(edges.slot), periods, step_ns)
    rows = deep[some]
    if len(rows) < _MANY:
        return lender
    order = slot[rows].argsort(kind="stable")
    rows, waited_ns = rows[order], waited_ns[order]
    first = changes(slot[rows])
    number, begins = first.cumsum() - 1, indices(first)
    before_ns = waited_ns.cumsum() - waited_ns
    step = (before_ns - before_ns[begins][number]) // step_ns
    ends_step = lasts(number, step)
    ends_step |= np.bincount(number)[number] < _MANY
    lender[rows] = rows[indices(ends_step)[ends_step.cumsum() - ends_step]]
    return lender


def _short(at: Array, n_edges: int, periods: Periods, step_ns: int) -> tuple[Array, Array]:
    """Which of the departures (m,), with edges ``at``, began a wait for a CPU that is over, and was shorter than a
    step; and how long it was."""
    began = indices((periods.began >= 0) & (periods.kind == _PREEMPTED))
    length_ns = np.full(n_edges, step_ns)
    length_ns[periods.began[began]] = periods.end_ns[began] - periods.start_ns[began]
    rows = indices(at >= 0)
    rows = rows[length_ns[at[rows]] < step_ns]
    return rows, length_ns[at[rows]]
