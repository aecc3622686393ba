"""Who has which children, by the kernel's lists of them."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def children_of(pid: int) -> list[int]:
    """The children of all threads of a process, the oldest first. Raises OSError when it is over."""
    if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX":
        raise ProcessLookupError(pid)
    listed: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # of a thread that has ended
            listed += map(int, path.read_text().split())
    found: dict[int, int] = {}
    for child in listed:
        with suppress(OSError):  # it has ended
            found[child] = int(Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[19])
    return sorted(found, key=lambda child: found[child])
