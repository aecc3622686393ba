"""Ticks of clock samples: as many as the exact running time is worth, also where that was taken for more at first."""

from __future__ import annotations

import numpy as np
import pytest

from collector.events import Edge
from collector.timing.sampling import Sampling
from collector.timing.timeline import Timeline, edges_of, rising

MS = 1_000_000
INTERVAL = 10 * MS
STRIKES = (150, 250, 350, 410, 420, 430, 440)  # ms, of the clock of two threads on one CPU
ENDS = ((400, Edge.IN), (440, Edge.OUT_BLOCKED))


def test_what_never_falls_of_many_threads_whenever_that_was() -> None:
    """As of a machine that has run for a year, and 0 for what is not known."""
    slot, year_ns = np.repeat(np.arange(2_003), 3), 366 * 86_400 * 10**9
    assert rising(slot, np.tile([5, 0, year_ns], 2_003)).tolist() == [5, 5, year_ns] * 2_003
    assert rising(slot, np.tile([year_ns, 0, 5], 2_003)).tolist() == [year_ns] * 3 * 2_003


def sampled() -> Sampling:
    """Two threads that ran for 100 ms each, had a sample at the end, and slept."""
    sampling = Sampling(INTERVAL, Timeline())
    sampling.timeline.grow(2)
    advance(sampling, (0, Edge.BORN), (0, Edge.IN), (100, Edge.OUT_BLOCKED))
    assert strike(sampling, 100) == [[10], [10]]
    return sampling


def advance(sampling: Sampling, *edges: tuple[int, Edge]) -> None:
    """A batch in which both threads have the same edges."""
    slot = np.repeat([0, 1], len(edges))
    time_ns, edge = (np.tile(np.array(column, np.int64), 2) for column in (
        [at * MS for at, _ in edges], [edge for _, edge in edges]))
    sampling.timeline.advance(sampling.timeline.in_order(edges_of(slot, time_ns, edge)))


def strike(sampling: Sampling, *times: int) -> list[list[int]]:
    """The ticks of each thread's samples at some times."""
    slot, time_ns = np.tile([0, 1], len(times)), np.repeat(times, 2) * MS
    ticks = sampling.ticks_of(slot, time_ns)
    return [ticks[slot == each].tolist() for each in (0, 1)]


def test_who_waited_where_it_was_found_to_run_has_earned_nothing_by_that() -> None:
    """After a time in which nobody knew what they did; their first records tell that they have only now got a CPU."""
    sampling = sampled()
    sampling.timeline.find_again(np.array([0, 1]), np.array([True, True]))
    advance(sampling, *ENDS)
    assert strike(sampling, *STRIKES) == [[0, 0, 0, 1, 1, 1, 1]] * 2
    assert not sampling.residue_ns(np.array([0, 1])).any()


@pytest.mark.parametrize("together", [False, True])
def test_what_was_told_too_much_is_earned_before_more_is_told(together: bool) -> None:
    sampling = sampled()
    sampling.timeline.find_again(np.array([0, 1]), np.array([True, True]))
    advance(sampling)  # no records yet
    assert strike(sampling, 125) == [[2], [2]]
    advance(sampling, *ENDS)
    if together:
        assert strike(sampling, *STRIKES) == [[0] * 5 + [1, 1]] * 2
    else:
        assert [strike(sampling, at)[0][0] for at in STRIKES] == [0] * 5 + [1, 1]
    assert not sampling.residue_ns(np.array([0, 1])).any()


def test_a_clock_that_strikes_behind_the_end_tells_no_more() -> None:
    sampling = sampled()
    advance(sampling, *ENDS)
    assert strike(sampling, 405, 455, 1000) == [[0, 4, 0]] * 2
