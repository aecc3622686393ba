"""An expression at work: spans in, keyed states out. Synthetic spans have states of their own."""

from __future__ import annotations

from collector.aggregate.keyed import Keyed
from collector.aggregate.language import Query
from collector.aggregate.spans import Runs, Source, Spans, Tables, columns_of
from collector.arrays import Array


class Aggregation:
    """``recorded`` has what was seen span by span, ``synthetic`` what only its sums were told of."""

    def __init__(self, query: Query) -> None:
        self.query = query
        self.recorded = Keyed(query.fold)
        self.synthetic = Keyed(query.fold)
        self._runs = Runs() if "run_ns" in query.needs else None

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
        synthetic = spans.source == Source.SYNTHETIC
        for keyed, rows in ((self.recorded, ~synthetic), (self.synthetic, synthetic)):
            if rows.any():
                columns = columns_of(spans[rows], self.query.needs, tables, None if run_ns is None else run_ns[rows])
                keyed.add(*self.query.select(columns))
