"""``er_html``: a page that shows experiments in a browser, as one file."""

from __future__ import annotations

import getopt
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from collector import __version__
from collector.cli import streams
from collector.cli.commands.session import Session
from collector.errors import CollectorError, ElfError, UsageError, shown
from collector.export.formats import ExportError, destination, given

if TYPE_CHECKING:
    from collector.export.html.content import Compared, Hot, More
    from collector.report.documents import Annotated
    from collector.report.functions import Function

USAGE = """\
Usage: er_html [-o FILE] [--compare] [--code N] [--help] [-V] EXPERIMENT...

Makes one HTML file that shows experiments (NAME.er) or groups of them (NAME.erg): where the time went in each of the
microstates, flame graphs, what every thread did when, tables with the figures of er_print. It needs no network.

  -o FILE        the file (default: named after the first experiment, in the current directory); "-": standard output
  --compare      the experiments or groups named are sides of a comparison: the first with each other one
  --code N       source and instructions of the N functions with the most CPU time (default 12; 0: none)
  -V, --version  the version
  --help         this text"""

_N_CODE = 12
_N_CODE_MAX = 200
_SUFFIX = ".html"
_STANDARD_OUTPUT = 1


@dataclass
class _Options:
    output: str = ""
    compare: bool = False
    n_code: int = _N_CODE
    show: str = ""


def run(argv: list[str]) -> int:
    """Carry out the command line; the exit status. Raises CollectorError."""
    options, arguments = _parsed(argv)
    if options.show:
        print(options.show)
        return 0
    if not arguments:
        raise UsageError("no experiment given; er_html --help shows how")
    if options.compare and len(arguments) < 2:
        raise UsageError("--compare needs two experiments or groups")
    output = options.output or _named_after(arguments[0])
    text, problems = made(arguments, options.compare, options.n_code)
    for problem in problems:
        streams.say(f"er_html: warning: {problem}")
    if output == "-" or given(output) == _STANDARD_OUTPUT:
        with destination(None) as out:
            out.write(text.encode("utf-8"))  # which the page says that it is
        return 0
    size = write(Path(output), text)
    print(f"{shown(output)}: {size / 1e6:.1f} MB; open it in a browser")
    return 0


def made(arguments: list[str], compare: bool = False, n_code: int = _N_CODE) -> tuple[str, list[str]]:
    """The page of experiments, and what was found wrong with them. Raises CollectorError."""
    from collector.cli.er_print import read_defaults
    from collector.export.html.content import packed, title
    from collector.export.html.page import page

    session = Session(arguments, with_latency=True)
    try:
        session.founders  # noqa: B018 - errors of experiments come first
        read_defaults(session, "er_html")
        data = session.data
        result = packed(data, _more(session, compare, n_code))
        return page(title(data), result.text()), [shown(problem) for problem in session.problems()]
    finally:
        session.end()


def make_after(directory: Path, output: str, say: Callable[[str], None]) -> None:
    """The page of what has just been recorded; whatever goes wrong is said, and changes nothing."""
    try:
        file = output or _named_after(str(directory))
        size = write(Path(file), made([str(directory)])[0])
        say(f"{file}: {size / 1e6:.1f} MB; open it in a browser")
    except (CollectorError, OSError, MemoryError) as err:
        say(f"--html: {err}; er_html makes the page later")


def write(path: Path, text: str) -> int:
    """The file, all of it or none; into what is no file, such as a pipe, just so. Its size. Raises UsageError."""
    content = text.encode("utf-8")
    try:
        with destination(os.fspath(path)) as file:
            file.write(content)
        return len(content)
    except ExportError as err:
        raise UsageError(f"{err}; -o gives another file") from err
    except (OSError, ValueError) as err:
        raise UsageError(f"{path}: {getattr(err, 'strerror', None) or err}; -o gives another file") from err


def _parsed(argv: list[str]) -> tuple[_Options, list[str]]:
    try:
        found, rest = getopt.gnu_getopt(argv, "o:Vh", ["compare", "code=", "help", "version"])
    except getopt.GetoptError as err:
        raise UsageError(f"{err.msg}; er_html --help shows what there is") from err
    options = _Options()
    for name, value in found:
        match name:
            case "-o":
                options.output = value
            case "--compare":
                options.compare = True
            case "--code":
                if not value.isascii() or not value.isdigit() or len(value) > 9 or int(value) > _N_CODE_MAX:
                    raise UsageError(f"--code {value}: give a number up to {_N_CODE_MAX}")
                options.n_code = int(value)
            case "-V" | "--version":
                options.show = f"er_html {__version__}"
            case _:
                options.show = USAGE
    return options, rest


def _named_after(experiment: str) -> str:
    """A file in the current directory."""
    name = os.path.basename(os.path.normpath(experiment))
    return name.removesuffix(".erg").removesuffix(".er") + _SUFFIX


def _more(session: Session, compare: bool, n_code: int) -> More:
    from collector.export.html.content import More
    from collector.report.aggregations import merged
    from collector.report.wakers import wakes_of

    assert session.data.instructions is not None
    aggregated = merged(session.whole)
    compared = _compared(session) if compare else None
    return More(aggregated, wakes_of(aggregated), list(_hot(session, n_code)), compared, session.problems())


def _compared(session: Session) -> Compared:
    """By CPU time; where there is none of it, by all columns that there are."""
    from collector.cli.commands.functions import calltree, functions
    from collector.export.html.content import Compared
    from collector.report.documents import Table, Tree
    from collector.report.metrics import parse_view

    if any(metric.command == "totalcpu" for metric in session.metrics):
        session.set_view(parse_view("e.totalcpu:i.totalcpu:name", session.every_metric))
    session.compare = "delta"
    table, tree = functions(session), calltree(session)
    assert isinstance(table, Table) and isinstance(tree, Tree)
    session.compare = "off"
    return Compared([os.path.basename(os.path.normpath(name)) for name, _ in session.groups], table, tree)


# -- the code of the functions with the most time


def _hot(session: Session, n: int) -> Iterator[Hot]:
    from collector.export.html.content import Hot
    from collector.report.tables import Labels, object_rows

    data = session.data
    labels = Labels.of_functions(data.functions)
    if not n or not any(column.flavor for column in session.view.columns):
        return
    rows = object_rows(data.stacks, session.view, labels)
    for number in rows.ids[1:].tolist():
        if not n:
            return
        function = data.functions[number]
        source, instructions = _listings(session, function) if function.has_offsets else (None, None)
        if source is not None or instructions is not None:
            n -= 1
            yield Hot(function.name, source, instructions)


def _listings(session: Session, function: Function) -> tuple[Annotated | None, Annotated | None]:
    """Source and instructions of a function, as far as there are any."""
    from collector.report.annotated import target_of
    from collector.report.listings import instruction_listing, source_listing

    data = session.data
    target = target_of(data, function)
    if target is None or (target.loaded.file is None and function.text is None):
        return None, None
    newer = min(experiment.log.start_unix + 1 for experiment in session.experiments)
    source = instructions = None
    with suppress(CollectorError, ElfError):
        instructions = instruction_listing(data, target, session.view, newer)
    with suppress(CollectorError, ElfError):
        source = source_listing(data, target, session.view, newer)
    return source, instructions
