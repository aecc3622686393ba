"""Stacks of blocked threads whose switch-out was not recorded, read through /proc.

The records of departures come with stacks and are large: of a thousand threads that begin to wait while the collector
starts, some are lost. Whoever is blocked still can be read: the kernel shows its registers, and its stack stays as it
is. That takes time, so that there is a budget for it.
"""

from __future__ import annotations

from collections.abc import Sequence

from collector.events import ClockSamples
from collector.session.attach import STACK_WORDS
from collector.session.world import Sleeper, World

# Threads, of some 60 us each. Three thousand can be asked twice: while they begin, and where they wait then.
_BUDGET, _AT_ONCE, _MORE_EACH_TIME = 6000, 4000, 300


class BlockedStacks:
    """Reads the stacks of blocked threads, as far as the budget allows."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._left = _BUDGET

    @property
    def room(self) -> int:
        """For how many threads the budget has room with the next look."""
        return min(self._left + _MORE_EACH_TIME, _BUDGET, _AT_ONCE)

    def read(self, sleepers: Sequence[Sleeper], now_ns: int, stack_words: int = STACK_WORDS) -> list[ClockSamples]:
        """Where threads are blocked, by process, as samples of their leaving just before ``now_ns``."""
        asked = sleepers[:self.room]
        self._left = min(self._left + _MORE_EACH_TIME, _BUDGET) - len(asked)
        return self._world.blocked(asked, now_ns, stack_words)
