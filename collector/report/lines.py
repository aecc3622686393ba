"""Stacks as source lines, as instructions, and with inlined functions made visible.

Names of lines are those that the Performance Analyzer prints: ``main, line 6 in "prog.c"``. Where debug information
says nothing, all instructions of a function are one line of their own. Debug information is opened once per load
object, and only for objects in which some stack has a pc; separate debug files are found by build-id or
``.gnu_debuglink``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from collector.report.build import TOTAL_FUNCTION, DataSet, LoadedObject
from collector.report.functions import Function
from collector.report.profile import I8, Weighted, merge_equal
from collector.report.symbols import Frame, demangle


class Numbered(NamedTuple):
    """Lines: for each instruction its own, innermost first, and the names of all; id 0 is the total."""

    inside: list[list[int]]
    names: list[bytes]


def numbered(data: DataSet, with_inlines: bool, by_name: bool = False) -> Numbered:
    """The lines of all instructions. A line belongs to a function: several of one name have lines of their own, but
    for inlined ones of one load object. ``by_name``: lines of one name are one, as they are to several builds.
    """
    found = Numbered([], [data.functions[TOTAL_FUNCTION].name])
    numbers: dict[Hashable, int] = {found.names[TOTAL_FUNCTION]: TOTAL_FUNCTION}
    for levels in levels_by_instruction(data, with_inlines):
        found.inside.append([])
        for depth, (function, frame) in enumerate(levels, 1):
            name = _line_name(function, frame)
            where = function.offset if depth == len(levels) else None, frame.path if frame and frame.line else ""
            key = (name, function.object_number, *where) if function.has_offsets and not by_name else name
            number = numbers.setdefault(key, len(found.names))
            if number == len(found.names):
                found.names.append(name)
            found.inside[-1].append(number)
    return found


def line_stacks(data: DataSet, with_inlines: bool, by_name: bool = False) -> tuple[Weighted, list[bytes]]:
    """All stacks as source lines, and the lines' names; id 0 is the total."""
    lines = numbered(data, with_inlines, by_name)
    return expanded(data.instructions, lines.inside, len(lines.names)), lines.names


def line_of_instructions(data: DataSet) -> tuple[I8, list[bytes]]:
    """The line of each instruction (n), inlined functions not told apart, and the lines' names; id 0 is the total."""
    lines = numbered(data, with_inlines=False)
    return np.array([inside[0] for inside in lines.inside], np.int64), lines.names


def first_instructions(data: DataSet, with_inlines: bool) -> dict[int, int]:
    """Of each line, by its number in ``line_stacks``, its instruction with the lowest address that was met."""
    found: dict[int, int] = {}
    for index, inside in enumerate(numbered(data, with_inlines).inside):
        for line in inside:
            if line not in found or data.places[index] < data.places[found[line]]:
                found[line] = index
    return found


def instruction_names(data: DataSet) -> list[bytes]:
    """The name of each instruction, with its line where debug information tells it."""
    names = []
    for (number, offset), inside in zip(data.places, levels_by_instruction(data, False), strict=True):
        function, frame = data.functions[number], inside[0][1]
        digits = 8 if offset < 1 << 32 else 16
        name = b"%s + 0x%0*X" % (function.name, digits, offset) if function.has_offsets else function.name
        if function.has_offsets and frame is not None and frame.line:
            base = frame.path.rsplit("/", 1)[-1].encode("utf-8", "surrogateescape")
            name += b', line %d in "%s"' % (frame.line, base)
        names.append(name)
    return names


def instruction_stacks(data: DataSet) -> tuple[Weighted, list[bytes]]:
    """All stacks as instructions, and their names; id 0 is the total."""
    names = [data.functions[TOTAL_FUNCTION].name]
    for number, offset in data.places:
        function = data.functions[number]
        digits = 8 if offset < 1 << 32 else 16
        names.append(b"%s + 0x%0*X" % (function.name, digits, offset) if function.has_offsets else function.name)
    return data.regrouped(np.arange(1, len(names), dtype=np.int64), len(names)), names


