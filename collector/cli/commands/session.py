"""What commands act on: the experiments, what earlier commands have set, and where documents go."""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from collector.cli import streams
from collector.errors import CollectorError, ExperimentError, UsageError

if TYPE_CHECKING:
    from collector.cli.commands.commentary import Commentary
    from collector.cli.commands.index import IndexObject
    from collector.experiment.places import Places
    from collector.experiment.reader import Experiment
    from collector.report.build import DataSet
    from collector.report.documents import Document
    from collector.report.metrics import Metric, View
    from collector.report.naming import Naming
    from collector.report.query.selection import Selection

ALL = "all"
_GROUP_SUFFIX = ".erg"
_GROUP_HEAD = "#analyzer experiment group"
_DIGITS_MAX = 18
_LINES_AT_ONCE = 512


@dataclass
class Session:
    """What commands act on: the experiments, and what earlier commands have set."""

    arguments: list[str]
    limit: int = 0
    inlines: bool = False
    mode: str = "text"
    naming: Naming = field(default_factory=lambda: _naming("long"))
    commentary: dict[str, Commentary] = field(default_factory=lambda: defaultdict(_commentary))
    out: TextIO = field(default_factory=lambda: sys.stdout)
    aggregated: list[Experiment] = field(default_factory=list)  # those whose aggregations were read
    fragment: list[tuple[str, str]] = field(default_factory=list)  # functions, caller first: name, # of several
    hidden_objects: set[bytes] = field(default_factory=set)  # load objects, as they are shown
    api_objects: set[bytes] = field(default_factory=set)  # load objects of which entries alone are shown
    default_metrics: list[str] = field(default_factory=list)  # before those that are built in
    default_sorts: list[str] = field(default_factory=list)
    view_mode: str = "user"
    warnings: list[str] = field(default_factory=list)  # of files of defaults
    index_objects: dict[str, IndexObject] = field(default_factory=dict)  # that the user has defined
    with_latency: bool = False
    status: int = 0  # of the first line of a script that was not carried out
    is_asked: bool = False  # somebody types commands, and can say more
    compare: str = "off"
    groups: list[tuple[str, list[Experiment]]] = field(default_factory=list)  # the founders of each argument
    _views: dict[str, View] = field(default_factory=dict)
    _unpacked: ExitStack = field(default_factory=ExitStack)
    _is_begun: bool = False  # something stands in ``out``

    @cached_property
    def founders(self) -> list[Experiment]:
        """The experiments given, group files replaced by their members."""
        from collector.experiment.reader import open_experiment

        if not self.arguments:
            raise UsageError("no experiment given; er_print --help shows how")
        paths = dict.fromkeys(path for argument in self.arguments for path in _members(argument))
        founders = [open_experiment(path) for path in paths]
        by_path = dict(zip(paths, founders, strict=True))
        self.groups = [(one, [by_path[path] for path in dict.fromkeys(_members(one))]) for one in self.arguments]
        places = replace(founders[0].places, experiments=tuple(os.fspath(founder.path) for founder in founders))
        for founder in founders:
            founder.look_in(places)
        return founders

    @property
    def is_compared(self) -> bool:
        """Whether groups of experiments are shown side by side."""
        return self.compare != "off" and bool(self.founders) and len(self.groups) > 1

    def open_experiments(self, arguments: list[str]) -> bool:
        """These instead, with the same places, filter and columns. Raises CollectorError, and changes nothing then.

        Returns whether selections have ended by it: their numbers were those of the experiments that were open.
        """
        other = Session(arguments)
        other.founders  # noqa: B018 - errors come before anything is closed
        views, before = self._views, self.__dict__.get("selection")
        metrics = self.whole.metrics if views else ()
        places = replace(self.places, experiments=tuple(os.fspath(one.path) for one in other.founders))
        self.warnings = self.problems()
        self.arguments = arguments
        for name in ("founders", "whole", "selection"):
            self.__dict__.pop(name, None)
        self.founders, self.groups = other.founders, other.groups
        self.look_in(places)
        if before is not None and before.filter:
            self.selection.set_filter(before.filter)
        self._views = views if views and self.metrics == metrics else {}
        return before is not None and before.has_selections

    @cached_property
    def whole(self) -> DataSet:
        """Founders and descendants as one, all packets."""
        from collector.report.build import load

        return load(self.founders, self.with_latency)

    @cached_property
    def selection(self) -> Selection:
        """Which packets are wanted."""
        from collector.report.query.selection import Selection

        return Selection(self.whole)

    @property
    def data(self) -> DataSet:
        """Founders and descendants as one: the packets that are selected."""
        data = self.selection.data if "selection" in self.__dict__ else self.whole
        return data.viewed(self.view_mode)

    @property
    def places(self) -> Places:
        """Where files are looked for."""
        return self.founders[0].places

    def look_in(self, places: Places) -> None:
        """Look for files there; what was looked up before is looked up again."""
        for founder in self.founders:
            founder.look_in(places)
        self._load_again()

    def _load_again(self) -> None:
        self.__dict__.pop("whole", None)
        if (selection := self.__dict__.pop("selection", None)) is not None:
            self.selection = selection.of(self.whole)

    def unpacked(self, bundle: str) -> str:
        """A folder with what a file of symbols has in it, for as long as the session lasts."""
        from tempfile import TemporaryDirectory

        from collector.experiment.bundle import unpack
        from collector.leftovers import removed_if_ended

        folder = TemporaryDirectory(prefix="er_print-")
        self._unpacked.enter_context(removed_if_ended(folder.cleanup))
        self._unpacked.enter_context(folder)
        unpack(bundle, folder.name)
        return folder.name

    @property
    def experiments(self) -> list[Experiment]:
        """Founders, each followed by its descendants."""
        return self.whole.experiments

    @property
    def counts(self) -> list[bool]:
        """Which of the experiments count."""
        return self.selection.experiments if "selection" in self.__dict__ else [True] * len(self.experiments)

    def chosen(self, which: str) -> list[Experiment]:
        """The experiment of that number, or all."""
        if which == ALL:
            return self.experiments
        number = int(which)
        if not 1 <= number <= len(self.experiments):
            raise UsageError(f"there is no experiment {which}; -experiment_list shows what there is")
        return [self.experiments[number - 1]]

    def problems(self) -> list[str]:
        """What was found wrong with what has been read so far."""
        read: list[Experiment] = self.__dict__.get("founders", [])
        if "whole" in self.__dict__:
            read = [*read, *self.whole.experiments]
        read = [*read, *self.aggregated]
        of_data = (problem for experiment in read for problem in experiment.problems)
        return list(dict.fromkeys((*self.warnings, *of_data)))

    def failed(self, where: str, error: CollectorError) -> None:
        """A line of a script was not carried out: that is said, and the next one comes."""
        self.status = self.status or error.exit_status
        self.out.flush()
        streams.say_error(f"er_print: {where}", error)

    def tell(self, text: str) -> None:
        """What was taken for what is not clear: an error where somebody types and can say it, else a warning."""
        if text and self.is_asked:
            raise UsageError(text)
        if text:
            self.warnings.append(text)

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """What there is data for."""
        return self.data.metrics

    @property
    def every_metric(self) -> tuple[Metric, ...]:
        """The same, and what can be made of it: latency."""
        return (*self.metrics, *self.data.columns.latency_metrics)

    @property
    def view(self) -> View:
        """The columns of function lists and their order."""
        return self.derived("ei")

    def derived(self, flavors: str) -> View:
        """The columns for function lists (``ei``), callers and callees (``a``), threads and the like (``e``)."""
        if not self._views:
            self.set_default_view()
        return self._views[flavors]

    def set_default_view(self) -> None:
        """The columns unless others are asked for; the default order is that of function lists alone, as in gprofng."""
        from collector.report.metrics import default_view

        self.set_view(default_view(self.every_metric, self.default_metrics))
        self._views["ei"] = default_view(self.every_metric, self.default_metrics, self.default_sorts)

    def forget_view(self) -> None:
        """Default columns again, everywhere."""
        self._views = {}

    def set_object(self, name: bytes, how: str) -> None:
        """Whether functions of a load object are shown: ``show``, ``hide``, or ``api`` for its entries alone.

        ``name`` is as it is shown, with or without the angle brackets.
        """
        names = {name, b"<%s>" % name.strip(b"<>")}
        for mode, objects in (("hide", self.hidden_objects), ("api", self.api_objects)):
            objects.difference_update(names)
            if mode == how:
                objects.update(names)

    def set_view(self, view: View) -> None:
        """New columns everywhere."""
        from collector.report.metrics import LATENCY, NAME, with_flavor

        if not self.with_latency and any(column.metric.command == LATENCY.command for column in view.columns):
            self.with_latency = True
            self._load_again()
        self._views = {"ei": view, "a": with_flavor(view, "a"), "e": with_flavor(view, "e", (NAME,))}

    def set_sort(self, spec: str) -> None:
        """Another order of function lists, and of the other tables where they have such a column."""
        from collector.report.metrics import parse_sort

        self._views["ei"] = parse_sort(spec, self.view)
        for flavors in ("a", "e"):
            with suppress(UsageError):
                self._views[flavors] = parse_sort(spec, self._views[flavors], flavors)

    def object_warnings(self) -> Sequence[str]:
        """For tables whose names come from the files of load objects: which of these are not to be trusted."""
        return self.data.object_problems

    def show(self, document: Document) -> None:
        """Print a document in the form that is set."""
        from collector.export.render import rendered

        lines = rendered(document, self.mode, not self._is_begun)
        while some := list(islice(lines, _LINES_AT_ONCE)):
            self._is_begun = True
            self.out.write("\n".join(some) + "\n")

    def print_into(self, out: TextIO) -> None:
        """From here on into another file."""
        self.close()
        self.out, self._is_begun = out, False

    def close(self) -> None:
        """Close the file that is printed into, if it is no standard stream."""
        if self.out not in (sys.stdout, sys.stderr):
            self.out.close()

    def end(self) -> None:
        """Close it, and take away what was unpacked."""
        self.close()
        self._unpacked.close()


