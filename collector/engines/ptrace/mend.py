"""What our tracing did to the system call that a thread is in, undone. Standard library only.

    result                              what is done
    -EINTR                              becomes the kernel's own ERESTARTNOHAND: the call begins anew, unless there is
                                        a signal with a handler, which makes it EINTR as it would have without us
    -EINTR at a signal                  likewise, where the call has no time limit: a signal that is ignored wakes
                                        nobody, but for those who are traced
    begun anew by the kernel itself     nothing; but fork or execve might never end, so the thread is spared for a while
    -EAGAIN of bpf(2)                   begins anew, likewise
    part of what was asked for          the call is made again for the rest, and its result is the sum, where nobody
                                        expects a part (``completions``); at a signal that is ignored likewise

The last one takes two more stops, when the second call is entered and when it returns. Should the tracer be killed
meanwhile, the program has the result of the second call alone.
"""

from __future__ import annotations

import signal
from enum import Enum

from collector.engines.ptrace.completions import Completion, cut_short
from collector.linux import abi, ptrace, tasks

STOP_SIGNALS = {signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
_IGNORED_BY_DEFAULT = {signal.SIGCHLD, signal.SIGURG, signal.SIGWINCH, signal.SIGCONT}
_PATIENCE = 8  # other system calls (a signal handler's) before the second call


class Verdict(Enum):
    """What is to be done with a thread whose call has been looked at."""

    GO = 0
    SPARE = 1  # do not interrupt it for a while
    COMPLETE = 2  # it will make the call again: let it stop there


def mend(inspector: ptrace.Inspector, tid: int, registers: ptrace.Registers) -> tuple[Verdict, Completion | None]:
    """Changes the registers of a thread that we have interrupted, where that is needed."""
    bits, call, result = registers.bits, registers.call, registers.result
    if call < 0:
        return Verdict.GO, None
    if result >= 0:
        completion = cut_short(tid, registers)
        if completion is None:
            return Verdict.GO, None
        inspector.change(tid, bits, completion.rest, -abi.ERESTARTNOINTR)
        return Verdict.COMPLETE, completion
    if call in abi.BEGUN_ANEW_CALLS[bits] and result in (-abi.ERESTARTNOINTR, -abi.EAGAIN):
        if result == -abi.EAGAIN and call == abi.BPF_CALL[bits]:
            inspector.change(tid, bits, {}, -abi.ERESTARTNOINTR)
        return Verdict.SPARE, None
    if result == -abi.EINTR:
        inspector.change(tid, bits, {}, -abi.ERESTARTNOHAND)
    return Verdict.GO, None


def at_signal(inspector: ptrace.Inspector, tid: int, number: int, completion: Completion | None) -> Completion | None:
    """At a signal's stop: what there is to complete in the thread's call behind that, from then on."""
    if completion and not completion.ends_at_signals:
        return completion
    registers = inspector.registers(tid)
    if completion:
        is_over = completion.is_at(registers) and not _is_ignored(tid, number)
        if is_over:  # as it would have been without us
            inspector.change(tid, registers.bits, completion.whole, completion.done)
        return None if is_over else completion
    if registers.call < 0 or number == signal.SIGCONT:  # whom that one alone has woken has been mended just before
        return None
    if registers.result == -abi.EINTR:
        if number not in STOP_SIGNALS or _is_ignored(tid, number):
            _wait_on(inspector, tid, registers)
        return None
    if registers.result <= 0 or number == signal.SIGPIPE:  # which comes of the call itself
        return None
    completion = cut_short(tid, registers)
    if completion is None or not _is_ignored(tid, number):
        return None
    inspector.change(tid, registers.bits, completion.rest, -abi.ERESTARTNOINTR)
    return completion


def _is_ignored(tid: int, number: int) -> bool:
    """Whether a signal would wake nobody who is not traced."""
    with open(f"/proc/{tid}/status", "rb") as file:
        caught, ignored = tasks.handled(file.read())
    return number in ignored or (number in _IGNORED_BY_DEFAULT and number not in caught)


def _wait_on(inspector: ptrace.Inspector, tid: int, registers: ptrace.Registers) -> None:
    """A call that a signal has ended begins anew, unless that has a handler. (One with a time limit would have all of
    that again, time after time: it ends.)"""
    if registers.call not in abi.WAITING_CALLS[registers.bits]:
        return
    number, pointers = abi.WAITING_CALLS[registers.bits][registers.call]
    is_endless = number < 0 or registers.dwarf[number] >> 31 & 1
    if is_endless and not any(registers.dwarf[pointer] for pointer in pointers):
        inspector.change(tid, registers.bits, {}, -abi.ERESTARTNOHAND)


def go_on(inspector: ptrace.Inspector, tid: int, completion: Completion) -> bool:
    """At the entry to or the return from a system call: whether the thread is still about to make its call again."""
    registers = inspector.registers(tid)
    if not completion.is_at(registers):
        completion.n_others += 1
        return completion.n_others < _PATIENCE
    if not completion.entered:
        completion.entered = True
        return True
    completion.add(registers.result)
    inspector.change(tid, registers.bits, completion.whole, completion.done)
    return False
