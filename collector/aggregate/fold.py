"""The aggregating functions. Values in, 64-bit words out.

A function's state is a row of 64-bit words as DTrace stores it, and nothing else:

    count, sum, min, max    one word
    avg                     count, sum
    stddev, variance        count, sum, sum of squares (128 bits: the high word, then the low word)
    quantize                127 counts
    lquantize, llquantize   the arguments' word, then the counts

``add`` folds values into a state, ``merge`` folds another state into it, and the merge law holds: any split of the
values over any number of states gives, merged, the same words. 64-bit and 128-bit sums wrap as DTrace's do. States of
many keys are the rows of one array: ``add_grouped`` folds each value into its own row, in one pass.

Values are int64; other integers are taken as such, so 2^64 - 1 is -1, as in DTrace.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from collector.aggregate.bounds import INT64_MAX, INT64_MIN
from collector.aggregate.scales import LLQuantize, LQuantize, Quantize, Scale
from collector.arrays import Array
from collector.errors import AggregationError

_HALF = np.uint64(32)
_LOW_HALF = np.uint64((1 << 32) - 1)
_2_128 = 1 << 128


class Fold(ABC):
    """An aggregating function. ``name`` is what it is called; ``n_words`` are in each state."""

    name: str
    n_words: int

    def empty(self) -> Array:
        """The state (n_words,) uint64 of no values."""
        state: Array = self.empty_states(1)[0]
        return state

    def add(self, state: Array, values: Any) -> None:
        """Fold ``values`` (n,) integers into ``state`` (n_words,), in place."""
        numbers = as_int64(values)
        self.add_grouped(state[np.newaxis], np.zeros(len(numbers), dtype=np.int64), numbers)

    def merge(self, state: Array, other: Array) -> None:
        """Fold ``other`` (n_words,) into ``state`` (n_words,), in place."""
        self.merge_grouped(state[np.newaxis], np.zeros(1, dtype=np.int64), other[np.newaxis])

    def empty_states(self, n: int) -> Array:
        """(n, n_words) uint64: the state of no values for ``n`` keys."""
        return np.zeros((n, self.n_words), dtype=np.uint64)

    @abstractmethod
    def add_grouped(self, states: Array, rows: Array, values: Array) -> None:
        """Fold each of ``values`` (n,) int64 into the row of ``states`` (m, n_words) that ``rows`` (n,) names."""

    @abstractmethod
    def merge_grouped(self, states: Array, rows: Array, others: Array) -> None:
        """Fold each of ``others`` (k, n_words) into the row of ``states`` (m, n_words) that ``rows`` (k,) names."""

    @abstractmethod
    def result(self, state: Array) -> Any:
        """What the state (n_words,) says: an int, or for a quantization its counts (n_buckets,) int64."""


class Count(Fold):
    """How many values."""

    name, n_words = "count", 1

    def add_grouped(self, states: Array, rows: Array, values: Array) -> None:
        np.add.at(states[:, 0], rows, np.uint64(1))

    def merge_grouped(self, states: Array, rows: Array, others: Array) -> None:
        np.add.at(states[:, 0], rows, others[:, 0])

    def result(self, state: Array) -> int:
        return int(state[0])


class Sum(Fold):
    """Their sum, modulo 2^64."""

    name, n_words = "sum", 1

    def add_grouped(self, states: Array, rows: Array, values: Array) -> None:
        np.add.at(states[:, 0], rows, values.view(np.uint64))

    def merge_grouped(self, states: Array, rows: Array, others: Array) -> None:
        np.add.at(states[:, 0], rows, others[:, 0])

    def result(self, state: Array) -> int:
        return signed(state[0])


class _Extreme(Fold):
    """The least or the greatest value; ``nothing`` is DTrace's state without values."""

    n_words = 1
    nothing: int
    choose: np.ufunc

    def empty_states(self, n: int) -> Array:
        return np.full((n, 1), self.nothing, dtype=np.int64).view(np.uint64)

    def add_grouped(self, states: Array, rows: Array, values: Array) -> None:
        self.choose.at(states.view(np.int64)[:, 0], rows, values)

    def merge_grouped(self, states: Array, rows: Array, others: Array) -> None:
        self.choose.at(states.view(np.int64)[:, 0], rows, others.view(np.int64)[:, 0])

    def result(self, state: Array) -> int:
        return signed(state[0])


