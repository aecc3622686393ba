"""``collect --print SECONDS``: a process that prints the aggregations of a recording now and then, while it goes on.

It reads the experiment as ``er_print`` does, with functions by name and descendants merged, and takes nothing from the
recording: neither time nor imports, and whoever reads its output slowly lets only it wait. What it shows is what the
recording has stored, which it does about once a second; each print says of when it is. It ends when standard input
does, whose other end the recording has, and prints the last state then.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from collector.clock import NS_PER_MS, NS_PER_S

if TYPE_CHECKING:
    from collector.report.aggregations import Merged

_NICENESS = 10  # a ninth of what an equal would get of a CPU
_IMPORTS_NS = NS_PER_S  # before the first print
_SHORTER = (None, 50, 20, 10, 5, 3, 2, 1)  # so many keys, until all of them fit on the screen
_SIZE = 80, 24
_HOME, _CLEAR_LINE, _CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
_ENDED_BY_OTHERS = signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP  # the recording ends, then we do


@contextmanager
def printing(directory: Path, start_ns: int, period_s: int) -> Iterator[None]:
    """A process that prints what is aggregated in ``directory`` on our stderr, every ``period_s`` from ``start_ns`` on;
    at the end it prints once more. Without one, where none can be made, recording goes on."""
    ours = theirs = -1
    pid = 0
    try:
        with suppress(OSError):
            theirs, ours = os.pipe()
            pid = _spawned(theirs, directory, start_ns, period_s)
        yield
    finally:
        for fd in (theirs, ours):
            if fd >= 0:
                os.close(fd)
        if pid:
            os.waitpid(pid, 0)


def _spawned(stdin: int, directory: Path, start_ns: int, period_s: int) -> int:
    """Not started as the terminal's foreground job is: Ctrl-C is for the recording. The directory we are in is no place
    for modules (-P)."""
    command = [sys.executable, "-P", "-m", __name__, str(directory.absolute()), str(start_ns), str(period_s)]
    return os.posix_spawn(sys.executable, command, os.environ, setsigmask=_ENDED_BY_OTHERS,
                          file_actions=[(os.POSIX_SPAWN_DUP2, stdin, 0), (os.POSIX_SPAWN_DUP2, 2, 1)])


def main(argv: Sequence[str]) -> None:
    """Prints until standard input ends."""
    directory, start_ns, period_ns = Path(argv[0]), int(argv[1]), int(argv[2]) * NS_PER_S
    os.setpriority(os.PRIO_PROCESS, 0, max(_NICENESS, os.getpriority(os.PRIO_PROCESS, 0)))
    _over(_rest_ns(start_ns, period_ns) - _IMPORTS_NS)  # the program and the recording may want the CPUs
    from collector.cli import streams
    from collector.export import aggregation_text  # noqa: F401 - before the first one is due

    streams.hold()
    page = Page(sys.stdout)
    with suppress(BrokenPipeError):
        while not _over(_rest_ns(start_ns, period_ns)):
            page.show(directory, start_ns)
        page.show(directory, start_ns, last=True)
    with suppress(OSError):
        streams.flush()


def _rest_ns(start_ns: int, period_ns: int) -> int:
    """Until the next whole period; one that was missed is left out."""
    return period_ns - (time.monotonic_ns() - start_ns) % period_ns


def _over(wait_ns: int) -> bool:
    """Whether standard input has ended within ``wait_ns``."""
    poller = select.poll()
    poller.register(0, select.POLLIN)
    return bool(poller.poll(max(0, wait_ns) / NS_PER_MS))


class Page:
    """Prints states one after the other: on a terminal in place of the one before, else below it."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._drawn = False

    def show(self, directory: Path, start_ns: int, *, last: bool = False) -> None:
        """The state that is stored; on a terminal as much of it as fits, but for the ``last`` one. OSError."""
        found, written_ns = _stored(directory)
        since_s = (written_ns - start_ns) / NS_PER_S if written_ns else 0.0
        when = time.strftime("%H:%M:%S", time.localtime(time.time() - (time.monotonic_ns() - written_ns) / NS_PER_S))
        head = f"{when}  aggregated for {since_s:.1f} s" if written_ns else "nothing is aggregated yet"
        if self._out.isatty() and not last:
            self._redraw(head, found)
        else:
            self._out.write("\n".join([head, *_lines(found, None)]) + "\n")
        self._out.flush()

    def _redraw(self, head: str, found: Sequence[Merged]) -> None:
        columns, rows = os.get_terminal_size(self._out.fileno())
        if not columns or not rows:  # nobody has told how large it is
            columns, rows = _SIZE
        lines: list[str] = []
        for top in _SHORTER:
            lines = [head if top is None else f"{head}, the largest keys of each: {top}", *_lines(found, top)]
            if len(lines) < rows:
                break
        lines = [line[:columns] for line in lines[:rows - 1]]
        if not self._drawn:  # what stands there goes up
            self._out.write("\n" * rows)
            self._drawn = True
        self._out.write(_HOME + "".join(f"{line}{_CLEAR_LINE}\n" for line in lines) + _CLEAR_BELOW)


def _stored(directory: Path) -> tuple[list[Merged], int]:
    """The aggregations of an experiment and its descendants; the time (CLOCK_MONOTONIC) of the newest, 0 for none."""
    from collector.errors import CollectorError
    from collector.experiment.names import AGGREGATIONS_FILE
    from collector.experiment.reader import open_experiment
    from collector.report.aggregations import merged
    from collector.report.build import load

    try:
        data = load([open_experiment(directory)])
        written = [_mtime_ns(experiment.path / AGGREGATIONS_FILE) for experiment in data.experiments]
        return merged(data), max(written)
    except (CollectorError, OSError):  # a descendant's directory may not be complete yet
        return [], 0


def _mtime_ns(path: Path) -> int:
    """When a file was written, on the clock of CLOCK_MONOTONIC; 0 without one."""
    try:
        return time.monotonic_ns() - (time.time_ns() - path.stat().st_mtime_ns)
    except OSError:
        return 0


def _lines(found: Sequence[Merged], top: int | None) -> list[str]:
    from collector.export.aggregation_text import listing

    return listing(found, top=top)


if __name__ == "__main__":
    main(sys.argv[1:])
