"""What is written of memory without a file that grows while it is divided."""

from __future__ import annotations

from typing import Any
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from collector.experiment import map as maps
from collector.experiment.map import ANONYMOUS, MapLines

PAGE = 4096
_places = st.tuples(st.integers(0, 24), st.integers(1, 12))
_steps = st.lists(st.one_of(
    st.tuples(st.just("anonymous"), _places),
    st.tuples(st.just("grows"), _places),
    st.tuples(st.just("code"), _places),
    st.tuples(st.just("segment"), _places),
    st.tuples(st.just("unmapped"), _places),
), min_size=1, max_size=40)


def written(steps: list[tuple[str, tuple[int, int]]], most_remembered: int) -> list[bytes]:
    """The lines of each step; ``grows`` is memory that begins where others did."""
    lines = MapLines(0, PAGE)
    found: list[Any] = []
    with mock.patch.object(maps, "_COVERED_MAX", most_remembered):
        for time_ns, (what, (at, n)) in enumerate(steps, 1):
            place = 10 * time_ns, at * PAGE, n * PAGE
            if what == "code":
                found.append(lines.code(10 * time_ns, at * PAGE + 64, n * 1024, b"f%d" % time_ns)[0])
            elif what == "segment":
                found.append(lines.segment(*place, 0, b"/lib/x", 5))
            elif what == "unmapped":
                found.append(lines.unmapped(*place))
            else:
                page = at if what == "anonymous" else at % 3 * 8
                found.append(lines.anonymous(10 * time_ns, page * PAGE, n * PAGE))
    return found


@given(_steps)
def test_what_is_remembered_of_growing_memory_changes_no_line(steps: list[tuple[str, tuple[int, int]]]) -> None:
    assert written(steps, 64) == written(steps, 0) == written(steps, 2)


def test_of_growing_memory_only_what_is_new_is_told() -> None:
    lines = MapLines(0, PAGE)
    lines.anonymous(1, 16 * PAGE, 4 * PAGE)
    lines.code(2, 16 * PAGE + 64, 640, b"made")
    (line,) = lines.anonymous(3, 16 * PAGE, 6 * PAGE).splitlines()
    assert b'vaddr="0x%016X"' % (20 * PAGE) in line
    assert b'size="%d"' % (2 * PAGE) in line
    assert ANONYMOUS in line
    assert lines.code(4, 16 * PAGE + 64, 640, b"made")[0] == b""  # it is there
