"""Accounts of threads as they end: whose they are, of when, and which are nobody's."""

from __future__ import annotations

import numpy as np
import pytest

from collector.events import Array, Exits
from collector.timing.last_accounts import LastAccounts

MS = 1_000_000


def exits(*rows: tuple[int, int, float, float], read_ms: int = 1000) -> Exits:
    """(process, thread, lived, run), times in ms."""
    pid, tid, elapsed_ms, run_ms = np.array(rows, dtype=float).reshape(-1, 4).T
    n = np.arange(len(rows))
    return Exits(pid.astype(np.int64), tid.astype(np.int64), (elapsed_ms * MS).astype(np.int64),
                 (run_ms * MS).astype(np.int64), 3 * n, 5 * n, read_ms * MS)


def ending(accounts: LastAccounts, *rows: tuple[int, int, int, float]) -> list[tuple[int, float, float]]:
    """What is told of (slot, process, thread, its end in ms): (thread, time, run), in ms."""
    slot, pid, tid, end_ms = np.array(rows, dtype=float).reshape(-1, 4).T
    found = accounts.of_ending(*(column.astype(np.int64) for column in (slot, pid, tid, end_ms * MS)))
    if found is None:
        return []
    return sorted(zip(found.tid.tolist(), (found.time_ns / MS).tolist(), (found.run_ns / MS).tolist(), strict=True))


@pytest.fixture
def accounts() -> LastAccounts:
    """Of threads at slots 0 to 7, those below 5 born at 100 ms each."""
    accounts = LastAccounts()
    accounts.grow(8)
    accounts.born(np.arange(5), np.full(5, 100 * MS))
    return accounts


def ours(*tids: int) -> object:
    """Which threads are known."""
    def known(tid: Array) -> Array:
        return np.isin(tid, tids)

    return known


def test_an_account_is_as_old_as_its_thread_was(accounts: LastAccounts) -> None:
    accounts.take(exits((11, 13, 31.5, 17.25), (11, 17, 7, 3), (101, 103, 5, 1)))
    assert ending(accounts, (1, 11, 13, 131.75), (2, 11, 17, 106.5)) == [
        (13, 131.5, 17.25), (17, pytest.approx(106.5 - 1e-6, abs=1e-9), 3)]  # at its end, if the birth is told late


def test_it_waits_for_the_batch_with_the_end(accounts: LastAccounts) -> None:
    accounts.take(exits((11, 13, 31, 17), (101, 103, 5, 1)))
    assert ending(accounts, (2, 11, 17, 120)) == []
    accounts.keep(900 * MS, ours(13))
    accounts.keep(1000 * MS, ours(13))
    accounts.take(exits((11, 19, 40, 23), read_ms=2000))
    assert ending(accounts, (1, 11, 13, 132), (3, 11, 19, 141)) == [(13, 131, 17), (19, 140, 23)]
    assert ending(accounts, (1, 11, 13, 132)) == []  # once
    accounts.keep(2000 * MS, ours())
    assert not accounts.has_any


def test_those_of_strangers_go_when_all_births_are_known(accounts: LastAccounts) -> None:
    accounts.take(exits((101, 103, 5, 1)))
    accounts.keep(999 * MS, ours())
    assert accounts.has_any
    accounts.keep(1000 * MS, ours())
    assert not accounts.has_any


def test_strangers_go_though_others_of_them_come_with_each_batch(accounts: LastAccounts) -> None:
    for batch in range(1, 11):
        accounts.take(exits(*((101, 1000 * batch + n, 5, 1) for n in range(7)), read_ms=100 * batch + 10))
        accounts.keep(100 * batch * MS, ours())
    assert len(accounts._told.tid) == 7
    accounts.keep(2000 * MS, ours())
    assert not accounts.has_any


def test_a_birth_that_is_told_late_is_that_of_the_nearest_end(accounts: LastAccounts) -> None:
    accounts.take(exits((11, 13, 71, 41), (11, 13, 33, 17)))
    assert ending(accounts, (1, 11, 13, 131)) == [(13, pytest.approx(131, abs=1e-5), 17)]


def test_an_id_that_was_given_to_another_thread_keeps_both_apart(accounts: LastAccounts) -> None:
    accounts.take(exits((11, 13, 31, 17), (11, 13, 57, 41)))
    assert ending(accounts, (1, 11, 13, 131.5)) == [(13, 131, 17)]
    accounts.born(np.array([2]), np.array([140 * MS]))
    assert ending(accounts, (2, 11, 13, 197.5)) == [(13, 197, 41)]


def test_an_id_that_ends_twice_in_a_batch_tells_nothing(accounts: LastAccounts) -> None:
    accounts.take(exits((11, 13, 31, 17), (11, 13, 31, 17)))
    assert ending(accounts, (1, 11, 13, 131.5), (2, 11, 13, 163.5)) == []
    assert not ending(accounts, (3, 11, 13, 195))


def test_another_processs_thread_of_the_same_id_is_a_stranger(accounts: LastAccounts) -> None:
    accounts.take(exits((12, 13, 31, 17), (-1, 17, 31, 19)))
    assert ending(accounts, (1, 11, 13, 131.5), (2, 11, 17, 131.5)) == [(17, 131, 19)]


def test_of_those_that_were_found_a_first_thread_tells_nothing(accounts: LastAccounts) -> None:
    """It gives its process's memory back between its account and its end."""
    accounts.take(exits((11, 11, 31, 17), (11, 13, 31, 19)))
    assert ending(accounts, (5, 11, 11, 131.5), (6, 11, 13, 131.5)) == [(13, pytest.approx(131.5, abs=1e-5), 19)]


def test_a_thread_goes_on_in_another_image(accounts: LastAccounts) -> None:
    accounts.goes_on(1, 6)
    accounts.take(exits((11, 11, 31, 17)))
    assert ending(accounts, (6, 11, 11, 140)) == [(11, 131, 17)]
    accounts.forget(np.array([6]))
    accounts.take(exits((11, 11, 31, 17)))
    assert ending(accounts, (6, 11, 11, 140)) == []
