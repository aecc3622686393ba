"""From batches of events to packets in experiments: the one way that everything recorded takes.

    batch -> changes -> model (images, spaces, threads), maps and logs of the experiments
          -> switches -> exact clocks of all threads
          -> clock samples -> frames (one unwinding for all) -> stacks interned -> packets with the ticks they earn

Each step works on whole arrays; Python loops run over changes, images and threads that end, never over samples.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from collector.events import (
    Array,
    Batch,
    ClockSamples,
    Executed,
    Exited,
    Forked,
    Mapped,
    Mode,
    RecordsLost,
    Renamed,
    Switches,
    Throttled,
)
from collector.experiment.recorder import Recorder
from collector.session.objects import VDSO, Objects, is_file
from collector.session.tally import Tally
from collector.target.microstate import Cut, ThreadClocks
from collector.target.model import Model
from collector.target.process import Epoch, Image, Process
from collector.target.space import AddressSpace, Mapping
from collector.unwind import batch as unwinding
from collector.unwind.batch import Frames, Maps, Stacks, Stop
from collector.unwind.table import Tables

USER_CPU, SYSTEM_CPU, TRAP_CPU = 0, 1, 2
N_STATES = 10

# What stands at the root of a stack that does not reach it.
TRUNCATED_MARK = np.uint64(2**64 - 2)
FAILED_MARK = np.uint64(2**64 - 3)

_STATE_OF_MODE = np.array([USER_CPU, SYSTEM_CPU, TRAP_CPU], dtype=np.int32)
assert [Mode.USER, Mode.SYSTEM_CALL, Mode.TRAP] == [0, 1, 2]


@dataclass(slots=True, eq=False)
class Recorded:
    """An image that is recorded: its experiment and what has been written to it."""

    image: Image
    recorder: Recorder
    state_ticks: Array = field(default_factory=lambda: np.zeros(N_STATES, dtype=np.int64))
    ended_cpu_ns: int = 0  # of threads that have ended
    pool_ns: int = 0  # running time of ended threads that no tick stands for yet
    last: tuple[int, int, int, int] | None = None  # tid, cpu, uid, state of the last sample


@dataclass(slots=True)
class LastSample:
    """Per slot: the stack, state and CPU of the thread's last sample (uid 0: none yet)."""

    uid: Array
    state: Array
    cpu: Array

    def grown(self, n: int) -> LastSample:
        """The same with room for ``n`` slots."""
        if n <= len(self.uid):
            return self
        more = max(n, 2 * len(self.uid)) - len(self.uid)
        return LastSample(*(np.concatenate([a, np.zeros(more, dtype=a.dtype)])
                            for a in (self.uid, self.state, self.cpu)))


