"""Profiling intervals and durations: their names, limits and text forms. Pure.

All times are integer nanoseconds of CLOCK_MONOTONIC, the clock that perf, ``/proc`` and Python can all give.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from collector.errors import UsageError

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000
NEVER_NS = 1 << 62  # behind all that will happen

# Never round numbers: a program with a period of its own must not beat with the sampling clock.
INTERVAL_ON_NS = 10_007 * NS_PER_US
INTERVAL_HIGH_NS = 997 * NS_PER_US
INTERVAL_LOW_NS = 100_003 * NS_PER_US
INTERVAL_MIN_NS = 500 * NS_PER_US
INTERVAL_MAX_NS = 1_000_000 * NS_PER_US

_NAMED = {"on": INTERVAL_ON_NS, "hi": INTERVAL_HIGH_NS, "high": INTERVAL_HIGH_NS, "lo": INTERVAL_LOW_NS,
          "low": INTERVAL_LOW_NS}
_VALUE = re.compile(r"([0-9]{1,12}(?:\.[0-9]*)?|\.[0-9]+)([mu]?)\Z")


def evenly_spread() -> Iterator[float]:
    """Numbers between 0 and 1 of which any run is spread evenly: multiples of the golden ratio, modulo 1."""
    part = 0.0
    while True:
        part = (part + (5 ** 0.5 - 1) / 2) % 1
        yield part


def parse_interval(text: str) -> int:
    """The interval in ns that ``-p TEXT`` names; 0 for ``off``. A bare number is milliseconds.

    Whole microseconds, because that is what the experiment's header can hold. Raises UsageError with the limits.
    """
    if text == "off":
        return 0
    if text in _NAMED:
        return _NAMED[text]
    match = _VALUE.match(text)
    limits = f"from {INTERVAL_MIN_NS / NS_PER_MS:g} to {INTERVAL_MAX_NS / NS_PER_MS:g} milliseconds"
    if match is None:
        raise UsageError(f"-p {text}: give on, off, hi, lo, or an interval {limits}, such as 5 or 5m or 5000u")
    unit_us = 1 if match[2] == "u" else 1_000
    interval_ns = round(float(match[1]) * unit_us) * NS_PER_US
    if not INTERVAL_MIN_NS <= interval_ns <= INTERVAL_MAX_NS:
        raise UsageError(f"-p {text}: the interval must be {limits}")
    return interval_ns


def format_ms(interval_ns: int) -> str:
    """An interval as milliseconds with three digits: ``10.007``."""
    return f"{interval_ns / NS_PER_MS:.3f}"
