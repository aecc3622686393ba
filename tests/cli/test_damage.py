"""Damaged experiments, ours and gprofng's: ``er_print`` and ``er_archive`` end with a line or a warning, or well.

``scripts/damage`` does the same as often as one likes.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import pytest

from collector.cli import er_print

SEED = 20_261_123
N_OURS, N_GPROFNG = 37, 19


@pytest.fixture(scope="module")
def damage() -> Any:
    """``scripts/damage`` as a module."""
    path = Path(__file__).resolve().parents[2] / "scripts" / "damage"
    spec = spec_from_loader("damage", SourceFileLoader("damage", str(path)))
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["damage"] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def program(damage: Any, need: Callable[[str, str], str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What was recorded."""
    need("gcc", "gcc")
    return Path(damage.compiled(tmp_path_factory.mktemp("program")))


def test_what_is_whole_is_read_without_a_word(damage: Any, program: Path, need: Callable[[str, str], str],
                                              tmp_path: Path) -> None:
    need("gprofng", "binutils")
    for path in (damage.written(tmp_path, program), damage.of_gprofng(tmp_path, program, "-s", "on", "-H", "on")):
        told = damage._commands(path)
        assert (told["faults"], set(told["statuses"]), told["said"]) == ([], {0}, "")


def test_damage_to_our_experiments(damage: Any, program: Path, tmp_path: Path) -> None:
    original = damage.written(tmp_path, program)
    damage.import_all([original])
    outcomes = [damage.attempt(number, SEED, original, tmp_path) for number in range(N_OURS)]
    # Where the damage falls depends on the lengths of paths, too; few are hit so that nothing can be read.
    while not any(o.statuses[0] for o in outcomes) and len(outcomes) < 20 * N_OURS:
        outcomes.append(damage.attempt(len(outcomes), SEED, original, tmp_path))
    assert [(o.number, o.done, o.faults) for o in outcomes if o.faults] == []
    ends = Counter((bool(o.statuses[0]), bool(o.said)) for o in outcomes)
    assert ends[True, True], "nothing was damaged so much that it could not be read"
    assert ends[False, True] > N_OURS // 10, "nothing was damaged so little that the rest could be read"


def test_damage_to_the_experiments_of_gprofng(damage: Any, program: Path, need: Callable[[str, str], str],
                                              tmp_path: Path) -> None:
    need("gprofng", "binutils")
    original = damage.of_gprofng(tmp_path, program, "-s", "on", "-H", "on", "-i", "on")
    damage.import_all([original])
    outcomes = [damage.attempt(number, SEED, original, tmp_path) for number in range(N_GPROFNG)]
    assert [(o.number, o.done, o.faults) for o in outcomes if o.faults] == []


def test_a_page_at_the_end_of_the_address_space_is_no_overflow(damage: Any, program: Path, tmp_path: Path) -> None:
    """gprofng's recorder maps the vsyscall page; its place matters where look-ups depend on each other."""
    path = damage.written(tmp_path, program)
    assert b"FFFFFFFFFF600000" in (path / "map.xml").read_bytes()
    done = subprocess.run([damage.COMMANDS / "er_print", "-functions", path], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "[vsyscall]" in done.stdout


@pytest.mark.parametrize(("lines", "words"), [
    (("script F",), "runs itself"), (("script G", "script F"), "runs itself"), (("script a\0b",), "null"),
    (("outfile a\0b",), "null"), (("limit \u00b2",), "give the number"), (("limit " + "9" * 5000,), "give the number")])
def test_scripts_that_cannot_be_carried_out(lines: tuple[str, ...], words: str, tmp_path: Path,
                                            monkeypatch: pytest.MonkeyPatch,
                                            capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    Path("F").write_text(lines[0] + "\n", encoding="utf-8")
    Path("G").write_text(lines[-1] + "\n", encoding="utf-8")
    (tmp_path / "none.er").mkdir()
    (tmp_path / "none.er" / "log.xml").write_text('<event kind="run" tstamp="1.000000000" time="1"/>\n')
    assert er_print.run(["-script", "F", "none.er"]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("er_print: -script ")
    assert words in said
