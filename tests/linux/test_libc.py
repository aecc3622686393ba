"""System calls through ctypes, on this very process."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import subprocess
import sys

import pytest

from collector.errors import CollectorError
from collector.linux import abi, libc

PAGE = mmap.PAGESIZE


def test_a_personality_of_32_bits_changes_no_numbers() -> None:
    said = subprocess.run(["setarch", "linux32", sys.executable, "-c", "import os; from collector.linux import libc; "
                           "print(os.uname().machine != libc._MACHINE, libc.kept_mode('/') == os.stat('/').st_mode)"],
                          check=True, capture_output=True, text=True).stdout
    assert said == "True True\n"


@pytest.mark.parametrize(("told", "is_64_bits"), [("riscv64", True), ("x86_64", False), ("i686", False), ("", True)])
def test_a_machine_that_we_know_nothing_of_is_named(told: str, is_64_bits: bool) -> None:
    with pytest.raises(CollectorError, match=f"x86-64; this one has {64 if is_64_bits else 32}, on .* called {told}$"):
        libc.machine(told, is_64_bits)


def test_memory_of_another_process_is_read_in_pieces() -> None:
    data = ctypes.create_string_buffer(bytes(range(256)) * 16)
    base = ctypes.addressof(data)
    into = bytearray(17 + 31)
    assert libc.process_vm_readv(os.getpid(), [(base + 5, 17), (base + 1000, 31)], memoryview(into)) == 48
    assert bytes(into) == data.raw[5:22] + data.raw[1000:1031]


def test_reading_ends_at_the_first_page_that_is_not_there() -> None:
    address = libc.mmap(0, 2 * PAGE, libc.PROT_READ | libc.PROT_WRITE, libc.MAP_PRIVATE | libc.MAP_ANONYMOUS, -1)
    libc.memory(address, PAGE)[:] = b"x" * PAGE
    libc.munmap(address + PAGE, PAGE)
    into = bytearray(2 * PAGE)
    assert libc.process_vm_readv(os.getpid(), [(address, PAGE), (address + PAGE, PAGE)], memoryview(into)) == PAGE
    assert bytes(into) == b"x" * PAGE + b"\0" * PAGE
    with pytest.raises(OSError, match="process_vm_readv") as caught:
        libc.process_vm_readv(os.getpid(), [(address + PAGE, 8)], memoryview(into))
    assert caught.value.errno == errno.EFAULT
    libc.munmap(address, PAGE)


def test_a_process_that_is_gone_cannot_be_read() -> None:
    with subprocess.Popen(["/bin/true"]) as process:
        process.wait()
    with pytest.raises(ProcessLookupError):
        libc.process_vm_readv(process.pid, [(4096, 8)], memoryview(bytearray(8)))


def test_mappings_go_where_they_are_asked_to() -> None:
    reserved = libc.mmap(0, 4 * PAGE, libc.PROT_NONE, libc.MAP_PRIVATE | libc.MAP_ANONYMOUS | libc.MAP_NORESERVE, -1)
    inside = libc.mmap(reserved + PAGE, PAGE, libc.PROT_READ | libc.PROT_WRITE,
                       libc.MAP_PRIVATE | libc.MAP_ANONYMOUS | libc.MAP_FIXED, -1)
    assert inside == reserved + PAGE
    view = libc.memory(inside, PAGE)
    view[7:10] = b"abc"
    assert bytes(libc.memory(inside + 7, 3)) == b"abc"
    libc.munmap(reserved, 4 * PAGE)
    with pytest.raises(OSError, match="mmap"):
        libc.mmap(0, PAGE, libc.PROT_READ, libc.MAP_SHARED, 10_007)
    with pytest.raises(OSError, match="munmap"):
        libc.munmap(reserved + 1, PAGE)


def test_an_event_that_the_kernel_does_not_know_is_refused() -> None:
    attr = abi.pack_attr(kind=77, config=1, period=1, sample_type=0, flags=abi.DISABLED, watermark=0)
    assert len(attr) == abi.ATTR_SIZE
    with pytest.raises(OSError, match="perf_event_open") as caught:
        libc.perf_event_open(attr, 0, -1, -1, abi.FLAG_FD_CLOEXEC)
    assert caught.value.errno in (errno.ENOENT, errno.EINVAL, errno.EACCES)


@pytest.mark.usefixtures("perf_allowed")
def test_an_event_counts_and_its_descriptor_is_not_inherited() -> None:
    flags = abi.EXCLUDE_KERNEL
    attr = abi.pack_attr(config=abi.SW_TASK_CLOCK, period=0, sample_type=0, flags=flags, watermark=0)
    fd = libc.perf_event_open(attr, 0, -1, -1, abi.FLAG_FD_CLOEXEC)
    try:
        assert not os.get_inheritable(fd)
        sum(range(300_000))
        assert int.from_bytes(os.read(fd, 8), "little") > 100_000  # ns
    finally:
        os.close(fd)
