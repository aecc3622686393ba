"""What a process has mapped, and its name: read anew where that may have changed. Standard library only."""

from __future__ import annotations

import time
from contextlib import suppress

from collector.clock import NS_PER_MS, NS_PER_S
from collector.engines.ptrace.targets import Traced, Tracee
from collector.engines.ptrace.writer import Writer
from collector.linux import tasks

_CHECK_MAPS_NS, _YOUNG_NS = 5 * NS_PER_MS, 50 * NS_PER_MS
_MAPS_SHARE, _SAME_MAPS_SHARE = 4, 50  # of the time is for reading mappings that have changed, or that may have


class Mappings:
    """Tells of mappings that are new."""

    def __init__(self, writer: Writer, interval_ns: int) -> None:
        self._writer = writer
        self._interval_ns = interval_ns

    def check(self, thread: Tracee, pc: int, now_ns: int, sample_ns: int) -> None:
        """Reads the mappings again where they have changed, or where the pc says so: what is new was there already at
        the time of the sample that they are needed for."""
        process = thread.process
        # A program with many mappings is stopped for long while they are read.
        if now_ns - process.mapped_ns < _MAPS_SHARE * process.mapping_ns:
            return
        self.measure(thread, now_ns)
        if process.size_now != process.size:
            process.size = process.size_now
            library = tasks.library_pages(thread.files.read("status", 4096))
            if library != process.library:
                process.library = library
                self._read(thread, now_ns, sample_ns)
        rested_ns = now_ns - process.mapped_ns
        if rested_ns >= max(NS_PER_S, _SAME_MAPS_SHARE * process.mapping_ns) or (
                not process.covers(pc) and (process.is_young or rested_ns >= self._interval_ns // 2)):
            self._read(thread, now_ns, sample_ns)
            self._check_name(thread, now_ns)

    def measure(self, thread: Tracee, now_ns: int) -> None:
        """Whose size has changed may have other mappings."""
        process = thread.process
        if process.is_young or now_ns - process.checked_ns >= _CHECK_MAPS_NS:
            process.checked_ns = now_ns
            with suppress(OSError):  # it is gone: its end will be reported
                process.size_now = thread.files.read("statm").partition(b" ")[0]

    def _read(self, thread: Tracee, now_ns: int, sample_ns: int) -> None:
        process = thread.process
        began_ns = time.thread_time_ns()  # while others have our CPU nothing is read
        with suppress(OSError):
            for mapping in process.enter(tasks.executables(process.pid, thread.tid)):
                self._writer.mapping(process, thread.tid, sample_ns, mapping)
        process.mapped_ns = time.monotonic_ns()
        process.mapping_ns = time.thread_time_ns() - began_ns

    def _check_name(self, thread: Tracee, now_ns: int) -> None:
        name = thread.files.read_once("comm")[:-1]
        if name != thread.name:
            thread.name = name
            self._writer.change("Renamed", now_ns, thread.process.pid, thread.tid, name)

    def begin_image(self, process: Traced, tid: int, now_ns: int) -> None:
        comm = tasks.Files(process.pid, tid).read_once("comm")[:-1]
        self._writer.change("Executed", now_ns, process.pid, process.pid, comm)
        process.mapped = set()
        process.young_until_ns = process.cpu_ns + _YOUNG_NS
        for mapping in self.read_image(process, tid):
            self._writer.mapping(process, tid, now_ns, mapping)

    def read_image(self, process: Traced, tid: int) -> list[tasks.Executable]:
        """What a process runs, anew; returns the mappings that are new."""
        process.bits = tasks.word_bits(process.pid)
        files = tasks.Files(process.pid, tid)
        try:
            process.size = process.size_now = files.read_once("statm").partition(b" ")[0]
            process.library = tasks.library_pages(files.read_once("status", 4096))
            return process.enter(tasks.executables(process.pid, tid))
        except OSError:
            return []
