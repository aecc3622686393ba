"""What log.xml says: as bytes to append (the header once, then one line per event), and read back.

Times come in as absolute CLOCK_MONOTONIC nanoseconds and are written relative to the start, as
``seconds.nnnnnnnnn``. Readers take the digits after the dot for a number of nanoseconds, so there are always
nine. Only the run event and the threads' events carry absolute times.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from collector.clock import NS_PER_S, NS_PER_US
from collector.errors import FormatError, shown
from collector.experiment.damage import TIME_MAX_NS, Damage
from collector.experiment.records import CLOCK, N_STATES
from collector.experiment.xml import Element, Plain, Value, element, encoded, escape, parse, parse_number
from collector.layout import Described

FORMAT_VERSION = "12.4"
# Numbers of messages that have a meaning of their own for readers.
ERROR_SIZE_LIMIT = 14
ERROR_DISK_FULL = 32
ERROR_TEXT = 47
WARNING_TEXT = 227
COMMENT_TEXT = 400
COMMENT_CWD = 401
COMMENT_ARGV = 402


@dataclass(frozen=True, eq=False, repr=False)
class Header:
    """What is known of a process and its recording when an experiment begins. Times are CLOCK_MONOTONIC
    nanoseconds.
    """

    hostname: str
    os: str
    arch: str
    page_size: int
    n_pages: int
    cpus: Sequence[int]  # MHz, one per CPU
    pid: int
    ppid: int
    pgrp: int
    sid: int
    cwd: bytes
    arguments: bytes
    wsize: int
    interval_ns: int
    sample_period_s: int
    start_ns: int
    start_unix: int
    collector: str
    numstates: int = N_STATES
    follow: bool = False
    notes: list[str] = dataclasses.field(default_factory=list)
    size_limit_mb: int = 0  # 0: no limit
    aggregations: Sequence[str] = ()  # expressions
    labels: Sequence[tuple[str, str]] = ()  # name, value


def time_text(time_ns: int) -> Plain:
    """``seconds.nnnnnnnnn``; times before the start become the start."""
    return Plain(b"%d.%09d" % divmod(max(time_ns, 0), NS_PER_S))


def header_text(header: Header) -> bytes:
    """Everything up to and with the run event, which makes the experiment a running one."""
    return b"".join([
        _head(header.collector, header.hostname, header.arch, header.os, header.page_size, header.n_pages,
              tuple(header.cpus)),
        _PROCESS % (header.pid, header.ppid, header.pgrp, header.sid, escape(header.cwd), header.wsize,
                    escape(header.arguments)),
        _settings(header.interval_ns, header.numstates, header.sample_period_s, header.size_limit_mb, header.follow),
        element("event", {"kind": "run", "tstamp": time_text(header.start_ns), "time": header.start_unix,
                          "tm_zone": 0}),
    ])


# Of which a build has a thousand: what all of a recording have in common is made once.
_PROCESS = b"".join([
    *(element("process", {name: Plain(b"%b" if name == "cwd" else b"%d")}, b"")
      for name in ("pid", "ppid", "pgrp", "sid", "cwd", "wsize")),
    element("process", {}, Plain(b"%b"))])


@lru_cache(maxsize=2)
def _head(collector: str, hostname: str, arch: str, system: str, page_size: int, n_pages: int,
          cpus: tuple[int, ...]) -> bytes:
    """What comes before the process."""
    return b"".join([
        b'<experiment version="%s">\n' % FORMAT_VERSION.encode(),
        element("collector", {}, collector),
        b"</experiment>\n",
        _system(hostname, arch, system, page_size, n_pages, cpus)])


@lru_cache(maxsize=2)
def _settings(interval_ns: int, n_states: int, sample_period_s: int, size_limit_mb: int, follow: bool) -> bytes:
    """What comes between the process and the run event."""
    settings: dict[str, Value] = {"sample_period": sample_period_s, "limit": size_limit_mb,
                                  "linetrace": "fork|exec|combo" if follow else 0}
    return b"".join([
        _clock_profile(interval_ns, n_states),
        element("dataptr", {"name": "frameinfo", "format": "binary"}),
        *(element("setting", {name: value}) for name, value in settings.items() if value)])


def _system(hostname: str, arch: str, system: str, page_size: int, n_pages: int, cpus: tuple[int, ...]) -> bytes:
    attributes: dict[str, Value] = {
        "hostname": hostname, "arch": arch, "os": system, "pagesz": page_size, "npages": n_pages, "bigendian": 0}
    inside = b" ".join(b'%s="%s"' % (key.encode(), escape(value)) for key, value in attributes.items())
    per_cpu = b"".join(element("cpu", {"id": number, "clk": mhz}, indent="  ")
                    for number, mhz in enumerate(cpus))
    return b"<system %s>\n%s</system>\n" % (inside, per_cpu)


def _clock_profile(interval_ns: int, n_states: int) -> bytes:
    fields = b"".join(
        element("field", {"name": field.name, "uname": field.uname, "offset": field.offset,
                          "type": field.type}, indent="    ")
        for field in CLOCK.describe())
    return b'<profile name="profile" ptimer="%d" numstates="%d">\n' \
           b'  <profdata fname="profile"/>\n' \
           b'  <profpckt kind="%d" uname="Clock-based Profiling Data">\n%s  </profpckt>\n</profile>\n' % (
               interval_ns // NS_PER_US, n_states, CLOCK.kind, fields)


_THREAD_STARTED = element("event", {  # of which there may be a hundred thousand: what is in common is made once
    "kind": "jthread_start", "tstamp": Plain(b"%d.%09d"), "name": Plain(b"%b"), "grpname": "", "prntname": "",
    "tid": Plain(b"%d"), "jthr": "0x0", "jenv": "0x0"})


class LogLines:
    """The lines of log.xml for an experiment that started at ``start_ns``."""

    def __init__(self, start_ns: int) -> None:
        self._start_ns = start_ns

    def sample(self, time_ns: int, number: int, label: str) -> bytes:
        """The end of sample ``number``; 0 is the starting point."""
        return self._event("sample", time_ns, id=number, label=label)

    def aggregation(self, time_ns: int, expression: str) -> bytes:
        """What is aggregated, in the file of aggregations. Readers that do not know this kind of event skip it."""
        return self._event("aggregation", time_ns, expression=expression)

    def label(self, time_ns: int, name: str, value: str) -> bytes:
        """Something that the process belongs to. Readers that do not know this kind of event skip it."""
        return self._event("label", time_ns, name=name, value=value)

    def exit(self, time_ns: int) -> bytes:
        """The experiment is complete."""
        return self._event("exit", time_ns)

    def pause(self, time_ns: int, name: str) -> bytes:
        """Recording pauses; ``name`` is the reason."""
        return self._event("pause", time_ns, name=name)

    def resume(self, time_ns: int, name: str) -> bytes:
        """Recording goes on; ``name`` is the reason."""
        return self._event("resume", time_ns, name=name)

    def threads_started(self, threads: Iterable[tuple[int, int]], name: bytes) -> bytes:
        """Reserves the next thread numbers for these: their tids and times. Readers know such an event for Java
        threads; any thread may.
        """
        escaped = escape(name)
        return b"".join([_THREAD_STARTED % (*divmod(max(time_ns, 0), NS_PER_S), escaped, tid)
                         for tid, time_ns in threads])

    def thread_named(self, time_ns: int, tid: int, name: bytes) -> bytes:
        """A thread has another name from here on. Readers that do not know this kind of event skip it."""
        return self._event("thread_name", time_ns, tid=tid, name=name)

    def descendant(self, kind: str, time_ns: int, variant: str, lineage: str, follow: bool,
                   message: Value | None = None) -> bytes:
        """``kind``: desc_start, desc_started, exec_start, exec_error; ``variant``: the call; lineage without
        ``.er``.
        """
        attributes: dict[str, Value] = {"variant": variant, "lineage": lineage, "follow": int(follow)}
        if message is not None:
            attributes["msg"] = message
        return self._event(kind, time_ns, **attributes)

    def error(self, time_ns: int, number: int, text: Value, errno: int = 0) -> bytes:
        """A cerror; ``errno`` 0 means none."""
        extra: dict[str, Value] = {"ec": errno} if errno else {}
        return self._event("cerror", time_ns, encoded(text), id=number, **extra)

    def warning(self, time_ns: int, number: int, text: Value) -> bytes:
        """A cwarn."""
        return self._event("cwarn", time_ns, encoded(text), id=number)

    def comment(self, time_ns: int, number: int, text: Value) -> bytes:
        """A comment."""
        return self._event("comment", time_ns, encoded(text), id=number)

    def _event(self, kind: str, time_ns: int, text: bytes | None = None, /, **attributes: Value) -> bytes:
        tstamp = time_text(time_ns - self._start_ns)
        return element("event", {"kind": kind, "tstamp": tstamp, **attributes}, text)


class Message(NamedTuple):
    """A cerror, cwarn or comment: its number, its text, when (absolute ns)."""

    kind: str
    id: int
    text: str
    time_ns: int
    errno: int = 0


class Event(NamedTuple):
    """Any event of the log, at an absolute time; attributes as text, undecodable bytes as surrogates."""

    kind: str
    time_ns: int
    attributes: dict[str, str]


class Counter(NamedTuple):
    """A hardware counter: its metric's name, what the kernel or the chip calls it, events from packet to packet.

    ``memop``: whether its packets tell of memory, too.
    """

    name: str
    internal: str
    interval: int
    memop: int = 0


@dataclass(eq=False, repr=False)
class Log:
    """What a log.xml says. Times are absolute nanoseconds of the clock that the experiment was recorded with."""

    version: str = ""
    collector: str = ""
    hostname: str = ""
    os: str = ""
    arch: str = ""
    big_endian: bool = False
    page_size: int = 0
    n_pages: int = 0
    cpus: list[int] = dataclasses.field(default_factory=list)  # MHz
    pid: int = 0
    ppid: int = 0
    pgrp: int = 0
    sid: int = 0
    cwd: bytes = b""
    arguments: bytes = b""
    wsize: int = 64
    interval_us: int = 0  # 0: no clock profiling
    numstates: int = 0
    settings: dict[str, str] = dataclasses.field(default_factory=dict)
    start_ns: int = 0
    start_unix: int = 0
    end_ns: int = 0  # of the last sample or exec
    complete: bool = False
    messages: list[Message] = dataclasses.field(default_factory=list)
    events: list[Event] = dataclasses.field(default_factory=list)
    threads: dict[int, bytes] = dataclasses.field(default_factory=dict)  # tid -> last name, in the log's order
    n_renamed: int = 0  # how often one of them got another name
    described: dict[str, dict[int, list[Described]]] = dataclasses.field(default_factory=dict)  # data, packet kind
    profiles: dict[str, dict[str, str]] = dataclasses.field(default_factory=dict)  # kind of data -> what is said of it
    counters: dict[int, Counter] = dataclasses.field(default_factory=dict)  # by HWCTAG

    @property
    def labels(self) -> dict[str, str]:
        """What the process belongs to, by name."""
        return {event.attributes["name"]: event.attributes.get("value", "") for event in self.events
                if event.kind == "label" and event.attributes.get("name")}

    @property
    def sample_period_s(self) -> int:
        """Seconds between samples; 0 for none."""
        return parse_number(os.fsencode(self.settings.get("sample_period", "")))


_MESSAGES = {"cerror", "cwarn", "comment"}
_TIMED = {b"run", b"sample"}  # no recorder leaves their time out
_ENDS = {"sample", "exec_start", "exec_error"}
_UNIX_MAX = 9_223_372_036  # nanoseconds since 1970 have 63 bits where formats have them
_INT32_MAX = (1 << 31) - 1
_ERRNO_MAX = 4095
COUNTERS = "hwcounters"
HWC_TAGS = 64  # of counters
_BIG_ENDIAN = ("sun4", "sparc")  # machines whose older collectors do not say it
_PROCESS_NUMBERS = ("pid", "ppid", "pgrp", "sid", "wsize")


def read(data: bytes, before: bytes = b"", damage: Damage | None = None) -> Log:
    """Parse a log.xml; ``before`` is a warnings.xml, whose elements come first. Raises FormatError without a start.

    All its numbers are sound: one that cannot be is as if it were not there.
    """
    damage = damage or Damage()
    log = Log()
    elements = parse(data, damage.note)
    run = next((e for e in elements if e.name == "event" and e.get("kind") == b"run"), None)
    if run is None:
        raise FormatError("log.xml: no run event; this is not an experiment, or it was never begun")
    start_ns = sound_time_of(run)
    log.start_ns = log.end_ns = start_ns or 0
    log.start_unix = run.number("time", low=0, high=_UNIX_MAX)
    for node in [*parse(before), *elements]:
        _READERS.get(node.name, _ignore)(log, node)
    damage.note("events without a possible time were taken as of the start",
                sum(sound_time_of(node) is None for node in elements
                    if node.name == "event" and ("tstamp" in node.attributes or node.get("kind") in _TIMED)))
    if log.version and parse_number(os.fsencode(log.version.partition(".")[0])) < int(FORMAT_VERSION[:2]):
        raise FormatError(f"log.xml: version {log.version!r} is too old; use the tools that recorded it")
    log.complete = _is_complete(log.events)
    return log


def read_more(log: Log, data: bytes) -> None:
    """What came behind what ``log`` was read from: whole elements. Events that have been told are forgotten."""
    before = [Event(kind, 0, {}) for kind in ("run", *["exit"] * log.complete)]
    log.events = []
    for node in parse(data):
        _READERS.get(node.name, _ignore)(log, node)
    log.complete = _is_complete([*before, *log.events])


def time_of(text: bytes) -> int:
    """Nanoseconds of ``seconds.nnnnnnnnn``; what follows the dot is a number of nanoseconds, however short."""
    seconds, _, rest = text.partition(b".")
    return parse_number(seconds) * NS_PER_S + parse_number(rest)


def sound_time_of(node: Element) -> int | None:
    """An event's time as it stands there; None if there is none that can be."""
    time_ns = time_of(node.get("tstamp", b"-1"))
    return time_ns if 0 <= time_ns <= TIME_MAX_NS else None


