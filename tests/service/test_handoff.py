"""Finished experiments handed to commands and pushed to servers: real ones, which refuse, are slow, die on the way."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.cli.exporting import SUFFIXES
from collector.errors import UsageError
from collector.linux.peers import Credentials
from collector.service import config, handoff, labels, protocol, push, retention, sessions
from collector.service.budget import Budget, ClientsBudget, Used
from collector.service.config import ConfigError
from collector.service.daemon import Daemon, Settings
from collector.service.peers import Access
from collector.service.retention import Kept
from collector.service.rotation import Plan
from collector.service.sessions import House, Order, Session, restored
from collector.service.spool import Spool
from collector.service.targets import Look, Wanted
from collector.service.wishes import Wishes

PATIENCE_S = 60
ALICE = 61001
BUSY = "import time\nwhile True:\n    sum(range(20000)); time.sleep(0.01)"
MARK = f"marked-handoff-{os.getpid()}"  # nobody else's
TARGET = f'[[target]]\nname = "one"\ncommand = "{MARK}"\nrecord_s = 0.2\nevery_s = 0.4\nkeep = 2\n'
OK = b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n"
BUSY_NOW = (b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 12\r\nConnection: close\r\n\r\n"
            b"tables\nmoved")
GONE = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
MOVED = b"HTTP/1.1 301 Moved\r\nLocation: http://127.0.0.1/\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
TOO_LARGE = b"HTTP/1.1 413 Payload Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
NONSENSE = b"SSH-2.0-OpenSSH\r\n"


def until(what: Callable[[], object], message: Callable[[], str] = str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < deadline, message()
        time.sleep(0.05)


class Receiver:
    """A server that answers the n-th request with the n-th of ``answers``, the last one for ever.

    An answer is bytes to send when all was read; ``("early", bytes)`` sends them when the head was read, and closes;
    ``("die", n)`` closes when n bytes of the body were read; ``("wait", event)`` answers 204 when the event is set.
    """

    def __init__(self, listener: socket.socket, answers: Sequence[Any]) -> None:
        self.listener, self.answers = listener, list(answers)
        self.heads: list[list[str]] = []
        self.bodies: list[bytes] = []  # of those that were answered with 204
        self._thread = threading.Thread(target=self._serve, daemon=True)
        listener.listen()
        self._thread.start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                answer = self.answers[min(len(self.heads), len(self.answers) - 1)]
                with suppress(OSError), connection, connection.makefile("rb") as file:
                    self._one(connection, file, answer)

    def _one(self, connection: socket.socket, file: Any, answer: Any) -> None:
        head = []
        while (line := file.readline().decode("latin-1").rstrip("\r\n")):
            head.append(line)
        self.heads.append(head)
        length = next(int(line.split(":")[1]) for line in head if line.lower().startswith("content-length"))
        match answer:
            case ("early", said):
                connection.sendall(said)
                connection.shutdown(socket.SHUT_WR)
            case ("die", n):
                file.read(n)
            case ("wait", event):
                self.bodies.append(file.read(length))
                event.wait(PATIENCE_S)
                connection.sendall(OK)
            case said:
                body = file.read(length)
                connection.sendall(said)
                if said is OK:
                    self.bodies.append(body)

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self._thread.join(PATIENCE_S)


@contextmanager
def receiving(*answers: Any, path: Path | None = None) -> Iterator[tuple[Receiver, str]]:
    """A server and its URL: on a port of this machine, or on the socket of a path."""
    listener = socket.socket(socket.AF_UNIX if path else socket.AF_INET)
    listener.bind(str(path) if path else ("127.0.0.1", 0))
    if path:
        path.chmod(0o666)
    receiver = Receiver(listener, answers)
    try:
        yield receiver, f"http://unix:{path}:" if path else f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        receiver.close()


def pushed(url: str, path: Path, method: str = "POST") -> subprocess.CompletedProcess[str]:
    return subprocess.run(push.command(url, method, "text/plain", "a.1.er", str(path)), capture_output=True, text=True,
                          timeout=PATIENCE_S, check=False)


# -- one push

ANSWERS = (
    (OK, push.DONE, "HTTP status 204 No Content\n"),
    (BUSY_NOW, push.LATER, "retry-after: 1\nHTTP status 503 Service Unavailable: tables\n"),
    (GONE, push.REFUSED, "HTTP status 404 Not Found\n"),
    (MOVED, push.REFUSED, "HTTP status 301 Moved; redirections are not followed, give the address itself\n"),
    (("early", TOO_LARGE), push.REFUSED, "HTTP status 413 Payload Too Large\n"),
    (("die", 100_000), push.LATER, ""),
    (("early", b""), push.LATER, ""),
    (NONSENSE, push.LATER, "SSH-2.0-OpenSSH"),
)


@pytest.mark.parametrize(("answer", "status", "said"), ANSWERS, ids=range(len(ANSWERS)))
def test_what_a_server_answers_is_what_the_process_says(answer: Any, status: int, said: str, tmp_path: Path) -> None:
    profile = tmp_path / "a"
    profile.write_bytes(b"1234567" * 150_001)
    with receiving(answer) as (receiver, url):
        done = pushed(f"{url}/v1/x?y=z", profile, "PUT")
    assert done.returncode == status, done.stderr
    assert said in done.stderr
    assert done.stderr.splitlines()[-1]
    assert receiver.heads[0][0] == "PUT /v1/x?y=z HTTP/1.1"
    assert {"Content-Type: text/plain", "Content-Length: 1050007", "Collect-Experiment: a.1.er"} <= {*receiver.heads[0]}
    assert receiver.bodies == ([profile.read_bytes()] if status == push.DONE else [])


@pytest.mark.parametrize(("status", "expected"), [
    (201, push.DONE), (304, push.REFUSED), (400, push.REFUSED), (499, push.REFUSED),
    (408, push.LATER), (425, push.LATER), (429, push.LATER), (500, push.LATER), (501, push.LATER),
    (507, push.LATER), (520, push.LATER), (529, push.LATER),
])
def test_all_that_is_wrong_with_the_server_itself_may_be_over_later(status: int, expected: int, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    said = b"HTTP/1.1 %d Said\r\nContent-Length: 0\r\nConnection: close\r\n\r\n" % status
    with receiving(said) as (_, url), (tmp_path / "a").open("rb") as body:
        assert push.attempt(push.address(f"{url}/"), "PUT", body, {})[0] == expected


def test_nobody_listens(tmp_path: Path) -> None:
    profile = tmp_path / "a"
    profile.write_bytes(b"x")
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # and does not listen
        done = pushed(f"http://127.0.0.1:{bound.getsockname()[1]}/", profile)
    assert (done.returncode, done.stderr) == (push.LATER, "[Errno 111] Connection refused\n")
    done = pushed(f"http://unix:{tmp_path}/none:/", profile)
    assert (done.returncode, done.stderr) == (push.LATER, "[Errno 2] No such file or directory\n")


def test_a_body_is_never_in_memory_as_a_whole(tmp_path: Path) -> None:
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(101_000_007)
    with receiving(GONE, path=tmp_path / "s") as (_, url):
        done = subprocess.run(["prlimit", "--data=71000000", "--", *push.command(
            f"{url}/", "POST", "text/plain", "a.1.er", str(large))], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (push.REFUSED, "HTTP status 404 Not Found\n")


NOW_S = 1_700_000_000.0


@pytest.mark.parametrize(("text", "seconds"), [
    (None, 0), ("", 0), ("7", 7), (" 7 ", 7), ("-7", 0), ("1e3", 0), ("99999999999999999999", 3600), ("soon", 0),
    ("Tue, 14 Nov 2023 22:13:30 GMT", 10), ("Tue, 14 Nov 2023 22:00:00 GMT", 0),
    ("Fri, 14 Nov 2099 22:13:30 GMT", 3600), ("Tue, 14 Nov 2023", 0), ("٣", 0),
])
def test_how_long_a_server_wants_us_to_wait(text: str | None, seconds: float) -> None:
    assert push.retry_after_s(text, NOW_S) == seconds


@given(st.text())
def test_any_text_is_a_time_to_wait_or_none(text: str) -> None:
    assert 0 <= push.retry_after_s(text, NOW_S) <= push.RETRY_AFTER_MAX_S


@pytest.mark.parametrize(("url", "filled"), [
    ("http://a/host={host}/{experiment}.parquet", "http://a/host=web-1%2Fx/one.3.parquet"),
    ("http://a/{unit}", "http://a/none"),
    ("http://a/{up}/{empty}", "http://a/none/none"),
    ("http://unix:/run/a.sock:/{host}", "http://unix:/run/a.sock:/web-1%2Fx"),
])
def test_labels_in_an_address_are_parts_of_it(url: str, filled: str) -> None:
    push.check(url)
    found = push.filled(url, {"host": "web-1/x", "experiment": "one.3", "up": "..", "empty": ""})
    assert found == filled
    push.address(found)


@given(st.text())
def test_no_label_leads_elsewhere(value: str) -> None:
    try:
        found = push.address(push.filled("https://lake:8443/a/{host}/b", {"host": value}))
    except UnicodeEncodeError:  # what labels never hold
        assert any(0xD800 <= ord(each) < 0xE000 for each in value)
        return
    assert found[:4] == (True, "lake", 8443, "")
    assert len(found.target.split("/")) == 4
    assert found.target.split("/")[2] not in ("", ".", "..")


@pytest.mark.parametrize(("url", "host", "port"), [
    ("http://lake/p", "lake", 80), ("https://lake/p", "lake", 443), ("http://lake:0/p", "lake", 0),
    ("http://[::1]/p", "::1", 80), ("https://[2001:db8::1]/p", "2001:db8::1", 443),
    ("https://[::1]:8443/p", "::1", 8443),
])
def test_a_host_and_a_port(url: str, host: str, port: int) -> None:
    assert push.address(url) == (url.startswith("https"), host, port, "", "/p")


@pytest.mark.parametrize("url", ["ftp://a/", "http:///x", "/x", "http://a b/", "http://ä/", "http://u:p@a/", "http://a/#x",
                                 "http://{host}/", "http://a/{", "http://a/{}", "http://a/{a/b}", "http://a:x/",
                                 "http://unix:/{host}:/x", "http://a/{{host}}", "http://[::1/", "{host}", "http://a\n/"])
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(UsageError, match=r"^url: "):
        push.check(url)


# -- the configuration, and laws

WRONG = (
    ("[handoff]\n", ":1: give one of: command, url"),
    ("\n[handoff]\ncommand = ['a']\nurl = 'http://a/'\n", ":2: give one of: command, url"),
    ("[handoff]\nurl = 'ftp://a'\n", ":1: url: give http://HOST/PATH"),
    ("[handoff]\nurl = 'http://a/'\nformat = 'xml'\n", ":3: Invalid enum value 'xml'"),
    ("[handoff]\ncommand = 'a b'\n", ":2: Expected `array`, got `str`"),
    ("[handoff]\ncommand = ['a']\nretry = 3\n", ":3: Object contains unknown field `retry`"),
)


@pytest.mark.parametrize(("text", "message"), WRONG, ids=range(len(WRONG)))
def test_a_mistake_in_the_table_names_its_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^c{message}"):
        config.parse(text, "c")


def test_formats_are_those_of_er_export() -> None:
    assert {name: suffix for name, (_, suffix) in handoff.KINDS.items()} == SUFFIXES
    for name in SUFFIXES:
        config.parse(f"[handoff]\nurl = 'http://a/'\nformat = '{name}'\n", "c")


def test_pauses_double_up_to_a_quarter_of_an_hour_and_differ_by_name() -> None:
    pauses = [handoff.pause_s(5.0, n, "one.1.er") for n in range(1, 60)]
    assert pauses[1] / pauses[0] == pytest.approx(2)
    assert max(pauses) == pauses[-1] <= 1.25 * handoff.PAUSE_MAX_S
    of_names = {handoff.pause_s(5.0, 1, f"one.{n}.er") for n in range(100)}
    assert len(of_names) == 100
    assert 3.75 <= min(of_names) < 4.5 < 5.5 < max(of_names) <= 6.25


def test_what_is_owed_stays_beside_what_the_session_keeps_and_has_a_law_of_its_own() -> None:
    kept = [Kept("a", 1.0, 10, retention.WAITING), Kept("b", 2.0, 20), Kept("c", 3.0, 30, retention.REFUSED),
            Kept("d", 4.0, 40), Kept("e", 5.0, 50, retention.WAITING)]
    assert [each.name for each in retention.surplus(kept, 1, 0)] == ["b"]
    owed = [("one", each) for each in kept if each.owed]
    assert [each.name for _, each in retention.too_much_owed(owed, 90)] == []
    assert [each.name for _, each in retention.too_much_owed(owed[::-1], 80)] == ["a"]
    assert [each.name for _, each in retention.too_much_owed(owed, 79)] == ["a", "c"]
    assert [each.name for _, each in retention.too_much_owed(owed, 0)] == ["a", "c", "e"]
    assert [each.name for each in retention.to_free(kept, 0, 15)] == ["a", "b"]  # the disk comes first


# -- the queue, without a daemon around it


class Name(str):
    """One that counts how often names are looked up in tables."""

    n_hashes = 0

    def __hash__(self) -> int:
        Name.n_hashes += 1
        return super().__hash__()


def queue_of(folder: Path, n_experiments: int, owed: str = retention.WAITING,
             said: Callable[[str, str], None] = lambda *_: None) -> tuple[handoff.Handoff, Session]:
    """A queue whose one session has ``n_experiments`` of a megabyte each that are owed."""
    sessions: dict[str, Session] = {}
    spool = Spool(folder / "spool")
    queue = handoff.Handoff(spool, sessions, said, time.monotonic)
    house = House(spool, Access(os.geteuid(), False), Budget(0.0, 0.0, Used()),
                  ClientsBudget(0.0, 0.0, Used()), said, lambda: Look([]), queue)
    kept = [Kept(Name(f"one.{number}.er"), float(number), 1_000_000, owed) for number in range(1, n_experiments + 1)]
    session = sessions["one"] = restored("one", {
        "owner": [os.geteuid(), os.getegid(), []], "wanted": {"pids": []}, "interval_ns": 10_007_000, "options": [],
        "configured": True, "state": "finished", "message": "", "folder": "own/one"}, house)
    session.kept = kept
    return queue, session


async def until_told(queue: handoff.Handoff, n: int, *outcomes: str) -> None:
    """Until so many attempts have come to one of these ends."""
    async with asyncio.timeout(PATIENCE_S):
        while sum(queue.counts[outcome] for outcome in outcomes) < n:
            await asyncio.sleep(0.01)


def test_what_a_session_owes_is_noted_once_however_much_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queue, session = queue_of(tmp_path, 50, retention.REFUSED)
    n_stored, replace = 0, os.replace

    def counted(before: Path, after: Path) -> None:
        nonlocal n_stored
        n_stored += 1
        replace(before, after)

    monkeypatch.setattr(os, "replace", counted)

    async def look() -> None:
        queue.configure(config.Handoff(command=("true",)))
        assert {each.owed for each in session.kept} == {retention.WAITING}
        await session._house.facts.written()
        assert n_stored == 1
        queue.configure(config.Handoff(command=("true",), spool_megabytes=20))
        queue.look()
        await queue.close()
        await session._house.facts.written()

    asyncio.run(look())
    assert [each.owed for each in session.kept] == [""] * 30 + [retention.WAITING] * 20
    assert queue.counts["given_up"] == 30
    assert n_stored == 2
    (stored,) = (json.loads(path.read_text()) for path in (tmp_path / "spool" / "sessions").iterdir())
    assert [owed for _, _, _, owed, _ in stored["kept"]] == [each.owed for each in session.kept]


def test_a_look_goes_through_what_is_owed_once(tmp_path: Path) -> None:
    n = 20
    queue, _ = queue_of(tmp_path, n)

    async def look() -> int:
        queue.configure(config.Handoff(command=("false",), retry_s=3600.0))
        queue.look()
        await until_told(queue, n, "failed")
        Name.n_hashes = 0
        queue.look()
        await queue.close()
        return Name.n_hashes

    assert asyncio.run(look()) <= 8 * n


def test_a_configuration_that_is_read_amid_an_attempt_has_the_experiment_offered_again(tmp_path: Path) -> None:
    queue, session = queue_of(tmp_path, 1)
    os.mkfifo(tmp_path / "mended")

    async def reload() -> None:
        queue.configure(config.Handoff(command=("sh", "-c", f"read x <{tmp_path}/mended; exit {push.REFUSED}")))
        queue.look()
        fd = -1
        while fd < 0:  # until the command has come so far
            with suppress(OSError):
                fd = os.open(tmp_path / "mended", os.O_WRONLY | os.O_NONBLOCK)
            await asyncio.sleep(0.01)
        queue.configure(config.Handoff(command=("true",)))
        os.close(fd)
        await until_told(queue, 1, "done", "refused")
        await queue.close()

    asyncio.run(reload())
    assert [each.owed for each in session.kept] == [""]
    assert queue.counts == Counter(done=1)


def test_why_is_what_a_command_said_last_however_much_it_said_before(tmp_path: Path) -> None:
    told: list[str] = []
    queue, _ = queue_of(tmp_path, 1, said=lambda _, line: told.append(line))

    async def attempt() -> None:
        queue.configure(config.Handoff(command=("sh", "-c", f"seq 25 >&2; echo no room >&2; exit {push.REFUSED}")))
        queue.look()
        await until_told(queue, 1, "refused")
        await queue.close()

    asyncio.run(attempt())
    assert queue.trouble == "one.1.er: no room"
    assert told[:-1] == [f"handoff: one.1.er: {number}" for number in range(1, 21)]
    assert told[-1].startswith("handoff: one.1.er: no room; it is kept")


async def recorded_twice(session: Session, become_another: Callable[[], None]) -> None:
    """Two runs; the process is another program in the second."""
    task = asyncio.ensure_future(session.live())
    for n, act in enumerate((become_another, session.stop), 1):
        async with asyncio.timeout(PATIENCE_S):
            while len(session.kept) < n and not task.done():
                await asyncio.sleep(0.01)
        act()
    await task


def test_what_stands_in_braces_is_the_experiments_own_though_the_session_went_on_and_the_daemon_ended(
        tmp_path: Path, process: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A process becomes another program before anything was pushed."""
    monkeypatch.setattr(sessions, "_BUILD_S", 60.0)  # however busy the machine is
    target = process(os.geteuid(), "sh", "-c", "read line; exec sleep 1002.5")

    def become_sleep() -> None:
        target.stdin.write(b"\n")
        target.stdin.flush()
        until(lambda: Path(f"/proc/{target.pid}/comm").read_text() == "sleep\n")

    with receiving(OK, path=tmp_path / "r") as (receiver, url):
        within = Daemon(Settings(str(tmp_path / "s"), str(tmp_path / "spool")), lambda *_: None)  # it does not serve
        within.handoff.configure(config.Handoff(url=f"{url}/{{build}}/{{experiment}}", format="collapsed"))
        us = Credentials(os.geteuid(), os.getegid(), ())
        session = Session(Order("web", us, Wanted(pids=(target.pid,)), Wishes(10_007_000, ()), Plan(0.1, 0.2),
                                configured=True), within.house)
        builds = [labels.build_id(target.pid)]
        asyncio.run(recorded_twice(session, become_sleep))
        builds.append(labels.build_id(target.pid))
        for kept in session.kept:  # as it is made for a push
            (session.folder / kept.name / ".handoff.collapsed.txt").write_text("main 1\n")

        async def push_all() -> None:
            within.sessions["web"] = restored("web", within.spool.facts("web"), within.house)
            within.handoff.look()
            await until_told(within.handoff, 2, "done", "failed", "refused")
            await within.handoff.close()

        asyncio.run(push_all())
    assert builds[0] != builds[1]
    assert [head[0].split()[1] for head in receiver.heads] == [f"/{builds[0]}/web.1", f"/{builds[1]}/web.2"]


