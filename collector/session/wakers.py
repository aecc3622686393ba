"""Who woke whom: the wake-up that ended each stretch in which a thread was blocked, for aggregations.

The kernel tells of every wake-up by whom it was done (sched_waking). A stretch of being blocked that ends by a wake-up
ends at its very time (``timing.states``), so thread and time lead from the one to the other. A thread may also be woken
while it is still leaving its CPU, up to LEAVING_NS before its departure is stamped; and its run may have been told as
beginning a little before the wake-up, where an account says more than the records (``timing.ledger``). Wake-ups that
close to a stretch are its own, if no other one is nearer. The wakers are

    a recorded thread            its name
    any other one                its name, with a mark: <outside>; that alone where it has no name any more
    a software interrupt         the name of the thread that it ran in, with a mark: <softirq>. Data that a thread sends
                                 over the loopback device come so, but also those of a network card, in any thread
    a hardware interrupt         <interrupt>: a timer that is due, a disk that is done, in whatever thread that ran
    not told, or not recorded    <Unknown>; also of a synthetic stretch, which may stand for many
    none, since the stretch was not ended by a wake-up: on a CPU, waiting for one     <none>
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from collector.aggregate.spans import ON_CPU, Source, Spans
from collector.aggregate.syntax import STATES
from collector.arrays import Columns, indices, numbered, packed
from collector.events import Array, Context, Wakings
from collector.processes.model import Model, Thread
from collector.session.numbers import Numbers
from collector.session.waker_stacks import NONE as NO_STACK
from collector.session.waker_stacks import UNKNOWN as UNKNOWN_STACK
from collector.session.waker_stacks import WakerStacks
from collector.timing.states import LEAVING_NS

EARLY_NS = 20_000  # by which a run may have been told as beginning before its wake-up
_NONE, _UNKNOWN = range(2)  # codes of no waker
assert UNKNOWN_STACK == 0  # above these
_OUTSIDE, _IN_SOFTIRQ, _INTERRUPT = b"<outside>", b"<softirq>", b"<interrupt>"
_NOBODY = -1  # in place of a tid
_IS_BLOCKED = np.isin(np.arange(len(STATES)), [STATES.index(name) for name in (
    "textpfault", "datapfault", "kernelpfault", "lock", "sleep", "stop")])
_CONTEXTS = 4
_FAR_NS = 1 << 62
_STACK_SHIFT = 32  # a code is that of the waker, and above it that of its stack


class Wakers:
    """Numbers of wakers. ``names`` and ``tids`` have what these stand for."""

    def __init__(self, model: Model, name_of: Callable[[Thread], bytes], comm: Callable[[int, int], bytes],
                 stacks: WakerStacks | None = None) -> None:
        """``name_of`` a recorded thread; ``comm`` of the kernel's, for others, empty where it is gone."""
        self.names: list[bytes] = [b"<none>", b"<Unknown>"]
        self.tids: list[int] = [_NOBODY, _NOBODY]
        self._model = model
        self._name_of = name_of
        self._comm = comm
        self._numbers = Numbers(*zip(self.names, self.tids, strict=True))
        self._strangers: dict[int, bytes] = {}
        self._stacks = stacks
        self._by = np.zeros(0, dtype=np.int64)  # slots of the batch's wakers, while their stacks are not asked for
        self._slot = self._time_ns = self._code = np.zeros(0, dtype=np.int64)  # of a batch, by slot and time
        self._last = Columns(time_ns=("i8", -1), code=("i8", _UNKNOWN))  # by slot: of the batches before

    def saw(self, wakings: Wakings | None) -> None:
        """The wake-ups of a batch."""
        self._last.grow(int(self._slot.max(initial=-1)) + 1)
        self._last.time_ns[self._slot], self._last.code[self._slot] = self._time_ns, self._code
        self._slot = self._time_ns = self._code = self._by = np.zeros(0, dtype=np.int64)
        if wakings is None or wakings.waker is None or wakings.context is None:
            return
        ours = indices(self._model.known(wakings.tid))
        tid, time_ns = wakings.tid[ours], wakings.time_ns[ours]
        slot = self._model.slots(tid, tid, time_ns)
        order = np.lexsort((time_ns, slot))
        self._slot, self._time_ns = slot[order], time_ns[order]
        waker, context = wakings.waker[ours], wakings.context[ours]
        who = self._who(waker, time_ns)
        self._code = self._told(who, context)[order]
        self._by = np.where((context == Context.THREAD) & (who < 0), -1 - who, _NOBODY)[order]

    def forget_but(self, held: Spans | None) -> None:
        """Of wakers that were, only the last one of each thread and those of stretches that are ``held`` are known."""
        if not self._numbers.are_many and (self._stacks is None or not self._stacks.numbers.are_many):
            return
        told = [self._last.code, self._code]
        if held is not None and held.waker is not None and held.wakerstack is not None:
            told.append(held.waker | held.wakerstack << _STACK_SHIFT)
        codes = np.concatenate(told)
        self._numbers.keep(codes & (1 << _STACK_SHIFT) - 1)
        kept = {tid for _, tid in self._numbers}
        self._strangers = {tid: name for tid, name in self._strangers.items() if tid in kept}
        if self._stacks is not None:
            self._stacks.numbers.keep(codes >> _STACK_SHIFT)

    def of(self, spans: Spans) -> Array:
        """The number (n,) of each span's waker."""
        return self.with_stacks(spans)[0]

    def with_stacks(self, spans: Spans) -> tuple[Array, Array]:
        """The number (n,) of each span's waker, and that of its stack; ``spans`` are all that the batch tells."""
        if self._stacks is not None and len(self._by):
            self._code |= self._stacks.of(spans, self._by, self._time_ns) << _STACK_SHIFT
            self._by = self._by[:0]
        none = np.where(_IS_BLOCKED[spans.state], _UNKNOWN, _NONE)
        found = self._last_one(spans.slot, spans.end_ns, spans.end_ns)
        since_ns, until_ns = _near(spans)
        found = np.where(found == _UNKNOWN, self._last_one(spans.slot, since_ns, spans.start_ns), found)
        found = np.where(found == _UNKNOWN, self._last_one(spans.slot, spans.end_ns + 1, until_ns), found)
        told: Array = np.where((none == _NONE) | (spans.source == Source.SYNTHETIC), none, found)
        waker = told & (1 << _STACK_SHIFT) - 1
        return waker, np.where(waker == _NONE, NO_STACK, told >> _STACK_SHIFT)

    def _last_one(self, slot: Array, since_ns: Array, until_ns: Array) -> Array:
        """The number (n,) of who woke each thread last between two times, both included."""
        self._last.grow(int(slot.max(initial=-1)) + 1)
        last_ns, found = self._last.time_ns[slot], self._last.code[slot]
        found = np.where((last_ns >= since_ns) & (last_ns <= until_ns), found, _UNKNOWN)
        if len(self._slot):
            keys, wanted = packed((self._slot, self._time_ns), (slot, until_ns))
            at = np.maximum(keys.searchsorted(wanted, side="right") - 1, 0)
            met = (self._slot[at] == slot) & (keys[at] <= wanted) & (self._time_ns[at] >= since_ns)
            found = np.where(met, self._code[at], found)
        return found

    def _who(self, waker: Array, time_ns: Array) -> Array:
        """Those who did wake-ups (w,): a stranger's tid, or -1 - the slot of a thread of ours."""
        ours = self._model.known(waker)
        who = waker.copy()
        who[ours] = -1 - self._model.slots(waker[ours], waker[ours], time_ns[ours])
        return who

    def _told(self, who: Array, context: Array) -> Array:
        """Their numbers (w,). A thread may have changed its name since: it has the new one."""
        different, number = numbered(who * _CONTEXTS + context)
        codes = [self._number(*divmod(one, _CONTEXTS)) for one in different.tolist()]
        found: Array = np.array(codes, dtype=np.int64)[number]
        return found

    def _number(self, who: int, context: int) -> int:
        """Of ``_who``, in a Context."""
        if context == Context.INTERRUPT:
            name, tid = _INTERRUPT, 0
        elif who < 0:
            thread = self._model.threads[-1 - who]
            name, tid = self._name_of(thread), thread.tid
        else:
            name, tid = self._stranger(who, is_thread=context == Context.THREAD), who
        if context == Context.SOFTIRQ:
            name = b" ".join(part for part in (name, _IN_SOFTIRQ) if part)
        code = self._numbers.of((name, tid))
        self.names[code:code + 1], self.tids[code:code + 1] = [name], [tid]
        return code

    def _stranger(self, tid: int, *, is_thread: bool) -> bytes:
        """The name of a thread that is not recorded, with its mark; the kernel's idle thread has none."""
        name = (self._comm(tid, tid) if tid else b"") or self._strangers.get(tid, b"")
        self._strangers[tid] = name
        return b" ".join(part for part in (name, _OUTSIDE if is_thread else b"") if part)


