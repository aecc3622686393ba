"""Reading packet files: chains of packets with any mixture of kinds and sizes, whole, growing or damaged.

Packets of one kind and size mostly follow each other. Such a run is one strided array, found by comparing the heads
along the stride, so a million packets cost a few numpy calls. The rules of the chain are in ``records``; beyond them: a
packet that would reach past the end of the file ends the reading; a size that no packet can have is counted, and
reading goes on at the next block.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from collector.arrays import indices
from collector.experiment.damage import TIME_MAX_NS, Bytes, Damage
from collector.experiment.records import BLOCK_SIZE, CLOCK, HEAD, IO, IO_NAME
from collector.layout import Described, Record

__all__ = ["Bytes", "Damage", "Packets", "Run", "Traced", "joined", "read", "read_pieces", "read_traced", "runs",
           "sound_clock_packets"]

Packets = npt.NDArray[Any]

# So many equal heads in sequence make looking for a run worth while.
_RUN_MIN = 4
_TYPES = {"INT32": "<i4", "UINT32": "<u4", "INT64": "<i8", "UINT64": "<u8"}


@dataclass(frozen=True)
class Run:
    """``count`` packets of one ``kind``, each ``size`` bytes, from ``offset``."""

    offset: int
    size: int
    kind: int
    count: int


def runs(data: Bytes, damage: Damage | None = None, offset: int = 0) -> Generator[Run, None, int]:
    """The packets of a file, in order. data (n,) bytes, from the beginning of a block on; the first packet of them is
    at ``offset``. Returns where the packet begins that ``data`` holds a part of, or something behind the end.
    """
    heads = data[:len(data) // 4 * 4].view("<u4")
    look = heads.data
    end = len(look) * 4
    while offset < end:
        head = look[offset >> 2]
        size = head & 0xFFFF
        if size < HEAD.size or size % 4:
            if size and damage is not None:
                damage.n_invalid += 1
            offset = (offset // BLOCK_SIZE + 1) * BLOCK_SIZE
            continue
        fitting = (len(data) - offset) // size
        if not fitting:
            return offset
        count = 1
        while count < min(fitting, _RUN_MIN) and look[(offset + count * size) >> 2] == head:
            count += 1
        if count == _RUN_MIN:
            count = _run_length(heads[offset >> 2::size >> 2][:fitting])
        yield Run(offset, size, head >> 16, count)
        offset += count * size
    return offset


def packet_offsets(data: Bytes, damage: Damage | None = None) -> Iterator[int]:
    """Where each packet of a file begins, in order: for packets of all sizes, of which ``runs`` are short."""
    look = data[:len(data) // 4 * 4].view("<u4").data
    end, n_bytes, offset, least = len(look) * 4, len(data), 0, HEAD.size
    while offset < end:
        size = look[offset >> 2] & 0xFFFF
        if size < least or size & 3:
            if size and damage is not None:
                damage.n_invalid += 1
            offset = (offset // BLOCK_SIZE + 1) * BLOCK_SIZE
            continue
        if offset + size > n_bytes:
            return
        yield offset
        offset += size


def _run_length(heads: npt.NDArray[np.uint32]) -> int:
    """How many of the heads are equal to the first; looks ahead in growing steps."""
    done, step = 0, 64
    while done < len(heads):
        different = heads[done:done + step] != heads[0]
        if different.any():
            return done + int(different.argmax())
        done += len(different)
        step *= 8
    return done


def read(data: Bytes, described: Mapping[int, Sequence[Described]], damage: Damage | None = None) -> Packets:
    """The packets of the kinds in ``described`` as one structured array in file order, fields by name.

    A field that a packet lacks is zero; fields of types that no array holds are left out.
    """
    return joined(data, [run for run in runs(data, damage) if run.kind in described], described)


def read_pieces(pieces: Iterable[Bytes], described: Mapping[int, Sequence[Described]],
                damage: Damage | None = None) -> Iterator[Packets]:
    """As ``read``, of a file whose ``pieces`` are a number of whole blocks each, but for the last."""
    data, offset = np.zeros(0, np.uint8), 0  # what the piece before ended in the middle of
    for piece in pieces:
        data = np.concatenate([data, piece]) if len(data) else piece
        walk, found = runs(data, damage, offset), []
        try:
            while True:
                found.append(next(walk))
        except StopIteration as ended:
            offset = ended.value
        yield joined(data, [run for run in found if run.kind in described], described)
        block = min(offset, len(data)) // BLOCK_SIZE * BLOCK_SIZE
        data, offset = data[block:].copy(), offset - block


def joined(data: Bytes, found: list[Run], described: Mapping[int, Sequence[Described]]) -> Packets:
    """The packets of some runs, of kinds in ``described``, as ``read`` gives them."""
    if len({(run.kind, run.size) for run in found}) == 1:
        dtype = _dtype(described[found[0].kind], found[0].size)
        size = found[0].size
        pieces = [data[run.offset:run.offset + run.count * size] for run in found]
        return (pieces[0] if len(pieces) == 1 else np.concatenate(pieces)).view(dtype)
    return _mixed(data, found, described)


# What reports ask of a clock packet.
_ASKED = {field.name: field.type for field in CLOCK.fields
          if field.name in ("LWPID", "THRID", "CPUID", "TSTAMP", "FRINFO", "MSTATE", "NTICK")}
# Instead of MSTATE and NTICK a packet may have a counter for each state, in the order of their numbers.
_COUNTERS = ("UCPU", "SCPU", "TRAP", "TFLT", "DFLT", "KFLT", "ULCK", "TSLP", "WCPU", "TSTP")
# The longest time that a packet may stand for; sums of many stay below 64 bits.
_LONGEST_US = 1 << 48


def sound_clock_packets(packets: Packets, interval_us: int, damage: Damage) -> Packets:
    """Those packets whose numbers can be, with every field that reports ask for; one that was not described is zero.

    Of one with a counter for each state there is one for each state that it counts.
    """
    packets = _one_for_each_state(packets)
    missing = [name for name in _ASKED if name not in (packets.dtype.names or ())]
    if missing and len(packets):
        damage.note(f"clock packets without {', '.join(missing)}, which the log does not describe", len(packets))
    if missing:
        packets = _with_fields(packets, {name: _ASKED[name] for name in missing})
    sound = (packets["NTICK"] >= 0) & (packets["NTICK"] <= _LONGEST_US // max(interval_us, 1))
    sound &= (packets["TSTAMP"] >= 0) & (packets["TSTAMP"] <= TIME_MAX_NS)
    for name in ("LWPID", "THRID", "CPUID", "MSTATE"):
        if packets.dtype[name] == np.uint64:
            sound &= packets[name] <= np.iinfo(np.int64).max
    if not sound.all():
        damage.note("packets with impossible times were skipped", int((~sound).sum()))
        packets = packets[sound]
    return packets


def _one_for_each_state(packets: Packets) -> Packets:
    names = packets.dtype.names or ()
    counted = [state for state, name in enumerate(_COUNTERS) if name in names]
    if not counted or {"MSTATE", "NTICK"} & set(names):
        return packets
    ticks = np.stack([packets[_COUNTERS[state]].astype(np.int64) for state in counted], axis=1)  # (n, states)
    rows, states = np.nonzero(ticks)
    result = _with_fields(packets[rows], {name: _ASKED[name] for name in ("MSTATE", "NTICK")})
    result["MSTATE"], result["NTICK"] = np.array(counted)[states], ticks[rows, states]
    return result


# The largest block of memory, transfer or number of events that a packet may tell of.
_LARGEST = 1 << 48


class Traced(NamedTuple):
    """Packets of a kind that is traced, with all fields of its record; IOFNAME is a name's place in ``strings``."""

    packets: Packets
    strings: tuple[bytes, ...] = (b"",)


