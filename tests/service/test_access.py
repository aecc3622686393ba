"""Who may record what: every cell of the table, against one daemon, by root, two users and a member of the group."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from collector.errors import CollectorError
from collector.experiment.reader import open_experiment
from collector.linux.census import Owner
from collector.linux.peers import Credentials
from collector.service import peers, protocol, targets
from collector.service.client import DaemonRefused
from collector.service.peers import Access, Relation, Rights, Standing

ALICE, BOB, GROUP = 61001, 61002, 61100
# Replies tell how often samples are taken where that is not as was asked for, to stay within the budget.
UNLIMITED = "[daemon]\nbudget_percent = 0\n"
CONFIG = f'{UNLIMITED}[access]\ngroup = "{GROUP}"\n[limits]\nrequests_per_second = 1000\nconnections_per_user = 400\n'
HIDDEN = ("/usr/bin/python3", "-c", "import ctypes, time; ctypes.CDLL(None).prctl(4, 0, 0, 0, 0); print(flush=True); "
          "time.sleep(1000)")
HIDES_LATER = ("/usr/bin/python3", "-c", "import ctypes, sys, time; sys.stdin.readline(); "
               "ctypes.CDLL(None).prctl(4, 0, 0, 0, 0); time.sleep(1000)")
DAEMON_UID = 0

Start = Callable[..., subprocess.Popen[bytes]]


def until(what: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + 60
    while not what():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


@pytest.fixture
def running(root_only: None, daemon: Callable[[str], object]) -> Iterator[object]:
    yield daemon(CONFIG)


def attach(running: object, pid: int, uid: int, groups: tuple[int, ...] = ()) -> tuple[protocol.Session, str]:
    """The session that a user gets, and who its experiment belongs to; it is stopped."""
    request = protocol.Attach(version=1, pids=(pid,), options=("-A", "off"))
    started = running.ask(request, uid, groups)  # type: ignore[attr-defined]
    assert isinstance(started, protocol.Started)
    assert started.message == "recording"
    running.ask(protocol.Control(version=1, id=started.id, action="stop"), uid)  # type: ignore[attr-defined]
    session = running.ended(started.id, uid)  # type: ignore[attr-defined]
    assert len(session.experiments) == 1
    return session, str(Path(session.directory, session.experiments[0]))


CELLS = (
    # who, groups, whose process, how it is started, whose the experiment is (or why not)
    (0, (), ALICE, ("sleep", "1000"), DAEMON_UID),
    (0, (), ALICE, HIDDEN, DAEMON_UID),
    (0, (), 0, ("sleep", "1000"), DAEMON_UID),
    (ALICE, (), ALICE, ("sleep", "1000"), ALICE),
    (ALICE, (), ALICE, HIDDEN, "the process is closed to its own user"),
    (ALICE, (), BOB, ("sleep", "1000"), "the process belongs to another user"),
    (ALICE, (), 0, ("sleep", "1000"), "the process belongs to another user"),
    (BOB, (), BOB, ("sleep", "1000"), BOB),
    (BOB, (), ALICE, ("sleep", "1000"), "the process belongs to another user"),
    (BOB, (GROUP,), BOB, ("sleep", "1000"), BOB),
    (BOB, (GROUP,), BOB, HIDDEN, DAEMON_UID),
    (BOB, (GROUP,), ALICE, ("sleep", "1000"), DAEMON_UID),
    (BOB, (GROUP,), 0, ("sleep", "1000"), DAEMON_UID),
)


def test_each_cell_of_the_table(running: object, process: Start) -> None:
    for uid, groups, owner, argv, outcome in CELLS:
        target = process(owner, *argv)
        if argv is HIDDEN:
            assert target.stdout is not None
            target.stdout.readline()
        if isinstance(outcome, str):
            with pytest.raises(DaemonRefused, match=outcome):
                attach(running, target.pid, uid, groups)
            continue
        session, path = attach(running, target.pid, uid, groups)
        status = os.stat(path)
        assert (status.st_uid, status.st_mode & 0o777) == (outcome, 0o700), (uid, groups, owner)
        assert session.uid == uid
        assert open_experiment(Path(path)).log.complete
        assert target.poll() is None


def test_a_process_of_two_users_is_closed_to_both(running: object, process: Start, folder: Path) -> None:
    changing = folder / "changing"
    shutil.copy("/bin/sleep", changing)
    os.chown(changing, BOB, BOB)
    changing.chmod(0o4755)
    target = process(ALICE, str(changing), "1000")
    for uid in (ALICE, BOB):
        with pytest.raises(DaemonRefused, match="the process is closed to its own user"):
            attach(running, target.pid, uid)
    for uid, groups in ((BOB, (GROUP,)), (0, ())):
        _, path = attach(running, target.pid, uid, groups)
        assert os.stat(path).st_uid == DAEMON_UID
    assert target.poll() is None


def test_nobody_may_record_the_kernel_or_what_is_not_there(running: object, process: Start) -> None:
    for uid in (0, ALICE):
        with pytest.raises(DaemonRefused, match="a thread of the kernel has no user code"):
            attach(running, 2, uid)
    gone = process(ALICE, "true")
    gone.wait()
    with pytest.raises(DaemonRefused, match=f"process {gone.pid}: there is no such process"):
        attach(running, gone.pid, ALICE)


def test_nothing_is_left_of_what_was_refused(running: object, process: Start, folder: Path) -> None:
    for _ in range(20):
        with pytest.raises(DaemonRefused):
            attach(running, 2, 0)
        assert not os.listdir(folder / "spool" / "sessions")
    session, _ = attach(running, process(ALICE, "sleep", "1000").pid, 0)
    assert session.id == "1"


def test_a_user_sees_and_controls_its_own_sessions_alone(running: object, process: Start) -> None:
    session, _ = attach(running, process(ALICE, "sleep", "1000").pid, ALICE)
    names = {uid: [each.id for each in running.ask(protocol.List(version=1), uid).sessions]  # type: ignore[attr-defined]
             for uid in (0, ALICE, BOB)}
    assert names == {0: [session.id], ALICE: [session.id], BOB: []}
    for request in (protocol.Status(version=1, id=session.id), protocol.Fetch(version=1, id=session.id),
                    protocol.Control(version=1, id=session.id, action="stop")):
        with pytest.raises(DaemonRefused, match=f"there is no session {session.id} of yours"):
            running.ask(request, BOB)  # type: ignore[attr-defined]
    with pytest.raises(DaemonRefused, match="only root"):
        running.ask(protocol.Reload(version=1), ALICE)  # type: ignore[attr-defined]


def test_a_process_that_becomes_another_users_is_recorded_no_longer(running: object, process: Start,
                                                                    folder: Path) -> None:
    changing = folder / "changing"
    shutil.copy("/bin/sleep", changing)
    os.chown(changing, BOB, BOB)
    changing.chmod(0o4755)
    for argv in (("sh", "-c", f"read line; exec {changing} 1000"), HIDES_LATER):
        target = process(ALICE, *argv)
        started = running.ask(protocol.Attach(version=1, pids=(target.pid,)), ALICE)  # type: ignore[attr-defined]
        assert target.stdin is not None
        target.stdin.write(b"\n")
        target.stdin.flush()
        session = running.ended(started.id, ALICE)  # type: ignore[attr-defined]
        assert "may not be recorded any more" in session.message, session
        assert target.poll() is None


def test_a_members_session_that_goes_on_has_one_place_for_all_its_experiments(running: object, process: Start) -> None:
    own = process(BOB, "sleep", "1001.5")
    request = protocol.Attach(version=1, command=r"^sleep 1001\.5$", options=("-A", "off"))
    started = running.ask(request, BOB, (GROUP,))  # type: ignore[attr-defined]
    session = running.session(started.id)  # type: ignore[attr-defined]
    assert (session.state, session.pids) == ("recording", (own.pid,))
    own.kill()
    own.wait()
    other = process(ALICE, "sleep", "1001.5")
    until(lambda: running.session(started.id).pids == (other.pid,)  # type: ignore[attr-defined]
          and running.session(started.id).state == "recording")  # type: ignore[attr-defined]
    running.ask(protocol.Control(version=1, id=started.id, action="stop"), BOB, (GROUP,))  # type: ignore[attr-defined]
    session = running.ended(started.id)  # type: ignore[attr-defined]
    assert session.n_runs == 2
    assert [os.stat(Path(session.directory, name)).st_uid for name in session.experiments] == [DAEMON_UID] * 2


def test_a_users_session_that_goes_on_is_not_ended_by_others_processes(running: object, process: Start) -> None:
    own = process(ALICE, "sleep", "1002.5")
    request = protocol.Attach(version=1, command=r"^sleep 1002\.5$", options=("-A", "off"))
    started = running.ask(request, ALICE)  # type: ignore[attr-defined]
    other = process(BOB, "sleep", "1002.5")
    own.kill()
    own.wait()
    until(lambda: running.session(started.id).state == "waiting"  # type: ignore[attr-defined]
          and "belongs to another user" in running.session(started.id).message)  # type: ignore[attr-defined]
    own = process(ALICE, "sleep", "1002.5")
    until(lambda: running.session(started.id).state == "recording")  # type: ignore[attr-defined]
    assert running.session(started.id).pids == (own.pid,)  # type: ignore[attr-defined]
    assert other.poll() is None
    running.ask(protocol.Control(version=1, id=started.id, action="stop"), ALICE)  # type: ignore[attr-defined]
    assert running.ended(started.id).n_runs == 2  # type: ignore[attr-defined]


@pytest.mark.parametrize("shape", ["deep", "wide"])
def test_folders_in_a_users_experiment_stop_nothing(shape: str, running: object, process: Start) -> None:
    """Its owner may make in it what it likes."""
    target = process(ALICE, "sleep", "1000")
    started = running.ask(protocol.Attach(version=1, pids=(target.pid,)), ALICE)  # type: ignore[attr-defined]
    session = running.session(started.id)  # type: ignore[attr-defined]
    path = Path(session.directory, session.experiments[0])
    below = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    for number in range(1500):
        os.mkdir(f"d{number}", dir_fd=below)
        if shape == "deep":
            above, below = below, os.open(f"d{number}", os.O_RDONLY | os.O_DIRECTORY, dir_fd=below)
            os.close(above)
    os.mkfifo("fifo", dir_fd=below)
    os.close(below)
    try:
        running.process.kill()  # type: ignore[attr-defined]
        running.process.wait()  # type: ignore[attr-defined]
        running.start()  # type: ignore[attr-defined]
        assert running.session(session.id).state == "finished"  # type: ignore[attr-defined]
        assert "error" not in running.log.read_text()  # type: ignore[attr-defined]
    finally:
        subprocess.run(["rm", "-r", path / "d0"], check=True)


def test_links_in_a_users_folder_lead_nobody_out_of_it(running: object, process: Start, folder: Path) -> None:
    session, path = attach(running, process(ALICE, "sleep", "1000").pid, ALICE)
    secret = folder / "secret"
    (secret / Path(path).name).mkdir(parents=True)
    (secret / Path(path).name / "log.xml").write_text("secret")
    secret.chmod(0o700)
    own = Path(session.directory)
    shutil.rmtree(own)
    own.symlink_to(secret)
    os.chown(own, ALICE, ALICE, follow_symlinks=False)
    with running.client(ALICE) as client, pytest.raises(DaemonRefused, match="the archive is not whole"):  # type: ignore[attr-defined]
        client.fetch(protocol.Fetch(version=1, id=session.id), lambda data: None)
    own.unlink()
    own.mkdir()
    os.chown(own, ALICE, ALICE)
    (own / Path(path).name).symlink_to(secret / Path(path).name)
    received = bytearray()
    with running.client(ALICE) as client:  # type: ignore[attr-defined]
        client.fetch(protocol.Fetch(version=1, id=session.id), received.extend)
    assert b"log.xml" not in received.replace(bytes(secret), b"")
    assert (secret / Path(path).name / "log.xml").read_text() == "secret"


def test_a_client_may_close_at_every_byte(running: object, process: Start) -> None:
    target = process(ALICE, "sleep", "1000")
    line = protocol.encoded(protocol.Attach(version=1, pids=(target.pid,), options=("-A", "off")))
    for length in range(len(line)):
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(running.socket)  # type: ignore[attr-defined]
            client.sendall(line[:length])
    assert running.ask(protocol.List(version=1)).sessions == ()  # type: ignore[attr-defined]
    with socket.socket(socket.AF_UNIX) as client:  # whole, and nobody waits for the answer
        client.connect(running.socket)  # type: ignore[attr-defined]
        client.sendall(line)
    until(lambda: [each.state for each in running.ask(protocol.List(version=1)).sessions]  # type: ignore[attr-defined]
          == ["recording"])
    session, _ = attach(running, target.pid, 0)
    assert session.state == "stopped"
    target.send_signal(signal.SIGKILL)
    assert running.ended("1").state in ("finished", "failed")  # type: ignore[attr-defined]


def test_a_client_may_leave_at_every_byte_of_an_answer(running: object, process: Start) -> None:
    session, _ = attach(running, process(ALICE, "sleep", "1000").pid, ALICE)
    fds = Path(f"/proc/{running.process.pid}/fd")  # type: ignore[attr-defined]
    before = len(os.listdir(fds))
    for request in (protocol.List(version=1), protocol.Fetch(version=1, id=session.id)):
        for length in range(0, 300, 7):
            with running.client(ALICE) as client:  # type: ignore[attr-defined]
                client._send(request)
                client._file.read(length)
    assert [each.id for each in running.ask(protocol.List(version=1), ALICE).sessions] == [session.id]  # type: ignore[attr-defined]
    until(lambda: len(os.listdir(fds)) <= before)
    assert "error" not in running.log.read_text()  # type: ignore[attr-defined]


GONE = "-P N: the process ended before it was attached"
CLOSED = ("-P N: the process belongs to another user, or is closed to its own (setuid, or not dumpable): run collect "
          "as root")
BETWEEN = [
    *((who, f"number of {whose}", whose, GONE, 0) for who in (ALICE, 0) for whose in (ALICE, BOB, 0)),
    (ALICE, "setuid", None, CLOSED, 0),
    (ALICE, "closed", None, CLOSED, 0),
    (0, "closed", None, "Started(id='1', message='recording', version=1)", 1),
]


def test_what_changes_between_the_request_and_the_recording(root_only: None, where: list[str], folder: Path) -> None:
    """Six times the kernel gives the target's number to another process; see the script."""
    assert Path("/proc/sys/kernel/ns_last_pid").exists()
    done = subprocess.run(
        [*where, "unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable,
         str(Path(__file__).with_name("between")), str(folder), sys.executable], capture_output=True, text=True,
        timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr + (folder / "log").read_text()
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        {"who": who, "what": what, "is_reused": whose is not None, "answer": answer, "n": n, "is_untouched": True}
        for who, what, whose, answer, n in BETWEEN]


