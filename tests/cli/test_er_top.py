"""er_top: its figures are er_print's; its screens on real terminals; and whatever ends it, nothing stays behind."""

from __future__ import annotations

import fcntl
import os
import re
import resource
import signal
import subprocess
import sys
import termios
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import prefork
import pytest

from collector.cli.top.lines import fitted, shown
from collector.cli.top.screen import keys_of
from collector.experiment.reader import open_experiment

Run = Callable[..., Any]
ER_TOP = str(Path(sys.executable).with_name("er_top"))
COLLECT = str(Path(sys.executable).with_name("collect"))
PATIENCE_S = 90
ROW = re.compile(r" *((?:[0-9.]+ +){3,})(\S.*)")


def rows(text: str, title: str) -> list[tuple[str, list[float]]]:
    """Names and numbers of the last table with such a title."""
    lines = text[text.rindex(title):].splitlines()[1:]
    found = []
    for line in lines:
        match = ROW.fullmatch(line)
        if match is None:
            break
        found.append((match[2], [float(number) for number in match[1].split()]))
    return found


def in_seconds(text: str) -> Counter[tuple[float, ...]]:
    """How often each row of numbers occurs in what er_print printed, but for the total and those without any."""
    every = [ROW.fullmatch(line) for line in text.splitlines()]
    found = [tuple(float(number) for number in match[1].split()) for match in every
             if match is not None and not match[2].startswith("<Total>")]
    return Counter(numbers for numbers in found if any(numbers))


@pytest.mark.usefixtures("perf_allowed")
def test_figures_of_all_looks_are_those_of_er_print(workload: Run, er_print: Run, tmp_path: Path) -> None:
    """A program of three threads that takes 1.3 s, looked at five times a second; then the experiment as it is."""
    path, program = tmp_path / "run.er", workload("split")
    command = [ER_TOP, "-b", "-c", "-d", "0.2", "-o", path, "--view", "functions,threads,states", "--", program, "1.3"]
    done = prefork.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    printed = er_print("-metrics", "e.totalcpu:i.totalcpu:name", "-functions", path).stdout
    wanted = Counter()
    for line in printed.splitlines():
        match = re.fullmatch(r" *([0-9.]+) +([0-9.]+) +(\S.*)", line)
        if match and (float(match[1]) or float(match[2])):
            wanted[match[3], float(match[1]), float(match[2])] += 1
    assert len(wanted) > 5
    again = prefork.run([ER_TOP, "-c", "--view", "functions,threads", path], capture_output=True, text=True,
                        timeout=PATIENCE_S)
    threads = er_print("-metrics", "e.totalcpu:e.user:e.wait:e.lock:e.sleep:name", "-threads", path).stdout
    for text in (done.stdout, again.stdout):
        assert Counter((name, own, inclusive) for name, (own, _, inclusive, _) in
                       rows(text, "(Total CPU Time by function)")) == wanted
        mine = [numbers[-7:] for name, numbers in rows(text, "(threads)") if name != "<Total>"]
        assert Counter((n[0], n[1], n[3], n[4], n[5]) for n in mine) == in_seconds(threads)


def test_snapshots_follow_each_other(tmp_path: Path) -> None:
    """The status is the program's, which is ended with the last one."""
    begun_s = time.monotonic()
    done = prefork.run([ER_TOP, "-n", "3", "-d", "0.2", "-l", "2", "--", "sleep", "60"], capture_output=True,
                       text=True, timeout=PATIENCE_S, env=os.environ | {"TMPDIR": str(tmp_path)})
    assert time.monotonic() - begun_s < PATIENCE_S
    assert done.returncode == 128 + signal.SIGTERM
    assert done.stdout.count("\ner_top ") + 1 == done.stdout.count("  live  ") == 3
    assert "\x1b" not in done.stdout
    assert os.listdir(tmp_path) == []


@pytest.mark.usefixtures("perf_allowed")
def test_a_number_that_is_taken_is_counted_on(hostile_experiment: Path, tmp_path: Path) -> None:
    """What is shown is what is recorded, not what has that name already."""
    hostile_experiment.rename(tmp_path / "x.1.er")
    done = prefork.run([ER_TOP, "-b", "-n", "1", "-d", "0.1", "-o", "x.1.er", "--", "sleep", "60"], cwd=tmp_path,
                       capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 128 + signal.SIGTERM
    assert done.stdout.startswith("er_top x.2.er  "), done.stderr
    assert open_experiment(tmp_path / "x.2.er").log.complete


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("arguments", "status", "words"), [
    ((), 2, "give one experiment"), (("a.er", "b.er"), 2, "give one experiment"), (("--",), 2, "without a program"),
    (("./prog",), 2, "neither an experiment (NAME.er) nor a PID; a program is started by -- ./prog"),
    (("/nowhere.er",), 1, "not an experiment"), (("/tmp",), 1, "not an experiment"),
    (("4194305",), 1, "er_top: 4194305: there is no such process"),
    (("--", "/nowhere/prog"), 127, "/nowhere/prog"), (("-d", "0", "a.er"), 2, "-d 0: give seconds from 0.1"),
    (("-n", "9" * 5000, "a.er"), 2, "give a number from 1"),
    (("-n", "x", "a.er"), 2, "-n x"), (("--view", "all", "a.er"), 2, "--view all"), (("-o", "x.er", "a.er"), 2, "-o"),
    (("-o", "wrong", "--", "true"), 1, "must end in .er"), (("-o", "/tmp", "--", "true"), 2, "/tmp exists; choose")])
