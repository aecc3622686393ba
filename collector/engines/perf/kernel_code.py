"""What a kernel call chain tells of its thread: by which door it came in, and what it is blocked in.

Only the outermost frame tells the door: a system call or a page fault is system time, any other exception or interrupt
is trap time, as on Solaris. What a thread waits for shows in the functions between: futex(2) is the lock of user mode,
a page fault handler waits for memory, a guest of KVM for that of its hypervisor, the signal code's stop functions stop.
All by address, from /proc/kallsyms, whose addresses are shown only to the privileged; without them nothing is told.
"""

from __future__ import annotations

import re
from functools import cached_property

import numpy as np

from collector.events import Array, Mode, Reason
from collector.linux import abi, proc

# Bits of what an address lies in.
_TRAP_ENTRY, _FAULT_ENTRY, _FAULT, _FUTEX, _STOP, _HOST_FAULT = 1, 2, 4, 8, 16, 32

_KINDS: tuple[tuple[int, bytes], ...] = (
    (_FAULT_ENTRY | _FAULT, rb"asm_exc_page_fault"),
    (_TRAP_ENTRY, rb"asm_(?:exc_(?!page_fault)\w+|sysvec_\w+|common_interrupt|spurious_interrupt)"),
    (_FAULT, rb"handle_mm_fault|faultin_page"),
    (_FUTEX, rb"do_futex|__futex_wait|futex_wait|futex_wait_multiple|futex_wait_requeue_pi|futex_lock_pi"),
    (_HOST_FAULT, rb"kvm_async_pf_task_wait_schedule"),
    (_STOP, rb"do_signal_stop|ptrace_stop|do_jobctl_trap|ptrace_do_notify|do_freezer_trap"),
)
# Found in every kernel that has not been shuffled, in this order; all of the above are near one of them. To print what
# lies before the last one takes the kernel most of the time: that of faults which a program handles (userfaultfd) is
# behind it, and need not be known, since nothing but ``handle_mm_fault`` leads there.
_LANDMARKS = b"asm_exc_page_fault", b"__entry_text_end", b"ptrace_stop", b"do_futex", b"handle_mm_fault"


class KernelCode:
    """Tells door and reason from call chains. The kernel's addresses are read when they are asked for first."""

    @property
    def known(self) -> bool:
        """Whether the kernel shows its addresses."""
        return bool(len(self._ranges[0]))

    @cached_property
    def _ranges(self) -> tuple[Array, Array, Array]:
        """Where the functions start and end, and the bits of each (f,)."""
        everything = rb"|".join(pattern for _, pattern in _KINDS)
        ranges = [(start, end, next(bits for bits, pattern in _KINDS if re.fullmatch(pattern, name)))
                  for start, end, name in proc.kernel_functions(everything, _LANDMARKS)]
        start, end, bits = zip(*ranges, strict=True) if ranges else ((), (), ())
        return np.array(start, np.uint64), np.array(end, np.uint64), np.array(bits, np.uint8)

    def bits(self, address: Array) -> Array:
        """Of what kind the functions are that contain ``address - 1`` (chains hold return addresses); 0 for others."""
        start, end, bits = self._ranges
        if not len(start):
            return np.zeros(len(address), dtype=np.uint8)
        inside = address - np.uint64(1)
        at = start.searchsorted(inside, side="right") - 1
        hit = (at >= 0) & (inside < end[at]) & (address < abi.CONTEXT_MAX)
        return np.where(hit, bits[at], np.uint8(0))

    def are_entries(self, address: Array) -> Array:
        """Whether return addresses, of any shape, lie where exceptions and interrupts come into the kernel."""
        found: Array = self.bits(address.ravel()).reshape(address.shape) & (_TRAP_ENTRY | _FAULT_ENTRY) != 0
        return found

    def modes(self, in_kernel: Array, outermost: Array) -> Array:
        """Mode (n,) of clock samples; a kernel sample whose door cannot be told counts as a system call."""
        mode = np.where(in_kernel, np.int8(Mode.SYSTEM_CALL), np.int8(Mode.USER))
        if in_kernel.any():
            mode[in_kernel & (self.bits(outermost) & _TRAP_ENTRY != 0)] = Mode.TRAP
        return mode

    def reasons(self, chain: Array, first: Array, n_chain: Array) -> Array:
        """Reason (n,) of switch-outs, whose chains lie in ``chain`` from ``first`` on; UNKNOWN where none is told."""
        some = n_chain > 0
        reason = np.zeros(len(first), dtype=np.int8)  # UNKNOWN
        if not some.any() or not self.known:
            return reason
        bits = self.bits(chain)
        every = np.bitwise_or.reduceat(bits, first[some])
        outermost = bits[(first + n_chain - 1)[some]]
        told = np.where(every & _FUTEX, np.int8(Reason.LOCK), np.int8(Reason.SLEEP))
        told[every & _FAULT != 0] = Reason.KERNEL_FAULT  # what comes later outweighs
        told[outermost & _FAULT_ENTRY != 0] = Reason.USER_FAULT
        told[every & _HOST_FAULT != 0] = Reason.HOST_FAULT
        told[every & _STOP != 0] = Reason.STOPPED
        reason[some] = told
        return reason
