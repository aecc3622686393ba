"""How long the work on a batch may wait for CPUs that others want, see ``linux.background``. Times in, times out."""

from __future__ import annotations

from collector.clock import NS_PER_MS

MOST_NS = 250 * NS_PER_MS  # from when a batch was taken until it is written
_MOST_SHARE, _RECOVERS = 0.5, 1.07  # of the time in which rings have room; and how that grows from batch to batch
_CONTENTION = 2  # times its CPU time is what work takes beside others, when its patience is over


class Patience:
    """So much that no ring is full before the batch is worked on: less where some were, and then it takes ten batches
    until it is twice as long again."""

    def __init__(self) -> None:
        self._share = _MOST_SHARE
        self._work_ns = 0  # CPU time that a batch takes, lately

    def for_next(self, room_ns: int, *, lost: bool) -> int:
        """Of the next batch. ``room_ns``: how long the rings have room; ``lost``: whether one was full before it."""
        self._share = self._share / 2 if lost else min(self._share * _RECOVERS, _MOST_SHARE)
        return min(max(int(room_ns * self._share) - _CONTENTION * self._work_ns, 0), MOST_NS)

    def worked(self, cpu_ns: int) -> None:
        """A batch took so much CPU time."""
        self._work_ns = max(cpu_ns, self._work_ns // 2)
