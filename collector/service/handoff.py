"""Finished experiments go to a command, or as profiles to a URL, whose disk and network are not ours to count on.

    closed -> waiting --attempt--> handed over
                 ^         |
                 |         +-- LATER: the receiver is not there; nothing is tried until a pause is over, without end
                 +---------+-- FAILED: this one; it waits alone, and is refused after ``attempts``
                           +-- REFUSED, until the configuration is read again

What is owed stays, beside what the session's own limits keep, up to the handoff's ``spool_megabytes``; of more, the
oldest are given up. The state stands with the session's experiments (``Kept.owed``), so it outlives the daemon.

Each attempt is one process or, for a URL, two (``er_export`` into the experiment's folder, then ``push``), with the
rights of whose the experiment is and no capability. The loop waits for none of them. One runs for each user at a time,
so that nobody's keeps the others' waiting, and one in all while the receiver is not there.
"""

from __future__ import annotations

import asyncio
import re
import signal
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from typing import NamedTuple
from zlib import crc32

from collector.errors import CollectorError, reason
from collector.experiment.names import shown
from collector.installed import command
from collector.linux.peers import Credentials
from collector.service import config, push
from collector.service.children import Child, as_peer
from collector.service.retention import MEGABYTE, REFUSED, WAITING, Kept, too_much_owed
from collector.service.sessions import Session
from collector.service.spool import Spool

KINDS = {"pprof": ("application/octet-stream", ".pprof.pb.gz"), "speedscope": ("application/json", ".speedscope.json"),
         "firefox": ("application/json", ".firefox.json"), "collapsed": ("text/plain", ".collapsed.txt"),
         "perfetto": ("application/octet-stream", ".perfetto-trace"), "callgrind": ("text/plain", ".callgrind.out"),
         "json": ("application/json", ".profile.json"), "parquet": ("application/vnd.apache.parquet", ".parquet"),
         "otlp": ("application/x-protobuf", ".otlp.pb")}  # content type; how a file's name ends, as of er_export
PAUSE_MAX_S = 900.0
_AT_ONCE = 4
_MERCY_S = 5.0
_LINES_MAX, _LINE_MAX = 20, 500
_RETRY_AFTER = re.compile(r"retry-after: ([0-9]{1,6})")
_NICE = ("nice", "-n", "10", "--")


class Result(Enum):
    """What came of an attempt."""

    DONE = "done"
    LATER = "later"
    FAILED = "failed"
    REFUSED = "refused"


class Outcome(NamedTuple):
    """Of an attempt: the result, why, and for how long the receiver wants not to be asked."""

    result: Result
    why: str = ""
    wait_s: float = 0.0


class Item(NamedTuple):
    """An experiment that is owed, by the session's name and its own."""

    session: str
    name: str


class Tried(NamedTuple):
    """How often an experiment was refused, and when it may be tried again."""

    n: int = 0
    not_before_s: float = 0.0


def pause_s(first_s: float, n: int, name: str) -> float:
    """After the n-th failure in a row (from 1): doubled each time, up to ``PAUSE_MAX_S``; a quarter more or less by
    name, so that a hundred machines do not ask at once."""
    return min(first_s * 2.0 ** min(n - 1, 32), PAUSE_MAX_S) * (0.75 + crc32(name.encode()) / 2 ** 33)


