"""What tracing tells beyond the common tables: call stacks with what was allocated, leaked or transferred in them, the
files that were read and written, and how large the pieces were.

Everything is over all experiments of a data set. Figures of input and output are nanoseconds here, not cut to
microseconds as in the tables of functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from collector.experiment.reader import Experiment
from collector.experiment.records import IO_CLOSE, IO_ERROR, IO_OPEN, IO_OTHER, IO_READ, IO_WRITE
from collector.report import compat, heaptrace, iotrace
from collector.report.build import DataSet
from collector.report.kinds import HEAP, IO
from collector.report.lines import instruction_names
from collector.report.profile import I8, Weighted

# Upper bounds of size classes, the last one without any.
_KB, _MB, _GB, _TB = 1 << 10, 1 << 20, 1 << 30, 1 << 40
SIZE_CLASSES = (("0KB - 1KB", _KB), ("1KB - 8KB", 8 * _KB), ("8KB - 32KB", 32 * _KB), ("32KB - 128KB", 128 * _KB),
                ("128KB - 256KB", 256 * _KB), ("256KB - 512KB", 512 * _KB), ("512KB - 1000KB", _MB),
                ("1000KB - 10MB", 10 * _MB), ("10MB - 100MB", 100 * _MB), ("100MB - 1GB", _GB),
                ("1GB - 10GB", 10 * _GB), ("10GB - 100GB", 100 * _GB), ("100GB - 1TB", _TB), ("1TB - 10TB", 10 * _TB))


class Stack(NamedTuple):
    """Frames, leaf first, and figures."""

    frames: tuple[bytes, ...]
    figures: tuple[int, ...]


@dataclass(frozen=True)
class Stacks:
    """Stacks in order; ``total``: the figures of all packets, those without a stack among them."""

    total: tuple[int, ...]
    stacks: Sequence[Stack]


# Figures of the heap's stacks, and of those of input and output.
ALLOCATED, ALLOCATIONS, LEAKED, LEAKS = range(4)
READ_NS, READ_BYTES, READS, WRITE_NS, WRITE_BYTES, WRITES, OTHER_NS, OTHERS, ERROR_NS, ERRORS = range(10)


def heap_stacks(data: DataSet, order: Sequence[int], every: bool = False) -> Stacks:
    """Where memory was allocated, the largest of the figures ``order`` first; those whose first one is 0 only if
    ``every`` one is wanted."""
    first = data.columns.first[HEAP]
    found = data.merged_instructions
    weights = found.weights[:, first:first + LEAKS + 1]
    return _listed(data, Weighted(found.offsets, found.objects, weights, found.n_objects), order, every)


def io_stacks(data: DataSet) -> Stacks:
    """Where was read and written."""
    first, values = compat.FIRST_CHANNEL, dict[int, I8]()
    for experiment in data.experiments:
        if IO in experiment.kinds:
            found = iotrace.channels(experiment.traced(IO), first)
            first = found.next + compat.CHANNELS_APART
            values[id(experiment)] = _io_values(experiment)
            values[id(experiment)][found.of_packet == 0] = 0
    stacks = data.stacks_with(IO, lambda experiment: values[id(experiment)], ERRORS + 1)
    return _listed(data, stacks, (READ_NS, WRITE_NS, OTHER_NS, ERROR_NS), every=True)


def _listed(data: DataSet, stacks: Weighted, order: Sequence[int], every: bool = False) -> Stacks:
    weights = stacks.weights
    rank = np.lexsort([-weights[:, column] for column in reversed(order)])
    shown = np.asarray(weights.any(axis=1) if every else weights[:, order[0]] != 0)
    names = instruction_names(data)
    listed = [Stack(tuple(names[number] for number in stacks.objects[stacks.offsets[row]:stacks.offsets[row + 1]]),
                    tuple(weights[row].tolist()))
              for row in rank[shown[rank] & (stacks.depths[rank] > 0)].tolist()]
    return Stacks(tuple(weights.sum(axis=0).tolist()), listed)


def _io_values(experiment: Experiment) -> I8:
    packets = experiment.packets(IO)
    time_ns, n_bytes, kind = iotrace.durations_ns(packets), packets["IONBYTE"], packets["IOTYPE"]
    reads, writes, others = kind == IO_READ, kind == IO_WRITE, np.isin(kind, (IO_OPEN, IO_CLOSE, IO_OTHER))
    errors = (kind >= IO_ERROR) & (kind < 2 * IO_ERROR)
    return np.stack([reads * time_ns, reads * n_bytes, reads, writes * time_ns, writes * n_bytes, writes,
                     others * time_ns, others, errors * time_ns, errors], axis=1).astype(np.int64)


# --- files


@dataclass(frozen=True)
class Files:
    """By file or by channel: names (n), and the figures of each (n, 10). ``total`` (10)."""

    names: list[bytes]
    figures: I8
    total: I8


def files(data: DataSet, by_channel: bool) -> Files:
    """What was read and written, by file or by the life of a descriptor; what took longest to read first."""
    first, sums = compat.FIRST_CHANNEL, dict[bytes, I8]()
    # Channels of two experiments may have one name, the standard ones; each is a row of its own.
    rows: list[tuple[bytes, I8]] = []
    for experiment in data.experiments:
        if IO not in experiment.kinds:
            continue
        found, values = iotrace.channels(experiment.traced(IO), first), _io_values(experiment)
        if len(values):
            first = found.next + compat.CHANNELS_APART
        numbers, inverse = np.unique(found.of_packet, return_inverse=True)
        figures = np.zeros((len(numbers), values.shape[1]), np.int64)
        np.add.at(figures, inverse, values)
        for number, line in zip(numbers.tolist(), figures, strict=True):
            if not number:
                continue
            channel = found.known[number]
            if by_channel:
                rows.append((compat.channel_name(number, channel.name, channel.descriptor), line))
            else:
                sums[channel.name] = sums.get(channel.name, np.zeros(len(line), np.int64)) + line
    rows = rows if by_channel else list(sums.items())
    table = np.array([line for _, line in rows], np.int64).reshape(len(rows), ERRORS + 1)
    order = np.lexsort([-table[:, column] for column in (ERROR_NS, OTHER_NS, WRITE_NS, READ_NS)])
    return Files([rows[row][0] for row in order.tolist()], table[order], table.sum(axis=0))


# --- sizes


@dataclass(frozen=True)
class Sizes:
    """How large the pieces were. ``classes``: how many in each of SIZE_CLASSES; ``longest_ns`` and ``time_ns`` of
    transfers."""

    classes: list[int]
    smallest: int
    largest: int
    count: int
    total: int
    longest_ns: int = 0
    time_ns: int = 0


def sizes(n_bytes: npt.NDArray[Any], time_ns: npt.NDArray[Any] | None = None) -> Sizes | None:
    """Of pieces of ``n_bytes`` (n), which took ``time_ns`` (n); None if there are none."""
    if not len(n_bytes):
        return None
    bounds = np.array([bound for _, bound in SIZE_CLASSES], np.int64)
    classes = np.bincount(np.searchsorted(bounds, n_bytes, side="left"), minlength=len(bounds))[:len(bounds)]
    times = np.zeros(1, np.int64) if time_ns is None else time_ns
    return Sizes(classes.tolist(), int(n_bytes.min()), int(n_bytes.max()), len(n_bytes), int(n_bytes.sum()),
                 int(times.max()), int(times.sum()))


@dataclass(frozen=True)
class Peak:
    """The most memory that a process had at a time: number of its experiment, pid, when, from the founder's start."""

    n_bytes: int
    number: int
    pid: int
    times_ns: tuple[int, ...]


