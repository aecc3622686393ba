"""Everything but single packets as one JSON object, for programs of one's own.

    {"format": "collect-profile", "version": 1, "interval_us": 10007, "notes": [...],
     "processes": [{"pid": 4711, "name": "prog", "arguments": "prog -a", "lineage": "", "experiment": "test.1.er"}],
     "threads": [{"process": 0, "tid": 4711, "number": 1, "name": ""}],
     "quantities": [{"name": "user", "title": "User CPU Time", "unit": "us"}, ...],
     "objects": [{"path": "/usr/bin/prog", "build_id": "9f3c...0a"}],
     "functions": [{"name": "main", "linkage": "main", "object": 0}, ...],      "object": null where there is none
     "frames": [{"function": 4, "address": 4441, "file": "prog.c", "line": 6, "inline_depth": 0}, ...],
     "stacks": [[3, 0], ...],                                                    frames, leaf first
     "samples": {"stack": [0, 1, ...], "thread": [0, 0, ...], "values": {"user": [10007, ...], ...}}}

Of the samples each is a stack in a thread, and what it counts for by quantity.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import BinaryIO

from collector.export.choices import Choices, lines, names, notes, put, text
from collector.export.text import printable
from collector.report.samples import Samples


def write(samples: Samples, out: BinaryIO, choices: Choices) -> None:
    """The object; ``choices`` say nothing to it."""
    groups = samples.groups
    put(out, ('{"format":"collect-profile","version":1,',
              f'"interval_us":{samples.interval_us},"notes":{text(notes(samples))}'))
    for name, rows in (("processes", _processes(samples)), ("threads", _threads(samples)),
                       ("quantities", _quantities(samples)), ("objects", _objects(samples)),
                       ("functions", _functions(samples)), ("frames", _frames(samples)),
                       ("stacks", samples.stacks.lists())):
        put(out, (f',"{name}":[',))
        put(out, map(text, rows), ",\n")
        put(out, ("]",))
    put(out, (',"samples":{"stack":[',))
    put(out, map(str, groups.stack.tolist()), ",")
    put(out, ('],"thread":[',))
    put(out, map(str, groups.thread.tolist()), ",")
    put(out, ('],"values":{',))
    for place, quantity in enumerate(samples.quantities):
        put(out, ("," * bool(place), f"{text(quantity.name)}:["))
        put(out, map(str, groups.of(quantity).tolist()), ",")
        put(out, ("]",))
    put(out, ("}}}\n",))


def _processes(samples: Samples) -> Iterator[dict[str, object]]:
    for one in samples.processes:
        yield {"pid": one.pid, "name": printable(one.name), "arguments": printable(one.experiment.log.arguments),
               "lineage": one.lineage, "experiment": printable(os.fsencode(one.experiment.path))}


def _threads(samples: Samples) -> Iterator[dict[str, object]]:
    for one in samples.threads:
        yield {"process": one.process, "tid": one.tid, "number": one.number, "name": printable(one.name)}


def _quantities(samples: Samples) -> Iterator[dict[str, object]]:
    for one in samples.quantities:
        yield {"name": one.name, "title": one.title, "unit": one.unit}


def _objects(samples: Samples) -> Iterator[dict[str, object]]:
    for one in samples.objects:
        yield {"path": printable(one.path), "build_id": samples.build_id(one).hex()}


def _functions(samples: Samples) -> Iterator[dict[str, object]]:
    places = {loaded.number: place for place, loaded in enumerate(samples.objects)}
    for function, name in zip(samples.functions, names(samples, ""), strict=True):
        yield {"name": name, "linkage": printable(function.linkage), "object": places.get(function.object_number)}


def _frames(samples: Samples) -> Iterator[dict[str, object]]:
    for number, address, depth, (path, line) in zip(samples.function_of.tolist(), samples.addresses.tolist(),
                                                    samples.inline_depth.tolist(), lines(samples), strict=True):
        yield {"function": number, "address": address, "file": path, "line": line, "inline_depth": depth}
