"""What /proc says of single threads."""

from __future__ import annotations

import mmap
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from collector.linux import libc, tasks
from collector.linux.accounts import parse

PLACES = {
    b"running\n": None,
    b"": None,
    b"-1 0x7ffd1b0 0x401136\n": tasks.Place(-1, 0x7FFD1B0, 0x401136),
    b"202 0x1 0x2 0x3 0x4 0x5 0x6 0x7ffd1b8 0x401137\n": tasks.Place(202, 0x7FFD1B8, 0x401137),
}


@pytest.mark.parametrize(("text", "place"), PLACES.items())
def test_places(text: bytes, place: tasks.Place | None) -> None:
    assert tasks.parse_place(text) == place


def test_arguments() -> None:
    places = [tasks.parse_place(text) for text in PLACES]
    assert [place.arguments for place in places if place] == [(), (1, 2, 3, 4, 5, 6)]


def test_a_name_with_parentheses_and_newlines_does_not_shift_the_fields() -> None:
    fields = b"S " + b" ".join(str(i).encode() for i in range(4, 53))
    for name in (b"sleep", b"a) R (b", b"a\n) Z 1 2 3"):
        assert tasks.parse_stat(b"17 (" + name + b") " + fields + b"\n") == tasks.Stat(b"S", 14, 15, 39)


def met(code: str, *states: bytes) -> Iterator[tuple[tasks.Files, bytes, int]]:
    """The files of a Python program and its status, each time that it has said a number and come to the next of some
    states, and the number; then it is given a line."""
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        files = tasks.Files(process.pid, process.pid)
        try:
            for state in states:
                said = int(process.stdout.readline())
                while tasks.state(files.read("status", 4096)) != state:
                    time.sleep(0.001)
                Path(f"/proc/{process.pid}/syscall").read_text()  # told once who goes to sleep has left its CPU
                yield files, files.read("status", 4096), said
                process.stdin.write(b"\n")
                process.stdin.flush()
        finally:
            process.kill()


# The program says how often it has left its CPU by itself: of its naps those are none whose timers fire before that.
N_LEFT = "resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw"


def test_voluntary_switches_are_counted_whatever_the_name() -> None:
    code = ("import resource, time; open('/proc/self/comm', 'wb').write(b'State:\\tZ\\nvol')\n"
            f"print({N_LEFT}, flush=True); input()\n"
            "for _ in range(17): time.sleep(0.001)\n"
            f"print({N_LEFT}, flush=True)\nwhile True: pass")
    (_, before, n_before), (_, behind, n_behind) = met(code, b"S", b"R")
    assert [tasks.state(before), tasks.state(behind)] == [b"S", b"R"]
    assert tasks.switches(before)[0] == n_before + 1  # it waits for its input
    assert tasks.switches(behind)[0] == n_behind > n_before
    for end in range(0, behind.index(b"\nvoluntary") + 26, 7):
        with pytest.raises(ValueError, match="voluntary"):
            tasks.switches(behind[:end])


def test_a_thread_s_last_turn_and_how_often_it_left_by_itself() -> None:
    code = ("import os, resource, time; open('/proc/self/comm', 'wb').write(b'\\nse.exec_start')\n"
            "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # each CPU has its own clock\n"
            f"print({N_LEFT}, flush=True); input()\n"
            "for _ in range(17): time.sleep(0.001)\n"
            f"print({N_LEFT}, flush=True); input()")
    seen = []
    began_ns = time.monotonic_ns()
    for files, status, n_left in met(code, b"S", b"S"):
        sched = files.read_once("sched", tasks.TURN_BYTES)
        seen.append(tasks.parse_turn(sched))
        assert seen[-1].n_left == tasks.switches(status)[0] == n_left + 1  # it waits for its input
        assert seen[-1].n_over == sum(tasks.switches(status)) == parse(files.read("schedstat"))[2]
        assert seen[-1] == tasks.parse_turn(files.read_once("sched", tasks.TURN_BYTES))  # it sleeps
    assert seen[1].n_left > seen[0].n_left
    assert 1_000_000 < seen[1].moment_ns - seen[0].moment_ns < time.monotonic_ns() - began_ns
    for end in range(0, sched.index(b"nr_voluntary") + 22, 7):
        with pytest.raises(ValueError, match="turn"):
            tasks.parse_turn(sched[:end])


