"""What clients are told: connections, requests, replies. Who may ask what is the tables' of ``peers``.

A connection is a user's, known by its credentials; a user has so many connections, sessions and requests a second.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from collector.errors import CollectorError, reason
from collector.experiment.names import shown
from collector.linux.peers import Credentials, credentials, process
from collector.service import doctor, peers, protocol, targets, wishes
from collector.service.children import Child, as_daemon, as_peer
from collector.service.peers import Bucket, Refused
from collector.service.protocol import Done, Failed, Reply
from collector.service.rotation import Plan
from collector.service.sessions import FOR_GOOD, Order, Session
from collector.service.targets import Wanted

if TYPE_CHECKING:
    from collector.service.daemon import Daemon

_IDLE_S = 600.0
_SETTLE_S = 20.0
_LINGER_S = 10.0
_REFUSED_S = 0.1


class Clients:
    """All connections to a daemon."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._connections: dict[asyncio.Task[None], int] = {}  # and whose each is
        self._buckets: dict[int, Bucket] = {}
        self._is_closed = False

    def close(self) -> None:
        """Ends all of them."""
        self._is_closed = True
        for connection in list(self._connections):
            connection.cancel()

    def configure(self) -> None:
        """Limits have changed: requests are counted anew."""
        self._buckets.clear()

    def forget_idle(self) -> None:
        """What is counted of users who ask nothing now."""
        for uid in [uid for uid, bucket in self._buckets.items() if bucket.is_full]:
            del self._buckets[uid]

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serves one, until it is closed by either side."""
        task = asyncio.current_task()
        assert task is not None
        try:
            peer = credentials(writer.get_extra_info("socket"))
        except OSError as err:
            self._daemon.say("warning", f"whose a connection is cannot be told ({err}); it is closed")
            writer.close()
            return
        self._connections[task] = peer.uid
        try:
            if why := peers.too_many(peer, list(self._connections.values()).count(peer.uid), len(self._connections),
                                     self._daemon.config.limits.connections_per_user, self._daemon.house.access):
                await self._send(writer, Failed(error=why))
                return
            await self._converse(peer, reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, TimeoutError):
            pass
        except asyncio.CancelledError:
            if not self._is_closed:
                raise
        finally:
            writer.close()
            try:  # it counts as long as it is open, which it is until the peer has read what is left
                with suppress(ConnectionError, TimeoutError):
                    await asyncio.wait_for(writer.wait_closed(), min(self._daemon.config.limits.silence_s, _LINGER_S))
            finally:
                writer.transport.abort()
                del self._connections[task]

    async def _converse(self, peer: Credentials, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Request by request; what is no message is answered, and ends the connection."""
        while True:
            try:
                line = await asyncio.wait_for(reader.readline(), _IDLE_S)
            except ValueError:
                self._daemon.counts["malformed"] += 1
                await self._send(writer, Failed(error=f"a message has at most {protocol.MESSAGE_MAX} bytes"))
                return
            if not line.endswith(b"\n"):
                return
            self._daemon.counts["requests"] += 1
            what = "a request"
            try:
                if not self._bucket(peer.uid).take():
                    await asyncio.sleep(_REFUSED_S)  # who asks all the time is not worth all of ours
                    raise Refused(f"more than {self._daemon.config.limits.requests_per_second} requests a second; wait")
                message = protocol.request(line)
                what = type(message).__name__
                async for reply in self._answer(peer, message, reader, writer):
                    await self._send(writer, reply)
            except protocol.ProtocolError as err:
                self._daemon.counts["malformed"] += 1
                await self._send(writer, Failed(error=str(err)))
                return
            except CollectorError as err:
                self._daemon.counts["refused"] += 1
                await self._send(writer, Failed(error=shown(str(err))))
            except (ConnectionError, TimeoutError):
                raise
            except Exception as err:
                self._daemon.counts["faults"] += 1
                self._daemon.say("error", f"{what}: {reason(err)}")
                await self._send(writer, Failed(error=reason(err)))

    def _bucket(self, uid: int) -> Bucket:
        if uid not in self._buckets:
            self._buckets[uid] = Bucket(float(self._daemon.config.limits.requests_per_second), time.monotonic)
        return self._buckets[uid]

    async def _answer(self, peer: Credentials, message: protocol.AnyRequest, reader: asyncio.StreamReader,
                      writer: asyncio.StreamWriter) -> AsyncIterator[Reply]:
        match message:
            case protocol.Attach():
                asking = writer.get_extra_info("socket") if message.command else None
                yield await self._attach(peer, message, process(asking) if asking is not None else 0)
            case protocol.List():
                yield self._list(peer, message.labels)
            case protocol.Status():
                yield self._view([self._mine(peer, message.id)])
            case protocol.Control():
                session = self._mine(peer, message.id, to_change=True)
                yield Done(message=f"session {message.id}: {session.control(message.action)}")
            case protocol.Fetch():
                await self._fetch(peer, message, writer)
                yield Done()
            case protocol.Top():
                yield self._list(peer, {})
                while await _is_there_after(reader, message.every_s):
                    yield self._list(peer, {})
            case protocol.Doctor():
                yield protocol.Findings(findings=tuple(doctor.examine(self._daemon, peer)))
            case protocol.Reload():
                if not peers.may_administer(peer, self._daemon.house.access):
                    raise Refused("only root may have the configuration read again")
                self._daemon.reload()
                yield Done(message="the configuration was read")

    # -- requests

    async def _attach(self, peer: Credentials, message: protocol.Attach, client: int) -> Reply:
        """``client``: its number, where a command is asked for; 0 where it is not known."""
        wanted = Wanted(message.pids, message.unit, message.cgroup, message.command)
        targets.check(wanted)
        wish = wishes.parse(message.options)
        limits = self._daemon.config.limits
        is_root = peers.may_administer(peer, self._daemon.house.access)
        self._check_number(peer, is_root)
        plan = Plan(rotate_s=0.0, rotate_megabytes=limits.megabytes_per_session,
                    once=bool(wanted.pids) or wish.is_bounded)
        order = Order(self._free_id(peer), peer, wanted, wish, plan, dict(message.labels),
                      limits.experiments_per_session, limits.megabytes_per_session,
                      asking=targets.callers(client, message.command or "") if client else frozenset())
        self._daemon.look_anew()
        session = self._daemon.sessions[order.id] = Session(order, self._daemon.house)
        self._daemon.begin(order.id, session.live())
        self._daemon.counts["sessions"] += 1
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(session.settled.wait(), _SETTLE_S)
        if session.state == "failed" and not session.kept:
            del self._daemon.sessions[order.id]
            await asyncio.wait(session.forget(), timeout=_SETTLE_S)
            raise CollectorError(session.message)
        self._forget_oldest(peer)
        how = wish.changed(self._daemon.house.clients_budget.stretched)
        return protocol.Started(id=order.id, message=f"{session.state}{f', {how}' * bool(how)}"
                                                     f"{f': {session.message}' * bool(session.message)}")

    def _check_number(self, peer: Credentials, is_root: bool) -> None:
        if peers.standing(peer, self._daemon.house.access) is peers.Standing.STRANGER:
            raise Refused("this daemon records for root, for its own user and for members of its group only")
        limit = self._daemon.config.limits.sessions
        if sum(session.state not in FOR_GOOD for session in self._daemon.sessions.values()) >= limit:
            raise Refused(f"there are {limit} sessions already; stop one (collectctl list), or raise [limits] sessions")
        active = [session for session in self._of(peer) if session.state not in FOR_GOOD]
        if not is_root and len(active) >= self._daemon.config.limits.sessions_per_user:
            raise Refused(f"this user has {len(active)} sessions already; stop one (collectctl list)")

    def _of(self, peer: Credentials) -> list[Session]:
        """What a user has asked for."""
        return [session for session in self._daemon.sessions.values()
                if session.order.owner.uid == peer.uid and not session.order.configured]

    def _forget_oldest(self, peer: Credentials) -> None:
        """Of a user's sessions that are over, only so many are kept."""
        over = sorted((session for session in self._of(peer) if session.state in FOR_GOOD),
                      key=lambda session: session.began_s)
        for session in over[:max(len(over) - self._daemon.config.limits.finished_per_user, 0)]:
            del self._daemon.sessions[session.order.id]
            session.forget()

    def _free_id(self, peer: Credentials) -> str:
        """No session has it, nor had one whose experiments are there: they would be taken for the new one's."""
        numbers = [int(name) for name in self._daemon.sessions if name.isdigit()]
        return str(max([self._daemon.spool.latest(peer), *numbers]) + 1)

    def _mine(self, peer: Credentials, session_id: str, *, to_change: bool = False) -> Session:
        """A session that the peer may see. Of others it is not even told that they exist."""
        session = self._daemon.sessions.get(session_id)
        if session is None or not self._sees(peer, session):
            raise Refused(f"there is no session {session_id} of yours; collectctl list has them")
        if to_change and session.order.configured and not peers.may_administer(peer, self._daemon.house.access):
            raise Refused(f"session {session_id} is the configuration's: only root may change it")
        return session

    def _sees(self, peer: Credentials, session: Session) -> bool:
        if session.order.configured:
            return peers.may_see_configured(peer, self._daemon.house.access)
        return peers.may_see(peer, session.order.owner.uid, self._daemon.house.access)

    def _list(self, peer: Credentials, labels: Mapping[str, str]) -> Reply:
        return self._view(session for session in self._daemon.sessions.values()
                          if self._sees(peer, session) and labels.items() <= session.labels.items())

    def _view(self, sessions: Iterator[Session] | list[Session]) -> Reply:
        house = self._daemon.house
        return protocol.Sessions(sessions=tuple(session.view() for session in sessions),
                                 own_share=house.budget.share + house.clients_budget.share,
                                 stretched=house.budget.stretched)

    async def _fetch(self, peer: Credentials, message: protocol.Fetch, writer: asyncio.StreamWriter) -> None:
        """The archive, made by tar with the rights of the session's owner, chunk by chunk."""
        session = self._mine(peer, message.id)
        names = session.experiments[-message.last if message.last else None:]
        if not names or not session.relative_folder:
            raise CollectorError(f"session {message.id} has no experiment yet")
        argv = ["tar", "-C", str(session.folder), "-cf", "-", "--format=pax", "--ignore-failed-read",
                "--warning=no-file-changed", "--", *names]
        own = session.folder.is_relative_to(self._daemon.spool.path / "own")
        said: list[str] = []
        read_fd, write_fd = os.pipe()
        try:
            child = Child(as_daemon(argv) if own else as_peer(session.order.owner, argv), said.append, write_fd)
        except BaseException:
            os.close(read_fd)
            raise
        finally:
            os.close(write_fd)
        try:
            await self._pump(read_fd, writer)
            status = await asyncio.shield(child.ended)
        finally:
            child.signal(signal.SIGKILL)
        if status not in (0, 1):  # 1: a file changed while it was read, which those of a recording do
            raise CollectorError(f"the archive is not whole: {said[-1] if said else f'tar failed, {status}'}")

    async def _send(self, writer: asyncio.StreamWriter, reply: Reply) -> None:
        """Raises TimeoutError where the client does not read."""
        writer.write(protocol.encoded(reply))
        await asyncio.wait_for(writer.drain(), self._daemon.config.limits.silence_s)

    async def _pump(self, read_fd: int, writer: asyncio.StreamWriter) -> None:
        """What comes from a pipe, as chunks; the pipe is closed."""
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(read_fd, "rb"))
        try:
            while data := await reader.read(protocol.CHUNK_MAX):
                writer.write(protocol.encoded(protocol.Chunk(length=len(data))) + data)
                await asyncio.wait_for(writer.drain(), self._daemon.config.limits.silence_s)
        finally:
            transport.close()


async def _is_there_after(reader: asyncio.StreamReader, seconds: float) -> bool:
    """Waits, but not for a client that has closed; what one sends meanwhile is not looked at, nor read for long."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + seconds
    with suppress(TimeoutError):
        if not await asyncio.wait_for(reader.read(protocol.MESSAGE_MAX), seconds):
            return False
        await asyncio.sleep(max(end_s - loop.time(), 0))
    return True
