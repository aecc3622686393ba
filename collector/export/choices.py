"""What may be chosen of an export, and what writers of all formats have in common."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import BinaryIO

import numpy as np

from collector.errors import UsageError
from collector.export.text import printable
from collector.report.profile import I8
from collector.report.samples import Quantity, Samples

EXPORTER = "collect"
DEFAULT_METRICS = ("total", "totalcpu")
_AT_ONCE = 1 << 10


@dataclass(frozen=True)
class Choices:
    """``metric``: what collapsed stacks count, empty for all time; ``by_thread``: threads are told apart by frames or
    profiles in formats that have no other place for them."""

    metric: str = ""
    by_thread: bool = False


def everything(samples: Samples) -> list[Quantity]:
    """All that packets count for: what cannot be divided, and sums of it."""
    return [*samples.quantities, *samples.sums]


def default_of(found: list[Quantity], wanted: str = "totalcpu") -> int:
    """The place of the one that is to be looked at first."""
    names = [one.name for one in found]
    return names.index(wanted) if wanted in names else 0


def chosen(samples: Samples, name: str) -> Quantity:
    """The quantity called so; without a name all time, else what there is first. Raises UsageError."""
    found = everything(samples)
    by_name = {one.name: one for one in found}
    for one in (name,) if name else (*DEFAULT_METRICS, *by_name):
        if one in by_name:
            return by_name[one]
    if not name:
        return Quantity("total", "Total Thread Time", "us", ())
    raise UsageError(f"-metric {name}: not recorded; give one of {', '.join(by_name)}")


def names(samples: Samples, mark: str = " (inlined)") -> list[str]:
    """What functions are called, as text of one line. ``mark``: behind those of inlined frames, in formats that have no
    other way to tell."""
    inlined = samples.inlined_functions
    return [printable(name) + mark * (number in inlined) for number, name in enumerate(samples.names)]


def object_names(samples: Samples) -> list[str]:
    """For each function the path of its load object; empty where there is none."""
    paths = {loaded.number: printable(loaded.path) for loaded in samples.objects}
    return [paths.get(function.object_number, "") if function.has_offsets else "" for function in samples.functions]


def lines(samples: Samples) -> list[tuple[str, int]]:
    """For each frame the path of its source and its line; empty and 0 where they are not known."""
    shown = {path: printable(os.fsencode(path)) for path in {line.path for line in samples.lines}}
    return [(shown[line.path], line.line) for line in samples.lines]


def source_files(samples: Samples) -> dict[int, str]:
    """For each function whose source is known the path of that."""
    found: dict[int, str] = {}
    for number, (path, _) in zip(samples.function_of.tolist(), lines(samples), strict=True):
        if path:
            found.setdefault(number, path)
    return found


def notes(samples: Samples) -> list[str]:
    """What the recording said of itself, each as text of one line."""
    return [_line(note) for note in samples.notes]


def notes_by_process(samples: Samples) -> list[list[str]]:
    """The same for each process."""
    return [[_line(note) for note in mine] for mine in samples.notes_by_process]


def _line(note: str) -> str:
    return printable(note.encode("utf-8", "surrogateescape"))


def thread_names(samples: Samples) -> list[str]:
    """What threads are called."""
    return [printable(samples.thread_title(thread)) for thread in samples.threads]


def by_stack(samples: Samples, quantity: Quantity, owner: I8, n: int) -> I8:
    """What each of ``n`` merged stacks counts for; ``owner`` is the merged one of each stack."""
    sums = np.zeros(n, np.int64)
    np.add.at(sums, owner[samples.groups.stack], samples.groups.of(quantity))
    return sums


def put(out: BinaryIO, parts: Iterable[str], between: str = "") -> None:
    """Text as UTF-8, some parts at a time."""
    rest, is_first = iter(parts), True
    while some := list(islice(rest, _AT_ONCE)):
        out.write((("" if is_first else between) + between.join(some)).encode())
        is_first = False


def text(value: object) -> str:
    """As JSON."""
    return json.dumps(value, separators=(",", ":"))
