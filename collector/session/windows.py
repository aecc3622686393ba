"""When a recording looks: from its beginning or a resumption to a pause or its end, again and again. Pure.

    a wait          |--------------------|
    windows     |------|          |------------|
    told           |---|          |------|         both cut: synthetic, and as long as was looked

What begins before a window, or is not over with it, is no value that was seen, but what lies inside is part of a sum.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace

import numpy as np

from collector.aggregate.spans import Source, Spans
from collector.clock import NEVER_NS
from collector.events import Array

_MAX_PAST = 64  # windows: who has run since before these has no part in them


class Windows:
    """The open one, if there is one, and those that are over, in which what is told now may have begun."""

    def __init__(self) -> None:
        """The first one is open, and has no beginning: those who are born in it are seen from their births."""
        self._since_ns: int | None = 0
        self._past: deque[tuple[int, int]] = deque(maxlen=_MAX_PAST)

    @property
    def is_open(self) -> bool:
        """Whether the recording looks."""
        return self._since_ns is not None

    def open(self, now_ns: int) -> None:
        """It does, from now on."""
        if self._since_ns is None:
            self._since_ns = now_ns

    def close(self, now_ns: int) -> None:
        """It does not any more."""
        if self._since_ns is not None:
            self._past.append((self._since_ns, now_ns))
            self._since_ns = None

    def sees(self, time_ns: Array) -> Array:
        """Which of some moments (n,) lie in windows."""
        inside = time_ns >= (self._since_ns if self._since_ns is not None else NEVER_NS)
        for since_ns, until_ns in self._past:
            inside |= (time_ns >= since_ns) & (time_ns < until_ns)
        return inside

    def within(self, spans: Spans, found_ns: Array) -> Spans:
        """The parts of spans (n,) that lie in windows; those that are cut are synthetic. So is what began no later than
        ``found_ns`` (n,), when its thread was found: 0 for those that were born."""
        if not len(spans) or (self._since_ns == 0 and not self._past and not found_ns.any()):
            return spans
        first_ns = int(spans.start_ns.min())
        windows = [(since, until) for since, until in self._past if until > first_ns]
        if self._since_ns is not None:
            windows.append((self._since_ns, NEVER_NS))
        if not windows:
            return spans[np.zeros(0, dtype=np.int64)]
        parts = [_inside(spans, found_ns, since_ns, until_ns) for since_ns, until_ns in windows]
        found = parts[0]
        for part in parts[1:]:
            found = found.followed_by(part)
        return found


def cut(spans: Spans, which: Array) -> Spans:
    """The spans (n,), and which of them are only parts of what was."""
    return replace(spans, source=np.where(which, np.uint8(Source.SYNTHETIC), spans.source)) if which.any() else spans


def _inside(spans: Spans, found_ns: Array, since_ns: int, until_ns: int) -> Spans:
    rows = (spans.start_ns < until_ns) & (spans.end_ns > since_ns)
    if not rows.all():
        spans, found_ns = spans[rows], found_ns[rows]
    is_cut = (spans.start_ns <= np.maximum(found_ns, since_ns)) | (spans.end_ns >= until_ns)
    if not is_cut.any():
        return spans
    return cut(replace(spans, start_ns=np.maximum(spans.start_ns, since_ns),
                       end_ns=np.minimum(spans.end_ns, until_ns)), is_cut)
