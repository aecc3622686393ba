"""The entry points of the commands, and the one place where errors become a line and an exit status."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable

from collector.cli import streams
from collector.errors import CollectorError, ExpressionError, reason

# What is imported stays, and most of it is imported before the first line is printed: looking for garbage every 700
# objects meanwhile is a tenth of er_print's start.
_OBJECTS_PER_COLLECTION = 100_000


def collect() -> int:
    """The command ``collect``."""
    def run(argv: list[str]) -> int:
        from collector.cli.collect import run

        return run(argv)

    return _guarded("collect", run)


def collectord() -> int:
    """The command ``collectord``."""
    def run(argv: list[str]) -> int:
        _check_service()
        from collector.cli.collectord import run

        return run(argv)

    return _guarded("collectord", run)


def collectctl() -> int:
    """The command ``collectctl``."""
    def run(argv: list[str]) -> int:
        _check_service()
        from collector.cli.collectctl import run

        return run(argv)

    return _guarded("collectctl", run)


def _check_service() -> None:
    """The service has libraries that recording and reading do not need."""
    from importlib.util import find_spec

    lacking = [name for name in ("msgspec", "re2", "prometheus_client") if find_spec(name) is None]
    if lacking:
        raise CollectorError(f"{' and '.join(lacking)} cannot be found: install the project with the libraries of the "
                             "service, pip install '.[service]'")


def er_archive() -> int:
    """The command ``er_archive``."""
    def run(argv: list[str]) -> int:
        _forgo_threads()
        from collector.cli.er_archive import run

        return run(argv)

    return _guarded("er_archive", run)


def er_export() -> int:
    """The command ``er_export``."""
    def run(argv: list[str]) -> int:
        _forgo_threads()
        from collector.cli.er_export import run

        return run(argv)

    return _guarded("er_export", run)


def er_html() -> int:
    """The command ``er_html``."""
    def run(argv: list[str]) -> int:
        _forgo_threads()
        from collector.cli.er_html import run

        return run(argv)

    return _guarded("er_html", run)


def er_print() -> int:
    """The command ``er_print``."""
    def run(argv: list[str]) -> int:
        _forgo_threads()
        gc.set_threshold(_OBJECTS_PER_COLLECTION)
        from collector.cli.er_print import run

        return run(argv)

    return _guarded("er_print", run)


def er_top() -> int:
    """The command ``er_top``."""
    def run(argv: list[str]) -> int:
        _forgo_threads()
        from collector.cli.er_top import run

        return run(argv)

    return _guarded("er_top", run)


def _forgo_threads() -> None:
    """None of numpy's linear algebra, which we do not use: they start with its import, and spin as long as it takes."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def _guarded(name: str, run: Callable[[list[str]], int]) -> int:
    streams.hold()
    try:
        try:
            return run(sys.argv[1:])
        finally:
            streams.flush()
    except ExpressionError as err:
        for line in f"{name}: {err}".split("\n"):
            streams.say(line)
        return err.exit_status
    except CollectorError as err:
        streams.say(f"{name}: {err}")
        return err.exit_status
    except BrokenPipeError:  # the reader of our output (head, less) has seen enough
        return 0
    except KeyboardInterrupt:
        return 130
    except (MemoryError, ImportError, OSError) as err:
        streams.say(f"{name}: {reason(err)}")
        return 1
