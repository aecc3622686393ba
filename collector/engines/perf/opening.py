"""Opening the perf engine's events. Standard library only: the target waits for this and for nothing else.

Per CPU and thread, each kind with a ring of its own per CPU; children follow by inheritance, without any help from the
target:

    clock   task-clock at the profiling interval: user registers, a copy of the stack, the kernel's call chain
    brief   the same with a small copy, while ``clock`` rests because we do not come to empty its ring: that one has
            room for seconds more
    task    processes, threads and names, which never rest and share no ring with stacks: what is lost is samples, never
            lives. And page faults that had to wait, with their address, at their completion (rare by nature, and an
            event of their own would cost every process)
    map     executable mappings
    switch  a record when a thread gets a CPU and when it leaves it, and whether it was preempted; exact times
    leave   every switch-out with everything that a clock sample has
    site    the same while ``leave`` rests: the registers (sp, bp, ip) that tell one sleeping place from another. Never
            both at a time: the kernel (6.18 at least) takes down a sample once for all software events of a kind, and
            a small one that follows a large one is padded to the size of that
    touch   every page fault, with its address, when it begins: the kernel counts some of those that had to wait as
            minor ones (userfaultfd)
    waking  when any thread on the machine is made runnable, a tracepoint (where the user may see those). As an event
            of a thread it would belong to the woken one, but the kernel writes no samples for events of threads that
            do not run (since 7.0 and in its stable kernels, "perf: Fix __perf_event_overflow() vs
            perf_remove_from_context() race")
    handover
            every switch on the machine at its very moment, a tracepoint, where aggregations ask how long each wait for
            a CPU was; see ``handovers``
    dying, dead
            the beginning and the end of what a process does when its own events have ended already: tracepoints of
            everyone, and a count of the CPU's switches that is read with them
    birth   the making of a process: the flags of clone(2) and the maker's stack, which tell fork from posix_spawn (a
            tracepoint: only where the kernel shows us its number, which takes privileges). Threads are filtered out: a
            pool makes thousands a second, of which nobody asks how

``leave``, ``touch``, ``waking``, ``handover`` and ``map`` rest for a while where they come too often (MOST_PER_S):
what they lack then is told by other records or by /proc, or counted as untold. The kernel's own means, a frequency
instead of a period, is of no use for that: a burst of switches makes the period longer, and nothing makes it shorter
again in a thread that mostly sleeps.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from contextlib import suppress
from itertools import repeat

from collector.clock import NS_PER_MS, NS_PER_S, evenly_spread
from collector.engines.perf.guard import STAND_INS, Guard, Variety
from collector.errors import EngineRefused
from collector.linux import abi, perf
from collector.linux.accounts import Account
from collector.linux.taskstats import ExitMessages
from collector.linux.thread_list import threads_of

# rax rbx rcx rdx rsi rdi rbp rsp rip r8..r15 in perf's numbering; they come in the order of their bits.
REGS_USER_X86 = 0x1FF | 0xFF << 16
N_REGS = 17
REGS_SITE_X86 = 1 << 6 | 1 << 7 | 1 << 8  # rbp rsp rip

_COMMON = abi.SAMPLE_ID_ALL | abi.USE_CLOCKID | abi.WATERMARK | abi.INHERIT | abi.DISABLED
_EVERYONE = abi.SAMPLE_ID_ALL | abi.USE_CLOCKID | abi.WATERMARK
_WHO = abi.SAMPLE_TID | abi.SAMPLE_TIME | abi.SAMPLE_CPU
_STACK = _WHO | abi.SAMPLE_CALLCHAIN | abi.SAMPLE_REGS_USER | abi.SAMPLE_STACK_USER
_FAULT = _WHO | abi.SAMPLE_ADDRESS | abi.SAMPLE_REGS_USER
_SWITCH_RING_BYTES = 1 << 23
_SITE_RING_BYTES = 1 << 21
_LEAVE_RING_BYTES = 1 << 24
_TASK_RING_BYTES, _TASK_SPARE_BYTES = 1 << 20, 1 << 26
_MAP_RING_BYTES = 1 << 20
_TOUCH_RING_BYTES = 1 << 20
_WAKING_RING_BYTES, _ALL_WAKINGS_RING_BYTES = 1 << 18, 1 << 23
_HANDOVER_RING_BYTES = 1 << 22
_BIRTH_RING_BYTES, _BIRTH_SPARE_BYTES = 1 << 22, 1 << 26
_END_RING_BYTES, _END_SPARE_BYTES = 1 << 17, 1 << 22
_DEATHS_ONLY = b"sig == 17 && code >= 1 && code <= 3"  # SIGCHLD; not the stops that others' tracers are told of
_PROCESSES_ONLY = b"!(clone_flags & 0x%x)" % abi.CLONE_THREAD
# A copy costs about 0.1 us per KiB, as far as the stack reaches. Multiples of 8 below 64 KiB.
_MOST_STACK_BYTES, _LEAVE_STACK_BYTES, _LEAST_STACK_BYTES = 63 << 10, 24 << 10, 16 << 10
_BIRTH_STACK_BYTES = 1 << 10  # who makes a process is told by the innermost frames
# Of clock samples at full rate. The collector's own start fits into it; and where samples are rare, half of a ring, at
# which the kernel wakes us, holds more than comes between two drains.
_RARE_NS = 5 * NS_PER_MS
_RING_SECONDS, _RING_SECONDS_RARE = 0.9, 1.2
# Of small copies, of which rings of this size hold clock samples for so long. 15 KiB are enough for all but a hundredth
# of the stacks of compilers and interpreters.
_BRIEF_SECONDS, _BRIEF_RING_BYTES, _BRIEF_STACK_BYTES, _LEAST_BRIEF_BYTES = 5.0, 1 << 23, 15 << 10, 2 << 10
_ROUNDS = 4  # of looking for new threads while attaching; one that never stops making them is taken as it is
# All rings together, or a part of the memory that there is, where that is more.
_ALL_RINGS_BYTES, _PART_OF_MEMORY = 1 << 28, 128
LOWER_LEVEL = "sudo sysctl kernel.perf_event_paranoid=1"
_STRAY = 0.4  # of the interval, up or down
_SHORTEST_NS = 10_000  # of the kernel's clocks
# The shortest periods for threads that come and go, of which one may stay after all: a part of the interval, a time in
# which a sample is no burden, and so long that a ring is not full before this time.
_SHORT, _SHORT_NS, _FULL_AFTER_S = 0.05, 200_000, 0.15
_LEAST_RING_BYTES = 1 << 17
# Records per second and CPU from which an event rests.
MOST_PER_S = {"leave": 1500, "touch": 15000, "waking": 5000, "map": 20000, "handover": 100_000}
# Of "waking", where each wake-up counts: where it is asked who wakes whom, and how long each wait for a CPU was.
_MOST_WAKINGS_PER_S = 100_000
_ASKS_FOR_WAKINGS = frozenset({"waker", "waits"})
_TRACEPOINTS = frozenset({"birth", "dead", "dying", "handover", "waking"})


class Opened:
    """Open events, and what could be had: ``kernel`` says whether kernel mode is sampled."""

    def __init__(self, rings: perf.Rings, interval_ns: int, kernel: bool, stack_bytes: int, of_maker: bool,
                 asked: frozenset[str] = frozenset()) -> None:
        self.rings = rings
        self.of_maker = of_maker  # clocks are copies of those of the thread that made the program's process
        self.interval_ns = interval_ns
        self.kernel = kernel
        self.stack_bytes = stack_bytes  # of which a clock sample has a copy at most
        self.asked = asked  # by aggregations, of what engines need not tell
        self.threads: frozenset[int] = frozenset()  # of running processes, those that events were opened for
        self.asks_for_wakings = not _ASKS_FOR_WAKINGS.isdisjoint(asked)  # all of them
        self.most_per_s = MOST_PER_S | ({"waking": _MOST_WAKINGS_PER_S} if self.asks_for_wakings else {})
        self.ends_with_us = False  # the recording is all that our process is for
        self.guards: list[Guard] = []
        self.exits: ExitMessages | None = None  # of threads that end, once we listen, if the kernel tells us
        self.before: Account | None = None  # of a program that we start, just before its exec
        self.are_alike = True  # the periods of all threads, so far
        self._variety: Variety | None = None

    @property
    def clock_bytes_per_ns(self) -> float:
        """What a busy CPU writes into its ring of clock samples."""
        return _sample_bytes(self.stack_bytes) / self.interval_ns

    def guard(self, pid: int) -> None:
        """Watches over the rings until the engine does, and listens."""
        self.listen()
        self.guards.append(Guard(self.rings, self.most_per_s, pid))

    def listen(self) -> None:
        """From now on the kernel tells the accounts of threads as they end, where it does that for us."""
        if self.exits is None:
            with suppress(OSError):
                self.exits = ExitMessages()

    def deafen(self) -> None:
        """No more of these accounts."""
        if self.exits is not None:
            self.exits.close()

    def spread_periods(self) -> None:
        """A period of its own, near the interval, for each thread that was there first.

        A clock begins with a whole period: where all had the same, threads that do the same would all be met at the
        same point, an interval behind where they begin, and again an interval later. Samples count for the time that
        their threads have really used, and need not be evenly spaced.
        """
        self.are_alike = False
        spread = evenly_spread()
        periods = (max(int(self.interval_ns * (1 + _STRAY * (2 * part - 1))), _SHORTEST_NS) for part in spread)
        with suppress(OSError):  # all alike, then
            self.rings.set_periods("clock", periods)

    def vary_periods(self, come_and_go: bool) -> None:
        """Shorter periods for threads that are yet to be born, one after the other, as long as threads ``come_and_go``.

        A clock begins with a whole period. Many short threads in a row, as of a build, would all be met at the same
        point, an interval behind where they begin, and those that are over by then never. Only those of a program that
        we have started: the events of others, which theirs are copies of, move from thread to thread and end with one.
        """
        if come_and_go and self._variety is None and self.of_maker:
            self.are_alike = False
            shortest_ns = min(max(int(self.interval_ns * _SHORT), _SHORT_NS, self._fills_ns()), self.interval_ns)
            self._variety = Variety(self.rings, (shortest_ns + int((self.interval_ns - shortest_ns) * part)
                                                 for part in evenly_spread()))
        elif not come_and_go and self._variety is not None:
            self._variety.end()
            self._variety = None
            with suppress(OSError):
                self.rings.set_periods("clock", repeat(self.interval_ns))

    def _fills_ns(self) -> int:
        """The period at which a thread's samples alone fill a ring within ``_FULL_AFTER_S``."""
        ring_bytes = min(ring.data_bytes for ring in self.rings.rings if ring.name == "clock")
        return int(_FULL_AFTER_S * NS_PER_S * _sample_bytes(self.stack_bytes) / ring_bytes)

    @property
    def tells_wakers(self) -> bool:
        """Whether there are records of who wakes whom."""
        return any(ring.name == "waking" for ring in self.rings.rings)

    @property
    def tells_kernel(self) -> bool:
        """Whether it can be told in which functions of the kernel a thread is, and so in which system call it leaves
        its CPU: the kernel is sampled, and shows its addresses."""
        from collector.linux.kernel_symbols import shows_addresses  # which is asked for rarely

        return self.kernel and shows_addresses()

    @property
    def limits(self) -> str:
        """What this user does not see, and what would show it; empty where everything is seen."""
        if self.kernel:
            return ""
        return (f"user mode only, since perf_event_paranoid is {_paranoid_level()}: system time counts as user time, "
                f"waits are looked at once a second; for more: {LOWER_LEVEL}, or run as root")

    def inherit(self) -> None:
        """In a process forked from ours: has the rings as well, as they are now and will be. Raises OSError."""
        self.rings.inherit()
        for guard in self.guards:
            guard.stay_behind()

    def stop(self) -> None:
        """No more records from now on."""
        self.vary_periods(False)
        self.rings.disable()
        if self.ends_with_us:
            with suppress(OSError):  # we take the time to close them
                self.rings.leave_behind(_TRACEPOINTS)

    def close(self) -> None:
        """Closes the events."""
        self.vary_periods(False)
        self.deafen()
        self.rings.close()


