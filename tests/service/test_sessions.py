"""Sessions and what is known of them, without a recording."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from collector.elf import open_object
from collector.linux import census
from collector.linux.peers import Credentials
from collector.service import labels, protocol, rotation, sessions, targets
from collector.service.children import Child
from collector.service.clients import Clients
from collector.service.daemon import Daemon, Settings
from collector.service.peers import Refused, Rights
from collector.service.rotation import Plan
from collector.service.sessions import Order, Session
from collector.service.targets import Wanted
from collector.service.wishes import Wishes

Say = Callable[[str, str], None]
US = Credentials(os.geteuid(), os.getegid(), ())


def daemon_at(folder: Path, say: Say = lambda *_: None) -> Daemon:
    """One that does not serve."""
    return Daemon(Settings(str(folder / "s"), str(folder / "spool")), say)


def until(what: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + 60
    while not what():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def session_of(daemon: Daemon, name: str, facts: dict[str, Any] | None = None, owner: Credentials = US,
               **more: Any) -> Session:
    more = {"wanted": Wanted(unit="web.service"), "plan": Plan(), **more}
    order = Order(name, owner, wishes=Wishes(10_007_000, ()), **more)
    return Session(order, daemon.house, facts)


def test_labels_are_those_of_the_program_that_is_recorded_now(tmp_path: Path, process: Callable[..., Any],
                                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    """A process becomes another program by an exec; a process before had a container."""
    monkeypatch.setattr(sessions, "_BUILD_S", 60.0)  # however busy the machine is
    session = session_of(daemon_at(tmp_path), "web", {"labels": {"container": "0" * 64, "build": "ab" * 20}},
                         labels={"tier": "front"})
    target = process(os.geteuid(), "sh", "-c", "read line; exec sleep 1002.5")
    held = targets.hold(target.pid)
    assert held is not None
    first = labels.build_id(target.pid)
    asyncio.run(session.label(held))
    assert session.labels == {"tier": "front", **labels.of_process(target.pid), "build": first}
    target.stdin.write(b"\n")
    target.stdin.flush()
    until(lambda: Path(f"/proc/{target.pid}/comm").read_text() == "sleep\n")
    assert labels.build_id(target.pid) not in ("", first)
    asyncio.run(session.label(held))
    assert session.labels["build"] == labels.build_id(target.pid)
    held.release()


def test_a_new_build_under_the_same_name_is_met_without_a_word_to_its_file_system(
        tmp_path: Path, process: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A process executes its own file again, which was replaced: by a link, so that nobody is amid writing it."""
    monkeypatch.setattr(sessions, "_BUILD_S", 60.0)
    asked, stat = [], os.stat

    def told(path: Any, *more: Any, **how: Any) -> os.stat_result:
        asked.append(path)
        return stat(path, *more, **how)

    for name in ("dash", "bash"):
        shutil.copy(f"/bin/{name}", tmp_path / name)
    program = tmp_path / "program"
    program.hardlink_to(tmp_path / "dash")
    session = session_of(daemon_at(tmp_path), "web")
    target = process(os.geteuid(), str(program), "-c", f"read line; exec {program} -c 'echo; read line'")
    held = targets.hold(target.pid)
    assert held is not None
    monkeypatch.setattr(os, "stat", told)
    asyncio.run(session.label(held))
    assert session.labels["build"] == labels.build_id(target.pid) != ""
    program.unlink()
    program.hardlink_to(tmp_path / "bash")
    target.stdin.write(b"\n")
    target.stdin.flush()
    assert target.stdout.readline() == b"\n"
    asyncio.run(session.label(held))
    with open_object(str(program)) as elf:
        assert session.labels["build"] == elf.build_id.hex() != ""
    assert f"/proc/{target.pid}/exe" not in asked
    held.release()


def test_what_was_being_recorded_when_the_daemon_ended_has_the_labels_of_its_run(tmp_path: Path) -> None:
    (tmp_path / "spool" / "own" / "web" / "web.2.er").mkdir(parents=True)
    facts = {"labels": {"build": "ab"}, "current": "web.2.er", "folder": "own/web",
             "kept": [["web.1.er", 1.0, 10, "waiting", [["build", "cd"], ["tier", "front"]]]]}
    daemon = daemon_at(tmp_path)
    session = session_of(daemon, "web", sessions.with_current("web", facts, daemon.house))
    assert [(each.name, dict(each.labels)) for each in session.kept] == [
        ("web.1.er", {"build": "cd", "tier": "front"}), ("web.2.er", {"build": "ab"})]


