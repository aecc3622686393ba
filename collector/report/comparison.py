"""Groups of experiments side by side: the stacks of all runs in one table, each group in columns of its own.

``wide`` stacks have more weights than states: for each metric and run its time, and the squares of the pieces that this
time is made of (see ``significance``)::

    metric 0: run 0 | run 1 | ... | squares of run 0 | run 1 | ...     metric 1: ...

Every table of stacks can be made of them. A group's column is the sum of its runs', as a metric is a sum of states; the
columns of single runs and squares are taken out of the finished table, after intervals have been made of them.
Functions that are the same in several builds of a program are one row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from collector.experiment.dyntext import Text
from collector.experiment.reader import Experiment
from collector.report.address_space import Key
from collector.report.build import DataSet, members
from collector.report.compat import DYNAMIC_FUNCTIONS
from collector.report.documents import Against, Column, Interval, Table, Unit
from collector.report.kinds import CLOCK
from collector.report.latency import latency_us
from collector.report.metrics import LATENCY, N_STATE_COLUMNS, NAME, SIZE, STATIC, Metric, View
from collector.report.metrics import Column as Shown
from collector.report.profile import I8, Bool, Weighted, exclusive, merge_equal
from collector.report.resolve import MODES_TEXT, key_of
from collector.report.significance import Runs, compared, runs_of
from collector.report.tables import Labels

_FIRST_NUMBER = 2  # of load objects; below it functions are the reader's own
_USER_END = 1 << 63  # of the addresses of programs: those of the kernel lie above
_US2_PER_UNIT = 1_000  # squares are kept in thousands of us**2: of long waits they would not fit


@dataclass(frozen=True)
class Group:
    """Experiments that are one side of a comparison, each with its descendants; ``name`` as it is shown."""

    name: str
    founders: Sequence[Experiment]


@dataclass(frozen=True)
class Asked:
    """What is compared: the ``metrics`` that will be asked for; ``form``: on, delta or ratio.

    ``of_functions``: the rows are functions of the data set, of which those of several builds become one.
    """

    groups: Sequence[Group]
    metrics: Sequence[Metric]
    form: str
    of_functions: bool


@dataclass(frozen=True)
class Wide:
    """Stacks of all runs, and what makes tables of them. ``row_of`` (n): the row of each object that stacks had."""

    stacks: Weighted
    labels: Labels
    asked: Asked
    data: DataSet
    row_of: I8

    @property
    def groups(self) -> Sequence[Group]:
        """What is compared."""
        return self.asked.groups

    @cached_property
    def runs(self) -> list[list[int]]:
        """The runs of each group."""
        ends = np.cumsum([len(group.founders) for group in self.groups]).tolist()
        return [list(range(end - len(group.founders), end)) for group, end in zip(self.groups, ends, strict=True)]

    def of(self, view: View) -> View:
        """The view of these stacks: for each column one of each group, and those that intervals are made of."""
        columns = [one for column in view.columns for one in self._columns_of(column)]
        sort = next(one for one in self._columns_of(view.sort))
        return view._replace(columns=tuple(columns), sort=sort)

    def finished(self, table: Table, view: View) -> Table:
        """A table that was made with ``of(view)``, as it is shown."""
        found = iter(table.columns)
        ids = next(column.values for column in table.columns if column.unit is Unit.NAME)
        figures: list[Column] = []
        intervals: list[Column] = []
        for column in view.columns:
            if column.metric is NAME:
                figures.append(next(found))
                continue
            mine = [replace(next(found), group=group.name) for group in self.groups]
            if column.flavor == STATIC:
                mine = [replace(one, values=self._static(column, number)[ids]) for number, one in enumerate(mine)]
            else:
                intervals += self._intervals(mine, [next(found) for _ in range(2 * self._n_runs)], column)
            figures += [self._compared(one, number, mine[0]) for number, one in enumerate(mine)]
        at = len(figures) - (figures[-1].unit is Unit.NAME)
        return replace(table, columns=(*figures[:at], *intervals, *figures[at:]))

    @property
    def _n_runs(self) -> int:
        return sum(map(len, self.runs))

    def _columns_of(self, column: Shown) -> Iterator[Shown]:
        if column.metric is NAME:
            yield column
        elif column.flavor == STATIC:
            yield from [column] * len(self.groups)
        else:
            n = self._n_runs
            first = 2 * n * self._number_of(column)
            for runs in self.runs:
                yield _of_states(column, [first + run for run in runs])
            for one in range(first, first + 2 * n):
                yield _of_states(column, [one])._replace(as_value=False, as_percent=False)

    def _compared(self, column: Column, number: int, first: Column) -> Column:
        share = column.share_key and f"{column.share_key}@{number + 1}"
        column = replace(column, key=f"{column.key}@{number + 1}", share_key=share,
                         is_sorted=column.is_sorted and not number)
        if self.asked.form == "on" or not number or column.unit is Unit.ADDRESS:
            return column
        return replace(column, against=Against(first.values, self.asked.form))

    def _intervals(self, groups: list[Column], runs: list[Column], shown: Shown) -> Iterator[Column]:
        """Of the differences of all groups to the first one, of what is counted in clock ticks."""
        if not _is_sampled(shown.metric):
            return
        sides = self._sides([one.values for one in runs])
        first = 2 * self._n_runs * self._number_of(shown)
        leaves = self._sides(list(self._exclusive[:, first:first + 2 * self._n_runs].T))
        is_mean = max(map(len, sides)) > 1
        what, short = ("Difference of Means", "95 % of mean diff.") if is_mean else ("Difference", "95 % of diff.")
        for number, (side, column) in enumerate(zip(sides[1:], groups[1:], strict=True), 2):
            found, is_significant = compared(sides[0], side, (leaves[0], leaves[number - 1]))
            yield replace(column, key=f"{column.key}@{number}.difference", unit=Unit.INTERVAL, percents=None,
                          title=f"{column.title}, 95 % Interval of {what}", is_sorted=False, as_value=True,
                          words=[*column.words, *short.split()], values=_rounded(found.low),
                          detail=(column.detail[0], f"{column.detail[1]} {short}"),
                          interval=Interval(_rounded(found.high), is_significant))

    def _sides(self, columns: Sequence[I8]) -> list[Runs]:
        """For each group its runs, of the times of all runs and then the squares of all."""
        return [runs_of([columns[run] for run in mine], [columns[self._n_runs + run] * _US2_PER_UNIT for run in mine],
                        max(founder.log.interval_us for founder in group.founders))
                for mine, group in zip(self.runs, self.groups, strict=True)]

    @cached_property
    def _exclusive(self) -> I8:
        return exclusive(self.stacks)

    def _number_of(self, column: Shown) -> int:
        return [metric.command for metric in self.asked.metrics].index(column.metric.command)

    def _static(self, column: Shown, number: int) -> I8:
        """Sizes or addresses of what a group has of each row; zero of what it has not."""
        values = self.labels.sizes if column.metric is SIZE else self.labels.addresses
        found = np.zeros(len(values), np.int64)
        there = _object_numbers(self.data, self.groups[number])
        for place, row in enumerate(self.row_of.tolist()):
            if place >= len(self.data.functions) or self.data.functions[place].object_number in there:
                found[row] = found[row] or values[place]
        return found


def wide(data: DataSet, masks: Sequence[Bool], asked: Asked,
         stacks_of: Callable[[DataSet], tuple[Weighted, Labels]]) -> Wide:
    """The stacks of all groups, as ``stacks_of`` sees them; of each experiment the packets that its mask selects."""
    founders, metrics = [founder for group in asked.groups for founder in group.founders], asked.metrics
    stacks, labels, row_of = None, None, np.zeros(0, np.int64)
    for run, founder in enumerate(founders):
        family = {id(one) for one in members(founder)}
        mine = [mask & (id(one) in family) for one, mask in zip(data.experiments, masks, strict=True)]
        seen, labels = stacks_of(_with_squares(data.filtered(mine), metrics))
        block = np.zeros((len(seen), 2 * len(founders) * len(metrics)), np.int64)
        for number, metric in enumerate(metrics):
            first = 2 * number * len(founders) + run
            block[:, first] = seen.weights[:, list(metric.states)].sum(axis=1)
            block[:, first + len(founders)] = seen.weights[:, data.columns.n + number]
        if not len(row_of):
            row_of = _rows_of(data, asked, seen.n_objects)
        seen = replace(seen, objects=row_of[seen.objects], weights=block)
        stacks = seen if stacks is None else merge_equal(_joined(stacks, seen))
    assert stacks is not None and labels is not None
    return Wide(merge_equal(stacks), labels, asked, data, row_of)


def _rows_of(data: DataSet, asked: Asked, n: int) -> I8:
    """The row of each object (n)."""
    same = same_functions(data, asked.groups) if asked.of_functions else np.zeros(0, np.int64)
    return np.append(same, np.arange(len(same), n))


def same_functions(data: DataSet, groups: Sequence[Group]) -> I8:
    """For each function the first one that is the same in another build: of that name in a load object of that name.

    The programs themselves may have different names, if each group is of one. Several functions of one name (static
    ones of several files) are told apart by their order; those without a file, whose addresses differ from run to run,
    by their source file and its first line.
    """
    programs = _programs(groups)
    names = {loaded.number: b"" if key in programs else key[0].rsplit(b"/", 1)[-1]
             for key, loaded in data.objects.items()}
    order = sorted(range(len(data.functions)), key=lambda i: data.functions[i].offset)
    n_so_far: dict[tuple[int, bytes], int] = {}
    keys: dict[int, tuple[bytes | int, ...]] = {}
    for place in order:
        function = data.functions[place]
        if function.object_number < _FIRST_NUMBER or not function.has_offsets:
            continue
        name = function.linkage or function.name
        if names.get(function.object_number) == DYNAMIC_FUNCTIONS:
            keys[place] = DYNAMIC_FUNCTIONS, name, *_origin(function.text)
            continue
        here = function.object_number, name
        n_so_far[here] = n_so_far.get(here, 0) + 1
        keys[place] = names.get(function.object_number, function.object_name), name, n_so_far[here]
    first: dict[tuple[bytes | int, ...] | int, int] = {}
    return np.array([first.setdefault(keys.get(place, place), place) for place in range(len(data.functions))], np.int64)


def _origin(text: Text | None) -> tuple[bytes, int]:
    """The source file of a function without a load object and its first line there; of none, empty and 0."""
    return (text.source, min((line for _, line in text.lines), default=0)) if text is not None else (b"", 0)


def _programs(groups: Sequence[Group]) -> set[Key]:
    """The load objects that the groups' programs are, where there is no doubt."""
    found: set[Key] = set()
    for group in groups:
        keys = [program_of(members(founder)[0]) for founder in group.founders]
        if len({key and key[0].rsplit(b"/", 1)[-1] for key in keys}) > 1:
            return set()
        found |= {key for key in keys if key}
    return found


