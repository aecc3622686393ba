"""``er_top``: the live view of an experiment that is being recorded, on a terminal or as snapshots of text."""

from __future__ import annotations

import getopt
import os
from dataclasses import dataclass, replace
from pathlib import Path

from collector import __version__
from collector.cli.top.keys import seconds
from collector.cli.top.settings import DELAY_MAX_S, DELAY_MIN_S, VIEWS, WINDOW_MAX_S, Settings
from collector.errors import UsageError
from collector.experiment.names import SUFFIX
from collector.session.control import is_number

_SHORT = "bn:d:w:o:p:cil:hV"
_LONG = ["help", "version", "engine=", "view="]

USAGE = """\
usage: er_top [options] EXPERIMENT
       er_top [options] PID
       er_top [options] -- program [arguments]

Shows functions, threads and states of an experiment that is being recorded, as time goes by. Of a process or a program
it starts `collect`, which records into a temporary experiment. That ends with the view, and so does a program that was
started. The key h tells the keys.

  -d SECONDS      between looks (default 1)
  -n COUNT        so many looks
  -w SECONDS      shows the last SECONDS (up to 60) instead of the last interval
  -c              shows all since the start
  -i              without threads that did not run
  --view VIEW     functions (default), threads or states; of text several: functions,threads
  -b              text: a snapshot per look, also if standard output is no terminal
  -l N            of text: at most N rows of each table
  -o NAME.er      keeps the experiment
  -p INTERVAL     clock interval of collect
  --engine ENGINE engine of collect
  -V, --version   the version
  -h, --help      this text

The exit status is the program's own, where er_top started one.
"""


@dataclass(frozen=True)
class Options:
    """What the command line says. Of ``path``, ``pid`` and ``program`` there is one."""

    path: Path | None = None
    pid: int = 0
    program: tuple[str, ...] = ()
    is_batch: bool = False
    count: int = 0
    limit: int = 0
    name: str | None = None
    collect: tuple[str, ...] = ()
    views: tuple[str, ...] = ()


def run(argv: list[str]) -> int:
    """Carry out the command line; the exit status. Raises CollectorError."""
    settings = Settings()
    options = parse(argv, settings)
    if options is None:
        return 0
    from collector.cli.top.loop import Loop  # with everything that takes its time

    return Loop(options, settings).run()


def parse(argv: list[str], settings: Settings) -> Options | None:
    """The options; those of the view go into ``settings``. None where a text was asked for, which has been printed."""
    try:
        pairs, arguments = getopt.getopt(argv, _SHORT, _LONG)
    except getopt.GetoptError as error:
        raise UsageError(f"{error.msg}; see er_top --help") from None
    options = Options()
    for option, value in pairs:
        if option in ("-h", "--help"):
            print(USAGE, end="")
            return None
        if option in ("-V", "--version"):
            print(f"er_top {__version__}")
            return None
        options = _with(options, settings, option, value)
    separator = len(argv) - len(arguments) - 1
    if separator >= 0 and argv[separator] == "--":
        options = replace(options, program=_program(arguments))
    else:
        options = _of_what(options, arguments)
    if options.path is not None and (options.name or options.collect):
        raise UsageError("-o, -p and --engine go with a process or a program: an experiment is recorded already")
    return options


def _with(options: Options, settings: Settings, option: str, value: str) -> Options:
    match option:
        case "-b":
            return replace(options, is_batch=True)
        case "-n":
            return replace(options, count=_number(option, value))
        case "-l":
            return replace(options, limit=_number(option, value))
        case "-o":
            return replace(options, name=value)
        case "-p" | "--engine":
            return replace(options, collect=(*options.collect, option, value))
        case "--view":
            views = tuple(value.split(","))
            if not set(views) <= set(VIEWS):
                raise UsageError(f"--view {value}: give some of {', '.join(VIEWS)}")
            settings.view = views[0]
            return replace(options, views=views)
        case "-d":
            settings.delay_s = seconds(option, value, DELAY_MIN_S, DELAY_MAX_S)
        case "-w":
            settings.window_s = seconds(option, value, 0, WINDOW_MAX_S)
        case "-c":
            settings.is_cumulative = True
        case "-i":
            settings.hides_idle = True
    return options


def _number(option: str, value: str) -> int:
    if not is_number(value) or not 1 <= int(value) <= 1_000_000_000:
        raise UsageError(f"{option} {value}: give a number from 1")
    return int(value)


def _program(arguments: list[str]) -> tuple[str, ...]:
    if not arguments:
        raise UsageError("-- without a program behind it; see er_top --help")
    return tuple(arguments)


def _of_what(options: Options, arguments: list[str]) -> Options:
    if len(arguments) != 1:
        raise UsageError("give one experiment, one PID, or -- and a program; see er_top --help")
    word = arguments[0]
    if is_number(word):
        if int(word) == os.getpid():
            raise UsageError(f"{word} is er_top itself")
        return replace(options, pid=int(word))
    if not word.rstrip("/").endswith(SUFFIX) and not os.path.isdir(word):
        raise UsageError(f"{word}: neither an experiment (NAME{SUFFIX}) nor a PID; a program is started by -- {word}")
    return replace(options, path=Path(word))
