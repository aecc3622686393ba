"""Attaching to processes that run already: holding them, and their state at the moment we come.

A process is held by a pidfd from the first check on, or from before our start on, by whoever started us and hands it
over (``-P PID@FD``): a number can come to mean somebody else, a pidfd cannot. All that is done by number (opening
events, tracing, reading /proc) is good if the pidfd says *afterwards* that the process was still there: then the number
had not changed hands meanwhile.

        pidfd --- events opened by number --- alive? --- started --- begin --- /proc read by number --- alive?

Threads and mappings are read from /proc. Threads that are blocked get the stack that they are blocked with, read from
their memory without stopping them: sp and pc from /proc, the frame pointer found by searching.
"""

from __future__ import annotations

import errno
import os
import re
import select
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from typing import NamedTuple, Protocol, TypeVar

import numpy as np

from collector.clock import NS_PER_S
from collector.engines.base import Engine
from collector.engines.perf.engine import PerfEngine
from collector.errors import CollectorError, EngineRefused, TargetGone, reason
from collector.events import (
    Array,
    Batch,
    Change,
    ClockSamples,
    Edge,
    Exited,
    Exits,
    Forked,
    Mapped,
    Reason,
    RecordsLost,
    Throttled,
)
from collector.linux import abi, accounts, libc, proc, tasks
from collector.linux.thread_list import threads_of

STACK_WORDS = 1 << 11  # 16 KiB of each blocked thread
_LOCK_CALLS = abi.LOCK_CALLS[64] | abi.LOCK_CALLS[32]  # none is another one's number that waits
_PF_KTHREAD = 0x200000
_CAP_SYS_PTRACE = 19
_SP, _IP = 7, 16
_FOREVER_TICKS = 1 << 62
NOBODY: Mapping[int, int] = {}
_ROUNDS = 5  # of looking for descendants that were born meanwhile; who makes them all the time is taken as it is


class Closable(Protocol):
    """Opened events, or a tracer at work."""

    def close(self) -> None:
        """Lets the processes go."""


Opened = TypeVar("Opened", bound=Closable)
Read = TypeVar("Read")


class Target(NamedTuple):
    """A running process that is to be recorded. ``pidfd`` stays open as long as we do; ``asked`` for by its number, or
    found below one that was."""

    pid: int
    pidfd: int
    asked: bool = True

    def alive(self) -> bool:
        """Whether the process that was checked is still the one."""
        poller = select.poll()  # select(2) cannot look at descriptors from 1024 on
        poller.register(self.pidfd, select.POLLIN)
        return not poller.poll(0)


def checked(pid: int, asked: bool = True, held: int | None = None) -> Target:
    """The process, if it can be a target. ``held``: its pidfd, which becomes ours. Raises TargetGone, or EngineRefused,
    with what is wrong."""
    if pid == os.getpid():
        raise TargetGone(f"-P {pid}: that is collect itself; give the number of another process")
    target = Target(pid, _opened(pid) if held is None else _taken(pid, held), asked)
    try:
        _check_kind(target)
    except CollectorError:
        os.close(target.pidfd)
        raise
    return target


def _taken(pid: int, held: int) -> int:
    """A pidfd that we were given, if it is that of the process."""
    found = proc.pid_of(held)
    if found == -1:
        raise TargetGone(f"-P {pid}: the process ended before it was attached")
    if found != pid:
        raise TargetGone(f"-P {pid}@{held}: this descriptor is no pidfd of the process; give -P {pid} alone")
    os.set_inheritable(held, False)
    return held


def _opened(pid: int) -> int:
    try:
        return os.pidfd_open(pid)
    except (ProcessLookupError, OverflowError):
        raise TargetGone(f"-P {pid}: there is no such process; ps -e lists those that there are") from None
    except OSError as err:
        if err.errno in (errno.EMFILE, errno.ENFILE):
            raise CollectorError(f"-P {pid}: {reason(err)}") from None
        raise TargetGone(f"-P {pid}: not a process ({err.strerror}); give the number of a process, not of a thread"
                         ) from None


