"""What is being worked at, on a terminal, for whatever takes longer than a second.

The line stands on stderr, and is gone before anything else is written. Nothing of this is imported before it is needed.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from threading import Lock, Timer
    from types import TracebackType

    from rich.progress import Progress

AFTER_S = 1.0


class Working:
    """``with Working("-functions"):`` shows this, and for how long, if it lasts and ``out`` is a terminal."""

    def __init__(self, what: str, out: TextIO | None = None, after_s: float = AFTER_S) -> None:
        self._what, self._out, self._after_s = what, out or sys.stderr, after_s
        self._is_over = False
        self._shown: Progress | None = None
        self._timer: Timer | None = None
        self._lock: Lock

    def __enter__(self) -> Working:
        """Begin to wait."""
        if self._out.isatty():
            from threading import Lock, Timer

            self._lock, self._timer = Lock(), Timer(self._after_s, self._begin)
            self._timer.daemon = True
            self._timer.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        """Take the line away."""
        if self._timer is None:
            return
        self._timer.cancel()
        with self._lock:
            self._is_over = True
            if self._shown is not None:
                with suppress(OSError):
                    self._shown.stop()

    def _begin(self) -> None:
        from rich.console import Console
        from rich.markup import escape
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        with self._lock, suppress(OSError):
            if self._is_over:
                return
            shown = Progress(SpinnerColumn("line"), TextColumn("{task.description}"), TimeElapsedColumn(),
                             console=Console(file=self._out), transient=True, redirect_stdout=False,
                             redirect_stderr=False)
            shown.add_task(escape(self._what), total=None)
            shown.start()
            self._shown = shown
