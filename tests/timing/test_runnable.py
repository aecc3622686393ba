"""Threads that were found runnable and have no record: what their accounts tell of them."""

from __future__ import annotations

import pytest

from collector.events import Edge
from collector.timing.counting import Account
from collector.timing.microstate import ThreadClocks
from collector.timing.runnable import Runnable

MS = 1_000_000
CAME_NS = 7_000 * MS


def found(run_ns: int = 77) -> tuple[ThreadClocks, Runnable, int]:
    """A thread that was found runnable."""
    clocks, runnable = ThreadClocks(10 * MS), Runnable()
    slot = clocks.new_slot(found=True)
    clocks.kind[slot], clocks.since_ns[slot] = Edge.IN, CAME_NS
    runnable.begin(slot, Account(CAME_NS - 1, run_ns=run_ns), CAME_NS)
    return clocks, runnable, slot


@pytest.mark.parametrize(("ran_ms", "until_ms", "looked_ms", "last", "kind"), [
    (0, 400, 411, False, Edge.OUT_PREEMPTED),  # it waited
    (11, 400, 411, False, Edge.OUT_PREEMPTED),  # until just now
    (407, 400, 411, False, Edge.IN),  # it ran, and the account lags by a tick
    (207, 400, 1_000, False, None),  # it may have run from 793 on: the next batch will tell
    (0, 40, 41, True, Edge.OUT_PREEMPTED),
    (37, 40, 41, True, Edge.IN)])
def test_who_has_no_record(ran_ms: int, until_ms: int, looked_ms: int, last: bool, kind: int | None) -> None:
    clocks, runnable, slot = found()
    until_ns = CAME_NS + until_ms * MS
    assert runnable.undecided(clocks, until_ns, last) == [slot]
    runnable.decide(slot, Account(CAME_NS + looked_ms * MS, run_ns=77 + ran_ms * MS), until_ns, clocks, last)
    assert runnable.undecided(clocks, until_ns, last) == ([slot] if kind is None else [])
    assert clocks.kind[slot] == (Edge.IN if kind is None else kind)


def test_who_is_not_asked_for() -> None:
    clocks, runnable, slot = found()
    assert runnable.undecided(clocks, CAME_NS + 40 * MS, last=False) == []  # too early
    clocks.found[slot] = False  # it has a record
    assert runnable.undecided(clocks, CAME_NS + 400 * MS, last=False) == []
    clocks, runnable, slot = found()
    runnable.ran([slot, 5])
    assert runnable.undecided(clocks, CAME_NS + 400 * MS, last=True) == []
    clocks, runnable, slot = found()
    runnable.forget()
    clocks.found[slot] = True  # as all are when switches have been counted
    assert runnable.undecided(clocks, CAME_NS + 400 * MS, last=True) == []


def test_who_is_gone_without_a_record() -> None:
    clocks, runnable, slot = found()
    assert runnable.undecided(clocks, CAME_NS + 60 * MS, last=False) == [slot]
    runnable.gone(slot, CAME_NS + 71 * MS, clocks, last=False)
    assert runnable.undecided(clocks, CAME_NS + 70 * MS, last=False) == []
    assert clocks.kind[slot] == Edge.IN  # a record of its end may still come
    assert runnable.undecided(clocks, CAME_NS + 160 * MS, last=False) == []
    assert (clocks.kind[slot], clocks.found[slot]) == (Edge.UNKNOWN, False)
    clocks, runnable, slot = found()
    runnable.gone(slot, CAME_NS + 71 * MS, clocks, last=False)
    clocks.found[slot] = False  # it came
    assert runnable.undecided(clocks, CAME_NS + 160 * MS, last=True) == []
    assert clocks.kind[slot] == Edge.IN


@pytest.mark.parametrize("is_known", [False, True])
def test_who_is_gone_at_the_end(is_known: bool) -> None:
    clocks, runnable, slot = found()
    runnable.gone(slot, CAME_NS + 71 * MS, clocks, last=not is_known)
    assert runnable.undecided(clocks, CAME_NS + 60 * MS, last=True) == []
    assert clocks.kind[slot] == Edge.UNKNOWN
