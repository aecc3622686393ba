"""From batches of events to packets in experiments: the one way that everything recorded takes.

    batch -> changes -> model (images, spaces, threads), maps and logs of the experiments
          -> switches -> exact clocks of all threads; the periods that they close
          -> samples -> one unwinding for all -> stacks interned per experiment
          -> clock samples: packets with the ticks that they earn
          -> periods off CPU: their states, and packets with the ticks that those earn

Each step works on whole arrays; Python loops run over changes, images and threads that end, never over samples.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from collector.arrays import distinct, numbered
from collector.events import (
    Accounts,
    Array,
    Batch,
    ClockSamples,
    Edge,
    Executed,
    Exited,
    Faults,
    Forked,
    Mapped,
    Mode,
    RecordsLost,
    Renamed,
    Sites,
    Switches,
    Throttled,
    Wakings,
)
from collector.experiment.map import MODES_TEXT
from collector.experiment.recorder import Recorder
from collector.processes.model import Model, Thread
from collector.processes.process import Image
from collector.processes.space import Mapping
from collector.session import deep, sites
from collector.session.attach import STACK_WORDS, Found
from collector.session.births import Makings
from collector.session.deep import DeepStacks
from collector.session.experiments import Experiments, Recorded
from collector.session.objects import VDSO, is_file
from collector.session.overview import Overview
from collector.session.placing import FAILED_MARK, TRUNCATED_MARK, Placed, interned, joined, unwound
from collector.session.tally import Tally
from collector.session.untold import Looks
from collector.session.world import World
from collector.timing.arrivals import Arrivals
from collector.timing.counting import Account, Counting
from collector.timing.endings import Endings
from collector.timing.microstate import Periods, ThreadClocks, is_out
from collector.timing.rounding import Groups, untold
from collector.timing.runnable import Runnable
from collector.timing.settling import in_turn, settle
from collector.timing.stolen import Stolen
from collector.timing.switching import sharpened
from collector.timing.waiting import N_STATES, Departures, Microstate, PageFaults, Spans, Waiting

_STATE_OF_MODE = np.array([Microstate.USER, Microstate.SYSTEM, Microstate.TRAP], dtype=np.int32)
assert [Mode.USER, Mode.SYSTEM_CALL, Mode.TRAP] == [0, 1, 2]
_IP, _SP, _BP = 16, 7, 6  # columns of a sample's registers



class LastSample:
    """Per slot: image, stack and CPU of the thread's last clock sample or departure (uid 0: none yet), and stack and
    state of its last clock sample in that image."""

    def __init__(self) -> None:
        self.image: Array = np.full(64, -1, dtype=np.int64)
        self.uid: Array = np.zeros(64, dtype=np.uint64)
        self.clock_uid: Array = np.zeros(64, dtype=np.uint64)
        self.state: Array = np.zeros(64, dtype=np.int32)
        self.cpu: Array = np.zeros(64, dtype=np.int32)

    def grow(self, n: int) -> None:
        """Makes room for ``n`` slots."""
        more = max(n, 2 * len(self.uid)) - len(self.uid)
        if n > len(self.uid):
            for name, fill in (("image", -1), ("uid", 0), ("clock_uid", 0), ("state", 0), ("cpu", 0)):
                old = getattr(self, name)
                setattr(self, name, np.concatenate([old, np.full(more, fill, dtype=old.dtype)]))

    def set(self, placed: Placed, cpu: Array, state: Array | None = None) -> None:
        """What samples in time order leave behind; without ``state`` that stays as it was.

        A stack that is cut does not replace one of the same image that is whole.
        """
        rows = np.flatnonzero(placed.whole | (self.image[placed.slot] != placed.image))
        slot = placed.slot[rows]
        self.clock_uid[slot[self.image[slot] != placed.image[rows]]] = 0
        self.image[slot], self.uid[slot], self.cpu[slot] = placed.image[rows], placed.uid[rows], cpu[rows]
        if state is not None:
            self.clock_uid[slot], self.state[slot] = placed.uid[rows], state[rows]


class Pipeline:
    """Feeds on batches.

    ``world`` answers what batches do not tell; ``records_all``: they tell of every switch, or count it.
    """

    def __init__(self, interval_ns: int, experiments: Experiments, world: World, tally: Tally, *,
                 records_all: bool = True) -> None:
        self.interval_ns = interval_ns
        self.experiments = experiments
        self.clocks = ThreadClocks(interval_ns)
        self.waiting = Waiting(interval_ns)
        self.model = Model(self.clocks.new_slot)
        self.tally = tally
        self.overview = Overview(world, self._states_ns, records_all)
        self.endings = Endings()
        self.counting = Counting()  # of switches that come too often to be followed
        self.muted = False  # recording pauses: time goes by and nothing is written
        self.total_cpu_ns = 0  # exact running time of all threads that have ended
        self._accounts: dict[int, Account] = {}  # as the last batch told them, by tid
        self._accounts_read_ns = 0
        self._fed_ns = 0  # the end of the last batch
        self._counted_ns = 0  # up to when records have told everything, if switches are counted
        self._arrivals = Arrivals()
        self._stolen = Stolen()
        self._runnable = Runnable()
        self._world = world
        self._delay_seen: dict[int, int] = {}  # by slot
        self.founder_ran_ns: int | None = None  # by the kernel's account, before it became itself
        self._ran_before_ns: dict[int, int] = {}  # the same, by slot, where it is known
        self._sites = sites.SiteTable()
        self._last = LastSample()
        self._found: set[int] = set()  # tids of those found that may have been born a moment before
        self._found_ns = 0  # and until when they were looked for
        self._looks = Looks(world)
        self._deep = DeepStacks()
        self._ending: Array = np.zeros(0, dtype=np.int64)
        self._carry_ns: Array = np.zeros(N_STATES, dtype=np.int64)  # of ended images, about a tick in each state

    def feed(self, batch: Batch) -> None:
        """Takes one batch; afterwards its arrays are not needed any more."""
        self._take_accounts(batch.accounts)
        for change in batch.changes:
            _APPLY[type(change)](self, change)
        periods = self._advance(batch.switches, [batch.leaving, batch.sites], batch.until_ns).off_cpu()
        self._count_switches()
        clock, leaving = self._place(batch)
        if batch.clock is not None and clock is not None:
            self._runnable.ran(distinct(clock.slot).tolist())
            self._write_clock(batch.clock, clock)
        departures = self._departures(batch.leaving, leaving, batch.sites)
        if len(periods.slot) or len(self.clocks.edges.slot) or batch.wakings is not None:
            faults = self._faults(batch.faults)
            woken_ns = self._woken_ns(periods, batch.wakings)
            spans = self.waiting.close(periods, self.clocks.edges, departures, faults, woken_ns,
                                       self._run_delays(periods, woken_ns == 0))
            self._write_spans(spans)
        self._look_at_accounts(clock)
        self._decide_runnable(batch.until_ns)
        self._settle_ended(self.endings.tails(batch.ends, batch.switches))
        self._close_ended()
        self.model.forget_before(batch.until_ns)
        self._fed_ns = batch.until_ns

    def asks(self) -> list[tuple[int, int]]:
        """The threads, each one's process and own id, whose accounts the next batch must have whether they run or not:
        where switches are counted, all of them."""
        if self.counting.active:
            return self.living()
        threads = [self.model.threads[slot] for slot in self._runnable.open_slots()]
        return [(thread.process.pid, thread.tid) for thread in threads]

    def living(self) -> list[tuple[int, int]]:
        """All threads, each one's process and own id."""
        return [(thread.process.pid, thread.tid) for thread in self._living()]

    def count(self, accounts: dict[int, Account]) -> None:
        """From the time of ``accounts`` (by tid) on, switches are counted. Batches that end there bring the records of
        the time before."""
        self.counting.begin(accounts)
        self.endings.interrupted()
        self._counted_ns = max((account.time_ns for account in accounts.values()), default=0)

    def stop_counting(self, counted_ns: int) -> None:
        """Switches are not counted any more, which they were for so long."""
        self.tally.counted_ns += counted_ns
        self.counting.end()

    def record_again(self, running: Sequence[int]) -> None:
        """Records tell of switches again, and until each thread's first one, whether it is one of the ``running`` (by
        tid)."""
        for thread in self._living():
            self.clocks.found[thread.slot] = True
            if thread.tid in running:
                self.clocks.kind[thread.slot] = Edge.IN

    def look(self, accounts: Accounts) -> None:
        """Accounts that have been read between batches, where switches are counted: of threads that are about to go."""
        if self.counting.active and self._fed_ns >= self._counted_ns:
            read = by_tid(accounts)
            threads = [thread for thread in self._living() if thread.tid in read]
            self.counting.look({thread.tid: (thread.slot, thread.start_ns, read[thread.tid]) for thread in threads},
                               self.ran_ns)

    def _take_accounts(self, accounts: Accounts | None) -> None:
        """What a batch brings of accounts. Where switches are counted, the threads are those from before the batch."""
        if accounts is not None:
            self._accounts, self._accounts_read_ns = by_tid(accounts), accounts.read_ns
            self.look(accounts)

    def _living(self) -> list[Thread]:
        return [self.model.threads[slot] for process in self.model.processes.values()
                for slot in process.threads.values()]

    def take_over(self, pid: int, lineage: str, found: list[Found], mappings: list[Mapped], seen: Batch) -> None:
        """Begins with a process as it was found: its threads, its mappings, and the stacks of those that are blocked.

        The founder has its experiment already; others get theirs under ``lineage``.
        """
        time_ns = seen.until_ns
        self._found.update(thread.tid for thread in found)
        self._found_ns = self._world.now_ns()
        process = self.model.processes.get(pid) or self.model.new_process(pid, time_ns)
        for mapping in mappings:
            self._on_map(mapping)
        recorded = self.experiments.by_image.get(process.image.number)
        if recorded is None:
            recorded = self.experiments.attached(process.image, lineage, self._world.arguments(pid), 0)
            for known in process.space.mappings:
                self._write_mapping(recorded, time_ns, known)
        for thread in found:
            slot = self.model.new_thread(process, thread.tid, time_ns, thread.cut, found=True).slot
            if thread.account is not None:
                self._delay_seen[slot] = thread.account.delay_ns
                self._ran_before_ns[slot] = thread.account.run_ns
                self._arrivals.begin(slot, thread.account)
                self._stolen.begin(slot, thread.account.run_ns - max(thread.account.time_ns - time_ns, 0))
                if thread.cut == Edge.IN:
                    self._runnable.begin(slot, thread.account, time_ns)
            recorded.thread_started(thread.tid, time_ns, self._world.comm(pid, thread.tid))
        self.feed(seen)

    def flush_waiting(self, now_ns: int) -> None:
        """Gives threads that are off CPU their ticks so far, up to ``now_ns``, which no batch may have passed.

        Where switches are counted, the next look will tell how long they were.
        """
        if self.counting.active:
            return
        slots = np.array([slot for process in self.model.processes.values()
                          if process.image.number in self.experiments.recorders
                          for slot in process.threads.values()], dtype=np.int64)
        kind, since = self.clocks.kind[slots], self.clocks.since_ns[slots]
        off = (is_out(kind) | (kind == Edge.BORN)) & (since < now_ns)
        slots = slots[off]
        blocked = slots[kind[off] == Edge.OUT_BLOCKED]
        self._look_at_untold(blocked, now_ns)
        self._look_deeper(blocked, now_ns)
        spans, ready = self.waiting.still_waiting(slots, kind[off], since[off], now_ns)
        self._write_spans(spans)
        self.clocks.since_ns[slots] = now_ns
        self.clocks.kind[slots[ready]] = Edge.OUT_PREEMPTED  # the rest of it is wait CPU, whatever it was before

    def _look_at_untold(self, blocked: Array, now_ns: int) -> None:
        """Where the threads at slots ``blocked`` wait whose departures were not told."""
        for samples, placed in self._seen_at(self.waiting.untold(blocked), now_ns):
            self._last.set(placed, samples.cpu)
            self._tell_waiting(samples, placed, np.arange(len(placed.slot)))

    def _look_deeper(self, blocked: Array, now_ns: int) -> None:
        """The whole stacks of those of the threads at slots ``blocked`` of which too little was copied."""
        for samples, placed in self._seen_at(self._deep.open(blocked), now_ns, deep.STACK_WORDS):
            regs = samples.regs
            rows = np.flatnonzero(self._deep.learn(placed, regs[:, _IP], regs[:, _SP], samples.mode))
            self.tally.completed(len(rows))
            self._tell_waiting(samples, placed, rows)

    def _seen_at(self, slots: Array, now_ns: int,
                 stack_words: int = STACK_WORDS) -> Iterator[tuple[ClockSamples, Placed]]:
        """A look at blocked threads, by process."""
        threads = [self.model.threads[slot] for slot in slots.tolist()]
        for samples in self._looks.at(threads, now_ns, stack_words) if threads else ():
            yield samples, interned(unwound(samples, self.model, self._world.frames), self.experiments.recorders)

    def _tell_waiting(self, samples: ClockSamples, placed: Placed, rows: Array) -> None:
        self.waiting.tell(Departures(placed.slot[rows], samples.time_ns[rows], placed.uid[rows], samples.mode[rows],
                                     samples.regs[rows, _IP], samples.cpu[rows]))

    def sync(self) -> None:
        """What was said comes to disk."""
        for recorded in self.experiments.open_ones():
            recorded.tell(Recorder.sync)

    def sample(self, now_ns: int, fed_ns: int, label: str) -> None:
        """An overview sample of every experiment; all that happened up to ``fed_ns`` is known."""
        self.flush_waiting(fed_ns)
        for recorded in self.experiments.open_ones():
            recorded.tell(Recorder.sample, self.overview.usage(recorded, now_ns), now_ns, label)
        self.sync()

    def finish(self, time_ns: int, remark: str) -> None:
        """The recording ends: what threads still owe is settled as if they ended now. ``remark`` is for the experiments
        of those who go on."""
        for recorded in self.experiments.open_ones():
            if recorded.parent is not None:
                recorded.tell(Recorder.comment, remark)
            self.experiments.end(recorded, time_ns)
        self._decide_runnable(time_ns, last=True)
        self.flush_waiting(time_ns)
        for thread in self.model.threads:
            if thread.alive:
                self.model.cuts.add(thread.slot, time_ns, Edge.ENDED)
                thread.alive = False
        self._advance(None, [], time_ns)
        self._settle_ended({})
        self.tally.n_guessed_faults = self.waiting.n_guessed
        self.tally.stolen_ns = self._stolen.total_ns
        self.tally.n_impossible = self.clocks.n_impossible
        self.tally.n_estimated_ends = self.counting.n_estimated
        self.tally.n_untold_ends, self.tally.n_guessed_ends = self.endings.n_untold, self.endings.n_guessed
        self._close_ended()
        # Less than one interval altogether is what any clock rounds away.
        carry_ns = int(self._carry_ns[Microstate.USER])
        self.tally.unsampled_ns = carry_ns if carry_ns >= self.interval_ns else 0

    def _states_ns(self, recorded: Recorded, time_ns: int) -> list[int]:
        """Exact time in each state of all threads of an image so far; CPU states in the proportion of their ticks."""
        states: list[int] = recorded.waited_ns.tolist()
        cpu_ns = self._cpu_ns(recorded, time_ns)
        ticks = recorded.state_ticks[:Microstate.TRAP + 1]
        total = int(ticks.sum())
        for state in (Microstate.SYSTEM, Microstate.TRAP):
            states[state] = cpu_ns * int(ticks[state]) // total if total else 0
        states[Microstate.USER] = cpu_ns - states[Microstate.SYSTEM] - states[Microstate.TRAP]
        return states

    def ran_ns(self, slot: int, time_ns: int) -> int | None:
        """How long a thread has run up to now by all that was told, on the scale of the kernel's account of it; None
        where it is not known how long it had run when it came to be recorded."""
        before_ns = self._ran_before_ns.get(slot)
        if before_ns is None:
            return None
        running_ns = time_ns - int(self.clocks.since_ns[slot]) if self.clocks.kind[slot] == Edge.IN else 0
        return before_ns + int(self.clocks.cpu_ns[slot]) + max(running_ns, 0)

    def _cpu_ns(self, recorded: Recorded, time_ns: int) -> int:
        """Exact running time of all threads of an image so far."""
        process = self.model.processes.get(recorded.image.pid)
        if process is None or process.image is not recorded.image:
            return recorded.ended_cpu_ns
        slots = np.array(list(process.threads.values()), dtype=np.int64)
        running = np.where(self.clocks.kind[slots] == Edge.IN, time_ns - self.clocks.since_ns[slots], 0)
        return recorded.ended_cpu_ns + int(self.clocks.cpu_ns[slots].sum() + np.maximum(running, 0).sum())

    # -- changes

    def _on_fork(self, change: Forked) -> None:
        if change.time_ns < self._found_ns and change.tid in self._found:
            return
        is_process = change.pid != change.parent_pid
        if is_process and not self.experiments.follow.descendants:
            return
        parent = self.model.processes.get(change.parent_pid)
        maker = self.experiments.by_image.get(parent.image.number) if parent else None
        thread = self.model.forked(change)
        process = thread.process
        self._delay_seen[thread.slot] = self._ran_before_ns[thread.slot] = 0
        self._arrivals.begin(thread.slot, Account(change.time_ns))
        self._stolen.begin(thread.slot, 0)
        recorded = self.experiments.by_image.get(process.image.number)
        if is_process and recorded is None:
            process.image.comm, process.image.path = (parent.image.comm, parent.image.path) if parent else (b"", b"")
            recorded = self.experiments.forked(maker, process.image)
            for mapping in process.space.mappings:
                self._write_mapping(recorded, change.time_ns, mapping)
        if recorded is not None:
            recorded.thread_started(change.tid, change.time_ns, process.image.comm)

    def _on_exit(self, change: Exited) -> None:
        thread = self.model.exited(change)
        if thread is None:
            return
        life_ns = thread.start_ns, change.time_ns
        told = self.counting.active and self.counting.ended(thread.tid, thread.slot, life_ns, self.ran_ns)
        if not thread.process.threads:
            recorded = self.experiments.by_image.get(thread.image.number)
            if recorded is not None:
                if not told:
                    self.endings.exited(thread.tid, thread.slot, change.time_ns)
                self.experiments.end(recorded, change.time_ns)

    def _on_rename(self, change: Renamed) -> None:
        slot = self.model.slot_of(change.tid, change.time_ns)
        if slot is not None:
            self.model.threads[slot].name = change.comm

    def _on_exec(self, change: Executed) -> None:
        slot = self.model.slot_of(change.pid, change.time_ns)
        process, old = self.model.executed(change)
        if self.counting.active:
            self.counting.executed(process.threads[change.pid], change.time_ns)
        if slot is not None and slot in self._delay_seen:
            self._delay_seen[process.threads[change.pid]] = self._delay_seen[slot]
        before = self.experiments.by_image.get(old.number)
        if before is not None and not self.experiments.follow.descendants:
            for mapping in process.epochs[-2].space.mappings if len(process.epochs) > 1 else ():
                before.tell(Recorder.unmapped, change.time_ns, mapping.start, mapping.end - mapping.start)
            self.experiments.go_on(before, process.image)
        elif before is not None and before.parent is None and before.n_threads == 0:
            self.experiments.go_on(before, process.image)  # the exec by which the founder became itself
            if self.founder_ran_ns is not None:
                self._ran_before_ns[process.threads[change.pid]] = self.founder_ran_ns
                self._stolen.begin(process.threads[change.pid], self.founder_ran_ns)
            before.thread_started(change.pid, change.time_ns, change.comm)
        else:
            recorded = self.experiments.executed(before, process.image, change.time_ns)
            recorded.arguments = self._world.arguments(change.pid)
            recorded.thread_started(change.pid, change.time_ns, change.comm)

    def _on_map(self, change: Mapped) -> None:
        process = self.model.processes.get(change.pid)
        if process is None:
            return
        place = self._world.place(change)
        if not process.space.mappings and place.path != VDSO:
            process.image.path = place.path
            process.image.bits = place.bits or process.image.bits
        mapping = Mapping(change.start, change.start + change.size, change.file_offset, place.path, place.object,
                          place.bias)
        space, _ = process.space.map(mapping)
        process.enter(change.time_ns, process.image, space)
        recorded = self.experiments.by_image.get(process.image.number)
        if recorded is not None:
            self._write_mapping(recorded, change.time_ns, mapping)

    def _on_loss(self, change: RecordsLost) -> None:
        self.tally.lost(change.source, change.n_records)

    def _on_throttle(self, change: Throttled) -> None:
        self.tally.n_throttled += 1

    def _write_mapping(self, recorded: Recorded, time_ns: int, mapping: Mapping) -> None:
        if recorded.recorder is None and not recorded.followed:
            return
        size = mapping.end - mapping.start
        if mapping.path == VDSO:
            recorded.tell(Recorder.function_mapped, time_ns, mapping.start, size, VDSO, self._symbols(mapping))
        elif is_file(mapping.path):
            recorded.tell(Recorder.segment_mapped, time_ns, mapping.start, size, mapping.file_offset, mapping.path,
                          MODES_TEXT, self._world.identity(mapping.object))
        else:
            name = mapping.path if mapping.path.startswith(b"[") else b"[anonymous code]"
            recorded.tell(Recorder.function_mapped, time_ns, mapping.start, size, name)

    def _symbols(self, mapping: Mapping) -> list[tuple[int, int, bytes]]:
        """The functions of a load object at their run-time addresses: (start, size, name), one per address."""
        if mapping.object < 0:
            return []
        return [(vaddr + mapping.bias, size, name) for vaddr, size, name in self._world.functions(mapping.object)
                if vaddr + mapping.bias + size <= mapping.end]

    # -- clocks and samples

    def _advance(self, switches: Switches | None, departed: Sequence[ClockSamples | Sites | None],
                 until_ns: int) -> Periods:
        """Takes the batch's edges; returns the periods that they close."""
        slot, time_ns, cut = (np.zeros(0, dtype=np.int64),) * 2 + (np.zeros(0, dtype=np.int8),)
        exact_ns = time_ns
        if switches is not None:
            slot = self.model.slots(switches.tid, switches.pid, switches.time_ns)
            time_ns, cut = switches.time_ns, switches.edge
            some = [part for part in departed if part is not None]
            none = np.zeros(0, dtype=np.int64)
            exact_ns = sharpened(switches, np.concatenate([none, *(part.tid for part in some)]),
                                 np.concatenate([none, *(part.time_ns for part in some)]))
            if self.counting.active:  # and these are the last records before: looks tell what came after them, too
                self._arrivals.interrupted()
            else:
                exact_ns = self._arrivals.corrected(slot, cut, exact_ns, until_ns, self.clocks)
        cuts = self.model.take_cuts()  # after slots(), which may have met threads not heard of before
        counted = self.counting.take_cuts()
        if self.counting.active or counted.slot:
            self._stolen.interrupted()
        else:
            counted = self._stolen.cuts(slot, cut, time_ns, until_ns, self.clocks)
        n_told = len(slot) + len(cuts.slot)
        slot = np.concatenate([slot, np.array(cuts.slot + counted.slot, dtype=np.int64)])
        cut_ns = np.array(cuts.time_ns + counted.time_ns, dtype=np.int64)
        time_ns, exact_ns = np.concatenate([time_ns, cut_ns]), np.concatenate([exact_ns, cut_ns])
        cut = np.concatenate([cut, np.array(cuts.edge + counted.edge, dtype=np.int8)])
        self._ending = distinct(slot[cut == Edge.ENDED])
        # BORN before anything else of its thread, ENDED after everything else, whatever their stamps say.
        rank = np.where(cut == Edge.BORN, 0, np.where(cut == Edge.ENDED, 2, 1))
        order = np.lexsort((time_ns, rank))
        return self.clocks.advance(slot[order], exact_ns[order], cut[order], order >= n_told)

    def _count_switches(self) -> None:
        edges = self.clocks.edges
        for column, cut in enumerate((Edge.OUT_BLOCKED, Edge.OUT_PREEMPTED)):
            counts = np.bincount(edges.slot[edges.cut == cut])
            slots = np.flatnonzero(counts)
            for slot, count in zip(slots.tolist(), counts[slots].tolist(), strict=True):
                recorded = self.experiments.by_image.get(self.model.threads[slot].image.number)
                if recorded is not None:
                    recorded.n_switches[column] += count
        for slot, count in self.counting.turns.items():
            recorded = self.experiments.by_image.get(self.model.threads[slot].image.number)
            if recorded is not None:
                recorded.n_counted_switches += count
        self.counting.turns.clear()

    def _look_at_accounts(self, clock: Placed | None) -> None:
        """Reads the kernel's accounts of threads that get a CPU so often that the lateness of the records matters, and
        of some that have run for a while, from which a hypervisor may have taken it."""
        running = self._stolen.worth_a_look(distinct(clock.slot).tolist()) if clock is not None else []
        arriving = self._arrivals.worth_a_look()
        for slot in {*arriving, *running}:
            account = self._account(slot)
            if account is not None and slot in running:
                self._stolen.look(slot, account)
            if account is not None and slot in arriving:
                self._arrivals.look(slot, account)

    def _decide_runnable(self, until_ns: int, last: bool = False) -> None:
        """Of threads that were found runnable and have no record yet: whether they run or wait."""
        if self.counting.active:
            self._runnable.forget()
        for slot in self._runnable.undecided(self.clocks, until_ns, last):
            account = self._account(slot)
            if account is not None:
                self._runnable.decide(slot, account, until_ns, self.clocks, last)
            else:
                self._runnable.gone(slot, self._accounts_read_ns, self.clocks, last)

    def _place(self, batch: Batch) -> tuple[Placed | None, Placed | None]:
        """The stacks of the batch's clock samples and departures; with all others in one unwinding.

        In between, the processes that were made are named, now that the stacks of their makers are known.
        """
        parts = [batch.clock, batch.leaving, batch.births.makers if batch.births else None]
        some = [part for part in parts if part is not None]
        frames = unwound(joined(some), self.model, self._world.frames) if some else None
        self._last.grow(self.clocks.n_slots)
        self.waiting.grow(self.clocks.n_slots)
        ends = np.cumsum([len(part.time_ns) if part is not None else 0 for part in parts]).tolist()
        makings = Makings(self._world, batch.births, frames[ends[1]:ends[2]] if frames else None)
        self.experiments.open_pending(makings.of)
        if frames is None:
            return None, None
        self.tally.stacks(frames.stop[:ends[1]])
        placed = interned(frames[:ends[1]], self.experiments.recorders)
        return placed[:ends[0]], placed[ends[0]:]

    def _write_clock(self, clock: ClockSamples, placed: Placed) -> None:
        new = distinct(placed.slot[self.clocks.phase_ns[placed.slot] < 0])
        few = untold(self.clocks, placed.slot, clock.time_ns, self._groups(new)) if len(new) else None
        ticks = self.clocks.ticks_of_samples(placed.slot, clock.time_ns, few)
        state = _STATE_OF_MODE[clock.mode]
        if self.muted:
            return
        self.tally.n_samples += len(ticks)
        for number in distinct(placed.image).tolist():
            recorded = self.experiments.by_image.get(number)
            rows = np.flatnonzero((placed.image == number) & (ticks > 0) & (placed.uid != 0))
            if recorded is not None and recorded.recorder is not None and len(rows):
                recorded.recorder.clock(clock.tid[rows], clock.cpu[rows], clock.time_ns[rows], placed.uid[rows],
                                        state[rows], ticks[rows])
                recorded.state_ticks += np.bincount(state[rows], ticks[rows], N_STATES).astype(np.int64)
                self.tally.n_packets += len(rows)
            rows = np.flatnonzero((placed.image == number) & (placed.uid != 0))
            if recorded is not None and len(rows):
                recorded.note_recent(clock.time_ns[rows], clock.cpu[rows], placed.uid[rows], state[rows])
                end = rows[-1]
                recorded.last = (int(clock.tid[end]), int(clock.cpu[end]), int(placed.uid[end]), int(state[end]))
        self._last.set(placed, clock.cpu, state)

    def _groups(self, new: Array) -> Groups:
        """The threads whose ticks are counted together with those of some ``new`` ones, and with all that end now.

        Those of a process count for themselves while it goes on, and together with all others when it is over.
        """
        over = -1
        slots: dict[int, list[int]] = defaultdict(list)  # of each group
        pools_ns: dict[int, dict[int, int]] = defaultdict(dict, {over: {over: _on_cpu_ns(self._carry_ns)}})
        known: dict[int, int | None] = {}  # groups, by image

        def group_of(image: Image) -> int | None:
            recorded = self.experiments.by_image.get(image.number)
            if image.number not in known and recorded is not None:
                known[image.number] = number = over if recorded.end_ns is not None else id(recorded)
                pools_ns[number][id(recorded)] = _on_cpu_ns(recorded.pool_ns)
            return known.setdefault(image.number, None)

        for slot in self._ending.tolist():
            number = group_of(self.model.threads[slot].image)
            if number is not None:
                slots[number].append(slot)
        for image in {self.model.threads[slot].image for slot in new.tolist()}:
            number, process = group_of(image), self.model.processes.get(image.pid)
            if number is not None and number != over and process is not None and process.image is image:
                slots[number] += process.threads.values()  # none of these ends now
        threads = np.array([slot for number in slots for slot in slots[number]], dtype=np.int64)
        group = np.array([i for i, number in enumerate(slots) for _ in slots[number]], dtype=np.int64)
        order = np.argsort(threads)
        pool_ns = np.array([sum(pools_ns[number].values()) for number in slots], dtype=np.int64)
        return Groups(threads[order], group[order], pool_ns, np.array([number != over for number in slots], dtype=bool))

    # -- waiting

    def _departures(self, leaving: ClockSamples | None, placed: Placed | None, seen: Sites | None) -> Departures:
        """What is known of the batch's switch-outs: from those with stacks, and for the others from their sites."""
        none = np.zeros(0, dtype=np.int64)
        known = Departures(none, none, none.astype(np.uint64), none.astype(np.int8), none.astype(np.uint64),
                           none.astype(np.int32))
        if leaving is not None and placed is not None and len(placed.slot):
            regs = leaving.regs
            uid = self._deep.completed(placed, regs[:, _IP], regs[:, _SP])
            self.tally.completed(int(np.count_nonzero(uid != placed.uid)))
            self._sites.learn(sites.keys(placed.slot, placed.image, regs[:, _IP], regs[:, _SP], regs[:, _BP]),
                              uid, leaving.mode)
            self._last.set(placed, leaving.cpu)
            self._note_last(leaving, placed)
            known = Departures(placed.slot, leaving.time_ns, uid, leaving.mode, regs[:, _IP], leaving.cpu)
        n_out = int(np.count_nonzero(is_out(self.clocks.edges.cut)))
        if seen is None or n_out <= len(known.slot):
            return known
        others = self._at_sites(seen)
        # Those with stacks last: they replace what their site would have told.
        return Departures(*(np.concatenate([getattr(others, name), getattr(known, name)])
                            for name in Departures.__slots__))

    def _note_last(self, leaving: ClockSamples, placed: Placed) -> None:
        """The last departure of images that no clock sample has met yet stands for them."""
        for number in distinct(placed.image).tolist():
            recorded = self.experiments.by_image.get(number)
            if recorded is not None and recorded.last is None:
                row = int(np.flatnonzero(placed.image == number)[-1])
                if placed.uid[row]:
                    recorded.last = (int(leaving.tid[row]), int(leaving.cpu[row]), int(placed.uid[row]),
                                     int(Microstate.USER))

    def _at_sites(self, seen: Sites) -> Departures:
        slot = self.model.slots(seen.tid, seen.pid, seen.time_ns)
        index, epochs = self.model.epochs(seen.pid, seen.time_ns)
        image = np.array([epoch.image.number for epoch in epochs], dtype=np.int64)[index]
        uid, reason = self._sites.find(sites.keys(slot, image, seen.ip, seen.sp, seen.bp))
        self.waiting.grow(self.clocks.n_slots)
        self._last.grow(self.clocks.n_slots)
        # A preempted thread is where its clock last found it, more or less; a blocked one is somewhere else.
        at = self.clocks.edges.next_at(slot, seen.time_ns)
        lent = (uid == 0) & (at >= 0) & (self.clocks.edges.cut[at] == Edge.OUT_PREEMPTED)
        lent &= (self._last.image[slot] == image) & (self._last.uid[slot] != 0)
        uid[lent] = self._last.uid[slot[lent]]
        for number in distinct(image[uid == 0]).tolist():
            recorder = self.experiments.recorders.get(number)
            if recorder is not None:
                rows = np.flatnonzero((uid == 0) & (image == number))
                leaf = np.stack([seen.ip[rows], np.full(len(rows), TRUNCATED_MARK)], axis=1)
                uid[rows] = recorder.frames.intern(leaf, np.full(len(rows), 2))
                self.tally.n_unknown_sites += len(rows)
        return Departures(slot, seen.time_ns, uid, reason, seen.ip, self._last.cpu[slot])

    def _faults(self, faults: Faults | None) -> PageFaults:
        if faults is None:
            none = np.zeros(0, dtype=np.int64)
            return PageFaults(none, none, none.astype(np.uint64), none.astype(np.uint64), none.astype(bool))
        slot = self.model.slots(faults.tid, faults.pid, faults.time_ns)
        return PageFaults(slot, faults.time_ns, faults.address, faults.ip, faults.in_kernel)

    def _woken_ns(self, periods: Periods, wakings: Wakings | None) -> Array:
        """When the thread was woken in each period, 0 where unknown."""
        self.waiting.grow(self.clocks.n_slots)
        if wakings is None:
            none = np.zeros(0, dtype=np.int64)
            return self.waiting.woken_ns(periods, none, none)
        ours = self.model.known(wakings.tid)
        tid, time_ns = wakings.tid[ours], wakings.time_ns[ours]
        return self.waiting.woken_ns(periods, self.model.slots(tid, tid, time_ns), time_ns)

    def _run_delays(self, periods: Periods, untold: Array) -> tuple[Array, Array]:
        """How much run_delay has grown for the threads that were blocked in periods with an untold wake-up."""
        slots, grown = [], []
        for slot in distinct(periods.slot[untold & (periods.kind == Edge.OUT_BLOCKED)]).tolist():
            account = self._account(slot)
            if account is not None:
                slots.append(slot)
                # What the founder waited before its exec is none of its image's.
                grown.append(account.delay_ns - self._delay_seen.get(slot, account.delay_ns))
                self._delay_seen[slot] = account.delay_ns
        return np.array(slots, dtype=np.int64), np.array(grown, dtype=np.int64)

    def _account(self, slot: int) -> Account | None:
        """The kernel's account of a thread as the batch has it; None where that could not be had."""
        thread = self.model.threads[slot]
        return self._accounts.get(thread.tid) if thread.alive else None

    def _write_spans(self, spans: Spans) -> None:
        """Packets for time spent waiting."""
        if not len(spans.slot) or self.muted:
            return
        self._last.grow(self.clocks.n_slots)
        self.waiting.grow(self.clocks.n_slots)
        due, ticks = self.waiting.ticks(spans)
        image, _ = self._whose(spans.slot)
        image_due, tid = self._whose(due.slot)
        for number in distinct(image).tolist():
            recorded = self.experiments.by_image.get(number)
            if recorded is None or recorded.recorder is None:
                continue
            mine = image == number
            recorded.waited_ns += np.bincount(spans.state[mine], spans.length_ns[mine], N_STATES).astype(np.int64)
            rows = np.flatnonzero(image_due == number)
            if len(rows):
                uid = self._stacks_for(recorded, due.slot[rows], due.uid[rows])
                recorded.recorder.clock(tid[rows], due.cpu[rows], due.end_ns[rows], uid,
                                        due.state[rows].astype(np.int32), ticks[rows], exact_ns=due.length_ns[rows])
                recorded.state_ticks += np.bincount(due.state[rows], ticks[rows], N_STATES).astype(np.int64)
                self.tally.n_packets += len(rows)

    def _whose(self, slot: Array) -> tuple[Array, Array]:
        """Image number and tid (s,) of the threads at slots (s,)."""
        slots, inverse = numbered(slot)
        threads = [self.model.threads[slot] for slot in slots.tolist()]
        return (np.array([thread.image.number for thread in threads], dtype=np.int64)[inverse],
                np.array([thread.tid for thread in threads], dtype=np.int64)[inverse])

    def _stacks_for(self, recorded: Recorded, slot: Array, uid: Array) -> Array:
        """``uid``, and where that is unknown the thread's last stack, else a stack that says that none was had."""
        unknown = uid == 0
        if not unknown.any():
            return uid
        own = self._last.image[slot] == recorded.image.number
        uid = np.where(unknown & own, self._last.uid[slot], uid)
        if (uid == 0).any():
            uid = np.where(uid == 0, self._no_stack(recorded), uid)
        self.tally.n_borrowed_stacks += int(np.count_nonzero(unknown))
        return uid

    def _no_stack(self, recorded: Recorded) -> Array:
        """The stack (1,) that says that none was had."""
        assert recorded.recorder is not None
        return recorded.recorder.frames.intern(np.full((1, 1), FAILED_MARK), np.ones(1, dtype=np.int64))

    # -- ends

    def _settle_ended(self, tails_ns: dict[int, int]) -> None:
        """Time of ended threads that no tick stands for, given to stacks that they are known to have had.

        ``tails_ns``: by slot, what was used behind the end; of those that ended in an earlier batch it is carried on.
        """
        self._last.grow(self.clocks.n_slots)
        self.waiting.grow(self.clocks.n_slots)
        for slot in self._in_turn():
            self._delay_seen.pop(slot, None)
            self._ran_before_ns.pop(slot, None)
            self._arrivals.forget(slot)
            self._stolen.forget(slot)
            tail_ns = tails_ns.pop(slot, 0)
            recorded = self.experiments.by_image.get(self.model.threads[slot].image.number)
            if recorded is None or recorded.recorder is None:
                continue
            recorded.ended_cpu_ns += int(self.clocks.cpu_ns[slot]) + tail_ns
            self.total_cpu_ns += int(self.clocks.cpu_ns[slot]) + tail_ns
            owed_ns, stacks = self.waiting.take_account(slot)
            if self.muted:
                continue
            owed_ns[Microstate.USER] = self.clocks.residue_ns(slot)
            owed_ns[Microstate.SYSTEM] += tail_ns
            # One of many short processes is told more or less than it had by what was left of those before it.
            pool_ns = recorded.pool_ns if recorded.end_ns is None else self._carried(recorded)
            ticks = settle(owed_ns, pool_ns, self.interval_ns)
            for state in np.flatnonzero(ticks).tolist():
                self._settle_state(recorded, slot, state, int(ticks[state]), stacks[state:state + 1])
        late_ns = 0 if self.muted else sum(tails_ns.values())
        self._carry_ns[Microstate.SYSTEM] += late_ns
        self.total_cpu_ns += late_ns
        self._ending = np.zeros(0, dtype=np.int64)

    def _in_turn(self) -> Iterator[int]:
        """The threads that end, by slot, those of each pool in the order in which they are best settled."""
        by_pool: dict[int, list[int]] = defaultdict(list)
        pools_ns = {}
        for slot in self._ending.tolist():
            recorded = self.experiments.by_image.get(self.model.threads[slot].image.number)
            pool_ns = self._carry_ns if recorded is None or recorded.end_ns is not None else recorded.pool_ns
            pools_ns[id(pool_ns)] = pool_ns
            by_pool[id(pool_ns)].append(slot)
        for key, slots in by_pool.items():
            left_ns = self.clocks.cpu_ns[slots] - self.clocks.ticks[slots] * self.interval_ns
            for number in in_turn(left_ns, pools_ns[key], self.interval_ns):
                yield slots[number]

    def _settle_state(self, recorded: Recorded, slot: int, state: int, ticks: int, uid: Array) -> None:
        thread, cpu = self.model.threads[slot], int(self._last.cpu[slot])
        if state != Microstate.USER:
            stack = (thread.tid, cpu, int(self._stacks_for(recorded, np.array([slot]), uid)[0]), state)
        elif self._last.image[slot] == recorded.image.number and self._last.clock_uid[slot]:
            stack = (thread.tid, cpu, int(self._last.clock_uid[slot]), int(self._last.state[slot]))
        elif recorded.recent is not None:
            stack = (thread.tid, *self._borrowed(recorded, thread.start_ns, int(self.clocks.since_ns[slot])))
        elif self._last.image[slot] == recorded.image.number and self._last.uid[slot]:
            stack = (thread.tid, cpu, int(self._last.uid[slot]), int(Microstate.USER))
        elif recorded.last is not None:
            stack = recorded.last
        else:
            recorded.pool_ns[state] += ticks * self.interval_ns
            return
        self._write_ticks(recorded, stack, int(self.clocks.since_ns[slot]), ticks)

    def _borrowed(self, recorded: Recorded, start_ns: int, end_ns: int) -> tuple[int, int, int]:
        """CPU, uid and state of a clock sample that another thread of the same process had while one lived that had
        none of its own: each of them in turn."""
        assert recorded.recent is not None
        times_ns, cpus, uids, states = recorded.recent
        first, end = np.searchsorted(times_ns, [start_ns, end_ns]).tolist()
        recorded.n_borrowed += 1
        row = first + recorded.n_borrowed % (end - first) if end > first else max(end - 1, 0)
        return int(cpus[row]), int(uids[row]), int(states[row])

    def _close_ended(self) -> None:
        """Ends the experiments of images that are over.

        What is left of their pools, about a tick for each state, is carried from one to the next: one of many that
        are too short for a tick of their own gets the tick of all.
        """
        for recorded in self.experiments.ended():
            if recorded.recorder is None:
                continue
            carry_ns = self._carried(recorded)
            for state in np.flatnonzero(carry_ns >= self.interval_ns).tolist():
                ticks = int(carry_ns[state] // self.interval_ns)
                carry_ns[state] -= ticks * self.interval_ns
                tid, cpu, uid, _ = recorded.last or (recorded.image.pid, 0, int(self._no_stack(recorded)[0]), state)
                self._write_ticks(recorded, (tid, cpu, uid, state), recorded.end_ns or recorded.start_ns, ticks)
        self.experiments.close_ended(self.overview.usage)

    def _carried(self, recorded: Recorded) -> Array:
        """The pool (10,) of all images that are over, which takes that of this one."""
        self._carry_ns += recorded.pool_ns
        recorded.pool_ns[:] = 0
        return self._carry_ns

    def _write_ticks(self, recorded: Recorded, stack: tuple[int, int, int, int], time_ns: int, ticks: int) -> None:
        tid, cpu, uid, state = stack
        assert recorded.recorder is not None
        recorded.recorder.clock(*(np.array([value], dtype=kind) for value, kind in (
            (tid, np.int64), (cpu, np.int32), (time_ns, np.int64), (uid, np.uint64), (state, np.int32),
            (ticks, np.int32))))
        recorded.state_ticks[state] += ticks
        self.tally.n_packets += 1
        self.tally.n_settled_ticks += ticks


def by_tid(accounts: Accounts) -> dict[int, Account]:
    """The last account of each thread."""
    columns = (accounts.time_ns, accounts.run_ns, accounts.delay_ns, accounts.turns)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return dict(zip(accounts.tid.tolist(), map(Account._make, rows), strict=True))


def _on_cpu_ns(by_state_ns: Array) -> int:
    return int(by_state_ns[:Microstate.TRAP + 1].sum())


_APPLY: dict[type, Callable[..., None]] = {
    Forked: Pipeline._on_fork, Exited: Pipeline._on_exit, Renamed: Pipeline._on_rename, Executed: Pipeline._on_exec,
    Mapped: Pipeline._on_map, RecordsLost: Pipeline._on_loss, Throttled: Pipeline._on_throttle,
}