def open_events(whose: Sequence[int] | perf.Birth, interval_ns: int, *, on_exec: bool, follow: bool,
                asked: frozenset[str] = frozenset()) -> Opened:
    """Opens the events for threads: started by the next exec (``on_exec``) or by ``Rings.enable``.

    ``follow``: child processes too, not only threads; needed where the thread is still to be made. Kernel mode is left
    out where the kernel does not allow it, and with it what is ``asked`` for; and where the budget for locked memory is
    too small the copies of stacks are smaller: better a few cut stacks than rings that overflow while the collector
    starts. Raises EngineRefused with what to set, and ProcessLookupError where all threads have ended.
    """
    of_maker = isinstance(whose, perf.Birth)
    newtask = perf.thread_tracepoint_number("task", "task_newtask") if follow else None
    waking = perf.thread_tracepoint_number("sched", "sched_waking")
    for kernel, frugal in ((True, False), (True, True), (False, False), (False, True)):
        flags = _COMMON | (abi.ENABLE_ON_EXEC if on_exec else 0) | (0 if follow else abi.INHERIT_THREAD)
        flags |= 0 if kernel else abi.EXCLUDE_KERNEL
        try:
            stack_bytes = _LEAST_STACK_BYTES if frugal or interval_ns < _RARE_NS else _MOST_STACK_BYTES
            leave_bytes = _LEAST_STACK_BYTES if frugal else _LEAVE_STACK_BYTES
            specs = _specs(interval_ns, flags, newtask if kernel else None, waking if kernel else None, stack_bytes,
                           leave_bytes)
            specs = specs if _ASKS_FOR_WAKINGS.isdisjoint(asked) else _with_all_wakings(specs)
            specs += _handover_specs() if kernel and "waits" in asked else []
            specs = _smaller(specs) if frugal else specs
            specs += _end_specs() if kernel else []
            specs = _roomy(specs, interval_ns) if of_maker and not frugal else specs
            specs = specs if frugal else _with_brief(specs, interval_ns, flags, _room_bytes())
            specs = _lasting(specs, _room_bytes()) if of_maker and not frugal and interval_ns >= _RARE_NS else specs
            specs = _of_maker(specs) if of_maker else specs
            rings = perf.open_rings(whose, specs, may_halve=frugal)
            return Opened(rings, interval_ns, kernel, stack_bytes, of_maker, asked)
        except ProcessLookupError:
            raise
        except OSError as err:
            refusal = err
            if err.errno not in (errno.EACCES, errno.EPERM):
                break
    raise EngineRefused(advice(refusal)) from refusal


