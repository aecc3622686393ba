"""Copied stacks as memory: what is real is read, and nothing else is touched."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.unwind import memory
from collector.unwind.memory import Memory, words_within


@contextmanager
def patched_near(near: int) -> Iterator[None]:
    before, memory._NEAR = memory._NEAR, near
    try:
        yield
    finally:
        memory._NEAR = before


def test_what_is_not_real_is_not_touched() -> None:
    """A ring of 1024 words of which only the first eleven are there: to read any other one would raise IndexError."""
    region = np.array([[0x7000], [7], [3], [1023], [1]], dtype=np.uint64)  # low, n_words, first, mask, base
    memory = Memory(np.arange(11, dtype=np.uint64), region)
    addresses = np.array([[0x7000], [0x7030], [0x7038], [0x7800], [0x6FF8], [0x7001]], dtype=np.uint64)
    value, ok = memory.read(addresses)
    assert ok.ravel().tolist() == [True, True, False, False, False, False]
    assert value.ravel().tolist()[:2] == [4, 10]


@given(st.integers(0, 2**32), st.integers(0, 12), st.sampled_from([0, 5, 1 << 12]))
@settings(max_examples=200, deadline=None)
def test_the_words_of_stacks_in_a_range_are_found_wherever_their_rings_have_them(seed: int, n: int, near: int) -> None:
    """What lies between two stacks may be among them; without any tolerance nothing else is."""
    rng = np.random.default_rng(seed)
    words = rng.integers(0, 60, 512).astype(np.uint64)
    size = 1 << rng.integers(4, 7, n)
    base, first, n_words = rng.integers(0, 512 - size + 1), rng.integers(0, 2 * size), rng.integers(0, size + 1)
    with patched_near(near):
        found = words_within(words, (base, size - 1, first), n_words, 20, 30).tolist()
    stacks = {int(words[base[i] + ((first[i] + k) % size[i])]) for i in range(n) for k in range(n_words[i])}
    expected = {word for word in stacks if 20 <= word < 30}
    assert found == sorted(set(found)), "each once, ascending"
    assert set(found) <= set(range(20, 30))
    assert set(found) == expected if not near else set(found) >= expected
