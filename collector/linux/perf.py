"""perf events on every CPU, their rings mapped side by side. Standard library only: this runs before the target does.

The picture: one reservation of address space holds all rings, so that one array of words sees them all and a stack in
any ring is an index. Each ring is a header page (head: the kernel's, tail: ours) and a power of two of data pages.

    reservation  | hdr | data 0 ........ | hdr | data 1 ........ | ...
    words index  0     base of ring 0          base of ring 1

Behind them all lie *spares* of the same layout, into which what a ring holds can be moved: one for each ring whose
event asks for it; and where the budget for locked memory made rings small, one for each, of the size that it should
have had. What waits there for long may wait packed, behind what lies in the spare itself: records of processes that are
made by the thousand are alike, and take a tenth of their room.

Why one event per CPU: an inherited event with cpu=-1 opens, but cannot be mapped.
"""

from __future__ import annotations

import errno
import mmap
import os
import select
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from fcntl import ioctl
from typing import TYPE_CHECKING, NamedTuple

from collector.linux import abi, libc
from collector.linux.descriptors import leave_behind

if TYPE_CHECKING:
    from collector.linux.packed import Packed

PAGE = mmap.PAGESIZE
BUDGET_USED_UP = "the budget for locked memory is used up"
_READ_WRITE = libc.PROT_READ | libc.PROT_WRITE
_SMALLEST_RING = 16 * PAGE


class EventSpec(NamedTuple):  # and no dataclass: those take a millisecond to make, and the target waits
    """One kind of event for every CPU. ``attr`` as packed by ``abi.pack_attr``; ``ring_bytes`` a power of two.

    ``everyone``: of whatever runs on the CPU, not of certain threads; left out where the user may not have that.
    ``at_rest``: only ``Rings.wake`` starts it; ``later``: and gives it its ring. ``ring_bytes`` 0: it only counts.
    ``group``: the name of an earlier one that it is read together with. ``filter``: a tracepoint's, in the kernel's
    language. ``spare_bytes``: of its ring's spare, a power of two; 0 for none. ``of_maker``: opened on the thread that
    makes the one it is for. ``may_lack``: of certain threads, and left out as well where the user may not have it.
    """

    name: str
    attr: bytes
    ring_bytes: int
    everyone: bool = False
    at_rest: bool = False
    later: bool = False
    group: str = ""
    filter: bytes = b""
    spare_bytes: int = 0
    of_maker: bool = False
    may_lack: bool = False


class Birth(NamedTuple):
    """A thread that is still to be made: the thread ``maker`` does so in ``make``, which returns its tid."""

    maker: int
    make: Callable[[], int]


class Ring(NamedTuple):
    """A mapped ring: which event, which CPU, where. Offsets are bytes from the start of the reservation."""

    name: str
    cpu: int
    fd: int
    header_offset: int
    data_offset: int
    data_bytes: int
    at_rest: bool = False
    later: bool = False


