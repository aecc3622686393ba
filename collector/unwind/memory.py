"""The copied stacks of a batch as memory that many samples read at once. Pure.

A stack is a run of machine words in a ring: the word at the lowest address, ``low``, has the index ``first`` in its
ring, the next one ``first + 1``, and so on round the ring. Nothing is copied before it is read, and no address leads
out of the words that are real::

    k = (address - low) / word           ok if whole, and 0 <= k < n_words
    value = words[base + ((first + k) & mask)]
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from collector.arrays import distinct, indices

I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]
Bools = npt.NDArray[np.bool_]


_NEAR = 1 << 12  # words between two stacks that are read with them: a record's other parts, or another stack
_AT_ONCE = 1 << 15  # words: what is made of them stays in the CPU's caches


def words_within(words: npt.NDArray[Any], ring: tuple[I64, I64, I64], n_words: I64, low: int, high: int) -> U64:
    """The different words (k,) in stacks (n,) that are in [low, high), ascending; maybe some of what lies between two
    stacks. ``ring``: base, mask and first of each (n,)."""
    base, mask, first = ring
    start = base + (first & mask)
    over = np.maximum(start + n_words - (base + mask + 1), 0)  # of those that go round their ring
    starts, ends = np.concatenate((start, base)), np.concatenate((start + n_words - over, base + over))
    order = indices(starts < ends)
    order = order[starts[order].argsort()]
    starts, ends = starts[order], np.maximum.accumulate(ends[order])
    apart = indices(starts[1:] > ends[:-1] + _NEAR)
    spans = zip(starts[[0, *(apart + 1)]].tolist(), ends[[*apart, -1]].tolist(), strict=True) if len(order) else ()
    found = [words[:0]]
    for begin, end in spans:
        for at in range(begin, end, _AT_ONCE):
            part = words[at:min(at + _AT_ONCE, end)]
            found.append(part[part - words.dtype.type(low) < words.dtype.type(high - low)])
    return distinct(np.concatenate(found))


class Memory:
    """The stacks of n samples. ``region`` (5, n) u8: low, n_words, first, mask, base."""

    def __init__(self, words: npt.NDArray[Any], region: U64) -> None:
        self.words, self.region = words, region
        self.word_size = words.dtype.itemsize
        self._shift = np.uint64(3 if self.word_size == 8 else 2)
        self._back = np.uint64(64) - self._shift
        self.low, self.n_words, self._first, self._mask, self._base = region

    def read(self, address: U64) -> tuple[U64, Bools]:
        """(the words at addresses (n,) or (k, n), whether each is real). What is not real has any value."""
        distance = address - self.low
        # Rotated and not shifted: what is not a multiple of the word becomes huge.
        k = (distance >> self._shift) | (distance << self._back)
        ok = k < self.n_words
        k *= ok  # elsewhere in the ring there may be memory that was given back, and would be had again
        k += self._first
        k &= self._mask
        k += self._base
        value = self.words.take(k.view(np.int64))
        return (value if self.word_size == 8 else value.astype(np.uint64)), ok

    def subset(self, which: npt.NDArray[Any]) -> Memory:
        """The stacks of some samples, by their indices."""
        return Memory(self.words, self.region.take(which, axis=1))

    def is_above(self, address: U64) -> Bools:
        """Whether addresses (n,) lie behind the end of the copy, where the stack goes on."""
        above: Bools = address >= self.low + self.n_words * np.uint64(self.word_size)
        return above

    def column(self, sample: int, address: int, n_max: int) -> U64:
        """Up to ``n_max`` words of one sample's stack from an address on, in order."""
        low, n_words, first, mask, base = (int(v) for v in self.region[:, sample])
        start, rest = divmod(address - low, self.word_size)
        if rest or not 0 <= start < n_words:
            return np.zeros(0, np.uint64)
        k = np.arange(start, min(start + n_max, n_words))
        return self.words.take(base + ((first + k) & mask)).astype(np.uint64)
