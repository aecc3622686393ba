"""From experiments to neutral tables: several experiments as one data set of weighted stacks."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from copy import copy
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from collector.experiment.map import MADE_UP_END, MADE_UP_FIRST
from collector.experiment.reader import DynamicFunction, Experiment, Message, ObjectFile, Sample, Segment
from collector.report.address_space import Key
from collector.report.functions import Function
from collector.report.kinds import columns_of
from collector.report.metrics import Metric
from collector.report.profile import I8, Weighted, merge_equal, picked
from collector.report.resolve import (
    EXACT_LOOK_UPS_MAX,
    MODES_TEXT,
    TOTAL_FUNCTION,
    UNKNOWN_FUNCTION,
    Code,
    LoadedObject,
    Numbers,
    Packets,
    Part,
    Resolved,
    key_of,
)

# Exports know experiments through this room.
Bool = npt.NDArray[np.bool_]
__all__ = ["TOTAL_FUNCTION", "UNKNOWN_FUNCTION", "DataSet", "Experiment", "LoadedObject", "Message", "Packets",
           "Sample", "load", "members"]

_FIRST_OBJECT_NUMBER = 2
# Stacks that have functions of an interpreter: these without its own, all frames, those of machine code.
VIEWS = USER, EXPERT, MACHINE = "user", "expert", "machine"
INTERPRETING = (b"_PyEval_EvalFrameDefault",)  # an object with such a function is an interpreter
_MACHINES = re.compile(rb"<libjvm\.so>|<(lib)?python3?[.\d]*[a-z]?(\.so[.\d]*)?>")  # names of objects that are
# How names of code begin that they have made, or carry out functions with.
_MACHINE_CODE = (b"[C1] ", b"[C2] ", b"[native] ", b"[HotSpot] ", b"[Sparkplug] ", b"[Maglev] ", b"[TurboFan] ",
                 b"[V8] ", b"Builtins_")


class DataSet:
    """Some experiments as one: all their stacks with weights in microseconds per state, and what the pcs are.

    Nothing is looked up before it is asked for.
    """

    def __init__(self, experiments: Sequence[Experiment], with_latency: bool = False) -> None:
        self.experiments = list(experiments)
        self.objects: dict[Key, LoadedObject] = {}
        self.is_whole = True
        self._view = EXPERT
        self._viewed: dict[str, DataSet] = {}
        self._code = Code()
        self.columns = columns_of(self.experiments, with_latency)
        self._parts = [Part(self._code, self._load_object, experiment, self.columns) for experiment in self.experiments]
        self._masks: Sequence[Bool | None] = [None] * len(self._parts)

    @property
    def parts(self) -> Sequence[Part]:
        """What each experiment contributes; stacks are found."""
        assert self.instructions is not None
        return self._parts

    def filtered(self, masks: Sequence[Bool]) -> DataSet:
        """The same, of the packets alone that the ``masks`` select: one for each experiment, over all its packets."""
        assert self.instructions is not None
        some = self._copied()
        some._masks = masks
        some.is_whole = False
        return some

    def viewed(self, mode: str) -> DataSet:
        """The same as one of the VIEWS of stacks that have functions of interpreters in them."""
        if mode == self._view or not self._has_made_up:
            return self
        if mode not in self._viewed:
            self._viewed[mode] = self._copied()
            self._viewed[mode]._view = mode
        return self._viewed[mode]

    def _copied(self) -> DataSet:
        some = copy(self)
        some._viewed = {}
        for cached in ("instructions", "stacks", "merged_instructions"):
            some.__dict__.pop(cached, None)
        return some

    def mask(self, number: int) -> Bool | None:
        """Which packets of an experiment, all kinds, are selected; None: all."""
        return self._masks[number]

    @cached_property
    def _has_made_up(self) -> bool:
        return any(MADE_UP_FIRST <= function.vaddr < MADE_UP_END
                   for experiment in self.experiments for function in experiment.functions)

    @cached_property
    def metrics(self) -> tuple[Metric, ...]:
        """The metrics that the experiments have data for."""
        return self.columns.metrics

    @property
    def functions(self) -> list[Function]:
        """All functions that occur, by id; the first ones are the special ones."""
        return self._looked_up.functions

    @property
    def places(self) -> list[tuple[int, int]]:
        """For each instruction its function's id and its offset in it."""
        return self._looked_up.places

    def stacks_of_packets(self) -> list[tuple[I8, Numbers, Numbers]]:
        """Of each experiment its distinct stacks, offsets and instructions, as in this view; and the stack of each
        packet, all kinds (n,).
        """
        same, n = np.arange(len(self.places), dtype=np.int64), len(self.places)
        found = []
        for part in self.parts:
            offsets, instructions, of_packet = part.function_stacks(same)
            seen = self._seen(Weighted(offsets, instructions, np.zeros((len(offsets) - 1, 0), np.int64), n))
            found.append((seen.offsets, seen.objects, of_packet))
        return found

    @property
    def n_missing_stacks(self) -> int:
        """Packets whose stack is not in the experiment; they count for the total alone."""
        assert self.instructions is not None
        return sum(part.n_missing_stacks for part in self._parts)

    @cached_property
    def instructions(self) -> Weighted:
        """All stacks, as instructions."""
        found = self._seen(_joined(self._resolved(), self.columns.n, len(self._code.places)))
        return _without_weightless(found, sorted({state for metric in self.metrics for state in metric.states}))

    @cached_property
    def stacks(self) -> Weighted:
        """All stacks, as functions (ids into ``functions``)."""
        return self.regrouped(np.array([function for function, _ in self.places], np.int32), len(self.functions))

    @cached_property
    def merged_instructions(self) -> Weighted:
        """All stacks, as instructions, each once."""
        return merge_equal(self.instructions)

    def stacks_with(self, kind: str, values: Callable[[Experiment], I8], n_values: int) -> Weighted:
        """The stacks of packets of a kind, as instructions, each once, with other ``values`` (n, n_values) of them."""
        assert self.instructions is not None
        parts = [part.resolve_with(kind, values(part.experiment), n_values, mask)
                 for part, mask in self._selected if kind in part.experiment.kinds]
        found = self._seen(_joined(parts, n_values, len(self._code.places)))
        return merge_equal(_without_weightless(found, range(n_values)))

    @property
    def _selected(self) -> list[tuple[Part, Bool | None]]:
        """The experiments of which any packets are selected, and which: of many that are compared, one at a time."""
        return [(part, mask) for part, mask in zip(self._parts, self._masks, strict=True) if mask is None or mask.any()]

    def _seen(self, stacks: Weighted) -> Weighted:
        """Stacks of instructions without the frames that this view leaves out."""
        if self._view == EXPERT:
            return stacks
        functions = self._code.functions
        kinds = [MADE_UP_FIRST <= function.offset < MADE_UP_END for function in functions]
        interpreters = {function.object_number for function in functions if function.name in INTERPRETING}
        of_place = [number for number, _ in self._code.places]
        made = np.array(kinds, np.bool_)[of_place][stacks.objects]
        drop = made
        if self._view == USER:
            is_its = np.array([function.object_number in interpreters or _is_of_machine(function)
                               for function in functions], np.bool_)
            n_made = np.diff(np.append(0, np.cumsum(made))[stacks.offsets])
            drop = is_its[of_place][stacks.objects] & np.repeat(n_made > 0, np.diff(stacks.offsets))
        kept = np.append(0, np.cumsum(~drop))
        return Weighted(kept[stacks.offsets].astype(np.int64), stacks.objects[~drop], stacks.weights, stacks.n_objects)

    def regrouped(self, group: I8, n_groups: int) -> Weighted:
        """All stacks with each instruction replaced by ``group[instruction]``."""
        at = self.instructions
        return merge_equal(Weighted(at.offsets, group[at.objects], at.weights, n_groups))

    @property
    def object_problems(self) -> list[str]:
        """What is wrong or doubtful with the files of the load objects that the stacks are in."""
        assert self.instructions is not None
        return list(dict.fromkeys(loaded.problem for loaded in self.objects.values() if loaded.problem))

    def weights_by(self, keys: Callable[[Experiment, Packets], I8], n_keys: int) -> I8:
        """The packets' weights (n_keys, columns) by a key per packet, which is asked for the packets of each kind."""
        sums = np.zeros((n_keys, self.columns.n), np.int64)
        for number, part in enumerate(self._parts):
            groups = [keys(part.experiment, part.experiment.packets(kind)) for kind in part.experiment.kinds]
            sums += self._sums(number, np.concatenate([np.zeros(0, np.int64), *groups]), n_keys)
        return sums

    def weights_of(self, groups: Sequence[I8], n_groups: int) -> I8:
        """The packets' weights (n_groups, columns) by a group for each packet of each experiment, all kinds."""
        sums = np.zeros((n_groups, self.columns.n), np.int64)
        for number, group in enumerate(groups):
            sums += self._sums(number, group, n_groups)
        return sums

    def _sums(self, number: int, group: I8, n_groups: int) -> I8:
        mask = self._masks[number]
        return self._parts[number].weights(group if mask is None else np.where(mask, group, -1), n_groups)

    def frames(self, number: int, uids: npt.NDArray[np.uint64]) -> list[tuple[int, ...]]:
        """The stacks ``uids`` of an experiment as instructions, leaf first; empty where there is none.

        For a data set of its own: what is asked here is not asked in the order of the packets.
        """
        return self._parts[number].frames_of(uids)

    @property
    def code(self) -> Code:
        """What has been looked up so far."""
        return self._code

    @property
    def _looked_up(self) -> Code:
        assert self.instructions is not None
        return self._code

    def _resolved(self) -> list[Resolved]:
        if not self.is_whole:
            return [part.weighed(mask) for part, mask in self._selected]
        parts = [part.resolve() for part in self._parts]
        dependent = {key: loaded for key, loaded in self.objects.items() if loaded.is_order_dependent()}
        if not dependent:
            return parts
        entangled = {}
        for key, loaded in dependent.items():
            loaded.forget()
            asked = np.unique(np.concatenate([part.offsets_in(key) for part in self._parts]))
            entangled[key] = loaded.table.entangled(asked)
        work = [part.work_in(entangled) for part in self._parts]
        if sum(one.n_look_ups for one in work) > EXACT_LOOK_UPS_MAX:
            return parts
        return [part.resolve_exactly(one) for part, one in zip(self._parts, work, strict=True)]

    def _load_object(self, mapping: Segment | DynamicFunction, experiment: Experiment) -> LoadedObject | None:
        return load_object(self.objects, mapping, experiment)


