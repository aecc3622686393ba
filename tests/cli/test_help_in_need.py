"""What er_print says to those who mistype, or wait."""

from __future__ import annotations

import os
import pty
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from collector.cli.progress import Working
from collector.suggestions import meant

SOURCE = "volatile long sum; int main(void) { for (long i = 0; i < 200000003; i++) sum += i; return 0; }\n"


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory, collect: Callable[..., CompletedProcess[str]],
               need: Callable[[str, str], str]) -> Path:
    """A program that is in main all the time."""
    folder = tmp_path_factory.mktemp("need")
    (folder / "prog.c").write_text(SOURCE)
    subprocess.run([need("gcc", "gcc"), "-g", "-O1", "-o", folder / "prog", folder / "prog.c"], check=True)
    assert collect("-o", folder / "a.er", folder / "prog").returncode == 0
    return folder / "a.er"


def test_names_most_like_what_was_written() -> None:
    known = ["work", "worker_thread", "main", "", "Libc.so.6"]
    assert meant("wrk", known) == "; did you mean 'work'?"
    assert meant("libc", known) == "; did you mean 'Libc.so.6'?"
    assert meant("thread", known) == "; did you mean 'worker_thread'?"
    assert meant("zzz", known) == ""
    assert meant("", []) == ""


@pytest.mark.parametrize(("words", "said"), [
    (("-functionz",), "did you mean 'functions'?"), (("-fsingle", "mian"), "did you mean 'main'?"),
    (("-source", "mian"), "did you mean 'main'?"), (("-filters", "THRD==1"), "did you mean 'THRID'"),
    (("-object_hide", "libc.so"), "did you mean 'libc.so.6'?")])
def test_mistakes_are_answered(words: tuple[str, ...], said: str, er_print: Callable[..., CompletedProcess[str]],
                               experiment: Path) -> None:
    done = er_print(*words, experiment)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_an_experiment_that_is_not_there(er_print: Callable[..., CompletedProcess[str]], tmp_path: Path) -> None:
    done = er_print("-functions", tmp_path / "no.er")
    assert done.stderr == f"er_print: {tmp_path}/no.er: not an experiment: there is nothing of that name\n"


def test_work_is_shown_on_a_terminal_and_taken_away() -> None:
    master, slave = pty.openpty()
    seen, is_shown = bytearray(), threading.Event()

    def read() -> None:
        while b"\x1b[?25h" not in seen:  # the cursor is back
            seen.extend(os.read(master, 4096))
            if b"-calltree[x]" in seen:
                is_shown.set()

    reader = threading.Thread(target=read)
    reader.start()
    with os.fdopen(slave, "w") as terminal:
        with Working("-calltree[x]", terminal, after_s=0):
            assert is_shown.wait(20)
        terminal.flush()
        reader.join(20)
    os.close(master)
    assert b"\x1b[2K" in seen  # the line is gone


def test_nothing_is_shown_elsewhere_or_where_it_is_done_at_once(tmp_path: Path) -> None:
    with (tmp_path / "out").open("w") as out, Working("-functions", out, after_s=0):
        pass
    assert not (tmp_path / "out").read_text()
