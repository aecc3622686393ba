"""What the page holds, taken from what ``report`` makes: the picture of a data set, names, remarks, and documents."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from collector import __version__
from collector.clock import NS_PER_S
from collector.export import aggregations
from collector.export.description import message_text
from collector.export.html.packed import Packed
from collector.export.text import printable
from collector.report.aggregations import Merged
from collector.report.build import TOTAL_FUNCTION, DataSet, Experiment
from collector.report.comparison import program_of
from collector.report.documents import Annotated, Column, Table, Tree, Unit
from collector.report.metrics import Metric
from collector.report.picture import Picture, extents, picture
from collector.report.resolve import FAILED_FUNCTION, TRUNCATED_FUNCTION
from collector.report.wakers import AllWakes
from collector.wording import many

_KEYS_SHOWN = 60  # of each aggregation, those with the largest values
_WAKERS_SHOWN = 400
_QUIET_COMMENTS = frozenset({401, 402})  # the directory and the arguments, which stand elsewhere


@dataclass(frozen=True)
class Hot:
    """A function whose code is shown: its name, its source if there is any, and its instructions."""

    name: bytes
    source: Annotated | None
    instructions: Annotated | None


@dataclass(frozen=True)
class Compared:
    """Two groups of experiments side by side: their names, functions, and the tree of calls."""

    groups: Sequence[str]
    functions: Table
    tree: Tree


@dataclass(frozen=True)
class More:
    """Documents besides the profile. ``problems``: what was found wrong with the experiments."""

    aggregated: Sequence[Merged] = ()
    wakes: AllWakes | None = None
    code: Sequence[Hot] = ()
    compared: Compared | None = None
    problems: Sequence[str] = field(default_factory=tuple)


def packed(data: DataSet, more: More) -> Packed:
    """The data of a page. ``data`` was loaded with latency."""
    found = picture(data)
    objects, object_of = _objects(data)
    result = Packed(
        version=__version__, title=title(data), experiments=_experiments(data, objects), metrics=_metrics(data),
        latency_column=data.columns.latency, n_columns=data.columns.n,
        threads=[[one.experiment, one.number, one.tid, printable(one.name)] for one in found.threads],
        functions=[printable(one.name) for one in data.functions], objects=objects, object_of=object_of,
        lines=[printable(one) for one in found.lines], marks=[TRUNCATED_FUNCTION, FAILED_FUNCTION],
        firsts=_firsts(found), remarks=_remarks(data, more.problems),
        aggregations=_aggregations(more.aggregated),
        wakers=_wakers(more.wakes), code=[_code(one) for one in more.code], compared=_compared(more.compared))
    _add_columns(result, found)
    return result


def title(data: DataSet) -> str:
    """What was recorded, in short."""
    founders = [one for one in data.experiments if not one.lineage] or data.experiments
    return f"{_few(map(program, founders))} · {_few(shown(one.name) for one in founders)}"


def _few(names: Iterable[str]) -> str:
    """The first three that are different."""
    distinct = list(dict.fromkeys(names))
    return ", ".join(distinct[:3]) + (", …" if len(distinct) > 3 else "")


def program(experiment: Experiment) -> str:
    """The base name of what runs in the process, or of the experiment where that is not known."""
    words = experiment.log.arguments.split()
    if not words or experiment.log.arguments == b"(fork)":
        return "(fork)" if words else shown(experiment.name)
    return printable(words[0].rsplit(b"/", 1)[-1])


def shown(text: str) -> str:
    """A text from outside as one printable line."""
    return printable(text.encode("utf-8", "surrogateescape"))


def _experiments(data: DataSet, objects: Sequence[str]) -> list[dict[str, Any]]:
    places = {name: place for place, name in enumerate(objects)}
    found, group = [], -1
    for one, (begin_ns, end_ns) in zip(data.experiments, extents(data.experiments), strict=True):
        group += not one.lineage or group < 0
        log = one.log
        found.append({
            "name": shown(one.name), "path": shown(os.fspath(one.path)), "program": program(one), "group": group,
            "command": printable(log.arguments), "pid": log.pid, "lineage": shown(one.lineage),
            "host": shown(log.hostname), "os": shown(log.os), "collector": shown(log.collector),
            "n_cpus": len(log.cpus), "started": time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(log.start_unix)),
            "begin_ns": begin_ns, "end_ns": max(begin_ns, end_ns), "interval_us": log.interval_us,
            "is_complete": log.complete, "directory": printable(log.cwd),
            "executable": places.get(_executable(data, one), -1)})
    return found


def _executable(data: DataSet, experiment: Experiment) -> str:
    """The load object that the program is; empty where that is not known."""
    key = program_of(experiment)
    loaded = data.objects.get(key) if key is not None else None
    return printable(loaded.name) if loaded is not None else ""


def _metrics(data: DataSet) -> list[dict[str, Any]]:
    return [_metric(one) for one in (*data.metrics, *data.columns.latency_metrics)]


def _metric(metric: Metric) -> dict[str, Any]:
    return {"command": metric.command, "title": metric.title, "states": list(metric.states),
            "unit": metric.unit.value, "level": metric.level}


def _objects(data: DataSet) -> tuple[list[str], list[int]]:
    """The load objects, and that of each function; what is in none stands for itself."""
    nowhere = data.functions[TOTAL_FUNCTION].object_name
    names = [one.name if one.object_name == nowhere else one.object_name for one in data.functions]
    places = {name: place for place, name in enumerate(dict.fromkeys(names))}
    return [printable(name) for name in places], [places[name] for name in names]


def _firsts(found: Picture) -> list[int]:
    """The time of the first piece of each thread; the column holds what is between them."""
    thread, time_ns = found.pieces.thread, found.pieces.time_ns
    at = np.searchsorted(thread, np.arange(len(found.threads)))
    has_any = at < np.searchsorted(thread, np.arange(len(found.threads)), side="right")
    return list(map(int, np.where(has_any, np.append(time_ns, 0)[at], 0)))


def _add_columns(result: Packed, found: Picture) -> None:
    pieces = found.pieces
    counts = np.bincount(pieces.thread, minlength=len(found.threads)) if len(found.threads) else np.zeros(0, np.int64)
    between = np.diff(pieces.time_ns, prepend=pieces.time_ns[:1])
    between[np.diff(pieces.thread, prepend=-1) != 0] = 0
    result.add("parents", found.parents + 1, delta=True)
    result.add("instructions", found.instructions)
    result.add("function_of", found.function_of)
    result.add("line_of", found.line_of)
    result.add("counts", counts)
    result.add("between", between)
    result.add("leaf", pieces.leaf + 1)
    result.add("column", pieces.column)
    result.add("amount", pieces.amount)
    result.add("cpu", np.clip(pieces.cpu, -1, 65534))
    result.add("latency", pieces.latency_us)


# -- what is to be known of the data


def _remarks(data: DataSet, problems: Iterable[str]) -> list[dict[str, str]]:
    """What recorders said of themselves, and what was found in reading, the worst first."""
    found = _messages(data)
    for one in data.experiments:
        if not one.log.complete:
            found.setdefault(f"{shown(one.name)}: was not closed: what there is was recorded until then", "warning")
    found |= {shown(problem): "warning" for problem in problems}
    found |= {shown(problem): "warning" for problem in data.object_problems}
    if data.n_missing_stacks:
        packets = many(data.n_missing_stacks, "packet has no stack: it counts", "packets have no stack: they count")
        found[f"{packets} for the total alone"] = "remark"
    order = list(dict.fromkeys(_LEVELS.values()))
    by_level = sorted(found.items(), key=lambda pair: order.index(pair[1]))
    return [{"level": level, "text": text} for text, level in by_level]


def _messages(data: DataSet) -> dict[str, str]:
    """Levels of what recorders said, once each; where not all recordings say so, with the name of the one that does."""
    found: dict[str, str] = {}
    names: dict[str, dict[str, None]] = {}
    founders, founder = 0, ""
    for one in data.experiments:
        if not one.lineage or not founder:
            founders, founder = founders + 1, shown(one.name)
        for message in one.log.messages:
            if not (message.kind == "comment" and message.id in _QUIET_COMMENTS):
                found.setdefault(text := message_text(message), _LEVELS.get(message.kind, "remark"))
                names.setdefault(text, {})[founder] = None
    return {text if len(names[text]) == founders else f"{', '.join(names[text])}: {text}": level
            for text, level in found.items()}


_LEVELS = {"cerror": "error", "cwarn": "warning", "comment": "remark"}


# -- documents


def _aggregations(found: Sequence[Merged]) -> list[dict[str, Any]]:
    """Those with the largest values, and how many there are."""
    documents = json.loads(aggregations.document(found, _KEYS_SHOWN))["aggregations"]
    return [document | {"n_recorded": len(one.recorded), "n_synthetic": len(one.synthetic)}
            for document, one in zip(documents, found, strict=True)]


def _wakers(wakes: AllWakes | None) -> dict[str, Any] | None:
    if wakes is None:
        return None
    rows = [[one.times, one.blocked_ns, printable(one.state), _thread(one.waker, one.waker_tid),
             _thread(one.woken, one.woken_tid), one.waker_tid, one.woken_tid] for one in wakes.rows[:_WAKERS_SHOWN]]
    return {"rows": rows, "n": len(wakes.rows), "unseen_s": wakes.unseen_ns / NS_PER_S}


def _thread(name: bytes, tid: int) -> str:
    return f"{printable(name)} ({tid})" if tid > 0 else printable(name)


def _code(hot: Hot) -> dict[str, Any]:
    return {"name": printable(hot.name), "source": _annotated(hot.source), "disasm": _annotated(hot.instructions)}


def _annotated(document: Annotated | None) -> dict[str, Any] | None:
    if document is None:
        return None
    return table(document) | {
        "kinds": list(document.kinds), "numbers": document.numbers.tolist(), "has_code": document.has_code.tolist(),
        "origins": [shown(one) for one in document.origins]}


def _compared(found: Compared | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {"groups": [shown(one) for one in found.groups], "functions": table(found.functions),
            "tree": table(found.tree) | {"depths": found.tree.depths.tolist()}}


def table(document: Table) -> dict[str, Any]:
    """A document with columns as JSON: numbers in the unit of the column, names as text."""
    return {"titles": [shown(one) for one in document.titles if one], "notes": [shown(one) for one in document.notes],
            "roles": list(document.roles), "columns": [_column(one) for one in document.columns]}


def _column(column: Column) -> dict[str, Any]:
    found: dict[str, Any] = {"key": column.key, "title": column.title, "unit": column.unit.value,
                             "group": shown(column.group)}
    if column.unit is Unit.NAME:
        return found | {"texts": [printable(column.labels[one]) for one in column.values.tolist()]}
    found["values"] = column.values.tolist()
    if column.percents is not None:
        found["percents"] = column.percents.tolist()
    if column.interval is not None:
        found |= {"high": column.interval.high.tolist(), "is_significant": column.interval.is_significant.tolist()}
    return found
