"""Names from outside may hold anything but NUL: newlines, markup, escape sequences, bytes that are no UTF-8; any
length.

What went in stands in the experiment byte by byte. Readers of ours print it as one line: printable characters of UTF-8
as they are, everything else as ``\\n``, ``\\x1b``, ``\\u202e``, and single bytes as ``\\xff``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import lxml.etree
import prefork
import pytest

from collector.experiment import names
from collector.experiment.reader import Experiment, open_experiment
from collector.experiment.xml import unescape

Run = Callable[..., Any]
COLLECT = os.fsencode(Path(sys.executable).with_name("collect"))

# (as it goes in, as it is printed)
NAMES = {
    "newline": (b"two\nlines", "two\\nlines"),
    "markup": (b"<a b='c'>&amp;\"&<!--", "<a b='c'>&amp;\"&<!--"),
    "percent": (b"%25%41%%0a%%", "%25%41%%0a%%"),
    "bytes": (b"\xff\xfe\x80\xc3", "\\xff\\xfe\\x80\\xc3"),
    "terminal": (b"\x1b[31m\r\x07\x7f", "\\x1b[31m\\r\\x07\\x7f"),
    "backslash": (b"\\012\\n\n\\", "\\012\\n\\n\\"),
    "utf-8": ("ä€𝄞".encode(), "ä€𝄞"),
    "turned round": ("\u202eabc\u2028".encode(), "\\u202eabc\\u2028"),
    "dashes and blanks": (b"-- -o  x \t", "-- -o  x \\t"),
    "deleted": (b"x (deleted) y", "x (deleted) y"),
}
ALL = b" ".join(raw for raw, _ in NAMES.values())
ALL_SHOWN = " ".join(printed for _, printed in NAMES.values())
ENGINES = ["perf", "signal"]
WAYS = ["launch", "attach"]
FIRST_WAITING_STATE = 3
PATH_MAX = 4096  # with the NUL at the end


@pytest.fixture
def enduring(workload: Run) -> Path:
    """The program that goes on until its standard input ends."""
    program: Path = workload("enduring")
    return program


def record(engine: str, way: str, path: bytes, program: list[bytes], **options: Any) -> str:
    """Records ``enduring`` for a while, by arguments ``program``; returns what collect said."""
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, **options}
    command = [COLLECT, b"--engine", engine.encode(), b"-p", b"hi", b"-o", path]
    with ExitStack() as stack:
        if way == "launch":
            collector = stack.enter_context(prefork.Popen([*command, *program], stderr=subprocess.PIPE, **pipes))
            target = collector
        else:
            target = stack.enter_context(subprocess.Popen(program, **pipes))
        assert target.stdout is not None
        assert target.stdin is not None
        stack.callback(target.stdin.close)
        assert target.stdout.readline()
        if way == "attach":
            command += [b"-t", b"0.7", b"-P", b"%d" % target.pid]
            done = prefork.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=30, check=False)
            said, status = done.stderr, done.returncode + 7
        else:
            while not os.path.exists(os.path.join(path, b"profile")):  # the first drain finds the program alive
                assert collector.poll() is None
                time.sleep(0.02)
            target.stdin.close()
            assert collector.stderr is not None
            said, status = collector.stderr.read(), collector.wait(30)
    assert status == 7, said
    return said.decode()


def checked(path: bytes) -> Experiment:
    """The experiment, its two texts well-formed and in printable ASCII, with nothing else amiss."""
    for name in (b"log.xml", b"map.xml"):
        text = Path(os.fsdecode(os.path.join(path, name))).read_bytes().rstrip(b"\0")
        assert all(32 <= byte < 127 or byte == 10 for byte in text)
        lxml.etree.fromstring(b"<roots>" + text + b"</roots>")
    experiment = open_experiment(os.fsdecode(path))
    assert experiment.problems == []
    assert experiment.log.complete
    return experiment


def failed_share(experiment: Experiment) -> float:
    """The part of the packets of running threads whose stacks could not be unwound to the root."""
    stacks, packets = experiment.stacks, experiment.packets()
    index = stacks.index(packets["FRINFO"][packets["MSTATE"] < FIRST_WAITING_STATE])
    return float(((index < 0) | stacks.failed[index]).mean())


def printed(er_print: Run, command: str, path: bytes) -> str:
    """What er_print prints: printable lines."""
    result = er_print(command, os.fsdecode(path))
    assert (result.returncode, result.stderr) == (0, "")
    assert all(line.isprintable() for line in result.stdout.split("\n"))
    return str(result.stdout)


@pytest.mark.usefixtures("perf_allowed", "attach_allowed")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_program_whose_names_hold_everything(engine: str, way: str, tmp_path: Path, enduring: Path, gprofng: Run,
                                               er_print: Run) -> None:
    program = os.path.join(os.fsencode(tmp_path), ALL, ALL)
    path = os.path.join(os.fsencode(tmp_path), ALL + b".er")
    os.mkdir(os.path.dirname(program))
    shutil.copy(enduring, program)
    arguments = [program, ALL, b"", b"x" * 4000, *(raw for raw, _ in NAMES.values())]
    said = record(engine, way, path, arguments, cwd=os.path.dirname(program))
    assert said.splitlines()[-1].startswith(f"collect: {tmp_path}/{ALL_SHOWN}.er: ")

    experiment = checked(path)
    assert failed_share(experiment) < 0.05
    assert experiment.log.arguments == b" ".join(arguments)
    assert program in [segment.name for segment in experiment.segments]
    assert experiment.log.threads[experiment.log.pid] == ALL[:15]
    if way == "launch":
        assert experiment.log.cwd == os.path.dirname(program)
    assert names.archive_name(program) in map(os.fsencode, os.listdir(experiment.archives))
    assert "work" in gprofng("-functions", experiment=os.fsdecode(path)).functions

    header = printed(er_print, "-header", path)
    assert f"Experiment: {tmp_path}/{ALL_SHOWN}.er\n" in header
    assert f"/{ALL_SHOWN}/{ALL_SHOWN} {ALL_SHOWN}  {'x' * 4000} {ALL_SHOWN}'\n" in header
    assert f" <{ALL_SHOWN}> ({tmp_path}/{ALL_SHOWN}/{ALL_SHOWN})\n" in printed(er_print, "-objects", path)
    assert " work\n" in printed(er_print, "-functions", path)


@pytest.mark.usefixtures("perf_allowed")
@pytest.mark.parametrize("case", NAMES)
def test_single_names(case: str, tmp_path: Path, er_print: Run, gprofng: Run) -> None:
    raw, shown = NAMES[case]
    path = os.path.join(os.fsencode(tmp_path), raw + b".er")
    command = [COLLECT, b"-o", path, b"/usr/bin/printf", b"%s", raw]
    result = prefork.run(command, cwd=tmp_path, capture_output=True, timeout=30, check=False)
    assert (result.returncode, result.stdout) == (0, raw), result.stderr
    assert result.stderr.decode().splitlines()[-1].startswith(f"collect: {tmp_path}/{shown}.er: ")
    assert checked(path).log.arguments == b"/usr/bin/printf %s " + raw
    assert f"Target command (64-bit): '/usr/bin/printf %s {shown}'\n" in printed(er_print, "-header", path)
    gprofng("-header", experiment=os.fsdecode(path))
    again = prefork.run(command, cwd=tmp_path, capture_output=True, timeout=30, check=False)
    assert (again.returncode, again.stdout) == (1, b"")
    assert again.stderr.decode().splitlines() == [
        f"collect: {tmp_path}/{shown}.er exists; choose another name with -o, or -O to overwrite it"]


@pytest.mark.usefixtures("perf_allowed", "attach_allowed")
@pytest.mark.parametrize("engine", ENGINES)
def test_threads_that_named_themselves(engine: str, tmp_path: Path, gprofng: Run) -> None:
    name = b"<&\"'\n%41%\xff\x1b"
    code = f"open('/proc/self/comm', 'wb').write({name!r}); print(flush=True); input()"
    path = tmp_path / "named.er"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as target:
        assert target.stdout is not None
        target.stdout.readline()
        command = [COLLECT, "--engine", engine, "-o", path, "-t", "0.2", "-P", str(target.pid)]
        result = prefork.run(command, capture_output=True, text=True, timeout=30, check=False)
        target.communicate(b"\n", timeout=30)
    assert result.returncode == 0, result.stderr
    assert checked(os.fsencode(path)).log.threads[target.pid] == name
    gprofng("-threads", experiment=path)


# --- lengths --------------------------------------------------------------------------------------


def deep(start: Path, length: int, enduring: Path) -> bytes:
    """A program whose absolute path has so many bytes, with parts of 255; its folder becomes ours."""
    os.chdir(start)
    left = length - len(os.fsencode(start)) - len(b"/program")
    while left > 1:
        part = "d" * min(left - 1, 255 if left != 257 else 254)
        os.mkdir(part)
        os.chdir(part)
        left -= 1 + len(part)
    shutil.copy(enduring, "program")
    path = os.path.join(os.getcwdb(), b"program")
    assert len(path) == length
    return path


@pytest.fixture
def back(tmp_path: Path) -> Any:
    """Comes back from where a test went, and takes away what pytest's own cleaning finds too deep."""
    before = os.getcwd()
    yield
    os.chdir(before)
    subprocess.run(["rm", "-rf", tmp_path], check=True)


