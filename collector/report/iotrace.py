"""Which file input and output went to. Pure: packets of I/O tracing in, a file per packet out.

A descriptor names a file from the open (or dup) that gave it on until it is closed; each such life is a *channel*
with a number of its own. Descriptors 0 to 2 are open from the start. What goes to a descriptor whose open was not seen
(a pipe, a socket) makes a channel for it then. Numbers and names of channels are those of ``compat``.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from collector.experiment.packets import Traced
from collector.experiment.records import IO_CLOSE, IO_ERROR, IO_OPEN, IO_OTHER, IO_READ, IO_WRITE
from collector.report.compat import FIRST_CHANNEL, OTHER_CHANNEL, OTHER_NAME, STANDARD_FILES, UNKNOWN_NAME

I8 = npt.NDArray[np.int64]
Packets = npt.NDArray[Any]

_NO_CHANNEL = 0
_NO_KIND = -1


@dataclass(frozen=True)
class Channel:
    """A descriptor's life: the name of its file, and its number; -1: none, as of an open that failed."""

    name: bytes
    descriptor: int


@dataclass(frozen=True)
class Channels:
    """``of_packet`` (n): the number of each packet's channel, 0 for none; ``known``: by number. ``next``: unused."""

    of_packet: I8
    known: dict[int, Channel]
    next: int


def channels(traced: Traced, first: int = FIRST_CHANNEL) -> Channels:
    """The channel of each packet; new ones are numbered from ``first`` on."""
    packets = traced.packets
    by_time = np.argsort(packets["TSTAMP"], kind="stable")
    lives = _Lives(first)
    of_packet = np.zeros(len(packets), np.int64)
    is_possible = (packets["IOTYPE"] >= 0) & (packets["IOTYPE"] < 2 * IO_ERROR)
    kind = np.where(is_possible, packets["IOTYPE"] % IO_ERROR, _NO_KIND)
    is_transfer = np.isin(kind, (IO_READ, IO_WRITE))
    # Between two changes of the table of descriptors, transfers need it only as it is.
    ordered = by_time.tolist()
    is_change = np.isin(kind, (IO_OPEN, IO_CLOSE))[by_time]
    descriptors = packets["IOFD"][by_time]
    bounds = [0, *np.flatnonzero(is_change).tolist(), len(ordered)]
    for number, (begin, end) in enumerate(pairwise(bounds)):
        if number:
            of_packet[ordered[begin]] = lives.change(packets[ordered[begin]], traced.strings)
            begin += 1
        if begin < end:
            stretch = by_time[begin:end]
            transfers = stretch[is_transfer[stretch]]
            of_packet[transfers] = lives.of(descriptors[begin:end][is_transfer[stretch]])
    of_packet[kind == IO_OTHER] = OTHER_CHANNEL
    return Channels(of_packet, lives.known, lives.next)


class _Lives:
    """The table of descriptors while time goes on."""

    def __init__(self, first: int) -> None:
        self.next = first
        self.known = {fd + 1: Channel(name, fd) for fd, name in STANDARD_FILES.items()}
        self.known[OTHER_CHANNEL] = Channel(OTHER_NAME, -1)
        self._open = {fd: fd + 1 for fd in STANDARD_FILES}

    def of(self, descriptors: npt.NDArray[Any]) -> I8:
        """The channels of transfers, in order of time."""
        distinct, first, inverse = np.unique(descriptors, return_index=True, return_inverse=True)
        for place in np.argsort(first, kind="stable").tolist():
            self._of_one(int(distinct[place]))
        return np.array([self._open[int(fd)] for fd in distinct], np.int64)[inverse]

    def change(self, packet: Any, strings: tuple[bytes, ...]) -> int:
        """The channel of an open or a close."""
        kind, fd, old = int(packet["IOTYPE"]), int(packet["IOFD"]), int(packet["IOOFD"])
        if kind % IO_ERROR == IO_CLOSE:
            return self._open.pop(fd, _NO_CHANNEL)
        name = strings[int(packet["IOFNAME"])]
        if not name and old > 0:
            if old not in self._open:
                return _NO_CHANNEL
            name = self.known[self._open[old]].name
        if kind == IO_OPEN and not name:
            return self._of_one(fd) if fd >= 0 else _NO_CHANNEL
        if not name:
            return _NO_CHANNEL
        number = self._new(name, fd)
        if kind == IO_OPEN:
            self._open[fd] = number
        return number

    def _of_one(self, fd: int) -> int:
        if fd not in self._open:
            self._open[fd] = self._new(UNKNOWN_NAME, fd)
        return self._open[fd]

    def _new(self, name: bytes, fd: int) -> int:
        number, self.next = self.next, self.next + 1
        self.known[number] = Channel(name, fd)
        return number


def durations_ns(packets: Packets) -> I8:
    """How long each took (n); zero where the request has no time."""
    return np.where(packets["IORQST"] > 0, packets["TSTAMP"] - packets["IORQST"], 0)
