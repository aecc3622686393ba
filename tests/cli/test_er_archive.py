"""``er_archive``: what it copies and says; that copies are read is seen through er_print and gprofng."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collector.cli import er_archive as command
from collector.cli import er_print
from collector.errors import CollectorError
from collector.experiment.recorder import Header, Recorder

START_NS = 3_000_000_000_019
BASE = 0x5500_0000_0000


@pytest.fixture
def recorded(tmp_path: Path, need: Callable[[str, str], str]) -> Iterator[tuple[Path, list[Path]]]:
    """An experiment, and the two programs mapped in it; only the first one has samples."""
    programs = []
    for number in range(2):
        source, program = tmp_path / f"p{number}.c", tmp_path / f"p{number}"
        source.write_text(f"static int spin{number}(int n) {{ return n; }}\n"
                          f"int main(int n) {{ return spin{number}(n); }}\n")
        subprocess.run([need("gcc", "gcc"), "-O0", "-g", "-nostdlib", "-shared", "-o", program, source], check=True)
        programs.append(program)
    path = tmp_path / "a.1.er"
    path.mkdir()
    recorder = Recorder.create(path, Header(
        hostname="h", os="Linux 6.1.0", arch="x86_64", page_size=4096, n_pages=1, cpus=[1], pid=71, ppid=70, pgrp=71,
        sid=70, cwd=b"/", arguments=b"p0", wsize=64, interval_ns=10_007_000, sample_period_s=1, start_ns=START_NS,
        start_unix=int(time.time()) + 2, collector="collect"))
    for number, program in enumerate(programs):
        recorder.segment_mapped(START_NS, BASE + number * 0x10_0000, 0x1000, 0x1000, os.fsencode(program), 5)
    uid = recorder.frames.intern(np.array([[BASE + 1]], np.uint64), np.array([1]))
    one = np.ones(1, np.int64)
    recorder.clock(one * 71, one.astype(np.int32), one * START_NS, uid.astype(np.int64), (one * 0).astype(np.int32),
                   one.astype(np.int32))
    recorder.close(START_NS + 1_000_000_000)
    yield path, programs


def copies(experiment: Path) -> list[str]:
    """Base names of the copies, without the codes of their directories: an underscore and 11 characters."""
    archives = experiment / "archives"
    return sorted(entry.name[:-12] for entry in archives.iterdir()) if archives.exists() else []


@pytest.mark.parametrize(("choice", "expected"), [
    ((), ["p0", "p1"]), (("-a", "on"), ["p0", "p1"]), (("-A", "ldobjects"), ["p0", "p1"]), (("-a", "off"), []),
    (("-a", "usedldobjects"), ["p0"]), (("-a", "usedsrc"), ["p0", "p0.c"]),
    (("-a", "src"), ["p0", "p0.c", "p1", "p1.c"]),
    (("-a", "all"), ["p0", "p0.c", "p1", "p1.c"]),
])
def test_choices(choice: tuple[str, ...], expected: list[str], recorded: tuple[Path, list[Path]],
                 capsys: pytest.CaptureFixture[str]) -> None:
    experiment, _ = recorded
    assert command.run([*choice, str(experiment)]) == 0
    assert copies(experiment) == expected
    plural = "" if len(expected) == 1 else "s"
    assert capsys.readouterr() == (f"copied {len(expected)} file{plural}, 0 already there\n", "")


def test_copies_are_read_when_the_originals_are_gone(recorded: tuple[Path, list[Path]], gprofng: Callable[..., Any],
                                                     capsys: pytest.CaptureFixture[str]) -> None:
    experiment, programs = recorded
    assert command.run(["-q", str(experiment)]) == 0
    assert capsys.readouterr() == ("", "")
    for program in programs:
        program.unlink()
    er_print.run(["-functions", str(experiment)])
    text = capsys.readouterr().out
    assert "spin0" in text
    assert text == gprofng("-functions", experiment=experiment).text


def test_copies_stay_unless_forced(recorded: tuple[Path, list[Path]], capsys: pytest.CaptureFixture[str]) -> None:
    experiment, _ = recorded
    command.run(["-q", str(experiment)])
    copy = next((experiment / "archives").glob("p0_*"))
    copy.chmod(0o600)
    copy.write_bytes(b"changed")
    assert command.run([str(experiment)]) == 0
    assert copy.read_bytes() == b"changed"
    assert command.run(["-F", str(experiment)]) == 0
    assert copy.read_bytes() != b"changed"
    assert capsys.readouterr().out == "copied 0 files, 2 already there\ncopied 2 files, 0 already there\n"


def test_a_dry_run_only_tells(recorded: tuple[Path, list[Path]], capsys: pytest.CaptureFixture[str]) -> None:
    experiment, programs = recorded
    assert command.run(["-n", str(experiment)]) == 0
    assert copies(experiment) == []
    told = "".join(f"would copy {program}\n" for program in programs)
    assert capsys.readouterr().out == told + "would copy 2 files, 0 already there\n"


def test_what_is_missing_is_told_and_is_status_1(recorded: tuple[Path, list[Path]],
                                                 capsys: pytest.CaptureFixture[str]) -> None:
    experiment, programs = recorded
    programs[1].unlink()
    assert command.run(["-v", str(experiment)]) == 1
    captured = capsys.readouterr()
    assert captured.out == f"copied {programs[0]}\ncopied 1 file, 0 already there\n"
    assert re.fullmatch(rf"er_archive: {re.escape(str(programs[1]))}: .+\n", captured.err)


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.run(["--help"]) == 0
    assert capsys.readouterr().out == command.USAGE + "\n"
    assert command.run(["-V"]) == 0
    assert re.fullmatch(r"er_archive \d+\.\d+\.\d+\n", capsys.readouterr().out)


@pytest.mark.parametrize(("arguments", "status", "words"), [
    ((), 2, "one experiment"), (("a.er", "b.er"), 2, "one experiment"), (("-a", "bogus", "a.er"), 2, "-a bogus"),
    (("-z", "a.er"), 2, "-z"), (("-a",), 2, "-a"), (("/nowhere.er",), 1, "/nowhere.er"),
    (("/tmp",), 1, "not an experiment"),
])
def test_errors(arguments: tuple[str, ...], status: int, words: str) -> None:
    with pytest.raises(CollectorError, match=re.escape(words)) as caught:
        command.run(list(arguments))
    assert caught.value.exit_status == status


def test_the_installed_command(recorded: tuple[Path, list[Path]], er_archive: Callable[..., Any]) -> None:
    experiment, _ = recorded
    done = er_archive("-q", experiment)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    failed = er_archive("/nowhere.er")
    assert failed.returncode == 1
    assert re.fullmatch(r"er_archive: .*\n", failed.stderr)
