"""SystemTap's statistics; its histograms come out as its documentation prints them, to the character."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.aggregate.histogram import Histogram
from collector.aggregate.scales import HistLinear, HistLog
from collector.aggregate.stats import Statistic
from collector.errors import AggregationError, EmptyAggregate

RULER = "-" * 50
BAR = "@" * 50

# The network reads of the documentation: 1650 reads up to 199 bytes, 8 up to 399, one in the bucket of 1400.
READS = [60] * 1650 + [399] * 8 + [1400]
LINEAR = f"""\
value |{RULER} count
    0 |{BAR} 1650
  200 |                                                      8
  400 |                                                      0
  600 |                                                      0
      ~
 1000 |                                                      0
 1200 |                                                      0
 1400 |                                                      1
 1600 |                                                      0
 1800 |                                                      0

"""
LINEAR_AS_DOCUMENTED = (
    "value |-------------------------------------------------- count 0 "
    "|@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@ 1650 200 | 8 400 | 0 600 | 0 ~ 1000 | 0 1200 | 0 1400 | 1 "
    "1600 | 0 1800 | 0")

# The same reads by powers of two, another day.
LOG_READS = [63] * 254 + [64] * 3 + [129] * 2 + [511] * 2 + [512] * 4 + [2047] * 16689
LOG = f"""\
value |{RULER} count
    8 |                                                       0
   16 |                                                       0
   32 |                                                     254
   64 |                                                       3
  128 |                                                       2
  256 |                                                       2
  512 |                                                       4
 1024 |{BAR[1:]}  16689
 2048 |                                                       0
 4096 |                                                       0

"""
LOG_AS_DOCUMENTED = (
    "value |-------------------------------------------------- count 8 | 0 16 | 0 32 | 254 64 | 3 128 | 2 256 | 2 "
    "512 | 4 1024 |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@ 16689 2048 | 0 4096 | 0")


def test_the_documented_linear_histogram() -> None:
    reads = Statistic(HistLinear(0, 10240, 200))
    reads.add(READS)
    assert str(reads.hist_linear(0, 10240, 200)) == LINEAR
    assert " ".join(LINEAR.split()) == LINEAR_AS_DOCUMENTED


def test_the_documented_logarithmic_histogram() -> None:
    reads = Statistic()
    reads.add(LOG_READS)
    assert str(reads.hist_log()) == LOG
    assert " ".join(LOG.split()) == LOG_AS_DOCUMENTED


def rows_of(histogram: Histogram, elision: int) -> list[str]:
    """What stands before the bar in each row."""
    return [line.split("|")[0].strip() for line in histogram.systemtap(elision).splitlines()[1:-1]]


@pytest.mark.parametrize(("elision", "shown"), [
    (2, ["0", "10", "20", "~", "90", "100", "110", "120", "130"]),
    # Ten consecutive empty buckets: the first three and the last three are printed.
    (3, ["0", "10", "20", "30", "~", "80", "90", "100", "110", "120", "130"]),
    (5, ["0", "10", "20", "30", "40", "50", "60", "70", "80", "90", "100", "110", "120", "130"]),
    (0, ["0", "~", "110"]),
    (-1, ["0", "10", "20", "30", "40", "50", "60", "70", "80", "90", "100", "110", "120", "130"]),
])
def test_empty_buckets_far_from_any_count_become_a_tilde(elision: int, shown: list[str]) -> None:
    stat = Statistic(HistLinear(0, 200, 10))
    stat << 3 << 115
    assert rows_of(stat.hist_linear(0, 200, 10), elision) == shown


def test_underflow_and_overflow_have_rows_of_their_own() -> None:
    stat = Statistic(HistLinear(-5, 20, 3))
    stat.add([-100, -6, 0, 0, 1000, 19, 20, 21, 22, 23])
    assert str(stat.hist_linear(-5, 20, 3)) == f"""\
value |{RULER} count
  <-5 |@@                                                 2
   -5 |                                                   0
   -2 |@@                                                 2
    1 |                                                   0
    4 |                                                   0
      ~
   13 |                                                   0
   16 |                                                   0
   19 |@@@                                                3
  >19 |@@@                                                3

