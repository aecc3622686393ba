"""The configuration: TOML in, settings out. Pure; a mistake names its line.

    [daemon]                        [[target]]                     one recording that goes on all the time
    budget_percent = 2.0            name = "web"
    reserve_megabytes = 1024        unit = "nginx.service"         or command = "REGEX", or cgroup = "/PATH"
    metrics = "/run/metrics.sock"   options = ["-p", "hi"]         of collect
    metrics_mode = "0660"
    [access]                        record_s = 10                  10 s
    group = "profilers"             every_s = 60                   of every 60
    users = true                    rotate_s = 3600
    [limits]                        rotate_megabytes = 64
    sessions_per_user = 8           keep = 60
    [handoff]                       megabytes = 512
    command = ["keep", "{}"]        labels = { tier = "front" }
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal
from zlib import crc32

import msgspec
from msgspec import Meta, Struct

from collector.errors import CollectorError, UsageError
from collector.service import push, wishes
from collector.service.protocol import NAME, Labels, Text
from collector.service.rotation import Plan
from collector.service.targets import Wanted, check

_Count = Annotated[int, Meta(ge=0, le=1_000_000_000)]
_Positive = Annotated[int, Meta(ge=1, le=1_000_000_000)]
_RECORD_MIN_S = 0.1
_Seconds = Annotated[float, Meta(ge=0, le=31_536_000)]


class ConfigError(CollectorError):
    """The configuration cannot be used; the message names the file and the line."""


class Daemon(Struct, frozen=True, forbid_unknown_fields=True):
    """The table ``[daemon]``."""

    budget_percent: Annotated[float, Meta(ge=0, le=10_000)] = 2.0
    reserve_megabytes: _Count = 1024
    metrics: Text = ""
    metrics_mode: Annotated[str, Meta(pattern="^0?[0-7]{3}$")] = "0600"


class AccessTable(Struct, frozen=True, forbid_unknown_fields=True):
    """The table ``[access]``."""

    group: Text = ""
    users: bool = True


class Limits(Struct, frozen=True, forbid_unknown_fields=True):
    """The table ``[limits]``: of each ordinary user. ``sessions``: of all, root's and configured ones included; who
    does not read for ``silence_s`` is let go."""

    sessions: _Positive = 64
    sessions_per_user: _Positive = 8
    connections_per_user: _Positive = 32
    requests_per_second: _Positive = 20
    silence_s: Annotated[float, Meta(ge=1, le=3600)] = 60.0
    experiments_per_session: _Positive = 20
    megabytes_per_session: _Positive = 512
    finished_per_user: _Positive = 20


class Handoff(Struct, frozen=True, forbid_unknown_fields=True):
    """The table ``[handoff]``: what finished experiments are given to: a command, or as profiles a URL."""

    command: Annotated[tuple[Text, ...], Meta(max_length=64)] = ()
    url: Text = ""
    format: Literal["pprof", "speedscope", "firefox", "collapsed", "perfetto", "callgrind", "json", "parquet",
                    "otlp"] = "parquet"
    method: Literal["POST", "PUT"] = "POST"
    users: bool = False
    timeout_s: Annotated[float, Meta(ge=1, le=86_400)] = 300.0
    retry_s: Annotated[float, Meta(ge=0.1, le=3600)] = 5.0
    attempts: Annotated[int, Meta(ge=1, le=1000)] = 5
    spool_megabytes: _Positive = 1024


class Target(Struct, frozen=True, forbid_unknown_fields=True):
    """A table ``[[target]]``; ``own_daemon``: for the daemon alone that was started for this target."""

    name: Annotated[str, Meta(pattern=NAME.replace("[A-Za-z0-9]", "[A-Za-z]", 1))]
    unit: Text | None = None
    cgroup: Text | None = None
    command: Text | None = None
    options: tuple[Text, ...] = ()
    record_s: _Seconds = 0.0
    every_s: _Seconds = 0.0
    rotate_s: Annotated[float, Meta(ge=1, le=31_536_000)] = 3600.0
    rotate_megabytes: _Positive = 64
    keep: _Positive = 48
    megabytes: _Positive = 512
    labels: Labels = {}
    own_daemon: bool = False

    @property
    def wanted(self) -> Wanted:
        """Which processes."""
        return Wanted(unit=self.unit, cgroup=self.cgroup, command=self.command)

    @property
    def plan(self) -> Plan:
        """When."""
        phase = crc32(self.name.encode()) / 2 ** 32
        return Plan(self.record_s, self.every_s, self.rotate_s, min(self.rotate_megabytes, self.megabytes), phase=phase)


class Config(Struct, frozen=True, forbid_unknown_fields=True):
    """All of it; without a file, ordinary users may record what is theirs, and nothing is recorded all the time."""

    daemon: Daemon = Daemon()
    access: AccessTable = AccessTable()
    limits: Limits = Limits()
    handoff: Handoff | None = None
    target: Annotated[tuple[Target, ...], Meta(max_length=256)] = ()

    def targets(self, only: str | None) -> dict[str, Target]:
        """By name, those of a daemon that was started for ``only`` one of them, or for all but those that have their
        own."""
        return {each.name: each for each in self.target
                if (not each.own_daemon if only is None else each.name == only)}


def parse(text: str, name: str) -> Config:
    """Raises ConfigError; ``name`` is the file's."""
    try:
        config = msgspec.toml.decode(text, type=Config)
    except msgspec.ValidationError as err:
        reason, _, path = str(err).partition(" - at `$")
        raise _wrong(text, name, path.rstrip("`"), reason) from None
    except msgspec.DecodeError as err:
        reason = str(err)
        line = re.search(r"\(at line (\d+), ", reason)
        raise ConfigError(f"{name}:{line[1] if line else len(text.splitlines())}: {reason}") from None
    try:
        _check_handoff(config.handoff)
    except CollectorError as err:
        raise _wrong(text, name, ".handoff", str(err)) from None
    seen: set[str] = set()
    for number, target in enumerate(config.target):
        try:
            _check(target, seen)
        except CollectorError as err:
            raise _wrong(text, name, f".target[{number}]", f"target {target.name!r}: {err}") from None
        seen.add(target.name)
    return config


