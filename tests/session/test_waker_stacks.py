"""In which stacks wakers were: that of a sample in the very run, of whatever process, or a mark."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collector.aggregate.spans import Spans
from collector.experiment.aggregations import stack_name, stack_of_name
from collector.linux.perf import tracepoint_number
from collector.session.placing import Placed
from collector.session.waker_stacks import WakerStacks

Run = Callable[..., Any]
SLEEP, WAIT, ON_CPU = 7, 8, 10


@pytest.fixture(scope="module")
def wakings_recorded(waits_recorded: None) -> None:
    """For tests that need the tracepoint of wake-ups."""
    if os.geteuid() != 0 or tracepoint_number("sched", "sched_waking") is None:
        pytest.skip("who wakes whom is told to root, where tracefs may be read")


def keys_of(er_print: Run, path: Path) -> list[list[Any]]:
    (one,) = json.loads(er_print("-json_aggregations", path).stdout)["aggregations"]
    return [entry["key"] for entry in one["recorded"]]


@pytest.mark.kernel_times
def test_who_ran_long_is_sampled_where_it_woke(collect: Run, er_print: Run, workload: Run, tmp_path: Path,
                                               wakings_recorded: None) -> None:
    path = tmp_path / "run.er"
    done = collect("-o", path, "-p", "0.5", "--aggregate",
                   'w[waker, wakerstack] = count() / comm == "wakee" && waker == "waker" /', workload("wakes"), 101)
    assert done.returncode == 0, done.stderr
    stacks = [stack for waker, stack in keys_of(er_print, path) if waker == "waker"]
    sampled = [stack for stack in stacks if any("`main" in frame for frame in stack)]
    assert sampled
    assert {stack[0] for stack in stacks if len(stack) == 1} <= {"<not sampled>", "<Unknown>"}
    assert not any("`wakee" in frame for stack in stacks for frame in stack)  # not that of who was woken


@pytest.mark.kernel_times
def test_the_stack_may_be_of_another_process(collect: Run, er_print: Run, tmp_path: Path, need: Run,
                                             wakings_recorded: None) -> None:
    """Children that compute, and wake their parent as they end: their stacks are in their own experiments. (Whoever
    lost his CPU just before his end has no sample in his last run: not all of them.)"""
    path, awk = tmp_path / "run.er", Path(need("mawk", "mawk")).resolve()
    done = collect("-o", path, "-p", "0.5", "--aggregate",
                   'w[execname, wakerstack(1)] = count() / state == "sleep" /', "sh", "-c",
                   f"for i in 1 2 3 4 5 6 7 8 9; do {awk} 'BEGIN {{ while (i < 300000) i++ }}'; done")
    assert done.returncode == 0, done.stderr
    frames = {frame for execname, (frame,) in keys_of(er_print, path) if execname == "sh"}
    assert any(frame.startswith((f"{awk.name}`", "libc.so.6`")) for frame in frames), frames


# --- without a kernel


class Stacks:
    """Of images 3 (a founder's), 4 (a descendant's) and 5, which is not recorded."""

    def __init__(self) -> None:
        self.stacks = WakerStacks({3: "test.1.er", 4: "_f1.er"}.get)

    def sampled(self, *rows: tuple[int, int, int, int]) -> None:
        """(slot, time, image, uid) each."""
        slot, time_ns, image, uid = np.array(rows, dtype=np.int64).reshape(-1, 4).T
        self.stacks.sampled(Placed(slot, image, uid.astype(np.uint64), uid == 0, uid != 0), time_ns)

    def told(self, spans: list[tuple[int, int, int, int]], *wakings: tuple[int, int]) -> list[str]:
        """The stacks of wake-ups by (slot, time) in a batch with spans of (slot, start, end, state)."""
        slot, start, end, state = np.array(spans, dtype=np.int64).reshape(-1, 4).T
        none = np.zeros(len(slot), dtype=np.int64)
        by, time_ns = np.array(wakings, dtype=np.int64).reshape(-1, 2).T
        found = self.stacks.of(Spans(start, end, state.astype(np.uint8), slot, none, none, none, none, none), by,
                               time_ns)
        return [self.stacks.numbers.things[code].decode() for code in found.tolist()]


def test_a_sample_counts_in_its_own_run() -> None:
    stacks = Stacks()
    stacks.sampled((1, 12, 3, 70), (1, 16, 3, 71), (1, 35, 3, 72), (2, 15, 4, 73))
    spans = [(1, 10, 20, ON_CPU), (1, 20, 30, SLEEP), (1, 30, 32, ON_CPU), (1, 32, 34, WAIT), (2, 10, 40, ON_CPU)]
    assert stacks.told(spans, (1, 14), (1, 11), (1, 18), (1, 31), (1, 36), (2, 40), (2, 41), (1, 25), (-1, 15)) == [
        # The last one before it, else the first one behind it; none of another run; of one that goes on.
        ":70", ":70", ":71", "<not sampled>", ":72", "_f1.er:73",
        # Behind the end of its last run, which the thread's own end was.
        "_f1.er:73",
        # While it slept, by records that contradict each other; nobody who is recorded.
        "<Unknown>", "<Unknown>"]


def test_a_run_goes_on_from_batch_to_batch() -> None:
    stacks = Stacks()
    stacks.sampled((1, 12, 3, 70), (2, 13, 3, 80))
    assert stacks.told([(1, 0, 10, SLEEP)], (1, 11), (2, 20)) == [":70", ":80"]
    stacks.sampled()
    assert stacks.told([], (1, 110), (2, 120)) == [":70", ":80"]
    # The run is over; behind it is another one.
    assert stacks.told([(1, 10, 150, ON_CPU), (1, 150, 160, SLEEP)], (1, 140), (1, 170)) == [":70", "<not sampled>"]
    assert stacks.told([], (1, 180)) == ["<not sampled>"]
    stacks.sampled((1, 190, 3, 71))
    assert stacks.told([], (1, 195)) == [":71"]


def test_a_slot_is_used_again() -> None:
    stacks = Stacks()
    stacks.sampled((1, 12, 3, 70))
    stacks.stacks.forget(np.array([1]))
    assert stacks.told([], (1, 20)) == ["<not sampled>"]


def test_a_stack_that_is_not_stored_is_not_known() -> None:
    stacks = Stacks()
    stacks.sampled((1, 12, 3, 0), (2, 12, 5, 70))
    assert stacks.told([], (1, 13), (2, 13)) == ["<Unknown>", "<Unknown>"]


def test_names_of_stacks_lead_to_their_experiments() -> None:
    founder = Path("/x/test.1.er")
    for path in (founder, founder / "_f3.er"):
        assert stack_of_name(stack_name("test.1.er", 7), path) == (founder, 7)
        assert stack_of_name(stack_name("_f1_x1.er", 8), path) == (founder / "_f1_x1.er", 8)
    for mark in (b"<none>", b"<not sampled>", b"", b"_f1/../..:3", b":", b"_f1.er:12345678901234567890"):
        assert stack_of_name(mark, founder) is None
