"""Descriptors whose last close takes the kernel long. Standard library only."""

from __future__ import annotations

import os
from array import array
from collections.abc import Sequence
from contextlib import suppress

_MOST = 250  # in one message: SCM_MAX_FD is 253, and the socket itself is one more


def close_later(fds: Sequence[int]) -> None:
    """Closes descriptors. What that takes is done by the kernel's own threads, and nobody waits for it, not even the
    end of our process; where that cannot be, here and now.

    They are sent into a socket that waits in its own queue. Once we have closed it, nobody can reach it: the kernel's
    collector of such circles (net/unix/garbage.c) gives up all that is in the queue.
    """
    for first in range(0, len(fds), _MOST):
        some = fds[first:first + _MOST]
        with suppress(ImportError, OSError):  # no Unix sockets, or too much under way in them
            _send_into_itself(some)
        for fd in some:
            os.close(fd)


def _send_into_itself(fds: Sequence[int]) -> None:
    """The kernel holds the descriptors' files for a moment after we have closed them. Raises ImportError, OSError."""
    import _socket  # what socket is made of, which is too much to import for this

    waiting, sending = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_DGRAM)
    try:
        rights = array("i", [waiting.fileno(), *fds])
        sending.sendmsg([b"."], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)])
    finally:
        waiting.close()
        sending.close()  # the last: the collector comes when a socket ends
