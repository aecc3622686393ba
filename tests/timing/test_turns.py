"""How often threads got a CPU, where switches are counted."""

from __future__ import annotations

import numpy as np
import pytest

from collector.events import Accounts, Array, Edge, Source
from collector.timing.timeline import Edges, edges_of
from collector.timing.turns import Turns

SLOT, OTHER = 0, 1
MS = 1_000_000


def array(*values: int) -> Array:
    return np.array(values, dtype=np.int64)


def arrivals(*rows: tuple[int, int], source: int = Source.RECORDED) -> Edges:
    """Of slots, at times (ms), in order."""
    slot, at_ms = np.array(rows, dtype=np.int64).reshape(-1, 2).T
    return edges_of(slot, at_ms * MS, np.full(len(slot), Edge.IN), source=source)


def accounts(*rows: tuple[int, int, int]) -> Accounts:
    """When each was read (ms), ms on CPU, and how often it had got one."""
    at_ms, run_ms, turns = np.array(rows, dtype=np.int64).T
    tid = np.arange(len(rows))
    return Accounts(at_ms * MS, tid, tid, run_ms * MS, np.zeros_like(tid), turns, read_ns=0)


@pytest.fixture
def turns() -> Turns:
    """Two threads that were just born."""
    turns = Turns()
    turns.grow(2)
    return turns


def told(turns: Turns) -> list[tuple[int, int]]:
    slot, more = turns.more
    return list(zip(slot.tolist(), more.tolist(), strict=True))


def test_what_no_record_told_is_told_by_the_first_account(turns: Turns) -> None:
    """17 times one thread got a CPU: twice by records, 15 times when records rested, or were lost."""
    edges = arrivals((SLOT, 2), (SLOT, 4), (OTHER, 3))
    turns.recorded(edges)
    assert told(turns) == []
    turns.counted(array(SLOT, OTHER), accounts((9, 5, 17), (9, 1, 1)), edges, 0)
    assert told(turns) == [(SLOT, 15), (OTHER, 0)]
    turns.recorded(arrivals())
    turns.counted(array(SLOT, OTHER), accounts((19, 8, 40), (19, 4, 12)), arrivals(), 10 * MS)
    assert told(turns) == [(SLOT, 23), (OTHER, 11)]
    assert turns.per_s == 3400


def test_what_records_tell_behind_an_account_is_not_told_again(turns: Turns) -> None:
    edges = arrivals((SLOT, 2), (SLOT, 14))
    turns.recorded(edges)
    turns.counted(array(SLOT), accounts((9, 5, 1)), edges, 0)
    assert told(turns) == [(SLOT, 0)]
    turns.recorded(arrivals())
    turns.counted(array(SLOT), accounts((19, 5, 2)), arrivals(), 0)
    assert told(turns) == [(SLOT, 0)]


def test_arrivals_that_the_ledger_made_are_no_records(turns: Turns) -> None:
    edges = arrivals((SLOT, 2), (SLOT, 14), source=Source.SYNTHETIC)
    turns.recorded(edges)
    turns.counted(array(SLOT), accounts((9, 5, 7)), edges, 0)
    assert told(turns) == [(SLOT, 7)]


def test_a_thread_that_was_found_begins_with_its_account(turns: Turns) -> None:
    """What records tell of before it was read is in it."""
    turns.begins(SLOT, 1001, 0, 5 * MS)
    turns.found(OTHER)  # so does this one, with its first account
    turns.recorded(arrivals((SLOT, 3), (SLOT, 5), (OTHER, 4)))
    turns.counted(array(SLOT, OTHER), accounts((9, 5, 1013), (9, 5, 2002)), arrivals(), 0)
    assert told(turns) == [(SLOT, 12), (OTHER, 0)]
    turns.recorded(arrivals())
    turns.counted(array(SLOT, OTHER), accounts((19, 5, 1013), (19, 5, 2025)), arrivals(), 0)
    assert told(turns) == [(SLOT, 0), (OTHER, 23)]


def test_behind_its_last_account_a_thread_switched_as_often_on_cpu_as_before(turns: Turns) -> None:
    """Between the last two it got a CPU 30 times in 6 ms that it had one; then it had one for 2 ms, for however long
    the clock on the wall went on."""
    for at_ms, run_ms, n in ((10, 4, 100), (20, 10, 130)):
        turns.recorded(arrivals())
        turns.counted(array(SLOT), accounts((at_ms, run_ms, n)), arrivals(), 0)
    turns.recorded(arrivals())
    turns.ended(array(SLOT, OTHER), array(12 * MS, 0))
    assert told(turns) == [(SLOT, 10), (OTHER, 0)]


def test_an_account_behind_the_end_leaves_nothing_to_estimate(turns: Turns) -> None:
    turns.recorded(arrivals())
    turns.counted(array(SLOT), accounts((10, 5, 100)), arrivals(), 0)
    turns.ended(array(SLOT), array(5 * MS))
    assert told(turns) == [(SLOT, 100), (SLOT, 0)]


def test_an_exec_goes_on_with_its_thread_s_account(turns: Turns) -> None:
    """Told in the image before were 40; the records of the new one tell of 3 of 50."""
    turns.recorded(arrivals())
    turns.counted(array(SLOT), accounts((10, 5, 40)), arrivals(), 0)
    turns.recorded(arrivals((OTHER, 12), (OTHER, 13), (OTHER, 14)))
    turns.goes_on(SLOT, OTHER)
    turns.recorded(arrivals())
    turns.counted(array(OTHER), accounts((20, 9, 50)), arrivals(), 0)
    assert told(turns) == [(OTHER, 7)]


def test_a_slot_is_used_again(turns: Turns) -> None:
    turns.recorded(arrivals((SLOT, 2)))
    turns.counted(array(SLOT), accounts((10, 5, 40)), arrivals(), 0)
    turns.forget(array(SLOT))
    turns.recorded(arrivals())
    turns.counted(array(SLOT), accounts((20, 1, 3)), arrivals(), 0)
    assert told(turns) == [(SLOT, 3)]
