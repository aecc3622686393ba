"""One target from its start to its closed experiment, as a stepper: whoever runs it waits, it does what is due.

    fds()     descriptors to poll
    due_ns()  when a step is due without any of them
    step()    drain, sample, sync; pause, resume and stop as told
    end()     the experiment is closed
    close()   archives; what the user should know

Nothing here belongs to the process that it runs in: there may be several, see ``runner``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from collector.clock import NS_PER_S
from collector.engines import perf_open, signal_open
from collector.engines.base import Engine
from collector.engines.perf_events import PerfEngine
from collector.experiment.recorder import Recorder
from collector.session import archiving, summary
from collector.session.attach import Taken
from collector.session.control import Action
from collector.session.drainer import HUNG_UP, Drainer, NoDrainer
from collector.session.experiments import Experiments
from collector.session.follow import Follow
from collector.session.headers import Headers
from collector.session.lifetime import Lifetime
from collector.session.objects import Objects
from collector.session.options import Options
from collector.session.pipeline import Pipeline
from collector.session.schedule import NEVER_NS, DrainSchedule, FlushSchedule, SampleSchedule
from collector.session.tally import Tally
from collector.session.world import ThisMachine
from collector.unwind.table import Tables

OpenedEvents: TypeAlias = perf_open.Opened | signal_open.Opened | None

_LABEL_PERIODIC = "periodic"
_LABEL_SIGNAL = "signal"


class Recording:
    """One target from its start to its closed experiment."""

    def __init__(self, options: Options, directory: Path, pid: int, engine: Engine | None, start_ns: int,
                 pidfds: Sequence[int] = ()) -> None:
        """``pidfds``: of running processes, until the last of which has ended; none: process ``pid`` is our child."""
        headers = Headers(options)
        self._options = options
        self._directory = directory
        self._start_ns = start_ns
        self._tally = Tally()
        self._recorder = Recorder.create(directory, headers.founder(pid, start_ns))
        self._experiments = Experiments(directory, Follow(options.follow), headers.descendant)
        self._objects = Objects(Tables())
        self._pipeline = Pipeline(options.interval_ns or 1, self._experiments, ThisMachine(self._objects), self._tally,
                                  records_all=engine is None or engine.name != "signal",
                                  events_end=isinstance(engine, PerfEngine))
        process = self._pipeline.model.new_process(pid, start_ns)
        self._founder = self._experiments.founder(process.image, self._recorder)
        self._drainer: Drainer | NoDrainer = (NoDrainer(start_ns) if engine is None else
                                              Drainer(engine, self._pipeline, start_ns))
        self.engine_text = f"{engine.name} ({engine.reason})" if engine is not None else "none (-p off)"
        self._recorder.comment(f"engine {self.engine_text}")
        self._pipeline.output.muted = not options.interval_ns
        self._stopped = False
        self._summary = ""  # once it has ended
        self._control = options.control(start_ns)
        if not self._control.recording:
            self._act(Action.PAUSE, start_ns)
        self._drains = DrainSchedule(start_ns, at_once=engine is not None)
        self._flushes = FlushSchedule(start_ns)
        self._samples = SampleSchedule(start_ns, options.sample_period_s * NS_PER_S)
        self._lifetime = Lifetime(pid, pidfds)

    @property
    def status(self) -> int | None:
        """The target's wait status, once it has ended."""
        return self._lifetime.status

    def take_over(self, processes: Iterable[Taken]) -> None:
        """Begins with processes that ran before us, as they were when their recording began."""
        for found in processes:
            self._objects.remember_root(found.pid)
            self._pipeline.take_over(found.pid, found.lineage, found.threads, found.mappings, found.seen)
        self._recorder.sync()

    # -- while the target runs

    def fds(self) -> list[int]:
        """What to poll for POLLIN."""
        return [*self._lifetime.fds, *self._drainer.fds]

    def due_ns(self) -> int:
        """When a step is due (CLOCK_MONOTONIC) though no descriptor is ready."""
        pipeline, drainer = self._pipeline, self._drainer
        polling = bool(pipeline.unseen.living) or pipeline.maps_untold
        drain_ns = self._drains.due_ns(busy=drainer.changes, polling=polling, accounts_ns=drainer.accounts_ns)
        action_ns = self._control.due_ns()
        return min(drain_ns, self._samples.due_ns, NEVER_NS if action_ns is None else action_ns)

    def ask(self, action: Action) -> None:
        """``action`` is for the next step, which is due at once."""
        self._control.ask(action)

    def step(self, ready: Mapping[int, int]) -> bool:
        """Does what is due; whether the recording is over. ``ready``: what poll(2) told of our descriptors, by number.

        It is over when the target has ended (and its descendants, if asked to wait), or the time is.
        """
        due_ns = self.due_ns()
        ended = self._note_ends(ready)
        self._note_hang_ups(ready)
        if self._drainer.failure or (self.status is not None and not self._options.wait_descendants):
            return True  # the last drain takes all
        if ended or time.monotonic_ns() >= due_ns or self._drainer.wants_drain(ready, due_ns):
            self._work()
        return self._stopped or (self.status is not None and not self._pipeline.model.processes)

    def _note_ends(self, ready: Mapping[int, int]) -> bool:
        """Whether a process has ended that we last as long as."""
        ended = [fd for fd in ready if fd in self._lifetime.fds]
        for fd in ended:
            self._pipeline.overview.read(self._founder)  # the last one, of a zombie
            self._pipeline.look_at_unseen()
            self._drainer.read_accounts()
            self._lifetime.ended(fd)
        return bool(ended)

    def _note_hang_ups(self, ready: Mapping[int, int]) -> None:
        for fd in [fd for fd, events in ready.items() if events & HUNG_UP and fd in self._drainer.fds]:
            self._drainer.hung_up(fd)

    def _work(self) -> None:
        """Drains, and does what is due with that."""
        self._drainer.drain()
        drained_ns = self._drainer.drained_ns
        if self._flushes.take(self._n_threads(), drained_ns):
            self._pipeline.flush_waiting(drained_ns)
        for action in self._control.actions(time.monotonic_ns()):
            self._act(action, drained_ns)
        if self._samples.take(time.monotonic_ns()):
            self._sample(_LABEL_PERIODIC)
        self._drains.drained(time.monotonic_ns())

    def _n_threads(self) -> int:
        return sum(len(process.threads) for process in self._pipeline.model.processes.values())

    def _act(self, action: Action, now_ns: int) -> None:
        """Pause and resume leave the events on, since the address spaces have to be followed all the time."""
        if action is Action.STOP:
            self._stopped = True
        elif action is Action.SAMPLE:
            self._sample(_LABEL_SIGNAL)
        else:
            self._pipeline.flush_waiting(now_ns)
            self._pipeline.output.muted = action is Action.PAUSE or not self._options.interval_ns
            for recorded in self._experiments.open_ones():
                recorded.tell(Recorder.pause if action is Action.PAUSE else Recorder.resume, now_ns)

    def _sample(self, label: str) -> None:
        """An overview sample of every experiment."""
        self._pipeline.sample(time.monotonic_ns(), self._drainer.drained_ns, label)

    # -- the end

    def end(self) -> None:
        """Ends the recording in the order that keeps the experiment valid."""
        self._lifetime.close()
        self._drainer.finish(target_ended=self.status is not None)
        end_ns = self._drainer.drained_ns
        whose = "the recording" if self.status is None else "the founder had"
        self._pipeline.finish(end_ns, f"still running when {whose} ended; recording ended here")
        warnings = self._warnings()
        for line in warnings:
            self._recorder.warning(line)
        for line in self._tally.remarks():
            self._recorder.comment(line)
        self._recorder.close(self._founder.end_ns or end_ns)
        self._summary = self._summed_up(warnings, end_ns)

    def close(self) -> list[str]:
        """Ends the recording if that is still to be done, and archives; returns what the user should know."""
        if not self._summary:
            self.end()
        stopped, mapped_ns = self._recorder.stopped, self._experiments.load_objects
        choice = "off" if stopped else self._options.archive
        return [*archiving.archive(self._directory, choice, self._recorder.header, mapped_ns, self._objects),
                self._summary]

    def _warnings(self) -> list[str]:
        """What is not as it should be; what ended the recording of somebody before its time comes first."""
        failures = [line for line in (self._drainer.failure, self._experiments.failures()) if line]
        unreadable = [f"{os.fsdecode(path)}: {why}" for path, why in self._objects.unreadable.items()]
        return failures + self._pipeline.unseen.warnings(self._start_ns) + self._tally.warnings() + unreadable

    def _summed_up(self, warnings: list[str], end_ns: int) -> str:
        name, recorder, pipeline = str(self._directory), self._recorder, self._pipeline
        if recorder.stopped:
            return summary.cut_short(name, str(recorder.stopped), recorder.n_dropped, warnings)
        return str(summary.Summary(
            name, (end_ns - self._start_ns) / NS_PER_S, pipeline.total_cpu_ns / NS_PER_S, pipeline.model.n_threads,
            self._experiments.n_made, self._tally.n_samples, warnings))


def engine_on(opened: OpenedEvents) -> Engine | None:
    """The engine on top of opened events."""
    if isinstance(opened, signal_open.Opened):
        from collector.engines.signals import SignalEngine

        return SignalEngine(opened)
    return PerfEngine(opened, opened.limits or "the kernel allows it") if opened else None
