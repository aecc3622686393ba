"""What the bytes of records say: those of one size as arrays, the others one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from collector.arrays import indices
from collector.events import (
    Array,
    Change,
    Context,
    Ends,
    Executed,
    Exited,
    Faults,
    Forked,
    Mapped,
    RecordsLost,
    Renamed,
    Sites,
    Switches,
    Throttled,
    Wakings,
)
from collector.linux import abi
from collector.linux.perf import Ring

# Records of rings that have only one kind, by the ring's name.
FIXED = {"switch": abi.SWITCH, "site": abi.SITE, "touch": abi.FAULT, "waking": abi.WAKING,
         "handover": abi.HANDOVER, "dying": abi.END, "dead": abi.END}
NO_PID = 0xFFFF_FFFF  # of a thread that is gone
_SOURCES = {"brief": "clock"}  # of losses, as they are told
_LOSSES = frozenset({abi.RECORD_LOST, abi.RECORD_LOST_SAMPLES})
_LOW32 = np.uint64(0xFFFF_FFFF)
LIFE_WORDS = np.array([1, 2])  # of records of births and ends: pid and the parent's, tid and the parent's

Part = TypeVar("Part", Switches, Sites, Faults, Wakings, Ends)


def change_of(ring: Ring, header: int, record: bytes, time_ns: int) -> Change | None:
    """What a record with this header word says; None for what nobody asked for."""
    decode = _DECODE_CHANGE.get(header & 0xFFFF_FFFF)
    if decode is None:
        return None
    return decode(time_ns, header >> 32 & 0xFFFF, record[abi.HEADER_SIZE:-abi.TRAILER.size], ring)


def is_loss(header: int) -> bool:
    """Whether a record with this header word tells of others that were lost."""
    return header & 0xFFFF_FFFF in _LOSSES


def are_lives(header: Array) -> Array:
    """Which records (n,) with these header words tell of a thread's beginning or end."""
    kind = header & _LOW32
    found: Array = (kind == abi.RECORD_FORK) | (kind == abi.RECORD_EXIT)
    return found


def lives(header: Array, words: Array, time_ns: Array) -> list[Change]:
    """What such records (n,) say; ``words`` (n, 2): theirs at LIFE_WORDS."""
    forked = header & _LOW32 == abi.RECORD_FORK
    births, ends = indices(forked), indices(~forked)
    who, parent = words & _LOW32, words >> np.uint64(32)  # pid and tid
    born = map(Forked._make, zip(time_ns[births].tolist(), *who[births].T.tolist(), *parent[births].T.tolist(),
                                 strict=True))
    gone = map(Exited._make, zip(time_ns[ends].tolist(), *who[ends].T.tolist(), strict=True))
    return [next(born) if is_birth else next(gone) for is_birth in forked.tolist()]


def of_kinds(rows: dict[str, list[Array]], *names: str) -> Any:
    """The records of these names from all CPUs' rings as one, in time order; None if there are none."""
    parts = [_DECODE_FIXED[name](_by_time(rows[name])) for name in names if rows[name]]
    return _merged(parts) if len(parts) > 1 else (parts[0] if parts else None)


def _by_time(parts: list[Array]) -> Array:
    """All records of one kind, in time order. numpy moves records without looking into them only if it is asked to:
    field by field, it takes a hundred times as long."""
    rows = parts[0]
    if len(parts) > 1:
        kind = rows.dtype
        rows = np.concatenate([part.view(f"V{kind.itemsize}") for part in parts]).view(kind)
    found: Array = rows.take(rows["time"].argsort(kind="stable"))
    return found


def _merged(parts: list[Part]) -> Part:
    """Parts of different kinds as one, in time order."""
    columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in type(parts[0]).__slots__}
    order = columns["time_ns"].argsort(kind="stable")
    return type(parts[0])(**{name: column[order] for name, column in columns.items()})


def _who(rows: Array) -> tuple[Array, Array, Array]:
    return rows["time"].astype(np.int64), rows["pid"].astype(np.int64), rows["tid"].astype(np.int64)