def test_a_pidfd_of_another_process_is_not_taken(process: Start, folder: Path) -> None:
    first, second = (process(os.geteuid(), "sleep", "1000") for _ in range(2))
    collect = Path(sys.executable).parent / "collect"
    for number, said in ((first.pid, ""), (second.pid, "this descriptor is no pidfd of the process; give -P")):
        pidfd = os.pidfd_open(first.pid)
        done = subprocess.run([collect, "-o", folder / "a.er", "-t", "0.2", "-P", f"{number}@{pidfd}"], text=True,
                              capture_output=True, pass_fds=[pidfd], check=False)
        os.close(pidfd)
        assert bool(done.returncode) == bool(said), done.stderr
        assert said in done.stderr
        shutil.rmtree(folder / "a.er", ignore_errors=True)
    with open("/dev/null") as file:
        done = subprocess.run([collect, "-o", folder / "a.er", "-P", f"{first.pid}@{file.fileno()}"], text=True,
                              capture_output=True, pass_fds=[file.fileno()], check=False)
    assert "this descriptor is no pidfd of the process" in done.stderr
    assert not (folder / "a.er").exists()


def test_what_a_look_told_is_asked_once_more_of_a_process_that_is_held(process: Start) -> None:
    """Looks are shared, and old: this one was before the program became another."""
    target = process(os.geteuid(), "sh", "-c", "read line; exec sleep 1001.75")
    look = targets.Look([target.pid])
    wanted = targets.Wanted(command="read line; exec")
    found = targets.find(wanted, lambda owner: Rights.DAEMON, lambda: look)
    assert [each.pid for each in found.held] == [target.pid]
    found.release()
    assert target.stdin is not None
    target.stdin.write(b"\n")
    target.stdin.flush()
    until(lambda: Path(f"/proc/{target.pid}/comm").read_text() == "sleep\n")
    assert look.commands[0][0] == target.pid
    assert targets.find(wanted, lambda owner: Rights.DAEMON, lambda: look).held == []


