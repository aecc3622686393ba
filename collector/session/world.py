"""What the pipeline asks of the kernel and of files while it works on batches: all of it, behind one door.

Everything else that it knows came with a batch. So whoever has the batches of a recording and these answers can feed a
pipeline again, without the target, and gets the same experiments.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from collector.events import Array, ClockSamples, Edge, Mapped
from collector.experiment.identity import Identity
from collector.linux import proc
from collector.linux.proc import ProcessLife, ProcessUsage
from collector.processes.process import Epoch
from collector.session.attach import Found, account_of, departures, find, mappings
from collector.session.objects import Objects, named
from collector.session.placing import Frames


class Place(NamedTuple):
    """What is mapped: its path; its load object's number (below 0: none that can be read), bias (pc_object =
    pc_runtime - bias) and the bits of its code (0: unknown)."""

    path: bytes
    object: int
    bias: int
    bits: int


class Sleeper(NamedTuple):
    """A thread off its CPU; ``run_ns``: its account, read in this very sleep; -1: none was."""

    pid: int
    tid: int
    run_ns: int


class World(Protocol):
    """The answers. None of the methods raises OSError: who is gone has no name, no stack and no usage."""

    def now_ns(self) -> int:
        """The time, CLOCK_MONOTONIC."""

    def arguments(self, pid: int) -> bytes:
        """The command line of a process; empty if it is gone."""

    def comm(self, pid: int, tid: int) -> bytes:
        """The name of a thread; empty if it is gone."""

    def usage(self, pid: int) -> ProcessUsage | None:
        """The counters of a process."""

    def life(self, pid: int) -> ProcessLife | None:
        """When a process was born, and the CPU time that it has used; None if it is gone."""

    def switches(self, pid: int) -> tuple[int, int]:
        """How often the threads of a process that live have left a CPU: because they blocked, were preempted."""

    def blocked(self, threads: Sequence[Sleeper], now_ns: int, stack_words: int) -> list[ClockSamples]:
        """Those of the threads that are still blocked, as samples of their leaving just before ``now_ns``, by process;
        of each stack so many words, a power of two."""

    def mappings(self, pid: int, time_ns: int) -> list[Mapped]:
        """The executable mappings of a process as they are, as changes of a time; none if it is gone."""

    def place(self, mapped: Mapped) -> Place:
        """What a mapping maps."""

    def identity(self, number: int) -> Identity:
        """Which file a load object is."""

    def functions(self, number: int) -> list[tuple[int, int, bytes]]:
        """The functions of a load object: (vaddr, size, name), sorted, one per address."""

    def function_at(self, number: int, vaddr: int) -> bytes:
        """The name of the function at an address of a load object; empty where there is no symbol."""

    def frames(self, samples: ClockSamples, index: Array, epochs: list[Epoch]) -> tuple[Array, Array, Array]:
        """Call stacks of n samples, each taken in the epoch that ``index`` (n,) tells of it: program counters
        (n, depth) leaf first, marked short of the root; length (n,); why each ends (n,), Stop."""


class ThisMachine:
    """The world as it is, for targets that run here."""

    def __init__(self, objects: Objects, frames: Callable[[ClockSamples, Array, list[Epoch]], Frames]) -> None:
        """``frames`` unwinds stacks; of more than machine code, where that is wanted."""
        self._objects = objects
        self._frames = frames

    def now_ns(self) -> int:
        """See World, here and below."""
        return time.monotonic_ns()

    def arguments(self, pid: int) -> bytes:
        try:
            return b" ".join(proc.command_line(pid))
        except OSError:
            return b""

    def comm(self, pid: int, tid: int) -> bytes:
        try:
            return proc.comm(pid, tid)
        except OSError:
            return b""

    def usage(self, pid: int) -> ProcessUsage | None:
        return proc.process_usage(pid)

    def life(self, pid: int) -> ProcessLife | None:
        return proc.process_life(pid)

    def switches(self, pid: int) -> tuple[int, int]:
        return proc.process_switches(pid)

    def blocked(self, threads: Sequence[Sleeper], now_ns: int, stack_words: int) -> list[ClockSamples]:
        by_process: dict[int, list[Found]] = defaultdict(list)
        for pid, tid, run_ns in threads:
            found = find(pid, tid)
            if found is not None and found.cut == Edge.OUT_BLOCKED and not _has_run(pid, tid, run_ns):
                by_process[pid].append(found)
        samples = []
        for pid, blocked in by_process.items():
            try:
                leaving = departures(pid, blocked, now_ns, stack_words).leaving
            except OSError:  # it has ended meanwhile
                continue
            if leaving is not None:
                samples.append(leaving)
        return samples

    def mappings(self, pid: int, time_ns: int) -> list[Mapped]:
        try:
            return [named(mapped) for mapped in mappings(pid, time_ns)]
        except OSError:
            return []

    def place(self, mapped: Mapped) -> Place:
        mapped = named(mapped)
        known, bias = self._objects.place(mapped)
        return Place(mapped.path, known.number, bias, known.object.word_size * 8 if known.object is not None else 0)

    def identity(self, number: int) -> Identity:
        return self._objects.identity(number)

    def functions(self, number: int) -> list[tuple[int, int, bytes]]:
        return self._objects.functions(number)

    def function_at(self, number: int, vaddr: int) -> bytes:
        return self._objects.function_at(number, vaddr)

    def frames(self, samples: ClockSamples, index: Array, epochs: list[Epoch]) -> tuple[Array, Array, Array]:
        return self._frames(samples, index, epochs)[:3]


def _has_run(pid: int, tid: int, run_ns: int) -> bool:
    """Whether a thread has run since its account was this: it waits for something else now."""
    account = account_of(pid, tid) if run_ns >= 0 else None
    return account is not None and account.run_ns != run_ns