def inline_stacks(data: DataSet) -> tuple[Weighted, list[Function]]:
    """All stacks as functions, inlined ones as frames of their own; and the functions."""
    functions = list(data.functions)
    made: dict[tuple[bytes, bytes], int] = {}

    def number_of(index: int, function: Function) -> int:
        own = data.places[index][0]
        if function is data.functions[own]:
            return own
        number = made.setdefault((function.name, function.object_name), len(functions))
        if number == len(functions):
            functions.append(function)
        return number

    groups = [[number_of(index, function) for function, _ in inside]
              for index, inside in enumerate(levels_by_instruction(data, True))]
    return expanded(data.instructions, groups, len(functions)), functions


def frames_met(data: DataSet) -> Iterable[tuple[LoadedObject, list[Frame]]]:
    """For every instruction of a load object what debug information says of it."""
    by_number = {loaded.number: loaded for loaded in data.objects.values()}
    for number, offset in data.places:
        function = data.functions[number]
        loaded = by_number.get(function.object_number)
        if loaded is not None and function.has_offsets:
            yield loaded, frames_inside(loaded, function, offset)


def frames_inside(loaded: LoadedObject, function: Function, offset: int) -> list[Frame]:
    """Functions and lines at an offset in a function, innermost first; nothing where none are known."""
    text = function.text
    if text is None:
        return loaded.frames_at(function.offset + offset)
    at = bisect_right(text.lines, (offset, 1 << 32)) - 1
    if not text.source or at < 0:
        return []
    return [Frame(function.name, text.source.decode("utf-8", "surrogateescape"), text.lines[at][1])]


def levels_by_instruction(data: DataSet, with_inlines: bool) -> list[list[tuple[Function, Frame | None]]]:
    """For every instruction its levels, innermost first: function, and what is known of its line."""
    by_number = {loaded.number: loaded for loaded in data.objects.values()}
    result: list[list[tuple[Function, Frame | None]]] = []
    for number, offset in data.places:
        function = data.functions[number]
        loaded = by_number.get(function.object_number)
        if loaded is None or not function.has_offsets or (loaded.file is None and function.text is None):
            result.append([(function, None)])
            continue
        found = frames_inside(loaded, function, offset)
        result.append(_levels(function, found, with_inlines))
    return result


def _levels(function: Function, found: list[Frame], with_inlines: bool) -> list[tuple[Function, Frame | None]]:
    """The innermost line belongs to the innermost function; without inlining, to the one that holds the code.

    A hole in the symbol table gets the name that debug information has for it.
    """
    if not found:
        return [(function, None)]
    if function.name.startswith(b"<static>@"):
        function = _named_like(function, found[-1])
    if not with_inlines:
        return [(function, found[0])]
    return [*((_named_like(function, frame), frame) for frame in found[:-1]), (function, found[-1])]


def _named_like(function: Function, frame: Frame) -> Function:
    return Function(demangle(frame.function), frame.function, function.object_name, function.offset, 0,
                    function.object_number)


def _line_name(function: Function, frame: Frame | None) -> bytes:
    if not function.has_offsets:
        return function.name
    if frame is None or not frame.line:
        if function.name == b"<Unknown>":
            return function.name
        return b"<Function: %s, instructions without line numbers>" % function.name
    base = frame.path.rsplit("/", 1)[-1].encode("utf-8", "surrogateescape")
    return b'%s, line %d in "%s"' % (function.name, frame.line, base)


def expanded(stacks: Weighted, groups: list[list[int]], n_groups: int) -> Weighted:
    """Stacks with every object replaced by the run ``groups[object]``, innermost first."""
    return merge_equal(Weighted(*spread(stacks.offsets, stacks.objects, groups), stacks.weights, n_groups))


def spread(offsets: I8, objects: npt.NDArray[np.integer], groups: Sequence[Sequence[int]]) -> tuple[I8, I8]:
    """The same of stacks ``objects[offsets[i]:offsets[i + 1]]``: their offsets and objects."""
    lengths = np.array([len(group) for group in groups], np.int64)
    begins = np.concatenate([[0], np.cumsum(lengths)])[:-1]
    flat = np.array([number for group in groups for number in group], np.int64)
    counts = lengths[objects]
    ends = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    source = np.repeat(begins[objects] - ends[:-1], counts) + np.arange(ends[-1])
    return np.asarray(ends[offsets], np.int64), flat[source]
