"""Threads of which it is known that they left their CPU, but not from where: a look at those that still wait there.

The records of departures come with stacks and are large: of a thousand threads that begin to wait while the collector
starts, some are lost. Whoever is blocked still can be asked: the kernel shows its registers, and its stack stays as it
is. That takes time, so that there is a budget for it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from collector.events import ClockSamples, Edge
from collector.processes.model import Thread
from collector.session.attach import STACK_WORDS, departures, find

_BUDGET, _MORE_EACH_TIME = 4000, 300  # looks of about 50 us


class Looks:
    """Looks at blocked threads, as far as the budget allows."""

    def __init__(self) -> None:
        self._left = _BUDGET

    def at(self, threads: Sequence[Thread], now_ns: int, stack_words: int = STACK_WORDS) -> list[ClockSamples]:
        """Where threads are blocked, by process, as samples of their leaving just before ``now_ns``."""
        self._left = min(self._left + _MORE_EACH_TIME, _BUDGET)
        by_process = defaultdict(list)
        for thread in threads[:self._left]:
            found = find(thread.process.pid, thread.tid)
            if found is not None and found.cut == Edge.OUT_BLOCKED:
                by_process[thread.process.pid].append(found)
        self._left -= min(len(threads), self._left)
        samples = []
        for pid, blocked in by_process.items():
            try:
                leaving = departures(pid, blocked, now_ns, stack_words).leaving
            except OSError:  # it has ended meanwhile
                continue
            if leaving is not None:
                samples.append(leaving)
        return samples
