"""The entry points of the commands, and the one place where errors become a line and an exit status."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from collector.errors import CollectorError


def collect() -> int:
    """The command ``collect``."""
    from collector.cli.collect import run

    return _guarded("collect", run)


def er_archive() -> int:
    """The command ``er_archive``."""
    from collector.cli.er_archive import run

    return _guarded("er_archive", run)


def er_print() -> int:
    """The command ``er_print``."""
    from collector.cli.er_print import run

    return _guarded("er_print", run)


def _guarded(name: str, run: Callable[[list[str]], int]) -> int:
    try:
        status = run(sys.argv[1:])
        sys.stdout.flush()
        return status
    except CollectorError as err:
        _say(f"{name}: {err}")
        return err.exit_status
    except BrokenPipeError:  # the reader of our output (head, less) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
    except OSError as err:
        _say(f"{name}: {err.filename or 'input/output'}: {err.strerror or err}")
        return 1


def _say(text: str) -> None:
    """One line on stderr, whatever bytes a name in it may hold."""
    from collector.experiment.names import shown

    print(shown(text), file=sys.stderr)
