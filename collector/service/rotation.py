"""When a session's next run begins and how long it lasts. Pure; the clock is handed in.

    every_s   |<------------------ 60 ------------------>|
    record_s  |<-- 10 -->|                               |<-- 10 -->|

The first window begins at once. The others begin at multiples of ``every_s``, whatever the runs before took, shifted by
a ``phase``: sessions that were begun together need not all be at work together. Without ``record_s`` one run follows
the other, each of ``rotate_s``; or less where processes came that are to be recorded, too.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collector.service.targets import Process

ROTATE_S = 3600.0
_LOOK_S = 5.0
_PATIENCE_S, _PATIENCE_MAX_S = 10.0, 600.0


class Plan(NamedTuple):
    """``record_s`` of every ``every_s`` (0: always), in pieces of at most ``rotate_s`` (0: as long as the processes
    live) and ``rotate_megabytes``. ``once``: one run. ``phase``: from 0 to 1, of
    ``every_s``."""

    record_s: float = 0.0
    every_s: float = 0.0
    rotate_s: float = ROTATE_S
    rotate_megabytes: int = 64
    once: bool = False
    phase: float = 0.0

    @property
    def period_s(self) -> float:
        """From one window to the next; 0 where there is nothing between them."""
        return self.every_s if self.record_s < self.every_s else 0.0


class Window(NamedTuple):
    """The next run: when it is to begin, and for how long (0: until its processes end)."""

    begin_s: float
    length_s: float


def next_window(plan: Plan, began_s: float, now_s: float, n_runs: int, stretched: float = 1.0) -> Window | None:
    """The window in which something is to be recorded from ``now_s`` on; None when there is none any more.

    ``stretched`` by the budget, there is as much to a window, and more time between them.
    """
    if plan.once:
        return Window(now_s, 0.0) if not n_runs else None
    if not plan.period_s:
        return Window(now_s, plan.rotate_s)
    length_s = min(plan.record_s, plan.rotate_s or plan.record_s)
    if not n_runs:
        return Window(now_s, length_s)
    every_s = plan.every_s * stretched
    first_s = began_s + plan.phase * every_s
    return Window(first_s + ((now_s - first_s) // every_s + 1) * every_s, length_s)  # wherever the clock was set


class Newcomers:
    """When a run ends for processes that came after it had begun, which the next one takes up.

    They count if two looks have met them. Where they come all the time, each run lasts twice as long as the one before,
    up to ten minutes; where they have become rare, half as long at least.
    """

    def __init__(self) -> None:
        self._patience_s = _PATIENCE_S
        self._began_s = self._looked_s = 0.0
        self._met: frozenset[Process] = frozenset()

    def begin(self, now_s: float) -> None:
        """A run begins."""
        self._began_s = self._looked_s = now_s
        self._met = frozenset()

    def is_due(self, now_s: float, stretched: float) -> bool:
        """Whether it is time for a look."""
        return now_s - self._looked_s >= _LOOK_S * stretched

    def look(self, now_s: float, found: frozenset[Process]) -> frozenset[Process]:
        """Takes those that are there now; for which of them the run is to end."""
        met, self._met, self._looked_s = self._met & found, found, now_s
        lasted_s = now_s - self._began_s
        if not met or lasted_s < self._patience_s:
            return frozenset()
        are_rare = lasted_s >= 2 * self._patience_s
        self._patience_s = (max(self._patience_s / 2, _PATIENCE_S) if are_rare
                            else min(self._patience_s * 2, _PATIENCE_MAX_S))
        self._began_s = math.inf  # it ends once
        return met
