"""What /proc and the machine say: the keeper of psutil (set-up only, never per tick).

Nothing heavy is imported before it is asked for.
"""

from __future__ import annotations

import errno
import os
import re
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import accumulate
from typing import NamedTuple

from collector.linux import tasks
from collector.linux.thread_list import threads_of

# Files of /proc come by the page. A buffer that malloc(3) would map and unmap costs more than most of them.
_PART_BYTES = 1 << 15
_BEHIND_LANDMARKS = 1 << 16  # bytes of kallsyms: more than the rest of a source file's functions


class Machine(NamedTuple):
    """What an experiment's header says of the machine; ``cpu_mhz`` has one number per CPU (0: unknown)."""

    hostname: str
    system: str
    architecture: str
    page_size: int
    n_pages: int
    cpu_mhz: tuple[int, ...]


def machine() -> Machine:
    """The machine that we run on."""
    name = os.uname()
    n_cpus = os.sysconf("SC_NPROCESSORS_ONLN")  # whatever PYTHON_CPU_COUNT says
    mhz = re.findall(rb"^cpu MHz\s*: ([0-9.]+)$", _read("/proc/cpuinfo"), re.MULTILINE)
    if len(mhz) != n_cpus:
        mhz = _frequencies()
    if len(mhz) != n_cpus:
        mhz = [0] * n_cpus
    return Machine(name.nodename, f"{name.sysname} {name.release}", name.machine, os.sysconf("SC_PAGE_SIZE"),
                   os.sysconf("SC_PHYS_PAGES"), tuple(round(float(each)) for each in mhz))


def _frequencies() -> list[float]:
    """MHz of each CPU where /proc/cpuinfo does not tell: psutil knows the other places, but takes 20 ms to import."""
    import psutil

    try:
        return [frequency.current for frequency in psutil.cpu_freq(percpu=True)]
    except (OSError, NotImplementedError):
        return []


def threads(pid: int) -> list[int]:
    """The thread ids of a process in ascending order, see ``threads_of``. Raises OSError when it is gone."""
    return sorted(threads_of(pid))


def stat(pid: int) -> bytes:
    """/proc/PID/stat as it stands."""
    return _read(f"/proc/{pid}/stat")


def status(pid: int | str) -> dict[bytes, bytes]:
    """The fields of /proc/PID/status by name, without the blanks around them; of a thread: PID/task/TID."""
    lines = (line.partition(b":") for line in _read(f"/proc/{pid}/status").splitlines())
    return {name: value.strip() for name, _, value in lines}


def kernel_flags(pid: int) -> int:
    """The kernel's flags of a process (PF_*)."""
    return int(stat(pid).rpartition(b")")[2].split()[6])


class Kin(NamedTuple):
    """Whose child a process is, and when it was born, in clock ticks since boot: two processes of one number differ."""

    parent: int
    start_ticks: int


def kin() -> dict[int, Kin]:
    """All processes by number; about 10 us for each."""
    found = {pid: kin_of(pid) for pid in map(int, filter(str.isdigit, os.listdir("/proc")))}
    return {pid: of_it for pid, of_it in found.items() if of_it is not None}


def kin_of(pid: int) -> Kin | None:
    """One process; None when it is gone."""
    try:
        words = stat(pid).rpartition(b")")[2].split()
        return Kin(int(words[1]), int(words[19]))
    except (OSError, ValueError, IndexError):
        return None


def start_unix_ns(pid: int) -> int | None:
    """When a process was born, by the clock of files, in steps of 10 ms; None when it is gone."""
    kin = kin_of(pid)
    since_boot_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    tick_ns = 10**9 // os.sysconf("SC_CLK_TCK")
    return time.time_ns() - since_boot_ns + kin.start_ticks * tick_ns if kin is not None else None


def command_line(pid: int) -> list[bytes]:
    """The arguments of a process; empty for kernel threads and zombies."""
    return _read(f"/proc/{pid}/cmdline").split(b"\0")[:-1]


def comm(pid: int, tid: int) -> bytes:
    """The name of a thread as it stands, without the final newline."""
    return _read(f"/proc/{pid}/task/{tid}/comm")[:-1]


