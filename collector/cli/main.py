"""The entry points of the commands, and the one place where errors become a line and an exit status."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from importlib import import_module

from collector.cli import streams
from collector.errors import CollectorError, reason

# What is imported stays, and most of it is imported before the first line is printed: looking for garbage every 700
# objects meanwhile is a tenth of their start.
_OBJECTS_PER_COLLECTION = 100_000


def _check_service() -> None:
    """The service has libraries that recording and reading do not need."""
    from importlib.util import find_spec

    lacking = [name for name in ("msgspec", "re2", "prometheus_client") if find_spec(name) is None]
    if lacking:
        raise CollectorError(f"{' and '.join(lacking)} cannot be found: install the project with the libraries of the "
                             "service, pip install '.[service]'")


def _note_interrupts() -> None:
    """A recording that has not begun yet is not to begin."""
    from collector import interrupts

    interrupts.note()


def _forgo_threads() -> None:
    """None of numpy's linear algebra, which we do not use: they start with its import, and spin as long as it takes."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def _open_many_files() -> None:
    """Each load object that has lines or instructions to show needs a descriptor, its debug file another."""
    from collector.limits import raise_descriptor_limit

    raise_descriptor_limit()


def _keep_garbage() -> None:
    gc.set_threshold(_OBJECTS_PER_COLLECTION)


def _command(name: str, *before: Callable[[], None]) -> Callable[[], int]:
    """The entry point of ``collector.cli.NAME``, which is imported when all of ``before`` is done."""
    def run(argv: list[str]) -> int:
        for step in before:
            step()
        carry_out: Callable[[list[str]], int] = import_module(f"collector.cli.{name}").run
        return carry_out(argv)

    return lambda: _guarded(name, run)


def _guarded(name: str, run: Callable[[list[str]], int]) -> int:
    streams.hold()
    try:
        try:
            return run(sys.argv[1:])
        finally:
            streams.flush()
    except CollectorError as err:
        streams.say_error(name, err)
        return err.exit_status
    except BrokenPipeError as err:
        if streams.is_unread(err):  # by head, less and the like
            return 0
        streams.say(f"{name}: {reason(err)}")
        return 1
    except KeyboardInterrupt:
        return 130
    except (MemoryError, ImportError, OSError) as err:
        streams.say(f"{name}: {reason(err)}")
        return 1


# name, and what comes first
collect = _command("collect", _note_interrupts)
collectord = _command("collectord", _check_service)
collectctl = _command("collectctl", _check_service, _keep_garbage)
er_archive = _command("er_archive", _forgo_threads)
er_export = _command("er_export", _forgo_threads, _open_many_files)
er_html = _command("er_html", _forgo_threads, _open_many_files)
er_print = _command("er_print", _forgo_threads, _open_many_files, _keep_garbage)
er_top = _command("er_top", _forgo_threads)
