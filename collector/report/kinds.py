"""The kinds of data besides clock profiling, and what their packets count for.

A packet is worth something in some *columns*, which are summed as microseconds in states are: over stacks, threads,
CPUs, samples. A data set's columns are those of clock profiling, then those of each kind that its experiments have::

    0 ... 12    states (``metrics``)
    13, 14      sync: waited us, waits
    15, 16      cycles, insts                 a column for each counter, by name
    17          latency                       only where it is asked for
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from collector.experiment.reader import Experiment
from collector.experiment.records import IO_CLOSE, IO_ERROR, IO_OPEN, IO_OTHER, IO_READ, IO_WRITE
from collector.report.compat import whole_us
from collector.report.documents import Unit
from collector.report.metrics import LATENCY, METRICS_BY_NUMSTATES, N_STATE_COLUMNS, Metric

I8 = npt.NDArray[np.int64]
Packets = npt.NDArray[Any]

CLOCK, LOCKS, HEAP, IO, COUNTERS = "profile", "synctrace", "heaptrace", "iotrace", "hwcounters"
LOCK_METRICS = (Metric("sync", "Sync Wait Time", "Sync Wait"),
                Metric("syncn", "Sync Wait Count", "Sync Wait Count", unit=Unit.COUNT))
HEAP_METRICS = (Metric("heapallocbytes", "Bytes Allocated", "Bytes Allocated", unit=Unit.BYTES),
                Metric("heapalloccnt", "Allocations", "Allocations", unit=Unit.COUNT),
                Metric("heapleakbytes", "Bytes Leaked", "Bytes Leaked", unit=Unit.BYTES),
                Metric("heapleakcnt", "Leaks", "Leaks", unit=Unit.COUNT))
IO_METRICS = (Metric("ioreadtime", "Read Time", "Read Time"),
              Metric("ioreadbytes", "Read Bytes", "Read Bytes", unit=Unit.BYTES),
              Metric("ioreadcnt", "Read Count", "Read Count", unit=Unit.COUNT),
              Metric("iowritetime", "Write Time", "Write Time"),
              Metric("iowritebytes", "Write Bytes", "Write Bytes", unit=Unit.BYTES),
              Metric("iowritecnt", "Write Count", "Write Count", unit=Unit.COUNT),
              Metric("ioothertime", "Other I/O Time", "Other I/O Time"),
              Metric("ioothercnt", "Other I/O Count", "Other I/O Count", unit=Unit.COUNT),
              Metric("ioerrortime", "I/O Error Time", "I/O Error Time"),
              Metric("ioerrorcnt", "I/O Error Count", "I/O Error Count", unit=Unit.COUNT))
TITLES = {CLOCK: "Clock Profiling", LOCKS: "Synchronization Tracing", HEAP: "Heap Tracing", IO: "IO Tracing",
          COUNTERS: "HW Counter Profiling"}


def counter_metric(name: str) -> Metric:
    """The metric of a hardware counter."""
    return Metric(name, f"{name} Events", f"{name} Events", unit=Unit.COUNT, is_counter=True)


def of_locks(experiment: Experiment) -> I8:
    """Microseconds waited, and one wait, for each packet (n, 2)."""
    packets = experiment.packets(LOCKS)
    return _columns(whole_us(packets["TSTAMP"] - packets["SRQST"]), np.ones(len(packets), np.int64))


def of_heap(experiment: Experiment) -> I8:
    """Bytes allocated, one allocation, bytes leaked, one leak, for each packet (n, 4)."""
    from collector.report import heaptrace

    heap = heaptrace.followed(experiment.packets(HEAP))
    return _columns(heap.allocated, heap.is_allocation, heap.leaked, heap.leaked > 0)


def of_io(experiment: Experiment) -> I8:
    """Microseconds, bytes and one read; the same of a write; time and one of anything else, and of errors (n, 10)."""
    from collector.report import iotrace

    packets = experiment.packets(IO)
    time_us, n_bytes, kind = whole_us(iotrace.durations_ns(packets)), packets["IONBYTE"], packets["IOTYPE"]
    reads, writes = kind == IO_READ, kind == IO_WRITE
    others = np.isin(kind, (IO_OPEN, IO_CLOSE, IO_OTHER))
    errors = (kind >= IO_ERROR) & (kind < 2 * IO_ERROR)
    return _columns(reads * time_us, reads * n_bytes, reads, writes * time_us, writes * n_bytes, writes,
                    others * time_us, others, errors * time_us, errors)


_VALUES: dict[str, tuple[tuple[Metric, ...], Callable[[Experiment], I8]]] = {
    LOCKS: (LOCK_METRICS, of_locks), HEAP: (HEAP_METRICS, of_heap), IO: (IO_METRICS, of_io)}


def _columns(*columns: npt.NDArray[Any]) -> I8:
    return np.stack([column.astype(np.int64) for column in columns], axis=1)


@dataclass(frozen=True)
class Columns:
    """What the ``n`` columns of weights are. ``first``: of each kind; ``counters``: that of each counter.

    ``metrics``: all that can be asked for; ``by_kind``: the same for each kind, in the order of the log.
    ``latency``: the column of latency; -1: it was not asked for.
    """

    n: int = N_STATE_COLUMNS
    first: dict[str, int] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)
    by_kind: dict[str, tuple[Metric, ...]] = field(default_factory=dict)
    latency: int = -1

    @property
    def latency_metrics(self) -> tuple[Metric, ...]:
        """Latency, where packets tell what ran, as it is once there is a column of it."""
        has_states = any(metric.command == "user" for metric in self.by_kind.get(CLOCK, ()))
        return (LATENCY._replace(states=(self.n if self.latency < 0 else self.latency,)),) if has_states else ()

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """All metrics in the order in which they are listed."""
        return tuple(metric for metrics in self.by_kind.values() for metric in metrics)

    def values(self, experiment: Experiment, kind: str) -> tuple[int, I8]:
        """What each packet of a kind is worth (n, k), in columns from a first one on."""
        if kind != COUNTERS:
            return self.first[kind], _VALUES[kind][1](experiment)
        packets = experiment.packets(COUNTERS)
        first = min(self.counters.values(), default=0)
        values = np.zeros((len(packets), len(self.counters)), np.int64)
        for tag, counter in experiment.log.counters.items():
            mine = packets["HWCTAG"] == tag
            values[mine, self.counters[counter.name] - first] = packets["HWCINT"][mine]
        return first, values

    def sums(self, experiment: Experiment, kind: str, group: I8, n_groups: int) -> I8:
        """What packets of a kind add up to, each in the group given (n_groups, columns); below 0: in none."""
        sums = np.zeros((n_groups, self.n), np.int64)
        first, values = self.values(experiment, kind)
        keep = group >= 0
        np.add.at(sums, (group[keep][:, np.newaxis], first + np.arange(values.shape[1])), values[keep])
        return sums


def columns_of(experiments: Sequence[Experiment], with_latency: bool = False) -> Columns:
    """The columns of what these experiments hold; and one of latency, if it is wanted."""
    columns = Columns()
    n = N_STATE_COLUMNS
    for kind in _kinds_of(experiments):
        if kind == CLOCK:
            codes = {experiment.log.numstates for experiment in experiments}
            columns.by_kind[kind] = next((METRICS_BY_NUMSTATES[code] for code in (10, 2, 1, 3) if code in codes), ())
            continue
        names = dict.fromkeys(counter.name for experiment in experiments
                              for _, counter in sorted(experiment.log.counters.items()))
        metrics = _VALUES[kind][0] if kind != COUNTERS else tuple(counter_metric(name) for name in names)
        columns.by_kind[kind] = tuple(metric._replace(states=(n + i,)) for i, metric in enumerate(metrics))
        columns.first[kind] = n
        if kind == COUNTERS:
            columns.counters.update((metric.command, n + i) for i, metric in enumerate(metrics))
        n += len(metrics)
    return replace(columns, n=n + with_latency, latency=n if with_latency else -1)


def _kinds_of(experiments: Iterable[Experiment]) -> Iterable[str]:
    """Every kind of data that is described, in the order of the logs; clock profiling even where it is not yet."""
    found = dict.fromkeys(kind for experiment in experiments for kind in experiment.kinds)
    return found or dict.fromkeys([CLOCK])