def test_a_number_is_used_once_be_the_facts_of_its_session_lost(daemon: Callable[..., Any], folder: Path) -> None:
    (folder / "spool" / "own" / "7" / "7.1.er").mkdir(parents=True)
    (folder / "spool" / "sessions").mkdir()
    (folder / "spool" / "sessions" / "6.json").write_text("")  # as after a power failure
    running = daemon("")
    assert "sessions/6.json cannot be read" in running.log.read_text()
    assert running.ask(protocol.Attach(version=1, unit="none.service")).id == "8"


def test_a_number_is_looked_for_wherever_a_session_has_something(tmp_path: Path) -> None:
    spool, user = daemon_at(tmp_path).spool, Credentials(61_001, 61_001, ())
    assert spool.latest(US) == 0
    for place, ours, users in (("sessions/3.json", 3, 3), ("own/5", 5, 5), ("own/web", 5, 5), ("users/61001/9", 5, 9),
                               (f"users/61001/{10 ** 9}", 5, 9), ("users/61001/11x", 5, 9), ("users/61002/20", 5, 9)):
        (spool.path / place).mkdir(parents=True)
        assert (spool.latest(US), spool.latest(user)) == (ours, users)
    (tmp_path / "elsewhere" / "30").mkdir(parents=True)
    (spool.path / "users" / "61003").symlink_to(tmp_path / "elsewhere")
    assert spool.latest(Credentials(61_003, 61_003, ())) == 5


def test_facts_are_on_the_disk_before_their_name_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool, done = daemon_at(tmp_path).spool, []
    sync, replace = os.fsync, os.replace

    def synced(fd: int) -> None:
        done.append(os.readlink(f"/proc/self/fd/{fd}"))
        assert os.fstat(fd).st_size > 0
        sync(fd)

    def replaced(before: Path, after: Path) -> None:
        done.append(str(after))
        replace(before, after)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    spool.store("7", {"state": "finished"})
    assert done == [f"{spool.path}/sessions/7.new", f"{spool.path}/sessions/7.json"]
    assert (spool.stored(), spool.facts("7")) == (["7"], {"state": "finished"})


@pytest.mark.parametrize("left", ["", "note"])
def test_a_session_that_is_forgotten_leaves_no_folder_unless_somebody_has_put_something_there(
        left: str, tmp_path: Path) -> None:
    spooled = tmp_path / "spool" / "own"
    for name in ("7.1.er", "7.2.er"):
        (spooled / "7" / name / "sub").mkdir(parents=True)
    if left:
        (spooled / "7" / left).touch()
    daemon = daemon_at(tmp_path)

    async def forget() -> None:
        session_of(daemon, "7", {"folder": "own/7", "kept": [["7.1.er", 1.0, 10], ["7.2.er", 2.0, 10]]}).forget()
        session_of(daemon, "8").forget()  # it has recorded nothing
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others)

    asyncio.run(forget())
    assert [str(path.relative_to(spooled)) for path in spooled.rglob("*")] == (["7", "7/note"] if left else [])


def test_a_users_folder_goes_with_the_users_rights(root_only: None, folder: Path) -> None:
    daemon, user = daemon_at(folder), Credentials(61_001, 61_001, ())

    async def forget() -> None:
        session = session_of(daemon, "7", owner=user)
        session.folder = await daemon.spool.make(user, Rights.PEER, "7")
        assert session.folder.stat().st_uid == user.uid
        session.forget()
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others)

    asyncio.run(forget())
    assert os.listdir(daemon.spool.path / "users" / "61001") == []


