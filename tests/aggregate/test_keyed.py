"""Keys of every type, in any number and any batches, have the states that each would have alone."""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from collections.abc import Hashable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.aggregate import fold
from collector.aggregate.columns import Coded, Column, distinct_rows
from collector.aggregate.keyed import Keyed, PerCpu
from collector.errors import AggregationError

FUNCTIONS = (fold.COUNT, fold.SUM, fold.MIN, fold.MAX, fold.AVG, fold.STDDEV, fold.QUANTIZE, fold.lquantize(0, 90, 10))


def words(aggregation: Keyed) -> dict[tuple[Hashable, ...], list[int]]:
    return {key: state.tolist() for key, state in aggregation.states()}


def slow(function: fold.Fold, rows: list[tuple[tuple[Hashable, ...], int]]) -> dict[tuple[Hashable, ...], list[int]]:
    """One function for each key, one value after the other."""
    states: dict[tuple[Hashable, ...], Any] = defaultdict(function.empty)
    for key, value in rows:
        function.add(states[key], [value])
    return {key: state.tolist() for key, state in states.items()}


NAMES = ("redis-server", "", "kworker/0:1", "x")
STACKS = ((), (0x401000,), (0x401000, 0x7F00_1234_5678))


def columns_of(rows: list[tuple[int, int, int, int]]) -> list[Column]:
    """A sparse integer, a name in a table, a fixed-length string, a stack with its ending 0."""
    numbers, names, texts, stacks = ([row[i] for row in rows] for i in range(4))
    return [
        np.array(numbers, dtype=np.int64),
        Coded(np.array(names, dtype=np.int32), NAMES, "?"),
        np.array([NAMES[text].encode() for text in texts], dtype="S16"),
        np.array([(STACKS[stack] + (0, 0, 0))[:3] for stack in stacks], dtype=np.uint64).reshape(-1, 3),
    ]


def key_of(row: tuple[int, int, int, int]) -> tuple[Hashable, ...]:
    return (row[0], "?" if row[1] < 0 else NAMES[row[1]], NAMES[row[2]].encode(), STACKS[row[3]])


ROWS = st.lists(st.tuples(st.sampled_from([-(1 << 63), (1 << 63) - 1, 0, 7, 8]), st.integers(-1, 3),
                          st.integers(0, 3), st.integers(0, 2), st.integers(-1000, 1000)), max_size=40)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.name)
@settings(max_examples=40, deadline=None)
@given(rows=ROWS, cut=st.integers(0, 40))
def test_batches_of_keys_equal_one_function_for_each_key(
    function: fold.Fold, rows: list[tuple[int, int, int, int, int]], cut: int
) -> None:
    aggregation = Keyed(function)
    for batch in (rows[:cut], rows[cut:]):
        aggregation.add(columns_of([row[:4] for row in batch]), np.array([row[4] for row in batch], dtype=np.int64))
    assert words(aggregation) == slow(function, [(key_of(row[:4]), row[4]) for row in rows])


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.name)
@settings(max_examples=40, deadline=None)
@given(rows=ROWS, cpus=st.lists(st.integers(0, 3), min_size=40, max_size=40))
def test_cpus_merge_to_what_one_would_have(
    function: fold.Fold, rows: list[tuple[int, int, int, int, int]], cpus: list[int]
) -> None:
    parts = PerCpu(function)
    for row, cpu in zip(rows, cpus, strict=False):
        parts.on(cpu).add(columns_of([row[:4]]), [row[4]])
    assert words(parts.merged()) == slow(function, [(key_of(row[:4]), row[4]) for row in rows])


CLOSE = st.lists(st.tuples(st.sampled_from([-300, 0, 7, 8, 250, 70_000]), st.integers(-1, 3), st.integers(0, 3),
                           st.integers(-1000, 1000)), max_size=60)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.name)
@settings(max_examples=40, deadline=None)
@given(batches=st.lists(CLOSE, max_size=5), order=st.permutations(range(4)))
def test_keys_that_come_again_have_the_row_that_they_had(
    function: fold.Fold, batches: list[list[tuple[int, int, int, int]]], order: list[int]
) -> None:
    """Integers, codes of a table that stays and of one that every batch has anew; in some of which they are narrow."""
    aggregation, expected = Keyed(function), []
    for turn, batch in enumerate(batches):
        table = [NAMES[place] for place in (order if turn % 2 else range(4))]
        numbers, fixed, names = (np.array([row[i] for row in batch], dtype=np.int64) for i in range(3))
        codes = np.array([table.index(NAMES[name]) for name in names], dtype=np.int8)
        aggregation.add([numbers, Coded(fixed.astype(np.int16), NAMES, "?"), Coded(codes, table)],
                        np.array([row[3] for row in batch], dtype=np.int64))
        expected += [((row[0], "?" if row[1] < 0 else NAMES[row[1]], NAMES[row[2]]), row[3]) for row in batch]
    assert words(aggregation) == slow(function, expected)


