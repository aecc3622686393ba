"""The format of callgrind's profiles, for KCachegrind and callgrind_annotate: functions, lines and calls.

Each state in which any time was spent is an event. What the callers of a function pay for their calls of it adds up to
its inclusive cost: a stack counts once for each function in it, however often that recurs. What nothing is known to
have called, ``<Total>`` has called; its own sum lacks the stacks in which such a function recurs. How often is not
known of samples; each call stands there as made once, where the first known line of its caller is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import BinaryIO

import numpy as np

from collector.export.choices import EXPORTER, Choices, lines, names, notes, object_names, put
from collector.export.text import printable
from collector.report.build import TOTAL_FUNCTION
from collector.report.profile import I8, ROOT, Weighted, merge_equal, pairs
from collector.report.samples import Quantity, Samples


def write(samples: Samples, out: BinaryIO, choices: Choices) -> None:
    """The profile; ``choices`` say nothing to it."""
    put(out, _lines(samples))


def _lines(samples: Samples) -> Iterator[str]:
    quantities = _quantities(samples)
    yield f"# callgrind format\nversion: 1\ncreator: {EXPORTER}\n"
    for process in samples.processes[:1]:
        yield f"pid: {process.pid}\ncmd: {printable(process.experiment.log.arguments)}\n"
    for note in notes(samples):
        yield f"desc: Note: {note}\n"
    yield "positions: line\n"
    for one in quantities:
        yield f"event: {one.name} : {one.title}, {one.unit}\n"
    for one in samples.sums:
        parts = [other.name for other in quantities if set(other.columns) <= set(one.columns)]
        yield f"event: {one.name} = {' + '.join(parts)} : {one.title}, us\n" if parts else ""
    yield f"events: {' '.join(one.name for one in quantities) or 'total'}\n"
    stacks = _weighted(samples, quantities)
    totals = " ".join(map(str, stacks.weights.sum(axis=0).tolist())) or "0"
    yield f"summary: {totals}\n\n"
    yield from _functions(samples, stacks, quantities)
    yield f"totals: {totals}\n"


def _quantities(samples: Samples) -> list[Quantity]:
    """Those of which there is anything; if there is nothing at all, the first."""
    return [one for one in samples.quantities if samples.groups.of(one).any()] or samples.quantities[:1]


def _weighted(samples: Samples, quantities: Sequence[Quantity]) -> Weighted:
    """The stacks as functions, with the quantities as weights."""
    groups, stacks = samples.groups, samples.stacks
    weights = np.zeros((len(stacks), len(quantities)), np.int64)
    for place, quantity in enumerate(quantities):
        np.add.at(weights[:, place], groups.stack, groups.of(quantity))
    return merge_equal(Weighted(stacks.offsets, samples.function_of[stacks.frames], weights, len(samples.functions)))


def _functions(samples: Samples, stacks: Weighted, quantities: Sequence[Quantity]) -> Iterator[str]:
    """Each with its own cost by line, and its calls."""
    places = _places(samples)
    name = _Names(names(samples), object_names(samples), places)
    own = _own_costs(samples, quantities)
    callers = pairs(stacks)[0]
    calls: dict[int, list[tuple[int, list[int]]]] = defaultdict(list)
    for caller, callee, costs in zip(callers.caller.tolist(), callers.callee.tolist(), callers.weights.tolist(),
                                     strict=True):
        calls[TOTAL_FUNCTION if caller == ROOT else caller].append((callee, costs))
    for number in sorted(set(own) | set(calls)):
        yield f"{name.own(number)}\n"
        for line, costs in own.get(number, ()):
            yield f"{line} {' '.join(map(str, costs))}\n"
        for callee, costs in calls.get(number, ()):
            yield (f"{name.called(callee)}\ncalls=1 {places[callee][1]}\n"
                   f"{places[number][1]} {' '.join(map(str, costs))}\n")
        yield "\n"


def _own_costs(samples: Samples, quantities: Sequence[Quantity]) -> dict[int, list[tuple[int, list[int]]]]:
    """For each function that is a leaf, lines and their costs."""
    groups, stacks = samples.groups, samples.stacks
    leaves = stacks.frames[stacks.offsets[:-1]]
    weights: I8 = np.stack([groups.of(one) for one in quantities] or [np.zeros(len(groups.stack), np.int64)], 1)
    line_of = np.array([line for _, line in lines(samples)], np.int64)
    keys = np.stack([samples.function_of[leaves[groups.stack]].astype(np.int64), line_of[leaves[groups.stack]]], 1)
    found, inverse = np.unique(keys, axis=0, return_inverse=True)
    sums = np.zeros((len(found), weights.shape[1]), np.int64)
    np.add.at(sums, inverse.reshape(-1), weights)
    own: dict[int, list[tuple[int, list[int]]]] = defaultdict(list)
    for (number, line), costs in zip(found.tolist(), sums.tolist(), strict=True):
        own[number].append((line, costs))
    return own


def _places(samples: Samples) -> list[tuple[str, int]]:
    """For each function its source file, and the first of its lines that are known."""
    found = [("", 0)] * len(samples.functions)
    for number, (path, line) in zip(samples.function_of.tolist(), lines(samples), strict=True):
        if path and (not found[number][0] or 0 < line < found[number][1]):
            found[number] = path, line
    return found


class _Names:
    """Names in their short form: ``(7) main`` where they are met first, ``(7)`` from then on."""

    def __init__(self, functions: list[str], objects: list[str], places: list[tuple[str, int]]) -> None:
        self._functions, self._objects, self._places = functions, objects, places
        self._met: dict[str, dict[object, str]] = {"ob": {}, "fl": {}, "fn": {}}

    def own(self, number: int) -> str:
        """The function that costs belong to."""
        return self._of(number, "ob=", "fl=", "fn=")

    def called(self, number: int) -> str:
        """The function that is called."""
        return self._of(number, "cob=", "cfi=", "cfn=")

    def _of(self, number: int, of_object: str, of_file: str, of_function: str) -> str:
        lines = [of_object + self._short("ob", self._objects[number] or "???", self._objects[number]),
                 of_file + self._short("fl", self._places[number][0] or "???", self._places[number][0]),
                 of_function + self._short("fn", self._functions[number], number)]
        return "\n".join(lines)

    def _short(self, kind: str, name: str, key: object) -> str:
        met = self._met[kind]
        if key in met:
            return met[key]
        met[key] = f"({len(met) + 1})"
        return f"{met[key]} {name}"
