"""Descriptors that the kernel closes."""

from __future__ import annotations

import os
import resource

from collector.linux import descriptors


def test_the_kernel_closes_what_we_do_not_wait_for() -> None:
    """The reader of a pipe is told of the last writer's end; of more pipes than one message takes."""
    pipes = [os.pipe() for _ in range(307)]
    before = len(os.listdir("/proc/self/fd"))
    descriptors.close_later([writer for _, writer in pipes])
    assert len(os.listdir("/proc/self/fd")) == before - len(pipes)
    for reader, _ in pipes:
        assert os.read(reader, 1) == b""
        os.close(reader)


def test_it_waits_where_the_kernel_takes_nothing() -> None:
    """Without room for two more descriptors there is no pair of sockets."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    reader, writer = os.pipe()
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        descriptors.close_later([writer])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert os.read(reader, 1) == b""
    os.close(reader)