def test_who_asks_for_a_command_is_not_found_by_it(process: Start, folder: Path) -> None:
    """Not the client, which waits for its answer, and not the shell that called it."""
    us, mark = os.geteuid(), f"1003.{os.getpid()}"
    collectctl = str(Path(sys.executable).with_name("collectctl"))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "s"))
        listener.listen()
        asking = [collectctl, "--socket", str(folder / "s"), "attach", "--command", mark]
        those = [process(us, "sleep", mark), process(us, sys.executable, *asking),
                 process(us, "sh", "-c", f"read line; {' '.join(asking)}"),
                 process(us, "sh", "-c", "read line", "of-collectctl", mark)]
        look = targets.Look([each.pid for each in those])
        found = targets.find(targets.Wanted(command=mark), lambda owner: Rights.DAEMON, lambda: look)
        assert [each.pid for each in found.held] == [those[0].pid, those[3].pid]
        found.release()


def test_a_process_that_has_ended_is_held_no_longer(process: Start) -> None:
    first = process(os.geteuid(), "sleep", "1000")
    held = targets.hold(first.pid)
    assert held is not None
    assert held.lives()
    first.kill()
    first.wait()
    assert not held.lives()
    assert targets.hold(first.pid) is None
    held.release()


# -- the table itself

OWN = Owner((ALICE,) * 4, True, 1, False)


