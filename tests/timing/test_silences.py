"""When CPUs were stolen from threads that ran: in silences of their clocks, and for the rest here and there."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.timing.silences import NO_STRIKES, Runs, Stolen, Strikes, at_ends, stolen
from collector.timing.timeline import moments_of

MS = 1_000_000
INTERVAL_NS = 10 * MS


def runs(*rows: tuple[float, float, float, float]) -> Runs:
    """Runs (slot, start, end, group) in ms."""
    slot, start_ms, end_ms, group = np.array(rows).T
    return Runs(*((column * unit).astype(np.int64) for column, unit in (
        (slot, 1), (start_ms, MS), (end_ms, MS), (group, 1))))


def strikes(*rows: tuple[int, float]) -> Strikes:
    """Those of slots at times in ms."""
    slot, time_ms = np.array(rows).T
    return Strikes(moments_of(slot.astype(np.int64), (time_ms * MS).astype(np.int64)), INTERVAL_NS)


def found(of: Runs, amounts_ms: list[float], struck: Strikes) -> list[tuple[int, float, float]]:
    """Run, and to the us from when to when."""
    told = stolen(of, (np.array(amounts_ms) * MS).astype(np.int64), struck)
    return [(run, round(start / MS, 3), round(end / MS, 3)) for run, start, end in zip(
        *(column.tolist() for column in told), strict=True)]


def test_a_clock_that_is_silent_tells_when_the_cpu_was_gone() -> None:
    one, struck = runs((0, 0, 100, 0)), strikes(*((0, at) for at in (10, 20, 47, 50, 60, 70, 86, 90)))
    assert found(one, [17], struck) == [(0, 30, 47)]
    assert found(one, [23], struck) == [(0, 30, 47), (0, 80, 86)]
    assert found(one, [5], struck) == [(0, 42, 47)]  # as it came back
    assert found(one, [0], struck) == []


def test_each_group_has_silences_of_its_own() -> None:
    both = runs((0, 0, 30, 1), (1, 0, 30, 0), (1, 31, 60, 0))
    struck = strikes((0, 10), (0, 26), (1, 10), (1, 20), (1, 40), (1, 58))
    assert found(both, [8, 6], struck) == [(0, 20, 26), (2, 50, 58)]
    assert found(both, [8, 0], struck) == [(2, 50, 58)]


def test_a_clock_strikes_in_runs_and_not_between_them() -> None:
    """Time off CPU is no silence."""
    two = runs((0, 0, 12, 0), (0, 500, 528, 0))
    assert found(two, [3], strikes((0, 10), (0, 516))) == [(1, 513, 516)]


def test_a_clock_that_is_a_little_late_is_not_silent() -> None:
    one, struck = runs((0, 0, 58, 0)), strikes((0, 10), (0, 24), (0, 34), (0, 44))
    told = stolen(one, np.array([4 * MS]), struck)
    assert (told.end_ns - told.start_ns).tolist() == [MS] * 4
    told = stolen(one, np.array([5 * MS]), strikes((0, 10), (0, 26), (0, 34), (0, 44)))
    assert ((told.start_ns + 1).tolist(), (told.end_ns + 1).tolist()) == ([21 * MS], [26 * MS])


def test_without_records_it_was_at_the_ends_of_the_longest_runs() -> None:
    told = at_ends(runs((0, 0, 30, 0), (0, 40, 80, 0), (1, 0, 50, 1)), np.array([45 * MS, 0]))
    assert told.run.tolist() == [0, 1]
    assert (told.end_ns - told.start_ns).tolist() == [5 * MS + 2, 40 * MS - 2]


def test_what_was_told_before_is_no_silence_and_is_taken_from_last() -> None:
    """The clock struck before 1000, too: these strikes are not among those of this stretch."""
    one, struck = runs((0, 0, 1100, 0)), strikes(*((0, at) for at in (1004, 1014, 1024, 1060, *range(1064, 1100, 10))))
    told = stolen(one, np.array([26 * MS]), struck, 1000 * MS)
    assert ((told.start_ns + 1) // MS).tolist() == [1034]
    told = stolen(one, np.array([126 * MS]), struck, 1000 * MS)
    assert (told.end_ns - told.start_ns).sum() == 126 * MS
    assert (told.end_ns[0] + 1, told.end_ns[-1] + 1) == (1000 * MS, 1100 * MS)
    assert told.end_ns[0] - told.start_ns[0] == pytest.approx(26 * MS, abs=100)


def test_what_left_no_silence_is_taken_here_and_there() -> None:
    one = runs((0, 0, 1000, 0))
    told = found(one, [8], strikes(*((0, at) for at in range(10, 1000, 10))))
    assert [end - start for _, start, end in told] == pytest.approx([1] * 8)
    ends = [0, *(end for _, _, end in told)]
    assert [end - before for before, end in pairwise(ends)] == pytest.approx([125] * 8, abs=10)


def test_without_strikes_it_was_at_the_end() -> None:
    assert found(runs((0, 0, 100, 0)), [7], NO_STRIKES) == [(0, 93, 100)]


@st.composite
def thieves(draw: st.DrawFn) -> tuple[int, list[tuple[int, int]]]:
    """The end of a run that begins at 0, and when its CPU was stolen, in ns; each time for long enough to be heard."""
    steps = draw(st.lists(st.tuples(st.integers(1, 300 * MS), st.integers(2 * INTERVAL_NS, 90 * MS)), min_size=1,
                          max_size=9))
    at_ns, parts = 0, []
    for run_ns, stolen_ns in steps:
        parts.append((at_ns + run_ns, at_ns + run_ns + stolen_ns))
        at_ns += run_ns + stolen_ns
    return at_ns + draw(st.integers(INTERVAL_NS, 300 * MS)), parts


def struck_in(end_ns: int, parts: list[tuple[int, int]], phase_ns: int) -> list[int]:
    """When a clock strikes in a run: once an interval, or when the CPU is back."""
    times = range(phase_ns, end_ns, INTERVAL_NS)
    return sorted({next((end for start, end in parts if start <= time < end), time) for time in times})


def ran_ns(told: list[tuple[int, int]], until_ns: int) -> int:
    return until_ns - sum(max(min(end, until_ns) - start, 0) for start, end in told)


@settings(max_examples=200, deadline=None)
@given(thieves(), st.integers(1, INTERVAL_NS))
def test_at_each_strike_it_has_run_as_long_as_it_truly_had(thief: tuple[int, list[tuple[int, int]]],
                                                           phase_ns: int) -> None:
    """But for what is not heard of each theft: less than an interval."""
    end_ns, parts = thief
    times = struck_in(end_ns, parts, phase_ns)
    amount_ns = sum(end - start for start, end in parts)
    struck = Strikes(moments_of(np.zeros(len(times), np.int64), np.array(times)), INTERVAL_NS)
    told = stolen(runs((0, 0, end_ns / MS, 0))._replace(end_ns=np.array([end_ns])), np.array([amount_ns]), struck)
    as_told = [*zip(told.start_ns.tolist(), told.end_ns.tolist(), strict=True)]
    assert sum(end - start for start, end in as_told) == amount_ns
    assert all(0 < start < end < end_ns for start, end in as_told)
    assert all(end < start for (_, end), (start, _) in pairwise(as_told))
    worst_ns = max(abs(ran_ns(as_told, time_ns) - ran_ns(parts, time_ns)) for time_ns in times)
    assert worst_ns <= len(parts) * INTERVAL_NS


def test_where_it_is_taken_from_makes_the_difference() -> None:
    """The bound of the test above bites: at the end of the run, as without strikes, it is missed."""
    parts = [(40 * MS, 130 * MS)]
    at_end = stolen(runs((0, 0, 400, 0)), np.array([90 * MS]), NO_STRIKES)
    told = [*zip(at_end.start_ns.tolist(), at_end.end_ns.tolist(), strict=True)]
    assert abs(ran_ns(told, 200 * MS) - ran_ns(parts, 200 * MS)) == 90 * MS


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 50 * MS), st.integers(3, 60 * MS)), min_size=1,
                max_size=20),
       st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2_000 * MS)), max_size=60),
       st.lists(st.integers(0, 500 * MS), min_size=3, max_size=3))
def test_whatever_strikes_there_are_no_more_is_taken_than_there_is(
        steps: list[tuple[int, int, int]], at: list[tuple[int, int]], amounts: list[int]) -> None:
    ends, rows = dict.fromkeys(range(5), 0), []
    for slot, away_ns, run_ns in steps:
        rows.append((slot, ends[slot] + away_ns, ends[slot] + away_ns + run_ns, slot % 3))
        ends[slot] += away_ns + run_ns
    of = Runs(*np.array(sorted(rows), np.int64).T)
    slot, time_ns = np.array(at, np.int64).reshape(-1, 2).T
    told: Stolen = stolen(of, np.array(amounts), Strikes(moments_of(slot, time_ns), INTERVAL_NS))
    assert (told.start_ns > of.start_ns[told.run]).all()
    assert (told.end_ns < of.end_ns[told.run]).all()
    assert (told.start_ns < told.end_ns).all()
    same = told.run[1:] == told.run[:-1]
    assert (told.start_ns[1:] > told.end_ns[:-1])[same].all()
    for group, amount_ns in enumerate(amounts):
        mine = told.end_ns[of.group[told.run] == group] - told.start_ns[of.group[told.run] == group]
        room_ns = (of.end_ns - of.start_ns)[of.group == group].sum()
        assert mine.sum() <= min(amount_ns, room_ns)
        n_gaps = int((of.group == group).sum()) + len(at)
        assert mine.sum() >= min(amount_ns, room_ns - 2 * n_gaps)
