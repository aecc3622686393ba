"""Histograms as DTrace and SystemTap print them, character by character.

DTrace shows the range that holds counts and one bucket more at each end. A bar is the bucket's share of all counts, 40
characters for all of them; where increments were negative, bars go to both sides of a line in the middle.

SystemTap shows up to two more buckets at each end. The longest bar has at most 50 characters, each of which stands for
the same whole number of counts. A run of empty buckets that are more than ``elision`` away from any count is one tilde.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from collector.aggregate.fold import quotient
from collector.aggregate.scales import HistLinear, HistLog, LLQuantize, LQuantize, Quantize, Scale
from collector.arrays import Array
from collector.errors import AggregationError

DTRACE_WIDTH = 40
SYSTEMTAP_WIDTH = 50  # HIST_WIDTH
HIST_ELISION = 2
_SYSTEMTAP_MARGIN = 2
_VALUE = len("value")
Logarithmic: TypeAlias = HistLog | Quantize
Linear: TypeAlias = HistLinear | LQuantize


@dataclass(frozen=True)
class Histogram:
    """``counts`` (n_buckets,) of a scale's buckets. ``str`` prints it as the scale's owner does."""

    scale: Scale
    counts: Array

    def __str__(self) -> str:
        return self.systemtap() if isinstance(self.scale, HistLog | HistLinear) else self.dtrace()

    def dtrace(self, normal: int = 1) -> str:
        """As ``dtrace`` prints it, a newline before and after; counts are divided by ``normal``. AggregationError."""
        labels = dtrace_labels(self.scale)
        first, last = _dtrace_range(self.scale, self.counts)
        counts = self.counts[first:last + 1].tolist()
        bars = _dtrace_bars(counts)
        lines = [f"{'value':>16} {'------------- Distribution -------------':>41} {'count':<9}"]
        lines += [f"{label:>16} {bar} {quotient(count, normal):<9}"
                  for label, bar, count in zip(labels[first:last + 1], bars, counts, strict=True)]
        return "\n" + "".join(f"{line}\n" for line in lines)

    def systemtap(self, elision: int = HIST_ELISION) -> str:
        """As ``print(@hist_log(v))`` prints it, an empty line behind it. AggregationError.

        A quantize is drawn as hist_log and an lquantize as hist_linear: they have the same buckets, but that hist_log
        keeps INT64_MIN apart. ``elision`` empty buckets next to a count are printed; 0 leaves out all, a negative one
        none.
        """
        if not isinstance(self.scale, Logarithmic | Linear):
            raise AggregationError(f"SystemTap has no {self.scale.name}")
        counts = self.counts.tolist()
        first, last = _systemtap_range(self.scale, counts)
        longest = max(counts)
        unit = max(1, -(-longest // SYSTEMTAP_WIDTH))
        width = max(_systemtap_value_width(self.scale, first, last), _VALUE)
        lines = [f"{'value':>{width}} |{'-' * SYSTEMTAP_WIDTH} count"]
        elided = False
        for bucket in range(first, last + 1):
            if elision >= 0 and not any(counts[max(bucket - elision, first):min(bucket + elision, last) + 1]):
                elided = True
                continue
            if elided:
                lines.append(f"{'':>{width}} ~")
                elided = False
            bar = "@" * (counts[bucket] // unit)
            room = SYSTEMTAP_WIDTH + 1 + len(str(longest))
            lines.append(f"{_systemtap_label(self.scale, bucket):>{width}} |{bar}{counts[bucket]:>{room - len(bar)}}")
        return "".join(f"{line}\n" for line in lines) + "\n"


def dtrace_labels(scale: Scale) -> list[str]:
    """What DTrace prints before each bucket. AggregationError."""
    match scale:
        case Quantize():
            return [str(scale.lower(bucket)) for bucket in range(scale.n_buckets)]
        case LQuantize():
            levels = [str(scale.base + level * scale.step) for level in range(scale.levels)]
            return [f"< {scale.base}", *levels, f">= {scale.limit}"]
        case LLQuantize():
            edges = [str(edge) for edge in scale.edges.tolist()]
            return [f"< {edges[0]}", *edges[:-1], f">= {edges[-1]}"]
    raise AggregationError(f"DTrace has no {scale.name}")


def _dtrace_range(scale: Scale, counts: Array) -> tuple[int, int]:
    """The first and the last bucket to print."""
    filled = np.flatnonzero(counts)
    if len(filled):
        return max(int(filled[0]) - 1, 0), min(int(filled[-1]) + 1, len(counts) - 1)
    match scale:
        case Quantize(zero=zero):
            return zero - 1, zero + 1
        case LQuantize():
            return 0, 2
    return 0, 1


def _dtrace_bars(counts: list[int]) -> list[str]:
    """The bars, the line at which they begin included."""
    total = sum(map(abs, counts))
    falls, rises = any(count < 0 for count in counts), any(count > 0 for count in counts)
    width = DTRACE_WIDTH // 2 if falls and rises else DTRACE_WIDTH
    bars = []
    for count in counts:
        # Half a character and more is one.
        bar = "@" * ((2 * abs(count) * width + total) // (2 * total) if total else 0)
        if not falls:
            bars.append(f"|{bar:<{width}}")
        elif not rises:
            bars.append(f"{bar:>{width}}|")
        else:
            bars.append(f"{bar:>{width}}|{'':{width}}" if count <= 0 else f"{'':{width}}|{bar:<{width}}")
    return bars


def _systemtap_range(scale: Logarithmic | Linear, counts: list[int]) -> tuple[int, int]:
    """The first and the last bucket to print."""
    filled = [bucket for bucket, count in enumerate(counts) if count > 0]
    first, last = (filled[0], filled[-1]) if filled else (0, 0)
    end = len(counts) - 1
    for _ in range(_SYSTEMTAP_MARGIN):
        # A logarithmic one does not go below zero unless there are negative values.
        if first > 0 and not (isinstance(scale, Logarithmic) and first == scale.zero):
            first -= 1
        last = min(last + 1, end)
    if isinstance(scale, Linear):
        first += first == 0 and counts[0] == 0
        last -= last == end and counts[end] == 0
    return first, last


def _systemtap_value_width(scale: Logarithmic | Linear, first: int, last: int) -> int:
    if isinstance(scale, Logarithmic):
        return max(len(str(scale.lower(first))), len(str(scale.lower(last))))
    low, width = _line(scale)
    under, over = first == 0, last == scale.n_buckets - 1
    return max(len(str(low)) + under, len(str(low + width * last)) + over)


def _systemtap_label(scale: Logarithmic | Linear, bucket: int) -> str:
    if isinstance(scale, Logarithmic):
        return str(scale.lower(bucket))
    low, width = _line(scale)
    if bucket == 0:
        return f"<{low}"
    if bucket == scale.n_buckets - 1:
        return f">{low + (bucket - 2) * width}"
    return str(low + (bucket - 1) * width)


def _line(scale: Linear) -> tuple[int, int]:
    """The least value of the first bucket that has one, and the buckets' width."""
    return (scale.low, scale.width) if isinstance(scale, HistLinear) else (scale.base, scale.step)
