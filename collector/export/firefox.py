"""A processed profile for the Firefox Profiler: threads as tracks, states as categories of samples, markers for waits.

Samples are weighed by the milliseconds that they count for. A sample's category is that of its leaf: each state in
which an instruction was the leaf is a frame of its own, its name the same. Waits, and what was traced one by one, are
markers as long as they were. Viewers show one thread of each pid as its main thread, of several only the last: what
exec has made of a process is another one here, with a pid of its own. The format is that of profiler.firefox.com
(processed profile, version 60), which brings it up to its newest one itself.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, BinaryIO

import numpy as np

from collector.clock import NS_PER_MS
from collector.export.choices import EXPORTER, Choices, lines, names, notes, put, source_files, text
from collector.export.spool import Spool
from collector.export.text import printable
from collector.report.metrics import N_STATE_COLUMNS, STATE_KERNEL_CPU, STATE_LINUX_CPU
from collector.report.profile import I8
from collector.report.samples import FIRST_WAITING_STATE, LAST_MICROSTATE, Quantity, Samples, Thread, trie

_VERSION, _GECKO_VERSION = 60, 31
_COLORS = ("yellow", "orange", "red", "magenta", "brown", "purple", "lightred", "blue", "green", "darkgrey")
_ON_CPU = (0, 1, 2, STATE_LINUX_CPU, STATE_KERNEL_CPU)
_OTHER = 0  # the category of what is in none
_LIBRARY = 1  # a resource's type
_INTERVAL = 1  # a marker's phase
_AT_ONCE = 1 << 16
_PROCESS_KEYS = ("processType", "processStartupTime", "processShutdownTime", "registerTime", "unregisterTime",
                 "pausedRanges", "name", "isMainThread", "processName", "pid", "tid")
_SCHEMA = {"name": "Recorded", "display": ["marker-chart", "marker-table"],
           "tooltipLabel": "{marker.name}", "tableLabel": "{marker.data.worth}", "chartLabel": "{marker.name}",
           "fields": [{"key": "worth", "label": "Counts for", "format": "string"}]}


def write(samples: Samples, out: BinaryIO, choices: Choices) -> None:
    """The profile; ``choices`` say nothing to it."""
    profile = _Profile(samples)
    put(out, (f'{{"meta":{text(profile.meta())},"libs":{text(profile.libs())},"shared":',))
    put(out, profile.shared())
    put(out, (',"threads":[',))
    with Spool(profile.counts(), 5) as spool:
        profile.fill(spool)
        for place, thread in enumerate(samples.threads):
            put(out, ("," * bool(place),))
            put(out, profile.thread(place, thread, spool))
    put(out, ("]}\n",))


class _Profile:
    """A profile being made. Rows that are spooled: time, stack with its state, worth, duration, quantity's column."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples
        self._quantities = {column: one for one in samples.quantities for column in one.columns}
        self._states = [column for column in self._quantities if column < N_STATE_COLUMNS]
        self._category = {column: place for place, column in enumerate(self._states, 1)}
        self._strings: dict[str, int] = {}

    def meta(self) -> dict[str, Any]:
        """What holds for all threads."""
        samples = self._samples
        categories = [{"name": "Other", "color": "grey", "subcategories": ["Other"]}]
        for column in self._states:
            color = _COLORS[column] if column <= LAST_MICROSTATE else "grey"
            categories.append({"name": self._quantities[column].title, "color": color, "subcategories": ["Other"]})
        said = [{"label": f"Note {number}", "format": "string", "value": note}
                for number, note in enumerate(notes(samples), 1)]
        log = samples.processes[0].experiment.log if samples.processes else None
        return {
            "interval": max(samples.interval_us, 1) / 1e3, "startTime": samples.start_unix_ns / NS_PER_MS,
            "processType": 0, "product": ", ".join(printable(one.name) for one in samples.processes[:1]) or EXPORTER,
            "stackwalk": 1, "debug": False, "version": _GECKO_VERSION, "preprocessedProfileVersion": _VERSION,
            "symbolicated": True, "categories": categories, "markerSchema": [_SCHEMA], "importedFrom": EXPORTER,
            "oscpu": printable(os.fsencode(f"{log.os} {log.arch}")) if log else "", "usesOnlyOneStackType": True,
            "sampleUnits": {"time": "ms", "eventDelay": "ms", "threadCPUDelta": "\u00b5s"},
            "sourceCodeIsNotOnSearchfox": True, "keepProfileThreadOrder": True,
            "arguments": printable(log.arguments) if log else "",
            **({"extra": [{"label": "Of the recording", "entries": said}]} if said else {})}

    def libs(self) -> list[dict[str, Any]]:
        """The load objects."""
        found = []
        for loaded in self._samples.objects:
            path = printable(loaded.path)
            name, build_id = path.rsplit("/", 1)[-1], self._samples.build_id(loaded).hex()
            found.append({"arch": "", "name": name, "path": path, "debugName": name, "debugPath": path,
                          "breakpadId": "", "codeId": build_id or None})
        return found

    # -- code and stacks

    def shared(self) -> Iterator[str]:
        """Tables that all threads refer to."""
        tree, leaves = self._trie, self._leaves
        n_nodes, samples = len(tree.parent), self._samples
        stacks, variants = np.divmod(leaves, N_STATE_COLUMNS)
        leaf_nodes = tree.leaf[stacks]
        kinds, of_leaf = np.unique(tree.frame[leaf_nodes] * N_STATE_COLUMNS + variants, return_inverse=True)
        yield f'{{"stackTable":{{"length":{n_nodes + len(leaves)},"frame":['
        yield from _numbers(np.append(tree.frame, len(samples.function_of) + of_leaf))
        yield '],"prefix":['
        yield from _numbers(np.append(tree.parent, tree.parent[leaf_nodes]))
        yield ']},"frameTable":'
        yield text(self._frame_table(kinds))
        yield f',"funcTable":{text(self._function_table())},"resourceTable":{text(self._resource_table())}'
        yield ',"nativeSymbols":{"length":0,"libIndex":[],"address":[],"name":[],"functionSize":[]},"sources":'
        yield text({"length": len(self._sources), "id": [None] * len(self._sources),
                    "filename": [self._string(path) for path in self._sources]})
        self._wait_names()
        yield f',"stringArray":{text(list(self._strings))}}}'

    @cached_property
    def _trie(self) -> Any:
        return trie(self._samples.stacks)

    @cached_property
    def _leaves(self) -> I8:
        """Stacks and the states in which they occur, as ``stack * N_STATE_COLUMNS + state``, sorted; -1s of others."""
        groups = self._samples.groups
        found = [groups.stack[groups.weights[:, column] != 0] * N_STATE_COLUMNS + column for column in self._states]
        return np.unique(np.concatenate([np.zeros(0, np.int64), *found]))

    def _frame_table(self, kinds: I8) -> dict[str, Any]:
        """Instructions, then leaves with their states."""
        samples = self._samples
        number = np.append(np.arange(len(samples.function_of)), kinds // N_STATE_COLUMNS)
        of_line = [line for _, line in lines(samples)]
        is_of_file = {loaded.number for loaded in samples.objects}
        has_address = [one.has_offsets and one.object_number in is_of_file for one in samples.functions]
        functions = samples.function_of[number].tolist()
        addresses = samples.addresses[number].tolist()
        n = len(number)
        categories = [None] * len(samples.function_of) + [self._category[column]
                                                          for column in (kinds % N_STATE_COLUMNS).tolist()]
        return {"length": n, "func": functions, "category": categories,
                "address": [address if has_address[one] else -1
                            for one, address in zip(functions, addresses, strict=True)],
                "line": [of_line[one] or None for one in number.tolist()],
                "inlineDepth": samples.inline_depth[number].tolist(),
                "column": [None] * n, "nativeSymbol": [None] * n, "innerWindowID": [None] * n,
                "subcategory": [None if category is None else 0 for category in categories]}

    def _function_table(self) -> dict[str, Any]:
        samples = self._samples
        places = {loaded.number: place for place, loaded in enumerate(samples.objects)}
        called = names(samples, "")
        paths = source_files(samples)
        n = len(called)
        return {"length": n, "name": [self._string(name) for name in called], "isJS": [False] * n,
                "relevantForJS": [False] * n, "lineNumber": [None] * n, "columnNumber": [None] * n,
                "resource": [places.get(one.object_number, -1) for one in samples.functions],
                "source": [self._source(paths[number]) if number in paths else None for number in range(n)]}

    def _resource_table(self) -> dict[str, Any]:
        libs = self.libs()
        return {"length": len(libs), "lib": list(range(len(libs))), "host": [None] * len(libs),
                "name": [self._string(lib["name"]) for lib in libs], "type": [_LIBRARY] * len(libs)}

    @cached_property
    def _sources(self) -> dict[str, int]:
        return {}

    def _source(self, path: str) -> int:
        return self._sources.setdefault(path, len(self._sources))

    def _wait_names(self) -> dict[int, int]:
        """For each quantity the string that its markers are called by."""
        return {column: self._string(one.title) for column, one in self._quantities.items()}

    def _string(self, value: str) -> int:
        return self._strings.setdefault(value, len(self._strings))

    # -- packets

    def counts(self) -> I8:
        """How many rows there may be for each thread."""
        n_threads, counts = len(self._samples.threads), np.zeros(len(self._samples.threads), np.int64)
        for block in self._samples.blocks():
            counts += np.bincount(block.thread, minlength=n_threads) * max(block.values.shape[1], 1)
        return counts

    def fill(self, spool: Spool) -> None:
        """Puts all packets that count for something into the spool."""
        for block in self._samples.blocks():
            if not block.first:
                keep = (block.time_us > 0) & np.isin(block.state, self._states)
                stack = self._place(block.stack[keep].astype(np.int64) * N_STATE_COLUMNS + block.state[keep])
                spool.put(block.thread[keep].astype(np.int64), (
                    block.time_ns[keep], stack, block.time_us[keep], block.duration_ns[keep],
                    block.state[keep].astype(np.int64)))
            for place in range(block.values.shape[1]):
                column, worth = block.first + place, block.values[:, place]
                keep = (worth != 0) & (column in self._quantities)
                spool.put(block.thread[keep].astype(np.int64), (
                    block.time_ns[keep], np.full(int(keep.sum()), -1), worth[keep], block.duration_ns[keep],
                    np.full(int(keep.sum()), column)))

    def _place(self, leaves: I8) -> I8:
        """The rows of the table of stacks."""
        return len(self._trie.parent) + np.searchsorted(self._leaves, leaves)

    def thread(self, place: int, thread: Thread, spool: Spool) -> Iterator[str]:
        """A thread, in pieces."""
        process = self._samples.processes[thread.process]
        start_ms = (process.start_ns - self._samples.start_ns) / NS_PER_MS
        title = printable(self._samples.thread_title(thread))
        about: tuple[object, ...] = ("default", start_ms, None, start_ms, None, [], title, thread.number == 1,
                                     printable(process.name), self._pids[thread.process], thread.tid)
        yield text(dict(zip(_PROCESS_KEYS, about, strict=True)))[:-1]

        def column(of: Callable[[I8], list[Any]], which: Callable[[I8], Any]) -> Iterator[str]:
            between = ""
            for rows in spool.of(place):
                if some := text(of(rows[which(rows)]))[1:-1]:
                    yield between + some
                    between = ","

        yield ',"samples":{"weightType":"tracing-ms","stack":['
        yield from column(lambda rows: rows[:, 1].tolist(), _is_sample)
        yield '],"time":['
        yield from column(lambda rows: self._ms(rows[:, 0]), _is_sample)
        yield '],"weight":['
        yield from column(lambda rows: (rows[:, 2] / 1e3).tolist(), _is_sample)
        yield '],"threadCPUDelta":['
        yield from column(lambda rows: np.where(np.isin(rows[:, 4], _ON_CPU), rows[:, 2], 0).tolist(), _is_sample)
        yield f'],"length":{sum(int(_is_sample(rows).sum()) for rows in spool.of(place))}}},"markers":{{"name":['
        strings = self._wait_names()
        yield from column(lambda rows: [strings[one] for one in rows[:, 4].tolist()], _is_marker)
        yield '],"startTime":['
        yield from column(lambda rows: self._ms(rows[:, 0] - rows[:, 3]), _is_marker)
        yield '],"endTime":['
        yield from column(lambda rows: self._ms(rows[:, 0]), _is_marker)
        yield '],"phase":['
        yield from column(lambda rows: [_INTERVAL] * len(rows), _is_marker)
        yield '],"category":['
        yield from column(lambda rows: [self._category.get(one, _OTHER) for one in rows[:, 4].tolist()], _is_marker)
        yield '],"data":['
        yield from column(self._data, _is_marker)
        yield f'],"length":{sum(int(_is_marker(rows).sum()) for rows in spool.of(place))}}}}}'

    @cached_property
    def _pids(self) -> list[str]:
        """For each process a pid that no other has: "4711", the next one of it "4711.2"."""
        met: Counter[int] = Counter()
        found = []
        for process in self._samples.processes:
            met[process.pid] += 1
            number = met[process.pid]
            found.append(f"{process.pid}.{number}" if number > 1 else str(process.pid))
        return found

    def _data(self, rows: I8) -> list[dict[str, str]]:
        """What markers say; those that say the same are one."""
        found, inverse = np.unique(rows[:, [4, 2]], axis=0, return_inverse=True)
        said = [{"type": "Recorded", "worth": _worth(self._quantities[column], worth)}
                for column, worth in found.tolist()]
        return [said[one] for one in inverse.reshape(-1).tolist()]

    def _ms(self, times_ns: I8) -> list[float]:
        found: list[float] = (np.maximum(times_ns - self._samples.start_ns, 0) / NS_PER_MS).tolist()
        return found


def _numbers(values: I8) -> Iterator[str]:
    """As JSON; below zero: null."""
    for begin in range(0, len(values), _AT_ONCE):
        some = ("null" if value < 0 else str(value) for value in values[begin:begin + _AT_ONCE].tolist())
        yield ("," if begin else "") + ",".join(some)


def _is_sample(rows: I8) -> Any:
    return rows[:, 1] >= 0


def _is_marker(rows: I8) -> Any:
    return (rows[:, 4] >= FIRST_WAITING_STATE) & ~np.isin(rows[:, 4], _ON_CPU)


def _worth(quantity: Quantity, worth: int) -> str:
    """With its unit."""
    return f"{worth / 1e3:.3f} ms" if quantity.unit == "us" else f"{worth} {quantity.unit}"

