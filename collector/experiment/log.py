"""What log.xml says, as bytes to append: the header once, then one line per event.

Times come in as absolute CLOCK_MONOTONIC nanoseconds and are written relative to the start, as
``seconds.nnnnnnnnn``. Readers take the digits after the dot for a number of nanoseconds, so there are always
nine. Only the run event and the threads' events carry absolute times.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from collector.clock import NS_PER_S, NS_PER_US
from collector.experiment.records import CLOCK, N_STATES
from collector.experiment.xml import Value, element, encoded, escape

FORMAT_VERSION = "12.4"
# Numbers of messages that have a meaning of their own for readers.
ERROR_SIZE_LIMIT = 14
ERROR_DISK_FULL = 32
ERROR_TEXT = 47
WARNING_TEXT = 227
COMMENT_TEXT = 400
COMMENT_CWD = 401
COMMENT_ARGV = 402


@dataclass(frozen=True)
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


def time_text(time_ns: int) -> str:
    """``seconds.nnnnnnnnn``; times before the start become the start."""
    seconds, rest_ns = divmod(max(time_ns, 0), NS_PER_S)
    return f"{seconds}.{rest_ns:09d}"


def header_text(header: Header) -> bytes:
    """Everything up to and with the run event, which makes the experiment a running one."""
    settings: dict[str, Value] = {"sample_period": header.sample_period_s, "limit": header.size_limit_mb,
                                  "linetrace": "fork|exec|combo" if header.follow else 0}
    return b"".join([
        b'<experiment version="%s">\n' % FORMAT_VERSION.encode(),
        element("collector", {}, header.collector),
        b"</experiment>\n",
        _system(header),
        *(element("process", {name: getattr(header, name)}, b"")
          for name in ("pid", "ppid", "pgrp", "sid", "cwd", "wsize")),
        element("process", {}, header.arguments),
        _clock_profile(header),
        element("dataptr", {"name": "frameinfo", "format": "binary"}),
        *(element("setting", {name: value}) for name, value in settings.items() if value),
        element("event", {"kind": "run", "tstamp": time_text(header.start_ns), "time": header.start_unix,
                          "tm_zone": 0}),
    ])


def _system(header: Header) -> bytes:
    attributes: dict[str, Value] = {
        "hostname": header.hostname, "arch": header.arch, "os": header.os, "pagesz": header.page_size,
        "npages": header.n_pages, "bigendian": 0}
    inside = b" ".join(b'%s="%s"' % (key.encode(), escape(value)) for key, value in attributes.items())
    cpus = b"".join(element("cpu", {"id": number, "clk": mhz}, indent="  ")
                    for number, mhz in enumerate(header.cpus))
    return b"<system %s>\n%s</system>\n" % (inside, cpus)


def _clock_profile(header: Header) -> bytes:
    fields = b"".join(
        element("field", {"name": field.name, "uname": field.uname, "offset": field.offset,
                          "type": field.type}, indent="    ")
        for field in CLOCK.describe())
    return b'<profile name="profile" ptimer="%d" numstates="%d">\n' \
           b'  <profdata fname="profile"/>\n' \
           b'  <profpckt kind="%d" uname="Clock-based Profiling Data">\n%s  </profpckt>\n</profile>\n' % (
               header.interval_ns // NS_PER_US, header.numstates, CLOCK.kind, fields)


class LogLines:
    """The lines of log.xml for an experiment that started at ``start_ns``."""

    def __init__(self, start_ns: int) -> None:
        self._start_ns = start_ns

    def sample(self, time_ns: int, number: int, label: str) -> bytes:
        """The end of sample ``number``; 0 is the starting point."""
        return self._event("sample", time_ns, id=number, label=label)

    def exit(self, time_ns: int) -> bytes:
        """The experiment is complete."""
        return self._event("exit", time_ns)

    def pause(self, time_ns: int, name: str) -> bytes:
        """Recording pauses; ``name`` is the reason."""
        return self._event("pause", time_ns, name=name)

    def resume(self, time_ns: int, name: str) -> bytes:
        """Recording goes on; ``name`` is the reason."""
        return self._event("resume", time_ns, name=name)

    def thread_started(self, time_ns: int, tid: int, name: bytes) -> bytes:
        """Reserves the next thread number for ``tid``. Readers know such an event for Java threads; any
        thread may.
        """
        return element("event", {"kind": "jthread_start", "tstamp": time_text(time_ns), "name": name,
                                 "grpname": "", "prntname": "", "tid": tid, "jthr": "0x0", "jenv": "0x0"})

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
