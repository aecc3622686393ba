"""The daemon: one event loop that answers clients and keeps sessions going.

    serve()      systemd's or its own socket -> ``clients``: connections, requests, replies
    _tick()      once a second: budget, watches, the handoff, the watchdog of systemd
    reload()     the configuration again; sessions whose table is as it was go on untouched
    stop()       all runs close their experiments
"""

from __future__ import annotations

import asyncio
import errno
import grp
import os
import signal
import socket
import stat
import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from collector.errors import CollectorError, reason
from collector.experiment.names import shown
from collector.linux import census, proc
from collector.linux.peers import Credentials
from collector.service import config as configuration
from collector.service import notify, protocol, retention, wishes
from collector.service.budget import Budget, ClientsBudget, Used
from collector.service.clients import Clients
from collector.service.config import Config
from collector.service.handoff import Handoff
from collector.service.peers import Access
from collector.service.sessions import FOR_GOOD, House, Order, Session, restored, with_current
from collector.service.spool import Spool
from collector.service.targets import Look

_TICK_S = 1.0
_WATCH_S = 2.0
_CENSUS_S = 0.5
_STOP_S = 70.0
_CAP_SETUID = 7
_CONFIG_MAX = 1_000_000
# Since Python 3.13 (gh-111246) a server removes its socket when it closes, be it systemd's; we remove what is ours.
_PATH_STAYS: dict[str, Any] = {"cleanup_socket": False} if sys.version_info >= (3, 13) else {}

Say = Callable[[str, str], None]


class Settings(NamedTuple):
    """The command line: the socket's path, the spool's, the configuration's; ``only`` one target of it; where metrics
    are served, which the configuration says for the daemon of all targets alone."""

    socket: str
    spool: str
    config: str | None = None
    only: str | None = None
    metrics: str = ""


