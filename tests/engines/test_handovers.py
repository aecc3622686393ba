"""Records of switches that are told as of the moments of the switches: literal tables."""

from __future__ import annotations

import numpy as np
import pytest

from collector.engines.perf.handovers import Handovers
from collector.events import Array
from collector.linux import abi

IN, OUT = 0, abi.MISC_SWITCH_OUT


def handovers(*rows: tuple[int, int, int, int]) -> Array:
    """Rows of time, CPU, and who leaves it for whom."""
    found = np.zeros(len(rows), dtype=abi.HANDOVER.dtype)
    for name, column in zip(("time", "cpu", "leaves", "comes"), zip(*rows, strict=True), strict=True):
        found[name] = column
    return found


def wakings(*rows: tuple[int, int]) -> Array:
    """Rows of time and who is woken."""
    found = np.zeros(len(rows), dtype=abi.WAKING.dtype)
    found["time"], found["woken"] = zip(*rows, strict=True)
    return found


def switches(*rows: tuple[int, int, int, int]) -> Array:
    """Rows of time, CPU, tid and direction."""
    found = np.zeros(len(rows), dtype=abi.SWITCH.dtype)
    for name, column in zip(("time", "cpu", "tid", "misc"), zip(*rows, strict=True), strict=True):
        found[name] = column
    return found


def times(told: Array, records: Array) -> list[int]:
    moments: list[int] = Handovers([told], [records]).of_switches(records).tolist()
    return moments


def test_both_sides_of_a_switch_are_told_as_of_its_moment() -> None:
    records = switches((5_700, 0, 7, OUT), (39_000, 0, 8, IN))
    assert times(handovers((5_000, 0, 7, 8)), records) == [5_000, 5_000]


def test_a_departure_of_the_same_switch_is_moved_with_it() -> None:
    found = Handovers([handovers((5_000, 0, 7, 8))], [switches((1_000, 0, 7, IN), (5_700, 0, 7, OUT))])
    assert found.of_departures(np.array([5_300, 900]), np.array([7, 7]), np.array([0, 0])).tolist() == [5_000, 900]


@pytest.mark.parametrize("told", [
    (5_000, 1, 9, 8),  # on another CPU
    (5_000, 0, 8, 9),  # the other way
    (5_000, 0, 9, 7),  # to somebody else
    (6_001, 0, 9, 8),  # behind the record
    (3_999, 0, 9, 8),  # before the thread's record before: its own was not told
    (4_000, 0, 9, 8),
])
def test_what_is_not_its_moment(told: tuple[int, int, int, int]) -> None:
    assert times(handovers(told), switches((4_000, 0, 8, OUT), (6_000, 0, 8, IN))) == [4_000, 6_000]


def test_of_several_it_is_the_last() -> None:
    """The records of one in between were lost."""
    told = handovers((1_000, 0, 9, 8), (2_000, 0, 8, 9), (5_000, 0, 9, 8))
    assert times(told, switches((5_030, 0, 8, IN))) == [5_000]


def test_threads_keep_their_order_on_every_cpu() -> None:
    """Two that take turns for 4 us each, recorded 1 and 3 us late."""
    moments = [(4_000 * turn, turn % 3, 7 + turn % 2, 8 - turn % 2) for turn in range(1, 1009)]
    records = switches(*(row for time_ns, cpu, leaves, comes in moments
                         for row in ((time_ns + 1_000, cpu, leaves, OUT), (time_ns + 3_000, cpu, comes, IN))))
    assert times(handovers(*moments), records) == [time_ns for time_ns, *_ in moments for _ in range(2)]


def arrivals(lags_ns: list[int], *more: tuple[int, int, int, int]) -> tuple[Array, Array]:
    """Threads that come, one each 100 us, whose records are so late, and further records of thread 8."""
    moments = [(100_000 * (i + 1), 0, 9, 100 + i) for i in range(len(lags_ns))]
    records = [(time + lag_ns, 0, tid, IN) for (time, _, _, tid), lag_ns in zip(moments, lags_ns, strict=True)]
    return handovers(*moments), switches(*records, *more)


def test_what_is_not_told_is_as_late_as_others() -> None:
    """Every other one is 3 us late, and some are much later."""
    told, records = arrivals([3_000, 2_900, 3_000, 9_000, 3_100] * 7, (50_000, 1, 8, OUT), (80_000, 1, 8, IN))
    found = Handovers([told], [records]).of_switches(records)
    assert found[-2:].tolist() == [50_000, 77_000]
    assert found[:35].tolist() == told["time"].tolist()


@pytest.mark.parametrize(("woken_ns", "came_ns"), [
    (76_999, 77_999),  # so long it takes from there to the CPU at least
    (79_500, 80_000),  # not behind its record
    (49_000, 77_000),  # the one before
    (80_001, 77_000),  # the next one
])
def test_what_is_not_told_comes_behind_its_wake_up(woken_ns: int, came_ns: int) -> None:
    told, records = arrivals([3_000] * 31, (50_000, 1, 8, OUT), (80_000, 1, 8, IN))
    found = Handovers([told], [records], [wakings((woken_ns, 8))]).of_switches(records)
    assert found[-2:].tolist() == [50_000, came_ns]


def test_of_a_few_there_is_no_usual_lag() -> None:
    told, records = arrivals([3_000] * 30, (50_000, 1, 8, OUT), (80_000, 1, 8, IN))
    assert Handovers([told], [records]).of_switches(records)[-1] == 80_000
