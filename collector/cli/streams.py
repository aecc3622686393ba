"""Standard streams as they are given to us: perhaps closed, full, or without a reader any more.

A descriptor that is closed gets the first file that somebody opens: an experiment's, which a message would then be
written into. So it is held shut by /dev/null, opened the wrong way round, so that what is lost is noticed; and until an
exec, so that programs that we start find it as we did.
"""

from __future__ import annotations

import io
import os
import select
import sys
from contextlib import suppress
from typing import TextIO

from collector.errors import CollectorError, ExpressionError, shown


def hold() -> None:
    """Makes sure that descriptors 0 to 2 and both streams are there, and take any text."""
    for fd, mode in enumerate((os.O_WRONLY, os.O_RDONLY, os.O_WRONLY)):  # what stderr says may be lost
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, mode)  # the lowest that is free: this one
    sys.stdout = sys.stdout or _writer(1)  # Python has none where the descriptor was closed
    sys.stderr = sys.stderr or _writer(2)
    make_tolerant(sys.stdout)


def make_tolerant(stream: TextIO) -> None:
    """Let a stream whose encoding lacks a character write an escape instead of failing; Python's stderr does."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")


class NobodyReads(BrokenPipeError):
    """Who read the standard output has seen enough."""


def flush() -> None:
    """Writes what has been printed. Raises OSError; what could not be written is dropped then."""
    try:
        sys.stdout.flush()
    except BrokenPipeError as err:
        _give_up(sys.stdout)
        raise NobodyReads(*err.args) from None
    except OSError:
        _give_up(sys.stdout)
        raise


def is_unread(error: BrokenPipeError) -> bool:
    """Whether it is the standard output that nobody reads, not another file that was written."""
    if isinstance(error, NobodyReads):
        return True
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return bool(poll.poll(0))


def say(text: str) -> None:
    """One line on stderr, whatever bytes a name in it may hold, and whether or not anybody can read it."""
    try:
        print(shown(text), file=sys.stderr, flush=True)
    except OSError:
        _give_up(sys.stderr)


def say_error(where: str, error: CollectorError) -> None:
    """An error, in one line; that of an expression in three."""
    text = f"{where}: {error}"
    for line in text.split("\n") if isinstance(error, ExpressionError) else [text]:
        say(line)


def _give_up(stream: TextIO) -> None:
    """Lets a stream keep nothing that Python would try to write again at its end."""
    with suppress(OSError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno(), inheritable=False)
        os.close(null)
        stream.flush()


def _writer(fd: int) -> TextIO:
    return open(fd, "w", closefd=False, errors="backslashreplace")
