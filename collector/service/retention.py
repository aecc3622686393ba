"""What is deleted, so that the newest stay and the disk never fills. Pure.

The laws: never more than ``keep`` experiments of a session; never more than ``megabytes`` of them, room for the one
that is being written included; never less than ``reserve`` free on the disk. The oldest go first; what is being
written is never deleted, but recording stops where deleting all the others would not free the reserve; then none of
them goes for it: who fills the disk may be somebody else. What is owed to the handoff stands outside the first two
laws and has one of its own: never more than its spool of all sessions together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

MEGABYTE = 1_000_000
WAITING, REFUSED = "waiting", "refused"


class Kept(NamedTuple):
    """An experiment that is closed: its name, when it ended, what it takes; whether it is to be handed over yet: empty
    if not, WAITING, or REFUSED, which waits for somebody to mend what is wrong; the labels that stand in its log."""

    name: str
    ended_s: float
    n_bytes: int
    owed: str = ""
    labels: tuple[tuple[str, str], ...] = ()


class Room(NamedTuple):
    """Those of one session that are to go before more is written: for its own limits, and for the reserve of the disk;
    and whether it may be written then."""

    surplus: list[Kept]
    for_disk: list[Kept]
    is_enough: bool


def room(kept: Sequence[Kept], keep: int, max_bytes: int, wanted_bytes: int, free_bytes: int, reserve_bytes: int
         ) -> Room:
    """Before ``wanted_bytes`` more are written."""
    gone = surplus(kept, keep, max_bytes, wanted_bytes)
    free_bytes += sum(each.n_bytes for each in gone)
    for_disk = to_free([each for each in kept if each not in gone], free_bytes, reserve_bytes)
    free_bytes += sum(each.n_bytes for each in for_disk)
    return Room(gone, for_disk, True) if free_bytes >= reserve_bytes else Room(gone, [], False)


def surplus(kept: Sequence[Kept], keep: int, max_bytes: int, wanted_bytes: int = 0) -> list[Kept]:
    """Those of one session that are to go, so that ``wanted_bytes`` more may be written; 0 means no limit."""
    newest = sorted((each for each in kept if not each.owed), key=lambda each: each.ended_s)[::-1]
    stay, used = 0, wanted_bytes
    for each in newest:
        used += each.n_bytes
        if (keep and stay >= keep) or (max_bytes and used > max_bytes):
            break
        stay += 1
    return newest[stay:][::-1]


def too_much_owed(owed: Sequence[tuple[str, Kept]], max_bytes: int) -> list[tuple[str, Kept]]:
    """Those of all sessions (session, experiment) that are owed no longer, so that the others are not more than the
    spool; the oldest."""
    left = sum(kept.n_bytes for _, kept in owed)
    gone = []
    for each in sorted(owed, key=lambda each: each[1].ended_s):
        if left <= max_bytes:
            break
        gone.append(each)
        left -= each[1].n_bytes
    return gone


def to_free(kept: Sequence[Kept], free_bytes: int, reserve_bytes: int) -> list[Kept]:
    """Those of all sessions that are to go, so that the reserve stays free; perhaps all, and it is not enough."""
    gone: list[Kept] = []
    for each in sorted(kept, key=lambda each: each.ended_s):
        if free_bytes >= reserve_bytes:
            break
        gone.append(each)
        free_bytes += each.n_bytes
    return gone
