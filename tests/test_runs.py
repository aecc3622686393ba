"""How tests are run: who is tried again (where time was stolen from a test of times), and what all groups come to."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).with_name("conftest.py")
CONFIGURATION = CONFTEST.parent.parent / "pyproject.toml"
CLOCK = "return _cpu_times_s()[7]"
TEST = """
import pathlib, pytest
tries, clock = pathlib.Path({tries!r}), pathlib.Path({clock!r})

{mark}
def test_that_fails_at_first():
    n_tries = len(tries.read_text()) if tries.exists() else 0
    tries.write_text("x" * (n_tries + 1))
    clock.write_text(str(float(clock.read_text()) + {stolen_s}))
    assert n_tries >= {n_failures}
"""


@pytest.mark.parametrize(("mark", "stolen_s", "n_failures", "n_tries", "said"), [
    ("@pytest.mark.kernel_times", 0.25, 1, 2, "1 passed, 1 rerun"),
    ("@pytest.mark.kernel_times", 0.25, 9, 2, "1 failed, 1 rerun"),
    ("@pytest.mark.kernel_times", 0, 1, 1, "1 failed"),
    ("", 0.25, 1, 1, "1 failed"),
])
def test_a_test_is_tried_again_only_where_time_was_stolen_from_it(
        mark: str, stolen_s: float, n_failures: int, n_tries: int, said: str, tmp_path: Path) -> None:
    clock, tries, test = tmp_path / "clock", tmp_path / "tries", tmp_path / "test_it.py"
    clock.write_text("7.0")
    conftest = CONFTEST.read_text()
    assert conftest.count(CLOCK) == 1
    (tmp_path / "conftest.py").write_text(conftest.replace(CLOCK, f"return float(Path({str(clock)!r}).read_text())"))
    test.write_text(TEST.format(mark=mark, stolen_s=stolen_s, n_failures=n_failures, tries=str(tries),
                                clock=str(clock)))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", CONFIGURATION, "--rootdir",
               tmp_path, test]
    result = subprocess.run([*map(str, command)], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert re.search(rf"^{said} in ", result.stdout, re.MULTILINE), result.stdout
    assert len(tries.read_text()) == n_tries


SUITE = '<testsuites><testsuite tests="{}" failures="{}" errors="{}" skipped="{}" time="{}"></testsuite></testsuites>'


@pytest.mark.parametrize(("suites", "said"), [
    ([(11, 0, 0, 0, 1.25), (7, 2, 1, 3, 2.5)], "2 failed, 12 passed, 3 skipped, 1 errors in 3.75s"),
    ([(11, 0, 0, 0, 1.25), (0, 0, 0, 0, 0.5)], "11 passed in 1.75s"),
    ([(0, 0, 0, 0, 0.5)], "no tests ran in 0.50s"),
])
def test_all_groups_have_one_closing_line(suites: list[tuple[float, ...]], said: str, tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.xml" for number in range(len(suites))]
    for path, suite in zip(paths, suites, strict=True):
        path.write_text(SUITE.format(*suite))
    script = CONFIGURATION.parent / "scripts" / "closing_line.py"
    result = subprocess.run([sys.executable, script, *paths], capture_output=True, text=True, check=True)
    assert result.stdout.strip("=\n").strip() == said
