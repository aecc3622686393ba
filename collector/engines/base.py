"""What every engine offers the session."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Protocol, TypeAlias

from collector.events import Accounts, Batch

Threads: TypeAlias = Iterable[tuple[int, int]]  # each one's process and own id


class Engine(Protocol):
    """Opened before the target starts (or attached to a running one), drained until the target ends, closed."""

    name: str
    reason: str  # why this engine, in one line
    pressed_ns: int  # when a drain is due, as it seems, though no descriptor is ready (CLOCK_MONOTONIC)
    room_ns: int  # how long there will be room for what is recorded, at its pace before the last drain

    def poll_fds(self) -> list[int]:
        """Descriptors that become readable when a drain is due before its time."""

    def instead_of(self, fd: int) -> int | None:
        """Another descriptor that becomes readable where one of them would, which has hung up; None where none does."""

    def idle_fds(self, due_ns: int) -> Collection[int]:
        """Those of them that need not be polled, since they cannot be a reason to drain before ``due_ns``
        (CLOCK_MONOTONIC)."""

    def wants_drain(self, ready: Collection[int], due_ns: int) -> bool:
        """Whether the descriptors that woke us are a reason to drain now; if not, the next drain at ``due_ns``
        (CLOCK_MONOTONIC) is soon enough."""

    def look(self, asked: Threads) -> Accounts | None:
        """The accounts, as of now, of the threads that have switched since the last drain, and of some that are
        ``asked`` for. None where the engine goes by accounts itself."""

    def drain(self, until_ns: int) -> Batch:
        """All that happened up to ``until_ns`` and was not drained before, or, where that is too much at once, the
        first of it: then it ``has_more``. Arrays are valid until ``release``."""

    def release(self) -> None:
        """The last batch has been used; its memory may be written again."""

    def failure(self) -> str:
        """Why nothing more will come although the target runs on; empty while all is well."""

    def stop(self) -> int:
        """No more samples; what happened before stays to be drained: up to this time, which may lie a while
        behind the call where the engine had to wait for a CPU."""

    def close(self) -> None:
        """Gives everything back. The target runs on unharmed. May be called twice."""
