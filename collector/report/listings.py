"""The code of one function, wherever its lines are: its own stretch of a file, then what was inlined into it.

    <Function: find_match>                     the lines of the function itself, in the file that it begins in
        36  ...
    churn, inlined from page-pictures.c        lines with time of other stretches and files, the most time first
        27  ...

A line weighs what those instructions of the function weigh whose innermost line it is, which are the figures of
``er_print -lines``: all rows add up to the function. Instructions come in the order of their addresses, each run of
one line below that line. What has no time is left out where a function is long; what has some never is.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from collector.errors import UsageError
from collector.report.annotated import (
    ELSEWHERE,
    Line,
    Target,
    Wanted,
    by_instruction,
    declared_line,
    document,
    instructions_of,
)
from collector.report.build import DataSet
from collector.report.compat import short_name
from collector.report.documents import CODE, GAP, HEAD, LINE, Annotated
from collector.report.functions import Function
from collector.report.lines import frames_inside
from collector.report.metrics import View
from collector.report.profile import I8, Weighted
from collector.report.sources import Source, find_source
from collector.report.symbols import Frame, demangle
from collector.report.tables import annotation_columns

_AROUND = 3  # lines before and behind those with time
_LINES_MAX = 1200  # of a function, as long as stretches without time can be left out
_INSTRUCTIONS_MAX = 800
_INSTRUCTIONS_AROUND = 8
_NAMES_SHOWN = 3
_DECLARED_BEFORE_MAX = 30  # lines before the first one with code; what is said to be farther is in another file
_MARKS = re.compile(rb"(operator *(?:\(\)|->\*?|<=>|<<=?|>>=?|[<>]=?)|->|[<>])")  # of templates, or of operators' names


class _Place(NamedTuple):
    """Where an instruction is from: ``path`` (empty: not known), ``line``; ``inlined``: from which other function."""

    path: str
    line: int
    inlined: bytes = b""


_NOWHERE = _Place("", 0)


def source_listing(data: DataSet, target: Target, view: View, newer_than: int) -> Annotated:
    """The source of a function. UsageError if none of its files is found. ``newer_than``: Unix seconds."""
    files = _Files(data, target, newer_than)
    code = _Code(data, target)
    if not any(files.of(path).lines for path in dict.fromkeys(place.path for place in code.met)):
        raise UsageError("no source of it is found")
    stacks, values = code.weighed(data, view)
    rows = [*_own_rows(code, files, values), *_inlined_rows(code, files, values), *_rows_without_lines(code, values)]
    return _listing("source", target, files, rows, stacks, view)


def instruction_listing(data: DataSet, target: Target, view: View, newer_than: int) -> Annotated:
    """The instructions of a function, below their lines. UsageError if there are none."""
    assert target.function is not None
    coded = instructions_of(target.loaded, target.function, Wanted())
    if not coded:
        raise UsageError("no instructions of it are known")
    files = _Files(data, target, newer_than)
    stacks, keys = by_instruction(data, target.loaded, [coded])
    values = annotation_columns(stacks, np.array([keys[offset] for offset, _ in coded], np.int64), view)
    has_time = np.any([column.values != 0 for column in values], axis=0)
    rows = [_Row(Line(_title(target.function), HEAD))]
    before = _NOWHERE
    for at, n_left_out in _shown_instructions(np.flatnonzero(has_time), len(coded)):
        if n_left_out:
            rows.append(_Row(Line(b"%d instructions without time" % n_left_out, GAP)))
        offset, text = coded[at]
        place = _place(target.function, frames_inside(target.loaded, target.function, offset - target.function.offset))
        origin = files.origin(place)
        if place != before and place.line:
            rows.append(_Row(Line(files.text(place.path, place.line), LINE, place.line), origin))
        before = place
        rows.append(_Row(Line(text.encode("utf-8", "surrogateescape"), CODE, place.line, keys[offset]), origin))
    return _listing("disasm", target, files, rows, stacks, view)


class _Row(NamedTuple):
    """A row to be, and where it is from if that is not the function's own file."""

    line: Line
    origin: str = ""


def _listing(name: str, target: Target, files: _Files, rows: Sequence[_Row], stacks: Weighted,
             view: View) -> Annotated:
    made = document(name, target, files.of(target.path), [row.line for row in rows], stacks, view, Wanted())
    return replace(made, origins=[row.origin for row in rows])


def _title(function: Function) -> bytes:
    return b"<Function: %s>" % function.name


def _place(function: Function, frames: Sequence[Frame]) -> _Place:
    if not frames or not frames[0].line:
        return _NOWHERE
    inlined = _brief(demangle(frames[0].function)) if len(frames) > 1 else b""
    return _Place(os.path.normpath(frames[0].path) if frames[0].path else "", frames[0].line, inlined)


