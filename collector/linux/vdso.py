"""The vDSO: code of the kernel's own in every process, one image for 64-bit programs and another for 32-bit ones."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from collector.linux import proc
from collector.linux.background import come_forward

_END_OF_32_BITS = 1 << 32
_WAIT_S = 1
# ELF header, one program header, and: mov $10, %ebx; mov $27 (alarm), %eax; int $0x80; then for ever mov $29 (pause),
# %eax; int $0x80; jmp to the mov.
_IDLE_PROGRAM = bytes.fromhex("""
    7f454c46 01010100 00000000 00000000 02000300 01000000 54800408 34000000 00000000 00000000 34002000 01000000 00000000
    01000000 00000000 00800408 00800408 69000000 69000000 05000000 00100000
    bb0a000000 b81b000000 cd80 b81d000000 cd80 ebf7""")


def is_32_bit(start: int) -> bool:
    """Whether a vDSO that lies at ``start`` is that of a 32-bit program."""
    return start < _END_OF_32_BITS


def image(pid: int, start: int, size: int) -> bytes:
    """What was mapped at ``start`` of a process; if it is gone, from another one of its kind. Raises OSError."""
    with suppress(OSError):
        if (start, start + size) in proc.vdso_ranges(pid):
            return proc.read_memory(pid, start, size)
    if not is_32_bit(start):
        return _image_in(os.getpid(), size)
    with _program_of_32_bits() as other:
        return _image_in(other, size)


def _image_in(pid: int, size: int) -> bytes:
    for start, end in proc.vdso_ranges(pid):
        if end - start == size:
            return proc.read_memory(pid, start, size)
    raise ProcessLookupError("no process of its kind is left")


@contextmanager
def _program_of_32_bits() -> Iterator[int]:
    """The pid of a program that does nothing, and ends by itself if we cannot end it. Raises OSError where there are
    no such programs."""
    fd = os.memfd_create("vdso32", os.MFD_CLOEXEC)
    try:
        os.write(fd, _IDLE_PROGRAM)
        come_forward()
        pid = os.posix_spawn(f"/proc/self/fd/{fd}", ["vdso32"], {}, setsigmask=[], setsigdef=[signal.SIGALRM])
    finally:
        os.close(fd)
    try:
        deadline = time.monotonic() + _WAIT_S
        while not proc.vdso_ranges(pid) and time.monotonic() < deadline:
            time.sleep(0.0001)  # we are told of its exec a moment before it is done
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
