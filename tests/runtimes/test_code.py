"""Lines of code that follow each other."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from collector.experiment.dyntext import Text, packed
from collector.runtimes.code import EachLine


@given(st.integers(1, 1 << 30), st.integers(0, 99), st.integers(1, 9))
def test_lines_that_follow_each_other_are_as_good_as_a_list_of_them(first: int, n: int, step: int) -> None:
    each, told = EachLine(first, n, step), tuple((i * step, first + i) for i in range(n))
    assert tuple(each) == told
    assert each[1:] == list(told[1:])
    assert bool(each) == bool(told)
    assert packed(7, 4096, Text(b"code", b"file", each)) == packed(7, 4096, Text(b"code", b"file", told))
    assert len({each, EachLine(first, n, step), EachLine(first + 1, n, step)}) == 2
