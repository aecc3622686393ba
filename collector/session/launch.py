"""A child process held before its exec, so that the events are open when its first instruction runs.

Standard library only, and as little as possible of it: the target waits for this.

    parent                        child
    fork  ----------------------> restore signals, wait for the go
    open the events on the child
    go    ----------------------> execve; close-on-exec closes the report pipe
    report pipe: end of file = the program runs; otherwise errno of execve
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Mapping, Sequence

from collector.errors import ProgramNotExecutable, ProgramNotFound

# Signals that we handle while the target runs.
HANDLED = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP)


def dispositions_for_target() -> dict[int, signal.Handlers]:
    """What the target must find: ignored signals stay ignored (nohup), all others are as at birth.

    Python ignores SIGPIPE and SIGXFSZ when it starts; a program expects their defaults.
    """
    found: dict[int, signal.Handlers] = {signal.SIGPIPE: signal.SIG_DFL, signal.SIGXFSZ: signal.SIG_DFL}
    for number in HANDLED:
        ignored = signal.getsignal(number) is signal.SIG_IGN
        found[number] = signal.SIG_IGN if ignored else signal.SIG_DFL
    return found


class HeldChild:
    """A forked child that runs ``arguments`` as soon as it is let go."""

    def __init__(self, path: str, arguments: Sequence[str], dispositions: Mapping[int, signal.Handlers]) -> None:
        """``path`` is what is executed; ``dispositions`` of signals that the target gets, as we found them."""
        self._path = path
        self._program = arguments[0]
        self._go_read, self._go_write = os.pipe()
        self._report_read, report_write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._go_write)
            _become(path, arguments, self._go_read, report_write, dispositions)
        os.close(self._go_read)
        os.close(report_write)

    def release(self) -> None:
        """Lets the child exec. Raises ProgramNotFound or ProgramNotExecutable when the kernel will not run it."""
        os.write(self._go_write, b"g")
        os.close(self._go_write)
        report = os.read(self._report_read, 16)
        os.close(self._report_read)
        if report:
            os.waitpid(self.pid, 0)
            raise exec_error(self._program, int(report))

    def abandon(self) -> None:
        """Ends the child without an exec."""
        os.close(self._go_write)  # end of file: the child leaves by itself
        os.close(self._report_read)
        os.waitpid(self.pid, 0)


def find_program(name: str) -> str:
    """The file that execvp(3) would run for ``name``. Raises ProgramNotFound or ProgramNotExecutable."""
    if "/" in name:
        candidates = [name]
    else:
        candidates = [os.path.join(d or ".", name) for d in os.environ.get("PATH", os.defpath).split(os.pathsep)]
    denied = None
    for path in candidates:
        if os.path.isfile(path):
            if os.access(path, os.X_OK):
                return path
            denied = denied or path
        elif os.path.exists(path) and "/" in name:
            denied = denied or path
    if denied is not None:
        raise exec_error(denied, errno.EACCES)
    raise exec_error(name, errno.ENOENT)


def exec_error(program: str, code: int) -> ProgramNotFound | ProgramNotExecutable:
    """The error for the user when the program cannot be run for the reason ``code``."""
    if code in (errno.ENOENT, errno.ENOTDIR):
        if os.path.exists(program):
            return ProgramNotFound(f"{program!r}: its interpreter (first line, or dynamic loader) does not exist")
        return ProgramNotFound(f"{program!r}: program not found; give its path, or check PATH")
    if code == errno.ENOEXEC:
        return ProgramNotExecutable(f"{program!r}: not a program for this machine, nor a script with a #! line")
    return ProgramNotExecutable(f"{program!r}: cannot be executed: {os.strerror(code)}")


def _become(path: str, arguments: Sequence[str], go: int, report: int,
            dispositions: Mapping[int, signal.Handlers]) -> None:
    """The child's side; never returns."""
    code = 0
    try:
        for number, disposition in dispositions.items():
            signal.signal(number, disposition)
        if os.read(go, 1):
            os.execv(path, list(arguments))
    except OSError as err:
        code = err.errno or errno.EINVAL
    except BaseException:
        code = errno.EINVAL
    try:
        if code:
            os.write(report, str(code).encode())
    finally:
        os._exit(127)


def exit_status(wait_status: int) -> int:
    """A wait(2) status as the shell gives it: the exit code, or 128 plus the signal."""
    code = os.waitstatus_to_exitcode(wait_status)
    return 128 - code if code < 0 else code
