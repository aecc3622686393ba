"""Threads of a process by the numbers that it knows them by itself: others than ours where it lives in a PID namespace
below ours, as in a container."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from collector.linux import proc


def tid_of(pid: int) -> Callable[[int], int] | None:
    """What tells our number of a thread by its own (below 0 where there is no such thread); None where they are the
    same. Raises OSError when the process is gone."""
    return OwnTids(pid) if len(_numbers(f"{pid}")) > 1 else None


class OwnTids:
    """Those of one process."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._ours: dict[int, int] = {}  # by its own number

    def __call__(self, own: int) -> int:
        if self._of(self._ours.get(own, 0)) != own:  # none yet, or one that is over
            self._list()
        return self._ours.get(own, -own)

    def _list(self) -> None:
        there = []
        with suppress(OSError):
            there = proc.threads(self._pid)
        self._ours = {own: tid for tid in there if (own := self._of(tid))}

    def _of(self, tid: int) -> int:
        with suppress(OSError):  # it is gone
            return _numbers(f"{self._pid}/task/{tid}")[-1]
        return 0


def _numbers(path: str) -> list[int]:
    """A thread's number in each PID namespace from ours down to its own."""
    return [int(number) for number in proc.status(path).get(b"NSpid", b"").split()]
