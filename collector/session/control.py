"""When to record and when not: durations, signals that pause and resume, signals that ask for a sample.

The signals go to the collector, not to the target, which never notices. Standard library only.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Sequence
from contextlib import suppress
from enum import Enum
from typing import NamedTuple

from collector.clock import NS_PER_S
from collector.errors import UsageError

_DURATION = r"([0-9]+(?:\.[0-9]+)?)([sm]?)\Z"
_FORBIDDEN = {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM,
              signal.SIGHUP, signal.SIGCONT, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE}


class Action(Enum):
    """What is to be done now."""

    PAUSE = "pause"
    RESUME = "resume"
    SAMPLE = "sample"
    STOP = "stop"


class Window(NamedTuple):
    """Record from ``start_s`` to ``end_s`` after the start (None: to the end)."""

    start_s: float = 0.0
    end_s: float | None = None


def parse_window(text: str) -> Window:
    """``-t DURATION`` or ``-t START-END``, in seconds (s) or minutes (m). Raises UsageError."""
    first, dash, second = text.partition("-")
    start_s, end_s = (_seconds(first, text), _seconds(second, text)) if dash else (0.0, _seconds(first, text))
    if end_s <= start_s:
        raise UsageError(f"-t {text}: the end must come after the start")
    return Window(start_s, end_s)


def _seconds(part: str, whole: str) -> float:
    match = re.match(_DURATION, part)
    if match is None:
        raise UsageError(f"-t {whole}: give a duration, or START-END, in seconds or minutes, such as 90, 1.5m or 10-20")
    return float(match[1]) * (60 if match[2] == "m" else 1)


def parse_signal(option: str, text: str) -> int:
    """A signal's number from its name (USR1, SIGUSR1) or number. Raises UsageError."""
    name = text.upper()
    number: int | None = None
    if text.isascii() and text.isdigit():
        number = int(text)
    else:
        with suppress(KeyError):
            number = signal.Signals[name if name.startswith("SIG") else f"SIG{name}"]
    if number is None or not 1 <= number < signal.NSIG:
        raise UsageError(f"{option} {text}: no such signal; give a name such as USR1")
    if number in _FORBIDDEN:
        raise UsageError(f"{option} {text}: this signal cannot be used; take USR1, USR2 or a real-time signal")
    return number


class Control:
    """Turns the clock and signals into actions. ``fd`` becomes readable when a signal has come."""

    def __init__(self, start_ns: int, window: Window, sample_signal: int | None,
                 pause_signal: tuple[int, bool] | None, stop_signals: Sequence[int] = ()) -> None:
        """``pause_signal``: the signal, and whether recording is on from the start."""
        self.is_used = window != Window() or sample_signal is not None or pause_signal is not None
        self._start_ns = start_ns
        self._begin_ns = start_ns + round(window.start_s * NS_PER_S) if window.start_s else None
        self._end_ns = start_ns + round(window.end_s * NS_PER_S) if window.end_s is not None else None
        self.recording = window.start_s == 0 and (pause_signal is None or pause_signal[1])
        self._toggle_on = self.recording
        self._pending: list[Action] = []
        self.fd, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        if sample_signal is not None:
            signal.signal(sample_signal, self._on_sample)
        if pause_signal is not None:
            signal.signal(pause_signal[0], self._on_toggle)

        for number in stop_signals:
            signal.signal(number, self._on_stop)

    def due_ns(self) -> int | None:
        """When the next action falls due by the clock."""
        return self._begin_ns if self._begin_ns is not None else self._end_ns

    def actions(self, now_ns: int) -> list[Action]:
        """What is to be done at ``now_ns``, in order, each told once."""
        with suppress(BlockingIOError):
            os.read(self.fd, 4096)
        actions, self._pending = self._pending, []
        if self._begin_ns is not None and now_ns >= self._begin_ns:
            self._begin_ns = None
            self._toggle_on = True
            actions.append(Action.RESUME)
        if self._end_ns is not None and now_ns >= self._end_ns:
            self._end_ns = None
            actions.append(Action.STOP)
        return actions

    def close(self) -> None:
        """No more actions."""
        os.close(self.fd)
        os.close(self._wake)
        self._wake = -1

    def _on_sample(self, _number: int, _frame: object) -> None:
        self._note(Action.SAMPLE)

    def _on_stop(self, _number: int, _frame: object) -> None:
        self._note(Action.STOP)

    def _on_toggle(self, _number: int, _frame: object) -> None:
        self._toggle_on = not self._toggle_on
        self._note(Action.RESUME if self._toggle_on else Action.PAUSE)

    def _note(self, action: Action) -> None:
        self._pending.append(action)
        with suppress(OSError):
            os.write(self._wake, b"x")