def test_a_key_is_the_same_whatever_columns_it_comes_in() -> None:
    forms: tuple[Column, ...] = (
        np.array([5, 7, 5]), np.array([5, 7, 5], dtype=np.int8), np.array([5, 7, 5], dtype=np.uint64),
        Coded(np.array([1, 0, 1]), [7, 5]), Coded(np.array([0, 1, 0]), (5, 7)), Coded(np.array([1, 0, 1]), (7, 5)),
        Coded(np.array([5, 7, 5], dtype=np.uint8), range(9)), np.array([[5], [7], [5]]))
    for first in forms:
        aggregation = Keyed(fold.SUM)
        for column in (first, *forms, first):
            aggregation.add([column], [1, 10, 100])
        keys = {key if isinstance(key[0], int) else key[0] for key in aggregation}
        assert keys == {(5,), (7,)}
        n = len(forms) + 2
        assert sum(aggregation[key] for key in aggregation) == 111 * n
        assert aggregation[5,] == 101 * (n - 1 - (first is forms[-1]) * 2)


def test_numbers_that_go_on_growing_are_keys() -> None:
    """As TIDs do while threads come and go."""
    aggregation, n_each = Keyed(fold.COUNT), 100
    for begin in range(0, 30_000, 700):
        aggregation.add([np.repeat(np.arange(begin, begin + 1000), n_each), np.zeros(1000 * n_each, dtype=np.int32)],
                        np.ones(1000 * n_each, dtype=np.int64))
    assert len(aggregation) == 29_400 + 1000
    assert aggregation[0, 0] == n_each
    assert aggregation[700, 0] == aggregation[999, 0] == 2 * n_each


@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"])
def test_integers_of_every_width_are_keys(dtype: str) -> None:
    limits = np.iinfo(np.dtype(dtype))
    keys = [limits.min, limits.max, 1, limits.max, 0]
    aggregation = Keyed(fold.COUNT)
    aggregation.add([np.array(keys, dtype=dtype)], [1] * 5)
    assert {key: aggregation[key] for key in aggregation} == {
        (key,): keys.count(key) for key in keys}


@pytest.mark.parametrize("texts", [["a", "bb", "a"], ["žluť", "", "žluť"], ["exactly8", "exactly9!", "exactly8"]])
def test_strings_are_keys(texts: list[str]) -> None:
    as_bytes = [text.encode() for text in texts]
    for column, back in ((np.array(texts), texts), (np.array(as_bytes), as_bytes)):
        aggregation = Keyed(fold.COUNT)
        aggregation.add([column], [1] * 3)
        assert {key: aggregation[key] for key in aggregation} == {(back[0],): 2, (back[1],): 1}


def test_a_narrow_column_has_keys_farther_apart_than_its_type_reaches() -> None:
    keys = np.arange(-128, 101, dtype=np.int8)
    aggregation = Keyed(fold.COUNT)
    aggregation.add([keys], keys)
    assert sorted(aggregation) == [(key,) for key in range(-128, 101)]


def test_names_are_the_same_key_wherever_their_table_has_them() -> None:
    aggregation = Keyed(fold.SUM)
    aggregation.add([Coded(np.array([0, 1, 2]), ["a", "b", "a"])], [1, 10, 100])
    aggregation.add([Coded(np.array([0]), ["b"])], [1000])
    assert {key: aggregation[key] for key in aggregation} == {("a",): 101, ("b",): 1010}


def test_without_keys_there_is_one_state() -> None:
    aggregation = Keyed(fold.SUM)
    aggregation.add([], [])
    assert len(aggregation) == 0
    aggregation.add([], [3, 4])
    aggregation.add([], [5])
    assert words(aggregation) == {(): [12]}


def test_many_keys_in_a_batch() -> None:
    keys = np.arange(100_003) * 7919 % 5003
    values = np.arange(100_003)
    aggregation = Keyed(fold.SUM)
    aggregation.add([keys, keys % 3], values)
    assert len(aggregation) == 5003
    assert aggregation[(17, 2)] == int(values[keys == 17].sum())


def test_numbers_of_rows_stay_small_when_columns_have_many_values() -> None:
    n = 1000
    columns = [np.arange(n) << 40, np.arange(n) << 40, np.arange(n) << 40, np.arange(n) << 40]
    number, rows = distinct_rows(columns)
    assert sorted(number.tolist()) == list(range(n))
    assert (columns[0][rows[number]] == columns[0]).all()


@settings(max_examples=20, deadline=None)
@given(function=st.sampled_from(FUNCTIONS), batches=st.lists(CLOSE, max_size=4), room=st.integers(1, 5))
def test_where_there_is_no_room_keys_are_dropped_and_counted(
    function: fold.Fold, batches: list[list[tuple[int, int, int, int]]], room: int
) -> None:
    """Be they found by their places (two columns) or one by one (with a stack)."""
    for more in (False, True):
        bounded, free = Keyed(function, room), Keyed(function)
        for batch in batches:
            numbers, names, stacks = (np.array([row[i] for row in batch], dtype=np.int64) for i in range(3))
            keys: list[Column] = [numbers, Coded(names, NAMES, "?"), *([stacks.reshape(-1, 1)] if more else [])]
            for keyed in (bounded, free):
                keyed.add(keys, np.array([row[3] for row in batch], dtype=np.int64))
        kept = words(bounded)
        assert len(kept) == min(room, len(free))
        assert kept == {key: state for key, state in words(free).items() if key in kept}
        assert bounded.n_dropped == _n_values(batches, more) - _n_values(batches, more, set(kept))