# -- a daemon


@pytest.fixture
def busy(process: Callable[..., Any]) -> Any:
    return process(os.geteuid(), sys.executable, "-c", BUSY, MARK)


def figure(running: Any, name: str) -> float:
    """Of the metrics; 0 until they are served."""
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(f"{running.folder}/m")
        except (FileNotFoundError, ConnectionRefusedError):
            return 0.0
        client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        text = client.makefile("rb").read().decode()
    return float(next(line.rpartition(" ")[2] for line in text.splitlines() if line.startswith(name)))


def handed(running: Any, outcome: str) -> float:
    return figure(running, f'collectord_handoffs_total{{outcome="{outcome}"}}')


def test_a_push_outlives_a_server_that_is_not_there_is_busy_and_dies(daemon: Callable[[str], Any], busy: Any,
                                                                     folder: Path) -> None:
    running = daemon(f'[daemon]\nbudget_percent = 0\nmetrics = "{folder}/m"\n{TARGET}labels = {{ tier = "front" }}\n'
                     f'[handoff]\nurl = "http://unix:{folder}/r:/{{host}}/{{tier}}/{{experiment}}"\nmethod = "PUT"\n'
                     "retry_s = 0.1\n")
    with receiving(BUSY_NOW, ("die", 1000), OK, path=folder / "r") as (receiver, _):
        until(lambda: handed(running, "done") >= 1, running.log.read_text)
    assert "HTTP status 503 Service Unavailable: tables; again in 1 s" in running.log.read_text()
    (folder / "r").unlink()
    until(lambda: "[Errno 2] No such file or directory; again in " in running.log.read_text(), running.log.read_text)
    assert re.search(r"wrong  \d+ experiments? (was|were) handed over", running.ctl("doctor").stdout)
    n_done = handed(running, "done")
    with receiving(OK, path=folder / "r") as (second, _):
        until(lambda: handed(running, "done") > n_done, running.log.read_text)
    host = os.uname().nodename
    paths = [head[0].split()[1] for head in (*receiver.heads, *second.heads)]
    assert paths[:3] == [f"/{host}/front/one.1"] * 3  # beyond what the session keeps
    assert len(set(paths)) == len(paths) - 2
    (folder / "x.parquet").write_bytes(receiver.bodies[0])
    import duckdb

    rows = duckdb.sql(f"SELECT DISTINCT host, labels['tier'], labels['host'], process FROM '{folder}/x.parquet'")
    assert rows.fetchall() == [(host, "front", host, rows.fetchall()[0][3])]
    assert not list(running.spool.glob("own/one/*/.handoff.parquet"))[2:]  # at most what is under way


