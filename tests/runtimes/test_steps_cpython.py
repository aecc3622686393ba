"""To which instruction of CPython words of stacks belong."""

from __future__ import annotations

import random

from collector.runtimes.steps_cpython import Steps

CODE, FIRST, SECOND, END = 1, 20, 28, 36  # two instructions with three caches each, each the last of its line
STARTS = [0, 16, SECOND, END]


def steps(looks: dict[int, int], words: dict[int, int]) -> Steps:
    """With so many looks and words at offsets."""
    told = Steps()
    for offset, n in looks.items():
        told.met([(CODE, offset)] * n)
    for offset, n in words.items():
        told.led(CODE, offset, n)
    return told


def test_a_word_on_one_line_is_that_line_s() -> None:
    told = steps({}, {SECOND + 2: 5})
    assert told.is_behind(CODE, SECOND + 2, STARTS)
    assert not told.is_behind(CODE, 0, STARTS)


def test_where_no_look_tells_a_word_lies_behind() -> None:
    assert steps({}, {SECOND: 5}).is_behind(CODE, SECOND, STARTS)


def test_a_word_belongs_to_what_looks_have_met() -> None:
    words = {SECOND: 100}
    assert steps({FIRST: 9}, words).is_behind(CODE, SECOND, STARTS)
    assert not steps({SECOND: 9}, words).is_behind(CODE, SECOND, STARTS)
    assert steps({SECOND: 9}, {END: 100}).is_behind(CODE, END, STARTS)


def test_of_two_instructions_with_words_behind_them_each_has_its_own() -> None:
    for n_first in (30, 70):
        told = steps({FIRST: n_first, SECOND: 100 - n_first}, {SECOND: 10 * n_first, END: 1000 - 10 * n_first})
        assert told.is_behind(CODE, SECOND, STARTS)
        assert told.is_behind(CODE, END, STARTS)


def test_of_two_instructions_with_words_at_them_each_has_its_own() -> None:
    for n_first in (30, 70):
        told = steps({FIRST: n_first, SECOND: 100 - n_first}, {FIRST: 10 * n_first, SECOND: 1000 - 10 * n_first})
        assert not told.is_behind(CODE, SECOND, STARTS)


def test_what_is_forgotten_tells_nothing() -> None:
    told = steps({SECOND: 9}, {SECOND: 100})
    told.forget([CODE + 1])
    assert not told.is_behind(CODE, SECOND, STARTS)
    told.forget([CODE])
    assert told.is_behind(CODE, SECOND, STARTS)


def test_words_where_no_look_ever_is_are_old() -> None:
    words = {4: 70, SECOND: 30}
    assert steps({SECOND: 12}, words).is_old(CODE, 4)
    assert not steps({SECOND: 12}, words).is_old(CODE, SECOND)
    assert not steps({SECOND: 8}, words).is_old(CODE, 4)  # they may have missed it
    assert not steps({0: 8, SECOND: 4}, words).is_old(CODE, 4)


def test_words_are_hardly_ever_old_by_chance() -> None:
    drawn, words = random.Random(1), {FIRST: 1000, SECOND: 1000}
    n_old = 0
    for _ in range(2000):
        told = steps({}, words)
        for _ in range(30):
            told.met([(CODE, drawn.choice((FIRST, SECOND)))])
            if told.is_old(CODE, FIRST):
                n_old += 1
                break
    assert n_old <= 4
