"""What the user asked for, checked. Standard library only: made before the target starts."""

from __future__ import annotations

from typing import NamedTuple

from collector.clock import INTERVAL_ON_NS
from collector.session.control import Window

ARCHIVE_CHOICES = ("off", "on", "all", "ldobjects", "usedldobjects", "src", "usedsrc")
ENGINES = ("auto", "perf", "signal")
MAX_COMMENTS = 10


class Options(NamedTuple):  # dataclasses take as long to import as all of this, and the target waits
    """One recording. ``arguments`` is the target's command line; ``name`` and the rest as on the command line."""

    arguments: tuple[str, ...] = ()
    pids: tuple[int, ...] = ()  # attach to these instead of running a program
    tree: bool = False  # and to their descendants
    interval_ns: int = INTERVAL_ON_NS
    name: str | None = None
    overwrite: bool = False
    directory: str | None = None
    group: str | None = None
    comments: tuple[str, ...] = ()
    archive: str = "on"
    sample_period_s: int = 1
    follow: str = "on"
    wait_descendants: bool = False
    window: Window = Window()
    sample_signal: int | None = None
    pause_signal: tuple[int, bool] | None = None  # and whether recording is on from the start
    size_limit_mb: int = 0  # 0: none
    mpi: bool = False
    engine: str = "auto"
    dry_run: bool = False
    verbose: bool = False
    command_line: tuple[str, ...] = ()
