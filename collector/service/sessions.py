"""A session: processes that are wanted, and runs of ``collect`` that record them, one process each.

    waiting ---found---> starting ---collect says so---> recording <-> paused
       ^                                                     |
       +---------------- resting <---- ended, window over ---+        stopped, failed, finished: for good

What goes wrong in a run ends the run: the next one is another process. The session itself is a task of the daemon's
loop and writes nothing but its facts.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collector.errors import CollectorError, reason
from collector.experiment.names import shown
from collector.installed import command
from collector.linux import census
from collector.linux.peers import Credentials
from collector.service import labels as labelling
from collector.service import peers, protocol, retention, rotation, targets
from collector.service.budget import Budget, ClientsBudget, Used
from collector.service.children import Child, as_daemon, as_peer, run
from collector.service.facts import Facts
from collector.service.peers import Access, Rights
from collector.service.retention import MEGABYTE, Kept
from collector.service.spool import Spool
from collector.service.targets import Found, Held, Look, Wanted
from collector.service.wishes import Wishes
from collector.session.control import ORDERS, Action

if TYPE_CHECKING:
    from collector.service.handoff import Handoff

LOOK_S = 1.0
_REST_S = 10.0
_SAID_MAX, _LINE_MAX, _LINES_MAX = 20, 500, 1000
_CLOSE_S = 60.0
_BUILD_S = 5.0
_LATEST, _MARGIN = 5, 1.25  # a run is taken to become as large as the largest of so many, and a bit more
_HEXADECIMAL = re.compile("[0-9a-f]{2,64}")
_RETRY_S, _RETRY_MAX_S = 1.0, 60.0
_SCAN_S, _SCAN_SHARE = 5.0, 50
_N_SAMPLES = re.compile(r", ([0-9]{1,12}) samples?\b")
_LOST = re.compile(r"([0-9]{1,12}) [a-z ]{1,40}?(?:lost|dropped)")
FOR_GOOD = frozenset({"stopped", "failed", "finished"})


@dataclass
class House:
    """What the daemon gives to its sessions."""

    spool: Spool
    access: Access
    budget: Budget
    clients_budget: ClientsBudget
    say: Callable[[str, str], None]
    look: Callable[[], Look]
    handoff: Handoff
    reserve_bytes: int = 0
    totals: Counter[str] = field(default_factory=Counter)  # of all sessions that there were: samples, lost, runs
    ended: Used = field(default_factory=Used)  # by all runs that are over

    def __post_init__(self) -> None:
        self.facts = Facts(self.spool)

    def stretched(self, *, configured: bool) -> float:
        """By which intervals of a run are lengthened that begins now."""
        return (self.budget if configured else self.clients_budget).stretched


@dataclass(frozen=True)
class Order:
    """What is asked for: by whom, which processes, how, when, how much is kept; and by which processes, if any is
    ``asking``."""

    id: str
    owner: Credentials
    wanted: Wanted
    wishes: Wishes
    plan: rotation.Plan
    labels: dict[str, str] = field(default_factory=dict)
    keep: int = 20
    megabytes: int = 512
    configured: bool = False
    asking: frozenset[targets.Process] = frozenset()

    @cached_property
    def target(self) -> str:
        """The processes, in words that can be shown."""
        return shown(str(self.wanted))


class Session:
    """One of the daemon's sessions."""

    def __init__(self, order: Order, house: House, facts: dict[str, Any] | None = None) -> None:
        """``facts``: what was stored of it when the daemon ended."""
        facts = facts or {}
        self.order = order
        self.state = "waiting"
        self.message = ""
        self.said: list[str] = []
        self.began_s = float(facts.get("began_s", time.time()))
        self.n_runs = int(facts.get("n_runs", 0))
        self.n_samples = int(facts.get("n_samples", 0))
        self.n_lost = int(facts.get("n_lost", 0))
        self.n_failed = 0
        self.labels = dict(facts.get("labels", {})) | order.labels
        self.kept = [_kept(*each) for each in facts.get("kept", [])]
        self.folder = house.spool.path / str(facts["folder"]) if facts.get("folder") else Path()
        self.settled = asyncio.Event()
        self.held: list[Held] = []
        self._house = house
        self._child: Child | None = None
        self._factor = 1.0  # by which the interval of the run was lengthened
        self._rights = Rights.PEER
        self._current = ""
        self._current_bytes = 0
        self._n_lines = 0
        self._last = ""  # what the run said last
        self._built: tuple[object, dict[str, str]] = (None, {})
        self._scan_at_s = 0.0
        self._removals: set[asyncio.Future[None]] = set()
        self._newcomers = rotation.Newcomers()
        self._orders = -1  # a pipe to the run
        self._ended = asyncio.Event()
        self._looked = (time.monotonic(), 0.0, 0.0)
        self._shares = (0.0, 0.0)

    # -- its life

    async def live(self) -> None:
        """Until it is over. Whatever goes wrong is said of this session."""
        while self.state not in FOR_GOOD:
            try:
                while not self._ended.is_set() and await self._next():
                    pass
                if self.state not in FOR_GOOD:
                    self._become("stopped" if self._ended.is_set() else "finished")
            except Exception as err:
                self._note_failure(reason(err))
                await self._back_off()
        self.settled.set()
        await asyncio.shield(self._store())

    async def _next(self) -> bool:
        """Waits, or records once; whether there is more to do."""
        house, plan = self._house, self.order.plan
        now_s = time.time()
        window = rotation.next_window(plan, self.began_s, now_s, self.n_runs, self._stretched)
        if window is None:
            return False
        if window.begin_s > now_s:
            self._become("resting")
            await self._sleep(min(window.begin_s - now_s, _REST_S))
            if self._ended.is_set() or time.time() < window.begin_s:  # there may be another factor by now
                return not self._ended.is_set()
        if not self._make_room():
            await self._sleep(LOOK_S * 10)
            return True
        found = targets.find(self.order.wanted, self._judge, house.look, self.order.asking)
        if found.held:
            await self._record(found, window)
            return self.state not in FOR_GOOD
        why = "; ".join(found.refused[:3]) or f"there is no process of {self.order.wanted}"
        if self.order.wanted.pids or (found.refused and not self.order.configured and not self.n_runs):
            self._fail(why)
            return False
        self._become("waiting", why)
        await self._sleep(LOOK_S * self._stretched)
        return True

    def _judge(self, owner: census.Owner) -> Rights:
        if self.order.configured:
            return Rights.DAEMON
        found = peers.rights(self.order.owner, owner, self._house.access)
        # What goes on and may meet others' processes later has one place for its experiments, which is the daemon's.
        is_lasting = not self.order.wanted.pids and peers.may_record_others(self.order.owner, self._house.access)
        return Rights.DAEMON if is_lasting else found

    async def _record(self, found: Found, window: rotation.Window) -> None:
        """One run, from its processes to the closed experiment."""
        self.held, self._rights = found.held, found.rights
        self._become("starting", "; ".join(found.refused[:3]))
        try:
            self.folder = await self._house.spool.make(self.order.owner, found.rights, self.order.id)
            await self.label(found.held[0])
            if not self._ended.is_set():  # or it was meanwhile, when there was nobody to be told
                await self._run(window)
        finally:
            self._child, self._current = None, ""
            if self._orders >= 0:
                os.close(self._orders)
                self._orders = -1
            found.release()
            self.held = []
        await self._back_off()

    async def _back_off(self) -> None:
        """Waits a while where runs fail, longer each time."""
        if self.n_failed and self.state not in FOR_GOOD:
            await self._sleep(min(_RETRY_S * 2 ** min(self.n_failed, 16), _RETRY_MAX_S))

    async def _run(self, window: rotation.Window) -> None:
        self.n_runs += 1
        self._current = f"{self.order.id}.{self.n_runs}.er"
        self._current_bytes = self._n_lines = 0
        self._last = ""
        self._factor = self._stretched
        self._newcomers.begin(time.monotonic())
        await asyncio.shield(self._store())  # or nobody would know of what it has begun to write, if we were killed
        if self._ended.is_set():
            self.n_runs -= 1
            return
        self._house.totals["runs"] += 1
        reads, self._orders = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            fds = [reads, *(each.pidfd for each in self.held)]
            self._child = Child(self._argv(window, reads), self._listen, fds=fds)
        finally:
            os.close(reads)
        status = await asyncio.shield(self._child.ended)
        self._house.ended = self._house.ended.plus(self.used())
        self._child = None
        self._note_end(status)
        if self.state not in FOR_GOOD:
            self._become("waiting")

    async def label(self, first: Held) -> None:
        """The labels of the next run: those that were asked for, and what its first process is now."""
        self.labels = {**self.order.labels, **labelling.of_process(first.pid), **await self._build(first)}

    async def _build(self, first: Held) -> dict[str, str]:
        """The label of the program that a process runs; looked up once for each program of each process."""
        key = first.owner.start_ticks, labelling.program(first.pid)  # an exec does not change since when it lives
        if self._built[0] != key:
            command, found = labelling.build_id_command(first.pid), ""
            with suppress(CollectorError, asyncio.TimeoutError):
                found = await run(self._as(command), _BUILD_S)
            self._built = key, {"build": found} if _HEXADECIMAL.fullmatch(found) else {}
        return self._built[1]

    def _as(self, argv: list[str]) -> list[str]:
        """With the rights of this recording."""
        return as_peer(self.order.owner, argv) if self._rights is Rights.PEER else as_daemon(argv)

    def _argv(self, window: rotation.Window, orders: int) -> list[str]:
        order = self.order
        whole = self._rights is Rights.PEER or order.configured or peers.may_administer(order.owner, self._house.access)
        argv = [*command("collect", is_isolated=True), "-v", "-o", str(self.folder / self._current), "-y", f"@{orders}",
                *order.wishes.argv(self._factor, order.plan.rotate_megabytes, copies=whole)]
        argv += ["-t", f"{window.length_s:.1f}"] if window.length_s else []
        argv += [word for pair in self.labels.items() for word in ("--label", "=".join(pair))]
        argv += [word for each in self.held for word in ("-P", f"{each.pid}@{each.pidfd}")]  # this one or none
        return self._as(argv)

    def _listen(self, line: str) -> None:
        """A line that a run said. It may be anything: a user may do to its own run what it likes."""
        line = shown(line.removeprefix("collect: "))[:_LINE_MAX]
        if line.startswith("experiment ") and self.state == "starting":
            self._become("recording", self.message)
            self.n_failed = 0
            self.settled.set()
            self.watch()
            return
        self._n_lines += 1
        self._last = line
        if self._n_lines > _LINES_MAX:
            return
        self.said = [*self.said[1 - _SAID_MAX:], line]
        self._house.say("info", f"session {self.order.id}: {line}")

    def _note_end(self, status: int) -> None:
        path = self.folder / self._current
        if self._house.spool.exists(path):
            ended_s = max([time.time(), *(each.ended_s for each in self.kept)])  # clocks are set back, too
            self.kept.append(Kept(self._current, ended_s, self._house.spool.size(path),
                                  self._house.handoff.first_state(configured=self.order.configured),
                                  tuple(self.labels.items())))
            gone = retention.surplus(self.kept, self.order.keep, self.order.megabytes * MEGABYTE)
            self._delete([each for each in gone if each is not self.kept[-1]])  # that one is what it was recorded for
        if (counted := _N_SAMPLES.search(self._last)) is not None:
            n_samples, n_lost = int(counted[1]), sum(map(int, _LOST.findall(self._last)))
            self.n_samples += n_samples
            self.n_lost += n_lost
            self._house.totals.update(samples=n_samples, lost=n_lost)
        self._current = ""
        if status and not self._ended.is_set():
            self._note_failure(f"collect was ended by signal {-status}" if status < 0
                               else self._last or f"collect failed, status {status}")
        self._store()

    def _note_failure(self, how: str) -> None:
        """Of a run, or of its beginning: the end of what a client watches, not of what is to go on."""
        self.n_failed += 1
        if self.order.wanted.pids or (self.n_runs <= 1 and not self.order.configured):
            self._fail(how)
        else:
            self._become("waiting", shown(how))
            self._house.say("warning", f"session {self.order.id}: {self.message}; trying again")

    # -- what is done to it

    def watch(self) -> None:
        """Now and then, while it records: are the processes still those that may be recorded, and is there room?"""
        if self._child is None or self.state not in ("recording", "paused"):
            return
        for each in self.held:
            owner = census.owner(each.pid)
            if owner is not None and not self._still(each, owner):
                self._become(self.state, f"process {each.pid} is not what it was, or may not be recorded any more")
                self._house.say("warning", f"session {self.order.id}: {self.message}; recording ends")
                self.stop()
                return
        self._look_at_size()
        self._look_for_newcomers(time.monotonic())

    def _still(self, each: Held, owner: census.Owner) -> bool:
        if self._rights is Rights.DAEMON or owner.start_ticks != each.owner.start_ticks:
            return True  # or it has ended, which the run notices, who holds it as well
        return peers.relation(self.order.owner.uid, owner) is peers.Relation.OWN

    def _look_for_newcomers(self, now_s: float) -> None:
        """What came since the run began is recorded by a next one; by the next window, where there are windows."""
        order = self.order
        if self.state != "recording" or order.wanted.pids or order.plan.once or order.plan.period_s:
            return
        if not self._newcomers.is_due(now_s, self._stretched):
            return
        there = targets.newcomers(order.wanted, self.held, self._judge, self._house.look, order.asking)
        if came := self._newcomers.look(now_s, there):
            numbers = ", ".join(str(each.pid) for each in sorted(came)[:3])
            self._house.say("info", f"session {order.id}: this run ends, and the next records process {numbers}, too")
            self.signal(signal.SIGINT)

    def _look_at_size(self) -> None:
        began_s = time.monotonic()
        if began_s < self._scan_at_s:
            return
        self._current_bytes = self._house.spool.size(self.folder / self._current)
        took_s = time.monotonic() - began_s
        self._scan_at_s = began_s + max(_SCAN_S, took_s * _SCAN_SHARE)
        most = min(self.order.plan.rotate_megabytes or self.order.megabytes, self.order.megabytes)  # all processes'
        if not self._make_room() or self._current_bytes > most * MEGABYTE:
            self._house.say("notice", f"session {self.order.id}: this run ends, to stay within its megabytes")
            self.signal(signal.SIGINT)

    def _make_room(self) -> bool:
        """Deletes what is too much, this session's oldest first; whether more may be written."""
        order, house = self.order, self._house
        largest = max((each.n_bytes for each in self.kept[-_LATEST:]), default=0)
        wanted = min(max(self._current_bytes, round(largest * _MARGIN)), order.megabytes * MEGABYTE)
        room = retention.room(self.kept, order.keep - 1, order.megabytes * MEGABYTE, wanted,
                              house.spool.free_bytes(), house.reserve_bytes)
        for each in room.for_disk:
            house.say("notice", f"session {order.id}: {each.name} is deleted, for reserve_megabytes")
        self._delete(room.surplus + room.for_disk)
        if room.is_enough:
            return True
        self._become(self.state, f"the disk of the spool has less than its reserve ({house.reserve_bytes // MEGABYTE} "
                     "MB) left: nothing is recorded")
        return False

    def _delete(self, gone: Sequence[Kept]) -> None:
        for each in gone:
            self.kept.remove(each)
            self._house.handoff.note_deleted(each)
            self._remove(each)
        if gone:
            self._store()

    def _remove(self, kept: Kept) -> None:
        task = asyncio.ensure_future(self._house.spool.remove(self.order.owner, self.folder / kept.name))
        self._removals.add(task)
        task.add_done_callback(self._removals.discard)
        _go_on(task)

    async def _remove_folder(self) -> None:
        """When all that was to go is gone."""
        if self._removals:
            await asyncio.wait(self._removals)
        await self._house.spool.remove_empty(self.order.owner, self.folder)

    def owe(self, states: Mapping[str, str]) -> None:
        """Notes of experiments, by name, whether they are to be handed over; nothing of those that are gone."""
        kept = [each._replace(owed=states.get(each.name, each.owed)) for each in self.kept]
        if kept != self.kept:
            self.kept = kept
            self._store()

    def control(self, action: str) -> str:
        """Pause, resume, sample, stop; what was done. Raises CollectorError."""
        if action == "stop":
            self.stop()
            return "it ends"
        if self._child is None or self.state not in ("recording", "paused"):
            raise CollectorError(f"session {self.order.id} does not record now, it is {self.state}")
        if action == "sample":
            self._ask(Action.SAMPLE)
            return "an overview sample was taken"
        if (action == "pause") != (self.state == "recording"):
            return f"it is {self.state} already"
        self._ask(Action(action))
        self._become("paused" if action == "pause" else "recording")
        return f"it is {self.state}"

    def _ask(self, action: Action) -> None:
        """Its run, in order: signals that come soon after each other are one."""
        try:
            os.write(self._orders, ORDERS[action])
        except OSError as err:  # it has just ended, or has not listened for ages
            raise CollectorError(f"session {self.order.id} does not listen: {reason(err)}") from None

    def stop(self) -> None:
        """Ends it; its run closes the experiment."""
        self._ended.set()
        self.signal(signal.SIGINT)
        if self._child is not None:
            asyncio.get_running_loop().call_later(_CLOSE_S, self._child.signal, signal.SIGKILL)

    def signal(self, number: int) -> None:
        """To its run, if there is one."""
        if self._child is not None:
            self._child.signal(number)

    def forget(self) -> list[asyncio.Future[None]]:
        """Removes all that it left; when what is returned is done, the next session may have its number."""
        for each in self.kept:
            self._house.handoff.note_deleted(each)
            self._remove(each)
        going = [self._house.facts.put(self.order.id, None)]
        if self.relative_folder:
            going.append(asyncio.ensure_future(self._remove_folder()))
            _go_on(going[-1])
        return going

    # -- what is known of it

    def _become(self, state: str, message: str | None = None) -> None:
        self.state = state
        self.message = self.message if message is None else message[:2 * _LINE_MAX]
        if state in FOR_GOOD or state == "waiting":
            self.settled.set()

    def _fail(self, why: str) -> None:
        self._become("failed", shown(why))
        self._house.say("warning", f"session {self.order.id}: {self.message}")

    async def _sleep(self, seconds: float) -> None:
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._ended.wait(), max(seconds, 0.01))

    @property
    def _stretched(self) -> float:
        return self._house.stretched(configured=self.order.configured)

    def used(self) -> Used:
        """CPU seconds of its run, if there is one."""
        used_s = self._child.cpu_s if self._child is not None else 0.0
        if self.order.configured:
            return Used(runs_s=used_s, asked_s=used_s * self._factor)
        return Used(clients_s=used_s)

    @property
    def own_pid(self) -> int | None:
        """Of its run."""
        return None if self._child is None else self._child.pid

    @property
    def n_bytes(self) -> int:
        """On disk."""
        return self._current_bytes + sum(each.n_bytes for each in self.kept)

    @property
    def experiments(self) -> list[str]:
        """Names of its experiments, the oldest first."""
        return [each.name for each in self.kept] + ([self._current] if self._current else [])

    @property
    def relative_folder(self) -> str:
        """Below the spool; empty where nothing was recorded yet."""
        is_made = self.folder.is_relative_to(self._house.spool.path)
        return str(self.folder.relative_to(self._house.spool.path)) if is_made else ""

    def view(self) -> protocol.Session:
        """As a client sees it."""
        target, own = self._share()
        return protocol.Session(
            id=self.order.id, uid=self.order.owner.uid, state=self.state, target=self.order.target,
            directory=str(self.folder) if self.folder.name else "", began_s=self.began_s,
            configured=self.order.configured, pids=tuple(each.pid for each in self.held),
            labels={shown(name): shown(value) for name, value in self.labels.items()},
            experiments=tuple(self.experiments), n_bytes=self.n_bytes, n_samples=self.n_samples, n_runs=self.n_runs,
            interval=self.order.wishes.interval, share=target, own_share=own, message=shown(self.message),
            said=tuple(self.said), n_waiting=sum(each.owed == retention.WAITING for each in self.kept),
            n_refused=sum(each.owed == retention.REFUSED for each in self.kept))

    def _share(self) -> tuple[float, float]:
        """Parts of a CPU that its processes and its run had since somebody looked last, a second ago or more."""
        now_s, (at_s, before, own_before) = time.monotonic(), self._looked
        if now_s - at_s >= LOOK_S:
            used, own = sum(census.cpu_s(each.pid) for each in self.held), census.cpu_s(self.own_pid or 0)
            self._shares = max((used - before) / (now_s - at_s), 0.0), max((own - own_before) / (now_s - at_s), 0.0)
            self._looked = now_s, used, own
        return self._shares

    def _store(self) -> asyncio.Future[None]:
        order = self.order
        facts = {"owner": [order.owner.uid, order.owner.gid, list(order.owner.groups)], "began_s": self.began_s,
                 "wanted": order.wanted._asdict(), "options": list(order.wishes.options), "labels": self.labels,
                 "interval_ns": order.wishes.interval_ns, "n_runs": self.n_runs, "n_samples": self.n_samples,
                 "n_lost": self.n_lost, "state": self.state, "message": self.message, "current": self._current,
                 "configured": order.configured, "folder": self.relative_folder, "kept": [list(k) for k in self.kept]}
        return self._house.facts.put(order.id, facts)


