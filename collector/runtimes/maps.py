"""The maps of one process: its perf map and its jitdumps, read as they grow, and what they tell of an address. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Protocol

from collector.runtimes import perf_map
from collector.runtimes.code import Code, CodeTable
from collector.runtimes.jitdump import Jitdump

JITDUMP_PATH = re.compile(rb"/jit-\d+\.dump(?: \(deleted\))?$")


class GrowingFile(Protocol):
    """A file that is read piece by piece; ``n_anew``: how often it was seen to have been written anew."""

    n_anew: int

    def more(self) -> bytes:
        """What has been written since the last call."""

    def close(self) -> None:
        """It is not read any more."""


Open = Callable[[bytes], GrowingFile | None]
_AT_A_TIME = 4 << 20  # bytes of a file that are read, and some more: everybody waits for that
_ANCESTORS_MAX = 32  # each may have forked the next one and ended


class CodeMaps:
    """Who is asked where code is that a process has made."""

    def __init__(self, pids: Iterable[int], open_file: Open, since_ns: int, inherited: CodeMaps | None = None) -> None:
        """``pids``: by which the process may know itself; ``since_ns``: when it began; ``inherited``: the maps of the
        process that it was forked from."""
        self.n_bad = 0  # lines and records that tell nothing
        self._open = open_file
        self._map_paths = [b"/tmp/perf-%d.map" % pid for pid in dict.fromkeys(pids)]
        self._map: GrowingFile | None = None
        self._rest = b""  # of its last line
        self._n_anew = 0
        self._dumps: dict[bytes, tuple[GrowingFile, Jitdump, int]] = {}
        self._table = CodeTable()
        self._read_ns = since_ns  # up to when all has been read
        self._was_behind = False
        # Tables of ancestors, the nearest first, and up to when each counts: not their maps, which have these in turn.
        self._inherited: list[tuple[CodeTable, int]] = []
        if inherited is not None:
            self._inherited = [(inherited._table, since_ns), *inherited._inherited][:_ANCESTORS_MAX]

    @property
    def is_behind(self) -> bool:
        """Whether there is more than has been read, by which the places may be of other code."""
        return self._table.is_behind or any(table.is_behind for table, _ in self._inherited)

    def read(self, now_ns: int, mapped: Iterable[bytes]) -> bool:
        """Reads what is new up to ``now_ns``, not too much at once; whether more is known than before. ``mapped``:
        paths of what the process has mapped, among which are its jitdumps."""
        self._table.is_behind = False
        told = self._perf_map() + self._jitdumps(mapped)
        self._table.add(told)
        if not self._table.is_behind:
            self._read_ns = now_ns
        was_behind, self._was_behind = self._was_behind, self.is_behind
        return bool(told) or (was_behind and not self._was_behind)

    def at(self, pc: int, time_ns: int) -> Code | None:
        """What is at an address at a time."""
        found = self._table.at(pc, time_ns)
        for table, until_ns in self._inherited:
            found = found or table.at(pc, min(time_ns, until_ns))
        return found

    def close(self) -> None:
        """Nothing is read any more; what was told stays known to those that were forked from it. Idempotent."""
        files = [self._map, *(file for file, _, _ in self._dumps.values())]
        self._map, self._dumps, self._open, self._inherited = None, {}, lambda _: None, []
        self._table.is_behind = False
        for file in files:
            if file is not None:
                file.close()

    def _perf_map(self) -> list[Code]:
        if self._map is None:
            self._map = next(filter(None, map(self._open, self._map_paths)), None)
        if self._map is None:
            return []
        found: list[Code] = []
        for data, is_anew in self._pieces(self._map, self._n_anew):
            data = data if is_anew else self._rest + data
            whole = perf_map.whole_lines(data)
            self._rest = data[whole:][:perf_map.LINE_MAX + 1]  # which is too long, then
            told, n_bad = perf_map.parse(data[:whole], self._read_ns)
            self._n_anew = self._map.n_anew
            self.n_bad += n_bad
            found += told
        return found if not self._n_anew or _overlap(found) else [code for code in found if not self._table.has(code)]

    def _jitdumps(self, mapped: Iterable[bytes]) -> list[Code]:
        for path in mapped:
            if path not in self._dumps and JITDUMP_PATH.search(path):
                file = self._open(path.removesuffix(b" (deleted)"))
                if file is not None:
                    self._dumps[path] = file, Jitdump(), 0
        found: list[Code] = []
        for path, (file, dump, n_anew) in self._dumps.items():
            for data, is_anew in self._pieces(file, n_anew):
                dump = Jitdump() if is_anew else dump
                self._dumps[path] = file, dump, file.n_anew
                found += dump.feed(data, self._read_ns)
        return found

    def _pieces(self, file: GrowingFile, n_anew: int) -> Iterator[tuple[bytes, bool]]:
        """What has come in a file, piece by piece, and whether it begins anew with that, as ``n_anew`` at the last
        piece tells. What is written anew again and again is read twice: the rest is for the next time."""
        most, n_bytes = n_anew + 1, 0
        while n_anew <= most and n_bytes < _AT_A_TIME and (data := file.more()):
            is_anew, n_anew = file.n_anew != n_anew, file.n_anew
            n_bytes += len(data)
            yield data, is_anew
        self._table.is_behind |= n_bytes >= _AT_A_TIME


def _overlap(codes: Iterable[Code]) -> bool:
    in_order = sorted((code.start, code.end) for code in codes)
    return any(start < end for (_, end), (start, _) in pairwise(in_order))
