"""What is known of sessions, written by a thread: the disk's time is not the loop's.

A write is whole and on the disk before it is told, which takes as long as the disk likes. One is at work at a time; of
each session the latest facts wait for it, and replace those that waited before.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

from collector.service.spool import Spool

_Waiting = tuple[dict[str, Any] | None, asyncio.Future[None]]


class Facts:
    """Of all sessions of a daemon."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._waiting: dict[str, _Waiting] = {}
        self._last: dict[str, asyncio.Future[None]] = {}  # of each session that is not on the disk as it was put last
        self._writing: asyncio.Future[None] | None = None
        self._thread = ThreadPoolExecutor(1)  # others may remove large experiments for a while

    def put(self, session_id: str, facts: dict[str, Any] | None) -> asyncio.Future[None]:
        """Keeps them, or with None nothing of the session; what is returned is done when they, or later ones, are on
        the disk, or cannot be."""
        before = self._waiting.get(session_id)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future() if before is None else before[1]
        self._waiting[session_id] = facts, done
        self._last[session_id] = done
        if self._writing is None or self._writing.done():
            self._writing = asyncio.ensure_future(self._write())
        return done

    async def of(self, session_id: str) -> dict[str, Any]:
        """As they were put last. Raises OSError, ValueError."""
        if session_id in self._last:
            await asyncio.shield(self._last[session_id])
        return self._spool.facts(session_id)

    async def written(self) -> None:
        """When nothing waits any more."""
        if self._writing is not None:
            await asyncio.wait([self._writing])

    async def _write(self) -> None:
        while self._waiting:
            session_id = next(iter(self._waiting))
            facts, done = self._waiting.pop(session_id)
            work = (partial(self._spool.forget, session_id) if facts is None
                    else partial(self._spool.store, session_id, facts))
            try:
                await asyncio.get_running_loop().run_in_executor(self._thread, work)
            except RuntimeError:  # there can be no thread
                with suppress(OSError):
                    work()
            except OSError:
                pass
            finally:
                if self._last[session_id] is done:
                    del self._last[session_id]
                done.set_result(None)
