"""What the tests of the service share: a daemon in the foreground, users beside root, and a machine that systemd boots.

Other users must be able to run the interpreter of the installation under test, which may lie in root's home. So the
daemon and what it starts live in a mount namespace of their own, where that is so; nobody else sees it.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import prefork
import pytest

from collector.service import protocol
from collector.service.client import Client

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
COMMANDS = Path(sys.executable).parent
PATIENCE_S = 60
Completed = subprocess.CompletedProcess[str]


def until(what: Callable[[], object], message: str = "") -> object:
    """Waits until ``what`` is true, and returns it."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := what()):
        assert time.monotonic() < deadline, message or "it has not come about"
        time.sleep(0.05)
    return found


@pytest.fixture(scope="session")
def root_only() -> None:
    """For tests that need other users."""
    if os.geteuid():
        message = "this test needs root, for users beside it"
        pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)


@contextmanager
def acting_as(uid: int, groups: Sequence[int] = ()) -> Iterator[None]:
    """The kernel takes what is done for another user's; that user's group has the same number."""
    before = os.getgroups()
    try:
        os.setgroups(groups)
        os.setegid(uid)
        os.seteuid(uid)
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(before)


class Running:
    """A daemon, its socket and its spool; ``prefix`` brings a command to where it lives."""

    def __init__(self, folder: Path, prefix: Sequence[str], config: str = "", *options: str) -> None:
        self.folder, self.prefix = folder, list(prefix)
        self.socket, self.spool, self.config = str(folder / "s"), folder / "spool", folder / "collectord.toml"
        self.config.write_text(config)
        self.log = folder / "log"
        self.options = options
        self.process = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        """Starts it, and waits until it is ready."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*self.prefix, str(COMMANDS / "collectord"), "--socket", self.socket, "--spool", str(self.spool),
                 "--config", str(self.config), *self.options], stderr=log)
        until(lambda: self.process.poll() is not None or self.answers(), self.log.read_text())
        return self.process

    def until(self, what: Callable[[], object]) -> object:
        """Waits until ``what`` is true; where it does not come about, the log is shown."""
        deadline = time.monotonic() + PATIENCE_S
        while not (found := what()):
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.05)
        return found

    def answers(self) -> bool:
        """Whether somebody listens."""
        try:
            Client(self.socket).close()
        except Exception:
            return False
        return True

    def client(self, uid: int = 0, groups: Sequence[int] = ()) -> Client:
        """A connection of a user's."""
        if not uid:
            return Client(self.socket)
        with acting_as(uid, groups):
            return Client(self.socket)

    def ask(self, request: protocol.Request, uid: int = 0, groups: Sequence[int] = ()) -> protocol.AnyReply:
        """One request of a user's. Raises what the client raises."""
        with self.client(uid, groups) as client:
            return client.ask(request)

    def session(self, name: str, uid: int = 0) -> protocol.Session:
        """What the daemon says of one."""
        reply = self.ask(protocol.Status(version=1, id=name), uid)
        assert isinstance(reply, protocol.Sessions)
        return reply.sessions[0]

    def ended(self, name: str, uid: int = 0) -> protocol.Session:
        """The session, once it is over."""
        until(lambda: self.session(name, uid).state in ("finished", "stopped", "failed"), self.log.read_text())
        return self.session(name, uid)

    def ctl(self, *words: str) -> Completed:
        """The command ``collectctl``."""
        return prefork.run([str(COMMANDS / "collectctl"), "--socket", self.socket, *words], capture_output=True,
                           text=True, timeout=PATIENCE_S, check=False)

    def stop(self) -> None:
        """Ends it, and waits until all its children have closed."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(PATIENCE_S + 30)


@pytest.fixture(scope="session")
def where(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """The prefix of commands that live where every user may run the interpreter."""
    python = Path(os.path.realpath(sys.executable))
    closed = next((folder for folder in reversed(python.parents) if not folder.stat().st_mode & 1), None)
    if closed is None or os.geteuid():
        yield []
        return
    inside = python.relative_to(closed).parts[0]
    script = ('set -e; keep=$(mktemp -d); mount --make-rprivate /; mount --bind "$1/$2" "$keep"; '
              'mount -t tmpfs -o mode=755 tmpfs "$1"; mkdir "$1/$2"; mount --bind "$keep" "$1/$2"; umount "$keep"; '
              'rmdir "$keep"; echo ready; exec sleep infinity')
    holder = subprocess.Popen(["unshare", "--mount", "sh", "-c", script, "sh", str(closed), inside],
                              stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"ready\n"
    yield ["nsenter", f"--target={holder.pid}", "--mount", "--"]
    holder.kill()
    holder.wait()
    holder.stdout.close()


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short name, which others may pass through."""
    path = Path(tempfile.mkdtemp(prefix="collectord-"))
    path.chmod(0o711)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def daemon(where: list[str], folder: Path) -> Iterator[Callable[..., Running]]:
    """``daemon(config)``: a running daemon, started by the commands ``by``; ended with the test."""
    running: list[Running] = []

    def start(config: str = "", *options: str, by: Sequence[str] = ()) -> Running:
        running.append(Running(folder, [*where, *by], config, *options))
        assert running[-1].process.poll() is None, running[-1].log.read_text()
        return running[-1]

    yield start
    for each in running:
        each.stop()