def _naming(text: str) -> Naming:
    from collector.report.naming import Naming

    return Naming.of(text)


def _commentary() -> Commentary:
    from collector.cli.commands.commentary import Commentary

    return Commentary()


def is_number(text: str) -> bool:
    """Digits, and not too many."""
    return text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX


def is_on(command: str, text: str) -> bool:
    """Whether ``text`` says on. Raises UsageError when it says neither on nor off."""
    if text.lower() not in ("on", "off"):
        raise UsageError(f"-{command} {text}: give on or off")
    return text.lower() == "on"


def lines(name: str, found: Iterable[str]) -> Document:
    """Lines of text as a document."""
    from collector.report.documents import Lines

    return Lines(name, list(found))


def _members(argument: str) -> list[str]:
    """An experiment, or the members of a group file: from here, else from where the file lies."""
    if not argument.endswith(_GROUP_SUFFIX):
        return [argument]
    try:
        text = Path(argument).read_text("utf-8", "surrogateescape").splitlines()
    except OSError as err:
        raise ExperimentError(f"{argument}: {err.strerror}") from err
    if not text or not text[0].startswith(_GROUP_HEAD):
        raise ExperimentError(f"{argument}: not an experiment group; its first line must be {_GROUP_HEAD!r}")
    names = [line.split()[0] for line in text if line.strip() and not line.startswith("#")]
    if not names:
        raise ExperimentError(f"{argument}: this group has no experiments (yet); collect -g enters them")
    return [name if Path(name).exists() else str(Path(argument).parent / name) for name in names]
