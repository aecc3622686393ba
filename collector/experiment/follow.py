"""The reading door for an experiment that grows: each look gives what has come since the one before.

    log.xml         whole elements; first, so that of an experiment that has ended everything else is there
    profile         packets
    data.frameinfo  nodes of stacks: whatever a packet refers to was written before it, so it is read after it
    map.xml         the same

A look costs as much as there is that is new, whatever the experiment holds. What was read is whole in itself, as with
``reader``, but what is damaged is passed over without being counted.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from collector.clock import NS_PER_S
from collector.errors import ExperimentError, FormatError
from collector.experiment import log, map, names
from collector.experiment.damage import Damage
from collector.experiment.growing import GrowingPackets, GrowingText
from collector.experiment.packets import Packets, joined, sound_clock_packets
from collector.experiment.reader import (
    PROFILE,
    DynamicFunction,
    Experiment,
    Log,
    Segment,
    check_machine,
    open_experiment,
)
from collector.experiment.records import PC_TRUNCATED
from collector.experiment.stacks import DEPTH_MAX, marker_of, read_nodes

__all__ = ["Followed", "Following", "Growing", "Stack"]

_Node = tuple[npt.NDArray[np.uint64], int]  # pcs, and what continues them toward the root; 0: nothing


class Stack(NamedTuple):
    """Pcs, leaf first. ``marker``: PC_TRUNCATED or PC_UNWIND_FAILED of one that does not reach the root, else 0.

    ``is_whole``: whether everything that it consists of was there.
    """

    pcs: list[int]
    marker: int
    is_whole: bool


class Growing(Experiment):
    """An experiment with log and map as they are now; whatever else is asked of it, it reads itself."""

    def __init__(self, path: Path, contents: Log, founder: Experiment | None) -> None:
        super().__init__(path, contents, founder)
        self.map = map.Reading(contents.start_ns)

    @property
    def mappings(self) -> list[Segment | DynamicFunction]:
        """What was mapped, in order of time, as it is now."""
        return self.map.mappings

    @property
    def segments(self) -> list[Segment]:
        """The files among them."""
        return self.map.segments

    @property
    def functions(self) -> list[DynamicFunction]:
        """Code without a file among them."""
        return self.map.functions


class Followed:
    """One experiment. ``n_map_changes``: how often its map has grown."""

    def __init__(self, path: Path, founder: Experiment | None = None) -> None:
        """Raises ExperimentError, OSError."""
        self._log = GrowingText(path / names.LOG_FILE)
        contents = log.read(self._log.more())
        check_machine(path, contents)
        self.experiment = Growing(path, contents, founder)
        self._map = GrowingText(path / "map.xml")
        self._profile = GrowingPackets(path / PROFILE)
        self._frame_file = GrowingPackets(path / "data.frameinfo")
        self._frames: dict[int, _Node] = {}
        self._nodes: dict[int, _Node] = {}
        self.n_map_changes = 0

    @property
    def log(self) -> Log:
        """Its log; of events only those of the last look."""
        return self.experiment.log

    def look(self) -> Iterator[Packets]:
        """New packets of clock profiling, some at a time; behind the last ones the stacks and the map are read.

        Raises OSError.
        """
        if more := self._log.more():
            log.read_more(self.log, more)
        described = self.log.described.get(PROFILE, {})
        for data, found in self._profile.more() if described else ():
            mine = [run for run in found if run.kind in described]
            if mine and len(packets := sound_clock_packets(joined(data, mine, described), self.log.interval_us,
                                                           Damage())):
                yield packets
        for data, found in self._frame_file.more():
            frames, nodes = read_nodes(data, found, self.log.wsize)
            for frame, (_, pcs, link) in zip(frames.tolist(), nodes, strict=False):
                self._frames.setdefault(frame, (pcs, link))
            for uid, pcs, link in nodes:
                self._nodes.setdefault(uid, (pcs, link))
        if more := self._map.more():
            self.experiment.map.feed(more)
            self.n_map_changes += 1

    def stack(self, uid: int) -> Stack | None:
        """The stack that FRINFO refers to; None if there is none."""
        node = self._frames.get(uid)
        if node is None:
            return None
        parts, n_pcs, n_steps = [node[0]], len(node[0]), 0
        is_whole, link = True, node[1]
        while link and n_pcs < DEPTH_MAX and n_steps < DEPTH_MAX:
            following = self._nodes.get(link)
            if following is None:
                is_whole, link = False, 0
                break
            parts.append(following[0])
            n_pcs, n_steps, link = n_pcs + len(following[0]), n_steps + 1, following[1]
        pcs = np.concatenate(parts)[:DEPTH_MAX].tolist()
        marker = marker_of(pcs[-1], self.log.wsize) if pcs else 0
        if marker:
            pcs.pop()
        return Stack(pcs, PC_TRUNCATED if link else marker, is_whole and not link)

    def forget(self) -> None:
        """Nothing will be asked any more."""
        self._frames.clear()
        self._nodes.clear()


class Following:
    """An experiment with its descendants (not with the ranks of an MPI job)."""

    def __init__(self, path: Path) -> None:
        """Raises ExperimentError."""
        open_experiment(path)  # says what is wrong
        self.path = path
        self.n_begins = 0  # how often it has begun anew: a collector that was killed while it began has an heir
        self._inode = -1
        self._listed = (0, 0)  # the directory's time, and when that was seen
        self._awaited: set[str] = set()  # descendants in it that are not followed yet
        self._awaited_ns = 0  # when they were looked at, by CLOCK_MONOTONIC
        self._known: set[str] = set()
        self.all: list[Followed] = []
        self.refresh()

    @property
    def founder(self) -> Followed:
        """The one that the others descend from."""
        return self.all[0]

    @property
    def is_over(self) -> bool:
        """Whether all that are known are complete."""
        return all(one.log.complete for one in self.all)

    def begin_again(self) -> None:
        """Everything is new once more."""
        self._inode = -1
        self.refresh()

    def refresh(self) -> None:
        """Looks for descendants that have come. Raises ExperimentError where the founder is there no more."""
        try:
            inode = os.stat(self.path / names.LOG_FILE).st_ino
            if inode != self._inode:
                self.all = [Followed(self.path)]
                self._inode, self._listed = inode, (0, 0)
                self._known.clear()
                self.n_begins += 1
            self._adopt()
        except OSError as error:
            raise ExperimentError(f"{names.shown(self.path)}: not there any more: {error.strerror}") from error

    def _adopt(self) -> None:
        """Takes descendants up once they have a stack: of those without one, which may never have any, reports know
        nothing. Where nothing has come, they are looked at once a second."""
        changed_ns, now_ns = os.stat(self.path).st_mtime_ns, time.time_ns()
        if self._listed[0] != changed_ns or self._listed[1] - changed_ns <= NS_PER_S:
            self._listed = changed_ns, now_ns
            there = {name for name in os.listdir(self.path) if name.startswith("_") and name.endswith(names.SUFFIX)}
            self._awaited = there - self._known
        elif time.monotonic_ns() - self._awaited_ns < NS_PER_S:
            return
        self._awaited_ns = time.monotonic_ns()
        for name in sorted(filter(self._has_stacks, self._awaited), key=names.sort_key):
            with suppress(FormatError, OSError):
                self.all.append(Followed(self.path / name, self.founder.experiment))
                self._known.add(name)
                self._awaited.remove(name)

    def _has_stacks(self, name: str) -> bool:
        try:
            return os.stat(self.path / name / "data.frameinfo").st_size > 0
        except OSError:
            return False
