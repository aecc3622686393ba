"""An expression at work: spans in, keyed states out. Synthetic spans have states of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from collector.aggregate.dtrace import AggDesc, RecDesc, UserStack, describe, integer, string, ustack
from collector.aggregate.fold import Fold
from collector.aggregate.keyed import Keyed
from collector.aggregate.language import Query
from collector.aggregate.spans import Runs, Source, Spans, Tables, columns_of
from collector.arrays import Array
from collector.errors import TracedDataError

_SHORTEST_STRING = 16
# What one aggregation of one experiment may take of the memory, and of each file that is written of it: keys go with
# the threads, processes and stacks that have lived, of which there is no end.
MAX_KEYS, _MAX_STATES = 1 << 16, 32 << 20  # bytes


class Aggregation:
    """``recorded`` has what was seen span by span, ``synthetic`` what only its sums were told of.

    Each has at most ``room_of`` its function keys, those that come first; values of others are counted.
    """

    def __init__(self, query: Query) -> None:
        self.query = query
        self.recorded = Keyed(query.fold, room_of(query.fold))
        self.synthetic = Keyed(query.fold, room_of(query.fold))
        self._runs = Runs() if "run_ns" in query.needs else None

    @property
    def n_dropped(self) -> int:
        """Values of keys for which there was no room."""
        return self.recorded.n_dropped + self.synthetic.n_dropped

    def add(self, spans: Spans, tables: Tables) -> None:
        """Fold a batch in; a thread's spans come in time order. AggregationError."""
        if self._runs is None:
            self._fold(spans, tables)
        else:
            part, run_ns = self._runs.complete(spans)
            self._fold(part, tables, run_ns)

    def close(self, tables: Tables, slots: Array | None = None) -> None:
        """No more spans of these slots come (or of any): the runs that they were in are over. AggregationError."""
        over = self._runs.close(slots) if self._runs is not None else None
        if over is not None:
            part, run_ns = over
            self._fold(part, tables, run_ns)

    def _fold(self, spans: Spans, tables: Tables, run_ns: Array | None = None) -> None:
        columns = columns_of(spans, self.query.needs, tables, run_ns)
        synthetic = spans.source == Source.SYNTHETIC
        if not synthetic.any():
            self.recorded.add(*self.query.select(columns))
            return
        for keyed, rows in ((self.recorded, ~synthetic), (self.synthetic, synthetic)):
            keyed.add(*self.query.select({name: column[rows] for name, column in columns.items()}))


def room_of(function: Fold) -> int:
    """How many keys an aggregation may have: fewer than MAX_KEYS where their states are large."""
    return max(1, min(MAX_KEYS, _MAX_STATES // (8 * function.n_words)))


def described(query: Query, keyed: Keyed, varid: int = 1) -> AggDesc:
    """DTrace's description of the query's result: strings and stacks have room for the longest that ``keyed`` has.

    Stacks must be UserStack, for DTrace's have the PID (0 where the stack is unknown). TracedDataError for what
    DTrace has not.
    """
    return describe(query.name.lstrip("@"), varid, records_of_keys(query, keyed), query.fold)


def records_of_keys(query: Query, keyed: Keyed) -> list[RecDesc]:
    """What such a description has of the keys. TracedDataError."""
    return [_record_of(name, [key[place] for key in keyed]) for place, name in enumerate(query.keys)]


def _record_of(name: str, elements: Sequence[Any]) -> RecDesc:
    if all(isinstance(element, int) for element in elements):
        return integer(4)
    if all(isinstance(element, str | bytes) for element in elements):
        lengths = [len(element if isinstance(element, bytes) else element.encode("utf-8", "surrogateescape"))
                   for element in elements]
        return string(max(_SHORTEST_STRING, max(lengths) // 8 * 8 + 8))
    stacks = [element for element in elements if element != ()]
    if all(isinstance(stack, UserStack) for stack in stacks):
        depth = max((len(stack.pcs) for stack in stacks), default=0)
        strings = max((sum(len(text) + 1 for text in stack.strings) for stack in stacks), default=0)
        return ustack(max(depth, 1), strings)
    raise TracedDataError(f"the key {name} is neither integers nor strings nor UserStack")
