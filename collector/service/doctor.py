"""What is wrong with the daemon, in plain words, each with what to do."""

from __future__ import annotations

import os
import resource
import shutil
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from collector.linux import proc
from collector.linux.peers import Credentials
from collector.service import peers
from collector.service.protocol import Finding
from collector.service.retention import MEGABYTE, REFUSED, WAITING
from collector.wording import many

if TYPE_CHECKING:
    from collector.service.daemon import Daemon

_CAP_IPC_LOCK = 14
_LOCKED_MIN = 64 * MEGABYTE
_CAPABILITIES = {19: "CAP_SYS_PTRACE", 38: "CAP_PERFMON"}


def examine(daemon: Daemon, peer: Credentials) -> Iterator[Finding]:
    """What may be told to the peer; the first ones are about the peer."""
    standing = peers.standing(peer, daemon.house.access)
    yield Finding(standing is peers.Standing.STRANGER, {
        peers.Standing.ROOT: "you may record everything",
        peers.Standing.MEMBER: "you may record everything, as a member of the group",
        peers.Standing.ORDINARY: "you may record processes of your own",
        peers.Standing.STRANGER: "you may record nothing here: [access] users is false, or the daemon is an ordinary "
                                 "user's: ask who runs it"}[standing])
    yield from _rights(daemon)
    yield from _disk(daemon)
    yield from _budget(daemon)
    may_see = peers.may_see_configured(peer, daemon.house.access)
    yield from _handoff(daemon, may_see=may_see)
    if daemon.config_error and may_see:
        yield Finding(True, f"the configuration was not read again: {daemon.config_error}")
    if standing is peers.Standing.ROOT:
        for session in daemon.sessions.values():
            if session.state == "failed" or (session.message and session.state == "waiting"):
                yield Finding(True, f"session {session.order.id} is {session.state}: {session.message}")
            if session.n_lost:
                yield Finding(True, f"session {session.order.id} lost {many(session.n_lost, 'record')}: lengthen its "
                                    "interval (-p), or give the machine more CPU")


def _rights(daemon: Daemon) -> Iterator[Finding]:
    held = int(proc.status(os.getpid()).get(b"CapEff", b"0"), 16)
    lacking = [name for number, name in _CAPABILITIES.items() if not held >> number & 1]
    if lacking:
        yield Finding(True, f"the daemon lacks {' and '.join(lacking)}: it sees only what its user may (run it as "
                            "root, or by collectord.service)")
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if 0 <= locked < _LOCKED_MIN and not held >> _CAP_IPC_LOCK & 1:
        yield Finding(True, f"the daemon may lock {locked // MEGABYTE} MB of memory and no more: rings of perf events "
                            "are small, and waits of busy programs lose their stacks (LimitMEMLOCK=infinity of its "
                            "unit, ulimit -l)")
    paranoid = proc.parameter("kernel/perf_event_paranoid")
    if paranoid is not None and paranoid > 2 and daemon.house.access.may_become:
        yield Finding(True, f"kernel.perf_event_paranoid is {paranoid}: sessions of ordinary users take the signal "
                            "engine (sysctl kernel.perf_event_paranoid=2 allows them perf events)")
    if shutil.which("setpriv") is None:
        yield Finding(True, "setpriv is missing, without which no session begins: apt-get install util-linux")
    if not daemon.house.access.may_become:
        yield Finding(False, "the daemon runs as an ordinary user and records what is that user's")


def _disk(daemon: Daemon) -> Iterator[Finding]:
    free, reserve = daemon.spool.free_bytes(), daemon.house.reserve_bytes
    used = sum(session.n_bytes for session in daemon.sessions.values())
    text = (f"{used // MEGABYTE} MB of experiments, {free // MEGABYTE} MB free, "
            f"{reserve // MEGABYTE} MB of them in reserve")
    wrong = free < reserve
    yield Finding(wrong, text + (": nothing is recorded until there is room; free some, or lower reserve_megabytes"
                                 if wrong else ""))


def _budget(daemon: Daemon) -> Iterator[Finding]:
    budget = daemon.house.budget
    text = f"recording takes {100 * budget.share:.2f} % of a CPU, of {budget.percent:g} % allowed"
    if budget.is_over:
        yield Finding(True, f"{text}, with intervals as long as they may be: record less, or raise budget_percent")
    elif budget.stretched > 1:
        yield Finding(False, f"{text}: intervals are {budget.stretched:.1f} times what was asked for")
    else:
        yield Finding(False, text)
    clients = daemon.house.clients_budget
    if clients.share:
        longer = f": the next begins with intervals {clients.stretched:.1f} times as long" * (clients.stretched > 1)
        yield Finding(False, f"what clients asked for takes {100 * clients.share:.2f} % beside that{longer}")


def _handoff(daemon: Daemon, *, may_see: bool) -> Iterator[Finding]:
    """``may_see``: also names of experiments, and what a command or a server said of them."""
    handoff = daemon.handoff
    if handoff.settings is None:
        return
    owed = [kept for _, kept in handoff.owed()]
    waiting, refused = ([kept for kept in owed if kept.owed == state] for state in (WAITING, REFUSED))
    if refused:
        were = many(len(refused), "experiment was refused by the handoff and is kept",
                    "experiments were refused by the handoff and are kept")
        name = f", the oldest {refused[0].name}" if may_see else ""
        yield Finding(True, f"{were}{name}: mend what is wrong, and have it tried again (collectctl reload)")
    if lost := handoff.counts["given_up"] + handoff.counts["deleted"]:
        were = many(lost, "experiment was not handed over before it", "experiments were not handed over before they")
        yield Finding(True, f"{were} had to go: raise spool_megabytes of [handoff], or make room on the disk")
    since = f", the oldest for {max(time.time() - waiting[0].ended_s, 0):.0f} s" if waiting else ""
    trouble = f"; what went wrong last: {handoff.trouble}" * bool(handoff.trouble and may_see)
    done = many(handoff.counts["done"], "experiment was", "experiments were")
    wait = many(len(waiting), "waits", "wait")
    yield Finding(bool(handoff.trouble), f"{done} handed over, {wait}{since}{trouble}")