def program_of(experiment: Experiment) -> Key | None:
    """The load object that the program is: what was mapped first, at the lowest address; None where there is none.

    The kernel, which is there before any program, lies in the upper half of addresses.
    """
    texts = [one for one in experiment.segments if one.modes == MODES_TEXT and one.vaddr < _USER_END]
    return key_of(min(texts, key=lambda one: (one.start_ns, one.vaddr)), experiment) if texts else None


def _object_numbers(data: DataSet, group: Group) -> set[int]:
    keys = {key_of(segment, one) for founder in group.founders for one in members(founder)
            for segment in one.segments}
    return {loaded.number for key, loaded in data.objects.items() if key in keys}


def _with_squares(data: DataSet, metrics: Sequence[Metric]) -> DataSet:
    """The same with more columns of weights: for each metric the sum of the squares of the packets' times."""
    plain = data.instructions
    squares = data.stacks_with(CLOCK, lambda experiment: _squares(experiment, metrics), len(metrics))
    n = data.columns.n
    more = copy(data)
    for cached in ("stacks", "merged_instructions"):
        more.__dict__.pop(cached, None)
    more.instructions = _joined(replace(plain, weights=np.pad(plain.weights, ((0, 0), (0, len(metrics))))),
                                replace(squares, weights=np.pad(squares.weights, ((0, 0), (n, 0)))))
    return more


