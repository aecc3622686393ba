"""``collect`` as a process of its own, for a program that is started or one that runs: begun, asked to end, reaped.

It is the head of a process group, in which a program that it starts is, too: keys of the terminal reach neither, and
what the program leaves in it is ended with it, if we end it. A terminal that we draw on is nobody else's: what they
write to it is kept, and copied there when the screen is given back.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from collector.environment import given
from collector.errors import CollectorError, UsageError
from collector.experiment.names import choose, shown
from collector.installed import command

_PREFIX = b"collect: "
_PATIENCE_S = 3.0
_AT_ONCE_S = 0.2
_CLOSING_S = 10.0  # behind the experiment's last event, archives included
_NAME = "top.er"


class RecordingFailed(CollectorError):
    """``collect`` could not begin; with its own words and status."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.exit_status = status


class Recorder:
    """A recording of ``program``, or of the process ``pid``. ``path``: the experiment, in a temporary folder unless
    ``name`` says where.
    """

    def __init__(self, program: Sequence[str], pid: int, name: str | None, options: Sequence[str], *,
                 keeps_terminal: bool) -> None:
        """``options`` are handed on to collect; ``keeps_terminal``: we draw on it. CollectorError."""
        self.is_started = bool(program)
        self._folder = Path(tempfile.mkdtemp(prefix="er_top.")) if name is None else None
        self.path = self._folder / _NAME if self._folder is not None else _free(name or "")
        self._kept: list[tuple[int, IO[bytes]]] = []
        self._is_copied = False
        self._ends_fd = -1
        target = ["--", *program] if program else []
        choice = [*options, "-o", str(self.path), *(["-A", "off"] if self._folder is not None else [])]
        attached = ["-P", str(pid)] if pid else []
        try:
            self._process = subprocess.Popen(
                [*command("collect"), *choice, *attached, *target],
                stdin=subprocess.DEVNULL if keeps_terminal or _is_terminal(0) else None,
                stdout=self._output(1, keeps_terminal), stderr=self._output(2, keeps_terminal or not program),
                process_group=0, env=given())
        except BaseException:
            self._remove()
            raise

    def _output(self, fd: int, is_kept: bool) -> IO[bytes] | None:
        """Where ``fd`` leads; None: where ours does."""
        if not is_kept or not (_is_terminal(fd) or not self.is_started):
            return None
        file = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the recording
        self._kept.append((fd, file))
        return file

    @property
    def pid(self) -> int:
        """That of collect."""
        return self._process.pid

    @property
    def ends_fd(self) -> int:
        """What becomes readable when collect ends."""
        if self._ends_fd < 0 and self._process.returncode is None:
            with suppress(OSError):
                self._ends_fd = os.pidfd_open(self.pid)
        return self._ends_fd

    @property
    def has_ended(self) -> bool:
        """Whether collect has."""
        return self._process.poll() is not None

    @property
    def status(self) -> int:
        """Of the program, else of collect: as a shell tells it."""
        code = self._process.wait()
        return 128 - code if code < 0 else code

    def check(self) -> None:
        """Raises RecordingFailed where collect has ended without an experiment."""
        if self.has_ended and not self.path.is_dir():
            said = [line for line in self._said() if line.startswith(_PREFIX)]
            if said:
                self._is_copied = True
                words = said[-1].removeprefix(_PREFIX).removeprefix(b"-P ").rstrip(b"\n")
                raise RecordingFailed(words.decode("utf-8", "surrogateescape"), self.status)
            raise SilentFailure(self.status)

    def end(self, number: int = signal.SIGTERM, *, is_closing: bool = False,
            is_late: Callable[[], object] = lambda: None) -> None:
        """Asks with a signal for the end; who does not listen is made to. Idempotent.

        ``is_closing``: it is ending by itself, with the program's status, which a signal would spoil. ``is_late`` is
        called where the end does not come at once.
        """
        if self.has_ended:
            return
        if not is_closing:
            self._send(number)
        if not self._ends_within(_AT_ONCE_S):
            is_late()
        if is_closing:
            if self._ends_within(_CLOSING_S):
                return
            self._send(number)
        for harder in (signal.SIGTERM, signal.SIGKILL):
            if self._ends_within(_PATIENCE_S):
                break
            self._kill_program() if harder == signal.SIGKILL else self._send(harder)
        if not self._ends_within(_PATIENCE_S):
            self._process.kill()
            self._process.wait()
        if self.is_started:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    def _send(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            if self.is_started:
                os.killpg(self.pid, number)
            else:
                os.kill(self.pid, signal.SIGTERM if number == signal.SIGQUIT else number)  # it closes nothing by that

    def _kill_program(self) -> None:
        """Collect's children are the program; then collect closes the experiment."""
        for pid in _children(self.pid) if self.is_started else ():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)

    def _ends_within(self, seconds: float) -> bool:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self.has_ended

    def close(self) -> None:
        """Ends what still runs, copies what was written to the terminal there, removes what is temporary."""
        try:
            self.end()
            for fd, file in [] if self._is_copied else self._kept:
                with suppress(OSError):
                    self._copy(fd, file)
        finally:
            self._remove()

    def _copy(self, fd: int, file: IO[bytes]) -> None:
        file.seek(0)
        with open(fd, "wb", closefd=False) as out:
            if fd == 1 or self._folder is None:
                shutil.copyfileobj(file, out)
            else:
                own = _PREFIX + os.fsencode(shown(self.path)) + b": "
                out.writelines(line for line in file if not line.startswith(own))

    def _said(self) -> list[bytes]:
        """What collect, or the program, wrote on stderr."""
        for fd, file in self._kept:
            if fd == 2:
                file.seek(0)
                return file.readlines()
        return []

    def _remove(self) -> None:
        for _, file in self._kept:
            file.close()
        self._kept = []
        if self._ends_fd >= 0:
            os.close(self._ends_fd)
            self._ends_fd = -1
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


class SilentFailure(Exception):
    """``collect`` could not begin and has told the user itself."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


def _free(name: str) -> Path:
    """Where collect records: of a number that is taken the next one. Raises CollectorError."""
    try:
        return choose(name)
    except CollectorError:
        if os.path.lexists(name):
            raise UsageError(f"{shown(name)} exists; choose another name with -o") from None
        raise


def _is_terminal(fd: int) -> bool:
    with suppress(OSError):
        return os.isatty(fd)
    return False


def _children(pid: int) -> list[int]:
    with suppress(OSError):
        return [int(child) for task in Path(f"/proc/{pid}/task").iterdir()
                for child in (task / "children").read_text().split()]
    return []
