"""Which packets are wanted: those that a filter is true for, or those of the threads, LWPs, CPUs and samples selected.

As in gprofng, what was asked last counts: a filter puts the selections aside, the next selection puts the filter aside
and brings the earlier selections back.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from collector.errors import UsageError
from collector.report.build import DataSet
from collector.report.profile import I8
from collector.report.query.evaluate import selected, value_of
from collector.report.query.facts import PacketFacts
from collector.report.query.language import parse

Bool = npt.NDArray[np.bool_]

PROPERTIES = {"thread": "THRID", "lwp": "LWPID", "cpu": "CPUID", "sample": "SAMPLE"}
_ALL, _NONE, _NOTHING = "all", "none", "(data not recorded)"
_DIGITS_MAX = 18


class Selection:
    """What has been asked for of a data set, and the data set of that."""

    def __init__(self, whole: DataSet) -> None:
        self._whole = whole
        self.filter = ""
        self._ranges: dict[tuple[str, int], str] = {}  # by kind and experiment, from 1
        self._is_by_range = False
        self.experiments = [True] * len(whole.experiments)  # which of them count

    def of(self, whole: DataSet) -> Selection:
        """The same of another data set of the same experiments."""
        other = Selection(whole)
        other.filter, other._ranges, other._is_by_range = self.filter, dict(self._ranges), self._is_by_range
        other.experiments = self.experiments
        return other

    def choose_experiments(self, wanted: list[bool]) -> None:
        """These alone, besides what else is asked for; one for each."""
        self.experiments = wanted
        self.__dict__.pop("_filtered", None)

    @cached_property
    def facts(self) -> list[PacketFacts]:
        """What is known of each experiment's packets."""
        return [PacketFacts(self._whole, number) for number in range(1, len(self._whole.experiments) + 1)]

    @property
    def data(self) -> DataSet:
        """The packets that are selected."""
        if "_filtered" not in self.__dict__:
            self._filtered = self._whole if self._is_all() else self._whole.filtered(self.masks())
        return self._filtered

    @property
    def has_selections(self) -> bool:
        """Whether threads, LWPs, CPUs, samples or experiments were chosen by number."""
        return bool(self._ranges) or not all(self.experiments)

    def _is_all(self) -> bool:
        return all(self.experiments) and not (self._ranges if self._is_by_range else self.filter)

    def set_filter(self, expression: str) -> None:
        """Only packets for which it is true; empty for all. Raises UsageError, and changes nothing then."""
        node = parse(expression)
        for facts in self.facts:
            selected(node, facts)
        self.filter, self._is_by_range = expression.strip(), False
        self.__dict__.pop("_filtered", None)

    def select(self, kind: str, spec: str) -> None:
        """``[EXPERIMENTS:]RANGES[+...]``: such as ``1-3,7``, ``2:1``, ``all``. Raises UsageError."""
        n_experiments = len(self._whole.experiments)
        chosen: dict[int, str] = {}
        for part in spec.split("+"):
            where, colon, wanted = part.rpartition(":")
            numbers = _numbers(where, kind) if colon and where != _ALL else [(1, n_experiments)]
            if wanted != _ALL:
                _numbers(wanted, kind)
            for low, high in numbers:
                if not 1 <= low <= high <= n_experiments:
                    raise UsageError(f"-{kind}_select {spec}: there are {n_experiments} experiments")
                chosen.update((one, wanted) for one in range(low, high + 1))
        self.filter, self._is_by_range = "", True
        for one, wanted in chosen.items():
            self._ranges.pop((kind, one), None)
            if wanted != _ALL:
                self._ranges[kind, one] = wanted
        self.__dict__.pop("_filtered", None)

    def chosen(self, kind: str, number: int, known: Sequence[int]) -> str:
        """What has been selected of an experiment that has the numbers ``known``."""
        wanted = self._ranges.get((kind, number), _ALL)
        if not known:
            return _NOTHING
        if wanted == _ALL:
            return _ALL
        inside = [any(low <= one <= high for low, high in _numbers(wanted, kind)) for one in known]
        return _ALL if all(inside) else wanted if any(inside) else _NONE

    def masks(self) -> list[Bool]:
        """For each experiment which of its packets are wanted."""
        node = parse(self.filter)
        found = []
        for number, facts in enumerate(self.facts, 1):
            mask = selected(node, facts) & self.experiments[number - 1]
            for kind, name in PROPERTIES.items():
                wanted = self._ranges.get((kind, number)) if self._is_by_range else None
                values = facts.number(name)
                if wanted is not None and values is not None:
                    mask = mask & np.logical_or.reduce([(values >= low) & (values <= high)
                                                        for low, high in _numbers(wanted, kind)])
            found.append(np.array(mask, bool))
        return found

    def values(self, expression: str) -> list[I8]:
        """What an expression is for the packets of each experiment. Raises UsageError."""
        node = parse(expression)
        return [np.asarray(value_of(node, facts).astype(np.int64), np.int64) for facts in self.facts]


def _numbers(text: str, kind: str) -> Sequence[tuple[int, int]]:
    """``1-3,7``: [(1, 3), (7, 7)]. Raises UsageError."""
    ranges = []
    for part in text.split(","):
        low, dash, high = part.strip().partition("-")
        high = high if dash else low
        if not all(one.isascii() and one.isdigit() and len(one) <= _DIGITS_MAX for one in (low, high)):
            raise UsageError(f"-{kind}_select {text}: give numbers such as 1-3,7, or all")
        if int(low) > int(high):
            raise UsageError(f"-{kind}_select {text}: nothing is from {low} to {high}; give the lower number first")
        ranges.append((int(low), int(high)))
    return ranges
