"""What is written of the kernel of a whole machine: its experiment, and those of the programs that are followed.

    batch -> changes          machine          who there is, and what he has mapped
          -> clock samples    CpuClock         the time of CPUs that each stands for
                              machine          in whose experiment it is told: the kernel's, or that of a program
                              unwinding        the user's part of stacks, of programs that have an experiment
                              KernelObjects    names of the kernel's functions

A sample is one packet, in the state in which it met its CPU: user, system or trap CPU; and sleep where the CPU was
idle, which is not CPU time. So the total of all experiments is the CPUs times the seconds.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from collector.arrays import distinct, indices
from collector.clock import NS_PER_MS, NS_PER_S
from collector.engines.perf.kernel_code import KernelCode
from collector.events import Array, Batch, Change, ClockSamples, Mode, RecordsLost, Throttled
from collector.experiment import names
from collector.experiment.recorder import Recorder, Usage
from collector.linux import proc
from collector.session import archiving, summary
from collector.session.experiments import Experiments, Recorded
from collector.session.follow import Follow
from collector.session.headers import KERNEL_PID, Headers
from collector.session.heir import Ids
from collector.session.kernel_objects import KernelObjects
from collector.session.machine import KERNEL_IMAGE, Machine, Met
from collector.session.objects import Objects
from collector.session.options import Options
from collector.session.placing import FAILED_MARK, Unwound, frames_of, interned
from collector.session.tally import Tally, of_unwinding
from collector.session.world import ThisMachine
from collector.timing.cpu_clock import CpuClock
from collector.timing.states import Microstate
from collector.timing.ticks import N_STATES
from collector.unwind.batch import Stop
from collector.unwind.table import Tables
from collector.wording import many

_STATE_OF_MODE = np.zeros(3, dtype=np.int32)
_STATE_OF_MODE[[Mode.USER, Mode.SYSTEM_CALL, Mode.TRAP]] = Microstate.USER, Microstate.SYSTEM, Microstate.TRAP
_IDLE = rb"do_idle|cpu_startup_entry"
# Of programs without an experiment of their own: in place of all their functions, in a page that nothing is mapped in.
_PAGE = 0x1000
_USER_MODE, _USER_PAGE = b"[user mode]", 0x1000
_IDLE_CPU, _IDLE_PAGE = b"[idle]", 0x2000  # and in place of what no sample tells
_NAMED = 3  # files that a line names, of all that the machine's programs have mapped
_GOES_ON = "still running when the recording ended; recording ended here"


class KernelStore:
    """The experiment in ``directory``, of ``cpus``; nothing is written while it is ``muted``."""

    def __init__(self, options: Options, directory: Path, cpus: Sequence[int], start_ns: int, recorder: Ids) -> None:
        """Raises ExperimentError."""
        headers = Headers(options, recorder)
        self._options = options
        self._directory = directory
        self._start_ns = start_ns
        self._recorder = Recorder.create(directory, headers.kernel(start_ns))
        for page, name in ((_USER_PAGE, _USER_MODE), (_IDLE_PAGE, _IDLE_CPU)):
            self._recorder.function_mapped(start_ns, page, _PAGE, name)
        self._recorder.comment(f"engine perf, every CPU each {options.interval_ns / NS_PER_MS} ms, idle or not")
        self._experiments = Experiments(directory, Follow(options.follow), headers.descendant)
        self._objects = Objects(Tables())
        self._world = ThisMachine(self._objects, partial(frames_of, tables=self._objects.tables))
        self._machine = Machine(directory, self._experiments, self._world, start_ns)
        self._founder = self._experiments.founder(self._machine.kernel, self._recorder)
        self._names = KernelObjects(names.archives_path(directory), self._experiments)
        self._idle = _Idle()
        self._tally = Tally()
        self._n_cpus = len(cpus)
        self._clock = CpuClock(options.interval_ns, cpus, start_ns, proc.idle_ns())
        self._latest: dict[int, tuple[Recorded, int, int, int]] = {}  # by CPU: whom it met last; tid, uid, state
        self._ticks: Array = np.zeros(N_STATES, dtype=np.int64)  # of all experiments
        self._idle_ns: dict[int, int] = {}
        self.muted = False

    @property
    def stopped(self) -> bool:
        """Whether nothing can be written any more."""
        return self._recorder.stopped is not None

    @property
    def has_failed(self) -> bool:
        """Whether the disk did not take all of it, or somebody took it away."""
        return self._recorder.failed or self._experiments.has_failed

    def find(self) -> None:
        """Begins with all processes that there are, once events tell of others."""
        self._machine.find()
        self.sync()

    def sync(self) -> None:
        """What was said comes to disk."""
        for recorded in self._experiments.open_ones():
            recorded.tell(Recorder.sync)
        self._machine.synced()

    def mute(self, time_ns: int, *, muted: bool) -> None:
        """From here on nothing is written, or it is again; a batch has just ended."""
        self._settle(time_ns)
        self.muted = muted
        self._clock.begin(time_ns, self._idle_ns)
        for recorded in self._experiments.open_ones():
            recorded.tell(Recorder.pause if muted else Recorder.resume, time_ns)

    def sample(self, time_ns: int, label: str) -> None:
        """An overview sample of every experiment."""
        for recorded in self._experiments.open_ones():
            recorded.tell(Recorder.sample, self._usage(recorded, time_ns), time_ns, label)

    # -- batches

    def feed(self, batch: Batch, idle_ns: dict[int, int]) -> None:
        """Takes one batch; afterwards its arrays are not needed any more. ``idle_ns``: the kernel's accounts of idle
        CPUs as of its end."""
        self._idle_ns = idle_ns
        if not self.muted and not batch.has_more:
            self._clock.account(idle_ns)
        self._machine.apply(batch.changes)
        losses = self._count_losses(batch.changes)
        if batch.maps_untold:
            self._machine.ask_for_mappings()
        if batch.clock is not None and not self.muted:
            self._tell(batch.clock, losses)
        self._close_ended(batch.until_ns)

    def _count_losses(self, changes: tuple[Change, ...]) -> list[RecordsLost]:
        """Counts what did not come; losses of clock samples."""
        losses = [change for change in changes if isinstance(change, RecordsLost)]
        for change in losses:
            self._tally.lost(change.source, change.n_records)
        self._tally.n_throttled += sum(isinstance(change, Throttled) for change in changes)
        return [change for change in losses if change.source == "clock"]

    def _tell(self, samples: ClockSamples, losses: list[RecordsLost]) -> None:
        """Writes samples (n,)."""
        idle, state = self._idle.states(samples)
        met = self._machine.meet(samples, idle)
        ticks, idle_ticks = self._clock.ticks(samples.cpu, samples.time_ns, state == Microstate.SLEEP, losses)
        self._idle_before(samples.cpu, samples.time_ns, idle_ticks)
        frames = self._unwound(samples, met)
        uid = interned(frames, self._experiments.recorders).uid
        self._names.met(frames)
        self._tally.n_samples += len(ticks)
        for number in distinct(met.image).tolist():
            recorded, rows = self._experiments.by_image[number], indices(met.image == number)
            self._write(recorded, met.tid[rows], samples.cpu[rows], samples.time_ns[rows], uid[rows], state[rows],
                        ticks[rows])
        _, last = np.unique(samples.cpu[::-1], return_index=True)
        for row in (len(ticks) - 1 - last).tolist():
            recorded = self._experiments.by_image[int(met.image[row])]
            self._latest[int(samples.cpu[row])] = recorded, int(met.tid[row]), int(uid[row]), int(state[row])

    def _idle_before(self, cpu: Array, time_ns: Array, ticks: Array) -> None:
        """Ticks (n,) of CPUs (n,) that were idle before times, as the kernel's account of them tells and no sample."""
        rows = indices(ticks)
        if not len(rows):
            return
        tid = self._machine.idle_threads(cpu[rows], time_ns[rows])
        pc = _IDLE_PAGE + _PAGE // 2
        uid = np.repeat(self._recorder.frames.intern_one(pc), len(rows))
        self._write(self._founder, tid, cpu[rows], time_ns[rows], uid, np.full(len(rows), Microstate.SLEEP),
                    ticks[rows])

    def _unwound(self, samples: ClockSamples, met: Met) -> Unwound:
        """The stacks of samples (n,): of those in the kernel's experiment the kernel's part alone."""
        n = len(samples.tid)
        pcs, length = np.zeros((n, 1), dtype=np.uint64), np.zeros(n, dtype=np.int64)
        stop = np.full(n, Stop.ROOT, dtype=np.int8)
        theirs = indices(met.image != KERNEL_IMAGE)
        if len(theirs):
            found, length[theirs], stop[theirs] = self._world.frames(samples[theirs], met.epoch[theirs], met.epochs)
            pcs = np.zeros((n, max(found.shape[1], 1)), dtype=np.uint64)
            pcs[theirs, :found.shape[1]] = found
            self._tally.stacks(stop[theirs])
        in_user = (met.image == KERNEL_IMAGE) & (samples.mode == Mode.USER)
        pcs[in_user, 0], length[in_user] = _USER_PAGE + _PAGE // 2, 1
        assert samples.kernel is not None  # the events were opened with it
        nothing = (length == 0) & (samples.kernel[:, 0] == 0)
        pcs[nothing, 0], length[nothing] = FAILED_MARK, 1
        return Unwound(np.zeros(n, dtype=np.int64), met.image, met.epoch, met.epochs, pcs, length, stop,
                       samples.kernel)

    def _write(self, recorded: Recorded, tid: Array, cpu: Array, time_ns: Array, uid: Array, state: Array,
               ticks: Array) -> None:
        rows = indices(ticks > 0)
        if recorded.recorder is None or not len(rows):
            return
        recorded.recorder.clock(tid[rows], cpu[rows], time_ns[rows], uid[rows], state[rows], ticks[rows])
        counts = np.bincount(state[rows], ticks[rows], N_STATES).astype(np.int64)
        recorded.state_ticks += counts
        self._ticks += counts

    def _settle(self, time_ns: int) -> None:
        """The time of each CPU behind its last sample is of what that met, or idle."""
        if self.muted:
            return
        for cpu, (ticks, idle_ticks) in self._clock.end(time_ns).items():
            self._idle_before(*(np.array([value]) for value in (cpu, time_ns, idle_ticks)))
            if ticks and cpu in self._latest:
                recorded, tid, uid, state = self._latest[cpu]
                if recorded.recorder is None:  # it is over: the kernel took that process away
                    recorded, uid = self._founder, int(self._recorder.frames.intern_one(int(FAILED_MARK))[0])
                self._write(recorded, *(np.array([value]) for value in (tid, cpu, time_ns, uid, state, ticks)))
        self._latest.clear()

    # -- the end

    def end(self, end_ns: int) -> None:
        """Closes the experiments; what happened up to then is in them."""
        self._settle(end_ns)
        for recorded in self._experiments.open_ones():
            if recorded is not self._founder:
                recorded.tell(Recorder.comment, _GOES_ON)
                self._experiments.end(recorded, end_ns)
        self._close_ended(end_ns)
        self._founder.end_ns = end_ns
        self._names.close([self._founder])
        self._close_founder(end_ns)

    def close(self) -> list[str]:
        """Archives, once all is ended; what the user should know."""
        return [*archiving.archive(self._options.archive, self._recorder, self._experiments.load_objects,
                                   self._objects), self._summary]

    def _usage(self, recorded: Recorded, _time_ns: int) -> Usage:
        """What the samples say; counters of processes are cumulative over their lives, and not told."""
        return Usage(states_ns=tuple((recorded.state_ticks * self._options.interval_ns).tolist()))

    def _close_ended(self, until_ns: int) -> None:
        ended = self._experiments.ended()
        self._names.close(ended)
        self._experiments.close_ended(self._usage)
        self._machine.close(ended, until_ns)

    def _close_founder(self, end_ns: int) -> None:
        warnings = self._warnings()
        for line in warnings:
            self._recorder.warning(line)
        for line in self._tally.remarks():
            self._recorder.comment(line)
        self._recorder.comment(f"the collector's main process used {time.process_time():.2f} s of CPU")
        self._recorder.close(end_ns, usage=self._usage(self._founder, end_ns))
        name, recorder = str(self._directory), self._recorder
        self._summary = (summary.cut_short(name, str(recorder.stopped), self._tally.n_samples, recorder.n_dropped,
                                           warnings)
                         if recorder.stopped else self._summed_up(warnings, end_ns))

    def _warnings(self) -> list[str]:
        failures = [line for line in (self._experiments.failures(),) if line]
        untold, is_told = self._clock.untold_ns / NS_PER_S, self._clock.untold_ns > self._options.interval_ns
        told = [f"{untold:.3f} s of CPUs are not told, for want of samples"]
        unreadable = [f"{os.fsdecode(path)}: {why}" for path, why in self._objects.unreadable.items()]
        if len(unreadable) > _NAMED:
            unreadable[_NAMED:] = [many(len(unreadable) - _NAMED, "more file likewise", "more files likewise")]
        return [*failures, *(told if is_told else ()), *self._tally.warnings(),
                *of_unwinding(self._objects.tables.counters), *unreadable, *self._names.warnings()]

    def _summed_up(self, warnings: list[str], end_ns: int) -> str:
        seconds = self._ticks * self._options.interval_ns / NS_PER_S
        idle_s, busy_s = float(seconds[Microstate.SLEEP]), float(seconds[:Microstate.TRAP + 1].sum())
        return (f"{self._directory}: {(end_ns - self._start_ns) / NS_PER_S:.2f} s of {many(self._n_cpus, 'CPU')}, "
                f"{busy_s:.2f} s CPU, {idle_s:.2f} s idle, {many(self._experiments.n_made, 'program')}, "
                f"{many(self._tally.n_samples, 'sample')}, {'; '.join(warnings) or 'nothing lost'}")