_pending: set[asyncio.Future[None]] = set()  # deletions at work: the loop itself holds its tasks weakly


def _go_on(task: asyncio.Future[None]) -> None:
    _pending.add(task)
    task.add_done_callback(_pending.discard)


def _kept(name: Any, ended_s: Any, n_bytes: Any, owed: Any = "", labels: Any = ()) -> Kept:
    """An experiment as it was stored. Raises TypeError, ValueError."""
    return Kept(str(name), float(ended_s), int(n_bytes), str(owed), tuple((str(each), str(of)) for each, of in labels))


def restored(session_id: str, facts: dict[str, Any], house: House) -> Session:
    """A session of before the daemon's start, which is over. Raises KeyError, TypeError, ValueError."""
    uid, gid, groups = facts["owner"]
    order = Order(session_id, Credentials(int(uid), int(gid), tuple(map(int, groups))),
                  Wanted(**facts["wanted"] | {"pids": tuple(facts["wanted"]["pids"])}),
                  Wishes(int(facts["interval_ns"]), tuple(facts["options"])), rotation.Plan(once=True),
                  configured=bool(facts["configured"]))
    session = Session(order, house, with_current(session_id, facts, house))
    was = str(facts["state"])
    session.state = was if was in FOR_GOOD else "finished"
    session.message = str(facts["message"]) if was in FOR_GOOD else "it ended with the daemon"
    return session


def with_current(session_id: str, facts: dict[str, Any], house: House) -> dict[str, Any]:
    """The facts, with the experiment that was being written when the daemon ended among those that are kept; of what
    the configuration asks for also all others that are there, be the facts old or lost."""
    name, spool = str(facts.get("current", "")), house.spool
    folder = str(facts.get("folder", "")) or f"own/{session_id}"
    labels = list(dict(facts.get("labels", {})).items())  # the run's that was under way
    kept = [list(each) for each in facts.get("kept", [])]
    if name and os.path.basename(name) == name and spool.exists(spool.path / folder / name):
        owed = house.handoff.first_state(configured=bool(facts.get("configured")))
        kept.append([name, time.time(), spool.size(spool.path / folder / name), owed, labels])
    found = spool.found(session_id) if not session_id.isdigit() else []
    known = {each[0] for each in kept}
    kept += [[each, changed_s, spool.size(spool.path / folder / each)] for _, each, changed_s in found
             if each not in known]
    n_runs = max([int(facts.get("n_runs", 0)), *(run for run, _, _ in found)])
    return facts | {"kept": sorted(kept, key=lambda each: each[1]), "current": "", "n_runs": n_runs,
                    "folder": folder if kept else facts.get("folder", "")}
