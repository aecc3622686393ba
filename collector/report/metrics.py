"""The metrics of clock profiling and the little language that chooses and sorts by them. Pure.

A metric is a sum of microstates. A *column* shows a metric with a flavor: exclusive (the leaf's own), inclusive (on
the stack, counted once however often it recurs), attributed (what one function gives to another). ``e.%user`` is the
exclusive user CPU time as seconds and as percentage; ``e.user:i.%total:name`` is a list of columns.

    spec      column [":" column]...
    column    [flavors visible] metric          flavors: e i      visible: . + seconds   % percentage   ! hidden
    sort      ["-"] column [":" column]...      the first one that is shown

The names and the rules are those of the Performance Analyzer's er_print.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from collector.errors import UsageError
from collector.report.compat import DEFAULT_METRICS, DEFAULT_SORT
from collector.report.documents import Unit

EXCLUSIVE, INCLUSIVE, ATTRIBUTED, STATIC = "e", "i", "a", ""
_FLAVOR_NAMES = {EXCLUSIVE: "Exclusive ", INCLUSIVE: "Inclusive ", ATTRIBUTED: "Attributed ", STATIC: ""}
_FLAVOR_ABBREVIATIONS = {EXCLUSIVE: "Excl.", INCLUSIVE: "Incl.", ATTRIBUTED: "Attr.", STATIC: ""}

# States 0 to 9 are the microstates; 10 is what collectors without microstates write; anything else is STATE_OTHER.
STATE_LINUX_CPU = 10
STATE_KERNEL_CPU = 11
STATE_OTHER = 12
N_STATE_COLUMNS = 13


class Metric(NamedTuple):
    """A sum of states. ``level`` is its indentation in the overview."""

    command: str
    title: str
    short: str
    states: tuple[int, ...] = ()
    level: int = 0
    unit: Unit = Unit.TIME
    is_counter: bool = False  # of hardware


TOTAL = Metric("total", "Total Thread Time", "Total Thread", (*range(10), STATE_OTHER), 0)
TOTAL_CPU = Metric("totalcpu", "Total CPU Time", "Total CPU", (0, 1, 2, STATE_LINUX_CPU), 1)
MICROSTATES = (
    TOTAL,
    TOTAL_CPU,
    Metric("user", "User CPU Time", "User CPU", (0,), 2),
    Metric("system", "System CPU Time", "Sys. CPU", (1,), 2),
    Metric("trap", "Trap CPU Time", "Trap CPU", (2,), 2),
    Metric("datapfault", "Data Page Fault Time", "Data Fault", (4,), 1),
    Metric("textpfault", "Text Page Fault Time", "Text Fault", (3,), 1),
    Metric("kernelpfault", "Kernel Page Fault Time", "Kernel Page Fault", (5,), 1),
    Metric("stop", "Stopped Time", "Stopped", (9,), 1),
    Metric("wait", "Wait CPU Time", "Wait CPU", (8,), 1),
    Metric("sleep", "Sleep Time", "Sleep", (7,), 1),
    Metric("lock", "User Lock Time", "User Lock", (6,), 1),
)
LATENCY = Metric("latency", "Latency", "Latency")  # its column is made where it is asked for
KERNEL_CPU = Metric("kcpu", "Kernel CPU Time", "Kernel CPU", (STATE_KERNEL_CPU,), 0)
SIZE = Metric("size", "Size", "Size", unit=Unit.BYTES)
ADDRESS = Metric("address", "PC Address", "PC Addr.", unit=Unit.ADDRESS)
NAME = Metric("name", "Name", "Name", unit=Unit.NAME)
STATICS = (SIZE, ADDRESS, NAME)

# What the code ``numstates`` of an experiment's log means for the metrics that exist.
METRICS_BY_NUMSTATES = {
    10: MICROSTATES,
    1: (TOTAL_CPU._replace(level=0),),
    2: tuple(metric for metric in MICROSTATES if metric.command in ("totalcpu", "user", "system")),
    3: (KERNEL_CPU,),
}


class Column(NamedTuple):
    """One metric as it is shown: with a flavor, as seconds, as percentage, or both."""

    metric: Metric
    flavor: str = STATIC
    as_value: bool = True
    as_percent: bool = False

    @property
    def title(self) -> str:
        """``Exclusive Total CPU Time``."""
        return _FLAVOR_NAMES[self.flavor] + self.metric.title

    @property
    def command(self) -> str:
        """The column as it is asked for: ``e.%totalcpu``."""
        if self.flavor == STATIC:
            return self.metric.command
        return self.flavor + self.value_sign * self.as_value + "%" * self.as_percent + self.metric.command

    @property
    def value_sign(self) -> str:
        """``.`` for seconds, ``+`` for numbers."""
        return "." if self.metric.unit is Unit.TIME else "+"

    @property
    def words(self) -> list[str]:
        """The words of the column's heading."""
        return f"{_FLAVOR_ABBREVIATIONS[self.flavor]} {self.metric.short}".split()

    @property
    def detail(self) -> tuple[str, str]:
        """The title in two parts."""
        flavor = _FLAVOR_NAMES[self.flavor].strip()
        return (flavor, self.metric.title) if flavor else (self.metric.title, "")

    def key(self, visible: str) -> str:
        """What the values (``.``) or the shares (``%``) are called."""
        return f"{self.flavor}{visible}{self.metric.command}" if self.flavor else self.metric.command


