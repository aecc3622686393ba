"""What an engine tells the session: a closed set of frozen types. Times are CLOCK_MONOTONIC in nanoseconds.

An engine yields a ``Batch`` at a time: all that happened up to ``until_ns``, nothing later; the next batch has nothing
earlier. What happens rarely (processes, threads, mappings, losses) comes as a tuple of single changes in time order.
What happens at the clock's rate comes as arrays, never as single values.

Arrays have no equality of their own, and nobody prints them: these classes go without the methods for it, which a
dataclass compiles each time that it is imported, while the target runs (0.2 ms for each class).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

if TYPE_CHECKING:
    import numpy as np

Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"


class Forked(NamedTuple):
    """A new thread ``tid`` of process ``pid``; a new process where ``pid`` differs from ``parent_pid``."""

    time_ns: int
    pid: int
    tid: int
    parent_pid: int
    parent_tid: int


class Exited(NamedTuple):
    """Thread ``tid`` is gone; the process too, if it was the last one."""

    time_ns: int
    pid: int
    tid: int


class Renamed(NamedTuple):
    """A thread has a new name (``comm``)."""

    time_ns: int
    pid: int
    tid: int
    comm: bytes


class Executed(NamedTuple):
    """The process runs a new image: its address space is empty now and its other threads are gone."""

    time_ns: int
    pid: int
    tid: int
    comm: bytes


class Mapped(NamedTuple):
    """Executable memory [start, start + size) of a process; ``path`` as the kernel gives it (``[vdso]``)."""

    time_ns: int
    pid: int
    tid: int
    start: int
    size: int
    file_offset: int
    device: int
    inode: int
    path: bytes


class LetGo(NamedTuple):
    """Process ``pid`` is not recorded from now on, nor what it makes, or it would have to be so, or not all of it is:
    ``why``."""

    time_ns: int
    pid: int
    program: bytes
    why: str


class RecordsLost(NamedTuple):
    """``n_records`` records of ``source`` (clock, switch, site) did not fit into their ring before ``time_ns``.

    ``cpu``: of which that is the ring; -1: of any."""

    time_ns: int
    n_records: int
    source: str
    cpu: int = -1


class Throttled(NamedTuple):
    """The kernel suppressed clock samples on ``cpu`` for a while from ``time_ns``."""

    time_ns: int
    cpu: int


Change: TypeAlias = Forked | Exited | Renamed | Executed | Mapped | LetGo | RecordsLost | Throttled


class Mode:
    """Where a clock sample found its thread."""

    USER = 0
    SYSTEM_CALL = 1  # in the kernel, by a system call or a page fault
    TRAP = 2  # in the kernel, by anything else: interrupt, exception


class Edge:
    """The edges of a thread's life; the first three are those of switch records.

    Plain numbers: arrays are compared with these all the time, and with an enum's that takes six times as long.
    """

    UNKNOWN = -1
    IN = 0
    OUT_BLOCKED = 1
    OUT_PREEMPTED = 2
    BORN = 3
    ENDED = 4


class Source:
    """Where an edge comes from, or a stretch between two: of these, the larger one. Plain numbers, as those of Edge."""

    RECORDED = 0
    ADJUSTED = 1  # moved or put in, to fit an account or a law
    SYNTHETIC = 2  # of a stretch of which there are no records


@dataclass(slots=True, eq=False, repr=False)
class Cuts:
    """Edges of threads' lives, by slot, that no switch record tells."""

    slot: list[int] = field(default_factory=list)
    time_ns: list[int] = field(default_factory=list)
    edge: list[int] = field(default_factory=list)

    def add(self, slot: int, time_ns: int, edge: int) -> None:
        """One more edge."""
        self.slot.append(slot)
        self.time_ns.append(time_ns)
        self.edge.append(edge)


