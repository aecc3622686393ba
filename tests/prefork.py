"""Our commands started by a fork of a process that has them imported, as prefork servers do: half of what a short
recording costs is imports, and the tests make many hundreds.

It is the real command in a process of its own, a child of the test's, with its own arguments, environment, folder and
files. Whatever else a test asks of a start (a terminal, another user, a variable that Python reads before it runs us)
is an exec as always. So it must be where a start is what is looked at: this one imports nothing while its target runs.

As a program: the process that forks, for the tests' one, which holds the other end of its standard input, a socket.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import Any, NoReturn

COMMANDS = {str(Path(sys.executable).with_name(name)): name
            for name in ("collect", "collectctl", "er_archive", "er_export", "er_html", "er_print", "er_top")}
_PACKAGES = ("aggregate", "cli.commands", "engines", "experiment", "export", "linux", "processes", "report", "runtimes",
             "session", "timing", "unwind")
_READ_BEFORE_WE_RUN = ("LANG", "LC_", "LD_", "MALLOC_", "OPENBLAS_", "PATH", "PYTHON", "TZ")  # names begin like that
_MAX_REQUEST = 1 << 20
_INHERITED: tuple[Callable[[], Any], ...] = (
    lambda: os.sched_getaffinity(0), lambda: os.sched_getscheduler(0), lambda: os.getpriority(os.PRIO_PROCESS, 0),
    lambda: os.getresuid() + os.getresgid(), lambda: (os.getpgid(0), os.getsid(0)),
    lambda: Path("/proc/self/cgroup").read_text(), lambda: Path("/proc/self/limits").read_text(),
    lambda: [signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM)],
    lambda: signal.pthread_sigmask(signal.SIG_BLOCK, ()))

forks = True  # or each start is an exec


# --- in the tests' process ------------------------------------------------------------------------


class Popen(subprocess.Popen[Any]):
    """Like ``subprocess.Popen``; a command of ours without anything special is forked."""

    def __init__(self, args: Any, **options: Any) -> None:
        self._is_forked = is_plain(args, options)
        super().__init__(args, **options)

    def _execute_child(self, *given: Any) -> None:
        """The method of ``subprocess.Popen`` that starts a program whose pipes are made."""
        if not self._is_forked:
            super()._execute_child(*given)  # type: ignore[misc]
            return
        asked = signature(super()._execute_child).bind(*given).arguments  # type: ignore[misc]
        pipes = [asked[name] for name in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")]
        fds = [number if fd == -1 else fd for number, fd in enumerate((pipes[0], pipes[3], pipes[5]))]
        self.pid = _Forker.of_this_process().fork(asked["args"], fds, asked["cwd"], asked["env"],
                                                  asked["start_new_session"])
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]


def run(args: Any, *, input: Any = None, timeout: float | None = None, check: bool = False,
        capture_output: bool = False, **options: Any) -> subprocess.CompletedProcess[Any]:
    """Like ``subprocess.run``, with ``Popen`` above."""
    if input is not None:
        options["stdin"] = subprocess.PIPE
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Popen(args, **options) as process:
        try:
            out, err = process.communicate(input, timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(process.args, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


_PLAIN = {"cwd", "env", "stdin", "stdout", "stderr", "text", "encoding", "errors", "bufsize", "start_new_session"}


def is_plain(args: Any, options: dict[str, Any]) -> bool:
    """Whether this is a start of one of our commands that a fork does as well."""
    if not forks:
        return False
    if isinstance(args, (str, bytes, os.PathLike)) or os.fsdecode(args[0]) not in COMMANDS or options.keys() - _PLAIN:
        return False
    env = options.get("env")
    if env is not None and _read_early(env) != _read_early(os.environ):
        return False
    given = [options.get(name) for name in ("stdin", "stdout", "stderr")]
    fds = [number if one is None else one if isinstance(one, int) else one.fileno() for number, one in enumerate(given)]
    return not any(fd >= 0 and os.isatty(fd) for fd in fds) and _Forker.of_this_process().is_like_us()


def _read_early(env: Any) -> dict[str, str]:
    return {name: value for name, value in _decoded(env).items() if name.startswith(_READ_BEFORE_WE_RUN)}


def _decoded(env: Any) -> dict[str, str]:
    return {os.fsdecode(name): os.fsdecode(value) for name, value in env.items()}


def forkers() -> set[int]:
    """The PID of the process that forks for us, if there is one."""
    return {_Forker.one.pid} if _Forker.one is not None else set()


def end() -> None:
    """For who is to have no children but its own: that process ends, until the next one asks for it."""
    if _Forker.one is not None:
        _Forker.one.end()


class _Forker:
    """The process that has our commands imported."""

    one: _Forker | None = None

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._early = _read_early(os.environ)
        self._inherited = _inherited()
        # Its standard files are none that can be rewound: Python's text files know once and for all.
        self._process = subprocess.Popen([sys.executable, __file__], stdin=theirs, stdout=theirs, stderr=theirs)
        theirs.close()
        self.pid = self._process.pid
        atexit.register(self.end)

    @classmethod
    def of_this_process(cls) -> _Forker:
        """Made when the first one asks."""
        if cls.one is None:
            cls.one = cls()
        return cls.one

    def is_like_us(self) -> bool:
        """Whether what a child inherits from it is what it would inherit from us."""
        return self._inherited == _inherited() and self._early == _read_early(os.environ)

    def fork(self, args: Any, fds: list[int], cwd: Any, env: Any, leads: bool) -> int:
        """PID of the child, which is ours; it may lead a session of its own."""
        request = {
            "args": [os.fsdecode(each) for each in args],
            "env": _decoded(os.environ if env is None else env),
            "leads": leads,
        }
        folder = os.open(cwd or ".", os.O_PATH | os.O_DIRECTORY)
        try:
            socket.send_fds(self._socket, [json.dumps(request).encode()], [*fds, folder])
            return int(self._socket.recv(_MAX_REQUEST))
        finally:
            os.close(folder)

    def end(self) -> None:
        """Nobody asks any more."""
        atexit.unregister(self.end)
        type(self).one = None
        self._socket.close()
        self._process.wait()


def _inherited() -> list[Any]:
    return [ask() for ask in _INHERITED]


# --- in the process that forks --------------------------------------------------------------------


def _serve(requests: socket.socket) -> NoReturn:
    """Until nobody is there to ask. A child of a child that has ended is given to the tests' process, which takes in
    orphans; it goes on when it is there, and is told of when it is what was asked for."""
    while True:
        text, fds, _, _ = socket.recv_fds(requests, _MAX_REQUEST, 4)
        if not text:
            sys.exit()
        (may_go, go), (told, tell) = os.pipe(), os.pipe()
        between = os.fork()
        if not between:
            child = os.fork()
            if child:
                os.write(tell, str(child).encode())
                os._exit(0)
            os.close(go)
            os.read(may_go, 1)
            requests.detach()  # who collects it must not close what has its number then
            _become(json.loads(text), fds)
            break
        os.waitpid(between, 0)
        pid = os.read(told, 16)
        os.close(go)
        os.close(tell)
        os.read(told, 1)
        requests.send(pid)
        for fd in (may_go, told, *fds):
            os.close(fd)
    _end(getattr(main, COMMANDS[sys.argv[0]])())


def _end(status: int) -> NoReturn:
    """As ``sys.exit``, but the interpreter is not taken apart: each page of what was imported would be copied for that,
    which costs as much as the imports. Where something cannot be written any more, the interpreter has its say."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except Exception:
        sys.exit(status)
    os._exit(status)


def _become(request: dict[str, Any], fds: list[int]) -> None:
    """The process that was asked for, which has no other files."""
    if request["leads"]:
        os.setsid()
    os.fchdir(fds.pop())
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv = request["args"]
    os.closerange(3, 1 << 20)


def _import_all() -> None:
    import importlib
    import pkgutil

    import collector

    for name in COMMANDS.values():
        importlib.import_module(f"collector.cli.{name}")
    for package in _PACKAGES:
        folder = Path(collector.__path__[0], *package.split("."))
        for module in pkgutil.walk_packages([str(folder)], f"collector.{package}."):
            importlib.import_module(module.name)


if __name__ == "__main__":
    import gc

    from collector.cli import main

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # not in that of its exec, which programs are given
    _import_all()
    gc.freeze()
    _serve(socket.socket(fileno=os.dup(0)))
