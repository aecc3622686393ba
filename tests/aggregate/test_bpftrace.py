"""The judge of histograms: bpftrace, in the kernel, folds the same values into the same buckets.

Its ``hist()`` is quantize with one bucket for all negatives; its ``lhist()`` is lquantize.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from collector.aggregate import fold

# 251 values from -250 to 61,006, in steps that grow; then the edges of powers of two
# up to 2^30: bpftrace 0.17 has one bucket for all values from 2^31.
PROGRAM = """
BEGIN {
    $i = 0;
    while ($i < 251) {
        $v = $i * $i - 5 * $i - 244;
        @hist = hist($v);
        @lhist = lhist($v, 100, 50100, 500);
        $i++;
    }
    $p = (int64)1;
    $i = 0;
    while ($i < 31) {
        @hist = hist($p - 1);
        @hist = hist($p);
        $p = $p * 2;
        $i++;
    }
    exit();
}
"""
SQUARES = [i * i - 5 * i - 244 for i in range(251)]
EDGES = [(1 << i) - off for i in range(31) for off in (0, 1)]


@pytest.fixture(scope="module")
def judged(need: Callable[[str, str], str]) -> dict[str, list[dict[str, int]]]:
    """bpftrace's maps: lists of ``{"min", "max", "count"}``."""
    bpftrace = need("bpftrace", "bpftrace")
    if os.geteuid() != 0:
        pytest.skip("bpftrace needs root")
    nothing = _run(bpftrace, "BEGIN { exit(); }")
    if nothing.returncode != 0:
        pytest.skip(f"this kernel lets bpftrace run nothing at all: {nothing.stderr.strip()}")
    result = _run(bpftrace, PROGRAM)
    assert result.returncode == 0, result.stdout + result.stderr
    messages = [json.loads(line) for line in result.stdout.splitlines() if line.strip()]
    maps: dict[str, Any] = {}
    for message in messages:
        if message["type"] == "hist":
            maps |= message["data"]
    return maps


def _run(bpftrace: str, program: str) -> subprocess.CompletedProcess[str]:
    """Where root may not lock more memory it says so on stderr, and does without."""
    return subprocess.run([bpftrace, "-f", "json", "-e", program], capture_output=True, text=True, timeout=60)


def counts(function: fold.Buckets, values: list[int]) -> list[int]:
    state = function.empty()
    function.add(state, values)
    found: list[int] = function.result(state).tolist()
    return found


def test_quantize_has_the_counts_of_hist(judged: dict[str, list[dict[str, int]]]) -> None:
    ours = counts(fold.QUANTIZE, SQUARES + EDGES)
    scale = fold.QUANTIZE.scale
    by_least = {scale.lower(bucket): ours[bucket] for bucket in range(63, 127)}  # type: ignore[attr-defined]
    by_least[-1] = sum(ours[:63])
    theirs = {bucket.get("min", -1): bucket["count"] for bucket in judged["@hist"]}
    assert theirs[-1] > 0 and len(theirs) > 31
    assert {least: n for least, n in theirs.items() if n} == {least: n for least, n in by_least.items() if n}


def test_lquantize_has_the_counts_of_lhist(judged: dict[str, list[dict[str, int]]]) -> None:
    ours = counts(fold.lquantize(100, 50100, 500), SQUARES)
    theirs = {bucket.get("min", -1): bucket["count"] for bucket in judged["@lhist"]}
    lowers = [-1, *range(100, 50101, 500)]
    assert theirs[-1] > 0 and theirs[50100] > 0
    assert {low: n for low, n in theirs.items() if n} == {low: n for low, n in zip(lowers, ours, strict=True) if n}