class Rings:
    """Open events and their mapped rings; ``memory`` is the whole reservation.

    ``spares`` are pairs of a ring and what it can be moved to, which no event writes into. Forks share them.
    """

    def __init__(self, writers: dict[int, list[int]], rings: list[Ring], spares: list[tuple[Ring, Ring]], address: int,
                 length: int) -> None:
        self._writers = writers  # by the ring's descriptor: those of all events that write into it
        self.rings = rings
        self.spares = spares
        self.address = address
        self.length = length
        self.memory = libc.memory(address, length)
        self._words = self.memory.cast("Q")
        self._once: list[int] = []
        self._unmapped = {ring for ring in rings if ring.later}
        self._least_bytes: Mapping[str, int] = {}  # of spares that may pack, by name
        self._packed: dict[Ring, Packed] = {}  # behind what is in the spares that have such

    def head(self, ring: Ring) -> int:
        """Bytes that the kernel has written into the ring since it was opened."""
        return self._words[(ring.header_offset + abi.RING_HEAD_OFFSET) >> 3]

    def tail(self, ring: Ring) -> int:
        """Bytes that we have given back."""
        return self._words[(ring.header_offset + abi.RING_TAIL_OFFSET) >> 3]

    def ends(self, rings: Iterable[Ring]) -> list[tuple[Ring, int, int]]:
        """Rings, each with its tail and its head as of now, in order: the first one's are read first."""
        words = self._words
        return [(ring, words[(ring.header_offset + abi.RING_TAIL_OFFSET) >> 3],
                 words[(ring.header_offset + abi.RING_HEAD_OFFSET) >> 3]) for ring in rings]

    def give_back(self, ring: Ring, tail: int) -> None:
        """Lets the kernel overwrite everything before ``tail``; a spare gives the memory back that this took. (The page
        that it begins in may have been given back by half before: nothing new is there, since a spare is never full.)
        """
        at = (ring.header_offset + abi.RING_TAIL_OFFSET) >> 3
        before = self._words[at]
        self._words[at] = tail
        if ring.fd < 0:
            first, end = before // PAGE * PAGE, tail // PAGE * PAGE
            while first < end:
                at = first % ring.data_bytes
                n = min(end - first, ring.data_bytes - at)
                libc.forget_memory(self.address + ring.data_offset + at, n)
                first += n

    def move(self, ring: Ring, spare: Ring, part: float = 1) -> bool:
        """Moves what a ring holds, or so many whole records of it as fill a part of the ring, behind what its spare
        holds; False where that is full."""
        tail, head = self.tail(ring), self.head(ring)
        if head == tail:
            return True
        if part < 1:
            head = self.record_behind(ring, tail, min(tail + int(part * ring.data_bytes), head))
        n_held = self.head(spare) - self.tail(spare)
        n_packed = self._packed[spare].n_bytes if spare in self._packed else 0
        if n_held + n_packed + head - tail > spare.data_bytes - PAGE:  # see give_back
            return False
        pieces = self._pieces(ring, tail, head)
        if n_packed or n_held > self._least_bytes.get(spare.name, n_held):
            if not self._pack(spare, pieces):
                return False
        else:
            for piece in pieces:
                self._append(spare, piece)
        self.give_back(ring, head)
        return True

    def may_pack(self, least_bytes: Mapping[str, int]) -> None:
        """From now on spares of these names, that hold more than so much, keep packed what is moved to them. No other
        process sees that."""
        self._least_bytes = least_bytes

    def _pack(self, spare: Ring, pieces: Iterator[memoryview]) -> bool:
        from collector.linux.packed import Packed  # which most recordings do without

        try:
            self._packed.setdefault(spare, Packed()).put(pieces)
        except MemoryError:
            return False
        return True

    def unpack(self) -> None:
        """Puts back into the spares what was packed, until they hold more than their least, or all of it."""
        for spare, packed in self._packed.items():
            while packed.n_bytes and self.head(spare) - self.tail(spare) <= self._least_bytes[spare.name]:
                self._append(spare, packed.take())

    def _append(self, spare: Ring, data: bytes | memoryview) -> None:
        head, done = self.head(spare), 0
        for place in self._pieces(spare, head, head + len(data)):
            place[:] = data[done:done + len(place)]
            done += len(place)
        self._words[(spare.header_offset + abi.RING_HEAD_OFFSET) >> 3] = head + len(data)

    def _pieces(self, ring: Ring, start: int, end: int) -> Iterator[memoryview]:
        """What lies between two positions of a ring, in two pieces where it goes round."""
        while start < end:
            at = start % ring.data_bytes
            n = min(end - start, ring.data_bytes - at)
            yield self.memory[ring.data_offset + at:ring.data_offset + at + n]
            start += n

    def record_behind(self, ring: Ring, position: int, end: int) -> int:
        """Where the first record begins, from one at ``position`` on, that is not below ``end``."""
        while position < end:
            position += self._words[(ring.data_offset + position % ring.data_bytes) >> 3] >> 48  # its size
        return position

    def add_once(self, name: str, tids: Sequence[int], attrs: Iterator[bytes]) -> None:
        """Opens events that write a single record each, once ``enable`` has been called: one for every thread and CPU,
        into the CPU's ring of a name, with ``attrs`` one after another. Raises OSError; none stays open then."""
        try:
            for ring in [ring for ring in self.rings if ring.name == name]:
                for tid in tids:
                    with suppress(ProcessLookupError):  # gone meanwhile
                        self._once.append(libc.perf_event_open(next(attrs), tid, ring.cpu, -1, abi.FLAG_FD_CLOEXEC))
                        ioctl(self._once[-1], abi.IOC_SET_OUTPUT, ring.fd)
        except OSError:
            self._close_once()
            raise

    def set_periods(self, name: str, periods: Iterator[int]) -> None:
        """Gives every thread that has events of its own of a name the next of ``periods``; those that inherit these
        have it, too."""
        writers = [self._writers[ring.fd] for ring in self.rings if ring.name == name]
        for of_thread in zip(*writers, strict=False):
            period = next(periods).to_bytes(8, "little")
            for fd in of_thread:
                ioctl(fd, abi.IOC_PERIOD, period)

    def enable(self) -> None:
        """Starts all events (those that do not wait for an exec), but not those that begin at rest."""
        for fd in self._once:
            ioctl(fd, abi.IOC_REFRESH, 1)
        for ring in self.rings:
            if not ring.at_rest:
                self.wake(ring)

    def disable(self) -> None:
        """Stops all events, also those that the next exec would start; what is in the rings stays readable."""
        for fd in [*self._once, *self._fds()]:
            ioctl(fd, abi.IOC_DISABLE, 0)
        for ring in self.rings:
            if ring.fd in self._writers and ring not in self._unmapped:
                ioctl(ring.fd, abi.IOC_PAUSE_OUTPUT, 1)

    def rest(self, ring: Ring) -> None:
        """Stops the events that write into one ring, in all threads.

        A thread that is born meanwhile may have one that is awake, since the kernel asks for the state of its maker's
        before it takes the lock, and hands that on to threads born later. So they are told twice.
        """
        for fd in self._writers[ring.fd] * 2:
            ioctl(fd, abi.IOC_DISABLE, 0)

    def wake(self, ring: Ring) -> None:
        """Starts the events that write into one ring, in all threads. Raises OSError where there is no room for a ring
        that is mapped only now."""
        if ring in self._unmapped:
            self._map(ring)
        for fd in self._writers[ring.fd]:
            ioctl(fd, abi.IOC_ENABLE, 0)

    def writer_that_lives(self, ring: Ring) -> int | None:
        """The descriptor of an event that writes into a ring, of a thread that has not ended or has left others that
        have inherited it; None where there is none. The kernel wakes who polls any of those that share a ring."""
        writers = select.poll()
        for fd in self._writers.get(ring.fd, ()):
            writers.register(fd, 0)
        gone = {fd for fd, _ in writers.poll(0)}
        return next((fd for fd in self._writers.get(ring.fd, ()) if fd not in gone), None)

    def n_lost(self, ring: Ring) -> int:
        """Records that found no room in a ring so far, where its events were opened with ``abi.READ_LOST``: also those
        of which no record tells, since none came behind them."""
        read = [os.read(fd, abi.READ_LOST_FORMAT.size) for fd in self._writers[ring.fd]]
        return sum(abi.READ_LOST_FORMAT.unpack(data)[1] for data in read if len(data) == abi.READ_LOST_FORMAT.size)

    def _map(self, ring: Ring) -> None:
        _map_ring(self.address, ring)
        self._unmapped.discard(ring)
        leader, *others = self._writers[ring.fd]
        for fd in others:
            ioctl(fd, abi.IOC_SET_OUTPUT, leader)

    def inherit(self) -> None:
        """Maps the rings in a process forked from ours, at the same places: the kernel leaves them out of a fork's
        memory. For as long as one of both has them mapped, they keep what they hold. Raises OSError where something was
        mapped there since the fork."""
        for ring in self.rings:
            if ring not in self._unmapped:
                libc.mmap(self.address + ring.header_offset, PAGE + ring.data_bytes, _READ_WRITE,
                          libc.MAP_SHARED | libc.MAP_FIXED_NOREPLACE, ring.fd)

    def close(self) -> None:
        """Closes the events. Arrays may still look into the rings: zeros take their place."""
        self._close_once()
        for ring in self.rings:
            self.close_ring(ring)
        for fd in self._fds():  # of events without a ring
            os.close(fd)
        self._writers = {}

    def _close_once(self) -> None:
        for fd in self._once:
            os.close(fd)
        self._once = []

    def leave_behind(self, names: Collection[str]) -> None:
        """Whoever waits for us to end need not wait until events of these names are closed, too. Raises OSError."""
        if fds := {fd for ring in self.rings if ring.name in names for fd in self._writers[ring.fd]}:
            leave_behind(fds)

    def _fds(self) -> list[int]:
        return [fd for writing in self._writers.values() for fd in writing]

    def close_ring(self, ring: Ring) -> None:
        """Closes the events that write into one ring; zeros take the place of what it holds. A tracepoint's last event
        takes the kernel some 35 ms, unless there is somebody who was left behind."""
        if ring.fd not in self._writers:
            return
        _map_zeros(self.address, ring)
        for fd in self._writers.pop(ring.fd):
            os.close(fd)


