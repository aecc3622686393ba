"""Intervals and marks against draws of known truth: how often they hold, and that a real difference is seen."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.report.significance import (
    LEVEL,
    RUN_TO_RUN,
    Runs,
    benjamini_hochberg,
    compared,
    differences,
    quantile,
)

TICK = 997.0
N_DRAWS = 2000


def drawn(chance: np.random.Generator, means: np.ndarray, n_runs: int, share: float) -> Runs:
    """Runs (n_runs, rows) of programs whose rows take ``means`` ticks, and differ by ``share`` from run to run."""
    shape = (n_runs, len(means))
    rate = means * chance.gamma(1 / share ** 2, share ** 2, shape) if share else np.broadcast_to(means, shape)
    ticks = chance.poisson(rate)
    return Runs(ticks * TICK, ticks * TICK ** 2, TICK)


def marked(first: Runs, second: Runs) -> np.ndarray:
    """Which rows are significant; none contains another."""
    return compared(first, second, (first, second))[1]


@given(st.floats(0.05, 20_000), st.floats(0.5, 2), st.integers(0, 99))
@settings(max_examples=60)
def test_intervals_hold_the_true_difference(mean: float, factor: float, seed: int) -> None:
    chance = np.random.default_rng(seed)
    first, second = np.full(N_DRAWS, mean), np.full(N_DRAWS, mean * factor)
    found = differences(drawn(chance, first, 1, RUN_TO_RUN), drawn(chance, second, 1, RUN_TO_RUN))
    truth = (second - first) * TICK
    # 95 %, less three standard deviations of so many draws.
    assert ((found.low <= truth) & (truth <= found.high)).mean() > 0.95 - 3 * np.sqrt(0.05 * 0.95 / N_DRAWS) - 0.004


# One run of each cannot tell rows that differ from run to run, each by itself, from rows that were changed.
@pytest.mark.parametrize(("n_runs", "share"), [
    ((1, 1), 0.0), ((1, 1), RUN_TO_RUN), *((n_runs, share) for n_runs in ((2, 2), (3, 2), (5, 5), (1, 8))
                                           for share in (0.0, RUN_TO_RUN, 0.1))])
def test_the_same_program_seldom_has_a_significant_row(n_runs: tuple[int, int], share: float) -> None:
    chance = np.random.default_rng(7)
    means = np.geomspace(0.3, 5000, 60)
    found = [marked(*(drawn(chance, means, n, share) for n in n_runs)).any() for _ in range(400)]
    assert np.mean(found) <= LEVEL + 3 * np.sqrt(LEVEL * (1 - LEVEL) / len(found))


@pytest.mark.parametrize("n_runs", [(1, 1), (2, 2), (5, 5)])
def test_a_machine_that_others_use_makes_no_row_significant(n_runs: tuple[int, int]) -> None:
    """All rows of a run are longer or shorter by the same tenth or so."""
    chance = np.random.default_rng(13)
    means, found = np.geomspace(3, 3000, 12), []
    for _ in range(400):
        sides = [Runs(*(np.concatenate(parts) for parts in zip(*(
            (run.values, run.squares) for factor in chance.gamma(100, 1 / 100, n)
            for run in [drawn(chance, means * factor, 1, 0.03)]), strict=True)), TICK) for n in n_runs]
        found.append(marked(*sides))
    assert np.mean(found) <= LEVEL


@pytest.mark.parametrize(("n_runs", "ticks", "factor"), [(1, 3000, 1.5), (3, 1000, 1.4), (5, 2000, 1.2)])
def test_a_row_that_takes_longer_is_significant(n_runs: int, ticks: int, factor: float) -> None:
    """One run of each tells only of large differences; several tell of smaller ones."""
    chance = np.random.default_rng(11)
    before = np.append(np.geomspace(1, 3000, 20), ticks)
    after = np.append(before[:-1], ticks * factor)
    found = np.array([marked(drawn(chance, before, n_runs, RUN_TO_RUN / 2),
                             drawn(chance, after, n_runs, RUN_TO_RUN / 2)) for _ in range(200)])
    assert found[:, -1].mean() > 0.95
    assert found[:, :-1].sum() <= LEVEL * 2 * found.sum()


def test_long_waits_count_as_one_piece_each() -> None:
    ten_at_once = Runs(np.array([[1000.0]]), np.array([[10 * 100.0 ** 2]]), 1.0)
    one_by_one = Runs(np.array([[1000.0]]), np.array([[1000.0]]), 1.0)
    nothing = Runs(np.array([[0.0]]), np.array([[0.0]]), 1.0)
    wide, narrow = (differences(nothing, runs) for runs in (ten_at_once, one_by_one))
    assert wide.high - wide.low > 3 * (narrow.high - narrow.low)


def test_rows_that_nobody_has_are_not_significant() -> None:
    nothing = Runs(np.zeros((1, 3)), np.zeros((1, 3)), 0.0)
    found = differences(nothing, nothing)
    assert not marked(nothing, nothing).any()
    assert found.low.tolist() == found.high.tolist() == [0, 0, 0]


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), max_size=30))
def test_rejected_are_those_below_the_last_that_is_below_its_line(told: list[tuple[float, bool]]) -> None:
    p, of = np.array([one for one, _ in told]), np.array([is_one for _, is_one in told], bool)
    counted = sorted(p[of].tolist())
    bound = max((one for rank, one in enumerate(counted, 1) if one <= LEVEL * rank / len(counted)), default=-1.0)
    assert benjamini_hochberg(p, of).tolist() == ((p <= bound) & of).tolist()


@pytest.mark.parametrize(("degrees", "table"), [(5, 2.571), (6, 2.447), (8, 2.306), (12, 2.179), (34, 2.032)])
def test_student_s_quantiles(degrees: int, table: float) -> None:
    assert table - 0.0005 <= quantile(degrees) <= table * 1.004


def test_a_slower_row_is_seen_where_all_runs_differ_in_speed() -> None:
    chance = np.random.default_rng(17)
    before = np.geomspace(30, 1000, 9)
    after = before * np.where(np.arange(9) == 7, 1.2, 1.0)
    found = []
    for _ in range(100):
        sides = [[drawn(chance, means * factor, 1, 0) for factor in chance.gamma(100, 1 / 100, 8)]
                 for means in (before, after)]
        found.append(marked(*(Runs(np.concatenate([run.values for run in side]),
                                   np.concatenate([run.squares for run in side]), TICK) for side in sides)))
    assert np.mean(found, axis=0)[7] > 0.95
    assert np.delete(np.mean(found, axis=0), 7).max() <= LEVEL * 2


def test_a_row_that_is_tested_twice_needs_half_the_probability() -> None:
    """Of four rows one differs more and more; where it is marked first, its probability is an eighth of the level."""
    before = np.array([[1000.0, 2000.0, 3000.0, 4000.0]])
    first, found = Runs(before, before, 1.0), []
    for more in range(200, 1500, 5):
        after = before + np.array([0, 0, 0, more])
        second = Runs(after, after, 1.0)
        difference, is_significant = compared(first, second, (first, second))
        found += [difference.p[3]] * bool(is_significant[3])
    assert LEVEL / 8 * 0.8 < found[0] <= LEVEL / 8


def test_functions_that_one_program_alone_has_are_significant() -> None:
    """All there is but little: nothing but another program can be the cause."""
    chance = np.random.default_rng(17)
    own = np.geomspace(60, 2000, 5)
    before, after = np.concatenate([own, own * 0, [9]]), np.concatenate([own * 0, own, [9]])
    sides = drawn(chance, before, 1, RUN_TO_RUN), drawn(chance, after, 1, RUN_TO_RUN)
    found, is_marked = compared(*sides, sides)
    assert is_marked.tolist() == [True] * 10 + [False]
    assert (found.high[:5] < 0).all()
    assert (found.low[5:10] > 0).all()
