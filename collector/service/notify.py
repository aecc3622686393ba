"""What systemd and a service tell each other: readiness, the watchdog, sockets that are open already.

Source: sd_notify(3), sd_listen_fds(3), sd_watchdog_enabled(3). Without systemd all of it does nothing.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from contextlib import suppress

from collector.errors import CollectorError

_FIRST_FD = 3
_US_PER_S = 1_000_000
PREFIXES = {"error": "<3>", "warning": "<4>", "notice": "<5>", "info": "<6>", "debug": "<7>"}  # sd-daemon(3)


def tell(environment: Mapping[str, str], **states: str) -> None:
    """``tell(os.environ, READY="1")``; nothing where nobody listens."""
    address = environment.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    text = "\n".join(f"{name}={value.replace(chr(10), ' ')}" for name, value in states.items())
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
        sender.connect("\0" + address[1:] if address[0] == "@" else address)
        sender.sendall(text.encode("utf-8", "backslashreplace"))


def watchdog_s(environment: Mapping[str, str]) -> float:
    """Within which time systemd wants to hear of us; 0 if it does not."""
    if environment.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return 0.0
    text = environment.get("WATCHDOG_USEC", "")
    return int(text) / _US_PER_S if text.isascii() and text.isdigit() else 0.0


def listening(environment: Mapping[str, str]) -> list[socket.socket]:
    """Sockets that were opened for us. Raises CollectorError if they are not what we need."""
    count = environment.get("LISTEN_FDS", "")
    if environment.get("LISTEN_PID") != str(os.getpid()) or not count.isdigit():
        return []
    found = []
    for fd in range(_FIRST_FD, _FIRST_FD + int(count)):
        os.set_inheritable(fd, False)
        one = socket.socket(fileno=fd)
        if one.family != socket.AF_UNIX or one.type != socket.SOCK_STREAM:
            raise CollectorError("socket activation: collectord wants ListenStream= with the path of a Unix socket")
        found.append(one)
    return found