class Daemon:
    """Sessions, and clients that ask for them."""

    def __init__(self, settings: Settings, say: Say, environment: Mapping[str, str] = os.environ) -> None:
        """Raises CollectorError."""
        self._settings = settings
        self.say = say
        self._environment = environment
        self.config = read(settings.config, settings.only)
        self.spool = Spool(Path(settings.spool))
        self.sessions: dict[str, Session] = {}
        self.handoff = Handoff(self.spool, self.sessions, say, time.monotonic)
        self.handoff.configure(self.config.handoff)
        self.house = House(self.spool, self._access(), Budget(0.0, 0.0, Used()), ClientsBudget(0.0, 0.0, Used()), say,
                           self._look, self.handoff)
        self.counts: Counter[str] = Counter()  # of what happened, for metrics
        self.n_scrapes = 0  # answers to Prometheus that are under way
        self.config_error = ""
        self.began_s = time.time()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._orders: dict[str, Order] = {}  # that hold, of the configuration
        self._clients = Clients(self)
        self._looked = 0.0, Look([])
        self._watched_s = 0.0
        self._stopping = asyncio.Event()
        self._servers: list[asyncio.Server] = []
        self._made: list[str] = []  # sockets beside the main one

    # -- its life

    async def serve(self) -> None:
        """Until it is told to stop. Raises CollectorError where it cannot begin."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        loop.add_signal_handler(signal.SIGHUP, self._reload_at_signal)
        listener, ours = self._listener()
        self._restore()
        self._apply(self.config)
        self._servers.append(await asyncio.start_unix_server(self._clients.connected, sock=listener,
                                                             limit=protocol.MESSAGE_MAX, **_PATH_STAYS))
        await self._serve_metrics()
        notify.tell(self._environment, READY="1", STATUS=self._status())
        self.say("info", f"ready on {self._settings.socket}, spool {self._settings.spool}; {self._status()}")
        ticking, sweeping = asyncio.ensure_future(self._tick()), asyncio.ensure_future(self.spool.sweep())
        await self._stopping.wait()
        notify.tell(self._environment, STOPPING="1")
        ticking.cancel()
        sweeping.cancel()
        await self._stop()
        for path in [self._settings.socket] * ours + self._made:
            with suppress(OSError):
                os.unlink(path)

    def _listener(self) -> tuple[socket.socket, bool]:
        """The socket, and whether its path is ours to remove."""
        given = notify.listening(self._environment)
        if given:
            return given[0], False
        path = self._settings.socket
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            _remove_stale(path)
            listener.bind(path)
            os.chmod(path, 0o666)  # who may do what is decided by credentials, not here
            listener.listen()  # who comes before we serve waits
        except OSError as err:
            listener.close()
            raise CollectorError(f"--socket {path}: {err.strerror or err}; name a path that this user may make"
                                 ) from None
        return listener, True

    async def _stop(self) -> None:
        """Closes connections, then all experiments."""
        for server in self._servers:
            server.close()
        self._clients.close()
        await self.handoff.close()
        self._orders.clear()
        for session in self.sessions.values():
            if session.state not in FOR_GOOD:
                session.stop()
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=_STOP_S)
        for session in self.sessions.values():
            session.signal(signal.SIGKILL)
        await self.house.facts.written()
        self.say("info", "stopped")

    async def _tick(self) -> None:
        """Goes on whatever goes wrong in it, which is said."""
        watchdog_s = notify.watchdog_s(self._environment)
        while True:
            if watchdog_s:
                notify.tell(self._environment, WATCHDOG="1", STATUS=self._status())
            try:
                self._look_around(time.monotonic())
            except Exception as err:
                self._note_fault("a look", err)
            await asyncio.sleep(min(_TICK_S, watchdog_s / 3) if watchdog_s else _TICK_S)

    def _note_fault(self, where: str, err: Exception) -> None:
        self.counts["faults"] += 1
        self.say("error", f"{where}: {reason(err)}")

    def _look_around(self, now_s: float) -> None:
        used = self.used()
        for line in (self.house.budget.look(now_s, used, self.longest_period_s()),
                     self.house.clients_budget.look(now_s, used)):
            if line is not None:
                self.say("notice", line)
        if now_s - self._watched_s >= _WATCH_S * self.house.budget.stretched ** 0.5:
            self._watched_s = now_s
            for session in list(self.sessions.values()):
                try:
                    session.watch()
                except Exception as err:  # the others are watched all the same
                    self._note_fault(f"session {session.order.id}", err)
        self.handoff.look()
        self._clients.forget_idle()

    def longest_period_s(self) -> float:
        """From window to window, of sessions that go on; 0 where all record without a break."""
        return max((session.order.plan.period_s for session in self.sessions.values()
                    if session.state not in FOR_GOOD), default=0.0)

    def used(self) -> Used:
        """CPU seconds so far, as the budgets tell them apart."""
        runs = self.house.ended
        for session in self.sessions.values():
            runs = runs.plus(session.used())
        return runs._replace(own_s=self.own_cpu_s() - runs.runs_s - runs.clients_s)

    def _status(self) -> str:
        active = sum(session.state not in FOR_GOOD for session in self.sessions.values())
        return f"{active} sessions, budget {self.config.daemon.budget_percent:g} % of a CPU"

    def own_cpu_s(self) -> float:
        """CPU seconds of the daemon, of its children that have ended, and of the runs."""
        used = os.times()
        runs = sum(census.cpu_s(session.own_pid) for session in self.sessions.values() if session.own_pid)
        return used.user + used.system + used.children_user + used.children_system + runs

    def _look(self) -> Look:
        """At all processes but ours; twice a second at most, for all sessions."""
        now_s = time.monotonic()
        if now_s - self._looked[0] > _CENSUS_S:
            ours = {os.getpid(), *(session.own_pid for session in self.sessions.values()), *census.below(os.getpid())}
            self._looked = now_s, Look([pid for pid in census.pids() if pid not in ours])
        return self._looked[1]

    def look_anew(self) -> None:
        """Whoever looks next sees what is there now: a client may ask for what it has just started."""
        self._looked = 0.0, self._looked[1]

    # -- the configuration

    def _access(self) -> Access:
        group = self.config.access.group
        return Access(os.geteuid(), _may_become(), _group(group) if group else None, self.config.access.users)

    def _reload_at_signal(self) -> None:
        with suppress(CollectorError):
            self.reload()

    def reload(self) -> None:
        """The configuration again. A bad one changes nothing, and raises ConfigError."""
        notify.tell(self._environment, RELOADING="1", MONOTONIC_USEC=str(time.monotonic_ns() // 1000))
        try:
            config = read(self._settings.config, self._settings.only)
        except CollectorError as err:
            self.config_error = str(err)
            self.say("error", f"{err}; the configuration before stays in force")
            raise
        finally:
            notify.tell(self._environment, READY="1")
        self.config_error = ""
        self._apply(config)
        self.say("info", f"configuration read; {self._status()}")

    def _apply(self, config: Config) -> None:
        """Begins and ends what the configuration asks for; what has not changed goes on."""
        before, self.config = self.config, config
        self.house.access = self._access()
        if config.limits != before.limits:
            self._clients.configure()
        self.handoff.configure(config.handoff)
        self.house.reserve_bytes = config.daemon.reserve_megabytes * retention.MEGABYTE
        if self.house.budget.percent != config.daemon.budget_percent:
            now_s, used = time.monotonic(), self.used()
            self.house.budget = Budget(config.daemon.budget_percent, now_s, used)
            self.house.clients_budget = ClientsBudget(config.daemon.budget_percent, now_s, used)
        tables = config.targets(self._settings.only)
        if self._settings.only and not tables[self._settings.only].own_daemon:
            self.say("warning", f"a daemon for all targets records {self._settings.only!r}, too: its table needs "
                     "own_daemon = true")
        same = {target.name for target in before.target if tables.get(target.name) == target}
        self._orders = {name: order for name, order in self._orders.items() if name in same}
        for name, session in self.sessions.items():
            if session.order.configured and name not in same and name in self._tasks:
                session.stop()
        for name, target in tables.items():
            if name not in same or name not in self._tasks:
                self._begin_configured(target)

    def _begin_configured(self, target: configuration.Target) -> None:
        """Behind the end of its session before, if there is one."""
        order = Order(target.name, Credentials(os.geteuid(), os.getegid(), ()), target.wanted,
                      wishes.parse(("-A", "off", *target.options)), target.plan, dict(target.labels), target.keep,
                      target.megabytes, configured=True)
        before = self._tasks.get(target.name)
        self._orders[order.id] = order

        async def live() -> None:
            if before is not None:
                await asyncio.wait([before])
            facts: dict[str, Any] = {}
            with suppress(OSError, ValueError):  # what is in its folder is found all the same
                facts = await self.house.facts.of(target.name)
            if self._orders.get(order.id) is not order:  # it was changed again meanwhile
                return
            facts = with_current(target.name, facts, self.house)
            session = self.sessions[target.name] = Session(order, self.house, {**facts, "labels": {}})
            await session.live()

        self.begin(target.name, live())

    def begin(self, name: str, life: Coroutine[None, None, None]) -> None:
        """Lets a session live."""
        task = self._tasks[name] = asyncio.ensure_future(life)

        def over(_: object) -> None:
            if self._tasks.get(name) is task:
                del self._tasks[name]

        task.add_done_callback(over)

    def _restore(self) -> None:
        """Sessions of before our start, whose experiments are kept."""
        for name in self.spool.stored():
            try:
                self.sessions[name] = restored(name, self.spool.facts(name), self.house)
            except Exception as err:  # whatever one user's has in it, the daemon starts
                self.say("warning", f"sessions/{name}.json cannot be read ({err}); its experiments are left alone")

    # -- metrics

    async def _serve_metrics(self) -> None:
        where = self._settings.metrics or ("" if self._settings.only else self.config.daemon.metrics)
        if not where:
            return
        from collector.service import metrics

        answer = partial(metrics.answer, self)
        try:
            if where.startswith("/"):
                _remove_stale(where)
                self._servers.append(await asyncio.start_unix_server(answer, where))
                self._made.append(where)
                os.chmod(where, int(self.config.daemon.metrics_mode, 8))
            else:
                host, _, port = where.rpartition(":")
                if host not in ("127.0.0.1", "[::1]", "localhost") or not port.isdigit():
                    raise CollectorError(f"metrics = {where!r}: give a path, or a port of this machine, such as "
                                         "127.0.0.1:9464")
                self._servers.append(await asyncio.start_server(answer, host.strip("[]"), int(port)))
        except (OSError, OverflowError) as err:
            raise CollectorError(f"metrics = {where!r}: {err}") from None


def read(path: str | None, only: str | None = None) -> Config:
    """The configuration as it can be used on this machine; ``only`` names a target that must be in it. Raises
    CollectorError."""
    config = Config() if path is None else _parsed(path)
    if only and only not in {target.name for target in config.target}:
        raise CollectorError(f"--only {only}: the configuration has no target of this name")
    if config.access.group:
        _group(config.access.group)
    handoff = config.handoff
    if handoff and handoff.url and handoff.format == "parquet" and find_spec("pyarrow") is None:
        raise configuration.ConfigError(f"{shown(path or '')}: [handoff] format parquet needs pyarrow: pip install "
                                        "pyarrow, or give another format")
    return config


def _parsed(path: str) -> Config:
    try:
        with open(path, "rb") as file:
            data = file.read(_CONFIG_MAX + 1)
        text = data.decode("utf-8")
    except (OSError, UnicodeDecodeError) as err:
        raise configuration.ConfigError(f"{shown(path)}: {shown(str(err))}") from None
    if len(data) > _CONFIG_MAX:
        raise configuration.ConfigError(f"{shown(path)}: it is larger than {_CONFIG_MAX} bytes")
    return configuration.parse(text, path)


def _remove_stale(path: str) -> None:
    """Removes a socket on which nobody listens. Raises OSError where somebody does, and where it is something else."""
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise OSError(errno.EEXIST, "there is a file of this name, which is no socket")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
    raise OSError(errno.EADDRINUSE, "another collectord serves it")


def _may_become() -> bool:
    """Whether we may run something as another user."""
    return bool(int(proc.status(os.getpid()).get(b"CapEff", b"0"), 16) >> _CAP_SETUID & 1)


def _group(name: str) -> int:
    try:
        return int(name) if name.isdigit() else grp.getgrnam(name).gr_gid
    except KeyError:
        raise configuration.ConfigError(f"[access] group = {name!r}: there is no such group; make it (groupadd "
                                        f"--system {shown(name)}), or name another") from None