def test_a_server_that_says_nothing_holds_nobody_up(daemon: Callable[[str], Any], busy: Any, folder: Path) -> None:
    event = threading.Event()
    with receiving(("wait", event), path=folder / "r") as (receiver, url):
        running = daemon(f'[daemon]\nbudget_percent = 0\n{TARGET}[handoff]\nurl = "{url}/"\nformat = "collapsed"\n'
                         "timeout_s = 2\nretry_s = 0.1\nattempts = 1000\n")
        until(lambda: "handoff: one." in running.log.read_text(), running.log.read_text)
        assert running.ctl("list").returncode == 0
        assert running.session("one").n_waiting >= 1
        until(lambda: "it took more than 2 s; again in " in running.log.read_text(), running.log.read_text)
        event.set()
        until(lambda: len(receiver.heads) >= 2, running.log.read_text)
        running.stop()
    assert b";clock_nanosleep " in receiver.bodies[0]


FAILS = """#!/bin/sh
echo "$# $*" >>%(folder)s/said
grep -E '^Cap(Eff|Inh|Amb)' /proc/self/status | tr '\\n\\t' '  ' >>%(folder)s/rights
id -u >>%(folder)s/rights
n=$(grep -c . %(folder)s/said)
[ "$n" -gt 2 ] || { echo "number $n; not yet" >&2; exit 3; }
"""


