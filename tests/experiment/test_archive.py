"""Copies of load objects in the founder's archives."""

from __future__ import annotations

import filecmp
import os
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collector.errors import ExperimentError
from collector.experiment.archive import CHOICES, Report, archive, archive_known
from collector.experiment.identity import identity_of_fd
from collector.experiment.names import archive_name, archives_path, shown
from collector.experiment.reader import open_experiment
from collector.experiment.recorder import Recorder

START_NS = 7_001_000_000_013
NS = 1_000_000_000

Record = Callable[..., Recorder]


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """Three objects, a hostile name among them."""
    places = {"used": tmp_path / "used.so", "idle": tmp_path / "idle.so", "odd": tmp_path / "o<d\nd\udcff .so"}
    for number, path in enumerate(places.values()):
        path.write_bytes(os.urandom(4096 * number + 17))
    return places


@pytest.fixture
def recorded(record: Record, files: dict[str, Path]) -> Path:
    """A founder that maps all three and has a pc in one, and a descendant that maps the program interpreter."""
    now = int(time.time())
    founder = record("a.er", start_unix=now)
    for number, path in enumerate(files.values()):
        founder.segment_mapped(START_NS, number << 20, 8192, 0, os.fsencode(path))
    founder.segment_mapped(START_NS, 7 << 20, 4096, 0, b"/memfd:jit (deleted)")
    founder.segment_mapped(START_NS, 8 << 20, 4096, 0, b"/dev/zero")
    founder.function_mapped(START_NS, 9 << 20, 4096, b"[vdso]")
    founder.frames.intern(np.array([[17, 9 << 20]], np.uint64), np.array([2]))
    founder.close(START_NS + NS)
    child = record("a.er/_f1.er", start_unix=now)
    child.segment_mapped(START_NS, 1 << 20, 4096, 0, b"/bin/sh")
    child.close(START_NS + NS)
    return founder.path


def archived(path: Path) -> set[bytes]:
    directory = path / "archives"
    return set(os.listdir(os.fsencode(directory))) if directory.exists() else set()


def copies(*paths: Path | bytes) -> set[bytes]:
    return {archive_name(os.fsencode(path)) for path in paths}


@pytest.mark.parametrize(("choice", "expected"), [
    ("off", ()), ("on", ("used", "idle", "odd", "sh")), ("ldobjects", ("used", "idle", "odd", "sh")),
    ("all", ("used", "idle", "odd", "sh")), ("src", ("used", "idle", "odd", "sh")), ("usedldobjects", ("used",)),
    ("usedsrc", ("used",))])
def test_choices(recorded: Path, files: dict[str, Path], choice: str, expected: tuple[str, ...]) -> None:
    wanted = copies(*({**files, "sh": b"/bin/sh"}[name] for name in expected))
    dry = archive(open_experiment(recorded), choice, dry_run=True)
    assert archived(recorded) == set()
    report = archive(open_experiment(recorded), choice)
    assert archived(recorded) == wanted
    assert report == dry
    assert {os.fsencode(copy.target.name) for copy in report.copied} == wanted
    assert (report.kept, report.problems) == ([], [])
    for copy in report.copied:
        assert filecmp.cmp(os.fsdecode(copy.source), copy.target, shallow=False)
        assert copy.size == copy.target.stat().st_size
        assert stat.S_IMODE(copy.target.stat().st_mode) == 0o600
    assert sorted(CHOICES) == sorted(["off", "on", "all", "ldobjects", "usedldobjects", "src", "usedsrc"])


def test_a_descendant_is_archived_into_its_founder(recorded: Path) -> None:
    archive(open_experiment(recorded / "_f1.er"))
    assert archived(recorded) == copies(b"/bin/sh")
    assert archived(recorded / "_f1.er") == set()
    child = open_experiment(recorded / "_f1.er")
    assert child.object_file(child.segments[0]).path == (
        recorded.absolute() / "archives" / os.fsdecode(archive_name(b"/bin/sh")))


