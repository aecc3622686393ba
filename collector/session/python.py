"""Functions of CPython in stacks: at each evaluation on the native stack those that it carried out.

What the kernel copied of a stack has the words of its moment; memory is read at looks, several a second, and once more
before samples are worked on. ``runtimes`` tells what both together say. Samples are told once: who called their
functions is known only where a look has met these by then. So the program that is recorded is looked at before samples
tell of it, and its first samples wait for some looks. For each process with CPython:

    python_process       what is known of it: its looks, its code, and which words of frames lead to that
    python_evaluations   where evaluations are in stacks, with the words of their parts
    python_stacks        both together: the functions of each

The target waits for every module here. So these, and what they need, are imported when CPython is met.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from collector.arrays import among, indices
from collector.clock import NEVER_NS, NS_PER_MS
from collector.errors import ElfError
from collector.events import Array, ClockSamples, Mapped
from collector.experiment.map import MADE_UP_FIRST
from collector.linux import own_tids, proc
from collector.processes.process import Epoch
from collector.processes.space import Mapping
from collector.runtimes import marks
from collector.runtimes.made_up import MadeUp
from collector.runtimes.marks import UNKNOWN
from collector.session import attach
from collector.session.merging import Managed, within
from collector.session.objects import Objects
from collector.session.placing import ByImage, Frames

if TYPE_CHECKING:
    from collector.runtimes.cpython import Interpreter
    from collector.session.python_process import Process

LOOK_MIN_NS = 50 * NS_PER_MS  # between looks, while code comes and goes
_Some = TypeVar("_Some", Mapped, Mapping)


class _Untold(NamedTuple):
    """A process with CPython that no sample has told of yet, which was met at a time."""

    pid: int
    met_ns: int
    process: Process


class PythonFrames:
    """Puts functions of CPython into stacks, where that is ``wanted``."""

    def __init__(self, objects: Objects, wanted: bool, interval_ns: int, expected_ns: int = 0, pid: int = 0) -> None:
        """``interval_ns``: of the clock; ``expected_ns``: until when a first interpreter is expected to begin; ``pid``:
        the process that is the likeliest to have it (0: none)."""
        self._wanted = wanted
        self._pid = pid
        self._untold: _Untold | None = None  # the interpreter of that
        self._looked_into: list[int] = []  # where it had mappings that may be one's, at the last time
        self._interval_ns = interval_ns
        self._expected_ns = expected_ns if wanted else 0
        self._begin_ns = 0  # when that is to be looked at again
        self.made_up = MadeUp(MADE_UP_FIRST)
        self.counts = [0, 0, 0]  # frames by mark
        self.unread: dict[int, str] = {}  # by image: why its CPython is not to be read
        self._objects = objects
        self._processes: dict[int, Process | None] = {}  # by image
        self._tried: dict[int, tuple[int, int]] = {}  # by image: in which version of its space
        self._evaluations: dict[int, Array] = {}  # by image, of those that are not to be read

    @property
    def due_ns(self) -> int:
        """When the next look is due."""
        return min([self._begin_ns if self._expects(self._begin_ns) else NEVER_NS,
                    *(process.due_ns for process in self._there() if process.lately)])

    @property
    def looks_first(self) -> bool:
        """Whether the first samples are better taken a few looks later."""
        return self._untold is not None and self._untold.process.is_eager

    def look(self) -> bool:
        """At threads that had samples lately, where that is due. Whether samples are to be taken, too: but for the
        likeliest process only they tell of a first interpreter that has begun, and a young one may live shortly."""
        now_ns = time.monotonic_ns()
        self._begin_ns = now_ns + LOOK_MIN_NS
        if self._expects(now_ns):
            self._untold = self._met_at(now_ns)
        elif now_ns >= self._expected_ns:
            self._untold = None
        for process in self._there():
            if process.lately and process.due_ns <= now_ns:
                process.look()
        return self._expects(now_ns)

    def _there(self) -> list[Process]:
        """All that have been met."""
        known = [process for process in self._processes.values() if process is not None]
        return [*known, self._untold.process] if self._untold is not None else known

    def _expects(self, time_ns: int) -> bool:
        """Whether a first interpreter is expected to begin at a time."""
        return time_ns < self._expected_ns and not self._there()

    def remark(self) -> str:
        """How sure the functions in stacks are; empty if there are none."""
        return marks.remark(self.counts, "Python")

    def forget(self, images: Sequence[int]) -> None:
        """These images are over."""
        for number in images:
            self._processes.pop(number, None)
            self._tried.pop(number, None)
            self._evaluations.pop(number, None)

    def functions(self, samples: ClockSamples, index: Array, images: ByImage, frames: Frames) -> list[Managed]:
        """The functions of CPython in the stacks of samples."""
        found = list[Managed]()
        for its, numbers in images:
            process = self._process(its[-1])
            if process is None:
                self._count_unread(its[-1], frames.pcs, index, numbers)
                continue
            rows = indices(among(index, numbers))
            rows = rows[samples.abi[rows] == 64]
            if not len(rows):
                continue
            process.sampled(samples.tid[rows], samples.time_ns[rows])
            process.look(process.hit)
            from collector.session.python_stacks import functions_of
            inserted = functions_of(process, samples, rows, frames, self.made_up, self.counts)
            if inserted is not None:
                found.append(inserted)
        return found

    def _count_unread(self, epoch: Epoch, pcs: Array, index: Array, numbers: Array) -> None:
        evaluation = self._evaluations.get(epoch.image.number)
        if evaluation is not None:
            self.counts[UNKNOWN] += int(np.count_nonzero(within(pcs[among(index, numbers)], evaluation)))

    # -- processes

    def _process(self, epoch: Epoch) -> Process | None:
        number, version = epoch.image.number, epoch.space.version
        known = self._processes.get(number)
        if self._wanted and known is None and self._tried.get(number) != version:
            self._tried[number] = version
            known = self._processes[number] = self._told_by(epoch) or self._recognised(epoch)
        return known

    def _told_by(self, epoch: Epoch) -> Process | None:
        """The one that no sample had told of, if it is this."""
        if self._untold is None:
            return None
        (pid, met_ns, process), image = self._untold, epoch.image
        is_then = image.pid == pid and image.start_ns <= met_ns and (image.end_ns is None or met_ns < image.end_ns)
        if not (is_then and any(mapping[:2] == process.text for mapping in epoch.space.mappings)):
            return None
        self._untold = None
        return process

    def _met_at(self, time_ns: int) -> _Untold | None:
        """The likeliest process, if it has an interpreter by now."""
        try:
            there = attach.mappings(self._pid, time_ns) if self._pid else []
        except OSError:  # it is gone
            there = []
        some = _candidates(there)
        starts = [mapped.start for mapped in some]
        if starts == self._looked_into:
            return None
        self._looked_into = starts
        for interpreter, mapping, evaluation in self._found_in(self._pid, map(self._objects.mapping, some)):
            if not isinstance(interpreter, str):
                process = self._made(interpreter, mapping, evaluation)
                process.lately = [self._pid]
                return _Untold(self._pid, time_ns, process)
        return None

    def _recognised(self, epoch: Epoch) -> Process | None:
        for interpreter, mapping, evaluation in self._found_in(epoch.image.pid, _candidates(epoch.space.mappings)):
            if not isinstance(interpreter, str):
                return self._made(interpreter, mapping, evaluation)
            self._evaluations[epoch.image.number] = evaluation
            if interpreter:
                self.unread[epoch.image.number] = interpreter
        return None

    def _found_in(self, pid: int, candidates: Iterable[Mapping]) -> Iterator[tuple[Interpreter | str, Mapping, Array]]:
        """What is the interpreter of a process, or why it is not to be read (empty: it is gone); where its code is
        mapped; the stretches (k, 2) of its evaluations."""
        from collector.runtimes import cpython
        for mapping in candidates:
            known = self._objects.by_number.get(mapping.object)
            if known is None:
                continue
            try:
                symbols = known.exported(cpython.SYMBOLS)
            except ElfError:
                continue
            if b"_PyRuntime" not in symbols or b"_PyEval_EvalFrameDefault" not in symbols:
                continue
            there = {name: (value + mapping.bias, size) for name, (value, size) in symbols.items()}
            value, size = symbols[b"_PyEval_EvalFrameDefault"]
            parts = self._objects.tables.parts_of(mapping.object, value) or [(value, value + size)]
            evaluation = np.array(parts, np.uint64) + np.uint64(mapping.bias)
            try:
                found = cpython.recognise(there, mapping.path, partial(proc.read_pieces, pid),
                                          tid_of=own_tids.tid_of(pid))
            except OSError:  # it is gone
                found = ""
            yield found, mapping, evaluation

    def _made(self, interpreter: Interpreter, mapping: Mapping, evaluation: Array) -> Process:
        from collector.runtimes.places_cpython import CodePlaces
        from collector.session.python_process import Process
        return Process(interpreter, CodePlaces(interpreter), mapping[:2], evaluation, self._interval_ns)


def _candidates(mappings: Sequence[_Some]) -> list[_Some]:
    """Of the mappings of a process those that may be the interpreter's: the program itself, and libraries of that name.
    """
    return [one for i, one in enumerate(mappings) if i == 0 or b"python" in one.path.rsplit(b"/", 1)[-1]]