def _brief(name: bytes) -> bytes:
    """A function's name without its parameters, its templates' arguments and what it returns."""
    plain = short_name(name).replace(b"(anonymous namespace)", b"(anonymous)")
    short, depth = b"", 0
    for part in _MARKS.split(plain):
        depth += (part == b"<") - (part == b">")
        short += part if depth <= 0 and part not in (b"<", b">") else b""
    named = short.rfind(b"operator")
    begin = short.rfind(b" ", 0, named if named >= 0 else None) + 1
    return re.sub(rb"^:+|(?<=::)::", b"", short[begin:].strip()) or name


def _shown_instructions(with_time: I8, n: int) -> Iterator[tuple[int, int]]:
    """The place of each that is shown, and how many are left out before it: none of a short function."""
    every = np.arange(n)
    if n > _INSTRUCTIONS_MAX:
        near = (with_time[:, None] + np.arange(-_INSTRUCTIONS_AROUND, _INSTRUCTIONS_AROUND + 1)).ravel()
        every = np.unique(near[(near >= 0) & (near < n)])
    yield from zip(every.tolist(), (np.diff(every, prepend=-1) - 1).tolist(), strict=True)


# -- source


class _Files:
    """Source files, looked for when they are asked for."""

    def __init__(self, data: DataSet, target: Target, newer_than: int) -> None:
        self._data, self._target, self._newer_than = data, target, newer_than
        self._found: dict[str, Source] = {"": Source("", ())}

    def of(self, path: str) -> Source:
        """The file; without lines if it is not found."""
        if path not in self._found:
            self._found[path] = find_source(self._data, replace(self._target, path=path), self._newer_than)
        return self._found[path]

    def text(self, path: str, line: int) -> bytes:
        """A line of a file; empty where that is not found."""
        lines = self.of(path).lines
        return lines[line - 1] if 1 <= line <= len(lines) else b""

    def shown(self, path: str) -> str:
        """Its name: the base name of a file beside the function's own."""
        is_beside = os.path.dirname(path) == os.path.dirname(self._target.path)
        return os.path.basename(path) if is_beside else path

    def origin(self, place: _Place) -> str:
        """The file and the function that something is from; empty for the function's own."""
        if not place.line or (place.path == self._target.path and not place.inlined):
            return ""
        name = place.inlined.rsplit(b"::", 1)[-1].decode("utf-8", "surrogateescape")
        return ": ".join(filter(None, (os.path.basename(place.path), name)))


class _Code:
    """The places of a function's instructions, and a key for each line; those without a line have one together."""

    def __init__(self, data: DataSet, target: Target) -> None:
        assert target.function is not None
        self.function, self.path = target.function, target.path
        self._loaded = target.loaded
        self._met = {index: self._place(offset) for index, (number, offset) in enumerate(data.places)
                     if data.functions[number] is self.function}
        self.met = list(dict.fromkeys(self._met.values()))
        self.places = list(dict.fromkeys([*self.met, *map(self._place, self._offsets())]))
        lines = dict.fromkeys((place.path, place.line) for place in self.places)
        self.keys = {line: key for key, line in enumerate(lines, 1)}

    def _offsets(self) -> list[int]:
        with suppress(UsageError):
            return [offset - self.function.offset for offset, _ in
                    instructions_of(self._loaded, self.function, Wanted())]
        return []

    def _place(self, offset: int) -> _Place:
        return _place(self.function, frames_inside(self._loaded, self.function, offset))

    def weighed(self, data: DataSet, view: View) -> tuple[Weighted, list[tuple[int, ...]]]:
        """All stacks as keys, and by key what each column shows."""
        group = np.full(len(data.places), ELSEWHERE, np.int64)
        for index, place in self._met.items():
            group[index] = self.keys[place.path, place.line]
        n_keys = len(self.keys) + 1
        stacks = data.regrouped(group, n_keys)
        columns = annotation_columns(stacks, np.arange(n_keys), view)
        return stacks, list(zip(*(column.values.tolist() for column in columns), strict=True))

    @cached_property
    def own_lines(self) -> list[int]:
        """The lines of the function itself in its own file, from where it is declared."""
        lines = {place.line for place in self.places if place.path == self.path and place.line and not place.inlined}
        if not lines:
            return []
        declared = declared_line(self._loaded, self.function)
        is_near = 0 < declared < min(lines) <= declared + _DECLARED_BEFORE_MAX
        return sorted(lines | {declared} if is_near else lines)

    def is_own(self, place: _Place) -> bool:
        """Whether it lies between the first and the last of the function's own lines."""
        own = self.own_lines
        return bool(own) and place.path == self.path and own[0] <= place.line <= own[-1]

    def rows(self, path: str, files: _Files, begin: int, end: int) -> list[_Row]:
        """The lines of a stretch; without the file, those with code."""
        n_lines = len(files.of(path).lines)
        shown = [line for line in range(begin, end + 1) if line <= n_lines or (path, line) in self.keys]
        if not n_lines:
            shown = [line for line in shown if (path, line) in self.keys]
        return [_Row(Line(files.text(path, line), LINE, line, self.keys.get((path, line)))) for line in shown]


