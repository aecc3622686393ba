"""From what is wanted (numbers, a unit, a control group, a command) to processes that are held.

All sessions share one ``Look`` at ``/proc``, which may be half a second old. What it finds is a guess: a process is
held by a pidfd first, then asked once more where it belongs, and that is good if the pidfd says afterwards that it
still lives. A run of ``collect`` is handed the pidfd, so that it records this process or none.
"""

from __future__ import annotations

import os
import re
import select
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, NamedTuple

from collector.errors import UsageError
from collector.experiment.names import shown
from collector.linux import census
from collector.linux.census import Owner
from collector.service.peers import Refused, Rights

PROCESSES_MAX = 256
_ASKS = re.compile("(?:.*/)?collectctl").fullmatch


class Wanted(NamedTuple):
    """One of the four."""

    pids: tuple[int, ...] = ()
    unit: str | None = None
    cgroup: str | None = None
    command: str | None = None

    def __str__(self) -> str:
        if self.pids:
            return f"process {', '.join(map(str, self.pids))}"
        return next(f"{name} {value}" for name, value in self._asdict().items() if name != "pids" and value)


def check(wanted: Wanted) -> None:
    """Raises UsageError unless exactly one is asked for, and can be."""
    if sum(map(bool, wanted)) != 1:
        raise UsageError("give one of: a process, a unit, a control group, a command")
    if wanted.command:
        _pattern(wanted.command)
    if wanted.unit and ("/" in wanted.unit or not wanted.unit.strip(".")):
        raise UsageError(f"unit {shown(wanted.unit)}: give the name of a unit, such as nginx.service")
    if wanted.cgroup and not wanted.cgroup.startswith("/"):
        raise UsageError(f"control group {shown(wanted.cgroup)}: give its path from the root, such as "
                         "/system.slice/nginx.service")


def _pattern(text: str) -> Any:
    """Compiled by RE2, whose time goes with the text's length, whatever a client sends. Raises UsageError."""
    import re2

    options = re2.Options()
    options.log_errors = False
    options.max_mem = 1 << 20
    try:
        return re2.compile(text, options)
    except re2.error as err:
        why = err.args[0] if err.args else "not a regular expression"
        raise UsageError(f"command {shown(text)}: {shown(os.fsdecode(why))}") from None


class Held(NamedTuple):
    """A process, held by a pidfd, and whose it was."""

    pid: int
    pidfd: int
    owner: Owner

    def lives(self) -> bool:
        """Whether it has not ended."""
        poller = select.poll()
        poller.register(self.pidfd, select.POLLIN)
        return not poller.poll(0)

    def release(self) -> None:
        """Holds it no longer."""
        os.close(self.pidfd)


class Process(NamedTuple):
    """A process, by its number and since when it lives."""

    pid: int
    start_ticks: int


