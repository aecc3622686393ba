"""Programs that a tracer stands in the way of. Standard library only.

    setuid, setgid, or with capabilities   the kernel withholds these from who is traced by somebody that could not
                                           have them either (cap_bprm_creds_from_file in security/commoncap.c)
    LeakSanitizer in it                    traces its own threads when it ends, and gives up where that is refused
    debuggers                              whom we trace they cannot
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from functools import lru_cache

from collector.linux import abi

_CAP_SYS_PTRACE = 1 << 19
_LEAK_CHECKERS = (b"\0__asan_init\0", b"\0__lsan_", b"\0libasan.so", b"\0liblsan.so", b"\0libhwasan.so")
_DEBUGGERS = {"dlv", "gdb", "gdbserver", "lldb-server", "ltrace", "rr", "strace"}
_NO_LEAK_CHECK = b"detect_leaks=0"
_MAX_BYTES = 1 << 26  # of what is read at once


def may_trace_the_privileged() -> bool:
    """Whether who is traced by us keeps the privileges of what it executes."""
    return bool(int(_field("/proc/self/status", b"CapEff"), 16) & _CAP_SYS_PTRACE)


def withheld_privilege(pid: int) -> str:
    """What the program that a process has just executed would have given it, had it not been traced: ``setuid``,
    ``setgid`` or ``capabilities``; empty for nothing. Raises OSError where that cannot be told."""
    exe = f"/proc/{pid}/exe"
    file = os.stat(exe)
    if not file.st_mode & (stat.S_ISUID | stat.S_ISGID) and not _has_capabilities(exe):
        return ""
    status = f"/proc/{pid}/status"
    if os.statvfs(exe).f_flag & os.ST_NOSUID or _field(status, b"NoNewPrivs") == b"1":
        return ""
    uid, gid = (int(_field(status, name).split()[1]) for name in (b"Uid", b"Gid"))
    if file.st_mode & stat.S_ISUID and file.st_uid != uid:
        return "setuid"
    if file.st_mode & stat.S_ISGID and file.st_mode & stat.S_IXGRP and file.st_gid != gid:
        return "setgid"
    return "capabilities" if _has_capabilities(exe) else ""


def checks_leaks(pid: int) -> bool:
    """Whether a process looks for leaks at its end by tracing its threads. Raises OSError where that cannot be told."""
    if not _may_check_leaks(pid):
        return False
    with open(f"/proc/{pid}/environ", "rb") as file:
        return not any(entry.startswith((b"ASAN_OPTIONS=", b"LSAN_OPTIONS=")) and _NO_LEAK_CHECK in entry
                       for entry in file.read().split(b"\0"))


def is_debugger(pid: int) -> bool:
    """Whether a process runs a program that is there to trace others. (That it links ptrace(2) does not tell: perf and
    stress-ng do.) Raises OSError where that cannot be told."""
    return os.path.basename(os.readlink(f"/proc/{pid}/exe")) in _DEBUGGERS


@dataclass(frozen=True, slots=True)
class _Program:
    """A file that processes execute, and the path by which one of them is asked for it."""

    device: int
    inode: int
    changed_ns: int
    path: str = field(compare=False)  # another one for each process


def _may_check_leaks(pid: int) -> bool:
    """Whether there is a leak checker in what a process executes. Raises OSError where that may not be read."""
    path = f"/proc/{pid}/exe"
    file = os.stat(path)
    return _has_leak_checker(_Program(file.st_dev, file.st_ino, file.st_mtime_ns, path))


@lru_cache(maxsize=1024)
def _has_leak_checker(program: _Program) -> bool:
    """By the names that it shares with its libraries: symbols, and the libraries themselves. Static programs have none.
    (Those of node are 5 MB, which take 20 ms.)"""
    fd = os.open(program.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        names = _dynamic_strings(fd)
    finally:
        os.close(fd)
    return any(mark in names for mark in _LEAK_CHECKERS)


def _dynamic_strings(fd: int) -> bytes:
    head = os.pread(fd, abi.ELF_64.size, 0)
    if len(head) < abi.ELF_64.size or head[:5] != abi.ELF_64_MAGIC:
        return b""
    _, at, size, count = abi.ELF_64.unpack(head)
    table = _read(fd, size * count, at)
    segments = [abi.ELF_64_SEGMENT.unpack_from(table, i * size) for i in range(len(table) // size)] if size else []
    dynamic = next((_read(fd, length, offset) for kind, offset, _, length in segments if kind == abi.PT_DYNAMIC), b"")
    dynamic = dynamic[:len(dynamic) // abi.ELF_64_DYNAMIC.size * abi.ELF_64_DYNAMIC.size]
    entries = dict(abi.ELF_64_DYNAMIC.iter_unpack(dynamic))
    address, length = entries.get(abi.DT_STRTAB, 0), entries.get(abi.DT_STRSZ, 0)
    return next((_read(fd, length, address - start + offset) for kind, offset, start, held in segments
                 if kind == abi.PT_LOAD and start <= address < start + held), b"")


def _read(fd: int, n_bytes: int, offset: int) -> bytes:
    """What a file has there. Places and lengths are what it says of itself, and the kernel executes it all the same."""
    n_there = max(os.fstat(fd).st_size - offset, 0)
    return os.pread(fd, min(n_bytes, n_there, _MAX_BYTES), offset) if n_there else b""


def _has_capabilities(exe: str) -> bool:
    try:
        return bool(os.getxattr(exe, "security.capability"))
    except OSError:  # it has none, or its file system has none at all
        return False


def _field(path: str, name: bytes) -> bytes:
    with open(path, "rb") as file:
        return file.read().partition(b"\n" + name + b":")[2].partition(b"\n")[0].strip()