class Reason(IntEnum):
    """Why a thread left its CPU, as far as the kernel's call chain tells."""

    UNKNOWN = 0
    SLEEP = 1
    LOCK = 2
    USER_FAULT = 3  # on a page that user code touched
    KERNEL_FAULT = 4  # on a page that a system call touched
    STOPPED = 5
    HOST_FAULT = 6  # on a page that a hypervisor had taken: the kernel counts no page fault


@dataclass(slots=True, eq=False, repr=False)
class ClockSamples:
    """n clock samples in time order. The stacks stay where the kernel wrote them: ``words`` is a view, valid until
    the next batch is asked for; ``base, mask, first, low, n_words`` are explained at ``unwind.batch.Stacks``."""

    time_ns: Array  # i8 (n,)
    pid: Array  # i8 (n,)
    tid: Array  # i8 (n,)
    cpu: Array  # i4 (n,)
    mode: Array  # i1 (n,) Mode (of a clock sample) or Reason (of a thread leaving its CPU)
    abi: Array  # i1 (n,) 32 or 64: the bits of the code that ran; 0 where no registers were had
    regs: Array  # u8 (n, 17) in DWARF order of x86-64
    words: Array  # u8 (all the rings)
    base: Array  # i8 (n,)
    mask: Array  # i8 (n,)
    first: Array  # i8 (n,)
    low: Array  # u8 (n,)
    n_words: Array  # i8 (n,)
    known: Array | None = None  # u8 (n,) bit r: the register in column r is known; None: all are
    kernel: Array | None = None  # u8 (n, depth) the kernel's part of the stack, leaf first, 0 behind it; None: none has
    # b1 (n,) whether it is one of the clock, among others that have stacks; None: that is not asked.
    is_of_clock: Array | None = None

    def __getitem__(self, rows: slice | Array) -> ClockSamples:
        known, kernel, is_of_clock = (None if column is None else column[rows]
                                      for column in (self.known, self.kernel, self.is_of_clock))
        return ClockSamples(self.time_ns[rows], self.pid[rows], self.tid[rows], self.cpu[rows], self.mode[rows],
                            self.abi[rows], self.regs[rows], self.words, self.base[rows], self.mask[rows],
                            self.first[rows], self.low[rows], self.n_words[rows], known, kernel, is_of_clock)


@dataclass(slots=True, eq=False, repr=False)
class Switches:
    """m switch records in time order."""

    time_ns: Array  # i8 (m,)
    pid: Array  # i8 (m,)
    tid: Array  # i8 (m,)
    edge: Array  # i1 (m,) Edge
    cpu: Array | None = None  # i4 (m,) where it is known
    exact: Array | None = None  # b1 (m,) whether the time is that of the switch itself; None: no one is


@dataclass(slots=True, eq=False, repr=False)
class Sites:
    """k switch-outs in time order: the registers that tell one sleeping place of a thread from another."""

    time_ns: Array  # i8 (k,)
    pid: Array  # i8 (k,)
    tid: Array  # i8 (k,)
    ip: Array  # u8 (k,)
    sp: Array  # u8 (k,)
    bp: Array  # u8 (k,)


@dataclass(slots=True, eq=False, repr=False)
class Faults:
    """Page faults that had to wait, at their completion: after the wait, before the thread is in user mode again."""

    time_ns: Array  # i8 (f,)
    pid: Array  # i8 (f,)
    tid: Array  # i8 (f,)
    address: Array  # u8 (f,) that was touched
    ip: Array  # u8 (f,) of the thread's user code
    in_kernel: Array  # bool (f,) touched by the kernel on behalf of the thread


class Context:
    """In what a wake-up was done: by a thread, or in an interrupt that fell into whatever thread there was. Plain
    numbers."""

    THREAD = 0
    SOFTIRQ = 1
    INTERRUPT = 2


@dataclass(slots=True, eq=False, repr=False)
class Wakings:
    """When blocked threads were woken, and by whom; strangers among them."""

    tid: Array  # i8 (w,) of the woken
    time_ns: Array  # i8 (w,)
    waker: Array | None = None  # i8 (w,) tid of the thread that ran; 0: none
    context: Array | None = None  # i1 (w,) Context