def _switches(rows: Array) -> Switches:
    out = (rows["misc"] & abi.MISC_SWITCH_OUT) != 0
    preempted = out & ((rows["misc"] & abi.MISC_SWITCH_OUT_PREEMPT) != 0)
    return Switches(*_who(rows), edge=out.astype(np.int8) + preempted.astype(np.int8),
                    cpu=rows["cpu"].astype(np.int32), exact=rows["res"] != 0)


def _sites(rows: Array) -> Sites:
    return Sites(*_who(rows), ip=rows["ip"].copy(), sp=rows["sp"].copy(), bp=rows["bp"].copy())


def _faults(rows: Array) -> Faults:
    in_kernel = (rows["misc"] & abi.MISC_CPUMODE_MASK) == abi.MISC_CPUMODE_KERNEL
    return Faults(*_who(rows), address=rows["address"].copy(), ip=rows["ip"].copy(), in_kernel=in_kernel)


def _touches(rows: Array) -> Faults:
    """Those from user mode: the kernel's own are told from others by its call chain."""
    return _faults(rows.take(indices((rows["misc"] & abi.MISC_CPUMODE_MASK) != abi.MISC_CPUMODE_KERNEL)))


def _dying(rows: Array) -> Ends:
    return Ends(rows["time"].astype(np.int64), rows["tid"].astype(np.int64), rows["cpu"].astype(np.int32),
                rows["n_switches"].astype(np.int64), np.zeros(len(rows), dtype=bool))


def _dead(rows: Array) -> Ends:
    ends = _dying(rows)
    ends.dead[:] = True
    return ends


def _wakings(rows: Array) -> Wakings:
    flags = rows["common_flags"]
    context = np.where(flags & abi.TRACE_FLAG_SOFTIRQ, np.int8(Context.SOFTIRQ), np.int8(Context.THREAD))
    context[flags & (abi.TRACE_FLAG_HARDIRQ | abi.TRACE_FLAG_NMI) != 0] = Context.INTERRUPT
    waker = np.where(rows["tid"] == NO_PID, 0, rows["tid"]).astype(np.int64)
    return Wakings(rows["woken"].astype(np.int64), rows["time"].astype(np.int64), waker, context)


_DECODE_FIXED: dict[str, Callable[[Array], Any]] = {
    "switch": _switches, "site": _sites, "task": _faults, "touch": _touches, "waking": _wakings,
    "dying": _dying, "dead": _dead}


def _lost(time_ns: int, _misc: int, body: bytes, ring: Ring) -> Change:
    return RecordsLost(time_ns, abi.LOST_FORMAT.unpack_from(body)[1], _SOURCES.get(ring.name, ring.name), ring.cpu)


def _lost_samples(time_ns: int, _misc: int, body: bytes, ring: Ring) -> Change:
    n_records = abi.LOST_SAMPLES_FORMAT.unpack_from(body)[0]
    return RecordsLost(time_ns, n_records, _SOURCES.get(ring.name, ring.name), ring.cpu)


def _comm(time_ns: int, misc: int, body: bytes, _ring: Ring) -> Change:
    pid, tid = abi.COMM_FORMAT.unpack_from(body)
    name = body[abi.COMM_FORMAT.size:].partition(b"\0")[0]
    return (Executed if misc & abi.MISC_COMM_EXEC else Renamed)(time_ns, pid, tid, name)


def _mmap2(time_ns: int, _misc: int, body: bytes, _ring: Ring) -> Change:
    pid, tid, start, size, offset, major, minor, inode, _, _, _ = abi.MMAP2_FORMAT.unpack_from(body)
    path = body[abi.MMAP2_FORMAT.size:].partition(b"\0")[0]
    return Mapped(time_ns, pid, tid, start, size, offset, major << 20 | minor, inode, path)


def _throttle(time_ns: int, _misc: int, _body: bytes, ring: Ring) -> Change:
    return Throttled(time_ns, ring.cpu)


_DECODE_CHANGE: dict[int, Callable[[int, int, bytes, Ring], Change]] = {
    abi.RECORD_LOST: _lost, abi.RECORD_LOST_SAMPLES: _lost_samples, abi.RECORD_COMM: _comm, abi.RECORD_MMAP2: _mmap2,
    abi.RECORD_THROTTLE: _throttle,
}
