"""Aggregations as a JSON document, or as a table: keys, values and distributions as numbers, for whoever draws or
compares them.

    {"aggregations": [{"name", "expression", "keys", "function", "value", "divisor", "dropped",
                       "recorded": [{"key": [...], "value": N}
                                    or {"key": [...], "buckets": [{"min", "max", "count"}, ...]}, ...],
                       "synthetic": the same}, ...]}

Values are nanoseconds where they are times, divided by "divisor". "dropped" is how many values are of keys for which
there was no room. Empty buckets are left out; a bucket without a bound has null there.

The table has a row for each key, or for each bucket, with its bounds, and its count as the value; and one for what was
dropped.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from collector.aggregate.dtrace import UserStack
from collector.aggregate.fold import Buckets
from collector.aggregate.keyed import Keyed
from collector.aggregate.scales import LLQuantize, LQuantize, Quantize, Scale
from collector.errors import AggregationError
from collector.report.aggregations import Merged
from collector.report.documents import Column, Table

Bounds: TypeAlias = tuple[int | None, int | None]


def document(found: Iterable[Merged], top: int | None = None) -> str:
    """The document, indented; with the ``top`` keys that have the largest values, or with all."""
    return json.dumps({"aggregations": [_one(each.largest(top)) for each in found]}, indent=1)


def table(found: Iterable[Merged], top: int | None = None) -> Table:
    """All of them as rows, for spreadsheets and data frames. Columns are as many as the most keys take; frames of a
    stack stand behind one another."""
    every = [_one(each.largest(top)) for each in found]
    n_keys = max(len(each["keys"]) for each in every)
    heads = ["Aggregation", "Kind", *(f"Key {place}" for place in range(1, n_keys + 1)), "Least", "Greatest", "Value"]
    rows = [[each["name"], kind, *map(_cell, entry["key"]), *[""] * (n_keys - len(entry["key"])), *map(_cell, cells)]
            for each in every for kind in ("recorded", "synthetic") for entry in each[kind]
            for cells in ([("", "", entry["value"])] if "value" in entry else map(dict.values, entry["buckets"]))]
    rows += [[each["name"], "dropped", *[""] * (n_keys + 2), str(each["dropped"])] for each in every if each["dropped"]]
    columns = zip(*rows, strict=True) if rows else [()] * len(heads)
    return Table("aggregations", (), tuple(
        Column.of_names(head.lower(), head, [cell.encode() for cell in column])
        for head, column in zip(heads, columns, strict=True)))


def bounds_of(scale: Scale) -> list[Bounds]:
    """The least and the greatest value of each bucket; None where there is none. AggregationError."""
    match scale:
        case Quantize():
            edges = [scale.lower(bucket - 1) + 1 for bucket in range(1, scale.zero + 1)]
            edges += [scale.lower(bucket) for bucket in range(scale.zero + 1, scale.n_buckets)]
        case LQuantize():
            edges = [scale.base + level * scale.step for level in range(scale.levels + 1)]
        case LLQuantize():
            edges = scale.edges.tolist()
        case _:
            raise AggregationError(f"{scale.name} is no function of aggregations")
    return [(low, None if high is None else high - 1) for low, high in
            zip([None, *edges], [*edges, None], strict=True)]


def _one(each: Merged) -> dict[str, Any]:
    query = each.query
    return {"name": query.name.lstrip("@"), "expression": query.expression, "keys": list(query.keys),
            "function": query.fold.name, "value": query.value,
            "divisor": query.divisor, "dropped": each.n_dropped,
            "recorded": _entries(each.recorded), "synthetic": _entries(each.synthetic)}


def _entries(keyed: Keyed) -> list[dict[str, Any]]:
    return [{"key": [_element(element) for element in key], **_result(keyed, keyed[key])} for key in keyed]


def _result(keyed: Keyed, result: Any) -> dict[str, Any]:
    if not isinstance(keyed.fold, Buckets):
        return {"value": result}
    filled: Sequence[int] = result.nonzero()[0].tolist()
    bounds = bounds_of(keyed.fold.scale)
    return {"buckets": [{"min": bounds[bucket][0], "max": bounds[bucket][1], "count": int(result[bucket])}
                        for bucket in filled]}


def _cell(element: Any) -> str:
    """Of what JSON has."""
    return "" if element is None else ";".join(element) if isinstance(element, list) else str(element)


def _element(element: Any) -> Any:
    """A number; a name; a stack as its frames, leaf first."""
    if isinstance(element, UserStack):
        return [_element(frame) for frame in element.strings]
    return element.decode("utf-8", "backslashreplace") if isinstance(element, bytes) else element