Values = Sequence[tuple[int, ...]]


def _own_rows(code: _Code, files: _Files, values: Values) -> Iterator[_Row]:
    """The function from its first to its last line; of a very long one, stretches around those with time."""
    own = code.own_lines
    if not own:
        yield _Row(Line(_title(code.function), HEAD))
        return
    parts = [(own[0], own[-1])]
    if own[-1] - own[0] >= _LINES_MAX:
        with_time = {line for (path, line), key in code.keys.items()
                     if path == code.path and own[0] <= line <= own[-1] and any(values[key])}
        parts = _stretches({own[0]} | with_time, own[0], own[-1])
    yield from (_Row(Line(files.text(code.path, line), LINE, line))
                for line in range(max(1, own[0] - _AROUND), own[0]) if files.of(code.path).lines)
    yield _Row(Line(_title(code.function), HEAD))
    before = own[0] - 1
    for begin, end in parts:
        if begin > before + 1:
            yield _Row(Line(b"lines %d to %d: no time" % (before + 1, begin - 1), GAP))
        yield from code.rows(code.path, files, begin, end)
        before = end


def _inlined_rows(code: _Code, files: _Files, values: Values) -> Iterator[_Row]:
    """Lines with time elsewhere, each stretch below a heading, the most time first."""
    found: list[tuple[tuple[int, ...], str, int, int, list[_Place]]] = []
    places = [place for place in code.met if place.line and not code.is_own(place)
              and any(values[code.keys[place.path, place.line]])]
    for path in dict.fromkeys(place.path for place in places):
        mine = [place for place in places if place.path == path]
        last = max([len(files.of(path).lines), *(place.line for place in mine)])
        for begin, end in _stretches({place.line for place in mine}, 1, last):
            inside = [place for place in mine if begin <= place.line <= end]
            lines = {place.line for place in inside}
            weight = tuple(map(sum, zip(*(values[code.keys[path, line]] for line in lines), strict=True)))
            found.append((weight, path, begin, end, inside))
    for _, path, begin, end, inside in sorted(found, key=lambda one: (*(-value for value in one[0]), *one[1:4])):
        yield _Row(Line(_heading(code, files, path, inside), HEAD))
        yield from _outside(code, files, path, begin, end)


def _outside(code: _Code, files: _Files, path: str, begin: int, end: int) -> Iterator[_Row]:
    """The lines of a stretch, but for those that the function's own rows have."""
    yield from (row for row in code.rows(path, files, begin, end) if not code.is_own(_Place(path, row.line.number)))


def _heading(code: _Code, files: _Files, path: str, inside: Sequence[_Place]) -> bytes:
    names = list(dict.fromkeys(place.inlined for place in inside if place.inlined))
    where = os.fsencode(files.shown(path) or "a file without a name")
    missing = b"" if files.of(path).lines else b" (the file is not found)"
    if not names:
        return b"%s, in %s%s" % (code.function.name, where, missing)
    more = b" and %d more" % (len(names) - _NAMES_SHOWN) if len(names) > _NAMES_SHOWN else b""
    return b"%s%s, inlined from %s%s" % (b", ".join(names[:_NAMES_SHOWN]), more, where, missing)


def _rows_without_lines(code: _Code, values: Values) -> Iterator[_Row]:
    key = code.keys.get(_NOWHERE[:2])
    if key is not None and any(values[key]):
        name = code.function.name
        yield _Row(Line(b"<Function: %s, instructions without line numbers>" % name, HEAD, 0, key))


def _stretches(lines: set[int], first: int, last: int) -> list[tuple[int, int]]:
    """Lines with those around them, where they touch as one: (begin, end) of each, from ``first`` to ``last``."""
    found: list[tuple[int, int]] = []
    for line in sorted(lines):
        begin, end = max(first, line - _AROUND), min(last, line + _AROUND)
        if found and begin <= found[-1][1] + 1:
            begin = found.pop()[0]
        found.append((begin, end))
    return found
