"""What an overview sample says of an image: what it has used so far."""

from __future__ import annotations

import numpy as np

from collector.arrays import distinct
from collector.events import Array, Edge, Source
from collector.experiment.recorder import Usage
from collector.linux.proc import ProcessUsage
from collector.session.experiments import Experiments, Recorded
from collector.session.timekeeping import Timekeeping
from collector.session.world import World
from collector.timing.states import Microstate


class Overview:
    """Counters of images; ``records_all``: every switch has a record, or is counted."""

    def __init__(self, time: Timekeeping, experiments: Experiments, world: World, records_all: bool) -> None:
        self._time = time
        self._experiments = experiments
        self._world = world
        self._records_all = records_all
        self._usages: dict[int, ProcessUsage] = {}  # as last read, by image

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

    def read(self, recorded: Recorded) -> ProcessUsage:
        """The counters of an image's process as of now, or as they were last seen."""
        number = recorded.image.number
        if recorded.end_ns is None:
            usage = self._world.usage(recorded.image.pid)
            if usage is not None:
                self._usages[number] = usage
            return self._usages.get(number) or ProcessUsage()
        is_asked_again = recorded.parent is None  # the founder's experiment stays open
        return (self._usages.get(number) if is_asked_again else self._usages.pop(number, None)) or ProcessUsage()

    def usage(self, recorded: Recorded, time_ns: int) -> Usage:
        """What an image has used up to a time."""
        usage = self.read(recorded)
        voluntary, involuntary = self._switches_of(recorded)
        return Usage(states_ns=tuple(self._states_ns(recorded, time_ns)), minor_faults=usage.minor_faults,
                     major_faults=usage.major_faults, input_blocks=usage.input_blocks,
                     output_blocks=usage.output_blocks, voluntary_switches=voluntary, involuntary_switches=involuntary,
                     system_calls=usage.system_calls, characters_io=usage.io_characters)

    def _states_ns(self, recorded: Recorded, time_ns: int) -> list[int]:
        """Exact time in each state of all threads of an image so far; CPU states in the proportion of their ticks."""
        states: list[int] = recorded.waited_ns.tolist()
        cpu_ns = recorded.ended_cpu_ns
        process = self._time.model.processes.get(recorded.image.pid)
        if process is not None and process.image is recorded.image:
            cpu_ns += self._time.cpu_ns(process.threads.values(), time_ns)
        ticks = recorded.state_ticks[:Microstate.TRAP + 1].tolist()
        total = sum(ticks)
        for state in (Microstate.SYSTEM, Microstate.TRAP):
            states[state] = cpu_ns * ticks[state] // total if total else 0
        states[Microstate.USER] = cpu_ns - states[Microstate.SYSTEM] - states[Microstate.TRAP]
        return states

    def _switches_of(self, recorded: Recorded) -> tuple[int, int]:
        """Voluntary and involuntary switches so far; of those not recorded each, the kernel tells which is which."""
        if recorded.end_ns is None and (recorded.n_counted_switches or not self._records_all):
            recorded.n_live_switches = np.maximum(recorded.n_live_switches, self._world.switches(recorded.image.pid))
        if not self._records_all:
            voluntary, involuntary = recorded.n_live_switches.tolist()
        else:
            live, switches = recorded.n_live_switches.tolist(), recorded.n_switches.tolist()
            involuntary = switches[1] + round(recorded.n_counted_switches * live[1] / max(sum(live), 1))
            voluntary = sum(switches) + recorded.n_counted_switches - involuntary
        return voluntary, involuntary
