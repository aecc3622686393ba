"""Threads under ptrace(2), seized: they run as they would without us, and stop only where we ask or must be told.

What wait(2) tells of a seized thread that stopped, and what it expects then:

    event 0          about to be given a signal      cont with the signal
    EVENT_STOP       SIGTRAP: interrupted by us, newly attached, or a job-control stop has ended     cont
                     another signal: a job-control stop has begun                                    listen
    other events     it has just cloned, forked or exec'd, or is about to exit                       cont

A thread that is stopped when its tracer ends runs on, with the signal that it was about to be given. Standard library
only.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from operator import itemgetter
from typing import NamedTuple

from collector.linux import abi, libc

THREADS = abi.PTRACE_O_TRACESYSGOOD | abi.PTRACE_O_TRACECLONE | abi.PTRACE_O_TRACEEXEC | abi.PTRACE_O_TRACEEXIT
PROCESSES = abi.PTRACE_O_TRACEFORK | abi.PTRACE_O_TRACEVFORK

_MAX_PATH = 4096
_STOPS = os.WSTOPPED | os.WNOHANG | abi.WAIT_ALL
_ENDS = os.WEXITED | os.WNOHANG | os.WNOWAIT | abi.WAIT_ALL
_GONE = {os.CLD_EXITED, os.CLD_KILLED, os.CLD_DUMPED}
_DWARF_OF_64, _DWARF_OF_32 = itemgetter(*abi.DWARF_OF_64), itemgetter(*abi.DWARF_OF_32)


class Report(NamedTuple):
    """What wait(2) says of a thread: ``gone`` (its end), or the signal and the event that it stopped with."""

    tid: int
    gone: bool
    signal: int = 0
    event: int = 0


@dataclass(slots=True)
class Registers:
    """The registers of a stopped thread: ``bits`` of its code, ``dwarf`` 17 values in DWARF order of x86-64, the number
    of the system call that it is in (-1: none) and that call's result so far."""

    bits: int
    dwarf: tuple[int, ...]
    call: int
    result: int


def seize(tid: int, options: int) -> None:
    """Attaches to a thread without stopping it. Raises OSError."""
    libc.ptrace(abi.PTRACE_SEIZE, tid, 0, options)


def interrupt(tid: int) -> None:
    """Asks a running thread to stop; wait(2) tells when it has."""
    libc.ptrace(abi.PTRACE_INTERRUPT, tid)


def await_stop(tid: int, most_ns: int) -> None:
    """Waits, without sleeping, for a thread to stop: a CPU that has gone to sleep takes as long to wake up as one that
    runs takes to stop a thread."""
    until_ns = time.monotonic_ns() + most_ns
    with suppress(ChildProcessError):
        while not os.waitid(os.P_PID, tid, _STOPS | os.WNOWAIT) and time.monotonic_ns() < until_ns:
            pass


def cont(tid: int, signal: int = 0) -> None:
    """Lets a stopped thread run, with a signal that it was about to be given. A thread that was killed is no error."""
    try:
        libc.ptrace(abi.PTRACE_CONT, tid, 0, signal)
    except ProcessLookupError:
        return


def cont_to_call(tid: int, signal: int = 0) -> None:
    """The same, to the entry of its next system call, or out of the one it is in."""
    with suppress(ProcessLookupError):
        libc.ptrace(abi.PTRACE_SYSCALL, tid, 0, signal)


def listen(tid: int) -> None:
    """Leaves a thread in its job-control stop."""
    with suppress(ProcessLookupError):
        libc.ptrace(abi.PTRACE_LISTEN, tid)


def detach(tid: int, signal: int = 0) -> None:
    """Lets a stopped thread run and forgets it."""
    with suppress(ProcessLookupError):
        libc.ptrace(abi.PTRACE_DETACH, tid, 0, signal)


def next_report() -> Report | None:
    """What happened to some thread of ours, if anything. A thread that has stopped waits for us; one that is gone is
    told of again until ``bury``, and has its accounts until then. Raises ChildProcessError when there are no threads
    (any more)."""
    while True:
        if stop := _next_stop():
            return stop
        found = os.waitid(os.P_ALL, 0, _ENDS)
        if found is None:
            return None
        if found.si_code in _GONE:  # else it has stopped but now: such are told of whatever one asks for
            return Report(found.si_pid, True)


def _next_stop() -> Report | None:
    try:
        found = os.waitid(os.P_ALL, 0, _STOPS)
    except ChildProcessError:  # where there are none but those that are gone
        return None
    return Report(found.si_pid, False, found.si_status & 0xFF, found.si_status >> 8) if found else None


