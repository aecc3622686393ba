"""The table of who woke whom, by itself."""

from __future__ import annotations

import numpy as np

from collector.aggregate.keyed import Keyed
from collector.aggregate.language import compiled
from collector.aggregate.ready import READY
from collector.aggregate.syntax import parse
from collector.report.aggregations import Merged
from collector.report.wakers import wakes_of


def test_what_blocked_longest_comes_first() -> None:
    query = compiled(parse(READY["wakers"]))
    keyed, short, long = Keyed(query.fold), query.fold.empty(), query.fold.empty()
    query.fold.add(short, [3, 4])
    query.fold.add(long, [90])
    kinds = [7 if name in ("tid", "wakertid", "pid") else b"x" for name in query.keys]
    keys = [tuple(b"%d" % row if kind == b"x" else row for kind in kinds) for row in (1, 2)]
    keyed.fold_in(keys, np.array([short, long]))
    found = wakes_of([Merged(query, keyed, Keyed(query.fold))])
    assert found is not None
    assert [row.blocked_ns for row in found.rows] == [90, 7]
