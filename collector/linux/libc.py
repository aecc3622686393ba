"""System calls that Python has no name for, through ctypes. The keeper of ctypes.

Every function raises OSError with the errno of the call; nothing here knows what a profile is.
"""

from __future__ import annotations

import ctypes
import os
import sys
from array import array
from collections.abc import Sequence
from itertools import chain

from collector.errors import CollectorError

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.mremap.restype = ctypes.c_void_p
_libc.mremap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_libc.process_vm_readv.restype = ctypes.c_ssize_t
_libc.process_vm_readv.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_ulong,
                                   ctypes.c_ulong)

_WORD = (1 << 64) - 1
_MAP_FAILED = ctypes.c_void_p(-1).value

_OF_32_BITS = {"i386": "x86_64", "i686": "x86_64", "armv8l": "aarch64"}


def machine(told: str, is_64_bits: bool) -> str:
    """Whose numbers of system calls are ours, by the kernel's name of the machine. To who is in the personality of
    programs of 32 bits (linux32) it has another one. Raises CollectorError."""
    name = _OF_32_BITS.get(told, told)
    if not is_64_bits or name not in _OF_32_BITS.values():
        raise CollectorError(f"collect needs a Python of 64 bits on x86-64; this one has {64 if is_64_bits else 32}, "
                             f"on a machine that is called {told}")
    return name


_MACHINE = machine(os.uname().machine, sys.maxsize > 1 << 32)
_SYS_PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}[_MACHINE]
_SYS_GETDENTS64 = {"x86_64": 217, "aarch64": 61}[_MACHINE]
_SYS_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}[_MACHINE]
_SYS_STATX = {"x86_64": 332, "aarch64": 291}[_MACHINE]
_STATX_BYTES, _AT_FDCWD, _AT_STATX_DONT_SYNC, _STATX_TYPE = 256, -100, 0x4000, 1
_SYS_FSOPEN, _SYS_FSCONFIG, _SYS_FSMOUNT = 430, 431, 432  # the same numbers on every architecture
_FSCONFIG_CMD_CREATE, _FSOPEN_CLOEXEC, _FSMOUNT_CLOEXEC = 6, 1, 1

PROT_NONE, PROT_READ, PROT_WRITE = 0, 1, 2
MAP_SHARED, MAP_PRIVATE, MAP_FIXED, MAP_ANONYMOUS, MAP_NORESERVE = 1, 2, 0x10, 0x20, 0x4000
MADV_REMOVE = 9
_MREMAP_MAYMOVE, _MREMAP_FIXED = 1, 2
MAP_FIXED_NOREPLACE = 0x100000  # fails where something is mapped already (since Linux 4.17)


def _fail(what: str) -> OSError:
    code = ctypes.get_errno()
    return OSError(code, f"{what}: {os.strerror(code)}")


def perf_event_open(attr: bytes, pid: int, cpu: int, group_fd: int, flags: int) -> int:
    """A new perf event's descriptor (perf_event_open(2))."""
    fd = int(_libc.syscall(_SYS_PERF_EVENT_OPEN, attr, pid, cpu, group_fd, ctypes.c_ulong(flags)))
    if fd < 0:
        raise _fail("perf_event_open")
    return fd


def mmap(address: int, length: int, prot: int, flags: int, fd: int) -> int:
    """The address of a new mapping (mmap(2) with offset 0); Python's own mmap cannot choose the address."""
    got = _libc.mmap(address or None, length, prot, flags, fd, 0)
    if got is None or got == _MAP_FAILED:
        raise _fail("mmap")
    return int(got)


def put(address: int, length: int, prot: int, flags: int, fd: int) -> None:
    """A new mapping in the place of what is at an address, or of a part of it; where it is refused that stays.

    mmap(2) with MAP_FIXED would have unmapped that before it is refused. Whoever maps something next gets the hole, and
    that is often Python: for its next frame, or an object.
    """
    made = mmap(0, length, prot, flags, fd)
    got = _libc.mremap(made, length, length, _MREMAP_MAYMOVE | _MREMAP_FIXED, address)
    if got is None or got == _MAP_FAILED:
        error = _fail("mremap")
        munmap(made, length)
        raise error