def test_copies_are_kept_unless_forced(recorded: Path, files: dict[str, Path]) -> None:
    archive(open_experiment(recorded))
    copy = recorded / "archives" / os.fsdecode(archive_name(os.fsencode(files["used"])))
    copy.write_bytes(b"old")
    again = archive(open_experiment(recorded))
    assert again.copied == []
    assert sorted(again.kept) == sorted([b"/bin/sh", *map(os.fsencode, files.values())])
    assert copy.read_bytes() == b"old"
    forced = archive(open_experiment(recorded), force=True)
    assert len(forced.copied) == 4
    assert filecmp.cmp(copy, files["used"], shallow=False)


def test_what_vanished_or_changed_or_is_no_file_is_reported(recorded: Path, files: dict[str, Path]) -> None:
    files["used"].unlink()
    later = time.time() + 60
    os.utime(files["idle"], (later, later))
    files["odd"].unlink()
    os.mkfifo(files["odd"])
    report = archive(open_experiment(recorded), "src")
    assert archived(recorded) == copies(b"/bin/sh")
    assert sorted(report.problems) == sorted([
        f"{files['used']}: not archived: No such file or directory",
        f"{files['idle']}: not archived: it has changed since it was recorded",
        f"{shown(str(files['odd']))}: not archived: it is not a regular file"])
    assert [copy.source for copy in archive(open_experiment(recorded), force=True).copied] == [
        b"/bin/sh", os.fsencode(files["idle"])]


def test_programs_in_shared_memory_are_files(record: Record) -> None:
    """As where builds go into memory; what else lies in the devices' folder is no file."""
    with tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="program-") as program:
        recorder = record(start_unix=int(time.time()))
        for number, name in enumerate((program.name, "/dev/zero", "/dev/shmem")):
            recorder.segment_mapped(START_NS, number << 20, 4096, 0, os.fsencode(name))
        recorder.close(START_NS + NS)
        report = archive(open_experiment(recorder.path))
        assert [copy.source for copy in report.copied] == [os.fsencode(program.name)]
        assert report.problems == []


@pytest.mark.parametrize("choice", ["on", "usedsrc"])
def test_hostile_maps_are_told_and_end_nothing(record: Record, files: dict[str, Path], choice: str) -> None:
    """A name that no file can have, memory up to the very last address, and some of no size."""
    recorder = record(start_unix=int(time.time()))
    recorder.segment_mapped(START_NS, 1 << 20, 4096, 0, b"/tmp/a\0b")
    recorder.segment_mapped(START_NS, 2**64 - 4096, 4096, 0, os.fsencode(files["used"]))
    recorder.segment_mapped(START_NS, 0, 0, 0, os.fsencode(files["idle"]))
    uids = recorder.frames.intern(np.array([[1 << 20, 2**64 - 4000]], np.uint64), np.array([2]))
    recorder.clock(*(np.array([v]) for v in (4711, 0, START_NS + 5, int(uids[0]), 0, 4)))
    recorder.close(START_NS + NS)
    report = archive(open_experiment(recorder.path), choice)
    assert report.problems == ["/tmp/a\\x00b: not archived: it is no name of a file"]
    assert archived(recorder.path) >= copies(files["used"])


def test_symbolic_links_are_not_followed_out(recorded: Path, tmp_path: Path, files: dict[str, Path]) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (recorded / "archives").symlink_to(outside)
    with pytest.raises(ExperimentError, match="cannot archive into"):
        archive(open_experiment(recorded))
    assert os.listdir(outside) == []
    (recorded / "archives").unlink()
    (recorded / "archives").mkdir()
    victim = outside / "victim"
    victim.write_text("precious")
    copy = recorded / "archives" / os.fsdecode(archive_name(os.fsencode(files["used"])))
    copy.symlink_to(victim)
    (recorded / "archives" / f"{os.getpid()}.new").symlink_to(victim)
    archive(open_experiment(recorded), force=True)
    assert victim.read_text() == "precious"
    assert not copy.is_symlink()
    assert archived(recorded) == copies(b"/bin/sh", *files.values())