class View(NamedTuple):
    """What a table shows: the columns, and by which of them it is sorted."""

    columns: tuple[Column, ...]
    sort: Column
    is_reversed: bool = False

    @property
    def command(self) -> str:
        """The columns as one specification."""
        return ":".join(column.command for column in self.columns)

    @property
    def sort_title(self) -> str:
        """What the heading of a table says it is sorted by."""
        return "-" * self.is_reversed + self.sort.title

    @property
    def sort_command(self) -> str:
        """The sort column as it is asked for."""
        return "-" * self.is_reversed + self.sort.command


def default_view(metrics: Sequence[Metric], chosen: Sequence[str] = (), sorts: Sequence[str] = ()) -> View:
    """What is shown unless something is asked for: what ``-dmetrics`` has ``chosen``, then what is built in.

    Of a column that is named more than once the first mention counts, one that hides it, too; metrics without data
    are passed over. Sorted by the first of ``sorts`` that is shown.
    """
    decided: list[Column] = []
    for text in filter(None, ":".join((*chosen, DEFAULT_METRICS)).split(":")):
        flavors = _split(text)[0]
        if "a" in flavors or "d" in flavors:
            continue
        for column in _columns_of(text, metrics):
            if not any(_same(column, other) for other in decided):
                decided.append(column)
    columns = tuple(column for column in decided if column.as_value or column.as_percent)
    return parse_sort(":".join((*sorts, DEFAULT_SORT)), View(columns, columns[-1]))


def checked_default(command: str, spec: str) -> None:
    """Raises UsageError where ``dmetrics`` or ``dsort`` cannot mean anything, whatever has been recorded."""
    for text in filter(None, spec.removeprefix("-").split(":")):
        if set("ad") & set(_split(text)[0]):
            raise UsageError(f"{command} {spec}: {text!r}: only e (exclusive) and i (inclusive) can be asked for")


_COUNTERS = "hwc"  # all metrics of hardware counters


def all_columns(metrics: Sequence[Metric]) -> list[Column]:
    """Every column that there is, in the order in which they are listed."""
    timed = [Column(metric, flavor, as_percent=True) for metric in metrics for flavor in (EXCLUSIVE, INCLUSIVE)]
    return timed + [Column(metric) for metric in STATICS]


