"""What is shown, and how: set by options, changed by keys."""

from __future__ import annotations

from dataclasses import dataclass, field

FUNCTIONS, THREADS, STATES = "functions", "threads", "states"
VIEWS = (FUNCTIONS, THREADS, STATES)
DELAY_MIN_S, DELAY_MAX_S = 0.1, 3600.0
WINDOW_MAX_S = 60.0


@dataclass
class Settings:
    """``window_s`` 0: the last interval. ``metric``: place among the experiment's; None: CPU time. ``sort``: by view,
    the column. ``first``: the first row that is shown.
    """

    view: str = FUNCTIONS
    delay_s: float = 1.0
    window_s: float = 0.0
    is_cumulative: bool = False
    hides_idle: bool = False
    is_paused: bool = False
    shows_help: bool = False
    metric: int | None = None
    search: str = ""
    first: int = 0
    sort: dict[str, int] = field(default_factory=lambda: {FUNCTIONS: 0, THREADS: 1, STATES: 0})
    is_reversed: bool = False
    message: str = ""