def munmap(address: int, length: int) -> None:
    """Ends a mapping."""
    if _libc.munmap(address, length) != 0:
        raise _fail("munmap")


def forget_memory(address: int, length: int) -> None:
    """Gives whole pages of memory that is shared, and of no file, back to the kernel: zeros for all who share it."""
    if _libc.madvise(address, length, MADV_REMOVE) != 0:
        raise _fail("madvise")


def memory(address: int, length: int) -> memoryview:
    """``length`` bytes of our own memory from ``address``, without a copy; valid while that memory is mapped."""
    return memoryview((ctypes.c_ubyte * length).from_address(address)).cast("B")


def detached_mount(file_system: bytes) -> int:
    """A descriptor of the root of a kernel file system that is mounted nowhere (since Linux 5.2; privileged)."""
    context = int(_libc.syscall(_SYS_FSOPEN, file_system, _FSOPEN_CLOEXEC))
    if context < 0:
        raise _fail("fsopen")
    try:
        if _libc.syscall(_SYS_FSCONFIG, context, _FSCONFIG_CMD_CREATE, None, None, 0) < 0:
            raise _fail("fsconfig")
        root = int(_libc.syscall(_SYS_FSMOUNT, context, _FSMOUNT_CLOEXEC, 0))
    finally:
        os.close(context)
    if root < 0:
        raise _fail("fsmount")
    return root


def kept_mode(path: str) -> int:
    """The mode of a file as the kernel has it: a file system of another machine, or of a program, is not asked."""
    found = bytearray(_STATX_BYTES)
    into = (ctypes.c_ubyte * _STATX_BYTES).from_buffer(found)
    if _libc.syscall(_SYS_STATX, _AT_FDCWD, os.fsencode(path), _AT_STATX_DONT_SYNC, _STATX_TYPE, into) != 0:
        raise _fail("statx")
    return int.from_bytes(found[28:30], "little")


class _IoVec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def process_vm_readv(pid: int, ranges: Sequence[tuple[int, int]], into: memoryview) -> int:
    """Copies the (address, length) ``ranges`` of another process behind one another into ``into``.

    Returns the number of bytes read, which ends at the first unreadable page.
    """
    local = _IoVec(ctypes.addressof(ctypes.c_ubyte.from_buffer(into)), len(into))
    try:
        remote = array("Q", chain.from_iterable(ranges))  # of struct iovec
    except OverflowError:  # addresses that none can be
        remote = array("Q", [word & _WORD for piece in ranges for word in piece])
    n = int(_libc.process_vm_readv(pid, ctypes.byref(local), 1, remote.buffer_info()[0], len(ranges), 0))
    if n < 0:
        raise _fail("process_vm_readv")
    return n


_libc.ptrace.restype = ctypes.c_long
_libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


def ptrace(request: int, tid: int, address: int = 0, data: int = 0) -> int:
    """ptrace(2); raises OSError, ProcessLookupError above all: the thread is gone or not stopped."""
    got = int(_libc.ptrace(request, tid, address, data))
    if got == -1:
        raise _fail("ptrace")
    return got


def prctl(option: int, value: int) -> None:
    """prctl(2) with one argument."""
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        raise _fail("prctl")


def sched_setattr(attr: bytes) -> None:
    """Changes how the calling thread is scheduled."""
    if _libc.syscall(_SYS_SCHED_SETATTR, 0, attr, 0) != 0:
        raise _fail("sched_setattr")


def current_cpu() -> int:
    """The CPU that the calling thread runs on."""
    return int(_libc.sched_getcpu())


def getdents(fd: int, into: Exchange) -> int:
    """How many bytes of a directory's next entries are in ``into`` now (getdents64(2)); 0 behind the last one."""
    n = int(_libc.syscall(_SYS_GETDENTS64, fd, ctypes.c_void_p(into.address), len(into.view)))
    if n < 0:
        raise _fail("getdents64")
    return n


