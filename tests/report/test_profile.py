"""The neutral tables against what their definitions say, stack by stack."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from collector.report import profile
from collector.report.profile import ROOT, Weighted

N_OBJECTS = 7
N_STATES = 3
STACKS = st.lists(st.tuples(st.lists(st.integers(0, N_OBJECTS - 1), max_size=9),
                            st.lists(st.integers(0, 10**12), min_size=N_STATES, max_size=N_STATES)), max_size=23)


def weighted(stacks: list[tuple[list[int], list[int]]]) -> Weighted:
    """The same as arrays."""
    offsets = np.cumsum([0, *(len(objects) for objects, _ in stacks)])
    objects = np.array([one for objects, _ in stacks for one in objects], np.int64)
    weights = np.array([weights for _, weights in stacks], np.int64).reshape(len(stacks), N_STATES)
    return Weighted(offsets.astype(np.int64), objects, weights, N_OBJECTS)


@given(STACKS)
def test_exclusive_inclusive_and_total_add_up_what_the_stacks_say(stacks: list[tuple[list[int], list[int]]]) -> None:
    own, inclusive = np.zeros((2, N_OBJECTS, N_STATES), np.int64)
    for objects, weights in stacks:
        for one in set(objects):
            inclusive[one] += weights
        if objects:
            own[objects[0]] += weights
    found = weighted(stacks)
    assert np.array_equal(profile.exclusive(found), own)
    assert np.array_equal(profile.inclusive(found), inclusive)
    assert profile.total(found).tolist() == [sum(w[i] for _, w in stacks) for i in range(N_STATES)]
    assert profile.present(found).tolist() == sorted({one for objects, _ in stacks for one in objects})


@given(STACKS)
def test_the_tree_has_one_node_per_path_and_its_weight(stacks: list[tuple[list[int], list[int]]]) -> None:
    expected: dict[tuple[int, ...], list[int]] = defaultdict(lambda: [0] * N_STATES)
    for objects, weights in stacks:
        path = tuple(objects[::-1])
        for depth in range(1, len(path) + 1):
            expected[path[:depth]] = [a + b for a, b in zip(expected[path[:depth]], weights, strict=True)]
    tree = profile.tree(weighted(stacks))
    paths: list[tuple[int, ...]] = []
    for parent, one in zip(tree.parent.tolist(), tree.object.tolist(), strict=True):
        paths.append((*(paths[parent] if parent != ROOT else ()), one))
    assert dict(zip(paths, tree.weights.tolist(), strict=True)) == expected
    assert len(set(paths)) == len(paths)


@given(STACKS)
def test_callers_and_callees_are_those_of_the_innermost_occurrence(
        stacks: list[tuple[list[int], list[int]]]) -> None:
    callers: dict[tuple[int, int], list[int]] = defaultdict(lambda: [0] * N_STATES)
    callees: dict[tuple[int, int], list[int]] = defaultdict(lambda: [0] * N_STATES)
    for objects, weights in stacks:
        for at, one in enumerate(objects):
            counts = [w * (at == objects.index(one)) for w in weights]
            above = objects[at + 1] if at + 1 < len(objects) else ROOT
            callers[above, one] = [a + b for a, b in zip(callers[above, one], counts, strict=True)]
            if at:
                below = objects[at - 1]
                callees[one, below] = [a + b for a, b in zip(callees[one, below], counts, strict=True)]
    for found, expected in zip(profile.pairs(weighted(stacks)), (callers, callees), strict=True):
        keys = zip(found.caller.tolist(), found.callee.tolist(), strict=True)
        assert dict(zip(keys, found.weights.tolist(), strict=True)) == expected


@given(STACKS)
def test_callers_give_an_object_all_that_it_has(stacks: list[tuple[list[int], list[int]]]) -> None:
    found = weighted(stacks)
    callers, callees = profile.pairs(found)
    given, taken = np.zeros((2, N_OBJECTS, N_STATES), np.int64)
    np.add.at(given, callers.callee, callers.weights)
    np.add.at(taken, callees.caller, callees.weights)
    assert np.array_equal(given, profile.inclusive(found))
    assert np.array_equal(taken + profile.exclusive(found), profile.inclusive(found))


@given(STACKS)
def test_merging_equal_stacks_changes_no_table(stacks: list[tuple[list[int], list[int]]]) -> None:
    found = weighted(stacks)
    merged = profile.merge_equal(found)
    assert len(merged) == len({tuple(objects) for objects, _ in stacks})
    assert np.array_equal(profile.inclusive(merged), profile.inclusive(found))
    assert np.array_equal(profile.total(merged), profile.total(found))
    assert profile.tree(merged).weights.tolist() == profile.tree(found).weights.tolist()


def test_a_recursion_of_8001_frames() -> None:
    found = weighted([([1] * 8000 + [0], [5, 7, 11])])
    tree = profile.tree(found)
    assert len(tree.object) == 8001
    assert tree.weights[8000].tolist() == [5, 7, 11]
    assert profile.inclusive(found)[1].tolist() == [5, 7, 11]


def test_stacks_of_more_objects_and_larger_weights_than_are_added_at_once() -> None:
    n_objects, largest = (1 << 20) + 7, (1 << 53) + 1
    found = Weighted(np.array([0, 3, 5, 5]), np.array([n_objects - 1, 5, 5, 5, n_objects - 1], np.int32),
                     np.array([[largest, 2], [2, 3], [1, 0]]), n_objects)
    sums = profile.inclusive(found)
    assert sums[5].tolist() == sums[n_objects - 1].tolist() == [largest + 2, 5]
    assert sums.sum(axis=0).tolist() == [2 * (largest + 2), 10]
    assert profile.exclusive(found)[[5, n_objects - 1]].tolist() == [[2, 3], [largest, 2]]