def _check_kind(target: Target) -> None:
    pid = target.pid
    if not target.alive():
        raise TargetGone(f"-P {pid}: the process has ended and only waits for its parent to notice; give the number of "
                         "one that runs")
    try:
        flags = proc.kernel_flags(pid)
        if flags & _PF_KTHREAD:
            raise TargetGone(f"-P {pid}: a thread of the kernel has no user code to profile; give the number of a "
                             "program's process")
        with open(f"/proc/{pid}/maps", "rb"):  # what the kernel lets us see is what we may profile
            pass
    except PermissionError:
        raise EngineRefused(f"-P {pid}: {_why_closed()}") from None
    except (OSError, ValueError, IndexError) as err:
        if isinstance(err, OSError) and err.errno in (errno.EMFILE, errno.ENFILE):
            raise CollectorError(f"-P {pid}: {reason(err)}") from None
        if isinstance(err, FileNotFoundError) and target.alive():  # hidden from us (hidepid)
            raise EngineRefused(f"-P {pid}: {_why_closed()}") from None
        raise TargetGone(f"-P {pid}: the process has just ended") from None


def _ended(pid: int) -> TargetGone:
    return TargetGone(f"-P {pid}: the process ended while it was being attached")


def _why_closed() -> str:
    """Why we may not look at a process, and who may."""
    if os.geteuid():
        return ("the process belongs to another user, or is closed to its own (setuid, or not dumpable): run collect "
                "as root")
    if not int(proc.status(os.getpid()).get(b"CapEff", b"0"), 16) >> _CAP_SYS_PTRACE & 1:
        return ("the process belongs to another user, and this root lacks the capability CAP_SYS_PTRACE, as in most "
                "containers: docker run --cap-add=SYS_PTRACE ...")
    return ("the kernel does not show this process even to root: it belongs to the system around this container, or is "
            "protected by a security module; run collect there, or as that allows")


