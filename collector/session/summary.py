"""The line that a recording ends with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Summary(NamedTuple):
    """What was recorded, and ``warnings`` of what is not as it should be."""

    directory: str
    seconds: float
    cpu_seconds: float
    n_threads: int
    n_descendants: int
    n_samples: int
    warnings: Sequence[str]
    managed: str = ""  # what is said of frames of runtimes

    def __str__(self) -> str:
        others = f", {self.n_descendants} descendants" if self.n_descendants else ""
        state = "; ".join(self.warnings) or "nothing lost"
        return (f"{self.directory}: {self.seconds:.2f} s, {self.cpu_seconds:.2f} s CPU, {self.n_threads} threads"
                f"{others}, {self.n_samples} samples"
                f"{f', {self.managed}' if self.managed else ''}, {state}")


def cut_short(directory: str, why: str, n_dropped: int, warnings: Sequence[str]) -> str:
    """The same line where the experiment could not be written to its end."""
    return "; ".join([f"{directory}: {why}", f"{n_dropped} packets were dropped", *warnings])