def _squares(experiment: Experiment, metrics: Sequence[Metric]) -> I8:
    """What each clock packet is worth in each metric, squared, in thousands of us**2 (n, metrics)."""
    packets = experiment.packets()
    found = np.zeros((len(packets), len(metrics)), np.int64)
    times_us = packets["NTICK"].astype(np.int64) * experiment.log.interval_us
    for number, metric in enumerate(metrics):
        if metric.command == LATENCY.command:
            worth = latency_us(experiment)
        elif _is_sampled(metric):
            worth = times_us * np.isin(packets["MSTATE"], metric.states)
        else:
            continue
        found[:, number] = worth.astype(np.float64) ** 2 / _US2_PER_UNIT
    return found


def _is_sampled(metric: Metric) -> bool:
    """Whether it counts ticks of the clock."""
    return metric.command == LATENCY.command or all(state < N_STATE_COLUMNS for state in metric.states)


def _of_states(column: Shown, states: Sequence[int]) -> Shown:
    return column._replace(metric=column.metric._replace(states=tuple(states)))


def _joined(first: Weighted, second: Weighted) -> Weighted:
    """The stacks of both, one behind the other."""
    return Weighted(np.concatenate([first.offsets, second.offsets[1:] + first.offsets[-1]]),
                    np.concatenate([first.objects, second.objects]),
                    np.concatenate([first.weights, second.weights]), max(first.n_objects, second.n_objects))


def _rounded(values: np.typing.NDArray[np.float64]) -> I8:
    return np.rint(values).astype(np.int64)
