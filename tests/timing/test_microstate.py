"""Clocks of threads: literal lives, and the laws of accounts and ticks for any life, cut into batches anywhere."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.events import Edge
from collector.timing.microstate import ThreadClocks

INTERVAL = 10_007

BORN, IN, BLOCKED, PREEMPTED, ENDED = Edge.BORN, Edge.IN, Edge.OUT_BLOCKED, Edge.OUT_PREEMPTED, Edge.ENDED

Event = tuple[int, int, Edge]  # time, slot, cut


def arrays(events: Sequence[Event]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(slots, times, cuts) of events."""
    return (np.array([slot for _, slot, _ in events], np.int64), np.array([time for time, _, _ in events], np.int64),
            np.array([cut for _, _, cut in events], np.int8))


def clocks_of(n_threads: int, interval_ns: int = INTERVAL) -> ThreadClocks:
    clocks = ThreadClocks(interval_ns)
    for slot in range(n_threads):
        assert clocks.new_slot() == slot
    return clocks


def advance(clocks: ThreadClocks, events: Sequence[Event]) -> list[tuple[int, int, int, int]]:
    """The periods closed, as (slot, start, end, kind)."""
    periods = clocks.advance(*arrays(events))
    return list(zip(periods.slot.tolist(), periods.start_ns.tolist(), periods.end_ns.tolist(),
                    periods.kind.tolist(), strict=True))


def test_a_life_is_cut_into_periods_by_its_edges() -> None:
    clocks = clocks_of(2)
    assert advance(clocks, [(5, 0, BORN), (7, 1, BORN), (11, 0, IN), (13, 1, IN), (29, 0, PREEMPTED), (31, 1, BLOCKED),
                            (37, 0, IN), (101, 1, IN), (103, 0, ENDED)]) == [
        (0, 5, 11, BORN), (0, 11, 29, IN), (0, 29, 37, PREEMPTED), (0, 37, 103, IN),
        (1, 7, 13, BORN), (1, 13, 31, IN), (1, 31, 101, BLOCKED)]
    assert clocks.cpu_ns[:2].tolist() == [18 + 66, 18]
    assert clocks.kind[:2].tolist() == [ENDED, IN]
    assert clocks.n_impossible == 0


def test_periods_reach_over_batches() -> None:
    clocks = clocks_of(1)
    assert advance(clocks, [(5, 0, BORN)]) == []
    assert advance(clocks, []) == []
    assert advance(clocks, [(11, 0, IN)]) == [(0, 5, 11, BORN)]
    assert advance(clocks, [(29, 0, BLOCKED), (97, 0, IN)]) == [(0, 11, 29, IN), (0, 29, 97, BLOCKED)]
    assert clocks.cpu_ns[0] == 18


def test_began_is_the_edge_that_began_the_period() -> None:
    clocks = clocks_of(2)
    clocks.advance(*arrays([(5, 1, BORN)]))
    periods = clocks.advance(*arrays([(6, 0, BORN), (11, 1, IN), (13, 0, IN), (17, 0, BLOCKED)]))
    edges = clocks.edges
    for row, began in enumerate(periods.began.tolist()):
        if began >= 0:
            assert (edges.slot[began], edges.time_ns[began], edges.cut[began]) == (
                periods.slot[row], periods.start_ns[row], periods.kind[row])
        else:
            assert (periods.slot[row], periods.start_ns[row]) == (1, 5)
    assert periods.began.tolist().count(-1) == 1


@pytest.mark.parametrize(("events", "cpu_ns", "n_impossible"), [
    ([(5, 0, BORN), (7, 0, IN), (11, 0, IN), (13, 0, BLOCKED)], 6, 1),  # an out is missing: it ran, as far as we know
    ([(5, 0, BORN), (7, 0, IN), (11, 0, BLOCKED), (17, 0, BLOCKED)], 4, 1),  # an in is missing
    ([(5, 0, BORN), (11, 0, PREEMPTED)], 0, 1),
    ([(7, 0, IN), (11, 0, BLOCKED)], 4, 0),  # found running: nothing is known of before
    ([(7, 0, BLOCKED), (11, 0, IN), (12, 0, ENDED)], 1, 0),
    ([(5, 0, BORN), (6, 0, ENDED)], 0, 0),
    ([(5, 0, BORN), (7, 0, IN), (11, 0, ENDED), (13, 0, IN), (99, 0, BLOCKED)], 4 + 86, 0)])
