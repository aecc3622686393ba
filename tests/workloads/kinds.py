"""Experiments with every kind of data that the format has, of known contents: for kinds that a machine cannot record.

``Traces`` adds to an experiment that our recorder has written: its stacks and its address space stay as they are, and
what other collectors would have traced in them comes beside. Everything is declared in ``experiment.records``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from collector.experiment.records import COUNTER, HEAP, IO, IO_NAME, SYNC
from collector.experiment.xml import element
from collector.layout import Described, Record

Columns = Mapping[str, Any]


class Traces:
    """Adds kinds of data to the experiment in ``path``; columns (n,) by the fields' names, others are zero."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def locks(self, **columns: Any) -> None:
        """Locks that were waited for: TSTAMP granted, SRQST asked for, SOBJ which."""
        self._say("synctrace", [SYNC], {"threshold": 0, "scope": 3})
        self._write("synctrace", packed(SYNC, columns))

    def heap(self, **columns: Any) -> None:
        """Allocations: HTYPE, HSIZE, HVADDR, HOVADDR."""
        self._say("heaptrace", [HEAP])
        self._write("heaptrace", packed(HEAP, columns))

    def io(self, names: Sequence[bytes], **columns: Any) -> None:
        """Input and output: IOTYPE, IOFD, IONBYTE, IORQST, IOOFD; ``names`` (n) of files that were opened."""
        self._say("iotrace", [IO], strings=[IO_NAME])
        self._write("iotrace", with_names(packed(IO, columns), names))

    def counters(self, counters: Mapping[int, tuple[str, str, int]], **columns: Any) -> None:
        """Hardware counters by tag: (name, name that the chip has for it, interval); HWCTAG, HWCINT."""
        self._say("", [COUNTER], data="hwcounters", name="profdata")
        for tag, (name, internal, interval) in counters.items():
            self._append(element("profile", {
                "name": "hwcounter", "cpuver": 2, "hwcname": name, "int_name": internal, "interval": interval,
                "tag": tag, "memop": 0}, ""))
        self._write("hwcounters", packed(COUNTER, columns))

    def _say(self, kind: str, records: Sequence[Record], said: Mapping[str, Any] | None = None,
             strings: Sequence[Described] = (), data: str = "", name: str = "profile") -> None:
        packets = b"".join(b'  <profpckt kind="%d" uname="%s">\n%s  </profpckt>\n' % (
            record.kind, record.name.encode(), b"".join(_described(one) for one in [*record.describe(), *strings]))
            for record in records)
        inside = element("profdata", {"fname": data or kind}) + packets
        if name == "profdata":
            self._append(inside)
        else:
            start = b" ".join(b'%s="%s"' % (key.encode(), str(value).encode())
                              for key, value in {"name": kind, **(said or {})}.items())
            self._append(b"<profile %s>\n%s</profile>\n" % (start, inside))

    def _append(self, text: bytes) -> None:
        with open(self.path / "log.xml", "ab") as file:
            file.write(text)

    def _write(self, name: str, content: bytes) -> None:
        (self.path / name).write_bytes(content)


def packed(record: Record, columns: Columns) -> bytes:
    """Packets of one kind, one behind the other."""
    packets = np.zeros(max(np.size(column) for column in columns.values()), record.dtype)
    packets["tsize"], packets["kind"] = record.size, record.kind
    for name, column in columns.items():
        packets[name] = column
    return packets.tobytes()


def with_names(packets: bytes, names: Sequence[bytes]) -> bytes:
    """Packets of input and output with their names behind them, NUL at the end, to a multiple of eight bytes."""
    whole = bytearray()
    for number, name in enumerate(names):
        one = bytearray(packets[number * IO.size:(number + 1) * IO.size])
        one += (name + b"\0").ljust((len(name) + 8) // 8 * 8, b"\0") if name else b""
        one[:2] = len(one).to_bytes(2, "little")
        whole += one
    return bytes(whole)


def _described(one: Described) -> bytes:
    about = {"name": one.name, "uname": one.uname, "offset": one.offset, "type": one.type}
    return element("field", about, indent="    ")