def _ignore(_log: Log, _node: Element) -> None:
    pass


def _read_experiment(log: Log, node: Element) -> None:
    log.version = node.text_of("version")
    for child in node.children:
        _READERS.get(child.name, _ignore)(log, child)


def _read_collector(log: Log, node: Element) -> None:
    log.collector = node.text.decode("utf-8", "surrogateescape")


def _read_system(log: Log, node: Element) -> None:
    log.hostname, log.os, log.arch = (node.text_of(name) for name in ("hostname", "os", "arch"))
    log.page_size, log.n_pages = node.number("pagesz"), node.number("npages")
    log.big_endian = node.text_of("bigendian") == "1" or \
        ("bigendian" not in node.attributes and log.arch.startswith(_BIG_ENDIAN))
    log.cpus += [child.number("clk") for child in node.children if child.name == "cpu"]


def _read_process(log: Log, node: Element) -> None:
    for name in _PROCESS_NUMBERS:
        if name in node.attributes:
            setattr(log, name, node.number(name, low=0, high=_INT32_MAX))
    log.cwd = node.attributes.get("cwd", log.cwd)
    if node.text.strip():
        log.arguments = node.text


def _read_setting(log: Log, node: Element) -> None:
    log.settings.update((name, node.text_of(name)) for name in node.attributes)


