"""Address spaces: what a mapping leaves of those that were there, page by page."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.processes.space import AddressSpace, Mapping

PAGE = 4096


def mapping(start: int, end: int, path: bytes = b"/lib/a.so", offset: int = 0, number: int = 3) -> Mapping:
    """A mapping of pages; its bias puts the file's first byte at object address 0x7000."""
    return Mapping(start * PAGE, end * PAGE, offset * PAGE, path, number, (start - offset) * PAGE - 0x7000)


def space_of(*mappings: Mapping) -> AddressSpace:
    space = AddressSpace()
    for new in mappings:
        space, _ = space.map(new)
    return space


def shape(space: AddressSpace) -> list[tuple[int, int, bytes, int]]:
    """Start, end, path, file offset, in pages."""
    return [(m.start // PAGE, m.end // PAGE, m.path, m.file_offset // PAGE) for m in space.mappings]


A, B = b"/lib/a.so", b"/lib/b.so"

CASES = {
    "beside": ((10, 20), (30, 40), [(10, 20, A, 0), (30, 40, B, 0)]),
    "touching from above": ((10, 20), (20, 30), [(10, 20, A, 0), (20, 30, B, 0)]),
    "touching from below": ((10, 20), (5, 10), [(5, 10, B, 0), (10, 20, A, 0)]),
    "the same place": ((10, 20), (10, 20), [(10, 20, B, 0)]),
    "all around": ((10, 20), (5, 30), [(5, 30, B, 0)]),
    "the lower part": ((10, 20), (5, 13), [(5, 13, B, 0), (13, 20, A, 3)]),
    "the upper part": ((10, 20), (17, 30), [(10, 17, A, 0), (17, 30, B, 0)]),
    "the middle": ((10, 20), (13, 17), [(10, 13, A, 0), (13, 17, B, 0), (17, 20, A, 7)]),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_left_of_a_mapping(case: str) -> None:
    old, new, left = CASES[case]
    before = space_of(mapping(*old))
    after, gone = before.map(mapping(*new, path=B))
    assert shape(after) == left
    overlap = case not in ("beside", "touching from above", "touching from below")
    assert [(m.start // PAGE, m.end // PAGE) for m in gone] == ([old] if overlap else [])
    assert (after is before) == (not overlap)  # what only grows keeps its number: nothing is looked up twice
    assert (after.number == before.number) == (not overlap)
    if overlap:
        assert shape(before) == [(*old, A, 0)]  # samples from before still see it


def test_the_same_mapping_again_changes_nothing() -> None:
    space = space_of(mapping(10, 20))
    assert space.map(mapping(10, 20)) == (space, [])
    assert space.map(mapping(10, 20)._replace(object=-1, bias=0)) == (space, [])  # the file cannot be read now
    for other in (mapping(10, 20, path=B), mapping(10, 20, number=4)):  # or a library that was built anew meanwhile
        again, gone = space.map(other)
        assert again is not space
        assert (again.mappings, len(gone)) == ([other], 1)


def test_a_copy_goes_its_own_way() -> None:
    parent = space_of(mapping(10, 20))
    child = parent.copy()
    assert (child.number, shape(child)) != (parent.number, shape(parent))
    child.map(mapping(30, 40, path=B))
    assert shape(parent) == [(10, 20, A, 0)]


def test_numbers_are_never_used_again() -> None:
    numbers = [AddressSpace().number for _ in range(101)]
    assert len(set(numbers)) == 101
    assert numbers == sorted(numbers)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 12), st.sampled_from([A, B, b"/lib/c.so", b""]),
                          st.integers(0, 5)), max_size=12))
def test_every_page_is_what_was_mapped_there_last(mapped: list[tuple[int, int, bytes, int]]) -> None:
    space = AddressSpace()
    pages: dict[int, tuple[bytes, int, int]] = {}
    for number, (start, size, path, offset) in enumerate(mapped):
        space, _ = space.map(mapping(start, start + size, path, offset, number))
        for page in range(start, start + size):
            pages[page] = (path, offset + page - start if path else -1, number)
    assert space.mappings == sorted(space.mappings)
    found: dict[int, tuple[bytes, int, int]] = {}
    for m in space.mappings:
        assert m.start < m.end
        for page in range(m.start // PAGE, m.end // PAGE):
            assert page not in found  # none overlaps another
            at = m.file_offset // PAGE + page - m.start // PAGE if m.path else -1
            # A mapping that changed nothing (the same place, file and offset) leaves the older one's number.
            found[page] = (m.path, at, pages[page][2] if page in pages else -1)
            assert page * PAGE - m.bias == (at * PAGE + 0x7000 if m.path else page * PAGE - m.bias)
    assert found == pages


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 12), st.sampled_from([A, B]), st.integers(0, 5)),
                max_size=12))
def test_the_version_is_another_one_whenever_mappings_are(mapped: list[tuple[int, int, bytes, int]]) -> None:
    """One that grows takes the place of itself: there are as many as before."""
    space = AddressSpace()
    for start, length, path, offset in mapped:
        before = space.version, list(space.mappings)
        space, _ = space.map(mapping(start, start + length, path, offset))
        assert (space.version == before[0]) == (space.mappings == before[1])
