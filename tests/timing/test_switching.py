"""Sharpened switch times: literal tables."""

from __future__ import annotations

import numpy as np
import pytest

from collector.events import Edge, Switches
from collector.timing.switching import sharpened

IN, OUT, PRE = Edge.IN, Edge.OUT_BLOCKED, Edge.OUT_PREEMPTED


def switches(*rows: tuple[int, int, int, int]) -> Switches:
    """Rows of time, tid, cpu, edge."""
    time_ns, tid, cpu, edge = (np.array(column, dtype=np.int64) for column in zip(*rows, strict=True))
    return Switches(time_ns, tid, tid, edge.astype(np.int8), cpu.astype(np.int32))


def times(given: Switches, *departures: tuple[int, int], is_lossy: bool = False) -> list[int]:
    tid, time_ns = (np.array([row[i] for row in departures], dtype=np.int64) for i in (0, 1))
    return sharpened(given, tid, time_ns, is_lossy=is_lossy).tolist()


def test_an_end_is_where_the_departure_was() -> None:
    assert times(switches((1_000, 7, 0, IN), (9_000, 7, 0, OUT)), (7, 6_100)) == [1_000, 6_100]


@pytest.mark.parametrize("departure", [
    (8, 6_100),  # somebody else's
    (7, 9_001),  # of the next time
    (7, 999),  # of the time before: the thread has come back since
])
def test_what_is_not_its_departure(departure: tuple[int, int]) -> None:
    assert times(switches((1_000, 7, 0, IN), (9_000, 7, 0, OUT)), departure) == [1_000, 9_000]


@pytest.mark.parametrize(("is_lossy", "end_ns"), [(False, 6_100), (True, 90_000)])
def test_a_departure_long_before_is_believed_if_no_record_is_lost(is_lossy: bool, end_ns: int) -> None:
    given = switches((1_000, 7, 0, IN), (90_000, 7, 0, OUT))
    assert times(given, (7, 6_100), is_lossy=is_lossy) == [1_000, end_ns]


def test_a_beginning_is_the_end_of_the_thread_before_on_that_cpu() -> None:
    given = switches((5_000, 7, 0, PRE), (5_700, 8, 0, IN))
    assert times(given) == [5_000, 5_000]
    assert times(given, (7, 4_400)) == [4_400, 4_400]


@pytest.mark.parametrize("second", [
    (5_700, 8, 1, IN),  # on another CPU
    (8_100, 8, 0, IN),  # with time for somebody else in between
])
def test_a_beginning_that_does_not_follow(second: tuple[int, int, int, int]) -> None:
    assert times(switches((5_000, 7, 0, OUT), second)) == [5_000, second[0]]


def test_without_cpus_beginnings_stay() -> None:
    given = switches((5_000, 7, 0, OUT), (5_700, 8, 0, IN))
    given.cpu = None
    assert times(given, (7, 4_700)) == [4_700, 5_700]


def test_two_threads_that_take_turns_use_all_of_their_cpu() -> None:
    turns = 1009
    rows, departures = [], []
    for turn in range(turns):
        now = turn * 4_001
        tid = 7 + turn % 2
        rows += [(now + 1_300, tid, 0, IN), (now + 4_001 + 700, tid, 0, OUT)]
        departures.append((tid, now + 4_001))
    given = switches(*rows)
    better = sharpened(given, *(np.array(column, dtype=np.int64) for column in zip(*departures, strict=True)))
    running = (better[1::2] - better[0::2]).sum()
    assert running == turns * 4_001 - 1_300