class Min(_Extreme):
    """The least value; INT64_MAX without any."""

    name, nothing, choose = "min", INT64_MAX, np.minimum


class Max(_Extreme):
    """The greatest value; INT64_MIN without any."""

    name, nothing, choose = "max", INT64_MIN, np.maximum


class Avg(Fold):
    """Their average, cut towards zero; 0 without any."""

    name, n_words = "avg", 2

    def add_grouped(self, states: Array, rows: Array, values: Array) -> None:
        np.add.at(states[:, 0], rows, np.uint64(1))
        np.add.at(states[:, 1], rows, values.view(np.uint64))

    def merge_grouped(self, states: Array, rows: Array, others: Array) -> None:
        np.add.at(states[:, 0], rows, others[:, 0])
        np.add.at(states[:, 1], rows, others[:, 1])

    def result(self, state: Array) -> int:
        return quotient(signed(state[1]), signed(state[0]))


class _Moments(Fold):
    """Count, sum and 128-bit sum of squares: [count, sum, squares >> 64, squares modulo 2^64]."""

    n_words = 4

    def add_grouped(self, states: Array, rows: Array, values: Array) -> None:
        np.add.at(states[:, 0], rows, np.uint64(1))
        np.add.at(states[:, 1], rows, values.view(np.uint64))
        _add_limbs(states, _square_limbs(values, rows, len(states)))

    def merge_grouped(self, states: Array, rows: Array, others: Array) -> None:
        np.add.at(states[:, 0], rows, others[:, 0])
        np.add.at(states[:, 1], rows, others[:, 1])
        limbs = np.zeros((4, len(states)), dtype=np.uint64)
        for limb, word in enumerate((others[:, 3] & _LOW_HALF, others[:, 3] >> _HALF,
                                     others[:, 2] & _LOW_HALF, others[:, 2] >> _HALF)):
            np.add.at(limbs[limb], rows, word)
        _add_limbs(states, limbs)

    @staticmethod
    def squares(state: Array) -> int:
        """The sum of squares, modulo 2^128."""
        return int(state[2]) << 64 | int(state[3])


