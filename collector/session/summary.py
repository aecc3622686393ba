"""The line that a recording ends with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from collector.wording import many


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
        others = f", {many(self.n_descendants, 'descendant')}" if self.n_descendants else ""
        state = "; ".join(self.warnings) or "nothing lost"
        return (f"{self.directory}: {self.seconds:.2f} s, {self.cpu_seconds:.2f} s CPU, "
                f"{many(self.n_threads, 'thread')}{others}, {many(self.n_samples, 'sample')}"
                f"{f', {self.managed}' if self.managed else ''}, {state}")


def cut_short(directory: str, why: str, n_samples: int, n_dropped: int, warnings: Sequence[str]) -> str:
    """The same line where the experiment could not be written to its end."""
    state = [many(n_dropped, "packet was dropped", "packets were dropped"), *warnings]
    return f"{directory}: {why}, {many(n_samples, 'sample')}, {'; '.join(state)}"