def read_traced(data: Bytes, described: Mapping[int, Sequence[Described]], record: Record, damage: Damage) -> Traced:
    """The sound packets of a file that is described; a field of ``record`` that is not described is zero."""
    packets = read(data, described, damage)
    asked = {field.name: field.type for field in record.fields if field.meaning}
    missing = [name for name in asked if name not in (packets.dtype.names or ())]
    if missing and len(packets):
        what = f"{record.name} packets without {', '.join(missing)}, which the log does not describe"
        damage.note(what, len(packets))
    places, strings = _strings(data, described)
    others = {name: packets.dtype[name] for name in packets.dtype.names or () if name not in asked}
    named = {IO_NAME.name: _TYPES["INT32"]} if record is IO else {}
    others = {name: type_ for name, type_ in others.items() if name not in named}
    result = np.zeros(len(packets), [*asked.items(), *others.items(), *named.items()])
    sound = np.ones(len(packets), np.bool_)
    for name in {**asked, **others}.keys() - set(missing):
        if packets.dtype[name] == np.uint64 and result.dtype[name] == np.int64:
            sound &= packets[name] <= np.iinfo(np.int64).max
        result[name] = packets[name]
    if named:
        result[IO_NAME.name] = places
    sound &= (result["TSTAMP"] >= 0) & (result["TSTAMP"] <= TIME_MAX_NS)
    for name in ("SRQST", "IORQST"):
        if name in asked:
            sound &= (result[name] <= result["TSTAMP"]) & (result[name] >= 0)
    damage.note("packets with impossible times were skipped", int((~sound).sum()))
    return Traced(_of_possible_size(result[sound], damage), strings)