def heap_sizes(data: DataSet) -> tuple[Peak | None, Sizes | None, Sizes | None]:
    """The peak of memory in use, sizes of allocations, sizes of leaks."""
    peak, allocated, leaked = None, [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for number, experiment in enumerate(data.experiments, 1):
        packets = experiment.packets(HEAP) if HEAP in experiment.kinds else None
        if packets is None or not len(packets):
            continue
        heap = heaptrace.followed(packets)
        known = experiment.stacks.index(packets["FRINFO"]) >= 0
        allocated.append(heap.allocated[heap.is_allocation & known])
        leaked.append(heap.leaked[(heap.leaked > 0) & known])
        most = int(heap.in_use.max())
        if most > (peak.n_bytes if peak else 0):
            at = heap.by_time[heap.in_use == most]
            at = at[heap.is_allocation[at]]
            _, first = np.unique(packets["FRINFO"][at], return_index=True)  # once for each stack that reached it
            times = packets["TSTAMP"][at[np.sort(first)]] - (experiment.founder or experiment).log.start_ns
            peak = Peak(most, number, experiment.log.pid, tuple(times.tolist()))
    return peak, sizes(np.concatenate(allocated)), sizes(np.concatenate(leaked))


def io_sizes(data: DataSet) -> tuple[Sizes | None, Sizes | None, tuple[int, int], tuple[int, int]]:
    """Of writes and reads; time in ns and number of the rest, and of what failed."""
    parts = [_io_parts(experiment) for experiment in data.experiments if IO in experiment.kinds]
    nothing = np.zeros((0, 2), np.int64)
    writes, reads, others, errors = (np.concatenate([nothing, *(part[i] for part in parts)]) for i in range(4))
    return (sizes(writes[:, 0], writes[:, 1]), sizes(reads[:, 0], reads[:, 1]),
            (int(others[:, 1].sum()), len(others)), (int(errors[:, 1].sum()), len(errors)))


def _io_parts(experiment: Experiment) -> list[I8]:
    """Bytes and nanoseconds of each write, read, other, and failure."""
    packets = experiment.packets(IO)
    packets = packets[iotrace.channels(experiment.traced(IO)).of_packet > 0]
    figures = np.stack([packets["IONBYTE"], iotrace.durations_ns(packets)], axis=1)
    kind = packets["IOTYPE"]
    return [figures[mask] for mask in (kind == IO_WRITE, kind == IO_READ, np.isin(kind, (IO_OPEN, IO_CLOSE, IO_OTHER)),
                                       (kind >= IO_ERROR) & (kind < 2 * IO_ERROR))]
