"""Who is at the other end of a Unix socket, as the kernel saw it when the connection was made."""

from __future__ import annotations

import errno
import socket
from typing import NamedTuple

_SO_PEERGROUPS = 59  # include/uapi/asm-generic/socket.h; since Linux 4.13 (commit 28b5ba2aa0f5)
_WORD = 4
_GROUPS_MAX = 65_536


class Credentials(NamedTuple):
    """A process's user, group and further groups. Its number is not here: it may be somebody else's by now."""

    uid: int
    gid: int
    groups: tuple[int, ...]


def credentials(connection: socket.socket) -> Credentials:
    """Of the peer of a connected Unix socket. Raises OSError."""
    words = memoryview(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 3 * _WORD)).cast("I")
    return Credentials(words[1], words[2], _groups(connection))


def process(connection: socket.socket) -> int:
    """The number of the process that made the connection, which may be somebody else's by now; 0 where it is in another
    PID namespace. Raises OSError."""
    words = memoryview(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 3 * _WORD)).cast("I")
    return words[0]


def _groups(connection: socket.socket) -> tuple[int, ...]:
    size = 64 * _WORD
    while True:
        try:
            return tuple(memoryview(connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, size)).cast("I"))
        except OSError as err:
            if err.errno != errno.ERANGE or size > _GROUPS_MAX * _WORD:
                raise
            size *= 8
