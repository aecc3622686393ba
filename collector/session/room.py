"""Room for a recording, made sure of before anything is started: who finds out later leaves a program behind that
nobody records. Standard library only: the target waits for this.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

from collector.errors import CollectorError, reason
from collector.linux import libc

_LIMITS = resource.RLIMIT_AS, resource.RLIMIT_DATA
_LIBRARIES_BYTES = 100 << 20  # numpy's, above all; which would end us if there is less
_WORK_BYTES = 48 << 20  # of short recordings
_DESCRIPTORS = 24


def is_scarce() -> bool:
    """Whether memory is limited, so that libraries are better imported before there is a program to record. (What the
    machine or the container lacks, no process is told in time.)"""
    return any(resource.getrlimit(limit)[0] != resource.RLIM_INFINITY for limit in _LIMITS)


def check_libraries() -> None:
    """Raises CollectorError where they find no room."""
    libc.munmap(_memory(_LIBRARIES_BYTES + _WORK_BYTES), _LIBRARIES_BYTES + _WORK_BYTES)


@contextmanager
def kept_back() -> Iterator[None]:
    """What a recording needs is kept from whatever takes all that it gets, such as rings and their descriptors. Raises
    CollectorError."""
    reserve = _memory(_WORK_BYTES) if is_scarce() else 0
    descriptors: list[int] = []
    try:
        try:
            while len(descriptors) < _DESCRIPTORS:
                descriptors.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as err:
            raise CollectorError(reason(err)) from err
        yield
    finally:
        for fd in descriptors:
            os.close(fd)
        if reserve:
            libc.munmap(reserve, _WORK_BYTES)


def _memory(n_bytes: int) -> int:
    """The address of so much memory that it counts, but is not used."""
    try:
        return libc.mmap(0, n_bytes, libc.PROT_READ | libc.PROT_WRITE,
                         libc.MAP_PRIVATE | libc.MAP_ANONYMOUS | libc.MAP_NORESERVE, -1)
    except OSError as err:
        raise CollectorError(reason(err)) from err
