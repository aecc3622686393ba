"""Aggregations of experiments as one, in DTrace's terms: merged by the merge law, with stacks by function names.

A founder and its descendants have an aggregation each of every expression. Their states are merged key by key, once the
stacks in the keys are functions: the same function lies elsewhere in each process.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from collector.aggregate.aggregation import records_of_keys
from collector.aggregate.dtrace import Text, UserStack, Value, Words
from collector.aggregate.fold import Fold
from collector.aggregate.keyed import Key, Keyed
from collector.aggregate.language import Query, compiled
from collector.aggregate.listing import printed_entries, rank
from collector.aggregate.syntax import NUMBERS, STACKS, parse
from collector.errors import CollectorError, FormatError
from collector.experiment.aggregations import Stored, stack_of_name
from collector.experiment.names import AGGREGATIONS_FILE
from collector.experiment.names import shown as shown_name
from collector.experiment.reader import Experiment
from collector.experiment.records import KEY_NAME, KEY_NUMBER, KEY_STACK, NOT_SAMPLED
from collector.report.build import DataSet
from collector.report.resolve import UNKNOWN_FUNCTION

_UNKNOWN, _NOT_SAMPLED = b"<Unknown>", b"<not sampled>"
Frames: TypeAlias = tuple[int, ...]  # instructions of a data set, leaf first


@dataclass(frozen=True)
class Merged:
    """An expression's result over several experiments; what is ``synthetic`` was never seen span by span. ``n_dropped``
    values are of keys for which the recording had no room."""

    query: Query
    recorded: Keyed
    synthetic: Keyed
    n_dropped: int = 0

    @property
    def expression(self) -> str:
        """As one line."""
        return shown_name(" ".join(self.query.expression.split()))

    def largest(self, n: int | None) -> Merged:
        """With at most ``n`` keys of each kind, those with the largest values; None: with all."""
        return Merged(self.query, _largest(self.recorded, n), _largest(self.synthetic, n), self.n_dropped)


def merged(data: DataSet) -> list[Merged]:
    """The aggregations of the data set's experiments, in the order in which their expressions come.

    What contradicts its expression is left out; the experiment's ``problems`` tell.
    """
    found: dict[str, Merged] = {}
    for number, experiment in enumerate(data.experiments):
        for stored in experiment.aggregations:
            try:
                _merge(found, stored, _Keys(data, number, experiment, stored))
            except CollectorError as error:
                why = str(error).partition("\n")[0]
                experiment.problems.append(f"{shown_name(experiment.path / AGGREGATIONS_FILE)}: {why}; it was skipped")
    return list(found.values())


def printed(query: Query, keyed: Keyed) -> str:
    """The query's recorded or synthetic states as ``dtrace`` prints them."""
    entries = ((tuple(map(_value, key)), Words(tuple(state.tolist()))) for key, state in keyed.states())
    return printed_entries(records_of_keys(query, keyed), keyed.fold, entries,
                           spelled=lambda name: shown_name(os.fsdecode(name)))


def _largest(keyed: Keyed, n: int | None) -> Keyed:
    if n is None or len(keyed) <= n:
        return keyed
    entries = sorted(keyed.states(), key=lambda entry: rank(keyed.fold, entry[1].tolist()), reverse=True)[:n]
    chosen = Keyed(keyed.fold)
    chosen.fold_in([key for key, _ in entries], np.array([state for _, state in entries]))
    return chosen


def _value(element: Any) -> Value:
    return Text(element) if isinstance(element, bytes) else element


def _merge(found: dict[str, Merged], stored: Stored, keys: _Keys) -> None:
    """CollectorError."""
    one = found.get(stored.expression)
    if one is None:
        query = compiled(parse(stored.expression))
        one = Merged(query, Keyed(query.fold), Keyed(query.fold))
    if stored.states.shape[1] != one.query.fold.n_words:
        raise FormatError(f"{one.query.name} has states of {stored.states.shape[1]} words, not "
                          f"{one.query.fold.n_words}")
    all_keys, n = keys.read(one.query), stored.n_recorded
    _check_words(one.query.fold, stored)
    one.recorded.fold_in(all_keys[:n], stored.states[:n])
    one.synthetic.fold_in(all_keys[n:], stored.states[n:])
    found[stored.expression] = replace(one, n_dropped=one.n_dropped + stored.n_dropped)


def _check_words(function: Fold, stored: Stored) -> None:
    """AggregationError where states are of another scale; before anything is merged."""
    if len(stored.states):
        function.merge_grouped(function.empty_states(1), np.zeros(len(stored.states), dtype=np.int64), stored.states)


