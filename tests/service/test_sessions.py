"""Sessions and what is known of them, without a recording."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from collector.linux.peers import Credentials
from collector.service import labels, sessions, targets
from collector.service.daemon import Daemon, Settings
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


def session_of(daemon: Daemon, name: str, facts: dict[str, Any] | None = None, **more: Any) -> Session:
    order = Order(name, US, Wanted(unit="web.service"), Wishes(10_007_000, ()), Plan(), **more)
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
