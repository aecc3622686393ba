"""What reports are made of: documents that know nothing of text, pages or JSON. Every export renders each of them.

A ``Table`` has typed columns::

    Column   key "e.totalcpu"   title "Exclusive Total CPU Time"   unit TIME   values (n,)   percents (n,) or none
    Column   key "name"         title "Name"                       unit NAME   values (n,) into ``labels``

A ``Tree`` is a table whose rows have depths, each parent before its children. Rows may come in ``blocks`` (callers, the
function, callees); what a row is to the others is its *role*: ``self`` among callers and callees, ``hot`` among source
lines. Notes are warnings, which stand before everything else. ``Lines`` are what has no columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

I8 = npt.NDArray[np.int64]
F8 = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]

LINE, HEAD, CODE, GAP = "line", "function", "code", "gap"  # kinds of rows of source and instructions


class Unit(Enum):
    """What the numbers of a column are."""

    TIME = "us"  # microseconds, shown as seconds
    BYTES = "bytes"
    COUNT = "count"
    RATIO = "ratio"  # in thousandths
    ADDRESS = "address"  # packed: see ``tables``
    NAME = "name"  # places in ``labels``
    INTERVAL = "interval"  # from ``values`` to ``interval.high``, both in microseconds


class Against(NamedTuple):
    """How a column is shown beside the first group's, whose values are ``base`` (n): as a ``delta``, or a ``ratio``."""

    base: I8
    form: str


class Interval(NamedTuple):
    """The upper ends ``high`` (n) of intervals of a difference, and which differences are significant (n)."""

    high: I8
    is_significant: Bool


@dataclass(frozen=True, eq=False)
class Column:
    """``values`` (n) in ``unit``; ``percents`` (n) where shares are shown. ``words``: those of the heading in text.

    ``key`` is what a user calls the column; ``as_value`` false: only the shares are shown.
    """

    key: str
    title: str
    unit: Unit
    values: I8
    words: Sequence[str] = ()
    percents: F8 | None = None
    as_value: bool = True
    is_sorted: bool = False
    labels: Sequence[bytes] = ()
    detail: tuple[str, str] = ("", "")  # the title in two lines: ("Exclusive", "Total CPU Time")
    share_key: str = ""  # as ``key``, of the shares
    group: str = ""  # of experiments, where several are compared
    against: Against | None = None
    interval: Interval | None = None

    def __len__(self) -> int:
        return len(self.values)

    @classmethod
    def of_names(cls, key: str, title: str, names: Sequence[bytes]) -> Column:
        """A column of names, one a row."""
        return cls(key, title, Unit.NAME, np.arange(len(names), dtype=np.int64), (title,), labels=names,
                   detail=(title, ""))


@dataclass(frozen=True)
class Table:
    """Rows of ``columns``. ``name`` says which document it is; ``titles`` stand above it.

    ``limit``: how many rows, or blocks, are wanted; 0 for all. ``blocks``: where each block begins, and the end.
    """

    name: str
    titles: tuple[str, ...]
    columns: tuple[Column, ...]
    notes: Sequence[str] = ()
    roles: Sequence[str] = ()  # (n), or none
    limit: int = 0
    blocks: I8 | None = None
    block_titles: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.columns[0]) if self.columns else 0

    @property
    def n_shown(self) -> int:
        """Rows that are wanted."""
        if not self.limit:
            return len(self)
        if self.blocks is not None:
            return int(self.blocks[min(self.limit, len(self.blocks) - 1)])
        return min(self.limit, len(self))


@dataclass(frozen=True)
class Tree(Table):
    """A table whose rows are nodes, depth first; ``depths`` (n): 0 for the top."""

    depths: I8 = field(default_factory=lambda: np.zeros(0, np.int64))


@dataclass(frozen=True)
class Annotated(Table):
    """Rows of text, of which those with code have values. ``roles``: hot, or none.

    ``kinds``: line, function (a heading), code, or gap (what is left out). ``has_code`` (n).
    ``numbers`` (n): the line's number, or of instructions the line that they belong to; 0: unknown.
    ``origins`` (n), or none: the file and the function that a row is from, if it is inlined or of another file.
    """

    kinds: Sequence[str] = ()
    has_code: Bool = field(default_factory=lambda: np.zeros(0, np.bool_))
    numbers: I8 = field(default_factory=lambda: np.zeros(0, np.int64))
    origins: Sequence[str] = ()


@dataclass(frozen=True)
class Listing(Table):
    """A table of texts and numbers without metrics, such as the list of experiments."""


@dataclass(frozen=True)
class Lines:
    """What is said in lines of text: headers, statistics, what a setting is now."""

    name: str
    lines: Sequence[str]


Document: TypeAlias = Table | Lines
