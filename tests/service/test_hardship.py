"""A daemon whose disk is full, whose clients do not read, which is told to reload all the time, or asked for much."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import prefork
import pytest

from collector.service import protocol
from collector.service.client import DaemonRefused

PATIENCE_S = 60
BUSY = "import time\nwhile True:\n    sum(range(20000)); time.sleep(0.01)"
MARK = f"marked-hardship-{os.getpid()}"  # nobody else's
TARGET = f'[[target]]\nname = "one"\ncommand = "{MARK}"\n'
FREE = "[daemon]\nbudget_percent = 0\nreserve_megabytes = 0\n[limits]\nrequests_per_second = 1000\n"


def until(what: Callable[[], object], message: Callable[[], str] = str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < deadline, message()
        time.sleep(0.05)


@pytest.fixture
def busy(process: Callable[..., Any]) -> Any:
    return process(os.geteuid(), sys.executable, "-c", BUSY, MARK)


def test_a_full_disk_ends_runs_and_not_what_is_to_go_on(root_only: None, daemon: Callable[..., Any], busy: Any,
                                                         folder: Path, where: list[str]) -> None:
    """On a small file system of its own."""
    spool = folder / "spool"
    spool.mkdir()
    subprocess.run([*where, "mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", spool], check=True)
    try:
        running = daemon(f"{FREE}{TARGET}rotate_s = 1\n")
        until(lambda: running.session("one").state == "recording", running.log.read_text)
        filled = subprocess.run([*where, "dd", "if=/dev/zero", f"of={spool}/filler", "bs=4k"], capture_output=True,
                                text=True, check=False)
        assert "No space left on device" in filled.stderr
        until(lambda: "trying again" in running.log.read_text(), running.log.read_text)
        assert running.session("one").state not in ("failed", "finished")
        subprocess.run([*where, "rm", f"{spool}/filler"], check=True)
        n_runs = running.session("one").n_runs
        until(lambda: running.session("one").n_runs > n_runs and running.session("one").state == "recording",
              running.log.read_text)
        assert busy.poll() is None
        running.stop()
    finally:
        subprocess.run([*where, "umount", "--lazy", spool], check=True)


def test_what_cannot_begin_is_tried_again(daemon: Callable[..., Any], busy: Any, folder: Path) -> None:
    (folder / "spool" / "own").mkdir(parents=True)
    (folder / "spool" / "own" / "one").touch()  # where a folder is to be
    running = daemon(FREE + TARGET)
    until(lambda: "own/one: File exists; trying again" in running.log.read_text(), running.log.read_text)
    (folder / "spool" / "own" / "one").unlink()
    until(lambda: running.session("one").state == "recording", running.log.read_text)


def test_reloads_in_a_storm_end_with_what_was_said_last(daemon: Callable[[str], Any], busy: Any) -> None:
    running = daemon(FREE + TARGET)
    until(lambda: running.session("one").state == "recording", running.log.read_text)
    same = running.session("one")
    for _ in range(300):
        running.process.send_signal(signal.SIGHUP)
    until(lambda: "configuration read" in running.log.read_text(), running.log.read_text)
    assert running.session("one").experiments == same.experiments
    for number in range(7):  # each changes the target, before what it was has ended
        running.config.write_text(f'{FREE}{TARGET}labels = {{ number = "{number}" }}\n')
        assert running.ctl("reload").returncode == 0
    until(lambda: running.session("one").labels.get("number") == "6" and running.session("one").state == "recording",
          running.log.read_text)
    running.config.write_text(f'{FREE}{TARGET}labels = {{ number = "7" }}\n')
    assert running.ctl("reload").returncode == 0
    running.config.write_text(FREE)
    assert running.ctl("reload").returncode == 0
    until(lambda: running.session("one").state == "stopped", running.log.read_text)
    n_runs = running.session("one").n_runs
    time.sleep(0.5)
    assert (running.session("one").state, running.session("one").n_runs) == ("stopped", n_runs)


def test_a_configuration_of_ten_megabytes_changes_nothing(daemon: Callable[[str], Any]) -> None:
    running = daemon("")
    running.config.write_text("# " + "x" * 10_000_000)
    assert "it is larger than 1000000 bytes" in running.ctl("reload").stderr
    running.config.write_text("".join(f'[[target]]\nname = "a{number}"\nunit = "a"\n' for number in range(257)))
    assert "c" in running.ctl("reload").stderr
    assert running.ctl("list").returncode == 0


def test_a_configuration_that_cannot_be_used_changes_nothing(daemon: Callable[..., Any], busy: Any) -> None:
    running = daemon(FREE + TARGET, "--only", "one")
    until(lambda: running.session("one").state == "recording", running.log.read_text)
    experiments = running.session("one").experiments
    for text, said in ((FREE, "--only one: the configuration has no target of this name"),
                       (f'{FREE}{TARGET}[access]\ngroup = "nobodys-group"\n', "there is no such group")):
        running.config.write_text(text)
        refused = running.ctl("reload")
        assert (refused.returncode, said in refused.stderr) == (1, True), refused.stderr
        checked = subprocess.run([Path(sys.executable).parent / "collectord", "--check", "--only", "one", "--config",
                                  running.config], capture_output=True, text=True, check=False)
        assert (checked.returncode, said in checked.stderr) == (1, True), checked.stderr
    assert (running.session("one").state, running.session("one").experiments) == ("recording", experiments)


def test_clients_that_do_not_read_are_let_go(root_only: None, daemon: Callable[[str], Any], folder: Path) -> None:
    """Each asks for ten megabytes, and stays; the daemon's ends of the connections do not."""
    own = folder / "spool" / "own" / "1" / "1.1.er"
    own.mkdir(parents=True)
    (own / "large").write_bytes(bytes(10_000_000))
    (folder / "spool" / "sessions").mkdir()
    (folder / "spool" / "sessions" / "1.json").write_text(json.dumps({
        "owner": [0, 0, []], "wanted": {"pids": [1], "unit": None, "cgroup": None, "command": None}, "options": [],
        "interval_ns": 0, "n_runs": 1, "state": "finished", "message": "", "configured": False, "folder": "own/1",
        "kept": [["1.1.er", 1.0, 10_000_000]]}))
    running = daemon("[limits]\nconnections_per_user = 3\nsilence_s = 1\n")
    before = len(os.listdir(f"/proc/{running.process.pid}/fd"))
    clients: list[socket.socket] = []

    def ask_beside_three() -> None:
        for _ in range(3):
            clients.append(socket.socket(socket.AF_UNIX))
            with suppress(OSError):  # refused
                clients[-1].connect(running.socket)
                clients[-1].sendall(protocol.encoded(protocol.Fetch(version=1, id="1")))
        running.ask(protocol.List(version=1))

    with pytest.raises(DaemonRefused, match="this user has 3 connections already; close one"):
        until(ask_beside_three)  # once more where the first are let go before we get to it
    until(lambda: len(os.listdir(f"/proc/{running.process.pid}/fd")) <= before)
    assert isinstance(running.ask(protocol.List(version=1)), protocol.Sessions)
    for client in clients:
        client.close()