def _is_of_machine(function: Function) -> bool:
    return bool(_MACHINES.fullmatch(function.object_name)) or function.name.startswith(_MACHINE_CODE)


def load_object(objects: dict[Key, LoadedObject], mapping: Segment | DynamicFunction,
                experiment: Experiment) -> LoadedObject | None:
    """The load object of a mapping, among ``objects`` from then on; it comes into being with its first text."""
    key = key_of(mapping, experiment)
    is_text = not isinstance(mapping, Segment) or mapping.modes == MODES_TEXT
    if key not in objects and is_text and mapping.size:
        objects[key] = LoadedObject(key[0], _FIRST_OBJECT_NUMBER + len(objects), mapping.size,
                                    lambda: _file_of(mapping, experiment), experiment.places)
    return objects.get(key)


def _file_of(mapping: Segment | DynamicFunction, experiment: Experiment) -> ObjectFile:
    return experiment.object_file(mapping) if isinstance(mapping, Segment) else ObjectFile(None)


def load(experiments: Sequence[Experiment], with_latency: bool = False) -> DataSet:
    """All experiments given, with their descendants, as one data set; founders first, each followed by its own."""
    return DataSet([one for experiment in experiments for one in members(experiment)], with_latency)


def members(experiment: Experiment) -> list[Experiment]:
    """An experiment and its descendants, but none that never had a stack. An MPI job has no data of its own: it is its
    ranks, each with its descendants.
    """
    ranks = [child for child in experiment.children if child.is_rank]
    return [one for head in ranks or [experiment] for one in (head, *_descendants(head))]


