"""What the user asked for, checked. Standard library only: made before the target starts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from collector.clock import INTERVAL_ON_NS
from collector.session.control import Action, Control, Window

ARCHIVE_CHOICES = ("off", "on", "all", "ldobjects", "usedldobjects", "src", "usedsrc")
ENGINES = ("auto", "perf", "signal")
MAX_COMMENTS = 10
KERNEL = "kernel"  # among what is asked of engines


class Options(NamedTuple):  # dataclasses take as long to import as all of this, and the target waits
    """One recording. ``arguments`` is the target's command line; ``name`` and the rest as on the command line."""

    arguments: tuple[str, ...] = ()
    pids: tuple[int, ...] = ()  # attach to these instead of running a program
    pidfds: tuple[tuple[int, int], ...] = ()  # of some of these a pidfd, which whoever started us holds them by
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
    orders: int = -1  # a pipe by which the service asks (``control.ORDERS``)
    size_limit_mb: int = 0  # 0: none
    mpi: bool = False
    engine: str = "auto"
    aggregations: tuple[str, ...] = ()  # expressions
    asked: frozenset[str] = frozenset()  # of what engines need not tell: by these, and KERNEL
    print_period_s: int = 0  # of prints of what is aggregated; 0: none
    exports: tuple[tuple[str, str], ...] = ()  # format, and file or nothing: what is written when recording is over
    labels: tuple[str, ...] = ()  # NAME=VALUE
    python: bool = False  # functions of CPython are put into stacks, by looks at its memory
    java: bool = True  # methods of Java are put into stacks
    js: bool = True  # functions of JavaScript are put into stacks
    page: str | None = None  # the file of a page that is made at the end; empty: named after the experiment
    whole_kernel: bool = False  # of the machine, instead of a program
    dry_run: bool = False
    verbose: bool = False
    command_line: tuple[str, ...] = ()

    @property
    def kernel(self) -> bool:
        """Whether stacks begin with the kernel's part of them."""
        return KERNEL in self.asked

    @property
    def asks_for_moments(self) -> bool:
        """Whether something is to be done at certain moments, which must not be missed."""
        by_signal = self.sample_signal is not None or self.pause_signal is not None
        return self.window != Window() or by_signal or self.orders >= 0

    def control(self, start_ns: int) -> Control:
        """When to record and when not, of a recording that starts at ``start_ns``."""
        return Control(start_ns, self.window, paused=self.pause_signal is not None and not self.pause_signal[1])

    def signals(self, stop: Sequence[int] = ()) -> dict[int, Action]:
        """What signals to the collector mean; those of ``stop`` end the recording."""
        meaning = dict.fromkeys(stop, Action.STOP)
        if self.sample_signal is not None:
            meaning[self.sample_signal] = Action.SAMPLE
        if self.pause_signal is not None:
            meaning[self.pause_signal[0]] = Action.TOGGLE
        return meaning
