"""Single threads as /proc shows them, for those who look often. Standard library only.

What /proc/PID/task/TID/syscall says: ``running``, or the number and arguments of the system call that the thread sleeps
in, its sp and pc; the number is -1 where it sleeps outside of system calls, that is, on a page fault.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import NamedTuple

from collector.linux import libc

USER_END = 1 << 47
_PAGE_BITS = 12
_WORD_BYTES = 8
_SPARE_FDS = 64
_NEWLINE = b"\\012"
_NS_DIGITS = 6  # of a millisecond
TURN_BYTES = 512  # of ``sched``, which are enough for ``parse_turn``


@dataclass(frozen=True, slots=True)
class Place:
    """Where a thread sleeps: its system call (-1: none), sp and pc; and what was said of that, which may differ between
    two visits to a place."""

    call: int
    sp: int
    pc: int
    text: bytes = field(default=b"", compare=False, repr=False)

    @property
    def arguments(self) -> tuple[int, ...]:
        """The six arguments of the system call; none where there is no call."""
        return tuple(int(word, 16) for word in self.text.split()[1:-2])


UNREAD = Place(-1, 0, 0)  # of a thread that sleeps where we may not look


class Executable(NamedTuple):
    """An executable mapping as /proc/PID/maps has it; ``path`` is ``//anon`` where there is no file."""

    start: int
    end: int
    file_offset: int
    device: int
    inode: int
    path: bytes


class Stat(NamedTuple):
    """Some of /proc/PID/task/TID/stat: the state's letter, CPU time in user and kernel mode (clock ticks), last CPU."""

    state: bytes
    user_ticks: int
    system_ticks: int
    cpu: int


