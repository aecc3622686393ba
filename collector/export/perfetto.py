"""A trace for Perfetto: a track for each thread with its states as slices, each with the call stack of its packet.

A slice ends at the time of its packet and is as long as the time that the packet counts for, but begins where the one
before it ended at the earliest. What it counts for exactly is its ``callstack_weight``, in microseconds, and, with the
CPU, among its arguments: the flame graph of a selection is weighed by it. Waits for locks, and input and output, that
were traced one by one are slices of tracks of their own; what has no length is an instant. The schema is that of
google/perfetto, protos/perfetto/trace.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np

from collector.export.choices import Choices, lines, names, notes_by_process, thread_names
from collector.export.protobuf import Stamp, marks, messages
from collector.export.text import printable
from collector.report.kinds import IO, LOCKS
from collector.report.profile import I8
from collector.report.samples import Block, Quantity, Samples

_SCHEMA = {
    "InternedString": "iid=1 uint64, str=2 bytes",
    "EventName": "iid=1 uint64, name=2 string",
    "Mapping": "iid=1 uint64, build_id=2 uint64, end=5 uint64, path_string_ids=7 uint64*",
    "Frame": "iid=1 uint64, function_name_id=2 uint64, mapping_id=3 uint64, rel_pc=4 uint64, source_path_iid=5 uint64, "
             "line_number=6 uint32",
    "Callstack": "iid=1 uint64, frame_ids=2 uint64*",
    "InternedData": "event_categories=1 EventName*, event_names=2 EventName*, debug_annotation_names=3 EventName*, "
                    "function_names=5 InternedString*, frames=6 Frame*, callstacks=7 Callstack*, "
                    "build_ids=16 InternedString*, mapping_paths=17 InternedString*, source_paths=18 InternedString*, "
                    "mappings=19 Mapping*",
    "DebugAnnotation": "name_iid=1 uint64, int_value=4 int64",
    "TrackEvent": "category_iids=3 uint64*, debug_annotations=4 DebugAnnotation*, type=9 int32, name_iid=10 uint64, "
                  "track_uuid=11 uint64, callstack_iid=56 uint64, callstack_weight=57 double",
    "ProcessDescriptor": "pid=1 int32, cmdline=2 string*, process_name=6 string",
    "ThreadDescriptor": "pid=1 int32, tid=2 int64, thread_name=5 string",
    "TrackDescriptor": "uuid=1 uint64, name=2 string, process=3 ProcessDescriptor, thread=4 ThreadDescriptor, "
                       "parent_uuid=5 uint64, description=14 string",
    "Clock": "clock_id=1 uint32, timestamp=2 uint64",
    "ClockSnapshot": "clocks=1 Clock*",
    "TracePacketDefaults": "timestamp_clock_id=58 uint32",
    "TracePacket": "clock_snapshot=6 ClockSnapshot, timestamp=8 uint64, trusted_packet_sequence_id=10 uint32, "
                   "track_event=11 TrackEvent, interned_data=12 InternedData, sequence_flags=13 uint32, "
                   "trace_packet_defaults=59 TracePacketDefaults, track_descriptor=60 TrackDescriptor",
    "Trace": "packet=1 TracePacket*",
}
_BEGIN, _END, _INSTANT = 1, 2, 3
_REALTIME, _MONOTONIC, _BOOTTIME = 1, 3, 6
_CLEARED, _NEEDED = 1, 2
_WORTH, _CPU = 1, 2  # names of annotations
_SEQUENCE = 1
# Kinds of packets that last, by what their tracks are called. Each has its own: they come kind by kind, not by time.
_TRACED = {LOCKS: "locks", IO: "input and output"}
_LIMIT = 1 << 62


def write(samples: Samples, out: BinaryIO, choices: Choices) -> None:
    """The trace; ``choices`` say nothing to it."""
    pb = messages("collect.perfetto", _SCHEMA, "proto2")
    quantities = {column: one for one in samples.quantities for column in one.columns}
    for packet in _heads(samples, pb, quantities):
        out.write(pb.Trace(packet=[packet]).SerializeToString())
    slices, instants = _Slices(samples, pb), _stamp(pb, (_INSTANT,))
    for block in samples.blocks():
        if not len(block):
            continue
        if block.first == 0:
            chosen = np.flatnonzero(np.isin(block.state, list(quantities)))
            out.write(slices.printed(block, chosen, block.state[chosen].astype(np.int64), block.time_us[chosen], 0))
        columns = [column for column in range(block.first, block.first + block.values.shape[1]) if column in quantities]
        lasting = [column for column in columns if quantities[column].unit == "us" and block.duration_ns.any()]
        if lasting:
            worth = block.values[:, np.array(lasting) - block.first]
            chosen, of = worth.nonzero()
            out.write(slices.printed(block, chosen, np.array(lasting)[of], worth[chosen, of],
                                     _first_traced(samples, block.kind)))
        for column in columns:
            if column not in lasting:
                out.write(_instants(instants, block, column, block.values[:, column - block.first]))


def _first_traced(samples: Samples, kind: str) -> int:
    """The first of the tracks that threads have for a kind, behind those of their states."""
    return len(samples.threads) * (1 + list(_TRACED).index(kind))


def _heads(samples: Samples, pb: Any, quantities: dict[int, Quantity]) -> Iterator[Any]:
    """Clocks, tracks, and all that events refer to by number."""
    start_ns, unix_ns = samples.start_ns, samples.start_unix_ns
    yield pb.TracePacket(trusted_packet_sequence_id=_SEQUENCE, clock_snapshot=pb.ClockSnapshot(
        clocks=[pb.Clock(clock_id=_BOOTTIME, timestamp=start_ns), pb.Clock(clock_id=_MONOTONIC, timestamp=start_ns),
                pb.Clock(clock_id=_REALTIME, timestamp=unix_ns)]))
    yield pb.TracePacket(trusted_packet_sequence_id=_SEQUENCE, sequence_flags=_CLEARED,
                         trace_packet_defaults=pb.TracePacketDefaults(timestamp_clock_id=_MONOTONIC),
                         interned_data=_interned(samples, pb, quantities))
    for track in _tracks(samples, pb):
        yield pb.TracePacket(trusted_packet_sequence_id=_SEQUENCE, track_descriptor=track)


def _tracks(samples: Samples, pb: Any) -> Iterator[Any]:
    """Of processes, each with its threads and what is traced in them: a thread is of the last process of its pid."""
    first_process = 1 + len(samples.threads) * (1 + len(_TRACED))
    said, titles = notes_by_process(samples), thread_names(samples)
    places: list[list[int]] = [[] for _ in samples.processes]
    for place, thread in enumerate(samples.threads):
        places[thread.process].append(place)
    for number, process in enumerate(samples.processes):
        yield pb.TrackDescriptor(
            uuid=first_process + number, description="\n".join(said[number]), process=pb.ProcessDescriptor(
                pid=process.pid, process_name=printable(process.name),
                cmdline=[printable(process.experiment.log.arguments)]))
        for place in places[number]:
            yield pb.TrackDescriptor(uuid=1 + place, thread=pb.ThreadDescriptor(
                pid=process.pid, tid=samples.threads[place].tid, thread_name=titles[place]))
            for kind, name in _TRACED.items():
                if kind in process.experiment.kinds:
                    yield pb.TrackDescriptor(uuid=1 + _first_traced(samples, kind) + place, parent_uuid=1 + place,
                                             name=name)


def _interned(samples: Samples, pb: Any, quantities: dict[int, Quantity]) -> Any:
    def text(iid: int, value: str) -> Any:
        return pb.InternedString(iid=iid, str=value.encode())

    places = lines(samples)
    paths = {path: number for number, path in enumerate(dict.fromkeys(path for path, _ in places if path), 1)}
    of_object = {loaded.number: place for place, loaded in enumerate(samples.objects, 1)}
    elsewhere = len(of_object) + 1  # frames of no mapping would be passed over
    frames = [pb.Frame(iid=place + 1, function_name_id=number + 1, rel_pc=address, line_number=line,
                       mapping_id=of_object.get(samples.functions[number].object_number, elsewhere),
                       **({"source_path_iid": paths[path]} if path else {}))
              for place, (number, address, (path, line)) in enumerate(zip(
                  samples.function_of.tolist(), samples.addresses.tolist(), places, strict=True))]
    mapped = [(printable(one.path), samples.build_id(one)) for one in samples.objects] + [("[no load object]", b"")]
    return pb.InternedData(
        event_categories=[pb.EventName(iid=column + 1, name=one.name) for column, one in quantities.items()],
        event_names=[pb.EventName(iid=column + 1, name=one.title) for column, one in quantities.items()],
        debug_annotation_names=[pb.EventName(iid=_WORTH, name="worth"), pb.EventName(iid=_CPU, name="cpu")],
        function_names=[text(place, name) for place, name in enumerate(names(samples), 1)],
        source_paths=[text(number, path) for path, number in paths.items()],
        mapping_paths=[text(place, path.removeprefix("/")) for place, (path, _) in enumerate(mapped, 1)],
        build_ids=[pb.InternedString(iid=place, str=build_id) for place, (_, build_id) in enumerate(mapped, 1)],
        mappings=[pb.Mapping(iid=place, build_id=place, end=_LIMIT, path_string_ids=[place])
                  for place in range(1, len(mapped) + 1)],
        frames=frames,
        callstacks=[pb.Callstack(iid=place, frame_ids=[frame + 1 for frame in reversed(stack)])
                    for place, stack in enumerate(samples.stacks.lists(), 1)])


# Of an event: time, category, name, track, stack, what it counts for twice, CPU; of the end of a slice time and track.
_TIME, _STATE, _NAME, _TRACK, _STACK, _VALUE, _ON, _ENDS, _END_TRACK = marks(63, 14, 14, 35, 35, 63, 35, 63, 35)
_WEIGHT = 0.123456789


def _stamp(pb: Any, types: tuple[int, ...]) -> Stamp:
    """A slice's beginning and end, or an instant."""
    packets = [pb.TracePacket(trusted_packet_sequence_id=_SEQUENCE, sequence_flags=_NEEDED, timestamp=_TIME,
                              track_event=pb.TrackEvent(
        type=types[0], category_iids=[_STATE], name_iid=_NAME, track_uuid=_TRACK, callstack_iid=_STACK,
        callstack_weight=_WEIGHT, debug_annotations=[pb.DebugAnnotation(name_iid=_WORTH, int_value=_VALUE),
                                                     pb.DebugAnnotation(name_iid=_CPU, int_value=_ON)]))]
    found: list[int | float] = [_TIME, _STATE, _NAME, _TRACK, _STACK, _WEIGHT, _VALUE, _ON]
    if _END in types:
        packets.append(pb.TracePacket(trusted_packet_sequence_id=_SEQUENCE, sequence_flags=_NEEDED, timestamp=_ENDS,
                                      track_event=pb.TrackEvent(type=_END, track_uuid=_END_TRACK)))
        found += [_ENDS, _END_TRACK]
    return Stamp(pb.Trace(packet=packets), found)


