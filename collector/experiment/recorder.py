"""The writing door: one experiment, from its creation to its end.

What is written when::

    create      log.xml up to the run event, map.xml, overview record 0 and sample 0, data.frameinfo
    clock       profile (its frames before it, by ``frames.intern``)
    sample      the overview's record, then its event
    aggregations  what was aggregated so far; the file before is replaced
    sync        log.xml and map.xml: what has been said since; windows of idle files let go
    close       profile and data.frameinfo cut to size; map; last sample, exit

A descendant's directory appears in its place only when all its files are there. Nothing here raises once
recording has begun: when the disk is full, the experiment has been deleted or has the size that was asked for,
``stopped`` says so, what comes later is counted in ``n_dropped``, and what was written stays valid. The log alone
goes on.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from collector.errors import ExperimentError
from collector.experiment import dyntext, overview, staging
from collector.experiment.blocks import (
    TEXT_RESERVE,
    TEXT_RESERVE_END,
    DiskFull,
    GrowingFile,
    PacketFile,
    TextFile,
    append_file,
    create_file,
    failure,
    write_file,
)
from collector.experiment.dyntext import Text
from collector.experiment.frames import StackTable
from collector.experiment.identity import UNKNOWN, Identity
from collector.experiment.log import (
    COMMENT_ARGV,
    COMMENT_CWD,
    COMMENT_TEXT,
    ERROR_DISK_FULL,
    ERROR_SIZE_LIMIT,
    ERROR_TEXT,
    WARNING_TEXT,
    Header,
    LogLines,
    header_text,
)
from collector.experiment.map import ANONYMOUS, DELETED, MODE_EXECUTE, MODES_TEXT, MapLines
from collector.experiment.names import AGGREGATIONS_FILE, JOB_FILE, LOG_FILE, OPEN_DIRECTORY, shown
from collector.experiment.overview import Usage
from collector.experiment.records import BLOCK_SIZE, CLOCK, EXACT_UNKNOWN, HEAD, KIND_EMPTY, NO_SYSCALL
from collector.experiment.xml import Value

__all__ = ["Header", "Recorder", "Usage"]

LABEL_OPEN = "collector_open_experiment"
LABEL_CLOSE = "collector_close_experiment"
NO_DIRECTORY = -1
_MB = 1 << 20
_NAME_SIZE = 256  # of what is said of a thread's name, which has 15 bytes, at most
_EMPTY_PACKET = np.array([(8, KIND_EMPTY)], HEAD.dtype).tobytes().ljust(8, b"\0")
# What a founder may hold before its own files: the ranks of an MPI job do not wait for each other.
_BEFORE_US = {"archives", JOB_FILE, LOG_FILE}

Column = npt.NDArray[Any]


class LimitReached(ExperimentError):
    """It is as large as it was to become at most, which is no failure."""


class Recorder:
    """An experiment that is being written. Times are absolute CLOCK_MONOTONIC nanoseconds."""

    def __init__(self, path: Path, header: Header, usage: Usage) -> None:
        """Internal; use ``create`` or ``draft``."""
        self.path = path
        self.header = header
        self.stopped: ExperimentError | None = None
        self.n_dropped = 0
        self.closed = False
        self.load_objects: dict[bytes, int] = {}  # files mapped as text: when last
        self.frames = StackTable(self._append_frames, header.wsize)
        self._directory_fd = NO_DIRECTORY
        self._founder: Recorder | None = None
        self._staging_fd = NO_DIRECTORY  # a founder's, as soon as there are descendants
        self._log_lines = LogLines(header.start_ns)
        self._map_lines = MapLines(header.start_ns, header.page_size)
        self._log = TextFile(NO_DIRECTORY, "log.xml", draft=_first_lines(header, self._log_lines))
        self._map = TextFile(NO_DIRECTORY, "map.xml", draft=b"")
        # Not empty, because readers skip a descendant whose data.frameinfo is. (They do not if there is none.)
        self._frame_file = PacketFile(NO_DIRECTORY, "data.frameinfo", draft=_EMPTY_PACKET)
        self._profile = PacketFile(NO_DIRECTORY, "profile", draft=b"")
        self._overview = overview.record(usage, header.wsize, header.pid, 0, header.start_ns, header.start_ns)
        self._overview_size = len(self._overview)
        self._aggregations = b""
        self._texts = bytearray()  # what dyntext is to have, and has not yet
        self._texts_size = 0
        self._written: dict[str, int] = {}  # bytes used at the last sync
        self._log_pending: list[bytes] = []
        self._names: dict[int, tuple[int, bytes]] = {}  # by tid: since when, and what is to be said of it
        self._pending_size = 0  # bytes of both
        self._map_pending: list[bytes] = []
        self._last_sample = 0
        self._sample_ns = header.start_ns
        self._usage = usage
        self._latest_ns = header.start_ns
        self._data_closed = False
        self._is_descendant = False

    @classmethod
    def create(cls, directory: Path, header: Header, usage: Usage | None = None) -> Recorder:
        """Begin an experiment in ``directory``: an empty one (a founder's), or a new one (a descendant's).

        ``usage`` is what the process had used before the start. Raises ExperimentError; then nothing is
        left in the directory, or of it.
        """
        recorder = cls(directory, header, usage or Usage())
        recorder._begin()
        return recorder

    @classmethod
    def draft(cls, directory: Path, header: Header, usage: Usage | None = None,
              founder: Recorder | None = None) -> Recorder:
        """An experiment that comes to disk with the first ``sync``, or in one stroke when it is closed before.

        ``founder``: of a descendant, to be made in its directory; without it, in the one above ``directory``. Raises
        nothing; a failure then stops the recording like any later one.
        """
        recorder = cls(directory, header, usage or Usage())
        recorder._founder = founder
        return recorder

    def _begin(self) -> None:
        """Bring what there is to disk. Raises ExperimentError; then nothing is left of it."""
        try:
            if self._founder is not None and not self._founder.closed:
                self._begin_below(self._founder)
            elif os.path.lexists(self.path):
                self._begin_in(os.open(self.path, OPEN_DIRECTORY))
            else:
                self._begin_new()
        except OSError as error:
            raise failure(shown(self.path), error) from error

    def _begin_below(self, founder: Recorder) -> None:
        """As ``_begin_new``, with what a founder that is being recorded has open."""
        self._is_descendant = True
        if founder._staging_fd == NO_DIRECTORY:
            founder._staging_fd = staging.enter(founder._directory_fd)
        self._go_on(self._made_in(founder._staging_fd, founder._directory_fd))

    def _begin_new(self) -> None:
        """Make the directory in staging; it comes to its place when all its files are there."""
        self._is_descendant = True
        parent_fd = os.open(self.path.parent, OPEN_DIRECTORY)
        try:
            staging_fd = staging.enter(parent_fd)
            try:
                directory_fd = self._made_in(staging_fd, parent_fd)
            finally:
                os.close(staging_fd)
        finally:
            os.close(parent_fd)
        self._go_on(directory_fd)

    def _made_in(self, staging_fd: int, parent_fd: int) -> int:
        name = self.path.name
        os.mkdir(name, 0o700, dir_fd=staging_fd)
        try:
            directory_fd = os.open(name, OPEN_DIRECTORY, dir_fd=staging_fd)
            try:
                self._make_files(directory_fd, write_file)
                os.rename(name, name, src_dir_fd=staging_fd, dst_dir_fd=parent_fd)
            except BaseException:
                _remove_files(directory_fd)
                os.close(directory_fd)
                raise
        except BaseException:
            with suppress(OSError):
                os.rmdir(name, dir_fd=staging_fd)
            raise
        return directory_fd

    def _begin_in(self, directory_fd: int) -> None:
        """Write the files into a directory that is there, and empty. The descriptor is the recorder's from here on."""
        try:
            before = set(os.listdir(directory_fd))
            if not all(name in _BEFORE_US or name.startswith("M_r") for name in before) or _is_link(
                    directory_fd, before & {LOG_FILE}):
                raise ExperimentError(f"{shown(self.path)} is not empty; choose another name with -o")
            try:
                self._make_files(directory_fd, create_file)
            except BaseException:
                _remove_files(directory_fd, before)
                raise
        except BaseException:
            os.close(directory_fd)
            raise
        self._go_on(directory_fd)

    def _make_files(self, directory_fd: int, write: Callable[[int, str, bytes | bytearray, int], None]) -> None:
        """All files that there is something for; log.xml last. One that is ended needs no room for more lines."""
        if self.header.notes:
            notes = "".join(note + "\n" for note in self.header.notes).encode("utf-8", "surrogateescape")
            write(directory_fd, "notes", notes, 0)
        write(directory_fd, overview.NAME, self._overview, 0)
        if not self._data_closed or self._frame_file.used > len(_EMPTY_PACKET):
            self._frame_file.make(directory_fd, write)
        if self._aggregations:
            write(directory_fd, AGGREGATIONS_FILE, self._aggregations, 0)
        if self._texts:
            write(directory_fd, dyntext.NAME, self._texts, 0)
            self._texts.clear()
        self._map.make(directory_fd, write)
        if self._profile.used:
            self._profile.make(directory_fd, write)
        blocks = 0 if self._data_closed else (self._log.used + TEXT_RESERVE) // BLOCK_SIZE + 1
        self._log.make(directory_fd, write, blocks * BLOCK_SIZE)

    def _go_on(self, directory_fd: int) -> None:
        """All files are there; from here on they grow there."""
        self._directory_fd = directory_fd
        for file in (self._log, self._map, self._frame_file):
            file.go_on(directory_fd)
        if self._profile.allocated:
            self._profile.go_on(directory_fd)

    # Data

    def clock(self, tid: Column, cpu: Column, time_ns: Column, frame_uid: Column, state: Column, ticks: Column,
              **extra: Column) -> None:
        """Append one packet per row; all arrays (n,). ``extra``: syscall (-1 for none), exact_ns (-1 for
        unknown).
        """
        if self._refuses(len(tid)) or not len(tid):
            return
        self._latest(int(time_ns.max()))
        self._flush_map()  # what packets refer to is there before them
        if self._refuses(len(tid)):
            return
        packets = np.zeros(len(tid), CLOCK.dtype)
        packets["tsize"] = CLOCK.size
        packets["kind"] = CLOCK.kind
        packets["LWPID"] = packets["THRID"] = tid
        packets["CPUID"] = cpu
        packets["TSTAMP"] = time_ns
        packets["FRINFO"] = frame_uid
        packets["MSTATE"] = state
        packets["NTICK"] = ticks
        packets["SYSCALL"] = extra.pop("syscall", NO_SYSCALL)
        packets["EXACT_NS"] = extra.pop("exact_ns", EXACT_UNKNOWN)
        if extra:
            raise TypeError(f"no such field of a clock packet: {', '.join(extra)}")
        n_fitting = min(len(tid), self._room() // CLOCK.size)
        if n_fitting and not self._data(lambda: self._profile_file().append_array(packets[:n_fitting])):
            n_fitting = 0
        self.n_dropped += len(tid) - n_fitting
        if n_fitting < len(tid):
            self._stop_at_limit()

    def thread_started(self, tid: int, time_ns: int, name: bytes) -> None:
        """Threads get their numbers in the order of these calls."""
        self.threads_started([(tid, time_ns)], name)

    def threads_started(self, threads: Sequence[tuple[int, int]], name: bytes) -> None:
        """The same of several threads with one name: their tids and times."""
        if self.stopped:
            return
        lines, room = self._log_lines.threads_started(threads, name), self._room()
        if len(lines) <= room:
            self._say(lines)
        else:
            self._say(lines[:lines.rfind(b"\n", 0, room) + 1])
            self._stop_at_limit()

    def thread_named(self, tid: int, time_ns: int, name: bytes) -> None:
        """A thread has another name. Of several between two calls of ``sync`` the last one is written."""
        if self.stopped:
            return
        n_more = 0 if tid in self._names else _NAME_SIZE
        if n_more > self._room():
            self._stop_at_limit()
            return
        self._pending_size += n_more
        self._names[tid] = time_ns, name

    def segment_mapped(self, time_ns: int, vaddr: int, size: int, file_offset: int, name: bytes,
                       modes: int = MODES_TEXT, identity: Identity = UNKNOWN) -> None:
        """A file is mapped; modes 1 read, 2 write, 4 execute. What it covers is unmapped."""
        if modes & MODE_EXECUTE:
            self.load_objects[name.removesuffix(DELETED)] = time_ns
        self._map_pending.append(self._map_lines.segment(time_ns, vaddr, size, file_offset, name, modes, identity))

    def function_mapped(self, time_ns: int, vaddr: int, size: int, name: bytes,
                        symbols: Sequence[tuple[int, int, bytes]] = ()) -> None:
        """Code without a file, such as the vDSO; ``symbols`` (vaddr, size, name) subdivide it."""
        self._map_pending.append(self._map_lines.function(time_ns, vaddr, size, name, symbols))

    def anonymous_mapped(self, time_ns: int, vaddr: int, size: int, name: bytes = ANONYMOUS) -> None:
        """Executable memory without a file; what ``code_mapped`` told of the inside of it stays."""
        self._map_pending.append(self._map_lines.anonymous(time_ns, vaddr, size, name))

    def code_mapped(self, time_ns: int, vaddr: int, size: int, name: bytes, text: Text = Text()) -> None:  # noqa: B008
        """A function that a runtime has made, with its code and lines. Told again it is the same one."""
        lines, since_ns = self._map_lines.code(max(time_ns, self.header.start_ns), vaddr, size, name)
        if lines:
            self._map_pending.append(lines)
            if (text.code or text.lines) and not self.stopped:
                content = dyntext.packed(since_ns - self.header.start_ns, vaddr, text)
                self._texts += content
                self._texts_size += len(content)

    def unmapped(self, time_ns: int, vaddr: int, size: int = 0) -> None:
        """Nothing is mapped from ``vaddr`` to ``vaddr + size`` any more; size 0: what was mapped to start at
        vaddr.
        """
        self._map_pending.append(self._map_lines.unmapped(time_ns, vaddr, size))

    def sample(self, usage: Usage, time_ns: int, label: str) -> None:
        """A sample ends; ``usage`` is cumulative.

        Behind the one before: a sample may have ended before it was known that its process had. Where one has no
        length, gprofng forgets the whole seconds of all.
        """
        if self._refuses(0):
            return
        end_ns = self._latest(max(time_ns, self._sample_ns + 1))
        self._data(lambda: self._add_sample(usage, end_ns, label))

    def _add_sample(self, usage: Usage, time_ns: int, label: str) -> None:
        number, header = self._last_sample + 1, self.header
        content = overview.record(usage, header.wsize, header.pid, number, header.start_ns, time_ns)
        if self._drafted:
            self._overview += content
        else:
            overview.append(self._directory_fd, content)
        self._overview_size += len(content)
        self._last_sample, self._sample_ns, self._usage = number, time_ns, usage
        self._say(self._log_lines.sample(time_ns, number, label))

    def aggregations(self, content: bytes) -> None:
        """What the file of aggregations holds from here on; it is replaced as a whole."""
        if self._refuses(0):
            return
        self._aggregations = content
        if not self._drafted:
            self._data(lambda: create_file(self._directory_fd, AGGREGATIONS_FILE, content))

    # Events

    def comment(self, text: Value, time_ns: int | None = None, number: int = COMMENT_TEXT) -> None:
        """A remark for the header; without a time, of now."""
        self._say(self._log_lines.comment(self._latest(time_ns), number, text))

    def warning(self, text: Value, time_ns: int | None = None, number: int = WARNING_TEXT) -> None:
        """A warning for the header; without a time, of now."""
        self._say(self._log_lines.warning(self._latest(time_ns), number, text))

    def error(self, text: Value, time_ns: int | None = None, number: int = ERROR_TEXT,
              errno: int = 0) -> None:
        """An error for the header; without a time, of now."""
        self._say(self._log_lines.error(self._latest(time_ns), number, text, errno))

    def pause(self, time_ns: int, name: str = "") -> None:
        """Recording pauses."""
        self._say(self._log_lines.pause(time_ns, name))

    def resume(self, time_ns: int, name: str = "") -> None:
        """Recording goes on."""
        self._say(self._log_lines.resume(time_ns, name))

    def descendant_starting(self, time_ns: int, variant: str, lineage: str, follow: bool,
                            message: Value | None = None) -> None:
        """Before a fork, clone, posix_spawn ...; ``variant`` is the call, ``lineage`` the child's, without
        ``.er``.
        """
        self._say(self._log_lines.descendant("desc_start", time_ns, variant, lineage, follow, message))

    def descendant_started(self, time_ns: int, variant: str, lineage: str, follow: bool,
                           message: Value) -> None:
        """After it; ``message`` is ``pid=N`` or ``err TEXT``."""
        self._say(self._log_lines.descendant("desc_started", time_ns, variant, lineage, follow, message))

    def exec_start(self, time_ns: int, variant: str, lineage: str, follow: bool, message: Value) -> None:
        """The process turns into another program (``message``: PATH ARGS). Readers take it for a proper end.
        """
        self._say(self._log_lines.descendant("exec_start", time_ns, variant, lineage, follow, message))

    def exec_error(self, time_ns: int, variant: str, lineage: str, follow: bool, message: Value) -> None:
        """It did not; ``message`` is ``err TEXT``."""
        self._say(self._log_lines.descendant("exec_error", time_ns, variant, lineage, follow, message))

    # Keeping and ending

    def sync(self) -> None:
        """Write log and map; let go of files that have not grown since the last call."""
        if self.closed:
            return
        if self._drafted:
            self._flush()
            self._make()
            return
        if not self.stopped:
            self._data(self._check_exists, grows=False)
        self._flush()
        for file in (self._log, self._map, self._frame_file, self._profile):
            if self._written.get(file.name) == file.used:
                file.release()
            self._written[file.name] = file.used

    def close_data(self) -> None:
        """No more packets: cut the data files to size and write log and map. Archiving goes between this and
        close.
        """
        if self._data_closed:
            return
        self._data_closed = True
        self._flush()
        for file in (self._frame_file, self._profile, self._map):
            self._close_file(file)

    def close(self, time_ns: int, label: str = LABEL_CLOSE, usage: Usage | None = None) -> None:
        """End the experiment: a last sample, unless one ended at ``time_ns``, then the exit event. Idempotent.

        Without ``usage`` nothing more has been used since the last sample.
        """
        if self.closed:
            return
        self.close_data()  # this also frees what was allocated ahead, so that there is room for the rest
        if self._sample_ns < time_ns:
            with suppress(ExperimentError):
                self._add_sample(usage or self._usage, time_ns, label)
        self._say(self._log_lines.exit(time_ns))
        self._flush(last=True)
        if self._drafted:
            self._make()
        self._close_file(self._log)
        self.closed = True
        if not self._drafted:
            if self._staging_fd != NO_DIRECTORY:
                os.close(self._staging_fd)
                self._staging_fd = NO_DIRECTORY
            if not self._is_descendant:
                staging.remove(self._directory_fd)
            os.close(self._directory_fd)

    @property
    def failed(self) -> bool:
        """Whether it was stopped by something else than the limit that was asked for."""
        return self.stopped is not None and not isinstance(self.stopped, LimitReached)

    @property
    def _drafted(self) -> bool:
        """Whether nothing is on disk yet."""
        return self._directory_fd == NO_DIRECTORY

    def _make(self) -> None:
        """Bring a draft to disk. If that fails, its packets are dropped, and nothing more is tried."""
        if not self.failed and not self._data(self._begin, grows=False):
            self.n_dropped += self._profile.used // CLOCK.size

    def _latest(self, time_ns: int | None) -> int:
        """The time given, or the latest that was."""
        self._latest_ns = max(self._latest_ns, time_ns or 0)
        return self._latest_ns if time_ns is None else time_ns

    def _refuses(self, n_packets: int) -> bool:
        if self.stopped or self._data_closed:
            self.n_dropped += n_packets
            return True
        return False

    def _profile_file(self) -> PacketFile:
        if not self._drafted and not self._profile.allocated:
            self._profile.make(self._directory_fd, create_file)
            self._profile.go_on(self._directory_fd)
        return self._profile

    def _append_frames(self, packets: list[bytes]) -> None:
        if self._refuses(0):
            return
        n_fitting = self._frame_file.n_fitting(packets, self._room()) if self.header.size_limit_mb else len(packets)
        self._data(lambda: self._frame_file.append_packets(packets[:n_fitting]))
        if n_fitting < len(packets):
            self._stop_at_limit()

    def _say(self, line: bytes) -> None:
        self._log_pending.append(line)
        self._pending_size += len(line)

    def _data(self, write: Callable[[], None], *, grows: bool = True) -> bool:
        """Run ``write``; a failure stops recording and is logged. False then. So does the limit, where something
        ``grows``."""
        try:
            write()
            if grows and not self._room():
                self._stop_at_limit()
            return True
        except ExperimentError as error:
            self.stopped = error
            self.error(str(error), number=ERROR_DISK_FULL if isinstance(error, DiskFull) else ERROR_TEXT,
                       errno=error.errno if isinstance(error, DiskFull) else 0)
            return False

    def _room(self) -> int:
        """Bytes up to the limit that was asked for."""
        return max(self._left(), 0)

    def _left(self) -> int:
        """The same; below zero where something was too large."""
        if not self.header.size_limit_mb:
            return sys.maxsize
        files = self._profile, self._frame_file, self._log, self._map
        others = self._overview_size, len(self._aggregations), self._texts_size, self._pending_size
        return self.header.size_limit_mb * _MB - sum(file.used for file in files) - sum(others)

    def _stop_at_limit(self) -> None:
        """What comes later is not recorded; the log goes on with what is no data."""
        if not self.stopped:
            if self._left() < 0:
                self._texts.clear()
            self.error(f"{self.header.size_limit_mb} MB", number=ERROR_SIZE_LIMIT)
            self.stopped = LimitReached(f"the experiment has reached its size limit of "
                                        f"{self.header.size_limit_mb} MB; recording has stopped")

    def _check_exists(self) -> None:
        if os.fstat(self._directory_fd).st_nlink == 0:
            raise ExperimentError(f"{shown(self.path)} was deleted while it was recorded; recording has stopped")

    def _flush(self, last: bool = False) -> None:
        """Write what is pending. After a failure the map stays as it is; the log uses its reserve while it lasts."""
        self._flush_map()
        self._log_pending += [self._log_lines.thread_named(time_ns, tid, name)
                              for tid, (time_ns, name) in self._names.items()]
        self._names.clear()
        lines, self._log_pending, self._pending_size = self._log_pending, [], 0
        if lines and not self.stopped and self._data(lambda: self._log.append(b"".join(lines))):
            lines = []  # what this has said, if it has reached the limit, is still to be written
        for line in [*lines, *self._log_pending] if self.stopped else ():
            with suppress(ExperimentError):
                self._log.append(line, 0 if last else TEXT_RESERVE_END)
        self._log_pending, self._pending_size = [], 0

    def _flush_map(self) -> None:
        lines, self._map_pending = self._map_pending, []
        if lines and not self.stopped:
            self._data(lambda: self._map.append(b"".join(lines)))
        if self._texts and not self._drafted and not self.stopped:
            content, self._texts = self._texts, bytearray()
            self._data(lambda: append_file(self._directory_fd, dyntext.NAME, content))

    def _close_file(self, file: GrowingFile) -> None:
        try:
            file.close()
        except ExperimentError as error:
            self.stopped = self.stopped or error


def _first_lines(header: Header, lines: LogLines) -> bytes:
    return b"".join([header_text(header), lines.sample(header.start_ns, 0, LABEL_OPEN),
                     lines.comment(header.start_ns, COMMENT_CWD, header.cwd),
                     lines.comment(header.start_ns, COMMENT_ARGV, header.arguments),
                     *(lines.aggregation(header.start_ns, expression) for expression in header.aggregations),
                     *(lines.label(header.start_ns, *label) for label in header.labels)])


def _is_link(directory_fd: int, names: set[str]) -> bool:
    """Whether one of the names is anything but a file."""
    return any(not stat.S_ISREG(os.lstat(name, dir_fd=directory_fd).st_mode) for name in names)


def _remove_files(directory_fd: int, but: Collection[str] = ()) -> None:
    for name in set(os.listdir(directory_fd)).difference(but):
        with suppress(OSError):
            os.unlink(name, dir_fd=directory_fd)