def test_an_unknown_choice_is_an_error(recorded: Path) -> None:
    with pytest.raises(ExperimentError, match="cannot archive 'some'; choose one of off, on"):
        archive(open_experiment(recorded), "some")


def test_a_full_disk_is_an_error_and_leaves_no_half_copy(
        record: Record, mount_tmpfs: Callable[[str], Path], files: dict[str, Path]) -> None:
    small = mount_tmpfs("1m")
    files["idle"].write_bytes(os.urandom(2 << 20))
    recorder = record("b.er", start_unix=int(time.time()))
    recorder.segment_mapped(START_NS, 1 << 20, 4096, 0, os.fsencode(files["idle"]))
    recorder.close(START_NS + NS)
    shutil.copytree(recorder.path, small / "b.er")
    with pytest.raises(ExperimentError, match="No space left on device; free some space and archive again"):
        archive(open_experiment(small / "b.er"))
    assert archived(small / "b.er") == set()


def test_a_container_s_files_are_read_through_its_root(record: Record, tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "bin").mkdir(parents=True)
    (root / "bin" / "inside").write_bytes(b"elf")
    recorder = record(start_unix=int(time.time()))
    recorder.segment_mapped(START_NS, 1 << 20, 4096, 0, b"/bin/inside")
    recorder.close(START_NS + NS)
    assert archive(open_experiment(recorder.path)).problems == ["/bin/inside: not archived: No such file or directory"]
    assert [c.source for c in archive(open_experiment(recorder.path), root=str(root)).copied] == [b"/bin/inside"]


