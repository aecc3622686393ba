"""Stacks of time on a CPU in aggregations: shared out exactly, and as a program's functions had it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sampling_error import of_share

from collector.aggregate.spans import Spans
from collector.experiment.records import NOT_SAMPLED
from collector.session.running import RunningStacks

Run = Callable[..., Any]
INTERVAL_NS, PLAIN_INTERVAL_NS = 1e6, 10.007e6
SLEEP, ON_CPU = 7, 10


def spans(*rows: tuple[int, int, int, int]) -> Spans:
    """Of (slot, start, end, state), with the stack 5 off the CPU."""
    slot, start, end, state = np.array(rows, dtype=np.int64).reshape(-1, 4).T
    none = np.zeros(len(slot), dtype=np.int64)
    return Spans(start, end, state.astype(np.uint8), slot, none, none, none, np.where(state == ON_CPU, 0, 5),
                 none.astype(np.uint8))


def told(found: Spans) -> list[tuple[int, ...]]:
    columns = (found.slot, found.start_ns, found.end_ns, found.state, found.stack)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def sampled(running: RunningStacks, *samples: tuple[int, int, int]) -> None:
    """Of (slot, time, uid)."""
    slot, time_ns, uid = np.array(samples, dtype=np.int64).reshape(-1, 3).T
    running.sampled(slot, time_ns, uid.astype(np.uint64))


def test_a_run_is_shared_by_the_samples_in_it() -> None:
    running = RunningStacks()
    sampled(running, (1, 5, 71), (1, 12, 71), (1, 18, 72), (2, 30, 73), (1, 46, 72))
    found = running.shared(spans((1, 0, 31, ON_CPU), (1, 31, 40, SLEEP), (2, 0, 10, ON_CPU), (2, 10, 20, SLEEP)))
    # Slot 2 was sampled behind this run, and slot 1 in one that is still to end.
    assert told(found) == [(1, 0, 20, ON_CPU, 71), (1, 20, 31, ON_CPU, 72), (1, 31, 40, SLEEP, 5),
                           (2, 0, 10, ON_CPU, NOT_SAMPLED), (2, 10, 20, SLEEP, 5)]
    sampled(running, (1, 60, 71), (1, 64, 71))
    assert told(running.shared(spans((1, 40, 70, ON_CPU), (2, 20, 30, ON_CPU)))) == [
        (1, 40, 60, ON_CPU, 71), (1, 60, 70, ON_CPU, 72), (2, 20, 30, ON_CPU, 73)]


RUNS = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 400), st.lists(st.tuples(st.floats(0, 1),
                                                                                     st.integers(1, 3)), max_size=6)),
                min_size=1, max_size=12)


@given(RUNS, st.integers(1, 5))
def test_whatever_the_batches_each_run_keeps_its_length_and_its_samples(
        runs: list[tuple[int, int, list[tuple[float, int]]]], n_batches: int) -> None:
    """Each stack has its part of the run, to a nanosecond; samples come as early as their batch."""
    at, rows, samples, expected = dict.fromkeys(range(3), 0), [], [], {}
    for slot, length, inside in runs:
        start = at[slot] + 1
        at[slot] = end = start + length
        rows.append((slot, start, end, ON_CPU))
        samples += [(slot, start + 1 + int(part * (length - 1)), uid) for part, uid in inside]
        uids = [uid for _, uid in inside] or [NOT_SAMPLED]
        expected[slot, start, end] = {uid: length * uids.count(uid) / len(uids) for uid in uids}
    running, found = RunningStacks(), []
    last = max(at.values())
    edges = [last * k // n_batches for k in range(1, n_batches)] + [last]
    before = -1
    for until in edges:
        sampled(running, *(one for one in samples if before < one[1] <= until))
        found += told(running.shared(spans(*sorted(row for row in rows if before < row[2] <= until))))
        before = until
    for (slot, start, end), shares in expected.items():
        parts = [row for row in found if row[0] == slot and start <= row[1] and row[2] <= end]
        assert [row[1] for row in parts] == [start, *(row[2] for row in parts[:-1])]
        assert parts[-1][2] == end
        lengths = {row[4]: row[2] - row[1] for row in parts}
        assert len(lengths) == len(parts)
        assert all(abs(lengths.get(uid, 0) - share) <= 1 for uid, share in shares.items())
    assert len(running._waiting.slot) == 0


def test_a_run_of_a_day_is_shared_without_overflow() -> None:
    day_ns, n = 86_400 * 10**9, 10**6
    running = RunningStacks()
    running.sampled(np.ones(n, dtype=np.int64), np.arange(1, n + 1) * (day_ns // n),
                    np.repeat(np.array([8, 9], dtype=np.uint64), [n // 4, 3 * n // 4]))
    assert told(running.shared(spans((1, 0, day_ns, ON_CPU)))) == [
        (1, 0, day_ns // 4, ON_CPU, 8), (1, day_ns // 4, day_ns, ON_CPU, 9)]


def sums(er_print: Run, path: Path, name: str) -> dict[tuple[str, ...], int]:
    (one,) = json.loads(er_print("-json_aggregations", name, path).stdout)["aggregations"]
    return {tuple(map(str, entry["key"])): entry["value"] for entry in one["recorded"]}


@pytest.mark.kernel_times
def test_functions_have_their_parts_of_the_time_on_cpus(collect: Run, er_print: Run, workload: Run, tmp_path: Path,
                                                        perf_allowed: None) -> None:
    path = tmp_path / "run.er"
    asked = ["whole[tid] = sum(oncpu)", "leaves[tid, ufunc] = sum(oncpu)", "runs[tid] = count() / oncpu > 0 /",
             "modules[umod] = sum(oncpu)"]
    words = [word for each in asked for word in ("--aggregate", each)]
    done = collect("-p", "1m", "-o", path, *words, workload("split"), "1.4")
    assert done.returncode == 0, done.stderr
    leaves = sums(er_print, path, "leaves")
    by_tid: dict[tuple[str, ...], int] = {}
    for (tid, _), time_ns in leaves.items():
        by_tid[tid,] = by_tid.get((tid,), 0) + time_ns
    assert by_tid == sums(er_print, path, "whole")
    assert sum(sums(er_print, path, "modules").values()) == sum(by_tid.values())
    of_leaf = {name: sum(time_ns for (_, ufunc), time_ns in leaves.items() if ufunc.endswith(f"`{name}"))
               for name in ("leaf_one", "leaf_three", "leaf_seven")}
    # Of what was sampled: how many runs are so short that they have no sample is up to who else wants the CPUs. A
    # sample stands for less than two intervals: else there were another one in its run.
    sampled_ns, threads = sum(of_leaf.values()), json.loads(done.stdout)["threads"]
    true_s = {name: sum(thread[name] for thread in threads) for name in of_leaf}
    for name, time_ns in of_leaf.items():
        share = true_s[name] / sum(true_s.values())
        error = of_share(share, sampled_ns / (2 * INTERVAL_NS))
        assert time_ns / sampled_ns == pytest.approx(share, abs=error), name


def test_runs_without_a_sample_are_not_sampled(collect: Run, er_print: Run, workload: Run, tmp_path: Path,
                                               perf_allowed: None) -> None:
    """Naps with next to nothing between them: the clock meets few of these runs, and none stands for the others."""
    path = tmp_path / "run.er"
    done = collect("-o", path, "--aggregate", "a[ustack(1)] = sum(oncpu)", "--aggregate", "n[usym] = count()",
                   "--aggregate", 'm[tid] = count() / state == "oncpu" /', workload("states"), "nanosleep", 101, 1)
    assert done.returncode == 0, done.stderr
    found = sums(er_print, path, "a")
    assert next(value for (key,), value in found.items() if "<not sampled>" in key) > 0
    n_runs, n_not_sampled = sum(sums(er_print, path, "m").values()), sums(er_print, path, "n")["<not sampled>",]
    assert n_runs >= 101
    # No more of them are sampled than there are samples, one for each interval.
    assert n_runs - sum(found.values()) / PLAIN_INTERVAL_NS - 2 <= n_not_sampled <= n_runs