def online_cpus() -> list[int]:
    """Numbers of the CPUs that can run something now."""
    with open("/sys/devices/system/cpu/online", encoding="ascii") as file:
        return parse_cpu_list(file.read())


def n_cpus_present() -> int:
    """How many CPUs can run something now, or may be told to: some may be offline. Other than Python's number, which is
    of those that are online, or what PYTHON_CPU_COUNT says."""
    try:
        with open("/sys/devices/system/cpu/present", encoding="ascii") as file:
            return len(parse_cpu_list(file.read()))
    except OSError:
        return os.sysconf("SC_NPROCESSORS_CONF")


def parse_cpu_list(text: str) -> list[int]:
    """``"0-2,5"`` as ``[0, 1, 2, 5]``."""
    cpus: list[int] = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        cpus.extend(range(int(first), int(last or first) + 1))
    return cpus


def open_rings(whose: Sequence[int] | Birth, specs: Sequence[EventSpec], may_halve: bool = True) -> Rings:
    """Opens every event of ``specs`` on every online CPU for every thread; a mapped ring per event and CPU.

    The events of further threads write into the ring of those of the first one that is there. Rings are halved as long
    as the kernel's budget for locked memory refuses them, if they ``may_halve``; where there is no memory for all, they
    have no spares. Raises OSError as perf_event_open(2) and mmap(2) do; nothing stays open then.
    """
    leaders: list[tuple[EventSpec, int, int]] = []
    writers: dict[int, list[int]] = {}
    address = length = 0

    def lead(tid: int, specs: Sequence[EventSpec]) -> None:
        for cpu in online_cpus():
            on_cpu: dict[str, int] = {}
            for spec in specs:
                try:
                    fd = _open(spec, tid, cpu, on_cpu)
                except (PermissionError, LookupError):
                    if spec.everyone or spec.may_lack:
                        continue
                    raise
                writers[fd] = [fd]
                on_cpu[spec.name] = fd
                if spec.ring_bytes:
                    leaders.append((spec, cpu, fd))

    try:
        if isinstance(whose, Birth):
            lead(whose.maker, [spec for spec in specs if spec.of_maker])
            specs = [spec for spec in specs if not spec.of_maker]
            whose = [whose.make()]
        while True:
            try:
                lead(whose[0], specs)
                break
            except ProcessLookupError:  # gone meanwhile: another one leads
                if len(whose) == 1:
                    raise
                for fd in writers:
                    os.close(fd)
                writers.clear()
                leaders.clear()
                whose = whose[1:]
        rings, spares, address, length = _map_what_the_budget_allows(leaders, may_halve)
        for tid in whose[1:]:
            for spec, cpu, leader in leaders:
                if spec.everyone:
                    continue
                with suppress(ProcessLookupError):  # gone meanwhile
                    writers[leader].append(_filtered(spec, tid, cpu, -1))
                    if not spec.later:
                        ioctl(writers[leader][-1], abi.IOC_SET_OUTPUT, leader)
    except BaseException:
        if length:
            libc.munmap(address, length)
        for fd in [fd for writing in writers.values() for fd in writing]:
            os.close(fd)
        raise
    return Rings(writers, rings, spares, address, length)


