"""What the daemon and its sessions may cost: a share of one CPU, held by lengthening intervals. Pure.

What is recorded again and again, for the configuration, has the share of ``Budget``: each run begins with the interval
that holds then, and windows are further apart. What clients ask for goes on as it began, and nothing that the daemon
lengthens would make it less; it has as large a share of its own, ``ClientsBudget``, which the next of them pays for.

A run costs 1/interval, and windows also 1/period: both are multiplied by ``stretched``. A run keeps the factor that it
began with, maybe for an hour. So its CPU time, times that factor, is what it would take as asked for, and the factor
that holds the budget follows from that at once, however old the run's own is.
"""

from __future__ import annotations

import math
from typing import NamedTuple

LOOK_S = 30.0
STRETCHED_MAX = 64.0
_STEP_MAX = 8.0
_MARGIN = 1.1


class Used(NamedTuple):
    """CPU seconds so far: of the daemon and its children that are no runs; of runs for the configuration, and each of
    these times the factor that it began with; of runs that clients asked for."""

    own_s: float = 0.0
    runs_s: float = 0.0
    asked_s: float = 0.0
    clients_s: float = 0.0

    def plus(self, other: Used) -> Used:
        """Both."""
        return Used(*(a + b for a, b in zip(self, other, strict=True)))

    def per_s(self, before: Used, seconds: float) -> Used:
        """What was used since ``before``, so many seconds ago, in parts of a CPU."""
        return Used(*((a - b) / seconds for a, b in zip(self, before, strict=True)))


class _Share:
    """``percent`` of one CPU for something, 0: no limit; and by which intervals are lengthened to keep to it."""

    def __init__(self, percent: float, now_s: float, used: Used) -> None:
        self.percent = percent
        self.stretched = 1.0
        self.share = 0.0  # of the last look
        self._at_s, self._used = now_s, used

    def _since(self, now_s: float, used: Used) -> Used:
        """What was used since the last look, in parts of a CPU; the next one begins."""
        part = used.per_s(self._used, now_s - self._at_s)
        self._at_s, self._used = now_s, used
        return part


class Budget(_Share):
    """``percent`` of one CPU for the daemon and what the configuration asks for; 0: no limit.

    A look is ``LOOK_S`` long, or as the longest time from window to window if that is more: one that is shorter sees
    either recordings or none. The same time after a change there are windows of before, and of now none yet.
    """

    def __init__(self, percent: float, now_s: float, used: Used) -> None:
        super().__init__(percent, now_s, used)
        self._has_changed = False

    def look(self, now_s: float, used: Used, period_s: float = 0.0) -> str | None:
        """Takes what was used so far, and the longest time from window to window; a line where intervals become
        longer or shorter."""
        if self._has_changed and now_s - self._at_s >= period_s * self.stretched:
            self._at_s, self._used, self._has_changed = now_s, used, False
        if self._has_changed or now_s - self._at_s < max(LOOK_S, period_s * self.stretched):
            return None
        part = self._since(now_s, used)
        self.share = part.own_s + part.runs_s
        before, self.stretched = self.stretched, self._next(part.own_s * self.stretched + part.asked_s)
        self._has_changed = self.stretched != before
        if not self._has_changed:
            return None
        change = "longer" if self.stretched > before else "shorter"
        return (f"recording took {100 * self.share:.2f} % of a CPU, of {self.percent:g} % allowed: intervals are "
                f"{change}, {self.stretched:.2f} times what was asked for")

    @property
    def is_over(self) -> bool:
        """More is used than allowed, and nothing can be lengthened any more."""
        return bool(self.percent) and self.share * 100 > self.percent and self.stretched >= STRETCHED_MAX

    def _next(self, asked: float) -> float:
        """The factor that holds the budget; ``asked``: the part of a CPU that would be used as asked for."""
        if not self.percent:
            return 1.0
        allowed = self.percent / 100
        wanted = asked / allowed * _MARGIN
        if self.share > allowed:
            is_near = self.stretched / _MARGIN <= wanted <= self.stretched * _MARGIN  # runs of before are not over yet
            return self.stretched if is_near else max(min(wanted, self.stretched * _STEP_MAX, STRETCHED_MAX), 1.0)
        if self.share < allowed / 2:  # windows cost 1/stretched squared: less would be too little for them
            return max(min(math.sqrt(wanted * self.stretched), self.stretched), 1.0)
        return self.stretched


class ClientsBudget(_Share):
    """``percent`` of one CPU for what clients ask for; 0: no limit.

    Who has begun goes on. While all of them take n times what is allowed, the next one begins with an interval that is
    n times as long.
    """

    def __init__(self, percent: float, now_s: float, used: Used) -> None:
        super().__init__(percent, now_s, used)
        self._is_told = False

    def look(self, now_s: float, used: Used) -> str | None:
        """Takes what was used so far; a line where it becomes too much, and where it is that no more."""
        if now_s - self._at_s < LOOK_S:
            return None
        self.share = self._since(now_s, used).clients_s
        over = 100 * self.share / self.percent if self.percent else 0.0
        self.stretched = max(min(over, STRETCHED_MAX), 1.0)
        before, self._is_told = self._is_told, over > 1 or (self._is_told and over > 0.5)
        if self._is_told == before:
            return None
        how = f"the next begins with intervals {over:.2f} times as long" if over > 1 else "all is well"
        return (f"what clients asked for takes {100 * self.share:.2f} % of a CPU, of {self.percent:g} % allowed beside "
                f"the configuration's: {how}")
