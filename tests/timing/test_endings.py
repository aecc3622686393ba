"""What processes use behind their last event: told, untold, and other people's."""

from __future__ import annotations

import numpy as np
import pytest

from collector.events import Edge, Ends, Switches
from collector.timing.endings import Endings, away

DYING, DEAD = False, True


def ends(*rows: tuple[int, int, int, int, bool]) -> Ends:
    """(time, tid, cpu, switches of the CPU, dead) in time order."""
    time_ns, tid, cpu, n_switches, dead = zip(*rows, strict=True) if rows else ((),) * 5
    return Ends(np.array(time_ns, np.int64), np.array(tid, np.int64), np.array(cpu, np.int32),
                np.array(n_switches, np.int64), np.array(dead, bool))


def test_the_time_from_the_exit_to_the_death_counts_where_the_cpu_did_not_switch() -> None:
    endings = Endings()
    endings.exited(101, 3, 1000)
    endings.exited(103, 5, 2001)
    seen = ends((990, 101, 0, 17, DYING), (1753, 101, 0, 17, DEAD), (1990, 103, 1, 23, DYING), (2011, 103, 1, 23, DEAD))
    assert endings.tails(seen) == {3: 753, 5: 10}
    assert endings.n_untold == 0


def test_one_stranger_for_a_moment_is_a_guess() -> None:
    endings = Endings()
    endings.exited(101, 3, 1000)
    endings.exited(103, 5, 1000)
    begun = ends((990, 101, 0, 17, DYING), (990, 103, 1, 17, DYING))
    assert endings.tails(begun) == {}
    assert endings.tails(ends((900_000, 101, 0, 19, DEAD), (1_100_000, 103, 1, 19, DEAD))) == {3: 899_000}
    assert (endings.n_guessed, endings.n_untold) == (1, 1)


@pytest.mark.parametrize(("cpu", "n_switches"), [(0, 20), (1, 17), (1, 19)])
def test_a_cpu_that_switched_or_another_one_tells_nothing(cpu: int, n_switches: int) -> None:
    endings = Endings()
    endings.exited(101, 3, 1000)
    assert endings.tails(ends((990, 101, 0, 17, DYING), (1753, 101, cpu, n_switches, DEAD))) == {}
    assert endings.n_untold == 1


def test_an_untold_end_is_taken_to_be_like_those_of_its_program() -> None:
    """Whatever comes first in a batch; no longer than from the exit to the death, and not like that of another one."""
    endings = Endings()
    for tid, slot in (101, 3), (103, 5), (107, 7), (109, 9), (113, 11):
        endings.exited(tid, slot, 1000, b"as" if tid == 109 else b"cc1")
    seen = ends(*((990, tid, 0, 17, DYING) for tid in (101, 103, 107, 109, 113)), (1_100_000, 101, 0, 19, DEAD),
                (1_300, 103, 0, 17, DEAD), (1_500, 107, 0, 17, DEAD), (1_700_000, 109, 0, 19, DEAD),
                (1_211, 113, 1, 3, DEAD))
    assert endings.tails(seen) == {3: 400, 5: 300, 7: 500, 11: 211}
    assert (endings.n_estimated, endings.n_untold) == (2, 1)


def test_what_is_kept_is_bounded_and_what_is_dropped_is_counted() -> None:
    endings, n = Endings(), 10_007
    for tid in range(n):
        endings.exited(tid, tid, 1000 + tid, b"program %d" % tid)
        endings.tails(ends((1000 + tid, tid, 0, 17, DYING)))
    assert len(endings._exits) == len(endings._dying) == n - endings.n_untold < n // 2
    endings.exited(n, n, 61_000_000_000 + n)  # all the others are too old by then
    assert (len(endings._exits), len(endings._dying), endings.n_untold) == (1, 0, n)
    for tid in range(n):
        endings.exited(tid, tid, 61_000_000_000 + n, b"program %d" % tid)
        endings.tails(ends((61_000_000_000 + n, tid, 0, 17, DYING), (61_000_000_017 + n, tid, 0, 17, DEAD)))
    assert len(endings._known) < n // 5
    assert endings._known[b"program %d" % (n - 1)] == (1, 17)


def test_a_death_without_its_beginning_is_untold_and_told_once() -> None:
    endings = Endings()
    endings.exited(101, 3, 1000)
    assert endings.tails(ends((1753, 101, 0, 17, DEAD), (1800, 101, 0, 17, DEAD))) == {}
    assert endings.n_untold == 1


