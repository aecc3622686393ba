"""Processes that the daemon starts, each with an argument vector, never a shell; and as whom.

``setpriv`` of util-linux gives up rights: user, groups, capabilities. A child that runs as the peer has the peer's user
and groups, as the kernel knows them of its connection, and no capability; one that runs as the daemon keeps what
recording needs. Both get SIGINT when the daemon dies, by which ``collect`` closes its experiment.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress

from collector.errors import CollectorError, reason
from collector.linux import census
from collector.linux.peers import Credentials

ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8",
               "OPENBLAS_NUM_THREADS": "1"}
_NOT_FOR_SESSIONS = ("setuid", "setgid", "kill")
_LINE_MAX = 4096
_SAID_MAX = 1 << 20


def as_daemon(argv: Sequence[str]) -> list[str]:
    """With the rights of the daemon that recording needs."""
    given_up = ",".join(f"-{name}" for name in _NOT_FOR_SESSIONS)
    return ["setpriv", "--pdeathsig", "INT", "--no-new-privs", f"--inh-caps={given_up}", f"--ambient-caps={given_up}",
            "--", *argv]


def as_peer(peer: Credentials, argv: Sequence[str], gid: int | None = None) -> list[str]:
    """With the rights of a user alone; ``gid``: with another group."""
    if peer.uid == os.geteuid():
        return ["setpriv", "--pdeathsig", "INT", "--no-new-privs", "--inh-caps=-all", "--ambient-caps=-all", "--",
                *argv]
    groups = [f"--groups={','.join(map(str, peer.groups))}"] if peer.groups and gid is None else ["--clear-groups"]
    return ["setpriv", "--pdeathsig", "INT", "--no-new-privs", "--inh-caps=-all", "--ambient-caps=-all",
            f"--reuid={peer.uid}", f"--regid={peer.gid if gid is None else gid}", *groups, "--", *argv]


class Child:
    """A process of ours; ``ended`` is its exit status, negative for a signal."""

    def __init__(self, argv: Sequence[str], said: Callable[[str], None], stdout: int = subprocess.DEVNULL,
                 fds: Sequence[int] = ()) -> None:
        """``said`` is told each line of its standard error; ``fds`` are open in it. Raises CollectorError."""
        self._loop = asyncio.get_running_loop()
        self._said = said
        self._rest = b""
        self._n_bytes = 0
        self._is_doomed = False
        self._used_s: float | None = None  # once it has ended
        try:
            self._popen = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=stdout, stderr=subprocess.PIPE,
                                           env=ENVIRONMENT, cwd="/", start_new_session=True,
                                           pass_fds=fds)
        except (OSError, ValueError) as err:
            raise CollectorError(f"cannot start {argv[0]}: {reason(err)}") from None
        assert self._popen.stderr is not None
        self._stderr = self._popen.stderr
        self.pid = self._popen.pid
        self.ended: asyncio.Future[int] = self._loop.create_future()
        try:
            self._pidfd = os.pidfd_open(self.pid)
        except OSError as err:
            self._popen.kill()
            self._popen.wait()
            self._stderr.close()
            raise CollectorError(f"cannot start {argv[0]}: {reason(err)}") from None
        os.set_blocking(self._stderr.fileno(), False)
        self._loop.add_reader(self._stderr.fileno(), self._listen)
        self._loop.add_reader(self._pidfd, self._reap)

    @property
    def cpu_s(self) -> float:
        """Seconds of CPU that it has used; once it has ended, with its own children."""
        return census.cpu_s(self.pid) if self._used_s is None else self._used_s

    def signal(self, number: int) -> None:
        """Sends a signal, if it still lives."""
        if self._pidfd < 0:
            return
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, number)

    def signal_group(self, number: int) -> None:
        """Sends a signal to it and to those of its process group. None of them is there when its end is told."""
        if self._pidfd < 0:
            return
        self._is_doomed = True
        with suppress(ProcessLookupError, PermissionError):  # its number is its group's until it is reaped
            os.killpg(self.pid, number)

    def _listen(self) -> None:
        try:
            data = self._stderr.read(_LINE_MAX)
        except OSError:
            data = b""
        if data is None:
            return
        if not data:
            self._loop.remove_reader(self._stderr.fileno())
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._rest = self._rest[-_LINE_MAX:]
        self._n_bytes += len(data)
        if self._n_bytes > _SAID_MAX:  # whoever goes on waits: its owner may be somebody who wants us to be busy
            self._loop.remove_reader(self._stderr.fileno())
        for line in lines:
            self._said(os.fsdecode(line))

    def _reap(self) -> None:
        self._loop.remove_reader(self._pidfd)
        if self._is_doomed:
            self.signal_group(signal.SIGKILL)
        before_s = _ended_cpu_s()
        status = self._popen.wait()
        self._used_s = _ended_cpu_s() - before_s
        os.close(self._pidfd)
        self._pidfd = -1
        for _ in range(1 << 6):  # what it said last; who inherited its end may go on, and is not listened to
            before = self._rest
            self._listen()
            if self._rest == before:
                break
        if self._rest:
            self._said(os.fsdecode(self._rest))
        self._loop.remove_reader(self._stderr.fileno())
        self._stderr.close()
        if not self.ended.done():
            self.ended.set_result(status)


def _ended_cpu_s() -> float:
    """Of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


async def run(argv: Sequence[str], within_s: float = 600.0) -> str:
    """Runs a short-lived command to its end; what it said. Raises CollectorError with what it said last."""
    lines: list[str] = []
    child = Child(argv, lines.append)
    try:
        status = await asyncio.wait_for(asyncio.shield(child.ended), within_s)
    except TimeoutError:
        child.signal(signal.SIGKILL)
        raise CollectorError(f"{argv[0]} took more than {within_s:g} s") from None
    if status:
        raise CollectorError(lines[-1] if lines else f"{argv[0]} failed with status {status}")
    return "\n".join(lines)