def script(folder: Path, text: str) -> Path:
    path = folder / "take"
    path.write_text(text % {"folder": folder})
    path.chmod(0o755)
    return path


def test_a_command_that_fails_twice_gets_the_experiment_a_third_time(daemon: Callable[[str], Any], busy: Any,
                                                                     folder: Path) -> None:
    take = script(folder, FAILS)
    target = TARGET.replace("every_s = 0.4", "every_s = 3600")
    running = daemon(f'[daemon]\nbudget_percent = 0\nmetrics = "{folder}/m"\n{target}'
                     f'[handoff]\ncommand = ["{take}", "a b", "$(id)"]\nretry_s = 0.1\n')
    path = running.spool / "own" / "one" / "one.1.er"
    until(lambda: handed(running, "done") == 1, running.log.read_text)
    assert (folder / "said").read_text() == f"3 a b $(id) {path}\n" * 3
    assert handed(running, "failed") == 2
    assert "handoff: one.1.er: exit status 3: number 2; not yet; again in " in running.log.read_text()
    assert "ok     1 experiment was handed over, 0 wait" in running.ctl("doctor").stdout
    assert path.is_dir()
    uid = (folder / "rights").read_text().split()[-1]
    assert uid == str(os.geteuid())


def test_what_a_command_will_not_have_is_kept_counted_told_and_offered_again(daemon: Callable[[str], Any], busy: Any,
                                                                             folder: Path) -> None:
    take = script(folder, "#!/bin/sh\n[ -e %(folder)s/open ] && echo $1 >>%(folder)s/said\n")
    running = daemon(f'[daemon]\nbudget_percent = 0\nmetrics = "{folder}/m"\n{TARGET}'
                     f'[handoff]\ncommand = ["{take}", "--from={{}}"]\nretry_s = 0.1\nattempts = 2\n')
    until(lambda: figure(running, 'collectord_handoff_owed{state="refused"}') >= 3, running.log.read_text)
    session = running.session("one")
    assert session.n_refused >= 3
    assert session.experiments[0] == "one.1.er"  # though `keep` is 2
    assert "experiments were refused by the handoff and are kept, the oldest one.1.er" in running.ctl("doctor").stdout
    if not os.geteuid():  # others are not told what the configuration records
        findings = [finding.text for finding in running.ask(protocol.Doctor(version=1), 65534).findings]
        assert any("refused by the handoff and are kept: mend" in text for text in findings), findings
        assert not any("one." in text for text in findings), findings
    assert re.search("experiments? waits? to be handed over", running.ctl("status", "one").stdout)
    running.process.send_signal(signal.SIGKILL)  # the queue outlives the daemon
    running.process.wait()
    until(lambda: not subprocess.run(["pgrep", "-f", str(running.spool)], capture_output=True).stdout)
    (folder / "open").touch()
    running.start()
    until(lambda: handed(running, "done") >= 4, running.log.read_text)
    given = (folder / "said").read_text().split()
    assert given[:3] == [f"--from={running.spool}/own/one/one.{number}.er" for number in (1, 2, 3)]
    until(lambda: "one.1.er" not in running.session("one").experiments, running.log.read_text)  # `keep` holds again


