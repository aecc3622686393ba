"""Processes that want the CPUs beside whom a test is about."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def one_for_each_cpu(script: str, **options: Any) -> Iterator[None]:
    """As many of a script of Python as there are CPUs, each of which has said something; they are killed at the end."""
    running = [subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, **options)
               for _ in os.sched_getaffinity(0)]
    for process in running:
        assert process.stdout is not None
        process.stdout.readline()
    yield
    for process in running:
        process.kill()
        process.communicate()
