"""An interpreter of Python is looked at before samples tell of it: a real process, which nobody samples."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from living import ready

from collector.clock import NEVER_NS, NS_PER_MS, NS_PER_S
from collector.processes.process import Epoch, Image
from collector.processes.space import AddressSpace
from collector.session import attach
from collector.session.objects import Objects
from collector.session.python import PythonFrames
from collector.unwind.table import Tables

PROGRAM = """
import time
def turns():
    print("ready", flush=True)
    while True:
        for turn in first, second:
            turn()
def first():
    time.sleep(0.003)
def second():
    time.sleep(0.003)
turns()
"""
EXPECTED_NS = 10 * NS_PER_S  # within which an interpreter begins


@pytest.fixture(scope="module")
def pid() -> Iterator[int]:
    with ready(sys.executable, "-c", PROGRAM) as its:
        yield its


def _frames(pid: int) -> tuple[PythonFrames, Objects]:
    objects = Objects(Tables())
    return PythonFrames(objects, True, 0, time.monotonic_ns() + EXPECTED_NS, pid), objects


def _space(objects: Objects, pid: int) -> AddressSpace:
    """What samples are told to be in."""
    return AddressSpace([objects.mapping(mapped) for mapped in attach.mappings(pid, 0)])


def _looked_at(frames: PythonFrames) -> int:
    """Looks until samples are welcome; how often."""
    n = 0
    while frames.looks_first or not n:
        assert frames.due_ns <= time.monotonic_ns() + 50 * NS_PER_MS
        time.sleep(max(frames.due_ns - time.monotonic_ns(), 0) / NS_PER_S)
        assert not frames.look()
        n += 1
    return n


def test_first_samples_find_what_turns_a_program_takes(pid: int) -> None:
    frames, objects = _frames(pid)
    assert _looked_at(frames) == 32
    began_ns = time.monotonic_ns()
    process = frames._process(Epoch(0, Image(1, pid, 0), _space(objects, pid)))
    assert process is not None
    assert set(process.looks) == {pid}
    names = {tuple(process.interpreter.codes[frame.code].name for frame in activation)
             for activations in process.looks[pid]._chains for activation in activations}
    assert {(b"first", b"turns", b"<module>"), (b"second", b"turns", b"<module>")} <= names
    assert max(process.looks[pid]._times) < began_ns  # no look was needed once more
    assert frames._process(Epoch(0, Image(1, pid, 0), _space(objects, pid))) is process


@pytest.mark.parametrize(("after_ns", "its_pid"), [(0, 1), (10 * NS_PER_S, 0)],
                         ids=["another process", "a later image"])
def test_what_was_looked_at_is_not_taken_for_another_one(pid: int, after_ns: int, its_pid: int) -> None:
    frames, objects = _frames(pid)
    assert not frames.look()
    since_ns = time.monotonic_ns() + after_ns
    other = frames._process(Epoch(since_ns, Image(1, its_pid or pid, since_ns), _space(objects, pid)))
    assert other is None or not other.looks
    known = frames._process(Epoch(0, Image(2, pid, 0), _space(objects, pid)))
    assert known is not None
    assert set(known.looks) == {pid}


def test_an_image_that_had_ended_by_then_is_another_one(pid: int) -> None:
    frames, objects = _frames(pid)
    before_ns = time.monotonic_ns()
    assert not frames.look()
    ended = frames._process(Epoch(0, Image(1, pid, 0, before_ns), _space(objects, pid)))
    assert ended is not None
    assert not ended.looks


def test_of_a_program_without_python_samples_are_taken_at_once() -> None:
    with subprocess.Popen(["sleep", "1000"]) as sleeping:
        try:
            frames, _ = _frames(sleeping.pid)
            for _ in range(3):
                assert frames.look()
                assert not frames.looks_first
        finally:
            sleeping.kill()


def test_a_program_that_is_gone_is_not_waited_for() -> None:
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
        frames, _ = _frames(gone.pid)
        assert frames.look()
        assert not frames.looks_first


def test_whom_no_sample_has_told_of_for_long_is_not_looked_at_any_more(pid: int) -> None:
    frames, _ = _frames(pid)
    assert not frames.look()
    assert frames.looks_first
    frames._expected_ns = time.monotonic_ns()
    assert not frames.look()
    assert not frames.looks_first
    assert frames.due_ns == NEVER_NS