def _descendants(experiment: Experiment) -> list[Experiment]:
    return [child for child in experiment.children if child.lineage and not _is_empty(child.path / "data.frameinfo")]


def _is_empty(path: Path) -> bool:
    try:
        return path.stat().st_size == 0
    except OSError:
        return False


def _joined(parts: Sequence[Resolved], n_columns: int, n_objects: int) -> Weighted:
    """The stacks of several experiments, with ``n_columns`` weights."""
    if len(parts) == 1:
        return Weighted(parts[0].offsets, parts[0].instructions, parts[0].weights, n_objects)
    offsets = np.concatenate([[0], *(np.diff(part.offsets) for part in parts)]).cumsum().astype(np.int64)
    objects = np.concatenate([np.zeros(0, np.int32), *(part.instructions for part in parts)])
    weights = np.concatenate([np.zeros((0, n_columns), np.int64), *(part.weights for part in parts)])
    return Weighted(offsets, objects, weights, n_objects)


def _without_weightless(stacks: Weighted, columns: Sequence[int]) -> Weighted:
    """Without the stacks that have nothing in these columns."""
    keep = np.flatnonzero(stacks.weights[:, list(columns)].any(axis=1))
    if len(keep) == len(stacks):
        return stacks
    objects, offsets = picked(stacks.objects, stacks.offsets, keep)
    return Weighted(offsets, objects, stacks.weights[keep], stacks.n_objects)
