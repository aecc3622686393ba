"""What programs are found to be that a tracer stands in the way of."""

from __future__ import annotations

import os
import struct
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from collector.linux import programs


def test_a_program_is_read_once_for_all_processes_that_execute_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """They stand still meanwhile; those of a large program for long."""
    reads: list[int] = []
    pread = os.pread

    def counted(fd: int, n_bytes: int, offset: int) -> bytes:
        reads.append(n_bytes)
        return pread(fd, n_bytes, offset)

    with ExitStack() as ends:
        pids = []
        for _ in range(2):
            process = ends.enter_context(subprocess.Popen(["/bin/sleep", "600"]))
            ends.callback(process.kill)
            pids.append(process.pid)
        assert not programs.checks_leaks(pids[0])
        with monkeypatch.context() as patched:
            patched.setattr(os, "pread", counted)
            assert not programs.checks_leaks(pids[1])
    assert not reads


PAUSES = bytes.fromhex("b8220000000f05")  # mov $34, %eax; syscall


def executable(path: Path, *dynamic: int) -> None:
    """A static program that waits for a signal, with a dynamic segment at an offset of its file, of so many bytes; the
    strings' place and size, if they are given, are in it."""
    offset, n_bytes, *strings = dynamic
    head = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\2\1\1", 2, 62, 1, 0x400100, 64, 0, 0, 64, 56, 2, 0, 0, 0)
    load = struct.pack("<IIQQQQQQ", 1, 5, 0, 0x400000, 0x400000, 0x1000, 0x1000, 0x1000)
    there = struct.pack("<IIQQQQQQ", 2, 6, offset, 0x400200, 0x400200, n_bytes, n_bytes, 8)
    entries = struct.pack("<4Q", 5, strings[0], 10, strings[1]) if strings else b""
    path.write_bytes(((head + load + there).ljust(0x100, b"\0") + PAUSES).ljust(0x200, b"\0") + entries
                     + b"\0__asan_init\0".ljust(0xE00 - len(entries), b"\0"))
    path.chmod(0o755)


@pytest.mark.parametrize(("dynamic", "finds"), [
    ((0x200, 32, 0x400220, 100), True), ((0x200, 32, 0x400220, 1 << 63), True), ((0x200, 1 << 62, 0x400220, 100), True),
    ((0x200, 32, 0x400FFF, 100), False), ((0x200, 32, 1 << 63, 100), False), ((0x200, 32, 0x400000, 1 << 63), True),
    ((0, 1 << 62), False), ((1 << 63, 64), False), (((1 << 64) - 8, 64), False), ((0x5000, 64), False)])
def test_a_program_may_say_of_itself_what_cannot_be(dynamic: tuple[int, ...], finds: bool, tmp_path: Path) -> None:
    executable(tmp_path / "a", *dynamic)
    with subprocess.Popen([tmp_path / "a"]) as process:
        try:
            assert programs.checks_leaks(process.pid) is finds
        finally:
            process.kill()
