"""Source files and instructions with what each line and each instruction weighs.

A row of a source file is a line. Its weight is that of all instructions whose innermost line it is, be they inlined
anywhere; with ``inlines`` on, lines that call inlined functions have those inclusively, too. What functions of the file
have elsewhere (code inlined from headers, code without lines) stands below the file in rows of its own, so that the
rows add up to what the functions weigh.

A row of the disassembly is an instruction, between the lines of its source. A frame that is not a leaf counts for the
instruction that calls, wherever in it the recorded address lies.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from collector.dwarf import Row, Unit
from collector.elf import EM_X86_64
from collector.errors import ElfError, UsageError, shown
from collector.report import profile
from collector.report.build import TOTAL_FUNCTION, UNKNOWN_FUNCTION, DataSet, LoadedObject
from collector.report.compat import short_name
from collector.report.disassembly import instructions
from collector.report.documents import CODE, HEAD, LINE, Annotated, Column
from collector.report.functions import Function
from collector.report.lines import expanded, frames_inside, frames_met, levels_by_instruction
from collector.report.metrics import TOTAL_CPU, View
from collector.report.profile import Weighted
from collector.report.sources import Source, find_source
from collector.report.symbols import Frame, demangle
from collector.report.tables import annotation_columns

Bool = npt.NDArray[np.bool_]

ELSEWHERE = 0
NOTHING = -1
_NAMES_SHOWN = 20


@dataclass(frozen=True)
class Target:
    """What is shown: a function, or all that has code in a source file (``path``; empty: not known)."""

    loaded: LoadedObject
    path: str
    function: Function | None = None


@dataclass(frozen=True)
class Wanted:
    """How it is shown. ``threshold``: percent of a column's largest value, from which on a row is hot."""

    threshold: int = 75
    with_inlines: bool = False
    with_source: bool = True
    with_bytes: bool = False


@dataclass(frozen=True)
class Line:
    """A row to be: ``key`` leads to its weight, None: it has no code."""

    text: bytes
    kind: str
    number: int = 0
    key: int | None = None


# -- what is meant


def targets(data: DataSet, name: str, is_numbered: bool = False) -> list[Target]:
    """All that goes by a name: functions by any of their names, else source files by path or base name.

    Functions are in the order of load objects and addresses, as gprofng numbers them. ``is_numbered``: those that were
    not met count, too, which they do anyway where several or none were.
    """
    functions = data.functions
    special = {functions[TOTAL_FUNCTION].name, functions[UNKNOWN_FUNCTION].name}
    if name.encode("utf-8", "surrogateescape") in special:
        raise UsageError(f"{name} is not a real function; no source or disassembly available.")
    found = [Target(loaded, _home(loaded, function), function)
             for loaded, function in _functions_named(data, name.encode("utf-8", "surrogateescape"), is_numbered)]
    return found or _files_named(data, name)


def met(data: DataSet, found: Sequence[Target]) -> list[Target]:
    """The functions among them that stacks have, with the most CPU time first, then with the most of anything: how long
    a function waited for a CPU is the machine's doing."""
    inclusive = profile.inclusive(data.stacks)
    weights = np.stack((inclusive[:, list(TOTAL_CPU.states)].sum(axis=1), inclusive.sum(axis=1)), axis=1).tolist()
    weight = {_address(function): tuple(weights[number]) for number, function in enumerate(data.functions)}
    weighed = [(weight.get(_address(one.function), (0, 0)), one) for one in found if one.function is not None]
    return [one for value, one in sorted(weighed, key=lambda pair: pair[0], reverse=True) if any(value)]


def _address(function: Function) -> tuple[int, int]:
    return function.object_number, function.offset


def target_of(data: DataSet, function: Function) -> Target | None:
    """A function that was met; None where its load object is not known."""
    loaded = next((one for one in data.objects.values() if one.number == function.object_number), None)
    return Target(loaded, _home(loaded, function), function) if loaded is not None else None


def _functions_named(data: DataSet, name: bytes, is_numbered: bool) -> list[tuple[LoadedObject, Function]]:
    """Of those met, if it is one and no number is wanted, or of all that there are."""
    by_number = {loaded.number: loaded for loaded in data.objects.values()}
    there = [(by_number[f.object_number], f) for f in data.functions
             if f.object_number in by_number and _is_called(f, name)]
    if is_numbered or len(there) != 1:
        part = short_name(name).rsplit(b"::", 1)[-1].split(b"<", 1)[0].rsplit(b".", 1)[-1] or name
        there += [(loaded, function) for loaded in data.objects.values() if loaded.file is not None
                  for function in loaded.functions_like(part) if _is_called(function, name)]
    found = {_address(function): (loaded, function) for loaded, function in reversed(there)}
    return [found[place] for place in sorted(found)]


