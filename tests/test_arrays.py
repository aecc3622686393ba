"""Arrays, some of them large, numbered, gathered and compared, against what numpy and Python say."""

from __future__ import annotations

import numpy as np
import pytest

from collector.arrays import changes, gathered, lasts, numbered_few, packed

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


@pytest.mark.parametrize(("rows", "last"), [
    ([], []),
    ([(7, 1)], [True]),
    ([(7, 1), (7, 1), (7, 2), (8, 2), (8, 2)], [False, True, True, False, True]),
])
def test_the_last_rows_of_runs_are_the_first_ones_from_behind(rows: list[tuple[int, int]], last: list[bool]) -> None:
    columns = np.array(rows, dtype=np.int64).reshape(-1, 2).T
    assert lasts(*columns).tolist() == last
    assert changes(*columns[:, ::-1]).tolist() == last[::-1]


def test_packed_pairs_sort_as_pairs_across_calls_of_one() -> None:
    """Times far from zero and below it; one part has none."""
    some = [(3, -5), (3, 1 << 40), (0, 9), (2, -5)]
    others = [(3, 0), (1, 1 << 40)]
    parts = [np.array(pairs, dtype=np.int64).reshape(-1, 2).T for pairs in (some, [], others)]
    keys = np.concatenate(packed(*[(number, time) for number, time in parts])).tolist()
    pairs = some + others
    assert sorted(range(len(pairs)), key=keys.__getitem__) == sorted(range(len(pairs)), key=pairs.__getitem__)
    assert [len(part) for part in packed((parts[1][0], parts[1][1]))] == [0]


@pytest.mark.parametrize(("number", "time"), [(1 << 9, 105 * 86_400 * 10**9), (1 << 22, 1 << 41), (2, 1 << 62),
                                              (1, -(1 << 62))])
def test_packed_pairs_sort_as_pairs_however_far_their_times_are_apart(number: int, time: int) -> None:
    """0 stands for a time before all; with thousands of threads, ids of processes, and no time at all."""
    pairs = [(n, ns) for ns in (0, time - 1, time, time - 1, 5) for n in (number, 0, number - 1, number)]
    numbers, times = np.array(pairs, dtype=np.int64).T
    keys = np.concatenate(packed((numbers[:7], times[:7]), (numbers[7:], times[7:]))).tolist()
    assert np.unique(keys, return_inverse=True)[1].tolist() == [sorted(set(pairs)).index(pair) for pair in pairs]
