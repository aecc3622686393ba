"""What happens while the target runs: drain, sample, sync; and how it ends.

Draining costs a fixed part each time, so it is done seldom: when a ring is filling up, else a little more than once a
second, or twice while processes come and go, whose arguments and files are to be had while they live. Whoever kills us
takes what came since then with him, which must stay below a second. Records younger than ``_SLACK_NS`` stay in their
rings until the next time, so that the rings can be merged by time.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

from collector import __version__
from collector.clock import NS_PER_MS, NS_PER_S
from collector.engines import perf_open, signal_open
from collector.engines.base import Engine
from collector.engines.perf_events import PerfEngine
from collector.errors import ExperimentError
from collector.events import Batch
from collector.experiment import names
from collector.experiment.recorder import Header, Recorder
from collector.linux import libc, proc, tasks
from collector.linux.crowd import Crowd
from collector.session.attach import Taken
from collector.session.control import Action, Control
from collector.session.counted import SwitchMode
from collector.session.experiments import Experiments, Recorded
from collector.session.follow import Follow
from collector.session.objects import Objects
from collector.session.options import Options
from collector.session.pipeline import Pipeline
from collector.session.tally import Tally
from collector.session.world import ThisMachine
from collector.unwind.table import Tables

OpenedEvents: TypeAlias = perf_open.Opened | signal_open.Opened | None

_SLACK_NS = 10 * NS_PER_MS
_DRAIN_PERIOD_NS, _BUSY_DRAIN_PERIOD_NS = 930 * NS_PER_MS, 500 * NS_PER_MS
_LOOK_PERIOD_NS = 100 * NS_PER_MS
_MOST_RUNNABLE = 2  # for each CPU
_QUEUED_NS = 5 * NS_PER_MS  # longer than two threads have to wait for each other
_STAYING = 100  # times what it took to leave a CPU, until we do so again
_EARLY_NS = 150 * NS_PER_MS  # by which an overview sample may come before its time, to share a drain
# Threads that sleep get a packet each time their ticks so far are written: with each drain where they are few, else
# about once a second.
_FEW_THREADS = 200
_FLUSH_PERIOD_NS = 900 * NS_PER_MS
_FOREVER_NS = 2**62
_LABEL_PERIODIC = "periodic"
_LABEL_SIGNAL = "signal"


class Recording:
    """One target from its start to its closed experiment."""

    def __init__(self, options: Options, directory: Path, pid: int, engine: Engine | None, control: Control,
                 start_ns: int, pidfds: Sequence[int] = ()) -> None:
        """``pidfds``: of running processes, until the last of which has ended; none: process ``pid`` is our child."""
        self._pidfds = tuple(pidfds)
        self._options = options
        self._directory = directory
        self._pid = pid
        self._start_ns = start_ns
        self._tally = Tally()
        self._engine = engine
        # The kernel stamps its records with its own clock, which in a time namespace is not ours.
        self._ahead_ns = proc.clock_offset_ns() if isinstance(engine, PerfEngine) else 0
        self._machine = proc.machine()
        arguments = b" ".join(os.fsencode(argument) for argument in options.arguments)
        header = self._header(pid, os.getpid(), start_ns, tasks.word_bits(pid), arguments, options.comments)
        recorder = Recorder.create(directory, header)
        self._experiments = Experiments(directory, Follow(options.follow), self._header_of)
        self._objects = Objects(Tables())
        self._pipeline = Pipeline(options.interval_ns or 1, self._experiments, ThisMachine(self._objects), self._tally,
                                  records_all=engine is None or engine.name != "signal",
                                  events_end=isinstance(engine, PerfEngine))
        process = self._pipeline.model.new_process(pid, start_ns)
        self._founder = self._experiments.founder(process.image, recorder)
        self._mode = SwitchMode(self._engine, self._pipeline) if isinstance(self._engine, PerfEngine) else None
        self._recorder = recorder
        recorder.comment(f"engine {self.engine_text}")
        period_ns = options.sample_period_s * NS_PER_S
        self.status: int | None = None  # the target's wait status, once it has ended
        self._pipeline.output.muted = not options.interval_ns
        self._control = control
        self._stopped = False
        self._crowd = Crowd()
        self._cpus = os.sched_getaffinity(0)
        self._stays_ns = start_ns  # on whatever CPU it is woken, until then
        self._changes = False  # whether processes came and went in the last batch
        self._engine_failure = ""
        if not control.recording:
            self._act(Action.PAUSE, start_ns)
        self._drained_ns = self._flushed_ns = self._idle_ns = start_ns
        self._sample_period_ns = period_ns or _FOREVER_NS
        self._next_sample_ns = start_ns + self._sample_period_ns

    @property
    def engine_text(self) -> str:
        """Engine and reason in one line."""
        return f"{self._engine.name} ({self._engine.reason})" if self._engine else "none (-p off)"

    def fill_founder(self, path: Path) -> None:
        """Makes the directory around the ranks of an MPI job an experiment that opens; it has no data of its own."""
        recorder = Recorder.create(path, self._header(self._pid, os.getpid(), self._start_ns, 64, b"mpi"))
        recorder.comment("founder of an MPI job; its ranks are in M_r*.er")
        recorder.close(self._start_ns)

    def take_over(self, processes: Iterable[Taken]) -> None:
        """Begins with processes that ran before us, as they were when their recording began."""
        for found in processes:
            self._objects.remember_root(found.pid)
            self._pipeline.take_over(found.pid, found.lineage, found.threads, found.mappings, found.seen)
        self._recorder.sync()

    def run(self) -> None:
        """Records until the target has ended (and its descendants, if asked to wait), or the time is over."""
        poller = select.poll()
        alive = set(self._pidfds or (os.pidfd_open(self._pid),))
        for pidfd in alive:
            poller.register(pidfd, select.POLLIN)
        for fd in self._engine.poll_fds() if self._engine else ():
            poller.register(fd, select.POLLIN)
        poller.register(self._control.fd, select.POLLIN)
        while not self._stopped and (self.status is None or self._waits_for_descendants()):
            due_ns = min(self._next_drain_ns(), self._control.due_ns() or _FOREVER_NS)
            ready = poller.poll(max(0, due_ns - time.monotonic_ns()) / NS_PER_MS)
            urgent = not ready
            for fd, event in ready:
                urgent |= fd in alive or fd == self._control.fd
                if fd in alive:
                    poller.unregister(fd)
                    os.close(fd)
                    alive.remove(fd)
                    self._pipeline.overview.read(self._founder)  # the last one, of a zombie
                    self._pipeline.look_at_unseen()
                    self._look()
                    if not alive:
                        self.status = 0 if self._pidfds else os.waitpid(self._pid, 0)[1]
                elif event & (select.POLLHUP | select.POLLERR | select.POLLNVAL):
                    poller.unregister(fd)
                    self._note_engine_failure()
            if self._engine_failure or (self.status is not None and not self._options.wait_descendants):
                break  # the last drain takes all
            woken = [fd for fd, _ in ready]
            if not urgent and self._engine is not None and not self._engine.wants_drain(woken, due_ns):
                continue
            self._drain(time.monotonic_ns() - _SLACK_NS)
            self._flush_waiting_if_due()
            for action in self._control.actions(time.monotonic_ns()):
                self._act(action, self._drained_ns)
            self._sample_if_due()
            self._idle_ns = time.monotonic_ns()
            self._crowd.look()
            self._leave_cpu()
        for fd in alive:
            os.close(fd)
        self._control.close()

    def _leave_cpu(self) -> None:
        """Where all CPUs are busy, we would wake up where we slept, and one thread would pay for all our work.

        Elsewhere there may be many that wait for their turn, and we behind them: if so, we come back, and do not leave
        soon again. Where there are so many that all have to wait, none pays more than the others.
        """
        start_ns = time.monotonic_ns()
        n_cpus = len(self._cpus)
        if n_cpus < 2 or start_ns < self._stays_ns or not n_cpus < self._crowd.n_runnable <= _MOST_RUNNABLE * n_cpus:
            return
        here = libc.current_cpu()
        with suppress(OSError):
            os.sched_setaffinity(0, self._cpus - {here})
            if time.monotonic_ns() - start_ns > _QUEUED_NS:
                os.sched_setaffinity(0, {here})
        with suppress(OSError):
            os.sched_setaffinity(0, self._cpus)
        end_ns = time.monotonic_ns()
        self._stays_ns = end_ns + _STAYING * (end_ns - start_ns)

    def _note_engine_failure(self) -> None:
        failure = self._engine.failure() if self._engine else ""
        if failure:
            self._engine_failure = f"{failure}: nothing is recorded from there on"

    def _next_drain_ns(self) -> int:
        """The first drain is due at once, for what came while we were starting."""
        if self._engine and self._drained_ns == self._start_ns:
            return 0
        due_ns = self._idle_ns + (_BUSY_DRAIN_PERIOD_NS if self._changes else _DRAIN_PERIOD_NS)
        if self._pipeline.unseen.living or self._pipeline.maps_untold:  # what nobody tells is to be read while it lives
            due_ns = self._idle_ns + _LOOK_PERIOD_NS
        if self._mode is not None and self._mode.counting:
            due_ns = self._mode.due_ns
        return min(due_ns, self._next_sample_ns)

    def _waits_for_descendants(self) -> bool:
        return self._options.wait_descendants and bool(self._pipeline.model.processes)

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

    def close(self) -> list[str]:
        """Ends the recording in the order that keeps the experiment valid; returns what the user should know."""
        end_ns = time.monotonic_ns()
        if self._engine:
            end_ns = max(self._engine.stop(), end_ns)
            self._note_engine_failure()
            self._drain(_FOREVER_NS, 0 if self._engine_failure else end_ns)
            self._engine.close()
            end_ns = self._drained_ns
        founder = "the recording" if self.status is None else "the founder had"
        if self._mode is not None:
            self._mode.end()
        self._pipeline.finish(end_ns, f"still running when {founder} ended; recording ended here")
        unseen = self._pipeline.unseen.warnings(self._start_ns)
        warnings = self._failures() + unseen + self._tally.warnings() + self._unreadable()
        for line in warnings:
            self._recorder.warning(line)
        for line in self._tally.remarks():
            self._recorder.comment(line)
        self._recorder.close(self._founder.end_ns or end_ns)
        self._crowd.leave()
        return [*self._archive(), *self._summary(warnings, end_ns)]

    def _drain(self, until_ns: int, settled_ns: int = 0) -> None:
        if self._engine is None:
            return
        self._take_what_was_recorded_before(until_ns)
        batch = self._take(until_ns, settled_ns)
        self._changes = bool(batch.changes)
        if self._mode is not None and until_ns != _FOREVER_NS:
            self._mode.choose(batch)
        self._pipeline.sync()

    def _look(self) -> None:
        """Looks at the accounts of threads whose switches are counted, between batches."""
        if self._mode is not None:
            self._take_what_was_recorded_before(time.monotonic_ns())
            self._mode.look()

    def _take_what_was_recorded_before(self, until_ns: int) -> None:
        """Works on what was recorded before switches were counted, if the time up to which we want to come is later."""
        if self._mode is not None and self._mode.counting and self._drained_ns < self._mode.accounts_ns <= until_ns:
            self._take(self._mode.accounts_ns)

    def _take(self, until_ns: int, settled_ns: int = 0) -> Batch:
        """Works on what is stamped up to ``until_ns``; the batch has no more columns then."""
        assert self._engine is not None
        # To stop hundreds of threads' events takes its time. What they tell of that is incomplete: if we end before the
        # target does, that is left out.
        last_ns = settled_ns if settled_ns and self.status is None else until_ns
        batch = self._engine.drain(last_ns - self._ahead_ns, self._pipeline.time.asks())
        if self._ahead_ns:
            batch.shift(self._ahead_ns)
        self._drained_ns = batch.until_ns = settled_ns or batch.until_ns
        self._pipeline.feed(batch)
        self._engine.release()
        return batch

    def _flush_waiting_if_due(self) -> None:
        """What threads have slept so far comes to disk, too."""
        n_threads = sum(len(process.threads) for process in self._pipeline.model.processes.values())
        if n_threads <= _FEW_THREADS or self._drained_ns - self._flushed_ns >= _FLUSH_PERIOD_NS:
            self._pipeline.flush_waiting(self._drained_ns)
            self._flushed_ns = self._drained_ns

    def _sample_if_due(self) -> None:
        early_ns = time.monotonic_ns() + _EARLY_NS
        if early_ns >= self._next_sample_ns:
            self._sample(_LABEL_PERIODIC)
            behind = (early_ns - self._next_sample_ns) // self._sample_period_ns
            self._next_sample_ns += (behind + 1) * self._sample_period_ns

    def _sample(self, label: str) -> None:
        """An overview sample of every experiment."""
        self._pipeline.sample(time.monotonic_ns(), self._drained_ns, label)

    def _header_of(self, recorded: Recorded) -> Header:
        """The header of a descendant's experiment."""
        image = recorded.image
        arguments = recorded.arguments or image.program
        return self._header(image.pid, recorded.parent_pid, recorded.start_ns, image.bits, arguments)

    def _header(self, pid: int, parent_pid: int, start_ns: int, bits: int, arguments: bytes,
                notes: tuple[str, ...] = ()) -> Header:
        machine = self._machine
        start_unix = int(time.time() - (time.monotonic_ns() - start_ns) / NS_PER_S)
        return Header(hostname=machine.hostname, os=machine.system, arch=machine.architecture,
                      page_size=machine.page_size, n_pages=machine.n_pages, cpus=machine.cpu_mhz, pid=pid,
                      ppid=parent_pid, pgrp=os.getpgrp(), sid=os.getsid(0), cwd=proc.working_directory(),
                      arguments=arguments, wsize=bits, interval_ns=self._options.interval_ns,
                      sample_period_s=self._options.sample_period_s, start_ns=start_ns, start_unix=start_unix,
                      collector=f"collect {__version__}", follow=self._options.follow != "off", notes=list(notes),
                      size_limit_mb=self._options.size_limit_mb)

    def _failures(self) -> list[str]:
        """What ended the recording of somebody before its time."""
        return [line for line in (self._engine_failure, self._experiments.failures()) if line]

    def _unreadable(self) -> list[str]:
        return [f"{os.fsdecode(path)}: {why}" for path, why in self._objects.unreadable.items()]

    def _archive(self) -> list[str]:
        """What could not be copied; the recording is whole all the same."""
        if self._options.archive == "off" or self._recorder.stopped:
            return []
        try:
            return self._archived(self._options.archive)
        except ExperimentError as err:
            return [str(err)]

    def _archived(self, choice: str) -> list[str]:
        from collector.experiment import archive

        objects = self._objects
        doubles = [f"{names.shown(os.fsdecode(name))}: several files had this name; the first one is archived"
                   for name in sorted(objects.doubles)]
        if choice in archive.KNOWN_CHOICES:
            unix_ns = self._recorder.header.start_unix * NS_PER_S - self._start_ns
            known = {name: time_ns + unix_ns for name, time_ns in self._experiments.load_objects.items()}
            archives = names.archives_path(self._directory)
            return doubles + archive.archive_known(archives, known, choice, objects.root, objects.sources()).problems
        from collector.experiment import reader

        experiment = reader.open_experiment(self._directory)
        return doubles + archive.archive(experiment, choice, root=objects.root, opened=objects.sources()).problems

    def _summary(self, warnings: list[str], end_ns: int) -> list[str]:
        if self._recorder.stopped:
            dropped = f"{self._recorder.n_dropped} packets were dropped"
            return ["; ".join([f"{self._directory}: {self._recorder.stopped}", dropped, *warnings])]
        seconds = (end_ns - self._start_ns) / NS_PER_S
        others = f", {self._experiments.n_made} descendants" if self._experiments.n_made else ""
        state = "nothing lost" if not warnings else "; ".join(warnings)
        return [f"{self._directory}: {seconds:.2f} s, {self._pipeline.total_cpu_ns / NS_PER_S:.2f} s CPU, "
                f"{self._pipeline.model.n_threads} threads{others}, {self._tally.n_samples} samples, {state}"]


def engine_on(opened: OpenedEvents) -> Engine | None:
    """The engine on top of opened events."""
    if isinstance(opened, signal_open.Opened):
        from collector.engines.signals import SignalEngine

        return SignalEngine(opened)
    return PerfEngine(opened, opened.limits or "the kernel allows it") if opened else None
