"""The experiments of a recording, and the pipeline that fills them: from their creation to the archives."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

from collector.clock import NS_PER_S
from collector.engines.base import Engine
from collector.engines.perf.engine import PerfEngine
from collector.experiment import names
from collector.experiment.recorder import Recorder
from collector.linux import perf
from collector.session import archiving, summary
from collector.session.attach import Taken
from collector.session.experiments import Experiments
from collector.session.follow import Follow
from collector.session.headers import Headers
from collector.session.heir import Ids
from collector.session.objects import Objects
from collector.session.options import Options
from collector.session.pipeline import Pipeline
from collector.session.runtimes import Runtimes
from collector.session.tally import Tally, of_unwinding
from collector.session.world import ThisMachine
from collector.unwind.table import Tables


class Store:
    """What is written of one target."""

    def __init__(self, options: Options, directory: Path, pid: int, engine: Engine | None, start_ns: int,
                 recorder: Ids) -> None:
        """Creates the founder's experiment in ``directory``; ``recorder`` is the process that recording began in.
        Raises ExperimentError."""
        headers = Headers(options, recorder)
        self._options = options
        self._directory = directory
        self._start_ns = start_ns
        self._recorder = Recorder.create(directory, headers.founder(pid, start_ns))
        self._experiments = Experiments(directory, Follow(options.follow), headers.descendant)
        self._objects = Objects(Tables())
        self._tally = Tally()
        self.runtimes = Runtimes(self._objects, self._tally, options, start_ns, pid)
        self.pipeline = Pipeline(options.interval_ns or 1, self._experiments,
                                 ThisMachine(self._objects, self.runtimes.frames), self._tally,
                                 n_cpus=perf.n_cpus_present(),
                                 records_all=engine is None or engine.name != "signal",
                                 strikes_all=isinstance(engine, PerfEngine) and engine.opened.kernel,
                                 events_end=isinstance(engine, PerfEngine), has_engine=engine is not None,
                                 aggregations=options.aggregations)
        self.pipeline.name_made_code(lambda: self._objects.roots, self.runtimes.python,
                                     (self.runtimes.java, self.runtimes.js))
        self._kernel = self.pipeline.name_kernel(names.archives_path(directory)) if options.kernel else None
        process = self.pipeline.model.new_process(pid, start_ns)
        self._founder = self._experiments.founder(process.image, self._recorder)
        self._summary = ""  # once it has ended

    def comment(self, text: str) -> None:
        """Notes something in the founder's log."""
        self._recorder.comment(text)

    def take_over(self, processes: Iterable[Taken]) -> None:
        """Begins with processes that ran before us, as they were when their recording began."""
        for found in processes:
            self._objects.remember_root(found.pid)
            self.pipeline.take_over(found.pid, found.lineage, found.threads, found.mappings, found.seen)
        self._recorder.sync()

    @property
    def n_threads(self) -> int:
        """Threads that live."""
        return sum(len(process.threads) for process in self.pipeline.model.processes.values())

    @property
    def has_processes(self) -> bool:
        """Whether a process lives, the founder or a descendant; also one whose events the kernel took."""
        return bool(self.pipeline.model.processes) or bool(self.pipeline.unseen.living)

    @property
    def polls(self) -> bool:
        """Whether there is something that no record tells, and that is to be read while it lives."""
        return bool(self.pipeline.unseen.living) or self.pipeline.maps_untold

    @property
    def is_stopped(self) -> bool:
        """Whether nothing more is written: the founder's experiment failed, or no open one is below its limit."""
        if not self._recorder.stopped:
            return False
        return self._recorder.failed or all(one.stopped for one in self._experiments.recorders.values())

    @property
    def has_failed(self) -> bool:
        """Whether the disk did not take all of it, or somebody took it away."""
        return self._recorder.failed or self._experiments.has_failed

    def read_last_counters(self) -> None:
        """Those of processes that have just ended, while they are zombies."""
        self.pipeline.overview.read(self._founder.image.pid, time.monotonic_ns())
        self.pipeline.look_at_unseen()

    def pause(self, now_ns: int) -> None:
        """Nothing is written from here on."""
        self.pipeline.mute(now_ns, muted=True)
        for recorded in self._experiments.open_ones():
            recorded.tell(Recorder.pause, now_ns)

    def resume(self, now_ns: int) -> None:
        """It is again."""
        self.pipeline.mute(now_ns, muted=not self._options.interval_ns)
        for recorded in self._experiments.open_ones():
            recorded.tell(Recorder.resume, now_ns)

    # -- the end

    def end(self, end_ns: int, failure: str, *, target_ended: bool) -> None:
        """Closes the experiments in the order that keeps them valid. ``failure``: why nothing more came, if so."""
        whose = "the founder had" if target_ended else "the recording"
        self.pipeline.finish(end_ns, f"still running when {whose} ended; recording ended here")
        warnings = self._warnings(failure)
        for line in warnings:
            self._recorder.warning(line)
        for line in [*self._tally.remarks(), *self.runtimes.remarks()]:
            self._recorder.comment(line)
        self._recorder.comment(f"the collector's main process used {time.process_time():.2f} s of CPU")
        self._recorder.close(self._founder.end_ns or end_ns)
        self._summary = self._summed_up(warnings, end_ns)

    def close(self) -> list[str]:
        """Archives, once all is ended; what the user should know."""
        return [*archiving.archive(self._options.archive, self._recorder, self._experiments.load_objects,
                                   self._objects), self._summary]

    def _warnings(self, failure: str) -> list[str]:
        """What is not as it should be; what ended the recording of somebody before its time comes first."""
        failures = [line for line in (failure, self._experiments.failures()) if line]
        unreadable = [f"{os.fsdecode(path)}: {why}" for path, why in self._objects.unreadable.items()]
        kernel = self._kernel.warnings() if self._kernel is not None else []
        return [*failures, *self.pipeline.unseen.warnings(self._start_ns), *self._tally.warnings(),
                *of_unwinding(self._objects.tables.counters), *unreadable, *kernel, *self.runtimes.unread()]

    def _summed_up(self, warnings: list[str], end_ns: int) -> str:
        name, recorder, pipeline = str(self._directory), self._recorder, self.pipeline
        if recorder.stopped:
            return summary.cut_short(name, str(recorder.stopped), self._tally.n_samples, recorder.n_dropped, warnings)
        return str(summary.Summary(
            name, (end_ns - self._start_ns) / NS_PER_S, pipeline.total_cpu_ns / NS_PER_S, pipeline.model.n_threads,
            self._experiments.n_made, self._tally.n_samples, warnings, ", ".join(self.runtimes.remarks())))
