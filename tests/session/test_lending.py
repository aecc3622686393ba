"""Short waits for a CPU: which of them have a stack of their own, and what the others are told with."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from collector.events import Array, ClockSamples, Edge
from collector.session.lending import lenders
from collector.timing.timeline import Edges, Periods, edges_of

US, STEP_NS = 1000, 5_000_000
DEEP = 2000  # words


def departures(slot: Array, time_ns: Array, n_words: int = DEEP) -> ClockSamples:
    """Of threads that leave their CPU, without anything in their stacks."""
    n = len(slot)
    zero = np.zeros(n, np.int64)
    return ClockSamples(time_ns, slot + 100, slot + 100, zero.astype(np.int32), zero.astype(np.int8),
                        np.full(n, 64, np.int8), np.zeros((n, 17), np.uint64), np.zeros(1, np.uint64), zero, zero, zero,
                        zero.astype(np.uint64), np.full(n, n_words))


def waits(slot: Array, length_ns: Array, kind: int = Edge.OUT_PREEMPTED) -> tuple[ClockSamples, Edges, Periods]:
    """Waits of threads that are over, 20 ms apart; departures are stamped just before their switch records."""
    out_ns = np.arange(len(slot)) * 20_000_000 + 1_000_000
    begins = edges_of(slot, out_ns, np.full(len(slot), kind))
    ends = edges_of(slot, out_ns + length_ns, np.full(len(slot), Edge.IN))
    order = np.lexsort((np.concatenate([begins.time_ns, ends.time_ns]), np.concatenate([slot, slot])))
    edges = Edges(*(np.concatenate(pair)[order] for pair in zip(begins, ends, strict=True)))
    began = np.flatnonzero(edges.edge == kind)
    start_ns, end_ns = edges.time_ns[began], edges.time_ns[began + 1]
    periods = Periods(edges.slot[began], start_ns, start_ns, end_ns, edges.edge[began], edges.source[began],
                      edges.cpu[began], began)
    return departures(slot, out_ns - 2 * US), edges, periods


def lent(slot: Array, leaving: ClockSamples, edges: Edges, periods: Periods, step_ns: int) -> Array:
    """Whose stack each departure has."""
    return lenders(slot, leaving, edges.next_at(slot, leaving.time_ns), edges, periods, step_ns)


def test_who_ends_a_step_lends_to_those_before_it() -> None:
    slot = np.zeros(60, np.int64)
    leaving, edges, periods = waits(slot, np.full(60, 1500 * US))
    lender = lent(slot, leaving, edges, periods, STEP_NS)
    # Steps end within the waits 3, 6, 9, 13, ...: at 5, 10, 15, 20 ms of 1.5 ms each.
    expected = [next(i for i in range(first, 60) if i == 59 or (i + 1) * 1500 // 5000 > i * 1500 // 5000)
                for first in range(60)]
    assert lender.tolist() == expected
    assert len(set(lender.tolist())) == 60 * 1500 // 5000


def test_places_get_their_part_of_the_time() -> None:
    """Waits of ever other lengths at three places, one after the other: what each lends stands for about its time."""
    slot, place = np.zeros(3000, np.int64), np.arange(3000) % 3
    length_ns = np.array([200, 700, 1900])[place] * US + np.arange(3000) % 97 * US
    leaving, edges, periods = waits(slot, length_ns)
    lender = lent(slot, leaving, edges, periods, STEP_NS)
    told_ns = np.bincount(place[lender], length_ns)
    had_ns = np.bincount(place, length_ns)
    assert np.abs(told_ns - had_ns).max() < 0.1 * had_ns.sum()
    assert told_ns.sum() == had_ns.sum()


def test_all_others_have_their_own() -> None:
    slot, short_ns = np.zeros(60, np.int64), np.full(60, 1500 * US)
    leaving, edges, periods = waits(slot, short_ns)
    own = list(range(60))
    assert lent(slot, leaving, edges, periods, 0).tolist() == own
    shallow = replace(leaving, n_words=np.full(60, 100))
    assert lent(slot, shallow, edges, periods, STEP_NS).tolist() == own
    few = leaving[:20]
    assert lent(slot[:20], few, edges, periods, STEP_NS).tolist() == own[:20]
    going_on = periods.take(np.zeros(0, np.int64))
    assert lent(slot, leaving, edges, going_on, STEP_NS).tolist() == own
    others: list[tuple[Array, int]] = [(short_ns, Edge.OUT_BLOCKED), (np.full(60, STEP_NS), Edge.OUT_PREEMPTED)]
    for length_ns, kind in others:
        leaving, edges, periods = waits(slot, length_ns, kind)
        assert lent(slot, leaving, edges, periods, STEP_NS).tolist() == own


def test_threads_do_not_lend_to_each_other() -> None:
    slot = np.array([0, 1] * 40 + [2] * 20)
    leaving, edges, periods = waits(slot, np.full(100, 900 * US))
    lender = lent(slot, leaving, edges, periods, STEP_NS)
    assert (slot[lender] == slot).all()
    assert (lender >= np.arange(100)).all()
    assert lender[slot == 2].tolist() == list(range(80, 100))  # too few
    assert (lender[lender] == lender).all()