def _is_called(function: Function, name: bytes) -> bool:
    return function.has_offsets and name in (function.name, function.linkage, short_name(function.name))


def _files_named(data: DataSet, name: str) -> list[Target]:
    found: dict[tuple[int, str], Target] = {}
    wanted = os.path.normpath(name)
    for loaded, frames in frames_met(data):
        for frame in frames:
            path = os.path.normpath(frame.path)
            if frame.path and (path == wanted or path.endswith(f"/{wanted}")):
                found.setdefault((loaded.number, path), Target(loaded, path))
    if found:
        return list(found.values())
    for loaded in data.objects.values():
        for path in loaded.unit_paths if loaded.file is not None else ():
            if path == wanted or path.endswith(f"/{wanted}"):
                found.setdefault((loaded.number, path), Target(loaded, path))
    return list(found.values())


def _home(loaded: LoadedObject, function: Function) -> str:
    """The source file that a function begins in."""
    frames = frames_inside(loaded, function, 0)
    return os.path.normpath(frames[-1].path) if frames and frames[-1].path else ""


# -- source


def source_document(data: DataSet, target: Target, view: View, wanted: Wanted, newer_than: int) -> Annotated:
    """A source file with its lines' weights. UsageError if no source is known. ``newer_than``: Unix seconds."""
    if not target.path:
        raise UsageError("Source location not recorded in experiment")
    file = _File(data, target)
    stacks = file.stacks_by_line(data, wanted.with_inlines)
    source = find_source(data, target, newer_than)
    return document("source", target, source, file.rows(source), stacks, view, wanted)


class _File:
    """A source file of a load object: its functions, which lines have code, and keys for what is weighed."""

    def __init__(self, data: DataSet, target: Target) -> None:
        self._path = target.path
        self._loaded = target.loaded
        self._keys: dict[tuple[str, str | int], int] = {("", ""): ELSEWHERE}
        self._units = _units_of(data, target)
        rows = [row for unit in self._units for row in unit.rows if row.line and row.path == self._path]
        self._lines = {row.line for row in rows}
        self.functions = self._functions(data, rows, target)
        self.heads = {function.name: self._head(function) for function in self.functions}

    def _functions(self, data: DataSet, rows: Sequence[Row], target: Target) -> list[Function]:
        """Those that begin in this file, by address."""
        offsets = {offset for row in rows if (offset := self._loaded.offset_of(row.vaddr)) is not None}
        found = {f.offset: f for f in (self._loaded.table.find(offset) for offset in offsets)}
        found.update((f.offset, f) for f in data.functions if f.object_number == self._loaded.number and f.has_offsets)
        if target.function is not None:
            found[target.function.offset] = target.function
        return [found[offset] for offset in sorted(found) if _home(self._loaded, found[offset]) == self._path]

    def _head(self, function: Function) -> int:
        """The line above which a function's name stands: where it is declared, else where its code begins."""
        vaddr = self._loaded.vaddr_of(function.offset)
        unit = self._loaded.unit_at(function.offset)
        first = 0
        if unit is not None and vaddr is not None:
            here = [row.line for row in unit.rows if row.vaddr == vaddr and row.line and row.path == self._path]
            first = _declared(unit).get(vaddr, 0) or (here[0] if here else 0)
        if not first and (frames := frames_inside(self._loaded, function, 0)):
            first = frames[-1].line
        self._lines.update({first} - {0})
        return first

    def key(self, kind: str, what: str | int) -> int:
        """The number of what is weighed."""
        return self._keys.setdefault((kind, what), len(self._keys))

    def stacks_by_line(self, data: DataSet, with_inlines: bool) -> Weighted:
        """All stacks as lines of this file, and what its functions have elsewhere; the rest is one."""
        members = {id(function) for function in self.functions}
        groups = []
        for (number, _), levels in zip(data.places, levels_by_instruction(data, with_inlines), strict=True):
            own = data.functions[number]
            if own.object_number != self._loaded.number:
                groups.append([ELSEWHERE])
                continue
            groups.append([self._key_of(own, id(own) in members, frame) for _, frame in levels])
        return expanded(data.instructions, groups, len(self._keys))

    def _key_of(self, own: Function, is_member: bool, frame: Frame | None) -> int:
        path = os.path.normpath(frame.path) if frame is not None and frame.path else ""
        if frame is not None and frame.line and path == self._path:
            return self.key(LINE, frame.line)
        if not is_member:
            return ELSEWHERE
        name = own.name.decode("utf-8", "surrogateescape")
        if frame is None or not frame.line:
            return self.key(HEAD, f"<Function: {name}, instructions without line numbers>")
        return self.key(HEAD, f"<Function: {name}, instructions from source file {os.path.basename(path)}>")

    def rows(self, source: Source) -> list[Line]:
        """The rows to be; without the source, only lines with code."""
        known = self._lines | {what for kind, what in self._keys if kind == LINE and isinstance(what, int)}
        heads: dict[int, list[bytes]] = {}
        for name, line in self.heads.items():
            heads.setdefault(line, []).append(b"<Function: %s>" % name)
        result = []
        n = len(source.lines)
        for number in (*range(1, n + 1), *sorted(line for line in known if line > n)):
            result += [Line(text, HEAD) for text in heads.get(number, ())]
            text = source.lines[number - 1] if number <= n else b""
            key = self._keys.get((LINE, number), NOTHING) if number in known else None
            result.append(Line(text, LINE, number, key))
        return result + [Line(what.encode("utf-8", "surrogateescape"), HEAD, 0, key)
                         for (kind, what), key in self._keys.items() if kind == HEAD and isinstance(what, str)]


