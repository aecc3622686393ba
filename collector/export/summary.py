"""All that is known of one function, as lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from collector.export.text import printable, seconds
from collector.report.documents import Unit
from collector.report.functions import Function
from collector.report.metrics import Column
from collector.report.tables import unpack_address


def summary(name: bytes, figures: Sequence[tuple[Column, int, float]], size: int, address: int,
            function: Function | None, paths: Mapping[int, bytes]) -> Iterator[str]:
    """``figures``: each column's value and share; ``paths``: of load objects, by number."""
    shown = [(column.title, _value(column, value), f"{share:5.1f}%" if share else "  0. %")
             for column, value, share in figures]
    label = max((len(title) for title, _, _ in shown), default=len("PC Address"))
    width = max((len(value) for _, value, _ in shown), default=5)
    number, offset = unpack_address(address)
    yield printable(name)
    yield from (f"\t{title.rjust(label)}: {value.rjust(width)} ({share})" for title, value, share in shown)
    yield f"\t{'Size'.rjust(label)}: {str(size).rjust(width)}"
    yield f"\t{'PC Address'.rjust(label)}: {number}:0x{offset:08x}"
    if function is not None:
        yield f"\t{'Load Object'.rjust(label)}: {printable(paths.get(function.object_number, function.object_name))}"
        if function.linkage not in (b"", function.name):
            yield f"\t{'Mangled Name'.rjust(label)}: {printable(function.linkage)}"
    yield ""


def _value(column: Column, value: int) -> str:
    return seconds(value) if column.metric.unit is Unit.TIME else str(value)