class Files:
    """The files of one thread, kept open from their first use: reading is a quarter of opening and reading.

    Where descriptors run short, those of threads that come late are opened each time.
    """

    __slots__ = ("_fds", "_path")
    _kept_below = 0  # the first descriptor that is not kept

    def __init__(self, pid: int, tid: int) -> None:
        self._path = f"/proc/{pid}/task/{tid}/"
        self._fds: dict[str, int] = {}

    def read(self, name: str, size: int = 512) -> bytes:
        """The file as it is now. Raises OSError when the thread is gone."""
        fd = self._fds.get(name)
        if fd is None:
            fd = os.open(self._path + name, os.O_RDONLY | os.O_CLOEXEC)
            if fd >= self._kept_below and fd >= self._find_limit():
                return _read_and_close(fd, size)
            self._fds[name] = fd
        return os.pread(fd, size, 0)

    @classmethod
    def _find_limit(cls) -> int:
        """Descriptors are given out from the lowest up: a high one tells that nearly all are taken."""
        import resource

        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        cls._kept_below = soft - min(_SPARE_FDS, soft // 2)
        return cls._kept_below

    def read_once(self, name: str, size: int = 512) -> bytes:
        """The same, for files that are rarely asked for."""
        return _read_and_close(os.open(self._path + name, os.O_RDONLY | os.O_CLOEXEC), size)

    def close_some(self) -> None:
        """Closes all but schedstat."""
        for name in [name for name in self._fds if name != "schedstat"]:
            os.close(self._fds.pop(name))

    def close(self) -> None:
        """Closes all."""
        for fd in self._fds.values():
            os.close(fd)
        self._fds.clear()


def _read_and_close(fd: int, size: int) -> bytes:
    try:
        return os.read(fd, size)
    finally:
        os.close(fd)


def parse_place(text: bytes) -> Place | None:
    """What ``syscall`` says; None for a thread that runs or waits for a CPU."""
    words = text.split()
    if len(words) < 3:
        return None
    return Place(int(words[0]), int(words[-2], 16), int(words[-1], 16), text)


def parse_stat(text: bytes) -> Stat:
    """What ``stat`` says; the name in it may hold anything."""
    words = text.rpartition(b")")[2].split(None, 37)
    return Stat(words[0], int(words[11]), int(words[12]), int(words[36]))


def executables(pid: int, tid: int) -> list[Executable]:
    """The executable mappings of a thread's process in user space, by address, files named as the process sees them.

    Raises OSError when it is gone.
    """
    with open(f"/proc/{pid}/task/{tid}/maps", "rb") as file:
        lines = [line.split(None, 5) for line in file if b"x" in line[:48].split(b" ", 2)[1]]
    root = _root_of(pid)
    return [found for found in (_executable(pid, words, root) for words in lines) if found.end <= USER_END]


def _root_of(pid: int) -> bytes:
    """What stands before the paths of a process as we see them, with a final slash: that of a chroot, or nothing."""
    try:
        return os.readlink(b"/proc/%d/root" % pid).rstrip(b"/") + b"/"
    except OSError:  # it is ending
        return b"/"


def _executable(pid: int, words: list[bytes], root: bytes = b"/") -> Executable:
    start, end = (int(word, 16) for word in words[0].split(b"-"))
    major, _, minor = words[3].partition(b":")
    path = words[5].rstrip(b"\n") if len(words) > 5 else b""
    if _NEWLINE in path:
        path = _exact_path(pid, start, end, path)
    if len(root) > 1 and path.startswith(root):
        path = path[len(root) - 1:]
    return Executable(start, end, int(words[2], 16), int(major, 16) << 20 | int(minor, 16), int(words[4]),
                      path or b"//anon")


def identity_when_mapped(fd: int) -> tuple[int, int] | None:
    """(device, inode) of an open file as the kernel tells them with mappings; None where it cannot be mapped.

    On some file systems (btrfs, overlayfs) they are not what stat says. We map it, and look at our own list.
    """
    try:
        address = libc.mmap(0, 1, libc.PROT_READ, libc.MAP_PRIVATE, fd)
    except OSError:
        return None
    try:
        with open("/proc/self/maps", "rb") as file:
            words = next(line.split(None, 5) for line in file if line.startswith(b"%08x-" % address))
    finally:
        libc.munmap(address, 1)
    found = _executable(os.getpid(), words)
    return found.device, found.inode


def _exact_path(pid: int, start: int, end: int, path: bytes) -> bytes:
    """In maps a newline is written as four characters, and these four are written as they are; a link tells which."""
    try:
        return os.readlink(b"/proc/%d/map_files/%x-%x" % (pid, start, end))
    except OSError:
        return path.replace(_NEWLINE, b"\n")


def library_pages(status: bytes) -> bytes:
    """What ``status`` says of the size of executable memory besides the program's own."""
    return status.partition(b"VmLib:")[2].partition(b"\n")[0]


def dumps_core(status: bytes) -> bool:
    """Whether ``status`` says that the process is writing its core file. Since Linux 4.15."""
    return b"\nCoreDumping:\t1" in status


def is_resident(tid: int, address: int) -> bool | None:
    """Whether the page of an address is in a thread's memory or swapped out; None where that is not told."""
    try:
        fd = os.open(f"/proc/{tid}/pagemap", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        entry = os.pread(fd, _WORD_BYTES, (address >> _PAGE_BITS) * _WORD_BYTES)
    except OSError:
        return None
    finally:
        os.close(fd)
    return int.from_bytes(entry, "little") >> 63 == 1 if len(entry) == _WORD_BYTES else None


def switches(status: bytes) -> tuple[int, int]:
    """How often a thread has left its CPU to sleep or to stop (voluntary switches), and for others, as ``status`` says.
    Raises ValueError where that does not tell; a name with such words in it does not matter."""
    _, _, lines = status.rpartition(b"\nvoluntary_ctxt_switches:")
    voluntary, is_there, others = lines.partition(b"\nnonvoluntary_ctxt_switches:")
    involuntary, is_whole, _ = others.partition(b"\n")
    if not (is_there and is_whole):
        raise ValueError("the kernel does not tell of voluntary context switches")
    return int(voluntary), int(involuntary)


class Turn(NamedTuple):
    """What the scheduler says of a thread's last turn on a CPU.

    ``moment_ns``: when it last brought the account up to date, by the CPU's clock: when the thread got its CPU, if it
    has not run for long, and when it was taken from it, if it waits. Of two that follow each other on a CPU both are
    the same moment (Linux 6.18: __schedule reads the clock once). Moments on two CPUs cannot be compared: a CPU's clock
    stands still while it serves interrupts (rq_clock_task). ``n_over``: turns that are over, which are one less
    than those that its account counts (schedstat) just while it has a CPU. ``n_left``: how often it has left its CPU
    to sleep or to stop."""

    moment_ns: int
    n_over: int
    n_left: int


def parse_turn(sched: bytes) -> Turn:
    """As the beginning of ``sched`` has it. Raises ValueError where that does not tell; a name with such words in it
    does not matter."""
    _, _, lines = sched.rpartition(b"\nse.exec_start")
    moment, _, lines = lines.partition(b"\n")
    ms, _, rest = moment.rpartition(b":")[2].strip().partition(b".")
    _, _, lines = lines.partition(b"\nnr_switches")
    over, _, lines = lines.partition(b"\n")
    left, is_whole, _ = lines.partition(b"\n")
    if len(rest) != _NS_DIGITS or not left.startswith(b"nr_voluntary_switches") or not is_whole:
        raise ValueError("the kernel does not tell of a thread's last turn")
    return Turn(int(ms + rest), int(over.rpartition(b":")[2]), int(left.rpartition(b":")[2]))


def state(status: bytes) -> bytes:
    """The state's letter, as ``status`` says."""
    return status.partition(b"\nState:\t")[2][:1]


def handled(status: bytes) -> tuple[set[int], set[int]]:
    """Signals by number: those that have a handler, and those that are set to be ignored, as ``status`` says. Raises
    ValueError where that does not tell."""
    masks = (status.rpartition(name)[2].partition(b"\n")[0] for name in (b"\nSigCgt:\t", b"\nSigIgn:\t"))
    caught, ignored = ({bit + 1 for bit in range(64) if mask >> bit & 1} for mask in [int(m, 16) for m in masks])
    return caught, ignored


def group_of(tid: int) -> tuple[int, int]:
    """(pid, parent's pid) of a thread. Raises OSError when it is gone."""
    with open(f"/proc/{tid}/status", "rb") as file:
        fields = dict(line.split(b":", 1) for line in file if b":" in line)
    return int(fields[b"Tgid"]), int(fields[b"PPid"])


def has_ended(pid: int, tid: int) -> bool:
    """Whether a thread is gone, or all that is left of it is its end, for others to take note of."""
    try:
        return parse_stat(Files(pid, tid).read_once("stat")).state in (b"Z", b"X")
    except OSError:
        return True


def tracer_of(tid: int) -> int:
    """The thread that traces a thread; 0 for none."""
    try:
        with open(f"/proc/{tid}/status", "rb") as file:
            return int(file.read().partition(b"TracerPid:")[2].split()[0])
    except (OSError, IndexError):
        return 0


def word_bits(pid: int) -> int:
    """32 or 64: the kind of program that a process runs; 64 where its file cannot be read."""
    try:
        with open(f"/proc/{pid}/exe", "rb") as file:
            return 32 if file.read(5)[4:] == b"\x01" else 64
    except OSError:
        return 64