def _read_profile(log: Log, node: Element) -> None:
    name = node.text_of("name")
    log.profiles.setdefault(name, {key: node.text_of(key) for key in node.attributes})
    if name == "hwcounter":
        _read_counter(log, node)
    if name == "profile":
        log.interval_us = node.number("ptimer", low=0, high=_INT32_MAX)
        log.numstates = node.number("numstates", low=0, high=_INT32_MAX)
    for packet in node.children:
        if packet.name == "profpckt":
            _describe(log, COUNTERS if name == "hwcounter" else name, packet)


def _read_counter_packet(log: Log, node: Element) -> None:
    """Those of counters are described outside of any profile, because there is one profile for each counter."""
    _describe(log, COUNTERS, node)


def _describe(log: Log, data: str, packet: Element) -> None:
    log.described.setdefault(data, {})[packet.number("kind")] = [
        Described(f.text_of("name"), f.text_of("uname"), f.number("offset", -1), f.text_of("type"))
        for f in packet.children if f.name == "field"]


def _read_counter(log: Log, node: Element) -> None:
    tag, name = node.number("tag", -1), shown(node.text_of("hwcname"))  # words of metrics are text
    if 0 <= tag < HWC_TAGS and name:
        log.counters.setdefault(tag, Counter(name, shown(node.text_of("int_name")) or name,
                                             node.number("interval", low=0, high=_INT32_MAX), node.number("memop")))


