"""Copied stacks as memory: what is real is read, and nothing else is touched."""

from __future__ import annotations

import numpy as np

from collector.unwind.memory import Memory


def test_what_is_not_real_is_not_touched() -> None:
    """A ring of 1024 words of which only the first eleven are there: to read any other one would raise IndexError."""
    region = np.array([[0x7000], [7], [3], [1023], [1]], dtype=np.uint64)  # low, n_words, first, mask, base
    memory = Memory(np.arange(11, dtype=np.uint64), region)
    addresses = np.array([[0x7000], [0x7030], [0x7038], [0x7800], [0x6FF8], [0x7001]], dtype=np.uint64)
    value, ok = memory.read(addresses)
    assert ok.ravel().tolist() == [True, True, False, False, False, False]
    assert value.ravel().tolist()[:2] == [4, 10]
