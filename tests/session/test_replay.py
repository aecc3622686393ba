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

import numpy as np
import pytest

from collector.events import Source
from collector.session.tap import ON_CPU, Stretches
from collector.timing.states import Microstate

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


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_a_tap_gets_all_time_of_all_threads(path: Path, kept: ModuleType, tmp_path: Path) -> None:
    """A thread is in one state at a time: no gap, no overlap; and what its clock has counted as running, it ran."""
    taken: list[Stretches] = []
    outcome = kept.replay(path, tmp_path / "test.1.er", taken.append)
    assert outcome.text() == path.with_suffix(".txt").read_text()  # which nobody feels
    names = "tid", "image", "start_ns", "end_ns", "state", "source"
    tid, image, start_ns, end_ns, state, source = (
        np.concatenate([getattr(part, name) for part in taken]) for name in names)
    order = np.lexsort((start_ns, image, tid))
    follows = (tid[order][1:] == tid[order][:-1]) & (image[order][1:] == image[order][:-1])
    assert (end_ns > start_ns).all()
    assert np.array_equal(start_ns[order][1:][follows], end_ns[order][:-1][follows])
    assert int((end_ns - start_ns)[state == ON_CPU].sum()) == outcome.pipeline.time.timeline.total_ran_ns
    # The only one that switched too often. Others have waits for a CPU of which the sum alone is known.
    assert (Source.SYNTHETIC in source[state != Microstate.WAIT_CPU]) == (path.stem == "pingpong-perf")


def test_a_tap_is_told_when_recording_pauses(kept: ModuleType, tmp_path: Path) -> None:
    """And gets the same as ever, while no packet is written."""
    path, heard, muted = FOLDER / "user_split-perf.xz", [], []
    kept.replay(path, tmp_path / "test.1.er", heard.append)
    outcome = kept.replay(path, tmp_path / "test.2.er", muted.append, muted=True)
    assert outcome.tally.n_packets == 0
    assert not any(part.muted for part in heard)
    assert all(part.muted for part in muted)
    for name in ("slot", "start_ns", "end_ns", "state", "source"):
        assert np.array_equal(*(np.concatenate([getattr(part, name) for part in parts]) for parts in (heard, muted)))


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
