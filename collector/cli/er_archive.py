"""``er_archive``: copies load objects and sources into an experiment, so that it can be read anywhere and later."""

from __future__ import annotations

import getopt
from dataclasses import dataclass

from collector import __version__
from collector.cli import streams
from collector.errors import UsageError

_CHOICES = ("off", "on", "all", "ldobjects", "usedldobjects", "src", "usedsrc")

USAGE = f"""\
Usage: er_archive [-a {'|'.join(_CHOICES)}] [-F] [-n] [-q] [-v] [--help] [-V] EXPERIMENT

Copies what the experiment needs to be read elsewhere or later into the founder's archives directory.
  -a, -A CHOICE  on, ldobjects (default): all load objects; usedldobjects: those with samples;
                 usedsrc: these and their sources; src, all: all load objects and sources; off: nothing
  -F             replace copies that are there already; copy sources that were edited since, too
  -n             say what would be copied, copy nothing
  -q             say nothing but errors
  -v             name every file
  -V, --version  the version
  --help         this text"""


@dataclass
class _Options:
    choice: str = "on"
    force: bool = False
    dry_run: bool = False
    quiet: bool = False
    verbose: bool = False
    show: str = ""


def run(argv: list[str]) -> int:
    """Carry out the command line; the exit status: 1 if something could not be copied. Raises CollectorError."""
    options, experiments = _parsed(argv)
    if options.show:
        print(options.show)
        return 0
    if len(experiments) != 1:
        raise UsageError("give one experiment; er_archive --help shows how")
    from collector.experiment.archive import archive
    from collector.experiment.reader import open_experiment

    experiment = open_experiment(experiments[0])
    report = archive(experiment, options.choice, options.force, options.dry_run)
    read = experiment.family if options.choice != "off" else (experiment,)
    problems = [*(problem for one in read for problem in one.problems), *report.problems]
    for problem in problems:
        streams.say(f"er_archive: {problem}")
    if not options.quiet:
        _tell(options, [copy.source for copy in report.copied], report.kept)
    return 1 if problems else 0


def _parsed(argv: list[str]) -> tuple[_Options, list[str]]:
    try:
        found, rest = getopt.gnu_getopt(argv, "a:A:FnqvVh", ["help", "version"])
    except getopt.GetoptError as err:
        raise UsageError(f"{err.msg}; er_archive --help shows what there is") from err
    options = _Options()
    for name, value in found:
        if name in ("-a", "-A"):
            if value not in _CHOICES:
                raise UsageError(f"{name} {value}: give one of {', '.join(_CHOICES)}")
            options.choice = value
        elif name in _SHOWN:
            options.show = _SHOWN[name]
        else:
            setattr(options, _FLAGS[name], True)
    return options, rest


def _tell(options: _Options, copied: list[bytes], kept: list[bytes]) -> None:
    from collector.export.text import printable

    verb = "would copy" if options.dry_run else "copied"
    if options.verbose or options.dry_run:
        for source in copied:
            print(f"{verb} {printable(source)}")
        for source in kept:
            print(f"kept {printable(source)}")
    print(f"{verb} {len(copied)} file{'s' if len(copied) != 1 else ''}, {len(kept)} already there")


_FLAGS = {"-F": "force", "-n": "dry_run", "-q": "quiet", "-v": "verbose"}
_SHOWN = {"--help": USAGE, "-h": USAGE, "--version": f"er_archive {__version__}", "-V": f"er_archive {__version__}"}
