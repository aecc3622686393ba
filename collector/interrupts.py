"""Interrupts (SIGINT) that come before there is a recording that they could end.

Python makes an exception of each, wherever it is. Each import has a callback of a weak reference, and what is raised in
those is printed and dropped: of 300 interrupts while modules are imported one was lost so, and who had sent it waited
for an end that did not come. So they are noted, too, and whoever begins asks whether there was one.
"""

from __future__ import annotations

import signal
from types import FrameType

_noted: list[int] = []


def note() -> None:
    """From now on, unless interrupts are ignored."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _note)


def raise_noted() -> None:
    """Raises KeyboardInterrupt if there was one. To be called when those to come mean something else."""
    if _noted:
        raise KeyboardInterrupt


def _note(number: int, frame: FrameType | None) -> None:
    _noted.append(number)
    signal.default_int_handler(number, frame)