def open_running(pids: Sequence[int], interval_ns: int, *, follow: bool,
                 asked: frozenset[str] = frozenset()) -> Opened:
    """Opens the events for all threads of running processes; ``Rings.enable`` starts them.

    Threads born meanwhile by threads that have their events inherit them. Those of others are found by looking again:
    then all events are opened once more, since who inherited some would have these twice. (A thread whose birth and end
    are told twice stays behind.) Raises ProcessLookupError where all have ended.
    """
    known = _threads_of(pids)
    if not known:  # ended, and their parents have not waited for them yet
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
    for n_left in reversed(range(_ROUNDS)):
        opened = open_events(known, interval_ns, on_exec=False, follow=follow, asked=asked)
        try:
            now = _threads_of(pids) if n_left else known
        except BaseException:  # a process has ended meanwhile
            opened.rings.close()
            raise
        if set(now) <= set(known):
            break
        opened.rings.close()
        known = now
    opened.threads = frozenset(known)
    _sample_early(opened, known, interval_ns)
    if len(known) > 1:
        opened.spread_periods()
    return opened


def _sample_early(opened: Opened, tids: Sequence[int], interval_ns: int) -> None:
    """A first sample for each thread and CPU, somewhere in the first interval.

    The clocks begin with a whole interval that nothing falls into, of every thread on every CPU. Of 500 threads that
    work for 2 ms a second each, there was no sample in the first seconds.
    """
    flags = (_COMMON & ~abi.INHERIT) | abi.EXCLUDE_CALLCHAIN_USER | (0 if opened.kernel else abi.EXCLUDE_KERNEL)
    specs = (_spec("clock", 0, config=abi.SW_TASK_CLOCK, period=max(int(interval_ns * part), _SHORTEST_NS), flags=flags,
                   sample_type=_STACK, regs_user=REGS_USER_X86, stack_user=opened.stack_bytes)
             for part in evenly_spread())
    with suppress(OSError):  # better without them than not at all
        opened.rings.add_once("clock", tids, (spec.attr for spec in specs))


