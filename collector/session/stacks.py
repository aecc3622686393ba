"""Which stack had the time: of clock samples, of departures with and without one, and of time that nothing stands for.

    departures with a stack          their own, completed where it was cut and the rest is known (``deep``); of many
                                     short waits for a CPU one lends its own to others (``lending``)
    ... with registers alone         one seen at the same site (``sites``), else their leaf, completed while it waits
    blocked, switch-out lost         its stack is read now (``blocked_stacks``)
    preempted, without a departure,  that of the clock sample before it in its batch, else of the one behind it
    or with registers alone in its
    own code
    all others                       the last stack that the thread had before, else the next one, else none
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from collector.arrays import Columns, distinct, indices, packed
from collector.events import Array, Batch, ClockSamples, Edge, Reason, Sites
from collector.experiment.recorder import Recorder
from collector.session import deep, sites
from collector.session.attach import STACK_WORDS
from collector.session.blocked_stacks import BlockedStacks
from collector.session.deep import DeepStacks
from collector.session.experiments import Experiments, Recorded
from collector.session.lending import lenders
from collector.session.managed import MadeCode
from collector.session.placing import FAILED_MARK, TRUNCATED_MARK, Placed, Unwound, interned, joined, unwound
from collector.session.tally import Tally
from collector.session.timekeeping import Timekeeping
from collector.session.world import Sleeper, World
from collector.timing.states import Departures, Microstate, Spans
from collector.timing.timeline import Edges, Periods, is_out

if TYPE_CHECKING:
    from collector.session.kernel_objects import KernelObjects

_IP, _SP, _BP = 16, 7, 6  # columns of a sample's registers
_PREEMPTED, _WAIT_CPU = int(Edge.OUT_PREEMPTED), int(Microstate.WAIT_CPU)
_NO_REASON, _HOST_FAULT = int(Reason.UNKNOWN), int(Reason.HOST_FAULT)
_NOTHING_SEEN = tuple(np.zeros(0, kind) for kind in (np.int64, np.int64, np.int64, np.uint64))
_NO_DEPARTURES = Departures(*(np.zeros(0, kind) for kind in (
    np.int64, np.int64, np.uint64, np.int8, np.uint64, np.int32)))


class LastSample(Columns):
    """Per slot: time, image, stack and CPU of the thread's last clock sample or departure (uid 0: none yet), and stack
    and state of its last clock sample in that image; and the image and stack that were the last before this batch."""

    def __init__(self) -> None:
        super().__init__(time_ns=("i8", 0), image=("i8", -1), uid=("u8", 0), clock_uid=("u8", 0), state=("i8", 0),
                         cpu=("i4", 0), image_before=("i8", -1), uid_before=("u8", 0))

    def begin_batch(self) -> None:
        """What was the last is from here on what was before."""
        self.image_before[:], self.uid_before[:] = self.image, self.uid

    def set(self, placed: Placed, time_ns: Array, cpu: Array, state: Array | None = None) -> None:
        """What samples in time order leave behind, unless others came later; without ``state`` that stays as it was.

        A stack that is cut does not replace one of the same image that is whole.
        """
        is_later = time_ns >= self.time_ns[placed.slot]
        rows = indices(is_later & (placed.whole | (self.image[placed.slot] != placed.image)))
        slot = placed.slot[rows]
        self.time_ns[slot] = time_ns[rows]
        self.clock_uid[slot[self.image[slot] != placed.image[rows]]] = 0
        self.image[slot], self.uid[slot], self.cpu[slot] = placed.image[rows], placed.uid[rows], cpu[rows]
        if state is not None:
            self.clock_uid[slot], self.state[slot] = placed.uid[rows], state[rows]


class _Seen(NamedTuple):
    """Whole stacks (n,) that a batch has shown, by thread and time."""

    slot: Array  # i8 (n,)
    time_ns: Array  # i8 (n,)
    image: Array  # i8 (n,)
    uid: Array  # u8 (n,)

    @classmethod
    def of(cls, parts: Sequence[tuple[Placed, Array]]) -> _Seen:
        """Those of samples, each part with its times."""
        columns: list[tuple[Array, ...]] = [_NOTHING_SEEN]
        for placed, time_ns in parts:
            rows = indices(placed.whole & (placed.uid != 0))
            columns.append((placed.slot[rows], time_ns[rows], placed.image[rows], placed.uid[rows]))
        slot, time_ns, image, uid = map(np.concatenate, zip(*columns, strict=True))
        order = np.lexsort((time_ns, slot))
        return cls(slot[order], time_ns[order], image[order], uid[order])

    def near(self, slot: Array, time_ns: Array, image: int) -> tuple[Array, Array]:
        """Stacks (u8, k) that threads at slots were last seen with before times (k,) in an image, and first after them;
        0 where there is none."""
        if not len(self.slot):
            return np.zeros(len(slot), np.uint64), np.zeros(len(slot), np.uint64)
        keys, wanted = packed((self.slot, self.time_ns), (slot, time_ns))
        after = keys.searchsorted(wanted, "right")
        return (self._at(after - 1, slot, image, after > 0),
                self._at(np.minimum(after, len(keys) - 1), slot, image, after < len(keys)))

    def _at(self, at: Array, slot: Array, image: int, is_there: Array) -> Array:
        is_it = is_there & (self.slot[at] == slot) & (self.image[at] == image)
        return np.where(is_it, self.uid[at], np.uint64(0))


class _Shown:
    """What a batch has shown: its clock samples and its departures, with their times. Both are put in order once, when
    they are first asked for: then all are there."""

    def __init__(self) -> None:
        self.clock: list[tuple[Placed, Array]] = []
        self.left: list[tuple[Placed, Array]] = []

    @cached_property
    def sampled(self) -> _Seen:
        """Of the clock samples alone."""
        return _Seen.of(self.clock)

    @cached_property
    def seen(self) -> _Seen:
        """Of all."""
        return _Seen.of([*self.clock, *self.left])


class Parts(NamedTuple):
    """The stacks of a batch: of clock samples, so many, and departures, with their times; and of those who made others.
    """

    samples: Unwound
    n_clock: int
    makers: Unwound
    time_ns: Array
    leaving: Leaving | None


class Leaving(NamedTuple):
    """The departures (n,) of a batch, those (k,) that have stacks of their own with the indices of their edges (-1: it
    is unknown), and which of these stands for each."""

    every: ClockSamples
    samples: ClockSamples
    at: Array  # i8 (k,)
    lender: Array  # i8 (n,)

    @classmethod
    def of(cls, every: ClockSamples, at: Array, lender: Array) -> Leaving:
        """``lender`` (n,): for each departure one that lends to itself, as an index."""
        own = indices(lender == np.arange(len(lender)))
        return cls(every, every if len(own) == len(lender) else every[own], at[own], own.searchsorted(lender))


class Stacks:
    """What is known of the stacks of all threads. Unless the engine ``records_all`` switches, departures come of looks,
    which meet the longer ones more often."""

    def __init__(self, time: Timekeeping, experiments: Experiments, world: World, tally: Tally,
                 records_all: bool) -> None:
        self._time = time
        self._model = time.model
        self._experiments = experiments
        self._world = world
        self._tally = tally
        self._records_all = records_all
        self._last = LastSample()
        self._shown = _Shown()  # by this batch
        self._sites = sites.SiteTable()
        self._deep = DeepStacks()
        self._blocked = BlockedStacks(world)
        self.made_code: MadeCode | None = None  # who names code that runtimes make
        self.kernel_objects: KernelObjects | None = None  # who names the kernel's

    # -- samples

    def unwound(self, batch: Batch, periods: Periods, step_ns: int) -> Parts | None:
        """The stacks of the samples of a batch, in one unwinding; None if it has none. ``periods``: those that it has
        closed; of waits for a CPU that are shorter than ``step_ns`` some have no stack of their own."""
        leaving = self._leaving(batch.leaving, periods, step_ns)
        parts = [batch.clock, leaving.samples if leaving else None, batch.births.makers if batch.births else None]
        some = [part for part in parts if part is not None]
        self._shown = _Shown()
        self._last.begin_batch()
        if not some:
            return None
        samples = joined(some)
        n_clock = 0 if batch.clock is None else len(batch.clock.time_ns)
        samples = replace(samples, is_of_clock=np.arange(len(samples.time_ns)) < n_clock)
        frames = unwound(samples, self._model, self._world.frames)
        n_samples = n_clock + (0 if leaving is None else len(leaving.samples.time_ns))
        return Parts(frames[:n_samples], n_clock, frames[n_samples:], samples.time_ns[:n_samples], leaving)

    def _leaving(self, leaving: ClockSamples | None, periods: Periods, step_ns: int) -> Leaving | None:
        if leaving is None:
            return None
        slot = self._model.slots(leaving.tid, leaving.pid, leaving.time_ns)
        edges = self._time.timeline.edges
        at = edges.next_at(slot, leaving.time_ns)  # switch records are stamped just behind
        found = Leaving.of(leaving, at, lenders(slot, leaving, at, edges, periods, step_ns))
        self._tally.n_lent_stacks += len(leaving.tid) - len(found.samples.tid)
        return found

    def placed(self, parts: Parts | None) -> tuple[Placed | None, Placed | None]:
        """Clock samples and departures with their stacks in the experiments, which are there by now."""
        if parts is None:
            return None, None
        self._tally.stacks(parts.samples.stop)
        placed = self._interned(parts.samples, parts.time_ns)
        return placed[:parts.n_clock], placed[parts.n_clock:]

    def sampled(self, placed: Placed, time_ns: Array, cpu: Array, state: Array) -> None:
        """Clock samples (n,) in time order have been told."""
        self._shown.clock = [(placed, time_ns)]
        self._last.grow(self._time.n_slots)
        self._last.set(placed, time_ns, cpu, state)

    # -- departures

    def departures(self, leaving: Leaving | None, placed: Placed | None, seen: Sites | None) -> Departures:
        """What is known of the batch's switch-outs: from those with stacks, and for the others from their sites."""
        known = _NO_DEPARTURES
        if leaving is not None and placed is not None and len(placed.slot):
            known = self._with_stacks(leaving, placed)
        if seen is None or np.count_nonzero(is_out(self._time.timeline.edges.edge)) <= len(known.slot):
            return known
        others = self._at_sites(seen)
        # Those with stacks last: they replace what their site would have told.
        return Departures(*(np.concatenate([getattr(others, name), getattr(known, name)])
                            for name in Departures.__slots__))

    def _with_stacks(self, all_leaving: Leaving, placed: Placed) -> Departures:
        every, leaving, at, lender = all_leaving
        regs = leaving.regs
        uid = self._deep.completed(placed, regs[:, _IP], regs[:, _SP], leaving.kernel)
        self._tally.completed(int(np.count_nonzero(uid != placed.uid)))
        self._learn_sites(placed, uid, leaving, at)
        self._last.grow(self._time.n_slots)
        self._last.set(placed, leaving.time_ns, leaving.cpu)
        self._shown.left = [(placed, leaving.time_ns)]
        self._note_last(leaving, placed)
        return Departures(placed.slot[lender], every.time_ns, uid[lender], every.mode, every.regs[:, _IP], every.cpu)

    def _learn_sites(self, placed: Placed, uid: Array, leaving: ClockSamples, at: Array) -> None:
        """Where threads leave their CPUs, but for the instructions at which others take them from them."""
        edge, off_ns = _left_at(self._time.timeline.edges, at)
        rows = indices((uid != 0) & ~_is_anywhere(edge, leaving.mode))
        if not len(rows):
            return
        ip, sp, bp = leaving.regs[rows, _IP], leaving.regs[rows, _SP], leaving.regs[rows, _BP]
        image = placed.image[rows]
        spent_ns = off_ns[rows] if self._records_all else np.zeros_like(rows)
        self._sites.learn(sites.keys(image, ip, sp, bp), uid[rows], leaving.mode[rows], image, ip, spent_ns)

    def _note_last(self, leaving: ClockSamples, placed: Placed) -> None:
        """The last departure of images that no clock sample has met yet stands for them."""
        for number in distinct(placed.image).tolist():
            recorded = self._experiments.by_image.get(number)
            if recorded is not None and recorded.last is None:
                row = int(indices(placed.image == number)[-1])
                if placed.uid[row]:
                    recorded.last = (int(leaving.tid[row]), int(leaving.cpu[row]), int(placed.uid[row]),
                                     int(Microstate.USER))

    def _at_sites(self, seen: Sites) -> Departures:
        slot = self._model.slots(seen.tid, seen.pid, seen.time_ns)
        index, epochs = self._model.epochs(seen.pid, seen.time_ns)
        image = np.array([epoch.image.number for epoch in epochs], dtype=np.int64)[index]
        site = sites.keys(image, seen.ip, seen.sp, seen.bp)
        uid, reason = self._sites.find(site)
        self._last.grow(self._time.n_slots)
        edges = self._time.timeline.edges
        edge, off_ns = _left_at(edges, edges.next_at(slot, seen.time_ns))
        anywhere = indices(_is_anywhere(edge, reason))
        self._tally.n_site_stacks += int(np.count_nonzero(uid)) - int(np.count_nonzero(uid[anywhere]))
        for number in distinct(image[anywhere]).tolist():
            rows = anywhere[image[anywhere] == number]
            uid[rows] = self._where_it_worked(slot[rows], seen.time_ns[rows], number)
        unknown = indices(uid == 0)
        if len(unknown):
            reason[unknown] = self._sites.reasons(image[unknown], seen.ip[unknown])
        for number in distinct(image[unknown]).tolist():
            recorder = self._experiments.recorders.get(number)
            if recorder is not None:
                rows = indices((uid == 0) & (image == number))
                leaf = np.stack([seen.ip[rows], np.full(len(rows), TRUNCATED_MARK)], axis=1)
                uid[rows] = recorder.frames.intern(leaf, np.full(len(rows), 2))
                self._tally.n_unknown_sites += len(rows)
                last = rows[(edge[rows] == Edge.OUT_BLOCKED) & (off_ns[rows] == 0)]
                self._deep.leaves(slot[last], image[last], uid[last], seen.ip[last], seen.sp[last], site[last])
        return Departures(slot, seen.time_ns, uid, reason, seen.ip, self._last.cpu[slot])

    # -- threads that are blocked

    @property
    def n_to_ask(self) -> int:
        """How many threads ``asked`` has room for; those behind them are not asked."""
        return self._blocked.room

    def asked(self, untold: Array, now_ns: int) -> Iterator[Departures]:
        """Where those at slots ``untold`` wait, whose departures were not told. Of whom the account has grown since it
        was read in this sleep, nothing is told: ``now_ns`` may be long ago, and it waits for something else now."""
        run_ns = self._time.ledger.accounts_off_cpu_ns(untold, self._time.timeline.clocks.begun_ns[untold])
        gone_on = {*untold[:self.n_to_ask].tolist()}
        for samples, placed in self._seen_at(untold, now_ns, STACK_WORDS, run_ns=run_ns):
            gone_on.difference_update(placed.slot.tolist())
            self._last.grow(self._time.n_slots)
            self._last.set(placed, samples.time_ns, samples.cpu)
            yield _departures(samples, placed, np.arange(len(placed.slot)))
        self._time.ask_also(gone_on)  # the next account tells that there was a run, also where no record does

    def deeper(self, blocked: Array, now_ns: int) -> Iterator[Departures]:
        """The whole stacks of those at slots ``blocked`` of which too little was copied; the kernel's part of them is
        that of their departures."""
        kernel = self._deep.kernel
        for samples, placed in chain(self._seen_at(self._deep.alone(blocked), now_ns, STACK_WORDS, kernel),
                                     self._seen_at(self._deep.open(blocked), now_ns, deep.STACK_WORDS, kernel)):
            ip, sp = samples.regs[:, _IP], samples.regs[:, _SP]
            completed, site, there = self._deep.learn(placed, ip, sp, samples.mode)
            rows, leaves = indices(completed), indices(site)
            self._tally.completed(len(rows) - len(leaves))
            self._tally.n_unknown_sites -= len(leaves)
            self._sites.learn(site[leaves], placed.uid[leaves], samples.mode[leaves], placed.image[leaves], ip[leaves],
                              np.zeros(len(leaves)))
            yield _departures(samples, placed, indices(completed | there))

    def _seen_at(self, slots: Array, now_ns: int, stack_words: int,
                 kernel_of: Callable[[Array], Array | None] | None = None,
                 run_ns: Array | None = None) -> Iterator[tuple[ClockSamples, Placed]]:
        """A look at blocked threads (n,), by process. ``run_ns`` (n,): see Sleeper; without it, there is none."""
        threads = [self._model.threads[slot] for slot in slots.tolist()]
        accounts = run_ns.tolist() if run_ns is not None else [-1] * len(threads)
        sleepers = [Sleeper(thread.process.pid, thread.tid, ns) for thread, ns in zip(threads, accounts, strict=True)]
        for samples in self._blocked.read(sleepers, now_ns, stack_words) if sleepers else ():
            frames = unwound(samples, self._model, self._world.frames)
            if kernel_of is not None:
                frames.kernel = kernel_of(frames.slot)
            yield samples, self._interned(frames, samples.time_ns)

    def _interned(self, frames: Unwound, time_ns: Array) -> Placed:
        placed = interned(frames, self._experiments.recorders)
        if self.made_code is not None:
            self.made_code.met(frames, time_ns)
        if self.kernel_objects is not None:
            self.kernel_objects.met(frames)
        return placed

    def close(self, ended: Sequence[Recorded]) -> None:
        """Nothing more will be said of these images, once this has been."""
        if not ended:
            return
        gone = [number for each in ended for number in each.numbers]
        self._sites.forget(gone)
        self._deep.forget(gone)
        if self.made_code is not None:
            self.made_code.close(ended)
        if self.kernel_objects is not None:
            self.kernel_objects.close(ended)

    def forget_images(self, numbers: Sequence[int]) -> None:
        """Experiments have gone on from these images, of which nothing more will be said."""
        self._sites.forget(numbers)
        self._deep.forget(numbers)
        if self.made_code is not None:
            self.made_code.forget(numbers)

    # -- time that no sample stands for

    def known_or_last(self, spans: Spans) -> Array:
        """The stacks (u8, s) of spans in one image: of a wait for a CPU, where its own is unknown, that of the clock
        sample next to its begin; else the last one that the thread had before, else the next one, else 0."""
        unknown = spans.uid == 0
        if not unknown.any():
            return spans.uid
        uid = spans.uid.copy()
        image = int(self._model.of.image[spans.slot[0]])
        waits = spans.state == _WAIT_CPU
        for rows, stacks_of in ((indices(unknown & waits), self._where_it_worked),
                                (indices(unknown & ~waits), self._last_before)):
            if len(rows):
                uid[rows] = stacks_of(spans.slot[rows], spans.begun_ns[rows], image)
        return uid

    def _where_it_worked(self, slot: Array, time_ns: Array, image: int) -> Array:
        """Stacks (u8, k) of the clock samples of threads at slots next to times (k,), the one before rather than the
        one behind; else as below."""
        uid, behind = self._shown.sampled.near(slot, time_ns, image)
        uid = np.where(uid == 0, behind, uid)
        rows = indices(uid == 0)
        if len(rows):
            uid[rows] = self._last_before(slot[rows], time_ns[rows], image)
        return uid

    def _last_before(self, slot: Array, time_ns: Array, image: int) -> Array:
        """Stacks (u8, k) that threads at slots had last before times (k,), else the next one after them, else 0."""
        before, behind = self._shown.seen.near(slot, time_ns, image)
        last, none = self._last, np.uint64(0)
        last.grow(self._time.n_slots)
        earlier = np.where(last.image_before[slot] == image, last.uid_before[slot], none)
        later = np.where(last.image[slot] == image, last.uid[slot], none)
        uid = before
        for other in (earlier, behind, later):
            uid = np.where(uid == 0, other, uid)
        return uid

    def known_or_last_of(self, recorder: Recorder, slot: int, uid: int) -> int:
        """The same of a single thread."""
        if uid:
            return uid
        self._tally.n_borrowed_stacks += 1
        self._last.grow(self._time.n_slots)
        own = self._last.image[slot] == self._model.of.image[slot]
        return int(self._last.uid[slot] if own else 0) or int(no_stack(recorder)[0])

    def of_cpu_time(self, recorded: Recorded, slot: int) -> tuple[int, int, int, int] | None:
        """Tid, CPU, uid and state that stand for time on CPU of a thread that has ended; None where nothing does.

        That is its last clock sample; else one of others of its kind; else its last departure; else what others did.
        """
        self._last.grow(self._time.n_slots)
        last, thread = self._last, self._model.threads[slot]
        is_own = last.image[slot] == self._model.of.image[slot]
        if is_own and last.clock_uid[slot]:
            return thread.tid, int(last.cpu[slot]), int(last.clock_uid[slot]), int(last.state[slot])
        life_ns = thread.start_ns, int(self._time.timeline.clocks.since_ns[slot])
        is_first = thread.tid == thread.process.pid
        found = recorded.recent.borrowed(life_ns, of_first=is_first)
        if found is None and is_own and last.uid[slot]:
            found = int(last.cpu[slot]), int(last.uid[slot]), int(Microstate.USER)
        found = found or recorded.recent.borrowed(life_ns, of_first=not is_first)
        if found is None and recorded.last is not None:
            found = recorded.last[1:]
        return (thread.tid, *found) if found is not None else None

    def last_cpu(self, slot: int) -> int:
        """The CPU that a thread was last seen on."""
        self._last.grow(self._time.n_slots)
        return int(self._last.cpu[slot])

    def forget(self, slots: Array) -> None:
        """The threads at slots are over, and the slots are free."""
        self._last.grow(self._time.n_slots)
        self._last.reset(slots)
        self._deep.give_back(slots)