@dataclass(slots=True, eq=False, repr=False)
class Ends:
    """Threads that begin to die and processes that are dead, in time order; strangers among them."""

    time_ns: Array  # i8 (e,)
    tid: Array  # i8 (e,)
    cpu: Array  # i4 (e,)
    n_switches: Array  # i8 (e,) of the CPU so far
    dead: Array  # bool (e,)


@dataclass(slots=True, eq=False, repr=False)
class Clocks:
    """The CPU clocks of processes: what their threads have used, those that are gone among them. One row for each."""

    time_ns: Array  # i8 (p,) just behind its reading
    pid: Array  # i8 (p,)
    run_ns: Array  # i8 (p,)


@dataclass(slots=True, eq=False, repr=False)
class Accounts:
    """The kernel's accounts of threads, one row for each reading, each as of its own time. Who was gone has none."""

    time_ns: Array  # i8 (a,)
    pid: Array  # i8 (a,)
    tid: Array  # i8 (a,)
    run_ns: Array  # i8 (a,) on CPU since its birth
    delay_ns: Array  # i8 (a,) runnable and not running
    turns: Array  # i8 (a,) how often it got a CPU
    read_ns: int  # when the last one had been read
    clocks: Clocks | None = None  # of processes of several threads among them


@dataclass(slots=True, eq=False, repr=False)
class Exits:
    """The kernel's accounts of threads as they end, one row for each, in that order; strangers among them. Those of a
    batch may be of threads that end behind it, but never the other way round."""

    pid: Array  # i8 (x,) -1: not told
    tid: Array  # i8 (x,)
    elapsed_ns: Array  # i8 (x,) since the thread was born, to 1 us
    run_ns: Array  # i8 (x,) on CPU since then; up to a tick old
    delay_ns: Array  # i8 (x,) runnable and not running
    turns: Array  # i8 (x,) how often it got a CPU
    read_ns: int  # all that had ended by then are among these, or those before


@dataclass(slots=True, eq=False, repr=False)
class Births:
    """The making of threads and processes, seen in the maker: its stack, whom it made and with which clone(2) flags."""

    makers: ClockSamples  # n, in time order; ``mode`` says nothing
    child: Array  # i8 (n,) tid
    flags: Array  # i8 (n,)


IN_NO_CALL = b"-"  # in place of a system call's name


@dataclass(slots=True, eq=False, repr=False)
class Batch:
    """All that happened up to ``until_ns``. ``leaving``: samples of threads leaving their CPU, ``mode`` is a Reason.
    ``maps_untold``: there may be executable mappings that no change tells. ``calls``: names of the system calls that
    ``leaving`` (n,) were in, if that was asked for; IN_NO_CALL for none, empty where unknown. ``has_more``: there is
    more up to the time that was asked for, which the next one brings."""

    until_ns: int
    changes: tuple[Change, ...] = ()
    clock: ClockSamples | None = None
    switches: Switches | None = None
    leaving: ClockSamples | None = None
    sites: Sites | None = None
    faults: Faults | None = None
    births: Births | None = None
    wakings: Wakings | None = None
    ends: Ends | None = None
    accounts: Accounts | None = None
    maps_untold: bool = False
    calls: Array | None = None  # S (n,)
    has_more: bool = False
    exits: Exits | None = None

    def shift(self, by_ns: int) -> None:
        """Makes all times of records later, from the clock that the kernel stamps them with to ours, by which accounts
        are timed."""
        self.until_ns += by_ns
        self.changes = tuple(change._replace(time_ns=change.time_ns + by_ns) for change in self.changes)
        makers = self.births.makers if self.births else None
        for part in (self.clock, self.switches, self.leaving, self.sites, self.faults, makers, self.wakings, self.ends):
            if part is not None:
                part.time_ns = part.time_ns + by_ns