class Pipeline:
    """Feeds on batches. ``recorder_for`` gives the experiment of an image, or None where it is not to be recorded."""

    def __init__(self, interval_ns: int, recorder_for: Callable[[Process, Image], Recorder | None],
                 tally: Tally) -> None:
        self.interval_ns = interval_ns
        self.clocks = ThreadClocks(interval_ns)
        self.model = Model(self.clocks)
        self.tables = Tables()
        self.objects = Objects(self.tables)
        self.tally = tally
        self.recorded: dict[int, Recorded] = {}  # by image number
        self._recorder_for = recorder_for
        self._last = LastSample(np.zeros(64, np.uint64), np.zeros(64, np.int32), np.zeros(64, np.int32))

    def feed(self, batch: Batch) -> None:
        """Takes one batch; afterwards its arrays are not needed any more."""
        for change in batch.changes:
            _APPLY[type(change)](self, change)
        self._advance(batch.switches)
        self._last = self._last.grown(self.clocks.n_slots)
        if batch.clock is not None:
            self._clock(batch.clock)
        self._settle_ended(batch.until_ns)
        self.model.forget_before(batch.until_ns)

    def finish(self, time_ns: int) -> None:
        """The recording ends: what threads still owe is settled as if they ended now."""
        for thread in self.model.threads:
            if thread.alive:
                self.model.cuts.add(thread.slot, time_ns, Cut.ENDED)
                thread.alive = False
        self._advance(None)
        self._settle_ended(time_ns)

    def begin(self, process: Process) -> None:
        """Starts recording the process's present image, if it is to be recorded."""
        recorder = self._recorder_for(process, process.image)
        if recorder is not None:
            self.recorded[process.image.number] = Recorded(process.image, recorder)

    def cpu_ns(self, recorded: Recorded, time_ns: int) -> int:
        """Exact running time of all threads of an image so far."""
        process = self.model.processes.get(recorded.image.pid)
        if process is None or process.image is not recorded.image:
            return recorded.ended_cpu_ns
        slots = np.fromiter(process.threads.values(), dtype=np.int64)
        running = np.where(self.clocks.kind[slots] == Cut.IN, time_ns - self.clocks.since_ns[slots], 0)
        return recorded.ended_cpu_ns + int(self.clocks.cpu_ns[slots].sum() + np.maximum(running, 0).sum())

    # -- changes

    def _on_fork(self, change: Forked) -> None:
        known = change.pid in self.model.processes
        thread = self.model.forked(change)
        if not known:
            self.begin(thread.process)
        self._started(thread.process, change.tid, change.time_ns)

    def _on_exit(self, change: Exited) -> None:
        self.model.exited(change)

    def _on_rename(self, change: Renamed) -> None:
        slot = self.model.slot_of(change.tid, change.time_ns)
        if slot is not None:
            self.model.threads[slot].name = change.comm

    def _on_exec(self, change: Executed) -> None:
        process, old = self.model.executed(change)
        before = self.recorded.get(old.number)
        if before is not None and before.image is old:
            # The founder alone is recorded, and goes on in its experiment under its new image.
            for mapping in process.epochs[-2].space.mappings if len(process.epochs) > 1 else ():
                before.recorder.unmapped(change.time_ns, mapping.start, mapping.end - mapping.start)
            self.recorded[process.image.number] = before
            before.image = process.image
        else:
            self.begin(process)
            self._started(process, change.pid, change.time_ns)

    def _on_map(self, change: Mapped) -> None:
        process = self.model.processes.get(change.pid)
        if process is None:
            return
        known, bias = self.objects.place(change)
        if known.object is not None and change.path != VDSO and not process.space.mappings:
            process.image.bits = known.object.word_size * 8
        mapping = Mapping(change.start, change.start + change.size, change.file_offset, change.path, known.number, bias)
        space, _ = process.space.map(mapping)
        process.enter(change.time_ns, process.image, space)
        recorded = self.recorded.get(process.image.number)
        if recorded is not None:
            self._write_mapping(recorded.recorder, change.time_ns, mapping)

    def _on_loss(self, change: RecordsLost) -> None:
        self.tally.lost(change.source, change.count)

    def _on_throttle(self, change: Throttled) -> None:
        self.tally.n_throttled += 1

    def _started(self, process: Process, tid: int, time_ns: int) -> None:
        recorded = self.recorded.get(process.image.number)
        if recorded is not None:
            recorded.recorder.thread_started(tid, time_ns, process.image.comm)

    def _write_mapping(self, recorder: Recorder, time_ns: int, mapping: Mapping) -> None:
        size = mapping.end - mapping.start
        if mapping.path == VDSO:
            recorder.function_mapped(time_ns, mapping.start, size, VDSO, self._symbols(mapping))
        elif is_file(mapping.path):
            recorder.segment_mapped(time_ns, mapping.start, size, mapping.file_offset, mapping.path)
        else:
            name = mapping.path if mapping.path.startswith(b"[") else b"[anonymous code]"
            recorder.function_mapped(time_ns, mapping.start, size, name)

    def _symbols(self, mapping: Mapping) -> list[tuple[int, int, bytes]]:
        """The functions of a load object at their run-time addresses: (start, size, name), one per address."""
        if mapping.object < 0:
            return []
        symbols = self.objects.by_number[mapping.object].symbols
        by_start = {}
        for i in range(len(symbols)):
            start, size = int(symbols.value[i]) + mapping.bias, int(symbols.size[i])
            if size and start + size <= mapping.end:
                by_start[start] = (start, size, symbols.name(i))
        return [by_start[start] for start in sorted(by_start)]

    # -- clocks

    def _advance(self, switches: Switches | None) -> None:
        cuts = self.model.cuts
        if switches is not None:
            slot = self.model.slots(switches.tid, switches.pid, switches.time_ns)
            cuts = self.model.take_cuts()  # after slots(): strays have been added
            slot = np.concatenate([slot, np.array(cuts.slot, dtype=np.int64)])
            time_ns = np.concatenate([switches.time_ns, np.array(cuts.time_ns, dtype=np.int64)])
            cut = np.concatenate([switches.edge, np.array(cuts.cut, dtype=np.int8)])
        else:
            cuts = self.model.take_cuts()
            slot, time_ns, cut = (np.array(cuts.slot, dtype=np.int64), np.array(cuts.time_ns, dtype=np.int64),
                                  np.array(cuts.cut, dtype=np.int8))
        self._ending = np.unique(slot[cut == Cut.ENDED])
        # BORN before anything else of its thread, ENDED after everything else, whatever their stamps say.
        rank = np.where(cut == Cut.BORN, 0, np.where(cut == Cut.ENDED, 2, 1))
        order = np.lexsort((time_ns, rank))
        self.clocks.advance(slot[order], time_ns[order], cut[order])

    def _clock(self, clock: ClockSamples) -> None:
        slot = self.model.slots(clock.tid, clock.pid, clock.time_ns)
        self._last = self._last.grown(self.clocks.n_slots)
        index, epochs = self.model.epochs(clock.pid, clock.time_ns)
        pcs, length = self._unwind(clock, index, epochs)
        ticks = self.clocks.ticks_of_samples(slot, clock.time_ns)
        state = _STATE_OF_MODE[clock.mode]
        image = np.array([epoch.image.number for epoch in epochs])[index]
        uid = np.zeros(len(slot), dtype=np.uint64)
        for number in np.unique(image).tolist():
            recorded = self.recorded.get(number)
            if recorded is not None:
                rows = np.flatnonzero(image == number)
                uid[rows] = recorded.recorder.frames.intern(pcs[rows], length[rows])
                self._write(recorded, rows[ticks[rows] > 0], clock, uid, state, ticks)
        self._last.uid[slot], self._last.state[slot], self._last.cpu[slot] = uid, state, clock.cpu

    def _write(self, recorded: Recorded, rows: Array, clock: ClockSamples, uid: Array, state: Array,
               ticks: Array) -> None:
        """The packets of one image's samples."""
        if not len(rows):
            return
        recorded.recorder.clock(clock.tid[rows], clock.cpu[rows], clock.time_ns[rows], uid[rows], state[rows],
                                ticks[rows])
        recorded.state_ticks += np.bincount(state[rows], ticks[rows], N_STATES).astype(np.int64)
        end = rows[-1]
        recorded.last = (int(clock.tid[end]), int(clock.cpu[end]), int(uid[end]), int(state[end]))
        self.tally.n_packets += len(rows)

    def _unwind(self, clock: ClockSamples, index: Array, epochs: list[Epoch]) -> tuple[Array, Array]:
        """Stacks of all samples as (pcs (n, depth), length (n,)), with marks where the root was not reached."""
        space = np.array([epoch.space.number for epoch in epochs], dtype=np.int64)[index]
        maps = merged_maps([epoch.space for epoch in epochs])
        stacks = Stacks(space=space, regs=clock.regs, known=None, words=clock.words, base=clock.base, mask=clock.mask,
                        first=clock.first, low=clock.low, n_words=clock.n_words)
        frames = unwinding.unwind(stacks, maps, self.tables)
        self.tally.stacks(frames.stop)
        return marked(frames)

    # -- ends

    def _settle_ended(self, time_ns: int) -> None:
        """Running time that no clock sample stood for, given to stacks that the thread is known to have had.

        Whole intervals go to the thread's last stack. What is left is pooled over the image's threads, so that many
        short threads together get their due; images without any sample are counted.
        """
        for slot in self._ending.tolist():
            thread = self.model.threads[slot]
            recorded = self.recorded.get(thread.image.number) or self.recorded.get(thread.process.image.number)
            if recorded is None:
                continue
            uid = int(self._last.uid[slot])
            recorded.ended_cpu_ns += int(self.clocks.cpu_ns[slot])
            recorded.pool_ns += self.clocks.residue_ns(slot)
            stack = (thread.tid, int(self._last.cpu[slot]), uid, int(self._last.state[slot])) if uid else recorded.last
            ticks = recorded.pool_ns // self.interval_ns
            if ticks > 0 and stack is not None:
                self._write_ticks(recorded, stack, int(self.clocks.since_ns[slot]), ticks)

    def _write_ticks(self, recorded: Recorded, stack: tuple[int, int, int, int], time_ns: int, ticks: int) -> None:
        tid, cpu, uid, state = stack
        recorded.recorder.clock(*(np.array([value], dtype=kind) for value, kind in (
            (tid, np.int64), (cpu, np.int32), (time_ns, np.int64), (uid, np.uint64), (state, np.int32),
            (ticks, np.int32))))
        recorded.pool_ns -= ticks * self.interval_ns
        recorded.state_ticks[state] += ticks
        self.tally.n_packets += 1
        self.tally.n_settled_ticks += ticks


