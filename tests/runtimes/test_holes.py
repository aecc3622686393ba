"""Memory with holes: what is there of a stretch, against a look at each of its bytes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from collector.runtimes.holes import first_of, last_of, parts_of

_PAGE, _N_PAGES = 4096, 12
_ENDS = st.integers(0, _N_PAGES * _PAGE)


class Pages:
    """Memory of which pages are there or not; a read gives all or nothing."""

    def __init__(self, there: Sequence[bool]) -> None:
        self._there = there
        self.most = 0  # pieces at once

    def read(self, addresses: Sequence[int], sizes: Sequence[int]) -> list[bytes]:
        self.most = max(self.most, len(addresses))
        return [self.content(at, at + size) if all(map(self.is_there, range(at, at + size))) else b""
                for at, size in zip(addresses, sizes, strict=True)]

    def is_there(self, at: int) -> bool:
        return self._there[at // _PAGE]

    def content(self, begin: int, end: int) -> bytes:
        return bytes((at * 31 >> 3) & 0xFF for at in range(begin, end))


@given(st.lists(st.booleans(), min_size=_N_PAGES, max_size=_N_PAGES), st.tuples(_ENDS, _ENDS).map(sorted))
def test_what_is_there_of_a_stretch(there: list[bool], ends: list[int]) -> None:
    pages, (begin, end) = Pages(there), ends
    if begin == end:
        return
    is_there = [pages.is_there(at) for at in range(begin, end)]
    (parts,) = parts_of(pages.read, [(begin, end)])
    told = {at + i for at, content in parts for i in range(len(content))}
    assert told == {begin + i for i, one in enumerate(is_there) if one}
    assert all(content == pages.content(at, at + len(content)) for at, content in parts)
    assert all(at + len(content) < after for (at, content), (after, _) in pairwise(parts))
    n_first = is_there.index(False) if False in is_there else len(is_there)
    n_last = is_there[::-1].index(False) if False in is_there else len(is_there)
    assert first_of(pages.read, [(begin, end)]) == [pages.content(begin, begin + n_first)]
    assert last_of(pages.read, [(begin, end)]) == [pages.content(end - n_last, end)]


def test_a_stretch_without_its_edge_is_not_looked_at_page_by_page() -> None:
    pages = Pages([True] * 5 + [False])
    assert last_of(pages.read, [(0, 6 * _PAGE)]) == [b""]
    assert pages.most == 1
