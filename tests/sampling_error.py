"""How far the shares of functions that samples tell may be from the truth, though nothing is wrong.

Where a sample falls is chance. Of n samples drawn at random a share p of the time has the standard deviation
sqrt(p (1 - p) / n) (binomial distribution). Looks at even intervals are nearer to the truth while nobody is late.
Beside other programs they come as late as the scheduler will have it, and nothing better is sure. How near they are on
a calm machine is for ``scripts/truth`` to measure.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

DEVIATIONS = 5  # beyond them is one of 1.7 million comparisons


def n_draws(ticks: Any) -> float:
    """As how many samples of equal weight those with ``ticks`` (n,) count: one that stands for much time tells no more
    than another."""
    ticks = np.asarray(ticks, float)
    return float(ticks.sum() ** 2 / (ticks**2).sum())


def of_share(share: float, draws: float) -> float:
    """The error of a share (0 to 1) of the time by so many samples."""
    return DEVIATIONS * math.sqrt(share * (1 - share) / draws)
