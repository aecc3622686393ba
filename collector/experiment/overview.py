"""The overview: one record per sample point, each with everything up to then.

Readers refuse an experiment whose overview is not a multiple of the record's size. So the file first grows by
one record, at once, and the record is written afterwards; a full disk is met before anything is changed.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields

import numpy as np

from collector.clock import NS_PER_S
from collector.experiment.blocks import failure
from collector.experiment.records import N_STATES, OVERVIEW, STATES

NAME = "overview"


@dataclass(frozen=True)
class Usage:
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


_COUNTERS = [field.name for field in fields(Usage)][1:]


def record(usage: Usage, wsize: int, pid: int, count: int, start_ns: int, time_ns: int) -> bytes:
    """The bytes of one record; real time is the sum of the states, as over all threads of a process."""
    row = np.zeros(1, OVERVIEW[wsize].dtype)
    row["lwpid"] = pid
    row["count"] = count
    times = {"tstamp": time_ns, "created": start_ns, "real": sum(usage.states_ns),
             **dict(zip(STATES, usage.states_ns, strict=True))}
    for name, value_ns in times.items():
        row[name + "_s"], row[name + "_ns"] = divmod(max(int(value_ns), 0), NS_PER_S)
    largest = (1 << wsize) - 1
    for name in _COUNTERS:
        row[name] = min(getattr(usage, name), largest)
    return row.tobytes()


def append(directory_fd: int, content: bytes) -> None:
    """Append one record. Raises DiskFull or ExperimentError; then the file is as it was."""
    try:
        fd = os.open(NAME, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory_fd)
        try:
            size = os.fstat(fd).st_size
            try:
                os.posix_fallocate(fd, size, len(content))
            except OSError:
                os.ftruncate(fd, size)
                raise
            os.pwrite(fd, content, size)
        finally:
            os.close(fd)
    except OSError as error:
        raise failure(NAME, error) from error
