"""How the processes of a batch were made: the names of the functions on their makers' stacks, and clone's flags."""

from __future__ import annotations

from bisect import bisect_right

from collector.arrays import indices
from collector.events import Births
from collector.processes.lineage import Making, making
from collector.processes.space import AddressSpace
from collector.session.placing import Unwound
from collector.session.world import World

_CLONE_THREAD = 0x10000
_MAX_FRAMES = 12


class Makings:
    """Answers ``of(pid)`` for the processes whose birth was seen in this batch."""

    def __init__(self, world: World, births: Births | None, frames: Unwound | None) -> None:
        self._world = world
        self._frames = frames
        self._births = births
        self._row: dict[int, int] = {}
        if births is not None:
            rows = indices(births.flags & _CLONE_THREAD == 0)
            self._row = dict(zip(births.child[rows].tolist(), rows.tolist(), strict=True))

    def of(self, pid: int) -> Making | None:
        """How process ``pid`` was made; None where nothing was seen of it."""
        row = self._row.get(pid)
        if row is None or self._births is None or self._frames is None:
            return None
        space = self._frames.epochs[int(self._frames.epoch[row])].space
        n = min(int(self._frames.length[row]), _MAX_FRAMES)
        functions = [self._name(space, int(pc)) for pc in self._frames.pcs[row, :n]]
        return making(int(self._births.flags[row]), functions)

    def _name(self, space: AddressSpace, pc: int) -> bytes:
        """The function at a run-time address; empty where there is no symbol."""
        at = bisect_right(space.mappings, pc, key=lambda mapping: mapping.start) - 1
        if at < 0 or pc >= space.mappings[at].end or space.mappings[at].object < 0:
            return b""
        mapping = space.mappings[at]
        return self._world.function_at(mapping.object, pc - mapping.bias)
