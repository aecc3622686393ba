"""Errors that a user may see, each with the exit status of the command that ends with it.

Only ``cli/main.py`` catches them: it prints ``command: message`` as one line and exits with ``exit_status``. A message
says what is wrong and what to do about it. Inside a room errors keep their own names; they change at the door
(``OSError`` in ``linux`` becomes ``TargetGone`` in ``session``).
"""

from __future__ import annotations

import errno
import os

NO_MEMORY = "there is not enough memory: raise the limit (ulimit -v; of a container or service, its memory)"
NO_DESCRIPTORS = "too many open files: raise the limit (ulimit -n)"
NO_TASKS = ("there is no room for another process or thread of this user: raise the limit (ulimit -u; of a container "
            "or service, its limit of tasks)")
_NO_ROOM = {errno.EMFILE: NO_DESCRIPTORS, errno.EAGAIN: NO_TASKS, errno.ENOMEM: NO_MEMORY,
            errno.ENFILE: "too many open files on this machine: raise the limit (sysctl fs.file-max)"}
# Files that are read have names.
_UNWRITABLE = {errno.EBADF, errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}


class CollectorError(Exception):
    """Base of all errors meant for the user. ``exit_status`` is what the command exits with."""

    exit_status = 1


class UsageError(CollectorError):
    """The command line cannot be understood or asks for something impossible."""

    exit_status = 2


class ProgramNotFound(CollectorError):
    """The program to run does not exist (the shell's status for it)."""

    exit_status = 127


class ProgramNotExecutable(CollectorError):
    """The program exists but the kernel will not run it (the shell's status for it)."""

    exit_status = 126


class TargetGone(CollectorError):
    """The process to profile has exited or its PID belongs to somebody else by now."""


class EngineRefused(CollectorError):
    """The kernel does not allow the engine asked for; the message says what would."""


class ExperimentError(CollectorError):
    """An experiment cannot be created, written or read."""


class ElfError(CollectorError):
    """A file is not ELF, or is damaged where it was read."""


class NoDescriptors(CollectorError):
    """No more files can be opened: nothing is known of those that were to be."""


class FormatError(ExperimentError):
    """Bytes on disk do not follow the experiment format; the message names file and offset."""


class AggregationError(CollectorError):
    """An aggregation cannot be made or filled as asked for; the message says what would do."""


class EmptyAggregate(AggregationError):
    """A statistic was asked for that no values have (the smallest of none)."""


class TracedDataError(AggregationError):
    """Bytes do not follow DTrace's layout of traced data; the message names the record and the bytes."""


class ExpressionError(UsageError):
    """An aggregation's expression cannot be understood.

    The text is one line that says why, and below it the expression with a caret under the mistake.
    """

    def __init__(self, reason: str, expression: str, position: int) -> None:
        said, shown = ("".join(each if each.isprintable() else " " for each in text) for text in (reason, expression))
        super().__init__(f"{said}\n{shown}\n{' ' * position}^")
        self.reason = reason
        self.expression = expression
        self.position = position


def reason(err: BaseException) -> str:
    """What went wrong and what to do, in one line; for errors that are not made for the user, too."""
    if isinstance(err, MemoryError):
        return NO_MEMORY
    if isinstance(err, ImportError):
        while isinstance(err.__cause__, ImportError):  # libraries put pages of advice around what happened
            err = err.__cause__
        return f"{err}: is there too little memory (ulimit -v), or are too many files open (ulimit -n)?"
    if not isinstance(err, OSError):
        return str(err) if isinstance(err, CollectorError) else f"internal error, {err!r}"
    if err.errno in _NO_ROOM:
        return _NO_ROOM[err.errno]
    if err.filename is None and err.errno in _UNWRITABLE:
        return f"what was printed is not complete: write error: {err.strerror}"
    return f"{err.filename or 'input/output'}: {err.strerror or err}"


def shown(path: str | os.PathLike[str]) -> str:
    """A path, or any text, as one line that a terminal shows as it is: control characters, and bytes that are no UTF-8,
    become escapes.
    """
    text = os.fspath(path)
    if text.isprintable():  # most are; surrogates are not
        return text
    text = text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