def test_names_that_have_no_room_take_no_memory() -> None:
    """A table of names in use, in which others come all the time."""
    keyed, table, n, n_batches = Keyed(fold.COUNT, 101), list[Hashable](), 67, 211
    for turn in range(n_batches):
        table[:] = [b"name-%d" % (turn * n + i) for i in range(n)]
        keyed.add([Coded(np.arange(n), table)], np.zeros(n, dtype=np.int64))
        table[:] = [b"name-0", b"name-100"]
        keyed.add([Coded(np.array([0, 1, 1]), table)], np.zeros(3, dtype=np.int64))
    assert (len(keyed), keyed[b"name-0",], keyed[b"name-100",]) == (101, 1 + n_batches, 1 + 2 * n_batches)
    assert keyed.n_dropped == n_batches * n - 101
    assert len(keyed._places._numbers[0]) <= 16 * n


def _n_values(batches: list[list[tuple[int, int, int, int]]], more: bool, only: set[Any] | None = None) -> int:
    keys = [(row[0], "?" if row[1] < 0 else NAMES[row[1]], *([(row[2],) if row[2] else ()] if more else []))
            for batch in batches for row in batch]
    return sum(only is None or key in only for key in keys)


def test_a_deleted_key_leaves_room_and_merging_takes_all() -> None:
    keyed = Keyed(fold.COUNT, 2)
    keyed.add([np.array([1, 2, 3])], [0, 0, 0])
    assert (list(keyed), keyed.n_dropped) == ([(1,), (2,)], 1)
    keyed.delete([(1,)])
    keyed.add([np.array([3])], [0])
    keyed.add([np.array([1, 1])], [0, 0])
    assert (words(keyed), keyed.n_dropped) == ({(2,): [1], (3,): [1]}, 3)
    whole = Keyed(fold.COUNT)
    for _ in range(2):
        whole.merge(keyed)
    assert (words(whole), whole.n_dropped) == ({(2,): [2], (3,): [2]}, 6)


def test_clearing_keeps_the_keys_and_deleting_does_not() -> None:
    aggregation = Keyed(fold.MIN)
    aggregation.add([np.array([1, 2, 3])], [10, 20, 30])
    aggregation.delete([(2,)])
    assert words(aggregation) == {(1,): [10], (3,): [30]}
    aggregation.clear()
    assert words(aggregation) == {(1,): [(1 << 63) - 1], (3,): [(1 << 63) - 1]}
    aggregation.add([np.array([3, 2])], [7, 8])
    assert aggregation[(3,)] == 7 and aggregation[(2,)] == 8


def test_merging_leaves_the_other_as_it_was() -> None:
    one, other = Keyed(fold.COUNT), Keyed(fold.COUNT)
    for part, keys in ((one, [1, 2]), (other, [2, 3, 3])):
        part.add([np.array(keys)], [0] * len(keys))
    one.merge(other)
    assert words(one) == {(1,): [1], (2,): [2], (3,): [2]}
    assert words(other) == {(2,): [1], (3,): [2]}


@pytest.mark.parametrize("other", [fold.SUM, fold.lquantize(0, 10, 2), fold.lquantize(1, 11, 1)])
def test_other_functions_do_not_merge(other: fold.Fold) -> None:
    whole, part = Keyed(fold.lquantize(0, 10, 1)), Keyed(other)
    part.add([], [1])
    with pytest.raises(AggregationError, match="merged into"):
        whole.merge(part)


def test_columns_of_another_length_are_refused() -> None:
    with pytest.raises(AggregationError, match="2 values have keys, but a column has 3"):
        Keyed(fold.SUM).add([np.array([1, 2, 3])], [1, 2])


def test_columns_of_objects_are_refused() -> None:
    with pytest.raises(AggregationError, match="is no key"):
        Keyed(fold.SUM).add([np.array([None, 2], dtype=object)], [1, 2])


FAULTS = """
import resource
import numpy as np
from collector.aggregate.fold import QUANTIZE
from collector.aggregate.keyed import Keyed

aggregation, faults = Keyed(QUANTIZE), []
keys, values = np.arange(100_000, dtype=np.int32) % 300, np.arange(100_000) * 997
for _ in range(23):
    aggregation.add([keys], values)
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
print(faults[-1] - faults[2])
"""


def test_a_batch_works_in_the_memory_of_the_one_before() -> None:
    result = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True)
    # Its arrays have 196 pages each; 20 batches faulted in 22,800 when they were given back in between.
    assert int(result.stdout) < 20 * 196
