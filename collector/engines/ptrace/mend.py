"""What our tracing did to the system call that a thread is in, undone. Standard library only.

    result                              what is done
    -EINTR                              becomes the kernel's own ERESTARTNOHAND: the call begins anew, unless there is
                                        a signal with a handler, which makes it EINTR as it would have without us
    -EINTR at a signal                  likewise, where the call has no time limit: a signal that is ignored wakes
                                        nobody, but for those who are traced
    begun anew by the kernel itself     nothing; but fork or execve might never end, so the thread is spared for a while
    -EAGAIN of bpf(2)                   begins anew, likewise
    part of what was asked for          reading /dev/zero or random bytes stops at any signal, and nobody expects it to:
                                        the call is made again for the rest, and its result is the sum

The last one takes two more stops, when the second call is entered and when it returns.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import Enum

from collector.linux import abi, ptrace

_ENDLESS_FILES = {"/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"}
_PATIENCE = 8  # other system calls (a signal handler's) before the second call


class Verdict(Enum):
    """What is to be done with a thread whose call has been looked at."""

    GO = 0
    SPARE = 1  # do not interrupt it for a while
    COMPLETE = 2  # it will make the call again: let it stop there


@dataclass(slots=True)
class Completion:
    """A call that is made again for the rest: what it did so far, its buffer and size as they were, and where it is."""

    done: int
    buffer: int
    size: int
    columns: tuple[int, int]
    entered: bool = False
    n_others: int = 0


def mend(inspector: ptrace.Inspector, tid: int, registers: ptrace.Registers) -> tuple[Verdict, Completion | None]:
    """Changes the registers of a thread that we have interrupted, where that is needed."""
    bits, call, result = registers.bits, registers.call, registers.result
    if call < 0:
        return Verdict.GO, None
    if result >= 0:
        completion = _short(tid, registers)
        if completion is None:
            return Verdict.GO, None
        buffer, size = completion.columns
        rest = {buffer: completion.buffer + completion.done, size: completion.size - completion.done}
        inspector.change(tid, bits, rest, -abi.ERESTARTNOINTR)
        return Verdict.COMPLETE, completion
    if call in abi.BEGUN_ANEW_CALLS[bits] and result in (-abi.ERESTARTNOINTR, -abi.EAGAIN):
        if result == -abi.EAGAIN and call == abi.BPF_CALL[bits]:
            inspector.change(tid, bits, {}, -abi.ERESTARTNOINTR)
        return Verdict.SPARE, None
    if result == -abi.EINTR:
        inspector.change(tid, bits, {}, -abi.ERESTARTNOHAND)
    return Verdict.GO, None


def wait_on(inspector: ptrace.Inspector, tid: int) -> None:
    """At a signal's stop: a call that it has ended begins anew, unless it has a handler. (One with a time limit would
    have all of that again, time after time: it ends.)"""
    registers = inspector.registers(tid)
    if registers.result != -abi.EINTR or registers.call not in abi.WAITING_CALLS[registers.bits]:
        return
    number, pointers = abi.WAITING_CALLS[registers.bits][registers.call]
    is_endless = number < 0 or registers.dwarf[number] >> 31 & 1
    if is_endless and not any(registers.dwarf[pointer] for pointer in pointers):
        inspector.change(tid, registers.bits, {}, -abi.ERESTARTNOHAND)


def go_on(inspector: ptrace.Inspector, tid: int, completion: Completion) -> bool:
    """At the entry to or the return from a system call: whether the thread is still about to make its call again."""
    registers = inspector.registers(tid)
    buffer, size = completion.columns
    # Who returns from a handler is in no call then, and has its registers as they were before that.
    ours = registers.call >= 0 and registers.dwarf[buffer] == completion.buffer + completion.done
    if not ours:
        completion.n_others += 1
        return completion.n_others < _PATIENCE
    if not completion.entered:
        completion.entered = True
        return True
    completion.done += max(registers.result, 0)
    inspector.change(tid, registers.bits, {buffer: completion.buffer, size: completion.size}, completion.done)
    return False


def _short(tid: int, registers: ptrace.Registers) -> Completion | None:
    arguments = abi.READ_CALLS[registers.bits].get(registers.call)
    if arguments is None:
        return None
    file, buffer, size = (registers.dwarf[column] if column >= 0 else -1 for column in arguments)
    if not 0 < registers.result < size:
        return None
    if file >= 0:
        try:
            if os.readlink(f"/proc/{tid}/fd/{file}") not in _ENDLESS_FILES:
                return None
        except OSError:
            return None
    return Completion(registers.result, buffer, size, (arguments[1], arguments[2]))