class Look:
    """Processes by where they belonged and what their command lines were; read once, when the first session asks."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = pids

    @cached_property
    def of_cgroups(self) -> dict[str, list[int]]:
        """The processes of each control group."""
        groups = defaultdict(list)
        for pid in self._pids:
            groups[census.cgroup(pid)].append(pid)
        return groups

    @cached_property
    def commands(self) -> list[tuple[int, str]]:
        """Those that have a command line, and it."""
        return [(pid, shown(words)) for pid in self._pids if (words := census.arguments(pid))]


class Found(NamedTuple):
    """The processes that may be recorded, as whom, and why others may not."""

    held: list[Held]
    rights: Rights
    refused: list[str]

    def release(self) -> None:
        """Holds them no longer."""
        for each in self.held:
            each.release()


def find(wanted: Wanted, judge: Callable[[Owner], Rights], look: Callable[[], Look],
         asking: frozenset[Process] = frozenset()) -> Found:
    """Processes that are there now; ``judge`` says as whom one may be recorded, or raises Refused. A command does not
    mean those that are ``asking`` for it."""
    held: list[Held] = []
    every: set[Rights] = set()
    refused: list[str] = []
    is_wanted = _test(wanted)
    for pid in _candidates(wanted, look, asking):
        if len(held) == PROCESSES_MAX:
            refused.append(f"there are more than {PROCESSES_MAX} processes; the others are not recorded")
            break
        each = hold(pid, is_wanted)
        if each is None:
            refused += [f"process {pid}: there is no such process"] if wanted.pids else []
            continue
        try:
            if not wanted.pids and each.owner.is_kernel:
                raise Refused("of the kernel")
            every.add(judge(each.owner))
            held.append(each)
        except Refused as err:
            each.release()
            refused.append(f"process {pid}: {err}")
    return Found(held, Rights.DAEMON if Rights.DAEMON in every else Rights.PEER, refused)


def newcomers(wanted: Wanted, held: Sequence[Held], judge: Callable[[Owner], Rights], look: Callable[[], Look],
              asking: frozenset[Process] = frozenset()) -> frozenset[Process]:
    """Processes that may be recorded and are not: neither held nor below one that is."""
    found: set[Process] = set()
    if len(held) >= PROCESSES_MAX:
        return frozenset()
    recorded, is_wanted = {each.pid for each in held}, _test(wanted)
    for pid in _candidates(wanted, look, asking):
        if pid in recorded or not recorded.isdisjoint(census.ancestors(pid)):
            continue
        each = hold(pid, is_wanted)  # not who has ended and waits for its parent
        if each is None:
            continue
        with suppress(Refused):
            if not each.owner.is_kernel and judge(each.owner):
                found.add(Process(pid, each.owner.start_ticks))
        each.release()
    return frozenset(found)


def callers(pid: int, command: str) -> frozenset[Process]:
    """A client that asks for a command, and who called it for that: as far as they have it in their arguments."""
    found: set[Process] = set()
    for each in (pid, *census.ancestors(pid)):
        owner = census.owner(each)
        if owner is None or shown(command) not in shown(census.arguments(each)):
            break
        found.add(Process(each, owner.start_ticks))
    return frozenset(found)


def hold(pid: int, is_wanted: Callable[[int], bool] = bool) -> Held | None:
    """None where there is no such process, or it is not the one that is wanted any more."""
    try:
        pidfd = os.pidfd_open(pid)
    except (OSError, OverflowError):
        return None
    owner = census.owner(pid)
    each = owner and Held(pid, pidfd, owner)
    if not each or not is_wanted(pid) or not each.lives():
        os.close(pidfd)
        return None
    return each


def _candidates(wanted: Wanted, look: Callable[[], Look], asking: frozenset[Process] = frozenset()) -> Iterator[int]:
    if wanted.pids:
        yield from dict.fromkeys(wanted.pids)
    elif wanted.command:
        matches = _matching(wanted.command)
        yield from (pid for pid, words in look().commands if matches(words) and not _is_among(pid, asking))
    else:
        yield from sorted(pid for path, pids in look().of_cgroups.items() if _is_in(path, wanted) for pid in pids)


def _is_among(pid: int, processes: frozenset[Process]) -> bool:
    numbered = [each for each in processes if each.pid == pid]
    owner = census.owner(pid) if numbered else None
    return owner is not None and Process(pid, owner.start_ticks) in numbered


def _test(wanted: Wanted) -> Callable[[int], bool]:
    """Whether a process is wanted, by what is so now."""
    if wanted.pids:
        return bool
    if wanted.command:
        matches = _matching(wanted.command)
        return lambda pid: bool((words := census.arguments(pid)) and matches(shown(words)))
    return lambda pid: _is_in(census.cgroup(pid), wanted)


def _matching(text: str) -> Callable[[str], bool]:
    """Whether a command line matches. Who asks for it has the expression in its own, and so have those that call it:
    sudo, timeout, a shell's -c."""
    search = _pattern(text).search
    return lambda words: bool(search(words)) and not any(map(_ASKS, words.split()))


def _is_in(path: str, wanted: Wanted) -> bool:
    if wanted.unit:
        return wanted.unit in path.split("/")
    return f"{path.rstrip('/')}/".startswith(f"{(wanted.cgroup or '').rstrip('/')}/")
