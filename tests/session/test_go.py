"""Programs of Go, without symbols and call frame information, as they are given to others."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

# Behind their change of the stack pointer they are the outermost; gogo's own name has no package.
CHANGES_OF_STACKS = {"gogo", *(f"runtime.{name}" for name in ("asyncPreempt", "gogo", "mcall", "systemstack"))}


@pytest.mark.usefixtures("perf_allowed")
@pytest.mark.parametrize("flags", [(), ("-buildmode=pie",)], ids=["exe", "pie"])
@pytest.mark.parametrize("engine", ["perf", "signal"])
def test_a_stripped_program_is_recorded_with_names_and_whole_stacks(
        engine: str, flags: tuple[str, ...], go_program: Callable[..., Path], tmp_path: Path, collect: Any,
        er_print: Any) -> None:
    path = tmp_path / "go.er"
    run = collect("--engine", engine, "-p", "hi", "-o", path, go_program("split", "-s -w", *flags), 200)
    assert run.returncode == 0, run.stderr
    # While the runtime goes from one stack to another, an instant, its frame lies outside of what was copied, or above:
    # behind rt_sigreturn the goroutine's stack is another one than the handler's.
    # Nor is the caller known of what reads the clock.
    some = re.search(r"(\d+) of (\d+) stacks do(?:es)? not reach the root \((.+?)\)", run.stderr)
    assert "not reach the root" not in run.stderr or some, run.stderr
    if some:
        assert set(re.sub(r"[\d,]+", "", some[3]).split()) <= {"outside", "truncated", "no", "map", "rule"}, run.stderr
        assert int(some[1]) <= 0.01 * int(some[2])
        cut = er_print("-metrics", "i.total:name", "-csingle", "<Truncated-stack>", path).stdout.partition("Callees")[2]
        outermost = re.findall(r"^ *[\d.]+ +(\S+)$", cut, re.MULTILINE)
        assert set(outermost) <= CHANGES_OF_STACKS, outermost
    table = er_print("-metrics", "i.totalcpu:name", "-functions", path).stdout
    times = {name: float(seconds) for seconds, name in re.findall(r"^ *(\d+\.\d+) .* (\S+)$", table, re.MULTILINE)}
    in_split = sum(times[f"main.{name}"] for name in ("one", "three", "seven"))
    assert in_split >= 0.95 * times["<Total>"] > 0
    assert times["main.one"] < times["main.three"] < times["main.seven"]
    assert times["main.work"] >= 0.95 * in_split
    assert min(times["runtime.goexit"], times["main.run"]) >= 0.98 * in_split
