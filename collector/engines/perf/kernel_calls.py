"""In which system call a thread left its CPU, by its kernel call chain.

    schedule < futex_do_wait < ... < __x64_sys_futex < do_syscall_64 < entry_SYSCALL_64_after_hwframe
                                     the call          doors, of which there may be more or fewer

The function inside the doors is the call's own, or what its last instruction jumps to: of ``read`` the compiler may
leave ``ksys_read`` alone. Both have the call's name. Others of that kind are listed where only one call leads to them;
where several do (dup2 and dup3), nothing is told.
"""

from __future__ import annotations

import re

import numpy as np

from collector.events import IN_NO_CALL, Array
from collector.linux import abi, proc

_DOORS = rb"do_syscall_64|x64_sys_call|ia32_sys_call|(?:__)?do_fast_syscall_32|do_SYSENTER_32|do_int80_\w+|entry_\w+"
_TRAPS = rb"asm_(?:exc|sysvec)_\w+|asm_common_interrupt|asm_spurious_interrupt"
_CALLS = rb"__(?:x64|ia32|ia32_compat|do|se)_sys_\w+|ksys_(?!dup3)\w+|__sys_(?!accept4)\w+"
_PREFIX = re.compile(rb"__(?:x64|ia32|ia32_compat|do|se)_sys_|ksys_|__sys_")
# By what their last instructions jump to. (preadv2 without an offset is readv.)
_JUMPS = {b"kernel_wait4": b"wait4", b"do_readv": b"readv", b"do_writev": b"writev", b"hrtimer_nanosleep": b"nanosleep"}
# Names that the kernel has for calls, and everybody else has not.
_NAMES = {b"newstat": b"stat", b"newfstat": b"fstat", b"newlstat": b"lstat", b"newuname": b"uname",
          b"sendfile64": b"sendfile", b"umount": b"umount2", b"fadvise64_64": b"fadvise64", b"mmap_pgoff": b"mmap"}
_DOOR = 1  # among the numbers of names
_UNKNOWN = b""


class KernelCalls:
    """Tells system calls from call chains; nothing where the kernel hides its addresses. ``names``: all it may tell."""

    def __init__(self) -> None:
        found = proc.kernel_functions(b"|".join((_DOORS, _TRAPS, _CALLS, *map(re.escape, _JUMPS))))
        of = [_name(function) for _, _, function in found]
        self.names = sorted({name for name in of if name is not None})
        number = {name: i for i, name in enumerate(self.names, _DOOR + 1)} | {None: _DOOR}
        self._names: Array = np.array([_UNKNOWN, _UNKNOWN, *self.names])
        self._start: Array = np.array([start for start, _, _ in found], dtype=np.uint64)
        self._end: Array = np.array([end for _, end, _ in found], dtype=np.uint64)
        self._number: Array = np.array([number[name] for name in of], dtype=np.int64)

    def calls(self, chain: Array, first: Array, n_chain: Array) -> Array:
        """The name (n,) of the call that each chain was in, whose words lie in ``chain`` from ``first`` on, the leaf
        first; IN_NO_CALL where it began with a trap or an interrupt, empty where it is not known."""
        number = np.zeros(len(first), dtype=np.int64)
        some = n_chain > 0
        if len(self._start) and some.any():
            of = self._numbers(chain)
            inside = np.where(of == _DOOR, -1, np.arange(len(chain)))
            at = np.maximum.reduceat(inside, first[some])
            number[some] = np.where(at >= 0, of[at], 0)
        return self._names[number]

    def _numbers(self, chain: Array) -> Array:
        """What function each word (m,), a return address, lies in: 0 for those without a name here."""
        inside = chain - np.uint64(1)
        at = np.maximum(self._start.searchsorted(inside, side="right") - 1, 0)
        hit = (inside >= self._start[at]) & (inside < self._end[at]) & (chain < abi.CONTEXT_MAX)
        return np.where(hit, self._number[at], 0)


def _name(function: bytes) -> bytes | None:
    """The call that a function is of; None for a door."""
    if re.fullmatch(_DOORS, function):
        return None
    if re.fullmatch(_TRAPS, function):
        return IN_NO_CALL
    name = _JUMPS.get(function) or _PREFIX.sub(b"", function, count=1)
    return _NAMES.get(name, name)
