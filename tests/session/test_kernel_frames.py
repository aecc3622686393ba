"""The kernel's part of stacks (-k on): on top of the user's, with names that both readers show; nothing without it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collector.elf import open_object
from collector.events import ClockSamples
from collector.experiment.names import archive_name
from collector.experiment.reader import Experiment, open_experiment
from collector.experiment.records import STATES
from collector.linux.kernel_symbols import KernelObject, KernelSymbols, read_kernel_symbols
from collector.session.kernel_objects import _Known
from collector.session.placing import joined, on_top

Run = Callable[..., Any]
COLLECT = str(Path(sys.executable).with_name("collect"))
KERNEL = np.uint64(1 << 63)
USER = STATES.index("user")
DEEP = 201
LOOKED_AT_WITHIN_S = 40


def stacks_of(experiment: Experiment) -> list[tuple[int, list[int]]]:
    """State and stack of each packet, the leaf first."""
    stacks, packets = experiment.stacks, experiment.packets()
    return [(int(state), [int(pc) for pc in stacks.stack(int(index))])
            for state, index in zip(packets["MSTATE"], stacks.index(packets["FRINFO"]), strict=True)]


@pytest.fixture(scope="module")
def copied(collect: Run, million_bytes: list[str], kernel_shown: None,
           tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program of many short system calls, below another one, with the kernel's part of stacks."""
    path = tmp_path_factory.mktemp("kernel") / "copied.er"
    done = collect("-k", "on", "-p", "hi", "-o", path, "env", "LC_ALL=C", *million_bytes)
    assert done.returncode == 0, done.stderr
    assert " without " not in done.stderr
    return path


def test_the_kernels_frames_lie_above_those_of_the_user(copied: Path) -> None:
    (program,) = open_experiment(copied).children
    in_kernel = 0
    for state, pcs in stacks_of(program):
        of_kernel = [pc >= KERNEL for pc in pcs[:-1]]  # the last one may be a mark
        assert of_kernel == sorted(of_kernel, reverse=True)
        in_kernel += any(of_kernel)
        if state == USER:
            assert not any(of_kernel)
        elif state in (STATES.index("system"), STATES.index("trap")):
            assert any(of_kernel)
    assert in_kernel > 20


def test_functions_below_read_and_write_have_names_in_both_readers(copied: Path, gprofng: Run, er_print: Run) -> None:
    """From the program's own functions through the C library into the kernel's."""
    commands = "-metrics", "i.totalcpu:name", "-calltree"
    theirs = gprofng(*commands, experiment=copied).tree
    printed = er_print(*commands, copied)
    assert (printed.returncode, printed.stderr) == (0, "")
    ours = type(gprofng("-header", experiment=copied))(printed.stdout).tree
    for tree in (theirs, ours):
        for call, inside in (("read", "vfs_read"), ("write", "vfs_write")):
            paths = [path for path in tree if path[-1] == inside and call in path]
            assert paths
            for path in paths:
                between = path[path.index(call) + 1:-1]
                assert between[0].startswith("entry_SYSCALL_64")
                assert "do_syscall_64" in between
                assert f"ksys_{call}" in between or f"__x64_sys_{call}" in between
        assert any(path[-1] == "read_zero" and "vfs_read" in path for path in tree)
        assert not {name for path in tree for name in path if "kernel>" in name}  # a hole between functions


def test_callers_and_load_object(copied: Path, er_print: Run, gprofng: Run) -> None:
    printed = er_print("-csingle", "vfs_read", copied)
    assert printed.returncode == 0, printed.stderr
    assert "ksys_read" in printed.stdout
    assert " <kernel> (kernel)" in gprofng("-objects", experiment=copied).text.splitlines()
    hidden = er_print("-object_hide", "kernel", "-metrics", "i.totalcpu:name", "-functions", copied)
    assert "<kernel>" in hidden.stdout.rpartition("<Total>")[2]
    assert "vfs_read" not in hidden.stdout
    code = er_print("-disasm", "vfs_read", copied)
    assert "vfs_read: the experiment has the names of the functions of <kernel>, and no instructions" in code.stderr
    for mode in ("user", "expert", "machine"):
        assert "vfs_read" in er_print("-viewmode", mode, "-functions", copied).stdout