def test_of_what_waits_only_so_much_is_held(daemon: Callable[[str], Any], busy: Any, folder: Path) -> None:
    running = daemon(f'[daemon]\nbudget_percent = 0\nmetrics = "{folder}/m"\n{TARGET}options = ["-A", "on"]\n'
                     '[handoff]\ncommand = ["sh", "-c", "exit 75"]\nspool_megabytes = 1\n')
    until(lambda: handed(running, "given_up") >= 1, running.log.read_text)
    until(lambda: figure(running, "collectord_handoff_bytes") <= 1_000_000, running.log.read_text)
    assert re.search("before (it|they) had to go: raise spool_megabytes", running.ctl("doctor").stdout)
    running.ctl("stop", "one")


def test_a_command_takes_a_users_experiment_as_that_user(root_only: None, daemon: Callable[[str], Any],
                                                         process: Callable[..., Any], folder: Path) -> None:
    (folder / "out").mkdir()
    (folder / "out").chmod(0o777)
    take = script(folder, "#!/bin/sh\n{ id -u; id -G; grep ^Cap /proc/self/status; ls $1; } >%(folder)s/out/said\n")
    running = daemon(f'[handoff]\ncommand = ["{take}"]\nusers = true\n')
    target = process(ALICE, "sleep", "1000")
    started = running.ask(protocol.Attach(version=1, pids=(target.pid,), options=("-t", "0.3")), ALICE)
    running.ended(started.id, ALICE)
    until(lambda: "log.xml" in ((folder / "out" / "said").read_text() if (folder / "out" / "said").exists() else ""),
          running.log.read_text)
    said = (folder / "out" / "said").read_text().splitlines()
    assert said[:2] == [str(ALICE), str(ALICE)]
    assert {line.split()[1] for line in said if line.startswith(("CapEff", "CapPrm", "CapInh", "CapAmb"))} == {"0" * 16}
    running.config.write_text('[handoff]\ncommand = ["sh", "-c", "exit 75"]\nusers = true\n')
    assert running.ctl("reload").returncode == 0
    other = running.ask(protocol.Attach(version=1, pids=(target.pid,), options=("-t", "0.3")), ALICE)
    assert running.ended(other.id, ALICE).n_waiting == 1
    running.config.write_text('[handoff]\ncommand = ["true"]\n')  # and what users record is nobody's business again
    assert running.ctl("reload").returncode == 0
    assert running.session(other.id, ALICE).n_waiting == 0


def test_a_command_that_does_not_end_is_ended_with_all_that_it_began(daemon: Callable[[str], Any], busy: Any,
                                                                     folder: Path) -> None:
    take = script(folder, "#!/bin/sh\ntrap '' TERM\nsleep 987 & echo $! >>%(folder)s/pids\nwait\nwait\n")
    target = TARGET.replace("every_s = 0.4", "every_s = 3600")
    running = daemon(f'[daemon]\nbudget_percent = 0\n{target}[handoff]\ncommand = ["{take}"]\ntimeout_s = 1\n'
                     "attempts = 3\nretry_s = 0.1\n")  # one may not have come so far in its second
    until(lambda: "it took more than 1 s; it is kept" in running.log.read_text(), running.log.read_text)
    pids = [int(word) for word in (folder / "pids").read_text().split()]
    assert 1 <= len(pids) <= 3
    until(lambda: not any(map(is_at_work, pids)))


def is_at_work(pid: int) -> bool:
    """Whether there is such a process, and not just its exit status."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
