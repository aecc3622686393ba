"""Which threads a process has: /proc/PID/task, whole. Standard library only: this runs before the target does.

The kernel goes through the threads of a process in the order of their births. Where the one that it stands at ends, the
list is cut there, as if that was all. Who asks on gets those from the next place on; but places have moved up by the
one that has ended, and who was behind him is in no part. While threads come and go, some lists in a thousand are of
this kind, and ``os.listdir`` cannot tell.

A list that came to the end ends with a thread that still lives behind it, and the place that was come to is that of all
who are in it: who ended before his number was taken has a place, too.
"""

from __future__ import annotations

import os

from collector.linux import abi, libc

_LONGEST, _BORN_MEANWHILE = 32, 64  # an entry, in bytes; entries
_N_DOTS = 2  # places before the first thread's; a directory has as many links more than it has others in it
_MOST_LISTS = 16


def threads_of(pid: int) -> set[int]:
    """The threads (tid) that a process has, and some that may have ended meanwhile. Raises OSError when it is gone."""
    path = f"/proc/{pid}/task"
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        found: set[int] = set()
        for _ in range(_MOST_LISTS):
            buffer = libc.Exchange((os.fstat(fd).st_nlink + _BORN_MEANWHILE) * _LONGEST)
            os.lseek(fd, 0, os.SEEK_SET)
            entries = bytes(buffer.view[:libc.getdents(fd, buffer)])
            tids = _numbers(entries)
            found.update(tids)
            is_room = len(entries) + _LONGEST <= len(buffer.view)
            n_places = os.lseek(fd, 0, os.SEEK_CUR) - _N_DOTS
            if tids and is_room and n_places == len(tids) and os.path.exists(f"{path}/{tids[-1]}"):
                break
        return found
    finally:
        os.close(fd)


def _numbers(entries: bytes) -> list[int]:
    numbers, at = [], 0
    while at < len(entries):
        _, _, length, _ = abi.DIRECTORY_ENTRY.unpack_from(entries, at)
        name_at = at + abi.DIRECTORY_ENTRY.size
        name = entries[name_at:entries.index(0, name_at)]
        if name[:1] != b".":
            numbers.append(int(name))
        at += length
    return numbers
