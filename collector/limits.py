"""The limit of our own open files. Standard library only: programs wait for this, and so does each reader's start."""

from __future__ import annotations

from contextlib import suppress


def raise_descriptor_limit() -> None:
    """Lifts it as far as this user may: each load object takes one, and each event of a running thread one for each
    kind and CPU. It stays where nobody may change it: in some sandboxes, and where the kernel's own limit (fs.nr_open)
    has become less than that."""
    import resource

    with suppress(OSError, ValueError):
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        with suppress(OSError, ValueError):
            with open("/proc/sys/fs/nr_open", encoding="ascii") as file:
                beyond = max(most, int(file.read()))
            resource.setrlimit(resource.RLIMIT_NOFILE, (beyond, beyond))
            return
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
