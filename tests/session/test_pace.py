"""When runtimes are looked at: often while programs are young, and seldom where there is nothing new."""

from __future__ import annotations

from itertools import pairwise

from collector.clock import NEVER_NS, NS_PER_MS
from collector.session.pace import COMPILING_NS, LONGEST_NS, LONGEST_YOUNG_NS, SHORTEST_NS, YOUNG_NS, Pace
from collector.session.schedule import DRAIN_PERIOD_NS

START_NS = 7_777 * NS_PER_MS


def looks(until_ns: int, *, is_new: bool, young_ns: int = YOUNG_NS) -> list[int]:
    """The ages at which a program is looked at whose first look is 30 ms behind its start."""
    pace, at_ns = Pace(START_NS, young_ns), 30 * NS_PER_MS
    found = []
    while at_ns < until_ns:
        found.append(at_ns)
        pace.looked(START_NS + at_ns, is_new=is_new)
        at_ns = pace.due_ns - START_NS
    return found


def test_the_first_look_is_due_at_once() -> None:
    assert Pace(START_NS).due_ns == 0


def test_the_end_leaves_a_fifth_of_a_life_at_most_without_a_look() -> None:
    ages = looks(YOUNG_NS, is_new=True)
    for before, behind in pairwise(ages):
        assert behind - before <= max(behind / 5 + 1, SHORTEST_NS)
        assert SHORTEST_NS <= behind - before <= LONGEST_YOUNG_NS


def test_a_program_of_three_seconds_is_looked_at_a_dozen_times() -> None:
    assert 10 <= len(looks(YOUNG_NS, is_new=True)) <= 14


def test_where_nothing_is_new_each_look_has_twice_the_time() -> None:
    ages = looks(20_000 * NS_PER_MS, is_new=False)
    periods = [behind - before for before, behind in pairwise(ages)]
    assert periods[:4] == [2 * SHORTEST_NS, 4 * SHORTEST_NS, 8 * SHORTEST_NS, 16 * SHORTEST_NS]
    assert set(periods[4:]) == {LONGEST_NS}


def test_an_old_program_is_looked_at_seldom_whatever_is_new() -> None:
    ages = looks(20_000 * NS_PER_MS, is_new=True)
    assert ages[-1] - ages[-2] == LONGEST_NS


def test_what_goes_on_to_be_compiled_is_looked_at_until_drains_come_as_often() -> None:
    ages = looks(COMPILING_NS, is_new=True, young_ns=COMPILING_NS)
    periods = [behind - before for before, behind in pairwise(ages)]
    assert periods == sorted(periods)
    for before, period in zip(ages, periods, strict=False):
        assert period <= max(before / 8, LONGEST_YOUNG_NS)
    assert 0.8 * DRAIN_PERIOD_NS < periods[-1] <= DRAIN_PERIOD_NS


def test_code_that_is_never_looked_at_is_a_64th_of_a_life() -> None:
    age_ns, ages = 30 * NS_PER_MS, []
    while (due_ns := Pace(START_NS, COMPILING_NS).code_due_ns(START_NS + age_ns)) != NEVER_NS:
        ages.append(age_ns)
        age_ns = due_ns - START_NS
    periods = [behind - before for before, behind in pairwise(ages)]
    for before, period in zip(ages, periods, strict=False):
        assert max(before // 64, SHORTEST_NS) == period
    assert 0.95 * DRAIN_PERIOD_NS < periods[-1] < DRAIN_PERIOD_NS