def test_strangers_are_nobodys_business() -> None:
    endings = Endings()
    assert endings.tails(ends((990, 7, 0, 17, DYING), (1753, 7, 0, 17, DEAD))) == {}
    assert endings.tails(None) == {}
    assert endings.n_untold == 0


def test_an_end_may_lie_in_several_batches() -> None:
    endings = Endings()
    endings.exited(101, 3, 1000)
    assert endings.tails(ends((990, 101, 0, 17, DYING))) == {}
    assert endings.tails(ends()) == {}
    assert endings.tails(ends((3753, 101, 0, 17, DEAD))) == {3: 2753}


def test_exits_whose_deaths_nobody_sees_do_not_pile_up() -> None:
    endings = Endings()
    for tid in range(1, 30_011):
        endings.exited(tid, tid, 1000)
    assert len(endings._exits) <= 10_000
    assert endings.tails(ends((999, 30_010, 0, 7, DYING), (1003, 30_010, 0, 7, DEAD))) == {30_010: 3}


def switches(*rows: tuple[int, int, Edge], cpu: int = 0) -> Switches:
    """(time, tid, edge) in time order, on one CPU, and the same a little later on another one."""
    time_ns, tid, edge = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    both = np.argsort(np.concatenate([time_ns, time_ns + 1]), kind="stable")
    twice = [np.concatenate([column, column])[both] for column in (time_ns, tid, edge.astype(np.int8))]
    twice[0] = np.concatenate([time_ns, time_ns + 1])[both]
    cpus = np.concatenate([np.full(len(tid), cpu), np.full(len(tid), 9)])[both].astype(np.int32)
    return Switches(twice[0], twice[1], twice[1], twice[2], cpus)


IN, BLOCKED, PREEMPTED = Edge.IN, Edge.OUT_BLOCKED, Edge.OUT_PREEMPTED


@pytest.mark.parametrize(("rows", "n_switches", "expected"), [
    ([(20_000, 7, IN), (31_000, 7, BLOCKED)], 2, 11_000),
    ([(20_000, 7, IN), (31_000, 7, BLOCKED)], 3, None),  # a stranger was there, too
    ([(20_000, 7, IN), (31_000, 7, PREEMPTED), (32_000, 5, IN), (40_000, 5, BLOCKED)], 3, 20_000),
    ([(20_000, 7, IN), (31_000, 7, PREEMPTED), (52_000, 5, IN), (60_000, 5, BLOCKED)], 4, 19_000),
    ([(20_000, 7, IN), (31_000, 7, PREEMPTED), (52_000, 5, IN), (60_000, 5, BLOCKED)], 3, None),
    ([(20_000, 7, IN)], 1, None),
    ([(20_000, 7, BLOCKED), (31_000, 5, IN)], 2, None),
    ([(20_000, 7, IN), (31_000, 5, BLOCKED)], 2, None),
    ([(1_000, 7, IN), (9_000, 7, BLOCKED), (200_000, 7, IN), (201_000, 7, BLOCKED)], 2, None),
])
def test_what_others_ran_in_between_is_told_by_their_switches(
        rows: list[tuple[int, int, Edge]], n_switches: int, expected: int | None) -> None:
    assert away(switches(*rows), 0, 10_000, 100_000, n_switches) == expected
    assert away(switches(*rows), 3, 10_000, 100_000, n_switches) is None
    assert away(None, 0, 10_000, 100_000, n_switches) is None
    assert away(None, 0, 10_000, 100_000, 0) == 0


def test_an_end_that_others_interrupted_is_told_less_their_time() -> None:
    endings = Endings()
    endings.exited(101, 3, 10_000)
    seen = ends((9_000, 101, 0, 17, DYING), (100_000, 101, 0, 19, DEAD))
    assert endings.tails(seen, switches((20_000, 7, IN), (31_000, 7, BLOCKED))) == {3: 79_000}
    assert endings.n_untold == 0


def test_where_nobody_tells_ends_none_is_missed() -> None:
    endings = Endings()
    endings.exited(101, 3, 1000)
    assert endings.tails(None) == {}
    endings.interrupted()
    assert (endings.n_untold, endings.n_open) == (0, 0)


def test_what_a_clock_tells_of_other_threads_is_not_taken_from_the_last_one() -> None:
    """It was read 10 us behind the last one's end, and had 300 us more, most of it other threads'."""
    endings = Endings()
    endings.exited(101, 3, 1000, pid=101)
    assert endings.tails(ends((900, 101, 0, 17, DYING))) == {}
    endings.told(101, 11_000, 300_000, is_all=False)
    assert endings.tails(ends((401_000, 101, 0, 17, DEAD))) == {3: 390_000}