def _open(spec: EventSpec, tid: int, cpu: int, on_cpu: dict[str, int]) -> int:
    """One event's descriptor; KeyError where the leader of its group, among those open ``on_cpu``, was refused."""
    return _filtered(spec, -1 if spec.everyone else tid, cpu, on_cpu[spec.group] if spec.group else -1)


def _filtered(spec: EventSpec, tid: int, cpu: int, group_fd: int) -> int:
    """Opens an event with its filter, which those that inherit it share."""
    fd = libc.perf_event_open(spec.attr, tid, cpu, group_fd, abi.FLAG_FD_CLOEXEC)
    try:
        if spec.filter:
            ioctl(fd, abi.IOC_SET_FILTER, spec.filter + b"\0")
    except OSError:
        os.close(fd)
        raise
    return fd


def loss_format() -> int:
    """The format to open events with so that ``Rings.n_lost`` tells; 0 before Linux 6.0 (commit 119a784c8127,
    "perf/core: Add a new read format to get a number of lost samples")."""
    attr = abi.pack_attr(config=abi.SW_DUMMY, period=0, sample_type=0, flags=abi.DISABLED | abi.EXCLUDE_KERNEL,
                         watermark=0, read_format=abi.READ_LOST)
    try:
        os.close(libc.perf_event_open(attr, 0, -1, -1, abi.FLAG_FD_CLOEXEC))
    except OSError:
        return 0
    return abi.READ_LOST


