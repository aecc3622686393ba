"""Latency: CPU time divided by the threads that ran at once, of drawn spans, of a made and of a real experiment."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.cli import er_print
from collector.experiment.reader import open_experiment
from collector.experiment.recorder import Header, Recorder
from collector.report.latency import shares, spans

START_NS = 7_001_000_000_013
INTERVAL_NS = 1_000_000
HEADER = Header(
    hostname="h", os="Linux 6.1.0", arch="x86_64", page_size=4096, n_pages=1, cpus=[1], pid=71, ppid=70, pgrp=71,
    sid=70, cwd=b"/", arguments=b"prog", wsize=64, interval_ns=INTERVAL_NS, sample_period_s=1, start_ns=START_NS,
    start_unix=2_100_000_003, collector="collect")
PHASES = """
#include <pthread.h>
#include <time.h>
static double cpu(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}
static volatile unsigned long sum;
static void spin(double s) { double end = cpu() + s; while (cpu() < end) for (int i = 0; i < 1000; i++) sum += i; }
void *serial(void *unused) { spin(0.3); return unused; }
void *parallel(void *unused) { spin(0.4); return unused; }
int main(void) {
    pthread_t other;
    serial(0);
    pthread_create(&other, 0, parallel, 0);
    parallel(0);
    return pthread_join(other, 0);
}
"""
PIECES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 60), st.integers(0, 9)), max_size=20)


@given(PIECES)
def test_all_shares_add_up_to_the_time_in_which_anything_ran(pieces: list[tuple[int, int, int]]) -> None:
    begins, lengths = (np.array([piece[i] for piece in pieces], np.int64) for i in (1, 2))
    found = shares(begins, begins + lengths)
    at_once = [sum(begin <= t < begin + length for begin, length in zip(begins, lengths, strict=True))
               for t in range(80)]
    each = [sum(1 / at_once[t] for t in range(begin, begin + length))
            for begin, length in zip(begins.tolist(), lengths.tolist(), strict=True)]
    assert found == pytest.approx(each)
    assert found.sum() == pytest.approx(sum(n > 0 for n in at_once))


@given(PIECES)
def test_a_thread_runs_one_thing_at_a_time_and_as_long_as_it_was_told(pieces: list[tuple[int, int, int]]) -> None:
    threads, times, lengths = (np.array([piece[i] for piece in pieces], np.int64) for i in range(3))
    begins, ends = spans(threads, times, lengths)
    assert (ends - begins).tolist() == lengths.tolist()
    assert (ends <= times).all()
    for thread in set(threads.tolist()):
        mine = sorted(zip(begins[threads == thread].tolist(), ends[threads == thread].tolist(), strict=True))
        assert all(end <= begin for (_, end), (begin, _) in pairwise(mine))
    alone = (np.diff(np.sort(times)) >= lengths.max(initial=0)).all()
    assert not alone or np.array_equal(ends, times)


def rows(capsys: pytest.CaptureFixture[str], path: Path, *commands: str) -> list[dict[str, dict[str, Any]]]:
    """The rows of tables by name."""
    capsys.readouterr()
    assert er_print.run(["-printmode", "json", *commands, str(path)]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return [{row["name"]: row for row in one["rows"]} for one in found if "rows" in one]


def test_each_of_two_threads_at_once_has_half(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.er"
    path.mkdir()
    recorder = Recorder.create(path, HEADER)
    uid = int(recorder.frames.intern(np.array([[0x1234]], np.uint64), np.array([1]))[0])
    # (thread, ms of its end, state, ticks): serial for 31 ms, then two for 20 ms of which one sleeps for 7.
    packets = np.array([(71, 31, 0, 31), (71, 51, 0, 20), (72, 44, 1, 13), (72, 51, 7, 7)])
    recorder.clock(packets[:, 0], np.zeros(4, np.int32), START_NS + packets[:, 1] * INTERVAL_NS,
                   np.full(4, uid), packets[:, 2].astype(np.int32), packets[:, 3].astype(np.int32))
    recorder.close(START_NS + 60 * INTERVAL_NS)
    threads, some = rows(capsys, path, "-metrics", "e.latency:e.totalcpu", "-threads", "-filters", "THRID == 2",
                         "-threads")
    assert [threads[f"Process 1, Thread {n}"]["e.latency"] for n in (1, 2)] == [0.031 + 0.0135, 0.0065]
    assert threads["<Total>"]["e.latency"] == 0.051
    assert some["<Total>"] == {"e.latency": 0.0065, "e.totalcpu": 0.013, "name": "<Total>"}


def test_without_states_there_is_no_latency(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for n_states, is_there in ((10, True), (1, False)):
        path = tmp_path / f"{n_states}.er"
        path.mkdir()
        Recorder.create(path, HEADER).close(START_NS + 1)
        log = (path / "log.xml").read_text().replace('numstates="10"', f'numstates="{n_states}"')
        (path / "log.xml").write_text(log)
        capsys.readouterr()
        assert er_print.run(["-metric_list", str(path)]) == 0
        assert ("i.%latency" in capsys.readouterr().out) == is_there


@pytest.mark.usefixtures("perf_allowed")
def test_phases_of_a_program(tmp_path: Path, need: Callable[[str, str], str], collect: Callable[..., Any],
                             capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "phases.c").write_text(PHASES)
    program, path = tmp_path / "phases", tmp_path / "a.er"
    subprocess.run([need("gcc", "gcc"), "-O0", "-pthread", "-o", program, f"{program}.c"], check=True)
    assert collect("-p", "hi", "-o", path, program).returncode == 0
    functions, again = rows(capsys, path, "-metrics", "i.totalcpu:i.latency:e.latency", "-functions", "-metrics",
                            "e.latency", "-functions")
    tick = 0.000997
    serial, parallel = functions["serial"], functions["parallel"]
    assert serial["i.latency"] == pytest.approx(serial["i.totalcpu"], abs=2 * tick)  # nothing ran beside it
    # With a CPU for each, both run at once; with less, one after the other.
    assert parallel["i.totalcpu"] / 2 - tick < parallel["i.latency"] < parallel["i.totalcpu"] + tick
    assert sum(row["e.latency"] for name, row in again.items() if name != "<Total>") == pytest.approx(
        again["<Total>"]["e.latency"], abs=1e-5)
    experiment = open_experiment(path)
    assert functions["<Total>"]["e.latency"] <= (experiment.end_ns - experiment.log.start_ns) / 1e9
