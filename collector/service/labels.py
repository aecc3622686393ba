"""What a process belongs to, as labels of its experiment: unit, control group, container, host, boot, build id.

The build id is in the program's file, which may be anything, on any file system. So it is read by a process of its own,
with the rights of the recording, which is given some seconds.
"""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress

from collector.elf import open_object
from collector.errors import CollectorError
from collector.experiment.names import shown
from collector.linux import census

_DIGITS_MAX = 64
_CONTAINER = re.compile(r"(?:^|[/-])([0-9a-f]{64})(?:\.scope)?(?:/|$)")
_UNIT = re.compile(r"([^/]+\.(?:service|scope|socket|mount))(?:/|$)")


def of_process(pid: int) -> dict[str, str]:
    """Those that are known."""
    cgroup = census.cgroup(pid)
    labels = {"host": os.uname().nodename, "boot": census.boot_id(), **of_cgroup(cgroup)}
    return {name: shown(value) for name, value in labels.items() if value}


def of_cgroup(path: str) -> dict[str, str]:
    """What the path of a control group tells."""
    units, container = _UNIT.findall(path), _CONTAINER.search(path)
    return {"cgroup": path, "unit": units[-1] if units else "", "container": container[1] if container else ""}


def program(pid: int) -> tuple[str, ...] | None:
    """What tells a program of a process from the one before an exec: its path, and where it lies in memory; None where
    that is not to be seen. Device and inode would do, but stat(2) asks the file system, whose server may be gone."""
    try:
        return os.readlink(f"/proc/{pid}/exe"), *census.layout(pid)
    except OSError:
        return None


def build_id_command(pid: int) -> list[str]:
    """A command that says the build id of the program that a process runs, and nothing where there is none."""
    return [sys.executable, "-I", "-c", "import sys; from collector.service.labels import build_id; "
            "sys.stderr.write(build_id(int(sys.argv[1])))", str(pid)]


def build_id(pid: int) -> str:
    """Of the program that a process runs, as hexadecimal digits."""
    with suppress(OSError, CollectorError), open_object(f"/proc/{pid}/exe") as elf:
        return (elf.build_id or b"").hex()[:_DIGITS_MAX]
    return ""
