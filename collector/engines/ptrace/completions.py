"""Calls that a stop cut amid their work, and that are made again for the rest. Standard library only.

    read, pread, getrandom      of bytes without end: they stop at any signal, and nobody expects them to
    write, send                 to a pipe, a terminal or a stream: who blocks there comes back when all is written
    recv with MSG_WAITALL       from a stream, likewise

Without us only a signal that has a handler, or a job-control stop, makes the latter come back with a part. Where the
descriptor does not block, a part is what the program expects. (writev, sendmsg, recvmsg and socketcall have their
sizes in memory that other threads may use: they stay as they are.)
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass

from collector.linux import abi, libc, ptrace

_ENDLESS_FILES = {"/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"}
_TERMINALS = "/dev/pts/", "/dev/tty", "/dev/console"
_STREAMS = {b"TCP", b"TCPv6", b"MPTCP", b"MPTCPv6", b"UNIX-STREAM"}  # sockets that know no messages
_MOST_BYTES = 0x7FFF_F000  # of any call (MAX_RW_COUNT)


@dataclass(slots=True)
class Completion:
    """A call that is made again for the rest: what it did so far, its buffer and size as they were, and where it is;
    whether a signal that is not ignored ends it; and whether it has been cut once more."""

    done: int
    buffer: int
    size: int
    columns: tuple[int, int]
    ends_at_signals: bool
    entered: bool = False
    n_others: int = 0
    is_cut: bool = False

    @property
    def whole(self) -> dict[int, int]:
        """The registers as they were, by their columns."""
        return dict(zip(self.columns, (self.buffer, self.size), strict=True))

    @property
    def rest(self) -> dict[int, int]:
        """The registers for the rest."""
        left = min(self.size, _MOST_BYTES) - self.done
        return dict(zip(self.columns, (self.buffer + self.done, left), strict=True))

    def is_at(self, registers: ptrace.Registers) -> bool:
        """Whether a thread has the registers for the rest. (Who returns from a handler is in no call then, and has its
        registers as they were before that.)"""
        return registers.call >= 0 and registers.dwarf[self.columns[0]] == self.buffer + self.done

    def add(self, result: int) -> None:
        """The call for the rest has come back."""
        self.done += max(result, 0)
        self.is_cut = self.done < min(self.size, _MOST_BYTES) and (result > 0 or -result in abi.CUT_RESULTS)


def cut_short(tid: int, registers: ptrace.Registers) -> Completion | None:
    """What is to be done for the rest of the call of a stopped thread; None if it has done all, or is none of those."""
    bits, call, result = registers.bits, registers.call, registers.result
    is_stream = call in abi.STREAM_CALLS[bits]
    columns = (abi.STREAM_CALLS if is_stream else abi.READ_CALLS)[bits].get(call)
    if columns is None:
        return None
    file, buffer, size = (registers.dwarf[column] if column >= 0 else -1 for column in columns)
    if not 0 < result < min(size, _MOST_BYTES):
        return None
    try:
        if is_stream:
            if not (_may_wait(registers) and _blocks(tid, file & 0xFFFF_FFFF)):
                return None
        elif file >= 0 and os.readlink(f"/proc/{tid}/fd/{file}") not in _ENDLESS_FILES:
            return None
    except (OSError, ValueError):
        return None
    return Completion(result, buffer, size, columns[1:], is_stream)


def _may_wait(registers: ptrace.Registers) -> bool:
    """Whether the flags of a call say that it is to do all that was asked for."""
    bits, call = registers.bits, registers.call
    if call in abi.WRITE_CALLS[bits]:
        return True
    flags = registers.dwarf[abi.ARGUMENTS[bits][3]]
    if flags & abi.MSG_PARTLY:
        return False
    # The length of an address would be what the first call left of it.
    return call in abi.SEND_CALLS[bits] or bool(flags & abi.MSG_WAITALL and not registers.dwarf[abi.ARGUMENTS[bits][4]])


def _blocks(tid: int, file: int) -> bool:
    """Whether a descriptor is one of a stream without messages, and blocks. Raises OSError, ValueError."""
    path = f"/proc/{tid}/fd/{file}"
    name = os.readlink(path)
    if name.startswith("socket:"):
        is_stream = os.getxattr(path, "system.sockprotoname").rstrip(b"\0") in _STREAMS
    else:  # of a file whose file system is a program's, that may be ours to let go: it is not asked
        is_stream = name.startswith(("pipe:", *_TERMINALS)) or stat.S_ISFIFO(libc.kept_mode(path))
    if not is_stream:
        return False
    with open(f"/proc/{tid}/fdinfo/{file}", "rb") as info:
        flags = info.read().partition(b"flags:")[2].split(None, 1)[0]
    return not int(flags, 8) & os.O_NONBLOCK
