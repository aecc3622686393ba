"""What kernel call chains tell, with the functions of the kernel that runs here."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest

from collector.engines.perf import kernel_code
from collector.engines.perf.kernel_code import KernelCode
from collector.engines.perf.samples import Located, Samples
from collector.events import Mode, Reason
from collector.linux import abi, proc

KERNEL_MARK = 0xFFFF_FFFF_FFFF_FF80  # the context mark that a kernel chain begins with


@pytest.fixture(scope="module")
def address() -> dict[str, int]:
    """Functions of this kernel by name, each a little behind its start, as return addresses are."""
    if os.geteuid() != 0:
        pytest.skip("needs root: the kernel hides its addresses")
    found = re.findall(r"^(\w+) [tTwW] (\w+)$", Path("/proc/kallsyms").read_text(), re.MULTILINE)
    return {name: int(start, 16) + 5 for start, name in found}


DOORS = {
    "entry_SYSCALL_64_after_hwframe": Mode.SYSTEM_CALL, "asm_exc_page_fault": Mode.SYSTEM_CALL,
    "asm_exc_invalid_op": Mode.TRAP, "asm_exc_int3": Mode.TRAP, "asm_exc_general_protection": Mode.TRAP,
    "asm_sysvec_apic_timer_interrupt": Mode.TRAP, "asm_common_interrupt": Mode.TRAP,
    "asm_sysvec_reschedule_ipi": Mode.TRAP,
}


@pytest.mark.parametrize("door", DOORS)
def test_the_outermost_frame_is_the_door(address: dict[str, int], door: str) -> None:
    code = KernelCode()
    assert code.known
    outermost = np.array([address[door]] * 2 + [0], np.uint64)
    modes = code.modes(np.array([True, False, True]), outermost)
    assert modes.tolist() == [DOORS[door], Mode.USER, Mode.SYSTEM_CALL]  # without a chain: a system call


def test_nothing_of_use_lies_behind_the_landmarks(address: dict[str, int]) -> None:
    assert address
    everything = rb"|".join(pattern for _, pattern in kernel_code._KINDS)
    found = proc.kernel_functions(everything, kernel_code._LANDMARKS)
    assert found == proc.kernel_functions(everything)


SYSCALL = "entry_SYSCALL_64_after_hwframe"
CHAINS = {
    "futex": (["schedule", "do_futex", SYSCALL], Reason.LOCK),
    "sleep": (["schedule", "do_nanosleep", SYSCALL], Reason.SLEEP),
    "fault of user code": (["schedule", "handle_mm_fault", "exc_page_fault", "asm_exc_page_fault"], Reason.USER_FAULT),
    "fault in a system call": (["schedule", "handle_mm_fault", "asm_exc_page_fault", "vfs_read", SYSCALL],
                               Reason.KERNEL_FAULT),
    "page that a hypervisor had taken": (["schedule", "kvm_async_pf_task_wait_schedule", "asm_exc_page_fault"],
                                         Reason.HOST_FAULT),
    "stopped": (["schedule", "do_signal_stop", SYSCALL], Reason.STOPPED),
    "stopped by a debugger": (["schedule", "ptrace_stop", SYSCALL], Reason.STOPPED),
    "nothing": ([], Reason.UNKNOWN),
    "alone": (["schedule"], Reason.SLEEP),
}


def chains_of(address: dict[str, int], names: list[list[str]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All chains behind one another: words, where each begins, how long each is."""
    parts = [[KERNEL_MARK, *(address[name] for name in chain)] if chain else [] for chain in names]
    lengths = np.array([len(part) for part in parts], np.int64)
    return np.array([word for part in parts for word in part], np.uint64), np.cumsum(lengths) - lengths, lengths


def test_what_a_thread_is_blocked_in(address: dict[str, int]) -> None:
    code = KernelCode()
    missing = {name for chain, _ in CHAINS.values() for name in chain} - address.keys()
    assert not missing
    reasons = code.reasons(*chains_of(address, [chain for chain, _ in CHAINS.values()]))
    assert {case: Reason(int(r)) for case, r in zip(CHAINS, reasons, strict=True)} == {
        case: reason for case, (_, reason) in CHAINS.items()}
    for chain, reason in CHAINS.values():  # and each alone
        assert code.reasons(*chains_of(address, [chain])).tolist() == [reason]


def test_context_marks_are_no_addresses() -> None:
    code = KernelCode()
    marks = np.array([KERNEL_MARK, 0xFFFF_FFFF_FFFF_FE00, 0xFFFF_FFFF_FFFF_FFFF, 0, 1, 0x7FFF_FFFF_F000], np.uint64)
    assert not code.bits(marks).any()


def located(ring: list[int], chain: list[int], time_ns: int, ring_words: int) -> Located:
    """A sample of a thread without user registers, with this chain, behind what is in the ring."""
    at = len(ring)
    sample = [7 | 8 << 32, time_ns, 0, len(chain), *chain, 0, 0]
    header = 9 | abi.MISC_CPUMODE_KERNEL << 32 | (len(sample) + 1) * 8 << 48
    ring += [header, *sample]
    columns = (np.array([value], np.int64) for value in (time_ns, at, 0, ring_words - 1))
    time, position, base, mask = columns
    return Located(time, position, np.array([header], np.uint64), base, mask)


def test_frames_stand_for_calls_and_for_what_was_interrupted(address: dict[str, int]) -> None:
    """Return addresses are taken one less; neither where the clock fell nor what an interrupt or fault fell into is."""
    a, b, c, d = (address[name] - 5 for name in ("vfs_read", "ksys_read", "do_syscall_64", "vfs_write"))  # first bytes
    entry, interrupt, fault = (address[name] for name in (
        SYSCALL, "asm_sysvec_apic_timer_interrupt", "asm_exc_page_fault"))
    ring: list[int] = []
    clock = [located(ring, [KERNEL_MARK, a, b, interrupt, d, c, entry], 20, 64),
             located(ring, [], 10, 64), located(ring, [KERNEL_MARK, b], 30, 64)]
    leave = [located(ring, [KERNEL_MARK, a, fault, d, entry, KERNEL_MARK, b], 15, 64)]
    words = np.array(ring + [0] * (64 - len(ring)), np.uint64)
    clocks, leaving = Samples(words, with_calls=False, with_kernel=True).samples(clock, leave)
    assert clocks is not None
    assert clocks.kernel is not None
    assert leaving is not None
    assert leaving.kernel is not None
    assert [[pc for pc in row if pc] for row in clocks.kernel.tolist()] == [
        [], [a, b - 1, interrupt - 1, d, c - 1, entry - 1], [b]]
    assert [[pc for pc in row if pc] for row in leaving.kernel.tolist()] == [[a - 1, fault - 1, d, entry - 1]]
    plain, _ = Samples(words, with_calls=False).samples(clock, leave)
    assert plain is not None
    assert plain.kernel is None
    for name in ("time_ns", "pid", "tid", "mode", "abi", "regs", "n_words"):
        assert np.array_equal(getattr(plain, name), getattr(clocks, name))