def parse_view(spec: str, metrics: Sequence[Metric]) -> View:
    """The view that ``-metrics SPEC`` asks for, sorted by its first exclusive, else inclusive column.

    Raises UsageError when a metric is unknown, named twice or impossible here.
    """
    columns: list[Column] = []
    for text in filter(None, spec.split(":")):
        found = _columns_of(text, metrics)
        if not found:
            raise UsageError(f"-metrics {spec}: no data recorded for {text!r}; -metric_list shows what there is")
        for column in found:
            if any(_same(column, other) for other in columns):
                raise UsageError(f"-metrics {spec}: {text!r} appears more than once")
            columns.append(column)
    shown = [column for column in columns if column.as_value or column.as_percent]
    if not shown:
        raise UsageError(f"-metrics {spec!r}: no metric in it; -metric_list shows what there is")
    if all(column.metric is not NAME for column in shown):
        shown.append(Column(NAME))
    return View(tuple(shown), _fallback_sort(shown))


def parse_sort(spec: str, view: View, allowed: str = EXCLUSIVE + INCLUSIVE) -> View:
    """The view sorted as ``-sort SPEC`` asks: by the first of the columns named that is shown.

    Raises UsageError when there is none, or when a flavor that is not ``allowed`` comes before it.
    """
    is_reversed = spec.startswith("-")
    for text in filter(None, spec[is_reversed:].split(":")):
        flavors, visible, command = _split(text)
        if "!" in visible:
            continue
        for flavor in flavors or STATIC_ONLY:
            if flavor not in allowed:
                raise UsageError(f"-sort {spec}: {text!r} cannot be sorted by here")
            for column in view.columns:
                if column.flavor == flavor and (command in _WILDCARDS or command == column.metric.command):
                    return view._replace(sort=column, is_reversed=is_reversed)
    raise UsageError(f"-sort {spec}: not among the metrics shown; they are {view.command}")


def with_flavor(view: View, flavor: str, statics: Sequence[Metric] = STATICS) -> View:
    """The view with every metric in one flavor, each once: for callers and callees, trees, threads.

    Sorted as the view is.
    """
    columns: list[Column] = []
    sort = Column(NAME)
    for column in view.columns:
        if column.flavor == STATIC and column.metric not in statics:
            continue
        wanted = column if column.flavor == STATIC else column._replace(flavor=flavor)
        if all(not _same(wanted, other) for other in columns):
            columns.append(wanted)
        if column == view.sort:
            sort = next(other for other in columns if _same(wanted, other))
    return View(tuple(columns), sort, view.is_reversed)


STATIC_ONLY = (STATIC,)
_WILDCARDS = ("any", "all")


def _split(text: str) -> tuple[str, str, str]:
    """Flavors, visibility and metric of one column; letters are flavors only where visibility follows them."""
    rest = text.lstrip("eiad")
    flavors = text[:len(text) - len(rest)]
    command = rest.lstrip(".+%!" if flavors else ".!")
    visible = rest[:len(rest) - len(command)]
    if flavors and not visible:
        return "", "", text
    return "".join(dict.fromkeys(flavors)), visible, command


def _columns_of(text: str, metrics: Sequence[Metric]) -> list[Column]:
    flavors, visible, command = _split(text)
    if "a" in flavors or "d" in flavors:
        raise UsageError(f"{text}: only e (exclusive) and i (inclusive) can be asked for")
    is_hidden = "!" in visible
    as_value = not is_hidden and (not flavors or "." in visible or "+" in visible)
    as_percent = not is_hidden and "%" in visible
    is_any = command.lower() in _WILDCARDS
    found = [Column(metric, flavor, as_value, as_percent)
             for metric in metrics
             if (metric.command == command or (is_any and metric.command != LATENCY.command)
                 or (command == _COUNTERS and metric.is_counter))
             for flavor in flavors or (EXCLUSIVE, INCLUSIVE)]
    return found + [Column(metric, as_value=metric is NAME or not is_hidden)
                    for metric in STATICS if is_any or metric.command == command]


def _same(one: Column, other: Column) -> bool:
    return one.metric is other.metric and one.flavor == other.flavor


def _fallback_sort(columns: Sequence[Column]) -> Column:
    for flavor in (EXCLUSIVE, INCLUSIVE):
        for column in columns:
            if column.flavor == flavor:
                return column
    return next(column for column in columns if column.metric is NAME)
