"""Aggregations as SystemTap prints a global array of statistics at its end: a line for each key, the largest first.

    naps["nappers",4711] @count=23 @sum=25310000 @avg=1100434

A state has what its function keeps, so each function has some of the extractors. SystemTap has none for the standard
deviation, which is printed without @, nor for llquantize, which is drawn as DTrace draws it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from collector.aggregate.dtrace import UserStack
from collector.aggregate.fold import STDDEV, VARIANCE, Avg, Buckets, Fold, quotient, signed
from collector.aggregate.histogram import Histogram, Linear, Logarithmic
from collector.aggregate.keyed import Key
from collector.aggregate.listing import rank
from collector.arrays import Array

_MOMENTS = (STDDEV.name, VARIANCE.name)
_ESCAPED = ('"', "\\")
_FIRST_HIGH = 0x80


def printed_statistics(name: str, function: Fold, entries: Iterable[tuple[Key, Array]]) -> str:
    """Each key (numbers, bytes, str, UserStack) with what its state (n_words,) tells; histograms stand below."""
    rows = sorted(entries, key=lambda entry: rank(function, entry[1].tolist()), reverse=True)
    lines = []
    for key, state in rows:
        subscript = f"[{','.join(map(_element, key))}]" if key else ""
        lines.append(f"{name}{subscript} {' '.join(_extracted(function, state))}\n")
        if isinstance(function, Buckets):
            lines.append(_picture(Histogram(function.scale, function.result(state))))
    return "".join(lines)


def _extracted(function: Fold, state: Array) -> list[str]:
    if isinstance(function, Buckets):
        return [f"@count={int(function.result(state).sum())}"]
    if function.name in _MOMENTS or isinstance(function, Avg):
        count, total = int(state[0]), signed(state[1])
        found = [f"@count={count}", f"@sum={total}", f"@avg={quotient(total, count)}"]
        if function.name in _MOMENTS:
            found.append(f"@variance={VARIANCE.result(state)}")
        return [*found, f"stddev={STDDEV.result(state)}"] if function.name == STDDEV.name else found
    return [f"@{function.name}={function.result(state)}"]


def _picture(histogram: Histogram) -> str:
    if isinstance(histogram.scale, Logarithmic | Linear):
        return histogram.systemtap()
    return histogram.dtrace() + "\n"


def _element(element: Any) -> str:
    """A number; a name in quotes; a stack as its frames, leaf first, as SystemTap's ``backtrace()`` has them."""
    if isinstance(element, UserStack):
        return _quoted(b" ".join(element.strings))
    if isinstance(element, int | np.integer):
        return str(element)
    return _quoted(element if isinstance(element, bytes) else str(element).encode("utf-8", "surrogateescape"))


def _quoted(name: bytes) -> str:
    text = name.decode("utf-8", "surrogateescape")
    return '"' + "".join(c if c.isprintable() and c not in _ESCAPED else _escape(c) for c in text) + '"'


def _escape(character: str) -> str:
    """As in a string of C; a byte that is no UTF-8 is a number."""
    if character in _ESCAPED:
        return "\\" + character
    (byte, *more) = character.encode("utf-8", "surrogateescape")
    return character.encode("unicode_escape").decode() if more or byte < _FIRST_HIGH else f"\\x{byte:02x}"