def tracepoint_number(system: str, name: str) -> int | None:
    """The number of a tracepoint as perf_event_attr wants it; None where the kernel does not show it to us.

    It stands in tracefs. Where that is not mounted, we look into an instance of it that is mounted nowhere.
    """
    path = f"events/{system}/{name}/id"
    for root in ("/sys/kernel/tracing", "/sys/kernel/debug/tracing"):
        try:
            with open(f"{root}/{path}", encoding="ascii") as file:
                return int(file.read())
        except OSError:
            continue
    try:
        root_fd = libc.detached_mount(b"tracefs")
    except OSError:
        return None
    try:
        with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=root_fd), encoding="ascii") as file:
            return int(file.read())
    except OSError:
        return None
    finally:
        os.close(root_fd)


def thread_tracepoint_number(system: str, name: str) -> int | None:
    """The same of a tracepoint whose own data name threads: by the kernel's numbers, which in a PID namespace are not
    those that we and the heads of records have, but other threads'. None there, too."""
    with suppress(OSError):
        if os.stat("/proc/self/ns/pid").st_ino == abi.FIRST_PID_NAMESPACE:
            return tracepoint_number(system, name)
    return None


_Mapped = tuple[list[Ring], list[tuple[Ring, Ring]], int, int]


def _map_what_the_budget_allows(leaders: list[tuple[EventSpec, int, int]], may_halve: bool) -> _Mapped:
    largest = max(spec.ring_bytes for spec, _, _ in leaders)
    shift, has_spares = 0, True
    while True:
        try:
            return _map_rings(leaders, shift, has_spares)
        except PermissionError:
            shift += 1
            if not may_halve or largest >> shift < _SMALLEST_RING:
                raise OSError(errno.EPERM, BUDGET_USED_UP) from None
        except OSError as err:
            if err.errno != errno.ENOMEM or not has_spares:
                raise
            has_spares = False  # they count as a whole where vm.overcommit_memory is 2, and for a limit (ulimit -v)


def _map_ring(address: int, ring: Ring) -> None:
    """Maps a ring at its place in the reservation that begins at ``address``."""
    libc.put(address + ring.header_offset, PAGE + ring.data_bytes, _READ_WRITE, libc.MAP_SHARED, ring.fd)


def _map_zeros(address: int, ring: Ring) -> None:
    """Puts zeros in a ring's place, which take no memory."""
    flags = libc.MAP_PRIVATE | libc.MAP_ANONYMOUS | libc.MAP_NORESERVE | libc.MAP_FIXED
    libc.mmap(address + ring.header_offset, PAGE + ring.data_bytes, _READ_WRITE, flags, -1)


def _small(ring_bytes: int, shift: int) -> int:
    """A ring's size halved ``shift`` times, but not below the smallest that is of use."""
    return max(ring_bytes >> shift, min(ring_bytes, _SMALLEST_RING))


def _map_rings(leaders: list[tuple[EventSpec, int, int]], shift: int, has_spares: bool) -> _Mapped:
    """All rings in one reservation, each ``_small(ring_bytes, shift)`` long; and their spares, whose memory it is."""
    spare_bytes = [max(spec.spare_bytes, spec.ring_bytes if shift else 0) * has_spares for spec, _, _ in leaders]
    length = sum(PAGE + _small(spec.ring_bytes, shift) for spec, _, _ in leaders)
    in_spares = sum(PAGE + n_bytes for n_bytes in spare_bytes if n_bytes)
    length += in_spares
    prot, kind = (_READ_WRITE, libc.MAP_SHARED) if in_spares else (libc.PROT_NONE, libc.MAP_PRIVATE)
    address = libc.mmap(0, length, prot, kind | libc.MAP_ANONYMOUS | libc.MAP_NORESERVE, -1)
    rings: list[Ring] = []
    spares: list[tuple[Ring, Ring]] = []
    offset = 0
    try:
        for spec, cpu, fd in leaders:
            size = _small(spec.ring_bytes, shift)
            rings.append(Ring(spec.name, cpu, fd, offset, offset + PAGE, size, spec.at_rest, spec.later))
            (_map_zeros if spec.later else _map_ring)(address, rings[-1])
            offset += PAGE + size
        for ring, n_bytes in zip(rings, spare_bytes, strict=True):
            if n_bytes:
                spare = ring._replace(fd=-1, header_offset=offset, data_offset=offset + PAGE, data_bytes=n_bytes)
                spares.append((ring, spare))
                offset += PAGE + n_bytes
    except OSError:
        libc.munmap(address, length)
        raise
    return rings, spares, address, length