def test_what_cannot_follow_is_counted(events: list[Event], cpu_ns: int, n_impossible: int) -> None:
    clocks = clocks_of(1)
    advance(clocks, events)
    assert (clocks.cpu_ns[0], clocks.n_impossible) == (cpu_ns, n_impossible)


def test_time_does_not_run_backwards() -> None:
    """Stamps of two CPUs may differ by a little: such a period has no length, not a negative one."""
    clocks = clocks_of(1)
    assert advance(clocks, [(100, 0, IN)]) == []
    periods = advance(clocks, [(97, 0, BLOCKED), (120, 0, IN)])
    assert [kind for *_, kind in periods] == [IN, BLOCKED]
    assert all(start <= end for _, start, end, _ in periods)
    assert clocks.cpu_ns[0] == 0


def test_time_does_not_run_backwards_from_batch_to_batch() -> None:
    clocks = clocks_of(1)
    advance(clocks, [(5, 0, IN), (31, 0, BLOCKED)])
    told = advance(clocks, [(11, 0, IN), (13, 0, BLOCKED), (17, 0, IN), (41, 0, ENDED)])
    assert sum(end - start for _, start, end, _ in told) == 41 - 31
    assert clocks.cpu_ns[0] == 41 - 5


def test_the_running_clock_at_any_time() -> None:
    clocks = clocks_of(2)
    clocks.advance(*arrays([(5, 0, BORN), (10, 0, IN)]))
    clocks.advance(*arrays([(20, 0, BLOCKED), (30, 0, IN), (40, 0, PREEMPTED), (50, 0, IN)]))
    times = [10, 15, 20, 25, 30, 33, 40, 45, 50, 57]
    at = clocks.cpu_at(np.zeros(len(times), np.int64), np.array(times))
    assert at.tolist() == [0, 5, 10, 10, 10, 13, 20, 20, 20, 27]
    assert clocks.cpu_at(np.array([1]), np.array([57])).tolist() == [0]


def test_there_is_room_for_any_number_of_threads() -> None:
    clocks = clocks_of(1009)
    events = [(slot + 1, slot, BORN) for slot in range(1009)] + [(2000 + slot, slot, IN) for slot in range(1009)]
    assert len(advance(clocks, events)) == 1009
    assert (clocks.kind[:1009] == IN).all()


# --- laws -----------------------------------------------------------------------------------------


@st.composite
def lives(draw: st.DrawFn) -> tuple[int, list[Event], list[tuple[int, int]]]:
    """Legal lives of some threads and clock samples while they run: (n_threads, edges, samples), by time."""
    n_threads = draw(st.integers(1, 5))
    lengths = st.integers(0, 5 * INTERVAL)
    edges: list[Event] = []
    samples: list[tuple[int, int]] = []
    for slot in range(n_threads):
        time = draw(lengths)
        edges.append((time, slot, BORN))
        for _ in range(draw(st.integers(0, 7))):
            start = time = time + draw(lengths)
            edges.append((time, slot, IN))
            time += draw(lengths)
            offsets = draw(st.lists(st.integers(0, time - start), max_size=4))
            samples.extend((start + offset, slot) for offset in offsets)
            edges.append((time, slot, draw(st.sampled_from([BLOCKED, PREEMPTED]))))
        if draw(st.booleans()):
            edges.append((time + draw(lengths), slot, ENDED))
    edges.sort(key=lambda edge: edge[0])
    samples.sort()
    return n_threads, edges, samples


def truth(edges: list[Event], slot: int, time_ns: int) -> int:
    """The running time of a thread up to a time, the slow way."""
    cpu, since = 0, None
    for time, who, cut in edges:
        if who == slot and time <= time_ns:
            cpu += time - since if since is not None else 0
            since = time if cut == IN else None
    return cpu + (time_ns - since if since is not None else 0)


