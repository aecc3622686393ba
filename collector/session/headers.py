"""What the head of each experiment of a recording says: who, where, when, how."""

from __future__ import annotations

import os
import time

from collector import __version__
from collector.clock import NS_PER_S
from collector.experiment.recorder import Header
from collector.linux import proc, tasks
from collector.session.experiments import Recorded
from collector.session.heir import Ids
from collector.session.options import Options

KERNEL_PID = 0  # that of the thread that each CPU is idle in


class Headers:
    """Headers of the experiments that are recorded with ``options`` by a process, on this machine."""

    def __init__(self, options: Options, recorder: Ids) -> None:
        self._options = options
        self._recorder = recorder
        self._machine = proc.machine()
        self._cwd = proc.working_directory()

    def founder(self, pid: int, start_ns: int) -> Header:
        """Of the process that everything begins with."""
        arguments = b" ".join(os.fsencode(argument) for argument in self._options.arguments)
        return self._header(pid, self._recorder.pid, start_ns, tasks.word_bits(pid), arguments, self._options.comments)

    def job(self, pid: int, start_ns: int) -> Header:
        """Of the experiment around the ranks of an MPI job, the first of which is process ``pid``."""
        return self._header(pid, self._recorder.pid, start_ns, 64, b"mpi")

    def kernel(self, start_ns: int) -> Header:
        """Of an experiment on the kernel, which is no process."""
        return self._header(KERNEL_PID, self._recorder.pid, start_ns, 64, b"kernel", self._options.comments)

    def descendant(self, recorded: Recorded) -> Header:
        """Of an image that has its own experiment inside the founder's."""
        image = recorded.image
        arguments = recorded.arguments or image.program
        return self._header(image.pid, recorded.parent_pid, recorded.start_ns, image.bits, arguments)

    def _header(self, pid: int, parent_pid: int, start_ns: int, bits: int, arguments: bytes,
                notes: tuple[str, ...] = ()) -> Header:
        machine = self._machine
        start_unix = int(time.time() - (time.monotonic_ns() - start_ns) / NS_PER_S)
        return Header(hostname=machine.hostname, os=machine.system, arch=machine.architecture,
                      page_size=machine.page_size, n_pages=machine.n_pages, cpus=machine.cpu_mhz, pid=pid,
                      ppid=parent_pid, pgrp=self._recorder.group, sid=self._recorder.session,
                      cwd=self._cwd, arguments=arguments, wsize=bits,
                      interval_ns=self._options.interval_ns,
                      sample_period_s=self._options.sample_period_s, start_ns=start_ns, start_unix=start_unix,
                      collector=f"collect {__version__}", follow=self._options.follow != "off", notes=list(notes),
                      size_limit_mb=self._options.size_limit_mb, aggregations=self._options.aggregations,
                      labels=[label.partition("=")[::2] for label in self._options.labels])
