"""The vDSO's image of either kind of program, from a process that lives or one that is gone."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from collector.elf import object_of_bytes
from collector.linux import proc, vdso

NOBODYS_PID = 2**22  # the kernel gives none as high as this


@contextmanager
def _running(program: Path) -> Iterator[tuple[int, int, int]]:
    """Its pid, and where its vDSO lies: start and size."""
    with subprocess.Popen([str(program), "1", "30000"], stdout=subprocess.DEVNULL) as process:
        try:
            while os.readlink(f"/proc/{process.pid}/exe") != str(program) or not proc.vdso_ranges(process.pid):
                time.sleep(0.001)
            ((start, end),) = proc.vdso_ranges(process.pid)
            yield process.pid, start, end - start
        finally:
            process.kill()


@pytest.mark.parametrize(("flags", "word_size"), [((), 8), (("-m32",), 4)], ids=["64", "32"])
def test_a_process_that_is_gone_had_what_the_living_have(workload: Callable[..., Path], flags: tuple[str, ...],
                                                         word_size: int) -> None:
    with _running(workload("busy", *flags)) as (pid, start, size):
        living = vdso.image(pid, start, size)
    assert len(living) == size
    assert object_of_bytes(living, "[vdso]").word_size == word_size
    assert vdso.is_32_bit(start) is (word_size == 4)
    assert vdso.image(NOBODYS_PID, start, size) == living


def test_another_program_under_its_pid_is_not_asked(workload: Callable[..., Path]) -> None:
    """By now the process may run a program of the other kind, whose vDSO is as long."""
    with _running(workload("busy", "-m32")) as (_, start, size):
        image = vdso.image(os.getpid(), start, size)
    assert object_of_bytes(image, "[vdso]").word_size == 4


def test_nobody_is_left_behind() -> None:
    before, children = signal.getsignal(signal.SIGCHLD), Path("/proc/thread-self/children").read_text()
    vdso.image(NOBODYS_PID, 0xF7000000, os.sysconf("SC_PAGE_SIZE") * 2)
    assert Path("/proc/thread-self/children").read_text() == children  # others' may be there
    assert signal.getsignal(signal.SIGCHLD) == before


def test_a_size_that_no_kernel_has_is_an_error() -> None:
    with pytest.raises(ProcessLookupError):
        vdso.image(NOBODYS_PID, 0x7FFF_0000_0000, 4096 * 999)
