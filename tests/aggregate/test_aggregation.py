"""Spans in, keyed states out: whatever the batches; runs across batches; synthetic spans apart."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.aggregate.aggregation import MAX_KEYS, Aggregation, described, room_of
from collector.aggregate.dtrace import UserStack, pack_aggregation, unpack_aggregation
from collector.aggregate.keyed import Keyed
from collector.aggregate.language import compile_expression
from collector.aggregate.listing import printed_aggregation
from collector.aggregate.ready import READY
from collector.aggregate.spans import ON_CPU, Runs, Source, Spans
from collector.errors import AggregationError, TracedDataError

TABLES = {"execname": ["redis-server", "sh", "cat"], "comm": ["bio", "sh", "cat"], "usym": ["f", "g"],
          "ustack": [(0x10, 0x20), (0x10,)]}


def spans_of(rows: list[tuple[int, ...]], **more: Any) -> Spans:
    """Spans of (slot, start, end, state, cpu, source)."""
    slot, start, end, state, cpu, source = np.array(rows, dtype=np.int64).reshape(-1, 6).T
    columns: dict[str, Any] = {
        "start_ns": start, "end_ns": end, "state": state.astype(np.uint8), "slot": slot,
        "tid": (slot + 100).astype(np.int32), "pid": (slot // 2 + 50).astype(np.int32), "cpu": cpu.astype(np.int32),
        "stack": slot % 2, "source": source.astype(np.uint8)}
    return Spans(**columns | more)


def results(keyed: Keyed) -> dict[Any, Any]:
    return {key: keyed[key].tolist() if isinstance(keyed[key], np.ndarray) else keyed[key] for key in keyed}


def aggregated(expression: str, *batches: list[tuple[int, ...]]) -> Aggregation:
    aggregation = Aggregation(compile_expression(expression))
    for batch in batches:
        aggregation.add(spans_of(batch), TABLES)
    aggregation.close(TABLES)
    return aggregation


ROWS = [
    (0, 0, 10, 0, 0, 0),    # runs: user
    (0, 10, 17, 1, 0, 0),   # still runs: system
    (1, 5, 8, 7, -1, 0),    # sleeps
    (0, 17, 20, 6, -1, 0),  # waits for a lock
    (1, 8, 9, 8, -1, 1),    # waits for a CPU
    (1, 9, 12, 0, 1, 0),    # runs
    (1, 12, 14, 2, 0, 0),   # on another CPU: another run
    (0, 20, 21, 0, 0, 0),   # runs
]


def test_values_are_summed_by_key() -> None:
    assert results(aggregated("a[execname, state] = sum(oncpu)", ROWS).recorded) == {
        ("redis-server", "user"): 11, ("redis-server", "system"): 7, ("sh", "user"): 3, ("sh", "trap"): 2}
    assert results(aggregated("a[comm] = sum(offcpu)", ROWS).recorded) == {("sh",): 4, ("bio",): 3}
    assert results(aggregated('a[tid] = count() / usym == "g" /', ROWS).recorded) == {(101,): 4}
    assert results(aggregated("a[ustack(1), pid] = max(lock)", ROWS).recorded) == {((0x10,), 50): 3}


def test_a_run_is_the_time_on_one_cpu_without_a_gap() -> None:
    assert results(aggregated("a[tid] = sum(runlength)", ROWS).recorded) == {(100,): 18, (101,): 5}
    assert results(aggregated("a[tid] = sum(switches)", ROWS).recorded) == {(100,): 2, (101,): 2}
    assert results(aggregated("a = max(runlength)", ROWS).recorded) == {(): 17}
    assert results(aggregated("a[state, cpu] = min(runlength)", ROWS).recorded) == {
        ("system", 0): 17, ("user", 1): 3, ("trap", 0): 2, ("user", 0): 1}


THREADS = st.lists(st.tuples(st.integers(0, 10), st.integers(0, 4), st.booleans(), st.integers(0, 1),
                             st.sampled_from([0, 0, 1, 2])), max_size=12)


def rows_of(threads: list[list[tuple[int, int, bool, int, int]]]) -> list[tuple[int, ...]]:
    """Spans of several threads in order of their ends, as they are over."""
    rows = []
    for slot, spans in enumerate(threads):
        now = 0
        for state, length, gap, cpu, source in spans:
            now += gap
            rows.append((slot, now, now + length, state, cpu, source))
            now += length
    return sorted(rows, key=lambda row: row[2])


def slow_runs(rows: list[tuple[int, ...]]) -> list[tuple[int, int, int]]:
    """(slot, length, source) of each run, one span after the other."""
    found = []
    for slot in {row[0] for row in rows}:
        run: list[int] | None = None  # begin, end, cpu, source
        for _, start, end, state, cpu, source in [row for row in rows if row[0] == slot]:
            if run is not None and state in ON_CPU and run[1] == start and run[2] == cpu:
                run = [run[0], end, cpu, max(run[3], source)]
                continue
            if run is not None:
                found.append((slot, run[1] - run[0], run[3]))
            run = [start, end, cpu, source] if state in ON_CPU else None
        if run is not None:
            found.append((slot, run[1] - run[0], run[3]))
    return sorted(found)


@settings(max_examples=150, deadline=None)
@given(threads=st.lists(THREADS, min_size=1, max_size=3), cuts=st.lists(st.integers(0, 36), max_size=4))
def test_runs_are_the_same_however_the_spans_are_cut_into_batches(
    threads: list[list[tuple[int, int, bool, int, int]]], cuts: list[int]
) -> None:
    rows = rows_of(threads)
    holder, found, n_spans = Runs(), [], 0
    for begin, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(rows)], strict=True):
        batch, run_ns = holder.complete(spans_of(rows[begin:end]))
        found.append((batch, run_ns))
    last = holder.close()
    assert last is not None
    for batch, run_ns in [*found, last]:
        assert len(batch) == len(run_ns)
        n_spans += len(batch)
    ended = [(int(slot), int(ns), int(source)) for batch, run_ns in [*found, last]
             for slot, ns, source in zip(batch.slot, run_ns, batch.source, strict=True) if ns >= 0]
    assert sorted(ended) == slow_runs(rows)
    assert n_spans == len(rows)


def test_of_a_long_run_one_span_is_held() -> None:
    holder = Runs()
    for start in range(0, 1000, 10):
        batch, run_ns = holder.complete(spans_of([(4, start, start + 10, 0, 0, 0)]))
        assert len(batch) == (start > 0) and (run_ns == -1).all()
    batch, run_ns = holder.complete(spans_of([(4, 1000, 1001, 7, -1, 0)]))
    assert run_ns.tolist() == [1000, -1]


def test_the_run_of_a_thread_that_is_gone_is_over() -> None:
    aggregation = Aggregation(compile_expression("a[tid] = sum(runlength)"))
    aggregation.add(spans_of([(0, 0, 5, 0, 0, 0), (1, 0, 7, 0, 1, 0)]), TABLES)
    assert results(aggregation.recorded) == {}
    aggregation.close(TABLES, np.array([1]))
    assert results(aggregation.recorded) == {(101,): 7}
    aggregation.close(TABLES)
    aggregation.close(TABLES)
    assert results(aggregation.recorded) == {(100,): 5, (101,): 7}


EXPRESSIONS = ("a[tid, state] = count()", "a[execname] = quantize(offcpu)", "a[cpu] = avg(oncpu)",
               "a[ustack] = stddev(sleep) / tid != 101 || lock > 0 /", "a = lquantize(runlength, 0, 10)",
               "a[comm] = sum(switches) / runlength > 2 /", "a[tid] = sum(oncpu) / runlength < 3 /")


@pytest.mark.parametrize("expression", EXPRESSIONS)
@settings(max_examples=40, deadline=None)
@given(threads=st.lists(THREADS, min_size=1, max_size=3), cuts=st.lists(st.integers(0, 36), max_size=4))
def test_results_are_the_same_however_the_spans_are_cut_into_batches(
    expression: str, threads: list[list[tuple[int, int, bool, int, int]]], cuts: list[int]
) -> None:
    rows = rows_of(threads)
    bounds = [0, *sorted(cuts), len(rows)]
    whole = aggregated(expression, rows)
    parts = aggregated(expression, *(rows[begin:end] for begin, end in pairwise(bounds)))
    assert results(parts.recorded) == results(whole.recorded)
    assert results(parts.synthetic) == results(whole.synthetic)


def test_synthetic_spans_are_aggregated_apart() -> None:
    rows = [(0, 0, 10, 7, -1, Source.RECORDED), (0, 10, 17, 7, -1, Source.SYNTHETIC),
            (1, 0, 100, 7, -1, Source.ADJUSTED), (0, 20, 25, 0, 0, Source.RECORDED),
            (0, 25, 27, 0, 0, Source.SYNTHETIC)]
    sleeps = aggregated("a[tid] = sum(sleep)", rows)
    assert (results(sleeps.recorded), results(sleeps.synthetic)) == ({(100,): 10, (101,): 100}, {(100,): 7})
    ran = aggregated("a[tid] = sum(runlength)", rows)
    assert (results(ran.recorded), results(ran.synthetic)) == ({}, {(100,): 7})


@pytest.mark.parametrize(("expression", "missing"), [
    ("a[syscall] = count()", "syscall"), ("a[waker] = count()", "waker"), ('a = count() / umod == "x" /', "umod")])
def test_what_the_recording_does_not_tell_is_refused_by_name(expression: str, missing: str) -> None:
    with pytest.raises(AggregationError, match=f"does not tell {missing}"):
        aggregated(expression, ROWS)


def test_system_calls_and_wakers_are_told_where_they_are_recorded() -> None:
    spans = spans_of(ROWS[2:4], syscall=np.array([-1, 1], dtype=np.int32), waker=np.array([1, -1]))
    aggregation = Aggregation(compile_expression("a[syscall, waker] = sum(offcpu)"))
    aggregation.add(spans, {"syscall": ["read", "futex"], "waker": ["redis-server", "sh"]})
    assert results(aggregation.recorded) == {("", "sh"): 3, ("futex", ""): 3}


@pytest.mark.parametrize("name", ["runqlat", "cpudist", "profile", "offcputime", "futex", "cswch", "offcpudist"])
def test_ready_made_ones_work_on_spans(name: str) -> None:
    assert len(aggregated(READY[name], ROWS).recorded) > 0


@pytest.mark.parametrize(("more", "reason"), [
    ({"end_ns": np.array([1])}, "ends before it begins"),
    ({"state": np.array([11], dtype=np.uint8)}, "state is 0 to 10"),
    ({"source": np.array([3], dtype=np.uint8)}, "source is 0 to 2"),
    ({"tid": np.array([1, 2])}, "column tid is int64 of shape"),
    ({"cpu": np.array([0.5])}, "column cpu is float64"),
])
def test_impossible_spans_are_refused(more: dict[str, Any], reason: str) -> None:
    with pytest.raises(AggregationError, match=reason):
        spans_of([(0, 5, 6, 0, 0, 0)], **more)


def test_a_result_is_printed_as_dtrace_would() -> None:
    stacks = [UserStack(50, (0x10, 0x20)), UserStack(50, (0x10,))]
    aggregation = Aggregation(compile_expression("@waits[execname, tid, state, ustack(1)] = sum(offcpu)"))
    aggregation.add(spans_of(ROWS), TABLES | {"ustack": stacks})
    description = described(aggregation.query, aggregation.recorded)
    assert (description.name, description.varid) == ("waits", 1)
    data = pack_aggregation(description, aggregation.recorded)
    assert printed_aggregation(description, unpack_aggregation(description, data)) == (
        "\n"
        f"  {'sh':<50}      101  {'wait':<50}\n              0x10\n                1\n"
        f"  {'redis-server':<50}      100  {'lock':<50}\n              0x10\n                3\n"
        f"  {'sh':<50}      101  {'sleep':<50}\n              0x10\n                3\n")


def test_an_unknown_stack_is_an_empty_one() -> None:
    spans = spans_of(ROWS[2:4], stack=np.array([-1, 0]))
    for stacks, keys in (([(0x10,)], [(), (0x10,)]), ([UserStack(50, (0x10,))], [(), UserStack(50, (0x10,))])):
        aggregation = Aggregation(compile_expression("a[ustack(3)] = sum(offcpu)"))
        aggregation.add(spans, {"ustack": stacks})
        assert results(aggregation.recorded) == {(key,): 3 for key in keys}
    description = described(aggregation.query, aggregation.recorded)
    data = pack_aggregation(description, aggregation.recorded)
    assert [key for key, _ in unpack_aggregation(description, data)] == [
        (UserStack(0, ()),), (UserStack(50, (0x10,)),)]


def test_a_distribution_is_printed_as_dtrace_would() -> None:
    aggregation = aggregated("offcpu = quantize(offcpu)", ROWS)
    description = described(aggregation.query, aggregation.recorded)
    data = pack_aggregation(description, aggregation.recorded)
    assert printed_aggregation(description, unpack_aggregation(description, data)) == (
        "\n\n           value  ------------- Distribution ------------- count    \n"
        "               0 |                                         0        \n"
        f"               1 |{'@' * 13}                            1        \n"
        f"               2 |{'@' * 27}              2        \n"
        "               4 |                                         0        \n\n")


def test_names_of_any_length_have_room() -> None:
    for length in (0, 15, 16, 255, 4000):
        aggregation = aggregated("a[execname] = count()")
        aggregation.add(spans_of(ROWS), {"execname": ["x" * length, "y"]})
        description = described(aggregation.query, aggregation.recorded)
        names = {key[0].string for key, _ in unpack_aggregation(  # type: ignore[union-attr]
            description, pack_aggregation(description, aggregation.recorded))}
        assert names == {b"x" * length, b"y"}


@pytest.mark.parametrize(("expression", "reason"), [
    ("a[ustack] = count()", "UserStack"), ("a = variance(1)", "no variance")])
def test_what_dtrace_has_not_is_not_described(expression: str, reason: str) -> None:
    aggregation = aggregated(expression, ROWS)
    with pytest.raises(TracedDataError, match=reason):
        described(aggregation.query, aggregation.recorded)


@pytest.mark.parametrize(("function", "room"), [
    ("count()", MAX_KEYS), ("quantize(sleep)", (32 << 20) // (127 * 8)), ("lquantize(sleep, 0, 65535)", 63)])
def test_an_aggregation_has_so_much_room(function: str, room: int) -> None:
    assert room_of(compile_expression(f"a[tid] = {function}").fold) == room


def test_who_comes_when_there_is_no_room_is_counted_apart_for_synthetic_spans() -> None:
    rows = [(slot, 0, 3, 7, -1, source) for source in (0, 2) for slot in range(70)]
    aggregation = aggregated("a[tid] = lquantize(sleep, 0, 65535)", rows[:100], rows)
    assert (len(aggregation.recorded), len(aggregation.synthetic)) == (63, 63)
    assert aggregation.n_dropped == 2 * 7 + 7
    assert sum(aggregation.recorded[100,]) == 2


def test_no_spans_are_no_problem() -> None:
    assert results(aggregated("a[tid] = sum(runlength)", [], []).recorded) == {}
    assert results(aggregated("a = count()", []).recorded) == {}