@pytest.mark.usefixtures("perf_allowed", "attach_allowed", "back")
@pytest.mark.parametrize(("engine", "way", "length"), [
    ("perf", "launch", 4087), ("perf", "launch", PATH_MAX - 1), ("perf", "launch", 6007),
    ("signal", "launch", PATH_MAX - 1), ("signal", "launch", 6007), ("perf", "attach", PATH_MAX - 1)])
def test_paths_of_any_length(engine: str, way: str, length: int, tmp_path: Path, enduring: Path, gprofng: Run,
                             er_print: Run) -> None:
    # From 4,088 bytes on the kernel's records of mappings have no path; from PATH_MAX on no system call takes it.
    program = deep(tmp_path, length, enduring)
    path = os.path.join(os.fsencode(tmp_path), b"long.er")
    record(engine, way, path, [program if length < PATH_MAX else b"./program"])
    experiment = checked(path)
    assert failed_share(experiment) < 0.05
    assert program in [segment.name for segment in experiment.segments]
    assert os.path.dirname(program) == experiment.log.cwd
    assert names.archive_name(program) in map(os.fsencode, os.listdir(experiment.archives))
    assert "work" in gprofng("-functions", experiment=tmp_path / "long.er").functions
    assert " work\n" in printed(er_print, "-functions", path)


@pytest.mark.usefixtures("perf_allowed", "back")
def test_a_folder_that_was_deleted(tmp_path: Path, gprofng: Run) -> None:
    (tmp_path / "gone").mkdir()
    os.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    command = [COLLECT, "-o", tmp_path / "x.er", "/usr/bin/printf", "ran"]
    result = prefork.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (result.returncode, result.stdout) == (0, "ran")
    assert "nothing lost" in result.stderr
    assert open_experiment(tmp_path / "x.er").log.cwd == os.fsencode(tmp_path / "gone (deleted)")
    gprofng("-header", experiment=tmp_path / "x.er")


def test_what_is_written_can_be_read_back() -> None:
    log = lxml.etree.fromstring(b'<a b="%s"/>' % _escaped(ALL)).get("b")
    assert unescape(log.encode("ascii")) == ALL


def _escaped(raw: bytes) -> bytes:
    from collector.experiment.xml import escape

    return escape(raw)
