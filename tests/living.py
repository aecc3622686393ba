"""Programs that are recorded, or read, and live on until they have been looked at, however late that comes.

What a runtime carries out is read from the memory of the process. Who compares it with what the program says keeps the
program alive until then: the machine decides how long a test takes, and not how it ends.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collector.errors import ExperimentError
from collector.experiment.reader import open_experiment

_COLLECT = Path(sys.executable).parent / "collect"


def newest_ns(experiment: Path) -> int:
    """The time of the newest packet; 0 if there is none yet."""
    try:
        return int(open_experiment(experiment).packets()["TSTAMP"].max(initial=0))
    except ExperimentError:
        return 0


@dataclass
class Living:
    """A program that is recorded, and goes on for as long as its input does."""

    process: subprocess.Popen[str]
    experiment: Path

    def says(self) -> str:
        """Its next line."""
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def tell(self) -> None:
        """A line for it."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def wait_for_looks(self) -> int:
        """Until what it does now has been taken in twice, with a look at it each time; when that was (CLOCK_MONOTONIC,
        ns)."""
        for _ in range(2):
            begun_ns = time.monotonic_ns()
            while newest_ns(self.experiment) < begun_ns:
                assert self.process.poll() is None
                time.sleep(0.02)
        return time.monotonic_ns()

    def end(self) -> tuple[str, str]:
        """Its input ends, and so does it: what it and ``collect`` said."""
        said, told = self.process.communicate(timeout=120)
        assert self.process.returncode == 0, told
        return said, told


@contextmanager
def ready(*command: str | Path) -> Iterator[int]:
    """The process of a program that nobody records, when it has said that it is ready; it is killed in the end."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield process.pid
        finally:
            process.kill()


@contextmanager
def living(experiment: Path, *arguments: object, **options: Any) -> Iterator[Living]:
    """Under ``collect`` with such arguments, into ``experiment``; keywords go to Popen."""
    command = [str(_COLLECT), "-o", *map(str, (experiment, *arguments))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          **options) as process:
        yield Living(process, experiment)
