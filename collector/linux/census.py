"""Which processes there are, whose they are and where they belong, as ``/proc`` tells it; by number.

A number may change hands between two looks. Who needs to know that it has not opens a pidfd first and asks it last.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from collector.linux import proc

_ARGUMENTS_MAX = 4096  # bytes
_KERNEL_THREAD = 0x200000  # PF_KTHREAD of include/linux/sched.h


class Owner(NamedTuple):
    """Whose a process is: its real, effective, saved and file-system user; whether the kernel lets its user look into
    it (it is dumpable); since when it lives, in clock ticks since boot; whether it is a thread of the kernel."""

    uids: tuple[int, int, int, int]
    dumpable: bool
    start_ticks: int
    is_kernel: bool


def pids() -> list[int]:
    """All processes, by number."""
    return sorted(int(name) for name in os.listdir("/proc") if name.isdigit())


def owner(pid: int) -> Owner | None:
    """None where there is no such process, or no more. The files of one that is not dumpable are root's."""
    try:
        folder = os.open(f"/proc/{pid}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None
    try:
        uids = next(line.split()[1:5] for line in _read("status", folder).splitlines() if line.startswith(b"Uid:"))
        fields = _read("stat", folder).rpartition(b")")[2].split()
        real, effective, saved, files = map(int, uids)
        shown_as = os.stat("maps", dir_fd=folder).st_uid
        return Owner((real, effective, saved, files), shown_as == effective, int(fields[19]),
                     bool(int(fields[6]) & _KERNEL_THREAD))
    except (OSError, StopIteration, ValueError, IndexError):
        return None
    finally:
        os.close(folder)


def _read(name: str, folder: int) -> bytes:
    fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
    with open(fd, "rb") as file:
        return file.read()


def cgroup(pid: int) -> str:
    """The path of its control group, of version 2 or of systemd's hierarchy, whichever says more; empty where there is
    none."""
    paths = [""]
    for line in _text(f"/proc/{pid}/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" or controllers == "name=systemd":
            paths.append(path)
    return max(paths, key=len)


def arguments(pid: int) -> str:
    """The beginning of the command line, its words joined by blanks; bytes that are no text as surrogates; empty for
    the kernel's."""
    return _text(f"/proc/{pid}/cmdline", _ARGUMENTS_MAX).replace("\0", " ").strip()


def ancestors(pid: int) -> Iterator[int]:
    """Its parent, and so on."""
    seen = {pid}
    while (kin := proc.kin_of(pid)) is not None and kin.parent and kin.parent not in seen:
        pid = kin.parent
        seen.add(pid)
        yield pid


def below(pid: int) -> set[int]:
    """All that are below it; none of those whose parents ended before."""
    found: set[int] = set()
    left = [pid]
    while left:
        folder = f"/proc/{left.pop()}/task"
        with suppress(OSError):
            for task in os.listdir(folder):
                children = {int(child) for child in _text(f"{folder}/{task}/children").split()} - found
                found |= children
                left += children
    return found


def cpu_s(pid: int) -> float:
    """Seconds of CPU that it has used, without its children; 0 where it is gone."""
    fields = _text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if len(fields) > 12 else 0.0


def layout(pid: int) -> list[str]:
    """Where its code begins and ends, and its stack begins: random numbers that each exec draws anew, as a rule."""
    return _text(f"/proc/{pid}/stat").rpartition(")")[2].split()[23:26]


def memory_bytes(pid: int) -> int:
    """What it has in memory."""
    fields = _text(f"/proc/{pid}/statm").split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if len(fields) > 1 else 0


def boot_id() -> str:
    """Of the running kernel."""
    return _text("/proc/sys/kernel/random/boot_id").strip()


def _text(path: str, size: int = -1) -> str:
    try:
        with open(path, "rb") as file:
            return os.fsdecode(file.read(size))
    except OSError:
        return ""
