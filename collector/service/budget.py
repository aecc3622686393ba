"""What the daemon and its sessions may cost: a share of one CPU, held by lengthening intervals. Pure.

The cost of a recording goes with 1/interval, and, of windows, with 1/period; both are multiplied by ``stretched``. The
share is that of the last ``LOOK_S``, or of the longest time from window to window if that is more: a look that sees
less sees either recordings or none. Above the budget intervals become longer at once, below half of it they
become shorter slowly.
"""

from __future__ import annotations

LOOK_S = 30.0
STRETCHED_MAX = 64.0
_MARGIN = 1.1
_BACK = 1.5


class Budget:
    """``percent`` of one CPU; 0: no limit."""

    def __init__(self, percent: float, now_s: float, cpu_s: float) -> None:
        self.percent = percent
        self.stretched = 1.0
        self.share = 0.0  # of the last look
        self._at_s, self._cpu_s = now_s, cpu_s

    def look(self, now_s: float, cpu_s: float, period_s: float = 0.0) -> str | None:
        """Takes all CPU seconds so far, and the longest time from window to window; a line where intervals become
        longer or shorter."""
        if now_s - self._at_s < max(LOOK_S, period_s * self.stretched):
            return None
        self.share = (cpu_s - self._cpu_s) / (now_s - self._at_s)
        self._at_s, self._cpu_s = now_s, cpu_s
        before, self.stretched = self.stretched, self._next()
        if self.stretched == before:
            return None
        change = "longer" if self.stretched > before else "shorter"
        return (f"recording took {100 * self.share:.2f} % of a CPU, of {self.percent:g} % allowed: intervals are "
                f"{change}, {self.stretched:.2f} times what was asked for")

    @property
    def is_over(self) -> bool:
        """More is used than allowed, and nothing can be lengthened any more."""
        return bool(self.percent) and self.share * 100 > self.percent and self.stretched >= STRETCHED_MAX

    def _next(self) -> float:
        if not self.percent:
            return 1.0
        allowed = self.percent / 100
        if self.share > allowed:
            return min(self.stretched * min(self.share / allowed * _MARGIN, 8.0), STRETCHED_MAX)
        if self.share < allowed / 2:
            return max(self.stretched / _BACK, 1.0)
        return self.stretched