def idle_ns() -> dict[int, int]:
    """For how long each online CPU has been idle since boot, in steps of 10 ms."""
    tick_ns = 10**9 // os.sysconf("SC_CLK_TCK")
    rows = [line.split() for line in _read("/proc/stat").split(b"\n") if re.match(rb"cpu[0-9]", line)]
    return {int(row[0][3:]): (int(row[4]) + int(row[5])) * tick_ns for row in rows}  # idle, and so with I/O under way


def pid_of(pidfd: int) -> int | None:
    """The number of the process that a pidfd stands for; -1 where it is gone, None where the descriptor is none."""
    try:
        with open(f"/proc/self/fdinfo/{pidfd}", "rb") as file:
            return next((int(line.split()[1]) for line in file if line.startswith(b"Pid:")), None)
    except FileNotFoundError:
        return None


def parameter(name: str) -> int | None:
    """A number below /proc/sys, such as ``kernel/perf_event_paranoid``; None where it cannot be read."""
    try:
        return int(_read(f"/proc/sys/{name}"))
    except (OSError, ValueError):
        return None


class ProcessUsage(NamedTuple):
    """Counters of a whole process, cumulative since its start (0 where they cannot be read); CPU time in whole ticks.

    Its context switches are still 0: the kernel tells those of single threads (``process_switches``)."""

    minor_faults: int = 0
    major_faults: int = 0
    system_calls: int = 0
    io_characters: int = 0
    input_blocks: int = 0
    output_blocks: int = 0
    user_ns: int = 0
    system_ns: int = 0
    voluntary_switches: int = 0
    involuntary_switches: int = 0


def process_usage(pid: int) -> ProcessUsage | None:
    """The counters of a process as of now; None when it is gone. About 100 us."""
    try:
        stat = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    except (OSError, ValueError):
        return None
    if len(stat) < 13:
        return None
    io = _io(pid)
    return ProcessUsage(int(stat[7]), int(stat[9]), io.get("syscr", 0) + io.get("syscw", 0),
                        io.get("rchar", 0) + io.get("wchar", 0), io.get("read_bytes", 0) >> 9,
                        io.get("write_bytes", 0) >> 9, *_times_ns(stat[11:13]))


class ProcessLife(NamedTuple):
    """When a process was born, in clock ticks since boot, whether it is over (a zombie), and its CPU time."""

    start_ticks: int
    is_over: bool
    user_ns: int
    system_ns: int


def process_life(pid: int) -> ProcessLife | None:
    """A process as of now, whoever's it is; None when it is gone. CPU time in whole clock ticks."""
    try:
        state, *words = stat(pid).rpartition(b")")[2].split()
        return ProcessLife(int(words[18]), state in (b"Z", b"X"), *_times_ns(words[10:12]))
    except (OSError, ValueError, IndexError):
        return None


