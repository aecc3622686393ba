"""Mappings of executable memory: in the model's address spaces, and what the experiments say of them."""

from __future__ import annotations

from collector.events import Mapped
from collector.experiment.map import ANONYMOUS, MODES_TEXT
from collector.experiment.recorder import Recorder
from collector.processes.model import Model
from collector.processes.process import Process
from collector.processes.space import Mapping
from collector.runtimes.maps import JITDUMP_PATH
from collector.session.experiments import Experiments, Recorded
from collector.session.objects import VDSO, is_file, is_made
from collector.session.world import World


class Mappings:
    """Of the processes of ``model``; ``world`` tells what is mapped."""

    def __init__(self, model: Model, experiments: Experiments, world: World) -> None:
        self._model = model
        self._experiments = experiments
        self._world = world

    def read(self, since_ns: int) -> None:
        """Mappings that no change told since a time, as they are now: of when they may have been made first."""
        for process in list(self._model.processes.values()):
            self.read_of(process, since_ns)

    def read_of(self, process: Process, since_ns: int = 0) -> None:
        """Those of one process."""
        known = {(mapping.start, mapping.end, mapping.path) for mapping in process.space.mappings}
        for found in self._world.mappings(process.pid, max(since_ns, process.image.start_ns)):
            if (found.start, found.start + found.size, found.path) not in known:
                self.mapped(found)

    def mapped(self, change: Mapped) -> None:
        """One more mapping; of a process that is not known, nothing is told."""
        process = self._model.processes.get(change.pid)
        if process is None:
            return
        place = self._world.place(change)
        if not process.space.mappings and place.path != VDSO:
            process.image.path = place.path
            process.image.bits = place.bits or process.image.bits
        mapping = Mapping(change.start, change.start + change.size, change.file_offset, place.path, place.object,
                          place.bias)
        space, _ = process.space.map(mapping)
        process.enter(change.time_ns, process.image, space)
        recorded = self._experiments.by_image.get(process.image.number)
        if recorded is not None:
            self._tell_mapping(recorded, change.time_ns, mapping)

    def tell_all(self, recorded: Recorded, process: Process, time_ns: int) -> None:
        """All mappings of a process, for an experiment that begins at a time."""
        for mapping in process.space.mappings:
            self._tell_mapping(recorded, time_ns, mapping)

    def _tell_mapping(self, recorded: Recorded, time_ns: int, mapping: Mapping) -> None:
        if (recorded.recorder is None and not recorded.followed) or JITDUMP_PATH.search(mapping.path):
            return  # a jitdump is mapped to be found, not to be run
        size = mapping.end - mapping.start
        if mapping.path == VDSO:
            recorded.tell(Recorder.function_mapped, time_ns, mapping.start, size, VDSO, self._symbols(mapping))
        elif is_file(mapping.path) and not (mapping.object < 0 and is_made(mapping.path)):
            recorded.tell(Recorder.segment_mapped, time_ns, mapping.start, size, mapping.file_offset, mapping.path,
                          MODES_TEXT, self._world.identity(mapping.object))
        else:
            name = mapping.path if mapping.path.startswith(b"[") else ANONYMOUS
            recorded.tell(Recorder.anonymous_mapped, time_ns, mapping.start, size, name)

    def _symbols(self, mapping: Mapping) -> list[tuple[int, int, bytes]]:
        """The functions of a load object at their run-time addresses: (start, size, name), one per address."""
        if mapping.object < 0:
            return []
        return [(vaddr + mapping.bias, size, name) for vaddr, size, name in self._world.functions(mapping.object)
                if vaddr + mapping.bias + size <= mapping.end]