def _units_of(data: DataSet, target: Target) -> list[Unit]:
    """The units that have code of a file, as far as anything of them was met."""
    loaded = target.loaded
    offsets = {f.offset for f in data.functions if f.object_number == loaded.number and f.has_offsets}
    if target.function is not None:
        offsets.add(target.function.offset)
    units = {id(unit): unit for offset in sorted(offsets) if (unit := loaded.unit_at(offset)) is not None}
    named = [unit for unit in loaded.units_named(target.path) if id(unit) not in units]
    return [*units.values(), *named]


def declared_line(loaded: LoadedObject, function: Function) -> int:
    """The line in which a function is declared; 0: not known."""
    vaddr, unit = loaded.vaddr_of(function.offset), loaded.unit_at(function.offset)
    return _declared(unit).get(vaddr, 0) if unit is not None and vaddr is not None else 0


def _declared(unit: Unit) -> dict[int, int]:
    try:
        return unit.declared
    except ElfError:
        return {}


# -- instructions


def disassembly(data: DataSet, target: Target, view: View, wanted: Wanted, newer_than: int) -> Annotated:
    """The instructions of a function, or of all functions of a file, between the lines of their source."""
    loaded, one = target.loaded, target.function
    if one is not None and one.text is None and loaded.file is not None and loaded.vaddr_of(one.offset) is None:
        object_name, name = (text.decode("utf-8", "replace") for text in (loaded.name, one.name))
        raise UsageError(f"{name}: the experiment has the names of the functions of {object_name}, and no instructions")
    functions = [one] if one is not None else _File(data, target).functions
    source = find_source(data, target, newer_than) if target.path and wanted.with_source else Source("", ())
    coded = [instructions_of(loaded, function, wanted) for function in functions]
    stacks, keys = by_instruction(data, loaded, [rows for rows in coded if rows])
    width = max([len(str(frame.line)) for function in functions
                 for frame in frames_inside(loaded, function, 0)]
                + [len(str(len(source.lines))) if source.lines else 1])
    lines: list[Line] = []
    shown = 0
    for function, rows in zip(functions, coded, strict=True):
        head = [Line(b"<Function: %s>" % function.name, HEAD)]
        for offset, text in rows:
            number, origin = _place(frames_inside(loaded, function, offset - function.offset), target.path)
            reached = number if number <= len(source.lines) else shown
            lines += [Line(source.lines[n - 1], LINE, n) for n in range(shown + 1, reached + 1)]
            shown = max(shown, reached)
            code = f"{f'[{number or chr(63):>{width}}]'} {text}{origin}"
            lines += [*head, Line(code.encode("utf-8", "surrogateescape"), CODE, number, keys[offset])]
            head = []
    lines += [Line(source.lines[n - 1], LINE, n) for n in range(shown + 1, len(source.lines) + 1)]
    return document("disasm", target, source, lines, stacks, view, wanted)


def instructions_of(loaded: LoadedObject, function: Function, wanted: Wanted) -> list[tuple[int, str]]:
    """(file offset, text) of each."""
    if function.text is not None:
        vaddr, code, machine = function.offset, function.text.code, EM_X86_64
    else:
        at = loaded.vaddr_of(function.offset)
        if at is None:
            return []
        vaddr, code, machine = at, loaded.code(at, function.size), loaded.machine
    found = []
    for one in instructions(code, vaddr, machine) if code else ():
        in_hex = f"{one.code.hex(' ')}    " if wanted.with_bytes else ""
        found.append((function.offset + one.vaddr - vaddr, f"{one.vaddr:>8x}:  {in_hex}{one.text}"))
    return found


