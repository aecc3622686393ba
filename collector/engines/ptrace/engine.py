"""The signal engine: what its tracer tells (``tracer``) as batches.

The tracer's rows are the same events as those of perf's rings: clock samples, departures with their stacks, switches.
The copies of stacks stay where the kernel put them, in memory shared with the tracer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from collector.arrays import indices
from collector.clock import NEVER_NS
from collector.engines.base import Threads
from collector.engines.ptrace.channel import unframed
from collector.engines.ptrace.opening import Opened
from collector.engines.ptrace.writer import BIRTH, CLOCK, LEAVE
from collector.errors import EngineRefused
from collector.events import (
    Array,
    Batch,
    Births,
    Change,
    ClockSamples,
    Executed,
    Exited,
    Faults,
    Forked,
    LetGo,
    Mapped,
    RecordsLost,
    Renamed,
    Sites,
    Switches,
)
from collector.linux import abi

_CHANGES: dict[str, Callable[..., Change]] = {
    kind.__name__: kind for kind in (Forked, Exited, Renamed, Executed, Mapped, LetGo, RecordsLost)}
_REGISTERS_AT = abi.TRACED_SAMPLE.offsets[-17] >> 3  # in words


class SignalEngine:
    """The engine on top of a tracer."""

    name = "signal"
    pressed_ns = NEVER_NS  # the tracer wakes us in time

    def __init__(self, opened: Opened) -> None:
        self.reason = opened.reason
        self._opened = opened
        self._channel = opened.channel
        self._words: Array = np.frombuffer(opened.channel.stacks, dtype=np.uint64)
        self._stack_head = 0
        self.room_ns = 0  # see Engine
        self._came_ns = time.monotonic_ns()  # to drain
        self._is_stopped = self._has_more = False
        self._n_rounds = 0  # that were taken
        self._kept: list[tuple[Any, ...]] = []  # changes that came with the threads

    def begin(self) -> tuple[int, dict[int, list[int]]]:
        """Begins with running processes: from when on, and the threads (tid) of each (pid) as they were then. Nobody
        else is told as new unless it is. Raises EngineRefused."""
        self._opened.begin()
        heads, _, _ = self._channel.snapshot()
        changes = unframed(self._channel.take("change", heads["change"]))
        if not changes:
            raise EngineRefused("the tracer has died; run collect again")
        (_, begin_ns, threads), *self._kept = changes
        return begin_ns, threads

    def poll_fds(self) -> list[int]:
        """The pipe that the tracer wakes us through."""
        return [self._opened.pipe]

    def instead_of(self, fd: int) -> int | None:
        """None: there is one tracer."""
        return None

    def idle_fds(self, due_ns: int) -> Collection[int]:
        """None: see wants_drain."""
        return ()

    def wants_drain(self, ready: Collection[int], due_ns: int) -> bool:
        """Always: the tracer wakes us for good reasons."""
        return True

    def look(self, asked: Threads) -> None:
        """Nothing: the tracer goes by accounts already."""

    def drain(self, until_ns: int) -> Batch:
        """All that the tracer has told so far. ``until_ns`` of the batch may be earlier than asked for: the time before
        which nothing more will come. Of a tracer that was told to stop there is more as long as rows wait for room."""
        self._opened.take_wakes()
        goes_on = not self._has_more or self._opened.await_rows(self._n_rounds)
        self._has_more, self._n_rounds = (
            goes_on and self._is_stopped and self._channel.is_behind, self._channel.n_rounds)
        before = self._stack_head
        heads, self._stack_head, horizon_ns = self._channel.snapshot()
        self._note_room(self._stack_head - before)
        rows = {name: self._channel.take(name, head) for name, head in heads.items()}
        changes = [_CHANGES[kind](*values) for kind, *values in [*self._kept, *unframed(rows["change"])]]
        self._kept = []
        changes.sort(key=lambda change: change.time_ns)
        samples = _sorted(np.frombuffer(rows["sample"], dtype=abi.TRACED_SAMPLE.dtype))
        return Batch(min(until_ns, horizon_ns), tuple(changes), self._samples(samples, CLOCK),
                     _switches(rows["switch"]), self._samples(samples, LEAVE), _sites(rows["site"]),
                     _faults(rows["fault"]), self._births(samples), has_more=self._has_more)

    def release(self) -> None:
        """Lets the tracer write again where the stacks of the last batch were."""
        self._channel.give_back_stacks(self._stack_head)

    def failure(self) -> str:
        """That the tracer was killed, has failed, or does not answer."""
        return self._opened.failure()

    def stop(self) -> int:
        """No more samples: the tracer looks at everybody once more, as soon as it gets a CPU."""
        self._opened.stop()
        self._is_stopped = True
        return self._channel.snapshot()[2]

    def close(self) -> None:
        """Ends the tracer, whereupon the target runs on untraced."""
        self._opened.close()

    def _note_room(self, n_words: int) -> None:
        """How long the words of stacks find room, of which so many came since the last drain."""
        came_ns = time.monotonic_ns()
        self.room_ns = (came_ns - self._came_ns) * (self._channel.n_words - n_words) // max(n_words, 1)
        self._came_ns = came_ns

    def _births(self, rows: Array) -> Births | None:
        makers = self._samples(rows, BIRTH)
        if makers is None:
            return None
        rows = rows.take(indices(rows["kind"] == BIRTH))
        return Births(makers, rows["child"].copy(), rows["flags"].copy())

    def _samples(self, rows: Array, kind: int) -> ClockSamples | None:
        rows = rows.take(indices(rows["kind"] == kind))
        n = len(rows)
        if not n:
            return None
        registers = rows.view(np.uint64).reshape(n, -1)[:, _REGISTERS_AT:_REGISTERS_AT + 17].copy()
        return ClockSamples(
            **_who(rows), cpu=rows["cpu"].copy(), mode=rows["mode"].astype(np.int8), abi=rows["abi"].astype(np.int8),
            regs=registers, words=self._words, base=np.zeros(n, dtype=np.int64),
            mask=np.full(n, self._channel.n_words - 1), first=rows["first"].astype(np.int64), low=rows["low"].copy(),
            n_words=rows["n_words"].copy(), known=rows["known"].copy())


def _sorted(rows: Array) -> Array:
    found: Array = rows.take(np.argsort(rows["time"], kind="stable"))
    return found


def _who(rows: Array) -> dict[str, Any]:
    return {"time_ns": rows["time"].copy(), "pid": rows["pid"].astype(np.int64), "tid": rows["tid"].astype(np.int64)}


def _switches(data: bytearray) -> Switches | None:
    rows = _sorted(np.frombuffer(data, dtype=abi.TRACED_SWITCH.dtype))
    return Switches(**_who(rows), edge=rows["edge"].astype(np.int8)) if len(rows) else None


def _sites(data: bytearray) -> Sites | None:
    rows = _sorted(np.frombuffer(data, dtype=abi.TRACED_SITE.dtype))
    if not len(rows):
        return None
    return Sites(**_who(rows), ip=rows["ip"].copy(), sp=rows["sp"].copy(), bp=np.zeros(len(rows), dtype=np.uint64))


def _faults(data: bytearray) -> Faults | None:
    rows = _sorted(np.frombuffer(data, dtype=abi.TRACED_FAULT.dtype))
    if not len(rows):
        return None
    return Faults(**_who(rows), address=rows["address"].copy(), ip=rows["ip"].copy(), in_kernel=rows["in_kernel"] != 0)
