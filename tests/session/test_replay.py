"""Kept recordings through the whole pipeline: every packet, byte for byte, is what it was before.

What a recording comes to is in ``kept/NAME.txt``; ``scripts/keep-batches`` shows what has changed, and takes it for
right if asked to. No kernel and no clock takes part: who changes a figure sees it here, and nobody else does.
"""

from __future__ import annotations

import difflib
import importlib.util
import lzma
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).resolve().parent / "kept"
RECORDINGS = sorted(FOLDER.glob("*.xz"))
MOST_BYTES = 300 << 10
# Where programs are that everybody has, what the kernel calls memory without a file, and the keeper's own folder.
NEUTRAL = re.compile(r"/(usr|lib|lib64|bin|etc|tmp/kept|tmp/cc\w+\.\w+|dev|proc|sys|anon|/anon)\b")


@pytest.fixture(scope="module")
def kept() -> ModuleType:
    """The module that replays."""
    spec = importlib.util.spec_from_file_location("kept", FOLDER.with_suffix(".py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["kept"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_a_kept_recording_comes_to_what_it_came_to(path: Path, kept: ModuleType, tmp_path: Path) -> None:
    today = kept.replay(path, tmp_path / "test.1.er").text()
    golden = path.with_suffix(".txt").read_text()
    changed = difflib.unified_diff(golden.splitlines(), today.splitlines(), "before", "today", lineterm="", n=1)
    if today != golden:
        pytest.fail("\n".join(["scripts/keep-batches --renew takes this for right:", *changed]), pytrace=False)


def test_there_are_recordings_of_both_engines() -> None:
    engines = {path.stem.rpartition("-")[2] for path in RECORDINGS}
    assert engines == {"perf", "signal"}
    assert {path.stem for path in FOLDER.glob("*.txt")} == {path.stem for path in RECORDINGS}


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_what_is_kept_is_small_and_says_nothing_of_the_machine(path: Path) -> None:
    assert path.stat().st_size < MOST_BYTES
    text = lzma.decompress(path.read_bytes()).split(b"\n", 1)[0].decode()
    named = set(re.findall(r"(?<![\w/.=+-])/[a-zA-Z/][^\s\"\\]*", text))
    assert [name for name in sorted(named) if not NEUTRAL.match(name)] == []
