"""Files that grow while they are read: each look gives what has come since the one before, and costs no more than that.

A packet file is walked from where the walk before ended. A head of zero means "nothing here yet": the place is kept,
and the walk goes on where the next block begins, if something is there (recorders with a block for each thread leave
such places behind; ours has one, the end)::

    |  walked  | new packets |0 zeros |  new packets  |0 zeros allocated ahead
                             ^ open                    ^ end

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
from collector.experiment.records import BLOCK_SIZE

# Nobody allocates more ahead: where so much is empty, there is nothing behind it.
_PIECE_BYTES = 256 * BLOCK_SIZE
_OPEN_MAX = 1024
_TEXT_BYTES = 1 << 16
_PADDING = b"\0\n "
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class GrowingPackets:
    """A packet file; it need not be there yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._end = 0  # where the next packet will be
        self._open: list[int] = []  # places before it where there may be one later

    def more(self) -> Iterator[tuple[Bytes, list[Run]]]:
        """Bytes from the beginning of a block on, and the new packets in them. Raises OSError."""
        try:
            fd = os.open(self._path, _FLAGS)
        except FileNotFoundError:
            return
        try:
            places, self._open = self._open, []
            for place in places:
                yield self._walked(fd, place, BLOCK_SIZE, is_last=False)
            while True:
                data, found = self._walked(fd, self._end, _PIECE_BYTES, is_last=True)
                if found:
                    yield data, found
                if not found or len(data) < _PIECE_BYTES:
                    return
        finally:
            os.close(fd)

    def _walked(self, fd: int, place: int, n_bytes: int, *, is_last: bool) -> tuple[Bytes, list[Run]]:
        """The packets from ``place`` on. What has been walked over is remembered."""
        begin = place // BLOCK_SIZE * BLOCK_SIZE
        data = np.frombuffer(os.pread(fd, n_bytes, begin), np.uint8)
        found = list(runs(data, offset=place - begin))
        end, left_open = place - begin, []
        for run in found:
            if run.offset > end and not _head(data, end):
                left_open.append(begin + end)
            end = run.offset + run.count * run.size
        if is_last:
            self._end = begin + end
        elif end < len(data) and not _head(data, end):
            left_open.append(begin + end)
        self._open = (self._open + left_open)[-_OPEN_MAX:]
        return data, found


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
