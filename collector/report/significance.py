"""Whether two groups of runs differ in a row of a table, told from their samples. Pure.

A row's time in a run is a sum of sampled pieces: clock ticks, a few of them in one packet. As a compound Poisson sum
its sampling variance is the sum of the squares of the pieces; one tick more for each group keeps that honest where
counts are small. Real runs differ by more than that, by their data, caches and neighbours: by a share ``c`` of the
row's mean, as in a negative binomial distribution::

    variance of one run = sum of squares + (c * mean) ** 2

Where a group has several runs, all rows together tell ``c``, and each row its own variance; both are drawn toward what
is expected, which counts as much as ``PRIOR_RUNS`` more runs (the moderated t statistic of Smyth 2004, Stat. Appl.
Genet. Mol. Biol. 3:3). Of one run in each group the typical row tells it: most functions are taken not to have changed,
so what the median one differs by is what runs differ by (the genomic control of Devlin and Roeder 1999, Biometrics
55:997), such as the speed of a machine that others use. It is never taken to be less than ``RUN_TO_RUN``.
Functions that one group alone has tell nothing of that: no speed makes them go, the program is another.

What all rows of a run share, such as that speed, hides what one row differs by. So a row is tested twice: its
difference, and the same after each run has been divided by the factor of its typical row (the median of ratios of
Anders and Huber 2010, Genome Biol. 11:R106); the smaller probability counts, doubled.

The interval is that of one difference as it was measured, 95 %. With many rows some intervals miss zero by chance, so a
difference is called significant by the procedure of Benjamini and Hochberg (1995, J. R. Stat. Soc. B 57:289): of the
rows so called at most 5 % are expected to be wrong, and of two runs of one program at most 5 % of comparisons have such
a row at all. An interval may hold zero where a row is significant: where its share of the time has changed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

F8 = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]

LEVEL = 0.05
RUN_TO_RUN = 0.03
PRIOR_RUNS = 4
ROWS_MIN = 3  # from so many rows on there is a typical one
CLEAR = 5  # times its error of sampling a row is long that counts for that
MEDIAN_CHI2 = 0.4549  # of one degree of freedom
_HALVINGS = 12


@dataclass(frozen=True)
class Runs:
    """The runs of a group: ``values`` (runs, n), of their pieces' ``squares`` (runs, n); one ``tick``."""

    values: F8
    squares: F8
    tick: float

    def __len__(self) -> int:
        return len(self.values)

    def scaled(self, factors: F8) -> Runs:
        """With each run (runs,) divided by a factor."""
        return Runs(self.values / factors[:, None], self.squares / factors[:, None] ** 2, self.tick)

    @cached_property
    def mean(self) -> F8:
        """Of a run (n)."""
        return np.asarray(self.values.mean(axis=0), np.float64)

    @cached_property
    def sampling(self) -> F8:
        """The variance of one run that is due to sampling (n)."""
        return np.asarray((self.squares.sum(axis=0) + self.tick ** 2) / len(self), np.float64)

    @cached_property
    def spread(self) -> F8:
        """Sum of squared deviations from the mean (n)."""
        return np.asarray(((self.values - self.mean) ** 2).sum(axis=0), np.float64)


@dataclass(frozen=True)
class Differences:
    """Mean of a run of the second group less that of the first: 95 % intervals (n), in the unit of the values."""

    low: F8
    high: F8
    p: F8  # that it is by chance


def compared(first: Runs, second: Runs, leaves: tuple[Runs, Runs]) -> tuple[Differences, Bool]:
    """What separates two groups in each row, and which rows differ significantly (n).

    ``leaves``: the same groups in rows that do not contain each other, of which the typical row is one.
    """
    found = differences(first, second, typical_share2(*leaves))
    p = found.p
    factors = common_factors(*leaves)
    if factors is not None:
        scaled = [runs.scaled(factor) for runs, factor in zip((first, second, *leaves), factors * 2, strict=True)]
        own = differences(scaled[0], scaled[1], typical_share2(scaled[2], scaled[3]))
        p = np.minimum(1.0, 2 * np.minimum(p, own.p))
    is_seen = np.asarray(first.squares.any(axis=0) | second.squares.any(axis=0), np.bool_)
    return found, benjamini_hochberg(p, is_seen)


def common_factors(first: Runs, second: Runs) -> tuple[F8, F8] | None:
    """For each run of the groups how much longer its typical row is than the mean of all runs; None: nothing tells."""
    mean = (first.values.sum(axis=0) + second.values.sum(axis=0)) / (len(first) + len(second))
    clear = (mean ** 2 > CLEAR ** 2 * (first.sampling + second.sampling)) & _in_both(first, second)
    if clear.sum() < ROWS_MIN:
        return None
    found = [np.median(runs.values[:, clear] / mean[clear], axis=1) for runs in (first, second)]
    return (found[0], found[1]) if all(one.all() for one in found) else None


