"""What the recording side hands in: spans, and the tables of names that their numbers point into.

A run is an uninterrupted stretch of one thread on one CPU: spans of the states 0, 1, 2 and 10 that follow one another
without a gap.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from typing import Any

import numpy as np

from collector.aggregate.columns import Coded, Column
from collector.aggregate.syntax import NUMBERS, STACKS, STATES
from collector.arrays import Array
from collector.errors import AggregationError

ON_CPU = (0, 1, 2, 10)
NO_RUN = -1  # as the length of a run: the span ends none
_IS_ON_CPU = np.isin(np.arange(len(STATES)), ON_CPU)


class Source(IntEnum):
    """Where a span's edges come from."""

    RECORDED = 0
    ADJUSTED = 1
    SYNTHETIC = 2


@dataclass(frozen=True)
class Spans:
    """Columns of n spans each; the room's docstring has their meaning. ``syscall``, ``waker`` and ``wakerstack`` may be
    missing."""

    start_ns: Array
    end_ns: Array
    state: Array
    slot: Array
    tid: Array
    pid: Array
    cpu: Array
    stack: Array
    source: Array
    syscall: Array | None = None
    waker: Array | None = None
    wakerstack: Array | None = None

    def __post_init__(self) -> None:
        for name, column in self.columns().items():
            if column.shape != (len(self),) or column.dtype.kind not in "iu":
                raise AggregationError(f"spans' column {name} is {column.dtype} of shape {column.shape}, "
                                       f"not integers of shape ({len(self)},)")
        if len(self) and (self.end_ns < self.start_ns).any():
            raise AggregationError("a span ends before it begins")
        for name, limit in (("state", len(STATES)), ("source", len(Source))):
            column = getattr(self, name)
            if len(self) and not 0 <= column.min() <= column.max() < limit:
                raise AggregationError(f"a span's {name} is 0 to {limit - 1}")

    def __len__(self) -> int:
        return len(self.start_ns)

    def __getitem__(self, rows: Array) -> Spans:
        return Spans(**{name: column[rows] for name, column in self.columns().items()})

    def columns(self) -> dict[str, Array]:
        """The columns that there are, by name."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: column for name, column in found.items() if column is not None}

    def followed_by(self, other: Spans) -> Spans:
        """These spans and then those."""
        others = other.columns()
        return Spans(**{name: np.concatenate([column, others[name]]) for name, column in self.columns().items()})


# Which of the spans' numbers points into a table of names.
POINTERS = {"execname": "slot", "comm": "slot", "syscall": "syscall", "waker": "waker",
            "wakertid": "waker", "wakerstack": "wakerstack"} | dict.fromkeys(STACKS, "stack")

Tables = Mapping[str, Sequence[Hashable]]


def columns_of(
    spans: Spans, needed: frozenset[str], tables: Tables, run_ns: Array | None = None
) -> dict[str, Column]:
    """The ``needed`` columns of an expression. AggregationError where the recording has no such thing.

    ``tables`` has for execname, comm, syscall, waker, wakertid, wakerstack, ustack, usym, umod and ufunc what
    their numbers mean.
    Where a number is -1 the name is empty, and so is the stack.
    """
    given = spans.columns() | ({} if run_ns is None else {"run_ns": run_ns})
    found: dict[str, Column] = {}
    for name in needed:
        pointer = POINTERS.get(name, name)
        if pointer not in given or (name in POINTERS and name not in tables):
            raise AggregationError(f"this recording does not tell {name}: leave it out of the expression")
        found[name] = _pointed(name, given[pointer], tables[name]) if name in POINTERS else given[name]
    return found


def _pointed(name: str, codes: Array, table: Sequence[Any]) -> Column:
    """What codes (n,) stand for. Numbers, unlike names, are compared by size: they come as they are, -1 for none."""
    if name in NUMBERS:
        return np.array([*table, -1], dtype=np.int64)[codes]
    return Coded(codes, table, () if name == "ustack" else "")


class Runs:
    """How long each run was, told at the span that ends it.

    Which span that is shows when the thread is next seen off that CPU. So of each thread that was last seen on a CPU
    the last span is held back: one for each, however long the run and however many batches it takes. A run in which
    any span is synthetic is synthetic as a whole.
    """

    def __init__(self) -> None:
        self._held: Spans | None = None
        self._began_ns = np.zeros(0, dtype=np.int64)

    def complete(self, spans: Spans) -> tuple[Spans, Array]:
        """The held spans and ``spans`` that are decided; for each the length (n,) ns of the run it ends, or NO_RUN."""
        whole = spans if self._held is None else self._held.followed_by(spans)
        began_ns = np.append(self._began_ns, spans.start_ns)
        order = np.lexsort((whole.start_ns, whole.slot))
        slot, start, end, cpu = (column[order] for column in (whole.slot, whole.start_ns, whole.end_ns, whole.cpu))
        on_cpu = _IS_ON_CPU[whole.state[order]]
        goes_on = on_cpu[1:] & on_cpu[:-1] & (slot[1:] == slot[:-1]) & (start[1:] == end[:-1]) & (cpu[1:] == cpu[:-1])
        first, last = np.ones(len(order), dtype=bool), np.ones(len(order), dtype=bool)
        first[1:], last[:-1] = ~goes_on, ~goes_on
        # A run's begin (n,) at each of its spans.
        began_ns[order] = began_ns[order][first][np.cumsum(first) - 1]
        run_ns = np.full(len(order), NO_RUN, dtype=np.int64)
        source = whole.source.copy()
        if len(order):
            source[order[last]] = np.maximum.reduceat(source[order], np.flatnonzero(first))
        whole = replace(whole, source=source)
        ends = order[last & on_cpu]
        run_ns[ends] = whole.end_ns[ends] - began_ns[ends]
        undecided = np.zeros(len(order), dtype=bool)
        undecided[order] = on_cpu & np.append(slot[1:] != slot[:-1], True)[:len(order)]
        self._held, self._began_ns = whole[undecided], began_ns[undecided]
        return whole[~undecided], run_ns[~undecided]

    def close(self, slots: Array | None = None) -> tuple[Spans, Array] | None:
        """The held spans of these slots (or all): those threads are gone, so their runs are over. As ``complete``."""
        if self._held is None:
            return None
        gone = np.isin(self._held.slot, slots) if slots is not None else np.ones(len(self._held), dtype=bool)
        over, run_ns = self._held[gone], (self._held.end_ns - self._began_ns)[gone]
        self._held, self._began_ns = self._held[~gone], self._began_ns[~gone]
        return over, run_ns
