"""Aggregations while recording goes on: stretches in, the file ``aggregations`` of each experiment out.

    tap -> stretches -> whole ones -> spans, by experiment -> Aggregation, one of each expression -> file

Stretches off the CPU come in parts while they last; a value is the whole length, so the parts are joined here. A part
is known to be the last one when the thread's next stretch comes, or its end. What a recording sees only a part of, as
it begins, pauses and ends meanwhile (``windows``), is synthetic.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from typing import Any, overload

import numpy as np

from collector.aggregate.aggregation import Aggregation
from collector.aggregate.language import Query, compiled
from collector.aggregate.spans import ON_CPU as ON_CPU_STATES
from collector.aggregate.spans import POINTERS, Source, Spans
from collector.aggregate.syntax import NUMBERS, STACKS, STATES, parse
from collector.arrays import distinct, indices
from collector.clock import NS_PER_S
from collector.events import Array, Batch
from collector.experiment.aggregations import Stored, pack
from collector.experiment.recorder import Recorder
from collector.experiment.records import KEY_NAME, KEY_NUMBER, KEY_STACK, NOT_SAMPLED
from collector.processes.model import Model, Thread
from collector.session.calls import Calls
from collector.session.experiments import Experiments, Recorded
from collector.session.placing import Placed
from collector.session.running import RunningStacks
from collector.session.tap import ON_CPU, Stretches
from collector.session.waker_stacks import WakerStacks
from collector.session.wakers import Wakers
from collector.session.windows import Windows, cut
from collector.session.world import World

_STATE_ON_CPU = STATES.index("oncpu")
_PERIOD_NS = NS_PER_S
_SHARE = 50  # storing takes one of so many parts of the time at most
_VALUES_OF_RUNS = ("oncpu", "1")  # which runs have as shares


class Aggregating:
    """Folds what the tap tells into the aggregations of each experiment that is open."""

    def __init__(self, expressions: Sequence[str], model: Model, experiments: Experiments, world: World,
                 records_all: bool) -> None:
        """``expressions`` have been checked (``asked``). Unless the engine ``records_all`` switches, stretches come of
        looks now and then: they sum up right, but one may stand for many, so all of them are synthetic."""
        self._queries = [_recording_query(expression) for expression in expressions]
        self._model = model
        self._experiments = experiments
        self._records_all = records_all
        self._whole = WholeStretches()
        self._windows = Windows()
        self._shares = [_has_running_stacks(query) for query in self._queries]
        self._running = RunningStacks() if any(self._shares) else None
        self._wakers: Wakers | None = None
        self._waker_stacks: WakerStacks | None = None
        self._calls: Calls | None = None
        self._of: dict[Recorded, list[Aggregation]] = {}
        self._changed: dict[Recorded, None] = {}
        self._due_ns = 0
        self._n_dropped = 0  # of experiments that are over
        # Stacks are keys by their uids, and get their names when they are read.
        self._tables: dict[str, Sequence[Hashable]] = dict.fromkeys(STACKS, range(NOT_SAMPLED + 1))
        self._tables |= {"execname": _Names(model, _execname), "comm": _Names(model, _comm)}
        pointers = {POINTERS.get(name) for query in self._queries for name in query.needs}
        if "syscall" in pointers:
            self._calls = Calls()
            self._tables["syscall"] = self._calls.names
        if "wakerstack" in pointers:
            self._waker_stacks = WakerStacks(self._directory_of)
            self._tables["wakerstack"] = self._waker_stacks.numbers.things
        if "waker" in pointers or self._waker_stacks is not None:
            self._wakers = Wakers(model, _comm, world.comm, self._waker_stacks)
            self._tables |= {"waker": self._wakers.names, "wakertid": self._wakers.tids}

    @property
    def n_dropped(self) -> int:
        """Values of keys for which there was no room."""
        return self._n_dropped + sum(each.n_dropped for of in self._of.values() for each in of)

    def saw(self, batch: Batch, clock: Placed | None, leaving: Placed | None) -> None:
        """What else there is to know of the stretches to come: clock samples with their stacks, departures with their
        calls, and wake-ups."""
        if self._calls is not None:
            self._calls.saw(batch.leaving, leaving, batch.calls)
        if self._wakers is not None:
            self._wakers.saw(batch.wakings)
        if self._waker_stacks is not None and batch.clock is not None and clock is not None:
            self._waker_stacks.sampled(clock, batch.clock.time_ns)
        if self._running is not None and batch.clock is not None and clock is not None:
            seen = self._windows.sees(batch.clock.time_ns)  # in a pause, a run's stacks are of time that is not told
            self._running.sampled(clock.slot[seen], batch.clock.time_ns[seen], clock.uid[seen])

    def take(self, stretches: Stretches) -> None:
        """Further stretches; those of a pause are in no aggregation."""
        spans = _spans(stretches)
        if not self._records_all:
            spans.source[:] = Source.SYNTHETIC
        if self._wakers is not None:
            waker, stack = self._wakers.with_stacks(spans)
            spans = replace(spans, waker=waker, wakerstack=stack)
        if self._calls is not None:
            spans = replace(spans, syscall=self._calls.of(spans, stretches.image))
        seen = self._windows.within(spans, self._model.of.found_ns[spans.slot])
        if len(seen):
            self._add(self._whole.complete(seen))

    def looks(self, now_ns: int, whether: bool) -> None:
        """Recording resumes; or pauses, or ends: what threads wait for then goes on without us."""
        if whether:
            self._windows.open(now_ns)
            return
        self._windows.close(now_ns)
        held = self._whole.close()
        if held is not None:
            self._add(cut(held, np.ones(len(held), dtype=bool)))

    def ended(self, slots: Array) -> None:
        """The threads at slots are over, as the batch tells; what they were in is. Their slots are not free yet."""
        if len(slots):
            self._end(slots)
        if self._wakers is not None:
            self._wakers.forget_but(self._whole.held)

    def _end(self, slots: Array) -> None:
        over = self._whole.close(slots)
        if over is not None:
            self._add(over)
        for one in (self._running, self._calls, self._waker_stacks):
            if one is not None:
                one.forget(slots)
        for recorded, of_image in self._by_experiment(self._model.of.image[slots]):
            for aggregation in self._aggregations(recorded):
                aggregation.close(self._tables, slots[of_image])
            self._changed[recorded] = None

    def sync(self, now_ns: int) -> None:
        """Stores what has changed, if that is due."""
        if now_ns < self._due_ns or not self._changed:
            return
        begun_ns = time.monotonic_ns()
        for recorded in list(self._changed):
            self._store(recorded)
        self._due_ns = now_ns + max(_PERIOD_NS, _SHARE * (time.monotonic_ns() - begun_ns))

    def close(self, ended: Iterable[Recorded]) -> None:
        """Stores those of experiments that are over. Of the founder's, which stays open, they are kept."""
        for recorded in ended:
            self._store(recorded)
            if recorded.parent is not None:
                self._n_dropped += sum(each.n_dropped for each in self._of.pop(recorded, ()))

    def _store(self, recorded: Recorded) -> None:
        self._changed.pop(recorded, None)
        if recorded in self._of and recorded.recorder is not None:
            content = pack([_stored(aggregation) for aggregation in self._of[recorded]])
            recorded.tell(Recorder.aggregations, content)

    def _add(self, spans: Spans) -> None:
        """Whole stretches, by slot and in time order."""
        told = [(spans, False)]
        if self._running is not None:
            told.append((self._running.shared(spans), True))
        for part, is_shared in told:
            for recorded, rows in self._by_experiment(self._model.of.image[part.slot]):
                for aggregation, shares in zip(self._aggregations(recorded), self._shares, strict=True):
                    if shares == is_shared:
                        aggregation.add(part[rows], self._tables)
                self._changed[recorded] = None

    def _directory_of(self, image: int) -> str | None:
        recorded = self._experiments.by_image.get(image)
        return None if recorded is None or recorded.recorder is None else recorded.recorder.path.name

    def _by_experiment(self, image: Array) -> Iterable[tuple[Recorded, Array]]:
        """The experiments of some images (n,), and which of them they are."""
        for number in distinct(image).tolist():
            recorded = self._experiments.by_image.get(number)
            if recorded is not None and recorded.recorder is not None:
                yield recorded, indices(image == number)

    def _aggregations(self, recorded: Recorded) -> list[Aggregation]:
        if recorded not in self._of:
            self._of[recorded] = [Aggregation(query) for query in self._queries]
        return self._of[recorded]


