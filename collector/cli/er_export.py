"""``er_export``: experiments in the formats of other tools."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, NoReturn

from collector import __version__
from collector.cli import streams
from collector.cli.commands.session import Session, is_on
from collector.errors import UsageError
from collector.export.formats import FORMATS, ExportError, destination, format_called

if TYPE_CHECKING:
    from collector.report.samples import Samples

_SELECTIONS = ("thread", "lwp", "cpu", "sample")
_WIDTH = 11

USAGE = f"""\
Usage: er_export FORMAT EXPERIMENT... [-o FILE] [options]

Writes what experiments (NAME.er) and experiment groups (NAME.erg) hold in the format of another tool:
{"".join(f"  {one.name.ljust(_WIDTH)}{one.help}{chr(10)}" for one in FORMATS.values())}
  -o FILE            the file to write; without it, or with -, the standard output
  -metric NAME       collapsed: what counts, such as user, totalcpu, sleep (default: total, all time)
  -by_thread         collapsed, speedscope: threads apart
  -lines on|off      places in source files (default: on)
  -inlines on|off    inlined functions as frames of their own (default: off, as er_print)
  -filters EXPR      only packets for which it is true, as in er_print
  -thread_select LIST, -lwp_select, -cpu_select, -sample_select
                     only these, as in er_print
  --help             this text
  --version          the version

Figures are those of er_print, whose files of defaults (.gprofng.rc) hold, too. Stacks that were cut have a frame
[truncated] or [unwind failed] at their root, packets without a stack the frame [no stack]."""


def run(argv: list[str]) -> int:
    """Carry out the command line; the exit status. Raises CollectorError."""
    if not argv or any(argument in ("--help", "-h", "-help") for argument in argv):
        print(USAGE)
        return 0 if argv else 2
    if any(argument in ("--version", "-V", "-version") for argument in argv):
        print(f"er_export {__version__}")
        return 0
    asked = _parsed(argv)
    wanted = format_called(asked.format)
    if not asked.experiments:
        raise UsageError("no experiment given; er_export --help shows how")
    if asked.o is None and not wanted.is_text and sys.stdout.isatty():
        raise UsageError(f"{wanted.name} is nothing for a terminal: give -o FILE{wanted.suffix}")
    session = Session(asked.experiments)
    try:
        _export(session, asked)
    finally:
        for problem in session.problems():
            streams.say(f"er_export: warning: {problem}")
    return 0


def _export(session: Session, asked: argparse.Namespace) -> None:
    from collector.export.choices import Choices, chosen

    write = format_called(asked.format).writer()
    samples = _samples(session, asked)
    choices = Choices(asked.metric, asked.by_thread)
    chosen(samples, choices.metric)
    with destination(asked.o) as out:
        write(samples, out, choices)


def _samples(session: Session, asked: argparse.Namespace) -> Samples:
    """The packets that are wanted."""
    from collector.cli.er_print import read_defaults
    from collector.report.samples import Samples

    session.founders  # noqa: B018 - errors of experiments come first
    read_defaults(session, "er_export")
    if asked.filters:
        session.selection.set_filter(asked.filters)
    for kind in _SELECTIONS:
        if wanted := getattr(asked, f"{kind}_select"):
            session.selection.select(kind, wanted)
    with_inlines = is_on("inlines", asked.inlines) if asked.inlines else session.inlines
    return Samples(session.data, is_on("lines", asked.lines), with_inlines)


class _Parser(argparse.ArgumentParser):
    """One that raises what ``main`` catches."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; er_export --help shows how")


def _parsed(argv: list[str]) -> argparse.Namespace:
    parser = _Parser(prog="er_export", add_help=False, allow_abbrev=False)
    parser.add_argument("format")
    parser.add_argument("experiments", nargs="*")
    parser.add_argument("-o")
    parser.add_argument("-by_thread", "--by_thread", action="store_true")
    for name, default in (("metric", ""), ("lines", "on"), ("inlines", ""), ("filters", ""), *((f"{kind}_select", "")
                                                                             for kind in _SELECTIONS)):
        parser.add_argument(f"-{name}", f"--{name}", default=default)
    asked = parser.parse_intermixed_args(argv)
    asked.o = None if asked.o == "-" else asked.o
    return asked


__all__ = ["ExportError", "run"]
