"""Packets put in order of their threads, in a temporary file: as many as there are, in little memory."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from tempfile import TemporaryFile
from types import TracebackType

import numpy as np

from collector.report.profile import I8

_AT_ONCE = 1 << 16


class Spool:
    """Rows of ``width`` numbers, the first of which is their time, for some threads; ``counts`` (threads) of each.

    What is read of a thread is in order of time.
    """

    def __init__(self, counts: I8, width: int) -> None:
        self._file = TemporaryFile(prefix="er_export-")  # noqa: SIM115 - closed with us
        self._width = width
        self._begins = np.append(0, np.cumsum(counts))
        self._ends = self._begins[:-1].copy()
        self._last = np.full(len(counts), -1, np.int64)
        self._in_order = np.ones(len(counts), np.bool_)

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, kind: type[BaseException] | None, err: BaseException | None, where: TracebackType | None
                 ) -> None:
        self._file.close()

    def put(self, threads: I8, columns: Sequence[I8]) -> None:
        """Some rows (n) of the ``columns`` (width, n), each of the thread given (n)."""
        order = np.argsort(threads, kind="stable")
        rows = np.stack(columns, axis=1)[order].astype(np.int64, copy=False)
        begins = np.flatnonzero(np.append(True, np.diff(threads[order]) != 0))[:len(order)]
        for begin, end in zip(begins.tolist(), [*begins[1:].tolist(), len(order)], strict=True):
            thread, mine = int(threads[order[begin]]), rows[begin:end]
            times = np.append(self._last[thread], mine[:, 0])
            self._in_order[thread] &= bool((np.diff(times) >= 0).all())
            self._last[thread] = times[-1]
            os.pwrite(self._file.fileno(), mine.tobytes(), int(self._ends[thread]) * self._width * 8)
            self._ends[thread] += len(mine)

    def of(self, thread: int) -> Iterator[I8]:
        """The rows of a thread (n, width), some at a time."""
        if not self._in_order[thread]:
            self._sort(thread)
        for begin in range(int(self._begins[thread]), int(self._ends[thread]), _AT_ONCE):
            yield self._read(begin, min(begin + _AT_ONCE, int(self._ends[thread])))

    def _sort(self, thread: int) -> None:
        begin, end = int(self._begins[thread]), int(self._ends[thread])
        rows = self._read(begin, end)
        rows = rows[np.argsort(rows[:, 0], kind="stable")]
        os.pwrite(self._file.fileno(), rows.tobytes(), begin * self._width * 8)
        self._in_order[thread] = True

    def _read(self, begin: int, end: int) -> I8:
        size = self._width * 8
        found = os.pread(self._file.fileno(), (end - begin) * size, begin * size)
        return np.frombuffer(found, np.int64).reshape(-1, self._width)