def _check_handoff(handoff: Handoff | None) -> None:
    if handoff is None:
        return
    if bool(handoff.command) == bool(handoff.url):
        raise UsageError("give one of: command, url")
    if handoff.url:
        push.check(handoff.url)


def _check(target: Target, seen: set[str]) -> None:
    if target.name in seen:
        raise UsageError("there is another of this name")
    if bool(target.record_s) != bool(target.every_s) or target.record_s > target.every_s:
        raise UsageError("record_s and every_s go together, such as record_s = 10 and every_s = 60")
    if 0 < target.record_s < _RECORD_MIN_S:
        raise UsageError(f"record_s = {target.record_s:g}: give {_RECORD_MIN_S:g} or more")
    check(target.wanted)
    wishes.parse(target.options)


def _wrong(text: str, name: str, path: str, reason: str) -> ConfigError:
    return ConfigError(f"{name}:{line_of(text, path, reason)}: {reason}{f' ({path[1:]})' if path else ''}")


def line_of(text: str, path: str, reason: str = "") -> int:
    """The line on which a value stands, such as ``.target[1].keep``; that of its table, where it does not."""
    steps = re.findall(r"\.?([^.\[\]]+)|\[(\d+)\]", path)
    names = [name for name, _ in steps if name and name != "..."]
    wanted = next((int(number) for _, number in steps if number), 0)
    unknown = re.search(r"unknown field `([^`]*)`", reason)
    names += [unknown[1]] if unknown else []
    table, key = (names[0] if names else ""), (names[1] if len(names) > 1 else "")
    found, inside, count = 1, not table, -1
    for number, line in enumerate(text.splitlines(), 1):
        header = re.match(r"\s*\[+\s*([^\]\s]+)\s*\]+", line)
        if header:
            count += header[1] == table
            inside = header[1] == table and count == wanted
            found = number if inside else found
        elif inside and key and re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*[.=]", line):
            return number
    return found


def settings_of(config: Config) -> dict[str, Any]:
    """All settings as they hold, defaults included."""
    settings: dict[str, Any] = msgspec.to_builtins(config)
    return settings