@pytest.mark.parametrize(("missing", "deleted"), [(None, []), (10 ** 12, ["7.1.er"]), (10 ** 14, [])])
def test_what_is_deleted_for_the_reserve_is_told(missing: int | None, deleted: list[str], tmp_path: Path) -> None:
    """A reserve that is free, one that the oldest experiment would free, and one that none would."""
    said: list[str] = []
    daemon = daemon_at(tmp_path, lambda _, text: said.append(text))
    daemon.house.reserve_bytes = 0 if missing is None else daemon.spool.free_bytes() + missing
    kept = [["7.1.er", 1.0, 10 ** 13], ["7.2.er", 2.0, 10 ** 13]]

    async def live() -> Session:
        session = session_of(daemon, "7", {"kept": kept, "folder": "own/7"}, megabytes=10 ** 9)
        task = asyncio.ensure_future(session.live())
        await session.settled.wait()
        session.stop()
        await task
        return session

    names = [each.name for each in asyncio.run(live()).kept]
    assert names == [name for name, *_ in kept if name not in deleted]
    assert said == [f"session 7: {name} is deleted, for reserve_megabytes" for name in deleted]


def look_at_all() -> targets.Look:
    return targets.Look(census.pids())


def test_newcomers_are_neither_held_nor_below_one_that_is(tmp_path: Path, process: Callable[..., Any]) -> None:
    seconds = f"1003.{os.getpid()}"
    first, new = (process(os.geteuid(), "sleep", seconds) for _ in range(2))
    time.sleep(0.03)  # an owner is told by when the process began, in ticks of a hundredth of a second
    another_users = process(os.geteuid(), "sleep", seconds)
    shell = process(os.geteuid(), "sh", "-c", f"setpriv --pdeathsig KILL sleep {seconds} & wait")
    wanted = Wanted(command=f"^sleep {seconds}$")
    until(lambda: len(list(targets._candidates(wanted, look_at_all))) == 4)
    refused = census.owner(another_users.pid)

    def judge(owner: census.Owner) -> Rights:
        if owner == refused:
            raise Refused("another user's")
        return Rights.PEER

    ended = process(os.geteuid(), "sleep", "1000")
    ended.kill()
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    everywhere = targets.newcomers(Wanted(cgroup="/"), [], lambda _: Rights.PEER, look_at_all)
    assert {each.pid for each in everywhere} & {new.pid, ended.pid} == {new.pid}  # it waits for us to notice
    held = [each for pid in (first.pid, shell.pid) if (each := targets.hold(pid)) is not None]
    (below,) = census.below(shell.pid)
    assert [each.pid for each in targets.newcomers(wanted, held, judge, look_at_all)] == [new.pid]
    assert list(census.ancestors(below))[:2] == [shell.pid, os.getpid()]
    assert {new.pid, below}.isdisjoint(daemon_at(tmp_path)._look()._pids)  # what a daemon runs is its own
    for each in held:
        each.release()


@pytest.mark.parametrize(("state", "more", "is_ended"), [
    ("recording", {"plan": Plan(rotate_s=0)}, True), ("recording", {"configured": True}, True), ("paused", {}, False),
    ("recording", {"plan": Plan(once=True)}, False), ("recording", {"plan": Plan(10, 60)}, False)])
def test_a_run_ends_for_newcomers_where_the_next_follows_at_once(
        state: str, more: dict[str, Any], is_ended: bool, tmp_path: Path, process: Callable[..., Any],
        monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_LOOK_S", "_PATIENCE_S"):
        monkeypatch.setattr(rotation, name, 0.0)
    seconds = f"1004.{os.getpid()}"
    process(os.geteuid(), "sleep", seconds)

    async def watch() -> int:
        daemon = daemon_at(tmp_path)
        daemon.house.look = look_at_all
        session = session_of(daemon, "web", {"folder": "own/web"}, wanted=Wanted(command=f"^sleep {seconds}$"), **more)
        session._child, session.state = Child(["sleep", "1000"], lambda _: None), state
        try:
            for _ in range(3):
                session.watch()
        finally:
            session.signal(signal.SIGTERM)
        return await asyncio.wait_for(session._child.ended, 60)

    assert asyncio.run(watch()) == -(signal.SIGINT if is_ended else signal.SIGTERM)


ASKER = """
import sys
from collector.service import protocol
from collector.service.client import Client
with Client(sys.argv[1]) as client:
    print(client.ask(protocol.Attach(version=1, command=sys.argv[2])).message)
"""


def test_who_asks_for_a_command_by_whatever_name_is_not_meant_by_it(daemon: Callable[..., Any], tmp_path: Path) -> None:
    """Nor is who calls that; one of them goes on when it has been answered."""
    running, mark = daemon(""), f"marked-asker-{os.getpid()}"
    asker = tmp_path / "asker"
    asker.write_text(ASKER)
    inner = f"{sys.executable} {asker} {running.socket} {mark}"
    caller = subprocess.Popen(["sh", "-c", f"sh -c '{inner}; exit'; read line"], text=True, stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE)
    try:
        assert caller.stdout is not None
        assert caller.stdout.readline() == f"waiting: there is no process of command {mark}\n"
        (again,) = targets.callers(caller.pid, mark)
        assert again.pid == caller.pid  # who calls it, the tests, has no mark
        assert targets.callers(caller.pid, "another") == frozenset()
    finally:
        caller.communicate("\n")


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[threading.Event, threading.Event]]:
    """Nothing is on the disk before the second one is set; the first one is when somebody waits for that."""
    waits, may_go, sync = threading.Event(), threading.Event(), os.fsync

    def slow(fd: int) -> None:
        waits.set()
        may_go.wait(60)
        sync(fd)

    monkeypatch.setattr(os, "fsync", slow)
    yield waits, may_go
    may_go.set()


