"""What the signal engine's tracer, a process of its own, tells us: rings in memory that both share.

Standard library only.

    control words | switch | site | fault | sample | change | stacks
                    rings of bytes, each with a head and a tail          a ring of words

The tracer gathers rows and lays them into the rings at the end of a round (``publish``). All heads and the horizon then
appear at once, by one store: they stand in two places in turn, and the number of rounds says in which. So a reader sees
whole rounds, and a tracer that is killed between any two stores leaves the round before. The words of stacks are put
where they stay at once. Rows that find no room wait in the tracer. Heads and tails only grow, and are
taken modulo the ring's size.

The horizon is the time before which nothing more will be told: a thread that was asleep when it was last looked at may
have run since.
"""

from __future__ import annotations

import marshal
import mmap
from typing import Any

from collector.linux import abi

RINGS = {"switch": 1 << 20, "site": 1 << 20, "fault": 1 << 16, "sample": 1 << 21, "change": 1 << 23}
_CONTROL_BYTES = mmap.PAGESIZE
# Control words: the rings' tails come behind these, then the two places of heads, stacks' head and horizon.
_ROUND, _COMMAND, _BEHIND, _STACK_TAIL, _TAILS = range(5)
_PLACE_WORDS = len(RINGS) + 2
_PLACES = _TAILS + len(RINGS)

RUN, HOLD, STOP, END = range(4)  # commands to the tracer


class Channel:
    """The shared memory, made before the tracer is forked. ``n_words`` of stacks: a power of two."""

    def __init__(self, n_words: int) -> None:
        self.n_words = n_words
        rings_bytes = sum(RINGS.values())
        self._map = mmap.mmap(-1, _CONTROL_BYTES + rings_bytes + 8 * n_words)
        self._view = memoryview(self._map)
        self._control = self._view[:_CONTROL_BYTES].cast("Q")
        self._rings: dict[str, tuple[int, memoryview]] = {}  # with the word of the tail
        self._heads = dict.fromkeys(RINGS, 0)  # the tracer's own
        at = _CONTROL_BYTES
        for i, (name, size) in enumerate(RINGS.items()):
            self._rings[name] = (_TAILS + i, self._view[at:at + size])
            at += size
        self.stacks = self._view[at:]

    # -- both sides

    @property
    def command(self) -> int:
        """What the tracer is to do."""
        return self._control[_COMMAND]

    @command.setter
    def command(self, command: int) -> None:
        self._control[_COMMAND] = command

    @property
    def is_behind(self) -> bool:
        """Whether rows wait in the tracer: what is not to be seen in the rings yet."""
        return bool(self._control[_BEHIND])

    @is_behind.setter
    def is_behind(self, behind: bool) -> None:
        self._control[_BEHIND] = behind

    @property
    def n_rounds(self) -> int:
        """Rounds that were laid into the rings."""
        return self._control[_ROUND]

    # -- the tracer's side

    def room(self, name: str) -> int:
        """Bytes that a ring has room for."""
        word, ring = self._rings[name]
        return len(ring) - (self._heads[name] - self._control[word])

    def publish(self, pending: dict[str, bytearray], stack_head: int, horizon_ns: int) -> bool:
        """Lays rows into the rings and empties ``pending``; False, and nothing done, where one has no room for them."""
        if any(len(rows) > self.room(name) for name, rows in pending.items()):
            return False
        for name, rows in pending.items():
            if rows:
                _put(self._rings[name][1], self._heads[name], rows)
                self._heads[name] += len(rows)
                del rows[:]
        n_rounds = self._control[_ROUND] + 1
        for word, value in enumerate((*self._heads.values(), stack_head, horizon_ns), _place(n_rounds)):
            self._control[word] = value
        self._control[_ROUND] = n_rounds
        return True

    def is_half_full(self) -> bool:
        """Whether the reader had better come."""
        stack_head = self._control[_place(self._control[_ROUND]) + len(RINGS)]
        return (stack_head - self._control[_STACK_TAIL] > self.n_words >> 1
                or any(self.room(name) < RINGS[name] >> 1 for name in RINGS))

    @property
    def stack_tail(self) -> int:
        """Words before this one may be written again."""
        return self._control[_STACK_TAIL]

    # -- the reader's side

    def snapshot(self) -> tuple[dict[str, int], int, int]:
        """The heads of all rings, the stacks' head and the horizon, as of one moment."""
        while True:
            n_rounds = self._control[_ROUND]
            *heads, stack_head, horizon_ns = self._control[_place(n_rounds):_place(n_rounds) + _PLACE_WORDS]
            if self._control[_ROUND] == n_rounds:  # the one after the next will be written where this one stands
                return dict(zip(RINGS, heads, strict=True)), stack_head, horizon_ns

    def take(self, name: str, head: int) -> bytearray:
        """The bytes of a ring up to ``head``, as a copy; their place is free then."""
        word, ring = self._rings[name]
        rows = _get(ring, self._control[word], head)
        self._control[word] = head
        return rows

    def give_back_stacks(self, tail: int) -> None:
        """The tracer may write again where words before ``tail`` are."""
        self._control[_STACK_TAIL] = tail


def _place(n_rounds: int) -> int:
    """Where the heads of a round stand."""
    return _PLACES + n_rounds % 2 * _PLACE_WORDS


def framed(change: tuple[Any, ...]) -> bytes:
    """A change as it goes through its ring."""
    data = marshal.dumps(change)
    return abi.LENGTH_FORMAT.pack(len(data)) + data


def unframed(rows: bytearray) -> list[tuple[Any, ...]]:
    """The changes in a run of bytes."""
    changes = []
    at = 0
    while at < len(rows):
        size = abi.LENGTH_FORMAT.unpack_from(rows, at)[0]
        at += abi.LENGTH_FORMAT.size
        changes.append(marshal.loads(rows[at:at + size]))
        at += size
    return changes


def _put(ring: memoryview, head: int, rows: bytearray) -> None:
    at = head % len(ring)
    n = min(len(rows), len(ring) - at)
    ring[at:at + n] = rows[:n]
    ring[:len(rows) - n] = rows[n:]


def _get(ring: memoryview, tail: int, head: int) -> bytearray:
    start, size = tail % len(ring), head - tail
    n = min(size, len(ring) - start)
    return bytearray(ring[start:start + n]) + bytearray(ring[:size - n])
