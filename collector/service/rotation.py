"""When a session's next run begins and how long it lasts. Pure; the clock is handed in.

    every_s   |<------------------ 60 ------------------>|
    record_s  |<-- 10 -->|                               |<-- 10 -->|

The first window begins at once. The others begin at multiples of ``every_s``, whatever the runs before took, shifted by
a ``phase``: sessions that were begun together need not all be at work together. Without ``record_s`` one run follows
the other, each of ``rotate_s``.
"""

from __future__ import annotations

from typing import NamedTuple

ROTATE_S = 3600.0


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
