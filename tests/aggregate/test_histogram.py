"""Quantizations as DTrace prints them, to the character."""

from __future__ import annotations

import numpy as np
import pytest

from collector.aggregate import fold
from collector.aggregate.fold import Buckets
from collector.aggregate.histogram import Histogram
from collector.aggregate.scales import HistLinear, HistLog, LQuantize, Quantize
from collector.errors import AggregationError

HEAD = "\n           value  ------------- Distribution ------------- count    \n"


def exact(text: str) -> str:
    """The text; $ marks where its lines end."""
    return text.replace("$", "")


def printed(function: Buckets, values: list[int]) -> str:
    state = function.empty()
    function.add(state, values)
    return str(Histogram(function.scale, function.result(state)))


PRINTED = (
    (fold.QUANTIZE, [100], HEAD + """\
              32 |                                         0        $
              64 |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@ 1        $
             128 |                                         0        $
"""),
    (fold.QUANTIZE, [], HEAD + """\
              -1 |                                         0        $
               0 |                                         0        $
               1 |                                         0        $
"""),
    (fold.QUANTIZE, [-3, 0, 0, 5], HEAD + """\
              -4 |                                         0        $
              -2 |@@@@@@@@@@                               1        $
              -1 |                                         0        $
               0 |@@@@@@@@@@@@@@@@@@@@                     2        $
               1 |                                         0        $
               2 |                                         0        $
               4 |@@@@@@@@@@                               1        $
               8 |                                         0        $
"""),
    (fold.QUANTIZE, [(1 << 63) - 1], HEAD + """\
2305843009213693952 |                                         0        $
4611686018427387904 |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@ 1        $
"""),
    (fold.lquantize(0, 30, 10), [-1, 5, 5, 25, 30], HEAD + """\
             < 0 |@@@@@@@@                                 1        $
               0 |@@@@@@@@@@@@@@@@                         2        $
              10 |                                         0        $
              20 |@@@@@@@@                                 1        $
           >= 30 |@@@@@@@@                                 1        $
"""),
    (fold.lquantize(-20, 30, 10), [10] * 79 + [-1], HEAD + """\
             -20 |                                         0        $
             -10 |@                                        1        $
               0 |                                         0        $
              10 |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@ 79       $
              20 |                                         0        $
"""),
    (fold.lquantize(0, 30, 10), [], HEAD + """\
             < 0 |                                         0        $
               0 |                                         0        $
              10 |                                         0        $
"""),
    (fold.llquantize(10, 1, 2, 10), [3, 10, 25, 99, 100, 950, 1000], HEAD + """\
            < 10 |@@@@@@                                   1        $
              10 |@@@@@@                                   1        $
              20 |@@@@@@                                   1        $
              30 |                                         0        $
              40 |                                         0        $
              50 |                                         0        $
              60 |                                         0        $
              70 |                                         0        $
              80 |                                         0        $
              90 |@@@@@@                                   1        $
             100 |@@@@@@                                   1        $
             200 |                                         0        $
             300 |                                         0        $
             400 |                                         0        $
             500 |                                         0        $
             600 |                                         0        $
             700 |                                         0        $
             800 |                                         0        $
             900 |@@@@@@                                   1        $
         >= 1000 |@@@@@@                                   1        $
"""),
)


@pytest.mark.parametrize(("function", "values", "text"), PRINTED, ids=lambda value: str(value)[:30])
def test_a_quantization_is_printed_as_dtrace_does(function: Buckets, values: list[int], text: str) -> None:
    assert printed(function, values) == exact(text)


def test_negative_counts_have_bars_to_the_left() -> None:
    counts = np.array([-123, -123, 246, 0, 0], dtype=np.int64)
    assert str(Histogram(LQuantize(0, 3, 1), counts)) == exact(HEAD + """\
             < 0                @@@@@|                     -123     $
               0                @@@@@|                     -123     $
               1                     |@@@@@@@@@@           246      $
               2                     |                     0        $
""")
    assert str(Histogram(LQuantize(0, 3, 1), counts.clip(max=0))) == exact(HEAD + """\
             < 0                     @@@@@@@@@@@@@@@@@@@@| -123     $
               0                     @@@@@@@@@@@@@@@@@@@@| -123     $
               1                                         | 0        $
""")


def test_counts_may_be_normalized() -> None:
    counts = np.zeros(127, dtype=np.int64)
    counts[63] = 17
    assert Histogram(Quantize(), counts).dtrace(normal=5).splitlines()[3].split() == ["0", "|" + "@" * 40, "3"]


def test_systemtap_has_no_llquantize() -> None:
    with pytest.raises(AggregationError, match="SystemTap has no llquantize"):
        Histogram(fold.llquantize(10, 1, 2, 10).scale, np.zeros(19, dtype=np.int64)).systemtap()


@pytest.mark.parametrize(("function", "other", "values"), [
    (fold.QUANTIZE, HistLog(), [3, 3, 900, 70_000]),
    (fold.QUANTIZE, HistLog(), [-9, 0, 0]),
    (fold.QUANTIZE, HistLog(), []),
    (fold.QUANTIZE, HistLog(), [(1 << 63) - 1]),
    (fold.lquantize(0, 50, 5), HistLinear(0, 45, 5), [7, 7, 31]),
    (fold.lquantize(-20, 30, 10), HistLinear(-20, 20, 10), [-21, -1, 30]),
    (fold.lquantize(0, 50, 5), HistLinear(0, 45, 5), []),
])
def test_quantizations_are_drawn_as_systemtap_draws_the_same_values(
        function: Buckets, other: HistLog | HistLinear, values: list[int]) -> None:
    state, theirs = function.empty(), Buckets(other).empty()
    function.add(state, values)
    Buckets(other).add(theirs, values)
    drawn = Histogram(function.scale, function.result(state)).systemtap()
    assert drawn == Histogram(other, Buckets(other).result(theirs)).systemtap()


def test_an_lquantize_of_one_level_is_drawn_too() -> None:
    """Which SystemTap's translator refuses as hist_linear."""
    function = fold.lquantize(0, 10, 10)
    state = function.empty()
    function.add(state, [5, 25])
    rows = Histogram(function.scale, function.result(state)).systemtap().splitlines()
    assert [row.split() for row in rows[1:-1]] == [["0", "|@", "1"], [">0", "|@", "1"]]