def test_a_slow_disk_holds_nothing_up(tmp_path: Path, slow_disk: tuple[threading.Event, threading.Event]) -> None:
    """Of what is to be written meanwhile, the latest is; and nothing, where a session is forgotten."""
    daemon, (waits, may_go) = daemon_at(tmp_path), slow_disk

    async def put() -> None:
        facts = daemon.house.facts
        first = facts.put("7", {"n": 0})
        await asyncio.to_thread(waits.wait, 60)
        later = [facts.put(name, {"n": n}) for n in range(1, 100) for name in ("7", "8")]
        gone = facts.put("9", {}), facts.put("9", None)
        assert not any(each.done() for each in (first, *later, *gone))
        reading = asyncio.ensure_future(facts.of("7"))
        await asyncio.sleep(0)
        may_go.set()
        assert await reading == {"n": 99}
        await asyncio.wait([first, *later, *gone])
        assert [daemon.spool.facts(name) for name in daemon.spool.stored()] == [{"n": 99}, {"n": 99}]

    asyncio.run(put())


def test_facts_are_written_where_there_can_be_no_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_executor: object, *_work: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(ThreadPoolExecutor, "submit", refuse)
    daemon = daemon_at(tmp_path)

    async def put() -> None:
        await asyncio.wait_for(daemon.house.facts.put("7", {"n": 1}), 60)
        assert await daemon.house.facts.of("7") == {"n": 1}

    asyncio.run(put())


def test_no_run_begins_that_nobody_would_know_of(
        tmp_path: Path, slow_disk: tuple[threading.Event, threading.Event], process: Callable[..., Any]) -> None:
    """Nor one that was stopped while its facts were on their way."""
    daemon, (waits, may_go) = daemon_at(tmp_path), slow_disk
    pid = process(os.geteuid(), "sleep", "1000").pid

    async def live() -> None:
        session = session_of(daemon, "7", wanted=Wanted(pids=(pid,)))
        task = asyncio.ensure_future(session.live())
        await asyncio.to_thread(waits.wait, 60)
        assert (session.state, session.own_pid) == ("starting", None)
        session.stop()
        may_go.set()
        await task
        assert (session.state, session.n_runs, session.experiments) == ("stopped", 0, [])
        assert daemon.spool.facts("7")["state"] == "stopped"

    asyncio.run(live())


@pytest.mark.parametrize(("setting", "mode"), [("", 0o600), ('metrics_mode = "0660"\n', 0o660), (
    'metrics_mode = "666"\n', 0o666)])
def test_the_metrics_are_for_whom_the_configuration_says(setting: str, mode: int, daemon: Callable[..., Any],
                                                         folder: Path) -> None:
    metrics = folder / "m"
    daemon(f'[daemon]\nmetrics = "{metrics}"\n{setting}')
    until(lambda: metrics.is_socket() and stat.S_IMODE(metrics.stat().st_mode) == mode)