def _instants(stamp: Stamp, block: Block, column: int, worth: I8) -> bytes:
    which = worth != 0
    kind = np.full(int(which.sum()), column + 1)
    return stamp.printed((block.time_ns[which], kind, kind, block.thread[which] + 1, block.stack[which] + 1,
                          worth[which], worth[which], np.maximum(block.cpu[which], 0)))


class _Slices:
    """Slices, none of which begins before the last one of its track has ended."""

    def __init__(self, samples: Samples, pb: Any) -> None:
        self._stamp = _stamp(pb, (_BEGIN, _END))
        self._ended_ns = np.zeros(len(samples.threads) * (1 + len(_TRACED)), np.int64)

    def printed(self, block: Block, chosen: I8, kind: I8, worth: I8, first_track: int) -> bytes:
        """Those of the ``chosen`` packets of a block (n) in the order of their tracks and times, each of a ``kind`` (n)
        and ``worth`` (n)."""
        tracks = block.thread[chosen].astype(np.int64) + first_track
        order = np.lexsort((block.time_ns[chosen], tracks))
        chosen, number, worth, tracks = chosen[order], kind[order] + 1, worth[order], tracks[order]
        ends = block.time_ns[chosen]
        is_first = np.append(True, tracks[1:] != tracks[:-1])[:len(tracks)]
        before = np.where(is_first, self._ended_ns[tracks], np.append(0, ends[:-1])[:len(ends)])
        begins = np.clip(ends - block.duration_ns[chosen], np.minimum(before, ends), ends)
        np.maximum.at(self._ended_ns, tracks, ends)
        return self._stamp.printed((np.maximum(begins, 0), number, number, tracks + 1, block.stack[chosen] + 1,
                                    worth, worth, np.maximum(block.cpu[chosen], 0), ends, tracks + 1))