@pytest.fixture
def process() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """``process(1000, "sleep", "infinity")``: a process of a user's, ended with the test."""
    running: list[subprocess.Popen[bytes]] = []

    def start(uid: int, *argv: str) -> subprocess.Popen[bytes]:
        become = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"] if uid != os.geteuid() else []
        running.append(subprocess.Popen([*become, *argv], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/"))
        line = Path(f"/proc/{running[-1].pid}/cmdline")  # which it has later than its name
        words = b"".join(os.fsencode(word) + b"\0" for word in argv)
        until(lambda: line.read_bytes() == words or running[-1].poll() is not None)
        return running[-1]

    yield start
    for each in running:
        each.kill()
        each.communicate()


class Machine:
    """Namespaces in which systemd is process 1."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._enter = ["nsenter", f"--target={pid}", "--mount", "--pid", "--uts", "--ipc", "--net", "--cgroup",
                       "--root", "--wd"]

    def run(self, *words: str, uid: int = 0, text: str | None = None, fails: bool = False,
            patience_s: float | None = PATIENCE_S) -> str:
        """What a command says in there; it must succeed unless it ``fails``."""
        become = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"] if uid else []
        done = subprocess.run([*self._enter, *become, *words], capture_output=True, text=True, timeout=patience_s,
                              input=text, check=False)
        assert bool(done.returncode) == fails, done.stdout + done.stderr
        return done.stdout + (done.stderr if fails else "")

    def binary(self, *words: str) -> bytes:
        """The same, as bytes."""
        return subprocess.run([*self._enter, *words], capture_output=True, timeout=PATIENCE_S, check=True).stdout

    def write(self, path: str, text: str) -> None:
        """A file in there."""
        self.run("sh", "-c", f"mkdir -p $(dirname {path}); cat > {path}", text=text)

    def ask(self, *words: str, uid: int = 0) -> dict[str, object]:
        """The reply of ``collectctl --json``."""
        reply: dict[str, object] = json.loads(self.run("collectctl", "--json", *words, uid=uid).splitlines()[-1])
        return reply

    def session(self, name: str) -> dict[str, object]:
        """What the daemon says of one."""
        sessions = self.ask("status", name)["sessions"]
        assert isinstance(sessions, list)
        found: dict[str, object] = sessions[0]
        return found

    def show(self, unit: str, what: str) -> str:
        """A property of a unit."""
        return self.run("systemctl", "show", "-p", what, "--value", unit).strip()


def _leaf() -> Path:
    """A fresh control group of version 2."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    root = next(Path(fields[1]) for fields in mounts if fields[2] == "cgroup2")
    return Path(tempfile.mkdtemp(prefix="collect-test-", dir=root))


def _is_removed(leaf: Path) -> bool:
    """A control group and those below are removed, as soon as the last process has left."""
    for group in [*sorted((path for path in leaf.rglob("*") if path.is_dir()), reverse=True), leaf]:
        with suppress(OSError):
            group.rmdir()
    return not leaf.exists()


@pytest.fixture(scope="module")
def machine(root_only: None, need: Callable[[str, str], str]) -> Iterator[Machine]:
    """A booted machine, with collectord installed and not started."""
    need("/lib/systemd/systemd", "systemd")
    folder, leaf = Path(tempfile.mkdtemp()), _leaf()
    with tempfile.TemporaryFile() as console:
        boot = subprocess.Popen(
            ["sh", "-c", 'echo $$ >"$0/cgroup.procs"; exec "$@"', str(leaf), "unshare", "--mount", "--pid", "--fork",
             "--kill-child", "--cgroup", "--uts", "--ipc", "--net", str(HERE / "boot"), str(folder), sys.executable,
             str(ROOT)], stdout=console, stderr=console, stdin=subprocess.DEVNULL)
        try:
            children = Path(f"/proc/{boot.pid}/task/{boot.pid}/children")

            def said() -> str:
                return os.pread(console.fileno(), 1 << 16, 0).decode(errors="replace")

            def is_up() -> bool:
                pid = children.read_text().strip()
                assert boot.poll() is None, said()
                return bool(pid) and Path(f"/proc/{pid}/comm").read_text() == "systemd\n" and not subprocess.run(
                    ["nsenter", f"--target={pid}", "--mount", "--pid", "--root", "--wd", "systemctl",
                     "is-system-running"], capture_output=True, check=False).returncode

            until(is_up, said())
            yield Machine(int(children.read_text()))
        finally:
            boot.kill()
            boot.wait()
            until(lambda: _is_removed(leaf))
            folder.rmdir()
