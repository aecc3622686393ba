"""For scripts that compare collect with another profiler: shares of functions, and what the program says of itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

POINTS = 3.0  # that collect may be away


def normal(found: Counter[str]) -> Counter[str]:
    """In percent of all."""
    total = sum(found.values()) or 1
    return Counter({name: 100 * count / total for name, count in found.items()})


def witnessed(truth: Counter[str], said: Mapping[str, Counter[str]], clock: str) -> int:
    """Prints what the program says by its ``clock`` beside what the profilers have ``said``, in percent; 1 if collect
    is too far from it."""
    for name, _ in truth.most_common():
        print(*(f"{shares[name]:6.1f} %" for shares in (*said.values(), truth)), f" {name} and below")
    far = {who: max(abs(shares[name] - share) for name, share in truth.items()) for who, shares in said.items()}
    offs = ", ".join(f"{who} {points:.1f} points from it" for who, points in far.items())
    print(f"the program's own {clock} right; {offs}")
    return int(far["collect"] > POINTS)