class Targets:
    """The processes to be recorded, those that were asked for first, and with ``tree`` their descendants.

    ``say`` is told of descendants that we may not record. Raises TargetGone or EngineRefused if one that was asked for
    is no target.
    """

    def __init__(self, pids: Sequence[int], tree: bool, say: Callable[[str], None],
                 held: Mapping[int, int] = NOBODY) -> None:
        """``held``: of some of the numbers a pidfd that was handed to us."""
        self._tree = tree
        self._say = say
        self._refused: set[int] = set()
        self.all = [checked(pid, held=held.get(pid)) for pid in dict.fromkeys(pids)]
        if tree:
            self.all += self._descendants()

    @property
    def pids(self) -> list[int]:
        """Their numbers; the founder's comes first."""
        return [target.pid for target in self.all]

    def pidfds(self) -> list[int]:
        """Of those that were asked for by their numbers."""
        return [target.pidfd for target in self.all if target.asked]

    def command_line(self) -> tuple[str, ...]:
        """The founder's arguments; none where it is gone, which ``begin`` will tell."""
        return tuple(os.fsdecode(word) for word in _tried(self.all[0], proc.command_line) or ())

    def open(self, open_on: Callable[[list[int]], Opened]) -> Opened:
        """Their events, opened by ``open_on`` for their numbers; none is missing, and none is a stranger's.

        Descendants of the tree that were born before their parents had events are added. Raises TargetGone when a
        process that was asked for is gone, and what ``open_on`` raises.
        """
        n_rounds = _ROUNDS if self._tree else 0
        while True:
            try:
                opened = open_on(self.pids)
            except (CollectorError, OSError) as err:
                if self._drop_those_gone():
                    continue
                if isinstance(err, ProcessLookupError):  # all are ending; pidfds tell that once memory is given back
                    raise _ended(self.pids[0]) from None
                raise
            try:
                late = self._descendants(_now_ticks()) if n_rounds else []
                changed = self._drop_those_gone() or bool(late)
            except BaseException:
                opened.close()
                raise
            if not changed:
                return opened
            opened.close()
            self.all += late
            n_rounds -= 1

    def begin(self, engine: Engine | None) -> list[Taken]:
        """Starts the events and looks at the processes as they are then. Raises TargetGone, EngineRefused."""
        begin_ns, look = self._start(engine)
        # In all of them first what changes fastest: where threads are, then their stacks, then mappings.
        threads = {target: _tried(target, look) or [] for target in self.all}
        seen = {target: departures(target.pid, found, begin_ns) for target, found in threads.items()}
        mapped = {target: _tried(target, lambda pid: mappings(pid, begin_ns)) for target in self.all}
        self._drop_those_gone()
        if isinstance(engine, PerfEngine):
            last = seen[self.all[-1]]
            last.changes, last.exits = self._before(engine, begin_ns)
            over = {change.tid for change in last.changes if type(change) is Exited}
            for target, found in threads.items():
                threads[target] = [thread for thread in found if not (thread.gone_ns and thread.tid in over)]
                there = {thread.tid for thread in found if not thread.gone_ns}
                engine.unheard.watch(target.pid, there - engine.opened.threads)
        return [Taken(target.pid, lineage_of(target.pid), threads[target], mapped[target] or [], seen[target])
                for target in self.all]

    def _start(self, engine: Engine | None) -> tuple[int, Callable[[int], list[Found]]]:
        """Starts the events: since when all of them tell, and what finds the threads of a process as they are then.

        They are listed before that moment, and again behind it: that may be a while later, where others want the CPUs.
        """
        if isinstance(engine, PerfEngine) or engine is None:
            if engine is not None:
                engine.start()
            listed = {target.pid: _tried(target, threads_of) or set() for target in self.all}
            whole = engine.opened.threads if engine is not None else frozenset()
            return time.monotonic_ns(), lambda pid: _found(pid, listed[pid], whole)
        from collector.engines.ptrace.engine import SignalEngine

        assert isinstance(engine, SignalEngine)
        begin_ns, told = engine.begin()  # it knows which threads there are, and tells where each is
        return begin_ns, lambda pid: [Found(tid, Edge.IN, Reason.UNKNOWN, None) for tid in told.get(pid, ())]

    def _before(self, engine: PerfEngine, begin_ns: int) -> tuple[tuple[Change, ...], Exits | None]:
        """What was recorded while the events were started one after another is incomplete, and dropped. Kept are those
        changes that /proc does not tell: of processes that were born meanwhile, and ends of threads that it still
        shows; and accounts of threads that have ended, which may have come before the records of their ends."""
        changes, exits, has_more, pids = list[Change](), list[Exits](), True, set(self.pids)
        while has_more:
            batch = engine.drain(begin_ns - engine.ahead_ns)
            engine.release()
            changes += batch.changes
            exits += [batch.exits] if batch.exits is not None else []
            has_more = batch.has_more
        born: set[int] = set()
        kept: list[Change] = []
        for change in changes:
            if isinstance(change, RecordsLost | Throttled):
                continue
            if isinstance(change, Forked) and change.pid not in pids and change.parent_pid in pids | born:
                born.add(change.pid)
            if change.pid in born or (isinstance(change, Exited) and change.pid in pids):
                kept.append(change._replace(time_ns=begin_ns))
        return tuple(kept), _joined(exits)

    def _drop_those_gone(self) -> bool:
        """Whether somebody was gone. Raises TargetGone if it was one that was asked for."""
        for target in self.all:
            if target.asked and not target.alive():
                raise _ended(target.pid)
        gone = [target for target in self.all if not target.alive()]
        for target in gone:
            os.close(target.pidfd)
            self.all.remove(target)
        return bool(gone)

    def _descendants(self, until_ticks: int = _FOREVER_TICKS) -> list[Target]:
        """Holds the descendants, born up to a time (clock ticks since boot), that are not targets yet."""
        known, kin, found = set(self.pids), proc.kin(), []
        for pid in _below(kin, self.pids):
            if pid in known or kin[pid].start_ticks > until_ticks:
                continue
            try:
                target = checked(pid, asked=False)
            except TargetGone:
                continue
            except EngineRefused as err:
                if pid not in self._refused:
                    self._say(f"{err}; this descendant is not recorded")
                self._refused.add(pid)
                continue
            if proc.kin_of(pid) == kin[pid] and target.alive():  # it is the one that was listed
                found.append(target)
            else:
                os.close(target.pidfd)
        return found


