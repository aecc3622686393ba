"""Standard streams that are closed or full: what a command cannot write it says; a program's status is its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from collector.experiment.reader import open_experiment
from collector.experiment.recorder import Header, Recorder

COMMANDS = Path(sys.executable).parent
START_NS = 3_000_000_000_019
# "full" as a shell does it, and where Python is told to keep nothing back.
LOST = {"closed": (">&-", {}, "Bad file descriptor"), "full": (">/dev/full", {}, "No space left on device"),
        "full, unbuffered": (">/dev/full", {"PYTHONUNBUFFERED": "1"}, "No space left on device")}


def in_shell(command: Sequence[object], redirection: str, environment: dict[str, str] | None = None,
             cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """A command with streams redirected as a user would."""
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.run(["sh", "-c", f'"$@" {redirection}', "sh", *map(str, command)], cwd=cwd, timeout=60,
                          capture_output=True, text=True, env=buffered | (environment or {}), check=False)


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    """An experiment of one sample."""
    path = tmp_path / "a.1.er"
    path.mkdir()
    recorder = Recorder.create(path, Header(
        hostname="h", os="Linux 6.1.0", arch="x86_64", page_size=4096, n_pages=1, cpus=[1], pid=71, ppid=70, pgrp=71,
        sid=70, cwd=b"/", arguments=b"p", wsize=64, interval_ns=10_007_000, sample_period_s=1, start_ns=START_NS,
        start_unix=1_700_000_003, collector="collect"))
    recorder.frames.intern(np.array([[4096]], np.uint64), np.array([1]))
    recorder.close(START_NS + 1_000_000_000)
    return path


@pytest.mark.parametrize("where", LOST)
@pytest.mark.parametrize("command", [["er_print", "-functions"], ["er_archive"]])
def test_output_that_cannot_be_written_is_told(command: list[str], where: str, experiment: Path) -> None:
    redirection, environment, why = LOST[where]
    result = in_shell([COMMANDS / command[0], *command[1:], experiment], redirection, environment)
    assert re.fullmatch(rf"{command[0]}: [^\n]*write error: {why}\n", result.stderr), result.stderr
    assert result.returncode == 1


@pytest.mark.parametrize("where", LOST)
def test_the_usage_of_collect_is_output_too(where: str) -> None:
    redirection, environment, why = LOST[where]
    result = in_shell([COMMANDS / "collect", "--help"], redirection, environment)
    assert re.fullmatch(rf"collect: [^\n]*write error: {why}\n", result.stderr), result.stderr
    assert result.returncode == 1


def test_who_reads_the_output_may_stop_but_a_file_that_nobody_reads_is_told(experiment: Path, tmp_path: Path) -> None:
    """Both readers leave at once, and more is printed than a pipe holds."""
    script, fifo = tmp_path / "script", tmp_path / "fifo"
    script.write_text("functions\n" * 1009)
    command = [COMMANDS / "er_print", "-script", script, experiment]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as writer:
        assert writer.stdout and writer.stderr
        writer.stdout.close()
        assert (writer.stderr.read(), writer.wait(60)) == ("", 0)
    os.mkfifo(fifo)
    with subprocess.Popen([command[0], "-outfile", fifo, *command[1:]], stderr=subprocess.PIPE, text=True) as writer:
        fifo.open("rb").close()
        _, said = writer.communicate(timeout=60)
    assert (writer.returncode, said) == (1, "er_print: what was printed is not complete: write error: Broken pipe\n")


def test_an_input_that_is_closed_is_an_empty_one(experiment: Path) -> None:
    result = in_shell([COMMANDS / "er_print", experiment], "<&-")
    assert (result.returncode, result.stdout) == (2, "")
    assert re.fullmatch(r"er_print: nothing to print; [^\n]*\n", result.stderr), result.stderr


@pytest.mark.parametrize("out", ["", "file"])
def test_names_of_other_bytes_are_read_and_written(out: str, experiment: Path, tmp_path: Path) -> None:
    """By commands that are piped in, and into a file as on a terminal."""
    script, file = tmp_path / "script", tmp_path / "file"
    script.write_bytes((b"outfile %s\n" % bytes(file) if out else b"") + b"addpath /caf\xe9\n")
    result = in_shell([COMMANDS / "er_print", experiment], f"<{script}", {"PYTHONIOENCODING": "utf-8"})
    assert (result.returncode, result.stderr) == (0, "")
    assert "\t/caf\\udce9\n" in (file.read_text() if out else result.stdout)


def test_names_and_pages_are_written_whatever_the_encoding(experiment: Path) -> None:
    """A name that is no UTF-8, where Python is strict about it; a page is UTF-8 also where nothing else is."""
    odd = experiment.rename(experiment.with_name(os.fsdecode(b"caf\xe9.er")))
    result = in_shell([COMMANDS / "er_html", odd], "", {"PYTHONIOENCODING": "utf-8:strict"}, cwd=odd.parent)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("caf\\xe9.html: ")
    page = odd.with_suffix(".html").read_text(encoding="utf-8")
    assert not page.isascii()
    result = in_shell([COMMANDS / "er_html", "-o", "-", odd], "", {"PYTHONIOENCODING": "latin-1"})
    assert (result.returncode, result.stderr) == (0, "")
    assert [letter for letter in result.stdout if not letter.isascii()] == [
        letter for letter in page if not letter.isascii()]


@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full"])
def test_an_error_that_nobody_can_read_keeps_its_status(redirection: str, experiment: Path) -> None:
    for command, status in ((["er_print", "-nosuch"], 2), (["er_archive", "--nosuch"], 2)):
        result = in_shell([COMMANDS / command[0], *command[1:], experiment], redirection)
        assert (result.returncode, result.stdout, result.stderr) == (status, "", "")


# The program tells by its status which of the descriptors 0 to 2 it has: 8, and 1, 2, 4 for these.
PROGRAM = ["sh", "-c", "s=8; for fd in 0 1 2; do [ ! -e /proc/$$/fd/$fd ] || s=$((s + (1 << fd))); done; exit $s"]


@pytest.mark.parametrize(("redirection", "status"), [
    ("<&-", 14), (">&-", 13), ("2>&-", 11), ("<&- >&- 2>&-", 8), (">/dev/full 2>/dev/full", 15)])
def test_a_program_has_the_streams_that_it_was_given(redirection: str, status: int, tmp_path: Path,
                                                     perf_allowed: None) -> None:
    result = in_shell([COMMANDS / "collect", "-o", "x.er", *PROGRAM], redirection, cwd=tmp_path)
    assert result.returncode == status
    assert result.stdout == ""
    if "2>" not in redirection:
        assert re.fullmatch(r"collect: x\.er: [^\n]*nothing lost\n", result.stderr), result.stderr
    experiment = open_experiment(tmp_path / "x.er")
    assert experiment.log.complete
    assert experiment.problems == []


@pytest.mark.parametrize("engine", ["perf", "signal"])
def test_messages_go_into_no_file_of_ours(engine: str, tmp_path: Path, perf_allowed: None) -> None:
    result = in_shell([COMMANDS / "collect", "-v", "--engine", engine, "-o", "x.er", *PROGRAM], "<&- >&- 2>&-",
                      cwd=tmp_path)
    assert result.returncode == 8
    for file in (tmp_path / "x.er").iterdir():
        assert file.is_dir() or b"collect: " not in file.read_bytes()