def feed(clocks: ThreadClocks, edges: list[Event], samples: list[tuple[int, int]],
         bounds: Sequence[int]) -> tuple[list[tuple[int, int, int, int]], list[int]]:
    """Everything in batches that end at ``bounds``: the periods, and the ticks of the samples in order."""
    periods: list[tuple[int, int, int, int]] = []
    ticks: list[int] = []
    last = -1
    for bound in [*sorted(bounds), 2**60]:
        periods += advance(clocks, [edge for edge in edges if last < edge[0] <= bound])
        mine = [sample for sample in samples if last < sample[0] <= bound]
        slot, time = np.array([s for _, s in mine], np.int64), np.array([t for t, _ in mine], np.int64)
        ticks += clocks.ticks_of_samples(slot, time).tolist()
        last = bound
    return periods, ticks


@pytest.mark.parametrize(("as_found", "then", "kind", "cpu_ns"), [
    (IN, [(11, BLOCKED), (17, IN)], IN, 4),  # it ran
    (IN, [(11, IN), (17, BLOCKED)], PREEMPTED, 6),  # it was runnable, and waited
    (BLOCKED, [(11, IN), (17, BLOCKED)], BLOCKED, 6),  # it slept
    (BLOCKED, [(11, BLOCKED), (17, IN)], IN, 4),  # it ran, and slept when it was looked at
    (BLOCKED, [(11, PREEMPTED), (17, IN)], IN, 4),
])
@pytest.mark.parametrize("n_first", [0, 1, 2])
def test_the_first_record_of_a_found_thread_tells_what_it_did_before(as_found: Edge, then: list[tuple[int, Edge]],
                                                                     kind: Edge, cpu_ns: int, n_first: int) -> None:
    clocks = ThreadClocks(INTERVAL)
    clocks.new_slot(found=True)
    edges = [(7, 0, as_found), *((time, 0, cut) for time, cut in then)]
    periods = advance(clocks, edges[:1 + n_first]) + advance(clocks, edges[1 + n_first:])
    assert periods[0] == (0, 7, 11, kind)
    assert clocks.cpu_ns[0] == cpu_ns
    assert clocks.n_impossible == 0


@given(lives(), st.integers(1, 3 * INTERVAL))
def test_the_sum_of_ticks_is_the_time_up_to_the_last_sample(
        life: tuple[int, list[Event], list[tuple[int, int]]], interval_ns: int) -> None:
    n_threads, edges, samples = life
    clocks = clocks_of(n_threads, interval_ns)
    _, ticks = feed(clocks, edges, samples, [])
    assert all(tick >= 0 for tick in ticks)
    for slot in range(n_threads):
        mine = [(time, tick) for (time, who), tick in zip(samples, ticks, strict=True) if who == slot]
        exact = truth(edges, slot, mine[-1][0]) if mine else 0
        counted = sum(tick for _, tick in mine) * interval_ns
        first = truth(edges, slot, mine[0][0]) if mine else 0
        assert -max(interval_ns - max(first, 1), 0) <= exact - counted < interval_ns
        assert not mine or mine[0][1] == (max(first // interval_ns, 1) if first else 0)
        assert clocks.residue_ns(slot) == truth(edges, slot, 2**60) - counted


@given(lives(), st.lists(st.integers(0, 40 * INTERVAL), max_size=6))
def test_many_batches_are_one_batch(life: tuple[int, list[Event], list[tuple[int, int]]], bounds: list[int]) -> None:
    n_threads, edges, samples = life
    one, many = clocks_of(n_threads), clocks_of(n_threads)
    whole, parts = feed(one, edges, samples, []), feed(many, edges, samples, bounds)
    assert sorted(parts[0]) == sorted(whole[0])
    assert parts[1] == whole[1]
    assert many.cpu_ns.tolist() == one.cpu_ns.tolist()
    assert many.n_impossible == one.n_impossible == 0


@given(lives())
def test_the_accounts_add_up_to_the_life(life: tuple[int, list[Event], list[tuple[int, int]]]) -> None:
    n_threads, edges, _ = life
    periods = advance(clocks := clocks_of(n_threads), edges)
    for slot in range(n_threads):
        mine = [edge for edge in edges if edge[1] == slot]
        assert sum(end - start for who, start, end, _ in periods if who == slot) == mine[-1][0] - mine[0][0]
        running = sum(end - start for who, start, end, kind in periods if (who, kind) == (slot, IN))
        assert clocks.cpu_ns[slot] == running == truth(edges, slot, 2**60)
