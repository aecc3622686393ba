"""Cells of columns that compare groups of experiments::

    +0.038  +0.       delta: a difference to the first group, with its sign
    1.232   >99.999   ratio: so many times the first group; 1.000 where both are zero, >99.999 also where it is
    +0.002 .. +0.074      interval of a difference
    -0.012 .. +0.034 ~    the same of one that is not significant
"""

from __future__ import annotations

from collector.report.documents import Column, Unit

_RATIO_MAX = 99.999
_CHANCE = "~"


def compared_cells(column: Column, rows: slice) -> list[str]:
    """The cells of some rows, not aligned; a column with ``against`` or ``interval``."""
    values = column.values[rows].tolist()
    if column.interval is not None:
        others = column.interval.high[rows].tolist()
        marks = column.interval.is_significant[rows].tolist()
        return [f"{low / 1e6:+.3f} .. {high / 1e6:+.3f} {' ' if mark else _CHANCE}"
                for low, high, mark in zip(values, others, marks, strict=True)]
    assert column.against is not None
    pairs = zip(values, column.against.base[rows].tolist(), strict=True)
    if column.against.form == "ratio":
        return [_ratio(value, base) for value, base in pairs]
    return [_delta(value - base, column.unit) for value, base in pairs]


def _delta(difference: int, unit: Unit) -> str:
    if unit is not Unit.TIME:
        return f"{difference:+d}"
    return f"{difference / 1e6:+.3f}" if difference else "+0.   "


def _ratio(value: int, base: int) -> str:
    if value == base:
        return "1.000"
    if not value:
        return "0.   "
    ratio = value / base if base else float("inf")
    return f"{ratio:.3f}" if ratio <= _RATIO_MAX else f">{_RATIO_MAX}"