def _read_event(log: Log, node: Element) -> None:
    kind = node.text_of("kind")
    absolute = kind == "run" or kind.startswith("jthread_")
    time_ns = sound_time_of(node)
    time_ns = log.start_ns if time_ns is None else time_ns + (0 if absolute else log.start_ns)
    if kind in _MESSAGES:
        text = node.text or node.get("text")
        log.messages.append(Message(kind, node.number("id"), text.decode("utf-8", "surrogateescape"), time_ns,
                                    node.number("ec", low=0, high=_ERRNO_MAX)))
        return
    if kind == "jthread_start":
        log.threads.setdefault(node.number("tid"), node.get("name"))
    if kind == "thread_name":
        if (tid := node.number("tid")) in log.threads:
            log.threads[tid] = node.get("name")
            log.n_renamed += 1
        return
    if kind in _ENDS:
        log.end_ns = max(log.end_ns, time_ns)
    log.events.append(Event(kind, time_ns, {name: node.text_of(name) for name in node.attributes}))


_READERS: dict[str, Callable[[Log, Element], None]] = {
    "experiment": _read_experiment, "collector": _read_collector, "system": _read_system, "process": _read_process,
    "setting": _read_setting, "profile": _read_profile, "profpckt": _read_counter_packet, "event": _read_event}


def _is_complete(events: list[Event]) -> bool:
    """Whether the log shows a proper end after its last run event: an exit, or an exec that did not fail."""
    kinds = [event.kind for event in events]
    after = kinds[len(kinds) - kinds[::-1].index("run"):] if "run" in kinds else []
    execs = [kind for kind in after if kind in ("exec_start", "exec_error")]
    return "exit" in after or execs[-1:] == ["exec_start"]