def typical_share2(first: Runs, second: Runs) -> float:
    """The square of the share by which two runs differ beyond sampling, from rows that do not contain each other."""
    sampling, squares = first.sampling + second.sampling, first.mean ** 2 + second.mean ** 2
    clear = (squares > CLEAR ** 2 * sampling) & _in_both(first, second)
    if clear.sum() < ROWS_MIN:
        return RUN_TO_RUN ** 2
    found2, low, high = (second.mean - first.mean)[clear] ** 2, RUN_TO_RUN ** 2, 4.0
    sampling, squares = sampling[clear], squares[clear]
    for step in range(_HALVINGS):
        share2 = math.sqrt(low * high) if step else low
        is_typical = np.median(found2 / (sampling + share2 * squares)) <= MEDIAN_CHI2
        if is_typical and not step:
            return low
        low, high = (low, share2) if is_typical else (share2, high)
    return high


def _in_both(first: Runs, second: Runs) -> Bool:
    return np.asarray((first.mean > 0) & (second.mean > 0), np.bool_)


def differences(first: Runs, second: Runs, share2: float = RUN_TO_RUN ** 2) -> Differences:
    """What separates two groups in each row. ``share2``: see ``typical_share2``; for one run of each."""
    difference = second.mean - first.mean
    n_free = len(first) + len(second) - 2
    sampling = (first.sampling + second.sampling) / 2
    means = (first.mean ** 2 + second.mean ** 2) / 2
    observed = (first.spread + second.spread) / max(n_free, 1)
    if n_free:
        share2 = _share2(observed, sampling, means, n_free)
    variance = sum((runs.sampling + share2 * runs.mean ** 2) / len(runs) for runs in (first, second))
    if n_free:
        expected = sampling + share2 * means
        scale = np.divide(observed, expected, out=np.ones(len(expected)), where=expected > 0)
        variance = variance * (PRIOR_RUNS + n_free * scale) / (PRIOR_RUNS + n_free)
    error, degrees = np.sqrt(variance), PRIOR_RUNS + n_free if n_free else 0
    is_seen = np.asarray(first.squares.any(axis=0) | second.squares.any(axis=0), np.bool_)
    statistic = np.divide(np.abs(difference), error, out=np.zeros(len(error)), where=is_seen)
    p, reach = _probabilities(statistic, degrees), error * quantile(degrees)
    return Differences(difference - reach, difference + reach, p)


def benjamini_hochberg(p: F8, of: Bool) -> Bool:
    """Which of the hypotheses with these probabilities (n) are rejected, those alone counted that ``of`` selects."""
    found = np.zeros(len(p), np.bool_)
    at = np.flatnonzero(of)
    order = at[np.argsort(p[at], kind="stable")]
    below = np.flatnonzero(p[order] <= LEVEL * np.arange(1, len(order) + 1) / max(len(order), 1))
    found[order[:below[-1] + 1 if len(below) else 0]] = True
    return found


def _share2(observed: F8, sampling: F8, means: F8, n_free: int) -> float:
    """The square of the share by which runs differ beyond sampling, from all rows, drawn toward ``RUN_TO_RUN``."""
    expected = RUN_TO_RUN ** 2
    weights = np.divide(means, (sampling + expected * means) ** 2, out=np.zeros(len(means)), where=means > 0)
    among = float((weights * means).sum())
    told = max(float((weights * (observed - sampling)).sum()) / among, 0.0) if among else expected
    return (PRIOR_RUNS * expected + n_free * told) / (PRIOR_RUNS + n_free)


def quantile(degrees: int) -> float:
    """What 5 % of Student's statistic lie beyond, on both sides; 0 degrees: of the normal one.

    By the normal distribution, after Wallace (1959, Ann. Math. Stat. 30:1121): at 5 degrees 0.4 % too wide.
    """
    z = NormalDist().inv_cdf(1 - LEVEL / 2)
    if not degrees:
        return z
    z *= (8 * degrees + 3) / (8 * degrees + 1)
    return math.sqrt(degrees * math.expm1(z * z / degrees))


def _probabilities(statistic: F8, degrees: int) -> F8:
    """How likely a statistic as large is by chance alone (n), on both sides."""
    z = statistic
    if degrees:
        z = np.sqrt(degrees * np.log1p(z * z / degrees)) * (8 * degrees + 1) / (8 * degrees + 3)
    return np.array([math.erfc(one / math.sqrt(2)) for one in z.tolist()], np.float64)


def runs_of(values: Sequence[npt.NDArray[np.int64]], squares: Sequence[npt.NDArray[np.int64]], tick: float) -> Runs:
    """Columns of one number a row, one for each run."""
    return Runs(np.array(values, np.float64), np.array(squares, np.float64), tick)
