"""Names for code that runtimes make while they run, as their maps tell them, in the experiments that met it.

After each batch the addresses that its stacks have in memory without a file are looked up, each distinct one once; what
no map tells yet is asked again whenever maps have grown, and when the image is over. The experiment is told of the
functions that were met, not of all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import numpy as np

from collector.arrays import distinct, indices
from collector.errors import CollectorError
from collector.events import Array
from collector.experiment.dyntext import Text
from collector.experiment.map import AGREED_NS, MADE_UP_END, MADE_UP_FIRST
from collector.experiment.recorder import Recorder
from collector.linux import proc
from collector.linux.code_files import CodePlaces
from collector.processes.model import Model
from collector.processes.process import Image
from collector.processes.space import AddressSpace
from collector.runtimes.code import Code
from collector.runtimes.maps import CodeMaps
from collector.session.experiments import Experiments, Recorded
from collector.session.objects import is_file, is_made
from collector.session.placing import Unwound, by_image
from collector.session.python import PythonFrames
from collector.session.tally import Tally

_TEXT_MAX = 1 << 16  # bytes of a function's code
_SEEN_MAX = 1 << 16
_LAST_READS_MAX = 256  # of maps that have not been read to their ends when all is over
_PENDING_MAX = 1 << 16  # addresses of an image that wait for a name
_NONE: tuple[Array, Array] = np.zeros(0, np.uint64), np.zeros(0, np.uint64)


class Compiler(Protocol):
    """Who knows machine code that is made at run time."""

    def code_at(self, image: int, pc: int) -> Code | None:
        """The machine code at a pc."""

    def forget(self, images: Sequence[int]) -> None:
        """These images are over."""


class _Known:
    """What is known of an image's code."""

    def __init__(self, recorded: Recorded, maps: CodeMaps, places: CodePlaces, space: AddressSpace) -> None:
        self.recorded = recorded
        self.maps = maps
        self.places = places
        self.space = space
        self.texts: dict[tuple[int, int, bytes], bytes] = {}  # machine code, by address, size and name
        self.told: set[Code | None] = set()  # code of compilers that its experiment has been told of
        self.pending: dict[int, tuple[int, int]] = {}  # pc: (time when it was met, in how many frames)