class WholeStretches:
    """Joins the parts in which stretches off the CPU are told: of each thread that is off the CPU one is held back."""

    def __init__(self) -> None:
        self.held: Spans | None = None

    def complete(self, spans: Spans) -> Spans:
        """Those that are whole, by slot and in time order."""
        told = spans if self.held is None else self.held.followed_by(spans)
        if not len(told):
            return told
        told = told[np.lexsort((told.start_ns, told.slot))]
        off_cpu = ~np.isin(told.state, ON_CPU_STATES)
        first, last = np.ones(len(told), dtype=bool), np.ones(len(told), dtype=bool)
        goes_on = (told.slot[1:] == told.slot[:-1]) & (told.state[1:] == told.state[:-1]) & off_cpu[1:]
        goes_on &= told.start_ns[1:] == told.end_ns[:-1]
        first[1:], last[:-1] = ~goes_on, ~goes_on
        whole = replace(told[last], start_ns=told.start_ns[first],
                        source=np.maximum.reduceat(told.source, indices(first)))
        held = off_cpu[last] & np.append(whole.slot[1:] != whole.slot[:-1], True)
        self.held = whole[held]
        return whole[~held]

    def close(self, slots: Array | None = None) -> Spans | None:
        """The held ones of these slots, whose threads are over; or all."""
        if self.held is None:
            return None
        gone = np.isin(self.held.slot, slots) if slots is not None else np.ones(len(self.held), dtype=bool)
        over, self.held = self.held[gone], self.held[~gone]
        return over


