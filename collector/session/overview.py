"""What an overview sample says of an image: what it has used so far."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from collector.experiment.recorder import Usage
from collector.linux.proc import ProcessUsage
from collector.session.experiments import Recorded
from collector.session.world import World

StatesOf = Callable[[Recorded, int], list[int]]


class Overview:
    """Counters of images. ``states_of`` tells the exact time in each state of an image up to a time; ``records_all``:
    every switch has a record, or is counted."""

    def __init__(self, world: World, states_of: StatesOf, records_all: bool) -> None:
        self._world = world
        self._states_of = states_of
        self._records_all = records_all
        self._usages: dict[int, ProcessUsage] = {}  # as last read, by image

    def read(self, recorded: Recorded) -> ProcessUsage:
        """The counters of an image's process as of now, or as they were last seen."""
        number = recorded.image.number
        usage = self._world.usage(recorded.image.pid) if recorded.end_ns is None else None
        if usage is not None:
            self._usages[number] = usage
        return self._usages.get(number) or ProcessUsage()

    def usage(self, recorded: Recorded, time_ns: int) -> Usage:
        """What an image has used up to a time."""
        usage = self.read(recorded)
        voluntary, involuntary = self._switches_of(recorded)
        return Usage(states_ns=tuple(self._states_of(recorded, time_ns)), minor_faults=usage.minor_faults,
                     major_faults=usage.major_faults, input_blocks=usage.input_blocks,
                     output_blocks=usage.output_blocks, voluntary_switches=voluntary, involuntary_switches=involuntary,
                     system_calls=usage.system_calls, characters_io=usage.io_characters)

    def _switches_of(self, recorded: Recorded) -> tuple[int, int]:
        """Voluntary and involuntary switches so far; of those not recorded each, the kernel tells which is which."""
        if recorded.end_ns is None and (recorded.n_counted_switches or not self._records_all):
            recorded.n_live_switches = np.maximum(recorded.n_live_switches, self._world.switches(recorded.image.pid))
        if not self._records_all:
            voluntary, involuntary = recorded.n_live_switches.tolist()
        else:
            of_live = int(recorded.n_live_switches[1]) / max(int(recorded.n_live_switches.sum()), 1)
            involuntary = int(recorded.n_switches[1]) + round(recorded.n_counted_switches * of_live)
            voluntary = int(recorded.n_switches.sum()) + recorded.n_counted_switches - involuntary
        return voluntary, involuntary
