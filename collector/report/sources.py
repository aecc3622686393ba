"""Source files: where they are found, and whether they are what was compiled."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from collector.experiment.names import archive_name
from collector.report.lines import frames_met
from collector.report.resolve import DEBUG_SUFFIX, LoadedObject

if TYPE_CHECKING:
    from collector.report.annotated import Target
    from collector.report.build import DataSet

_SIZE_MAX = 1 << 26


@dataclass(frozen=True)
class Source:
    """A source file: what is said of where it is, its lines (none: not found), and what is doubtful."""

    title: str
    lines: Sequence[bytes]
    notes: Sequence[str] = ()


def find_source(data: DataSet, target: Target, newer_than: int) -> Source:
    """Its copy in the archives, else where files are looked for. ``newer_than``: when recording began, Unix seconds."""
    archived = [copy for experiment in data.experiments for copy in experiment.copies_of(target.path)]
    for path in [*archived, *target.loaded.places.of(target.path)]:
        content = _content(path)
        if content is None:
            continue
        title = target.path if path == target.path else f"{os.path.basename(target.path)} (found as {path})"
        notes = []
        if path not in archived and os.stat(path).st_mtime > newer_than:
            notes.append(f"Source file `{path}' is newer than the experiment data; its lines may be others than those "
                         "that were recorded")
        lines = content.expandtabs(8).split(b"\n")
        return Source(title, lines[:-1] if lines[-1] == b"" else lines, notes)
    return Source(target.path, (), [f"Source file `{target.path}' not readable; setpath, addpath and pathmap say where "
                                    "it is"])


def files_needed(data: DataSet) -> dict[str, str]:
    """What names and lines of the stacks are read from, by the names of copies in archives.

    Load objects with stacks in them, their debug files (behind the same name), and the sources of lines that were met.
    """
    found: dict[str, str] = {}
    for loaded, frames in frames_met(data):
        copy = os.fsdecode(archive_name(loaded.path))
        if loaded.file is not None and copy not in found:
            found[copy] = os.fspath(loaded.file)
            if loaded.debug_path:
                found[f"{copy}{DEBUG_SUFFIX}"] = loaded.debug_path
        for path in {os.path.normpath(frame.path) for frame in frames if frame.path}:
            name = os.fsdecode(archive_name(os.fsencode(path)))
            if name not in found and (file := _found(data, loaded, path)):
                found[name] = file
    return found


def _found(data: DataSet, loaded: LoadedObject, path: str) -> str:
    copies = [copy for experiment in data.experiments for copy in experiment.copies_of(path)]
    return next((one for one in [*copies, *loaded.places.of(path)] if os.path.isfile(one)), "")


def _content(path: str) -> bytes | None:
    """The bytes of a regular file; None if there is none, or one that is absurdly large."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None
    with open(fd, "rb") as file:
        status = os.fstat(fd)
        return file.read() if stat.S_ISREG(status.st_mode) and status.st_size <= _SIZE_MAX else None
