"""``collect --export FORMAT[=FILE]``, ``--html[=FILE]``: the experiment in other formats, or as a page, when the
recording of it is over and closed.

Each export is a process of its own, ``er_export`` as a user would run it: nothing of it is imported before, and
whatever happens to it, the experiment is there, and the status is the program's. One that fails is one line.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from collector.errors import UsageError
from collector.installed import command

# As in export.formats, which is not imported while the target waits; a test compares them.
SUFFIXES = {"pprof": ".pprof.pb.gz", "speedscope": ".speedscope.json", "firefox": ".firefox.json",
            "collapsed": ".collapsed.txt", "perfetto": ".perfetto-trace", "callgrind": ".callgrind.out",
            "json": ".profile.json", "parquet": ".parquet", "otlp": ".otlp.pb"}
_INTERRUPTED = 130  # what commands of ours return then


def format_and_file(text: str) -> tuple[str, str]:
    """``FORMAT[=FILE]``; without a file, an empty one. Raises UsageError."""
    name, equals, path = text.partition("=")
    if name not in SUFFIXES or (equals and not path):
        raise UsageError(f"--export {text}: give FORMAT or FORMAT=FILE, with one of the formats {', '.join(SUFFIXES)}")
    return name, path


@contextmanager
def exporting(directory: Path, exports: Sequence[tuple[str, str]], say: Callable[[str], None]) -> Iterator[None]:
    """At the end writes ``exports`` (format, file) of the experiment in ``directory``; without a file, beside it."""
    yield
    if not directory.is_dir():  # nothing was recorded, which has been said
        return
    for name, path in exports:
        beside = directory.with_name(directory.name.removesuffix(".er") + SUFFIXES[name])
        again = f"er_export {name} {directory} does it again"
        try:
            status = _run(name, directory, path or str(beside))
        except OSError as err:
            say(f"--export {name}: {err.strerror}; {again}")
            continue
        if status < 0 or status == _INTERRUPTED:
            say(f"--export {name}: interrupted; {again}")
            return


@contextmanager
def making_a_page(directory: Path, path: str, say: Callable[[str], None]) -> Iterator[None]:
    """At the end makes the page of the experiment in ``directory``, as er_html does; without a file, in the current
    directory."""
    yield
    if directory.is_dir():
        from collector.cli.er_html import make_after

        make_after(directory, path, say)


def _run(name: str, directory: Path, path: str) -> int:
    """Runs ``er_export``, which says what is to be said; the exit status. Whoever wants us to end means it, and
    the program if that runs on."""
    words = [*command("er_export"), name, str(directory.absolute()), "-o", path]
    pid = os.posix_spawn(words[0], words, os.environ, setsigmask=())

    before = {int(number): handler for number in (signal.SIGTERM, signal.SIGHUP)
              if (handler := signal.getsignal(number)) is not signal.SIG_IGN}

    def hand_on(number: int, frame: FrameType | None) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
        if callable(handler := before[number]):
            handler(number, frame)

    for number in before:
        signal.signal(number, hand_on)
    blocked = signal.pthread_sigmask(signal.SIG_UNBLOCK, before)
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        for number, handler in before.items():
            signal.signal(number, handler)