def test_symbols_are_kept_once_and_do_not_depend_on_where_the_kernel_lies(copied: Path) -> None:
    (kernel,) = (one for one in read_kernel_symbols().objects if one.name == b"kernel")
    path = copied / "archives" / archive_name(b"kernel").decode()
    experiments = [open_experiment(copied), *open_experiment(copied).children]
    with open_object(str(path)) as file:
        symbols = file.symbols()
        found = {symbols.name(i): int(symbols.value[i]) for i in range(len(symbols))}
        for experiment in experiments:
            for segment in (one for one in experiment.segments if one.name == b"kernel"):
                assert (segment.vaddr, segment.size) == (kernel.start, kernel.end - kernel.start)
                assert segment.identity.build_id == file.build_id
                assert found == {name: start - segment.vaddr + segment.file_offset
                                 for start, _, name in kernel.functions}
    assert any(one.name == b"kernel" for one in experiments[1].segments)
    assert not (experiments[1].path / "archives").exists()


def test_who_waits_shows_where_in_the_kernel(er_print: Run, workload: Run, kernel_shown: None, tmp_path: Path) -> None:
    """Its departure has the kernel's frames; also when the rest of its stack, which is cut, has been read."""
    path, deadline = tmp_path / "deep.er", time.monotonic() + LOOKED_AT_WITHIN_S
    command = [COLLECT, "-k", "on", "-o", path, workload("deep"), DEEP, 2 * LOOKED_AT_WITHIN_S, 0, 1]
    with subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as recording:
        try:
            while not whole_sleeps(path) and time.monotonic() < deadline:
                time.sleep(0.1)
        finally:
            recording.terminate()  # which is handed on to the program
    found = whole_sleeps(path)
    assert found
    assert all(pcs[0] >= KERNEL for pcs in found)
    assert "hrtimer_nanosleep" in er_print("-metrics", "i.sleep:name", "-csingle", "do_nanosleep", path).stdout


def whole_sleeps(path: Path) -> list[list[int]]:
    """The stacks of threads asleep that are as deep as they are."""
    if not (path / "profile").exists():
        return []
    return [pcs for state, pcs in stacks_of(open_experiment(path))
            if state == STATES.index("sleep") and len(pcs) > DEEP]


def test_attached_to_a_program_that_runs(collect: Run, byte_by_byte: list[str], er_print: Run, kernel_shown: None,
                                         tmp_path: Path) -> None:
    path = tmp_path / "attached.er"
    with subprocess.Popen(byte_by_byte, stderr=subprocess.DEVNULL) as program:
        try:
            done = collect("-k", "on", "-p", "hi", "-o", path, "-t", "1", "-P", program.pid)
        finally:
            program.kill()
    assert done.returncode == 0, done.stderr
    assert "read" in er_print("-csingle", "entry_SYSCALL_64_after_hwframe", path).stdout.split()
    assert "vfs_write" in er_print("-functions", path).stdout.split()


def test_without_it_there_is_nothing_of_the_kernel(collect: Run, million_bytes: list[str], perf_allowed: None,
                                                    tmp_path: Path) -> None:
    path = tmp_path / "plain.er"
    done = collect("-k", "off", "-p", "hi", "-o", path, *million_bytes)
    assert done.returncode == 0, done.stderr
    experiment = open_experiment(path)
    assert all(pc < KERNEL for _, pcs in stacks_of(experiment) for pc in pcs[:-1])
    assert all(one.name != b"kernel" for one in experiment.segments)
    assert not list((path / "archives").glob("kernel_*"))


def test_32_bit_programs_are_told_without(collect: Run, workload: Run, kernel_shown: None, tmp_path: Path) -> None:
    """Their experiments have no room for the kernel's addresses."""
    path = tmp_path / "narrow.er"
    done = collect("-k", "on", "-p", "hi", "-o", path, "env", "LC_ALL=C", workload("split", "-m32"), 0.2)
    assert done.returncode == 0, done.stderr
    assert "stacks of 32-bit programs are told without their kernel part" in done.stderr
    (program,) = open_experiment(path).children
    assert all(pc < KERNEL for _, pcs in stacks_of(program) for pc in pcs[:-1])


