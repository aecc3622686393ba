"""Processes, their threads and images. Pure; fed with changes in time order.

An *image* is a process between two execs: it has one address space at a time and, later, one experiment. A process is a
line of images. Which image and which space a sample belongs to is told by its process and time: every process keeps
its *epochs*, the moments at which image or space changed, as long as samples from before may still come.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from collector.processes.space import AddressSpace


@dataclass(slots=True, eq=False)
class Image:
    """A program in a process. ``number`` counts all images of a recording."""

    number: int
    pid: int
    start_ns: int
    end_ns: int | None = None
    comm: bytes = b""
    path: bytes = b""  # of the program, once its first mapping is known
    bits: int = 64
    was_executed: bool = False  # it began by an exec that was told; else it was forked, or there when it was met

    @property
    def program(self) -> bytes:
        """Its path, or its name where that is not known."""
        return self.path or self.comm

    def names(self) -> list[bytes]:
        """What the program may be called: its path and its thread's name, which differ for scripts."""
        return [self.path, self.comm]


class Epoch(NamedTuple):
    """From ``time_ns`` on the process is ``image`` in ``space``."""

    time_ns: int
    image: Image
    space: AddressSpace


@dataclass(slots=True, eq=False)
class Process:
    """A process: its epochs (the last one is now) and its threads' slots by tid."""

    pid: int
    epochs: list[Epoch]
    threads: dict[int, int] = field(default_factory=dict)
    parent: Process | None = None

    @property
    def image(self) -> Image:
        """The image as of now."""
        return self.epochs[-1].image

    @property
    def space(self) -> AddressSpace:
        """The address space as of now."""
        return self.epochs[-1].space

    def enter(self, time_ns: int, image: Image, space: AddressSpace) -> None:
        """A new epoch; one that would change nothing is not kept."""
        if image is not self.image or space is not self.space:
            self.epochs.append(Epoch(time_ns, image, space))

    def forget_before(self, time_ns: int) -> None:
        """Drops the epochs that ended before ``time_ns``."""
        while len(self.epochs) > 1 and self.epochs[1].time_ns <= time_ns:
            del self.epochs[0]