def _times_ns(ticks: list[bytes]) -> Iterator[int]:
    return (int(each) * 1_000_000_000 // os.sysconf("SC_CLK_TCK") for each in ticks)


def process_switches(pid: int) -> tuple[int, int]:
    """Voluntary and involuntary context switches of the threads that a process has now. About 30 us each."""
    totals = [0, 0]
    tids: set[int] = set()
    with suppress(OSError):
        tids = threads_of(pid)
    for tid in tids:
        with suppress(OSError):  # it is gone
            found = tasks.switches(_read(f"/proc/{pid}/task/{tid}/status"))
            totals = [total + n for total, n in zip(totals, found, strict=True)]
    return totals[0], totals[1]


def _io(pid: int) -> dict[str, int]:
    try:
        lines = _read(f"/proc/{pid}/io").decode("ascii").splitlines()
    except OSError:  # another user's process
        return {}
    return {name: int(value) for name, _, value in (line.partition(": ") for line in lines)}


def kernel_functions(pattern: bytes, landmarks: Sequence[bytes] = ()) -> list[tuple[int, int, bytes]]:
    """(start, end, name) of the kernel's functions whose names match ``pattern``, sorted; empty where they are hidden.

    The pattern is for a whole name. The kernel prints every symbol it has, sorted by address, which takes 40 ms; but
    what follows ``landmarks`` is left unread, in a kernel that has them all in this order.
    """
    try:
        text = _read("/proc/kallsyms", [b" %s\n" % name for name in landmarks])
    except OSError:
        return []
    found = []
    # From the type on: a pattern that began with the address would be tried, and fail, for every symbol in turn.
    for match in re.finditer(rb" [tTwW] (" + pattern + rb")\n", text):
        address = text[text.rfind(b"\n", 0, match.start()) + 1:match.start()]
        start = int(address, 16)
        if not start:  # addresses are hidden: all are zero, and the one behind them would be sought in vain, for long
            return []
        end = _address_behind(text, match.end() - 1, address)
        if end > start:
            found.append((start, end, match[1]))
    return sorted(found)


def _address_behind(text: bytes, at: int, address: bytes) -> int:
    """The first address after position ``at`` of kallsyms that is not ``address``; 0 at the end."""
    while (line := at + 1) < len(text):
        at = text.find(b"\n", line)
        other = text[line:at].partition(b" ")[0]
        if at < 0 or other != address:
            return int(other or b"0", 16)
    return 0


def _read(path: str, until: Sequence[bytes] = ()) -> bytes:
    """A file, or what of it lies up to some way behind the last of some landmarks, if they come in this order."""
    text, at = bytearray(), 0
    ahead = deque(until)
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # a file object would take 2 us more
    try:
        while part := os.read(fd, _PART_BYTES):
            text += part
            while ahead and (found := text.find(ahead[0], at)) >= 0:
                at = found
                ahead.popleft()
            if until and not ahead and len(text) - at > _BEHIND_LANDMARKS:
                break
            if ahead:
                at = max(at, len(text) - len(ahead[0]))
    finally:
        os.close(fd)
    return bytes(text)


def clock_offset_ns() -> int:
    """How far CLOCK_MONOTONIC as we read it is ahead of the kernel's own: not 0 in a time namespace."""
    try:
        clocks = dict(line.split(None, 1) for line in _read("/proc/self/timens_offsets").splitlines())
    except OSError:  # before Linux 5.6, or built without
        return 0
    seconds, rest_ns = map(int, clocks[b"monotonic"].split())
    return seconds * 1_000_000_000 + rest_ns


def working_directory() -> bytes:
    """Where we are; empty where that has no path."""
    for find in (os.getcwdb, lambda: os.readlink(b"/proc/self/cwd")):
        try:
            return find()
        except OSError:  # it has been deleted, and is ``... (deleted)`` then
            continue
    return b""


def vdso_ranges(pid: int) -> list[tuple[int, int]]:
    """Where the vDSO lies in a process: (start, end), none where it has none."""
    maps = _read(f"/proc/{pid}/maps")
    return [(int(start, 16), int(end, 16))
            for start, end in re.findall(rb"^([0-9a-f]+)-([0-9a-f]+) .*\[vdso\]$", maps, re.MULTILINE)]


_AT_ONCE = 1024  # pieces of memory in one call


def read_pieces(pid: int, addresses: Sequence[int], sizes: Sequence[int]) -> list[bytes]:
    """Pieces of a process's memory; empty where there is none, all of them if it is gone or not ours to read."""
    from collector.linux.libc import process_vm_readv

    found: list[bytes] = []
    while len(found) < len(addresses):
        begin, end = len(found), min(len(found) + _AT_ONCE, len(addresses))
        ranges = list(zip(addresses[begin:end], sizes[begin:end], strict=True))
        buffer = bytearray(max(sum(size for _, size in ranges), 1))
        try:
            left = process_vm_readv(pid, ranges, memoryview(buffer))
        except ProcessLookupError:
            return found + [b""] * (len(addresses) - len(found))
        except OSError:  # the first piece cannot be read
            left = 0
        content = bytes(memoryview(buffer)[:left])  # of which a piece is taken in a quarter of the time
        ends = list(accumulate(size for _, size in ranges))
        n_read = bisect_right(ends, left)
        found += [content[at:stop] for at, stop in zip([0, *ends], ends[:n_read], strict=False)]
        found += [b""] if n_read < len(ranges) else []
    return found


def read_memory(pid: int, address: int, length: int) -> bytes:
    """Memory of a process. Raises OSError when it is gone or not ours to read."""
    fd = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return memory_in(fd, address, length)
    finally:
        os.close(fd)


def memory_in(fd: int, address: int, length: int) -> bytes:
    """The same through an open file: of a process that has ended since then, the kernel says that nothing is there."""
    found = os.pread(fd, length, address)
    if length and not found:
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
    return found