@pytest.mark.parametrize(("options", "why"), [
    (("-k", "on", "--engine", "signal"), "the signal engine does not see the kernel's part of stacks"),
    (("-k", "on", "-p", "off"), "-k on needs clock profiling"),
    (("-k", "maybe"), "-k maybe: give one of on, off, kernel"),
])
def test_what_cannot_be_is_one_line(collect: Run, options: tuple[str, ...], why: str, tmp_path: Path) -> None:
    done = collect("-o", tmp_path / "x.er", *options, "touch", tmp_path / "started")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert why in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_who_may_not_see_the_kernel_is_told_what_would_show_it(as_nobody: list[str], public_directory: Path,
                                                               perf_allowed: None) -> None:
    command = [*as_nobody, COLLECT, "-k", "on", "-o", "x.er", "touch", "started"]
    done = subprocess.run(command, cwd=public_directory, capture_output=True, text=True, check=False)
    if done.returncode == 0 and os.geteuid() == 0:
        assert int(Path("/proc/sys/kernel/perf_event_paranoid").read_text()) < 2  # then anyone may
        return
    assert done.returncode == 2
    assert "kernel.perf_event_paranoid" in done.stderr.splitlines()[-1]
    assert "kernel.kptr_restrict" in done.stderr.splitlines()[-1]
    assert list(public_directory.iterdir()) == []


# --- without a kernel


def test_kernel_frames_are_put_on_top_of_stacks_of_all_depths() -> None:
    rng = np.random.default_rng(7)
    n_kernel, length = rng.integers(0, 6, 101), rng.integers(1, 8, 101)
    kernel, pcs = rng.integers(1, 1 << 62, (101, 6)).astype(np.uint64), rng.integers(1, 1 << 62, (101, 9)).astype("u8")
    kernel[np.arange(6) >= n_kernel[:, None]] = 0
    whole, n_frames = on_top(kernel, pcs, length)
    assert n_frames.tolist() == (n_kernel + length).tolist()
    for row in range(101):
        n, expected = n_kernel[row], [*kernel[row, :n_kernel[row]], *pcs[row, :length[row]]]
        assert whole[row, :n + length[row]].tolist() == expected
        assert not whole[row, n + length[row]:].any()


def test_samples_with_and_without_kernel_frames_are_joined() -> None:
    def part(n: int, kernel: list[list[int]] | None) -> ClockSamples:
        column = np.zeros(n, dtype=np.int64)
        frames = None if kernel is None else np.array(kernel, dtype=np.uint64)
        return ClockSamples(column, *[column] * 12, kernel=frames)

    assert joined([part(2, None), part(1, None)]).kernel is None
    both = joined([part(2, [[5, 0], [6, 7]]), part(1, None), part(1, [[8, 9, 1]])])
    assert both.kernel is not None
    assert both.kernel.tolist() == [[5, 0, 0], [6, 7, 0], [0, 0, 0], [8, 9, 1]]
    assert both[1:3].kernel is not None
    assert both[1:3].kernel.tolist() == [[6, 7, 0], [0, 0, 0]]


def test_addresses_lie_in_objects_or_in_made_functions_or_nowhere() -> None:
    first, second = KernelObject(b"kernel", 1000, 2000, []), KernelObject(b"[xfs]", 3000, 3500, [])
    known = _Known(KernelSymbols([first, second], [(2500, 10, b"bpf_prog_1")]))
    addresses = np.array([0, 999, 1000, 1999, 2000, 2499, 2500, 2509, 2510, 3000, 3499, 3500], dtype=np.uint64)
    where, unknown = known.find(addresses)
    assert where.tolist() == [-1, -1, 0, 0, -1, -1, 2, 2, -1, 1, 1, -1]
    assert unknown.tolist() == [number < 0 for number in where.tolist()]
    assert _Known(KernelSymbols([], [])).find(addresses)[1].all()
