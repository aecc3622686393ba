"""How often a runtime is looked at, whose functions can be named as long as its process lives. Times in, times out.

A look costs as much for ten functions as for a thousand: all stacks since the last one are unwound with it. So a
program is looked at when it is a quarter older than at the last look, and what its end leaves without names is a fifth
of what was met for the first time at most, of a long life much less. What goes on to be compiled, with all that was
known of it, is looked at when it is an eighth older, until that is seldom enough.

What a compiler makes can be known without any stack that leads to it. Such a look takes a millisecond, so there is one
whenever the program is a 64th older: code that comes right before the end and has no name is that part of a life. It is
left out when drains, which find what stacks lead to, come as often.
"""

from __future__ import annotations

from collector.clock import NEVER_NS, NS_PER_MS
from collector.session.schedule import DRAIN_PERIOD_NS

SHORTEST_NS, LONGEST_YOUNG_NS, LONGEST_NS = 100 * NS_PER_MS, 400 * NS_PER_MS, 1600 * NS_PER_MS
YOUNG_NS = 3000 * NS_PER_MS  # of a program, in which most functions are met, and most code is compiled
COMPILING_NS = 7400 * NS_PER_MS  # the same of one that goes on to be compiled: from then on it is drained as often
_PART_OF_AGE, _LATER_PART, _CODE_PART = 4, 8, 64


class Pace:
    """Of looks at one process, which runs its program since ``start_ns``. The first one is due at once."""

    def __init__(self, start_ns: int, young_ns: int = YOUNG_NS) -> None:
        """``young_ns``: for how long it is young."""
        self.due_ns = 0
        self._young_until_ns = start_ns + young_ns
        self._start_ns = start_ns
        self._period_ns = SHORTEST_NS

    def is_young(self, now_ns: int) -> bool:
        """Whether the program is, and may end soon."""
        return now_ns < self._young_until_ns

    def looked(self, now_ns: int, *, is_new: bool) -> None:
        """There was a look. ``is_new``: whether more like this is to be expected soon; where it is not, or not in a
        program of that age, the next one has twice as much time."""
        if is_new and self.is_young(now_ns):
            age_ns = now_ns - self._start_ns
            often_ns = min(max(age_ns // _PART_OF_AGE, SHORTEST_NS), LONGEST_YOUNG_NS)
            self._period_ns = max(often_ns, age_ns // _LATER_PART)
        else:
            self._period_ns = min(self._period_ns * 2, LONGEST_NS)
        self.due_ns = now_ns + self._period_ns

    def code_due_ns(self, now_ns: int) -> int:
        """When code is to be looked at that has come since ``now_ns``, with samples or without."""
        age_ns = now_ns - self._start_ns
        period_ns = max(age_ns // _CODE_PART, SHORTEST_NS)
        return now_ns + period_ns if period_ns < DRAIN_PERIOD_NS else NEVER_NS
