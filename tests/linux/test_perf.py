"""Lists of CPUs; events and their rings are tested with the engine that reads them."""

from __future__ import annotations

import os

import pytest

from collector.linux import perf


@pytest.mark.parametrize(("text", "cpus"), [
    ("0", [0]), ("0-3\n", [0, 1, 2, 3]), ("0-2,5", [0, 1, 2, 5]), ("1,3,5-6,11\n", [1, 3, 5, 6, 11])])
def test_lists_of_cpus(text: str, cpus: list[int]) -> None:
    assert perf.parse_cpu_list(text) == cpus


def test_the_cpus_that_are_online() -> None:
    online = perf.online_cpus()
    assert online == sorted(set(online))
    assert len(online) == os.sysconf("SC_NPROCESSORS_ONLN")
    assert os.sched_getaffinity(0) <= set(online)


def test_a_tracepoint_that_is_not_there_has_no_number() -> None:
    assert perf.tracepoint_number("no_such_system", "no_such_event") is None
    number = perf.tracepoint_number("task", "task_newtask")
    assert number is None if os.geteuid() else number is not None and number > 0
