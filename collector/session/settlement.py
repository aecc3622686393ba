"""Ticks that are counted together: of first clock samples of threads, and of threads and images that end.

What a thread is owed when it ends and no tick stands for goes to stacks that it is known to have had. What is left,
less than a tick in each state, goes to the pool of its image, and when that is over, to one that all images have: one
of many that are too short for a tick of their own gets the tick of all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from collector.arrays import distinct
from collector.events import Array
from collector.experiment.recorder import Recorder
from collector.session.experiments import Experiments, Recorded
from collector.session.output import Output
from collector.session.placing import Placed
from collector.session.stacks import Stacks, no_stack
from collector.session.timekeeping import Timekeeping
from collector.session.unseen import Unseen
from collector.timing.rounding import Groups, untold
from collector.timing.sampling import Sampling
from collector.timing.settling import in_turn, settle
from collector.timing.states import Microstate, WaitTicks
from collector.timing.ticks import N_STATES


class Settlement:
    """Settles what is owed; ``total_cpu_ns`` is the exact running time of all threads that have ended."""

    def __init__(self, interval_ns: int, time: Timekeeping, experiments: Experiments, stacks: Stacks,
                 output: Output) -> None:
        self.total_cpu_ns = 0
        self.waits = WaitTicks(interval_ns)
        self._sampling = Sampling(interval_ns, time.timeline)
        self._interval_ns = interval_ns
        self._time = time
        self._clocks = time.timeline.clocks
        self._model = time.model
        self._experiments = experiments
        self._stacks = stacks
        self._output = output
        self._carry_ns: Array = np.zeros(N_STATES, dtype=np.int64)  # the pool of all images that are over

    @property
    def unsampled_ns(self) -> int:
        """Running time of images that are over which no tick stands for; less than an interval altogether is what any
        clock rounds away, and none."""
        left_ns = int(self._carry_ns[Microstate.USER])
        return left_ns if left_ns >= self._interval_ns else 0

    # -- first samples

    def earned(self, placed: Placed, time_ns: Array) -> Array:
        """Ticks (n,) that clock samples earn, given in time order."""
        self._sampling.of.grow(self._time.n_slots)
        new = distinct(placed.slot[self._sampling.of.phase_ns[placed.slot] < 0])
        few = untold(self._sampling, placed.slot, time_ns, self._groups(new)) if len(new) else None
        return self._sampling.ticks_of(placed.slot, time_ns, few)

    def _groups(self, new: Array) -> Groups:
        """The threads whose ticks are counted together with those of some ``new`` ones, and with all that end now.

        Those of a process count for themselves while it goes on, and together with all others when it is over (group
        None).
        """
        slots: dict[Recorded | None, list[int]] = defaultdict(list)  # of each group
        over: dict[Recorded, None] = {}  # those whose pools count for the group of all that are over
        for slot in self._time.ending.tolist():
            recorded = self._experiments.by_image.get(self._model.threads[slot].image.number)
            if recorded is not None:
                slots[_group_of(recorded, over)].append(slot)
        for image in dict.fromkeys(self._model.threads[slot].image for slot in new.tolist()):
            recorded, process = self._experiments.by_image.get(image.number), self._model.processes.get(image.pid)
            group = _group_of(recorded, over) if recorded is not None else None
            if group is not None and process is not None and process.image is image:
                slots[group] += process.threads.values()  # none of these ends now
        threads = np.array([slot for group in slots for slot in slots[group]], dtype=np.int64)
        number = np.array([i for i, group in enumerate(slots) for _ in slots[group]], dtype=np.int64)
        order = np.argsort(threads)
        over_ns = _on_cpu_ns(self._carry_ns) + sum(_on_cpu_ns(recorded.pool_ns) for recorded in over)
        pool_ns = np.array([over_ns if group is None else _on_cpu_ns(group.pool_ns) for group in slots], dtype=np.int64)
        goes_on = np.array([group is not None for group in slots], dtype=bool)
        return Groups(threads[order], number[order], pool_ns, goes_on)

    # -- ends

    def settle(self, tails_ns: dict[int, int]) -> None:
        """Time of the threads that end in this batch.

        ``tails_ns``: by slot, what was used behind the end; of those that ended in an earlier batch it is carried on.
        """
        ending = self._time.ending  # in ascending order
        owed_ns, stacks = self.waits.owed(ending)
        left_ns = owed_ns[:, Microstate.USER] = self._sampling.residue_ns(ending)
        slots, owners = ending.tolist(), self._owners(ending.tolist())
        tail_ns = np.array([tails_ns.pop(slot, 0) for slot in slots], dtype=np.int64)
        owed_ns[:, Microstate.SYSTEM] += tail_ns
        self._count(owners, self._clocks.cpu_ns[ending] + tail_ns)
        for owner, rows in [] if self._output.muted else self._by_pool(owners):
            # What images that are over have left goes to their pool one by one.
            pool_ns, together = (self._carry_ns, None) if owner is None else (owner.pool_ns, owed_ns[rows])
            for number in in_turn(left_ns[rows], pool_ns, self._interval_ns, together):
                row = int(rows[number])
                recorded = owners[row]
                if recorded is not None and recorded.recorder is not None:
                    self._settle_thread(recorded, recorded.recorder, slots[row], owed_ns[row], stacks[row])
        late_ns = 0 if self._output.muted else sum(tails_ns.values())
        self._carry_ns[Microstate.SYSTEM] += late_ns
        self.total_cpu_ns += late_ns
        self._sampling.forget(self._time.ending)
        self._output.flush()

    def _owners(self, slots: list[int]) -> list[Recorded | None]:
        return [self._experiments.by_image.get(self._model.threads[slot].image.number) for slot in slots]

    def _count(self, owners: list[Recorded | None], cpu_ns: Array) -> None:
        """CPU time (n,) of threads that end."""
        for recorded, ran_ns in zip(owners, cpu_ns.tolist(), strict=True):
            if recorded is not None and recorded.recorder is not None:
                recorded.ended_cpu_ns += ran_ns
                self.total_cpu_ns += ran_ns

    def _by_pool(self, owners: list[Recorded | None]) -> list[tuple[Recorded | None, Array]]:
        """The rows (n,) of threads by who has their pool; None: all images that are over."""
        rows_of: dict[Recorded | None, list[int]] = defaultdict(list)
        for row, recorded in enumerate(owners):
            if recorded is not None and recorded.recorder is not None:
                rows_of[None if recorded.end_ns is not None else recorded].append(row)
        return [(owner, np.array(rows)) for owner, rows in rows_of.items()]

    def _settle_thread(self, recorded: Recorded, recorder: Recorder, slot: int, owed_ns: Array,
                       stacks: Array) -> None:
        # One of many short processes is told more or less than it had by what was left of those before it.
        pool_ns = recorded.pool_ns if recorded.end_ns is None else self._carried(recorded)
        ticks = settle(owed_ns, pool_ns, self._interval_ns)
        for state in np.flatnonzero(ticks).tolist():
            if state == Microstate.USER:
                stack = self._stacks.of_cpu_time(recorded, slot)
            else:
                (uid,) = self._stacks.known_or_last(recorded, recorder, np.array([slot]), stacks[state:state + 1])
                stack = self._model.threads[slot].tid, self._stacks.last_cpu(slot), int(uid), state
            if stack is None:
                recorded.pool_ns[state] += int(ticks[state]) * self._interval_ns
            else:
                self._output.settled(recorded, stack, int(self._clocks.since_ns[slot]), int(ticks[state]))

    def unseen(self, one: Unseen, recorded: Recorded, time_ns: int) -> None:
        """The CPU time of a process without events, which has no stacks."""
        if one.life is None or recorded.recorder is None:
            return
        recorded.ended_cpu_ns += one.life.user_ns + one.life.system_ns
        self.total_cpu_ns += one.life.user_ns + one.life.system_ns
        if not self._output.muted:
            uid = int(no_stack(recorded.recorder)[0])
            for state, used_ns in ((Microstate.USER, one.life.user_ns), (Microstate.SYSTEM, one.life.system_ns)):
                self._output.unsampled(recorded, (one.image.pid, 0, uid, state), time_ns, used_ns // self._interval_ns)
            self._output.flush()

    def close(self, ended: Sequence[Recorded]) -> None:
        """The last ticks of images that are over."""
        for recorded in ended:
            if recorded.recorder is None or recorded.end_ns is None:
                continue
            carry_ns = self._carried(recorded)
            for state in np.flatnonzero(carry_ns >= self._interval_ns).tolist():
                ticks = int(carry_ns[state] // self._interval_ns)
                carry_ns[state] -= ticks * self._interval_ns
                tid, cpu, uid, _ = recorded.last or (recorded.image.pid, 0, int(no_stack(recorded.recorder)[0]), state)
                self._output.settled(recorded, (tid, cpu, uid, state), recorded.end_ns, ticks)
        self._output.flush()

    def _carried(self, recorded: Recorded) -> Array:
        """The pool (10,) of all images that are over, which takes that of this one."""
        self._carry_ns += recorded.pool_ns
        recorded.pool_ns[:] = 0
        return self._carry_ns


def _group_of(recorded: Recorded, over: dict[Recorded, None]) -> Recorded | None:
    """Who an image's threads are counted with; it is noted among those that are ``over`` if it is."""
    if recorded.end_ns is None:
        return recorded
    over[recorded] = None
    return None


def _on_cpu_ns(by_state_ns: Array) -> int:
    return int(by_state_ns[:Microstate.TRAP + 1].sum())
