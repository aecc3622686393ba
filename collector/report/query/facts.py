"""What is known of an experiment's packets: the properties that filters and index objects ask for.

All kinds of packets stand one behind the other, as in ``resolve.Part``; what a kind has not is zero. Threads, LWPs and
experiments have the numbers that reports show, times are nanoseconds since the founder's start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from collector.clock import NS_PER_US
from collector.report import compat, heaptrace
from collector.report.build import DataSet, Experiment, Packets
from collector.report.kinds import CLOCK, HEAP
from collector.report.profile import I8
from collector.report.query.evaluate import Stacks
from collector.report.query.language import Named

Column = npt.NDArray[Any]

DERIVED = {
    "PID": "Process id",
    "EXPID": "Experiment id",
    "EXPID_CMP": "Comparable experiment id",
    "EXPGRID": "Comparison group id",
    "SAMPLE": "Sample number",
    "SAMPLE_MAP": "Sample number",
    "GCEVENT_MAP": "Garbage collection",
    "TSTAMP_LO": "Start timestamp (nanoseconds)",
    "TSTAMP_HI": "End timestamp (nanoseconds)",
    "TSTAMP2": "End timestamp (nanoseconds)",
    "EVT_TIME": "Event duration (nanoseconds)",
    "DURATION": "Event duration (nanoseconds)",
    "IOHEAPBYTES": "Bytes allocated, read or written",
    "FREQ_MHZ": "CPU frequency, MHz",
    "NTICK_USEC": "Clock profiling ticks as microseconds",
    "JTHREAD": "Java thread number",
}
STACK_NAMES = {"STACK": "Call stack", "LEAF": "Leaf of the call stack"}
# When what a packet is about began, where that is recorded.
_REQUESTS = {"synctrace": "SRQST", "iotrace": "IORQST"}


class PacketFacts:
    """The packets of one experiment of a data set; ``number`` is its place, from 1."""

    def __init__(self, data: DataSet, number: int) -> None:
        self._data = data
        self._number = number
        self._experiment = data.experiments[number - 1]
        self._known: dict[str, Column | None] = {}

    @cached_property
    def n(self) -> int:
        """Packets of all kinds."""
        return sum(len(packets) for packets in self._packets)

    def number(self, name: str) -> Column | None:
        """A property of each packet; None: they have none of that name."""
        if name not in self._known:
            self._known[name] = self._derive[name]() if name in self._derive else self._field(name)
        return self._known[name]

    def is_known(self, name: str) -> bool:
        """Whether packets of any experiment may have a property of that name."""
        return name in DERIVED or any(name in (packets.dtype.names or ()) for experiment in self._data.experiments
                                      for packets in map(experiment.packets, experiment.kinds))

    @cached_property
    def stacks(self) -> Stacks:
        """The stacks as functions of the data set."""
        function_of = np.array([function for function, _ in self._data.places], np.int64)
        return Stacks(*self._data.parts[self._number - 1].function_stacks(function_of))

    def functions(self, named: Named) -> I8:
        """The functions whose whole names, long or short, match; no data objects are known."""
        if named.what != "FNAME":
            return np.zeros(0, np.int64)
        names = [function.name for function in self._data.functions]
        return np.array([i for i, name in enumerate(names)
                         if any(named.pattern.fullmatch(one.decode("utf-8", "surrogateescape"))
                                for one in dict.fromkeys((name, compat.short_name(name))))], np.int64)

    @cached_property
    def _packets(self) -> Sequence[Packets]:
        return [self._experiment.packets(kind) for kind in self._experiment.kinds]

    @cached_property
    def _derive(self) -> Mapping[str, Callable[[], Column]]:
        experiment = self._experiment
        return {
            "THRID": lambda: numbered(self._raw("THRID"), experiment.threads),
            "LWPID": lambda: compat.by_appearance(self._raw("LWPID")),
            "TSTAMP": lambda: self._since_start(self._raw("TSTAMP")),
            "TSTAMP_HI": lambda: self._since_start(self._raw("TSTAMP")) + self._lives_ns,
            "TSTAMP_LO": lambda: self._since_start(self._raw("TSTAMP")) - self._durations_ns,
            "TSTAMP2": lambda: self._released_ns,
            "EVT_TIME": lambda: self._durations_ns,
            "DURATION": lambda: self._durations_ns + self._lives_ns,
            "PID": lambda: self._same(experiment.log.pid),
            "EXPID": lambda: self._same(self._number),
            "EXPID_CMP": lambda: self._same(self._number),
            "EXPGRID": lambda: self._same(compat.GROUP_NUMBER),
            "SAMPLE": lambda: sample_numbers(experiment, self._raw("TSTAMP")),
            "SAMPLE_MAP": lambda: sample_numbers(experiment, self._raw("TSTAMP")),
            "GCEVENT_MAP": lambda: self._same(compat.GARBAGE_COLLECTION),
            "JTHREAD": lambda: self._same(compat.JAVA_THREAD),
            "IOHEAPBYTES": lambda: self._raw("HSIZE") + self._raw("IONBYTE"),
            "FREQ_MHZ": lambda: self._same(max(experiment.log.cpus, default=0)),
            "NTICK_USEC": lambda: self._raw("NTICK") * experiment.log.interval_us,
        }

    def _same(self, value: int) -> Column:
        return np.full(self.n, value, np.int64)

    def _since_start(self, times_ns: I8) -> I8:
        founder = self._experiment.founder or self._experiment
        return times_ns - founder.log.start_ns

    def _raw(self, name: str) -> I8:
        found = self._field(name)
        return self._same(0) if found is None else found.astype(np.int64)

    def _field(self, name: str) -> Column | None:
        """A field as it was recorded; zero in packets of kinds without it."""
        if not any(name in (packets.dtype.names or ()) for packets in self._packets):
            return None
        return np.concatenate([packets[name].astype(np.int64) if name in (packets.dtype.names or ())
                               else np.zeros(len(packets), np.int64) for packets in self._packets])

    @cached_property
    def _released_ns(self) -> I8:
        """Of allocations, when what was allocated was released; zero of everything else."""
        return np.concatenate([np.zeros(0, np.int64), *(
            heaptrace.followed(packets).released_ns if kind == HEAP else np.zeros(len(packets), np.int64)
            for kind, packets in zip(self._experiment.kinds, self._packets, strict=True))])

    @cached_property
    def _lives_ns(self) -> I8:
        """How long what was allocated was there, until the end of the experiment at most; zero of everything else."""
        released_ns = self._released_ns
        ends_ns = np.minimum(released_ns, self._experiment.end_ns)
        return np.where(released_ns > 0, ends_ns - self._raw("TSTAMP"), 0)

    @cached_property
    def _durations_ns(self) -> I8:
        """How long what each packet tells of took: of clock packets, the ticks of all of a wake-up less one."""
        found = [np.zeros(0, np.int64)]
        for kind, packets in zip(self._experiment.kinds, self._packets, strict=True):
            request = _REQUESTS.get(kind, "")
            if kind == CLOCK:
                found.append(compat.wake_up_ns(packets["THRID"], packets["TSTAMP"], packets["NTICK"],
                                               self._experiment.log.interval_us * NS_PER_US))
            elif request in (packets.dtype.names or ()):
                found.append((packets["TSTAMP"] - packets[request]).astype(np.int64))
            else:
                found.append(np.zeros(len(packets), np.int64))
        return np.concatenate(found)


def numbered(values: Column, known: Sequence[int]) -> I8:
    """For each value its place in ``known``, from 1, which holds them all."""
    ids = np.array(known, np.int64)
    order = np.argsort(ids)
    return np.asarray(order[np.searchsorted(ids[order], values)] + 1, np.int64)


def sample_numbers(experiment: Experiment, times_ns: I8) -> I8:
    """The number of the sample in which each time lies (n); 0: in none."""
    starts, ends, numbers = (np.array([getattr(sample, name) for sample in experiment.samples], np.int64)
                             for name in ("start_ns", "end_ns", "id"))
    return compat.sample_numbers(starts, ends, numbers, times_ns)
