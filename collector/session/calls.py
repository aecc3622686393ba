"""In which system call threads are off their CPUs, for aggregations.

A departure tells the call that the thread left its CPU in; it stays there until it runs again. Where departures came
too often for a record of each, the call is the one in which other departures with the same stack were, if that was
always the same. What neither tells is <Unknown>, as are synthetic stretches, which may stand for many, and threads on a
CPU, which may be in many calls, one after another.
"""

from __future__ import annotations

import numpy as np

from collector.aggregate.spans import ON_CPU, Source, Spans
from collector.arrays import Columns, indices, numbered, packed
from collector.events import IN_NO_CALL, Array, ClockSamples
from collector.session.placing import Placed

_UNKNOWN, _NONE = range(2)
_MANY_STACKS = 1 << 18  # programs do not have so many: forget all and learn anew


class Calls:
    """Numbers of system calls; ``names`` has what these stand for."""

    def __init__(self) -> None:
        self.names: list[bytes] = [b"<Unknown>", b"<none>"]
        self._numbers = {b"": _UNKNOWN, IN_NO_CALL: _NONE}
        self._slot = self._time_ns = self._call = np.zeros(0, dtype=np.int64)  # departures of a batch, by slot and time
        self._of_stack: dict[tuple[int, int], int] = {}  # by image and uid; _UNKNOWN: not always the same
        self._now = Columns(call=("i8", _UNKNOWN))  # by slot, of the last departure

    def saw(self, leaving: ClockSamples | None, placed: Placed | None, calls: Array | None) -> None:
        """The departures of a batch with the names (n,) of their calls."""
        if leaving is None or placed is None or calls is None:
            self._slot = self._time_ns = self._call = np.zeros(0, dtype=np.int64)
            return
        different, number = numbered(calls)
        call = np.array([self._number(name) for name in different.tolist()], dtype=np.int64)[number]
        order = np.lexsort((leaving.time_ns, placed.slot))
        self._slot, self._time_ns, self._call = placed.slot[order], leaving.time_ns[order], call[order]
        self._learn(placed, call)

    def of(self, spans: Spans, image: Array) -> Array:
        """The number (n,) of the call that each span is in; spans by slot and in time order, ``image`` (n,) theirs."""
        self._now.grow(int(spans.slot.max(initial=-1)) + 1)
        on_cpu = np.isin(spans.state, ON_CPU)
        rows = np.arange(len(spans))
        run = np.maximum.accumulate(np.where(on_cpu, rows, -1)) if len(rows) else rows
        left = np.full(len(spans), _UNKNOWN)  # the call in which runs ended
        left[on_cpu] = self._departed(spans.slot[on_cpu], spans.start_ns[on_cpu], spans.end_ns[on_cpu])
        follows = (run >= 0) & (spans.slot[run] == spans.slot)
        call = np.where(follows, left[run], self._now.call[spans.slot])
        last = np.append(spans.slot[1:] != spans.slot[:-1], True)[:len(rows)]
        self._now.call[spans.slot[last]] = call[last]
        seen = ~on_cpu & (spans.source != Source.SYNTHETIC)
        call[~seen] = _UNKNOWN
        untold = indices((call == _UNKNOWN) & seen & (spans.stack != 0))
        call[untold] = self._at_stacks(image[untold], spans.stack[untold])
        return call

    def forget(self, slots: Array) -> None:
        """The threads at slots are over, and the slots are free."""
        self._now.grow(int(slots.max(initial=-1)) + 1)
        self._now.reset(slots)

    def _departed(self, slot: Array, start_ns: Array, end_ns: Array) -> Array:
        """The call (r,) in which each run ended, by the last departure in it."""
        if not len(self._slot) or not len(slot):
            return np.full(len(slot), _UNKNOWN)
        keys, wanted = packed((self._slot, self._time_ns), (slot, end_ns))
        at = np.maximum(keys.searchsorted(wanted, side="right") - 1, 0)
        met = (self._slot[at] == slot) & (keys[at] <= wanted) & (self._time_ns[at] >= start_ns)
        return np.where(met, self._call[at], _UNKNOWN)

    def _learn(self, placed: Placed, call: Array) -> None:
        known = indices((call > _NONE) & (placed.uid != 0))
        seen = np.unique(np.stack([placed.image[known], placed.uid[known].astype(np.int64), call[known]]), axis=1)
        if len(self._of_stack) > _MANY_STACKS:
            self._of_stack.clear()
        for image, uid, number in seen.T.tolist():
            if self._of_stack.setdefault((image, uid), number) != number:
                self._of_stack[image, uid] = _UNKNOWN

    def _at_stacks(self, image: Array, uid: Array) -> Array:
        found = [self._of_stack.get(pair, _UNKNOWN) for pair in zip(image.tolist(), uid.tolist(), strict=True)]
        return np.array(found, dtype=np.int64)

    def _number(self, name: bytes) -> int:
        number = self._numbers.setdefault(name, len(self.names))
        if number == len(self.names):
            self.names.append(name)
        return number
