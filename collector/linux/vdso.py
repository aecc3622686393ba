"""The vDSO: code of the kernel's own in every process, one image for 64-bit programs and another for 32-bit ones."""

from __future__ import annotations

import os
import signal
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from collector.linux import proc

_END_OF_32_BITS = 1 << 32
_LASTS_S = 10
_ET_EXEC, _EM_386, _EV_CURRENT, _PT_LOAD, _READ_EXECUTE = 2, 3, 1, 1, 5
_HEADER, _PROGRAM_HEADER, _LOADED_AT = struct.Struct("<16s2H5I6H"), struct.Struct("<8I"), 0x08048000


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
        os.write(fd, _idle_program())
        pid = os.posix_spawn(f"/proc/self/fd/{fd}", ["vdso32"], {}, setsigmask=[], setsigdef=[signal.SIGALRM])
    finally:
        os.close(fd)
    try:
        deadline = time.monotonic() + _LASTS_S / 10
        while not proc.vdso_ranges(pid) and time.monotonic() < deadline:
            time.sleep(0.0001)  # we are told of its exec a moment before it is done
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _idle_program() -> bytes:
    """Headers, and behind them: alarm(_LASTS_S); for (;;) pause()."""
    code = (b"\xbb" + struct.pack("<I", _LASTS_S) + b"\xb8\x1b\x00\x00\x00\xcd\x80"  # mov $10, %ebx; mov $27, %eax; int
            b"\xb8\x1d\x00\x00\x00\xcd\x80\xeb\xf7")  # mov $29, %eax; int $0x80; jmp to the mov
    headers = _HEADER.size + _PROGRAM_HEADER.size
    size = headers + len(code)
    header = _HEADER.pack(b"\x7fELF\1\1\1", _ET_EXEC, _EM_386, _EV_CURRENT, _LOADED_AT + headers, _HEADER.size, 0, 0,
                          _HEADER.size, _PROGRAM_HEADER.size, 1, 0, 0, 0)
    segment = _PROGRAM_HEADER.pack(_PT_LOAD, 0, _LOADED_AT, _LOADED_AT, size, size, _READ_EXECUTE, 0x1000)
    return header + segment + code