def address_of(view: memoryview) -> int:
    """Where a writable view begins in our own memory; valid while the view's owner lives."""
    return ctypes.addressof(ctypes.c_ubyte.from_buffer(view))


_AF_NETLINK, _SOCK_RAW, _SOL_SOCKET, _SO_RCVBUFFORCE, _MSG_DONTWAIT = 16, 3, 1, 33, 0x40


def netlink_socket(protocol: int, n_bytes: int) -> int:
    """A descriptor for messages to a part of the kernel and from it (netlink(7)), of which ``n_bytes`` may wait, with
    what the kernel needs for each (privileged)."""
    fd = int(_libc.socket(_AF_NETLINK, _SOCK_RAW | os.O_CLOEXEC | os.O_NONBLOCK, protocol))
    if fd < 0:
        raise _fail("socket")
    if _libc.setsockopt(fd, _SOL_SOCKET, _SO_RCVBUFFORCE, ctypes.byref(ctypes.c_int(n_bytes)), 4) != 0:
        error = _fail("setsockopt")
        os.close(fd)
        raise error
    return fd


class _Message(ctypes.Structure):
    """struct msghdr."""

    _fields_ = (("name", ctypes.c_void_p), ("name_length", ctypes.c_uint), ("vectors", ctypes.c_void_p),
                ("n_vectors", ctypes.c_size_t), ("control", ctypes.c_void_p), ("control_length", ctypes.c_size_t),
                ("flags", ctypes.c_int))


class _Received(ctypes.Structure):
    """struct mmsghdr."""

    _fields_ = (("message", _Message), ("length", ctypes.c_uint))


class Messages:
    """Room for ``most`` messages of a socket of up to ``size`` bytes each, one behind the other in ``view``."""

    def __init__(self, most: int, size: int) -> None:
        self._buffer = (ctypes.c_ubyte * (most * size))()
        self.view = memoryview(self._buffer).cast("B")
        first = ctypes.addressof(self._buffer)
        self._vectors = (_IoVec * most)(*(_IoVec(first + i * size, size) for i in range(most)))
        vectors = ctypes.addressof(self._vectors)
        self._headers = (_Received * most)(*(
            _Received(_Message(None, 0, vectors + i * ctypes.sizeof(_IoVec), 1)) for i in range(most)))
        self._most = most

    def receive(self, fd: int) -> int:
        """How many have come, at most as many as there is room for. Raises BlockingIOError where none has."""
        n = int(_libc.recvmmsg(fd, self._headers, self._most, _MSG_DONTWAIT, None))
        if n < 0:
            raise _fail("recvmmsg")
        return n


class Exchange:
    """A buffer of ours, seen through ``view``, that the kernel reads and writes: at ``address``, or by an iovec."""

    def __init__(self, size: int) -> None:
        self._buffer = (ctypes.c_ubyte * size)()
        self._vector = _IoVec(ctypes.addressof(self._buffer), size)
        self.view = memoryview(self._buffer).cast("B")
        self.address = ctypes.addressof(self._buffer)
        self.iovec = ctypes.addressof(self._vector)

    @property
    def length(self) -> int:
        """How much of the buffer the iovec covers: after a call, how much the kernel wrote."""
        return int(self._vector.length)

    @length.setter
    def length(self, length: int) -> None:
        self._vector.length = length


class RemoteMemory:
    """Copies memory of other processes to addresses of ours; one at a time, without making anything anew."""

    def __init__(self) -> None:
        self._local, self._remote = _IoVec(), _IoVec()
        self._arguments = (ctypes.byref(self._local), 1, ctypes.byref(self._remote), 1, 0)

    def read(self, pid: int, address: int, length: int, to: int) -> int:
        """The number of bytes copied, up to the first unreadable page. Raises OSError where there are none."""
        self._local.base, self._local.length = to, length
        self._remote.base, self._remote.length = address, length
        n = int(_libc.process_vm_readv(pid, *self._arguments))
        if n < 0:
            raise _fail("process_vm_readv")
        return n
