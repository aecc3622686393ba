"""Threads that were there when the recording of a running process began, and of whose end no record may tell."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

from collector.clock import NEVER_NS, NS_PER_MS
from collector.events import Exited

_SOON_NS = 20 * NS_PER_MS


class Unheard:
    """Threads that were born while the events of others were opened, by one that had none yet, or on some CPUs only.

    What they inherited of events, if any, tells of their end on some CPUs at best. So they are looked for at each
    drain. (That the end of one is told twice is no harm.) Threads that come and go end soon, and are told to have lived
    until the next drain: so there is one soon at first, and then whenever as much time has passed again.
    """

    def __init__(self) -> None:
        self._there: set[tuple[int, int]] = set()
        self._since_ns = 0

    def watch(self, pid: int, tids: Iterable[int]) -> None:
        """From now on these threads of a process, which were there a moment ago."""
        self._since_ns = time.monotonic_ns()
        self._there.update((pid, tid) for tid in tids)

    def ended(self, now_ns: int) -> list[Exited]:
        """Those that have ended since the last look."""
        gone = [(pid, tid) for pid, tid in self._there if not os.path.exists(f"/proc/{pid}/task/{tid}")]
        self._there.difference_update(gone)
        return [Exited(now_ns, pid, tid) for pid, tid in gone]

    def due_ns(self, now_ns: int) -> int:
        """When to look again, after a look at ``now_ns``; NEVER_NS where all have ended."""
        return now_ns + max(now_ns - self._since_ns, _SOON_NS) if self._there else NEVER_NS
