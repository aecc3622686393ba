"""OpenTelemetry's profiles, as the payload of OTLP: EXPERIMENTAL, as the schema is that it follows (v1development).

A resource for each process, in it a profile for each quantity. A sample is a stack in a thread; what all refer to
stands in one dictionary, whose tables begin with an empty entry. The schema is that of open-telemetry/
opentelemetry-proto 1.10, opentelemetry/proto/profiles/v1development.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from functools import cached_property
from typing import Any, BinaryIO, TypeAlias

import numpy as np

from collector.clock import NS_PER_US
from collector.export.choices import EXPORTER, Choices, lines, names, notes_by_process, source_files, thread_names
from collector.export.protobuf import messages
from collector.export.text import printable
from collector.report.profile import I8
from collector.report.samples import Groups, Quantity, Samples

_SCHEMA = {
    "AnyValue": "string_value=1 string, int_value=3 int64, array_value=5 ArrayValue",
    "ArrayValue": "values=1 AnyValue*",
    "KeyValue": "key=1 string, value=2 AnyValue",
    "Resource": "attributes=1 KeyValue*",
    "InstrumentationScope": "name=1 string",
    "KeyValueAndUnit": "key_strindex=1 int32, value=2 AnyValue, unit_strindex=3 int32",
    "ValueType": "type_strindex=1 int32, unit_strindex=2 int32",
    "Function": "name_strindex=1 int32, system_name_strindex=2 int32, filename_strindex=3 int32",
    "Line": "function_index=1 int32, line=2 int64",
    "Location": "mapping_index=1 int32, address=2 uint64, lines=3 Line*",
    "Stack": "location_indices=1 int32+",
    "Mapping": "memory_limit=2 uint64, filename_strindex=4 int32, attribute_indices=5 int32+",
    "Link": "trace_id=1 bytes, span_id=2 bytes",
    "Sample": "stack_index=1 int32, attribute_indices=2 int32+, values=4 int64+",
    "Profile": "sample_type=1 ValueType, samples=2 Sample*, time_unix_nano=3 fixed64, duration_nano=4 uint64, "
               "period_type=5 ValueType, period=6 int64, profile_id=7 bytes, attribute_indices=11 int32+",
    "ScopeProfiles": "scope=1 InstrumentationScope, profiles=2 Profile*",
    "ResourceProfiles": "resource=1 Resource, scope_profiles=2 ScopeProfiles*",
    "ProfilesDictionary": "mapping_table=1 Mapping*, location_table=2 Location*, function_table=3 Function*, "
                          "link_table=4 Link*, string_table=5 string*, attribute_table=6 KeyValueAndUnit*, "
                          "stack_table=7 Stack*",
    "ProfilesData": "resource_profiles=1 ResourceProfiles*, dictionary=2 ProfilesDictionary",
}
_UNITS = {"us": "nanoseconds", "bytes": "bytes", "count": "count"}
_LIMIT = 1 << 62
_Value: TypeAlias = str | int | tuple[str, ...]


def write(samples: Samples, out: BinaryIO, choices: Choices) -> None:
    """The payload; ``choices`` say nothing to it."""
    made = _Profiles(samples)
    for number in range(len(samples.processes)):
        out.write(made.of_process(number).SerializeToString())
    out.write(made.dictionary().SerializeToString())


class _Profiles:
    """Profiles being made; strings and attributes are numbered as they are met."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples
        self._pb = messages("collect.otlp", _SCHEMA)
        self._strings: dict[str, int] = {"": 0}
        self._attributes: dict[tuple[str, _Value], int] = {}

    def of_process(self, number: int) -> Any:
        """The profiles of a process."""
        pb, process = self._pb, self._samples.processes[number]
        about: dict[str, str | int] = {
            "service.name": printable(process.name), "process.pid": process.pid,
            "process.executable.name": printable(process.name),
            "process.command_line": printable(process.experiment.log.arguments), "host.name": printable(os.fsencode(
                process.experiment.log.hostname))}
        mine = self._samples.groups.chosen(self._groups_of[number])
        scope = pb.ScopeProfiles(scope=pb.InstrumentationScope(name=EXPORTER), profiles=[
            self._profile(number, one, mine) for one in self._samples.quantities])
        return pb.ProfilesData(resource_profiles=[pb.ResourceProfiles(
            resource=pb.Resource(attributes=[pb.KeyValue(key=key, value=self._any(value))
                                             for key, value in about.items()]), scope_profiles=[scope])])

    @cached_property
    def _groups_of(self) -> list[I8]:
        """For each process the groups of its threads."""
        threads = self._samples.threads
        process_of = np.array([thread.process for thread in threads], np.int64)[self._samples.groups.thread]
        order = np.argsort(process_of, kind="stable")
        return np.split(order, np.searchsorted(process_of[order], np.arange(1, len(self._samples.processes))))

    def _profile(self, number: int, quantity: Quantity, mine: Groups) -> Any:
        pb, samples = self._pb, self._samples
        process = samples.processes[number]
        identity = hashlib.blake2b(os.fsencode(process.experiment.path) + quantity.name.encode()
                                   + str(process.start_ns).encode(), digest_size=16).digest()
        said = self._notes[number]
        return pb.Profile(
            sample_type=self._value_type(quantity.name, quantity.unit), samples=self._found(quantity, mine),
            time_unix_nano=process.start_unix_ns, duration_nano=max(samples.end_ns - process.start_ns, 0),
            period_type=self._value_type("clock", "us"), period=samples.interval_us * NS_PER_US, profile_id=identity,
            attribute_indices=[self._attribute("collect.notes", said)] if said else [])

    def _found(self, quantity: Quantity, mine: Groups) -> Iterator[Any]:
        values = mine.of(quantity)
        scale = NS_PER_US if quantity.unit == "us" else 1
        counts = values != 0
        for stack, thread, value in zip(mine.stack[counts].tolist(), mine.thread[counts].tolist(),
                                        values[counts].tolist(), strict=True):
            yield self._pb.Sample(stack_index=stack + 1, attribute_indices=self._of_thread[thread],
                                  values=[value * scale])

    @cached_property
    def _notes(self) -> list[tuple[str, ...]]:
        return [tuple(mine) for mine in notes_by_process(self._samples)]

    @cached_property
    def _of_thread(self) -> list[list[int]]:
        """For each thread its attributes."""
        return [[self._attribute("thread.id", thread.tid), self._attribute("thread.name", name)]
                for thread, name in zip(self._samples.threads, thread_names(self._samples), strict=True)]

    def dictionary(self) -> Any:
        """What all profiles refer to."""
        pb, samples, paths = self._pb, self._samples, source_files(self._samples)
        of_object = {loaded.number: place for place, loaded in enumerate(samples.objects, 1)}
        function_of, places = samples.function_of.tolist(), lines(samples)
        mappings = [pb.Mapping(), *(pb.Mapping(
            memory_limit=_LIMIT, filename_strindex=self._string(printable(loaded.path)),
            attribute_indices=[self._attribute("process.executable.build_id.gnu", build_id.hex())] if build_id else [])
            for loaded in samples.objects for build_id in (samples.build_id(loaded),))]
        functions = [pb.Function(), *(pb.Function(
            name_strindex=self._string(name), system_name_strindex=self._string(printable(function.linkage)),
            filename_strindex=self._string(paths.get(number, "")))
            for number, (function, name) in enumerate(zip(samples.functions, names(samples, ""), strict=True)))]
        locations = [pb.Location(), *(pb.Location(
            mapping_index=of_object.get(samples.functions[function_of[levels[-1]]].object_number, 0), address=address,
            lines=[pb.Line(function_index=function_of[frame] + 1, line=places[frame][1]) for frame in levels])
            for levels, address in zip(samples.levels, samples.addresses[:samples.n_places].tolist(), strict=True))]
        stacks = [pb.Stack(), *(pb.Stack(location_indices=[frame + 1 for frame in stack if frame < samples.n_places])
                                for stack in samples.stacks.lists())]
        attributes = [pb.KeyValueAndUnit(), *(pb.KeyValueAndUnit(key_strindex=self._string(key), value=self._any(value))
                                              for key, value in self._attributes)]
        return pb.ProfilesData(dictionary=pb.ProfilesDictionary(
            mapping_table=mappings, location_table=locations, function_table=functions, link_table=[pb.Link()],
            attribute_table=attributes, stack_table=stacks, string_table=list(self._strings)))

    def _attribute(self, key: str, value: _Value) -> int:
        return self._attributes.setdefault((key, value), len(self._attributes) + 1)

    def _value_type(self, name: str, unit: str) -> Any:
        return self._pb.ValueType(type_strindex=self._string(name), unit_strindex=self._string(_UNITS[unit]))

    def _any(self, value: _Value) -> Any:
        pb = self._pb
        match value:
            case str():
                return pb.AnyValue(string_value=value)
            case int():
                return pb.AnyValue(int_value=value)
        return pb.AnyValue(array_value=pb.ArrayValue(values=[self._any(one) for one in value]))

    def _string(self, value: str) -> int:
        return self._strings.setdefault(value, len(self._strings))
