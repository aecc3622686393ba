"""What an overview sample says of an image: what it has used so far."""

from __future__ import annotations

import numpy as np

from collector.arrays import distinct
from collector.events import Array, Edge, Source
from collector.experiment.recorder import Usage
from collector.linux.proc import ProcessUsage
from collector.session.experiments import LABEL_EXEC, Experiments, Recorded
from collector.session.timekeeping import Timekeeping
from collector.session.world import World
from collector.timing.states import Microstate
from collector.timing.ticks import N_STATES


class Overview:
    """Counters of images; ``records_all``: every switch has a record, or is counted; ``has_engine``: there are records.
    What these do not tell, /proc does."""

    def __init__(self, time: Timekeeping, experiments: Experiments, world: World, *, records_all: bool,
                 has_engine: bool) -> None:
        self._time = time
        self._experiments = experiments
        self._world = world
        self._counts_switches = records_all and has_engine
        self._has_engine = has_engine
        self._usages: dict[int, tuple[int, ProcessUsage]] = {}  # by process: when they were read last, and as what
        self._before: dict[int, ProcessUsage] = {}  # and what was before its image, or before its recording
        self._told: dict[int, ProcessUsage] = {}  # and as what they were told of its image last
        # By process: voluntary and involuntary ones of threads that lived at the last look, and of ended ones.
        self._live_switches: dict[int, tuple[tuple[int, int], tuple[int, int]]] = {}

    def count_switches(self) -> None:
        """Counts the switches of the batch that the clocks have just taken."""
        edges = self._time.timeline.edges
        recorded = edges.source == Source.RECORDED
        for column, kind in enumerate((Edge.OUT_BLOCKED, Edge.OUT_PREEMPTED)):
            self._add(edges.slot[recorded & (edges.edge == kind)], column)
        slots, counts = self._time.turns.more
        for number, count in zip(self._time.model.of.image[slots].tolist(), counts.tolist(), strict=True):
            image = self._experiments.by_image.get(number)
            if image is not None:
                image.n_counted_switches += count

    def _add(self, slot: Array, column: int) -> None:
        images = self._time.model.of.image[slot]
        for number in distinct(images).tolist() if len(slot) else ():
            recorded = self._experiments.by_image.get(number)
            if recorded is not None:
                recorded.n_switches[column] += int(np.count_nonzero(images == number))

    def found(self, pid: int) -> None:
        """A process that ran before us."""
        self._before[pid] = self._now(pid) or ProcessUsage()

    def read(self, pid: int, time_ns: int) -> None:
        """The counters of a process as of now, a time."""
        usage = self._now(pid)
        if usage is not None:
            self._usages[pid] = time_ns, usage

    def _now(self, pid: int) -> ProcessUsage | None:
        usage = self._world.usage(pid)
        if usage is None or self._counts_switches:
            return usage
        voluntary, involuntary = self._switches_so_far(pid)
        return usage._replace(voluntary_switches=voluntary, involuntary_switches=involuntary)

    def _switches_so_far(self, pid: int) -> tuple[int, int]:
        """Those of a process's threads that live, and what had been told of those that have ended since."""
        now = self._world.switches(pid)
        last, gone = self._live_switches.get(pid, (now, (0, 0)))
        gone = (gone[0] + max(last[0] - now[0], 0), gone[1] + max(last[1] - now[1], 0))
        self._live_switches[pid] = now, gone
        return now[0] + gone[0], now[1] + gone[1]

    def leave_out(self, recorded: Recorded, time_ns: int) -> None:
        """What an image that is not followed has used up to now, a time, is none of what it executes."""
        self._counters(recorded, time_ns)

    def _counters(self, recorded: Recorded, time_ns: int) -> ProcessUsage:
        """Those of an image, as of now, or as they were last seen. The kernel counts from the process's birth on: what
        was told of it before is told once."""
        pid = recorded.image.pid
        if recorded.end_ns is None:
            self.read(pid, time_ns)
        before = self._before.get(pid, ProcessUsage())
        read_ns, usage = self._usages.get(pid, (0, before))
        goes_on = recorded.end_ns is not None and recorded.end_label == LABEL_EXEC
        if goes_on and read_ns > time_ns:  # that is of the next image, too
            usage = self._told.get(pid, before)
        if recorded.end_ns is None:
            self._told[pid] = usage
        else:
            self._told.pop(pid, None)
        if goes_on:
            self._before[pid] = usage
        elif recorded.end_ns is not None:
            for kept in (self._usages, self._before, self._live_switches):
                kept.pop(pid, None)
        return ProcessUsage(*(max(now - then, 0) for now, then in zip(usage, before, strict=True)))

    def usage(self, recorded: Recorded, time_ns: int) -> Usage:
        """What an image has used up to a time."""
        usage = self._counters(recorded, time_ns)
        states_ns = self._states_ns(recorded, time_ns) if self._has_engine else _states_by_proc(usage)
        voluntary, involuntary = usage.voluntary_switches, usage.involuntary_switches
        if self._counts_switches:
            voluntary, involuntary = self._switches_of(recorded)
        return Usage(states_ns=tuple(states_ns), minor_faults=usage.minor_faults,
                     major_faults=usage.major_faults, input_blocks=usage.input_blocks,
                     output_blocks=usage.output_blocks, voluntary_switches=voluntary, involuntary_switches=involuntary,
                     system_calls=usage.system_calls, characters_io=usage.io_characters)

    def _states_ns(self, recorded: Recorded, time_ns: int) -> list[int]:
        """Exact time in each state of all threads of an image so far; CPU states in the proportion of their ticks."""
        states: list[int] = recorded.waited_ns.tolist()
        cpu_ns = recorded.ended_cpu_ns
        process = self._time.model.processes.get(recorded.image.pid)
        is_over = recorded.end_ns is not None  # then all of them have ended, those that live on with the recording, too
        if not is_over and process is not None and process.image is recorded.image:
            cpu_ns += self._time.cpu_ns(process.threads.values(), time_ns)
        ticks = recorded.state_ticks[:Microstate.TRAP + 1].tolist()
        total = sum(ticks)
        for state in (Microstate.SYSTEM, Microstate.TRAP):
            states[state] = cpu_ns * ticks[state] // total if total else 0
        states[Microstate.USER] = cpu_ns - states[Microstate.SYSTEM] - states[Microstate.TRAP]
        return states

    def _switches_of(self, recorded: Recorded) -> tuple[int, int]:
        """Voluntary and involuntary switches so far; of those not recorded each, the kernel tells which is which."""
        if recorded.end_ns is None and recorded.n_counted_switches:
            recorded.n_live_switches = np.maximum(recorded.n_live_switches, self._world.switches(recorded.image.pid))
        live, switches = recorded.n_live_switches.tolist(), recorded.n_switches.tolist()
        involuntary = switches[1] + round(recorded.n_counted_switches * live[1] / max(sum(live), 1))
        return sum(switches) + recorded.n_counted_switches - involuntary, involuntary


def _states_by_proc(usage: ProcessUsage) -> list[int]:
    states = [0] * N_STATES
    states[Microstate.USER], states[Microstate.SYSTEM] = usage.user_ns, usage.system_ns
    return states
