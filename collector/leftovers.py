"""What is to go when a signal ends us: unfinished files, folders that are there for a while.

An exception, as an interrupt is one, is met where they are made. SIGTERM and SIGHUP are none: they end us at once.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

_ENDING = signal.SIGTERM, signal.SIGHUP
_removals: list[Callable[[], object]] = []


@contextmanager
def removed_if_ended(remove: Callable[[], object]) -> Iterator[None]:
    """Meanwhile a signal that ends us has ``remove`` called first; what is ignored, or handled by others, stays so."""
    _removals.append(remove)
    for number in _ENDING:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _end)
    try:
        yield
    finally:
        _removals.remove(remove)
        for number in _ENDING:
            if not _removals and signal.getsignal(number) is _end:
                signal.signal(number, signal.SIG_DFL)


def _end(number: int, _frame: object) -> None:
    for remove in _removals:
        with suppress(OSError):
            remove()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
