"""The kernel of a whole machine, recorded: a stepper like that of a program, see ``recording``. What is written, and
how, is the ``kernel_store``'s; here is when.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from pathlib import Path

from collector.clock import NS_PER_MS, NS_PER_S
from collector.engines.perf.engine import PerfEngine
from collector.engines.perf.opening import Opened
from collector.linux import proc
from collector.linux.background import Background
from collector.session.control import Action
from collector.session.heir import Ids
from collector.session.kernel_store import KernelStore
from collector.session.lifetime import Lifetime
from collector.session.options import Options
from collector.session.schedule import DrainSchedule, SampleSchedule

_SLACK_NS = 10 * NS_PER_MS  # records come to their rings a little late, see ``drainer``


class KernelRecording:
    """From opened events to a closed experiment."""

    def __init__(self, options: Options, directory: Path, opened: Opened, start_ns: int, recorder: Ids) -> None:
        """Starts the events. Raises ExperimentError, OSError."""
        self._ahead_ns = proc.clock_offset_ns()
        self._engine = PerfEngine(opened, "every CPU")
        cpus = sorted({ring.cpu for ring in opened.rings.rings})
        self._store = KernelStore(options, directory, cpus, start_ns, recorder)
        self._drained_ns = start_ns
        self._control = options.control(start_ns)
        self._drains = DrainSchedule(start_ns, at_once=True)
        self._samples = SampleSchedule(start_ns, options.sample_period_s * NS_PER_S)
        self._lifetime: Lifetime | None = None
        self._stopped = self._ended = False
        if not self._control.recording:
            self._store.mute(start_ns, muted=True)
        self._engine.start()
        self._store.find()

    def lasts_as_long_as(self, pid: int) -> None:
        """The recording ends with a child of ours. Raises OSError."""
        self._lifetime = Lifetime(pid)

    @property
    def status(self) -> int | None:
        """The wait status of the child, once it has ended."""
        return self._lifetime.status if self._lifetime is not None else None

    @property
    def has_failed(self) -> bool:
        """Whether it ended before its time, though nobody asked for that."""
        return self._store.has_failed

    def fds(self) -> list[int]:
        """What to poll for POLLIN."""
        return [*(self._lifetime.fds if self._lifetime is not None else ()), *self._engine.poll_fds()]

    def patience(self) -> tuple[Collection[int], int]:
        """See Stepper: there are no threads whose ends would wake us."""
        return (), 0

    def due_ns(self) -> int:
        """When a step is due (CLOCK_MONOTONIC) though no descriptor is ready."""
        return min(self._drains.due_ns(busy=False, polling=False), self._engine.pressed_ns, self._samples.due_ns,
                   self._control.due_ns())

    def ask(self, action: Action) -> None:
        """``action`` is for the next step, which is due at once."""
        self._control.ask(action)

    def stand_back_in(self, background: Background) -> None:
        """See Stepper. Its batches are small work."""

    def step(self, ready: Mapping[int, int]) -> bool:
        """Does what is due; whether the recording is over: the child has ended, the time is over, or we are told."""
        if self._lifetime is not None:
            for fd in [fd for fd in ready if fd in self._lifetime.fds]:
                self._lifetime.ended(fd)
        if self.status is not None:
            return True
        now_ns, due_ns = time.monotonic_ns(), self.due_ns()
        if now_ns >= due_ns or self._engine.wants_drain(ready, due_ns):
            self._work(now_ns)
        return self._stopped or self._store.stopped

    def end(self) -> None:
        """Closes the experiment; what happened up to now is in it."""
        self._ended = True
        try:
            end_ns = max(time.monotonic_ns(), self._engine.stop())
            self._take(end_ns)
        finally:
            self._engine.close()
        self._store.end(end_ns)

    def close(self) -> list[str]:
        """Ends the recording if that is still to be done, and archives; returns what the user should know."""
        if not self._ended:
            self.end()
        return self._store.close()

    def _work(self, now_ns: int) -> None:
        """Drains, and does what is due with that."""
        self._take(now_ns, _SLACK_NS)
        for action in self._control.actions(time.monotonic_ns(), self._drained_ns):
            self._act(action)
        if self._samples.take(time.monotonic_ns()):
            self._store.sample(self._drained_ns, "periodic")
        self._drains.drained(now_ns, time.monotonic_ns(), self._drained_ns)

    def _take(self, until_ns: int, slack_ns: int = 0) -> None:
        """Works on what is stamped up to a time, now, in as many batches as the engine makes of it."""
        idle_ns, has_more = proc.idle_ns(), True
        time.sleep(slack_ns / NS_PER_S)
        while has_more:
            batch = self._engine.drain(until_ns - self._ahead_ns)
            if self._ahead_ns:
                batch.shift(self._ahead_ns)
            self._store.feed(batch, idle_ns)
            self._store.sync()
            self._engine.release()
            has_more = batch.has_more
        self._drained_ns = until_ns

    def _act(self, action: Action) -> None:
        """Pause and resume leave the events on, since processes have to be followed all the time."""
        if action is Action.STOP:
            self._stopped = True
        elif action is Action.SAMPLE:
            self._store.sample(self._drained_ns, "signal")
        elif (action is Action.PAUSE) != self._store.muted:
            self._store.mute(self._drained_ns, muted=action is Action.PAUSE)