def _of_possible_size(packets: Packets, damage: Damage) -> Packets:
    """Without those that tell of more than there can be: a block that was allocated, bytes read, events counted."""
    names = packets.dtype.names or ()
    sound = np.ones(len(packets), np.bool_)
    if "HSIZE" in names:
        sound &= (packets["HSIZE"] <= _LARGEST) | (packets["HVADDR"] == 0)
    if "IONBYTE" in names:
        sound &= (packets["IONBYTE"] >= -1 - _LARGEST) & (packets["IONBYTE"] <= _LARGEST)
    if "HWCINT" in names:
        doubtful = packets["HWCINT"] < 0
        damage.note("counter packets that the collector marked as doubtful were skipped", int(doubtful.sum()))
        packets, sound = packets[~doubtful], (packets["HWCINT"] <= _LARGEST)[~doubtful]
    damage.note("packets with impossible sizes were skipped", int((~sound).sum()))
    return packets[sound]


Places = npt.NDArray[np.int32]


def _strings(data: Bytes, described: Mapping[int, Sequence[Described]]) -> tuple[Places, tuple[bytes, ...]]:
    """For each packet the place of its name among the distinct ones; 0: it has none."""
    offsets = {kind: field.offset for kind, fields in described.items() for field in fields
               if field.name == IO_NAME.name and field.type == IO_NAME.type and field.offset >= HEAD.size}
    known: dict[bytes, int] = {b"": 0}
    pieces = [np.zeros(0, np.int32)]
    for run in runs(data):
        if run.kind not in described:
            continue
        places, offset = np.zeros(run.count, np.int32), offsets.get(run.kind, run.size)
        if offset < run.size:
            texts = data[run.offset:run.offset + run.count * run.size].reshape(run.count, run.size)[:, offset:]
            for row in indices(texts[:, 0]).tolist():
                places[row] = known.setdefault(texts[row].tobytes().partition(b"\0")[0], len(known))
        pieces.append(places)
    return np.concatenate(pieces), tuple(known)


def _with_fields(packets: Packets, types: Mapping[str, str]) -> Packets:
    kept = packets.dtype.names or ()
    result = np.zeros(len(packets), [*((name, packets.dtype[name]) for name in kept), *types.items()])
    for name in kept:
        result[name] = packets[name]
    return result


def _mixed(data: Bytes, found: list[Run], described: Mapping[int, Sequence[Described]]) -> Packets:
    formats = {field.name: _TYPES[field.type] for fields in described.values() for field in fields
               if field.type in _TYPES and field.name}
    result = np.zeros(sum(run.count for run in found), list(formats.items()))
    done = 0
    for run in found:
        dtype = _dtype(described[run.kind], run.size)
        packets = data[run.offset:run.offset + run.count * run.size].view(dtype)
        for name in dtype.names or ():
            result[name][done:done + run.count] = packets[name]
        done += run.count
    return result


def _dtype(fields: Sequence[Described], size: int) -> np.dtype[Any]:
    fitting = {field.name: field for field in fields if field.type in _TYPES and field.name
               and field.offset >= 0 and field.offset + int(_TYPES[field.type][2]) <= size}
    return np.dtype({"names": list(fitting), "formats": [_TYPES[field.type] for field in fitting.values()],
                     "offsets": [field.offset for field in fitting.values()], "itemsize": size})
