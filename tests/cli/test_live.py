"""``collect --print``: what is aggregated, on stderr while recording goes on."""

from __future__ import annotations

import os
import pty
import re
import struct
import subprocess
import sys
from collections.abc import Callable
from fcntl import ioctl
from pathlib import Path
from termios import TIOCSWINSZ
from typing import Any

import prefork
import psutil
import pytest
from naps import n_naps

from collector.cli.live import Page

Run = Callable[..., Any]

COLLECT = Path(sys.executable).parent / "collect"
HEAD = re.compile(r"\d\d:\d\d:\d\d  aggregated for (\d+\.\d) s|nothing is aggregated yet")
NAPS = 'naps[execname, usym] = count() / state == "sleep" /'
ROWS, COLUMNS = 12, 50


@pytest.fixture
def printing(tmp_path: Path, perf_allowed: None) -> list[str | Path]:
    """The command up to the program, which prints every second."""
    return [COLLECT, "-o", tmp_path / "run.er", "--aggregate", NAPS, "--print", "1"]


def blocks_of(printed: str) -> list[tuple[float, list[str]]]:
    """When each block is of, and its lines."""
    found: list[tuple[float, list[str]]] = []
    for line in printed.splitlines():
        if head := HEAD.fullmatch(line):
            found.append((float(head[1] or 0), []))
        elif found:
            found[-1][1].append(line)
    return found


def counts_of(lines: list[str]) -> int:
    return sum(int(line.split()[-1]) for line in lines if "clock_nanosleep" in line)


@pytest.fixture
def napping(workload: Run) -> list[str | Path]:
    """A program that naps 20 times, and 27 times more once it has read a line."""
    return ["sh", "-c", '"$1" nanosleep 20 2; read line; "$1" nanosleep 27 2', "sh", workload("states")]


def test_states_follow_each_other_and_the_last_one_is_what_is_read(
        printing: list[str | Path], er_print: Run, napping: list[str | Path], tmp_path: Path) -> None:
    with prefork.Popen([*printing, *napping], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                       text=True) as process:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        n_first, printed = n_naps(process.stdout.readline()), ""
        for line in process.stderr:
            printed += line
            if counts_of([line]) == n_first:
                break
        process.stdin.write("\n")
        out, rest = process.communicate(timeout=60)
    assert process.returncode == 0, printed + rest
    assert out.count("\n") == 1  # the second program's own line
    blocks = blocks_of(printed + rest)
    times, counts = [time_s for time_s, _ in blocks], [counts_of(lines) for _, lines in blocks]
    assert times == sorted(times)
    assert counts == sorted(counts)
    assert n_first in counts
    assert counts[-1] == n_first + n_naps(out)
    assert "\n".join(blocks[-1][1]) + "\n" == er_print("-aggregations", tmp_path / "run.er").stdout
    assert "\x1b" not in printed + rest


def read_until(fd: int, is_enough: Callable[[bytes], bool]) -> bytes:
    """What can be read until that is enough, or nobody has the other side any more."""
    found = b""
    try:
        while not is_enough(found) and (part := os.read(fd, 1 << 16)):
            found += part
    except OSError:  # EIO: nobody has
        pass
    return found


def test_on_a_terminal_each_state_takes_the_place_of_the_one_before(printing: list[str | Path],
                                                                    napping: list[str | Path]) -> None:
    """What would not fit is left out: keys with smaller values, then what is below; not of the last one."""
    ours, theirs = pty.openpty()
    ioctl(theirs, TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    more = ["--aggregate", "each[tid] = count()", "--aggregate", "long[pid, tid, execname, cpu] = quantize(oncpu)"]
    with prefork.Popen([*printing, *more, *napping], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                       stderr=theirs) as process:
        os.close(theirs)
        printed = read_until(ours, lambda found: found.count(b"\x1b[H") >= 2)
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(b"\n")
        process.stdin.close()
        printed += read_until(ours, lambda found: False)
        os.close(ours)
        n_napped = sum(n_naps(line) for line in process.stdout.read().decode().splitlines())
    assert process.returncode == 0
    _, *pages = printed.decode().replace("\r\n", "\n").split("\x1b[H")
    assert len(pages) >= 2
    for page in pages:
        page, below, _ = page.partition("\x1b[J")
        assert below
        lines = page.removesuffix("\n").split("\x1b[K\n")
        assert HEAD.match(lines[0])
        assert len(lines) <= ROWS
        assert max(map(len, lines)) <= COLUMNS + len("\x1b[K")
    (_, last) = blocks_of(pages[-1].partition("\x1b[J")[2])[-1]
    assert counts_of(last) == n_napped
    assert len(last) > ROWS


def test_a_terminal_of_no_size_has_the_usual_one(tmp_path: Path) -> None:
    """As serial lines and some containers' terminals are."""
    ours, theirs = pty.openpty()
    with open(theirs, "w") as out:
        Page(out).show(tmp_path / "not yet.er", 0)
        printed = read_until(ours, lambda found: found.endswith(b"\x1b[J"))
    os.close(ours)
    assert printed == b"\r\n" * 24 + b"\x1b[Hnothing is aggregated yet\x1b[K\r\n\x1b[J"


def test_it_ends_with_a_collector_that_is_killed(printing: list[str | Path], workload: Run) -> None:
    with prefork.Popen([*printing, workload("states"), "nanosleep", "endless", "20"], stdout=subprocess.DEVNULL,
                       stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "clock_nanosleep" in line:
                break
        else:
            pytest.fail("nothing was printed")
        (program,) = (child for child in psutil.Process(process.pid).children() if "nanosleep" in child.cmdline())
        process.kill()
        program.kill()
        rest = process.stderr.read()  # until nobody has it any more, the printer neither
    assert blocks_of(rest)


@pytest.mark.parametrize(("options", "told"), [
    (("--print", "1"), "--print prints what is aggregated: give --aggregate, too"),
    (("--aggregate", "cswch", "--print", "0.5"), "--print 0.5: give whole seconds from 1"),
])
def test_what_cannot_be_printed_is_one_line(collect: Run, tmp_path: Path, options: tuple[str, ...], told: str) -> None:
    done = collect("-o", tmp_path / "x.er", *options, "true")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"collect: {told}\n")
    assert list(tmp_path.iterdir()) == []


def test_the_program_does_not_wait_for_what_prints() -> None:
    heavy = "{'numpy', 'collector.report', 'collector.aggregate'}"
    imported = f"import sys, collector.cli.live; print({heavy} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", imported], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("set()\n", "")