def _place(frames: list[Frame], path: str) -> tuple[int, str]:
    """The line in ``path`` (0: none), and from where the instruction was inlined."""
    here = next((f.line for f in frames if f.line and os.path.normpath(f.path) == path), 0)
    if len(frames) < 2:
        return here, ""
    name = short_name(demangle(frames[0].function)).decode("utf-8", "surrogateescape")
    return here, f"  <-- {name} {os.path.basename(frames[0].path)}:{frames[0].line}"


def by_instruction(data: DataSet, loaded: LoadedObject,
                    coded: Sequence[Sequence[tuple[int, str]]]) -> tuple[Weighted, dict[int, int]]:
    """All stacks as the instructions given (the rest is one), and the key of each by its file offset."""
    starts = np.array(sorted({offset for rows in coded for offset, _ in rows}), np.int64)
    ends = {rows[-1][0] for rows in coded}
    group = np.zeros(len(data.places), np.int64)
    for index, (number, inside) in enumerate(data.places):
        function = data.functions[number]
        if function.object_number == loaded.number and function.has_offsets:
            at = int(np.searchsorted(starts, function.offset + inside, side="right")) - 1
            is_inside = at >= 0 and (starts[at] not in ends or inside < function.size)
            group[index] = at + 1 if is_inside and starts[at] >= function.offset else ELSEWHERE
    return data.regrouped(group, len(starts) + 1), {int(start): at + 1 for at, start in enumerate(starts)}


# -- documents


def document(name: str, target: Target, source: Source, lines: Sequence[Line], stacks: Weighted, view: View,
              wanted: Wanted) -> Annotated:
    keys = np.array([NOTHING if line.key is None else line.key for line in lines], np.int64)
    has_code = np.array([line.key is not None for line in lines], np.bool_)
    columns = annotation_columns(stacks, keys, view)
    labels = Column.of_names("name", "Name", [line.text for line in lines])
    hot = _hot(columns, has_code, wanted.threshold)
    roles = ["hot" if is_hot else "" for is_hot in hot.tolist()]
    path = os.fsdecode(target.loaded.path)
    where = os.fspath(target.loaded.file or "")
    found = f"{os.path.basename(path)} (found as {where})" if where and where != path else path
    titles = (f"Source file: {source.title or target.path or '(unknown)'}", f"Object file: {found}",
              f"Load Object: {found}")
    notes = [*source.notes, *([target.loaded.problem] if target.loaded.problem else [])]
    return Annotated(name, tuple(map(shown, titles)), (*columns, labels), list(map(shown, notes)), roles,
                     has_code=has_code, kinds=[line.kind for line in lines],
                     numbers=np.array([line.number for line in lines], np.int64))


def _hot(columns: Sequence[Column], has_code: Bool, threshold: int) -> Bool:
    """Rows with at least so much of the largest value, in any column."""
    hot = np.zeros(len(has_code), np.bool_)
    for column in columns:
        largest = int(column.values[has_code].max(initial=0))
        if largest > 0:
            hot |= has_code & (column.values * 100 >= largest * threshold)
    return hot


def choice_of(data: DataSet, found: Sequence[Target], number: int | None, name: str) -> tuple[Target, str]:
    """The one that is meant, and what is to be said where that is not clear: then it is the one with the most CPU time.
    UsageError, with a list, where nothing tells."""
    if not found:
        raise UsageError(f"No function or file with given name `{name}' found.")
    if len(found) == 1:
        return found[0], ""
    if number is not None and 1 <= number <= len(found):
        return found[number - 1], ""
    every = "; ".join(f"{i}: {_described(target)}" for i, target in enumerate(found[:_NAMES_SHOWN], 1))
    likely = met(data, found)
    if not likely or number is not None:
        raise UsageError(f"{name} may be {every}; give its number behind the name")
    taken = f"{name} may be {every}; {found.index(likely[0]) + 1}, with the most CPU time, was taken: " \
        "give the number behind the name"
    return likely[0], taken if len(likely) > 1 else ""


def _described(target: Target) -> str:
    name = target.function.name.decode("utf-8", "backslashreplace") if target.function is not None else target.path
    place = f" ({target.path})" if target.function is not None and target.path else ""
    at = f" at {target.function.offset:#x}" if target.function is not None else ""
    return f"{name}{place}{at} in {os.path.basename(os.fsdecode(target.loaded.path))}"


__all__ = ["Annotated", "Target", "Wanted", "choice_of", "disassembly", "met", "source_document",
           "target_of", "targets"]