def test_more_sessions_than_a_machine_bears_are_refused(daemon: Callable[[str], Any],
                                                        process: Callable[..., Any]) -> None:
    running = daemon("[limits]\nsessions = 2\n")
    target = process(os.geteuid(), "sleep", "1000")
    for unit in ("none-a.service", "none-b.service"):
        running.ask(protocol.Attach(version=1, unit=unit))
    for request in (protocol.Attach(version=1, unit="none-c.service"), protocol.Attach(version=1, pids=(target.pid,))):
        with pytest.raises(DaemonRefused, match="there are 2 sessions already; stop one"):
            running.ask(request)
    assert running.ctl("stop", "1").returncode == 0
    running.ended("1")
    running.ask(protocol.Attach(version=1, unit="none-c.service"))


def test_little_memory_to_lock_is_found(root_only: None, daemon: Callable[..., Any]) -> None:
    for option, is_wrong in (("--bounding-set=-ipc_lock", True), ("--bounding-set=+all", False)):
        running = daemon(by=["prlimit", "--memlock=8000000:8000000", "setpriv", option])
        said = running.ctl("doctor").stdout
        running.stop()
        assert ("wrong  the daemon may lock 8 MB of memory and no more" in said) == is_wrong


def test_a_socket_that_cannot_be_made_is_one_line(folder: Path) -> None:
    collectord = Path(sys.executable).parent / "collectord"
    for path, said in ((folder / "none" / "s", "No such file or directory"), ("/proc/s", "No such file or directory"),
                       ("/sys/s", "")):
        done = subprocess.run([collectord, "--socket", path, "--spool", folder / "spool"], capture_output=True,
                              text=True, timeout=PATIENCE_S, check=False)
        assert done.returncode == 1
        assert done.stderr.startswith(f"collectord: --socket {path}: ")
        assert said in done.stderr
        assert done.stderr.endswith("; name a path that this user may make\n")


def test_a_socket_that_was_handed_over_stays(daemon: Callable[..., Any], folder: Path) -> None:
    """As systemd does it, which listens on when the daemon ends; who made its socket itself removes it."""
    hands_over = ("import os, socket, sys; s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen(); "
                  "os.dup2(s.fileno(), 3); os.set_inheritable(3, True); "
                  "os.environ.update(LISTEN_FDS='1', LISTEN_PID=str(os.getpid())); "
                  "os.execv(sys.argv[2], sys.argv[2:])")
    for by, stays in (((), False), ((sys.executable, "-c", hands_over, str(folder / "s")), True)):
        running = daemon("", by=by)
        assert isinstance(running.ask(protocol.List(version=1)), protocol.Sessions)
        running.stop()
        assert running.process.returncode == 0
        assert (folder / "s").is_socket() == stays


@pytest.mark.parametrize("words", [("list", "web"), ("top", "1"), ("doctor", "--now"), ("reload", "web"),
                                   ("list", "--label", "a=b", "c")])
def test_a_word_too_many_is_refused(words: tuple[str, ...], daemon: Callable[[str], Any]) -> None:
    done = daemon("").ctl(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"collectctl: {words[-1]}: one word too many; see collectctl --help\n"


@pytest.mark.parametrize("label", [b"\xff=1", b"a=\xff", b"\x1b[2J=1"])
def test_a_label_that_cannot_be_sent_is_one_line(label: bytes, folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "s"))
        listener.listen()
        command = [str(Path(sys.executable).with_name("collectctl")), "--socket", str(folder / "s"), "list", "--label",
                   os.fsdecode(label)]
        done = prefork.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert done.stderr.endswith(": there are bytes in it that cannot be sent: give printable text\n")


@pytest.mark.parametrize("words", [
    ("--socket=PATH", "list"), ("attach", "--socket=PATH", "1"), ("attach", "1", "--socket", "PATH"),
    ("list", "--socket=PATH"), ("stop", "1", "--socket", "PATH", "--json"), ("top", "--socket=PATH", "--every", "1")],
    ids=" ".join)
def test_the_socket_may_be_given_anywhere(words: tuple[str, ...], folder: Path) -> None:
    path = str(folder / "none")
    command = [str(Path(sys.executable).with_name("collectctl")), *(one.replace("PATH", path) for one in words)]
    done = prefork.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"collectctl: no collectord answers at {path} ")
