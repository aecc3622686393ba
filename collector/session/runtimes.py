"""The runtimes whose functions are put into stacks, as one; none of them ends a recording.

They read the memory of programs that change it meanwhile, in versions that nobody here has seen. What goes wrong in one
costs its functions from then on, which is told: the stacks of machine code go on, and so does everybody else.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol, TypeVar

import numpy as np

from collector.clock import NEVER_NS, NS_PER_S
from collector.events import Array, ClockSamples
from collector.processes.process import Epoch
from collector.session import launch
from collector.session.java import JavaFrames
from collector.session.js import JsFrames
from collector.session.merging import Managed, with_managed
from collector.session.objects import Objects
from collector.session.options import Options
from collector.session.placing import ByImage, Cache, Frames, by_image, in_parts, placed_frames_of, replaced
from collector.session.python import PythonFrames
from collector.session.tally import Tally

MACHINE_START_NS = 2 * NS_PER_S  # within which the machine begins that a program is run by
_NONE: Array = np.zeros(0, np.int64)
_T = TypeVar("_T")


class Runtime(Protocol):
    """What is asked of each."""

    unread: dict[int, str]  # by image: why it is not to be read

    @property
    def due_ns(self) -> int:
        """When the next look is due."""

    def look(self) -> bool:
        """It is due; whether samples are to be taken, too."""

    def functions(self, samples: ClockSamples, index: Array, images: ByImage, frames: Frames) -> list[Managed]:
        """Its functions, with the frames that carry them out."""

    def remark(self) -> str:
        """How sure these are; empty where there are none."""


class Runtimes:
    """Those of a recording that began at ``start_ns``, as far as they are wanted."""

    def __init__(self, objects: Objects, tally: Tally, options: Options, start_ns: int, pid: int) -> None:
        """``pid``: the process that is recorded, with its descendants."""
        until_ns = start_ns + MACHINE_START_NS
        started = launch.runtimes_of(options.arguments[0]) if options.arguments else frozenset()
        has_samples = options.interval_ns > 0
        self.python = PythonFrames(objects, options.python and has_samples, options.interval_ns, until_ns, pid)
        self.java = JavaFrames(objects, self.python.made_up, options.java, until_ns if "java" in started else 0)
        self.js = JsFrames(objects, self.python.made_up, options.js, until_ns if "node" in started else 0)
        self._what: dict[str, Runtime] = {"functions of Python": self.python, "methods of Java": self.java,
                                          "functions of JavaScript": self.js}
        self._living = [*self._what.values()]
        self._objects = objects
        self._tally = tally

    @property
    def due_ns(self) -> int:
        """When a look is due."""
        return min((runtime.due_ns for runtime in self._living), default=NEVER_NS)

    @property
    def looks_first(self) -> bool:
        """Whether the first samples are better taken a few looks later."""
        return self.python in self._living and self.python.looks_first

    def look(self) -> bool:
        """At those that are due; whether samples are to be taken, too."""
        wants_samples = False
        for runtime in tuple(self._living):
            if time.monotonic_ns() >= runtime.due_ns:
                wants_samples |= self._asked(runtime, False, runtime.look)
        return wants_samples

    def frames(self, samples: ClockSamples, index: Array, epochs: list[Epoch]) -> Frames:
        """Call stacks with their functions in them, without the pointers in their frames; see World."""
        tables, images = self._objects.tables, by_image(epochs)
        caches: dict[int, Cache] = self._asked(self.java, {}, self.java.caches, samples, index, images)
        self._asked(self.js, None, self.js.meet, images)

        def stacks_of(samples: ClockSamples, index: Array, max_depth: int) -> Frames:
            found = placed_frames_of(samples, index, epochs, tables, caches, max_depth)
            rows = self._asked(self.java, _NONE, self.java.out_of_date, index, images, found) if caches else _NONE
            if len(rows):
                again = placed_frames_of(samples[rows], index[rows], epochs, tables, caches, max_depth)
                found = replaced(found, rows, again)
            return found

        def merged(samples: ClockSamples, index: Array, found: Frames) -> Frames:
            none = list[Managed]()
            places = [one for runtime in self._what.values()
                      for one in self._asked(runtime, none, runtime.functions, samples, index, images, found)]
            return with_managed(places, found) if places else found

        return in_parts(samples, index, stacks_of, merged)

    def _asked(self, runtime: Runtime, otherwise: _T, what: Callable[..., _T], *arguments: object) -> _T:
        """What it answers; ``otherwise`` where it fails, or did before."""
        if runtime not in self._living:
            return otherwise
        try:
            return what(*arguments)
        except Exception as err:  # of whatever kind: see above
            self._living.remove(runtime)
            (name,) = (name for name, one in self._what.items() if one is runtime)
            self._tally.failed(name, err)
            return otherwise

    def unread(self) -> list[str]:
        """Those that were there and could not be read, a line for each reason."""
        return [f"{what} are not shown: {why}" for what, runtime in self._what.items()
                for why in sorted(set(runtime.unread.values()))]

    def remarks(self) -> list[str]:
        """What is said of their frames, a line of each that has any."""
        return [line for runtime in self._what.values() if (line := runtime.remark())]
