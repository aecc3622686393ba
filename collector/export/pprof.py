"""pprof's profile: gzipped protocol buffers, as ``go tool pprof`` and many others read them.

A sample type for each state and metric, in nanoseconds, bytes or counts; a sample for each stack, thread and state,
with the labels ``process``, ``pid``, ``thread``, ``tid`` and ``state``. A location is an instruction at the address
that the link editor gave it, and mappings are the executable segments at theirs: so pprof finds the instructions of
files that lie where they must as well as of those that lie anywhere. Of a load object whose file is not there, or has
code elsewhere, the file is mapped as a whole at 0, and addresses are offsets in it. The schema is that of
google/pprof, proto/profile.proto.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import islice
from typing import Any, BinaryIO, NamedTuple

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
from collector.report.resolve import LoadedObject
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
_LIMIT = 1 << 62  # behind every offset in a file, and every address in a program
_PAGE = 4096  # pprof looks for the segment of a mapping by pages of this size, whatever the machine's are


def write(samples: Samples, out: BinaryIO, choices: Choices) -> None:
    """The profile; ``choices`` say nothing to it."""
    with gzip.GzipFile(fileobj=out, mode="wb", compresslevel=3, mtime=0) as packed:
        profile = _Profile(samples)
        found = profile.samples()
        while some := list(islice(found, _AT_ONCE)):
            packed.write(b"".join(some))
        packed.write(profile.rest().SerializeToString())


class _Range(NamedTuple):
    """A part of a file: ``size`` bytes from ``file_offset`` on that are mapped at ``vaddr``."""

    vaddr: int
    file_offset: int
    size: int

    def holds(self, offset: int) -> bool:
        """Whether the byte at an offset in the file is in it."""
        return self.file_offset <= offset < self.file_offset + self.size

    @property
    def page_offset(self) -> int:
        """How far behind the begin of a page it begins."""
        return self.vaddr % _PAGE


_WHOLE = _Range(0, 0, _LIMIT)


def _ranges(loaded: LoadedObject, offsets: Iterable[int]) -> list[_Range]:
    """What is mapped of an object so that ``offsets`` in its file have addresses."""
    texts = [_Range(text.vaddr, text.file_offset, text.file_size) for text in loaded.texts if text.file_size]
    can_be = all(one.vaddr + one.size < _LIMIT and one.file_offset % _PAGE == one.page_offset for one in texts)
    return texts if can_be and all(any(one.holds(offset) for one in texts) for offset in offsets) else [_WHOLE]


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
        function_of = samples.function_of.tolist()
        for place, (levels, (mapping, address)) in enumerate(zip(samples.levels, self._mapped(profile), strict=True)):
            location = profile.location.add(id=place + 1, mapping_id=mapping, address=address)
            for frame in levels:  # innermost first
                location.line.add(function_id=function_of[frame] + 1, line=places[frame][1])
        for number, (function, name) in enumerate(zip(samples.functions, names(samples, ""), strict=True)):
            linkage = printable(function.linkage)  # equal names are taken for mangled ones
            profile.function.add(id=number + 1, name=self._string(name), system_name=self._string(
                linkage if linkage != name else ""), filename=self._string(paths.get(number, "")))

    def _mapped(self, profile: Any) -> Iterator[tuple[int, int]]:
        """Adds the mappings, the program's first; for each location its own, 0 for none, and its address."""
        samples, n = self._samples, self._samples.n_places
        places = [(samples.functions[function].object_number, offset) for function, offset in zip(
            samples.function_of[:n].tolist(), samples.addresses[:n].tolist(), strict=True)]
        offsets: dict[int, list[int]] = {}
        for number, offset in places:
            offsets.setdefault(number, []).append(offset)
        mapped: dict[int, list[tuple[int, _Range]]] = {}
        for loaded in samples.objects:
            for one in _ranges(loaded, offsets[loaded.number]) if loaded.number in offsets else [_WHOLE]:
                number = self._add_mapping(profile, loaded, one)
                mapped.setdefault(loaded.number, []).append((number, one))
        for number, offset in places:
            known = mapped.get(number, [(0, _WHOLE)])
            mapping, one = next((pair for pair in known if pair[1].holds(offset)), known[0])  # a kernel's is behind all
            yield mapping, offset - one.file_offset + one.vaddr

    def _add_mapping(self, profile: Any, loaded: LoadedObject, mapped: _Range) -> int:
        """By whole pages, as the kernel maps; its number."""
        number, end = len(profile.mapping) + 1, mapped.vaddr + mapped.size
        profile.mapping.add(
            id=number, memory_start=mapped.vaddr - mapped.page_offset, memory_limit=end + -end % _PAGE,
            file_offset=mapped.file_offset - mapped.page_offset, filename=self._string(printable(loaded.path)),
            build_id=self._string(self._samples.build_id(loaded).hex()), has_functions=True, has_filenames=True,
            has_line_numbers=True)
        return number

    def _string(self, value: str) -> int:
        return self._strings.setdefault(value, len(self._strings))