class Handoff:
    """The queue of one daemon. ``sessions`` are the daemon's own."""

    def __init__(self, spool: Spool, sessions: Mapping[str, Session], say: Callable[[str, str], None],
                 now_s: Callable[[], float]) -> None:
        self.settings: config.Handoff | None = None
        self.counts: Counter[str] = Counter(done=0, later=0, failed=0, refused=0, given_up=0, deleted=0)
        self.trouble = ""  # what went wrong last, until something goes well
        self._spool, self._sessions, self._say, self._now_s = spool, sessions, say, now_s
        self._running: dict[Item, tuple[int, asyncio.Task[None]]] = {}  # and whose
        self._tried: dict[Item, Tried] = {}
        self._n_pauses = 0
        self._paused_until_s = 0.0
        self._is_closed = False

    # -- what is owed

    def configure(self, settings: config.Handoff | None) -> None:
        """Takes the configuration; what was refused before may be right now."""
        self.settings = settings
        self._n_pauses, self._paused_until_s = 0, 0.0
        self._tried.clear()
        for session in self._sessions.values():
            state = self.first_state(configured=session.order.configured)
            session.owe({kept.name: state for kept in session.kept if kept.owed})

    def first_state(self, *, configured: bool) -> str:
        """Of an experiment that has just been closed, of a session of the configuration's or a user's."""
        return WAITING if self.settings is not None and (configured or self.settings.users) else ""

    def owed(self) -> list[tuple[Item, Kept]]:
        """All that waits, and what was refused; the oldest first."""
        found = [(Item(session_id, kept.name), kept) for session_id, session in self._sessions.items()
                 for kept in session.kept if kept.owed]
        return sorted(found, key=lambda each: each[1].ended_s)

    def note_deleted(self, kept: Kept) -> None:
        """One that was owed had to go, for the disk's sake or with its session."""
        if kept.owed:
            self.counts["deleted"] += 1
            self._say("warning", f"handoff: {kept.name} is deleted before it was handed over")

    # -- attempts

    def look(self) -> None:
        """Now and then, and when a pause is over: gives up what is too much, begins what is due."""
        if self.settings is None or self._is_closed:
            return
        owed = self.owed()
        are_owed = {item for item, _ in owed}
        self._tried = {item: tried for item, tried in self._tried.items() if item in are_owed}
        self._give_up(owed, self.settings.spool_megabytes)
        now_s = self._now_s()
        if now_s < self._paused_until_s:
            return
        for item in sorted((item for item, kept in owed if kept.owed == WAITING), key=self._turn):
            if len(self._running) >= (1 if self._n_pauses else _AT_ONCE):
                return
            self._begin(item, now_s)

    def _give_up(self, owed: Sequence[tuple[Item, Kept]], megabytes: int) -> None:
        """The oldest of what is more than that."""
        gone: dict[str, dict[str, str]] = {}
        for name, kept in too_much_owed([(item.session, kept) for item, kept in owed], megabytes * MEGABYTE):
            self.counts["given_up"] += 1
            self._say("warning", f"handoff: {kept.name} is given up: more than {megabytes} MB wait")
            gone.setdefault(name, {})[kept.name] = ""
        for name, states in gone.items():
            self._sessions[name].owe(states)

    def _turn(self, item: Item) -> int:
        """Those that failed least often come first, of them the oldest."""
        return self._tried.get(item, Tried()).n

    def _begin(self, item: Item, now_s: float) -> None:
        session = self._sessions[item.session]
        owner = self._spool.owner(session.order.owner, session.folder)
        if (item in self._running or any(owner.uid == uid for uid, _ in self._running.values())
                or now_s < self._tried.get(item, Tried()).not_before_s
                or not any(kept.name == item.name and kept.owed == WAITING for kept in session.kept)):
            return
        task = asyncio.ensure_future(self._attempt(item, owner))
        self._running[item] = owner.uid, task

    async def _attempt(self, item: Item, owner: Credentials) -> None:
        settings = self.settings
        try:
            outcome = await self._deliver(item, owner)
        except CollectorError as err:
            outcome = Outcome(Result.FAILED, str(err))
        except Exception as err:
            outcome = Outcome(Result.FAILED, reason(err))
        finally:
            del self._running[item]
        if self.settings is settings or outcome.result is Result.DONE:  # else it waits, for those that were read since
            self._note(item, outcome)
        self.look()

    def _note(self, item: Item, outcome: Outcome) -> None:
        settings, session = self.settings, self._sessions.get(item.session)
        if settings is None or session is None:
            return
        self.counts[outcome.result.value] += 1
        if outcome.result is Result.DONE:
            self._n_pauses, self.trouble = 0, ""
            self._tried.pop(item, None)
            session.owe({item.name: ""})
            return
        tried = self._tried.get(item, Tried())
        now_s = self._now_s()
        self.trouble = f"{item.name}: {outcome.why}"
        if outcome.result is Result.LATER:
            self._n_pauses += 1
            wait_s = max(pause_s(settings.retry_s, self._n_pauses, item.name), outcome.wait_s)
            self._paused_until_s = now_s + wait_s
            self._try_again(item, Tried(tried.n, now_s + wait_s), wait_s)
            return
        n = tried.n + 1
        if outcome.result is Result.FAILED and n < settings.attempts:
            wait_s = pause_s(settings.retry_s, n, item.name)
            self._try_again(item, Tried(n, now_s + wait_s), wait_s)
            return
        self.counts["refused"] += outcome.result is Result.FAILED
        session.owe({item.name: REFUSED})
        self._say("warning", f"handoff: {self.trouble}; it is kept, and tried again when the configuration is read")

    def _try_again(self, item: Item, tried: Tried, wait_s: float) -> None:
        self._tried[item] = tried
        self._say("notice", f"handoff: {self.trouble}; again in {wait_s:.0f} s")
        asyncio.get_running_loop().call_later(wait_s, self.look)

    async def _deliver(self, item: Item, owner: Credentials) -> Outcome:
        """One attempt, from its first process to the end of its last."""
        settings, session = self.settings, self._sessions[item.session]
        assert settings is not None
        labels = dict(next((kept.labels for kept in session.kept if kept.name == item.name), ()))
        path = session.folder / item.name
        if settings.command:
            words = [word.replace("{}", str(path)) for word in settings.command]
            words += [] if words != list(settings.command) else [str(path)]
            return await self._run(item, as_peer(owner, [*_NICE, *words]), settings.timeout_s)
        content, suffix = KINDS[settings.format]
        profile = path / f".handoff{suffix}"
        if not self._spool.has_file(profile):
            made = await self._run(item, as_peer(owner, [*_NICE, *_export(settings.format, str(path), str(profile))]),
                                   settings.timeout_s)
            if made.result is not Result.DONE:
                return made._replace(result=Result.FAILED)
        url = push.filled(settings.url, labels | {"experiment": item.name.removesuffix(".er"), "session": item.session})
        argv = push.command(url, settings.method, content, item.name, str(profile))
        sent = await self._run(item, as_peer(owner, argv), settings.timeout_s, quiet=True)
        if sent.result in (Result.DONE, Result.REFUSED):
            await self._spool.remove(owner, profile)
        return sent

    async def _run(self, item: Item, argv: Sequence[str], within_s: float, *, quiet: bool = False) -> Outcome:
        """A process to its end, or what there is of it when its time is over."""
        said: deque[str] = deque(maxlen=_LINES_MAX)  # the last ones: why, a process says in the end

        def listen(line: str) -> None:
            is_told = not quiet and len(said) < _LINES_MAX
            said.append(shown(line)[:_LINE_MAX])
            if is_told:
                self._say("info", f"handoff: {item.name}: {said[-1]}")

        child = Child(argv, listen)
        try:
            status = await asyncio.wait_for(asyncio.shield(child.ended), within_s)
        except TimeoutError:
            await _end(child, within_s)
            return Outcome(Result.LATER if quiet else Result.FAILED, f"it took more than {within_s:g} s")
        except asyncio.CancelledError:
            await _end(child, within_s)
            raise
        return _judged(status, said)

    async def close(self) -> None:
        """Ends what runs, begins no more; all is owed as before."""
        self._is_closed = True
        tasks = [task for _, task in self._running.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


def _export(name: str, path: str, out: str) -> list[str]:
    """The command ``er_export`` of this installation."""
    return [*command("er_export", is_isolated=True), name, "-o", out, path]


async def _end(child: Child, within_s: float) -> None:
    """It and all of its process group; first by a word, then by force, no later than it had time for its work."""
    child.signal_group(signal.SIGTERM)
    with suppress(TimeoutError):
        await asyncio.wait_for(asyncio.shield(child.ended), min(_MERCY_S, within_s))
    child.signal_group(signal.SIGKILL)
    with suppress(TimeoutError):
        await asyncio.wait_for(asyncio.shield(child.ended), _MERCY_S)


def _judged(status: int, said: Sequence[str]) -> Outcome:
    """What a process means by its exit status, see sysexits.h."""
    waits = [int(found[1]) for line in said if (found := _RETRY_AFTER.fullmatch(line))]
    how = f"it was ended by signal {-status}" if status < 0 else f"exit status {status}"
    why = f"{how}: {said[-1]}" if said and status not in (push.LATER, push.REFUSED) else said[-1] if said else how
    result = {0: Result.DONE, push.LATER: Result.LATER, push.REFUSED: Result.REFUSED}.get(status, Result.FAILED)
    return Outcome(result, why, min(float(waits[-1]), push.RETRY_AFTER_MAX_S) if waits else 0.0)
