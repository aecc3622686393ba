"""Numbering and gathering of large arrays against what numpy and Python say."""

from __future__ import annotations

import numpy as np
import pytest

from collector.arrays import gathered, numbered_few

RANDOM_SEED = 20_261_124
N = 600_011  # more than are worked on at once


@pytest.mark.parametrize(("n", "n_distinct"), [(0, 1), (1, 1), (7, 3), (N, 5), (N, 9001), (N, 400_009)])
def test_few_or_many_different_numbers_are_numbered_as_sorting_does(n: int, n_distinct: int) -> None:
    random = np.random.default_rng(RANDOM_SEED)
    values = random.integers(0, 1 << 64, n_distinct, np.uint64)[random.integers(0, n_distinct, n)]
    if n > n_distinct:
        values[:3] = 0, 1, (1 << 64) - 1
    expected, places = np.unique(values, return_inverse=True)
    found, numbers = numbered_few(values)
    assert np.array_equal(found, expected)
    assert np.array_equal(numbers, places)
    assert numbers.dtype == np.int32


@pytest.mark.parametrize("longest", [0, 1, 40, N // 2])
def test_runs_are_gathered_one_behind_the_other(longest: int) -> None:
    random = np.random.default_rng(RANDOM_SEED)
    values = random.integers(0, 1 << 31, N, np.int32)
    n = min(N // max(longest, 1), 50_021)
    counts = random.integers(0, longest + 1, n + 5)
    counts[[0, 3, -1]] = 0
    begins = random.integers(0, N - counts)
    expected = [values[begin:begin + count] for begin, count in zip(begins.tolist(), counts.tolist(), strict=True)]
    found = gathered(values, begins, counts)
    assert np.array_equal(found, np.concatenate(expected))
    assert found.dtype == values.dtype


def test_no_runs_give_nothing() -> None:
    assert not len(gathered(np.arange(5), np.zeros(0, np.int64), np.zeros(0, np.int64)))