def _joined(parts: Sequence[Exits]) -> Exits | None:
    """All of several, in order; None of none."""
    if not parts:
        return None
    columns = [(part.pid, part.tid, part.elapsed_ns, part.run_ns, part.delay_ns, part.turns) for part in parts]
    pid, tid, elapsed_ns, run_ns, delay_ns, turns = map(np.concatenate, zip(*columns, strict=True))
    return Exits(pid, tid, elapsed_ns, run_ns, delay_ns, turns, parts[-1].read_ns)


def _now_ticks() -> int:
    """The time as the kernel stamps the birth of processes."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK") // NS_PER_S


def _below(kin: Mapping[int, proc.Kin], pids: Sequence[int]) -> list[int]:
    """The descendants of processes, each behind its parent."""
    children = defaultdict(list)
    for pid, of_it in kin.items():
        children[of_it.parent].append(pid)
    found, known = list(pids), set(pids)
    for pid in found:
        new = [child for child in children[pid] if child not in known]
        found += new
        known.update(new)
    return found[len(pids):]


# -- the moment from which on they are recorded


class Found(NamedTuple):
    """A thread as it was found: what its clock begins with, where it is blocked (None: it is not), and the kernel's
    account of it, where the engine does not go by that already."""

    tid: int
    cut: int  # Edge
    reason: Reason
    place: tasks.Place | None
    account: accounts.Account | None = None
    cpu: int = 0  # that it was last on
    gone_ns: int = 0  # when it was looked for in vain: it has ended since it was listed; cut is IN if records tell all


class Taken(NamedTuple):
    """A running process as it was when its recording began, at ``seen.until_ns``; ``seen`` has the stacks of threads
    that were blocked, and ``lineage`` is for its experiment if it is not the founder."""

    pid: int
    lineage: str
    threads: list[Found]
    mappings: list[Mapped]
    seen: Batch


def _tried(target: Target, read: Callable[[int], Read]) -> Read | None:
    """What ``read`` finds in a process; None if that is gone. Raises TargetGone if it lives and cannot be read."""
    try:
        return read(target.pid)
    except OSError as err:
        if target.alive():
            raise TargetGone(f"-P {target.pid}: the process cannot be read: {err.strerror}") from err
        return None


def _found(pid: int, listed: Set[int], whole: Set[int]) -> list[Found]:
    """The threads of a process: those that were ``listed`` a moment ago, and those that it has now. Records tell all of
    those that are ``whole``."""
    looks, found = {tid: account_of(pid, tid) for tid in sorted(listed | threads_of(pid))}, []
    for tid, account in looks.items():
        thread = find(pid, tid)
        if thread is not None:
            found.append(thread._replace(account=account))
        elif tid in listed and tid != pid:  # others may have been born since; a first one may have ended long ago
            cut = Edge.IN if tid in whole else Edge.OUT_BLOCKED
            found.append(Found(tid, cut, Reason.UNKNOWN, None, gone_ns=time.monotonic_ns()))
    return found


def account_of(pid: int, tid: int) -> accounts.Account | None:
    """The kernel's account of a thread; None when it is gone."""
    try:
        return accounts.account_of(pid, tid)
    except (OSError, ValueError):
        return None


def lineage_of(pid: int, number: int = 1) -> str:
    """The name of the experiment of a process that was attached beside the founder."""
    try:
        return lineage_named(proc.comm(pid, pid), pid, number)
    except OSError:
        return lineage_named(b"process", pid, number)


