"""What the tests of the experiment share: a header, recorders that end, and where a real program's functions lie."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from collector.experiment.recorder import Header, Recorder

START_NS = 7_001_000_000_013
START_UNIX = 2_100_000_003  # programs compiled meanwhile have not changed since
INTERVAL_NS = 10_007_000

HEADER = Header(
    hostname="somewhere", os="Linux 6.1.0", arch="x86_64", page_size=4096, n_pages=262_147, cpus=[2500, 2501, 2503],
    pid=4711, ppid=4001, pgrp=4711, sid=4001, cwd=b"/tmp/some where", arguments=b"/usr/bin/prog -a 'b c'", wsize=64,
    interval_ns=INTERVAL_NS, sample_period_s=1, start_ns=START_NS, start_unix=START_UNIX, collector="collect 0.1")


@pytest.fixture
def header() -> Header:
    """A header with a different value in every field."""
    return HEADER


@pytest.fixture
def record(tmp_path: Path) -> Iterator[Callable[..., Recorder]]:
    """``record("a.1.er", wsize=32)``: a recorder; names in a founder (``a.1.er/_f1.er``) make descendants."""
    open_recorders: list[Recorder] = []

    def create(name: str = "test.1.er", **changes: object) -> Recorder:
        path = tmp_path / name
        if path.parent == tmp_path:
            path.mkdir()
        recorder = Recorder.create(path, replace(HEADER, **changes))  # type: ignore[arg-type]
        open_recorders.append(recorder)
        return recorder

    yield create
    for recorder in open_recorders:
        recorder.close(START_NS)


@pytest.fixture
def mount_tmpfs(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """``mount_tmpfs("2m")``: a file system of that size. Where it cannot be mounted the test ends."""
    mounted: list[Path] = []

    def mount(size: str) -> Path:
        path = tmp_path / f"tmpfs{len(mounted)}"
        path.mkdir()
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", path], capture_output=True,
                              text=True)
        if done.returncode:
            end = pytest.fail if os.environ.get("CI") and os.geteuid() == 0 else pytest.skip
            end(f"a small disk is mounted by root only: {done.stderr.strip()}")
        mounted.append(path)
        return path

    yield mount
    for path in mounted:
        subprocess.run(["umount", path], check=True)


@dataclass(frozen=True)
class Program:
    """A real program as if mapped: the text segment, and its functions by name -> (first pc, size)."""

    path: bytes
    vaddr: int
    size: int
    file_offset: int
    functions: dict[str, tuple[int, int]]

    def pc(self, function: str, offset: int = 0) -> int:
        """A run-time address inside a function."""
        return self.functions[function][0] + offset


BASE = 0x5555_5555_4000


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory, need: Callable[[str, str], str]) -> Program:
    """A compiled position-independent program with the functions main, outer, middle and inner, mapped at BASE."""
    directory = tmp_path_factory.mktemp("program")
    source = directory / "prog.c"
    source.write_text(
        "int inner(int n) { int s = 0; for (int i = 0; i < n; i++) s += i * n; return s; }\n"
        "int middle(int n) { return inner(n) + 1; }\n"
        "int outer(int n) { return middle(n) * 2; }\n"
        "int main(int n, char **v) { (void)v; return outer(n); }\n")
    path = directory / "prog"
    subprocess.run([need("gcc", "gcc"), "-g", "-gdwarf-4", "-O0", "-pie", "-fPIE", "-o", path, source], check=True)
    return program_at(os.fsencode(path), BASE)


def program_at(path: bytes, base: int) -> Program:
    """The program's text segment by ``readelf`` and its functions by ``nm``."""
    loads = subprocess.run(["readelf", "-lW", path], check=True, capture_output=True, text=True).stdout
    match = re.search(r"LOAD\s+(0x\w+) (0x\w+) 0x\w+ (0x\w+) 0x\w+ R E", loads)
    assert match is not None
    offset, vaddr, size = (int(text, 16) for text in match.groups())
    symbols = subprocess.run(["nm", "-S", path], check=True, capture_output=True, text=True).stdout
    functions = {name: (base + int(start, 16), int(length, 16))
                 for start, length, name in re.findall(r"^(\w+) (\w+) [tT] (\S+)$", symbols, re.MULTILINE)}
    return Program(path, base + vaddr, -(-size // 4096) * 4096, offset, functions)