def test_a_target_with_a_daemon_of_its_own_is_recorded_by_that_alone(daemon: Callable[..., Any], folder: Path) -> None:
    """Both read one file; the metrics that it names are those of the daemon of all targets."""
    config = (f'[daemon]\nmetrics = "{folder}/m"\n[[target]]\nname = "web"\nunit = "web.none"\nown_daemon = true\n'
              '[[target]]\nname = "db"\nunit = "db.none"\n')
    apart = folder / "web"
    apart.mkdir(mode=0o711)
    of_all = daemon(config)
    of_web = type(of_all)(apart, of_all.prefix, config, "--only", "web", "--metrics", str(apart / "m"))
    try:
        for each, name in ((of_all, "db"), (of_web, "web")):
            each.until(lambda each=each, name=name: [session.id for session in each.ask(protocol.List(
                version=1)).sessions] == [name])
            each.until((each.folder / "m").is_socket)
            assert "own_daemon" not in each.log.read_text()
            each.config.write_text(config.replace("own_daemon = true\n", ""))
            each.process.send_signal(signal.SIGHUP)
        of_all.until(lambda: len(of_all.ask(protocol.List(version=1)).sessions) == 2)
        of_web.until(lambda: "records 'web', too: its table needs own_daemon = true" in of_web.log.read_text())
    finally:
        of_web.stop()


@pytest.mark.parametrize("configured", [True, False])
def test_what_runs_take_is_told_apart_by_who_asked_for_them(configured: bool, tmp_path: Path) -> None:
    """While they run, and when they are over; a run of the configuration also as if it had not been lengthened."""
    burn = ("import os, sys, time\nwhile time.process_time() < 0.1: pass\nprint(file=sys.stderr, flush=True)\n"
            "os.read(int(sys.argv[1]), 1)")

    async def run() -> None:
        daemon, is_at_it = daemon_at(tmp_path), asyncio.Event()
        session = daemon.sessions["web"] = session_of(daemon, "web", configured=configured)
        session._factor = 3.0
        read_fd, write_fd = os.pipe()
        before = daemon.used()
        session._child = Child([sys.executable, "-c", burn, str(read_fd)], lambda _: is_at_it.set(), fds=[read_fd])
        os.close(read_fd)
        await asyncio.wait_for(is_at_it.wait(), 60)
        running = daemon.used()
        os.close(write_fd)
        await asyncio.wait_for(session._child.ended, 60)
        for used in running, daemon.used():
            assert used.own_s - before.own_s < 0.05
            assert (used.runs_s if configured else used.clients_s) >= 0.09
            assert used.asked_s == (3 * used.runs_s if configured else 0.0)

    asyncio.run(run())


def test_a_session_that_rests_need_not_rest_any_longer_than_the_factor_that_holds_now(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "_REST_S", 0.02)

    async def live() -> None:
        daemon = daemon_at(tmp_path)
        daemon.house.budget.stretched = 1e9
        session = session_of(daemon, "web", {"n_runs": 1}, plan=Plan(0.1, 0.2), configured=True)
        task = asyncio.ensure_future(session.live())
        await asyncio.sleep(0.1)
        assert session.state == "resting"
        daemon.house.budget.stretched = 1.0
        await asyncio.wait_for(session.settled.wait(), 60)
        assert session.state == "waiting"  # for its unit
        session.stop()
        await task

    asyncio.run(live())


@pytest.mark.parametrize("sent", [b"", b"and what is no request"])
def test_a_top_that_is_closed_is_no_connection_any_more(sent: bytes, tmp_path: Path) -> None:
    """Whoever looks once in a while counts until its client has closed, and not until the next look."""
    daemon, every_s = daemon_at(tmp_path), 0.2 if sent else 3600  # what is sent is left alone for so long

    async def look_and_leave() -> None:
        server = await asyncio.start_unix_server(Clients(daemon).connected, tmp_path / "s", limit=protocol.MESSAGE_MAX)
        reader, writer = await asyncio.open_unix_connection(tmp_path / "s")
        writer.write(protocol.encoded(protocol.Top(version=1, every_s=every_s)) + sent)
        assert isinstance(protocol.reply(await reader.readline()), protocol.Sessions)
        writer.close()
        async with asyncio.timeout(60):
            await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()})
        server.close()

    asyncio.run(look_and_leave())
