"""Processes that the kernel takes our events from, while they go on.

Whoever executes a program that gives it other rights (set-user-ID, set-group-ID, file capabilities), or that it may not
read, leaves its events behind, whoever opened them ("perf: Disable monitoring on setuid processes for regular users",
Linux 2.6.39). The kernel reports that as the end of its last thread, a few microseconds behind the exec and before the
program is mapped: nobody else ends without a single mapping. What it starts later has no events either.

What is left is /proc: how long it lives, and how much CPU time it uses, to a clock tick.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from collector.clock import NS_PER_S
from collector.linux.proc import ProcessLife
from collector.processes.process import Image
from collector.session.experiments import Experiments, Recorded
from collector.session.world import World

_SHOWN = 3
_WHY = ("the kernel does not let programs be watched that get other rights than their caller has (set-user-ID, "
        "set-group-ID, file capabilities) or may not be read by him")


@dataclass(slots=True, eq=False, repr=False)
class Unseen:
    """One of them. ``life`` is as /proc had it last; None if it was gone before we looked. What it has of the time
    before the exec (``before_ns``) was told by then."""

    image: Image
    since_ns: int
    arguments: bytes
    life: ProcessLife | None
    lineage: str = ""
    before_ns: int = 0
    first: ProcessLife | None = None  # as /proc had it first

    @property
    def used_ns(self) -> tuple[int, int]:
        """The user and the system time since the exec; what was before is told apart as /proc first had both."""
        life, first = self.life, self.first or self.life
        if life is None or first is None:
            return 0, 0
        before_ns = min(self.before_ns, life.user_ns + life.system_ns)
        user_ns = before_ns * first.user_ns // max(first.user_ns + first.system_ns, 1)
        used_ns = life.user_ns + life.system_ns - before_ns
        user_ns = min(max(life.user_ns - user_ns, 0), used_ns)
        return user_ns, used_ns - user_ns

    def __str__(self) -> str:
        program = os.fsdecode(self.arguments or self.image.program)
        used = "was gone before its CPU time could be read"
        if self.life is not None:
            used = f"used {sum(self.used_ns) / NS_PER_S:.2f} s of CPU by /proc"
        return f"process {self.image.pid} ({program}{f', {self.lineage}' if self.lineage else ''}) {used}"


class UnseenOnes:
    """All of them."""

    def __init__(self, experiments: Experiments, world: World) -> None:
        self.living: list[Unseen] = []
        self._first: list[Unseen] = []  # of all that were, which are shown
        self._n = 0
        self._experiments = experiments
        self._world = world

    def add(self, image: Image, time_ns: int) -> None:
        """One more, from a time on."""
        one = Unseen(image, time_ns, self._world.arguments(image.pid), self._world.life(image.pid))
        one.first = one.life
        self.living.append(one)
        self._n += 1
        if self._n <= _SHOWN:
            self._first.append(one)

    def used_before(self, used_ns: Mapping[int, int]) -> None:
        """What processes (by pid) that are new had used until the kernel took their events."""
        for one in self.living if used_ns else ():
            one.before_ns = used_ns.get(one.image.pid, one.before_ns)

    def ended(self, last_ns: int = 0) -> Iterator[tuple[Unseen, Recorded, int]]:
        """Those that have ended since the last look, with their experiments and ends; all, if it is the last one, at
        ``last_ns``."""
        for one in list(self.living):
            recorded = self._experiments.by_image.get(one.image.number)
            if self._goes_on(one) and not last_ns and recorded is not None:
                continue
            self.living.remove(one)
            if recorded is not None:
                one.lineage = recorded.lineage.text
                end_ns = recorded.end_ns or last_ns or (self._world.now_ns() if one.life else one.since_ns)
                yield one, recorded, end_ns

    def _goes_on(self, one: Unseen) -> bool:
        if one.life is None:
            return False
        arguments = one.arguments or self._world.arguments(one.image.pid)  # which an exec shows when it is over
        life = self._world.life(one.image.pid)
        if life is None or life.start_ticks != one.life.start_ticks:
            return False
        one.life, one.arguments = life, arguments
        return not life.is_over

    def warnings(self, start_ns: int) -> list[str]:
        """A line that says who was not recorded, from when on, and why."""
        if not self._n:
            return []
        shown = [f"{one} (from {(one.since_ns - start_ns) / NS_PER_S:.3f} s on)" for one in self._first]
        if self._n > _SHOWN:
            shown.append(f"and {self._n - _SHOWN} more")
        n, they = (f"{self._n} processes", "they") if self._n > 1 else ("a process", "it")
        more = "attach while it runs (collect -P PID)" if os.geteuid() == 0 else "run collect as root"
        return [f"{n} could not be recorded, nor what {they} started: {', '.join(shown)}: {_WHY}; to see more, {more}"]
