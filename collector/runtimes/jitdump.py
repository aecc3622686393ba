"""jit-PID.dump: what a runtime has compiled, as records with times and the code itself. Pure.

The file grows at its end, and its last record may not be whole yet. Times are CLOCK_MONOTONIC, unless the head's flags
say that they are those of the CPU's own counter: then, as with maps, an entry counts from the moment up to which the
file had been read before.
"""

from __future__ import annotations

from typing import Any

from collector.layout import Record
from collector.runtimes.abi import (
    JIT_HEAD,
    JIT_LINES,
    JIT_LOAD,
    JIT_MOVE,
    JITDUMP,
    JITDUMP_ARCH_TIMES,
    JITDUMP_MAGIC,
    LINE,
    LINES,
    LOAD,
    MOVE,
    SAME_FILE,
)
from collector.runtimes.code import NAME_MAX, Code, is_sound

_TEXT_MAX = 1 << 20  # bytes of one function's code that are kept
_RECORD_MAX = 1 << 26  # bytes
_TIME_END_NS = 1 << 62
# V8 and Dart tell lines so many bytes too high, since `perf inject` puts code behind the header of an ELF file.
_ELF_HEADER = 0x40


class Jitdump:
    """Reads a jitdump piece by piece."""

    def __init__(self) -> None:
        self.is_broken = False  # what comes is no jitdump, or makes no sense from here on
        self.n_skipped = 0  # records that tell of no code that can be
        self._rest = b""
        self._has_times: bool | None = None  # None: the head has not come yet
        self._lines: tuple[int, bytes, tuple[tuple[int, int], ...]] = 0, b"", ()  # of the code to come: its address
        self._lines_ahead = _ELF_HEADER  # as long as no line is told below that
        self._loaded: dict[int, Code] = {}  # by index, for when it moves

    def feed(self, data: bytes, since_ns: int) -> list[Code]:
        """The code that is told of by the next bytes of the file, in their order."""
        self._rest += data
        if self.is_broken or (self._has_times is None and not self._read_head()):
            self._rest = b"" if self.is_broken else self._rest
            return []
        found: list[Code] = []
        at = 0
        while not self.is_broken and at + JIT_HEAD.size <= len(self._rest):
            kind, size, time = JIT_HEAD.packer.unpack_from(self._rest, at)
            if not JIT_HEAD.size <= size <= _RECORD_MAX:
                self.is_broken = True
                break
            if at + size > len(self._rest):
                break
            time_ns = min(time, _TIME_END_NS) if self._has_times else since_ns
            found += self._record(kind, self._rest[at + JIT_HEAD.size:at + size], time_ns)
            at += size
        self._rest = b"" if self.is_broken else self._rest[at:]
        return found

    def _read_head(self) -> bool:
        if len(self._rest) < JITDUMP.size:
            return False
        magic, _version, size, _machine, _pad, _pid, _time, flags = JITDUMP.packer.unpack_from(self._rest, 0)
        self.is_broken = self.is_broken or magic != JITDUMP_MAGIC or not JITDUMP.size <= size <= _RECORD_MAX
        if self.is_broken or len(self._rest) < size:
            return False
        self._has_times = not flags & JITDUMP_ARCH_TIMES
        self._rest = self._rest[size:]
        return True

    def _record(self, kind: int, body: bytes, time_ns: int) -> list[Code]:
        if kind == JIT_LOAD:
            return self._load(body, time_ns)
        if kind == JIT_MOVE:
            return self._move(body, time_ns)
        if kind == JIT_LINES:
            self._lines = _lines(body)
        return []

    def _load(self, body: bytes, time_ns: int) -> list[Code]:
        fields = _unpacked(LOAD, body)
        name, nul, text = body[LOAD.size:].partition(b"\0")
        if fields is None or not nul:
            self.n_skipped += 1
            return []
        _pid, _tid, _vma, start, size, index = fields
        (address, source, lines), self._lines = self._lines, (0, b"", ())
        if not is_sound(start, size, name[:NAME_MAX]):
            self.n_skipped += 1
            return []
        if address == start and lines and lines[0][0] < start + _ELF_HEADER:
            self._lines_ahead = 0
        begin = start + self._lines_ahead
        own = tuple((offset - begin, line) for offset, line in lines if 0 <= offset - begin < size)
        is_own = address == start and bool(own)
        code = Code(start, size, name[:NAME_MAX], time_ns, text[:size] if size <= _TEXT_MAX else b"",
                    source if is_own else b"", own if is_own else ())
        self._loaded[index] = code
        return [code]

    def _move(self, body: bytes, time_ns: int) -> list[Code]:
        fields = _unpacked(MOVE, body)
        before = self._loaded.get(fields[-1]) if fields is not None else None
        if fields is None or before is None or not is_sound(fields[4], before.size, before.name):
            self.n_skipped += 1
            return []
        code = self._loaded[fields[-1]] = before._replace(start=fields[4], since_ns=time_ns)
        return [code]


def _unpacked(record: Record, body: bytes) -> tuple[Any, ...] | None:
    return record.packer.unpack_from(body, 0) if len(body) >= record.size else None


def _lines(body: bytes) -> tuple[int, bytes, tuple[tuple[int, int], ...]]:
    """The address of the code, the file that its first line is in, and (address, line) of those in that file."""
    fields = _unpacked(LINES, body)
    found: list[tuple[int, int]] = []
    source, name, at = b"", b"", LINES.size
    for _ in range(min(fields[1], len(body) // LINE.size) if fields else 0):
        end = body.find(b"\0", at + LINE.size)
        if end < 0:
            break
        address, line, _ = LINE.packer.unpack_from(body, at)
        told = body[at + LINE.size:end]
        name = name if told == SAME_FILE else told
        source = source or name
        if name == source and line > 0:
            found.append((address, line))
        at = end + 1
    return fields[0] if fields else 0, source[:NAME_MAX], tuple(sorted(found))
