"""The client's end: requests out, replies in, the bytes of a fetch to wherever they shall go."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress

from collector.errors import CollectorError
from collector.service import protocol
from collector.service.protocol import Chunk, Done, Failed

DEFAULT_SOCKET = "/run/collectord.sock"


class NoDaemon(CollectorError):
    """Nobody answers at the socket."""


class DaemonRefused(CollectorError):
    """The daemon's answer was no; the text is the daemon's."""


class Client:
    """A connection to a daemon; closed by ``close`` or as a context."""

    def __init__(self, path: str) -> None:
        """Raises NoDaemon."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            self._socket.connect(path)
        except OSError as err:
            self._socket.close()
            raise NoDaemon(f"no collectord answers at {path} ({err.strerror or err}): systemctl start "
                           "collectord.socket, or collectord --socket PATH --spool DIR") from None
        self._file = self._socket.makefile("rb")

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """No more requests."""
        self._file.close()
        self._socket.close()

    def ask(self, request: protocol.Request) -> protocol.AnyReply:
        """One request, one reply. Raises DaemonRefused, NoDaemon."""
        self._send(request)
        return self._reply()

    def watch(self, request: protocol.Top) -> Iterator[protocol.AnyReply]:
        """Replies until the daemon ends."""
        self._send(request)
        while True:
            yield self._reply()

    def fetch(self, request: protocol.Fetch, write: Callable[[bytes], object]) -> int:
        """Writes the archive; returns its size. Raises DaemonRefused where it is not whole."""
        self._send(request)
        size = 0
        while not isinstance(reply := self._reply(), Done):
            if not isinstance(reply, Chunk):
                raise DaemonRefused("the daemon answered something else than an archive")
            left = reply.length
            while left:
                data = self._file.read(min(left, 1 << 16))
                if not data:
                    raise NoDaemon("the daemon ended in the middle of the archive; fetch it again")
                write(data)
                left -= len(data)
            size += reply.length
        return size

    def _send(self, request: protocol.Request) -> None:
        data = protocol.encoded(request)
        if len(data) > protocol.MESSAGE_MAX:
            raise DaemonRefused(f"the request is longer than {protocol.MESSAGE_MAX} bytes")
        with suppress(OSError):  # why, it may have said before it closed
            self._socket.sendall(data)

    def _reply(self) -> protocol.AnyReply:
        try:
            line = self._file.readline()
        except OSError:
            line = b""
        if not line.endswith(b"\n"):
            raise NoDaemon("the daemon ended before it answered")
        reply = protocol.reply(line)
        if isinstance(reply, Failed):
            raise DaemonRefused(reply.error)
        return reply


def pid_of(text: str) -> int:
    """The number of a process. Raises CollectorError."""
    if not text.isascii() or not text.isdigit() or not int(text[:9]) >= 1 or len(text) > 9:
        raise CollectorError(f"{text}: give the number of a process")
    return int(text)


def socket_path() -> str:
    """Where the daemon listens unless told otherwise."""
    return os.environ.get("COLLECTORD_SOCKET", DEFAULT_SOCKET)