class Stddev(_Moments):
    """sqrt(average(x**2) - average(x)**2) in DTrace's integers: both averages are cut, then the root is."""

    name = "stddev"

    def result(self, state: Array) -> int:
        count = int(state[0])
        if count == 0:
            return 0
        average = quotient(signed(state[1]), signed(state[0]))
        return math.isqrt((self.squares(state) // count - average * average) % _2_128)


class Variance(_Moments):
    """The variance of a sample (the divisor is n - 1, as in SystemTap's ``@variance``), cut to an integer.

    It is computed from the exact sums, not step by step in integers as SystemTap does, so nothing is rounded before the
    end and parts merge exactly. 0 for fewer than two values.
    """

    name = "variance"

    def result(self, state: Array) -> int:
        count, total = int(state[0]), signed(state[1])
        if count < 2:
            return 0
        return (count * self.squares(state) - total * total) // (count * (count - 1))


@dataclass(frozen=True)
class Buckets(Fold):
    """How many values fall into each bucket of a scale. The scale's word, if it has one, comes first."""

    scale: Scale

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.scale.name

    @property
    def n_words(self) -> int:  # type: ignore[override]
        return self._n_before + self.scale.n_buckets

    @property
    def _n_before(self) -> int:
        return 0 if self.scale.word is None else 1

    def empty_states(self, n: int) -> Array:
        states = super().empty_states(n)
        if self.scale.word is not None:
            states[:, 0] = self.scale.word
        return states

    def add_grouped(self, states: Array, rows: Array, values: Array) -> None:
        if not states.flags.c_contiguous:
            raise AggregationError("the states of a quantization lie in one piece")
        cells = rows * self.n_words
        cells += self.scale.index(values)
        cells += self._n_before
        np.add.at(states.reshape(-1), cells, np.uint64(1))

    def merge_grouped(self, states: Array, rows: Array, others: Array) -> None:
        if self.scale.word is not None and (others[:, 0] != self.scale.word).any():
            raise AggregationError(f"{self.name} with other arguments cannot be merged into this one")
        np.add.at(states[:, self._n_before:], rows, others[:, self._n_before:])

    def result(self, state: Array) -> Array:
        return state[self._n_before:].view(np.int64)


COUNT, SUM, MIN, MAX, AVG = Count(), Sum(), Min(), Max(), Avg()
STDDEV, VARIANCE, QUANTIZE = Stddev(), Variance(), Buckets(Quantize())


def lquantize(lower: int, upper: int, step: int = 1) -> Buckets:
    """``lquantize(value, lower, upper, step)``. ScaleError."""
    return Buckets(LQuantize.between(lower, upper, step))


def llquantize(factor: int, low: int, high: int, steps: int) -> Buckets:
    """``llquantize(value, factor, low, high, steps)``. ScaleError."""
    return Buckets(LLQuantize.of(factor, low, high, steps))


def as_int64(values: Any) -> Array:
    """``values`` as (n,) int64, in one piece; unsigned ones keep their bits. AggregationError."""
    array = np.asarray(values)
    if array.ndim != 1 or (array.dtype.kind not in "iub" and len(array)):
        raise AggregationError(f"values are a row of integers, not {array.dtype} of shape {array.shape}")
    return np.ascontiguousarray(array.astype(np.int64, copy=False))


def signed(word: Any) -> int:
    """A 64-bit word as a signed integer."""
    return (int(word) + (1 << 63)) % (1 << 64) - (1 << 63)


def quotient(dividend: int, divisor: int) -> int:
    """The quotient cut towards zero, as in C; 0 for a divisor of 0."""
    if divisor == 0:
        return 0
    size = abs(dividend) // abs(divisor)
    return size if (dividend < 0) == (divisor < 0) else -size


def _square_limbs(values: Array, rows: Array, n_rows: int) -> Array:
    """(4, n_rows) uint64: the sums of squares by row, in parts of 32 bits with their carries still in them.

    Good for 2^30 values at a time: a value adds less than 4 * 2^32 to a part.
    """
    limbs = np.zeros((4, n_rows), dtype=np.uint64)
    size = np.abs(values).view(np.uint64)
    low, high = size & _LOW_HALF, size >> _HALF
    _add_halves(limbs, 0, rows, low * low)
    if high.any():
        crossed = low * high
        _add_halves(limbs, 1, rows, crossed)
        _add_halves(limbs, 1, rows, crossed)
        _add_halves(limbs, 2, rows, high * high)
    return limbs


def _add_halves(limbs: Array, limb: int, rows: Array, products: Array) -> None:
    np.add.at(limbs[limb], rows, products & _LOW_HALF)
    np.add.at(limbs[limb + 1], rows, products >> _HALF)


def _add_limbs(states: Array, limbs: Array) -> None:
    """Add ``limbs`` (4, m) to the sums of squares of ``states`` (m, 4), modulo 2^128."""
    carry = np.zeros(len(states), dtype=np.uint64)
    parts = []
    for limb in limbs:
        carry = carry + limb
        parts.append(carry & _LOW_HALF)
        carry = carry >> _HALF
    low, high = parts[0] | parts[1] << _HALF, parts[2] | parts[3] << _HALF
    states[:, 3] += low
    states[:, 2] += high + (states[:, 3] < low)
