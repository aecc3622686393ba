"""When to record and when not: durations, signals that pause and resume, signals that ask for a sample.

The signals go to the collector, not to the target, which never notices. Two that come before the first is looked at are
one to the kernel: who pauses and resumes at once would only pause. So the service asks by a pipe instead. Standard
library only.
"""

from __future__ import annotations

import os
import re
import signal
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from enum import Enum
from typing import NamedTuple

from collector.clock import NEVER_NS, NS_PER_S
from collector.errors import UsageError

_DURATION = r"([0-9]+(?:\.[0-9]+)?)([sm]?)\Z"
_LONGEST_S = 1e9
_NUMBER_DIGITS = 20
_FORBIDDEN = {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM,
              signal.SIGHUP, signal.SIGCONT, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE}


class Action(Enum):
    """What is to be done now."""

    PAUSE = "pause"
    RESUME = "resume"
    TOGGLE = "toggle"  # whichever of the two it is not
    SAMPLE = "sample"
    STOP = "stop"


ORDERS = {Action.PAUSE: b"p", Action.RESUME: b"r", Action.SAMPLE: b"s"}  # in a pipe
_ORDERED = {order[0]: action for action, order in ORDERS.items()}


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
    seconds = float(match[1]) * (60 if match[2] == "m" else 1)
    if seconds > _LONGEST_S:
        raise UsageError(f"-t {whole}: give at most {_LONGEST_S:.0f} seconds")
    return seconds


def is_number(text: str) -> bool:
    """Whether a text is digits, and not more than any number has that means something."""
    return text.isascii() and text.isdigit() and len(text) <= _NUMBER_DIGITS


def parse_signal(option: str, text: str) -> int:
    """A signal's number from its name (USR1, SIGUSR1) or number. Raises UsageError."""
    name = text.upper()
    number: int | None = None
    if is_number(text):
        number = int(text)
    else:
        with suppress(KeyError):
            number = signal.Signals[name if name.startswith("SIG") else f"SIG{name}"]
    if number is None or not 1 <= number < signal.NSIG:
        raise UsageError(f"{option} {text}: no such signal; give a name such as USR1")
    if number in _FORBIDDEN or number not in signal.valid_signals():  # the C library's own are not
        raise UsageError(f"{option} {text}: this signal cannot be used; take USR1, USR2 or a real-time signal")
    return number


def stopping() -> list[int]:
    """What ends a recording without a program of its own: SIGINT also where it is ignored, as in what a shell runs in
    the background; SIGHUP not (nohup)."""
    is_hung_up = [signal.SIGHUP] if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN else []
    return [signal.SIGINT, signal.SIGTERM, *is_hung_up]


class Control:
    """Whether a recording records: by its window, and by what it is asked for. Turns both into actions."""

    def __init__(self, start_ns: int, window: Window, *, paused: bool = False) -> None:
        """``paused``: recording is to begin when it is asked for."""
        self._begin_ns = start_ns + round(window.start_s * NS_PER_S) if window.start_s else None
        self._end_ns = start_ns + round(window.end_s * NS_PER_S) if window.end_s is not None else None
        self.recording = window.start_s == 0 and not paused
        self._asked: list[Action] = []

    def ask(self, action: Action) -> None:
        """``action`` is due at once."""
        self._asked.append(action)

    @property
    def edge_ns(self) -> int:
        """Where the window begins, or if it has, where it ends; NEVER_NS: it does not."""
        if self._begin_ns is not None:
            return self._begin_ns
        return self._end_ns if self._end_ns is not None else NEVER_NS

    def due_ns(self) -> int:
        """When the next action falls due; 0: it is due already."""
        return 0 if self._asked else self.edge_ns

    def actions(self, now_ns: int, told_ns: int) -> list[Action]:
        """What is to be done at ``now_ns``, in order, each told once; none of them is TOGGLE. Recording begins once all
        that happened before its begin has been told: that is, up to ``told_ns``."""
        actions, self._asked = [self._noted(action) for action in self._asked], []
        if self._begin_ns is not None and told_ns >= self._begin_ns:
            self._begin_ns = None
            actions.append(self._noted(Action.RESUME))
        if self._end_ns is not None and now_ns >= self._end_ns:
            self._end_ns = None
            actions.append(Action.STOP)
        return actions

    def _noted(self, action: Action) -> Action:
        if action is Action.TOGGLE:
            action = Action.PAUSE if self.recording else Action.RESUME
        if action in (Action.PAUSE, Action.RESUME):
            self.recording = action is Action.RESUME
        return action


class Signals:
    """Turns signals of the process, and orders in a pipe, into actions. One of ``fds`` becomes readable when one has
    come."""

    def __init__(self, meaning: Mapping[int, Action], orders: int = -1) -> None:
        """``meaning`` of each signal number; ``orders``: the end of a pipe, which is ours now."""
        self._meaning = meaning
        self._pending: deque[Action] = deque()
        self._woken, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._orders = orders
        if orders >= 0:
            os.set_blocking(orders, False)
            os.set_inheritable(orders, False)
        for number in meaning:
            signal.signal(number, self._note)

    @property
    def fds(self) -> tuple[int, ...]:
        """What to poll for POLLIN."""
        return (self._woken,) if self._orders < 0 else (self._woken, self._orders)

    def actions(self) -> list[Action]:
        """What was asked for, each told once; in order, but orders before signals that came behind them."""
        with suppress(BlockingIOError):
            os.read(self._woken, 4096)
        actions = []
        while self._pending:  # a thread may ask meanwhile
            actions.append(self._pending.popleft())
        return [*self._ordered(), *actions]

    def _ordered(self) -> list[Action]:
        if self._orders < 0:
            return []
        try:
            orders = os.read(self._orders, 4096)
        except BlockingIOError:
            return []
        if not orders:  # nobody asks any more
            os.close(self._orders)
            self._orders = -1
        return [_ORDERED[order] for order in orders if order in _ORDERED]

    def ask(self, action: Action) -> None:
        """As if a signal that means this had come."""
        self._pending.append(action)
        with suppress(OSError):
            os.write(self._wake, b"x")

    def close(self) -> None:
        """No more actions."""
        fds = (*self.fds, self._wake)
        self._wake = self._orders = -1  # a thread may ask meanwhile
        for fd in fds:
            os.close(fd)

    def _note(self, number: int, _frame: object) -> None:
        self.ask(self._meaning[number])
