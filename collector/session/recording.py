"""One target from its start to its closed experiment, as a stepper: whoever runs it waits, it does what is due.

    fds()     descriptors to poll
    due_ns()  when a step is due without any of them
    step()    drain, sample, sync; pause, resume and stop as told
    end()     the experiment is closed
    close()   archives; what the user should know

Nothing here belongs to the process that it runs in: there may be several, see ``runner``. What is written, and how, is
the ``store``'s; here is when.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from collector.clock import NS_PER_S
from collector.engines.base import Engine
from collector.engines.perf import opening as perf_opening
from collector.engines.perf.engine import PerfEngine
from collector.linux.background import Background
from collector.session.attach import Taken
from collector.session.control import Action
from collector.session.drainer import HUNG_UP, Drainer, NoDrainer
from collector.session.heir import KILLED, Heir
from collector.session.lifetime import Lifetime
from collector.session.options import Options
from collector.session.schedule import DrainSchedule, FlushSchedule, SampleSchedule
from collector.session.store import Store

if TYPE_CHECKING:
    from collector.engines.ptrace import opening

OpenedEvents: TypeAlias = "perf_opening.Opened | opening.Opened | None"

_LABEL_PERIODIC = "periodic"
_LABEL_SIGNAL = "signal"


class Recording:
    """One target from its start to its closed experiment."""

    def __init__(self, options: Options, directory: Path, pid: int, engine: Engine | None, start_ns: int,
                 pidfds: Sequence[int] = (), heir: Heir | None = None) -> None:
        """``pidfds``: of running processes, until the last of which has ended; none: process ``pid`` is our child.
        ``heir``: to be dismissed as soon as there is something on disk; or it is us."""
        self._heir = heir or Heir()
        self._store = Store(options, directory, pid, engine, start_ns, self._heir.of)
        self._pipeline = self._store.pipeline
        self._drainer: Drainer | NoDrainer = NoDrainer(start_ns)
        if engine is not None:
            self._drainer = Drainer(engine, self._pipeline, start_ns, self._heir.dismiss)
        self.engine_text = f"{engine.name} ({engine.reason})" if engine is not None else "none (-p off)"
        self._store.comment(f"engine {self.engine_text}")
        self._pipeline.output.muted = not options.interval_ns
        self._control = options.control(start_ns)
        if not self._control.recording:
            self._store.pause(start_ns)
        self._drains = DrainSchedule(start_ns, at_once=engine is not None)
        self._flushes = FlushSchedule(start_ns)
        self._samples = SampleSchedule(start_ns, options.sample_period_s * NS_PER_S)
        self._waits_for_descendants = options.wait_descendants
        self._stopped = self._ended = False
        self._window_end_ns = 0  # where it ended: the last drain takes nothing behind it; 0: whatever there is
        self._pid = pid
        self._lifetime = Lifetime(pid, pidfds)

    @property
    def status(self) -> int | None:
        """The target's wait status, once it has ended."""
        return self._lifetime.status

    @property
    def has_failed(self) -> bool:
        """Whether it ended before its time, though nobody asked for that."""
        return bool(self._drainer.failure) or self._store.has_failed

    def take_over(self, processes: Iterable[Taken]) -> None:
        """Begins with processes that ran before us, as they were when their recording began."""
        self._store.take_over(processes)

    def fds(self) -> list[int]:
        """What to poll for POLLIN."""
        return [*self._lifetime.fds, *self._drainer.wakers(self._work_due_ns())]

    def patience(self) -> tuple[Collection[int], int]:
        """See Stepper."""
        return (self._drainer.fds if self._drainer.nap_ns else ()), self._drainer.nap_ns

    def due_ns(self) -> int:
        """When a step is due (CLOCK_MONOTONIC) though no descriptor is ready."""
        return min(self._work_due_ns(), self._store.runtimes.due_ns)

    def _work_due_ns(self) -> int:
        drain_ns = self._drains.due_ns(busy=self._drainer.changes, polling=self._store.polls,
                                       accounts_ns=self._drainer.accounts_ns,
                                       may_wait=self._store.runtimes.looks_first)
        return min(drain_ns, self._drainer.pressed_ns, self._samples.due_ns, self._control.due_ns())

    def ask(self, action: Action) -> None:
        """``action`` is for the next step, which is due at once."""
        self._control.ask(action)

    def stand_back_in(self, background: Background) -> None:
        """See Stepper."""
        self._drainer.background = background

    def step(self, ready: Mapping[int, int]) -> bool:
        """Does what is due; whether the recording is over. ``ready``: what poll(2) told of our descriptors, by number.

        It is over when the target has ended (and its descendants, if asked to wait), when the time is, or where
        nothing more can be written.
        """
        if self._come_to_window():
            return True
        wants_samples = self._store.runtimes.look()
        due_ns = self._work_due_ns()
        ended = self._note_ends(ready)
        self._note_hang_ups(ready)
        if self._drainer.failure or (self.status is not None and not self._waits_for_descendants):
            return True  # the last drain takes all
        if ended or wants_samples or time.monotonic_ns() >= due_ns or self._drainer.wants_drain(ready, due_ns):
            self._work()
        if self._store.is_stopped:
            return True
        return self._stopped or (self.status is not None and not self._store.has_processes)

    def end(self) -> None:
        """The last drain; the experiment is closed, and is valid whatever happens."""
        self._ended = True
        self._lifetime.close()
        target_ended = self.status is not None
        self._drainer.finish(self._window_end_ns, target_ended=target_ended)
        failure = KILLED if self._heir.is_us else self._drainer.failure
        self._store.end(self._drainer.drained_ns, failure, target_ended=target_ended)

    def close(self) -> list[str]:
        """Ends the recording if that is still to be done, and archives; returns what the user should know."""
        if not self._ended:
            self.end()
        return self._store.close()

    def _come_to_window(self) -> bool:
        """Begins or ends what is recorded where the window does, once it is time; whether it has ended.

        However late we come, nothing behind its end is recorded: of whom has ended since then nothing is asked.
        """
        while self._drainer.tells_moments and self._control.edge_ns <= time.monotonic_ns() and not self._stopped:
            self._drainer.come_to(self._control.edge_ns)
            self._act_as_told()
            # A drain may have begun to count switches: then accounts have to tell the end, as everywhere else.
            if self._stopped and self._drainer.tells_moments:
                self._window_end_ns = self._drainer.drained_ns
        return self._stopped

    def _note_ends(self, ready: Mapping[int, int]) -> bool:
        """Whether a process has ended that we last as long as."""
        ended = [fd for fd in ready if fd in self._lifetime.fds]
        for fd in ended:
            self._store.read_last_counters()
            self._drainer.read_last(self._pid)
            self._lifetime.ended(fd)
        return bool(ended)

    def _note_hang_ups(self, ready: Mapping[int, int]) -> None:
        for fd in [fd for fd, events in ready.items() if events & HUNG_UP and fd in self._drainer.fds]:
            self._drainer.hung_up(fd)

    def _work(self) -> None:
        """Drains, and does what is due with that."""
        began_ns = time.monotonic_ns()
        self._drainer.drain()
        drained_ns = self._drainer.drained_ns
        if self._flushes.take(self._store.n_threads, drained_ns):
            self._pipeline.flush_waiting(drained_ns)
        self._act_as_told()
        now_ns = time.monotonic_ns()  # the last one comes with the end, also with that of a window which is over by now
        if now_ns < self._control.edge_ns and self._samples.take(now_ns) and self._store.has_processes:
            self._sample(_LABEL_PERIODIC)
        self._drains.drained(began_ns, time.monotonic_ns(), drained_ns, self._drainer.stood_back_ns)

    def _act_as_told(self) -> None:
        """Does what was to be done up to now: up to what has been told, where that can be any moment."""
        told_ns = self._drainer.drained_ns
        for action in self._control.actions(told_ns if self._drainer.tells_moments else time.monotonic_ns(), told_ns):
            self._act(action, told_ns)

    def _act(self, action: Action, now_ns: int) -> None:
        """Pause and resume leave the events on, since the address spaces have to be followed all the time."""
        if action is Action.STOP:
            self._stopped = True
        elif action is Action.SAMPLE:
            self._sample(_LABEL_SIGNAL)
        elif action is Action.PAUSE:
            self._store.pause(now_ns)
        else:
            self._store.resume(now_ns)

    def _sample(self, label: str) -> None:
        """An overview sample of every experiment."""
        now_ns = time.monotonic_ns()
        if self._drainer.tells_moments:
            now_ns = min(now_ns, self._control.edge_ns)  # whoever asked for it in a window that is over by now
        self._pipeline.sample(now_ns, self._drainer.drained_ns, label)


def engine_on(opened: OpenedEvents) -> Engine | None:
    """The engine on top of opened events."""
    if opened is None:
        return None
    if isinstance(opened, perf_opening.Opened):
        opened.listen()
        return PerfEngine(opened, opened.limits or "the kernel allows it")
    from collector.engines.ptrace.engine import SignalEngine

    return SignalEngine(opened)
