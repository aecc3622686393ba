"""Sockets of servers that are started."""

from __future__ import annotations

from pathlib import Path

_LISTENS = "00010000"  # of a socket's flags: __SO_ACCEPTCON


def is_listening(path: Path) -> bool:
    """Whether somebody listens on a socket of the file system: its file is there a little before that."""
    fields = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()]
    return any(line[3] == _LISTENS and line[7:] == [str(path)] for line in fields)
