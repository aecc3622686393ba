"""Packets as a table in Parquet, a row for each, for SQL and data frames.

    time_ns     int64           since the earliest start; when what is told had ended
    duration_ns int64           how long it was, as far as that is known
    wall_time   timestamp       the same end by the calendar, as exactly as the start is known (a second)
    host        text            the machine
    process, pid, thread, tid, thread_number, cpu
    kind        text            profile, synctrace, heaptrace, iotrace, hwcounters
    state       text            of clock profiling: user, system, ... other
    time_us     int64           of clock profiling: what the packet counts for
    stack       list of text    functions, leaf first
    labels      map of text     what ``collect --label`` and the service say of the recording
    sync, ...   int64           a column for each quantity of the other kinds that were recorded

``SELECT state, sum(time_us) FROM 'test.parquet' GROUP BY state``; the leaf is ``stack[1]``; of many machines, ``SELECT
host, labels['unit'], sum(time_us) FROM '*.parquet' GROUP BY ALL``. What the recording said of itself is in the file's
metadata, ``collect.notes``. The keeper of pyarrow.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet

from collector.clock import NS_PER_US
from collector.export.choices import Choices, names, notes, text, thread_names
from collector.export.text import printable
from collector.report.metrics import N_STATE_COLUMNS, STATE_OTHER
from collector.report.profile import picked
from collector.report.samples import Block, Samples

_LABEL = pa.dictionary(pa.int32(), pa.string())
_CALENDAR = pa.timestamp("us", "UTC")
_PAIRS = pa.map_(pa.string(), pa.string())
_FIELDS = [("time_ns", pa.int64()), ("duration_ns", pa.int64()), ("wall_time", _CALENDAR), ("host", _LABEL),
           ("process", _LABEL), ("pid", pa.int64()), ("thread", _LABEL), ("tid", pa.int64()),
           ("thread_number", pa.int64()), ("cpu", pa.int64()), ("kind", _LABEL), ("state", _LABEL),
           ("time_us", pa.int64()), ("stack", pa.list_(pa.string())), ("labels", _PAIRS)]
_NAMES_MAX = 1 << 27  # bytes of names in the stacks of a group of rows; offsets of Arrow's texts end at 2 GB
_FRAME_SIZE = 8  # what a frame takes besides its name


def write(samples: Samples, out: BinaryIO, choices: Choices) -> None:
    """A group of rows for each block, or more of them; ``choices`` say nothing to it."""
    rows = _Rows(samples)
    with pyarrow.parquet.ParquetWriter(out, rows.schema, compression="zstd") as writer:
        for block in samples.blocks():
            for piece in rows.pieces(block):
                writer.write_table(rows.table(piece))


class _Rows:
    """From blocks to tables."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples
        self._traced = {one.name: one.columns[0] for one in samples.quantities if one.columns[0] >= N_STATE_COLUMNS}
        about = {"collect.notes": text(notes(samples)), "collect.interval_us": str(samples.interval_us)}
        self.schema = pa.schema([*_FIELDS, *((name, pa.int64()) for name in self._traced)], about)
        logs = [one.experiment.log for one in samples.processes]
        self._hosts = pa.array([printable(os.fsencode(log.hostname)) for log in logs], pa.string())
        self._about = [pa.array([_printable_pairs(log.labels)], _PAIRS) for log in logs]
        self._processes = pa.array([printable(one.name) for one in samples.processes], pa.string())
        self._threads = pa.array(thread_names(samples), pa.string())
        self._tids = np.array([one.tid for one in samples.threads], np.int64)
        self._numbers = np.array([one.number for one in samples.threads], np.int64)
        self._states = pa.array(self._state_names(), pa.string())
        self._functions = pa.array(names(samples), pa.string())
        self._stacks, self._stack_of = samples.function_stacks
        sizes = pyarrow.compute.binary_length(self._functions).to_numpy().astype(np.int64) + _FRAME_SIZE
        self._sizes = np.diff(np.append(0, np.cumsum(sizes[self._stacks.frames]))[self._stacks.offsets])

    def _state_names(self) -> Sequence[str]:
        found = {one.columns[0]: one.name for one in self._samples.quantities}
        return [found.get(column, "other") for column in range(STATE_OTHER + 1)]

    def pieces(self, block: Block) -> Iterator[Block]:
        """The packets of a block in pieces, each of which is as much as should be in memory at once."""
        sums = np.cumsum(self._sizes[self._stack_of[block.stack]]) // _NAMES_MAX
        cuts = [0, *(np.flatnonzero(np.diff(sums)) + 1).tolist(), len(block)]
        return (block.chosen(slice(begin, end)) for begin, end in pairwise(cuts) if end > begin)

    def table(self, block: Block) -> Any:
        """The packets of a block."""
        samples, n = self._samples, len(block)
        process = samples.processes[block.process]
        is_clock = block.state >= 0
        since_start_us = (block.time_ns - process.start_ns) // NS_PER_US
        columns = [
            pa.array(block.time_ns - samples.start_ns), pa.array(block.duration_ns),
            pa.array(process.start_unix_ns // NS_PER_US + since_start_us).cast(_CALENDAR),
            self._labels(np.full(n, block.process), self._hosts),
            self._labels(np.full(n, block.process), self._processes),
            pa.array(np.full(n, process.pid, np.int64)),
            self._labels(block.thread, self._threads), pa.array(self._tids[block.thread]),
            pa.array(self._numbers[block.thread]), pa.array(block.cpu),
            self._labels(np.zeros(n), pa.array([block.kind], pa.string())),
            self._labels(np.maximum(block.state, 0), self._states, ~is_clock),
            pa.array(block.time_us, mask=~is_clock), self._lists(block),
            self._about[block.process].take(pa.array(np.zeros(n, np.int32)))]
        for column in self._traced.values():
            place = column - block.first
            is_there = not is_clock.any() and 0 <= place < block.values.shape[1]
            columns.append(pa.array(block.values[:, place]) if is_there else pa.nulls(n, pa.int64()))
        return pa.Table.from_arrays(columns, schema=self.schema)

    def _labels(self, places: Any, values: Any, missing: Any = None) -> Any:
        return pa.DictionaryArray.from_arrays(pa.array(places.astype(np.int32), mask=missing), values)

    def _lists(self, block: Block) -> Any:
        """The stacks of packets."""
        frames, offsets = picked(self._stacks.frames, self._stacks.offsets, self._stack_of[block.stack])
        return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), self._functions.take(pa.array(frames)))


def _printable_pairs(labels: Mapping[str, str]) -> list[tuple[str, str]]:
    return [(printable(os.fsencode(name)), printable(os.fsencode(value))) for name, value in labels.items()]