def test_executable_mappings_are_those_of_the_kernel() -> None:
    found = tasks.executables(os.getpid(), os.getpid())
    lines = [line.split() for line in Path("/proc/self/maps").read_text().splitlines() if "x" in line.split()[1]]
    expected = [[int(a, 16) for a in line[0].split("-")] for line in lines if "[vsyscall]" not in line]
    assert [[m.start, m.end] for m in found] == expected
    assert any(m.path == b"[vdso]" for m in found)
    for mapping in found:
        if mapping.path.startswith(b"/"):
            assert os.stat(mapping.path).st_ino == mapping.inode


def test_a_path_with_newlines_and_spaces_comes_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "two\nlines, \\012 and  spaces "
    path.write_bytes(bytes(4096))
    code = ("import mmap, sys; f = open(sys.argv[1], 'rb'); "
            "m = mmap.mmap(f.fileno(), 4096, prot=mmap.PROT_READ | mmap.PROT_EXEC); "
            "print('ready', flush=True); input()")
    with subprocess.Popen([sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        found = [m.path for m in tasks.executables(process.pid, process.pid)]
        process.communicate("\n")
    assert os.fsencode(path) in found


def test_paths_are_those_that_the_process_sees(tmp_path: Path, workload: Callable[..., Path]) -> None:
    if os.geteuid() != 0:
        pytest.skip("chroot takes root")
    (tmp_path / "bin").mkdir()
    shutil.copy(workload("crowd", "-O2", "-static"), tmp_path / "bin" / "crowd")
    with subprocess.Popen(["chroot", tmp_path, "/bin/crowd", "1"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert str(tmp_path) in Path(f"/proc/{process.pid}/maps").read_text()
        found = {m.path for m in tasks.executables(process.pid, process.pid)}
        process.kill()
    assert found == {b"/bin/crowd", b"[vdso]"}


def test_a_files_identity_is_that_of_its_mappings(tmp_path: Path) -> None:
    def identity(path: str) -> tuple[int, int] | None:
        fd = os.open(path, os.O_RDONLY)
        try:
            return tasks.identity_when_mapped(fd)
        finally:
            os.close(fd)

    files = {m.path: (m.device, m.inode) for m in tasks.executables(os.getpid(), os.getpid()) if m.inode}
    assert len(files) > 2
    assert {path: identity(os.fsdecode(path)) for path in files} == files
    assert identity(str(tmp_path)) is None  # a directory cannot be mapped


def test_files_stay_readable_while_the_thread_lives(workload: Callable[..., Path]) -> None:
    with subprocess.Popen([workload("busy"), "1", "1000000"], stdout=subprocess.DEVNULL) as process:
        files = tasks.Files(process.pid, process.pid)
        before = len(os.listdir("/proc/self/fd"))
        seen = [0]
        while len(set(seen)) < 5:  # when it gets a CPU
            seen.append(int(files.read("schedstat").split()[0]))
            files.read("stat")
        assert len(os.listdir("/proc/self/fd")) == before + 2
        assert seen == sorted(seen)
        process.kill()
        process.wait()
        with pytest.raises(ProcessLookupError):
            files.read("schedstat")
        files.close()
        assert len(os.listdir("/proc/self/fd")) == before


def test_word_size_and_groups(workload: Callable[..., Path]) -> None:
    with subprocess.Popen([workload("busy", "-m32"), "1", "1000000"], stdout=subprocess.DEVNULL) as process:
        while tasks.word_bits(process.pid) != 32:
            time.sleep(0.001)
        assert tasks.group_of(process.pid) == (process.pid, os.getpid())
        process.kill()
    assert tasks.word_bits(os.getpid()) == 64


def test_residency_of_pages() -> None:
    memory = memoryview(mmap.mmap(-1, 2 * mmap.PAGESIZE))
    memory[mmap.PAGESIZE] = 1
    address = libc.address_of(memory)
    assert tasks.is_resident(os.getpid(), address) is False
    assert tasks.is_resident(os.getpid(), address + mmap.PAGESIZE) is True


def test_who_dumps_core() -> None:
    assert not tasks.dumps_core(Path("/proc/self/status").read_bytes())
    assert tasks.dumps_core(b"Name:\ta\nVmSwap:\t0 kB\nCoreDumping:\t1\nTHP_enabled:\t1\n")
