"""From batches of events to packets in experiments: the one way that everything recorded takes.

    batch -> changes                        changes      model (images, spaces, threads), maps and logs of experiments
          -> switches, accounts             timekeeping  exact clocks of all threads; the periods that they close
          -> samples                        stacks       one unwinding for all; stacks interned per experiment
          -> clock samples                  settlement   the ticks that they earn -> packets
          -> departures, periods off CPU    waits        their states and stacks, the ticks that those earn -> packets
          -> all periods                    taps         exact stretches, for aggregations and whoever else asks
          -> ends                           settlement   the ticks that are still owed -> packets
                                            give back    slots of threads that are over

Each step works on whole arrays; Python loops run over changes, images and threads that end, never over samples. What a
step has to ask of the kernel or of files it asks the ``World``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from collector.events import Accounts, Batch, Mapped
from collector.experiment.recorder import Recorder
from collector.linux.accounts import Account
from collector.session.attach import Found
from collector.session.births import Makings
from collector.session.changes import Changes
from collector.session.experiments import Experiments
from collector.session.managed import Compiler, MadeCode
from collector.session.output import Output
from collector.session.overview import Overview
from collector.session.python import PythonFrames
from collector.session.settlement import Settlement
from collector.session.stacks import Stacks
from collector.session.tally import Tally
from collector.session.tap import Take, Taps
from collector.session.timekeeping import Timekeeping
from collector.session.unseen import UnseenOnes
from collector.session.waits import Waits
from collector.session.world import World

if TYPE_CHECKING:
    from collector.session.kernel_objects import KernelObjects

_ANY_NUMBER = 1 << 16  # of CPUs


class Pipeline:
    """Feeds on batches.

    ``world`` answers what batches do not tell; ``records_all``: they tell of every switch, or count it;
    ``strikes_all``: and of every strike of a clock, in the kernel, too; ``events_end``: they come from events that may
    end before their process does; ``has_engine``: they come at all. ``tap`` is called with all time of all threads,
    which ``aggregations``, expressions, are made of.
    """

    def __init__(self, interval_ns: int, experiments: Experiments, world: World, tally: Tally, *,
                 n_cpus: int = _ANY_NUMBER, records_all: bool = True, strikes_all: bool = True,
                 events_end: bool = False, has_engine: bool = True, tap: Take | None = None,
                 aggregations: Sequence[str] = ()) -> None:
        self._experiments = experiments
        self._world = world
        self._tally = tally
        self.maps_untold = False  # in the last batch: /proc was asked instead
        self._fed_ns = 0  # its end
        self._lending_ns = interval_ns // 2  # shorter waits for a CPU, of which a thread has many, lend their stacks
        # Where edges are made of accounts their lengths are exact, but not their places: runs may overlap.
        self.time = Timekeeping(n_cpus if records_all else _ANY_NUMBER, interval_ns if strikes_all else 0)
        self.model = self.time.model
        self.overview = Overview(self.time, experiments, world, records_all=records_all, has_engine=has_engine)
        self._changes = Changes(self.time, experiments, world, tally, events_end, records_all)
        self._stacks = Stacks(self.time, experiments, world, tally, records_all)
        self.output = Output(self.time, experiments, self._stacks, tally)
        self._waits = Waits(self.time, experiments, self._stacks)
        self._settlement = Settlement(interval_ns, self.time, experiments, self._stacks, self.output)
        self._taps = Taps(self.time, tap)
        if aggregations:
            self._taps.aggregate(aggregations, experiments, world, records_all)

    def name_made_code(self, roots: Callable[[], Sequence[str]], python: PythonFrames,
                       compilers: Sequence[Compiler]) -> None:
        """From here on code that runtimes make, and functions that they carry out, have names; see MadeCode."""
        self._stacks.made_code = MadeCode(self.model, self._experiments, self._tally, roots, python, compilers)

    def name_kernel(self, archives: Path) -> KernelObjects:
        """From here on functions of the kernel in stacks have names, which are kept in ``archives``."""
        from collector.session.kernel_objects import KernelObjects  # which most recordings do without

        self._stacks.kernel_objects = KernelObjects(archives, self._experiments)
        return self._stacks.kernel_objects

    @property
    def total_cpu_ns(self) -> int:
        """Exact running time of all threads that have ended."""
        return self._settlement.total_cpu_ns

    def take_over(self, pid: int, lineage: str, found: Sequence[Found], mappings: Sequence[Mapped],
                  seen: Batch) -> None:
        """Begins with a process as it was found: its threads, its mappings, and the stacks of those that are blocked.

        The founder has its experiment already; others get theirs under ``lineage``.
        """
        self._changes.take_over(pid, lineage, found, mappings, seen.until_ns)
        self.overview.found(pid)
        self.feed(seen)

    def feed(self, batch: Batch) -> None:
        """Takes one batch; afterwards its arrays are not needed any more."""
        self._changes.apply(batch.changes, batch.maps_untold)
        self._changes.unlisted.take(batch)
        self._read_mappings(batch)
        periods = self.time.advance(batch)
        self.overview.count_switches()
        parts = self._stacks.unwound(batch, periods, 0 if self._taps.listens else self._lending_ns)
        # Now that the stacks of their makers are known, the processes that were made are named.
        self._experiments.open_pending(Makings(self._world, batch.births, parts.makers if parts else None).of)
        clock, leaving = self._stacks.placed(parts)
        if batch.clock is not None and clock is not None:
            self.output.clock(batch.clock, clock, self._settlement.earned(clock, batch.clock.time_ns))
        departures = self._stacks.departures(parts.leaving if parts else None, leaving, batch.sites)
        spans = self._waits.over(periods.off_cpu(), departures, batch)
        self.output.late()
        self.output.spans(spans, self._settlement.waits.due)
        self._taps.saw(batch, clock, leaving)
        self._taps.fed(periods, spans, self.output.muted)
        self._settlement.settle(self.time.tails(batch))
        self._changes.unseen.used_before(self.time.used_ns)
        self.look_at_unseen()
        self._close_ended()
        self.model.forget_before(batch.until_ns)
        self._fed_ns = batch.until_ns
        self._give_back()

    def _read_mappings(self, batch: Batch) -> None:
        self.maps_untold = batch.maps_untold
        if batch.maps_untold:
            self._changes.read_mappings(self._fed_ns)
            self._tally.unmapped_ns += batch.until_ns - self._fed_ns if self._fed_ns else 0

    def flush_waiting(self, now_ns: int) -> None:
        """Gives threads that are off CPU their ticks so far, up to ``now_ns``, which no batch may have passed.

        Where switches are counted, the next look will tell how long they were. Of threads that have yet to run there
        is no stack to give them to: that they wait is told when they have.
        """
        self._flush(now_ns, with_newborn=False)

    def _flush(self, now_ns: int, *, with_newborn: bool = True, may_wait: bool = True) -> None:
        if not self.time.counts:
            self._tell_waiting(now_ns, with_newborn=with_newborn, may_wait=may_wait)

    def _tell_waiting(self, now_ns: int, *, with_newborn: bool = True, may_wait: bool = False,
                      by_accounts: bool = False) -> None:
        spans = self._waits.so_far(now_ns, with_newborn=with_newborn, may_wait=may_wait, by_accounts=by_accounts)
        self.output.spans(spans, self._settlement.waits.due)
        self._taps.flushed(spans, self.output.muted)

    def mute(self, now_ns: int, *, muted: bool) -> None:
        """From here on nothing is written, or it is again; what threads have spent off CPU so far is told before, also
        where switches are counted: who sleeps on has no edge from which it would be told later. What who runs on does
        behind his account is told with the next one."""
        self._tell_waiting(now_ns, by_accounts=self.time.counts)
        if self.output.muted and not muted:
            self._settlement.skip(now_ns)
        self.output.muted = muted
        self._taps.looks(now_ns if self._fed_ns else 0, not muted)  # who begins with a pause has seen nothing yet

    @property
    def unseen(self) -> UnseenOnes:
        """Processes that the kernel took the events from."""
        return self._changes.unseen

    def look_at_unseen(self, last_ns: int = 0) -> None:
        """The times of those that have ended since the last look; of all, if it is the last one, at ``last_ns``."""
        for one, recorded, end_ns in self._changes.unseen.ended(last_ns):
            self._settlement.unseen(one, recorded, end_ns)
            self._experiments.end(recorded, end_ns)

    def sync(self) -> None:
        """What was said comes to disk."""
        self._taps.sync(self._fed_ns)
        for recorded in self._experiments.open_ones():
            recorded.tell(Recorder.sync)

    def sample(self, now_ns: int, fed_ns: int, label: str) -> None:
        """An overview sample of every experiment; all that happened up to ``fed_ns`` is known."""
        self._flush(fed_ns)
        for recorded in self._experiments.open_ones():
            recorded.tell(Recorder.sample, self.overview.usage(recorded, now_ns), now_ns, label)
        for recorded in self._experiments.left_out():
            self.overview.leave_out(recorded, now_ns)
        self.sync()

    def finish(self, time_ns: int, remark: str) -> None:
        """The recording ends: what threads still owe is settled as if they ended now. ``remark`` is for the experiments
        of those who go on."""
        for recorded in self._experiments.open_ones():
            if recorded.parent is not None:
                recorded.tell(Recorder.comment, remark)
            self.overview.usage(recorded, time_ns)  # the last that can be read
            self._experiments.end(recorded, time_ns)
        self._flush(time_ns, may_wait=False)
        self._taps.looks(time_ns, False)
        self.time.end_all(time_ns)
        self.look_at_unseen(time_ns)
        self.feed(Batch(time_ns))
        founder = self._experiments.by_image.get(0)
        if founder is not None:  # whose experiment is open: what others used behind its end is told there
            self._settlement.close([founder])
        self.time.tell(self._tally)
        states = self._waits.states
        self._tally.n_guessed_faults, self._tally.n_host_faults, self._tally.n_estimated_waits = (
            states.n_guessed, states.n_from_host, states.n_estimated)
        self._tally.unsampled_ns = self._settlement.unsampled_ns
        self._tally.n_unaggregated = self._taps.n_dropped

    def _close_ended(self) -> None:
        """Ends the experiments of images that are over."""
        ended = self._experiments.ended()
        if not ended:
            return
        self._taps.close(ended)
        self.output.close(ended)
        self._stacks.close(ended)
        self._settlement.close(ended)
        self._experiments.close_ended(self.overview.usage)

    def _give_back(self) -> None:
        """What belongs to threads that have ended is given to others."""
        slots = self.time.ending
        if len(slots):
            self.output.forget(slots)
            self._waits.forget(slots)
            self._stacks.forget(slots)
            self.time.give_back(slots)
        gone = self._experiments.forget_earlier()
        if gone:
            self._stacks.forget_images(gone)

    # -- switches that are counted, not recorded

    def look(self, accounts: Accounts) -> None:
        """Accounts that have been read between batches, where switches are counted: of threads that are about to go."""
        self.time.take(accounts)

    def count(self, accounts: Mapping[int, Account]) -> None:
        """From the time of ``accounts`` (by tid) on, switches are counted. Batches that end there bring the records of
        before."""
        self.time.count(accounts)

    def stop_counting(self, counted_ns: int) -> None:
        """Switches are not counted any more, which they were for so long."""
        self._tally.counted_ns += counted_ns
        self.time.counts = False

    def record_again(self, running: Sequence[int]) -> None:
        """Records tell of switches again, and until each thread's first one, whether it is one of the ``running`` (by
        tid). That says nothing of what it did up to the last account."""
        self._tell_waiting(self._fed_ns, by_accounts=True)
        self.time.record_again(running)
