"""What is spooled is read again in order of time, in little memory; a full disk is told as what it is."""

from __future__ import annotations

import resource
import tempfile
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from collector.export.formats import ExportError
from collector.export.spool import Spool


def test_spooled_rows_are_in_order_of_time() -> None:
    random = np.random.default_rng(20_261_124)
    threads, times = random.integers(0, 3, 1000), random.permutation(1000)
    with Spool(np.bincount(threads, minlength=4) + 7, 2) as spool:
        for begin in range(0, 1000, 90):
            some = slice(begin, begin + 90)
            spool.put(threads[some], (times[some], threads[some] * 1000 + times[some]))
        for thread in range(4):
            rows = np.concatenate([np.zeros((0, 2), np.int64), *spool.of(thread)])
            assert rows[:, 0].tolist() == sorted(times[threads == thread].tolist())
            assert (rows[:, 1] == thread * 1000 + rows[:, 0]).all()


def test_putting_a_thread_in_order_takes_a_few_bytes_a_row() -> None:
    n, n_bytes = 400_000, 5 * 8
    times = np.arange(n) ^ 1  # each is before the one that comes before it
    with Spool(np.array([n]), 5) as spool:
        for begin in range(0, n, 50_000):
            some = times[begin:begin + 50_000]
            spool.put(np.zeros(len(some), np.int64), [some] * 5)
        tracemalloc.start()
        try:
            seen = sum(int((rows[:, 4] == rows[:, 0]).sum()) for rows in spool.of(0))
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert seen == n
    assert peak < n * n_bytes  # less than the rows themselves


def test_temporary_files_that_find_no_room_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the first rows a part is written, which is no error of the kernel's."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Spool(np.array([100]), 2) as spool:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
        try:
            with pytest.raises(ExportError, match="temporary files: File too large; set TMPDIR"):
                spool.put(np.zeros(100, np.int64), [np.arange(100)] * 2)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(ExportError, match="temporary files: No such file or directory; set TMPDIR"):
        Spool(np.array([100]), 2)