def lineage_named(comm: bytes, pid: int, number: int = 1) -> str:
    """The same of one whose name is known."""
    name = re.sub(rb"[^A-Za-z0-9.+-]", b"-", comm).decode("ascii")
    return f"_{name}_PID_{pid}.{number}"


def mappings(pid: int, time_ns: int) -> list[Mapped]:
    """The executable mappings of a process as changes. Raises OSError when it is gone."""
    executables: list[tasks.Executable] = []
    for tid in proc.threads(pid):
        with suppress(FileNotFoundError, ProcessLookupError):  # the thread is gone
            executables = tasks.executables(pid, tid)
        if executables:  # a main thread that has ended before the others has none
            break
    else:
        executables = tasks.executables(pid, pid)
    return [Mapped(time_ns, pid, pid, found.start, found.end - found.start, found.file_offset, found.device,
                   found.inode, found.path) for found in executables]


def find(pid: int, tid: int) -> Found | None:
    """How a thread is at this moment; None when it is gone, or a process's first one that has ended before the others.
    """
    files = tasks.Files(pid, tid)
    try:
        state, _, _, cpu = tasks.parse_stat(files.read_once("stat"))
        place = tasks.parse_place(files.read_once("syscall"))
    except (OSError, ValueError, IndexError):
        return Found(tid, Edge.IN, Reason.UNKNOWN, None) if os.path.exists(f"/proc/{pid}/task/{tid}") else None
    if state in (b"Z", b"X"):
        return None
    if state == b"R" or place is None:
        return Found(tid, Edge.IN, Reason.UNKNOWN, None)
    if state in (b"T", b"t"):
        return Found(tid, Edge.OUT_BLOCKED, Reason.STOPPED, place, cpu=cpu)
    reason = Reason.USER_FAULT if place.call == -1 else Reason.LOCK if place.call in _LOCK_CALLS else Reason.SLEEP
    return Found(tid, Edge.OUT_BLOCKED, reason, place, cpu=cpu)


def departures(pid: int, found: Sequence[Found], time_ns: int, stack_words: int = STACK_WORDS) -> Batch:
    """The stacks of blocked threads as samples of threads that left their CPU just before ``time_ns``; of each so many
    words, a power of two."""
    blocked = [(thread, thread.place) for thread in found if thread.place is not None]
    words = np.zeros((len(blocked), stack_words), dtype=np.uint64)
    n_words = [_read_stack(thread.tid, place.sp, words[i]) for i, (thread, place) in enumerate(blocked)]
    n = len(blocked)
    regs = np.zeros((n, 17), dtype=np.uint64)
    regs[:, _SP] = [place.sp for _, place in blocked]
    regs[:, _IP] = [place.pc for _, place in blocked]
    samples = ClockSamples(
        time_ns=np.full(n, time_ns - 1), pid=np.full(n, pid), tid=np.array([t.tid for t, _ in blocked], dtype=np.int64),
        cpu=np.array([t.cpu for t, _ in blocked], dtype=np.int32),
        mode=np.array([t.reason for t, _ in blocked], dtype=np.int8),
        abi=np.full(n, tasks.word_bits(pid), dtype=np.int8), regs=regs, words=words.reshape(-1),
        base=np.arange(n, dtype=np.int64) * stack_words, mask=np.full(n, stack_words - 1, dtype=np.int64),
        first=np.zeros(n, dtype=np.int64), low=regs[:, _SP].copy(), n_words=np.array(n_words, dtype=np.int64),
        known=np.full(n, 1 << _SP | 1 << _IP, dtype=np.uint64))
    return Batch(time_ns, leaving=samples if n else None)


def _read_stack(tid: int, sp: int, into: Array) -> int:
    """Words of a thread's stack from ``sp`` up; as many as can be read. (Of a process whose first thread has ended
    nothing is read by its number.)"""
    view = into.view(np.uint8).data
    try:
        return libc.process_vm_readv(tid, [(sp, len(view))], view) >> 3
    except OSError:
        return 0
