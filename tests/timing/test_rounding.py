"""First samples of short threads: as many are told as are due, whatever their number."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.events import Edge
from collector.timing.rounding import Groups, untold
from collector.timing.sampling import Sampling
from collector.timing.timeline import Timeline, edges_of

INTERVAL = 10_007
Life = tuple[int, list[int]]  # time on CPU altogether, and before each sample


def lived(lives: Sequence[Life], images: Sequence[int], pools: Sequence[int], goes_on: bool = False,
          before: int = 0, told: Sequence[int] = ()) -> tuple[Sampling, list[int], int]:
    """Threads that ran within a batch, and ended or lost their CPU: their clocks, those untold, and the ticks of their
    samples. ``told``: ticks of the first threads so far."""
    sampling, slots = Sampling(INTERVAL, Timeline()), list(range(len(lives)))
    sampling.timeline.grow(len(lives))
    sampling.of.grow(len(lives))
    sampling.of.ticks[:len(told)], sampling.of.phase_ns[:len(told)] = told, 0
    last = Edge.OUT_PREEMPTED if goes_on else Edge.ENDED
    edges = sorted([(1_000, slot, Edge.IN) for slot in slots]
                   + [(1_000 + life, slot, last) for slot, (life, _) in zip(slots, lives, strict=True)])
    time_ns, slot, cut = (np.array(column, kind) for column, kind in zip(
        zip(*edges, strict=True), (np.int64, np.int64, np.int8), strict=True))
    sampling.timeline.advance(sampling.timeline.in_order(edges_of(slot, time_ns, cut)))
    samples = sorted((1_000 + at, slot) for slot, (_, ats) in zip(slots, lives, strict=True) for at in ats)
    slot, time_ns = (np.array(column, np.int64) for column in (
        [slot for _, slot in samples], [time for time, _ in samples]))
    found = untold(sampling, slot, time_ns, Groups(np.array(slots, np.int64), np.array(images, np.int64),
                                                 np.array(pools, np.int64), np.full(len(pools), not goes_on), before))
    ticks = sampling.ticks_of(slot, time_ns, found) if len(slot) else slot
    return sampling, sorted(found.tolist()), int(ticks.sum())


@pytest.mark.parametrize(("life", "samples", "n", "pool", "n_told"), [
    (4_000, [3_000], 4, 0, 1),  # 16,000 ns, of which all four would tell an interval
    (4_000, [3_000], 4, 14_100, 3),
    (4_000, [3_000], 4, -6_000, 0),
    (4_000, [3_000], 4, 100_000, 4),  # no more than were met
    (16_000, [5_000, 15_100], 5, 0, 2),  # each has told an interval by its second sample: five times 5,993 are left
    (16_000, [12_000], 5, 0, 0)])  # a first sample behind the first interval is none of these
def test_as_many_are_told_as_are_due(life: int, samples: list[int], n: int, pool: int, n_told: int) -> None:
    _, found, ticks = lived([(life, samples)] * n, [0] * n, [pool])
    whole = samples[-1] // INTERVAL
    assert len(found) == (n - n_told if samples[0] < INTERVAL else 0)
    assert ticks == n * whole + n_told


@pytest.mark.parametrize(("told", "n_told"), [(2, 1), (3, 0)])
def test_what_was_told_too_much_of_one_is_not_told_of_others(told: int, n_told: int) -> None:
    _, found, ticks = lived([(30_000, [29_000]), (4_000, [3_000])], [0, 0], [0], told=[told])
    assert (found, ticks) == ([1] * (1 - n_told), n_told)


def test_each_image_for_itself_evenly() -> None:
    _, found, _ = lived([(4_000, [3_000])] * 11, [0] * 4 + [1] * 7, [50_000, 0], goes_on=True)
    assert found == [4, 5, 7, 9]


@pytest.mark.parametrize(("before", "n_told"), [(0, 1), (14, 2), (-10_000, 0), (10_021, 3), (100_000, 5)])
def test_images_that_are_over_are_told_what_is_due_to_all_of_them(before: int, n_told: int) -> None:
    """Five of one thread each: 20,000 ns, and what was short before."""
    _, found, _ = lived([(4_000, [3_000])] * 5, range(5), [0] * 5, before=before)
    assert len(found) == 5 - n_told


def test_whole_intervals_of_an_image_are_told_of_itself() -> None:
    """16,000 ns in four threads have a tick, whatever the others were told too much; 5,993 ns of it are for all."""
    lives, images = [(4_000, [3_000])] * 8, [0] * 4 + [1, 2, 3, 4]
    assert sum(slot < 4 for slot in lived(lives, images, [0] * 5, before=-30_000)[1]) == 4 - 1
    assert len(lived(lives, images, [0] * 5)[1]) == 8 - 1 - (4 * 4_000 + 5_993) // INTERVAL


def test_nobody_is_asked_when_nobody_ends() -> None:
    none = np.zeros(0, np.int64)
    assert not len(untold(Sampling(INTERVAL, Timeline()), none, none, Groups(none, none, none, none == 1)))


@pytest.mark.parametrize(("life", "samples", "n", "pool", "n_told"), [
    (4_000, [3_000], 4, 0, 2),  # 16,000 ns: an interval and something
    (4_000, [3_000], 1, 0, 1),  # one thread is met at any time of its first interval, as often as it is due
    (4_000, [3_000], 4, -16_000, 0),
    (30_000, [100, 10_107, 20_114], 1, 0, 1)])
def test_those_that_go_on_may_be_ahead_by_less_than_an_interval(life: int, samples: list[int], n: int, pool: int,
                                                                n_told: int) -> None:
    _, found, ticks = lived([(life, samples)] * n, [0] * n, [pool], goes_on=True)
    assert len(found) == n - n_told
    assert ticks == n * (len(samples) - 1) + n_told


def test_whole_intervals_of_a_thread_without_samples_are_told_of_itself() -> None:
    """Four intervals of one thread, and 8,000 ns: what the others are told is theirs."""
    _, found, ticks = lived([(4 * INTERVAL, []), *[(1_000, [500])] * 8], [0] * 9, [0])
    assert len(found) == 8
    assert ticks == 0
    _, found, ticks = lived([(4 * INTERVAL + 2_500, []), *[(1_000, [500])] * 8], [0] * 9, [0])
    assert len(found) == 7
    assert ticks == 1


def test_those_that_run_on_count_with_what_is_known_of_them() -> None:
    """Since its last record or sample a thread may have waited for a CPU."""
    slots, sampling = np.arange(5), Sampling(INTERVAL, Timeline())
    sampling.timeline.grow(5)
    sampling.timeline.advance(edges_of(slots, np.full(5, 1_000), np.full(5, Edge.IN)))
    samples = np.array([4_000, 4_100, 4_200, 4_300])  # each has run for 3,000 ns or a little more
    found = untold(sampling, slots[:4], samples, Groups(slots, np.zeros(5, np.int64), np.zeros(1, np.int64),
                                                      np.zeros(1, bool)))
    assert len(found) == 2


@given(st.lists(st.tuples(st.integers(1, 30_000), st.lists(st.integers(1, 30_000), max_size=4)), min_size=1,
                max_size=40), st.integers(-30_000, 30_000), st.booleans())
def test_never_more_than_they_had_and_never_less_for_it(lives: list[Life], pool: int, goes_on: bool) -> None:
    lives = [(life, sorted({at for at in ats if at < life})) for life, ats in lives]
    sampling, found, _ = lived(lives, [0] * len(lives), [pool], goes_on)
    sampling.of.grow(len(lives))
    own = np.array([life for life, _ in lives]) - sampling.of.ticks[:len(lives)] * INTERVAL
    owed = pool + int(np.where(own > 0, own % INTERVAL, own).sum())
    spare = INTERVAL - 1 if goes_on else 0
    assert owed >= min(-spare, pool)  # whole intervals of a thread cannot be held back
    assert owed < INTERVAL - spare or not found  # nobody is held back who is due
    assert (sampling.of.phase_ns[found] == 0).all()