def merged_maps(spaces: list[AddressSpace]) -> Maps:
    """The mappings of all spaces, sorted by space and address."""
    by_number = {space.number: space for space in spaces}
    rows = [(number, m.start, m.end, m.bias % 2**64, m.object)
            for number in sorted(by_number) for m in by_number[number].mappings]
    columns = list(zip(*rows, strict=True)) if rows else [(), (), (), (), ()]
    kinds = (np.int64, np.uint64, np.uint64, np.uint64, np.int64)
    space, start, end, bias, number = (np.array(c, dtype=k) for c, k in zip(columns, kinds, strict=True))
    return Maps(space=space, start=start, end=end, bias=bias, object=number)


def marked(frames: Frames) -> tuple[Array, Array]:
    """The frames with a mark behind the last one where the stack does not reach the root."""
    n, depth = frames.pcs.shape
    unfinished = frames.stop != Stop.ROOT
    if not unfinished.any():
        return frames.pcs, frames.length
    pcs = np.zeros((n, depth + 1), dtype=np.uint64)
    pcs[:, :depth] = frames.pcs
    rows = np.flatnonzero(unfinished)
    cut_short = np.isin(frames.stop[rows], [Stop.TRUNCATED, Stop.DEPTH])
    pcs[rows, frames.length[rows]] = np.where(cut_short, TRUNCATED_MARK, FAILED_MARK)
    return pcs, frames.length + unfinished


_APPLY: dict[type, Callable[..., None]] = {
    Forked: Pipeline._on_fork, Exited: Pipeline._on_exit, Renamed: Pipeline._on_rename, Executed: Pipeline._on_exec,
    Mapped: Pipeline._on_map, RecordsLost: Pipeline._on_loss, Throttled: Pipeline._on_throttle,
}