class _Idle:
    """Tells samples of idle CPUs: the thread 0 of a CPU, in the loop for that, and not in an interrupt on top of it.

    Processes of other PID namespaces have the number 0, too, for who cannot see them.
    """

    def __init__(self) -> None:
        self._code = KernelCode()
        found = proc.kernel_functions(_IDLE)
        self._start: Array = np.array([start for start, _, _ in found], dtype=np.uint64)
        self._end: Array = np.array([end for _, end, _ in found], dtype=np.uint64)

    def states(self, samples: ClockSamples) -> tuple[Array, Array]:
        """Of samples (n,): which found their CPU idle or its idle thread in an interrupt; and their states."""
        state = _STATE_OF_MODE[samples.mode]
        mine = indices((samples.pid == KERNEL_PID) & (samples.mode != Mode.USER))
        idle = np.zeros(len(state), dtype=bool)
        if len(mine) and samples.kernel is not None:
            frames = samples.kernel[mine]
            at = np.maximum(self._start.searchsorted(frames, side="right") - 1, 0)
            idle[mine] = ((frames >= self._start[at]) & (frames < self._end[at])).any(axis=1)
            busy = self._code.are_entries(frames + np.uint64(1)).any(axis=1)
            state[mine[idle[mine]]] = np.where(busy, Microstate.TRAP, Microstate.SLEEP)[idle[mine]]
        return idle, state
