"""Who may do what: tables over facts that are handed in. Pure.

    who \\ whose process        own        closed      foreign
    root, the daemon's user    daemon     daemon      daemon      as whom it is recorded
    member of the group        peer (*)   daemon      daemon
    ordinary user              peer       -           -

(*) As the daemon where it goes on by unit, control group or command: the next process may be another user's.
*Own*: all four user ids of the process are the peer's, and the kernel lets its user look into it. *Closed*: it is the
peer's in part, or is not dumpable. A recording *as the peer* runs with the peer's rights and nobody else's, so that the
kernel checks again all that is said here; one *as the daemon* may see all that the daemon may.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from collector.errors import CollectorError
from collector.linux.census import Owner
from collector.linux.peers import Credentials


class Refused(CollectorError):
    """The peer may not do this; the message says who may."""


class Standing(Enum):
    """What a peer is to the daemon."""

    ROOT = "root"
    MEMBER = "member"
    ORDINARY = "ordinary"
    STRANGER = "stranger"  # ordinary users are not served


class Relation(Enum):
    """What a process is to a peer."""

    OWN = "own"
    CLOSED = "closed"
    FOREIGN = "foreign"
    KERNEL = "kernel"


class Rights(Enum):
    """As whom something is recorded."""

    PEER = "peer"
    DAEMON = "daemon"


class Access(NamedTuple):
    """Whom the daemon serves: ``daemon_uid`` it runs as, whether it may become other users, the group whose members may
    record everything, whether ordinary users may record what is theirs."""

    daemon_uid: int
    may_become: bool
    group: int | None = None
    users: bool = True


CONNECTIONS_MAX = 512
_CLOSED = ("the process is closed to its own user (setuid, of several users, or not dumpable): root, or members of the "
           "daemon's group, may record it")
_FOREIGN = "the process belongs to another user: root, or members of the daemon's group, may record it"
_KERNEL = "a thread of the kernel has no user code to profile"
_STRANGER = "this daemon records for root and for members of its group only: ask who runs it"
_CHOICES: dict[tuple[Standing, Relation], Rights | str] = {
    (Standing.ROOT, Relation.OWN): Rights.DAEMON,
    (Standing.ROOT, Relation.CLOSED): Rights.DAEMON,
    (Standing.ROOT, Relation.FOREIGN): Rights.DAEMON,
    (Standing.MEMBER, Relation.OWN): Rights.PEER,
    (Standing.MEMBER, Relation.CLOSED): Rights.DAEMON,
    (Standing.MEMBER, Relation.FOREIGN): Rights.DAEMON,
    (Standing.ORDINARY, Relation.OWN): Rights.PEER,
    (Standing.ORDINARY, Relation.CLOSED): _CLOSED,
    (Standing.ORDINARY, Relation.FOREIGN): _FOREIGN,
}


def standing(peer: Credentials, access: Access) -> Standing:
    """What the peer is to the daemon."""
    if peer.uid in (0, access.daemon_uid):
        return Standing.ROOT
    if access.group is not None and access.group in (peer.gid, *peer.groups):
        return Standing.MEMBER
    return Standing.ORDINARY if access.users and access.may_become else Standing.STRANGER


def relation(uid: int, owner: Owner) -> Relation:
    """What a process is to a user."""
    if owner.is_kernel:
        return Relation.KERNEL
    if uid not in owner.uids:
        return Relation.FOREIGN
    return Relation.OWN if set(owner.uids) == {uid} and owner.dumpable else Relation.CLOSED


def rights(peer: Credentials, owner: Owner, access: Access) -> Rights:
    """As whom the peer may have the process recorded. Raises Refused."""
    to_daemon = standing(peer, access)
    if to_daemon is Standing.STRANGER:
        raise Refused(_STRANGER)
    to_peer = relation(peer.uid, owner)
    if to_peer is Relation.KERNEL:
        raise Refused(_KERNEL)
    found = _CHOICES[to_daemon, to_peer]
    if isinstance(found, str):
        raise Refused(found)
    return found if access.may_become else Rights.DAEMON


def may_see(peer: Credentials, uid: int, access: Access) -> bool:
    """Whether the peer may see, control and fetch a session of user ``uid``."""
    return standing(peer, access) is Standing.ROOT or peer.uid == uid


def may_record_others(peer: Credentials, access: Access) -> bool:
    """Whether the peer may have everybody's processes recorded."""
    return access.may_become and standing(peer, access) in (Standing.ROOT, Standing.MEMBER)


def may_administer(peer: Credentials, access: Access) -> bool:
    """Whether the peer may reload the configuration and end what it asks for."""
    return standing(peer, access) is Standing.ROOT


def may_see_configured(peer: Credentials, access: Access) -> bool:
    """Whether the peer may see and fetch what the configuration asks for."""
    return standing(peer, access) in (Standing.ROOT, Standing.MEMBER)


def too_many(peer: Credentials, n_own: int, n_all: int, limit: int, access: Access) -> str:
    """Why there may not be so many connections of the peer's, or of all; empty where there may."""
    if n_own > limit:
        return f"this user has {limit} connections already; close one"
    if n_all > CONNECTIONS_MAX and not may_administer(peer, access):
        return f"all users together have {CONNECTIONS_MAX} connections already; try again when some are closed"
    return ""


class Bucket:
    """So many requests a second, and as many at once."""

    def __init__(self, per_s: float, now_s: Callable[[], float]) -> None:
        self._per_s = per_s
        self._now_s = now_s
        self._left = per_s
        self._at_s = now_s()

    def take(self) -> bool:
        """Whether there is one more."""
        now_s = self._now_s()
        self._left = min(self._per_s, self._left + (now_s - self._at_s) * self._per_s)
        self._at_s = now_s
        if self._left < 1:
            return False
        self._left -= 1
        return True

    @property
    def is_full(self) -> bool:
        """Nothing was taken for a while, so it may be forgotten."""
        return self._left + (self._now_s() - self._at_s) * self._per_s >= self._per_s