def test_errors_are_one_line(arguments: tuple[str, ...], status: int, words: str, tmp_path: Path) -> None:
    done = prefork.run([ER_TOP, *arguments], capture_output=True, text=True, timeout=PATIENCE_S,
                       env=os.environ | {"TMPDIR": str(tmp_path)})
    assert (done.returncode, done.stdout) == (status, "")
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert os.listdir(tmp_path) == []


# --- terminals ------------------------------------------------------------------------------------


class Terminal:
    """A pseudo terminal whose session er_top leads; ``text``: all that was written to it."""

    def __init__(self, folder: Path, *arguments: str | Path) -> None:
        self._ours, theirs = os.openpty()
        termios.tcsetwinsize(theirs, (24, 80))
        self.before = termios.tcgetattr(theirs)
        self._theirs = theirs

        def lead() -> None:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen(
            [ER_TOP, *arguments], stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True, preexec_fn=lead,
            env=os.environ | {"TERM": "xterm", "TMPDIR": str(folder)})
        os.set_blocking(self._ours, False)
        self.text = ""

    def wait_for(self, words: str) -> None:
        """Until it has been written."""
        deadline = time.monotonic() + PATIENCE_S
        while words not in self.text:
            assert time.monotonic() < deadline, self.text
            self.read()
            time.sleep(0.02)

    def read(self) -> None:
        with suppress(OSError):
            while part := os.read(self._ours, 1 << 16):
                self.text += part.decode("utf-8", "replace")

    def type(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def hang_up(self) -> None:
        os.close(self._theirs)
        os.close(self._ours)

    def status(self) -> int:
        deadline = time.monotonic() + PATIENCE_S
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.text
            self.read()
            time.sleep(0.02)
        self.read()
        return self.process.returncode

    def is_restored(self) -> bool:
        """The screen, the cursor, the breaking of lines and the modes are as they were."""
        pairs = ("\x1b[?1049h", "\x1b[?1049l"), ("\x1b[?25l", "\x1b[?25h"), ("\x1b[?7l", "\x1b[?7h")
        modes = all(self.text.rindex(before) < self.text.rindex(after) for before, after in pairs)
        return modes and termios.tcgetattr(self._theirs) == self.before

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for fd in (self._ours, self._theirs):
            with suppress(OSError):
                os.close(fd)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []
    (tmp_path / "temporary").mkdir()

    def open_(*arguments: str | Path) -> Terminal:
        opened.append(Terminal(tmp_path / "temporary", *arguments))
        return opened[-1]

    yield open_
    for one in opened:
        one.close()
    assert os.listdir(tmp_path / "temporary") == []


@pytest.mark.parametrize(("way", "status"), [
    ("q", 143), ("\x03", 130), ("\x1c", 131), ("SIGTERM", 143), ("hang up", 129), ("the program ends", 3)])
def test_nothing_stays_whatever_ends_it(terminal: Callable[..., Terminal], tmp_path: Path, way: str,
                                        status: int) -> None:
    """Nor of a shell's children, be it as soon as there is a screen; what the program wrote to the terminal comes last.
    See _nothing_stays_behind, too."""
    script = "echo from the program; " + ("sleep 0.3; exit 3" if status == 3 else "sleep 61 & sleep 62; true")
    one = terminal("-d", "0.1", "--", "sh", "-c", script)
    one.wait_for("q quit" if len(way) == 1 else "er_top ")
    if len(way) == 1:
        one.type(way)
    elif way == "SIGTERM":
        one.process.terminate()
    elif way == "hang up":
        one.hang_up()
    assert one.status() == status, one.text
    if way != "hang up":
        assert one.is_restored()
    if len(way) == 1 or status == 3:
        assert "from the program" in one.text[one.text.rindex("\x1b[?1049l"):]
    assert os.listdir(tmp_path / "temporary") == []


def test_what_cannot_be_started_is_one_line_on_a_terminal_too(terminal: Callable[..., Terminal]) -> None:
    one = terminal("--", "/nowhere/prog")
    assert one.status() == 127
    assert one.is_restored()
    after = one.text[one.text.rindex("\x1b[?1049l"):]
    assert after.count("/nowhere/prog") == 1
    assert "er_top: " in after


@pytest.mark.usefixtures("perf_allowed", "attach_allowed")
@pytest.mark.parametrize(("key", "status"), [("q", 0), ("\x1c", 131)])
def test_a_process_that_it_attached_to_goes_on(terminal: Callable[..., Terminal], tmp_path: Path, key: str,
                                               status: int) -> None:
    with subprocess.Popen(["sleep", "60"]) as target:
        one = terminal("-d", "0.1", "-o", tmp_path / "kept.er", str(target.pid))
        one.wait_for("q quit")
        one.type(key)
        assert one.status() == status, one.text
        assert one.is_restored()
        assert target.poll() is None
        target.terminate()
    assert open_experiment(tmp_path / "kept.er").log.complete


@pytest.mark.usefixtures("perf_allowed", "attach_allowed")
def test_who_waits_for_collect_is_told(terminal: Callable[..., Terminal], tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as target:
        one = terminal("-d", "0.1", "-o", tmp_path / "kept.er", str(target.pid))
        one.wait_for("q quit")
        collect = int(Path(f"/proc/{one.process.pid}/task/{one.process.pid}/children").read_text())
        os.kill(collect, signal.SIGSTOP)
        one.type("q")
        one.wait_for("er_top: collect closes the experiment, which may take some seconds\r\n")
        assert one.process.poll() is None
        os.kill(collect, signal.SIGCONT)
        assert one.status() == 0, one.text
        target.terminate()


# --- screens --------------------------------------------------------------------------------------

HOSTILE = [b"\x1b[2J\x1b[31m", "\u202eabc".encode(), "\u05d0\u05d1\u05d2".encode(), "\u6f22\u5b57\u6f22\u5b57".encode(),
           b"\xff\n\r\t", "e\u0301\u0327".encode()]


def tmux(need: Run, folder: Path) -> Callable[..., str]:
    program, socket = need("tmux", "tmux"), folder / "tmux"

    def run(*arguments: str) -> str:
        return subprocess.run([program, "-u", "-S", socket, "-f", "/dev/null", *arguments], check=True, text=True,
                              capture_output=True, timeout=PATIENCE_S).stdout

    return run


@pytest.fixture
def hostile_experiment(tmp_path: Path) -> Path:
    """Threads and functions with names that would spoil a screen, one of 4,000 bytes."""
    import numpy as np

    from collector.experiment.recorder import Header, Recorder

    path, start_ns = tmp_path / "x.er", 7_001_000_000_013
    path.mkdir()
    names = [*HOSTILE, "\u5b57".encode() * 1333, b"work"]
    recorder = Recorder.create(path, Header(
        hostname="h", os="Linux", arch="x86_64", page_size=4096, n_pages=1, cpus=[1], pid=71, ppid=70, pgrp=71, sid=70,
        cwd=b"/", arguments=b"\x1b]0;x\x07 prog", wsize=64, interval_ns=10_007_000, sample_period_s=1,
        start_ns=start_ns, start_unix=2_100_000_003, collector="collect"))
    recorder.function_mapped(start_ns, 0x1000, 0x1000, b"[vdso]",
                             [(0x1000 + 0x10 * i, 0x10, name) for i, name in enumerate(names)])
    n = len(names)
    uids = recorder.frames.intern((0x1000 + 0x10 * np.arange(n, dtype=np.uint64))[:, None], np.ones(n, np.int64))
    for i, name in enumerate(names):
        recorder.thread_started(71 + i, start_ns, name[:15] if i < n - 2 else name)
    recorder.clock(71 + np.arange(n), np.zeros(n, np.int64), start_ns + np.arange(n), uids, np.zeros(n, np.int64),
                   3 + np.arange(n))
    recorder.close(start_ns + 1_000_000_000)
    return path


@pytest.mark.parametrize(("columns", "lines"), [(80, 24), (200, 50)])
def test_hostile_names_do_not_break_a_screen(need: Run, hostile_experiment: Path, tmp_path: Path, columns: int,
                                             lines: int) -> None:
    """Whatever is shown, heading and last line stand where they belong; also when the window's size changes."""
    run = tmux(need, tmp_path)
    run("new-session", "-d", "-x", str(columns), "-y", str(lines), f"{ER_TOP} {hostile_experiment}")
    try:
        for key, title in (("f", "Incl. s"), ("t", "TID"), ("s", "Seconds")):
            run("send-keys", key)
            # Its last line is drawn last.
            screen = captured(run, lambda text, title=title: title in text and "\nq quit" in text)
            check(screen, columns, lines)
            if key == "f":
                assert re.search(r"0\.100 +19\.2 +0\.100 +19\.2 +work\n", screen)
                for words in (r"\x1b[2J\x1b[31m", r"\u202eabc", "\u05d0\u05d1\u05d2", "\u6f22\u5b57\u6f22\u5b57\n"):
                    assert words in screen
        run("resize-window", "-x", "61", "-y", "11")
        run("send-keys", "f")
        check(captured(run, lambda text: "Excl. s" in text and len(text.splitlines()) == 11), 61, 11)
    finally:
        run("kill-server")


def captured(run: Callable[..., str], is_there: Callable[[str], bool]) -> str:
    deadline = time.monotonic() + PATIENCE_S
    while not is_there(text := run("capture-pane", "-p")):
        assert time.monotonic() < deadline, text
        time.sleep(0.02)
    return text


def check(screen: str, columns: int, lines: int) -> None:
    every = screen.split("\n")[:-1]
    assert len(every) == lines
    assert every[0].startswith("er_top x.er  0:00:0")
    assert every[1].startswith("CPU ")
    assert "Name" in every[4]
    assert every[-1].startswith("q quit  h help")
    assert all(line.isprintable() and len(line) <= columns for line in every)


@pytest.mark.usefixtures("perf_allowed")
@pytest.mark.parametrize(("columns", "lines"), [(80, 24), (200, 50)])
def test_a_screen_while_a_program_runs(need: Run, workload: Run, tmp_path: Path, columns: int, lines: int) -> None:
    """Its function, its threads, its state; a search that leaves one row, and the help; in a window that becomes
    smaller and larger meanwhile.
    """
    run = tmux(need, tmp_path)
    run("new-session", "-d", "-x", str(columns), "-y", str(lines),
        f"TMPDIR={tmp_path} {ER_TOP} -d 0.3 -- {workload('crowd')} 2 10 40")
    try:
        for width, height in ((columns, lines), (67, 13), (columns, lines)):
            run("resize-window", "-x", str(width), "-y", str(height))
            screen = captured(run, lambda text, height=height: "leaf_seven" in text and "live" in text
                              and text.count("\n") == height and text.splitlines()[-1].startswith("q quit"))
            assert screen.startswith("er_top top.er")
            assert all(line.isprintable() and len(line) <= width for line in screen.splitlines())
        run("send-keys", "/", "leaf_th", "Enter")
        captured(run, lambda text: "leaf_three" in text and "leaf_seven" not in text)
        run("send-keys", "/", "Enter", "t")
        captured(run, lambda text: text.count("  crowd") == 2 and "TID" in text)
        run("send-keys", "h")
        captured(run, lambda text: "draw everything anew" in text)
        run("send-keys", "x", "q")
        deadline = time.monotonic() + PATIENCE_S
        while list(tmp_path.glob("er_top.*")):
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        subprocess.run([need("tmux", "tmux"), "-S", tmp_path / "tmux", "kill-server"], capture_output=True)


@pytest.mark.parametrize(("text", "width", "wanted"), [
    ("abc", 3, "abc"), ("abcd", 3, "ab…"), ("\u6f22\u5b57", 4, "\u6f22\u5b57"), ("\u6f22\u5b57", 3, "\u6f22…"),
    ("\u6f22\u5b57", 2, "…"), ("abc", 0, "")])
def test_what_does_not_fit_is_cut(text: str, width: int, wanted: str) -> None:
    assert fitted(text, width) == wanted


def test_what_has_no_width_becomes_an_escape() -> None:
    assert shown("e\u0301\u200b\u202e".encode() + b"\xff\x1b") == r"e\u0301\u200b\u202e\xff\x1b"


def test_keys_and_their_sequences() -> None:
    assert keys_of("a\x1b[A\x1b[6~\x1b[99~\x1bOB\x1b") == ["a", "up", "page down", "down", "\x1b"]


@pytest.mark.usefixtures("perf_allowed")
def test_a_program_has_the_environment_that_er_top_was_given(tmp_path: Path) -> None:
    given = {name: value for name, value in os.environ.items() if name.startswith("PYTHON")} | {"TMPDIR": str(tmp_path)}
    done = subprocess.run([ER_TOP, "-b", "--", "/usr/bin/env"], env=given, capture_output=True, text=True,
                          timeout=PATIENCE_S, check=True)
    assert re.findall(r"^\w+=.*", done.stdout, re.MULTILINE) == [f"{name}={value}" for name, value in given.items()]
