"""Which bucket a value falls into.

A scale divides the 64-bit integers into ``n_buckets`` ranges in ascending order. ``index`` says for an array of values
which range each is in; ``lower`` has the least value of each range as the scale's owner prints it. DTrace's scales with
arguments have them encoded in one 64-bit word, which is the first word of the data.

    quantize            127 buckets: powers of two to both sides of the zero bucket, number 63
    lquantize           levels of one width from a base, underflow before, overflow behind
    llquantize          in each power of a factor, levels of one width; underflow before, overflow behind
    hist_log            128 buckets: quantize with one more at the negative end
    hist_linear         lquantize with the upper bound's own bucket included
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from collector.aggregate.bounds import UINT16_MAX, UINT32_MAX, ScaleError, check_llquantize, lquantize_levels
from collector.arrays import Array


class Scale(ABC):
    """Ranges of integers. ``word`` is the arguments' encoding, or None where there are none."""

    name: str
    word: int | None = None

    @property
    @abstractmethod
    def n_buckets(self) -> int:
        """How many ranges there are, those of underflow and overflow included."""

    @abstractmethod
    def index(self, values: Array) -> Array:
        """The bucket (n,) int64 of each of ``values`` (n,) int64."""


@dataclass(frozen=True)
class Quantize(Scale):
    """DTrace's ``quantize()``: bucket 63 is zero, 64 + k holds [2^k, 2^(k+1)), 62 - k holds (-2^(k+1), -2^k].

    The outermost buckets also hold what lies beyond: only INT64_MIN does.
    """

    name = "quantize"
    n_buckets = 127
    zero = 63

    def index(self, values: Array) -> Array:
        n_bits = magnitude_bits(values)
        buckets: Array = np.maximum(self.zero + np.where(values < 0, -n_bits, n_bits), 0)
        return buckets

    def lower(self, bucket: int) -> int:
        """DTRACE_QUANTIZE_BUCKETVAL: the value of the bucket that is nearest to zero."""
        return _power_of_two(bucket - self.zero)


@dataclass(frozen=True)
class HistLog(Scale):
    """SystemTap's ``@hist_log``: as quantize, but bucket 64 is zero and bucket 0 holds INT64_MIN alone."""

    name = "hist_log"
    n_buckets = 128
    zero = 64

    def index(self, values: Array) -> Array:
        n_bits = magnitude_bits(values)
        return self.zero + np.where(values < 0, -n_bits, n_bits)

    def lower(self, bucket: int) -> int:
        """The value of the bucket that is nearest to zero."""
        return _power_of_two(bucket - self.zero)


@dataclass(frozen=True)
class LQuantize(Scale):
    """DTrace's ``lquantize()``: bucket 0 is below ``base``, then ``levels`` of ``step`` each, then all above.

    Values are compared as 64-bit integers, as the documentation of Solaris has it. (The kernel of illumos cuts them to
    32 bits first; a sleep of 3 s in nanoseconds would be an underflow.)
    """

    name = "lquantize"
    base: int
    levels: int
    step: int

    @classmethod
    def between(cls, lower: int, upper: int, step: int = 1) -> LQuantize:
        """The scale from ``lower`` to ``upper``; a last level that ``upper`` would cut is left out, as in DTrace."""
        return cls(lower, lquantize_levels(lower, upper, step), step)

    @classmethod
    def from_word(cls, word: int) -> LQuantize:
        """The scale whose arguments ``word`` encodes."""
        base = word & UINT32_MAX
        scale = cls(base - ((base >> 31) << 32), word >> 32 & UINT16_MAX, word >> 48)
        if scale.step == 0 or scale.levels == 0:
            raise ScaleError(0, f"{word:#x} encodes no lquantize: a step or levels of 0")
        return scale

    @property
    def word(self) -> int:  # type: ignore[override]
        """STEP << 48 | LEVELS << 32 | BASE (DTRACE_LQUANTIZE_STEPSHIFT, _LEVELSHIFT, _BASESHIFT)."""
        return self.step << 48 | self.levels << 32 | self.base & UINT32_MAX

    @property
    def n_buckets(self) -> int:
        return self.levels + 2

    @property
    def limit(self) -> int:
        """The least value of the overflow bucket."""
        return self.base + self.levels * self.step

    def index(self, values: Array) -> Array:
        # Cut first: the distance of two 64-bit integers need not be one.
        return (np.clip(values, self.base - 1, self.limit) - self.base) // self.step + 1