class _Names(Sequence[Hashable]):
    """A name by slot."""

    def __init__(self, model: Model, name_of: Callable[[Thread], bytes]) -> None:
        self._model = model
        self._name_of = name_of

    def __len__(self) -> int:
        return len(self._model.of.image)

    @overload
    def __getitem__(self, slot: int) -> Hashable: ...

    @overload
    def __getitem__(self, slot: slice) -> Sequence[Hashable]: ...

    def __getitem__(self, slot: Any) -> Any:
        return self._name_of(self._model.threads[slot])


def _execname(thread: Thread) -> bytes:
    """The name of the program; that of a script is the script's, and is cut by the kernel after 15 bytes."""
    image = thread.image
    base = image.path.rsplit(b"/", 1)[-1]
    return base if base.startswith(image.comm) else image.comm


def _comm(thread: Thread) -> bytes:
    return thread.name or thread.image.comm or _execname(thread)


def _has_running_stacks(query: Query) -> bool:
    return query.value in _VALUES_OF_RUNS and not query.needs.isdisjoint(STACKS)


def _recording_query(expression: str) -> Query:
    """With whole stacks: frames are counted when stacks are read."""
    parsed = parse(expression)
    return compiled(parsed._replace(keys=tuple(key._replace(depth=None) for key in parsed.keys)))


def _spans(stretches: Stretches) -> Spans:
    state = np.where(stretches.state == ON_CPU, _STATE_ON_CPU, stretches.state).astype(np.uint8)
    return Spans(stretches.start_ns, stretches.end_ns, state, stretches.slot, stretches.tid, stretches.pid,
                 stretches.cpu, stretches.uid.astype(np.int64), stretches.source.astype(np.uint8))


def _stored(aggregation: Aggregation) -> Stored:
    names: dict[bytes, int] = {}
    kinds = [_kind(key) for key in aggregation.query.keys]
    entries = [*aggregation.recorded.states(), *aggregation.synthetic.states()]
    keys = [[_word(kind, element, names) for kind, element in zip(kinds, key, strict=True)] for key, _ in entries]
    n_words = aggregation.query.fold.n_words
    states = np.array([state for _, state in entries], dtype=np.uint64).reshape(len(entries), n_words)
    return Stored(aggregation.query.expression, tuple(kinds),
                  np.array(keys, dtype=np.int64).reshape(len(entries), len(kinds)), states, len(aggregation.recorded),
                  tuple(names), aggregation.n_dropped)


def _kind(key: str) -> int:
    return KEY_NUMBER if key in NUMBERS else KEY_STACK if key in STACKS else KEY_NAME


def _word(kind: int, element: Any, names: dict[bytes, int]) -> int:
    """What stands for a key's element; ``names`` are numbered as they come."""
    if kind != KEY_NAME:
        return int(element)
    name = element if isinstance(element, bytes) else str(element).encode()
    return names.setdefault(name, len(names))
