"""Load objects of a recording, by what is in their files when they are mapped."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from collector.elf import open_object
from collector.events import Mapped
from collector.session.objects import NO_OBJECT, Objects
from collector.unwind.table import Tables

ONE = "int alpha(int x) { return x * 3; } int main(void) { return alpha(1); }"
OTHER = "int beta(int x) { return x * 5; } int gamma(int x) { return x + 7; } int main(void) { return beta(gamma(1)); }"


@pytest.fixture
def programs(tmp_path: Path, need: Callable[[str, str], str]) -> Callable[[str], list[Path]]:
    """Two, with build ids or without."""
    def made(flag: str) -> list[Path]:
        for name, source in (("one", ONE), ("other", OTHER)):
            (tmp_path / f"{name}.c").write_text(source)
            subprocess.run([need("gcc", "gcc"), flag, "-o", name, f"{name}.c"], cwd=tmp_path, check=True, timeout=60)
        return [tmp_path / "one", tmp_path / "other"]

    return made


def mapped(program: Path) -> Mapped:
    """The code of a program, as if we had mapped it."""
    status, offset = os.stat(program), 0
    if status.st_size > 4096:
        with open_object(str(program)) as elf:
            offset = next(load.file_offset for load in elf.loads if load.is_executable) & -4096
    device = os.major(status.st_dev) << 20 | os.minor(status.st_dev)
    return Mapped(time.monotonic_ns(), os.getpid(), os.getpid(), 0x400000, 0x1000, offset, device, status.st_ino,
                  bytes(program))


def functions(objects: Objects, number: int) -> set[bytes]:
    return {name for _, _, name in objects.functions(number)} & {b"alpha", b"beta", b"gamma"}


@pytest.mark.parametrize("flag", ["-Wl,--build-id", "-Wl,--build-id=none"])
def test_a_file_that_is_written_anew_in_its_place_is_another_load_object(flag: str, tmp_path: Path,
                                                                         programs: Callable[[str], list[Path]]) -> None:
    one, other = programs(flag)
    program = tmp_path / "program"
    shutil.copyfile(one, program)
    objects = Objects(Tables())
    first, _ = objects.place(mapped(program))
    assert objects.place(mapped(program))[0] == first
    assert functions(objects, first.number) == {b"alpha"}
    was = objects.identity(first.number)
    shutil.copyfile(other, program)
    second, _ = objects.place(mapped(program))
    assert objects.place(mapped(program))[0] == second != first
    assert functions(objects, second.number) == {b"beta", b"gamma"}
    assert objects.identity(first.number) == was != objects.identity(second.number)
    assert (objects.rewritten, objects.doubles) == ({bytes(program)}, set())
    objects.tables.close()


def test_a_file_that_is_only_touched_is_the_same(tmp_path: Path, programs: Callable[[str], list[Path]]) -> None:
    program, _ = programs("-Wl,--build-id")
    objects = Objects(Tables())
    first, _ = objects.place(mapped(program))
    os.utime(program, ns=(1, 1))
    assert objects.place(mapped(program))[0] == first
    assert not objects.rewritten
    objects.tables.close()


def test_a_file_that_is_mapped_amid_the_writing_is_looked_at_again(tmp_path: Path,
                                                                   programs: Callable[[str], list[Path]]) -> None:
    one, other = programs("-Wl,--build-id")
    objects = Objects(Tables())
    first, _ = objects.place(mapped(one))
    one.write_bytes(b"")
    assert objects.place(mapped(one))[0].number == NO_OBJECT
    shutil.copyfile(other, one)
    third, _ = objects.place(mapped(one))
    assert third.number not in (first.number, NO_OBJECT)
    assert functions(objects, third.number) == {b"beta", b"gamma"}
    objects.tables.close()


def test_a_file_that_cannot_be_asked_any_more_is_looked_for_again(tmp_path: Path,
                                                                  programs: Callable[[str], list[Path]]) -> None:
    """As one that was replaced on a file server, whose descriptor is stale: here it is closed."""
    one, other = programs("-Wl,--build-id")
    lower = [os.open(os.devnull, os.O_RDONLY) for _ in range(16)]  # numbers for whoever opens files meanwhile
    objects = Objects(Tables())
    first, _ = objects.place(mapped(one))
    assert first.object is not None
    was = os.dup(first.object.fd)
    for fd in (*lower, first.object.fd):
        os.close(fd)
    shutil.copyfile(other, one)
    second, _ = objects.place(mapped(one))
    os.dup2(was, first.object.fd)
    os.close(was)
    assert functions(objects, second.number) == {b"beta", b"gamma"}
    objects.tables.close()
