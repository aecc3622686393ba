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
