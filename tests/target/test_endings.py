"""What processes use behind their last event: told, untold, and other people's."""

from __future__ import annotations

import numpy as np
import pytest

from collector.events import Ends
from collector.target.endings import Endings

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


@pytest.mark.parametrize(("cpu", "n_switches"), [(0, 19), (1, 17), (1, 19)])
def test_a_cpu_that_switched_or_another_one_tells_nothing(cpu: int, n_switches: int) -> None:
    endings = Endings()
    endings.exited(101, 3, 1000)
    assert endings.tails(ends((990, 101, 0, 17, DYING), (1753, 101, cpu, n_switches, DEAD))) == {}
    assert endings.n_untold == 1


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