def test_gprofng_reads_the_copies(record: Record, program: Any, gprofng: Callable[..., Any], tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    shutil.copy2(program.path, moved)
    recorder = record(start_unix=int(time.time()))
    recorder.segment_mapped(START_NS, program.vaddr, program.size, program.file_offset, os.fsencode(moved))
    uid = recorder.frames.intern(np.array([[program.pc("inner", 4)]], np.uint64), np.array([1]))
    recorder.clock(*(np.array([v]) for v in (4711, 0, START_NS + 5, int(uid[0]), 0, 4)))
    recorder.close(START_NS + NS)
    assert archive(open_experiment(recorder.path)).problems == []
    moved.unlink()
    assert set(gprofng("-functions", experiment=recorder.path).functions) == {"<Total>", "inner"}


SOURCES = {"m.c": '#include "./other.h"\nint work(int);\nint main(void) { return other(work(3)) & 1; }\n',
           "other.h": "static inline int other(int y) { return y + 1; }\n",
           "sub/a.c": '#include "inc/h.h"\nint work(int n) { return helper(n); }\n',
           "sub/inc/h.h": "static int helper(int x) { return x * 3; }\n",
           "unused.c": "int unused;\n"}


@pytest.mark.parametrize("choice", ["src", "usedsrc", "all"])
def test_sources_are_archived_as_gprofng_does_it(record: Record, need: Callable[[str, str], str], tmp_path: Path,
                                                 choice: str) -> None:
    for name, text in SOURCES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    programs = []
    for flag in ("-gdwarf-4", "-gdwarf-5"):
        programs.append(tmp_path / f"prog{flag}")
        subprocess.run([need("gcc", "gcc"), flag, "-O0", "-o", programs[-1], "m.c", "./sub/a.c"], cwd=tmp_path,
                       check=True)
    for program in programs:
        loads = subprocess.run(["readelf", "-lW", program], check=True, capture_output=True, text=True).stdout
        offset = next(int(line.split()[1], 16) for line in loads.splitlines() if " LOAD " in line and "R E" in line)
        recorder = record(f"{program.name}.er", start_unix=int(time.time()))
        recorder.segment_mapped(START_NS, 1 << 20, 4096, offset, os.fsencode(program))
        uid = recorder.frames.intern(np.array([[(1 << 20) + 0x139]], np.uint64), np.array([1]))
        recorder.clock(*(np.array([v]) for v in (4711, 0, START_NS + 5, int(uid[0]), 0, 4)))
        recorder.close(START_NS + NS)
        report = archive(open_experiment(recorder.path), choice)
        assert report.problems == []
        expected = copies(program, *(tmp_path / name for name in SOURCES if name != "unused.c"))
        assert archived(recorder.path) == expected
        if flag_of(program) == "-gdwarf-4":  # the installed gprofng does not read version 5
            shutil.rmtree(recorder.path / "archives")
            subprocess.run([need("gprofng", "binutils"), "archive", "-a", choice, recorder.path], check=True,
                           capture_output=True)
            assert archived(recorder.path) == expected


@pytest.fixture
def compiled(need: Callable[[str, str], str], tmp_path: Path) -> Path:
    """A program of one source, ``p.c``, in a folder ``made``."""
    (tmp_path / "made").mkdir()
    (tmp_path / "made/p.c").write_text("int main(void) { return 0; }\n")
    subprocess.run([need("gcc", "gcc"), "-g", "-Wl,--build-id", "-o", "p", "p.c"], cwd=tmp_path / "made", check=True)
    return tmp_path / "made/p"


def mapping(record: Record, program: Path) -> Path:
    """An experiment that begins now and maps a program."""
    recorder = record(start_unix=int(time.time()))
    recorder.segment_mapped(START_NS, 1 << 20, 4096, 4096, os.fsencode(program))
    recorder.close(START_NS + NS)
    return recorder.path


def test_a_source_that_was_edited_since_is_archived_by_force_alone(record: Record, compiled: Path) -> None:
    """Its lines are not those that were recorded, and of a copy no reader would say so."""
    path, source = mapping(record, compiled), compiled.with_name("p.c")
    later = time.time() + 60
    os.utime(source, (later, later))
    report = archive_known(archives_path(path), {os.fsencode(compiled): time.time_ns()}, "src")
    assert report.problems == [f"{source}: not archived: it has changed since it was recorded"]
    assert archive(open_experiment(path), "src").problems == report.problems
    assert archived(path) == copies(compiled)
    assert archive(open_experiment(path), "src", force=True).problems == []
    assert archived(path) == copies(compiled, source)


def test_a_source_that_was_made_while_a_program_was_built_is_archived(record: Record, compiled: Path) -> None:
    """The recording of the build began before that, and the program was mapped behind it."""
    path, now_s = mapping(record, compiled), time.time()
    os.utime(compiled.with_name("p.c"), (now_s + 60, now_s + 60))
    known = {os.fsencode(compiled): int((now_s + 70) * 1e9)}
    assert archive_known(archives_path(path), known, "src").problems == []
    assert archived(path) == copies(compiled, compiled.with_name("p.c"))


def test_sources_of_a_program_whose_debug_file_is_beside_it(record: Record, compiled: Path) -> None:
    """By .gnu_debuglink, from the program's own folder, though it is read by a descriptor that is kept open."""
    path, folder = mapping(record, compiled), compiled.parent
    for options in ("--only-keep-debug p p.debug", "--strip-all --add-gnu-debuglink=p.debug p"):
        subprocess.run(["objcopy", *options.split()], check=True, cwd=folder)
    name, now_ns = os.fsencode(compiled), time.time_ns()
    with compiled.open("rb") as file:
        opened = {name: f"/proc/self/fd/{file.fileno()}"}
        assert archive_known(archives_path(path), {name: now_ns}, "src", opened=opened).problems == []
    assert archived(path) == copies(compiled, folder / "p.c")


def flag_of(program: Path) -> str:
    return program.name.removeprefix("prog")


def test_a_damaged_object_has_no_sources(recorded: Path, files: dict[str, Path]) -> None:
    report = archive(open_experiment(recorded), "src")
    assert report.problems == []
    files["used"].write_bytes(b"\x7fELF" + b"\xff" * 100)
    report = archive(open_experiment(recorded), "usedsrc", force=True)
    assert [problem.split(":")[:2] for problem in report.problems] == [[str(files["used"]), " no sources archived"]]


def test_what_is_known_is_copied_without_reading(recorded: Path, files: dict[str, Path]) -> None:
    now_ns = time.time_ns()
    known = dict.fromkeys([*map(os.fsencode, files.values()), b"/memfd:jit", b"/dev/zero", b"[vdso]"], now_ns)
    for path in (recorded / "log.xml", recorded / "_f1.er" / "log.xml"):
        path.unlink()
    later = now_ns + 3 * NS
    os.utime(files["idle"], ns=(later, later))
    report = archive_known(archives_path(recorded), known, "on")
    assert archived(recorded) == copies(files["used"], files["odd"])
    assert len(report.problems) == 1
    assert "idle.so: not archived: it has changed since it was recorded" in report.problems[0]
    assert archive_known(archives_path(recorded), known, "off") == Report()
    with pytest.raises(ExperimentError, match="cannot archive 'usedsrc' without reading; choose one of off, on,"):
        archive_known(archives_path(recorded), known, "usedsrc")


def test_a_file_that_is_known_is_archived_whatever_the_clocks_say(tmp_path: Path, files: dict[str, Path]) -> None:
    """CLOCK_MONOTONIC stands still while a machine is suspended: by it, a file was mapped hours before it was made."""
    name, before_ns = os.fsencode(files["used"]), time.time_ns() - 3 * 3600 * NS
    with files["used"].open("rb") as file:
        identity = identity_of_fd(file.fileno())
    (tmp_path / "a.er").mkdir()
    place, known = archives_path(tmp_path / "a.er"), {name: {identity}}
    assert archive_known(place, {name: before_ns}, "on", identities=known).problems == []
    os.utime(files["used"], (1, 1))
    shutil.rmtree(place)
    (problem,) = archive_known(place, {name: before_ns}, "on", identities=known).problems
    assert "it is not the file that was recorded (changed at another time than recorded)" in problem


def test_files_that_are_open_are_copied_from_there(recorded: Path, files: dict[str, Path]) -> None:
    now_ns = time.time_ns()
    known = dict.fromkeys(map(os.fsencode, files.values()), now_ns)
    original = files["used"].read_bytes()
    with files["used"].open("rb") as used:
        files["used"].unlink()
        files["used"].write_bytes(b"another")
        files["idle"].unlink()
        opened = {os.fsencode(files["used"]): f"/proc/self/fd/{used.fileno()}"}
        report = archive_known(archives_path(recorded), known, "on", opened=opened)
    copies_of = {copy.source: copy.target.read_bytes() for copy in report.copied}
    assert copies_of[os.fsencode(files["used"])] == original
    assert [problem.split(":")[0] for problem in report.problems] == [str(files["idle"])]


def test_ranks_of_a_job_share_their_founders_archives(tmp_path: Path) -> None:
    assert archives_path(tmp_path / "a.er" / "M_r3.er") == tmp_path / "a.er" / "archives"
    assert archives_path(tmp_path / "M_r3.er") == tmp_path / "M_r3.er" / "archives"
    assert archives_path(tmp_path / "a.er") == tmp_path / "a.er" / "archives"


def test_descendants_of_ranks_are_archived_into_the_job(record: Record, tmp_path: Path, files: dict[str, Path]) -> None:
    """Whichever of them is opened, they are found there."""
    program = files["used"]
    for name in ("job.er", "job.er/M_r0.er", "job.er/M_r0.er/_f1.er"):
        recorder = record(name, start_unix=int(time.time()))
        if "_f1" in name:
            recorder.segment_mapped(START_NS, 1 << 20, 4096, 0, os.fsencode(program))
        recorder.close(START_NS + NS)
    job = tmp_path / "job.er"
    for opened in (job, job / "M_r0.er", job / "M_r0.er/_f1.er"):
        assert [copy.source for copy in archive(open_experiment(opened), dry_run=True).copied] == [os.fsencode(program)]
    assert archive(open_experiment(job / "M_r0.er/_f1.er")).problems == []
    assert archived(job) == copies(program)
    alone = open_experiment(job / "M_r0.er/_f1.er")
    assert alone.object_file(alone.segments[0]).path == job / "archives" / os.fsdecode(
        archive_name(os.fsencode(program)))
