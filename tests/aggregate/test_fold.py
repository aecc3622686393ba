"""Every aggregating function equals a slow, obvious one, and obeys the merge law over any split."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.aggregate import fold
from collector.aggregate.scales import HistLinear, HistLog
from collector.errors import AggregationError

INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1


def wrapped(number: int) -> int:
    """The number modulo 2^64, signed."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def towards_zero(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor) if dividend < 0 else dividend // divisor


def slow_quantize(values: list[int]) -> list[int]:
    """DTrace's words: the documentation's buckets from -2^62 to 2^62."""
    bounds = [-(1 << power) for power in range(62, -1, -1)] + [0] + [1 << power for power in range(63)]
    counts = [0] * 127
    for value in values:
        if value < 0:
            counts[next(i for i in range(63) if value <= bounds[i])] += 1
        else:
            counts[max(i for i in range(63, 127) if value >= bounds[i])] += 1
    return counts


def slow_hist_log(values: list[int]) -> list[int]:
    counts = [0] * 128
    for value in values:
        counts[64 + abs(value).bit_length() * (-1 if value < 0 else 1)] += 1
    return counts


def slow_ranges(edges: list[int]) -> Callable[[list[int]], list[int]]:
    """Counts below the first edge, between each two, and from the last one up."""

    def counts(values: list[int]) -> list[int]:
        all_edges = [INT64_MIN, *edges, INT64_MAX + 1]
        return [sum(low <= value < high for value in values) for low, high in pairwise(all_edges)]

    return counts


