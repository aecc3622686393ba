"""The kernel's functions from texts like /proc/kallsyms, and from the real one."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

import pytest

from collector.linux.kernel_symbols import (
    KernelObject,
    KernelSymbols,
    parsed,
    read_kernel_symbols,
    shows_addresses,
    tells_addresses,
)

TEXT = b"""\
0000000000000000 A fixed_percpu_data
ffffffffaa000000 T _stext
ffffffffaa000000 T _text
ffffffffaa000000 t startup
ffffffffaa000030 t __pfx_vfs_read
ffffffffaa000040 T vfs_read
ffffffffaa000040 W weak_read
ffffffffaa0000b0 t __pfx___x64_sys_sync
ffffffffaa0000b0 T __sched_text_start
ffffffffaa0000c0 t __do_sys_sync
ffffffffaa0000c0 T __ia32_sys_sync
ffffffffaa0000c0 T __x64_sys_sync
ffffffffaa0000f1 t inner.cold
ffffffffaa0000f1 T __pi_inner.cold
ffffffffaa0000f7 T _etext
ffffffffaa200000 D data
ffffffffab000007 t init
ffffffffc0403005 t second\t[nf_tables]
ffffffffc0401003 t first\t[nf_tables]
ffffffffc0402fff d table\t[nf_tables]
ffffffffc0301000 t other\t[xfs]
ffffffffc0700000 t bpf_prog_7_handler\t[bpf]
ffffffffc0702000 t ftrace_trampoline\t[__builtin__ftrace]
"""


def test_functions_lie_in_the_kernel_or_in_modules() -> None:
    kernel, xfs, tables = parsed(TEXT).objects
    assert kernel == KernelObject(b"kernel", 0xFFFFFFFF_AA000000, 0xFFFFFFFF_AB001000, [
        (0xFFFFFFFF_AA000000, 0x30, b"startup"),
        (0xFFFFFFFF_AA000030, 0x80, b"vfs_read"), (0xFFFFFFFF_AA0000B0, 0x41, b"__x64_sys_sync"),
        (0xFFFFFFFF_AA0000F1, 6, b"inner.cold"),
        (0xFFFFFFFF_AA0000F7, 1 << 20, b"_etext"), (0xFFFFFFFF_AB000007, 0xFF9, b"init")])
    assert xfs == KernelObject(b"[xfs]", 0xFFFFFFFF_C0301000, 0xFFFFFFFF_C0302000,
                               [(0xFFFFFFFF_C0301000, 0x1000, b"other")])
    assert tables == KernelObject(b"[nf_tables]", 0xFFFFFFFF_C0401000, 0xFFFFFFFF_C0404000, [
        (0xFFFFFFFF_C0401003, 0x2002, b"first"), (0xFFFFFFFF_C0403005, 0xFFB, b"second")])


def test_what_is_made_belongs_to_no_object() -> None:
    assert parsed(TEXT).made == [(0xFFFFFFFF_C0700000, 0x1000, b"bpf_prog_7_handler"),
                                 (0xFFFFFFFF_C0702000, 0x1000, b"ftrace_trampoline")]


def test_hidden_addresses_tell_nothing() -> None:
    assert parsed(b"0000000000000000 T vfs_read\n0000000000000000 t first\t[xfs]\n") == KernelSymbols([], [])
    assert parsed(b"") == KernelSymbols([], [])


OF_EACH_CPU = b"""\
0000000000000000 A fixed_percpu_data
0000000000000000 A __per_cpu_start
0000000000001000 A cpu_debug_store
0000000000002000 A irq_stack_backing_store
"""  # as kernels before 6.15 begin


@pytest.mark.parametrize(("text", "tells"), [
    (OF_EACH_CPU, True), (TEXT, True), (b"ffffffff81000000 T startup_64\n", True), (b"c0008000 T stext\n", True),
    (b"0000000000000000 A fixed_percpu_data\n" * 100, False), (b"0000000000000000 T a\n00000000000000", False),
    (b"0000000000000000 T ffffffff81000000 \n", False), (b"", False)])
def test_addresses_are_told_where_any_is_not_zero(text: bytes, tells: bool) -> None:
    assert tells_addresses(text) is tells


def test_a_text_that_is_cut_anywhere_is_read_as_far_as_it_goes() -> None:
    words = TEXT.split()
    for end in range(len(TEXT)):
        names = [name for one in parsed(TEXT[:end]).objects for _, _, name in one.functions]
        assert len(names) <= TEXT[:end].count(b"\n") + 1
        assert all(any(word.startswith(name) for word in words) for name in names)


def test_the_real_ones() -> None:
    found = read_kernel_symbols()
    if not shows_addresses():
        assert found == KernelSymbols([], [])
        assert os.geteuid() != 0 or Path("/proc/sys/kernel/kptr_restrict").read_text().strip() == "2"
        return
    (kernel,) = (one for one in found.objects if one.name == b"kernel")
    assert {b"vfs_read", b"vfs_write", b"schedule"} <= {name for _, _, name in kernel.functions}
    for one, after in pairwise(found.objects):
        assert one.start < one.end <= after.start
    for one in found.objects:
        starts = [start for start, _, _ in one.functions]
        assert starts == sorted(set(starts))
        assert one.start <= starts[0] < one.start + 4096