"""


def test_negative_values_widen_the_column_of_values() -> None:
    stat = Statistic()
    stat << -100000 << -1
    assert str(stat.hist_log()).splitlines()[:3] == [
        f"  value |{RULER} count", "-262144 |" + " " * 51 + "0", "-131072 |" + " " * 51 + "0"]
    assert rows_of(stat.hist_log(), 2)[-3:] == ["-1", "0", "1"]


def test_a_bar_is_never_longer_than_the_ruler() -> None:
    for longest in (50, 51, 100, 101, 149, 10**9):
        lines = str(Histogram(HistLinear(0, 20, 10), _counts(4, {1: longest, 2: 1}))).splitlines()
        assert lines[1].count("@") == longest // -(-longest // 50)
        assert lines[1].endswith(f" {longest}") and len(lines[1]) == len(lines[2])


def _counts(n: int, filled: dict[int, int]) -> Any:
    return np.array([filled.get(bucket, 0) for bucket in range(n)], dtype=np.int64)


def test_statistics_of_a_stream() -> None:
    stat = Statistic()
    for value in (3, -4, 3, 10):
        stat << value
    assert (stat.count(), stat.sum(), stat.min(), stat.max(), stat.avg()) == (4, 12, -4, 10, 3)
    assert stat.variance() == 32  # (0 + 49 + 0 + 49) / 3


def test_the_documented_statements() -> None:
    """``a <<< delta_timestamp`` and ``writes[execname()] <<< count``."""
    writes: defaultdict[str, Statistic] = defaultdict(Statistic)
    for execname, count in (("cat", 4096), ("sh", 1), ("cat", 10)):
        writes[execname] << count
    assert {name: (one.count(), one.sum(), one.max()) for name, one in writes.items()} == {
        "cat": (2, 4106, 4096), "sh": (1, 1, 1)}


@pytest.mark.parametrize("value", [1.5, "4", None])
def test_only_numbers_are_added(value: Any) -> None:
    stat = Statistic()
    with pytest.raises(AggregationError, match="integers"):
        stat << value
    assert stat.count() == 0


def test_a_linear_histogram_may_lie_below_zero() -> None:
    stat = Statistic(HistLinear(-30, -10, 10))
    stat.add([-31, -30, -21, -20, -11, -10, -1, 0])
    assert str(stat.hist_linear(-30, -10, 10)) == f"""\
value |{RULER} count
 <-30 |@                                                  1
  -30 |@@                                                 2
  -20 |@@                                                 2
  -10 |@@                                                 2
 >-10 |@                                                  1

"""


def test_the_average_of_negatives_is_cut_towards_zero() -> None:
    stat = Statistic()
    stat << -3 << -4
    assert stat.avg() == -3


EMPTY: tuple[Callable[[Statistic], object], ...] = (
    Statistic.min, Statistic.max, Statistic.avg, Statistic.variance, Statistic.hist_log,
    lambda stat: stat.hist_linear(0, 10, 1),
)


@pytest.mark.parametrize("question", EMPTY)
def test_no_values_have_no_statistics(question: Callable[[Statistic], object]) -> None:
    stat = Statistic(HistLinear(0, 10, 1))
    assert (stat.count(), stat.sum()) == (0, 0)
    with pytest.raises(EmptyAggregate):
        question(stat)


def test_deleting_brings_the_empty_state_back() -> None:
    stat = Statistic(HistLinear(0, 10, 1))
    stat << 7
    stat.delete()
    assert stat.count() == 0
    stat << 9
    assert (stat.count(), stat.min(), stat.max(), stat.variance()) == (1, 9, 9, 0)
    assert rows_of(stat.hist_linear(0, 10, 1), 2) == ["7", "8", "9", "10"]


def test_a_histogram_that_was_not_kept_cannot_be_had_later() -> None:
    stat = Statistic()
    stat << 5
    with pytest.raises(AggregationError, match=r"Statistic\(HistLinear\(0, 10, 1\)\)"):
        stat.hist_linear(0, 10, 1)


@settings(max_examples=40, deadline=None)
@given(parts=st.lists(st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=5), min_size=1, max_size=4))
def test_cpus_merge_to_what_one_would_have(parts: list[list[int]]) -> None:
    whole, merged = Statistic(HistLinear(0, 100, 7)), Statistic(HistLinear(0, 100, 7))
    for part in parts:
        cpu = Statistic(HistLinear(0, 100, 7))
        cpu.add(part)
        whole.add(part)
        merged.merge(cpu)
    for question in (Statistic.count, Statistic.sum, *EMPTY[:4]):
        if whole.count():
            assert question(merged) == question(whole)
    if whole.count():
        assert str(merged.hist_log()) == str(whole.hist_log())


def test_statistics_with_other_histograms_do_not_merge() -> None:
    with pytest.raises(AggregationError, match="other histograms"):
        Statistic().merge(Statistic(HistLinear(0, 10, 1)))


def test_dtrace_has_no_histogram_of_systemtap_and_the_other_way_round() -> None:
    with pytest.raises(AggregationError, match="DTrace has no hist_log"):
        Histogram(HistLog(), _counts(128, {})).dtrace()
