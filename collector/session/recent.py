"""The latest clock samples of an image, which stand for the time of its threads that had none of their own.

A thread that is over before its clock was due most likely did what others of its kind did. The first thread of a
process is of another kind than those that it starts: it waits for them, and most often works elsewhere.
"""

from __future__ import annotations

import numpy as np

from collector.arrays import indices
from collector.events import Array

_N_KEPT = 500  # of each kind


class Recent:
    """Samples by kind of thread: of the process's first one, and of all others."""

    def __init__(self) -> None:
        self._kept: dict[bool, list[Array]] = {}
        self._n_borrowed = 0

    def note(self, is_first: Array, *columns: Array) -> None:
        """Further clock samples (n,) in time order: whether they are of the first thread; time, CPU, uid, state."""
        for kind in (True, False):
            rows = indices(is_first == kind)[-_N_KEPT:]
            if len(rows):
                before = self._kept.get(kind) or [column[:0] for column in columns]
                self._kept[kind] = [np.concatenate([old, new[rows]])[-_N_KEPT:]
                                    for old, new in zip(before, columns, strict=True)]

    def borrowed(self, life_ns: tuple[int, int], *, of_first: bool) -> tuple[int, int, int] | None:
        """CPU, uid and state for a thread without samples: each in turn of those that threads of a kind had while it
        lived, else their last one before its end; None: that kind has none."""
        if of_first not in self._kept:
            return None
        times_ns, cpus, uids, states = self._kept[of_first]
        first, end = times_ns.searchsorted(life_ns).tolist()
        self._n_borrowed += 1
        row = first + self._n_borrowed % (end - first) if end > first else max(end - 1, 0)
        return int(cpus[row]), int(uids[row]), int(states[row])
