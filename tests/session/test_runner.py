"""The poll loop: what wakes it, and what waits for the end of a nap."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Collection, Iterator, Mapping

import pytest

from collector.linux.background import Background
from collector.session.control import Action
from collector.session.runner import Observer, Runner
from collector.session.schedule import nap_ns

MS = 1_000_000
HOUR_NS = 3600 * 1000 * MS


class Waiter:
    """Is over at its first step, and keeps what that was told."""

    def __init__(self, fds: list[int], patient: list[int], nap: int, due_ns: int | None = None) -> None:
        self._fds, self._patience = fds, (patient, nap)
        self._due_ns = time.monotonic_ns() + HOUR_NS if due_ns is None else due_ns
        self.told: Mapping[int, int] | None = None

    def fds(self) -> list[int]:
        return self._fds

    def patience(self) -> tuple[Collection[int], int]:
        return self._patience

    def due_ns(self) -> int:
        return self._due_ns

    def ask(self, action: Action) -> None:
        raise AssertionError(action)

    def stand_back_in(self, background: Background) -> None:
        pass

    def step(self, ready: Mapping[int, int]) -> bool:
        self.told = dict(ready)
        return True

    def end(self) -> None:
        pass

    def close(self) -> list[str]:
        return []


@pytest.fixture
def pipes() -> Iterator[list[tuple[int, int]]]:
    """Two of them."""
    made = [os.pipe(), os.pipe()]
    yield made
    for pair in made:
        for fd in pair:
            os.close(fd)


def ran(*waiters: Waiter) -> int:
    """How long (ns) it took until all had had their step."""
    def failed(error: Exception) -> None:
        raise error

    runner, begun_ns = Runner(), time.monotonic_ns()
    for waiter in waiters:
        runner.add(waiter, Observer(print, failed))
    runner.run()
    return time.monotonic_ns() - begun_ns


def test_what_can_wait_is_seen_at_the_end_of_a_nap(pipes: list[tuple[int, int]]) -> None:
    (patient, writer), (urgent, _) = pipes
    os.write(writer, b"x")
    waiter = Waiter([patient, urgent], [patient], 20 * MS)
    assert ran(waiter) >= 20 * MS
    assert waiter.told == {patient: select.POLLIN}


def test_what_cannot_wait_ends_a_nap(pipes: list[tuple[int, int]]) -> None:
    """And what is ready beside it is told at once."""
    (patient, patient_writer), (urgent, writer) = pipes
    os.write(writer, b"x")
    os.write(patient_writer, b"x")
    waiter = Waiter([patient, urgent], [patient], HOUR_NS)
    ran(waiter)
    assert waiter.told == {patient: select.POLLIN, urgent: select.POLLIN}


def test_a_nap_ends_when_something_is_due(pipes: list[tuple[int, int]]) -> None:
    (patient, _), (urgent, _) = pipes
    waiter = Waiter([patient, urgent], [patient], HOUR_NS, time.monotonic_ns() + 20 * MS)
    assert ran(waiter) < HOUR_NS
    assert waiter.told == {}


def test_who_has_no_patience_is_not_kept_waiting_by_others(pipes: list[tuple[int, int]]) -> None:
    (patient, patient_writer), (urgent, writer) = pipes
    os.write(writer, b"x")
    waiters = Waiter([patient], [patient], HOUR_NS, time.monotonic_ns() + 20 * MS), Waiter([urgent], [], 0)
    ran(*waiters)
    assert waiters[1].told == {urgent: select.POLLIN}
    os.write(patient_writer, b"x")
    assert ran(Waiter([patient], [], 0)) < HOUR_NS


@pytest.mark.parametrize(("n_ends", "elapsed_ms", "nap_ms"), [
    (0, 500, 0), (150, 500, 0), (151, 500, 30), (1000, 160, 20), (1000, 16, 5), (1, 0, 5), (0, 0, 0)])
def test_rings_are_looked_at_the_sooner_the_quicker_they_filled(n_ends: int, elapsed_ms: int, nap_ms: int) -> None:
    assert nap_ns(n_ends, elapsed_ms * MS) == nap_ms * MS
