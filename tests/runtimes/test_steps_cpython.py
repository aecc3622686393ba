"""To which instruction of CPython words of stacks belong."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from collector.runtimes.steps_cpython import Steps

CODE, FIRST, SECOND, END = 1, 20, 28, 36  # two instructions with three caches each, each the last of its line
STARTS = [0, 16, SECOND, END]


def steps(looks: dict[int, int], words: dict[int, float], left: Iterable[int] = ()) -> Steps:
    """With so many looks, and words that so many would come at, at offsets; at some threads have left their CPUs."""
    told = Steps()
    for offset, n in looks.items():
        told.met([(CODE, offset)] * n)
    for offset, n_looks in words.items():
        told.led(CODE, offset, n_looks)
    for offset in left:
        told.led(CODE, offset, 0, True)
    return told


def test_a_word_on_one_line_is_that_line_s() -> None:
    told = steps({}, {SECOND + 2: 5})
    assert told.is_behind(CODE, SECOND + 2, STARTS)
    assert not told.is_behind(CODE, 0, STARTS)


def test_where_no_look_tells_a_word_lies_behind() -> None:
    assert steps({}, {SECOND: 5}).is_behind(CODE, SECOND, STARTS)


def test_a_word_belongs_to_what_looks_have_met() -> None:
    words = {SECOND: 9.0}
    assert steps({FIRST: 9}, words).is_behind(CODE, SECOND, STARTS)
    assert not steps({SECOND: 9}, words).is_behind(CODE, SECOND, STARTS)
    assert steps({SECOND: 9}, {END: 9}).is_behind(CODE, END, STARTS)


@pytest.mark.parametrize("n_first", [30, 50, 70])
@pytest.mark.parametrize("part", [0.5, 1, 2])  # of the looks that would have to come; others fail, or are at the end
def test_of_two_instructions_with_words_behind_them_each_has_its_own(n_first: int, part: float) -> None:
    told = steps({FIRST: n_first, SECOND: 100 - n_first}, {SECOND: n_first / part, END: (100 - n_first) / part})
    assert told.is_behind(CODE, SECOND, STARTS)
    assert told.is_behind(CODE, END, STARTS)


@pytest.mark.parametrize("n_first", [30, 50, 70])
@pytest.mark.parametrize("part", [0.5, 1, 2])
def test_of_two_instructions_with_words_at_them_each_has_its_own(n_first: int, part: float) -> None:
    told = steps({FIRST: n_first, SECOND: 100 - n_first}, {FIRST: n_first / part, SECOND: (100 - n_first) / part})
    assert not told.is_behind(CODE, SECOND, STARTS)


def test_of_two_calls_on_a_line_the_second_one_has_the_words_behind_both() -> None:
    before = FIRST - 8
    told = steps({before: 10, FIRST: 10}, {FIRST: 10, SECOND: 10})
    assert told.is_behind(CODE, SECOND, [0, before, SECOND, END])


def test_of_an_instruction_in_two_parts_the_looks_at_both_count() -> None:
    """PRECALL and CALL: most looks meet the first one, words lie behind the second one, or behind the first."""
    second, behind = FIRST + 4, FIRST + 6
    told = steps({FIRST: 8, second: 1, SECOND: 9, SECOND + 4: 1}, {behind: 0.7, SECOND: 8.3, SECOND + 6: 0.8, END: 8.2})
    assert told.is_behind(CODE, SECOND, STARTS)


def test_an_instruction_may_have_words_behind_it_and_there_as_well() -> None:
    left = FIRST, SECOND, END
    told = steps({FIRST: 14, SECOND: 11}, {FIRST: 3, SECOND: 1.4, END: 3}, left)
    assert told.is_behind(CODE, SECOND, STARTS)


def test_where_others_want_the_cpu_words_are_told_by_the_share_of_looks() -> None:
    """A thread that waits for its CPU has more looks than its clock samples stand for, wherever it is."""
    left = FIRST, SECOND, END
    assert not steps({FIRST: 90, SECOND: 30}, {FIRST: 30, SECOND: 10, END: 0.2}, left).is_behind(CODE, SECOND, STARTS)
    assert steps({FIRST: 90, SECOND: 30}, {FIRST: 0.2, SECOND: 30, END: 10}, left).is_behind(CODE, SECOND, STARTS)


@pytest.mark.parametrize("share", [0.1, 0.3, 0.7, 0.9])
def test_a_few_looks_tell_to_which_of_two_lines_words_belong(share: float) -> None:
    drawn = random.Random(7)
    n_wrong = 0
    for _ in range(500):
        n_first = sum(drawn.random() < share for _ in range(8))
        looks, words = {FIRST: n_first, SECOND: 8 - n_first}, (8 * share, 8 * (1 - share))
        n_wrong += steps(looks, dict(zip((FIRST, SECOND), words, strict=True))).is_behind(CODE, SECOND, STARTS)
        n_wrong += not steps(looks, dict(zip((SECOND, END), words, strict=True))).is_behind(CODE, SECOND, STARTS)
    assert n_wrong <= 20  # of 1000


def test_looks_that_were_closer_in_another_phase_do_not_mislead() -> None:
    """Ten seconds of one line with a look every 50 ms, then ten of the next one with a look every 0.7 s: each has a
    thousand words, at the instruction or behind it."""
    looks, n_looks = {FIRST: 200, SECOND: 15}, (1000 * 0.01 / 0.05, 1000 * 0.01 / 0.7)
    assert not steps(looks, dict(zip((FIRST, SECOND), n_looks, strict=True))).is_behind(CODE, SECOND, STARTS)
    assert steps(looks, dict(zip((SECOND, END), n_looks, strict=True))).is_behind(CODE, SECOND, STARTS)


def test_words_of_sleeps_have_the_looks_that_meet_these() -> None:
    """However many there are: of two lines one computes and one sleeps."""
    looks = {FIRST: 5, SECOND: 100}
    assert not steps(looks, {FIRST: 5, SECOND: 0.2}, [SECOND]).is_behind(CODE, SECOND, STARTS)
    told = steps(looks, {SECOND: 5, END: 0.2}, [END])
    assert told.is_behind(CODE, SECOND, STARTS)
    assert told.is_behind(CODE, END, STARTS)
    looks = {FIRST: 100, SECOND: 5}
    assert not steps(looks, {FIRST: 0.2, SECOND: 5}, [FIRST]).is_behind(CODE, SECOND, STARTS)
    assert steps(looks, {SECOND: 0.2, END: 5}, [SECOND]).is_behind(CODE, SECOND, STARTS)


def test_what_is_forgotten_tells_nothing() -> None:
    told = steps({SECOND: 9}, {SECOND: 9})
    told.forget([CODE + 1])
    assert not told.is_behind(CODE, SECOND, STARTS)
    told.forget([CODE])
    assert told.is_behind(CODE, SECOND, STARTS)


def test_words_where_no_look_ever_is_are_old() -> None:
    words = {4: 8.4, SECOND: 3.6}
    assert steps({SECOND: 12}, words).is_old(CODE, 4)
    assert not steps({SECOND: 12}, words).is_old(CODE, SECOND)
    assert not steps({SECOND: 8}, words).is_old(CODE, 4)  # they may have missed it
    assert not steps({0: 8, SECOND: 4}, words).is_old(CODE, 4)
    assert not steps({}, words).is_old(CODE, 4)  # looks at this code fail


def test_words_of_the_beginning_are_left_from_the_call_unless_a_look_has_met_that() -> None:
    assert steps({SECOND: 1}, {0: 1}).is_old(CODE, 0)
    assert not steps({0: 1, SECOND: 1}, {0: 1}).is_old(CODE, 0)
    assert not steps({SECOND: 1}, {FIRST: 1}).is_old(CODE, FIRST)


def test_words_are_hardly_ever_old_by_chance() -> None:
    drawn = random.Random(1)
    n_old = 0
    for _ in range(2000):
        told = steps({}, {})
        for _ in range(30):
            told.met([(CODE, drawn.choice((FIRST, SECOND)))])
            for offset in (FIRST, SECOND):
                told.led(CODE, offset, 0.5)
            if told.is_old(CODE, FIRST):
                n_old += 1
                break
    assert n_old <= 4


WORK, SLEEP = 80, 40


@pytest.mark.parametrize(("sleep_s", "work_s"), [(1, 0.01), (0.1, 0.005), (0.5, 0.1), (0.00005, 0.00095)])
def test_who_sleeps_and_computes_in_one_function_has_no_old_words(sleep_s: float, work_s: float) -> None:
    """A minute of it: two looks a second, a clock sample for 10 ms of work, and a word each time that it goes to
    sleep."""
    drawn, told = random.Random(5), Steps()
    share = work_s / (sleep_s + work_s)
    for _ in range(60):
        told.met([(CODE, WORK if drawn.random() < share else SLEEP) for _ in range(2)])
        told.led(CODE, SLEEP, 0, True)
        told.led(CODE, WORK, 100 * share * 0.01 / 0.5)
        assert not told.is_old(CODE, WORK)
        assert not told.is_old(CODE, SLEEP)
