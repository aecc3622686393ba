"""What is deleted, so that the newest stay and the disk never fills. Pure.

The laws: never more than ``keep`` experiments of a session; never more than ``megabytes`` of them, room for the one
that is being written included; never less than ``reserve`` free on the disk. The oldest go first; what is being
written is never deleted, but recording stops where nothing else is left to delete.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

MEGABYTE = 1_000_000


class Kept(NamedTuple):
    """An experiment that is closed: its name, when it ended, what it takes."""

    name: str
    ended_s: float
    n_bytes: int


def surplus(kept: Sequence[Kept], keep: int, max_bytes: int, wanted_bytes: int = 0) -> list[Kept]:
    """Those of one session that are to go, so that ``wanted_bytes`` more may be written; 0 means no limit."""
    newest = sorted(kept, key=lambda each: each.ended_s, reverse=True)
    stay, used = 0, wanted_bytes
    for each in newest:
        used += each.n_bytes
        if (keep and stay >= keep) or (max_bytes and used > max_bytes):
            break
        stay += 1
    return newest[stay:][::-1]


def to_free(kept: Sequence[Kept], free_bytes: int, reserve_bytes: int) -> list[Kept]:
    """Those of all sessions that are to go, so that the reserve stays free; perhaps all, and it is not enough."""
    gone: list[Kept] = []
    for each in sorted(kept, key=lambda each: each.ended_s):
        if free_bytes >= reserve_bytes:
            break
        gone.append(each)
        free_bytes += each.n_bytes
    return gone
