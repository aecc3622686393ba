"""``scripts/truth``: it measures, keeps and compares. What it finds is not asserted here: that is for who runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "truth"
KEY = "states-mutex|lock|perf"


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    """The command."""
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.usefixtures("perf_allowed")
def test_a_figure_is_measured_kept_and_compared(need: Any, tmp_path: Path) -> None:
    need("gcc", "gcc")
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    exact = {"unit": "intervals", "limit": 1, "errors": [0.0, 0.0], "stolen": [0.0, 0.0]}
    before.write_text(json.dumps({"machine": "another", "figures": {KEY: exact}}))
    after.write_text(json.dumps({"machine": "another", "figures": {"kept|as it is|perf": exact}}))
    result = run("states-mutex", "--engine", "perf", "--rounds", 2, "--json", after, "--against", before)
    assert (result.returncode, result.stderr) == (0, "")
    figures = json.loads(after.read_text())["figures"]
    assert figures.keys() == {KEY, "kept|as it is|perf"}
    errors = figures[KEY]["errors"]
    assert len(errors) == 2
    assert all(error == error and abs(error) < 50 for error in errors)  # 50 intervals are the whole program
    (row,) = [line for line in result.stdout.splitlines() if "states-mutex" in line]
    cells = [cell.strip() for cell in row.strip("│").split("│")]
    assert cells[:4] == ["states-mutex", "lock", "perf", "2"]
    assert cells[-1] == ("YES" if sum(errors) else "no")


@pytest.mark.parametrize(("arguments", "said"), [
    (["no-such-figure"], "no figure no-such-figure"), (["--rounds", 0], "one round at least"),
    (["--engine", "steam"], "engines are perf and signal"), (["--against", "/no/such/file"], "no file /no/such/file")])
def test_bad_arguments_are_told_in_a_line(arguments: list[object], said: str) -> None:
    result = run(*arguments)
    assert result.returncode == 2
    assert said in result.stderr.splitlines()[-1]


def test_the_figures_are_listed() -> None:
    lines = run("--list").stdout.splitlines()
    assert {"busy", "redis", "stress-600", "nappers-3000"} <= {line.split()[0] for line in lines}
    assert all(len(line.split()) > 2 for line in lines)
