"""A program under a tracer that hears what it is let hear."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any

import numpy as np
import prefork

from collector.engines.ptrace.channel import Channel, unframed
from collector.engines.ptrace.targets import Tracee
from collector.engines.ptrace.tracer import Tracer
from collector.linux import abi, ptrace

INTERVAL_NS = 10_007_000


class Traced:
    """The program, and its tracer."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.pid = process.pid
        self._channel = Channel(1 << 16)
        self.tracer = Tracer(self._channel, INTERVAL_NS, 1024, follow=True, wake=lambda: None)
        self.tracer.attach(self.pid)

    def go_on(self) -> None:
        """A line for it."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")

    @property
    def output(self) -> IO[bytes]:
        """What it writes."""
        assert self._process.stdout is not None
        return self._process.stdout

    @property
    def leader(self) -> Tracee:
        """As the tracer knows it."""
        return self.tracer._lives.threads[self.pid]

    def ask(self) -> None:
        """The tracer wants a sample of the leader."""
        self.tracer._looks.ask(self.leader, self.leader.files.read("schedstat", 64), time.monotonic_ns(), False)

    def reports(self) -> Iterator[ptrace.Report]:
        """As the kernel makes them."""
        while True:
            if report := ptrace.next_report():
                yield report
            time.sleep(0.001)

    def hear_until(self, event: int) -> ptrace.Report:
        """Lets the tracer hear everything up to a report of an event, which it does hear."""
        for report in self.reports():
            self.tracer.reports.hear(report)
            if report.event == event:
                return report
        raise AssertionError

    def take_until(self, kind: str) -> tuple[list[tuple[Any, ...]], Any]:
        """Lets the tracer take all that there is until it has told of a change; what it has told since the last time.
        """
        changes, switches = self.told()
        while not any(change[0] == kind for change in changes):
            time.sleep(0.001)
            assert self.tracer.reports.take()
            more, more_switches = self.told()
            changes, switches = changes + more, np.concatenate([switches, more_switches])
        return changes, switches

    def told(self) -> tuple[list[tuple[Any, ...]], Any]:
        """The changes and switches that the tracer has told since the last time."""
        self.tracer.publish()
        heads, _, _ = self._channel.snapshot()
        changes = unframed(self._channel.take("change", heads["change"]))
        return changes, np.frombuffer(self._channel.take("switch", heads["switch"]), dtype=abi.TRACED_SWITCH.dtype)

    def hear_all(self) -> None:
        """Lets it end, and the tracer hear that; then we have no children any more."""
        prefork.end()
        while self.tracer.reports.take():
            with suppress(BrokenPipeError):
                self.go_on()
            time.sleep(0.001)


@contextmanager
def running(program: str, *arguments: object) -> Iterator[Traced]:
    """A program of Python that has said its first line."""
    with subprocess.Popen([sys.executable, "-c", program, *map(str, arguments)], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield Traced(process)
        finally:
            process.kill()


def of(changes: list[tuple[Any, ...]], kind: str, tid: int) -> list[tuple[Any, ...]]:
    """Changes of a kind about a thread."""
    return [change for change in changes if change[0] == kind and change[3] == tid]
