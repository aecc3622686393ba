"""Files that grow while they are read: each look gives what has come since the one before, and costs no more than that.

A packet file is walked from where the walk before ended. A head of zero means "nothing here yet", and so does one of an
EMPTY packet, which others come to lie over. Such a stretch is kept, and the walk goes on behind it: where the EMPTY
packet ends, or, if something is there, where the next block begins. Recorders with a block for each thread leave such
stretches behind; ours has the end, and for a moment a packet that is larger than a block::

    |  walked  | new packets |0 zeros |  new packets  |EMPTY       | new packets |0 zeros allocated ahead
                             ^--open--^               ^----open----^             ^ end

A text is taken line by line, up to the last line behind which no element is open. A line that is still being written
has blanks in place of some of its ``<``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from collector.experiment.damage import Bytes
from collector.experiment.packets import Run, runs
from collector.experiment.records import BLOCK_SIZE, HEAD, KIND_EMPTY

# Nobody allocates more ahead: where so much is empty, there is nothing behind it.
_PIECE_BYTES = 256 * BLOCK_SIZE
_OPEN_MAX = 1024
_OPEN_BYTES = 8 * BLOCK_SIZE  # of one: others' blocks are four times as large, and two may be new
_EMPTY_MIN = 12  # bytes of an EMPTY packet that has room for another one
_TEXT_BYTES = 1 << 16
_PADDING = b"\0\n "
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class GrowingPackets:
    """A packet file; it need not be there yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._end = 0  # where the next packet will be
        self._open: list[tuple[int, int]] = []  # stretches before it where there may be some later

    def more(self) -> Iterator[tuple[Bytes, list[Run]]]:
        """Bytes from the beginning of a block on, and the new packets in them. Raises OSError."""
        try:
            fd = os.open(self._path, _FLAGS)
        except FileNotFoundError:
            return
        try:
            stretches, self._open = self._open, []
            for begin, end in stretches:
                if _is_open(fd, begin, end):
                    self._open.append((begin, end))
                else:
                    yield self._walked(fd, begin, end, is_last=False)
            while True:
                data, found = self._walked(fd, self._end, _block(self._end) + _PIECE_BYTES, is_last=True)
                if found:
                    yield data, found
                if not found or len(data) < _PIECE_BYTES:
                    return
        finally:
            os.close(fd)

    def _walked(self, fd: int, place: int, stop: int, *, is_last: bool) -> tuple[Bytes, list[Run]]:
        """The packets from ``place`` on, before ``stop``. What has been walked over is remembered."""
        begin = _block(place)
        data = np.frombuffer(os.pread(fd, stop - begin, begin), np.uint8)
        found = list(runs(data, offset=place - begin))
        end, left_open = place - begin, []
        for run in found:
            if run.offset > end and not _head(data, end):
                left_open.append((end, run.offset))
            end = run.offset + run.count * run.size
            if run.kind == KIND_EMPTY and run.size >= _EMPTY_MIN:
                left_open += [(at, at + run.size) for at in range(run.offset, end, run.size)[-_OPEN_MAX:]]
        if is_last:
            self._end = begin + end
        elif end < len(data) and not _head(data, end):
            left_open.append((end, len(data)))
        self._open += [(begin + first, begin + min(last, first + _OPEN_BYTES)) for first, last in left_open]
        self._open = self._open[-_OPEN_MAX:]
        return data, found


def _is_open(fd: int, begin: int, end: int) -> bool:
    """Whether there is nothing in a stretch, as its first bytes tell."""
    head = int.from_bytes(os.pread(fd, HEAD.size, begin), "little")
    return head == end - begin or (not head and end <= _block(begin) + BLOCK_SIZE)


def _block(place: int) -> int:
    return place // BLOCK_SIZE * BLOCK_SIZE


def _head(data: Bytes, offset: int) -> int:
    return int(data[offset:offset + 4].view("<u4")[0]) if offset + 4 <= len(data) else 0


class GrowingText:
    """An XML file of several roots, padded with NULs; it need not be there yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._end = 0

    def more(self) -> bytes:
        """The lines that have come, whole elements. Raises OSError."""
        try:
            fd = os.open(self._path, _FLAGS)
        except FileNotFoundError:
            return b""
        try:
            text = self._rest(fd)
        finally:
            os.close(fd)
        lines = text[:_whole_length(text)]
        if not lines and any(map(_is_whole, text.split(b"\n")[1:])):  # damage: what comes later is written later
            lines = text[:text.index(b"\n") + 1]
        self._end += len(lines)
        return lines

    def _rest(self, fd: int) -> bytes:
        """What has not been taken yet, without what is only allocated."""
        parts, place = [], self._end
        while part := os.pread(fd, _TEXT_BYTES, place):
            parts.append(part)
            place += len(part)
            if not part.strip(_PADDING):
                break
        return b"".join(parts).rstrip(_PADDING)


def _is_whole(line: bytes) -> bool:
    """Whether all tags of a line are there."""
    return line.startswith(b"<") and line.count(b"<") == line.count(b">")


def _whole_length(text: bytes) -> int:
    """The length of the lines at the beginning of ``text`` that leave no element open."""
    whole = length = depth = 0
    for line in text.split(b"\n"):
        content = line.strip(_PADDING)
        if content and not _is_whole(content):
            break
        length += len(line) + 1
        closed = content.count(b"</")
        opened = content.count(b"<") - closed - content.count(b"<?") - content.count(b"<!") - content.count(b"/>")
        depth += opened - closed
        if depth <= 0:
            whole = min(length, len(text))
    return whole