@pytest.mark.parametrize(("owner", "expected"), [
    (OWN, Relation.OWN),
    (OWN._replace(dumpable=False), Relation.CLOSED),
    (OWN._replace(uids=(ALICE, 0, 0, 0)), Relation.CLOSED),
    (OWN._replace(uids=(ALICE, ALICE, BOB, ALICE)), Relation.CLOSED),
    (OWN._replace(uids=(BOB,) * 4), Relation.FOREIGN),
    (OWN._replace(is_kernel=True), Relation.KERNEL),
])
def test_what_a_process_is_to_a_user(owner: Owner, expected: Relation) -> None:
    assert peers.relation(ALICE, owner) is expected


@pytest.mark.parametrize(("peer", "access", "expected"), [
    (Credentials(0, 0, ()), Access(995, True), Standing.ROOT),
    (Credentials(995, 995, ()), Access(995, True), Standing.ROOT),
    (Credentials(ALICE, ALICE, ()), Access(995, True), Standing.ORDINARY),
    (Credentials(ALICE, ALICE, (GROUP,)), Access(995, True, GROUP), Standing.MEMBER),
    (Credentials(ALICE, GROUP, ()), Access(995, True, GROUP, users=False), Standing.MEMBER),
    (Credentials(ALICE, ALICE, ()), Access(995, True, GROUP, users=False), Standing.STRANGER),
    (Credentials(ALICE, ALICE, ()), Access(BOB, False), Standing.STRANGER),
    (Credentials(BOB, BOB, ()), Access(BOB, False), Standing.ROOT),
])
def test_what_a_peer_is_to_the_daemon(peer: Credentials, access: Access, expected: Standing) -> None:
    assert peers.standing(peer, access) is expected


@pytest.mark.parametrize(("uid", "n_own", "n_all", "said"), [
    (ALICE, 8, 512, ""), (ALICE, 9, 9, "this user has 8 connections already; close one"),
    (ALICE, 1, 513, "all users together have 512 connections already; try again when some are closed"),
    (0, 1, 513, ""), (995, 8, 9999, ""), (0, 9, 9, "this user has 8 connections already; close one"),
])
def test_how_many_connections_there_may_be(uid: int, n_own: int, n_all: int, said: str) -> None:
    """However many others have, who administers the daemon gets to it."""
    assert peers.too_many(Credentials(uid, uid, ()), n_own, n_all, 8, Access(995, True)) == said


def test_a_daemon_without_rights_records_as_itself() -> None:
    assert peers.rights(Credentials(BOB, BOB, ()), OWN, Access(BOB, False)) is Rights.DAEMON
    with pytest.raises(CollectorError, match="ask who runs it"):
        peers.rights(Credentials(ALICE, ALICE, ()), OWN, Access(BOB, False))
