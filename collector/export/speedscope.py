"""speedscope's own format: JSON with shared frames, and a profile for each state and sum.

With threads told apart there are such profiles for each thread. Values are microseconds, bytes or counts. The schema is
https://www.speedscope.app/file-format-schema.json.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

from collector.export.choices import (
    EXPORTER,
    Choices,
    default_of,
    everything,
    names,
    object_names,
    put,
    text,
    thread_names,
)
from collector.report.profile import I8
from collector.report.samples import Quantity, Samples

_UNITS = {"us": "microseconds", "bytes": "bytes", "count": "none"}
_SCHEMA = "https://www.speedscope.app/file-format-schema.json"


def write(samples: Samples, out: BinaryIO, choices: Choices) -> None:
    """One file with all profiles that count for anything."""
    frames = [{"name": name, **({"file": path} if path else {})}
              for name, path in zip(names(samples), object_names(samples), strict=True)]
    put(out, (f'{{"$schema":{text(_SCHEMA)},"exporter":{text(EXPORTER)},"name":{text(_title(samples))},'
              f'"shared":{{"frames":{text(frames)}}},"profiles":[',))
    found = list(_chosen(samples, choices))
    stacks, owner = samples.function_stacks
    lists = [text(stack[::-1]) for stack in stacks.lists()]
    for place, (title, quantity, groups) in enumerate(found):
        sums = np.zeros(len(stacks), np.int64)
        np.add.at(sums, owner[samples.groups.stack[groups]], samples.groups.of(quantity)[groups])
        used = np.flatnonzero(sums).tolist()
        put(out, ("," * bool(place), f'{{"type":"sampled","name":{text(title)},"unit":"{_UNITS[quantity.unit]}",'
                  f'"startValue":0,"endValue":{sums.sum()},"samples":['))
        put(out, (lists[stack] for stack in used), ",")
        put(out, ('],"weights":[',))
        put(out, map(str, sums[used].tolist()), ",")
        put(out, ("]}",))
    first = default_of([quantity for _, quantity, _ in found])
    put(out, (f'],"activeProfileIndex":{first if found else "null"}}}\n',))


def _chosen(samples: Samples, choices: Choices) -> Iterator[tuple[str, Quantity, I8]]:
    """Title, quantity and groups of each profile; one that is empty only where there is no other."""
    threads = thread_names(samples)
    quantities = everything(samples)
    for quantity in quantities:
        counts = samples.groups.of(quantity) != 0
        if not choices.by_thread:
            if counts.any() or quantity is quantities[-1]:
                yield quantity.title, quantity, np.flatnonzero(counts)
            continue
        for thread in np.unique(samples.groups.thread[counts]).tolist():
            yield (f"{threads[thread]}: {quantity.title}", quantity,
                   np.flatnonzero(counts & (samples.groups.thread == thread)))


def _title(samples: Samples) -> str:
    from collector.export.text import printable

    return ", ".join(printable(process.name) for process in samples.processes[:3]) or EXPORTER
