"""Runs recordings in this process: one poll loop for all of them.

What belongs to the process and not to a recording is here: signals, the priority among many threads and in the
background, the CPU that we run on. (Its limit of open files and its garbage collector are set before there is a
recording, see ``session``.)
"""

from __future__ import annotations

import select
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple, Protocol

from collector.clock import NS_PER_MS
from collector.linux.background import Background
from collector.linux.crowd import Crowd
from collector.session.affinity import Affinity
from collector.session.control import Action, Signals


class Stepper(Protocol):
    """A recording; see ``recording``."""

    def fds(self) -> list[int]:
        """What to poll for POLLIN."""

    def patience(self) -> tuple[Collection[int], int]:
        """Those of them that would wake us again and again for nothing, and how long (ns) they can wait for a look."""

    def due_ns(self) -> int:
        """When a step is due though no descriptor is ready."""

    def ask(self, action: Action) -> None:
        """``action`` is for the next step."""

    def stand_back_in(self, background: Background) -> None:
        """The work of steps that is in no haste is done in the background."""

    def step(self, ready: Mapping[int, int]) -> bool:
        """Does what is due; whether the recording is over."""

    def end(self) -> None:
        """Closes the experiment."""

    def close(self) -> list[str]:
        """Archives; what the user should know."""


class Observer(NamedTuple):
    """Who is told of a recording: what the user should know of it when it is closed, and what went wrong with it."""

    say: Callable[[str], None]
    failed: Callable[[Exception], None]


class Runner:
    """Runs recordings until all of them are over and closed. A recording that fails ends by itself."""

    def __init__(self, signals: Signals | None = None) -> None:
        """``signals`` are for all recordings; they are closed with the last one."""
        self._signals = signals
        self._recordings: dict[Stepper, Observer] = {}
        self._poller, self._napper = _Poller(), _Poller()
        self._crowd = Crowd()
        self._affinity = Affinity()
        self._background = Background()

    def add(self, recording: Stepper, observer: Observer) -> None:
        """One more, at any time."""
        recording.stand_back_in(self._background)
        self._recordings[recording] = observer

    def run(self) -> None:
        """Until nothing is left to do."""
        self._background.prepare()
        while self._recordings:
            self._round()
        self._background.close()
        if self._signals is not None:
            self._signals.close()

    def _round(self) -> None:
        """Waits until something is due, and does it."""
        ready = self._wait()
        if self._signals is not None:
            for action in self._signals.actions():
                for recording in self._recordings:
                    recording.ask(action)
        for recording in list(self._recordings):
            events = ready.get(recording, {})
            if events or recording.due_ns() <= time.monotonic_ns():
                self._step(recording, events)
        if self._recordings:
            self._crowd.look()
            self._affinity.leave_cpu(self._crowd.n_runnable)

    def _wait(self) -> Mapping[Stepper, dict[int, int]]:
        """What poll(2) tells of the descriptors of each recording."""
        owner = {fd: recording for recording in self._recordings for fd in recording.fds()}
        fds = {*owner, *(self._signals.fds if self._signals is not None else ())}
        due_ns = min(recording.due_ns() for recording in self._recordings)
        naps = [(patient, nap_ns) for patient, nap_ns in (each.patience() for each in self._recordings) if patient]
        ready: dict[Stepper, dict[int, int]] = defaultdict(dict)
        for fd, events in self._napped(fds, naps, due_ns) if naps else self._poller.poll(fds, due_ns):
            if fd in owner:
                ready[owner[fd]][fd] = events
        return ready

    def _napped(self, fds: set[int], naps: list[tuple[Collection[int], int]],
                due_ns: int) -> list[tuple[int, int]]:
        """What is ready of ``fds`` as soon as something is, or at ``due_ns``: at the end of a nap, where that is one of
        those that have patience."""
        urgent = fds.difference(*(patient for patient, _ in naps))
        nap_ns = min(nap_ns for _, nap_ns in naps)
        while True:
            until_ns = min(time.monotonic_ns() + nap_ns, due_ns)
            self._napper.poll(urgent, until_ns)
            ready = self._poller.poll(fds, 0)
            if ready or until_ns == due_ns:
                return ready

    def _step(self, recording: Stepper, ready: Mapping[int, int]) -> None:
        failed = self._recordings[recording].failed
        try:
            is_over = recording.step(ready)
        except Exception as err:
            failed(err)
            is_over = True
        if is_over:
            self._close(recording)

    def _close(self, recording: Stepper) -> None:
        """Ends a recording. Archives are no matter of haste."""
        observer = self._recordings.pop(recording)
        try:
            recording.end()
            self._crowd.leave()
            for line in recording.close():
                observer.say(line)
        except Exception as err:
            observer.failed(err)


class _Poller:
    """poll(2), which is told only of changes."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._polled: set[int] = set()

    def poll(self, fds: set[int], until_ns: int) -> list[tuple[int, int]]:
        """Which of ``fds`` are readable, or hung up, as soon as one is, or at a time (0: now)."""
        for fd in self._polled - fds:
            self._poll.unregister(fd)
        for fd in fds - self._polled:
            self._poll.register(fd, select.POLLIN)
        self._polled = fds
        return self._poll.poll(max(0, until_ns - time.monotonic_ns()) / NS_PER_MS)