def _near(spans: Spans) -> tuple[Array, Array]:
    """Since when before each span (n,) off a CPU, and until when behind it, a wake-up is its own: while the thread left
    its CPU, and when it had it again. Of a run between two of them each has the nearer half."""
    rows = np.arange(len(spans))
    on_cpu = np.append(np.isin(spans.state, ON_CPU), True)
    other = np.append(spans.slot[1:] != spans.slot[:-1], True)[:len(spans)]
    ends = other | on_cpu[1:]
    begins = np.append(True, other[:-1] | on_cpu[:-2])[:len(spans)]
    first = np.maximum.accumulate(np.where(begins, rows, 0))
    last = np.minimum.accumulate(np.where(ends, rows, len(spans))[::-1])[::-1]
    out_ns, in_ns = spans.start_ns[first], spans.end_ns[last]
    before, behind = np.maximum(first - 1, 0), np.minimum(last + 1, len(spans) - 1)
    ran_ns = np.where((first > 0) & (spans.slot[before] == spans.slot), out_ns - spans.start_ns[before], _FAR_NS)
    runs_ns = np.where((behind > last) & (spans.slot[behind] == spans.slot), spans.end_ns[behind] - in_ns, _FAR_NS)
    return out_ns - np.minimum(LEAVING_NS, ran_ns // 2), in_ns + np.minimum(EARLY_NS, runs_ns // 2)