def _threads_of(pids: Sequence[int]) -> list[int]:
    """All threads, of each process the main thread first, which others outlive least; but not one that has ended before
    the others, which cannot have events."""
    found = []
    for pid in pids:
        others = sorted(threads_of(pid) - {pid})
        found += others if _has_ended(pid) else [pid, *others]
    return found


def _has_ended(tid: int) -> bool:
    with open(f"/proc/{tid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()[0] in (b"Z", b"X")


def _smaller(specs: list[perf.EventSpec]) -> list[perf.EventSpec]:
    return [spec._replace(ring_bytes=max(spec.ring_bytes >> 4, _LEAST_RING_BYTES), later=False)
            if spec.name != "clock" else spec for spec in specs]


def _specs(interval_ns: int, flags: int, newtask: int | None, waking: int | None,
           stack_bytes: int, leave_bytes: int) -> list[perf.EventSpec]:
    specs = [
        _spec("clock", _clock_ring_bytes(interval_ns, stack_bytes), config=abi.SW_TASK_CLOCK, period=interval_ns,
              read_format=perf.loss_format(), sample_type=_STACK, regs_user=REGS_USER_X86, stack_user=stack_bytes,
              flags=flags | abi.EXCLUDE_CALLCHAIN_USER),
        _task_spec(flags),
        _spec("map", _MAP_RING_BYTES, config=abi.SW_DUMMY, period=0, sample_type=_WHO,
              flags=flags | abi.MMAP | abi.MMAP2),
        _spec("switch", _SWITCH_RING_BYTES, config=abi.SW_DUMMY, period=0, sample_type=_WHO,
              flags=flags | abi.CONTEXT_SWITCH)]
    if flags & abi.EXCLUDE_KERNEL:
        return specs
    specs += [
        _spec("site", _SITE_RING_BYTES, config=abi.SW_CONTEXT_SWITCHES, period=1, flags=flags & ~abi.ENABLE_ON_EXEC,
              sample_type=_WHO | abi.SAMPLE_REGS_USER, regs_user=REGS_SITE_X86, at_rest=True)._replace(later=True),
        _spec("leave", _LEAVE_RING_BYTES, config=abi.SW_CONTEXT_SWITCHES, period=1, sample_type=_STACK,
              regs_user=REGS_USER_X86, stack_user=leave_bytes, flags=flags | abi.EXCLUDE_CALLCHAIN_USER),
        _spec("touch", _TOUCH_RING_BYTES, config=abi.SW_PAGE_FAULTS, period=1, flags=flags, sample_type=_FAULT,
              regs_user=REGS_SITE_X86)]
    if waking is not None:
        specs.append(_spec("waking", _WAKING_RING_BYTES, kind=abi.TYPE_TRACEPOINT, config=waking, period=1,
                           sample_type=_WHO | abi.SAMPLE_RAW, flags=_EVERYONE, everyone=True))
    if newtask is not None:
        births = _spec("birth", _BIRTH_RING_BYTES, kind=abi.TYPE_TRACEPOINT, config=newtask, period=1,
                       sample_type=_STACK | abi.SAMPLE_RAW, regs_user=REGS_USER_X86,
                       stack_user=_BIRTH_STACK_BYTES, flags=flags | abi.EXCLUDE_CALLCHAIN_USER)
        # Its number may be readable (tracefs with mode=755) for who may not have a tracepoint's data.
        specs.append(births._replace(spare_bytes=_BIRTH_SPARE_BYTES, filter=_PROCESSES_ONLY, may_lack=True))
    return specs


def _with_all_wakings(specs: list[perf.EventSpec]) -> list[perf.EventSpec]:
    """With room for all wake-ups of a second, none of which is told by anything else."""
    return [spec._replace(ring_bytes=_ALL_WAKINGS_RING_BYTES) if spec.name == "waking" else spec for spec in specs]


def _handover_specs() -> list[perf.EventSpec]:
    """Switches of everyone, at their moments; none where the user may not see those."""
    number = perf.thread_tracepoint_number("sched", "sched_switch")
    if number is None:
        return []
    return [_spec("handover", _HANDOVER_RING_BYTES, kind=abi.TYPE_TRACEPOINT, config=number, period=1,
                  sample_type=_WHO | abi.SAMPLE_RAW, flags=_EVERYONE, everyone=True)]


def _task_spec(flags: int) -> perf.EventSpec:
    flags |= abi.COMM | abi.COMM_EXEC | abi.TASK
    if flags & abi.EXCLUDE_KERNEL:
        spec = _spec("task", _TASK_RING_BYTES, config=abi.SW_DUMMY, period=0, sample_type=_WHO, flags=flags)
    else:
        spec = _spec("task", _TASK_RING_BYTES, config=abi.SW_PAGE_FAULTS_MAJOR, period=1, sample_type=_FAULT,
                     regs_user=REGS_SITE_X86, flags=flags)
    return spec._replace(spare_bytes=_TASK_SPARE_BYTES)


def _with_brief(specs: list[perf.EventSpec], interval_ns: int, flags: int, room_bytes: int) -> list[perf.EventSpec]:
    """With ``brief``, whose ring holds what comes in ``_BRIEF_SECONDS`` by the size of its copies; and all other rings
    halved until they fit into the room that there is for those of a CPU."""
    n_samples = _BRIEF_SECONDS * NS_PER_S / interval_ns
    ring_bytes = min(_BRIEF_RING_BYTES, 1 << (room_bytes >> 3).bit_length() - 1)
    while ring_bytes / n_samples < _sample_bytes(_LEAST_BRIEF_BYTES):
        ring_bytes *= 2
    stack_bytes = min(int(ring_bytes / n_samples) - _sample_bytes(0), _BRIEF_STACK_BYTES) & ~7
    brief = _spec("brief", ring_bytes, config=abi.SW_TASK_CLOCK, period=interval_ns, sample_type=_STACK,
                  read_format=perf.loss_format(), regs_user=REGS_USER_X86, stack_user=stack_bytes, at_rest=True,
                  flags=flags & ~abi.ENABLE_ON_EXEC | abi.EXCLUDE_CALLCHAIN_USER)
    return [*_fitting(specs, room_bytes - ring_bytes), brief._replace(later=True)]


def _fitting(specs: list[perf.EventSpec], most_bytes: int) -> list[perf.EventSpec]:
    """With rings halved, but not below the least, until those of a CPU have no more than ``most_bytes``."""
    while sum(spec.ring_bytes for spec in specs) > most_bytes:
        smaller = [spec._replace(ring_bytes=max(spec.ring_bytes >> 1, min(spec.ring_bytes, _LEAST_RING_BYTES)))
                   for spec in specs]
        if smaller == specs:
            break
        specs = smaller
    return specs


def _room_bytes() -> int:
    """For the rings of one CPU."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(_ALL_RINGS_BYTES, memory // _PART_OF_MEMORY) // len(perf.online_cpus())


def _of_maker(specs: list[perf.EventSpec]) -> list[perf.EventSpec]:
    """With the clocks opened on the thread that makes the program's process, where they do not end before we do.

    Only these: an event that rests would not be kept from starting with each program that is run, as the maker's never
    stops waiting for the first. One that is not inherited keeps the kernel from exchanging the maker's events with the
    child's when it switches from the one to the other.
    """
    attr = abi.pack_attr(config=abi.SW_DUMMY, period=0, sample_type=0, flags=abi.DISABLED | abi.EXCLUDE_KERNEL,
                         watermark=0)
    return [perf.EventSpec("anchor", attr, 0, of_maker=True),
            *(spec._replace(of_maker=spec.name == "clock") for spec in specs)]


def _roomy(specs: list[perf.EventSpec], interval_ns: int) -> list[perf.EventSpec]:
    """With twice the room for clocks, where they are rare, since some will have shorter periods."""
    return [spec._replace(ring_bytes=2 * spec.ring_bytes) if spec.name == "clock" and interval_ns >= _RARE_NS else spec
            for spec in specs]


def _lasting(specs: list[perf.EventSpec], room_bytes: int) -> list[perf.EventSpec]:
    """With spares for copies of stacks, of twice their rings' size, if there is room for them: while our start stands
    back for seconds, what would not fit is moved there. They take memory only then, and until the first drain."""
    large = sum(spec.ring_bytes for spec in specs if spec.name in STAND_INS)
    if 2 * large > room_bytes:
        return specs
    return [spec._replace(spare_bytes=2 * spec.ring_bytes) if spec.name in STAND_INS else spec for spec in specs]


def _end_specs() -> list[perf.EventSpec]:
    """Tracepoints at both ends of a process's last work, when its own events are gone already; see target.endings."""
    dying = perf.tracepoint_number("sched", "sched_process_exit")
    dead = perf.tracepoint_number("signal", "signal_generate")
    if dying is None or dead is None:
        return []
    counter = abi.pack_attr(config=abi.SW_CONTEXT_SWITCHES, period=0, sample_type=0, flags=abi.USE_CLOCKID, watermark=0,
                            read_format=abi.READ_GROUP)
    attrs = {name: abi.pack_attr(kind=abi.TYPE_TRACEPOINT, config=number, period=1, watermark=0, flags=_EVERYONE,
                                 sample_type=_WHO | abi.SAMPLE_READ, read_format=abi.READ_GROUP)
             for name, number in (("dying", dying), ("dead", dead))}
    # A leader that only counts would keep the others from sampling (6.18 at least).
    return [perf.EventSpec("dying", attrs["dying"], _END_RING_BYTES, everyone=True, spare_bytes=_END_SPARE_BYTES),
            perf.EventSpec("switches", counter, 0, everyone=True, group="dying"),
            perf.EventSpec("dead", attrs["dead"], _END_RING_BYTES, everyone=True, group="dying", filter=_DEATHS_ONLY,
                           spare_bytes=_END_SPARE_BYTES)]


def _spec(name: str, ring_bytes: int, *, config: int, period: int, sample_type: int, flags: int, regs_user: int = 0,
          stack_user: int = 0, kind: int = abi.TYPE_SOFTWARE, everyone: bool = False,
          at_rest: bool = False, read_format: int = 0) -> perf.EventSpec:
    # Watermark 0: half of the ring as it is in the end. A size of our own would be that of the ring that was asked for,
    # and one that the budget for locked memory made smaller than it would only wake us when it is full.
    attr = abi.pack_attr(kind=kind, config=config, period=period, sample_type=sample_type, flags=flags,
                         watermark=0, regs_user=regs_user, stack_user=stack_user, read_format=read_format)
    return perf.EventSpec(name, attr, ring_bytes, everyone, at_rest)


def _sample_bytes(stack_bytes: int) -> int:
    """Of a clock sample in its ring, where the kernel keeps room for all that may be copied."""
    return stack_bytes + 512


def _clock_ring_bytes(interval_ns: int, stack_bytes: int) -> int:
    seconds = _RING_SECONDS_RARE if interval_ns >= _RARE_NS else _RING_SECONDS
    wanted = int(seconds * NS_PER_S / interval_ns * _sample_bytes(stack_bytes))
    return 1 << max(wanted, 1 << 20).bit_length()


def advice(err: OSError) -> str:
    """Why events are refused, and what would have them allowed."""
    if err.strerror == perf.BUDGET_USED_UP:
        return f"{err.strerror}: sudo sysctl kernel.perf_event_mlock_kb=65536, or run as root"
    level = _paranoid_level()
    # Up to level 2 everybody gets something; above it the kernel says EACCES, filters say EPERM or ENOSYS.
    by_level = err.errno == errno.EACCES and level not in ("-1", "0", "1", "2")
    if err.errno in (errno.EACCES, errno.EPERM, errno.ENOSYS) and not by_level and _is_filtered():
        return ("a seccomp filter keeps perf events from this process, as in most containers: docker run "
                "--cap-add=PERFMON ... lets it have them")
    if err.errno in (errno.EACCES, errno.EPERM):
        return (f"the kernel refuses perf events to this user (perf_event_paranoid is {level}): {LOWER_LEVEL}, or run "
                "as root")
    if err.errno in (errno.EMFILE, errno.ENFILE):
        return "too many open files for the perf events of every CPU: raise the limit (ulimit -n)"
    if err.errno == errno.ENOMEM:
        return "there is not enough memory for the rings of perf events: raise the limit (ulimit -v)"
    if err.errno in (errno.ENOSYS, errno.ENOENT, errno.EOPNOTSUPP, errno.EINVAL):
        return f"this kernel does not have the perf events that are needed (Linux 5.13 or later): {err.strerror}"
    return f"the perf events cannot be opened: {err.strerror}"


def _is_filtered() -> bool:
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        return "\nSeccomp:\t2\n" in file.read()


def _paranoid_level() -> str:
    try:
        with open("/proc/sys/kernel/perf_event_paranoid", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return "unknown"
