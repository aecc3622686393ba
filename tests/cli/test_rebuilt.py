"""A program that was built anew after it was recorded: its functions are not those that were recorded."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collector.cli import er_archive, er_export, er_print
from collector.elf import open_object
from collector.experiment.identity import UNKNOWN, Identity, identity_of
from collector.experiment.recorder import Header, Recorder

START_NS = 5_003_000_000_017
BASE = 0x5555_0000_0000
FIRST = "int alpha(int n) { return n * 3; }\nint beta(int n) { return n - 3; }\n"
AGAIN = "int extra(int n) { return n ^ 7; }\nint beta(int n) { return n - 3; }\nint alpha(int n) { return n * 3; }\n"
WORKING = """
volatile long sum;
int spin(long n) { for (long i = 0; i < n; i++) sum += i; return 0; }
"""


@pytest.fixture
def build(tmp_path: Path, need: Callable[[str, str], str]) -> Callable[..., Path]:
    """``build(source, *flags)``: the program, always of the same name."""
    def program(source: str, *flags: str) -> Path:
        path = tmp_path / "prog"
        (tmp_path / "prog.c").write_text(source + "int main(void) { return 0; }\n" * ("main" not in source))
        command = [need("gcc", "gcc"), "-g", "-gdwarf-4", "-O0", *flags, "-o", path, tmp_path / "prog.c"]
        subprocess.run(command, check=True)
        return path

    return program


def identity(program: Path) -> Identity:
    with open_object(str(program)) as file:
        return identity_of(file)


def pc_of(program: Path, function: str) -> int:
    symbols = subprocess.run(["nm", program], check=True, capture_output=True, text=True).stdout
    return next(int(line.split()[0], 16) for line in symbols.splitlines() if line.endswith(f" {function}"))


def record(path: Path, *mapped: tuple[Path, int, Identity]) -> Path:
    """An experiment with the text of each (program, pc, identity) mapped, and a tick at the pc."""
    path.mkdir()
    recorder = Recorder.create(path, Header(
        hostname="h", os="Linux 6.1.0", arch="x86_64", page_size=4096, n_pages=1, cpus=[1], pid=71, ppid=70, pgrp=71,
        sid=70, cwd=b"/", arguments=b"prog", wsize=64, interval_ns=10_007_000, sample_period_s=1, start_ns=START_NS,
        start_unix=int(time.time()) + 1, collector="collect"))
    for number, (program, pc, known) in enumerate(mapped):
        base = BASE + number * 0x100_0000
        recorder.segment_mapped(START_NS, base + 0x1000, 0x1000, 0x1000, os.fsencode(program), 5, known)
        uid = recorder.frames.intern(np.array([[base + pc]], np.uint64), np.array([1]))
        one = np.ones(1, np.int64)
        recorder.clock(one * 71, one, one * (START_NS + number), uid, one * 0, one)
    recorder.close(START_NS + 1_000_000_000)
    return path


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """``printed("-functions", path)``: what er_print says."""
    def run(*arguments: object) -> str:
        assert er_print.run([str(argument) for argument in arguments]) == 0
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize("flags", [(), ("-Wl,--build-id=none",)], ids=["build id", "size and time"])
def test_another_build_has_no_names(flags: tuple[str, ...], build: Callable[..., Path], tmp_path: Path,
                                    printed: Callable[..., str]) -> None:
    program = build(FIRST, *flags)
    pc = pc_of(program, "beta") + 4
    path = record(tmp_path / "a.1.er", (program, pc, identity(program)))
    assert " beta" in printed("-functions", path)
    build(AGAIN, *flags)
    os.utime(program, (1, 1))  # as package managers do: a new file with an old time
    for table in ("-functions", "-callers-callees", "-calltree", "-lines", "-pcs"):
        shown = printed(table, path)
        assert shown.startswith(f"*** Warning: {program}: not the file that was recorded (")
        assert f"<Unknown>@0x{pc:x} (<prog>)" in shown
        assert "alpha" not in shown
        assert "beta" not in shown
    assert shown.count("***") == 1
    assert f"*** Warning: {program}: not the file that was recorded" in printed("-header", path)
    assert f"*** Warning: {program}: not the file that was recorded" in printed("-objects", path)
    assert "<Unknown>" not in printed("-inlines", "on", "-functions", path).replace(f"<Unknown>@0x{pc:x}", "")


def test_the_copy_in_the_archives_keeps_the_names(build: Callable[..., Path], tmp_path: Path,
                                                  printed: Callable[..., str]) -> None:
    program = build(FIRST)
    path = record(tmp_path / "a.1.er", (program, pc_of(program, "beta"), identity(program)))
    assert er_archive.run([str(path)]) == 0
    build(AGAIN)
    shown = printed("-functions", path)
    assert " beta" in shown
    assert "***" not in shown + printed("-header", path)


def test_the_debug_file_of_another_build_is_not_taken(build: Callable[..., Path], tmp_path: Path,
                                                      printed: Callable[..., str]) -> None:
    def separate(program: Path) -> None:
        for options in ("--only-keep-debug prog prog.debug", "--strip-all --add-gnu-debuglink=prog.debug prog"):
            subprocess.run(["objcopy", *options.split()], check=True, cwd=program.parent)

    program = build(FIRST)
    pc = pc_of(program, "beta")
    separate(program)
    path = record(tmp_path / "a.1.er", (program, pc, identity(program)))
    assert " beta" in printed("-functions", path)
    assert er_archive.run([str(path)]) == 0
    separate(build(AGAIN))
    shown = printed("-functions", path)
    assert not {"alpha", "beta", "extra"} & set(shown.split())


@pytest.mark.parametrize("force", [(), ("-F",)])
def test_another_build_is_not_archived(force: tuple[str, ...], build: Callable[..., Path], tmp_path: Path,
                                       capsys: pytest.CaptureFixture[str]) -> None:
    program = build(FIRST)
    path = record(tmp_path / "a.1.er", (program, pc_of(program, "beta"), identity(program)))
    build(AGAIN)
    os.utime(program, (1, 1))
    assert er_archive.run([*force, str(path)]) == 1
    assert f"{program}: not archived: it is not the file that was recorded (build id" in capsys.readouterr().err
    assert list((path / "archives").iterdir()) == []


def test_a_wrong_copy_is_not_trusted_and_is_replaced(build: Callable[..., Path], tmp_path: Path,
                                                     printed: Callable[..., str]) -> None:
    program = build(FIRST)
    path = record(tmp_path / "a.1.er", (program, pc_of(program, "beta"), identity(program)))
    assert er_archive.run([str(path)]) == 0
    (copy,) = (path / "archives").iterdir()
    right = program.read_bytes()
    shutil.copy(build(AGAIN), copy)
    assert f"*** Warning: {copy}: not the file" in printed("-functions", path)
    program.write_bytes(right)
    assert " beta" in printed("-functions", path)
    assert er_archive.run([str(path)]) == 0
    assert copy.read_bytes() == right


def test_two_builds_of_one_name_in_one_recording_are_two_objects(build: Callable[..., Path], tmp_path: Path,
                                                                 printed: Callable[..., str]) -> None:
    first = build(FIRST)
    first_pc, first_known = pc_of(first, "beta"), identity(first)
    again = build(AGAIN)
    path = record(tmp_path / "a.1.er", (first, first_pc, first_known), (again, pc_of(again, "alpha"), identity(again)))
    shown = printed("-functions", path)
    assert f"<Unknown>@0x{first_pc:x} (<prog>)" in shown
    assert " alpha" in shown
    assert " beta" not in shown


@pytest.mark.parametrize("flags", [(), ("-Wl,--build-id=none",)], ids=["build id", "size and time"])
def test_two_builds_that_no_record_tells_apart_are_told_apart_by_their_copies(
        flags: tuple[str, ...], build: Callable[..., Path], tmp_path: Path, printed: Callable[..., str]) -> None:
    def recorded(name: str, program: Path, changed_s: int) -> Path:
        os.utime(program, (changed_s, changed_s + 0.25))
        path = record(tmp_path / name, (program, pc_of(program, "beta"), UNKNOWN))
        assert er_archive.run([str(path)]) == 0
        (copy,) = (path / "archives").iterdir()
        os.utime(copy, (changed_s, changed_s))  # as the reference collector has them
        return path

    first, alike = recorded("a.1.er", build(FIRST, *flags), 1001), recorded("c.1.er", build(FIRST, *flags), 1001)
    again = recorded("b.1.er", build(AGAIN, *flags), 2003)
    rows = [line.split() for line in printed("-functions", first, again, alike).splitlines() if " 0.0" in line]
    assert [(row[0], row[-1]) for row in rows] == [("0.030", "<Total>"), ("0.020", "beta"), ("0.010", "beta")]
    compared = [line.split() for line in printed("-compare", "on", "-functions", first, again).splitlines()]
    assert [line[-1] for line in compared if "0.010" in line] == ["<Total>", "beta"]
    for path in (first, again):
        shutil.rmtree(path / "archives")
    assert printed("-objects", first, again).count("<prog>") == 1  # both are what lies there now


def exported_build_ids(path: Path, program: Path) -> set[str]:
    out = path.with_suffix(".json")
    assert er_export.run(["json", str(path), "-o", str(out)]) == 0
    return {one["build_id"] for one in json.loads(out.read_text())["objects"] if one["path"] == str(program)}


def test_where_nothing_is_known_a_later_change_makes_names_doubtful(build: Callable[..., Path], tmp_path: Path,
                                                                    printed: Callable[..., str]) -> None:
    program = build(FIRST)
    path = record(tmp_path / "a.1.er", (program, pc_of(program, "beta"), UNKNOWN))
    assert "***" not in printed("-functions", path)
    assert exported_build_ids(path, program) == {identity(program).build_id.hex()}
    os.utime(program, (time.time() + 100,) * 2)
    assert exported_build_ids(path, program) == {""}  # servers of symbols would take its word for it
    shown = printed("-functions", path)
    assert shown.startswith(f"*** Warning: {program}: has changed since it was recorded; names of its functions may be")
    assert " beta" in shown


def test_what_collect_records_is_told_apart(build: Callable[..., Path], tmp_path: Path, collect: Callable[..., Any],
                                            gprofng: Callable[..., Any], printed: Callable[..., str]) -> None:
    main = "int main(void) { for (int i = 0; i < 300; i++) spin(300000); return 0; }\n"
    program = build(WORKING + main)
    path = tmp_path / "a.1.er"
    assert collect("-A", "off", "-o", path, program).returncode == 0
    assert f'buildid="{identity(program).build_id.hex()}"'.encode() in (path / "map.xml").read_bytes()
    assert " spin" in gprofng("-functions", experiment=path).text  # which says nothing on stderr
    assert " spin" in printed("-functions", path)
    build("int other(int n) { return n; }\n" + WORKING + main)
    shown = printed("-functions", path)
    assert shown.startswith(f"*** Warning: {program}: not the file that was recorded (build id ")
    assert " spin" not in shown
    assert "__libc_start_main" in shown