class _Keys:
    """Reads an aggregation's keys: numbers as they are, names as bytes, stacks as functions."""

    def __init__(self, data: DataSet, number: int, experiment: Experiment, stored: Stored) -> None:
        self._data = data
        self._number = number
        self._experiment = experiment
        self._stored = stored

    def read(self, query: Query) -> list[Key]:
        """The keys (n,), recorded ones first. FormatError."""
        stored = self._stored
        names = [key.partition("(")[0] for key in query.keys]
        kinds = [KEY_NUMBER if name in NUMBERS else KEY_STACK if name in STACKS else KEY_NAME for name in names]
        if kinds != list(stored.kinds):
            raise FormatError(f"{query.name} has keys of other kinds than its expression")
        columns = [self._column(key, column) for key, column in zip(query.keys, stored.keys.T, strict=True)]
        return list(zip(*columns, strict=True)) if columns else [()] * len(stored.keys)

    def _column(self, key: str, column: Any) -> Sequence[Any]:
        name, _, depth = key.partition("(")
        if name in NUMBERS:
            return list(map(int, column))
        limit = int(depth.rstrip(")")) if depth else None
        if name == "wakerstack":
            indices, places = np.unique(column, return_inverse=True)
            named = self._named_stacks([self._stored.names[index] for index in indices.tolist()], limit)
            return [named[place] for place in places.tolist()]
        if name not in STACKS:
            return [self._stored.names[index] or _UNKNOWN for index in column.tolist()]
        uids, inverse = np.unique(column.astype(np.uint64), return_inverse=True)
        stacks = self._data.frames(self._number, uids)
        elements = [self._element(name, frames[:limit], _NOT_SAMPLED if uid == NOT_SAMPLED else _UNKNOWN)
                    for uid, frames in zip(uids.tolist(), stacks, strict=True)]
        return [elements[place] for place in inverse.tolist()]

    def _named_stacks(self, names: Sequence[bytes], limit: int | None) -> list[UserStack]:
        """Of whatever experiments of the family they are, or marks of their own."""
        places = [stack_of_name(name, self._experiment.path) for name in names]
        frames = self._frames_at(place for place in places if place is not None)
        return [UserStack(0, (1,), (name or _UNKNOWN,)) if place is None
                else self._element("ustack", frames.get(place, ())[:limit], _UNKNOWN)
                for name, place in zip(names, places, strict=True)]

    def _frames_at(self, places: Iterable[tuple[Path, int]]) -> dict[tuple[Path, int], Frames]:
        """By experiment and uid. Each experiment is asked once: that costs as much as it has mappings."""
        wanted: dict[Path, list[int]] = {}
        for path, uid in places:
            wanted.setdefault(path, []).append(uid)
        found: dict[tuple[Path, int], Frames] = {}
        for number, experiment in enumerate(self._data.experiments):
            if uids := wanted.pop(experiment.path, None):
                stacks = self._data.frames(number, np.array(uids, dtype=np.uint64))
                found |= zip([(experiment.path, uid) for uid in uids], stacks, strict=True)
        return found

    def _element(self, name: str, frames: Frames, nothing: bytes) -> Any:
        """A stack as an element of a key; ``nothing`` stands for one without frames. Functions are strings of the
        frames, so no address has to be looked up."""
        if name == "umod" and frames and self._data.code.places[frames[0]][0] == UNKNOWN_FUNCTION:
            return _UNKNOWN
        if name != "ustack":
            return self._named(frames[0], with_function=name != "umod") if frames else nothing
        if not frames:
            return UserStack(0, (1,), (nothing,))
        return UserStack(0, tuple(frame + 1 for frame in frames), tuple(self._frame(frame) for frame in frames))

    def _frame(self, instruction: int) -> bytes:
        """``object`function+0x1f``, as ``dtrace`` shows a frame."""
        function, offset = self._data.code.places[instruction]
        if function == UNKNOWN_FUNCTION:
            return b"0x%x" % offset
        name = self._named(instruction)
        return name + b"+0x%x" % offset if offset and self._data.code.functions[function].has_offsets else name

    def _named(self, instruction: int, with_function: bool = True) -> bytes:
        number, offset = self._data.code.places[instruction]
        if number == UNKNOWN_FUNCTION:
            return b"0x%x" % offset
        function = self._data.code.functions[number]
        if not function.has_offsets:  # a mark that the stack is not whole
            return function.name
        object_name = function.object_name.removeprefix(b"<").removesuffix(b">")
        # A function without a symbol says itself where it is: <static>@0x271c1 (<libc.so.6>).
        name = function.name.partition(b" (%s)" % function.object_name)[0]
        return b"%s`%s" % (object_name, name) if with_function else object_name
