"""Exports read back by software of others: what each says of functions and states.

Each reader returns ``(own, whole)``: microseconds (or what the quantity counts) by ``(function, quantity)``, exclusive
and, where the format has stacks or calls, inclusive, else None.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

Sums: TypeAlias = "Counter[tuple[str, str]]"
Found: TypeAlias = "tuple[Sums, Sums | None]"

NS_PER_US = 1000
PPROF_FORMAT = """
const {Profile} = require('pprof-format');
const profile = Profile.decode(require('zlib').gunzipSync(require('fs').readFileSync(process.argv[1])));
const text = number => profile.stringTable.strings[Number(number)];
const functions = new Map(profile.function.map(one => [one.id, text(one.name)]));
const names = new Map(profile.location.map(one => [one.id, functions.get(one.line[0].functionId)]));
console.log(JSON.stringify({
  types: profile.sampleType.map(one => [text(one.type), text(one.unit)]),
  comments: profile.comment.map(text),
  samples: profile.sample.map(one => [
    one.locationId.map(id => names.get(id)), one.value.map(Number),
    Object.fromEntries(one.label.map(label => [text(label.key), label.str ? text(label.str) : Number(label.num)]))])}));
"""


def added(rows: Iterable[tuple[Sequence[str], str, int]]) -> Found:
    """From stacks, leaf first, quantities and values."""
    own: Sums = Counter()
    whole: Sums = Counter()
    for stack, quantity, value in rows:
        own[stack[0], quantity] += value
        for name in set(stack):
            whole[name, quantity] += value
    return own, whole


def go_pprof(path: Path, quantities: Iterable[str]) -> Found:
    """``go tool pprof -top``, a run for each quantity."""
    own: Sums = Counter()
    whole: Sums = Counter()
    for quantity in quantities:
        done = subprocess.run(
            ["go", "tool", "pprof", f"-sample_index={quantity}", "-top", "-unit=us", "-nodefraction=0",
             "-edgefraction=0", "-nodecount=100000", "-symbolize=none", str(path)],
            capture_output=True, text=True, check=True)
        for line in done.stdout.partition("flat%")[2].splitlines()[1:]:
            row = re.fullmatch(r" *([\d.]+)(?:us)? +\S+ +\S+ +([\d.]+)(?:us)? +\S+  (.*)", line)
            assert row is not None, line
            own[row[3], quantity] += round(float(row[1]))
            whole[row[3], quantity] += round(float(row[2]))
    return own, whole


def pprof_format(path: Path, modules: Path) -> Any:
    """What npm's pprof-format decodes, as JSON."""
    done = subprocess.run(["node", "-e", PPROF_FORMAT, str(path)], capture_output=True, text=True, check=True,
                          cwd=modules)
    return json.loads(done.stdout)


