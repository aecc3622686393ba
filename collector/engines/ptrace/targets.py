"""What the signal engine's tracer knows of processes and threads. Standard library only."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import NamedTuple

from collector.clock import NS_PER_MS
from collector.engines.ptrace.completions import Completion
from collector.events import Reason
from collector.linux import tasks
from collector.linux.tasks import Executable, Files, Place

AWAKE_NS = 50 * NS_PER_MS  # unseen for so long, a thread that is asleep may have been woken and wait
PATIENCE = 5  # intervals without a sample, until any other one is better


class Asked(NamedTuple):
    """When a thread was asked to stop: its accounts at that time, whether we were on its CPU (``is_here``), when our
    clock was to strike for that, when we were awake, and for how long nobody had looked at it."""

    time_ns: int
    cpu_ns: int
    delay_ns: int
    is_here: bool
    due_ns: int
    came_ns: int
    used_ns: int
    unseen_ns: int
    amid_signal: bool = False  # it was about to be given a signal: it will stop as that is done, wherever it ran


@dataclass(slots=True, eq=False)
class Tracee:
    """One thread. Between two looks the kernel's accounts say how long it ran and waited; ``settled_ns`` is the time up
    to which that has been told."""

    tid: int
    process: Traced
    files: Files
    settled_ns: int
    raw: bytes = b""  # schedstat as of the last look that found it changed
    looked_raw: bytes = b""  # as of the last look that found it ready to run
    cpu_ns: int = 0
    delay_ns: int = 0
    owed_ns: int = 0  # running time that did not fit between the looks it was found between
    kept_ns: int = 0  # how long it was ready to run since it was settled and, by its account, neither ran nor waited
    running: bool = True  # the last edge told is IN (or its birth)
    told_ns: int = 0  # the last edge's time
    waited_from_ns: int = 0  # when it began to wait for a CPU, as told when it was settled; 0: it did not
    was_stopped: bool = False  # when it was settled: it has waited for a CPU then until its accounts change
    turns: int = 0
    n_stops: int = 0
    n_left: int = -1  # how often it had left its CPU by itself when that was asked last, beside others
    n_sleeps: int | None = None  # begun by when it was settled, or earlier; None: not known
    waited_before: bool = False  # for a CPU as recording began; it has not been settled since then
    waited_at_least_ns: int = 0  # if so: how long since then
    seen_ns: int = 0  # when it was last seen to sleep where it is told to
    asleep_ns: int = 0  # when it was last proven to sleep: until then it waited for no CPU
    awake_ns: int = 0  # when it was woken, about, if it has waited for a CPU ever since; 0: it sleeps, or has run
    looked_ns: int = 0
    calm: int = 0  # looks in a row that found nothing new
    asked: Asked | None = None  # to stop, and has not stopped yet
    in_stop: bool = False  # a job-control stop
    let_go_ns: int = 0  # when it went on from the stop of its exit; 0: it has not
    gone: bool = False
    place: Place | None = None  # where it slept last
    known: dict[Place, Reason] = field(default_factory=dict)  # places whose stack has been told in this image
    name: bytes = b""
    spared_until_ns: int = 0  # not to be interrupted before
    first_ns: int = 0  # when it is to be looked at for the first time, if that is agreed
    spare_ns: int = 0
    system_ticks: int = 0  # of its CPU time, as of the last look that found it changed
    system_ns: int = 0  # running time that samples have told as system time
    sampled_ns: int = 0  # the running time at the last sample
    cpu: int = -1  # as of the last look that found it ready to run
    n_calling: int = 0  # samples to come for which it is visited, since it makes system calls
    n_traps: int = 0
    n_signals: int = 0  # that it was given since its last sample
    completion: Completion | None = None

    def begin(self, now_ns: int) -> None:
        """It is told to have its CPU from now on: nothing that was told of it before counts."""
        self.settled_ns, self.running, self.was_stopped, self.place = now_ns, True, False, None
        self.owed_ns = self.kept_ns = self.waited_from_ns = self.awake_ns = 0
        self.known.clear()

    def sleeps_on(self) -> bool:
        """Whether it sleeps where it was when it was looked at last."""
        if self.running or self.in_stop or self.gone or self.asked:
            return False
        try:
            return self.files.read("schedstat", 64) == self.raw
        except OSError:
            return False

    def waited_ns(self, delay_ns: int, turns: int) -> int:
        """How long it has waited for a CPU since it was settled, by its accounts now. They have a wait when that is
        over, whole: of a first one, that began before recording did, a half of their average is taken if we have not
        seen more of it."""
        waited_ns = delay_ns - self.delay_ns
        if self.waited_before:
            waited_ns = max(waited_ns - waited_ns // (2 * max(turns - self.turns, 1)), self.waited_at_least_ns)
        return waited_ns

    def read_sleeps(self) -> int | None:
        """How many sleeps it has begun; None if it sleeps now, or that is not to be had. (To read ``status`` takes five
        times as long as the accounts.)"""
        try:
            status = self.files.read_once("status", 4096)
            n_switches, _ = tasks.switches(status)
        except (OSError, ValueError):
            return None
        state = tasks.state(status)
        n_stops = self.n_stops + (state == b"t" and self.asked is not None)  # the last one is not reported yet
        return n_switches - n_stops if state in (b"R", b"t") else None

    def is_awake(self) -> bool:
        """Whether it can run. Raises OSError when it is gone."""
        try:
            return self.files.read("syscall", 64).startswith(b"running")
        except PermissionError:
            return tasks.parse_stat(self.files.read("stat")).state == b"R"

    def where(self) -> Place | None:
        """Where it sleeps, ``tasks.UNREAD`` if we may not know that; None if it does not. Raises OSError when it is
        gone."""
        try:
            return tasks.parse_place(self.files.read("syscall"))
        except PermissionError:
            return tasks.UNREAD


@dataclass(slots=True, eq=False)
class Traced:
    """One process."""

    pid: int
    threads: dict[int, Tracee] = field(default_factory=dict)
    held: bool = False  # before its exec: not ours to record
    bits: int = 64
    is_closed: bool = False  # it was told that we may not look where it sleeps
    cpu_ns: int = 0  # of its threads since it was found
    sampled_ns: int = 0  # that of it at the last sample of any
    owed_ns: int = 0  # that of it for which there should have been samples, an interval each, and were not
    mapped: set[Executable] = field(default_factory=set)
    starts: list[int] = field(default_factory=list)  # of ``mapped``, sorted
    ends: list[int] = field(default_factory=list)
    mapped_ns: int = 0  # when they were read last
    mapping_ns: int = 0  # our CPU time for that
    young_until_ns: int = 0  # of ``cpu_ns``: while a program begins, they change all the time
    checked_ns: int = 0  # when it was asked whether they changed
    size: bytes = b""  # when they were read last, or found to be the same
    size_now: bytes = b""
    library: bytes = b""

    def copied(self, pid: int) -> Traced:
        """A process that this one has just made: it has the same memory."""
        return Traced(pid, bits=self.bits, mapped=set(self.mapped), starts=self.starts, ends=self.ends, size=self.size,
                      size_now=self.size, library=self.library, mapped_ns=self.mapped_ns,
                      young_until_ns=self.young_until_ns - self.cpu_ns)

    @property
    def is_young(self) -> bool:
        """Whether its program still begins: by the time that it had a CPU, so that others cannot make it old."""
        return self.cpu_ns < self.young_until_ns

    def enter(self, mappings: list[Executable]) -> list[Executable]:
        """Takes the mappings as they are now; returns those that are new."""
        new = [mapping for mapping in mappings if mapping not in self.mapped]
        self.mapped = set(mappings)
        self.starts, self.ends = [m.start for m in mappings], [m.end for m in mappings]
        return new

    def may_have_mapped(self, pc: int) -> bool:
        """Whether there may be executable mappings that are not known, by the pc of a thread and the size measured."""
        return self.size_now != self.size or not self.covers(pc)

    def covers(self, pc: int) -> bool:
        """Whether a pc lies in a known mapping."""
        at = bisect_right(self.starts, pc) - 1
        return at >= 0 and pc < self.ends[at]