class MadeCode:
    """Tells experiments of code that was made at run time."""

    def __init__(self, model: Model, experiments: Experiments, tally: Tally, roots: Callable[[], Sequence[str]],
                 python: PythonFrames, compilers: Sequence[Compiler]) -> None:
        """``roots``: root directories of processes that do not have ours; ``python`` and ``compilers``: who put
        functions into stacks; the latter know their machine code, too."""
        self._python = python
        self._compilers = compilers
        self._made_up: dict[int, set[int]] = {}  # by image: functions that its experiment has been told of
        self._seen: dict[int, set[int]] = {}  # by image: addresses in these
        self._model = model
        self._experiments = experiments
        self._tally = tally
        self._roots = roots
        self._known: dict[int, _Known] = {}  # by image
        self._ranges: dict[int, tuple[int, tuple[Array, Array]]] = {}  # by space: of so many mappings
        self._ahead_ns = time.time_ns() - time.monotonic_ns()
        self._has_failed = False

    def met(self, frames: Unwound, time_ns: Array) -> None:
        """Stacks (n,) of samples at times (n,), whose images have their experiments by now."""
        if self._has_failed:
            return
        try:
            self._note(frames, time_ns)
        except (CollectorError, MemoryError, OSError):
            raise
        except Exception as err:  # a fault of ours in what maps and memory tell: all else goes on
            self._has_failed = True
            self._tally.failed("names of code made at run time", err)

    def _note(self, frames: Unwound, time_ns: Array) -> None:
        self._met_functions(frames)
        for epochs, numbers in by_image(frames.epochs):
            found = [made for number, epoch in zip(numbers.tolist(), epochs, strict=True)
                     if (made := self._made(frames, number, epoch.space)) is not None]
            if found:
                row, pcs = map(np.concatenate, zip(*found, strict=True))
                self._met(epochs[-1].image, epochs[-1].space, pcs, time_ns[row])
        for known in list(self._known.values()):
            self._ask_again(known)

    def _made(self, frames: Unwound, number: int, space: AddressSpace) -> tuple[Array, Array] | None:
        """The rows (k,) of frames in an epoch that lie in memory without a file, and their pcs; None if none do."""
        start, end = self._anonymous(space)
        if not len(start):
            return None
        rows = indices(frames.epoch == number)
        which, column = np.nonzero(np.arange(frames.pcs.shape[1]) < frames.length[rows, None])
        pcs = frames.pcs[rows[which], column]
        at = start.searchsorted(pcs, side="right") - 1
        there = indices((at >= 0) & (pcs < end[at]))
        return (rows[which[there]], pcs[there]) if len(there) else None

    def _met_functions(self, frames: Unwound) -> None:
        """Those of interpreters, which are told of once."""
        row, column = ((frames.pcs >= np.uint64(MADE_UP_FIRST)) & (frames.pcs < np.uint64(MADE_UP_END))).nonzero()
        if not len(row):
            return
        for number in distinct(frames.image[row]).tolist():
            recorded, told = self._experiments.by_image.get(number), self._made_up.setdefault(number, set())
            if recorded is None:
                continue
            mine = frames.image[row] == number
            seen = self._seen.setdefault(number, set())
            pcs = set(distinct(frames.pcs[row[mine], column[mine]]).tolist()) - seen
            if len(seen) > _SEEN_MAX:
                seen.clear()
            seen |= pcs
            for pc in sorted(pcs):
                code = self._python.made_up.at(pc)
                if code is not None and code.start not in told:
                    told.add(code.start)
                    recorded.tell(Recorder.code_mapped, recorded.start_ns, code.start, code.size, code.name,
                                  Text(b"", code.source, code.lines))

    def _met(self, image: Image, space: AddressSpace, pcs: Array, times: Array) -> None:
        known = self._of(image, space)
        if known is None:
            return
        known.space = space
        order = np.lexsort((times, pcs))
        pcs, times = pcs[order], times[order]
        first = indices(np.append(True, pcs[1:] != pcs[:-1]))
        count = np.diff(np.append(first, len(pcs)))
        last = first + count - 1
        self._read(known)
        told: list[Code] = []
        for pc, early, late, n in zip(pcs[first].tolist(), times[first].tolist(), times[last].tolist(), count.tolist(),
                                      strict=True):
            own = None
            for compiler in self._compilers:
                own = own or compiler.code_at(image.number, pc)
            if own is not None and own in known.told:
                self._tally.n_code_frames += n
                continue
            codes = (own,) if own is not None else (
                (known.maps.at(pc, early), known.maps.at(pc, late)) if not known.maps.is_behind else ())
            found = {code for code in codes if code is not None}
            known.told.update(found & {own})
            told += [code._replace(since_ns=min(code.since_ns, early)) for code in found]
            if found:
                self._tally.n_code_frames += n
            elif pc in known.pending or len(known.pending) < _PENDING_MAX:
                early, before = known.pending.get(pc, (early, 0))
                known.pending[pc] = early, before + n
            else:
                self._tally.n_unnamed_frames += n
        self._tell(known, told)

    @staticmethod
    def _read(known: _Known) -> bool:
        """Whether maps tell more than before."""
        return known.maps.read(time.monotonic_ns(), (mapping.path for mapping in known.space.mappings))

    def _of(self, image: Image, space: AddressSpace) -> _Known | None:
        known = self._known.get(image.number)
        recorded = self._experiments.by_image.get(image.number)
        if known is None and recorded is not None:
            process = self._model.processes.get(image.pid)
            parent = process.parent if process is not None and not image.was_executed else None
            before = self._known.get(parent.image.number) if parent is not None else None
            places = CodePlaces(image.pid, self._began_unix_ns(image), self._roots())
            maps = CodeMaps(places.pids, places.open, image.start_ns, before.maps if before is not None else None)
            known = self._known[image.number] = _Known(recorded, maps, places, space)
        return known

    def _began_unix_ns(self, image: Image) -> int:
        """When it began, by the clock of files: one that was found running, before it was."""
        met_ns = image.start_ns + self._ahead_ns
        born_ns = proc.start_unix_ns(image.pid) if not image.was_executed else None
        return min(met_ns, born_ns if born_ns is not None else met_ns)

    def _ask_again(self, known: _Known, is_over: bool = False) -> None:
        """What had no name yet, if there are more by now; ``is_over``: there will be no other time."""
        if not known.pending:
            return
        has_more, n_reads = self._read(known), 1
        while is_over and known.maps.is_behind and n_reads < _LAST_READS_MAX:
            self._read(known)
            n_reads += 1
        if not is_over and (not has_more or known.maps.is_behind):
            return
        told = []
        for pc, (at_ns, n) in list(known.pending.items()):
            code = known.maps.at(pc, at_ns)
            if code is not None:
                told.append(code._replace(since_ns=min(code.since_ns, at_ns)))
                del known.pending[pc]
                self._tally.n_code_frames += n
        self._tell(known, told)

    def close(self, ended: Iterable[Recorded]) -> None:
        """The images are over; what has no name now stays without."""
        for recorded in ended:
            self.forget(recorded.numbers)

    def forget(self, numbers: Sequence[int]) -> None:
        """The same of images of these numbers."""
        self._python.forget(numbers)
        for compiler in self._compilers:
            compiler.forget(numbers)
        for number in numbers:
            self._made_up.pop(number, None)
            self._seen.pop(number, None)
            known = self._known.pop(number, None)
            if known is not None:
                if not self._has_failed:
                    self._ask_again(known, is_over=True)
                self._tally.n_unnamed_frames += sum(n for _, n in known.pending.values())
                known.places.close()
                known.maps.close()

    def _tell(self, known: _Known, told: Iterable[Code]) -> None:
        codes = _apart(sorted(set(told), key=lambda code: code.since_ns))
        new = {code[:3]: code for code in codes if code[:3] not in known.texts}
        known.texts.update({key: code.text for key, code in new.items() if code.text})
        asked = [code for code in new.values() if not code.text and code.size <= _TEXT_MAX]
        texts = proc.read_pieces(known.recorded.image.pid, [code.start for code in asked],
                                 [code.size for code in asked])
        known.texts.update({code[:3]: text for code, text in zip(asked, texts, strict=True)})
        for code in codes:
            known.recorded.tell(Recorder.code_mapped, code.since_ns, code.start, code.size, code.name,
                                Text(known.texts.get(code[:3], b""), code.source, code.lines))

    def _anonymous(self, space: AddressSpace) -> tuple[Array, Array]:
        """Where executable memory without a file is: starts and ends, sorted."""
        n, ranges = self._ranges.get(space.number, (-1, _NONE))
        if n != len(space.mappings):
            found = [(m.start, m.end) for m in space.mappings
                     if (m.object < 0 or not is_file(m.path)) and is_made(m.path)]
            start, end = np.array(found, np.uint64).reshape(-1, 2).T.copy()
            if len(self._ranges) > 1 << 12:
                self._ranges.clear()
            n, ranges = self._ranges[space.number] = len(space.mappings), (start, end)
        return ranges


def _apart(codes: list[Code]) -> list[Code]:
    """Codes in order of time, none at the time of another: sooner by some nanoseconds, so that no sample misses its
    own."""
    last_ns, found = 1 << 63, []
    for code in reversed(codes):
        last_ns = min(code.since_ns, last_ns - AGREED_NS)
        found.append(code._replace(since_ns=last_ns))
    return found[::-1]
