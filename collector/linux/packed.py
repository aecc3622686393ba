"""What lies behind the records of a ring's spare: the same bytes, packed (zlib), oldest first."""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Iterable

_LEVEL = 1  # the fastest one: records that are alike take a tenth of their room with it already


class Packed:
    """The blocks of one spare; ``n_bytes`` in all."""

    def __init__(self) -> None:
        self.n_bytes = 0
        self._blocks: deque[bytes] = deque()

    def put(self, pieces: Iterable[memoryview]) -> None:
        """One more block, of these pieces."""
        packer = zlib.compressobj(_LEVEL)
        self._blocks.append(b"".join([*map(packer.compress, pieces), packer.flush()]))
        self.n_bytes += len(self._blocks[-1])

    def take(self) -> bytes:
        """The oldest block as it was."""
        block = self._blocks.popleft()
        self.n_bytes -= len(block)
        return zlib.decompress(block)
