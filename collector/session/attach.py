"""Attaching to processes that run already: checks, and their state at the moment we come.

A process is held by a pidfd from the first check on, so that its number cannot come to mean somebody else. Its threads
and mappings are read from /proc; threads that are blocked get the stack that they are blocked with, read from their
memory without stopping them: sp and pc from /proc, the frame pointer found by searching.
"""

from __future__ import annotations

import os
import re
import select
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from collector.errors import TargetGone
from collector.events import Array, Batch, ClockSamples, Mapped, Reason
from collector.linux import libc, proc, tasks
from collector.target.microstate import Cut

_STACK_WORDS = 1 << 11  # 16 KiB of each blocked thread
_FUTEX_CALLS = {202, 449, 455}  # futex, futex_waitv, futex_wait of x86-64
_PF_KTHREAD = 0x200000
_SP, _IP = 7, 16


@dataclass(frozen=True)
class Target:
    """A running process that is to be recorded. ``pidfd`` stays open as long as it is."""

    pid: int
    pidfd: int

    def alive(self) -> bool:
        """Whether the process that was checked is still the one."""
        return not select.select([self.pidfd], [], [], 0)[0]


def checked(pid: int) -> Target:
    """The process, if it can be a target. Raises TargetGone with what is wrong."""
    if pid == os.getpid():
        raise TargetGone(f"-P {pid}: that is collect itself")
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        raise TargetGone(f"-P {pid}: there is no such process") from None
    except OSError as err:
        raise TargetGone(f"-P {pid}: not a process ({err.strerror}); give the number of a process, not of a thread"
                         ) from None
    try:
        _check_kind(pid)
    except TargetGone:
        os.close(pidfd)
        raise
    return Target(pid, pidfd)


def _check_kind(pid: int) -> None:
    try:
        flags = proc.kernel_flags(pid)
        state = tasks.parse_stat(proc.stat(pid)).state
    except (OSError, ValueError, IndexError):
        raise TargetGone(f"-P {pid}: the process has just ended") from None
    if flags & _PF_KTHREAD:
        raise TargetGone(f"-P {pid}: a thread of the kernel has no user code to profile")
    if state in (b"Z", b"X"):
        raise TargetGone(f"-P {pid}: the process has ended and only waits for its parent to notice")
    try:
        os.readlink(f"/proc/{pid}/exe")
    except PermissionError:
        raise TargetGone(f"-P {pid}: the process belongs to another user; run collect as that user or as root"
                         ) from None
    except OSError:
        raise TargetGone(f"-P {pid}: the process has just ended") from None


def lineage_of(pid: int, number: int = 1) -> str:
    """The name of the experiment of a process that was attached beside the founder."""
    try:
        name = re.sub(rb"[^A-Za-z0-9.+-]", b"-", proc.comm(pid, pid)).decode("ascii")
    except OSError:
        name = "process"
    return f"_{name}_PID_{pid}.{number}"


def mappings(pid: int, time_ns: int) -> list[Mapped]:
    """The executable mappings of a process as changes. Raises OSError when it is gone."""
    return [Mapped(time_ns, pid, pid, found.start, found.end - found.start, found.file_offset, found.device,
                   found.inode, found.path) for found in tasks.executables(pid, pid)]


@dataclass(frozen=True)
class Found:
    """A thread as it was found: what its clock begins with, and where it is blocked (None: it is not)."""

    tid: int
    cut: Cut
    reason: Reason
    place: tasks.Place | None


def find(pid: int, tid: int) -> Found | None:
    """How a thread is at this moment; None when it is gone."""
    files = tasks.Files(pid, tid)
    try:
        state = tasks.parse_stat(files.read_once("stat")).state
        place = tasks.parse_place(files.read_once("syscall"))
    except (OSError, ValueError, IndexError):
        return Found(tid, Cut.IN, Reason.UNKNOWN, None) if os.path.exists(f"/proc/{pid}/task/{tid}") else None
    if state == b"R" or place is None:
        return Found(tid, Cut.IN, Reason.UNKNOWN, None)
    if state in (b"T", b"t"):
        return Found(tid, Cut.OUT_BLOCKED, Reason.STOPPED, place)
    reason = Reason.USER_FAULT if place.call == -1 else Reason.LOCK if place.call in _FUTEX_CALLS else Reason.SLEEP
    return Found(tid, Cut.OUT_BLOCKED, reason, place)


def departures(pid: int, found: Sequence[Found], time_ns: int) -> Batch:
    """The stacks of blocked threads as samples of threads that left their CPU just before ``time_ns``."""
    blocked = [(thread, thread.place) for thread in found if thread.place is not None]
    words = np.zeros((len(blocked), _STACK_WORDS), dtype=np.uint64)
    n_words = [_read_stack(pid, place.sp, words[i]) for i, (_, place) in enumerate(blocked)]
    n = len(blocked)
    regs = np.zeros((n, 17), dtype=np.uint64)
    regs[:, _SP] = [place.sp for _, place in blocked]
    regs[:, _IP] = [place.pc for _, place in blocked]
    samples = ClockSamples(
        time_ns=np.full(n, time_ns - 1), pid=np.full(n, pid), tid=np.array([t.tid for t, _ in blocked], dtype=np.int64),
        cpu=np.zeros(n, dtype=np.int32), mode=np.array([t.reason for t, _ in blocked], dtype=np.int8),
        abi=np.full(n, tasks.word_bits(pid), dtype=np.int8), regs=regs, words=words.reshape(-1),
        base=np.arange(n, dtype=np.int64) * _STACK_WORDS, mask=np.full(n, _STACK_WORDS - 1, dtype=np.int64),
        first=np.zeros(n, dtype=np.int64), low=regs[:, _SP].copy(), n_words=np.array(n_words, dtype=np.int64),
        known=np.full(n, 1 << _SP | 1 << _IP, dtype=np.uint64))
    return Batch(time_ns, leaving=samples if n else None)


def _read_stack(pid: int, sp: int, into: Array) -> int:
    """Words of the stack from ``sp`` up; as many as can be read."""
    view = into.view(np.uint8).data
    try:
        return libc.process_vm_readv(pid, [(sp, len(view))], view) >> 3
    except OSError:
        return 0
