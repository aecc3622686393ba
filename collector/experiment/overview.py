"""The overview: one record per sample point, each with everything up to then; and the samples between them.

Readers refuse an experiment whose overview is not a multiple of the record's size. So the file first grows by one
record, in one step, which only ftruncate(2) does: to write or to allocate across the end of a page takes two. The
record is written afterwards; if the disk has no room for it, the file shrinks again.
"""

from __future__ import annotations

import errno
import os
from itertools import chain, pairwise
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from collector.arrays import indices
from collector.clock import NS_PER_S
from collector.experiment.blocks import failure
from collector.experiment.damage import INT64_MAX, TIME_MAX_NS, Bytes, Damage
from collector.experiment.log import Event
from collector.experiment.records import COUNTERS, N_STATES, OVERVIEW, STATES
from collector.experiment.xml import parse_number

NAME = "overview"
_NO_TIME = (0, 0)
_counters = attrgetter(*COUNTERS)


class Usage(NamedTuple):
    """What a process has used since its start: nanoseconds in each of the ten states, and counters."""

    states_ns: tuple[int, ...] = (0,) * N_STATES
    minor_faults: int = 0
    major_faults: int = 0
    swaps: int = 0
    input_blocks: int = 0
    output_blocks: int = 0
    messages_sent: int = 0
    messages_received: int = 0
    signals: int = 0
    voluntary_switches: int = 0
    involuntary_switches: int = 0
    system_calls: int = 0
    characters_io: int = 0


def record(usage: Usage, wsize: int, pid: int, count: int, start_ns: int, time_ns: int) -> bytes:
    """The bytes of one record; real time is the sum of the states, as over all threads of a process."""
    terminated_ns = 0
    times = [divmod(value_ns, NS_PER_S) if value_ns > 0 else _NO_TIME
             for value_ns in (time_ns, start_ns, terminated_ns, sum(usage.states_ns), *usage.states_ns)]
    largest = (1 << wsize) - 1
    return OVERVIEW[wsize].packer.pack(pid, count, *chain.from_iterable(times),
                                       *[min(value, largest) for value in _counters(usage)])


def append(directory_fd: int, content: bytes) -> None:
    """Append one record. Raises DiskFull or ExperimentError; then the file is as it was."""
    try:
        fd = os.open(NAME, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory_fd)
        try:
            size = os.fstat(fd).st_size
            try:
                os.ftruncate(fd, size + len(content))
                if os.pwrite(fd, content, size) != len(content):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError:
                os.ftruncate(fd, size)
                raise
        finally:
            os.close(fd)
    except OSError as error:
        raise failure(NAME, error) from error


class Sample(NamedTuple):
    """What happened between two sample points (absolute ns): time in each of the ten states, and counters by name."""

    id: int
    start_label: str
    label: str
    start_ns: int
    end_ns: int
    states_ns: tuple[int, ...]
    counters: dict[str, int]


UNKNOWN_LABEL = "<unknown>"


def read_samples(data: Bytes, wsize: int, events: list[Event], damage: Damage | None = None) -> list[Sample]:
    """The samples of an overview file and the log's events. Records without an event have an unknown label."""
    damage = damage or Damage()
    dtype = OVERVIEW[wsize].dtype
    damage.note("bytes behind the last whole record were skipped", len(data) % dtype.itemsize)
    records = data[:len(data) // dtype.itemsize * dtype.itemsize].view(dtype)
    records = records[records["tstamp_s"] > 0]  # one that is being written is still zero
    sound = _sound(records)
    damage.note("records with impossible numbers were skipped", int((~sound).sum()))
    records = records[sound]
    points = [event for event in events if event.kind == "sample"]
    labels = [event.attributes.get("label", "") for event in points if _id(event) == 0][-1:] or [UNKNOWN_LABEL]
    ends = [event for event in points if _id(event) > 0]
    ids = []
    for number in range(1, len(records)):
        known = number <= len(ends)
        ids.append(_id(ends[number - 1]) if known else number)
        labels.append(ends[number - 1].attributes.get("label", "") if known else UNKNOWN_LABEL)
    return [_sample(number, labels[i:i + 2], before, after)
            for i, (number, (before, after)) in enumerate(zip(ids, pairwise(records), strict=True))]


def _sound(records: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Which records (n,) hold times and counters that can be, and come after the one before."""
    sound = np.ones(len(records), np.bool_)
    for name in ("tstamp", "real", *STATES):
        sound &= (records[name + "_s"] < TIME_MAX_NS // NS_PER_S) & (records[name + "_ns"] < NS_PER_S)
    for name in COUNTERS:
        sound &= records[name] <= INT64_MAX
    latest_ns = 0
    for number in indices(sound).tolist():
        time_ns = _ns(records[number], "tstamp")
        sound[number] = time_ns >= latest_ns
        latest_ns = max(latest_ns, time_ns)
    return sound


def _id(event: Event) -> int:
    number = parse_number(os.fsencode(event.attributes.get("id", "")), -1)
    return number if number <= INT64_MAX else -1


def _sample(number: int, labels: list[str], before: npt.NDArray[Any], after: npt.NDArray[Any]) -> Sample:
    states = [max(_ns(after, name) - _ns(before, name), 0) for name in STATES]
    real_ns = _ns(after, "real") - _ns(before, "real")
    states[STATES.index("sleep")] += max(real_ns - sum(states), 0)  # so do other readers
    counters = {name: max(int(after[name]) - int(before[name]), 0) for name in COUNTERS}
    return Sample(number, labels[0], labels[1], _ns(before, "tstamp"), _ns(after, "tstamp"), tuple(states), counters)


def _ns(row: npt.NDArray[Any], name: str) -> int:
    return int(row[name + "_s"]) * NS_PER_S + int(row[name + "_ns"])
