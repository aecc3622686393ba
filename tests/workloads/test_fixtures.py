"""What all tests share, tested: missing tools, tables of the judge, and the check that nothing stays behind."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent.parent
ABSENT = ("no-such-tool", "no-such-package")


def test_a_missing_tool_skips_with_its_package(need: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no-such-tool is missing: apt-get install no-such-package"):
        need(*ABSENT)


def test_a_missing_tool_fails_under_ci(need: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="apt-get install no-such-package"):
        need(*ABSENT)


def test_a_tool_is_a_command_or_a_path(need: Callable[..., str]) -> None:
    assert need("sh", "dash") == shutil.which("sh")
    assert need("/proc/self/stat*", "procps").startswith("/proc/self/stat")


LEAVES = """
import subprocess
import conftest
conftest.GRACE_S = 5  # for each of those that stay
def test_leaves_a_process():
    left = subprocess.Popen(["sleep", "61"])
    left.returncode = 0  # or its destructor complains, too
def test_leaves_an_orphan():
    subprocess.run(["sh", "-c", "sleep 67 & exit 0"])
def test_leaves_nothing():
    subprocess.run(["sh", "-c", "sleep 0.1 & exit 0"])
"""


def test_what_a_test_leaves_behind_is_an_error(tmp_path: Path) -> None:
    shutil.copy(TESTS / "conftest.py", tmp_path)
    (tmp_path / "test_leaves.py").write_text(LEAVES)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(tmp_path)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment["PYTHONPATH"] = str(TESTS)  # what the tests share
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert "3 passed, 2 errors" in result.stdout
    assert "processes left behind (and killed now)" in result.stdout
    assert "sleep 61" in result.stdout
    assert "sleep 67" in result.stdout


NEEDS = """
def test(need):
    need("sh", "dash")
    need("no-such-tool", "zzz")
    _need("/no/such/*", "aaa")
    need("no-such-other", "zzz")
    other("no-such-thing", "bbb")
"""


def test_the_tests_name_the_packages_they_need(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "scripts").mkdir()
    shutil.copy(TESTS.parent / "scripts" / "missing_packages.py", tmp_path / "scripts")
    (tmp_path / "tests" / "test_it.py").write_text(NEEDS)
    command = [sys.executable, str(tmp_path / "scripts" / "missing_packages.py")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "aaa\nzzz\n"
