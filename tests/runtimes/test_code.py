"""Tables of code, told in pieces; lines of code that follow each other."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from collector.experiment.dyntext import Text, packed
from collector.runtimes.code import Code, CodeTable, EachLine


@given(st.integers(1, 1 << 30), st.integers(0, 99), st.integers(1, 9))
def test_lines_that_follow_each_other_are_as_good_as_a_list_of_them(first: int, n: int, step: int) -> None:
    each, told = EachLine(first, n, step), tuple((i * step, first + i) for i in range(n))
    assert tuple(each) == told
    assert each[1:] == list(told[1:])
    assert bool(each) == bool(told)
    assert packed(7, 4096, Text(b"code", b"file", each)) == packed(7, 4096, Text(b"code", b"file", told))
    assert len({each, EachLine(first, n, step), EachLine(first + 1, n, step)}) == 2


PIECE = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 20), st.integers(0, 9)), max_size=5)


@given(st.lists(PIECE, max_size=25))
def test_a_table_tells_the_same_however_it_was_told(told: list[list[tuple[int, int, int]]]) -> None:
    """The last that was told of those that were there by then, else the first; whatever the pieces were."""
    table, codes = CodeTable(), []
    for piece in told:
        more = [Code(start, size, b"%d" % (len(codes) + i), since) for i, (start, size, since) in enumerate(piece)]
        codes += more
        table.add(more)
    assert len(table) == len(codes)
    for pc in range(62):
        there = [code for code in codes if code.start <= pc < code.end]
        for time in range(-1, 10):
            before = [code for code in there if code.since_ns <= time]
            assert table.at(pc, time) == (before[-1] if before else there[0] if there else None)


def test_what_is_told_line_by_line_is_not_put_in_order_with_each_line() -> None:
    """Each of these lines took a pass over all before: minutes."""
    table, n = CodeTable(), 60_000
    for i in range(n):
        table.add([Code(i * 7919 % n * 16, 16, b"%d" % i, i)])
    found = table.at(7919 * 16 * 5 % (n * 16) + 3, n)
    assert found is not None
    assert found.name == b"5"