@dataclass(frozen=True)
class LLQuantize(Scale):
    """DTrace's ``llquantize()``: for each magnitude m from ``low`` to ``high`` the range [factor^m, factor^(m+1)).

    A range of factor^(m+1) in ``steps`` steps: steps - steps/factor of them lie in the magnitude, the others below it.
    Where there are fewer integers than steps, each has its own bucket (magnitude 0: factor - 1 of them).
    """

    name = "llquantize"
    factor: int
    low: int
    high: int
    steps: int

    @classmethod
    def of(cls, factor: int, low: int, high: int, steps: int) -> LLQuantize:
        """The scale with these arguments; the rules are those of DTrace's compiler."""
        check_llquantize(factor, low, high, steps)
        return cls(factor, low, high, steps)

    @classmethod
    def from_word(cls, word: int) -> LLQuantize:
        """The scale whose arguments ``word`` encodes."""
        factor, low, high, steps = (word >> shift & UINT16_MAX for shift in (48, 32, 16, 0))
        return cls.of(factor, low, high, steps)

    @property
    def word(self) -> int:  # type: ignore[override]
        """FACTOR << 48 | LOW << 32 | HIGH << 16 | STEPS (illumos, DTRACE_LLQUANTIZE_*SHIFT)."""
        return self.factor << 48 | self.low << 32 | self.high << 16 | self.steps

    @property
    def n_buckets(self) -> int:
        return len(self.edges) + 1

    @cached_property
    def edges(self) -> Array:
        """The least value of each bucket but the first, ascending; the last one is the overflow bucket's."""
        parts = []
        for magnitude in range(self.low, self.high + 1):
            end = self.factor ** (magnitude + 1)
            parts.append(np.arange(end // self.factor, end, end // min(self.steps, end), dtype=np.int64))
        return np.concatenate([*parts, np.array([self.factor ** (self.high + 1)], dtype=np.int64)])

    def index(self, values: Array) -> Array:
        if self._cells is None:
            return np.searchsorted(self.edges, values, side="right")
        bits, buckets, next_edges = self._cells
        size = np.clip(values, 0, self.edges[-1])
        cells = _cells_of(size, bits)
        found: Array = buckets[cells]
        found += size >= next_edges[cells]
        return found

    @cached_property
    def _cells(self) -> tuple[int, Array, Array] | None:
        """Cells of ``bits``, see ``_cells_of``, none with more than one edge behind its begin; each one's bucket at its
        begin, and that edge. None where cells would be many, or their numbers not exact.

        A search, of which a processor cannot guess a single step, takes four times as long.
        """
        last = int(self.edges[-1])
        for bits in range(_CELL_BITS_MAX + 1) if last <= _EXACT_MAX else ():
            begins = _begins_of_cells(bits, last)
            buckets = np.searchsorted(self.edges, begins, side="right")
            next_edges = np.append(self.edges, np.iinfo(np.int64).max)[buckets]
            if (np.diff(buckets, append=len(self.edges)) <= 1).all():
                return bits, buckets, next_edges
        return None


@dataclass(frozen=True)
class HistLinear(Scale):
    """SystemTap's ``@hist_linear(v, low, high, width)``: bucket 0 is below ``low``, the last one is the overflow.

    Between them are (high - low) / width + 1 buckets: the one that ``high`` is in is one of them.
    """

    name = "hist_linear"
    low: int
    high: int
    width: int

    MAX_BUCKETS = 128  # STP_MAX_BUCKETS

    def __post_init__(self) -> None:
        if self.width <= 0:
            raise ScaleError(2, "the width of hist_linear must be positive")
        if self.high <= self.low:
            raise ScaleError(1, f"the high value of hist_linear must be above the low one, {self.low}")
        if self.n_buckets > self.MAX_BUCKETS:
            raise ScaleError(2, f"hist_linear has at most {self.MAX_BUCKETS - 2} buckets, not {self.n_buckets - 2}: "
                                "a larger width would do")

    @property
    def n_buckets(self) -> int:
        return (self.high - self.low) // self.width + 3

    def index(self, values: Array) -> Array:
        limit = self.low + (self.n_buckets - 2) * self.width
        return (np.clip(values, self.low - 1, limit) - self.low) // self.width + 1


_DOUBLE_BIAS = 1023  # what the exponent of 1.0 is stored as


def magnitude_bits(values: Array) -> Array:
    """How many bits (n,) int64 the magnitude of each of ``values`` (n,) int64 has: 0 for 0, 64 for INT64_MIN.

    It is the exponent as a double. The bit below the highest one is cleared before: rounding then cannot reach the
    next power of two.
    """
    size = np.abs(values).view(np.uint64)
    size &= ~(size >> np.uint64(1))
    exponents: Array = size.astype(np.float64).view(np.int64) >> 52
    exponents -= _DOUBLE_BIAS - 1
    return exponents.clip(min=0)


_CELL_BITS_MAX = 8
_EXACT_MAX = 1 << 53  # as a double


def _cells_of(size: Array, bits: int) -> Array:
    """A cell (n,) int64 for each of ``size`` (n,), 0 to 2^53: 0 for 0, then 2^bits for each power of two, by the bits
    below the highest one. Larger numbers are in no lower cell."""
    cells: Array = size.astype(np.float64).view(np.int64) >> 52 - bits
    cells -= (_DOUBLE_BIAS << bits) - 1
    return cells.clip(min=0)


def _begins_of_cells(bits: int, last: int) -> Array:
    """The least integer (m,) int64 of each cell of ``bits`` up to that of ``last``; of a cell without any, the next."""
    cells = np.arange(int(_cells_of(np.array([last]), bits)[0]), dtype=np.int64)
    begins = (cells + (_DOUBLE_BIAS << bits) << 52 - bits).view(np.float64)
    return np.append(0, np.ceil(begins).astype(np.int64))


def _power_of_two(distance: int) -> int:
    """The bucket's value ``distance`` buckets above the one of zero."""
    if distance == 0:
        return 0
    return 1 << distance - 1 if distance > 0 else -(1 << -distance - 1)
