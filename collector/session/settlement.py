"""Ticks that are counted together: of first clock samples of threads, and of threads and images that end.

What a thread is owed when it ends and no tick stands for goes to stacks that it is known to have had. What is left,
less than a tick in each state, goes to the pool of its image, and when that is over, to one that all images have: one
of many that are too short for a tick of their own gets the tick of all. Its threads are settled among themselves
before: so no image is told an interval more than it had for what others are short of, nor an interval less.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from collector.arrays import distinct, indices
from collector.events import Array
from collector.session.experiments import Experiments, Recorded
from collector.session.output import Output
from collector.session.placing import Placed
from collector.session.stacks import Stacks, no_stack
from collector.session.timekeeping import Timekeeping
from collector.session.unseen import Unseen
from collector.timing.rounding import Groups, untold
from collector.timing.sampling import Sampling
from collector.timing.settling import has_choice, in_turn, settle
from collector.timing.states import Microstate, WaitTicks
from collector.timing.ticks import N_STATES


class _Owed(NamedTuple):
    """What threads (n,) are owed: what each has on CPU that no tick stands for; by state; and the stacks of that."""

    slot: Array  # (n,)
    left_ns: Array  # (n,)
    by_state_ns: Array  # (n, 10)
    stacks: Array  # (n, 10)

    def of(self, rows: Array) -> _Owed:
        """Some of them."""
        return _Owed(*(column[rows] for column in self))


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
        new = placed.slot[self._sampling.of.phase_ns[placed.slot] < 0]
        few = untold(self._sampling, placed.slot, time_ns, self._groups(distinct(new))) if len(new) else None
        return self._sampling.ticks_of(placed.slot, time_ns, few)

    def skip(self, time_ns: int) -> None:
        """A pause ends: what threads have run in it is not told by their next samples, where these come late."""
        slots = np.array([thread.slot for thread in self._model.living()], dtype=np.int64)
        self._sampling.skip(slots, time_ns)

    def _groups(self, new: Array) -> Groups:
        """The threads whose ticks are counted together with those of some ``new`` ones, and with all that end now."""
        slots: dict[Recorded, list[int]] = defaultdict(list)
        for slot in self._time.ending.tolist():
            recorded = self._experiments.by_image.get(self._model.threads[slot].image.number)
            if recorded is not None:
                slots[recorded].append(slot)
        for image in dict.fromkeys(self._model.threads[slot].image for slot in new.tolist()):
            recorded, process = self._experiments.by_image.get(image.number), self._model.processes.get(image.pid)
            if recorded is not None and process is not None and process.image is image:
                slots[recorded] += process.threads.values()  # none of these ends now
        threads = np.array([slot for its in slots.values() for slot in its], dtype=np.int64)
        number = np.array([i for i, its in enumerate(slots.values()) for _ in its], dtype=np.int64)
        order = threads.argsort()
        pool_ns = np.array([_on_cpu_ns(recorded.pool_ns) for recorded in slots], dtype=np.int64)
        over = np.array([recorded.end_ns is not None for recorded in slots], dtype=bool)
        return Groups(threads[order], number[order], pool_ns, over, _on_cpu_ns(self._carry_ns))

    # -- ends

    def settle(self, tails_ns: dict[int, int]) -> None:
        """Time of the threads that end in this batch.

        ``tails_ns``: by slot, what was used behind the end; of those that ended in an earlier batch it is carried on.
        """
        if len(self._time.ending):
            self._settle_ending(self._time.ending, tails_ns)
        late_ns = sum(tails_ns.values())
        self.total_cpu_ns += late_ns
        if not self._output.muted:
            self._carry_ns[Microstate.SYSTEM] += late_ns
        self._output.flush()

    def _settle_ending(self, ending: Array, tails_ns: dict[int, int]) -> None:
        """Time of the threads at slots (n,), in ascending order; their tails are taken from ``tails_ns``."""
        owed_ns, stacks = self.waits.owed(ending)
        left_ns = owed_ns[:, Microstate.USER] = self._sampling.residue_ns(ending)
        owners = self._owners(ending)
        tail_ns = np.array([tails_ns.pop(slot, 0) for slot in ending.tolist()], dtype=np.int64)
        owed_ns[:, Microstate.SYSTEM] += tail_ns
        self._count(owners, self._clocks.cpu_ns[ending] + tail_ns)
        if not self._output.muted:
            self._settle_images(owners, _Owed(ending, left_ns, owed_ns, stacks))
        else:
            self._pool_waits(owners, owed_ns)
        self._sampling.forget(ending)

    def _pool_waits(self, owners: list[tuple[Recorded, Array]], owed_ns: Array) -> None:
        """Threads end in a pause: of their waits they are owed what was before it, (n, 10), which is told behind it."""
        for recorded, rows in owners:
            recorded.pool_ns[Microstate.TRAP + 1:] += owed_ns[rows, Microstate.TRAP + 1:].sum(axis=0)

    def _owners(self, slots: Array) -> list[tuple[Recorded, Array]]:
        """The rows (n,) in ``slots``, in ascending order, of threads of each image that is recorded."""
        rows_of: dict[int, list[int]] = defaultdict(list)
        for row, number in enumerate(self._model.of.image[slots].tolist()):
            rows_of[number].append(row)
        rows_by: dict[Recorded, list[int]] = {}
        for number, rows in rows_of.items():
            recorded = self._experiments.by_image.get(number)
            if recorded is not None and recorded.recorder is not None:
                rows_by[recorded] = rows_by.get(recorded, []) + rows
        return [(recorded, np.sort(rows)) for recorded, rows in rows_by.items()]

    def _count(self, owners: list[tuple[Recorded, Array]], cpu_ns: Array) -> None:
        """CPU time (n,) of threads that end."""
        for recorded, rows in owners:
            ran_ns = int(cpu_ns[rows].sum())
            recorded.ended_cpu_ns += ran_ns
            self.total_cpu_ns += ran_ns

    def _settle_images(self, owners: list[tuple[Recorded, Array]], owed: _Owed) -> None:
        """Each image settles its threads. The last one of an image that is over has what the others have left, too, and
        all images settle these together, as far as that leaves each image within an interval."""
        free: list[tuple[Recorded, _Owed]] = []
        for recorded, rows in owners:
            rows = rows[np.argsort(owed.left_ns[rows], kind="stable")]  # who is owed most can best be told more or less
            if recorded.end_ns is None:
                self._settle_threads(recorded, owed.of(rows))
                continue
            self._settle_threads(recorded, owed.of(rows[:-1]))
            last = owed.of(rows[-1:])
            if has_choice(last.by_state_ns[0], recorded.pool_ns, self._interval_ns):
                free.append((recorded, last))
            else:
                self._settle_thread(recorded, recorded.pool_ns, last, 0)
                self._carried(recorded)
        left_ns = np.array([int(last.left_ns[0]) + _on_cpu_ns(recorded.pool_ns) for recorded, last in free])
        for number in in_turn(left_ns, self._carry_ns, self._interval_ns):
            recorded, last = free[number]
            self._settle_thread(recorded, self._carried(recorded), last, 0)

    def _settle_threads(self, recorded: Recorded, owed: _Owed) -> None:
        if len(owed.slot):
            for row in in_turn(owed.left_ns, recorded.pool_ns, self._interval_ns, owed.by_state_ns):
                self._settle_thread(recorded, recorded.pool_ns, owed, row)

    def _settle_thread(self, recorded: Recorded, pool_ns: Array, owed: _Owed, row: int) -> None:
        if recorded.recorder is None:
            return
        slot = int(owed.slot[row])
        ticks = settle(owed.by_state_ns[row], pool_ns, self._interval_ns)
        for state, n in enumerate(ticks.tolist()):
            if not n:
                continue
            if state == Microstate.USER:
                stack = self._stacks.of_cpu_time(recorded, slot)
            else:
                uid = self._stacks.known_or_last_of(recorded.recorder, slot, int(owed.stacks[row, state]))
                stack = self._model.threads[slot].tid, self._stacks.last_cpu(slot), uid, state
            if stack is None:
                recorded.pool_ns[state] += n * self._interval_ns
            else:
                self._output.settled(recorded, stack, int(self._clocks.since_ns[slot]), n)

    def unseen(self, one: Unseen, recorded: Recorded, time_ns: int) -> None:
        """The CPU time of a process without events, which has no stacks."""
        if one.life is None or recorded.recorder is None:
            return
        recorded.ended_cpu_ns += sum(one.used_ns)
        self.total_cpu_ns += sum(one.used_ns)
        if not self._output.muted:
            uid = int(no_stack(recorded.recorder)[0])
            for state, used_ns in zip((Microstate.USER, Microstate.SYSTEM), one.used_ns, strict=True):
                ticks, rest_ns = divmod(used_ns, self._interval_ns)
                self._output.unsampled(recorded, (one.image.pid, 0, uid, state), time_ns, ticks)
                recorded.pool_ns[state] += rest_ns
            self._output.flush()

    def close(self, ended: Sequence[Recorded]) -> None:
        """The last ticks of images that are over."""
        for recorded in ended:
            if recorded.recorder is None or recorded.end_ns is None:
                continue
            carry_ns = self._carried(recorded)
            for state in indices(carry_ns >= self._interval_ns).tolist():
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


def _on_cpu_ns(by_state_ns: Array) -> int:
    return int(by_state_ns[:Microstate.TRAP + 1].sum())
