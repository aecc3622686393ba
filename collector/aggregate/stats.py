"""SystemTap's statistics: ``stat << value`` is its ``stat <<< value``, ``stat.avg()`` its ``@avg(stat)``.

Only the statistics are kept, never the values, so a linear histogram's range is said before the first value, as
SystemTap's translator finds it in the script. One statistic for each CPU, merged when asked.
"""

from __future__ import annotations

from typing import Any

from collector.aggregate import fold
from collector.aggregate.fold import Buckets, Fold
from collector.aggregate.histogram import Histogram
from collector.aggregate.scales import HistLinear, HistLog
from collector.errors import AggregationError, EmptyAggregate


class Statistic:
    """Count, sum, extremes, average, variance and histograms of a stream of 64-bit integers.

    ``Statistic(HistLinear(0, 10240, 200))`` also keeps that linear histogram. Least and greatest value, average,
    variance and histograms of no values raise EmptyAggregate.
    """

    def __init__(self, *linear: HistLinear) -> None:
        self._folds: dict[object, Fold] = {
            each.name: each for each in (fold.COUNT, fold.SUM, fold.MIN, fold.MAX, fold.AVG, fold.VARIANCE)}
        self._folds |= {scale: Buckets(scale) for scale in (HistLog(), *linear)}
        self.delete()

    def __lshift__(self, value: int) -> Statistic:
        self.add([value])
        return self

    def add(self, values: Any) -> None:
        """Add all of ``values`` (n,) integers."""
        for name, each in self._folds.items():
            each.add(self._states[name], values)

    def merge(self, other: Statistic) -> None:
        """Add all that ``other`` has; both must keep the same histograms. AggregationError."""
        if self._folds.keys() != other._folds.keys():
            raise AggregationError("statistics with other histograms cannot be merged")
        for name, each in self._folds.items():
            each.merge(self._states[name], other._states[name])

    def delete(self) -> None:
        """Back to the initial empty state."""
        self._states = {name: each.empty() for name, each in self._folds.items()}

    def count(self) -> int:
        """How many values."""
        return int(self._result("count"))

    def sum(self) -> int:
        """Their sum, modulo 2^64; 0 without any."""
        return int(self._result("sum"))

    def min(self) -> int:
        """The least one. EmptyAggregate."""
        return int(self._of_some("min"))

    def max(self) -> int:
        """The greatest one. EmptyAggregate."""
        return int(self._of_some("max"))

    def avg(self) -> int:
        """The average, cut towards zero. EmptyAggregate."""
        return int(self._of_some("avg"))

    def variance(self) -> int:
        """The variance of the sample, cut to an integer; 0 for one value. EmptyAggregate."""
        return int(self._of_some("variance"))

    def hist_log(self) -> Histogram:
        """By powers of two. EmptyAggregate."""
        scale = HistLog()
        return Histogram(scale, self._of_some(scale))

    def hist_linear(self, low: int, high: int, width: int) -> Histogram:
        """By steps of ``width`` from ``low`` to ``high``, which the statistic was made with. AggregationError."""
        scale = HistLinear(low, high, width)
        if scale not in self._folds:
            raise AggregationError(f"no histogram was kept from {low} to {high} by {width}: "
                                   f"make it Statistic(HistLinear({low}, {high}, {width}))")
        return Histogram(scale, self._of_some(scale))

    def _result(self, name: object) -> Any:
        return self._folds[name].result(self._states[name])

    def _of_some(self, name: object) -> Any:
        if not self.count():
            raise EmptyAggregate("empty aggregate: no value was added")
        return self._result(name)
