"""``er_print``: the reports of experiments as text, in the language of the Performance Analyzer's er_print.

Commands are carried out from left to right, so what is set (``-metrics``, ``-limit``, ``-outfile``) holds for what
follows. Arguments that are no commands are experiments, wherever they stand; they are opened before the first command.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TextIO

from collector import __version__
from collector.errors import ExperimentError, UsageError

if TYPE_CHECKING:
    import numpy.typing as npt

    from collector.experiment.reader import Experiment
    from collector.report.aggregations import Merged
    from collector.report.build import DataSet
    from collector.report.functions import Function
    from collector.report.metrics import Metric, View
    from collector.report.profile import I8, Weighted
    from collector.report.tables import Labels, Rows

    Packets = npt.NDArray[Any]

_GROUP_SUFFIX = ".erg"
_GROUP_HEAD = "#analyzer experiment group"
_ALL = "all"
_NAME = "[NAME]"
_STYLE, _TOP = "--style dtrace|stap", "--top N"
_SCRIPTS_MAX = 16  # within each other
_DIGITS_MAX = 18


@dataclass
class Session:
    """What commands act on: the experiments, and what earlier commands have set."""

    arguments: list[str]
    limit: int = 0
    inlines: bool = False
    naming: str = "long"
    with_object: bool = False
    out: TextIO = field(default_factory=lambda: sys.stdout)
    aggregated: list[Experiment] = field(default_factory=list)  # those whose aggregations were read
    _views: dict[str, View] = field(default_factory=dict)

    @cached_property
    def founders(self) -> list[Experiment]:
        """The experiments given, group files replaced by their members."""
        from collector.experiment.reader import open_experiment

        if not self.arguments:
            raise UsageError("no experiment given; er_print --help shows how")
        paths = dict.fromkeys(path for argument in self.arguments for path in _members(argument))
        return [open_experiment(path) for path in paths]

    @cached_property
    def data(self) -> DataSet:
        """Founders and descendants as one."""
        from collector.report.build import load

        return load(self.founders)

    @property
    def experiments(self) -> list[Experiment]:
        """Founders, each followed by its descendants."""
        return self.data.experiments

    def problems(self) -> list[str]:
        """What was found wrong with what has been read so far."""
        read: list[Experiment] = self.__dict__.get("founders", [])
        if "data" in self.__dict__:
            read = [*read, *self.data.experiments]
        read = [*read, *self.aggregated]
        return list(dict.fromkeys(problem for experiment in read for problem in experiment.problems))

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """What there is data for."""
        return self.data.metrics

    @property
    def view(self) -> View:
        """The columns of function lists and their order."""
        return self.derived("ei")

    def derived(self, flavors: str) -> View:
        """The columns for function lists (``ei``), callers and callees (``a``), threads and the like (``e``)."""
        if not self._views:
            self.set_view(_default_view(self.metrics))
        return self._views[flavors]

    def set_view(self, view: View) -> None:
        """New columns everywhere."""
        from collector.report.metrics import NAME, with_flavor

        self._views = {"ei": view, "a": with_flavor(view, "a"), "e": with_flavor(view, "e", (NAME,))}

    def set_sort(self, spec: str) -> None:
        """Another order of function lists, and of the other tables where they have such a column."""
        from collector.report.metrics import parse_sort

        self._views["ei"] = parse_sort(spec, self.view)
        for flavors in ("a", "e"):
            with suppress(UsageError):
                self._views[flavors] = parse_sort(spec, self._views[flavors], flavors)

    def say(self, lines: Iterable[str]) -> None:
        """Print lines."""
        for line in lines:
            print(line, file=self.out)


@dataclass(frozen=True)
class Command:
    """A command: what it takes, what it does. What may be left out is in brackets: ``all`` and a number or a name.

    ``options`` may stand behind it, ``--NAME VALUE``.
    """

    name: str
    argument: str
    help: str
    act: Callable[..., None]
    alias: str = ""
    options: tuple[str, ...] = ()


class Call(NamedTuple):
    """A command of the command line, with what it was given."""

    command: Command
    arguments: list[str]
    options: dict[str, str]


def run(argv: list[str]) -> int:
    """Carry out the command line; the exit status. Raises CollectorError."""
    if not argv or any(argument in ("--help", "-h", "-help") for argument in argv):
        _print_help()
        return 0 if argv else 2
    if any(argument in ("--version", "-V", "-version") for argument in argv):
        print(f"er_print {__version__}")
        return 0
    from collector.export.text import make_tolerant

    calls, experiments = _parsed(argv)
    make_tolerant(sys.stdout)
    session = Session(experiments)
    if not calls:
        raise UsageError("nothing to print; give a command such as -functions (er_print --help lists them)")
    try:
        session.founders  # noqa: B018 - errors of experiments come first
        for call in calls:
            call.command.act(session, *call.arguments, **call.options)
    finally:
        _close(session)
        _warn(session)
    return 0


def _warn(session: Session) -> None:
    """What was found wrong with the experiments, and how much of them was skipped."""
    from collector.experiment.names import shown

    for problem in session.problems():
        print(f"er_print: warning: {shown(problem)}", file=sys.stderr)


def _parsed(argv: Sequence[str], scripts: tuple[str, ...] = ()) -> tuple[list[Call], list[str]]:
    """Commands with their arguments, and the rest: experiments."""
    calls: list[Call] = []
    experiments: list[str] = []
    waiting = list(argv)[::-1]
    while waiting:
        word = waiting.pop()
        if not word.startswith("-") or word == "-":
            experiments.append(word)
            continue
        call = _call(find_command(word[1:], word), word, waiting)
        if call.command.act is _script:
            calls += _script_calls(call.arguments[0], scripts)
        else:
            calls.append(call)
    return calls, experiments


def _call(command: Command, word: str, waiting: list[str]) -> Call:
    """``command`` with what is its own of the words behind it, the next one last. UsageError."""
    call, names = Call(command, [], {}), [option.partition(" ")[0] for option in command.options]
    may_be = _is_aggregation if command.argument == _NAME else _is_number
    if command.argument and not command.argument.startswith("["):
        call.arguments.append(_value(word, command.argument, waiting))
    while waiting:
        name, sign, value = waiting[-1].partition("=")
        if name in names:
            waiting.pop()
            wanted = command.options[names.index(name)].partition(" ")[2]
            call.options[name.removeprefix("--")] = value if sign else _value(name, wanted, waiting)
        elif command.argument.startswith("[") and not call.arguments and (name == _ALL or may_be(waiting[-1])):
            call.arguments.append(waiting.pop())
        else:
            break
    return call


def _value(word: str, wanted: str, waiting: list[str]) -> str:
    if not waiting:
        raise UsageError(f"{word} needs an argument: {wanted}")
    return waiting.pop()


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX


def _is_aggregation(word: str) -> bool:
    """Whether it may be the name of one; those of experiments and groups have a dot in them."""
    return word.removeprefix("@").isidentifier()


def find_command(text: str, word: str) -> Command:
    """The command that ``text`` names, in full or by a beginning that no other has. Raises UsageError."""
    for command in COMMANDS:
        if text and text in (command.name, command.alias):
            return command
    found = [command for command in COMMANDS
             if text and (command.name.startswith(text) or command.alias.startswith(text))]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(f"{word} may be {' or '.join(command.name for command in found)}; say more of it")
    raise UsageError(f"{word}: no such command; er_print --help lists them")


def _script_calls(path: str, outer: tuple[str, ...]) -> list[Call]:
    """The commands of a file, one a line; empty lines and those that begin with # say nothing.

    ``outer``: the scripts that are being read, this one among their commands.
    """
    try:
        file = os.path.realpath(path)
        if file in outer:
            raise UsageError(f"-script {path}: the script runs itself; take the command out of {outer[-1]}")
        if len(outer) >= _SCRIPTS_MAX:
            raise UsageError(f"-script {path}: more than {_SCRIPTS_MAX} scripts within each other")
        lines = Path(path).read_text("utf-8", "surrogateescape").splitlines()
    except (OSError, ValueError) as err:
        raise UsageError(f"-script {path}: {getattr(err, 'strerror', None) or err}") from err
    calls = []
    for words in (line.split() for line in lines if line.strip() and not line.lstrip().startswith("#")):
        words[0] = "-" + words[0].removeprefix("-")
        found, rest = _parsed(words, (*outer, file))
        if rest:
            raise UsageError(f"-script {path}: {' '.join(rest)!r} cannot be understood")
        calls += found
    return calls


def _members(argument: str) -> list[str]:
    """An experiment, or the members of a group file: from here, else from where the file lies."""
    if not argument.endswith(_GROUP_SUFFIX):
        return [argument]
    try:
        lines = Path(argument).read_text("utf-8", "surrogateescape").splitlines()
    except OSError as err:
        raise ExperimentError(f"{argument}: {err.strerror}") from err
    if not lines or not lines[0].startswith(_GROUP_HEAD):
        raise ExperimentError(f"{argument}: not an experiment group; its first line must be {_GROUP_HEAD!r}")
    names = [line.split()[0] for line in lines if line.strip() and not line.startswith("#")]
    if not names:
        raise ExperimentError(f"{argument}: this group has no experiments (yet); collect -g enters them")
    return [name if Path(name).exists() else str(Path(argument).parent / name) for name in names]


def _close(session: Session) -> None:
    if session.out is not sys.stdout:
        session.out.close()


def _print_help() -> None:
    print("Usage: er_print COMMAND... EXPERIMENT...\n\n"
          "Prints reports of experiments (NAME.er) and experiment groups (NAME.erg). Commands may be cut short\n"
          "as long as they stay unique.\n")
    width = max(len(c.name) + len(c.argument) for c in COMMANDS) + 4
    for command in COMMANDS:
        print(f"  {f'-{command.name} {command.argument}'.ljust(width)}{command.help}")
        for option in command.options:
            print(f"  {f'   {option}'.ljust(width)}{_OPTIONS[option]}")
    print(f"  {'--help'.ljust(width)}this text\n  {'--version'.ljust(width)}the version\n\n"
          "SPEC is METRIC[:METRIC]...; METRIC is e (exclusive), i (inclusive) or both, then . (seconds) and %\n"
          "(share), then a name: user system trap textpfault datapfault kernelpfault lock sleep wait stop total\n"
          "totalcpu; or size, address, name. Example: -metrics e.user:i.%total:name -sort i.total -functions")


# -- settings


def _metrics(session: Session, spec: str) -> None:
    from collector.report.metrics import parse_view

    session.set_view(_default_view(session.metrics) if spec == "default" else parse_view(spec, session.metrics))
    session.say(_current(session))


def _sort(session: Session, spec: str) -> None:
    session.set_sort(spec)
    session.say(_current(session)[1:])


def _current(session: Session) -> list[str]:
    view = session.view
    return [f"Current metrics: {view.command}", f"Current Sort Metric: {view.sort_title} ( {view.sort_command} )"]


def _default_view(metrics: Sequence[Metric]) -> View:
    from collector.report.metrics import default_view

    return default_view(metrics)


def _limit(session: Session, text: str) -> None:
    if not _is_number(text):
        raise UsageError(f"-limit {text}: give the number of lines to print at most; 0 for all")
    session.limit = int(text)


def _inlines(session: Session, text: str) -> None:
    session.inlines = _on_off("inlines", text)


def _name(session: Session, text: str) -> None:
    naming, _, more = text.partition(":")
    if naming not in ("long", "short", "mangled") or more not in ("", "soname", "nosoname"):
        raise UsageError(f"-name {text}: give long, short or mangled, and :soname to see load objects")
    session.naming, session.with_object = naming, more == "soname"


def _on_off(command: str, text: str) -> bool:
    if text not in ("on", "off"):
        raise UsageError(f"-{command} {text}: give on or off")
    return text == "on"


def _outfile(session: Session, name: str, mode: Literal["w", "a"] = "w") -> None:
    _close(session)
    session.out = sys.stdout
    if name in ("-", "--"):
        return
    try:
        session.out = Path(name).open(mode, encoding="utf-8")  # noqa: SIM115 - closed at the end
    except (OSError, ValueError) as err:
        raise UsageError(f"-outfile {name}: {getattr(err, 'strerror', None) or err}") from err


def _appendfile(session: Session, name: str) -> None:
    _outfile(session, name, "a")


def _script(_session: Session, _path: str) -> None:
    raise AssertionError("scripts are read with the command line")


# -- tables


def _functions(session: Session) -> None:
    from collector.report.tables import object_rows

    stacks, labels = _function_stacks(session)
    rows = object_rows(stacks, session.view, labels)
    _print_rows(session, "Functions", rows, session.view, labels)


def _lines(session: Session) -> None:
    from collector.report.lines import line_stacks
    from collector.report.tables import Labels, object_rows

    stacks, names = line_stacks(session.data, session.inlines)
    labels = Labels.of_names(names, 0)
    _print_rows(session, "Lines", object_rows(stacks, session.view, labels), session.view, labels)


def _pcs(session: Session) -> None:
    from collector.report.lines import instruction_stacks
    from collector.report.tables import Labels, object_rows

    stacks, names = instruction_stacks(session.data)
    labels = Labels.of_names(names, 0)
    _print_rows(session, "PCs", object_rows(stacks, session.view, labels), session.view, labels)


def _callers_callees(session: Session) -> None:
    from collector.export.text import Layout
    from collector.report.tables import calls, object_rows

    stacks, labels = _function_stacks(session)
    rows = object_rows(stacks, session.view, labels)
    view = session.derived("a")
    session.say(_object_warnings(session))
    session.say([f"Functions sorted by metric: {session.view.sort_title}",
                 f"Callers and callees sorted by metric: {view.sort_title}", ""])
    layout, names = Layout(view), _Names(labels)
    for call in calls(stacks, view, labels, rows.ids[:session.limit or None].tolist()):
        for part in (call.callers, call.center, call.callees):
            layout.fit(part.values.tolist(), names.of(part.ids))
        session.say(layout.heading())
        for part, mark in ((call.callers, " "), (call.center, "*"), (call.callees, " ")):
            session.say(layout.row(*cells, mark) for cells in zip(
                part.values.tolist(), part.percents.tolist(), names.of(part.ids), strict=True))
        session.say([""])


def _calltree(session: Session) -> None:
    from collector.export.text import Layout, tree_mark
    from collector.report.tables import call_tree

    stacks, labels = _function_stacks(session)
    view = session.derived("a")
    layout, names = Layout(view), _Names(labels)
    session.say(_object_warnings(session))
    session.say([f"Functions Call Tree. Metric: {view.sort_title}", ""])
    for number, row in enumerate(call_tree(stacks, view, labels)):
        if number == 0:
            layout.fit([row.values.tolist()])
            session.say(layout.heading())
        if session.limit and number >= session.limit:
            break
        session.say([layout.row(row.values.tolist(), row.percents.tolist(), names[row.object],
                                tree_mark(row.is_last))])


def _object_warnings(session: Session) -> list[str]:
    """The head of tables whose names come from the files of load objects: which of these are not to be trusted."""
    lines = [f"*** Warning: {problem}" for problem in session.data.object_problems]
    return [*lines, ""] if lines else []


def _print_rows(session: Session, what: str, rows: Rows, view: View, labels: Labels) -> None:
    from collector.export.text import Layout

    layout, names = Layout(view), _Names(labels)
    layout.fit(rows.values.tolist(), names.of(rows.ids))
    session.say(_object_warnings(session))
    session.say([f"{what} sorted by metric: {view.sort_title}", "", *layout.heading()])
    shown = slice(session.limit or None)
    session.say(layout.row(*cells) for cells in zip(rows.values[shown].tolist(), rows.percents[shown].tolist(),
                                                    names.of(rows.ids[shown]), strict=True))
    session.say([""])


class _Names:
    """Printable names by id."""

    def __init__(self, labels: Labels) -> None:
        self._raw = labels.names
        self._shown: dict[int, str] = {}

    def __getitem__(self, number: int) -> str:
        from collector.export.text import printable

        if number not in self._shown:
            self._shown[number] = printable(self._raw[number])
        return self._shown[number]

    def of(self, numbers: Iterable[int]) -> list[str]:
        return [self[int(number)] for number in numbers]


def _function_stacks(session: Session) -> tuple[Weighted, Labels]:
    """The stacks as functions, inlined ones among them if asked for, and what the functions are called."""
    from collector.report.tables import Labels

    if session.inlines:
        from collector.report.lines import inline_stacks

        stacks, functions = inline_stacks(session.data)
    else:
        stacks, functions = session.data.stacks, session.data.functions
    labels = Labels.of_functions(functions)
    return stacks, replace(labels, names=[_named(session, function) for function in functions])


def _named(session: Session, function: Function) -> bytes:
    from collector.report.functions import short_name

    name = {"long": function.name, "short": short_name(function.name),
            "mangled": function.linkage or function.name}[session.naming]
    return b"%s [%s]" % (name, function.object_name) if session.with_object else name


# -- threads and the like: what packets say of themselves


def _key_table(session: Session, names: Sequence[bytes], weights: I8, ranks: Sequence[int] = ()) -> None:
    """``weights`` (n, states) of the ``names`` (n); among equals in the order of ``ranks``, else as they stand."""
    from collector.report.tables import Labels, key_rows

    view = session.derived("e")
    labels = Labels.of_names([*names, b"<Total>"], len(names), [*(ranks or range(len(names))), len(names)])
    _print_rows(session, "Objects", key_rows(weights, view, labels), view, labels)


def _threads(session: Session) -> None:
    names: list[bytes] = []
    first: dict[int, int] = {}
    for number, experiment in enumerate(session.experiments, 1):
        first[id(experiment)] = len(names)
        names += [b"Process %d, Thread %d" % (number, i + 1) for i in range(len(experiment.threads))]

    def keys(experiment: Experiment, packets: Packets) -> I8:
        return first[id(experiment)] + _index_of(packets["THRID"], experiment.threads)

    _key_table(session, names, session.data.weights_by(keys, len(names)))


def _samples(session: Session) -> None:
    import numpy as np

    numbers = sorted({sample.id for experiment in session.experiments for sample in experiment.samples})
    unknown, place = len(numbers), {number: i for i, number in enumerate(numbers)}

    def keys(experiment: Experiment, packets: Packets) -> I8:
        if not experiment.samples:
            return np.full(len(packets), unknown, np.int64)
        starts = np.array([sample.start_ns for sample in experiment.samples], np.int64)
        ends = np.array([sample.end_ns for sample in experiment.samples], np.int64)
        ids = np.array([place[sample.id] for sample in experiment.samples], np.int64)
        # A packet at the very time of a sample point belongs to the sample that ends there.
        at = np.searchsorted(starts, packets["TSTAMP"], side="left") - 1
        inside = (at >= 0) & (packets["TSTAMP"] <= ends[at])
        return np.where(inside, ids[at], unknown).astype(np.int64)

    names = [*(b"Sample %d" % number for number in numbers), b"<Unknown>"]
    _key_table(session, names, session.data.weights_by(keys, len(names)))


def _cpus(session: Session) -> None:
    import numpy as np

    cpus = sorted({int(cpu) for experiment in session.experiments
                   for cpu in np.unique(experiment.packets()["CPUID"])})
    weights = session.data.weights_by(lambda _, packets: _index_of(packets["CPUID"], cpus), len(cpus))
    _key_table(session, [b"CPU %d" % cpu for cpu in cpus], weights)


def _processes(session: Session) -> None:
    import numpy as np

    experiments = session.experiments
    number = {id(experiment): i for i, experiment in enumerate(experiments)}
    names = [b"%s, Process %3d, PID %d" % (_program(experiment), i, experiment.log.pid)
             for i, experiment in enumerate(experiments, 1)]
    weights = session.data.weights_by(
        lambda experiment, packets: np.full(len(packets), number[id(experiment)], np.int64), len(names))
    # By name; those without one come last.
    ordered = sorted(range(len(names)), key=lambda i: (names[i].startswith(b"("), names[i]))
    _key_table(session, names, weights, [ordered.index(i) for i in range(len(names))])


def _program(experiment: Experiment) -> bytes:
    """The base name of what runs in the process; a forked child has no name of its own."""
    words = experiment.log.arguments.split()
    if not words or experiment.log.arguments == b"(fork)":
        return b"(unknown)"
    return words[0].rsplit(b"/", 1)[-1]


def _index_of(values: npt.NDArray[Any], known: Sequence[int]) -> I8:
    """For each value its place in ``known``, which holds them all."""
    import numpy as np

    order = np.argsort(np.array(known, np.int64))
    return np.asarray(order[np.searchsorted(np.array(known, np.int64)[order], values)], np.int64)


# -- lists and descriptions


def _header(session: Session, which: str = _ALL) -> None:
    from collector.export.description import header

    for number, experiment in enumerate(_chosen(session, which)):
        if number:
            session.say(["-" * 64])
        session.say(header(experiment))


def _statistics(session: Session, which: str = _ALL) -> None:
    from collector.export.description import experiment_statistics, sum_of_statistics

    chosen = _chosen(session, which)
    if len(chosen) > 1:
        session.say(sum_of_statistics(chosen))
    for experiment in chosen:
        session.say(experiment_statistics(experiment))


def _sample_detail(session: Session, which: str = _ALL) -> None:
    from collector.export.description import sample_detail

    for experiment in _chosen(session, which):
        session.say(sample_detail(experiment))


def _overview(session: Session) -> None:
    from collector.export.description import overview
    from collector.report.profile import total

    states = total(session.data.instructions)
    totals = [int(states[list(metric.states)].sum()) for metric in session.metrics]
    session.say(overview(session.experiments, session.metrics, totals, session.view))


def _metric_list(session: Session) -> None:
    from collector.report.metrics import all_columns

    columns = all_columns(session.metrics)
    width = max(len(column.title) for column in columns)
    session.say([*_current(session), "Available metrics:",
                 *(f"{column.title.rjust(width)}: {column.command}" for column in columns), ""])


def _experiment_list(session: Session) -> None:
    from collector.export.description import shown_path

    rows = [(str(i), "yes", str(e.log.pid), shown_path(e.path)) for i, e in enumerate(session.experiments, 1)]
    heads = ("ID", "Sel", "PID", "Experiment")
    widths = [max(len(row[i]) for row in (heads, *rows)) for i in range(len(heads))]
    for row in (heads, tuple("=" * width for width in widths), *rows):
        numbers = (text.rjust(width) for text, width in zip(row[:3], widths, strict=False))
        session.say([f"{' '.join(numbers)} {row[3]} "])


def _objects(session: Session) -> None:
    from collector.export.text import printable

    assert session.data.instructions is not None
    session.say([" <Unknown> (<Unknown>)"])
    for loaded in session.data.objects.values():
        session.say([f" {printable(loaded.name)} ({printable(loaded.path)})"])
        if loaded.problem:
            session.say([f"       *** Warning: {loaded.problem}"])
        elif loaded.file is None and loaded.path.startswith(b"/"):
            session.say(["       *** Warning: the file cannot be found; its functions are unknown"])
    session.say([""])


def _merged(session: Session, name: str) -> list[Merged]:
    """The aggregations of that name, of founders and descendants as one. Raises UsageError."""
    from collector.report.aggregations import merged
    from collector.report.build import load

    data = load(session.founders)  # apart from what the tables show, which depends on the order of questions
    every = merged(data)
    session.aggregated = data.experiments
    chosen = [one for one in every if name in (_ALL, one.query.name.lstrip("@")) or name == one.query.name]
    if not every:
        raise UsageError(f"nothing was aggregated in {', '.join(session.arguments)}; collect --aggregate does that")
    if not chosen:
        raise UsageError(f"-aggregations {name}: give one of {', '.join(one.query.name for one in every)}")
    return chosen


def _aggregations(session: Session, name: str = _ALL, style: str = "dtrace", top: str = "") -> None:
    from collector.export.aggregation_text import STYLES, listing

    if style not in STYLES:
        raise UsageError(f"--style {style}: give {' or '.join(STYLES)}")
    session.say(listing(_merged(session, name), style, _number_of_keys(top)))


def _aggregations_json(session: Session, name: str = _ALL, top: str = "") -> None:
    from collector.export.aggregations import document

    session.say([document(_merged(session, name), _number_of_keys(top))])


def _number_of_keys(top: str) -> int | None:
    """What --top gives; None for all."""
    if top and not (_is_number(top) and int(top)):
        raise UsageError(f"--top {top}: give the number of keys to print at most, those with the largest values")
    return int(top) if top else None


def _wakers(session: Session) -> None:
    from collector.export.wakers import lines
    from collector.report.aggregations import merged
    from collector.report.build import load
    from collector.report.wakers import wakes_of

    data = load(session.founders)
    wakes = wakes_of(merged(data))
    session.aggregated = data.experiments
    if wakes is None:
        raise UsageError(f"who woke whom was not recorded in {', '.join(session.arguments)}; root records it with "
                         "collect --aggregate wakers")
    session.say(lines(wakes, session.limit))


def _chosen(session: Session, which: str) -> list[Experiment]:
    if which == _ALL:
        return session.experiments
    number = int(which)
    if not 1 <= number <= len(session.experiments):
        raise UsageError(f"there is no experiment {which}; -experiment_list shows what there is")
    return [session.experiments[number - 1]]


_OPTIONS = {
    _STYLE: "as dtrace prints it (the default), or as SystemTap does",
    _TOP: "only the N keys with the largest values",
}
COMMANDS = (
    Command("functions", "", "functions with the current metrics", _functions),
    Command("callers-callees", "", "callers and callees of each function", _callers_callees, "gprof"),
    Command("calltree", "", "the tree of calls", _calltree, "ctree"),
    Command("lines", "", "source lines with the current metrics", _lines),
    Command("pcs", "", "instructions with the current metrics", _pcs),
    Command("threads", "", "threads with the current metrics", _threads),
    Command("processes", "", "processes (experiments) with the current metrics", _processes),
    Command("samples", "", "samples with the current metrics", _samples),
    Command("cpus", "", "CPUs with the current metrics", _cpus),
    Command("header", "[N|all]", "who, where, when, how; messages of the collector", _header),
    Command("overview", "", "all metrics, summed up", _overview),
    Command("statistics", "[N|all]", "time in each state and counters, from the samples", _statistics),
    Command("sample_detail", "[N|all]", "the same for every sample", _sample_detail),
    Command("aggregations", _NAME, "what collect --aggregate has aggregated: all, or one of them", _aggregations,
            options=(_STYLE, _TOP)),
    Command("json_aggregations", _NAME, "the same as a JSON document", _aggregations_json, options=(_TOP,)),
    Command("wakers", "", "whose wake-ups ended whose waits, after collect --aggregate wakers", _wakers),
    Command("objects", "", "load objects", _objects),
    Command("experiment_list", "", "experiments: founders and descendants", _experiment_list, "exp_list"),
    Command("metric_list", "", "the metrics that there are", _metric_list),
    Command("metrics", "SPEC", "choose metrics; default: the default ones", _metrics),
    Command("sort", "SPEC", "sort by a metric that is shown; -SPEC: the other way", _sort),
    Command("limit", "N", "print at most N lines (or functions) of a table; 0: all", _limit),
    Command("name", "FORM", "long, short or mangled names; :soname adds load objects", _name),
    Command("inlines", "on|off", "inlined functions as frames of their own; off unless asked for", _inlines),
    Command("outfile", "FILE", "print into a file from here on; - for standard output", _outfile),
    Command("appendfile", "FILE", "the same, behind what is in it", _appendfile),
    Command("script", "FILE", "commands from a file, one a line, without the dash", _script),
)
