"""pprof's profile: gzipped protocol buffers, as ``go tool pprof`` and many others read them.

A sample type for each state and metric, in nanoseconds, bytes or counts; a sample for each stack, thread and state,
with the labels ``process``, ``pid``, ``thread``, ``tid`` and ``state``. A location is an instruction; its address is
its offset in the file of its mapping. The schema is that of google/pprof, proto/profile.proto.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from functools import cached_property
from itertools import islice
from typing import Any, BinaryIO

from collector.clock import NS_PER_US
from collector.export.choices import (
    Choices,
    default_of,
    everything,
    lines,
    names,
    notes,
    source_files,
    thread_names,
)
from collector.export.protobuf import framed, messages
from collector.export.text import printable
from collector.report.samples import Samples

_SCHEMA = {
    "ValueType": "type=1 int64, unit=2 int64",
    "Label": "key=1 int64, str=2 int64, num=3 int64, num_unit=4 int64",
    "Sample": "location_id=1 uint64+, value=2 int64+, label=3 Label*",
    "Mapping": "id=1 uint64, memory_start=2 uint64, memory_limit=3 uint64, file_offset=4 uint64, filename=5 int64, "
               "build_id=6 int64, has_functions=7 bool, has_filenames=8 bool, has_line_numbers=9 bool",
    "Line": "function_id=1 uint64, line=2 int64",
    "Location": "id=1 uint64, mapping_id=2 uint64, address=3 uint64, line=4 Line*",
    "Function": "id=1 uint64, name=2 int64, system_name=3 int64, filename=4 int64",
    "Profile": "sample_type=1 ValueType*, sample=2 Sample*, mapping=3 Mapping*, location=4 Location*, "
               "function=5 Function*, string_table=6 string*, time_nanos=9 int64, duration_nanos=10 int64, "
               "period_type=11 ValueType, period=12 int64, comment=13 int64+, default_sample_type=14 int64",
}
_SAMPLE = 2  # the number of that field
_UNITS = {"us": "nanoseconds", "bytes": "bytes", "count": "count"}
_AT_ONCE = 1 << 10
_LIMIT = 1 << 62  # behind every offset in a file


def write(samples: Samples, out: BinaryIO, choices: Choices) -> None:
    """The profile; ``choices`` say nothing to it."""
    with gzip.GzipFile(fileobj=out, mode="wb", compresslevel=3, mtime=0) as packed:
        profile = _Profile(samples)
        found = profile.samples()
        while some := list(islice(found, _AT_ONCE)):
            packed.write(b"".join(some))
        packed.write(profile.rest().SerializeToString())


class _Profile:
    """A profile being made; strings are numbered as they are met."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples
        self._quantities = everything(samples)
        self._strings: dict[str, int] = {"": 0}
        self._pb = messages("perftools.profiles", _SCHEMA)

    def samples(self) -> Iterator[bytes]:
        """Each as a field of the profile. What a stack, or a thread and state, add to it is made once."""
        groups = self._samples.groups
        n = self._samples.n_places  # what is inlined is in the location of what it is inlined in
        stacks = [self._pb.Sample(location_id=[frame + 1 for frame in stack if frame < n]).SerializeToString()
                  for stack in self._samples.stacks.lists()]
        columns = [column for one in self._samples.quantities for column in one.columns]
        rows, places = groups.weights[:, columns].nonzero()
        values = groups.weights[:, columns][rows, places]
        labels: dict[tuple[int, int], bytes] = {}
        for stack, thread, place, value in zip(groups.stack[rows].tolist(), groups.thread[rows].tolist(),
                                               places.tolist(), values.tolist(), strict=True):
            if (thread, place) not in labels:
                labels[thread, place] = self._pb.Sample(label=self._labels(thread, place)).SerializeToString()
            yield framed(_SAMPLE, stacks[stack], self._values(place, value), labels[thread, place])

    def _values(self, place: int, value: int) -> bytes:
        """All values of a sample that counts for one quantity, and for the sums that it is in."""
        scaled = value * self._scales[place]
        found = self._pb.Sample(value=[scaled if is_in else 0 for is_in in self._counts_for[place]])
        return bytes(found.SerializeToString())

    @cached_property
    def _scales(self) -> list[int]:
        return [NS_PER_US if one.unit == "us" else 1 for one in self._samples.quantities]

    @cached_property
    def _counts_for(self) -> list[list[bool]]:
        """For each quantity which values a sample of it has."""
        return [[set(one.columns) <= set(other.columns) for other in self._quantities]
                for one in self._samples.quantities]

    def _labels(self, thread_number: int, place: int) -> list[Any]:
        thread = self._samples.threads[thread_number]
        process = self._samples.processes[thread.process]
        texts = {"process": printable(process.name), "thread": self._thread_names[thread_number],
                 "state": self._samples.quantities[place].name}
        return [*(self._pb.Label(key=self._string(key), str=self._string(value)) for key, value in texts.items()),
                *(self._pb.Label(key=self._string(key), num=value)
                  for key, value in (("pid", process.pid), ("tid", thread.tid)))]

    @cached_property
    def _thread_names(self) -> list[str]:
        return thread_names(self._samples)

    def rest(self) -> Any:
        """Everything but the samples."""
        samples, pb = self._samples, self._pb
        profile = pb.Profile(
            sample_type=[pb.ValueType(type=self._string(one.name), unit=self._string(_UNITS[one.unit]))
                         for one in self._quantities],
            time_nanos=samples.start_unix_ns, duration_nanos=samples.end_ns - samples.start_ns,
            period_type=pb.ValueType(type=self._string("clock"), unit=self._string("nanoseconds")),
            period=samples.interval_us * NS_PER_US, comment=[self._string(note) for note in notes(samples)])
        if self._quantities:
            profile.default_sample_type = self._string(self._quantities[default_of(self._quantities)].name)
        self._add_code(profile)
        profile.string_table.extend(self._strings)
        return profile

    def _add_code(self, profile: Any) -> None:
        samples, places, paths = self._samples, lines(self._samples), source_files(self._samples)
        mappings = {loaded.number: place for place, loaded in enumerate(samples.objects, 1)}
        for place, loaded in enumerate(samples.objects, 1):
            profile.mapping.add(id=place, memory_limit=_LIMIT, filename=self._string(printable(loaded.path)),
                                build_id=self._string(samples.build_id(loaded).hex()), has_functions=True,
                                has_filenames=True, has_line_numbers=True)
        function_of = samples.function_of.tolist()
        for place, (levels, address) in enumerate(zip(samples.levels, samples.addresses[:samples.n_places].tolist(),
                                                      strict=True)):
            location = profile.location.add(id=place + 1, address=address)
            location.mapping_id = mappings.get(samples.functions[function_of[place]].object_number, 0)
            for frame in levels:  # innermost first
                location.line.add(function_id=function_of[frame] + 1, line=places[frame][1])
        for number, (function, name) in enumerate(zip(samples.functions, names(samples, ""), strict=True)):
            linkage = printable(function.linkage)  # equal names are taken for mangled ones
            profile.function.add(id=number + 1, name=self._string(name), system_name=self._string(
                linkage if linkage != name else ""), filename=self._string(paths.get(number, "")))

    def _string(self, value: str) -> int:
        return self._strings.setdefault(value, len(self._strings))