def of_pprof_format(decoded: Any, quantities: Sequence[str]) -> Found:
    """The same as sums."""
    scales = [NS_PER_US if unit == "nanoseconds" else 1 for _, unit in decoded["types"]]
    return added((stack, name, value // scale) for stack, values, _ in decoded["samples"]
                 for (name, _), value, scale in zip(decoded["types"], values, scales, strict=True)
                 if value and name in quantities)


def speedscope(path: Path, titles: dict[str, str]) -> Found:
    """The stacks of its profiles; ``titles``: quantities by the titles that profiles have."""
    found = json.loads(path.read_text("utf-8"))
    frames = [frame["name"] for frame in found["shared"]["frames"]]
    return added(([frames[frame] for frame in reversed(stack)], titles[profile["name"]], weight)
                 for profile in found["profiles"] if profile["name"] in titles
                 for stack, weight in zip(profile["samples"], profile["weights"], strict=True))


def firefox(path: Path, titles: dict[str, str]) -> Found:
    """The samples of all threads, each in its category."""
    found = json.loads(path.read_text("utf-8"))
    shared, categories = found["shared"], [titles.get(one["name"], "") for one in found["meta"]["categories"]]
    tables, strings = shared["stackTable"], shared["stringArray"]
    names = [strings[name] for name in shared["funcTable"]["name"]]
    of_frame = [names[function] for function in shared["frameTable"]["func"]]

    def stack_at(place: int | None) -> list[str]:
        stack = []
        while place is not None:
            stack.append(of_frame[tables["frame"][place]])
            place = tables["prefix"][place]
        return stack

    return added((stack_at(stack), categories[shared["frameTable"]["category"][tables["frame"][stack]]],
                  round(weight * 1000))
                 for thread in found["threads"]
                 for stack, weight in zip(thread["samples"]["stack"], thread["samples"]["weight"], strict=True))


def collapsed(paths: dict[str, Path]) -> Found:
    """A file for each quantity."""
    return added((line.rpartition(" ")[0].split(";")[::-1], quantity, int(line.rpartition(" ")[2]))
                 for quantity, path in paths.items() for line in path.read_text("utf-8").splitlines())


def perfetto(path: Path) -> Found:
    """By Perfetto's own classes."""
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2

    trace = perfetto_trace_pb2.Trace.FromString(path.read_bytes())
    interned = next(packet.interned_data for packet in trace.packet if packet.HasField("interned_data"))
    names = {one.iid: one.str.decode() for one in interned.function_names}
    frames = {one.iid: names[one.function_name_id] for one in interned.frames}
    stacks = {one.iid: [frames[frame] for frame in reversed(one.frame_ids)] for one in interned.callstacks}
    kinds = {one.iid: one.name for one in interned.event_categories}
    events = [packet.track_event for packet in trace.packet if packet.HasField("track_event")]
    assert all(event.callstack_weight == event.debug_annotations[0].int_value for event in events if event.type != 2)
    return added((stacks[event.callstack_iid], kinds[event.category_iids[0]], int(event.callstack_weight))
                 for event in events if event.type != 2)


def callgrind(path: Path, quantities: Sequence[str]) -> Found:
    """``callgrind_annotate``, exclusive and inclusive."""
    own, whole = (_annotated(path, quantities, inclusive) for inclusive in ("no", "yes"))
    return own, whole


def _annotated(path: Path, quantities: Sequence[str], inclusive: str) -> Sums:
    done = subprocess.run(
        ["callgrind_annotate", f"--inclusive={inclusive}", "--threshold=100", "--auto=no",
         f"--show={','.join(quantities)}", str(path)], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    found: Sums = Counter()
    value = r"\s*([\d,]+|\.)(?: \([ \d.]+%\))?"
    for line in done.stdout.partition("file:function")[2].splitlines():
        row = re.fullmatch(value * len(quantities) + r"  (.*)", line)
        if row is not None:
            *values, place = row.groups()
            name = re.sub(r" \[[^][]*(?:\[[^][]*\])?[^][]*\]$", "", place.partition(":")[2])
            for quantity, digits in zip(quantities, values, strict=True):
                found[name, quantity] += 0 if digits == "." else int(digits.replace(",", ""))
    return found


def duckdb(path: Path) -> Found:
    """By SQL."""
    import duckdb

    table = f"read_parquet('{path}')"
    own: Sums = Counter({(name, state): value for name, state, value in duckdb.sql(
        f"SELECT stack[1], state, sum(time_us)::BIGINT FROM {table} GROUP BY ALL").fetchall()})
    whole: Sums = Counter({(name, state): value for name, state, value in duckdb.sql(
        f"SELECT name, state, sum(time_us)::BIGINT FROM (SELECT unnest(list_distinct(stack)) AS name, state, time_us "
        f"FROM {table}) GROUP BY ALL").fetchall()})
    return own, whole


def polars(path: Path) -> Found:
    """As a data frame."""
    import polars

    frame = polars.read_parquet(path)
    stacks, states, times = (frame[name].to_list() for name in ("stack", "state", "time_us"))
    return added(zip(stacks, states, times, strict=True))


def otlp(path: Path) -> Found:
    """By OpenTelemetry's own classes."""
    from opentelemetry.proto.profiles.v1development import profiles_pb2

    found = profiles_pb2.ProfilesData.FromString(path.read_bytes())
    tables = found.dictionary
    text = tables.string_table
    assert [len(one.SerializeToString()) for one in (
        tables.mapping_table[0], tables.location_table[0], tables.function_table[0], tables.attribute_table[0],
        tables.stack_table[0], tables.link_table[0])] == [0] * 6
    assert text[0] == ""
    names = [[text[tables.function_table[line.function_index].name_strindex] for line in one.lines]
             for one in tables.location_table]  # several: inlined, innermost first
    stacks = [[name for location in one.location_indices for name in names[location]] for one in tables.stack_table]
    return added((stacks[sample.stack_index], text[profile.sample_type.type_strindex], sample.values[0] // NS_PER_US)
                 for resource in found.resource_profiles for scope in resource.scope_profiles
                 for profile in scope.profiles for sample in profile.samples)


def own_json(path: Path) -> Found:
    """The format of our own."""
    found = json.loads(path.read_text("utf-8"))
    names = [found["functions"][frame["function"]]["name"] for frame in found["frames"]]
    samples = found["samples"]
    return added(([names[frame] for frame in found["stacks"][stack]], quantity, value)
                 for quantity, values in samples["values"].items()
                 for stack, value in zip(samples["stack"], values, strict=True) if value)