def slow_stddev(values: list[int]) -> int:
    if not values:
        return 0
    squares = sum(value * value for value in values) % (1 << 128)
    average = towards_zero(wrapped(sum(values)), len(values))
    return math.isqrt((squares // len(values) - average * average) % (1 << 128))


def slow_variance(values: list[int]) -> int:
    n, total = len(values), wrapped(sum(values))
    squares = sum(value * value for value in values) % (1 << 128)
    return (n * squares - total * total) // (n * (n - 1)) if n > 1 else 0


TENS = [unit * 10**power for power in (1, 2, 3) for unit in (1, 2, 3, 4, 5, 6, 7, 8, 9)] + [10**4]
TWENTIETHS = list(range(1, 10)) + list(range(10, 100, 5)) + list(range(100, 1000, 50)) + [1000]

# The function, the obvious one, and values at which a bucket begins or something wraps.
FOLDS: dict[str, tuple[fold.Fold, Callable[[list[int]], Any], list[int]]] = {
    "count": (fold.COUNT, len, []),
    "sum": (fold.SUM, lambda values: wrapped(sum(values)), []),
    "min": (fold.MIN, lambda values: min(values, default=INT64_MAX), []),
    "max": (fold.MAX, lambda values: max(values, default=INT64_MIN), []),
    "avg": (fold.AVG, lambda values: towards_zero(wrapped(sum(values)), len(values)) if values else 0, []),
    "stddev": (fold.STDDEV, slow_stddev, [1 << 31, 1 << 32, (1 << 32) - 1]),
    "variance": (fold.VARIANCE, slow_variance, [1 << 31, 1 << 32, (1 << 32) - 1]),
    "quantize": (fold.QUANTIZE, slow_quantize, [sign << power for power in range(63) for sign in (1, -1)]),
    "hist_log": (fold.Buckets(HistLog()), slow_hist_log, [sign << power for power in range(63) for sign in (1, -1)]),
    "lquantize": (fold.lquantize(-50, 1000, 70), slow_ranges(list(range(-50, 1001, 70))), list(range(-50, 1001, 70))),
    "lquantize by one": (fold.lquantize(3, 7), slow_ranges([3, 4, 5, 6, 7]), [3, 4, 5, 6, 7]),
    "llquantize": (fold.llquantize(10, 1, 3, 10), slow_ranges(TENS), TENS),
    "llquantize by twenty": (fold.llquantize(10, 0, 2, 20), slow_ranges(TWENTIETHS), TWENTIETHS),
    "hist_linear": (fold.Buckets(HistLinear(-7, 100, 9)), slow_ranges(list(range(-7, 103, 9))),
                    list(range(-7, 103, 9))),
}


def numbers(edges: list[int]) -> st.SearchStrategy[int]:
    """Integers of 64 bits, the extremes and the neighbours of every edge often among them."""
    odd = [INT64_MIN, INT64_MIN + 1, -1, 0, 1, INT64_MAX, INT64_MAX - 1]
    near = [edge + off for edge in edges for off in (-1, 0, 1)]
    return st.one_of(st.integers(INT64_MIN, INT64_MAX), st.integers(-2000, 2000), st.sampled_from([*odd, *near]))


def as_plain(result: Any) -> Any:
    return result.tolist() if isinstance(result, np.ndarray) else result


@pytest.mark.parametrize("name", FOLDS)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_function_equals_the_obvious_one(name: str, data: st.DataObject) -> None:
    function, obvious, edges = FOLDS[name]
    values = data.draw(st.lists(numbers(edges), max_size=40))
    state = function.empty()
    function.add(state, np.array(values, dtype=np.int64))
    assert as_plain(function.result(state)) == obvious(values)


@pytest.mark.parametrize("name", FOLDS)
def test_every_edge_of_a_bucket_is_on_the_right_side(name: str) -> None:
    function, obvious, edges = FOLDS[name]
    for value in {edge + off for edge in [*edges, 0, INT64_MIN + 1, INT64_MAX - 1] for off in (-1, 0, 1)}:
        state = function.empty()
        function.add(state, [value])
        assert as_plain(function.result(state)) == obvious([value]), value


@pytest.mark.parametrize("name", FOLDS)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_parts_merge_to_the_words_of_the_whole(name: str, data: st.DataObject) -> None:
    function, _, edges = FOLDS[name]
    parts = data.draw(st.lists(st.lists(numbers(edges), max_size=8), min_size=1, max_size=5))
    whole, merged = function.empty(), function.empty()
    function.add(whole, np.array([value for part in parts for value in part], dtype=np.int64))
    for part in parts:
        state = function.empty()
        function.add(state, np.array(part, dtype=np.int64))
        function.merge(merged, state)
    assert merged.tolist() == whole.tolist()


@pytest.mark.parametrize("name", FOLDS)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_grouped_values_are_what_each_group_is_alone(name: str, data: st.DataObject) -> None:
    function, obvious, edges = FOLDS[name]
    rows = data.draw(st.lists(st.tuples(st.integers(0, 3), numbers(edges)), max_size=30))
    states = function.empty_states(4)
    function.add_grouped(states, np.array([row for row, _ in rows], dtype=np.int64),
                         np.array([value for _, value in rows], dtype=np.int64))
    for group in range(4):
        assert as_plain(function.result(states[group])) == obvious([value for row, value in rows if row == group])


# What DTrace stores, word for word. The high half of stddev's squares comes first.
WORDS = (
    (fold.COUNT, [5, -5, 0], [3]),
    (fold.SUM, [5, -6], [(1 << 64) - 1]),
    (fold.SUM, [INT64_MAX, 1], [1 << 63]),
    (fold.SUM, [INT64_MIN, INT64_MIN], [0]),
    (fold.MIN, [], [INT64_MAX]),
    (fold.MAX, [], [1 << 63]),
    (fold.MIN, [3, -4], [(1 << 64) - 4]),
    (fold.AVG, [INT64_MAX, INT64_MAX, 4], [3, 2]),
    (fold.STDDEV, [-3, 4], [2, 1, 0, 25]),
    (fold.STDDEV, [1 << 40, -(1 << 40)], [2, 0, 1 << 17, 0]),
    (fold.STDDEV, [INT64_MIN] * 3, [3, 1 << 63, 3 << 62, 0]),
    (fold.STDDEV, [INT64_MIN] * 4, [4, 0, 0, 0]),
    (fold.STDDEV, [(1 << 32) - 1] * 3, [3, 3 * ((1 << 32) - 1), 2, (3 * ((1 << 32) - 1) ** 2) % (1 << 64)]),
    (fold.lquantize(-1, 5, 2), [-2, -1, 0, 1, 4, 5], [0x0002_0003_FFFF_FFFF, 1, 2, 1, 1, 1]),
    (fold.lquantize(0, 10, 3), [9, 8], [0x0003_0003_0000_0000, 0, 0, 0, 1, 1]),
    (fold.llquantize(2, 1, 2, 2), [1, 2, 3, 4, 7, 8], [0x0002_0001_0002_0002, 1, 2, 2, 1]),
)


@pytest.mark.parametrize(("function", "values", "words"), WORDS, ids=lambda value: str(value)[:30])
def test_the_words_are_those_of_dtrace(function: fold.Fold, values: list[int], words: list[int]) -> None:
    state = function.empty()
    function.add(state, values)
    assert state.dtype == np.uint64
    assert state.tolist() == words


def test_quantize_has_127_words_with_zero_in_the_middle() -> None:
    state = fold.QUANTIZE.empty()
    fold.QUANTIZE.add(state, [0, 0, 1, -1, INT64_MAX, INT64_MIN])
    assert len(state) == 127
    assert {i: int(state[i]) for i in np.flatnonzero(state)} == {0: 1, 62: 1, 63: 2, 64: 1, 126: 1}


@pytest.mark.parametrize(("factor", "magnitude", "steps", "buckets"), [
    (10, 0, 20, 9), (10, 1, 20, 18), (10, 4, 20, 18), (10, 0, 10, 9), (2, 3, 2, 1), (4, 2, 16, 12), (4, 0, 16, 3)])
def test_a_magnitude_has_the_documented_number_of_buckets(
    factor: int, magnitude: int, steps: int, buckets: int
) -> None:
    below, above = (factor**magnitude, factor ** (magnitude + 1))
    assert fold.llquantize(factor, magnitude, magnitude, steps).n_words == 1 + 1 + buckets + 1
    state = fold.llquantize(factor, magnitude, magnitude, steps).empty()
    fold.llquantize(factor, magnitude, magnitude, steps).add(state, list(range(below - 1, above + 1)))
    assert state[1] == state[-1] == 1
    assert set(state[2:-1].tolist()) == {(above - below) // buckets}


def test_unsigned_values_keep_their_bits() -> None:
    state = fold.SUM.empty()
    fold.SUM.add(state, np.array([(1 << 64) - 1, 3], dtype=np.uint64))
    assert fold.SUM.result(state) == 2


@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "u2", "i4", "u4", "i8"])
def test_values_of_any_width_count(dtype: str) -> None:
    state = fold.SUM.empty()
    fold.SUM.add(state, np.array([1, 2, 100], dtype=dtype)[::2])
    assert fold.SUM.result(state) == 101


@pytest.mark.parametrize("values", [[1.5], [[1, 2]], ["a"]])
def test_what_is_no_row_of_integers_is_refused(values: Any) -> None:
    with pytest.raises(AggregationError, match="integers"):
        fold.SUM.add(fold.SUM.empty(), values)


def test_states_that_are_not_in_one_piece_are_refused() -> None:
    states = np.zeros((4, 127), dtype=np.uint64)[::2]
    with pytest.raises(AggregationError, match="one piece"):
        fold.QUANTIZE.add_grouped(states, np.array([1]), np.array([5]))


def test_quantizations_with_other_arguments_do_not_merge() -> None:
    with pytest.raises(AggregationError, match="other arguments"):
        fold.lquantize(0, 10, 1).merge(fold.lquantize(0, 10, 1).empty(), fold.lquantize(1, 11, 1).empty())
