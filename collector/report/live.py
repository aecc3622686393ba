"""What an experiment that grows has told: all in all, and between looks. Functions, threads, states.

    look: new packets of each experiment
        -> distinct (stack, epoch)    of these packets; a stack is looked up when a packet first refers to it
        -> an Interval                sums by function and thread of what is new
        -> the sums of all            to which it is added

A look costs as much as there is that is new. The sums are those that ``build`` makes of the same packets, with two
exceptions, which are noticed. The map is written by polling: when it tells of a time that has been looked at already,
all is read again, though for that no more than a hundredth of the time is spent. And functions that depend on the
order of the questions (see ``resolve``) are asked for as ``build`` asks when the experiment is over.

An interval is as long as the packets in it say: from the latest time before to the latest now. Recorders write about
once a second, whenever we look.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from collector.clock import NS_PER_S
from collector.experiment.follow import Followed, Following
from collector.experiment.reader import Experiment, open_experiment
from collector.experiment.records import PC_TRUNCATED
from collector.report import build, profile
from collector.report.address_space import Key
from collector.report.functions import Function
from collector.report.kinds import CLOCK, Columns
from collector.report.metrics import METRICS_BY_NUMSTATES, MICROSTATES, N_STATE_COLUMNS, Metric
from collector.report.profile import I4, I8, Weighted
from collector.report.resolve import (
    FAILED_FUNCTION,
    TRUNCATED_FUNCTION,
    UNKNOWN_FUNCTION,
    Code,
    LoadedObject,
    Numbers,
    Part,
    known_states,
    ticks_by,
)

WINDOW_MAX_NS = 60 * NS_PER_S
_QUIET_NS = 3 * NS_PER_S  # a recorder that writes nothing for so long has nothing to tell
_HISTORY = 1024  # intervals of which is told how much ran
_INTERVALS_MIN = 16
_AGAIN_SHARE, _AGAIN_MIN_NS = 100, 10 * NS_PER_S  # reading all again takes this part of the time


class Thread(NamedTuple):
    """A thread of a process in one program; after an exec it is another one."""

    pid: int
    tid: int
    name: bytes


@dataclass(frozen=True)
class Figures:
    """Microseconds by column (state) of functions (f, columns), own and inclusive, of threads (t, columns), of all."""

    length_ns: int
    functions: Sequence[Function]
    own: I8
    inclusive: I8
    threads: Sequence[Thread]
    by_thread: I8
    total: I8


class Interval(NamedTuple):
    """What is new with a look. ``functions`` (f,) and ``threads`` (t,) are those that have any of it."""

    length_ns: int
    functions: I8
    own: I8
    inclusive: I8
    threads: I8
    by_thread: I8
    total: I8


@dataclass
class _Sums:
    own: I8 = field(default_factory=lambda: _zeros(0))
    inclusive: I8 = field(default_factory=lambda: _zeros(0))
    by_thread: I8 = field(default_factory=lambda: _zeros(0))
    total: I8 = field(default_factory=lambda: np.zeros(N_STATE_COLUMNS, np.int64))

    def grown(self, n_functions: int, n_threads: int) -> None:
        """Make room."""
        self.own, self.inclusive = _with_rows(self.own, n_functions), _with_rows(self.inclusive, n_functions)
        self.by_thread = _with_rows(self.by_thread, n_threads)

    def add(self, one: Interval) -> None:
        """There is room for it."""
        self.own[one.functions] += one.own
        self.inclusive[one.functions] += one.inclusive
        self.by_thread[one.threads] += one.by_thread
        self.total += one.total


def whole(path: Path, threads: _Threads | None = None) -> Figures:
    """An experiment and its descendants as they are now. ``threads``: those that have their places already."""
    founder, threads = open_experiment(path), threads or _Threads()
    data = build.load([founder])
    own, inclusive = profile.exclusive(data.stacks), profile.inclusive(data.stacks)
    place = {(one.name, tid): threads.place(one.name, Thread(one.log.pid, tid, one.log.threads.get(tid, b"")))
             for one in data.experiments for tid in one.threads}

    def keys(experiment: Experiment, packets: build.Packets) -> I8:
        tids, each = np.unique(packets["THRID"], return_inverse=True)
        return np.array([place[experiment.name, tid] for tid in tids.tolist()], np.int64)[each]

    by_thread = data.weights_by(keys, len(threads.all))
    ends = [one.end_ns for one in data.experiments]
    return Figures(max(ends) - founder.log.start_ns, data.functions, own[:, :N_STATE_COLUMNS],
                   inclusive[:, :N_STATE_COLUMNS], list(threads.all), by_thread[:, :N_STATE_COLUMNS],
                   by_thread[:, :N_STATE_COLUMNS].sum(axis=0))


class Live:
    """An experiment with its descendants that is looked at again and again."""

    def __init__(self, path: Path, now: Callable[[], int] = time.monotonic_ns) -> None:
        """Raises ExperimentError."""
        self.following = Following(path)
        self.history: deque[tuple[int, I8]] = deque(maxlen=_HISTORY)  # length and total of intervals
        self.is_over = False
        self._now = now
        self._intervals: deque[Interval] = deque()
        self._final: Figures | None = None
        self._code = Code()
        self._objects: dict[Key, LoadedObject] = {}
        self._again_ns = 0
        self._told_ns = now()
        self._n_quiet = self._quiet_ns = 0  # the last intervals, in which nothing was told
        self._threads = _Threads()
        self._begin()
        if self.following.is_over:
            self._final = whole(path, self._threads)
            self.is_over = True

    def _begin(self) -> None:
        """Nothing has been told yet."""
        self._parts: dict[Followed, _Part] = {}
        self._n_begins = self.following.n_begins
        self._stacks = _StackTable()
        self._sums = _Sums()
        self._latest_ns = self.start_ns
        self._was_over = False

    # -- what there is to be seen

    @property
    def start_ns(self) -> int:
        """When recording began."""
        return self.following.founder.log.start_ns

    @property
    def has_begun(self) -> bool:
        """Whether the recorder has come to say what it records; before, there is a name and nothing else."""
        return bool(self.following.founder.log.described)

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """What the states of the founder add up to."""
        return METRICS_BY_NUMSTATES.get(self.following.founder.log.numstates, MICROSTATES)

    @property
    def n_experiments(self) -> int:
        """The founder and its descendants."""
        return len(self.following.all)

    @property
    def quiet_ns(self) -> int:
        """For how long nothing has been new."""
        return 0 if self.is_over else self._now() - self._told_ns

    def cumulative(self) -> Figures:
        """All that has been told."""
        if self._final is not None:
            return self._final
        sums, functions = self._sums, self._code.functions
        sums.grown(len(functions), len(self._threads.all))
        return Figures(self._latest_ns + self._quiet_ns - self.start_ns, functions, sums.own, sums.inclusive,
                       self._every_thread(), sums.by_thread, sums.total)

    def window(self, length_ns: int) -> Figures:
        """The last intervals, as many as are about so long, one at least; all of an experiment that was over before."""
        if not self._intervals:
            return self.cumulative()
        sums, done_ns = _Sums(), 0
        sums.grown(len(self._code.functions), len(self._threads.all))
        for one in reversed(self._intervals):
            if done_ns and done_ns + one.length_ns // 2 > length_ns:
                break
            sums.add(one)
            done_ns += one.length_ns
        return Figures(done_ns, self._code.functions, sums.own, sums.inclusive, self._every_thread(), sums.by_thread,
                       sums.total)

    def _every_thread(self) -> list[Thread]:
        return list(self._threads.all)

    def recent(self, n_intervals: int) -> list[Interval]:
        """The last intervals, oldest first."""
        return list(self._intervals)[-n_intervals:]

    # -- looking

    def look(self) -> bool:
        """Reads what is new; whether anything was. Raises ExperimentError."""
        if self.is_over:
            return False
        self.following.refresh()
        if self.following.n_begins != self._n_begins:
            self._begin()
            self._intervals.clear()
            self._n_quiet = self._quiet_ns = 0
        begin_ns, news = self._latest_ns, self._read()
        self._end_if_over()
        if not self.is_over and self._is_stale() and self._now() >= self._again_ns:
            self._read_again()
        if news is not None:
            self._forget_quiet()
            self._push(news._replace(length_ns=self._latest_ns - begin_ns))
            self._told_ns = self._now()
        elif self.quiet_ns - self._quiet_ns > _QUIET_NS and not self.is_over and self._intervals:
            self._be_quiet()
        return news is not None

    def _read(self) -> Interval | None:
        """What is new in all experiments, added to the sums; None for nothing."""
        sums = [one for followed in self.following.all if (one := self._part(followed).look()) is not None]
        if not sums:
            return None
        rows = np.concatenate([one.rows for one in sums])
        weights = np.concatenate([one.weights for one in sums])
        stacks = self._stacks.weighted(rows, weights, len(self._code.functions))
        own, inclusive = profile.exclusive(stacks), profile.inclusive(stacks)
        functions = np.flatnonzero(inclusive.any(axis=1))
        threads = np.concatenate([one.threads for one in sums])
        by_thread = np.concatenate([one.by_thread for one in sums])
        new = Interval(0, functions, own[functions], inclusive[functions], threads, by_thread, by_thread.sum(axis=0))
        self._sums.grown(len(self._code.functions), len(self._threads.all))
        self._sums.add(new)
        self._latest_ns = max(self._latest_ns, *(one.latest_ns for one in sums))
        return new

    def _part(self, followed: Followed) -> _Part:
        if followed not in self._parts:
            self._parts[followed] = _Part(followed, self._code, self._objects, self._stacks, self._threads)
        return self._parts[followed]

    def _push(self, one: Interval) -> None:
        self._intervals.append(one)
        self.history.append((one.length_ns, one.total))
        kept_ns = sum(each.length_ns for each in self._intervals)
        while len(self._intervals) > _INTERVALS_MIN and kept_ns - self._intervals[0].length_ns > WINDOW_MAX_NS:
            kept_ns -= self._intervals.popleft().length_ns

    def _be_quiet(self) -> None:
        """An interval in which nothing was told: so far."""
        none, length_ns = np.zeros(0, np.int64), self.quiet_ns - self._quiet_ns
        self._push(Interval(length_ns, none, _zeros(0), _zeros(0), none, _zeros(0), _zeros(1)[0]))
        self._n_quiet, self._quiet_ns = self._n_quiet + 1, self._quiet_ns + length_ns

    def _forget_quiet(self) -> None:
        """What is told now is of that time."""
        for kept in (self._intervals, self.history):
            for _ in range(min(self._n_quiet, len(kept))):
                kept.pop()
        self._n_quiet = self._quiet_ns = 0

    def _is_stale(self) -> bool:
        return any(part.is_stale for part in self._parts.values())

    def _is_doubtful(self) -> bool:
        return (self._is_stale() or any(part.is_doubtful for part in self._parts.values())
                or any(loaded.is_order_dependent() for loaded in self._objects.values()))

    def _end_if_over(self) -> None:
        """An experiment is over if nothing is left open at two looks: one that becomes another one may come between."""
        if not self.following.is_over:
            self._was_over = False
        elif not self._was_over:
            self._was_over = True
        else:
            self.is_over = True
            if self._is_doubtful():
                self._final = whole(self.following.path, self._threads)

    def finish(self) -> None:
        """The recorder has ended: reads what there still is. Raises ExperimentError."""
        self.look()
        if not self.is_over:
            self.is_over = True
            if self._is_doubtful():
                self._final = whole(self.following.path, self._threads)

    def _read_again(self) -> None:
        """Everything, with the map as it is now; not too often."""
        begin_ns = self._now()
        self.following.begin_again()
        self._begin()
        self._read()
        end_ns = self._now()
        self._again_ns = end_ns + max(_AGAIN_SHARE * (end_ns - begin_ns), _AGAIN_MIN_NS)


class _News(NamedTuple):
    """Of one experiment: rows of the table of stacks (n,), -1 for none, and what they weigh; the same of threads."""

    rows: I8
    weights: I8
    threads: I8
    by_thread: I8
    latest_ns: int


class _Threads:
    """The threads of all experiments; their places stay what they are."""

    def __init__(self) -> None:
        self.all: list[Thread] = []
        self._places: dict[tuple[str, int, int], int] = {}

    def place(self, experiment: str, thread: Thread) -> int:
        """The place of a thread, which has this name from here on."""
        place = self._places.setdefault((experiment, thread.pid, thread.tid), len(self.all))
        self.all[place:place + 1] = [thread]
        return place


class _StackTable:
    """Distinct stacks as functions, leaf first, for all experiments."""

    def __init__(self) -> None:
        self._n_rows = 0
        self._offsets: I8 = np.zeros(64, np.int64)
        self._objects: I4 = np.zeros(1024, np.int32)

    def add(self, stacks: Sequence[Sequence[int]]) -> int:
        """The row of the first one."""
        first, end = self._n_rows, int(self._offsets[self._n_rows])
        lengths = np.array([len(stack) for stack in stacks], np.int64)
        self._n_rows += len(stacks)
        self._offsets = _with_room(self._offsets, self._n_rows + 1)
        self._objects = _with_room(self._objects, end + int(lengths.sum()))
        self._offsets[first + 1:self._n_rows + 1] = end + np.cumsum(lengths)
        flat = [function for stack in stacks for function in stack]
        self._objects[end:end + len(flat)] = flat
        return first

    def weighted(self, rows: I8, weights: I8, n_functions: int) -> Weighted:
        """Those rows with weights; row -1: a stack of no frames."""
        objects, offsets = profile.picked(self._objects, self._offsets[:self._n_rows + 1], rows)
        return Weighted(offsets, objects, weights, n_functions)


class _Part:
    """One experiment. ``is_stale``: what was told before is not what it is by the map. ``is_doubtful``: see Stack."""

    def __init__(self, followed: Followed, code: Code, objects: dict[Key, LoadedObject], stacks: _StackTable,
                 threads: _Threads) -> None:
        self.is_stale = self.is_doubtful = False
        self._followed = followed
        self._code = code
        self._objects = objects
        self._stacks = stacks
        self._threads = threads
        self._part: Part | None = None
        self._n_map_changes = -1
        self._functions: dict[tuple[int, int], int] = {}  # by (pc, epoch)
        self._has_unknown = False
        self._rows: dict[tuple[int, int], int] = {}  # by (uid, epoch)
        self._thread_places: dict[int, int] = {}
        self._nameless: set[int] = set()  # threads whose packets were read before the log told of them
        self._n_renamed = 0
        self._latest_ns = 0
        self._is_over = False

    def look(self) -> _News | None:
        """What is new; None for nothing. Raises ExperimentError."""
        if self._is_over:
            return None
        read = [(packets["FRINFO"].astype(np.uint64), packets["TSTAMP"].copy(), packets["THRID"].copy(),
                 known_states(packets["MSTATE"]), packets["NTICK"].copy()) for packets in self._followed.look()]
        news = self._told(*map(np.concatenate, zip(*read, strict=True))) if read else None
        self._name_again()
        if self._followed.log.complete:
            self._is_over = any(event.kind == "exit" for event in self._followed.log.events)
        if self._is_over:
            self._followed.forget()
            self._rows.clear()
            self._functions.clear()
        return news

    def _told(self, uids: Numbers, times_ns: Numbers, tids: Numbers, states: Numbers, ticks: Numbers) -> _News:
        part = self._mapped()
        each, places = np.unique(uids, return_inverse=True)
        n_epochs = len(part.bounds) + 1
        codes, places = np.unique(places * n_epochs + np.searchsorted(part.bounds, times_ns, side="right"),
                                  return_inverse=True)
        number, epochs = np.divmod(codes, n_epochs)
        rows = self._rows_of(part, each[number].tolist(), epochs.tolist())
        seen, thread = np.unique(tids, return_inverse=True)
        interval_us = self._followed.log.interval_us
        self._latest_ns = max(self._latest_ns, int(times_ns.max()))
        return _News(rows, ticks_by(places, states, ticks, len(codes)) * interval_us,
                     np.array([self._thread(tid) for tid in seen.tolist()], np.int64),
                     ticks_by(thread, states, ticks, len(seen)) * interval_us, self._latest_ns)

    def _mapped(self) -> Part:
        """Where pcs are, by the map as it is now."""
        if self._part is None or self._n_map_changes != self._followed.n_map_changes:
            before, self._n_map_changes = self._part, self._followed.n_map_changes
            experiment = self._followed.experiment
            self._part = Part(self._code, lambda mapping, one: build.load_object(self._objects, mapping, one),
                              experiment, Columns(by_kind={CLOCK: MICROSTATES}))
            if before is not None:
                bounds, old = (one.bounds[one.bounds <= self._latest_ns] for one in (self._part, before))
                self.is_stale |= self._has_unknown or not np.array_equal(bounds, old)
        return self._part

    def _rows_of(self, part: Part, uids: Sequence[int], epochs: Sequence[int]) -> I8:
        """The rows of stacks in epochs (n,); those that are met for the first time are looked up."""
        keys = list(zip(uids, epochs, strict=True))
        new = {}
        for key in keys:
            if key not in self._rows:
                new[key] = self._followed.stack(key[0])
        found = {key: stack for key, stack in new.items() if stack is not None}
        self.is_doubtful |= len(found) < len(new) or not all(stack.is_whole for stack in found.values())
        self._look_up(part, ((pc, epoch) for (_, epoch), stack in found.items() for pc in stack.pcs))
        stacks = [self._functions_of(stack.pcs, epoch, stack.marker) for (_, epoch), stack in found.items()]
        first = self._stacks.add(stacks) if stacks else 0
        self._rows.update((key, first + i) for i, key in enumerate(found))
        self._rows.update((key, -1) for key in new.keys() - found.keys())
        return np.array([self._rows[key] for key in keys], np.int64)

    def _look_up(self, part: Part, wanted: Iterable[tuple[int, int]]) -> None:
        """The functions of (pc, epoch), each asked for once."""
        new = [key for key in dict.fromkeys(wanted) if key not in self._functions]
        if new:
            pcs = np.array([pc for pc, _ in new], np.uint64)
            functions = part.look_up(pcs, np.array([epoch for _, epoch in new], np.int64))
            self._functions.update(zip(new, functions, strict=True))
            self._has_unknown |= UNKNOWN_FUNCTION in functions

    def _functions_of(self, pcs: Sequence[int], epoch: int, marker: int) -> list[int]:
        """As ``resolve`` has it: without what is no frame, a leaf in the PLT stands for its caller."""
        functions = [self._functions[pc, epoch] for pc in pcs]
        if functions and functions[0] >= 0 and self._code.functions[functions[0]].is_plt:
            functions[0] = -1
        functions = [function for function in functions if function >= 0]
        if marker:
            functions.append(TRUNCATED_FUNCTION if marker == PC_TRUNCATED else FAILED_FUNCTION)
        return functions

    def _thread(self, tid: int) -> int:
        """The place of a thread among all."""
        if tid not in self._thread_places:
            self._thread_places[tid] = self._threads.place(self._followed.experiment.name, self._named(tid))
            if tid not in self._followed.log.threads:
                self._nameless.add(tid)
        return self._thread_places[tid]

    def _name_again(self) -> None:
        """Threads that have got a name, or another one."""
        log = self._followed.log
        new = set(self._thread_places) if self._n_renamed != log.n_renamed else self._nameless & log.threads.keys()
        for tid in new:
            self._threads.place(self._followed.experiment.name, self._named(tid))
        self._nameless -= new & log.threads.keys()
        self._n_renamed = log.n_renamed

    def _named(self, tid: int) -> Thread:
        log = self._followed.log
        return Thread(log.pid, tid, log.threads.get(tid, b""))


def _zeros(n: int) -> I8:
    return np.zeros((n, N_STATE_COLUMNS), np.int64)


def _with_rows(array: I8, n: int) -> I8:
    """With ``n`` rows at least. Twice as many as needed are allocated, so that growing is rare."""
    if len(array) >= n:
        return array
    return np.vstack([array, _zeros(max(n + 64, 2 * len(array)) - len(array))])


def _with_room(array: Numbers, n: int) -> Numbers:
    if len(array) >= n:
        return array
    return np.concatenate([array, np.zeros(max(n, 2 * len(array)) - len(array), array.dtype)])
