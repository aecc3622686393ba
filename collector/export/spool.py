"""Packets put in order of their threads, in a temporary file: as many as there are, in little memory.

A thread's rows stay where they were put. Where they are not in order of time, the order of the thread that is being
read is kept, eight bytes a row.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from tempfile import TemporaryFile
from types import TracebackType

import numpy as np

from collector.export.formats import ExportError
from collector.report.profile import I8

_AT_ONCE = 1 << 16


class Spool:
    """Rows of ``width`` numbers, the first of which is their time, for some threads; ``counts`` (threads) of each.

    All are put before any are read. What is read of a thread is in order of time. Raises ExportError where the folder
    of temporary files has no room.
    """

    def __init__(self, counts: I8, width: int) -> None:
        with _told():
            self._file = TemporaryFile(prefix="er_export-")  # noqa: SIM115 - closed with us
        self._width = width
        self._begins = np.append(0, np.cumsum(counts))
        self._ends = self._begins[:-1].copy()
        self._last = np.full(len(counts), -1, np.int64)
        self._in_order = np.ones(len(counts), np.bool_)
        self._order: tuple[int, I8] = -1, np.zeros(0, np.int64)  # of the thread that was read last

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, kind: type[BaseException] | None, err: BaseException | None, where: TracebackType | None
                 ) -> None:
        self._file.close()

    def put(self, threads: I8, columns: Sequence[I8]) -> None:
        """Some rows (n) of the ``columns`` (width, n), each of the thread given (n)."""
        if not len(threads):
            return
        order = np.argsort(threads, kind="stable")
        rows = np.stack(columns, axis=1)[order].astype(np.int64, copy=False)
        begins = np.flatnonzero(np.append(True, np.diff(threads[order]) != 0))
        for begin, end in zip(begins.tolist(), [*begins[1:].tolist(), len(order)], strict=True):
            thread, mine = int(threads[order[begin]]), rows[begin:end]
            times = np.append(self._last[thread], mine[:, 0])
            self._in_order[thread] &= bool((np.diff(times) >= 0).all())
            self._last[thread] = times[-1]
            self._write(mine, int(self._ends[thread]))
            self._ends[thread] += len(mine)

    def _write(self, rows: I8, place: int) -> None:
        rest, offset = rows.data.cast("B"), place * self._width * 8
        with _told():
            while rest:
                n_written = os.pwrite(self._file.fileno(), rest, offset)
                rest, offset = rest[n_written:], offset + n_written

    def of(self, thread: int) -> Iterator[I8]:
        """The rows of a thread (n, width), some at a time."""
        first, end = int(self._begins[thread]), int(self._ends[thread])
        if not self._in_order[thread] and self._order[0] != thread:
            self._order = thread, first + np.argsort(self._times(first, end), kind="stable")
        for begin in range(first, end, _AT_ONCE):
            some = slice(begin, min(begin + _AT_ONCE, end))
            if self._in_order[thread]:
                yield np.array(self._rows[some])
            else:
                yield np.asarray(self._rows[self._order[1][some.start - first:some.stop - first]])

    def _times(self, first: int, end: int) -> I8:
        times = np.empty(end - first, np.int64)
        for begin in range(first, end, _AT_ONCE):
            some = self._rows[begin:min(begin + _AT_ONCE, end), 0]
            times[begin - first:begin - first + len(some)] = some
        return times

    @cached_property
    def _rows(self) -> I8:
        """All that was put (n, width), without being read into memory."""
        with _told():
            rows: I8 = np.memmap(self._file, np.int64, "r").reshape(-1, self._width)
        return rows


@contextmanager
def _told() -> Iterator[None]:
    """What goes wrong with the file is not the export's fault, which has a place of its own."""
    try:
        yield
    except OSError as err:
        raise ExportError(f"temporary files: {err.strerror or err}; set TMPDIR to a folder with room for them") from err