def bury(tid: int) -> None:
    """The end of a thread has been understood: it is gone for good now."""
    with suppress(ChildProcessError):
        os.waitpid(tid, os.WNOHANG | abi.WAIT_ALL)


def execute_again(inspector: Inspector, tid: int) -> bool:
    """Lets a process that has just executed a program (EVENT_EXEC) begin by executing it once more, and forgets it: so
    it has what the program gives to those who are not traced. False where that cannot be, and nothing is done."""
    registers = inspector.registers(tid)
    if registers.bits != 64:
        return False
    sp, entry = registers.dwarf[7], registers.dwarf[16]
    path = _executed_path(tid)
    if not path:
        return False
    arguments = sp + abi.WORD.size
    environment = arguments + (inspector.word(tid, sp) + 1) * abi.WORD.size
    columns = dict(zip(abi.ARGUMENTS_64, (path, arguments, environment), strict=False))
    inspector.registers(tid)
    for at, (word,) in enumerate(abi.WORD.iter_unpack(abi.EXECUTE_AGAIN_64)):
        libc.ptrace(abi.PTRACE_POKETEXT, tid, entry + at * abi.WORD.size, word)
    inspector.change(tid, 64, columns, registers.result)
    detach(tid)
    return True


def _executed_path(tid: int) -> int:
    """Where a process that begins has the path that it was executed by; 0 if that is not the path of its program: it
    may be a script's, or that of a descriptor which is closed by now."""
    with open(f"/proc/{tid}/auxv", "rb") as file:
        data = file.read()
    address = dict(abi.AUXILIARY_64.iter_unpack(data)).get(abi.AT_EXECFN, 0)
    if not address:
        return 0
    with open(f"/proc/{tid}/mem", "rb", buffering=0) as file:
        file.seek(address)
        path = os.fsdecode(file.read(_MAX_PATH).partition(b"\0")[0])
    where = f"/proc/{tid}/root{path}" if path.startswith("/") else f"/proc/{tid}/cwd/{path}"
    try:
        return address if os.path.samestat(os.stat(where), os.stat(f"/proc/{tid}/exe")) else 0
    except OSError:
        return 0


class Inspector:
    """Asks about stopped threads."""

    def __init__(self) -> None:
        self._exchange = libc.Exchange(abi.REGISTERS_64.size)
        self._memory = libc.RemoteMemory()

    def message(self, tid: int) -> int:
        """What belongs to the last event: the new thread's id, or the old one of a thread that called exec."""
        libc.ptrace(abi.PTRACE_GETEVENTMSG, tid, 0, self._exchange.address)
        return int(abi.WORD.unpack_from(self._exchange.view)[0])

    def word(self, tid: int, address: int) -> int:
        """A word of the thread's memory."""
        self._memory.read(tid, address, abi.WORD.size, self._exchange.address)
        return int(abi.WORD.unpack_from(self._exchange.view)[0])

    def registers(self, tid: int) -> Registers:
        """The registers as they will be when the thread is in user mode."""
        exchange = self._exchange
        exchange.length = abi.REGISTERS_64.size
        libc.ptrace(abi.PTRACE_GETREGSET, tid, abi.NT_PRSTATUS, exchange.iovec)
        if exchange.length == abi.REGISTERS_64.size:
            r = abi.REGISTERS_64.unpack_from(exchange.view)
            return Registers(64, _DWARF_OF_64(r), _signed(r[abi.CALL_64], 64),
                             _signed(r[abi.RESULT_64], 64))
        r = abi.REGISTERS_32.unpack_from(exchange.view)
        *low, ip = _DWARF_OF_32(r)
        return Registers(32, (*low, *(0,) * 8, ip), _signed(r[abi.CALL_32], 32), _signed(r[abi.RESULT_32], 32))

    def change(self, tid: int, bits: int, columns: dict[int, int], result: int) -> None:
        """Replaces registers, by their DWARF columns of x86-64, and the result of the system call of the thread whose
        registers were asked for last."""
        layout, index = (abi.REGISTERS_64, abi.RESULT_64) if bits == 64 else (abi.REGISTERS_32, abi.RESULT_32)
        values = list(layout.unpack_from(self._exchange.view))
        for column, value in columns.items():
            values[(abi.DWARF_OF_64 if bits == 64 else abi.DWARF_OF_32)[column]] = value % (1 << bits)
        values[index] = result % (1 << bits)
        layout.pack_into(self._exchange.view, 0, *values)
        libc.ptrace(abi.PTRACE_SETREGSET, tid, abi.NT_PRSTATUS, self._exchange.iovec)


def _signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> (bits - 1) else value
