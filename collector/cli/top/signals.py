"""Signals as something to wait for: the handler writes to a pipe, and what came is asked afterwards."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from types import FrameType

_ENDING = signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP
_OTHERS = signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT


class Signals:
    """``fd`` becomes readable with a signal. ``ended_by``: the first one that asks for the end, else 0."""

    def __init__(self, *, on_screen: bool) -> None:
        """What is ignored stays ignored, and what only a screen needs is left alone without one."""
        self.ended_by = 0
        self.fd, self._write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._came: set[int] = set()
        signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)
        for number in (*_ENDING, *(_OTHERS if on_screen else ())):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._handle)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        self._came.add(number)
        if number in _ENDING:
            self.ended_by = self.ended_by or number

    def take(self) -> set[int]:
        """Those that came since the last call."""
        with suppress(BlockingIOError):
            while os.read(self.fd, 64):
                pass
        came, self._came = self._came, set()
        return came

    def stop(self) -> None:
        """Stop ourselves, as the terminal's user asked; returns when we are continued."""
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, self._handle)