def _left_at(edges: Edges, at: Array) -> tuple[Array, Array]:
    """The Edge (n,) of departures with edges at indices ``at`` (n,), -1 where that is -1; and for how long each was off
    its CPU then, 0 where it still is."""
    if not len(edges.slot):
        return at, np.zeros_like(at)
    behind = np.minimum(at + 1, len(edges.slot) - 1)
    is_over = (at >= 0) & (edges.slot[behind] == edges.slot[at])
    return np.where(at >= 0, edges.edge[at], -1), np.where(is_over, edges.time_ns[behind] - edges.time_ns[at], 0)


def _is_anywhere(edge: Array, reason: Array) -> Array:
    """Which departures (n,) were at no place that has to do with them: another thread was given the CPU while this one
    was in its own code, or a hypervisor had taken a page. The clock tells as well where that was, and one with the same
    registers may be of long ago."""
    found: Array = (edge == _PREEMPTED) & (reason == _NO_REASON) | (reason == _HOST_FAULT)
    return found


def no_stack(recorder: Recorder) -> Array:
    """The stack (1,) that says that none was had."""
    return recorder.frames.intern_one(int(FAILED_MARK))


def _departures(samples: ClockSamples, placed: Placed, rows: Array) -> Departures:
    return Departures(placed.slot[rows], samples.time_ns[rows], placed.uid[rows], samples.mode[rows],
                      samples.regs[rows, _IP], samples.cpu[rows])
